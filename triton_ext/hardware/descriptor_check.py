"""A matrix descriptor held against the tile that it is for; and what is suspicious in it alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton_ext.hardware.architecture import architecture
from triton_ext.hardware.operand import MmaOperand
from triton_ext.hardware.smem_descriptor import SWIZZLE_CODES, SmemDescriptor, problems, raw_fields
from triton_ext.layouts.encodings import CHUNK_BYTES

_LINE_BYTES = 128
_NAMES = {
    "start_address": "start address",
    "leading_byte_offset": "LBO",
    "stride_byte_offset": "SBO",
    "base_offset": "base offset",
    "lbo_mode": "LBO mode",
}
_SBO_IS_0 = "SBO is 0: all groups of 8 rows are read at one address; right for a single group alone"


@dataclass(frozen=True)
class FieldDifference:
    """A field of a descriptor that is not as the tile needs it.

    Attributes:
        found, expected: its values, with what they mean.
        hint: what may have gone wrong, or "".
    """

    field: str
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.field}: {self.found}, and must be {self.expected}{hint}"


@dataclass(frozen=True)
class TileCheck:
    """A descriptor and the tile that it should be of.

    Attributes:
        expected: the descriptor of the subtile that is meant, with the start address that is found
            where that is legal.
        subtile: (M or N, K): which subtile the start address is of; None if it is of none.
        differences: the fields that differ, but for those that the instruction does not read.
    """

    expected: SmemDescriptor
    subtile: tuple[int, int] | None
    differences: tuple[FieldDifference, ...]


def check_against_tile(value: int, operand: MmaOperand, start: int | None = None) -> TileCheck:
    """Compare a 64-bit descriptor with the one of a tile. Raises LayoutError: not an unsigned
    64-bit integer.

    Args:
        operand: the tile, derived at address 0.
        start: where the tile begins in shared memory, in bytes; None if that is not known: any
            multiple of its swizzle's size then.
    """
    arch, derived = operand.descriptor.arch, operand.descriptor
    found, needed = raw_fields(value, arch), raw_fields(derived.encode(), arch)
    unread = set(operand.unread_fields)
    if not operand.uses_leading:
        unread.add("lbo_mode")
    address = found["start_address"] * CHUNK_BYTES
    subtile = _subtile(address, operand, start)
    differences = [
        FieldDifference(
            _NAMES.get(name, name),
            _meaning(name, found[name], arch),
            _meaning(name, bits, arch),
            _hint(name, found, needed, derived),
        )
        for name, bits in needed.items()
        if name not in unread and name != "start_address" and found[name] != bits
    ]
    expected = derived.advanced(address)
    if subtile is None:
        rule = "that of a subtile"
        if start is not None:
            expected = derived.advanced(start)
            rule += f" of the tile at {start:#x}, such as {start:#x}"
        else:
            rule += f" of a tile at a multiple of {_pattern_bytes(derived)} bytes"
        differences.insert(0, FieldDifference("start address", f"{address:#x}", rule))
    return TileCheck(expected, subtile, tuple(differences))


def other_architecture(value: int, arch: Any) -> list[str]:
    """That an illegal descriptor is a legal one of the other architecture; or nothing. Raises
    LayoutError: not an unsigned 64-bit integer, or an unknown architecture."""
    other = {90: 100, 100: 90}[architecture(arch)]
    is_its = problems(value, arch) and not problems(value, other)
    return [f"it is a legal descriptor of sm_{other}"] if is_its else []


def hints(value: int, arch: Any) -> list[str]:
    """What is legal in a descriptor, and yet seldom meant; and what an illegal one may be. Raises
    LayoutError: as `other_architecture`."""
    return [*other_architecture(value, arch), *_suspicious(value, architecture(arch))]


def _suspicious(value: int, arch: int) -> Iterator[str]:
    raw = raw_fields(value, arch)
    width, atomicity = SWIZZLE_CODES[arch].get(raw["swizzle"], (None, CHUNK_BYTES))
    if arch == 100 and (width is None or atomicity != CHUNK_BYTES):
        theirs = SWIZZLE_CODES[90].get(raw["swizzle"])
        if theirs is not None:
            yield _wrong_code(raw["swizzle"], theirs[0])
    if width is None:
        return
    leading, stride = (
        raw[name] * CHUNK_BYTES for name in ("leading_byte_offset", "stride_byte_offset")
    )
    if not stride:
        yield _SBO_IS_0
    elif width and stride < width * (4 if atomicity == 32 else 8):
        yield f"SBO is {stride}: less than an atom, so that atoms overlap"
    if not width and not leading:
        yield "LBO is 0: without a swizzle, all chunks along K are read at one address"
    if width:
        lines = width * 8 // _LINE_BYTES
        line = raw["start_address"] * CHUNK_BYTES // _LINE_BYTES % lines
        if line != raw["base_offset"]:
            yield (
                f"the start address is in line {line} of the swizzle pattern of"
                f" {lines * _LINE_BYTES} bytes, and the base offset is {raw['base_offset']}: right"
                " only where the pattern begins at a multiple of its size"
            )


def _subtile(address: int, operand: MmaOperand, start: int | None) -> tuple[int, int] | None:
    """The first subtile that an address may be of."""
    unit = _pattern_bytes(operand.descriptor)
    for i, row in enumerate(operand.advances):
        for j, advance in enumerate(row):
            tile = address - advance
            if tile == start if start is not None else tile >= 0 and tile % unit == 0:
                return i, j
    return None


def _pattern_bytes(descriptor: SmemDescriptor) -> int:
    """What the address of a tile must be a multiple of: its swizzle atom."""
    return descriptor.swizzle_byte_width * descriptor.atom_rows or CHUNK_BYTES


def _meaning(name: str, raw: int, arch: int) -> str:
    if name in ("leading_byte_offset", "stride_byte_offset"):
        return f"{raw * CHUNK_BYTES} bytes ({raw} x 16)"
    if name == "swizzle":
        width, atomicity = SWIZZLE_CODES[arch].get(raw, (None, 0))
        if width is None:
            return f"{raw} (no legal code)"
        wide = f", {atomicity}-byte atomicity" if atomicity != CHUNK_BYTES else ""
        return f"{raw} ({f'{width} bytes{wide}' if width else 'none'})"
    return f"{raw:#x}" if name == "reserved" else str(raw)


def _wrong_code(code: int, width: int) -> str:
    codes = {pair: own for own, pair in SWIZZLE_CODES[100].items()}
    said = f"{width} bytes" if width else "none"
    return (
        f"{code} is sm_90's code of a swizzle of {said}, which on sm_100 is"
        f" {codes[width, CHUNK_BYTES]}"
    )


def _hint(name: str, found: dict[str, int], needed: dict[str, int], derived: SmemDescriptor) -> str:
    """What may have gone wrong with a field."""
    if name == "swizzle":
        theirs = SWIZZLE_CODES[90].get(found[name])
        if derived.arch == 100 and theirs == (derived.swizzle_byte_width, CHUNK_BYTES):
            return _wrong_code(found[name], derived.swizzle_byte_width)
        return ""
    if name not in ("leading_byte_offset", "stride_byte_offset"):
        return ""
    other = {"leading_byte_offset": "stride_byte_offset"}.get(name, "leading_byte_offset")
    if (found[name], found[other]) == (needed[other], needed[name]):
        return "LBO and SBO are exchanged"
    if found[name] == CHUNK_BYTES * needed[name]:
        return "in bytes; the field counts 16 bytes"
    if name == "stride_byte_offset" and not found[name]:
        return _SBO_IS_0
    return ""
