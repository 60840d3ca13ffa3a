"""The pipeline of buffers through which tiles of A and B come to the tensor cores.

One role fills the buffers by TMA, others empty them. Two mbarriers a buffer connect them: `ready`
(the copies have arrived) and `free` (all consumers have read them). A barrier's phase flips each
time that it completes, so whoever waits keeps a `Slot`: the buffer and the phase of this turn.

The blocks of a cluster may share the tile of B, and those side by side that of A, once the
consumers of all have read what was there before: `free` counts the arrivals of all. On Hopper, the
copies are dealt out among them (`boxes`); on Blackwell, one block copies the tile of B to all,
and the tensor cores' own arrivals reach every block.

"A" is the left operand and "B" the right one, also where the caller has swapped them. A tile of B
need not be as wide as a power of two: it may be several *units* side by side, of whose last one
some columns are not used.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from triton_ext.compat import TRITON_VERSION, aggregate, reinterpret
from triton_ext.kernels.device.block_scales import BlockScales
from triton_ext.kernels.device.boxes import copied_bytes, copiers, copiers_of, copy_boxes
from triton_ext.kernels.device.clusters import OWN, block_of_cluster
from triton_ext.kernels.device.fp32_scales import Fp32Scales
from triton_ext.kernels.device.matrices import load_tile
from triton_ext.kernels.device.peers import Peers
from triton_ext.kernels.device.row_gather import ARRIVALS as ARRIVALS_OF_ROWS
from triton_ext.kernels.device.row_gather import RowGather, RowsByTma
from triton_ext.kernels.device.staged_scales import ARRIVALS, StagedScales, own_address

ENDS_TOGETHER = gl.constexpr(TRITON_VERSION >= (3, 9))
"""Whether Triton ends a kernel in a cluster with a barrier of the cluster; 3.8 does so for pairs of
sm_100 alone."""

HAS_ASSEMBLY = gl.constexpr(TRITON_VERSION >= (3, 9))
"""Whether Triton gives the addresses of barriers to inline assembly. Its own waits and arrivals
come with a barrier of the warpgroup for each K tile. None is needed: a warpgroup's products are
over for all of its warps when they are for one."""
WAIT = gl.constexpr("""{
    .reg .pred complete;
    again:
    mbarrier.try_wait.parity.shared::cta.b64 complete, [$0], $1;
    @!complete bra.uni again;
    }""")
ARRIVE = gl.constexpr("""{
    .reg .pred some;
    .reg .b32 barrier;
    setp.ne.b32 some, $1, 0;
    setp.ne.and.b32 some, $3, 0, some;
    add.u32 barrier, $1, $2;
    @some mbarrier.arrive.shared::cluster.b64 _, [barrier];
    mov.b32 $0, 0;
    }""")
BARRIER_BYTES = gl.constexpr(8)


@gluon.constexpr_function
def threads_layout(blocks):
    """An element for each thread of a warpgroup, in each block of a cluster."""
    return gl.BlockedLayout(
        [1], [32], [4], [0], cga_layout=[[0] for _ in range(blocks.bit_length() - 1)]
    )


@gluon.jit
def allocate_barriers(NUMBER: gl.constexpr, count: gl.constexpr):
    """So many barriers of this block; a phase of each takes `count` arrivals."""
    barriers = mbarrier.allocate_mbarrier(batch=NUMBER)
    for each in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(each), count=count)
    return barriers


@aggregate
class Operands:
    """A and B in global memory.

    Attributes:
        a, b: TMA descriptors of their tiles.
        edge: that of the edge of the tile of B, or None.
        peers: the ranks among which the rows of A are divided, or None.
        PLAN: the kernel's `SpecializedPlan`.
    """

    a: tma.tensor_descriptor
    b: tma.tensor_descriptor
    edge: tma.tensor_descriptor | gl.constexpr
    peers: Peers | gl.constexpr
    PLAN: gl.constexpr

    @gluon.jit
    def gathers(self):
        """Whether chunks of A come from other ranks; known when the kernel is compiled."""
        return False if self.peers is None else not self.peers.SCATTER

    @gluon.jit
    def load_left(self, work, row, k, barrier, tile):
        """Start the copy of a tile of A: rows from `row` on, elements of K from k on."""
        SHARED: gl.constexpr = self.PLAN.tile.cluster_k == 1
        K_MAJOR: gl.constexpr = self.PLAN.left_k_major
        if self.peers is None:
            load_tile(self.a, work.matrix, row, k, barrier, tile, K_MAJOR, SHARED=SHARED)
        else:
            chunk = self.peers.chunk(work.matrix)
            if self.peers.SCATTER:
                load_tile(self.a, chunk, row, k, barrier, tile, K_MAJOR, SHARED=SHARED)
            else:
                if work.matrix == 0:
                    load_tile(self.peers.own, 0, row, k, barrier, tile, K_MAJOR, SHARED=SHARED)
                else:
                    load_tile(self.a, chunk, row, k, barrier, tile, K_MAJOR, SHARED=SHARED)


@aggregate
class Slot:
    """A buffer of the pipeline, and the phase of its barriers in this turn."""

    index: gl.tensor
    phase: gl.tensor
    STAGES: gl.constexpr

    @gluon.jit
    def next(self):
        """The slot one buffer later."""
        last = self.index == self.STAGES - 1
        index = gl.where(last, 0, self.index + 1)
        phase = gl.where(last, self.phase ^ 1, self.phase)
        return Slot(index, phase, self.STAGES)

    @gluon.jit
    def after(self, count):
        """The slot `count` buffers later."""
        last = self.index + count
        return Slot(last % self.STAGES, self.phase ^ (last // self.STAGES & 1), self.STAGES)

    @gluon.jit
    def previous(self):
        """The index of the buffer before."""
        return gl.where(self.index == 0, self.STAGES - 1, self.index - 1)


@aggregate
class Pipeline:
    """The buffers and their barriers.

    Attributes:
        a_tiles, b_tiles: the buffers, a dimension of which counts them; each has a tile of A for
            each warpgroup that shares the tile of C. A tile of B may be several units, those for
            each part of K one after the other.
        ready, free: the barriers.
        PLAN: the kernel's `SpecializedPlan`.
        scales: those of the tiles, which come with them; None if they are not block-scaled.
        fp32_scales: those by which sums of a K tile are multiplied, in memory; or None.
        staged: the same on Hopper, beside the tiles; or None.
        rows: the rows of A that are copied one by one; or None.
    """

    a_tiles: gl.shared_memory_descriptor
    b_tiles: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    PLAN: gl.constexpr
    scales: BlockScales | gl.constexpr
    fp32_scales: Fp32Scales | gl.constexpr
    staged: StagedScales | gl.constexpr
    rows: RowGather | RowsByTma | gl.constexpr

    @gluon.jit
    def first(self):
        """The first slot of the first turn."""
        return Slot(gl.to_tensor(0), gl.to_tensor(0), self.PLAN.tile.stages)

    @gluon.jit
    def left_tile(self, slot, WHICH: gl.constexpr):
        """That of a slot's tiles of A which a consumer reads."""
        CONSUMERS: gl.constexpr = self.PLAN.tile.sharing_consumers
        return self.a_tiles.index(slot.index * CONSUMERS + WHICH % CONSUMERS)

    @gluon.jit
    def right_unit(self, slot):
        """The first of the units of a slot's tile of B."""
        UNITS: gl.constexpr = self.b_tiles.shape[0] // self.PLAN.tile.stages
        return self.b_tiles.index(slot.index * UNITS)

    @gluon.jit
    def half(self, desc, slot, WHICH: gl.constexpr):
        """A half of a slot's tile of B, as a block of a descriptor."""
        STAGES: gl.constexpr = self.b_tiles.shape[0]
        SHAPE: gl.constexpr = [2 * STAGES] + desc.block_type.shape  # noqa: RUF005 (Triton has no *)
        halves = reinterpret(self.b_tiles, desc.dtype, SHAPE, desc.layout)
        return halves.index(2 * slot.index + WHICH)

    @gluon.jit
    def fill(self, slot, operands, work, k, held=()):
        """Wait until the slot is free, and start the copies of all its tiles, those of K tile k.

        Args:
            held: the indices of the tile's rows of A, if they are copied here (sm_100).
        """
        TILE: gl.constexpr = self.PLAN.tile
        LEFT: gl.constexpr = self.PLAN.boxes[0]
        RIGHT: gl.constexpr = self.PLAN.boxes[1]
        EDGE: gl.constexpr = self.PLAN.boxes[2]
        PARTS: gl.constexpr = TILE.sharing_consumers
        BELOW: gl.constexpr = gl.num_ctas() // (TILE.cluster_n * TILE.cluster_k)
        UNIT_M: gl.constexpr = self.a_tiles.shape[1] // TILE.cluster_k
        OWN_M: gl.constexpr = UNIT_M // BELOW
        SHARED: gl.constexpr = TILE.cluster_k == 1
        # Rows of A may come by copies of their own, on Hopper by other warps.
        ROWS_LEFT: gl.constexpr = self.rows is not None and not TILE.swap_ab
        ROWS_RIGHT: gl.constexpr = self.rows is not None and TILE.swap_ab
        ROWS_HERE: gl.constexpr = self.rows is not None and TILE.arch == 100
        COUNTS_LEFT: gl.constexpr = ROWS_HERE or not ROWS_LEFT
        COUNTS_RIGHT: gl.constexpr = ROWS_HERE or not ROWS_RIGHT
        scales = self.scales
        scale_bytes: gl.constexpr = (
            0 if scales is None else scales.a_desc.nbytes_per_cta + scales.b_desc.nbytes_per_cta
        )
        left_bytes: gl.constexpr = copied_bytes(operands.a, LEFT) * (PARTS if LEFT is None else 1)
        TWICE: gl.constexpr = self.PLAN.parts_of_b > 1 and RIGHT is None
        first_n = work.off_n * (2 if self.PLAN.interleaved else 1)
        right_bytes: gl.constexpr = copied_bytes(operands.b, RIGHT) * (2 if TWICE else 1)
        edge_bytes: gl.constexpr = 0 if EDGE is None else copied_bytes(operands.edge, EDGE)
        off_k = k * (TILE.block_k * TILE.cluster_k)
        if self.PLAN.groups is not None:
            off_k += work.off_k
        barrier = self.ready.index(slot.index)
        self.wait_free(slot)
        mbarrier.expect(
            barrier,
            scale_bytes
            + (left_bytes if COUNTS_LEFT else 0)
            + (right_bytes + edge_bytes if COUNTS_RIGHT else 0),
        )
        block = block_of_cluster()
        row, column = block % BELOW, block // BELOW
        if ROWS_LEFT:
            pass
        elif LEFT is not None:
            copy_boxes(operands.a, LEFT, self.left_tile(slot, 0), barrier, work.matrix,
                       work.off_m + row * OWN_M, off_k, column, row)  # fmt: skip
        else:
            for part in gl.static_range(PARTS):
                operands.load_left(work, work.off_m + part * UNIT_M, off_k, barrier,
                                   self.left_tile(slot, part))  # fmt: skip
        if ROWS_RIGHT:
            pass
        elif RIGHT is not None:
            off_n = first_n + (column * TILE.columns if SHARED else 0)
            own_k = off_k + (0 if SHARED else block * TILE.block_k)
            first = block - row
            copy_boxes(operands.b, RIGHT, self.right_unit(slot), barrier, work.matrix,
                       off_n, own_k, row, first)  # fmt: skip
            if EDGE is not None:
                copy_boxes(operands.edge, EDGE, self.right_unit(slot), barrier,
                           work.matrix, off_n, own_k, row, first)  # fmt: skip
        elif TWICE:
            for half in gl.static_range(2):
                load_tile(operands.b, 2 * work.matrix + half, work.off_n, off_k, barrier,
                          self.half(operands.b, slot, half), self.PLAN.right_k_major)  # fmt: skip
        else:
            load_tile(operands.b, work.matrix, first_n, off_k, barrier,
                      self.b_tiles.index(slot.index), self.PLAN.right_k_major,
                      SHARED=SHARED)  # fmt: skip
        if ROWS_HERE:
            self.rows.fill(slot.index, held, k, barrier)
        if scales is not None:
            scales.fill(slot.index, work, k, barrier)

    @gluon.jit
    def fill_scales(self, slot, work):
        """Wait until the slots of a tile are free, one after the other, and start the copies of its
        fp32 scales; the slot behind.
        """
        columns, rows = self.staged.sources(
            work, self.PLAN.tile.sharing_consumers, self.a_tiles.shape[1],
            self.PLAN.scaled_together[1],
        )  # fmt: skip
        for _ in range(work.k_first, work.k_end):
            self.wait_free(slot)
            columns, rows = self.staged.fill(
                columns, rows, slot.index, self.ready.index(slot.index)
            )
            slot = slot.next()
        return slot

    @gluon.jit
    def wait_free_by_warp(self, slot):
        """`wait_free` for warps of a role that need not wait for each other."""
        gl.inline_asm(WAIT, "r,r", (own_address(self.free.index(slot.index)), slot.phase ^ 1))

    @gluon.jit
    def wait_free(self, slot):
        """Wait until the slot's last tiles have been read; passes in the first turn."""
        mbarrier.wait(self.free.index(slot.index), slot.phase ^ 1)

    @gluon.jit
    def end(self, slot, filled):
        """No block may end while another one's arrival is on its way to it: after the last tiles,
        given the slot behind them, wait until all were read, where the kernel itself does not end
        with a barrier of the cluster that waits for them.

        Args:
            filled: how many tiles there were: nobody arrives for stages that a short K has not
                filled, and each wait takes 50 cycles.
        """
        if self.PLAN.tile.shares_tiles or (gl.num_ctas() > 1 and not ENDS_TOGETHER):
            STAGES: gl.constexpr = self.PLAN.tile.stages
            for each in gl.static_range(STAGES):
                if filled + each >= STAGES:
                    self.wait_free(slot)
                slot = slot.next()

    @gluon.jit
    def wait(self, slot):
        """Wait until the slot's tiles have arrived."""
        mbarrier.wait(self.ready.index(slot.index), slot.phase)

    @gluon.jit
    def reader(self):
        """For a consumer warpgroup on Hopper."""
        threads = gl.arange(0, 128, threads_layout(gl.num_ctas()))
        if self.staged is not None:  # each warp has read them
            threads = threads % 32
        ready = gl.to_tensor(0)
        if HAS_ASSEMBLY:
            block = block_of_cluster()
            ready = gl.inline_asm(OWN, "=r,r,r", (self.ready.index(0), block), gl.int32)
            free = gl.inline_asm(OWN, "=r,r,r", (self.free.index(0), block), gl.int32)
            if self.PLAN.tile.shares_tiles:
                threads = copiers_of(threads, free, block, self.PLAN.tile.cluster_n)
            else:
                threads = gl.where(threads == 0, free, 0)
        scales = gl.to_tensor(0)
        if self.staged is not None:
            scales = own_address(self.staged.words)
        return Reader(self, ready, threads, scales)


