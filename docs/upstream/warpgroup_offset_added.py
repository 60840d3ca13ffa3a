"""Two warpgroups along M, whose offset shares a bit with a subtile's: it is added, not XORed.

Row 64 of A, where the second warpgroup begins, and column 32, a later subtile, both have a basis
with that bit: (64, 32) and (64, 0). On an H100 such products are wrong.
"""

from reproduce import gl, product

ATOM = [[1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [32, 0], [8, 1], [16, 2], [32, 4]]
a = gl.SharedLinearLayout([*ATOM, [0, 8], [0, 16], [64, 32], [0, 64], [64, 0]], [], 1024)
b = [*ATOM, [64, 0], [0, 8], [0, 16], [0, 32], [0, 64], [0, 128]]
found = product(
    90, (128, 256, 128), a, gl.SharedLinearLayout(b, [], 1024), to=gl.float16,
    instruction=(64, 256), warps=(8, 1),
)  # fmt: skip
print(f"right: {found}" if isinstance(found, str) else "wrong: it compiles")
