"""What the integer operations of a module make of numbers."""

from __future__ import annotations

import re

from triton_ext.mlir.module import Operation

_WIDTHS = re.compile(r"i(\d+)")
_CASTS = ("arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast")


def element_type(kind: str | None) -> str | None:
    """Of a tensor's type that of its elements; others are as they are."""
    shaped = re.fullmatch(r"tensor<(?:\d+x)+([^,<>]+(?:<[^>]*>)?)(?:,.*)?>", kind or "", re.DOTALL)
    return shaped[1] if shaped else kind


def contents(address: int, size: int) -> int:
    """What global memory is taken to hold: small numbers, another one in each of 61 words.

    Args:
        address: in bytes.
        size: of what is loaded, in bytes.
    """
    found = 0
    for i in range(-address % 4, size, 4):
        found |= ((address + i) // 4 * 37 + 11) % 61 << 8 * i
    return found


def evaluated(operation: Operation, operands: list[int]) -> int | None:
    """What an operation of ``arith`` makes of integers; None for one that is not known here.

    Of tensors: of one element each.
    """
    kind = element_type(operation.results[0].type)
    result = _result(operation, operands)
    return None if result is None or kind is None else _wrapped(result, kind)


def _wrapped(number: int, kind: str) -> int:
    """As a signed integer of a type's width; a condition as 0 or 1."""
    match = _WIDTHS.fullmatch(kind)
    if match is None:
        return number
    width = int(match[1])
    number &= (1 << width) - 1
    return number - (1 << width) if width > 1 and number >> (width - 1) else number


def _result(operation: Operation, sources: list[int]) -> int | None:
    name = operation.name.removeprefix("arith.")
    if operation.name in _CASTS:
        (source,) = sources
        match = _WIDTHS.fullmatch(element_type(operation.operands[0].type) or "")
        if name == "extui" and match:
            source &= (1 << int(match[1])) - 1
        return source
    if len(sources) != 2:
        return None
    a, b = sources
    if name == "cmpi":
        words = [token.text for token in operation.tokens if token.kind == "word"]
        return _compared(words[1] if len(words) > 1 else "", a, b)
    if name in ("divsi", "remsi", "divui", "remui"):
        if not b or (name.endswith("ui") and (a < 0 or b < 0)):
            return None
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if name.startswith("div") else a - quotient * b
    simple = {
        "addi": a + b, "subi": a - b, "muli": a * b, "andi": a & b, "ori": a | b, "xori": a ^ b,
        "minsi": min(a, b), "maxsi": max(a, b),
    }  # fmt: skip
    if name in simple:
        return simple[name]
    if name in ("ceildivsi", "ceildivui") and b > 0 and (name.endswith("si") or a >= 0):
        return -(-a // b)
    if name in ("maxui", "minui") and a >= 0 and b >= 0:
        return max(a, b) if name == "maxui" else min(a, b)
    if name in ("shli", "shrsi") and 0 <= b < 64:
        return a << b if name == "shli" else a >> b
    if name == "shrui" and a >= 0 and 0 <= b < 64:
        return a >> b
    return None


def _compared(predicate: str, a: int, b: int) -> int | None:
    if predicate.startswith("u") and (a < 0 or b < 0):
        return None
    results = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    found = results.get(predicate if predicate in results else predicate[1:])
    return None if found is None else int(found)
