"""CUDA's driver for programs that are not Triton's: a library in C, and what answers it."""
