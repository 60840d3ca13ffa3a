"""A TMA descriptor of one matrix, or of a batch: its sizes, and the copies of a block of it."""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import async_load, async_store, tma_view


@gluon.constexpr_function
def is_batched(desc):
    """Whether a descriptor is that of a batch of matrices: (batch, rows, columns)."""
    return len(desc.block_type.shape) == 3


@gluon.jit
def matrix_size(desc, dim: gl.constexpr):
    """The size along dimension 0 or 1 of the matrix, or of each matrix of the batch."""
    return desc.shape[dim + 1 if is_batched(desc) else dim]


@gluon.constexpr_function
def parameter_name(kernel, position, rank):
    """PTX's name of a kernel's parameter that is its descriptor at a position, counted from 0.

    Each is followed by its sizes and strides, and all descriptors up to it have one rank.
    """
    return f"{kernel}_param_{position * (1 + 2 * rank)}"


@gluon.constexpr_function
def ranks_of(descs):
    """How many dimensions descriptors have."""
    return [len(desc.block_type.shape) for desc in descs]


@gluon.constexpr_function
def prefetch_text(kernel, ranks):
    """The instructions that ask for the first descriptors of a kernel, which have these ranks."""
    lines = [
        "{",
        ".reg .pred first;",
        ".reg .b32 thread;",
        ".reg .b64 map;",
        "mov.u32 thread, %tid.x;",
        "setp.eq.u32 first, thread, 0;",
    ]
    for position in range(len(ranks)):
        before = position + 2 * sum(ranks[:position])
        lines += [
            f"mov.b64 map, {kernel}_param_{before};",
            "cvta.param.u64 map, map;",
            "@first prefetch.tensormap [map];",
        ]
    return "\n".join([*lines, "mov.b32 $0, 0;", "}"])


@gluon.jit
def prefetch_descriptors(KERNEL: gl.constexpr, RANKS: gl.constexpr):
    """Ask for the first descriptors of the kernel, which have these ranks: a copy that finds none
    waits for it, and they are parameters, new with every launch.
    """
    TEXT: gl.constexpr = prefetch_text(KERNEL, RANKS)
    gl.inline_asm_elementwise(TEXT, "=r", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def load_block(desc, matrix, first, second, barrier, target, multicast: gl.constexpr, pred=True):
    """Start the copy of a block of a matrix; of the only one, where all products share it."""
    if is_batched(desc):
        which = gl.minimum(matrix, desc.shape[0] - 1)
        async_load(desc, [which, first, second], barrier, target, pred=pred, multicast=multicast)
    else:
        async_load(desc, [first, second], barrier, target, pred=pred, multicast=multicast)


@gluon.jit
def store_block(desc, matrix, first, second, source):
    """Start the copy of a block to a matrix."""
    if is_batched(desc):
        async_store(desc, [matrix, first, second], source)
    else:
        async_store(desc, [first, second], source)


@gluon.jit
def load_tile(desc, matrix, mn, k, barrier, tile, K_MAJOR: gl.constexpr, pred=True,
              SHARED: gl.constexpr = True):  # fmt: skip
    """Start the copy of an operand's tile, once for all blocks of the cluster that share it.

    Args:
        SHARED: blocks of a cluster may share it.
    """
    target = tma_view(tile, desc)
    first, second = mn, k
    if not K_MAJOR:
        first, second = k, mn
    load_block(desc, matrix, first, second, barrier, target, SHARED and gl.num_ctas() > 1, pred)
