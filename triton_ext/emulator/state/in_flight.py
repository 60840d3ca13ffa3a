"""What the asynchronous instructions of a block have under way, by the kind of instruction.

wgmma products and their groups, bulk copies and cp.async with theirs, tcgen05.ld, and what the
tcgen05 instructions of a block and of a pair share. `Cta` holds them; the modules of
`triton_ext.emulator.units` and `triton_ext.emulator.instructions` work on them.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import SynchronizationFault
from triton_ext.emulator.state.barriers import MBarrier
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.emulator.state.tensor_memory import TensorMemory
from triton_ext.ptx.parse import Instruction

# ------------------------------------------------------------------------ wgmma


@dataclass
class Product:
    """One wgmma.mma_async of a warpgroup.

    Attributes:
        accumulators, inputs: the registers of D, and of A; equal sets are the same object
            (`triton_ext.emulator.units.warpgroup_products.shared`).
        opcode: products of one shape and type may share an accumulator without a wait.
        event: the event of the warpgroup's tensor cores at which it was done; 0 before.
    """

    accumulators: frozenset[Register]
    inputs: frozenset[Register]
    opcode: str
    event: int = 0

    def is_like(self, other: Product) -> bool:
        """Whether the two use the same registers in the same way (by identity, so it is fast)."""
        return (
            self.accumulators is other.accumulators
            and self.inputs is other.inputs
            and self.opcode == other.opcode
        )

    def check_before(self, later: Product) -> None:
        """Raise SynchronizationFault unless `later` may start while this one is running."""
        same = self.opcode == later.opcode and self.accumulators is later.accumulators
        if (
            (same or self.accumulators.isdisjoint(later.accumulators))
            and self.accumulators.isdisjoint(later.inputs)
            and self.inputs.isdisjoint(later.accumulators)
        ):
            return
        raise SynchronizationFault(
            "uses registers of an earlier wgmma.mma_async that may still be running; only"
            " products of the same shape and types may follow each other in one accumulator"
            " without wgmma.wait_group"
        )


@dataclass
class WarpProducts:
    """The products of a warp that no wait_group has covered."""

    uncommitted: list[Product] = field(default_factory=list)
    groups: deque[list[Product]] = field(default_factory=deque)

    @property
    def latest(self) -> Product | None:
        """The one that was issued last, if no wait has covered it."""
        for group in (self.uncommitted, *reversed(self.groups)):
            if group:
                return group[-1]
        return None

    def outstanding(self) -> list[Product]:
        """All of them, in the order of issue."""
        return [product for group in (*self.groups, self.uncommitted) for product in group]


# ------------------------------------------------------------------------ copies


@dataclass
class BulkCopy:
    """A copy out of shared memory that belongs to a bulk group.

    Attributes:
        instruction: the one that issued it.
        clock: what a thread has seen that waits until its source was read.
        written: what a thread has seen that waits for the whole copy.
        read: whether its source has been read.
        done: whether its writes are made.
        awaited: whether its thread has waited until its source was read, at least.
    """

    instruction: Instruction | None
    clock: Clock
    written: Clock
    read: bool = False
    done: bool = False
    awaited: bool = False


@dataclass
class BulkGroups:
    """A thread's bulk copies: those of no group yet, and those of each group."""

    open: list[BulkCopy] = field(default_factory=list)
    committed: list[list[BulkCopy]] = field(default_factory=list)


RING = 64
"""Number of cp.async groups of a thread that are remembered; wait_group may leave fewer pending."""


class ThreadCopies:
    """The ``cp.async`` operations of a block.

    Attributes:
        issued, done: how many there were, and how many of them are done.
        events: the event of each one that is done.
        last: (threads,): the number of each thread's last operation, counted from 1.
        groups: (threads,): how many groups each thread has committed.
        ends: (threads, RING): the last operation of each of these groups.
    """

    def __init__(self, threads: int) -> None:
        self.last: NDArray[np.int64] = np.zeros(threads, np.int64)
        self.groups: NDArray[np.int64] = np.zeros(threads, np.int64)
        self.ends: NDArray[np.int64] = np.zeros((threads, RING), np.int64)
        self.issued = self.done = 0
        self.events = [0]


