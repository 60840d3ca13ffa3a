"""The 64-bit shared-memory matrix descriptors of wgmma and tcgen05: what their bits mean.

Sources: PTX ISA, "Matrix Descriptor Format" (wgmma, sm_90) and "Shared memory descriptor"
(tcgen05, sm_100); CUTLASS ``cute/arch/mma_sm90_desc.hpp`` and ``mma_sm100_desc.hpp``; seed 002,
"The SMEM Descriptor". Every address and stride in a descriptor is in units of 16 bytes; here, in
bytes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import Architecture, architecture
from triton_ext.hardware.bit_fields import extract, insert
from triton_ext.layouts.atoms import Major, Swizzle, address_swizzle
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

ADDRESS_LIMIT = 1 << 18
"""One past the largest address or stride that 14 bits of 16-byte units hold."""
START_ADDRESS_MASK = ADDRESS_LIMIT // CHUNK_BYTES - 1
"""The bits of a descriptor that hold the start address, in units of 16 bytes."""

# name -> (first bit, bits)
_COMMON_FIELDS = {
    "start_address": (0, 14),
    "leading_byte_offset": (16, 14),
    "stride_byte_offset": (32, 14),
    "base_offset": (49, 3),
}
FIELDS: dict[int, dict[str, tuple[int, int]]] = {
    90: {**_COMMON_FIELDS, "swizzle": (62, 2)},
    100: {**_COMMON_FIELDS, "version": (46, 3), "lbo_mode": (52, 1), "swizzle": (61, 3)},
}
"""The fields of each architecture's descriptor; all other bits are reserved and must be 0."""

SWIZZLE_CODES: dict[int, dict[int, tuple[int, int]]] = {
    90: {0: (0, 16), 1: (128, 16), 2: (64, 16), 3: (32, 16)},
    100: {0: (0, 16), 1: (128, 32), 2: (128, 16), 4: (64, 16), 6: (32, 16)},
}
"""The value of the swizzle field -> (width, atomicity), both in bytes."""

VERSION = {90: 0, 100: 1}
"""The fixed constant in bits 46 to 48; sm_90 has no such field."""


def raw_fields(value: int, arch: Any) -> dict[str, int]:
    """Every field of a descriptor as its bits say, and under ``reserved`` what else is set. Raises
    LayoutError: not an unsigned 64-bit integer, or an unknown architecture."""
    return extract("descriptor", value, 64, FIELDS[architecture(arch)])


def problems(value: int, arch: Any) -> list[str]:
    """What is illegal in a descriptor, in words; empty if nothing is. Raises LayoutError: as
    `raw_fields`."""
    arch = architecture(arch)
    raw = raw_fields(value, arch)
    found = []
    if raw["reserved"]:
        bits = [bit for bit in range(64) if raw["reserved"] >> bit & 1]
        found.append(f"the reserved bits {', '.join(map(str, bits))} are set; they must be 0")
    if raw["swizzle"] not in SWIZZLE_CODES[arch]:
        legal = ", ".join(map(str, SWIZZLE_CODES[arch]))
        found.append(f"the swizzle field is {raw['swizzle']}; it must be one of {legal}")
    if raw.get("version", VERSION[arch]) != VERSION[arch]:
        found.append(f"the version field (bits 46 to 48) is {raw['version']}; it must be 1")
    return found


