"""What a kernel multiplies, and what comes out."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from triton_ext.kernels.element_types import (
    BLOCK_SCALED,
    C_BYTES,
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    BlockScaling,
    Major,
)


@dataclass(frozen=True)
class ProductSpec:
    """C (M, N) = A (M, K) @ B (K, N), of any size. `legality.check_product` says what is legal.

    Args:
        element_type: the type of A and B: "fp16" or "bf16", the accumulator is fp32; of specialized
            kernels also "e4m3" and "e5m2" (fp8; on sm_90 the tensor cores keep 13 fraction bits
            below the largest product when they add), "e4m3_e5m2" and "e5m2_e4m3" (A's and B's; on
            sm_90 with Triton 3.9), "tf32", and "int8" (the accumulator is int32); on sm_100
            those of `BLOCK_SCALED`, whose scales come as torch and cuBLAS store them.
        a_major, b_major: the contiguous dimension of the operand: "K" or "MN".
        out_type: the type of C: "fp16", "bf16", "fp32", "e4m3", "e5m2" (both saturated) or "int32"
            (from int8 alone); None for that of A and B where it has 16 bits, else fp32, or int32
            for int8.
        batched: A, B and C have a first dimension that counts the products; one of A and B may be
            shared by all.
        collective: the products of a batch are those of the ranks of a group
            (`kernels/device/peers.py`): "gather" or "scatter".
        fp32_accumulation: on sm_90, of fp8: the tensor cores, which keep 13 fraction bits, add up
            the products of each `block_k` (of 128 bytes at most) alone, and threads add these sums
            in fp32: torch's products without ``use_fast_accum``. Needs Triton 3.9.
        a_scale_rows, b_scale_rows: how many rows of A (columns of B) share an fp32 scale, which
            they have for each 128 elements along K: 1 or 128; 0 where there are none. Both operands
            have such or none, and each sum of 128 products is multiplied with both scales when it
            is added in fp32: on sm_90 with `fp32_accumulation`, on sm_100 from tensor memory.
        a_scale_major, b_scale_major: which dimension of these scales is contiguous.
        groups: the dimension that groups divide, "M", "N" or "K", each of which has a product of
            its own, made in one launch; where each group ends is read from memory. "rows" is "M"
            with as many rows of A and C for each group, of which some count. Then `batched`: A, B
            and C have a first dimension, of one or of the groups.
        gathered, scattered: with groups "M": row i of C is of the row of A that an index says, and
            is stored where one says, each read from memory.
        gated: B is a pair of matrices, gate and up, of each matrix of a batch, and C is
            activation(A @ gate) * (A @ up). Half of the columns of a tile of sums are those of
            either. Then `batched`; needs Triton 3.9.
        interleaved: of a gated product: gate and up are columns of one matrix in turn.
    """

    element_type: str
    a_major: Major = "K"
    b_major: Major = "K"
    out_type: str | None = None
    batched: bool = False
    collective: str | None = None
    fp32_accumulation: bool = False
    a_scale_rows: int = 0
    b_scale_rows: int = 0
    a_scale_major: Major = "MN"
    b_scale_major: Major = "K"
    groups: str | None = None
    gated: bool = False
    gathered: bool = False
    scattered: bool = False
    interleaved: bool = False

    @property
    def scale_rows(self) -> tuple[int, int]:
        """`a_scale_rows` and `b_scale_rows`."""
        return self.a_scale_rows, self.b_scale_rows

    @property
    def has_fp32_blocks(self) -> bool:
        """Whether each 128 elements of K have fp32 scales."""
        return self.a_scale_rows > 0

    @property
    def parts_of_b(self) -> int:
        """The number of matrices, one after the other, of which a tile of B has columns."""
        return 2 if self.gated and not self.interleaved else 1

    @functools.cached_property
    def element_bytes(self) -> int:
        """Bytes of an element of A and B."""
        return ELEMENT_BYTES[self.element_type]

    @property
    def scaling(self) -> BlockScaling | None:
        """How A and B are block-scaled, if they are."""
        return BLOCK_SCALED.get(self.element_type)

    def scales(self, block_k: int) -> int:
        """How many scales so many elements along K have."""
        return block_k * self.scaling.packed // self.scaling.length if self.scaling else 0

    @functools.cached_property
    def c_type(self) -> str:
        """The type of C's elements."""
        if self.out_type is not None:
            return self.out_type
        if self.element_type in ELEMENT_TYPES:
            return self.element_type
        return "int32" if self.element_type == "int8" else "fp32"

    @functools.cached_property
    def c_bytes(self) -> int:
        """Bytes of an element of C."""
        return C_BYTES[self.c_type]

    def majors(self, swap_ab: bool) -> tuple[Major, Major]:
        """The contiguous dimensions of the left and the right operand."""
        return (self.b_major, self.a_major) if swap_ab else (self.a_major, self.b_major)


def bias_type(product: ProductSpec) -> str:
    """The type of the bias: C's, but bf16 for a C of fp8."""
    return "bf16" if product.c_bytes == 1 else product.c_type
