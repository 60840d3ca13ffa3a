"""The frame of the compiler passes: notation, keys, Triton's hook and cache, errors, threads."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from sites import ROOT, SUPPORT, triton_sites

triton = pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from triton_ext import LayoutError, passes  # noqa: E402
from triton_ext.passes import Diagnostic, Outcome, PassError, compiler_pass  # noqa: E402

EXACT_COLUMNS = not triton.__version__.startswith("3.7")
"""Triton 3.7 gives a call the column of its last argument."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Triton's cache, empty; and no registered passes or hooks left behind."""
    from triton_ext.passes.frame import base, lookup

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    lookup.all_passes()  # whose modules register them once, in the registry of that moment
    with patch.dict(base.registered):
        yield
    assert knobs.runtime.add_stages_inspection_hook is None
    assert knobs.compilation.listener is None


@triton.jit
def product(a, b, c, N: tl.constexpr):
    r = tl.arange(0, N)
    x = tl.load(a + r[:, None] * N + r[None, :])
    y = tl.load(b + r[:, None] * N + r[None, :])
    tl.store(c + r[:, None] * N + r[None, :], tl.dot(x, y))


def compiled(arch=90, kernel=product):
    """The kernel, compiled without a GPU."""
    names = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "N": "constexpr"}
    source = ASTSource(fn=kernel, signature=names, constexprs={"N": 64})
    options = {"enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def counting(name="count", after="ttgir", **more):
    """A pass that counts its runs, and reports the number of products."""
    runs = []

    @compiler_pass(name, after=after, **more)
    def count(compilation, options):
        """Counts products."""
        runs.append((compilation, options))
        found = [op for op in compilation.ttgir.operations if op.name == "ttng.warp_group_dot"]
        return Outcome(report=len(found))

    return runs


def replacing(name, after, old, new):
    """A pass that changes the text of a module."""

    @compiler_pass(name, after=after)
    def replace(compilation, options):
        """Replaces text."""
        assert old in compilation.text
        return Outcome(text=compilation.text.replace(old, new))


def complaining(name="complain", severity="error"):
    @compiler_pass(name, after="ttgir")
    def complain(compilation, options):
        """Complains of each product."""
        return Outcome(
            diagnostics=[
                Diagnostic(severity, "a product", "add instead", operation.location)
                for operation in compilation.ttgir.operations
                if operation.name == "ttng.warp_group_dot"
            ]
        )


# ------------------------------------------------------------------------------------- notation


@dataclass(frozen=True)
class Options:
    depth: int = 1
    name: str = "x"
    loud: bool = False


def test_notation():
    counting(options=Options)
    counting("other")
    found = passes.parse_passes(" count{depth=3 loud=true name=a.b}, other,")
    assert [each.name for each in found] == ["count", "other"]
    assert found[0].options == Options(3, "a.b", True)
    assert str(passes.Pipeline(found)) == "count{depth=3 name=a.b loud=True},other"
    assert passes.parse_passes(str(passes.Pipeline(found))) == found
    assert passes.parse_passes("") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("count{depht=3}", "its options are depth, name, loud"),
        ("count{depth}", "option=value"),
        ("count{depth=deep}", "must be of type int"),
        ("count{loud=1}", "must be of type bool"),
        ("other{x=1}", "it has no options"),
        ("cuont", "no such pass; there are"),
        ("count{depth=1", "must be names"),
        ("count other", "must be names"),
        ("{}", "must be names"),
    ],
)
def test_wrong_notation(text, words):
    counting(options=Options)
    counting("other")
    with pytest.raises(LayoutError, match=words.replace("{", r"\{")):
        passes.parse_passes(text)


def test_wrong_passes():
    with pytest.raises(LayoutError, match="a name or a pass"), passes.enabled(3):
        pass
    with pytest.raises(LayoutError, match="letters, digits"):
        compiler_pass("a b", after="ttgir")
    with pytest.raises(LayoutError, match="ttgir, llir, ptx"):
        compiler_pass("a", after="cubin")
    with pytest.raises(LayoutError, match="text, json"):
        passes.ReportOptions(format="xml")


