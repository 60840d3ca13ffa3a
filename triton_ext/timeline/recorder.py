"""Records what warps ask of the units of an SM: an observer of one launch.

What each instruction does is seen by the hooks of `Observer`; here it becomes items and tokens. The
products, loads and copies of the eager schedule are done when they are issued, so that what a
barrier is told of belongs to the copy that was issued last.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from triton_ext.emulator.clients.statistics import Wavefronts
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.barriers import ClusterBarrier, NamedBarrier
from triton_ext.emulator.state.block import Cta, Launch
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Addresses
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.parse import Instruction
from triton_ext.timeline.costs import PTX_CHAIN
from triton_ext.timeline.handlers import HANDLERS
from triton_ext.timeline.recording import Block, Bringing, Cluster, Recording
from triton_ext.timeline.sass import Cost
from triton_ext.timeline.trace import (
    ATOMIC,
    CLUSTER,
    COPY,
    FAR,
    GLOBAL,
    NAMED,
    NEAR,
    SECTOR_BYTES,
    SEND,
    SHARED,
    SIGNAL,
    STORE,
    TENSOR,
    WAIT,
    Trace,
)

_RELEASING = re.compile(r"(atom|red)\S*\.(acq_rel|release)")
_ASKING = re.compile(r"(@\S+ )?ld\.\S*(acquire|relaxed|volatile)")
"""Loads of what other blocks write."""


class Recorder(Observer):
    """The observer that records some clusters of one launch.

    Args:
        clusters: the numbers of these clusters in the grid.
        costs: what the instructions cost that each PTX line became, if that is known.
    """

    def __init__(self, clusters: Collection[int], costs: Mapping[int, Cost]) -> None:
        self._wanted = frozenset(clusters)
        self._now = Recording(costs)
        self._wavefronts = Wavefronts()

    # ------------------------------------------------------------------- instructions

    def _block(self, cta: Cta) -> Block | None:
        number = cta.cluster.number
        if number not in self._wanted:
            return None
        found = self._now.clusters.get(number)
        if found is None:
            found = self._now.clusters[number] = Cluster(len(cta.cluster.ctas), cta.warps)
        return found.blocks[cta.rank]

    def instruction(self, cta: Cta, step: Step, lanes: Lanes) -> None:
        block = self._block(cta)
        if block is None:
            return
        kind = self._now.kind = self._now.text.known(step)
        self._now.loaded = step.written
        if isinstance(lanes, slice):
            warps: Sequence[int] = range(
                lanes.start // WARP_THREADS, (lanes.stop - 1) // WARP_THREADS + 1
            )
        else:
            warps = lane_sets.warps(lanes).tolist()
        if block.loading:
            self._use(block, step, warps)
        if kind.issued or kind.cycles or kind.latency == 0:
            taken = kind.cycles
            if taken is None:
                taken = block.warps[warps[0]].chain(step, kind) * PTX_CHAIN
            for number in warps:
                run = block.warps[number].run
                run.issued += kind.issued
                run.chain += taken
                run.at = kind.at
                if any(kind.turns):
                    run.turns = tuple(a + b for a, b in zip(run.turns, kind.turns, strict=True))
        if kind.handle:
            HANDLERS[kind.handle](self._now, cta, block, warps)

    def _use(self, block: Block, step: Step, warps: Iterable[int]) -> None:
        """Let warps wait for the loads whose registers the instruction names."""
        for number in warps:
            warp = block.warps[number]
            if warp.loads:
                left = []
                for token, registers in warp.loads:
                    if step.touched & registers:
                        warp.add((WAIT, self._now.kind.at, token))
                    else:
                        left.append((token, registers))
                warp.loads = left
        block.loading = any(warp.loads for warp in block.warps)

    def multiplies(
        self, cta: Cta, thread: int, shape: tuple[int, int, int], group: int, a_in_memory: bool
    ) -> None:
        block = self._block(cta)
        if block is not None:
            m, n, k = shape
            read = 32 * ((m if a_in_memory else 0) + n) // group
            item = (TENSOR, self._now.kind.at, m, n, 32 / k, group, read)
            block.warps[thread // WARP_THREADS].add(item)

    # ------------------------------------------------------------------------- barriers

    def arrives(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, far: bool) -> None:
        block = self._block(cta)
        if block is not None:
            cluster = self._now.clusters[cta.cluster.number]
            warps = lane_sets.warps(lanes).tolist()
            token = cluster.phase(cta, barrier, phase, len(warps))
            kinds = {NamedBarrier: NAMED, ClusterBarrier: CLUSTER}
            how = kinds.get(type(barrier), FAR if far else NEAR)
            for number in warps:
                block.warps[number].add((SIGNAL, self._now.kind.at, token, how))

    def awaits(self, cta: Cta, lanes: Lanes, barrier: Any, phase: int, at: Instruction) -> None:
        block = self._block(cta)
        cluster = self._now.clusters.get(cta.cluster.number)
        if block is None or cluster is None:
            return
        token = cluster.phases.get((id(barrier), phase))
        if token is None:  # the phase before the first, which counts as completed
            return
        number = self._now.text.numbers[at.line]
        for warp in lane_sets.warps(lanes).tolist():
            block.warps[warp].add((WAIT, number, token))

    # --------------------------------------------------------------------------- memory

    def access(
        self, cta: Cta, lanes: Lanes, space: str, addresses: Addresses, width: int, kind: str
    ) -> None:
        block = self._block(cta)
        if block is None or space not in ("shared", "global"):
            return
        cluster = self._now.clusters[cta.cluster.number]
        at = self._now.kind.at
        if space == "shared":
            for number, wavefronts, _ in self._wavefronts(lanes, addresses, width):
                token = block.load(cluster, number, self._now.loaded) if kind != "store" else -1
                block.warps[number].add((SHARED, at, wavefronts, token))
            return
        memory = self._now.pieces.number(cta, int(addresses[0]))
        threads = lane_sets.indices(lanes) // WARP_THREADS
        for number in np.unique(threads).tolist():
            sectors = set((addresses[threads == number] // SECTOR_BYTES).tolist())
            warp = block.warps[number]
            if kind == "atomic":
                warp.asks(cluster, at, int(addresses[0]))
                token = block.load(cluster, number, self._now.loaded)
                releases = _RELEASING.search(self._now.text.lines[at].text) is not None
                warp.add((ATOMIC, at, len(sectors), memory, releases, token))
            elif kind == "store":
                warp.add((GLOBAL, at, len(sectors), 0, memory, -1))
            else:
                if _ASKING.match(self._now.text.lines[at].text):
                    warp.asks(cluster, at, int(addresses[0]))
                new = block.missed(sectors)
                if kind == "copy":
                    token = cluster.token(name="cp.async")
                    warp.open["async"].append(token)
                else:
                    token = block.load(cluster, number, self._now.loaded)
                warp.add((GLOBAL, at, new, len(sectors) - new, memory, token))

    def copies(self, cta: Cta, lanes: Lanes, kind: str, box: Any, address: int, size: int) -> None:
        block = self._block(cta)
        if block is None:
            return
        cluster = self._now.clusters[cta.cluster.number]
        warp = block.warps[int(lane_sets.warps(lanes)[0])]
        inside, rows, absent, pitch = size, 1, 0, 0
        if box is not None:
            address, rows = box.map.global_address, len(box.box.outer)
            there, inside = box.inside
            absent = rows - there
            pitch = (*box.map.global_strides, 0)[0]
        memory = self._now.pieces.number(cta, address, pitch) if address >= 0 else -1
        if kind == "load":
            self._now.bringing = Bringing()
            what = (
                (address, size)
                if box is None
                else (address, box.coordinates, tuple(box.rows or ()))
            )
            again = what in cluster.copied
            cluster.copied.add(what)
            found = (self._now.bringing.tokens, self._now.bringing.ranks, again, absent)
            warp.add((COPY, self._now.kind.at, inside, size, rows, memory, *found))
        else:
            read, written = (cluster.token(name="TMA store") for _ in range(2))
            warp.open["bulk"] += [read, written]
            warp.add((STORE, self._now.kind.at, inside, rows, memory, read, written))

    def sends(self, cta: Cta, lanes: Lanes, size: int) -> None:
        block = self._block(cta)
        if block is None:
            return
        found = lane_sets.indices(lanes) // WARP_THREADS
        warps, threads = np.unique(found, return_counts=True)
        self._now.bringing = Bringing(len(warps))
        for number, count in zip(warps.tolist(), threads.tolist(), strict=True):
            block.warps[number].add(
                (SEND, self._now.kind.at, count * size, self._now.bringing.tokens)
            )

    def brings(self, cta: Cta, rank: int, barrier: Any, phase: int) -> None:
        cluster = self._now.clusters.get(cta.cluster.number)
        if cluster is not None and cta.cluster.number in self._wanted:
            bringing = self._now.bringing
            bringing.tokens.append(cluster.phase(cta, barrier, phase, bringing.items))
            bringing.ranks.append(rank)

    # ------------------------------------------------------------------------- the result

    def trace(self, launch: Launch, name: str, registers: int) -> Trace:
        """The record of the launch."""
        now = self._now
        clusters = {number: cluster.trace() for number, cluster in now.clusters.items()}
        return Trace(
            name, launch.grid, launch.cluster, launch.threads, launch.shared_bytes, registers,
            now.text.lines, now.pieces.all, clusters, now.columns, now.text.binary,
        )  # fmt: skip
