"""Small Gluon kernels of the kinds that compiler passes meet, each with its launch.

As in `corpus_kernels.py`: a function without a decorator launches one kernel, which is compiled and
never run. `wgmma` on Hopper and `tcgen05` on Blackwell have kernels of their own; some releases of
Triton lack what a kernel uses.
"""

from __future__ import annotations

from corpus_kernels import tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.blackwell import (
    TensorMemoryLayout,
    TensorMemoryScalesLayout,
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_copy,
    tcgen05_mma,
    tcgen05_mma_scaled,
)
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import (
    LAUNCH_OPTIONS,
    TRITON_VERSION,
    async_load,
    async_store,
    load_accumulator,
    register_layout,
    reinterpret,
)

GLUON_TYPES = {
    "float16": gl.float16, "bfloat16": gl.bfloat16, "float32": gl.float32, "int8": gl.int8,
    "uint8": gl.uint8, "float8_e4m3fn": gl.float8e4nv, "float8_e5m2": gl.float8e5,
    "int32": gl.int32,
}  # fmt: skip


def nvmma(swizzle: int, dtype: str, rank: int = 2, **rest):
    bits = GLUON_TYPES[dtype].primitive_bitwidth
    return gl.NVMMASharedLayout(swizzle, bits, rank=rank, **rest)


def blocks(dtype: str, shape, block, swizzle: int | None = None, **layout):
    """A host-made TMA descriptor, by default with the widest swizzle."""
    if swizzle is None:
        kind = gl.NVMMASharedLayout.get_default_for(list(block), GLUON_TYPES[dtype], **layout)
    else:
        kind = nvmma(swizzle, dtype, len(block), **layout)
    return TensorDescriptor.from_tensor(tensor(dtype, *shape), list(block), kind)


