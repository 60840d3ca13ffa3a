"""An 8-bit MN-major B for instructions of N = 8: two subtiles get the same address.

The second instruction starts 8 bytes into a chunk of 16 bytes, which no descriptor can say: the
start address counts chunks.
"""

import re

from reproduce import gl, product

a = gl.NVMMASharedLayout(128, 8, 2)
b = gl.NVMMASharedLayout(0, 8, 2)
found = product(100, (64, 16, 128), a, b, element=gl.float8e4nv, instruction=(64, 8))
if isinstance(found, str):
    print(f"right: {found}")
else:
    issued = [re.findall(r"\], (%\w+, %\w+)", line)[0] for line in found if "tcgen05.mma" in line]
    print(f"wrong: {len(issued)} instructions, {len(set(issued))} pairs of descriptors")
