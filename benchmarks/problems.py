"""The products that `benchmarks.matmul` measures, their operands, and the classes of shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from triton_ext.kernels.config import Major, MatmulConfig, choose_config

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
LLAMA_8B = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
"""N, K of the projections of Llama-3 8B: q, k and v together; o; gate and up together; down."""
LLAMA_70B = [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)]
CLASSES = ("squares", "M <= 64", "64 < M < 4096", "M >= 4096")
"""The classes of shapes; squares (M = N = K) are in no other."""
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A (M, K), B (K, N) and C (M, N)."""


@dataclass(frozen=True)
class Problem:
    """One row of the table."""

    m: int
    n: int
    k: int
    element_type: str = "bf16"
    a_major: Major = "K"
    b_major: Major = "K"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """A, B and C once; C has 16 bits."""
        size = TYPES[self.element_type].itemsize
        return (self.m + self.n) * self.k * size + 2 * self.m * self.n

    @property
    def out_type(self) -> str | None:
        """The type of C, where it is not that of A and B."""
        return "bf16" if self.element_type == "e4m3" else None

    @property
    def shape_class(self) -> str:
        """One of `CLASSES`."""
        if self.m == self.n == self.k:
            return CLASSES[0]
        return CLASSES[1 if self.m <= 64 else 2 if self.m < 4096 else 3]

    def config(self, multiprocessors: int = 132) -> MatmulConfig:
        """What `triton_ext.matmul` would use."""
        return choose_config(
            90, self.element_type, self.a_major, self.b_major,
            self.m, self.n, self.k, multiprocessors, self.out_type,
        )  # fmt: skip

    def __str__(self) -> str:
        layout = "".join("N" if major == "MN" else "K" for major in (self.a_major, self.b_major))
        return f"{self.m}x{self.n}x{self.k} {self.element_type} {layout}"


def problem_of(row: Mapping[str, Any]) -> Problem:
    """The problem of a row that `benchmarks.matmul` has written."""
    return Problem(row["m"], row["n"], row["k"], row["type"], row["a_major"], row["b_major"])


def problems() -> list[Problem]:
    """The shapes of the table, and for fp8 the larger ones of them."""
    rows = [Problem(s, s, s, b_major="MN") for s in (1024, 2048, 4096, 8192, 16384)]
    rows += [Problem(8192, 8192, k) for k in (512, 1024)]
    rows += [Problem(16384, 512, 4096), Problem(512, 16384, 4096)]
    for m in (1, 16, 64, 512, 4096, 8192):
        rows += [Problem(m, n, k) for n, k in LLAMA_8B + LLAMA_70B]
    rows += [Problem(s, s, s, "fp16", b_major="MN") for s in (2048, 4096, 8192)]
    rows += [Problem(s, s, s, "e4m3") for s in (1024, 2048, 4096, 8192)]
    for m in (16, 64, 512, 4096):
        rows += [Problem(m, n, k, "e4m3") for n, k in LLAMA_8B]
    return list(dict.fromkeys(rows))


def peer_problems() -> list[Problem]:
    """Those for which the peers, which are slow to tune, are measured unless others are named."""
    rows = problems()[:7]
    rows += [Problem(16, 6144, 4096), Problem(64, 4096, 14336), Problem(512, 6144, 4096)]
    rows += [Problem(4096, 6144, 4096), Problem(4096, 4096, 14336), Problem(8192, 10240, 8192)]
    return rows


def inputs(problem: Problem) -> Operands:
    """Random A and B, contiguous along their major dimensions, and C."""
    m, n, k = problem.m, problem.n, problem.k
    dtype = TYPES[problem.element_type]
    a = torch.randn((k, m) if problem.a_major == "MN" else (m, k), device="cuda").to(dtype)
    b = torch.randn((k, n) if problem.b_major == "MN" else (n, k), device="cuda").to(dtype)
    c_type = torch.bfloat16 if problem.element_type == "e4m3" else dtype
    return (
        a.T if problem.a_major == "MN" else a,
        b if problem.b_major == "MN" else b.T,
        torch.empty((m, n), device="cuda", dtype=c_type),
    )
