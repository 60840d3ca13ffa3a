"""TMA tensor maps and boxes: the rules, the seeds' numbers, Triton's lowering, and a GPU."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mutations import some
from sites import SUPPORT, triton_sites

from triton_ext import LayoutError, NVMMAShared, nvmma_shared_to_linear_layout
from triton_ext.commands.common import CommandGroup
from triton_ext.hardware.tensor_map import (
    TENSOR_MAP_BYTES,
    DataType,
    Interleave,
    L2Promotion,
    OobFill,
    TensorMap,
    TensorSwizzle,
)
from triton_ext.hardware.tma_tile import MAX_TILE_BYTES, tile_copies
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS

BF16 = DataType.BFLOAT16

# ------------------------------------------------------------- the arguments and their rules

LEGAL = {
    "data_type": DataType.UINT16,
    "global_dims": (64, 64, 8),
    "global_strides": (128, 8192),
    "box_dims": (16, 8, 1),
    "element_strides": (1, 1, 1),
    "interleave": Interleave.NONE,
    "swizzle": TensorSwizzle.NONE,
    "l2_promotion": L2Promotion.NONE,
    "oob_fill": OobFill.NONE,
    "global_address": 0,
}
PADDED = {
    "data_type": DataType.U4X16_ALIGN16B,
    "global_dims": (128, 64, 8),
    "global_strides": (64, 4096),
    "box_dims": (128, 8, 1),
}
SIX_BITS = PADDED | {"data_type": DataType.U6X16_ALIGN16B, "global_strides": (96, 6144)}
WIDE = {
    "interleave": Interleave.BYTES_32,
    "swizzle": TensorSwizzle.BYTES_32,
}
RULES = [
    # what is changed, the argument in the error, CUDA's parameter and rule
    ({"data_type": 16}, "data_type", "must be one of UINT8"),
    ({"swizzle": 7}, "swizzle", "must be one of NONE"),
    ({"global_dims": ()}, "global_dims", "tensorRank: must be 1 to 5"),
    ({"global_dims": (64,) * 6}, "global_dims", "tensorRank: must be 1 to 5"),
    ({"global_dims": 64}, "global_dims", "must be a sequence of integers"),
    ({"global_strides": (128,)}, "global_strides", "must have 2 values"),
    ({"box_dims": (16, 8)}, "box_dims", "must have 3 values"),
    ({"element_strides": (1, 1)}, "element_strides", "must have 3 values"),
    ({"global_address": 8}, "global_address", "globalAddress: must be a multiple of 16"),
    ({"global_address": -16}, "global_address", "must lie in"),
    ({"global_address": "0"}, "global_address", "must be an integer"),
    ({"global_address": 16, **WIDE}, "global_address", "multiple of 32 with interleave 32B"),
    ({"global_address": 16, **PADDED}, "global_address", "multiple of 32 with U4X16_ALIGN16B"),
    ({"global_address": 16, **SIX_BITS}, "global_address", "multiple of 32 with U6X16_ALIGN16B"),
    ({"global_dims": (64, 0, 8)}, "global_dims[1]", "globalDim: must be 1 to 2**32"),
    ({"global_dims": (64, 64, 2**32 + 1)}, "global_dims[2]", "globalDim: must be 1 to 2**32"),
    ({**PADDED, "global_dims": (192, 64, 8)}, "global_dims[0]", "globalDim: must be a multiple of"),
    (
        {**PADDED, "data_type": DataType.U4X16_ALIGN8B, "global_dims": (129, 64, 8)},
        "global_dims[0]",
        "globalDim: must be a multiple of 2",
    ),
    ({"global_strides": (136, 8192)}, "global_strides[0]", "globalStrides: must be a multiple of"),
    ({"global_strides": (128, 2**40)}, "global_strides[1]", "globalStrides: must be 0 to 2**40"),
    ({"global_strides": (-128, 8192)}, "global_strides[0]", "globalStrides: must be 0 to 2**40"),
    ({"global_strides": (144, 8192), **WIDE}, "global_strides[0]", "multiple of 32"),
    ({**PADDED, "global_strides": (80, 4096)}, "global_strides[0]", "multiple of 32"),
    ({"box_dims": (16, 0, 1)}, "box_dims[1]", "boxDim: must be 1 to 256"),
    ({"box_dims": (16, 257, 1)}, "box_dims[1]", "boxDim: must be 1 to 256"),
    ({"box_dims": (3, 8, 1), "interleave": 1}, "box_dims[0]", "a multiple of 16 bytes"),
    ({"box_dims": (12, 8, 1)}, "box_dims[0]", "boxDim: the inner dimension must be a multiple of"),
    ({**PADDED, "box_dims": (64, 8, 1)}, "box_dims[0]", "boxDim: must be 128"),
    ({"element_strides": (1, 0, 1)}, "element_strides[1]", "elementStrides: must be 1 to 8"),
    ({"element_strides": (1, 1, 9)}, "element_strides[2]", "elementStrides: must be 1 to 8"),
    ({"box_dims": (32, 8, 1), "swizzle": 1}, "box_dims[0]", "at most 32 bytes, the swizzle size"),
    ({"box_dims": (64, 8, 1), "swizzle": 2}, "box_dims[0]", "at most 64 bytes, the swizzle size"),
    ({"box_dims": (128, 8, 1), "swizzle": 3}, "box_dims[0]", "at most 128 bytes"),
    ({"box_dims": (128, 8, 1), "swizzle": 6}, "box_dims[0]", "at most 128 bytes"),
    (
        {
            "interleave": 1,
            "global_dims": (64, 64),
            "global_strides": (128,),
            "box_dims": (16, 8),
            "element_strides": (),
        },
        "global_dims",
        "tensorRank: must be at least 3 with interleave",
    ),
    ({"interleave": 2}, "swizzle", "swizzle: must be 32B with interleave 32B"),
    ({**SIX_BITS, "interleave": 1}, "interleave", "interleave: must be NONE for U6X16_ALIGN16B"),
    ({**PADDED, "swizzle": 2}, "swizzle", "swizzle: must be one of NONE, BYTES_128, BYTES_128_A"),
    ({**PADDED, "swizzle": 6}, "swizzle", "for U4X16_ALIGN16B"),
    ({**SIX_BITS, "swizzle": 5}, "swizzle", "for U6X16_ALIGN16B"),
    ({"box_dims": (256, 256, 2)}, "box_dims", "at most 233472 bytes, here 262144"),
    ({"oob_fill": 1}, "oob_fill", "oobFill: NaN needs a floating-point type"),
    ({**PADDED, "oob_fill": 1}, "oob_fill", "oobFill: NaN needs a floating-point type"),
]


@pytest.mark.parametrize(("change", "argument", "rule"), RULES)
def test_each_rule_of_cu_tensor_map_encode_tiled(change, argument, rule):
    with pytest.raises(LayoutError) as caught:
        TensorMap(**LEGAL | change)
    assert caught.value.argument == argument
    assert rule in caught.value.rule


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"global_address": 16},
        {"global_dims": (64, 2**32, 1)},
        {"global_strides": (128, 2**40 - 16)},
        {"box_dims": (256, 256, 1)},
        {"element_strides": (1, 8, 8)},
        {"element_strides": ()},
        {"box_dims": (64, 8, 1), "swizzle": 3},
        {"box_dims": (8, 8, 1), "swizzle": 3},
        {"oob_fill": 1, "data_type": BF16},
        {"interleave": 1, "swizzle": 3},
        WIDE,
        PADDED | {"swizzle": 3},
        PADDED | {"swizzle": 4},
        SIX_BITS | {"swizzle": 6},
        PADDED | {"data_type": DataType.U4X16_ALIGN8B, "box_dims": (32, 8, 1)},
        {
            "global_dims": (64,),
            "global_strides": (),
            "box_dims": (16,),
            "element_strides": (),
        },
    ],
)
def test_at_the_limits_of_the_rules(change):
    tensor_map = TensorMap(**LEGAL | change)
    assert tensor_map == TensorMap(**vars(tensor_map))


def test_nesting_is_documented_and_checked_on_demand():
    """The documentation's formula; the driver itself does not insist (see the test on a GPU)."""
    TensorMap(**LEGAL).check_nesting()
    TensorMap(**LEGAL | {"global_strides": (144, 144 * 64)}).check_nesting()
    for strides, argument in [
        ((64, 8192), "global_strides[0]"),  # rows overlap
        ((8192, 128), "global_strides[1]"),  # permuted
        ((128, 8208), "global_strides[1]"),  # no multiple
        ((128, 4096), "global_strides[1]"),  # planes overlap
    ]:
        with pytest.raises(LayoutError, match=r"globalStrides: must be .* to nest") as caught:
            TensorMap(**LEGAL | {"global_strides": strides}).check_nesting()
        assert caught.value.argument == argument


