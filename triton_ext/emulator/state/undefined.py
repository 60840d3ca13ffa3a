"""Registers whose values are undefined: they come from memory that nothing wrote.

Such a load is no fault by itself: a kernel may drop what it got. As in Valgrind's memcheck, the
value is followed, byte by byte of a register, and the fault is that of its use; it names the load,
too. Nothing is kept while no register is undefined.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import UninitializedRead
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.ptx.parse import Instruction

Origins = NDArray[np.int64]
"""Where values come from: 0 if they are defined, else the number of a load and a thread."""
UNWRITTEN = -1
"""The origin of bytes in memory that nothing wrote, until a load gives them one."""


@dataclass(eq=False)
class UnwrittenLoad:
    """A load of memory that nothing wrote.

    Attributes:
        instruction: the load.
        places: (threads,): the first place of each thread that nothing wrote.
        text: says what is wrong, from a place.
        where: says which thread of which block it is.
        hint: what else is known.
    """

    instruction: Instruction | None
    places: NDArray[np.int64]
    text: Callable[[int], str]
    where: Callable[[int], str]
    hint: str = ""


@dataclass
class UnwrittenLoads:
    """Those of a cluster: its blocks can pass such values on to each other.

    Args:
        threads: of a block.
    """

    threads: int

    def __post_init__(self) -> None:
        self._loads: list[UnwrittenLoad] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def add(self, rank: int, threads: NDArray[np.intp], load: UnwrittenLoad) -> Origins:
        """The origins of what threads of a block have loaded.

        A later load by the same instruction takes the place of an earlier one.
        """
        key = rank, id(load.instruction)
        number = self._numbers.setdefault(key, len(self._loads))
        if number == len(self._loads):
            self._loads.append(load)
        else:
            kept = self._loads[number]
            kept.places[threads], kept.hint = load.places[threads], load.hint
        return 1 + number * self.threads + threads

    def fault(self, origin: int, role: str) -> UninitializedRead:
        """The fault of a use. `role`: what the value is used for."""
        number, thread = divmod(int(origin) - 1, self.threads)
        load = self._loads[number]
        message = load.text(int(load.places[thread])) + load.hint
        fault = UninitializedRead(message, load.instruction, load.where(thread))
        fault.role = role
        return fault


class UndefinedRegisters:
    """The registers of a block that are undefined for some of its threads.

    Attributes:
        registers: their origins, (bytes, threads); those of predicates, (1, threads).
        loads: of the cluster.
    """

    def __init__(self, threads: int, loads: UnwrittenLoads) -> None:
        self.threads, self.loads = threads, loads
        self.registers: dict[Register, Origins] = {}

    def of(self, register: Register, lanes: Lanes) -> Origins | None:
        """(bytes, lanes): the origins of a register's value; None if it is defined."""
        found = self.registers.get(register)
        if found is None:
            return None
        here: Origins = found[:, lanes]
        return here if here.any() else None

    def of_any(self, registers: Iterable[Register], lanes: Lanes) -> Origins | None:
        """(lanes,): an origin of each lane's values of some registers; None: all are defined."""
        found = [self.of(register, lanes) for register in registers if register in self.registers]
        each = [origins.max(axis=0) for origins in found if origins is not None]
        return functools.reduce(np.maximum, each) if each else None

    def put(self, register: Register, lanes: Lanes, origins: Origins | None) -> None:
        """Give the value of a register its origins. `origins`: (bytes, lanes), (lanes,) for all
        bytes, or None if it is defined."""
        table = self.registers.get(register)
        if origins is None or not origins.any():
            if table is not None:
                table[:, lanes] = 0
                if not table.any():
                    del self.registers[register]
            return
        if table is None:
            table = np.zeros((max(1, register.width // 8), self.threads), np.int64)
            self.registers[register] = table
        table[:, lanes] = origins

    def put_all(self, registers: Iterable[Register], lanes: Lanes, origins: Origins | None) -> None:
        """The same for some registers."""
        for register in registers:
            self.put(register, lanes, origins)

    def check(self, registers: Iterable[Register], lanes: Lanes, role: str) -> None:
        """Raise UninitializedRead if one of the registers is undefined for one of the lanes."""
        found = self.of_any(registers, lanes)
        if found is not None:
            self.refuse(found, lanes, role)

    def refuse(self, origins: Origins, lanes: Lanes, role: str) -> None:
        """Raise UninitializedRead for the first lane whose value, (lanes,), is undefined."""
        first = int(np.flatnonzero(origins)[0])
        fault = self.loads.fault(int(origins[first]), role)
        fault.used_by_thread = int(lane_sets.indices(lanes)[first])
        raise fault
