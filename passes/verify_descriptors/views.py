"""How far each view lies from what it is a view of; how large buffers and allocations are.

The TTGIR does not say at which address an allocation lies, but it says how far each view is from
its allocation's start.
"""

from __future__ import annotations

import re

from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear
from triton_ext.mlir.module import MlirModule, Operation
from triton_ext.mlir.types import MemoryType
from triton_ext.passes.verify_descriptors.expected import NotDerived
from triton_ext.passes.verify_descriptors.tiles import (
    encoding_rank,
    is_fp4_padded,
    shared_encoding,
    tile_layout,
)

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
    match = re.search(r"\[([\d, ]+)\]", operation.text)
    if match is None:
        raise NotDerived("offsets that are not printed")
    offsets = [int(text) for text in match[1].split(",")]
    rank = encoding_rank(source.encoding)
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
    encoding = TensorMemoryEncoding.parse(source.encoding)
    layout = encoding.to_linear_layout(source.allocated[-2:], source.element_bitwidth)
    where = layout.pseudoinvert().apply(dim0=0, dim1=offset)
    return int(where["lane"]) << 16 | int(where["column"])


def buffer_stride(kind: MemoryType) -> int | None:
    """Bytes of one buffer that a block of the cluster holds; in tensor memory, columns.

    None where it is not known here.
    """
    if kind.space == "tensor":
        if kind.mnemonic != "tensor_memory_encoding":
            return None
        encoding = TensorMemoryEncoding.parse(kind.encoding)
        layout = encoding.to_linear_layout(kind.allocated[-2:], kind.element_bitwidth)
        return layout.in_dims["column"]
    return tile_layout(kind).in_dims.get("offset", 1) * kind.element_bitwidth // 8


def allocation_size(kind: MemoryType) -> tuple[int, int]:
    """(bytes, alignment) of an allocation in shared memory, in one block of the cluster."""
    stride = buffer_stride(kind)
    buffers = 1
    encoding = shared_encoding(kind.encoding)
    for size in kind.shape[: len(kind.shape) - encoding.rank]:
        buffers *= size
    alignment = encoding.alignment if isinstance(encoding, (NVMMAShared, SharedLinear)) else 1
    return buffers * (stride or 0), alignment
