"""What a kernel calls the pieces of shared and tensor memory: from its TTGIR, as allocated."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from triton_ext.emulator.state.memory import RANK_SHIFT, SHARED_BASE
from triton_ext.emulator.state.storage import Storage
from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import TMEM_LANES
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.encodings import SharedEncoding, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.mlir.ir import Value
from triton_ext.mlir.locations import Location
from triton_ext.mlir.memory_flow import VIEWS, MemoryFlow
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import MMAS, TMA_COPIES, TMA_STORES
from triton_ext.mlir.permuted import permuted
from triton_ext.mlir.types import MemoryType, memory_type

_COLUMN_BITS = 32


@dataclass(frozen=True)
class Buffer:
    """An allocation.

    Attributes:
        name: the kernel's variable; "" where the compiler has kept none.
        number: of the allocation, in the order of the kernel; from 1.
        offset: of its first byte in Triton's shared memory; or its first column.
        lane: its first lane, in tensor memory.
        type: of all of it; a leading dimension more than the encoding's counts buffers.
        location: in the source, or None.
        lines: of the source that read or write it, as `source_line` spells them.
    """

    name: str
    number: int
    offset: int
    lane: int
    type: MemoryType
    location: Location | None
    lines: frozenset[str] = frozenset()

    @functools.cached_property
    def encoding(self) -> SharedEncoding | None:
        """The layout of one buffer in shared memory; None if it is not understood."""
        try:
            return parse_encoding(self.type.encoding)
        except LayoutError:
            return None

    @functools.cached_property
    def layout(self) -> LinearLayout | None:
        """Where each element of one buffer lies, in which block of the cluster; or None."""
        try:
            if self.type.space == "shared":
                return self.encoding.to_linear_layout(self.tile) if self.encoding else None
            encoding = TensorMemoryEncoding.parse(self.type.encoding)
            return encoding.to_linear_layout(self.tile, self.type.element_bitwidth)
        except LayoutError:
            return None

    @property
    def tile(self) -> tuple[int, ...]:
        """The shape of one buffer, of all blocks of the cluster together."""
        rank = self.encoding.rank if self.encoding is not None else 2
        return self.type.shape[-rank:]

    @property
    def buffers(self) -> tuple[int, ...]:
        """How many there are: () for one that the kernel does not index."""
        return self.type.shape[: len(self.type.shape) - len(self.tile)]

    @functools.cached_property
    def each(self) -> int:
        """Bytes of one buffer in a block, or its columns in tensor memory."""
        number = math.prod(self.tile)
        if self.type.space == "shared":
            if self.layout and self.encoding:
                number = self.encoding.address(self.layout.in_dims["offset"] - 1) + 1
            return number * self.type.element_bitwidth // 8
        if self.layout:
            return self.layout.in_dims["column"]
        size = number * self.type.element_bitwidth
        return max(1, size // (min(self.tile[0], TMEM_LANES) * _COLUMN_BITS))

    @property
    def end(self) -> int:
        """The first byte, or column, behind all of them."""
        return self.offset + self.each * math.prod(self.buffers)

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two have memory in common, one after the other."""
        if self.type.space != other.type.space:
            return False
        # tiles of 64 rows in tensor memory leave 16 of every 32 lanes to each other
        apart = self.lane != other.lane and max(self.tile[0], other.tile[0]) < TMEM_LANES
        return not apart and max(self.offset, other.offset) < min(self.end, other.end)

    def called(self, buffer: int) -> str:
        """What one of the buffers is called: ``b[2]``."""
        index = np.unravel_index(buffer, self.buffers) if self.buffers else ()
        if self.name:
            return self.name + "".join(f"[{int(n)}]" for n in index)
        shape = "x".join(map(str, self.type.shape))
        where = ""
        if self.location is not None:
            where = f", {self.location.file.rpartition('/')[2]}:{self.location.line}"
        which = f"buffer {', '.join(str(int(n)) for n in index)} of " if self.buffers else ""
        return f"{which}allocation {self.number} ({shape}x{self.type.element}{where})"

    def describe(self, offset: int, rank: int) -> str:
        """An element of it by its logical coordinates: ``b[2][17, 32]``.

        Args:
            offset: of a byte, counted as `offset` is.
            rank: of the block.
        """
        buffer, byte = divmod(offset - self.offset, self.each)
        called = self.called(buffer)
        if self.encoding is None or self.each * 8 == self.type.element_bitwidth:
            return called
        if self.layout is None:
            return f"{called}, byte {byte}"
        address = byte * 8 // self.type.element_bitwidth
        element = self.encoding.offset_at(address, self.layout.in_dims["offset"])
        if element is None:
            return f"{called}, byte {byte}, which is padding"
        place = {"offset": element, "block": rank}
        at = self.layout.apply(**{name: place[name] for name in self.layout.in_dims})
        return f"{called}[{', '.join(str(int(n)) for n in at.values())}]"

    def cell(self, lane: int, column: int) -> str:
        """As `describe`, of a cell of tensor memory: its first element."""
        buffer, column = divmod(column - self.offset, self.each)
        called = self.called(buffer)
        if self.layout is None:
            return called
        place = {"lane": lane - self.lane, "column": column}
        try:
            at = self.layout.apply(**{name: place.get(name, 0) for name in self.layout.in_dims})
        except LayoutError:
            return called
        return f"{called}[{', '.join(str(int(n)) for n in at.values())}]"


