// Scales: of A, fp32 for each row and 128 of K; of B, fp32 for each square of 128 x 128.
#define ELEMENT __nv_fp8_e4m3
#define RESULT __nv_bfloat16
#define SCALE_A(i, k) std::ldexp(1.0, ((i) + (k) / 128) % 3 - 1)
#define SCALE_B(j, k) std::ldexp(1.0, ((j) / 128 + (k) / 128) % 2)
#include "deep_gemm.h"
#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>
using namespace deep_gemm;

static void multiply(const void *A, const void *B, void *C, int M, int N, int K) {
    std::vector<float> a, b;
    for (int k = 0; k < K; k += 128)
        for (int i = 0; i < M; i++) a.push_back(SCALE_A(i, k));
    for (int j = 0; j < N; j += 128)
        for (int k = 0; k < K; k += 128) b.push_back(SCALE_B(j, k));
    auto kernel = &sm90_fp8_gemm_1d2d_impl<
        cute::UMMA::Major::K, 0, 0, 0, 1, 64, 128, 128, 128, 128, 128, 4, 128, 128, MULTICAST, false, 2,
        GemmType::Normal, cutlass::bfloat16_t, epilogue::transform::EpilogueIdentity>;
    launch(kernel, 256, 150000, on_device(b), nullptr, M, N, K, tensor_map(A, BYTES, 1, K, M, 128, 64, 128),
           tensor_map(B, BYTES, 1, K, N, 128, 128, 128), tensor_map(C, BFLOAT16, 2, N, M, 64, 64, 128),
           tensor_map(on_device(a), CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, M, K / 128, 64, 1, 0));
}
#define MULTIPLY multiply
#include "matmul.h"
