"""Turns of launches, and of copies beside them: who has the next one, as a schedule says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from triton_ext.emulator.errors import EmulationError
from triton_ext.emulator.schedule.machine import SHORT, Machine
from triton_ext.emulator.schedule.schedule import Schedule

LONG = 512
"""Instructions that a block runs at most in a turn."""
IDLE_TURNS = 4
"""Futile turns in a row, after which a launch counts as one that waits."""


@dataclass(eq=False)
class Running:
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


class Turns:
    """Those of all launches under way.

    Args:
        schedule: says who has the next one.
        ended: called with a launch's device, and what ended it, or None; or a copy's, and that.

    Attributes:
        running: the launches.
        streams: the copies, by device and number.
    """

    def __init__(
        self, schedule: Schedule, ended: Callable[[int, BaseException | None], None]
    ) -> None:
        self._schedule, self._ended = schedule, ended
        self.running: list[Running] = []
        self.streams: dict[tuple[int, int], Stream] = {}
        self._favoured: Running | None = None
        self._turns = self._changes = 0

    @property
    def live(self) -> list[Running]:
        """The launches that are not over."""
        return [each for each in tuple(self.running) if not each.over]

    @property
    def copying(self) -> bool:
        """Whether a copy is still to be made."""
        return any(stream.steps for stream in self.streams.values())

    def remove(self, running: Running) -> None:
        """A launch has no more."""
        self.running.remove(running)
        if running is self._favoured:
            self._favoured = None

    def take(self) -> bool:
        """Let one launch run, or make a part of a copy; whether there was one that can go on."""
        self._turns += 1
        live = self.live
        copying = [each for each in tuple(self.streams.values()) if each.ready]
        if copying and self._copies_now(live, copying):
            return True
        ready = [each for each in live if not each.stuck or each.changes != self._changes]
        if ready:
            self._run(self._chosen(ready))
        elif copying:
            self._copy(self._schedule.random.choice(copying))
        return bool(ready or copying)

    def _copies_now(self, live: list[Running], copying: list[Stream]) -> bool:
        if self._schedule.name == "random":
            for stream in copying:
                stream.sleep -= 1
            copying = [stream for stream in copying if stream.sleep <= 0]
        elif self._schedule.name == "lazy" and any(each.idle < IDLE_TURNS for each in live):
            return False
        if copying:
            self._copy(self._schedule.random.choice(copying))
        return bool(copying)

    def _copy(self, stream: Stream) -> None:
        pick = self._schedule.random
        stream.sleep = pick.choice((0, 0, 0, 1, 10, 100))
        self._changes += 1
        try:
            stream.steps[0].perform()
            stream.steps.popleft()
        except EmulationError as error:
            owner = next(owner for (owner, _), each in self.streams.items() if each is stream)
            self._ended(owner, error)

    def _chosen(self, ready: list[Running]) -> Running:
        name, pick, favoured = self._schedule.name, self._schedule.random, self._favoured
        oldest = min(ready, key=lambda each: each.turn)
        if name == "eager":
            return oldest
        if favoured not in ready or favoured.idle or (name == "random" and pick.random() < 0.01):
            favoured = oldest if name == "lazy" else pick.choice(ready)
            self._favoured = favoured
        return pick.choice(ready) if name == "random" and pick.random() < 0.1 else favoured

    def _run(self, running: Running) -> None:
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
            self._ended(running.device, None)
        except EmulationError as error:
            error.where = f"device {running.device}" + (error.where and f", {error.where}")
            running.over, running.error = True, error
            self._ended(running.device, error)
        if machine.changes != before[0]:
            live.futile_polls = running.idle = 0
            self._changes += 1
        elif machine.progress == before[1] or live.futile_polls > before[2]:
            running.idle += 1
        running.changes = self._changes
