"""Memory and proxy fences (PTX ISA, "membar/fence" and "Memory Consistency Model: Proxies")."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import CLUSTER
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.tensor_map_memory import check_alignment
from triton_ext.emulator.units.memory_order import SCOPES
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_map import TENSOR_MAP_BYTES
from triton_ext.ptx.parse import Instruction, immediate

_SCOPES = ("cta", "cluster", "gpu", "sys", "gl")


def _fence(cta: Cta, lanes: Lanes) -> None:
    cta.cluster.clocks.relaxed.fence(cta.agents(lanes))


@instruction(
    "fence membar fence.mbarrier_init",
    evidence=COMPILED,
    but="what it forbids: document",
    lockstep=True,
)
def fence(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``fence``, ``membar``, ``fence.mbarrier_init``: order what came before with what follows.

    Barriers release and acquire by themselves; a fence matters to relaxed arrivals and waits.
    """
    modifiers.one_of(("sc", "acq_rel", "acquire", "release"))
    modifiers.starting("sync_restrict::")
    width = SCOPES[modifiers.one_of(_SCOPES)]
    releases = width >= CLUSTER and "mbarrier_init" not in at.opcode

    def run(cta: Cta, lanes: Lanes) -> None:
        clocks, agents = cta.cluster.clocks, cta.agents(lanes)
        if releases:
            clocks.release_remote(agents)
        clocks.relaxed.fence(agents, width)

    return run


@instruction("fence.proxy.async", evidence=COMPILED)
def async_proxy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    space = modifiers.one_of(("global", "shared::cta", "shared::cluster"))
    if space == "global":  # told apart only in what several GPUs share: docs/guide/distributed.md
        return lambda cta, lanes: _share(cta, cta.agents(lanes))

    def run(cta: Cta, lanes: Lanes) -> None:
        agents = cta.agents(lanes)
        if not space:
            _share(cta, agents)
        whole = isinstance(lanes, slice) and not (lanes.start | lanes.stop) % WARP_THREADS
        before = None if whole else cta.cluster.clocks.fenced[agents, agents]
        cta.cluster.clocks.proxy_fence(agents)
        if before is not None:
            _leave_out(cta, lanes, before, at)
        if space != "shared::cta":
            # Triton lets barrier.cluster.arrive.relaxed follow it, with no other fence between,
            # and relies on the peer's tensor core to see what was stored before
            cta.cluster.clocks.relaxed.fence(agents)

    return run


def _share(cta: Cta, agents: NDArray[np.intp]) -> None:
    """The asynchronous proxy sees what agents have seen in the memory that several GPUs share."""
    cta.cluster.clocks.peers.proxy_fence(agents, cta.cluster.clocks.seen)


def _leave_out(cta: Cta, lanes: Lanes, before: NDArray[np.int64], at: Instruction) -> None:
    """Some lanes have executed a proxy fence: what others of their warps wrote is not fenced.

    Nothing orders those writes with the fence, so they count as made after it.

    Args:
        before: of each warp, its last event that was fenced before.
    """
    clocks, threads = cta.cluster.clocks, lane_sets.indices(lanes)
    for warp, fenced in zip(lane_sets.warps(lanes).tolist(), before.tolist(), strict=True):
        agent, first = cta.agents.first + warp, warp * WARP_THREADS
        living = cta.live[first : first + WARP_THREADS]
        others = np.zeros(WARP_THREADS, np.bool_)
        others[: len(living)] = living
        others[threads[threads // WARP_THREADS == warp] - first] = False
        after = max(fenced, int(clocks.joined[agent]))
        if others.any() and clocks.seen[agent, agent] > after:
            event = clocks.tick(np.array([agent]))
            cta.shared.write_again(agent, after, others, event)
            clocks.missing.partial[agent] = event, at


@instruction("fence.proxy.async::generic", evidence=COMPILED)
def restricted_proxy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``.acquire`` or ``.release``, ``.sync_restrict::shared::...``, ``.cluster``."""
    modifiers.one_of(("acquire", "release"))
    modifiers.starting("sync_restrict::")
    modifiers.one_of(_SCOPES)

    def run(cta: Cta, lanes: Lanes) -> None:
        _fence(cta, lanes)
        cta.cluster.clocks.proxy_fence(cta.agents(lanes))

    return run


@instruction("fence.proxy.alias", evidence=COMPILED)
def alias(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """It orders accesses by virtual aliases of one location; the emulator has none."""
    return lambda cta, lanes: None


@instruction("fence.proxy.tensormap::generic", evidence=COMPILED)
def tensor_map_proxy(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``.acquire`` makes a tensor map that the kernel wrote visible to TMA; see `tensor_maps`."""
    acquires = modifiers.one_of(("acquire", "release")) == "acquire"
    modifiers.one_of(_SCOPES)
    if not acquires:
        return _fence
    address = operands.address(at.operands[0], at)
    if immediate(at.operands[1]) != TENSOR_MAP_BYTES:
        raise UnsupportedInstruction(f"the size must be {TENSOR_MAP_BYTES}", at)

    def run(cta: Cta, lanes: Lanes) -> None:
        _fence(cta, lanes)
        agents = cta.agents(lanes)
        event = cta.cluster.clocks.tick(agents)
        for where in np.unique(address(cta, lanes)).tolist():
            check_alignment(where)
            made = cta.machine.tensor_maps.get(where)
            if made is not None:
                made.acquired.extend((cta.cluster.number, int(agent), event) for agent in agents)

    return run
