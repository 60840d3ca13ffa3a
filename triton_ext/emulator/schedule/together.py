"""Launches of several emulated GPUs at the same time, each from a thread of its own.

One thread at a time runs instructions, those of whichever launch the schedule chooses; the others
wait. "eager" gives each launch its turn, "lazy" one as many as it can use, "random" any, with one
that is favoured for a while. Instructions run only when the threads of all GPUs wait, or when
those that do not have been away for a moment: so a seed gives the same order again, as long as the
threads wait for each other by what is here alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from triton_ext.emulator.errors import Deadlock, EmulationError, PeerStopped
from triton_ext.emulator.schedule.machine import SHORT, Machine
from triton_ext.emulator.schedule.schedule import Schedule

LONG = 512
"""Instructions that a block runs at most in a turn."""
GRACE = 0.1
"""Seconds for which launches wait for a thread that is on its way to the next one."""
PATIENCE = 60.0
"""Seconds after which a thread that never comes counts as one that has ended."""
LATE = 2.0
"""The same, of a GPU whose thread has not even begun."""
IDLE_TURNS = 4
"""Futile turns in a row, after which a launch counts as one that waits."""


@dataclass(eq=False)
class _Running:
    """A launch under way.

    Attributes:
        changes: how many changes there had been, of all launches, when it ran last.
        turn: when that was.
        idle: its turns since it did more than polling.
        stuck: nobody in it can go on.
        error: what ended it.
    """

    machine: Machine
    device: int
    rounds: Iterator[bool]
    changes: int = 0
    turn: int = 0
    idle: int = 0
    stuck: bool = False
    over: bool = False
    error: BaseException | None = None


@dataclass(frozen=True)
class Step:
    """A part of what a stream does.

    Attributes:
        perform: does it.
        ready: whether it can be done.
        why: what it waits for, if not.
    """

    perform: Callable[[], None]
    ready: Callable[[], bool] = lambda: True
    why: str = ""


@dataclass
class Stream:
    """Copies that are made one after the other, each in several steps.

    Attributes:
        sleep: turns until the next step, under the random schedule.
    """

    steps: deque[Step] = field(default_factory=deque)
    sleep: int = 0

    @property
    def ready(self) -> bool:
        return bool(self.steps) and self.steps[0].ready()


class Together:
    """What runs on several GPUs.

    Args:
        devices: their number.
        schedule: that of the launches among each other.
    """

    def __init__(self, devices: int, schedule: Schedule) -> None:
        self.devices, self.schedule = devices, schedule
        self.streams: dict[tuple[int, int], Stream] = {}
        self._changed = threading.Condition()
        self._running: list[_Running] = []
        self._driving = False
        self._favoured: _Running | None = None
        self._turns = self._changes = 0
        self._failure: tuple[int, BaseException] | None = None
        # The threads that each GPU has; by thread, since when it is away, or None if it waits here.
        self._of_device: dict[int, list[int]] = {device: [] for device in range(devices)}
        self._away: dict[int, float | None] = {}
        self._begun: set[int] = set()
        self._waiters: list[Callable[[], bool]] = []
        self._news = time.monotonic()
        self._met = 0  # how often all have met
        self._meeting: set[int] = set()

    # ------------------------------------------------------------------ the threads

    def expect(self, device: int, thread: int) -> None:
        """A thread is going to work on a GPU."""
        with self._changed:
            if not self._begun and not self._running:
                self._failure = None
            self._of_device[device].append(thread)
            self._begun.add(device)
            self._away[thread] = self._news = time.monotonic()
            self._changed.notify_all()

    def leave(self, device: int, thread: int, error: BaseException | None) -> None:
        """It does no longer; the last one waits for the copies, and takes the failure, if there was
        one, with it. `error`: what it ended with: the others are stopped."""
        with self._changed:
            if error is not None:
                self._fail(device, error)
            elif sum(map(len, self._of_device.values())) == 1:
                self._until(device, lambda: not self._copying)
            self._of_device[device].remove(thread)
            if not any(thread in threads for threads in self._of_device.values()):
                del self._away[thread]
            failure, last = self._failure, not any(self._of_device.values())
            if last:
                self._failure = None
                self._begun.clear()
            self._news = time.monotonic()
            self._changed.notify_all()
        if last and error is None and failure is not None:
            raise failure[1]

    def stop(self, error: BaseException) -> None:
        """End all that is under way."""
        with self._changed:
            self._fail(0, error)

    def settle(self, then: Callable[[], None]) -> None:
        """Do `then` if no thread works on a GPU, and nothing is under way."""
        with self._changed:
            if not any(self._of_device.values()) and not self._running and not self._copying:
                then()

    @property
    def _copying(self) -> bool:
        return any(stream.steps for stream in self.streams.values())

    @contextmanager
    def _waiting(self, over: Callable[[], bool]) -> Iterator[None]:
        """Within it the calling thread waits here for something to be over; the lock is held."""
        thread = threading.get_ident()
        known = thread in self._away
        self._away[thread], self._news = None, time.monotonic()
        self._waiters.append(over)
        try:
            yield
        finally:
            self._waiters.remove(over)
            self._news = time.monotonic()
            if known:
                self._away[thread] = self._news
            else:
                del self._away[thread]
            self._changed.notify_all()

    def _gathered(self) -> bool:
        """Whether no thread is on its way."""
        if any(over() for over in self._waiters):
            return False
        away = [since for since in self._away.values() if since is not None]
        return all(time.monotonic() - since > GRACE for since in away)

    def _nobody_comes(self) -> bool:
        """Whether no thread is left that could launch something, or copy."""
        away = any(since is not None for since in self._away.values())
        missing = len(self._begun) < self.devices
        return time.monotonic() - self._news > (PATIENCE if away else LATE if missing else 0)

    def _fail(self, device: int, error: BaseException) -> None:
        if self._failure is None:
            self._failure = device, error
            for stream in self.streams.values():
                stream.steps.clear()
            self._changed.notify_all()

    def _check(self, of: int) -> None:
        """Raise what a GPU is told when it, or another one, has failed."""
        if self._failure is not None:
            device, error = self._failure
            if device == of or isinstance(error, Deadlock):  # that is everybody's
                raise error
            what = error.message if isinstance(error, EmulationError) else str(error)
            raise PeerStopped(
                f"device {device} has ended in {type(error).__name__}: {what.splitlines()[0]}"
                if what
                else f"device {device} has ended in {type(error).__name__}"
            ) from error

    # ---------------------------------------------------------------- what they wait for

    def execute(self, device: int, machine: Machine) -> None:
        """Run a launch to its end, beside those of the other GPUs.

        Raises:
            EmulationError: what the kernel does wrong.
            PeerStopped: another GPU has failed.
        """
        running = _Running(machine, device, machine.rounds())
        with self._changed:
            if not self._running and not any(self._of_device.values()):
                self._failure = None  # of a launch before, of which nobody else is to be told
            self._check(device)
            self._running.append(running)
            try:
                self._until(device, lambda: running.over)
            finally:
                self._running.remove(running)
                if running is self._favoured:
                    self._favoured = None
            if running.error is not None:
                raise running.error
            self._check(device)

    def drain(self, device: int) -> None:
        """Wait for a GPU's copies."""
        with self._changed:
            self._check(device)
            mine = [stream for (owner, _), stream in self.streams.items() if owner == device]
            self._until(device, lambda: not any(stream.steps for stream in mine))
            self._check(device)

    def meet(self, device: int, then: Callable[[], None]) -> None:
        """Wait until each GPU has come here, and all copies are made. `then`: done once, before
        they go on."""
        with self._changed:
            self._check(device)
            before = self._met
            self._meeting.add(device)

            def over() -> bool:
                if self._met == before and len(self._meeting) == self.devices:
                    if self._copying or self._running:
                        return False
                    self._meeting.clear()
                    self._met += 1
                    then()
                    self._changed.notify_all()
                return self._met > before

            try:
                self._until(device, over)
            finally:
                self._meeting.discard(device)
            self._check(device)

    def add(self, device: int, number: int, steps: list[Step]) -> None:
        """More to do for a stream of copies."""
        with self._changed:
            self._check(device)
            self.streams.setdefault((device, number), Stream()).steps.extend(steps)
            self._news = time.monotonic()
            self._changed.notify_all()

    def _until(self, device: int, over: Callable[[], bool]) -> None:
        """Run what is under way, or let another thread do it, until it is over; with the lock."""

        def ended() -> bool:
            return self._failure is not None or over()

        with self._waiting(ended), np.errstate(all="ignore"):
            while not ended():
                if self._driving or not self._gathered():
                    self._changed.wait(GRACE)
                    continue
                self._driving = True
                try:
                    while not ended() and self._gathered():
                        news = self._news
                        self._changed.release()
                        try:
                            self._turn(news)
                        except BaseException as error:  # Ctrl-C, or a mistake of the emulator
                            with self._changed:
                                self._fail(device, error)
                            raise
                        finally:
                            self._changed.acquire()
                finally:
                    self._driving = False
                    self._changed.notify_all()

    # ------------------------------------------------------------------------ turns

    def _turn(self, news: float) -> None:
        """Let one launch run, or make a part of a copy. `news`: when a thread came or went last."""
        self._turns += 1
        live = [each for each in tuple(self._running) if not each.over]
        copying = [each for each in tuple(self.streams.values()) if each.ready]
        if copying and self._copies_now(live, copying):
            return
        ready = [each for each in live if not each.stuck or each.changes != self._changes]
        if ready:
            self._run(self._chosen(ready))
        elif copying:
            self._copy(self.schedule.random.choice(copying))
        else:
            self._stall(live, news)

    def _copies_now(self, live: list[_Running], copying: list[Stream]) -> bool:
        if self.schedule.name == "random":
            for stream in copying:
                stream.sleep -= 1
            copying = [stream for stream in copying if stream.sleep <= 0]
        elif self.schedule.name == "lazy" and any(each.idle < IDLE_TURNS for each in live):
            return False
        if copying:
            self._copy(self.schedule.random.choice(copying))
        return bool(copying)

    def _copy(self, stream: Stream) -> None:
        pick = self.schedule.random
        stream.sleep = pick.choice((0, 0, 0, 1, 10, 100))
        self._changes += 1
        try:
            stream.steps[0].perform()
            stream.steps.popleft()
        except EmulationError as error:
            owner = next(owner for (owner, _), each in self.streams.items() if each is stream)
            with self._changed:
                self._fail(owner, error)

    def _chosen(self, ready: list[_Running]) -> _Running:
        name, pick, favoured = self.schedule.name, self.schedule.random, self._favoured
        oldest = min(ready, key=lambda each: each.turn)
        if name == "eager":
            return oldest
        if favoured not in ready or favoured.idle or (name == "random" and pick.random() < 0.01):
            favoured = oldest if name == "lazy" else pick.choice(ready)
            self._favoured = favoured
        return pick.choice(ready) if name == "random" and pick.random() < 0.1 else favoured

    def _run(self, running: _Running) -> None:
        machine, live = running.machine, running.machine.liveness
        if running.changes != self._changes:  # others have changed memory
            machine.progress += 1
            live.futile_polls = 0
            live.renew()
        before = machine.changes, machine.progress, live.futile_polls
        machine.quantum = SHORT if running.idle else LONG
        running.turn = self._turns
        try:
            running.stuck = next(running.rounds)
        except StopIteration:
            running.over = True
            with self._changed:
                self._changed.notify_all()
        except EmulationError as error:
            error.where = f"device {running.device}" + (error.where and f", {error.where}")
            running.over, running.error = True, error
            with self._changed:
                self._fail(running.device, error)
        if machine.changes != before[0]:
            live.futile_polls = running.idle = 0
            self._changes += 1
        elif machine.progress == before[1] or live.futile_polls > before[2]:
            running.idle += 1
        running.changes = self._changes

    def _stall(self, live: list[_Running], news: float) -> None:
        """Nothing can go on, unless a thread launches something, or copies."""
        with self._changed:
            if news != self._news:
                return
            if not self._nobody_comes():
                self._changed.wait(GRACE)
                return
            found = []
            for running in live:
                try:
                    text = str(running.machine.residents.deadlock())
                except EmulationError as fault:  # one that says more
                    text = str(fault)
                found.append(f"device {running.device}: {text}")
            found += [
                f"device {device}: stream {number} of copies {stream.steps[0].why}"
                for (device, number), stream in self.streams.items()
                if stream.steps
            ]
            found += [f"device {device}: waits for the others" for device in sorted(self._meeting)]
            away = {
                device
                for device, threads in self._of_device.items()
                if any(self._away[thread] is not None for thread in threads)
            }
            found += [
                f"device {device}: its thread has launched nothing for {PATIENCE:.0f} s"
                if device in away
                else f"device {device}: nothing is launched"
                for device in range(self.devices)
                if device not in self._meeting and all(device != each.device for each in live)
            ]
            error = Deadlock("no device can go on\n" + "\n".join(found))
            self._fail(0, error)
