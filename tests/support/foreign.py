"""The kernels of other projects, as published, on the emulated GPUs: ``make foreign``.

``python tests/support/foreign.py [--projects A B] [--arch sm_90] [--folder .foreign] [--write]``
installs each project of `foreign_cases` into a folder of its own, without what it depends on, and
runs its kernels at small sizes in a process of its own: under three schedules, and in strict mode,
with all passes on, those that rewrite too. A kernel that stops at a fault of its own runs once more
from a copy of the project with that mended. What was run with the same sources of ours, version and
case is not run again (``--again`` does); ``--minutes 10`` leaves the rest for the next time. It
prints a table; ``--write`` writes its rows into ``docs/reference/foreign.md``. It ends with status
1 if a kernel neither comes out right nor stops at a fault that is mended, or a pass finds an error
in one; else with 3 if something is left.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.metadata
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from foreign_rows import UNFINISHED, Rows, add_options, digest
from sites import ROOT

RUNS = (("eager", False), ("lazy", False), ("random", False), ("eager", True))
"""The schedules, and whether what is undefined by the letter is a fault."""
PASSES = (
    "verify-descriptors,lint-shared,report-layouts,check-conversion,widen-swizzle,nvmma-to-linear"
)
PAGE = ROOT / "docs" / "reference" / "foreign.md"
CUDA = "## CUDA C++"
"""The heading of the page's other part, which `foreign_cuda` writes."""
RIGHT = "right"
THEIRS = "stops at a fault of theirs"
EARLIER = "for an earlier Triton"
NEWER = {
    "Block pointers have been removed": "it makes block pointers",
    "zip() argument 2 is longer than argument 1": "it launches without its constants",
}
"""What a kernel that was written for an earlier Triton fails with, and why."""


def install(project: Any, folder: Path) -> None:
    """Install a project without its dependencies, unless it is there."""
    package, needs = project.package, project.needs
    if folder.exists() or importlib.util.find_spec(package) is not None:
        return
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
               "--target", str(folder)]  # fmt: skip
    bare = project.bare or (package,)
    subprocess.run([*command, "--no-deps", "--only-binary=:all:", *bare], check=True)
    if needs:
        subprocess.run([*command, *needs], check=True)


@contextlib.contextmanager
def one_configuration() -> Iterator[None]:
    """Autotuned kernels have their first configuration alone: to try all would only take time."""
    from triton.runtime.autotuner import Autotuner

    make = Autotuner.__init__

    def first(self: Any, fn: Any, names: Any, configs: Any, *more: Any, **others: Any) -> None:
        make(self, fn, names, configs and configs[:1], *more, **others)

    with mock.patch.object(Autotuner, "__init__", first):
        yield


def _error(found: Any, expected: Any) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    if found.shape != expected.shape:
        return float("inf")
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


def _forget_launches() -> None:
    """Empty FlagGems' own cache of launches, which does not work from Triton 3.7 on."""
    for each in gc.get_objects():
        if type(each).__name__ == "LibEntry":
            for cache in each.kernel_cache:
                cache.clear()


def _verdict(run: Any, chosen: dict[str, Any], more: dict[str, Any]) -> tuple[str, str, int]:
    """What becomes of a case: `RIGHT`, or what is wrong; the same in strict mode; the launches.

    Args:
        chosen: the GPU; it also gets the schedule, and is told of launches without Triton.
    """
    counts: list[int] = []
    verdicts = {}
    for strict in (False, True):
        schedules = [schedule for schedule, mode in RUNS if mode == strict]
        verdicts[strict] = _run(run, chosen, {**more, "strict": strict}, schedules, counts)
    return verdicts[False], verdicts[True], sum(counts)


