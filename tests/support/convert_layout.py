"""Pairs of distributed layouts from a seed, and what Triton makes of a conversion between them."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pass_corpus import environment

from triton_ext.hardware.conversions import PlannedConversion, plan_conversion
from triton_ext.layouts.distributed import distributed_linear_layout
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.passes.conversions import counted_name
from triton_ext.ptx.parse import parse_ptx

WORKER = Path(__file__).with_name("convert_layout_worker.py")
BITS = {"i1": 1, "i8": 8, "f16": 16, "f32": 32, "i64": 64}
MOVES = ("ld.", "st.", "ldm", "stm", "shfl")

Job = dict
Bases = dict[str, list[int]]


def drawn(draw: random.Random, size: int, warps: int, blocks: int, empty: float) -> Bases:
    """Any layout of `size` bits; a bit of lane, warp or block is empty by a chance."""
    units = [1 << bit for bit in range(size)]
    draw.shuffle(units)
    bases: Bases = {}
    for name, count in (("lane", 5), ("warp", warps), ("block", blocks)):
        bases[name] = [units.pop() if units and draw.random() > empty else 0 for _ in range(count)]
    if draw.random() < 0.1:
        units.insert(draw.randrange(len(units) + 1), 0)
    return bases | {"register": units}


def nearby(draw: random.Random, bases: Bases) -> Bases:
    """The same layout with a few bits exchanged."""
    found = {name: list(values) for name, values in bases.items()}
    for _ in range(draw.randrange(4)):
        names = draw.choice((["register"], ["register", "lane"], ["lane"], list(found)[:-2]))
        places = [(name, i) for name in names for i in range(len(found[name]))]
        if len(places) > 1:
            (a, i), (b, j) = draw.sample(places, 2)
            found[a][i], found[b][j] = found[b][j], found[a][i]
    return found


NAMED = (
    "#ttg.blocked<{{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [{warps}, 1],"
    " order = [1, 0]}}>",
    "#ttg.blocked<{{sizePerThread = [4, 1], threadsPerWarp = [16, 2], warpsPerCTA = [1, {warps}],"
    " order = [0, 1]}}>",
    "#ttg.blocked<{{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [{warps}, 1],"
    " order = [1, 0]}}>",
    "#ttg.nvidia_mma<{{versionMajor = 2, versionMinor = 0, warpsPerCTA = [{warps}, 1],"
    " instrShape = [16, 8]}}>",
    "#ttg.nvidia_mma<{{versionMajor = 3, versionMinor = 0, warpsPerCTA = [{warps}, 1],"
    " instrShape = [16, 32, 16]}}>",
    "#ttg.dot_op<{{opIdx = 0, parent = #ttg.nvidia_mma<{{versionMajor = 2, versionMinor = 0,"
    " warpsPerCTA = [{warps}, 1], instrShape = [16, 8]}}>, kWidth = 2}}>",
    "#ttg.dot_op<{{opIdx = 0, parent = #ttg.nvidia_mma<{{versionMajor = 3, versionMinor = 0,"
    " warpsPerCTA = [{warps}, 1], instrShape = [16, 32, 16]}}>, kWidth = 4}}>",
    "#ttg.dot_op<{{opIdx = 1, parent = #ttg.nvidia_mma<{{versionMajor = 2, versionMinor = 0,"
    " warpsPerCTA = [{warps}, 1], instrShape = [16, 8]}}>, kWidth = 4}}>",
)
"""Encodings of kernels."""


def named(draw: random.Random, warps: int, shape: tuple[int, int]) -> Bases:
    """One of `NAMED`, flat."""
    layout = distributed_linear_layout(draw.choice(NAMED).format(warps=1 << warps), shape)
    flat = layout.reshape_outs({"flat": layout.total_out_size})
    return {name: [basis[0] for basis in bases] for name, bases in flat.bases.items()} | {
        "block": []
    }


def jobs(seed: int, count: int, *, blocks: bool = False) -> list[Job]:
    """Jobs of the worker: pairs of any layouts, of layouts that differ little, and of `NAMED`."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        warps, many = draw.randrange(4), draw.randrange(2) if blocks else 0
        size = max(draw.randrange(5, 12), warps + many)
        empty = draw.choice((0, 0.1, 0.5))
        a = drawn(draw, size, warps, many, empty)
        b = nearby(draw, a) if draw.random() < 0.4 else drawn(draw, size, warps, many, empty)
        if not blocks and draw.random() < 0.4:
            warps, shape = draw.choice((0, 2, 3)), draw.choice(((32, 64), (64, 32), (64, 128)))
            size = (shape[0] * shape[1]).bit_length() - 1
            a, b = named(draw, warps, shape), named(draw, warps, shape)
        job = {
            "arch": 90 if blocks else draw.choice((80, 90, 90, 100)),
            "element": draw.choice(("i8", "f16", "f16", "f32", "f32", "i64")),
            "size": 1 << size, "warps": 1 << warps, "blocks": 1 << many, "a": a, "b": b,
        }  # fmt: skip
        found.append(job)
    return found


def compiled(wanted: list[Job], site: Path | None) -> tuple[tuple[int, int], list[dict]]:
    """The release of Triton at `site`, and the worker's result of each job."""
    finished = subprocess.run(
        [sys.executable, str(WORKER)],
        input=json.dumps(wanted), capture_output=True, text=True, env=environment(site),
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    version, *results = map(json.loads, finished.stdout.splitlines())
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)), results


def layout(bases: Bases, size: int) -> LinearLayout:
    """A job's layout, with a cluster's blocks if there are any."""
    names = [
        name for name in ("register", "lane", "warp", "block") if name != "block" or bases[name]
    ]
    return LinearLayout({name: [(v,) for v in bases[name]] for name in names}, {"dim0": size})


def planned(job: Job, release: tuple[int, int]) -> PlannedConversion:
    """What is predicted of a job."""
    a, b = (layout(job[name], job["size"]) for name in ("a", "b"))
    return plan_conversion(a, b, BITS[job["element"]], arch=job["arch"], release=release)


def moves(ptx: str) -> dict[str, int]:
    """The shuffles, and accesses to shared memory, in the PTX of a conversion."""
    (kernel,) = parse_ptx(ptx).kernels
    names = Counter(filter(None, map(counted_name, kernel.instructions)))
    return {name: count for name, count in names.items() if name.startswith(MOVES)}


def barriers(ptx: str) -> bool:
    """Whether a block's warps wait for each other."""
    (kernel,) = parse_ptx(ptx).kernels
    return any(each.opcode.startswith(("bar.sync", "barrier.")) for each in kernel.instructions)
