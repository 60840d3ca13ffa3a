"""From a shared-memory layout to the matrix descriptors of its MMA operands.

Any linear layout will do, not only Triton's NVMMA: if the tensor core can walk it, the descriptor
and the advance of its start address for each MMA subtile are found; if not, the error says where
the layout leaves the canonical form. (Seed 002 does it step by step for two tiles; `cute` does
the same with CuTe's algebra.)
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import architecture
from triton_ext.hardware.smem_descriptor import ADDRESS_LIMIT, SWIZZLE_CODES, SmemDescriptor
from triton_ext.layouts.arguments import is_power_of_two, one_of
from triton_ext.layouts.atoms import MAJORS, Major
from triton_ext.layouts.cluster import within_block
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.layouts.linear_layout import LinearLayout

INSTRUCTION_K_BYTES = 32
"""What a dense MMA instruction consumes along K (PTX ISA, wgmma and tcgen05.mma shapes)."""


@dataclass(frozen=True)
class MmaOperand:
    """An operand tile in shared memory, and how the tensor core reads it.

    Attributes:
        descriptor: the matrix descriptor of the first MMA subtile, for a tile at address 0.
        major: "K" or "MN", the contiguous dimension.
        element_bitwidth: bits of an element.
        tile: (M or N, K) of the whole tile, in elements.
        instruction: (M or N, K) of one MMA subtile, in elements.
        advances: ``advances[i][j]``: bytes to add to the start address for subtile (i, j).
        uses_leading, uses_stride: whether the instruction reads past the first atom along the
            dimension that the LBO, or the SBO, is for; if not, the field does not matter.
    """

    descriptor: SmemDescriptor
    major: Major
    element_bitwidth: int
    tile: tuple[int, int]
    instruction: tuple[int, int]
    advances: tuple[tuple[int, ...], ...]
    uses_leading: bool
    uses_stride: bool

    def descriptors(self, start_address: int = 0) -> list[list[SmemDescriptor]]:
        """The descriptor of each subtile, for a tile at `start_address` (bytes)."""
        return [
            [self.descriptor.advanced(start_address + advance) for advance in row]
            for row in self.advances
        ]

    @property
    def unread_fields(self) -> frozenset[str]:
        """The fields of the descriptor that the instruction does not read.

        Without a stride from atom to atom an offset does not matter; without a swizzle there is no
        pattern for the base offset to shift (wgmma on an H100 ignores it).
        """
        read = {
            "leading_byte_offset": self.uses_leading,
            "stride_byte_offset": self.uses_stride,
            "base_offset": self.descriptor.swizzle_byte_width > 0,
        }
        return frozenset(name for name, is_read in read.items() if not is_read)

    def matches(self, other: SmemDescriptor) -> bool:
        """Whether another descriptor describes the same operand, but for its start address."""
        ignored = {"start_address", *self.unread_fields}
        own, theirs = vars(self.descriptor), vars(other)
        return all(own[name] == theirs[name] for name in own.keys() - ignored)


class _NotCanonical(Exception):
    """The layout is not of the canonical form for one swizzle; says where.

    Attributes:
        fits: how much of the form was found before: the more, the closer the layout is to it.
    """

    def __init__(self, message: str, fits: int = 0) -> None:
        super().__init__(message)
        self.fits = fits


def _is_doubling(values: Sequence[int]) -> bool:
    return all(later == 2 * earlier for earlier, later in itertools.pairwise(values))


def _single(
    values: Sequence[int],
    instruction_bits: int,
    atom_bits: int,
    expected: Sequence[int],
    what: str,
    fits: int,
) -> int | None:
    """The stride between atoms along one dimension, or None if the instruction needs none.

    Args:
        values: the byte addresses of 1, 2, 4, ... along the dimension, before the swizzle.
        instruction_bits: log2 of the instruction's extent.
        atom_bits: log2 of the atom's.
        expected: the addresses within the atom.
    """
    inside = list(values[: min(atom_bits, instruction_bits)])
    if inside != list(expected[: len(inside)]):
        raise _NotCanonical(
            f"within an atom, steps of 1, 2, 4, ... along {what} must be {list(expected)} bytes"
            f" apart, and are {inside}",
            fits,
        )
    beyond = values[atom_bits:instruction_bits]
    if not beyond:
        return None
    if not _is_doubling(beyond):
        raise _NotCanonical(
            f"the stride between atoms along {what} must be constant; 1, 2, 4, ... atoms on, the"
            f" layout is at {list(beyond)} bytes",
            fits,
        )
    return beyond[0]


def derive_operand(
    layout: LinearLayout,
    element_bitwidth: int,
    instruction: tuple[int, int],
    *,
    arch: Any,
    mn_dim: int = 0,
    base_address: int = 0,
) -> MmaOperand:
    """The descriptors with which an MMA reads a tile.

    Args:
        layout: ``offset`` (elements) -> two dimensions; a ``block`` dimension is ignored: each
            block reads its own part.
        element_bitwidth: 8, 16 or 32.
        instruction: (M or N, K) of one MMA's operand, in elements. K is 32 bytes for dense MMAs.
        arch: 90 or 100.
        mn_dim: which output dimension of the layout is M or N: 0 for A as (M, K), 1 for B as
            (K, N).
        base_address: the address of the tile in shared memory, in bytes.

    Raises:
        LayoutError: an illegal argument; or no descriptor exists, and the rule says where the
            layout leaves the form that it is closest to.
    """
    arch = architecture(arch)
    one_of("element_bitwidth", element_bitwidth, (8, 16, 32))
    out_dims = list(layout.out_dims)
    if len(out_dims) != 2 or "offset" not in layout.in_dims:
        raise LayoutError("layout", layout, "must map 'offset' to two dimensions")
    one_of("mn_dim", mn_dim, (0, 1))
    within = within_block(layout).sublayout(["offset"], out_dims)
    per_cta = within.out_dims
    if not within.is_surjective():
        raise LayoutError("layout", layout, "must reach every element of the tile")
    inverse = within.pseudoinvert()
    mn_name, k_name = out_dims[mn_dim], out_dims[1 - mn_dim]
    tile = (per_cta[mn_name], per_cta[k_name])
    try:
        instruction = (int(instruction[0]), int(instruction[1]))
    except (TypeError, ValueError, IndexError):
        raise LayoutError("instruction", instruction, "must be (M or N, K), in elements") from None
    for name, size, extent in zip(("M or N", "K"), instruction, tile, strict=True):
        if not is_power_of_two(size) and not (name == "M or N" and size > 0 and size % 8 == 0):
            raise LayoutError("instruction", instruction, f"{name} must be a power of two")
        if size > extent or extent % size:
            raise LayoutError(
                "instruction", instruction, f"{name} must divide that of the tile, {tile}"
            )
    element_bytes = element_bitwidth // 8
    end = base_address + within.total_in_size * element_bytes
    if end > ADDRESS_LIMIT:
        rule = (
            f"the tile must end by {ADDRESS_LIMIT}, what a start address reaches; it ends at {end}"
        )
        raise LayoutError("base_address", base_address, rule)
    addresses = {
        name: [element_bytes * offset for (offset,) in inverse.bases[name]] for name in per_cta
    }
    closest, where, rows = _NotCanonical("", -1), "", False
    for width, atomicity in SWIZZLE_CODES[arch].values():
        for major in MAJORS:
            try:
                return _derive(
                    addresses[mn_name],
                    addresses[k_name],
                    element_bytes,
                    tile,
                    instruction,
                    SmemDescriptor(arch, 0, 0, 0, width, atomicity),
                    major,
                    base_address,
                )
            except _NotCanonical as reason:
                if reason.fits > closest.fits:
                    name = f"a {width}-byte swizzle" if width else "no swizzle"
                    closest, where = reason, f"{name}, {major}-major"
                    rows = not width and reason.fits == 2
    rule = f"no matrix descriptor exists; the closest form is {where}, where {closest}"
    if rows:
        rule += (
            ". Without a swizzle the tensor core reads core matrices, 8 rows of 16 bytes each that"
            " follow one another; these are whole rows: swizzle them by 32, 64 or 128 bytes, or"
            " store core matrices"
        )
    raise LayoutError("layout", _in_short(layout), rule)


def _in_short(layout: LinearLayout) -> str:
    """The bases of ``offset`` on one line."""
    return " ".join(str(basis).replace(" ", "") for basis in layout.bases["offset"])


def _derive(
    mn_addresses: Sequence[int],
    k_addresses: Sequence[int],
    element_bytes: int,
    tile: tuple[int, int],
    instruction: tuple[int, int],
    empty: SmemDescriptor,
    major: Major,
    base_address: int,
) -> MmaOperand:
    """Try one swizzle and one major-ness."""
    width = empty.swizzle_byte_width
    row_bytes = max(CHUNK_BYTES, width)
    # The swizzle is linear and its own inverse: undone, the canonical layout remains.
    mn = [empty.swizzle(address) for address in mn_addresses]
    k = [empty.swizzle(address) for address in k_addresses]
    mn_bits, k_bits = ((extent - 1).bit_length() for extent in instruction)
    covered = 0
    for address in (*mn[:mn_bits], *k[:k_bits]):
        if covered & address:
            raise _NotCanonical("two bits of the coordinates land on one bit of the address")
        covered |= address
    # The start addresses of subtiles may be any sums of bases: each has an advance of its own.
    if any(covered & address for address in (*mn[mn_bits:], *k[k_bits:])):
        raise _NotCanonical("a step from subtile to subtile changes the address within a subtile")
    contiguous, strided = (k, mn) if major == "K" else (mn, k)
    names = ("K", "M or N") if major == "K" else ("M or N", "K")
    contiguous_extent = instruction[1] if major == "K" else instruction[0]
    contiguous_bits, strided_bits = (k_bits, mn_bits) if major == "K" else (mn_bits, k_bits)
    row_elements = row_bytes // element_bytes
    row_bits = row_elements.bit_length() - 1
    atom_bits = empty.atom_rows.bit_length() - 1
    if contiguous_extent < min(row_elements, CHUNK_BYTES // element_bytes):
        raise _NotCanonical(f"the instruction's {names[0]} must span a 16-byte chunk")
    leading = _single(
        contiguous,
        contiguous_bits,
        row_bits,
        [element_bytes << i for i in range(row_bits)],
        names[0],
        fits=1,
    )
    stride = _single(
        strided,
        strided_bits,
        atom_bits,
        [row_bytes << i for i in range(atom_bits)],
        names[1],
        fits=2,
    )
    if width and major == "K" and leading is not None:
        raise _NotCanonical(
            f"the instruction's K must fit one row of the atom, {row_elements} elements: a swizzled"
            " K-major operand has no stride from atom to atom along K",
            fits=3,
        )
    uses_leading, uses_stride = leading is not None, stride is not None
    leading_offset = leading if leading is not None else CHUNK_BYTES
    stride_offset = stride if stride is not None else 0
    if not width and major == "MN":
        leading_offset, stride_offset = stride or 0, leading or 0
        uses_leading, uses_stride = uses_stride, uses_leading
    for offset in (leading_offset, stride_offset):
        if offset % CHUNK_BYTES or offset >= ADDRESS_LIMIT:
            raise _NotCanonical(
                f"a stride of {offset} bytes must be a multiple of 16 below {ADDRESS_LIMIT}", fits=4
            )
    descriptor = SmemDescriptor(
        empty.arch, 0, leading_offset, stride_offset, width, empty.atomicity
    )
    advances = tuple(
        tuple(
            _address(mn, i * instruction[0]) ^ _address(k, j * instruction[1])
            for j in range(tile[1] // instruction[1])
        )
        for i in range(tile[0] // instruction[0])
    )
    if any(advance % CHUNK_BYTES for row in advances for advance in row):
        raise _NotCanonical("a subtile does not start at a multiple of 16 bytes", fits=4)
    _check_readable(descriptor, major, element_bytes, base_address)
    return MmaOperand(
        descriptor.advanced(base_address),
        major,
        8 * element_bytes,
        tile,
        instruction,
        advances,
        uses_leading,
        uses_stride,
    )


def _check_readable(
    descriptor: SmemDescriptor, major: Major, element_bytes: int, base_address: int
) -> None:
    """Refuse a layout of the canonical form that the hardware does not read, or not from there."""
    if descriptor.atomicity == 32 and major == "K":
        raise _NotCanonical("32-byte atomicity is for MN-major operands alone", fits=5)
    if major == "MN" and descriptor.arch == 90 and element_bytes != 2:
        raise _NotCanonical("wgmma reads MN-major operands of 16-bit elements alone", fits=5)
    if major == "MN" and element_bytes == 4 and descriptor.atomicity != 32:
        raise _NotCanonical("tcgen05 reads MN-major tf32 with 32-byte atomicity alone", fits=5)
    width = descriptor.swizzle_byte_width
    size = width * descriptor.atom_rows if width else CHUNK_BYTES
    if base_address % size:
        raise _NotCanonical(
            f"the address {base_address} must be a multiple of {size} bytes", fits=6
        )


def _address(bases: Sequence[int], coordinate: int) -> int:
    address = 0
    for bit, base in enumerate(bases):
        if coordinate >> bit & 1:
            address ^= base
    return address