def accumulator_layout(m: int, n: int, k_bits: int, warps: int = 4):
    """An accumulator of wgmma."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, n, 256 // k_bits])


def bits(dtype: str) -> int:
    return GLUON_TYPES[dtype].primitive_bitwidth


@gluon.jit
def new_barrier():
    barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(barrier, count=1)
    return barrier


@gluon.jit
def store_rows(pointer, value, N: gl.constexpr):
    """A distributed matrix to global memory, in the layout that it has."""
    layout: gl.constexpr = value.type.layout
    m = gl.arange(0, value.shape[0], gl.SliceLayout(1, layout))
    n = gl.arange(0, value.shape[1], gl.SliceLayout(0, layout))
    gl.store(pointer + m[:, None] * N + n[None, :], value.to(pointer.dtype.element_ty))


@gluon.jit
def product(a, b, acc, barrier, phase, use_acc, SM90: gl.constexpr):
    """One synchronous product; the accumulator is a tensor with wgmma, memory with tcgen05."""
    if SM90:
        acc = warpgroup_mma(a, b, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
    else:
        tcgen05_mma(a, b, acc, use_acc=use_acc, mbarriers=[barrier])
        mbarrier.wait(barrier, phase)
    return acc


@gluon.jit
def new_accumulator(
    M: gl.constexpr, N: gl.constexpr, LAYOUT: gl.constexpr, SM90: gl.constexpr,
    TYPE: gl.constexpr = gl.float32,
):  # fmt: skip
    return gl.zeros((M, N), TYPE, LAYOUT) if SM90 else allocate_tensor_memory(TYPE, [M, N], LAYOUT)


@gluon.jit
def accumulated(acc, SM90: gl.constexpr):
    return acc if SM90 else load_accumulator(acc)


def layout_of_accumulator(arch: int, m: int, n: int, dtype: str):
    if arch == 90:
        return accumulator_layout(m, n, bits(dtype))
    return TensorMemoryLayout((m, n), 1)


# --------------------------------------------------------------------------- views of shared memory


@gluon.jit
def carried_kernel(a_desc, b_desc, c_ptr, steps, LAYOUT: gl.constexpr, SM90: gl.constexpr):
    """The buffers of this step and of the next are carried by the loop, and change places."""
    M: gl.constexpr = a_desc.block_type.shape[0]
    K: gl.constexpr = a_desc.block_type.shape[1]
    N: gl.constexpr = b_desc.block_type.shape[1]
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [2, M, K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [2, K, N], b_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(bars.index(i), count=1)
    done = bars.index(0) if SM90 else new_barrier()  # wgmma needs none
    fence_async_shared()
    size: gl.constexpr = a_desc.block_type.nbytes + b_desc.block_type.nbytes
    a, a_next, b, b_next = a_tiles.index(0), a_tiles.index(1), b_tiles.index(0), b_tiles.index(1)
    bar, bar_next = bars.index(0), bars.index(1)
    mbarrier.expect(bar, size)
    async_load(a_desc, [0, 0], bar, a)
    async_load(b_desc, [0, 0], bar, b)
    acc = new_accumulator(M, N, LAYOUT, SM90)
    for i in range(steps):
        more = i + 1 < steps
        mbarrier.expect(bar_next, size, pred=more)
        async_load(a_desc, [0, (i + 1) * K], bar_next, a_next, pred=more)
        async_load(b_desc, [(i + 1) * K, 0], bar_next, b_next, pred=more)
        mbarrier.wait(bar, (i // 2) & 1)
        acc = product(a, b, acc, done, i & 1, i > 0, SM90)
        a, a_next, b, b_next, bar, bar_next = a_next, a, b_next, b, bar_next, bar
    store_rows(c_ptr, accumulated(acc, SM90), N)


def carried_buffers(arch, dtype="float16", block=(128, 64, 64), swizzle=None):
    m, n, k = block
    m = 64 if arch == 90 else m
    carried_kernel[(1,)](
        blocks(dtype, (m, 512), (m, k), swizzle), blocks(dtype, (512, n), (k, n), swizzle),
        tensor("float32", m, n), 8, layout_of_accumulator(arch, m, n, dtype), arch == 90,
        **LAUNCH_OPTIONS,
    )  # fmt: skip


@gluon.jit
def chosen_kernel(a_desc, b_desc, c_ptr, which, LAYOUT: gl.constexpr, SM90: gl.constexpr,
                  IN_LOOP: gl.constexpr):  # fmt: skip
    """An `if` chooses the tile of A; in a loop, or once."""
    M: gl.constexpr = a_desc.block_type.shape[0]
    K: gl.constexpr = a_desc.block_type.shape[1]
    N: gl.constexpr = b_desc.block_type.shape[1]
    left = gl.allocate_shared_memory(a_desc.dtype, [M, K], a_desc.layout)
    right = gl.allocate_shared_memory(a_desc.dtype, [M, K], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [K, N], b_desc.layout)
    bar = new_barrier()
    done = bar if SM90 else new_barrier()  # wgmma needs none
    fence_async_shared()
    mbarrier.expect(bar, 2 * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    async_load(a_desc, [0, 0], bar, left)
    async_load(a_desc, [0, K], bar, right)
    async_load(b_desc, [0, 0], bar, b)
    mbarrier.wait(bar, 0)
    acc = new_accumulator(M, N, LAYOUT, SM90)
    if IN_LOOP:
        for i in range(which):
            if i % 3 == 0:  # noqa: SIM108
                a = left
            else:
                a = right
            acc = product(a, b, acc, done, i & 1, i > 0, SM90)
    else:
        if which > 0:  # noqa: SIM108
            a = left
        else:
            a = right
        acc = product(a, b, acc, done, 0, False, SM90)
    store_rows(c_ptr, accumulated(acc, SM90), N)


def chosen_buffers(arch, in_loop, dtype="float16", block=(128, 64, 64)):
    m, n, k = block
    m = 64 if arch == 90 else m
    chosen_kernel[(1,)](
        blocks(dtype, (m, 2 * k), (m, k)), blocks(dtype, (k, n), (k, n)), tensor("float32", m, n),
        7, layout_of_accumulator(arch, m, n, dtype), arch == 90, in_loop, **LAUNCH_OPTIONS,
    )  # fmt: skip


@gluon.jit
def views_kernel(
    a_desc, b_desc, c_ptr, VIEW: gl.constexpr, LAYOUT: gl.constexpr, SM90: gl.constexpr,
    M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
):  # fmt: skip
    """Operands that are parts, transpositions or reinterpretations of what TMA wrote."""
    A_SHAPE: gl.constexpr = a_desc.block_type.shape
    B_SHAPE: gl.constexpr = b_desc.block_type.shape
    bar = new_barrier()
    done = bar if SM90 else new_barrier()  # wgmma needs none
    fence_async_shared()
    if VIEW == "bytes":
        raw = gl.allocate_shared_memory(
            gl.int8, [a_desc.block_type.nbytes], gl.SwizzledSharedLayout(1, 1, 1, [0])
        )
        a = reinterpret(raw, a_desc.dtype, A_SHAPE, a_desc.layout)
    else:
        a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    if VIEW == "reshape":
        async_load(a_desc, [0, 0, 0], bar, a)
    else:
        async_load(a_desc, [0, 0], bar, a)
    async_load(b_desc, [0, 0], bar, b)
    mbarrier.wait(bar, 0)
    acc = new_accumulator(M, N, LAYOUT, SM90)
    if VIEW == "slice-k":
        half: gl.constexpr = K // 2
        for i in gl.static_range(2):
            acc = product(
                a.slice(i * half, half, dim=1), b.slice(i * half, half, dim=0), acc, done, i, i > 0,
                SM90,
            )  # fmt: skip
    elif VIEW == "slice-n":
        acc = product(a, b.slice(N, N, dim=1), acc, done, 0, False, SM90)
    elif VIEW == "slice-m":
        acc = product(a.slice(M, M, dim=0), b, acc, done, 0, False, SM90)
    elif VIEW == "transpose-b":
        acc = product(a, b.permute((1, 0)), acc, done, 0, False, SM90)
    elif VIEW == "transpose-a":
        acc = product(a.permute((1, 0)), b, acc, done, 0, False, SM90)
    elif VIEW == "reshape":
        acc = product(a.reshape((M, K)), b, acc, done, 0, False, SM90)
    elif VIEW == "bytes":
        acc = product(a, b, acc, done, 0, False, SM90)
    elif VIEW == "type":
        acc = product(
            reinterpret(a, gl.bfloat16, A_SHAPE, a_desc.layout),
            reinterpret(b, gl.bfloat16, B_SHAPE, b_desc.layout),
            acc, done, 0, False, SM90,
        )  # fmt: skip
    store_rows(c_ptr, accumulated(acc, SM90), N)


def views(arch, view, dtype="float16", block=(128, 64, 128), swizzle=None):
    m, n, k = block
    m = 64 if arch == 90 else m
    a = {"slice-m": (2 * m, k), "transpose-a": (k, m), "reshape": (2, m // 2, k)}.get(view, (m, k))
    b = {"slice-n": (k, 2 * n), "transpose-b": (n, k)}.get(view, (k, n))
    views_kernel[(1,)](
        blocks(dtype, a, a, swizzle), blocks(dtype, b, b, swizzle), tensor("float32", m, n), view,
        layout_of_accumulator(arch, m, n, dtype), arch == 90, m, n, k, **LAUNCH_OPTIONS,
    )  # fmt: skip


# ------------------------------------------------------------------------------ warp specialization


@gluon.jit
def load_partition(a_desc, b_desc, a_tiles, b_tiles, ready, empty, steps, STAGES: gl.constexpr):
    K: gl.constexpr = a_desc.block_type.shape[1]
    for i in range(steps):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), ((i // STAGES) & 1) ^ 1)
        mbarrier.expect(ready.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        async_load(a_desc, [0, i * K], ready.index(stage), a_tiles.index(stage))
        async_load(b_desc, [i * K, 0], ready.index(stage), b_tiles.index(stage))


@gluon.jit
def wgmma_partition(a_tiles, b_tiles, ready, empty, c_ptr, steps, LAYOUT: gl.constexpr,
                    STAGES: gl.constexpr):  # fmt: skip
    M: gl.constexpr = a_tiles.shape[1]
    N: gl.constexpr = b_tiles.shape[2]
    acc = gl.zeros((M, N), gl.float32, LAYOUT)
    for i in range(steps):
        stage = i % STAGES
        mbarrier.wait(ready.index(stage), (i // STAGES) & 1)
        acc = warpgroup_mma(a_tiles.index(stage), b_tiles.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(stage), count=1)
    store_rows(c_ptr, acc, N)


@gluon.jit
def tcgen05_partition(a_tiles, b_tiles, ready, empty, acc, done, steps, STAGES: gl.constexpr):
    use_acc = False
    for i in range(steps):
        stage = i % STAGES
        mbarrier.wait(ready.index(stage), (i // STAGES) & 1)
        tcgen05_mma(
            a_tiles.index(stage), b_tiles.index(stage), acc, use_acc=use_acc,
            mbarriers=[empty.index(stage)],
        )  # fmt: skip
        use_acc = True
    tcgen05_commit(done)


@gluon.jit
def epilogue_partition(acc, done, c_ptr, N: gl.constexpr):
    mbarrier.wait(done, 0)
    store_rows(c_ptr, load_accumulator(acc), N)


@gluon.jit
def specialized_kernel(a_desc, b_desc, c_ptr, steps, LAYOUT: gl.constexpr, SM90: gl.constexpr,
                       STAGES: gl.constexpr):  # fmt: skip
    M: gl.constexpr = a_desc.block_type.shape[0]
    K: gl.constexpr = a_desc.block_type.shape[1]
    N: gl.constexpr = b_desc.block_type.shape[1]
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, M, K], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, K, N], b_desc.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    if SM90:
        gl.warp_specialize(
            [
                (wgmma_partition, (a_tiles, b_tiles, ready, empty, c_ptr, steps, LAYOUT, STAGES)),
                (load_partition, (a_desc, b_desc, a_tiles, b_tiles, ready, empty, steps, STAGES)),
            ],
            [1],
            [24],
        )
    else:
        done = new_barrier()
        acc = allocate_tensor_memory(gl.float32, [M, N], LAYOUT)
        gl.warp_specialize(
            [
                (epilogue_partition, (acc, done, c_ptr, N)),
                (load_partition, (a_desc, b_desc, a_tiles, b_tiles, ready, empty, steps, STAGES)),
                (tcgen05_partition, (a_tiles, b_tiles, ready, empty, acc, done, steps, STAGES)),
            ],
            [1, 1],
            [24, 24],
        )


def warp_specialized(arch, dtype="float16", block=(128, 64, 64), stages=3, swizzle=None):
    m, n, k = block
    m = 64 if arch == 90 else m
    specialized_kernel[(1,)](
        blocks(dtype, (m, 512), (m, k), swizzle), blocks(dtype, (512, n), (k, n), swizzle),
        tensor("float32", m, n), 8, layout_of_accumulator(arch, m, n, dtype), arch == 90, stages,
        **LAUNCH_OPTIONS,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- attention


@gluon.jit
def masked_scores(scores, start, CAUSAL: gl.constexpr):
    if CAUSAL:
        layout: gl.constexpr = scores.type.layout
        rows = gl.program_id(0) * scores.shape[0] + gl.arange(
            0, scores.shape[0], gl.SliceLayout(1, layout)
        )
        keys = start + gl.arange(0, scores.shape[1], gl.SliceLayout(0, layout))
        scores = gl.where(rows[:, None] >= keys[None, :], scores, float("-inf"))
    return scores


@gluon.jit
def load_keys(k_desc, v_desc, k_tile, v_tile, bar, start):
    mbarrier.expect(bar, k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    async_load(k_desc, [start, 0], bar, k_tile)
    async_load(v_desc, [start, 0], bar, v_tile)


@gluon.jit
def attention_tcgen05_kernel(q_desc, k_desc, v_desc, o_ptr, length, scale, P: gl.constexpr,
                             P_LAYOUT: gl.constexpr, CAUSAL: gl.constexpr):  # fmt: skip
    """P is the left operand of the second product, in the tensor memory of S or in shared memory.

    The output stays in registers; each product of P and V comes from tensor memory.
    """
    M: gl.constexpr = q_desc.block_type.shape[0]
    D: gl.constexpr = q_desc.block_type.shape[1]
    N: gl.constexpr = k_desc.block_type.shape[0]
    q = gl.allocate_shared_memory(q_desc.dtype, [M, D], q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, [N, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [N, D], v_desc.layout)
    s = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], 1))
    o = allocate_tensor_memory(gl.float32, [M, D], TensorMemoryLayout([M, D], 1))
    if P == "tensor":
        twice: gl.constexpr = [M, 2 * N]
        p = reinterpret(s, v_desc.dtype, twice, TensorMemoryLayout([M, N], 1)).slice(0, N)
    else:
        p = gl.allocate_shared_memory(v_desc.dtype, [M, N], P_LAYOUT)
    bar, done = new_barrier(), new_barrier()
    fence_async_shared()
    mbarrier.expect(bar, q_desc.block_type.nbytes)
    async_load(q_desc, [gl.program_id(0) * M, 0], bar, q)
    mbarrier.wait(bar, 0)
    phase = 1
    out = gl.zeros_like(load_accumulator(o))
    rows: gl.constexpr = gl.SliceLayout(1, out.type.layout)
    highest = gl.full([M], float("-inf"), gl.float32, rows)
    total = gl.full([M], 0.0, gl.float32, rows)
    for start in range(0, length, N):
        load_keys(k_desc, v_desc, k, v, bar, start)
        mbarrier.wait(bar, phase)
        tcgen05_mma(q, k.permute((1, 0)), s, use_acc=False, mbarriers=[done])
        mbarrier.wait(done, 0)
        scores = masked_scores(load_accumulator(s) * scale, start, CAUSAL)
        peak = gl.convert_layout(gl.max(scores, 1), rows)
        new = gl.maximum(highest, peak)
        weights = gl.exp2(
            scores - gl.convert_layout(new, gl.SliceLayout(1, scores.type.layout))[:, None]
        )
        shrink = gl.exp2(highest - new)
        total = total * shrink + gl.convert_layout(gl.sum(weights, 1), rows)
        p.store(weights.to(v_desc.dtype))
        if P != "tensor":
            fence_async_shared()
        tcgen05_mma(p, v, o, use_acc=False, mbarriers=[done])
        mbarrier.wait(done, 1)
        out = out * shrink[:, None] + load_accumulator(o)
        highest = new
        phase ^= 1
    store_rows(o_ptr, out / total[:, None], D)


@gluon.jit
def attention_wgmma_kernel(q_desc, k_desc, v_desc, o_ptr, length, scale, P: gl.constexpr,
                           P_LAYOUT: gl.constexpr, CAUSAL: gl.constexpr,
                           S_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr):  # fmt: skip
    """P is the left operand of the second product, in registers or in shared memory."""
    M: gl.constexpr = q_desc.block_type.shape[0]
    D: gl.constexpr = q_desc.block_type.shape[1]
    N: gl.constexpr = k_desc.block_type.shape[0]
    q = gl.allocate_shared_memory(q_desc.dtype, [M, D], q_desc.layout)
    k = gl.allocate_shared_memory(k_desc.dtype, [N, D], k_desc.layout)
    v = gl.allocate_shared_memory(v_desc.dtype, [N, D], v_desc.layout)
    if P == "shared":
        p = gl.allocate_shared_memory(v_desc.dtype, [M, N], P_LAYOUT)
    bar = new_barrier()
    fence_async_shared()
    mbarrier.expect(bar, q_desc.block_type.nbytes)
    async_load(q_desc, [gl.program_id(0) * M, 0], bar, q)
    mbarrier.wait(bar, 0)
    phase = 1
    rows: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    highest = gl.full([M], float("-inf"), gl.float32, rows)
    total = gl.full([M], 0.0, gl.float32, rows)
    out = gl.zeros((M, D), gl.float32, O_LAYOUT)
    for start in range(0, length, N):
        load_keys(k_desc, v_desc, k, v, bar, start)
        mbarrier.wait(bar, phase)
        s = gl.zeros((M, N), gl.float32, S_LAYOUT)
        s = warpgroup_mma(q, k.permute((1, 0)), s, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        scores = masked_scores(s * scale, start, CAUSAL)
        new = gl.maximum(highest, gl.convert_layout(gl.max(scores, 1), rows))
        weights = gl.exp2(scores - gl.convert_layout(new, gl.SliceLayout(1, S_LAYOUT))[:, None])
        shrink = gl.exp2(highest - new)
        total = total * shrink + gl.convert_layout(gl.sum(weights, 1), rows)
        out = out * shrink[:, None]
        weights = weights.to(v_desc.dtype)
        if P == "shared":
            p.store(weights)
            fence_async_shared()
            out = warpgroup_mma(p, v, out, is_async=True)
        else:
            operand = gl.convert_layout(weights, gl.DotOperandLayout(0, O_LAYOUT, 2))
            out = warpgroup_mma(operand, v, out, is_async=True)
        out = warpgroup_mma_wait(0, deps=(out,))
        highest = new
        phase ^= 1
    store_rows(o_ptr, out / total[:, None], D)


def attention(arch, p, head=64, keys=64, dtype="float16", causal=False, warps=4):
    m, length = (16 * warps if arch == 90 else 128), 256
    arguments = (
        blocks(dtype, (length, head), (m, head)), blocks(dtype, (length, head), (keys, head)),
        blocks(dtype, (length, head), (keys, head)), tensor("float32", length, head), length, 0.18,
        p, gl.NVMMASharedLayout.get_default_for([m, keys], GLUON_TYPES[dtype]), causal,
    )  # fmt: skip
    if arch == 90:
        layouts = [accumulator_layout(m, n, 16, warps) for n in (keys, head)]
        attention_wgmma_kernel[(2,)](*arguments, *layouts, num_warps=warps, **LAUNCH_OPTIONS)
    else:
        attention_tcgen05_kernel[(2,)](*arguments, num_warps=warps, **LAUNCH_OPTIONS)


# --------------------------------------------------------------------------- tensor memory, tcgen05


@gluon.jit
def tensor_memory_views_kernel(a_desc, b_desc, c_ptr, M: gl.constexpr, N: gl.constexpr,
                               K: gl.constexpr, VIEW: gl.constexpr):  # fmt: skip
    a = gl.allocate_shared_memory(a_desc.dtype, [M, K], a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, [K, N], b_desc.layout)
    bar, done = new_barrier(), new_barrier()
    fence_async_shared()
    mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
    async_load(a_desc, [0, 0], bar, a)
    async_load(b_desc, [0, 0], bar, b)
    mbarrier.wait(bar, 0)
    if VIEW == "index":
        ring = allocate_tensor_memory(gl.float32, [2, M, N], TensorMemoryLayout([M, N], 1))
        for i in range(4):
            tcgen05_mma(a, b, ring.index(i % 2), use_acc=False, mbarriers=[done])
            mbarrier.wait(done, i & 1)
            store_rows(c_ptr + i * M * N, load_accumulator(ring.index(i % 2)), N)
    elif VIEW == "slice-load":
        acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], 1))
        tcgen05_mma(a, b, acc, use_acc=False, mbarriers=[done])
        mbarrier.wait(done, 0)
        for i in gl.static_range(4):
            part = acc.slice(i * (N // 4), N // 4)
            store_rows(c_ptr + i * (N // 4), load_accumulator(part), N)
    elif VIEW == "slice-mma":
        acc = allocate_tensor_memory(gl.float32, [M, 2 * N], TensorMemoryLayout([M, N], 1))
        for i in gl.static_range(2):
            tcgen05_mma(a, b, acc.slice(i * N, N), use_acc=False, mbarriers=[done])
            mbarrier.wait(done, i)
            store_rows(c_ptr + i * N, load_accumulator(acc.slice(i * N, N)), 2 * N)
    elif VIEW == "a":
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [4, 1], [1, 0])
        left = allocate_tensor_memory(a_desc.dtype, [M, K], TensorMemoryLayout([M, K], 1))
        left.store(gl.convert_layout(a.load(layout), register_layout(left)))
        acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], 1))
        tcgen05_mma(left, b, acc, use_acc=False, mbarriers=[done])
        mbarrier.wait(done, 0)
        store_rows(c_ptr, load_accumulator(acc), N)
    else:
        acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], 1))
        tcgen05_mma(a, b, acc, use_acc=False)
        tcgen05_mma(a, b, acc, pred=gl.program_id(0) == 0)
        tcgen05_commit(done)
        mbarrier.wait(done, 0)
        value = load_accumulator(acc)
        acc.store(value * 2)
        store_rows(c_ptr, load_accumulator(acc), N)


def tensor_memory_views(view, dtype="float16", block=(128, 64, 64), warps=4):
    m, n, k = block
    tensor_memory_views_kernel[(1,)](
        blocks(dtype, (m, k), (m, k)), blocks(dtype, (k, n), (k, n)), tensor("float32", 4 * m, n),
        m, n, k, view, num_warps=warps, **LAUNCH_OPTIONS,
    )  # fmt: skip


@gluon.jit
def tensor_memory_copy_kernel(x_ptr, o_ptr, M: gl.constexpr, N: gl.constexpr,
                              SHARED: gl.constexpr):  # fmt: skip
    """Shared memory -> tensor memory by tcgen05.cp -> registers."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    m = gl.arange(0, M, gl.SliceLayout(1, layout))[:, None]
    n = gl.arange(0, N, gl.SliceLayout(0, layout))[None, :]
    tile = gl.allocate_shared_memory(
        x_ptr.dtype.element_ty, [M, N], SHARED, gl.load(x_ptr + m * N + n)
    )
    memory = allocate_tensor_memory(x_ptr.dtype.element_ty, [M, N], TensorMemoryLayout([M, N], 1))
    done = new_barrier()
    fence_async_shared()
    tcgen05_copy(tile, memory)
    tcgen05_commit(done)
    mbarrier.wait(done, 0)
    store_rows(o_ptr, load_accumulator(memory), N)


