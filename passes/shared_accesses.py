"""The shared memory of a module: its allocations, and everything that touches them.

For each allocation: its encoding as a linear layout, its bytes, the MMAs that read it (with the
matrix descriptors that its layout gives), the TMA copies (with their boxes), the moves from and to
registers (with their instructions and predicted bank conflicts), and whatever else takes it.
Tensor memory likewise, in short. `report-layouts` prints these facts, `lint-shared` judges them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import BankReport, chunk_access
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, MmaOperand, derive_operand
from triton_ext.hardware.register_moves import Direction, PlannedMove, plan_move
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.cluster import shape_per_cta, within_block
from triton_ext.layouts.distributed import parse_distributed
from triton_ext.layouts.encodings import DEFAULT_ALIGNMENT, NVMMAShared, SharedEncoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import tma_box_shape
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.locations import Location
from triton_ext.mlir.memory_flow import FORWARDING, MemoryFlow
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import MMAS, TMA_COPIES, CopyDirection
from triton_ext.mlir.types import MemoryType, TensorType, tensor_type
from triton_ext.passes.value_layouts import (
    alignment_of,
    allocated_bytes,
    fixed_offset_bits,
    operand_layout,
    parsed_encoding,
    register_layout,
    tensor_memory_layout,
    tile_layout,
)
from triton_ext.ptx.forms.copies import GATHERED_ROWS

WGMMA_ROWS = 64
"""M of every wgmma (PTX ISA, "wgmma.mma_async")."""

_INIT_BARRIER = "ttng.init_barrier"
_WRITERS = frozenset(
    (
        "ttg.local_store", "ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local",
        "ttng.async_tma_gather", "ttg.local_scatter",
    )
)  # fmt: skip
"""Operations that write the tile that they take, and do not read it."""


@dataclass(frozen=True)
class MmaUse:
    """An MMA that reads a tile.

    Attributes:
        operation: ``ttng.warp_group_dot``, ``ttng.tc_gen5_mma``, ...
        operand: "A" or "B".
        derived: the operand as the tensor core reads it; None without a descriptor: see `reason`.
        read: the bank accesses of 8 rows of 16 bytes; None if 16 bytes do not stay together.
    """

    operation: Operation
    operand: Literal["A", "B"]
    memory: MemoryType
    derived: MmaOperand | None
    read: BankReport | None
    reason: str = ""

    @property
    def instructions(self) -> int:
        """Subtiles that instructions read, of what one block holds."""
        advances = self.derived.advances if self.derived else ()
        return sum(map(len, advances))


@dataclass(frozen=True)
class CopyUse:
    """A TMA copy from or to a tile.

    Attributes:
        direction: ``load`` (from global memory), ``store``, ``reduce``, ``gather``, ``scatter``.
        box: the extents of a box, in elements; None if they are not known: see `reason`.
        boxes: how many boxes, and so instructions, the copy takes.
    """

    operation: Operation
    direction: CopyDirection
    memory: MemoryType
    box: tuple[int, ...] | None
    boxes: int
    box_bytes: int
    reason: str = ""


@dataclass(frozen=True)
class MoveUse:
    """A tensor that is moved from registers to shared memory, or back.

    Attributes:
        memory: the type of the tile, or of the part of it that is moved.
        planned: the instructions of the move; None if they cannot be predicted: see `reason`.
    """

    operation: Operation
    direction: Direction
    tensor: TensorType
    memory: MemoryType
    planned: PlannedMove | None
    reason: str = ""


@dataclass(frozen=True)
class SharedAllocation:
    """A value of shared memory, and what touches it.

    Attributes:
        value: the result of ``ttg.local_alloc``, or an argument of a function.
        encoding, layout: the encoding and the layout of one buffer; None if they are not known: see
            `reason`.
        bytes: the size of all buffers in one block of the cluster.
        alignment: what its address is a multiple of, in bytes.
        mmas, copies, moves, others: what touches it, in textual order; an operation that takes it
            twice is there twice.
        is_barrier: whether mbarriers are made of it.
    """

    value: Value
    memory: MemoryType
    encoding: SharedEncoding | None
    layout: LinearLayout | None
    bytes: int
    alignment: int
    mmas: tuple[MmaUse, ...] = ()
    copies: tuple[CopyUse, ...] = ()
    moves: tuple[MoveUse, ...] = ()
    others: tuple[Operation, ...] = ()
    is_barrier: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """As the module calls it."""
        return self.value.name

    @property
    def location(self) -> Location | None:
        """Where the allocation stands in the kernel's source."""
        return self.value.definition.location if self.value.definition else None

    @property
    def tile(self) -> tuple[int, ...]:
        """The shape of one buffer."""
        return self.memory.shape[-len(self.layout.out_dims) :] if self.layout else self.memory.shape

    @property
    def buffers(self) -> int:
        """How many tiles it holds."""
        return math.prod(self.memory.shape[: -len(self.tile)])

    @property
    def swizzle(self) -> int | None:
        """The width of the swizzle atom in bytes, 0 for none; None if there is no such notion."""
        if isinstance(self.encoding, NVMMAShared):
            return self.encoding.swizzle_byte_width
        widths = {use.derived.descriptor.swizzle_byte_width for use in self.mmas if use.derived}
        return widths.pop() if len(widths) == 1 else None


