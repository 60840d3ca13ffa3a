"""fp32 scales of the tiles in a pipeline's buffers, which lie beside them in shared memory (sm_90).

A warp copies them (``cp.async``: they may lie anywhere) when a buffer is free, as the producer does
with the tiles, and arrives at the same barrier. Where consumers loaded them from memory they took a
fifth of a product's time (H100), however early they were asked for: ptxas has a thread wait for all
that it has asked for. Copied by the producer's warp, they took a tenth of it.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import aggregate
from triton_ext.kernels.device.clusters import OWN, block_of_cluster
from triton_ext.kernels.device.fp32_scales import Fp32Scales
from triton_ext.kernels.element_types import FP32_SCALE_BLOCK

BLOCK = gl.constexpr(FP32_SCALE_BLOCK)
ARRIVALS = gl.constexpr(32)
"""Arrivals at a buffer's barrier, besides that which expects bytes."""
COPY = gl.constexpr("""{
    .reg .pred some;
    setp.ne.b32 some, $3, 0;
    @some cp.async.ca.shared.global [$1], [$2], 4;
    mov.b32 $0, 0;
    }""")
ARRIVE = gl.constexpr("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];")
READ = gl.constexpr("ld.shared.f32 $0, [$1];")
READ_TWO = gl.constexpr("ld.shared.v2.f32 {$0, $1}, [$2];")


@gluon.constexpr_function
def lanes_layout(blocks):
    """An element for each thread of a warp, in each block of a cluster."""
    return gl.BlockedLayout(
        [1], [32], [1], [0], cga_layout=[[0] for _ in range(blocks.bit_length() - 1)]
    )


@gluon.constexpr_function
def words_layout(blocks):
    """Words of shared memory, of each block of a cluster."""
    return gl.SwizzledSharedLayout(
        1, 1, 1, [0], cga_layout=[[0] for _ in range(blocks.bit_length() - 1)]
    )


@gluon.jit
def own_address(memory):
    """The address of shared memory in this block."""
    return gl.inline_asm(OWN, "=r,r,r", (memory, block_of_cluster()), gl.int32)


@gluon.jit
def sources_of(
    matrix, number, off, k, COUNT: gl.constexpr, TOGETHER: gl.constexpr, HALF: gl.constexpr = 0,
    up=0,
):  # fmt: skip
    """Where the scales of rows from `off` on for block k lie: so many, each of which so many rows
    have together; a tensor for each 32. Behind those that there are, the last one is repeated. If
    there is a gate, those from row HALF on are `up` rows behind the first ones.
    """
    found = ()
    for i in gl.static_range(0, COUNT, 32):
        rows = (i + gl.arange(0, 32, lanes_layout(gl.num_ctas()))) * TOGETHER
        if HALF > 0:
            rows += gl.where(rows < HALF, 0, up - HALF)
        rows += off
        if not matrix.EACH:
            rows = rows // BLOCK
        found += (matrix.at(number, gl.minimum(rows, matrix.rows - 1), k),)
    return found


