"""One line of PTX for every form of an instruction whose targets differ; what ptxas says of each.

``%r`` are registers of 32 bits, ``%rd`` of 64, ``%h`` of 16, ``%q`` of 128, ``%f`` and ``%d``
floats, ``%p`` predicates.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

TARGETS = (
    "80", "86", "87", "88", "89", "90", "90a", "100", "100a", "100f", "103", "103a", "103f", "107",
    "107a", "107f", "110", "110a", "110f", "120", "120a", "120f", "121", "121a", "121f",
)  # fmt: skip
"""The targets of Triton 3.9's ptxas (13.4), without ``sm_``."""
VERSION = "9.4"

_HEAD = """.version {version}
.target sm_{target}
.address_size 64
.extern .shared .align 1024 .b8 shared[];
.visible .entry k(.param .u64 p)
{{
.reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .b16 %h<64>; .reg .b128 %q<8>;
.reg .f32 %f<64>; .reg .f64 %d<32>; .reg .pred %p<8>;
"""


def registers(prefix: str, count: int) -> str:
    """``{%r0, %r1, ...}``."""
    return "{" + ", ".join(f"%{prefix}{number % 64}" for number in range(count)) + "}"


R1, R2, R4, R8, R32 = (registers("r", n) for n in (1, 2, 4, 8, 32))
F2, F4, F8 = (registers("f", n) for n in (2, 4, 8))
D4, RD2 = registers("d", 4), registers("rd", 2)


def _mma() -> Iterable[str]:
    for shape, d, a, n_d, n_a, n_b in (
        ("m16n8k16", "f32", "f16", 4, 4, 2), ("m16n8k8", "f32", "f16", 4, 2, 1),
        ("m16n8k16", "f32", "bf16", 4, 4, 2), ("m16n8k8", "f32", "tf32", 4, 4, 2),
        ("m16n8k4", "f32", "tf32", 4, 2, 1), ("m16n8k32", "f32", "e4m3", 4, 4, 2),
        ("m16n8k16", "f32", "e4m3", 4, 2, 1), ("m16n8k32", "f32", "e5m2", 4, 4, 2),
    ):  # fmt: skip
        yield (
            f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{a}.{d} {registers('f', n_d)},"
            f" {registers('r', n_a)}, {registers('r', n_b)}, {registers('f', n_d)};"
        )
    for a in ("s8", "u8"):
        for shape, n_a, n_b in (("m16n8k32", 4, 2), ("m16n8k16", 2, 1)):
            yield (
                f"mma.sync.aligned.{shape}.row.col.s32.{a}.{a}.s32 {R4}, {registers('r', n_a)},"
                f" {registers('r', n_b)}, {R4};"
            )
    yield f"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {R2}, {R4}, {R2}, {R2};"
    yield f"mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f16 {R2}, {R4}, {R2}, {R2};"
    yield f"mma.sync.aligned.m16n8k16.row.col.f16.e4m3.e5m2.f16 {R2}, {R2}, {R1}, {R2};"
    yield f"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {{%d0, %d1}}, {{%d2}}, {{%d3}}, {{%d0, %d1}};"
    for shape, n_a, n_b in (("m16n8k4", 2, 1), ("m16n8k8", 4, 2), ("m16n8k16", 8, 4)):
        yield (
            f"mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64 {D4}, {registers('d', n_a)},"
            f" {registers('d', n_b)}, {D4};"
        )
    for a, b in (("e3m2", "e2m3"), ("e2m1", "e4m3"), ("e4m3", "e4m3")):
        yield (
            f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32 {F4}, {R4}, {R2}, {F4};"
        )
    yield f"mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f16.e2m1.e2m1.f16 {R2}, {R4}, {R2}, {R2};"
    for shape, kind, vector, a, scale in (
        ("m16n8k32", "mxf8f6f4", ".scale_vec::1X", "e4m3", "ue8m0"),
        ("m16n8k32", "mxf8f6f4", "", "e2m1", "ue8m0"),
        ("m16n8k64", "mxf4", ".scale_vec::2X", "e2m1", "ue8m0"),
        ("m16n8k64", "mxf4nvf4", ".scale_vec::2X", "e2m1", "ue8m0"),
        ("m16n8k64", "mxf4nvf4", ".scale_vec::4X", "e2m1", "ue4m3"),
        ("m16n8k64", "mxf4nvf4", ".scale_vec::4X", "e2m1", "ue8m0"),
    ):
        yield (
            f"mma.sync.aligned.{shape}.row.col.kind::{kind}.block_scale{vector}.f32.{a}.{a}.f32"
            f".{scale} {F4}, {R4}, {R2}, {F4}, %r6, {{0, 0}}, %r7, {{0, 0}};"
        )