def test_a_registered_pass_is_described():
    counting()
    found = passes.get_pass("count")
    assert (found.name, found.description, found.stage) == ("count", "Counts products.", "ttgir")
    assert found in passes.all_passes()


# ------------------------------------------------------------------------------- inside of Triton


def test_a_pass_sees_the_compilation():
    runs = counting(options=Options)
    with passes.enabled("count{depth=2}") as results:
        compiled()
    ((compilation, options),) = runs
    assert options == Options(depth=2)
    assert (compilation.kernel, compilation.arch, compilation.stage) == ("product", 90, "ttgir")
    assert compilation.ttgir.attributes["ttg.num-warps"] == 4
    assert compilation.metadata["num_warps"] == 4
    assert [(result.kernel, result.report) for result in results.of("count")] == [("product", 1)]


def test_stages_see_what_came_before():
    seen = {}
    for stage in ("ttgir", "llir", "ptx"):

        @compiler_pass(f"look-{stage}", after=stage)
        def look(compilation, options):
            """Looks."""
            seen[compilation.stage] = dict(compilation.texts)

    with passes.enabled("look-ptx,look-llir", "look-ttgir"):
        kernel = compiled()
    assert set(seen["ttgir"]) == {"ttgir"}
    assert set(seen["llir"]) == {"ttgir", "llir"}
    assert set(seen["ptx"]) == {"ttgir", "llir", "ptx"}
    assert seen["ptx"]["ptx"] == kernel.asm["ptx"]
    assert "define" in seen["llir"]["llir"]


def test_without_passes_nothing_changes():
    plain = compiled().metadata.hash
    with passes.enabled():
        assert compiled().metadata.hash == plain
    runs = counting()
    with passes.enabled("count"):
        assert compiled().metadata.hash != plain
    assert compiled().metadata.hash == plain
    assert len(runs) == 1


def test_the_key(monkeypatch):
    counting(options=Options)

    def key(*names):
        return passes.Pipeline.of(names).key

    assert key() == ""
    assert key("count") == key("count{depth=1}") == key(passes.get_pass("count"))
    before = key("count")
    assert len({before, key("count{depth=2}"), key("count{name=y}")}) == 3
    counting("other")
    assert len({key("count,other"), key("other,count"), key("other"), before}) == 4
    assert key("count") == before
    counting(options=Options, version="another")
    assert key("count") != before
    counting(options=Options)
    assert key("count") == before
    monkeypatch.setattr("triton_ext.passes.frame.pipeline.__version__", "0.0.0")
    assert key("count") != before


def test_a_changed_function_is_another_pass():
    @compiler_pass("edited", after="ttgir")
    def first(compilation, options):
        """One thing."""

    key = passes.Pipeline.of(["edited"]).key

    @compiler_pass("edited", after="ttgir")
    def second(compilation, options):
        """Another thing."""

    assert passes.Pipeline.of(["edited"]).key != key


def test_a_cached_kernel_reports_again(tmp_path, capsys):
    runs = counting()
    complaining("warns", "warning")
    for _ in range(2):
        with passes.enabled("count", "warns") as results, pytest.warns(passes.PassWarning) as seen:
            compiled()
        assert [result.report for result in results.of("count")] == [1]
        assert [str(found.message) for found in seen] == ["a product (help: add instead)"]
        assert seen[0].filename == __file__
        assert json.loads(capsys.readouterr().out) == {"kernel": "product", "count": 1}
        (found,) = results.diagnostics
        source = Path(found.location.file).read_text().splitlines()[found.location.line - 1]
        assert "tl.dot(x, y)" in source
        if EXACT_COLUMNS:
            assert source[found.location.column - 1 :].startswith("tl.dot(x, y)")
    assert len(runs) == 1


