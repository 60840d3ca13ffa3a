"""What a notebook shows of a layout, an encoding or a descriptor: its text and its picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.instruction_descriptor import InstructionDescriptor
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_map import TensorMap
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear, SwizzledShared
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.padded_shared import PaddedShared
from triton_ext.render.atom_picture import atom_scene
from triton_ext.render.descriptor_picture import instruction_scene, matrix_scene
from triton_ext.render.linear_picture import linear_scene
from triton_ext.render.scene import Scene, rendered
from triton_ext.render.tensor_memory_picture import tensor_memory_scene


def html(value: object) -> str | None:
    """HTML that shows a value: its text, and its picture or its fields; None if there is none.
    `value`: a layout, an encoding or a descriptor of this project."""
    try:
        scene = _scene(value)
    except LayoutError:  # such as a layout that does not reach every coordinate
        return None
    fields = None
    if scene is None:
        if not isinstance(value, (TensorMap, Im2colMap)):
            return None
        fields = _fields(value)
    return rendered("notebook.html", text=_text(value), scene=scene, fields=fields)


def _text(value: object) -> str:
    """The encoding as MLIR's attribute, the descriptor as its number; "" if the picture says it."""
    if isinstance(value, (SmemDescriptor, InstructionDescriptor, SwizzleAtom)):
        return ""
    if isinstance(value, (TensorMap, Im2colMap)):
        return type(value).__name__
    return str(value)


def _fields(value: TensorMap | Im2colMap) -> list[tuple[str, str]]:
    """The arguments of a tensor map, in words, and what follows from them."""
    tensor = value.tensor if isinstance(value, Im2colMap) else value
    own: dict[str, Any] = {
        each.name: getattr(one, each.name)
        for one in dict.fromkeys((tensor, value))
        for each in dataclasses.fields(one)
        if each.name != "tensor"
    }
    own["shared memory of a box, in bytes"] = tensor.smem_bytes
    return [(name.replace("_", " "), _value(found)) for name, found in own.items()]


def _value(found: Any) -> str:
    if isinstance(found, tuple):
        return ", ".join(map(str, found)) or "none"
    return getattr(found, "name", str(found))


def _scene(value: object) -> Scene | None:
    """The picture of a value; None if there is none. Raises LayoutError: this one cannot be
    drawn."""
    draw = next((draw for kind, draw in _SCENES.items() if isinstance(value, kind)), None)
    return None if draw is None else draw(value)


def _linear(value: LinearLayout) -> Scene:
    if {"lane", "column"} <= set(value.in_dims):
        return tensor_memory_scene(value)
    return linear_scene(value)


def _nvmma(value: NVMMAShared) -> Scene:
    if value.fp4_padded or not value.swizzle_byte_width:
        return linear_scene(value.to_linear_layout(_unit(value)))
    major: Any = "MN" if value.transposed else "K"
    return atom_scene(SwizzleAtom(major, value.swizzle_byte_width, value.element_bitwidth))


def _unit(value: NVMMAShared) -> tuple[int, ...]:
    """The smallest tile in which the encoding shows: 8 rows of 128 bytes, in one block."""
    contiguous, rows = 8 * 128 // value.element_bitwidth, 8
    inner = (contiguous, rows) if value.transposed else (rows, contiguous)
    blocks = [1] * value.rank
    for basis in value.cga_layout:
        for dim, step in enumerate(basis):
            blocks[dim] *= 2 if step else 1
    shape = (1,) * (value.rank - 2) + inner
    return tuple(size * count for size, count in zip(shape, blocks, strict=True))


def _swizzled(value: SwizzledShared) -> Scene:
    """As many rows as there are until the phases repeat, each of all its chunks."""
    sizes = [value.vec * value.max_phase, value.per_phase * value.max_phase]
    shape = [1] * value.rank
    for dim, size in zip(value.order, sizes, strict=False):
        shape[dim] = size
    return linear_scene(dataclasses.replace(value, cga_layout=()).to_linear_layout(shape))


def _tensor(value: TensorMemoryEncoding) -> Scene:
    alone = dataclasses.replace(value, cga_layout=(), two_ctas=False)
    return tensor_memory_scene(alone.to_linear_layout((alone.block_m, alone.block_n)))


_SCENES: dict[type, Callable[[Any], Scene]] = {
    LinearLayout: _linear,
    SwizzleAtom: atom_scene,
    NVMMAShared: _nvmma,
    SwizzledShared: _swizzled,
    SharedLinear: lambda value: linear_scene(value.to_linear_layout()),
    PaddedShared: lambda value: linear_scene(
        value.to_linear_layout(), "Offsets are those before padding."
    ),
    TensorMemoryEncoding: _tensor,
    SmemDescriptor: lambda value: matrix_scene(value.encode(), value.arch),
    InstructionDescriptor: lambda value: instruction_scene(value.encode(), value.kind),
}
"""What draws the values of each class."""
