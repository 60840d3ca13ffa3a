"""Registers as sums: what two operands of a kernel have in common, and by how much they differ.

``%r7 = %r2 + 4 * %r3 + 16`` and ``%r9 = %r2 + 4 * %r3 + 48`` differ by 32, whatever the registers
hold. `Sums` follows additions, shifts and products by constants, and what LLVM makes of them, such
as an ``or`` of bits that are known to be 0.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from triton_ext.ptx.folding import Folder, destinations, mentioned
from triton_ext.ptx.parse import Instruction, Kernel, Variable, split_operands

_MASK = (1 << 64) - 1
_MAX_TERMS = 32
_MAX_DEPTH = 200


@dataclass(frozen=True)
class Sum:
    """A constant, and multiples of what is not known; modulo 2**64.

    Attributes:
        terms: (name, factor), in order of the names.
        constant: added to them.
    """

    terms: tuple[tuple[str, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Sum) -> Sum:
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor
        return Sum.of(factors, self.constant + other.constant)

    def __sub__(self, other: Sum) -> Sum:
        return self + other.times(-1)

    def times(self, factor: int) -> Sum:
        """A multiple."""
        return Sum.of({name: value * factor for name, value in self.terms}, self.constant * factor)

    @classmethod
    def of(cls, factors: Mapping[str, int], constant: int) -> Sum:
        """Terms whose factor is 0 left out."""
        kept = {name: factor & _MASK for name, factor in factors.items() if factor & _MASK}
        return cls(tuple(sorted(kept.items())), constant & _MASK)

    @property
    def is_constant(self) -> bool:
        """Whether nothing is unknown."""
        return not self.terms


def slice_kernel(
    kernel: Kernel, wanted: Iterable[Instruction], addressed: Mapping[int, str] | None = None
) -> Kernel:
    """The instructions that some instructions depend on, and the kernel's branches.

    What registers hold at the wanted instructions is the same in both, as far as `Folder` knows it.

    Args:
        kernel: of which a part is wanted.
        wanted: instructions, all of whose operands count.
        addressed: the numbers of instructions, wanted ones or not, of which only some operands
            count, and these.
    """
    by_name: dict[str, list[int]] = {}
    for number, instruction in enumerate(kernel.instructions):
        for _, name in destinations(instruction):
            by_name.setdefault(name, []).append(number)
    wanted = list(wanted)
    numbers = {id(instruction): i for i, instruction in enumerate(kernel.instructions)}
    pending = [numbers[id(instruction)] for instruction in wanted]
    addressed = addressed or {}
    kept = {*pending, *addressed}
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


@dataclass(frozen=True)
class Launch:
    """One block of one launch, with values for what the kernel is given.

    Attributes:
        arguments: integers, by place among the kernel's parameters.
        program: the block's place in the grid: ``%ctaid``.
        programs: the grid: ``%nctaid``.
    """

    arguments: Mapping[int, int]
    program: tuple[int, int, int]
    programs: tuple[int, int, int]

    def numbers(self, kernel: Kernel) -> dict[str, int]:
        """What stands in a kernel's PTX for what it is given, and the numbers."""
        found = {
            f"%{name}.{axis}": values[i]
            for name, values in (("ctaid", self.program), ("nctaid", self.programs))
            for i, axis in enumerate("xyz")
        }
        for place, number in self.arguments.items():
            if place < len(kernel.parameters):
                found[f"[{kernel.parameters[place]}]"] = number
        return found


class Sums:
    """The operands of a kernel as sums.

    Args:
        kernel: whose operands.
        variables: of the module.

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
            return Sum((), bits.value & ((1 << width) - 1))
        writes = self._writes.get(text, [])
        if len(writes) == 1:
            place = writes[0]
        else:
            earlier = bisect_left(writes, (number, -1)) - 1
            block = self._starts[max(0, bisect_left(self._starts, number + 1) - 1)]
            if earlier < 0 or writes[earlier][0] < block:
                return Sum(((f"{text}@{block}" if writes else text, 1),))
            place = writes[earlier]
        key = (text, place[0])
        if key not in self._known:
            name = text if len(writes) == 1 else f"{text}@{place[0]}"
            own = Sum(((name, 1),))
            self._known[key] = own  # while its sources are looked at
            if depth < _MAX_DEPTH:
                found = self._written(*place, depth + 1)
                if found is not None and len(found.terms) <= _MAX_TERMS:
                    self._known[key] = found
        return self._known[key]

    def _written(self, number: int, index: int, depth: int) -> Sum | None:
        """What an instruction writes, if that is a sum."""
        instruction = self.kernel.instructions[number]
        opcode, operands = instruction.opcode, instruction.operands
        if instruction.predicate or len(operands) < 2 or ".f" in opcode or ".bf" in opcode:
            return None
        base = opcode.split(".")[0]

        def source(place: int) -> Sum:
            return self._operand(operands[place], number, depth)

        def constant(place: int) -> int | None:
            found = source(place)
            return _signed(found.constant) if found.is_constant else None

        if base in ("mov", "cvta"):
            return self._moved(operands, number, index, depth)
        if index:
            return None
        if (
            base == "cvt"
            and "." in opcode
            and all(part[:1] in "us" for part in opcode.split(".")[1:])
        ):
            return source(1)
        if base == "ld" and ".param" in opcode:
            return Sum(((operands[1].replace(" ", ""), 1),))
        if base in ("add", "sub") and len(operands) > 2:
            return source(1) + source(2) if base == "add" else source(1) - source(2)
        if base == "shl" and (by := constant(2)) is not None:
            return source(1).times(1 << by)
        if base in ("mul", "mad") and (".lo" in opcode or ".wide" in opcode):
            for one, other in ((1, 2), (2, 1)):
                if (factor := constant(other)) is not None:
                    product = source(one).times(factor)
                    return product + source(3) if base == "mad" else product
        if base in ("or", "xor"):
            width = 64 if "64" in opcode else 32
            left, right = (self.folder.operand(operands[i], width, instruction) for i in (1, 2))
            either = ~((left.known & ~left.value) | (right.known & ~right.value))
            if not either & ((1 << width) - 1):  # no bit can be set in both
                return source(1) + source(2)
        return None

    def _moved(self, operands: tuple[str, ...], number: int, index: int, depth: int) -> Sum | None:
        target, origin = operands[:2]
        if target.startswith("{"):
            return None
        if not origin.startswith("{"):
            return self._operand(origin, number, depth) if not index else None
        parts = split_operands(origin[1:-1])
        if len(parts) != 2 or not target.startswith("%rd"):
            return None
        low, high = (self._operand(part, number, depth) for part in parts)
        return low + high.times(1 << 32)


def _signed(value: int) -> int:
    """Of 64 bits; a 32-bit constant may be negative, too."""
    return value - (1 << 64) if value >> 63 else value
