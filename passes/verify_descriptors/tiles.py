"""The tiles in shared memory that a module's operations read: layouts and matrix descriptors."""

from __future__ import annotations

from functools import lru_cache

from triton_ext.hardware.architecture import Architecture
from triton_ext.hardware.operand import MmaOperand, derive_operand
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import nvmma_shared_to_linear_layout
from triton_ext.mlir.types import MemoryType

shared_encoding = lru_cache(maxsize=1024)(parse_encoding)
"""`parse_encoding`, its results kept."""


@lru_cache(maxsize=1024)
def _layout(shape: tuple[int, ...], encoding: str) -> LinearLayout:
    """Where the elements of a tile lie; with fp4_padded, in bytes, the padding included."""
    parsed = shared_encoding(encoding)
    if isinstance(parsed, NVMMAShared):
        layout = nvmma_shared_to_linear_layout(shape, parsed)
        return _unpacked(layout) if parsed.fp4_padded else layout
    if isinstance(parsed, SharedLinear):
        return parsed.to_linear_layout()
    return parsed.to_linear_layout(shape)


def _unpacked(layout: LinearLayout) -> LinearLayout:
    """A padded fp4 tile with a coordinate for each byte: 8 of data, then 8 of padding.

    PTX ISA, "Packing format used for matrix A and B by .kind::mxf8f6f4": the tensor core reads the
    16 bytes as 16 elements.
    """
    packed_dim = next(
        i for i, value in enumerate(layout.bases["offset"][0]) if value
    )  # offset 1 is the contiguous dimension

    def spread(basis: tuple[int, ...]) -> tuple[int, ...]:
        value = basis[packed_dim]
        wide = value // 8 * 16 + value % 8
        return (*basis[:packed_dim], wide, *basis[packed_dim + 1 :])

    bases = {name: [spread(basis) for basis in found] for name, found in layout.bases.items()}
    padding = [0] * len(layout.out_dims)
    padding[packed_dim] = 8
    bases["offset"][3] = tuple(padding)
    sizes = dict(layout.out_dims)
    sizes[f"dim{packed_dim}"] *= 2
    return LinearLayout(bases, sizes)


def encoding_rank(encoding: str) -> int:
    """How many dimensions a shared encoding has."""
    return shared_encoding(encoding).rank


def tile_layout(kind: MemoryType) -> LinearLayout:
    """The layout of the tile that a shared-memory value is a part of (not its buffers)."""
    rank = encoding_rank(kind.encoding)
    return _layout(kind.allocated[-rank:], kind.encoding)


def is_fp4_padded(encoding: str) -> bool:
    """Whether the encoding pads packed fp4."""
    return "fp4Padded = true" in encoding


def element_bytes(kind: MemoryType) -> int:
    """Bytes of an element in shared memory, without the padding of fp4."""
    return max(1, kind.element_bitwidth // 8)


@lru_cache(maxsize=1024)
def layout_operand(
    layout: LinearLayout, bits: int, instruction: tuple[int, int], arch: Architecture, mn_dim: int
) -> MmaOperand:
    """`derive_operand`, its results kept."""
    return derive_operand(layout, bits, instruction, arch=arch, mn_dim=mn_dim)


def tile_operand(
    kind: MemoryType, instruction: tuple[int, int], arch: Architecture, mn_dim: int
) -> MmaOperand:
    """The descriptor of a tile, and its advances; as `derive_operand`."""
    return layout_operand(tile_layout(kind), kind.element_bitwidth, instruction, arch, mn_dim)


def per_cta(kind: MemoryType) -> tuple[int, int]:
    """The (rows, columns) of a two-dimensional tile that one block of the cluster holds."""
    is_linear = kind.mnemonic == "shared_linear"
    layout = tile_layout(kind) if is_linear else _layout(kind.shape[-2:], kind.encoding)
    sizes = []
    for i, name in enumerate(layout.out_dims):
        held = max((basis[i].bit_length() for basis in layout.bases["offset"]), default=0)
        sizes.append(min(1 << held, layout.out_dims[name]))
    if is_fp4_padded(kind.encoding):
        packed = next(i for i, value in enumerate(layout.bases["offset"][0]) if value)
        sizes[packed] //= 2
    return (min(sizes[0], kind.shape[-2]), min(sizes[1], kind.shape[-1]))
