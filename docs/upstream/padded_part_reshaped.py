"""A part of a padded tile that is reshaped: the compiler aborts the process.

``memdesc_reshape`` of 16 of the 32 columns of a padded tile reshapes the linear layout of the whole
tile to the shape of the part; an assertion (``reshapeOuts``) fails.
"""

from reproduce import dies, gl, gluon

LAYOUT = gl.PaddedSharedLayout.with_identity_for([[64, 8]], [64, 32], [1, 0])


@gluon.jit
def kernel(out, LAYOUT: gl.constexpr):
    registers: gl.constexpr = gl.BlockedLayout([1, 1, 2], [1, 4, 8], [4, 1, 1], [2, 1, 0])
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    tile = gl.allocate_shared_memory(
        gl.float16, [64, 32], LAYOUT, gl.zeros((64, 32), gl.float16, flat)
    )
    part = tile.slice(0, 16, dim=1).reshape((4, 16, 16)).load(registers)
    gl.store(out, gl.sum(gl.sum(gl.sum(part, 2), 1), 0))


dies(kernel, {"LAYOUT": LAYOUT})
