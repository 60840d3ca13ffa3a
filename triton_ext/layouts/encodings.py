"""Shared-memory encodings as values: parsed from, and printed as, Triton's MLIR attributes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.layouts.linear_layout import Basis, LinearLayout, is_power_of_two
from triton_ext.mlir.attributes import Attribute, parse_attribute

SWIZZLE_BYTE_WIDTHS = (0, 32, 64, 128)
ELEMENT_BITWIDTHS = (8, 16, 32, 64)
MAX_RANK = 5
"""A TMA tensor map has at most 5 dimensions (PTX ISA, "Tensors")."""
MAX_CLUSTER_BASES = 4
"""log2 of the largest cluster: 16 blocks (CUDA programming guide, "Thread Block Clusters")."""
CHUNK_BYTES = 16
"""What a swizzle moves as a whole: 16-byte atomicity (seed 003)."""


def standard_out_dims(shape: Sequence[int]) -> dict[str, int]:
    """Triton's names of a tensor's dimensions, with their sizes: ``dim0``, ``dim1``, ..."""
    return {f"dim{i}": size for i, size in enumerate(shape)}


def checked_shape(shape: Any, rank: int) -> tuple[int, ...]:
    """`shape` as a tuple of `rank` powers of two, or LayoutError."""
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise LayoutError("shape", shape, "must be a sequence of integers") from None
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
    try:
        bases = tuple(tuple(operator.index(value) for value in basis) for basis in cga_layout)
    except TypeError:
        raise LayoutError(
            "cga_layout", cga_layout, "must be a sequence of integer vectors, such as [[1, 0]]"
        ) from None
    if len(bases) > MAX_CLUSTER_BASES:
        raise LayoutError("cga_layout", bases, "a cluster has at most 16 blocks: at most 4 bases")
    seen: list[list[int]] = [[] for _ in range(rank)]
    for basis in bases:
        if len(basis) != rank:
            raise LayoutError(
                "cga_layout", bases, f"each basis must have {rank} coordinates (rank)"
            )
        nonzero = [i for i, value in enumerate(basis) if value]
        if len(nonzero) > 1:
            raise LayoutError(
                "cga_layout", bases, f"each basis must have at most one nonzero coordinate: {basis}"
            )
        for i in nonzero:
            seen[i].append(basis[i])
    for i, values in enumerate(seen):
        if sorted(values) != [1 << bit for bit in range(len(values))]:
            raise LayoutError(
                "cga_layout",
                bases,
                f"the bases along dim{i} must be 1, 2, 4, ..., each once, in any order",
            )
    return bases


def cluster_layout(cga_layout: Sequence[Basis], shape: Sequence[int]) -> LinearLayout:
    """How the blocks of a cluster share a tensor of `shape`: block -> which part, per dimension.

    A dimension smaller than its split is shared by the blocks that are left over: their bases
    become zero.
    """
    bases = [
        tuple(value if value < size else 0 for value, size in zip(basis, shape, strict=True))
        for basis in cga_layout
    ]
    sizes = [1 << sum(1 for basis in bases if basis[i]) for i in range(len(shape))]
    return LinearLayout({"block": bases}, standard_out_dims(sizes))


def shape_per_cta(cga_layout: Sequence[Basis], shape: Sequence[int]) -> tuple[int, ...]:
    """The part of a tensor of `shape` that one block of the cluster holds."""
    split = cluster_layout(cga_layout, shape).out_dims.values()
    return tuple(size // parts for size, parts in zip(shape, split, strict=True))


def add_cluster(
    cta_layout: LinearLayout, cga_layout: Sequence[Basis], shape: Sequence[int]
) -> LinearLayout:
    """`cta_layout`, the layout within a block, extended by the blocks of a cluster.

    Without a cluster the result has no ``block`` dimension (Triton's has one of size 1).
    """
    if not cga_layout:
        return cta_layout
    return cta_layout * cluster_layout(cga_layout, shape)


def _bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise LayoutError(name, value, "must be True or False")


def _one_of(name: str, value: Any, legal: Sequence[int]) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value not in legal:
        raise LayoutError(name, value, f"must be one of {', '.join(map(str, legal))}")


def _known_keys(attribute: Attribute, mnemonic: str, keys: Sequence[str]) -> Mapping[str, Any]:
    if attribute.name.split(".")[-1] != mnemonic:
        raise LayoutError("attribute", attribute.text, f"must be a #ttg.{mnemonic}<...>")
    for key in attribute.parameters:
        if key not in keys:
            raise LayoutError(
                "attribute", attribute.text, f"unknown key {key!r}; legal: {list(keys)}"
            )
    return attribute.parameters


def _required(attribute: Attribute, keys: Sequence[str]) -> None:
    for key in keys:
        if key not in attribute.parameters:
            raise LayoutError("attribute", attribute.text, f"the key {key!r} is missing")


_SPLIT_KEYS = ("CTAsPerCGA", "CTASplitNum", "CTAOrder")


def cga_from_attribute(attribute: Attribute) -> Any:
    """The CGA layout of an attribute, in either spelling.

    Triton 3.6 and later print the bases (``CGALayout = [[1, 0]]``). Earlier ones print how many
    blocks there are along each dimension, into how many parts they split it, and in which order
    (``CTAsPerCGA``, ``CTASplitNum``, ``CTAOrder``); blocks beyond the split broadcast.
    """
    parameters = attribute.parameters
    if not any(key in parameters for key in _SPLIT_KEYS):
        return parameters.get("CGALayout", ())
    rule = f"{', '.join(_SPLIT_KEYS)} must be three lists of one length, of powers of two"
    lists: list[list[int]] = [parameters.get(key, []) for key in _SPLIT_KEYS]
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


def _vectors(bases: Sequence[Basis]) -> str:
    return str([list(basis) for basis in bases])


@dataclass(frozen=True)
class NVMMAShared:
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

    swizzle_byte_width: int
    element_bitwidth: int
    transposed: bool = False
    fp4_padded: bool = False
    rank: int = 2
    cga_layout: tuple[Basis, ...] = ()

    def __post_init__(self) -> None:
        _one_of("swizzle_byte_width", self.swizzle_byte_width, SWIZZLE_BYTE_WIDTHS)
        _one_of("element_bitwidth", self.element_bitwidth, ELEMENT_BITWIDTHS)
        _bool("transposed", self.transposed)
        _bool("fp4_padded", self.fp4_padded)
        _one_of("rank", self.rank, range(1, MAX_RANK + 1))
        if self.swizzle_byte_width and self.rank < 2:
            raise LayoutError("rank", self.rank, "a swizzle needs at least 2 dimensions")
        if self.fp4_padded and self.swizzle_byte_width != 128:
            raise LayoutError(
                "swizzle_byte_width", self.swizzle_byte_width, "must be 128 with fp4_padded"
            )
        if self.fp4_padded and self.element_bitwidth != 8:
            raise LayoutError(
                "element_bitwidth", self.element_bitwidth, "must be 8 with fp4_padded"
            )
        object.__setattr__(self, "cga_layout", checked_cga_layout(self.cga_layout, self.rank))

    @classmethod
    def parse(cls, text: str) -> NVMMAShared:
        """From an MLIR attribute, in any spelling that Triton prints.

        ``transposed`` and ``fp4Padded`` default to false, ``rank`` to that of the CGA layout or
        to 2, as in Triton's own parser.

        Raises:
            LayoutError: not such an attribute, or an illegal one.
        """
        return cls._from_attribute(parse_attribute(text))

    @classmethod
    def _from_attribute(cls, attribute: Attribute) -> NVMMAShared:
        parameters = _known_keys(
            attribute,
            "nvmma_shared",
            (
                "swizzlingByteWidth",
                "transposed",
                "elementBitWidth",
                "fp4Padded",
                "rank",
                "CGALayout",
                *_SPLIT_KEYS,
            ),
        )
        _required(attribute, ("swizzlingByteWidth", "elementBitWidth"))
        cga_layout = cga_from_attribute(attribute)
        implied = 2
        if isinstance(cga_layout, list) and cga_layout and isinstance(cga_layout[0], list):
            implied = len(cga_layout[0])
        elif isinstance(parameters.get("CTAOrder"), list):
            implied = len(parameters["CTAOrder"])
        return cls(
            swizzle_byte_width=parameters["swizzlingByteWidth"],
            element_bitwidth=parameters["elementBitWidth"],
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
        that the other dimensions together have the 8 rows of an atom; otherwise none.

        Raises:
            LayoutError: illegal arguments; among them `fp4_padded` where 128 bytes do not fit.
        """
        _one_of("element_bitwidth", element_bitwidth, ELEMENT_BITWIDTHS)
        _bool("transposed", transposed)
        _bool("fp4_padded", fp4_padded)
        try:
            rank = len(shape)
        except TypeError:
            raise LayoutError("shape", shape, "must be a sequence of integers") from None
        _one_of("rank (length of shape)", rank, range(1, MAX_RANK + 1))
        bases = checked_cga_layout(cga_layout, rank)
        shape = checked_shape(shape, rank)
        for i, size in enumerate(shape):
            parts = max((2 * basis[i] for basis in bases), default=1)
            if size < parts:
                raise LayoutError(
                    f"shape[{i}]", size, f"must be at least {parts}, its parts in the CGA layout"
                )
        per_cta = shape_per_cta(bases, shape)
        contiguous = per_cta[0] if transposed else per_cta[-1]
        rows = 1
        for size in per_cta:
            rows *= size
        rows //= contiguous
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
            text += f", CGALayout = {_vectors(self.cga_layout)}"
        elif self.rank != 2:
            text += f", rank = {self.rank}"
        return f"#ttg.nvmma_shared<{{{text}}}>"


@dataclass(frozen=True)
class SwizzledShared:
    """Triton's ``#ttg.swizzled_shared``: rows whose chunks of `vec` elements are XORed by a phase.

    Args:
        vec: elements that move together, a power of two.
        per_phase: consecutive rows with the same phase, a power of two.
        max_phase: how many phases there are, a power of two.
        order: the dimensions from the fastest to the slowest.
        cga_layout: as in `NVMMAShared`.
    """

    vec: int
    per_phase: int
    max_phase: int
    order: tuple[int, ...]
    cga_layout: tuple[Basis, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vec", "per_phase", "max_phase"):
            if not is_power_of_two(getattr(self, name)):
                raise LayoutError(name, getattr(self, name), "must be a power of two, at least 1")
        try:
            order = tuple(operator.index(dim) for dim in self.order)
        except TypeError:
            order = ()
        if not order or sorted(order) != list(range(len(order))):
            raise LayoutError("order", self.order, "must be a permutation of 0, 1, ..., rank - 1")
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "cga_layout", checked_cga_layout(self.cga_layout, len(order)))

    @classmethod
    def parse(cls, text: str) -> SwizzledShared:
        """From an MLIR attribute. Raises LayoutError."""
        return cls._from_attribute(parse_attribute(text))

    @classmethod
    def _from_attribute(cls, attribute: Attribute) -> SwizzledShared:
        own = ("vec", "perPhase", "maxPhase", "order")
        parameters = _known_keys(attribute, "swizzled_shared", (*own, "CGALayout", *_SPLIT_KEYS))
        _required(attribute, own)
        cga_layout = cga_from_attribute(attribute)
        vec, per_phase, max_phase, order = (parameters[key] for key in own)
        return cls(vec, per_phase, max_phase, order, cga_layout)

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len(self.order)

    def to_linear_layout(self, shape: Sequence[int]) -> LinearLayout:
        """The linear layout of a tile of `shape`: ``offset`` (elements) -> coordinates.

        Column c of row r lies in chunk ``(c / vec) ^ (r / per_phase % max_phase)`` of its row.

        Raises:
            LayoutError: not a shape of powers of two of this rank.
        """
        shape = checked_shape(shape, self.rank)
        per_cta = shape_per_cta(self.cga_layout, shape)
        names = [f"dim{dim}" for dim in self.order]
        sizes = [per_cta[dim] for dim in self.order]
        layout = LinearLayout.identity_1d(sizes[0], "offset", names[0])
        if self.rank > 1:
            bases = [(column, 0) for (column,) in layout.bases["offset"]]
            row = 1
            while row < sizes[1]:
                phase = row // self.per_phase % self.max_phase
                bases.append((self.vec * phase % sizes[0], row))
                row *= 2
            layout = LinearLayout({"offset": bases}, dict(zip(names[:2], sizes[:2], strict=True)))
        for name, size in zip(names[2:], sizes[2:], strict=True):
            layout = layout * LinearLayout.identity_1d(size, "offset", name)
        layout = layout.transpose_outs(list(standard_out_dims(shape)))
        return add_cluster(layout, self.cga_layout, shape)

    def __str__(self) -> str:
        """The MLIR attribute, as Triton prints it."""
        text = (
            f"vec = {self.vec}, perPhase = {self.per_phase}, maxPhase = {self.max_phase},"
            f" order = {list(self.order)}"
        )
        if self.cga_layout:
            text += f", CGALayout = {_vectors(self.cga_layout)}"
        return f"#ttg.swizzled_shared<{{{text}}}>"


@dataclass(frozen=True)
class SharedLinear:
    """Triton's ``#ttg.shared_linear``: a shared-memory layout given by its bases.

    Args:
        offset_bases: the coordinates of the elements at offset 1, 2, 4, ... (in elements).
        block_bases: the coordinates of the first element of block 1, 2, 4, ... of the cluster.
        alignment: what the address must be a multiple of, in bytes.

    Raises:
        LayoutError: no bases, vectors of different lengths, a negative coordinate, a layout that
            misses some coordinates, or an alignment that is no power of two.
    """

    offset_bases: tuple[Basis, ...]
    block_bases: tuple[Basis, ...] = ()
    alignment: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        vectors: list[Basis] = []
        for name in ("offset_bases", "block_bases"):
            try:
                bases = tuple(tuple(operator.index(v) for v in b) for b in getattr(self, name))
            except TypeError:
                raise LayoutError(
                    name, getattr(self, name), "must be a sequence of integer vectors"
                ) from None
            object.__setattr__(self, name, bases)
            vectors += bases
        if not vectors or not vectors[0]:
            raise LayoutError("offset_bases", self.offset_bases, "there must be at least one basis")
        if not is_power_of_two(self.alignment):
            raise LayoutError("alignment", self.alignment, "must be a power of two, in bytes")
        if any(len(vector) != len(vectors[0]) for vector in vectors):
            raise LayoutError(
                "offset_bases", tuple(vectors), "all bases must have the same number of coordinates"
            )
        if not self.to_linear_layout().is_surjective():
            raise LayoutError("offset_bases", tuple(vectors), "must reach every coordinate")

    @classmethod
    def from_linear_layout(cls, layout: LinearLayout, alignment: int = CHUNK_BYTES) -> SharedLinear:
        """From a layout with the input dimensions ``offset`` and, with a cluster, ``block``."""
        bases = layout.bases
        if not set(bases) <= {"offset", "block"}:
            raise LayoutError("layout", list(bases), "input dims must be 'offset' and 'block'")
        return cls(tuple(bases.get("offset", ())), tuple(bases.get("block", ())), alignment)

    @classmethod
    def parse(cls, text: str) -> SharedLinear:
        """From an MLIR attribute. Raises LayoutError."""
        return cls._from_attribute(parse_attribute(text))

    @classmethod
    def _from_attribute(cls, attribute: Attribute) -> SharedLinear:
        parameters = _known_keys(attribute, "shared_linear", ("offset", "block", "alignment"))
        _required(attribute, ("offset", "alignment"))
        return cls(parameters["offset"], parameters.get("block", ()), parameters["alignment"])

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len((self.offset_bases + self.block_bases)[0])

    def to_linear_layout(self) -> LinearLayout:
        """The layout itself; a ``block`` dimension only if there are block bases."""
        bases = {"offset": self.offset_bases}
        if self.block_bases:
            bases["block"] = self.block_bases
        return LinearLayout(bases, [f"dim{i}" for i in range(self.rank)])

    def __str__(self) -> str:
        """The MLIR attribute, as Triton prints it."""
        text = f"offset = {_vectors(self.offset_bases)}"
        if self.block_bases:
            text += f", block = {_vectors(self.block_bases)}"
        return f"#ttg.shared_linear<{{{text}}}, alignment = {self.alignment}>"


SharedEncoding = NVMMAShared | SwizzledShared | SharedLinear

_MNEMONICS: dict[str, type[NVMMAShared] | type[SwizzledShared] | type[SharedLinear]] = {
    "nvmma_shared": NVMMAShared,
    "swizzled_shared": SwizzledShared,
    "shared_linear": SharedLinear,
}


def parse_encoding(text: str) -> SharedEncoding:
    """Any shared encoding of NVIDIA GPUs, from its MLIR attribute.

    Raises:
        LayoutError: not an ``nvmma_shared``, ``swizzled_shared`` or ``shared_linear``, or illegal.
    """
    attribute = parse_attribute(text)
    kind = _MNEMONICS.get(attribute.name.split(".")[-1])
    if kind is None:
        raise LayoutError(
            "attribute",
            attribute.text,
            f"must be one of {', '.join('#ttg.' + m for m in _MNEMONICS)}",
        )
    return kind._from_attribute(attribute)
