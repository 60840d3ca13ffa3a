"""Shared memory that is read too early, or written again too early."""

from __future__ import annotations

import numpy as np

from museum.exhibit import Exhibit, expect, instead
from museum.ptx import (
    A_AND_B,
    BLOCK,
    BULK_STORE,
    FILL,
    MULTIPLIED,
    NUMBERS,
    ONES,
    PUBLISH,
    READ,
    STORED,
    SUMS_OUT,
    arrive,
    bulk_load,
    download,
    expect_bytes,
    init,
    kernel,
    launch,
    wait,
    wgmma,
)
from triton_ext.emulator.errors import SynchronizationFault

SOURCE = np.arange(512, dtype=np.uint32)


def _numbers(text: str, schedule: str) -> None:
    """`FILL`, and out by TMA."""
    out = np.zeros(512, np.uint32)
    launch(text, [out], schedule)
    expect(out, NUMBERS)


def _copy(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out, SOURCE], schedule)
    expect(out, SOURCE)


def _sums(each: float, threads: int = 128):
    """Every sum of the product is `each`."""

    def run(text: str, schedule: str) -> None:
        out = np.zeros(4 * threads, np.float32)
        launch(text, [out], schedule, block=threads)
        expect(out, np.full_like(out, each))

    return run


_epilogue = kernel("out", FILL, PUBLISH, BULK_STORE, STORED)
_two_waves = kernel("out", FILL, PUBLISH, BULK_STORE, READ, BLOCK, FILL, STORED)
_operands = kernel("out", ONES, PUBLISH, A_AND_B, wgmma(), MULTIPLIED, SUMS_OUT)
_union = kernel(
    "out source", init(1), FILL, PUBLISH, BULK_STORE, STORED, expect_bytes(2048), bulk_load(),
    wait("FULL"), download(),
)  # fmt: skip
_shared_by_two = kernel(
    "out", ONES, PUBLISH, A_AND_B, wgmma(), MULTIPLIED, BLOCK, ONES, PUBLISH, wgmma(accumulate=1),
    MULTIPLIED, SUMS_OUT,
)  # fmt: skip
_A = "{%r4, %r5, %r6, %r7}"
_LOAD_A = f"  ld.shared.v4.b32 {_A}, [%mine];"
_registers = kernel(
    "out", ONES, PUBLISH, A_AND_B, _LOAD_A, wgmma(_A), MULTIPLIED, _LOAD_A, wgmma(_A, 1),
    MULTIPLIED, SUMS_OUT,
)  # fmt: skip
_early_release = kernel(
    "out source", init(1, 128), expect_bytes(2304), bulk_load(2304), wait("FULL"), A_AND_B,
    wgmma(), MULTIPLIED, arrive(1), wait("EMPTY", 0, 1), expect_bytes(2304), bulk_load(2304),
    wait("AGAIN", 1), MULTIPLIED, SUMS_OUT,
)  # fmt: skip
_both = kernel(
    "out source", init(1, 1), expect_bytes(2048), bulk_load(), expect_bytes(256, 1),
    bulk_load(256, 2048, 1), A_AND_B, wait("A"), wait("B", 0, 1), wgmma(), MULTIPLIED, SUMS_OUT,
)  # fmt: skip
_PAUSE = """\
  mov.u32 %r9, 0;
PAUSE:
  add.u32 %r9, %r9, 1;
  setp.lt.u32 %p5, %r9, 50;
  @%p5 bra PAUSE;"""
_ACROSS = """\
  xor.b32 %r1, %thread, 64;
  shl.b32 %r1, %r1, 4;
  add.u32 %r1, %r1, %data;"""
_exchange = kernel("out", FILL, BLOCK, _ACROSS, download("%r1"))
_COPY_MINE = """\
  cvt.u64.u32 %rd2, %thread;
  shl.b64 %rd2, %rd2, 4;
  add.u64 %rd2, %rd2, %source;
  cp.async.cg.shared.global [%mine], [%rd2], 16;
  cp.async.wait_all;"""
_own_copies = kernel("out source", _COPY_MINE, BLOCK, _ACROSS, download("%r1"))


def _exchanged(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out], schedule)
    expect(out, np.roll(NUMBERS, 256))


def _exchanged_copy(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out, SOURCE], schedule)
    expect(out, np.roll(SOURCE, 256))


def _sums_of_a_source(text: str, schedule: str) -> None:
    out = np.zeros(512, np.float32)
    launch(text, [out, np.full(1024, 0x3C003C00, np.uint32)], schedule)
    expect(out, np.full_like(out, 16))


