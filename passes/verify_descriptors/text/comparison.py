"""A group of PTX instructions against what an operation of the TTGIR must become.

A comparison says where the two differ, counts what it proved, and what it could not. Where the
operation's memory lies is compared as it is executed (`executions`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import Architecture
from triton_ext.hardware.instruction_descriptor import BLOCK_SCALED_FIELDS, DENSE_FIELDS, KINDS
from triton_ext.hardware.smem_descriptor import FIELDS, START_ADDRESS_MASK, VERSION
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.passes.verify_descriptors.meaning.expected import (
    Expected,
    ExpectedMatrix,
    ExpectedMma,
)
from triton_ext.passes.verify_descriptors.text.groups import Group
from triton_ext.ptx.forms import (
    Form,
    MbarrierOperation,
    Tcgen05Product,
    TensorCopy,
    WgmmaProduct,
    read,
)
from triton_ext.ptx.parse import Instruction

_LOW = (1 << 32) - 1
_START_BITS = START_ADDRESS_MASK.bit_length()
OPCODE = "the opcode"
COUNTS = tuple(
    f"the number of {what}"
    for what in ("instructions", "TMA instructions", "coordinates", "accumulators")
)
_INSTRUCTIONS, _TMA_INSTRUCTIONS, _COORDINATES, _ACCUMULATORS = COUNTS
"""What two groups of another shape differ in."""
_TENSOR_OPERANDS = {
    "d": "D", "a": "A", "scale_a": "the scale factors of A", "scale_b": "those of B",
    "address": "the destination",
}  # fmt: skip
"""Operands that are addresses in tensor memory, in words."""


@dataclass(frozen=True)
class Difference:
    """Something in the PTX that is not as it must be.

    Attributes:
        field: what: "SBO of A", "instruction descriptor: m", ...
    """

    instruction: Instruction
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.field} is {self.found}, and must be {self.expected}"


@dataclass
class Comparison:
    """The outcome of comparing a group with an operation.

    Attributes:
        proven: how many of what is as it must be.
        unproven: how many of what is not known at compile time.
    """

    expected: Expected
    group: Group
    differences: list[Difference] = field(default_factory=list)
    proven: Counter[str] = field(default_factory=Counter)
    unproven: Counter[str] = field(default_factory=Counter)

    def differ(self, instruction: Instruction, what: str, expected: object, found: object) -> None:
        """Note one thing that is not as it must be."""
        self.differences.append(Difference(instruction, what, str(expected), str(found)))

    def check(
        self, instruction: Instruction, what: str, kind: str, expected: object, found: object
    ) -> None:
        """Count one thing that is known on both sides."""
        if expected == found:
            self.proven[kind] += 1
        else:
            self.differ(instruction, what, expected, found)

    def read(self, instruction: Instruction, opcode: str, shown: str = "") -> Form | None:
        """Compare the opcode with a regular expression, and read the operands.

        Args:
            opcode: the regular expression.
            shown: the same, for people.

        Returns:
            None if the instruction is malformed.
        """
        matches = re.fullmatch(opcode, instruction.opcode) is not None
        if matches:
            self.proven["opcodes"] += 1
        else:
            shown = shown or re.sub(r"\\|\?|\(|\)", "", opcode)
            self.differ(instruction, OPCODE, shown, instruction.opcode)
        try:
            return read(instruction)
        except LayoutError as error:
            if matches:
                self.differ(instruction, "the instruction", "well-formed", error.rule)
            return None


def compare(expected: Expected, group: Group, arch: Architecture) -> Comparison:
    """Compare a group with an operation of the same kind."""
    comparison = Comparison(expected, group)
    if group.kind == "tma":
        _boxes(comparison)
    elif group.kind == "expect":
        _expect(comparison)
    else:
        _Mma(comparison, arch).run(expected.instructions)
        if comparison.differences and len(expected.instructions) == len(group.instructions):
            for order in expected.orders:
                other = Comparison(expected, group)
                _Mma(other, arch).run([expected.instructions[index] for index in order])
                if not other.differences:
                    return other
    return comparison


# -------------------------------------------------------------------------------------- MMA


@dataclass(frozen=True)
class _Pair:
    """An instruction that is expected, and the one that is found."""

    expected: ExpectedMma
    instruction: Instruction
    form: Form


class _Mma:
    """wgmma, tcgen05.mma and tcgen05.cp."""

    def __init__(self, comparison: Comparison, arch: Architecture) -> None:
        self.comparison, self.arch = comparison, arch
        self.folder = comparison.group.function.folder

    def run(self, expected: Sequence[ExpectedMma]) -> None:
        """Compare them in this order."""
        comparison, found = self.comparison, self.comparison.group.instructions
        comparison.check(found[0], _INSTRUCTIONS, "instruction counts", len(expected), len(found))
        pairs = []
        for one, instruction in zip(expected, found, strict=False):
            opcode = one.opcode + r"(?:\.collector::[ab]::\w+)*"
            form = comparison.read(instruction, opcode, one.opcode)
            if form is not None:
                pairs.append(_Pair(one, instruction, form))
                self.instruction(pairs[-1])
        self.same_unread_fields(pairs)
        self.tensor_memory(pairs)
        if comparison.group.kind == "wgmma":
            self.accumulators(pairs)

    def instruction(self, pair: _Pair) -> None:
        one, instruction, form = pair.expected, pair.instruction, pair.form
        for name, matrix in one.matrices.items():
            self.matrix(matrix, form.operand(name), instruction)
        if isinstance(form, WgmmaProduct):
            if "a" not in one.matrices:
                self.comparison.check(
                    instruction, "A", "operand kinds", "in registers",
                    "in registers" if form.a_in_registers else "a descriptor",
                )  # fmt: skip
            self.comparison.check(
                instruction, "the immediates (signs, transpositions)", "immediates",
                ", ".join(one.immediates), ", ".join(form.immediates),
            )  # fmt: skip
            self.accumulates(one, form.scale_d, instruction)
        elif isinstance(form, Tcgen05Product):
            self.instruction_descriptor(one, form.idesc, instruction)
            self.accumulates(one, form.enable_input_d, instruction)

    def accumulates(self, one: ExpectedMma, text: str, instruction: Instruction) -> None:
        """wgmma's scale-d, tcgen05's enable-input-d."""
        known = self.folder.operand(text, 1, instruction).field(0, 1)
        if one.accumulates is None:
            self.comparison.unproven["use of D, chosen at run time"] += 1
        elif known is None:
            self.comparison.unproven["use of D"] += 1
        else:
            uses = {True: "added to", False: "overwritten"}
            self.comparison.check(
                instruction, "D", "uses of D", uses[one.accumulates], uses[bool(known)]
            )

    def matrix(self, matrix: ExpectedMatrix, text: str, instruction: Instruction) -> None:
        """All of a descriptor but its start address."""
        comparison = self.comparison
        if text.startswith(("{", "[")):
            comparison.differ(instruction, matrix.name, "a matrix descriptor", text)
            return
        bits = self.folder.operand(text, 64, instruction)
        expected = matrix.operand.descriptor.encode()
        fields = FIELDS[self.arch]
        covered = 0
        whole = True
        for name, (first, width) in fields.items():
            mask = ((1 << width) - 1) << first
            covered |= mask
            if name == "start_address":
                continue
            found = bits.field(first, width)
            if found is None:
                whole = False
                continue
            legal = [(expected & mask) >> first]
            if name == "version":
                legal = [VERSION[self.arch]]
            legal += self._unread(name, matrix)
            if found not in legal:
                unit = CHUNK_BYTES if name.endswith("byte_offset") else 1
                what = f"the {name.replace('_', ' ')} of {matrix.name}"
                comparison.differ(instruction, what, legal[0] * unit, found * unit)
        reserved = ~covered & ((1 << 64) - 1)
        if bits.value & reserved:
            what = f"the reserved bits of {matrix.name}"
            comparison.differ(instruction, what, 0, f"{bits.value & reserved:#x}")
        elif bits.known & reserved & ~(3 << _START_BITS) != reserved & ~(3 << _START_BITS):
            whole = False
        if whole:
            comparison.proven["descriptors"] += 1
        else:
            comparison.unproven["descriptors"] += 1

    def same_unread_fields(self, pairs: Sequence[_Pair]) -> None:
        """Fields that are not read have the same value in all descriptors of an operand."""
        said: dict[tuple[str, str], int] = {}
        for pair in pairs:
            for operand, matrix in pair.expected.matrices.items():
                for name in ("leading_byte_offset", "stride_byte_offset"):
                    if not self._unread(name, matrix):
                        continue
                    bits = self.folder.operand(pair.form.operand(operand), 64, pair.instruction)
                    found = bits.field(*FIELDS[self.arch][name])
                    if found is not None and said.setdefault((matrix.name, name), found) != found:
                        self.comparison.differ(
                            pair.instruction, f"the {name.replace('_', ' ')} of {matrix.name}",
                            f"{said[matrix.name, name]}, as in the first one", found,
                        )  # fmt: skip

    def _unread(self, name: str, matrix: ExpectedMatrix) -> list[int]:
        """What else a field may hold that the instruction does not read.

        Of an offset 0, or the 1 that the PTX ISA says is assumed; of the base offset what Triton
        counts there: lines of 128 bytes.
        """
        if name not in matrix.operand.unread_fields:
            return []
        return [matrix.advance // 128 % 8] if name == "base_offset" else [0, 1]

    def instruction_descriptor(self, one: ExpectedMma, text: str, instruction: Instruction) -> None:
        if one.descriptor is None:
            return
        comparison = self.comparison
        bits = self.folder.operand(text, 32, instruction)
        expected = one.descriptor.encode()
        if (bits.value ^ expected) & bits.known & _LOW:
            scaled = KINDS[one.descriptor.kind].block_scaled
            fields = BLOCK_SCALED_FIELDS if scaled else DENSE_FIELDS
            wrong = [
                name
                for name, (first, width) in fields.items()
                if ((bits.value ^ expected) & bits.known) >> first & ((1 << width) - 1)
            ]
            comparison.differ(
                instruction,
                f"the instruction descriptor ({', '.join(wrong) or 'a reserved bit'})",
                f"{expected:#010x}: {'; '.join(one.descriptor.describe())}",
                f"{bits.value & _LOW:#010x}",
            )
        elif bits.is_constant(32):
            comparison.proven["instruction descriptors"] += 1
        else:
            comparison.unproven["instruction descriptors"] += 1

    def tensor_memory(self, pairs: Sequence[_Pair]) -> None:
        """Operands in tensor memory are given by their addresses."""
        for operand, name in _TENSOR_OPERANDS.items():
            for pair in pairs:
                if operand in pair.expected.tensor:
                    text = pair.form.operand(operand)
                    if not text.startswith("["):
                        self.comparison.differ(
                            pair.instruction, name, "an address in tensor memory", text
                        )

    def accumulators(self, pairs: Sequence[_Pair]) -> None:
        """wgmma: one set of registers for each accumulator."""
        registers: dict[int, str] = {}
        for pair in pairs:
            text = pair.form.operand("d")
            known = registers.setdefault(pair.expected.accumulator, text)
            self.comparison.check(
                pair.instruction, "the accumulator", "accumulators", _short(known), _short(text)
            )
        count = len(set(registers.values()))
        if count != len(registers):
            first = pairs[0].instruction
            self.comparison.differ(first, _ACCUMULATORS, len(registers), count)


def _short(registers: str) -> str:
    parts = registers.strip("{}").split(",")
    return registers if len(parts) < 4 else f"{{{parts[0].strip()}, ... {parts[-1].strip()}}}"


# -------------------------------------------------------------------------------------- TMA


def _copy(instruction: Instruction) -> TensorCopy:
    """The form of an instruction whose opcode is known to be that of a TMA copy."""
    form = read(instruction)
    assert isinstance(form, TensorCopy)
    return form


_PARAMETER = re.compile(r"\[?\w+_param_(\d+)\]?")


def _tensor_map(comparison: Comparison, form: TensorCopy) -> None:
    """Which of the kernel's parameters the descriptor is."""
    instruction = comparison.group.first
    name, offset = comparison.group.function.folder.root(form.map, instruction)
    found = _PARAMETER.fullmatch(name)
    if comparison.expected.argument is None or found is None or offset:
        comparison.unproven["tensor maps"] += 1
        return
    comparison.check(
        instruction, "the tensor map", "tensor maps",
        f"parameter {comparison.expected.argument}", f"parameter {found[1]}",
    )  # fmt: skip


