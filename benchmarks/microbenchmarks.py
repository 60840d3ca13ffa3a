"""What the units of a Hopper SM take: cycles of products, copies, barriers and memory accesses.

    python -m benchmarks.microbenchmarks [--json FILE] [--only NAME,NAME]

Each case is a small PTX kernel that reads ``%clock64`` before and after what it repeats, launched
through the driver; `triton_ext.timeline.gpus` quotes the results. With ``--emulate`` the same
kernels run on the emulated GPU, which says that they are legal (and nothing about time). The case
``stamps`` is a ring of TMA loads and products whose roles write when each of their steps begins.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.driver import run_on_gpu
from benchmarks.gpu_state import GpuState, Watch
from benchmarks.harness import Row, Table
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


def module(
    body: str, parameters: str = "", registers: str = "", regs: int = 40, directives: str = ""
) -> str:
    """A module with the kernel ``k``."""
    return f"""{HEADER}
.visible .entry k(.param .u64 out{parameters}) {directives}
{{
 .reg .b32 %r<{regs}>;
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
        beside: so many of the block's last threads do something else, whose cycles for a
            repetition are told apart.
        random: whether the tensor's elements are, between 0.5 and 2; else they are zeros.
        watched: whether the board's power is read while it runs, which takes 0.3 s at least.
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
    stamps: int = field(default=0)
    cluster: int = 1
    beside: int = 0
    random: bool = False
    watched: bool = False
    ranks: tuple[int, ...] = ()

    def run(
        self, emulate: bool, watch: contextlib.AbstractContextManager[Any]
    ) -> list[np.ndarray[Any, Any]]:
        """Launch it: the stamps (blocks, threads, 4): clock and timer, begin and end; twice, as
        the first launch warms up. The last array is what the kernel stamped itself, if it does.

        Args:
            watch: entered for the last launch.
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
            if self.random:
                drawn = np.random.default_rng(0).integers(0, 1 << 16, data.shape, np.uint16)
                data = np.bitwise_or(drawn & np.uint16(0x80FF), np.uint16(0x3F00), dtype=np.uint16)
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
        if self.stamps:
            args.append(np.zeros((self.stamps, repeats, 2), np.uint64))
        ptx = self.ptx(repeats)
        # uploaded after the data, so that these are not in the L2 cache
        flush = [np.zeros(FLUSH_BYTES, np.uint8)] if self.facts.get("from") == "memory" else []
        for last in (True,) if emulate else (False, True):
            if emulate:
                run_ptx(
                    ptx, grid=grid, block=self.block, args=args, dynamic_smem_bytes=SMEM,
                    cluster=self.cluster, check_races=False,
                )  # fmt: skip
                continue
            with watch if last else contextlib.nullcontext():
                run_on_gpu(
                    ptx, "k", grid, self.block, args, dynamic_smem_bytes=SMEM, buffers=flush,
                    cluster=self.cluster if self.cluster > 1 else None,
                )  # fmt: skip
        return [out, *args[-1:]]

    def row(self, emulate: bool) -> Row:
        """What it measured."""
        watch = contextlib.nullcontext() if emulate or not self.watched else Watch(GpuState())
        out, last = self.run(emulate, watch)
        repeats = min(self.repeats, FEW) if emulate else self.repeats
        if self.ranks:
            out = out[np.isin(np.arange(len(out)) % self.cluster, self.ranks)]
        others, out = out[:, self.block - self.beside :], out[:, : self.block - self.beside]
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
        if isinstance(watch, Watch):
            found["power_watts"] = watch.power_watts
            found["clock_mhz"] = watch.clock_mhz
        if self.beside:
            found["beside"] = float(others[..., 1].max() - others[..., 0].min()) / repeats
        if self.stamps:
            found["stamps"] = (last.astype(np.int64) - int(out[..., 0].min())).tolist()
        return found


# --------------------------------------------------------------------------------- products

CHAINS = 8
"""Chains of dependent instructions in a thread, so that their latency does not bind."""
EXPONENTIAL = " ex2.approx.ftz.f32 %f{j}, %f{j};\n"
K_ELEMENTS = {"bf16": 16, "e4m3": 32, "tf32": 8, "s8": 32}


def wgmma(
    n: int,
    kind: str = "bf16",
    registers: bool = False,
    groups: int = 1,
    run: int = 4,
) -> Case:
    """`run` products of 64 x n, committed and awaited together, by so many warpgroups."""
    integers = kind == "s8"
    d_type = "s32" if integers else "f32"
    acc = "{" + ", ".join(f"%acc{i}" for i in range(n // 2)) + "}"
    a = "{%r10, %r11, %r12, %r13}" if registers else "%rd10"
    tail = (
        "%p3"
        + ("" if integers else ", 1, 1")
        + ((", 0" if registers else ", 0, 0") if kind == "bf16" else "")
    )
    product = (
        f" wgmma.mma_async.sync.aligned.m64n{n}k{K_ELEMENTS[kind]}.{d_type}.{kind}.{kind}"
        f" {acc}, {a}, %rd11, {tail};\n"
    )
    body = " wgmma.fence.sync.aligned;\n" + product * run
    body += " wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;\n"
    zero = "".join(f" mov.b32 %acc{i}, 0;\n" for i in range(n // 2))
    zero += "".join(f" mov.b32 %r{i}, 0;\n" for i in range(10, 14)) + " setp.eq.u32 %p3, %r10, 0;\n"
    setup = f"""
 add.u32 %r7, %r2, {TILES};
 shr.u32 %r8, %r7, 4;
 cvt.u64.u32 %rd10, %r8;
 mov.u64 %rd12, {DESCRIPTOR};
 or.b64 %rd10, %rd10, %rd12;
 add.u64 %rd11, %rd10, 1024;
"""

    def ptx(repeats: int) -> str:
        text = FILL + setup + zero
        registers = f" .reg .b32 %acc<{max(1, n // 2)}>;"
        text += START + loop(body, repeats) + end_using(any_accumulator(n))
        return module(text, registers=registers)

    facts = {"n": n, "type": kind, "a": "registers" if registers else "shared", "groups": groups,
             "run": run}  # fmt: skip
    return Case("wgmma", facts, ptx, block=128 * groups, per=run)


# ------------------------------------------------------------------------------ TMA and barriers

WAIT = """
W{name}:
 mbarrier.try_wait.parity.shared::cta.b64 %p5, [{barrier}], {parity};
 @!%p5 bra W{name};
"""
MAP = " mov.b64 %rd30, map;\n cvta.param.u64 %rd30, %rd30;\n"
LOAD = (
    " cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    " [{to}], [%rd30, {{%r14, {row}}}], [{barrier}];\n"
)


CLUSTER_SYNC = " barrier.cluster.arrive;\n barrier.cluster.wait;\n"


def _barriers(number: int, count: int = 1, first: int = 0) -> str:
    inits = "".join(
        f" @%p2 mbarrier.init.shared.b64 [%r2+{8 * i}], {count};\n"
        for i in range(first, first + number)
    )
    return inits + " @%p2 fence.mbarrier_init.release.cluster;\n fence.proxy.async;\n bar.sync 0;\n"


def tma(
    rows: int,
    flight: int,
    grid: int,
    from_memory: bool,
    present: int | None = None,
    inside: int = ROW_BYTES,
) -> Case:
    """One thread copies boxes of `rows` x 128 bytes, `flight` at a time.

    Args:
        present: how many of the rows the tensor has; then all boxes are the same.
        inside: how many bytes of each the tensor has.
    """
    size = rows * ROW_BYTES
    step = rows if from_memory else 0
    spread = REPEATS * flight * rows if from_memory else rows * flight
    height = spread * (grid if from_memory else 8)
    if present is not None:
        height = max(present, 1)

    def ptx(repeats: int) -> str:
        spread = repeats * flight * rows if from_memory else rows * flight
        first = 0
        if present is not None:
            spread, first = 0, 0 if present else height
        issue = "".join(
            f" mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{8 * i}], {size};\n"
            + LOAD.format(to=f"%r16+{i * size}", row="%r15", barrier=f"%r2+{8 * i}")
            + f" add.u32 %r15, %r15, {rows if step else 0};\n"
            for i in range(flight)
        )
        waits = "".join(
            WAIT.format(name=i, barrier=f"%r2+{8 * i}", parity="%r17") for i in range(flight)
        )
        text = FILL + MAP + _barriers(flight)
        text += f" mov.u32 %r14, 0;\n add.u32 %r16, %r2, {TILES};\n mov.u32 %r15, %ctaid.x;\n"
        text += "" if from_memory else " and.b32 %r15, %r15, 7;\n"
        text += f" mul.lo.u32 %r15, %r15, {spread};\n mov.u32 %r17, 0;\n"
        text += f" add.u32 %r15, %r15, {first};\n" + START
        text += " @!%p2 bra DONE;\n"
        text += loop(issue + waits + " xor.b32 %r17, %r17, 1;\n", repeats) + "DONE:\n" + END
        return module(text, ", .param .align 64 .b8 map[128], .param .u64 data")

    facts = {"rows": rows, "flight": flight, "from": "memory" if from_memory else "L2"}
    if present is not None:
        facts |= {"present": present, "inside": inside}
    return Case(
        "tma" if present is None else "tma, partly outside", facts, ptx, block=32, grid=grid,
        per=flight, map=Boxes(rows, height, inside=inside), bytes=flight * size,
    )  # fmt: skip


def ring(
    boxes: tuple[int, int, int],
    flight: int,
    grid: int,
    source: str,
    repeats: int = REPEATS,
    cluster: int = 1,
    multicast: str = "",
    own: bool = False,
) -> Case:
    """One thread of each block copies boxes into a ring, and asks for one as soon as one is there.

    The blocks of a cluster all get the same boxes, unless each has its `own`.

    Args:
        boxes: rows, bytes of a row, and the tensor's pitch. A block goes along its rows, or down
            if they end too soon; from L2 it loads the same boxes in each turn of the ring.
        flight: boxes of the ring.
        source: "memory" or "L2".
        multicast: "first": the first block of a cluster loads for all; "parts": each loads its
            rows of the box for all. The others tell who loads when they have room, and a box is
            loaded half a ring later, so that nobody waits for what they tell.
    """
    rows, width, pitch = boxes
    size, from_memory, down = rows * width, source == "memory", pitch < width * flight * repeats
    part = rows // cluster if multicast == "parts" else rows
    bands = flight * (repeats if from_memory else 1) if down else 1
    step = (0, rows) if down else (width // 2, 0)
    behind = flight // 2 if multicast else 0

    def ptx(repeats: int) -> str:
        load, tell, told = LOAD, "", ""
        if multicast:
            load = LOAD.replace("bytes [", "bytes.multicast::cluster [").replace("];", "], %rs1;")
            asked = range(cluster) if multicast == "parts" else range(1)
            tell = "".join(
                f" mapa.shared::cluster.u32 %r20, %r2, {rank};\n"
                " mbarrier.arrive.shared::cluster.b64 _, [%r20+{barrier}];\n"
                for rank in asked
            )
            told = WAIT
            if multicast == "first":
                load = load.replace(" cp", " @%p6 cp")
                told = " @!%p6 bra S{name};\n" + told + "S{name}:\n"

        def fill(i: int, name: str, parity: str) -> str:
            filled = told.format(name=name, barrier=f"%r2+{8 * (flight + i)}", parity=parity)
            filled += load.format(to=f"%r16+{i * size}", row="%r15", barrier=f"%r2+{8 * i}")
            filled += f" add.u32 %r14, %r14, {step[0]};\n add.u32 %r15, %r15, {step[1]};\n"
            if i == flight - 1 and not from_memory:
                filled += f" sub.u32 %r15, %r15, {bands * rows};\n"
            return filled

        body = " setp.eq.u32 %p7, %r30, 0;\n" if behind else ""
        for i in range(flight):
            body += WAIT.format(name=i, barrier=f"%r2+{8 * i}", parity="%r17")
            body += f" mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{8 * i}], {size};\n"
            body += tell.format(barrier=8 * (flight + i))
            if i < behind:  # of the turn before, if there was one
                before = fill(flight + i - behind, f"E{i}", "%r17")
                body += f" @%p7 bra N{i};\n" + before + f"N{i}:\n"
            else:
                body += fill(i - behind, f"E{i}", "%r18")
        rest = "".join(fill(i, f"R{i}", "%r17") for i in range(flight - behind, flight))
        waits = "".join(
            WAIT.format(name=f"L{i}", barrier=f"%r2+{8 * i}", parity="%r17") for i in range(flight)
        )
        text = FILL + MAP + _barriers(flight) + _barriers(flight, cluster, first=flight)
        text += f" mov.u32 %r14, 0;\n add.u32 %r16, %r2, {TILES};\n mov.u32 %r15, %ctaid.x;\n"
        text += "" if own else f" div.u32 %r15, %r15, {cluster};\n"
        text += "" if own or from_memory else " and.b32 %r15, %r15, 7;\n"
        text += f" mul.lo.u32 %r15, %r15, {bands * rows};\n"
        text += f" mov.u32 %r17, 1;\n mov.u32 %r18, 0;\n mov.u16 %rs1, {(1 << cluster) - 1};\n"
        text += " mov.u32 %r19, %cluster_ctarank;\n setp.eq.u32 %p6, %r19, 0;\n"
        if part < rows:
            text += f" mad.lo.u32 %r16, %r19, {part * width}, %r16;\n"
            text += f" mad.lo.u32 %r15, %r19, {part}, %r15;\n"
        text += CLUSTER_SYNC + START
        text += " @!%p2 bra DONE;\n"
        text += loop(body + " xor.b32 %r17, %r17, 1;\n xor.b32 %r18, %r18, 1;\n", repeats)
        text += rest + waits
        text += "DONE:\n" + CLUSTER_SYNC + END
        return module(
            text, ", .param .align 64 .b8 map[128], .param .u64 data", " .reg .b16 %rs<2>;"
        )

    places = grid if own else -(-grid // cluster) if from_memory else 8
    return Case(
        "ring, own lines" if own else "ring",
        {"rows": rows, "width": width, "pitch": pitch, "flight": flight, "from": source,
        "cluster": cluster, "multicast": multicast}, ptx, block=32, grid=grid, per=flight,
        map=Boxes(part, places * bands * rows, width, pitch), bytes=flight * size,
        repeats=repeats, cluster=cluster,
    )  # fmt: skip


def stores(grid: int, tiles: int, pitch: int, pending: int) -> Case:
    """One thread stores tiles of 128 rows of 256 bytes, each as two boxes and one bulk group.

    Args:
        pending: groups that may still read shared memory when the next is begun; 2 buffers.
        pitch: of the tensor, in bytes; a block goes along its rows, or down if that is 128.
    """
    down = pitch == ROW_BYTES
    size = 128 * ROW_BYTES

    def ptx(repeats: int) -> str:
        body = ""
        for i in range(2):
            body += (
                " cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
                f" [%rd30, {{%r14, %r15}}], [%r16+{i * size}];\n"
            )
            body += " add.u32 %r15, %r15, 128;\n" if down else " add.u32 %r14, %r14, 64;\n"
        body += " cp.async.bulk.commit_group;\n"
        body += f" cp.async.bulk.wait_group.read {pending};\n xor.b32 %r16, %r16, %r17;\n"
        text = FILL + MAP + " mov.u32 %r14, 0;\n mov.u32 %r15, %ctaid.x;\n"
        text += f" mul.lo.u32 %r15, %r15, {128 * (2 * repeats if down else 1)};\n"
        text += f" add.u32 %r16, %r2, {4 * size};\n mov.u32 %r17, {2 * size};\n" + START
        text += " @!%p2 bra DONE;\n" + loop(body, repeats)
        text += " cp.async.bulk.wait_group 0;\nDONE:\n" + END
        return module(text, ", .param .align 64 .b8 map[128], .param .u64 data")

    height = grid * 128 * (2 * tiles if down else 1)
    return Case(
        "stores", {"pitch": pitch, "pending": pending}, ptx, block=32, grid=grid,
        map=Boxes(128, height, ROW_BYTES, pitch), bytes=2 * size, repeats=tiles,
    )  # fmt: skip


def barrier_round_trip() -> Case:
    """Two warps hand a phase back and forth by two mbarriers."""

    def ptx(repeats: int) -> str:
        arrive = " @%p6 mbarrier.arrive.shared.b64 _, [%r2+{}];\n"
        first = arrive.format(0) + WAIT.format(name="A", barrier="%r2+8", parity="%r17")
        second = WAIT.format(name="B", barrier="%r2", parity="%r17") + arrive.format(8)
        flip = " xor.b32 %r17, %r17, 1;\n"
        text = FILL + _barriers(2) + " mov.u32 %r17, 0;\n and.b32 %r18, %r1, 31;\n"
        text += " setp.eq.u32 %p6, %r18, 0;\n setp.ge.u32 %p7, %r1, 32;\n" + START
        text += " @%p7 bra OTHER;\n" + loop(first + flip, repeats, "LA") + " bra DONE;\nOTHER:\n"
        text += loop(second + flip, repeats, "LB") + "DONE:\n" + END
        return module(text)

    return Case("mbarrier round trip", {}, ptx, block=64)


FAR = "shared::cluster"
"""The qualifiers of the kernels' arrivals in other blocks: releases at the block's scope. At the
cluster's, ptxas puts fences of all memory before each."""
RELEASE = "release.cluster.shared::cluster"
ARRIVE = " mbarrier.arrive.{how}.b64 _, [%r{register}];\n"


def one_way(cluster: int, how: str, others: int = 1) -> Case:
    """A thread of a cluster's first block arrives at a barrier in each of its last blocks; a thread
    of each of these waits for that, and arrives at the first one's barrier, which completes when
    all have; and again. Cycles of one way: from an arrival to the end of the wait for it.

    Nobody can fall behind: the next phase of a barrier completes by an arrival of somebody who has
    heard of the end of the wait for the one before.

    Args:
        cluster: its blocks; 1 for two warps of one block, whose first threads do the same.
        how: the arrival's qualifiers.
        others: blocks that answer.
    """

    def ptx(repeats: int) -> str:
        text = FILL + _barriers(1, others) + _barriers(1, first=1)
        text += " mov.u32 %r17, 0;\n add.u32 %r9, %r2, 8;\n mov.u32 %r18, %cluster_ctarank;\n"
        if cluster > 1:
            text += f" setp.ge.u32 %p7, %r18, {cluster - others};\n setp.eq.u32 %p6, %r18, 0;\n"
            text += " or.pred %p7, %p7, %p6;\n and.pred %p7, %p7, %p2;\n"
        else:
            text += " and.b32 %r19, %r1, 31;\n setp.eq.u32 %p7, %r19, 0;\n"
            text += " setp.lt.u32 %p6, %r1, 32;\n"
        if cluster > 1:
            text += " mapa.shared::cluster.u32 %r20, %r2, 0;\n"
            for i in range(others):
                text += f" mapa.shared::cluster.u32 %r{21 + i}, %r9, {cluster - others + i};\n"
        else:
            text += " mov.u32 %r20, %r2;\n mov.u32 %r21, %r9;\n"
        flip = " xor.b32 %r17, %r17, 1;\n"
        first = "".join(ARRIVE.format(how=how, register=21 + i) for i in range(others))
        first += WAIT.format(name="A", barrier="%r2", parity="%r17") + flip
        second = WAIT.format(name="B", barrier="%r9", parity="%r17")
        second += ARRIVE.format(how=how, register=20) + flip
        text += (CLUSTER_SYNC if cluster > 1 else "") + START + " @!%p7 bra DONE;\n"
        text += " @!%p6 bra OTHER;\n" + loop(first, repeats, "LA") + " bra DONE;\nOTHER:\n"
        text += loop(second, repeats, "LB") + "DONE:\n" + END
        return module(text + (CLUSTER_SYNC if cluster > 1 else ""))

    facts = {"cluster": cluster, "others": others, "arrive": how}
    return Case(
        "one-way arrival", facts, ptx, block=32 if cluster > 1 else 64, grid=cluster, per=2,
        repeats=256, cluster=cluster, ranks=(0, cluster - 1),
    )  # fmt: skip


_SUMS = "{%f{j}, %f1{j}, %f2{j}, %f3{j}}"
MMA = (
    f" mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {_SUMS},"
    f" {{%r10, %r11, %r12, %r13}}, {{%r14, %r15}}, {_SUMS};"
)


def sends(number: int, warps: int, cluster: int, grid: int) -> Case:
    """Threads write 16 bytes into the shared memory of the next block but for its lowest bit, each
    so many times (``st.async``), and wait until what comes from there is complete.
    """
    size = 512 * warps * number

    def ptx(repeats: int) -> str:
        stores = "".join(
            " st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32"
            f" [%r20+{512 * warps * i}], {{%r10, %r11, %r12, %r13}}, [%r19];\n"
            for i in range(number)
        )
        text = FILL + _barriers(1) + "".join(f" add.u32 %r{i}, %r1, {i};\n" for i in range(10, 14))
        text += " mov.u32 %r17, 0;\n mov.u32 %r18, %cluster_ctarank;\n xor.b32 %r18, %r18, 1;\n"
        text += " mapa.shared::cluster.u32 %r19, %r2, %r18;\n shl.b32 %r20, %r1, 4;\n"
        text += f" add.u32 %r20, %r20, %r19;\n add.u32 %r20, %r20, {TILES};\n"
        body = f" @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {size};\n bar.sync 0;\n"
        body += stores + WAIT.format(name="", barrier="%r2", parity="%r17")
        text += CLUSTER_SYNC + START + loop(body + " xor.b32 %r17, %r17, 1;\n", repeats)
        return module(text + CLUSTER_SYNC + END)

    facts = {"number": number, "warps": warps, "cluster": cluster}
    return Case("st.async", facts, ptx, 32 * warps, grid, bytes=size, cluster=cluster)


def simple(
    name: str,
    line: str,
    per: int,
    warps: int = 4,
    size: int = 0,
    cluster: int = 1,
    directives: str = "",
    **facts: Any,
) -> Case:
    """`per` copies of a line of PTX in a loop, in each of so many warps.

    Args:
        line: ``{i}`` becomes one of 4 numbers, ``{j}`` one of `CHAINS`. All of %r10 to %r17, %rd10
            to %rd17 and %f0 to %f39 differ by thread, so that nothing is uniform, and are used in
            the end, so that nothing is dead.
        size: bytes of a line in a warp.
        cluster: blocks that do the same, in one cluster.
        directives: of the kernel.
    """

    def ptx(repeats: int) -> str:
        lines = "".join(
            line.replace("{i}", str(i % 4)).replace("{j}", str(i % CHAINS)) + "\n"
            for i in range(per)
        )
        text = FILL
        for i in range(10, 18):
            text += f" add.u32 %r{i}, %r1, {i};\n cvt.u64.u32 %rd{i}, %r{i};\n"
        text += different_floats(40)
        text += (
            f" shl.b32 %r20, %r1, 4;\n add.u32 %r20, %r20, %r2;\n add.u32 %r20, %r20, {TILES};\n"
        )
        text += CLUSTER_SYNC if cluster > 1 else ""
        text += START + loop(lines, repeats)
        text += " mov.u32 %r19, 0;\n"
        text += "".join(f" xor.b32 %r19, %r19, %f{i};\n" for i in range(40))
        for i in range(10, 18):
            text += f" shr.u64 %rd1, %rd{i}, 32;\n cvt.u32.u64 %r18, %rd1;\n"
            text += f" xor.b32 %r19, %r19, %r18;\n xor.b32 %r19, %r19, %r{i};\n"
        text += " setp.eq.u32 %p4, %r19, 123456;\n"
        text += end_using()
        return module(text, registers=" .reg .f32 %f<40>;", directives=directives)

    facts = {"warps": warps, **({"cluster": cluster} if cluster > 1 else {}), **facts}
    return Case(
        name, facts, ptx, 32 * warps, grid=cluster, per=per, bytes=size * warps * per,
        cluster=cluster,
    )  # fmt: skip


def streaming(grid: int, megabytes: int, store: bool) -> Case:
    """All blocks read (and write) a buffer in lines of 16 bytes a thread, round and round."""

    def ptx(repeats: int) -> str:
        span = megabytes << 20
        lines = ""
        for i in range(8):
            lines += f" and.b64 %rd5, %rd4, {span - 1};\n add.u64 %rd6, %rd3, %rd5;\n"
            registers = "{" + ", ".join(f"%q{4 * i + j}" for j in range(4)) + "}"
            if store:
                lines += " st.global.v4.u32 [%rd6], {%r10, %r10, %r10, %r10};\n"
            else:
                lines += f" ld.global.v4.u32 {registers}, [%rd6];\n"
            lines += " add.u64 %rd4, %rd4, %rd7;\n"
        if not store:
            lines += "".join(f" xor.b32 %r10, %r10, %q{j};\n" for j in range(32))
        text = FILL + " ld.param.u64 %rd3, [data];\n mov.u32 %r10, 0;\n mov.u32 %r11, %ctaid.x;\n"
        text += (
            " mov.u32 %r13, %nctaid.x;\n mov.u32 %r12, %ntid.x;\n mul.lo.u32 %r13, %r13, %r12;\n"
        )
        text += " mul.wide.u32 %rd7, %r13, 16;\n mad.lo.u32 %r11, %r11, %r12, %r1;\n"
        text += " mul.wide.u32 %rd4, %r11, 16;\n" + START + loop(lines, repeats)
        text += " setp.eq.u32 %p4, %r10, 123456;\n"
        text += end_using()
        return module(text, ", .param .u64 data", " .reg .b32 %q<32>;")

    facts = {"megabytes": megabytes, "access": "store" if store else "load"}
    return Case(
        "global", facts, ptx, block=1024, grid=grid, per=8, buffer=megabytes << 20,
        bytes=8 * 16 * 1024, repeats=128,
    )  # fmt: skip


def chase(megabytes: int) -> Case:
    """One thread's dependent loads, a stride of 4224 bytes apart; the buffer holds zeros."""

    def ptx(repeats: int) -> str:
        span = megabytes << 20
        line = f""" and.b64 %rd5, %rd4, {span - 1};
 add.u64 %rd6, %rd3, %rd5;
 ld.volatile.global.u64 %rd8, [%rd6];
 add.u64 %rd4, %rd4, 4224;
 add.u64 %rd4, %rd4, %rd8;
"""
        text = FILL + " ld.param.u64 %rd3, [data];\n mov.u64 %rd4, 0;\n" + START
        text += loop(line * 4, repeats) + " add.u64 %rd21, %rd4, 0;\n" + END
        return module(text, ", .param .u64 data")

    facts = {"megabytes": megabytes, "access": "dependent loads"}
    return Case("global", facts, ptx, 32, per=4, buffer=megabytes << 20, repeats=512)


# ------------------------------------------------------------------------------ stamps of roles


def stamped(n: int, stages: int) -> Case:
    """A ring: warp 4 loads A (64 rows) and B (n rows), warpgroup 0 multiplies; both stamp.

    Stamps, (2, steps, 2): of the load warp, after it has waited for the stage to be empty, and
    after it has issued the copies; of the consumer, after the tiles are there, and after the
    products of the step before are done.
    """
    stage_bytes = (64 + n) * ROW_BYTES
    acc = "{" + ", ".join(f"%acc{i}" for i in range(n // 2)) + "}"
    stamp = """ mov.u64 %rd13, %clock64;
 @%p6 st.global.u64 [%rd15+{}], %rd13;
"""
    advance = f"""
 add.u64 %rd15, %rd15, 16;
 add.u32 %r22, %r22, 1;
 setp.eq.u32 %p8, %r22, {stages};
 selp.u32 %r22, 0, %r22, %p8;
 @%p8 xor.b32 %r17, %r17, 1;
"""
    place = f"""
 mad.lo.u32 %r16, %r22, {stage_bytes}, %r2;
 add.u32 %r16, %r16, {TILES};
 shl.b32 %r19, %r22, 3;
 add.u32 %r19, %r19, %r2;
"""
    products = "".join(
        f" add.u64 %rd16, %rd10, {2 * i};\n add.u64 %rd17, %rd11, {2 * i};\n"
        f" wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {acc}, %rd16, %rd17, %p3,"
        " 1, 1, 0, 0;\n"
        for i in range(4)
    )
    begin = f"""
 ld.param.u64 %rd15, [times];
 mov.u32 %r14, 0;
 mov.u32 %r15, 0;
 mov.u32 %r17, 0;
 mov.u32 %r22, 0;
 and.b32 %r18, %r1, 31;
 setp.eq.u32 %p6, %r18, 0;
 setp.lt.u32 %p7, %r1, 32;
 setp.ge.u32 %p10, %r1, 128;
 mov.u64 %rd12, {DESCRIPTOR};
 setp.eq.u32 %p3, %r14, 0;
"""

    def ptx(repeats: int) -> str:
        load = place + " xor.b32 %r21, %r17, 1;\n"
        load += WAIT.format(name="E", barrier=f"%r19+{8 * stages}", parity="%r21")
        load += stamp.format(0)
        load += f" @%p6 mbarrier.arrive.expect_tx.shared.b64 _, [%r19], {stage_bytes};\n"
        load += " @%p6" + LOAD.format(to="%r16", row="%r15", barrier="%r19")
        load += f" add.u32 %r23, %r16, {64 * ROW_BYTES};\n add.u32 %r24, %r15, 64;\n"
        for first in range(0, n, 64):
            load += " @%p6" + LOAD.format(
                to=f"%r23+{first * ROW_BYTES}", row="%r24", barrier="%r19"
            )
            load += " add.u32 %r24, %r24, 64;\n"
        load += stamp.format(8) + advance
        use = place + WAIT.format(name="F", barrier="%r19", parity="%r17") + stamp.format(0)
        use += " shr.u32 %r20, %r16, 4;\n cvt.u64.u32 %rd10, %r20;\n or.b64 %rd10, %rd10, %rd12;\n"
        use += f" add.u64 %rd11, %rd10, {64 * ROW_BYTES // 16};\n"
        use += " wgmma.fence.sync.aligned;\n" + products
        use += " wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;\n"
        use += f" @%p6 mbarrier.arrive.shared.b64 _, [%r19+{8 * stages}];\n"
        use += stamp.format(8).replace("%p6", "%p11") + advance
        use = use.replace(stamp.format(0), stamp.format(0).replace("%p6", "%p11"))
        text = FILL + MAP
        for i in range(stages):
            text += f" @%p2 mbarrier.init.shared.b64 [%r2+{8 * i}], 1;\n"
            text += f" @%p2 mbarrier.init.shared.b64 [%r2+{8 * (stages + i)}], 4;\n"
        text += " fence.proxy.async;\n bar.sync 0;\n" + begin
        text += " and.pred %p11, %p6, %p7;\n"
        text += "".join(f" mov.b32 %acc{i}, 0;\n" for i in range(n // 2)) + START
        text += " @!%p10 bra USE;\n" + loop(load, repeats, "LL") + " bra DONE;\nUSE:\n"
        text += f" add.u64 %rd15, %rd15, {16 * repeats};\n" + loop(use, repeats, "LU") + "DONE:\n"
        text += end_using(" mov.u32 %r10, 0;\n" + any_accumulator(n))
        return module(
            text, ", .param .align 64 .b8 map[128], .param .u64 data, .param .u64 times",
            f" .reg .b32 %acc<{n // 2}>;",
        )  # fmt: skip

    facts = {"n": n, "stages": stages}
    return Case("stamps", facts, ptx, block=160, map=Boxes(64, 64 + n), stamps=2)


# --------------------------------------------------------------------------------------- power

SCRAMBLED = """
 mul.lo.u32 %r6, %r3, 0x9E3779B1;
 shr.u32 %r9, %r6, 15;
 xor.b32 %r6, %r6, %r9;
 mul.lo.u32 %r6, %r6, 0x85EBCA77;
 and.b32 %r6, %r6, 0x80FF80FF;
 or.b32 %r6, %r6, 0x3F003F00;
"""
WATCHED_CYCLES = 8e8
"""About how long a launch takes whose power is read."""
BOXES = 4
"""In flight."""
RING_AT = TILES + (96 << 10)
"""Where copied boxes lie: products do not read them."""


def power(n: int, pause: int = 0, source: str = "", random: bool = True) -> Case:
    """All SMs multiply 64 x n x 64, by two warpgroups, for half a second; clock and power.

    Args:
        n: columns; 0 for pauses alone.
        pause: nanoseconds between 4 such products.
        source: where one more warp copies boxes of 16 KB from meanwhile: "L2", "memory" or
            nowhere. ``beside`` is how many turns of 4 boxes it makes in a repetition.
        random: whether what is multiplied is random, or zeros.
    """
    rows, size = 128, 128 * ROW_BYTES
    spread = rows * BOXES * (16 if source == "memory" else 1)
    acc = "{" + ", ".join(f"%acc{i}" for i in range(n // 2)) + "}"
    body = " wgmma.fence.sync.aligned;\n" if n else ""
    for i in range(16 if n else 0):
        body += f" add.u64 %rd13, %rd10, {2 * (i % 4)};\n add.u64 %rd14, %rd11, {2 * (i % 4)};\n"
        body += (
            f" wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {acc}, %rd13, %rd14,"
            " 1, 1, 1, 0, 0;\n"
        )
    if n:
        body += " wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;\n"
    if pause:
        body += f" nanosleep.u32 {pause};\n"
    copies = "".join(
        WAIT.format(name=f"C{i}", barrier=f"%r2+{8 * i}", parity="%r17")
        + f" mbarrier.arrive.expect_tx.shared.b64 _, [%r2+{8 * i}], {size};\n"
        + LOAD.format(to=f"%r16+{i * size}", row="%r15", barrier=f"%r2+{8 * i}")
        + f" add.u32 %r15, %r15, {rows};\n"
        for i in range(BOXES)
    )

    def ptx(repeats: int) -> str:
        text = FILL.replace("FILL:\n", "FILL:\n" + (SCRAMBLED if random else ""))
        text += "" if n == 0 else f"""
 shr.u32 %r7, %r1, 7;
 mul.lo.u32 %r7, %r7, 8192;
 add.u32 %r7, %r7, %r2;
 add.u32 %r7, %r7, {TILES};
 shr.u32 %r8, %r7, 4;
 cvt.u64.u32 %rd10, %r8;
 add.u32 %r7, %r2, {TILES + 16384};
 shr.u32 %r8, %r7, 4;
 cvt.u64.u32 %rd11, %r8;
 mov.u64 %rd12, {DESCRIPTOR};
 or.b64 %rd10, %rd10, %rd12;
 or.b64 %rd11, %rd11, %rd12;
""" + "".join(f" mov.b32 %acc{i}, 0;\n" for i in range(n // 2))  # fmt: skip
        text += " mov.u32 %r10, 0;\n @%p2 st.shared.u32 [%r2+1024], %r10;\n"
        text += " mov.u64 %rd24, 0;\n setp.ge.u32 %p8, %r1, 256;\n"
        if source:
            text += MAP + _barriers(BOXES) + f" mov.u32 %r14, 0;\n add.u32 %r16, %r2, {RING_AT};\n"
            text += f" mov.u32 %r18, %ctaid.x;\n mul.lo.u32 %r18, %r18, {spread};\n"
            text += " mov.u32 %r15, %r18;\n mov.u32 %r17, 1;\n mov.u32 %r19, 0;\n"
        text += START + " @%p8 bra OTHERS;\n" + loop(body, repeats)
        text += " @%p2 st.volatile.shared.u32 [%r2+1024], 1;\n bra DONE;\nOTHERS:\n"
        if source:
            text += " setp.ne.u32 %p6, %r1, 256;\n @%p6 bra DONE;\nAGAIN:\n" + copies
            text += f""" xor.b32 %r17, %r17, 1;
 add.u64 %rd24, %rd24, 1;
 sub.u32 %r19, %r15, %r18;
 setp.ge.u32 %p6, %r19, {spread};
 @%p6 mov.u32 %r15, %r18;
 ld.volatile.shared.u32 %r10, [%r2+1024];
 setp.eq.u32 %p6, %r10, 0;
 @%p6 bra AGAIN;
"""
            text += "".join(
                WAIT.format(name=f"E{i}", barrier=f"%r2+{8 * i}", parity="%r17")
                for i in range(BOXES)
            )
        text += "DONE:\n" + (any_accumulator(n) if n else " setp.eq.u32 %p4, %r10, 12345;\n")
        counted = " @%p8 mov.u64 %rd20, 0;\n @%p8 mov.u64 %rd21, %rd24;\n"
        text += end_using().replace(" ld.param", counted + " ld.param")
        parameters = ", .param .align 64 .b8 map[128], .param .u64 data" if source else ""
        return module(text, parameters, f" .reg .b32 %acc<{max(1, n // 2)}>;")

    cycles = 16 * n + 100 * (n > 0) + 1.7 * pause
    facts = {"n": n, "pause": pause, "from": source or "nowhere", "random": random}
    return Case(
        "power", facts, ptx, block=256 + 32 * bool(source), grid=SMS, per=1,
        map=Boxes(rows, SMS * spread) if source else None, repeats=int(WATCHED_CYCLES / cycles),
        beside=32 * bool(source), random=True, watched=True,
    )  # fmt: skip


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
    for n, stages in itertools.product((64, 128, 256), (2, 4)):
        yield stamped(n, stages)
    for n, pause in itertools.product((64, 128, 256), (0, 1000, 4000)):
        yield power(n, pause)
    yield power(256, random=False)
    for n, source in itertools.product((0, 128, 256), ("L2", "memory")):
        yield power(n, 0 if n else 4000, source)
    yield power(0, 4000)


TABLE = Table(
    ("case", "<24", "case"),
    ("which", "<62", lambda row: ", ".join(
        f"{k} {v}" for k, v in row.items()
        if k not in ("case", "repeats", "cycles", "stamps", "nanoseconds", "bytes_per_second",
                     "bytes_per_cycle", "slowest", "beside"))),
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
        once = emulate or case.stamps or case.watched
        runs = [case.row(emulate) for _ in range(1 if once else 3)]
        yield runs[0] | {"cycles": statistics.median(run["cycles"] for run in runs)}


if __name__ == "__main__":
    harness.main("microbenchmarks", __doc__, rows, TABLE, only="", emulate=False)
