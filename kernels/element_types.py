"""The types of what a matmul kernel reads and writes, by the names of `ProductSpec`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Major = Literal["K", "MN"]
MAJORS: tuple[Major, Major] = ("K", "MN")
ELEMENT_TYPES = ("fp16", "bf16")
"""Types of operands that every kernel takes."""


@dataclass(frozen=True)
class BlockScaling:
    """How elements are stored of which so many along K share a scale (sm_100).

    Attributes:
        element: the type of an element.
        packed: how many a byte has.
        scale: the type of a scale, of one byte.
        length: how many elements have one.
    """

    element: str
    packed: int
    scale: str
    length: int


BLOCK_SCALED = {
    "mxfp8": BlockScaling("e4m3", 1, "ue8m0", 32),
    "mxfp8_e5m2": BlockScaling("e5m2", 1, "ue8m0", 32),
    "mxfp4": BlockScaling("e2m1", 2, "ue8m0", 32),
    "nvfp4": BlockScaling("e2m1", 2, "e4m3", 16),
}
"""(OCP Microscaling Formats 1.0, 5.2; PTX ISA, "Valid Tensor Shapes for scale_vec_size")"""
SCALE_BLOCK = (128, 4)
"""Rows and columns of a block of scales, whose 512 bytes are contiguous (cuBLAS, "1D Block Scaling
Factors Layout"); in tensor memory it takes 4 columns."""
FP32_SCALE_BLOCK = 128
"""Elements along K that share an fp32 scale, and rows where these share one, too (DeepSeek-V3
Technical Report, 3.3.2)."""
MIXED = {"e4m3_e5m2": ("e4m3", "e5m2"), "e5m2_e4m3": ("e5m2", "e4m3")}
"""A's type and B's, where they differ: those of gradients in fp8, by ``wgmma`` and ``tcgen05``'s
kind::f8f6f4."""
ELEMENT_BYTES = {
    "fp16": 2, "bf16": 2, "e4m3": 1, "e5m2": 1, "tf32": 4, "int8": 1,
    **dict.fromkeys(MIXED, 1), **dict.fromkeys(BLOCK_SCALED, 1),
}  # fmt: skip
"""The size of each type of operand that the kernel with consumers takes. tf32 is fp32 in memory, of
which the tensor cores read the upper 19 bits; only 16-bit operands may be MN-major (wgmma's rule).
Two elements of 4 bits count as one here, and wherever K is counted, as in torch.
"""
MMA_KINDS = {
    "fp16": "f16", "bf16": "f16", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "tf32": "tf32", "int8": "i8",
    **dict.fromkeys(MIXED, "f8f6f4"),
}  # fmt: skip
"""What ``tcgen05.mma`` calls the types of its operands without scales."""
C_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "int32": 4, "e4m3": 1, "e5m2": 1}


def operand_types(element_type: str) -> tuple[str, str]:
    """The types of A and B."""
    return MIXED.get(element_type, (element_type, element_type))
