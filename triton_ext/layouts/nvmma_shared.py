"""Triton's NVMMAShared encoding -> linear layout: where each element lies in shared memory.

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

from collections.abc import Sequence

from triton_ext.errors import LayoutError
from triton_ext.layouts.encodings import (
    CHUNK_BYTES,
    NVMMAShared,
    add_cluster,
    checked_shape,
    shape_per_cta,
    standard_out_dims,
)
from triton_ext.layouts.linear_layout import LinearLayout, powers_below

ATOM_ROWS = 8
"""Rows of a swizzle atom (PTX ISA, "Shared memory matrix layout"; seed 001, "Swizzle Atom")."""
TMA_BOX_LIMIT = 256
"""The largest extent of a TMA box along one dimension (``cuTensorMapEncodeTiled``, boxDim)."""

__all__ = ["core_matrix_linear_layout", "nvmma_shared_to_linear_layout", "tma_box_shape"]


def _check_encoding(encoding: NVMMAShared) -> None:
    if not isinstance(encoding, NVMMAShared):
        raise LayoutError("encoding", encoding, "must be an NVMMAShared")


def _pack_fp4(column: int) -> int:
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
    _check_encoding(encoding)
    columns = 8 * max(CHUNK_BYTES, encoding.swizzle_byte_width) // encoding.element_bitwidth
    pack = _pack_fp4 if encoding.fp4_padded else int
    bases = [(0, pack(column)) for column in powers_below(columns)]
    for row in powers_below(ATOM_ROWS):
        phase = 0 if disable_swizzle else row // encoding.per_phase % encoding.max_phase
        bases.append((row, pack(encoding.vec * phase)))
    width = columns // 2 if encoding.fp4_padded else columns
    return LinearLayout._trusted({"offset": tuple(bases)}, standard_out_dims((ATOM_ROWS, width)))


def tma_box_shape(per_cta: Sequence[int], encoding: NVMMAShared) -> tuple[int, ...]:
    """The shape of the TMA boxes that fill a tile of shape `per_cta`, in elements.

    At most 256 along each dimension; along the contiguous one exactly the swizzle width, if there
    is a swizzle. With fp4_padded the width is that of packed bytes.

    Raises:
        LayoutError: the contiguous dimension is smaller than the swizzle width.
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


def _unswizzled_box(box: Sequence[int], encoding: NVMMAShared) -> LinearLayout:
    """A box row by row; if transposed, with the first dimension moved to the end.

    Its output dimensions are in the order in which boxes are stacked: the last one first.
    """
    dims = list(standard_out_dims(box).items())
    rows = [*dims[1:], dims[0]] if encoding.transposed else dims
    layout = LinearLayout.empty()
    for name, size in reversed(rows):
        layout = layout * LinearLayout.identity_1d(size, "offset", name)
    return layout.transpose_outs([name for name, _ in reversed(dims)])


def _swizzled_box(box: Sequence[int], encoding: NVMMAShared, disable_swizzle: bool) -> LinearLayout:
    """A box as a stack of swizzle atoms, with the outer dimensions collapsed into rows.

    If transposed, Triton collapses all but the last dimension into the columns, and reads the
    result as the box with its first dimension moved to the end. For rank 2 this is the transpose.
    For higher ranks the rows of an atom are then elements of the last dimensions that lie
    ``shape[1]`` apart, which no TMA copy writes; all releases agree on it, so we do too.
    """
    outer = 1
    for size in box[:-1]:
        outer *= size
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
    _check_encoding(encoding)
    shape = checked_shape(shape, encoding.rank)
    per_cta = shape_per_cta(encoding.cga_layout, shape) if encoding.cga_layout else shape
    box = tma_box_shape(per_cta, encoding)
    if encoding.swizzle_byte_width:
        layout = _swizzled_box(box, encoding, disable_swizzle)
    else:
        layout = _unswizzled_box(box, encoding)
    whole = standard_out_dims(per_cta)
    for name, size in layout.out_dims.items():
        layout = _stack(layout, whole[name] // size, name)
    return add_cluster(layout.transpose_outs(list(whole)), encoding.cga_layout, shape)
