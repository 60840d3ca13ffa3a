"""Swizzle 0: `transposed` is ignored."""

from reproduce import convert, gl

plain, transposed = (
    convert(gl.NVMMASharedLayout(0, 16, 2, transposed=each), [64, 64]) for each in (False, True)
)
print(f"offset 1 is at {plain.offset_bases[0]}, transposed at {transposed.offset_bases[0]}")
same = plain.offset_bases == transposed.offset_bases
print("wrong: both are the same" if same else "right: they differ")
