"""Arrivals at barriers, and stores into other blocks."""

from __future__ import annotations

from benchmarks.units.case import END, FILL, START, TILES, Case, loop, module
from benchmarks.units.copies import CLUSTER_SYNC, WAIT, init_barriers


def barrier_round_trip() -> Case:
    """Two warps hand a phase back and forth by two mbarriers."""

    def ptx(repeats: int) -> str:
        arrive = " @%p6 mbarrier.arrive.shared.b64 _, [%r2+{}];\n"
        first = arrive.format(0) + WAIT.format(name="A", barrier="%r2+8", parity="%r17")
        second = WAIT.format(name="B", barrier="%r2", parity="%r17") + arrive.format(8)
        flip = " xor.b32 %r17, %r17, 1;\n"
        text = FILL + init_barriers(2) + " mov.u32 %r17, 0;\n and.b32 %r18, %r1, 31;\n"
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
        text = FILL + init_barriers(1, others) + init_barriers(1, first=1)
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
        text = (
            FILL + init_barriers(1) + "".join(f" add.u32 %r{i}, %r1, {i};\n" for i in range(10, 14))
        )
        text += " mov.u32 %r17, 0;\n mov.u32 %r18, %cluster_ctarank;\n xor.b32 %r18, %r18, 1;\n"
        text += " mapa.shared::cluster.u32 %r19, %r2, %r18;\n shl.b32 %r20, %r1, 4;\n"
        text += f" add.u32 %r20, %r20, %r19;\n add.u32 %r20, %r20, {TILES};\n"
        body = f" @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], {size};\n bar.sync 0;\n"
        body += stores + WAIT.format(name="", barrier="%r2", parity="%r17")
        text += CLUSTER_SYNC + START + loop(body + " xor.b32 %r17, %r17, 1;\n", repeats)
        return module(text + CLUSTER_SYNC + END)

    facts = {"number": number, "warps": warps, "cluster": cluster}
    return Case("st.async", facts, ptx, 32 * warps, grid, bytes=size, cluster=cluster)