def _run(
    run: Any, chosen: dict[str, Any], more: dict[str, Any], schedules: Sequence[str],
    counts: list[int],
) -> str:  # fmt: skip
    """What becomes of a case under some schedules; `counts` gets the launches."""
    import torch

    import triton_ext

    emulate, launches = triton_ext.emulate, []

    @contextlib.contextmanager
    def scheduled(*_: Any, **options: Any) -> Iterator[Any]:
        with emulate(chosen["arch"], schedule=schedule, seed=1, **{**more, **options}) as gpu:
            yield gpu
            launches.append(gpu.launches)

    for schedule in schedules:
        chosen.update(schedule=schedule, strict=more["strict"], launches=0)
        torch.manual_seed(0)
        _forget_launches()
        try:
            with mock.patch.object(triton_ext, "emulate", scheduled):
                if getattr(run, "func", None):  # it enters the GPU itself
                    list(run())
                else:
                    with scheduled(cuda_on_host=True):
                        for number, (found, expected, most) in enumerate(run()):
                            apart = _error(found, expected)
                            if not apart <= most:
                                return f"wrong by {apart:.1e} ({schedule}, {number})"
        except (Exception, pytest.skip.Exception) as error:
            earlier = [why for text, why in NEWER.items() if text in str(error)]
            if earlier:
                return f"{EARLIER}: {earlier[0]}"
            lines = str(error).splitlines() or [""]
            said = re.sub(
                r"(?<!\S)/\S*/| 0x[0-9a-f]+\b", "", lines[0]
            )  # without the folders of this machine
            return f"{type(error).__name__} ({schedule}): {said}"
        launches.append(chosen["launches"])
    counts += launches
    return RIGHT if sum(launches) else "no kernel was launched"


def mended(project: Any, kernel: str, folder: Path) -> Path:
    """A copy of the package with a kernel's own fault mended, to be imported in its place."""
    change = project.mended[kernel]
    top = change.file.partition("/")[0]
    copy = folder.parent / "mended" / folder.name
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / top, copy / top, copy_function=os.link)  # gigabytes, of some
    text = (folder / change.file).read_text(encoding="utf-8")
    if text.count(change.old) != 1:
        raise ValueError(f"{change.file} must have this once: {change.old!r}")
    (copy / change.file).unlink()
    (copy / change.file).write_text(text.replace(change.old, change.new), encoding="utf-8")
    return copy


def worker(
    package: str, arch: str, folder: Path, kernels: Sequence[str], *, is_mended: bool
) -> None:
    """Run some of a project's cases; a line of JSON each."""
    from bare_packages import bare

    from triton_ext import passes

    sys.path.insert(0, str(folder))
    import foreign_cases

    foreign_cases.CHOSEN["arch"] = arch
    project = next(each for each in foreign_cases.PROJECTS if each.package == package)
    version = version_of(project, folder)
    if is_mended:
        folder = mended(project, kernels[0], folder)
        sys.path.insert(0, str(folder))
    within = (
        bare(folder, project.real, project.values) if project.real else contextlib.nullcontext()
    )
    with within, one_configuration():
        for name in kernels:
            begun = time.monotonic()
            with warnings.catch_warnings(), passes.enabled(PASSES) as results:
                warnings.simplefilter("ignore")
                with contextlib.redirect_stdout(sys.stderr):
                    verdict, strict, launches = _verdict(
                        project.cases[name], foreign_cases.CHOSEN, project.options_of(name)
                    )
            said = [each for result in results.all for each in result.diagnostics]
            alarms = [each.message.splitlines()[0] for each in said if each.severity == "error"]
            print(json.dumps({
                "project": package, "version": version, "arch": arch,
                "kernel": name, "verdict": verdict, "strict": strict, "launches": launches,
                "alarms": alarms, "seconds": round(time.monotonic() - begun, 1),
            }), flush=True)  # fmt: skip


def version_of(project: Any, folder: Path) -> str:
    """The version that is installed."""
    for path in (str(folder), None):
        found = importlib.metadata.distributions(
            name=project.package, **({"path": [path]} if path else {})
        )
        for each in found:
            return each.version
    return ""


def run_project(
    project: Any, arch: str, folder: Path, timeout: float, kernels: Sequence[str],
    *, is_mended: bool = False,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """The results of some of a project's cases, as they come, from a process of its own."""
    own = {name: value.format(folder=folder) for name, value in project.environment}
    environment = {**os.environ, **own, "TRITON_ALWAYS_COMPILE": "1",
                   "TRITON_DEFAULT_FP_FUSION": "1"}  # fmt: skip
    command = [sys.executable, __file__, "--worker", project.package, "--arch", arch, "--folder",
               str(folder), *["--mended"] * is_mended, "--kernels", *kernels]  # fmt: skip
    missing = set(kernels)
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        timer = threading.Timer(timeout, process.kill)
        timer.start()
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith('{"project"'):
                    row = json.loads(line)
                    missing.remove(row["kernel"])
                    yield row
        except GeneratorExit:
            process.kill()
            raise
        finally:
            timer.cancel()
        process.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [""])[-1]
    for name in sorted(missing):
        yield {
            "project": project.package, "version": "", "arch": arch, "kernel": name, "alarms": [],
            "verdict": f"not run: {last[:120]}", "strict": "", "launches": 0, "seconds": 0.0,
        }  # fmt: skip


