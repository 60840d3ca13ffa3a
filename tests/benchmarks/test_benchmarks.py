"""The benchmarks' own code, as far as it runs without a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import itertools
import json
import math
import os
import re
import statistics
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sites import ROOT

import triton_ext
from triton_ext.compat import LAUNCH_OPTIONS, TRITON_VERSION, compile_kernel
from triton_ext.distributed import launches
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.kernels.choice import candidates, limits, sm100
from triton_ext.kernels.choice.choose import predicted_seconds
from triton_ext.kernels.launch import compiled_arguments, launch_arguments, launch_plan
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import kernel_spec, read_spec

sys.path.insert(0, str(ROOT))  # `benchmarks` is not installed

from benchmarks import (
    blackwell,
    compiled_models,
    fit,
    harness,
    heuristics,
    matmul,
    plots,
    replay,
    scatter,
    timeline,
)
from benchmarks.gpu_state import GpuState, Watch
from benchmarks.harness import Table
from benchmarks.heuristics import Tile, compare, our_tile
from benchmarks.inductor import Inductor, InductorError, arguments_of, without_triton
from benchmarks.matmul import GOAL, LOWEST, summary
from benchmarks.peers import (
    GROUP_M,
    Compilation,
    TutorialConfig,
    persistent_matmul,
    tutorial_configs,
)
from benchmarks.problems import (
    CLASSES,
    DRAWN,
    TYPES,
    Problem,
    drawn_problems,
    peer_problems,
    problem_of,
    problems,
)
from benchmarks.replay import launches_in_graph


def test_problems_are_those_of_the_issue():
    rows = problems()
    assert len(set(rows)) == len(rows)
    assert set(peer_problems()) <= set(rows)
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


def test_summary_of_measured_kernels(capsys):
    row = {"type": "bf16", "class": "medium", "ratio": 0.9, "measured_ratio": 0.95}
    matmul.print_summary([{**row, "left": False}, {**row, "ratio": 1.2, "left": True}])
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "medium" in line]
    assert [line[3:5] for line in lines] == [
        ["1.039", "0.900"],
        ["0.950", "0.950"],
        ["0.975", "0.950"],
    ]


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


FP8 = ("e4m3 promoted", "e4m3 random", "e4m3 random promoted")


@given(st.integers(0, 2**32), st.sampled_from([(), ("round",), ("LoRA", "e4m3"), FP8]))
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
        constants = dataclasses.replace(known, **gpu)
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


def test_a_scatters_tile_is_chosen_by_what_was_measured():
    timed = scatter.read(file := ROOT / "benchmarks/results/scatter_h100.json")
    assert scatter.fit(timed) == pytest.approx(launches.LOADS, abs=6e-4)
    found = scatter.costs(timed, scatter.left_out(timed))
    as_on_one_gpu = scatter.costs(timed, [0.0] * len(timed))
    assert statistics.fmean(found) < 1.03 < statistics.fmean(as_on_one_gpu) - 0.02
    for row in json.loads(file.read_text())["rows"]:
        for each in row["configs"]:
            assert read_spec(each["config"]).product.collective == "scatter"


def test_the_page_of_blackwell_has_the_counts_that_were_made():
    found = json.loads((ROOT / "benchmarks/results/blackwell_counts.json").read_text())
    page = (ROOT / "docs/blackwell.md").read_text().splitlines()
    tables = [found["steps"], *found["side_by_side"].values()]
    assert len(tables) == 5
    for rows in tables:
        assert set(blackwell.table(rows).splitlines()) <= set(page)


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
    others = []

    def other():
        others.append(len(gpu.replayed))
        return 0.5

    found = matmul.median_seconds(sides, 1e-4, 8, rounds=5, others={"c": other})
    assert counts == [15, 15]
    assert found == pytest.approx({"a": 2e-3 / 15, "b": 3e-3 / 15, "c": 0.5})
    # Once each; then, for every turn of the other, a round untimed and a round, there and back.
    assert "".join(gpu.replayed) == "ab" + ("abba" + "baab") * 5
    assert others == [10, 18, 26, 34, 42]
    gpu.replayed.clear()
    seen = contextlib.nullcontext()
    found = matmul.median_seconds(sides, 1.0, 2, rounds=1, watch=seen, shortest=0.01)
    assert "".join(gpu.replayed[2:38]) == ("abba" + "baab") * 4 + "abba"
    assert len(gpu.replayed) > 2 + 36
    assert found["a"] == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("config", "k_major"),
    [
        (TutorialConfig(128, 64, 2, 4, True), True),
        (TutorialConfig(128, 64, 2, 4, False), False),
        (TutorialConfig(256, 64, 2, 8, False), True),
    ],
    ids=str,
)
def test_the_tutorial_kernel_multiplies(config, k_major):
    """On the emulated GPU, more tiles than programs, none of them full."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    torch.manual_seed(0)
    m, n, k = 300, 328, 136
    a = torch.randn(m, k).bfloat16()
    b = torch.randn((n, k) if k_major else (k, n)).bfloat16()
    c = torch.full((m, n), float("nan")).bfloat16()
    with triton_ext.emulate("sm_90"):
        descriptors = [
            TensorDescriptor.from_tensor(matrix, block)
            for matrix, block in zip((a, b, c), config.blocks(k_major), strict=True)
        ]
        persistent_matmul[(2,)](
            *descriptors, m, n, k, **config.constants(k_major, 2), num_warps=config.warps,
            num_stages=config.stages, **LAUNCH_OPTIONS,
        )  # fmt: skip
    expected = a.double() @ (b.T if k_major else b).double()
    assert (c.double() - expected).norm() / expected.norm() < 2.0**-8