def _tcgen05() -> Iterable[str]:
    for group in (1, 2):
        g = f"cta_group::{group}"
        yield f"tcgen05.alloc.{g}.sync.aligned.shared::cta.b32 [%r0], 32;"
        yield f"tcgen05.dealloc.{g}.sync.aligned.b32 %r0, 32;"
        yield f"tcgen05.relinquish_alloc_permit.{g}.sync.aligned;"
        yield f"tcgen05.commit.{g}.mbarrier::arrive::one.shared::cluster.b64 [%r0];"
        yield (
            f"tcgen05.commit.{g}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
            " [%r0], %h0;"
        )
        yield f"tcgen05.cp.{g}.128x256b [%r0], %rd0;"
        yield f"tcgen05.cp.{g}.32x128b.warpx4 [%r0], %rd0;"
        yield f"tcgen05.cp.{g}.128x256b.b8x16.b4x16_p64 [%r0], %rd0;"
        yield f"tcgen05.shift.{g}.down [%r0];"
        for kind in ("f16", "tf32", "f8f6f4", "i8"):
            yield f"tcgen05.mma.{g}.kind::{kind} [%r0], %rd0, %rd1, %r1, %p0;"
        yield f"tcgen05.mma.{g}.kind::f16 [%r0], [%r2], %rd1, %r1, %p0;"
        yield f"tcgen05.mma.{g}.kind::f16.collector::a::fill [%r0], %rd0, %rd1, %r1, %p0;"
        yield f"tcgen05.mma.{g}.kind::f16 [%r0], %rd0, %rd1, %r1, %p0, 3;"
        yield (
            f"tcgen05.mma.{g}.kind::f16.collector::a::fill.collector::b::fill [%r0], %rd0, %rd1,"
            " %r1, %p0;"
        )
        yield f"tcgen05.mma.sp.{g}.kind::f16 [%r0], %rd0, %rd1, [%r3], %r1, %p0;"
        for kind, vector in (
            ("mxf8f6f4", ""), ("mxf8f6f4", ".scale_vec::1X"), ("mxf8f6f4", ".block32"),
            ("mxf4", ".scale_vec::2X"), ("mxf4", ".block32"), ("mxf4nvf4", ".scale_vec::2X"),
            ("mxf4nvf4", ".scale_vec::4X"), ("mxf4nvf4", ".block16"), ("mxf4nvf4", ".block32"),
        ):  # fmt: skip
            yield (
                f"tcgen05.mma.{g}.kind::{kind}.block_scale{vector} [%r0], %rd0, %rd1, %r1, [%r2],"
                " [%r3], %p0;"
            )
    yield "tcgen05.mma.ws.cta_group::1.kind::f16 [%r0], %rd0, %rd1, %r1, %p0;"
    yield "tcgen05.mma.ws.cta_group::1.kind::i8 [%r0], %rd0, %rd1, %r1, %p0;"
    yield "tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%r0], %rd0, %rd1, [%r3], %r1, %p0;"
    yield f"tcgen05.ld.sync.aligned.32x32b.x2.b32 {R2}, [%r0];"
    yield f"tcgen05.ld.sync.aligned.16x256b.x1.b32 {R4}, [%r0];"
    yield f"tcgen05.ld.sync.aligned.16x32bx2.x2.b32 {R2}, [%r0], 2;"
    yield f"tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {R2}, [%r0];"
    yield f"tcgen05.ld.red.sync.aligned.32x32b.x2.min.f32 {F2}, %f3, [%r0];"
    yield f"tcgen05.ld.red.sync.aligned.32x32b.x2.max.abs.NaN.f32 {F2}, %f3, [%r0];"
    yield f"tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {R2}, %r3, [%r0];"
    yield f"tcgen05.ld.red.sync.aligned.16x32bx2.x2.min.s32 {R2}, %r3, [%r0], 2;"
    yield f"tcgen05.st.sync.aligned.32x32b.x2.b32 [%r0], {R2};"
    yield f"tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%r0], {R2};"
    yield "tcgen05.wait::ld.sync.aligned;"
    yield "tcgen05.wait::st.sync.aligned;"
    yield "tcgen05.fence::before_thread_sync;"
    yield "tcgen05.fence::after_thread_sync;"


