"""The cost model's choices beside those of NVIDIA's ``nvidia-matmul-heuristics``. Needs no GPU.

    pip install nvidia-matmul-heuristics
    python -m benchmarks.heuristics [--json FILE] [--only NAME]

For each problem of `benchmarks.matmul`: the tile that `triton_ext.kernels.choice`
chooses for an H100, and what NVIDIA's package recommends for one, of CUTLASS 3's kernels
(persistent, warp specialized), with its discovery data for that GPU loaded. It is asked for the
problem and for its transpose, since our kernels may compute either (``swap``), and its answers are
ranked by the times that it predicts. Where our candidates have a tile that it recommends, "cost" is
how much longer the product takes with that tile than with our choice, by our own model.

The package is no dependency of `triton_ext`.
"""

from __future__ import annotations

import importlib
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Row, Table
from benchmarks.problems import Problem, problem_of, problems
from triton_ext.kernels.choice.choose import predicted_seconds, ranked
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import Sm90Tile

MULTIPROCESSORS = 132
PRECISIONS = {"bf16": "TST", "fp16": "HSH", "e4m3": "QQTST"}
"""A and B, the sums, and C, as the package spells them."""
ASKED = 24
"""How many kernels it is asked for; many differ in warp tiles or stages alone."""
TOP = 5
"""How many of its tiles are considered."""


@dataclass(frozen=True)
class Tile:
    """A choice, of either side, on the product as it is stated: C (M, N) = A @ B.

    Attributes:
        m, n, k: the tile of a thread block.
        cluster: thread blocks of a cluster along M and along N.
        splits: parts along K; ours are at most so many, where tiles do not fill the GPU.
        swap: the transpose is computed, so that n, not m, is the side that has 64 rows at least.
    """

    m: int
    n: int
    k: int
    cluster: tuple[int, int] = (1, 1)
    splits: int = 1
    swap: bool = False

    def __str__(self) -> str:
        words = f"{self.m}x{self.n}x{self.k}"
        if self.cluster != (1, 1):
            words += f" cluster {self.cluster[0]}x{self.cluster[1]}"
        if self.splits > 1:
            words += f" split-K {self.splits}"
        return words + " swapped" * self.swap

    def same_tile(self, other: Tile) -> bool:
        """Whether both compute the same part of C in a thread block, in the same orientation."""
        return (self.m, self.n, self.swap) == (other.m, other.n, other.swap)


def our_tile(config: KernelSpec) -> Tile:
    tile = config.tile
    assert isinstance(tile, Sm90Tile)
    cluster = (tile.cluster_m, tile.cluster_n)
    if tile.swap_ab:
        cluster = cluster[::-1]
    return Tile(tile.block_m, tile.block_n, tile.block_k, cluster, tile.split_k, tile.swap_ab)


class Recommendations:
    """NVIDIA's package, set up for CUTLASS 3 on an H100 SXM."""

    def __init__(self) -> None:
        self._package: Any = importlib.import_module("nvMatmulHeuristics")
        self._interface = self._package.NvMatmulHeuristicsInterfaceEx(
            backend=self._package.NvMatmulHeuristicsTarget.CUTLASS3,
            flags=self._package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
            gpu=self._package.NvMatmulHeuristicsNvidiaGpu.H100_SXM,
        )

    def __call__(self, problem: Problem) -> list[tuple[Tile, float]]:
        """Its tiles and the seconds that it predicts, the fastest first."""
        found: dict[Tile, float] = {}
        for swap in (False, True):
            for tile, seconds in self._asked(problem, swap):
                found[tile] = min(seconds, found.get(tile, seconds))
        return sorted(found.items(), key=lambda pair: pair[1])

    def _asked(self, problem: Problem, swap: bool) -> list[tuple[Tile, float]]:
        m, n, a_major, b_major = problem.m, problem.n, problem.a_major, problem.b_major
        if swap:
            m, n, a_major, b_major = n, m, b_major, a_major
        # Row-major A is K-major, row-major B is MN-major.
        layout = self._package.boolsToNvMatmulHeuristicsLayout(a_major == "MN", b_major == "K")
        asked = self._interface.makeNvMatmulHeuristicsProblem(m, n, problem.k, layout)
        answers = self._interface.get(asked, ASKED, PRECISIONS[problem.element_type])
        tiles = []
        for answer in answers:
            kernel = answer["kernel"]
            sides = (kernel.cta_tile_m, kernel.cta_tile_n)
            cluster = (kernel.cluster_m, kernel.cluster_n)
            if swap:
                sides, cluster = sides[::-1], cluster[::-1]
            tile = Tile(*sides, kernel.cta_tile_k, cluster, kernel.split_k, swap)
            if answer["runtime"] > 0:
                tiles.append((tile, answer["runtime"]))
        return tiles


