"""First light: what this project claims of a GPU, tried on the one that is there.

    python -m benchmarks.first_light --json FILE [--emulate sm_100] [--only TEXT] [--seconds N]

The claims are products of every type, right and with the emulator's bits; single instructions, the
same PTX there and on the emulator (`tests/support/silicon/replay.py`); the time beside cuBLAS; the
cost model, calibrated; the tests that need this GPU. Each ends as "confirmed", "wrong", "measured"
or "not run", with what was seen, in a file that is written after each: started again, the command
goes on from there. On a GPU each claim is tried in a process of its own, as a kernel that never ran
on silicon may hang the GPU, or leave the process's context unusable.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from triton_ext.commands.common import Seconds, Target, needing_kernels, say

KINDS = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "e4m3": "float8_e4m3fn",
         "e5m2": "float8_e5m2", "int8": "int8"}  # fmt: skip
BLOCK_SCALED = {
    "mxfp8": ("float8_e4m3fn", "float8_e8m0fnu"), "mxfp8_e5m2": ("float8_e5m2", "float8_e8m0fnu"),
    "mxfp4": ("float4_e2m1fn_x2", "float8_e8m0fnu"), "nvfp4": ("float4_e2m1fn_x2", "float8_e4m3fn"),
}  # fmt: skip
"""torch's names of the types of elements, and of scales."""
SHAPES = [(16, 264, 208), (264, 136, 400)]
"""M, N, K (of 4-bit types in pairs): few rows, and tails of all tiles."""
TIMED = (4096, 4096, 4096)
BOUND = {"tf32": 2.0**-9, "e4m3": 2.0**-9, "e5m2": 2.0**-9, "int8": 0.0}
"""How far a product may be from the exact one, in the Frobenius norm, if not by bf16's rounding."""
LIMIT_SECONDS = 1200
"""How long a claim may take."""
DONE = ("confirmed", "measured")
ROOT = Path(__file__).absolute().parents[1]
INSTRUCTIONS = {
    90: ("test_barriers.py", "test_bulk_stores.py", "test_scalar.py"),
    100: ("test_tcgen05.py", "test_barriers.py", "test_bulk_stores.py", "test_scalar.py"),
}
"""Tests in tests/emulator whose launches are repeated on a GPU, by its architecture."""
SURVEY = {90: ("--number", "8", "--seconds", "40"), 100: ("--number", "60", "--seconds", "300")}
"""What `benchmarks.survey` measures for the calibration; of Hopper, whose model is fitted, less."""


@dataclass(frozen=True)
class Place:
    """Where the claims are tried: a GPU, or an emulated one.

    Attributes:
        arch: 90 or 100.
        device: the name of it.
        emulated: whether it is emulated.
    """

    arch: int
    device: str
    emulated: bool

    def described(self) -> dict[str, Any]:
        """What a file's claims hold for."""
        import torch
        import triton

        from triton_ext._version import __version__

        versions = {"triton_ext": __version__, "triton": triton.__version__,
                    "torch": torch.__version__, "python": platform.python_version()}  # fmt: skip
        return {"arch": self.arch, "device": self.device, "emulated": self.emulated, **versions}


@dataclass(frozen=True)
class Finding:
    """How a claim ended: "confirmed", "wrong", "measured" or "not run"; and what was seen."""

    state: str
    seen: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """Something to try.

    Attributes:
        name: unique.
        text: what is claimed.
        check: tries it.
        on_gpu: whether it means nothing on an emulated GPU.
    """

    name: str
    text: str
    check: Callable[[], Finding]
    on_gpu: bool = False


