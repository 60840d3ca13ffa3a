"""Clusters: their barrier, their addresses, and their launch control (PTX ISA)."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import COMPILED, DOCUMENT, KERNELS, SILICON
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Outcome, Run, Wait
from triton_ext.emulator.errors import MemoryFault, UnsupportedInstruction
from triton_ext.emulator.instructions.mbarriers import SHARED_SPACES
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import RANK_SHIFT, SHARED_WINDOW
from triton_ext.emulator.units.mbarriers import OFFSET_MASK, brings, owner, shared_addresses, signal
from triton_ext.hardware.alignments import RESPONSE
from triton_ext.ptx.parse import Instruction

RESPONSE_BYTES = RESPONSE.multiple
_CANCELED = 1
_AXES = ("::x", "::y", "::z", "")
_UNDEFINED = 0xFFFFFFFF
NOBODY = (1 << 32 - RANK_SHIFT) - 1
"""The rank of no block: the highest that a shared address of 32 bits can hold."""


@instruction("barrier.cluster.arrive", evidence=KERNELS)
@instruction("barrier.cluster.arrive.aligned", convergent=True, evidence=SILICON)
@instruction("barrier.cluster.arrive.relaxed.aligned", convergent=True, evidence=COMPILED)
@instruction("barrier.cluster.arrive.release.aligned", convergent=True, evidence=DOCUMENT)
def cluster_arrive(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("release")
    modifiers.flag("relaxed")
    modifiers.flag("aligned")
    relaxed = ".relaxed" in at.opcode

    def run(cta: Cta, lanes: Lanes) -> None:
        clocks, agents = cta.cluster.clocks, cta.agents(lanes)
        if not relaxed:
            clocks.release_remote(agents)
        clock = clocks.relaxed.published(agents) if relaxed else clocks.snapshot(agents)
        withheld = None
        if relaxed:
            why = "releases nothing: .release, or fence.acq_rel.cluster before it,"
            withheld = clocks.snapshot(agents).seen
            clocks.missing.withhold(withheld, at, why)
        barrier = cta.cluster.barrier
        cta.machine.observer.arrives(cta, lanes, barrier, barrier.generation, True)
        barrier.arrive(cta.rank, lanes, clock, withheld)
        cta.machine.progress += 1

    return run


@instruction("barrier.cluster.wait", evidence=KERNELS)
@instruction("barrier.cluster.wait.aligned", convergent=True, evidence=SILICON)
@instruction("barrier.cluster.wait.acquire.aligned", convergent=True, evidence=DOCUMENT)
def cluster_wait(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("acquire")
    modifiers.flag("aligned")

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        barrier = cta.cluster.barrier
        generation = barrier.wait(cta.rank, lanes)

        def resume() -> None:
            barrier.owes_wait[cta.rank][lanes] = False
            clocks, agents = cta.cluster.clocks, cta.agents(lanes)
            clocks.acquire(agents, barrier.released)
            if barrier.happened is not None:
                clocks.happened |= dict.fromkeys(agents.tolist(), barrier.happened)
            cta.machine.observer.awaits(cta, lanes, barrier, generation - 1, at)

        return Wait(lambda: barrier.generation >= generation, barrier.why, resume)

    return run


@instruction("mapa", evidence=SILICON)
def map_address(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """The address at the same offset in another block's shared memory."""
    space = modifiers.one_of(SHARED_SPACES)
    type_name = modifiers.type()
    write = operands.writer(at.operands[0], type_name, at)
    read = operands.reader(at.operands[1], type_name, at)
    rank = operands.reader(at.operands[2], "u32", at)
    window = 0 if space else SHARED_WINDOW

    def run(cta: Cta, lanes: Lanes) -> None:
        number = lane_sets.count(lanes)
        addresses = np.broadcast_to(read(cta, lanes), number).astype(np.int64)
        addresses = shared_addresses(cta, "shared::cluster" if space else "", addresses)
        ranks = np.broadcast_to(rank(cta, lanes), number).astype(np.int64)
        ranks = ranks.clip(max=NOBODY)  # a fault at the access alone: many addresses are never used
        write(cta, lanes, (ranks << RANK_SHIFT) + (addresses & OFFSET_MASK) + window)

    return run


