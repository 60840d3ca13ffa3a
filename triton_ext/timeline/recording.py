"""What is recorded of a cluster: for each warp items, and the tokens that join them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.buffers import named
from triton_ext.emulator.state.storage import Register
from triton_ext.timeline.costs import Kind, charge, kind_of
from triton_ext.timeline.sass import NO_TURNS, Cost
from triton_ext.timeline.trace import (
    ATOMIC,
    GLOBAL,
    PHASE,
    RUN,
    SHARED,
    SIGNAL,
    WAIT,
    ClusterTrace,
    Item,
    Line,
    Memory,
)

L1_SECTORS = 4096
"""How many sectors a block is taken to keep in the L1 cache: half of what an SM has."""


@dataclass
class _Run:
    """The instructions of a warp since its last item."""

    issued: float = 0.0
    turns: tuple[float, ...] = NO_TURNS
    chain: float = 0.0
    at: int = 0


@dataclass
class Warp:
    """A warp that is recorded.

    Attributes:
        items: what it has done so far.
        run: the instructions since the last item.
        clock, ready: where costs are taken from the PTX: the cycle, and the cycle at which each
            register can be read.
        loads: the tokens of loads that it has not waited for, and the registers that they write.
        polled: the instruction and the address that it polled last, and the number of items before.
        open, groups: the tokens of asynchronous work, by kind: of no group yet, and of each group.
    """

    items: list[Item] = field(default_factory=list)
    run: _Run = field(default_factory=_Run)
    clock: int = 0
    ready: dict[Register, int] = field(default_factory=dict)
    loads: list[tuple[int, frozenset[Register]]] = field(default_factory=list)
    polled: tuple[int, int, int] = (-1, -1, -1)
    open: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, deque[list[int]]] = field(default_factory=lambda: defaultdict(deque))

    def add(self, item: Item) -> None:
        """Add an item, after one for the instructions so far."""
        self.flush()
        self.items.append(item)

    def flush(self) -> None:
        """Make an item of the instructions so far."""
        run = self.run
        if run.issued or run.chain:
            self.items.append((RUN, run.at, run.issued, run.turns, run.chain))
            self.run = _Run()

    def chain(self, step: Step, kind: Kind) -> int:
        """The cycles from the issue of the instruction before to that of this one, in a warp alone:
        it waits for what it reads, and for what has the same name."""
        ready, clock = self.ready, self.clock
        begin = clock + (kind.issued > 0)
        for register in step.touched:
            begin = max(begin, ready.get(register, 0))
        for register in step.written:
            ready[register] = begin + kind.latency
        if kind.issued:
            self.clock = begin
            return begin - clock
        return 0

    def asks(self, cluster: Cluster, at: int, address: int) -> None:
        """Note that the warp polls an address. Of a loop that polls, one round is kept: how many
        there are depends on the order in which the emulator runs the blocks.
        """
        self.flush()
        if self.polled[:2] == (at, address):
            begin = self.polled[2]
            for item in self.items[begin:]:
                if item[0] in (SIGNAL, WAIT):
                    cluster.repeated[item[2]] = (at, id(self))
            del self.items[begin:]
        self.polled = (at, address, len(self.items))


class Block:
    """The record of a block: its warps, whether one loads, and the sectors in the L1 cache."""

    def __init__(self, warps: int) -> None:
        self.warps = [Warp() for _ in range(warps)]
        self.loading = False
        self.cached: dict[int, None] = {}

    def missed(self, sectors: set[int]) -> int:
        """How many of the sectors miss the L1 cache, which holds them from now on."""
        cached = self.cached
        new = sectors - cached.keys()
        cached.update(dict.fromkeys(new))
        while len(cached) > L1_SECTORS:
            del cached[next(iter(cached))]
        return len(new)

    def load(self, cluster: Cluster, number: int, registers: frozenset[Register]) -> int:
        """Make a token for the registers that a warp loads."""
        token = cluster.token(name="a load")
        self.warps[number].loads.append((token, registers))
        self.loading = True
        return token


class Cluster:
    """The record of a cluster."""

    def __init__(self, blocks: int, warps: int) -> None:
        self.blocks = [Block(warps) for _ in range(blocks)]
        self.needs: list[int] = []
        self.names: dict[int, str] = {}
        self.phases: dict[tuple[int, int], int] = {}
        self.copied: set[object] = set()
        self.kept: list[object] = []  # barriers, so that no other gets the id of one
        self.repeated: dict[int, tuple[int, int]] = {}  # tokens of the rounds of a loop that asks
        self.before = -1  # the token of the kernel before

        self._barriers: dict[str, str] = {}  # what they are called in messages

    def token(self, needs: int = 1, name: str = "") -> int:
        """Make a token. `name`: what a warp may wait for, in words."""
        self.needs.append(needs)
        if name:
            self.names[len(self.needs) - 1] = name
        return len(self.needs) - 1

    def phase(self, cta: Cta, barrier: Any, phase: int, needs: int) -> int:
        """The token of a phase of a barrier. `needs`: how many more contribute to it."""
        key = (id(barrier), phase)
        token = self.phases.get(key)
        if token is None:
            name = f"{self._called(cta, barrier)}{PHASE}{phase}"
            token = self.phases[key] = self.token(0, name)
            self.kept.append(barrier)
        self.needs[token] += needs
        return token

    def _called(self, cta: Cta, barrier: Any) -> str:
        """The name of a barrier in errors."""
        name, number = getattr(barrier, "name", ""), getattr(barrier, "number", None)
        name = name or ("the cluster's barrier" if number is None else f"barrier {number}")
        if name not in self._barriers:
            launch = cta.launch
            self._barriers[name] = named(name, launch.buffers, launch.buffers_start)
        return self._barriers[name]

    def trace(self) -> ClusterTrace:
        """The record, as a trace."""
        for block in self.blocks:
            for warp in block.warps:
                warp.flush()
        warps = [
            [_once(each.items, self.repeated) for each in block.warps] for block in self.blocks
        ]
        return ClusterTrace(warps, self.needs, self.names, self.before)


def _once(items: list[Item], repeated: dict[int, tuple[int, int]]) -> list[Item]:
    """The items without the rounds of loops in which another warp of the block polls."""
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for number, item in enumerate(items if repeated else ()):
        if item[0] in (SIGNAL, WAIT) and item[2] in repeated:
            loop = repeated[item[2]]
            ends[loop] = (ends.get(loop, (number, 0))[0], number + 1)
    loaded: set[int] = set()  # in these rounds; what is used after the last of them is there
    for begin, end in sorted(ends.values(), reverse=True):
        loaded |= {item[-1] for item in items[begin:end] if item[0] in (SHARED, GLOBAL, ATOMIC)}
        del items[begin:end]
    return [item for item in items if item[0] != WAIT or item[2] not in loaded]


@dataclass
class Bringing:
    """The barriers' phases to which a copy, or another operation, contributes.

    Attributes:
        items: how many items have these tokens.
        tokens: the tokens of the phases, one for each block of a multicast; `ranks`: these blocks.
    """

    items: int = 1
    tokens: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)


class Text:
    """The instructions of a program, and what they cost.

    Attributes:
        lines: the executed instructions; `numbers`: their indices there, by PTX line.
    """

    def __init__(self, costs: Mapping[int, Cost]) -> None:
        self._costs = costs
        self._kinds: dict[int, Kind] = {}
        self.lines: list[Line] = []
        self.numbers: dict[int, int] = {}

    @property
    def binary(self) -> bool:
        """Whether the costs come from a binary."""
        return bool(self._costs)

    def known(self, step: Step) -> Kind:
        kind = self._kinds.get(id(step))
        if kind is None:
            at = step.instruction
            kind = self._kinds[id(step)] = kind_of(at, len(self.lines))
            if self._costs:
                charge(kind, self._costs.get(at.line))
            self.numbers[at.line] = len(self.lines)
            self.lines.append(Line(str(at), str(at.source) if at.source else ""))
        return kind


class Pieces:
    """The pieces of global memory that items name, by their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.all: list[Memory] = []

    def number(self, cta: Cta, address: int, pitch: int = 0) -> int:
        found = cta.launch.memory.locate(address, 1)
        number = self._numbers.get(found.start)
        if number is None:
            number = self._numbers[found.start] = len(self.all)
            self.all.append(Memory(found.name.removeprefix("argument "), found.size, pitch))
        return number


class Recording:
    """The record of a launch.

    Attributes:
        clusters: the record of each cluster, by its number in the grid.
        text, pieces: the instructions of the program, and the pieces of global memory.
        kind, loaded: the kind of the instruction that runs, and the registers that it loads.
        bringing: what the copy contributes to that runs, or ran last.
        columns: how many columns of tensor memory a block allocates.
    """

    def __init__(self, costs: Mapping[int, Cost]) -> None:
        self.clusters: dict[int, Cluster] = {}
        self.text, self.pieces = Text(costs), Pieces()
        self.kind, self.loaded = Kind(0, 0), frozenset[Register]()
        self.bringing, self.columns = Bringing(), 0