def _tma() -> Iterable[str]:
    done = "mbarrier::complete_tx::bytes"
    for space in ("shared::cta", "shared::cluster"):
        yield f"cp.async.bulk.{space}.global.{done} [%r0], [%rd0], 16, [%r1];"
        yield f"cp.async.bulk.tensor.2d.{space}.global.tile.{done} [%r0], [%rd0, {R2}], [%r1];"
    yield (
        f"cp.async.bulk.shared::cluster.global.{done}.multicast::cluster [%r0], [%rd0], 16, [%r1],"
        " %h0;"
    )
    yield (
        f"cp.async.bulk.shared::cluster.global.{done}.multicast::cluster::32b [%r0], [%rd0], 16,"
        " [%r1], %r2;"
    )
    yield f"cp.async.bulk.shared::cluster.shared::cta.{done} [%r0], [%r2], 16, [%r1];"
    yield "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r0], 16;"
    yield "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd0], [%r0], 16, %h0;"
    yield "cp.async.bulk.commit_group;"
    yield "cp.async.bulk.wait_group 0;"
    yield "cp.async.bulk.wait_group.read 0;"
    yield "cp.async.bulk.prefetch.L2.global [%rd0], 16;"
    yield f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd0, {R2}];"
    yield (
        f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{done}.multicast::cluster [%r0],"
        f" [%rd0, {R2}], [%r1], %h0;"
    )
    for group in (1, 2):
        yield (
            f"cp.async.bulk.tensor.2d.shared::cluster.global.tile.{done}.cta_group::{group} [%r0],"
            f" [%rd0, {R2}], [%r1];"
        )
    for space in ("shared::cta", "shared::cluster"):
        yield (
            f"cp.async.bulk.tensor.2d.{space}.global.tile::gather4.{done} [%r0], [%rd0,"
            f" {registers('r', 5)}], [%r1];"
        )
    yield (
        f"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd0,"
        f" {registers('r', 5)}], [%r1];"
    )
    yield (
        f"cp.async.bulk.tensor.3d.shared::cluster.global.im2col.{done} [%r0], [%rd0,"
        f" {registers('r', 3)}], [%r1], {{%h0}};"
    )
    yield (
        f"cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w.{done} [%r0], [%rd0,"
        f" {registers('r', 3)}], [%r1], {{%h0, %h1}};"
    )
    yield f"cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd0, {R2}], [%r0];"
    yield f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%rd0, {R2}], [%r0];"
    yield "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r0], 16;"
    yield f"cp.reduce.async.bulk.shared::cluster.shared::cta.{done}.add.u32 [%r0], [%r2], 16, [%r1];"
    for field, value in (("box_dim", "b32 [%rd0], 0, %r0"), ("global_address", "b64 [%rd0], %rd1")):
        yield f"tensormap.replace.tile.{field}.global.b1024.{value};"
    yield "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%rd0], 3;"
    yield "tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%rd0], 4;"
    yield "tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [%rd0], 0;"
    yield (
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
        " [%rd0], [%r0], 128;"
    )
    yield "prefetch.tensormap [%rd0];"


