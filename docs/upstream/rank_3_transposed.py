"""Swizzle 0, transposed, rank 3 to 5: the dimensions are permuted the wrong way round."""

from reproduce import convert, gl

shape = [2, 64, 64]
bases = convert(gl.NVMMASharedLayout(0, 16, 3, transposed=True), shape).offset_bases
print(f"{len(bases)} offset bases for 13 bits of elements: {bases}")
zeros = sum(not any(basis) for basis in bases)
print(f"wrong: {zeros} bases are zero" if zeros else "right: no basis is zero")
