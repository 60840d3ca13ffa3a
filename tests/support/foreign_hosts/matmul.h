// The host program of a foreign matmul: included behind the kernel's own, unedited source.
//
// MULTIPLY(A, B, C, M, N, K) launches it. B_ROWS: B is K x N, not N x K. C_COLUMNS: C is stored
// column by column. SCALE_A(i, k), SCALE_B(j, k): what the kernel multiplies elements by. Inputs are
// halves of small integers, so that every product is exact; sums of doubles are the reference.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#ifndef ELEMENT
#define ELEMENT __nv_bfloat16
#endif
#ifndef RESULT
#define RESULT ELEMENT
#endif
#ifndef SCALE_A
#define SCALE_A(i, k) 1.0
#define SCALE_B(j, k) 1.0
#endif
#ifdef B_ROWS
#define B_AT(j, k) ((k) * N + (j))
#else
#define B_AT(j, k) ((j) * K + (k))
#endif
#ifdef C_COLUMNS
#define C_AT(i, j) ((j) * M + (i))
#else
#define C_AT(i, j) ((i) * N + (j))
#endif

int main(int argc, char **argv) {
    const int M = atoi(argv[1]), N = atoi(argv[2]), K = atoi(argv[3]);
    std::vector<ELEMENT> a(M * K), b(N * K);
    std::vector<RESULT> c(M * N);
    unsigned state = 12345;
    auto drawn = [&] {
        state = state * 1664525u + 1013904223u;
        return (int(state >> 24) % 13 - 6) * 0.5f;
    };
    for (auto &x : a) x = ELEMENT(drawn());
    for (auto &x : b) x = ELEMENT(drawn());
    ELEMENT *A, *B;
    RESULT *C;
    cudaMalloc(&A, a.size() * sizeof(ELEMENT));
    cudaMalloc(&B, b.size() * sizeof(ELEMENT));
    cudaMalloc(&C, c.size() * sizeof(RESULT));
    cudaMemcpy(A, a.data(), a.size() * sizeof(ELEMENT), cudaMemcpyHostToDevice);
    cudaMemcpy(B, b.data(), b.size() * sizeof(ELEMENT), cudaMemcpyHostToDevice);
    cudaMemset(C, 0xff, c.size() * sizeof(RESULT));
    MULTIPLY(A, B, C, M, N, K);
    cudaError_t status = cudaDeviceSynchronize();
    if (status == cudaSuccess) status = cudaGetLastError();
    if (status != cudaSuccess) {
        printf("CUDA: %s\n", cudaGetErrorString(status));
        return 3;
    }
    cudaMemcpy(c.data(), C, c.size() * sizeof(RESULT), cudaMemcpyDeviceToHost);
    double apart = 0, size = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum += double(float(a[i * K + k])) * SCALE_A(i, k) * double(float(b[B_AT(j, k)])) * SCALE_B(j, k);
            double difference = double(float(c[C_AT(i, j)])) - sum;
            apart += std::isfinite(difference) ? difference * difference : 1e30;
            size += sum * sum;
        }
    double error = std::sqrt(apart / size);
    printf("%s by %.1e\n", error < 4e-3 ? "right" : "wrong", error);
    return error < 4e-3 ? 0 : 2;
}
