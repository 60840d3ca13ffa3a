"""What the units of a Hopper SM take: cycles of products, copies, barriers and memory accesses.

    python -m benchmarks.microbenchmarks [--json FILE] [--only NAME,NAME]

Each case is a small PTX kernel that reads ``%clock64`` before and after what it repeats, launched
through the driver; `triton_ext.timeline.gpus` quotes the results. With ``--emulate`` the same
kernels run on the emulated GPU, which says that they are legal (and nothing about time).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.units.case import SMS, Case
from benchmarks.units.copies import ring, stores, tma
from benchmarks.units.instructions import EXPONENTIAL, MMA, simple
from benchmarks.units.memory import chase, streaming
from benchmarks.units.products import wgmma
from benchmarks.units.signals import FAR, RELEASE, barrier_round_trip, one_way, sends


def cases() -> Iterator[Case]:
    """All of them."""
    for n in (8, 16, 32, 48, 64, 96, 128, 160, 192, 256):
        for run in (4, 16):
            yield wgmma(n, run=run)
    for n, kind in itertools.product((64, 128, 256), ("e4m3", "tf32", "s8")):
        yield wgmma(n, kind, run=16)
    for n in (8, 64, 128, 256):
        yield wgmma(n, registers=True, run=16)
    for n in (8, 64, 128, 256):
        yield wgmma(n, groups=2, run=16)
    for rows, flight in itertools.product((8, 64, 128, 256), (1, 2, 4)):
        for grid in (1, SMS):
            yield tma(rows, flight, grid, from_memory=False)
            yield tma(rows, flight, grid, from_memory=True)
    for present, grid in itertools.product((0, 8, 32, 56, 64), (1, 16, 66, SMS)):
        yield tma(64, 4, grid, from_memory=False, present=present)
    for inside, grid in itertools.product((16, 32, 64, 96, 112), (1, 16, 66, SMS)):
        yield tma(64, 4, grid, from_memory=False, present=64, inside=inside)
    for grid, source in itertools.product((1, 2, 4, 16, 35, 58, 66, SMS), ("memory", "L2")):
        yield ring((128, 128, 128), 8, grid, source)
    for grid, pitch in itertools.product((1, 66, SMS), (8192, 28672)):
        yield ring((128, 128, pitch), 8, grid, "memory", repeats=8)
    for grid, width, pitch in itertools.product((1, 66), (16, 48), (48, 22384)):
        yield ring((64, width, pitch), 16, grid, "memory", repeats=16)
    for grid, cluster, multicast in itertools.product(
        (8, 16, 32, 64, 128), (2, 4, 8), ("", "first", "parts")
    ):
        for source in ("memory", "L2"):
            yield ring((128, 128, 128), 8, grid, source, cluster=cluster, multicast=multicast)
    for cluster, grid in itertools.product((1, 2, 4), (8, 16, 24, 32, 48, 64, 96, 120)):
        for source in ("memory", "L2"):
            yield ring((128, 128, 128), 8, grid, source, repeats=32, cluster=cluster, own=True)
    for number, warps, grid in itertools.product((1, 8, 32), (1, 4, 8), (4, 128)):
        yield sends(number, warps, 4, grid)
    for grid, (tiles, pending), pitch in itertools.product(
        (1, SMS), ((1, 0), (32, 0), (32, 1)), (128, 16384)
    ):
        yield stores(grid, tiles, pitch, pending)
    yield barrier_round_trip()
    for cluster in (1, 2, 4, 8):
        for how in ("shared::cta",) * (cluster == 1) + (FAR, RELEASE):
            yield one_way(cluster, how)
    for others in (2, 3):
        yield one_way(4, FAR, others)
    for order, cluster, warps in itertools.product(("release", "relaxed"), (2, 4, 8), (4, 12)):
        meet = f" barrier.cluster.arrive.{order}.aligned;\n barrier.cluster.wait.acquire.aligned;"
        yield simple(
            "cluster barrier", meet, 16, warps, cluster=cluster, order=order,
            directives=f".explicitcluster .reqnctapercluster {cluster}, 1, 1",
        )  # fmt: skip
    yield simple("bar.sync", " bar.sync 0;", 16)
    for warps in (4, 8, 12, 16):
        yield simple("bar.sync", " bar.sync 0;", 16, warps)
    ld = " ld.volatile.shared.v4.u32 {%r21, %r22, %r23, %r24}, [%r20];\n"
    ld += " xor.b32 %r1{i}, %r1{i}, %r21;"
    for warps in (1, 4, 8, 16):
        yield simple("ld.shared.v4", ld, 16, warps, 512)
        yield simple(
            "st.shared.v4", " st.volatile.shared.v4.u32 [%r20], {%r1{i}, %r11, %r12, %r13};", 16,
            warps, 512,
        )  # fmt: skip
        yield simple("fma", " fma.rn.f32 %f{i}, %f{i}, %f{i}, %f{i};", 64, warps)
        yield simple("ex2", EXPONENTIAL.rstrip(), 64, warps)
        yield simple("mad.lo", " mad.lo.u32 %r1{j}, %r1{j}, %r1{j}, %r1{j};", 64, warps)
        yield simple("mul.hi", " mul.hi.u32 %r1{j}, %r1{j}, %r1{j};", 64, warps)
        wide = " mad.wide.u32 %rd1{j}, %r1{j}, %r10, %rd1{j};\n cvt.u32.u64 %r1{j}, %rd1{j};"
        yield simple("mad.wide", wide, 64, warps)
        yield simple("mma.sync", MMA, 64, warps)
        yield simple("shfl", " shfl.sync.bfly.b32 %r1{i}, %r1{i}, 1, 31, -1;", 16, warps)
    yield simple("mma.sync, dependent", MMA.replace("{j}", "0"), 16, 1)
    yield simple("fma, dependent", " fma.rn.f32 %f0, %f0, %f0, %f0;", 64, 1)
    yield simple("ex2, dependent", " ex2.approx.ftz.f32 %f0, %f0;", 64, 1)
    yield simple("shfl, dependent", " shfl.sync.bfly.b32 %r10, %r10, 1, 31, -1;", 16, 1)
    chased = " ld.volatile.shared.u32 %r21, [%r20];\n add.u32 %r20, %r20, %r21;"
    yield simple("ld.shared, dependent", chased, 16, 1)
    # what there is nothing to wait for; not elect.sync, of which ptxas leaves one, before the loop
    for warps in (1, 4, 8):
        yield simple("fence.proxy.async", " fence.proxy.async.shared::cta;", 16, warps)
        yield simple("fence.proxy.async", " fence.proxy.async;", 16, warps, space="all")
    for megabytes in (1, 16, 512):
        yield chase(megabytes)
        for blocks in (SMS, 2 * SMS):
            yield streaming(blocks, megabytes, store=False)
            yield streaming(blocks, megabytes, store=True)


TABLE = Table(
    ("case", "<24", "case"),
    ("which", "<62", lambda row: ", ".join(
        f"{k} {v}" for k, v in row.items()
        if k not in ("case", "repeats", "cycles", "nanoseconds", "bytes_per_second",
                     "bytes_per_cycle", "slowest"))),
    ("cycles", ">10.2f", "cycles"),
    ("bytes/cycle", ">12.2f", "bytes_per_cycle"),
    ("bytes/s", ">12.3g", "bytes_per_second"),
)  # fmt: skip


def rows(only: str, emulate: bool) -> Iterator[Row]:
    """A row for each case, the median of a few runs.

    Args:
        only: parts of the names of the cases to run, with commas between.
    """
    for case in cases():
        if not any(part in case.name for part in only.split(",")):
            continue
        runs = [case.row(emulate) for _ in range(1 if emulate else 3)]
        yield runs[0] | {"cycles": statistics.median(run["cycles"] for run in runs)}


if __name__ == "__main__":
    harness.main("microbenchmarks", __doc__, rows, TABLE, only="", emulate=False)
