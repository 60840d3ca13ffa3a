"""What an epilogue computes: operations on the pieces of a tile in registers.

An operation is an aggregate with two methods. `begin` is given a `Region`, and asks for what the
pieces there are combined with, mostly while the tile is multiplied: each piece would wait for its
own. `piece` is given one of these pieces and what `begin` has returned, and returns the next x.
(A `residual` is one besides, which comes by TMA, and also has an end.)

To add one: the class here, its line in `operations_of`, its values in `plan.value_names`.
"""

# Gluon functions: their arguments are values of the compiler, not of Python, and a tuple that grows
# is one of another type.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.compat import aggregate
from triton_ext.kernels.device.activations import activated
from triton_ext.kernels.device.row_scatter import RowScatter
from triton_ext.kernels.device.values import value


@aggregate
class Region:
    """Where some pieces of a tile lie in C, (ROWS, PART) each.

    Attributes:
        row, columns: where they begin.
        size: that of C: (rows, columns).
        before, before_n: how many elements of vectors along M, and along N, come before those of
            this C or group.
        START: the first one's first column, in the tile.
        WHICH: the consumer.
        LAYOUT: theirs in registers.
    """

    row: gl.tensor
    columns: gl.tuple
    size: gl.tuple
    before: gl.tensor | gl.constexpr
    before_n: gl.tensor | gl.constexpr
    ROWS: gl.constexpr
    PART: gl.constexpr
    START: gl.constexpr
    WHICH: gl.constexpr
    LAYOUT: gl.constexpr


@gluon.constexpr_function
def dimension(across, each):
    """Along which dimension of a piece a vector lies; one value for all is as good in each row."""
    return 1 if across and each else 0


@aggregate
class Vector:
    """Numbers along a dimension of C, as they lie in memory.

    Attributes:
        pointer: the address of the first one.
        EACH: 1 if every row or column has its own, 0 if they share one.
        OF_N: whether they lie along N; else along M.
        ACROSS: whether they lie along the columns of what is computed.
    """

    pointer: gl.tensor
    EACH: gl.constexpr
    OF_N: gl.constexpr
    ACROSS: gl.constexpr

    @gluon.jit
    def begin(self, region):
        """The values for pieces: along their rows, which all have in common, or of each."""
        pointer = self.pointer
        if not self.OF_N:
            pointer += region.before * self.EACH
        else:
            pointer += region.before_n * self.EACH
        DIM: gl.constexpr = dimension(self.ACROSS, self.EACH)
        found = ()
        if DIM == 0:
            rows = region.size[0]
            found += (self.values(pointer, region.row, rows, region.ROWS, region.LAYOUT, 0),)
        else:
            for i in gl.static_range(len(region.columns)):
                off, size = region.columns[i], region.size[1]
                found += (self.values(pointer, off, size, region.PART, region.LAYOUT, 1),)
        return found

    @gluon.jit
    def values(self, pointer, off, size, LENGTH: gl.constexpr, LAYOUT: gl.constexpr,
               DIM: gl.constexpr):  # fmt: skip
        """So many values from `off` on, to be combined with a piece that has LAYOUT, along DIM."""
        indices = off + gl.arange(0, LENGTH, gl.SliceLayout(1 - DIM, LAYOUT))
        return gl.load(pointer + indices * self.EACH, mask=indices < size, other=0.0)

    @gluon.jit
    def along(self, found, i: gl.constexpr):
        """The values for piece i, fp32, as a row or a column."""
        DIM: gl.constexpr = dimension(self.ACROSS, self.EACH)
        return gl.expand_dims(found[i if DIM else 0].to(gl.float32), 1 - DIM)


@aggregate
class Weights:
    """The factors of rows that go where indices say, as a `Vector`; of one piece at a time."""

    scatter: RowScatter

    @gluon.jit
    def begin(self, region):
        """The values for a piece."""
        scatter = self.scatter
        START: gl.constexpr = region.START
        PART: gl.constexpr = region.PART
        LAYOUT: gl.constexpr = region.LAYOUT
        return (scatter.along(scatter.weights, START, PART, LAYOUT, region.WHICH),)

    @gluon.jit
    def along(self, found, i: gl.constexpr):
        """The values for piece i, as a row or a column."""
        return gl.expand_dims(found[i], 1 if self.scatter.OF_ROWS else 0)


