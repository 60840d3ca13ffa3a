"""Pipelined TMA loads of less than 128 bytes: the stages after the first one are misaligned.

A box in shared memory begins at a multiple of 128 bytes (CUDA driver API; PTX ISA, "Tensor
Copies"). The pipeliner puts the stages one behind the other, at every 32 bytes here, and the copy
ends in "misaligned address" on a GPU (triton#11735). The emulated GPU says so.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_ext
from triton_ext.emulator.errors import DescriptorFault


@triton.jit
def total(rows, out, count, COLUMNS: tl.constexpr):
    found = tl.zeros((1, COLUMNS), tl.float32)
    for row in tl.range(0, count, num_stages=3):
        found += rows.load([row, 0]).to(tl.float32)
    tl.store(out + tl.arange(0, 1)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :], found)


rows, out = torch.ones(6, 16).half(), torch.zeros(1, 16)
print(f"Triton {triton.__version__}")
with triton_ext.emulate("sm_90"):
    try:
        descriptor = TensorDescriptor.from_tensor(rows, [1, 16])
        total[(1,)](descriptor, out, 6, 16, enable_fp_fusion=True)
        print("right: each stage begins at a multiple of 128 bytes")
    except DescriptorFault as fault:
        print(f"wrong: {str(fault).splitlines()[0]}")
