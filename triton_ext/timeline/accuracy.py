"""How far predictions are from what was measured: the one place of these figures.

`tests/timeline/test_accuracy.py` computes them from ``benchmarks/results/timeline_*.json``, split
"test": kernels that nothing was fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton_ext.timeline.gpus import GPUS, Gpu


@dataclass(frozen=True)
class KnownError:
    """The mean of ``abs(predicted / measured - 1)``.

    Attributes:
        kernels: which.
        number: how many.
        gpu: where they were measured.
        mean: the error.
        products: whether they are kernels of the tensor cores.
    """

    kernels: str
    number: int
    gpu: str
    mean: float
    products: bool = True


MEASURED = (
    KnownError("matmuls", 630, "H100", 0.059),
    KnownError("matmuls", 573, "H200", 0.063),
    KnownError("attention", 3, "H200", 0.256),
    KnownError("softmax", 9, "H200", 0.115, products=False),
    KnownError("other kernels without products", 8, "H200", 0.147, products=False),
)
"""The known errors: an H100's of matmuls whose seeds were set before, an H200's of all kinds."""


def known_errors(gpu: Gpu, products: bool) -> list[KnownError]:
    """The errors of kernels like one, on its GPU, or else on another one of its architecture.

    Args:
        gpu: none are known, if its parameters are not those of `GPUS`, but for `warm`.
        products: whether the kernel uses the tensor cores.
    """
    published = GPUS.get(gpu.name)
    if published is None or replace(gpu, warm=published.warm) != published:
        return []
    found: dict[str, KnownError] = {}
    for each in MEASURED:
        if each.products != products or GPUS[each.gpu].arch != gpu.arch:
            continue
        if each.gpu == gpu.name or each.kernels not in found:
            found[each.kernels] = each
    return list(found.values())


def in_words(gpu: Gpu, products: bool) -> str:
    """The same, as is put behind a prediction: "mean error of matmuls 5.9 %, ..."."""
    errors = known_errors(gpu, products)
    if errors:
        parts = [
            f"{each.kernels} {each.mean:.1%}".replace("%", " %")
            + (f" (on an {each.gpu})" if each.gpu != gpu.name else "")
            for each in errors
        ]
        return f"mean error of {', '.join(parts)}"
    if gpu.name in GPUS and gpu.name not in {each.gpu for each in MEASURED}:
        return f"no {gpu.name} was measured"
    return "with changed parameters: never measured"
