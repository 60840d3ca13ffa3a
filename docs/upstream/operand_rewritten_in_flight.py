"""A tcgen05.mma operand is written anew while the product before it may still read it.

The tensor cores take fp32 operands K-major only, so Triton turns an N-major B from a TMA descriptor
through registers, into one buffer. The pipeliner lets two products be in flight: it waits for the
one before after it has issued the next, which is after that buffer was written again. The emulated
GPU, which completes products as late as it may, says so; what a B200 does depends on its timing.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_ext
from triton_ext.emulator.errors import SynchronizationFault


@triton.jit
def matmul(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = a_desc.load([0, k])
        b = b_desc.load([k, 0])
        acc = tl.dot(a, b, acc, input_precision="tf32")
    c_desc.store([0, 0], acc)


def described(tensor, block):
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block)


a, b, c = torch.randn(64, 128), torch.randn(128, 64), torch.zeros(64, 64)
print(f"Triton {triton.__version__}")
with triton_ext.emulate("sm_100", schedule="lazy"):
    try:
        matmul[(1,)](
            described(a, [64, 32]), described(b, [32, 64]), described(c, [64, 64]), 128, 64, 64, 32,
            enable_fp_fusion=True,
        )  # fmt: skip
        print("right: every write to the operand is after the product that read it")
    except SynchronizationFault as fault:
        print(f"wrong: {fault.message}")
