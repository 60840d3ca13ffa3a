"""The fixed set: few kernels, one of which makes each product, and compiled before any is asked."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.9")

import torch
from triton import knobs

import triton_ext
from benchmarks.problems import drawn_problems
from triton_ext import LayoutError
from triton_ext.cli import main
from triton_ext.kernels.choice import fixed_set
from triton_ext.kernels.choice.choose import choose_config, predicted_seconds
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.element_types import BLOCK_SCALED, ELEMENT_BYTES
from triton_ext.kernels.epilogue import NO_EPILOGUE, EpilogueSpec
from triton_ext.kernels.precompile import fixed_configurations
from triton_ext.kernels.product import ProductSpec
from triton_ext.ops import plans, rule
from triton_ext.ops.call import Call
from triton_ext.ops.device import find_gpu
from triton_ext.ops.epilogue import Epilogue
from triton_ext.ops.planning import described, planned

HOST = torch.device("cpu")
TYPES = [
    (arch, name) for arch in (90, 100) for name in ELEMENT_BYTES
    if arch == 100 or name not in BLOCK_SCALED
]  # fmt: skip
OUT_TYPES = (None, "fp32", "fp16", "bf16")
MAJORS = tuple(itertools.product(("K", "MN"), repeat=2))


@pytest.fixture(autouse=True)
def as_by_default(monkeypatch):
    monkeypatch.setattr(rule, "_given", None)
    yield
    plans.clear_cache()


@pytest.mark.parametrize(("arch", "element_type"), TYPES)
def test_there_are_few(arch, element_type):
    products = [ProductSpec(element_type, *majors) for majors in MAJORS]
    every = fixed_configurations(arch, products, NO_EPILOGUE)
    assert 4 <= len({*every}) == len(every) <= fixed_set.MOST
    tiles = {(each.product, fixed_set.tile_of(each)) for each in every}
    assert len(tiles) == len(every)


SIZES = st.integers(0, 20).flatmap(lambda power: st.integers(1 << power, 2 << power))


@given(
    st.sampled_from(TYPES), st.sampled_from(MAJORS), st.sampled_from(OUT_TYPES),
    st.tuples(SIZES, SIZES, SIZES), st.sampled_from((78, 132, 148)), st.sampled_from((1, 1, 40)),
)  # fmt: skip
def test_each_problem_has_a_kernel(kind, majors, out_type, sizes, processors, batch):
    """A legal one that copies all rows; also where no kernel suits by the model."""
    if ELEMENT_BYTES[kind[1]] != 2:
        majors = ("K", "K")
    arch, element_type = kind
    product = ProductSpec(element_type, *majors, out_type)
    config = choose_config(arch, product, Problem(*sizes, processors, batch), fixed=True)
    assert config in fixed_set.fixed_set(arch, product)
    rows = sizes[1] if config.tile.swap_ab else sizes[0]
    assert config.tile.loaded_rows == 0 or config.tile.loaded_rows >= rows


def test_what_it_costs():
    """By the model: 5 % in 16 bits, problems of another seed (benchmarks/notes/performance.md)."""
    ratios = []
    for each in drawn_problems(4242, 120):
        if each.element_type != "e4m3":
            product = ProductSpec("bf16", each.a_major, each.b_major)
            problem = Problem(each.m, each.n, each.k)
            free, of_set = (choose_config(90, product, problem, fixed=it) for it in (False, True))
            seconds = [predicted_seconds(config, problem) for config in (of_set, free)]
            ratios.append(seconds[0] / seconds[1])
    assert 1.02 < statistics.geometric_mean(ratios) < 1.08
    assert max(ratios) < 1.6


def plan_of(m, n, k, **epilogue):
    a, b = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16).T
    call = Call(a, b, Epilogue(**epilogue))
    return planned(described(find_gpu(HOST), call)).launch.config


def test_products_choose_among_it(monkeypatch):
    """As the function says, or the environment; with a residual, too, whatever K is."""
    sizes = [(m, n, k) for m in (3, 100, 2000) for n in (520, 4000) for k in (64, 640, 8192)]
    with triton_ext.emulate("sm_90"):
        free = [plan_of(*each) for each in sizes]
        triton_ext.fixed_kernels()
        chosen = [plan_of(*each) for each in sizes]
        residuals = [torch.zeros(m, n, dtype=torch.bfloat16) for m, n, _ in sizes]
        with_residual = [
            plan_of(*each, residual=c) for each, c in zip(sizes, residuals, strict=True)
        ]
        triton_ext.fixed_kernels(False)
        assert [plan_of(*each) for each in sizes] == free
        monkeypatch.setattr(rule, "_given", None)
        monkeypatch.setenv(rule.VARIABLE, "fixed")
        assert [plan_of(*each) for each in sizes] == chosen
        monkeypatch.setenv(rule.VARIABLE, "some")
        with pytest.raises(LayoutError, match="TRITON_EXT_KERNELS = 'some'"):
            plan_of(*sizes[0])
    known = fixed_configurations(90, [ProductSpec("bf16")], NO_EPILOGUE)
    assert {*chosen} <= {*known}
    assert not {*free} <= {*known}
    added = fixed_configurations(90, [ProductSpec("bf16")], EpilogueSpec(residual=True))
    assert {*with_residual} <= {*added}


def test_a_measured_configuration_is_not_asked_for(monkeypatch):
    monkeypatch.setattr("triton_ext.ops.planning.lookup", lambda *_: pytest.fail("asked"))
    triton_ext.fixed_kernels()
    with triton_ext.emulate("sm_90"):
        plan_of(64, 64, 64)


def test_nothing_is_compiled_for_a_new_shape(monkeypatch, tmp_path):
    """With a set of two kernels, as more take long: both are compiled by the command."""
    two = [
        each for each in fixed_set.every_candidate(90, ProductSpec("bf16"))
        if (tile := each.tile).rows == tile.columns == 64 and tile.cluster_size == tile.split_k == 1
        and tile.loaded_rows in (0, 16) and tile.consumers == 1 and not tile.swap_ab
    ][:2]  # fmt: skip
    name = fixed_set.set_name(90, ProductSpec("bf16"))
    path = tmp_path / "sets.json"
    path.write_text(json.dumps({"sets": {name: [fixed_set.tile_of(each) for each in two]}}))
    monkeypatch.setattr(fixed_set, "FILE", path)
    caches = (fixed_set._sets, fixed_set.fixed_set, choose_config)
    for each in caches:
        each.cache_clear()
    try:
        cache = tmp_path / "cache"
        ahead = ["precompile", "--fixed", "--a-major", "K", "--b-major", "K", "--out", str(cache)]
        done = CliRunner().invoke(main, ahead)
        assert done.output.splitlines()[-2].startswith(
            "sm_90, bf16: 2 kernels for all problems; 2 compiled, 0 found, 0 failed"
        )
        hits = []
        monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
        monkeypatch.setattr(
            knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit)
        )
        triton_ext.fixed_kernels()
        with triton_ext.emulate("sm_90", idle=True):
            for m, n, k in ((1, 40, 72), (16, 8, 16), (17, 264, 1000), (700, 72, 8)):
                triton_ext.matmul(
                    torch.zeros(m, k, dtype=torch.bfloat16),
                    torch.zeros(n, k, dtype=torch.bfloat16).T,
                )
        assert hits == [True] * 2
    finally:
        for each in caches:
            each.cache_clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fixed", "64x64"], "WEIGHTS cannot be used with --fixed"),
        (["--fixed", "--rows", "1", "--sms", "132"], "--rows, --sms cannot be used with --fixed"),
        (["--fixed", "--gpu", "h100"], "--gpu cannot be used with --fixed"),
        (["--gpu", "h100", "--arch", "sm_100"], "--gpu cannot be used but with --arch sm_90"),
        (["--batched"], "--batched cannot be used without --fixed"),
        (["--fixed", "--types", "e4m3", "--b-major", "MN"], "must be legal on sm_90"),
        (["--fixed", "--out-type", "int32"], "must be legal on sm_90"),
    ],
)
def test_options_that_are_refused(options, message):
    refused = CliRunner().invoke(main, ["precompile", *options])
    assert refused.exit_code == 2
    assert message in refused.output
