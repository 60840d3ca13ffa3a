"""Barriers with the wrong count, phase, or owner; blocks of a cluster that leave or reuse."""

from __future__ import annotations

import numpy as np

from museum.exhibit import Exhibit, expect, instead
from museum.ptx import (
    BLOCK,
    CLUSTER,
    RANK,
    SMEM,
    bulk_load,
    download,
    expect_bytes,
    init,
    kernel,
    launch,
    wait,
)
from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import (
    BarrierFault,
    ConvergenceFault,
    Deadlock,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
)

SOURCE = np.arange(512, dtype=np.uint32)


def _copy(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out, SOURCE], schedule)
    expect(out, SOURCE)


def _runs(grid: int = 1, threads: int = 128):
    def run(text: str, schedule: str) -> None:
        launch(text, [], schedule, grid=grid, cluster=grid, block=threads)

    return run


def _in_a_pair(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out, SOURCE], schedule, grid=2, cluster=2)
    expect(out, SOURCE)


_load = kernel("out source", init(1), expect_bytes(2048), bulk_load(), wait("FULL"), download())
_EXPECT_ALONE = "  @%first mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%bar], 2048;"
_NAMED = """\
  setp.lt.u32 %p2, %warp, 4;
  @%p2 bra LOAD;
  bar.sync 1, 160;
  bra END;
LOAD:
  bar.arrive 1, 160;
END:"""
_named = kernel("", _NAMED)
_fresh = kernel(
    "out source", init(1, 1), expect_bytes(2048), bulk_load(), wait("FIRST", 0, 0), BLOCK,
    expect_bytes(2048, 1), bulk_load(2048, 2048, 1), wait("SECOND", 0, 1), download("%mine+2048"),
)  # fmt: skip
_TRY_CANCEL = (
    "  @%p3 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
    ".multicast::cluster::all.b128 [%data], [%bar];"
)
_cancel = kernel(
    "", init(1, meet=CLUSTER), RANK, expect_bytes(16), _TRY_CANCEL, wait("ANSWER"), CLUSTER,
    target="sm_100a",
)  # fmt: skip
_USED = """\
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%bar+8];
  @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3+8];"""
_answers = kernel(
    "", init(1, 2, meet=CLUSTER), RANK, expect_bytes(16), _TRY_CANCEL, wait("ANSWER"),
    "  ld.shared.v4.b32 {%v4, %v5, %v6, %v7}, [%data];", _USED, wait("USED", 0, 1),
    "  fence.proxy.async.shared::cta;", expect_bytes(16), _TRY_CANCEL, wait("AGAIN", 1), CLUSTER,
    target="sm_100a",
)  # fmt: skip
_MULTICAST = """\
  mov.b16 %h1, 3;
  @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
      [%data], [%source], 2048, [%bar], %h1;"""
_multicast = kernel(
    "out source", init(1, meet=CLUSTER), RANK, expect_bytes(2048), _MULTICAST, wait("FULL"),
    download(), CLUSTER, expect_bytes(2048), _MULTICAST, wait("AGAIN", 1), CLUSTER,
)  # fmt: skip
_LATE = """\
  @%p2 bra END;
  mov.u32 %r4, 0;
SPIN:
  add.u32 %r4, %r4, 1;
  setp.lt.u32 %p4, %r4, 3000;
  @%p4 bra SPIN;
  @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];
END:"""
_exit = kernel("", init(1, meet=CLUSTER), RANK, _LATE, CLUSTER)
_RELAXED = CLUSTER.replace("arrive", "arrive.relaxed")

_LAST = """\
  add.u32 %r1, %bar, 2048;
  @%first mbarrier.init.shared::cta.b64 [%r1], 1;
  @%first mbarrier.init.shared::cta.b64 [%r1+8], 1;"""
_last = kernel("", _LAST)
_BRANCHES = """\
  and.b32 %r1, %thread, 1;
  setp.eq.u32 %p2, %r1, 0;
  @%p2 bra EVEN;
  mov.u32 %r2, 1;
  bra END;
EVEN:
  mov.u32 %r2, 2;
END:
  bar.sync 1, 128;"""
_branches = kernel("", _BRANCHES)
_THREADED = [
    ("  mov.u32 %r2, 1;", "  mov.u32 %r2, 1;\n  bar.sync 1, 128;"),
    ("  mov.u32 %r2, 2;\nEND:\n  bar.sync 1, 128;", "  mov.u32 %r2, 2;\n  bar.sync 1, 128;\nEND:"),
]
_waves = kernel(
    "out source", init(1), expect_bytes(2048), bulk_load(), wait("FIRST"), BLOCK,
    expect_bytes(2048), bulk_load(2048, 2048), wait("SECOND", 1), download("%mine+2048"),
)  # fmt: skip
_rounds = kernel(
    "out source", init(1),
    *(part for i in range(4)
      for part in (expect_bytes(512), bulk_load(512, 512 * i), wait(f"ROUND{i}", i % 2), BLOCK)),
    download("%mine"),
)  # fmt: skip


