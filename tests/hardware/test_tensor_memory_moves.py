"""What tcgen05.cp writes, and where scale factors lie: hardware/tensor_memory_copy and _scales."""

from __future__ import annotations

import pytest

from triton_ext.errors import LayoutError
from triton_ext.hardware.instruction_descriptor import InstructionDescriptor, legal_n
from triton_ext.hardware.tensor_memory_copy import COPY_SHAPES, copy_shape
from triton_ext.hardware.tensor_memory_scales import ScaleFactors, scale_vector


@pytest.mark.parametrize("key", COPY_SHAPES, ids=".".join)
def test_every_lane_has_one_row(key):
    """The lanes of one copy are distinct, and every row goes somewhere, as often as the others."""
    shape = COPY_SHAPES[key]
    lanes, rows = zip(*shape.destinations(), strict=True)
    assert len(set(lanes)) == len(lanes)
    assert set(rows) == set(range(shape.rows))
    assert max(lanes) < 128
    assert shape.columns == shape.bits // 32


def test_multicast_pairs():
    """PTX ISA, tcgen05.cp: warps 0 and 2 form a pair, and 1 and 3; or 0 and 1, and 2 and 3."""
    rows = dict(copy_shape("64x128b", "warpx2::02_13").destinations())
    assert [rows[32 * warp] for warp in range(4)] == [0, 32, 0, 32]
    rows = dict(copy_shape("64x128b", "warpx2::01_23").destinations())
    assert [rows[32 * warp] for warp in range(4)] == [0, 0, 32, 32]
    assert {lane % 32 for lane, _ in copy_shape("4x256b").destinations()} == {0}


def test_first_lanes():
    """Only the copy of 4 rows may start at any lane of a warp."""
    assert copy_shape("4x256b").first_lanes == range(32)
    assert copy_shape("128x256b").first_lanes == range(1)


@pytest.mark.parametrize("arguments", [("64x128b", ""), ("128x128b", "warpx4"), ("16x64b", "")])
def test_illegal_copies(arguments):
    with pytest.raises(LayoutError, match="must be one of"):
        copy_shape(*arguments)


def test_scale_factors():
    """PTX ISA, "Scale Factor A ID": which bytes may be named with 1, 2 and 4 factors of a row."""
    legal = {(count, byte) for count in (1, 2, 4) for byte in range(4)}
    for count, byte in sorted(legal):
        if byte % count:
            with pytest.raises(LayoutError, match="scale factor id"):
                ScaleFactors(count, byte)
        else:
            assert ScaleFactors(count, byte).first_byte == byte
    assert ScaleFactors.cell(70) == (6, 2)
    assert [ScaleFactors.columns(rows) for rows in (8, 32, 33, 256)] == [1, 1, 2, 8]
    with pytest.raises(LayoutError, match="count"):
        ScaleFactors(5, 0)
    six = ScaleFactors(6, 2)  # K = 96 in blocks of 16: the rest is behind the words of 128 rows
    assert (six.words, six.span(128), six.span(160)) == (2, 8, 13)


def test_scale_vectors():
    """PTX ISA, "Valid combinations of scale_vectorsize with types and MMA-Kind"."""
    assert scale_vector("mxf8f6f4", "", "ue8m0") == scale_vector("mxf8f6f4", "block32", "ue8m0")
    assert scale_vector("mxf4", "scale_vec::2X", "ue8m0") == 2
    assert scale_vector("mxf4nvf4", "block16", "ue4m3") == 4
    assert scale_vector("mxf4nvf4", "block16", "ue4m3", 96) == 6
    for arguments in (
        ("mxf4nvf4", "scale_vec::4X", "ue4m3", 96),
        ("mxf4nvf4", "", "ue8m0"),
        ("mxf4nvf4", "block32", "ue4m3"),
        ("mxf8f6f4", "scale_vec::2X", "ue8m0"),
        ("f16", "", "ue8m0"),
    ):
        with pytest.raises(LayoutError):
            scale_vector(*arguments)


def test_weight_stationary_shapes():
    assert list(legal_n("f16", 32, 1, weight_stationary=True)) == [64, 128, 256]
    InstructionDescriptor("f16", 32, 64, "f16", "f16").check_shape(1, weight_stationary=True)
    for arguments in (("f16", 256, 1), ("f16", 64, 2), ("mxf4", 128, 1)):
        with pytest.raises(LayoutError):
            legal_n(*arguments, weight_stationary=True)
    with pytest.raises(LayoutError):
        InstructionDescriptor("f16", 32, 64, "f16", "f16").check_shape(1)
