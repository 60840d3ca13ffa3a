"""Encodings from and to the layout objects of Gluon. Imports Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

from triton._C.libtriton import gluon_ir, ir
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.experimental.gluon import language as gl

from triton_ext.errors import LayoutError
from triton_ext.layouts.encodings import ENCODINGS, SharedEncoding
from triton_ext.layouts.shared_encoding import checked_encoding
from triton_ext.layouts.triton.converted import Converted
from triton_ext.layouts.triton.ending import end_quietly

if TYPE_CHECKING:
    from collections.abc import Sequence


end_quietly()


def to_gluon(encoding: SharedEncoding) -> Any:
    """The Gluon layout (``gl.NVMMASharedLayout``, ...) that says the same. Raises LayoutError: no
    encoding, or one that Gluon cannot say."""
    checked = checked_encoding("encoding", encoding)
    return getattr(gl, checked.GLUON)(**checked.gluon_arguments())


def from_gluon(layout: Any) -> SharedEncoding:
    """The encoding that a Gluon shared layout stands for. Raises LayoutError: another kind of
    layout, or one that Gluon admits and the hardware does not."""
    for kind in ENCODINGS.values():
        if isinstance(layout, getattr(gl, kind.GLUON)):
            return kind.from_gluon(layout)
    legal = ", ".join(f"gl.{kind.GLUON}" for kind in ENCODINGS.values())
    raise LayoutError("layout", layout, f"must be a Gluon shared-memory layout: {legal}")


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
        LayoutError: a padded encoding, for which Triton has no conversion (it would abort).
        RuntimeError: Triton's verifier refuses the encoding.
    """
    if encoding.paddings:
        rule = "is padded: Triton makes no linear layout of it"
        raise LayoutError("encoding", str(encoding), rule)
    # Of a block with one element the C++ has no offset bases, which Gluon's class would refuse.
    with mock.patch.object(gl.SharedLinearLayout, "__post_init__"):
        made = builder.to_linear_layout(to_gluon(encoding)._to_ir(builder), list(shape))
    offset, block = (tuple(map(tuple, bases)) for bases in (made.offset_bases, made.block_bases))
    return Converted(offset, block, made.alignment)
