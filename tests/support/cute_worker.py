"""Compiles matmul kernels with NVIDIA's CuTe DSL, for an architecture, with no GPU.

Reads a JSON list of jobs from stdin and writes the PTX of each as a JSON string, a line each:

    {"arch": 100, "types": ["Float16", "Float16", "Float32"], "tile": [128, 128, 64],
     "instruction": [128, 128], "atoms": ["K_SW128", "MN_SW64"], "ctas": 1, "stages": 2}

The types are those of A, B and D; an atom is a name of ``SmemLayoutAtomKind``; with two CTAs the
tile is that of the pair. D is written as it comes, without a trip through shared memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings

JOBS = json.load(sys.stdin)
[ARCH] = {job["arch"] for job in JOBS}
FOLDER = tempfile.TemporaryDirectory()  # --keep-ptx writes a file too
os.environ |= {"CUTE_DSL_ARCH": f"sm_{ARCH}a", "CUTE_DSL_DUMP_DIR": FOLDER.name}
warnings.simplefilter("ignore", DeprecationWarning)

import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cutlass import memory, pipeline  # noqa: E402
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warpgroup  # noqa: E402
from cutlass.cute.runtime import make_fake_compact_tensor  # noqa: E402

THREADS = 128


def instruction(job):
    """The MMA operation: of tcgen05, or of wgmma."""
    a, b, d = (getattr(cutlass, name) for name in job["types"])
    majors = [
        OperandMajorMode.K if atom.startswith("K") else OperandMajorMode.MN for atom in job["atoms"]
    ]
    family = tcgen05 if ARCH == 100 else warpgroup
    k = 256 // (32 if a is cutlass.TFloat32 else a.width)
    shape = (*job["instruction"], k)
    group = [tcgen05.CtaGroup.ONE if job["ctas"] == 1 else tcgen05.CtaGroup.TWO]
    rest = [*(group if ARCH == 100 else []), family.OperandSource.SMEM, *majors]
    if a.width == 16:
        return family.MmaF16BF16Op(a, d, shape, *rest)
    if a is cutlass.TFloat32:
        return tcgen05.MmaTF32Op(shape, *rest)
    if d is cutlass.Int32 and ARCH == 100:
        return tcgen05.MmaI8Op(a, shape, *rest)
    if d is cutlass.Int32:
        return warpgroup.MmaI8Op(a, b, d, shape, *rest)
    float8 = tcgen05.MmaF8F6F4Op if ARCH == 100 else warpgroup.MmaF8Op
    return float8(a, b, d, shape, *rest)


class Matmul100:
    """TMA, tcgen05.mma, tcgen05.ld: a warp that loads, a warp that multiplies."""

    def __init__(self, job):
        self.operation = instruction(job)
        self.tile, self.ctas, self.stages = tuple(job["tile"]), job["ctas"], job["stages"]
        self.kinds = [getattr(tcgen05.SmemLayoutAtomKind, atom) for atom in job["atoms"]]
        self.orders = [(1, 2, 3) if atom.startswith("K") else (2, 1, 3) for atom in job["atoms"]]
        self.a_type, self.b_type, self.d_type = (getattr(cutlass, name) for name in job["types"])

    def shared(self, shape, kind, order, dtype):
        atom = tcgen05.make_smem_layout_atom(kind, dtype)
        return tcgen05.tile_to_mma_shape(atom, cute.append(shape, self.stages), order=order)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
        mma = cute.make_tiled_mma(cute.make_mma_atom(self.operation))
        m, n, k = self.tile
        a_shared = self.shared(
            mma.partition_shape_A((m, k)), self.kinds[0], self.orders[0], self.a_type
        )
        b_shared = self.shared(
            mma.partition_shape_B((n, k)), self.kinds[1], self.orders[1], self.b_type
        )
        cluster = (self.ctas, 1, 1)
        group = tcgen05.CtaGroup.TWO if self.ctas == 2 else tcgen05.CtaGroup.ONE
        load = cpasync.CopyBulkTensorTileG2SOp(group)
        ctas = cute.tiled_divide(cute.make_layout(cluster), (mma.thr_id.shape,))
        stage = [0, 1, 2]
        a_copy, a_tma = cute.nvgpu.make_tiled_tma_atom_A(
            load, a, cute.select(a_shared, mode=stage), self.tile, mma, ctas.shape
        )
        b_copy, b_tma = cute.nvgpu.make_tiled_tma_atom_B(
            load, b, cute.select(b_shared, mode=stage), self.tile, mma, ctas.shape
        )
        grid = (cute.ceil_div(d.shape[0], m) * self.ctas, cute.ceil_div(d.shape[1], n), 1)
        self.kernel(mma, a_copy, a_tma, b_copy, b_tma, d, a_shared, b_shared, ctas).launch(
            grid=grid, block=(THREADS, 1, 1), cluster=cluster
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        a_copy: cute.CopyAtom,
        a: cute.Tensor,
        b_copy: cute.CopyAtom,
        b: cute.Tensor,
        d: cute.Tensor,
        a_shared: cute.ComposedLayout,
        b_shared: cute.ComposedLayout,
        ctas: cute.Layout,
    ):
        thread, _, _ = cute.arch.thread_idx()
        block, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        peer = block % self.ctas
        shared = memory.SmemAllocator()

        @cute.struct
        class Storage:
            full: cute.struct.MemRange[cutlass.Int64, 2 * self.stages]
            done: cute.struct.MemRange[cutlass.Int64, 2]
            freed: cutlass.Int64
            columns: cutlass.Int32

        storage = shared.allocate(Storage)
        a_tile = shared.allocate_tensor(self.a_type, a_shared.outer, 1024, a_shared.inner)
        b_tile = shared.allocate_tensor(self.b_type, b_shared.outer, 1024, b_shared.inner)
        stage = [0, 1, 2]
        bytes_per_stage = self.ctas * (
            cute.size_in_bytes(self.a_type, cute.select(a_shared, mode=stage))
            + cute.size_in_bytes(self.b_type, cute.select(b_shared, mode=stage))
        )
        tmem = memory.TmemAllocator(
            storage.columns.ptr,
            barrier_for_retrieve=pipeline.NamedBarrier(barrier_id=1, num_threads=THREADS),
            is_two_cta=self.ctas == 2,
            two_cta_tmem_dealloc_mbar_ptr=storage.freed.ptr,
        )
        one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
        producer, consumer = pipeline.PipelineTmaUmma.create(
            num_stages=self.stages,
            producer_group=one,
            consumer_group=one,
            tx_count=bytes_per_stage,
            barrier_storage=storage.full.data_ptr(),
            cta_layout_vmnk=ctas,
        ).make_participants()
        result_producer, result_consumer = pipeline.PipelineUmmaAsync.create(
            num_stages=1,
            producer_group=one,
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS * self.ctas),
            barrier_storage=storage.done.data_ptr(),
            cta_layout_vmnk=ctas,
        ).make_participants()

        at = (block // self.ctas, column, None)
        part = mma.get_slice(peer)
        a_parts = part.partition_A(cute.local_tile(a, self.tile, at, proj=(1, None, 1)))
        b_parts = part.partition_B(cute.local_tile(b, self.tile, at, proj=(None, 1, 1)))
        d_part = part.partition_C(cute.local_tile(d, self.tile, at, proj=(1, 1, None)))
        alone = cute.make_layout(1)
        a_to, a_from = cpasync.tma_partition(
            a_copy, 0, alone, cute.group_modes(a_tile, 0, 3), cute.group_modes(a_parts, 0, 3)
        )
        b_to, b_from = cpasync.tma_partition(
            b_copy, 0, alone, cute.group_modes(b_tile, 0, 3), cute.group_modes(b_parts, 0, 3)
        )
        a_read, b_read = mma.make_fragment_A(a_tile), mma.make_fragment_B(b_tile)
        empty = mma.make_fragment_C(mma.partition_shape_C(self.tile[:2]))
        tmem.allocate(memory.get_num_tmem_alloc_cols(empty))
        tmem.wait_for_alloc()
        sums = cute.make_tensor(tmem.retrieve_ptr(self.d_type), empty.layout)
        steps = cute.size(a_from, mode=[1])

        if warp == 0:
            for _ in cutlass.range(steps, unroll=1):
                slot = producer.acquire_and_advance()
                cute.copy(
                    a_copy, a_from[None, slot.count], a_to[None, slot.index],
                    tma_bar_ptr=slot.barrier,
                )  # fmt: skip
                cute.copy(
                    b_copy, b_from[None, slot.count], b_to[None, slot.index],
                    tma_bar_ptr=slot.barrier,
                )  # fmt: skip
        if warp == 1 and peer == 0:
            result = result_producer.acquire_and_advance()
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for _ in cutlass.range(steps, unroll=1):
                ready = consumer.wait_and_advance()
                for step in cutlass.range_constexpr(cute.size(a_read, mode=[2])):
                    piece = (None, None, step, ready.index)
                    cute.gemm(mma, sums, a_read[piece], b_read[piece], sums)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                ready.release()
            result.commit()
        tmem.relinquish_alloc_permit()

        ready = result_consumer.wait_and_advance()
        lanes = self.tile[0] // self.ctas
        load = (
            tcgen05.Ld32x32bOp(tcgen05.Repetition.x8)
            if lanes == 128
            else tcgen05.Ld16x256bOp(tcgen05.Repetition.x1)
        )
        piece = sums[(None, None), 0, 0]
        copy = tcgen05.make_tmem_copy(cute.make_copy_atom(load, self.d_type), piece)
        own = copy.get_slice(thread)
        target = own.partition_D(d_part[(None, None), 0, 0])
        registers = cute.make_rmem_tensor(target.shape, self.d_type)
        cute.copy(copy, own.partition_S(piece), registers)
        cute.arch.fence_view_async_tmem_load()
        ready.release()
        if warp == 1 and peer == 0:
            result_producer.tail()  # the other block's arrivals have come
        cute.autovec_copy(registers, target)
        pipeline.sync(barrier_id=1)
        tmem.free(sums.iterator)


class Matmul90:
    """TMA and wgmma: the first thread loads, the warpgroup multiplies."""

    def __init__(self, job):
        self.operation = instruction(job)
        self.tile, self.stages = tuple(job["tile"]), job["stages"]
        self.kinds = [getattr(warpgroup.SmemLayoutAtomKind, atom) for atom in job["atoms"]]
        self.orders = [(0, 1, 2) if atom.startswith("K") else (1, 0, 2) for atom in job["atoms"]]
        self.a_type, self.b_type, self.d_type = (getattr(cutlass, name) for name in job["types"])

    def shared(self, rows, kind, order, dtype):
        atom = warpgroup.make_smem_layout_atom(kind, dtype)
        return cute.tile_to_shape(atom, (rows, self.tile[2], self.stages), order=order)

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
        mma = cute.make_tiled_mma(cute.make_mma_atom(self.operation))
        m, n, k = self.tile
        a_shared = self.shared(m, self.kinds[0], self.orders[0], self.a_type)
        b_shared = self.shared(n, self.kinds[1], self.orders[1], self.b_type)
        load = cpasync.CopyBulkTensorTileG2SOp()
        a_copy, a_tma = cpasync.make_tiled_tma_atom(
            load, a, cute.select(a_shared, mode=[0, 1]), (m, k)
        )
        b_copy, b_tma = cpasync.make_tiled_tma_atom(
            load, b, cute.select(b_shared, mode=[0, 1]), (n, k)
        )
        grid = (cute.ceil_div(d.shape[0], m), cute.ceil_div(d.shape[1], n), 1)
        self.kernel(mma, a_copy, a_tma, b_copy, b_tma, d, a_shared, b_shared).launch(
            grid=grid, block=(THREADS, 1, 1)
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        a_copy: cute.CopyAtom,
        a: cute.Tensor,
        b_copy: cute.CopyAtom,
        b: cute.Tensor,
        d: cute.Tensor,
        a_shared: cute.ComposedLayout,
        b_shared: cute.ComposedLayout,
    ):
        thread, _, _ = cute.arch.thread_idx()
        row, column, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        shared = memory.SmemAllocator()
        barriers = shared.allocate_array(cutlass.Int64, 2 * self.stages)
        a_tile = shared.allocate_tensor(self.a_type, a_shared.outer, 1024, a_shared.inner)
        b_tile = shared.allocate_tensor(self.b_type, b_shared.outer, 1024, b_shared.inner)
        bytes_per_stage = cute.size_in_bytes(
            self.a_type, cute.select(a_shared, mode=[0, 1])
        ) + cute.size_in_bytes(self.b_type, cute.select(b_shared, mode=[0, 1]))
        producer, consumer = pipeline.PipelineTmaAsync.create(
            num_stages=self.stages,
            producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS // 32),
            tx_count=bytes_per_stage,
            barrier_storage=barriers,
        ).make_participants()
        at = (row, column, None)
        a_parts = cute.local_tile(a, self.tile, at, proj=(1, None, 1))
        b_parts = cute.local_tile(b, self.tile, at, proj=(None, 1, 1))
        part = mma.get_slice(thread)
        d_part = part.partition_C(cute.local_tile(d, self.tile, at, proj=(1, 1, None)))
        alone = cute.make_layout(1)
        a_to, a_from = cpasync.tma_partition(
            a_copy, 0, alone, cute.group_modes(a_tile, 0, 2), cute.group_modes(a_parts, 0, 2)
        )
        b_to, b_from = cpasync.tma_partition(
            b_copy, 0, alone, cute.group_modes(b_tile, 0, 2), cute.group_modes(b_parts, 0, 2)
        )
        a_read = mma.make_fragment_A(part.partition_A(a_tile))
        b_read = mma.make_fragment_B(part.partition_B(b_tile))
        sums = cute.make_rmem_tensor(mma.partition_shape_C(self.tile[:2]), self.d_type)
        mma.set(warpgroup.Field.ACCUMULATE, False)
        for _ in cutlass.range(cute.size(a_from, mode=[1]), unroll=1):
            if warp == 0:
                slot = producer.acquire_and_advance()
                cute.copy(
                    a_copy, a_from[None, slot.count], a_to[None, slot.index],
                    tma_bar_ptr=slot.barrier,
                )  # fmt: skip
                cute.copy(
                    b_copy, b_from[None, slot.count], b_to[None, slot.index],
                    tma_bar_ptr=slot.barrier,
                )  # fmt: skip
            ready = consumer.wait_and_advance()
            warpgroup.fence()
            for step in cutlass.range_constexpr(cute.size(a_read, mode=[2])):
                piece = (None, None, step, ready.index)
                cute.gemm(mma, sums, a_read[piece], b_read[piece], sums)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            ready.release()
        cute.autovec_copy(sums, d_part)


def compiled(job):
    """The PTX."""
    a, b, d = (getattr(cutlass, name) for name in job["types"])
    matmul = (Matmul100 if ARCH == 100 else Matmul90)(job)
    extent = 2 * max(256, *job["tile"])
    operands = [
        make_fake_compact_tensor(
            dtype, (extent, extent), stride_order=(1, 0) if major == "K" else (0, 1),
            assumed_align=16,
        )
        for dtype, major in zip((a, b, d), [*(atom[0] for atom in job["atoms"]), "K"], strict=True)
    ]  # fmt: skip
    return cute.compile(matmul, *operands, options="--keep-ptx --generate-line-info").__ptx__


def main():
    lines = sys.stdout
    sys.stdout = sys.stderr  # the DSL may print
    for job in JOBS:
        try:
            ptx = compiled(job)
        except Exception as error:
            raise SystemExit(f"{job}: {type(error).__name__}: {error}") from error
        print(json.dumps(ptx), file=lines, flush=True)


if __name__ == "__main__":
    main()
