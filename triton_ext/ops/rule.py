"""By which rule products choose their kernels: among all, among a fixed set, or by measuring; and
whether a row's bits must not depend on the other rows.
"""

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
    Raises LayoutError: the environment says something else."""
    return _asked() if _given is None else _given


def _give(chosen: Rule) -> None:
    global _given
    _given = chosen
    plans.clear_cache()


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


INVARIANT_VARIABLE = "TRITON_EXT_BATCH_INVARIANT"
"""The environment variable that asks for `batch_invariant` in a process by "1"."""
_invariant: bool | None = None


def is_batch_invariant(asked: bool | None = None) -> bool:
    """What a call asks for; else what `batch_invariant` has said last; else what the environment
    says.

    Args:
        asked: the call's keyword.

    Raises:
        LayoutError: the environment says something else.
    """
    if asked is not None:
        return asked
    if _invariant is not None:
        return _invariant
    value = os.environ.get(INVARIANT_VARIABLE, "0")
    if value not in ("0", "1"):
        raise LayoutError(INVARIANT_VARIABLE, value, "must be 0 or 1")
    return value == "1"


def _set_invariant(value: bool | None) -> None:
    global _invariant
    _invariant = value
    plans.clear_cache()


class BatchInvariant:
    """What `batch_invariant` returns: active from the start; its block ends it."""

    def __init__(self, enabled: bool) -> None:
        self._before = _invariant
        _set_invariant(enabled)

    def close(self) -> None:
        """What was said before holds again."""
        _set_invariant(self._before)

    def __enter__(self) -> BatchInvariant:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def batch_invariant(enabled: bool = True) -> BatchInvariant:
    """Let no row's bits depend on how many rows are with it: kernels that divide K are not chosen.

    ``with triton_ext.batch_invariant():`` does so in a block, ``batch_invariant()`` for good (or
    until ``close()`` of what it returns), for all threads of the process;
    ``TRITON_EXT_BATCH_INVARIANT=1`` for a program that is not to be touched. Then each element is
    the sum of its products in the order of K, as one block makes it: the tensor cores add 16
    elements of 16 bits, 32 of 8, or 8 of tf32 to a sum at a time; sums of fp8 with fp32
    accumulation or scales by blocks are added by 128 elements in fp32; then scales, bias, residual
    and activation follow in fp32. It holds for products of one matrix, of batches and of groups, in
    every run; not for those with a ``config``, or of types that `drop_in` leaves to PyTorch. The
    keyword ``batch_invariant`` of a product says so of this product and its gradients alone.

    Args:
        enabled: False for the free choice, whatever the environment says.
    """
    return BatchInvariant(enabled)
