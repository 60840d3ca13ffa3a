// A tile of A and one of B come by TMA, and are multiplied by wgmma: 64x8 += 64x64 * 64x8, fp16.
#include <cstdint>

__device__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// K-major, 128-byte swizzle: SBO 1024; LBO is not used
__device__ uint64_t descriptor(const void* tile) {
    uint64_t bits = (shared_address(tile) & 0x3FFFF) >> 4;
    return bits | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

struct alignas(64) TensorMap { char opaque[128]; };

extern "C" __global__ void __launch_bounds__(128)
multiply(float* out, const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map) {
    __shared__ alignas(1024) uint8_t a_tile[64 * 128];
    __shared__ alignas(1024) uint8_t b_tile[8 * 128];
    __shared__ alignas(8) uint64_t barrier;
    uint32_t ready = shared_address(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ready));
        asm volatile("fence.mbarrier_init.release.cluster;");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ready), "n"(9216));
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
                shared_address(a_tile)), "l"(&a_map), "r"(0), "r"(64 * blockIdx.x), "r"(ready),
            "h"((unsigned short)3), "l"(policy) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(b_tile)),
            "l"(&b_map), "r"(0), "r"(0), "r"(ready), "l"(0x14F0000000000000ull) : "memory");
    }
    asm volatile(
        "{\n .reg .pred done;\nwait:\n"
        " mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @!done bra wait;\n}" ::"r"(ready),
        "r"(0) : "memory");
    float d[4] = {0.f, 0.f, 0.f, 0.f};
    uint64_t a = descriptor(a_tile), b = descriptor(b_tile);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; ++k)
        asm volatile(
            "{\n .reg .pred p;\n setp.ne.b32 p, %6, 0;\n"
            " wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, -1,"
            " 0, 0;\n}"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a + 2 * k), "l"(b + 2 * k), "r"(k));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = d[i];
}
