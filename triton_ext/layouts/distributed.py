"""Triton's distributed layouts as linear layouts: which thread's register holds which element.

``#ttg.blocked``, ``#ttg.nvidia_mma`` (versions 2 and 3), ``#ttg.dot_op``, ``#ttg.slice`` and
``#ttg.linear``, read from their MLIR attributes. The linear layout maps ``register``, ``lane`` and
``warp`` (and ``block`` with a cluster) to ``dim0``, ``dim1``, ...

Source: Triton, ``lib/Dialect/TritonGPU/IR/LinearLayoutConversions.cpp``
(``BlockedEncodingAttr::toLinearLayout`` and its siblings) and ``Dialect.cpp`` (``getMatrixOrder``,
``getOrderForDotOperand``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import integers, is_power_of_two, one_of, permutation, vectors
from triton_ext.layouts.attributes import Attribute, parse_attribute
from triton_ext.layouts.cluster import (
    add_cluster,
    bases_text,
    cga_from_attribute,
    checked_cga_layout,
    checked_shape,
    shape_per_cta,
    standard_out_dims,
)
from triton_ext.layouts.linear_layout import Basis, LinearLayout

_ACCUMULATOR_K_WIDTH = 2  # neighbours of a row that a thread holds
_MAX_NESTING = 16  # of slices of slices
_LINEAR_DIMS = ("register", "lane", "warp", "block")


def _matrix_order(rank: int, row_major: bool) -> tuple[int, ...]:
    """Dimensions from the fastest on: of a row-major matrix, or of a column-major one."""
    order = list(reversed(range(rank)))
    if not row_major and rank > 1:
        order[:2] = order[1], order[0]
    return tuple(order)


def _named(dim: int) -> str:
    return f"dim{dim}"


def _counted(in_dim: str, sizes: Sequence[int], order: Sequence[int]) -> LinearLayout:
    """One input dimension over all of a box of `sizes`, the dimension ``order[0]`` fastest."""
    return LinearLayout.box(in_dim, {_named(dim): sizes[dim] for dim in order})


def _shared_along(
    in_dim: str, sizes: Sequence[int], order: Sequence[int], k_dim: int
) -> LinearLayout:
    """As `_counted`, but those that differ along `k_dim` alone hold the same."""
    layout = LinearLayout.empty()
    for dim in order:
        make = LinearLayout.zeros_1d if dim == k_dim else LinearLayout.identity_1d
        layout = layout * make(sizes[dim], in_dim, _named(dim))
    return layout


def _grown(layout: LinearLayout, sizes: Mapping[str, int]) -> LinearLayout:
    """The layout with further registers, until every dimension has its size."""
    for name, size in layout.out_dims.items():
        if size < sizes[name]:
            repeats = LinearLayout.identity_1d(sizes[name] // size, "register", name)
            layout = layout * repeats
    return layout


def _trimmed(
    layout: LinearLayout, sizes: Mapping[str, int], *, keep_registers: bool = True
) -> LinearLayout:
    """The layout cut to `sizes`: threads, and registers if kept, beyond it repeat others."""
    names = list(layout.out_dims)
    limits = [min(sizes[name], layout.out_dims[name]) for name in names]
    bases = {}
    for in_dim, own in layout.bases.items():
        fitting = [
            tuple(value if value < limit else 0 for value, limit in zip(basis, limits, strict=True))
            for basis in own
        ]
        if in_dim == "register" and not keep_registers:
            fitting = [cut for cut, basis in zip(fitting, own, strict=True) if cut == basis]
        bases[in_dim] = fitting
    return LinearLayout(bases, dict(zip(names, limits, strict=True)))


def _filled(
    layout: LinearLayout, cga_layout: Sequence[Basis], shape: Sequence[int]
) -> LinearLayout:
    """A layout within a block, made to fit its part of a tensor, and spread over the cluster."""
    per_cta = standard_out_dims(shape_per_cta(cga_layout, shape))
    layout = _trimmed(_grown(layout, per_cta), per_cta)
    layout = layout.transpose_outs(list(per_cta))
    return add_cluster(layout, cga_layout, shape)


def _powers(name: str, values: Any, rank: int | None = None) -> tuple[int, ...]:
    legal = isinstance(values, (list, tuple)) and all(map(is_power_of_two, values))
    if not legal or (rank is not None and len(values) != rank):
        count = "" if rank is None else f"{rank} "
        raise LayoutError(name, values, f"must be {count}powers of two")
    return tuple(values)


@dataclass(frozen=True)
class Blocked:
    """``#ttg.blocked``: each thread holds a box of neighbours, boxes side by side, then warps.

    Attributes:
        size_per_thread, threads_per_warp, warps_per_cta: extents along each dimension.
        order: the dimensions from the fastest to the slowest.
        cga_layout: the bases of the cluster's blocks, as in `NVMMAShared`.

    Raises:
        LayoutError: extents that are no powers of two, or an order that is no permutation.
    """

    size_per_thread: tuple[int, ...]
    threads_per_warp: tuple[int, ...]
    warps_per_cta: tuple[int, ...]
    order: tuple[int, ...]
    cga_layout: tuple[Basis, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", permutation("order", self.order))
        for name in ("size_per_thread", "threads_per_warp", "warps_per_cta"):
            object.__setattr__(self, name, _powers(name, getattr(self, name), self.rank))
        object.__setattr__(self, "cga_layout", checked_cga_layout(self.cga_layout, self.rank))

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len(self.order)

    def to_linear_layout(self, shape: Sequence[int]) -> LinearLayout:
        """The layout of a tensor of `shape`."""
        layout = (
            _counted("register", self.size_per_thread, self.order)
            * _counted("lane", self.threads_per_warp, self.order)
            * _counted("warp", self.warps_per_cta, self.order)
        )
        return _filled(layout, self.cga_layout, shape)

    def __str__(self) -> str:
        """The MLIR attribute, as Triton prints it."""
        text = (
            f"sizePerThread = {list(self.size_per_thread)},"
            f" threadsPerWarp = {list(self.threads_per_warp)},"
            f" warpsPerCTA = {list(self.warps_per_cta)}, order = {list(self.order)}"
        )
        if self.cga_layout:
            text += f", CGALayout = {bases_text(self.cga_layout)}"
        return f"#ttg.blocked<{{{text}}}>"


def _mma_tile(tile: Sequence[int], k_width: int, order: Sequence[int]) -> LinearLayout:
    """Eight rows of four threads, `k_width` elements each, repeated in registers.

    Args:
        tile: its extents.
        order: the dimension along rows first, then that across.
    """
    inner, outer = order[0], order[1]
    rows, columns = tile[outer], tile[inner]
    if rows % 8 or columns % (4 * k_width):
        rule = f"must hold 8 rows of 4 threads, {k_width} elements each"
        raise LayoutError("tile", tuple(tile), rule)
    layout = _counted("register", (1,) * len(tile), order)
    for size, in_dim, dim in (
        (k_width, "register", inner),
        (4, "lane", inner),
        (8, "lane", outer),
        (rows // 8, "register", outer),
        (columns // (4 * k_width), "register", inner),
    ):
        layout = layout * LinearLayout.identity_1d(size, in_dim, _named(dim))
    return layout


@dataclass(frozen=True)
class NvidiaMma:
    """``#ttg.nvidia_mma``: the accumulator of ``mma.sync`` (version 2) or ``wgmma`` (3).

    Attributes:
        version: 2 or 3.
        warps_per_cta: the warps along each dimension.
        instr_shape: (..., M, N) of version 2, (M, N, K) of version 3, M being that of a warp.
        cga_layout: the bases of the cluster's blocks, as in `NVMMAShared`.

    Raises:
        LayoutError: another version, or extents that are no powers of two where they must be.
    """

    version: int
    warps_per_cta: tuple[int, ...]
    instr_shape: tuple[int, ...]
    cga_layout: tuple[Basis, ...] = ()

    def __post_init__(self) -> None:
        if self.version not in (2, 3):
            raise LayoutError("version", self.version, "must be 2 (mma.sync) or 3 (wgmma)")
        warps = _powers("warps_per_cta", self.warps_per_cta)
        object.__setattr__(self, "warps_per_cta", warps)
        if self.rank < 2 or (self.is_hopper and self.rank > 2):
            raise LayoutError("warps_per_cta", warps, "must be 2 extents, or more of version 2")
        extents = 3 if self.is_hopper else self.rank
        shape = integers("instr_shape", self.instr_shape)
        if len(shape) != extents or min(shape) < 1:
            raise LayoutError("instr_shape", shape, f"must be {extents} extents, at least 1 each")
        object.__setattr__(self, "instr_shape", shape)
        object.__setattr__(self, "cga_layout", checked_cga_layout(self.cga_layout, self.rank))

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return len(self.warps_per_cta)

    @property
    def is_hopper(self) -> bool:
        """Whether it is wgmma's."""
        return self.version == 3

    @property
    def warp_order(self) -> tuple[int, ...]:
        """Along which dimension warps follow each other first."""
        return _matrix_order(self.rank, row_major=not self.is_hopper)

    def to_linear_layout(self, shape: Sequence[int]) -> LinearLayout:
        """The layout of a tensor of `shape`. Raises LayoutError: an instruction's N that is no
        power of two, which linear layouts cannot express."""
        tile = _powers("instr_shape", self.instr_shape[:2] if self.is_hopper else self.instr_shape)
        order = _matrix_order(self.rank, row_major=True)
        layout = _mma_tile(tile, _ACCUMULATOR_K_WIDTH, order)
        warps = _counted("warp", self.warps_per_cta, self.warp_order)
        return _filled(layout * warps.transpose_outs(list(layout.out_dims)), self.cga_layout, shape)


