"""Which tiles are candidates on Hopper, and how they are chosen."""

from __future__ import annotations

import itertools
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import ROOT

from triton_ext.kernels.choice import candidates
from triton_ext.kernels.choice.candidates import AS_IS, SWAPPED
from triton_ext.kernels.product import ProductSpec

sys.path.insert(0, str(ROOT))  # `benchmarks` is not installed

from benchmarks import survey, tiles
from benchmarks.problems import drawn_problems

pytestmark = pytest.mark.skipif(
    not candidates.is_new(), reason="releases before 3.9 have no tiles of all widths"
)
NO_KEY = ("",)


def test_every_tile_of_the_file_is_legal_and_one_of_all():
    """And most of all are no candidates."""
    kinds = [{"cluster_m": 1, "cluster_n": 1, **kind} for kind, _ in tiles.every_kind()]
    widths = [set(columns) for _, columns in tiles.every_kind()]
    every = tiles.tried(ProductSpec("bf16"))
    written = json.loads(candidates.FILE.read_text())
    assert len(written) > 50
    for kind in written:
        fields = {name: each for name, each in kind.items() if name not in (AS_IS, SWAPPED)}
        fields = {"block_k": 1, "cluster_m": 1, "cluster_n": 1, **fields}
        place = kinds.index(fields)
        assert widths[place].issuperset(kind.get(AS_IS, [])), kind
        assert widths[place].issuperset(kind.get(SWAPPED, [])), kind
    found = candidates.candidates(ProductSpec("bf16"))
    assert all(config.is_legal for config in found)
    assert {tiles.tile_of(config) for config in found} < set(every.keys)
    assert len(found) < len(every.keys) / 4


def test_tiles_that_save_most_are_chosen_first():
    a, b, c = (NO_KEY, 1), (NO_KEY, 2), (NO_KEY, 3)
    found = [{a: 0.0, b: 0.1}, {a: 0.05, b: 0.0}, {a: 0.05, b: 0.0}, {c: 0.0, b: 0.001}]
    assert tiles.chosen(found, set()) == [b, a]  # 0.001 is not worth a tile
    assert tiles.chosen(found, {b}) == [a]
    assert tiles.chosen([*found, {c: 0.0}], {b}) == [c, a]


LOGS = st.dictionaries(
    st.integers(0, 9).map(lambda each: (NO_KEY, each)), st.floats(0, 0.25), min_size=1
)


@settings(max_examples=50)
@given(st.lists(LOGS, min_size=1, max_size=12))
def test_no_other_tile_saves_anything_worth_it(found):
    kept = tiles.chosen(found, set())

    def cost(keys):
        logs = (min((one[key] for key in keys & one.keys()), default=tiles.MOST_LOG)
                for one in found)  # fmt: skip
        return sum(log + tiles.TAIL * log * log for log in logs)

    assert len(kept) == len(set(kept))
    for key in {key for one in found for key in one} - set(kept):
        assert cost(set(kept)) - cost({*kept, key}) < tiles.LEAST_SAVED + 1e-9
    costs = [cost(set(kept[:number])) for number in range(len(kept) + 1)]
    saved = [before - after for before, after in itertools.pairwise(costs)]
    assert all(each >= tiles.LEAST_SAVED - 1e-9 for each in saved)


def test_what_is_written_is_read(tmp_path, monkeypatch):
    """And what was chosen costs its own problems next to nothing."""
    path = tmp_path / "tiles.json"
    monkeypatch.setattr(tiles, "FILE", path)
    own, following = tiles.rows(random=3, number=3, write=True)
    assert own["problems"] == following["problems"] == 3
    assert own["tiles"] > 0
    assert 0 <= own["cost"] < 0.01
    columns = [
        (kind["rows"], size, name == SWAPPED)
        for kind in json.loads(path.read_text())
        for name in (AS_IS, SWAPPED)
        for size in kind.get(name, ())
    ]
    monkeypatch.setattr(candidates, "FILE", path)
    read = candidates._file_tiles.__wrapped__()
    assert [(each["rows"], each["columns"], each["swaps"][0]) for each in read] == columns
    problems = [*tiles.drawn(3, 3), *tiles.drawn(5, 3)]
    for asked in dict.fromkeys(tiles._product(problem) for problem in problems):
        fast = [tiles.logs(each, gpu) for each in problems if tiles._product(each) == asked
                for gpu in tiles.GPUS]  # fmt: skip
        able = {tiles.tile_of(each) for each in candidates.made([*candidates.TILES, *read], asked)}
        assert all(min(one[key] for key in one.keys() & able) < 0.01 for one in fast)


def test_a_plan_says_what_to_measure(tmp_path, monkeypatch):
    """The same problems, classes and configurations, legal ones, the choice first."""
    path = tmp_path / "plan.json"
    arguments = ["--random", "9", "--number", "6", "--candidates", "4", "--gpu", "h100"]
    arguments += ["--classes", "LoRA", "e4m3 promoted", "--operations", "1e6", "1e11"]
    monkeypatch.setattr("sys.argv", ["survey", *arguments, "--plan", str(path)])
    survey.main()
    plan = survey.read_plan(path)
    drawn = [each for each in drawn_problems(9, 6, ("LoRA", "e4m3 promoted")) if each.flops <= 1e11]
    assert [(each.m, each.n, each.k, each.promoted, each.shape_class) for each, _ in plan] == [
        (each.m, each.n, each.k, each.promoted, each.shape_class) for each in drawn
    ]
    for problem, configs in plan:
        assert configs[0] == problem.config(gpu="h100")
        assert len(set(configs)) == len(configs) == 4
        assert all(
            config.is_legal and config.product.fp32_accumulation == problem.promoted
            for config in configs
        )
    again = tmp_path / "again.json"
    survey.write_plan(again, plan)
    assert again.read_text() == path.read_text()
