"""A `TensorMap` as the 128 bytes that a kernel's parameter or memory holds.

NVIDIA does not document its encoding; this one is the emulator's own.
"""

from __future__ import annotations

from triton_ext.hardware.tensor_map import TensorMap

TENSOR_MAP_BYTES = 128


def encode(tensor_map: TensorMap) -> bytes:
    raise NotImplementedError
