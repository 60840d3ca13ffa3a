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
from triton_ext.hardware.architecture import WARP_THREADS, Architecture
from triton_ext.hardware.instruction_descriptor import BLOCK_SCALED_FIELDS, DENSE_FIELDS, KINDS
from triton_ext.hardware.smem_descriptor import FIELDS, START_ADDRESS_MASK, VERSION
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.mlir.arith import integer_constant
from triton_ext.passes.verify_descriptors.expected import (
    Expected,
    ExpectedMatrix,
    ExpectedMma,
)
from triton_ext.passes.verify_descriptors.groups import Group
from triton_ext.passes.verify_descriptors.ptx_sums import Sum
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
        instruction: where.
        field: what: "SBO of A", "instruction descriptor: m", ...
        expected, found: both sides, in words.
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
        expected, group: the two.
        differences: where they differ.
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
    """Compare a group with an operation of the same kind.

    Args:
        expected: what the operation must become.
        group: what the PTX has.
        arch: 90 or 100.
    """
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
        self.sums = comparison.group.function.sums()
        self.folder = self.sums.folder

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
        self.starts(pairs)
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
            words = {True: "added to", False: "overwritten"}
            self.comparison.check(
                instruction, "D", "uses of D", words[one.accumulates], words[bool(known)]
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

        Without a stride from atom to atom the offsets do not matter: 0, or the 1 that the PTX ISA
        says is assumed. Without a swizzle there is no pattern for the base offset to shift (wgmma
        on an H100 ignores it), and Triton counts lines of 128 bytes there.
        """
        operand = matrix.operand
        if name == "leading_byte_offset" and not operand.uses_leading:
            return [0, 1]
        if name == "stride_byte_offset" and not operand.uses_stride:
            return [0, 1]
        if name == "base_offset" and not operand.descriptor.swizzle_byte_width:
            return [matrix.advance // 128 % 8]
        return []

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

    def starts(self, pairs: Sequence[_Pair]) -> None:
        """The start addresses: each operand's, less its advance, is the same for all."""
        for name in dict.fromkeys(name for pair in pairs for name in pair.expected.matrices):
            self.same_start(
                [
                    (self.start(pair.form.operand(name), pair.instruction),
                     pair.expected.matrices[name], pair.instruction)
                    for pair in pairs
                    if name in pair.expected.matrices
                ]
            )  # fmt: skip

    def start(self, text: str, instruction: Instruction) -> Sum:
        """A start address in units of 16 bytes, modulo 2**14; or a sum that has it there."""
        bits = self.folder.operand(text, 64, instruction)
        value = bits.field(0, _START_BITS)
        return self.sums.operand(text, instruction) if value is None else Sum((), value)

    def same_start(self, found: Sequence[tuple[Sum, ExpectedMatrix, Instruction]]) -> None:
        comparison = self.comparison
        first, matrix, _ = found[0]
        origin = first.constant - matrix.advance // CHUNK_BYTES
        mask = (1 << _START_BITS) - 1
        for start, matrix, instruction in found[1:]:
            if start.terms != first.terms:
                comparison.unproven["advances of start addresses"] += 1
                continue
            expected = origin + matrix.advance // CHUNK_BYTES & mask
            comparison.check(
                instruction,
                f"the start address of {matrix.name}, counted from the first instruction's",
                "advances of start addresses",
                CHUNK_BYTES * ((expected - first.constant) & mask),
                CHUNK_BYTES * ((start.constant - first.constant) & mask),
            )

    def tensor_memory(self, pairs: Sequence[_Pair]) -> None:
        """Addresses in tensor memory: each, less its offset, is the same for all."""
        comparison = self.comparison
        for operand, name in _TENSOR_OPERANDS.items():
            first: tuple[Sum, int] | None = None
            for pair in pairs:
                if operand not in pair.expected.tensor:
                    continue
                text, instruction = pair.form.operand(operand), pair.instruction
                _, offset = pair.expected.tensor[operand]
                if not text.startswith("["):
                    comparison.differ(instruction, name, "an address in tensor memory", text)
                    continue
                address = self.sums.address(text, instruction)
                if first is None:
                    first = address, offset
                    continue
                if address.terms != first[0].terms:
                    comparison.unproven["addresses in tensor memory"] += 1
                    continue
                comparison.check(
                    instruction,
                    f"the tensor-memory address of {name}, counted from the first instruction's",
                    "addresses in tensor memory",
                    (offset - first[1]) & _LOW,
                    (address.constant - first[0].constant) & _LOW,
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
    found = comparison.group.function.sums().address(form.map, instruction)
    names = [_PARAMETER.fullmatch(name) for name, _ in found.terms]
    if comparison.expected.argument is None or len(names) != 1 or names[0] is None:
        comparison.unproven["tensor maps"] += 1
        return
    comparison.check(
        instruction, "the tensor map", "tensor maps",
        f"parameter {comparison.expected.argument}", f"parameter {names[0][1]}",
    )  # fmt: skip


def _boxes(comparison: Comparison) -> None:
    expected, group = comparison.expected, comparison.group
    forms = [comparison.read(each, expected.opcode) for each in group.instructions]
    if isinstance(forms[0], TensorCopy):
        _tensor_map(comparison, forms[0])
    if comparison.differences:
        return
    if expected.rows:
        _gathered(comparison)
        return
    count, warps = len(expected.boxes), max(1, expected.warps)
    comparison.check(
        group.first, _TMA_INSTRUCTIONS, "instruction counts",
        -(-count // warps), len(group.instructions),
    )  # fmt: skip
    if comparison.differences:
        return
    starts: Sequence[int] = [0]
    if min(count, warps) > 1:
        starts = range(0, group.function.threads, WARP_THREADS)
    best: Comparison | None = None
    for start in starts:
        trial = Comparison(expected, group)
        _issued(trial, start)
        if best is None or len(trial.differences) < len(best.differences):
            best = trial
        if not best.differences:
            break
    if best is not None:
        comparison.differences += best.differences
        comparison.proven.update(best.proven)
        comparison.unproven.update(best.unproven)


def _issued(comparison: Comparison, start: int) -> None:
    """The boxes as the warps of a partition that begins at thread `start` issue them."""
    expected, group = comparison.expected, comparison.group
    warps = max(1, expected.warps)
    first: tuple[Sum, list[Sum], Sum | None] | None = None
    for index, box in enumerate(expected.boxes):
        instruction = group.instructions[index // warps]
        sums = group.function.sums(start + WARP_THREADS * (index % warps))
        form = _copy(instruction)
        address = sums.address(form.shared, instruction) - Sum((), box.smem_offset)
        coordinates = [
            sums.operand(text, instruction) - Sum((), offset)
            for text, offset in zip(form.coordinates, box.coordinates, strict=True)
        ]
        where = sums.address(form.mbarrier, instruction) if form.mbarrier else None
        if first is None:
            first = address, coordinates, where
            _first_box(comparison, instruction, coordinates, where is not None)
            continue
        _equal(
            comparison, instruction, "the shared-memory address of a box, less its offset",
            "box addresses", first[0], address,
        )  # fmt: skip
        for dim, (one, other) in enumerate(zip(first[1], coordinates, strict=True)):
            _equal(
                comparison, instruction,
                f"coordinate {dim} of a box, less its offset from the first box",
                "box coordinates", one, other,
            )  # fmt: skip
        if first[2] is not None and where is not None:
            _equal(comparison, instruction, "the mbarrier", "mbarriers", first[2], where)


def _first_box(
    comparison: Comparison,
    instruction: Instruction,
    coordinates: Sequence[Sum],
    has_barrier: bool,
) -> None:
    expected = comparison.expected
    comparison.check(
        instruction, "the mbarrier operand", "operand kinds", expected.barrier is not None,
        has_barrier,
    )  # fmt: skip
    values = expected.coordinates[::-1]
    for dim, (value, found) in enumerate(zip(values, coordinates, strict=False)):
        known = integer_constant(value)
        factor = 2 if dim == 0 and expected.is_padded else 1
        what, kind = f"coordinate {dim} of the first box", "coordinates of the first box"
        if known is not None and found.is_constant:
            comparison.check(
                instruction, what, kind, _number(known * factor & _LOW),
                _number(found.constant & _LOW),
            )  # fmt: skip


def _equal(
    comparison: Comparison, instruction: Instruction, what: str, kind: str, one: Sum, other: Sum
) -> None:
    """Two 32-bit sums that must be equal."""
    if one.terms != other.terms:
        comparison.unproven[kind] += 1
        return
    comparison.check(
        instruction, what, kind, _number(one.constant & _LOW), _number(other.constant & _LOW)
    )


def _number(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def _gathered(comparison: Comparison) -> None:
    """Gather and scatter: which rows an instruction moves depends on the layout of the indices; all
    instructions of all warps together move each box of four rows, and nothing else."""
    expected, group = comparison.expected, comparison.group
    warps, count = max(1, expected.warps), len(group.instructions)
    fits = len(expected.boxes) % count == 0 and count * warps >= len(expected.boxes)
    comparison.check(
        group.first, _TMA_INSTRUCTIONS, "instruction counts",
        "a part of the boxes for each warp", "a part of the boxes for each warp" if fits else count,
    )  # fmt: skip
    for instruction in group.instructions:
        form = _copy(instruction)
        comparison.check(instruction, _COORDINATES, "operand kinds", 5, len(form.coordinates))
        comparison.check(
            instruction, "the mbarrier operand", "operand kinds", expected.barrier is not None,
            bool(form.mbarrier),
        )  # fmt: skip
    if comparison.differences:
        return
    _gathered_mbarrier(comparison)
    boxes = {(box.smem_offset, box.coordinates[0]) for box in expected.boxes}
    wrong: Difference | None = None
    for start in range(0, max(1, group.function.threads), WARP_THREADS):
        places = _gathered_places(comparison, start)
        if places is None:
            comparison.unproven["box addresses"] += len(group.instructions)
            return
        found = {place for place, _ in places}
        if found == boxes:
            comparison.proven["box addresses"] += len(group.instructions)
            return
        if wrong is None:
            odd = next((item for place, item in places if place not in boxes), group.first)
            wrong = Difference(
                odd, "the places of the boxes (shared memory, column)", str(sorted(boxes)[:8]),
                str(sorted(found)[:8]),
            )  # fmt: skip
        if warps == 1 or start + WARP_THREADS * warps >= group.function.threads:
            break
    if wrong is not None:
        comparison.differences.append(wrong)


def _gathered_mbarrier(comparison: Comparison) -> None:
    """All instructions arrive at one mbarrier."""
    expected, group = comparison.expected, comparison.group
    sums = group.function.sums()
    first: Sum | None = None
    if expected.barrier is None:
        return
    for instruction in group.instructions:
        found = sums.address(_copy(instruction).mbarrier, instruction)
        if first is None:
            first = found
        else:
            _equal(comparison, instruction, "the mbarrier", "mbarriers", first, found)


def _gathered_places(
    comparison: Comparison, start: int
) -> list[tuple[tuple[int, int], Instruction]] | None:
    """Where each instruction of each warp moves its box, from the lowest one; None if unknown."""
    group = comparison.group
    found = []
    for warp in range(max(1, comparison.expected.warps)):
        sums = group.function.sums(start + WARP_THREADS * warp)
        for instruction in group.instructions:
            form = _copy(instruction)
            address = sums.address(form.shared, instruction)
            found.append((address, sums.operand(form.coordinates[0], instruction), instruction))
    if len({(address.terms, column.terms) for address, column, _ in found}) != 1:
        return None
    least = min(address.constant & _LOW for address, _, _ in found)
    column = min(_number(column.constant & _LOW) for _, column, _ in found)
    return [
        (
            ((address.constant - least) & _LOW, (_number(other.constant & _LOW) - column) & _LOW),
            instruction,
        )
        for address, other, instruction in found
    ]


# ----------------------------------------------------------------------------------- expect


def _expect(comparison: Comparison) -> None:
    expected, instruction = comparison.expected, comparison.group.first
    form = comparison.read(instruction, expected.opcode)
    if comparison.differences or not isinstance(form, MbarrierOperation):
        return
    sums = comparison.group.function.sums()
    found = sums.folder.operand(form.bytes, 32, instruction).field(0, 32)
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


__all__ = [
    "Comparison",
    "Difference",
    "compare",
    "grouped",
]