def test_the_tutorial_has_48_configurations_of_which_some_are_too_large():
    found = tutorial_configs()
    assert len(set(found)) == 48
    large = Compilation(TutorialConfig(256, 128, 4, 8, False), "bf16", True, 132)
    assert large.compile() is None
    kernel = Compilation(TutorialConfig(128, 64, 4, 4, True), "e4m3", True, 132).compile()
    assert kernel.metadata.shared <= SHARED_MEMORY_PER_BLOCK
    assert "wgmma.mma_async" in kernel.asm["ptx"]
    assert "e4m3" in kernel.asm["ptx"]


@pytest.mark.skipif(TRITON_VERSION != (3, 9), reason="the statement is about Triton 3.9")
def test_automatic_warp_specialization_changes_nothing_on_hopper():
    """Which is why the benchmark does not tune over it."""
    config = TutorialConfig(128, 64, 3, 4, True)
    texts = []
    for specialize in (False, True):
        constants = config.constants(True, 132) | {"SPECIALIZE": specialize}
        signature = {
            name: f"tensordesc<bf16{block}>".replace(" ", "")
            for name, block in zip(("a_desc", "b_desc", "c_desc"), config.blocks(True), strict=True)
        }
        signature |= dict.fromkeys(("m", "n", "k"), "i32")
        signature |= dict.fromkeys(constants, "constexpr")
        kernel = compile_kernel(
            persistent_matmul, signature, constants, target=90, num_warps=4, num_stages=3
        )
        texts.append(re.sub(r"^\s*(\.loc|\.file|\$L__tmp).*$", "", kernel.asm["ptx"], flags=re.M))
    assert texts[0] == texts[1]
    assert GROUP_M == 8


