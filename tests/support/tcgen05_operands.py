"""Matrices in the layouts that tcgen05 reads, by formulas typed from the PTX ISA.

PTX ISA, "Canonical Layouts" and "Shared memory layout and swizzling" of tcgen05. Nothing here comes
from `triton_ext.hardware`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

DTYPES: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "u8": np.uint8,
    "s8": np.int8,
}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e2m3": 6, "e3m2": 6, "e2m1": 4}
TYPE_CODES = {
    "f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5,
    "u8": 0, "s8": 1,
}  # fmt: skip
D_CODES = {"f16": 0, "f32": 1, "s32": 2}
SWIZZLE_CODES = {(0, 16): 0, (128, 32): 1, (128, 16): 2, (64, 16): 4, (32, 16): 6}
K_OF_KIND = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64,
             "mxf4nvf4": 64}  # fmt: skip


def codes(values: np.ndarray, type_name: str) -> np.ndarray:
    """The bits of each element."""
    converted = values.astype(DTYPES[type_name])
    return converted.view(f"u{converted.dtype.itemsize}")


def container_bytes(values: np.ndarray, type_name: str, packed: bool = False) -> np.ndarray:
    """(rows, contiguous) elements -> (rows, bytes), with the padding of 4- and 6-bit elements."""
    bits = BITS.get(type_name, 8)
    raw = codes(values, type_name)
    if bits >= 8:
        return np.ascontiguousarray(raw).view(np.uint8).reshape(len(raw), -1)
    if packed:
        return (raw[:, ::2] | raw[:, 1::2] << 4).astype(np.uint8)
    out = np.zeros((len(raw), raw.shape[1]), np.uint8)
    for row, line in enumerate(raw):
        for first in range(0, len(line), 16):
            number = sum(int(code) << bits * i for i, code in enumerate(line[first : first + 16]))
            out[row, first : first + 16] = list(number.to_bytes(16, "little"))
    return out


@dataclass(frozen=True)
class Placed:
    """Where an operand lies: its bytes, and the fields of its descriptor."""

    data: np.ndarray
    leading: int
    stride: int
    swizzle: int


def place(
    values: np.ndarray, type_name: str, major: str, swizzle: tuple[int, int], packed: bool = False
) -> Placed:
    """Lay an operand of (M or N, K) elements out.

    Args:
        swizzle: (width, atomicity).
    """
    width, atomicity = swizzle
    strided = container_bytes(values if major == "K" else values.T, type_name, packed)
    rows, size = strided.shape
    row = np.arange(rows)[:, None]
    byte = np.arange(size)[None, :]
    atom_rows = 4 if atomicity == 32 else 8
    line = width or 16
    atom = atom_rows * line
    if width == 0:
        # core matrices of 8 rows x 16 bytes; LBO is along K, SBO along M or N
        if major == "K":
            leading, stride = 128 * (rows // 8), 128
            address = byte // 16 * leading + row // 8 * stride
        else:
            leading, stride = 128 * (size // 16), 128
            address = byte // 16 * stride + row // 8 * leading
        address = address + row % 8 * 16 + byte % 16
        total = rows * size
    else:
        groups = -(-rows // atom_rows)
        leading, stride = atom * groups, atom
        address = byte // line * leading + row // atom_rows * stride
        address = address + row % atom_rows * line + byte % line
        if atomicity == 32:
            address = address ^ ((address >> 7 & 3) << 5)
        else:
            bits = {32: 1, 64: 3, 128: 7}[width]
            address = address ^ ((address >> 7 & bits) << 4)
        total = atom * groups * -(-size // line)
    data = np.zeros(-(-total // 1024) * 1024, np.uint8)
    data[address] = strided
    return Placed(data, leading if width == 0 or major == "MN" else 16, stride,
                  SWIZZLE_CODES[swizzle])  # fmt: skip


def instruction_descriptor(
    kind: str, m: int, n: int, a_type: str, b_type: str, d_type: str, a_major: str, b_major: str,
    *, negate_a: bool = False, negate_b: bool = False, saturate: bool = False,
    scale_type: int = 0, a_id: int = 0, b_id: int = 0,
) -> int:  # fmt: skip
    """PTX ISA, "Instruction descriptor": the bits, by hand."""
    value = (n >> 3) << 17 | (a_major == "MN") << 15 | (b_major == "MN") << 16
    value |= negate_a << 13 | negate_b << 14
    if kind.startswith("mx"):
        code = {"mxf4": {"e2m1": 1}, "mxf4nvf4": {"e2m1": 1}}.get(kind, TYPE_CODES)
        value |= code[a_type] << 7 | code[b_type] << 10 | (m >> 4) << 24
        return value | scale_type << 23 | b_id << 4 | a_id << 29
    value |= TYPE_CODES[a_type] << 7 | TYPE_CODES[b_type] << 10 | (m >> 4) << 24
    return value | D_CODES[d_type] << 4 | saturate << 3


def small_integers(shape: tuple[int, ...], type_name: str, seed: int) -> np.ndarray:
    """Values that the type holds, whose products add up exactly."""
    generator = np.random.default_rng(seed)
    if type_name == "u8":
        return generator.integers(0, 256, shape).astype(np.float64)
    if type_name == "s8":
        return generator.integers(-128, 128, shape).astype(np.float64)
    limit = {"e2m1": 4, "e2m3": 7, "e3m2": 8}.get(type_name, 8)
    return generator.integers(-limit, limit + 1, shape).astype(DTYPES[type_name]).astype(np.float64)
