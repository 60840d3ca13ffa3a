#include "deep_gemm.h"
#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
using namespace deep_gemm;

static void multiply(const void *A, const void *B, void *C, int M, int N, int K) {
    constexpr auto major = cute::UMMA::Major::K;
    auto kernel = &sm90_bf16_gemm_impl<
        major, major, 0, 0, 0, 1, 64, 64, 64, 128, 128, 128, 4, 128, 128, MULTICAST, false, 2,
        GemmType::Normal, false, cutlass::bfloat16_t>;
    launch(kernel, 256, 100000, nullptr, M, N, K, tensor_map(A, BFLOAT16, 2, K, M, 64, 64, 128),
           tensor_map(B, BFLOAT16, 2, K, N, 64, 64, 128), tensor_map(C, BFLOAT16, 2, N, M, 64, 64, 128));
}
#define MULTIPLY multiply
#include "matmul.h"
