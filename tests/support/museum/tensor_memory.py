"""Tensor memory: read too early, written or freed too early."""

from __future__ import annotations

import numpy as np

from museum.exhibit import Exhibit, expect, instead
from museum.ptx import (
    AFTER,
    ALLOCATE,
    BEFORE,
    BLOCK,
    COMMIT,
    DEALLOCATE,
    LOAD_SUMS,
    LOADED,
    ONES,
    OPERANDS,
    PUBLISH,
    TENSOR_SUMS_OUT,
    arrive,
    bulk_load,
    expect_bytes,
    init,
    kernel,
    launch,
    tcgen05_mma,
    wait,
)
from triton_ext.emulator.errors import (
    SynchronizationFault,
    TensorMemoryFault,
    UninitializedRead,
)


def _blackwell(*body: str, parameters: str = "out") -> str:
    return kernel(parameters, *body, target="sm_100a")


def _sums(each: float):
    def run(text: str, schedule: str) -> None:
        out = np.zeros(512, np.float32)
        launch(text, [out], schedule)
        expect(out, np.full_like(out, each))

    return run


def _two_warpgroups(text: str, schedule: str) -> None:
    launch(text, [], schedule, block=256)


_READY = (ALLOCATE, ONES, PUBLISH, OPERANDS)
_FREED = (BLOCK, DEALLOCATE)
_one = _blackwell(
    init(1), *_READY, tcgen05_mma(), COMMIT, wait("DONE"), AFTER, LOAD_SUMS, LOADED,
    TENSOR_SUMS_OUT, *_FREED,
)  # fmt: skip
_RELEASE = """\
  add.u32 %r24, %bar, 8;
  @%first tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r24];"""
_released = _blackwell(
    init(1, 1), *_READY, tcgen05_mma(), COMMIT, _RELEASE, wait("DONE"), AFTER, LOAD_SUMS, LOADED,
    TENSOR_SUMS_OUT, wait("RELEASED", 0, 1), *_FREED,
)  # fmt: skip
_two = _blackwell(
    init(1), *_READY, tcgen05_mma(), tcgen05_mma(1), COMMIT, wait("DONE"), AFTER, LOAD_SUMS, LOADED,
    TENSOR_SUMS_OUT, *_FREED,
)  # fmt: skip
_reused = _blackwell(
    init(1, 128), *_READY, tcgen05_mma(), COMMIT, wait("DONE"), AFTER, LOAD_SUMS, LOADED, BEFORE,
    arrive(1), wait("EMPTY", 0, 1), AFTER, tcgen05_mma(), COMMIT, wait("AGAIN", 1),
    TENSOR_SUMS_OUT, *_FREED,
)  # fmt: skip
_ALIASED = """\
  setp.ge.u32 %p3, %warp, 4;
  @!%p3 tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%thread};
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  @%p3 bra SECOND;
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r22];
  tcgen05.wait::ld.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.arrive 1, 256;
  bra END;
SECOND:
  bar.sync 1, 256;
  tcgen05.fence::after_thread_sync;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%thread};
  tcgen05.wait::st.sync.aligned;
END:"""
_aliased = _blackwell(ALLOCATE, _ALIASED, *_FREED, parameters="")
_published = """\
  setp.ge.u32 %p3, %warp, 4;
  @%p3 bra READER;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%thread};
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  mbarrier.arrive.shared::cta.b64 _, [%bar];
  bra END;
READER:
""" + "\n".join([wait("READY"), AFTER])
_statistics = _blackwell(
    init(128), ALLOCATE, _published, "  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r22];",
    LOADED, "END:", *_FREED, parameters="",
)  # fmt: skip
_REFILL = "\n".join([expect_bytes(6144, 1), bulk_load(6144, 0, 1)])
_stages = _blackwell(
    ALLOCATE, init(1, 1), expect_bytes(6144, 1), bulk_load(6144, 0, 1), wait("FULL", 0, 1),
    OPERANDS, tcgen05_mma(), COMMIT, wait("DONE"), BLOCK, _REFILL,
    wait("AGAIN", 1, 1), tcgen05_mma(1), COMMIT, wait("SUMMED", 1), AFTER, LOAD_SUMS, LOADED,
    TENSOR_SUMS_OUT, *_FREED, parameters="out source",
)  # fmt: skip


def _sums_of_a_source(text: str, schedule: str) -> None:
    out = np.zeros(512, np.float32)
    launch(text, [out, np.full(2048, 0x3C003C00, np.uint32)], schedule)
    expect(out, np.full_like(out, 32))


