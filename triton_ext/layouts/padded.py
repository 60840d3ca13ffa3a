"""Triton's ``#ttg.padded_shared``: a linear layout with unused elements after each interval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import is_power_of_two, permutation
from triton_ext.layouts.attributes import parse_attribute
from triton_ext.layouts.cluster import checked_shape, standard_out_dims
from triton_ext.layouts.encodings import SharedLinear
from triton_ext.layouts.linear_layout import Basis, LinearLayout

_ATTRIBUTE = re.compile(r"#?(?:ttg\.)?padded_shared<\[([^\]]*)\]\s*(\{.*\})\s*>", re.DOTALL)
_PAIR = re.compile(r"\s*(\d{1,9})\s*:\s*\+\s*(\d{1,9})\s*")


@dataclass(frozen=True)
class PaddedShared(Displayed):
    """After each `interval` elements of a linear layout follow `padding` unused ones.

    Attributes:
        paddings: pairs (interval, padding), in elements, powers of two.
        linear: the layout before padding.
    """

    paddings: tuple[tuple[int, int], ...]
    linear: SharedLinear

    @classmethod
    def parse(cls, text: str) -> PaddedShared:
        """From an MLIR attribute, in both forms: with ``order`` and ``shape``, or with bases.

        Raises:
            LayoutError: not such an attribute, or an illegal one.
        """
        match = _ATTRIBUTE.fullmatch(text.strip())
        pairs = [_PAIR.fullmatch(pair) for pair in match[1].split(",")] if match else [None]
        paddings = tuple((int(pair[1]), int(pair[2])) for pair in pairs if pair)
        rule = "must be #ttg.padded_shared<[interval:+padding, ...] {...}>, of powers of two"
        legal = all(is_power_of_two(number) for pair in paddings for number in pair)
        if match is None or len(paddings) != len(pairs) or not legal:
            raise LayoutError("attribute", text, rule)
        attribute = parse_attribute(f"#ttg.padded_shared<{match[2]}>")
        parameters = attribute.parameters
        if "shape" in parameters and "order" in parameters:
            order, shape = attribute.checked("ttg.padded_shared", ["order", "shape"], [])
            return cls(paddings, SharedLinear(_rows(shape, order)))
        if "offset" not in parameters:
            raise LayoutError("attribute", text, "must have an order and a shape, or offset bases")
        (offset,) = attribute.checked("ttg.padded_shared", ["offset"], ["block"])
        return cls(paddings, SharedLinear(offset, parameters.get("block", ())))

    @property
    def rank(self) -> int:
        """How many dimensions."""
        return self.linear.rank

    @property
    def alignment(self) -> int:
        """What the address of a tile must be a multiple of, in bytes."""
        return self.linear.alignment

    def to_linear_layout(self, shape: Sequence[int] | None = None) -> LinearLayout:
        """The layout before padding: ``offset`` (and ``block`` with a cluster) -> coordinates.

        It has a shape of its own; one that is given is not looked at.
        """
        return self.linear.to_linear_layout()

    def stored_elements(self, shape: Sequence[int] | None = None) -> int:
        """How many elements of shared memory the tile takes in one block; the last is in use.

        Source: Triton, ``PaddedSharedEncodingAttr::getPaddedSize``.
        """
        elements = self.linear.stored_elements()
        return elements + sum(
            (-(-elements // interval) - 1) * padding for interval, padding in self.paddings
        )


def _rows(shape: Sequence[int], order: Sequence[int]) -> tuple[Basis, ...]:
    """The bases of a tile in rows, the dimension ``order[0]`` fastest."""
    order = permutation("order", order)
    shape = checked_shape(shape, len(order))
    layout = LinearLayout.box("offset", {f"dim{dim}": shape[dim] for dim in order})
    return tuple(layout.transpose_outs(list(standard_out_dims(shape))).bases["offset"])
