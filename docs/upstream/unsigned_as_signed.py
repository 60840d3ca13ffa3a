"""uint8 operands are multiplied as signed ones."""

from reproduce import gl, product

found = product(
    90, (64, 64, 128), gl.NVMMASharedLayout(128, 8, 2),
    gl.NVMMASharedLayout(128, 8, 2, transposed=True), element=gl.uint8, to=gl.int32,
    instruction=(64, 64),
)  # fmt: skip
if isinstance(found, str):
    print(f"right: {found}")
else:
    opcode = next(word for line in found for word in line.split() if word.startswith("wgmma.mma"))
    print(f"{'wrong' if '.s8.s8' in opcode else 'right'}: {opcode}")