@dataclass(frozen=True)
class DotOperand:
    """``#ttg.dot_op``: A or B of a product, held in registers.

    Attributes:
        operand: 0 for A, 1 for B.
        parent: the accumulator's encoding.
        k_width: neighbours along K that a thread holds; 0 with a `Blocked` parent.
    """

    operand: int
    parent: Blocked | NvidiaMma
    k_width: int = 0

    def __post_init__(self) -> None:
        one_of("operand", self.operand, (0, 1))
        if isinstance(self.parent, NvidiaMma):
            _powers("k_width", (self.k_width,))
            if self.operand and self.parent.is_hopper:
                raise LayoutError("operand", self.operand, "wgmma reads B from shared memory alone")

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return self.parent.rank

    @property
    def k_dim(self) -> int:
        """Which dimension is K."""
        return self.rank - 1 if self.operand == 0 else self.rank - 2

    @property
    def cga_layout(self) -> tuple[Basis, ...]:
        """As in `triton_ext.layouts.encodings.NVMMAShared`; blocks share what differs along K."""
        return tuple(
            tuple(0 if dim == self.k_dim else value for dim, value in enumerate(basis))
            for basis in self.parent.cga_layout
        )

    def to_linear_layout(self, shape: Sequence[int]) -> LinearLayout:
        """The layout of a tensor of `shape`."""
        if isinstance(self.parent, Blocked):
            layout = self._of_blocked(self.parent, shape)
        else:
            layout = self._of_mma(self.parent)
        return _filled(layout, self.cga_layout, shape)

    def _of_blocked(self, parent: Blocked, shape: Sequence[int]) -> LinearLayout:
        each = list(parent.size_per_thread)
        each[self.k_dim] = shape[self.k_dim]
        order = parent.order
        return (
            _counted("register", each, order)
            * _shared_along("lane", parent.threads_per_warp, order, self.k_dim)
            * _shared_along("warp", parent.warps_per_cta, order, self.k_dim)
        )

    def _of_mma(self, parent: NvidiaMma) -> LinearLayout:
        rows = parent.instr_shape[0 if parent.is_hopper else self.rank - 2]
        columns = self.k_width * (4 if rows == 8 else 8)  # m8n8k4 of 64-bit elements
        tile = [1] * self.rank
        tile[self.k_dim] = columns
        tile[2 * self.rank - 3 - self.k_dim] = rows if self.operand == 0 else 8
        order = _matrix_order(self.rank, row_major=self.operand == 0)
        layout = _mma_tile(_powers("instr_shape", tile), self.k_width, order)
        warps = _shared_along("warp", parent.warps_per_cta, parent.warp_order, self.k_dim)
        return layout * warps.transpose_outs(list(layout.out_dims))


