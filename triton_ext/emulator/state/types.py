"""PTX types as numpy dtypes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype[Any]] = {
    "pred": np.dtype(np.bool_),
    "b8": np.dtype(np.uint8),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "b16": np.dtype(np.uint16),
    "u16": np.dtype(np.uint16),
    "s16": np.dtype(np.int16),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "b32": np.dtype(np.uint32),
    "u32": np.dtype(np.uint32),
    "s32": np.dtype(np.int32),
    "f32": np.dtype(np.float32),
    "tf32": np.dtype(np.float32),
    "b64": np.dtype(np.uint64),
    "u64": np.dtype(np.uint64),
    "s64": np.dtype(np.int64),
    "f64": np.dtype(np.float64),
}
"""Scalar types. Packed ones (``f16x2``, ``bf16x2``, ``e4m3x2`` ...) are bits to their register."""


@cache
def bits_of(name: str) -> int:
    """The width of a type; ``f16x2`` has 32."""
    if name == "pred":
        return 1
    found = re.search(r"(\d+)(?:x(\d+))?$", name)
    if found is None:
        raise KeyError(name)
    if re.match(r"e\d+m\d+|ue\d+m\d+", name):  # eXmY: its digits are not its width
        bits = 1 + sum(int(part) for part in re.findall(r"\d+", name.split("x")[0]))
        bits = 4 if name.startswith("e2m1") else 8 if bits >= 6 else bits
        packed = re.search(r"x(\d+)$", name)
        return bits * int(packed[1]) if packed else bits
    return int(found[1]) * int(found[2] or 1)
