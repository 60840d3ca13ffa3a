"""One of two packed additions of the same constant adds nothing in the machine code.

LLVM adds 1 to two pairs of 16-bit numbers by ``add.s16x2``. ptxas 12.9, which releases bring along
for Hopper, gives one of the two instructions the constant 0 (triton#11581, where an H100 stores
wrong values; mended in 13.3). The PTX is right.
"""

import re

import triton.language as tl
from reproduce import hopper, triton

from triton_ext.ptx.cubin import disassembled

triton.knobs.runtime.add_stages_inspection_hook = None  # `reproduce` stops at the PTX


@triton.jit
def scattered(out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    is_odd = (tl.arange(0, ROWS) % 2 == 1)[:, None]
    values = tl.where(is_odd, (at * 9 + 1) % 1000, at)
    tl.store(out + at, values, mask=at % 2 == 0)


signature = {"out": "*i32", "ROWS": "constexpr", "COLUMNS": "constexpr"}
compiled = hopper(scattered, signature, {"ROWS": 32, "COLUMNS": 8}, 1, warps=1)
listing = disassembled(compiled["cubin"], triton.knobs.nvidia.nvdisasm.path)
dropped = re.search(r"VIADD\.16x2 \w+, \w+, 0x0\b", listing)
print(f"wrong: {dropped[0]}" if dropped else "right: no packed addition adds 0")
