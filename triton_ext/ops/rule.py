"""By which rule products choose their kernels: among all, among a fixed set, or by measuring."""

from __future__ import annotations

import os
from typing import Literal, get_args

from triton_ext.errors import LayoutError
from triton_ext.ops import plans

VARIABLE = "TRITON_EXT_KERNELS"
"""The environment variable that says so for a process; "all" is the default."""
Rule = Literal["all", "fixed", "measured"]
RULES: tuple[Rule, ...] = get_args(Rule)


def _asked() -> Rule:
    value = os.environ.get(VARIABLE, "all")
    for each in RULES:
        if value == each:
            return each
    raise LayoutError(VARIABLE, value, f"must be one of {', '.join(RULES)}")


_given: Rule | None = None


def rule() -> Rule:
    """What `fixed_kernels` or `measured_kernels` has said last; else what the environment says.

    Raises:
        LayoutError: the environment says something else.
    """
    return _asked() if _given is None else _given


def _give(chosen: Rule) -> None:
    global _given
    _given = chosen
    plans.forget()


def fixed_kernels(enabled: bool = True) -> None:
    """Choose every product's kernel among the fixed set: at most 64 for a type of operands.

    They are compiled ahead by ``triton-ext precompile --fixed``; a process that finds them compiles
    nothing, whatever shapes come. A product takes some percent longer than in the best of all
    kernels (docs/guide/matmul.md, "A fixed set of kernels"). What was tuned is not asked for.
    Products that communicate (`triton_ext.distributed`), and those with a ``config``, choose as
    ever. ``TRITON_EXT_KERNELS=fixed`` in the environment does the same for a program that is not to
    be touched.

    Args:
        enabled: False to choose among all kernels again.
    """
    _give("fixed" if enabled else "all")


def measured_kernels(enabled: bool = True) -> None:
    """Measure every product when it is made for the first time, as `triton_ext.autotune` does.

    The cost model's first four configurations are compiled and timed on the operands themselves,
    torch's own product beside them, and what was found is kept in the file of `autotune`, for this
    process and later ones: only the first call on a machine takes its seconds. Within `drop_in`,
    products that torch makes faster are left to it from then on. What is first seen while a CUDA
    graph is captured is not measured: run it once before. Products that communicate
    (`triton_ext.distributed`), those of block-scaled types, and those with a ``config`` choose as
    ever. ``TRITON_EXT_KERNELS=measured`` in the environment does the same for a program that is not
    to be touched.

    Args:
        enabled: False to choose by the cost model, and by what was tuned, again.
    """
    _give("measured" if enabled else "all")
