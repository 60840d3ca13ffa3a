"""Kernels that are compiled ahead are those that a product asks for."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sites import ALL, SUPPORT, triton_sites

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch
from triton import knobs

import triton_ext
from triton_ext.cli import main
from triton_ext.compat import relaxed_barriers
from triton_ext.kernels import compiled_cache
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.kernels.launch import compile_matmul
from triton_ext.kernels.precompile import compile_together, configurations, precompile
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import kernel_spec
from triton_ext.ops import plans

SMALL = Problem(64, 64, 64)


@pytest.mark.parametrize("site", triton_sites() if ALL else [None])
def test_a_product_finds_what_was_compiled_ahead(site):
    """Nothing is compiled, by Triton's own account; more kinds and releases by `make oracle`."""
    told = subprocess.run(
        [sys.executable, str(SUPPORT / "precompile_worker.py"), *(["all"] if ALL else [])],
        env={**os.environ, "PYTHONPATH": str(site or "")},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(told.stdout)
    assert found
    for kernels, launched, were_there in found.values():
        assert 1 <= kernels == launched == were_there


def test_barriers_are_relaxed_for_one_thread_alone():
    """And where nobody else has a hook."""
    text = "barrier.cluster.arrive.aligned;"

    def compiled():
        hook, stages = knobs.runtime.add_stages_inspection_hook, {"ptx": lambda *_: text}
        key, digest = hook()
        hook(None, stages, None, None, 90)
        return bool(key and digest), stages["ptx"](None, None)

    with relaxed_barriers(), ThreadPoolExecutor() as other:
        assert compiled() == (True, "barrier.cluster.arrive.relaxed.aligned;")
        assert other.submit(compiled).result() == (False, text)
        ours = knobs.runtime.add_stages_inspection_hook
        with relaxed_barriers():
            assert knobs.runtime.add_stages_inspection_hook is ours
        assert knobs.runtime.add_stages_inspection_hook is ours
    assert knobs.runtime.add_stages_inspection_hook is None


@pytest.mark.parametrize(
    ("cluster", "is_relaxed"),
    [({"cluster_m": 2}, True), ({"cluster_n": 2}, True), ({"cluster_k": 2}, True), ({}, False)],
)
def test_no_barrier_of_a_cluster_waits_for_memory(cluster, is_relaxed):
    """Neither where its blocks share tiles nor where they divide K; the PTX of a kernel says so."""
    fields = {"block_m": 64, "block_n": 64, "stages": 2, "consumers": 1, **cluster}
    ptx = compile_matmul(kernel_spec(90, "fp16", "K", "K", **fields)).asm["ptx"]
    arrivals = re.findall(r"barrier\.cluster\.arrive\S*", ptx)
    assert set(arrivals) == ({"barrier.cluster.arrive.relaxed.aligned;"} if is_relaxed else set())


def test_configurations_are_those_of_the_problems():
    product = ProductSpec("bf16")
    problems = [Problem(m, 4096, 4096) for m in (1, 2, 4, 16, 4096, 8192)]
    found = configurations(90, product, problems, EpilogueSpec(bias=True))
    assert 2 <= len(found) < len(problems)
    assert all(config.epilogue.bias for config in found)
    assert len({*configurations(90, product, problems), *found}) == 2 * len(found)


@pytest.mark.parametrize(("kind", "m", "n", "k"), [("bf16", 2, 3059, 33), ("fp16", 9, 41, 99)])
def test_by_threads(kind, m, n, k, tmp_path, monkeypatch):
    """What threads load is compiled as its launch would, which finds it."""
    command = ["precompile", f"{n}x{k}", "--rows", f"{m},800", "--types", kind, "--b-major", "MN"]
    done = CliRunner().invoke(main, [*command, "--out", str(tmp_path), "--format", "json"])
    found = json.loads(done.stdout)
    assert (found["version"], found["compiled"]) == (1, 2)
    hits = []
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        knobs.compilation, "listener", lambda *, cache_hit, **_: hits.append(cache_hit)
    )
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
    plans.clear_cache()
    with triton_ext.emulate("sm_90"):
        triton_ext.matmul(a, b)
    assert hits == [True]


def test_what_does_not_compile_is_told(monkeypatch, tmp_path):
    """A cache that cannot be written."""
    (tmp_path / "file").touch()
    config = configurations(90, ProductSpec("fp16"), [SMALL])
    (found,) = precompile(config, tmp_path / "file", jobs=1)
    assert not found.was_there
    assert "Error" in found.error


def test_the_command(tmp_path, monkeypatch):
    def run(*arguments):
        command = ["precompile", *arguments, "--out", str(tmp_path), "--format", "json"]
        return CliRunner().invoke(main, command)

    rows = ("16,17", "16-17,16")
    done = [run("512x512", "--rows", each, "--jobs", "1") for each in rows]
    assert [each.exit_code for each in done] == [0, 0]
    first, second = (json.loads(each.stdout) for each in done)
    assert first["problems"] == second["problems"] == 2
    assert first["kernels"] == first["compiled"] == second["found"] >= 1
    assert second["compiled"] == first["found"] == 0
    run(
        "64x64",
        "--rows",
        "8",
        "--types",
        "e4m3",
        "--out-type",
        "bf16",
        "--scales",
        "one",
        "--residual",
    )
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    product, problem = ProductSpec("e4m3", out_type="bf16"), Problem(8, 64, 64)
    epilogue = EpilogueSpec(a_scales="one", b_scales="one", residual=True)
    (config,) = configurations(90, product, [problem], epilogue)
    assert compiled_cache.find(config) is not None
    run("64x64", "--rows", "8", "--types", "e4m3", "--out-type", "bf16", "--no-fast-accum")
    (config,) = configurations(90, replace(product, fp32_accumulation=True), [problem])
    assert compiled_cache.find(config) is not None
    for arguments in (
        ("512",), ("64x64", "--types", "bf8"), ("64x64", "--no-fast-accum"),
        ("64x64", "--types", "e4m3,bf16", "--no-fast-accum"),
        ("64x64", "--types", "e4m3", "--arch", "sm_100", "--no-fast-accum"),
        ("--fixed", "--types", "e4m3", "--no-fast-accum"),
    ):  # fmt: skip
        assert run(*arguments).exit_code == 2
    for rows in ("0", "8-1", "1-", "1-999999999", "1:2", "1-8:0", "-3", "a"):
        refused = run("64x64", "--rows", rows)
        assert refused.exit_code == 2
        assert "positive integers and ranges" in refused.output


