"""A wgmma accumulator is copied (``mov``) while the product is in flight.

PTX ISA, "wgmma.wait_group": accessing the registers of a product before it is waited for is
undefined. ptxas makes it come out right. The kernel is this project's for a tile of 128 x 16.
"""

import re

from reproduce import triton

from triton_ext.kernels.launch import compile_matmul
from triton_ext.kernels.spec import kernel_spec

config = kernel_spec(90, "fp16", block_n=16, block_k=32, stages=8)
in_flight: set[str] = set()
copies = []
for line in compile_matmul(config).asm["ptx"].splitlines():
    if "wgmma.mma_async" in line:
        in_flight |= set(re.findall(r"%\w+", line.partition("}")[0]))
    elif re.search(r"wgmma.wait_group.sync.aligned\s+0;", line):
        break
    elif line.strip().startswith("mov") and set(re.findall(r"%\w+", line)[1:]) & in_flight:
        copies.append(" ".join(line.split()))
print(f"Triton {triton.__version__}")
print(f"wrong: {len(copies)} copies, such as {copies[0]}" if copies else "right: none is copied")
