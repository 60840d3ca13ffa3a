"""The layouts of a module's values: tiles in shared and tensor memory, tensors in registers."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.cluster import within_block
from triton_ext.layouts.distributed import distributed_linear_layout
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import MemoryType, TensorType

parsed_encoding = functools.lru_cache(maxsize=1024)(parse_encoding)
"""`parse_encoding`, its results kept."""


@functools.lru_cache(maxsize=1024)
def encoded_layout(encoding: SharedEncoding, shape: tuple[int, ...]) -> LinearLayout:
    """The layout of a tile, kept."""
    return encoding.to_linear_layout(shape)


def read_layout(encoding: SharedEncoding, shape: tuple[int, ...]) -> LinearLayout:
    """The layout of a tile as the tensor core reads it: padded fp4 as bytes, of which there are
    twice as many along the contiguous dimension.

    Source: PTX ISA, "Packing format used for matrix A and B by .kind::mxf8f6f4" (16 elements are 8
    bytes of data, then 8 of padding).
    """
    if encoding.paddings:
        rule = "is padded: no matrix descriptor says how to read it"
        raise LayoutError("encoding", str(encoding), rule)
    if isinstance(encoding, NVMMAShared) and encoding.fp4_padded:
        dim = encoding.contiguous_dim
        shape = (*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])
        encoding = replace(encoding, fp4_padded=False)
    return encoded_layout(encoding, shape)


def tile_shape(memory: MemoryType) -> tuple[int, ...]:
    """The shape of one buffer of the allocation that a memory value is, or is a part of."""
    return memory.allocated[-parsed_encoding(memory.encoding).rank :]


def tile_layout(memory: MemoryType) -> LinearLayout:
    """The layout of one buffer: ``offset`` (elements; and ``block``) -> coordinates. Raises
    LayoutError: an encoding that is not supported, or an illegal shape."""
    return encoded_layout(parsed_encoding(memory.encoding), tile_shape(memory))


@functools.lru_cache(maxsize=1024)
def _part(layout: LinearLayout, shape: tuple[int, ...]) -> LinearLayout:
    sizes = dict(zip(layout.out_dims, shape, strict=True))
    bases = {
        in_dim: [
            tuple(value & (size - 1) for value, size in zip(basis, shape, strict=True))
            for basis in vectors
        ]
        for in_dim, vectors in layout.bases.items()
    }
    part = LinearLayout(bases, sizes)
    if part.pseudoinvert().bases != LinearLayout.identity(sizes).invert_and_compose(layout).bases:
        raise LayoutError("shape", shape, "cuts the swizzle of the tile that it is a part of")
    return part


def part_layout(memory: MemoryType) -> LinearLayout:
    """As `tile_layout`, of the part of the tile that a value is; other offsets repeat it. Raises
    LayoutError: also where the part cuts the swizzle."""
    layout = tile_layout(memory)
    shape = memory.shape[-len(layout.out_dims) :]
    return layout if shape == tuple(layout.out_dims.values()) else _part(layout, shape)


def fixed_offset_bits(memory: MemoryType) -> int:
    """The bits of the offset (elements) at which a part of a tile may begin."""
    layout = within_block(tile_layout(memory))
    shape = memory.shape[-len(layout.out_dims) :]
    if shape == tuple(layout.out_dims.values()) or not layout.is_surjective():
        return 0
    inverse, bits = layout.pseudoinvert(), 0
    for size, (name, bases) in zip(shape, inverse.bases.items(), strict=True):
        for bit, basis in enumerate(bases):
            if 1 << bit >= size and name in layout.out_dims:
                bits |= basis[0]
    return bits


def allocated_bytes(memory: MemoryType) -> int:
    """The bytes of an allocation, in one block of the cluster; all buffers. Raises LayoutError: an
    encoding that is not supported.

    Source: Triton, ``AllocationAnalysis::getExplicitValueSize``, ``getAllocationShapePerCTA``.
    """
    shape = tile_shape(memory)
    buffers = math.prod(memory.allocated[: -len(shape)])
    elements = parsed_encoding(memory.encoding).stored_elements(shape)
    return buffers * elements * memory.element_bitwidth // 8


@functools.lru_cache(maxsize=1024)
def tensor_memory_layout(memory: MemoryType) -> LinearLayout:
    """The layout of one buffer in tensor memory, or of the one that the value is a part of. Raises
    LayoutError: another encoding, or no room for it."""
    encoding = TensorMemoryEncoding.parse(memory.encoding)
    return encoding.to_linear_layout(memory.allocated[-2:], memory.element_bitwidth)


def alignment_of(operation: Operation | None, encoding: SharedEncoding) -> int:
    """What the address of an allocation must be a multiple of, in bytes."""
    own = operation.attributes.get("alignment") if operation else None
    return own if isinstance(own, int) else encoding.alignment


def operand_layout(memory: MemoryType) -> LinearLayout:
    """The layout of a tile as an MMA reads it: fp4 with padding is read as bytes, K twice as long.
    Raises LayoutError: as `part_layout`; or a rank other than 2."""
    encoding = parsed_encoding(memory.encoding)
    is_fp4 = isinstance(encoding, NVMMAShared) and encoding.fp4_padded
    has_own = is_fp4 or bool(encoding.paddings)  # read otherwise than written, or not at all
    layout = read_layout(encoding, memory.shape) if has_own else part_layout(memory)
    if len(layout.out_dims) != 2 or len(memory.shape) != 2:
        raise LayoutError("shape", memory.shape, "an MMA reads tiles of two dimensions")
    return layout


@functools.lru_cache(maxsize=1024)
def _registers(
    encoding: str, shape: tuple[int, ...], aliases: tuple[tuple[str, str], ...]
) -> LinearLayout:
    return distributed_linear_layout(encoding, shape, dict(aliases))


def register_layout(tensor: TensorType, module: MlirModule) -> LinearLayout:
    """The layout of a tensor in registers. Raises LayoutError: an encoding that is not
    supported."""
    used = tuple((name, text) for name, text in module.aliases.items() if name in tensor.encoding)
    nested = tuple(
        (name, text)
        for name, text in module.aliases.items()
        if any(name in other for _, other in used)
    )
    return _registers(tensor.encoding, tensor.shape, (*used, *nested))
