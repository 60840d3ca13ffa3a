"""Encodings from and to the layout objects of Gluon. Imports Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton._C.libtriton import gluon_ir, ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.experimental.gluon import language as gl

from triton_ext.errors import LayoutError
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding, SharedLinear, SwizzledShared
from triton_ext.layouts.triton.converted import Converted
from triton_ext.layouts.triton.ending import end_quietly

if TYPE_CHECKING:
    from collections.abc import Sequence


end_quietly()


def _lists(bases: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(basis) for basis in bases]


def to_gluon(encoding: SharedEncoding) -> Any:
    """The Gluon layout (``gl.NVMMASharedLayout``, ...) that says the same.

    Raises:
        LayoutError: no encoding, or a linear one of a single element, which Gluon cannot say.
    """
    if isinstance(encoding, NVMMAShared):
        return gl.NVMMASharedLayout(
            swizzle_byte_width=encoding.swizzle_byte_width,
            element_bitwidth=encoding.element_bitwidth,
            rank=encoding.rank,
            transposed=encoding.transposed,
            fp4_padded=encoding.fp4_padded,
            cga_layout=_lists(encoding.cga_layout),
        )
    if isinstance(encoding, SwizzledShared):
        return gl.SwizzledSharedLayout(
            encoding.vec,
            encoding.per_phase,
            encoding.max_phase,
            list(encoding.order),
            cga_layout=_lists(encoding.cga_layout),
        )
    if isinstance(encoding, SharedLinear):
        if not encoding.offset_bases:
            raise LayoutError("encoding", str(encoding), "Gluon needs at least one offset basis")
        return gl.SharedLinearLayout(
            _lists(encoding.offset_bases), _lists(encoding.block_bases), encoding.alignment
        )
    raise LayoutError(
        "encoding", encoding, "must be an NVMMAShared, a SwizzledShared or a SharedLinear"
    )


def from_gluon(layout: Any) -> SharedEncoding:
    """The encoding that a Gluon shared layout stands for.

    Raises:
        LayoutError: another kind of layout, or one that Gluon admits and the hardware does not.
    """
    if isinstance(layout, gl.NVMMASharedLayout):
        return NVMMAShared(
            layout.swizzle_byte_width,
            layout.element_bitwidth,
            layout.transposed,
            layout.fp4_padded,
            layout.rank,
            layout.cga_layout or (),
        )
    if isinstance(layout, gl.SwizzledSharedLayout):
        return SwizzledShared(
            layout.vec, layout.per_phase, layout.max_phase, layout.order, layout.cga_layout or ()
        )
    if isinstance(layout, gl.SharedLinearLayout):
        return SharedLinear(layout.offset_bases, layout.block_bases or (), layout.alignment)
    raise LayoutError(
        "layout", layout, "must be a Gluon NVMMA, swizzled or linear shared-memory layout"
    )


def mlir_context() -> Any:
    """An MLIR context that knows Triton's dialects; what is made in it must not outlive it."""
    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget("cuda", 100, 32)).load_dialects(context)
    return context


def op_builder(context: Any) -> Any:
    """A builder of Gluon's operations, which converts layouts."""
    return gluon_ir.GluonOpBuilder(context)


def linear_layout(builder: Any, encoding: SharedEncoding, shape: Sequence[int]) -> Converted:
    """What Triton's C++ makes of an encoding.

    For an illegal shape it may abort the process.

    Raises:
        RuntimeError: Triton's verifier refuses the encoding.
    """
    made = builder.to_linear_layout(to_gluon(encoding)._to_ir(builder), list(shape))
    offset, block = (tuple(map(tuple, bases)) for bases in (made.offset_bases, made.block_bases))
    return Converted(offset, block, made.alignment)
