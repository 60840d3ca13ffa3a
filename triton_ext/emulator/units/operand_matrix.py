"""An operand of the tensor core, read from shared memory as its matrix descriptor says.

The unit of reading is the chunk of 16 bytes, which every swizzle moves as a whole. Where each
chunk lies, relative to the start address, depends on the descriptor, the shape and the element
size alone, and on the start address modulo the period of the swizzle; it is computed once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import (
    DescriptorFault,
    EmulationError,
    LayoutFault,
    SynchronizationFault,
)
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.leniencies import VERSION
from triton_ext.emulator.state.memory import SHARED_BASE, Addresses, Bytes
from triton_ext.emulator.state.shared import SharedMemory
from triton_ext.emulator.state.stamps import Numbers
from triton_ext.emulator.units.matrix_product import OPERAND_BITS
from triton_ext.emulator.units.provenance import (
    Copied,
    Reading,
    brought,
    misplaced,
    stale,
    swizzled_rows,
)
from triton_ext.hardware.smem_descriptor import FIELDS, SmemDescriptor, problems
from triton_ext.layouts.atoms import Major
from triton_ext.layouts.encodings import CHUNK_BYTES

SWIZZLE_PERIOD = 1024
"""Every swizzle pattern repeats after this many bytes, or a part of it."""
_CODE_TYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32}


@lru_cache(4096)
def decode_descriptor(value: int, arch: int, *, absolute: bool = False) -> SmemDescriptor:
    """The matrix descriptor that a 64-bit register holds.

    Args:
        absolute: whether the instruction may have the leading dimension as an address.

    Raises:
        DescriptorFault: it is illegal, or has what the instruction may not have.
    """
    wrong = problems(value, arch)
    if wrong:
        raise DescriptorFault(f"matrix descriptor {value:#018x}: {'; '.join(wrong)}")
    descriptor = SmemDescriptor.decode(value, arch)
    if descriptor.lbo_mode and not absolute:
        raise DescriptorFault(
            f"matrix descriptor {value:#018x}: the leading dimension as an absolute address (bit"
            " 52) is for the K of 48 bytes, 96 elements, that sm_103 brought"
        )
    return descriptor


_VERSION_BIT, _VERSION_BITS = FIELDS[100]["version"]


def descriptor_of(cta: Cta, thread: int, value: int, *, absolute: bool = False) -> SmemDescriptor:
    """The matrix descriptor of a tcgen05 instruction; raises as `decode_descriptor` does.

    Args:
        thread: the one that issues it.
        absolute: as in `decode_descriptor`.
    """
    version = value >> _VERSION_BIT & (1 << _VERSION_BITS) - 1
    if not version and cta.takes(VERSION, slice(thread, thread + 1)):
        value |= 1 << _VERSION_BIT
    return decode_descriptor(value, 100, absolute=absolute)


@lru_cache(4096)
def _chunk_offsets(
    descriptor: SmemDescriptor, mn: int, k: int, bits: int, major: Major
) -> NDArray[np.int64]:
    """The address of each chunk: along the strided dimension, then along the contiguous one."""
    strided, contiguous = (mn, k) if major == "K" else (k, mn)
    each = CHUNK_BYTES * 8 // bits
    row = np.arange(strided, dtype=np.int64)[:, None]
    column = np.arange(0, contiguous, each, dtype=np.int64)[None, :]
    rows, columns = (row, column) if major == "K" else (column, row)
    # the formula is plain integer arithmetic, so that arrays go through it
    addresses: Any = descriptor.element_address(cast(int, rows), cast(int, columns), bits, major)
    offsets: NDArray[np.int64] = np.broadcast_to(addresses, (strided, column.shape[1])).reshape(-1)
    offsets.flags.writeable = False
    return offsets


def chunk_addresses(
    descriptor: SmemDescriptor, mn: int, k: int, bits: int, major: Major
) -> NDArray[np.int64]:
    """Where in shared memory the chunks of an operand lie: offsets in the block's window.

    Args:
        mn, k: the operand's extents, in elements; the one along `major` is a multiple of what a
            chunk holds.
        bits: size of an element in memory: 4, 8, 16 or 32.
        major: the contiguous dimension.

    Returns:
        A flat array: the chunks of the first row of the strided dimension, then the next.
    """
    if descriptor.lbo_mode:  # the leading dimension does not move with the start
        return _chunk_offsets(descriptor, mn, k, bits, major)
    phase = descriptor.start_address % SWIZZLE_PERIOD
    relative = replace(descriptor, start_address=phase)
    return _chunk_offsets(relative, mn, k, bits, major) + (descriptor.start_address - phase)


@lru_cache(1024)
def _reading(descriptor: SmemDescriptor, mn: int, k: int, bits: int, major: Major) -> Reading:
    """The chunks of an operand whose descriptor starts within the period of the swizzle."""
    offsets = _chunk_offsets(descriptor, mn, k, bits, major)
    return Reading(offsets.reshape(mn if major == "K" else k, -1))


@lru_cache(1024)
def _with_extent(
    descriptor: SmemDescriptor, mn: int, k: int, bits: int, major: Major
) -> tuple[NDArray[np.int64], int, int, Reading]:
    """`chunk_addresses`, the first of them, the end of the last, and what they are."""
    addresses = chunk_addresses(descriptor, mn, k, bits, major)
    addresses.flags.writeable = False
    relative = replace(descriptor, start_address=descriptor.start_address % SWIZZLE_PERIOD)
    reading = _reading(relative, mn, k, bits, major)
    return addresses, int(addresses.min()), int(addresses.max()) + CHUNK_BYTES, reading


@lru_cache(1024)
def _twice(
    descriptor: SmemDescriptor, mn: int, k: int, bits: int, major: Major
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Two elements of an operand, (mn, k), that are the same bytes; or None."""
    addresses = chunk_addresses(descriptor, mn, k, bits, major)
    order = np.argsort(addresses, kind="stable")
    same = np.flatnonzero(np.diff(addresses[order]) < CHUNK_BYTES)
    if not len(same):
        return None
    chunks = -(-(k if major == "K" else mn) * bits // (CHUNK_BYTES * 8))
    one, other = (divmod(int(order[same[0] + more]), chunks) for more in (0, 1))
    each = CHUNK_BYTES * 8 // bits
    found = [(row, chunk * each) for row, chunk in (one, other)]
    pairs = found if major == "K" else [(column, row) for row, column in found]
    return pairs[0], pairs[1]


def _check_distinct(
    descriptor: SmemDescriptor, mn: int, k: int, bits: int, major: Major, name: str
) -> None:
    """Raise LayoutFault if elements of an operand are the same bytes: hardware reads them so, and
    few mean it."""
    found = _twice(descriptor, mn, k, bits, major)
    if found is None:
        return
    one, other = found
    raise LayoutFault(
        f"{name} at shared address {descriptor.start_address:#x}, {mn} x {k} and {major}-major, is"
        f" read as {swizzled_rows(descriptor.swizzle_byte_width)}, {descriptor.strides(major)}: its"
        f" elements {one} and {other} of ({'M, K' if ' A' in name else 'N, K'}) are the same bytes."
        " (If this is meant: check_layouts=False)"
    )


def _check_layout(
    shared: SharedMemory, descriptor: SmemDescriptor, reading: Reading, bits: int, major: Major,
    type_name: str, name: str, written: Numbers | None
) -> list[Copied]:  # fmt: skip
    """The copies by TMA that have brought an operand. Raises LayoutFault: they brought another
    type, or another layout, than it is read in."""
    start = descriptor.start_address
    copies = brought(shared, reading, start - start % SWIZZLE_PERIOD, written)
    for copied in copies.values():
        if copied.element not in (type_name, ""):
            raise LayoutFault(
                f"{name} at shared address {start:#x} is read as {type_name}; {copied} brought"
                f" elements of {copied.element}. (If this is meant: check_layouts=False)"
            )
    found = misplaced(copies, reading, start - start % SWIZZLE_PERIOD)
    if found is None:
        return list(copies.values())
    along = found.chunk * CHUNK_BYTES * 8 // bits
    element = (found.row, along) if major == "K" else (along, found.row)
    raise LayoutFault(
        f"{name} at shared address {start:#x} is read as"
        f" {swizzled_rows(descriptor.swizzle_byte_width)}, {major}-major,"
        f" {descriptor.strides(major)}; {found}. The"
        f" first element affected is {element} of ({'M, K' if ' A' in name else 'N, K'}). (If this"
        " is meant: check_layouts=False)"
    )


def _check_phases(copies: list[Copied], name: str) -> None:
    """Raise SynchronizationFault if an operand is of two phases, the later one incomplete."""
    found = stale(copies) if len(copies) > 1 else None
    if found is not None:
        old, new = found
        raise SynchronizationFault(
            f"{name} is read, and a part of it is of phase {old.phase} of {new.barrier.name}, by"
            f" {old}, another of phase {new.phase}, by {new}: phase {old.phase} brought both, and"
            f" nothing wrote the first in phase {new.phase}. (If this is meant:"
            " check_layouts=False)"
        )


def unpack_codes(chunks: Bytes, bits: int) -> Bytes:
    """Codes of 4 or 6 bits, a byte each, from (n, w) bytes; the lowest bits come first."""
    if bits == 4:
        pairs = np.stack([chunks & 15, chunks >> 4], axis=-1)
        return pairs.reshape(len(chunks), -1)
    words = chunks.reshape(len(chunks), -1, 3).astype(np.uint32)
    joined = words[..., 0] | words[..., 1] << 8 | words[..., 2] << 16
    codes = joined[..., None] >> np.arange(0, 24, 6, dtype=np.uint32) & 63
    return codes.reshape(len(chunks), -1).astype(np.uint8)


def codes_of_chunks(chunks: Bytes, type_name: str, *, packed: bool = False) -> NDArray[Any]:
    """The codes of the elements in chunks of 16 bytes.

    Args:
        chunks: (n, 16) bytes.
        type_name: the elements' type. In memory, 16 elements of 4 bits take the first 8 bytes of a
            chunk, and 16 of 6 bits the first 12; the rest is padding (PTX ISA, "Packing formats
            used by tcgen05.mma ... .kind::f8f6f4").
        packed: 4-bit elements fill the chunk, 32 of them (``.kind::mxf4``, ``.kind::mxf4nvf4``).

    Returns:
        (n, elements of a chunk), unsigned, a byte each for types of at most 8 bits.
    """
    bits = OPERAND_BITS[type_name]
    if bits >= 8:
        return np.ascontiguousarray(chunks).view(_CODE_TYPES[bits])
    return unpack_codes(chunks if packed else chunks[:, : 2 * bits], bits)


def read_operand(
    shared: SharedMemory,
    descriptor: SmemDescriptor,
    mn: int,
    k: int,
    type_name: str,
    major: Major,
    clock: Clock,
    unit: int,
    *,
    packed: bool = False,
    name: str = "the tensor core",
    parts: list[Copied] | None = None,
) -> NDArray[Any]:
    """The codes of an operand, (mn, k), as `decode_elements` takes them.

    Args:
        shared: the memory that the descriptor's addresses lie in.
        descriptor: the operand's matrix descriptor.
        mn, k: extents in elements.
        type_name: the elements' type.
        major: the contiguous dimension.
        clock: what the thread that issued the instruction had seen.
        unit: the agent that reads.
        packed: 4-bit elements without padding.
        name: the operand's name, in errors.
        parts: what has brought the parts of the operand that lie in other blocks; appended to.

    Raises:
        DescriptorFault: the operand leaves the block's shared memory.
        LayoutFault: TMA wrote it as another type, or in another layout; or elements of it are the
            same bytes.
        SynchronizationFault: a phase in which it was to be brought left a part out; or as
            `SharedMemory.bulk_load` says, as of UninitializedRead.
    """
    bits = OPERAND_BITS[type_name]
    in_memory = bits if packed or bits >= 8 else 8
    addresses, low, high, reading = _with_extent(descriptor, mn, k, in_memory, major)
    if shared.block.layouts:
        _check_distinct(descriptor, mn, k, in_memory, major, name)
    if low < SHARED_BASE or high > shared.size:
        raise DescriptorFault(
            f"{name}'s descriptor ({'; '.join(descriptor.describe()[:4])}) makes it read shared"
            f" addresses {low:#x} to {high - 1:#x}; the block's are {SHARED_BASE:#x} to"
            f" {shared.size - 1:#x}"
        )
    try:
        if in_memory == bits:
            chunks, written = shared.load_pieces(addresses // CHUNK_BYTES, clock, unit, name=name)
        else:
            chunks, written = _padded(shared, addresses, bits, clock, unit, name), None
    except EmulationError as fault:
        if f"{low:#x}" not in fault.message:  # what lies there may be no part of what is meant
            fault.message += (
                f"; the operand, {mn} x {k} of {type_name} and {major}-major, is from"
                f" shared address {low:#x} to shared address {high - 1:#x}"
            )
        raise
    if shared.copies:
        copies = _check_layout(
            shared, descriptor, reading, in_memory, major, type_name, name, written
        )
        parts = copies if parts is None else parts
        if parts is not copies:
            parts += copies
        _check_phases(parts, name)
    codes = codes_of_chunks(chunks, type_name, packed=packed)
    codes = codes.reshape(mn, k) if major == "K" else codes.reshape(k, -1)[:, :mn].T
    shared.operands[name] = descriptor, type_name, codes
    return codes


def _padded(
    shared: SharedMemory, addresses: Addresses, bits: int, clock: Clock, unit: int,
    name: str
) -> Bytes:  # fmt: skip
    """Chunks of elements of 4 or 6 bits, without the padding behind them: it is not read, and
    nothing need have written it."""
    piece = 8 if bits == 4 else 4
    offsets = (addresses[:, None] + np.arange(0, 2 * bits, piece)).reshape(-1)
    return shared.bulk_load(offsets, piece, clock, unit, name=name).reshape(len(addresses), -1)
