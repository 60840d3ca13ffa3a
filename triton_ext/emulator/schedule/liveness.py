"""Whether a launch still gets anywhere, while its threads poll, spin, or wait with a time limit."""

from __future__ import annotations

QUANTUM = 4096
"""Instructions that a block runs before another one gets its turn."""
STALE = 8 * QUANTUM
"""Instructions without any change of memory or barriers, after which what threads may wait for is
done, though some of them run."""
NO_PROGRESS_LIMIT = 20_000_000
"""The same, after which a kernel is called hung."""
TIMEOUT_ROUNDS = 64
"""How often waits may give up, one after the other, until that is called a deadlock."""
FUTILE_POLLS = 16
"""Polls of global memory in a row, all futile, after which more clusters start, and the state of
those that run is watched."""
IDLE_POLLS = 8 * FUTILE_POLLS
"""The same, after which an asynchronous operation is done, since nothing else seems to go on. (A
poll that looks at a clock, to give up some day, never repeats its state.)"""
REPEATS = 16
"""Turns in a row that lead to nothing new, after which a launch is called a livelock."""


class Liveness:
    """The signs that a launch goes on.

    Attributes:
        futile_polls: how often in a row global memory was polled, and held what it had held before.
    """

    def __init__(self) -> None:
        self.futile_polls = 0
        self._polled: dict[tuple[object, ...], bytes] = {}
        self._states: set[tuple[int, ...]] = set()
        self._repeats, self._changes = 0, -1
        self._progress, self._since = -1, 0
        self._timed_out_at, self._time_outs = -1, 0

    # --------------------------------------------------------- polls of global memory

    def polled(self, poller: tuple[object, ...], value: bytes) -> None:
        """An address was polled.

        Args:
            poller: the block, the warp and the address.
            value: what it held.
        """
        same = self._polled.get(poller) == value
        self._polled[poller] = value
        self.futile_polls = self.futile_polls + 1 if same else 0

    @property
    def polling(self) -> bool:
        """Whether polls seem to wait for what does not run yet."""
        return self.futile_polls > FUTILE_POLLS

    @property
    def only_polling(self) -> bool:
        """Whether polls seem to wait for an operation that is under way."""
        return self.futile_polls > IDLE_POLLS

    # ------------------------------------------------------------------ states of warps

    def look(self, changes: int, states: set[tuple[int, ...]]) -> None:
        """See how the warps are after a turn: `Residents.states`. `changes`: how much has changed
        by now that others could wait for."""
        if changes != self._changes:
            self.renew()
            self._changes = changes
        self._repeats = self._repeats + 1 if states <= self._states else 0
        self._states |= states

    def renew(self) -> None:
        """Something has changed that warps may wait for: states seen before do not count."""
        self._states, self._repeats = set(), 0

    @property
    def livelocked(self) -> bool:
        """Whether the warps only poll, and repeat themselves."""
        return self.polling and self._repeats > REPEATS

    # ------------------------------------------------------------------------- progress

    def advances(self, progress: int, steps: int) -> bool:
        """Whether there was progress since this was asked before.

        Args:
            progress: changes of memory and barriers so far.
            steps: instructions so far.
        """
        if progress == self._progress:
            return False
        self._progress, self._since = progress, steps
        return True

    def stale(self, steps: int) -> bool:
        """Whether there was no progress for a while."""
        return steps - self._since >= STALE

    def hung(self, steps: int) -> bool:
        """Whether there was none for so long that there will be none."""
        return steps - self._since >= NO_PROGRESS_LIMIT

    def may_time_out(self, progress: int) -> bool:
        """Whether waits may give up once more: not if that has led nowhere again and again."""
        if self._timed_out_at != progress:
            self._timed_out_at, self._time_outs = progress, 0
        self._time_outs += 1
        return self._time_outs <= TIMEOUT_ROUNDS
