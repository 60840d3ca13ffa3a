"""PTX kernels for tcgen05, written by hand for the tests: the text around what a test is about."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

PTXAS = shutil.which("ptxas")
STATE = 1024  # bytes at the start of shared memory for the barrier and the address
DATA = 1024 + STATE  # the shared address of what follows: the system keeps 1 KiB of a block

HEADER = """\
.version 8.7
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 source, .param .u64 target)
.reqntid {threads}{cluster}
{{
  .reg .pred %p<20>;
  .reg .b16 %h<20>;
  .reg .b32 %r<40>;
  .reg .b32 %v<260>;
  .reg .b64 %rd<40>;
  ld.param.u64 %rd1, [source];
  ld.param.u64 %rd2, [target];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r1, %tid.x;
  shr.u32 %r2, %r1, 5;
  and.b32 %r3, %r1, 31;
  mov.u32 %r6, smem;
  setp.eq.u32 %p1, %r1, 0;
  setp.eq.u32 %p2, %r2, 0;
  add.u32 %r9, %r6, 1024;
"""
# %rd1, %rd2: source and target; %r1: thread; %r2: warp; %r3: lane; %r6: mbarrier (+0), TMEM address
# (+16); %r9: dynamic shared memory; %p1: the first thread; %p2: the first warp


def kernel(body: str, *, threads: int = 128, cluster: int = 1) -> str:
    """A whole module; `body` ends with what comes before ``ret``."""
    extra = f"\n.explicitcluster .reqnctapercluster {cluster},1,1" if cluster > 1 else ""
    return HEADER.format(threads=threads, cluster=extra) + body + "  ret;\n}\n"


def allocate(columns: int = 512, group: int = 1) -> str:
    """Allocate tensor memory and make a barrier; the address is in %r4, lane of the warp in %r5."""
    sync = (
        "barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned"
        if group == 2
        else ("bar.sync 0")
    )
    return f"""\
  @%p1 mbarrier.init.shared::cta.b64 [%r6], 1;
  @%p2 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r6+16], {columns};
  {sync};
  ld.shared.b32 %r4, [%r6+16];
  and.b32 %r5, %r2, 3;
  shl.b32 %r5, %r5, 21;
  add.u32 %r5, %r5, %r4;
"""


def free(columns: int = 512, group: int = 1) -> str:
    sync = (
        "barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned"
        if group == 2
        else ("bar.sync 0")
    )
    return f"""\
  {sync};
  @%p2 tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r4, {columns};
"""


def fill_shared(size: int, threads: int = 128, source: str = "%rd1") -> str:
    """All threads copy `size` bytes from global to dynamic shared memory, then fence and meet."""
    step = 16 * threads
    lines = [
        "  mul.wide.u32 %rd30, %r1, 16;",
        f"  add.u64 %rd30, %rd30, {source};",
        "  shl.b32 %r30, %r1, 4;",
        "  add.u32 %r30, %r30, %r9;",
    ]
    for offset in range(0, size, step):
        lines += [
            f"  ld.global.v4.b32 {{%v256,%v257,%v258,%v259}}, [%rd30+{offset}];",
            f"  st.shared.v4.b32 [%r30+{offset}], {{%v256,%v257,%v258,%v259}};",
        ]
    lines += ["  fence.proxy.async.shared::cta;", "  bar.sync 0;"]
    return "\n".join(lines) + "\n"


def commit_and_wait(number: int, phase: int = 0) -> str:
    """The first thread commits, everybody waits."""
    return f"""\
  @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r6];
WAIT{number}:
  mbarrier.try_wait.parity.shared::cta.b64 %p10, [%r6], {phase};
  @!%p10 bra WAIT{number};
  tcgen05.fence::after_thread_sync;
"""


def registers(count: int, first: int = 0) -> str:
    return "{" + ", ".join(f"%v{first + i}" for i in range(count)) + "}"


def write_out(count: int, at: int = 0, threads: int = 128) -> str:
    """Each thread's registers to target[at + register * threads + thread]."""
    lines = ["  mul.wide.u32 %rd31, %r1, 4;", "  add.u64 %rd31, %rd31, %rd2;"]
    lines += [
        f"  st.global.b32 [%rd31+{4 * (at + register * threads)}], %v{register};"
        for register in range(count)
    ]
    return "\n".join(lines) + "\n"


def read_in(count: int, at: int = 0, threads: int = 128) -> str:
    """The opposite of `write_out`, from the source."""
    lines = ["  mul.wide.u32 %rd31, %r1, 4;", "  add.u64 %rd31, %rd31, %rd1;"]
    lines += [
        f"  ld.global.b32 %v{register}, [%rd31+{4 * (at + register * threads)}];"
        for register in range(count)
    ]
    return "\n".join(lines) + "\n"


def assemble(kernels: Iterable[str]) -> None:
    """Have ptxas check kernels, if it is there."""
    if PTXAS is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(dict.fromkeys(kernels)):
            path = Path(folder) / f"{number}.ptx"
            path.write_text(text)
            target = text.partition(".target ")[2].split()[0]
            done = subprocess.run(
                [PTXAS, f"-arch={target}", "-O0", str(path), "-o", str(path.with_suffix(".cubin"))],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{done.stderr}\n{text}"


def descriptor(
    start: int, leading: int = 16, stride: int = 128, swizzle: int = 0, base_offset: int = 0
) -> int:
    """A matrix descriptor of tcgen05, in bytes; `swizzle` is the code of its field."""
    return (
        (start >> 4 & 0x3FFF)
        | (leading >> 4 & 0x3FFF) << 16
        | (stride >> 4 & 0x3FFF) << 32
        | 1 << 46
        | base_offset << 49
        | swizzle << 61
    )


def words(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, np.uint32)


def rank_offsets(source_bytes: int, target_bytes: int) -> str:
    """The second block of a pair has its own part of the source and of the target; %p3: leader."""
    return f"""\
  mov.u32 %r10, %cluster_ctarank;
  mul.wide.u32 %rd10, %r10, {source_bytes};
  add.u64 %rd1, %rd1, %rd10;
  mul.wide.u32 %rd11, %r10, {target_bytes};
  add.u64 %rd2, %rd2, %rd11;
  setp.eq.u32 %p4, %r10, 0;
  and.pred %p3, %p1, %p4;
"""


def store_columns(count: int, at: int, column: int) -> str:
    """Fill columns of tensor memory from source[at + column * 128 + thread]."""
    text = ""
    for first in range(0, count, 8):
        text += read_in(8, at + first * 128)
        text += f"  add.u32 %r7, %r5, {column + first};\n"
        text += f"  tcgen05.st.sync.aligned.32x32b.x8.b32 [%r7], {registers(8)};\n"
    return text + "  tcgen05.wait::st.sync.aligned;\n  tcgen05.fence::before_thread_sync;\n"


def load_columns(count: int, column: int = 0, at: int = 0) -> str:
    """Copy columns of tensor memory to target[at + column * 128 + thread]."""
    text = ""
    for first in range(0, count, 8):
        text += f"  add.u32 %r7, %r5, {column + first};\n"
        text += f"  tcgen05.ld.sync.aligned.32x32b.x8.b32 {registers(8)}, [%r7];\n"
        text += "  tcgen05.wait::ld.sync.aligned;\n" + write_out(8, at + first * 128)
    return text