@aggregate
class Reader:
    """A consumer's end of the pipeline.

    Attributes:
        ready: the address of the first of these barriers.
        listeners: for each thread, the address of the first barrier `free` of a block that copies
            into the buffers, or 0.
        scales: the address of the first buffer's scales, if there are any.
    """

    pipeline: Pipeline
    ready: gl.tensor
    listeners: gl.tensor
    scales: gl.tensor

    @gluon.jit
    def wait(self, slot):
        """Wait until the slot's tiles have arrived."""
        if HAS_ASSEMBLY:
            barrier = self.ready + slot.index * BARRIER_BYTES
            gl.inline_asm(WAIT, "r,r", (barrier, slot.phase))
        else:
            self.pipeline.wait(slot)

    @gluon.jit
    def release(self, index, pred):
        """The buffer has been read: tell the producers whose copies wait for it."""
        if HAS_ASSEMBLY:
            every = gl.zeros_like(self.listeners)
            gl.inline_asm_elementwise(
                ARRIVE, "=r,r,r,r",
                [self.listeners, every + index * BARRIER_BYTES,
                 every + gl.to_tensor(pred).to(gl.int32)],
                gl.int32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            mbarrier.arrive(self.pipeline.free.index(index), count=1, pred=pred)


@gluon.jit
def pipeline_of(a_tiles, b_tiles, staged, rows, PLAN: gl.constexpr):
    """A pipeline of these buffers on Hopper, with its barriers; see `Pipeline`."""
    STAGES: gl.constexpr = PLAN.tile.stages
    COPIERS: gl.constexpr = (
        copiers(gl.num_ctas(), PLAN.tile.cluster_n) if PLAN.tile.shares_tiles else 1
    )
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    BY_SCALES: gl.constexpr = 0 if staged is None else ARRIVALS
    FILLED: gl.constexpr = 1 + BY_SCALES + (0 if rows is None else ARRIVALS_OF_ROWS)
    WARPS: gl.constexpr = 1 if staged is None else 4
    for each in gl.static_range(STAGES):
        mbarrier.init(ready.index(each), count=FILLED)
        mbarrier.init(free.index(each), count=PLAN.tile.sharing_consumers * COPIERS * WARPS)
    return Pipeline(a_tiles, b_tiles, ready, free, PLAN, None, None, staged, rows)
