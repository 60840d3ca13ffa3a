"""The parameters of each GPU: one table, each value with its source.

"measured": by ``python -m benchmarks.microbenchmarks`` or ``benchmarks.fit`` of this project, on
that GPU; "published": in documents; "fitted": to the split "fit" of ``benchmarks.timeline`` and the
surveys; "assumed": neither, and by analogy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from triton_ext.errors import LayoutError


def _of(source: str, default: Any) -> Any:
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True)
class Gpu:
    """What the model knows of a GPU. Cycles are of the SM's clock; bytes/s of all SMs together.

    Attributes:
        name: "H200".
        arch: 90.
        multiprocessors: SMs.
        clock: the highest clock of the SMs, Hz.
        power_flops: operations/s of 16-bit products that the power limit leaves all SMs.
        power_flops_8: of 8-bit products.
        flops_per_cycle: of an SM's tensor cores, with 16-bit operands.
        operand_bytes: that the tensor cores read from shared memory in a cycle.
        product_latency: from the end of a product to the thread that waits for it.
        issue_cycles: that a warp takes for a memory instruction, alone.
        chain: the time that dependent instructions take, of that of their PTX.
        ptx_instructions: instructions of the machine for one of PTX.
        special_cycles, half_cycles: that a special function or an instruction of half rate holds
            its pipe.
        shared_latency, l1_latency: cycles of a load from shared memory and the L1 cache.
        l2_latency, memory_latency: cycles of a load of a thread from the L2 cache and memory.
        tma_latency: cycles from the instruction to the barrier's phase, from the L2 cache.
        tma_memory_latency: the same, from memory.
        tma_bytes: that a TMA unit copies in a cycle.
        tma_row, tma_box: cycles that a row of a box, and a box, hold the TMA unit at least.
        store_bytes: that TMA stores in a cycle, of an SM.
        l2_bytes: that all SMs load from the L2 cache, bytes/s.
        memory_bytes: from memory, bytes/s.
        outside: what a byte of a box outside of its tensor costs, of one inside, at the L2 cache.
        misaligned: the fraction by which a row of a box in two lines of the L2 cache takes longer.
        write: the bytes read in the time in which one is written to memory, among reads.
        barrier_latency: from an arrival at a barrier of any kind to the thread that waits.
        far_latency: of an arrival in another block of the cluster.
        atomic_latency: of an atomic operation in global memory.
        launch: seconds from the end of the kernel before to the first instruction, and from the
            last to the end.
        block_start: cycles from a block's end to the next one's first instruction.
        block_interval: cycles between the starts of two blocks on an SM.
    """

    name: str
    arch: int = _of("published: CUDA C++ Programming Guide", 90)
    multiprocessors: int = _of("published: data sheet", 132)
    clock: float = _of("measured: NVML under light load", 1.98e9)
    power_flops: float = _of("fitted", 6.6e14)
    power_flops_8: float = _of("measured: benchmarks.fit", 1.7e15)
    flops_per_cycle: float = _of("published: data sheet, 4 x 512 FMA", 4096)
    operand_bytes: float = _of("measured: 64x8: 18 cycles a product", 128)
    product_latency: float = _of(
        "measured: 16 products of 64x256, awaited: 69 cycles more than they take", 60
    )
    issue_cycles: float = _of("assumed", 2.0)
    chain: float = _of("fitted", 2.07)
    ptx_instructions: float = _of("fitted", 1.06)
    special_cycles: float = _of("published: 16 lanes a cycle and SM", 8)
    half_cycles: float = _of("fitted; published: 64 lanes a cycle and SM", 1.4)
    shared_latency: float = _of("measured: dependent loads", 30)
    l1_latency: float = _of("published: 33 cycles", 38)
    l2_latency: float = _of("measured: dependent loads in 16 MB", 365)
    memory_latency: float = _of("measured: dependent loads in 512 MB", 660)
    tma_memory_latency: float = _of("fitted; measured: boxes of 64 to 256 rows", 1050)
    tma_latency: float = _of("measured: boxes of 8 rows, one at a time", 360)
    tma_bytes: float = _of("measured: boxes of 256 rows, 4 in flight", 107)
    tma_row: float = _of("measured: boxes of 64 to 256 rows", 1.19)
    tma_box: float = _of("measured: boxes of 8 rows, 4 in flight", 48)
    store_bytes: float = _of("fitted", 20.4)
    l2_bytes: float = _of("fitted; measured: boxes of 256 rows, all SMs", 1.6e13)
    memory_bytes: float = _of("fitted; measured: boxes of 256 rows, all SMs", 3.91e12)
    outside: float = _of("fitted", 3.24)
    misaligned: float = _of("fitted", 0.74)
    write: float = _of("fitted: kernels that copy", 1.15)
    barrier_latency: float = _of("measured: half a round trip of two warps", 60)
    far_latency: float = _of("assumed", 200)
    atomic_latency: float = _of("assumed", 700)
    launch: float = _of("fitted; measured: a grid of 1 block", 7.2e-07)
    block_start: float = _of("fitted", 500)
    block_interval: float = _of("measured: grids of 1056 and 8448 empty blocks", 160)

    def sources(self) -> dict[str, tuple[Any, str]]:
        """Each parameter's value and source; what differs from an H200 is scaled by data sheets."""
        reference = GPUS["H200"]
        found = {}
        for each in fields(self)[1:]:
            value = getattr(self, each.name)
            same = value == getattr(reference, each.name)
            source = each.metadata["source"] if same else "assumed: as the data sheets differ"
            found[each.name] = (value, source)
        return found

    def but(self, **changes: Any) -> Gpu:
        """The same with other parameters, to ask what would be if."""
        known = {each.name for each in fields(self)}
        for name in changes:
            if name not in known:
                raise LayoutError("parameter", name, f"must be one of {', '.join(sorted(known))}")
        return replace(self, **changes)


GPUS: dict[str, Gpu] = {
    "H100": Gpu("H100", memory_bytes=2.7e12),
    "H200": Gpu("H200"),
}
"""By name. The H100 is the SXM5 one with HBM3; it differs from the H200 by its memory."""


def gpu_of(name: Any, arch: int | None = None) -> Gpu:
    """The GPU of a name, or the given parameters themselves.

    Args:
        arch: that of the emulated GPU, which must be the same.

    Raises:
        LayoutError: another name, or a GPU of another architecture.
    """
    if not isinstance(name, Gpu):
        if not isinstance(name, str) or name.upper() not in GPUS:
            raise LayoutError("time", name, f"must be one of {', '.join(GPUS)}, or a Gpu")
        name = GPUS[name.upper()]
    if arch is not None and name.arch != arch:
        raise LayoutError("time", name.name, f"is an sm_{name.arch}: the kernel runs on sm_{arch}")
    found: Gpu = name
    return found
