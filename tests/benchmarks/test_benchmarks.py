"""The benchmarks' own code, as far as it runs without a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
import json
import math
import re
import statistics
import sys
import threading
import zlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sites import CHECKOUT, ROOT

from triton_ext.kernels.choice import candidates, limits, sm100
from triton_ext.kernels.launch import compiled_arguments, launch_arguments, launch_plan
from triton_ext.kernels.product import ProductSpec

sys.path.insert(0, str(ROOT))  # `benchmarks` is not installed

from benchmarks import fit, harness, matmul, plots, timeline
from benchmarks.gpu_state import GpuState, Watch
from benchmarks.harness import Table
from benchmarks.matmul import GOAL, LOWEST, summary
from benchmarks.problems import (
    CLASSES,
    DRAWN,
    TYPES,
    Problem,
    drawn_problems,
    problem_of,
    problems,
)
from triton_ext.ops import replay
from triton_ext.ops.replay import launches_in_graph


def test_problems_are_those_of_the_issue():
    rows = problems()
    assert len(set(rows)) == len(rows)
    assert {problem.shape_class for problem in rows} == set(CLASSES)
    assert {p.m for p in rows if p.shape_class == "squares"} == {
        1024, 2048, 4096, 8192, 16384
    }  # fmt: skip
    assert Problem(4096, 4096, 4096).shape_class == "squares"
    assert Problem(4096, 4096, 4095).shape_class == "M >= 4096"
    assert Problem(64, 8, 8).shape_class == "M <= 64"
    assert Problem(65, 8, 8).shape_class == Problem(4095, 8, 8).shape_class == "64 < M < 4096"


ratios = st.floats(0.5, 2.0)


def test_problems_wait_for_their_kernels_alone(monkeypatch):
    """In their order, each configuration compiled once, all asked for before the first is ready."""
    asked = []
    pool = SimpleNamespace(
        submit=lambda _, config: asked.append(config) or SimpleNamespace(result=lambda: None)
    )
    problems = [Problem(64, 64, k) for k in (64, 128, 192)]
    work = [(problems[0], ["a", "b"]), (problems[1], ["b"]), (problems[2], ["c", "a"])]
    ready = matmul.compiled_ahead(iter(work), pool)
    assert next(ready) == work[0]
    assert asked == ["a", "b", "c"]
    assert list(ready) == work[1:]


@given(
    st.lists(
        st.tuples(st.sampled_from(["bf16", "e4m3"]), st.sampled_from([*CLASSES, *DRAWN]), ratios),
        min_size=1,
    )
)
def test_summary_counts_every_row_twice(found):
    rows = [{"type": kind, "class": where, "ratio": ratio} for kind, where, ratio in found]
    lines = summary(rows)
    of_all = [line for line in lines if line["class"] == "all"]
    assert sum(line["number"] for line in of_all) == len(rows)
    assert sum(line["number"] for line in lines) == 2 * len(rows)
    for line in lines:
        own = [
            row["ratio"]
            for row in rows
            if row["type"] == line["type"] and line["class"] in ("all", row["class"])
        ]
        assert line["geometric_mean"] == pytest.approx(math.prod(own) ** (1 / len(own)))
        assert line["lowest"] == min(own)
        assert line["below"] == len([ratio for ratio in own if ratio < GOAL])
        assert line["far_below"] == len([ratio for ratio in own if ratio < LOWEST])


def test_the_side_of_measured_kernels_is_torchs_own_where_that_is_faster(monkeypatch):
    problem, made = Problem(64, 64, 4096), []
    sets = [(torch.empty(64, 4096).bfloat16(), torch.empty(4096, 64).bfloat16(),
             torch.empty(64, 64).bfloat16())]  # fmt: skip
    monkeypatch.setattr(matmul, "require_gpu", lambda device: "gpu")
    monkeypatch.setattr(
        matmul, "kernel_launches", lambda problem, config, sets: made.append(config) or "ours"
    )
    for is_left in (True, False):
        found = SimpleNamespace(torch_is_faster=is_left, config="a configuration")
        monkeypatch.setattr(matmul, "tune", lambda *given, found=found: found)
        name, launch = matmul.measured_launches(problem, sets, "torch's")
        assert (name, launch) == (("torch", "torch's") if is_left else (found.config, "ours"))
    assert made == ["a configuration"]


FP8 = ("e4m3 promoted", "e4m3 random", "e4m3 random promoted")


@given(
    st.integers(0, 2**32), st.sampled_from([(), ("round",), ("LoRA", "e4m3"), ("few tiles",), FP8])
)
def test_problems_are_drawn_by_their_seed(seed, classes):
    drawn = drawn_problems(seed, 40, classes)
    assert drawn == drawn_problems(seed, 40, classes) != drawn_problems(seed + 1, 40, classes)
    assert len(set(drawn)) == 40
    for problem in drawn:
        name = problem.shape_class
        assert name in classes if classes else DRAWN[name][0] > 0
        assert problem.promoted == name.endswith("promoted")
        assert problem_of(problem.row) == problem == problem_of({"problem": str(problem)})
        if name == "round":
            assert all(each // (each & -each) < 8 for each in (problem.m, problem.n, problem.k))
        if name == "few tiles":
            assert -(-problem.m // 128) * -(-problem.n // 128) <= 32
            assert problem.k >= 4096
        contiguous = [problem.k if problem.a_major == "K" else problem.m,
                      problem.k if problem.b_major == "K" else problem.n, problem.n]  # fmt: skip
        assert all(size % 8 == 0 for size in contiguous)  # what TMA reads without a copy


@pytest.mark.parametrize(("considered", "known", "every", "gpu"), [
    (candidates.candidates, limits.FITTED["h200"], 1,
     {"launch": 5e-6, "part": 9e-6, "memory_bytes": 3e12}),
    (sm100.every_candidate, sm100.FITTED, 2,
     {"launch": 4e-6, "mma_flops": 6500, "memory_bytes": 4e12}),
])  # fmt: skip
def test_constants_are_fitted_to_times(considered, known, every, gpu):
    """To times of a GPU with other constants, of what is near the best; then the choice is it."""
    timed = []
    for m, n, k in ((16, 4608, 3584), (512, 1024, 4096), (3000, 700, 500), (2048, 2048, 2048)):
        configs, sizes = considered(ProductSpec("bf16"))[::every], (m, n, k)
        constants = fit.changed(known, **gpu)
        everything = fit.Timed(sizes, f"{m}x{n}x{k}", 1e-5, configs, ())
        seconds = everything.predicted(constants)
        pairs = [pair for pair in zip(configs, seconds, strict=True) if pair[1] < 2 * min(seconds)]
        near, times = zip(*pairs, strict=True)
        timed.append(dataclasses.replace(everything, configs=near, seconds=times))
    start = fit.start_of(timed)
    fitted = fit.fit(timed, start, rounds=5)
    assert statistics.median(fit.errors(timed, fitted)) < 0.05
    assert statistics.median(fit.errors(timed, start)) > 0.1
    assert max(fit.costs(timed, fitted)) < 1.02


def test_a_problem_that_was_measured_twice_is_in_one_fold():
    one = fit.Timed((1, 2, 3), "", 1.0, (), ())
    timed = [dataclasses.replace(one, name=f"problem {i % 20}") for i in range(50)]
    assert list(fit.divided(timed, 0)) == []
    parts = list(fit.divided(timed, 4))
    assert sum(len(part) for part, _ in parts) == len(timed)
    for part, others in parts:
        assert part
        assert len(part) + len(others) == len(timed)
        assert not {each.name for each in part} & {each.name for each in others}


def test_a_graph_walks_through_all_input_sets_of_a_small_problem():
    assert launches_in_graph(1e-5, 24) == 64
    assert launches_in_graph(1e-4, 24) == 24
    assert launches_in_graph(1e-2, 24) == 1


@pytest.mark.parametrize("problem", {p.config(132): p for p in problems()}.values(), ids=str)
def test_every_configuration_is_given_all_arguments(problem):
    """On small operands of the same kind: tensors and descriptors where the plan asks for them."""
    config = problem.config(132)
    rows = config.tile.loaded_rows or 48
    small = Problem(rows, 64, 128, problem.element_type, problem.a_major, problem.b_major)
    dtype = TYPES[problem.element_type]
    a = torch.zeros(small.m, small.k).to(dtype)
    b = torch.zeros(small.n, small.k).to(dtype).T
    operands = (a, b.contiguous() if small.b_major == "MN" else b, torch.zeros(rows, 64).bfloat16())
    plan = launch_plan(config, rows, 64, 128, SimpleNamespace(multi_processor_count=132))
    workspace = torch.zeros(1)
    arguments = launch_arguments(config, plan, *operands, workspace=workspace)
    values = compiled_arguments(plan, arguments)
    flat = [one for each in values for one in (each if isinstance(each, tuple) else (each,))]
    given_values = [value for value in flat if value is not None]
    assert len(given_values) == len(plan.arguments) + 1  # the kernel's plan
    assert all(any(value is each for each in flat) for value in arguments.values())
    left, right = values[0].shape, values[1].shape
    sides = ([rows, 128], [64, 128] if small.b_major == "K" else [128, 64])
    assert (list(left), list(right)) == (sides[::-1] if config.tile.swap_ab else sides)


class SimulatedGpu:
    """A time line on which graphs and events are put, in milliseconds."""

    def __init__(self):
        self.now = 0.0
        self.replayed = []

    def event(self, enable_timing):
        assert enable_timing
        return SimulatedEvent(self)


class SimulatedEvent:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.at = self.gpu.now

    def elapsed_time(self, end):
        return end.at - self.at


class SimulatedGraph:
    def __init__(self, gpu, name, durations):
        self.gpu, self.name, self.durations = gpu, name, itertools.cycle(durations)

    def replay(self):
        self.gpu.now += next(self.durations)
        self.gpu.replayed.append(self.name)


def test_sides_are_replayed_in_turn_and_medians_are_of_one_launch(monkeypatch):
    gpu = SimulatedGpu()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    counts = []

    def graph_of(launch, count):
        counts.append(count)
        return SimulatedGraph(gpu, *launch)

    monkeypatch.setattr(matmul, "graph_of", graph_of)
    monkeypatch.setattr(matmul, "warm_up", lambda graphs: replay.warm_up(graphs, 0))
    sides = {"a": ("a", [2.0]), "b": ("b", [3.0])}
    found = matmul.median_seconds(sides, 1e-4, 8, rounds=5)
    assert counts == [15, 15]
    assert found == pytest.approx({"a": 2e-3 / 15, "b": 3e-3 / 15})
    # Once each; then a round untimed, and eight, there and back.
    assert "".join(gpu.replayed) == "ab" + ("abba" + "baab") * 4 + "abba"
    gpu.replayed.clear()
    seen = contextlib.nullcontext()
    found = matmul.median_seconds(sides, 1.0, 2, rounds=1, watch=seen, shortest=0.01)
    assert "".join(gpu.replayed[2:38]) == ("abba" + "baab") * 4 + "abba"
    assert len(gpu.replayed) > 2 + 36
    assert found["a"] == pytest.approx(2e-3)


NOTES = ROOT / "benchmarks" / "notes"
PAGE = (NOTES / "performance.md").read_text(encoding="utf-8")


def results(name):
    return json.loads((plots.RESULTS / f"{name}.json").read_text())["rows"]


def test_the_page_shows_the_ladder_as_it_was_measured():
    for row in results("ladder_h100"):
        cells = [
            row["step"],
            "x".join(map(str, row["tile"])),
            str(row["tma_copies"] or "-"),
            f"{row['tflops']:.1f}",
            f"{row['ratio']:.3f}",
        ]
        assert f"| {' | '.join(cells)} |" in PAGE


def test_the_docs_name_benchmarks_that_are_there():
    pages = [CHECKOUT / "README.md", CHECKOUT / "Makefile", *(CHECKOUT / "docs").rglob("*.md")]
    product = [*(CHECKOUT / "kernels").rglob("*.py"), *(CHECKOUT / "triton_ext").rglob("*.py")]
    told = {
        name
        for path in [*pages, *product]
        for name in re.findall(r"-m\s+benchmarks\.(\w+)", path.read_text(encoding="utf-8"))
    }
    assert {"matmul", "first_light", "fit", "microbenchmarks"} <= told
    for name in told:
        assert "__main__" in (CHECKOUT / f"benchmarks/{name}.py").read_text(encoding="utf-8"), name


def test_a_report_prints_and_writes_its_rows(tmp_path, capsys):
    table = Table(
        ("case", "<6", "name"),
        ("us", ">7.1f", "us"),
        ("  twice", "", lambda row: f"  {2 * row['n']}"),
    )
    rows = [{"name": "a", "us": 1.25, "n": 1}, {"name": "b", "us": None, "n": 2}]
    path = tmp_path / "new" / "rows.json"
    assert harness.report("conversion", iter(rows), table, path, note="a note") == rows
    machine, *printed = capsys.readouterr().out.splitlines()
    assert machine.startswith("python 3.")
    assert printed == ["a note", "case       us  twice", "a         1.2  2", "b           -  4"]
    document = json.loads(path.read_text())
    assert document["rows"] == rows
    assert document["command"] == "python -m benchmarks.conversion"
    assert document["environment"] == harness.environment()
    arguments = harness.options("").parse_args(["--json", str(path)])
    assert arguments.json == path


class FakeNvml:
    """An H100's memory; readings that change once, as if they lagged."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_FI_DEV_POWER_INSTANT = 1, 2, 186

    def __init__(self):
        self.asked = threading.Event()

    def nvmlDeviceGetMaxClockInfo(self, device, clock):
        assert clock == self.NVML_CLOCK_MEM
        return 2619

    def nvmlDeviceGetMemoryBusWidth(self, device):
        return 5120

    def nvmlDeviceGetClockInfo(self, device, clock):
        assert clock == self.NVML_CLOCK_SM
        return 1500

    def nvmlDeviceGetFieldValues(self, device, fields):
        assert fields == [self.NVML_FI_DEV_POWER_INSTANT]
        self.asked.set()
        return [SimpleNamespace(value=SimpleNamespace(uiVal=700_500))]


