"""``triton-ext precompile``: the matmul's kernels, compiled before anyone waits for them."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from triton_ext.commands.common import (
    Parsed,
    Target,
    choices,
    format_option,
    needing_kernels,
    refuse,
    show,
)
from triton_ext.commands.tune import KINDS, OUT_TYPES
from triton_ext.kernels.choice.gpus import MODELS
from triton_ext.kernels.element_types import MAJORS
from triton_ext.kernels.epilogue import ACTIVATIONS
from triton_ext.render.words import counted

SIZES = (512, 1024, 2048, 4096, 8192, 16384)
ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
SMS = {"sm_90": 132, "sm_100": 148}
MOST_ROWS = 1 << 20
_NUMBER = r"[1-9]\d{0,8}"


def _weights(text: str) -> tuple[int, int]:
    found = re.fullmatch(rf"({_NUMBER})x({_NUMBER})", text)
    if found is None:
        raise ValueError
    return int(found[1]), int(found[2])


def _types(text: str) -> tuple[str, ...]:
    if not set(found := tuple(text.split(","))) <= {*KINDS}:
        raise ValueError
    return found


def _rows(text: str) -> tuple[int, ...]:
    """Numbers, and ranges with both of their ends and maybe a step."""
    rows: dict[int, None] = {}
    for part in text.split(","):
        found = re.fullmatch(rf"({_NUMBER})(?:-({_NUMBER})(?::({_NUMBER}))?)?", part)
        if found is None:
            raise ValueError
        first, last, step = found.groups()
        span = range(int(first), int(last or first) + 1, int(step or 1))
        if not span or len(rows) + len(span) > MOST_ROWS:
            raise ValueError
        rows |= dict.fromkeys(span)
    return tuple(rows)


@click.command()
@click.argument(
    "weights", nargs=-1, type=Parsed("NxK", _weights, "size NxK of a weight, such as 6144x4096")
)
@click.option(
    "--arch",
    type=Target(of_kernels=True),
    default="sm_90",
    show_default=True,
    help="sm_90 or sm_100.",
)
@click.option(
    "--types",
    type=Parsed("TYPES", _types, f"list of {', '.join(KINDS)}"),
    default="bf16",
    show_default=True,
    help="Of A and B, separated by commas.",
)
@click.option("--out-type", type=choices(OUT_TYPES), help="Of C, if not as by default.")
@click.option(
    "--rows",
    type=Parsed(
        "M,M-M,...", _rows, "list of positive integers and ranges such as 1-512,512-4096:8"
    ),
    help="The rows of A; 1-8192: each of these numbers, 64-8192:64: each 64th of them."
    f"  [default: {','.join(map(str, ROWS))}]",
)
@click.option(
    "--a-major",
    type=choices(MAJORS),
    help="The contiguous dimension of A (M, K); MN: of its transpose.  [default: K; both of a"
    " fixed set]",
)
@click.option(
    "--b-major",
    type=choices(MAJORS),
    help="Of B (K, N): K in a linear layer, MN in a @ b of contiguous tensors."
    "  [default: the same]",
)
@click.option(
    "--fixed",
    is_flag=True,
    help="The fixed set of kernels, which make all products of these types where"
    " TRITON_EXT_KERNELS is 'fixed'; in place of WEIGHTS.",
)
@click.option("--batched", is_flag=True, help="Those of a fixed set for batches of products.")
@click.option("--bias", is_flag=True, help="With a bias of C's columns.")
@click.option("--activation", type=choices(ACTIVATIONS), help="With an activation.")
@click.option("--residual", is_flag=True, help="With a matrix that is added.")
@click.option(
    "--scales",
    type=choices(["one", "each"]),
    help="With a scale of A and one of B, or one of each row and column: scaled_mm.",
)
@click.option(
    "--no-fast-accum",
    is_flag=True,
    help="Of fp8 on sm_90: accumulation in fp32, as without use_fast_accum.",
)
@click.option(
    "--gpu",
    type=choices(MODELS),
    help="For which GPU of sm_90 kernels are chosen; h100 for others, too.  [default: h200]",
)
@click.option("--sms", type=click.IntRange(1, 1024), help="SMs of the GPU.  [default: 132, or 148]")
@click.option(
    "--out", type=click.Path(file_okay=False), help="A folder, if not Triton's own cache."
)
@click.option("--jobs", type=click.IntRange(1), help="Processes.  [default: one a core]")
@format_option("text", "json")
def precompile(
    weights: tuple[tuple[int, int], ...], arch: str, types: tuple[str, ...], out_type: str | None,
    rows: tuple[int, ...] | None, a_major: Any, b_major: Any, fixed: bool, batched: bool,
    bias: bool, activation: str | None, residual: bool, scales: str | None, no_fast_accum: bool,
    gpu: Any, sms: int | None, out: str | None, jobs: int | None, form: str,
) -> int:  # fmt: skip
    """Compile the kernels that products C (M, N) = A (M, K) @ B (K, N) will ask for.

    Needs no GPU. WEIGHTS are the sizes NxK of B, those of a model's linear layers; without any, a
    grid of sizes. For each of them and each number of rows the cost model chooses a configuration,
    and what is new is compiled into Triton's cache, or into --out, which TRITON_CACHE_DIR names
    where it is used. A program that finds its kernels there compiles nothing; another version of
    Triton, of this project or of ptxas finds none, and compiles as ever.

    \b
    Examples:
      triton-ext precompile 6144x4096 4096x4096 28672x4096 4096x14336
      triton-ext precompile --types e4m3 --out-type bf16 --scales one --out kernels.cache
      triton-ext precompile --types e4m3 --out-type bf16 --scales each --no-fast-accum
      triton-ext precompile 4096x4096 --rows 1,16,64 --bias --activation gelu
      triton-ext precompile 4096x4096 --rows 1-8192
      triton-ext precompile --fixed --types bf16 --b-major K --out kernels.cache
    """
    if fixed:
        given = {"WEIGHTS": bool(weights), "--rows": rows is not None, "--sms": sms is not None,
                 "--gpu": gpu is not None, "--no-fast-accum": no_fast_accum}  # fmt: skip
        refuse(given, "with --fixed, which is for all sizes")
    else:
        refuse({"--batched": batched}, "without --fixed")
    refuse({"--gpu": gpu is not None and arch != "sm_90"}, "but with --arch sm_90")
    with needing_kernels():
        from triton_ext.kernels import precompile as kernels
        from triton_ext.kernels.choice.problem import Problem
        from triton_ext.kernels.epilogue import EpilogueSpec
        from triton_ext.kernels.product import ProductSpec
        from triton_ext.kernels.registers import FP32_TYPES
    in_fp32 = arch == "sm_90" and set(types) <= set(FP32_TYPES)
    refuse({"--no-fast-accum": no_fast_accum and not in_fp32},
           f"but with --arch sm_90 and --types of {', '.join(FP32_TYPES)}")  # fmt: skip
    epilogue = EpilogueSpec(bias, activation, scales, scales, residual=residual)
    number = int(arch[3:])
    configs: list[Any] = []
    problems = [
        Problem(m, n, k, sms or SMS[arch], gpu=gpu or "h200")
        for m, (n, k) in itertools.product(rows or ROWS, weights or itertools.product(SIZES, SIZES))
    ]
    for kind in types:
        if fixed:
            majors = itertools.product(*([each] if each else MAJORS for each in (a_major, b_major)))
            products = [ProductSpec(kind, a, b, out_type, batched) for a, b in majors]
            configs += kernels.fixed_configurations(number, products, epilogue)
        else:
            product = ProductSpec(
                kind, a_major or "K", b_major or "K", out_type, fp32_accumulation=no_fast_accum
            )
            configs += kernels.with_by_threads(number, product, problems, epilogue)
    done: list[kernels.Precompiled] = []
    with click.progressbar(
        kernels.precompile(configs, Path(out) if out else None, jobs),
        len(configs),
        "compiling",
        file=sys.stderr,
    ) as results:
        done.extend(results)
    failed = [each for each in done if each.error]
    found = {
        "arch": arch, "types": list(types),
        "problems": "all" if fixed else len(problems) * len(types),
        "kernels": len(configs), "compiled": sum(not each.was_there for each in done) - len(failed),
        "found": sum(each.was_there for each in done), "folder": out,
        "seconds": sum(each.seconds for each in done),
        "failed": [{"config": described(each.config), "error": each.error} for each in failed],
    }  # fmt: skip
    show(form, json=lambda: found, text=lambda: lines(found))
    return int(bool(failed))


def described(config: Any) -> str:
    """What of a kernel is not as by default."""
    return ", ".join(f"{name} = {value!r}" for name, value in config.fields().items())


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same in words."""
    number = found["problems"]
    problems = "all problems" if number == "all" else counted(number, "problem")
    yield (
        f"{found['arch']}, {', '.join(found['types'])}: {counted(found['kernels'], 'kernel')} for"
        f" {problems}; {found['compiled']} compiled,"
        f" {found['found']} found, {len(found['failed'])} failed"
    )
    for each in found["failed"]:
        yield f"{each['config']}: {each['error']}"
    if found["folder"] and len(found["failed"]) < found["kernels"]:
        yield f"to use them: TRITON_CACHE_DIR={found['folder']}"
