// What the host programs of DeepGEMM's kernels share: tensor maps and launches, as its own make them.
#pragma once
#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <vector>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#ifndef MULTICAST
#define MULTICAST 1
#endif
constexpr auto BFLOAT16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
constexpr auto BYTES = CU_TENSOR_MAP_DATA_TYPE_UINT8;

// A matrix of `outer` rows of `inner` elements, without gaps; swizzle in bytes, 0 for none.
static CUtensorMap tensor_map(const void *at, CUtensorMapDataType type, int size, int inner, int outer,
                              int box_inner, int box_outer, int swizzle) {
    CUtensorMap map;
    cuuint64_t shape[2] = {cuuint64_t(inner), cuuint64_t(outer)}, strides[1] = {cuuint64_t(inner) * size};
    cuuint32_t box[2] = {cuuint32_t(swizzle ? swizzle / size : box_inner), cuuint32_t(box_outer)};
    cuuint32_t steps[2] = {1, 1};
    auto mode = swizzle == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
    CUresult status = cuTensorMapEncodeTiled(
        &map, type, 2, const_cast<void *>(at), shape, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        mode, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status) {
        printf("cuTensorMapEncodeTiled: %d\n", status);
        exit(3);
    }
    return map;
}

template <class T> static T *on_device(const std::vector<T> &values) {
    T *found;
    cudaMalloc(&found, values.size() * sizeof(T));
    cudaMemcpy(found, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
    return found;
}

template <class... P, class... A>
static void launch(void (*kernel)(P...), int threads, int shared, A... arguments) {
    cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = MULTICAST;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, kernel, P(arguments)...);
}
