"""C = A @ B on Hopper with one warp for the copies and up to three warpgroups for the products.

A thread block stays on its SM and makes tile after tile (a *persistent* kernel). Its warps have
different tasks (*warp specialization*): a producer warp copies tiles of A and B into a ring of
`STAGES` buffers by TMA; each consumer warpgroup multiplies its rows of A with all of B, and stores
its rows of C. Two mbarriers a stage connect them: `ready` (the copies have arrived) and `free` (all
consumers have read them). The consumers run independently of each other: while one stores its part
of C, the other keeps the tensor cores busy, and the producer fills the ring for the next tile.

With `MAX_SPLITS` above 1, the tiles of a last wave that would leave blocks idle are cut along K
into parts. The blocks that make them leave theirs in the workspace, but for the last that comes:
it adds all, in the order of K, and stores the tile. The order is the same in every run, and with
it the result. All blocks of the wave walk through K at the same pace and find each other's
tiles of A and B in the L2 cache (a finer division, "stream-K", was measured: where blocks are at
different places of K, B comes from memory several times, and a product of 512x6144x4096 took 2.3
times as long).

Two consumers may also take turns (`SHARES` = 1, *ping-pong*): each multiplies a whole tile, and
stores it while the other multiplies the next. The ring alone does not keep their order: a barrier's
phase tells only odd turns of the ring from even ones, so a consumer also waits for its turn.

A tile need not be as wide as a power of two: `NARROW_N` of its columns are a second tile of the right
operand, with accumulators of their own.

Two blocks of a cluster may share the tile of B: one of them copies it to both (*multicast*), once
the consumers of both have read what was there before.

The kernel may start while the one before it in the stream ends (programmatic dependent launch): it
sets up its barriers meanwhile, and every role waits for the other kernel before it touches memory.

"A" here is the left operand. For a C with few rows, the caller swaps A and B, and C comes out
transposed: then `C_N_MAJOR` is false, and the tile is stored with its first dimension contiguous.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from triton_ext.compat import async_load, async_store, tma_view

COUNTER_BYTES = gl.constexpr(8192)
"""Of the workspace: counters of the tiles that several blocks share; the partial tiles follow."""


@gluon.constexpr_function
def cluster_rows(blocks):
    """The bases of a cluster whose blocks divide the rows of a tile among them."""
    return [[1 << i, 0] for i in range(blocks.bit_length() - 1)]


@gluon.constexpr_function
def shared_barrier(blocks):
    """The layout of a barrier that the first block of a cluster has for all."""
    return mbarrier.MBarrierLayout([[0]] * (blocks.bit_length() - 1))


@gluon.jit
def tile_position(tile, tiles_m, tiles_n, GROUP_M: gl.constexpr):
    """Row and column of a tile; see `matmul.tile_origin`."""
    group = tile // (GROUP_M * tiles_n)
    rows_in_group = gl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    inside = tile % (GROUP_M * tiles_n)
    return group * GROUP_M + inside % rows_in_group, inside // rows_in_group


@gluon.jit
def last_wave(tiles, num_k, MAX_SPLITS: gl.constexpr):
    """How the tiles that do not fill a wave are divided: (whole waves, tiles left, parts of each).

    A part has at least 4 products of tiles.
    """
    programs = gl.num_programs(0)
    waves = tiles // programs
    left = tiles - waves * programs
    splits = gl.minimum(programs // gl.maximum(left, 1), gl.minimum(MAX_SPLITS, num_k // 4))
    return waves, left, gl.maximum(splits, 1)


@gluon.jit
def step_count(tiles, num_k, MAX_SPLITS: gl.constexpr):
    """How many tiles, or parts of tiles, this block makes."""
    if MAX_SPLITS > 1:
        waves, left, splits = last_wave(tiles, num_k, MAX_SPLITS)
        steps = waves + gl.where(gl.program_id(0) < left * splits, 1, 0)
    else:
        steps = gl.cdiv(gl.maximum(tiles - gl.program_id(0), 0), gl.num_programs(0))
    return steps


@gluon.jit
def step_work(step, tiles, num_k, MAX_SPLITS: gl.constexpr):
    """The tile of a step, its range of K tiles, and of how many parts it is which.

    (tile, first, end, parts, part, distance of the blocks that make the tile's other parts)
    """
    program = gl.program_id(0)
    tile = program + step * gl.num_programs(0)
    k_first = 0
    k_end = num_k
    splits = 1
    split = 0
    left = 1
    if MAX_SPLITS > 1:
        waves, left, parts = last_wave(tiles, num_k, MAX_SPLITS)
        left = gl.maximum(left, 1)
        whole = (step < waves) | (parts == 1)
        splits = gl.where(whole, 1, parts)
        split = gl.where(whole, 0, program // left)
        tile = gl.where(whole, tile, waves * gl.num_programs(0) + program % left)
        k_first = split * num_k // splits
        k_end = (split + 1) * num_k // splits
    return tile, k_first, k_end, splits, split, left


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """The next buffer of the ring; the phase of its barriers flips at each turn."""
    last = stage == STAGES - 1
    return gl.where(last, 0, stage + 1), gl.where(last, phase ^ 1, phase)


@gluon.jit
def stage_after(stage, phase, count, STAGES: gl.constexpr):
    """The buffer `count` turns later, and the phase of its barriers."""
    place = stage + count
    return place % STAGES, phase ^ (place // STAGES & 1)


@gluon.jit
def stage_before(stage, STAGES: gl.constexpr):
    """The buffer of the ring that comes before this one."""
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.constexpr_function
def is_batched(desc):
    """Whether a descriptor is that of a batch of matrices."""
    return len(desc.block_type.shape) == 3


@gluon.jit
def matrix_size(desc, dim: gl.constexpr):
    """Of the matrices that a descriptor is of."""
    return desc.shape[dim + 1 if is_batched(desc) else dim]


@gluon.jit
def tiles_of_batch(tiles, a_desc, b_desc):
    """The number of tiles of all matrices, of `tiles` each; one operand may be shared by all."""
    if is_batched(a_desc):
        tiles *= gl.maximum(a_desc.shape[0], b_desc.shape[0])
    return tiles


@gluon.jit
def matrix_of_tile(tile, tiles_m, tiles_n, desc):
    """Which matrix of the batch a tile is of, and which of its tiles."""
    matrix = 0
    if is_batched(desc):
        matrix = tile // (tiles_m * tiles_n)
        tile = tile % (tiles_m * tiles_n)
    return matrix, tile


@gluon.jit
def load_block(desc, matrix, first, second, barrier, target, multicast: gl.constexpr):
    """Start the copy of a block of a matrix; of the only one, where all products share it."""
    if is_batched(desc):
        which = gl.minimum(matrix, desc.shape[0] - 1)
        async_load(desc, [which, first, second], barrier, target, multicast=multicast)
    else:
        async_load(desc, [first, second], barrier, target, multicast=multicast)


@gluon.jit
def store_block(desc, matrix, first, second, source):
    """Start the copy of a block to a matrix."""
    if is_batched(desc):
        async_store(desc, [matrix, first, second], source)
    else:
        async_store(desc, [first, second], source)


@gluon.jit
def load_tile(desc, matrix, mn, k, barrier, tile, K_MAJOR: gl.constexpr):
    """Start the copy of an operand's tile, once for all blocks of the cluster that share it."""
    target = tma_view(tile, desc)
    if K_MAJOR:
        load_block(desc, matrix, mn, k, barrier, target, gl.num_ctas() > 1)
    else:
        load_block(desc, matrix, k, mn, barrier, target, gl.num_ctas() > 1)


@gluon.jit
def prefetch(pointer, desc, matrix, mn, k, BLOCK_MN: gl.constexpr, K: gl.constexpr):
    """Ask for BLOCK_MN rows from mn on of a K-major operand, K elements from k on, to be in the
    L2 cache.

    It changes nothing else: the kernel before this one may still write there.
    """
    BYTES: gl.constexpr = desc.dtype.primitive_bitwidth // 8
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    last = matrix_size(desc, 0).to(gl.int32) - 1
    rows = gl.minimum(mn + gl.arange(0, BLOCK_MN, LANES), last)
    size = gl.minimum(matrix_size(desc, 1).to(gl.int32) - k, K) * BYTES // 16 * 16
    if is_batched(desc):
        offsets = rows * desc.strides[1] + gl.minimum(matrix, desc.shape[0] - 1) * desc.strides[0]
    else:
        offsets = rows * desc.strides[0]
    places = pointer.to(gl.pointer_type(gl.int8)) + (offsets + k) * BYTES
    gl.inline_asm_elementwise(
        """{
        .reg .pred some;
        setp.gt.s32 some, $2, 0;
        @some cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.b32 $0, 0;
        }""",
        "=r,l,r", [places, gl.zeros_like(rows) + size], gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def produce(a_desc, b_desc, narrow_desc, prefetched, ring, tiling,
            BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, NARROW_N: gl.constexpr,
            BLOCK_K: gl.constexpr, SHARES: gl.constexpr, STAGES: gl.constexpr,
            GROUP_M: gl.constexpr, A_K_MAJOR: gl.constexpr, B_K_MAJOR: gl.constexpr,
            MAX_SPLITS: gl.constexpr, PREFETCH: gl.constexpr,
            PREFETCH_LEFT: gl.constexpr):  # fmt: skip
    """The producer warp: copy the tiles of A and B, as soon as their buffers are free."""
    a_tiles, b_tiles, narrow_tiles, ready, free, free_everywhere, _turns = ring
    tiles_m, tiles_n, num_k = tiling
    ROWS: gl.constexpr = BLOCK_M // SHARES
    side_bytes: gl.constexpr = narrow_desc.nbytes_per_cta if NARROW_N > 0 else 0
    tile_bytes: gl.constexpr = SHARES * a_desc.nbytes_per_cta + b_desc.nbytes_per_cta + side_bytes
    tiles = tiles_of_batch(tiles_m * tiles_n, a_desc, b_desc)
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    if prefetched is not None:
        tile, k_first, _, _, _, _ = step_work(0, tiles, num_k, MAX_SPLITS)
        matrix, tile = matrix_of_tile(tile, tiles_m, tiles_n, a_desc)
        tile_m, tile_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
        off_k = k_first * BLOCK_K
        if PREFETCH_LEFT:
            prefetch(prefetched, a_desc, matrix, tile_m * BLOCK_M, off_k, BLOCK_M, PREFETCH)
        else:
            off_n = tile_n * (BLOCK_N + NARROW_N)
            prefetch(prefetched, b_desc, matrix, off_n, off_k, BLOCK_N, PREFETCH)
    gdc_wait()
    for step in range(step_count(tiles, num_k, MAX_SPLITS)):
        tile, k_first, k_end, _, _, _ = step_work(step, tiles, num_k, MAX_SPLITS)
        matrix, tile = matrix_of_tile(tile, tiles_m, tiles_n, a_desc)
        tile_m, tile_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
        off_m = tile_m * BLOCK_M
        off_n = tile_n * (BLOCK_N + NARROW_N)
        for k in range(k_first, k_end):
            barrier = ready.index(stage)
            mbarrier.wait(free.index(stage), phase ^ 1)  # passes in the first turn
            if gl.num_ctas() > 1:
                mbarrier.wait(free_everywhere.index(stage), phase ^ 1)
            mbarrier.expect(barrier, tile_bytes)
            for part in gl.static_range(SHARES):
                load_tile(a_desc, matrix, off_m + part * ROWS, k * BLOCK_K, barrier,
                          a_tiles.index(stage * SHARES + part), A_K_MAJOR)  # fmt: skip
            load_tile(b_desc, matrix, off_n, k * BLOCK_K, barrier, b_tiles.index(stage),
                      B_K_MAJOR)  # fmt: skip
            if NARROW_N > 0:
                load_tile(narrow_desc, matrix, off_n + BLOCK_N, k * BLOCK_K, barrier,
                          narrow_tiles.index(stage), B_K_MAJOR)  # fmt: skip
            stage, phase = next_stage(stage, phase, STAGES)


@gluon.jit
def release(free, free_everywhere, stage, pred):
    """A consumer has read the stage: tell the producers whose copies wait for it."""
    mbarrier.arrive(free.index(stage), count=1, pred=pred)
    if gl.num_ctas() > 1:
        mbarrier.arrive(free_everywhere.index(stage), count=1, pred=pred)


@gluon.jit
def multiply(ring, stage, phase, k_first, k_end, acc, side,
             WHICH: gl.constexpr, NARROW_N: gl.constexpr, CONSUMERS: gl.constexpr,
             SHARES: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """The products of one tile; each is issued while the one before it runs."""
    a_tiles, b_tiles, narrow_tiles, ready, free, free_everywhere, turns = ring
    for k in range(k_first, k_end):
        mbarrier.wait(ready.index(stage), phase)
        a_tile = a_tiles.index(stage * SHARES + WHICH % SHARES)
        acc = warpgroup_mma(a_tile, b_tiles.index(stage), acc, is_async=True)
        if NARROW_N > 0:
            side = warpgroup_mma(a_tile, narrow_tiles.index(stage), side, is_async=True)
            acc, side = warpgroup_mma_wait(2, deps=(acc, side))
        else:
            acc = warpgroup_mma_wait(1, deps=(acc,))
        release(free, free_everywhere, stage_before(stage, STAGES), k > k_first)
        stage, phase = next_stage(stage, phase, STAGES)
    if SHARES < CONSUMERS:
        mbarrier.arrive(turns.index((WHICH + 1) % CONSUMERS), count=1)
    if NARROW_N > 0:
        acc, side = warpgroup_mma_wait(0, deps=(acc, side))
    else:
        acc = warpgroup_mma_wait(0, deps=(acc,))
    release(free, free_everywhere, stage_before(stage, STAGES), True)
    return acc, side, stage, phase


@gluon.jit
def split_columns(x, PARTS: gl.constexpr):
    """A tile of registers as PARTS tiles, side by side; no data moves."""
    parts = (x,)
    for _ in gl.static_range(PARTS.bit_length() - 1):
        halves = ()
        for i in gl.static_range(len(parts)):
            part = parts[i]
            halved = part.reshape(part.shape[0], 2, part.shape[1] // 2)
            halves += halved.permute(0, 2, 1).split()
        parts = halves  # type: ignore[assignment]
    return parts


@gluon.jit
def activated(x, ACTIVATION: gl.constexpr):
    """The activation function of that name, as PyTorch defines it by default."""
    if ACTIVATION == "relu":
        x = gl.where(x < 0, 0.0, x)  # keeps NaN
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + gl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "silu":
        x = x / (1.0 + gl.exp(-x))
    return x


@gluon.jit
def along(pointer, off, size, OF_N: gl.constexpr, EACH: gl.constexpr, N_IS_COLUMN: gl.constexpr,
          SHAPE: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """A vector along N (or M) of C, fp32, to be combined with a piece of the tile at `off`.

    EACH is 1 if every row or column has its own element, 0 if they share one.
    """
    DIM: gl.constexpr = 1 if OF_N == N_IS_COLUMN else 0
    places = off[DIM] + gl.arange(0, SHAPE[DIM], gl.SliceLayout(1 - DIM, LAYOUT))
    values = gl.load(pointer + places * EACH, mask=places < size[DIM], other=0.0).to(gl.float32)
    return gl.expand_dims(values, 1 - DIM)


@gluon.jit
def finished(x, extras, c0_tile, beta, off, size, ACTIVATION: gl.constexpr,
             A_SCALES: gl.constexpr, B_SCALES: gl.constexpr, N_IS_COLUMN: gl.constexpr,
             LAYOUT: gl.constexpr):  # fmt: skip
    """activation(x * alpha * scales of A * scales of B + bias + beta * C0), of what is asked for.

    C0 is in shared memory, c0_tile.
    """
    bias, a_scale, b_scale, alpha = extras
    SHAPE: gl.constexpr = x.shape
    if alpha is not None:
        x = x.to(gl.float32) * alpha
    if a_scale is not None:
        scale = along(a_scale, off, size, False, A_SCALES, N_IS_COLUMN, SHAPE, LAYOUT)
        x = x.to(gl.float32) * scale
    if b_scale is not None:
        scale = along(b_scale, off, size, True, B_SCALES, N_IS_COLUMN, SHAPE, LAYOUT)
        x = x.to(gl.float32) * scale
    if bias is not None:
        x = x.to(gl.float32) + along(bias, off, size, True, 1, N_IS_COLUMN, SHAPE, LAYOUT)
    if beta is not None:
        x = x.to(gl.float32) + c0_tile.load(LAYOUT).to(gl.float32) * beta
    return activated(x, ACTIVATION)


@gluon.jit
def part_pointers(workspace, slot, column, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
                  TILE_COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
    """Where a consumer leaves its part of a tile for others: of the columns from `column` on.

    Each 8x8 block of the tile is contiguous: a warp writes and reads one at a time.
    """
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    parts = workspace.to(gl.pointer_type(gl.int32)) + COUNTER_BYTES // 4
    start = parts + slot.to(gl.int64) * (ROWS * TILE_COLUMNS)
    by_row = rows // 8 * (8 * TILE_COLUMNS) + rows % 8 * 8
    by_column = columns // 8 * 64 + columns % 8
    return start + by_row[:, None] + by_column[None, :]


@gluon.jit
def leave_part(x, workspace, slot, column, TILE_COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Write x, from that column of this consumer's part of a tile on, to the workspace."""
    pointers = part_pointers(workspace, slot, column, x.shape[0], x.shape[1], TILE_COLUMNS, LAYOUT)
    gl.store(pointers, x.to(gl.int32, bitcast=True))


@gluon.jit
def last_to_come(workspace, acc, side, splits, split, distance, SHARE: gl.constexpr,
                 SHARES: gl.constexpr, NARROW_N: gl.constexpr, LAYOUT: gl.constexpr,
                 NARROW_LAYOUT: gl.constexpr):  # fmt: skip
    """Whether this consumer is the last that comes with a part of a tile.

    All others have left theirs in the workspace then. It waits for those alone that have said
    that they are about to: they run, so it cannot wait for ever.
    """
    program = gl.program_id(0)
    tile = program - split * distance
    coming = workspace.to(gl.pointer_type(gl.int32)) + 2 * (tile * SHARES + SHARE)
    there = coming + 1
    last = gl.atomic_add(coming, 1, sem="relaxed", scope="gpu") == splits - 1
    if last:
        arrived = gl.atomic_add(there, 0, sem="acquire", scope="gpu")
        while arrived < splits - 1:
            arrived = gl.atomic_add(there, 0, sem="acquire", scope="gpu")
        gl.atomic_xchg(coming, 0, sem="relaxed", scope="gpu")  # for the next launch
        gl.atomic_xchg(there, 0, sem="relaxed", scope="gpu")
    else:
        TILE_COLUMNS: gl.constexpr = acc.shape[1] + NARROW_N
        slot = program * SHARES + SHARE
        leave_part(acc, workspace, slot, 0, TILE_COLUMNS, LAYOUT)
        if NARROW_N > 0:
            leave_part(side, workspace, slot, acc.shape[1], TILE_COLUMNS, NARROW_LAYOUT)
        gl.barrier()  # all threads have written before one of them says so
        gl.atomic_add(there, 1, sem="release", scope="gpu")
    return last


@gluon.jit
def sum_of_parts(x, workspace, splits, split, distance, column, SHARE: gl.constexpr,
                 SHARES: gl.constexpr, TILE_COLUMNS: gl.constexpr,
                 LAYOUT: gl.constexpr):  # fmt: skip
    """x, columns of this block's part, and what the others left of them; in the order of K."""
    total = gl.zeros_like(x)
    for other in range(splits):
        slot = (gl.program_id(0) + (other - split) * distance) * SHARES + SHARE
        pointers = part_pointers(workspace, slot, column, x.shape[0], x.shape[1], TILE_COLUMNS,
                                 LAYOUT)  # fmt: skip
        mask = gl.full(x.shape, 1, gl.int1, LAYOUT) & (other != split)
        bits = gl.load(pointers, mask, x.to(gl.int32, bitcast=True), cache_modifier=".cg")
        total += bits.to(x.dtype, bitcast=True)
    return total


@gluon.jit
def load_residual(c0_desc, c_tiles, c0_ready, matrix, off_m, off_n,
                  FIRST: gl.constexpr, END: gl.constexpr, WHICH: gl.constexpr,
                  COLUMNS: gl.constexpr, PARTS: gl.constexpr, C_BUFFERS: gl.constexpr,
                  C_N_MAJOR: gl.constexpr):  # fmt: skip
    """Start the copies of a consumer's pieces FIRST to END of C0, once their buffers were read.

    They go where those pieces of C will be.
    """
    tma.store_wait(0)
    for i in gl.static_range(FIRST, END):
        barrier = c0_ready.index(WHICH * PARTS + i)
        mbarrier.expect(barrier, c0_desc.nbytes_per_cta)
        target = tma_view(c_tiles.index(WHICH * C_BUFFERS + i % C_BUFFERS), c0_desc)
        off = off_n + i * COLUMNS
        if C_N_MAJOR:
            load_block(c0_desc, matrix, off_m, off, barrier, target, False)
        else:
            load_block(c0_desc, matrix, off, off_m, barrier, target, False)


@gluon.constexpr_function
def stores_since(piece, parts, buffers):
    """How many pieces are stored after the one whose buffer a piece takes: a tile is stored in
    `parts` pieces, and each begins with the first buffer.
    """
    if piece >= buffers:
        return buffers - 1
    before = piece + (parts - 1 - piece) // buffers * buffers  # of the tile before
    return parts - 1 - before + piece


@gluon.jit
def store_tile(c_desc, c_tiles, workspace, extras, c0, matrix, off_m, off_n, pieces, splits, split,
               distance, WHICH: gl.constexpr, SHARES: gl.constexpr, C_BUFFERS: gl.constexpr,
               C_N_MAJOR: gl.constexpr, MAX_SPLITS: gl.constexpr, ACTIVATION: gl.constexpr,
               A_SCALES: gl.constexpr, B_SCALES: gl.constexpr,
               LAYOUT: gl.constexpr):  # fmt: skip
    """Registers -> swizzled shared memory -> C, a few columns at a time, and do not wait."""
    PARTS: gl.constexpr = len(pieces)
    COLUMNS: gl.constexpr = pieces[0].shape[1]
    size = (matrix_size(c_desc, 0 if C_N_MAJOR else 1), matrix_size(c_desc, 1 if C_N_MAJOR else 0))
    c0_desc, c0_ready, c0_phase, beta = c0
    for i in gl.static_range(PARTS):
        piece = gl.convert_layout(pieces[i], LAYOUT)
        if MAX_SPLITS > 1:
            piece = sum_of_parts(piece, workspace, splits, split, distance, i * COLUMNS,
                                 WHICH % SHARES, SHARES, PARTS * COLUMNS, LAYOUT)  # fmt: skip
        off = (off_m, off_n + i * COLUMNS)
        c_tile = c_tiles.index(WHICH * C_BUFFERS + i % C_BUFFERS)
        if c0_desc is not None:
            if i >= C_BUFFERS:
                load_residual(c0_desc, c_tiles, c0_ready, matrix, off_m, off_n, i, i + 1, WHICH,
                              COLUMNS, PARTS, C_BUFFERS, C_N_MAJOR)  # fmt: skip
            mbarrier.wait(c0_ready.index(WHICH * PARTS + i), c0_phase)
        piece = finished(piece, extras, c_tile, beta, off, size, ACTIVATION, A_SCALES, B_SCALES,
                         C_N_MAJOR, LAYOUT)  # fmt: skip
        if c0_desc is None:
            tma.store_wait(stores_since(i, PARTS, C_BUFFERS))  # the buffer has been read
        c_tile.store(piece.to(c_desc.dtype))
        fence_async_shared()
        if C_N_MAJOR:
            store_block(c_desc, matrix, off[0], off[1], tma_view(c_tile, c_desc))
        else:
            store_block(c_desc, matrix, off[1], off[0], tma_view(c_tile, c_desc))


@gluon.jit
def consume(c_desc, c_tiles, workspace, extras, residual, ring, tiling,
            WHICH: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
            NARROW_N: gl.constexpr, CONSUMERS: gl.constexpr, SHARES: gl.constexpr,
            STAGES: gl.constexpr, GROUP_M: gl.constexpr, C_PARTS: gl.constexpr,
            C_BUFFERS: gl.constexpr, C_N_MAJOR: gl.constexpr, MAX_SPLITS: gl.constexpr,
            ACTIVATION: gl.constexpr, A_SCALES: gl.constexpr,
            B_SCALES: gl.constexpr):  # fmt: skip
    """A consumer warpgroup: rows WHICH * BLOCK_M / CONSUMERS and on of each tile of C.

    Or, if there is one share, all rows of every other tile.
    """
    c0_desc, beta, c0_ready = residual
    tiles_m, tiles_n, num_k = tiling
    ROWS: gl.constexpr = BLOCK_M // SHARES
    TURNS: gl.constexpr = CONSUMERS // SHARES
    COLUMNS: gl.constexpr = BLOCK_N // C_PARTS
    PARTS: gl.constexpr = C_PARTS + NARROW_N // COLUMNS
    ACCUMULATOR: gl.constexpr = gl.int32 if ring[0].dtype.is_int() else gl.float32
    INSTR_K: gl.constexpr = 256 // ring[0].dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, INSTR_K],
        cga_layout=cluster_rows(gl.num_ctas()),
    )  # fmt: skip
    NARROW_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, max(NARROW_N, 8), INSTR_K],
        cga_layout=cluster_rows(gl.num_ctas()),
    )  # fmt: skip
    C_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, COLUMNS, INSTR_K],
        cga_layout=cluster_rows(gl.num_ctas()),
    )  # fmt: skip
    tiles = tiles_m * tiles_n
    if is_batched(c_desc):
        tiles *= c_desc.shape[0]
    stage = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    c0_phase = gl.to_tensor(0)
    FIRST: gl.constexpr = WHICH // SHARES
    if FIRST > 0:
        stage, phase = stage_after(stage, phase, FIRST * num_k, STAGES)
    gdc_wait()
    for step in range(FIRST, step_count(tiles, num_k, MAX_SPLITS), TURNS):
        tile, k_first, k_end, splits, split, distance = step_work(step, tiles, num_k, MAX_SPLITS)
        matrix, tile = matrix_of_tile(tile, tiles_m, tiles_n, c_desc)
        tile_m, tile_n = tile_position(tile, tiles_m, tiles_n, GROUP_M)
        off_m = tile_m * BLOCK_M + WHICH % SHARES * ROWS
        off_n = tile_n * (BLOCK_N + NARROW_N)
        if c0_desc is not None:  # noqa: SIM102 (known when the kernel is compiled)
            if splits == 1:
                load_residual(c0_desc, c_tiles, c0_ready, matrix, off_m, off_n, 0, C_BUFFERS,
                              WHICH, COLUMNS, PARTS, C_BUFFERS, C_N_MAJOR)  # fmt: skip
        acc = gl.zeros((ROWS, BLOCK_N), ACCUMULATOR, LAYOUT)
        side = acc  # not used without a side
        if NARROW_N > 0:
            side = gl.zeros((ROWS, NARROW_N), ACCUMULATOR, NARROW_LAYOUT)
        if TURNS > 1:  # the first turn is the first consumer's
            mbarrier.wait(ring[6].index(WHICH), (step // TURNS & 1) ^ (WHICH == 0))
        acc, side, stage, phase = multiply(ring, stage, phase, k_first, k_end, acc, side, WHICH,
                                           NARROW_N, CONSUMERS, SHARES, STAGES)  # fmt: skip
        if TURNS > 1:  # the others' tiles; a part of a tile is the last step
            stage, phase = stage_after(stage, phase, (TURNS - 1) * num_k, STAGES)
        complete = True
        if MAX_SPLITS > 1:  # noqa: SIM102 (known when the kernel is compiled; the next is not)
            if splits > 1:
                complete = last_to_come(workspace, acc, side, splits, split, distance,
                                        WHICH % SHARES, SHARES, NARROW_N, LAYOUT,
                                        NARROW_LAYOUT)  # fmt: skip
        if complete:
            if c0_desc is not None:  # noqa: SIM102
                if splits > 1:  # not before it is known who stores the tile
                    load_residual(c0_desc, c_tiles, c0_ready, matrix, off_m, off_n, 0, C_BUFFERS,
                                  WHICH, COLUMNS, PARTS, C_BUFFERS, C_N_MAJOR)  # fmt: skip
            pieces = split_columns(acc, C_PARTS)
            if NARROW_N > 0:
                pieces += split_columns(side, NARROW_N // COLUMNS)
            store_tile(c_desc, c_tiles, workspace, extras, (c0_desc, c0_ready, c0_phase, beta),
                       matrix, off_m, off_n, pieces, splits, split, distance, WHICH, SHARES,
                       C_BUFFERS, C_N_MAJOR, MAX_SPLITS, ACTIVATION, A_SCALES, B_SCALES,
                       C_LAYOUT)  # fmt: skip
            if c0_desc is not None:
                c0_phase ^= 1
    tma.store_wait(0)


@gluon.jit
def matmul_warp_specialized(
        a_desc, b_desc, c_desc, narrow_desc, workspace, bias, a_scale, b_scale, alpha, c0_desc, beta,
        prefetched, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, NARROW_N: gl.constexpr,
        BLOCK_K: gl.constexpr, CONSUMERS: gl.constexpr, SHARES: gl.constexpr,
        STAGES: gl.constexpr, GROUP_M: gl.constexpr,
        C_PARTS: gl.constexpr, C_BUFFERS: gl.constexpr,
        A_K_MAJOR: gl.constexpr, B_K_MAJOR: gl.constexpr, C_N_MAJOR: gl.constexpr,
        MAX_SPLITS: gl.constexpr, A_LAYOUT: gl.constexpr, B_LAYOUT: gl.constexpr,
        NARROW_LAYOUT: gl.constexpr, C_LAYOUT: gl.constexpr, ACTIVATION: gl.constexpr,
        A_SCALES: gl.constexpr, B_SCALES: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
        PREFETCH: gl.constexpr, PREFETCH_LEFT: gl.constexpr,
        num_warps: gl.constexpr):  # fmt: skip
    """The whole kernel: barriers and buffers, then a warp's task each."""
    ROWS: gl.constexpr = BLOCK_M // SHARES
    tiles_m = gl.cdiv(matrix_size(c_desc, 0 if C_N_MAJOR else 1), BLOCK_M)
    tiles_n = gl.cdiv(matrix_size(c_desc, 1 if C_N_MAJOR else 0), BLOCK_N + NARROW_N)
    num_k = gl.cdiv(matrix_size(a_desc, 1 if A_K_MAJOR else 0), BLOCK_K)

    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES * SHARES, ROWS, BLOCK_K], A_LAYOUT)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], B_LAYOUT)
    narrow_tiles = b_tiles  # not used without a side
    if NARROW_N > 0:
        narrow_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, NARROW_N], NARROW_LAYOUT)
    c_tiles = gl.allocate_shared_memory(
        c_desc.dtype, [CONSUMERS * C_BUFFERS, ROWS, BLOCK_N // C_PARTS], C_LAYOUT
    )
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    free_everywhere = free
    if gl.num_ctas() > 1:
        free_everywhere = gl.allocate_shared_memory(
            gl.int64, [STAGES, 1], shared_barrier(gl.num_ctas())
        )
    for each in gl.static_range(STAGES):
        mbarrier.init(ready.index(each), count=1)
        mbarrier.init(free.index(each), count=SHARES)
        if gl.num_ctas() > 1:
            mbarrier.init(free_everywhere.index(each), count=SHARES)
    turns = free
    if SHARES < CONSUMERS:
        turns = mbarrier.allocate_mbarrier(batch=CONSUMERS)
        for each in gl.static_range(CONSUMERS):
            mbarrier.init(turns.index(each), count=1)
    C0_PIECES: gl.constexpr = CONSUMERS * (C_PARTS + NARROW_N * C_PARTS // BLOCK_N)
    if c0_desc is None:
        c0_ready: gl.constexpr = None
    else:
        c0_ready = mbarrier.allocate_mbarrier(batch=C0_PIECES)
        for each in gl.static_range(C0_PIECES):
            mbarrier.init(c0_ready.index(each), count=1)
    fence_async_shared()

    ring = (a_tiles, b_tiles, narrow_tiles, ready, free, free_everywhere, turns)
    tiling = (tiles_m, tiles_n, num_k)
    gdc_launch_dependents()
    # Constants are written out: a tuple in a variable would turn them into values.
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume, (c_desc, c_tiles, workspace, (bias, a_scale, b_scale, alpha),
                           (c0_desc, beta, c0_ready), ring, tiling, 0, BLOCK_M, BLOCK_N, NARROW_N,
                           CONSUMERS, SHARES, STAGES, GROUP_M, C_PARTS, C_BUFFERS, C_N_MAJOR,
                           MAX_SPLITS, ACTIVATION, A_SCALES, B_SCALES)),
                (produce, (a_desc, b_desc, narrow_desc, prefetched, ring, tiling, BLOCK_M, BLOCK_N,
                           NARROW_N, BLOCK_K, SHARES, STAGES, GROUP_M, A_K_MAJOR, B_K_MAJOR,
                           MAX_SPLITS, PREFETCH, PREFETCH_LEFT)),
            ],
            [1],
            [24],
        )  # fmt: skip
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (consume, (c_desc, c_tiles, workspace, (bias, a_scale, b_scale, alpha),
                           (c0_desc, beta, c0_ready), ring, tiling, 0, BLOCK_M, BLOCK_N, NARROW_N,
                           CONSUMERS, SHARES, STAGES, GROUP_M, C_PARTS, C_BUFFERS, C_N_MAJOR,
                           MAX_SPLITS, ACTIVATION, A_SCALES, B_SCALES)),
                (consume, (c_desc, c_tiles, workspace, (bias, a_scale, b_scale, alpha),
                           (c0_desc, beta, c0_ready), ring, tiling, 1, BLOCK_M, BLOCK_N, NARROW_N,
                           CONSUMERS, SHARES, STAGES, GROUP_M, C_PARTS, C_BUFFERS, C_N_MAJOR,
                           MAX_SPLITS, ACTIVATION, A_SCALES, B_SCALES)),
                (produce, (a_desc, b_desc, narrow_desc, prefetched, ring, tiling, BLOCK_M, BLOCK_N,
                           NARROW_N, BLOCK_K, SHARES, STAGES, GROUP_M, A_K_MAJOR, B_K_MAJOR,
                           MAX_SPLITS, PREFETCH, PREFETCH_LEFT)),
            ],
            [4, 1],
            [CONSUMER_REGISTERS, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume, (c_desc, c_tiles, workspace, (bias, a_scale, b_scale, alpha),
                           (c0_desc, beta, c0_ready), ring, tiling, 0, BLOCK_M, BLOCK_N, NARROW_N,
                           CONSUMERS, SHARES, STAGES, GROUP_M, C_PARTS, C_BUFFERS, C_N_MAJOR,
                           MAX_SPLITS, ACTIVATION, A_SCALES, B_SCALES)),
                (consume, (c_desc, c_tiles, workspace, (bias, a_scale, b_scale, alpha),
                           (c0_desc, beta, c0_ready), ring, tiling, 1, BLOCK_M, BLOCK_N, NARROW_N,
                           CONSUMERS, SHARES, STAGES, GROUP_M, C_PARTS, C_BUFFERS, C_N_MAJOR,
                           MAX_SPLITS, ACTIVATION, A_SCALES, B_SCALES)),
                (consume, (c_desc, c_tiles, workspace, (bias, a_scale, b_scale, alpha),
                           (c0_desc, beta, c0_ready), ring, tiling, 2, BLOCK_M, BLOCK_N, NARROW_N,
                           CONSUMERS, SHARES, STAGES, GROUP_M, C_PARTS, C_BUFFERS, C_N_MAJOR,
                           MAX_SPLITS, ACTIVATION, A_SCALES, B_SCALES)),
                (produce, (a_desc, b_desc, narrow_desc, prefetched, ring, tiling, BLOCK_M, BLOCK_N,
                           NARROW_N, BLOCK_K, SHARES, STAGES, GROUP_M, A_K_MAJOR, B_K_MAJOR,
                           MAX_SPLITS, PREFETCH, PREFETCH_LEFT)),
            ],
            [4, 4, 1],
            [CONSUMER_REGISTERS, CONSUMER_REGISTERS, 24],
        )  # fmt: skip
    for each in gl.static_range(STAGES):
        mbarrier.invalidate(ready.index(each))
        mbarrier.invalidate(free.index(each))
    if c0_desc is not None:
        for each in gl.static_range(C0_PIECES):
            mbarrier.invalidate(c0_ready.index(each))
    if SHARES < CONSUMERS:
        for each in gl.static_range(CONSUMERS):
            mbarrier.invalidate(turns.index(each))
