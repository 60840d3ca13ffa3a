"""Between threads and blocks; with those that the emulator does not notice stands why."""

from __future__ import annotations

import numpy as np

from museum.exhibit import Exhibit, expect, instead
from museum.ptx import (
    BLOCK,
    CLUSTER,
    bulk_load,
    download,
    expect_bytes,
    init,
    kernel,
    launch,
    wait,
)
from triton_ext.emulator.errors import SynchronizationFault

SOURCE = np.arange(512, dtype=np.uint32)


def _copy(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out, SOURCE], schedule)
    expect(out, SOURCE)


_FENCE = "  fence.proxy.async.shared::cta;"
_stage = kernel(
    "out source", init(1), expect_bytes(2048), bulk_load(), wait("FULL"), download(), _FENCE, BLOCK,
    expect_bytes(2048), bulk_load(), wait("AGAIN", 1),
)  # fmt: skip
_ELECTED = f"""\
  setp.ne.u32 %p2, %warp, 0;
  @%p2 bra READ;
  st.shared.b32 [%mine], %thread;
  bar.warp.sync -1;
  @%first mbarrier.arrive.shared::cta.b64 _, [%bar];
  bra END;
READ:
{wait("FULL")}
  and.b32 %r1, %thread, 31;
  shl.b32 %r2, %r1, 4;
  add.u32 %r2, %r2, %data;
  ld.shared.b32 %r3, [%r2];
  mul.wide.u32 %rd1, %r1, 4;
  add.u64 %rd1, %rd1, %out;
  st.global.b32 [%rd1], %r3;
END:"""
_elected = kernel("out", init(1), _ELECTED)
_SCRATCH = """\
  and.b32 %r1, %thread, 31;
  setp.eq.u32 %p2, %r1, 0;
  shl.b32 %r2, %warp, 2;
  add.u32 %r2, %r2, %data;
  add.u32 %r3, %warp, {value};
  @%p2 st.shared.b32 [%r2], %r3;"""
_MEAN = "  bar.sync 0;\n  ld.shared.v4.b32 {%v4, %v5, %v6, %v7}, [%data];"
_reduction = kernel(
    "out", _SCRATCH.format(value=0), _MEAN, BLOCK, _SCRATCH.format(value=8), BLOCK,
    download("%data"),
)  # fmt: skip
_PEER = """\
  mov.u32 %r1, %cluster_ctarank;
  xor.b32 %r2, %r1, 1;
  mapa.shared::cluster.u32 %r3, %bar, %r2;
  mapa.shared::cluster.u32 %r4, %mine, %r2;
  mad.lo.u32 %r5, %r1, 1000, %thread;"""
_REMOTE = "  st.shared::cluster.b32 [%r4], %r5;"
_OWN = """\
  ld.shared.b32 %r6, [%mine];
  mad.lo.u32 %r7, %r1, 128, %thread;
  mul.wide.u32 %rd1, %r7, 4;
  add.u64 %rd1, %rd1, %out;
  st.global.b32 [%rd1], %r6;"""
_CLEAR = "  mov.u32 %r8, -1;\n  st.shared.b32 [%mine], %r8;"
_entry = kernel("out", _PEER, _CLEAR, CLUSTER, _REMOTE, CLUSTER, _OWN)
_ARRIVED = "  @%first mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r3];"
_ACQUIRED = wait("FULL").replace("try_wait.parity", "try_wait.parity.acquire.cluster")
_scope = kernel(
    "out", init(1, meet=CLUSTER), _PEER, _REMOTE, BLOCK, _ARRIVED, _ACQUIRED, _OWN, CLUSTER
)
_ALLOCATE_PAIR = """\
  setp.eq.u32 %p1, %warp, 0;
  @%p1 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%bar+128], 32;
  bar.sync 0;
  ld.shared.b32 %r21, [%bar+128];"""
_FREE = "  @%p1 tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r21, 32;"
_pair = kernel("", _ALLOCATE_PAIR, CLUSTER, _FREE, target="sm_100a")