def test_what_passes_say_is_kept_with_the_kernel():
    """In its metadata, as JSON: of each pass that ran, also of one that has nothing to say."""
    counting()
    complaining("warns", "warning")

    @compiler_pass("silent", after="ptx")
    def silent(compilation, options):
        """Says nothing."""

    assert not hasattr(compiled().metadata, "triton_layouts")
    with passes.enabled("count", "warns", "silent") as results, pytest.warns(passes.PassWarning):
        kept = compiled().metadata.triton_layouts
    assert set(kept) == {"count", "warns", "silent"}
    assert kept["count"] == {"report": 1, "diagnostics": []}
    assert kept["silent"] == {"report": None, "diagnostics": []}
    (warning,) = kept["warns"]["diagnostics"]
    assert (warning["severity"], warning["message"]) == ("warning", "a product")
    assert warning["location"]["file"] == __file__
    assert [each.compiler_pass.name for each in results.all] == ["count", "warns"]


def test_a_report_is_the_same_from_the_cache():
    @compiler_pass("pairs", after="ttgir")
    def pairs(compilation, options):
        """Reports what JSON has no word for."""
        return Outcome(report={1: (2, 3)})

    for _ in range(2):
        with passes.enabled("pairs") as results:
            compiled()
        assert [each.report for each in results.all] == [{"1": [2, 3]}]


def test_a_report_that_is_no_json():
    @compiler_pass("a-lock", after="ttgir")
    def a_lock(compilation, options):
        """Reports what cannot be kept."""
        return Outcome(report=threading.Lock())

    with (
        passes.enabled("a-lock"),
        pytest.raises(passes.PassCompilationError, match="the report of the pass a-lock cannot be"),
    ):
        compiled()


def test_remarks(capsys):
    complaining("remarks", "remark")
    with warnings.catch_warnings(), passes.enabled("remarks") as results:
        warnings.simplefilter("error", passes.PassWarning)
        compiled()
    assert "remark: a product\n" in capsys.readouterr().err
    assert [found.severity for found in results.diagnostics] == ["remark"]


def test_reports_go_to_files(tmp_path, capsys):
    @compiler_pass("to-file", after="ttgir", options=passes.ReportOptions)
    def to_file(compilation, options):
        """Reports."""
        return Outcome(report={"seen": compilation.kernel})

    path = tmp_path / "{kernel}.json"
    for _ in range(2):
        with passes.enabled(f"to-file{{output={path}}}"):
            compiled()
    lines = (tmp_path / "product.json").read_text().splitlines()
    assert [json.loads(line)["to-file"] for line in lines] == [{"seen": "product"}] * 2
    with passes.enabled("to-file{output=none}") as results:
        compiled()
    assert len(results.all) == 1
    assert capsys.readouterr().out == ""


def test_an_error_ends_the_compilation():
    complaining()
    with passes.enabled("complain"):
        for _ in range(2):  # a kernel with an error is not kept
            with pytest.raises(passes.PassCompilationError) as caught:
                compiled()
    assert isinstance(caught.value, PassError)
    assert isinstance(caught.value, triton.errors.TritonError)
    place, line, caret, help_ = str(caught.value).splitlines()[1:]
    assert place.endswith("error: a product")
    assert f"{__file__}:" in place
    assert line.index("tl.dot(x, y)") == caret.index("^") or not EXACT_COLUMNS
    assert help_ == "  help: add instead"
    assert compiled()


def test_a_pass_that_fails():
    @compiler_pass("fails", after="llir")
    def fails(compilation, options):
        """Fails."""
        return [][1]

    @compiler_pass("returns-text", after="llir")
    def returns_text(compilation, options):
        """Returns text."""
        return compilation.text

    with (
        passes.enabled("fails"),
        pytest.raises(PassError, match=r"fails failed on product .*Index"),
    ):
        compiled()
    with passes.enabled("returns-text"), pytest.raises(PassError, match="not an Outcome"):
        compiled()


# -------------------------------------------------------------------------------- changed modules


