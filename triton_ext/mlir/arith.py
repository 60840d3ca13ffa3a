"""The ``arith`` operations of a module: constants, and which operations on integers they are.

Source: MLIR, "'arith' Dialect". Of tensors, what is said here holds for each element.
"""

from __future__ import annotations

import re

from triton_ext.integers import IntegerOperation
from triton_ext.mlir.ir import Operation, Value

_LITERAL = re.compile(
    r"arith\.constant\s+(?:\{.*?\}\s+)?(?:dense<)?(-?\d[\w.+-]*|true|false)>?(?=\s|$)"
)
_ELEMENT = re.compile(r"tensor<(?:\d+x)+([^,<>]+(?:<[^>]*>)?)(?:,.*)?>", re.DOTALL)
_INTEGER = re.compile(r"i(\d+)")
_INDEX_BITS = 64
_NAMES = {
    "addi": "add", "subi": "sub", "muli": "mul", "andi": "and", "ori": "or", "xori": "xor",
    "shli": "shl", "shrsi": "shr", "shrui": "shr", "divsi": "div", "divui": "div", "remsi": "rem",
    "remui": "rem", "ceildivsi": "ceildiv", "ceildivui": "ceildiv", "minsi": "min", "minui": "min",
    "maxsi": "max", "maxui": "max", "extsi": "copy", "extui": "copy", "trunci": "copy",
    "index_cast": "copy", "index_castui": "copy",
}  # fmt: skip


def constant(value: Value) -> int | float | None:
    """The number of an ``arith.constant``; of a tensor, if all elements are the same.

    Returns:
        An integer for ``true`` (1) and ``false`` (0), too; None for any other value.
    """
    operation = value.definition
    if operation is None or operation.name != "arith.constant":
        return None
    found = _LITERAL.search(operation.text)
    if found is None:
        return None
    if found[1] in ("true", "false"):
        return int(found[1] == "true")
    try:
        return float(found[1]) if "." in found[1] else int(found[1])
    except ValueError:  # the bits of a floating-point number: 0x7F800000
        return None


def integer_constant(value: Value) -> int | None:
    """`constant`, if it is an integer."""
    found = constant(value)
    return found if isinstance(found, int) else None


def element_type(text: str | None) -> str | None:
    """The type of a tensor's elements; any other type as it is."""
    found = _ELEMENT.fullmatch(text or "")
    return found[1] if found else text


def integer_width(text: str | None) -> int | None:
    """Bits of an integer type (``i32``, ``index``), or of a tensor's elements; None for others."""
    element = element_type(text) or ""
    found = _INTEGER.fullmatch(element)
    return int(found[1]) if found else _INDEX_BITS if element == "index" else None


def integer_operation(operation: Operation) -> IntegerOperation | None:
    """What an operation of ``arith`` on integers does; None for others.

    ``arith.select`` is none: it may choose between memory, too.
    """
    dialect, _, base = operation.name.partition(".")
    if dialect != "arith" or not operation.operands or not operation.results:
        return None
    width = integer_width(operation.operands[0].type)
    result = integer_width(operation.results[0].type)
    if width is None or result is None:
        return None
    if base == "cmpi":  # slt, ult, eq: the second word
        predicate = [token.text for token in operation.tokens if token.kind == "word"][1]
        return IntegerOperation(predicate[-2:], width, predicate[0] == "s", 1)
    name = _NAMES.get(base)
    is_signed = base.endswith("si") or base == "index_cast"
    return IntegerOperation(name, width, is_signed, result) if name else None
