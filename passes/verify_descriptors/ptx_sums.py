"""The operands of a PTX kernel as sums of what is not known.

`Sums` follows additions, shifts and products by constants, and what LLVM makes of them, such as an
``or`` of bits that are known to be 0.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace

from triton_ext.integers import evaluate
from triton_ext.passes.verify_descriptors.sums import AnySum, LinearSum, SumDomain
from triton_ext.ptx.folding import Folder, destinations
from triton_ext.ptx.integer_operations import integer_operation
from triton_ext.ptx.known_bits import are_disjoint
from triton_ext.ptx.parse import Instruction, Kernel, Variable, split_operands

Sum = LinearSum[str]
"""What is not known are registers, by name, and parameters (``[kernel_param_0]``)."""
_SUMS: SumDomain[str] = SumDomain()
_MAX_TERMS = 32
_MAX_DEPTH = 200


class Sums:
    """The operands of a kernel as sums.

    Args:
        kernel: the kernel.
        variables: those of the module.

    Attributes:
        folder: what else is known of the registers: where it knows a value, the sum is a constant.
    """

    def __init__(self, kernel: Kernel, variables: Iterable[Variable] = ()) -> None:
        self.kernel = kernel
        self.folder = Folder(kernel, variables)
        self._numbers = {instruction: i for i, instruction in enumerate(kernel.instructions)}
        self._writes: dict[str, list[tuple[int, int]]] = {}
        for number, instruction in enumerate(kernel.instructions):
            for index, name in destinations(instruction):
                self._writes.setdefault(name, []).append((number, index))
        self._starts = sorted(block.start for block in self.folder.blocks)
        self._known: dict[tuple[str, int], Sum] = {}

    def given(self, numbers: Mapping[str, int]) -> Sums:
        """The same kernel, with numbers for special registers and parameters (`Folder.given`)."""
        other = copy.copy(self)
        other.folder, other._known = self.folder.given(numbers), {}
        return other

    def address(self, text: str, at: Instruction) -> Sum:
        """An address operand: ``[%r1 + 16]``, or the first part of ``[%rd2, {...}]``."""
        inside = split_operands(text.strip().removeprefix("[").removesuffix("]"))
        return self.operand(inside[0] if inside else "", at)

    def operand(self, text: str, at: Instruction) -> Sum:
        """A register, immediate, symbol, or one of them plus a constant."""
        base, plus, offset = text.strip().partition("+")
        total = self._operand(base.strip(), self._numbers[at], 0)
        return total + self._operand(offset.strip(), self._numbers[at], 0) if plus else total

    def _operand(self, text: str, number: int, depth: int) -> Sum:
        at = self.kernel.instructions[number]
        width = 64 if text.startswith("%rd") else 32
        bits = self.folder.operand(text, width, at)
        if bits.is_constant(width):
            return LinearSum((), bits.value & ((1 << width) - 1))
        writes = self._writes.get(text, [])
        if len(writes) == 1:
            write = writes[0]
        else:
            earlier = bisect_left(writes, (number, -1)) - 1
            block = self._starts[max(0, bisect_left(self._starts, number + 1) - 1)]
            if earlier < 0 or writes[earlier][0] < block:
                return LinearSum(((f"{text}@{block}" if writes else text, 1),))
            write = writes[earlier]
        key = (text, write[0])
        if key not in self._known:
            name = text if len(writes) == 1 else f"{text}@{write[0]}"
            own: Sum = LinearSum(((name, 1),))
            self._known[key] = own  # while its sources are looked at
            if depth < _MAX_DEPTH:
                found = self._written(*write, depth + 1)
                if found is not None and len(found.terms) <= _MAX_TERMS:
                    self._known[key] = found
        return self._known[key]

    def _written(self, number: int, index: int, depth: int) -> AnySum[str]:
        """What an instruction writes, if that is a sum."""
        instruction = self.kernel.instructions[number]
        opcode, operands = instruction.opcode, instruction.operands
        if instruction.predicate or len(operands) < 2:
            return None
        if operands[0].startswith("{") or operands[1].startswith("{"):
            return None if index else self._packed(operands, number, depth)
        if opcode.startswith("ld.param") and not index:
            return LinearSum(((operands[1].replace(" ", ""), 1),))
        operation = integer_operation(opcode)
        if operation is None or index or len(operands) - 1 != len(operation.source_widths):
            return None
        if operation.name in ("or", "xor"):
            width = operation.width
            left, right = (self.folder.operand(text, width, instruction) for text in operands[1:])
            if are_disjoint(left, right, width):
                operation = replace(operation, name="add")
        if operation.name not in _SUMS.rules:
            return None
        sources = [self._operand(text, number, depth) for text in operands[1:]]
        return evaluate(_SUMS, operation, sources)

    def _packed(self, operands: tuple[str, ...], number: int, depth: int) -> AnySum[str]:
        """``mov.b64 %rd1, {%r1, %r2}``."""
        parts = split_operands(operands[1][1:-1])
        if len(parts) != 2 or not operands[0].startswith("%rd"):
            return None
        low, high = (self._operand(part, number, depth) for part in parts)
        return low + high.times(1 << 32)
