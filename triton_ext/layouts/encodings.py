"""The shared-memory encodings that there are: the one registry that everything looks up.

Each is a class of its own module; commands, passes, dumps, pages and the emulator know an encoding
by what `SharedEncoding` promises, and by `ENCODINGS`.
"""

from __future__ import annotations

import ast
import re
from types import SimpleNamespace
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.layouts.attributes import parse_attribute
from triton_ext.layouts.nvmma_shared import (
    CHUNK_BYTES,
    ELEMENT_BITWIDTHS,
    MAX_RANK,
    SWIZZLE_BYTE_WIDTHS,
    NVMMAShared,
)
from triton_ext.layouts.padded_shared import PaddedShared
from triton_ext.layouts.shared_encoding import DEFAULT_ALIGNMENT, SharedEncoding
from triton_ext.layouts.shared_linear import SharedLinear
from triton_ext.layouts.swizzled_shared import SwizzledShared

__all__ = [
    "CHUNK_BYTES",
    "DEFAULT_ALIGNMENT",
    "ELEMENT_BITWIDTHS",
    "ENCODINGS",
    "MAX_RANK",
    "SWIZZLE_BYTE_WIDTHS",
    "NVMMAShared",
    "PaddedShared",
    "SharedEncoding",
    "SharedLinear",
    "SwizzledShared",
    "is_encoding",
    "parse_encoding",
]

ENCODINGS: dict[str, type[SharedEncoding]] = {
    kind.NAME.partition(".")[2]: kind
    for kind in (NVMMAShared, SwizzledShared, SharedLinear, PaddedShared)
}
"""The encodings by their mnemonics: ``nvmma_shared``."""

_REGISTERS = (
    "lays out registers, not shared memory: see `triton-ext layout --convert`, and"
    " triton_ext.layouts.distributed.distributed_linear_layout"
)
_TENSOR_MEMORY = (
    "lays out tensor memory, not shared memory: see `triton-ext tmem`, and"
    " triton_ext.hardware.tensor_memory_encoding.parse_tensor_encoding"
)
_ELSEWHERE = {
    **dict.fromkeys(("blocked", "nvidia_mma", "dot_op", "slice", "linear"), _REGISTERS),
    **dict.fromkeys(("tensor_memory_encoding", "tensor_memory_scales_encoding"), _TENSOR_MEMORY),
}


_CALL = re.compile(r"\s*(?:[A-Za-z_]\w*\.)*[A-Z]\w*Layout\s*\(")
_ALIAS = re.compile(r"\s*#[\w.]+\s*=(?=\s*#)")
_ARGUMENTS: dict[type[SharedEncoding], dict[str, Any]] = {
    NVMMAShared: {"swizzle_byte_width": None, "element_bitwidth": None, "rank": 2,
                  "transposed": False, "fp4_padded": False, "cga_layout": ()},
    SwizzledShared: {**dict.fromkeys(("vec", "per_phase", "max_phase", "order")), "cga_layout": ()},
    SharedLinear: {"offset_bases": None, "block_bases": (), "alignment": DEFAULT_ALIGNMENT},
    PaddedShared: {"interval_padding_pairs": None, "offset_bases": None, "cga_layout": (),
                   "shape": None},
}  # fmt: skip
"""The arguments of Gluon's classes in their order, with their defaults; None where there is none
(Triton, ``triton/experimental/gluon/language/_layouts.py``)."""


def is_encoding(text: str) -> bool:
    """Whether a text is meant as an encoding: an attribute, or a Gluon layout as it is written."""
    return text.lstrip().startswith("#") or bool(_CALL.match(text))


def parse_encoding(text: str) -> SharedEncoding:
    """Any shared encoding of NVIDIA GPUs.

    Args:
        text: its MLIR attribute, perhaps behind ``#shared = ``; or the Gluon layout as scripts
            write it and Gluon prints it, ``gl.NVMMASharedLayout(128, 16, rank=2)``.

    Raises:
        LayoutError: not one of `ENCODINGS`, or illegal.
    """
    if isinstance(text, str):
        if _CALL.match(text):
            return _from_call(text)
        text = _ALIAS.sub("", text, count=1)
    attribute = parse_attribute(text)
    kind = ENCODINGS.get(attribute.mnemonic)
    if kind is None:
        rule = (
            _ELSEWHERE.get(attribute.mnemonic)
            or f"must be one of {', '.join('#' + each.NAME for each in ENCODINGS.values())}"
        )
        raise LayoutError("attribute", attribute.text, rule)
    return kind.from_attribute(attribute)


def _from_call(text: str) -> SharedEncoding:
    """The encoding of a Gluon layout in Python's text."""

    def wrong(rule: str) -> LayoutError:
        return LayoutError("layout", text.strip(), rule)

    try:
        call: Any = ast.parse(text.strip(), mode="eval").body
        name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id
        positional = [ast.literal_eval(each) for each in call.args]
        named = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, AttributeError, RecursionError, MemoryError):
        rule = "must be one call with literal arguments, such as NVMMASharedLayout(128, 16, rank=2)"
        raise wrong(rule) from None
    kinds = {kind.GLUON: kind for kind in _ARGUMENTS}
    if name not in kinds:
        raise wrong(f"must be one of {', '.join(kinds)}")
    expected = _ARGUMENTS[kinds[name]]
    given = dict(zip(expected, positional, strict=False)) | named
    if len(positional) > len(expected) or not set(named) <= set(expected):
        raise wrong(f"the arguments of {name} are {', '.join(expected)}")
    missing = [key for key, default in expected.items() if default is None and key not in given]
    if missing:
        raise wrong(f"{', '.join(missing)} must be given")
    return kinds[name].from_gluon(SimpleNamespace(**{**expected, **given}))
