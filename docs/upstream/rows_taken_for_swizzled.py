"""A wgmma operand of swizzle 0 with rows of 16 fp16 columns: compiled as if it were swizzled.

Swizzle 0 stores rows of 32 bytes; the tensor core reads core matrices, rows of 16 bytes. No
descriptor has this tile. In the descriptor, bits 62 and 63 are the swizzle: 3 is that of 32 bytes.
"""

import re

from reproduce import gl, product

rows = gl.NVMMASharedLayout(0, 16, 2)
found = product(90, (64, 64, 16), rows, gl.NVMMASharedLayout(32, 16, 2), instruction=(64, 64))
if isinstance(found, str):
    print(f"right: {found}")
else:
    constants = {int(each) for line in found for each in re.findall(r"-?\d{16,}", line)}
    swizzles = sorted({each >> 62 & 3 for each in constants})
    print(f"wrong: it compiles, and the descriptors' swizzles are {swizzles}")
