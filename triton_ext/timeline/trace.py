"""A recorded run: for each warp, what it asked of the units of its SM, in order.

An item is a tuple that begins with one of the kinds below and the number of the PTX instruction.
Who waits for whom goes by tokens, numbered within a cluster: a token is done when as many items as
`ClusterTrace.needs` says have contributed to it. Phases of barriers, products, loads and copies are
tokens, so that a replay keeps the order of the run, whatever time it takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Item = tuple[Any, ...]

RUN = 0
"""(RUN, at, issued, turns, chain): instructions; what they take of each of `sass.PIPES`; the cycles
that one warp alone takes, as each waits for what it reads."""
SHARED = 1
"""(SHARED, at, wavefronts, token): a load of shared memory, and its token; a store, and -1."""
GLOBAL = 2
"""(GLOBAL, at, sectors, hits, memory, token): sectors of 32 bytes from the L2 cache, and from the
L1 cache; the number of the memory; the token of a load or cp.async, or -1 of a store."""
PRODUCT = 3
"""(PRODUCT, at, n, element bytes, whether A is in registers, token): 64 x n x 32 bytes of K."""
COPY = 4
"""(COPY, at, bytes inside, bytes, rows, memory, tokens, ranks, again, absent): TMA into shared
memory; the tokens are the phases that it completes, one of each block of a multicast, which are
`ranks` of the cluster; `again`: the cluster has copied the same before; `absent`: of the rows, how
many lie outside of the tensor."""
STORE = 5
"""(STORE, at, bytes, rows, memory, token of the read, token of the write): TMA out of it."""
SIGNAL = 6
"""(SIGNAL, at, token, where): an arrival at a barrier: NEAR, FAR (of another block), NAMED
(``bar.sync`` and its kind), or CLUSTER (that of the cluster)."""
WAIT = 7
"""(WAIT, at, token)."""
ATOMIC = 8
"""(ATOMIC, at, sectors, memory, releases, token): in global memory; whether what the block has
stored must be there before."""
TENSOR = 9
"""(TENSOR, at, m, n, element bytes, blocks, read): tcgen05.mma, m x n x 32 bytes of K by the tensor
cores of one block or a pair, each of which reads so many bytes of shared memory; tcgen05.cp, whose
m and n are 0."""
COMMIT = 10
"""(COMMIT, at, tokens): each gets a contribution once what the tensor cores have to do is done."""
TMEM = 11
"""(TMEM, at, columns, token): a load of 32 lanes of tensor memory, its token; a store, and -1."""
SEND = 12
"""(SEND, at, bytes, tokens): a warp's st.async or red.async, into blocks of the cluster; the tokens
are the phases that count the bytes."""

NEAR, FAR, NAMED, CLUSTER = range(4)

NAMES = {
    RUN: "instructions", SHARED: "shared memory", GLOBAL: "global memory", PRODUCT: "wgmma",
    COPY: "TMA load", STORE: "TMA store", SIGNAL: "arrival", WAIT: "wait", ATOMIC: "atomic",
    TENSOR: "tcgen05", COMMIT: "commit", TMEM: "tensor memory", SEND: "st.async",
}  # fmt: skip


PHASE = ", phase "
"""Between a barrier and the number of its phase, in the name of a token."""
LINE_BYTES, SECTOR_BYTES = 128, 32
GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, modulo 1, lie spread however many there are."""


@dataclass(frozen=True)
class Line:
    """An instruction of a program.

    Attributes:
        text: the instruction in PTX.
        source: the file and line in the kernel's source, or "".
    """

    text: str
    source: str

    @property
    def location(self) -> str:
        """Its location, in words."""
        return self.source or self.text.split()[0]


class Aligned(NamedTuple):
    """The fraction of the rows of boxes, 128 bytes each, that lies in one line, and the fraction
    that begins with a sector."""

    lines: float
    sectors: float


ALIGNED = Aligned(1.0, 1.0)


