"""Asks whatever Triton can be imported for its linear layouts of distributed encodings.

Reads jobs from stdin, each an MLIR attribute and a shape; a result is the bases of registers,
lanes, warps and blocks.
"""

from __future__ import annotations

from forked import serve
from triton._C.libtriton import gluon_ir, ir
from triton.experimental.gluon import language as gl

from triton_ext.layouts.distributed import (
    Blocked,
    DotOperand,
    Linear,
    NvidiaMma,
    Slice,
    parse_distributed,
)

context = ir.context()
ir.load_dialects(context)


def lists(bases):
    return [list(basis) for basis in bases]


def to_gluon(encoding, shape):
    """The Gluon layout that says the same."""
    if isinstance(encoding, Blocked):
        return gl.BlockedLayout(
            list(encoding.size_per_thread),
            list(encoding.threads_per_warp),
            list(encoding.warps_per_cta),
            list(encoding.order),
            lists(encoding.cga_layout),
        )
    if isinstance(encoding, NvidiaMma):
        return gl.NVMMADistributedLayout(
            [encoding.version, 0],
            list(encoding.warps_per_cta),
            list(encoding.instr_shape),
            lists(encoding.cga_layout),
        )
    if isinstance(encoding, DotOperand):
        parent = to_gluon(encoding.parent, shape)
        return gl.DotOperandLayout(encoding.operand, parent, encoding.k_width)
    if isinstance(encoding, Slice):
        whole = [*shape[: encoding.dim], 1, *shape[encoding.dim :]]
        return gl.SliceLayout(encoding.dim, to_gluon(encoding.parent, whole))
    assert isinstance(encoding, Linear)
    bases = {name: lists(vectors) for name, vectors in encoding.bases}
    every = [basis for vectors in bases.values() for basis in vectors]
    own = [1 << max(basis[i].bit_length() for basis in every) for i in range(encoding.rank)]
    return gl.DistributedLinearLayout(
        bases["register"], bases["lane"], bases["warp"], bases["block"], own
    )


def convert(job):
    builder = gluon_ir.GluonOpBuilder(context)
    builder.create_module()
    layout = to_gluon(parse_distributed(job["encoding"]), job["shape"])
    found = builder.to_linear_layout(layout._to_ir(builder), job["shape"])
    return [found.reg_bases, found.lane_bases, found.warp_bases, found.block_bases]


serve(convert)
