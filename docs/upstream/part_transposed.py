"""A part of a shared-linear tile that is transposed: the compiler aborts the process.

``memdesc_trans`` infers the layout of its result from the shape of the part in place of that of the
tile; the layout's own assertion (``size == llSize``) then fails.
"""

from reproduce import dies, gl, gluon

LAYOUT = gl.SharedLinearLayout(
    [[0, 1 << bit] for bit in range(6)] + [[1 << bit, 0] for bit in range(6)]
)


@gluon.jit
def kernel(out, LAYOUT: gl.constexpr):
    registers: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    tile = gl.allocate_shared_memory(
        gl.float16, [64, 64], LAYOUT, gl.zeros((64, 64), gl.float16, registers)
    )
    part = tile.slice(32, 32, dim=0).permute((1, 0)).load(registers)
    rows = gl.arange(0, 64, gl.SliceLayout(1, registers))
    columns = gl.arange(0, 32, gl.SliceLayout(0, registers))
    gl.store(out + rows[:, None] * 32 + columns[None, :], part)


dies(kernel, {"LAYOUT": LAYOUT})
