"""Compiles one MMA of two operands in shared memory to PTX, with whatever Triton can be imported.

Reads a JSON list of jobs from stdin and writes one JSON result a line, after Triton's version. A
job is the architecture, the element types, the shape (M, N, K) of the product, the encodings of A
and B as MLIR attributes, the instruction's M and N in one CTA, the warps along M and N, and the
CTA group. The operands are never written: only the instructions count.
"""

from __future__ import annotations

import json
import sys

import triton
from forked import forked, own_cache
from triton import knobs
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    allocate_tensor_memory,
    tcgen05_mma,
)
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from triton_ext.compat import LAUNCH_OPTIONS, TRITON_VERSION, gpu_target
from triton_ext.layouts.encodings import NVMMAShared, parse_encoding
from triton_ext.layouts.triton.gluon import to_gluon

TYPES = {
    "f16": gl.float16, "bf16": gl.bfloat16, "tf32": gl.float32, "f32": gl.float32,
    "e4m3": gl.float8e4nv, "e5m2": gl.float8e5, "s8": gl.int8, "u8": gl.uint8, "s32": gl.int32,
}  # fmt: skip


@gluon.jit
def mma_sm90(
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
    A_TYPE: gl.constexpr, B_TYPE: gl.constexpr, D_TYPE: gl.constexpr,
    A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr, D_LAYOUT: gl.constexpr,
):  # fmt: skip
    a = gl.allocate_shared_memory(A_TYPE, [M, K], A_LAYOUT)
    b = gl.allocate_shared_memory(B_TYPE, [K, N], B_LAYOUT)
    accumulator = gl.zeros((M, N), D_TYPE, D_LAYOUT)
    accumulator = warpgroup_mma(a, b, accumulator, is_async=True)
    warpgroup_mma_wait(0, deps=(accumulator,))


@gluon.jit
def mma_sm100(
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
    A_TYPE: gl.constexpr, B_TYPE: gl.constexpr, D_TYPE: gl.constexpr,
    A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr, D_LAYOUT: gl.constexpr,
):  # fmt: skip
    a = gl.allocate_shared_memory(A_TYPE, [M, K], A_LAYOUT)
    b = gl.allocate_shared_memory(B_TYPE, [K, N], B_LAYOUT)
    accumulator = allocate_tensor_memory(D_TYPE, [M, N], D_LAYOUT)
    tcgen05_mma(a, b, accumulator, use_acc=False)


@gluon.jit
def multiply_sm90(
    a_pointer, b_pointer, d_pointer,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
    A_TYPE: gl.constexpr, B_TYPE: gl.constexpr, D_TYPE: gl.constexpr,
    A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr, D_LAYOUT: gl.constexpr,
    LOAD_LAYOUT: gl.constexpr,
):  # fmt: skip
    """The product of `mma_sm90` for a GPU, with row-major operands loaded and D stored."""
    m = gl.arange(0, M, gl.SliceLayout(1, LOAD_LAYOUT))[:, None]
    k = gl.arange(0, K, gl.SliceLayout(0, LOAD_LAYOUT))[None, :]
    a = gl.allocate_shared_memory(A_TYPE, [M, K], A_LAYOUT, gl.load(a_pointer + m * K + k))
    k = gl.arange(0, K, gl.SliceLayout(1, LOAD_LAYOUT))[:, None]
    n = gl.arange(0, N, gl.SliceLayout(0, LOAD_LAYOUT))[None, :]
    b = gl.allocate_shared_memory(B_TYPE, [K, N], B_LAYOUT, gl.load(b_pointer + k * N + n))
    fence_async_shared()
    accumulator = gl.zeros((M, N), D_TYPE, D_LAYOUT)
    accumulator = warpgroup_mma(a, b, accumulator, is_async=True)
    accumulator = warpgroup_mma_wait(0, deps=(accumulator,))
    m = gl.arange(0, M, gl.SliceLayout(1, D_LAYOUT))[:, None]
    n = gl.arange(0, N, gl.SliceLayout(0, D_LAYOUT))[None, :]
    gl.store(d_pointer + m * N + n, accumulator)


