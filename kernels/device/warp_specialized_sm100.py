"""C = A @ B on Blackwell: a warp for the copies, a warp for the products, a warpgroup for C.

As on Hopper (`warp_specialized`), a thread block stays on its SM and makes tile after tile, and a
producer warp fills the `ring`. What Hopper's consumers do is divided: products need one thread,
which tells the tensor cores what to multiply (`tcgen05.mma`); the sums are in tensor memory, not in
registers, so whoever stores them need not be who multiplies. There is room for two tiles of sums
(`Accumulators`): while the `epilogue` stores one, the tensor cores are at the next. Where scales
take some of that room, the two share a few columns, which the epilogue reads first.

Two blocks of a cluster can be one pair (`PAIR`, ``cta_group::2``): the tensor cores of both make a
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
from triton_ext.kernels.device.epilogue import Epilogue, Parts, Residual, Scaling, words_of
from triton_ext.kernels.device.launch_control import ask, tickets_of
from triton_ext.kernels.device.matrices import is_batched, matrix_size, prefetch_descriptors
from triton_ext.kernels.device.peers import peers_of, products_of
from triton_ext.kernels.device.ring import Operands, Ring, Slot, allocate_barriers
from triton_ext.kernels.device.scheduler import Tiling

ONE_WARP = gl.constexpr(24)
"""Registers of a thread of the roles that are one warp."""
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
                place = self.memory.slice(0, self.COLUMNS)
            else:
                place = self.memory.slice(self.COLUMNS - self.SHARED, self.COLUMNS)
            SHAPE: gl.constexpr = (self.memory.shape[0], self.COLUMNS)
            found = reinterpret(place, self.memory.dtype, SHAPE, self.LAYOUT)
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
def load(operands, ring, tickets):
    """The warp that copies the tiles of A and B, as soon as their buffers are free."""
    slot = ring.first()
    ticket = tickets.first()
    seen = gl.to_tensor(-1)
    gdc_wait()
    while ticket.more:
        work = tickets.work(ticket)
        if operands.gathers():
            seen = operands.peers.wait_for(seen, work, tickets.tiling)
        for k in range(work.k_first, work.k_end):
            ring.fill(slot, operands, work, k)
            slot = slot.next()
        ticket = tickets.next(ticket)
    ring.end(slot)
    if operands.gathers():
        operands.peers.end(tickets.tiling)


@gluon.jit
def multiply(ring, accumulators, tickets):
    """The warp that issues the products of all tiles, as their operands arrive."""
    slot = ring.first()
    which = accumulators.first()
    ticket = tickets.first()
    while ticket.more:
        work = tickets.work(ticket)
        sums = accumulators.empty(which)
        use_acc = gl.to_tensor(False)
        for _ in range(work.k_first, work.k_end):
            ring.wait(slot)
            a_tile = ring.a_tiles.index(slot.index)
            b_tile, free = ring.b_tiles.index(slot.index), ring.free.index(slot.index)
            if ring.scales is not None:
                ring.scales.multiply(
                    slot.index, a_tile, b_tile, sums.memory, use_acc, free
                )  # fmt: skip
            else:
                tcgen05_mma(
                    a_tile, b_tile, sums.memory, use_acc=use_acc,
                    multicast=gl.num_ctas() > 1, mbarriers=[free],
                )  # fmt: skip
            use_acc = gl.to_tensor(True)
            slot = slot.next()
        tcgen05_commit(accumulators.ready.index(which.index))
        which = which.next()
        ticket = tickets.next(ticket)


@gluon.jit
def store(epilogue, accumulators, tickets):
    """The warpgroup that stores the tiles, each while the next one is multiplied."""
    which = accumulators.first()
    ticket = tickets.first()
    residual_phase = gl.to_tensor(0)
    seen = gl.to_tensor(-1)
    gdc_wait()
    while ticket.more:
        work = tickets.work(ticket)
        if epilogue.scatters():
            seen = epilogue.receive(seen, work, tickets.tiling, 0)
        vectors = epilogue.begin(work, 0)
        acc = accumulators.full(which)
        residual_phase = epilogue.finish(acc, work, vectors, residual_phase, False, 0)
        if epilogue.scatters():
            epilogue.hand_over(work, tickets.tiling)
        which = which.next()
        ticket = tickets.next(ticket)
    if epilogue.scatters():
        epilogue.peers.end(tickets.tiling)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=("group", "first_chunk", "ranks", "piece_rows"))
def matmul_warp_specialized_sm100(
        a_desc, b_desc, c_desc, group, workspace, bias, a_scale, b_scale, alpha,
        c0_desc, beta, own_desc, flags, counters, late, first_chunk, ranks, piece_rows,
        left_scales, right_scales, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
        BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
        ACCUMULATORS: gl.constexpr, SHARED_SUMS: gl.constexpr, PAIR: gl.constexpr,
        ASKED: gl.constexpr,
        SCATTER: gl.constexpr, C_PARTS: gl.constexpr, C_BUFFERS: gl.constexpr,
        A_K_MAJOR: gl.constexpr, B_K_MAJOR: gl.constexpr, C_N_MAJOR: gl.constexpr,
        MAX_SPLITS: gl.constexpr, A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr,
        C_LAYOUT: gl.constexpr, ACTIVATION: gl.constexpr,
        A_SCALES: gl.constexpr, B_SCALES: gl.constexpr,
        FORMAT: gl.constexpr, LEFT_SCALES: gl.constexpr,
        RIGHT_SCALES: gl.constexpr, num_warps: gl.constexpr):  # fmt: skip
    """The whole kernel: barriers, buffers and tensor memory, then a warp's task each."""
    prefetch_descriptors(a_desc, "matmul_warp_specialized_sm100", 3)
    size_m = matrix_size(c_desc, 0 if C_N_MAJOR else 1).to(gl.int32)
    size_n = matrix_size(c_desc, 1 if C_N_MAJOR else 0).to(gl.int32)
    num_k = gl.cdiv(matrix_size(a_desc, 1 if A_K_MAJOR else 0), BLOCK_K)
    tiling = Tiling(
        size_m, size_n, gl.cdiv(size_m, BLOCK_M), gl.cdiv(size_n, BLOCK_N), num_k,
        group, BLOCK_M, BLOCK_N, MAX_SPLITS, 0, 0,
    )  # fmt: skip
    peers = peers_of(
        own_desc, flags, counters, late, first_chunk, ranks, piece_rows,
        gl.num_ctas(), gl.num_ctas() * (num_warps if SCATTER else 1), SCATTER,
    )  # fmt: skip
    BATCHED: gl.constexpr = is_batched(c_desc)
    tiles = tiling.tiles_m * tiling.tiles_n
    if BATCHED:
        tiles *= products_of(c_desc, peers)

    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], A_LAYOUT)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], B_LAYOUT)
    c_tiles = gl.allocate_shared_memory(
        c_desc.dtype, [C_BUFFERS, BLOCK_M, BLOCK_N // C_PARTS], C_LAYOUT
    )
    accumulators = accumulators_of(a_desc.dtype, BLOCK_M, BLOCK_N, ACCUMULATORS, PAIR, SHARED_SUMS)
    if FORMAT is None:
        scales: gl.constexpr = None
    else:
        scales = block_scales_of(
            left_scales, right_scales, STAGES, LEFT_SCALES, RIGHT_SCALES, FORMAT,
            accumulators.memory if SHARED_SUMS else None, 2 * BLOCK_N - SHARED_SUMS,
        )  # fmt: skip
    ring = ring_of(a_tiles, b_tiles, scales, STAGES, PAIR)
    tickets = tickets_of(tiling, tiles, 4, ASKED, BATCHED)
    if c0_desc is None:
        c0_ready: gl.constexpr = None
    else:
        c0_ready = allocate_barriers(C_PARTS, 1)
    fence_async_shared()

    operands = Operands(a_desc, b_desc, None, A_K_MAJOR, B_K_MAJOR, 1, peers)
    epilogue = Epilogue(
        c_desc, c_tiles, Parts(workspace, words_of(workspace, 1), 1, BLOCK_N),
        Scaling(bias, a_scale, b_scale, alpha, A_SCALES, B_SCALES, C_N_MAJOR),
        Residual(c0_desc, beta, c0_ready), None, ACTIVATION, C_PARTS, C_BUFFERS, 1, None, C_N_MAJOR,
        peers, gl.cdiv(SHARED_SUMS * C_PARTS, BLOCK_N), None,
    )  # fmt: skip
    GATHERS: gl.constexpr = own_desc is not None and not SCATTER
    REGISTERS: gl.constexpr = ONE_WARP_GATHERS if GATHERS else ONE_WARP
    gdc_launch_dependents()
    # The arguments are written out: a tuple in a variable would turn constants into values.
    if ASKED:
        gl.warp_specialize(
            [
                (store, (epilogue, accumulators, tickets)),
                (multiply, (ring, accumulators, tickets)),
                (load, (operands, ring, tickets)),
                (ask, (tickets,)),
            ],
            [1, 1, 1],
            [ONE_WARP, ONE_WARP, ONE_WARP],
        )
    else:
        gl.warp_specialize(
            [
                (store, (epilogue, accumulators, tickets)),
                (multiply, (ring, accumulators, tickets)),
                (load, (operands, ring, tickets)),
            ],
            [1, 1],
            [REGISTERS, REGISTERS],
        )


@gluon.jit
def ring_of(a_tiles, b_tiles, scales, STAGES: gl.constexpr, PAIR: gl.constexpr):
    """A ring of these buffers, which tensor cores free, with its barriers; see `Ring`.

    The products of a pair wait for the tiles of both of its blocks. A buffer is free when all have
    read it who share one of its tiles: the blocks of the cluster, or its pairs.
    """
    COMMITS: gl.constexpr = gl.num_ctas() // 2 if PAIR else gl.num_ctas()
    ready = mbarrier.allocate_mbarrier(batch=STAGES, two_ctas=PAIR)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    for each in gl.static_range(STAGES):
        mbarrier.init(ready.index(each), count=1)
        mbarrier.init(free.index(each), count=COMMITS)
    return Ring(
        a_tiles, b_tiles, ready, free, STAGES, 1, a_tiles.shape[2], b_tiles.shape[2], 1, False,
        None, None, None, None, scales,
    )  # fmt: skip


@gluon.jit
def accumulators_of(element_type: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
                    NUMBER: gl.constexpr, PAIR: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Accumulators for products of that type, with their barriers; see `Accumulators`."""
    TYPE: gl.constexpr = gl.int32 if element_type == gl.int8 else gl.float32
    TILE: gl.constexpr = sums_layout(ROWS, COLUMNS, gl.num_ctas(), PAIR)
    LAYOUT: gl.constexpr = None if SHARED == 0 else TILE
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
    return Accumulators(memory, ready, free, NUMBER, LAYOUT, COLUMNS, SHARED)
