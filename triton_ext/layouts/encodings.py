"""The shared-memory encodings that there are: the one registry that everything looks up.

Each is a class of its own module; commands, passes, dumps, pages and the emulator know an encoding
by what `SharedEncoding` promises, and by `ENCODINGS`.
"""

from __future__ import annotations

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


def parse_encoding(text: str) -> SharedEncoding:
    """Any shared encoding of NVIDIA GPUs, from its MLIR attribute. Raises LayoutError: not one of
    `ENCODINGS`, or illegal."""
    attribute = parse_attribute(text)
    kind = ENCODINGS.get(attribute.mnemonic)
    if kind is None:
        rule = (
            _ELSEWHERE.get(attribute.mnemonic)
            or f"must be one of {', '.join('#' + each.NAME for each in ENCODINGS.values())}"
        )
        raise LayoutError("attribute", attribute.text, rule)
    return kind.from_attribute(attribute)
