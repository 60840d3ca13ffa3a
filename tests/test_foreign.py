"""``make foreign``: its page, and the packages that it imports without their dependencies."""

from __future__ import annotations

import sys

import pytest
from bare_packages import StandIn, bare
from sites import ROOT


def test_a_bare_package_has_its_modules_alone(tmp_path):
    """What its `__init__` imports is not asked for; what a module imports stands in."""
    kernels = tmp_path / "bare_example" / "kernels"
    kernels.mkdir(parents=True)
    (tmp_path / "bare_example" / "__init__.py").write_text("import no_such_module\n")
    (tmp_path / "bare_example" / "settings.py").write_text("raise RuntimeError\n")
    (kernels / "one.py").write_text(
        "import no_such_module.inner as inner\n"
        "from bare_example.settings import is_old, LIMIT, decorate\n"
        "class Options(inner.Struct, frozen=True):\n    pass\n"
        "@decorate\ndef twice(x):\n    return 2 * x\n"
        "old = is_old()\n"
    )
    values = {"bare_example.settings.LIMIT": 7}
    with bare(tmp_path, ["bare_example.kernels"], values) as missing:
        from bare_example.kernels import one
    assert (one.twice(4), one.old, one.LIMIT) == (8, False, 7)
    assert isinstance(one.inner, StandIn)
    assert {"no_such_module", "no_such_module.inner", "bare_example.settings"} <= set(missing)
    for name in [each for each in sys.modules if each.startswith(("bare_example", "no_such_mod"))]:
        del sys.modules[name]
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module")


def test_the_page_has_every_program_of_cuda():
    from foreign import CUDA, RIGHT
    from foreign_cuda import PROGRAMS, SCHEDULES, part

    written = (ROOT / "docs/reference/foreign.md").read_text(encoding="utf-8").partition(CUDA)[2]
    for program in PROGRAMS:
        assert program.kernel in written
    right = dict.fromkeys(SCHEDULES, RIGHT)
    fault = "SynchronizationFault: shared address 0x400 (a + 1) is read by warp 3; no barrier"
    late = {**right, "lazy": fault}
    row = {"hardware": right, "strict": right, "all": "proven", "undefined": [], "seconds": 1.0}
    mended = next(each for each in PROGRAMS if each.mended)
    broken = {**row, "hardware": late, "strict": late, "mended": True}
    made = part({PROGRAMS[0].kernel: row, mended.kernel: broken}, "")
    left = [each.kernel for each in PROGRAMS[1:] if each is not mended]
    assert f"Not run yet: {', '.join(left)}." in made
    assert "1 of 2 kernels are right as published, 1 of them with `--strict`" in made
    assert "| SynchronizationFault (lazy), theirs |" in made
    assert "| SynchronizationFault: shared address is read; no barrier |" in made
    assert part({}, made) == made
    again = part({mended.kernel: {**row, "seconds": 2.0}}, made)
    assert "2 of 2 kernels are right" in again
    assert "no barrier" not in again


def test_the_page_has_every_kernel_of_jax():
    from foreign import RIGHT
    from foreign_jax import JAX, KERNELS, MENDED, SCHEDULES, part

    written = (ROOT / "docs/reference/foreign.md").read_text(encoding="utf-8").partition(JAX)[2]
    for arch, names in KERNELS.items():
        for name in names:
            assert f"| {name} | {arch} |" in written
    right = dict.fromkeys(SCHEDULES, RIGHT)
    row = {"hardware": right, "strict": right, "undefined": ["last-store"], "seconds": 2.5}
    name = next(iter(MENDED))
    fault = {**right, "lazy": "SynchronizationFault: shared address 0x400 (a + 1) is written; late"}
    broken = {**row, "hardware": fault, "strict": fault, "mended": True}
    made = part({("sm_90", "softmax"): row, ("sm_100", name): broken}, "")
    assert "1 of 2 rows are right as published, 1 of them with `--strict`" in made
    assert "1 stop at a fault of their own" in made
    assert "| softmax | sm_90 | right | last-store | right | 2.5 |" in made
    assert "| SynchronizationFault (lazy), theirs |" in made
    assert "| SynchronizationFault: shared address is written; late | `thread_axis" in made
    assert part({}, made) == made


def test_what_was_run_is_known_until_the_sources_change(tmp_path, monkeypatch):
    import foreign_rows

    file = tmp_path / "folder" / "rows.jsonl"
    rows = foreign_rows.Rows(file)
    assert rows.get("p", "1", "k") is None
    rows.put({"verdict": "wrong"}, "p", "1", "k")
    rows.put({"verdict": "right"}, "p", "1", "k")
    again = foreign_rows.Rows(file)
    assert again.get("p", "1", "k") == {"verdict": "right"}
    assert again.get("p", "2", "k") is None
    assert not again.is_over
    assert foreign_rows.Rows(file, minutes=1e-9).is_over
    assert foreign_rows.Rows(file, again=True).get("p", "1", "k") is None
    monkeypatch.setattr(foreign_rows, "product", lambda: "other sources")
    assert foreign_rows.Rows(file).get("p", "1", "k") is None


JAX_PYTHON = ROOT / ".foreign/jax/bin/python"


@pytest.mark.skipif(not JAX_PYTHON.exists(), reason="make foreign has not installed JAX")
def test_jax_runs():
    """A kernel of XLA's Triton and one of Mosaic GPU's: neither is edited."""
    from foreign import RIGHT
    from foreign_jax import run

    names = ["softmax", "hopper_mixed_type_matmul"]
    found = run(JAX_PYTHON, names, "sm_90", "eager", strict=True, mended=False)
    assert [each[:2] for each in found] == [(name, RIGHT) for name in names]


def test_the_page_has_every_kernel():
    pytest.importorskip("triton")
    from foreign import RIGHT, THEIRS, kept, not_run, page
    from foreign_cases import PROJECTS

    written = (ROOT / "docs/reference/foreign.md").read_text(encoding="utf-8")
    for name in not_run(PROJECTS, kept(written)):
        assert name in written
    row = {"project": "p", "version": "1", "kernel": "k", "arch": "sm_90", "verdict": RIGHT,
           "strict": RIGHT, "launches": 3, "alarms": ["a"], "seconds": 1.0}  # fmt: skip
    wrong = {**row, "kernel": "l", "verdict": "wrong by 1|2", "alarms": []}
    rows = [
        row,
        {**row, "arch": "sm_100"},
        wrong,
        {**wrong, "kernel": "m", "verdict": f"{THEIRS}: Deadlock"},
    ]
    changes = [(name, each) for project in PROJECTS for name, each in project.mended.items()]
    made = page(rows, changes)
    assert page(kept(made).values(), changes) == made
    assert "0 errors. Not run yet: p's k (sm_90).\n" in page([wrong], changes, ["p's k (sm_90)"])
    assert "2 of 4 rows are right, 2 of them in strict mode, too; 1 stop at a fault of" in made
    assert "in `flash_attn/cute/flash_bwd_sm100.py` |" in made
    assert "the passes found 2 errors" in made
    assert "wrong by 1\\|2" in made
