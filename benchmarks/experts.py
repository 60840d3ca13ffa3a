"""Products with scales by blocks, of groups, and gated, beside PyTorch's and DeepGEMM's (sm_90).

    python -m benchmarks.experts [--json FILE] [--rounds N] [--seed N]
        [--only blocks|groups|decode|gated]

Device time: CUDA graphs of all sides, replayed in turn; the median of the rounds counts. DeepGEMM
is a side where it can be imported. "error" is ours, of some rows against float64, over the norm of
these. With a seed, sizes are drawn; else they are the table below.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

import triton_ext
from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext.ops import plans
from triton_ext.ops.quantize import quantize_1x128, quantize_128x128
from triton_ext.ops.replay import graph_of, launches_in_graph, replayed_seconds, warm_up

SHAPES = [
    (4096, 4096, 7168), (4096, 7168, 16384), (4096, 24576, 1536), (4096, 32768, 512),
    (128, 4096, 7168), (64, 2112, 7168), (8, 7168, 2048), (1, 7168, 2048),
]  # fmt: skip
"""Sizes (M, N, K) of the issue's table, and of decoding."""
GROUPS = [
    (4, 8192, 4096, 7168), (4, 8192, 7168, 2048), (8, 4096, 4096, 7168), (32, 256, 4096, 7168)
]  # fmt: skip
"""Groups, about how many rows each has, N and K."""
GATED = [
    (8192, 14336, 4096), (4096, 8192, 2048), (4096, 24576, 8192), (2048, 5632, 2048),
    (512, 14336, 4096), (64, 14336, 4096), (1, 14336, 4096),
]  # fmt: skip
"""Sizes (M, F, K) of models: F columns of C, 2 F of the weights."""
DECODED = [(128, 64, 2048, 1024), (128, 4, 2048, 1024), (64, 8, 4096, 2048)]
SAMPLE = 64
"""Rows of which the result is checked."""

Launch = Callable[[int], Any]


class Case(NamedTuple):
    """A product, made in several ways.

    Attributes:
        title: what it is.
        m, n, k, groups: its size; m of all groups.
        sides: how each side launches it.
        error: ours.
        moved: bytes that cross the memory once.
        kernel: ours.
    """

    title: str
    m: int
    n: int
    k: int
    groups: int
    sides: Mapping[str, Launch]
    error: float
    moved: float
    kernel: str = ""


def _deep_gemm() -> Any:
    try:
        import deep_gemm  # type: ignore[import-not-found, unused-ignore]
    except Exception:
        return None
    return deep_gemm


def tried(sides: dict[str, Launch], name: str, launch: Callable[[], Any]) -> None:
    """Add a side, if it can be launched; else say why not."""
    try:
        launch()
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:120]}")
        return
    sides[name] = lambda _: launch()


def kernel_of(sides: dict[str, Launch], ours: Callable[[], Any]) -> str:
    """Add our side; the kernel that it launches."""
    tried(sides, "ours", ours)
    return str(list(plans._plans.values())[-1].launch.config)