def buffers_of(ttgir: str) -> tuple[Buffer, ...]:
    """The allocations of a module to which Triton has given their places. Raises LayoutError: the
    module cannot be read."""
    module = MlirModule(ttgir)
    flow = MemoryFlow(module)
    found: list[Buffer] = []
    for operation in module.operations:
        if operation.name not in ("ttg.local_alloc", "ttng.tmem_alloc") or not operation.results:
            continue
        result, attributes = operation.results[0], operation.attributes
        offset = attributes.get("allocation.offset", attributes.get("tensor_memory_col_offset"))
        kind = memory_type(result.type or "", module.aliases)
        if not isinstance(offset, int) or kind is None:
            continue
        name = _given_outside(operation.location)
        name = name or re.sub(r"_\d+$", "", result.name.lstrip("%"))
        lane = attributes.get("tensor_memory_row_offset", 0)
        number = 1 + sum(each.type.space == kind.space for each in found)
        name = "" if name.isdigit() else name
        lines = frozenset(_lines_of_uses(flow, result))
        found.append(Buffer(name, number, offset, lane, kind, operation.location, lines))
    return tuple(found)


_LIBRARY = "triton/experimental/gluon/language/"
"""The folder of Gluon's own functions, such as `allocate_mbarrier`."""


def _given_outside(location: Location | None) -> str:
    """What a kernel calls that which a function of Gluon's has allocated for it; or ""."""
    if location is None or _LIBRARY not in location.file:
        return ""
    return next((each.name for each in location.callers if _LIBRARY not in each.file), "")


def source_line(file: str, line: int) -> str:
    """A line by the name of its file: PTX and TTGIR may have moved to another folder."""
    return f"{file.rpartition('/')[2]}:{line}"


def _lines_of_uses(flow: MemoryFlow, allocation: Value) -> Iterator[str]:
    """The lines that read or write an allocation: not those of views, nor that of its end."""
    uses = [use for use, _ in flow.uses(allocation)]
    if allocation.definition is not None and allocation.definition.operands:  # its first value
        uses.append(allocation.definition)
    for use in uses:
        if use.location is not None and use.name not in _UNTOUCHED:
            yield source_line(use.location.file, use.location.line)


_UNTOUCHED = {*VIEWS, "ttg.local_dealloc", "ttg.warp_specialize", "ttg.warp_yield"}
"""Operations that name memory, and neither read nor write it."""


def permuted_reads(ttgir: str) -> dict[str, str]:
    """The lines, as `source_line` spells them, whose TMA stores and products all take a tile in
    another layout than threads write it in, and how. Where TMA put what is known of each byte.

    Raises:
        LayoutError: the module cannot be read.
    """
    if "memdesc_reinterpret" not in ttgir:
        return {}
    module = MlirModule(ttgir)
    wrong = {
        each.read: str(each) for each in permuted(module) if each.written.name not in TMA_COPIES
    }
    found: dict[str, str] = {}
    right: set[str] = set()
    for each in module.operations:
        if each.location is not None and each.name in (*TMA_STORES, *MMAS):
            at = source_line(each.location.file, each.location.line)
            if each in wrong:
                found[at] = wrong[each]
            else:
                right.add(at)
    return {line: why for line, why in found.items() if line not in right}


_ADDRESS = re.compile(r"(shared address |the mbarrier at )0x([0-9a-f]+)( \(\w+ \+ \d+\))?")
_BARE = re.compile(r"shared address 0x([0-9a-f]+)(?! \()")
_CELL = re.compile(r"tensor memory lane (\d+), column (\d+)")


def named(message: str, buffers: Sequence[Buffer], base: int) -> str:
    """A message with the names of the buffers behind its addresses. `base`: where Triton's shared
    memory begins in a block's."""

    def shared(match: re.Match[str]) -> str:
        rank, offset = divmod(int(match[2], 16), 1 << RANK_SHIFT)
        offset -= base
        places = [
            each.describe(offset, rank)
            for each in buffers
            if each.type.space == "shared" and each.offset <= offset < each.end
        ]
        return f"{match[1]}0x{match[2]} ({' or '.join(places)})" if places else match[0]

    def cell(match: re.Match[str]) -> str:
        column = int(match[2])
        places = [
            each.cell(int(match[1]), column)
            for each in buffers
            if each.type.space == "tensor" and each.offset <= column < each.end
        ]
        return f"{match[0]} ({' or '.join(places)})" if places else match[0]

    return _CELL.sub(cell, _ADDRESS.sub(shared, message))


def with_variables(message: str, storage: Storage) -> str:
    """A message with the kernel's own shared variables behind addresses that have no name."""

    def place(match: re.Match[str]) -> str:
        offset = int(match[1], 16) % (1 << RANK_SHIFT) - SHARED_BASE
        found = storage.shared_place(offset)
        return f"{match[0]} ({found})" if found else match[0]

    return _BARE.sub(place, message)
