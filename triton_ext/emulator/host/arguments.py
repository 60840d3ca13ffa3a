"""Triton's arguments of a launch, made those of the PTX kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from triton_ext.emulator.host.reachable import Reachable
from triton_ext.emulator.host.run import allocation
from triton_ext.emulator.state.memory import Allocation, GlobalMemory, host_bytes
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import DataType, OobFill, TensorMap, TensorSwizzle
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS

_FLOATS: dict[str, Any] = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "f32": np.float32,
    "fp64": np.float64,
}
_SWIZZLES = tuple(TensorSwizzle.of_width(width) for width in SWIZZLE_BYTE_WIDTHS)
# Triton numbers the floating-point types of device-made tensor maps as PTX does; CUDA's
# enumeration has FLOAT64 and BFLOAT16 before FLOAT32_FTZ (triton/backends/nvidia/driver.py).
_TRITON_TYPES = {8: DataType.FLOAT32_FTZ, 9: DataType.FLOAT64, 10: DataType.BFLOAT16}


def _is_address(value: Any) -> bool:
    """Whether a pointer says nothing of the memory there: a number, or an object with
    ``data_ptr()`` that is no tensor, which Triton takes as well."""
    tensor = getattr(value, "base", value)
    return value is not None and not hasattr(tensor, "untyped_storage")


class Flattened:
    """The arguments of a launch, one for each parameter of the PTX kernel.

    Args:
        tensor_maps: what Triton says of each descriptor's map; None if the kernel gets its parts.
        check_views: whether of a tensor's storage its elements alone can be reached.
    """

    def __init__(self, tensor_maps: Sequence[Any] | None, check_views: bool = True) -> None:
        self.values: list[Any] = []
        self.names: list[str] = []
        self.memory = GlobalMemory(Reachable(self.values))
        self._check_views = check_views
        self._maps = iter(tensor_maps) if tensor_maps else None

    def add(self, name: str, value: Any, kind: Any) -> None:
        """Append an argument; `kind` is its type in Triton's signature."""
        self._add(name, value, kind)
        self.names += [name] * (len(self.values) - len(self.names))

    def _add(self, name: str, value: Any, kind: Any) -> None:
        if kind == "constexpr":
            return
        if isinstance(kind, tuple):
            for each, its_kind in zip(value, kind, strict=True):
                self._add(name, each, its_kind)
        elif kind.startswith("tensordesc"):
            self._descriptor(name, value)
        elif kind.startswith("*"):
            pointer = value if isinstance(value, int) else self._pointer(name, value)
            self.values.append(pointer if _is_address(value) else pointer.to_bytes(8, "little"))
        elif kind in _FLOATS:
            self.values.append(np.asarray(value).astype(_FLOATS[kind]).tobytes())
        else:
            self.values.append(int(value))

    def _pointer(self, name: str, value: Any) -> int:
        if value is None:
            return 0
        tensor = getattr(value, "base", value)  # Triton's reinterpreted tensors have a base
        if hasattr(tensor, "untyped_storage"):
            memory = allocation(tensor, f"argument {name}")
            assert memory is not None
            self.memory.add(memory)
            if not self._check_views:
                data = tensor.untyped_storage()
                start, size = data.data_ptr(), data.nbytes()
                self.memory.add(Allocation(start, size, host_bytes(start, size), owner=data))
        return int(value.data_ptr())

    def _descriptor(self, name: str, value: Any) -> None:
        """A host-side TensorDescriptor: the map, or its parts, then the shape and the strides."""
        shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
        if self._maps is None:
            self.values.append(self._pointer(name, value.base).to_bytes(8, "little"))
            round_tf32 = getattr(value, "round_f32_to_tf32", False)
            self.values += [*shape, *strides, int(value.padding == "nan"), int(round_tf32)]
        else:
            self.values.append(self._map(name, value, next(self._maps)))
        self.values += [*shape, *strides]

    def _map(self, name: str, value: Any, meta: dict[str, Any]) -> TensorMap | Im2colMap:
        shape = [int(n) for n in value.shape]
        if meta["fp4_padded"]:
            shape[-1] *= 2
        code = int(meta["elem_type"])
        kind = _TRITON_TYPES.get(code, DataType(code))
        if getattr(value, "round_f32_to_tf32", False):
            kind = DataType.TFLOAT32
        box = tuple(int(n) for n in reversed(meta["block_size"]))
        im2col, pixels, steps = bool(meta.get("is_im2col")), 0, ()
        if im2col:
            (channels, pixels), steps = box, tuple(reversed(value.element_strides or ()))
            box = (channels, *(1 for _ in shape[1:]))
        tensor = TensorMap(
            kind,
            tuple(reversed(shape)),
            tuple(int(n) * meta["elem_size"] for n in reversed(value.strides[:-1])),
            box,
            steps,
            swizzle=_SWIZZLES[meta["swizzle"]],
            oob_fill=OobFill.NAN_REQUEST_ZERO_FMA if value.padding == "nan" else OobFill.NONE,
            global_address=self._pointer(name, value.base),
        )
        if not im2col:
            return tensor
        corners = (value.pixel_box_lower_corner, value.pixel_box_upper_corner)
        low, high = (tuple(reversed(each)) for each in corners)
        return Im2colMap(tensor, low, high, pixels)