def _wide(stored: torch.Tensor, scales: torch.Tensor, rows: int) -> torch.Tensor:
    """The values of a quantized matrix (rows, K), in float64."""
    each = scales.repeat_interleave(rows, 0)[: len(stored)].repeat_interleave(128, 1)
    return stored.double() * each[:, : stored.shape[1]].double()


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How far a result is from what it should be, over the norm of that."""
    return float((found.double() - expected).norm() / expected.norm())


def blocks(m: int, n: int, k: int) -> Case:
    """e4m3 with scales of 1x128 and of 128x128."""
    x, w = (torch.randn(rows, k, device="cuda").bfloat16() for rows in (m, n))
    a, sa = quantize_1x128(x)
    b, sb = quantize_128x128(w)
    columns = sa.t().contiguous().t()  # as torch and DeepGEMM have them
    sides: dict[str, Launch] = {}
    ours = partial(triton_ext.scaled_mm, a, b.t(), columns, sb.t())
    kernel = kernel_of(sides, ours)
    one = torch.ones((), device="cuda")
    tried(sides, "one scale", partial(
        triton_ext.scaled_mm, a, b.t(), one, one, use_fast_accum=False))  # fmt: skip
    kind: Any = getattr(functional, "ScalingType", None)
    scaled_mm: Any = getattr(functional, "scaled_mm", None)
    if kind is not None:
        tried(sides, "torch", lambda: scaled_mm(
            a, b.t(), columns, kind.BlockWise1x128, sb.t(), kind.BlockWise128x128))  # fmt: skip
    if "torch" not in sides:
        tried(sides, "torch", lambda: torch._scaled_mm(
            a, b.t(), scale_a=columns, scale_b=sb.t(), out_dtype=torch.bfloat16))  # fmt: skip
    deep_gemm, out = _deep_gemm(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    if deep_gemm is not None:
        aligned = deep_gemm.get_mn_major_tma_aligned_tensor(sa)
        tried(sides, "DeepGEMM", lambda: deep_gemm.fp8_gemm_nt((a, aligned), (b, sb), out))
    some = torch.randperm(m, device="cuda")[:SAMPLE]
    expected = _wide(a[some], sa[some], 1) @ _wide(b, sb, 128).t()
    return Case("1x128, 128x128", m, n, k, 1, sides, error_of(ours()[some], expected),
                m * k + n * k + 2 * m * n, kernel)  # fmt: skip


def _lengths(groups: int, rows: int, seed: int, step: int = 128) -> list[int]:
    """Lengths of groups about `rows`, which DeepGEMM wants to be multiples of 128."""
    drawn = random.Random(seed)
    return [
        max(1, round(drawn.uniform(0.7, 1.3) * rows / step)) * step if rows >= step else
        drawn.randint(max(1, rows // 2), rows) for _ in range(groups)
    ]  # fmt: skip


class _Grouped(NamedTuple):
    """Operands of grouped products."""

    x: torch.Tensor
    w: torch.Tensor
    offs: torch.Tensor
    which: torch.Tensor


def _operands(groups: int, rows: int, n: int, k: int, seed: int) -> _Grouped:
    lengths = torch.tensor(_lengths(groups, rows, seed), device="cuda")
    offs = lengths.cumsum(0).int()
    m = int(offs[-1])
    x = torch.randn(m, k, device="cuda").bfloat16()
    w = torch.randn(groups, n, k, device="cuda").bfloat16()
    which = torch.repeat_interleave(torch.arange(groups, device="cuda"), lengths).int()
    return _Grouped(x, w, offs, which)


def grouped(groups: int, rows: int, n: int, k: int, seed: int = 0) -> Case:
    """bf16: rows of A in groups."""
    x, w, offs, which = _operands(groups, rows, n, k, seed)
    m = len(x)
    sides: dict[str, Launch] = {}
    ours = partial(triton_ext.grouped_mm, x, w.mT, offs)
    kernel = kernel_of(sides, ours)
    theirs: Any = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    tried(sides, "torch", lambda: theirs(x, w.mT, offs=offs))
    ends = [0, *offs.tolist()]
    pairs = list(enumerate(itertools.pairwise(ends)))
    tried(sides, "one by one", lambda: [
        triton_ext.matmul(x[first:end], w[g].t()) for g, (first, end) in pairs])  # fmt: skip
    deep_gemm, out = _deep_gemm(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    if deep_gemm is not None and rows >= 128:
        tried(sides, "DeepGEMM", lambda: deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
            x, w, out, which))  # fmt: skip
    some = torch.randperm(m, device="cuda")[:SAMPLE]
    expected = torch.stack([w[which[i]].double() @ x[i].double() for i in some])
    moved = 2.0 * (m * k + groups * n * k + m * n)
    return Case("bf16", m, n, k, groups, sides, error_of(ours()[some], expected), moved, kernel)


def grouped_blocks(groups: int, rows: int, n: int, k: int, seed: int = 0) -> Case:
    """e4m3 with scales of blocks: rows of A in groups."""
    x, w, offs, which = _operands(groups, rows, n, k, seed)
    m = len(x)
    a, sa = quantize_1x128(x)
    b, sb = quantize_128x128(w.flatten(0, 1)) if n % 128 == 0 else (None, None)
    assert b is not None
    assert sb is not None
    b, sb = b.view(w.shape), sb.view(groups, n // 128, -1)
    columns = sa.t().contiguous().t()
    sides: dict[str, Launch] = {}
    ours = partial(triton_ext.scaled_grouped_mm, a, b.mT, columns, sb.mT, offs)
    kernel = kernel_of(sides, ours)
    each_row = torch.ones(m, device="cuda"), torch.ones(groups, n, device="cuda")
    tried(sides, "torch", lambda: torch._scaled_grouped_mm(
        a, b.mT, each_row[0], each_row[1], offs=offs, out_dtype=torch.bfloat16))  # fmt: skip
    tried(sides, "rows", partial(triton_ext.scaled_grouped_mm, a, b.mT, *each_row, offs))
    deep_gemm, out = _deep_gemm(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    if deep_gemm is not None and rows >= 128:
        aligned = deep_gemm.get_mn_major_tma_aligned_tensor(sa)
        tried(sides, "DeepGEMM", lambda: deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
            (a, aligned), (b, sb), out, which))  # fmt: skip
    some = torch.randperm(m, device="cuda")[:SAMPLE]
    expected = torch.stack([
        _wide(b[which[i]], sb[which[i]], 128) @ _wide(a[i : i + 1], sa[i : i + 1], 1)[0]
        for i in some
    ])  # fmt: skip
    moved = 1.0 * (m * k + groups * n * k + 2 * m * n)
    return Case(
        "e4m3, blocks", m, n, k, groups, sides, error_of(ours()[some], expected), moved, kernel
    )


def weights(groups: int, rows: int, n: int, k: int, seed: int = 0) -> Case:
    """bf16: the gradient of the weights, whose K is in groups."""
    x, _, offs, which = _operands(groups, rows, n, k, seed)
    grad = torch.randn(len(x), n, device="cuda").bfloat16()
    sides: dict[str, Launch] = {}
    ours = partial(triton_ext.grouped_mm, x.t(), grad, offs)
    kernel = kernel_of(sides, ours)
    theirs: Any = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    tried(sides, "torch", lambda: theirs(x.t(), grad, offs=offs))
    own = which == 0
    expected = x[own, :SAMPLE].double().t() @ grad[own].double()
    moved = 2.0 * (len(x) * (k + n) + groups * n * k)
    error = error_of(ours()[0, :SAMPLE], expected)
    return Case("bf16, weights", len(x), n, k, groups, sides, error, moved, kernel)


def _composite(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return _pointwise(functional.linear(x, w))


def _pointwise(sums: torch.Tensor) -> torch.Tensor:
    gate, up = sums.chunk(2, -1)
    return functional.silu(gate) * up


def gated(m: int, f: int, k: int) -> Case:
    """bf16, swiglu of (M, K) and weights (2 F, K), of gate and up one after the other. "torch" is
    ``torch.compile`` of it: cuBLAS and a pointwise kernel; "two" our product and that kernel, and
    "product" cuBLAS's product alone.
    """
    x = torch.randn(m, k, device="cuda").bfloat16()
    w = (torch.randn(2 * f, k, device="cuda") * k**-0.5).bfloat16()
    sides: dict[str, Launch] = {}
    ours = partial(triton_ext.linear, x, w, activation="swiglu")
    kernel = kernel_of(sides, ours)
    compiled, activate = (torch.compile(each, dynamic=False) for each in (_composite, _pointwise))
    tried(sides, "torch", lambda: compiled(x, w))
    tried(sides, "two", lambda: activate(triton_ext.linear(x, w)))
    tried(sides, "product", lambda: functional.linear(x, w))
    some = torch.randperm(m, device="cuda")[:SAMPLE]
    expected = _composite(x[some].double(), w.double())
    moved = 2.0 * (m * k + 2 * f * k + m * f)
    return Case("swiglu", m, 2 * f, k, 1, sides, error_of(ours()[some], expected), moved, kernel)


def timed(case: Case, rounds: int) -> dict[str, float]:
    """The median seconds of each side."""
    estimate = 2.0 * case.m * case.n * case.k / 500e12 + case.moved / 3e12 + 3e-6
    count = launches_in_graph(estimate, 1)
    graphs = {name: graph_of(launch, count) for name, launch in case.sides.items()}
    warm_up(graphs)
    times = replayed_seconds(graphs, rounds)
    return {name: statistics.median(found) / count for name, found in times.items()}


def cases(only: str, seed: int) -> Iterator[Callable[[], Case]]:
    """What is measured."""
    drawn = random.Random(seed)
    shapes, groups, gates = SHAPES, GROUPS, GATED
    if seed:
        shapes = [
            (m, 128 * drawn.randint(8, 128), 128 * drawn.randint(4, 128))
            for m in (4096, 2048, drawn.randint(500, 5000), 128, 32, 4)
        ]
        groups = [
            (count, rows, 128 * drawn.randint(8, 56), 128 * drawn.randint(8, 56))
            for count, rows in ((4, 8192), (8, 2048), (16, 1024), (64, 256))
        ]
        drawn = random.Random(seed)
        gates = [
            (m, 64 * drawn.randint(16, 256), 64 * drawn.randint(least, most))
            for m in (8192, 4096, 2048, drawn.randint(500, 5000))
            for least, most in ((16, 64), (112, 128))
        ] + [(m, 64 * drawn.randint(16, 256), 64 * drawn.randint(16, 64)) for m in (64, 8)]
    if only in ("all", "blocks"):
        yield from (partial(blocks, *shape) for shape in shapes)
    if only in ("all", "groups"):
        for each in groups:
            yield from (partial(make, *each, seed) for make in (grouped, grouped_blocks, weights))
    if only in ("all", "decode"):
        for each in DECODED:
            yield from (partial(make, *each, seed) for make in (grouped, grouped_blocks))
    if only in ("all", "gated"):
        yield from (partial(gated, *shape) for shape in gates)


def measured(rounds: int, only: str, seed: int) -> Iterator[Row]:
    """The rows of the table."""
    for make in cases(only, seed):
        torch.manual_seed(seed)
        case = make()
        seconds = timed(case, rounds)
        flops = 2.0 * case.m * case.n * case.k
        row: Row = {
            "product": case.title, "m": case.m, "n": case.n, "k": case.k, "groups": case.groups,
            "error": case.error, "seconds": seconds, "kernel": case.kernel,
        }  # fmt: skip
        row |= {name: flops / each * 1e-12 for name, each in seconds.items()}
        if "ours" in seconds:
            row["gb"] = case.moved / seconds["ours"] * 1e-9
            row |= {f"to {name}": each / seconds["ours"] for name, each in seconds.items()}
        del case
        torch.cuda.empty_cache()
        yield row


def _others(row: Row) -> str:
    """The sides that have no column."""
    sides = row["seconds"].keys() - {"ours", "torch", "DeepGEMM"}
    return "  " + "; ".join(f"{name} {row[name]:.0f}" for name in sorted(sides))


TABLE = Table(
    ("product", "<16", "product"), ("groups", ">7", "groups"), ("M", ">7", "m"), ("N", ">7", "n"),
    ("K", ">7", "k"), ("ours", ">8.1f", "ours"), ("torch", ">8.1f", "torch"),
    ("DeepGEMM", ">10.1f", "DeepGEMM"), ("/torch", ">8.3f", "to torch"),
    ("/DeepGEMM", ">10.3f", "to DeepGEMM"), ("GB/s", ">7.0f", "gb"), ("error", ">9.1e", "error"),
    ("  others", "<40", _others), ("  kernel", "", "kernel"),
)  # fmt: skip


def main() -> None:
    """The command."""
    harness.main("experts", __doc__, measured, TABLE, "TFLOP/s", rounds=7, only="all", seed=0)


if __name__ == "__main__":
    main()
