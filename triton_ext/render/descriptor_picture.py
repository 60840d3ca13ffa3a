"""The bits of a descriptor: each field named, coloured and explained, and what is illegal in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from triton_ext.hardware.architecture import architecture
from triton_ext.hardware.bit_fields import extract
from triton_ext.hardware.instruction_descriptor import InstructionDescriptor, fields_of
from triton_ext.hardware.smem_descriptor import (
    FIELDS,
    SWIZZLE_CODES,
    SmemDescriptor,
    problems,
    raw_fields,
)
from triton_ext.render.scene import FILLS, MARGIN, Box, Scene, Text, caption_width
from triton_ext.render.words import in_bytes

ROW_BITS = 32
"""So many bits are drawn in a row, the highest on the left."""
_CELL, _HEIGHT = 26, 28
_MATRIX_FIELDS = {  # key -> its name, its name in the explanation, its colour (neighbours differ)
    "start_address": ("start address", "start address", 3),
    "leading_byte_offset": ("LBO", "leading dimension byte offset (LBO)", 4),
    "stride_byte_offset": ("SBO", "stride dimension byte offset (SBO)", 5),
    "base_offset": ("base offset", "base offset", 2),
    "lbo_mode": ("LBO mode", "LBO mode", 6),
    "version": ("version", "version", 7),
    "swizzle": ("swizzle", "swizzle", 1),
}
_INSTRUCTION_NAMES = {
    "m": "M",
    "n": "N",
    "a_type": "A type",
    "b_type": "B type",
    "d_type": "D type",
    "a_mn_major": "A major",
    "b_mn_major": "B major",
    "negate_a": "negate A",
    "negate_b": "negate B",
    "sparsity_selector": "sparsity",
}


@dataclass(frozen=True)
class Field:
    """A field of a descriptor.

    Attributes:
        key: its name in the tables of `triton_ext.hardware`, or "reserved" for all other bits.
        name: in words, short enough to stand above its bits.
        first, bits: its lowest bit, and how many there are.
        problem: what is illegal in it, or "".
        fill: its colour, an index into `Theme.fills`.
    """

    key: str
    name: str
    first: int
    bits: int
    raw: int
    meaning: str
    problem: str = ""
    fill: int = 0

    @property
    def positions(self) -> str:
        """``bits 16-29``."""
        if self.key == "reserved":
            return "other bits"
        last = self.first + self.bits - 1
        return f"bit {last}" if self.bits == 1 else f"bits {self.first}-{last}"

    @property
    def box_kind(self) -> str:
        """The style classes of its bits."""
        return "bit reserved" if self.key == "reserved" else f"bit fill{self.fill}"


def matrix_fields(value: int, arch: int | str) -> list[Field]:
    """The fields of a 64-bit matrix descriptor, the lowest first, then the reserved bits. Raises
    LayoutError: not an unsigned 64-bit integer, or an unknown architecture."""
    number = architecture(arch)
    raw = raw_fields(value, number)
    legal = SmemDescriptor(number, 0, 0, 0, 0).encode()
    fields = []
    for key, (first, bits) in sorted(FIELDS[number].items(), key=lambda item: item[1]):
        name, words, fill = _MATRIX_FIELDS[key]
        mask = ((1 << bits) - 1) << first
        wrong = "; ".join(problems(legal & ~mask | value & mask, number))  # this field alone
        meaning = words + _explanation(key, raw[key], number)
        fields.append(Field(key, name, first, bits, raw[key], meaning, wrong, fill))
    wrong = "; ".join(problems(legal | raw["reserved"], number))
    return [*fields, _reserved(raw["reserved"], wrong)]


def _reserved(raw: int = 0, problem: str = "") -> Field:
    return Field("reserved", "reserved", 0, 64, raw, "reserved, must be 0", problem)


def _explanation(key: str, raw: int, arch: int) -> str:
    """What the value of a matrix descriptor's field means; "" if the field is illegal."""
    if key == "start_address":
        return f": {raw} x 16 = {16 * raw:#x}"
    if key in ("leading_byte_offset", "stride_byte_offset"):
        return f": {raw} x 16 = {in_bytes(16 * raw)}"
    if key == "swizzle":
        if raw not in SWIZZLE_CODES[arch]:
            return ""
        width, atomicity = SWIZZLE_CODES[arch][raw]
        return f": {width} bytes wide, {atomicity} bytes move as a whole" if width else ": none"
    if key == "base_offset" and raw:
        return f": the pattern starts {raw} x 128 bytes after a multiple of its size"
    if key == "base_offset":
        return ": 0"
    if key == "lbo_mode":
        return f": the LBO is {'an address' if raw else 'relative to the start address'}"
    return f": {raw}, a constant"


