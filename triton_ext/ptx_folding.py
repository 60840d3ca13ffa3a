"""What of a kernel's registers is known without running it.

`Folder` evaluates registers as far as constants reach, bit by bit: a descriptor whose address part
comes from a loop counter still has all of its other fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from triton_ext.ptx import Instruction, Kernel, immediate, split_operands


@dataclass(frozen=True)
class Bits:
    """An integer of which some bits are known: `value` has zeros where `known` has."""

    value: int
    known: int

    @classmethod
    def constant(cls, value: int, width: int) -> Bits:
        """All `width` bits known."""
        mask = (1 << width) - 1
        return cls(value & mask, mask)

    @classmethod
    def unknown(cls) -> Bits:
        """Nothing known."""
        return cls(0, 0)

    def is_constant(self, width: int) -> bool:
        """Whether the low `width` bits are all known."""
        mask = (1 << width) - 1
        return self.known & mask == mask

    def field(self, start: int, width: int) -> int | None:
        """A field of the integer, or None unless all of it is known."""
        mask = ((1 << width) - 1) << start
        return (self.value & mask) >> start if self.known & mask == mask else None


_WIDTH = re.compile(r"\.(?:[usbf])(8|16|32|64)\b")
_ZERO_REGISTERS = ("%tid.", "%ctaid.", "%laneid", "%warpid", "%cluster_ctaid.", "%cluster_ctarank")


def _width(opcode: str) -> int:
    found = _WIDTH.findall(opcode)
    return int(found[0]) if found else 1 if ".pred" in opcode else 32


def _add(left: Bits, right: Bits, width: int) -> Bits:
    """The known bits of a sum: below the first doubt, and above where no carry can reach."""
    mask = (1 << width) - 1
    smallest = left.value + right.value
    largest = smallest + (mask & ~left.known) + (mask & ~right.known)
    both = left.known & right.known & mask
    low = (both ^ (both + 1)) & both  # the run of known bits from bit 0
    doubt = (smallest ^ largest) & mask if largest <= mask else mask
    high = mask & ~((1 << doubt.bit_length()) - 1)
    known = low | high
    return Bits(smallest & known, known)


def _and(left: Bits, right: Bits) -> Bits:
    ones = left.value & right.value
    zeros = (left.known & ~left.value) | (right.known & ~right.value)
    return Bits(ones, ones | zeros)


def _or(left: Bits, right: Bits) -> Bits:
    ones = left.value | right.value
    zeros = (left.known & ~left.value) & (right.known & ~right.value)
    return Bits(ones, ones | zeros)


class Folder:
    """What is known of registers, for the first thread of the first block, the first time through.

    A register that is assigned more than once has its first value: that of a loop's first
    iteration. The address of dynamic shared memory, and every other symbol of shared memory, is
    taken as 0: shared addresses are relative to its start. Loads and parameters are unknown.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._definitions: dict[tuple[str, int], tuple[Instruction, int]] = {}
        for instruction in kernel.instructions:
            for index, name in enumerate(_destinations(instruction)):
                self._definitions.setdefault(
                    (name, self._local(instruction, name)), (instruction, index)
                )
        self._known: dict[tuple[str, int], Bits] = {}

    @staticmethod
    def _local(instruction: Instruction, name: str) -> int:
        """The scope that a name belongs to: the innermost block, if it is not a `%` register."""
        return instruction.scope[-1] if instruction.scope and not name.startswith("%") else 0

    def operand(self, text: str, width: int, at: Instruction | None = None) -> Bits:
        """What is known of an operand: a register, an immediate, or a symbol."""
        text = text.strip()
        number = immediate(text)
        if number is not None:
            return Bits.constant(number, width)
        if text.startswith(_ZERO_REGISTERS):
            return Bits.constant(0, width)
        key = (text, self._local(at, text) if at is not None else 0)
        if key in self._definitions:
            return self._register(key)
        if re.fullmatch(r"[A-Za-z_$][\w$.]*", text) and text not in self.kernel.parameters:
            return Bits.constant(0, width)  # a symbol of shared memory
        return Bits.unknown()

    def address(self, text: str, at: Instruction | None = None) -> Bits:
        """What is known of an address operand: ``[%r1 + 16]`` or ``[%rd2, {...}]``."""
        inside = split_operands(text.strip().removeprefix("[").removesuffix("]"))
        if not inside:
            return Bits.unknown()
        base, sign, offset = inside[0].partition("+")
        known = self.operand(base, 64, at)
        extra = immediate(offset.strip()) if sign else 0
        return Bits.unknown() if extra is None else _add(known, Bits.constant(extra, 64), 64)

    def _register(self, key: tuple[str, int]) -> Bits:
        if key not in self._known:
            self._known[key] = Bits.unknown()  # what depends on itself stays unknown
            instruction, index = self._definitions[key]
            self._known[key] = self._evaluate(instruction, index)
        return self._known[key]

    def _evaluate(self, instruction: Instruction, index: int) -> Bits:
        opcode, operands = instruction.opcode, instruction.operands
        width = _width(opcode)
        base = opcode.split(".")[0]

        def source(position: int, bits: int = width) -> Bits:
            return self.operand(operands[position], bits, instruction)

        try:
            if base in ("mov", "cvta"):
                return self._move(instruction, index, width)
            if base == "cvt":
                return self._convert(opcode, source(1, 64))
            if base in ("add", "sub") and not _is_float(opcode):
                right = source(2)
                if base == "sub":
                    if not right.is_constant(width):
                        return Bits.unknown()
                    right = Bits.constant(-right.value, width)
                return _add(source(1), right, width)
            if base == "and":
                return _and(source(1), source(2))
            if base == "or":
                return _or(source(1), source(2))
            if base == "xor":
                left, right = source(1), source(2)
                known = left.known & right.known
                return Bits((left.value ^ right.value) & known, known)
            if base in ("shl", "shr"):
                return self._shift(base, opcode, source(1), source(2, 32), width)
            if base in ("mul", "mad") and not _is_float(opcode):
                return self._multiply(opcode, [source(i) for i in range(1, len(operands))], width)
            if base == "shfl":
                return source(1, 32)  # the first thread's own value, or its like
            if base == "selp":
                left, right = source(1), source(2)
                known = left.known & right.known & ~(left.value ^ right.value)
                return Bits(left.value & known, known)
            if base in ("bfe", "bfi", "lop3", "prmt"):
                return self._bit_field(base, opcode, operands, instruction)
        except IndexError:
            return Bits.unknown()
        return Bits.unknown()

    def _move(self, instruction: Instruction, index: int, width: int) -> Bits:
        target, origin = instruction.operands[0], instruction.operands[-1]
        if target.startswith("{"):  # unpack
            parts = len(split_operands(target[1:-1]))
            whole = self.operand(origin, width, instruction)
            each = width // parts
            mask = (1 << each) - 1
            return Bits(whole.value >> each * index & mask, whole.known >> each * index & mask)
        if origin.startswith("{"):  # pack
            parts_text = split_operands(origin[1:-1])
            each = width // len(parts_text)
            value = known = 0
            for i, part in enumerate(parts_text):
                bits = self.operand(part, each, instruction)
                mask = (1 << each) - 1
                value |= (bits.value & mask) << each * i
                known |= (bits.known & mask) << each * i
            return Bits(value, known)
        return self.operand(origin, width, instruction)

    @staticmethod
    def _convert(opcode: str, origin: Bits) -> Bits:
        widths = [int(width) for width in _WIDTH.findall(opcode)]
        if len(widths) != 2 or _is_float(opcode):
            return Bits.unknown()
        to, of = widths
        narrow = (1 << min(to, of)) - 1
        value, known = origin.value & narrow, origin.known & narrow
        if to > of:
            extension = ((1 << to) - 1) & ~narrow
            sign = 1 << (of - 1)
            if not opcode.endswith(f".s{of}"):
                known |= extension
            elif known & sign:
                known |= extension
                value |= extension if value & sign else 0
        return Bits(value, known)

    @staticmethod
    def _shift(base: str, opcode: str, value: Bits, by: Bits, width: int) -> Bits:
        if not by.is_constant(32):
            return Bits.unknown()
        mask, count = (1 << width) - 1, min(by.value, width)
        filled = (1 << count) - 1
        if base == "shl":
            return Bits(value.value << count & mask, (value.known << count | filled) & mask)
        top = filled << (width - count)
        if ".s" in opcode:
            sign = 1 << (width - 1)
            if not value.known & sign:
                return Bits(value.value >> count, value.known >> count & ~top)
            high = top if value.value & sign else 0
            return Bits(value.value >> count | high, value.known >> count | top)
        return Bits(value.value >> count, (value.known & mask) >> count | top)

    @staticmethod
    def _multiply(opcode: str, sources: list[Bits], width: int) -> Bits:
        wide = 2 * width if ".wide" in opcode else width
        if ".hi" in opcode or not all(bits.is_constant(width) for bits in sources[:2]):
            return Bits.unknown()
        factors = [_signed(bits.value, width) if ".s" in opcode else bits.value for bits in sources]
        product = Bits.constant(factors[0] * factors[1], wide)
        return _add(product, sources[2], wide) if len(sources) > 2 else product

    def _bit_field(
        self, base: str, opcode: str, operands: tuple[str, ...], at: Instruction
    ) -> Bits:
        width = _width(opcode)
        sources = [self.operand(text, width, at) for text in operands[1:]]
        if base in ("bfe", "bfi"):
            *values, start, length = sources
            if not (start.is_constant(32) and length.is_constant(32)):
                return Bits.unknown()
            mask = (1 << length.value) - 1
            if base == "bfe":
                if ".s" in opcode:
                    return Bits.unknown()
                rest = ((1 << width) - 1) & ~mask
                return Bits(
                    values[0].value >> start.value & mask,
                    values[0].known >> start.value & mask | rest,
                )
            inserted, into = values
            hole = mask << start.value
            return Bits(
                into.value & ~hole | (inserted.value & mask) << start.value,
                into.known & ~hole | (inserted.known & mask) << start.value,
            )
        if not all(bits.is_constant(width) for bits in sources):
            return Bits.unknown()
        a, b, c, table = (bits.value for bits in sources)
        if base == "lop3":
            result = 0
            for bit in range(width):
                row = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1)
                result |= (table >> row & 1) << bit
            return Bits.constant(result, width)
        return Bits.unknown()


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) & 1 else value


def _is_float(opcode: str) -> bool:
    return bool(re.search(r"\.(?:f16|f32|f64|bf16|f16x2|bf16x2|tf32)", opcode))


_NO_DESTINATION = (
    "st", "red", "bar", "barrier", "fence", "membar", "bra", "brx", "ret", "exit", "trap", "call",
    "mbarrier.init", "mbarrier.inval", "cp", "wgmma", "tcgen05.mma", "tcgen05.cp", "tcgen05.st",
    "tcgen05.commit", "tcgen05.wait", "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.fence",
    "tcgen05.relinquish_alloc_permit", "tcgen05.shift", "stmatrix", "setmaxnreg", "griddepcontrol",
    "prefetch", "prefetchu", "nanosleep", "discard", "applypriority", "clusterlaunchcontrol",
)  # fmt: skip


def _destinations(instruction: Instruction) -> Iterator[str]:
    """The registers that an instruction writes, first operand first."""
    opcode = instruction.opcode
    if not instruction.operands or any(
        opcode == name or opcode.startswith(name + ".") for name in _NO_DESTINATION
    ):
        return
    first = instruction.operands[0]
    if first.startswith("["):
        return
    for name in re.split(r"[,|{}\s]+", first):
        if name and name != "_":
            yield name
