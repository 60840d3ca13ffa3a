"""How many floating-point operations the operators of torch make, as torch counts its own.

``torch.utils.flop_counter.FlopCounterMode`` counts by these formulas, and torch's compiler weighs
by them what it keeps for the backward pass (``activation_memory_budget``) and what it overlaps.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from triton_ext.startup import when_imported

Formula = Callable[..., int]
"""The operations, from the shapes of tensors and the other arguments, and ``out_shape``."""

_COUNTER = "torch.utils.flop_counter"
_formulas: dict[str, Formula] = {}


def of_product(a: Sequence[int], b: Sequence[int], *_: Any, **__: Any) -> int:
    """The FLOPs of (..., M, K) @ (..., K, N): a multiplication and an addition each."""
    return 2 * math.prod(a) * b[-1]


def of_gathered(a: Sequence[int], b: Sequence[int], *_: Any, out_shape: Any, **__: Any) -> int:
    """The same for the rows of all ranks, of which a has this rank's."""
    return of_product((out_shape[0], a[-1]), b)


def of_groups(position: int) -> Formula:
    """The same for products of groups, given the position of their argument ``rows``."""

    def count(a: Sequence[int], b: Sequence[int], *others: Any, rows: Any = None, **_: Any) -> int:
        rows = others[position - 2] if len(others) > position - 2 else rows
        batch = a[0] if len(a) == len(b) == 3 else 1
        return batch * of_product((a[-2] if rows is None else rows[0], a[-1]), b)

    return count


def counted_by(name: str, formula: Formula) -> None:
    """Have torch count an operator of ``torch.ops.triton_ext``, once its counter is imported."""
    _formulas[name] = formula
    when_imported(_COUNTER, _register)


def _register() -> None:
    counter = importlib.import_module(_COUNTER)
    modes = (getattr(mode, "counter", mode) for mode in _get_current_dispatch_mode_stack())
    entered = [mode for mode in modes if isinstance(mode, counter.FlopCounterMode)]
    for name, formula in _formulas.items():
        packet = getattr(torch.ops.triton_ext, name)
        if packet not in counter.flop_registry:
            counter.register_flop_formula(packet)(formula)
        for mode in entered:  # which copied the registry before we were imported
            mode.flop_registry.setdefault(packet, counter.flop_registry[packet])
