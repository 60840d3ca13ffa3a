"""C = A @ B on Blackwell: a warp for the copies, a warp for the products, a warpgroup for C.

As on Hopper (`warp_specialized`), a thread block stays on its SM and makes tile after tile, and a
producer warp fills the `pipeline`. What Hopper's consumers do is divided: products need one thread,
which tells the tensor cores what to multiply (`tcgen05.mma`); the sums are in tensor memory, not in
registers, so whoever stores them need not be who multiplies. There is room for two tiles of sums
(`Accumulators`): while the `epilogue` stores one, the tensor cores are at the next. Where scales
take some of that room, the two share a few columns, which the epilogue reads first.

Two blocks of a cluster can be one pair (``cta_group::2``): the tensor cores of both make a
tile of twice the rows together. Each block has its rows of A, half of the columns of B, and its
rows of C. The first block of the pair alone issues the products.

Ranks of a group may make a product together (`peers`). In a gather, `load` waits for chunks. In a
scatter, `store` asks for a tile's addend before it waits for the sums, and hands the tile over when
its stores are complete: both while the next tile is multiplied.

A barrier tells that tensor cores are done: who issued products *commits* it, and it completes when
they are. In a cluster the commit reaches the barriers of all blocks that share an operand.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.blackwell import (
    allocate_tensor_memory,
    tcgen05_commit,
    tcgen05_mma,
    tensor_memory_descriptor,
)
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from triton_ext.compat import (
    aggregate,
    load_accumulator,
    register_layout,
    reinterpret,
    sums_layout,
)
from triton_ext.hardware.tensor_memory import TMEM_COLUMNS
from triton_ext.kernels.device.block_scales import block_scales_of
from triton_ext.kernels.device.epilogue import epilogue_of
from triton_ext.kernels.device.fp32_scales import fp32_scales_of
from triton_ext.kernels.device.groups import clear_behind, groups_of
from triton_ext.kernels.device.launch_control import ask, tickets_of
from triton_ext.kernels.device.matrices import (
    is_batched,
    matrix_size,
    prefetch_descriptors,
    ranks_of,
)
from triton_ext.kernels.device.peers import peers_of, products_of
from triton_ext.kernels.device.pipeline import Operands, Pipeline, Slot, allocate_barriers
from triton_ext.kernels.device.row_gather import rows_by_tma_of
from triton_ext.kernels.device.scheduler import Tiling

ONE_WARP = gl.constexpr(24)
"""Registers of a thread of the roles that are one warp."""
CLEARED = gl.constexpr(8)
"""Elements along K that a warp reads, clears and writes back at a time."""
ONE_WARP_GATHERS = gl.constexpr(40)
"""The same where one of them waits for other ranks: with 32, ptxas spilled in that loop. (There is
room: the warpgroup that stores has all that a thread can have.)"""
COLUMNS_OF_ALL = gl.constexpr(TMEM_COLUMNS)


@gluon.jit
def slices(memory, COLUMNS: gl.constexpr):
    """Tensor memory, so many columns at a time."""
    END: gl.constexpr = memory.shape[1]
    found = ()
    for column in gl.static_range(0, END, COLUMNS):
        found += (memory.slice(column, COLUMNS),)  # type: ignore[assignment]
    return found


@aggregate
class Accumulator:
    """The sums of a tile of C in tensor memory.

    Attributes:
        memory: where they are.
        free: the barrier that completes when they have been read.
    """

    memory: tensor_memory_descriptor
    free: gl.shared_memory_descriptor

    @gluon.jit
    def pieces(self, COLUMNS: gl.constexpr):
        """It, so many columns at a time; see `read`."""
        return slices(self.memory, COLUMNS)

    @gluon.jit
    def read(self, piece):
        """One of its pieces in registers: a row a thread."""
        return load_accumulator(piece)

    @gluon.jit
    def zeros(self, COLUMNS: gl.constexpr):
        """Zeros in the place of a piece that was read."""
        ROWS: gl.constexpr = self.memory.shape[0]
        LAYOUT: gl.constexpr = register_layout(self.memory.slice(0, COLUMNS))
        return gl.zeros((ROWS, COLUMNS), self.memory.dtype, LAYOUT)

    @gluon.jit
    def release(self):
        """It has been read: the next products may overwrite it."""
        mbarrier.arrive(self.free, count=1)


@aggregate
class Promoted:
    """The sums of a tile of C in registers, to which those of each K tile were added in fp32: what
    an epilogue asks of an `Accumulator`.

    Attributes:
        sums: its pieces.
    """

    sums: gl.tuple

    @gluon.jit
    def pieces(self, COLUMNS: gl.constexpr):
        """All of them, which have so many columns."""
        return self.sums

    @gluon.jit
    def read(self, piece):
        """One of them."""
        return piece

    @gluon.jit
    def zeros(self, COLUMNS: gl.constexpr):
        """Zeros in the place of one of them."""
        return gl.zeros_like(self.sums[0])

    @gluon.jit
    def release(self):
        """It has been read: registers need no more."""

    @gluon.jit
    def add(self, acc, scales, work, k):
        """The same with the sums of K tile k, times their scales."""
        LAYOUT: gl.constexpr = self.sums[0].type.layout
        ROWS: gl.constexpr = self.sums[0].shape[0]
        PIECE: gl.constexpr = self.sums[0].shape[1]
        own: gl.constexpr = ROWS // gl.num_ctas()  # one block of rows has them all
        (row,) = scales.of_rows(work, k, ROWS, own, gl.SliceLayout(1, LAYOUT))
        if scales.left.EACH:
            row = gl.expand_dims(row, 1)
        columns = scales.of_columns(
            work, k, PIECE, len(self.sums), PIECE, gl.SliceLayout(0, LAYOUT)
        )
        pieces = acc.pieces(PIECE)
        sums = ()
        for i in gl.static_range(len(self.sums)):
            column = columns[i]
            if scales.right.EACH:
                column = gl.expand_dims(column, 0)
            sums += (self.sums[i] + acc.read(pieces[i]) * (row * column),)  # type: ignore[assignment]
        acc.release()
        return Promoted(sums)


@aggregate
class Accumulators:
    """Tensor memory for the sums of some tiles, which take turns.

    Attributes:
        memory: its first dimension counts them.
        ready, free: the barriers that complete when a tile has been multiplied, and read.
        NUMBER: how many there are.
        LAYOUT: of one tile in `memory`, if two share columns, the last of the first tile and the
            first of the second: `memory` is all of tensor memory then, and who has read these
            columns frees the other tile's. Else None.
        COLUMNS: of one tile.
        SHARED: how many of them both share.
    """

    memory: tensor_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    NUMBER: gl.constexpr
    LAYOUT: gl.constexpr
    COLUMNS: gl.constexpr
    SHARED: gl.constexpr

    @gluon.jit
    def first(self):
        """The first one's turn."""
        return Slot(gl.to_tensor(0), gl.to_tensor(0), self.NUMBER)

    @gluon.jit
    def at(self, turn):
        """The one whose turn it is."""
        return Accumulator(self.tile(turn), self.free.index(turn.index))

    @gluon.jit
    def tile(self, turn):
        """Where the tile of B is multiplied to."""
        if self.LAYOUT is None:
            found = self.memory.index(turn.index)
        else:
            if turn.index == 0:
                columns = self.memory.slice(0, self.COLUMNS)
            else:
                columns = self.memory.slice(self.COLUMNS - self.SHARED, self.COLUMNS)
            SHAPE: gl.constexpr = (self.memory.shape[0], self.COLUMNS)
            found = reinterpret(columns, self.memory.dtype, SHAPE, self.LAYOUT)
        return found

    @gluon.jit
    def empty(self, turn):
        """Wait until one has been read, and return it. (The waits pass in the first turns.)"""
        if self.LAYOUT is None:
            mbarrier.wait(self.free.index(turn.index), turn.phase ^ 1)
        else:  # what has been read of the other one; this one was read before
            mbarrier.wait(self.free.index(turn.index ^ 1), turn.phase ^ turn.index ^ 1)
        return self.at(turn)

    @gluon.jit
    def full(self, turn):
        """Wait until one's tile has been multiplied, and return it."""
        mbarrier.wait(self.ready.index(turn.index), turn.phase)
        return self.at(turn)


