"""Triton's own tests on the emulated GPUs, unmodified: those of Gluon, and of the `tl` language.

``python tests/support/upstream_suites.py [--triton URL_OR_FOLDER] [--revision R] [--sample N]
[--seed N]`` runs a sample of each suite (``--sample 0``: all of it) on each GPU, and prints a table
and what did not pass. It ends with status 1 if something of that is this project's, and with 0,
and a word, where the tests cannot be had. Run by pytest with ``-p upstream_suites``, this module is
the plugin that does so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sites import ROOT

TRITON = "https://github.com/facebookexperimental/triton.git"
REVISION = "db4666f22c1f8b206584c3f06e3b4a0ff035989e"  # August 2026, the line of 3.8
SUITES = {
    "gluon": ("gluon/test_core.py", "gluon/test_lowerings.py"),
    "tl": ("unit/language/test_*.py",),
}
FOREIGN = re.compile("tlx|autows|amd")
"""Files for languages and compilers that Triton's releases do not have."""
CLASSES = {
    "passed": "passed",
    "no launch": "passed, without a launch",
    "skipped": "skips itself",
    "another Triton": "not the tests' Triton",
    "refused": "refused: not modelled",
    "time-out": "time-out",
    "fault": "a fault is reported",
    "wrong": "another result",
    "error": "an error of ours",
    "aborted": "the process aborts",
}
"""What becomes of a test, and its column in the table."""
OURS = ("fault", "wrong", "error", "aborted")
SETTLED: dict[str, str] = {}
"""Tests that end in one of `OURS`, by a regular expression, and why that is right."""


# ------------------------------------------------------------------------------- the plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite-job", type=json.loads)


def pytest_configure(config: pytest.Config) -> None:
    import triton_ext

    gpu = triton_ext.emulate(config.getoption("--suite-job")["arch"], cuda_on_host=True)
    config.add_cleanup(lambda: gpu.__exit__(None, None, None))
    config.pluginmanager.register(_Runner(config.getoption("--suite-job"), gpu.__enter__()))