def test_a_changed_module_is_compiled():
    replacing("ones", "ttgir", "dense<0.000000e+00>", "dense<1.000000e+00>")
    runs = counting()
    plain = compiled()
    with passes.enabled("ones", "count"):
        kernel = compiled()
    assert "dense<1.000000e+00>" in runs[0][0].text  # what the passes behind it see
    assert "dense<1.000000e+00>" in kernel.asm["ttgir"]
    assert "1065353216" in kernel.asm["ptx"] or "0f3F800000" in kernel.asm["ptx"]  # 1.0
    assert "1065353216" not in plain.asm["ptx"]
    assert "0f3F800000" not in plain.asm["ptx"]


def test_the_launch_metadata_follow_the_module():
    pytest.importorskip("triton.experimental.gluon.language")
    from triton_ext.kernels.launch import compile_matmul, kernel_constants
    from triton_ext.kernels.spec import kernel_spec

    config = kernel_spec(90, "fp16", stages=2, a_swizzle=64)
    constants = kernel_constants(config, generated_layouts=False)

    @compiler_pass("wider", after="ttgir")
    def wider(compilation, options):
        """A to 128 bytes: A's encoding is the only one with a swizzle of 64."""
        old, new = "swizzlingByteWidth = 64", "swizzlingByteWidth = 128"
        return Outcome(text=compilation.text.replace(old, new))

    before = [
        meta["swizzle"] for meta in compile_matmul(config, constants).metadata.tensordesc_meta
    ]
    with passes.enabled("wider"):
        changed = compile_matmul(config, constants)
    after = [meta["swizzle"] for meta in changed.metadata.tensordesc_meta]
    assert before == [2, 3, 3]
    assert after == [3, 3, 3]


def test_an_illegal_module_is_refused(capfd):
    replacing("breaks", "ttgir", "ttng.warp_group_dot ", "ttng.warp_group_dto ")
    with passes.enabled("breaks"), pytest.raises(PassError, match="breaks made no legal module"):
        compiled()
    assert "warp_group_dto" in capfd.readouterr().err
    replacing("mistyped", "ttgir", "tensor<64x64xf32", "tensor<64x32xf32")
    with passes.enabled("mistyped"), pytest.raises(PassError, match="mistyped made no legal"):
        compiled()


def test_llir_and_ptx_may_be_changed():
    replacing("ptx-comment", "ptx", ".visible .entry", "// seen\n.visible .entry")
    replacing("llir-comment", "llir", "define", "; seen\ndefine")
    with passes.enabled("ptx-comment", "llir-comment"):
        kernel = compiled()
    assert "// seen" in kernel.asm["ptx"]
    assert "; seen" in kernel.asm["llir"]
    assert len(kernel.asm["cubin"]) > 1000


