"""Plots of the results in ``benchmarks/results``, for the guide: ``make plots``.

    python -m benchmarks.plots

SVG with a transparent ground, and text as text in a grey that is readable on light and dark pages.
Each file carries a digest of the numbers that it shows, by which `stale` knows, without matplotlib,
whether a plot is older than its results.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.problems import CLASSES, Problem

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PLOTS = ROOT / "docs" / "plots"
INK = "#7d8590"
COLOURS = ("#3b8fd6", "#d9822b", "#35a07b", "#b072c9")


@dataclass(frozen=True)
class Plot:
    """One picture.

    Attributes:
        name: the file's, without ``.svg``.
        title: what it shows, on which GPU.
        data: the numbers.
        draw: (axes, data) -> draws them.
        size: in inches.
    """

    name: str
    title: str
    data: Any
    draw: Callable[[Any, Any], None]
    size: tuple[float, float]

    @property
    def digest(self) -> str:
        """A digest of what it shows."""
        text = json.dumps([self.title, self.data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def path(self) -> Path:
        return PLOTS / f"{self.name}.svg"


def ratio_data(rows: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The ratios to PyTorch's throughput, by type and class of shapes."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        shape_class = Problem(row["m"], row["n"], row["k"]).shape_class
        of_type = found.setdefault(row["type"], {name: [] for name in CLASSES})
        of_type[shape_class].append(round(row["ratio"], 3))
    return found


def draw_ratios(axes: Any, data: dict[str, dict[str, list[float]]]) -> None:
    """A dot a shape, in a column for each class and type."""
    axes.axhline(1, color=INK, linewidth=0.8)
    for which, (element_type, classes) in enumerate(data.items()):
        for column, ratios in enumerate(classes.values()):
            middle = column + 0.26 * (which - (len(data) - 1) / 2)
            across = [middle + 0.035 * (i % 5 - 2) for i in range(len(ratios))]
            label = element_type if column == 0 else None
            axes.plot(across, ratios, "o", markersize=4, alpha=0.75, color=COLOURS[which],
                      markeredgewidth=0, label=label)  # fmt: skip
    axes.set_xticks(range(len(CLASSES)), CLASSES)
    axes.set_ylabel("throughput / cuBLAS")
    axes.legend(frameon=False, labelcolor=INK, ncols=len(data))


def histogram_data(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The ratios to PyTorch's throughput, of 16-bit operands and of the others."""
    found: dict[str, list[float]] = {}
    for row in rows:
        kind = "16 bits" if row["type"] in ("bf16", "fp16") else row["type"]
        found.setdefault(kind, []).append(round(row["ratio"], 3))
    return found


def draw_histogram(axes: Any, data: dict[str, list[float]]) -> None:
    """How many problems have which ratio; those beyond the ends are counted at the ends."""
    low, high, width = 0.7, 1.4, 0.02
    edges = [low + width * i for i in range(round((high - low) / width) + 1)]
    clipped = [[min(max(x, low), high - 1e-6) for x in ratios] for ratios in data.values()]
    axes.hist(clipped, edges, stacked=True, color=COLOURS[: len(data)], label=list(data))
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xlabel("throughput / cuBLAS")
    axes.set_ylabel("problems")
    axes.legend(frameon=False, labelcolor=INK)


DISTRIBUTED_SIDES = {
    "cublas": "NCCL, then cuBLAS",
    "torch": "torch's fused operator",
    "ours": "triton_ext",
}


def _short(problem: str) -> str:
    """A problem's name, abbreviated."""
    return problem.replace("all-gather", "AG").replace("reduce-scatter", "RS")


