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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from triton_ext.emulator.errors import Deadlock, EmulationError, PeerStopped
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.schedule.turns import Running, Step, Stream, Turns

GRACE = 0.1
"""Seconds for which launches wait for a thread that is on its way to the next one."""
PATIENCE = 60.0
"""Seconds after which a thread that never comes counts as one that has ended."""
LATE = 2.0
"""The same, of a GPU whose thread has not even begun."""


class Threads:
    """The threads that launch, of each GPU: those that are away, and those that wait here.

    Attributes:
        of_device: by GPU.
        news: when one of them came or went last.
    """

    def __init__(self, devices: int) -> None:
        self.of_device: dict[int, list[int]] = {device: [] for device in range(devices)}
        self._away: dict[int, float | None] = {}  # since when; None of those that wait here
        self.begun: set[int] = set()
        self._waiters: list[Callable[[], bool]] = []
        self.news = time.monotonic()

    @property
    def number(self) -> int:
        """How many there are; one that works on two GPUs counts for both."""
        return sum(map(len, self.of_device.values()))

    def add(self, device: int, thread: int) -> None:
        """A thread is going to work on a GPU."""
        self.of_device[device].append(thread)
        self.begun.add(device)
        self._away[thread] = self.news = time.monotonic()

    def remove(self, device: int, thread: int) -> None:
        """It does no longer."""
        self.of_device[device].remove(thread)
        if not any(thread in threads for threads in self.of_device.values()):
            del self._away[thread]
        self.news = time.monotonic()

    @contextmanager
    def waiting(self, over: Callable[[], bool]) -> Iterator[None]:
        """Within it the calling thread waits here for something to be over."""
        thread = threading.get_ident()
        known = thread in self._away
        self._away[thread], self.news = None, time.monotonic()
        self._waiters.append(over)
        try:
            yield
        finally:
            self._waiters.remove(over)
            self.news = time.monotonic()
            if known:
                self._away[thread] = self.news
            else:
                del self._away[thread]

    @property
    def gathered(self) -> bool:
        """Whether no thread is on its way."""
        if any(over() for over in self._waiters):
            return False
        away = [since for since in self._away.values() if since is not None]
        return all(time.monotonic() - since > GRACE for since in away)

    @property
    def nobody_comes(self) -> bool:
        """Whether no thread is left that could launch something, or copy."""
        away = any(since is not None for since in self._away.values())
        missing = len(self.begun) < len(self.of_device)
        return time.monotonic() - self.news > (PATIENCE if away else LATE if missing else 0)

    @property
    def devices_away(self) -> set[int]:
        """The GPUs a thread of which is away."""
        threads = self.of_device.items()
        return {d for d, those in threads if any(self._away[each] is not None for each in those)}


