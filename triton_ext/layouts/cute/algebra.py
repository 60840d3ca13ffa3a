"""CuTe's layout algebra.

A CuTe layout is a function from coordinates to indices, written ``shape:stride``. Both are
integers or nested tuples of integers of one structure; a *mode* is one entry of the outermost
tuple. An integer coordinate counts colexicographically: the first mode is the fastest. Beyond its
size a layout goes on along its last mode. Names and semantics are those of CUTLASS
(``include/cute/layout.hpp`` and ``media/docs/cpp/cute/02_layout_algebra.md``).

CuTe returns layouts that break its own post-condition where a composition carries from one mode
into the next; here each post-condition holds, and what cannot satisfy it is a LayoutError.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from triton_ext.errors import LayoutError
from triton_ext.layouts.arguments import integers

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"
Tiler: TypeAlias = "int | Layout | tuple[Tiler, ...]"

MAX_DEPTH = 32
"""The deepest nesting of a shape; derivations need 3."""

_TOKEN = re.compile(r"\s*(?:_?(\d{1,18})(?!\d)|([(),:]))")


def _checked(name: str, value: Any, least: int, depth: int = 0) -> IntTuple:
    """`value` as nested tuples of integers, each at least `least`, or LayoutError."""
    if isinstance(value, tuple | list):
        if not value or depth == MAX_DEPTH:
            rule = f"tuples must have an entry, and nest at most {MAX_DEPTH} deep"
            raise LayoutError(name, value, rule)
        return tuple(_checked(name, entry, least, depth + 1) for entry in value)
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise LayoutError(name, value, f"must be integers >= {least}, or nested tuples of them")
    return number


def _congruent(a: IntTuple, b: IntTuple) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(_congruent, a, b))


def leaves(value: IntTuple) -> Iterator[int]:
    """The integers of nested tuples, from left to right."""
    if isinstance(value, int):
        yield value
    else:
        for entry in value:
            yield from leaves(entry)


def _entries(value: IntTuple) -> tuple[IntTuple, ...]:
    return (value,) if isinstance(value, int) else value


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _text(value: IntTuple) -> str:
    return str(value) if isinstance(value, int) else f"({','.join(map(_text, value))})"


def _index(coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    if isinstance(stride, int):
        if not isinstance(coordinate, int):
            raise LayoutError("coordinate", coordinate, f"must be an integer for mode {shape}")
        return coordinate * stride
    parts = _entries(shape)
    if not isinstance(coordinate, int):
        if len(coordinate) != len(parts):
            rule = f"must have the {len(parts)} modes of {_text(shape)}"
            raise LayoutError("coordinate", coordinate, rule)
        return sum(map(_index, coordinate, parts, stride))
    index = 0
    for part, step in zip(parts[:-1], stride[:-1], strict=True):
        coordinate, inner = divmod(coordinate, math.prod(leaves(part)))
        index += _index(inner, part, step)
    return index + _index(coordinate, parts[-1], stride[-1])


@dataclass(frozen=True)
class Layout:
    """``shape:stride``, a function from coordinates to indices.

    Args:
        shape: an integer of at least 1, or a nested tuple of them.
        stride: integers of at least 0, in the structure of `shape`.

    Raises:
        LayoutError: neither, or two different structures.
    """

    shape: IntTuple
    stride: IntTuple

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _checked("shape", self.shape, 1))
        object.__setattr__(self, "stride", _checked("stride", self.stride, 0))
        if not _congruent(self.shape, self.stride):
            rule = f"must have the structure of the shape {_text(self.shape)}"
            raise LayoutError("stride", self.stride, rule)

    @classmethod
    def compact(cls, shape: IntTuple) -> Layout:
        """The colexicographic layout of a shape: index = integer coordinate.

        Post-condition: ``result(i) == i`` for all i below the size. A mode of size 1 has stride 0,
        as in CuTe.
        """
        step = 1

        def strides(part: IntTuple) -> IntTuple:
            nonlocal step
            if not isinstance(part, int):
                return tuple(strides(entry) for entry in part)
            stride = step if part > 1 else 0
            step *= part
            return stride

        shape = _checked("shape", shape, 1)
        return cls(shape, strides(shape))

    @classmethod
    def parse(cls, text: str) -> Layout:
        """From CuTe's printed form, such as ``((8,16),(64,2)):((64,512),(1,8192))``.

        A static integer's ``_`` (CuTe C++ prints ``_8``) is skipped; a shape alone is compact.
        Post-condition: ``Layout.parse(str(layout)) == layout``. Raises LayoutError: not such a
        text.
        """
        rule = "must read shape:stride, such as ((8,16),(64,2)):((64,512),(1,8192))"
        if not isinstance(text, str):
            raise LayoutError("layout", text, rule)
        tokens: list[str] = []
        end = len(text.rstrip())
        position = 0
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise LayoutError("layout", text, rule)
            tokens.append(match[1] or match[2])
            position = match.end()
        tokens.append("")  # the end

        def take(depth: int) -> IntTuple:
            token = tokens.pop(0)
            if token.isdigit():
                return int(token)
            if token != "(" or depth == MAX_DEPTH:
                raise LayoutError("layout", text, rule)
            entries = [take(depth + 1)]
            while tokens[0] == ",":
                tokens.pop(0)
                entries.append(take(depth + 1))
            if tokens.pop(0) != ")":
                raise LayoutError("layout", text, rule)
            return tuple(entries)

        shape = take(0)
        if tokens == [""]:
            return cls.compact(shape)
        if tokens.pop(0) != ":":
            raise LayoutError("layout", text, rule)
        stride = take(0)
        if tokens != [""]:
            raise LayoutError("layout", text, rule)
        return cls(shape, stride)

    @property
    def modes(self) -> tuple[Layout, ...]:
        """The outermost modes; the layout itself if its shape is an integer."""
        if isinstance(self.stride, int):
            return (self,)
        return tuple(map(Layout, _entries(self.shape), self.stride))

    def __call__(self, *coordinate: IntTuple) -> int:
        """The index at a coordinate: one integer, or one coordinate for each mode. Raises
        LayoutError: a negative coordinate, or more structure than the shape has."""
        checked = _checked("coordinate", coordinate, 0)
        if not isinstance(checked, int) and len(checked) == 1:
            checked = checked[0]
        return _index(checked, self.shape, self.stride)

    def __str__(self) -> str:
        """As CuTe prints it."""
        return f"{_text(self.shape)}:{_text(self.stride)}"


def size(layout: Layout) -> int:
    """How many coordinates there are. Post-condition: the product of the shape."""
    return math.prod(leaves(layout.shape))


def cosize(layout: Layout) -> int:
    """The largest index plus 1. Post-condition: ``max(layout(i)) + 1`` over all i."""
    return layout(size(layout) - 1) + 1


def rank(layout: Layout) -> int:
    """How many modes there are. Post-condition: ``len(layout.modes)``."""
    return len(_entries(layout.shape))


def concatenate(*layouts: Layout) -> Layout:
    """The layouts as the modes of one (CuTe's ``make_layout``).

    Post-condition: ``result((c0, c1, ...)) == layouts[0](c0) + layouts[1](c1) + ...``
    """
    return Layout(tuple(part.shape for part in layouts), tuple(part.stride for part in layouts))


def flat_modes(layout: Layout) -> list[tuple[int, int]]:
    """(shape, stride) of each mode without nested ones, the fastest first."""
    return list(zip(leaves(layout.shape), leaves(layout.stride), strict=True))


def _from_modes(modes: Sequence[tuple[int, int]]) -> Layout:
    """One mode becomes an integer, none ``1:0``."""
    if not modes:
        return Layout(1, 0)
    if len(modes) == 1:
        return Layout(*modes[0])
    return Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))


def _merged(modes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring modes in one where the second goes on where the first ends."""
    result: list[tuple[int, int]] = []
    for shape, stride in modes:
        if result and result[-1][0] * result[-1][1] == stride:
            result[-1] = (result[-1][0] * shape, result[-1][1])
        else:
            result.append((shape, stride))
    return result


def flatten(layout: Layout) -> Layout:
    """Without nested modes. Post-condition: depth at most 1, the same function of integers."""
    if isinstance(layout.shape, int):
        return layout
    return Layout(tuple(leaves(layout.shape)), tuple(leaves(layout.stride)))


def coalesce(layout: Layout) -> Layout:
    """With as few modes as possible: flat, without modes of size 1, neighbours merged.

    Post-condition: depth at most 1, and ``result(i) == layout(i)`` for all i below the size.
    """
    return _from_modes(_merged([mode for mode in flat_modes(layout) if mode[0] > 1]))


def _compose_mode(modes: Sequence[tuple[int, int]], right: Layout, shape: int, step: int) -> Layout:
    """`modes` (merged; the last one goes on for ever) after the mode ``shape:step`` of `right`."""
    if step == 0:
        return Layout(shape, 0)
    result: list[tuple[int, int]] = []
    for extent, stride in modes[:-1]:
        if step >= extent:
            if step % extent:
                raise LayoutError(
                    "right",
                    str(right),
                    f"its stride must be a multiple of the extents that it passes over: {step} is"
                    f" none of {extent}",
                )
            step //= extent
            continue
        taken = min(_ceil_div(extent, step), shape)
        if taken > 1:
            if shape % taken or (taken < shape and extent % step):
                raise LayoutError(
                    "right",
                    str(right),
                    f"must divide the left layout: {shape}:{step} does not end with the extent"
                    f" {extent}",
                )
            result.append((taken, step * stride))
        shape //= taken
        step = 1
    if shape > 1 or not result:
        result.append((shape, step * modes[-1][1]))
    return _from_modes(result)


def _compose(modes: Sequence[tuple[int, int]], right: Layout) -> Layout:
    if isinstance(right.stride, int):
        return _compose_mode(modes, right, size(right), right.stride)
    return concatenate(*(_compose(modes, mode) for mode in right.modes))


def _check_no_carry(modes: Sequence[tuple[int, int]], right: Layout) -> None:
    """LayoutError if the modes of `right` add up beyond an extent that each alone stays within."""
    boundary = 1
    for extent, _ in modes[:-1]:
        boundary *= extent
        highest = 0
        for shape, step in flat_modes(right):
            inside = shape if step == 0 else min(shape, _ceil_div(boundary, step))
            highest += (inside - 1) * step
        if highest >= boundary:
            raise LayoutError(
                "right",
                str(right),
                f"its modes must not carry from one mode of the left layout into the next: they"
                f" add up to {highest}, and the extent is {boundary}",
            )


def composition(left: Layout, right: Tiler) -> Layout:
    """`left` after `right`: the elements of `left` that `right` points to.

    `right` is a layout, an integer n (``n:1``), or a tuple of these for the modes of `left`.

    Post-condition: ``result(i) == left(right(i))`` for all i below the size of `right`; each mode
    of `right` is a mode of the result, of the same size. Raises LayoutError: the result is no
    layout (CuTe's stride and shape divisibility conditions), or is none because modes of `right`
    together carry from one mode of `left` into the next.
    """
    if isinstance(right, tuple):
        if len(right) != rank(left):
            raise LayoutError("right", right, f"must have the {rank(left)} modes of {left}")
        return concatenate(*map(composition, left.modes, right))
    right = _tiler_layout("right", right)
    flat = flat_modes(left)
    modes = _merged([mode for mode in flat[:-1] if mode[0] > 1] + flat[-1:])
    result = _compose(modes, right)
    _check_no_carry(modes, right)
    return result


def _tiler_layout(name: str, tiler: Any) -> Layout:
    if isinstance(tiler, Layout):
        return tiler
    if isinstance(tiler, bool) or not isinstance(tiler, int) or tiler < 1:
        raise LayoutError(name, tiler, "must be a Layout, an integer >= 1, or a tuple of these")
    return Layout.compact(tiler)


def complement(layout: Layout, cotarget: int) -> Layout:
    """What repeats `layout` to fill the indices 0 to `cotarget`: the "rest".

    Post-condition: the result's indices increase, apart from 0 none is an index of `layout`, each
    index of ``concatenate(layout, result)`` is reached by one coordinate (modes of stride 0 aside),
    and its cosize is at least `cotarget`. Raises LayoutError: modes of `layout` overlap or
    interleave.
    """
    if isinstance(cotarget, bool) or not isinstance(cotarget, int) or cotarget < 1:
        raise LayoutError("cotarget", cotarget, "must be an integer >= 1")
    result: list[tuple[int, int]] = []
    filled = 1
    for shape, stride in sorted(flat_modes(layout), key=lambda mode: mode[1]):
        if shape == 1 or stride == 0:
            continue
        if stride < filled:
            raise LayoutError(
                "layout",
                str(layout),
                f"its modes must neither overlap nor interleave: stride {stride} is less than"
                f" {filled}, where the modes of smaller strides end",
            )
        result.append((stride // filled, filled))
        filled = shape * stride
    result.append((_ceil_div(cotarget, filled), filled))
    return coalesce(_from_modes(result))


def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """Split into the elements that the tiler points to, and the rest: ``(tile, rest)``.

    By a tuple each mode is split for itself; modes beyond the tuple stay as they are.

    Post-condition, for a layout as tiler: ``result((i, j)) == layout(tiler(i) + rest(j))`` with
    ``rest = complement(tiler, size(layout))``. Raises LayoutError: as `composition` and
    `complement`.
    """
    if isinstance(tiler, tuple):
        _check_modes(layout, tiler)
        divided = [logical_divide(m, t) for m, t in zip(layout.modes, tiler, strict=False)]
        return concatenate(*divided, *layout.modes[len(tiler) :])
    tiler = _tiler_layout("tiler", tiler)
    return composition(layout, concatenate(tiler, complement(tiler, size(layout))))


def _check_modes(layout: Layout, tiler: tuple[Tiler, ...]) -> None:
    if not 1 <= len(tiler) <= rank(layout):
        raise LayoutError("tiler", tiler, f"must have at most the {rank(layout)} modes of {layout}")


def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_divide` with the tile parts gathered: ``((tile0, tile1, ...), (rest0, ...))``.

    Post-condition: the same elements as `logical_divide`, at ``((t0, t1), (r0, r1))`` rather than
    at ``((t0, r0), (t1, r1))``; modes beyond the tiler follow the rests. Raises LayoutError: as
    `logical_divide`.
    """
    if not isinstance(tiler, tuple):
        return logical_divide(layout, tiler)
    _check_modes(layout, tiler)
    parts = [zipped_divide(m, t).modes for m, t in zip(layout.modes, tiler, strict=False)]
    tiles, rests = concatenate(*(p[0] for p in parts)), [p[1] for p in parts]
    return concatenate(tiles, concatenate(*rests, *layout.modes[len(tiler) :]))


def logical_product(block: Layout, tiler: Layout) -> Layout:
    """`block` repeated as often as `tiler` says, in the order that it says: ``(block, copies)``.

    Post-condition: ``result((i, j)) == block(i) + copies(j)``, where the copies are elements of the
    complement of `block`, in the order of `tiler`. Raises LayoutError: as `composition` and
    `complement`.
    """
    rest = complement(block, size(block) * cosize(tiler))
    return concatenate(block, composition(rest, tiler))


def blocked_product(block: Layout, tiler: Layout) -> Layout:
    """`logical_product`, mode by mode: ``((block0, copies0), (block1, copies1), ...)``.

    Post-condition: the elements of the product; mode i has size ``size(block mode i) * size(tiler
    mode i)``, with those of one block side by side. Raises LayoutError: as `logical_product`.
    """
    wide = max(rank(block), rank(tiler))
    padded = [concatenate(*x.modes, *[Layout(1, 0)] * (wide - rank(x))) for x in (block, tiler)]
    first, second = logical_product(*padded).modes
    return concatenate(*map(concatenate, first.modes, second.modes))


def _integers(name: str, values: Any) -> tuple[int, ...]:
    """`values` as a tuple of integers of at least 0, or LayoutError."""
    checked = integers(name, values)
    if not checked or min(checked) < 0:
        raise LayoutError(name, values, "must be a sequence of integers >= 0")
    return checked


def ordered_layout(shape: Sequence[int], order: Sequence[int]) -> Layout:
    """A compact layout whose mode of order 0 is the fastest, then that of order 1, ...

    Post-condition: a bijection onto 0, 1, ...; with the order 0, 1, ... it is
    ``Layout.compact(shape)``. Raises LayoutError: `order` is no permutation of the modes, or a size
    is 0.
    """
    sizes, ranks = _integers("shape", shape), _integers("order", order)
    if sorted(ranks) != list(range(len(sizes))):
        raise LayoutError("order", ranks, f"must be a permutation of 0 to {len(sizes) - 1}")
    strides = [0] * len(sizes)
    step = 1
    for mode in sorted(range(len(sizes)), key=ranks.__getitem__):
        strides[mode] = step if sizes[mode] > 1 else 0
        step *= sizes[mode]
    return Layout(sizes, tuple(strides))


def tile_to_shape(atom: Layout, shape: Sequence[int], order: Sequence[int] | None = None) -> Layout:
    """`atom` repeated until it has `shape`: ``((atom0, rest0), (atom1, rest1), ...)``.

    Args:
        atom: the layout to repeat.
        shape: the size of each mode of the result; multiples of those of `atom`.
        order: the copies along the mode of order 0 come first in memory, then those along the
            mode of order 1, ...; by default 0, 1, ...

    Post-condition: mode i of the result has size ``shape[i]``; at a coordinate within the first
    atom it is `atom`; an injective atom gives an injective tile, a compact one a compact tile.

    Raises:
        LayoutError: `shape` is no multiple of the atom's, or `order` is no permutation; the atom's
            modes overlap or interleave, or leave gaps that its copies do not fit into evenly.
    """
    target = _integers("shape", shape)
    blocks = [size(mode) for mode in atom.modes] + [1] * (len(target) - rank(atom))
    if len(blocks) > len(target) or any(
        extent == 0 or extent % block for extent, block in zip(target, blocks, strict=True)
    ):
        raise LayoutError("shape", target, f"must be multiples of the atom's shape {tuple(blocks)}")
    copies = [extent // block for extent, block in zip(target, blocks, strict=True)]
    padded = concatenate(*atom.modes, *[Layout(1, 0)] * (len(target) - rank(atom)))
    ranks = range(len(target)) if order is None else order
    return blocked_product(padded, ordered_layout(copies, ranks))


def recast(layout: Layout, old_bits: int, new_bits: int) -> Layout:
    """A layout of elements of `old_bits` bits as one of wider elements of `new_bits` bits.

    CuTe's ``upcast``: a mode whose stride stays within one wide element shrinks by the elements
    that this one holds; the other strides are divided.

    Post-condition, if `layout` reaches each index once: its indices divided by ``new_bits /
    old_bits``, rounded down, are the indices of the result. Raises LayoutError: `new_bits` is no
    multiple of `old_bits`, or a stride neither divides their ratio nor is a multiple of it.
    """
    old_bits, new_bits = _integers("(old_bits, new_bits)", (old_bits, new_bits))
    if old_bits < 1 or new_bits < old_bits or new_bits % old_bits:
        raise LayoutError("new_bits", new_bits, f"must be a multiple of old_bits ({old_bits})")
    ratio = new_bits // old_bits
    if isinstance(layout.stride, int):
        shape, stride = size(layout), layout.stride
        if stride == 0:
            return layout
        if stride % ratio and ratio % stride:
            raise LayoutError(
                "layout",
                str(layout),
                f"its strides must divide {ratio} or be multiples of it, to recast {old_bits} bits"
                f" to {new_bits}",
            )
        return Layout(_ceil_div(shape, _ceil_div(ratio, stride)), _ceil_div(stride, ratio))
    return concatenate(*(recast(mode, old_bits, new_bits) for mode in layout.modes))
