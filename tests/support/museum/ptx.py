"""The text around an exhibit's kernel: registers, barriers, copies, products."""

from __future__ import annotations

from typing import Any

import numpy as np

from triton_ext.emulator import run_ptx

SMEM = 33 * 1024

_MODULE = """\
.version 8.7
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel({parameters})
{{
  .reg .pred %p<8>, %first, %done;
  .reg .b16 %h<4>;
  .reg .b32 %r<32>, %v<8>, %thread, %warp, %bar, %data, %mine;
  .reg .f32 %f<4>;
  .reg .b64 %rd<8>, %out, %source, %map;
  mov.u32 %thread, %tid.x;
  shr.u32 %warp, %thread, 5;
  mov.u32 %bar, smem;
  add.u32 %data, %bar, 1024;
  shl.b32 %mine, %thread, 4;
  add.u32 %mine, %mine, %data;
  setp.eq.u32 %first, %thread, 0;
{loads}
{body}
  ret;
}}
"""
_PARAMETERS = {
    "out": (".param .u64 out", "  ld.param.u64 %out, [out];"),
    "source": (".param .u64 source", "  ld.param.u64 %source, [source];"),
    "map": (".param .align 64 .b8 map[128]", "  mov.b64 %map, map;\n  cvta.param.u64 %map, %map;"),
    "made": (".param .u64 made", "  ld.param.u64 %map, [made];"),
}


def kernel(parameters: str, *body: str, target: str = "sm_90a") -> str:
    """A module with one kernel.

    %bar is shared memory for barriers, %data for the rest, %mine the thread's 16 bytes of it.

    Args:
        parameters: names: ``out`` and ``source`` are addresses of arrays, ``map`` is a tensor map
            by value, ``made`` the place in global memory for one that the kernel makes.
    """
    names = parameters.split()
    return _MODULE.format(
        target=target,
        parameters=", ".join(_PARAMETERS[name][0] for name in names),
        loads="\n".join(_PARAMETERS[name][1] for name in names),
        body="\n".join(part.strip("\n") for part in body if part),
    )


def launch(text: str, args: list[Any], schedule: str, **options: Any) -> None:
    """One block of 128 threads, by the letter of the documents, unless told otherwise."""
    defaults = {"grid": 1, "block": 128, "dynamic_smem_bytes": SMEM, "strict": True}
    run_ptx(text, args=args, schedule=schedule, seed=1, **defaults | options)


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy at a multiple of 128 bytes."""
    raw = np.zeros(values.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 128
    array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


# ------------------------------------------------------------------------ barriers

BLOCK = "  bar.sync 0;"
CLUSTER = "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;"
RANK = """\
  mov.u32 %r1, %cluster_ctarank;
  xor.b32 %r2, %r1, 1;
  mapa.shared::cluster.u32 %r3, %bar, %r2;
  setp.eq.u32 %p2, %r1, 0;
  and.pred %p3, %p2, %first;"""
"""%r1, %r2: this block of a pair, the other; %r3: the other's barrier; %p3: the first thread
of block 0."""


def init(*counts: int, meet: str = BLOCK) -> str:
    """The first thread initialises barriers 0, 1, ... with these counts; then all meet."""
    lines = [
        f"  @%first mbarrier.init.shared::cta.b64 [%bar+{8 * i}], {count};"
        for i, count in enumerate(counts)
    ]
    return "\n".join([*lines, "  fence.mbarrier_init.release.cluster;", meet])


def wait(label: str, parity: int = 0, barrier: int = 0) -> str:
    """All threads wait for the phase of `parity` of a barrier; `label` names the loop."""
    return f"""\
{label}:
  mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar+{8 * barrier}], {parity};
  @!%done bra {label};"""


def arrive(barrier: int) -> str:
    """Each thread arrives."""
    return f"  mbarrier.arrive.shared::cta.b64 _, [%bar+{8 * barrier}];"


# ------------------------------------------------------------------------ copies


def expect_bytes(size: int, barrier: int = 0) -> str:
    return f"  @%first mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar+{8 * barrier}], {size};"


def bulk_load(size: int = 2048, to: int = 0, barrier: int = 0) -> str:
    """The first thread has `size` bytes of the source copied to ``%data + to``."""
    return f"""\
  add.u32 %r30, %data, {to};
  add.u32 %r31, %bar, {8 * barrier};
  @%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
      [%r30], [%source], {size}, [%r31];"""


def tensor_load(to: str = "%data", barrier: str = "%bar", column: int = 0) -> str:
    """The first thread has the first box of the tensor map copied."""
    return f"""\
  mov.u32 %r16, {column};
  mov.u32 %r17, 0;
  @%first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
      [{to}], [%map, {{%r16, %r17}}], [{barrier}];"""


BULK_STORE = """\
  @%first cp.async.bulk.global.shared::cta.bulk_group [%out], [%data], 2048;
  @%first cp.async.bulk.commit_group;"""
STORED = "  @%first cp.async.bulk.wait_group 0;"
READ = "  @%first cp.async.bulk.wait_group.read 0;"
"""The store has read its source."""
PUBLISH = "  fence.proxy.async.shared::cta;\n  bar.sync 0;"
"""What the threads wrote to shared memory may be read by TMA and the tensor cores."""
FILL = "  st.shared.v4.b32 [%mine], {%thread, %thread, %thread, %thread};"
"""Each thread writes its number into its 16 bytes."""
NUMBERS = np.repeat(np.arange(128, dtype=np.uint32), 4)
"""What `FILL` writes."""


def download(where: str = "%mine", to: int = 0) -> str:
    """Each thread writes 16 bytes of shared memory out, in the threads' order."""
    return f"""\
  ld.shared.v4.b32 {{%v0, %v1, %v2, %v3}}, [{where}];
  cvt.u64.u32 %rd1, %thread;
  shl.b64 %rd1, %rd1, 4;
  add.u64 %rd1, %rd1, %out;
  st.global.v4.b32 [%rd1+{to}], {{%v0, %v1, %v2, %v3}};"""


