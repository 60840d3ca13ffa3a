"""Triton's ``#ttg.padded_shared``: a linear layout with unused elements after each interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import is_power_of_two, permutation
from triton_ext.layouts.attributes import Attribute
from triton_ext.layouts.cluster import (
    add_cluster,
    bases_text,
    checked_cga_layout,
    checked_shape,
    shape_per_cta,
    standard_out_dims,
)
from triton_ext.layouts.linear_layout import Basis, LinearLayout
from triton_ext.layouts.shared_encoding import Paddings, SharedEncoding, as_lists, checked_kind
from triton_ext.layouts.shared_linear import SharedLinear


@dataclass(frozen=True)
class PaddedShared(SharedEncoding):
    """After each `interval` elements of a linear layout follow `padding` unused ones.

    Args:
        paddings: pairs (interval, padding), in elements, powers of two; where several intervals
            end, all of their paddings follow.
        linear: the layout before padding.

    Raises:
        LayoutError: no pairs, or not such pairs; two of one interval; no `SharedLinear`.
    """

    NAME: ClassVar[str] = "ttg.padded_shared"
    GLUON: ClassVar[str] = "PaddedSharedLayout"

    paddings: Paddings = field()  # no default: not that of the base class
    linear: SharedLinear

    def __post_init__(self) -> None:
        object.__setattr__(self, "paddings", checked_paddings(self.paddings))
        if not self.paddings:
            raise LayoutError("paddings", self.paddings, "there must be at least one pair")
        checked_kind("linear", self.linear, SharedLinear)

    @classmethod
    def from_attribute(cls, attribute: Attribute) -> PaddedShared:
        """From an attribute in either form: with ``order`` and ``shape``, or with bases."""
        parameters = attribute.parameters
        if "shape" in parameters and "order" in parameters:
            order, shape = attribute.checked(cls.NAME, ["order", "shape"], [], unnamed=True)
            linear = SharedLinear(_rows(shape, order))
        elif "offset" in parameters:
            (offset,) = attribute.checked(cls.NAME, ["offset"], ["block"], unnamed=True)
            linear = SharedLinear(offset, parameters.get("block", ()))
        else:
            attribute.checked(cls.NAME, [], list(parameters), unnamed=True)
            rule = "must have an order and a shape, or offset bases"
            raise LayoutError("attribute", attribute.text, rule)
        try:
            return cls(attribute.unnamed or (), linear)
        except LayoutError as error:
            form = f"#{cls.NAME}<[interval:+padding, ...] {{...}}>"
            raise LayoutError("attribute", attribute.text, f"{form}: {error.rule}") from None

    @classmethod
    def from_gluon(cls, layout: Any) -> PaddedShared:
        """From a ``gl.PaddedSharedLayout``, whose blocks are counted as in `NVMMAShared`."""
        shape = tuple(layout.shape)
        cga_layout = checked_cga_layout(layout.cga_layout, len(shape))
        own = _with_cluster(layout.offset_bases, cga_layout, shape)
        return cls(layout.interval_padding_pairs, SharedLinear.from_linear_layout(own))

    def gluon_arguments(self) -> dict[str, Any]:
        """Those of ``gl.PaddedSharedLayout``; its blocks hold whole parts of the tensor."""
        offset, shape = self.linear.offset_bases, tuple(self.to_linear_layout().out_dims.values())
        part = [max((basis[dim].bit_length() for basis in offset), default=0)
                for dim in range(self.rank)]  # fmt: skip
        cga_layout = [
            tuple(step >> bits for step, bits in zip(basis, part, strict=True))
            for basis in self.linear.block_bases
        ]
        try:
            whole = _with_cluster(offset, checked_cga_layout(cga_layout, self.rank), shape)
            said = SharedLinear.from_linear_layout(whole) == self.linear
        except LayoutError:
            said = False
        if not said:
            rule = "Gluon's blocks hold parts of the tensor that are whole boxes of it"
            raise LayoutError("encoding", str(self), rule)
        return {
            "interval_padding_pairs": as_lists(self.paddings),
            "offset_bases": as_lists(tuple(offset)),
            "cga_layout": as_lists(tuple(cga_layout)),
            "shape": list(shape),
        }

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return self.linear.rank

    @property
    def alignment(self) -> int:
        """What the address of a tile must be a multiple of, in bytes."""
        return self.linear.alignment

    def to_linear_layout(self, shape: Sequence[int] | None = None) -> LinearLayout:
        """The layout before padding; `address` says where its offsets lie. Raises LayoutError: a
        shape is given, and is not that of the encoding."""
        return self.linear.to_linear_layout(shape)

    def stored_elements(self, shape: Sequence[int] | None = None) -> int:
        """How many elements of shared memory the tile takes in one block; the last is in use.

        Source: Triton, ``PaddedSharedEncodingAttr::getPaddedSize``.
        """
        return int(self.address(self.linear.stored_elements() - 1)) + 1

    def __str__(self) -> str:
        """The MLIR attribute, as Triton prints it: of rows, with their order and shape."""
        pairs = ", ".join(f"{interval}:+{padding}" for interval, padding in self.paddings)
        offset, block = self.linear.offset_bases, self.linear.block_bases
        shape = tuple(self.to_linear_layout().out_dims.values())
        order = _order(offset, self.rank)
        text = f"offset = {bases_text(offset)}, block = {bases_text(block)}"
        if not block and _rows(shape, order) == offset:
            text = f"order = {list(order)}, shape = {list(shape)}"
        return f"#{self.NAME}<[{pairs}] {{{text}}}>"


def _with_cluster(
    offset_bases: Sequence[Basis], cga_layout: tuple[Basis, ...], shape: tuple[int, ...]
) -> LinearLayout:
    """What the blocks of a cluster hold, of the bases of one of them."""
    sizes = standard_out_dims(shape_per_cta(cga_layout, shape))
    return add_cluster(LinearLayout({"offset": offset_bases}, sizes), cga_layout, shape)


def checked_paddings(paddings: Any) -> Paddings:
    """Pairs (interval, padding) of powers of two, in elements. Raises LayoutError."""
    try:
        pairs = tuple((interval, padding) for interval, padding in paddings)
    except (TypeError, ValueError):
        pairs = ((0, 0),)
    if not all(is_power_of_two(number) for pair in pairs for number in pair):
        raise LayoutError("paddings", paddings, "must be pairs of powers of two, in elements")
    if len(dict(pairs)) != len(pairs):
        raise LayoutError("paddings", pairs, "an interval may have one padding; add them up")
    return pairs


def _rows(shape: Sequence[int], order: Sequence[int]) -> tuple[Basis, ...]:
    """The bases of a tile in rows, the dimension ``order[0]`` fastest."""
    order = permutation("order", order)
    shape = checked_shape(shape, len(order))
    layout = LinearLayout.box("offset", {f"dim{dim}": shape[dim] for dim in order})
    return tuple(layout.transpose_outs(list(standard_out_dims(shape))).bases["offset"])


def _order(offset_bases: Sequence[Basis], rank: int) -> tuple[int, ...]:
    """The dimensions in the order in which the bases first move them; then the others, last first.

    Triton's ``getOrder`` has those without a basis behind the others, likewise.
    """
    moved = [dim for basis in offset_bases for dim, step in enumerate(basis) if step]
    return tuple(dict.fromkeys([*moved, *reversed(range(rank))]))
