// A bug each, as new users of CUDA C++ write them: `bugs NAME`.
#include <cstdio>
#include <cstring>

__global__ void barrier(const float *in, float *out) {
    __shared__ float part[256];
    int t = threadIdx.x;
    part[t] = in[t];
    for (int s = 128; s > 0; s /= 2) {
        if (t < s) part[t] += part[t + s];  // no __syncthreads()
    }
    if (t == 0) *out = part[0];
}

__global__ void bounds(const float *in, float *out) {
    int i = threadIdx.x + 1;
    if (i <= 256) out[i] = in[i];  // <, not <=
}

__global__ void halo(const float *in, float *out) {
    __shared__ float tile[258];
    int t = threadIdx.x;
    tile[t + 1] = in[t];  // tile[0] and tile[257] are left out
    __syncthreads();
    out[t] = tile[t] + tile[t + 1] + tile[t + 2];
}

__global__ void histogram(const float *in, float *out) {
    out[int(in[threadIdx.x])] += 1;  // atomicAdd
}

__global__ void shuffle(const float *in, float *out) {
    float v = in[threadIdx.x];
    if (threadIdx.x < 20)
        for (int d = 16; d; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    if (threadIdx.x == 0) *out = v;
}

__global__ void host(const float4 *in, float4 *out) {
    out[threadIdx.x] = in[threadIdx.x];
}

int main(int, char **argv) {
    float own[256], *in, *out;
    cudaMalloc(&in, sizeof own);
    cudaMalloc(&out, sizeof own);
    cudaMemset(in, 0, sizeof own);
    cudaMemset(out, 0, sizeof own);
    const char *name = argv[1];
    if (!strcmp(name, "barrier")) barrier<<<1, 256>>>(in, out);
    if (!strcmp(name, "bounds")) bounds<<<1, 256>>>(in, out);
    if (!strcmp(name, "halo")) halo<<<1, 256>>>(in, out);
    if (!strcmp(name, "histogram")) histogram<<<1, 256>>>(in, out);
    if (!strcmp(name, "shuffle")) shuffle<<<1, 32>>>(in, out);
    if (!strcmp(name, "host")) host<<<1, 8>>>((float4 *)((char *)own + 4), (float4 *)out);
    printf("%s\n", cudaGetErrorString(cudaDeviceSynchronize()));
}