@gluon.jit
def copied(sources, step, address, COUNT: gl.constexpr):
    """Start to copy so many scales to an address; where those of the next block lie."""
    lanes = gl.arange(0, 32, lanes_layout(gl.num_ctas()))
    moved = ()
    for i in gl.static_range(len(sources)):
        gl.inline_asm_elementwise(
            COPY, "=r,r,l,r",
            [address + (32 * i + lanes) * 4, sources[i], (32 * i + lanes < COUNT).to(gl.int32)],
            gl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        moved += (sources[i] + step,)
    return moved


@aggregate
class StagedScales:
    """The scales of a pipeline's buffers.

    Attributes:
        memory: where they come from.
        words: those of columns, then of rows, of each buffer.
        ROWS, COLUMNS: how many of each a block has of a tile.
        BYTES: how far it is from a buffer's to the next one's.
    """

    memory: Fp32Scales
    words: gl.shared_memory_descriptor
    ROWS: gl.constexpr
    COLUMNS: gl.constexpr
    BYTES: gl.constexpr

    @gluon.jit
    def sources(self, work, PARTS: gl.constexpr, UNIT_M: gl.constexpr, SEGMENT: gl.constexpr):
        """Where the scales of a tile's first K tile lie: those of columns, then of rows.

        Args:
            PARTS, UNIT_M: among how many consumers a cluster's rows are divided, of which each has
                so many.
            SEGMENT: how many columns have one scale together.
        """
        k = work.k_first
        columns = sources_of(self.memory.right, work.matrix, work.off_n, k, self.COLUMNS, SEGMENT,
                             self.memory.HALF, self.memory.up)  # fmt: skip
        OWN_M: gl.constexpr = UNIT_M // gl.num_ctas()
        COUNT: gl.constexpr = self.ROWS // PARTS
        row = work.off_m + block_of_cluster() * OWN_M
        rows = ()
        for part in gl.static_range(PARTS):
            rows += (
                sources_of(self.memory.left, work.matrix, row + part * UNIT_M, k, COUNT,
                           OWN_M // COUNT),
            )  # fmt: skip
        return columns, rows

    @gluon.jit
    def fill(self, columns, rows, index, barrier):
        """Start to copy the scales of a K tile into a buffer; all of the warp's threads arrive
        then.

        Returns:
            The `sources` of those of the next K tile.
        """
        address = own_address(self.words) + index * self.BYTES
        columns = copied(columns, self.memory.right.next_block(), address, self.COLUMNS)
        COUNT: gl.constexpr = self.ROWS // len(rows)
        moved = ()
        for part in gl.static_range(len(rows)):
            moved += (
                copied(rows[part], self.memory.left.next_block(),
                       address + (self.COLUMNS + part * COUNT) * 4, COUNT),
            )  # fmt: skip
        gl.inline_asm(ARRIVE, "r", (own_address(barrier),))
        return columns, moved

    @gluon.jit
    def of_rows(self, address, PART: gl.constexpr, PARTS: gl.constexpr, ROWS: gl.constexpr,
                LAYOUT: gl.constexpr):  # fmt: skip
        """Those of one consumer's rows of a buffer's tile, given where these begin: one tensor; or
        a number for each 64.
        """
        COUNT: gl.constexpr = self.ROWS // PARTS
        address += (self.COLUMNS + PART * COUNT) * 4
        found = ()
        if self.memory.left.EACH:
            rows = gl.arange(0, ROWS, LAYOUT) % COUNT
            found += (
                gl.inline_asm_elementwise(
                    READ, "=f,r", [address + rows * 4], gl.float32, is_pure=False, pack=1
                ),
            )
        else:
            for i in gl.static_range(COUNT):
                found += (gl.inline_asm(READ, "=f,r", (address + i * 4,), gl.float32),)
        return found

    @gluon.jit
    def of_columns(self, address, UNIT: gl.constexpr, UNITS: gl.constexpr, LAYOUT: gl.constexpr):
        """Those of a buffer's columns: a tensor for each unit; or a number for each segment."""
        found = ()
        if self.memory.right.EACH:
            for i in gl.static_range(UNITS):
                columns = i * UNIT + gl.arange(0, UNIT, LAYOUT)
                found += (
                    gl.inline_asm_elementwise(
                        READ_TWO, "=f,=f,r,r", [address + columns * 4], gl.float32,
                        is_pure=False, pack=2,
                    ),
                )  # fmt: skip
        else:
            for i in gl.static_range(self.COLUMNS):
                found += (gl.inline_asm(READ, "=f,r", (address + i * 4,), gl.float32),)
        return found


@gluon.jit
def staged_scales_of(scales, PLAN: gl.constexpr):
    """The scales of a kernel's pipeline, given those in memory; None if there are none."""
    if scales is None:
        staged: gl.constexpr = None
    else:
        WORDS: gl.constexpr = PLAN.scale_counts[0] + PLAN.scale_counts[1]
        BYTES: gl.constexpr = (WORDS + 3) // 4 * 16
        words = gl.allocate_shared_memory(
            gl.int32, [PLAN.tile.stages * BYTES // 16, 4], words_layout(gl.num_ctas())
        )
        staged = StagedScales(scales, words, PLAN.scale_counts[0], PLAN.scale_counts[1], BYTES)
    return staged
