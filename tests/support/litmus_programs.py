"""The litmus tests of `schedule_litmus`: families of small programs, right and wrong."""

from __future__ import annotations

import random

from schedule_litmus import Op, Program


def _ring(
    name: str, *, stages: int, tiles: int, start: int = 1, late: int = 0, early: bool = False,
    frees: bool = True, copies: bool = True, expects: str = "AE", alias: bool = False,
) -> Program:  # fmt: skip
    """A producer and a consumer, with a full and an empty mbarrier for each stage.

    Args:
        start: the parity that the producer waits for first; 1 is right.
        late: how many tiles late the producer's parity flips.
        early: the consumer frees a stage before it has read it.
        frees: the consumer frees at all.
        copies: asynchronous copies fill the stages, else stores.
        expects: "AE", or "C,AE", or "C,E,A", or "E,A,C": in which order.
        alias: all stages share one buffer.
    """
    producer: list[Op] = []
    consumer: list[Op] = []
    for tile in range(tiles):
        stage, lap = tile % stages, tile // stages
        x = "x0" if alias else f"x{stage}"
        producer.append(("T", f"empty{stage}", (max(tile - late, 0) // stages + start) & 1))
        if copies:
            for each in expects.split(","):
                producer.append(
                    {
                        "AE": ("AE", f"full{stage}", 1),
                        "C": ("C", f"full{stage}", x, tile),
                        "E": ("E", f"full{stage}", 1),
                        "A": ("A", f"full{stage}"),
                    }[each]
                )
            if expects == "AE":
                producer.append(("C", f"full{stage}", x, tile))
        else:
            producer += [("W", x, tile + 1), ("A", f"full{stage}")]
        consumer.append(("T", f"full{stage}", lap & 1))
        free = [("A", f"empty{stage}")] if frees else []
        consumer += [*free, ("R", x)] if early else [("R", x), *free]
    counts = {f"{kind}{stage}": 1 for kind in ("full", "empty") for stage in range(stages)}
    return Program(name, (tuple(producer), tuple(consumer)), counts)


def _chain(length: int, missing: int = -1) -> Program:
    """Each thread waits for the one before; one of them may not."""
    threads = []
    for n in range(length):
        ops: list[Op] = [("T", f"b{n - 1}", 0)] if n and n != missing else []
        ops += [("R", "x")] if n else [("W", "x", 7)]
        threads.append((*ops, ("A", f"b{n}")))
    return Program(f"chain of {length}, without wait {missing}", tuple(threads),
                   {f"b{n}": 1 for n in range(length)})  # fmt: skip


def _laps(waits: tuple[int, ...], arrivals: int) -> Program:
    """One thread arrives again and again, another one waits for some of the parities."""
    first = (("W", "x", 1), *[("A", "b")] * arrivals)
    second = (*(("T", "b", parity) for parity in waits), ("R", "x"))
    return Program(f"{arrivals} laps, waits for {waits}", (first, second), {"b": 1})


def _hand_over(name: str, threads: int, sync: list[tuple[int, Op]]) -> Program:
    """Thread 0 stores, the last one loads; between them what `sync` says, by thread."""
    ops: list[list[Op]] = [[] for _ in range(threads)]
    ops[0].append(("W", "x", 5))
    for thread, op in sync:
        ops[thread].append(op)
    ops[-1].append(("R", "x"))
    used = {op[1] for each in ops for op in each if op[0] in ("A", "T")}
    return Program(name, tuple(map(tuple, ops)), dict.fromkeys(sorted(used), 1))


def _commits(
    name: str, *, laps: int, waits: tuple[bool, bool] = (True, True), reads: bool = True,
    blocks: int = 2,
) -> Program:  # fmt: skip
    """Blocks whose commits free a stage in all of them, lap after lap.

    Args:
        waits: whether block 0, and whether the others, wait for each lap.
        reads: whether each block reads its stage before it commits, and block 0 writes it again.
    """
    every = tuple(range(blocks))
    threads = []
    for rank in range(blocks):
        ops: list[Op] = [("W", f"x@{rank}", rank)] if reads else []
        for lap in range(laps):
            ops += [("R", f"x@{rank}")] if reads else []
            ops.append(("M", "b", every))
            if waits[rank > 0]:
                ops.append(("T", f"b@{rank}", lap & 1))
            if reads and lap + 1 < laps and not rank:
                ops += [("W", f"x@{other}", 10 * lap) for other in every]
                ops += [("A", f"full@{other}") for other in every[1:]]
            elif reads and lap + 1 < laps:
                ops.append(("T", f"full@{rank}", lap & 1))
        threads.append((*ops, ("K",)))
    return Program(name, tuple(threads), {"b": blocks, "full": 1}, every)


def _proxies(name: str, writer: str, reader: str) -> Program:
    """A thread stores, and another one has a copy read it; where are the fences?"""
    fences = {"F": ("F",), "W": ("W", "x", 5), "A": ("A", "b"), "T": ("T", "b", 0), "O": ("O", "x"),
              "S": ("S", 1, 2), "R": ("R", "x")}  # fmt: skip
    threads = tuple(tuple(fences[each] for each in ops) for ops in (writer, reader))
    return Program(name, (*threads, (("F",),)), {"b": 1})


W, R, A, T = ("W", "x", 5), ("R", "x"), ("A", "b"), ("T", "b", 0)
PROGRAMS = [
    # message passing
    _hand_over("message passing", 2, [(0, A), (1, T)]),
    _hand_over("message passing without a wait", 2, [(0, A)]),
    _hand_over("message passing, the other parity", 2, [(0, A), (1, ("T", "b", 1))]),
    _hand_over("message passing without an arrival", 2, [(1, T)]),
    Program("message passing, arrival first", ((A, W), (T, R)), {"b": 1}),
    Program("message passing, the wrong mbarrier", ((W, A), (("A", "c"),), (("T", "c", 0), R)),
            {"b": 1, "c": 1}),
    Program("two readers", ((W, A), (T, R), (T, R)), {"b": 1}),
    Program("two writers, both awaited", ((W, A), (("W", "y", 2), A), (T, R, ("R", "y"))),
            {"b": 2}),
    Program("two writers, one awaited", ((W, A), (("W", "y", 2), A), (T, R)), {"b": 1}),
    Program("a count too high", ((W, A), (T, R)), {"b": 2}),
    Program("two arrivals for two", ((W, A, A), (T, R)), {"b": 2}),
    *(_chain(n) for n in (3, 4)),
    *(_chain(3, missing) for missing in (1, 2)),
    # phases that lap
    _laps((0,), 1), _laps((0,), 2), _laps((0,), 3), _laps((0, 1), 2), _laps((0, 1), 3),
    _laps((1,), 1), _laps((1, 0), 1), _laps((0, 1, 0), 3), _laps((0, 0), 2),
    # rings
    *(_ring(f"a ring of {s}, {t} tiles", stages=s, tiles=t) for s, t in
      ((1, 2), (1, 3), (1, 4), (2, 3), (2, 5))),
    *(_ring(f"a ring of {s} by stores", stages=s, tiles=4, copies=False) for s in (1, 2)),
    *(_ring(f"a ring of {s}, the producer's parity reversed", stages=s, tiles=3, start=0)
      for s in (1, 2)),
    *(_ring(f"a ring of {s}, flips {n} late", stages=s, tiles=4, late=n)
      for s, n in ((1, 1), (2, 1), (2, 2))),
    *(_ring(f"a ring of {s}, freed early", stages=s, tiles=3, early=True) for s in (1, 2)),
    _ring("a ring of 2, not freed", stages=2, tiles=3, frees=False),
    _ring("a ring of 2, not freed and not full", stages=2, tiles=2, frees=False),
    _ring("a ring of 2 that share a buffer", stages=2, tiles=3, alias=True),
    # bytes
    *(_ring(f"a ring of 1, {order}", stages=1, tiles=3, expects=order)
      for order in ("C,AE", "C,E,A", "E,A,C", "E,C,A")),
    _ring("a ring of 1, expected after the arrival", stages=1, tiles=2, expects="A,E,C"),
    Program("bytes of two copies", ((("AE", "b", 2), ("C", "b", "x", 1), ("C", "b", "y", 2)),
                                    (T, R, ("R", "y"))), {"b": 1}),
    Program("bytes of one copy of two", ((("AE", "b", 1), ("C", "b", "x", 1), ("C", "b", "y", 2)),
                                         (T, R)), {"b": 1}),
    Program("bytes that never come", ((("AE", "b", 2), ("C", "b", "x", 1)), (T, R)), {"b": 1}),
    Program("copies of two threads", ((("AE", "b", 1), ("C", "b", "x", 1)),
                                      (("AE", "b", 1), ("C", "b", "y", 2)), (T, R, ("R", "y"))),
            {"b": 2}),
    Program("a copy of the next phase completes this one",
            ((("AE", "b", 1), ("C", "b", "x", 1)), (("C", "b", "y", 2), ("AE", "b", 1)),
             (T, R)), {"b": 1}),
    Program("expected by another thread", ((("E", "b", 1), ("A", "c")),
                                           (("T", "c", 0), ("C", "b", "x", 1), A), (T, R)),
            {"b": 1, "c": 1}),
    Program("expected by another thread, unordered", ((("E", "b", 1),),
                                                      (("C", "b", "x", 1), A), (T, R)), {"b": 1}),
    # numbered barriers
    _hand_over("bar.sync", 2, [(0, ("S", 1, 2)), (1, ("S", 1, 2))]),
    _hand_over("bar.arrive", 2, [(0, ("B", 1, 2)), (1, ("S", 1, 2))]),
    _hand_over("bar.arrive on the wrong side", 2, [(0, ("S", 1, 2)), (1, ("B", 1, 2))]),
    _hand_over("two numbers", 3, [(0, ("S", 1, 2)), (1, ("S", 1, 2)), (1, ("S", 2, 2)),
                                  (2, ("S", 2, 2))]),
    _hand_over("one number for two pairs", 3, [(0, ("S", 1, 2)), (1, ("S", 1, 2)),
                                               (1, ("S", 1, 2)), (2, ("S", 1, 2))]),
    _hand_over("one number for two pairs, ordered", 3,
               [(0, ("S", 1, 2)), (1, ("S", 1, 2)), (1, ("A", "b")), (1, ("S", 1, 2)),
                (2, ("T", "b", 0)), (2, ("S", 1, 2))]),
    Program("ping-pong", (
        (("B", 2, 2), ("S", 1, 2), ("W", "x", 1), ("B", 2, 2), ("S", 1, 2), ("R", "x")),
        (("S", 2, 2), ("B", 1, 2), ("S", 2, 2), ("R", "x"), ("B", 1, 2))), {}),
    Program("another number of threads", ((W, ("S", 1, 2)), (("S", 1, 2), R), (("S", 1, 3),)), {}),
    Program("crossed", ((("T", "b", 0), ("A", "c")), (("T", "c", 0), ("A", "b"))),
            {"b": 1, "c": 1}),
    # the end of an mbarrier
    Program("invalidated after its use", ((W, A, ("T", "c", 0), ("I", "b")), (T, R, ("A", "c"))),
            {"b": 1, "c": 1}),
    Program("invalidated too early", ((W, A, ("I", "b")), (T, R)), {"b": 1}),
    # clusters
    Program("another block's mbarrier", ((("W", "x@1", 3), ("A", "b@1"), ("K",)),
                                         (("T", "b@1", 0), ("R", "x@1"), ("K",))), {"b": 1},
            (0, 1)),
    Program("another block's mbarrier, nobody waits at the end",
            ((("W", "x@1", 3), ("A", "b@1")), (("T", "b@1", 0), ("R", "x@1"))), {"b": 1}, (0, 1)),
    Program("another block may have ended", ((("W", "x@1", 3),), (("W", "y@1", 1),)), {}, (0, 1)),
    Program("the cluster's barrier", ((("W", "x@1", 3), ("K",)), (("K",), ("R", "x@1"))), {},
            (0, 1)),
    Program("a copy into another block", ((("C", "b@1", "x@1", 4), ("K",)),
                                          (("AE", "b@1", 1), ("T", "b@1", 0), ("R", "x@1"),
                                           ("K",))),
            {"b": 1}, (0, 1)),
    Program("blocks in turn", (
        (("W", "x@1", 3), ("A", "b@1"), ("T", "c@0", 0), ("W", "x@1", 4), ("A", "b@1"), ("K",)),
        (("T", "b@1", 0), ("R", "x@1"), ("A", "c@0"), ("T", "b@1", 1), ("R", "x@1"), ("K",))),
        {"b": 1, "c": 1}, (0, 1)),
    Program("blocks in turn, one does not wait", (
        (("W", "x@1", 3), ("A", "b@1"), ("W", "x@1", 4), ("A", "b@1"), ("K",)),
        (("T", "b@1", 0), ("R", "x@1"), ("A", "c@0"), ("T", "b@1", 1), ("R", "x@1"), ("K",))),
        {"b": 1, "c": 1}, (0, 1)),
    # signals of commits
    Program("a commit", ((W, ("M", "b", (0,))), (T, R)), {"b": 1}),
    Program("two commits, one wait", ((W, ("M", "b", (0,)), ("M", "b", (0,))), (T, R)), {"b": 1}),
    Program("two commits, the last is awaited",
            ((W, ("M", "b", (0,)), ("M", "c", (0,))), (("T", "c", 0), R)), {"b": 1, "c": 1}),
    Program("two commits, the first is awaited",
            ((W, ("M", "b", (0,)), ("M", "c", (0,))), (T, R)), {"b": 1, "c": 1}),
    Program("two commits for one phase", ((W, ("M", "b", (0,)), ("M", "b", (0,))), (T, R)),
            {"b": 2}),
    Program("a commit and an arrival", ((W, ("M", "b", (0,))), (A, T, R)), {"b": 2}),
    Program("the phase of the commit before", (
        (W, ("M", "b", (0,)), ("T", "c", 0), ("W", "x", 6), ("M", "b", (0,))),
        (T, R, ("A", "c"), T, R)), {"b": 1, "c": 1}),
    Program("the phase of each commit", (
        (W, ("M", "b", (0,)), ("T", "c", 0), ("W", "x", 6), ("M", "b", (0,))),
        (T, R, ("A", "c"), ("T", "b", 1), R)), {"b": 1, "c": 1}),
    _commits("a multicast commit", laps=1), _commits("multicast commits, 2 laps", laps=2),
    _commits("multicast commits, 3 laps", laps=3),
    _commits("multicast commits of 3 blocks, 2 laps", laps=2, blocks=3, reads=False),
    _commits("multicast commits, no memory, 3 laps", laps=3, reads=False),
    _commits("multicast commits, block 0 does not wait", laps=2, waits=(False, True)),
    _commits("multicast commits, block 1 does not wait", laps=2, waits=(True, False)),
    _commits("multicast commits, nobody waits", laps=2, waits=(False, False)),
    Program("a multicast commit of one block", (
        (("W", "x@0", 1), ("M", "b", (0, 1)), ("T", "b@0", 0), ("K",)),
        (("T", "b@1", 0), ("R", "x@0"), ("K",))), {"b": 1}, (0, 1)),
    Program("a multicast commit, the other block has ended", (
        (("M", "b", (0, 1)), ("T", "b@0", 0)), (("W", "y@1", 1),)), {"b": 1}, (0, 1)),
    Program("a commit to the other block alone", (
        (("W", "x@1", 1), ("M", "b", (1,)), ("K",)), (("T", "b@1", 0), ("R", "x@1"), ("K",))),
        {"b": 1}, (0, 1)),
    Program("who commits knows less than the others", (
        (("M", "b", (0, 1)), ("A", "c@1"), ("M", "b", (0, 1)), ("K",)),
        (("W", "x@1", 1), ("T", "c@1", 0), ("M", "b", (1,)), ("K",)),
        (("T", "b@1", 0), ("R", "x@1"), ("K",))), {"b": 2, "c": 1}, (0, 1, 1)),
    Program("two commits from afar, the second for no reason", (
        (("M", "b", (1,)), ("T", "c@0", 0), ("M", "b", (1,)), ("K",)),
        (("W", "x@1", 1), ("M", "b", (1,)), ("T", "d@1", 0), ("M", "b", (1,)), ("T", "b@1", 1),
         ("K",)),
        (("A", "c@0"), ("K",)),
        (("T", "b@1", 0), ("R", "x@1"), ("A", "d@1"), ("K",))),
        {"b": 2, "c": 1, "d": 1}, (0, 1, 1, 1)),
    # proxies
    _proxies("a fence before the arrival", "WFA", "TO"),
    _proxies("a fence behind the wait", "WA", "TFO"),
    _proxies("a fence before the store", "FWA", "TO"),
    _proxies("a fence before the wait", "WA", "FTO"),
    _proxies("no fence in either", "WA", "TO"),
    _proxies("a fence behind the arrival", "WAF", "TO"),
    _proxies("a fence and no order", "WF", "O"),
    _proxies("a fence before bar.sync", "WFS", "SO"),
    _proxies("no fence before bar.sync", "WS", "SO"),
    _proxies("a load needs no fence", "WA", "TR"),
    # relaxed
    Program("a relaxed arrival", ((W, ("AR", "b")), (T, R)), {"b": 1}),
    Program("a relaxed arrival, then one that is not",
            ((W, ("AR", "b"), ("A", "c")), (T, ("T", "c", 0), R)), {"b": 1, "c": 1}),
    Program("a relaxed arrival that tells nothing", ((("AR", "b"),), (T, W, R)), {"b": 1}),
    Program("the cluster's barrier, relaxed", ((("W", "x@1", 3), ("KR",), ("K",)),
                                               (("KR",), ("R", "x@1"), ("K",))), {}, (0, 1)),
    Program("the cluster's barrier, relaxed and then not", (
        (("W", "x@1", 3), ("KR",), ("K",), ("K",)), (("KR",), ("K",), ("R", "x@1"), ("K",))), {},
        (0, 1)),
    Program("the cluster's barrier, relaxed, before all", (
        (("KR",), ("W", "x@1", 3), ("K",)), (("KR",), ("K",), ("R", "x@1"))), {}, (0, 1)),
    # exits
    Program("a block ends while the other one stores", (
        (("W", "x@1", 3), ("A", "b@1")), (("T", "b@1", 0), ("R", "x@1"))), {"b": 1}, (0, 1)),
    Program("a relaxed barrier before the end is enough", (
        (("W", "x@1", 3), ("K",), ("KR",)), (("K",), ("R", "x@1"), ("KR",))), {}, (0, 1)),
    Program("a block ends under a copy for it", (
        (("AE", "b@1", 1), ("C", "b@1", "x@1", 4)), (("W", "y@1", 1),)), {"b": 1}, (0, 1)),
]  # fmt: skip


def drawn_commits(seed: int, *, own: bool = False) -> Program:
    """Two blocks, or three, that commit to each other, at random. `own`: and to a barrier of their
    own, for which they may not wait."""
    pick, other = random.Random(seed), random.Random(seed)
    blocks = pick.choice((2, 2, 2, 3))
    every = tuple(range(blocks))
    laps = pick.choice((1, 2, 2, 3)) if blocks == 2 else 1
    reader = pick.randrange(blocks)
    threads = []
    for rank in range(blocks):
        ops: list[Op] = []
        for lap in range(laps):
            if rank == reader and pick.random() < 0.6:
                ops.append(("W", f"x@{rank}", lap))
            ops.append(("M", "b", every))
            ops += [("T", f"b@{rank}", lap & 1)] if pick.random() < 0.8 else []
            if own and other.random() < 0.3:
                parity = ops.count(("M", "own", (rank,))) & 1
                ops.append(("M", "own", (rank,)))
                ops += [("T", f"own@{rank}", parity)] if other.random() < 0.5 else []
            if pick.random() < 0.2:
                ops.append(("R", f"x@{reader}"))
        threads.append((*ops, ("K",)))
    counts = {"b": blocks, "own": 1} if own else {"b": blocks}
    return Program(f"commits {seed}", tuple(threads), counts, every)


def drawn(seed: int) -> Program:
    """A small program at random: most deadlock or race, some are right."""
    pick = random.Random(seed)
    threads = pick.choice((2, 2, 3))
    barriers = ["b", "c"][: pick.choice((1, 2))]
    counts = {b: pick.choice((1, 1, 2)) for b in barriers}
    laps = dict.fromkeys(barriers, 0)
    value = 0
    ops: list[list[Op]] = [[] for _ in range(threads)]
    for _ in range(pick.randrange(3, 9)):
        thread, b = pick.randrange(threads), pick.choice(barriers)
        kind = pick.choice(("W", "R", "A", "A", "T", "T", "C", "S"))
        if kind == "W":
            value += 1
            ops[thread].append(("W", pick.choice("xy"), value))
        elif kind == "R":
            ops[thread].append(("R", pick.choice("xy")))
        elif kind == "A":
            ops[thread].append(("A", b))
            laps[b] += 1
        elif kind == "T":
            parity = (laps[b] // counts[b] - pick.choice((0, 1, 1, 1))) & 1
            ops[thread].append(("T", b, parity))
        elif kind == "C":
            value += 1
            ops[thread] += [("AE", b, 1), ("C", b, pick.choice("xy"), value % 16)]
            laps[b] += 1
        else:
            for each in pick.sample(range(threads), 2):
                ops[each].append(("S", 1, 2))
    return Program(f"drawn {seed}", tuple(map(tuple, ops)), counts)
