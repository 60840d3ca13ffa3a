"""The machine: clusters of blocks, asynchronous operations, and the order in which all run."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from triton_ext.emulator.decode.program import Program, Step
from triton_ext.emulator.errors import Deadlock, EmulationError, LaunchError
from triton_ext.emulator.schedule.cta import Cta, Fiber, agent_name, agents_of_block
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.clocks import Clocks
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.emulator.state.tensor_map_memory import MadeTensorMap
from triton_ext.emulator.units.barriers import ClusterBarrier
from triton_ext.hardware.architecture import WARP_THREADS

QUANTUM = 4096
"""Instructions that a block runs before another one gets its turn."""
NO_PROGRESS_LIMIT = 20_000_000
"""Instructions without any change of memory or barriers, after which a kernel is called hung."""
TIMEOUT_ROUNDS = 64
"""How often waits may give up in vain, one after the other, until that is called a deadlock."""
MULTIPROCESSORS = {90: 132, 100: 148}
"""Of the H100 SXM and the B200 (their data sheets)."""


@dataclass(frozen=True)
class Launch:
    """What a kernel is launched with.

    Attributes:
        grid, cluster, block: (x, y, z): blocks, blocks of a cluster, threads of a block.
        dynamic_smem_bytes: asked for at the launch.
        parameters: the bytes of all parameters.
        globals: where the module's variables lie.
        memory: what may be touched.
    """

    program: Program
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem_bytes: int
    parameters: bytes
    globals: dict[str, int]
    memory: GlobalMemory

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def shared_bytes(self) -> int:
        """Static and dynamic."""
        return -(-self.program.static_smem_bytes // 16) * 16 + self.dynamic_smem_bytes


@dataclass
class AsyncOperation:
    """Work of an asynchronous unit, issued and not yet done.

    Attributes:
        queue: operations of the same queue are done in order; None is for no order.
        perform: does it.
        step: the instruction that issued it.
        cta: its block.
        lanes: its threads.
    """

    queue: tuple[object, ...] | None
    perform: Callable[[], None]
    step: Step | None
    cta: Cta
    lanes: Lanes


class Schedule:
    """Which fiber runs, and when asynchronous operations are done.

    Args:
        name: "eager": at once; "lazy": when nothing else can run; "random": at any moment.
        seed: of the random one.
    """

    def __init__(self, name: str = "eager", seed: int = 0) -> None:
        if name not in ("eager", "lazy", "random"):
            raise LaunchError(f"schedule {name!r}: must be 'eager', 'lazy' or 'random'")
        self.name, self.random = name, random.Random(seed)

    def choose(self, ready: Sequence[Fiber]) -> Fiber:
        """The fiber that is furthest behind, so that it can meet the others; or any."""
        if self.name == "random" and len(ready) > 1:
            return self.random.choice(ready)
        return min(ready, key=lambda fiber: fiber.pc)

    def due(self) -> bool:
        """Whether an operation that could be done now is done."""
        return self.name == "eager" or (self.name == "random" and self.random.random() < 0.3)

    def quantum(self) -> int:
        return self.random.randrange(1, 64) if self.name == "random" else QUANTUM


class Cluster:
    """Blocks that run at the same time and see each other's shared memory."""

    ctas: list[Cta]
    clocks: Clocks

    def __init__(self, machine: Machine, number: int, indices: list[tuple[int, int, int]]) -> None:
        self.machine, self.number, self.indices = machine, number, indices
        warps = -(-machine.launch.threads // WARP_THREADS)
        self._agents_each = agents_of_block(warps)
        self.clocks = Clocks(len(indices) * self._agents_each)
        self._warps = warps
        self.ctas = [Cta(self, index, rank) for rank, index in enumerate(indices)]
        self.barrier = ClusterBarrier(self)
        self.units: dict[str, object] = {}

    def agent_name(self, agent: int) -> str:
        """In words."""
        rank, own = divmod(agent, self._agents_each)
        where = f" of block {rank} of the cluster" if len(self.indices) > 1 else ""
        return agent_name(own, self._warps) + where

    @property
    def finished(self) -> bool:
        return all(cta.finished for cta in self.ctas)


@dataclass
class Machine:
    """Runs a launch.

    Attributes:
        launch: what to run.
        schedule: in which order.
        steps: instructions executed so far, of all fibers.
        progress: grows with every change that another thread could wait for.
        observer: told of what happens.
        at_exit: called with each block when it is done.
        on_cluster: called when a cluster is done.
    """

    launch: Launch
    schedule: Schedule = field(default_factory=Schedule)
    observer: Observer | None = None
    steps: int = 0
    progress: int = 0
    multiprocessors: int = 132
    waiting: deque[tuple[int, list[tuple[int, int, int]]]] = field(default_factory=deque)
    tensor_maps: dict[int, MadeTensorMap] = field(default_factory=dict)
    pending: deque[AsyncOperation] = field(default_factory=deque)
    at_exit: list[Callable[[Cta], None]] = field(default_factory=list)
    on_cluster: Callable[[], None] = lambda: None
    _timed_out_at: int = field(default=-1, init=False)
    _rounds: int = field(default=0, init=False)

    def run(self, clusters: Sequence[list[tuple[int, int, int]]], first: int = 0) -> None:
        """Run clusters, given as the indices of their blocks.

        One cluster runs at a time as long as it can; the next one starts when it is done, or when
        it waits for what only another one can do.

        Args:
            first: the number of the first one in the grid.

        Raises:
            EmulationError: what the kernel does wrong.
        """
        waiting = self.waiting = deque(enumerate(clusters, first))
        resident: list[Cluster] = []
        limit = max(1, self.multiprocessors // max(1, len(clusters[0]))) if clusters else 1
        idle_since, idle_progress = 0, -1
        with np.errstate(all="ignore"):
            while waiting or resident:
                if not resident:
                    resident.append(Cluster(self, *waiting.popleft()))
                done = self._turn(resident)
                for cluster in [each for each in resident if each.finished]:
                    self._finish(cluster)
                    resident.remove(cluster)
                    done += 1
                if self.progress != idle_progress:
                    idle_progress, idle_since = self.progress, self.steps
                    done += 1  # what the last turn completed may have made others ready
                if done and self.steps - idle_since < 8 * QUANTUM:
                    continue
                if self._complete_one():
                    continue
                if not done and self._time_out(resident):
                    continue
                if waiting and len(resident) < limit:
                    resident.append(Cluster(self, *waiting.popleft()))
                    continue
                if done and self.steps - idle_since < NO_PROGRESS_LIMIT:
                    continue
                raise self._deadlock(resident, spinning=bool(done))

    def _turn(self, resident: list[Cluster]) -> int:
        done = 0
        for cluster in resident:
            for cta in cluster.ctas:
                if not cta.finished:
                    done += cta.run(self.schedule.quantum())
                done += self._complete_due()
        return done

    def _finish(self, cluster: Cluster) -> None:
        while any(operation.cta.cluster is cluster for operation in self.pending):
            self._complete_one()
        for cta in cluster.ctas:
            for check in self.at_exit:
                check(cta)
        self.on_cluster()

    # -------------------------------------------------------- asynchronous work

    def issue(self, operation: AsyncOperation) -> None:
        """Hand an operation to its unit."""
        self.pending.append(operation)
        if self.schedule.name == "eager":
            self._complete_due()

    def _complete_due(self) -> int:
        done = 0
        while self.pending and self.schedule.due():
            self._complete_one()
            done += 1
        return done

    def _complete_one(self) -> bool:
        """Do one operation that its queue allows; whether there was one."""
        if not self.pending:
            return False
        chosen = 0
        if self.schedule.name == "random":
            first: dict[object, int] = {}
            for number, operation in enumerate(self.pending):
                first.setdefault(operation.queue or number, number)
            chosen = self.schedule.random.choice(list(first.values()))
        self._perform(chosen)
        return True

    def complete(self, cta: Cta, lanes: Lanes) -> None:
        """Do what a block's lanes have issued, now."""
        threads = set(lane_sets.indices(lanes).tolist())
        number = 0
        while number < len(self.pending):
            operation = self.pending[number]
            if operation.cta is cta and threads & set(lane_sets.indices(operation.lanes).tolist()):
                self._perform(number)
            else:
                number += 1

    def _perform(self, number: int) -> None:
        operation = self.pending[number]
        del self.pending[number]
        try:
            operation.perform()
        except EmulationError as error:
            if error.instruction is None and operation.step is not None:
                error.instruction = operation.step.instruction
            error.where = error.where or operation.cta.describe(operation.lanes)
            raise
        self.progress += 1
        if self.observer is not None:
            self.observer.completed(operation)

    # ------------------------------------------------------------------- waits

    def _time_out(self, resident: list[Cluster]) -> bool:
        """End the waits that may give up; False if none may, or that was tried to no avail."""
        if self._timed_out_at != self.progress:
            self._timed_out_at, self._rounds = self.progress, 0
        self._rounds += 1
        if self._rounds > TIMEOUT_ROUNDS:
            return False
        ended = False
        for cta in (cta for cluster in resident for cta in cluster.ctas):
            for fiber in cta.fibers:
                if fiber.wait is not None and fiber.wait.timeout is not None:
                    fiber.wait.timeout()
                    fiber.wait = None
                    fiber.pc += 1
                    ended = True
        return ended

    @staticmethod
    def _deadlock(resident: list[Cluster], spinning: bool) -> EmulationError:
        lines = []
        first = None
        for cta in (cta for cluster in resident for cta in cluster.ctas):
            cta.check_parked()
            for fiber in cta.fibers:
                step = cta.steps[min(fiber.pc, len(cta.steps) - 1)]
                first = first or step.instruction
                why = fiber.wait.why() if fiber.wait else "runs without end"
                if fiber.wait is None:
                    asked = {cta.polled.get(int(warp)) for warp in lane_sets.warps(fiber.lanes)}
                    why += "".join(f"; it {each}" for each in sorted(asked - {None}, key=str))
                at = f"at PTX line {step.instruction.line}"
                if step.instruction.source:
                    at += f" [{step.instruction.source}]"
                lines.append(f"{cta.describe(fiber.lanes)} {at}: {why}")
        what = "no memory or barrier changes any more" if spinning else "no thread can go on"
        return Deadlock(f"{what}:\n  " + "\n  ".join(lines), first)


def clusters_of(
    grid: tuple[int, int, int], cluster: tuple[int, int, int]
) -> list[list[tuple[int, int, int]]]:
    """The blocks of each cluster of a grid, in the order of launch (x fastest).

    Raises:
        LaunchError: the grid is not a multiple of the cluster.
    """
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"grid {grid} is not a multiple of the cluster {cluster}")
    counts = [g // c for g, c in zip(grid, cluster, strict=True)]
    return [
        [
            (cx * cluster[0] + x, cy * cluster[1] + y, cz * cluster[2] + z)
            for z in range(cluster[2])
            for y in range(cluster[1])
            for x in range(cluster[0])
        ]
        for cz in range(counts[2])
        for cy in range(counts[1])
        for cx in range(counts[0])
    ]
