"""The algebra of linear layouts: how they are made, multiplied, composed, inverted and reshaped.

The semantics are those of Triton's ``mlir::triton::LinearLayout`` (``lib/Tools/LinearLayout.cpp``),
including its order of dimensions, its choice among several solutions in `invert_and_compose`, and
its text form. Where Triton asserts or aborts, `LayoutError` is raised.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import integers, power_of_two
from triton_ext.layouts.dimensions import (
    check_name,
    distinct_names,
    expected_names,
    merged_order,
    named_sizes,
)
from triton_ext.layouts.gf2 import pack, powers_below, solver, unpack
from triton_ext.layouts.linear_map import Basis as Basis
from triton_ext.layouts.linear_map import LinearMap, columns


def _layout(argument: str, given: Any) -> LinearLayout:
    if not isinstance(given, LinearLayout):
        raise LayoutError(argument, given, "must be a LinearLayout")
    return given


class LinearLayout(LinearMap):
    """A `LinearMap` with Triton's algebra. Immutable; every method returns another layout.

    It is made, and raises LayoutError, as its base says.
    """

    __slots__ = ()

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
        """The layout with these bases; the signature of Triton's binding of the same name. Raises
        LayoutError: as the constructor, and if `require_surjective` and it is not."""
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
        """``outer`` after ``self``: the layout x -> outer(self(x)). Raises LayoutError: the output
        dims of `self` are not the input dims of `outer` (in any order), or one of them is larger.
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
        other free bit of the answer is 0. Raises LayoutError: the output dims differ, or `self`
        reaches a coordinate that `outer` does not.
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
            name: _support(target, name, sizes) | _support(self, name, sizes)
            for name in {**target._bases, **self._bases}
        }
        untouched = [
            name
            for name, vectors in target._bases.items()
            if self._bases.get(name) == vectors
            and not any(support[name] & support[other] for other in support if other != name)
        ]
        answer = _solved(self, target, untouched)
        if answer is None:
            rule = "must reach every coordinate that the inverted layout is given"
            raise LayoutError("outer", outer.bases, rule)
        return answer

    def invert(self) -> LinearLayout:
        """The inverse of an invertible layout. Raises LayoutError: it is not a bijection;
        `pseudoinvert` may be what is wanted."""
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
        Raises LayoutError: a size is no power of two, or their product is not `total_in_size`."""
        dims = _reshaped(dims, self.total_in_size)
        flat = [basis for vectors in self._bases.values() for basis in vectors]
        bases, start = {}, 0
        for name, size in dims.items():
            end = start + size.bit_length() - 1
            bases[name] = tuple(flat[start:end])
            start = end
        return LinearLayout._trusted(bases, self._out_dims)

    def reshape_outs(self, dims: Mapping[str, int]) -> LinearLayout:
        """Split the output, read as one integer (first dimension lowest), into other dimensions.
        Raises LayoutError: a size is no power of two, or their product is not `total_out_size`."""
        dims = _reshaped(dims, self.total_out_size)
        old, new = tuple(self._out_dims.values()), tuple(dims.values())
        if old == new:  # other names alone
            return LinearLayout._trusted(self._bases, dims)
        bases = {
            name: tuple(unpack(pack(basis, old), new) for basis in vectors)
            for name, vectors in self._bases.items()
        }
        return LinearLayout._trusted(bases, dims)

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


def _reshaped(dims: Any, total: int) -> dict[str, int]:
    sizes = named_sizes("dims", dims)
    if math.prod(sizes.values()) != total:
        raise LayoutError("dims", sizes, f"sizes must multiply to {total}")
    return sizes


def _support(layout: LinearLayout, in_dim: str, sizes: Sequence[int]) -> int:
    """The bits of an output of these sizes that an input dimension has any influence on."""
    images = (pack(basis, sizes) for basis in layout._bases.get(in_dim, ()))
    return functools.reduce(operator.or_, images, 0)


def _solved(layout: LinearLayout, target: LinearLayout, keep: Sequence[str]) -> LinearLayout | None:
    """C with target(C(x)) == layout(x) and the dims in `keep` mapped to themselves."""
    unknown = {name: vectors for name, vectors in target._bases.items() if name not in keep}
    sizes = [1 << len(vectors) for vectors in unknown.values()]
    solve, _ = solver(columns(unknown, target._out_dims.values()))
    kept_at = {name: list(target._bases).index(name) for name in keep}
    solved_at = [list(target._bases).index(name) for name in unknown]
    bases: dict[str, tuple[Basis, ...]] = {}
    for name, vectors in layout._bases.items():
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
