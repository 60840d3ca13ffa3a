"""With `max_num_imprecise_acc`, wgmma's partial sums are added up while the products are in flight.

PTX ISA, "wgmma.wait_group": accessing the registers of a product before it is waited for is
undefined; the wait stands behind the last addition.
"""

import re

import triton.language as tl
from reproduce import hopper, triton


@triton.jit
def kernel(a, b, c):
    m, n, k = tl.arange(0, 64), tl.arange(0, 64), tl.arange(0, 64)
    x = tl.load(a + m[:, None] * 64 + k[None, :])
    y = tl.load(b + k[:, None] + n[None, :] * 64)
    sums = tl.load(c + m[:, None] * 64 + n[None, :])
    sums = tl.dot(x, y, acc=sums, max_num_imprecise_acc=32)
    tl.store(c + m[:, None] * 64 + n[None, :], sums)


ptx = hopper(kernel, {"a": "*fp8e5", "b": "*fp8e5", "c": "*fp32"}, {}, 3)["ptx"]
in_flight: set[str] = set()
reads = []
for line in re.sub(r"\{\s+", "{", ptx).splitlines():
    if "wgmma.mma_async" in line:
        in_flight |= set(re.findall(r"%\w+", line.partition("}")[0]))
    elif re.search(r"wgmma.wait_group.sync.aligned\s+0;", line):
        in_flight.clear()
    elif "add" in line and set(re.findall(r"%\w+", line)[1:]) & in_flight:
        reads.append(" ".join(line.split()))
print(f"wrong: {len(reads)} additions, such as {reads[0]}" if reads else "right: none in flight")