def table(text: str, *names: str) -> dict[tuple[str, ...], list[str]]:
    """The cells of each row of a page's tables that have columns of these names, by those cells."""
    found, head = {}, [""]
    for line in text.splitlines():
        cells = [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells or set(names) <= set(cells):
            head = cells
        elif set(names) <= set(head) and len(cells) == len(head) and cells[0] != "---":
            found[tuple(cells[head.index(name)] for name in names)] = cells
    return found


def table_row(cells: Iterable[Any]) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def kept(text: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """The rows of a page, by project, kernel and GPU; what the passes said is counted alone."""
    found = {}
    for cells in table(text, "project", "version", "kernel", "GPU").values():
        project, version, kernel, arch, verdict, strict, launches, alarms, seconds = (
            each.replace("\\|", "|") for each in cells
        )
        strict = {"same": verdict, "not run": ""}.get(strict, strict)
        found[project, kernel, arch] = {
            "project": project, "version": version, "kernel": kernel, "arch": arch,
            "verdict": verdict, "strict": strict, "launches": int(launches),
            "alarms": [""] * int(alarms), "seconds": float(seconds),
        }  # fmt: skip
    return found


def page(
    rows: Iterable[dict[str, Any]], changes: Iterable[tuple[str, Any]], left: Sequence[str] = ()
) -> str:
    """The first part of ``docs/reference/foreign.md``.

    Args:
        changes: kernels with a fault of their own, and what mends it.
        left: kernels that have no row.
    """
    rows = list(rows)
    right = sum(row["verdict"] == RIGHT for row in rows)
    earlier = sum(row["verdict"].startswith(EARLIER) for row in rows)
    theirs = sum(row["verdict"].startswith(THEIRS) for row in rows)
    strict = sum(row["verdict"] == row["strict"] == RIGHT for row in rows)
    alarms = sum(len(row["alarms"]) for row in rows)
    lines = [
        "# Kernels of other projects",
        "",
        "This page is generated (`make foreign`). Each row is a kernel, or some, of a project as"
        " its package has it, run on the emulated GPU at small sizes and compared with torch: under"
        " the schedules eager, lazy and random as hardware runs it, and under eager in strict mode"
        f" ([what differs](undefined.md)); with the passes {PASSES.replace(',', ', ')} on."
        " Autotuned kernels have their first configuration alone. Of"
        " fbgemm-gpu-genai, flashinfer-python, sglang, unsloth, unsloth-zoo and vllm the modules"
        " with the kernels are imported alone; what else these"
        " import is a stand-in. TileLang's programs were written for this page; nvcc compiles the"
        " CUDA C++ that it makes of them, which Triton's passes do not see; nor those of"
        " quack-kernels and flash-attn-4, which the CuTe DSL compiles ([whose fault it is](../../"
        "benchmarks/notes/emulator.md#quack-and-flashattention-4)). What torch has is what"
        " Inductor makes for a GPU of its functions; what fbtriton has are the tutorials of TLX, by"
        " the Triton in its wheel.",
        "",
        f"{right} of {len(rows)} rows are right, {strict} of them in strict mode, too; {theirs}"
        f" stop at a fault of their own, and are right without it; {earlier} are for an earlier"
        f" Triton than 3.9; the passes found {alarms} errors."
        + (f" Not run yet: {', '.join(left)}." if left else ""),
        "",
        "| project | version | kernel | GPU | verdict | strict | launches | errors of passes |"
        " seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        verdict, other = (row[name].replace("|", "\\|") for name in ("verdict", "strict"))
        lines.append(
            f"| {row['project']} | {row['version']} | {row['kernel']} | {row['arch']} | {verdict} |"
            f" {'same' if other == verdict else other or 'not run'} | {row['launches']} |"
            f" {len(row['alarms'])} | {row['seconds']} |"
        )
    lines += ["", "| kernel | mended by |", "| --- | --- |"]
    for kernel, change in changes:
        lines.append(f"| {kernel} | {change} |")
    return "\n".join([*lines, ""])


def not_run(projects: Iterable[Any], rows: Container[tuple[str, str, str]]) -> list[str]:
    """The kernels without a row, as the page names them."""
    return [
        f"{project.package}'s {kernel} ({arch})"
        for project in projects
        for arch in project.gpus
        for kernel in project.kernels(arch)
        if (project.package, kernel, arch) not in rows
    ]


def put(heading: str, text: str) -> None:
    """Write a part of the page, from its heading to the next one."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")
    at = rest.find("\n## ")
    PAGE.write_text(f"{before}\n{text}{rest[at:] if at >= 0 else ''}", encoding="utf-8")


@functools.cache
def _cases() -> str:
    """A digest of what says how cases run."""
    names = (
        "foreign_cases", "foreign_serving", "foreign_cute", "foreign_inductor", "foreign_tilelang",
        "foreign_tlx", "tilelang_kernels", "third_party_kernels", "bare_packages",
    )  # fmt: skip
    return digest(Path(__file__).with_name(f"{name}.py") for name in names)


def results(
    project: Any, arch: str, folder: Path, timeout: float, rows: Rows
) -> Iterator[dict[str, Any]]:
    """What becomes of a project's cases; those are left aside for which there is no time."""
    try:
        install(project, folder)
    except subprocess.CalledProcessError as error:
        print(f"{project.package} cannot be installed: {error}", file=sys.stderr)
        return
    version, todo = version_of(project, folder), []
    for kernel in project.kernels(arch):
        row = rows.get(project.package, version, arch, kernel, _cases())
        if row:
            yield row
        else:
            todo.append(kernel)
    if not todo or rows.is_over:
        return
    for row in run_project(project, arch, folder, timeout, todo):
        kernel = row["kernel"]
        if kernel in project.mended and not row["verdict"].startswith(RIGHT):
            (again,) = run_project(project, arch, folder, timeout, [kernel], is_mended=True)
            if again["verdict"] == RIGHT:
                row["verdict"] = f"{THEIRS}: {row['verdict']}"
        if row["version"]:
            rows.put(row, project.package, version, arch, kernel, _cases())
        yield row
        if rows.is_over:
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", nargs="*", default=["sm_90", "sm_100", "sm_120"])
    parser.add_argument("--folder", type=Path, default=ROOT / ".foreign")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for a project")
    add_options(parser)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--kernels", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--mended", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(
            arguments.worker, arguments.arch[0], arguments.folder, arguments.kernels,
            is_mended=arguments.mended,
        )  # fmt: skip
        return 0
    from foreign_cases import PROJECTS

    written = kept(PAGE.read_text(encoding="utf-8"))
    changes = [(name, change) for each in PROJECTS for name, change in each.mended.items()]
    store = Rows(arguments.folder / "rows.jsonl", again=arguments.again, minutes=arguments.minutes)
    wrong = left = False
    chosen = [each for each in PROJECTS if each.package in (arguments.projects or [each.package])]
    for arch, project in itertools.product(arguments.arch, chosen):
        if not project.kernels(arch):
            continue
        # some look for the name by which they know installed code
        folder = (arguments.folder / project.package / "site-packages").resolve()
        number = 0
        for row in results(project, arch, folder, arguments.timeout, store):
            print(f"{row['project']:14} {row['kernel']:28} {arch:7} {row['seconds']:6}"
                  f" {len(row['alarms'])} {row['verdict']}", flush=True)  # fmt: skip
            written[row["project"], row["kernel"], arch] = row
            wrong |= not row["verdict"].startswith((RIGHT, THEIRS, EARLIER)) or bool(row["alarms"])
            number += 1
        left |= number < len(project.kernels(arch))
        if arguments.write:
            _, heading, rest = PAGE.read_text(encoding="utf-8").partition(f"\n{CUDA}\n")
            text = page(written.values(), changes, not_run(PROJECTS, written))
            PAGE.write_text(text + heading + rest, encoding="utf-8")
    return 1 if wrong else UNFINISHED if left else 0


if __name__ == "__main__":
    sys.exit(main())
