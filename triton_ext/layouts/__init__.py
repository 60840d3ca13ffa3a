"""Layouts of shared memory and of registers: Triton's encodings, linear layouts, CuTe's algebra."""
