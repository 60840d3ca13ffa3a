"""Asks a release of Triton, in a process of its own, for its layouts of tensor memory.

Reads a list of cases from stdin: [encoding, shape, element bits, [[warps, shape of tcgen05.ld],
...]]; prints the release, and for each case its rows and columns, and for each load the bases of
register, lane, warp and block, or why Triton refuses.
"""

from __future__ import annotations

import json
import os
import sys

import triton
from triton._C.libtriton import gluon_ir, ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell

from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding

TYPES = {8: gl.uint8, 16: gl.float16, 32: gl.float32}
SCALES = "#ttng.tensor_memory_scales_encoding<>"
OLD = triton.__version__.startswith("3.7")


def to_gluon(text):
    if text == SCALES:
        return blackwell.TensorMemoryScalesLayout()
    encoding = TensorMemoryEncoding.parse(text)
    block = (encoding.block_m, encoding.block_n)
    if OLD:
        return blackwell.TensorMemoryLayout(block, encoding.col_stride)
    return blackwell.TensorMemoryLayout(
        block,
        encoding.col_stride,
        [list(basis) for basis in encoding.cga_layout],
        encoding.two_ctas,
        encoding.fp4_padded,
    )


def load(layout, shape, bits, warps, name):
    try:
        if OLD:
            found = blackwell.get_tmem_reg_layout(TYPES[bits], shape, layout, warps, name)
        else:
            kind = blackwell.tensor_memory_descriptor_type(TYPES[bits], shape, layout, shape)
            found = kind.get_reg_layout(warps, name)
    except Exception as error:
        return str(error).strip()
    return [found.reg_bases, found.lane_bases, found.warp_bases, found.block_bases]


def guarded(asked):
    """`load` in forks: Triton 3.7 aborts where later releases refuse, and the next takes over."""
    found = []
    while len(found) < len(asked):
        reader, writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            for arguments in asked[len(found) :]:
                os.write(writer, json.dumps(load(*arguments)).encode() + b"\n")
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answers:
            found += map(json.loads, answers)
        if os.waitpid(child, 0)[1]:
            found.append("aborted")
    return found


def main():
    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget("cuda", 100, 32)).load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    print(json.dumps(triton.__version__))
    for text, shape, bits, loads in json.load(sys.stdin):
        layout = to_gluon(text)
        linear = builder.to_linear_layout(layout._to_ir(builder), shape)
        asked = [(layout, shape, bits, *one) for one in loads]
        answers = guarded(asked) if OLD else [load(*arguments) for arguments in asked]
        print(json.dumps([linear.rows, linear.cols, answers]))
    sys.stdout.flush()
    os._exit(0)  # without the binding's report of leaked objects


if __name__ == "__main__":
    main()
