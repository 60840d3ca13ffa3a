"""Compiles kernels ahead, then multiplies, with whatever Triton can be imported.

Prints how many kernels there were to each kind of product, how many it launched, and how many of
them were in the cache, as JSON. With an argument, for more products.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from triton import knobs

import triton_ext
from triton_ext.hardware.architecture import CAPABILITIES
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.epilogue import NO_EPILOGUE, EpilogueSpec
from triton_ext.kernels.precompile import configurations, precompile
from triton_ext.kernels.product import ProductSpec

SIZES = [(16, 2048, 512), (264, 264, 264)]
if len(sys.argv) > 1:
    SIZES += [(1, 512, 4096), (128, 128, 8192)]
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}


def operands(m, n, k, dtype):
    return torch.zeros(m, k).to(dtype), torch.zeros(n, k).to(dtype).T


def products(arch):
    """Kinds of products: what is asked for ahead, and what is called."""
    kind = "bf16" if arch == 90 else "fp16"
    epilogue = NO_EPILOGUE if arch == 90 else EpilogueSpec(bias=True, activation="gelu")
    yield kind, (ProductSpec(kind), epilogue), lambda a, b: triton_ext.matmul(
        a, b,
        bias=torch.zeros(b.shape[1], dtype=a.dtype) if epilogue.bias else None,
        activation=epilogue.activation,
    )  # fmt: skip
    if arch == 90 and len(sys.argv) > 1:
        one = torch.ones(())
        yield (
            "e4m3",
            (ProductSpec("e4m3", out_type="bf16"), EpilogueSpec(a_scales="one", b_scales="one")),
            lambda a, b: triton_ext.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16),
        )


def main():
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        hits = []
        knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
        for arch in (90, 100)[: len(sys.argv)]:
            for kind, asked, call in products(arch):
                with triton_ext.emulate(f"sm_{arch}", idle=True):
                    product, epilogue = asked
                    problems = [
                        Problem(*size, CAPABILITIES[arch].multiprocessors) for size in SIZES
                    ]
                    configs = configurations(arch, product, problems, epilogue)
                    done = list(precompile(configs, Path(folder), jobs=2))
                    assert [each.error for each in done] == [None] * len(configs), done
                    hits.clear()
                    for size in SIZES:
                        call(*operands(*size, TYPES[kind]))
                found[f"{arch} {kind}"] = [len(configs), len(hits), sum(hits)]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
