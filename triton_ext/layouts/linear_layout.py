"""Linear layouts: linear maps over GF(2), with Triton's semantics and names.

A linear layout maps named input coordinates (``offset``, ``block``, ``lane``, ...) to named
output coordinates (``dim0``, ``dim1``, ...). Every dimension has a power-of-two size, and the map
is linear over GF(2): ``L(a ^ b) == L(a) ^ L(b)``. It is therefore fixed by its *bases*, the images
of 1, 2, 4, ... along each input dimension, and applying it is an XOR of bases.

The semantics are those of Triton's ``mlir::triton::LinearLayout`` (``lib/Tools/LinearLayout.cpp``),
including its order of dimensions, its choice among several solutions in `invert_and_compose`, and
its text form. Where Triton asserts or aborts, `LayoutError` is raised.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import index_or_array, integers, power_of_two
from triton_ext.layouts.dimensions import (
    check_name,
    distinct_names,
    expected_names,
    merged_order,
    named_sizes,
)
from triton_ext.layouts.gf2 import pack, powers_below, solver, unpack

Basis = tuple[int, ...]


def _layout(argument: str, given: Any) -> LinearLayout:
    if not isinstance(given, LinearLayout):
        raise LayoutError(argument, given, "must be a LinearLayout")
    return given


class LinearLayout(Displayed):
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

    @classmethod
    def _trusted(
        cls, bases: dict[str, tuple[Basis, ...]], out_dims: dict[str, int]
    ) -> LinearLayout:
        """A layout from parts that are legal by construction."""
        self = object.__new__(cls)
        self._bases, self._out_dims, self._rank, self._hash = bases, out_dims, None, None
        return self

    # ---------------------------------------------------------------- makers

    @classmethod
    def from_bases(
        cls,
        bases: Mapping[str, Sequence[Sequence[int]]]
        | Sequence[tuple[str, Sequence[Sequence[int]]]],
        out_dim_names: Sequence[str],
        out_dim_sizes: Sequence[int] | None = None,
        require_surjective: bool = True,
    ) -> LinearLayout:
        """The layout with these bases; the signature of Triton's binding of the same name.

        Raises:
            LayoutError: as the constructor, and if `require_surjective` and it is not.
        """
        names = distinct_names("out_dim_names", out_dim_names)
        dims: list[str] | dict[str, int] = names
        if out_dim_sizes is not None:
            sizes = integers("out_dim_sizes", out_dim_sizes, len(names), f"for each of {names}")
            dims = dict(zip(names, sizes, strict=True))
        try:
            layout = cls(dict(bases), dims)
        except (TypeError, ValueError) as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError("bases", bases, "must be a mapping, or pairs") from None
        if require_surjective and not layout.is_surjective():
            raise LayoutError(
                "bases",
                layout.bases,
                f"must reach every coordinate of the output dims {layout.out_dims};"
                " pass require_surjective=False for a layout that does not",
            )
        return layout

    @classmethod
    def empty(cls) -> LinearLayout:
        """The layout with no dimensions, the neutral element of the product."""
        return cls._trusted({}, {})

    @classmethod
    def identity_1d(cls, size: int, in_dim: str, out_dim: str) -> LinearLayout:
        """``L(x) = x`` for x in [0, size)."""
        return cls.strided_1d(size, 1, in_dim, out_dim)

    @classmethod
    def identity(cls, sizes: Mapping[str, int]) -> LinearLayout:
        """The identity of several dimensions, each under its own name."""
        layout = cls.empty()
        for name, size in named_sizes("sizes", sizes).items():
            layout = layout * cls.identity_1d(size, name, name)
        return layout

    @classmethod
    def strided_1d(cls, size: int, stride: int, in_dim: str, out_dim: str) -> LinearLayout:
        """``L(x) = stride * x`` for x in [0, size); the output has size ``stride * size``."""
        check_name("in_dim", in_dim)
        check_name("out_dim", out_dim)
        power_of_two("size", size)
        power_of_two("stride", stride)
        vectors = tuple((stride * power,) for power in powers_below(size))
        return cls._trusted({in_dim: vectors}, {out_dim: stride * size})

    @classmethod
    def zeros_1d(cls, size: int, in_dim: str, out_dim: str, out_dim_size: int = 1) -> LinearLayout:
        """``L(x) = 0`` for x in [0, size): a broadcast."""
        check_name("in_dim", in_dim)
        check_name("out_dim", out_dim)
        power_of_two("size", size)
        power_of_two("out_dim_size", out_dim_size)
        return cls._trusted({in_dim: ((0,),) * (size.bit_length() - 1)}, {out_dim: out_dim_size})

    @classmethod
    def box(cls, in_dim: str, sizes: Mapping[str, int]) -> LinearLayout:
        """One input dimension that counts the points of a box, the first output dim fastest."""
        check_name("in_dim", in_dim)
        sizes = named_sizes("sizes", sizes)
        bases = tuple(
            tuple(power if name == counted else 0 for name in sizes)
            for counted, size in sizes.items()
            for power in powers_below(size)
        )
        return cls._trusted({in_dim: bases}, sizes)

    # ----------------------------------------------------------- what it has

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
            self._rank = solver(self._columns())[1].bit_count()
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
        pivots = solver(self._columns())[1]
        masks = {}
        for name, vectors in self._bases.items():
            everything = (1 << len(vectors)) - 1
            masks[name] = ~pivots & everything
            pivots >>= len(vectors)
        return masks

    def _columns(self) -> list[int]:
        """Each basis as one integer, the first output dimension in the low bits."""
        return [
            pack(basis, self._out_dims.values())
            for vectors in self._bases.values()
            for basis in vectors
        ]

    # -------------------------------------------------------------- applying

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

    # ------------------------------------------------------------- combining

    def __mul__(self, outer: LinearLayout) -> LinearLayout:
        """The direct product: `self` in the low bits, `outer` in the high bits, of every dimension.

        A dimension that both have grows: its size is the product of the two. Shared dimensions
        must stand in the same order in both.
        """
        if not isinstance(outer, LinearLayout):
            return NotImplemented
        order = merged_order(list(self._out_dims), list(outer._out_dims))
        inner_sizes = [self._out_dims.get(name, 1) for name in order]
        out_dims = {
            name: size * outer._out_dims.get(name, 1)
            for name, size in zip(order, inner_sizes, strict=True)
        }

        def placed(layout: LinearLayout, in_dim: str, units: Sequence[int]) -> tuple[Basis, ...]:
            vectors = layout._bases.get(in_dim, ())
            own = list(layout._out_dims)
            if own != order:
                where = [own.index(name) if name in layout._out_dims else -1 for name in order]
                vectors = tuple(
                    tuple(basis[i] if i >= 0 else 0 for i in where) for basis in vectors
                )
            return tuple(tuple(map(operator.mul, basis, units)) for basis in vectors)

        ones = [1] * len(order)
        bases = {
            name: placed(self, name, ones) + placed(outer, name, inner_sizes)
            for name in merged_order(list(self._bases), list(outer._bases))
        }
        return LinearLayout._trusted(bases, out_dims)

    def compose(self, outer: LinearLayout) -> LinearLayout:
        """``outer`` after ``self``: the layout x -> outer(self(x)).

        Raises:
            LayoutError: the output dims of `self` are not the input dims of `outer` (in any
                order), or one of them is larger.
        """
        expected_names("outer", _layout("outer", outer)._bases, self._out_dims)
        for name, size in self._out_dims.items():
            if size > 1 << len(outer._bases[name]):
                raise LayoutError(
                    "outer",
                    outer.in_dims,
                    f"its input dim {name!r} must be at least as large as our output dim ({size})",
                )
        columns = {
            name: [pack(basis, outer._out_dims.values()) for basis in outer._bases[name]]
            for name in self._out_dims
        }

        def through(basis: Basis) -> Basis:
            packed = 0
            for value, images in zip(basis, columns.values(), strict=True):
                for bit in range(value.bit_length()):
                    if value >> bit & 1:
                        packed ^= images[bit]
            return unpack(packed, outer._out_dims.values())

        bases = {name: tuple(map(through, vectors)) for name, vectors in self._bases.items()}
        return LinearLayout._trusted(bases, dict(outer._out_dims))

    def invert_and_compose(self, outer: LinearLayout) -> LinearLayout:
        """A layout C with ``outer(C(x)) == self(x)``: `self` followed by an inverse of `outer`.

        It says, for example, which shared-memory offset holds the element of a register. Where
        `outer` is not injective, the choice is Triton 3.9's: a dimension on which both layouts
        agree, and whose output bits no other dimension of either touches, maps to itself; every
        other free bit of the answer is 0.

        Raises:
            LayoutError: the output dims differ, or `self` reaches a coordinate that `outer` does
                not.
        """
        expected_names("outer", _layout("outer", outer)._out_dims, self._out_dims)
        names = list(self._out_dims)
        target = outer.transpose_outs(names)
        for name, size in self._out_dims.items():
            if target._out_dims[name] < size:
                rule = f"its {name!r} must be at least as large as ours ({size})"
                raise LayoutError("outer", outer.out_dims, rule)
        sizes = tuple(target._out_dims.values())
        support = {
            name: target._support(name, sizes) | self._support(name, sizes)
            for name in {**target._bases, **self._bases}
        }
        untouched = [
            name
            for name, vectors in target._bases.items()
            if self._bases.get(name) == vectors
            and not any(support[name] & support[other] for other in support if other != name)
        ]
        answer = self._solve(target, keep=untouched)
        if answer is None:
            rule = "must reach every coordinate that the inverted layout is given"
            raise LayoutError("outer", outer.bases, rule)
        return answer

    def _support(self, in_dim: str, sizes: Sequence[int]) -> int:
        """The bits of an output of these sizes that an input dimension has any influence on."""
        bits = 0
        for basis in self._bases.get(in_dim, ()):
            bits |= pack(basis, sizes)
        return bits

    def _solve(self, target: LinearLayout, keep: Sequence[str]) -> LinearLayout | None:
        """C with target(C(x)) == self(x) and the dims in `keep` mapped to themselves."""
        unknown = {name: vectors for name, vectors in target._bases.items() if name not in keep}
        sizes = [1 << len(vectors) for vectors in unknown.values()]
        solve, _ = solver(LinearLayout._trusted(unknown, target._out_dims)._columns())
        kept_at = {name: list(target._bases).index(name) for name in keep}
        solved_at = [list(target._bases).index(name) for name in unknown]
        bases: dict[str, tuple[Basis, ...]] = {}
        for name, vectors in self._bases.items():
            answers = []
            for bit, basis in enumerate(vectors):
                vector = [0] * len(target._bases)
                if name in kept_at:
                    vector[kept_at[name]] = 1 << bit
                else:
                    solution = solve(pack(basis, target._out_dims.values()))
                    if solution is None:
                        return None
                    for index, value in zip(solved_at, unpack(solution, sizes), strict=True):
                        vector[index] = value
                answers.append(tuple(vector))
            bases[name] = tuple(answers)
        return LinearLayout._trusted(bases, target.in_dims)

    def invert(self) -> LinearLayout:
        """The inverse of an invertible layout.

        Raises:
            LayoutError: it is not a bijection; `pseudoinvert` may be what is wanted.
        """
        if not self.is_invertible():
            raise LayoutError(
                "self",
                self,
                "must be invertible (surjective and injective);"
                " use pseudoinvert() for a surjective layout that broadcasts",
            )
        return self.pseudoinvert()

    def pseudoinvert(self) -> LinearLayout:
        """A right inverse P of a surjective layout: ``self(P(y)) == y``, free bits 0."""
        return LinearLayout.identity(self._out_dims).invert_and_compose(self)

    # ------------------------------------------------- reshaping, restricting

    def transpose_ins(self, names: Sequence[str]) -> LinearLayout:
        """The same map with its input dimensions in another order."""
        names = expected_names("names", names, self._bases)
        return LinearLayout._trusted({name: self._bases[name] for name in names}, self._out_dims)

    def transpose_outs(self, names: Sequence[str]) -> LinearLayout:
        """The same map with its output dimensions in another order."""
        if type(names) is list and names == list(self._out_dims):
            return self
        names = expected_names("names", names, self._out_dims)
        order = [list(self._out_dims).index(name) for name in names]
        bases = {
            in_dim: tuple(tuple(basis[i] for i in order) for basis in vectors)
            for in_dim, vectors in self._bases.items()
        }
        return LinearLayout._trusted(bases, {name: self._out_dims[name] for name in names})

    def reshape_ins(self, dims: Mapping[str, int]) -> LinearLayout:
        """Split the input, read as one integer (first dimension lowest), into other dimensions.

        Raises:
            LayoutError: a size is no power of two, or their product is not `total_in_size`.
        """
        dims = self._checked_reshape(dims, self.total_in_size)
        flat = [basis for vectors in self._bases.values() for basis in vectors]
        bases, start = {}, 0
        for name, size in dims.items():
            end = start + size.bit_length() - 1
            bases[name] = tuple(flat[start:end])
            start = end
        return LinearLayout._trusted(bases, self._out_dims)

    def reshape_outs(self, dims: Mapping[str, int]) -> LinearLayout:
        """Split the output, read as one integer (first dimension lowest), into other dimensions.

        Raises:
            LayoutError: a size is no power of two, or their product is not `total_out_size`.
        """
        dims = self._checked_reshape(dims, self.total_out_size)
        old, new = tuple(self._out_dims.values()), tuple(dims.values())
        if old == new:  # other names alone
            return LinearLayout._trusted(self._bases, dims)
        bases = {
            name: tuple(unpack(pack(basis, old), new) for basis in vectors)
            for name, vectors in self._bases.items()
        }
        return LinearLayout._trusted(bases, dims)

    @staticmethod
    def _checked_reshape(dims: Any, total: int) -> dict[str, int]:
        sizes = named_sizes("dims", dims)
        if math.prod(sizes.values()) != total:
            raise LayoutError("dims", sizes, f"sizes must multiply to {total}")
        return sizes

    def flatten_ins(self) -> LinearLayout:
        """All input dimensions as one, under the name of the first."""
        return self.reshape_ins(dict.fromkeys(list(self._bases)[:1], self.total_in_size))

    def flatten_outs(self) -> LinearLayout:
        """All output dimensions as one, under the name of the first."""
        return self.reshape_outs(dict.fromkeys(list(self._out_dims)[:1], self.total_out_size))

    def sublayout(self, in_dims: Sequence[str], out_dims: Sequence[str]) -> LinearLayout:
        """The map restricted to some input and some output dimensions, in their own order."""
        in_dims, out_dims = distinct_names("in_dims", in_dims), distinct_names("out_dims", out_dims)
        for argument, names, own in (
            ("in_dims", in_dims, list(self._bases)),
            ("out_dims", out_dims, list(self._out_dims)),
        ):
            if not set(names) <= set(own):
                raise LayoutError(argument, names, f"must be among {own}")
        kept = [i for i, name in enumerate(self._out_dims) if name in out_dims]
        bases = {
            name: tuple(tuple(basis[i] for i in kept) for basis in vectors)
            for name, vectors in self._bases.items()
            if name in in_dims
        }
        return LinearLayout._trusted(
            bases, {name: size for name, size in self._out_dims.items() if name in out_dims}
        )

    def sublayout_is_zero(self, in_dims: Sequence[str], out_dims: Sequence[str]) -> bool:
        """Whether `in_dims` have no influence on `out_dims`."""
        part = self.sublayout(in_dims, out_dims)
        return not any(any(basis) for vectors in part._bases.values() for basis in vectors)

    def remove_zero_bases(self, in_dim: str) -> LinearLayout:
        """The layout without the broadcast (all-zero) bases of one input dimension."""
        if not isinstance(in_dim, str) or in_dim not in self._bases:
            raise LayoutError("in_dim", in_dim, f"must be among {list(self._bases)}")
        bases = dict(self._bases)
        bases[in_dim] = tuple(basis for basis in bases[in_dim] if any(basis))
        return LinearLayout._trusted(bases, self._out_dims)

    # ------------------------------------------------------ equality and text

    def _key(self) -> tuple[Any, ...]:
        return tuple(self._bases.items()), tuple(self._out_dims.items())

    def __eq__(self, other: object) -> bool:
        """Same dimensions in the same order, same sizes, same bases."""
        return self._key() == other._key() if isinstance(other, LinearLayout) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def __repr__(self) -> str:
        return f"LinearLayout({self.bases!r}, {self._out_dims!r})"

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
