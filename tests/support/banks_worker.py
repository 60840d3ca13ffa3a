"""Asks whatever Triton can be imported for its own count of bank conflicts, case after case.

Reads a JSON list of cases from stdin, prints Triton's version and then one number a line: by how
many the degree of the conflict exceeds 1.
"""

from __future__ import annotations

import json
import sys

import triton
from triton._C.libtriton import gluon_ir, ir
from triton.compiler.compiler import make_backend
from triton.experimental.gluon import language as gl

from triton_ext.compat import gpu_target
from triton_ext.layouts.encodings import parse_encoding
from triton_ext.layouts.triton.gluon import to_gluon

context = ir.context()
ir.load_dialects(context)
make_backend(gpu_target(90)).load_dialects(context)
builder = gluon_ir.GluonOpBuilder(context)
# The count looks for the module that it is asked in.
module = builder.create_module()
function = builder.get_or_insert_function(
    module, "f", builder.get_function_ty([], []), "public", False
)
module.push_back(function)
builder.set_insertion_point_to_start(function.add_entry_block())

print(triton.__version__)
for case in json.load(sys.stdin):
    registers = gl.DistributedLinearLayout(
        case["register"], case["lane"], case["warp"], [], case["shape"]
    )
    print(
        builder.get_shared_bank_conflicts(
            registers._to_ir(builder),
            to_gluon(parse_encoding(case["encoding"]))._to_ir(builder),
            case["shape"],
            case["bits"],
        ),
        flush=True,
    )
