"""Cases of the silicon check: small kernels, their inputs, and how their outputs are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HEADER = ".version 8.6\n.target sm_90a\n.address_size 64\n"


@dataclass
class Case:
    """One kernel with its arguments.

    Attributes:
        name: of the case, and of the kernel.
        entry: the kernel's PTX, without the module's header.
        args: one for each parameter, as `run_on_gpu` and `run_ptx` take them; the arrays are the
            inputs, and are changed in place by whoever runs the case: copy them first.
        outputs: which of the arguments to compare.
        bound: None: bit by bit. Else a function of (expected, found, inputs) that says which
            elements differ by more than the documentation allows.
        ptx: a module of its own; left out, the header and the entry.
    """

    name: str
    entry: str
    args: Sequence[Any]
    outputs: Sequence[int]
    grid: Any = 1
    block: Any = 32
    cluster: Any = None
    dynamic_smem_bytes: int = 0
    bound: Any = None
    buffers: Sequence[Any] = field(default_factory=tuple)

    @property
    def ptx(self) -> str:
        """A module that has this case alone."""
        return HEADER + self.entry

    def fresh(self) -> list[Any]:
        """The arguments, with copies of the arrays."""
        return [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in self.args]


def modules(cases: Sequence[Case], size: int = 64) -> list[tuple[str, Sequence[Case]]]:
    """The cases in modules of at most `size` kernels: the driver compiles few large ones faster."""
    groups = [cases[start : start + size] for start in range(0, len(cases), size)]
    return [(HEADER + "\n".join(case.entry for case in group), group) for group in groups]


def differences(case: Case, expected: Sequence[Any], found: Sequence[Any]) -> list[str]:
    """What differs between two runs of a case, at most a few lines of it."""
    lines = []
    for position in case.outputs:
        want, have = expected[position], found[position]
        if case.bound is not None:
            wrong = case.bound(want, have, case.args)
        else:
            raw = f"u{want.itemsize}"
            wrong = want.view(raw) != have.view(raw)
        for at in np.argwhere(np.atleast_1d(wrong))[:4]:
            index = tuple(int(n) for n in at)
            inputs = ", ".join(
                hex(int(arg.view(f"u{arg.itemsize}")[index]))
                for arg in case.args[: min(case.outputs)]
                if isinstance(arg, np.ndarray) and arg.shape == want.shape
            )
            raw = f"u{want.itemsize}"
            lines.append(
                f"{case.name} [{position}]{list(index)}: GPU {int(want.view(raw)[index]):#x},"
                f" emulator {int(have.view(raw)[index]):#x}, inputs {inputs}"
            )
    return lines
