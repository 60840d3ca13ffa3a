"""Breakpoints: what a block's memories hold when its threads come to a line of the source."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.schedule.observers import Observer, Run
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.buffers import Buffer, source_line
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT, SHARED_BASE
from triton_ext.emulator.state.place import Index
from triton_ext.emulator.state.stamps import EVENT, GRANULE
from triton_ext.emulator.units.matrix_product import decode_elements
from triton_ext.emulator.units.mbarriers import MBARRIER_BYTES
from triton_ext.emulator.units.provenance import swizzled_rows
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

    def __init__(
        self, cta: Cta, lanes: Lanes, instruction: Instruction, lives: Lives | None = None
    ) -> None:
        self._cta, self._lives = cta, lives
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

    def operands(self) -> list[tuple[str, Matrix]]:
        """What the tensor core has read last of the block's shared memory, by the operands' names,
        with where and how: matrices of (M, K) and (N, K), as products take them."""
        return [
            (
                f"{name.rstrip(',')}, read at {descriptor.start_address:#x} as"
                f" {swizzled_rows(descriptor.swizzle_byte_width)},"
                f" {descriptor.strides(None)}, as {type_name}",
                decode_elements(codes, type_name),
            )
            for name, (descriptor, type_name, codes) in sorted(self._cta.shared.operands.items())
        ]

    def buffers(self) -> list[tuple[str, Matrix | str]]:
        """What the kernel has allocated, and the block has written to: each buffer by its name.

        Of buffers that have memory in common there is the one that the block has used last. Tiles
        are matrices in logical coordinates, where their layout is understood; an mbarrier is its
        state in words. Without the kernel's TTGIR there are none: see `tiles`.
        """
        found: list[tuple[str, Matrix | str]] = []
        for each in self._cta.launch.buffers:
            if self._lives is not None and not self._lives.has(self._cta, each):
                continue
            for number in range(math.prod(each.buffers)):
                value = self._contents(each, number)
                if value is not None:
                    found.append((each.called(number), value))
        return found

    def _contents(self, buffer: Buffer, number: int) -> Matrix | str | None:
        kind = _ELEMENTS.get(buffer.type.element)
        first = buffer.offset + number * buffer.each
        if buffer.type.space == "tensor":
            core = self._cta.under_way.tensor_core
            if core is None or kind is None or np.dtype(kind).itemsize != _CELL_BYTES:
                return None
            written = core.memory.written.whole.reshape(-1, TMEM_LANES // GRANULE)
            if (written[first : first + buffer.each] < 0).all():
                return None
            return self._tensor_tile(buffer, first, kind)
        address = self._cta.launch.buffers_start + first
        barrier = self._cta.mbarriers.get(address)
        if barrier is not None:
            return str(barrier) if buffer.each == MBARRIER_BYTES else None
        memory = self._cta.shared
        if kind is None or buffer.layout is None or memory.written.at(address) < 0:
            return None
        return self.shared(address, buffer.tile, kind, buffer.encoding)

    def _tensor_tile(self, buffer: Buffer, column: int, kind: Any) -> Matrix | None:
        """A buffer in tensor memory whose elements fill a cell each, in logical coordinates."""
        layout = buffer.layout
        if layout is None:
            return None
        lanes, columns = np.indices((TMEM_LANES - buffer.lane, buffer.each)).reshape(2, -1)
        at = layout.apply(**{
            name: {"lane": lanes, "column": columns}.get(name, np.zeros_like(lanes))
            for name in layout.in_dims
        })  # fmt: skip
        places = np.ravel_multi_index(list(at.values()), buffer.tile)
        # of the cells that the layout takes for one element, the first is the buffer's own
        chosen = np.unique(places, return_index=True)[1]
        words = self.tensor_memory(column, buffer.each, kind)
        tile: Matrix = words[buffer.lane + lanes[chosen], columns[chosen]].reshape(buffer.tile)
        return tile

    def name(self, address: int) -> str:
        """What TMA has put to a shared address: ``row 3, byte 16, of the box of the TMA copy at``
        a line; "" if it was not TMA that wrote it last."""
        return self._cta.shared.describe(address & (1 << RANK_SHIFT) - 1).removeprefix(
            "; there lies "
        )

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
        core = self._cta.under_way.tensor_core
        if core is None:
            raise LaunchError("the block has not used tensor memory")
        most = core.memory.columns.capacity
        if not 0 <= column <= column + columns <= most:
            raise LaunchError(f"columns {column} to {column + columns - 1}: there are {most}")
        words = core.memory.data[:, column : column + columns]
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
    def at(cls, location: str, callback: Callable[[Stop], None]) -> Breakpoint:
        """From ``kernel.py:31``.

        Raises:
            LaunchError: not a file and a line.
        """
        named = re.fullmatch(r"(.+):(\d+)", location) if isinstance(location, str) else None
        if named is None:
            why = f"location = {location!r}: must be a file and a line, as 'kernel.py:31'"
            raise LaunchError(why)
        return cls(named[1], int(named[2]), callback)

    def in_file(self, source: SourceLine) -> bool:
        """Whether a line is of its file."""
        return f"/{source.file}".endswith(f"/{self.file}")

    def has(self, source: SourceLine) -> bool:
        """Whether it is at that line."""
        return source.line == self.line and self.in_file(source)

    def why_not(self, known: Collection[SourceLine]) -> str:
        """Why it was never hit, in words.

        Args:
            known: the lines that kernels which were launched have instructions of.
        """
        if not known:
            return "no kernel was launched"
        lines = sorted({each.line for each in known if self.in_file(each)})
        if not lines:
            files = ", ".join(sorted({each.file.rpartition("/")[2] for each in known}))
            return f"no kernel has instructions of this file; those that ran are of {files}"
        if self.line in lines:
            return "the line has instructions, and no warp came to them"
        after = bisect_left(lines, self.line)
        nearest = " and ".join(map(str, lines[max(0, after - 1) : after + 1]))
        return f"no instruction is of that line; the nearest that have some: {nearest}"


_USES = re.compile(r"ld|st|atom|red|cp|mbarrier|wgmma|tcgen05|mma")
"""Instructions that may use shared or tensor memory; others of their lines may run much earlier."""


class Lives:
    """Which of the buffers that have memory in common each block has used last.

    That is seen by the lines of the source that use each.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._used: dict[tuple[Cta, int], int] = {}  # when each block has used each buffer last
        self._users: dict[str, list[int]] = {}
        self._others: dict[int, list[int]] = {}

    def begin(self, run: Run) -> None:
        """A launch is about to run: all blocks are new ones."""
        self._used.clear()
        self._users.clear()
        buffers = run.launch.buffers
        self._others = {
            id(each): [id(other) for other in buffers if other is not each and each.overlaps(other)]
            for each in buffers
        }
        for each in buffers:
            for line in each.lines:
                self._users.setdefault(line, []).append(id(each))

    def note(self, cta: Cta, instruction: Instruction) -> None:
        """A block is about to execute an instruction."""
        source = instruction.source
        if source is None or not self._users or not _USES.match(instruction.opcode):
            return
        self._clock += 1
        for each in self._users.get(source_line(source.file, source.line), ()):
            self._used[cta, each] = self._clock

    def has(self, cta: Cta, buffer: Buffer) -> bool:
        """Whether what lies in a buffer's memory is its own, as far as one can know."""
        others = self._others.get(id(buffer), [])
        if not others or not buffer.lines:
            return True
        last = self._used.get((cta, id(buffer)), 0)
        return last > 0 and all(last >= self._used.get((cta, each), 0) for each in others)


