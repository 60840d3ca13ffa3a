"""The threads of a block: which of them run together, and what they wait for.

Threads that stand at the same instruction run it together, as one numpy operation over their
lanes: a *fiber*. A branch that they do not all take splits a fiber; fibers that meet at the same
instruction merge. The one that is furthest behind goes first, so that they meet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.decode.step import Jump, Outcome, Park, Split, Step, Wait
from triton_ext.emulator.errors import (
    ConvergenceFault,
    EmulationError,
    SynchronizationFault,
    UninitializedRead,
)
from triton_ext.emulator.schedule.meetings import Meetings
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.units.mbarriers import causes
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction

MANY_JUMPS = 256
"""Rounds of a loop without a change of memory after which a fiber is taken to wait for others."""
WATCHED_JUMPS = 1024
"""Rounds after which its warps are watched: do they repeat themselves?"""
TOLD_BLOCKS = 4
"""How many blocks are told of, of those whose threads stand at one place for one reason."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")
COMPARED_LAPS = 16
"""How many states in a row are compared with an earlier one."""


_ASYNCHRONOUS = ("wgmma.mma_async", "tcgen05.ld")
"""Whose registers others must wait for."""


class Fiber:
    """Threads of a block that stand at the same instruction.

    Attributes:
        pc: the number of the instruction.
        lanes: the threads.
        wait: what they wait for, or None.
        parked: they wait for the rest of their warps.
        apart: they must execute the instruction without others that stand there.
        backward_jumps: how often they went back in the text since memory or barriers changed
            last, which was the machine's change number `since`.
    """

    __slots__ = ("apart", "backward_jumps", "lanes", "parked", "pc", "since", "wait")

    def __init__(self, pc: int, lanes: Lanes) -> None:
        self.pc, self.lanes = pc, lanes
        self.wait: Wait | None = None
        self.parked = self.apart = False
        self.backward_jumps, self.since = 0, -1

    def part(self, pc: int, lanes: Lanes) -> Fiber:
        """A fiber of some of its threads, or of some more, which has gone round as often."""
        part = Fiber(pc, lanes)
        part.backward_jumps, part.since = self.backward_jumps, self.since
        return part

    def go_on(self, then: Callable[[], None]) -> None:
        """End a wait: do `then`, and go to the next instruction."""
        again = self.wait is not None and self.wait.again
        self.wait = None
        then()
        self.pc += not again


@dataclass
class _Watch:
    """Warps that go round in a loop while nothing changes: is a state of theirs there again?"""

    progress: int
    backward_jumps: int = 0
    state: int = 0


@dataclass(frozen=True)
class Standing:
    """Threads that stand at one instruction, for one reason.

    Attributes:
        instruction: that one.
        who: they, in words.
        why: they do not go on.
    """

    instruction: Instruction
    who: str
    why: str


def told(standing: Sequence[Standing]) -> list[str]:
    """Who stands where, and why: a line each; but one of more than `TOLD_BLOCKS` that are alike, as
    they differ in addresses alone.
    """
    alike: dict[tuple[int, str], list[Standing]] = {}
    for each in standing:
        key = each.instruction.line, _ADDRESS.sub("", each.why)
        alike.setdefault(key, []).append(each)
    lines = []
    for several in alike.values():
        at, whos = several[0].instruction, [each.who for each in several]
        if len(whos) > TOLD_BLOCKS:
            more = f"and {len(whos) - TOLD_BLOCKS} blocks more"
            whos = ["; ".join([*whos[:TOLD_BLOCKS], more])]
        source = f" [{at.source}]" if at.source else ""
        whys = [each.why for each in several]
        lines += [
            f"{who} at PTX line {at.line}{source}: {why}"
            for who, why in zip(whos, whys, strict=False)
        ]
    return lines


