"""Triton's NVMMAShared encoding, and its linear layout: where each element lies in shared memory.

A reimplementation of ``getCoreMatrixLinearLayout`` and ``nvmmaSharedToLinearLayout``
(Triton, ``lib/Dialect/TritonGPU/IR/LinearLayoutConversions.cpp``; seed 001). A tile is built from
the inside out:

1. the *swizzle atom*: 8 rows of one swizzle width, in one piece (`core_matrix_linear_layout`);
2. the *TMA box*, what one TMA copy fills: atoms are stacked along the strided dimension first, up
   to 256 elements a dimension, and one swizzle width along the contiguous one;
3. the part of the tensor that a block holds: boxes stacked along the first dimension first;
4. the cluster: a ``block`` dimension.

Without a swizzle there is no atom: a box is stored row by row, and boxes are stacked along the
last dimension first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import flag, integers, one_of
from triton_ext.layouts.attributes import Attribute
from triton_ext.layouts.cluster import (
    SPLIT_KEYS,
    add_cluster,
    bases_text,
    cga_from_attribute,
    checked_cga_layout,
    checked_shape,
    shape_per_cta,
    standard_out_dims,
)
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import Basis, LinearLayout
from triton_ext.layouts.shared_encoding import SharedEncoding, checked_kind

SWIZZLE_BYTE_WIDTHS = (0, 32, 64, 128)
ELEMENT_BITWIDTHS = (8, 16, 32, 64)
MAX_RANK = 5
"""A TMA tensor map has at most 5 dimensions (PTX ISA, "Tensors")."""
CHUNK_BYTES = 16
"""What a swizzle moves as a whole: 16-byte atomicity (seed 003)."""
ATOM_ROWS = 8
"""Rows of a swizzle atom (PTX ISA, "Shared memory matrix layout"; seed 001, "Swizzle Atom")."""
TMA_BOX_LIMIT = 256
"""The largest extent of a TMA box along one dimension (``cuTensorMapEncodeTiled``, boxDim)."""


@dataclass(frozen=True)
class NVMMAShared(SharedEncoding):
    """Triton's ``#ttg.nvmma_shared``: the layouts that wgmma, tcgen05.mma and TMA read and write.

    Args:
        swizzle_byte_width: 0, 32, 64 or 128: the width of the swizzle atom in bytes.
        element_bitwidth: 8, 16, 32 or 64.
        transposed: the first dimension is the contiguous one, rather than the last.
        fp4_padded: two 4-bit elements a byte, each group of 8 bytes followed by 8 bytes of padding
            in shared memory (PTX ISA, "Packing format used for matrix A and B by
            .kind::mxf8f6f4"). 8-bit elements with the 128-byte swizzle only.
        rank: how many dimensions, 1 to 5; at least 2 with a swizzle.
        cga_layout: the bases of the ``block`` dimension: block 1, 2, 4, ... of the cluster holds
            the part of the tensor at this multiple of the block's own part. Zero is a broadcast.

    Raises:
        LayoutError: an argument is illegal; the message names it and what would be legal.
    """

    NAME: ClassVar[str] = "ttg.nvmma_shared"
    GLUON: ClassVar[str] = "NVMMASharedLayout"

    swizzle_byte_width: int
    element_bitwidth: int
    transposed: bool = False
    fp4_padded: bool = False
    rank: int = 2
    cga_layout: tuple[Basis, ...] = ()

    def __post_init__(self) -> None:
        one_of("swizzle_byte_width", self.swizzle_byte_width, SWIZZLE_BYTE_WIDTHS)
        one_of("element_bitwidth", self.element_bitwidth, ELEMENT_BITWIDTHS)
        flag("transposed", self.transposed)
        flag("fp4_padded", self.fp4_padded)
        one_of("rank", self.rank, range(1, MAX_RANK + 1))
        if self.swizzle_byte_width and self.rank < 2:
            raise LayoutError("rank", self.rank, "a swizzle needs at least 2 dimensions")
        if self.fp4_padded and self.swizzle_byte_width != 128:
            rule = "must be 128 with fp4_padded"
            raise LayoutError("swizzle_byte_width", self.swizzle_byte_width, rule)
        if self.fp4_padded and self.element_bitwidth != 8:
            rule = "must be 8 with fp4_padded"
            raise LayoutError("element_bitwidth", self.element_bitwidth, rule)
        object.__setattr__(self, "cga_layout", checked_cga_layout(self.cga_layout, self.rank))

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> NVMMAShared:
        """As `parse`, from an attribute that was read.

        ``transposed`` and ``fp4Padded`` default to false, ``rank`` to that of the CGA layout or
        to 2, as in Triton's own parser.
        """
        swizzle, bits = attribute.checked(
            cls.NAME,
            ("swizzlingByteWidth", "elementBitWidth"),
            ("transposed", "fp4Padded", "rank", "CGALayout", *SPLIT_KEYS),
        )
        parameters, cga_layout = attribute.parameters, cga_from_attribute(attribute)
        implied = 2
        if isinstance(cga_layout, list) and cga_layout and isinstance(cga_layout[0], list):
            implied = len(cga_layout[0])
        elif isinstance(parameters.get("CTAOrder"), list):
            implied = len(parameters["CTAOrder"])
        return cls(
            swizzle_byte_width=swizzle,
            element_bitwidth=bits,
            transposed=parameters.get("transposed", False),
            fp4_padded=parameters.get("fp4Padded", False),
            rank=parameters.get("rank", implied),
            cga_layout=cga_layout,
        )

    @classmethod
    def default_for(
        cls,
        shape: Sequence[int],
        element_bitwidth: int,
        transposed: bool = False,
        fp4_padded: bool = False,
        cga_layout: Sequence[Sequence[int]] = (),
    ) -> NVMMAShared:
        """The largest swizzle that fits a tile: Gluon's ``NVMMASharedLayout.get_default_for``.

        The widest atom whose row fits the contiguous dimension of what one block holds, provided
        that the other dimensions together have the 8 rows of an atom; otherwise none. Raises
        LayoutError: illegal arguments; among them `fp4_padded` where 128 bytes do not fit.
        """
        one_of("element_bitwidth", element_bitwidth, ELEMENT_BITWIDTHS)
        flag("transposed", transposed)
        flag("fp4_padded", fp4_padded)
        rank = len(integers("shape", shape))
        one_of("rank (length of shape)", rank, range(1, MAX_RANK + 1))
        bases = checked_cga_layout(cga_layout, rank)
        shape = checked_shape(shape, rank)
        for i, size in enumerate(shape):
            parts = max((2 * basis[i] for basis in bases), default=1)
            if size < parts:
                rule = f"must be at least {parts}, its parts in the CGA layout"
                raise LayoutError(f"shape[{i}]", size, rule)
        per_cta = shape_per_cta(bases, shape)
        contiguous = per_cta[0] if transposed else per_cta[-1]
        rows = math.prod(per_cta) // contiguous
        row_bytes = contiguous * (2 if fp4_padded else 1) * element_bitwidth // 8
        swizzle = 0
        if rank >= 2 and rows >= 8:
            swizzle = max(width for width in SWIZZLE_BYTE_WIDTHS if width <= row_bytes)
        return cls(swizzle, element_bitwidth, transposed, fp4_padded, rank, bases)

    @property
    def vec(self) -> int:
        """Elements in the 16-byte chunk that a swizzle moves as a whole; 1 without a swizzle."""
        return 8 * CHUNK_BYTES // self.element_bitwidth if self.swizzle_byte_width else 1

    @property
    def per_phase(self) -> int:
        """Consecutive rows that are swizzled alike: as many as share one 128-byte line."""
        return 128 // self.swizzle_byte_width if self.swizzle_byte_width else 1

    @property
    def max_phase(self) -> int:
        """How many different swizzles of a row there are: the chunks of an atom's row."""
        return max(1, self.swizzle_byte_width // CHUNK_BYTES)

    @property
    def alignment(self) -> int:
        """What the address of a tile must be a multiple of, in bytes: one atom of 8 rows."""
        return 128 * self.max_phase

    @property
    def contiguous_dim(self) -> int:
        """The index of the dimension whose elements lie side by side."""
        return 0 if self.transposed else self.rank - 1

    def to_linear_layout(self, shape: Sequence[int] | None) -> LinearLayout:
        """The linear layout of a tile: `nvmma_shared_to_linear_layout`."""
        return nvmma_shared_to_linear_layout(checked_shape(shape, self.rank), self)

    def stored_elements(self, shape: Sequence[int]) -> int:
        """How many elements of shared memory a tile takes in one block, padding included."""
        return math.prod(shape_per_cta(self.cga_layout, shape)) * (2 if self.fp4_padded else 1)

    def __str__(self) -> str:
        """The MLIR attribute, as Triton 3.7 to 3.9 print it."""
        text = (
            f"swizzlingByteWidth = {self.swizzle_byte_width},"
            f" transposed = {str(self.transposed).lower()},"
            f" elementBitWidth = {self.element_bitwidth}"
        )
        if self.fp4_padded:
            text += ", fp4Padded = true"
        if self.cga_layout:
            text += f", CGALayout = {bases_text(self.cga_layout)}"
        elif self.rank != 2:
            text += f", rank = {self.rank}"
        return f"#ttg.nvmma_shared<{{{text}}}>"


def pack_fp4(column: int) -> int:
    """The packed column of a padded one: each 16 bytes hold 8 of data, then 8 of padding."""
    return column // 16 * 8 + column % 8


def core_matrix_linear_layout(encoding: NVMMAShared, disable_swizzle: bool = False) -> LinearLayout:
    """The layout of one swizzle atom: ``offset`` -> (``dim0``: row, ``dim1``: column).

    Args:
        encoding: its `transposed` is not looked at: rows are the strided dimension.
        disable_swizzle: leave the 16-byte chunks of a row where they are, as TMA with no
            swizzle would.

    Returns:
        8 rows of max(16, swizzle_byte_width) bytes, offsets and columns in elements. With
        fp4_padded the columns are packed bytes, half of what an atom's row holds, and each
        padding offset has the coordinates of an offset of data.

    Source: Triton's ``getCoreMatrixLinearLayout``; seed 001 ("Triton") prints the 128-byte atom
    of 16-bit elements.
    """
    checked_kind("encoding", encoding, NVMMAShared)
    flag("disable_swizzle", disable_swizzle)
    columns = 8 * max(CHUNK_BYTES, encoding.swizzle_byte_width) // encoding.element_bitwidth
    pack = pack_fp4 if encoding.fp4_padded else int
    bases = [(0, pack(column)) for column in powers_below(columns)]
    for row in powers_below(ATOM_ROWS):
        phase = 0 if disable_swizzle else row // encoding.per_phase % encoding.max_phase
        bases.append((row, pack(encoding.vec * phase)))
    width = columns // 2 if encoding.fp4_padded else columns
    return LinearLayout._trusted({"offset": tuple(bases)}, standard_out_dims((ATOM_ROWS, width)))


def tma_box_shape(per_cta: Sequence[int], encoding: NVMMAShared) -> tuple[int, ...]:
    """The shape of the TMA boxes that fill a tile of shape `per_cta`, in elements.

    At most 256 along each dimension; along the contiguous one exactly the swizzle width, if there
    is a swizzle. With fp4_padded the width is that of packed bytes. Raises LayoutError: the
    contiguous dimension is smaller than the swizzle width.
    """
    box = [min(size, TMA_BOX_LIMIT) for size in per_cta]
    if encoding.swizzle_byte_width:
        packing = 2 if encoding.fp4_padded else 1
        width = 8 * encoding.swizzle_byte_width // encoding.element_bitwidth // packing
        contiguous = encoding.contiguous_dim
        if per_cta[contiguous] < width:
            raise LayoutError(
                f"shape[{contiguous}]",
                per_cta[contiguous],
                f"a block must hold at least {width} elements along the contiguous dimension, one"
                f" row of the {encoding.swizzle_byte_width}-byte swizzle atom;"
                " enlarge the shape or narrow the swizzle",
            )
        box[contiguous] = width
    return tuple(box)


def _stack(layout: LinearLayout, count: int, out_dim: str) -> LinearLayout:
    """`count` copies of a layout behind each other in memory, side by side along `out_dim`."""
    if count == 1:
        return layout
    return layout * LinearLayout.identity_1d(count, "offset", out_dim)


def unswizzled_box(box: Sequence[int], encoding: NVMMAShared) -> LinearLayout:
    """A box row by row; if transposed, with the first dimension moved to the end.

    Its output dimensions are in the order in which boxes are stacked: the last one first.
    """
    dims = list(standard_out_dims(box).items())
    rows = [*dims[1:], dims[0]] if encoding.transposed else dims
    layout = LinearLayout.box("offset", dict(reversed(rows)))
    return layout.transpose_outs([name for name, _ in reversed(dims)])


def swizzled_box(box: Sequence[int], encoding: NVMMAShared, disable_swizzle: bool) -> LinearLayout:
    """A box as a stack of swizzle atoms, with the outer dimensions collapsed into rows.

    If transposed, Triton collapses all but the last dimension into the columns, and reads the
    result as the box with its first dimension moved to the end. For rank 2 this is the transpose.
    For higher ranks the rows of an atom are then elements of the last dimensions that lie
    ``shape[1]`` apart, which no TMA copy writes; all releases agree on it, so we do too.
    """
    outer = math.prod(box[:-1])
    rows, columns = (box[-1], outer) if encoding.transposed else (outer, box[-1])
    if rows < ATOM_ROWS:
        raise LayoutError(
            f"shape[{len(box) - 1}]" if encoding.transposed else "product of shape[:-1]",
            rows,
            f"a TMA box must have at least the {ATOM_ROWS} rows of a swizzle atom;"
            " enlarge the shape or use swizzle_byte_width = 0",
        )
    atom = core_matrix_linear_layout(encoding, disable_swizzle)
    atom_columns = atom.out_dims["dim1"]
    layout = _stack(atom, rows // ATOM_ROWS, "dim0")
    layout = _stack(layout, columns // atom_columns, "dim1")
    dims = list(standard_out_dims(box).items())
    if encoding.transposed:
        dims = [*dims[1:], dims[0]]
    # reshape_outs counts the first dimension as the lowest; a row-major reading, the last.
    layout = layout.transpose_outs(["dim1", "dim0"]).reshape_outs(dict(reversed(dims)))
    return layout.transpose_outs(list(standard_out_dims(box)))


def nvmma_shared_to_linear_layout(
    shape: Sequence[int], encoding: NVMMAShared, disable_swizzle: bool = False
) -> LinearLayout:
    """The layout of a whole tile: ``offset`` (and ``block``) -> ``dim0``, ``dim1``, ...

    Args:
        shape: the shape of the tensor, over all blocks of the cluster: powers of two. With
            fp4_padded, the contiguous dimension counts packed bytes.
        encoding: the encoding.
        disable_swizzle: as in `core_matrix_linear_layout`.

    Returns:
        The input dimension ``offset`` counts elements (not bytes) from the start of the tile in a
        block's shared memory; ``block`` is there only if the encoding has a CGA layout.

    Raises:
        LayoutError: a shape that is not of the encoding's rank, not of powers of two, or smaller
            than a swizzle atom.

    Source: Triton's ``nvmmaSharedToLinearLayout``; seed 001 ("Triton always distributes the Atoms
    along strided dim first up to a TMA block").
    """
    checked_kind("encoding", encoding, NVMMAShared)
    flag("disable_swizzle", disable_swizzle)
    shape = checked_shape(shape, encoding.rank)
    per_cta = shape_per_cta(encoding.cga_layout, shape) if encoding.cga_layout else shape
    box = tma_box_shape(per_cta, encoding)
    if encoding.swizzle_byte_width:
        layout = swizzled_box(box, encoding, disable_swizzle)
    else:
        layout = unswizzled_box(box, encoding)
    whole = standard_out_dims(per_cta)
    for name, size in layout.out_dims.items():
        layout = _stack(layout, whole[name] // size, name)
    return add_cluster(layout.transpose_outs(list(whole)), encoding.cga_layout, shape)
