"""Global memory that nothing has written, and memory that is not a view's own."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

import triton_ext
from triton_ext.emulator.errors import MemoryFault, UninitializedRead


@triton.jit
def _copy(x, y, columns, x_pitch, y_pitch, block: tl.constexpr):
    at = tl.arange(0, block)
    row, inside = tl.program_id(0), at < columns
    tl.store(y + row * y_pitch + at, tl.load(x + row * x_pitch + at, inside), inside)


MAKERS = (
    lambda shape: torch.empty(shape, device="cuda"),
    lambda shape: torch.empty(shape, pin_memory=True),
    lambda shape: torch.empty_like(torch.zeros(shape)),
    lambda shape: torch.zeros(1).new_empty(shape),
    lambda shape: torch.empty_strided(shape, (shape[1], 1)),
)


@pytest.mark.parametrize("make", MAKERS)
def test_what_nothing_wrote_must_not_be_read(make):
    with triton_ext.emulate("sm_90", cuda_on_host=True, check_empty=True):
        x, y, z = make((4, 96)), torch.zeros(4, 96), make((4, 96))
        with pytest.raises(UninitializedRead, match=r"\(x\[[01], 0\]\) is read"):
            _copy[(4,)](x, y, 96, 96, 96, 128)
        x[:3] = 1
        _copy[(3,)](x, z, 96, 96, 96, 128)
        _copy[(3,)](z, y, 96, 96, 96, 128)
        assert (y[:3] == 1).all()
        assert not y[3].any()
        with pytest.raises(UninitializedRead, match=r"x\[3, 0\]"):
            _copy[(4,)](z, y, 96, 96, 96, 128)
    with triton_ext.emulate("sm_90", cuda_on_host=True):
        _copy[(4,)](make((4, 96)), y, 96, 96, 96, 128)


@pytest.mark.parametrize("columns", [64, 65])
def test_a_store_between_the_rows_of_a_view(columns):
    x, whole = torch.ones(4, 96), torch.zeros(4, 96)
    with triton_ext.emulate("sm_90"):
        view = whole[:, :64]
        if columns == 64:
            _copy[(4,)](x, view, columns, 96, 96, 128)
            assert (view == 1).all()
        else:
            with pytest.raises(MemoryFault, match="between the rows of argument y"):
                _copy[(4,)](x, view, columns, 96, 96, 128)
    assert not whole[:, 64:].any()


def test_views_that_overlap_own_what_either_owns():
    whole = torch.zeros(4, 96)
    whole[:, 64:] = 1
    with triton_ext.emulate("sm_90"):
        _copy[(4,)](whole[:, 64:], whole[:, :32], 32, 96, 96, 32)
        assert (whole[:, :32] == 1).all()
        with pytest.raises(MemoryFault, match="between the rows of argument y and argument x"):
            _copy[(4,)](whole[:, 64:], whole[:, :32], 33, 96, 96, 64)
