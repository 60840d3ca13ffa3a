"""Litmus tests for statements on all schedules: small programs, and a machine that tries them all.

A program is a list of threads, each a list of operations; a thread becomes a warp. `safe` runs
every interleaving on a machine of its own: it shares no code with the emulator, and knows neither
clocks nor matchings. `ptx` writes the same program down, and `said` is what is found of it.

The operations, of memory `x` and mbarriers `b` (both ``(name, rank of the block)``):

    W x v      store v                     R x      load, and keep what was there
    A b        arrive                      E b n    expect n copies
    AE b n     both at once                C b x v  copy v to x, and tell b
    T b p      wait for the phase of parity p
    S i n      bar.sync i for n warps      B i n    bar.arrive
    I b        mbarrier.inval              K        barrier.cluster (arrive and wait)
    M b r      tcgen05.commit to b in the blocks r; alone in its own block, or multicast
    AR b       arrive, relaxed             KR       barrier.cluster, its arrival relaxed
    O x        a bulk copy reads x, and is waited for
    F          fence.proxy.async; where a program has one, no other operation brings one along

A store is there at once, but in a program with relaxed operations: there it may come later, until
its thread's next arrival that is not relaxed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import EmulationError

Op = tuple[Any, ...]
Home = tuple[str, int]
SLOTS = 16
"""Loads of a thread, at most."""
COPIED = 1000
"""What copy v brings is this plus v."""


@dataclass(frozen=True)
class Program:
    """A litmus test.

    Attributes:
        name: of the test.
        threads: what each does.
        counts: the arrivals that each mbarrier expects.
        ranks: the block of each thread; () is block 0 for all.
    """

    name: str
    threads: tuple[tuple[Op, ...], ...]
    counts: dict[str, int]
    ranks: tuple[int, ...] = ()

    def has(self, *kinds: str) -> bool:
        """Whether some thread does one of these."""
        return any(op[0] in kinds for ops in self.threads for op in ops)

    @property
    def blocks(self) -> int:
        """How many there are, as one cluster."""
        return max(self.ranks, default=0) + 1

    def rank(self, thread: int) -> int:
        """The block of a thread."""
        return self.ranks[thread] if self.ranks else 0


def home(text: str) -> Home:
    """``x`` is of block 0, ``x@1`` of block 1."""
    name, _, rank = text.partition("@")
    return name, int(rank or 0)


# ------------------------------------------------------------------- every interleaving


class Broken(Exception):
    """Some interleaving is wrong."""


class _Machine:
    """All interleavings of a program, each state once.

    A state: for each thread its next operation, the generation that it waits for, and what it has
    loaded, and for which phases it has arrived; what is under way; the mbarriers as (phase,
    missing, bytes); the numbered barriers as (generation, arrived, expected); memory.

    Under way are copies (mbarrier, place, value), signals of commits ("M", block, number, mbarrier)
    and stores that are late ("W", thread, place, value).
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers, self.fences = program.has("AR", "KR"), program.has("F")
        self.ends: set[Any] = set()

    def run(self) -> None:
        """Raise Broken unless all end alike."""
        program = self.program
        barriers = tuple(
            (name, rank, 0, count, 0)
            for name, count in sorted(program.counts.items())
            for rank in range(program.blocks)
        )
        start = (tuple((0, -1, ()) for _ in program.threads), (), barriers, (), ())
        seen, stack = {start}, [start]
        while stack:
            state = stack.pop()
            following = list(self._steps(state))
            self._races(state)
            if not following:
                self._end(state)
            for each in following:
                if each not in seen:
                    seen.add(each)
                    stack.append(each)
        if len(self.ends) > 1:
            raise Broken("loads differ, or the phases that arrivals count for")

    def _end(self, state: Any) -> None:
        threads, copies, barriers, _, _ = state
        assert not copies
        for thread, (at, _, _) in enumerate(threads):
            if at < len(self.program.threads[thread]):
                raise Broken("deadlock")
        if any(tx for *_, tx in barriers):
            raise Broken("bytes are outstanding")
        self.ends.add(tuple(loads for _, _, loads in threads))

    def _races(self, state: Any) -> None:
        """Two accesses of one place are next at the same time, and one writes."""
        threads, copies, *_ = state
        accesses = [
            (home(each[-2]), True, each[1] if each[0] == "W" else -1)
            for each in copies
            if each[0] != "M"
        ]
        for thread, (at, waits, _) in enumerate(threads):
            ops = self.program.threads[thread]
            if at < len(ops) and waits < 0 and ops[at][0] in ("W", "R", "O"):
                accesses.append((home(ops[at][1]), ops[at][0] == "W", thread))
        for number, (place, writes, who) in enumerate(accesses):
            for other, also, by in accesses[number + 1 :]:
                if place == other and (writes or also) and (who < 0 or who != by):
                    raise Broken("a race")

    def _steps(self, state: Any) -> Any:
        threads, copies, barriers, named, memory = state
        for copy in dict.fromkeys(copies):
            left = list(copies)
            left.remove(copy)
            if copy[0] == "M":
                yield from self._signal(state, copy, tuple(left))
                continue
            if copy[0] == "W":
                if self.program.rank(copy[1]) != home(copy[2])[1]:
                    self._living(threads, home(copy[2])[1])
                changed = self._put(memory, home(copy[2]), copy[3])
                yield threads, tuple(left), barriers, named, changed
                continue
            b, x, value = copy
            self._living(threads, home(x)[1])
            changed = self._count(barriers, home(b), tx=-1)
            yield threads, tuple(left), changed, named, self._put(memory, home(x), COPIED + value)
        for thread, (at, waits, loads) in enumerate(threads):
            ops = self.program.threads[thread]
            if waits >= 0:
                key = ops[at][1] if ops[at][0] == "S" else "K"
                block = self.program.rank(thread) if ops[at][0] == "S" else -1
                if any(n == (block, key) and generation > waits for n, generation, *_ in named):
                    yield self._moved(state, thread, loads)
                continue
            if at < len(ops):
                yield from self._step(state, thread, ops[at])

    def _signal(self, state: Any, signal: Any, left: Any) -> Any:
        """A commit arrives: in its own block after those before it.

        In a block that has ended it is lost, and that is no fault if it arrives elsewhere, too, and
        some commit of its tensor core has arrived: who knows that knows that the work is done, as
        there is none but that of the first.
        """
        threads, copies, barriers, named, memory = state
        _, block, number, b = signal
        name, rank = home(b)
        before = [each for each in copies if each[:2] == ("M", block) and each[2] < number]
        if rank == block and any(home(each[3])[1] == block for each in before):
            return
        alone = self._targets(block, number) == [block]
        if not alone and self._arrived(threads, copies, block) and self._ended(threads, rank):
            yield threads, left, barriers, named, memory
            return
        self._living(threads, rank)
        yield threads, left, self._count(barriers, (name, rank), 1), named, memory

    def _targets(self, block: int, number: int) -> list[int]:
        """The blocks in which a commit of a block arrives."""
        program = self.program
        issued = (
            [op for op in ops if op[0] == "M"]
            for n, ops in enumerate(program.threads)
            if program.rank(n) == block
        )
        return [rank for ops in issued if len(ops) > number for rank in ops[number][2]]

    def _arrived(self, threads: Any, copies: Any, block: int) -> bool:
        """Whether a commit of a block has arrived somewhere."""
        program = self.program
        for thread, (at, _, _) in enumerate(threads):
            commits = [op for op in program.threads[thread][:at] if op[0] == "M"]
            if program.rank(thread) == block:
                for n, op in enumerate(commits):
                    pending = sum(each[:3] == ("M", block, n) for each in copies)
                    if pending < len(op[2]):
                        return True
        return False

    def _moved(self, state: Any, thread: int, loads: Any, **changed: Any) -> Any:
        threads, copies, barriers, named, memory = state
        at, _, _ = threads[thread]
        moved = list(threads)
        waits = changed.get("waits", -1)
        moved[thread] = (at if waits >= 0 else at + 1, waits, loads)
        return (
            tuple(moved), changed.get("copies", copies), changed.get("barriers", barriers),
            changed.get("named", named), changed.get("memory", memory),
        )  # fmt: skip

    def _ended(self, threads: Any, rank: int) -> bool:
        program = self.program
        return all(
            at >= len(program.threads[n])
            for n, (at, _, _) in enumerate(threads)
            if program.rank(n) == rank
        )

    def _living(self, threads: Any, rank: int) -> None:
        if self._ended(threads, rank):
            raise Broken("the block has ended")

    def _step(self, state: Any, thread: int, op: Op) -> Any:
        threads, copies, barriers, _, memory = state
        kind, loads = op[0], threads[thread][2]
        if kind in ("W", "R", "A", "AR", "AE", "E", "C", "O"):
            self._living(threads, home(op[1])[1])
        late = [each for each in copies if each[:2] == ("W", thread)]
        if late and kind in ("A", "AE", "S", "B", "K", "M", "O", "F"):
            return  # it releases: its stores come first
        if kind == "W" and self.buffers:
            under_way = tuple(sorted((*copies, ("W", thread, *op[1:])), key=str))
            yield self._moved(state, thread, loads, copies=under_way)
        elif kind == "W":
            changed = self._put(memory, home(op[1]), op[2])
            if self.fences:
                changed = self._put(changed, ("unfenced", *home(op[1])), 1)
            yield self._moved(state, thread, loads, memory=changed)
        elif kind == "F":
            kept = tuple(each for each in memory if each[0][0] != "unfenced")
            yield self._moved(state, thread, loads, memory=kept)
        elif kind in ("R", "O"):
            own = [each[3] for each in late if each[2] == op[1]]
            value = own[-1] if own else dict(memory).get(home(op[1]))
            if value is None:
                raise Broken("nothing was written there")
            if kind == "O" and ("unfenced", *home(op[1])) in dict(memory):
                raise Broken("a proxy fence is missing")
            yield self._moved(state, thread, (*loads, value))
        elif kind == "M":
            block = self.program.rank(thread)
            number = sum(
                each[0] == "M" for each in self.program.threads[thread][: threads[thread][0]]
            )
            signals = [("M", block, number, f"{op[1]}@{rank}") for rank in op[2]]
            under_way = tuple(sorted((*copies, *signals), key=str))
            yield self._moved(state, thread, loads, copies=under_way)
        elif kind in ("A", "AR", "E", "AE"):
            tx, arrivals = (op[2] if "E" in kind else 0), int("A" in kind)
            changed = self._count(barriers, home(op[1]), arrivals, tx)
            phase = next(each[2] for each in barriers if each[:2] == home(op[1]))
            counted = (*loads, ("phase", phase)) if arrivals else loads
            yield self._moved(state, thread, counted, barriers=changed)
        elif kind == "C":
            under_way = tuple(sorted((*copies, op[1:]), key=str))
            yield self._moved(state, thread, loads, copies=under_way)
        elif kind == "T":
            phase = next(each[2] for each in barriers if each[:2] == home(op[1]))
            if phase & 1 != op[2] & 1:
                yield self._moved(state, thread, loads)
        elif kind == "I":
            left = tuple(each for each in barriers if each[:2] != home(op[1]))
            for n, (at, _, _) in enumerate(threads):
                rest = self.program.threads[n][at:] if n != thread else ()
                if any(
                    o[0] in ("A", "AR", "E", "AE", "T", "C", "M") and o[1] == op[1] for o in rest
                ):
                    raise Broken("it is still used")
            yield self._moved(state, thread, loads, barriers=left)
        elif kind in ("S", "B", "K", "KR"):
            yield self._meet(state, thread, op)

    def _meet(self, state: Any, thread: int, op: Op) -> Any:
        threads, _, _, named, _ = state
        program = self.program
        expected = len(program.threads) if op[0] in ("K", "KR") else op[2]
        key = (-1, "K") if op[0] in ("K", "KR") else (program.rank(thread), op[1])
        kept = {n: (generation, arrived, count) for n, generation, arrived, count in named}
        generation, arrived, count = kept.get(key, (0, (), expected))
        if arrived and count != expected:
            raise Broken("another count")
        if thread in arrived:
            raise Broken("it arrives twice")
        arrived = tuple(sorted((*arrived, thread)))
        now = (generation + 1, ()) if len(arrived) == expected else (generation, arrived)
        kept[key] = (*now, expected)
        changed = tuple(sorted((n, *each) for n, each in kept.items()))
        loads = threads[thread][2]
        if op[0] == "B":
            return self._moved(state, thread, loads, named=changed)
        return self._moved(state, thread, loads, named=changed, waits=generation)

    def _count(self, barriers: Any, which: Home, arrivals: int = 0, tx: int = 0) -> Any:
        found = []
        for name, rank, phase, missing, before in barriers:
            if (name, rank) == which:
                missing, before = missing - arrivals, before + tx
                if not missing and not before:
                    phase, missing = phase + 1, self.program.counts[name]
                elif missing < 0:
                    raise Broken("too many arrivals")
            found.append((name, rank, phase, missing, before))
        return tuple(found)

    @staticmethod
    def _put(memory: Any, where: Home, value: int) -> Any:
        return tuple(sorted({**dict(memory), where: value}.items()))


