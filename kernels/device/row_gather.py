"""Rows of A that come to their tile one by one, from where indices say: no permuted copy is made.

On Hopper, TMA copies what lies together, so two warps copy the rows by ``cp.async``, 16 bytes a
thread and 8 threads a line, to the place that the generated layout gives these; each thread arrives
at the buffer's barrier when its copies have. The tensor cores read by the async proxy, so that a
consumer needs a proxy fence before it multiplies. On Blackwell, each thread of the warp that copies
brings four rows by TMA (``tile::gather4``). The indices of a tile's rows are read once, and held in
registers for all of K.

An index that is no row of A brings zeros, and nothing is read for it.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import aggregate
from triton_ext.kernels.device.groups import ROWS as ROWS_OF_GROUPS
from triton_ext.kernels.device.matrices import is_batched, matrix_size, parameter_name
from triton_ext.kernels.device.staged_scales import ARRIVE, own_address
from triton_ext.kernels.device.values import value

WARPS = gl.constexpr(2)
"""Warps that copy rows on Hopper: with those of TMA and of scales they are a warpgroup."""
ARRIVALS = gl.constexpr(32 * WARPS.value)
"""Arrivals of these at a buffer's barrier, besides that which expects bytes."""
BY_A_WARP = gl.constexpr(128)
"""Rows that a warp's threads copy by TMA, four each."""
CHUNK = gl.constexpr(16)
"""Bytes that a thread copies at a time (PTX ISA, "cp.async": the most)."""
HELD = gl.constexpr(32 * WARPS.value)
"""Rows of which the warps that copy hold where they are, one a thread, in one register."""


@gluon.jit
def rows_of_a(indices, row, work, PLAN: gl.constexpr):
    """Which rows of A some rows of a tile are, as the indices say; behind the group's end its last
    one, as one that is not there comes slowly.
    """
    off = work.off_m if PLAN.groups.dim == ROWS_OF_GROUPS else work.off_n
    return gl.load(indices + gl.minimum(off + row, work.end - 1))


