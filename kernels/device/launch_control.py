"""The tiles of a block of sm_100, one after the other: counted out, or asked for.

Counted out, a block makes every so-manieth tile, as on Hopper (`scheduler`). That is unfair where
SMs are not alike: some have other work, some are slower.

*Cluster launch control*: the grid has a block for each tile, more than run at a time. One that runs
asks the hardware, a tile ahead, for one that has not started. That one is then cancelled, and its
tile belongs to who asked. A warp of its own asks; the answers, of 16 bytes, lie in two buffers in
turn, and every role of the block, of all blocks of a cluster, reads each.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from triton_ext.compat import aggregate, clc
from triton_ext.kernels.device.pipeline import Slot
from triton_ext.kernels.device.scheduler import Tiling

ANSWERS = gl.constexpr(2)
"""How many answers are kept."""
ANSWER_BYTES = gl.constexpr(16)


@gluon.constexpr_function
def answer_layout(blocks):
    """The layout of answers, of which every block of a cluster has a copy."""
    bases = [[0]] * (blocks.bit_length() - 1)
    return gl.SwizzledSharedLayout(1, 1, 1, [0], cga_layout=bases)


@gluon.constexpr_function
def first_barrier(blocks):
    """The layout of a barrier that the first block of a cluster has for all."""
    return mbarrier.MBarrierLayout([[0]] * (blocks.bit_length() - 1))


@aggregate
class Ticket:
    """A tile that is this block's to make.

    Attributes:
        program: the number of the block whose tile it is.
        step: which of that block's.
        more: whether there is one; else all else here means nothing.
        slot: the next answer.
    """

    program: gl.tensor
    step: gl.tensor
    more: gl.tensor
    slot: Slot


@aggregate
class Tickets:
    """All tickets of a block, in order.

    Attributes:
        tiling: the problem in tiles.
        tiles: how many there are in all.
        answers: the answers' memory; None if tiles are counted out, and then also
        ready, free: barriers: an answer has arrived; all roles have read it.
        BATCHED: whether there are several matrices.
    """

    tiling: Tiling
    tiles: gl.tensor
    answers: gl.shared_memory_descriptor | gl.constexpr
    ready: gl.shared_memory_descriptor | gl.constexpr
    free: gl.shared_memory_descriptor | gl.constexpr
    BATCHED: gl.constexpr

    @gluon.jit
    def first(self):
        """The block's own tile."""
        more = gl.program_id(0) < self.tiles
        if self.answers is None:
            more = self.tiling.steps(self.tiles) > 0
        slot = Slot(gl.to_tensor(0), gl.to_tensor(0), ANSWERS)
        return Ticket(gl.program_id(0), gl.to_tensor(0), more, slot)

    @gluon.jit
    def next(self, ticket):
        """The one after this."""
        program, step, slot = ticket.program, ticket.step, ticket.slot
        if self.answers is None:
            step += 1
            more = step < self.tiling.steps(self.tiles)
        else:
            mbarrier.wait(self.ready.index(slot.index), slot.phase)
            answer = clc.load_result(self.answers.index(slot.index))
            more = answer.is_canceled()
            if more:
                program = answer.program_id(0)
            mbarrier.arrive(self.free.index(slot.index), count=1)
            slot = slot.next()
        return Ticket(program, step, more, slot)

    @gluon.jit
    def work(self, ticket):
        """What a ticket is for."""
        return self.tiling.work(ticket.step, self.tiles, self.BATCHED, 0, ticket.program)


@gluon.jit
def ask(tickets):
    """The warp that asks for tiles, until there are no more."""
    slot = tickets.first().slot
    more = gl.to_tensor(True)
    while more:
        answer, ready = tickets.answers.index(slot.index), tickets.ready.index(slot.index)
        mbarrier.wait(tickets.free.index(slot.index), slot.phase ^ 1)  # passes in the first turn
        mbarrier.expect(ready, ANSWER_BYTES)
        clc.try_cancel(answer, ready)
        mbarrier.wait(ready, slot.phase)
        more = clc.load_result(answer).is_canceled()
        mbarrier.arrive(tickets.free.index(slot.index), count=1)
        slot = slot.next()


@gluon.jit
def tickets_of(tiling, tiles, ROLES: gl.constexpr, ASKED: gl.constexpr, BATCHED: gl.constexpr):
    """The tickets of a block, counted out or asked for, with what that takes; see `Tickets`.

    Args:
        ROLES: how many roles of the block read each answer, the one that asks among them.
    """
    if not ASKED:
        answers: gl.constexpr = None
        ready: gl.constexpr = None
        free: gl.constexpr = None
    else:
        answers = gl.allocate_shared_memory(gl.int64, [ANSWERS, 2], answer_layout(gl.num_ctas()))
        ready = mbarrier.allocate_mbarrier(batch=ANSWERS)
        free = gl.allocate_shared_memory(gl.int64, [ANSWERS, 1], first_barrier(gl.num_ctas()))
        for each in gl.static_range(ANSWERS):
            mbarrier.init(ready.index(each), count=1)
            mbarrier.init(free.index(each), count=ROLES)
    return Tickets(tiling, tiles, answers, ready, free, BATCHED)
