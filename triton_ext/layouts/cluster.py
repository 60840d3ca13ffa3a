"""The shape of a tile, and how the blocks of a cluster share a tensor: common to all encodings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import integers, is_power_of_two, vectors
from triton_ext.layouts.attributes import Attribute
from triton_ext.layouts.linear_layout import Basis, LinearLayout

MAX_CLUSTER_BASES = 4
"""log2 of the largest cluster: 16 blocks (CUDA programming guide, "Thread Block Clusters")."""
SPLIT_KEYS = ("CTAsPerCGA", "CTASplitNum", "CTAOrder")
"""How Triton before 3.6 prints a CGA layout."""


def standard_out_dims(shape: Sequence[int]) -> dict[str, int]:
    """Triton's names of a tensor's dimensions, with their sizes: ``dim0``, ``dim1``, ..."""
    return {f"dim{i}": size for i, size in enumerate(shape)}


def checked_shape(shape: Any, rank: int) -> tuple[int, ...]:
    """`shape` as a tuple of `rank` powers of two, or LayoutError."""
    if shape is None:
        raise LayoutError("shape", shape, f"is needed, with {rank} dimensions")
    sizes = integers("shape", shape)
    if len(sizes) != rank:
        raise LayoutError("shape", sizes, f"must have {rank} dimensions, the encoding's rank")
    for i, size in enumerate(sizes):
        if not is_power_of_two(size):
            raise LayoutError(f"shape[{i}]", size, "must be a power of two, at least 1")
        if size.bit_length() > 31:
            raise LayoutError(f"shape[{i}]", size, "must be less than 2**31")
    return sizes


def checked_cga_layout(cga_layout: Any, rank: int) -> tuple[Basis, ...]:
    """The block bases of a cluster as tuples, or LayoutError.

    The rule is Triton's (``CGAEncodingAttr::verify``): without its zero (broadcast) bases, the
    layout is a permutation: each basis has one nonzero coordinate, and along each dimension these
    are 1, 2, 4, ..., each once.
    """
    bases = vectors("cga_layout", cga_layout)
    if len(bases) > MAX_CLUSTER_BASES:
        raise LayoutError("cga_layout", bases, "a cluster has at most 16 blocks: at most 4 bases")
    seen: list[list[int]] = [[] for _ in range(rank)]
    for basis in bases:
        if len(basis) != rank:
            rule = f"each basis must have {rank} coordinates (rank)"
            raise LayoutError("cga_layout", bases, rule)
        nonzero = [i for i, value in enumerate(basis) if value]
        if len(nonzero) > 1:
            rule = f"each basis must have at most one nonzero coordinate: {basis}"
            raise LayoutError("cga_layout", bases, rule)
        for i in nonzero:
            seen[i].append(basis[i])
    for i, values in enumerate(seen):
        if sorted(values) != [1 << bit for bit in range(len(values))]:
            rule = f"the bases along dim{i} must be 1, 2, 4, ..., each once, in any order"
            raise LayoutError("cga_layout", bases, rule)
    return bases


def bases_text(bases: Sequence[Basis]) -> str:
    """Bases as MLIR prints them: ``[[0, 1], [1, 0]]``."""
    return str([list(basis) for basis in bases])


def cluster_layout(cga_layout: Sequence[Basis], shape: Sequence[int]) -> LinearLayout:
    """How the blocks of a cluster share a tensor of `shape`: block -> which part, per dimension.

    A dimension smaller than its split is shared by the blocks that are left over: their bases
    become zero.
    """
    bases = [
        tuple(value if value < size else 0 for value, size in zip(basis, shape, strict=True))
        for basis in cga_layout
    ]
    return LinearLayout({"block": bases}, standard_out_dims(_parts(cga_layout, shape)))


def shape_per_cta(cga_layout: Sequence[Basis], shape: Sequence[int]) -> tuple[int, ...]:
    """The part of a tensor of `shape` that one block of the cluster holds."""
    split = _parts(cga_layout, shape)
    return tuple(size // parts for size, parts in zip(shape, split, strict=True))


def _parts(cga_layout: Sequence[Basis], shape: Sequence[int]) -> list[int]:
    """Into how many parts a cluster divides each dimension of a tensor of `shape`."""
    return [1 << sum(0 < basis[i] < size for basis in cga_layout) for i, size in enumerate(shape)]


def within_block(layout: LinearLayout) -> LinearLayout:
    """What one block of the cluster holds: the layout without its ``block`` dimension."""
    if "block" not in layout.in_dims:
        return layout
    bases = {name: vectors for name, vectors in layout.bases.items() if name != "block"}
    return LinearLayout(bases, list(layout.out_dims))


def block_bases(layout: LinearLayout) -> list[Basis]:
    """The bases of ``block`` that are not 0: in which parts the blocks of a cluster differ."""
    return [basis for basis in layout.bases.get("block", []) if any(basis)]


def memory_layout(offset_bases: Sequence[Basis], block_bases: Sequence[Basis]) -> LinearLayout:
    """The layout with these bases; a ``block`` dimension only if there are block bases."""
    bases = {"offset": offset_bases, "block": block_bases}
    names = list(standard_out_dims((*offset_bases, *block_bases)[0]))
    return LinearLayout(bases if block_bases else {"offset": offset_bases}, names)


def add_cluster(
    cta_layout: LinearLayout, cga_layout: Sequence[Basis], shape: Sequence[int]
) -> LinearLayout:
    """`cta_layout`, the layout within a block, extended by the blocks of a cluster.

    Without a cluster the result has no ``block`` dimension (Triton's has one of size 1).
    """
    if not cga_layout:
        return cta_layout
    return cta_layout * cluster_layout(cga_layout, shape)


def cga_from_attribute(attribute: Attribute) -> Any:
    """The CGA layout of an attribute, in either spelling.

    Triton 3.6 and later print the bases (``CGALayout = [[1, 0]]``). Earlier ones print how many
    blocks there are along each dimension, into how many parts they split it, and in which order
    (``CTAsPerCGA``, ``CTASplitNum``, ``CTAOrder``); blocks beyond the split broadcast.
    """
    parameters = attribute.parameters
    if not any(key in parameters for key in SPLIT_KEYS):
        return parameters.get("CGALayout", ())
    rule = f"{', '.join(SPLIT_KEYS)} must be three lists of one length, of powers of two"
    lists: list[list[int]] = [parameters.get(key, []) for key in SPLIT_KEYS]
    if "CGALayout" in parameters or not all(isinstance(value, list) for value in lists):
        raise LayoutError("attribute", attribute.text, rule + ", without CGALayout")
    blocks, split, order = lists
    if (
        len({len(value) for value in lists}) != 1
        or not all(map(is_power_of_two, blocks + split))
        or sorted(map(str, order)) != [str(dim) for dim in range(len(order))]
        or any(part > count for part, count in zip(split, blocks, strict=True))
    ):
        raise LayoutError("attribute", attribute.text, rule)
    bases = []
    for dim in order:
        for bit in range(blocks[dim].bit_length() - 1):
            value = 1 << bit if 1 << bit < split[dim] else 0
            bases.append([value if i == dim else 0 for i in range(len(order))])
    return bases