@gluon.constexpr_function
def copies_text(tile, first, line, whole):
    """The instructions by which a thread copies its chunks of a line of `HELD` rows, from `first`.

    In a turn, the 8 threads of a line (4, 2, ...) copy a row, and one of them holds where it is.

    Args:
        line: which one.
        whole: whether all of it is there; else a chunk may have less than 16 bytes, for which ptxas
            makes twice as many instructions.
    """
    chunks = tile.line // CHUNK.value
    together = WARPS.value * 32 // chunks
    turns = min(chunks, -(-(tile.rows - first) // together))
    lines = [".reg .pred none, some;", ".reg .b32 row, size;", ".reg .b64 source;"]
    for turn in range(turns):
        row = first + together * turn
        unit, row_of_unit = divmod(row, tile.unit)
        to = (unit * tile.lines + line) * tile.unit * tile.line + row_of_unit * tile.line
        all_there = row + together <= tile.rows
        lines += [
            f"shfl.sync.idx.b32 row, $4, {turn}, {(32 - chunks) << 8 | 31}, 0xffffffff;",
            "setp.lt.s32 none, row, 0;",
            "" if whole else "selp.b32 size, 0, $3, none;",
            "" if all_there else "setp.ge.s32 some, row, -1;",
            f"mad.wide.s32 source, row, {CHUNK.value}, $2;",
            ("" if all_there else "@some ")
            + f"cp.async.cg.shared.global.L2::128B [$1+{to}], [source+{line * tile.line}], "
            + f"{CHUNK.value}, {'none' if whole else 'size'};",
        ]
    return "{\n" + "\n".join([*lines, "mov.b32 $0, 0;"]) + "\n}"


@aggregate
class RowGather:
    """The rows of A of a pipeline's tiles (sm_90).

    Attributes:
        indices: the address of the indices of A's rows, int32, one for each row of C.
        base: A's address.
        rows: how many rows A has.
        step: bytes from one to the next.
        row_bytes: bytes of one.
        tiles: the pipeline's buffers of A.
        PLAN: the kernel's `SpecializedPlan`.
    """

    indices: gl.tensor
    base: gl.tensor
    rows: gl.tensor
    step: gl.tensor
    row_bytes: gl.tensor
    tiles: gl.shared_memory_descriptor
    PLAN: gl.constexpr

    @gluon.jit
    def threads(self):
        """A thread's warp, the row of each turn that it copies, of the warp's, and its chunk."""
        CHUNKS: gl.constexpr = self.PLAN.gathered.line // CHUNK
        thread = gl.arange(0, HELD, gl.BlockedLayout([1], [32], [WARPS], [0]))
        return thread // 32, thread % 32 // CHUNKS, thread % CHUNKS

    @gluon.jit
    def of(self, work):
        """Where a tile's rows begin in A, in chunks, which the threads hold: -1 of one that is no
        row of A, -2 behind the tile.
        """
        TILE: gl.constexpr = self.PLAN.gathered
        ROWS: gl.constexpr = TILE.rows
        IN_A_TURN: gl.constexpr = 32 * CHUNK // TILE.line
        warp, row_of_warp, turn = self.threads()
        found = ()
        for first in gl.static_range(0, ROWS, HELD):
            row = first + (turn * WARPS + warp) * IN_A_TURN + row_of_warp
            given = rows_of_a(self.indices, row, work, self.PLAN)
            known = (given >= 0) & (given < self.rows)
            given = gl.where(known, given * (self.step // CHUNK), -1)
            found += (gl.where(row < ROWS, given, -2),)
        return found

    @gluon.jit
    def first_chunks(self):
        """Where a thread's first chunks are: in the first buffer, and in row 0 of A."""
        TILE: gl.constexpr = self.PLAN.gathered
        BITS: gl.constexpr = len(TILE.swizzle)
        warp, row_of_warp, chunk = self.threads()
        row = warp * (32 * CHUNK // TILE.line) + row_of_warp
        swizzled = chunk * CHUNK
        for bit in gl.static_range(BITS):
            swizzled ^= (row >> bit & 1) * TILE.swizzle[bit]
        return own_address(self.tiles) + row * TILE.line + swizzled, self.base + chunk * CHUNK

    @gluon.jit
    def copy_line(self, held, to, source, left, LINE: gl.constexpr, WHOLE: gl.constexpr):
        """Start the copies of a line of all rows; see `copies_text`."""
        PARTS: gl.constexpr = len(held)
        for part in gl.static_range(PARTS):
            gl.inline_asm_elementwise(
                copies_text(self.PLAN.gathered, part * HELD, LINE, WHOLE), "=r,r,l,r,r",
                [to, source, left, held[part]], gl.int32, is_pure=False, pack=1,
            )  # fmt: skip

    @gluon.jit
    def fill(self, index, held, to, source, k, barrier):
        """Start the copies of a K tile into a buffer; all of the warps' threads arrive then.

        Args:
            held: where the tile's rows begin, see `of`.
            to, source: where the chunks are, see `first_chunks`.
        """
        TILE: gl.constexpr = self.PLAN.gathered
        LINES: gl.constexpr = TILE.lines
        _, _, chunk = self.threads()
        to += index * TILE.stage
        for line in gl.static_range(LINES):
            column = (k * TILE.lines + line) * TILE.line
            left = self.row_bytes - column - chunk * CHUNK
            left = gl.minimum(gl.maximum(left, 0), CHUNK)
            if column + TILE.line <= self.row_bytes:
                self.copy_line(held, to, source, left, line, True)
            else:
                self.copy_line(held, to, source, left, line, False)
        gl.inline_asm(ARRIVE, "r", (own_address(barrier),))

    @gluon.jit
    def fill_tile(self, pipeline, slot, work):
        """Wait until the slots of a tile are free, one after the other, and start the copies of its
        rows; the slot behind.
        """
        held = self.of(work)
        to, source = self.first_chunks()
        for k in range(work.k_end):
            pipeline.wait_free_by_warp(slot)
            self.fill(slot.index, held, to, source, k, pipeline.ready.index(slot.index))
            source += self.PLAN.gathered.lines * self.PLAN.gathered.line
            slot = slot.next()
        return slot


@gluon.constexpr_function
def gather_text(right):
    """The instructions that copy four rows, which lie one after the other in a tile.

    Args:
        right: whether A is the right operand. (A descriptor before it is that of a batch.)
    """
    parameter = parameter_name("matmul_warp_specialized_sm100", int(right), 3)
    return f"""{{
    .reg .pred some;
    .reg .b64 map;
    mov.b64 map, {parameter};
    cvta.param.u64 map, map;
    setp.ne.b32 some, $20, 0;
    @some cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes\
 [$8], [map, {{$12, $4, $5, $6, $7}}], [$16];
    mov.b32 $0, 0;
    mov.b32 $1, 0;
    mov.b32 $2, 0;
    mov.b32 $3, 0;
    }}"""


@aggregate
class RowsByTma:
    """The same, by TMA (sm_100).

    Attributes:
        indices, tiles, PLAN: as of `RowGather`.
    """

    indices: gl.tensor
    tiles: gl.shared_memory_descriptor
    PLAN: gl.constexpr

    @gluon.jit
    def position(self):
        """The rows, of so many of a tile, that a thread copies."""
        return gl.arange(0, BY_A_WARP, gl.BlockedLayout([4], [32], [1], [0]))

    @gluon.jit
    def of(self, work):
        """The indices of a tile's rows, which the threads hold."""
        found = ()
        ROWS: gl.constexpr = self.PLAN.gathered.rows
        for first in gl.static_range(0, ROWS, BY_A_WARP):
            found += (rows_of_a(self.indices, first + self.position(), work, self.PLAN),)
        return found

    @gluon.jit
    def fill(self, index, held, k, barrier):
        """Start the copies of a K tile into a buffer, whose barrier expects their bytes.

        Args:
            held: the indices of the tile's rows, see `of`.
        """
        TILE: gl.constexpr = self.PLAN.gathered
        ROWS: gl.constexpr = TILE.rows
        LINES: gl.constexpr = TILE.lines
        TEXT: gl.constexpr = gather_text(self.PLAN.tile.swap_ab)
        SIZE: gl.constexpr = self.tiles.dtype.primitive_bitwidth // 8
        address = own_address(self.tiles) + index * TILE.stage
        ready = own_address(barrier)
        PARTS: gl.constexpr = len(held)
        for part in gl.static_range(PARTS):
            row = part * BY_A_WARP + self.position()
            gl.inline_asm("bar.warp.sync 0xffffffff;", "", ())  # one thread expects all bytes
            for line in gl.static_range(LINES):
                gl.inline_asm_elementwise(
                    TEXT, "=r,=r,=r,=r" + 20 * ",r",
                    [held[part], address + line * TILE.unit * TILE.line + row * TILE.line,
                     (k * LINES + line) * (TILE.line // SIZE) + row * 0, ready + row * 0,
                     (row < ROWS).to(gl.int32)],
                    gl.int32, is_pure=False, pack=4,
                )  # fmt: skip


@gluon.jit
def rows_by_tma_of(values, tiles, PLAN: gl.constexpr):
    """The rows of a kernel's pipeline, or None; see `RowsByTma`."""
    if PLAN.gathered is None:
        rows: gl.constexpr = None
    else:
        rows = RowsByTma(value(values, "rows", PLAN), tiles, PLAN)
    return rows


@gluon.jit
def row_gather_of(values, desc, tiles, PLAN: gl.constexpr):
    """The rows of a kernel's pipeline, or None; see `RowGather`.

    Args:
        desc: A's descriptor.
        tiles: the buffers of A.
    """
    if PLAN.gathered is None:
        rows: gl.constexpr = None
    else:
        BYTES: gl.constexpr = desc.dtype.primitive_bitwidth // 8
        STEP: gl.constexpr = 1 if is_batched(desc) else 0
        rows = RowGather(
            value(values, "rows", PLAN),
            value(values, "a", PLAN).to(gl.int64),
            matrix_size(desc, 0).to(gl.int32),
            desc.strides[STEP].to(gl.int32) * BYTES,
            matrix_size(desc, 1).to(gl.int32) * BYTES,
            tiles,
            PLAN,
        )
    return rows