def test_clock_power_and_memory_are_read_from_nvml():
    gpu = object.__new__(GpuState)
    gpu._nvml, gpu._device = FakeNvml(), None
    assert gpu.memory_bytes_per_second() == pytest.approx(3.35e12, rel=1e-3)
    with Watch(gpu) as seen:
        gpu._nvml.asked.wait()
    assert (seen.clock_mhz, seen.power_watts) == (1500, 700.5)
    seen._samples = [(1980, 100.0)] * 3 + [(1500, 700.0)] * 4
    assert (seen.clock_mhz, seen.power_watts) == (1500, 700.0)


def test_a_survey_is_predicted_problem_by_problem(tmp_path, capsys):
    """In the order of a hash, so that the first ones are a sample; each problem once."""
    problems = [Problem(m, 64, 128, "bf16", "MN", "K") for m in range(64, 128, 2)]
    config = {"arch": 90, "element_type": "bf16", "a_major": "MN", "consumers": 1}
    rows = [
        {
            "problem": str(problem),
            "configs": [{"config": config, "seconds": (9 - i) * 1e-6} for i in range(7)],
        }
        for problem in problems
    ]
    few = {"problem": "8x8x8 bf16 KK", "configs": rows[0]["configs"][:4]}
    path = tmp_path / "survey.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"rows": [*rows, few, *rows[:3]]}).encode()))
    found = list(timeline.surveyed(path, "test", "surveyed matmul"))
    assert "8x8x8 bf16 KK is left out" in capsys.readouterr().out
    order = [str(works[0].problem) for works in found]
    assert sorted(order) == sorted(map(str, problems)) != order
    assert order == sorted(order, key=lambda name: zlib.crc32(name.encode()))
    for works in found:
        assert [round(1e6 * work.seconds) for work in works] == [9, 8, 7, 5, 4]
        assert {(work.split, work.family) for work in works} == {("test", "surveyed matmul")}
        assert {work.best for work in works} == {3e-6}
    least = problems[0].flops
    small = list(timeline.surveyed(path, "fit", "surveyed matmul", most=least))
    assert [str(work.problem) for works in small for work in works] == 5 * [str(problems[0])]


def test_plots_show_the_results():
    """`make plots` has been run since the results changed."""
    assert plots.stale() == []
    names = {plot.name for plot in plots.plots()}
    assert {"ratios-h100", "random-h100", "distributed-h100"} <= names


def test_a_plot_of_other_numbers_is_stale(tmp_path, monkeypatch):
    for path in plots.RESULTS.glob("random_h100.json"):
        document = json.loads(path.read_text())
        document["rows"][3]["ratio"] *= 1.01
        (tmp_path / path.name).write_text(json.dumps(document))
    changed = {plot.name: plot.digest for plot in plots.plots(tmp_path)}
    assert set(changed) == {"random-h100"}
    now = {plot.name: plot.digest for plot in plots.plots()}
    assert now["random-h100"] != changed["random-h100"]
    monkeypatch.setattr(plots, "PLOTS", tmp_path)  # where there is none
    assert plots.stale() == sorted(f"{name}.svg" for name in now)


def test_plots_are_drawn_alike_each_time(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "PLOTS", tmp_path)
    plots.write()
    assert plots.stale() == []
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "old.svg").touch()
    assert plots.stale() == ["old.svg"]
    plots.write()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first
    for text in map(bytes.decode, first.values()):
        assert "<text" in text