@instruction("getctarank", evidence=DOCUMENT)
def block_rank(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """The rank of the block whose shared memory an address is in."""
    space = modifiers.one_of(SHARED_SPACES)
    type_name = modifiers.type()
    write = operands.writer(at.operands[0], "u32", at)
    read = operands.reader(at.operands[1], type_name, at)

    def run(cta: Cta, lanes: Lanes) -> None:
        addresses = np.broadcast_to(read(cta, lanes), lane_sets.count(lanes)).astype(np.int64)
        addresses = shared_addresses(cta, "shared::cluster" if space else "", addresses)
        write(cta, lanes, addresses >> RANK_SHIFT)

    return run


@instruction("clusterlaunchcontrol.try_cancel.async", evidence=KERNELS)
def try_cancel(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Take a cluster that has not started off the grid, and tell which one it was."""
    space = modifiers.one_of(SHARED_SPACES)
    if not modifiers.flag("mbarrier::complete_tx::bytes"):
        raise UnsupportedInstruction("its completion must be an mbarrier's", at)
    everywhere = modifiers.flag("multicast::cluster::all")
    modifiers.flag("b128")
    response = operands.address(at.operands[0], at)
    barrier = operands.address(at.operands[1], at)

    def run(cta: Cta, lanes: Lanes) -> None:
        responses = shared_addresses(cta, space, response(cta, lanes)).tolist()
        barriers = shared_addresses(cta, space, barrier(cta, lanes)).tolist()
        clock = cta.cluster.clocks.snapshot(cta.agents(lanes))

        def perform() -> None:
            for where, signals in zip(responses, barriers, strict=True):
                if wrong := RESPONSE.broken(where):
                    raise MemoryFault(wrong)
                answer = np.zeros(4, np.uint32)
                number = cta.machine.take_cluster(cta.cluster)
                if number is not None:
                    answer[0], answer[1:] = _CANCELED, cta.launch.blocks(number)[0]
                ranks = range(len(cta.cluster.ctas)) if everywhere else [where >> RANK_SHIFT]
                for rank in ranks:
                    there = (rank << RANK_SHIFT) + (signals & OFFSET_MASK)
                    unit = cta.agents.tma(there)
                    shared, offset = owner(cta, there).shared, where & OFFSET_MASK
                    shared.bulk_write(offset, answer.view(np.uint8), clock, unit, name=_NAME)
                    shared.check_reads_fenced(offset, RESPONSE_BYTES, clock, _NAME)
                    event = int(cta.cluster.clocks.seen[unit, unit])
                    done = cta.cluster.clocks.of_event(unit, event)
                    # The answer follows the request: what was over then, such as other blocks'
                    # reads of what they hand on with the tile, is over for who has the answer.
                    np.maximum(done.seen, clock.seen, out=done.seen)
                    brings(cta, there, RESPONSE_BYTES, at)
                    signal(cta, there, RESPONSE_BYTES, done, unit)

        cta.issue(lanes, None, perform)

    return run


_NAME = "clusterlaunchcontrol.try_cancel"


@instruction("clusterlaunchcontrol.query_cancel.is_canceled", evidence=KERNELS)
def is_canceled(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    modifiers.flag("pred")
    modifiers.flag("b128")
    write = operands.writer(at.operands[0], "pred", at)
    read = operands.reader(at.operands[1], "b128", at)
    flag = np.uint64(_CANCELED)
    return lambda cta, lanes: write(cta, lanes, read(cta, lanes)[:, 0] & flag != 0)


@instruction(
    " ".join(f"clusterlaunchcontrol.query_cancel.get_first_ctaid{axis}" for axis in _AXES),
    evidence=KERNELS,
)
def first_block(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """The index of the first block of the cluster that was taken off."""
    axis = at.opcode.split("get_first_ctaid")[1].removeprefix("::")[:1]
    modifiers.flag("v4")
    modifiers.flag("b32")
    modifiers.flag("b128")
    read = operands.reader(at.operands[1], "b128", at)
    texts = operands.vector(at.operands[0])
    if len(texts) != (4 if axis == "." else 1):
        raise UnsupportedInstruction("another number of registers", at)
    words = range(1, 5) if axis == "." else ["xyz".index(axis) + 1]
    writers = [operands.writer(text, "u32", at) for text in texts]

    def run(cta: Cta, lanes: Lanes) -> None:
        answer = np.ascontiguousarray(read(cta, lanes)).view(np.uint32)
        # Of a response that canceled nothing the result is undefined; compilers ask all the same,
        # before they look at is_canceled.
        answer = np.where(answer[:, :1] & _CANCELED, answer, _UNDEFINED)
        for word, write in zip(words, writers, strict=True):
            if word < answer.shape[1]:
                write(cta, lanes, answer[:, word])

    return run
