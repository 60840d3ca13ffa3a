"""What the TMA unit copies: boxes of tensors between global and shared memory.

Where the elements of a box lie in shared memory is `TensorMap.smem_address`; the copies here are
whole-array, over units of 16 bytes (8 where a swizzle moves halves), whose offsets are computed
once for each map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import (
    DescriptorFault,
    LayoutFault,
    MemoryFault,
    SynchronizationFault,
)
from triton_ext.emulator.state.barriers import MBarrier
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.memory import PARAM_WINDOW, WINDOW_SHIFT, Allocation, Bytes
from triton_ext.emulator.state.tensor_map_memory import decode
from triton_ext.emulator.units.accessors import By
from triton_ext.emulator.units.provenance import (
    OPERANDS,
    Arrangement,
    Copied,
    Reading,
    arrange,
    brought,
    misplaced,
    note,
    swizzled_rows,
)
from triton_ext.errors import LayoutError
from triton_ext.hardware.alignments import BOX
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import (
    OOB_NAN,
    TENSOR_MAP_BYTES,
    DataType,
    Interleave,
    OobFill,
    TensorMap,
    TensorSwizzle,
)
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.ptx.parse import Instruction

Index = NDArray[np.int64]

_ADDRESSES = 1 << 64
"""Addresses wrap around: Triton's ``ragged_tma.py`` has coordinates that come to 2**64 bytes."""

ELEMENTS: dict[DataType, Any] = {
    DataType.UINT8: np.uint8, DataType.UINT16: np.uint16, DataType.UINT32: np.uint32,
    DataType.INT32: np.int32, DataType.UINT64: np.uint64, DataType.INT64: np.int64,
    DataType.FLOAT16: np.float16, DataType.FLOAT32: np.float32, DataType.FLOAT64: np.float64,
    DataType.BFLOAT16: ml_dtypes.bfloat16, DataType.FLOAT32_FTZ: np.float32,
    DataType.TFLOAT32: np.float32, DataType.TFLOAT32_FTZ: np.float32,
}  # fmt: skip


def check_acquired(cta: Cta, address: int, agent: int) -> None:
    """Raise SynchronizationFault if `agent` uses a map that the kernel made, and cannot see it."""
    made = cta.machine.tensor_maps.get(address)
    if made is None:
        return
    seen = cta.cluster.clocks.seen[agent]
    if not any(
        number == cta.cluster.number and event <= seen[who] for number, who, event in made.acquired
    ):
        raise SynchronizationFault(
            f"the tensor map at {address:#x} was made by this kernel; before its use,"
            " fence.proxy.tensormap::generic.acquire is missing"
        )


def tensor_map_at(cta: Cta, address: int) -> TensorMap | Im2colMap:
    """The map at a generic address.

    Raises:
        DescriptorFault: there is none.
        MemoryFault: an address that is neither of global nor of parameter memory.
    """
    window = address >> WINDOW_SHIFT
    if window == PARAM_WINDOW >> WINDOW_SHIFT:
        offset = address - PARAM_WINDOW
        parameters = cta.launch.parameters
        if offset + TENSOR_MAP_BYTES > len(parameters):
            raise MemoryFault(f"a tensor map outside of the {len(parameters)} bytes of parameters")
        return decode(bytes(parameters[offset : offset + TENSOR_MAP_BYTES]))
    if window:
        raise MemoryFault(f"tensor map address {address:#x} is not of global or parameter memory")
    found = cta.launch.memory.locate(address, TENSOR_MAP_BYTES)
    first = address - found.start
    return decode(found.data[first : first + TENSOR_MAP_BYTES].tobytes())


def read_tensor_map(cta: Cta, address: int, by: By | None) -> None:
    """TMA reads a map that lies in global memory: until then, nobody may change it."""
    if by is not None and not address >> WINDOW_SHIFT:
        found = cta.launch.memory.locate(address, TENSOR_MAP_BYTES)
        by.read(found, address - found.start, np.zeros(1, np.int64), TENSOR_MAP_BYTES)


