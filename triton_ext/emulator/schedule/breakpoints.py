"""Breakpoints: what a block's memories hold when its threads come to a line of the source."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta, Index
from triton_ext.emulator.state.buffers import Buffer
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT, SHARED_BASE
from triton_ext.emulator.state.stamps import EVENT, GRANULE
from triton_ext.hardware.tensor_memory import TMEM_LANES
from triton_ext.layouts.encodings import SharedEncoding, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.ptx.parse import Instruction, SourceLine

Matrix = NDArray[Any]

_CELL_BYTES = 4
_ELEMENTS = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E5M2": ml_dtypes.float8_e5m2, "i8": np.int8,
    "i16": np.int16, "i32": np.int32, "i64": np.int64,
}  # fmt: skip
"""MLIR's element types."""


@dataclass(frozen=True)
class Tile:
    """A box of a tensor that TMA has copied in, and nobody has written to since.

    Attributes:
        address: of its first byte in the block's shared memory.
        source: the line that copied it.
        values: in logical coordinates, the innermost dimension last.
    """

    address: int
    source: SourceLine | None
    values: Matrix


class Stop:
    """A block whose threads have come to a line. All matrices are copies.

    Attributes:
        block: (x, y, z) in the grid.
        warps: those that are about to execute the instruction.
        instruction: the first one of the line.
    """

    def __init__(self, cta: Cta, lanes: Lanes, instruction: Instruction) -> None:
        self._cta = cta
        self.block: Index = cta.index
        self.warps: list[int] = lane_sets.warps(lanes).tolist()
        self.instruction = instruction

    def tiles(self, dtype: Any = np.uint8) -> list[Tile]:
        """What TMA has copied into shared memory, unswizzled, in the order of addresses.

        Args:
            dtype: numpy's, of the elements.
        """
        shared, found = self._cta.shared, []
        for event, copied in shared.copies.items():
            places = copied.arrangement.places
            here = slice(copied.address, copied.address + len(places) * GRANULE)
            filled = places >= 0
            where = copied.address + GRANULE * np.flatnonzero(filled)
            writers = shared.written.get(where, GRANULE)
            if not len(writers) or (writers >> EVENT != event).any():
                continue
            chunks = np.empty((int(filled.sum()), GRANULE), np.uint8)
            chunks[places[filled]] = shared.data[here].reshape(-1, GRANULE)[filled]
            columns, *outer = copied.arrangement.shape
            rows = chunks.reshape(*outer[::-1], columns * GRANULE).view(dtype)
            source = copied.instruction.source if copied.instruction else None
            found.append(Tile(copied.address, source, rows))
        return sorted(found, key=lambda tile: tile.address)

    def buffers(self) -> list[tuple[str, Matrix | str]]:
        """What the kernel has allocated, and the block has written to: each buffer by its name.

        Tiles are matrices in logical coordinates, where their layout is understood; an mbarrier is
        its state in words. Without the kernel's TTGIR there are none: see `tiles`.
        """
        found: list[tuple[str, Matrix | str]] = []
        for each in self._cta.launch.buffers:
            for number in range(math.prod(each.buffers)):
                value = self._contents(each, number)
                if value is not None:
                    found.append((each.called(number), value))
        return found

    def _contents(self, buffer: Buffer, number: int) -> Matrix | str | None:
        kind = _ELEMENTS.get(buffer.type.element)
        first = buffer.offset + number * buffer.each
        if buffer.type.space == "tensor":
            core = self._cta.tensor_core
            if core is None or kind is None or np.dtype(kind).itemsize != _CELL_BYTES:
                return None
            written = core.memory.written.whole.reshape(-1, TMEM_LANES // GRANULE)
            if (written[first : first + buffer.each] < 0).all():
                return None
            lanes = slice(buffer.lane, buffer.lane + min(buffer.tile[0], TMEM_LANES))
            return self.tensor_memory(first, buffer.each, kind)[lanes]
        address = self._cta.launch.buffers_start + first
        barrier = self._cta.mbarriers.get(address)
        if barrier is not None:
            return str(barrier)
        memory = self._cta.shared
        if kind is None or buffer.layout is None or memory.written.at(address) < 0:
            return None
        return self.shared(address, buffer.tile, kind, buffer.encoding)

    def name(self, address: int) -> str:
        """What TMA has put to a shared address: ``row 3, byte 16, of the box of the TMA copy at``
        a line; "" if it was not TMA that wrote it last."""
        return self._cta.shared.place(address & (1 << RANK_SHIFT) - 1).removeprefix("; there lies ")

    def shared(
        self,
        address: int,
        shape: Sequence[int],
        dtype: Any,
        layout: SharedEncoding | LinearLayout | str | None = None,
    ) -> Matrix:
        """A tile of shared memory in logical coordinates.

        Args:
            address: as errors name it.
            shape: of the tile.
            dtype: numpy's, of the elements.
            layout: an encoding (or its MLIR attribute), or a linear layout of ``offset`` in
                elements; None for rows one after the other. Of a tile that lies in the blocks of
                a cluster (``block``) it is this block's part.

        Raises:
            LaunchError: the tile is not inside of the block's memory.
            LayoutError: an illegal layout, or another shape than the layout's.
        """
        shape, kind = tuple(int(n) for n in shape), np.dtype(dtype)
        if isinstance(layout, str):
            layout = parse_encoding(layout)
        encoding = layout if isinstance(layout, SharedEncoding) else None
        if isinstance(layout, SharedEncoding):
            layout = layout.to_linear_layout(shape)
        in_dims = layout.in_dims if layout else {}
        shared_out = "block" in in_dims
        number = in_dims["offset"] if shared_out else int(np.prod(shape))
        at = np.arange(number)  # where each offset lies, in elements
        if encoding is not None:
            at = encoding.address(at)
        size = int(at[-1]) + 1 if number > 0 else 0
        first, memory = address & (1 << RANK_SHIFT) - 1, self._cta.shared
        if number < 1 or first < SHARED_BASE or first + size * kind.itemsize > memory.size:
            raise LaunchError(
                f"address {address:#x}, shape {shape}: must be inside of the block's shared memory,"
                f" {SHARED_BASE:#x} to {memory.size - 1:#x}"
            )
        values: Matrix = memory.data[first : first + size * kind.itemsize].copy().view(kind)[at]
        if layout is None:
            return values.reshape(shape)
        block = {"block": np.full(number, self._cta.rank)} if shared_out else {}
        places = list(layout.apply(offset=np.arange(number), **block).values())
        if shared_out:
            places = [each - each.min() for each in places]
            shape = tuple(int(each.max()) + 1 for each in places)
        matrix = np.empty(shape, kind)
        matrix[tuple(places)] = values
        return matrix

    def tensor_memory(self, column: int = 0, columns: int = 512, dtype: Any = np.float32) -> Matrix:
        """(128 lanes, elements): columns of the block's tensor memory, of 32 bits each.

        Raises:
            LaunchError: the block has not used tensor memory, or has no such columns.
        """
        core = self._cta.tensor_core
        if core is None:
            raise LaunchError("the block has not used tensor memory")
        words = core.memory.data[:, column : column + columns]
        if column < 0 or words.shape[1] != columns:
            raise LaunchError(f"columns {column} to {column + columns - 1}: there are 512")
        matrix: Matrix = np.ascontiguousarray(words).view(dtype)
        return matrix


@dataclass
class Breakpoint:
    """A line, and what is called when threads come to it.

    Attributes:
        file, line: where; the file by its name, or the end of its path.
        callback: takes the `Stop`.
        hits: how often it was called.
    """

    file: str
    line: int
    callback: Callable[[Stop], None]
    hits: int = 0

    @classmethod
    def at(cls, place: str, callback: Callable[[Stop], None]) -> Breakpoint:
        """From ``kernel.py:31``.

        Raises:
            LaunchError: not a file and a line.
        """
        named = re.fullmatch(r"(.+):(\d+)", place) if isinstance(place, str) else None
        if named is None:
            raise LaunchError(f"place = {place!r}: must be a file and a line, as 'kernel.py:31'")
        return cls(named[1], int(named[2]), callback)

    def has(self, source: SourceLine) -> bool:
        """Whether it is at that line."""
        return source.line == self.line and f"/{source.file}".endswith(f"/{self.file}")


class Breakpoints(Observer):
    """Calls what waits for a line, whenever warps come to it from another one."""

    def __init__(self) -> None:
        self.all: list[Breakpoint] = []
        self._before: dict[tuple[Cta, int], SourceLine | None] = {}

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        source, came = step.instruction.source, False
        for warp in lane_sets.warps(lanes).tolist():
            last = self._before.get((cta, warp))
            came |= last is None or source is None or str(last) != str(source)
            self._before[cta, warp] = source
        if source is None or not came:
            return
        for each in self.all:
            if each.has(source):
                each.hits += 1
                each.callback(Stop(cta, lanes, step.instruction))


_SHOWN_ROWS, _SHOWN_COLUMNS = 8, 8


def _corner(values: Matrix) -> list[str]:
    """The first rows and columns of a matrix, aligned, with what they are of."""
    flat = values.reshape(-1, values.shape[-1]) if values.ndim else values.reshape(1, 1)
    part = flat[:_SHOWN_ROWS, :_SHOWN_COLUMNS]
    exact = np.issubdtype(values.dtype, np.integer)
    cells = [[str(n) if exact else f"{float(n):.4g}" for n in row] for row in part]
    width = max((len(cell) for row in cells for cell in row), default=1)
    dots = "  ..." if flat.shape[1] > _SHOWN_COLUMNS else ""
    lines = ["  ".join(f"{cell:>{width}}" for cell in row) + dots for row in cells]
    return [*lines, "..."] if len(flat) > _SHOWN_ROWS else lines


def described(stop: Stop) -> list[str]:
    """A stop in lines: each buffer's first rows and columns, or the tiles that TMA brought."""
    warps = ", ".join(map(str, stop.warps))
    lines = [f"{stop.instruction.source}: block {stop.block}, warps {warps}"]
    shown = stop.buffers() or [
        (f"tile at {tile.address:#x}, copied at {tile.source}, as bytes", tile.values)
        for tile in stop.tiles()
    ]
    for name, value in shown:
        if isinstance(value, str):
            lines.append(f"  {name}: {value}")
            continue
        lines.append(f"  {name}: {'x'.join(map(str, value.shape))} {value.dtype}")
        lines += [f"    {row}" for row in _corner(value)]
    return lines if shown else [*lines, "  nothing is known to lie in its memories"]
