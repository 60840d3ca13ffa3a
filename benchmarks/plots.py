"""Plots of the results in ``benchmarks/results``, for the README: ``make plots``.

    python -m benchmarks.plots

SVG with a transparent ground, and text as text in a grey that is readable on light and dark pages.
Each file carries a digest of the numbers that it shows, by which `stale` knows, without matplotlib,
whether a plot is older than its results.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.problems import CLASSES, Problem
from triton_ext.distributed import launches
from triton_ext.kernels.launch import number_of_pieces

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PLOTS = ROOT / "docs" / "plots"
INK = "#7d8590"
COLOURS = ("#3b8fd6", "#d9822b", "#35a07b", "#b072c9")
SIDES = {"triton_ext": "triton_ext", "tutorial": "Triton's tutorial", "inductor": "torch.compile"}
"""The sides of the peers' plot, and what they are called."""
LATENCY_SIDES = {
    "torch": "torch",
    "ours": "triton_ext",
    "tutorial": "Triton's tutorial",
    "jit": "triton_ext's kernel by Triton's launch",
}


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


def peers_data(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The ratio of each side to PyTorch's throughput, for each problem with peers."""
    return {
        f"{row['m']} x {row['n']} x {row['k']}"
        + f" {row['type']}" * (row["type"] != "bf16")
        + ", B by rows" * (row["b_major"] == "MN"): {
            side: round(row["ratio" if side == "triton_ext" else f"{side}_ratio"], 3)
            for side in SIDES
            if side == "triton_ext" or f"{side}_ratio" in row
        }
        for row in rows
        if "tutorial_ratio" in row or "inductor_ratio" in row
    }


def draw_peers(axes: Any, data: dict[str, dict[str, float]]) -> None:
    """A row a problem, a dot a side."""
    rows = range(len(data))
    axes.axvline(1, color=INK, linewidth=0.8)
    for which, (side, name) in enumerate(SIDES.items()):
        found = [(of[side], at) for at, of in enumerate(data.values()) if side in of]
        axes.plot(*zip(*found, strict=True), "osD"[which], markersize=5, color=COLOURS[which],
                  alpha=0.85, markeredgewidth=0, label=name)  # fmt: skip
    axes.set_yticks(rows, list(data))
    axes.invert_yaxis()
    axes.grid(axis="y", color=INK, alpha=0.2, linewidth=0.6)
    axes.set_xlabel("throughput / cuBLAS")
    axes.figure.legend(frameon=False, labelcolor=INK, loc="outside lower right", ncols=len(SIDES))


def ladder_data(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The ratio of each step to PyTorch's throughput, measured in turn, at the same clock."""
    return {
        "steps": {row["step"]: round(row["ratio"], 4) for row in rows},
        "size": rows[0]["size"],
    }


def draw_ladder(axes: Any, data: dict[str, Any]) -> None:
    """A bar a step, from the naive kernel down."""
    names, values = list(data["steps"]), list(data["steps"].values())
    axes.barh(range(len(names)), values, color=COLOURS[0], height=0.66)
    for row, value in enumerate(values):
        text = f"{value:.4f}" if value < 0.01 else f"{value:.2f}"
        inside = value > 0.1
        axes.annotate(text, (value, row), (-4 if inside else 4, 0), textcoords="offset points",
                      ha="right" if inside else "left", va="center",
                      color="white" if inside else INK, fontsize=8)  # fmt: skip
    axes.axvline(1, color=COLOURS[1], linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.05 * max(*values, 1))
    axes.set_xlabel(f"throughput / cuBLAS, bf16, {data['size']} cubed")


def latency_data(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The host's microseconds of each side for each plain product."""
    found: dict[str, dict[str, float]] = {}
    for side in LATENCY_SIDES:
        of = {
            row["problem"]: round(row["host_us"], 1)
            for row in rows
            if row["side"] == side and re.fullmatch(r"\d+x\d+x\d+", row["problem"])
        }
        if of:
            found[side] = of
    return found


def label_of(problem: str) -> str:
    """M x N x K, in two lines."""
    m, n, k = problem.split("x")
    return f"{m} x {n}\nx {k}"


def draw_latency(axes: Any, data: dict[str, dict[str, float]]) -> None:
    """Groups of bars, one a side."""
    names = list(data["torch"])
    width = 0.8 / len(data)
    for which, (side, values) in enumerate(data.items()):
        left = [group + width * (which - (len(data) - 1) / 2) for group in range(len(names))]
        heights = [values[name] for name in names]
        axes.bar(left, heights, width, color=COLOURS[which], label=LATENCY_SIDES[side])
    axes.set_xticks(range(len(names)), [label_of(name) for name in names], fontsize=8)
    axes.set_ylabel("µs of host time a call")
    axes.set_ylim(0, 1.3 * max(max(values.values()) for values in data.values()))
    axes.legend(frameon=False, labelcolor=INK, ncols=len(data))


TIMELINE_FAMILIES = {
    "present matmul": "present matmuls", "later matmul": "present matmuls",
    "latest matmul": "latest matmuls", "seeded matmul": "seeded matmuls",
    "matmul": "older matmuls", "drawn matmul": "older matmuls",
    "ladder": "ladder",
}  # fmt: skip


def timeline_data(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """For each family of kernels of the split "test": measured and predicted microseconds."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["split"] == "test" and "predicted" in row:
            family = TIMELINE_FAMILIES.get(row["family"], "other kernels")
            pair = round(row["seconds"] * 1e6, 2), round(row["predicted"] * 1e6, 2)
            found.setdefault(family, []).append(pair)
    return found


def draw_timeline(axes: Any, data: dict[str, list[tuple[float, float]]]) -> None:
    """A dot a kernel; the lines are no error, and 15 % more and less."""
    for colour, (family, pairs) in zip(COLOURS, sorted(data.items()), strict=False):
        axes.scatter(*zip(*pairs, strict=True), s=9, color=colour, label=family)
    every = [value for pairs in data.values() for pair in pairs for value in pair]
    low, high = min(every), max(every)
    for factor in (0.85, 1, 1.15):
        axes.plot([low, high], [low * factor, high * factor], color=INK, linewidth=0.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("µs, measured")
    axes.set_ylabel("µs, predicted")
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


def draw_bubbles(
    axes: Any, data: list[tuple[str, str, list[tuple[float, float]]]],
    unit: str = "microseconds of an SM",
) -> None:  # fmt: skip
    roles = list(dict.fromkeys(role for _, role, _ in data))
    for number, (_, role, spans) in enumerate(data):
        bars = [(begin, end - begin) for begin, end in spans]
        axes.broken_barh(bars, (-number - 0.4, 0.8), color=COLOURS[roles.index(role)])
    axes.set_yticks(
        [-number for number in range(len(data))], [f"{step}: {role}" for step, role, _ in data]
    )
    axes.set_xlabel(unit)
    axes.tick_params(axis="y", length=0)


OVERLAP = "16384x4096x4096"
"""M, N and K of the layer whose parts are drawn; a chunk of it takes several waves."""


def overlap_data(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[tuple[float, float]]]]:
    """When the parts of a product on two GPUs run: lanes as of `bubbles_data`, in microseconds. How
    long they take was measured; where pieces lie within is what the choice expects of copy engines.
    """
    lanes = []
    m, n, k = map(int, OVERLAP.split("x"))
    pieces = number_of_pieces(2)
    for row in (each for each in rows if each["problem"].endswith(f" {OVERLAP}")):
        kind = _short(row["problem"]).removesuffix(f" {OVERLAP}")
        gemm, nccl, turns, ours = (1e3 * row[side] for side in ("gemm", "nccl", "cublas", "ours"))
        before, after = ("NCCL", nccl), ("cuBLAS", gemm)
        scatters = kind.startswith("GEMM")
        size = 2 * (m // 2) * (n if scatters else k)
        sent = 1e6 * size / pieces / launches.BANDWIDTH
        there = [1e6 * launches.LATENCY + i * sent for i in range(pieces)]
        if scatters:
            before, after = after, before
            there = [(i + 1) * ours / 2 / pieces for i in range(pieces)]
        half, gap = ours / 2, 3  # a gap, so that bars are seen apart
        lanes += [
            (f"{kind} in turn", before[0], [(0.0, before[1])]),
            (f"{kind} in turn", after[0], [(turns - after[1], turns)]),
            (f"{kind}, triton_ext", "copies", [(each, each + sent - gap) for each in there]),
            (f"{kind}, triton_ext", "two chunks", [(0.0, half - gap), (half, ours)]),
        ]
    return [
        (step, role, [(round(begin, 1), round(end, 1)) for begin, end in spans])
        for step, role, spans in lanes
    ]


Kind: TypeAlias = tuple[str, str, Callable[..., Any], Callable[..., None], tuple[float, float]]
KINDS: dict[str, Kind] = {
    "ratios": ("matmul_*", "Device time: a dot a shape", ratio_data, draw_ratios, (8, 3.4)),
    "random": ("random_*", "Drawn problems", histogram_data, draw_histogram, (8, 2.8)),
    "peers": ("peers_*", "Device time, all sides in one run", peers_data, draw_peers, (8, 4)),
    "ladder": ("ladder_*", "Step by step", ladder_data, draw_ladder, (8, 3.2)),
    "timeline": ("timeline_*", "Predicted and measured", timeline_data, draw_timeline, (5, 4.4)),
    "distributed": ("distributed_*", "Two GPUs", distributed_data, draw_distributed, (9, 4)),
    "overlap": (
        "distributed_h100", f"{OVERLAP}: who works when", overlap_data,
        functools.partial(draw_bubbles, unit="microseconds"), (8, 2.6),
    ),
    "bubbles": (
        "bubbles_*", "Predicted: where the tensor cores wait", bubbles_data, draw_bubbles, (8, 2.2)
    ),
    "latency": ("latency_*", "Eager latency", latency_data, draw_latency, (8, 3.2)),
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
