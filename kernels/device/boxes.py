"""Tiles of the operands that are copied by TMA in boxes of any number of rows.

Triton's own copy brings a tensor: a power of two of rows. Here a box has as many rows as the tile,
or as the matrix where it has fewer than the tile. The last box of an MN-major operand's rows is as
wide as what is left of the tile: it needs a descriptor of its own.

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

from triton_ext.kernels.device.matrices import is_batched, parameter_name


@gluon.constexpr_function
def copiers(blocks, columns):
    """How many blocks copy into a block's buffers: those of its row and of its column."""
    return blocks // columns + columns - 1


@gluon.constexpr_function
def copied_bytes(desc, boxes):
    """The bytes that arrive at a block: of all boxes, or of the descriptor's only one."""
    return desc.nbytes_per_cta if boxes is None else boxes.bytes


@gluon.constexpr_function
def copy_text(boxes, rank, cluster):
    """The instructions that copy a box.

    In a cluster, Triton gives addresses without the block's number, as a multicast takes them.

    Args:
        boxes: a `Boxes`.
        rank: that of the descriptor.
        cluster: whether the kernel has clusters. A tile that is not shared is copied to the block
            $5 alone: a multicast, also to one block, comes more slowly.
    """
    matrix = ["$6"][: rank - 2]
    coordinates = ", ".join((["$3", "$2"] if boxes.k_major else ["$2", "$3"]) + matrix)
    parameter = parameter_name("matmul_warp_specialized", boxes.position, rank)
    kind, mask, own = "", "", ""
    if cluster and boxes.among > 1:
        kind, mask = ".multicast::cluster", ", blocks"
    elif cluster:
        own = """mapa.shared::cluster.u32 to, to, $5;
    mapa.shared::cluster.u32 barrier, barrier, $5;"""
    space = "cluster" if cluster else "cta"
    return f"""{{
    .reg .pred one;
    .reg .b64 map;
    .reg .b32 to, barrier;
    .reg .b16 blocks;
    mov.b64 map, {parameter};
    cvta.param.u64 map, map;
    cvt.u16.u32 blocks, $5;
    add.u32 to, $0, $4;
    mov.b32 barrier, $1;
    {own}
    elect.sync _|one, 0xffffffff;
    @one cp.async.bulk.tensor.{rank}d.shared::{space}.global.mbarrier::complete_tx::bytes{kind}\
 [to], [map, {{{coordinates}}}], [barrier]{mask};
    }}"""


@gluon.constexpr_function
def sharers(boxes):
    """The blocks that share a tile, as bits, if the first one is block 0 of the cluster."""
    return sum(1 << (i * boxes.apart) for i in range(boxes.among))


@gluon.jit
def copy_boxes(desc, BOXES: gl.constexpr, tile, barrier, matrix, mn, k, which, first):
    """Start the copies of this block's boxes of a tile to all that share it.

    Args:
        BOXES: a `Boxes`.
        tile: this block's, or what comes first of it.
        barrier: what counts the bytes.
        matrix: which of a batch, or of as many times `Boxes.matrices`.
        mn, k: the element of the matrix at which the tile begins.
        which: of those that share it, this block.
        first: the number in the cluster of the first of those.
    """
    NUMBER: gl.constexpr = BOXES.number
    RANK: gl.constexpr = len(desc.block_type.shape)
    TEXT: gl.constexpr = copy_text(BOXES, RANK, gl.num_ctas() > 1)
    blocks = sharers(BOXES) << first if BOXES.among > 1 else first
    if is_batched(desc):
        last = desc.shape[0] // BOXES.matrices - 1
        matrix = gl.minimum(matrix, last).to(gl.int32) * BOXES.matrices
    for i in gl.static_range(NUMBER):
        box = i * BOXES.among + which
        panel, row = box // BOXES.pieces, box % BOXES.pieces * BOXES.rows
        part = panel // BOXES.panels
        along = (BOXES.first + panel % BOXES.panels) * BOXES.wide
        off_mn, off_k = (row, along) if BOXES.k_major else (along, row)
        which_matrix = matrix + part % BOXES.matrices
        offset = (part * BOXES.all_panels * BOXES.wide + along) * BOXES.across + row * BOXES.wide
        gl.inline_asm(TEXT, "r,r,r,r,r,r,r",
                      (tile, barrier, mn + part * BOXES.step + off_mn, k + off_k,
                       offset * BOXES.element_bytes, blocks, which_matrix))  # fmt: skip


@gluon.constexpr_function
def copiers_text(below, columns):
    """The instructions that compute `copiers_of` for a thread."""
    return f"""{{
    .reg .pred some, later;
    .reg .b32 away;
    setp.lt.u32 some, $1, {below + columns - 1};
    sub.u32 away, $1, {below - 1};
    mul.lo.u32 away, away, {below};
    setp.ge.u32 later, $1, {below};
    selp.b32 away, away, $1, later;
    xor.b32 away, away, $3;
    mov.b32 $0, 0;
    @some mapa.shared::cluster.u32 $0, $2, away;
    }}"""


@gluon.jit
def copiers_of(threads, address, block, COLUMNS: gl.constexpr):
    """What an address of this block is in the blocks that copy into its buffers, a thread for each;
    0 for the other threads.
    """
    TEXT: gl.constexpr = copiers_text(gl.num_ctas() // COLUMNS, COLUMNS)
    return gl.inline_asm_elementwise(
        TEXT, "=&r,r,r,r", [threads, threads * 0 + address, threads * 0 + block], gl.int32,
        is_pure=True, pack=1,
    )  # fmt: skip