def instruction_fields(value: int, kind: str) -> list[Field]:
    """The fields of a 32-bit tcgen05 instruction descriptor, the lowest first. Raises LayoutError:
    not an unsigned 32-bit integer, an unknown kind, or an illegal descriptor."""
    found = InstructionDescriptor.decode(value, kind)
    table = fields_of(kind)
    raw = extract("instruction descriptor", value, 32, table)
    said = {
        "m": f"M = {found.m}: {raw['m']} x 16",
        "n": f"N = {found.n}: {raw['n']} x 8",
        "a_type": f"type of A: {found.a_type}",
        "b_type": f"type of B: {found.b_type}",
        "d_type": f"type of D: {found.d_type}",
        "a_mn_major": f"A is {found.a_major}-major",
        "b_mn_major": f"B is {found.b_major}-major",
    }
    fields: list[Field] = []
    for key, (first, bits) in sorted(table.items(), key=lambda item: item[1]):
        name = _INSTRUCTION_NAMES.get(key, key.replace("_", " "))
        meaning = said.get(key, f"{name}: {raw[key]}")
        fill = len(fields) % FILLS
        fields.append(Field(key, name, first, bits, raw[key], meaning, fill=fill))
    return [*fields, _reserved()]


def bits_scene(title: str, value: int, width: int, fields: list[Field]) -> Scene:
    """A number as its bits, the highest on the left, with its fields below.

    Args:
        value: an unsigned number of `width` bits.
        fields: its named fields, then that of the reserved bits.
    """
    *named, reserved = fields
    owner = dict.fromkeys(range(width), reserved) | {
        field.first + bit: field for field in named for bit in range(field.bits)
    }
    boxes: list[Box] = []
    texts = [Text(MARGIN, MARGIN + 10, title, "heading")]
    runs = _runs(width, owner)
    levels = _levels([run for run in runs if run.name])
    most = max(levels.values())
    top, pitch = MARGIN + 46 + 16 * most, 70 + 16 * most

    def corner(bit: int) -> tuple[float, float]:
        row, column = divmod(width - 1 - bit, ROW_BITS)
        return MARGIN + column * _CELL, top + row * pitch

    marks = []
    for bit in reversed(range(width)):
        (x, y), field, digit = corner(bit), owner[bit], value >> bit & 1
        data: dict[str, str | int] = {"bit": bit, "field": field.key}
        said = f"bit {bit}: {field.meaning}"
        boxes.append(Box(x, y, _CELL, _HEIGHT, field.box_kind, said, str(digit), data=data))
        if field.problem and (field is not reserved or digit):
            marks.append(Box(x + 1, y + 1, _CELL - 2, _HEIGHT - 2, "bad passive"))
    for run in runs:
        (x, y), right = corner(run.last), corner(run.first)[0] + _CELL
        for bit in {run.first, run.last}:
            middle = corner(bit)[0] + _CELL / 2
            texts.append(Text(middle, y + _HEIGHT + 11, str(bit), anchor="middle"))
        if not run.name:
            continue
        level = levels[run]
        if not level:
            texts.append(Text((x + right) / 2, y - 11, run.name, "field", "middle"))
        else:  # above its neighbours, with a line down to its bits
            texts.append(Text(MARGIN + run.left, y - 11 - 16 * level, run.name, "field"))
            line = 16 * level - 5
            boxes.append(Box((x + right) / 2 - 0.5, y - 1 - line, 1, line, "leader"))
    y = top + -(-width // ROW_BITS) * pitch - 16 * most - 6
    for field in fields:
        boxes.append(Box(MARGIN, y + 1, 16, 14, field.box_kind, data={"legend": field.key}))
        texts.append(Text(MARGIN + 24, y + 8, field.positions, "note"))
        texts.append(Text(MARGIN + 106, y + 8, field.meaning, "value"))
        if field.problem:
            y += 20
            texts.append(Text(MARGIN + 106, y + 8, field.problem, "problem"))
        y += 20
    said_of = [f"{field.positions}: {field.meaning} {field.problem}".strip() for field in fields]
    lines = [line for field in fields for line in (field.meaning, field.problem)]
    bits_wide = min(width, ROW_BITS) * _CELL
    return Scene(
        title,
        ". ".join(said_of) + ".",
        max(bits_wide, caption_width(title, ()), caption_width("", lines) + 106) + 2 * MARGIN,
        y + MARGIN,
        (*boxes, *marks),
        tuple(texts),
    )


@dataclass(frozen=True)
class _Run:
    """Neighbouring bits of a row that belong to one field; reserved ones have no name."""

    first: int
    last: int
    name: str

    @property
    def column(self) -> int:
        """The column of the highest bit."""
        return ROW_BITS - 1 - self.last % ROW_BITS

    @property
    def right(self) -> float:
        """Its right end, from the start of the row."""
        return (self.column + self.last - self.first + 1) * _CELL

    @property
    def left(self) -> float:
        """Where its name starts: at its bits, or further left if it is longer than they are."""
        return max(0, min(self.column * _CELL, self.right - 7 * len(self.name)))

    @property
    def fits(self) -> bool:
        """Whether the name is no longer than the bits."""
        return 7 * len(self.name) <= self.right - self.column * _CELL


def _runs(width: int, owner: Mapping[int, Field]) -> list[_Run]:
    """The runs of a number, the highest first."""
    runs: list[_Run] = []
    for bit in reversed(range(width)):
        same = owner.get(bit) == owner.get(bit + 1) and (bit + 1) % ROW_BITS
        if runs and same:
            runs[-1] = _Run(bit, runs[-1].last, runs[-1].name)
        else:
            named = owner[bit].key != "reserved"
            runs.append(_Run(bit, bit, owner[bit].name if named else ""))
    return runs


def _levels(runs: list[_Run]) -> dict[_Run, int]:
    """How high each name stands: 0 if it fits over its bits, else clear of those on its left."""
    levels: dict[_Run, int] = {}
    for run in runs:
        level = 0
        if not run.fits:
            beneath = [
                found
                for other, found in levels.items()
                if other.first // ROW_BITS == run.first // ROW_BITS and other.right > run.left - 6
            ]
            level = 1 + max(beneath, default=0)
        levels[run] = level
    return levels


def matrix_scene(value: int, arch: int | str) -> Scene:
    """A 64-bit matrix descriptor: its bits, its fields, and what is illegal in them. Raises
    LayoutError: not an unsigned 64-bit integer, or an unknown architecture. An illegal descriptor
    is drawn, with its faults marked."""
    fields = matrix_fields(value, arch)
    title = f"Matrix descriptor {value:#018x} on sm_{architecture(arch)}"
    return bits_scene(title, value, 64, fields)


def instruction_scene(value: int, kind: str) -> Scene:
    """A 32-bit instruction descriptor of tcgen05.mma: its bits and fields. Raises LayoutError: not
    an unsigned 32-bit integer, an unknown kind, or an illegal descriptor."""
    fields = instruction_fields(value, kind)
    return bits_scene(f"Instruction descriptor {value:#010x}, kind::{kind}", value, 32, fields)