@gluon.jit
def load(operands, pipeline, tickets):
    """The warp that copies the tiles of A and B, as soon as their buffers are free."""
    slot = pipeline.first()
    if pipeline.PLAN.groups is not None:
        gdc_wait()  # before it reads where groups end
    ticket = tickets.first()
    filled = gl.to_tensor(0)
    seen = gl.to_tensor(-1)
    if pipeline.PLAN.groups is None:
        gdc_wait()
    while ticket.more:
        work = tickets.work(ticket)
        if operands.gathers():
            seen = operands.peers.wait_for(seen, work, tickets.tiling)
        held = () if pipeline.rows is None else pipeline.rows.of(work)
        for k in range(work.k_first, work.k_end):
            pipeline.fill(slot, operands, work, k, held)
            slot = slot.next()
        filled += work.k_end - work.k_first
        ticket = tickets.next(ticket)
    pipeline.end(slot, filled)
    if operands.gathers():
        operands.peers.end(tickets.tiling)


@gluon.jit
def clear_tail(pipeline, slot, work, k):
    """Clear what tiles of K tile k, which have arrived, have of the next group along K."""
    if pipeline.PLAN.groups is not None and pipeline.PLAN.groups.dim == 2:  # noqa: SIM102 (known early)
        if (k + 1 == work.k_end) & (work.k_left > 0):
            clear_behind(pipeline.a_tiles.index(slot.index), work.k_left, 1, CLEARED)
            clear_behind(pipeline.b_tiles.index(slot.index), work.k_left, 0, CLEARED)
            gl.barrier()


