"""A block's tensor memory: what its cells hold, who wrote and who reads them, what is allocated.

Every cell of 32 bits knows its last write and its last read, as *stamps*: the event and the agent
in one integer. What a tcgen05.st wrote, or a tcgen05.ld reads, and its warp has not waited for is
stamped with an event that no clock ever reaches, until the wait replaces it by an event of the
warp. So whoever touches such a cell, or one of the tensor core's whose commit it has not waited
for, is caught whatever the schedule does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.errors import SynchronizationFault, UninitializedRead
from triton_ext.emulator.state.stamps import GRANULE, Numbers, Stamps
from triton_ext.emulator.state.tensor_memory_columns import Allocation, Columns
from triton_ext.emulator.state.undefined import UNWRITTEN, Origins
from triton_ext.hardware.tensor_memory import MOST_COLUMNS, TMEM_LANES
from triton_ext.ptx.parse import Instruction

Words = NDArray[np.uint32]
Seen = NDArray[np.int64]
"""(agents of the cluster,): the last event of each of them that some agent has seen."""
Cells = tuple[Any, ...]
"""Indexes the (lanes, columns) grid: a slice or an array for each; or one array of flat indices,
``lane * MOST_COLUMNS + column``, alone."""
Access = Literal["load", "store"]

AGENT_BITS = 12
AGENT_MASK = (1 << AGENT_BITS) - 1
NEVER = 1 << 50
"""The event in the stamp of an access that its warp has not waited for."""
EMPTY = -1 << AGENT_BITS
"""The stamp of a cell that nothing wrote: an event before all others."""


def stamp(event: int, agent: Any) -> Any:
    """An event and its agent, or an array of agents, in one integer."""
    return (event << AGENT_BITS) | agent


_GROUPS = TMEM_LANES // GRANULE
_OFFSETS = np.arange(TMEM_LANES)[:, None] + np.arange(MOST_COLUMNS) * TMEM_LANES
"""The place of each cell among the stamps: 16 lanes of a column have one as a rule."""

_NUMBERS = np.arange(TMEM_LANES * MOST_COLUMNS).reshape(TMEM_LANES, MOST_COLUMNS)


@lru_cache(1024)
def _pieces(lanes: tuple[int, int] | bytes, first: int, last: int) -> Any:
    """The groups of 16 lanes, by columns, that cells are; None if they are others.

    Args:
        lanes: the first, and the one past the last; or the bytes of an array of their numbers.
        first, last: the columns, likewise.
    """
    numbers = np.arange(*lanes) if isinstance(lanes, tuple) else np.frombuffer(lanes, np.int64)
    groups = np.unique(numbers // GRANULE)
    if len(groups) * GRANULE != len(numbers) or len(np.unique(numbers)) != len(numbers):
        return None
    if len(groups) == _GROUPS:
        return slice(first * _GROUPS, last * _GROUPS)
    found = (np.arange(first, last)[:, None] * _GROUPS + groups).reshape(-1)
    found.flags.writeable = False
    return found


def _whole(cells: Cells) -> Any:
    """As `_pieces`, of any cells."""
    if len(cells) == 1 or not isinstance(cells[1], slice):
        return None
    lanes, (first, last, _) = cells[0], cells[1].indices(MOST_COLUMNS)
    if isinstance(lanes, slice):
        low, high, _ = lanes.indices(TMEM_LANES)
        return _pieces((low, high), first, last)
    return _pieces(lanes.astype(np.int64).tobytes(), first, last) if lanes.ndim == 1 else None


def _view(array: NDArray[Any], cells: Cells) -> Any:
    return array.reshape(-1)[cells[0]] if len(cells) == 1 else array[cells]


def _assign(array: NDArray[Any], cells: Cells, values: Any) -> None:
    if len(cells) == 1:
        array.reshape(-1)[cells[0]] = values
    else:
        array[cells] = values


def numbers(cells: Cells) -> NDArray[np.int64]:
    """The number of each cell, in their shape: ``lane * MOST_COLUMNS + column``."""
    found: NDArray[np.int64] = _view(_NUMBERS, cells)
    return found


def _stamps(table: Stamps, cells: Cells, each: bool = False) -> Numbers:
    """The stamps of cells: of each, in their order, or as few as say the same."""
    pieces = None if each else _whole(cells)
    if pieces is not None:
        return table.of(pieces)
    offsets = _view(_OFFSETS, cells)
    return table.get(offsets.reshape(-1), 1).reshape(offsets.shape)


def _put(table: Stamps, cells: Cells, number: int) -> None:
    pieces = _whole(cells)
    if pieces is None:
        table.put(_view(_OFFSETS, cells).reshape(-1), 1, number)
    else:
        table.fill(pieces, number)


def _first(cells: Cells, wrong: NDArray[np.bool_]) -> tuple[int, int]:
    column, lane = divmod(int(_view(_OFFSETS, cells)[wrong][0]), TMEM_LANES)
    return lane, column


class Names(NamedTuple):
    """How faults call what they are about.

    Attributes:
        agent: an agent, in words.
        culprit: see `triton_ext.emulator.state.missing_orders.MissingOrders.culprit`.
        undefined: makes the fault of the use of an undefined value.
    """

    agent: Callable[[int], str]
    culprit: Callable[..., str]
    undefined: Callable[[int, str], UninitializedRead]


class TensorMemory:
    """The tensor memory of one block.

    Attributes:
        columns: which of them are allocated.
        data: the words, (lanes, columns).
        written, read: the stamps of the last write and the last read of each cell.
        products: if it is asked for, by the event of each product into it the instruction.
    """

    def __init__(self, columns: int, names: Names) -> None:
        self.columns, self._names = Columns(columns), names
        grid = (TMEM_LANES, MOST_COLUMNS)
        self.data: Words = np.zeros(grid, np.uint32)
        self.written = Stamps(MOST_COLUMNS * _GROUPS, EMPTY)
        self.read = Stamps(MOST_COLUMNS * _GROUPS)
        self.products: dict[int, Instruction] = {}
        self._pending: dict[tuple[Access, int], list[Cells]] = {}
        self._origins: Origins | None = None  # of each cell's value, once some were undefined

    def free(self, allocation: Allocation, seen: Seen) -> None:
        """Give columns back.

        Args:
            seen: what the warp has seen.

        Raises:
            SynchronizationFault: something that the warp has not seen still uses them.
        """
        cells = (slice(None), slice(allocation.column, allocation.column + allocation.columns))
        self._ordered(cells, "store", seen, "freed")
        self._ordered(cells, "load", seen, "freed")
        self.columns.release(allocation)
        self.written.fill(_whole(cells), EMPTY)
        self.read.fill(_whole(cells), 0)

    # ------------------------------------------------------------------ access

    def load(self, cells: Cells, seen: Seen, name: str) -> Words:
        """What cells hold.

        Args:
            seen: what the reader has seen.
            name: the reader's name, in errors.

        Raises:
            UninitializedRead: nothing wrote one of them, or what did was undefined.
            SynchronizationFault: nothing orders the write before.
        """
        self._ordered(cells, "store", seen, f"read by {name}", needs_value=True)
        if self._origins is not None:
            found = _view(self._origins, cells)
            if found.any():
                raise self._names.undefined(
                    int(found.max()), f"the value is stored, and read by {name}"
                )
        return self.peek(cells)

    def origins(self, cells: Cells, seen: Seen, name: str) -> Origins:
        """The origins of what cells hold, in their shape: `UNWRITTEN` where nothing wrote them.

        Arguments are those of `load`.

        Raises:
            SynchronizationFault: nothing orders the write before.
        """
        self._ordered(cells, "store", seen, f"read by {name}")
        unwritten = _stamps(self.written, cells, each=True) < 0
        stored = 0 if self._origins is None else _view(self._origins, cells)
        return np.where(unwritten, np.int64(UNWRITTEN), stored)

    def mark_undefined(self, cells: Cells, origins: Origins) -> None:
        """What cells were just written with is undefined; `origins`: in their shape."""
        if self._origins is None:
            self._origins = np.zeros(self.data.shape, np.int64)
        _assign(self._origins, cells, origins)

    def settled(self, cells: Cells, seen: Seen) -> bool:
        """Whether one event wrote all of the cells, and all readers have seen it; their values are
        defined. `seen`: (readers, agents of the cluster): what each has seen."""
        here = _stamps(self.written, cells)
        low = int(here.min())
        if self._origins is not None or low < 0 or low != int(here.max()):
            return False
        return bool((seen[:, low & AGENT_MASK] >= low >> AGENT_BITS).all())

    def peek(self, cells: Cells) -> Words:
        """What cells hold; the caller has checked that it may read them."""
        values: Words = _view(self.data, cells)
        return values

    def check_store(self, cells: Cells, seen: Seen, name: str, loaded: bool = False) -> None:
        """Raise SynchronizationFault unless the writer has seen all that used the cells. `loaded`:
        the writer has loaded the cells, and so has seen their last write."""
        if not loaded:
            self._ordered(cells, "store", seen, f"written by {name}")
        self._ordered(cells, "load", seen, f"written by {name}")

    def poke(self, cells: Cells, values: Any) -> None:
        """Write cells; the caller has checked that it may."""
        _assign(self.data, cells, values)
        if self._origins is not None:
            _assign(self._origins, cells, 0)

    def note(self, access: Access, cells: Cells, event: int) -> None:
        """Stamp the cells as written or read."""
        _put(self._table(access), cells, event)

    def _table(self, access: Access) -> Stamps:
        return self.written if access == "store" else self.read

    def users(self, cells: Cells, fenced: Seen, *, writes: bool) -> list[tuple[int, int]]:
        """The agents, and their events, that have used cells last, and not before `fenced`.
        `writes`: whether readers count, beside writers."""
        found: set[int] = set()
        for table in (self.written, self.read)[: 1 + writes]:
            here = _stamps(table, cells)
            found.update(np.unique(here[here >> AGENT_BITS > fenced[here & AGENT_MASK]]).tolist())
        return [(each & AGENT_MASK, each >> AGENT_BITS) for each in found if each > 0]

    # ------------------------------------------------- what warps have to wait for

    def issue(self, access: Access, agent: int, cells: Cells) -> None:
        """A warp has executed a tcgen05.ld or st of these cells, and not waited for it."""
        table = self._table(access)
        _put(table, cells, stamp(NEVER, agent))
        self._pending.setdefault((access, agent), []).append(cells)

    def complete(self, access: Access, agent: int, event: int) -> None:
        """The warp has waited for its tcgen05.ld or st; that is `event`."""
        for cells in self._pending.pop((access, agent), []):
            self._settle(access, agent, event, cells)

    def complete_load(self, agent: int, event: int, cells: Cells) -> None:
        """The warp has used a register that one tcgen05.ld wrote: it has read its cells."""
        pending = self._pending.get(("load", agent), [])
        for number, each in enumerate(pending):
            if each is cells:
                del pending[number]
                self._settle("load", agent, event, cells)
                return

    def _settle(self, access: Access, agent: int, event: int, cells: Cells) -> None:
        table = self._table(access)
        pending, done = stamp(NEVER, agent), stamp(event, agent)
        here = _stamps(table, cells)
        if (here == pending).all():
            _put(table, cells, done)
            return
        offsets = _view(_OFFSETS, cells).reshape(-1)
        mine = offsets[table.get(offsets, 1)[:, 0] == pending]
        table.put(mine, 1, done)

    def _ordered(
        self, cells: Cells, access: Access, seen: Seen, what: str, needs_value: bool = False
    ) -> None:
        table = self._table(access)
        here = _stamps(table, cells)
        low, high = int(here.min()), int(here.max())
        if low < 0 and needs_value:
            here = _stamps(table, cells, each=True)
            lane, column = _first(cells, here < 0)
            why = f"tensor memory lane {lane}, column {column} is {what}, and nothing wrote it"
            raise UninitializedRead(why)
        if low == high and low >> AGENT_BITS <= seen[low & AGENT_MASK]:
            return
        late = here >> AGENT_BITS > seen[here & AGENT_MASK]
        if late.any():
            here = _stamps(table, cells, each=True)
            late = here >> AGENT_BITS > seen[here & AGENT_MASK]
            self._late(cells, here, late, access, what)

    def _late(
        self, cells: Cells, here: Numbers, late: NDArray[np.bool_], access: Access, what: str
    ) -> None:
        lane, column = _first(cells, late)
        first = int(here[late][0])
        name = self._names.agent(first & AGENT_MASK)
        verb = "was written by" if access == "store" else "may still be read by"
        if first >> AGENT_BITS == NEVER:
            wait = {"load": "ld", "store": "st"}[access]
            why = f"that warp has not executed tcgen05.wait::{wait} yet"
        elif name.startswith("the tensor core"):
            why = "nothing waited for its completion (tcgen05.commit, then the mbarrier)"
        else:
            why = "nothing orders the two" + self._names.culprit(
                first & AGENT_MASK, first >> AGENT_BITS, read=access == "load"
            )
        why = f"tensor memory lane {lane}, column {column} is {what}, and {verb} {name}: {why}"
        raise SynchronizationFault(why)


def unread(memory: TensorMemory, cells: Cells) -> tuple[int, int, int] | None:
    """A lane, its column and the event of its last write, which nobody has read since; None if all
    of the cells have been read."""
    written, read = (
        _stamps(table, cells, each=True) >> AGENT_BITS for table in (memory.written, memory.read)
    )
    lost = (written > 0) & (read < written)
    return (*_first(cells, lost), int(written[lost][0])) if lost.any() else None
