"""A module on which Triton aborts ends no process: it is tried in a fork."""

from __future__ import annotations

import os
import signal
import time

import pytest

triton = pytest.importorskip("triton")
pytest.importorskip("torch")

from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402
from triton.experimental.gluon._runtime import GluonASTSource  # noqa: E402
from up_to_ptx import compile_to_ptx  # noqa: E402

from triton_ext.layouts.encodings import SharedLinear, parse_encoding  # noqa: E402
from triton_ext.passes import Outcome, PassCompilationError, PassWarning, compiler_pass  # noqa: E402
from triton_ext.passes.frame import base  # noqa: E402
from triton_ext.passes.frame.trial import tried  # noqa: E402


@gluon.jit
def transposed_part(out, LAYOUT: gl.constexpr):
    registers: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    tile = gl.allocate_shared_memory(
        gl.float16, [64, 64], LAYOUT, gl.zeros((64, 64), gl.float16, registers)
    )
    part = tile.slice(32, 32, dim=0).permute((1, 0)).load(registers)
    rows = gl.arange(0, 64, gl.SliceLayout(1, registers))
    columns = gl.arange(0, 32, gl.SliceLayout(0, registers))
    gl.store(out + rows[:, None] * 32 + columns[None, :], part)


SOURCE = GluonASTSource(
    transposed_part,
    {"out": "*fp16", "LAYOUT": "constexpr"},
    {"LAYOUT": gl.SwizzledSharedLayout(8, 1, 8, [1, 0])},
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(base, "registered", {})


def linear_pass(**more):
    """A pass that writes each swizzled encoding as a shared-linear one: the same memory, of a kind
    on which `memdesc_trans` of a part aborts."""

    @compiler_pass("as-linear", after="ttgir", **more)
    def as_linear(compilation, options):
        """Writes swizzled encodings as linear ones."""
        text = compilation.text
        for encoding in set(compilation.ttgir.aliases.values()):
            if "swizzled_shared" in encoding:
                layout = parse_encoding(encoding).to_linear_layout((64, 64))
                text = text.replace(encoding, str(SharedLinear.from_linear_layout(layout, 16)))
        assert text != compilation.text
        return Outcome(text)

    return as_linear


def test_the_process_lives():
    """The pass is told which assertion failed; a change that may be left out is."""
    with pytest.raises(PassCompilationError, match=r"Triton aborts: .*SIGABRT: Assertion `size =="):
        compile_to_ptx(SOURCE, linear_pass(), arch=90)
    plain, _ = compile_to_ptx(SOURCE, arch=90)
    with pytest.warns(PassWarning, match="stays as it was"):
        left, results = compile_to_ptx(SOURCE, linear_pass(is_optional=True), arch=90)
    assert left == plain
    (warning,) = results.diagnostics
    assert warning.severity == "warning"
    assert "transposed_part stays as it was" in warning.message
    assert [result.report for result in results.all] == [None]


def test_how_a_trial_ends():
    """By itself, by an exception, by a signal, or not at all; nothing of it is printed."""
    assert tried(lambda: os.write(2, b"some words\n")).message == ""

    def raises():
        raise ValueError("this")

    assert tried(raises) == tried(raises)
    assert (tried(raises).died, tried(raises).message) == (False, "ValueError: this")
    dead = tried(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    assert (dead.died, dead.message) == (True, "the process ends with SIGSEGV")
    began = time.monotonic()
    assert tried(lambda: time.sleep(60), seconds=0.2).died
    assert time.monotonic() - began < 10
