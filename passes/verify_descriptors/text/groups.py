"""The tensor-core instructions, TMA copies and ``expect_tx`` of a PTX kernel, by operation.

One operation of the TTGIR becomes several instructions. They stand together: wgmma up to the next
``commit_group``; all others share the ``elect.sync`` that chooses the thread that issues them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from triton_ext.passes.verify_descriptors.meaning.kinds import IN_ORDER, kind_of
from triton_ext.passes.verify_descriptors.text.slices import slice_kernel
from triton_ext.ptx.control_flow import blocks_in_order
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.parse import Instruction, Kernel, Module

_BARRIERS = ("bar.", "barrier.", "mbarrier.")


@dataclass(eq=False)
class Group:
    """The instructions that one operation became.

    Attributes:
        elected: the ``elect.sync`` (or the predicate) that they share.
        block: where their basic block begins.
        repeats: a group that is the same and issued once more, with nothing in between: a copy of
            it that no compiler makes.
    """

    kind: str
    function: Function
    instructions: list[Instruction]
    elected: str
    block: int
    repeats: Group | None = None

    @property
    def is_in_order(self) -> bool:
        """Whether the group is compared as it is executed, and not in the text."""
        return self.kind in IN_ORDER

    @property
    def first(self) -> Instruction:
        """The first instruction."""
        return self.instructions[0]


class Function:
    """A PTX kernel or function, with what its registers hold."""

    def __init__(self, module: Module, kernel: Kernel) -> None:
        self.module, self.kernel = module, kernel
        self.wanted = [item for item in kernel.instructions if kind_of(item)]

    @cached_property
    def operands(self) -> dict[int, str]:
        """The numbers of the wgmmas, and their operands but for those that are many registers."""
        return {
            number: ",".join(text for text in instruction.operands if text[:1] != "{")
            for number, instruction in enumerate(self.kernel.instructions)
            if kind_of(instruction) == "wgmma"
        }

    @cached_property
    def folder(self) -> Folder:
        """What is known of the registers at the instructions that are verified."""
        kernel = slice_kernel(self.kernel, self.wanted, self.operands)
        return Folder(kernel, self.module.variables)

    @cached_property
    def threads(self) -> int:
        """The threads of a block, if the PTX says; else 1024, the most there may be."""
        sizes = self.kernel.directives.get("reqntid") or self.kernel.directives.get("maxntid")
        return sizes[0] if sizes else 1024

    def groups(self) -> Iterator[Group]:
        """The groups, in the order of the text."""
        if not self.wanted:
            return
        starts = sorted(block.start for block in blocks_in_order(self.kernel))
        is_start = set(starts)
        current: Group | None = None
        block, last = 0, ""
        since_barrier: dict[str, Group] = {}
        for number, instruction in enumerate(self.kernel.instructions):
            if number in is_start:
                block, current = number, None
                since_barrier = {}
            opcode = instruction.opcode
            if opcode.startswith("wgmma.commit_group"):
                current = None
            if opcode.startswith("elect.sync"):
                last = instruction.operands[0]
            kind = kind_of(instruction)
            if opcode.startswith(_BARRIERS) and kind != "expect":
                since_barrier = {}
            if not kind:
                continue
            elected = "" if kind == "wgmma" else self._elected(instruction, last)
            if (
                current is not None
                and kind != "expect"
                and kind not in IN_ORDER
                and current.kind == kind
                and current.elected == elected
                and (kind != "tma" or current.first.opcode == opcode)
            ):
                current.instructions.append(instruction)
                continue
            current = Group(kind, self, [instruction], elected, block)
            if kind == "expect":
                key = str(instruction)
                current.repeats = since_barrier.get(key)
                since_barrier[key] = current
            yield current

    def _elected(self, instruction: Instruction, last: str) -> str:
        """The predicate of an ``elect.sync`` that an instruction's guard is made of; else (LLVM
        knows the guard) the guard, and the `last` one's result."""
        seen, pending = set(), [instruction.predicate.lstrip("!")]
        while pending:
            name = pending.pop()
            if not name or name in seen:
                continue
            seen.add(name)
            for writer in self._writers.get(name, ()):
                if writer.opcode.startswith("elect.sync"):
                    return name
                if writer.opcode.startswith(("and.pred", "selp", "mov.pred", "not.pred")):
                    pending += [text.lstrip("!") for text in writer.operands[1:]]
        return f"{instruction.predicate} {last}"

    @cached_property
    def _writers(self) -> dict[str, list[Instruction]]:
        found: dict[str, list[Instruction]] = {}
        for instruction in self.kernel.instructions:
            if instruction.opcode.startswith(
                ("elect.sync", "and.pred", "selp.pred", "mov.pred", "not.pred")
            ):
                for name in re.split(r"[|,]", instruction.operands[0]):
                    found.setdefault(name.strip(), []).append(instruction)
        return found


def functions(module: Module) -> list[Function]:
    """The functions of a PTX module that have instructions to verify."""
    found = [Function(module, kernel) for kernel in module.kernels]
    return [function for function in found if function.wanted]
