"""A block and its threads: registers, memory, and the groups that run together.

Threads that stand at the same instruction run it together, as one numpy operation over their
lanes: a *fiber*. A branch that they do not all take splits a fiber; fibers that meet at the same
instruction merge. The one that is furthest behind goes first, so that they meet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.operands import Register, Symbol
from triton_ext.emulator.decode.program import Jump, Park, Split, Step, Wait
from triton_ext.emulator.errors import ConvergenceFault, EmulationError, SynchronizationFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.clocks import Agents
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT, SHARED_BASE, LocalMemory, SharedMemory
from triton_ext.emulator.state.types import register_file
from triton_ext.emulator.units.barriers import NamedBarrier
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS

if TYPE_CHECKING:
    from triton_ext.emulator.schedule.machine import Cluster, Launch, Machine

TMA_CHANNELS = 8
UNITS = ("tensor core", *("tma" for _ in range(TMA_CHANNELS)))
"""The asynchronous units of a block: agents of their own. The TMA unit has several, so that who
waits for one barrier has not seen what another one tracks. Each warp's own asynchronous copies
(``cp.async``, ``st.async``) have an agent, too, and each warpgroup's products (``wgmma``)."""


def agents_of_block(warps: int) -> int:
    """How many agents a block has: warps, copies of each, units, products of each warpgroup."""
    return 2 * warps + len(UNITS) - (-warps // WARPGROUP_WARPS)


def agent_name(own: int, warps: int) -> str:
    """In words, from the agent's number in its block."""
    if own < warps:
        return f"warp {own}"
    if own < 2 * warps:
        return f"the asynchronous copies of warp {own - warps}"
    own -= 2 * warps
    if own < len(UNITS):
        return f"the {UNITS[own]} unit"
    return f"a product of warpgroup {own - len(UNITS)}"


class Fiber:
    """Threads of a block that stand at the same instruction.

    Attributes:
        pc: the number of the instruction.
        lanes: the threads.
        wait: what they wait for, or None.
        parked: they wait for the rest of their warps.
        apart: they must execute the instruction without others that stand there.
    """

    __slots__ = ("apart", "lanes", "parked", "pc", "wait")

    def __init__(self, pc: int, lanes: Lanes) -> None:
        self.pc, self.lanes = pc, lanes
        self.wait: Wait | None = None
        self.parked = self.apart = False


class Arrival(NamedTuple):
    """A load that completes when its warp names one of its registers, or waits for it.

    Attributes:
        registers: that it writes.
        complete: called once.
    """

    registers: frozenset[Register]
    complete: Callable[[], None]


class Cta:
    """One thread block.

    Attributes:
        machine, cluster, launch: what it runs in.
        index: (x, y, z) in the grid.
        rank: in the cluster.
        threads: of the block.
        files: the registers, by type: rows of threads.
        shared, local: its memory.
        in_flight: registers that asynchronous instructions still read or write, by warp.
        arriving: loads whose registers may be named at any time, by warp; that completes them.
    """

    machine: Machine
    cluster: Cluster
    index: tuple[int, int, int]
    rank: int
    threads: int
    multiprocessor: int
    shared: SharedMemory
    thread_number: NDArray[np.intp]

    def __init__(self, cluster: Cluster, index: tuple[int, int, int], rank: int) -> None:
        self.cluster, self.index, self.rank = cluster, index, rank
        self.machine = cluster.machine
        self.launch: Launch = self.machine.launch
        program = self.launch.program
        self.steps = program.steps
        self.threads = self.launch.threads
        self.warps = -(-self.threads // WARP_THREADS)
        self.multiprocessor = cluster.number * len(cluster.indices) % self.machine.multiprocessors
        self.first_agent = rank * agents_of_block(self.warps)
        self._channels: dict[object, int] = {}
        self.files = register_file(program.counts, self.threads)
        self.shared = SharedMemory(SHARED_BASE + self.launch.shared_bytes, cluster.clocks)
        self.shared.agent_name = cluster.agent_name
        if self.machine.observer is not None:
            self.shared.moved = functools.partial(self.machine.observer.moved, self)
        self.local = LocalMemory(self.threads, program.local_bytes)
        self.thread_number = np.arange(self.threads)
        x, y, _ = self.launch.block
        self.thread_index = (
            self.thread_number % x,
            self.thread_number // x % y,
            self.thread_number // (x * y),
        )
        self.barriers: dict[int, NamedBarrier] = {}
        self.in_flight: dict[int, set[Register]] = {}
        self.arriving: dict[int, list[Arrival]] = {}
        self.live = np.ones(self.threads, np.bool_)
        self.fibers = [Fiber(0, slice(0, self.threads))]
        self.units: dict[str, Any] = {}
        """State of the instruction modules, each under its own name."""
        self.step: Step | None = None
        """The step that is being executed."""
        self.polled: dict[int, str] = {}
        """What each warp asked for in vain, by ``mbarrier.test_wait``."""
        self.active: Lanes | None = None
        """The lanes that execute it."""

    # ------------------------------------------------------------------ agents

    def agents_of_lanes(self, lanes: Lanes) -> Agents:
        """The agent of each lane."""
        return self.first_agent + lane_sets.indices(lanes) // WARP_THREADS

    def agents(self, lanes: Lanes) -> Agents:
        """The agents that have a lane in the set."""
        return self.first_agent + lane_sets.warps(lanes)

    def unit_agent(self, unit: str) -> int:
        """The agent of an asynchronous unit."""
        return self.first_agent + 2 * self.warps + UNITS.index(unit)

    def tma_agent(self, key: object) -> int:
        """The agent of the TMA unit for what `key` (a barrier, a thread's bulk groups) tracks."""
        channel = self._channels.setdefault(key, len(self._channels) % TMA_CHANNELS)
        return self.unit_agent("tma") + channel

    def warpgroup_agent(self, warp: int) -> int:
        """The agent of the asynchronous products of a warp's warpgroup."""
        return self.first_agent + 2 * self.warps + len(UNITS) + warp // WARPGROUP_WARPS

    def copy_agents(self, agents: Agents) -> Agents:
        """The agents of these warps' asynchronous copies."""
        return agents + self.warps

    # ----------------------------------------------------------------- symbols

    def address_of(self, symbol: Symbol) -> int:
        """Of a variable, in its own space."""
        if symbol.space == "shared":
            return (self.rank << RANK_SHIFT) + SHARED_BASE + symbol.offset
        if symbol.space == "global":
            return self.launch.globals[symbol.name]
        return symbol.offset

    # --------------------------------------------------------------- execution

    @property
    def finished(self) -> bool:
        return not self.fibers

    def run(self, budget: int) -> int:
        """Run until every fiber waits, or `budget` instructions are done; how many were."""
        done = 0
        while done < budget:
            fiber, stop = self._choose()
            if fiber is None:
                break
            try:
                done += self._run_fiber(fiber, stop, budget - done)
            except EmulationError as error:
                raise self._located(error, fiber) from None
        return done

    def _located(self, error: EmulationError, fiber: Fiber) -> EmulationError:
        if error.instruction is None and fiber.pc < len(self.steps):
            error.instruction = self.steps[fiber.pc].instruction
        if not error.where:
            error.where = self.describe(fiber.lanes if self.active is None else self.active)
        return error

    def describe(self, lanes: Lanes) -> str:
        """``block (0, 0, 0), warps 0 to 3``."""
        warps = lane_sets.warps(lanes)
        text = f"block {self.index}, "
        if len(warps) == 1:
            text += f"warp {warps[0]}"
            if lane_sets.count(lanes) == 1:
                text += f", lane {int(lane_sets.indices(lanes)[0]) % WARP_THREADS}"
            return text
        return text + f"warps {', '.join(map(str, warps))}"

    def _choose(self) -> tuple[Fiber | None, int]:
        """The fiber to run, and the instruction at which another one may join it."""
        runnable = []
        for fiber in self.fibers:
            if fiber.wait is not None and fiber.wait.ready():
                wait, fiber.wait = fiber.wait, None
                wait.resume()
                fiber.pc += 1
            if fiber.wait is None:
                runnable.append(fiber)
        if len(runnable) > 1:
            runnable = self._merge(runnable)
        ready = [fiber for fiber in runnable if not fiber.parked]
        if not ready:
            return None, 0
        chosen = self.machine.schedule.choose(ready)
        others = [fiber.pc for fiber in runnable if fiber.pc > chosen.pc]
        return chosen, min(others, default=len(self.steps) + 1)

    def _merge(self, runnable: list[Fiber]) -> list[Fiber]:
        at: dict[int, list[Fiber]] = {}
        for fiber in runnable:
            at.setdefault(fiber.pc, []).append(fiber)
        if len(at) == len(runnable):
            return runnable
        merged = []
        for pc, standing in at.items():
            together = [fiber for fiber in standing if not fiber.apart]
            merged += [fiber for fiber in standing if fiber.apart]
            if len(together) > 1:
                threads = np.concatenate([lane_sets.indices(each.lanes) for each in together])
                fiber = Fiber(pc, lane_sets.pack(np.sort(threads)))
                for each in together:
                    self.fibers.remove(each)
                self.fibers.append(fiber)
                together = [fiber]
            merged += together
        return merged

    def _run_fiber(self, fiber: Fiber, stop: int, budget: int) -> int:
        """Run a fiber until it waits, splits or reaches `stop`; the number of instructions."""
        steps, pred = self.steps, self.files["pred"]
        machine, end = self.machine, len(self.steps)
        done = 0
        while done < budget:
            pc = fiber.pc
            if pc == stop:
                return done
            if pc >= end:
                self._exit(fiber)
                return done + 1
            step = steps[pc]
            if step.convergent and not self._gather(fiber, step.convergent):
                fiber.parked = True
                return done
            lanes = fiber.lanes
            if self.in_flight and not step.in_flight:
                self._check_in_flight(step, lanes)
            if self.arriving:
                self._settle(step, lanes)
            done += 1
            machine.steps += 1
            if step.guard >= 0:
                taken = pred[step.guard, lanes]
                if step.negated:
                    taken = ~taken
                number = np.count_nonzero(taken)
                if not number:
                    fiber.pc = pc + 1
                    continue
                if number < len(taken):
                    lanes = lane_sets.select(lanes, taken)
            if machine.observer is not None:
                machine.observer.instruction(self, step, lanes)
            self.step, self.active = step, lanes
            outcome = step.run(self, lanes)
            self.active = None
            fiber.apart = False
            if outcome is None:
                fiber.pc = pc + 1
                continue
            if lanes is not fiber.lanes:
                rest = np.setdiff1d(lane_sets.indices(fiber.lanes), lane_sets.indices(lanes))
                self.fibers.append(Fiber(pc + 1, lane_sets.pack(rest)))
                fiber.lanes = lanes
                self._follow(fiber, outcome)
                return done
            if self._follow(fiber, outcome):
                return done
            if fiber.pc < pc and len(self.fibers) > 1:
                return done  # a loop: the others may have got behind
        return done

    def _follow(self, fiber: Fiber, outcome: Wait | Jump | Split | Park) -> bool:
        """Do what the instruction asks for; whether the fiber stops running."""
        if isinstance(outcome, Wait):
            if outcome.ready():
                outcome.resume()
                fiber.pc += 1
                return False
            fiber.wait = outcome
            if self.machine.observer is not None:
                self.machine.observer.waits(self, self.steps[fiber.pc], fiber.lanes)
            return True
        if isinstance(outcome, Split):
            self.fibers.remove(fiber)
            for lanes in outcome.parts:
                part = Fiber(fiber.pc, lanes)
                part.apart = True
                self.fibers.append(part)
            return True
        if isinstance(outcome, Park):
            return self._park(fiber, outcome.lanes)
        if isinstance(outcome.target, int):
            if outcome.target < 0:
                self._exit(fiber)
                return True
            fiber.pc = outcome.target
            return False
        self.fibers.remove(fiber)
        threads = lane_sets.indices(fiber.lanes)
        for target in np.unique(outcome.target):
            part = Fiber(int(target), lane_sets.pack(threads[outcome.target == target]))
            self.fibers.append(part)
            if target < 0:
                self._exit(part)
        return True

    def _park(self, fiber: Fiber, staying: Lanes) -> bool:
        """Leave lanes of a fiber where they are; whether that is all of them."""
        number = lane_sets.count(staying)
        if number == lane_sets.count(fiber.lanes):
            fiber.parked = True
            return True
        parked = Fiber(fiber.pc, staying)
        parked.parked = True
        self.fibers.append(parked)
        others = np.setdiff1d(lane_sets.indices(fiber.lanes), lane_sets.indices(staying))
        fiber.lanes = lane_sets.pack(others)
        fiber.pc += 1
        return False

    def _exit(self, fiber: Fiber) -> None:
        self.fibers.remove(fiber)
        self.live[fiber.lanes] = False
        for other in self.fibers:
            other.parked = False
        for barrier in self.barriers.values():
            barrier.threads_left(self)
        self.cluster.barrier.threads_left()
        self.machine.progress += 1

    def _converged(self, fiber: Fiber, size: int) -> NDArray[np.bool_] | None:
        """Which groups of `size` threads the fiber has with all living threads; None: all it has.

        Args:
            size: 32 for warps, 128 for warpgroups.
        """
        lanes = fiber.lanes
        if isinstance(lanes, slice) and not lanes.start % size:
            whole = not lanes.stop % size or lanes.stop == self.threads
            if whole:
                return None
        threads = lane_sets.indices(lanes)
        living = np.flatnonzero(self.live)
        number = -(-self.threads // size)
        ours = np.bincount(threads // size, minlength=number)
        all_of = np.bincount(living // size, minlength=number)
        complete: NDArray[np.bool_] = ours == all_of
        return None if complete[ours > 0].all() else complete & (ours > 0)

    def _gather(self, fiber: Fiber, size: int) -> bool:
        """Whether all groups of `size` threads are complete; else those that are not stay behind.

        False if none is.
        """
        complete = self._converged(fiber, size)
        if complete is None:
            return True
        if not complete.any():
            return False
        inside = complete[lane_sets.indices(fiber.lanes) // size]
        rest = Fiber(fiber.pc, lane_sets.select(fiber.lanes, ~inside))
        rest.parked = True
        self.fibers.append(rest)
        fiber.lanes = lane_sets.select(fiber.lanes, inside)
        return True

    def check_parked(self) -> None:
        """Raise if threads stand at a convergent instruction, and the rest never comes.

        Called when nothing else in the machine can go on.
        """
        for fiber in self.fibers:
            if not fiber.parked or fiber.wait is not None:
                continue
            step = self.steps[fiber.pc]
            if self._converged(fiber, step.convergent or WARP_THREADS) is not None:
                group = "warpgroup" if step.convergent > WARP_THREADS else "warp"
                raise ConvergenceFault(
                    f"a {group}'s threads must execute this instruction together; some of them are"
                    " elsewhere",
                    step.instruction,
                    self.describe(fiber.lanes),
                )

    def _settle(self, step: Step, lanes: Lanes) -> None:
        """Complete the loads whose registers the step names."""
        for warp in lane_sets.warps(lanes).tolist():
            loads = self.arriving.get(warp)
            if not loads:
                continue
            left = [load for load in loads if step.touched.isdisjoint(load.registers)]
            if len(left) == len(loads):
                continue
            for load in loads:
                if load not in left:
                    load.complete()
            self.arriving[warp] = left
            if not left:
                del self.arriving[warp]

    def _check_in_flight(self, step: Step, lanes: Lanes) -> None:
        for warp in lane_sets.warps(lanes):
            busy = self.in_flight.get(int(warp))
            if not busy or step.touched.isdisjoint(busy):
                continue
            if step.copies and step.written.isdisjoint(busy):
                # Triton copies an accumulator that is in flight (tests/emulator/test_kernels.py):
                # ptxas gives both one register, or waits; so the copy has the final value.
                self.machine.complete(self, lanes)
                continue
            raise SynchronizationFault(
                "names a register that an asynchronous instruction still reads or writes; wait"
                " for it first (wgmma.wait_group, tcgen05.wait)"
            )
