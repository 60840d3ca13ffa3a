"""With `max_num_imprecise_acc`, wgmma's partial sums are added up while the products are in flight.

PTX ISA, "wgmma.wait_group": accessing the registers of a product before it is waited for is
undefined; the wait stands behind the last addition.
"""

import re

import reproduce  # noqa: F401  (no run of ptxas)
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def kernel(a, b, c):
    m, n, k = tl.arange(0, 64), tl.arange(0, 64), tl.arange(0, 64)
    x = tl.load(a + m[:, None] * 64 + k[None, :])
    y = tl.load(b + k[:, None] + n[None, :] * 64)
    sums = tl.load(c + m[:, None] * 64 + n[None, :])
    sums = tl.dot(x, y, acc=sums, max_num_imprecise_acc=32)
    tl.store(c + m[:, None] * 64 + n[None, :], sums)


signature = {"a": "*fp8e5", "b": "*fp8e5", "c": "*fp32"}
attributes = {(argument,): [["tt.divisibility", 16]] for argument in range(3)}
source = ASTSource(kernel, signature, {}, attributes)
options = {"enable_fp_fusion": True}
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
in_flight: set[str] = set()
reads = []
for line in re.sub(r"\{\s+", "{", compiled.asm["ptx"]).splitlines():
    if "wgmma.mma_async" in line:
        in_flight |= set(re.findall(r"%\w+", line.partition("}")[0]))
    elif re.search(r"wgmma.wait_group.sync.aligned\s+0;", line):
        in_flight.clear()
    elif "add" in line and set(re.findall(r"%\w+", line)[1:]) & in_flight:
        reads.append(" ".join(line.split()))
print(f"Triton {triton.__version__}")
print(f"wrong: {len(reads)} additions, such as {reads[0]}" if reads else "right: none in flight")
