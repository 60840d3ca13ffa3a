"""Gluon kernels that read what TMA or threads wrote as if it had another swizzle."""

from __future__ import annotations

import torch
from corpus_gluon_kernels import (
    accumulated,
    layout_of_accumulator,
    new_accumulator,
    new_barrier,
    product,
    store_rows,
)
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import LAUNCH_OPTIONS, async_load, async_store, reinterpret


@gluon.jit
def multiply_kernel(a_desc, b_desc, c_ptr, A: gl.constexpr, ACC: gl.constexpr, SM90: gl.constexpr):
    M: gl.constexpr = a_desc.block_type.shape[0]
    N: gl.constexpr = b_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    ready, done = new_barrier(), new_barrier()
    fence_async_shared()
    mbarrier.expect(ready, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    async_load(a_desc, [0, 0], ready, a)
    async_load(b_desc, [0, 0], ready, b)
    mbarrier.wait(ready, 0)
    acc = new_accumulator(M, N, ACC, SM90)
    acc = product(reinterpret(a, a.dtype, a.shape, A), b, acc, done, 0, False, SM90)
    store_rows(c_ptr, accumulated(acc, SM90), N)


@gluon.jit
def multiply_stored_kernel(
    a_ptr, b_desc, c_ptr, OWN: gl.constexpr, A: gl.constexpr, ACC: gl.constexpr, SM90: gl.constexpr
):
    N: gl.constexpr = b_desc.block_type.shape[1]
    K: gl.constexpr = b_desc.block_type.shape[0]
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, 128, gl.SliceLayout(1, ROWS))
    columns = gl.arange(0, K, gl.SliceLayout(0, ROWS))
    a = gl.allocate_shared_memory(b_desc.dtype, [128, K], OWN)
    a.store(gl.load(a_ptr + rows[:, None] * K + columns[None, :]))
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    ready, done = new_barrier(), new_barrier()
    fence_async_shared()
    mbarrier.expect(ready, b_desc.block_type.nbytes)
    async_load(b_desc, [0, 0], ready, b)
    mbarrier.wait(ready, 0)
    acc = new_accumulator(128, N, ACC, SM90)
    acc = product(reinterpret(a, a.dtype, a.shape, A), b, acc, done, 0, False, SM90)
    store_rows(c_ptr, accumulated(acc, SM90), N)


@gluon.jit
def copy_kernel(a_desc, c_desc):
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    ready = new_barrier()
    fence_async_shared()
    mbarrier.expect(ready, a_desc.block_type.nbytes)
    async_load(a_desc, [0, 0], ready, a)
    mbarrier.wait(ready, 0)
    async_store(c_desc, [0, 0], reinterpret(a, a.dtype, a.shape, c_desc.layout))
    tma.store_wait(0)


@gluon.jit
def store_kernel(x_ptr, c_desc, OWN: gl.constexpr):
    M: gl.constexpr = c_desc.block_type.shape[0]
    N: gl.constexpr = c_desc.block_type.shape[1]
    ROWS: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = gl.arange(0, M, gl.SliceLayout(1, ROWS))
    columns = gl.arange(0, N, gl.SliceLayout(0, ROWS))
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, OWN)
    c.store(gl.load(x_ptr + rows[:, None] * N + columns[None, :]))
    fence_async_shared()
    async_store(c_desc, [0, 0], reinterpret(c, c.dtype, c.shape, c_desc.layout))
    tma.store_wait(0)


def whole(matrix, swizzle: int):
    """A descriptor whose block is a whole matrix of 16-bit elements."""
    layout = gl.NVMMASharedLayout(swizzle, 16, rank=2)
    return TensorDescriptor.from_tensor(matrix, list(matrix.shape), layout)


def multiply(a, b, written: int, read: int, arch: int):
    """a @ b; A is copied with one swizzle, and read with another."""
    c = torch.empty(a.shape[0], b.shape[1])
    multiply_kernel[(1,)](
        whole(a, written), whole(b, 128), c, gl.NVMMASharedLayout(read, 16, rank=2),
        layout_of_accumulator(arch, *c.shape, "float16"), arch == 90, **LAUNCH_OPTIONS,
    )  # fmt: skip
    return c


def multiply_stored(a, b, written: int, read: int, arch: int):
    """a @ b; A is stored by threads with one swizzle, and read with another."""
    c = torch.empty(a.shape[0], b.shape[1])
    own, other = (gl.NVMMASharedLayout(width, 16, rank=2) for width in (written, read))
    multiply_stored_kernel[(1,)](
        a, whole(b, 128), c, own, other, layout_of_accumulator(arch, *c.shape, "float16"),
        arch == 90, **LAUNCH_OPTIONS,
    )  # fmt: skip
    return c


def copy(a, written: int, read: int):
    """A matrix, copied in with one swizzle, and out with another."""
    c = torch.zeros_like(a)
    copy_kernel[(1,)](whole(a, written), whole(c, read), **LAUNCH_OPTIONS)
    return c


def store(a, own, read: int):
    """A matrix that threads store to shared memory in a layout, copied out with a swizzle."""
    c = torch.zeros_like(a)
    store_kernel[(1,)](a, whole(c, read), own, **LAUNCH_OPTIONS)
    return c
