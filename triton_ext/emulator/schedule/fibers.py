"""The threads of a block: which of them run together, and what they wait for.

Threads that stand at the same instruction run it together, as one numpy operation over their
lanes: a *fiber*. A branch that they do not all take splits a fiber; fibers that meet at the same
instruction merge. The one that is furthest behind goes first, so that they meet.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.decode.step import Jump, Outcome, Park, Split, Wait
from triton_ext.emulator.errors import EmulationError
from triton_ext.emulator.schedule.faults import located
from triton_ext.emulator.schedule.fiber import Fiber, converged
from triton_ext.emulator.schedule.late_registers import check_free, settle
from triton_ext.emulator.schedule.loops import Loops
from triton_ext.emulator.schedule.meetings import Meetings
from triton_ext.emulator.schedule.observers import SILENT
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes


class Fibers:
    """All fibers of one block.

    Args:
        cta: the block.
        program: the decoded kernel.
        schedule: says which of several fibers runs next, and what must not run yet.
        complete: performs at once what lanes of a block have issued to asynchronous units.
        meets: whether lanes that part at a branch meet at its end.
    """

    def __init__(
        self,
        cta: Cta,
        program: Program,
        schedule: Schedule,
        complete: Callable[[Cta, Lanes], None],
        meets: bool,
    ) -> None:
        self.cta, self.steps = cta, program.steps
        self._schedule, self._complete = schedule, complete
        self.fibers = [Fiber(0, slice(0, cta.threads))]
        self._meetings = Meetings(program if meets else None, cta.threads)
        self._loops = Loops(cta)
        self._active: Lanes | None = None  # the lanes that execute an instruction now

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
                at = self.steps[fiber.pc].instruction if fiber.pc < len(self.steps) else None
                lanes = fiber.lanes if self._active is None else self._active
                raise located(error, at, self.cta, lanes) from None
            if self._loops.repeating and self.endless:
                break
        return done

    def _choose(self) -> tuple[Fiber | None, int]:
        """The fiber to run, and the instruction at which another one may join it."""
        runnable = []
        for fiber in self.fibers:
            if fiber.wait is not None and fiber.wait.ready():
                fiber.go_on(fiber.wait.resume)
            if fiber.wait is None:
                runnable.append(fiber)
        if len(runnable) > 1:
            runnable = self._merge(runnable)
        ready = [fiber for fiber in runnable if not fiber.parked]
        if not ready:
            return None, 0
        late = [fiber for fiber in ready if len(ready) > 1 and self._meetings.awaits(fiber.lanes)]
        chosen = self._schedule.choose(ready, late)
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
                most = max(together, key=lambda each: (each.since, each.backward_jumps))
                fiber = most.part(pc, lane_sets.pack(np.sort(threads)))
                for each in together:
                    self.fibers.remove(each)
                self.fibers.append(fiber)
                together = [fiber]
            merged += together
        return merged

    def _run_fiber(self, fiber: Fiber, stop: int, budget: int) -> int:
        """Run a fiber until it waits, splits or reaches `stop`; the number of instructions."""
        steps, cta, held = self.steps, self.cta, self._schedule.held
        machine, pred, end = cta.machine, cta.files["pred"], len(self.steps)
        observer = machine.observer
        counts, clocks = machine.counts, cta.cluster.clocks
        undefined, meetings = cta.undefined.registers, self._meetings.open
        under_way = cta.under_way
        done, counted, blocks = 0, None, 1
        while done < budget:
            pc = fiber.pc
            if pc == stop:
                return done
            if pc >= end:
                self._exit(fiber)
                return done + 1
            if pc in meetings and self._meet(fiber):
                return done
            step = steps[pc]
            if step.convergent and not self._gather(fiber, step.convergent):
                fiber.parked = True
                return done
            lanes = fiber.lanes
            if step.meets:
                clocks.lanes_meet(cta.agents(lanes), step.orders)
            if under_way.registers and not step.in_flight:
                check_free(cta, steps, step, lanes, self._complete)
            if under_way.arriving:
                settle(cta, step, lanes)
            done += 1
            if lanes is not counted:
                counted, blocks = lanes, cta.place.blocks(lanes)
            machine.steps += blocks
            counts[pc] += blocks
            if step.guard >= 0:
                taken = pred[step.guard, lanes]
                if step.negated:
                    taken = ~taken
                number = np.count_nonzero(taken)
                if not number:
                    if undefined:
                        step.track(cta, lanes, None)
                    fiber.pc = pc + 1
                    continue
                if number < len(taken):
                    lanes = lane_sets.select(lanes, taken)
            if undefined:
                step.track(cta, fiber.lanes, lanes)
            if observer is not SILENT:
                observer.instruction(cta, step, lanes)
            cta.instruction, self._active = step.instruction, lanes
            outcome: Outcome = None if held is None else held(cta, step, lanes)
            if outcome is None:
                outcome = step.run(cta, lanes)
            self._active = None
            fiber.apart = False
            if outcome is None:
                fiber.pc = pc + 1
                continue
            if lanes is not fiber.lanes:
                if isinstance(outcome, Jump):
                    self._meetings.part(pc, fiber.lanes, taken)
                rest = np.setdiff1d(lane_sets.indices(fiber.lanes), lane_sets.indices(lanes))
                self.fibers.append(fiber.part(pc + 1, lane_sets.pack(rest)))
                fiber.lanes = lanes
                self._follow(fiber, outcome)
                return done
            if self._follow(fiber, outcome):
                return done
            if fiber.pc <= pc:
                self._loops.lap(fiber, self.fibers)
                if len(self.fibers) > 1 or self._loops.repeating:
                    return done  # a loop: the others may have got behind
        return done

    def _follow(self, fiber: Fiber, outcome: Wait | Jump | Split | Park) -> bool:
        """Do what the instruction answers; whether the fiber stops running."""
        if isinstance(outcome, Wait):
            if outcome.ready():
                outcome.resume()
                fiber.pc += 1
                return False
            fiber.wait = outcome
            self.cta.machine.observer.waits(self.cta, self.steps[fiber.pc], fiber.lanes)
            return True
        if isinstance(outcome, Split):
            self.fibers.remove(fiber)
            for lanes in outcome.parts:
                part = fiber.part(fiber.pc, lanes)
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
        self._meetings.part(fiber.pc, fiber.lanes, outcome.target)
        threads = lane_sets.indices(fiber.lanes)
        for target in np.unique(outcome.target):
            part = fiber.part(int(target), lane_sets.pack(threads[outcome.target == target]))
            self.fibers.append(part)
            if target < 0:
                self._exit(part)
        return True

    def _meet(self, fiber: Fiber) -> bool:
        """Whether a fiber stops where lanes meet that have parted: to wait for others of its warps,
        or to go on together with those that have waited for it.
        """
        found = self._meetings.arrive(fiber.pc, fiber.lanes)
        if found is None:
            return False
        if not found:
            return any(each.pc == fiber.pc and each is not fiber for each in self.fibers)
        self.fibers.remove(fiber)
        for lanes, wait in found:
            part = fiber.part(fiber.pc, lanes)
            part.wait = wait
            self.fibers.append(part)
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
        cta = self.cta
        clocks, agents = cta.cluster.clocks, cta.agents(fiber.lanes)
        clocks.tick(agents)
        cta.exited.absorb(clocks.snapshot(agents))
        cta.live[fiber.lanes] = False
        self._meetings.leave(fiber.lanes)
        cta.finished = not cta.live.any()
        for other in self.fibers:
            other.parked = False
        for barrier in cta.barriers.values():
            barrier.threads_left()
        cta.cluster.barrier.threads_left()
        cta.machine.progress += 1

    def _gather(self, fiber: Fiber, size: int) -> bool:
        """Leave groups of `size` threads that are not complete behind; whether any is left."""
        complete = converged(self.cta, fiber, size)
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

    # ----------------------------------------------- when nothing in the machine can go on

    def time_out(self) -> bool:
        """End the waits that may give up; whether there were any."""
        ended = False
        for fiber in self.fibers:
            if fiber.wait is not None and fiber.wait.timeout is not None:
                fiber.go_on(fiber.wait.timeout)
                ended = True
        return ended

    def hurry(self) -> bool:
        """End a wait of lanes for others of their warp; whether there was one."""
        waiting = [each for each in self.fibers if each.wait is not None and each.wait.patient]
        for fiber in sorted(waiting, key=lambda each: each.pc)[:1]:
            fiber.wait = None
            self.cta.machine.progress += 1  # what only repeats itself may be watched anew
        return bool(waiting)

    @property
    def runnable(self) -> list[Fiber]:
        """The fibers that wait for nothing."""
        return [fiber for fiber in self.fibers if fiber.wait is None and not fiber.parked]

    @property
    def endless(self) -> bool:
        """Whether every fiber that waits for nothing does again and again the same."""
        return self._loops.endless(self.runnable)