@gluon.jit
def multiply(pipeline, accumulators, tickets):
    """The warp that issues the products of all tiles, as their operands arrive."""
    slot = pipeline.first()
    which = accumulators.first()
    if pipeline.PLAN.groups is not None:
        gdc_wait()  # who reads where groups end
    ticket = tickets.first()
    while ticket.more:
        work = tickets.work(ticket)
        if pipeline.fp32_scales is None:
            sums = accumulators.empty(which)
        use_acc = gl.to_tensor(False)
        for k in range(work.k_first, work.k_end):
            pipeline.wait(slot)
            clear_tail(pipeline, slot, work, k)
            a_tile = pipeline.a_tiles.index(slot.index)
            b_tile, free = pipeline.b_tiles.index(slot.index), pipeline.free.index(slot.index)
            if pipeline.scales is not None:
                pipeline.scales.multiply(
                    slot.index, a_tile, b_tile, sums.memory, use_acc, free
                )  # fmt: skip
            elif pipeline.fp32_scales is not None:  # each K tile has sums of its own
                tcgen05_mma(
                    a_tile, b_tile, accumulators.empty(which).memory, use_acc=False,
                    multicast=gl.num_ctas() > 1, mbarriers=[free],
                )  # fmt: skip
                tcgen05_commit(accumulators.ready.index(which.index))
                which = which.next()
            else:
                tcgen05_mma(
                    a_tile, b_tile, sums.memory, use_acc=use_acc,
                    multicast=gl.num_ctas() > 1, mbarriers=[free],
                )  # fmt: skip
            use_acc = gl.to_tensor(True)
            slot = slot.next()
        if pipeline.fp32_scales is None:
            tcgen05_commit(accumulators.ready.index(which.index))
            which = which.next()
        ticket = tickets.next(ticket)


@aggregate
class SumsOrZeros:
    """A tile's sums, or zeros if nothing was multiplied: what an epilogue asks of an `Accumulator`.

    Attributes:
        acc: the sums.
        exist: whether there were products.
    """

    acc: Accumulator
    exist: gl.tensor

    @gluon.jit
    def pieces(self, COLUMNS: gl.constexpr):
        """Them, so many columns at a time."""
        return self.acc.pieces(COLUMNS)

    @gluon.jit
    def read(self, piece):
        """One of their pieces in registers."""
        found = self.acc.read(piece)
        return gl.where(self.exist, found, gl.zeros_like(found))

    @gluon.jit
    def release(self):
        """They have been read."""
        self.acc.release()


@gluon.jit
def promote(epilogue, accumulators, scales, which, work):
    """The sums of a tile, those of each K tile times their scales; and the next turn."""
    COLUMNS: gl.constexpr = epilogue.pieces.tiles.shape[2]
    zeros = accumulators.at(which).zeros(COLUMNS)
    sums = ()
    for _ in gl.static_range(epilogue.pieces.NUMBER * (2 if epilogue.PLAN.gated else 1)):
        sums += (zeros,)  # type: ignore[assignment]
    found = Promoted(sums)
    for k in range(work.k_first, work.k_end):
        found = found.add(accumulators.full(which), scales, work, k)
        which = which.next()
    return found, which


