"""Which PTX instructions are operations on integers, and which of `triton_ext.integers` each is."""

from __future__ import annotations

import functools
import re

from triton_ext.integers import COMPARISONS, IntegerOperation

_WIDTH = re.compile(r"\.[usbf](8|16|32|64)\b")
_FLOAT = re.compile(r"\.(?:b?f16|t?f32|f64|e\dm\d)")
_PACKED = re.compile(r"\.[usbf]\d+x\d")
_SAME_NAME = frozenset(
    ("add", "sub", "neg", "not", "and", "or", "xor", "abs", "min", "max", "div", "rem", "shl",
     "shr", "bfi", "lop3", "prmt")
)  # fmt: skip
_COPIES = {"mov": "copy", "cvta": "copy", "selp": "select"}
"""Instructions that take floating-point numbers as the bits that they are."""
_COMPARISONS = {name: name for name in COMPARISONS} | {
    "lo": "lt", "ls": "le", "hi": "gt", "hs": "ge",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def opcode_width(opcode: str) -> int:
    """Bits of an instruction's type, the first one if it names several; 32 if it names none."""
    found = _WIDTH.search(opcode)
    return int(found[1]) if found else 1 if ".pred" in opcode else 32


@functools.lru_cache(maxsize=4096)
def is_float(opcode: str) -> bool:
    """Whether an instruction's types are of floating point."""
    return bool(_FLOAT.search(opcode))


@functools.lru_cache(maxsize=4096)
def integer_operation(opcode: str) -> IntegerOperation | None:
    """What an instruction does to its sources, or None for another or one that saturates."""
    base, *modifiers = opcode.split(".")
    width = opcode_width(opcode)
    is_signed = f"s{width}" in modifiers
    if base in _COPIES:
        return IntegerOperation(_COPIES[base], width, False, width)
    if is_float(opcode) or "sat" in modifiers or _PACKED.search(opcode):
        return None
    if base == "cvt":
        widths = [int(found) for found in _WIDTH.findall(opcode)]
        if len(widths) != 2:
            return None
        return IntegerOperation("copy", widths[1], modifiers[-1][0] == "s", widths[0])
    if base == "setp":
        name = _COMPARISONS.get(modifiers[0]) if len(modifiers) == 2 else None
        return IntegerOperation(name, width, is_signed, 1) if name else None
    if base in ("mul", "mad"):
        name = f"{base}hi" if "hi" in modifiers else base
        return IntegerOperation(name, width, is_signed, 2 * width if "wide" in modifiers else width)
    if base == "bfe":
        return IntegerOperation("bfes" if is_signed else "bfe", width, is_signed, width)
    if base not in _SAME_NAME or (base == "prmt" and len(modifiers) > 1):
        return None
    return IntegerOperation(base, width, is_signed, width)