@aggregate
class Factor:
    """x times a number."""

    number: gl.tensor

    @gluon.jit
    def begin(self, region):
        """Nothing is asked for."""
        return ()

    @gluon.jit
    def piece(self, x, found, i: gl.constexpr):
        """Piece i."""
        return x.to(gl.float32) * self.number


@aggregate
class Along:
    """x times, or plus, a number of each row or column of C, or one for all."""

    vector: Vector | Weights
    ADDS: gl.constexpr

    @gluon.jit
    def begin(self, region):
        """The numbers."""
        return self.vector.begin(region)

    @gluon.jit
    def piece(self, x, found, i: gl.constexpr):
        """Piece i."""
        own = self.vector.along(found, i)
        return x.to(gl.float32) + own if self.ADDS else x.to(gl.float32) * own


@aggregate
class Activation:
    """An activation function of x, which will be rounded to so many bits."""

    NAME: gl.constexpr
    BITS: gl.constexpr

    @gluon.jit
    def begin(self, region):
        """Nothing is asked for."""
        return ()

    @gluon.jit
    def piece(self, x, found, i: gl.constexpr):
        """Piece i."""
        return activated(x, self.NAME, self.BITS)


@gluon.jit
def begin_each(operations, region):
    """What each operation's `begin` returns."""
    found = ()
    for i in gl.static_range(len(operations)):
        found += (operations[i].begin(region),)
    return found


@gluon.jit
def apply_each(operations, x, found, i: gl.constexpr):
    """Piece i, x, after all of them, one after the other."""
    for j in gl.static_range(len(operations)):
        x = operations[j].piece(x, found[j], i)
    return x


@aggregate
class Found:
    """What the operations of `Operations` have asked for."""

    of_part: gl.tuple
    before: gl.tuple
    of_up: gl.tuple
    after: gl.tuple


@aggregate
class Operations:
    """All of an epilogue.

    Attributes:
        of_part: those on a rank's part of the sum, where ranks make it together.
        before: those on the sum, before a residual is added.
        of_up: those on what an activated gate is multiplied with.
        after: those after it.
    """

    of_part: gl.tuple
    before: gl.tuple
    of_up: gl.tuple
    after: gl.tuple

    @gluon.jit
    def begin(self, region):
        """Ask for what all of them need."""
        before = begin_each(self.before, region)
        of_up = begin_each(self.of_up, region)
        after = begin_each(self.after, region)
        return Found(begin_each(self.of_part, region), before, of_up, after)


@gluon.jit
def operations_of(values, scatter, BITS: gl.constexpr, PLAN: gl.constexpr):
    """The operations of a kernel whose C has so many bits; see `Operations`.

    Args:
        scatter: where the rows of its tiles go; None if they go in order.
    """
    SPEC: gl.constexpr = PLAN.epilogue
    N_IS_COLUMN: gl.constexpr = not PLAN.tile.swap_ab
    of_part = ()
    if SPEC.alpha:
        of_part += (Factor(value(values, "alpha", PLAN)),)
    if SPEC.a_scales is not None:
        EACH_ROW: gl.constexpr = int(SPEC.a_scales == "each")
        scales = value(values, "a_scale", PLAN)
        of_part += (Along(Vector(scales, EACH_ROW, False, not N_IS_COLUMN), False),)
    if SPEC.b_scales is not None:
        EACH_COLUMN: gl.constexpr = int(SPEC.b_scales == "each")
        scales = value(values, "b_scale", PLAN)
        of_part += (Along(Vector(scales, EACH_COLUMN, True, N_IS_COLUMN), False),)
    before = ()
    if SPEC.bias:
        before += (Along(Vector(value(values, "bias", PLAN), 1, True, N_IS_COLUMN), True),)
    of_up = ()
    if SPEC.activation == "clamped_silu":
        of_up += (Activation("clamped_up", BITS),)
    after = ()
    if SPEC.activation is not None:
        after += (Activation(SPEC.activation, BITS),)
    if SPEC.factors and scatter is not None and scatter.weights is not None:
        after += (Along(Weights(scatter), False),)
    elif SPEC.factors:
        factors = value(values, "factors", PLAN)
        after += (Along(Vector(factors, 1, False, not N_IS_COLUMN), False),)
    return Operations(of_part, before, of_up, after)