@pytest.fixture(scope="module")
def compiled_ahead(tmp_path_factory):
    """A cache, the configuration that was compiled into it, and Triton's compiled kernel."""
    folder = tmp_path_factory.mktemp("cache")
    (config,) = configurations(90, ProductSpec("fp16"), [SMALL])
    (done,) = precompile([config], folder, jobs=1)
    assert done.error is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder))
        return folder, config, compile_matmul(config)


def test_a_kept_kernel_is_what_was_compiled(compiled_ahead, monkeypatch):
    folder, config, compiled = compiled_ahead
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    found = compiled_cache.find(config)
    assert found.kernel == compiled.asm["cubin"]
    assert found.metadata == compiled.metadata
    assert found.packed_metadata == compiled.packed_metadata
    assert found.src.signature == compiled.src.signature
    others = configurations(90, ProductSpec("bf16"), [SMALL], EpilogueSpec(bias=True))
    assert compiled_cache.find(others[0]) is None


def test_kernels_that_a_process_is_about_to_launch(tmp_path, monkeypatch):
    """They are compiled by another process, at the same time, and found by this one."""
    configs = configurations(90, ProductSpec("fp16"), [SMALL, Problem(2048, 256, 64)])
    assert len(configs) == 2
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    compile_together(configs[:1])
    assert not any(tmp_path.iterdir()), "one kernel is not worth a process"
    compile_together(configs)
    assert None not in map(compiled_cache.find, configs)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("they are there"))
    compile_together(configs)


LOOK = """
from triton.runtime.cache import triton_key
from triton_ext.kernels import compiled_cache, precompile
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import kernel_spec
from triton_ext.ops import plans
(config,) = precompile.configurations(90, ProductSpec("fp16"), [Problem(64, 64, 64)])
print(compiled_cache.find(config).metadata.shared, triton_key.cache_info().misses)
"""


def test_another_process_finds_it_without_the_compiler(compiled_ahead):
    folder, _, compiled = compiled_ahead
    told = subprocess.run(
        [sys.executable, "-c", LOOK], env={**os.environ, "TRITON_CACHE_DIR": str(folder)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.split() == [str(compiled.metadata.shared), "0"]


def damages(folder):
    """What may become of a cache: the file, and what it holds then (None: it is gone)."""
    [entry] = folder.glob("triton_ext/*.kernel")
    [cubin] = folder.glob("*/*.cubin")
    for path in (entry, cubin, cubin.with_suffix(".json")):
        whole = path.read_bytes()
        yield from (
            (path, held) for held in (None, b"", whole[:-9], whole[:40] + b"?" + whole[41:])
        )
    for held in (b"[]", b"{}", b'{"files": {"a.json": 1}}', b'{"files": 7}', b"\xff"):
        yield entry, held


def test_what_is_damaged_is_not_found(compiled_ahead, monkeypatch):
    folder, config, _ = compiled_ahead
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    for path, held in damages(folder):
        whole = path.read_bytes()
        path.unlink() if held is None else path.write_bytes(held)
        assert compiled_cache.find(config) is None, (path, held)
        path.write_bytes(whole)
    assert compiled_cache.find(config) is not None


def test_other_settings_are_other_kernels(compiled_ahead, monkeypatch):
    folder, config, _ = compiled_ahead
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder))
    with monkeypatch.context() as patch:
        patch.setenv("TRITON_F32_DEFAULT", "ieee")
        assert compiled_cache.find(config) is None
    with monkeypatch.context() as patch:
        patch.setattr(compiled_cache, "_sources", lambda: "another release")
        assert compiled_cache.find(config) is None
    for name in ("always_compile", "disable_line_info"):
        with knobs.compilation.scope():
            setattr(knobs.compilation, name, True)
            assert compiled_cache.find(config) is None
    assert compiled_cache.find(config) is not None


def test_a_bias_of_integers_compiles():
    (config,) = configurations(90, ProductSpec("int8"), [SMALL], EpilogueSpec(bias=True))
    assert compile_matmul(config).asm["cubin"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="processes are found in /proc")
def test_no_process_outlives_a_precompilation_that_is_killed(tmp_path):
    """A pool's processes wait for work that nobody sends any more, unless they watch for that."""

    def alive():
        number = 0
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, group = status.read_text().rpartition(")")[2].split()[:3]
                number += int(group) == process.pid and state != "Z"
        return number

    def becomes(wanted):
        deadline = time.monotonic() + 60
        while not (found := wanted(alive())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    command = [sys.executable, "-m", "triton_ext", "precompile", "--out", tmp_path / "kernels"]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        assert becomes(lambda number: number > 2)  # it, multiprocessing's tracker, and its workers
        process.kill()
        process.wait()
        assert becomes(lambda number: number == 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