def _of_a_pair(text: str, schedule: str) -> None:
    launch(text, [], schedule, grid=2, cluster=2)


def _elected_lane(text: str, schedule: str) -> None:
    out = np.zeros(32, np.uint32)
    launch(text, [out], schedule, block=64)
    expect(out, np.arange(32, dtype=np.uint32))


def _reduced(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out], schedule)
    expect(out, np.tile(np.arange(8, 12, dtype=np.uint32), 128))


def _exchanged(text: str, schedule: str) -> None:
    out = np.zeros(256, np.uint32)
    launch(text, [out], schedule, grid=2, cluster=2)
    threads = np.arange(128, dtype=np.uint32)
    expect(out, np.concatenate([1000 + threads, threads]))


EXHIBITS = [
    Exhibit(
        "A block stores into its peer before the peer has begun",
        ("facebookexperimental/triton#2292",),
        "Under a delay of one block a test read -1 instead of 142; the sanitizer calls it a store "
        "to a block that has not entered.",
        "No cluster barrier before the first remote store.",
        _entry, instead(_entry, (f"{CLUSTER}\n{_REMOTE}", _REMOTE)), _exchanged,
        SynchronizationFault, "is written, and was written by warp",
    ),
    Exhibit(
        "TMA overwrites what threads have read, without a proxy fence",
        ("deepseek-ai/DeepEP#642", "deepseek-ai/DeepEP#632", "NVIDIA/TransformerEngine#2695"),
        "NVL72: combine gave different results from run to run above a batch of 256; a fence "
        "mended it.",
        "Reads by threads, a barrier, then a TMA load into the same place. CUTLASS's pipelines do "
        "it without a fence, too; the emulator wants the barrier, and lets the fence be left out.",
        _stage, instead(_stage, (_FENCE + "\n", "")), _copy, None,
    ),
    Exhibit(
        "All lanes store, and one arrives for them",
        ("NVIDIA/cudnn-frontend#426",),
        "Latent: the B200's numbers were right; racecheck reported 620 hazards.",
        "mbarrier.arrive releases the stores of the arriving thread; the other lanes' need a "
        "__syncwarp before. The emulator takes the lanes of a warp to be in step.",
        _elected, instead(_elected, ("  bar.warp.sync -1;\n", "")), _elected_lane, None,
    ),
    Exhibit(
        "A reduction's scratch is written again while others read",
        ("flashinfer-ai/flashinfer#3607",),
        "H200: a LayerNorm wrong by 2.5 under a disturbed schedule; racecheck had it.",
        "The barrier between the mean's reads and the variance's writes was missing.",
        _reduction, instead(_reduction, (f"{_MEAN}\n{BLOCK}", _MEAN)), _reduced,
        SynchronizationFault, "and nothing orders that read before (a barrier)",
    ),
    Exhibit(
        "An arrival at another block, at the scope of the own",
        ("Dao-AILab/quack#63",),
        "Not seen to go wrong; it violates the memory model.",
        "mbarrier.arrive.release.cta on a remote barrier orders nothing for that block.",
        _scope, instead(_scope, ("arrive.release.cluster.shared", "arrive.release.cta.shared")),
        _exchanged, SynchronizationFault, "of block 1 of the cluster, and nothing orders the two",
    ),
    Exhibit(
        "One block frees its tensor memory before the other has any",
        ("NVIDIA/cutlass#3435", "NVIDIA/cutlass#3316"),
        "B300: \"unspecified launch failure\", 96 of 96 runs on eight GPUs, if block 1 is 10 us "
        "late; none with a cluster barrier anywhere between.",
        "tcgen05.alloc and dealloc with cta_group::2 are for both blocks of a pair.",
        _pair, instead(_pair, (f"{CLUSTER}\n{_FREE}", _FREE)), _of_a_pair, SynchronizationFault,
        "a barrier of the cluster is missing",
    ),
]  # fmt: skip
