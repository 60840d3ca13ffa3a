"""Tiles of the operands that are copied by TMA in boxes of any number of rows.

Triton's own copy brings a tensor: a power of two of rows. Here a box has as many rows as the tile,
or as the matrix where it has fewer than the tile.

Blocks of a cluster may share a tile: those of a column that of B, those of a row that of A
(`clusters`). Its boxes are dealt out among them, and each is copied to all (*multicast*): a block
waits until the buffers of its row and column are free, and copies its boxes; its barrier `ready`
counts the bytes of all boxes that come to it. A consumer that has read a buffer tells all blocks
that copy into it.

The text is inline assembly, for which Triton 3.9 is needed: it gives the addresses of tiles. A
descriptor is a parameter of the kernel, which PTX knows by its name. What selects the thread that
copies is `elect.sync` alone: ptxas then knows that the operands are the same in all threads, else
it moves each of them to uniform registers in every turn (400 cycles a K tile, seen).
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.kernels.clusters import block_of_cluster
from triton_ext.kernels.config import pieces_of as _pieces_of
from triton_ext.kernels.matrices import is_batched, parameter_name

pieces_of = gluon.constexpr_function(_pieces_of)


@gluon.constexpr_function
def copiers(blocks, columns):
    """How many blocks copy into a block's buffers: those of its row and of its column."""
    return blocks // columns + columns - 1


@gluon.constexpr_function
def dealt(wide, size, block_k, k_major, parts, among):
    """How the boxes of a tile are dealt out: (panels of a part, boxes of a panel, boxes a block).

    A *panel* is as wide as a box, and contiguous in shared memory, as its parts are.

    Args:
        wide: elements of a box along the contiguous dimension.
        size: rows or columns of a part of the tile, of which there are `parts`, one after the other
            in shared memory.
        among: how many blocks share the tile.
    """
    panels = (block_k if k_major else size) // wide
    pieces = pieces_of(parts * panels, among)
    return panels, pieces, parts * panels * pieces // among


@gluon.constexpr_function
def copied_bytes(desc, rows, size, block_k, k_major, parts, among):
    """The bytes of all boxes of a tile, which arrive at each block that shares it."""
    wide = desc.block_type.shape[-1]
    boxes = dealt(wide, size, block_k, k_major, parts, among)[2]
    return boxes * among * rows * wide * desc.dtype.primitive_bitwidth // 8


@gluon.constexpr_function
def copy_text(parameter, rank, k_major, cluster):
    """The instructions that copy a box.

    In a cluster, Triton gives addresses without the block's number, as a multicast takes them; to
    this block alone, too.

    Args:
        parameter: the name of the descriptor, of that rank.
        cluster: whether the kernel has clusters.
    """
    coordinates = ", ".join((["$3", "$2"] if k_major else ["$2", "$3"]) + ["$6"][: rank - 2])
    kind, mask = (".multicast::cluster", ", blocks") if cluster else ("", "")
    space = "cluster" if cluster else "cta"
    return f"""{{
    .reg .pred one;
    .reg .b64 map;
    .reg .b32 to;
    .reg .b16 blocks;
    mov.b64 map, {parameter};
    cvta.param.u64 map, map;
    cvt.u16.u32 blocks, $5;
    add.u32 to, $0, $4;
    elect.sync _|one, 0xffffffff;
    @one cp.async.bulk.tensor.{rank}d.shared::{space}.global.mbarrier::complete_tx::bytes{kind}\
 [to], [map, {{{coordinates}}}], [$1]{mask};
    }}"""


@gluon.jit
def copy_boxes(desc, POSITION: gl.constexpr, ROWS: gl.constexpr, tile,
               SIZE: gl.constexpr, BLOCK_K: gl.constexpr,
               barrier, matrix, mn, k, K_MAJOR: gl.constexpr, which,
               AMONG: gl.constexpr, APART: gl.constexpr, first, PARTS: gl.constexpr = 1,
               STEP: gl.constexpr = 0):  # fmt: skip
    """Start the copies of this block's boxes of a tile to all that share it.

    Args:
        POSITION: that of the descriptor among the kernel's.
        ROWS: of a box.
        tile: this block's, or what comes first of it.
        SIZE, PARTS, AMONG: as for `dealt`.
        mn, k: where the tile begins in the matrix.
        which: of those that share it, this block.
        APART, first: their numbers in the cluster: the first one's, and the step to the next.
        STEP: how many rows of the matrix a part begins after the one before.
    """
    BOX: gl.constexpr = desc.block_type.shape
    RANK: gl.constexpr = len(BOX)
    WIDE: gl.constexpr = BOX[RANK - 1]
    BYTES: gl.constexpr = desc.dtype.primitive_bitwidth // 8
    ACROSS: gl.constexpr = SIZE if K_MAJOR else BLOCK_K
    DEALT: gl.constexpr = dealt(WIDE, SIZE, BLOCK_K, K_MAJOR, PARTS, AMONG)
    PANELS: gl.constexpr = DEALT[0]
    PIECES: gl.constexpr = DEALT[1]
    BOXES: gl.constexpr = DEALT[2]
    PARAMETER: gl.constexpr = parameter_name("matmul_warp_specialized", POSITION, RANK)
    TEXT: gl.constexpr = copy_text(PARAMETER, RANK, K_MAJOR, gl.num_ctas() > 1)
    blocks = bits(AMONG, APART) << first
    if is_batched(desc):
        matrix = gl.minimum(matrix, desc.shape[0] - 1).to(gl.int32)
    for i in gl.static_range(BOXES):
        box = i * AMONG + which
        panel, row = box // PIECES, box % PIECES * ROWS
        part, along = panel // PANELS, panel % PANELS * WIDE
        off_mn, off_k = (row, along) if K_MAJOR else (along, row)
        place = ((part * PANELS * WIDE + along) * ACROSS + row * WIDE) * BYTES
        gl.inline_asm(TEXT, "r,r,r,r,r,r,r",
                      (tile, barrier, mn + part * STEP + off_mn, k + off_k, place, blocks,
                       matrix))  # fmt: skip


@gluon.constexpr_function
def bits(number, apart):
    """So many bits, so far apart."""
    return sum(1 << (i * apart) for i in range(number))


@gluon.constexpr_function
def release_text(below, columns):
    """The instructions by which threads of a warp tell a barrier of each block, one thread each."""
    return f"""{{
    .reg .pred some, later;
    .reg .b32 thread, away, there;
    mov.u32 thread, %tid.x;
    and.b32 thread, thread, 127;
    setp.ne.b32 some, $1, 0;
    setp.lt.and.u32 some, thread, {below + columns - 1}, some;
    sub.u32 away, thread, {below - 1};
    mul.lo.u32 away, away, {below};
    setp.ge.u32 later, thread, {below};
    selp.b32 away, away, thread, later;
    xor.b32 away, away, $2;
    @some mapa.shared::cluster.u32 there, $0, away;
    @some mbarrier.arrive.shared::cluster.b64 _, [there];
    }}"""


@gluon.jit
def release(barrier, pred, COLUMNS: gl.constexpr):
    """This warpgroup has read a buffer: arrive at its barrier in each block that copies into it."""
    TEXT: gl.constexpr = release_text(gl.num_ctas() // COLUMNS, COLUMNS)
    gl.barrier()
    gl.inline_asm(TEXT, "r,r,r", (barrier, gl.to_tensor(pred).to(gl.int32), block_of_cluster()))
