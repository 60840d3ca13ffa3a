"""C = A @ B on Hopper with one warp for the copies and up to three warpgroups for the products.

A thread block stays on its SM and makes tile after tile (a *persistent* kernel); which ones, the
`scheduler` says. Its warps have different tasks (*warp specialization*): a producer warp copies
tiles of A and B into the buffers of a `pipeline`; each consumer warpgroup multiplies its rows of A
with all of B, and its rows of C leave through the `epilogue`. The consumers run independently of
each other: while one stores its part of C, the other keeps the tensor cores busy, and the producer
fills the pipeline for the next tile.

Two consumers may also take turns (*ping-pong*): each multiplies a whole tile, and stores it while
the other multiplies the next. The pipeline alone does not keep their order: a barrier's phase tells
only odd turns of the pipeline from even ones, so a consumer also waits for its turn.

The blocks of a cluster share the tile of B, and those side by side in it the tile of A (`cluster_n`
above 1); or they divide K among them (`cluster_k` above 1): then each has sums of a whole tile, and
they add them up by an `exchange`.

A tile need not be as wide as a power of two: its right operand lies in several *units* then, which
one instruction reads (`wgmma`).

The kernel may start while the one before it in the stream ends (programmatic dependent launch): it
sets up its barriers meanwhile, and every role waits for the other kernel before it touches memory.

"A" here is the left operand. For a C with few rows, the caller swaps A and B, and C comes out
transposed: then `C_N_MAJOR` is false.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from triton_ext.compat import aggregate, cluster_barrier, reinterpret
from triton_ext.kernels.device.epilogue import epilogue_of
from triton_ext.kernels.device.exchange import Exchange
from triton_ext.kernels.device.fp32_scales import fp32_scales_of
from triton_ext.kernels.device.groups import groups_of
from triton_ext.kernels.device.last_tile import LastPieces
from triton_ext.kernels.device.matrices import (
    is_batched,
    matrix_size,
    prefetch_descriptors,
    ranks_of,
)
from triton_ext.kernels.device.peers import peers_of, products_of
from triton_ext.kernels.device.pipeline import Operands, allocate_barriers, pipeline_of
from triton_ext.kernels.device.row_gather import row_gather_of
from triton_ext.kernels.device.scheduler import Tiling
from triton_ext.kernels.device.staged_scales import staged_scales_of
from triton_ext.kernels.device.sums import multiply_range, partial_sums, piece_of, zero_sums

LAUNCH_DEPENDENTS = gl.constexpr("""{
    .reg .pred early;
    setp.ne.b32 early, $1, 0;
    @early griddepcontrol.launch_dependents;
    mov.b32 $0, 0;
    }""")
WAIT = gl.constexpr("""{
    .reg .pred known;
    setp.ge.s32 known, $1, 0;
    @known griddepcontrol.wait;
    mov.b32 $0, 0;
    }""")
STORED_AFTER = gl.constexpr(4)
"""Products of tiles after which the tile before is stored, mostly: a microsecond or two."""
EARLY_BYTES = gl.constexpr(1.0e5)
"""What a block loads in the time that an early start gains (about 1000 cycles at 58 bytes), over
how much faster loads are when all SMs but one are idle (0.6). A guess from few measurements."""


@gluon.constexpr_function
def overlap(rows, allowed, together):
    """The rows or columns at whose multiples a tile that overlaps others begins, or 0.

    Copies of boxes that begin at other than a multiple of 16 bytes along the contiguous dimension
    end in an illegal instruction.

    Args:
        rows: they are rows of all matrices in memory: none is contiguous along this dimension.
        together: how many have one scale, which must be whole.
    """
    return max(together, 1 if rows else 8) if allowed else 0


@gluon.jit
def fill_with_zeros(tiles, ROWS: gl.constexpr, STAGES: gl.constexpr, stages):
    """The tiles of A of the first stages, of which rows will not be copied: the tensor cores read
    zeros there.
    """
    COLUMNS: gl.constexpr = tiles.shape[2]
    TILES: gl.constexpr = tiles.shape[0] * tiles.shape[1] // ROWS
    ANY: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])  # zeros are zeros in each layout
    CHUNK: gl.constexpr = 128 // tiles.dtype.primitive_bitwidth  # 16 bytes a thread
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, CHUNK], [4, 8], [gl.num_warps(), 1], [1, 0])
    zero = gl.zeros((ROWS, COLUMNS), tiles.dtype, LAYOUT)
    whole = reinterpret(tiles, tiles.dtype, [TILES, ROWS, COLUMNS], ANY)
    for i in range(stages * (TILES // STAGES)):
        whole.index(i).store(zero)


@aggregate
class Turns:
    """Which consumer may multiply, where each makes tiles of its own.

    Attributes:
        barriers: one for each consumer, which completes when its turn begins.
        NUMBER: how many consumers take turns; 1 if they share all tiles.
    """

    barriers: gl.shared_memory_descriptor
    NUMBER: gl.constexpr

    @gluon.jit
    def wait(self, step, WHICH: gl.constexpr):
        """Wait for the turn in which a step is made; the first is the first consumer's."""
        if self.NUMBER > 1:
            mbarrier.wait(self.barriers.index(WHICH), (step // self.NUMBER & 1) ^ (WHICH == 0))

    @gluon.jit
    def end(self, WHICH: gl.constexpr):
        """The next one may begin."""
        if self.NUMBER > 1:
            mbarrier.arrive(self.barriers.index((WHICH + 1) % self.NUMBER), count=1)


@gluon.jit
def wait_with(known):
    """Wait for the kernel before this one, and know a number then that is not negative.

    Left alone, compilers compute what comes after the wait after it, and divisions take time.
    """
    gl.inline_asm_elementwise(WAIT, "=r,r", [known], gl.int32, is_pure=False, pack=1)


@gluon.jit
def produce(operands, pipeline, tiling):
    """The producer warp: copy the tiles of A and B, as soon as their buffers are free."""
    if pipeline.PLAN.groups is None:
        produce_all(operands, pipeline, tiling)
    else:
        produce_groups(operands, pipeline, tiling)


@gluon.jit
def produce_groups(operands, pipeline, groups):
    """The same for tiles of groups."""
    gdc_wait()
    slot = pipeline.first()
    filled = gl.to_tensor(0)
    turn = groups.first()
    while turn.more:
        work = groups.work(turn)
        for k in range(work.k_end):
            pipeline.fill(slot, operands, work, k)
            slot = slot.next()
        filled += work.k_end
        turn = groups.next(turn)
    if pipeline.PLAN.tile.shares_tiles:
        pipeline.end(slot, filled)


@gluon.jit
def produce_scales(pipeline, tiling):
    """The warp that copies fp32 scales of the tiles."""
    gdc_wait()
    slot = pipeline.first()
    if pipeline.PLAN.groups is None:
        tiles = tiling.tiles_m * tiling.tiles_n
        for step in range(tiling.steps(tiles)):
            slot = pipeline.fill_scales(slot, tiling.work(step, tiles, False))
    else:
        turn = tiling.first()
        while turn.more:
            slot = pipeline.fill_scales(slot, tiling.work(turn))
            turn = tiling.next(turn)


@gluon.jit
def produce_rows(pipeline, groups):
    """The warps that copy rows of A from where indices say."""
    gdc_wait()
    slot = pipeline.first()
    turn = groups.first()
    while turn.more:
        slot = pipeline.rows.fill_tile(pipeline, slot, groups.work(turn))
        turn = groups.next(turn)


@gluon.jit
def produce_all(operands, pipeline, tiling):
    """The same without groups."""
    BATCHED: gl.constexpr = is_batched(operands.a)
    tiles = tiling.tiles_m * tiling.tiles_n
    if BATCHED:  # one operand may be shared by all
        of_b = operands.b.shape[0] // pipeline.PLAN.parts_of_b
        tiles *= gl.maximum(operands.a.shape[0], of_b)
    steps = tiling.steps(tiles)
    work = tiling.work(0, tiles, BATCHED)
    wait_with(steps | work.matrix | work.off_m | work.off_n | work.k_first | work.k_end)
    slot = pipeline.first()
    filled = gl.to_tensor(0)
    seen = gl.to_tensor(-1)
    for step in range(steps):
        if operands.gathers():
            seen = operands.peers.wait_for(seen, work, tiling)
        for k in range(work.k_first, work.k_end):
            pipeline.fill(slot, operands, work, k)
            slot = slot.next()
        filled += work.k_end - work.k_first
        work = tiling.work(step + 1, tiles, BATCHED)
    if pipeline.PLAN.tile.shares_tiles:
        pipeline.end(slot, filled)
    if operands.gathers():
        operands.peers.end(tiling)


@gluon.jit
def multiply(epilogue, reader, turns, tiling, slot, step, tiles, work, seen,
             WHICH: gl.constexpr):  # fmt: skip
    """The products of one tile. In a scatter whose consumers share tiles, the one before is handed
    over on the way, when its stores have had time; and what there is to add to this one is asked
    for late, when it may have come.
    """
    pipeline = reader.pipeline
    acc = zero_sums(pipeline)
    start = work.k_first
    if epilogue.PLAN.scatters:
        early = start
        if turns.NUMBER == 1:
            early = gl.minimum(work.k_end // 3, STORED_AFTER)
            acc, slot = multiply_range(acc, reader, work, slot, start, early, start, WHICH)
            hand_over_before(epilogue, pipeline, turns, tiling, step, tiles, WHICH)
        late = work.k_end * 2 // 3
        acc, slot = multiply_range(acc, reader, work, slot, early, late, start, WHICH)
        seen = epilogue.receive(seen, work, tiling, WHICH)
        acc, slot = multiply_range(acc, reader, work, slot, late, work.k_end, start, WHICH)
    else:
        acc, slot = multiply_range(acc, reader, work, slot, start, work.k_end, start, WHICH)
    turns.end(WHICH)
    acc = acc.wait(pipeline.PLAN.product)
    if partial_sums(pipeline.PLAN.product) == 0:
        reader.release(slot.previous(), True)
    return acc, slot, seen


@gluon.jit
def hand_over_before(epilogue, pipeline, turns, tiling, step, tiles, WHICH: gl.constexpr):
    """Count the tile that a consumer made before this step, if there is one."""
    FIRST: gl.constexpr = WHICH // pipeline.PLAN.tile.sharing_consumers
    ROW: gl.constexpr = (
        WHICH % pipeline.PLAN.tile.sharing_consumers * epilogue.pieces.tiles.shape[1]
    )
    if step > FIRST:
        epilogue.peers.hand_over(tiling.work(step - turns.NUMBER, tiles, True, ROW), tiling)


@gluon.jit
def others_products(tiling, step, tiles):
    """Products of tiles that the other consumer makes in the step after this one, in its turn."""
    products = tiling.num_k
    if tiling.MAX_SPLITS > 1:
        work = tiling.work(step + 1, tiles, False)
        products = work.k_end - work.k_first
    return products


@gluon.jit
def consume(epilogue, pipeline, turns, tiling, WHICH: gl.constexpr):
    """A consumer warpgroup: its rows of each tile of C, or all rows of every other tile, if
    consumers take turns.
    """
    if pipeline.PLAN.groups is None:
        consume_all(epilogue, pipeline, turns, tiling, WHICH)
    else:
        consume_groups(epilogue, pipeline, turns, tiling, WHICH)


@gluon.jit
def left_out(groups, turn, slot, turns):
    """The turn and the slot after those of the other consumer's tile, where consumers take
    turns.
    """
    if turns.NUMBER > 1:
        slot = slot.after(gl.where(turn.more, groups.work(turn).k_end, 0))
        turn = groups.next(turn)
    return turn, slot


@gluon.jit
def consume_groups(epilogue, pipeline, turns, groups, WHICH: gl.constexpr):
    """The same for tiles of groups."""
    FIRST: gl.constexpr = WHICH // pipeline.PLAN.tile.sharing_consumers
    ROW: gl.constexpr = (
        WHICH % pipeline.PLAN.tile.sharing_consumers * epilogue.pieces.tiles.shape[1]
    )
    slot = pipeline.first()
    reader = pipeline.reader()
    if WHICH == 0:
        gdc_launch_dependents()
    gdc_wait()
    turn = groups.first()
    step = gl.to_tensor(FIRST)
    if FIRST > 0:
        turn, slot = left_out(groups, turn, slot, turns)
    while turn.more:
        work = groups.work(turn, ROW)
        found = epilogue.begin(work, WHICH)
        turns.wait(step, WHICH)
        acc = zero_sums(pipeline)
        acc, slot = multiply_range(acc, reader, work, slot, 0, work.k_end, 0, WHICH)
        turns.end(WHICH)
        acc = acc.wait(pipeline.PLAN.product)
        if partial_sums(pipeline.PLAN.product) == 0:
            reader.release(slot.previous(), work.k_end > 0)
        epilogue.finish(acc, work, found, 0, False, WHICH)
        turn = groups.next(turn)
        step += turns.NUMBER
        turn, slot = left_out(groups, turn, slot, turns)
    tma.store_wait(0)


@gluon.jit
def consume_all(epilogue, pipeline, turns, tiling, WHICH: gl.constexpr):
    """The same without groups."""
    BATCHED: gl.constexpr = is_batched(epilogue.pieces.desc)
    FIRST: gl.constexpr = WHICH // pipeline.PLAN.tile.sharing_consumers
    ROW: gl.constexpr = (
        WHICH % pipeline.PLAN.tile.sharing_consumers * epilogue.pieces.tiles.shape[1]
    )
    tiles = tiling.tiles_m * tiling.tiles_n
    if BATCHED:
        tiles *= products_of(epilogue.pieces.desc, epilogue.peers)
    slot = pipeline.first()
    reader = pipeline.reader()
    residual_phase = gl.to_tensor(0)
    seen = gl.to_tensor(-1)
    if WHICH == 0:
        start_next(pipeline, tiling)
    if FIRST > 0:
        slot = slot.after(others_products(tiling, -1, tiles))
    gdc_wait()
    steps = tiling.steps(tiles)
    for step in range(FIRST, steps, turns.NUMBER):
        work = tiling.work(step, tiles, BATCHED, ROW)
        vectors = epilogue.begin(work, WHICH)
        if epilogue.PLAN.scatters and turns.NUMBER > 1:  # before it waits for others, see `peers`
            hand_over_before(epilogue, pipeline, turns, tiling, step, tiles, WHICH)
        turns.wait(step, WHICH)
        acc, slot, seen = multiply(
            epilogue, reader, turns, tiling, slot, step, tiles, work, seen, WHICH
        )
        if turns.NUMBER > 1:
            slot = slot.after(others_products(tiling, step, tiles))
        is_last = step + 1 == steps
        if turns.NUMBER > 1:  # the other consumer may still read what this tile has not refilled
            is_last &= work.k_end - work.k_first >= pipeline.PLAN.tile.stages
        residual_phase = epilogue.finish(acc, work, vectors, residual_phase, is_last, WHICH)
    if epilogue.PLAN.scatters:
        end = (steps - FIRST + turns.NUMBER - 1) // turns.NUMBER * turns.NUMBER
        hand_over_before(epilogue, pipeline, turns, tiling, FIRST + end, tiles, WHICH)
        epilogue.peers.end(tiling)
    tma.store_wait(0)


@gluon.jit
def start_next(pipeline, tiling):
    """Let the next kernel start, unless so few blocks load so much that it had better wait.

    Blocks of a kernel that starts early take the SMs that this one leaves idle, and then those of
    blocks that end: they do not spread evenly over the GPU any more, and those in the fullest GPCs
    have the least bandwidth (up to 9 % slower, seen). Where two blocks find room on each TPC's SMs
    they do; where few SMs are idle, or little is loaded, an early start gains more. Clusters begin
    later anyway: a late start cost them 1 us, seen.
    """
    if gl.num_ctas() > 1:
        gdc_launch_dependents()
    else:
        BYTES: gl.constexpr = pipeline.a_tiles.dtype.primitive_bitwidth // 8
        STEP_BYTES: gl.constexpr = (
            (tiling.BLOCK_M + tiling.BLOCK_N) * pipeline.PLAN.tile.block_k * BYTES
        )
        sms = gl.inline_asm_elementwise(
            "mov.u32 $0, %nsmid;", "=r", [], gl.int32, is_pure=True, pack=1
        )
        blocks = gl.num_programs(0)
        loaded = tiling.num_k.to(gl.float32) * STEP_BYTES * (sms - blocks).to(gl.float32)
        late = (2 * blocks > sms) & (loaded > sms.to(gl.float32) * EARLY_BYTES)
        gl.inline_asm_elementwise(
            LAUNCH_DEPENDENTS, "=r,r", [gl.where(late, 0, 1)], gl.int32, is_pure=False, pack=1
        )


@gluon.jit(do_not_specialize=(
    "group", "first_chunk", "ranks", "piece_rows", "left_step", "right_step"))  # fmt: skip
def matmul_warp_specialized(
        a_desc, b_desc, c_desc, box_descs, c0_desc, own_desc, group, first_chunk, ranks, piece_rows,
        left_step, right_step, values, PLAN: gl.constexpr):  # fmt: skip
    """The whole kernel: barriers and buffers, then a warp's task each.

    Args:
        a_desc, b_desc, c_desc: TMA descriptors of the left and the right operand, and of C.
        box_descs: once more of the right operand, with the box of its edge, and of C, with that of
            a block's last tile, as far as there are such.
        c0_desc: that of the residual, or of what the rank before has sent; or None.
        own_desc, first_chunk, ranks, piece_rows: see `Peers`; or None.
        group: see `Tiling`.
        left_step, right_step: see `ScaleMatrix`; or None.
        values: what `SpecializedPlan.values` names.
        PLAN: an `Sm90Plan`.
    """
    TILE: gl.constexpr = PLAN.tile
    RANKS: gl.constexpr = ranks_of((a_desc, b_desc, c_desc) + box_descs)  # noqa: RUF005 (Triton has no *)
    prefetch_descriptors("matmul_warp_specialized", RANKS)
    ROWS: gl.constexpr = PLAN.block_m // TILE.sharing_consumers
    C_COLUMNS: gl.constexpr = PLAN.block_n // TILE.c_parts
    N_MAJOR: gl.constexpr = not TILE.swap_ab
    size_m = matrix_size(c_desc, 0 if N_MAJOR else 1).to(gl.int32)
    size_n = matrix_size(c_desc, 1 if N_MAJOR else 0).to(gl.int32)
    k_extent = matrix_size(a_desc, 1 if PLAN.left_k_major else 0)
    num_k = gl.cdiv(k_extent, TILE.block_k * TILE.cluster_k)
    tiling = Tiling(
        size_m, size_n, gl.cdiv(size_m, PLAN.block_m), gl.cdiv(size_n, PLAN.c_columns), num_k,
        group, PLAN.block_m, PLAN.c_columns, TILE.split_k,
        overlap(PLAN.left_k_major and N_MAJOR, c0_desc is None, PLAN.scaled_together[0]),
        overlap(PLAN.right_k_major and not N_MAJOR, c0_desc is None, PLAN.scaled_together[1]),
    )  # fmt: skip

    a_tiles = gl.allocate_shared_memory(
        a_desc.dtype,
        [TILE.stages * TILE.sharing_consumers, TILE.cluster_k * ROWS, TILE.block_k],
        PLAN.left,
    )
    UNITS: gl.constexpr = gl.cdiv(PLAN.block_n, PLAN.unit[1]) * (TILE.block_k // PLAN.unit[0])
    b_tiles = gl.allocate_shared_memory(
        b_desc.dtype, [TILE.stages * UNITS, PLAN.unit[0], PLAN.unit[1]], PLAN.right
    )
    c_tiles = gl.allocate_shared_memory(
        c_desc.dtype, [TILE.consumers * TILE.c_buffers, ROWS, C_COLUMNS], PLAN.c
    )
    scales = fp32_scales_of(values, size_m, size_n, num_k, left_step, right_step, PLAN)
    rows = row_gather_of(
        values, b_desc if TILE.swap_ab else a_desc, b_tiles if TILE.swap_ab else a_tiles, PLAN
    )
    pipeline = pipeline_of(a_tiles, b_tiles, staged_scales_of(scales, PLAN), rows, PLAN)
    if TILE.loaded_rows > 0:
        used = TILE.stages
        if not is_batched(c_desc):
            steps = tiling.steps(tiling.tiles_m * tiling.tiles_n)
            used = gl.minimum(TILE.stages, num_k * steps)
        fill_with_zeros(a_tiles, ROWS, TILE.stages, used)
    PIECES: gl.constexpr = TILE.consumers * TILE.c_parts
    if TILE.cluster_k == 1:
        exchange: gl.constexpr = None
    else:
        parts = gl.allocate_shared_memory(
            gl.int32 if a_desc.dtype.is_int() else gl.float32,
            [PIECES, TILE.cluster_k, ROWS, C_COLUMNS], PLAN.exchange,
        )  # fmt: skip
        exchange = Exchange(parts, allocate_barriers(PIECES, 1), PLAN.exchanged)
    TURNS: gl.constexpr = TILE.consumers // TILE.sharing_consumers
    turns = Turns(allocate_barriers(TILE.consumers, 1) if TURNS > 1 else pipeline.free, TURNS)
    if c0_desc is None:
        c0_ready: gl.constexpr = None
    else:
        c0_ready = allocate_barriers(PIECES, 1)
    if PLAN.last is None:
        last: gl.constexpr = None
    else:
        last = LastPieces(
            box_descs[len(box_descs) - 1], a_tiles, PLAN.last_layout, TILE.columns, PLAN.last,
            TILE.cluster_n,
        )  # fmt: skip
    if PLAN.boxes[2] is None:
        edge_desc: gl.constexpr = None
    else:
        edge_desc = box_descs[0]
    fence_async_shared()
    if TILE.shares_tiles:  # Triton does not see that others arrive at this block's barriers
        gl.inline_asm("fence.mbarrier_init.release.cluster;", "", ())
        cluster_barrier(relaxed=True)

    WAITING: gl.constexpr = gl.num_ctas() * (4 * TILE.consumers if PLAN.scatters else 1)
    peers = peers_of(
        own_desc, values, first_chunk, ranks, piece_rows,
        gl.num_ctas() * TILE.sharing_consumers, WAITING, PLAN,
    )  # fmt: skip
    operands = Operands(a_desc, b_desc, edge_desc, peers, PLAN)
    LAYOUT: gl.constexpr = piece_of(
        C_COLUMNS, a_desc.dtype, gl.num_ctas(), TILE.cluster_n, TILE.cluster_k
    )
    PIECE: gl.constexpr = LAYOUT if PLAN.asks_early else None
    epilogue = epilogue_of(c_desc, c_tiles, c0_desc, c0_ready, values, exchange, peers, last, PIECE,
                           0, PLAN)  # fmt: skip
    if PLAN.groups is not None:
        tiling = groups_of(values, tiling, a_desc, b_desc, c_desc, k_extent, PLAN)
    # The arguments are written out: a tuple in a variable would turn constants into values.
    SCALED: gl.constexpr = PLAN.fp32_scales is not None
    GATHERED: gl.constexpr = PLAN.gathered is not None
    REGISTERS: gl.constexpr = PLAN.registers[0]
    COPYING: gl.constexpr = PLAN.registers[1]
    if TILE.consumers == 1:
        gl.warp_specialize(
            [
                (consume, (epilogue, pipeline, turns, tiling, 0)),
                (produce, (operands, pipeline, tiling)),
            ]
            + ([(produce_scales, (pipeline, tiling))] if SCALED else [])
            + ([(produce_rows, (pipeline, tiling))] if GATHERED else []),
            [1] + ([1] if SCALED else []) + ([2] if GATHERED else []),
            [COPYING] + ([COPYING] if SCALED else []) + ([COPYING] if GATHERED else []),
        )
    elif TILE.consumers == 2:
        gl.warp_specialize(
            [
                (consume, (epilogue, pipeline, turns, tiling, 0)),
                (consume, (epilogue, pipeline, turns, tiling, 1)),
                (produce, (operands, pipeline, tiling)),
            ]
            + ([(produce_scales, (pipeline, tiling))] if SCALED else [])
            + ([(produce_rows, (pipeline, tiling))] if GATHERED else []),
            [4, 1] + ([1] if SCALED else []) + ([2] if GATHERED else []),
            [REGISTERS, COPYING] + ([COPYING] if SCALED else []) + ([COPYING] if GATHERED else []),
        )
    else:
        gl.warp_specialize(
            [
                (consume, (epilogue, pipeline, turns, tiling, 0)),
                (consume, (epilogue, pipeline, turns, tiling, 1)),
                (consume, (epilogue, pipeline, turns, tiling, 2)),
                (produce, (operands, pipeline, tiling)),
            ]
            + ([(produce_scales, (pipeline, tiling))] if SCALED else [])
            + ([(produce_rows, (pipeline, tiling))] if GATHERED else []),
            [4, 4, 1] + ([1] if SCALED else []) + ([2] if GATHERED else []),
            [REGISTERS, REGISTERS, COPYING]
            + ([COPYING] if SCALED else [])
            + ([COPYING] if GATHERED else []),
        )
