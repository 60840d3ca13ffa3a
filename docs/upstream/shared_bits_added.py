"""A stride between atoms that shares a bit with another basis: compiled, though no descriptor fits.

B is (K, N) = (32, 128) in swizzled rows of 64 bytes. Offset 256 is K 8 and N 32 at once, and offset
1024 is K 8 alone: the layout XORs the two, the hardware adds them. On an H100 such products are
wrong.
"""

from reproduce import gl, product

bases = [
    [0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 0], [2, 8], [4, 16], [8, 32], [0, 64], [8, 0],
    [16, 0],
]  # fmt: skip
found = product(
    90, (64, 128, 32), gl.NVMMASharedLayout(128, 16, 2, transposed=True),
    gl.SharedLinearLayout(bases, [], 512), element=gl.bfloat16, instruction=(64, 64), warps=(4, 2),
)  # fmt: skip
print(f"right: {found}" if isinstance(found, str) else "wrong: it compiles")
