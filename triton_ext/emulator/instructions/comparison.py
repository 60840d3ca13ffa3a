"""Comparisons and selections (PTX ISA 9.7.6, 9.7.7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from triton_ext.emulator.decode.evidence import DOCUMENT, SILICON
from triton_ext.emulator.decode.values import PACKED, element
from triton_ext.emulator.instructions.elementwise import Array, Function, Row, Variant
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units.floats import KINDS, flush, is_nan, widen

_ORDERED: dict[str, Function] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED = {f"{name}u": name for name in _ORDERED}
_NAMES = (*_ORDERED, *_UNSIGNED, *_UNORDERED, "num", "nan")
_JOINS: dict[str, Function] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


def _float_comparison(name: str, kind: str) -> Function:
    if name in ("num", "nan"):

        def unordered(a: Any, b: Any) -> Any:
            found = is_nan(a, kind) | is_nan(b, kind)
            return found if name == "nan" else ~found

        return unordered
    accept_nan = name in _UNORDERED
    compare = _ORDERED[_UNORDERED.get(name, name)]

    def ordered(a: Any, b: Any) -> Any:
        if kind == "bf16":
            a, b = widen(a, kind), widen(b, kind)
        result = compare(a, b)
        if name == "neu":
            return result  # numpy's != holds for NaN
        if accept_nan:
            return result | is_nan(a, "f64") | is_nan(b, "f64")
        if name == "ne":
            return result & ~is_nan(a, "f64") & ~is_nan(b, "f64")
        return result

    return ordered


def _comparison(form: Variant, type_name: str) -> Function:
    name, kind = form.one_of(_NAMES), element(type_name)
    if kind not in KINDS:
        return _ORDERED[_UNSIGNED.get(name, name)]
    compare = _float_comparison(name, kind)
    if "ftz" not in form:
        return compare
    return lambda a, b: compare(flush(a, kind), flush(b, kind))


def _set_predicates(form: Variant) -> Function:
    """``setp``: p = compare [op c], and q = !compare [op c]; packed: p and q are the halves'."""
    compare, packed = _comparison(form, form.type), form.type in PACKED
    join = _JOINS.get(form.one_of(_JOINS))
    if not form.pair and not packed:
        return (lambda a, b, third: join(compare(a, b), third)) if join else compare

    def function(a: Array, b: Array, *third: Array) -> Any:
        first = compare(a, b)
        if packed:
            first, second = np.asarray(first).reshape(-1, 2).T
        else:
            second = np.logical_not(first)
        results = [join(each, *third) if join else each for each in (first, second)]
        return results if form.pair else results[0]

    return function


def _set_value(form: Variant) -> Function:
    """``set``: all ones, or 1.0 of a float type, where the comparison holds; else 0."""
    compare, packed = _comparison(form, form.second), form.second in PACKED
    join = _JOINS.get(form.one_of(_JOINS))
    yes: Any
    if form.element == "bf16":
        yes = np.uint16(0x3F80)
    elif form.element in KINDS:
        yes = form.dtype.type(1.0)
    else:  # of each half, if the comparison has two
        yes = np.full((), -1, np.int64).astype(DTYPES["u16"] if packed else form.dtype)[()]
    no = yes.dtype.type(0)

    def function(a: Array, b: Array, *third: Array) -> Array:
        result = compare(a, b)
        if join:
            result = join(result, *(np.repeat(each, 2) if packed else each for each in third))
        return np.where(result, yes, no)

    return function


# --------------------------------------------------------------------------- selections


def _select_by_sign(form: Variant) -> Function:
    """``slct``: a where c >= 0, else b; a NaN counts as negative, -0 does not."""
    tiny = np.float32(2.0**-126 if "ftz" in form else 0)

    def function(a: Array, b: Array, c: Array) -> Array:
        chosen = c >= 0
        if "ftz" in form:
            chosen = chosen | (np.abs(c) < tiny)
        return np.where(chosen, a, b)

    return function


_SIGNED = "eq|ne|lt|le|gt|ge"
_FLOAT = f"{_SIGNED}|equ|neu|ltu|leu|gtu|geu|num|nan"
_BITS = "b16 b32 b64"
_SCALARS = (
    ("eq|ne", _BITS),
    (_SIGNED, "s16 s32 s64"),
    (f"{_SIGNED}|lo|ls|hi|hs", "u16 u32 u64"),
    (f"{_FLOAT} ftz?", "f32 f16"),
    (_FLOAT, "f64 bf16"),
)
"""Comparisons with their modifier, and the types that have them."""


def _rows(join: str, third: str) -> Iterator[Row]:
    """The rows with or without a boolean operator, and its operand.

    The H100 ran ``setp`` with an operator on numbers alone, and no ``set`` with one.
    """
    joined = DOCUMENT if join else SILICON
    for compare, types in _SCALARS:
        form = f"{compare} {join}"
        setp = joined if types == _BITS else SILICON
        yield Row(setp, "setp", form, types, f"pred|pred? = t, t{third}", make=_set_predicates)
        targets = "u32 s32 f32 f16 bf16" + (" u16 s16" if "16" in types else "")
        yield Row(joined, "set", form, targets, f"t = s, s{third}", second=types, make=_set_value)
    for form, pair in ((f"{_FLOAT} ftz? {join}", "f16x2"), (f"{_FLOAT} {join}", "bf16x2")):
        yield Row(joined, "setp", form, pair, f"pred|pred? = t, t{third}", make=_set_predicates)
        yield Row(joined, "set", form, pair, f"t = s, s{third}", second=pair, make=_set_value)
        to, operands = "u32 s32", f"u16x2 = s, s{third}"
        yield Row(DOCUMENT, "set", form, to, operands, second=pair, make=_set_value)


_ALL = "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"

ROWS = (
    # PTX ISA 9.7.6, "Comparison and Selection Instructions"; 9.7.7, "Half Precision Comparison ..."
    *_rows("", ""),
    *_rows("and|or|xor", ", pred"),
    Row(SILICON, "selp", "", _ALL, "t = t, t, pred", lambda a, b, p: np.where(p, a, b)),
    Row(SILICON, "slct", "", _ALL, "b = b, b, s", second="s32 f32", make=_select_by_sign),
    Row(SILICON, "slct", "ftz", _ALL, "b = b, b, s", second="f32", make=_select_by_sign),
)
