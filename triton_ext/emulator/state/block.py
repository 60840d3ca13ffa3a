"""A launch, its clusters and their blocks: the state that instructions read and change.

Which threads run next is not decided here, but in `triton_ext.emulator.schedule`; a block knows of
it what `Gpu` says.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import LayoutFault
from triton_ext.emulator.state.agents import BlockAgents, agent_name, agents_of_block
from triton_ext.emulator.state.barriers import ClusterBarrier, MBarrier, NamedBarrier
from triton_ext.emulator.state.buffers import Buffer, source_line
from triton_ext.emulator.state.checks import DEFAULT_CHECKS, Checks
from triton_ext.emulator.state.clocks import Agents, Clock, Clocks, Foreign
from triton_ext.emulator.state.in_flight import PairAllocation, UnderWay
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.leniencies import RELAXED_BARRIER, Leniency, Taken
from triton_ext.emulator.state.memory import (
    RANK_SHIFT,
    SHARED_BASE,
    Addresses,
    GlobalMemory,
    LocalMemory,
)
from triton_ext.emulator.state.place import Index, Place
from triton_ext.emulator.state.shared import SharedMemory
from triton_ext.emulator.state.shared_bytes import Surroundings
from triton_ext.emulator.state.stamps import AGENT, EVENT
from triton_ext.emulator.state.storage import Storage, Symbol, register_file
from triton_ext.emulator.state.tensor_map_memory import MadeTensorMap
from triton_ext.emulator.state.undefined import UndefinedRegisters, UnwrittenLoads
from triton_ext.hardware.architecture import WARP_THREADS, Target
from triton_ext.ptx.parse import Instruction


@dataclass(frozen=True)
class Launch:
    """What a kernel is launched with.

    Attributes:
        storage: the registers and the memory that the kernel declares.
        grid, cluster, block: (x, y, z): blocks, blocks of a cluster, threads of a block.
        dynamic_smem_bytes: asked for at the launch.
        parameters: the bytes of all parameters.
        globals: the addresses of the module's variables.
        memory: the global memory that may be touched.
        checks: what is a fault.
        in_clusters: whether the launch, or the kernel, asks for clusters, be it of one block.
        device: the number of the GPU, of several.
        first_cluster: the number of the first cluster, among those of all GPUs.
        known: what is ordered before the launch; None if there is one GPU.
        history: a `triton_ext.emulator.units.history.History`, or None.
        allocated: gives what the kernel has allocated in shared and tensor memory, if known.
        binary: the cubin that ptxas made of it, if known.
        permutations: gives what `permuted_reads` says of the kernel, if known.
    """

    storage: Storage
    grid: Index
    cluster: Index
    block: Index
    dynamic_smem_bytes: int
    parameters: bytes
    globals: dict[str, int]
    memory: GlobalMemory
    checks: Checks = DEFAULT_CHECKS
    in_clusters: bool = True
    device: int = 0
    first_cluster: int = 0
    known: Foreign | None = None
    history: Any = None
    allocated: Callable[[], Sequence[Buffer]] = tuple
    binary: bytes | None = None
    permutations: Callable[[], Mapping[str, str]] = dict

    @functools.cached_property
    def buffers(self) -> Sequence[Buffer]:
        """The same."""
        return self.allocated()

    def check_layout(self, at: Instruction | None) -> None:
        """Raise LayoutFault if a TMA store or a product takes its tile in another layout than it is
        written in, as far as is known."""
        source = at.source if at is not None and self.checks.layouts else None
        known = self.permutations() if source else {}
        if source and known and (why := known.get(source_line(source.file, source.line))):
            raise LayoutFault(f"{why}. (If this is meant: check_layouts=False)")

    @property
    def buffers_start(self) -> int:
        """Where the shared memory that Triton has given out begins in a block's."""
        symbols = self.storage.symbols.values()
        found = (each.offset for each in symbols if each.name == "global_smem")
        return SHARED_BASE + next(found, 0)

    @property
    def clusters(self) -> int:
        """Number of clusters of the grid."""
        return math.prod(self._clusters)

    @property
    def _clusters(self) -> Index:
        x, y, z = (g // c for g, c in zip(self.grid, self.cluster, strict=True))
        return x, y, z

    def blocks(self, number: int) -> list[Index]:
        """The indices of a cluster's blocks, x fastest; `number`: its own, in order of launch."""
        across, high, _ = self._clusters
        at = (number % across, number // across % high, number // (across * high))
        x, y, z = (
            range(c * size, (c + 1) * size) for c, size in zip(at, self.cluster, strict=True)
        )
        return [(i, j, k) for k in z for j in y for i in x]

    @property
    def threads(self) -> int:
        """Number of threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def shared_bytes(self) -> int:
        """Size of a block's shared memory, static and dynamic."""
        return -(-self.storage.static_smem_bytes // 16) * 16 + self.dynamic_smem_bytes


class AccessObserver:
    """Told of accesses to memory; does nothing."""

    def access(
        self, cta: Cta, lanes: Lanes, space: str, addresses: Addresses, width: int, kind: str
    ) -> None:
        """Each lane accesses `width` bytes of `space`; `kind`: "load", "store" or "atomic"."""

    def moved(self, cta: Cta, unit: str, kind: str, size: int) -> None:
        """An asynchronous unit reads or writes `size` bytes of the block's shared memory."""

    def copies(self, cta: Cta, lanes: Lanes, kind: str, box: Any, address: int, size: int) -> None:
        """A lane issues a bulk copy.

        Args:
            kind: "load" into shared memory, or "store" out of it.
            box: a `triton_ext.emulator.units.tma.BoxCopy`; None for a copy of bytes.
            address: in global memory, if it is a copy of bytes; -1 for one of shared memory.
            size: bytes.
        """

    def sends(self, cta: Cta, lanes: Lanes, size: int) -> None:
        """Each lane issues a ``st.async`` or ``red.async`` of so many bytes."""

    def multiplies(
        self, cta: Cta, thread: int, shape: tuple[int, int, int], group: int, a_in_memory: bool
    ) -> None:
        """A thread issues a tcgen05.mma of a shape (M, N, K), for a block or a pair. `a_in_memory`:
        whether A is in shared memory, not in tensor memory."""

    def brings(self, cta: Cta, rank: int, barrier: Any, phase: int) -> None:
        """The bytes of a copy or a store, or a tcgen05.commit, of a block are counted at a barrier
        of the block of that rank, in a phase.
        """

    def arrives(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, far: bool) -> None:
        """Lanes arrive at a barrier of any kind, in a phase; `far`: of another block."""

    def awaits(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, at: Instruction) -> None:
        """Lanes have waited for a phase of a barrier, at an instruction."""

    def asks(self, cta: Cta, lanes: Lanes, barrier: Any, parity: int) -> None:
        """Lanes ask for a phase of an mbarrier, and are told that it is not complete."""

    def counts(
        self,
        barrier: Any,
        what: str,
        lanes: Lanes | None = None,
        numbers: Any = 1,
        clock: Clock | None = None,
    ) -> None:
        """An mbarrier is about to be changed.

        Args:
            what: "init", "inval", "arrive" (arrivals), "pend" (arrivals that the phase expects,
                besides), "expect" or "complete" (bytes).
            lanes: by whom; None: by the operation that is being performed.
            numbers: of each lane, or together.
            clock: what a unit's arrival releases.
        """


@dataclass
class Options:
    """What is asked of a run, besides its order.

    Attributes:
        chosen: the clusters that run, by their numbers; None for all.
        values: whether the products of the tensor cores are computed.
        together: as many clusters run side by side as there is room for, as on a GPU; else the next
            one starts when the first has to wait.
        lockstep: how many blocks run as one: see `triton_ext.emulator.schedule.batches`.
        failing: the lines of ``mbarrier.try_wait`` that give up at once.
        passing: the lines of waits for an mbarrier that do not wait.
        on_cluster: called when a cluster is done.
    """

    chosen: Sequence[int] | None = None
    values: bool = True
    together: bool = False
    lockstep: int = 1
    failing: frozenset[int] = frozenset()
    passing: frozenset[int] = frozenset()
    on_cluster: Callable[[], None] = lambda: None


class Gpu(ABC):
    """The machine that runs a launch, as its blocks and their instructions see it.

    Attributes:
        launch: what is running.
        target: what the kernel was compiled for.
        observer: told of what happens.
        fenced: whether the program, or what its authors wrote it in, has tcgen05.fence.
        options: what is asked of the run.
        steps: instructions executed so far: the clock that a kernel can read.
        progress: to be increased with every change that another thread could wait for.
        changes: with every one of global memory, or of what is under way, that another GPU could
            wait for.
        counts: how often each instruction of the program was executed.
        tensor_maps: those that the kernel has made, by address.
        taken: what was undefined and run as hardware runs it, by the rule's name.
        global_order: a `triton_ext.emulator.units.global_order.GlobalOrder`, or None.
    """

    def __init__(
        self,
        launch: Launch,
        target: Target,
        observer: AccessObserver,
        fenced: bool,
        options: Options,
    ) -> None:
        self.launch, self.target, self.fenced, self.options = launch, target, fenced, options
        self.observer: Any = observer
        self.progress = self.changes = 0
        self.tensor_maps: dict[int, MadeTensorMap] = {}
        self.global_order: Any = None
        self.reset(0)

    def reset(self, instructions: int) -> None:
        """Know nothing of what has run, of a program with so many instructions."""
        self.steps, self.counts = 0, [0] * instructions
        self.taken: dict[str, Taken] = {}

    @abstractmethod
    def issue(self, operation: AsyncOperation) -> None:
        """Take an operation over; it is performed now or later, as the schedule says."""

    @abstractmethod
    def polled(self, cta: Cta, warp: int, address: int, value: bytes) -> None:
        """A warp has asked an address in global memory that others may write, or change."""

    @abstractmethod
    def take_cluster(self, asking: Cluster) -> int | None:
        """Take the next cluster that has not started off the grid: its number, if there is one; for
        the one that asks."""


@dataclass
class AsyncOperation:
    """Work of an asynchronous unit, issued and not yet done.

    Attributes:
        queue: operations of the same queue are done in order; None is for no order.
        perform: does it.
        instruction: the one that issued it.
        cta: its block.
        lanes: its threads.
    """

    queue: tuple[object, ...] | None
    perform: Callable[[], None]
    instruction: Instruction | None
    cta: Cta
    lanes: Lanes


class Cluster:
    """Blocks that run at the same time and see each other's shared memory.

    Attributes:
        number: in the grid, in the order of launch.
        numbers: that, and those of others that it stands for: see `lockstep`.
        identity: its number among those of all GPUs.
        indices: those of its blocks.
        clocks: what each agent of its blocks has seen.
        barrier: ``barrier.cluster``.
        released: what was released through flags in a block's shared memory, by its rank: see
            `triton_ext.emulator.units.memory_order`.
        unwritten_loads: what its threads have loaded from memory that nothing wrote.
        taken: of how many clusters that had not started it has taken the place.
        pairs: allocations of tensor memory by pairs of blocks, by the rank of the first, halved.
        threads: of each of its blocks.
    """

    def __init__(self, machine: Gpu, number: int, *others: int) -> None:
        self.machine, self.number = machine, number
        self.numbers: NDArray[np.int64] = np.array([number, *others])
        self.identity = machine.launch.first_cluster + number
        self.indices = machine.launch.blocks(number)
        self.threads = machine.launch.threads * len(self.numbers)
        self._warps = -(-self.threads // WARP_THREADS)
        self._agents_each = agents_of_block(self._warps)
        agents, known = len(self.indices) * self._agents_each, machine.launch.known
        self.clocks = Clocks(agents, self.identity, known)
        self.unwritten_loads = UnwrittenLoads(self.threads)
        self.ctas = self._blocks()
        live, exited = zip(*((cta.live, cta.exited) for cta in self.ctas), strict=True)
        self.barrier = ClusterBarrier(live, self.clocks, exited)
        self.released: dict[int, Clock] = {}
        self.taken = 0
        self.pairs: defaultdict[int, PairAllocation] = defaultdict(PairAllocation)

    def _blocks(self) -> list[Cta]:
        launch, first = self.machine.launch, self.number * len(self.indices)
        size, gpu = SHARED_BASE + launch.shared_bytes, self.machine.target.capability
        places = [
            Place(index, launch.block, (first + rank) % gpu.multiprocessors)
            for rank, index in enumerate(self.indices)
        ]
        return [
            Cta(self, rank, place, SharedMemory(size, self.clocks))
            for rank, place in enumerate(places)
        ]

    def agent_name(self, agent: int) -> str:
        """In words."""
        rank, own = divmod(agent, self._agents_each)
        where = f" of block {rank} of the cluster" if len(self.indices) > 1 else ""
        return agent_name(own, self._warps) + where


class Cta:
    """One thread block: its registers, its memory, and what its asynchronous units are doing.

    Attributes:
        machine, cluster, launch: what it runs in.
        place: where it is in the grid; `index`: (x, y, z) there.
        rank: in the cluster.
        threads, warps: their number.
        agents: the numbers of its warps and units in the cluster's clocks.
        live: (threads,): which threads have not exited; `finished`: none is left.
        exited: what those had seen that have exited.
        files: the registers, by type: rows of threads.
        shared, local: its memory.
        undefined: the registers whose values come from memory that nothing wrote.
        barriers: the numbered barriers in use.
        mbarriers: those in its shared memory that are initialised, by their offsets.
        under_way: what its instructions have started, or wait for.
        instruction: the one that is being executed.
    """

    def __init__(self, cluster: Cluster, rank: int, place: Place, shared: SharedMemory) -> None:
        self.cluster, self.rank, self.place = cluster, rank, place
        self.index, self.machine = place.index, cluster.machine
        self.launch = self.machine.launch
        storage, self.threads = self.launch.storage, cluster.threads
        self.warps = -(-self.threads // WARP_THREADS)
        self.live = np.ones(self.threads, np.bool_)
        self.exited = cluster.clocks.empty()
        self.finished = False
        self.agents = BlockAgents(rank, self.warps)
        self.files = register_file(storage.counts, self.threads)
        self.shared = shared
        shared.block = Surroundings(
            cluster.agent_name,
            functools.partial(_excused, self),
            cluster.unwritten_loads.fault,
            functools.partial(self.machine.observer.moved, self),
            self.launch.checks.layouts,
        )
        self.undefined = UndefinedRegisters(self.threads, cluster.unwritten_loads)
        self.local = LocalMemory(self.threads, storage.local_bytes)
        self.barriers: dict[int, NamedBarrier] = {}
        self.mbarriers: dict[int, MBarrier] = {}
        self.under_way = UnderWay(self.threads)
        self.instruction: Instruction | None = None

    def issue(
        self, lanes: Lanes, queue: tuple[object, ...] | None, perform: Callable[[], None]
    ) -> None:
        """Hand work of the instruction that is being executed to an asynchronous unit."""
        self.machine.issue(AsyncOperation(queue, perform, self.instruction, self, lanes))

    def takes(self, rule: Leniency, lanes: Lanes, instruction: Instruction | None = None) -> bool:
        """Whether something undefined is run as hardware runs it: noted, unless strict.

        Args:
            lanes: those that do it.
            instruction: theirs; by default, the one that is being executed.
        """
        if self.launch.checks.strict:
            return False
        if rule.name not in self.machine.taken:
            at = instruction or self.instruction
            self.machine.taken[rule.name] = Taken(rule, at, self.describe(lanes))
        return True

    def describe(self, lanes: Lanes) -> str:
        """``block (0, 0, 0), warps 0 to 3``."""
        return self.place.describe(lanes)

    def address_of(self, symbol: Symbol) -> int:
        """The address of a variable, in its own space."""
        if symbol.space == "shared":
            return (self.rank << RANK_SHIFT) + SHARED_BASE + symbol.offset
        if symbol.space == "global":
            return self.launch.globals[symbol.name]
        return symbol.offset


def _excused(
    cta: Cta, readers: Agents, written: NDArray[np.int64], late: NDArray[np.bool_]
) -> bool:
    """Whether relaxed barriers of the cluster told the readers of all late writes, and all of them
    are the block's own warps."""
    happened, agents = cta.cluster.clocks.happened, cta.agents
    for row, byte in np.argwhere(late).tolist():
        found = int(np.broadcast_to(written, late.shape)[row, byte])
        agent, reader = found & AGENT, int(readers[row])
        known = happened.get(reader)
        own = agent // agents.each == reader // agents.each == cta.rank
        if not own or known is None or found >> EVENT > known[agent]:
            return False
    warp = (int(readers[0]) - agents.first) * WARP_THREADS
    return cta.takes(RELAXED_BARRIER, slice(warp, warp + WARP_THREADS))
