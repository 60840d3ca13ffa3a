"""Whether products choose among the `triton_ext.kernels.choice.fixed_set` of kernels alone."""

from __future__ import annotations

import os

from triton_ext.errors import LayoutError
from triton_ext.ops import plans

VARIABLE = "TRITON_EXT_KERNELS"
"""The environment variable that says so for a process: "fixed", or "all", as by default."""


def _asked() -> bool:
    value = os.environ.get(VARIABLE, "all")
    if value not in ("fixed", "all"):
        raise LayoutError(VARIABLE, value, "must be 'fixed' or 'all'")
    return value == "fixed"


_fixed: bool | None = None


def is_fixed() -> bool:
    """What `fixed_kernels` has said last; else what the environment says.

    Raises:
        LayoutError: the environment says something else.
    """
    return _asked() if _fixed is None else _fixed


def fixed_kernels(enabled: bool = True) -> None:
    """Choose every product's kernel among the fixed set: at most 64 for a type of operands.

    They are compiled ahead by ``triton-ext precompile --fixed``; a process that finds them compiles
    nothing, whatever shapes come. A product takes some percent longer than in the best of all
    kernels (docs/matmul.md, "A fixed set of kernels"). What was tuned is not asked for. Products
    that communicate (`triton_ext.distributed`), and those with a ``config``, choose as ever.
    ``TRITON_EXT_KERNELS=fixed`` in the environment does the same for a program that is not to be
    touched.

    Args:
        enabled: False to choose among all kernels again.
    """
    global _fixed
    _fixed = enabled
    plans.forget()