def _under_all(text: str, _: str) -> None:
    """One run, and what it says of all schedules."""
    out = np.zeros(512, np.uint32)
    machine = run_ptx(text, args=[out, SOURCE], grid=1, block=128, dynamic_smem_bytes=SMEM,
                      strict=True, schedules="all")  # fmt: skip
    if machine.verdict.witness is not None:
        raise machine.verdict.witness.fault
    expect(out, np.tile(SOURCE[:128], 4))


def _in_2064_bytes(text: str, schedule: str) -> None:
    launch(text, [], schedule, dynamic_smem_bytes=2064)


EXHIBITS = [
    Exhibit(
        "A barrier expects bytes, and nobody arrives",
        ("tile-ai/tilelang#2566",),
        "H100 and GB300: a pipelined loop of a single iteration never returns.",
        "With one iteration the copy becomes a plain bulk copy, for which TileLang 0.1.11 emits "
        "expect_tx instead of arrive.expect_tx: the bytes come, the one arrival never does.",
        _load, instead(_load, (expect_bytes(2048), _EXPECT_ALONE)), _copy, Deadlock,
        "1 of 1 arrivals missing, 0 bytes outstanding",
    ),
    Exhibit(
        "A named barrier counts fewer warps than arrive",
        ("Dao-AILab/quack#146",),
        "SM100: the epilogue's load warp hangs when A is gathered.",
        "Two warps are written into the barrier's count; with a gathered A four warps load, and "
        "five take part.",
        _named, instead(_named, ("bar.sync 1, 160", "bar.sync 1, 64"),
                        ("bar.arrive 1, 160", "bar.arrive 1, 64")),
        _runs(threads=160), BarrierFault, "which expects 64",
    ),
    Exhibit(
        "The parity of the loop, for a barrier that is fresh",
        ("tile-ai/tilelang#2927",),
        "H200: silent corruption from the second copy on.",
        "The wait's parity was derived from the iteration, although each iteration has a barrier "
        "of its own. Waiting for parity 1 of a barrier in its phase 0 returns at once. (Under the "
        "schedule in which the copy is quicker than the wait it is a deadlock.)",
        _fresh, instead(_fresh, (wait("SECOND", 0, 1), wait("SECOND", 1, 1))), _copy,
        UninitializedRead, "nothing wrote it", "lazy",
    ),
    Exhibit(
        "A multicast answers both blocks, and one of them expects it",
        ("facebookexperimental/triton#908",),
        "Blackwell: every odd block of the clusters hung.",
        "clusterlaunchcontrol.try_cancel with multicast completes bytes at the barrier of each "
        "block; only block 0 announced them.",
        _cancel, instead(_cancel, ("  @%first mbarrier.arrive", "  @%p3 mbarrier.arrive")),
        _runs(2), Deadlock, "block (1, 0, 0)",
    ),
    Exhibit(
        "Both blocks of a pair ask for the next tile, and both answers go to both",
        (
            "jax-ml/jax:jax/experimental/pallas/ops/gpu/blackwell_matmul_mgpu.py",
            "jax-ml/jax:jax/_src/pallas/mosaic_gpu/helpers.py",
        ),
        "Latent (JAX 0.12.0.1).",
        "The loop over tiles is not told of the cluster's axis (cluster_axes), and so takes each "
        "block for the first: two multicasts of clusterlaunchcontrol.try_cancel write one buffer, "
        "and of the two tiles that are taken so one is lost. Mended by "
        "cluster_axes=(\"x\",).",
        _cancel, instead(_cancel, ("  @%p3 clusterlaunch", "  @%first clusterlaunch")),
        _runs(2), SynchronizationFault, "nothing orders the two",
    ),
    Exhibit(
        "One thread says for its warpgroup that the answer has been read",
        (
            "jax-ml/jax:jax/experimental/mosaic/gpu/utils.py",
            "openxla/tokamax:tokamax/_src/ops/ragged_dot/pallas_mosaic_gpu_kernel_sm100.py",
        ),
        "Latent (JAX 0.12.0.1; in tokamax' ragged dot for Blackwell).",
        "Each warpgroup arrives once at the barrier of each block, by one of its threads. Only "
        "where the arrival is for a tensor core do its warps meet before; else others may still "
        "read what the next answer is written over. Mended by a barrier of the warpgroup before "
        "the arrival.",
        _answers, instead(_answers, ("  bar.sync 0;\n  @%first mbarrier.arrive.release",
                                     "  @%first mbarrier.arrive.release")),
        _runs(2), SynchronizationFault, "may still be read",
    ),
    Exhibit(
        "A multicast overwrites what the peer still uses",
        ("inclusionAI/humming#56",),
        "H100 and H200: 5.0 to 18.5 % of the elements wrong at M = 512 and 4096, none at 64.",
        "The leader multicasts the next tile after its own epilogue; the peer's may not be done. "
        "Mended by a barrier over both blocks.",
        _multicast, instead(_multicast, (f"{download()}\n{CLUSTER}", f"{download()}\n{BLOCK}")),
        _in_a_pair, SynchronizationFault, "nothing orders the two",
    ),
    Exhibit(
        "A block leaves while its peer still arrives there",
        (
            "sgl-project/sglang#32907", "sgl-project/sglang#32954",
            "pranjalssh/fast.cu:examples/matmul/matmul_12.cuh",
        ),
        "B300: Xid 13, \"CTA Not Present\", eight times in a day under load.",
        "Arrivals, commits and deallocations go to the peer until the end of the kernel; the "
        "cluster met at its start alone. Mended by a cluster barrier before the exit.",
        _exit, instead(_exit, (f"END:\n{CLUSTER}", "END:")), _runs(2), SynchronizationFault,
        "which has ended",
    ),
    Exhibit(
        "The last barrier of the cluster is relaxed",
        ("gau-nernst/learn-cuda:02e_matmul_sm100/matmul_v7.cu",),
        "Latent: the results are checked on a B200.",
        "The blocks of a pair meet before they end and free their tensor memory, by an arrival "
        "that is .relaxed: it orders neither the arrivals at the peer's mbarriers nor the loads of "
        "other warps before the end. Mended by the arrival without .relaxed.",
        _exit, instead(_exit, (f"END:\n{CLUSTER}", f"END:\n{_RELAXED}")), _runs(2),
        SynchronizationFault, "may end before an arrival of",
    ),
    Exhibit(
        "The blocks of a cluster disagree on who is copied to",
        ("deepseek-ai/DeepGEMM#415", "deepseek-ai/DeepGEMM#429"),
        "H100: the grouped GEMM hangs as soon as a group has an odd number of tiles, or its "
        "result is silently wrong.",
        "A pair of blocks straddles two groups. Block 0 finds that multicast is not valid there "
        "and loads for itself; block 1 waits for its bytes. Mended by pairs within a group.",
        _multicast, instead(_multicast, ("mov.b16 %h1, 3", "mov.b16 %h1, 1")), _in_a_pair,
        Deadlock, "2048 bytes outstanding",
    ),
    Exhibit(
        "The barriers are one more than their memory",
        ("deepseek-ai/DeepGEMM#121", "deepseek-ai/DeepGEMM#122"),
        "Hopper: an illegal memory access in some shapes.",
        "The kernel has barriers for one more stage than the host counted when it computed the "
        "size of shared memory.",
        _last, instead(_last, ("add.u32 %r1, %bar, 2048", "add.u32 %r1, %bar, 2056")),
        _in_2064_bytes, MemoryFault, "is outside of the block's",
    ),
    Exhibit(
        "A compiler copies a barrier into both branches",
        ("facebookexperimental/triton#1040",),
        "Deadlock of a warp-specialised kernel with 4 warps.",
        "LLVM's jump threading moved a named barrier into the branches before it, where a warp's "
        "threads part: no full warp arrives at either copy. Mended by intrinsics marked "
        "convergent.",
        _branches, instead(_branches, *_THREADED), _runs(), ConvergenceFault,
        "a warp's threads must execute this instruction together",
    ),
    Exhibit(
        "The second wave waits for the phase of the first",
        ("tile-ai/tilelang#2674",),
        "H100: every tile of the second and later waves wrong, or cudaErrorLaunchFailure.",
        "A persistent loop around the pipeline: each wave began with parity 0, right only where a "
        "wave has an even number of phases. (A deadlock where the copy is quicker than the wait.)",
        _waves, instead(_waves, (wait("SECOND", 1), wait("SECOND", 0))), _copy,
        UninitializedRead, "nothing wrote it", "lazy",
    ),
    Exhibit(
        "A warp that lags misses two phases",
        (
            "HazyResearch/ThunderKittens:kernels/gemm/educational_b200/level_06.cu",
            "gau-nernst/learn-cuda:02e_matmul_sm100/matmul_v3.cu",
            "NVIDIA/cutlass:examples/cute/tutorial/blackwell/05_mma_tma_epi_sm100.cu",
        ),
        "Not reported: the warps of a B200 keep close enough.",
        "All warps wait for each tile; the thread that loads and multiplies waits for its own work "
        "alone. A warp that is held back for two tiles waits for a parity that has come and gone, "
        "and after the last tile for ever. Mended by a barrier in the loop. The three schedules "
        'are silent; `schedules="all"` makes the schedule that hangs.',
        _rounds, instead(_rounds, *((f"ROUND{i};\n{BLOCK}", f"ROUND{i};") for i in range(3))),
        _under_all, Deadlock, "which is in phase 4",
    ),
]  # fmt: skip
