"""A part of a swizzled tile, narrower than its swizzle, that is reshaped: the compiler aborts.

``memdesc_reshape`` of 32 of the 64 columns of a tile with a 128-byte swizzle asks for the TMA box
of the part to find the layout of its result; for 64 bytes of a row there is none
(``getTMABlockShape failed``).
"""

import os

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource


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


print(f"Triton {triton.__version__}", flush=True)
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    source = GluonASTSource(kernel, {"out": "*fp16"})
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("right: it compiles" if status >= 0 else f"wrong: the compiler dies of signal {-status}")
