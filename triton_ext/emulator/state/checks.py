"""What of a launch is a fault, besides what always is."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Checks:
    """What is checked of launches, as options of `triton_ext.emulate` say it.

    Attributes:
        layouts: who reads what TMA has written must read it in the same layout.
        races: accesses to global memory must be ordered.
        empty: memory of ``torch.empty`` must have been written before it is read.
        views: a launch reaches of a tensor's storage its elements alone.
        unread: what copies bring must be read before another copy overwrites it.
        strict: what `triton_ext.emulator.state.leniencies` lists is a fault.
    """

    layouts: bool = True
    races: bool = True
    empty: bool = False
    views: bool = True
    unread: bool = False
    strict: bool = False

    @classmethod
    def taken_from(cls, options: MutableMapping[str, Any]) -> Checks:
        """Those of options such as ``check_layouts``, which are removed."""
        names = [name for name in options if name == "strict" or name.startswith("check_")]
        return cls(**{name.removeprefix("check_"): options.pop(name) for name in names})


DEFAULT_CHECKS = Checks()
"""What is checked if nothing is said."""
