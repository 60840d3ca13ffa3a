// Copies an array in pieces of 1024 floats, doubled: threads write a piece to shared memory, and the
// copy engine stores it. Compile with -DFENCE to mend it.
#include <cstdio>
#include <vector>

constexpr int PIECE = 1024;

__global__ void doubled(float *out, const float *in) {
    __shared__ alignas(128) float piece[PIECE];
    for (int i = threadIdx.x; i < PIECE; i += blockDim.x)
        piece[i] = 2 * in[blockIdx.x * PIECE + i];
#ifdef FENCE
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned from = __cvta_generic_to_shared(piece);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                     :: "l"(out + blockIdx.x * PIECE), "r"(from), "n"(PIECE * 4) : "memory");
        asm volatile("cp.async.bulk.commit_group;");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

int main() {
    std::vector<float> host(4 * PIECE, 1);
    float *in, *out;
    cudaMalloc(&in, host.size() * 4);
    cudaMalloc(&out, host.size() * 4);
    cudaMemcpy(in, host.data(), host.size() * 4, cudaMemcpyHostToDevice);
    doubled<<<4, 128>>>(out, in);
    cudaMemcpy(host.data(), out, host.size() * 4, cudaMemcpyDeviceToHost);
    printf("%g %g\n", host[0], host.back());
    return host.back() != 2;
}
