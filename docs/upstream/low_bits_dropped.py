"""A stride between atoms that shares bits with an atom: the bits are dropped.

A is (M, K) = (64, 16), MN-major under the 128-byte swizzle: an atom is 64 x 8, and the last basis
leads to the next atom along K. Here it also leads to the next element along M.
"""

from reproduce import gl, product

ATOM = [[1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [32, 0], [8, 1], [16, 2], [32, 4]]
b = gl.NVMMASharedLayout(128, 16, 2, transposed=True)  # (K, N), K-major
right, off = (
    product(90, (64, 64, 64), gl.SharedLinearLayout([*ATOM, step, [0, 16], [0, 32]], [], 1024), b,
            instruction=(64, 64))
    for step in ([0, 8], [1, 8])
)  # fmt: skip
print("wrong: the same PTX for both" if off == right else f"right: {off[:120]}")