def compare(problem: Problem, recommended: list[tuple[Tile, float]]) -> Row:
    """One row: both choices, where ours is in the other's list, and what our model says of it."""
    config = problem.config(MULTIPROCESSORS)
    ours = our_tile(config)

    def seconds(candidate: KernelSpec) -> float:
        return predicted_seconds(candidate, problem.size(MULTIPROCESSORS))

    distinct: list[tuple[Tile, float]] = []
    for tile, predicted in recommended:
        if not any(tile.same_tile(known) for known, _ in distinct):
            distinct.append((tile, predicted))
    top = [tile for tile, _ in distinct[:TOP]]
    available = list(ranked(90, problem.product, problem.size(MULTIPROCESSORS)))
    counterparts = [each for each in available if our_tile(each).same_tile(top[0])]
    own = next((predicted for tile, predicted in distinct[:TOP] if tile.same_tile(ours)), None)
    # It often predicts one time for several tiles, such as 128x256 and 256x128.
    rank = None if own is None else 1 + sum(t < own / 1.001 for _, t in distinct)
    return {
        "problem": str(problem),
        "class": problem.shape_class,
        "type": problem.element_type,
        "ours": str(ours),
        "ours_predicted_us": seconds(config) * 1e6,
        "nvidia": [str(tile) for tile in top],
        "nvidia_predicted_us": recommended[0][1] * 1e6,
        "rank_of_ours": rank,
        "counterpart_predicted_us": min(map(seconds, counterparts)) * 1e6 if counterparts else None,
        "cost": min(map(seconds, counterparts)) / seconds(config) if counterparts else None,
    }


def measured(path: Path) -> dict[str, dict[str, float]]:
    """Microseconds of each problem, ours and PyTorch's, of a run of `benchmarks.matmul`."""
    if not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {
        str(problem_of(row)): {
            "ours_measured_us": row["triton_ext_us"], "torch_measured_us": row["torch_us"]
        }
        for row in rows
    }  # fmt: skip


def print_findings(rows: list[Row]) -> None:
    """How often both agree, and how far each model's times are from what was measured."""
    first = sum(row["rank_of_ours"] == 1 for row in rows)
    among = sum(row["rank_of_ours"] is not None for row in rows)
    costs = [row["cost"] for row in rows if row["cost"] is not None]
    print(f"{len(rows)} problems: our tile is the first in {first}, among {TOP} in {among}")
    print(
        f"its first tile is a candidate of ours in {len(costs)}; by our model it costs"
        f" {statistics.median(costs):.3f} in the median, {max(costs):.2f} at most"
    )
    for name, predicted, found in (
        ("our model of our kernels", "ours_predicted_us", "ours_measured_us"),
        ("its model of CUTLASS, against cuBLAS", "nvidia_predicted_us", "torch_measured_us"),
    ):
        ratios = [row[predicted] / row[found] for row in rows if found in row]
        if ratios:
            off = statistics.median(abs(ratio - 1) for ratio in ratios)
            middle = statistics.median(ratios)
            print(f"{name}: {middle:.2f} of what was measured in the median, off by {off:.0%}")


TABLE = Table(
    ("problem", "<28", "problem"),
    ("ours", "<34", "ours"),
    ("us", ">8.1f", "ours_predicted_us"),
    ("  NVIDIA", "<36", lambda row: f"  {row['nvidia'][0]}"),
    ("us", ">8.1f", "nvidia_predicted_us"),
    ("rank", ">6", "rank_of_ours"),
    ("cost", ">7.3f", "cost"),
)


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--only", metavar="NAME", default="", help="of problems with this name")
    parser.add_argument(
        "--measured",
        type=Path,
        default=Path("benchmarks/results/matmul_h100.json"),
        help="a run of benchmarks.matmul, for the times that were measured",
    )
    arguments = parser.parse_args()
    recommendations = Recommendations()
    known = measured(arguments.measured)
    rows = (
        compare(problem, recommendations(problem)) | known.get(str(problem), {})
        for problem in problems()
        if arguments.only in str(problem)
    )
    print_findings(harness.report("heuristics", rows, TABLE, arguments.json))


if __name__ == "__main__":
    main()
