"""A decoded instruction, and what it may answer when it is executed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.flow import Flow
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.ptx.parse import Instruction

_ORDERING = ("bar.", "barrier.", "fence", "membar", "atom", ".acquire")
_MEETING = (".sync", ".aligned", "mbarrier.", "barrier.", "fence", "membar", "atom", ".acquire")


@dataclass
class Wait:
    """The lanes stay at the instruction until `ready`; then `resume` runs, and they go on.

    Attributes:
        ready: asked often; without side effects.
        why: says what is waited for, in a deadlock's message.
        resume: what the instruction does at the end of the wait.
        timeout: for instructions that may give up, such as ``mbarrier.try_wait``: called instead
            of `resume` when nothing in the machine can go on; the lanes go on, too.
        again: they have not executed the instruction, and do so afterwards.
        patient: the program does not ask for the wait: it ends when nothing in the machine can go
            on, too.
    """

    ready: Callable[[], bool]
    why: Callable[[], str]
    resume: Callable[[], None] = lambda: None
    timeout: Callable[[], None] | None = None
    again: bool = False
    patient: bool = False


@dataclass
class Jump:
    """The lanes go to another instruction: one for all, or one for each (-1: the lane exits)."""

    target: int | NDArray[np.intp]


@dataclass
class Split:
    """The lanes cannot execute the instruction together: the given sets do it one by one."""

    parts: list[Lanes]


@dataclass
class Park:
    """Lanes stay at the instruction until others that it names come to it, too.

    Attributes:
        lanes: those that stay; the others have executed it.
    """

    lanes: Lanes


Outcome = Wait | Jump | Split | Park | None
"""None: the lanes have executed it, and go on to the next one."""
Run = Callable[[Cta, Lanes], Outcome]


@dataclass(frozen=True)
class Step:
    """A decoded instruction.

    Attributes:
        instruction: the one that was decoded.
        run: executes it for lanes whose guard is true.
        guard: the row of the predicate, or -1.
        negated: whether the guard is ``@!p``.
        convergent: how many threads must execute it together: 32, a warp; 128, a warpgroup; or 0.
        in_flight: whether it may name registers that an asynchronous instruction still uses.
        lockstep: whether several blocks may execute it at once.
        touched: the registers that it names.
        written: those of them that it writes.
        read, addresses: those whose values it reads, and that are addresses.
        flow: how undefined values go through it; None if it uses all that it reads.
    """

    instruction: Instruction
    run: Run
    guard: int
    negated: bool
    convergent: int
    in_flight: bool
    lockstep: bool
    touched: frozenset[Register]
    written: frozenset[Register] = frozenset()
    read: frozenset[Register] = frozenset()
    addresses: frozenset[Register] = frozenset()
    flow: Flow | None = None

    @functools.cached_property
    def meets(self) -> bool:
        """Whether the lanes of a warp meet here, or may order their accesses by it."""
        return any(part in self.instruction.opcode for part in _MEETING)

    @functools.cached_property
    def orders(self) -> bool:
        """Whether it orders what the lanes of a warp have done before with what they do next.

        ``elect.sync``, ``shfl.sync`` and their like do not, and a proxy fence is its thread's own
        (PTX ISA, "bar.warp.sync", "fence.proxy").
        """
        opcode = self.instruction.opcode
        return any(part in opcode for part in _ORDERING) and not opcode.startswith("fence.proxy")

    @functools.cached_property
    def copies(self) -> bool:
        """Whether it does nothing but copy registers."""
        return self.instruction.opcode.startswith("mov.")

    def track(self, cta: Cta, lanes: Lanes, taken: Lanes | None) -> None:
        """Follow undefined values through it; to be called before it runs, if there are any.

        Args:
            lanes: those that stand at it.
            taken: those of them whose guard is true; None: none of them.

        Raises:
            UninitializedRead: it uses one.
        """
        undefined = cta.undefined
        if self.touched.isdisjoint(undefined.registers):
            return
        doubt = None
        if self.guard >= 0:
            doubt = undefined.of_any((Register(1, self.guard),), lanes)
            if doubt is not None and (self.flow is None or not self.flow.pure):
                undefined.refuse(doubt, lanes, self._role)
        if taken is not None:
            undefined.check(self.addresses, taken, "the value is an address")
            if self.flow is not None:
                self.flow.follow(cta, taken)
            else:
                undefined.check(self.read | self.touched - self.written, taken, self._role)
                undefined.put_all(self.written, taken, None)
        if doubt is not None:
            unsure = lane_sets.select(lanes, doubt != 0)
            undefined.put_all(self.written, unsure, doubt[doubt != 0])

    @functools.cached_property
    def _role(self) -> str:
        """What a value is to an instruction that uses it."""
        opcode = self.instruction.opcode
        if opcode.startswith(("bra", "brx")):
            return "the value decides a branch"
        return f"the value is an operand, or the predicate, of {opcode.partition('.')[0]}"