@dataclass(frozen=True)
class Memory:
    """A piece of global memory.

    Attributes:
        name: the name of the kernel's argument.
        size: its size in bytes.
        pitch: for memory of which TMA copies boxes, the bytes from one row to the next; else 0.
    """

    name: str
    size: int
    pitch: int = 0

    @property
    def aligned(self) -> Aligned:
        """How the rows of TMA boxes are aligned in it."""
        return Aligned(
            math.gcd(self.pitch, LINE_BYTES) / LINE_BYTES,
            math.gcd(self.pitch, SECTOR_BYTES) / SECTOR_BYTES,
        )


@dataclass
class ClusterTrace:
    """What the blocks of one cluster did.

    Attributes:
        warps: the items of each warp of each block.
        needs: for each token, how many contributions complete it.
        names: what the tokens are that warps wait for, in words.
        before: the token of the kernel before (``griddepcontrol.wait``), or -1.
    """

    warps: list[list[list[Item]]]
    needs: list[int]
    names: dict[int, str] = field(default_factory=dict)
    before: int = -1

    def items(self) -> Iterator[Item]:
        """The items of all warps."""
        for block in self.warps:
            for warp in block:
                yield from warp

    @property
    def length(self) -> int:
        """How many items it has."""
        return sum(len(warp) for block in self.warps for warp in block)


@dataclass
class Trace:
    """What a launch did.

    Attributes:
        name: the kernel's name.
        grid, cluster: their sizes in blocks, as (x, y, z).
        threads: how many a block has.
        shared_bytes: how many a block has.
        registers: how many a thread has; 0 if that is not known.
        columns: how many columns of tensor memory a block allocates.
        binary: whether the costs of instructions come from the binary; else, where nothing lists
            the binary, from the PTX.
        lines: the program, whose instructions items name by their indices.
        memories: the pieces of global memory that items name.
        clusters: the clusters that were recorded, by their numbers in the grid.
    """

    name: str
    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    threads: int
    shared_bytes: int
    registers: int
    lines: list[Line]
    memories: list[Memory]
    clusters: dict[int, ClusterTrace]
    columns: int = 0
    binary: bool = True

    @property
    def blocks_each(self) -> int:
        """How many blocks a cluster has."""
        return math.prod(self.cluster)

    @property
    def number(self) -> int:
        """How many clusters the grid has."""
        return math.prod(self.grid) // self.blocks_each

    def stand_ins(self, number: int) -> list[ClusterTrace]:
        """Recorded clusters that stand for the `number` clusters that some SMs run one after the
        other: evenly from the shortest to the longest, which comes last."""
        every = sorted(self.clusters.values(), key=lambda cluster: cluster.length)
        return [every[-(-(n + 1) * len(every) // number) - 1] for n in range(number)]


def sampled(clusters: int, slots: int) -> list[int]:
    """Which clusters of a grid are recorded: the first, the middle and the last one of the first
    wave, and if there are more waves, six that are spread over the grid.

    Args:
        slots: how many clusters the GPU runs at a time.
    """
    first = min(clusters, slots)
    spread = {int((n * GOLDEN % 1) * clusters) for n in range(1, 7)} if clusters > first else set()
    return sorted({0, first // 2, first - 1} | spread)


def brought_by(item: Item) -> Sequence[int]:
    """The tokens to which an item contributes when its data have arrived."""
    where = {COPY: 6, SEND: 3}.get(item[0])
    found: Sequence[int] = item[where] if where else item[5:7] if item[0] == STORE else ()
    return found


def loads_of(item: Item) -> Iterator[tuple[int, float, int]]:
    """What an item loads: a piece of memory, the bytes, and in how many rows of a box they are."""
    if item[0] == COPY and item[5] >= 0:
        yield item[5], item[2], item[4] - item[9]
    elif item[0] == GLOBAL and item[5] >= 0:
        yield item[4], item[2] * SECTOR_BYTES, 0
    elif item[0] == ATOMIC:
        yield item[3], item[2] * SECTOR_BYTES, 0
