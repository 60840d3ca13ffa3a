"""Passes of others: by file, by module, by entry point; what cannot be found or loaded."""

from __future__ import annotations

import importlib
import subprocess
import sys
from unittest.mock import patch

import pytest

from triton_ext import LayoutError, passes
from triton_ext.passes import PassError, PassWarning, compiler_pass, get_pass, parse_passes
from triton_ext.passes.frame import base, lookup

CHECKS = '''
"""Two passes and what they need."""
from __future__ import annotations
from dataclasses import dataclass
from triton_ext import passes

LIMIT = 3

@dataclass(frozen=True)
class Options:
    depth: int = 1

def helper():
    return LIMIT

@passes.compiler_pass("no-stores", after="ttgir", options=Options)
def no_stores_at_all(compilation, options):
    """Forbids stores."""
    return passes.Outcome(report=[options.depth, helper()])

@passes.compiler_pass("no-loads", after="ptx")
def no_loads(compilation, options):
    """Forbids loads."""
'''


@pytest.fixture(autouse=True)
def registry(tmp_path, monkeypatch):
    """The passes and modules of before, afterwards; and a folder that Python imports from."""
    lookup.all_passes()  # whose modules register them once, in the registry of that moment
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with patch.dict(base.registered), patch.dict(sys.modules):
        yield


@pytest.fixture
def checks(tmp_path):
    path = tmp_path / "checks.py"
    path.write_text(CHECKS)
    return path


