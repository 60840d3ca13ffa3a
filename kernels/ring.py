"""The ring of buffers through which tiles of A and B come to the tensor cores.

One role fills the buffers by TMA, others empty them. Two mbarriers a buffer connect them: `ready`
(the copies have arrived) and `free` (all consumers have read them). A barrier's phase flips each
time that it completes, so whoever waits keeps a `Slot`: the buffer and the phase of this turn.

The blocks of a cluster may share the tile of B, and those side by side that of A, once the
consumers of all have read what was there before: `free` counts the arrivals of all. On Hopper, the
copies are dealt out among them (`multicast`); on Blackwell, one block copies the tile of B to all,
and the tensor cores' own arrivals reach every block.

"A" is the left operand and "B" the right one, also where the caller has swapped them. A tile of B
need not be as wide as a power of two: it may be several *units* side by side, or its last columns
may be a second, narrower tile.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from triton_ext.compat import TRITON_VERSION, aggregate
from triton_ext.kernels.block_scales import BlockScales
from triton_ext.kernels.clusters import block_of_cluster
from triton_ext.kernels.matrices import load_tile
from triton_ext.kernels.multicast import copiers, copy_boxes, release
from triton_ext.kernels.peers import Peers

ENDS_TOGETHER = gl.constexpr(TRITON_VERSION >= (3, 9))
"""Whether Triton ends a kernel in a cluster with a barrier of the cluster; 3.8 does so for pairs of
sm_100 alone."""


@gluon.jit
def allocate_barriers(NUMBER: gl.constexpr, count: gl.constexpr):
    """So many barriers of this block; a phase of each takes `count` arrivals."""
    barriers = mbarrier.allocate_mbarrier(batch=NUMBER)
    for each in gl.static_range(NUMBER):
        mbarrier.init(barriers.index(each), count=count)
    return barriers


@gluon.jit
def invalidate(barriers):
    """End the use of these barriers."""
    NUMBER: gl.constexpr = barriers.shape[0]
    for each in gl.static_range(NUMBER):
        mbarrier.invalidate(barriers.index(each))


@aggregate
class Operands:
    """A and B in global memory.

    Attributes:
        a, b: TMA descriptors of their tiles.
        narrow: that of the narrow tile of B, or None.
        prefetched: the address of the operand to prefetch while the kernel before this one ends, or
            None.
        A_K_MAJOR, B_K_MAJOR: whether K is the contiguous dimension.
        K_BLOCKS: how many blocks of a cluster divide K among them: each has every so-manieth tile,
            and copies it for itself alone.
        peers: the ranks among which the rows of A are divided, or None.
    """

    a: tma.tensor_descriptor
    b: tma.tensor_descriptor
    narrow: tma.tensor_descriptor | gl.constexpr
    prefetched: gl.tensor | gl.constexpr
    A_K_MAJOR: gl.constexpr
    B_K_MAJOR: gl.constexpr
    K_BLOCKS: gl.constexpr
    peers: Peers | gl.constexpr

    @gluon.jit
    def gathers(self):
        """Whether chunks of A come from other ranks; known when the kernel is compiled."""
        return False if self.peers is None else not self.peers.SCATTER

    @gluon.jit
    def load_left(self, work, row, k, barrier, tile):
        """Start the copy of a tile of A: rows from `row` on, elements of K from k on."""
        SHARED: gl.constexpr = self.K_BLOCKS == 1
        K_MAJOR: gl.constexpr = self.A_K_MAJOR
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
    """A buffer of the ring, and the phase of its barriers in this turn."""

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
class Ring:
    """The buffers and their barriers.

    Attributes:
        a_tiles, b_tiles, narrow_tiles: the buffers, a dimension of which counts them; each has
            `SHARES` tiles of A, one for each warpgroup that shares the tile of C. A tile may be
            several units, those for each part of K one after the other.
        ready, free: the barriers.
        STAGES: how many buffers there are.
        BLOCK_K: elements of a tile along K.
        LEFT_UNITS: how many units of rows a tile of A is.
        LOADED_UNITS: how many of them are copied; the others stay zero.
        UNITS: how many units side by side a tile of B is.
        CLUSTER_COLUMNS: how many columns of blocks a cluster has; each has its units.
        DEALT: whether the copies of shared tiles are dealt out among the blocks that share them.
        NARROW: whether there is a narrow tile of B; else `narrow_tiles` is not used.
        PRODUCT: the `wgmma.Product` with which tiles are multiplied, or None.
        scales: those of the tiles, which come with them; None if they are not block-scaled.
    """

    a_tiles: gl.shared_memory_descriptor
    b_tiles: gl.shared_memory_descriptor
    narrow_tiles: gl.shared_memory_descriptor
    ready: gl.shared_memory_descriptor
    free: gl.shared_memory_descriptor
    STAGES: gl.constexpr
    SHARES: gl.constexpr
    BLOCK_K: gl.constexpr
    LEFT_UNITS: gl.constexpr
    LOADED_UNITS: gl.constexpr
    UNITS: gl.constexpr
    CLUSTER_COLUMNS: gl.constexpr
    DEALT: gl.constexpr
    NARROW: gl.constexpr
    PRODUCT: gl.constexpr
    scales: BlockScales | gl.constexpr

    @gluon.jit
    def first(self):
        """The first slot of the first turn."""
        return Slot(gl.to_tensor(0), gl.to_tensor(0), self.STAGES)

    @gluon.jit
    def left_unit(self, slot, WHICH: gl.constexpr):
        """One of the units that a slot's tiles of A are."""
        return self.a_tiles.index(slot.index * (self.a_tiles.shape[0] // self.STAGES) + WHICH)

    @gluon.jit
    def right_unit(self, slot, WHICH: gl.constexpr):
        """One of the units that a slot's tile of B is."""
        return self.b_tiles.index(slot.index * (self.b_tiles.shape[0] // self.STAGES) + WHICH)

    @gluon.jit
    def fill(self, slot, operands, work, k):
        """Wait until the slot is free, and start the copies of all its tiles, those of K tile k."""
        UNIT_M: gl.constexpr = self.a_tiles.shape[1] // operands.K_BLOCKS
        UNIT_N: gl.constexpr = self.b_tiles.shape[2]
        LEFT_PANELS: gl.constexpr = self.BLOCK_K // self.a_tiles.shape[2]
        PANELS: gl.constexpr = self.BLOCK_K // self.b_tiles.shape[1]
        SHARED: gl.constexpr = operands.K_BLOCKS == 1
        COLUMNS: gl.constexpr = self.CLUSTER_COLUMNS
        BELOW: gl.constexpr = gl.num_ctas() // COLUMNS
        OWN_M: gl.constexpr = UNIT_M // BELOW
        OWN_N: gl.constexpr = UNIT_N // COLUMNS * self.UNITS
        ROW_BYTES: gl.constexpr = self.BLOCK_K * self.a_tiles.dtype.primitive_bitwidth // 8
        scales = self.scales
        scale_bytes: gl.constexpr = (
            0 if scales is None else scales.a_desc.nbytes_per_cta + scales.b_desc.nbytes_per_cta
        )
        left_bytes: gl.constexpr = (
            OWN_M * ROW_BYTES
            if COLUMNS > 1
            else LEFT_PANELS * self.LOADED_UNITS * operands.a.nbytes_per_cta
        )
        right_bytes: gl.constexpr = (
            OWN_N * ROW_BYTES if self.DEALT else PANELS * self.UNITS * operands.b.nbytes_per_cta
        )
        narrow_bytes: gl.constexpr = (
            0
            if not self.NARROW
            else self.narrow_tiles.shape[2] * ROW_BYTES
            if self.DEALT
            else operands.narrow.nbytes_per_cta
        )
        operand_bytes: gl.constexpr = self.SHARES * left_bytes + right_bytes
        off_k = k * (self.BLOCK_K * operands.K_BLOCKS)
        barrier = self.ready.index(slot.index)
        self.wait_free(slot)
        mbarrier.expect(barrier, operand_bytes + narrow_bytes + scale_bytes)
        if COLUMNS > 1:
            copy_boxes(operands.a, 0, self.left_unit(slot, 0), OWN_M, self.BLOCK_K, barrier,
                       work.matrix, work.off_m + block_of_cluster() % BELOW * OWN_M, off_k,
                       operands.A_K_MAJOR, COLUMNS, False, self.SHARES, UNIT_M)  # fmt: skip
        else:
            for part in gl.static_range(self.SHARES):
                for panel in gl.static_range(LEFT_PANELS):
                    for i in gl.static_range(self.LOADED_UNITS):
                        operands.load_left(
                            work, work.off_m + (part * self.LEFT_UNITS + i) * UNIT_M,
                            off_k + panel * self.a_tiles.shape[2], barrier,
                            self.left_unit(
                                slot, (part * LEFT_PANELS + panel) * self.LEFT_UNITS + i
                            ),
                        )  # fmt: skip
        if self.DEALT:
            off_n = work.off_n + block_of_cluster() // BELOW * OWN_N
            copy_boxes(operands.b, 1, self.right_unit(slot, 0), OWN_N, self.BLOCK_K, barrier,
                       work.matrix, off_n, off_k, operands.B_K_MAJOR, COLUMNS, True)  # fmt: skip
            if self.NARROW:
                copy_boxes(operands.narrow, 3, self.narrow_tiles.index(slot.index),
                           self.narrow_tiles.shape[2], self.BLOCK_K, barrier, work.matrix,
                           off_n + UNIT_N, off_k, operands.B_K_MAJOR, COLUMNS, True)  # fmt: skip
        else:
            for i in gl.static_range(PANELS * self.UNITS):
                load_tile(operands.b, work.matrix, work.off_n + i % self.UNITS * UNIT_N,
                          off_k + i // self.UNITS * self.b_tiles.shape[1], barrier,
                          self.right_unit(slot, i), operands.B_K_MAJOR, SHARED=SHARED)  # fmt: skip
            if self.NARROW:
                load_tile(operands.narrow, work.matrix, work.off_n + UNIT_N, off_k,
                          barrier, self.narrow_tiles.index(slot.index),
                          operands.B_K_MAJOR, SHARED=SHARED)  # fmt: skip
        if scales is not None:
            scales.fill(slot.index, work, k, barrier)

    @gluon.jit
    def wait_free(self, slot):
        """Wait until the slot's last tiles have been read; passes in the first turn."""
        mbarrier.wait(self.free.index(slot.index), slot.phase ^ 1)

    @gluon.jit
    def end(self, slot):
        """No block may end while another one's arrival is on its way to it: after the last tiles,
        given the slot behind them, wait until all were read, where the kernel itself does not end
        with a barrier of the cluster.
        """
        if gl.num_ctas() > 1 and not ENDS_TOGETHER:
            for _ in gl.static_range(self.STAGES):
                self.wait_free(slot)
                slot = slot.next()

    @gluon.jit
    def wait(self, slot):
        """Wait until the slot's tiles have arrived."""
        mbarrier.wait(self.ready.index(slot.index), slot.phase)

    @gluon.jit
    def release(self, index, pred):
        """A consumer has read a buffer: tell the producers whose copies wait for it."""
        if self.DEALT:
            release(self.free.index(index), pred, self.CLUSTER_COLUMNS)
        else:
            mbarrier.arrive(self.free.index(index), count=1, pred=pred)

    @gluon.jit
    def invalidate(self):
        """End the use of the barriers at which no other block may still arrive."""
        for each in gl.static_range(self.STAGES):
            mbarrier.invalidate(self.ready.index(each))
            if not self.DEALT:
                mbarrier.invalidate(self.free.index(each))


@gluon.jit
def ring_of(a_tiles, b_tiles, narrow_tiles, STAGES: gl.constexpr, SHARES: gl.constexpr,
            BLOCK_K: gl.constexpr, LEFT_UNITS: gl.constexpr, LOADED_UNITS: gl.constexpr,
            UNITS: gl.constexpr, CLUSTER_COLUMNS: gl.constexpr, NARROW: gl.constexpr,
            DEALT: gl.constexpr, PRODUCT: gl.constexpr):  # fmt: skip
    """A ring of these buffers, with its barriers; see `Ring`."""
    ready = mbarrier.allocate_mbarrier(batch=STAGES)
    free = mbarrier.allocate_mbarrier(batch=STAGES)
    COPIERS: gl.constexpr = copiers(gl.num_ctas(), CLUSTER_COLUMNS) if DEALT else 1
    for each in gl.static_range(STAGES):
        mbarrier.init(ready.index(each), count=1)
        mbarrier.init(free.index(each), count=SHARES * COPIERS)
    return Ring(
        a_tiles, b_tiles, narrow_tiles, ready, free, STAGES, SHARES, BLOCK_K, LEFT_UNITS,
        LOADED_UNITS, UNITS, CLUSTER_COLUMNS, DEALT, NARROW, PRODUCT, None,
    )  # fmt: skip