@dataclass(frozen=True)
class Box:
    """The geometry of a map's box, at an address of a given alignment.

    Attributes:
        unit: bytes that move as a whole in shared memory.
        numbers: for each unit of the box, row by row, its number in shared memory, counted from
            the box's address.
        outer: for each row, its index along each dimension but the first, (rows, rank - 1).
        row_offsets: in global memory, from the box's first element to each row, in bytes.
        row_bytes: size of a row in global memory.
        smem_bytes: size of the box in shared memory, gaps included.
        filled: whether the box's units fill it without gaps.
        gathered: if `filled`: for each unit of shared memory, its offset in global memory from
            the first element, in units.
        arrangement: where its chunks are; None where a swizzle moves their halves.
        reading: its chunks, row by row.
    """

    unit: int
    numbers: Index
    outer: Index
    row_offsets: Index
    row_bytes: int
    smem_bytes: int
    filled: bool
    gathered: Index | None
    arrangement: Arrangement | None
    reading: Reading


@lru_cache(maxsize=1024)
def box_of(tensor_map: TensorMap, residue: int) -> Box:
    """The geometry of a box whose address is `residue` modulo the swizzle's alignment. Raises
    DescriptorFault: an interleaved tensor, which is not modelled."""
    if tensor_map.interleave != Interleave.NONE:
        raise DescriptorFault("interleaved tensor maps are not modelled")
    kind = tensor_map.data_type
    unit = 8 if tensor_map.swizzle == TensorSwizzle.BYTES_128_ATOM_32B_FLIP_8B else CHUNK_BYTES
    per_unit = CHUNK_BYTES if kind.is_padded else 8 * unit // kind.bits
    columns, *outer_shape = tensor_map.copied_shape
    outer: Index = np.zeros((1, 0), np.int64)
    if outer_shape:
        outer = np.indices(outer_shape[::-1], np.int64).reshape(len(outer_shape), -1)[::-1].T
    column = np.arange(0, columns, per_unit)
    try:
        addresses = tensor_map.smem_address(
            [column[None, :], *(outer[:, [i]] for i in range(len(outer_shape)))], residue
        )
    except LayoutError as error:
        raise DescriptorFault(str(error)) from None
    numbers = (np.broadcast_to(addresses, (len(outer), len(column))).reshape(-1) - residue) // unit
    steps = np.array(tensor_map.element_strides[1:], np.int64)
    strides = np.array(tensor_map.global_strides, np.int64)
    row_offsets = (outer * (steps * strides)).sum(axis=1)
    row_bytes = columns * kind.bits // 8
    smem_bytes = tensor_map.smem_bytes
    filled = len(numbers) * unit == smem_bytes
    gathered = None
    if filled and unit == CHUNK_BYTES and not kind.is_padded:
        source = row_offsets[:, None] // CHUNK_BYTES + np.arange(len(column))
        gathered = np.empty(len(numbers), np.int64)
        gathered[numbers] = source.reshape(-1)
    arrangement = None
    if unit == CHUNK_BYTES:
        shape = (len(column), *outer_shape)
        arrangement = arrange(shape, numbers, smem_bytes, tensor_map.swizzle)
    reading = Reading(numbers.reshape(len(outer), -1) * unit)
    return Box(
        unit, numbers, outer, row_offsets, row_bytes, smem_bytes, filled, gathered, arrangement,
        reading,
    )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """The part of a box that its tensor has.

    Attributes:
        origin: the global address of the box's first element (which may be outside).
        rows: which rows; None for all.
        first, last: the bytes of a row that are inside, [first, last).
    """

    origin: int
    rows: Index | None
    first: int
    last: int

    @property
    def empty(self) -> bool:
        return self.first >= self.last or (self.rows is not None and not len(self.rows))


