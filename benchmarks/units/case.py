"""One microbenchmark: a small PTX kernel, and what it measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.driver import run_on_gpu
from benchmarks.harness import Row
from triton_ext.emulator import run_ptx
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle

SMEM = 208 << 10
TILES = 2048
"""Where the tiles begin, as an offset in shared memory; mbarriers lie before it."""
REPEATS = 64
ROW_BYTES = 128
DESCRIPTOR = SmemDescriptor(90, 0, 16, 8 * ROW_BYTES, 128).encode()
"""The matrix descriptor of a K-major tile at address 0, with the 128-byte swizzle."""
SMS = 132
FLUSH_BYTES = 100 << 20
FEW = 4
"""Repetitions, and blocks, on the emulated GPU."""
HEADER = """
.version 8.1
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""
FILL = f"""
 mov.u32 %r1, %tid.x;
 mov.u32 %r2, smem;
 shl.b32 %r3, %r1, 4;
 mov.u32 %r5, %ntid.x;
 shl.b32 %r5, %r5, 4;
 mov.u32 %r6, 0;
FILL:
 add.u32 %r4, %r2, %r3;
 st.shared.v4.u32 [%r4+{TILES}], {{%r6, %r6, %r6, %r6}};
 add.u32 %r3, %r3, %r5;
 setp.lt.u32 %p1, %r3, {SMEM - TILES};
 @%p1 bra FILL;
 setp.eq.u32 %p2, %r1, 0;
 fence.proxy.async;
 bar.sync 0;
"""
END = """
 mov.u64 %rd21, %clock64;
 mov.u64 %rd23, %globaltimer;
 ld.param.u64 %rd1, [out];
 mov.u32 %r31, %ctaid.x;
 mov.u32 %r32, %ntid.x;
 mad.lo.u32 %r31, %r31, %r32, %r1;
 mul.wide.u32 %rd2, %r31, 32;
 add.s64 %rd1, %rd1, %rd2;
 st.global.v2.u64 [%rd1], {%rd20, %rd21};
 st.global.v2.u64 [%rd1+16], {%rd22, %rd23};
"""
START = " bar.sync 0;\n mov.u64 %rd22, %globaltimer;\n mov.u64 %rd20, %clock64;\n"


def end_using(predicate: str = "") -> str:
    """The end, which needs %p4: what it was computed from is not optimized away.

    Args:
        predicate: what sets it behind the second stamp, if it is not set before.
    """
    kept = predicate + " @%p4 add.u64 %rd21, %rd21, 1;\n"
    return END.replace(" mov.u64 %rd23", kept + " mov.u64 %rd23")


def different_floats(number: int) -> str:
    """Sets %f0 and on, each thread's and each register's different."""
    return "".join(f" add.u32 %r9, %r1, {i};\n cvt.rn.f32.u32 %f{i}, %r9;\n" for i in range(number))


