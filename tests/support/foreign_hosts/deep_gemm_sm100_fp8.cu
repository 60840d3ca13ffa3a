// Scales: powers of two for each row and 128 of K, four exponents of 8 bits to a word.
#define ELEMENT __nv_fp8_e4m3
#define RESULT __nv_bfloat16
#define SCALE_A(i, k) std::ldexp(1.0, ((i) + (k) / 128) % 3 - 1)
#define SCALE_B(j, k) std::ldexp(1.0, ((j) / 5 + (k) / 128) % 2)
#include "deep_gemm.h"
#include <deep_gemm/impls/sm100_fp8_fp4_gemm_1d1d.cuh>
using namespace deep_gemm;

template <class Scale> static CUtensorMap scales(int rows, int K, Scale scale) {
    std::vector<int> words;
    for (int k = 0; k < K; k += 512)
        for (int i = 0; i < rows; i++) {
            unsigned word = 0;
            for (int part = 0; part < 4 && k + 128 * part < K; part++)
                word |= unsigned(std::ilogb(scale(i, k + 128 * part)) + 127) << (8 * part);
            words.push_back(word);
        }
    return tensor_map(on_device(words), CU_TENSOR_MAP_DATA_TYPE_INT32, 4, rows, (K + 511) / 512, 128, 1, 0);
}

static void multiply(const void *A, const void *B, void *C, int M, int N, int K) {
    constexpr auto major = cute::UMMA::Major::K;
    using Element = cutlass::float_e4m3_t;
    auto kernel = &sm100_fp8_fp4_gemm_1d1d_impl<
        major, major, 128, 128, 128, 0, 0, 0, 128, 128, 128, 1, 128, 128, 128, 4, 128, 128, MULTICAST, false, 2,
        false, false, GemmType::Normal, false, Element, Element, cutlass::bfloat16_t,
        epilogue::transform::EpilogueIdentity>;
    launch(kernel, 256, 200000, nullptr, M, N, K, tensor_map(A, BYTES, 1, K, M, 128, 128, 128),
           tensor_map(B, BYTES, 1, K, N, 128, 128 / MULTICAST, 128),
           scales(M, K, [](int i, int k) { return SCALE_A(i, k); }),
           scales(N, K, [](int j, int k) { return SCALE_B(j, k); }),
           tensor_map(C, BFLOAT16, 2, N, M, 64, 128, 128));
}
#define MULTIPLY multiply
#include "matmul.h"
