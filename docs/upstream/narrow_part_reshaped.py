"""A part of a swizzled tile, narrower than its swizzle, that is reshaped: the compiler aborts.

``memdesc_reshape`` of 32 of the 64 columns of a tile with a 128-byte swizzle asks for the TMA box
of the part to find the layout of its result; for 64 bytes of a row there is none
(``getTMABlockShape failed``).
"""

from reproduce import dies, gl, gluon


@gluon.jit
def kernel(out):
    registers: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 4, 8], [4, 1, 1], [2, 1, 0])
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    tile = gl.allocate_shared_memory(
        gl.float16, [64, 64], layout, gl.zeros((64, 64), gl.float16, flat)
    )
    part = tile.slice(0, 32, dim=1).reshape((4, 16, 32)).load(registers)
    gl.store(out, gl.sum(gl.sum(gl.sum(part, 2), 1), 0))


dies(kernel)