def any_accumulator(n: int) -> str:
    """Sets %p4 by all accumulators of a warpgroup's product with n columns, and %r10."""
    folded = "".join(f" xor.b32 %r10, %r10, %acc{i};\n" for i in range(n // 2))
    return folded + " setp.eq.u32 %p4, %r10, 12345;\n"


def module(body: str, parameters: str = "", registers: str = "", directives: str = "") -> str:
    """A module with the kernel ``k``."""
    return f"""{HEADER}
.visible .entry k(.param .u64 out{parameters}) {directives}
{{
 .reg .b32 %r<40>;
 .reg .b64 %rd<40>;
 .reg .pred %p<12>;
{registers}
{body}
 ret;
}}
"""


def loop(body: str, repeats: int, name: str = "L") -> str:
    """A body, so many times; %r30 counts."""
    return f""" mov.u32 %r30, 0;
{name}:
{body}
 add.u32 %r30, %r30, 1;
 setp.lt.u32 %p9, %r30, {repeats};
 @%p9 bra {name};
"""


@dataclass(frozen=True)
class Boxes:
    """A tensor of bf16 in rows, and the boxes that TMA copies of it.

    Attributes:
        rows: of a box.
        height: rows of the tensor.
        width: bytes of a box's row; those of 128 bytes are swizzled.
        pitch: bytes from a row of the tensor to the next.
        inside: bytes of a row of the tensor; 0 if it has no gaps.
        span: of the swizzle, for narrower rows.
    """

    rows: int
    height: int
    width: int = ROW_BYTES
    pitch: int = ROW_BYTES
    inside: int = 0
    span: int = 0


@dataclass(frozen=True)
class Case:
    """One kernel.

    Attributes:
        name: the family; `facts` says which of it.
        ptx: (repetitions) -> the module.
        block, grid: threads of a block, and blocks.
        per: how many of what is measured one repetition has, in a block.
        map: the boxes, if it takes a tensor map.
        bytes: what a repetition moves, in a block.
        cluster: blocks of a cluster.
        ranks: which blocks of a cluster are measured; all if none is named.
    """

    name: str
    facts: dict[str, Any]
    ptx: Callable[[int], str]
    block: int = 128
    grid: int = 1
    per: int = 1
    map: Boxes | None = None
    buffer: int = 0
    bytes: int = 0
    repeats: int = REPEATS
    cluster: int = 1
    ranks: tuple[int, ...] = ()

    def run(self, emulate: bool) -> np.ndarray[Any, Any]:
        """Launch it: the stamps (blocks, threads, 4): clock and timer, begin and end; twice, as
        the first launch warms up.
        """
        repeats, grid = self.repeats, self.grid
        if emulate:
            repeats, grid = min(repeats, FEW), min(grid, max(FEW, self.cluster))
        out = np.zeros((grid, self.block, 4), np.uint64)
        args: list[Any] = [out]
        if self.map:
            box = self.map
            span = box.width if box.width == ROW_BYTES else box.span
            height = min(box.height, box.rows * FEW * FEW * 2) if emulate else box.height
            data = np.zeros((height, box.pitch // 2), np.uint16)
            args += [
                TensorMap(
                    DataType.BFLOAT16, ((box.inside or box.pitch) // 2, height), (box.pitch,),
                    (box.width // 2, box.rows),
                    swizzle=TensorSwizzle.of_width(span),
                    global_address=data.ctypes.data,
                ),
                data,
            ]  # fmt: skip
        if self.buffer:
            args.append(np.zeros(self.buffer, np.uint8))
        ptx = self.ptx(repeats)
        # uploaded after the data, so that these are not in the L2 cache
        flush = [np.zeros(FLUSH_BYTES, np.uint8)] if self.facts.get("from") == "memory" else []
        if emulate:
            run_ptx(
                ptx, grid=grid, block=self.block, args=args, dynamic_smem_bytes=SMEM,
                cluster=self.cluster, check_races=False,
            )  # fmt: skip
        for _ in range(0 if emulate else 2):
            run_on_gpu(
                ptx, "k", grid, self.block, args, dynamic_smem_bytes=SMEM, buffers=flush,
                cluster=self.cluster if self.cluster > 1 else None,
            )  # fmt: skip
        return out

    def row(self, emulate: bool) -> Row:
        """What it measured."""
        out = self.run(emulate)
        repeats = min(self.repeats, FEW) if emulate else self.repeats
        if self.ranks:
            out = out[np.isin(np.arange(len(out)) % self.cluster, self.ranks)]
        cycles = (out[..., 1].max(1) - out[..., 0].min(1)).astype(float)
        found: Row = {"case": self.name, **self.facts, "repeats": repeats, "blocks": len(out)}
        found["cycles"] = float(np.median(cycles)) / (repeats * self.per)
        if len(out) > 1:
            span = float(out[..., 3].max() - out[..., 2].min())
            found["nanoseconds"] = span
            if self.bytes:
                found["bytes_per_second"] = self.bytes * repeats * len(out) / max(span, 1) * 1e9
            found["slowest"] = float(cycles.max()) / (repeats * self.per)
        elif self.bytes:
            found["bytes_per_cycle"] = self.bytes / self.per / found["cycles"]
        return found
