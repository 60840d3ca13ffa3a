"""The parameters of each GPU: one table, each value with its source.

"measured": by ``python -m benchmarks.microbenchmarks`` or ``benchmarks.fit`` of this project, on
an H200; "published": in documents; "fitted": to the split "fit" of ``benchmarks.timeline`` and the
surveys; "assumed": neither, and by analogy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from triton_ext.errors import LayoutError


def _of(source: str, default: Any) -> Any:
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True)
class Chip:
    """The chip as data sheets have it, and what launches find in its L2 cache.

    Attributes:
        name: "H200".
        arch: 90.
        multiprocessors: SMs.
        clock: the highest clock of the SMs, Hz.
        power: the limit, W.
        gpcs: how many there are; what SMs of one ask for at about the same time is read once.
        warm: whether the L2 cache has what a launch loads, and keeps what it stores.
        catch_up: whether blocks of all waves, and not of the first alone, wait for memory wherever
            they load what comes from there: those that share it catch up with the one that asks
            for it first. Nothing tells here what an earlier wave has brought, so all of it counts.
    """

    name: str
    arch: int = _of("published: CUDA C++ Programming Guide", 90)
    multiprocessors: int = _of("published: data sheet", 132)
    clock: float = _of("measured: NVML under light load", 1.98e9)
    power: float = _of("published: data sheet", 700)
    gpcs: int = _of("published: H100 white paper", 8)
    warm: bool = _of("assumed: each launch has tensors of its own", False)
    catch_up: bool = _of(
        "assumed: 22 kernels of ladder and Triton tutorial are 8.7 % off without, 8.8 % with", False
    )


@dataclass(frozen=True)
class Energy:
    """Energies, J at the highest clock, which power limits.

    Attributes:
        idle_power: of the GPU while all SMs wait, W.
        flop_energy: of an operation of 16-bit products.
        flop_energy_8: of 8-bit products.
        operand_energy: of a byte of shared memory that products read.
        l2_energy: of a byte between an SM and the L2 cache.
        memory_energy: of a byte between the L2 cache and memory.
        power_exponent: of the clock in these energies, as the voltage falls with it.
    """

    idle_power: float = _of("measured: blocks that sleep", 126.5)
    flop_energy: float = _of("measured: clocks of products at the power limit", 6.9e-13)
    flop_energy_8: float = _of("fitted", 3.5e-13)
    operand_energy: float = _of("measured: 64x64 beside 64x256", 4e-12)
    l2_energy: float = _of("fitted: SMs share lines; measured: rings of own lines 2.64e-11", 2e-11)
    memory_energy: float = _of("measured: power of rings from memory", 7.2e-11)
    power_exponent: float = _of("measured: clocks of products, alone and beside rings", 0.75)


@dataclass(frozen=True)
class Pipes:
    """The pipelines of an SM. Cycles are of its clock.

    Attributes:
        flops_per_cycle: of an SM's tensor cores, with 16-bit operands.
        operand_bytes: that the tensor cores read from shared memory in a cycle, if nobody else
            does.
        waiting: cycles of accesses to shared memory that may wait for those of products.
        product_latency: from the end of a product to the thread that waits for it.
        issue_cycles: that a warp takes for a memory instruction, alone.
        instruction_cycles: that an instruction holds its scheduler, for other warps.
        half_cycles, special_cycles, mma_cycles: that a turn of the first two pipes of
            `triton_ext.timeline.sass`, of the third, and of the last takes.
        tensor_memory_cycles: that a warp takes for a column of its 32 lanes of tensor memory.
        tensor_memory_latency: cycles of a load from there, besides.
        shared_latency, l1_latency: cycles of a load from shared memory and the L1 cache.
    """

    flops_per_cycle: float = _of("published: data sheet, 4 x 512 FMA", 4096)
    operand_bytes: float = _of("measured: 64x8: 18 cycles a product", 128)
    waiting: float = _of("fitted", 50)
    product_latency: float = _of("measured: 4 and 16 products of 64x8 to 64x256, awaited", 45)
    issue_cycles: float = _of("measured: one warp's shuffles, 6.1; its ld.shared.v4, 9.1", 6.0)
    instruction_cycles: float = _of(
        "fitted: 150 problems drawn from the surveys; published: one a cycle at most", 1.3
    )
    half_cycles: float = _of("published: CUDA C++ Programming Guide, 64 lanes a cycle and SM", 2)
    special_cycles: float = _of("published: CUDA C++ Programming Guide, 16 lanes", 8)
    mma_cycles: float = _of("measured: 16 warps; Luo et al. have 6.36", 6.03)
    tensor_memory_cycles: float = _of("assumed: 32 lanes of 32 bits a cycle and quarter", 1.0)
    tensor_memory_latency: float = _of("assumed", 40)
    shared_latency: float = _of("measured: dependent loads", 30)
    l1_latency: float = _of("published: 33 cycles", 38)


@dataclass(frozen=True)
class Copies:
    """The TMA unit of an SM.

    Attributes:
        tma_latency: cycles from the instruction to the barrier's phase, from the L2 cache.
        tma_memory_latency: the same, from memory.
        tma_bytes: that a TMA unit copies in a cycle, and writes to shared memory in one of its.
        multicast_bytes: that a block receives in a cycle of what is copied to several of its
            cluster.
        multicast_row: bytes, in whose time such a box's row comes at least.
        multicast_across: bytes, in whose time it comes later if it is in two lines.
        tma_row: cycles that a row of a box of less than 128 bytes, or in two lines, holds the TMA
            unit.
        tma_box: cycles that a box holds it at least.
        store_bytes: that TMA stores in a cycle, of an SM.
        stores: of all SMs, bytes/s.
        store_across: bytes, in whose time a stored row goes later if it is in two lines.
        cut_row: cycles that a row holds the TMA unit longer of which a part is outside.
        cut_sector: the same, if what is inside are not whole sectors.
    """

    tma_latency: float = _of("measured: boxes of 8 rows, one at a time", 244)
    tma_memory_latency: float = _of("measured: boxes of 256 rows, 563 more than from L2", 807)
    tma_bytes: float = _of("measured: boxes of 256 rows, 4 in flight", 107)
    multicast_bytes: float = _of(
        "measured: rings of clusters of 2 to 8, from one block; matmuls reach it, too", 77
    )
    multicast_row: float = _of("fitted: 109 problems of less than 16 us", 128)
    multicast_across: float = _of("fitted: the same", 80)
    tma_row: float = _of("measured: rows of 16 and 48 bytes", 2.1)
    tma_box: float = _of("fitted; measured: boxes of 8 rows one after the other, 48", 28)
    store_bytes: float = _of("measured: tiles of 32 KB by one SM", 31.6)
    stores: float = _of(
        "fitted: 74 problems of more than 16 us; measured: tiles of 32 KB one after the other"
        " 4.35e12",
        5e12,
    )
    store_across: float = _of("fitted: ends of 400 kernels, of 16 to 128 aligned bytes", 32)
    cut_row: float = _of("measured: rows of 32 to 96 bytes in boxes of 128; 5 by all SMs", 0.8)
    cut_sector: float = _of("fitted; measured: rows of 16 and 112 bytes, 1.7; 9 by all SMs", 4)


@dataclass(frozen=True)
class Memory:
    """The L2 cache and the memory. Bytes/s are of all SMs together.

    Attributes:
        l2_latency, memory_latency: cycles of a load of a thread from the L2 cache and memory.
        queue: cycles that loads from memory take longer if it is busy all the time.
        l2_bytes: that all SMs load from the L2 cache, bytes/s.
        memory_bytes: from memory, bytes/s.
        sm_memory: that an SM loads from memory, bytes/s, while few others do.
        dirty_bytes: of what has been stored, that the L2 cache keeps before loads wait for memory
            to write it.
        delivered: the part of a line's time that each SM takes which asks for it, and not each GPC.
        hot: lines, in whose time one comes later that goes to several blocks of a cluster, if very
            many clusters ask for it: nothing puts these together, and they wait for each other.
        misaligned: lines, in whose time a box's row comes later if it is in two.
        cut: lines, in whose time it comes later if it begins within a sector.
        absent_row: lines of the L2 cache, in whose time a box's row outside of the tensor comes.
        write: the bytes read in the time in which one is written to memory, among reads.
    """

    l2_latency: float = _of("measured: dependent loads in 16 MB", 365)
    memory_latency: float = _of("measured: dependent loads in 512 MB", 660)
    queue: float = _of("fitted: 183 problems drawn from a survey", 900)
    l2_bytes: float = _of(
        "fitted: 10,800 kernels of both surveys; measured: own lines 9.3e12, lines that 16 SMs"
        " share 1.66e13",
        1.6e13,
    )
    memory_bytes: float = _of(
        "published: data sheet; measured, as L2 takes its time too: 4.65e12", 4.8e12
    )
    sm_memory: float = _of("measured: 8 to 24 SMs, each its own lines, 1.2e11 to 1.7e11", 1.39e11)
    dirty_bytes: float = _of("assumed: less than half of the L2 cache", 2e7)
    delivered: float = _of("fitted: 2,900 kernels of one wave", 0.38)
    hot: float = _of("fitted: the same", 0.5)
    misaligned: float = _of("fitted: 3,900 kernels of one wave", 0.52)
    cut: float = _of("fitted: the same", 0.9)
    absent_row: float = _of(
        "fitted: the same 10,800; measured: boxes of 64 rows, 8 to 32 outside, all SMs, 7.4", 4
    )
    write: float = _of("fitted: kernels that read as much as they write", 1.4)


@dataclass(frozen=True)
class Signals:
    """Cycles from one thread to another, by what tells it.

    Attributes:
        barrier_latency: from an arrival at an mbarrier to the thread that waits.
        far_arrival: of an arrival in another block of the cluster.
        cluster_barrier: of an arrival at the cluster's barrier.
        far_latency: of what ``st.async`` writes there, with the arrival.
        send_cycles: that a warp's ``st.async`` holds the way to the other blocks of its cluster:
            each thread's is a message, however wide.
        bar_latency: of ``bar.sync``.
        atomic_latency: of an atomic operation in global memory.
        release_latency: what it takes longer if it releases, once all stores before are there.
    """

    barrier_latency: float = _of("measured: a round trip of two warps", 20)
    far_arrival: float = _of(
        "measured: one way, 231 to 246 with the wait on an H100, 66 in the block", 190
    )
    cluster_barrier: float = _of("measured: relaxed, 65 to 89 cycles with the wait, on an H100", 40)
    far_latency: float = _of("measured: st.async of one warp, 234 with a barrier and the wait", 200)
    send_cycles: float = _of("measured: st.async of 16 bytes a thread, 8 warps, 26; all SMs 28", 27)
    bar_latency: float = _of("measured: 4 warps", 12)
    atomic_latency: float = _of("assumed: as a load", 365)
    release_latency: float = _of("fitted: 15 split-K kernels, less a fence", 550)


@dataclass(frozen=True)
class Starts:
    """The beginning and the end of kernels and blocks.

    Attributes:
        launch: seconds from the end of the kernel before to the first instruction, and from the
            last to the end.
        start: how much longer, if there are blocks for all SMs.
        descriptors: how much longer then, if all load the descriptors of TMA copies.
        released: seconds from the end of a kernel to what waits for it in one that has started
            early (programmatic dependent launch).
        beside: how much longer, if its blocks form clusters.
        late: to the first instruction of one for which there was no room beside that kernel.
        cluster: how much longer, if blocks form clusters.
        block_start: cycles from a block's end to the next one's first instruction.
        block_interval: cycles between the starts of two blocks on an SM.
    """

    launch: float = _of("fitted; measured: a grid of 1 block, 8.4e-7", 6e-07)
    start: float = _of("measured: empty blocks", 1.3e-07)
    descriptors: float = _of("fitted; measured: 1.09e-6 to 1.3e-6 with launch and start", 5.3e-07)
    released: float = _of(
        "fitted: 109 problems of less than 16 us; measured: 6e-7, and its blocks end 1e-7 to 1.3e-6"
        " apart",
        7.5e-07,
    )
    beside: float = _of("fitted: 109 problems of less than 16 us", 2e-7)
    late: float = _of(
        "fitted: the same; measured, from the end of a block on its SM: 3.8e-7", 6e-07
    )
    cluster: float = _of("fitted", 2.6e-07)
    block_start: float = _of("fitted", 500)
    block_interval: float = _of("measured: grids of 1056 and 8448 empty blocks", 160)


@dataclass(frozen=True)
class Gpu(Starts, Signals, Memory, Copies, Pipes, Energy, Chip):
    """What the model knows of a GPU."""

    def sources(self) -> dict[str, tuple[Any, str]]:
        """Each parameter's value and source."""
        found = {}
        for each in fields(self)[1:]:
            source = each.metadata["source"]
            if self.name in _OTHERS:
                _, source = _OTHERS[self.name].get(each.name, (0, "assumed: as on an H200"))
            found[each.name] = (getattr(self, each.name), source)
        return found

    def but(self, **changes: Any) -> Gpu:
        """The same with other parameters, to ask what would be if."""
        known = {each.name for each in fields(self)}
        for name in changes:
            if name not in known:
                raise LayoutError("parameter", name, f"must be one of {', '.join(sorted(known))}")
        return replace(self, **changes)


