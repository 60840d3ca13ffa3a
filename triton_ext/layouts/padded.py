"""Triton's ``#ttg.padded_shared``: a linear layout with unused elements after each interval."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from triton_ext.errors import LayoutError
from triton_ext.layouts.encodings import standard_out_dims
from triton_ext.layouts.linear_layout import Basis, LinearLayout, is_power_of_two
from triton_ext.mlir.attributes import parse_attribute

_ATTRIBUTE = re.compile(r"#?(?:ttg\.)?padded_shared<\[([^\]]*)\]\s*(\{.*\})\s*>", re.DOTALL)
_PAIR = re.compile(r"\s*(\d+)\s*:\s*\+\s*(\d+)\s*")


@dataclass(frozen=True)
class PaddedShared:
    """After each `interval` elements of the layout follow `padding` unused ones.

    Attributes:
        paddings: pairs (interval, padding), in elements, powers of two.
        offset_bases: the coordinates of the elements at offset 1, 2, 4, ..., before padding.
        block_bases: those of block 1, 2, 4, ... of the cluster.
    """

    paddings: tuple[tuple[int, int], ...]
    offset_bases: tuple[Basis, ...]
    block_bases: tuple[Basis, ...] = ()

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
        parameters = parse_attribute(f"#ttg.padded_shared<{match[2]}>").parameters
        if "shape" in parameters and "order" in parameters:
            return cls(paddings, _rows(parameters["shape"], parameters["order"]))
        if "offset" not in parameters:
            raise LayoutError("attribute", text, "must have an order and a shape, or offset bases")
        offset, block = (
            tuple(tuple(basis) for basis in parameters.get(key, ())) for key in ("offset", "block")
        )
        return cls(paddings, offset, block)

    def to_linear_layout(self) -> LinearLayout:
        """The layout before padding: ``offset`` (and ``block`` with a cluster) -> coordinates."""
        bases = {"offset": self.offset_bases}
        if self.block_bases:
            bases["block"] = self.block_bases
        rank = len((self.offset_bases + self.block_bases)[0])
        return LinearLayout(bases, [f"dim{i}" for i in range(rank)])

    def padded_elements(self, shape: Sequence[int]) -> int:
        """How many elements a tile of what one block holds takes; none are unused at its end.

        Source: Triton, ``PaddedSharedEncodingAttr::getPaddedSize``.
        """
        elements = math.prod(shape)
        return elements + sum(
            (-(-elements // interval) - 1) * padding for interval, padding in self.paddings
        )


def _rows(shape: Sequence[int], order: Sequence[int]) -> tuple[Basis, ...]:
    """The bases of a tile in rows, the dimension ``order[0]`` fastest."""
    sizes = standard_out_dims(shape)
    layout = LinearLayout.empty()
    for dim in order:
        name = f"dim{dim}"
        layout = layout * LinearLayout.identity_1d(sizes[name], "offset", name)
    return tuple(layout.transpose_outs(list(sizes)).bases["offset"])
