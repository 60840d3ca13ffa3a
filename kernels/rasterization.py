"""In which order Hopper's blocks make the tiles of C: how many rows of tiles run together
(`kernels.device.scheduler`).

Blocks that follow one another lie in the same part of the GPU, where one load from the L2 cache
serves all that ask for the same at about the same time (by ncu's counts on an H100, for 8 to 16 of
them). So of single blocks, half of those that run at a time should load as few rows of both
operands as possible: 270x8128x10496 in 136x128 takes 0.80 of the time of 8 rows. The loads of
clusters are not put together (ncu, 112x128 in clusters of 2); those that share columns had better
follow one another in a row.

On an H100, 418 problems, 3,128 pairs of problem and configuration, against the best of six orders
of each: single blocks take 1.002 of the time in one wave (8 rows: 1.014, at most 1.42) and 1.005 in
more; clusters of one row of blocks 1.002 and 1.003, others 1.002 and 1.005
(``benchmarks/results/orders_h100.json.gz``).

All functions take numbers, or arrays of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ORDERS = (1, 2, 4, 8, 16)
"""How many rows of tiles may run together."""


def loaded(group: Any, some: Any, down: Any, across: Any, rows: Any, columns: Any) -> Any:
    """Rows of the left and the right operand that so many successive tiles need.

    Args:
        group: how many rows of tiles run together.
        some: how many tiles.
        down, across: rows of tiles, and tiles of a row.
        rows, columns: of a tile.
    """
    group = np.minimum(group, down)
    high = np.where(group * across < some, some / across, np.minimum(group, some))
    return high * rows + some / high * columns


def rows_together(
    cluster: Any, blocks: Any, resident: Any, tiles: Any, down: Any, across: Any, rows: Any,
    columns: Any,
) -> Any:  # fmt: skip
    """How many rows of tiles run together.

    Args:
        cluster: how many rows of blocks a cluster has.
        blocks: of a cluster.
        resident: how many clusters run at a time.
        tiles: of the batch; each of a cluster, like the others.
        down, across: rows of tiles, and tiles of a row, of a matrix.
        rows, columns: of a tile.
    """
    some = np.minimum(resident / 2, down * across)
    needed = [loaded(group, some, down, across, rows, columns) for group in ORDERS]
    single = np.take(ORDERS, np.argmin(needed, axis=0))
    in_row = np.where(tiles <= resident, 1, 2)
    return np.where(blocks == 1, single, np.where(cluster > 1, in_row, max(ORDERS)))