class Breakpoints(Observer):
    """Calls what waits for a line, whenever warps come to it from another one."""

    def __init__(self) -> None:
        self.all: list[Breakpoint] = []
        self._before: dict[tuple[Cta, int], SourceLine | None] = {}
        self._lives = Lives()
        self._lines: set[SourceLine] = set()

    def missed(self) -> list[str]:
        """Why each breakpoint that was never hit was not; each is told of once."""
        never = [each for each in self.all if not each.hits]
        self.all = [each for each in self.all if each.hits]
        return [
            f"the breakpoint at {each.file}:{each.line} was never hit: {each.why_not(self._lines)}"
            for each in never
        ]

    def begins(self, run: Run) -> Observer:
        steps = (step.instruction for step in run.program.steps)
        # what has no line of its own is of line 0 (LLVM)
        self._lines.update(each.source for each in steps if each.source and each.source.line)
        self._before.clear()
        self._lives.begin(run)
        return self

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        source, came = step.instruction.source, False
        for warp in lane_sets.warps(lanes).tolist():
            last = self._before.get((cta, warp))
            came |= last is None or source is None or str(last) != str(source)
            self._before[cta, warp] = source
        if source is not None and came:
            for each in self.all:
                if each.has(source):
                    each.hits += 1
                    each.callback(Stop(cta, lanes, step.instruction, self._lives))
        self._lives.note(cta, step.instruction)


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
    """A stop in lines: each buffer's first rows and columns, or the tiles that TMA brought and the
    operands that the tensor core has read."""
    warps = ", ".join(map(str, stop.warps))
    lines = [f"{stop.instruction.source}: block {stop.block}, warps {warps}"]
    shown = (
        stop.buffers()
        or [
            (f"tile at {tile.address:#x}, copied at {tile.source}, as bytes", tile.values)
            for tile in stop.tiles()
        ]
        + stop.operands()
    )
    for name, value in shown:
        if isinstance(value, str):
            lines.append(f"  {name}: {value}")
            continue
        lines.append(f"  {name}: {'x'.join(map(str, value.shape))} {value.dtype}")
        lines += [f"    {row}" for row in _corner(value)]
    return lines if shown else [*lines, "  nothing is known to lie in its memories"]
