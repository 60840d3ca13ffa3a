"""The part of a PTX kernel that some of its instructions depend on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace

from triton_ext.ptx.folding import destinations, mentioned
from triton_ext.ptx.parse import Instruction, Kernel


def slice_kernel(
    kernel: Kernel, wanted: Iterable[Instruction], addressed: Mapping[int, str] | None = None
) -> Kernel:
    """The instructions that the wanted ones depend on, and the kernel's branches.

    What registers hold at the wanted instructions is the same in both, as far as `Folder` knows it.

    Args:
        kernel: the whole.
        wanted: instructions, all of whose operands count.
        addressed: the operands that count of instructions of which others do not, by the number of
            the instruction, wanted or not.
    """
    by_name: dict[str, list[int]] = {}
    for number, instruction in enumerate(kernel.instructions):
        for _, name in destinations(instruction):
            by_name.setdefault(name, []).append(number)
    numbers = {id(instruction): i for i, instruction in enumerate(kernel.instructions)}
    addressed = addressed or {}
    kept = {*(numbers[id(instruction)] for instruction in wanted), *addressed}
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
            for number in by_name.get(name, ()):
                if number not in kept:
                    kept.add(number)
                    pending.append(number)
    for number, instruction in enumerate(kernel.instructions):
        if instruction.opcode.startswith(("bra", "brx", "ret", "exit", "trap")):
            kept.add(number)
    order = sorted(kept)
    labels = {label: bisect_left(order, number) for label, number in kernel.labels.items()}
    return replace(
        kernel, instructions=tuple(kernel.instructions[number] for number in order), labels=labels
    )