# ------------------------------------------------------------------------ products

ONES = """\
  mov.b32 %r1, 0x3C003C00;
  st.shared.v4.b32 [%mine], {%r1, %r1, %r1, %r1};
  st.shared.v4.b32 [%mine+2048], {%r1, %r1, %r1, %r1};
  st.shared.v4.b32 [%mine+4096], {%r1, %r1, %r1, %r1};"""
"""Halves of 1.0: whatever the layout, A and B are full of them."""
A_AND_B = """\
  shr.u32 %r2, %data, 4;
  cvt.u64.u32 %rd2, %r2;
  or.b64 %rd2, %rd2, 0x0000001000080000;
  add.u64 %rd3, %rd2, 128;"""
"""%rd2, %rd3: matrix descriptors of A and B for wgmma."""


def wgmma(a: str = "%rd2", accumulate: int = 0) -> str:
    """64x8 += 64x16 times 16x8; `a` is a descriptor or registers."""
    majors = "0, 0" if a == "%rd2" else "0"
    return f"""\
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16
      {{%f0, %f1, %f2, %f3}}, {a}, %rd3, {accumulate}, 1, 1, {majors};
  wgmma.commit_group.sync.aligned;"""


MULTIPLIED = "  wgmma.wait_group.sync.aligned 0;"
SUMS_OUT = """\
  cvt.u64.u32 %rd4, %thread;
  shl.b64 %rd4, %rd4, 4;
  add.u64 %rd4, %rd4, %out;
  st.global.v4.f32 [%rd4], {%f0, %f1, %f2, %f3};"""

# ------------------------------------------------------------------------ tensor memory

ALLOCATE = """\
  setp.eq.u32 %p1, %warp, 0;
  @%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%bar+128], 32;
  bar.sync 0;
  ld.shared.b32 %r21, [%bar+128];
  and.b32 %r22, %warp, 3;
  shl.b32 %r22, %r22, 21;
  add.u32 %r22, %r22, %r21;"""
"""%r21: 32 columns; %r22: the warp's lanes of them."""
DEALLOCATE = "  @%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r21, 32;"
OPERANDS = """\
  shr.u32 %r2, %data, 4;
  cvt.u64.u32 %rd2, %r2;
  or.b64 %rd2, %rd2, 0x0000401000080000;
  mov.b32 %r23, 0x08040010;"""
"""%rd2: the matrix descriptor of A and B; %r23: f32 += f16 x f16, 128x16x16."""
COMMIT = """\
  @%first tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"""
AFTER = "  tcgen05.fence::after_thread_sync;"
BEFORE = "  tcgen05.fence::before_thread_sync;"
LOAD_SUMS = "  tcgen05.ld.sync.aligned.32x32b.x4.b32 {%v0, %v1, %v2, %v3}, [%r22];"
LOADED = "  tcgen05.wait::ld.sync.aligned;"
TENSOR_SUMS_OUT = """\
  cvt.u64.u32 %rd4, %thread;
  shl.b64 %rd4, %rd4, 4;
  add.u64 %rd4, %rd4, %out;
  st.global.v4.b32 [%rd4], {%v0, %v1, %v2, %v3};"""


def tcgen05_mma(accumulate: int = 0) -> str:
    """128x16 += 128x16 times 16x16, by the first thread."""
    return f"""\
  setp.ne.u32 %p2, {accumulate}, 0;
  @%first tcgen05.mma.cta_group::1.kind::f16 [%r21], %rd2, %rd2, %r23, %p2;"""