def test_compiling_ttgir(tmp_path):
    runs = counting()
    counting("later", after="ptx")
    path = tmp_path / "product.ttgir"
    path.write_text(compiled().asm["ttgir"])
    with passes.enabled("count", "later") as results:
        triton.compile(str(path), target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert len(runs) == 1
    assert [result.report for result in results.all] == [1, 1]
    llir = tmp_path / "product.llir"
    llir.write_text(compiled().asm["llir"])


# --------------------------------------------------------------------- nesting, hooks and threads


def test_nested():
    runs, inner = counting(options=Options), counting("inner")
    with passes.enabled("count{depth=1}") as outside:
        with passes.enabled("inner", "count{depth=2}") as inside:
            compiled()
        assert [options for _, options in runs] == [Options(depth=2)]
        assert len(inner) == 1
        compiled()
        assert [options.depth for _, options in runs] == [2, 1]
    assert len(inside.all) == 2
    assert len(outside.all) == 3


def test_the_key_is_computed_once(monkeypatch):
    """Triton asks for it at every launch: as long as the same passes are on, nothing is done."""
    import triton_ext
    from triton_ext.passes.frame import pipeline

    asked = []
    described = dataclasses.asdict
    monkeypatch.setattr(
        pipeline.dataclasses, "asdict", lambda value: asked.append(value) or described(value)
    )
    counting(options=Options)
    with triton_ext.emulate("sm_90", idle=True) as gpu:
        arguments = [torch.zeros(64, 64, dtype=kind) for kind in (torch.float16,) * 2]
        arguments += [torch.zeros(64, 64), 64]
        for times in (1, 2):
            with passes.enabled("count"):
                for _ in range(3):
                    product[(1,)](*arguments, enable_fp_fusion=True)
            assert asked == [Options()] * times
    assert gpu.launches == 6


def test_installed_passes_are_on_everywhere():
    runs = counting(options=Options)
    counting("other")
    passes.install("count{depth=2}")
    try:
        hook = knobs.runtime.add_stages_inspection_hook
        alone = hook()
        with passes.enabled("other"), ThreadPoolExecutor(1) as pool:
            both = hook()
            assert pool.submit(hook).result() == alone
            passes.install("count{depth=3}")
            assert hook() not in (alone, both)
        assert knobs.runtime.add_stages_inspection_hook is hook, "still on"
        assert set(compiled().metadata.triton_layouts) == {"count"}
        assert [options.depth for _, options in runs] == [3]
    finally:
        passes.uninstall()
    assert knobs.runtime.add_stages_inspection_hook is None
    assert not hasattr(compiled().metadata, "triton_layouts")


def test_an_exception_inside():
    counting()
    with pytest.raises(ZeroDivisionError), passes.enabled("count"):
        1 / 0  # noqa: B018
    assert knobs.runtime.add_stages_inspection_hook is None


def test_another_hook():
    calls = []

    def hook(*arguments):
        calls.append(len(arguments))
        return ("theirs", "theirs") if not arguments else None

    counting()
    knobs.runtime.add_stages_inspection_hook = hook
    knobs.compilation.listener = listener = lambda **event: calls.append("listener")
    try:
        with_theirs = compiled().metadata.hash
        assert calls == [0, 5, "listener"]
        calls.clear()
        with passes.enabled("count") as results:
            with_both = compiled().metadata.hash
        assert calls == [0, 5, "listener"]
        assert with_both != with_theirs
        assert len(results.all) == 1
        assert knobs.runtime.add_stages_inspection_hook is hook
        assert knobs.compilation.listener is listener
    finally:
        knobs.runtime.add_stages_inspection_hook = None
        knobs.compilation.listener = None


def test_a_hook_that_replaces_ours():
    runs = counting()

    def replace():
        with passes.enabled("count"):
            knobs.runtime.add_stages_inspection_hook = lambda *a: ("", "") if not a else None
            compiled()

    with pytest.warns(passes.PassWarning, match="was replaced by"):
        replace()
    assert not runs
    knobs.runtime.add_stages_inspection_hook = None


def test_a_hook_around_ours_that_stays():
    """Whatever is put around ours in one block: in the next one, each pass runs once."""
    runs = counting()

    def around(previous):
        def call(*arguments, **event):
            return previous(*arguments, **event)

        return call

    for _ in range(3):
        with passes.enabled("count") as results:
            ours = knobs.runtime.add_stages_inspection_hook, knobs.compilation.listener
            knobs.runtime.add_stages_inspection_hook = around(ours[0])
            knobs.compilation.listener = around(ours[1])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", passes.PassWarning)
                with passes.enabled("count") as inside:
                    alone = compiled().metadata.hash
        assert (len(results.all), len(inside.all)) == (1, 1)
        assert len(runs) == 1  # the same key each time: the kernel comes from the cache
    assert compiled().metadata.hash != alone
    knobs.runtime.add_stages_inspection_hook = knobs.compilation.listener = None


@pytest.mark.parametrize("restores", [False, True])
def test_a_listener_that_replaces_ours(restores):
    """What passes say is not lost."""
    counting()
    for _ in range(2):  # compiled, and from the cache
        with passes.enabled("count") as results:
            ours, knobs.compilation.listener = knobs.compilation.listener, lambda **event: None
            knobs.runtime.add_stages_inspection_hook()  # as a launch does, before it compiles
            compiled()
            if restores:
                knobs.compilation.listener = ours
        assert [result.report for result in results.all] == [1]
        knobs.compilation.listener = None


def test_passes_of_one_factory():
    """What a function closes over, and its defaults, are part of what it is."""

    def finds(number, kind):
        def function(compilation, options, more=number):
            """Reports a number."""
            return Outcome(report=number)

        lock = threading.Lock()
        return {
            "closure": lambda compilation, options: Outcome(report=number),
            "default": lambda compilation, options, found=number: Outcome(report=found),
            "partial": functools.partial(function, more=number),
            "nested": lambda compilation, options: function(compilation, options),
            "alive": lambda compilation, options: Outcome(report=number) if lock else None,
        }[kind]

    def key(number, kind):
        compiler_pass("made", after="ttgir")(finds(number, kind))
        return passes.Pipeline.of(["made"]).key

    for kind in ("closure", "default", "partial", "nested", "alive"):
        assert key(1, kind) != key(2, kind), kind
        assert (key(1, kind) == key(1, kind)) == (kind != "alive")
    seen = []
    for number in (1, 2):
        key(number, "closure")
        with passes.enabled("made") as results:
            compiled()
        seen += [result.report for result in results.all]
    assert seen == [1, 2]


def test_threads():
    counting("one")
    counting("two")
    started = threading.Barrier(3, timeout=60)
    parsing = threading.Lock()  # Python 3.11 cannot parse in two threads at once (SystemError)

    def compile_with(names):
        started.wait()
        with passes.enabled(*names) as results:
            started.wait()  # all are inside now
            with parsing:
                compiled()
            started.wait()
        return [result.compiler_pass.name for result in results.all]

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(compile_with, names) for names in (["one"], ["two"], [])]
        assert [future.result() for future in futures] == [["one"], ["two"], []]