def _synchronization() -> Iterable[str]:
    yield "mbarrier.init.shared.b64 [%r0], 1;"
    yield "mbarrier.inval.shared.b64 [%r0];"
    yield "mbarrier.arrive.shared.b64 %rd0, [%r0];"
    yield "mbarrier.arrive.shared.b64 %rd0, [%r0], 2;"
    yield "mbarrier.arrive.noComplete.shared.b64 %rd0, [%r0], 2;"
    yield "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r0];"
    yield "mbarrier.arrive.relaxed.cta.shared::cta.b64 %rd0, [%r0];"
    yield "mbarrier.arrive.release.cta.shared::cta.b64 %rd0, [%r0];"
    yield "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r0], 16;"
    yield "mbarrier.arrive_drop.shared.b64 %rd0, [%r0];"
    yield "mbarrier.arrive_drop.expect_tx.shared::cta.b64 %rd0, [%r0], 16;"
    yield "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r0], 16;"
    yield "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r0], 16;"
    yield "mbarrier.pending_count.b64 %r0, %rd0;"
    yield "mbarrier.test_wait.shared.b64 %p0, [%r0], %rd0;"
    yield "mbarrier.test_wait.parity.shared.b64 %p0, [%r0], 0;"
    yield "mbarrier.test_wait.parity.acquire.cluster.shared.b64 %p0, [%r0], 0;"
    yield "mbarrier.try_wait.shared.b64 %p0, [%r0], %rd0;"
    yield "mbarrier.try_wait.parity.shared.b64 %p0, [%r0], 0;"
    yield "mbarrier.try_wait.parity.relaxed.cta.shared.b64 %p0, [%r0], 0;"
    yield "cp.async.mbarrier.arrive.shared.b64 [%r0];"
    yield "cp.async.mbarrier.arrive.noinc.shared.b64 [%r0];"
    yield "cp.async.ca.shared.global [%r0], [%rd0], 4;"
    yield "cp.async.cg.shared.global [%r0], [%rd0], 16;"
    yield "cp.async.cg.shared.global.L2::128B [%r0], [%rd0], 16;"
    yield "cp.async.commit_group;"
    yield "cp.async.wait_group 0;"
    yield "cp.async.wait_all;"
    yield "barrier.sync 1, 64;"
    yield "bar.sync 0;"
    yield "bar.arrive 1, 64;"
    yield "bar.warp.sync -1;"
    yield "barrier.cluster.arrive.aligned;"
    yield "barrier.cluster.arrive.relaxed.aligned;"
    yield "barrier.cluster.wait.aligned;"
    yield "mapa.shared::cluster.u32 %r0, %r1, %r2;"
    yield "getctarank.shared::cluster.u32 %r0, %r1;"
    yield "mov.u32 %r0, %cluster_ctarank;"
    yield "fence.sc.gpu;"
    yield "fence.acq_rel.cta;"
    yield "fence.acq_rel.cluster;"
    yield "fence.acquire.cta;"
    yield "fence.acquire.sync_restrict::shared::cluster.cluster;"
    yield "fence.release.sync_restrict::shared::cta.cluster;"
    yield "fence.mbarrier_init.release.cluster;"
    yield "fence.proxy.async;"
    yield "fence.proxy.async.shared::cta;"
    yield "fence.proxy.alias;"
    yield "fence.proxy.tensormap::generic.release.gpu;"
    yield "fence.proxy.tensormap::generic.acquire.gpu [%rd0], 128;"
    yield "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;"
    yield "membar.gl;"
    yield "griddepcontrol.wait;"
    yield "griddepcontrol.launch_dependents;"
    yield "setmaxnreg.inc.sync.aligned.u32 64;"
    yield "setmaxnreg.dec.sync.aligned.u32 24;"
    yield "elect.sync %r0|%p0, -1;"
    yield "nanosleep.u32 100;"
    yield "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r0], [%r1];"
    yield (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
        ".multicast::cluster::all.b128 [%r0], [%r1];"
    )
    yield "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %q0;"
    yield "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r0, %q0;"
    yield "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r0], %r1, [%r2];"
    yield "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r0], %r1, [%r2];"
    yield "st.bulk.shared::cta [%r0], 128, 0;"


