"""A tcgen05.mma reads what cp.async has copied, and no proxy fence lies between the two.

cp.async writes shared memory through the generic proxy, the tensor cores read it through the async
proxy (PTX ISA, "Async proxy"): that takes a fence.proxy.async. Before Triton 3.9 a product whose A
lies in tensor memory gets none for its B, as the second product of attention in a pipelined loop:
the fences of the loop are those of the other product. The emulated GPU says so under every
schedule; what a B200 does depends on its timing.
"""

import torch
import triton
import triton.language as tl

import triton_ext
from triton_ext.emulator.errors import SynchronizationFault


@triton.jit
def two_products(q, k, v, o, T, D: tl.constexpr):
    row, column = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    queries = tl.load(q + row * D + column)
    acc = tl.zeros((D, D), tl.float32)
    for i in tl.range(0, T, D, num_stages=2):
        keys = tl.load(k + (i + row) * D + column)
        values = tl.load(v + (i + row) * D + column)
        scores = tl.dot(queries, keys.T)
        acc = tl.dot(scores.to(tl.float16), values, acc)
    tl.store(o + row * D + column, acc)


q, k, v = (torch.ones(rows, 64).half() for rows in (64, 128, 128))
print(f"Triton {triton.__version__}")
with triton_ext.emulate("sm_100"):
    try:
        two_products[(1,)](q, k, v, torch.empty(64, 64), 128, 64, enable_fp_fusion=True)
        print("right: a proxy fence lies before each product")
    except SynchronizationFault as fault:
        print(f"wrong: {fault.message}")
