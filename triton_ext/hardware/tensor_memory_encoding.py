"""Triton's encodings of tensor memory as values: parsed, printed, and made layouts.

`TENSOR_ENCODINGS` is the registry of them, as `triton_ext.layouts.encodings.ENCODINGS` is of those
of shared memory. Their layouts have ``lane``, ``slot`` and ``column``, and depend on the width of
an element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory import (
    COLUMN_BITS,
    TMEM_COLUMNS,
    TMEM_ELEMENT_BITWIDTHS,
    data_path_layout,
    stack_instructions,
)
from triton_ext.hardware.tensor_memory_scales import SCALE_BITS, scale_factor_layout
from triton_ext.layouts.arguments import flag, is_power_of_two, one_of
from triton_ext.layouts.attributes import Attribute, parse_attribute
from triton_ext.layouts.cluster import (
    add_cluster,
    bases_text,
    checked_cga_layout,
    checked_shape,
    shape_per_cta,
    standard_out_dims,
)
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import Basis, LinearLayout

_REQUIRED = ("blockM", "blockN", "colStride")
_OPTIONAL = ("CGALayout", "CTASplitM", "CTASplitN", "twoCTAs", "fp4Padded")


@dataclass(frozen=True)
class TensorMemoryEncoding(Displayed):
    """How Triton lays a tensor out in TMEM.

    Args:
        block_m, block_n: one instruction's part in one CTA: 64 or 128 rows, columns.
        col_stride: how many elements apart neighbours in a row lie: 1 packed, 2 for unpacked
            16-bit elements.
        cga_layout: the bases of the cluster's blocks, as in `NVMMAShared`.
        two_ctas: cta_group::2; the first basis of `cga_layout` is then (1, 0).
        fp4_padded: a byte of two fp4 elements is followed by a byte of padding (Triton 3.8 on).

    Raises:
        LayoutError: what ``TensorMemoryEncodingAttr::verify`` refuses.
    """

    NAME: ClassVar[str] = "ttng.tensor_memory_encoding"

    block_m: int
    block_n: int
    col_stride: int = 1
    cga_layout: tuple[Basis, ...] = ()
    two_ctas: bool = False
    fp4_padded: bool = False

    def __post_init__(self) -> None:
        one_of("block_m", self.block_m, (64, 128))
        if not is_power_of_two(self.block_n) or self.block_n > TMEM_COLUMNS:
            raise LayoutError("block_n", self.block_n, f"must be a power of two to {TMEM_COLUMNS}")
        one_of("col_stride", self.col_stride, (1, 2, 4))
        flag("two_ctas", self.two_ctas)
        flag("fp4_padded", self.fp4_padded)
        if self.fp4_padded and self.col_stride != 1:
            raise LayoutError("col_stride", self.col_stride, "must be 1 with fp4_padded")
        cga_layout = checked_cga_layout(self.cga_layout, 2)
        object.__setattr__(self, "cga_layout", cga_layout)
        if self.two_ctas and cga_layout[:1] != ((1, 0),):
            raise LayoutError("cga_layout", cga_layout, "must start with (1, 0) for two CTAs")

    @classmethod
    def parse(cls, text: str) -> TensorMemoryEncoding:
        """From the MLIR attribute, as Triton 3.8 and 3.9 print it, or 3.7.

        Triton 3.7 prints into how many parts the blocks split each dimension (``CTASplitM``,
        ``CTASplitN``); the blocks are then counted along dim0 first. Raises LayoutError: not such
        an attribute, or an illegal one.
        """
        return cls.from_attribute(parse_attribute(text))

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> TensorMemoryEncoding:
        """As `parse`, from an attribute that was read."""
        block_m, block_n, col_stride = attribute.checked(cls.NAME, _REQUIRED, _OPTIONAL)
        parameters = attribute.parameters
        cga_layout = parameters.get("CGALayout", [])
        splits = [parameters.get(key, 1) for key in ("CTASplitM", "CTASplitN")]
        if splits != [1, 1]:
            if cga_layout or not all(map(is_power_of_two, splits)):
                rule = "CTASplitM and CTASplitN are powers of two, no CGALayout"
                raise LayoutError("attribute", attribute.text, rule)
            cga_layout = [(part, 0) for part in powers_below(splits[0])]
            cga_layout += [(0, part) for part in powers_below(splits[1])]
        return cls(
            block_m,
            block_n,
            col_stride,
            cga_layout,
            parameters.get("twoCTAs", False),
            parameters.get("fp4Padded", False),
        )

    def __str__(self) -> str:
        """The MLIR attribute, as Triton 3.8 and 3.9 print it."""
        text = f"blockM = {self.block_m}, blockN = {self.block_n}, colStride = {self.col_stride}"
        if self.cga_layout:
            text += f", CGALayout = {bases_text(self.cga_layout)}"
        if self.two_ctas:
            text += ", twoCTAs = true"
        if self.fp4_padded:
            text += ", fp4Padded = true"
        return f"#{self.NAME}<{text}>"

    def to_linear_layout(
        self, shape: Sequence[int], element_bitwidth: int | None = None
    ) -> LinearLayout:
        """Where each element of a tensor of `shape` lies.

        Args:
            element_bitwidth: bits of an element; None for the widest that `col_stride` allows.

        Returns:
            ``lane``, ``slot``, ``column`` (and ``block`` with a cluster) -> ``dim0``, ``dim1``.
            Triton's ``row`` is ``lane``; its ``col`` is ``slot`` and ``column`` in one.

        Raises:
            LayoutError: a shape that blocks of this size do not fill, or no room in TMEM.

        Source: Triton, ``tensorMemoryToLinearLayout`` (``LinearLayoutConversions.cpp``).
        """
        shape = checked_shape(shape, 2)
        if element_bitwidth is None:
            element_bitwidth = COLUMN_BITS // self.col_stride
        one_of("element_bitwidth", element_bitwidth, TMEM_ELEMENT_BITWIDTHS)
        if element_bitwidth * self.col_stride > COLUMN_BITS:
            rule = f"times the {element_bitwidth} bits of an element must be at most {COLUMN_BITS}"
            raise LayoutError("col_stride", self.col_stride, rule)
        rows, columns = shape_per_cta(self.cga_layout, shape)
        block_n = min(self.block_n, columns)
        cta_group = 2 if self.two_ctas else 1
        path = data_path_layout(self.block_m * cta_group, cta_group)
        if rows < self.block_m:
            rule = f"each CTA must hold {self.block_m} rows; it has {rows}"
            raise LayoutError("shape[0]", shape[0], rule)
        if block_n < path.column_parts:
            raise LayoutError("shape[1]", shape[1], "two CTAs of 64 rows need 2 columns or more")
        stride = self.col_stride * (2 if self.fp4_padded else 1)
        cells = [(0, 0) for _ in powers_below(stride)]
        cells += [(0, column) for column in powers_below(block_n // path.column_parts)]
        layout = stack_instructions(
            path.lane_bases(block_n),
            cells,
            (self.block_m, block_n),
            (rows, columns),
            element_bitwidth,
        )
        layout = add_cluster(layout, self.cga_layout, shape)
        return layout.transpose_outs(list(standard_out_dims(shape)))


@dataclass(frozen=True)
class TensorMemoryScales:
    """How Triton lays the scale factors of a block-scaled product out in TMEM."""

    NAME: ClassVar[str] = "ttng.tensor_memory_scales_encoding"

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> TensorMemoryScales:
        """From the MLIR attribute, which has no parameters. Raises LayoutError."""
        attribute.checked(cls.NAME, (), ())
        return cls()

    def __str__(self) -> str:
        """The MLIR attribute, as Triton prints it."""
        return f"#{self.NAME}<>"

    def to_linear_layout(
        self, shape: Sequence[int], element_bitwidth: int = SCALE_BITS
    ) -> LinearLayout:
        """`scale_factor_layout`, of rows and the factors of each. Raises LayoutError: another
        shape, or a width other than 8 bits."""
        if element_bitwidth != SCALE_BITS:
            rule = f"scale factors have {SCALE_BITS} bits"
            raise LayoutError("element_bitwidth", element_bitwidth, rule)
        return scale_factor_layout(shape)


TensorEncoding = TensorMemoryEncoding | TensorMemoryScales

TENSOR_ENCODINGS: dict[str, type[TensorMemoryEncoding] | type[TensorMemoryScales]] = {
    kind.NAME.partition(".")[2]: kind for kind in (TensorMemoryEncoding, TensorMemoryScales)
}
"""The encodings by their mnemonics: ``tensor_memory_encoding``."""


def parse_tensor_encoding(text: str) -> TensorEncoding:
    """Any encoding of tensor memory, from its MLIR attribute. Raises LayoutError: not one of
    `TENSOR_ENCODINGS`, or illegal."""
    attribute = parse_attribute(text)
    kind = TENSOR_ENCODINGS.get(attribute.mnemonic)
    if kind is None:
        rule = f"must be one of {', '.join('#' + each.NAME for each in TENSOR_ENCODINGS.values())}"
        raise LayoutError("attribute", attribute.text, rule)
    return kind.from_attribute(attribute)
