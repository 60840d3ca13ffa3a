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


def parse_encoding(text: str) -> SharedEncoding:
    """Any shared encoding of NVIDIA GPUs, from its MLIR attribute.

    Raises:
        LayoutError: not one of `ENCODINGS`, or illegal.
    """
    attribute = parse_attribute(text)
    kind = ENCODINGS.get(attribute.mnemonic)
    if kind is None and attribute.mnemonic.startswith("tensor_memory"):
        rule = (
            "lays out tensor memory, not shared memory: see `triton-ext tmem`, and"
            " triton_ext.hardware.tensor_memory_encoding.parse_tensor_encoding"
        )
        raise LayoutError("attribute", attribute.text, rule)
    if kind is None:
        rule = f"must be one of {', '.join('#' + each.NAME for each in ENCODINGS.values())}"
        raise LayoutError("attribute", attribute.text, rule)
    return kind.from_attribute(attribute)
