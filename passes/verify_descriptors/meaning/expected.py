"""What an operation of the TTGIR must become in the PTX, as values to compare with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from triton_ext.hardware.architecture import Architecture
from triton_ext.hardware.instruction_descriptor import InstructionDescriptor
from triton_ext.hardware.operand import MmaOperand
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import MemoryType


class NotDerived(Exception):
    """An operation that cannot be predicted; says why."""


@dataclass(frozen=True)
class ExpectedMatrix:
    """A matrix descriptor of one instruction.

    Attributes:
        name: "A", "B" or "source".
        operand: the tile and its descriptor; only the fields that the instruction reads count.
        advance: bytes from the start address of the tile's first element to this one.
        further: how much further each warpgroup's part is than the first one's, in bytes.
    """

    name: str
    operand: MmaOperand
    advance: int
    value: Value
    further: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class ExpectedMma:
    """One wgmma, tcgen05.mma or tcgen05.cp.

    Attributes:
        opcode: what its opcode must be; the tcgen05 forms may have a collector qualifier behind.
        matrices: its shared-memory operands, by their names in the instruction's form.
        immediates: wgmma: the constants behind scale-d.
        descriptor: tcgen05.mma: the instruction descriptor.
        tensor: addresses in tensor memory, by their names in the instruction's form: the value, and
            the offset from its start (lane << 16 | column).
        accumulator: which of the operation's accumulators it adds to.
        accumulates: whether it adds to what is there: None if the operation decides at run time.
    """

    opcode: str
    matrices: dict[str, ExpectedMatrix]
    immediates: tuple[str, ...] = ()
    descriptor: InstructionDescriptor | None = None
    tensor: dict[str, tuple[Value, int]] = field(default_factory=dict)
    accumulator: int = 0
    accumulates: bool | None = None


@dataclass(frozen=True)
class ExpectedBox:
    """One TMA box.

    Attributes:
        smem_offset: bytes from the tile's first element.
        coordinates: what is added to the operation's, innermost first.
        bytes: how many arrive at the barrier.
    """

    smem_offset: int
    coordinates: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Expected:
    """What one operation is lowered to.

    Attributes:
        kind: the kind of instruction: "wgmma", "tcgen05.mma", "tcgen05.cp", "tma" or "expect".
        instructions: MMAs and tensor-memory copies, in order.
        orders: other orders of the instructions that mean the same: the compiler may let an operand
            stay in the collector buffer.
        opcode: a regular expression for TMA copies and ``expect_tx``.
        boxes: those of a TMA copy, in order; each warp of the partition issues its part.
        shares: of a gather or scatter, the numbers of the boxes that each warp issues, in order.
        tile: the TTGIR value of the shared memory that a TMA copy reads or writes.
        warps: how many the partition has that the operation stands in.
        number: of arrivals that an mbarrier is told, or of groups of stores that may be pending.
        phase: of a wait, the parity that it names.
        adds: of a product, whether its first instructions add to D; None if that is constant.
        after: what follows the instructions: the kind, the mbarrier, and under which condition.
        coordinates: the operation's coordinates, outermost first.
        rows: how many each instruction of a gather or scatter moves; 0 for other operations.
        is_padded: coordinates along the innermost dimension count padded fp4 (two a byte).
        argument: which argument of the kernel the TMA descriptor is; None if it is another value.
        is_dead: its predicate is false: the compiler may leave it out.
    """

    operation: Operation
    kind: str
    instructions: tuple[ExpectedMma, ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()
    opcode: str = ""
    boxes: tuple[ExpectedBox, ...] = ()
    shares: tuple[tuple[int, ...], ...] = ()
    tile: Value | None = None
    barrier: Value | None = None
    warps: int = 0
    bytes: int = 0
    number: int | None = None
    phase: Value | None = None
    adds: Value | None = None
    after: tuple[tuple[str, Value | None, Value | None], ...] = ()
    coordinates: tuple[Value, ...] = ()
    rows: int = 0
    is_padded: bool = False
    argument: int | None = None
    is_dead: bool = False

    @property
    def kinds(self) -> set[str]:
        """The kinds of instruction that the operation becomes."""
        return {self.kind, *(kind for kind, *_ in self.after)}

    def boxes_of(self, warp: int) -> tuple[ExpectedBox, ...]:
        """The boxes that a warp of the partition issues, in order."""
        if self.shares:
            return tuple(self.boxes[i] for i in self.shares[warp % len(self.shares)])
        return self.boxes[warp :: max(1, self.warps)]


@dataclass(frozen=True)
class Lowering:
    """A module that is lowered for an architecture."""

    module: MlirModule
    arch: Architecture

    def memory(self, value: Value) -> MemoryType:
        """The type of a value that must be memory. Raises NotDerived: it is not."""
        kind = self.module.memory(value)
        if kind is None:
            raise NotDerived(f"the type of {value.name} is not that of memory")
        return kind

    def cta_group(self, operation: Operation) -> int:
        """2 if an MMA is issued for a pair of CTAs, else 1."""
        return 2 if self._two_ctas or "two_ctas" in operation.attributes else 1

    @cached_property
    def _two_ctas(self) -> bool:
        return self.module.attributes.get("ttng.two-ctas") is True


_PREDICATED = (
    "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled", "ttng.async_tma_copy_global_to_local",
    "ttng.async_tma_gather", "ttng.barrier_expect", "ttng.arrive_barrier", "ttng.tc_gen5_commit",
    "ttng.wait_barrier",
)  # fmt: skip


def without_tokens(operation: Operation) -> list[Value]:
    """The operands of an operation that are not asynchronous tokens."""
    return [value for value in operation.operands if value.type != "!ttg.async.token"]


def predicate_of(operation: Operation) -> Value | None:
    """The condition under which an operation does something."""
    if operation.name not in _PREDICATED:
        return None
    if operation.name in ("ttng.arrive_barrier", "ttng.tc_gen5_commit", "ttng.wait_barrier"):
        index = 2 if operation.name == "ttng.wait_barrier" else 1
        conditions = [each for each in operation.operands[index : index + 1] if each.type == "i1"]
        return conditions[0] if conditions else None
    if not operation.name.startswith("ttng.tc_gen5_mma"):
        return operation.operands[-1]
    # Whether D is read, the predicate, then barriers with their predicates.
    operands = without_tokens(operation)[5 if operation.name.endswith("scaled") else 3 :]
    return operands[1] if len(operands) > 1 else None
