"""``triton-ext tune``: measure the configurations of a product, and keep the fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from triton_ext.commands.common import choices, format_option, needing_kernels, show
from triton_ext.kernels.element_types import MIXED, operand_types

if TYPE_CHECKING:
    from triton_ext.ops.tuning import Tuning

TYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "tf32": "float32",
    "int8": "int8",
}
KINDS = (*TYPES, *MIXED)
"""The types of A and B together."""
OUT_TYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int32": "int32",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip


def major_option(name: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, type=choices(["K", "MN"]), default="K", show_default=True, help=text)


@click.command()
@click.argument("m", type=click.IntRange(1))
@click.argument("n", type=click.IntRange(1))
@click.argument("k", type=click.IntRange(1))
@click.option(
    "--type", "kind", type=choices(KINDS), default="bf16", show_default=True, help="Of A and B."
)
@click.option("--out-type", type=choices(OUT_TYPES), help="Of C, if not as by default.")
@major_option("--a-major", "The contiguous dimension of A (M, K); MN: of its transpose.")
@major_option("--b-major", "Of B (K, N): K in a linear layer, MN in a @ b of contiguous tensors.")
@click.option(
    "--batch", type=click.IntRange(1), default=1, show_default=True, help="How many products."
)
@click.option(
    "--candidates",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="How many of the cost model's best configurations to measure.",
)
@click.option("--store/--no-store", default=True, help="Keep the fastest for later processes.")
@format_option("text", "json")
def tune(
    m: int, n: int, k: int, kind: str, out_type: str | None, a_major: str, b_major: str, batch: int,
    candidates: int, store: bool, form: str,
) -> None:  # fmt: skip
    """Measure configurations of the matmul C (M, N) = A (M, K) @ B (K, N) on this GPU.

    The fastest is kept in ~/.cache/triton_ext/tuned.json (TRITON_EXT_CACHE_DIR: another folder),
    and triton_ext uses it for products of this type, size and major-ness from then on. torch's own
    product of fp16 or bf16 is measured, too: where it is faster, drop_in leaves it to torch.

    \b
    Examples:
      triton-ext tune 4096 4096 4096
      triton-ext tune 16 28672 8192 --type e4m3 --out-type bf16
      triton-ext tune 128 128 64 --batch 256 --b-major MN --no-store
    """
    with needing_kernels():
        import torch

        from triton_ext.errors import UnsupportedDeviceError
        from triton_ext.ops.tuning import autotune
    if not torch.cuda.is_available():
        raise click.UsageError("this needs a Hopper or Blackwell GPU, and torch sees no GPU here")
    if kind == "tf32":
        torch.set_float32_matmul_precision("high")

    def operand(rows: int, columns: int, transposed: bool, dtype: Any) -> Any:
        shape = (batch, columns, rows) if transposed else (batch, rows, columns)
        made = torch.randn(shape, device="cuda").mul_(20 if kind == "int8" else 1).to(dtype)
        made = made.mT if transposed else made
        return made if batch > 1 else made[0]

    types = [getattr(torch, TYPES[each]) for each in operand_types(kind)]
    a, b = operand(m, k, a_major == "MN", types[0]), operand(k, n, b_major == "K", types[1])
    out_dtype = None if out_type is None else getattr(torch, OUT_TYPES[out_type])
    try:
        found = autotune(a, b, out_dtype=out_dtype, candidates=candidates, store=store)
    except (UnsupportedDeviceError, OSError) as error:
        raise click.UsageError(str(error)) from None
    show(form, json=lambda: as_object(found), text=lambda: table(found))


def as_object(found: Tuning) -> dict[str, Any]:
    """The problem, and the configurations, the fastest first."""
    return {
        "problem": asdict(found.problem),
        "measured": [
            {
                "config": row.config.fields(),
                "predicted_seconds": row.predicted,
                "seconds": row.seconds,
            }
            for row in found.measured
        ],
        "torch_seconds": found.torch_seconds,
        "file": None if found.file is None else str(found.file),
    }


def table(found: Tuning) -> Iterator[str]:
    """A line for each configuration, the fastest first."""
    problem = found.problem
    flops = 2 * problem.batch * problem.m * problem.n * problem.k
    yield (
        f"{problem.gpu}: {problem.m} x {problem.n} x {problem.k}"
        + (f", {problem.batch} of them" if problem.batch > 1 else "")
        + f", {problem.element_type} ({problem.a_major}- and {problem.b_major}-major)"
        f" -> {problem.out_type}"
    )
    yield f"{'measured':>10} {'predicted':>10} {'TFLOP/s':>8}  configuration"
    for row in found.measured:
        yield (
            f"{row.seconds * 1e6:>7.1f} us {row.predicted * 1e6:>7.1f} us"
            f" {flops / row.seconds * 1e-12:>8.0f}  {row.config}"
        )
    if found.torch_seconds is not None:
        yield (
            f"{found.torch_seconds * 1e6:>7.1f} us {'':>10}"
            f" {flops / found.torch_seconds * 1e-12:>8.0f}  torch"
        )
    yield "not kept" if found.file is None else f"the first is kept in {found.file}"