_TRACE = "published: trace_v5.json.gz of the ladder's tutorial"
_DIES = "published: SemiAnalysis, 300 cycles to the other die, here for every second load; else"
_OTHERS: dict[str, dict[str, tuple[Any, str]]] = {
    "H100": {
        "memory_bytes": (3.35e12, "published: data sheet"),
        "l2_bytes": (1.9e13, "fitted: 74 problems of more than 16 us"),
        "flop_energy": (7.4e-13, "fitted: 145 kernels of its survey"),
    },
    "B200": {
        "arch": (100, "published: CUDA C++ Programming Guide"),
        "multiprocessors": (148, "published: data sheet"),
        "clock": (
            1.965e9,
            "published: flashinfer pull request 2899, before power limits it; SemiAnalysis, 1.96e9"
            " by ncu's cycles and seconds",
        ),
        "issue_cycles": (2.0, "assumed"),
        "instruction_cycles": (1.0, "published: CUDA C++ Programming Guide"),
        "flops_per_cycle": (8192, "published: data sheet, twice a Hopper SM's"),
        "power": (1000, "published: data sheet"),
        "flop_energy": (
            6.7e-13,
            "published: JAX's guide, cuBLAS at 63 % of the data sheet's rate; other energies as on"
            " an H200",
        ),
        "flop_energy_8": (3.35e-13, "assumed: half of that of 16 bits"),
        "operand_bytes": (128, "published: SemiAnalysis, products of N < 128"),
        "l2_latency": (515, f"{_DIES} as on an H200"),
        "memory_latency": (810, f"{_DIES} as on an H200"),
        "tma_latency": (
            510,
            f"{_DIES} as on an H200; the tutorial's trace: with 32 KB, 0.38 to 0.45 us in the first"
            " steps of blocks that begin behind others",
        ),
        "tma_memory_latency": (
            1410,
            f"{_DIES} as on an H200 whose memory is busy; the trace: with 32 KB, 0.9 us",
        ),
        "catch_up": (
            True,
            f"{_TRACE}: in the second and third wave, 0.9 us in the later steps of all blocks",
        ),
        "queue": (0, "assumed: the latency is that of a busy memory"),
        "tma_row": (1.19, "assumed: as an H200's rows of 128 bytes"),
        "product_latency": (
            115,
            "published: SemiAnalysis, 4 awaited products at 79 % of the peak: 70 more than on an"
            " H200",
        ),
        "far_arrival": (200, "assumed: as st.async on an H200"),
        "tensor_memory_latency": (100, f"{_TRACE}: 2.5 us for 32 loads of 8 columns, in turn"),
        "l2_bytes": (
            3.25e13,
            "published: Chips and Cheese, 2.1e13 from one's own die, 1.68e13 from the other, each"
            " SM its own lines; here 1.72 of that, as of what was measured of an H200;"
            " SemiAnalysis: 2.9e13 while 144 SMs copy, 16 the same lines",
        ),
        "memory_bytes": (6.6e12, "published: SemiAnalysis, cp.async"),
    },
}
"""What differs from an H200, with the sources. Nothing ran on a B200."""
GPUS: dict[str, Gpu] = {
    "H200": Gpu("H200"),
    **{
        name: Gpu(name, **{key: value for key, (value, _) in differing.items()})
        for name, differing in _OTHERS.items()
    },
}
"""By name. The H100 is the SXM5 one with HBM3."""


def gpu_of(name: Any, arch: int | None = None, *, argument: str = "time") -> Gpu:
    """The GPU of a name, or the given parameters themselves.

    Args:
        name: True for the first one of the architecture.
        arch: that of the emulated GPU, which must be the same.
        argument: what errors call it.

    Raises:
        LayoutError: another name, or a GPU of another architecture.
    """
    fitting = {key: each for key, each in GPUS.items() if arch in (None, each.arch)}
    if not fitting:
        rule = f"there are no figures of sm_{arch}: time is predicted of {', '.join(GPUS)} alone"
        raise LayoutError(argument, name, rule)
    if name is True:
        return next(iter(fitting.values()))
    if not isinstance(name, Gpu):
        if not isinstance(name, str) or name.upper() not in GPUS:
            raise LayoutError(argument, name, f"must be one of {', '.join(GPUS)}")
        name = GPUS[name.upper()]
    if arch is not None and name.arch != arch:
        rule = f"is an sm_{name.arch}, and the kernel runs on sm_{arch}: must be"
        raise LayoutError(argument, name.name, f"{rule} {' or '.join(fitting)}")
    found: Gpu = name
    return found