def _matrices() -> Iterable[str]:
    yield "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r0, %r1, %r2, %r3}, [%r4];"
    yield "ldmatrix.sync.aligned.m8n8.x1.trans.shared::cta.b16 {%r0}, [%r4];"
    yield "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%r4];"
    yield "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 {%r0}, [%r4];"
    yield "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8x16.b4x16_p64 {%r0, %r1}, [%r4];"
    yield "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r4], {%r0, %r1, %r2, %r3};"
    yield "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r4], {%r0};"
    yield "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r4], {%r0};"
    yield "movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;"
    yield f"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {F4}, %rd0, %rd1, %p0, 1, 1, 0, 0;"
    yield f"wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {F4}, %rd0, %rd1, %p0, 1, 1;"
    yield "wgmma.fence.sync.aligned;"
    yield "wgmma.commit_group.sync.aligned;"
    yield "wgmma.wait_group.sync.aligned 0;"


def _scalars() -> Iterable[str]:
    for operation in ("add", "sub", "mul"):
        yield f"{operation}.f32x2 %rd0, %rd1, %rd2;"
        yield f"{operation}.bf16 %h0, %h1, %h2;"
        yield f"{operation}.bf16x2 %r0, %r1, %r2;"
        yield f"{operation}.f16x2 %r0, %r1, %r2;"
        yield f"{operation}.rn.f32 %f0, %f1, %f2;"
    yield "add.f32.f16 %f0, %h0, %f1;"
    yield "add.f32.bf16 %f0, %h0, %f1;"
    yield "sub.f32.f16 %f0, %h0, %f1;"
    yield "fma.rn.f32.f16 %f0, %h0, %h1, %f1;"
    yield "fma.rn.f32x2 %rd0, %rd1, %rd2, %rd3;"
    yield "fma.rn.bf16 %h0, %h1, %h2, %h3;"
    yield "fma.rn.bf16x2 %r0, %r1, %r2, %r3;"
    yield "fma.rn.relu.f16x2 %r0, %r1, %r2, %r3;"
    yield "fma.rn.oob.f16x2 %r0, %r1, %r2, %r3;"
    for operation in ("min", "max"):
        yield f"{operation}.f32 %f0, %f1, %f2;"
        yield f"{operation}.NaN.f32 %f0, %f1, %f2;"
        yield f"{operation}.xorsign.abs.f32 %f0, %f1, %f2;"
        yield f"{operation}.f32 %f0, %f1, %f2, %f3;"
        yield f"{operation}.f16x2 %r0, %r1, %r2;"
        yield f"{operation}.bf16x2 %r0, %r1, %r2;"
        yield f"{operation}.u16x2 %r0, %r1, %r2;"
        yield f"{operation}.s16x2 %r0, %r1, %r2;"
        yield f"{operation}.relu.s32 %r0, %r1, %r2;"
        yield f"{operation}.relu.s16x2 %r0, %r1, %r2;"
    yield "add.u16x2 %r0, %r1, %r2;"
    yield "add.s16x2 %r0, %r1, %r2;"
    yield "abs.bf16 %h0, %h1;"
    yield "neg.bf16x2 %r0, %r1;"
    yield "ex2.approx.f16x2 %r0, %r1;"
    yield "ex2.approx.ftz.bf16 %h0, %h1;"
    yield "tanh.approx.f32 %f0, %f1;"
    yield "tanh.approx.bf16x2 %r0, %r1;"
    yield "tanh.approx.f16 %h0, %h1;"
    yield "szext.wrap.u32 %r0, %r1, %r2;"
    yield "bmsk.clamp.b32 %r0, %r1, %r2;"
    yield "dp4a.u32.u32 %r0, %r1, %r2, %r3;"
    yield "fns.b32 %r0, %r1, 0, 1;"
    yield "cvt.rn.bf16.f32 %h0, %f0;"
    yield "cvt.rn.bf16x2.f32 %r0, %f0, %f1;"
    yield "cvt.rn.relu.bf16x2.f32 %r0, %f0, %f1;"
    yield "cvt.rn.f16x2.f32 %r0, %f0, %f1;"
    yield "cvt.f32.bf16 %f0, %h0;"
    yield "cvt.rn.bf16.s32 %h0, %r0;"
    yield "cvt.rn.f16.bf16 %h0, %h1;"
    yield "cvt.rzi.s32.bf16 %r0, %h0;"
    yield "cvt.rna.tf32.f32 %r0, %f0;"
    yield "cvt.rn.tf32.f32 %r0, %f0;"
    yield "cvt.rna.satfinite.tf32.f32 %r0, %f0;"
    yield "cvt.rn.satfinite.tf32.f32 %r0, %f0;"
    for kind in ("e4m3x2", "e5m2x2"):
        yield f"cvt.rn.satfinite.{kind}.f32 %h0, %f0, %f1;"
        yield f"cvt.rn.satfinite.{kind}.f16x2 %h0, %r0;"
        yield f"cvt.rn.f16x2.{kind} %r0, %h0;"
    for kind in ("e2m3x2", "e3m2x2"):
        yield f"cvt.rn.satfinite.{kind}.f32 %h0, %f0, %f1;"
        yield f"cvt.rn.f16x2.{kind} %r0, %h0;"
    yield "{ .reg .b8 b; cvt.rn.satfinite.e2m1x2.f32 b, %f0, %f1; }"
    yield "{ .reg .b8 b; mov.b16 {b, _}, %h0; cvt.rn.f16x2.e2m1x2 %r0, b; }"
    yield "cvt.rz.satfinite.ue8m0x2.f32 %h0, %f0, %f1;"
    yield "cvt.rn.bf16x2.ue8m0x2 %r0, %h0;"
    yield "cvt.rs.f16x2.f32 %r0, %f0, %f1, %r1;"
    yield "cvt.rs.bf16x2.f32 %r0, %f0, %f1, %r1;"
    yield f"cvt.rs.satfinite.e4m3x4.f32 %r0, {F4}, %r1;"
    yield f"cvt.rs.satfinite.e2m1x4.f32 %h0, {F4}, %r1;"
    yield "cvt.pack.sat.u8.s32.b32 %r0, %r1, %r2, %r3;"