def _boxes(comparison: Comparison) -> None:
    """As many instructions as the warps have boxes to copy, each with all of its operands."""
    expected, group = comparison.expected, comparison.group
    forms = [comparison.read(each, expected.opcode) for each in group.instructions]
    if isinstance(forms[0], TensorCopy):
        _tensor_map(comparison, forms[0])
    if comparison.differences:
        return
    must, found = len(expected.boxes_of(0)), len(group.instructions)
    comparison.check(group.first, _TMA_INSTRUCTIONS, "instruction counts", must, found)
    for instruction in group.instructions:
        form = _copy(instruction)
        rank = 5 if expected.rows else len(expected.boxes[0].coordinates)
        comparison.check(instruction, _COORDINATES, "operand kinds", rank, len(form.coordinates))
        comparison.check(
            instruction, "the mbarrier operand", "operand kinds", expected.barrier is not None,
            bool(form.mbarrier),
        )  # fmt: skip


# ----------------------------------------------------------------------------------- expect


def _expect(comparison: Comparison) -> None:
    expected, instruction = comparison.expected, comparison.group.first
    form = comparison.read(instruction, expected.opcode)
    if comparison.differences or not isinstance(form, MbarrierOperation):
        return
    folder = comparison.group.function.folder
    found = folder.operand(form.bytes, 32, instruction).field(0, 32)
    if found is None:
        comparison.unproven["bytes of expect_tx"] += 1
    else:
        comparison.check(
            instruction, "the bytes of expect_tx", "bytes of expect_tx", expected.bytes, found
        )


def grouped(differences: Sequence[Difference]) -> Iterator[tuple[Difference, int]]:
    """The first difference of each field, and how many there are of it."""
    counts = Counter(difference.field for difference in differences)
    seen: set[str] = set()
    for difference in differences:
        if difference.field not in seen:
            seen.add(difference.field)
            yield difference, counts[difference.field]
