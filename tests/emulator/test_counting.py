"""Scripts that measure time: events, benchmarks and CUDA graphs count instructions."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime import autotuner

import triton_ext


@triton.jit
def _add(x, y, out, number, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < number
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@pytest.fixture
def problem():
    with triton_ext.emulate("sm_90", cuda_on_host=True) as gpu:
        x, y = torch.arange(200.0, device="cuda"), torch.ones(200, device="cuda")
        out = torch.zeros_like(x)
        yield gpu, x, out, lambda: _add[(2,)](x, y, out, 200, block=128)


def test_everything_that_measures_counts_the_same(problem, capsys):
    gpu, _, _, launch = problem
    launch()
    steps = float(gpu.steps)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    launch()
    end.record(torch.cuda.current_stream())
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) == steps
    assert triton.testing.do_bench(launch, warmup=1, rep=1) == steps
    assert triton.testing.do_bench(launch, quantiles=[0.5, 0.2]) == [steps] * 2
    assert triton.testing.do_bench(launch, return_mode="all") == [steps]
    assert triton.testing.do_bench_cudagraph(launch) == steps
    assert gpu.launches == 6
    assert capsys.readouterr().err.count("number of instructions") == 1


def test_a_graph_runs_at_its_replays(problem):
    gpu, x, out, launch = problem
    total, graph = torch.zeros_like(x), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        launch()
        doubled = out * 2
        total += doubled
        halves = torch.split(doubled, 100)
    assert not gpu.launches
    assert not total.any()
    assert not out.any()
    x.fill_(10)
    graph.replay()
    assert (doubled == 22).all()
    assert (halves[1] == 22).all()
    x.fill_(20)
    graph.replay()
    assert (out == 21).all()
    assert (total == 22 + 42).all()
    assert gpu.launches == 2


def test_what_autotuners_keep_on_disk_is_for_the_emulator_alone(tmp_path, monkeypatch):
    """A GPU of the same architecture measures for itself; another emulated one need not."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    configs = [triton.Config({"block": block}) for block in (64, 128)]

    def launched(**options):
        tuner = triton.autotune(configs, key=["number"], cache_results=True)(_add)
        with triton_ext.emulate("sm_90", **options) as gpu:
            x = torch.ones(200)
            tuner[lambda meta: (triton.cdiv(200, meta["block"]),)](x, x, torch.zeros(200), 200)
            return gpu.launches, tuner

    assert launched()[0] == 3
    assert launched(time="H100")[0] == 3
    launches, tuner = launched()
    assert launches == 1
    real = mock.Mock(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    monkeypatch.setattr(autotuner, "driver", mock.Mock(active=real))
    (key,), measure = tuner.cache, mock.Mock()
    assert not tuner.check_disk_cache(key, configs, measure)
    assert tuner.check_disk_cache(key, configs, measure)
    measure.assert_called_once()
