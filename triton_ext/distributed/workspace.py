"""Memory that the ranks of a group see of each other, and copies into it.

A rank has sets of memory, each with flags. Calls take two sets in turn. A call ends only after
every rank has begun it (it waits for all that others send), and what a rank sends follows all that
it launched before; so that nobody sends to a set before the call two earlier, which used it, has
ended everywhere, and no call needs a barrier. A graph, whose launches are replayed with the set
that they were captured with, has a third set, and a barrier.
"""

from __future__ import annotations

import atexit
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from triton_ext.distributed import streams
from triton_ext.errors import LayoutError, PeerError
from triton_ext.kernels.device.peers import TIMEOUT

if TYPE_CHECKING:
    from triton_ext.emulator.host.devices import EmulatedGpus

FLAGS = 1 << 12
"""How many words (int32) a set has for flags and counters."""
COUNTERS = FLAGS // 2
"""Which of them is the first counter."""
ALL = 1 << 30
"""More than any kernel counts: the value of a flag that a copy engine raises."""
_GRANULE = 1 << 24
"""Sets grow by multiples of so many bytes."""


@dataclass(frozen=True)
class Section:
    """One set of memory, as one rank sees it.

    Attributes:
        flags: of each rank, (FLAGS,) int32; zero when a call begins.
        memory: of each rank, (bytes,) uint8.
    """

    flags: tuple[Tensor, ...]
    memory: tuple[Tensor, ...]
    _made: dict[Any, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def tensor(
        self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, start: int = 0
    ) -> Tensor:
        """A rank's memory from byte `start` on, as a contiguous tensor."""
        key = rank, shape, dtype, start
        found = self._made.get(key)
        if found is None:
            end = start + math.prod(shape) * dtype.itemsize
            found = self._made[key] = self.memory[rank][start:end].view(dtype).view(*shape)
        return found


class Count(NamedTuple):
    """What a kernel counts while it makes a parcel.

    Attributes:
        words, which: the counter.
        complete: its value when all is made; it is set to 0 then.
    """

    words: Tensor
    which: int
    complete: int


class Parcel(NamedTuple):
    """What a rank sends to another one.

    Attributes:
        copies: contiguous tensors here, and where they go.
        flags, which: the flag that is raised then, to `ALL`.
        made: what says that it may be sent; None if it is there before the launch.
    """

    copies: tuple[tuple[Tensor, Tensor], ...]
    flags: Tensor
    which: int
    made: Count | None = None


class Workspace(Protocol):
    """What the products need of a group."""

    @property
    def rank(self) -> int:
        """Which rank this is."""

    @property
    def ranks(self) -> int:
        """How many there are."""

    @property
    def late(self) -> Tensor:
        """(1,) int32, which a kernel and the host see: 1 + the rank that has not answered."""

    def section(self, size: int) -> Section:
        """The set of the next call, with so many bytes at least; every rank asks for as many."""

    def send(self, parcels: Sequence[Parcel], launch: Callable[[], None]) -> None:
        """Launch a kernel, and send next to it; after what was launched before.

        What is launched from now on may overwrite what was sent, unless the kernel made it.
        """


class SymmetricWorkspace:
    """The workspace of a group of GPUs, by PyTorch's symmetric memory.

    Copies are made by the copy engines, on a stream of their own; flags are written by the stream.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.rank, self.ranks = group.rank(), group.size()
        self._group = group
        self._size = 0
        self._sections: list[Section] = []
        self._handle: Any = None
        self._turn = 0
        self._copies = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        self._begun, self._copied = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
        self._stream: torch.cuda.Stream | None = None
        self.late = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        atexit.register(self._say_who_was_late)

    def section(self, size: int) -> Section:
        """See `Workspace`; grows, which all ranks do together."""
        if self.late[0]:
            raise PeerError(self._who_was_late())
        if size > self._size:
            self._grow(-(-size // _GRANULE) * _GRANULE)
        stream, before = torch.cuda.current_stream(), self._stream
        self._stream = stream
        if torch.cuda.is_current_stream_capturing():
            self._handle.barrier()
            return self._sections[2]
        if before is not None and before != stream:
            stream.wait_stream(before)  # calls follow each other
        self._turn ^= 1
        return self._sections[self._turn]

    def _grow(self, size: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"a graph is being captured, and its products need {size} bytes of symmetric memory"
                f" where there are {self._size}: run them once before"
            )
        from torch.distributed import _symmetric_memory as symmetric

        torch.cuda.synchronize()
        if self._handle is not None:
            self._handle.barrier()  # nobody uses the old memory any more
            torch.cuda.synchronize()
        self._sections, self._handle = [], None
        each = 4 * FLAGS + size
        memory = symmetric.empty(3 * each, dtype=torch.uint8, device=self._copies.device)
        memory.zero_()
        self._handle = symmetric.rendezvous(memory, self._group)
        self._handle.barrier()  # zero everywhere
        views = [
            self._handle.get_buffer(rank, (3 * each,), torch.uint8) for rank in range(self.ranks)
        ]
        for start in range(0, 3 * each, each):
            flags = tuple(view[start : start + 4 * FLAGS].view(torch.int32) for view in views)
            rest = tuple(view[start + 4 * FLAGS : start + each] for view in views)
            self._sections.append(Section(flags, rest))
        self._size, self._memory = size, memory

    def send(self, parcels: Sequence[Parcel], launch: Callable[[], None]) -> None:
        """See `Workspace`."""
        stream, copies = self._stream, self._copies
        assert stream is not None
        ready = [parcel for parcel in parcels if parcel.made is None]
        made = [parcel for parcel in parcels if parcel.made is not None]
        # Copies of what a kernel makes follow it by its counters; a graph has to know, too.
        follows = bool(ready) or (bool(made) and torch.cuda.is_current_stream_capturing())
        if follows:
            stream.record_event(self._begun)
            copies.wait_event(self._begun)
        self._push(ready)
        launch()
        self._push(made)  # afterwards: streams may share a queue, in which nothing passes a wait
        if follows:
            copies.record_event(self._copied)
            stream.wait_event(self._copied)

    def _push(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            if parcel.made is not None:
                streams.wait(self._copies, *parcel.made)
                streams.write(self._copies, parcel.made.words, parcel.made.which, 0)
            for source, target in parcel.copies:
                streams.copy(self._copies, target, source)
            streams.write(self._copies, parcel.flags, parcel.which, ALL)

    def _who_was_late(self) -> str:
        return (
            f"rank {self.rank} of {self.ranks} waited {TIMEOUT} s for rank {int(self.late) - 1},"
            " which did not take part in a product; the kernel was stopped, and CUDA reports a"
            " launch failure from then on"
        )

    def _say_who_was_late(self) -> None:
        if self.late[0]:
            print(f"triton_ext.distributed: {self._who_was_late()}", file=sys.stderr)


class EmulatedWorkspace:
    """The workspace of one of several emulated GPUs.

    Args:
        gpus: ``triton_ext.emulate(arch, devices=...)``.
        rank: which of them.
        sections: two, the same for all.
    """

    def __init__(self, gpus: EmulatedGpus, rank: int, sections: Sequence[Section]) -> None:
        self.rank, self.ranks = rank, len(sections[0].flags)
        self.late = torch.zeros(1, dtype=torch.int32)
        self._gpus, self._sections, self._turn = gpus, sections, 0

    def section(self, size: int) -> Section:
        """See `Workspace`."""
        self._turn ^= 1
        found = self._sections[self._turn]
        if size > found.memory[0].numel():
            raise LayoutError("size", found.memory[0].numel(), f"the product needs {size} bytes")
        return found

    def send(self, parcels: Sequence[Parcel], launch: Callable[[], None]) -> None:
        """See `Workspace`. (What is given to a copy engine after a launch follows it.)"""
        zero = torch.zeros(1, dtype=torch.int32)
        for copies, flags, which, made in parcels:
            if made is not None:
                counter = made.words[made.which : made.which + 1]
                self._gpus.wait(counter, made.complete)
                self._gpus.copy(counter, zero)
            *first, last = copies
            for source, target in first:
                self._gpus.copy(target, source)
            self._gpus.copy(last[1], last[0], flag=flags[which : which + 1], value=ALL)
        launch()
        self._gpus.synchronize()


def emulated_workspaces(gpus: EmulatedGpus, size: int) -> list[EmulatedWorkspace]:
    """A workspace for each of several emulated GPUs, for products that need up to `size` bytes."""
    sections = [
        Section(tuple(gpus.symmetric((FLAGS,), torch.int32)), tuple(memory))
        for memory in (gpus.symmetric((size,), torch.uint8) for _ in range(2))
    ]
    return [EmulatedWorkspace(gpus, rank, sections) for rank in range(len(sections[0].flags))]


_workspaces: dict[str, SymmetricWorkspace] = {}


def workspace_of(group: dist.ProcessGroup) -> SymmetricWorkspace:
    """The workspace of a group, on the current GPU; made once."""
    found = _workspaces.get(group.group_name)
    if found is None or found._group is not group:
        found = _workspaces[group.group_name] = SymmetricWorkspace(group)
    return found