def test_asynchronous_compilation_is_refused():
    counting()
    from triton.runtime._async_compile import AsyncCompileMode

    with (
        ThreadPoolExecutor(1) as pool,
        AsyncCompileMode(pool),
        passes.enabled("count"),
        pytest.raises(passes.PassCompilationError, match="TRITON_EXT_PASSES"),
    ):
        compiled()


def test_other_targets():
    """Passes run for each target that is known, and say that they do not for another one."""
    runs = counting()
    with passes.enabled("count"):
        compiled(120)
    assert len(runs) == 1
    with passes.enabled("count"), pytest.warns(passes.PassWarning, match="know sm_80, .*sm_121"):
        compiled(75)
    assert len(runs) == 1


# ----------------------------------------------------------------------------- the environment

PROGRAM = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import importlib, sys
sys.path.insert(0, sys.argv[1])
kernel = importlib.import_module("environment_kernel").copy
source = ASTSource(fn=kernel, signature={"a": "*fp16", "b": "*fp16"}, constexprs={})
triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": True})
print("compiled")
"""
KERNEL = """
import triton, triton.language as tl

@triton.jit
def copy(a, b):
    tl.store(b, tl.load(a))
"""


def environment_run(tmp_path, passes_, first):
    (tmp_path / "environment_kernel.py").write_text(KERNEL)
    return subprocess.run(
        [sys.executable, "-c", first + PROGRAM, str(tmp_path)],
        env={**os.environ, "TRITON_EXT_PASSES": passes_},
        capture_output=True, text=True,
    )  # fmt: skip


def test_the_environment(tmp_path):
    """By ``import triton_ext``, before and behind ``import triton``; by the wheel's .pth file."""
    sites = tmp_path / "sites"
    sites.mkdir()
    (sites / "x.pth").write_text((ROOT / "triton_ext_startup.pth").read_text())
    for first in (
        "import triton_ext",
        "import triton, triton_ext",
        f"import site; site.addsitedir({str(sites)!r})",
    ):
        run = environment_run(tmp_path, "no-such-pass", first)
        assert run.returncode == 1
        assert "TRITON_EXT_PASSES: pass = 'no-such-pass': no such pass" in run.stderr, first
        run = environment_run(tmp_path, "", first)
        assert (run.returncode, run.stdout) == (0, "compiled\n"), run.stderr