def installed(folder, distribution, entry_points):
    """A distribution with entry points, as pip leaves it."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {value}\n" for name, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[triton_ext.passes]\n{lines}")
    importlib.invalidate_caches()


# ------------------------------------------------------------------------------ files and modules


@pytest.mark.parametrize(
    "reference",
    ["checks.py::no-stores", "checks.py::no_stores_at_all", "./checks.py::no-stores",
     "checks:no-stores", "checks:no_stores_at_all"],
)  # fmt: skip
def test_by_file_and_module(checks, reference):
    found = get_pass(reference)
    assert (found.name, found.stage, found.description) == (
        "no-stores", "ttgir", "Forbids stores.",
    )  # fmt: skip
    assert get_pass(reference) is found


def test_a_file_is_executed_once_and_its_passes_have_names(checks):
    checks.write_text(CHECKS + "print('executed')\n")
    program = (
        "from triton_ext.passes import get_pass\n"
        "one = get_pass('checks.py::no-stores')\n"
        f"assert get_pass({str(checks)!r} + '::no_stores_at_all') is one\n"
        "assert get_pass('no-stores') is one and get_pass('no-loads').stage == 'ptx'\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("executed\n", "")


def test_a_folder_with_blanks_and_a_package(tmp_path, checks):
    package = tmp_path / "my checks" / "deep"
    package.mkdir(parents=True)
    (package / "more.py").write_text(CHECKS)
    assert get_pass("my checks/deep/more.py::no-loads").name == "no-loads"
    (tmp_path / "my checks").rename(tmp_path / "mine")
    assert get_pass("mine.deep.more:no-loads").run.__module__ == "mine.deep.more"


def test_in_a_pipeline(checks):
    found = parse_passes("checks.py::no-stores{depth=2}, lint-shared ,checks:no_loads")
    assert [str(each) for each in found] == ["no-stores{depth=2}", "lint-shared", "no-loads"]
    assert str(passes.Pipeline(found)) == "no-stores{depth=2},lint-shared,no-loads"
    with pytest.raises(LayoutError, match=r"no-stores\.deep = 2: no such option"):
        parse_passes("checks.py::no-stores{deep=2}")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("absent.py::x", "pass = 'absent.py::x': there is no file absent.py"),
        ("checks.py::nothing", "no such pass; there are no-loads, no-stores"),
        ("checks.py::helper", "no such pass; there are"),
        ("checks:nothing", "no such pass; there are no-loads, no-stores"),
        ("json:dumps", "pass = 'json:dumps': it has no pass"),
        ("absent_module:x", "Python finds no module absent_module: install it"),
        ("checks.deeper:x", "Python finds no module checks.deeper"),
        ("checks.py:no-stores", "say file.py::name"),
        ("checks.txt::no-stores", "must be names"),
        ("checks::no-stores", "must be names"),
        (":x", "must be names"),
        ("a b", "must be names"),
    ],
)
def test_what_is_not_there(checks, reference, message):
    with pytest.raises(LayoutError) as caught:
        get_pass(reference)
    assert message in str(caught.value)


@pytest.mark.parametrize("reference", ["checks.py::no-stores", "checks:no-stores"])
def test_what_cannot_be_loaded(checks, reference):
    """The message has the lines of the file, once; a mended file is loaded."""
    checks.write_text(CHECKS + "def wrong():\n    import absent_module\nwrong()\n")
    with pytest.raises(PassError) as caught:
        get_pass(reference)
    told = str(caught.value)
    assert told.count("ModuleNotFoundError: No module named 'absent_module'") == 1
    assert f'File "{checks}"' in told
    assert "in wrong" in told
    assert "frozen" not in told
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    checks.write_text(CHECKS + "# mended, and of another length\n")
    assert get_pass(reference).name == "no-stores"


def test_no_syntax(checks):
    checks.write_text("def f(:\n")
    with pytest.raises(
        PassError, match=r"checks.py(?s:.*)def f\(:(?s:.*)SyntaxError: invalid syntax"
    ):
        get_pass("checks.py::x")


@pytest.mark.parametrize(("old", "new"), [("return LIMIT", "return LIMIT + 1"), ("= 3", "= 4")])
def test_the_key_has_what_the_pass_calls(checks, old, new):
    """A helper beside it, and a constant, are part of what a pass is."""
    before = get_pass("checks.py::no-stores").version
    changed = checks.with_name("changed.py")
    changed.write_text(CHECKS.replace(old, new))
    assert get_pass("changed.py::no-stores").version != before
    changed.with_name("same.py").write_text(CHECKS)
    assert get_pass("same.py::no-stores").version == before


def test_names_of_this_project_are_taken():
    with pytest.raises(LayoutError, match="'lint-shared': is a pass of triton_ext"):

        @compiler_pass("lint-shared", after="ptx")
        def mine(compilation, options):
            """Is not."""


# ----------------------------------------------------------------------------------- entry points


def test_entry_points(tmp_path, checks):
    installed(tmp_path, "their-checks", {"no-stores": "checks:no_stores_at_all"})
    assert "no-stores" in [each.name for each in passes.all_passes()]
    (found,) = parse_passes("no-stores{depth=4}")
    assert (found.compiler_pass.run.__module__, found.options.depth) == ("checks", 4)
    with pytest.raises(LayoutError, match=r"no-such-pass.*no-stores"):
        get_pass("no-such-pass")


def test_entry_points_that_do_not_load(tmp_path, checks):
    """Each is told when it is asked for, and hinders no other."""
    installed(tmp_path, "first", {
        "no-loads": "checks:no_loads", "broken": "absent_module:x", "misnamed": "checks:no_stores",
        "other": "checks:no_stores_at_all", "function": "checks:helper", "twice": "checks:no_loads",
    })  # fmt: skip
    installed(tmp_path, "second", {"twice": "checks:no_stores_at_all", "lint-shared": "checks:x"})
    for name, message in (
        ("broken", "the pass broken of first cannot be loaded: ModuleNotFoundError"),
        ("misnamed", "the pass misnamed of first cannot be loaded: AttributeError"),
        ("other", "the entry point other of first must be a pass of that name"),
        ("function", "the entry point function of first must be a pass of that name"),
        ("twice", "ambiguous: there are checks:no_loads of first and checks:no_stores_at_all of"),
    ):
        with pytest.raises(PassError, match=message):
            get_pass(name)
    with pytest.warns(PassWarning) as seen:
        found = [each.name for each in passes.all_passes()]
    assert len(seen) == 5
    assert "no-loads" in found
    assert not {"broken", "other", "twice"}.intersection(found)
    assert get_pass("lint-shared").run.__module__ == "triton_ext.passes.lint_shared.lint"
