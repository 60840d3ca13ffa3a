"""What the reproductions share: a conversion, and a product of two tiles, in Triton alone.

Nothing here needs a GPU. A reproduction ends with a line that begins with ``wrong`` or ``right``:
what the release that was imported does.
"""

from __future__ import annotations

import os

import triton
from triton._C.libtriton import gluon_ir, ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait


def convert(layout, shape):
    """Triton's linear layout of a shared layout of Gluon."""
    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget("cuda", 100, 32)).load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    return builder.to_linear_layout(layout._to_ir(builder), shape)


@gluon.jit
def wgmma(
    A: gl.constexpr, B: gl.constexpr, D: gl.constexpr, TYPE: gl.constexpr, TO: gl.constexpr,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
):  # fmt: skip
    a = gl.allocate_shared_memory(TYPE, [M, K], A)
    b = gl.allocate_shared_memory(TYPE, [K, N], B)
    d = warpgroup_mma(a, b, gl.zeros((M, N), TO, D), is_async=True)
    warpgroup_mma_wait(0, deps=(d,))


@gluon.jit
def tcgen05(
    A: gl.constexpr, B: gl.constexpr, D: gl.constexpr, TYPE: gl.constexpr, TO: gl.constexpr,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
):  # fmt: skip
    a = gl.allocate_shared_memory(TYPE, [M, K], A)
    b = gl.allocate_shared_memory(TYPE, [K, N], B)
    tcgen05_mma(a, b, allocate_tensor_memory(TO, [M, N], D), use_acc=False)


def stop_at_ptx(*arguments):
    """Triton's hook into its list of stages: no run of ptxas."""
    if not arguments:
        return "stop at PTX", "stop at PTX"
    arguments[1]["cubin"] = lambda ptx, metadata: b""
    return None


triton.knobs.runtime.add_stages_inspection_hook = stop_at_ptx


def dies(kernel, constants=None):
    """Compile a Gluon kernel of one argument, ``out``, in a fork; say whether that dies."""
    print(f"Triton {triton.__version__}", flush=True)
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signature = {"out": "*fp16", **dict.fromkeys(constants or {}, "constexpr")}
        source = GluonASTSource(kernel, signature, constants)
        triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("right: it compiles" if status >= 0 else f"wrong: the compiler dies of signal {-status}")


def hopper(kernel, signature, constants, pointers, warps=4):
    """A Triton kernel for sm_90, its first arguments divisible by 16."""
    attributes = {(index,): [["tt.divisibility", 16]] for index in range(pointers)}
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": warps, "enable_fp_fusion": True}
    print(f"Triton {triton.__version__}")
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm


def product(arch, shape, a, b, *, element=gl.float16, to=gl.float32, instruction, warps=(4, 1)):
    """The lines of code in the PTX of D = A @ B, or what Triton says when it refuses.

    Args:
        arch: 90 (wgmma) or 100 (tcgen05).
        shape: (M, N, K); A is (M, K), B is (K, N).
        a, b: their layouts in shared memory.
        instruction: (M, N) of one instruction.
        warps: along M and N, for wgmma.
    """
    m, n, k = shape
    if arch == 90:
        wide = [instruction[0] // 4, instruction[1], 256 // element.primitive_bitwidth]
        kernel, d = wgmma, gl.NVMMADistributedLayout([3, 0], list(warps), wide)
    else:
        kernel, d = tcgen05, TensorMemoryLayout(list(instruction), 1)
    constants = {"A": a, "B": b, "D": d, "TYPE": element, "TO": to, "M": m, "N": n, "K": k}
    source = GluonASTSource(kernel, dict.fromkeys(constants, "constexpr"), constants)
    options = {"num_warps": warps[0] * warps[1], "enable_fp_fusion": True}
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    except Exception as error:
        return f"refused: {str(error).strip().splitlines()[-1][:200]}"
    lines = (line.strip() for line in compiled.asm["ptx"].splitlines())
    return [line for line in lines if line and not line.startswith((".loc", "//", "$L__tmp"))]
