"""Tensor maps that are illegal, stale, or misunderstood."""

from __future__ import annotations

import re

import numpy as np

from museum.exhibit import Exhibit, WrongResult, expect, instead
from museum.ptx import (
    FILL,
    NUMBERS,
    PUBLISH,
    STORED,
    aligned,
    download,
    expect_bytes,
    init,
    kernel,
    launch,
    tensor_load,
    wait,
)
from triton_ext.emulator.errors import DescriptorFault, SynchronizationFault
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle

SOURCE = aligned(np.arange(1024, dtype=np.uint32).reshape(32, 32))


def _field(name: str, value: str, where: str = "", bits: int = 32) -> str:
    space = f"shared::cta.b1024.b{bits}"
    return f"  @%first tensormap.replace.tile.{name}.{space} [%r10], {where}{value};"


MAKE = "\n".join([
    "  add.u32 %r10, %bar, 512;\n  shl.b32 %r11, %thread, 2;\n  add.u32 %r11, %r11, %r10;",
    "  setp.lt.u32 %p4, %thread, 32;\n  mov.u32 %r12, 0;\n  @%p4 st.shared.b32 [%r11], %r12;",
    "  bar.sync 0;\n  mov.u32 %r13, 32;\n  mov.u32 %r14, 16;\n  mov.u32 %r15, 1;",
    "  mov.u32 %r18, 32;\n  mov.u32 %r19, 16;",
    "  mov.u64 %rd5, 128;",
    _field("global_address", "%source", bits=64), _field("rank", "1"),
    *(_field(name, size, f"{dim}, ")
      for name, sizes in (("box_dim", ("%r13", "%r14")), ("global_dim", ("%r18", "%r19")),
                          ("element_stride", ("%r15", "%r15")))
      for dim, size in enumerate(sizes)),
    _field("global_stride", "%rd5", "0, ", 64), _field("elemtype", "2"),
    *(_field(name, "0") for name in ("interleave_layout", "swizzle_mode", "fill_mode")),
])  # fmt: skip
"""The first warp makes the map of 16 rows of 32 numbers, 128 bytes apart, in shared memory."""
RELEASE = """\
  @%p4 bar.warp.sync -1;
  @%p4 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
      [%map], [%r10], 128;"""
ACQUIRE = "  @%p4 fence.proxy.tensormap::generic.acquire.gpu [%map], 128;"


def _made(text: str, schedule: str) -> None:
    out = np.zeros(1024, np.uint32)
    launch(text, [out, SOURCE, aligned(np.zeros(128, np.uint8))], schedule)
    expect(out[:512], SOURCE.ravel()[:512])


def _made_twice(text: str, schedule: str) -> None:
    out = np.zeros(1024, np.uint32)
    launch(text, [out, SOURCE, aligned(np.zeros(128, np.uint8))], schedule)
    expect(out, SOURCE.ravel())


_one = kernel(
    "out source made", init(1), MAKE, RELEASE, ACQUIRE, expect_bytes(2048), tensor_load(),
    wait("FULL"), download(),
)  # fmt: skip
_NEXT = "  add.u64 %rd6, %source, 2048;\n" + _field("global_address", "%rd6", bits=64)
_NEXT_STAGE = "  add.u32 %r20, %data, 2048;\n  add.u32 %r21, %bar, 8;"
_two = kernel(
    "out source made", init(1, 1), MAKE, RELEASE, ACQUIRE, expect_bytes(2048), tensor_load(),
    wait("FIRST"), _NEXT, RELEASE, ACQUIRE, _NEXT_STAGE, expect_bytes(2048, 1),
    tensor_load("%r20", "%r21"), wait("SECOND", 0, 1), download(), download("%mine+2048", 2048),
)  # fmt: skip

_TENSOR_STORE = """\
  mov.u32 %r16, 0;
  @%first cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group
      [%map, {%r16, %r16}], [%data];
  @%first cp.async.bulk.commit_group;"""
_store = kernel(
    "source made", instead(MAKE, ("%r18, 32", "%r18, 28")), RELEASE, ACQUIRE, FILL, PUBLISH,
    _TENSOR_STORE, STORED,
)  # fmt: skip


def _stored(text: str, schedule: str) -> None:
    """In a table of 32 columns the tensor has those that the kernel says; the others stay 999."""
    [columns] = re.findall(r"mov.u32 %r18, (\d+);", text)
    data = aligned(np.full((16, 32), 999, np.uint32))
    launch(text, [data, aligned(np.zeros(128, np.uint8))], schedule)
    inside = np.arange(32) < int(columns)
    expect(data, np.where(inside, NUMBERS.reshape(16, 32), 999).astype(np.uint32))


_SWIZZLED = """\
  shr.u32 %r4, %thread, 3;
  and.b32 %r4, %r4, 7;
  shl.b32 %r4, %r4, 4;
  shl.b32 %r5, %thread, 4;
  xor.b32 %r5, %r5, %r4;
  add.u32 %r5, %r5, %data;"""
_swizzled = kernel(
    "out map", init(1), expect_bytes(2048), tensor_load(), wait("FULL"), _SWIZZLED, download("%r5")
)


