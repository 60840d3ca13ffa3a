"""The part of a PTX kernel that some of its instructions depend on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace

from triton_ext.ptx.definitions import destinations, mentioned
from triton_ext.ptx.parse import Instruction, Kernel


class Slicer:
    """Slices of one kernel, whose instructions are gone through once for all of them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._writers: dict[str, list[int]] = {}
        self._numbers: dict[int, int] = {}
        self._branches: list[int] = []
        for number, instruction in enumerate(kernel.instructions):
            self._numbers[id(instruction)] = number
            for _, name in destinations(instruction):
                self._writers.setdefault(name, []).append(number)
            if instruction.opcode.startswith(("bra", "brx", "ret", "exit", "trap")):
                self._branches.append(number)

    def part(
        self, wanted: Iterable[Instruction], addressed: Mapping[int, str] | None = None
    ) -> Kernel:
        """As `slice_kernel`."""
        kernel, addressed = self.kernel, addressed or {}
        kept = {*(self._numbers[id(instruction)] for instruction in wanted), *addressed}
        pending = list(kept)
        names: set[str] = set()
        while pending:
            number = pending.pop()
            instruction = kernel.instructions[number]
            if number in addressed:
                instruction = replace(instruction, operands=(addressed[number],))
            for name in mentioned(instruction):
                if name in names:
                    continue
                names.add(name)
                for number in self._writers.get(name, ()):
                    if number not in kept:
                        kept.add(number)
                        pending.append(number)
        order = sorted(kept.union(self._branches))
        labels = {label: bisect_left(order, number) for label, number in kernel.labels.items()}
        return replace(
            kernel,
            instructions=tuple(kernel.instructions[number] for number in order),
            labels=labels,
        )


def slice_kernel(
    kernel: Kernel, wanted: Iterable[Instruction], addressed: Mapping[int, str] | None = None
) -> Kernel:
    """The instructions that the wanted ones depend on, and the kernel's branches.

    What registers hold at the wanted instructions is the same in both, as far as `Folder` knows it.
    `wanted`: instructions, all of whose operands count. `addressed`: the operands that count of
    instructions of which others do not, by the number of the instruction, wanted or not.
    """
    return Slicer(kernel).part(wanted, addressed)