EXHIBITS = [
    Exhibit(
        "A TMA store reads a tile that threads have just written",
        ("tile-ai/TileOPs#1574", "pranjalssh/fast.cu:examples/matmul/matmul_12.cuh"),
        "A grouped GEMM with three warpgroups gave one corrupted sub-tile in about 3 % of its "
        "calls; the nightly test failed now and then.",
        "128 threads write the tile (generic proxy), one starts the TMA store (async proxy), with "
        "nothing between. Mended by a proxy fence and a barrier of the warpgroup.",
        _epilogue, instead(_epilogue, (PUBLISH, "")), _numbers, SynchronizationFault, "proxy fence",
    ),
    Exhibit(
        "wgmma reads a tile that threads have just written",
        ("tile-ai/tilelang#2634",),
        "H100: the sparse GEMM of TileLang 0.1.11 read stale operands, without an error.",
        "The compiler puts fence.proxy.async before its dense products, and left it out before the "
        "sparse ones. (The minimal case is a dense product: sparse ones are not modelled.)",
        _operands, instead(_operands, (PUBLISH, BLOCK)), _sums(16), SynchronizationFault,
        "fence.proxy.async",
    ),
    Exhibit(
        "The next wave fills the tile that the last store still reads",
        ("tile-ai/TileOPs#1550",),
        "MoE outputs were corrupted at scale, NaN after the down projection; small tests passed.",
        "A persistent kernel has one staging tile for its TMA stores, and nothing orders its "
        "refill behind the store before.",
        _two_waves, instead(_two_waves, (READ + "\n", "")), _numbers, SynchronizationFault,
        "shared address 0x800",
    ),
    Exhibit(
        "The thread that stores has waited, and has not told the others",
        ("modular/modular:max/kernels/test/gpu/linalg/matmul_blackwell_iterative/8_clc_tmem_ping.mojo",),
        "Not reported: the kernel is a test of Modular's, for B200. (The production kernel has the "
        "barrier.)",
        "One thread waits until its store has read the tile; behind the last piece of C no barrier "
        "follows, and three other warps begin to write the next tile's first piece.",
        _two_waves, instead(_two_waves, (f"{READ}\n{BLOCK}", READ)), _numbers,
        SynchronizationFault, "may still be read by the tma unit",
    ),
    Exhibit(
        "A TMA load lands in the tile that a store still reads",
        ("uccl-project/mKernel#18",),
        "Wrong products at M = 16384 and 32768; smaller ones passed by coincidence.",
        "An input stage and the output tile share their memory. The wait for the output's store "
        "was at a fixed iteration, which was early enough only if K was a multiple of the ring.",
        _union, instead(_union, (STORED + "\n", "")), _copy, SynchronizationFault,
        "may still be read by the tma unit",
    ),
    Exhibit(
        "One warpgroup refills an operand under the other's product",
        ("tile-ai/tilelang#2613",),
        "H100: 21 to 27 of 30 runs were wrong, largest error about 25; L40S, whose products are "
        "synchronous: none.",
        "Both warpgroups read A. Each waits for its own products alone, then all copy the next A: "
        "the loop-back barrier was missing.",
        _shared_by_two, instead(_shared_by_two, (f"{MULTIPLIED}\n{BLOCK}\n", MULTIPLIED + "\n")),
        _sums(32, 256), SynchronizationFault, "may still be read by a product of warpgroup 1",
    ),
    Exhibit(
        "A's registers are loaded again while wgmma reads them",
        ("deepseek-ai/DeepGEMM#449", "deepseek-ai/DeepGEMM#448"),
        "SM90: equal calls of a tf32 GEMM gave different, wrong results.",
        "With A in registers, the next fragment was loaded before warpgroup_wait. (The ptxas of "
        "CUDA 13.4 sees it here, and serialises the products; that of 12.9 does not.)",
        _registers, instead(_registers, (f"{MULTIPLIED}\n{_LOAD_A}", _LOAD_A)), _sums(32),
        SynchronizationFault, "names a register that an asynchronous instruction still reads",
    ),
    Exhibit(
        "A stage is released before the products that read it are done",
        ("NVIDIA/Fuser#3561",),
        "Latent: on Hopper nobody saw a wrong number, nor did the sanitizer. (Triton's Hopper "
        "pipeliner had the same in facebookexperimental/triton#1278.)",
        "The consumer arrives at the empty barrier without wgmma.wait_group; TMA may fill the "
        "stage.",
        _early_release, instead(_early_release, (f"{MULTIPLIED}\n{arrive(1)}", arrive(1))),
        _sums_of_a_source, SynchronizationFault, "may still be read by a product",
    ),
    Exhibit(
        "Threads store what other warps have not written yet",
        ("Dao-AILab/flash-attention#1344",),
        "Hopper: wrong output, every time once one warp is made slow (__nanosleep).",
        "The epilogue for variable lengths copies shared to global memory by threads instead of "
        "TMA, and nothing synchronised them before.",
        _exchange, instead(_exchange, (BLOCK + "\n", "")), _exchanged, SynchronizationFault,
        "was written by warp 2",
    ),
    Exhibit(
        "cp.async is waited for by each warp, and read by all",
        (
            "flashinfer-ai/flashinfer#3439",
            "NVIDIA/cutlass:examples/cute/tutorial/hopper/wgmma_sm90.cu",
        ),
        "Five launches with equal inputs gave five different outputs, up to 13 apart in fp16. In "
        "the tutorial, whose reader is wgmma, it is latent.",
        "Each warp copies its rows and waits for its own copies, then reads everybody's: "
        "__syncwarp where a barrier of the block is needed.",
        _own_copies, instead(_own_copies, (BLOCK, "  bar.warp.sync -1;")), _exchanged_copy,
        SynchronizationFault, "asynchronous copies of warp 2",
    ),
    Exhibit(
        "A pause in place of a wait",
        ("facebookexperimental/CUTracer#106",),
        "Hopper: a GEMM made wrong on purpose passes its test as a rule, and fails once random "
        "delays are put between the instructions.",
        "Of the barriers of A and B only A's is waited for; a loop gives B's copy the time that it "
        "usually needs.",
        _both, instead(_both, (wait("B", 0, 1), _PAUSE)), _sums_of_a_source, SynchronizationFault,
        "operand B of wgmma reads",
    ),
]  # fmt: skip
