"""Linear layouts: linear maps over GF(2), with Triton's semantics and names.

A linear layout maps named input coordinates (``offset``, ``block``, ``lane``, ...) to named
output coordinates (``dim0``, ``dim1``, ...). Every dimension has a power-of-two size, and the map
is linear over GF(2): ``L(a ^ b) == L(a) ^ L(b)``. It is therefore fixed by its *bases*, the images
of 1, 2, 4, ... along each input dimension, and applying it is an XOR of bases.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import index_or_array
from triton_ext.layouts.dimensions import distinct_names, expected_names, named_sizes
from triton_ext.layouts.gf2 import pack, solver

Basis = tuple[int, ...]


def columns(bases: Mapping[str, Sequence[Basis]], sizes: Iterable[int]) -> list[int]:
    """Each basis as one integer, the first output dimension in the low bits."""
    sizes = tuple(sizes)
    return [pack(basis, sizes) for vectors in bases.values() for basis in vectors]


class LinearMap(Displayed):
    """A linear map over GF(2) between named, power-of-two-sized coordinates. Immutable.

    Args:
        bases: for each input dimension, in order, the images of 1, 2, 4, ...: tuples of one
            coordinate for each output dimension. An input dimension with no bases has size 1.
        out_dims: the output dimensions and their sizes, in order; or only their names, and then
            each size is the smallest power of two that holds every basis.

    Raises:
        LayoutError: a size that is no power of two, a basis of the wrong length or outside of the
            output's size.
    """

    __slots__ = ("_bases", "_hash", "_out_dims", "_rank")

    _bases: dict[str, tuple[Basis, ...]]
    _out_dims: dict[str, int]
    _rank: int | None
    _hash: int | None

    def __init__(
        self,
        bases: Mapping[str, Sequence[Sequence[int]]],
        out_dims: Mapping[str, int] | Sequence[str],
    ) -> None:
        try:
            own = {
                name: tuple(
                    tuple(operator.index(coordinate) for coordinate in basis) for basis in vectors
                )
                for name, vectors in bases.items()
            }
        except (AttributeError, TypeError, ValueError):
            raise LayoutError(
                "bases",
                bases,
                "must be a mapping of input dimensions to sequences of integer vectors,"
                ' such as {"offset": [(0, 1), (0, 2)]}',
            ) from None
        distinct_names("bases", own)
        if isinstance(out_dims, Mapping):
            sizes = named_sizes("out_dims", out_dims)
        else:
            sizes = {
                name: 1
                << max(
                    (
                        basis[i].bit_length()
                        for vectors in own.values()
                        for basis in vectors
                        if i < len(basis)
                    ),
                    default=0,
                )
                for i, name in enumerate(distinct_names("out_dims", out_dims))
            }
        limits = tuple(sizes.values())
        for in_dim, vectors in own.items():
            for basis in vectors:
                if len(basis) != len(limits):
                    rule = f"must have one coordinate for each of the output dims {list(sizes)}"
                    raise LayoutError(f"bases[{in_dim!r}]", basis, rule)
                if any(not 0 <= value < limit for value, limit in zip(basis, limits, strict=True)):
                    rule = f"each coordinate must lie in [0, size) of the output dims {sizes}"
                    raise LayoutError(f"bases[{in_dim!r}]", basis, rule)
        self._bases, self._out_dims, self._rank, self._hash = own, sizes, None, None

    @property
    def bases(self) -> dict[str, list[Basis]]:
        """For each input dimension, in order, the images of 1, 2, 4, ..."""
        return {name: list(vectors) for name, vectors in self._bases.items()}

    @property
    def in_dims(self) -> dict[str, int]:
        """The input dimensions and their sizes, in order."""
        return {name: 1 << len(vectors) for name, vectors in self._bases.items()}

    @property
    def out_dims(self) -> dict[str, int]:
        """The output dimensions and their sizes, in order."""
        return dict(self._out_dims)

    @property
    def total_in_size(self) -> int:
        """The number of input coordinates."""
        return 1 << sum(map(len, self._bases.values()))

    @property
    def total_out_size(self) -> int:
        """The number of output coordinates."""
        return math.prod(self._out_dims.values())

    @property
    def rank(self) -> int:
        """The number of linearly independent bases."""
        if self._rank is None:
            self._rank = solver(columns(self._bases, self._out_dims.values()))[1].bit_count()
        return self._rank

    def is_surjective(self) -> bool:
        """Whether every output coordinate is reached."""
        return 1 << self.rank == self.total_out_size

    def is_injective(self) -> bool:
        """Whether no two inputs have the same image."""
        return 1 << self.rank == self.total_in_size

    def is_invertible(self) -> bool:
        """Whether it is a bijection."""
        return self.is_surjective() and self.is_injective()

    def free_variable_masks(self) -> dict[str, int]:
        """For each input dimension, the bits that do not matter given the bits before them.

        A bit is free if its basis is zero or an XOR of earlier bases: flipping it, together with
        some of the earlier bits, leaves the output as it is.
        """
        pivots = solver(columns(self._bases, self._out_dims.values()))[1]
        masks = {}
        for name, vectors in self._bases.items():
            everything = (1 << len(vectors)) - 1
            masks[name] = ~pivots & everything
            pivots >>= len(vectors)
        return masks

    def apply(self, ins: Mapping[str, Any] | None = None, /, **named: Any) -> dict[str, Any]:
        """The output coordinates of the given input coordinates.

        Args:
            ins: a coordinate for each input dimension: an integer, or a numpy integer array
                (arrays broadcast against each other); also as keywords.

        Returns:
            A coordinate for each output dimension: integers, or int64 arrays.

        Raises:
            LayoutError: a dimension is missing or unknown, or a coordinate is out of range.
        """
        if not isinstance(ins, Mapping | None):
            raise LayoutError("ins", ins, "must be a mapping of dimensions to coordinates")
        values = {**(ins or {}), **named}
        expected_names("ins", values, self._bases)
        sizes = self.in_dims
        values = {name: index_or_array(name, values[name], sizes[name]) for name in sizes}
        out: list[Any] = [0] * len(self._out_dims)
        arrays = [value for value in values.values() if not isinstance(value, int)]
        if arrays:
            import numpy as np

            shapes = [array.shape for array in arrays]
            try:
                shape = np.broadcast_shapes(*shapes)
            except ValueError:
                raise LayoutError("ins", shapes, "the arrays must broadcast") from None
            out = [np.zeros(shape, np.int64) for _ in out]
        for name, vectors in self._bases.items():
            for bit, basis in enumerate(vectors):
                selected = values[name] >> bit & 1
                for i, coordinate in enumerate(basis):
                    if coordinate:
                        out[i] = out[i] ^ selected * coordinate
        return dict(zip(self._out_dims, out, strict=True))

    def _key(self) -> tuple[Any, ...]:
        return tuple(self._bases.items()), tuple(self._out_dims.items())

    def __eq__(self, other: object) -> bool:
        """Same dimensions in the same order, same sizes, same bases."""
        return self._key() == other._key() if isinstance(other, LinearMap) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.bases!r}, {self._out_dims!r})"

    def __str__(self) -> str:
        """Triton's text form, less its leading newline and its margin of one space."""
        sizes = ", ".join(f"{name} (size {size})" for name, size in self._out_dims.items())
        if not self._bases:
            return f"(empty layout with out-dims [{sizes}])" if sizes else "(empty layout)"
        lines = []
        for name, vectors in self._bases.items():
            if not vectors:
                lines.append(f"- {name} is a size 1 dimension")
            for bit, basis in enumerate(vectors):
                coordinates = ", ".join(map(str, basis))
                lines.append(f"{'  ' if bit else '- '}{name}={1 << bit} -> ({coordinates})")
        return "\n".join([*lines, f"where out dims are: [{sizes}]"])
