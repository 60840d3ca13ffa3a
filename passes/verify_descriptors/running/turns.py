"""Threads and blocks that a kernel treats in another way than their neighbours.

What a condition makes of ``%tid`` or ``%ctaid``, constants and arguments is computed for each
number in turn; where it changes, both neighbours are worth a run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from triton_ext.integers import Number, on_numbers
from triton_ext.ptx.definitions import destinations
from triton_ext.ptx.integer_operations import integer_operation
from triton_ext.ptx.parse import Instruction, Kernel, immediate

_MOST = 6
"""Changes of one condition; what changes more often, such as with each lane, is periodic."""
_DEEP = 40


def _compared(condition: Instruction) -> Instruction:
    """``setp.ne.and.u32 %p1, %r1, %r2, %p2`` without what the comparison is combined with."""
    base, comparison, *rest = condition.opcode.split(".")
    opcode = ".".join((base, comparison, rest[-1]))
    return replace(condition, opcode=opcode, operands=condition.operands[:3])


class Turns:
    """The conditions of a kernel.

    Args:
        given: numbers for special registers and parameters, as `Tracer` takes them.
    """

    def __init__(self, kernel: Kernel, given: Mapping[str, int]) -> None:
        self.given = given
        self.conditions = [
            _compared(each) for each in kernel.instructions if each.opcode[:5] == "setp."
        ]
        self._writers: dict[str, list[Instruction]] = {}
        for instruction in kernel.instructions:
            for _, name in destinations(instruction):
                self._writers.setdefault(name, []).append(instruction)

    def of(self, name: str, count: int) -> list[int]:
        """The numbers on both sides of each change: of each condition one, then of each another.

        First come those of conditions that treat a single number in another way than all others.
        `name`: a special register, such as ``%tid.x``. `count`: it is less than that.
        """
        single: list[int] = []
        listed: list[list[int]] = []
        for condition in self.conditions:
            run = self._function(condition, name, 0)
            if run is None or not run[1]:
                continue
            values = [run[0](number) for number in range(count)]
            changes = [number for number in range(1, count) if values[number] != values[number - 1]]
            if len(changes) == 2 and changes[1] - changes[0] == 1:
                single.append(changes[0])
            if len(changes) <= _MOST:
                listed.append([*changes, *(each - 1 for each in changes)])
        turns = (at for each in itertools.zip_longest(*listed) for at in each if at is not None)
        return list(dict.fromkeys((*single, *turns)))

    def _function(
        self, instruction: Instruction, name: str, depth: int
    ) -> tuple[Callable[[int], Number], bool] | None:
        """What an instruction makes of the register, and whether that depends on it; None if it is
        not known."""
        base = instruction.opcode.partition(".")[0]
        if base == "ld" and ".param" in instruction.opcode:
            return self._value(instruction.operands[1].replace(" ", ""), name, depth)
        operation = integer_operation(instruction.opcode)
        sources = instruction.operands[1:]
        if operation is None or len(sources) != len(operation.source_widths) or depth > _DEEP:
            return None
        known = [self._value(text, name, depth + 1) for text in sources]
        functions = [each for each in known if each is not None]
        if len(functions) < len(known):
            return None
        apply, runs = on_numbers(operation), [each[0] for each in functions]

        def run(number: int) -> Number:
            return apply(*[each(number) for each in runs])

        return run, any(each[1] for each in functions)

    def _value(
        self, text: str, name: str, depth: int
    ) -> tuple[Callable[[int], Number], bool] | None:
        if text == name:
            return (lambda number: number), True
        number = immediate(text)
        number = self.given.get(text) if number is None else number & ((1 << 64) - 1)
        if number is not None:
            return (lambda _: number), False
        writers = self._writers.get(text, ())
        if len(writers) != 1 or writers[0].predicate:
            return None
        return self._function(writers[0], name, depth)
