"""The tiles that a module's operations read: layouts, matrix descriptors, views, allocations.

The TTGIR does not say at which address an allocation lies, but it says how far each view is from
its allocation's start.
"""

from __future__ import annotations

from functools import lru_cache

from triton_ext.hardware.architecture import Architecture
from triton_ext.hardware.operand import MmaOperand
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import subslice_offsets
from triton_ext.mlir.types import MemoryType
from triton_ext.passes.shared_accesses import layout_operand
from triton_ext.passes.value_layouts import (
    allocated_bytes,
    parsed_encoding,
    read_layout,
    tensor_memory_layout,
    tile_shape,
)
from triton_ext.passes.verify_descriptors.meaning.expected import NotDerived


def tile_layout(kind: MemoryType) -> LinearLayout:
    """The layout of the tile that a shared-memory value is a part of, as `read_layout`."""
    return read_layout(parsed_encoding(kind.encoding), tile_shape(kind))


def is_fp4_padded(encoding: str) -> bool:
    """Whether the encoding pads packed fp4."""
    return "fp4Padded = true" in encoding


def element_bytes(kind: MemoryType) -> int:
    """Bytes of an element in shared memory, without the padding of fp4."""
    return max(1, kind.element_bitwidth // 8)


def tile_operand(
    kind: MemoryType, instruction: tuple[int, int], arch: Architecture, mn_dim: int
) -> MmaOperand:
    """The descriptor of a tile, and its advances; as `derive_operand`."""
    return layout_operand(tile_layout(kind), kind.element_bitwidth, instruction, arch, mn_dim)


def per_cta(kind: MemoryType) -> tuple[int, int]:
    """The (rows, columns) of a two-dimensional value that one block of the cluster holds.

    The layout is that of the allocation: a part of it may be narrower than a swizzle atom.
    """
    layout = tile_layout(kind)
    rows, columns = (
        size * (1 << max((basis[i].bit_length() for basis in layout.bases["offset"]), default=0))
        // whole
        for i, (size, whole) in enumerate(
            zip(kind.shape[-2:], [*layout.out_dims.values()][-2:], strict=True),
            len(layout.out_dims) - 2,
        )
    )  # fmt: skip
    return rows, columns


_SAME = ("ttg.memdesc_trans", "ttg.memdesc_reshape")


def view_offset(module: MlirModule, operation: Operation, index: object = None) -> int | None:
    """How far a view lies from the start of what it is a view of.

    Args:
        module: the TTGIR.
        operation: that makes the view.
        index: which buffer ``ttg.memdesc_index`` takes, if that is known.

    Returns:
        Bytes; in tensor memory, the lane in the upper 16 bits and the column in the lower ones.
        None if it cannot be told.
    """
    source = module.memory(operation.operands[0]) if operation.operands else None
    result = module.memory(operation.results[0]) if operation.results else None
    if source is None or result is None:
        return None
    if operation.name == "ttg.memdesc_reinterpret":
        return 0
    if operation.name in _SAME:
        return 0 if source.space == "shared" else None
    if operation.name == "ttg.memdesc_index":
        stride = buffer_stride(result)
        return stride * index if stride is not None and isinstance(index, int) else None
    try:
        if operation.name == "ttg.memdesc_subslice":
            return _subslice(operation, source)
        if operation.name == "ttng.tmem_subslice":
            return _columns(operation, source)
    except NotDerived:
        return None
    return None


def _subslice(operation: Operation, source: MemoryType) -> int:
    offsets = subslice_offsets(operation)
    if not offsets:
        raise NotDerived("offsets that are not printed")
    rank = parsed_encoding(source.encoding).rank
    if is_fp4_padded(source.encoding) or any(offsets[:-rank]):
        raise NotDerived("a part of padded fp4, or of several buffers")
    inverse = tile_layout(source).pseudoinvert()
    names = list(inverse.in_dims)
    where = inverse.apply(dict(zip(names, offsets[-rank:], strict=True)))
    return int(where["offset"]) * source.element_bitwidth // 8


def _columns(operation: Operation, source: MemoryType) -> int:
    offset = operation.attributes.get("offset", operation.attributes.get("N"))
    if not isinstance(offset, int) or source.mnemonic != "tensor_memory_encoding":
        raise NotDerived("a part of tensor memory")
    return _column(source, offset)


@lru_cache(maxsize=256)
def _column(source: MemoryType, offset: int) -> int:
    where = tensor_memory_layout(source).pseudoinvert().apply(dim0=0, dim1=offset)
    return int(where["lane"]) << 16 | int(where["column"])


def buffer_stride(kind: MemoryType) -> int | None:
    """Bytes of one buffer that a block of the cluster holds; in tensor memory, columns.

    None where it is not known here.
    """
    if kind.space == "tensor":
        if kind.mnemonic != "tensor_memory_encoding":
            return None
        return tensor_memory_layout(kind).in_dims["column"]
    return tile_layout(kind).in_dims.get("offset", 1) * kind.element_bitwidth // 8


def allocation_size(kind: MemoryType) -> tuple[int, int]:
    """(bytes, alignment) of an allocation in shared memory, in one block of the cluster."""
    encoding = parsed_encoding(kind.encoding)
    alignment = encoding.alignment if isinstance(encoding, (NVMMAShared, SharedLinear)) else 1
    return allocated_bytes(kind), alignment
