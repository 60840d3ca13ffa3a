"""Which columns of a block's tensor memory are allocated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import TensorMemoryFault
from triton_ext.hardware.tensor_memory import ALLOCATION_UNIT
from triton_ext.ptx.parse import Instruction


@dataclass(frozen=True)
class Allocation:
    """Columns that one tcgen05.alloc took.

    Attributes:
        column, columns: the first one, and their number.
        instruction: the tcgen05.alloc.
    """

    column: int
    columns: int
    instruction: Instruction
    exclusive: bool = False


def free_column(taken: NDArray[np.bool_], columns: int) -> int | None:
    """The first column at which `columns` columns are free, or None. `taken`: of each column."""
    for first in range(0, len(taken) - columns + 1, ALLOCATION_UNIT):
        if not taken[first : first + columns].any():
            return first
    return None


class Columns:
    """Those of one block; as text, the allocated ones.

    Attributes:
        capacity: how many there are.
        taken: of each, whether it is allocated.
        allocations: those that are not freed, by their first column.
        relinquished: whether the block has given up the right to allocate.
        smallest: columns of the last allocation; a later one may not be larger.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = self.smallest = capacity
        self.taken = np.zeros(capacity, np.bool_)
        self.allocations: dict[int, Allocation] = {}
        self.relinquished = False

    def allocate(
        self, column: int, columns: int, instruction: Instruction, *, exclusive: bool = False
    ) -> None:
        """Take columns that are free; what they hold is undefined."""
        self.allocations[column] = Allocation(column, columns, instruction, exclusive)
        self.taken[column : column + columns] = True
        self.smallest = columns

    def find(self, address: int, columns: int, *, exclusive: bool = False) -> Allocation:
        """The allocation that a tcgen05.dealloc names. Raises TensorMemoryFault: it names none."""
        found = self.allocations.get(address)
        if found is None or found.columns != columns:
            raise TensorMemoryFault(
                f"tcgen05.dealloc of {columns} columns at {address:#x}: that is no allocation;"
                f" allocated are columns {self}"
            )
        if found.exclusive != exclusive:
            ours, theirs = (".exclusive" if each else "" for each in (exclusive, found.exclusive))
            raise TensorMemoryFault(
                f"tcgen05.dealloc{ours} of what tcgen05.alloc{theirs} gave: both or neither must be"
                " .exclusive"
            )
        return found

    def release(self, allocation: Allocation) -> None:
        """Give columns back."""
        del self.allocations[allocation.column]
        self.taken[allocation.column : allocation.column + allocation.columns] = False

    def check(self, first: int, columns: int, name: str) -> None:
        """Raise TensorMemoryFault unless all of these columns are allocated."""
        last = first + columns
        if last > self.capacity or not self.taken[first:last].all():
            raise TensorMemoryFault(
                f"{name} uses tensor memory columns {first} to {last - 1}; allocated are columns"
                f" {self}"
            )

    def __str__(self) -> str:
        """The allocated columns, in words."""
        parts = [
            f"{each.column} to {each.column + each.columns - 1}"
            for each in sorted(self.allocations.values(), key=lambda each: each.column)
        ]
        return ", ".join(parts) or "none"