class BoxCopy:
    """One box of a tensor, to be copied.

    Args:
        tensor_map: describes the tensor.
        coordinates: those of the box's first element, innermost first; with `rows`, the innermost
            alone.
        address: the box's address in its block's shared memory.
        rows: the four rows of a gather or scatter.

    Raises:
        DescriptorFault: coordinates or an address that the hardware forbids.
    """

    def __init__(
        self,
        tensor_map: TensorMap,
        coordinates: Sequence[int],
        address: int,
        rows: Sequence[int] | None = None,
    ) -> None:
        rank = 2 if rows is not None else len(coordinates)
        if rank != tensor_map.rank:
            why = f"the instruction is for {rank} dimensions, the tensor map has {tensor_map.rank}"
            raise DescriptorFault(why)
        if rows is not None:
            if tensor_map.box_dims[1] != 1:
                raise DescriptorFault(
                    f"tile::gather4 and scatter4: the box's second dimension must be 1, not"
                    f" {tensor_map.box_dims[1]}"
                )
            tensor_map = replace(tensor_map, box_dims=(tensor_map.box_dims[0], len(rows)))
        self.map = tensor_map
        self.rows = rows
        self.coordinates = (coordinates[0], 0) if rows is not None else tuple(coordinates)
        self._check(address)
        self.box = box_of(tensor_map, address % tensor_map.swizzle.alignment)
        self.address = address

    def _check(self, address: int) -> None:
        multiple = self.map.coordinate_multiple
        if self.coordinates[0] % multiple:
            raise DescriptorFault(
                f"the innermost coordinate {self.coordinates[0]} must be a multiple of {multiple}"
                f" elements of {self.map.data_type.name}: on an H100 the copy ends in an illegal"
                " instruction"
            )
        if wrong := BOX.broken(address):
            raise DescriptorFault(wrong)

    @staticmethod
    def of(
        tensor_map: TensorMap | Im2colMap,
        coordinates: Sequence[int],
        address: int,
        rows: Sequence[int] | None = None,
        offsets: Sequence[int] | None = None,
    ) -> BoxCopy:
        """The copy of a map of either mode.

        Args:
            offsets: those of an instruction of im2col mode; None for one that copies tiles.

        Raises:
            DescriptorFault: the instruction is of the other mode, or as the class says.
        """
        if isinstance(tensor_map, Im2colMap) and offsets is not None:
            return ColumnCopy(tensor_map, coordinates, address, offsets)
        if isinstance(tensor_map, Im2colMap) or offsets is not None:
            modes = ("tiles", "im2col") if offsets is None else ("im2col", "tiles")
            raise DescriptorFault("the instruction is for {}, the tensor map for {}".format(*modes))
        return BoxCopy(tensor_map, coordinates, address, rows)

    # --------------------------------------------------------- global memory

    def _part(self) -> Part:
        box, coordinates, dims = self.box, self.coordinates, self.map.global_dims
        bits = self.map.data_type.bits
        first = max(0, -coordinates[0]) * bits // 8
        last = min(box.row_bytes, (dims[0] - coordinates[0]) * bits // 8)
        origin = self.map.global_address + coordinates[0] * bits // 8
        if self.rows is not None:
            given = np.array(self.rows, np.int64)
            return Part(origin, np.flatnonzero((given >= 0) & (given < dims[1])), first, last)
        inside = True
        for at, size, step, limit in zip(
            coordinates[1:],
            self.map.copied_shape[1:],
            self.map.element_strides[1:],
            dims[1:],
            strict=True,
        ):
            inside = inside and at >= 0 and at + (size - 1) * step < limit
        origin += sum(
            at * stride for at, stride in zip(coordinates[1:], self.map.global_strides, strict=True)
        )
        origin %= _ADDRESSES
        if inside:
            return Part(origin, None, first, last)
        position = box.outer * np.array(self.map.element_strides[1:]) + np.array(coordinates[1:])
        good = ((position >= 0) & (position < np.array(dims[1:]))).all(axis=1)
        return Part(origin, np.flatnonzero(good), first, last)

    @property
    def inside(self) -> tuple[int, int]:
        """How many rows of the box, and how many bytes of them, its tensor has."""
        part = self._part()
        rows = len(self.box.outer) if part.rows is None else len(part.rows)
        width = max(0, part.last - part.first)
        return (rows, width * rows) if width else (0, 0)

    def rows_inside(self) -> tuple[Index, int]:
        """The addresses of the box's rows that its tensor has, each of its first byte that it has,
        and how many bytes of a row these are."""
        part = self._part()
        if part.empty:
            return np.zeros(0, np.int64), 0
        return part.origin + part.first + self._offsets(part), part.last - part.first

    def _offsets(self, part: Part) -> Index:
        """Offsets from the origin to each of the rows that are inside, in bytes."""
        if self.rows is not None:
            return np.array(self.rows, np.int64)[part.rows] * self.map.global_strides[0]
        return self.box.row_offsets if part.rows is None else self.box.row_offsets[part.rows]

    def _locate(
        self, cta: Cta, part: Part, offsets: Index, *, writes: bool = False
    ) -> tuple[int, Allocation]:
        """The allocation that has the part, and the offset of the origin in it."""
        low = part.origin + int(offsets.min()) + part.first
        high = part.origin + int(offsets.max()) + part.last
        found = cta.launch.memory.locate(self.map.global_address, writes=writes)
        if low < found.start or high > (found.end if writes else found.start + found.size):
            raise MemoryFault(
                f"a box at {self.coordinates} of a tensor of {self.map.global_dims}"
                f" {self.map.data_type.name} elements at {self.map.global_address:#x}, strides"
                f" {self.map.global_strides} bytes, has addresses {low:#x} to {high - 1:#x}:"
                f" outside of {found.name or 'its allocation'}, {found.size} bytes at"
                f" {found.start:#x}"
            )
        return part.origin - found.start, found

    def _lines(
        self, cta: Cta, part: Part, by: By | None, values: Bytes | None = None
    ) -> tuple[NDArray[Any] | None, Any]:
        """For a box that is inside as a whole: 16-byte lines of memory, and those of the box. `by`:
        who reads them, or writes `values` to them."""
        box = self.box
        if (
            box.gathered is None
            or part.rows is not None
            or part.first
            or part.last != box.row_bytes
        ):
            return None, None
        origin, found = self._locate(cta, part, box.row_offsets, writes=values is not None)
        if origin % CHUNK_BYTES:
            return None, None
        if by is not None:
            if values is None:
                by.read(found, origin, box.row_offsets, box.row_bytes)
            else:
                rows = values.reshape(-1, box.unit)[box.numbers].reshape(len(box.row_offsets), -1)
                by.write(found, origin, box.row_offsets, rows)
        data = found.data
        lines = data[: len(data) // CHUNK_BYTES * CHUNK_BYTES].view(_LINE)
        return lines, box.gathered + origin // CHUNK_BYTES

    def read_global(self, cta: Cta, by: By | None) -> Bytes:
        """The box's bytes as they lie in shared memory, gaps left out.

        (`smem_bytes`,) if the box is filled, else (units, unit) in the order of `Box.numbers`.
        """
        box, part = self.box, self._part()
        kind = self.map.data_type
        lines, index = self._lines(cta, part, by)
        if lines is not None:
            return _converted(lines[index].view(np.uint8), kind)
        rows = self._filling(len(box.row_offsets))
        if not part.empty:
            offsets = self._offsets(part)
            origin, found = self._locate(cta, part, offsets)
            if by is not None:
                by.read(found, origin + part.first, offsets, part.last - part.first)
            index = (origin + offsets)[:, None] + np.arange(part.first, part.last)
            which = slice(None) if part.rows is None else part.rows
            rows[which, part.first : part.last] = _converted(found.data[index], kind)
        return self._arranged(rows)

    def _filling(self, rows: int) -> Bytes:
        if self.map.oob_fill == OobFill.NONE:
            return np.zeros((rows, self.box.row_bytes), np.uint8)
        return np.full((rows, self.box.row_bytes // 2), OOB_NAN, np.uint16).view(np.uint8)

    def _arranged(self, rows: Bytes) -> Bytes:
        box = self.box
        if self.map.data_type.is_padded:
            used = 16 * self.map.data_type.bits // 8
            padded = np.zeros((rows.size // used, CHUNK_BYTES), np.uint8)
            padded[:, :used] = rows.reshape(-1, used)
            rows = padded
        units = rows.reshape(-1, box.unit)
        if not box.filled:
            return units
        out = np.empty_like(units)
        out[box.numbers] = units
        return out.reshape(-1)

    def _check_store(self) -> None:
        if self.map.data_type.is_padded:
            raise DescriptorFault(f"{self.map.data_type.name} elements cannot be stored")
        coordinates = (*self.coordinates, *(self.rows or ()))
        if min(coordinates) < 0:
            raise DescriptorFault(
                f"a store's coordinates must not be negative, here {coordinates}: on an H100 it"
                " ends in an illegal instruction"
            )

    def write_global(self, cta: Cta, values: Bytes, by: By | None, combine: Any = None) -> None:
        """Write what `read_shared` gave; elements outside of the tensor are left out. `combine`:
        (old, new) elements -> elements, for a reduction."""
        self._check_store()
        box, part = self.box, self._part()
        if part.empty:
            return
        if combine is None:
            lines, index = self._lines(cta, part, by, values)
            if lines is not None:
                lines[index] = values.view(_LINE)
                return
        # The hardware writes whole 16 bytes, also where the tensor ends within them (an H100).
        inside = part.last - part.first
        part = replace(part, last=-(-part.last // CHUNK_BYTES) * CHUNK_BYTES)
        units = values.reshape(-1, box.unit)[box.numbers] if box.filled else values
        rows: Bytes = units.reshape(len(box.row_offsets), box.row_bytes)
        if part.rows is not None:
            rows = rows[part.rows]
        rows = rows[:, part.first : part.last]
        offsets = self._offsets(part)
        origin, found = self._locate(cta, part, offsets, writes=True)
        data = found.data
        if by is not None:
            by.write(found, origin + part.first, offsets, rows[:, :inside])
        index = (origin + offsets)[:, None] + np.arange(part.first, part.last)
        if combine is None:
            data[index] = rows
            return
        dtype = ELEMENTS[self.map.data_type]
        for row, at in zip(rows, index, strict=True):  # rows may overlap: one after the other
            old = np.ascontiguousarray(data[at]).view(dtype)
            data[at] = combine(old, np.ascontiguousarray(row).view(dtype)).view(np.uint8)

    # --------------------------------------------------------- shared memory

    def write_shared(
        self, cta: Cta, values: Bytes, clock: Any, unit: int, barrier: MBarrier,
        instruction: Instruction | None
    ) -> None:  # fmt: skip
        """Put what `read_global` gave into a block's shared memory. `barrier`: will be told of
        it."""
        box, shared = self.box, cta.shared
        if box.filled:
            shared.bulk_write(self.address, values, clock, unit, name="TMA")
        else:
            offsets = self.address + box.numbers * box.unit
            shared.bulk_store(offsets, values, clock, unit, name="TMA")
        if cta.launch.checks.layouts and box.arrangement is not None and self.map.rank > 1:
            event = int(cta.cluster.clocks.seen[unit, unit])
            element, phase = OPERANDS.get(self.map.data_type, ""), barrier.phase
            copied = Copied(
                box.arrangement, self.address, instruction, element, shared, barrier, phase
            )
            note(shared, event, copied)

    def read_shared(self, cta: Cta, clock: Any, unit: int) -> Bytes:
        """Take the box out of a block's shared memory; of what its tensor has not, zeros. Raises
        LayoutFault: another copy put it there with another swizzle, and its rows were others."""
        box, part = self.box, self._part()
        if part.empty:
            return np.zeros((len(box.numbers), box.unit), np.uint8)
        reading, chosen = box.reading, None
        if part.rows is not None or part.first or part.last < box.row_bytes:
            rows = None if part.rows is None else tuple(part.rows.tolist())
            first, last = part.first // box.unit, -(-part.last // box.unit)
            residue = self.address % self.map.swizzle.alignment
            reading, chosen = _part_of(self.map, residue, rows, first, last)
        found = None
        if box.arrangement is not None:
            copies = brought(cta.shared, reading, self.address)
            found = misplaced(copies, reading, self.address)
        if found is not None and found.copied.arrangement.swizzle != self.map.swizzle:
            raise LayoutFault(
                f"the copy out of shared memory reads {swizzled_rows(self.map.swizzle.span)};"
                f" {found}. (If this is meant: check_layouts=False)"
            )
        if chosen is None and box.filled:
            return cta.shared.bulk_read(self.address, box.smem_bytes, clock, unit, name="TMA")
        numbers = box.numbers if chosen is None else box.numbers[chosen]
        offsets = self.address + numbers * box.unit
        values = cta.shared.bulk_load(offsets, box.unit, clock, unit, name="TMA")
        if chosen is None:
            return values
        units = np.zeros((len(box.numbers), box.unit), np.uint8)
        units[numbers if box.filled else chosen] = values
        return units


@lru_cache(maxsize=1024)
def _part_of(
    tensor_map: TensorMap, residue: int, rows: tuple[int, ...] | None, first: int, last: int
) -> tuple[Reading, Index]:
    """Some rows of a box, and of each the units in [first, last): as what they are read, and where
    they are among `Box.numbers`."""
    box = box_of(tensor_map, residue)
    which = slice(None) if rows is None else np.array(rows)
    places = np.arange(len(box.numbers)).reshape(len(box.outer), -1)[which, first:last]
    return Reading(box.reading.offsets[which, first:last]), places.reshape(-1)


class ColumnCopy(BoxCopy):
    """A column of pixels of an image (im2col), to be loaded: see `triton_ext.hardware.im2col`.

    Args:
        im2col: describes the tensor, and the pixels.
        coordinates: the first channel, then those of the first pixel.
        address: the column's address in its block's shared memory.
        offsets: of the filter's tap.

    Raises:
        DescriptorFault: coordinates, offsets or an address that the hardware forbids, or for which
            it is not documented what is loaded.
    """

    def __init__(
        self, im2col: Im2colMap, coordinates: Sequence[int], address: int, offsets: Sequence[int]
    ) -> None:
        if len(coordinates) != im2col.rank:
            raise DescriptorFault(
                f"the instruction is for {len(coordinates)} dimensions, the tensor map has"
                f" {im2col.rank}"
            )
        column = im2col.column
        super().__init__(column, (coordinates[0], *(0 for _ in column.box_dims[1:])), address)
        try:
            self._pixels, self._inside = im2col.pixel_offsets(coordinates, offsets)
        except LayoutError as error:
            raise DescriptorFault(str(error)) from None
        self._channels = im2col.tensor.global_dims[0]

    def _part(self) -> Part:
        first, bits = self.coordinates[0], self.map.data_type.bits
        return Part(
            self.map.global_address + first * bits // 8,
            np.flatnonzero(self._inside),
            max(0, -first) * bits // 8,
            min(self.box.row_bytes, (self._channels - first) * bits // 8),
        )

    def _offsets(self, part: Part) -> Index:
        return self._pixels[part.rows]


_LINE = np.dtype(np.complex128)  # 16 bytes that numpy moves as one


_TF32_DROPPED = 13
_TF32_NAN = np.uint32(0x7FFFE000)


def _converted(values: Bytes, kind: DataType) -> Bytes:
    """Elements as a load leaves them in shared memory (all of it seen on an H100).

    TFLOAT32 is rounded to nearest even, any NaN becomes one; nothing flushes subnormal numbers.
    """
    if kind not in (DataType.TFLOAT32, DataType.TFLOAT32_FTZ):
        return values
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = bits >> np.uint32(_TF32_DROPPED) & np.uint32(1)
    rounded = bits + (np.uint32((1 << _TF32_DROPPED - 1) - 1) + odd)
    rounded &= np.uint32((1 << 32) - (1 << _TF32_DROPPED))
    return np.where(np.isnan(bits.view(np.float32)), _TF32_NAN, rounded).view(np.uint8)