def safe(program: Program) -> bool:
    """Whether every interleaving ends, without a race, and all with the same loads, and arrivals
    that count for the same phases.
    """
    try:
        _Machine(program).run()
    except Broken:
        return False
    return True


# ------------------------------------------------------------------------------- as PTX

_HEAD = """
.version 8.7
.target TARGET
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
  .reg .b16 %h<1>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<5>;
  .reg .pred %p<3>, %lead, %leader;
  .shared .align 128 .b8 memory[1024];
  .shared .align 8 .b8 barriers[256];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  mov.u32 %r0, %tid.x;
  and.b32 %r1, %r0, 31;
  setp.eq.u32 %lead, %r1, 0;
  setp.eq.u32 %leader, %r0, 0;
  shr.u32 %r2, %r0, 5;
  mov.u32 %r3, %cluster_ctarank;
"""


class _Writer:
    """Writes a program down."""

    def __init__(self, program: Program) -> None:
        self.program = program
        places = sorted({op[2 if op[0] == "C" else 1] for ops in program.threads for op in ops
                         if op[0] in ("W", "R", "C", "O")})  # fmt: skip
        self.places = {name: n * 16 for n, name in enumerate(sorted({home(p)[0] for p in places}))}
        self.barriers = {name: n * 8 for n, name in enumerate(sorted(program.counts))}
        self.lines: list[str] = []

    def alone(self, text: str) -> None:
        """One lane does it, and the warp is in step before and after."""
        self.lines += ["bar.warp.sync 0xffffffff;", f"@%lead {text}", "bar.warp.sync 0xffffffff;"]

    def address(self, register: str, text: str, mine: int) -> str:
        """Put the address of a place or mbarrier in a register; its space."""
        name, rank = home(text)
        if name in self.barriers:
            self.lines.append(f"mov.u32 {register}, barriers;")
            offset = self.barriers[name]
        else:
            self.lines.append(f"mov.u32 {register}, memory;")
            offset = self.places[name]
        self.lines.append(f"add.u32 {register}, {register}, {offset};")
        if rank == mine:
            return "shared::cta"
        self.lines.append(f"mapa.shared::cluster.u32 {register}, {register}, {rank};")
        return "shared::cluster"

    def slot(self, thread: int, number: int) -> int:
        """Where in the output a load of a thread is kept, in bytes."""
        before = self.program.threads[thread][:number]
        return 16 * (SLOTS * thread + sum(o[0] in ("R", "O") for o in before))

    def text(self) -> str:
        """The module."""
        program = self.program
        for name, count in program.counts.items():
            self.address("%r4", name, 0)
            self.lines.append(f"@%leader mbarrier.init.shared::cta.b64 [%r4], {count};")
        self.lines.append("@%leader fence.mbarrier_init.release.cluster;")
        if program.blocks > 1:
            self.lines += ["barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"]
        else:
            self.lines.append("bar.sync 0;")
        own = [0] * program.blocks
        numbers = []
        for thread in range(len(program.threads)):
            numbers.append(own[program.rank(thread)])
            own[program.rank(thread)] += 1
        for thread, ops in enumerate(program.threads):
            self.lines.append(f"setp.ne.u32 %p0, %r2, {numbers[thread]};")
            self.lines.append(f"setp.ne.or.u32 %p0, %r3, {program.rank(thread)}, %p0;")
            self.lines.append(f"@%p0 bra NEXT{thread};")
            for number, op in enumerate(ops):
                self.write(thread, number, op)
            self.lines += ["ret;", f"NEXT{thread}:"]
        self.lines.append("ret;")
        head = _HEAD.replace("TARGET", "sm_100a" if program.has("M") else "sm_90a")
        return head + "\n".join(f"  {line}" for line in self.lines) + "\n}\n"

    def fence(self) -> None:
        """What other threads are told is told the units as well, unless the program says so."""
        if not self.program.has("F"):
            narrow = ".shared::cta" if self.program.has("AR", "KR") else ""  # it is a fence besides
            self.lines.append(f"fence.proxy.async{narrow};")

    def write(self, thread: int, number: int, op: Op) -> None:
        """One operation."""
        kind, mine = op[0], self.program.rank(thread)
        if kind in ("W", "R", "O"):
            space = self.address("%r4", op[1], mine)
        if kind == "W":
            if self.program.has("O"):
                self.alone(f"st.{space}.v4.b32 [%r4], {{%r0, %r0, %r0, %r0}};")
            else:
                self.alone(f"st.{space}.b32 [%r4], {op[2]};")
        elif kind == "F":
            self.lines.append("fence.proxy.async;")
        elif kind == "O":
            to = f"[%rd2+{self.slot(thread, number)}]"
            self.lines.append("bar.warp.sync 0xffffffff;")
            self.lines += [
                f"@%lead cp.async.bulk.global.shared::cta.bulk_group {to}, [%r4], 16;",
                "@%lead cp.async.bulk.commit_group;",
                "@%lead cp.async.bulk.wait_group 0;",
                "bar.warp.sync 0xffffffff;",
            ]
        elif kind == "M":
            self.fence()
            mask = sum(1 << rank for rank in op[2])
            self.address("%r4", op[1], 0)
            multicast = ".multicast::cluster" if op[2] != (mine,) else ""
            self.lines.append(f"mov.b16 %h0, {mask};")
            self.alone(
                "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
                f"{multicast}.b64 [%r4]{', %h0' if multicast else ''};"
            )
        elif kind == "R":
            slot = self.slot(thread, number)
            self.alone(f"ld.{space}.b32 %r5, [%r4];")
            self.alone(f"st.global.b32 [%rd2+{slot}], %r5;")
        elif kind in ("A", "AR", "AE", "E"):
            self.fence()
            space = self.address("%r4", op[1], mine)
            far = ".release.cluster" if space == "shared::cluster" else ""
            if kind == "E":
                self.alone(f"mbarrier.expect_tx.relaxed.cta.{space}.b64 [%r4], {16 * op[2]};")
            elif kind in ("A", "AR"):
                order = ".relaxed.cluster" if kind == "AR" else far
                self.alone(f"mbarrier.arrive{order}.{space}.b64 _, [%r4];")
            else:
                self.alone(f"mbarrier.arrive.expect_tx{far}.{space}.b64 _, [%r4], {16 * op[2]};")
        elif kind == "C":
            self.address("%r4", op[2], home(op[2])[1])
            self.address("%r5", op[1], home(op[1])[1])
            for register, where in (("%r4", op[2]), ("%r5", op[1])):
                self.lines.append(
                    f"mapa.shared::cluster.u32 {register}, {register}, {home(where)[1]};"
                )
            self.alone(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                f" [%r4], [%rd1+{16 * op[3]}], 16, [%r5];"
            )
        elif kind == "T":
            self.address("%r4", op[1], mine)
            label = f"WAIT{thread}_{number}"
            scope = ".acquire.cluster" if self.program.blocks > 1 else ""
            self.lines += [
                f"{label}:",
                f"mbarrier.try_wait.parity{scope}.shared::cta.b64 %p1, [%r4], {op[2]};",
                f"@!%p1 bra {label};",
            ]
        elif kind in ("S", "B"):
            self.fence()
            self.lines.append(f"bar.{'sync' if kind == 'S' else 'arrive'} {op[1]}, {32 * op[2]};")
        elif kind == "I":
            self.address("%r4", op[1], mine)
            self.alone("mbarrier.inval.shared::cta.b64 [%r4];")
        elif kind in ("K", "KR"):
            self.fence()
            relaxed = ".relaxed" if kind == "KR" else ""
            self.lines += [
                f"barrier.cluster.arrive{relaxed}.aligned;",
                "barrier.cluster.wait.aligned;",
            ]


def ptx(program: Program) -> str:
    """The program as a PTX module."""
    return _Writer(program).text()


def run(program: Program, **options: Any) -> Any:
    """Run it on the emulated GPU: the machine, and what the threads have loaded."""
    source = np.zeros(64, np.int32)
    source[::4] = COPIED + np.arange(16)
    out = np.zeros(4 * SLOTS * len(program.threads), np.int32)
    ranks = [program.rank(thread) for thread in range(len(program.threads))]
    warps = max(ranks.count(rank) for rank in range(program.blocks))
    machine = run_ptx(
        ptx(program), grid=program.blocks, cluster=program.blocks if program.blocks > 1 else None,
        block=32 * warps, args=[source, out], **options,
    )  # fmt: skip
    return machine, out


def said(program: Program) -> tuple[str, Any]:
    """What is said of all schedules: "proven", "witness" or "not decided" with the verdict; or
    "fault", with the fault that one run ends in."""
    try:
        machine, _ = run(program, schedules="all")
    except EmulationError as error:
        return "fault", error
    return machine.verdict.outcome, machine.verdict
