"""Constants of PTX, as values of the type at their use (PTX ISA, "Constants").

ptxas takes a constant of a type's own kind alone, which is the rule here, too; it cuts one that has
more bits than the type, which is refused here: nobody means the bits that are left.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.ptx.parse import INTEGER_LITERAL, immediate

_FLOAT_BITS = re.compile(r"([-+]?)0([fFdD])([0-9a-fA-F]*)")
_DECIMAL = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?")
_FORMATS = {"f": ("<I", "<f", 8), "d": ("<Q", "<d", 16)}


def constant(text: str, type_name: str) -> NDArray[Any] | None:
    """The value of a constant: an array without dimensions; None if the text is no constant.

    Args:
        text: ``7``, ``-0x10``, ``0f3F800000``, ``1.5``.
        type_name: a type of PTX, such as ``u32``; the bits of packed types.

    Raises:
        ValueError: the constant is of another kind than the type, or has more bits; in words.
    """
    if INTEGER_LITERAL.fullmatch(text):
        return _integer(text, type_name)
    match = _FLOAT_BITS.fullmatch(text)
    if match is not None:
        return _float_bits(text, match, type_name)
    if _DECIMAL.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise ValueError(f"constant {text} is greater than any .f64")
        return _real(text, value, type_name)
    return None


def low_bits(text: str, bits: int) -> int:
    """The bits of an integer constant, as an unsigned number; one may be extended by its sign.
    Raises ValueError: it has more."""
    value = immediate(text)
    if value is None:
        raise ValueError(f"constant {text} has more than 64 bits")
    extended = value - (1 << 64) if value >> 63 == 1 else value  # as 64 bits with a sign
    half = 1 << bits - 1
    if not (-half <= value < 2 * half or -half <= extended < 0):
        raise ValueError(f"constant {text} has more than {bits} bits")
    return value & 2 * half - 1


def _integer(text: str, type_name: str) -> NDArray[Any]:
    if type_name == "pred":
        return np.asarray(low_bits(text, 64) != 0)
    kind, bits = DTYPES.get(type_name), bits_of(type_name)
    if kind is not None and kind.kind not in "iu":
        raise ValueError(
            f"constant {text} is an integer, and the operand a .{type_name}: write a float as"
            " 0f3F800000 or 1.0; there is none of 16 bits"
        )
    if bits > 64:
        raise ValueError(f"constant {text}: there is none of the {bits} bits of .{type_name}")
    found = np.asarray(low_bits(text, bits), f"u{max(8, bits) // 8}")
    return found if kind is None else found.view(kind)


def _float_bits(text: str, match: re.Match[str], type_name: str) -> NDArray[Any]:
    sign, letter, digits = match[1], match[2].lower(), match[3]
    raw, real, wanted = _FORMATS[letter]
    if len(digits) != wanted:
        raise ValueError(f"constant {text} has {len(digits)} hexadecimal digits: must be {wanted}")
    number = int(digits, 16)
    if type_name == f"b{4 * wanted}" and not sign:
        return np.asarray(number, DTYPES[type_name])
    value: float = struct.unpack(real, struct.pack(raw, number))[0]
    return _real(text, -value if sign == "-" else value, type_name)


def _real(text: str, value: float, type_name: str) -> NDArray[Any]:
    if type_name not in ("f32", "f64"):
        raise ValueError(f"constant {text} is a float, and the operand a .{type_name}")
    with np.errstate(over="ignore"):
        found = np.asarray(value).astype(DTYPES[type_name])
    if np.isinf(found) and not math.isinf(value):
        raise ValueError(f"constant {text} is greater than any .{type_name}")
    return found
