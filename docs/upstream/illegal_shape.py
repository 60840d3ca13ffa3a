"""tcgen05.mma with M = 128, N = 8, which the PTX ISA does not have ("Matrix Shape"): emitted."""

from reproduce import gl, product

operand = gl.NVMMASharedLayout(128, 16, 2)
b = gl.NVMMASharedLayout(128, 16, 2, transposed=True)
found = product(100, (128, 8, 64), operand, b, instruction=(128, 8))
if isinstance(found, str):
    print(f"right: {found}")
else:
    emitted = sum("tcgen05.mma" in line for line in found)
    print(f"wrong: {emitted} instructions of N = 8")
