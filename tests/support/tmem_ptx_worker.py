"""Compiles loads of tensor memory with Triton 3.8 or later, and prints what its PTX does.

Reads a list of cases from stdin: [M, N, element bits, column stride, warps, shape of tcgen05.ld];
prints for each the columns that are allocated, and the loads: mnemonic, offset, immHalfSplitoff.
"""

from __future__ import annotations

import json
import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia import blackwell

TYPES = {16: (gl.float16, "*fp16"), 32: (gl.float32, "*fp32")}
LOAD = re.compile(r"(tcgen05\.ld\.\S+)[^\[]*\[%\w+ \+ (\d+)\](?:, (\d+))?;")
ALLOCATION = re.compile(r"tcgen05\.alloc\S+ \[%\w+\], (\d+);")


@gluon.jit
def sum_rows(
    pointer, m: gl.constexpr, n: gl.constexpr, kind: gl.constexpr, layout: gl.constexpr,
    name: gl.constexpr,
):  # fmt: skip
    memory = blackwell.allocate_tensor_memory(kind, [m, n], layout)
    registers: gl.constexpr = memory.get_reg_layout(instr_variant=name)
    values = memory.load(registers)
    rows: gl.constexpr = gl.SliceLayout(1, registers)
    gl.store(pointer + gl.arange(0, m, rows), gl.sum(values, 1))


def main():
    for m, n, bits, stride, warps, name in json.load(sys.stdin):
        kind, pointer = TYPES[bits]
        layout = blackwell.TensorMemoryLayout((m, n), stride)
        constants = {"m": m, "n": n, "kind": kind, "layout": layout, "name": name}
        signature = {"pointer": pointer, **dict.fromkeys(constants, "constexpr")}
        source = GluonASTSource(sum_rows, signature, constants)
        options = {"num_warps": warps, "enable_fp_fusion": True}
        kernel = triton.compile(source, target=GPUTarget("cuda", 100, 32), options=options)
        ptx = " ".join(kernel.asm["ptx"].split())
        columns = [int(count) for count in ALLOCATION.findall(ptx)]
        print(json.dumps([columns, LOAD.findall(ptx)]))


if __name__ == "__main__":
    main()