class Together:
    """What runs on several GPUs.

    Args:
        devices: their number.
        schedule: that of the launches among each other.
    """

    def __init__(self, devices: int, schedule: Schedule) -> None:
        self.devices = devices
        self._changed = threading.Condition()
        self._threads, self._turns = Threads(devices), Turns(schedule, self._ended)
        self._driving = False
        self._failure: tuple[int, BaseException] | None = None
        self._met = 0  # how often all have met
        self._meeting: set[int] = set()

    # ------------------------------------------------------------------ the threads

    def expect(self, device: int, thread: int) -> None:
        """A thread is going to work on a GPU."""
        with self._changed:
            if not self._threads.begun and not self._turns.running:
                self._failure = None
            self._threads.add(device, thread)
            self._changed.notify_all()

    def leave(self, device: int, thread: int, error: BaseException | None) -> None:
        """It does no longer; the last one waits for the copies, and takes the failure, if there was
        one, with it. `error`: what it ended with: the others are stopped."""
        threads = self._threads
        with self._changed:
            if error is not None:
                self._fail(device, error)
            elif threads.number == 1:
                self._until(device, lambda: not self._turns.copying)
            threads.remove(device, thread)
            failure, last = self._failure, not threads.number
            if last:
                self._failure = None
                threads.begun.clear()
            self._changed.notify_all()
        if last and error is None and failure is not None:
            raise failure[1]

    def stop(self, error: BaseException) -> None:
        """End all that is under way."""
        self._ended(0, error)

    def settle(self, then: Callable[[], None]) -> None:
        """Do `then` if no thread works on a GPU, and nothing is under way."""
        with self._changed:
            if not (self._threads.number or self._turns.running or self._turns.copying):
                then()

    def _ended(self, device: int, error: BaseException | None) -> None:
        """A launch is over, or something has failed."""
        with self._changed:
            if error is not None:
                self._fail(device, error)
            self._changed.notify_all()

    def _fail(self, device: int, error: BaseException) -> None:
        if self._failure is None:
            self._failure = device, error
            for stream in self._turns.streams.values():
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
        running = Running(machine, device, machine.rounds())
        with self._changed:
            if not self._turns.running and not self._threads.number:
                self._failure = None  # of a launch before, of which nobody else is to be told
            self._check(device)
            self._turns.running.append(running)
            try:
                self._until(device, lambda: running.over)
            finally:
                self._turns.remove(running)
            if running.error is not None:
                raise running.error
            self._check(device)

    def drain(self, device: int) -> None:
        """Wait for a GPU's copies."""
        with self._changed:
            self._check(device)
            mine = [stream for (owner, _), stream in self._turns.streams.items() if owner == device]
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
                    if self._turns.copying or self._turns.running:
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
            self._turns.streams.setdefault((device, number), Stream()).steps.extend(steps)
            self._threads.news = time.monotonic()
            self._changed.notify_all()

    def _until(self, device: int, over: Callable[[], bool]) -> None:
        """Run what is under way, or let another thread do it, until it is over; with the lock."""

        def ended() -> bool:
            return self._failure is not None or over()

        try:
            with self._threads.waiting(ended), np.errstate(all="ignore"):
                while not ended():
                    if self._driving or not self._threads.gathered:
                        self._changed.wait(GRACE)
                        continue
                    self._driving = True
                    try:
                        self._drive(device, ended)
                    finally:
                        self._driving = False
                        self._changed.notify_all()
        finally:
            self._changed.notify_all()

    def _drive(self, device: int, ended: Callable[[], bool]) -> None:
        """Run what is under way, with the lock, which is free during turns."""
        while not ended() and self._threads.gathered:
            news = self._threads.news
            self._changed.release()
            try:
                if not self._turns.take():
                    self._stall(news)
            except BaseException as error:  # Ctrl-C, or a mistake of the emulator
                self._ended(device, error)
                raise
            finally:
                self._changed.acquire()

    def _stall(self, news: float) -> None:
        """Nothing can go on, unless a thread launches something, or copies."""
        with self._changed:
            if news != self._threads.news:
                return
            if not self._threads.nobody_comes:
                self._changed.wait(GRACE)
                return
            found, live = [], self._turns.live
            for running in live:
                try:
                    text = str(running.machine.residents.deadlock())
                except EmulationError as fault:  # one that says more
                    text = str(fault)
                found.append(f"device {running.device}: {text}")
            found += [
                f"device {device}: stream {number} of copies {stream.steps[0].why}"
                for (device, number), stream in self._turns.streams.items()
                if stream.steps
            ]
            found += [f"device {device}: waits for the others" for device in sorted(self._meeting)]
            away = self._threads.devices_away
            found += [
                f"device {device}: its thread has launched nothing for {PATIENCE:.0f} s"
                if device in away
                else f"device {device}: nothing is launched"
                for device in range(self.devices)
                if device not in self._meeting and all(device != each.device for each in live)
            ]
            error = Deadlock("no device can go on\n" + "\n".join(found))
            self._fail(0, error)