class _Runner:
    """Chooses the tests, bounds their time, and notes what becomes of each."""

    def __init__(self, job: dict[str, Any], gpu: Any) -> None:
        self.job, self.gpu = job, gpu
        self.out = open(job["out"], "a", buffering=1)  # noqa: SIM115
        self.began, self.launches = 0.0, 0

    def note(self, **what: Any) -> None:
        self.out.write(json.dumps(what) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.note(collected=len(items))
        for each in items:  # the fork skips what is newer than its own Gluon
            each.own_markers[:] = [
                mark for mark in each.own_markers if "fbtriton" not in mark.kwargs.get("reason", "")
            ]
        done = set(self.job["done"])
        count = self.job["sample"] or len(items)
        items[:] = [each for each in spread(items, self.job["seed"])[:count]
                    if each.nodeid not in done]  # fmt: skip

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.note(file=report.nodeid, said=str(report.longrepr)[-200:])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        import torch

        self.note(started=item.nodeid)
        torch.manual_seed(0)
        self.began, self.launches = time.monotonic(), self.gpu.launches
        signal.signal(signal.SIGALRM, _stop)
        signal.alarm(self.job["limit"])
        try:
            return (yield)
        finally:
            signal.alarm(0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[Any]:
        report = yield
        if call.when == "call" or (call.when == "setup" and not report.passed):
            said, kind = "", "skipped"
            if report.passed:
                kind = "passed" if self.gpu.launches > self.launches else "no launch"
            elif report.failed:
                kind = kind_of(call.excinfo)
                said = " ".join(f"{call.excinfo.type.__name__}: {call.excinfo.value}".split())
            seconds = round(time.monotonic() - self.began, 1)
            self.note(test=item.nodeid, kind=kind, said=said[:400], seconds=seconds)
        return report


def spread(items: list[Any], seed: int) -> list[Any]:
    """Tests in an order by the seed: one of each function, then a second one of each, and so on."""
    shuffled = list(items)
    random.Random(seed).shuffle(shuffled)
    turns: Counter[Any] = Counter()
    turn = {}
    for each in shuffled:
        turn[each] = turns[each.function]
        turns[each.function] += 1
    return sorted(shuffled, key=turn.__getitem__)


class _TimeOut(BaseException):
    """A test takes longer than it may; not to be caught by who expects an exception."""


def _stop(*_: object) -> None:
    raise _TimeOut


def kind_of(failed: Any) -> str:
    """The class of a test's exception, by its type and by where it was raised."""
    from triton_ext.emulator.errors import EmulationError, LaunchError, UnsupportedInstruction

    error = failed.value
    if isinstance(error, _TimeOut):
        return "time-out"
    if isinstance(error, (UnsupportedInstruction, LaunchError)):
        return "refused"
    if isinstance(error, EmulationError):
        return "fault"
    if isinstance(error, (AssertionError, pytest.fail.Exception)):
        return "wrong"
    raised = str(failed.traceback[-1].path)
    return (
        "error"
        if raised.startswith((f"{ROOT}/triton_ext", f"{ROOT}/passes"))
        else ("another Triton")
    )


# ------------------------------------------------------------------------------- the driver


def fetched(source: str, revision: str, folder: Path) -> Path:
    """The tests of a checkout of Triton, or of a git repository; OSError if there are none."""
    if (Path(source) / "python/test").is_dir():
        return Path(source) / "python/test"
    folder.mkdir(parents=True, exist_ok=True)
    for arguments in (
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth=1", "--filter=blob:none", source, revision],
        ["sparse-checkout", "set", "python/test"],
        ["-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    ):
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(done.stderr.strip() or f"git {arguments[0]} fails")
    return folder / "python/test"


def run(tests: Path, suite: str, arch: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of a suite on a GPU; a process that aborts is begun again behind that test."""
    files = [str(path) for pattern in SUITES[suite] for path in sorted(tests.glob(pattern))
             if not FOREIGN.search(path.name)]  # fmt: skip
    out = options.folder / f"{suite}-{arch}.jsonl"
    out.unlink(missing_ok=True)
    found: list[dict[str, Any]] = []
    while True:
        job = {"arch": arch, "sample": options.sample, "seed": options.seed, "out": str(out),
               "limit": options.limit, "done": [each["test"] for each in found]}  # fmt: skip
        environment = {
            **os.environ, "TRITON_DEFAULT_FP_FUSION": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *map(str, options.path)]),
            "TRITON_CACHE_DIR": str(options.folder / "cache"),
        }  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "upstream_suites", "-c", os.devnull,
             f"--rootdir={tests}", "-p", "no:cacheprovider", "-qq", "--tb=no",
             "--continue-on-collection-errors", "--suite-job", json.dumps(job),
             *(["-k", options.only] if options.only else []), *files],
            env=environment, cwd=tests, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        found = [each for each in lines if "test" in each]
        started = [each["started"] for each in lines if "started" in each]
        if ended.returncode in (0, 1, 5):
            return lines
        if not started:
            raise RuntimeError(f"pytest ends with status {ended.returncode}")
        if started[-1] not in job["done"] + [each["test"] for each in found]:
            with out.open("a") as more:
                said = f"status {ended.returncode}"
                record = {"test": started[-1], "kind": "aborted", "said": said, "seconds": 0}
                more.write(json.dumps(record) + "\n")
                found.append(record)


def settled(record: dict[str, Any]) -> str:
    """Why a test may end as it does; "" if it may not."""
    return next((why for name, why in SETTLED.items() if re.search(name, record["test"])), "")


def row(suite: str, arch: str, lines: list[dict[str, Any]]) -> str:
    """A row of the table."""
    tests = [each for each in lines if "test" in each]
    counts = Counter(each["kind"] for each in tests)
    collected = max((each["collected"] for each in lines if "collected" in each), default=0)
    numbers = [collected, len(tests), *(counts[kind] for kind in CLASSES)]
    return f"| {suite} | {arch} | {' | '.join(map(str, numbers))} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triton", default=TRITON, help="a git repository, or a checkout")
    parser.add_argument("--revision", default=REVISION)
    parser.add_argument("--suite", choices=SUITES, nargs="*", default=list(SUITES))
    parser.add_argument("--arch", nargs="*", default=["sm_90", "sm_100"])
    parser.add_argument("--sample", type=int, default=300, help="tests of each; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="an expression of pytest's -k")
    parser.add_argument("--limit", type=int, default=60, help="seconds of a test")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/upstream")
    parser.add_argument("--path", type=Path, nargs="*", default=[], help="for PYTHONPATH")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        tests = fetched(options.triton, options.revision, options.folder / "triton").resolve()
    except OSError as error:
        print(f"skipped: the tests of {options.triton} cannot be had: {error}")
        return 0
    rows, told, bad = [], [], False
    for suite in options.suite:
        for arch in options.arch:
            lines = run(tests, suite, arch, options)
            rows.append(row(suite, arch, lines))
            for each in lines:
                if "file" in each:
                    told.append(f"{arch} {each['file']} is not imported: {each['said']}")
                elif "test" in each and each["kind"] not in list(CLASSES)[:3]:
                    why = settled(each)
                    bad |= each["kind"] in OURS and not why
                    told.append(f"{arch} {each['kind']}: {each['test']}: {why or each['said']}")
    print("\n".join(told))
    print(f"\nseed {options.seed}\n\n| suite | GPU | all | run | {' | '.join(CLASSES.values())} |")
    print("\n".join(["| --- | --- |" + " ---: |" * (len(CLASSES) + 2), *rows]))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