@dataclass(frozen=True)
class Linear:
    """``#ttg.linear``: a distributed layout that is given by its bases.

    Attributes:
        bases: for each of ``register``, ``lane``, ``warp``, ``block`` the coordinates of 1, 2, ...
    """

    bases: tuple[tuple[str, tuple[Basis, ...]], ...]

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return max((len(basis) for _, vectors in self.bases for basis in vectors), default=1)

    @property
    def _order(self) -> list[int]:
        """The dimensions in which registers step, then the others, the last first."""
        registers = dict(self.bases).get("register", ())
        stepped = [next(i for i, v in enumerate(basis) if v) for basis in registers if any(basis)]
        return list(dict.fromkeys([*stepped, *reversed(range(self.rank))]))

    def to_linear_layout(self, shape: Sequence[int]) -> LinearLayout:
        """The layout of a tensor of `shape`."""
        standard = list(standard_out_dims(shape))
        bases = {name: vectors for name, vectors in self.bases if name != "block" or vectors}
        layout = LinearLayout(bases, standard)
        sizes = standard_out_dims(shape)
        layout = layout.transpose_outs([_named(dim) for dim in self._order])
        layout = _trimmed(_grown(layout, sizes), sizes, keep_registers=False)
        return layout.transpose_outs(standard)


