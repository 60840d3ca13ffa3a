"""Bulk copies whose address or size is no multiple of 16."""

from __future__ import annotations

import numpy as np

from museum.exhibit import Exhibit, expect, instead
from museum.ptx import (
    BULK_STORE,
    CLUSTER,
    FILL,
    NUMBERS,
    PUBLISH,
    RANK,
    STORED,
    aligned,
    bulk_load,
    download,
    expect_bytes,
    init,
    kernel,
    launch,
    wait,
)
from triton_ext.emulator.errors import MemoryFault

SOURCE = aligned(np.arange(1024, dtype=np.uint32))


def _copy(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out, SOURCE], schedule)
    expect(out, SOURCE[:512])


def _start(text: str, schedule: str) -> None:
    out = np.zeros(124, np.uint32)
    launch(text, [out, SOURCE], schedule)
    expect(out, SOURCE[:124])


def _stored(text: str, schedule: str) -> None:
    out = np.zeros(64, np.uint32)
    launch(text, [out], schedule)
    expect(out, NUMBERS[:64])


def _pushed(text: str, schedule: str) -> None:
    out = np.zeros(512, np.uint32)
    launch(text, [out], schedule, grid=2, cluster=2)
    expect(out, NUMBERS)


_load = kernel("out source", init(1), expect_bytes(2048), bulk_load(), wait("FULL"), download())
_FIRST_31 = f"""\
  setp.ge.u32 %p5, %thread, 31;
  @%p5 bra END;
{download()}
END:"""


def _bytes(size: int) -> str:
    return kernel(
        "out source",
        init(1),
        f"  mov.u32 %r29, {size};",
        expect_bytes(size),
        instead(bulk_load(size), (f"{size},", "%r29,")),
        wait("FULL"),
        _FIRST_31,
    )


def _stored_bytes(size: int) -> str:
    store = instead(BULK_STORE, ("2048;", "%r29;"))
    return kernel("out", FILL, PUBLISH, f"  mov.u32 %r29, {size};", store, STORED)


_PUSH = """\
  add.u32 %r4, %r4, 4096;
  @%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
      [%r4], [%data], 2048, [%r3];"""
_push = kernel(
    "out", init(1, meet=CLUSTER), RANK, "  mapa.shared::cluster.u32 %r4, %data, %r2;", FILL,
    PUBLISH, expect_bytes(2048), _PUSH, wait("FULL"), download("%mine+4096"), CLUSTER,
)  # fmt: skip

EXHIBITS = [
    Exhibit(
        "A bulk copy begins at an odd element",
        ("tile-ai/tilelang#2584",),
        "H100: CUDA_ERROR_MISALIGNED_ADDRESS (TileLang 0.1.11); slices at multiples of 16 bytes "
        "were copied.",
        "A slice became a bulk copy whatever its start. The instruction needs a multiple of 16 "
        "bytes on both sides; other slices must be copied by threads.",
        _load, instead(_load, ("[%source], 2048", "[%source+4], 2048")), _copy, MemoryFault,
        "must be a multiple of 16",
    ),
    Exhibit(
        "A bulk copy has 508 bytes",
        ("tile-ai/tilelang#2506", "tile-ai/tilelang#2683"),
        "H100: the wait of the other block never returns; no error.",
        "127 floats, copied to another block. The size must be a multiple of 16 bytes too. Mended "
        "by an ordinary copy; here, by one of 512. (The minimal case stays in its block.)",
        _bytes(512), _bytes(508), _start, MemoryFault,
        "size 0x1fc must be a multiple of 16",
    ),
    Exhibit(
        "A copy to the other block lands at an odd element",
        ("tile-ai/tilelang#2564",),
        "H100: cudaErrorMisalignedAddress at offsets of 4 and 8 bytes; 0 and 16 are right.",
        "cp.async.bulk from shared memory to the cluster's, chosen without a look at where the "
        "part of the tile begins.",
        _push, instead(_push, ("%r4, 4096", "%r4, 4100")), _pushed, MemoryFault,
        "bulk copy: destination",
    ),
    Exhibit(
        "A bulk store has 252 bytes",
        ("tile-ai/tilelang#2525",),
        "H100: the last 12 of 252 bytes are not stored, without an error; the same in each run.",
        "63 floats, written back as one bulk store. The size must be a multiple of 16 bytes; here "
        "too, the rest must be copied by threads.",
        _stored_bytes(256), _stored_bytes(252), _stored, MemoryFault,
        "size 0xfc must be a multiple of 16",
    ),
]  # fmt: skip
