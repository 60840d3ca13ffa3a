"""Prints Triton's linear layouts of matrix fragments as JSON: (register, lane, warp) bases.

The keys are "accumulator N" of wgmma, "a WIDTH" and "b WIDTH" of mma, and "wgmma a WIDTH", where
WIDTH is how many elements along K one register holds.
"""

from __future__ import annotations

import json
import sys

from triton._C.libtriton import gluon_ir, ir
from triton.experimental.gluon import language as gl

context = ir.context()
ir.load_dialects(context)
builder = gluon_ir.GluonOpBuilder(context)
module = builder.create_module()


def bases(layout: object, shape: list[int]) -> list[list[list[int]]]:
    found = builder.to_linear_layout(layout._to_ir(builder), shape)
    return [found.reg_bases, found.lane_bases, found.warp_bases]


result = {}
for n in (8, 16, 64, 256):
    layout = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 16])
    result[f"accumulator {n}"] = bases(layout, [64, n])
mma = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
wgmma = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32])
for width in (1, 2, 4):
    k = 8 * width
    result[f"a {width}"] = bases(gl.DotOperandLayout(0, mma, width), [16, k])
    result[f"b {width}"] = bases(gl.DotOperandLayout(1, mma, width), [k, 8])
    result[f"wgmma a {width}"] = bases(gl.DotOperandLayout(0, wgmma, width), [64, k])
json.dump(result, sys.stdout)