@gluon.jit
def store(epilogue, pipeline, accumulators, tickets):
    """The warpgroup that stores the tiles, each while the next one is multiplied."""
    which = accumulators.first()
    if pipeline.PLAN.groups is not None:
        gdc_wait()  # before it reads where groups end
    ticket = tickets.first()
    residual_phase = gl.to_tensor(0)
    seen = gl.to_tensor(-1)
    if pipeline.PLAN.groups is None:
        gdc_wait()
    while ticket.more:
        work = tickets.work(ticket)
        if epilogue.PLAN.scatters:
            seen = epilogue.receive(seen, work, tickets.tiling, 0)
        vectors = epilogue.begin(work, 0)
        if pipeline.fp32_scales is None:
            acc = accumulators.full(which)
            if pipeline.PLAN.groups is not None:
                acc = SumsOrZeros(acc, work.k_end > 0)
        else:
            acc, which = promote(epilogue, accumulators, pipeline.fp32_scales, which, work)
        residual_phase = epilogue.finish(acc, work, vectors, residual_phase, False, 0)
        if epilogue.PLAN.scatters:
            epilogue.peers.hand_over(work, tickets.tiling)
        if pipeline.fp32_scales is None:
            which = which.next()
        ticket = tickets.next(ticket)
    if epilogue.PLAN.scatters:
        epilogue.peers.end(tickets.tiling)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=(
    "group", "first_chunk", "ranks", "piece_rows", "left_step", "right_step"))  # fmt: skip
def matmul_warp_specialized_sm100(
        a_desc, b_desc, c_desc, scale_descs, c0_desc, own_desc, group, first_chunk, ranks,
        piece_rows, left_step, right_step, values, PLAN: gl.constexpr):  # fmt: skip
    """The whole kernel: barriers, buffers and tensor memory, then a warp's task each.

    Args:
        a_desc, b_desc, c_desc: TMA descriptors of the left and the right operand, and of C.
        scale_descs: those of the block scales of the left and the right operand, if they have such.
        c0_desc: that of the residual, or of what the rank before has sent; or None.
        own_desc, first_chunk, ranks, piece_rows: see `Peers`; or None.
        group: see `Tiling`.
        left_step, right_step: see `ScaleMatrix`; or None.
        values: what `SpecializedPlan.values` names.
        PLAN: an `Sm100Plan`.
    """
    TILE: gl.constexpr = PLAN.tile
    BLOCK_M: gl.constexpr = PLAN.block_m
    BLOCK_N: gl.constexpr = PLAN.block_n
    N_MAJOR: gl.constexpr = not TILE.swap_ab
    RANKS: gl.constexpr = ranks_of((a_desc, b_desc, c_desc))
    prefetch_descriptors("matmul_warp_specialized_sm100", RANKS)
    size_m = matrix_size(c_desc, 0 if N_MAJOR else 1).to(gl.int32)
    size_n = matrix_size(c_desc, 1 if N_MAJOR else 0).to(gl.int32)
    k_extent = matrix_size(a_desc, 1 if PLAN.left_k_major else 0)
    num_k = gl.cdiv(k_extent, TILE.block_k)
    tiling = Tiling(
        size_m, size_n, gl.cdiv(size_m, BLOCK_M), gl.cdiv(size_n, PLAN.c_columns), num_k, group,
        BLOCK_M, PLAN.c_columns, TILE.split_k, 0, 0,
    )  # fmt: skip
    peers = peers_of(
        own_desc, values, first_chunk, ranks, piece_rows,
        gl.num_ctas(), gl.num_ctas() * (TILE.num_warps if PLAN.scatters else 1), PLAN,
    )  # fmt: skip
    BATCHED: gl.constexpr = is_batched(c_desc)
    tiles = tiling.tiles_m * tiling.tiles_n
    if BATCHED:
        tiles *= products_of(c_desc, peers)

    a_tiles = gl.allocate_shared_memory(
        a_desc.dtype, [TILE.stages, BLOCK_M, TILE.block_k], PLAN.left
    )
    b_tiles = gl.allocate_shared_memory(
        b_desc.dtype, [TILE.stages, TILE.block_k, BLOCK_N], PLAN.right
    )
    c_tiles = gl.allocate_shared_memory(
        c_desc.dtype, [TILE.c_buffers, BLOCK_M, BLOCK_N // TILE.c_parts], PLAN.c
    )
    accumulators = accumulators_of(a_desc.dtype, PLAN)
    if PLAN.element is None:
        scales: gl.constexpr = None
    else:
        scales = block_scales_of(
            scale_descs[0], scale_descs[1], accumulators.memory if PLAN.shared_sums else None, PLAN
        )
    fp32_scales = fp32_scales_of(values, size_m, size_n, num_k, left_step, right_step, PLAN)
    rows = rows_by_tma_of(values, b_tiles if TILE.swap_ab else a_tiles, PLAN)
    pipeline = pipeline_of(a_tiles, b_tiles, scales, fp32_scales, rows, PLAN)
    if PLAN.groups is None:
        tickets = tickets_of(tiling, tiles, 4, TILE.cluster_launch_control, BATCHED)
    else:
        tickets = groups_of(values, tiling, a_desc, b_desc, c_desc, k_extent, PLAN)
    if c0_desc is None:
        c0_ready: gl.constexpr = None
    else:
        c0_ready = allocate_barriers(TILE.c_parts, 1)
    fence_async_shared()

    operands = Operands(a_desc, b_desc, None, peers, PLAN)
    SHARED: gl.constexpr = gl.cdiv(PLAN.shared_sums * TILE.c_parts, BLOCK_N)
    epilogue = epilogue_of(c_desc, c_tiles, c0_desc, c0_ready, values, None, peers, None, None,
                           SHARED, PLAN)  # fmt: skip
    GATHERS: gl.constexpr = PLAN.collective == "gather"
    WAITS: gl.constexpr = GATHERS or PLAN.groups is not None
    REGISTERS: gl.constexpr = ONE_WARP_GATHERS if WAITS else ONE_WARP
    gdc_launch_dependents()
    # The arguments are written out: a tuple in a variable would turn constants into values.
    ASKED: gl.constexpr = TILE.cluster_launch_control
    gl.warp_specialize(
        [
            (store, (epilogue, pipeline, accumulators, tickets)),
            (multiply, (pipeline, accumulators, tickets)),
            (load, (operands, pipeline, tickets)),
        ]
        + ([(ask, (tickets,))] if ASKED else []),
        [1, 1] + ([1] if ASKED else []),
        [REGISTERS, REGISTERS] + ([REGISTERS] if ASKED else []),
    )


@gluon.jit
def pipeline_of(a_tiles, b_tiles, scales, fp32_scales, rows, PLAN: gl.constexpr):
    """A pipeline of these buffers, which tensor cores free, with its barriers; see `Pipeline`.

    The products of a pair wait for the tiles of both of its blocks. A buffer is free when all have
    read it who share one of its tiles: the blocks of the cluster, or its pairs.
    """
    STAGES: gl.constexpr = PLAN.tile.stages
    PAIR: gl.constexpr = PLAN.tile.cta_group == 2
    COMMITS: gl.constexpr = gl.num_ctas() // PLAN.tile.cta_group
    ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=PAIR)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    for each in gl.static_range(STAGES):
        mbarrier.init(ready.index(each), count=1)
        mbarrier.init(free.index(each), count=COMMITS)
    return Pipeline(a_tiles, b_tiles, ready, free, PLAN, scales, fp32_scales, None, rows)


