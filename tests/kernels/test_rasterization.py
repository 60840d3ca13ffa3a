"""The order of tiles: how many rows of them run together."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_ext.hardware.architecture import resident_clusters
from triton_ext.kernels.rasterization import ORDERS, loaded, rows_together
from triton_ext.kernels.spec import kernel_spec

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "orders_h100.json.gz"
SMS = 132


def position(tile, down, across, group):
    """As `kernels.device.scheduler.tile_position`."""
    first = tile // (group * across) * group
    rows = max(min(down - first, group), 1)
    inside = tile % (group * across)
    return first + inside % rows, inside // rows


@given(
    st.sampled_from(ORDERS),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 66),
    st.sampled_from([(64, 256), (128, 128), (256, 64)]),
)
def test_what_successive_tiles_load(group, down, across, some, tile):
    """It is what the scheduler's order needs, but for groups and columns that are begun."""
    some = min(some, down * across)
    group = min(group, down)
    places = [position(t, down, across, group) for t in range(some)]
    rows, columns = (len({place[i] for place in places}) for i in (0, 1))
    exact = rows * tile[0] + columns * tile[1]
    found = float(loaded(group, some, down, across, *tile))
    assert found <= exact * (1 + 1e-9)
    assert exact <= found + group * tile[0] + tile[1]


def order_of(config, m, n):
    rows, columns = (n, m) if config.tile.swap_ab else (m, n)
    size = config.tile.rows * config.tile.cluster_m, config.tile.columns * config.tile.cluster_n
    down, across = -(-rows // size[0]), -(-columns // size[1])
    resident = resident_clusters(SMS, config.tile.cluster_size)
    asked = config.tile.cluster_m, config.tile.cluster_size, resident, down * across, down, across
    return min(int(rows_together(*asked, *size)), down)


def test_single_blocks_share_the_longer_side():
    """Many rows of few tiles run row by row, few rows of many column by column."""
    tall = kernel_spec(90, "bf16", block_m=128, block_n=136, consumers=2, c_parts=17)
    assert order_of(tall, 8128, 270) == 1
    assert order_of(tall, 270, 8128) == 3


def test_numbers_and_arrays_alike():
    asked = [(1, 1, 132, 128, 64, 2, 128, 136), (2, 2, 66, 40, 20, 2, 256, 128)]
    together = rows_together(*(np.array(column) for column in zip(*asked, strict=True)))
    assert together.tolist() == [int(rows_together(*each)) for each in asked]


@pytest.fixture(scope="module")
def measured():
    """For each problem and configuration, the configuration, M, N, and seconds by order."""
    from benchmarks.harness import kernels_of, read

    found = []
    for row in read(RESULTS)["rows"]:
        times = defaultdict(dict)
        for config, each in kernels_of(row["configs"]):
            times[config][each["group"]] = each["seconds"]
        for config, seconds in times.items():
            found.append((config, row["m"], row["n"], seconds))
    return found


@pytest.mark.parametrize(("single", "most"), [(True, 1.005), (False, 1.004)])
def test_the_order_is_near_the_best_measured(measured, single, most):
    ratios = [
        seconds[order_of(config, m, n)] / min(seconds.values())
        for config, m, n, seconds in measured
        if (config.tile.cluster_size == 1) == single
    ]
    assert len(ratios) > 1000
    assert np.mean(ratios) < most
