"""What a notebook shows: pictures of layouts, encodings and descriptors."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from triton_ext import LinearLayout, NVMMAShared, core_matrix_linear_layout, parse_encoding
from triton_ext.display import Displayed
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.instruction_descriptor import InstructionDescriptor
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle
from triton_ext.hardware.tensor_memory import accumulator_layout
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.padded_shared import PaddedShared

PIXELS = TensorMap(DataType.FLOAT16, (64, 16, 16, 2), (128, 2048, 32768), (64, 1, 1, 1))
DRAWN = [
    core_matrix_linear_layout(NVMMAShared(128, 16)),
    LinearLayout({"register": [(1, 0)], "lane": [(2, 0), (0, 1)]}, ["dim0", "dim1"]),
    LinearLayout({"offset": [(1,), (2,)]}, ["dim0"]),
    accumulator_layout(128, 64, 32),
    NVMMAShared(128, 16),
    NVMMAShared(64, 8, True),
    NVMMAShared(0, 16),
    NVMMAShared(128, 8, fp4_padded=True),
    NVMMAShared(0, 16, False, False, 3, ((0, 1, 0),)),
    parse_encoding(
        "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, order = [1, 0]}>"
    ),
    parse_encoding("#ttg.shared_linear<{offset = [[0, 1], [0, 2], [1, 0]]}, alignment = 128>"),
    PaddedShared.parse("#ttg.padded_shared<[32:+4] {order = [1, 0], shape = [16, 32]}>"),
    TensorMemoryEncoding(128, 64),
    TensorMemoryEncoding(64, 64, 1, ((1, 0),), True),
    SwizzleAtom("MN", 128, 16),
    SmemDescriptor.decode(0x4000404000010000, "sm_100"),
    InstructionDescriptor.decode(0x08200490, "f16"),
]  # fmt: skip
LISTED = [
    TensorMap(DataType.FLOAT16, (256, 128), (512,), (64, 64), swizzle=TensorSwizzle.BYTES_128),
    Im2colMap(PIXELS, (0, 0), (0, 0), 16),
]


@pytest.mark.parametrize("value", DRAWN, ids=lambda value: type(value).__name__)
def test_pictures(value):
    assert isinstance(value, Displayed)
    root = ElementTree.fromstring(value._repr_html_())
    (picture,) = root.findall("{http://www.w3.org/2000/svg}svg")
    assert picture.findall(".//{http://www.w3.org/2000/svg}rect")


@pytest.mark.parametrize("value", LISTED, ids=lambda value: type(value).__name__)
def test_tensor_maps_are_tables(value):
    root = ElementTree.fromstring(value._repr_html_())
    found = {row[0].text: row[1].text for row in root.iter("tr")}
    assert found["data type"] == "FLOAT16"
    tensor = value.tensor if isinstance(value, Im2colMap) else value
    assert found["box dims"] == ", ".join(map(str, tensor.box_dims))
    assert found["shared memory of a box, in bytes"] == str(tensor.smem_bytes)


@pytest.mark.parametrize("layout", [DRAWN[0], DRAWN[1]], ids=["offset", "register, lane"])
def test_cells_hold_the_inputs_that_reach_them(layout):
    """Read back from the picture: each cell's tooltip, through the layout's own map."""
    titles = re.findall(r"<title>\((\d+), (\d+)\): ([^<]*)</title>", layout._repr_html_())
    assert len(titles) == min(layout.total_out_size, 8 * 32)
    for row, column, said in titles:
        inputs = {name: int(value) for name, value in map(str.split, said.split(", "))}
        assert layout.apply(inputs) == {"dim0": int(row), "dim1": int(column)}


def test_without_a_picture_there_is_the_text():
    """A layout that no input reaches all of; and what no picture is known of."""
    assert LinearLayout({"offset": [(2,)]}, ["dim0"])._repr_html_() is None
    assert Displayed()._repr_html_() is None


def test_text_is_escaped(monkeypatch):
    layout = LinearLayout({"<b>": [(1,)]}, ["</svg>"])
    assert ElementTree.fromstring(layout._repr_html_()) is not None
    assert "<b>" not in layout._repr_html_()


def test_pictures_cost_nothing_before_the_first():
    program = """
import sys, triton_ext
layout = triton_ext.LinearLayout({"offset": [(1,)]}, ["dim0"])
assert not {"jinja2", "triton_ext.render"} & set(sys.modules)
assert "<svg" in layout._repr_html_()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
