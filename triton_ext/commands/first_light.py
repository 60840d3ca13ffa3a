"""``triton-ext first-light``: what this project claims of a GPU, tried on the one that is there.

The claims are products of every type, right and with the emulator's bits; the tests that need this
GPU; and the time beside cuBLAS. Each ends as "confirmed", "wrong", "measured" or "not run", with
what was seen, in a file that is written after each: started again, the command goes on from there.
On a GPU each claim has a process of its own, as a kernel that never ran on silicon may hang it, or
leave its context unusable.
"""

from __future__ import annotations

import itertools
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from triton_ext.commands.common import Target, needing_kernels

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
DONE = ("confirmed", "measured")
ROOT = Path(__file__).resolve().parents[2]


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
class Claim:
    """Something to try.

    Attributes:
        name: unique.
        text: what is claimed.
        check: tries it; returns how it ends, and what was seen.
        on_gpu: whether it means nothing on an emulated GPU.
    """

    name: str
    text: str
    check: Callable[[], tuple[str, str]]
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


def check_product(place: Place, kind: str, sizes: tuple[int, int, int]) -> tuple[str, str]:
    """Whether a product is right; and has the emulator's bits, on a GPU."""
    import torch

    from triton_ext.emulator.host.driver import emulate

    def made(device: str) -> tuple[Any, Any]:
        with nullcontext() if device == "cuda" else emulate(f"sm_{place.arch}"):
            *arguments, x, y = operands(kind, *sizes, device)
            return multiply(kind, *arguments).cpu(), x @ y

    found, exact = made("cpu" if place.emulated else "cuda")
    error = float((found.double() - exact).norm() / exact.norm())
    bound = BOUND.get(kind, 0.0) + (0.0 if kind == "int8" else 2.0**-8)
    seen = f"relative error {error:.1e}, at most {bound:.1e}"
    if not error <= bound:
        return "wrong", seen
    if place.emulated:
        return "confirmed", seen
    others = int((found != made("cpu")[0]).sum())
    seen += f"; {others} of {found.numel()} elements differ from the emulator's"
    return ("wrong" if others and torch.isfinite(found).all() else "confirmed"), seen


def check_tests(place: Place, path: Path) -> tuple[str, str]:
    """Whether the tests of a file that need this GPU pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", f"sm{place.arch}", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or [done.stderr[-200:]]
    return ("confirmed" if done.returncode == 0 else "wrong"), lines[-1]


def measure(kind: str) -> tuple[str, str]:
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
    except RuntimeError as error:
        return "measured", f"{1e3 * ours_ms:.1f} us; torch has none: {str(error).splitlines()[0]}"
    ratio = theirs_ms / ours_ms
    return "measured", f"{1e3 * ours_ms:.1f} us, cuBLAS {1e3 * theirs_ms:.1f} us: {ratio:.2f} of it"


def claims(place: Place) -> Iterator[Claim]:
    """All claims about a GPU, the surest first."""
    kinds = [*KINDS, *(BLOCK_SCALED if place.arch == 100 else ())]
    for kind, sizes in itertools.product(kinds, SHAPES):
        text = f"{kind} of M, N, K = {sizes} is right, with the emulator's bits"
        check = partial(check_product, place, kind, sizes)
        yield Claim(f"product {kind} {'x'.join(map(str, sizes))}", text, check)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if f"mark.sm{place.arch}" in path.read_text():
            name, check = (
                f"tests {path.relative_to(ROOT / 'tests')}",
                partial(check_tests, place, path),
            )
            yield Claim(name, "the tests for this GPU pass", check, on_gpu=True)
    for kind in kinds:
        name = f"time {kind} {'x'.join(map(str, TIMED))}"
        yield Claim(name, "none: a time beside cuBLAS", partial(measure, kind), on_gpu=True)


def tried(place: Place, claim: Claim, alone: bool) -> tuple[str, str]:
    """How a claim ends, and what was seen.

    Args:
        alone: whether to try it in this process.
    """
    if claim.on_gpu and place.emulated:
        return "not run", "needs the GPU"
    if alone or place.emulated:
        try:
            return claim.check()
        except Exception as error:  # whatever a kernel does on its first day is what was seen
            return "wrong", f"{type(error).__name__}: {str(error)[-300:]}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.json"
        command = [sys.executable, "-m", "triton_ext", "first-light", "--json", str(file)]
        try:
            done = subprocess.run(
                [*command, "--only", claim.name], capture_output=True, timeout=LIMIT_SECONDS
            )
            one = json.loads(file.read_text())["claims"][claim.name]
            return one["state"], one["seen"]
        except subprocess.TimeoutExpired:
            return "wrong", f"did not end in {LIMIT_SECONDS} s"
        except (OSError, ValueError, KeyError):
            return "wrong", f"its process ended: {done.returncode}, {done.stderr[-300:]!r}"


def verdict(place: Place, found: dict[str, dict[str, Any]]) -> str:
    """All of it in a sentence or two."""
    count = Counter(each["state"] for each in found.values())
    wrong = [name for name, each in found.items() if each["state"] == "wrong"]
    text = f"{place.device}: of {len(found)} claims {count['confirmed']} confirmed, "
    text += f"{len(wrong)} wrong, {count['not run']} not run; {count['measured']} times measured."
    if place.emulated:
        text += " A rehearsal: nothing here is about silicon."
    return text + (f" Wrong: {'; '.join(wrong)}." if wrong else "")


@click.command("first-light")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), required=True,
              help="Where the findings are kept, and found again.")  # fmt: skip
@click.option("--emulate", type=Target(), help="Rehearse on an emulated GPU.")
@click.option("--only", default="", metavar="TEXT", help="Claims whose name contains this.")
def first_light(file: Path, emulate: str | None, only: str) -> int:
    """Try all that is claimed of a GPU on the one that is there (needs Triton, torch)."""
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
    report: dict[str, Any] = {**place.described(), "verdict": "", "claims": {}}
    if file.exists():
        try:
            before = json.loads(file.read_text())
            same = all(before[name] == value for name, value in place.described().items())
            kept = before["claims"].items()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise click.UsageError(f"{file} holds something else; name another file") from None
        if not same:
            raise click.UsageError(f"{file} is about another GPU, or other versions; name another")
        report["claims"] = dict(kept)
    chosen = [claim for claim in claims(place) if only in claim.name]
    for number, claim in enumerate(chosen):
        if report["claims"].get(claim.name, {}).get("state") in DONE:
            continue
        click.echo(f"[{number + 1}/{len(chosen)}] {claim.name}: ", nl=False)
        start = time.perf_counter()
        state, seen = tried(place, claim, bool(only))
        seconds = round(time.perf_counter() - start, 1)
        click.echo(f"{state} ({seconds} s): {seen}")
        report["claims"][claim.name] = {
            "claim": claim.text, "state": state, "seen": seen, "seconds": seconds
        }  # fmt: skip
        report["verdict"] = verdict(place, report["claims"])
        file.write_text(json.dumps(report, indent=1) + "\n")
    click.echo(verdict(place, report["claims"]))
    return int(any(each["state"] == "wrong" for each in report["claims"].values()))