PASS = """
import pathlib
from triton_ext.passes import Outcome, compiler_pass

@compiler_pass("counts", after="ttgir")
def counts(compilation, options):
    with pathlib.Path(__file__).with_name("ran.txt").open("a") as file:
        file.write("ran ")
    return Outcome(report=len(compilation.ttgir.operations))
"""


def test_the_second_process_has_what_passes_said_in_the_first(tmp_path):
    """From Triton's cache: the pass, which is one of a module, runs once."""
    (tmp_path / "their_passes.py").write_text(PASS)
    program = PROGRAM.replace("triton.compile(", "found = triton.compile(")
    program += "import json; print(json.dumps(found.metadata.triton_layouts))"
    (tmp_path / "environment_kernel.py").write_text(KERNEL)
    environment = {
        **os.environ, "TRITON_EXT_PASSES": "their_passes:counts,lint-shared",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    said = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", "import triton_ext" + program, str(tmp_path)],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert run.returncode == 0, run.stderr
        reported, done, kept = run.stdout.splitlines()
        said.append((json.loads(reported), done, json.loads(kept)))
    assert said[0] == said[1]
    report, _, kept = said[0]
    assert report == {"kernel": "copy", "counts": kept["counts"]["report"]}
    assert kept["counts"]["report"] > 2
    assert kept["lint-shared"] == {"report": None, "diagnostics": []}
    assert (tmp_path / "ran.txt").read_text() == "ran "


def test_the_environment_names_a_pass_that_does_not_load(tmp_path):
    (tmp_path / "their_passes.py").write_text("1 / 0")
    run = environment_run(tmp_path, f"{tmp_path}/their_passes.py::counts", "import triton_ext")
    assert run.stderr.count("ZeroDivisionError: division by zero") == 1
    assert "PassCompilationError: the environment variable TRITON_EXT_PASSES: " in run.stderr


LOOK_UPS = {
    "find_spec": "find_spec('triton'); find_spec('triton.language'); import triton",
    "import_module": "importlib.import_module('triton.language')",
    "reload": "import triton; importlib.reload(triton)",
    "resources": "assert importlib.resources.files('triton').joinpath('knobs.py').is_file()",
    "loader": "assert find_spec('triton').loader.get_source('triton'); import triton",
    "pkgutil": "assert list(pkgutil.iter_modules(find_spec('triton').submodule_search_locations))",
    "torch": "import torch; torch.cuda._register_triton_kernels()",
    "finders": "one = sys.meta_path[0]; again = type(one)(one.module, one.then, one.first);"
    " sys.meta_path.insert(0, again); import triton",
    "threads": """
names = ["triton", "triton_ext.passes.frame.hook", "triton", "triton_ext.passes"]
with ThreadPoolExecutor(4) as pool:
    list(pool.map(importlib.import_module, names))
""",
}


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS)
def test_the_environment_survives_other_look_ups(look_up):
    """However a program looks for Triton before it imports it, or imports it."""
    program = f"""
import importlib, importlib.resources, pkgutil, sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
import triton_ext
{look_up}
import triton
triton.knobs.runtime.add_stages_inspection_hook()
"""
    run = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TRITON_EXT_PASSES": "no-such-pass"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert "TRITON_EXT_PASSES: pass = 'no-such-pass': no such pass" in run.stderr, run.stderr


@pytest.mark.parametrize("site", [each for each in triton_sites() if each.values[0] is not None])
def test_other_releases(site):
    """This file, with another release of Triton."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(
        [*command, "--deselect", f"{__file__}::test_other_releases", "-k", "not other_"],
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{SUPPORT}"},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-2000:]


def test_warnings_can_be_errors():
    complaining("warns", "warning")
    with warnings.catch_warnings(), passes.enabled("warns"):
        warnings.simplefilter("error", passes.PassWarning)
        with pytest.raises(passes.PassWarning, match="a product"):
            compiled()
