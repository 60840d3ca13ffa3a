"""Rows of A that come to their tile one by one, from where indices say: no permuted copy is made.

On Hopper, TMA copies what lies together, so two warps copy the rows by ``cp.async``, 16 bytes a
thread and 8 threads a line, to the place that the generated layout gives these; each thread arrives
at the buffer's barrier when its copies have. The tensor cores read by the async proxy, so that a
consumer needs a proxy fence before it multiplies. On Blackwell, each thread of the warp that copies
brings four rows by TMA (``tile::gather4``).

An index that is no row of A brings zeros, and nothing is read for it.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

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
ARRIVALS = gl.constexpr(64)
"""Arrivals of these at a buffer's barrier, besides that which expects bytes."""
BY_A_WARP = gl.constexpr(128)
"""Rows that a warp's threads copy by TMA, four each."""
CHUNK = gl.constexpr(16)
"""Bytes that a thread copies at a time (PTX ISA, "cp.async": the most)."""
TOGETHER = gl.constexpr(32)
"""Rows that are copied in one turn of a loop: a thread has 24 registers, and with all rows at once
ptxas spilled 256 bytes."""
COPY = gl.constexpr("""{
    .reg .pred some;
    setp.ge.s32 some, $3, 0;
    @some cp.async.cg.shared.global [$1], [$2], 16, $3;
    mov.b32 $0, 0;
    }""")


@gluon.constexpr_function
def chunks_layout(chunks):
    """A chunk of a line for each thread of the warps that copy, so many a line."""
    return gl.BlockedLayout([1, 1], [32 // chunks, chunks], [WARPS, 1], [1, 0])


@gluon.jit
def rows_of_a(indices, row, work, PLAN: gl.constexpr):
    """Which rows of A some rows of a tile are, as the indices say; behind the group's end its last
    one, as one that is not there comes slowly.
    """
    off = work.off_m if PLAN.groups.dim == ROWS_OF_GROUPS else work.off_n
    return gl.load(indices + gl.minimum(off + row, work.end - 1))


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
    def fill(self, index, work, k, barrier):
        """Start the copies of a K tile into a buffer; all of the warps' threads arrive then."""
        TILE: gl.constexpr = self.PLAN.gathered
        ROWS: gl.constexpr = TILE.rows
        LINES: gl.constexpr = TILE.lines
        BITS: gl.constexpr = len(TILE.swizzle)
        LAYOUT: gl.constexpr = chunks_layout(TILE.line // CHUNK)
        BYTES: gl.constexpr = TILE.line * TILE.lines
        address = own_address(self.tiles) + index * TILE.stage
        chunk = CHUNK * gl.arange(0, TILE.line // CHUNK, gl.SliceLayout(0, LAYOUT))
        PARTS: gl.constexpr = (ROWS + TOGETHER - 1) // TOGETHER
        for part in range(PARTS):
            row = part * TOGETHER + gl.arange(0, TOGETHER, gl.SliceLayout(1, LAYOUT))
            given = rows_of_a(self.indices, row, work, self.PLAN)
            known = (given >= 0) & (given < self.rows)
            source = self.base + gl.where(known, given, 0).to(gl.int64) * self.step
            offset = row // TILE.unit * (TILE.unit * BYTES) + row % TILE.unit * TILE.line
            swizzle = row * 0
            for bit in gl.static_range(BITS):
                swizzle ^= (row >> bit & 1) * TILE.swizzle[bit]
            for line in range(LINES):
                column = k * BYTES + line * TILE.line + chunk
                left = gl.minimum(gl.maximum(self.row_bytes - column, 0), CHUNK)
                size = gl.where(gl.expand_dims(known, 1), gl.expand_dims(left, 0), 0)
                if ROWS % TOGETHER > 0:
                    size = gl.where(gl.expand_dims(row < TILE.rows, 1), size, -1)
                to = gl.expand_dims(chunk, 0) ^ gl.expand_dims(swizzle, 1)
                to += gl.expand_dims(offset + (address + line * TILE.unit * TILE.line), 1)
                sources = gl.expand_dims(source, 1) + gl.expand_dims(column, 0)
                gl.inline_asm_elementwise(
                    COPY, "=r,r,l,r", [to, sources, size], gl.int32, is_pure=False, pack=1
                )
        gl.inline_asm(ARRIVE, "r", (own_address(barrier),))


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
    def fill(self, index, work, k, barrier):
        """Start the copies of a K tile into a buffer, whose barrier expects their bytes."""
        TILE: gl.constexpr = self.PLAN.gathered
        ROWS: gl.constexpr = TILE.rows
        LINES: gl.constexpr = TILE.lines
        TEXT: gl.constexpr = gather_text(self.PLAN.tile.swap_ab)
        FOUR: gl.constexpr = gl.BlockedLayout([4], [32], [1], [0])
        SIZE: gl.constexpr = self.tiles.dtype.primitive_bitwidth // 8
        address = own_address(self.tiles) + index * TILE.stage
        ready = own_address(barrier)
        for first in gl.static_range(0, ROWS, BY_A_WARP):
            row = first + gl.arange(0, BY_A_WARP, FOUR)
            given = rows_of_a(self.indices, row, work, self.PLAN)
            gl.inline_asm("bar.warp.sync 0xffffffff;", "", ())  # one thread expects all bytes
            for line in gl.static_range(LINES):
                gl.inline_asm_elementwise(
                    TEXT, "=r,=r,=r,=r" + 20 * ",r",
                    [given, address + line * TILE.unit * TILE.line + row * TILE.line,
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