def accumulator_layout(job):
    m, n = job["instruction"]
    d_type = TYPES[job["d_type"]]
    if job["arch"] == 90:
        k = 256 // TYPES[job["a_type"]].primitive_bitwidth
        return gl.NVMMADistributedLayout([3, 0], list(job["warps"]), [m // 4, n, k])
    stride = 32 // d_type.primitive_bitwidth
    if job["cta_group"] == 1:
        return TensorMemoryLayout([m, n], stride)
    split = {"cta_split_num": (2, 1)} if TRITON_VERSION == (3, 7) else {"cga_layout": [[1, 0]]}
    return TensorMemoryLayout([m, n], stride, two_ctas=True, **split)


def stop_at_ptx(*arguments):
    """Triton's hook into its list of stages: an empty cubin in place of a run of ptxas."""
    if not arguments:
        return "stop at PTX", "stop at PTX"
    _, stages, *_ = arguments
    stages["cubin"] = lambda ptx, metadata: b""
    return None


def kernel_constants(job):
    m, n, k = job["shape"]
    return {
        "M": m, "N": n, "K": k,
        **{f"{name}_TYPE": TYPES[job[f"{name.lower()}_type"]] for name in "ABD"},
        "A_LAYOUT": to_gluon(parse_encoding(job["a"])),
        "B_LAYOUT": to_gluon(parse_encoding(job["b"])),
        "D_LAYOUT": accumulator_layout(job),
    }  # fmt: skip


def multiply(job, a, b, d):
    """D = A @ B on a Hopper GPU; row-major torch tensors."""
    warps = job["warps"][0] * job["warps"][1]
    layout = gl.BlockedLayout([1, 4], [4, 8], [warps, 1], [1, 0])
    constants = kernel_constants(job) | {"LOAD_LAYOUT": layout}
    multiply_sm90[(1,)](a, b, d, **constants, num_warps=warps, **LAUNCH_OPTIONS)


def run(job):
    constants = kernel_constants(job)
    kernel = {90: mma_sm90, 100: mma_sm100}[job["arch"]]
    source = GluonASTSource(kernel, dict.fromkeys(constants, "constexpr"), constants)
    options = {
        "num_warps": job["warps"][0] * job["warps"][1],
        "num_ctas": job["cta_group"],
        **LAUNCH_OPTIONS,
    }
    compiled = triton.compile(source, target=gpu_target(job["arch"]), options=options)
    return {"ptx": compiled.asm["ptx"], "shared": compiled.metadata.shared}


JOBS_IN_A_FORK = 32
WARM_UP = {
    "arch": 100, "cta_group": 1, "a_type": "f16", "b_type": "f16", "d_type": "f32",
    "shape": (128, 64, 64), "instruction": (128, 64), "warps": (4, 1),
    "a": str(NVMMAShared(128, 16)), "b": str(NVMMAShared(128, 16)),
}  # fmt: skip


def attempt(jobs):
    """What becomes of each job, unless one aborts the process."""
    results = []
    for job in jobs:
        try:
            results.append(run(job))
        except Exception as error:
            results.append({"error": f"{type(error).__name__}: {error}"[-400:]})
    return results


def results(jobs):
    """What becomes of each job: many in one fork, and where that dies, each in one of its own."""
    found = forked(attempt, jobs)
    if isinstance(found, list):
        return found
    return [found] if len(jobs) == 1 else [result for job in jobs for result in results([job])]


if __name__ == "__main__":
    knobs.runtime.add_stages_inspection_hook = stop_at_ptx
    print(json.dumps(triton.__version__), flush=True)
    with own_cache():
        run(WARM_UP)  # what is set up once
        jobs = json.load(sys.stdin)
        for start in range(0, len(jobs), JOBS_IN_A_FORK):
            for result in results(jobs[start : start + JOBS_IN_A_FORK]):
                print(json.dumps(result), flush=True)