EXHIBITS = [
    Exhibit(
        "Two products into one accumulator, and one of them is waited for",
        ("triton-lang/triton#10821", "triton-lang/triton#10988"),
        "B300: acc = tl.dot(a1, b1, acc); acc = tl.dot(a2, b2, acc) in a loop is wrong by 50 to 70 "
        "where values are about 25, the same in every run (Triton 3.6.0, 3.7.1).",
        "Triton's pipeliner took two products that share an accumulator for independent ones, and "
        "did not wait for the second. (A kernel like the issue's, compiled by Triton 3.7.1 and "
        "3.8.0, ends in the same fault; by 3.9.0 it is right.)",
        _two, instead(_two, (f"{tcgen05_mma(1)}\n{COMMIT}", f"{COMMIT}\n{tcgen05_mma(1)}")),
        _sums(32), SynchronizationFault, "nothing waited for its completion",
    ),
    Exhibit(
        "tcgen05.mma reads a tile that threads have just written",
        ("NVIDIA/cutlass:examples/cute/tutorial/blackwell/01_mma_sm100.cu",),
        "Latent: the results are checked on a B200.",
        "All threads copy A and B into shared memory by ordinary stores, and __syncthreads is all "
        "that is between these and the product. Mended by fence.proxy.async before the barrier.",
        _one, instead(_one, (PUBLISH, BLOCK)), _sums(16), SynchronizationFault,
        "fence.proxy.async",
    ),
    Exhibit(
        "A fast warp stores over what a slow one has yet to load",
        ("facebookexperimental/triton#1992", "facebookexperimental/triton#1993"),
        "Blackwell: 44 of 380 runs of a flash-attention backward pass had blocks of 32 wrong rows.",
        "P is stored over a part of S in tensor memory. The compiler's barrier analysis knew "
        "shared memory alone, and put none between the warps' loads and stores.",
        _aliased, instead(_aliased, ("  bar.arrive 1, 256;\n", ""), ("  bar.sync 1, 256;\n", "")),
        _two_warpgroups, SynchronizationFault, "may still be read by warp 0",
    ),
    Exhibit(
        "The commit is for a pair of CTAs, the product for one",
        ("tile-ai/tilelang#2287",),
        "Blackwell: CUDA_ERROR_ILLEGAL_INSTRUCTION.",
        "With A in tensor memory the flag for a pair was not passed on to the product. (The ptxas "
        "of CUDA 12.9 refuses it.)",
        _one, instead(_one, ("commit.cta_group::1", "commit.cta_group::2")), _sums(16),
        TensorMemoryFault, "cta_group::2, after an instruction with cta_group::1",
    ),
    Exhibit(
        "Tensor memory is handed back while tcgen05.ld is in flight",
        ("flashinfer-ai/flashinfer#5334", "hao-ai-lab/FastVideo#1819"),
        "Latent: the machine code arrives at the barrier before it waits for the load; nobody "
        "caught a wrong number.",
        "tcgen05.wait::ld stands behind the arrival, or nowhere. The next product may overwrite "
        "what is being loaded.",
        _reused, instead(_reused, (f"{LOADED}\n{BEFORE}", BEFORE),
                         (TENSOR_SUMS_OUT, f"{LOADED}\n{TENSOR_SUMS_OUT}")),
        _sums(16), SynchronizationFault, "has not executed tcgen05.wait::ld yet",
    ),
    Exhibit(
        "Tensor memory is freed while another warp loads",
        (
            "mlc-ai/TIRx-kernels#19",
            "modular/modular:max/kernels/test/gpu/linalg/matmul_blackwell_iterative/2_tensor_core.mojo",
        ),
        "Latent: found by a checker; the B200 gave right numbers.",
        "One warp deallocates when its own work is done. Mended by a barrier of the four warps.",
        _one, instead(_one, (f"{BLOCK}\n{DEALLOCATE}", DEALLOCATE)), _sums(16),
        SynchronizationFault, "is freed, and may still be read by warp 1",
    ),
    Exhibit(
        "A store to tensor memory is announced before it is done",
        ("NVIDIA/cutlass#3653",),
        "Latent, and disputed: reported from a formal check of the FMHA example's PTX.",
        "tcgen05.st, then an arrival, without tcgen05.wait::st between.",
        _statistics, instead(_statistics, ("  tcgen05.wait::st.sync.aligned;\n", "")),
        _two_warpgroups, SynchronizationFault, "has not executed tcgen05.wait::st yet",
    ),
    Exhibit(
        "No product, and yet a sum",
        ("NVIDIA/cutlass#2674",),
        "SM100: a group with K = 0 gets whatever the accumulator held, instead of zeros (reported "
        "with a reproducer).",
        "The main loop has no iteration, so that no product clears the accumulator, and the "
        "epilogue stores it. Mended, for instance, by an epilogue that knows of K = 0.",
        _one, instead(_one, (f"{tcgen05_mma()}\n", "")), _sums(16), UninitializedRead,
        "nothing wrote it",
    ),
    Exhibit(
        "The parity of the ring, for a barrier that flips with each product",
        ("tile-ai/tilelang#3087",),
        "Blackwell: wrong results with three or more stages.",
        "The wait behind a product asked for the parity of the ring of stages; the barrier, a "
        "single one, flips in each iteration. It returns at once, and the next load overwrites a "
        "stage that the product reads. (A deadlock where the product is quicker than the wait.)",
        _stages, instead(_stages, (wait("DONE"), wait("DONE", 1))), _sums_of_a_source,
        SynchronizationFault, "may still be read by the tensor core unit", "lazy",
    ),
    Exhibit(
        "The next tiles are asked for before the product that reads the buffers is awaited",
        ("triton-lang/triton#9406",),
        "Latent: nobody has reported a wrong number. The emulator found it, on Hopper (wgmma) "
        "and on Blackwell.",
        "Triton's Gluon tutorial on im2col has one buffer for A and one for B. Its loop starts "
        "both copies of the next step, waits for them, and only then for the last product.",
        _stages, instead(_stages, (f"{wait('DONE')}\n{BLOCK}\n{_REFILL}",
                           f"{_REFILL}\n{wait('DONE')}\n{BLOCK}")),
        _sums_of_a_source, SynchronizationFault, "may still be read by the tensor core unit",
    ),
    Exhibit(
        "A block ends before its last commit arrives",
        ("Dao-AILab/flash-attention:flash_attn/cute/flash_bwd_sm100.py",),
        "Latent: nobody has reported it.",
        "The last release of a stage is a commit to an mbarrier for which nobody waits any more: "
        "the arrival may come when the block has ended, and its shared memory is another one's. "
        "Mended by a wait for it.",
        _released, instead(_released, (f"{wait('RELEASED', 0, 1)}\n", "")),
        _sums(16), SynchronizationFault, "nobody has waited for this arrival",
    ),
]  # fmt: skip
