"""Asynchronous copies that Gluon compiles, on the emulated GPUs, under every schedule."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gluon_copy_kernels import (  # noqa: E402
    async_load_kernel,
    descriptor,
    gather_kernel,
    multicast_kernel,
    reduce_kernel,
    ring_kernel,
    stealing_kernel,
)
from triton.experimental.gluon import language as gl  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.emulator.clients.statistics import Statistics  # noqa: E402

SCHEDULES = ("eager", "lazy", "random")
EVERYWHERE = list(itertools.product(("sm_90", "sm_100"), SCHEDULES))

everywhere = pytest.mark.parametrize(("arch", "schedule"), EVERYWHERE)


def emulated(arch, schedule):
    return triton_ext.emulate(arch, schedule=schedule, seed=7, cuda_on_host=True)


@everywhere
@pytest.mark.parametrize("stages", [2, 3])
def test_a_ring_of_tma_copies(arch, schedule, stages):
    x = torch.randn(100, 40).half()
    y = torch.zeros_like(x)
    with emulated(arch, schedule):
        ring_kernel[(1,)](descriptor(x, [16, 64]), descriptor(y, [16, 64]), 7, stages)
    assert torch.equal(x, y)


@pytest.mark.parametrize(("steps", "rows", "outside"), [(7, 100, 0), (5, 80, 0), (9, 100, 4)])
def test_what_of_each_tensor_was_reached(steps, rows, outside):
    """By hand: boxes of 16 rows from row 0 on, of which the 8th and the 9th lie outside."""
    x, counted = torch.randn(100, 40).half(), Statistics()
    with triton_ext.emulate("sm_90", observer=counted, cuda_on_host=True):
        ring_kernel[(1,)](descriptor(x, [16, 64]), descriptor(x.clone(), [16, 64]), steps, 2)
    found = counted.as_object()["global_memory"]
    read, written = found["tensors"]
    left = None if rows == 100 else [rows, 0]
    assert (read["read"], read["times_read"], read["first_not_read"]) == (rows * 80, 1, left)
    assert (written["written"], written["first_not_written"], written["read"]) == (
        rows * 80, left, 0,
    )  # fmt: skip
    assert found["copies_outside"] == outside
    assert ("a load at (112, 0) of a tensor of (100, 40)" in counted.lines()[-1]) == bool(outside)


REDUCTIONS = {
    "add": torch.add, "min": torch.minimum, "max": torch.maximum, "and": torch.bitwise_and,
    "or": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip


@everywhere
@pytest.mark.parametrize("kind", list(REDUCTIONS))
def test_reductions_of_overlapping_tiles(arch, schedule, kind):
    """Four blocks, whose tiles overlap by half and reach past the end."""
    old = torch.randint(-1000, 1000, (36, 32), dtype=torch.int32)
    new = torch.randint(-1000, 1000, (16, 32), dtype=torch.int32)
    expected, found = old.clone(), old.clone()
    for block in range(4):
        rows = expected[8 * block : 8 * block + 16]
        rows[:] = REDUCTIONS[kind](rows, new[: len(rows)])
    layout = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    with emulated(arch, schedule):
        reduce_kernel[(4,)](descriptor(found, [16, 32]), new, kind, layout)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("column", [0, 40])
def test_rows_gathered_and_scattered(schedule, column):
    x = torch.randn(64, 64).bfloat16()
    y = torch.zeros_like(x)
    rows = torch.randperm(80, dtype=torch.int32)[:16]
    rows = torch.where(rows == 0, 79, rows)
    with emulated("sm_100", schedule):
        gather_kernel[(1,)](descriptor(x, [1, 32]), descriptor(y, [1, 32]), rows, column, 16, 32)
    expected = torch.zeros_like(x)
    kept = rows[rows < 64].long()
    expected[kept, column : column + 32] = x[kept, column : column + 32]
    assert torch.equal(y, expected)


@everywhere
@pytest.mark.parametrize("barrier", [False, True])
def test_masked_cp_async(arch, schedule, barrier):
    x, y = torch.randn(1024), torch.zeros(1024)
    with emulated(arch, schedule):
        async_load_kernel[(1,)](x, y, 1000, 512, barrier)
    assert torch.equal(y[:1000], x[:1000])
    assert not y[1000:].any()


@everywhere
@pytest.mark.parametrize("blocks", [2, 4])
def test_multicast_to_a_cluster(arch, schedule, blocks):
    x = torch.randn(64, 64).half()
    y = torch.zeros_like(x)
    layout = [[0, 0]] * (blocks.bit_length() - 1)
    with emulated(arch, schedule):
        multicast_kernel[(1,)](
            descriptor(x, [64, 64], cga_layout=layout),
            descriptor(y, [64, 64], cga_layout=layout),
            num_ctas=blocks,
        )
    assert torch.equal(x, y)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_that_steal_the_work_of_others(schedule):
    counts, done = torch.zeros(300, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with emulated("sm_100", schedule):
        stealing_kernel[(300,)](counts, done)
    assert (counts == 1).all()
    assert 1 <= int(done) < 300
