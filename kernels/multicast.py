"""Tiles that blocks of a cluster share: each copies some boxes of them to all (TMA multicast).

The blocks of a column share the tile of B, those of a row the tile of A (`clusters`). Triton's own
multicast has one block copy the whole tile for all others; then that block alone waits for all
consumers, and issues all copies. Here the boxes of a tile are dealt out: each block waits until the
buffers of its row and column are free, and copies its boxes; its barrier `ready` counts the bytes
of all boxes that come to it. A consumer that has read a buffer tells all blocks that copy into it.

The text is inline assembly, for which Triton 3.9 is needed: it gives the addresses of tiles. A
descriptor is a parameter of the kernel, which PTX knows by its name.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.kernels.clusters import block_of_cluster
from triton_ext.kernels.matrices import is_batched, parameter_name


@gluon.constexpr_function
def copiers(blocks, columns):
    """How many blocks copy into a block's buffers: those of its row and of its column."""
    return blocks // columns + columns - 1


@gluon.constexpr_function
def boxes_of(box, size, block_k, k_major, parts, step, element_bytes):
    """The boxes of a tile: where each lies, in bytes, and its first element: (bytes, mn, k).

    Args:
        box: the shape of one, the contiguous dimension last.
        size: rows or columns of a part of the tile, of which there are `parts`, one after the other
            in shared memory, and `step` rows apart in the matrix.
    """
    rows, wide = box[-2], box[-1]
    bytes_of_part = size * block_k * element_bytes
    along, across = (block_k, size) if k_major else (size, block_k)
    found = []
    for part in range(parts):
        for panel in range(0, along, wide):
            for row in range(0, across, rows):
                place = part * bytes_of_part + (panel * across + row * wide) * element_bytes
                mn, k = (row, panel) if k_major else (panel, row)
                found.append((place, mn + part * step, k))
    return found


@gluon.constexpr_function
def copy_text(parameter, rank, boxes, among, k_major):
    """The instructions that copy a block's boxes.

    Args:
        parameter: the name of the descriptor, of that rank.
        among: how many blocks share the tile.
    """
    coordinates = ", ".join((["x", "y"] if k_major else ["y", "x"]) + ["$6"][: rank - 2])
    lines = [
        "{",
        ".reg .pred one, own;",
        ".reg .b64 map;",
        ".reg .b32 to, x, y;",
        ".reg .b16 blocks;",
        f"mov.b64 map, {parameter};",
        "cvta.param.u64 map, map;",
        "cvt.u16.u32 blocks, $5;",
        "elect.sync _|one, 0xffffffff;",
    ]
    for i in range(len(boxes)):  # Triton 3.7 reads no loop over several names
        place, mn, k = boxes[i]
        lines += [
            f"setp.eq.and.u32 own, $4, {i % among}, one;",
            f"add.u32 to, $0, {place};",
            f"add.s32 x, $3, {k};",
            f"add.s32 y, $2, {mn};",
            f"@own cp.async.bulk.tensor.{rank}d.shared::cluster.global"
            ".mbarrier::complete_tx::bytes.multicast::cluster"
            f" [to], [map, {{{coordinates}}}], [$1], blocks;",
        ]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def first_row(below, columns):
    """The blocks of the first row, as bits."""
    return sum(1 << (column * below) for column in range(columns))


@gluon.jit
def copy_boxes(desc, POSITION: gl.constexpr, tile, SIZE: gl.constexpr, BLOCK_K: gl.constexpr,
               barrier, matrix, mn, k, K_MAJOR: gl.constexpr, COLUMNS: gl.constexpr,
               OF_COLUMN: gl.constexpr, PARTS: gl.constexpr = 1,
               STEP: gl.constexpr = 0):  # fmt: skip
    """Start the copies of this block's boxes of a tile to all that share it.

    Args:
        POSITION: that of the descriptor among the kernel's.
        tile: this block's, or what comes first of it.
        SIZE, PARTS, STEP: as for `boxes_of`.
        mn, k: where the tile begins in the matrix.
        COLUMNS: how many columns of blocks the cluster has.
        OF_COLUMN: whether the blocks of a column share it, else those of a row.
    """
    BELOW: gl.constexpr = gl.num_ctas() // COLUMNS
    BYTES: gl.constexpr = desc.dtype.primitive_bitwidth // 8
    BOXES: gl.constexpr = boxes_of(
        desc.block_type.shape, SIZE, BLOCK_K, K_MAJOR, PARTS, STEP, BYTES
    )
    AMONG: gl.constexpr = BELOW if OF_COLUMN else COLUMNS
    FIRST: gl.constexpr = (1 << BELOW) - 1 if OF_COLUMN else first_row(BELOW, COLUMNS)
    block = block_of_cluster()
    row, column = block % BELOW, block // BELOW
    which = row if OF_COLUMN else column
    blocks = FIRST << (column * BELOW if OF_COLUMN else row)
    if is_batched(desc):
        matrix = gl.minimum(matrix, desc.shape[0] - 1).to(gl.int32)
    RANK: gl.constexpr = len(desc.block_type.shape)
    PARAMETER: gl.constexpr = parameter_name("matmul_warp_specialized", POSITION, RANK)
    TEXT: gl.constexpr = copy_text(PARAMETER, RANK, BOXES, AMONG, K_MAJOR)
    gl.inline_asm(TEXT, "r,r,r,r,r,r,r", (tile, barrier, mn, k, which, blocks, matrix))


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