def tensor_memory_copy(swizzle, dtype="float32", shape=(128, 32)):
    tensor_memory_copy_kernel[(1,)](
        tensor(dtype, *shape), tensor(dtype, *shape), *shape, nvmma(swizzle, dtype),
        **LAUNCH_OPTIONS,
    )  # fmt: skip


@gluon.jit
def scaled_kernel(a_desc, b_desc, a_scale_desc, b_scale_desc, c_ptr, steps,
                  A_FORMAT: gl.constexpr, B_FORMAT: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
                  K: gl.constexpr, BLOCK: gl.constexpr, COPY: gl.constexpr):  # fmt: skip
    """Block-scaled products; scale factors by tcgen05.cp from shared memory, or from registers."""
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    S: gl.constexpr = K // BLOCK
    a_codes = gl.allocate_shared_memory(
        a_scale_desc.dtype, a_scale_desc.block_type.shape, a_scale_desc.layout
    )
    b_codes = gl.allocate_shared_memory(
        b_scale_desc.dtype, b_scale_desc.block_type.shape, b_scale_desc.layout
    )
    a_scale = allocate_tensor_memory(a_scale_desc.dtype, [M, S], TensorMemoryScalesLayout())
    b_scale = allocate_tensor_memory(b_scale_desc.dtype, [N, S], TensorMemoryScalesLayout())
    acc = allocate_tensor_memory(gl.float32, [M, N], TensorMemoryLayout([M, N], 1))
    bar, done = new_barrier(), new_barrier()
    fence_async_shared()
    for i in range(steps):
        mbarrier.expect(
            bar,
            a_desc.block_type.nbytes + b_desc.block_type.nbytes
            + a_scale_desc.block_type.nbytes + b_scale_desc.block_type.nbytes,
        )  # fmt: skip
        async_load(a_desc, [0, i * a_desc.block_type.shape[1]], bar, a)
        async_load(b_desc, [0, i * b_desc.block_type.shape[1]], bar, b)
        async_load(a_scale_desc, [0, 0, i * (S // 4), 0, 0], bar, a_codes)
        async_load(b_scale_desc, [0, 0, i * (S // 4), 0, 0], bar, b_codes)
        mbarrier.wait(bar, i & 1)
        if COPY:
            tcgen05_copy(scale_factors(a_codes, M, S), a_scale)
            tcgen05_copy(scale_factors(b_codes, N, S), b_scale)
        else:
            a_scale.store(scale_factors(a_codes, M, S).load(register_layout(a_scale)))
            b_scale.store(scale_factors(b_codes, N, S).load(register_layout(b_scale)))
        tcgen05_mma_scaled(
            a, b.permute((1, 0)), acc, a_scale, b_scale, A_FORMAT, B_FORMAT, use_acc=i > 0
        )
        tcgen05_commit(done)
        mbarrier.wait(done, i & 1)
    store_rows(c_ptr, load_accumulator(acc), N)


@gluon.jit
def scale_factors(codes, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Blocks of 32 x 4 x 4 bytes as a matrix of scale factors."""
    codes = codes.reshape((ROWS // 128, COLUMNS // 4, 32, 4, 4))
    return codes.permute((0, 3, 2, 1, 4)).reshape((ROWS, COLUMNS))


def block_scaled(a_format, b_format, scale_block=32, block=(128, 128, 128), copy=True):
    m, n, k = block
    types = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e2m1": "uint8"}
    mixed = "e2m1" in (a_format, b_format) and a_format != b_format

    def operand(rows, name):
        width = k // 2 if name == "e2m1" else k
        padded = {"fp4_padded": True} if mixed and name == "e2m1" else {}
        return blocks(types[name], (rows, 4 * width), (rows, width), **padded)

    def scales(rows):
        name = "uint8" if scale_block == 32 else "float8_e4m3fn"
        steps = k // scale_block // 4
        return blocks(name, (1, rows // 128, 4 * steps, 2, 256), (1, rows // 128, steps, 2, 256), 0)

    scaled_kernel[(1,)](
        operand(m, a_format), operand(n, b_format), scales(m), scales(n), tensor("float32", m, n),
        4, a_format, b_format, m, n, k, scale_block, copy, **LAUNCH_OPTIONS,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- clusters


@gluon.jit
def pair_kernel(a_desc, b_desc, c_desc, steps, ACC: gl.constexpr, MULTICAST: gl.constexpr):
    """tcgen05 by two CTAs, each with half of A's rows and half of B's columns."""
    K: gl.constexpr = a_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    bar, done = mbarrier.allocate_mbarrier(two_ctas=True), mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.init(done, count=blackwell.tcgen05_mma_barrier_count([a, b], MULTICAST, True))
    acc = allocate_tensor_memory(gl.float32, c_desc.block_type.shape, ACC)
    for i in range(steps):
        mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        async_load(a_desc, [0, i * K], bar, a, multicast=MULTICAST)
        async_load(b_desc, [i * K, 0], bar, b, multicast=MULTICAST)
        mbarrier.wait(bar, i & 1, deps=[a, b])
        tcgen05_mma(a, b, acc, use_acc=i > 0, multicast=MULTICAST, mbarriers=[done])
        mbarrier.wait(done, i & 1, deps=[a, b])
    mbarrier.invalidate(bar)  # their place may be taken by C
    mbarrier.invalidate(done)
    c = gl.allocate_shared_memory(c_desc.dtype, c_desc.block_type.shape, c_desc.layout)
    c.store(load_accumulator(acc).to(c_desc.dtype))
    fence_async_shared()
    async_store(c_desc, [0, 0], c)
    tma.store_wait(0)


def pair_matmul(dtype="float16", block=(256, 128, 64), ctas=2):
    m, n, k = block
    more = ctas == 4
    rows = [[1, 0], [2, 0]] if more else [[1, 0]]
    columns = [[0, 1], [0, 0]] if more else [[0, 1]]
    split = {"cta_split_num": (ctas, 1)} if TRITON_VERSION == (3, 7) else {"cga_layout": rows}
    pair_kernel[(1,)](
        blocks(dtype, (m, 512), (m, k), cga_layout=rows),
        blocks(dtype, (512, n), (k, n), cga_layout=columns),
        blocks(dtype, (m, n), (m, n), cga_layout=rows), 8,
        TensorMemoryLayout((m // ctas, n), 1, two_ctas=True, **split), more,
        num_ctas=ctas, **LAUNCH_OPTIONS,
    )  # fmt: skip


@gluon.jit
def cluster_wgmma_kernel(a_desc, b_desc, c_ptr, steps, ACC: gl.constexpr, N: gl.constexpr):
    """Two CTAs with rows of A of their own, and one tile of B that a multicast copy brings both."""
    K: gl.constexpr = a_desc.block_type.shape[1]
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    acc = gl.zeros((a_desc.block_type.shape[0], N), gl.float32, ACC)
    for i in range(steps):
        mbarrier.expect(bar, a_desc.nbytes_per_cta + b_desc.nbytes_per_cta)
        async_load(a_desc, [0, i * K], bar, a)
        async_load(b_desc, [i * K, 0], bar, b, multicast=True)
        mbarrier.wait(bar, i & 1, deps=[a, b])
        acc = warpgroup_mma(a, b, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        gl.barrier(cluster=True)
    store_rows(c_ptr, acc, N)


def cluster_wgmma(dtype="float16", block=(128, 64, 64)):
    m, n, k = block
    acc = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 256 // bits(dtype)], [[1, 0]])
    cluster_wgmma_kernel[(1,)](
        blocks(dtype, (m, 512), (m, k), cga_layout=[[1, 0]]),
        blocks(dtype, (512, n), (k, n), cga_layout=[[0, 0]]), tensor("float32", m, n), 8, acc, n,
        num_ctas=2, **LAUNCH_OPTIONS,
    )  # fmt: skip


# ------------------------------------------------------------------------------- copies without MMA


def copies(kernel, arch, **arguments):
    """A kernel of `gluon_copy_kernels.py`."""
    import gluon_copy_kernels as tests

    if kernel == "multicast":
        tests.multicast_kernel[(1,)](
            *(tests.descriptor(tensor("float16", 64, 64), [64, 64], cga_layout=[[0, 0]]),) * 2,
            num_ctas=2,
        )
    elif kernel == "ring":
        x = tests.descriptor(tensor("float16", 128, 64), [16, 64])
        tests.ring_kernel[(1,)](x, x, 7, arguments["stages"])
    elif kernel == "reduce":
        tests.reduce_kernel[(4,)](
            tests.descriptor(tensor("int32", 32, 32), [16, 32]), tensor("int32", 16, 32),
            arguments["kind"], gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]),
        )  # fmt: skip
    elif kernel == "gather":
        x = tests.descriptor(tensor("bfloat16", 64, 64), [1, 32])
        tests.gather_kernel[(1,)](x, x, tensor("int32", 16), 0, 16, 32)
    elif kernel == "cp_async":
        x = tensor("float32", 1024)
        tests.async_load_kernel[(1,)](x, x, 1000, 512, arguments["barrier"])
    else:
        tests.stealing_kernel[(4,)](tensor("int32", 4), tensor("int32", 1))


@gluon.jit
def im2col_kernel(x_desc, w_desc, o_ptr, LAYOUT: gl.constexpr, SM90: gl.constexpr,
                  N: gl.constexpr):  # fmt: skip
    """A convolution of 3 x 3: pixels by an im2col copy, a product for each offset."""
    M: gl.constexpr = x_desc.block_shape[0]
    K: gl.constexpr = x_desc.block_shape[1]
    x = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_shape, x_desc.layout)
    w = gl.allocate_shared_memory(w_desc.dtype, w_desc.block_type.shape, w_desc.layout)
    bar = new_barrier()
    done = bar if SM90 else new_barrier()  # wgmma needs none
    fence_async_shared()
    acc = new_accumulator(M, N, LAYOUT, SM90)
    for i in range(9):
        mbarrier.expect(bar, x_desc.block_type.nbytes + w_desc.block_type.nbytes)
        tma.async_load_im2col(
            x_desc, [0, 0, 0, 0], [(i // 3).to(gl.int16), (i % 3).to(gl.int16)], bar, x
        )
        async_load(w_desc, [i * K, 0], bar, w)
        mbarrier.wait(bar, i & 1)
        acc = product(x, w, acc, done, i & 1, i > 0, SM90)
    store_rows(o_ptr, accumulated(acc, SM90), N)


def im2col(arch, dtype="float16"):
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptorIm2Col

    m, n, k = (64 if arch == 90 else 128), 64, 64
    x = TensorDescriptorIm2Col.from_tensor(
        tensor(dtype, 1, 16, 16, k), [m, k], nvmma(128, dtype), padding="zero",
        element_strides=[1, 1, 1, 1], pixel_box_lower_corner=[-1, -1],
        pixel_box_upper_corner=[-1, -1],
    )  # fmt: skip
    im2col_kernel[(1,)](
        x, blocks(dtype, (9 * k, n), (k, n)), tensor("float32", m, n),
        layout_of_accumulator(arch, m, n, dtype), arch == 90, n, **LAUNCH_OPTIONS,
    )  # fmt: skip


# -------------------------------------------------------------- shared memory without MMA, mma.sync


@gluon.jit
def through_shared_kernel(
    x_ptr, o_ptr, M: gl.constexpr, N: gl.constexpr, FIRST: gl.constexpr, SECOND: gl.constexpr,
    SHARED: gl.constexpr, WAY: gl.constexpr,
):  # fmt: skip
    """A tile is stored to shared memory in one register layout and loaded in another."""
    m = gl.arange(0, M, gl.SliceLayout(1, FIRST))[:, None]
    n = gl.arange(0, N, gl.SliceLayout(0, FIRST))[None, :]
    tile = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [M, N], SHARED)
    tile.store(gl.load(x_ptr + m * N + n))
    if WAY == "transposed":
        store_rows(o_ptr, tile.permute((1, 0)).load(SECOND), M)
    elif WAY == "half":
        store_rows(o_ptr, tile.slice(M // 2, M // 2, dim=0).load(SECOND), N)
    else:
        store_rows(o_ptr, tile.load(SECOND), N)


def shared_layout(name, dtype, shape):
    m, n = shape
    size = bits(dtype)
    if name == "rows":
        return gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    if name == "columns":
        return gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
    if name == "swizzled":
        return gl.SwizzledSharedLayout(128 // size, 1, 8, [1, 0])
    if name == "swizzled-columns":
        return gl.SwizzledSharedLayout(4, 2, 4, [0, 1])
    if name == "padded":
        return gl.PaddedSharedLayout.with_identity_for([[n, 16 * 8 // size]], list(shape), [1, 0])
    if name == "linear":  # element (i, j) at column j ^ i
        columns = [[0, 1 << i] for i in range(n.bit_length() - 1)]
        rows = [[1 << i, (1 << i) % n] for i in range(m.bit_length() - 1)]
        return gl.SharedLinearLayout(columns + rows, alignment=128)
    return nvmma(int(name.removeprefix("nvmma")), dtype)


def through_shared(layout, dtype="float32", shape=(64, 64), way="transposed"):
    m, n = shape
    first = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    second = first if way == "transposed" else gl.BlockedLayout([2, 1], [8, 4], [1, 4], [0, 1])
    through_shared_kernel[(1,)](
        tensor(dtype, m, n), tensor(dtype, n, m), m, n, first, second,
        shared_layout(layout, dtype, shape), way, **LAUNCH_OPTIONS,
    )  # fmt: skip


@gluon.jit
def mma_sync_kernel(a_ptr, b_ptr, c_ptr, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
                    A_SHARED: gl.constexpr, B_SHARED: gl.constexpr,
                    ACC: gl.constexpr, WIDTH: gl.constexpr):  # fmt: skip
    """mma.sync, its operands by ldmatrix where the shared layout allows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    m = gl.arange(0, M, gl.SliceLayout(1, layout))[:, None]
    ka = gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    kb = gl.arange(0, K, gl.SliceLayout(1, layout))[:, None]
    n = gl.arange(0, N, gl.SliceLayout(0, layout))[None, :]
    a = gl.allocate_shared_memory(
        a_ptr.dtype.element_ty, [M, K], A_SHARED, gl.load(a_ptr + m * K + ka)
    )
    b = gl.allocate_shared_memory(
        b_ptr.dtype.element_ty, [K, N], B_SHARED, gl.load(b_ptr + kb * N + n)
    )
    acc = gl.zeros((M, N), gl.float32, ACC)
    acc = mma_v2(
        a.load(gl.DotOperandLayout(0, ACC, WIDTH)), b.load(gl.DotOperandLayout(1, ACC, WIDTH)), acc
    )
    store_rows(c_ptr, acc, N)


def mma_sync(a_layout="swizzled", b_layout="swizzled", dtype="float16", block=(64, 64, 64)):
    m, n, k = block
    mma_sync_kernel[(1,)](
        tensor(dtype, m, k), tensor(dtype, k, n), tensor("float32", m, n), *block,
        shared_layout(a_layout, dtype, (m, k)), shared_layout(b_layout, dtype, (k, n)),
        gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]), 32 // bits(dtype), **LAUNCH_OPTIONS,
    )  # fmt: skip
