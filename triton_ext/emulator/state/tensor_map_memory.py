"""A `TensorMap` as the 128 bytes that a kernel's parameter or memory holds.

NVIDIA does not document its encoding; this one is the emulator's own. Its fields are those that
``tensormap.replace`` names, with the values that the instruction takes (PTX ISA,
"tensormap.replace"), so that 128 zero bytes are a map whose fields are all still to be set. Maps
that the host code of NVIDIA's CuTe DSL has written are read, too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from triton_ext.emulator.errors import DescriptorFault
from triton_ext.errors import LayoutError
from triton_ext.hardware.alignments import TENSOR_MAP
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import (
    TENSOR_MAP_BYTES,
    DataType,
    L2Promotion,
    OobFill,
    TensorMap,
    TensorSwizzle,
)

_FORMAT = struct.Struct("<Q4Q5Q5I5H8B6x4s")
_MAGIC = b"TMAP"
_MAX_DIMS = 5

ELEMENT_TYPES = (
    DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.INT32, DataType.UINT64,
    DataType.INT64, DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT32_FTZ, DataType.FLOAT64,
    DataType.BFLOAT16, DataType.TFLOAT32, DataType.TFLOAT32_FTZ, DataType.U4X16_ALIGN8B,
    DataType.U4X16_ALIGN16B, DataType.U6X16_ALIGN16B,
)  # fmt: skip
"""Element types by the number that ``.elemtype`` takes, which is not the driver's."""
SWIZZLES = {
    (0, 0): TensorSwizzle.NONE,
    (1, 0): TensorSwizzle.BYTES_32,
    (2, 0): TensorSwizzle.BYTES_64,
    (3, 0): TensorSwizzle.BYTES_128,
    (3, 1): TensorSwizzle.BYTES_128_ATOM_32B,
    (3, 2): TensorSwizzle.BYTES_128_ATOM_32B_FLIP_8B,
    (3, 3): TensorSwizzle.BYTES_128_ATOM_64B,
}
"""Swizzles by ``.swizzle_mode`` and ``.swizzle_atomicity``."""

_FIELDS: dict[str, tuple[int, int]] = {
    "global_address": (0, 64),
    "global_stride": (1, 64),
    "global_dim": (5, 32),
    "box_dim": (10, 32),
    "element_stride": (15, 16),
    "rank": (20, 8),
    "elemtype": (21, 8),
    "interleave_layout": (22, 8),
    "swizzle_mode": (23, 8),
    "swizzle_atomicity": (24, 8),
    "fill_mode": (25, 8),
}
"""Where each field that can be replaced begins, in the order of `_FORMAT`, and its bits."""
_L2_PROMOTION = 26
_IM2COL = 27
"""Whether it is of im2col mode: behind the channels, `box_dim` then has the pixels of a column, and
the corners: of each dimension, 16 bits each."""


_DSL_FLAGS = 8
"""Where the flags are in the DSL's maps, the lowest bits of which are never a stride's."""
_DSL_KNOWN = 0x3F67F0
"""The flags that are understood; bits 17, 18 and 21 say how much is fetched into the L2 cache."""
_TF32: dict[DataType | None, DataType] = {
    DataType.FLOAT32: DataType.TFLOAT32,
    DataType.FLOAT32_FTZ: DataType.TFLOAT32_FTZ,
}
_DSL_TYPES = [kind for kind in ELEMENT_TYPES if kind not in _TF32.values()]
"""By their number, where TF32 is a flag of its own; of the last two nothing was seen."""


def of_the_dsl(data: bytes) -> bool:
    """Whether the host code of the CuTe DSL has written a map; the half of the bytes says it."""
    return data[_DSL_FLAGS] & 15 == 2


def _decoded(data: bytes) -> TensorMap:
    """The map that the host code of the CuTe DSL has written.

    It fills half of the 128 bytes. NVIDIA does not document them; these fields were found by maps
    that differ in one property each: the address; flags; four strides less their four zero bits;
    five dimensions less one; behind three bytes, five boxes less one.

    Raises:
        LayoutError: flags that were not seen.
    """
    address, flags, *words = struct.unpack_from("<Q14I", data)
    rank, boxes = (flags >> 4 & 7) + 1, struct.unpack_from("<5B", data, 55)
    swizzle = SWIZZLES.get((flags >> 13 & 3, flags >> 19 & 3))
    kind = dict(enumerate(_DSL_TYPES)).get(flags >> 7 & 15)
    if flags >> 16 & 1:
        kind = _TF32.get(kind)
    known = flags & ~_DSL_KNOWN == 2 and not words[4] and not any(data[52:55])
    if not known or rank > _MAX_DIMS or swizzle is None or kind is None:
        raise LayoutError("flags", hex(flags), "are not understood in a map of the CuTe DSL")
    return TensorMap(
        kind,
        tuple(n + 1 for n in words[5 : 5 + rank]),
        tuple(n << 4 for n in words[: rank - 1]),
        tuple(n + 1 for n in boxes[:rank]),
        swizzle=swizzle,
        global_address=address,
    )


