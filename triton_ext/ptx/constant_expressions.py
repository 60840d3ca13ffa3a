"""Constant expressions of PTX, evaluated (PTX ISA, "Constant Expressions").

``(1 << 4) | 3``, ``WARP_SZ - 1`` and ``017`` become the literals ``19``, ``31`` and ``15``, and
``[s + 8*2]`` becomes ``[s+16]``, before anyone reads an operand: readers know literals alone. Two
results are ptxas's: the count of a shift is taken modulo 64, which the document leaves open, and a
conditional has the type of what it chooses, not of both.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.integers import MEANINGS, signed

_BITS = 64
_MASK = (1 << _BITS) - 1
_MAX_DEPTH = 64
INTEGER = r"0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*"
"""A hexadecimal, binary, octal or decimal literal (PTX ISA, "Integer Constants")."""
# What an operand has that is neither a name, a literal, nor a name and a literal.
_TELLTALE = re.compile(
    r"[*/()~?<>&^|=]|!(?!%)|%(?![\w$])|\bWARP_SZ\b|(?<![\w$%.])(?:0\d|\d[\w.]*\s*[-+])|(?<![\w$])[-+]\s*[-+]"
)
_PLAIN = re.compile(r"\s*(?:0[xX]\w+|(?:0|[1-9]\d*)?(?:\.\d*)?(?:[eE][-+]?\d+)?|%\w+)\s*")
"""A literal that needs no evaluation, or a register."""
_SPAN = re.compile(r"[^\[\]{},]+")
_NAMED = re.compile(
    r"\s*(?!WARP_SZ\b)((?:generic\s*\(\s*[A-Za-z_$%][\w$.]*\s*\))|[A-Za-z_$%][\w$.]*)\s*\+"
)
_TOKEN = re.compile(
    r"\s*(?:(?P<real>0[dD][0-9a-fA-F]{16}(?!\w)|(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?)"
    rf"|(?P<integer>{INTEGER})(?P<suffix>U?)(?![\w.])|(?P<warp>WARP_SZ)\b"
    r"|(?P<cast>\(\s*\.(?P<type>[a-z]\w*)\s*\))|(?P<mark><<|>>|<=|>=|==|!=|&&|\|\||[-+*/<>&^|!~?:()]|%(?![\w$])))"
)


@dataclass(frozen=True)
class _Value:
    """A constant: 64 bits as an unsigned number and whether they are .u64, or an .f64."""

    bits: int = 0
    unsigned: bool = False
    real: float | None = None

    @property
    def number(self) -> int:
        return self.bits if self.unsigned else signed(self.bits, _BITS)

    def __str__(self) -> str:
        if self.real is None:
            return str(self.number)
        return f"0d{struct.unpack('<Q', struct.pack('<d', self.real))[0]:016X}"


class _NoConstant(Exception):
    """The text is no constant expression: a register, a label, or something else."""


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "*": operator.mul, "/": MEANINGS["div"].function, "+": operator.add, "-": operator.sub,
    "&": operator.and_, "^": operator.xor, "|": operator.or_,
}  # fmt: skip
_REAL: dict[str, Callable[[float, float], float]] = {
    "*": operator.mul, "/": operator.truediv, "+": operator.add, "-": operator.sub,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_LEVELS = ("||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %")
_PRECEDENCE = {mark: level for level, marks in enumerate(_LEVELS) for mark in marks.split()}


def folded(text: str) -> str:
    """Operands of an instruction, or an initializer, with constant expressions as literals.

    What is no constant expression stays as it is.

    Raises:
        LayoutError: a constant expression that the PTX ISA does not allow; the rule says why.
    """
    return _SPAN.sub(_folded_span, text) if _TELLTALE.search(text) else text


def _folded_span(match: re.Match[str]) -> str:
    """A part without brackets or commas: an expression, or a name, ``+`` and an expression."""
    span = match[0]
    named = _NAMED.match(span)
    if _PLAIN.fullmatch(span):
        return span
    try:
        value = _Parser(span[named.end() :] if named else span).value()
    except _NoConstant:
        return span
    return f"{''.join(named[1].split())}+{value}" if named else str(value)


class _Parser:
    """Evaluates one expression, with C's precedence."""

    def __init__(self, text: str) -> None:
        self._text, self._depth = text.strip(), 0
        self._tokens: list[re.Match[str]] = []
        position = 0
        while position < len(self._text):
            token = _TOKEN.match(self._text, position)
            if token is None:
                raise _NoConstant
            self._tokens.append(token)
            position = token.end()
        self._tokens.reverse()

    def value(self) -> _Value:
        found = self._conditional()
        if self._tokens:
            raise _NoConstant
        return found

    def _refusal(self, rule: str) -> LayoutError:
        return LayoutError("constant expression", self._text, rule)

    def _take(self, *marks: str) -> str:
        """The next operator, if it is one of them; else ""."""
        if self._tokens and self._tokens[-1]["mark"] in marks:
            return str(self._tokens.pop()["mark"])
        return ""

    def _integer(self, value: _Value) -> _Value:
        if value.real is not None:
            raise self._refusal("a float cannot be here: must be an integer")
        return value

    def _conditional(self) -> _Value:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._refusal(f"must nest at most {_MAX_DEPTH} deep")
        found = self._binary(0)
        if self._take("?"):
            condition, yes = self._integer(found), self._integer(self._conditional())
            if not self._take(":"):
                raise _NoConstant
            no = self._integer(self._conditional())
            found = yes if condition.bits else no
        self._depth -= 1
        return found

    def _binary(self, lowest: int) -> _Value:
        """Operators that bind at least as much as level `lowest`."""
        left = self._unary()
        while self._tokens and _PRECEDENCE.get(self._tokens[-1]["mark"], -1) >= lowest:
            mark = self._tokens.pop()["mark"]
            left = self._combined(mark, left, self._binary(_PRECEDENCE[mark] + 1))
        return left

    def _combined(self, mark: str, left: _Value, right: _Value) -> _Value:
        if (left.real is None) != (right.real is None):
            raise self._refusal(f"{mark} must be between two integers, or between two floats")
        if mark in "/%" and not (right.bits if right.real is None else right.real):
            raise self._refusal("must not divide by zero")
        if left.real is not None and right.real is not None:
            if mark in _COMPARISONS:
                return _Value(int(_COMPARISONS[mark](left.real, right.real)))
            if mark not in _REAL:
                raise self._refusal(f"{mark} must be between integers")
            return _Value(real=_REAL[mark](left.real, right.real))
        if mark == "%":
            return _Value(left.bits % right.bits, unsigned=True)
        if mark in ("<<", ">>"):
            by = right.bits % _BITS
            number = left.number << by if mark == "<<" else left.number >> by
            return _Value(number & _MASK, left.unsigned)
        if mark in ("&&", "||"):
            true = (left.bits and right.bits) if mark == "&&" else (left.bits or right.bits)
            return _Value(int(bool(true)))
        unsigned = left.unsigned or right.unsigned
        a, b = (each.bits if unsigned else each.number for each in (left, right))
        if mark in _COMPARISONS:
            return _Value(int(_COMPARISONS[mark](a, b)))
        return _Value(_ARITHMETIC[mark](a, b) & _MASK, unsigned)

    def _unary(self) -> _Value:
        marks = []
        while self._tokens and (
            self._tokens[-1]["cast"] or self._tokens[-1]["mark"] in ("+", "-", "!", "~")
        ):
            token = self._tokens.pop()
            marks.append(f".{token['type']}" if token["cast"] else token["mark"])
        found = self._primary()
        for mark in reversed(marks):
            found = self._applied(mark, found)
        return found

    def _applied(self, mark: str, value: _Value) -> _Value:
        if mark == "+":
            return value
        if mark == "-":
            if value.real is not None:
                return _Value(real=-value.real)
            return _Value(-value.bits & _MASK, value.unsigned)
        bits = self._integer(value).bits
        if mark == "!":
            return _Value(int(not bits))
        if mark == "~":
            return _Value(~bits & _MASK, unsigned=True)
        if mark not in (".s64", ".u64"):
            raise self._refusal(f"a cast must be to .s64 or .u64, not {mark}")
        return _Value(bits, mark == ".u64")

    def _primary(self) -> _Value:
        if self._take("("):
            found = self._conditional()
            if not self._take(")"):
                raise _NoConstant
            return found
        if not self._tokens or self._tokens[-1]["mark"]:
            raise _NoConstant
        token = self._tokens.pop()
        if token["warp"]:
            return _Value(WARP_THREADS)
        if token["real"]:
            return _Value(real=self._real(token["real"]))
        number = literal(token["integer"])
        if number > _MASK:
            raise self._refusal(f"{token['integer']} has more than 64 bits")
        return _Value(number, bool(token["suffix"]) or number >> _BITS - 1 != 0)

    def _real(self, text: str) -> float:
        if text[1] in "dD":
            return float(struct.unpack("<d", struct.pack("<Q", int(text[2:], 16)))[0])
        if math.isinf(found := float(text)):
            raise self._refusal(f"{text} is greater than any .f64")
        return found


def literal(text: str) -> int:
    """The number of an `INTEGER`, in whatever base."""
    if text[:2].lower() in ("0x", "0b"):
        return int(text, 0)
    return int(text, 8 if text[0] == "0" else 10)