# ----------------------------------------------------------------------- tcgen05


@dataclass(eq=False)
class Arrival:
    """A load that completes when its warp stores or branches on its values, or waits for it.

    Attributes:
        registers: those that it writes, and those that hold what was computed of them.
        complete: called once.
    """

    registers: set[Register]
    complete: Callable[[], None]


@dataclass
class TensorCore:
    """What the tcgen05 instructions of a block share.

    Attributes:
        memory: the block's tensor memory.
        group: their ``cta_group``; 0 before the first.
        done: for each thread, the last event of the operations that it issued.
        issued: the last event of each operation, and the warp that issued it, as an agent; kept if
            the program has tcgen05.fence.
        collectors: what each collector buffer holds: which operand of which instruction.
    """

    memory: TensorMemory
    group: int = 0
    done: dict[int, int] = field(default_factory=dict)
    issued: list[tuple[int, int]] = field(default_factory=list)
    collectors: dict[str, object] = field(default_factory=dict)


@dataclass
class PairAllocation:
    """What the two blocks of a pair have asked of their tensor memories together, by rank.

    Attributes:
        wanted: columns that a tcgen05.alloc waits for, and whether it is exclusive.
        granted: the column that it got.
        leaving: (address, columns, what its warp has seen) of a tcgen05.dealloc that waits.
        freed: how many tcgen05.dealloc the pair has done.
        allocated: the warp that allocated last, as an agent, and its event.
    """

    wanted: dict[int, tuple[int, bool]] = field(default_factory=dict)
    granted: dict[int, int] = field(default_factory=dict)
    leaving: dict[int, tuple[int, int, NDArray[np.int64]]] = field(default_factory=dict)
    freed: int = 0
    allocated: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class AsyncArrival:
    """An arrival of asynchronous work at an mbarrier of its own block.

    Attributes:
        lanes: those that issued it.
        instruction: it.
        phases: the block's mbarriers, each with the phase for which it, or a later one of its unit,
            has counted: who has waited for one of these phases knows that it has arrived.
    """

    lanes: Lanes
    instruction: Instruction
    phases: list[tuple[MBarrier, int]]


class UnderWay:
    """What the instructions of a block have started, or wait for.

    Attributes:
        registers: those that asynchronous instructions still read or write, by warp.
        arriving: loads whose registers may be named at any time, by warp; that completes them.
        unawaited: the instructions that have used what such a load was still to bring.
        products: each warp's products (wgmma).
        unfenced: the registers that each warp has written since its last wgmma.fence, and the PTX
            line that wrote them: see `triton_ext.emulator.decode.register_fences`.
        bulk_groups: the copies out of shared memory of each thread that has issued one.
        copied_in: the last event of each TMA agent that has copied into the cluster's memory.
        arrivals: the last ``cp.async.mbarrier.arrive``, and the last tcgen05.commit that is not
            multicast, by opcode.
        tensor_core: what tcgen05 instructions share; None before the first.
        polled: what each warp has asked for, and not got: in words, or a global address and what it
            held.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.registers: dict[int, set[Register]] = {}
        self.arriving: dict[int, list[Arrival]] = {}
        self.unawaited: set[Instruction] = set()
        self.products: defaultdict[int, WarpProducts] = defaultdict(WarpProducts)
        self.unfenced: dict[int, dict[Register | str, str]] = {}
        self.bulk_groups: defaultdict[int, BulkGroups] = defaultdict(BulkGroups)
        self.copied_in: dict[int, int] = {}
        self.arrivals: dict[str, AsyncArrival] = {}
        self.tensor_core: TensorCore | None = None
        self.polled: dict[int, str | tuple[int, bytes]] = {}

    @functools.cached_property
    def thread_copies(self) -> ThreadCopies:
        """``cp.async``."""
        return ThreadCopies(self._threads)
