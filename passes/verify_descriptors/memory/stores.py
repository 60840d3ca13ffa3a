"""The bytes of shared memory that a thread stores, by the layouts on both sides.

``ttg.local_store``, ``ttg.local_alloc`` of a tensor and ``ttg.async_copy_global_to_local`` become
``st.shared``, ``stmatrix`` and ``cp.async``. For the first thread of a partition the layout in
registers and that in shared memory say at which addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from triton_ext.errors import LayoutError
from triton_ext.hardware.register_access import (
    RegisterAccess,
    register_access,
    register_matrix_access,
)
from triton_ext.layouts.cluster import block_bases, within_block
from triton_ext.layouts.encodings import SharedEncoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import tensor_type
from triton_ext.passes.value_layouts import parsed_encoding, register_layout, tile_shape
from triton_ext.passes.value_layouts import tile_layout as shared_tile_layout
from triton_ext.passes.verify_descriptors.meaning.expectations import ASSEMBLY
from triton_ext.passes.verify_descriptors.running.executions import Block
from triton_ext.passes.verify_descriptors.running.findings import LOW_WORD, Findings
from triton_ext.passes.verify_descriptors.running.mlir_trace import RunValue
from triton_ext.passes.verify_descriptors.running.thread_trace import ThreadTrace
from triton_ext.ptx.parse import Instruction, Kernel, immediate

_MOVES = ("ttg.local_store", "ttg.local_alloc", "ttg.async_copy_global_to_local")
_STORES = ("st.shared", "stmatrix.", "cp.async.ca.", "cp.async.cg.")


DATA_OF_STORES = "which elements the registers of a store hold"
"""What is not compared of stores into tiles; the bytes that a thread fills are, and that in all
threads an instruction fills those of the same elements."""


class Method(Enum):
    """The instruction that stores: what it counts."""

    STORE = "st.shared: units of some bytes"
    COPY = "cp.async: likewise"
    MATRIX = "stmatrix: the rows that the thread names"


# ---------------------------------------------------------------------------------- the TTGIR


@dataclass(frozen=True)
class StorePattern:
    """What the first thread stores, in bytes from the tile's first element.

    Attributes:
        starts: the first byte of each access.
        rows: the rows that it names if ``stmatrix`` does it; () if that cannot.
    """

    starts: tuple[int, ...]
    size: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Move:
    """One execution of an operation that moves a tensor to shared memory, to or from tensor memory.

    Attributes:
        when: how many events of the PTX come before.
    """

    operation: Operation
    target: RunValue
    when: int


def moves(module: MlirModule) -> list[Operation]:
    """The operations of a module that store tensors in shared memory."""
    return [each for each in module.operations if each.name in _MOVES and each.operands]


def _target_of(operation: Operation) -> Value:
    """The memory that a move writes."""
    return operation.results[0] if operation.name == "ttg.local_alloc" else operation.operands[1]


def _pattern(operation: Operation, module: MlirModule, warp: int, lane: int) -> StorePattern | None:
    """What a thread stores; None where it is not known here.

    Not known are parts of tiles, and what is spread over a cluster otherwise than the tensor.
    """
    memory = module.memory(_target_of(operation))
    tensor = tensor_type(operation.operands[0].type or "", module.aliases)
    if memory is None or tensor is None or memory.space != "shared":
        return None
    try:
        encoding = parsed_encoding(memory.encoding)
        shape = tile_shape(memory)
        if memory.shape[-len(shape) :] != shape:
            return None
        return _pattern_of_layouts(
            register_layout(tensor, module), shared_tile_layout(memory), encoding,
            memory.element_bitwidth, operation.name != "ttg.async_copy_global_to_local",
            warp, lane,
        )  # fmt: skip
    except LayoutError:
        return None


@lru_cache(maxsize=1024)
def _pattern_of_layouts(
    registers: LinearLayout, shared: LinearLayout, encoding: SharedEncoding, bits: int,
    by_matrix: bool, warp: int, lane: int,
) -> StorePattern | None:  # fmt: skip
    if block_bases(registers) != block_bases(shared):
        return None
    registers, shared = within_block(registers), within_block(shared)
    pattern = register_access(registers, shared, bits, paddings=encoding.paddings)
    rows: tuple[int, ...] = ()
    for trans in (False, True) if by_matrix and not encoding.paddings else ():
        try:
            matrices = register_matrix_access(registers, shared, bits, trans)
            rows = _of_thread(matrices, warp, lane)
            if not rows:
                return None  # a thread that names no row, or none of its own
            break
        except LayoutError:
            continue
    starts = _of_thread(pattern, warp, lane)
    return StorePattern(starts, pattern.access_bytes, rows) if starts else None


def _of_thread(pattern: RegisterAccess, warp: int, lane: int) -> tuple[int, ...]:
    """The offsets of a thread; () for one that may leave it to another."""
    first, count = warp * pattern.instructions, pattern.instructions
    each_once = all(
        len(set(offsets)) == len(offsets) for offsets in (pattern.starts, pattern.lanes)
    )
    is_idle = first >= len(pattern.starts) or lane >= len(pattern.lanes)
    if (warp or lane) and (is_idle or not each_once):
        return ()
    return pattern.addresses(range(first, first + count), lane)


# ------------------------------------------------------------------------------------ the PTX


_LOADS = ("ld.shared", "ldmatrix.", "tcgen05.ld", "tcgen05.st")


def observed(kernel: Kernel) -> Iterator[tuple[Instruction, str]]:
    """What reads or writes shared or tensor memory, each with the operand that is its address."""
    for instruction in kernel.instructions:
        if instruction.opcode.startswith((*_STORES, *_LOADS)):
            found = next((text for text in instruction.operands if text[:1] == "["), None)
            if found is not None:
                yield instruction, found


def unclaimed(instruction: Instruction) -> str:
    """What an access is that is not compared with an operation, in words."""
    if instruction.opcode.startswith("tcgen05."):
        return "transfers of tensor memory"
    is_load = instruction.opcode.startswith(_LOADS)
    return "loads from shared memory" if is_load else "stores into scratch memory"


Counts = dict[Method, Counter[int]]
"""How often each `_key` is stored."""
Unit = tuple[int, Instruction, int]
"""The `_key` of some bytes, the instruction that stores them, and how far into what it stores."""


def _key(address: int, when: int) -> int:
    """An address, at a time between two executions of other instructions."""
    return when << 40 | address


def _stored(
    accesses: Iterable[tuple[Instruction, object, int]], unit: int
) -> dict[Method, list[Unit]] | None:
    """What a thread stores, in units of so many bytes; None if an address is not known."""
    found: dict[Method, list[Unit]] = {method: [] for method in Method}
    for instruction, address, when in accesses:
        if not isinstance(address, int):
            return None
        first, method = _key(address, when), _method(instruction)
        size = 1 if method is Method.MATRIX else _access_bytes(instruction)
        found[method] += [(first + at, instruction, at) for at in range(0, size, unit)]
    return found


def _method(instruction: Instruction) -> Method:
    if instruction.opcode.startswith("stmatrix"):
        return Method.MATRIX
    return Method.COPY if instruction.opcode.startswith("cp.") else Method.STORE


def _access_bytes(instruction: Instruction) -> int:
    """How many bytes one thread stores."""
    if instruction.opcode.startswith("cp.async"):
        return immediate(instruction.operands[2]) or 0
    return _store_bytes(instruction.opcode)


@lru_cache(maxsize=256)
def _store_bytes(opcode: str) -> int:
    parts = opcode.split(".")
    count = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    return count * int(parts[-1][1:]) // 8


# ------------------------------------------------------------------------------------- both


class Stores:
    """What a thread stores, against what the operations of its partition store.

    Args:
        executed: the moves of the partition, in order.
        is_whole: whether these are all moves, and the trace is whole.
        last: an instruction of the kernel, to name where the thread stores nothing.
    """

    def __init__(
        self,
        block: Block,
        findings: Findings,
        executed: Sequence[Move],
        trace: ThreadTrace,
        is_whole: bool,
        last: Instruction,
    ) -> None:
        self.block, self.findings, self.executed = block, findings, executed
        self.is_whole = is_whole
        self.accesses = [each for each in trace.accesses if each[0].opcode.startswith(_STORES)]
        self.last = last
        kinds = (block.module.memory(_target_of(move.operation)) for move in executed)
        self.unit = min((max(1, kind.element_bitwidth // 8) for kind in kinds if kind), default=1)
        self.in_order: dict[Method, list[Unit]] = {}
        self.stored: Counts = {}
        self.claimed: Counts = {method: Counter() for method in Method}

    def compare(self) -> None:
        """Claim for each move what it must store; what is not stored differs."""
        unproven, block, known = self.findings.unproven, self.block, []
        for move in self.executed:
            pattern = _pattern(move.operation, block.module, block.warp, block.lane)
            if pattern is not None and isinstance(move.target, tuple):
                known.append((move, move.target, pattern))
        if len(known) < len(self.executed):
            layouts = len(self.executed) - len(known)
            unproven["stores: layouts that are not predicted"] += layouts
        in_order = _stored(self.accesses, self.unit)
        if in_order is None:
            unproven["stores: an address that is not known"] += len(known)
            return
        self.in_order = in_order
        self.stored = {
            method: Counter(key for key, *_ in stored) for method, stored in in_order.items()
        }
        without_start: dict[Value, list[tuple[Move, int, StorePattern]]] = {}
        compared = len(known)
        for move, (root, offset), pattern in known:
            start = self.findings.start_of(root)
            if start is None:
                without_start.setdefault(root, []).append((move, offset, pattern))
            elif not self.is_stored(move, start + offset, pattern):
                return
        for root, ones in without_start.items():
            possible = [self.possible_starts(*one) for one in ones]
            starts = possible[0].intersection(*possible)
            if len(starts) > 1:
                unproven["stores: to one of several places"] += len(ones)
                compared -= len(ones)
                continue
            (start,) = starts or {0}
            if not all(self.is_stored(move, start + at, pattern) for move, at, pattern in ones):
                return
            self.findings.starts[root] = start, self.unclaimed()
        lines = {access[0].line for access in self.accesses}
        odd = {access[0].line for access in self.accesses if not self.is_claimed(*access)}
        self.findings.compared.update(lines - odd)
        if compared == len(self.executed) and self.is_whole:
            self.no_further_copies()

    def no_further_copies(self) -> None:
        """Scratch memory is not filled by ``cp.async``: each is an operation's, if none stands in a
        kernel's own text.
        """
        for operation in self.block.module.operations:
            if operation.name in ASSEMBLY and "cp.async.c" in operation.text:  # .ca or .cg
                self.findings.unproven["stores: cp.async in inline assembly"] += 1
                return
        for instruction, address, when in self.accesses:
            is_copy = _method(instruction) is Method.COPY and _access_bytes(instruction)
            if is_copy and not self.is_claimed(instruction, address, when):
                self.findings.differ(
                    None, instruction, "how often it fills these bytes", "as often as an operation",
                    "more often",
                )  # fmt: skip
                return

    def ways(
        self, move: Move, start: int, pattern: StorePattern
    ) -> Iterator[tuple[Method, list[int]]]:
        """The ways to do a move to an address: what must be stored, in the order of the
        tensor's registers."""
        first = _key(start, move.when)
        is_copy = move.operation.name == "ttg.async_copy_global_to_local"
        if pattern.rows:
            yield Method.MATRIX, [first + row for row in pattern.rows]
        yield (
            Method.COPY if is_copy else Method.STORE,
            [
                at
                for begin in pattern.starts
                for at in range(first + begin, first + begin + pattern.size, self.unit)
            ],
        )

    def is_stored(self, move: Move, start: int, pattern: StorePattern) -> bool:
        """Whether the thread stores all that it must of a tile that begins at an address."""
        lacking = 0
        for method, keys in self.ways(move, start, pattern):
            there, claimed, required = self.stored[method], self.claimed[method], Counter(keys)
            lacking = next((k for k, n in required.items() if there[k] < claimed[k] + n), -1)
            if lacking < 0:
                claimed.update(required)
                self.findings.proven["stores: the bytes that a thread fills"] += 1
                return self.is_alike(move, method, keys)
        self.findings.differ(
            move.operation, self.unclaimed(),
            "what the first thread stores, in one execution for one choice of arguments,",
            f"its elements of the tile, with {lacking & LOW_WORD:#x} among their addresses",
            "something else",
        )  # fmt: skip
        return False

    def is_alike(self, move: Move, method: Method, keys: Sequence[int]) -> bool:
        """Whether each instruction stores those of the thread's elements that it stores in the
        thread that was looked at first: a swizzle that is wrong exchanges them for some lanes.

        Bytes that are stored twice are not looked at.
        """
        unit = 1 if method is Method.MATRIX else self.unit
        offsets = {key: i * unit for i, key in enumerate(keys) if self.stored[method][key] == 1}
        for key, instruction, at in self.in_order[method]:
            if key not in offsets:
                continue
            name = id(instruction), f"byte {at} of {id(move.operation)}"
            offset = self.findings.constants.setdefault(name, offsets[key])
            if offset != offsets[key]:
                self.findings.differ(
                    move.operation, instruction,
                    "where it stores what, by the layout, is the element that it stores in the"
                    " first thread,",
                    f"{keys[(offset or 0) // unit] & LOW_WORD:#x}", f"{key & LOW_WORD:#x}",
                )  # fmt: skip
                return False
        self.findings.proven["stores: the same registers in all threads"] += len(offsets)
        return True

    def possible_starts(self, move: Move, offset: int, pattern: StorePattern) -> set[int]:
        """Where an allocation may begin of which nothing else is known: all that it needs fits."""
        starts = set()
        for method, keys in self.ways(move, 0, pattern):
            there, claimed, required = self.stored[method], self.claimed[method], Counter(keys)
            first = min(required)
            for at in (k for k in there if k >> 40 == move.when):
                by = at - first
                if by >= offset and all(
                    there[k + by] >= claimed[k + by] + n for k, n in required.items()
                ):
                    starts.add(by - offset)
        return starts

    def is_claimed(self, instruction: Instruction, address: object, when: int) -> bool:
        """Whether an operation stores this: all that is stored there, if there is more than one."""
        if not isinstance(address, int):
            return False
        method, key = _method(instruction), _key(address, when)
        return 0 < self.stored[method][key] <= self.claimed[method][key]

    def unclaimed(self) -> Instruction:
        """The first store that is no operation's; else the last one."""
        odd = (access[0] for access in self.accesses if not self.is_claimed(*access))
        return next(odd, self.accesses[-1][0] if self.accesses else self.last)
