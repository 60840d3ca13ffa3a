"""Arguments of any type: a result, or a LayoutError that names one of them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from mutations import junk, some

from triton_ext import LayoutError, LinearLayout, NVMMAShared, SharedLinear, SwizzledShared
from triton_ext.layouts.encodings import parse_encoding
from triton_ext.layouts.nvmma_shared import core_matrix_linear_layout, nvmma_shared_to_linear_layout

TILE = nvmma_shared_to_linear_layout((16, 64), NVMMAShared(128, 16))
CLUSTER = LinearLayout({"offset": [(1, 0), (0, 1)], "block": [(2, 0)]}, {"dim0": 4, "dim1": 2})
GOOD = [
    TILE, TILE.invert(), CLUSTER, "offset", "block", "dim0", "dim1", ["dim1", "dim0"], ["offset"],
    ("dim0", "dim1"), {"dim0": 16, "dim1": 64}, {"offset": 1024}, {"offset": 3}, {"a": 4, "b": 256},
    {"offset": [(0, 1)]}, {"offset": [[1]]}, [("offset", [[1]])], [1, 2], np.arange(4),
    np.ones((2, 3)), np.int64(2), {"offset": np.arange(4)}, NVMMAShared(128, 16), object(),
    b"dim0", {1: 2}, {"x"}, iter("ab"), int, lambda: 0, 4, 8, 16, (16, 64),
]  # fmt: skip
ON_A_LAYOUT = [
    "apply", "compose", "flatten_ins", "flatten_outs", "free_variable_masks", "invert",
    "invert_and_compose", "is_injective", "is_surjective", "pseudoinvert", "remove_zero_bases",
    "reshape_ins", "reshape_outs", "sublayout", "sublayout_is_zero", "transpose_ins",
    "transpose_outs",
]  # fmt: skip
MAKERS = [
    LinearLayout, LinearLayout.from_bases, LinearLayout.identity_1d, LinearLayout.identity,
    LinearLayout.strided_1d, LinearLayout.zeros_1d, LinearLayout.box, NVMMAShared, SharedLinear,
    SwizzledShared, parse_encoding, nvmma_shared_to_linear_layout, core_matrix_linear_layout,
    SharedLinear.from_linear_layout, NVMMAShared.default_for,
]  # fmt: skip
COUNTS = {"apply": (0, 1), "flatten_ins": (0,), "flatten_outs": (0,), "free_variable_masks": (0,),
          "invert": (0,), "is_injective": (0,), "is_surjective": (0,), "pseudoinvert": (0,),
          "sublayout": (2,), "sublayout_is_zero": (2,)}  # fmt: skip
ARITY = {LinearLayout: (2,), LinearLayout.from_bases: (2, 3, 4), LinearLayout.identity_1d: (3,),
         LinearLayout.identity: (1,), LinearLayout.strided_1d: (4,), LinearLayout.zeros_1d: (3, 4),
         LinearLayout.box: (2,), NVMMAShared: (2, 3, 4, 5, 6), SharedLinear: (1, 2, 3),
         SwizzledShared: (4, 5), parse_encoding: (1,), nvmma_shared_to_linear_layout: (2, 3),
         core_matrix_linear_layout: (1, 2), SharedLinear.from_linear_layout: (1, 2),
         NVMMAShared.default_for: (2, 3, 4, 5)}  # fmt: skip


def argument(generator):
    return generator.choice(GOOD) if generator.random() < 0.7 else junk(generator)


@pytest.mark.parametrize("method", ON_A_LAYOUT)
def test_methods(method):
    generator = random.Random(method)
    made, lengths = 0, []
    for _ in range(some(300)):
        layout = generator.choice([TILE, CLUSTER])
        given = [argument(generator) for _ in range(generator.choice(COUNTS.get(method, (1,))))]
        try:
            getattr(layout, method)(*given)
            made += 1
        except LayoutError as error:
            lengths.append(len(str(error)))
    assert max(lengths, default=0) < 5000
    assert made, "some of the arguments are legal"


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__qualname__)
def test_makers(maker):
    generator = random.Random(maker.__qualname__)
    lengths = []
    for _ in range(some(300)):
        given = [argument(generator) for _ in range(generator.choice(ARITY[maker]))]
        try:
            maker(*given)
        except LayoutError as error:
            lengths.append(len(str(error)))
    assert 0 < max(lengths) < 5000


def test_operators():
    generator = random.Random(1)
    for _ in range(some(200)):
        other = argument(generator)
        assert isinstance(other == TILE, (bool, np.ndarray))
        if not isinstance(other, LinearLayout):
            with pytest.raises(TypeError, match=r"unsupported operand|can't multiply"):
                TILE * other
