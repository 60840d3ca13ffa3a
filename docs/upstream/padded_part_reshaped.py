"""A part of a padded tile that is reshaped: the compiler aborts the process.

``memdesc_reshape`` of 16 of the 32 columns of a padded tile reshapes the linear layout of the whole
tile to the shape of the part; an assertion (``reshapeOuts``) fails.
"""

import os

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

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


print(f"Triton {triton.__version__}", flush=True)
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    source = GluonASTSource(kernel, {"out": "*fp16", "LAYOUT": "constexpr"}, {"LAYOUT": LAYOUT})
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("right: it compiles" if status >= 0 else f"wrong: the compiler dies of signal {-status}")
