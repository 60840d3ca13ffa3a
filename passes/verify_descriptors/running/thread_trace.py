"""What a thread of a PTX kernel executes, as values: its instructions, addresses, and its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from triton_ext.integers import Number
from triton_ext.passes.verify_descriptors.running.poison import Poison
from triton_ext.passes.verify_descriptors.running.trace_end import End
from triton_ext.ptx.parse import Instruction

Operand: TypeAlias = "Number | tuple[Operand, ...]"
"""A number, or what stands in brackets: ``[%rd1, {%r2, %r3}]`` is ((base, (c0, c1)))."""


@dataclass(frozen=True)
class ExecutedInstruction:
    """One execution of one of the chosen instructions.

    Attributes:
        operands: their values, in order; None for what is not known.
    """

    instruction: Instruction
    operands: tuple[Operand, ...]


@dataclass
class ThreadTrace:
    """What a thread executes.

    Attributes:
        accesses: the executions of what is observed: the instruction, its address (None if that is
            not known), and how many events came before. A condition that is not known counts as
            true.
        elections: the executions of ``elect.sync``.
        poison: the last instruction whose condition is no condition of the kernel's, and that.
    """

    poison: tuple[Instruction, Poison] | None = None
    events: list[ExecutedInstruction] = field(default_factory=list)
    accesses: list[tuple[Instruction, Operand, int]] = field(default_factory=list)
    end: End = field(default_factory=End)
    elections: list[Instruction] = field(default_factory=list)