def encode(tensor_map: TensorMap | Im2colMap) -> bytes:
    """The 128 bytes of a map, as the emulator keeps it in a parameter or in global memory, where it
    must begin at a multiple of 64 (`triton_ext.emulator.tensor_map_bytes`)."""
    box: tuple[int, ...] | None = None
    if isinstance(tensor_map, Im2colMap):
        corners = zip(tensor_map.lower, tensor_map.upper, strict=True)
        packed = ((low & 0xFFFF) | (high & 0xFFFF) << 16 for low, high in corners)
        box = (tensor_map.tensor.box_dims[0], tensor_map.pixels, *packed)
        tensor_map = tensor_map.tensor

    def padded(values: tuple[int, ...], length: int) -> tuple[int, ...]:
        return values + (0,) * (length - len(values))

    mode = next(key for key, value in SWIZZLES.items() if value == tensor_map.swizzle)
    return _FORMAT.pack(
        tensor_map.global_address,
        *padded(tensor_map.global_strides, _MAX_DIMS - 1),
        *padded(tensor_map.global_dims, _MAX_DIMS),
        *padded(box or tensor_map.box_dims, _MAX_DIMS),
        *padded(tensor_map.element_strides, _MAX_DIMS),
        tensor_map.rank - 1,
        ELEMENT_TYPES.index(tensor_map.data_type),
        tensor_map.interleave,
        *mode,
        tensor_map.oob_fill,
        tensor_map.l2_promotion,
        box is not None,
        _MAGIC,
    )


@lru_cache(maxsize=4096)
def decode(data: bytes) -> TensorMap | Im2colMap:
    """The map that 128 bytes hold. Raises DescriptorFault: they hold none, or fields that
    ``cuTensorMapEncodeTiled`` would refuse."""
    values = _unpack(data)
    if of_the_dsl(data):
        try:
            return _decoded(data)
        except LayoutError as error:
            raise DescriptorFault(f"tensor map: {error}") from None
    if values[-1] != _MAGIC:
        raise DescriptorFault(
            "the 128 bytes are no tensor map: neither an argument of the launch, nor made by"
            " tensormap.replace"
        )
    rank = values[20] + 1
    if rank > _MAX_DIMS:
        raise DescriptorFault(f"tensor map: rank {rank} must be at most {_MAX_DIMS}")
    if values[21] >= len(ELEMENT_TYPES):
        raise DescriptorFault(f"tensor map: element type {values[21]} is not defined")
    swizzle = SWIZZLES.get((values[23], values[24]))
    if swizzle is None:
        why = f"tensor map: swizzle mode {values[23]} with atomicity {values[24]} is not defined"
        raise DescriptorFault(why)
    box = values[10 : 10 + rank]
    if values[_L2_PROMOTION] not in list(L2Promotion):
        raise DescriptorFault(f"tensor map: L2 promotion {values[_L2_PROMOTION]} is not defined")
    try:
        found = TensorMap(
            data_type=ELEMENT_TYPES[values[21]],
            global_dims=values[5 : 5 + rank],
            global_strides=values[1:rank],
            box_dims=(box[0], *(1 for _ in box[1:])) if values[_IM2COL] else box,
            element_strides=values[15 : 15 + rank],
            interleave=values[22],
            swizzle=swizzle,
            l2_promotion=L2Promotion(values[_L2_PROMOTION]),
            oob_fill=OobFill(values[25] & 1),
            global_address=values[0],
        )
        if not values[_IM2COL]:
            return found
        corners = np.array(values[12 : 10 + rank], np.uint32).view(np.int16).tolist()
        return Im2colMap(found, tuple(corners[::2]), tuple(corners[1::2]), box[1])
    except LayoutError as error:
        raise DescriptorFault(f"tensor map: {error}") from None


def replace_field(data: bytes, field: str, ordinal: int, value: int) -> bytes:
    """``tensormap.replace``: the 128 bytes with another value of one field.

    Args:
        field: the instruction's name of it.
        ordinal: the number of the dimension (or stride), for fields that have several.
        value: in the instruction's terms: the rank less one; strides in bytes.

    Raises:
        DescriptorFault: the bytes are neither zeros nor a map.
    """
    if of_the_dsl(data):
        data = encode(decode(data))
    if any(data) and data[-len(_MAGIC) :] != _MAGIC:
        raise DescriptorFault("tensormap.replace: the 128 bytes are no tensor map, nor zeros")
    values = list(_unpack(data))
    first, bits = _FIELDS[field]
    if not 0 <= value < 1 << bits:
        raise DescriptorFault(f"tensormap.replace: {field} = {value} is out of range")
    values[first + ordinal] = value
    values[-1] = _MAGIC
    return _FORMAT.pack(*values)


def _unpack(data: bytes) -> tuple[Any, ...]:
    if len(data) != TENSOR_MAP_BYTES:
        raise DescriptorFault(f"a tensor map has {TENSOR_MAP_BYTES} bytes, not {len(data)}")
    return _FORMAT.unpack(data)


@dataclass
class MadeTensorMap:
    """A tensor map in global memory that the kernel made (tensormap.cp_fenceproxy).

    Attributes:
        acquired: the threads that have executed fence.proxy.tensormap::generic.acquire on it
            since, as (number of the cluster, agent, event).
    """

    acquired: list[tuple[int, int, int]] = field(default_factory=list)


def check_alignment(address: int) -> None:
    """Raise DescriptorFault unless a map may be at that address (PTX ISA, "tensorMap")."""
    if wrong := TENSOR_MAP.broken(address):
        raise DescriptorFault(wrong)