def operands(kind: str, m: int, n: int, k: int, device: str) -> tuple[Any, ...]:
    """A (M, K), B (K, N) and their scales, or None, of random numbers; and A's and B's values."""
    import torch

    generator = torch.Generator().manual_seed(0)
    found = []
    for rows in (m, n):
        element = getattr(torch, BLOCK_SCALED[kind][0] if kind in BLOCK_SCALED else KINDS[kind])
        blocks: Any = None
        if element == torch.float4_e2m1fn_x2:
            stored = torch.randint(256, (rows, k), generator=generator).to(torch.uint8)
            positive = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6]).double()  # OCP MX 1.0, 5.3.3
            codes = torch.stack([stored & 15, stored >> 4], -1).flatten(1).int()
            values, stored = torch.cat([positive, -positive])[codes], stored.view(element)
        else:
            stored = (torch.randn((rows, k), generator=generator) * 3).to(element)
            values = stored.double()
        if kind in BLOCK_SCALED:
            length = 16 if kind == "nvfp4" else 32
            columns = -(-values.shape[1] // (4 * length)) * 4
            size = -(-rows // 128) * 128 * columns
            exponents = torch.randint(-2, 3, (size,), generator=generator)
            blocks = (2.0**exponents).to(getattr(torch, BLOCK_SCALED[kind][1]))
            row, column = torch.arange(rows)[:, None], torch.arange(values.shape[1]) // length
            place = (row // 128 * (columns // 4) + column // 4) * 512
            place = place + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
            values = values * blocks.double()[place]
            blocks = blocks.to(device)
        found.append((stored.to(device), blocks, values))
    (a, scale_a, x), (b, scale_b, y) = found
    return a, b.t(), scale_a, scale_b, x, y.t()


def multiply(kind: str, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    """The product by this project's kernel, in bf16 if it is not exact."""
    import torch

    from triton_ext import ops

    if kind in BLOCK_SCALED:
        return ops.scaled_mm(a, b, scale_a, scale_b)
    torch.set_float32_matmul_precision("high")
    return ops.matmul(a, b, out_dtype=torch.int32 if kind == "int8" else torch.bfloat16)


def check_product(place: Place, kind: str, sizes: tuple[int, int, int]) -> Finding:
    """Whether a product is right; and has the emulator's bits, on a GPU."""
    import torch

    from triton_ext.emulator.host.emulate import emulate

    def made(device: str) -> tuple[Any, Any]:
        with nullcontext() if device == "cuda" else emulate(f"sm_{place.arch}"):
            *arguments, x, y = operands(kind, *sizes, device)
            return multiply(kind, *arguments).cpu(), x @ y

    found, exact = made("cpu" if place.emulated else "cuda")
    error = float((found.double() - exact).norm() / exact.norm())
    bound = BOUND.get(kind, 0.0) + (0.0 if kind == "int8" else 2.0**-8)
    seen = f"relative error {error:.1e}, at most {bound:.1e}"
    if not error <= bound:
        return Finding("wrong", seen)
    if place.emulated:
        return Finding("confirmed", seen)
    others = int((found != made("cpu")[0]).sum())
    seen += f"; {others} of {found.numel()} elements differ from the emulator's"
    return Finding("wrong" if others and torch.isfinite(found).all() else "confirmed", seen)


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of this checkout, tests or benchmarks."""
    paths = [str(ROOT / "tests/support"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a program said at the end."""
    return (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()[-1][-300:]


def check_instructions(place: Place, name: str) -> Finding:
    """Whether what the tests of a file launch does the same there and on the emulator."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        done = run_python(
            "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "silicon.replay",
            "--replay", "lazy" if place.emulated else "gpu", "--replay-target", f"sm_{place.arch}a",
            "--replay-json", str(file), "-m", "not sm90 and not sm100", f"tests/emulator/{name}",
        )  # fmt: skip
        if not file.exists():
            return Finding("wrong", last_line(done))
        found = json.loads(file.read_text())
    same, launches = found["launches"]
    seen = f"{same} of {launches} launches of {len(found['instructions'])} instructions the same"
    if found["different"]:
        seen += f"; not so in {len(found['different'])} tests: {', '.join(found['different'])}"
    if found["refused"]:
        seen += f"; {len(found['refused'])} tests launch what is for another architecture"
    return Finding("wrong" if found["different"] else "confirmed", seen[:600], found)


def check_tests(place: Place, path: Path) -> Finding:
    """Whether the tests of a file that need this GPU pass."""
    several = ("-n", str(min(6, os.cpu_count() or 1))) if importlib.util.find_spec("xdist") else ()
    done = run_python("pytest", "-q", *several, "-m", f"sm{place.arch}", str(path))
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    state = "confirmed" if done.returncode == 0 else "wrong"
    return Finding(state, last_line(done), {"failed": failed[:40]} if failed else {})


def calibrate(place: Place) -> Finding:
    """How far the cost model's times are from measured ones, and the constants that fit them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "survey.json"
        size = (*SURVEY[place.arch], "--random", "31", "--candidates", "10")
        done = run_python("benchmarks.survey", *size, "--json", str(file))
        if done.returncode == 0:
            done = run_python("benchmarks.fit", str(file), "--folds", "0")
    if done.returncode:
        return Finding("wrong", last_line(done))
    *said, constants = done.stdout.strip().split("\n    ", 1)
    fitted = dict(line.strip().split(": float = ") for line in constants.splitlines())
    return Finding("measured", " | ".join(said[0].splitlines()), {"constants": fitted})


def measure(kind: str) -> Finding:
    """The time of a product beside cuBLAS, each replayed as a CUDA graph."""
    import torch
    from triton.testing import do_bench_cudagraph

    a, b, scale_a, scale_b, *_ = operands(kind, *TIMED, "cuda")

    def theirs() -> Any:
        if kind in BLOCK_SCALED or kind in ("e4m3", "e5m2"):
            one = torch.ones((), device="cuda")
            left, right = (one, one) if scale_a is None else (scale_a, scale_b)
            return torch._scaled_mm(a, b, left, right, out_dtype=torch.bfloat16)
        return torch._int_mm(a, b) if kind == "int8" else torch.mm(a, b)

    ours_ms = do_bench_cudagraph(lambda: multiply(kind, a, b, scale_a, scale_b))
    try:
        theirs_ms = do_bench_cudagraph(theirs)
    except (RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]
        return Finding("measured", f"{1e3 * ours_ms:.1f} us; torch has none: {why}")
    ratio = theirs_ms / ours_ms
    seen = f"{1e3 * ours_ms:.1f} us, cuBLAS {1e3 * theirs_ms:.1f} us: {ratio:.2f} of it"
    return Finding("measured", seen)


def claims(place: Place) -> Iterator[Claim]:
    """All claims about a GPU, the surest first."""
    kinds = [*KINDS, *(BLOCK_SCALED if place.arch == 100 else ())]
    for kind, sizes in itertools.product(kinds, SHAPES):
        text = f"{kind} of M, N, K = {sizes} is right, with the emulator's bits"
        check = partial(check_product, place, kind, sizes)
        yield Claim(f"product {kind} {'x'.join(map(str, sizes))}", text, check)
    for file in INSTRUCTIONS[place.arch]:
        text = "the emulator does what the GPU does, bit for bit, rounding included"
        yield Claim(f"instructions {file}", text, partial(check_instructions, place, file))
    for kind in kinds:
        name = f"time {kind} {'x'.join(map(str, TIMED))}"
        yield Claim(name, "none: a time beside cuBLAS", partial(measure, kind), on_gpu=True)
    text = "none: how far off the cost model is, and constants that fit"
    yield Claim("calibration", text, partial(calibrate, place), on_gpu=True)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if f"mark.sm{place.arch}" in path.read_text():
            name = f"tests {path.relative_to(ROOT / 'tests')}"
            check = partial(check_tests, place, path)
            yield Claim(name, "the tests for this GPU pass", check, on_gpu=True)


def tried(place: Place, claim: Claim) -> Finding:
    """How a claim ends, in this process."""
    if claim.on_gpu and place.emulated:
        return Finding("not run", "needs the GPU")
    try:
        return claim.check()
    except Exception as error:  # whatever a kernel does on its first day is what was seen
        return Finding("wrong", f"{type(error).__name__}: {str(error)[-300:]}")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Where a file is read that this command should have written."""
    try:
        yield
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise click.UsageError(f"{file} holds something else; name another file") from None


@dataclass
class Report:
    """The file of findings.

    Attributes:
        file: where it is.
        place: what it is about.
        found: what it holds, as JSON. ``run`` counts the starts of the command; each claim has that
            of its last trial.
    """

    file: Path
    place: Place
    found: dict[str, Any]

    @staticmethod
    def of(file: Path, place: Place) -> Report:
        """A new one, or the one that is there, if it is about the same."""
        described = place.described()
        found: dict[str, Any] = {**described, "verdict": "", "run": 0, "claims": {}}
        if file.exists():
            with reading(file):
                before = json.loads(file.read_text())
                same = all(before[name] == value for name, value in described.items())
                found |= {"run": int(before["run"]), "claims": dict(before["claims"].items())}
                verdict(place, found["claims"])
            if not same:
                text = f"{file} is about another GPU, or other versions; name another"
                raise click.UsageError(text)
        return Report(file, place, found)

    @property
    def claims(self) -> dict[str, dict[str, Any]]:
        """What was found, by the claims' names."""
        claims: dict[str, dict[str, Any]] = self.found["claims"]
        return claims

    def write(self) -> None:
        """Keep it."""
        self.found["verdict"] = verdict(self.place, self.claims)
        whole = self.file.with_suffix(".new")  # a process that is ended leaves the one before
        whole.write_text(json.dumps(self.found, indent=1) + "\n")
        whole.replace(self.file)

    def note(self, claim: Claim, finding: Finding, seconds: float = 0.0) -> None:
        """A claim ended so."""
        self.claims[claim.name] = {
            "claim": claim.text, "state": finding.state, "seen": finding.seen,
            "seconds": round(seconds, 1), "run": self.found["run"],
            **({"detail": finding.detail} if finding.detail else {}),
        }  # fmt: skip
        self.write()

    def start(self, chosen: Sequence[Claim]) -> None:
        """The command is started: what is not done may be tried again."""
        if any(self.claims.get(claim.name, {}).get("state") not in DONE for claim in chosen):
            self.found["run"] += 1
            self.write()

    def pending(self, chosen: Sequence[Claim]) -> list[Claim]:
        """Those that are not done, and were not tried since the command was started."""
        known = ((claim, self.claims.get(claim.name, {})) for claim in chosen)
        return [
            claim
            for claim, entry in known
            if entry.get("state") not in DONE and entry.get("run") != self.found["run"]
        ]


def try_all(report: Report, chosen: Sequence[Claim]) -> None:
    """Try claims in this process."""
    for claim in report.pending(chosen):
        start = time.perf_counter()
        click.echo(f"{claim.name}: ", nl=False)
        finding = tried(report.place, claim)
        seconds = time.perf_counter() - start
        click.echo(f"{finding.state} ({seconds:.1f} s): {finding.seen}")
        report.note(claim, finding, seconds)


def try_in_processes(report: Report, chosen: Sequence[Claim], seconds: float) -> Report:
    """Try each claim in a process of its own, all within so long."""
    deadline = time.monotonic() + seconds
    command = [sys.executable, "-m", "benchmarks.first_light", "--here", "--json"]
    for claim in report.pending(chosen):
        left = deadline - time.monotonic()
        if left <= 0:
            if claim.name not in report.claims:
                report.note(claim, Finding("not run", "there was no time left"))
            continue
        words = [*command, str(report.file.absolute()), "--claim", claim.name]
        process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
        try:
            status = process.wait(min(left, LIMIT_SECONDS))
            finding = Finding("wrong", f"its process ended: {status}")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            finding = Finding("wrong", f"did not end in {LIMIT_SECONDS} s")
            if left < LIMIT_SECONDS:
                finding = Finding("not run", "it was ended: there was no time left")
        report = Report.of(report.file, report.place)
        if report.pending([claim]):
            report.note(claim, finding)
    return report


def verdict(place: Place, found: dict[str, dict[str, Any]]) -> str:
    """All of it in a sentence or two."""
    count = Counter(each["state"] for each in found.values())
    wrong = [name for name, each in found.items() if each["state"] == "wrong"]
    text = f"{place.device}: of {len(found)} claims {count['confirmed']} confirmed, "
    text += f"{len(wrong)} wrong, {count['not run']} not run; {count['measured']} times measured."
    if place.emulated:
        text += " A rehearsal: nothing here is about silicon."
    return text + (f" Wrong: {'; '.join(wrong)}." if wrong else "")


def summarized(found: dict[str, Any]) -> str:
    """A file as Markdown: the verdict, and a line for each claim."""
    lines = [
        f"**{found['verdict']}**",
        "",
        "| claim | | seconds | seen |",
        "| --- | --- | --- | --- |",
    ]
    for name, each in found["claims"].items():
        seen = each["seen"].replace("|", "/").replace("\n", " ")
        lines.append(f"| {name} | {each['state']} | {each['seconds']} | {seen} |")
    return "\n".join(lines)


@click.command("first-light")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="Where the findings are kept, and found again.")  # fmt: skip
@click.option("--emulate", type=Target(), help="Rehearse on an emulated GPU.")
@click.option("--only", default="", metavar="TEXT", help="Claims whose name contains this.")
@click.option("--seconds", type=Seconds(), default=86400.0,
              help="End after so long; the rest is not run.")  # fmt: skip
@click.option("--summary", is_flag=True, help="Print what the file holds, as Markdown.")
@click.option("--claim", "name", hidden=True)
@click.option("--here", is_flag=True, hidden=True)
def first_light(
    file: Path, emulate: str | None, only: str, seconds: float, summary: bool,
    name: str | None, here: bool,
) -> None:  # fmt: skip
    """Try all that is claimed of a GPU on the one that is there (needs Triton, torch)."""
    if summary:
        with reading(file):
            say(summarized(json.loads(file.read_text())))
        return
    with needing_kernels():
        import torch
        import triton  # noqa: F401

        from triton_ext.ops.device import require_gpu
    if emulate is not None:
        place = Place(int(emulate.removeprefix("sm_")), f"an emulated {emulate}", True)
    elif torch.cuda.is_available():
        gpu = require_gpu(torch.device("cuda"))
        place = Place(gpu.arch, torch.cuda.get_device_name(), False)
    else:
        raise click.UsageError("there is no GPU here; --emulate sm_100 (or sm_90) rehearses")
    report = Report.of(file, place)
    chosen = [claim for claim in claims(place) if only in claim.name]
    if here:
        try_all(report, [claim for claim in chosen if claim.name == name])
        return
    report.start(chosen)
    if place.emulated:
        try_all(report, chosen)
    else:
        report = try_in_processes(report, chosen, seconds)
    click.echo(verdict(place, report.claims))
    wrong = any(each["state"] == "wrong" for each in report.claims.values())
    click.get_current_context().exit(int(wrong))


if __name__ == "__main__":
    first_light()