def random_arguments(source):
    """Arguments of which about half are legal."""
    rank = source.choice([1, 2, 2, 3, 3, 4, 5])
    kind = source.choice(list(DataType)[:13] * 3 + list(DataType))
    swizzle = source.choice([0, 0, 1, 2, 3, 3, 4, 5, 6])
    row = source.choice([16, 32, 64, 128, 48, 8, 160])
    return {
        "data_type": kind,
        "global_dims": tuple(source.choice([1, 7, 64, 128, 1000, 2**32]) for _ in range(rank)),
        "global_strides": tuple(
            source.choice([16, 32, 128, 4096, 2**20, 2**30] * 5 + [0, 8, 24, 2**40, 2**40 - 16])
            for _ in range(rank - 1)
        ),
        "box_dims": (
            source.choice([max(1, 8 * row // kind.bits)] * 9 + [0, 128, 256, 257]),
            *(source.choice([1, 2, 8, 64, 1, 2, 8, 64, 256, 257, 0]) for _ in range(rank - 1)),
        ),
        "element_strides": tuple(
            source.choice([1] * 20 + [2, 3, 8] + [0, 9][: source.random() < 0.3])
            for _ in range(rank)
        ),
        "interleave": source.choice([0] * 8 + [1, 2]),
        "swizzle": swizzle,
        "l2_promotion": source.choice([0, 1, 2, 3]),
        "oob_fill": source.choice([0, 0, 0, 1]),
        "global_address": source.choice([0, 4096, 4096, 16, 32, 8, 1]),
    }


def refused(arguments):
    try:
        TensorMap(**arguments)
    except LayoutError as error:
        return error
    return None


def test_random_arguments_raise_nothing_but_layout_error():
    source = random.Random(0)
    outcomes = [refused(random_arguments(source)) is None for _ in range(3000)]
    assert 300 < sum(outcomes) < 2700
    for _ in range(500):
        junk = random_arguments(source)
        name = source.choice(list(junk))
        junk[name] = source.choice([None, "x", 1.5, -1, (), (None,), [[1]], 2**70, True])
        refused(junk)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton's cuda.h")
def test_enumerators_are_those_of_cuda_h():
    """The header of CUDA that Triton ships."""
    triton = Path(importlib.util.find_spec("triton").origin).parent
    header = (triton / "backends/nvidia/include/cuda.h").read_text(encoding="utf-8")
    ours = {
        "CUtensorMapDataType": ("DATA_TYPE", DataType),
        "CUtensorMapInterleave": ("INTERLEAVE", Interleave),
        "CUtensorMapSwizzle": ("SWIZZLE", TensorSwizzle),
        "CUtensorMapL2promotion": ("L2_PROMOTION", L2Promotion),
        "CUtensorMapFloatOOBfill": ("FLOAT_OOB_FILL", OobFill),
    }
    for name, (prefix, kind) in ours.items():
        body = re.search(rf"typedef enum {name}_enum \{{(.*?)\}} {name};", header, re.DOTALL)[1]
        theirs = re.findall(rf"CU_TENSOR_MAP_{prefix}_(\w+)", re.sub(r"//.*|/\*.*?\*/", "", body))
        names = [f"CU_TENSOR_MAP_{prefix}_{text}" for text in theirs]
        assert names == [member.cuda_name for member in kind]
        assert [int(member) for member in kind] == list(range(len(theirs)))


# ------------------------------------------------- where elements land in shared memory


def box_grid(tensor_map):
    """The coordinates of all elements that a copy writes, innermost first, as arrays."""
    return list(np.indices(tensor_map.copied_shape))


@st.composite
def tiles(draw):
    """An encoding that TMA can fill, and a tile's shape."""
    rank = draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from(SWIZZLE_BYTE_WIDTHS)) if rank > 1 else 0
    bits = draw(st.sampled_from(ELEMENT_BITWIDTHS))
    transposed = draw(st.booleans()) and (rank == 2 or not swizzle)
    fp4 = swizzle == 128 and bits == 8 and not transposed and draw(st.booleans())
    encoding = NVMMAShared(swizzle, bits, transposed, fp4, rank)
    shape = [1 << draw(st.integers(0, {1: 11, 2: 9, 3: 6, 4: 4, 5: 4}[rank])) for _ in range(rank)]
    contiguous = encoding.contiguous_dim
    shape[contiguous] = max(shape[contiguous], 8 * 16 // bits, 8 * swizzle // bits)
    return encoding, tuple(shape)


@settings(max_examples=some(200))
@given(tiles(), st.integers(0, 3))
def test_boxes_fill_the_tile_as_the_linear_layout_says(tile, place):
    """Every element of every box: row-major box, swizzled address = the converted encoding."""
    encoding, shape = tile
    packing = 2 if encoding.fp4_padded else 1
    assume(math.prod(shape) * packing * encoding.element_bitwidth // 8 <= MAX_TILE_BYTES)
    try:
        layout = nvmma_shared_to_linear_layout(shape, encoding)
    except LayoutError:  # fewer than the 8 rows of an atom
        assume(False)
    copies = tile_copies([max(128, size) for size in shape], shape, encoding)
    tensor_map = copies.tensor_map
    order = [encoding.contiguous_dim]
    order += [i for i in reversed(range(len(shape))) if i != encoding.contiguous_dim]
    base = 1024 * place
    element_bytes = encoding.element_bitwidth // 8
    seen = np.zeros(shape, int)
    for box in copies.boxes:
        grid = box_grid(tensor_map)
        if encoding.fp4_padded:
            grid = [index[::2] for index in grid]  # one of the two 4-bit elements of each byte
        address = tensor_map.smem_address(grid, base + box.smem_offset)
        assert address.min() >= base
        assert address.max() < base + copies.smem_bytes
        found = layout.apply(offset=(address - base) // element_bytes)
        for axis, dim in enumerate(order):
            inside = grid[axis] // (packing if axis == 0 else 1)
            assert np.array_equal(found[f"dim{dim}"], box.start[dim] + inside)
        np.add.at(seen, tuple(found.values()), 1)
    assert (seen == 1).all()


@given(
    st.sampled_from(("K", "MN")),
    st.sampled_from(SWIZZLE_BYTE_WIDTHS),
    st.sampled_from((8, 16, 32)),
    st.tuples(st.integers(0, 6), st.integers(0, 3)),
)
def test_boxes_of_atoms_leave_stacked_atoms(major, swizzle, bits, repeats):
    """Seed 003, Sec. 9.3 / seed 002, Sec. 3.1: each atom of the tile in one piece, as documented.

    Atoms follow each other along the strided dimension first, whatever the swizzle.
    """
    atom = SwizzleAtom(major, swizzle, bits)
    repeats = repeats if major == "K" else repeats[::-1]  # strided, contiguous
    block = tuple(size << extra for size, extra in zip(atom.shape, repeats, strict=True))
    assume(math.prod(block) * bits // 8 <= MAX_TILE_BYTES)
    copies = tile_copies((4096, 4096), block, atom)
    contiguous = 1 if major == "K" else 0
    atom_bytes = 8 * atom.row_bytes
    down = block[1 - contiguous] // 8
    addresses = np.array(
        [[atom.address(mn, k) for k in range(atom.shape[1])] for mn in range(atom.shape[0])]
    )
    for box in copies.boxes:
        grid = np.indices(copies.box_shape)
        place = copies.tensor_map.smem_address(
            (grid[contiguous], grid[1 - contiguous]), box.smem_offset
        )
        element = [first + index for first, index in zip(box.start, grid, strict=True)]
        which = [index // size for index, size in zip(element, atom.shape, strict=True)]
        number = which[1 - contiguous] + which[contiguous] * down
        inside = [index % size for index, size in zip(element, atom.shape, strict=True)]
        assert np.array_equal(place, number * atom_bytes + addresses[tuple(inside)])


def test_swizzles_with_wider_atoms():
    """PTX ISA, "Swizzling modes": which 16-byte chunk lies in each slot of 128-byte lines."""

    def picture(swizzle, lines):
        tensor_map = TensorMap(DataType.UINT8, (128, 8), (128,), (128, 8), swizzle=swizzle)
        slots = {
            tensor_map.smem_address((16 * chunk, row)) // 16: chunk
            for row in range(8)
            for chunk in range(8)
        }
        return [[slots[8 * row + slot] for slot in range(8)] for row in range(lines)]

    assert picture(TensorSwizzle.BYTES_128_ATOM_32B, 5) == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert picture(TensorSwizzle.BYTES_128_ATOM_64B, 3) == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    flipped = TensorMap(
        DataType.UINT8, (128, 8), (128,), (128, 8), swizzle=TensorSwizzle.BYTES_128_ATOM_32B_FLIP_8B
    )
    plain = TensorMap(
        DataType.UINT8, (128, 8), (128,), (128, 8), swizzle=TensorSwizzle.BYTES_128_ATOM_32B
    )
    for row, column in itertools.product(range(8), range(0, 128, 8)):
        flip = 8 * (row % 2)
        assert flipped.smem_address((column, row)) == plain.smem_address((column, row)) ^ flip


def test_the_pattern_repeats_at_the_alignment_and_no_sooner():
    """CUDA programming guide, Table "Requirements and properties of the ... patterns"."""
    alignments = {}
    for swizzle in TensorSwizzle:
        tensor_map = TensorMap(DataType.UINT8, (16, 64), (16,), (16, 64), swizzle=swizzle)
        grid = box_grid(tensor_map)
        pattern = tensor_map.smem_address(grid)
        alignments[swizzle] = next(
            base
            for base in range(128, 2048, 128)
            if np.array_equal(tensor_map.smem_address(grid, base) - base, pattern)
        )
        assert swizzle.alignment == alignments[swizzle]
    assert list(alignments.values()) == [128, 256, 512, 1024, 512, 512, 256]
    for width in SWIZZLE_BYTE_WIDTHS:
        assert TensorSwizzle.of_width(width).alignment == NVMMAShared(width, 16).alignment


@pytest.mark.parametrize(("span", "rows"), [(128, 8), (64, 4), (32, 2)])
def test_pointer_offset_formula_of_the_cuda_programming_guide(span, rows):
    """ "Swizzle Pattern Pointer Offset Computation": smem[y][((y + offset) % rows) ^ x].

    Line y of 128 bytes, chunk x of 16 bytes in it; offset = (address / 128) % rows.
    """
    tensor_map = TensorMap(
        DataType.UINT8, (span, 64), (span,), (span, 64), swizzle=TensorSwizzle.of_width(span)
    )
    for base in range(0, 2048, 128):
        offset = base // 128 % rows
        for linear in range(0, span * 64, 16):
            y, x = linear // 128, linear % 128 // 16
            place = tensor_map.smem_address((linear % span, linear // span), base)
            assert place == base + 128 * y + 16 * ((y + offset) % rows ^ x)


def test_rows_narrower_than_the_swizzle_lie_a_swizzle_width_apart():
    """CUDA programming guide, "Considerations" of TMA swizzle; seen so on an H100 (below)."""
    narrow = TensorMap(DataType.UINT8, (64, 64), (64,), (48, 16), swizzle=3)
    assert (narrow.row_bytes, narrow.smem_row_bytes) == (48, 128)
    assert (narrow.transaction_bytes, narrow.smem_bytes) == (48 * 16, 128 * 16)
    wide = TensorMap(DataType.UINT8, (128, 64), (128,), (128, 16), swizzle=3)
    for element in itertools.product(range(48), range(16)):
        assert narrow.smem_address(element) == wide.smem_address(element)


def test_narrow_integer_arrays_do_not_overflow():
    tensor_map = TensorMap(DataType.UINT8, (256, 256), (256,), (256, 256))
    small = np.arange(256, dtype=np.uint8)
    assert tensor_map.smem_address((small, small)).tolist() == list(range(0, 65536, 257))


def test_nvidia_cute_dsl_has_the_same_32_byte_atoms():
    """The atom MN_SW128_32B, evaluated by NVIDIA's own algebra: 128 bytes of M times 4 of K."""
    cutlass = pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    cute = pytest.importorskip("cutlass.cute")
    from cutlass.cute.nvgpu import tcgen05

    theirs = []

    @cute.jit
    def evaluate():
        atom = tcgen05.make_smem_layout_atom(
            tcgen05.SmemLayoutAtomKind.MN_SW128_32B, cutlass.Float32
        )
        in_bytes = cute.make_composed_layout(atom.inner, 0, cute.recast_layout(8, 32, atom.outer))
        theirs.extend([int(in_bytes((4 * mn, k))) for mn in range(32)] for k in range(4))

    evaluate()
    tensor_map = TensorMap(
        DataType.FLOAT32, (32, 4), (128,), (32, 4), swizzle=TensorSwizzle.BYTES_128_ATOM_32B
    )
    ours = [[tensor_map.smem_address((mn, k)) for mn in range(32)] for k in range(4)]
    assert ours == theirs


def test_packed_types_land_as_documented():
    """cuTensorMapEncodeTiled: gaps of 8 bytes (16U4) and 4 bytes (16U6), or none (ALIGN8B)."""
    padded = TensorMap(**LEGAL | PADDED)
    assert [padded.smem_address((i, 0, 0)) for i in (0, 1, 15, 16, 127)] == [0, 0, 7, 16, 119]
    assert (padded.row_bytes, padded.smem_row_bytes) == (64, 128)
    six = TensorMap(**LEGAL | SIX_BITS)
    assert [six.smem_address((i, 0, 0)) for i in (0, 4, 15, 16)] == [0, 3, 11, 16]
    assert (six.row_bytes, six.smem_row_bytes) == (96, 128)
    dense = TensorMap(**LEGAL | PADDED | {"data_type": DataType.U4X16_ALIGN8B})
    assert [dense.smem_address((i, 0, 0)) for i in (0, 15, 16, 127)] == [0, 7, 8, 63]
    assert dense.transaction_bytes == dense.smem_bytes == 64 * 8
    assert {padded.min_architecture, six.min_architecture, dense.min_architecture} == {100}
    assert TensorMap(**LEGAL).min_architecture == 90


def test_element_strides_copy_fewer_elements():
    """cuTensorMapEncodeTiled, elementStrides: ceil(boxDim / elementStride), the first ignored."""
    strided = TensorMap(**LEGAL | {"box_dims": (16, 15, 3), "element_strides": (5, 4, 2)})
    assert strided.copied_shape == (16, 4, 2)
    assert strided.transaction_bytes == 16 * 4 * 2 * 2
    interleaved = {"box_dims": (16, 15, 3), "element_strides": (5, 4, 2), "interleave": 1}
    assert TensorMap(**LEGAL | interleaved).copied_shape == (4, 4, 2)


def test_bad_places_in_shared_memory():
    tensor_map = TensorMap(**LEGAL)
    for coordinates, base, argument in [
        ((16, 0, 0), 0, "coordinates[0]"),
        ((0, -1, 0), 0, "coordinates[1]"),
        ((0, np.arange(9), 0), 0, "coordinates[1]"),
        ((0, np.arange(3.0), 0), 0, "coordinates[1]"),
        ((0, 0.5, 0), 0, "coordinates[1]"),
        ((0, 0, None), 0, "coordinates[2]"),
        ((0, 0), 0, "coordinates"),
        ((0, 0, 0), 64, "base"),
    ]:
        with pytest.raises(LayoutError) as caught:
            tensor_map.smem_address(coordinates, base)
        assert caught.value.argument == argument
    with pytest.raises(LayoutError, match="not modelled"):
        TensorMap(**LEGAL | {"interleave": 1}).smem_address((0, 0, 0))


# ------------------------------------------------------------------- tiles and bounds


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(-40, 60), st.integers(-5, 6)),
    st.booleans(),
)
def test_bounds_are_those_of_each_element(shape, at, transposed):
    """Brute force: which elements of each box the tensor has."""
    if transposed:
        at = at[::-1]
    contiguous = 0 if transposed else 1
    at = tuple(8 * value if i == contiguous else value for i, value in enumerate(at))
    encoding = NVMMAShared(32, 16, transposed)
    strides = (1, 64) if transposed else (64, 1)
    copies = tile_copies(shape, (32, 32), encoding, at=at, strides=strides)
    tensor_map = copies.tensor_map
    assert tensor_map.global_dims == (shape if transposed else shape[::-1])
    for box in copies.boxes:
        elements = [
            tuple(first + step for first, step in zip(box.start, element, strict=True))
            for element in itertools.product(*map(range, box.shape))
        ]
        inside = {
            i for i in elements if all(0 <= v < size for v, size in zip(i, shape, strict=True))
        }
        said = {
            tuple(first + step for first, step in zip(box.start, element, strict=True))
            for element in itertools.product(*(range(*part) for part in box.inside))
        }
        assert said == inside
        assert box.elements_inside == len(inside)
        assert box.elements_filled == len(elements) - len(inside)
        assert box.transaction_bytes == len(elements) * 2
        assert box.coordinates == (box.start if transposed else box.start[::-1])
    assert copies.transaction_bytes == 32 * 32 * 2


def test_a_transposed_tile_is_a_box_of_the_transposed_tensor():
    """A K x M tensor, M contiguous, tile 64 x 128 (dim0 contiguous)."""
    copies = tile_copies((4096, 512), (128, 64), NVMMAShared(128, 16, True))
    plain = tile_copies((512, 4096), (64, 128), NVMMAShared(128, 16))
    assert copies.tensor_map == plain.tensor_map
    assert copies.box_shape == plain.box_shape[::-1] == (64, 64)
    assert {(box.coordinates, box.smem_offset) for box in copies.boxes} == {
        (box.coordinates, box.smem_offset) for box in plain.boxes
    }


def test_cluster_blocks_copy_their_parts():
    encoding = NVMMAShared(128, 16, cga_layout=((1, 0), (0, 1)))
    starts = [
        tile_copies((4096, 4096), (256, 128), encoding, at=(512, 64), cta=cta).start
        for cta in range(4)
    ]
    assert starts == [(512, 64), (640, 64), (512, 128), (640, 128)]
    copies = tile_copies((4096, 4096), (256, 128), encoding)
    assert copies.tile_shape == (128, 64)
    assert copies.transaction_bytes == 128 * 64 * 2


def test_reasons_for_several_copies():
    swizzled = tile_copies((4096, 4096), (512, 64), NVMMAShared(64, 16))
    assert swizzled.reasons == (
        "dim0: 512 elements take 2 boxes: a box has at most 256 elements along a dimension",
        "dim1: 64 elements take 2 boxes: 32 elements are the 64 bytes of the swizzle",
    )
    assert [box.smem_offset for box in swizzled.boxes] == [0, 16384, 32768, 49152]
    rows = tile_copies((4096, 4096), (16, 512), NVMMAShared(0, 16))
    assert len(rows.boxes) == 2
    assert rows.reasons[0].startswith("dim0: 16 elements take 1 box: a box may have up to 256")


@pytest.mark.parametrize(
    ("change", "argument", "rule"),
    [
        ({"shape": (4096,)}, "shape", "must have 2 values"),
        ({"shape": (4096, 4095)}, "global_strides[0]", "globalStrides: must be a multiple of 16"),
        ({"shape": (0, 4096)}, "global_dims[1]", "globalDim"),
        ({"block": (48, 64)}, "shape[0]", "must be a power of two"),
        ({"block": (4, 64)}, "product of shape[:-1]", "8 rows of a swizzle atom"),
        ({"block": (64, 32)}, "shape[1]", "at least 64 elements along the contiguous dimension"),
        ({"block": (2**20, 2**20)}, "block", "more than the shared memory"),
        ({"strides": (4096, 2)}, "strides[1]", "must be 1: TMA reads the innermost dimension"),
        ({"strides": (4096,)}, "strides", "must have 2 values"),
        ({"at": (0, 4)}, "at[1]", "must be a multiple of 8 elements (16 bytes)"),
        ({"at": (2**31, 0)}, "at", "must fit 32 bits, signed"),
        ({"at": (0,)}, "at", "must have 2 values"),
        ({"cta": 1}, "cta", "must lie in [0, 1)"),
        ({"data_type": DataType.FLOAT32}, "data_type", "must be a type of 16 bits"),
        ({"data_type": 5}, "data_type", "must be a DataType"),
        ({"layout": None}, "layout", "must be an NVMMAShared or a SwizzleAtom"),
        (
            {
                "layout": NVMMAShared(32, 16, True, rank=3),
                "block": (16, 16, 16),
                "shape": (64, 64, 64),
            },
            "layout",
            "no TMA copy writes a swizzled, transposed tile",
        ),
        ({"layout": SwizzleAtom("K", 0, 16), "block": (4, 64)}, "block[0]", "at least 8"),
        (
            {"layout": NVMMAShared(128, 8, fp4_padded=True), "at": (0, 32)},
            "at[1]",
            "must be a multiple of 64 elements (64 bytes)",
        ),
    ],
)
def test_bad_tiles(change, argument, rule):
    arguments = {"shape": (4096, 4096), "block": (128, 128), "layout": NVMMAShared(128, 16)}
    arguments |= change
    with pytest.raises(LayoutError) as caught:
        tile_copies(**arguments)
    assert (caught.value.argument, rule in caught.value.rule) == (argument, True)


def test_random_tiles_raise_nothing_but_layout_error():
    source = random.Random(3)
    names = ("shape", "block", "layout", "at", "strides", "data_type", "cta", "global_address")
    junk = [None, 0, -1, "x", 1.5, (), (None, 1), (4096,), ((1,), 2), (64, 64), (2**70, 1), (1, -8)]
    legal = {"shape": (4096, 4096), "block": (128, 128), "layout": NVMMAShared(128, 16)}
    refusals = 0
    for _ in range(2000):
        arguments = legal | {name: source.choice(junk) for name in source.sample(names, 2)}
        try:
            tile_copies(**arguments)
        except LayoutError:
            refusals += 1
    assert refusals > 1000


# ------------------------------------------------------------------------ the seeds


def test_seed_002_k_major_tile_takes_two_boxes():
    """Seed 002, Sec. 3.1: (128, 128) bf16, 128B: 2 boxes (128, 64); atoms at 1024 m + 16384 k."""
    for layout in (NVMMAShared(128, 16), SwizzleAtom("K", 128, 16)):
        copies = tile_copies((4096, 4096), (128, 128), layout, data_type=BF16)
        assert copies.box_shape == (128, 64)
        assert [box.start for box in copies.boxes] == [(0, 0), (0, 64)]
        assert [box.smem_offset for box in copies.boxes] == [0, 16384]
        assert copies.smem_bytes == copies.transaction_bytes == 32 * 1024
        for m, k in itertools.product(range(16), range(2)):
            box = copies.boxes[k]
            assert (
                copies.tensor_map.smem_address((0, 8 * m), box.smem_offset) == 1024 * m + 16384 * k
            )


def test_seed_002_mn_major_tile_takes_four_boxes():
    """Seed 002, Sec. 4.1: (128, 128) bf16, 64B: 4 boxes (32, 128); atoms at 8192 m + 512 k."""
    for layout in (NVMMAShared(64, 16, transposed=True), SwizzleAtom("MN", 64, 16)):
        copies = tile_copies((4096, 4096), (128, 128), layout, data_type=BF16)
        assert copies.box_shape == (32, 128)
        assert [box.start for box in copies.boxes] == [(0, 0), (32, 0), (64, 0), (96, 0)]
        assert copies.tensor_map.box_dims == (32, 128)  # M is the innermost dimension
        for m, k in itertools.product(range(4), range(16)):
            box = copies.boxes[m]
            assert copies.tensor_map.smem_address((0, 8 * k), box.smem_offset) == 8192 * m + 512 * k


def test_seed_003_global_request_sizes():
    """Seed 003, Sec. 5: 8x64B, K-major: requests of 16, 32, 64 bytes; 128 for an 8x128B tile."""
    for width, copies_of_8x64 in ((0, 4), (32, 2), (64, 1)):
        copies = tile_copies((4096, 4096), (8, 32), SwizzleAtom("K", width, 16), data_type=BF16)
        assert copies.tensor_map.row_bytes == max(16, width)
        assert len(copies.boxes) == copies_of_8x64
    wide = tile_copies((4096, 4096), (8, 64), SwizzleAtom("K", 128, 16), data_type=BF16)
    assert wide.tensor_map.row_bytes == 128
    with pytest.raises(LayoutError, match="must be at least 64"):  # "the tile is only 64B"
        tile_copies((4096, 4096), (8, 32), SwizzleAtom("K", 128, 16), data_type=BF16)
    for major, width in itertools.product(("K", "MN"), SWIZZLE_BYTE_WIDTHS):
        atom = SwizzleAtom(major, width, 16)
        assert tile_copies((4096, 4096), atom.shape, atom).tensor_map.row_bytes == max(16, width)


def test_seed_003_the_largest_atom_that_fits_reads_the_most_at_a_time():
    """Seed 003, Sec. 5: for rows of 16, 32, 64, and 128 bytes or more, the swizzle to choose."""
    for row_bytes, best in ((16, 0), (32, 32), (64, 64), (128, 128), (256, 128)):
        elements = row_bytes // 2
        sizes = {}
        for width in SWIZZLE_BYTE_WIDTHS:
            if max(16, width) <= row_bytes:
                copies = tile_copies((4096, 4096), (8, elements), SwizzleAtom("K", width, 16))
                sizes[width] = copies.tensor_map.row_bytes
        assert max(sizes, key=sizes.get) == best
        assert NVMMAShared.default_for((8, elements), 16).swizzle_byte_width == best


def test_seed_004_eight_fetches_not_one():
    """Seed 004, "1 - Loading tiles into shared memory" and "Core matrices": 64x64 in 8 of 64x8.

    Appendix "Descriptors": columns of core matrices lie 64 * 16 = 1024 bytes apart (LBO), core
    matrices of a column 8 * 16 = 128 (SBO).
    """
    tile = tile_copies((4096, 4096), (64, 64), SwizzleAtom("K", 0, 16), data_type=BF16)
    assert len(tile.boxes) == 8
    assert tile.box_shape == (64, 8)
    assert [box.start for box in tile.boxes] == [(0, 8 * i) for i in range(8)]
    assert [box.smem_offset for box in tile.boxes] == [1024 * i for i in range(8)]
    for column, matrix in itertools.product(range(8), range(8)):
        place = tile.tensor_map.smem_address((0, 8 * matrix), tile.boxes[column].smem_offset)
        assert place == 1024 * column + 128 * matrix
    assert "16 bytes of a core matrix's row" in tile.reasons[1]


def test_seed_004_swizzled_one_fetch():
    """Seed 004, "Kernel 3: swizzling": a single row-major tile BM x BK with Swizzle<3, 4, 3>."""
    tile = tile_copies((4096, 4096), (64, 64), SwizzleAtom("K", 128, 16), data_type=BF16)
    assert len(tile.boxes) == 1
    assert tile.box_shape == (64, 64)
    assert str(tile.tensor_map.swizzle.swizzles[0]) == "Swizzle<3, 4, 3>"
    for row, column in itertools.product(range(64), range(64)):
        linear = 128 * row + 2 * column
        assert tile.tensor_map.smem_address((column, row)) == linear ^ (linear >> 7 & 7) << 4


def test_seed_004_tensor_map_barrier_and_loop():
    """Seed 004, "1": a tensor map of 128 B; the barrier expects both tiles, about 16 KB.

    The coordinates of tile i are (i * BK, block * BM), the contiguous dimension first. K / BK is
    64 for K = 4096 and BK = 64; the seed's text says 256.
    """
    assert TENSOR_MAP_BYTES == 128
    block_m = block_n = block_k = 64
    tiles_along_k = 4096 // block_k
    assert tiles_along_k == 64
    atom = SwizzleAtom("K", 128, 16)
    for i, block in ((0, 0), (3, 2), (tiles_along_k - 1, 63)):
        a = tile_copies((4096, 4096), (block_m, block_k), atom, at=(block * block_m, i * block_k))
        b = tile_copies((4096, 4096), (block_n, block_k), atom, at=(0, i * block_k))
        assert a.boxes[0].coordinates == (i * block_k, block * block_m)
        assert a.transaction_bytes + b.transaction_bytes == 2 * 64 * 64 * 2 == 16 * 1024
        assert not any(box.elements_filled for box in a.boxes + b.boxes)


def test_seed_004_tma_store():
    """Seed 004, "TMA store": TMA_BN = 64 for 128B and BF16; BN = 128 maps to two stores."""
    one = tile_copies((4096, 4096), (64, 64), NVMMAShared.default_for((64, 64), 16))
    two = tile_copies((4096, 4096), (64, 128), NVMMAShared.default_for((64, 128), 16))
    assert (one.box_shape, len(one.boxes)) == ((64, 64), 1)
    assert (two.box_shape, len(two.boxes)) == ((64, 64), 2)
    assert [box.start for box in two.boxes] == [(0, 0), (0, 64)]


# -------------------------------------------------------- Triton's own lowering, no GPU

TRITON_TYPES = {
    "fp16": DataType.FLOAT16,
    "bf16": DataType.BFLOAT16,
    "fp32": DataType.FLOAT32,
    "i8": DataType.UINT8,
    "i64": DataType.INT64,
}


def triton_jobs(site):
    """Tiles of one and of several boxes, each swizzle and width, ranks 1 to 5; fp4_padded.

    All of them for the installed Triton, every fourth for the others.
    """
    tiles = [
        ("fp16", (64, 64), 128), ("bf16", (128, 256), 128), ("fp16", (128, 128), 64),
        ("bf16", (64, 64), 32), ("fp16", (512, 64), 128), ("fp16", (512, 128), 64),
        ("fp16", (64, 64), 0), ("bf16", (16, 512), 0), ("fp16", (512, 64), 0),
        ("i8", (64, 256), 128), ("i8", (64, 128), 64), ("i8", (128, 128), 32),
        ("i8", (512, 128), 0), ("i8", (16, 16), 0), ("fp32", (64, 64), 128),
        ("fp32", (32, 64), 64), ("fp32", (64, 64), 32), ("fp32", (8, 512), 0),
        ("i64", (32, 64), 128), ("i64", (32, 16), 0),
        ("fp16", (1024,), 0), ("fp32", (64,), 0),
        ("fp16", (4, 16, 128), 128), ("i8", (2, 512, 64), 64), ("bf16", (4, 16, 512), 0),
        ("fp32", (2, 4, 8, 64), 64), ("fp16", (2, 2, 2, 16, 64), 64),
        ("fp16", (2, 2, 2, 2, 512), 0),
    ]  # fmt: skip
    jobs: list[dict] = []
    source = random.Random(0)
    for name, shape, swizzle in tiles:
        bits = TRITON_TYPES[name].bits
        encoding = NVMMAShared(swizzle, bits, rank=len(shape))
        unit = 128 // bits
        at = [source.randrange(-9, 2000) for _ in shape]
        at[-1] = unit * source.randrange(-9, 200)
        jobs.append({"type": name, "block": shape, "encoding": encoding, "at": at})
    fp4 = NVMMAShared(128, 8, fp4_padded=True)
    jobs.append({"type": "i8", "block": (64, 64), "encoding": fp4, "at": [3, -64]})
    jobs.append({"type": "i8", "block": (128, 256), "encoding": fp4, "at": [0, 128]})
    return jobs[1::4] if site else jobs


@functools.cache
def triton_results(site):
    environment = dict(os.environ)
    if site:
        environment["PYTHONPATH"] = str(site)
    jobs = [job | {"encoding": str(job["encoding"])} for job in triton_jobs(site)]
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "tma_worker.py")],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads(line) for line in finished.stdout.splitlines()[1:]]


@pytest.mark.parametrize("site", triton_sites())
def test_triton_issues_the_same_copies(site):
    """The PTX of a TMA load for sm_90: number, order, offsets and coordinates of the copies.

    And the bytes that the mbarrier expects, and what Triton's launcher is told of the tensor map.
    """
    results = triton_results(site)
    jobs = triton_jobs(site)
    assert len(results) == len(jobs)
    several = 0
    for job, result in zip(jobs, results, strict=True):
        assert "error" not in result, (job, result)
        encoding = job["encoding"]
        data_type = DataType.U4X16_ALIGN16B if encoding.fp4_padded else TRITON_TYPES[job["type"]]
        copies = tile_copies(
            (8192,) * len(job["block"]) if len(job["block"]) < 4 else (256,) * len(job["block"]),
            job["block"],
            encoding,
            at=job["at"],
            data_type=data_type,
        )
        rank = len(job["block"])
        ours = [[box.smem_offset, list(box.coordinates), rank] for box in copies.boxes]
        assert ours == result["copies"], job
        assert result["expected"] == [copies.transaction_bytes], job
        several += len(ours) > 1
        tensor_map, meta = copies.tensor_map, result["meta"]
        assert meta["block_size"] == list(tensor_map.box_dims)[::-1]
        assert meta["swizzle"] == tensor_map.swizzle
        assert meta["elem_size"] == encoding.element_bitwidth // 8
        assert meta["elem_type"] == tensor_map.data_type
        assert meta["fp4_padded"] == encoding.fp4_padded
    assert several >= len(jobs) // 2


# ------------------------------------------------------------------------ the command


def invoke(*arguments):
    group = CommandGroup("triton-ext", modules={"tma": "triton_ext.commands.tma"})
    return CliRunner().invoke(group, ["tma", *arguments])


def output(*arguments):
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command_text():
    text = output("--shape", "4096x4096", "--bits", "16", "--block", "128x128", "--at", "4000,-64")
    assert "boxDim          64, 128" in text
    assert "2 copies of 128x64 for a tile of 128x128" in text
    assert "dim1: 128 elements take 2 boxes: 64 elements are the 128 bytes of the swizzle" in text
    assert re.search(r"^0 +\(4000, -64\) +\{-64, 4000\} +\+0 +16384  all of it$", text, re.M)
    assert re.search(
        r"^1 +\(4000, 0\) +\{0, 4000\} +\+16384 +16384  dim0 96\.\.127 of the box$", text, re.M
    )
    assert "expect_tx: 32768 bytes, 10240 elements out of bounds included" in text


def test_command_eight_fetches():
    text = output(
        *("--shape", "4096x4096", "--bits", "16", "--block", "64x64"),
        *("--swizzle", "0", "--core-matrices"),
    )
    assert "8 copies of 64x8 for a tile of 64x64" in text
    assert "expect_tx: 8192 bytes\n" in text
    assert "shared memory: 8192 bytes, at a multiple of 128; a row of a box is 16 cont" in text


def test_command_names_what_needs_blackwell():
    arguments = ("--shape", "4096x4096", "--bits", "8", "--block", "64x64")
    assert "needs sm_100 or later" in output(*arguments, "--fp4-padded")
    assert "needs sm_100" not in output(*arguments)


def test_command_json():
    shape = ("--shape", "1000x1000", "--strides", "1008,1", "--block", "64x128", "--bits", "8")
    shown = json.loads(output(*shape, "--swizzle", "64", "--at", "960,0", "--format", "json"))
    assert shown["tensor_map"]["globalDim"] == [1000, 1000]
    assert shown["tensor_map"]["globalStrides"] == [1008]
    assert shown["tensor_map"]["swizzle"] == "CU_TENSOR_MAP_SWIZZLE_64B"
    assert shown["copies"] == len(shown["boxes"]) == 2
    assert shown["expect_tx_bytes"] == 64 * 128
    assert shown["boxes"][1] == {
        "start": [960, 64],
        "shape": [64, 64],
        "coordinates": [64, 960],
        "smem_offset": 4096,
        "bytes": 4096,
        "inside": [[0, 40], [0, 64]],
        "elements_filled": 24 * 64,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shape", "4096x4095"), "globalStrides: must be a multiple of 16"),
        (("--shape", "4096x4096", "--address", "8"), "globalAddress: must be a multiple of 16"),
        (("--shape", "4096x4096", "--address", "x"), "'x' is no address"),
        (("--shape", "4096x4096", "--at", "0,1"), "innermost coordinate must be a multiple of 8"),
        (("--shape", "4096x4096", "--at", "0;1"), "'0;1' is no list of integers"),
        (("--shape", "4096x4096", "--core-matrices"), "--core-matrices is for --swizzle 0"),
        (("--shape", "64"), "must have 2 values"),
        ((), "Missing option '--shape'"),
    ],
)
def test_command_errors_are_one_line(arguments, said):
    result = invoke(*arguments, "--bits", "16", "--block", "64x64")
    assert result.exit_code == 2
    assert result.stderr.startswith("triton-ext: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


# --------------------------------------------------------------------------- on a GPU


@pytest.fixture
def gpu():
    pytest.importorskip("torch")
    import tma_gpu

    return tma_gpu


@pytest.mark.sm90
def test_the_driver_has_the_same_rules(gpu):
    """cuTensorMapEncodeTiled itself, on random arguments.

    What is allowed for: the driver (CUDA 13.0, H100) refuses what needs Blackwell; and it accepts
    other swizzles than 32B with interleave 32B, and boxes larger than shared memory if an element
    stride is not 1.
    """
    source = random.Random(1)
    accepted = 0
    for _ in range(20000):
        arguments = random_arguments(source)
        status, _ = gpu.encode(arguments)
        error = refused(arguments)
        if status == 0:
            accepted += 1
            if error is not None:
                larger = "at most 233472 bytes" in str(error)
                assert "must be 32B with interleave 32B" in str(error) or (
                    larger and set(arguments["element_strides"]) != {1}
                ), (arguments, error)
        elif error is None:
            assert TensorMap(**arguments).min_architecture > 90, arguments
    assert accepted > 2000


@pytest.mark.sm90
def test_elements_land_where_predicted(gpu):
    """One box copied by the hardware: every byte of shared memory behind it is as predicted.

    All swizzles and widths of Hopper, rows narrower than the swizzle, places that are no multiple
    of the swizzle's period, tensors at any multiple of 16 bytes (the CUDA programming guide asks
    for 128 with a swizzle), strides that do not nest, element strides, negative coordinates, boxes
    partly and wholly outside.
    """
    import torch

    source = random.Random(2)
    data = np.random.default_rng(0).integers(0, 256, 1 << 18, np.uint8)
    tensor = torch.from_numpy(data).cuda()
    kinds = [DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64]
    outside = 0
    for _ in range(400):
        kind = source.choice(kinds)
        size = kind.bits // 8
        rank = source.choice([1, 2, 3, 4, 5])
        swizzle = TensorSwizzle(source.randrange(4))
        rows = [16 * i for i in range(1, (swizzle.span or 128) // 16 + 1)]
        skipped = 16 * source.randrange(16)
        dims = (
            source.randrange(1, 256 // size),
            *(source.randrange(1, 9) for _ in range(rank - 1)),
        )
        tensor_map = TensorMap(
            kind,
            dims,
            tuple(source.choice([0, 272, 512, 1040, 4096]) for _ in range(rank - 1)),
            (source.choice(rows) // size, *source.choices([1, 2, 3, 8], k=rank - 1)),
            (1, *source.choices([1, 1, 2, 3], k=rank - 1)),
            swizzle=swizzle,
            global_address=tensor.data_ptr() + skipped,
        )
        place = 128 * source.randrange(9)
        if tensor_map.smem_bytes + place > gpu.SMEM_BYTES:
            continue
        coordinates = [16 // size * source.randrange(-3, 12)]
        coordinates += [source.randrange(-3, 9) for _ in range(rank - 1)]
        status, encoded = gpu.encode(vars(tensor_map))
        assert status == 0
        found, completed = gpu.load_box(encoded, coordinates, place, tensor_map.transaction_bytes)
        expected = gpu.expected_smem(tensor_map, data[skipped:], coordinates, place)
        assert completed, (tensor_map, coordinates)
        assert np.array_equal(found, expected), (tensor_map, coordinates, place)
        outside += any(c < 0 for c in coordinates)
    assert outside > 50


@pytest.mark.sm90
def test_the_barrier_completes_at_the_predicted_bytes_only(gpu):
    import torch

    data = torch.zeros(1 << 16, dtype=torch.uint8, device="cuda")
    tensor_map = TensorMap(
        DataType.UINT16, (64, 64), (128,), (32, 16), swizzle=3, global_address=data.data_ptr()
    )
    _, encoded = gpu.encode(vars(tensor_map))
    assert tensor_map.transaction_bytes == 1024 < tensor_map.smem_bytes
    for coordinates in ((0, 0), (48, 60), (-64, 0), (512, 512)):
        assert gpu.load_box(encoded, coordinates, 0, 1024)[1]
        assert not gpu.load_box(encoded, coordinates, 0, 1040)[1]


@pytest.mark.sm90
def test_out_of_bounds_elements_become_nan_if_asked(gpu):
    import torch

    data = torch.zeros(1 << 16, dtype=torch.uint8, device="cuda")
    tensor_map = TensorMap(
        DataType.FLOAT32, (64, 64), (256,), (32, 16), oob_fill=1, global_address=data.data_ptr()
    )
    _, encoded = gpu.encode(vars(tensor_map))
    found, completed = gpu.load_box(encoded, (48, 0), 0, tensor_map.transaction_bytes)
    values = found[: tensor_map.smem_bytes].view(np.float32).reshape(16, 32)
    assert completed
    assert (values[:, :16] == 0).all()
    assert np.isnan(values[:, 16:]).all()