@dataclass(frozen=True)
class Slice:
    """``#ttg.slice``: what is left of a layout when one dimension is reduced away.

    Attributes:
        dim: the dimension of the parent that is gone.
        parent: the layout of the tensor before.
    """

    dim: int
    parent: DistributedEncoding

    def __post_init__(self) -> None:
        if self.dim not in range(self.parent.rank):
            raise LayoutError("dim", self.dim, f"must be one of the parent's {self.parent.rank}")

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return self.parent.rank - 1

    def to_linear_layout(self, shape: Sequence[int]) -> LinearLayout:
        """The layout of a tensor of `shape`."""
        whole = [*shape[: self.dim], 1, *shape[self.dim :]]
        layout = self.parent.to_linear_layout(whole)
        names = [name for name in layout.out_dims if name != _named(self.dim)]
        layout = layout.sublayout(list(layout.in_dims), names)
        return LinearLayout(layout.remove_zero_bases("register").bases, standard_out_dims(shape))


DistributedEncoding = Blocked | NvidiaMma | DotOperand | Linear | Slice


def parse_distributed(
    attribute: str | Attribute, aliases: Mapping[str, str] | None = None
) -> DistributedEncoding:
    """A distributed encoding from its MLIR attribute.

    Args:
        attribute: its text, such as ``#ttg.slice<{dim = 1, parent = #blocked}>``, or an alias.
        aliases: the module's attribute aliases.

    Raises:
        LayoutError: another attribute, or an illegal one.
    """
    return _parse(attribute, aliases or {}, 0)


def _parse(given: str | Attribute, aliases: Mapping[str, str], depth: int) -> DistributedEncoding:
    if depth > _MAX_NESTING:
        raise LayoutError("attribute", str(given), "is nested too deeply")
    if isinstance(given, str):
        given = parse_attribute(aliases.get(given, given))
    kind, required = given.mnemonic, given.required
    if kind == "blocked":
        size, threads, warps, order = required(
            "sizePerThread", "threadsPerWarp", "warpsPerCTA", "order"
        )
        return Blocked(size, threads, warps, order, cga_from_attribute(given))
    if kind == "nvidia_mma":
        version, warps, shape = required("versionMajor", "warpsPerCTA", "instrShape")
        return NvidiaMma(version, warps, shape, cga_from_attribute(given))
    if kind == "linear":
        bases = {name: given.parameters.get(name, ()) for name in _LINEAR_DIMS}
        return Linear(tuple((name, vectors(name, values)) for name, values in bases.items()))
    if kind == "slice":
        dim, inner = required("dim", "parent")
        return Slice(dim, _parse(inner, aliases, depth + 1))
    if kind == "dot_op":
        index, inner = required("opIdx", "parent")
        parent = _parse(inner, aliases, depth + 1)
        if not isinstance(parent, (Blocked, NvidiaMma)):
            raise LayoutError("parent", given.text, "must be a blocked or an nvidia_mma layout")
        return DotOperand(index, parent, given.parameters.get("kWidth", 0))
    raise LayoutError(
        "attribute",
        given.text,
        "must be a #ttg.blocked, #ttg.nvidia_mma, #ttg.dot_op, #ttg.slice or #ttg.linear",
    )


def distributed_linear_layout(
    attribute: str, shape: Sequence[int], aliases: Mapping[str, str] | None = None
) -> LinearLayout:
    """The linear layout of a tensor in registers.

    Args:
        attribute, aliases: as in `parse_distributed`.
        shape: the tensor's shape: powers of two.

    Returns:
        ``register``, ``lane``, ``warp`` (and ``block`` with a cluster) -> ``dim0``, ``dim1``, ...

    Raises:
        LayoutError: an illegal attribute or shape.
    """
    encoding = parse_distributed(attribute, aliases)
    return encoding.to_linear_layout(checked_shape(shape, encoding.rank))
