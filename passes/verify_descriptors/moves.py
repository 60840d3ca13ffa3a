"""Which bytes of shared memory a thread stores, by the layouts on both sides.

``ttg.local_store``, ``ttg.local_alloc`` of a tensor and ``ttg.async_copy_global_to_local`` become
``st.shared``, ``stmatrix`` and ``cp.async``. For the first thread of a partition the layout in
registers and that in shared memory say at which addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import (
    RequestPattern,
    register_matrix_pattern,
    register_pattern,
)
from triton_ext.hardware.register_moves import block_bases, within_block
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.padded import PaddedShared
from triton_ext.mlir.module import MlirModule, Operation, Value
from triton_ext.mlir.types import tensor_type
from triton_ext.passes.shared_accesses import (
    Encoding,
    parsed_encoding,
    register_layout,
    tile_shape,
)
from triton_ext.passes.shared_accesses import tile_layout as shared_tile_layout
from triton_ext.passes.verify_descriptors.mlir_trace import RunValue
from triton_ext.ptx.parse import Instruction, Kernel, immediate

MOVES = ("ttg.local_store", "ttg.local_alloc", "ttg.async_copy_global_to_local")
_STORES = ("st.shared", "stmatrix.", "cp.async.ca.", "cp.async.cg.")


@dataclass(frozen=True)
class Touched:
    """What the first thread stores, in bytes from the tile's first element.

    Attributes:
        starts: of its accesses.
        size: of an access.
        rows: the rows that it names if ``stmatrix`` does it; () if that cannot.
    """

    starts: tuple[int, ...]
    size: int
    rows: tuple[int, ...]


def moves(module: MlirModule) -> list[Operation]:
    """The operations of a module that store tensors in shared memory."""
    return [
        operation
        for operation in module.operations
        if operation.name in MOVES and operation.operands
    ]


def target_of(operation: Operation) -> Value:
    """The memory that a move writes."""
    return operation.results[0] if operation.name == "ttg.local_alloc" else operation.operands[1]


def touched(operation: Operation, module: MlirModule) -> Touched | None:
    """What the first thread stores; None where it is not known here.

    Not known are parts of tiles, and what is spread over a cluster otherwise than the tensor.
    """
    memory = module.memory(target_of(operation))
    tensor = tensor_type(operation.operands[0].type or "", module.aliases)
    if memory is None or tensor is None or memory.space != "shared":
        return None
    try:
        encoding = parsed_encoding(memory.encoding)
        shape = tile_shape(memory)
        if memory.shape[-len(shape) :] != shape:
            return None
        return _touched(
            register_layout(tensor, module), shared_tile_layout(memory), encoding,
            memory.element_bitwidth, operation.name != "ttg.async_copy_global_to_local",
        )  # fmt: skip
    except LayoutError:
        return None


@lru_cache(maxsize=1024)
def _touched(
    registers: LinearLayout,
    shared: LinearLayout,
    encoding: Encoding,
    bits: int,
    by_matrix: bool,
) -> Touched | None:
    if block_bases(registers) != block_bases(shared):
        return None
    registers, shared = within_block(registers), within_block(shared)
    paddings = encoding.paddings if isinstance(encoding, PaddedShared) else ()
    pattern = register_pattern(registers, shared, bits, paddings=paddings)
    rows: tuple[int, ...] = ()
    for trans in (False, True) if by_matrix and not paddings else ():
        try:
            rows = _places(register_matrix_pattern(registers, shared, bits, trans))
            break
        except LayoutError:
            continue
    return Touched(_places(pattern), pattern.access_bytes, rows)


def _places(pattern: RequestPattern) -> tuple[int, ...]:
    """Of the first lane of the first warp."""
    return pattern.places(range(pattern.instructions))


# -------------------------------------------------------------------------------- the PTX


def observed(kernel: Kernel) -> Iterator[tuple[Instruction, str]]:
    """The stores to shared memory, each with the operand that is its address."""
    for instruction in kernel.instructions:
        if instruction.opcode.startswith(_STORES) and instruction.operands:
            yield instruction, instruction.operands[0]


@dataclass
class Stored:
    """What a thread stored.

    Attributes:
        units: how often each unit of so many bytes; by address, with ``st.shared``.
        copied: likewise, with ``cp.async``.
        rows: how often it named each row for ``stmatrix``.
        unknown: how many stores have an address that is not known.
        unit: bytes.
    """

    unit: int
    units: Counter[int] = field(default_factory=Counter)
    copied: Counter[int] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    unknown: int = 0


def key(address: int, when: int) -> int:
    """A place between two executions of other instructions."""
    return when << 40 | address


def stored(accesses: Iterable[tuple[Instruction, object, int]], unit: int) -> Stored:
    """Count what a thread stores, by place and time (`key`)."""
    found = Stored(unit)
    for instruction, address, when in accesses:
        if not isinstance(address, int):
            found.unknown += 1
        elif instruction.opcode.startswith("stmatrix"):
            found.rows[key(address, when)] += 1
        else:
            counted = found.copied if instruction.opcode.startswith("cp.") else found.units
            first = key(address, when)
            counted.update(range(first, first + access_size(instruction), unit))
    return found


def access_size(instruction: Instruction) -> int:
    """How many bytes one thread stores."""
    if instruction.opcode.startswith("cp.async"):
        return immediate(instruction.operands[2]) or 0
    return _store_size(instruction.opcode)


@lru_cache(maxsize=256)
def _store_size(opcode: str) -> int:
    parts = opcode.split(".")
    count = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    return count * int(parts[-1][1:]) // 8


@dataclass(frozen=True)
class Move:
    """One execution of an operation that stores a tensor in shared memory.

    Attributes:
        operation: which.
        place: where to.
        when: after how many events of the PTX.
    """

    operation: Operation
    place: RunValue
    when: int


def needed(
    move: Move, start: int, what: Touched, found: Stored, counts: Stored
) -> Iterator[tuple[Counter[int], Counter[int], Counter[int]]]:
    """The ways to do a move: what must be stored, what was counted, what is stored, as `key`s."""
    first = key(start, move.when)
    is_copy = move.operation.name == "ttg.async_copy_global_to_local"
    if what.rows:
        yield Counter(first + row for row in what.rows), counts.rows, found.rows
    needed = Counter(
        at
        for each in what.starts
        for at in range(first + each, first + each + what.size, found.unit)
    )
    if is_copy:
        yield needed, counts.copied, found.copied
    else:
        yield needed, counts.units, found.units


def is_counted(access: tuple[Instruction, object, int], counts: Stored) -> bool:
    """Whether an operation stores at the place of an access."""
    _, address, when = access
    if not isinstance(address, int):
        return False
    place = key(address, when)
    return place in counts.units or place in counts.copied or place in counts.rows


__all__ = [
    "MOVES",
    "Move",
    "Stored",
    "Touched",
    "is_counted",
    "key",
    "moves",
    "needed",
    "observed",
    "stored",
    "target_of",
    "touched",
]
