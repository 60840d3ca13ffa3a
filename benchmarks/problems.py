"""The products that `benchmarks.matmul` measures, their operands, and the classes of shapes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from triton_ext.kernels.choice.choose import choose_config
from triton_ext.kernels.choice.gpus import GpuModel
from triton_ext.kernels.choice.problem import Problem as Size
from triton_ext.kernels.element_types import MAJORS, Major
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec
from triton_ext.ops.rule import rule

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
LLAMA_8B = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
"""N, K of the projections of Llama-3 8B: q, k and v together; o; gate and up together; down."""
LLAMA_70B = [(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)]
FAMILIES = {
    "Mistral Small": (5120, 6144, 4096, 65536, 32768), "Yi 34B": (7168, 9216, 7168, 40960, 20480),
    "Gemma 3 12B": (3840, 8192, 4096, 30720, 15360), "Phi-4": (5120, 7680, 5120, 35840, 17920),
    "OLMo 2 13B": (5120, 15360, 5120, 27648, 13824), "SmolLM3": (2048, 3072, 2048, 22016, 11008),
    "Falcon3": (3072, 5120, 3072, 46080, 23040), "Granite": (4096, 6144, 4096, 25600, 12800),
    "GPT-OSS": (2880, 5120, 4096, 5760, 2880), "ViT-g": (1408, 4224, 1408, 6144, 6144),
    "Whisper large": (1280, 3840, 1280, 5120, 5120), "DiT-XL": (1152, 3456, 1152, 4608, 4608),
}  # fmt: skip
"""Model families, of which no kernel was tuned on: the width, the columns of q, k and v together,
the rows of o, the columns of the first layer of the MLP (gate and up together), the rows of its
last (the models' published configurations)."""
CLASSES = ("squares", "M <= 64", "64 < M < 4096", "M >= 4096")
"""The classes of shapes; squares (M = N = K) are in no other."""
INPUT_BYTES, MOST_SETS = 200 << 20, 24
"""What the input sets of a problem take together: four times the L2 cache, if these many do."""
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
    promoted: bool = False
    drawn_from: str | None = field(default=None, compare=False)

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
        """The one that it was drawn from; else one of `CLASSES`."""
        if self.drawn_from is not None:
            return self.drawn_from
        if self.m == self.n == self.k:
            return CLASSES[0]
        return CLASSES[1 if self.m <= 64 else 2 if self.m < 4096 else 3]

    def config(self, multiprocessors: int = 132, gpu: GpuModel = "h200") -> KernelSpec:
        """What `triton_ext.matmul` would use on a GPU."""
        size = self.size(multiprocessors, gpu)
        return choose_config(90, self.product, size, fixed=rule() == "fixed")

    @property
    def product(self) -> ProductSpec:
        """What a kernel multiplies."""
        return ProductSpec(
            self.element_type, self.a_major, self.b_major, self.out_type,
            fp32_accumulation=self.promoted,
        )  # fmt: skip

    def size(self, multiprocessors: int = 132, gpu: GpuModel = "h200") -> Size:
        """What a kernel is chosen by, besides the product."""
        return Size(self.m, self.n, self.k, multiprocessors, gpu=gpu)

    @property
    def row(self) -> dict[str, Any]:
        """What a row of results says of it, from which `problem_of` makes it again."""
        return {
            "m": self.m, "n": self.n, "k": self.k, "type": self.element_type,
            "a_major": self.a_major, "b_major": self.b_major,
            **({"promoted": True} if self.promoted else {}), "class": self.shape_class,
        }  # fmt: skip

    def __str__(self) -> str:
        layout = "".join("N" if major == "MN" else "K" for major in (self.a_major, self.b_major))
        sums = " promoted" if self.promoted else ""
        return f"{self.m}x{self.n}x{self.k} {self.element_type} {layout}{sums}"


def problem_of(row: Mapping[str, Any]) -> Problem:
    """The problem of a row that `benchmarks.matmul` has written, or of one that has its name."""
    if "type" in row:
        return Problem(
            row["m"], row["n"], row["k"], row["type"], row["a_major"], row["b_major"],
            row.get("promoted", False),
        )  # fmt: skip
    sizes, element_type, layout, *sums = row["problem"].split()
    a_major, b_major = (MAJORS["KN".index(each)] for each in layout)
    m, n, k = map(int, sizes.split("x"))
    return Problem(m, n, k, element_type, a_major, b_major, bool(sums))


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


def sets_of(size: int) -> int:
    """How many input sets, of so many bytes each, launches walk through."""
    return max(2, min(MOST_SETS, math.ceil(INPUT_BYTES / size)))


def input_sets(problem: Problem) -> list[Operands]:
    """So many inputs."""
    return [inputs(problem) for _ in range(sets_of(problem.bytes))]


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


# ----------------------------------------------------------------- problems that nobody has chosen


def between(draw: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """A whole number, log-uniform from low to high, rounded to a multiple."""
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
    return max(multiple, round(value / multiple) * multiple)


def _any(draw: random.Random) -> Problem:
    a_major, b_major = draw.choice(MAJORS), draw.choice(MAJORS)
    m = between(draw, 8, 16384, 8 if a_major == "MN" else 1)
    n, k = (between(draw, 128, 16384, 8) for _ in "nk")
    return Problem(m, n, k, draw.choice(("bf16", "fp16")), a_major, b_major, drawn_from="random")


def _medium(draw: random.Random) -> Problem:
    n, k = (between(draw, 2048, 11008, 64) for _ in "nk")
    return Problem(between(draw, 96, 1536), n, k, drawn_from="medium")


def _layers(name: str, *sizes: tuple[int, int]) -> Callable[[random.Random], Problem]:
    """Problems of a model's layers, N and K, for 1 to 8192 tokens."""

    def drawn(draw: random.Random) -> Problem:
        return Problem(between(draw, 1, 8192), *draw.choice(sizes), drawn_from=name)

    return drawn


def _lora(draw: random.Random) -> Problem:
    width = between(draw, 1024, 8192, 64)
    n, k = draw.choice(((16, width), (width, 16)))
    return Problem(between(draw, 64, 8192), n, k, drawn_from="LoRA")


def _encoder(draw: random.Random) -> Problem:
    """ViT-H on images of 257 tokens, BERT on 128 to 512, GPT-2 (whose weights are N-major)."""
    choices: tuple[tuple[int, int, Major], ...] = (
        (257, 1280, "K"),
        (2 ** draw.randint(7, 9), draw.choice((768, 1024)), "K"),
        (1024, 768, "MN"),
    )
    tokens, width, b_major = draw.choice(choices)
    n, k = draw.choice(((3, 1), (1, 1), (4, 1), (1, 4)))
    m = tokens * 2 ** draw.randint(0, 5)
    return Problem(m, n * width, k * width, b_major=b_major, drawn_from="encoders")


def _gradient(draw: random.Random) -> Problem:
    """A weight's gradient over 512 to 16384 tokens, or Llama's head over 1 to 512."""
    if draw.random() < 0.3:
        return Problem(between(draw, 1, 512), 128256, 4096, drawn_from="gradients, head")
    m, n = draw.choice([*LLAMA_8B, (4608, 3584), (1280, 5120)])
    k = between(draw, 512, 16384, 8)
    return Problem(m, n, k, "bf16", "MN", "MN", drawn_from="gradients, head")


def _family(draw: random.Random) -> Problem:
    """A projection of one of `FAMILIES`, the gradient of its input, or of its weight."""
    width, qkv, o, up, down = draw.choice(list(FAMILIES.values()))
    n, k = draw.choice(((qkv, width), (width, o), (up, width), (width, down)))
    m = between(draw, 1, 8192)
    which = draw.choice(("product", "input", "weight"))
    if which == "product":
        return Problem(m, n, k, drawn_from="families")
    if which == "input":
        return Problem(m, k, n, b_major="MN", drawn_from="families")
    tokens = between(draw, 512, 16384, 8)
    return Problem(n, k, tokens, "bf16", "MN", "MN", drawn_from="families")


def _odd(draw: random.Random) -> Problem:
    """N or K, or both, are no multiples of 8: rows that TMA cannot read or write."""
    b_major = draw.choice(MAJORS)
    n, k = (between(draw, 64, 8192, draw.choice((1, 2, 4, 8))) for _ in "nk")
    if draw.random() < 0.25:
        n, k = draw.choice((50257, 51866, 128257)), 8 * (k // 8)
    if n % 8 == 0 == k % 8:
        k += draw.randint(1, 7)
    return Problem(between(draw, 1, 8192), n, k, b_major=b_major, drawn_from="off 8")


def _few_tiles(draw: random.Random) -> Problem:
    """At most 32 tiles of 128x128, and a K that is worth dividing among the other SMs."""
    a_major, b_major = draw.choice(MAJORS), draw.choice(MAJORS)
    m = between(draw, 1, 1024, 8 if a_major == "MN" else 1)
    n = between(draw, 64, 128 * (32 // -(-m // 128)), 8)
    k = between(draw, 4096, 36864, 8)
    kind = draw.choice(("bf16", "fp16"))
    return Problem(m, n, k, kind, a_major, b_major, drawn_from="few tiles")


def _fp8(draw: random.Random) -> Problem:
    n, k = draw.choice(((4608, 3584), (5120, 5120), (7168, 2048), (24576, 1536)))
    return Problem(between(draw, 16, 8192), n, k, "e4m3", drawn_from="e4m3")


def _any_fp8(draw: random.Random) -> Problem:
    n, k = (between(draw, 128, 16384, 16) for _ in "nk")
    return Problem(between(draw, 8, 16384), n, k, "e4m3", drawn_from="e4m3 random")


def _promoted(
    drawn: Callable[[random.Random], Problem], name: str
) -> Callable[[random.Random], Problem]:
    """The same problems, without ``use_fast_accum``."""
    return lambda draw: replace(drawn(draw), promoted=True, drawn_from=name)


def _round(draw: random.Random) -> Problem:
    sizes = [factor << shift for factor in (1, 3, 5, 7) for shift in range(15)]
    sizes = [size for size in sizes if 256 <= size <= 16384]
    m, n, k = (draw.choice(sizes) for _ in "mnk")
    kind, b_major = draw.choice(("bf16", "fp16")), draw.choice(MAJORS)
    return Problem(m, n, k, kind, "K", b_major, drawn_from="round")


DRAWN: Mapping[str, tuple[int, Callable[[random.Random], Problem]]] = {
    "random": (60, _any),
    "medium": (18, _medium),
    "Qwen2.5-7B": (15, _layers("Qwen2.5-7B", (4608, 3584), (3584, 18944), (37888, 3584))),
    "DeepSeek-V3": (
        20, _layers("DeepSeek-V3", (1536, 7168), (32768, 512), (7168, 16384), (7168, 2048))
    ),
    "LoRA": (10, _lora),
    "encoders": (20, _encoder),
    "gradients, head": (10, _gradient),
    "e4m3": (28, _fp8),
    "round": (0, _round),
    "families": (0, _family),
    "off 8": (0, _odd),
    "few tiles": (0, _few_tiles),
    "e4m3 promoted": (0, _promoted(_fp8, "e4m3 promoted")),
    "e4m3 random": (0, _any_fp8),
    "e4m3 random promoted": (0, _promoted(_any_fp8, "e4m3 random promoted")),
}  # fmt: skip
"""The classes that `drawn_problems` draws from, with their weights; of weight 0 are those that are
drawn if they are named.

Sizes are log-uniform. *random*: M from 8 to 16384, N and K from 128 to 16384 in multiples of 8,
fp16 or bf16, every major-ness. *medium*: M from 96 to 1536, N and K from 2048 to 11008. Layers of
models: 1 to 8192 tokens. *LoRA*: N or K is 16. *encoders*: ViT-H, BERT, GPT-2. *gradients, head*:
of weights (both operands MN-major), and Llama's head of 128256 columns. *e4m3*: layers of models in
fp8, or as *random*, K-major; *promoted*: without ``use_fast_accum``. *round*: M, N and K are 1, 3,
5 or 7 times a power of two, from 256 to 16384, B of either major-ness. *families*: projections of
`FAMILIES`, 1 to 8192 tokens, and the gradients of their inputs and weights. *off 8*:
N or K is no multiple of 8. *few tiles*: 32 tiles of 128x128 or fewer, K from 4096 to 36864, every
major-ness; kernels may be tuned on seeds below 1000, results are of others, each used once.
"""


def drawn_problems(seed: int, number: int, classes: Sequence[str] = ()) -> list[Problem]:
    """So many distinct problems; the same for the same seed.

    Args:
        classes: names of `DRAWN`, all as likely; if there are none, all by their weights.
    """
    draw = random.Random(seed)
    names = list(classes or DRAWN)
    weights = None if classes else [weight for weight, _ in DRAWN.values()]
    found: dict[Problem, None] = {}
    while len(found) < number:
        found[DRAWN[draw.choices(names, weights)[0]][1](draw)] = None
    return list(found)
