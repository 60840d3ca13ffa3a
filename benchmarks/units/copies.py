"""Copies of TMA, and stores: of one box after the other, and of rings of them."""

from __future__ import annotations

from benchmarks.units.case import (
    END,
    FILL,
    REPEATS,
    ROW_BYTES,
    START,
    TILES,
    Boxes,
    Case,
    loop,
    module,
)

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


def init_barriers(number: int, count: int = 1, first: int = 0) -> str:
    """Initializes mbarriers from number `first` on, each for `count` arrivals."""
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
        text = FILL + MAP + init_barriers(flight)
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
        text = FILL + MAP + init_barriers(flight) + init_barriers(flight, cluster, first=flight)
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