def test_the_path_of_inductors_process_has_no_triton(tmp_path):
    (tmp_path / "with" / "triton").mkdir(parents=True)
    (tmp_path / "with" / "triton" / "__init__.py").touch()
    (tmp_path / "without").mkdir()
    given_path = os.pathsep.join([str(tmp_path / "with"), "", str(tmp_path / "without")])
    assert without_triton(given_path) == str(tmp_path / "without")
    assert without_triton("") == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_inductors_process_answers_and_reports_errors(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with Inductor() as inductor:
        assert inductor.ask("versions")["torch"] == torch.__version__
        inductor.send("tune", **arguments_of(Problem(16, 16, 16)))
        inductor.send("versions")
        with pytest.raises(InductorError, match="CUDA"):
            inductor.receive()
        assert "triton" in inductor.receive()
        with pytest.raises(InductorError, match="no_such"):
            inductor.ask("no_such")
    with pytest.raises(InductorError, match="has ended"):
        inductor.receive()


def test_choices_are_compared_by_tile_and_orientation():
    problem = Problem(16, 8192, 8192)
    config = problem.config(132)
    ours = our_tile(config)
    assert (ours.m, ours.n, ours.swap) == (
        config.tile.block_m,
        config.tile.block_n,
        config.tile.swap_ab,
    )
    other = Tile(72, 56, 64)
    row = compare(problem, [(other, 1e-6), (ours, 2e-6)])
    assert row["rank_of_ours"] == 2
    assert row["cost"] is None  # none of our candidates
    row = compare(problem, [(ours, 2e-6), (other, 2e-6)])
    assert row["rank_of_ours"] == 1
    assert row["cost"] == pytest.approx(1, abs=0.01)
    row = compare(problem, [(Tile(ours.m, ours.n, ours.k, swap=not ours.swap), 1e-6)])
    assert row["rank_of_ours"] is None
    # An equal time is no better rank.
    assert compare(problem, [(other, 2e-6), (ours, 2e-6)])["rank_of_ours"] == 1


def test_what_a_counterpart_costs_is_what_the_model_says():
    problem = Problem(8192, 8192, 8192)
    row = compare(problem, [(Tile(128, 128, 64), 1e-3)])
    narrow = kernel_spec(90, "bf16", block_m=128, block_n=128, stages=6, consumers=1)
    assert row["counterpart_predicted_us"] <= 1e6 * predicted_seconds(narrow, problem.size())
    assert row["cost"] == pytest.approx(row["counterpart_predicted_us"] / row["ours_predicted_us"])
    assert row["cost"] > 1


def test_nvidias_package_is_asked_for_the_problem_and_its_transpose():
    pytest.importorskip("nvMatmulHeuristics")
    recommendations = heuristics.Recommendations()
    for problem in (Problem(16, 8192, 8192), Problem(1024, 1024, 1024, b_major="MN")):
        found = recommendations(problem)
        assert {tile.swap for tile, _ in found} == {False, True}
        times = [seconds for _, seconds in found]
        assert times == sorted(times)
        for tile, _ in found:
            rows, columns = (tile.n, tile.m) if tile.swap else (tile.m, tile.n)
            assert rows % 64 == 0
            assert columns % 8 == 0
    # The transpose of the problem is the problem of the transposes.
    tall = {
        (tile.m, tile.n, tile.k, tile.cluster) for tile, _ in recommendations(Problem(64, 512, 256))
    }
    wide = {
        (tile.n, tile.m, tile.k, tile.cluster[::-1])
        for tile, _ in recommendations(Problem(512, 64, 256))
    }
    assert tall == wide


PAGE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")


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


def test_the_page_says_what_the_heuristics_chose():
    rows = results("heuristics")
    assert {row["problem"] for row in rows} == {str(problem) for problem in problems()}
    first = sum(row["rank_of_ours"] == 1 for row in rows)
    among = sum(row["rank_of_ours"] is not None for row in rows)
    assert (
        f"Of {len(rows)} problems, our tile is its first in {first} and among its first five in"
        f" {among}."
    ) in PAGE
    narrow = [row for row in rows if row["class"] == "M <= 64"]
    costs = {
        kind: [row["cost"] for row in narrow if row["type"] == kind and row["cost"]]
        for kind in ("bf16", "e4m3")
    }
    median = {kind: statistics.median(values) for kind, values in costs.items()}
    assert (
        f"takes {median['bf16']:.2f} times as long in the median (bf16),"
        f" {max(costs['bf16']):.1f} at most; e4m3 {median['e4m3']:.2f}."
    ) in PAGE


def test_the_page_leads_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    for module in re.findall(r"python -m (benchmarks\.\w+)", PAGE):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


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
        return [SimpleNamespace(value=SimpleNamespace(uiVal=700_500))]


def test_clock_power_and_memory_are_read_from_nvml():
    gpu = object.__new__(GpuState)
    gpu._nvml, gpu._device = FakeNvml(), None
    assert gpu.memory_bytes_per_second() == pytest.approx(3.35e12, rel=1e-3)
    with Watch(gpu) as seen:
        time.sleep(0.02)
    assert (seen.clock_mhz, seen.power_watts) == (1500, 700.5)
    seen._samples = [(1980, 100.0)] * 3 + [(1500, 700.0)] * 4
    assert (seen.clock_mhz, seen.power_watts) == (1500, 700.0)


def test_a_survey_is_halved_by_the_names_of_its_problems(tmp_path):
    problems = [Problem(m, 64, 128, "bf16", "MN", "K") for m in range(64, 128, 2)]
    config = {"arch": 90, "element_type": "bf16", "a_major": "MN"}
    rows = [
        {"problem": str(problem), "configs": [{"config": config, "seconds": 1e-6}] * 5}
        for problem in problems
    ]
    old = {**rows[0], "problem": "8x8x8 bf16 KN", "before": True}
    path = tmp_path / "survey.json.gz"
    later = [{**row, "problem": f"9{row['problem']}", "later": "drawn"} for row in rows]
    weak = {**rows[1], "problem": "8x8x8 bf16 NN", "later": "weak"}
    latest = [{**row, "later": ("middle", "every")[i % 2]} for i, row in enumerate(later)]
    newest = [{**row, "problem": f"8{row['problem']}", "later": "across"} for row in rows]
    again = [{**latest[0], "later": "across"}]
    slower = [{"config": config, "seconds": 2e-6}] * 5
    first = [{**row, "configs": slower} for row in newest]
    document = {"rows": [*rows, old, weak, *later, *latest, *latest, *first, *newest, *again]}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    halves = [
        [work[0].problem for work in timeline.surveyed(path, split, "halves")]
        for split in ("fit", "test")
    ]
    assert all(8 < len(half) < 24 for half in halves)
    assert sorted(map(str, itertools.chain(*halves))) == sorted(map(str, problems))
    least = problems[0].flops
    assert sum(work[0].problem.flops > least for work in timeline.surveyed(path, "fit")) > 8
    assert all(
        work[0].problem.flops <= least for work in timeline.surveyed(path, "fit", most=least)
    )
    assert 1 < len(list(timeline.surveyed(path, "test", "later"))) < 16
    fit, test = (
        [str(work[0].problem) for work in timeline.surveyed(path, split, "latest")]
        for split in ("fit", "test")
    )
    assert len(test) < len(fit)
    assert sorted(fit + test) == sorted(row["problem"] for row in latest)
    fit, test = (list(timeline.surveyed(path, split, "newest")) for split in ("fit", "test"))
    assert 1 < len(test) < len(fit)
    assert sorted(str(work[0].problem) for work in fit + test) == sorted(
        row["problem"] for row in newest
    )
    assert {work[0].seconds for work in fit + test} == {1e-6}


def test_plots_show_the_results():
    """`make plots` has been run since the results changed."""
    assert plots.stale() == []
    names = {plot.name for plot in plots.plots()}
    assert {"ratios-h100", "ladder-h100", "latency-h100"} <= names


def test_a_plot_of_other_numbers_is_stale(tmp_path, monkeypatch):
    for path in plots.RESULTS.glob("ladder_h100.json"):
        document = json.loads(path.read_text())
        document["rows"][3]["ratio"] *= 1.01
        (tmp_path / path.name).write_text(json.dumps(document))
    changed = {plot.name: plot.digest for plot in plots.plots(tmp_path)}
    assert set(changed) == {"ladder-h100"}
    now = {plot.name: plot.digest for plot in plots.plots()}
    assert now["ladder-h100"] != changed["ladder-h100"]
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


class TinyModel(torch.nn.Module):
    """What `benchmarks.models.step` calls."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(32, 32).half())

    def forward(self, input_ids, labels):
        hidden = input_ids @ self.weight
        return SimpleNamespace(loss=(hidden - labels).float().square().mean())


def test_each_side_of_the_compiled_models_is_compiled(tmp_path, monkeypatch):
    """And ours with our candidates. (The second side had the first one's graph.)"""
    from torch._inductor import config, select_algorithm

    offered = []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    tokens = torch.randn(32, 32).half()
    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns

    def note(choices):
        offered.append(sorted(choice.name for choice in choices))
        return choices

    torch._dynamo.reset()
    settings = {"force_disable_caches": True, "max_autotune_gemm_backends": "ATEN"}
    functions.append(note)
    try:
        with triton_ext.emulate("sm_90"), config.patch(**settings):
            counts = [
                len(compiled_models.compiled(TinyModel(), tokens, side)[1])
                for side in compiled_models.SIDES
            ]
    finally:
        functions.remove(note)
        torch._dynamo.reset()
    assert any("triton_ext_mm" in names for names in offered)
    assert counts[1] > 0
