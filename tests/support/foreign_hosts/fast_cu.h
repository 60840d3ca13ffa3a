// What fast.cu's kernels take from its own host program.
#pragma once
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda/barrier>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 bf16;
#define CEIL_DIV(M, N) (((M) + (N) - 1) / (N))
#define C_COLUMNS

static void cudaCheck(cudaError_t status) {
    if (status != cudaSuccess) {
        printf("CUDA: %s\n", cudaGetErrorString(status));
        exit(3);
    }
}
