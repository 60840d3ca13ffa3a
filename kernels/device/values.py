"""The pointers and numbers of a launch, which a kernel takes as one tuple, by name."""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def position(name, names):
    """Where a name is among others; None if it is not."""
    return names.index(name) if name in names else None


@gluon.jit
def value(values, NAME: gl.constexpr, PLAN: gl.constexpr):
    """That of `values` which `SpecializedPlan.values` gives this name; None if none has it."""
    POSITION: gl.constexpr = position(NAME, PLAN.values)
    if POSITION is None:
        found: gl.constexpr = None
    else:
        found = values[POSITION]
    return found
