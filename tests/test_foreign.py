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
    rows = [(PROGRAMS[0], row), (mended, {**row, "hardware": late, "strict": late, "mended": True})]
    made = part(rows, PROGRAMS[1:3])
    assert f"Not run yet: {PROGRAMS[1].kernel}, {PROGRAMS[2].kernel}." in made
    assert "1 of 2 kernels are right as published, 1 of them with `--strict`" in made
    assert "| SynchronizationFault (lazy), theirs |" in made
    assert "| SynchronizationFault: shared address is read; no barrier |" in made


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
    made = part([("sm_90", "softmax", row), ("sm_100", name, broken)])
    assert "1 of 2 rows are right as published, 1 of them with `--strict`" in made
    assert "1 stop at a fault of their own" in made
    assert "| softmax | sm_90 | right | last-store | right | 2.5 |" in made
    assert "| SynchronizationFault (lazy), theirs |" in made
    assert "| SynchronizationFault: shared address is written; late | `thread_axis" in made


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
    from foreign import RIGHT, kept, page
    from foreign_cases import PROJECTS

    written = (ROOT / "docs/reference/foreign.md").read_text(encoding="utf-8")
    for project in PROJECTS:
        for name in project.cases:
            assert f"| {project.package} |" in written
            assert f"| {name} | sm_90 |" in written
    row = {"project": "p", "version": "1", "kernel": "k", "arch": "sm_90", "verdict": RIGHT,
           "strict": RIGHT, "launches": 3, "alarms": ["a"], "seconds": 1.0}  # fmt: skip
    rows = [row, {**row, "kernel": "l", "verdict": "wrong by 1|2", "alarms": []}]
    made = page(rows)
    assert page(kept(made).values()) == made
    assert "1 of 2 rows are right, 1 of them in strict mode, too" in made
    assert "the passes found 1 errors" in made
    assert "wrong by 1\\|2" in made