@dataclass(frozen=True)
class TensorAllocation:
    """A value of tensor memory.

    Attributes:
        encoding: None for scales, and for what cannot be read.
        columns: how many of the 512 columns it takes; None if that is not known.
    """

    value: Value
    memory: MemoryType
    encoding: TensorMemoryEncoding | None
    columns: int | None


@functools.lru_cache(maxsize=1024)
def layout_operand(
    layout: LinearLayout, bits: int, instruction: tuple[int, int], arch: int, mn_dim: int
) -> MmaOperand:
    """`derive_operand`, its results kept."""
    return derive_operand(layout, bits, instruction, arch=arch, mn_dim=mn_dim)


@functools.lru_cache(maxsize=1024)
def _operand_read(layout: LinearLayout, bits: int, mn_dim: int) -> BankReport | None:
    tile = within_block(layout)
    names = list(tile.out_dims)
    if not tile.is_invertible():
        return None
    rows = tile.transpose_outs([names[mn_dim], names[1 - mn_dim]])
    for major in ("K", "MN"):
        try:
            return chunk_access(rows, bits, major="K" if major == "K" else "MN")
        except LayoutError:
            continue
    return None


def mma_extent(operation: Operation, operand: Literal["A", "B"], module: MlirModule) -> int:
    """M or N of one instruction, of what one block gives it. Raises LayoutError: the types do not
    say."""
    if operation.name == "ttng.warp_group_dot":
        if operand == "A":
            return WGMMA_ROWS
        result = tensor_type(operation.results[0].type or "", module.aliases)
        if result is None:
            raise LayoutError("type", operation.results[0].type, "must be a tensor")
        shape = getattr(parse_distributed(result.encoding, module.aliases), "instr_shape", None)
        if not shape:
            raise LayoutError("encoding", result.encoding, "must be wgmma's accumulator")
        return int(shape[1])
    memory = module.memory(operation.operands[2])
    if memory is None:
        raise LayoutError("accumulator", operation.operands[2].type, "must be in tensor memory")
    encoding = TensorMemoryEncoding.parse(memory.encoding)
    if operand == "A":
        return encoding.block_m
    rows = min(encoding.block_n, memory.shape[-1])
    return rows // 2 if encoding.two_ctas else rows