@gluon.jit
def accumulators_of(element_type: gl.constexpr, PLAN: gl.constexpr):
    """Accumulators for products of that type, with their barriers; see `Accumulators`."""
    TYPE: gl.constexpr = gl.int32 if element_type == gl.int8 else gl.float32
    ROWS: gl.constexpr = PLAN.block_m
    COLUMNS: gl.constexpr = PLAN.block_n
    NUMBER: gl.constexpr = PLAN.accumulators
    PAIR: gl.constexpr = PLAN.tile.cta_group == 2
    TILE: gl.constexpr = sums_layout(ROWS, COLUMNS, gl.num_ctas(), PAIR)
    LAYOUT: gl.constexpr = None if PLAN.shared_sums == 0 else TILE
    if LAYOUT is None:
        memory = allocate_tensor_memory(TYPE, [NUMBER, ROWS, COLUMNS], TILE)
    else:
        ALL: gl.constexpr = sums_layout(ROWS, COLUMNS_OF_ALL, gl.num_ctas(), PAIR)
        memory = allocate_tensor_memory(TYPE, [ROWS, COLUMNS_OF_ALL], ALL)
    ready = mbarrier.allocate_mbarrier(batch=NUMBER)
    free = mbarrier.allocate_mbarrier(batch=NUMBER, two_ctas=PAIR)
    for each in gl.static_range(NUMBER):
        mbarrier.init(ready.index(each), count=1)
        mbarrier.init(free.index(each), count=1)
    return Accumulators(memory, ready, free, NUMBER, LAYOUT, COLUMNS, PLAN.shared_sums)
