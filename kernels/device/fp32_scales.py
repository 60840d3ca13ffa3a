"""fp32 scales of the blocks of A and B, by which sums of 128 products along K are multiplied.

Each operand has a scale for each 128 elements along K: of each of its rows (columns of B), or of
each 128 of them. They are read where they lie. On Blackwell a thread loads those of its rows and
columns before it waits for the sums; on Hopper a warp copies them beside the tiles
(`staged_scales`).
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import aggregate
from triton_ext.kernels.device.clusters import block_of_cluster
from triton_ext.kernels.device.values import value
from triton_ext.kernels.element_types import FP32_SCALE_BLOCK

BLOCK = gl.constexpr(FP32_SCALE_BLOCK)


@aggregate
class ScaleMatrix:
    """The scales of an operand: (rows, along K), of each matrix of a batch if it has several.

    Attributes:
        pointer: the first one's address.
        step: how many elements lie from one to the next of the dimension that is not contiguous.
        rows: how many there are of a matrix, of each row of the operand, or of each block of them.
        along: how many there are along K.
        K_MAJOR: whether those along K are contiguous.
        EACH: whether each row has its own.
        SEVERAL: whether each matrix has its own; one after the other, without a gap.
    """

    pointer: gl.tensor
    step: gl.tensor
    rows: gl.tensor
    along: gl.tensor
    K_MAJOR: gl.constexpr
    EACH: gl.constexpr
    SEVERAL: gl.constexpr

    @gluon.jit
    def at(self, matrix, row, k):
        """The addresses of some rows' scales for block k."""
        pointer = self.pointer
        step = self.step.to(gl.int64)
        if self.SEVERAL:
            pointer += matrix.to(gl.int64) * step * (self.rows if self.K_MAJOR else self.along)
        if self.K_MAJOR:
            pointer += row.to(gl.int64) * step + k
        else:
            pointer += k * step + row
        return pointer

    @gluon.jit
    def vector(self, matrix, off, k, LENGTH: gl.constexpr, LAYOUT: gl.constexpr,
               UP: gl.constexpr = None):  # fmt: skip
        """Those of so many rows from `off` on, which each have their own; 0 of those that there are
        not. Of a gate, those from UP on are rows of the second half.
        """
        rows = off + gl.arange(0, LENGTH, LAYOUT)
        if UP is not None:
            rows += gl.where(gl.arange(0, LENGTH, LAYOUT) < UP, 0, self.rows // 2 - UP)
        return gl.load(self.at(matrix, rows, k), mask=rows < self.rows, other=0.0)

    @gluon.jit
    def next_block(self):
        """How many elements lie from a block along K to the next."""
        return gl.to_tensor(1) if self.K_MAJOR else self.step

    @gluon.jit
    def one(self, matrix, off, k):
        """That of a row; of one behind the last, the last."""
        return gl.load(self.at(matrix, gl.minimum(off // BLOCK, self.rows - 1), k))


@aggregate
class Fp32Scales:
    """The scales of both operands.

    Attributes:
        left, right: theirs.
        up: how many columns behind those of the gate those of up begin.
        HALF: how many columns of a tile come before those of up; 0 if there is no gate.
    """

    left: ScaleMatrix
    right: ScaleMatrix
    up: gl.tensor
    HALF: gl.constexpr

    @gluon.jit
    def column(self, work, COLUMN: gl.constexpr):
        """A column of a tile, among those of the right operand."""
        off = work.off_n + COLUMN
        if self.HALF > 0 and COLUMN >= self.HALF:
            off += self.up - self.HALF
        return off

    @gluon.jit
    def of_rows(self, work, k, ROWS: gl.constexpr, TOGETHER: gl.constexpr, LAYOUT: gl.constexpr):
        """Those of a tile's rows, which the blocks of a cluster divide: one tensor; or one number
        for so many together of this block's.
        """
        OWN: gl.constexpr = ROWS // gl.num_ctas()
        found = ()
        if self.left.EACH:
            found += (self.left.vector(work.matrix, work.off_m, k, ROWS, LAYOUT),)
        else:
            off = work.off_m + block_of_cluster() * OWN
            for i in gl.static_range(0, OWN, TOGETHER):
                found += (self.left.one(work.matrix, off + i, k),)
        return found

    @gluon.jit
    def of_columns(self, work, k, UNIT: gl.constexpr, UNITS: gl.constexpr,
                   TOGETHER: gl.constexpr, LAYOUT: gl.constexpr):  # fmt: skip
        """Those of a tile's columns: a tensor for each unit; or one number for so many together."""
        found = ()
        if self.right.EACH:
            UP: gl.constexpr = self.HALF if UNIT > self.HALF and self.HALF > 0 else None
            for i in gl.static_range(UNITS):
                off = self.column(work, i * UNIT)
                found += (self.right.vector(work.matrix, off, k, UNIT, LAYOUT, UP),)
        else:
            for i in gl.static_range(0, UNIT * UNITS, TOGETHER):
                found += (self.right.one(work.matrix, self.column(work, i), k),)
        return found


@gluon.jit
def fp32_scales_of(values, size_m, size_n, num_k, left_step, right_step, PLAN: gl.constexpr):
    """The scales of a kernel's operands, or None; see `Fp32Scales`.

    Args:
        size_m, size_n: rows and columns of what is computed.
        num_k: blocks of 128 along K.
    """
    SCALES: gl.constexpr = PLAN.fp32_scales
    if SCALES is None:
        scales: gl.constexpr = None
    else:
        A_IS_LEFT: gl.constexpr = not PLAN.tile.swap_ab
        LEFT: gl.constexpr = "a_blocks" if A_IS_LEFT else "b_blocks"
        RIGHT: gl.constexpr = "b_blocks" if A_IS_LEFT else "a_blocks"
        columns = size_n * (2 if PLAN.gated else 1)
        left = ScaleMatrix(
            value(values, LEFT, PLAN), left_step,
            size_m if SCALES.left_each else gl.cdiv(size_m, BLOCK), num_k,
            SCALES.left_k_major, SCALES.left_each, SCALES.several[0],
        )  # fmt: skip
        right = ScaleMatrix(
            value(values, RIGHT, PLAN), right_step,
            columns if SCALES.right_each else gl.cdiv(columns, BLOCK), num_k,
            SCALES.right_k_major, SCALES.right_each, SCALES.several[1],
        )  # fmt: skip
        HALF: gl.constexpr = PLAN.tile.columns // 2 if PLAN.gated else 0
        scales = Fp32Scales(left, right, size_n, HALF)
    return scales