def _unswizzled(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    tensor_map = TensorMap(
        DataType.UINT32, (32, 32), (128,), (32, 16), swizzle=TensorSwizzle.BYTES_128,
        global_address=SOURCE.ctypes.data,
    )  # fmt: skip
    launch(text, [out, tensor_map], schedule, buffers=[SOURCE])
    expect(out, SOURCE.ravel()[:512])


EXHIBITS = [
    Exhibit(
        "A tensor's row stride is no multiple of 16 bytes",
        ("triton-lang/triton#10927", "triton-lang/triton#10931"),
        "B200: wrong products, without an error, of bf16 with K = 511: rows 1022 bytes apart.",
        "The host checks the strides of the descriptors that it makes; those that a kernel makes "
        "(tl.make_tensor_descriptor) nobody checked.",
        _one, instead(_one, ("mov.u64 %rd5, 128", "mov.u64 %rd5, 1022")), _made, DescriptorFault,
        "must be a multiple of 16",
    ),
    Exhibit(
        "A box has more than 256 elements along a dimension",
        ("triton-lang/triton#6354",),
        "The kernel hangs in its wait for the copy whenever the autotuner tries a block of 512.",
        "A box has at most 256 elements along a dimension; so the bytes that the barrier expects "
        "do not come (our reading: the thread has no diagnosis).",
        _one, instead(_one, ("mov.u32 %r14, 16", "mov.u32 %r14, 512")), _made, DescriptorFault,
        "must be 1 to 256",
    ),
    Exhibit(
        "A copy starts at an address that is no multiple of 16",
        ("triton-lang/triton#7385", "triton-lang/triton#8657", "tile-ai/tilelang#2527"),
        "CUDA_ERROR_ILLEGAL_INSTRUCTION; on H100 also in a store (TileLang).",
        "The innermost coordinate, 130 times a block's number here, need not be a multiple of 16 "
        "bytes; nothing in the compiler or the driver says so.",
        _one, instead(_one, ("mov.u32 %r16, 0", "mov.u32 %r16, 2")), _made, DescriptorFault,
        "must be a multiple of 4 elements",
    ),
    Exhibit(
        "A stage of 64 bytes",
        ("tile-ai/tilelang#2528", "tile-ai/tilelang#2737"),
        "H100: \"misaligned address\" with 32 halves per stage and two stages or more; 64 halves, "
        "or one stage, are right.",
        "Stages follow each other without padding, so that the second begins at 64 bytes; a TMA "
        "copy with a tensor map needs a multiple of 128.",
        _one, instead(_one, ("add.u32 %data, %bar, 1024", "add.u32 %data, %bar, 1088")), _made,
        DescriptorFault, "must be a multiple of 128",
    ),
    Exhibit(
        "A tensor map in mutable memory is used without a fence",
        ("triton-lang/triton#4342", "triton-lang/triton#4332"),
        "Hopper: TMA kernels hung, or gave wrong results, now and then.",
        "TMA may have an older map in its descriptor cache. Triton flushed it by a kernel that did "
        "not run on every SM; now each user has an acquire fence, or the map is passed by value.",
        _one, instead(_one, (ACQUIRE + "\n", "")), _made, SynchronizationFault,
        "fence.proxy.tensormap::generic.acquire is missing",
    ),
    Exhibit(
        "A store writes past the tensor, up to 16 bytes",
        ("triton-lang/triton#11583", "triton-lang/triton#11893"),
        "H100: 2 columns of int32 behind N = 466 are overwritten, none behind 468.",
        "TMA stores whole 16 bytes. That is how the hardware is, and now documented; what lies "
        "behind the tensor in its row must be padding.",
        _store, instead(_store, ("mov.u32 %r18, 28", "mov.u32 %r18, 30")), _stored, WrongResult,
        "element 30",
    ),
    Exhibit(
        "A swizzled tile begins in the middle of the pattern",
        ("tile-ai/tilelang#2379", "tile-ai/tilelang#2391"),
        "Blackwell (sm_120): wrong values from a tile at 128 bytes, right ones at 1024.",
        "TMA swizzles the bits of the address, readers those of the offset in the tile; the two "
        "agree where the tile's address is a multiple of the pattern, 1024 bytes.",
        _swizzled,
        instead(_swizzled, ("add.u32 %data, %bar, 1024", "add.u32 %data, %bar, 1152")),
        _unswizzled, WrongResult, "no fault, and a wrong result",
    ),
    Exhibit(
        "A tensor map is changed under a copy that still reads it",
        ("deepseek-ai/DeepGEMM#343", "NVIDIA/cutlass#2162", "deepseek-ai/DeepGEMM#430"),
        "H200: the test of a weight gradient fails now and then, and its result is corrupted also "
        "when it passes. Hopper, very rarely: a 128x32 patch of a grouped GEMM differs (CUTLASS). "
        "RTX 5090 D: 13 of 14 runs.",
        "A grouped GEMM rewrites its maps for the next group while the last copies are in flight.",
        _two, instead(_two, (wait("FIRST") + "\n", ""),
                      (wait("SECOND", 0, 1), wait("FIRST") + "\n" + wait("SECOND", 0, 1))),
        _made_twice, SynchronizationFault, "was read by block (0, 0, 0), the tma unit",
    ),
]  # fmt: skip
