// What learn-cuda's sources take from PyTorch's header: a check, and CUDA's types.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <cuda_bf16.h>

#define TORCH_CHECK(condition, ...)                        \
    do {                                                   \
        if (!(condition)) {                                \
            std::fprintf(stderr, "TORCH_CHECK\n");         \
            std::exit(3);                                  \
        }                                                  \
    } while (0)