def _warps() -> Iterable[str]:
    yield "shfl.sync.bfly.b32 %r0|%p0, %r1, 1, 31, -1;"
    yield "vote.sync.ballot.b32 %r0, %p0, -1;"
    yield "match.any.sync.b32 %r0, %r1, -1;"
    yield "redux.sync.add.u32 %r0, %r1, -1;"
    yield "redux.sync.min.s32 %r0, %r1, -1;"
    yield "redux.sync.and.b32 %r0, %r1, -1;"
    yield "redux.sync.max.f32 %f0, %f1, -1;"
    yield "redux.sync.min.abs.NaN.f32 %f0, %f1, -1;"
    yield "activemask.b32 %r0;"


def _memory() -> Iterable[str]:
    yield "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%rd0];"
    yield f"ld.global.v8.b32 {R8}, [%rd0];"
    yield "ld.global.v4.b64 {%rd1, %rd2, %rd3, %rd4}, [%rd0];"
    yield f"st.global.v8.b32 [%rd0], {R8};"
    yield "ld.global.b128 %q0, [%rd0];"
    yield "ld.global.nc.L1::no_allocate.L2::128B.b32 %r0, [%rd0];"
    yield "ld.global.L1::evict_last.b32 %r0, [%rd0];"
    yield "ld.global.L2::cache_hint.b32 %r0, [%rd0], %rd1;"
    yield "ld.global.nc.L2::256B.b32 %r0, [%rd0];"
    yield f"ld.global.L2::evict_first.v8.b32 {R8}, [%rd0];"
    yield "ld.relaxed.gpu.global.b32 %r0, [%rd0];"
    yield "ld.acquire.cluster.shared::cluster.b32 %r0, [%r1];"
    yield "ld.shared::cluster.b32 %r0, [%r1];"
    yield "ld.shared.b32 %r0, [%r1];"
    yield "st.shared::cluster.b32 [%r1], %r0;"
    yield "st.release.sys.global.b32 [%rd0], %r0;"
    yield "ldu.global.b32 %r0, [%rd0];"
    yield "prefetch.global.L2 [%rd0];"
    yield "prefetch.global.L2::evict_last [%rd0];"
    yield "applypriority.global.L2::evict_normal [%rd0], 128;"
    yield "discard.global.L2 [%rd0], 128;"
    yield "createpolicy.fractional.L2::evict_last.b64 %rd0, 1.0;"
    yield "isspacep.shared::cluster %p0, %rd0;"
    yield "isspacep.shared %p0, %rd0;"
    yield "cvta.to.shared.u64 %rd0, %rd1;"
    yield "cvta.param.u64 %rd0, p;"
    for kind, register in (
        ("f32", "f"),
        ("u32", "r"),
        ("f64", "d"),
        ("f16x2", "r"),
        ("bf16x2", "r"),
    ):
        modifier = ".noftz" if kind.endswith("16x2") else ""
        yield f"atom.global.add{modifier}.{kind} %{register}0, [%rd0], %{register}1;"
        yield f"red.global.add{modifier}.{kind} [%rd0], %{register}1;"
    yield "atom.global.add.noftz.bf16 %h0, [%rd0], %h1;"
    yield "atom.global.add.noftz.f16 %h0, [%rd0], %h1;"
    yield "atom.global.v4.f32.add {%f0, %f1, %f2, %f3}, [%rd0], {%f0, %f1, %f2, %f3};"
    yield "red.global.v2.f32.add [%rd0], {%f0, %f1};"
    yield "red.global.add.noftz.v4.bf16x2 [%rd0], {%r0, %r1, %r2, %r3};"
    yield "atom.shared::cluster.add.u32 %r0, [%r1], %r2;"
    yield "atom.acq_rel.cluster.global.add.u32 %r0, [%rd1], %r2;"
    yield "atom.global.cas.b128 %q0, [%rd0], %q1, %q2;"
    yield "atom.global.cas.b16 %h0, [%rd0], %h1, %h2;"
    yield "multimem.ld_reduce.global.add.f32 %f0, [%rd0];"
    yield "multimem.red.global.add.f32 [%rd0], %f0;"
    yield "multimem.st.global.f32 [%rd0], %f0;"


SAMPLES = (
    *_mma(), *_matrices(), *_tcgen05(), *_tma(), *_synchronization(), *_scalars(), *_warps(),
    *_memory(),
)  # fmt: skip


def refused_by_ptxas(
    ptxas: str, target: str, lines: Iterable[str], version: str = VERSION
) -> dict[str, str]:
    """The lines that ptxas refuses for a target, with its reasons."""
    lines = tuple(lines)
    head = _HEAD.format(version=version, target=target)
    first = head.count("\n") + 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.ptx"
        path.write_text(head + "\n".join(lines) + "\nret;\n}\n")
        done = subprocess.run(
            [ptxas, f"-arch=sm_{target}", str(path), "-o", f"{folder}/out"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    found: dict[str, str] = {}
    for number, text in re.findall(r"line (\d+); error\s*: (.*)", done.stderr):
        line = lines[int(number) - first]
        found[line] = "; ".join(filter(None, (found.get(line, ""), text)))
    if done.returncode and not found:
        raise RuntimeError(done.stderr)
    return found