class Fibers:
    """All fibers of one block.

    Args:
        cta: the block.
        program: the decoded kernel.
        choose: says which of several fibers runs next, given also those that are late.
        complete: performs at once what lanes of a block have issued to asynchronous units.
        observer: told of everything that happens, or None.
        held: says whether lanes must not execute an instruction yet; None: they never must not.
        meets: whether lanes that part at a branch meet at its end.
    """

    def __init__(
        self,
        cta: Cta,
        program: Program,
        choose: Callable[[Sequence[Fiber], Sequence[Fiber]], Fiber],
        complete: Callable[[Cta, Lanes], None],
        observer: Observer | None,
        held: Callable[[Cta, Step, Lanes], Wait | Split | None] | None,
        meets: bool,
    ) -> None:
        self.cta, self.steps, self._held = cta, program.steps, held
        self._choose_among, self._complete, self._observer = choose, complete, observer
        self.fibers = [Fiber(0, slice(0, cta.threads))]
        self._meetings = Meetings(program if meets else None, cta.threads)
        self._active: Lanes | None = None  # the lanes that execute an instruction now
        self._watched: dict[tuple[int, ...], _Watch] = {}
        self._repeating: dict[int, int] = {}  # warps that repeat themselves, and since what change

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
            if self._repeating and self.endless:
                break
        return done

    def _located(self, error: EmulationError, fiber: Fiber) -> EmulationError:
        if error.instruction is None and fiber.pc < len(self.steps):
            error.instruction = self.steps[fiber.pc].instruction
        lanes = fiber.lanes if self._active is None else self._active
        unwritten = isinstance(error, UninitializedRead)
        if (unwritten or isinstance(error, SynchronizationFault)) and not error.where:
            error.message += causes(self.cta, lanes, unwritten=unwritten)
        if isinstance(error, UninitializedRead) and error.role:
            error.use = error.use or self.steps[fiber.pc].instruction
            error.used_where = error.used_where or self.cta.describe(self._users(error, fiber))
        if not error.where:
            error.where = self.cta.describe(lanes)
        return error

    def _users(self, error: UninitializedRead, fiber: Fiber) -> Lanes:
        """The lanes that use an undefined value."""
        if error.used_by_thread is not None:
            return slice(error.used_by_thread, error.used_by_thread + 1)
        return fiber.lanes if self._active is None else self._active

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
        chosen = self._choose_among(ready, late)
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
        steps, cta, observer, held = self.steps, self.cta, self._observer, self._held
        machine, pred, end = cta.machine, cta.files["pred"], len(self.steps)
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
                self._check_in_flight(step, lanes)
            if under_way.arriving:
                self._settle(step, lanes)
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
            if observer is not None:
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
                self._lap(fiber)
                if len(self.fibers) > 1 or self._repeating:
                    return done  # a loop: the others may have got behind
        return done

    def _lap(self, fiber: Fiber) -> None:
        """A fiber went back in the text: a loop. Do its warps only repeat themselves?

        While memory and barriers stay, what they do next follows from where their threads stand and
        from their registers: if those are as they were once, all further rounds are the same.
        """
        progress = self.cta.machine.progress
        if fiber.since != progress:
            fiber.since, fiber.backward_jumps = progress, 0
            repeating = self._repeating.items()
            self._repeating = {warp: since for warp, since in repeating if since == progress}
        fiber.backward_jumps += 1
        if fiber.backward_jumps < WATCHED_JUMPS:
            return
        warps = tuple(lane_sets.warps(fiber.lanes).tolist())
        watch = self._watched.get(warps)
        if watch is None or watch.progress != progress:
            watch = self._watched[warps] = _Watch(progress)
        watch.backward_jumps += 1
        past = watch.backward_jumps - (1 << watch.backward_jumps.bit_length() - 1)
        if past > COMPARED_LAPS:
            return
        state = self._state(warps)
        if not past:
            watch.state = state
        elif state == watch.state:
            self._repeating.update(dict.fromkeys(warps, progress))

    def _state(self, warps: tuple[int, ...], where: NDArray[np.intp] | None = None) -> int:
        """A number for where the threads of some warps stand, and what their registers hold.

        Args:
            where: `_standing_at`, if it is known.
        """
        where = self._standing_at() if where is None else where
        of_warps = [slice(WARP_THREADS * warp, WARP_THREADS * (warp + 1)) for warp in warps]
        files = [self.cta.files[name] for name in ("pred", "b16", "b32", "b64", "b128")]
        return hash(tuple(each[..., one].tobytes() for one in of_warps for each in (where, *files)))

    def _standing_at(self) -> NDArray[np.intp]:
        """For each thread the instruction that it stands at, and whether it waits there."""
        where = np.full(self.cta.threads, -1)
        for fiber in self.fibers:
            where[fiber.lanes] = 2 * fiber.pc + (fiber.wait is not None)
        return where

    def states(self) -> list[tuple[int, int]]:
        """The same for each warp, and for the block's shared memory."""
        where = self._standing_at()
        warps = [(warp, self._state((warp,), where)) for warp in range(self.cta.warps)]
        return [*warps, (-1, hash(self.cta.shared.data.tobytes()))]

    def _follow(self, fiber: Fiber, outcome: Wait | Jump | Split | Park) -> bool:
        """Do what the instruction answers; whether the fiber stops running."""
        if isinstance(outcome, Wait):
            if outcome.ready():
                outcome.resume()
                fiber.pc += 1
                return False
            fiber.wait = outcome
            if self._observer is not None:
                self._observer.waits(self.cta, self.steps[fiber.pc], fiber.lanes)
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

    def _converged(self, fiber: Fiber, size: int) -> NDArray[np.bool_] | None:
        """Which groups of threads the fiber has with all of their living threads.

        Args:
            size: threads of a group: 32 for warps, 128 for warpgroups.

        Returns:
            (groups of the block,); None if the fiber has no other groups.
        """
        lanes = fiber.lanes
        if isinstance(lanes, slice) and not lanes.start % size:
            whole = not lanes.stop % size or lanes.stop == self.cta.threads
            if whole:
                return None
        threads = lane_sets.indices(lanes)
        living = np.flatnonzero(self.cta.live)
        number = -(-self.cta.threads // size)
        ours = np.bincount(threads // size, minlength=number)
        all_of = np.bincount(living // size, minlength=number)
        complete: NDArray[np.bool_] = ours == all_of
        return None if complete[ours > 0].all() else complete & (ours > 0)

    def _gather(self, fiber: Fiber, size: int) -> bool:
        """Leave groups of `size` threads that are not complete behind; whether any is left."""
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

    def _settle(self, step: Step, lanes: Lanes) -> None:
        """Complete the loads whose values, or what is computed of them, the step stores."""
        arriving = self.cta.under_way.arriving
        for warp in lane_sets.warps(lanes).tolist():
            loads = arriving.get(warp, [])
            used = [load for load in loads if not step.touched.isdisjoint(load.registers)]
            for load in used:
                if step.written:
                    load.registers.update(step.written)
                else:
                    load.complete()
                    loads.remove(load)
                    self.cta.under_way.unawaited.add(step.instruction)
            if used and not loads:
                del arriving[warp]

    def _check_in_flight(self, step: Step, lanes: Lanes) -> None:
        for warp in lane_sets.warps(lanes):
            busy = self.cta.under_way.registers.get(int(warp))
            if not busy or step.touched.isdisjoint(busy):
                continue
            if step.copies and step.written.isdisjoint(busy):
                # Triton copies an accumulator that is in flight (tests/emulator/test_kernels.py):
                # ptxas gives both one register, or waits; so the copy has the final value.
                self._complete(self.cta, lanes)
                continue
            users = [
                each.instruction.source or f"PTX line {each.instruction.line}"
                for each in self.steps
                if each.instruction.opcode.startswith(_ASYNCHRONOUS)
                and not each.touched.isdisjoint(step.touched & busy)
            ]
            raise SynchronizationFault(
                "names a register that an asynchronous instruction still reads or writes"
                f" ({' or '.join(dict.fromkeys(map(str, users)))}); wait for it first"
                " (wgmma.wait_group, tcgen05.wait)"
            )

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
        progress, repeating = self.cta.machine.progress, self._repeating
        return all(
            repeating.get(warp) == progress
            for fiber in self.runnable
            for warp in lane_sets.warps(fiber.lanes).tolist()
        )

    def stuck(self) -> list[Standing]:
        """Where the threads stand, and why they do not go on.

        Raises:
            ConvergenceFault: threads stand at a convergent instruction, and the rest never comes.
        """
        self._check_parked()
        return self.standing(self.fibers)

    def standing(self, fibers: Sequence[Fiber]) -> list[Standing]:
        """Where threads stand, and what they wait for: those together that do the same."""
        found: dict[tuple[int, str], list[Fiber]] = {}
        for fiber in fibers:
            why = fiber.wait.why() if fiber.wait else "runs without end"
            if fiber.wait is None:
                asked = {self._asked(int(warp)) for warp in lane_sets.warps(fiber.lanes)}
                why += "".join(f"; it {each}" for each in sorted(asked - {""}))
            found.setdefault((fiber.pc, why), []).append(fiber)
        standing = []
        for (pc, why), fibers in found.items():
            threads = np.sort(np.concatenate([lane_sets.indices(each.lanes) for each in fibers]))
            at = self.steps[min(pc, len(self.steps) - 1)].instruction
            standing.append(Standing(at, self.cta.describe(lane_sets.pack(threads)), why))
        return standing

    def _asked(self, warp: int) -> str:
        """What a warp has asked for, and not got, in words; "" if nothing."""
        found = self.cta.under_way.polled.get(warp, "")
        if isinstance(found, str):
            return found
        address, value = found
        of = self.cta.launch.memory.locate(address)
        number = int.from_bytes(value, "little")
        return (
            f"last read {number} at global address {address:#x} ({of.describe(address - of.start)})"
        )

    def _check_parked(self) -> None:
        for fiber in self.fibers:
            if not fiber.parked or fiber.wait is not None:
                continue
            step = self.steps[fiber.pc]
            if self._converged(fiber, step.convergent or WARP_THREADS) is not None:
                size = max(step.convergent, WARP_THREADS)
                group = "warpgroup" if size > WARP_THREADS else "warp"
                mine = set((lane_sets.indices(fiber.lanes) // size).tolist())
                elsewhere = [
                    each
                    for each in self.fibers
                    if each.pc != fiber.pc
                    and mine & set((lane_sets.indices(each.lanes) // size).tolist())
                ]
                raise ConvergenceFault(
                    f"a {group}'s threads must execute this instruction together; some of them are"
                    " elsewhere"
                    + "".join(f"\n  {line}" for line in told(self.standing(elsewhere))),
                    step.instruction,
                    self.cta.describe(fiber.lanes),
                )