def distributed_data(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The milliseconds of the sides of each problem, and of its parts."""
    sides = ("gemm", "nccl", *DISTRIBUTED_SIDES)
    return {_short(row["problem"]): {side: round(row[side], 4) for side in sides} for row in rows}


def draw_distributed(axes: Any, data: dict[str, dict[str, float]]) -> None:
    """A bar a side, in units of the longer part; the line is that part."""
    width = 0.8 / len(DISTRIBUTED_SIDES)
    for which, (side, name) in enumerate(DISTRIBUTED_SIDES.items()):
        heights = [each[side] / max(each["gemm"], each["nccl"]) for each in data.values()]
        left = [place + (which - 1) * width for place in range(len(data))]
        axes.bar(left, heights, width, color=COLOURS[which], label=name)
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xlim(-0.6, len(data) - 0.4)
    axes.set_ylim(0, 2.5)
    axes.set_xticks(range(len(data)), data, rotation=40, ha="right", fontsize=6)
    axes.set_ylabel("time / the longer of GEMM and NCCL")
    axes.legend(frameon=False, labelcolor=INK, ncols=3)


def bubbles_data(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[tuple[float, float]]]]:
    """A lane for each role of each kernel: who, what, and when it works."""
    return [
        (row["step"], role, [tuple(span) for span in spans])
        for row in rows
        for role, spans in row["spans"].items()
    ]


def draw_bubbles(axes: Any, data: list[tuple[str, str, list[tuple[float, float]]]]) -> None:
    """A row a lane, a colour a role."""
    roles = list(dict.fromkeys(role for _, role, _ in data))
    for number, (_, role, spans) in enumerate(data):
        bars = [(begin, end - begin) for begin, end in spans]
        axes.broken_barh(bars, (-number - 0.4, 0.8), color=COLOURS[roles.index(role)])
    axes.set_yticks(
        [-number for number in range(len(data))], [f"{step}: {role}" for step, role, _ in data]
    )
    axes.set_xlabel("microseconds of an SM")
    axes.tick_params(axis="y", length=0)


Kind: TypeAlias = tuple[str, str, Callable[..., Any], Callable[..., None], tuple[float, float]]
KINDS: dict[str, Kind] = {
    "ratios": ("matmul_*", "Device time: a dot a shape", ratio_data, draw_ratios, (8, 3.4)),
    "random": ("random_*", "Drawn problems", histogram_data, draw_histogram, (8, 2.8)),
    "distributed": ("distributed_*", "Two GPUs", distributed_data, draw_distributed, (9, 4)),
    "bubbles": (
        "bubbles_*", "Predicted: where the tensor cores wait", bubbles_data, draw_bubbles, (8, 2.2)
    ),
}  # fmt: skip
"""A plot's name -> the files of results, title, rows -> data, what draws them, the inches."""


def plots(results: Path = RESULTS) -> list[Plot]:
    """All that there are results for: ``ratios-h100``, ..."""
    found = []
    for name, (files, title, extract, draw, size) in KINDS.items():
        for path in sorted(results.glob(f"{files}.json")):
            document = json.loads(path.read_text())
            _, _, gpu = path.stem.rpartition("_")
            measured = document["environment"].get("gpu", gpu.upper())
            if data := extract(document["rows"]):
                where = measured.removeprefix("NVIDIA ")
                found.append(Plot(f"{name}-{gpu}", f"{title} ({where})", data, draw, size))
    return found


def stale() -> list[str]:
    """The names of the files that `write` would change, remove or add, by their digests."""
    drawn = {plot.path.name: plot for plot in plots()}
    committed = {path.name for path in PLOTS.glob("*.svg")}
    wrong = set(drawn) ^ committed
    for name in set(drawn) & committed:
        if f"sha256:{drawn[name].digest}" not in drawn[name].path.read_text(encoding="utf-8"):
            wrong.add(name)
    return sorted(wrong)


def write() -> None:
    """Draw all plots, and remove those that there are no results for."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("svg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    style = {
        "svg.fonttype": "none", "svg.hashsalt": "triton_ext", "font.family": "sans-serif",
        "font.size": 9, "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK,
        "axes.titlesize": 10, "axes.titlelocation": "left", "axes.spines.top": False,
        "axes.spines.right": False, "xtick.color": INK, "ytick.color": INK,
    }  # fmt: skip
    PLOTS.mkdir(exist_ok=True)
    drawn = plots()
    for path in set(PLOTS.glob("*.svg")) - {plot.path for plot in drawn}:
        path.unlink()
    for plot in drawn:
        with pyplot.rc_context(style):
            figure, axes = pyplot.subplots(figsize=plot.size, layout="constrained")
            plot.draw(axes, plot.data)
            axes.set_title(plot.title)
            figure.savefig(
                plot.path,
                transparent=True,
                metadata={"Date": None, "Description": f"sha256:{plot.digest}"},
            )
            pyplot.close(figure)


if __name__ == "__main__":
    write()