def _mma_use(
    operation: Operation,
    operand: Literal["A", "B"],
    memory: MemoryType,
    module: MlirModule,
    arch: int,
) -> MmaUse:
    mn_dim = 0 if operand == "A" else 1
    bits = memory.element_bitwidth
    try:
        layout = operand_layout(memory)
    except LayoutError as error:
        return MmaUse(operation, operand, memory, None, None, str(error))
    read = _operand_read(layout, bits, mn_dim)
    try:
        instruction = (mma_extent(operation, operand, module), 8 * INSTRUCTION_K_BYTES // bits)
        derived = layout_operand(layout, bits, instruction, arch, mn_dim)
    except LayoutError as error:
        return MmaUse(operation, operand, memory, None, read, str(error))
    return MmaUse(operation, operand, memory, derived, read)


@functools.lru_cache(maxsize=1024)
def tma_boxes(
    encoding: NVMMAShared, shape: tuple[int, ...], direction: CopyDirection = "load"
) -> tuple[tuple[int, ...], int, int]:
    """The boxes of a TMA copy of a tile: the extents of each, how many, and the bytes of each.
    Raises LayoutError: the shape does not fit the encoding."""
    per_cta = shape_per_cta(encoding.cga_layout, shape)
    box = tma_box_shape(per_cta, encoding)
    if direction in ("gather", "scatter"):
        box = (*((1,) * (len(box) - 2)), GATHERED_ROWS, box[-1])
    count = math.prod(-(-size // extent) for size, extent in zip(per_cta, box, strict=True))
    return box, count, math.prod(box) * encoding.element_bitwidth // 8


def _copy_use(operation: Operation, memory: MemoryType) -> CopyUse:
    direction = TMA_COPIES[operation.name]
    try:
        encoding = parsed_encoding(memory.encoding)
        if not isinstance(encoding, NVMMAShared):
            rule = "must be NVMMA, or its boxes are not known"
            raise LayoutError("encoding", memory.encoding, rule)
        box, boxes, size = tma_boxes(encoding, memory.shape, direction)
    except LayoutError as error:
        return CopyUse(operation, direction, memory, None, 0, 0, str(error))
    return CopyUse(operation, direction, memory, box, boxes, size)


@functools.lru_cache(maxsize=1024)
def planned(
    registers: LinearLayout, memory: MemoryType, direction: Direction, arch: int
) -> PlannedMove:
    """`plan_move` for a tensor and the tile, or the part of a tile, that it is moved to or from.
    Raises LayoutError: as `plan_move`."""
    encoding = parsed_encoding(memory.encoding)
    return plan_move(
        registers,
        tile_layout(memory),
        memory.element_bitwidth,
        direction,
        arch=arch,
        fixed_bits=fixed_offset_bits(memory),
        paddings=encoding.paddings,
    )


def _move_use(
    operation: Operation,
    direction: Direction,
    value: Value,
    memory: MemoryType,
    module: MlirModule,
    arch: int,
) -> MoveUse | None:
    tensor = tensor_type(value.type or "", module.aliases)
    if tensor is None:
        return None
    try:
        move = planned(register_layout(tensor, module), memory, direction, arch)
    except LayoutError as error:
        return MoveUse(operation, direction, tensor, memory, None, str(error))
    return MoveUse(operation, direction, tensor, memory, move)


def _use(
    operation: Operation, index: int, memory: MemoryType, module: MlirModule, arch: int
) -> MmaUse | CopyUse | MoveUse | Operation:
    """What an operation does with the memory that is its operand `index`."""
    if operation.name in MMAS and index < 2:
        return _mma_use(operation, "B" if index else "A", memory, module, arch)
    if operation.name in TMA_COPIES:
        return _copy_use(operation, memory)
    move = None
    if operation.name == "ttg.local_load":
        move = _move_use(operation, "load", operation.results[0], memory, module, arch)
    elif operation.name == "ttg.local_store":
        move = _move_use(operation, "store", operation.operands[0], memory, module, arch)
    return move or operation


def _uses(
    source: Value, flow: MemoryFlow, module: MlirModule, arch: int
) -> Iterator[MmaUse | CopyUse | MoveUse | Operation]:
    """What touches the memory of a value, in textual order; of barriers, the operations alone."""
    alloc, memory = source.definition, module.memory(source)
    if alloc is not None and alloc.name == "ttg.local_alloc" and alloc.operands and memory:
        move = _move_use(alloc, "store", alloc.operands[0], memory, module, arch)
        if move:
            yield move
    uses = sorted(flow.uses(source), key=lambda use: use[0].start)
    is_barrier = any(operation.name == _INIT_BARRIER for operation, _ in uses)
    for operation, index in uses:
        memory = module.memory(operation.operands[index])
        if operation.name not in FORWARDING and memory is not None:
            yield operation if is_barrier else _use(operation, index, memory, module, arch)


def _allocation(value: Value, memory: MemoryType, flow: MemoryFlow, arch: int) -> SharedAllocation:
    uses = list(_uses(value, flow, flow.module, arch))
    others = tuple(use for use in uses if isinstance(use, Operation))
    size, alignment, reason = 0, DEFAULT_ALIGNMENT, ""
    encoding: SharedEncoding | None = None
    layout: LinearLayout | None = None
    try:
        encoding = parsed_encoding(memory.encoding)
        alignment = alignment_of(value.definition, encoding)
        size = allocated_bytes(memory)
        layout = tile_layout(memory)
    except LayoutError as error:
        reason = str(error)
    return SharedAllocation(
        value,
        memory,
        encoding,
        layout,
        size,
        alignment,
        tuple(use for use in uses if isinstance(use, MmaUse)),
        tuple(use for use in uses if isinstance(use, CopyUse)),
        tuple(use for use in uses if isinstance(use, MoveUse)),
        others,
        any(operation.name == _INIT_BARRIER for operation in others),
        reason,
    )


def shared_allocations(module: MlirModule, arch: int) -> list[SharedAllocation]:
    """The shared memory of a module, the largest values first."""
    flow = MemoryFlow(module)
    found = [
        _allocation(value, memory, flow, arch)
        for value in flow.shared_sources
        if (memory := module.memory(value)) is not None
    ]
    return sorted(found, key=lambda each: -each.bytes)


def is_read(allocation: SharedAllocation) -> bool:
    """Whether anything reads what is in the allocation, or may read it."""
    return (
        bool(allocation.mmas)
        or any(move.direction == "load" for move in allocation.moves)
        or any(copy.direction not in ("load", "gather") for copy in allocation.copies)
        or any(operation.name not in _WRITERS for operation in allocation.others)
    )


def tensor_allocations(module: MlirModule) -> list[TensorAllocation]:
    """The tensor memory of a module, in textual order."""
    found = []
    for value in module.values:
        memory = module.memory(value)
        operation = value.definition
        if memory is None or operation is None or operation.name != "ttng.tmem_alloc":
            continue
        encoding, columns = None, None
        if memory.mnemonic == "tensor_memory_encoding":
            try:
                encoding = TensorMemoryEncoding.parse(memory.encoding)
                layout = tensor_memory_layout(memory)
                columns = layout.in_dims["column"] * math.prod(memory.shape[:-2])
            except LayoutError:
                columns = None
        found.append(TensorAllocation(value, memory, encoding, columns))
    return found