@dataclass(frozen=True)
class SmemDescriptor(Displayed):
    """A matrix descriptor.

    Args:
        arch: 90 or 100, or as "sm_90", "sm_100".
        start_address: the operand's address in shared memory, in bytes, a multiple of 16.
        leading_byte_offset: LBO, in bytes. Swizzled, MN-major: from one atom to the next along
            M or N. Swizzled, K-major: not used, by convention 16. Without swizzle: from one core
            matrix to the next along K.
        stride_byte_offset: SBO, in bytes. Swizzled: from one atom to the next along the strided
            dimension (K-major: M or N; MN-major: K). Without swizzle: from one core matrix to the
            next along M or N.
        swizzle_byte_width: 0, 32, 64 or 128.
        atomicity: what the swizzle moves as a whole, in bytes: 16; 32 on sm_100 with 128 bytes.
        base_offset: which 128-byte line of the swizzle pattern the operand starts in, where the
            pattern does not start at a multiple of its size; 0 to 7.
        lbo_mode: sm_100: 0, the leading dimension's stride is relative; 1, it is an address.

    Raises:
        LayoutError: a value that the field cannot hold, or that is illegal.
    """

    arch: Architecture
    start_address: int
    leading_byte_offset: int
    stride_byte_offset: int
    swizzle_byte_width: int
    atomicity: int = CHUNK_BYTES
    base_offset: int = 0
    lbo_mode: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", architecture(self.arch))
        for name in ("start_address", "leading_byte_offset", "stride_byte_offset"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise LayoutError(name, value, "must be an integer, in bytes")
            if value % CHUNK_BYTES or not 0 <= value < ADDRESS_LIMIT:
                rule = f"must be a multiple of 16 bytes in [0, {ADDRESS_LIMIT})"
                raise LayoutError(name, value, rule)
        if (self.swizzle_byte_width, self.atomicity) not in SWIZZLE_CODES[self.arch].values():
            legal = " or ".join(map(str, SWIZZLE_CODES[self.arch].values()))
            rule = f"(width, atomicity) on sm_{self.arch} must be {legal}"
            raise LayoutError("swizzle_byte_width", (self.swizzle_byte_width, self.atomicity), rule)
        modes = {90: 1, 100: 2}[self.arch]
        for name, limit in (("base_offset", 8), ("lbo_mode", modes)):
            value = getattr(self, name)
            if isinstance(value, bool) or value not in range(limit):
                raise LayoutError(name, value, f"must be in [0, {limit}) on sm_{self.arch}")

    @classmethod
    def decode(cls, value: int, arch: Any) -> SmemDescriptor:
        """The descriptor that a 64-bit value encodes. Raises LayoutError: reserved bits are set, or
        a field is illegal; the rule lists all of it."""
        arch = architecture(arch)
        wrong = problems(value, arch)
        if wrong:
            raise LayoutError("descriptor", f"{value:#018x}", "; ".join(wrong))
        raw = raw_fields(value, arch)
        width, atomicity = SWIZZLE_CODES[arch][raw["swizzle"]]
        return cls(
            arch,
            raw["start_address"] * CHUNK_BYTES,
            raw["leading_byte_offset"] * CHUNK_BYTES,
            raw["stride_byte_offset"] * CHUNK_BYTES,
            width,
            atomicity,
            raw["base_offset"],
            raw.get("lbo_mode", 0),
        )

    def encode(self) -> int:
        """The 64-bit value."""
        codes = {pair: code for code, pair in SWIZZLE_CODES[self.arch].items()}
        values = {
            "start_address": self.start_address // CHUNK_BYTES,
            "leading_byte_offset": self.leading_byte_offset // CHUNK_BYTES,
            "stride_byte_offset": self.stride_byte_offset // CHUNK_BYTES,
            "base_offset": self.base_offset,
            "lbo_mode": self.lbo_mode,
            "version": VERSION[self.arch],
            "swizzle": codes[self.swizzle_byte_width, self.atomicity],
        }
        return insert(values, FIELDS[self.arch])

    def advanced(self, byte_offset: int) -> SmemDescriptor:
        """The descriptor of an operand that lies `byte_offset` further (seed 002, Sec. 3.4)."""
        return replace(self, start_address=self.start_address + byte_offset)

    @property
    def swizzle(self) -> Swizzle:
        """The swizzle of byte addresses: ``<B, 4, 3>``; ``<2, 5, 2>`` with 32-byte atomicity."""
        return address_swizzle(self.swizzle_byte_width, self.atomicity)

    @property
    def atom_rows(self) -> int:
        """Rows of the swizzle atom along the strided dimension: 8; 4 with 32-byte atomicity."""
        return 4 if self.atomicity == 32 else ATOM_ROWS

    def element_address(self, mn: int, k: int, element_bitwidth: int, major: Major) -> int:
        """Where the tensor core reads element (mn, k) of the operand, as a shared-memory address.

        The address before the swizzle follows the canonical layouts of the PTX ISA (seed 001,
        "SMEM Layouts for an MMA instruction", without the factor k of its K-major rows); the
        swizzle then XORs bits of that address. With a base offset the pattern starts that many
        128-byte lines after a multiple of its size. So an H100 reads 400 random descriptors,
        most of which no compiler would choose (``benchmarks/results/emulator_matrix_h100.json``).

        Args:
            mn, k: the element, counted from the operand's first.
            major: "K" or "MN": which dimension is contiguous.
        """
        strided, contiguous = (mn, k) if major == "K" else (k, mn)
        byte = contiguous * element_bitwidth // 8
        row_bytes = max(CHUNK_BYTES, self.swizzle_byte_width)
        leading, stride = self.leading_byte_offset, self.stride_byte_offset
        if major == "MN" and not self.swizzle_byte_width:
            leading, stride = stride, leading  # without swizzle, LBO is along K for both
        linear = (
            byte % row_bytes
            + byte // row_bytes * leading
            + strided % self.atom_rows * row_bytes
            + strided // self.atom_rows * stride
        )
        if self.lbo_mode and major == "K":  # K = 96: what leaves the 128 bytes of a row is at LBO
            inside = self.start_address % row_bytes
            past = (inside + byte) // row_bytes
            linear += past * (leading + inside - row_bytes - self.start_address)
        shift = self.base_offset * 128
        return self.swizzle(self.start_address + linear - shift) + shift

    def reads_leading(self, major: Major) -> bool:
        """Whether an operand of that major-ness may need the LBO at all.

        A swizzled K-major operand never does: its K lies in one row of an atom (PTX ISA, "Leading
        dimension byte offset").
        """
        return major == "MN" or not self.swizzle_byte_width

    def strides(self, major: Major | None) -> str:
        """``LBO 16 (not read), SBO 1024``: in bytes; `major` is None where it is not known."""
        unread = major is not None and not self.reads_leading(major)
        leading = f"LBO {self.leading_byte_offset}{' (not read)' if unread else ''}"
        return f"{leading}, SBO {self.stride_byte_offset}"

    def describe(self, unread: Collection[str] = ()) -> list[str]:
        """Each field in words, a line each.

        Args:
            unread: the fields that the instruction does not read (`MmaOperand.unread_fields`).
        """
        said = dict.fromkeys(unread, " (not read)")
        swizzle = f"{self.swizzle_byte_width}-byte" if self.swizzle_byte_width else "no"
        lines = [
            f"start address {self.start_address:#x} ({self.start_address // 16} x 16 bytes)",
            f"leading dimension byte offset (LBO) {self.leading_byte_offset}"
            f" ({self.leading_byte_offset // 16} x 16 bytes){said.get('leading_byte_offset', '')}",
            f"stride dimension byte offset (SBO) {self.stride_byte_offset}"
            f" ({self.stride_byte_offset // 16} x 16 bytes){said.get('stride_byte_offset', '')}",
            f"{swizzle} swizzle, {self.atomicity}-byte atomicity ({self.swizzle})",
            f"base offset {self.base_offset}{said.get('base_offset', '')}",
        ]
        if self.arch == 100:
            mode = "an absolute address" if self.lbo_mode else "relative to the start address"
            lines += [f"leading dimension {mode} (mode {self.lbo_mode})", "version 1 (fixed)"]
        return lines
