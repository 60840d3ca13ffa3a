"""Compiles one TMA load a job, each in a forked process, with whatever Triton can be imported.

Reads a JSON list of jobs from stdin: ``{"type", "block", "encoding", "at"}``. Writes Triton's
version and then one JSON result a line: the copies in the PTX, as [byte offset from the tile,
coordinates, dimensions of the instruction], the bytes that the mbarrier expects, and what Triton's
launcher is told of the tensor map.
"""

from __future__ import annotations

import re

from forked import serve
from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from triton_ext import NVMMAShared
from triton_ext.compat import async_load, compile_gluon
from triton_ext.layouts.triton.gluon import to_gluon


@gluon.jit
def load_tile(desc, RANK: gl.constexpr, A: gl.constexpr, B: gl.constexpr, C: gl.constexpr,
              D: gl.constexpr, E: gl.constexpr):  # fmt: skip
    """One tile, at coordinates that are known at compile time."""
    tile = gl.allocate_shared_memory(desc.dtype, desc.block_type.shape, desc.layout)
    barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(barrier, count=1)
    mbarrier.expect(barrier, desc.block_type.nbytes)
    if RANK == 1:
        async_load(desc, [A], barrier, tile)
    elif RANK == 2:
        async_load(desc, [A, B], barrier, tile)
    elif RANK == 3:
        async_load(desc, [A, B, C], barrier, tile)
    elif RANK == 4:
        async_load(desc, [A, B, C, D], barrier, tile)
    else:
        async_load(desc, [A, B, C, D, E], barrier, tile)
    mbarrier.wait(barrier, 0)
    mbarrier.invalidate(barrier)


def read_copies(ptx):
    """The copies' [offset, coordinates, rank], and the expected bytes.

    Follows ``mov`` of constants and ``add`` of a constant to a register, all that stands between
    the start of shared memory and an operand when one warp copies at constant coordinates.
    """
    values = {"global_smem": 0}
    copies, expected = [], []

    def value(operand):
        operand = operand.strip()
        return values[operand] if operand in values else int(operand, 0)

    for line in ptx.splitlines():
        line = line.strip().rstrip(";")
        if match := re.fullmatch(r"mov\.\w+\s+(%r\d+), (global_smem|-?\d+)", line):
            values[match[1]] = value(match[2])
        elif match := re.fullmatch(r"add\.s32\s+(%r\d+), (%r\d+), (-?\d+)", line):
            if match[2] in values:
                values[match[1]] = values[match[2]] + int(match[3])
        elif match := re.search(
            r"cp\.async\.bulk\.tensor\.(\d)d\S* \[([^\]]*)\], \[%rd\d+, \{([^}]*)\}\]", line
        ):
            coordinates = [value(operand) for operand in match[3].split(",")]
            place, _, extra = match[2].partition("+")
            copies.append([value(place) + int(extra or 0), coordinates, int(match[1])])
        elif "cp.async.bulk.tensor" in line:
            raise ValueError(f"unread copy: {line}")
        elif match := re.search(r"mbarrier\.arrive\.expect_tx\S* .*, (\S+)$", line):
            expected.append(value(match[1]))
    return copies, expected


def run(job):
    encoding = NVMMAShared.parse(job["encoding"])
    block = ",".join(map(str, job["block"]))
    signature = {"desc": f"tensordesc<{job['type']}[{block}],{to_gluon(encoding)!r}>"}
    at = [*job["at"], 0, 0, 0, 0]
    constants = {"RANK": len(job["block"]), **dict(zip("ABCDE", at, strict=False))}
    signature |= dict.fromkeys(constants, "constexpr")
    kernel = compile_gluon(load_tile, signature, constants, arch=90, num_warps=1)
    copies, expected = read_copies(kernel.asm["ptx"])
    [meta] = kernel.metadata.tensordesc_meta
    meta["elem_type"] = TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]]  # as the driver API has it
    return {"copies": copies, "expected": expected, "meta": meta}


if __name__ == "__main__":
    serve(run)
