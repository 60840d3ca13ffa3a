"""Compiled kernels of many kinds, on which the compiler passes are tested.

A job says what to compile (`corpus_worker.py` does it, in processes of their own, with any release
of Triton); a kernel that comes out of it is TTGIR, PTX and the metadata of the launch. No GPU is
needed, and ptxas does not run.

``python tests/support/pass_corpus.py FOLDER [--site SITE] [--tier N]`` writes NAME.ttgir, NAME.ptx
and NAME.json for each kernel.

A job is JSON data with a name, a kind, an architecture, and a tier: 1 is a few jobs of every kind,
2 some variants of each, 3 is all of them, and the kernels of other packages where they are
installed. A job whose kernel needs a later release of Triton says so with ``since``.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus_cache import kept
from sites import SUPPORT

WORKER = SUPPORT / "corpus_worker.py"
WORKERS = 2
ARCHES = (90, 100)
V3_8 = (3, 8)

Job = dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """One compiled kernel.

    Attributes:
        name: of this kernel; that of its job, with a number where the job compiles several.
        kind: of its job.
        kernel: the name of the kernel's function.
        arch: 90 or 100.
        ttgir, ptx: as Triton prints them, with locations.
        metadata: Triton's, as kept beside the kernel in its cache.
    """

    name: str
    kind: str
    kernel: str
    arch: int
    ttgir: str = field(repr=False)
    ptx: str = field(repr=False)
    metadata: dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Corpus:
    """What a release of Triton makes of the jobs.

    Attributes:
        version: the release, such as "3.9.0".
        kernels: in the order of the jobs.
        errors: why a job failed, by its name.
    """

    version: str
    kernels: tuple[Compiled, ...]
    errors: dict[str, str]

    def named(self, name: str) -> Compiled:
        """The kernel of that name."""
        [found] = [each for each in self.kernels if each.name == name]
        return found


def job(kind: str, name: str, arch: int, do: str, *, tier: int = 2, **rest: Any) -> Job:
    """A job; without ``since`` every supported release of Triton can do it."""
    return {
        "kind": kind, "name": f"{kind}-{name}-sm{arch}", "arch": arch, "do": do, "tier": tier,
        **rest,
    }  # fmt: skip


def case_jobs() -> Iterator[Job]:
    """Kernels of `kernel_cases.py`."""
    import kernel_cases

    for i, each in enumerate(kernel_cases.all_cases()):
        if each.name.startswith("matmul"):
            continue
        kind = "dot" if each.name.startswith(("dot", "attention")) else "simple"
        tier = 1 if each.name in ("atomics", "histogram-int32-512-4", "scan-float32-512-4") else 2
        for arch in ARCHES if kind == "dot" or tier == 1 else (ARCHES[i % 2],):
            yield job(kind, f"case-{each.name}", arch, "case", case=each.name, tier=tier)


def matmul_jobs() -> Iterator[Job]:
    """This project's matmuls: layouts generated, and as NVMMA encodings."""

    def matmul(name: str, arch: int, generated: bool, tier: int = 2, **config: Any) -> Job:
        name = f"{name}-{'generated' if generated else 'nvmma'}"
        return job("matmul", name, arch, "matmul", config=config, generated=generated, tier=tier)

    for arch, element_type, a_major, b_major, swizzle in itertools.product(
        ARCHES, ("fp16", "bf16"), ("K", "MN"), ("K", "MN"), (32, 64, 128)
    ):
        yield matmul(
            f"{element_type}-{a_major}-{b_major}-{swizzle}", arch, element_type == "fp16",
            element_type=element_type, a_major=a_major, b_major=b_major, block_n=64, stages=2,
            a_swizzle=swizzle, b_swizzle={32: 32, 64: 128, 128: 64}[swizzle],
            tier=1 if (a_major, b_major, swizzle) == ("K", "MN", 128) else 2,
        )  # fmt: skip
    small = {"block_m": 64, "block_n": 64, "stages": 2, "consumers": 1}
    large = small | {"block_m": 128, "consumers": 2}
    for name, config in {
        "fp16": small,
        "fp16-swap": small | {"swap_ab": True, "block_m": 8},
        "int8": small | {"block_k": 128},
        "tf32": small | {"block_k": 32},
        "e4m3-scales": large | {"block_k": 128, "a_scales": "each", "b_scales": "one"},
        "bf16-cluster": large | {"b_major": "MN", "cluster_m": 2},
        "fp16-splits": large | {"a_major": "MN", "split_k": 4, "c_parts": 2, "c_buffers": 2},
    }.items():
        rest = {"element_type": name.partition("-")[0], **config}
        yield matmul(f"consumers-{name}", 90, True, **rest)
    yield matmul("consumers-fp16", 90, False, element_type="fp16", **large)
    blackwell = {"block_n": 64, "stages": 2, "consumers": 1}
    for name, config in {
        "e4m3-scales": blackwell | {"block_k": 128, "a_scales": "each", "a_major": "MN"},
        "fp16-splits": blackwell
        | {"split_k": 4, "residual": True, "swap_ab": True, "block_m": 64, "block_n": 128},
        "bf16-multicast": blackwell | {"b_major": "MN", "cluster_m": 4},
        "bf16-pair": blackwell | {"cluster_m": 2, "cta_group": 2, "batched": True, "c_parts": 2},
    }.items():
        rest = {"element_type": name.partition("-")[0], **config}
        yield matmul(f"roles-{name}", 100, True, **rest)


def kernel_jobs(
    kind: str, function: str, archs: Sequence[int], variants: dict[str, dict[str, Any]],
    first: str = "", module: str = "corpus_kernels", **rest: Any,
) -> Iterator[Job]:  # fmt: skip
    """Variants of a kernel of `module`, by name; the one named `first` is of tier 1."""
    for name, arguments in variants.items():
        for arch in archs:
            given = arguments | ({"arch": arch} if arguments.get("arch", arch) is None else {})
            yield job(
                kind, f"{function}-{name}", arch, "kernel", module=module, kernel=function,
                arguments=given, tier=1 if name == first else 2, **rest,
            )  # fmt: skip


def gluon_jobs(
    kind: str, function: str, archs: Sequence[int], variants: dict[str, dict[str, Any]],
    first: str = "", tells_arch: bool = True, **rest: Any,
) -> Iterator[Job]:  # fmt: skip
    """Variants of a kernel of `corpus_gluon_kernels.py`."""
    if tells_arch:
        variants = {name: arguments | {"arch": None} for name, arguments in variants.items()}
    return kernel_jobs(kind, function, archs, variants, first, "corpus_gluon_kernels", **rest)


# With more rows, Triton divides them among warpgroups, and leaves a host-made descriptor whole.
SPECIALIZED_ROWS = {90: 64, 100: 128}


def dot_jobs() -> Iterator[Job]:
    """Products with ``tl.dot``."""
    types = {
        "fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
        "tf32": "float32", "int8": "int8",
    }  # fmt: skip
    variants: dict[str, dict[str, Any]] = {}
    for name, dtype in types.items():
        variants[name] = {"dtype": dtype, "num_stages": 3}
    for stages in (1, 2, 4):
        variants[f"stages{stages}"] = {"dtype": "float16", "num_stages": stages}
    for name, dtype in (("fp16", "float16"), ("e4m3", "float8_e4m3fn"), ("tf32", "float32")):
        variants[f"{name}-transposed"] = {"dtype": dtype, "a_major": "M", "b_major": "K"}
    variants |= {
        "warps8": {"dtype": "float16", "block": (128, 128, 64), "num_warps": 8},
        "wide": {"dtype": "bfloat16", "block": (128, 256, 32), "num_warps": 8},
        "narrow": {"dtype": "float16", "block": (128, 16, 64)},
        "deep": {"dtype": "float16", "block": (64, 32, 128)},
        "small": {"dtype": "float16", "block": (32, 32, 32)},
        "registers": {"dtype": "float16", "block": (128, 64, 64), "a_in_registers": True},
        "registers-bf16": {"dtype": "bfloat16", "a_in_registers": True, "num_stages": 2},
        "weights8": {"dtype": "bfloat16", "b_dtype": "int8"},
        "bias": {"dtype": "float16", "epilogue": "bias"},
        "split": {"dtype": "bfloat16", "epilogue": "split"},
        "ieee": {"dtype": "float32", "precision": "ieee"},
        "tf32x3": {"dtype": "float32", "precision": "tf32x3"},
    }
    yield from kernel_jobs("dot", "matmul_by_pointers", ARCHES, variants, "fp16")

    variants = {name: {"dtype": dtype, "num_stages": 3} for name, dtype in types.items()}
    for name in ("fp16", "bf16", "tf32"):
        for a_major, b_major in (("K", "K"), ("M", "N"), ("M", "K")):
            variants[f"{name}-{a_major}-{b_major}"] = {
                "dtype": types[name], "a_major": a_major, "b_major": b_major,
            }  # fmt: skip
    for name in ("e4m3", "int8"):
        variants[f"{name}-K-K"] = {"dtype": types[name], "b_major": "K", "block": (128, 64, 64)}
    for stages in (1, 2, 4):
        variants[f"stages{stages}"] = {
            "dtype": "float16", "num_stages": stages, "block": (128, 64, 64),
        }  # fmt: skip
    variants |= {
        "warps8": {"dtype": "float16", "block": (128, 128, 64), "num_warps": 8},
        "rows256": {"dtype": "float16", "block": (256, 64, 64), "num_warps": 8},
        "k128": {"dtype": "bfloat16", "block": (64, 64, 128), "b_major": "K"},
        "k16": {"dtype": "float16", "block": (64, 64, 16), "b_major": "K"},
        "tf32-k16": {"dtype": "float32", "block": (64, 64, 16), "b_major": "K"},
    }
    yield from kernel_jobs("dot-tma", "matmul_by_descriptors", ARCHES, variants, "stages4")
    for arch in ARCHES:
        m = SPECIALIZED_ROWS[arch]
        variants = {
            "specialized": {"dtype": "float16", "block": (m, 64, 64)},
            "specialized-e4m3": {"dtype": "float8_e4m3fn", "block": (m, 128, 128)},
        }
        variants = {
            name: arguments | {"b_major": "K", "warp_specialize": True}
            for name, arguments in variants.items()
        }
        yield from kernel_jobs("specialized", "matmul_by_descriptors", (arch,), variants)
    variants = {
        "fp16": {"dtype": "float16", "num_stages": 3},
        "e5m2": {"dtype": "float8_e5m2", "block": (128, 64, 64)},
        "bf16-wide": {"dtype": "bfloat16", "block": (64, 128, 64), "num_stages": 2},
    }
    yield from kernel_jobs("dot-tma", "matmul_by_device_descriptors", ARCHES, variants, "fp16")
    variants = {"fp16": {"dtype": "float16", "block": (128, 128, 64), "warp_specialize": True}}
    yield from kernel_jobs("specialized", "matmul_by_device_descriptors", ARCHES, variants)
    variants = {"fp16": {"dtype": "float16"}}
    yield from kernel_jobs("tma", "late_descriptor", ARCHES, variants)
    yield from kernel_jobs("tma", "merged_branches", ARCHES, variants)
    variants = {
        "plain": {"dtype": "float16"},
        "flat": {"dtype": "float16", "flatten": True},
        "halves": {"dtype": "bfloat16", "flatten": True, "halves": True, "block": (128, 128, 64)},
        "e4m3": {"dtype": "float8_e4m3fn", "block": (128, 64, 128)},
    }
    yield from kernel_jobs("persistent", "persistent_matmul", ARCHES, variants, "halves")
    for arch in ARCHES:
        m = SPECIALIZED_ROWS[arch]
        variants = {
            "plain": {"dtype": "float16", "block": (m, 64, 64)},
            "flat": {"dtype": "float16", "flatten": True, "halves": True, "block": (m, 128, 64)},
        }
        variants = {
            name: arguments | {"warp_specialize": True, "num_stages": 2}
            for name, arguments in variants.items()
        }
        yield from kernel_jobs("specialized", "persistent_matmul", (arch,), variants, "plain")
    yield from kernel_jobs("dot", "batched_dot", ARCHES, {"fp16": {"dtype": "float16"}})


def scaled_jobs() -> Iterator[Job]:
    """Products with ``tl.dot_scaled``."""
    variants: dict[str, dict[str, Any]] = {
        f"{a}-{b}-{block}": {"a_format": a, "b_format": b, "scale_block": block}
        for a, b, block in (
            ("e4m3", "e4m3", 32), ("e5m2", "e4m3", 32), ("e2m1", "e4m3", 32), ("e4m3", "e2m1", 32),
            ("e2m1", "e2m1", 32), ("e2m1", "e2m1", 16), ("bf16", "e4m3", 32), ("bf16", "e2m1", 32),
        )
    }  # fmt: skip
    variants["e4m3-wide"] = {"a_format": "e4m3", "b_format": "e4m3", "block": (128, 256, 128)}
    variants["e4m3-stages1"] = {"a_format": "e4m3", "b_format": "e4m3", "num_stages": 1}
    yield from kernel_jobs("scaled", "scaled_matmul_by_pointers", (100,), variants, "e4m3-e4m3-32")
    some = {name: variants[name] for name in ("e4m3-e4m3-32", "e2m1-e2m1-32", "bf16-e2m1-32")}
    yield from kernel_jobs("scaled", "scaled_matmul_by_pointers", (90,), some)
    variants = {
        "mxfp8": {"name": "e4m3"},
        "mxfp4": {"name": "e2m1", "block": (128, 128, 256)},
        "nvfp4": {"name": "e2m1", "scale_block": 16, "block": (128, 128, 256)},
        "mxfp8-stages1": {"name": "e5m2", "num_stages": 1},
    }
    yield from kernel_jobs("scaled", "scaled_matmul_by_descriptors", (100,), variants, "nvfp4")


def attention_jobs() -> Iterator[Job]:
    """Attention in Triton."""
    variants: dict[str, dict[str, Any]] = {
        "64": {"dtype": "float16"},
        "64-causal": {"dtype": "float16", "causal": True},
        "128": {"dtype": "bfloat16", "head": 128, "num_warps": 8},
        "128-causal": {"dtype": "float16", "head": 128, "causal": True, "num_warps": 8},
        "32": {"dtype": "float16", "head": 32, "block": (64, 32)},
        "64-stages2": {"dtype": "float16", "num_stages": 2, "num_warps": 8},
        "64-e5m2": {"dtype": "float8_e5m2", "num_stages": 2},
    }  # fmt: skip
    for arch in ARCHES:
        m = SPECIALIZED_ROWS[arch]
        specialized: dict[str, dict[str, Any]] = {
            "64-specialized": {"block": (m, 64)},
            "128-specialized": {"head": 128, "block": (m, 128)},
        }
        specialized = {
            name: arguments | {"dtype": "float16", "warp_specialize": True, "num_stages": 2}
            for name, arguments in specialized.items()
        }
        yield from kernel_jobs("attention", "attention_by_descriptors", (arch,), specialized)
    yield from kernel_jobs("attention", "attention_by_descriptors", ARCHES, variants, "64-causal")
    variants = {
        "64": {"dtype": "float16"},
        "64-causal": {"dtype": "bfloat16", "causal": True},
        "128-causal": {"dtype": "float16", "head": 128, "causal": True, "num_stages": 2},
        "16": {"dtype": "float16", "head": 16},
    }
    yield from kernel_jobs("attention", "attention_by_pointers", ARCHES, variants)
    variants = {
        "64": {"dtype": "float16"},
        "128": {"dtype": "bfloat16", "head": 128, "num_warps": 8, "num_stages": 2},
    }
    yield from kernel_jobs("attention", "attention_gradient", ARCHES, variants)


def tma_jobs() -> Iterator[Job]:
    """Tensor descriptors without a product, and gathers."""
    variants: dict[str, dict[str, Any]] = {
        "fp16": {"dtype": "float16"}, "fp32": {"dtype": "float32", "columns": 16},
        "bf16-wide": {"dtype": "bfloat16", "rows": 64, "columns": 128},
    }  # fmt: skip
    yield from kernel_jobs("tma", "gather_scatter", (100,), variants, "fp16")
    variants = {"fp16": {"dtype": "float16"}, "stages1": {"dtype": "bfloat16", "num_stages": 1}}
    yield from kernel_jobs("tma", "gather_matmul", (100,), variants)
    variants = {"fp16": {"dtype": "float16"}}
    yield from kernel_jobs("tma", "short_matmul", ARCHES, variants, "fp16")
    variants = {
        "fp32-add": {"dtype": "float32"}, "fp16-add": {"dtype": "float16"},
        "int32-max": {"dtype": "int32", "kind": "max"},
        "int64-and": {"dtype": "int64", "kind": "and", "block": (32, 32)},
    }  # fmt: skip
    yield from kernel_jobs("tma", "descriptor_reduce", ARCHES, variants, "fp32-add")
    variants = {
        "1": {"dtype": "float32", "block": (64,)},
        "3": {"dtype": "float16", "block": (4, 16, 64)},
        "3-int8": {"dtype": "int8", "block": (2, 32, 256)},
        "4": {"dtype": "bfloat16", "block": (2, 2, 8, 32)},
        "5": {"dtype": "float32", "block": (1, 2, 2, 8, 8)},
    }
    yield from kernel_jobs("tma", "descriptor_of_rank", ARCHES, variants, "3")


def simple_jobs() -> Iterator[Job]:
    """Kernels without tensor cores."""
    for function, variants in {
        "softmax": {
            "fp32": {"dtype": "float32"}, "fp16-stages4": {"dtype": "float16", "stages": 4},
            "warps1": {"dtype": "float32", "n": 128, "num_warps": 1},
        },
        "layer_norm": {"fp32": {"dtype": "float32"}, "bf16": {"dtype": "bfloat16"}},
        "transpose": {
            "fp32": {"dtype": "float32"}, "fp16": {"dtype": "float16", "block": (128, 32)},
            "int8": {"dtype": "int8", "num_warps": 8}, "int64": {"dtype": "int64"},
        },
        "reduce_tile": {
            "rows": {"dtype": "float32", "axis": 1}, "columns": {"dtype": "float32", "axis": 0},
            "scan-rows": {"dtype": "float32", "axis": 1, "scan": True},
            "scan-columns": {"dtype": "int32", "axis": 0, "scan": True},
        },
        "dropout": {"fp32": {"dtype": "float32"}},
    }.items():  # fmt: skip
        first = "fp32" if function in ("softmax", "transpose") else ""
        yield from kernel_jobs("simple", function, ARCHES, variants, first)


def view_jobs() -> Iterator[Job]:
    """Operands that are views of shared memory; warp specialization."""
    sizes: dict[str, dict[str, Any]] = {
        "fp16": {},
        "bf16-32": {"dtype": "bfloat16", "swizzle": 32},
    }
    yield from gluon_jobs("views", "carried_buffers", ARCHES, sizes, "fp16")
    variants: dict[str, dict[str, Any]] = {
        "loop": {"in_loop": True},
        "once": {"in_loop": False, "dtype": "bfloat16"},
    }
    yield from gluon_jobs("views", "chosen_buffers", ARCHES, variants, "loop")
    variants = {
        name: {"view": name}
        for name in (
            "slice-k", "slice-m", "slice-n", "transpose-a", "transpose-b", "reshape", "bytes",
            "type",
        )
    }  # fmt: skip
    variants["transpose-b-64"] = {"view": "transpose-b", "swizzle": 64}
    variants["slice-k-64"] = {"view": "slice-k", "swizzle": 64}
    variants["transpose-b-e4m3"] = {"view": "transpose-b", "dtype": "float8_e4m3fn"}
    yield from gluon_jobs("views", "views", ARCHES, variants, "transpose-b")
    variants = {
        "fp16": {},
        "bf16-64": {"dtype": "bfloat16", "swizzle": 64, "stages": 4},
        "wide": {"block": (128, 128, 32), "stages": 2},
    }
    yield from gluon_jobs("specialized", "warp_specialized", ARCHES, variants, "fp16")


def gluon_attention_jobs() -> Iterator[Job]:
    """Attention in Gluon: P in tensor memory, registers or shared memory."""
    variants: dict[str, dict[str, Any]] = {
        "64": {}, "64-causal": {"causal": True}, "128": {"head": 128, "keys": 128},
        "128-causal-bf16": {"head": 128, "causal": True, "dtype": "bfloat16"},
        "32": {"head": 32, "keys": 32},
    }  # fmt: skip
    for arch, places in ((90, ("registers", "shared")), (100, ("tensor", "shared"))):
        for place in places:
            each = {f"{place}-{name}": {"p": place} | rest for name, rest in variants.items()}
            yield from gluon_jobs("attention", "attention", (arch,), each, f"{place}-64-causal")
    yield from gluon_jobs("attention", "attention", (90,), {
        "registers-warps8": {"p": "registers", "warps": 8},
    })  # fmt: skip


def tensor_memory_jobs() -> Iterator[Job]:
    """Views of tensor memory, tcgen05.cp, block-scaled products."""
    variants: dict[str, dict[str, Any]] = {
        name: {"view": name} for name in ("index", "slice-load", "slice-mma", "a", "whole")
    }
    variants["slice-load-warps8"] = {"view": "slice-load", "warps": 8}
    variants["a-bf16-128"] = {"view": "a", "dtype": "bfloat16", "block": (128, 64, 128)}
    variants["whole-64"] = {"view": "whole", "block": (64, 64, 64)}
    yield from gluon_jobs(
        "tmem", "tensor_memory_views", (100,), variants, "slice-mma", tells_arch=False
    )
    variants = {"32": {"swizzle": 32}, "128": {"swizzle": 128}}
    yield from gluon_jobs("tmem", "tensor_memory_copy", (100,), variants, "128", tells_arch=False)
    variants = {}
    for a, b, scale_block, k in (
        ("e4m3", "e4m3", 32, 128), ("e5m2", "e4m3", 32, 256), ("e2m1", "e2m1", 32, 256),
        ("e2m1", "e2m1", 16, 256), ("e2m1", "e4m3", 32, 128), ("e4m3", "e2m1", 32, 256),
    ):  # fmt: skip
        arguments = {
            "a_format": a, "b_format": b, "scale_block": scale_block, "block": (128, 128, k),
        }  # fmt: skip
        variants[f"{a}-{b}-{scale_block}"] = arguments
    variants["e4m3-stored"] = {"a_format": "e4m3", "b_format": "e4m3", "copy": False}
    variants["nvfp4-wide"] = {
        "a_format": "e2m1", "b_format": "e2m1", "scale_block": 16, "block": (128, 256, 256),
    }  # fmt: skip
    yield from gluon_jobs(
        "scaled", "block_scaled", (100,), variants, "e2m1-e2m1-16", tells_arch=False
    )


def cluster_jobs() -> Iterator[Job]:
    """Kernels of several CTAs."""
    variants: dict[str, dict[str, Any]] = {
        "fp16": {}, "bf16-wide": {"dtype": "bfloat16", "block": (256, 256, 64)},
        "half": {"block": (128, 64, 64)}, "ctas4": {"block": (512, 128, 64), "ctas": 4},
    }  # fmt: skip
    yield from gluon_jobs(
        "cluster", "pair_matmul", (100,), variants, "fp16", tells_arch=False, since=V3_8
    )
    yield from gluon_jobs(
        "cluster", "cluster_wgmma", (90,), {"fp16": {}}, "fp16", tells_arch=False, since=V3_8
    )
    yield from gluon_jobs(
        "cluster", "copies", ARCHES, {"multicast": {"kernel": "multicast"}}, "multicast",
        since=V3_8,
    )  # fmt: skip
    options = {"num_ctas": 2, "dtype": "float16", "block": (128, 128, 64)}
    yield from kernel_jobs("cluster", "matmul_by_pointers", ARCHES, {"fp16": options})
    yield from kernel_jobs("cluster", "matmul_by_descriptors", ARCHES, {"fp16": options})


def copy_jobs() -> Iterator[Job]:
    """Gluon's asynchronous copies, im2col, layouts of shared memory, mma.sync."""
    variants: dict[str, dict[str, Any]] = {
        "ring": {"kernel": "ring", "stages": 3},
        "cp_async": {"kernel": "cp_async", "barrier": False},
        "cp_async-mbarrier": {"kernel": "cp_async", "barrier": True},
        "reduce-add": {"kernel": "reduce", "kind": "add"},
        "reduce-xor": {"kernel": "reduce", "kind": "xor"},
    }
    yield from gluon_jobs("copies", "copies", ARCHES, variants, "reduce-add", since=V3_8)
    variants = {"gather": {"kernel": "gather"}, "stealing": {"kernel": "stealing"}}
    yield from gluon_jobs("copies", "copies", (100,), variants, "gather", since=V3_8)
    yield from gluon_jobs("copies", "im2col", ARCHES, {"fp16": {}}, "fp16", since=V3_8)
    layouts = (
        "rows", "columns", "swizzled", "swizzled-columns", "padded", "linear", "nvmma0", "nvmma32",
        "nvmma128",
    )  # fmt: skip
    variants = {f"{name}-fp32": {"layout": name} for name in layouts}
    variants |= {
        f"{name}-fp16": {"layout": name, "dtype": "float16", "way": "other"} for name in layouts
    }
    variants["rows-half"] = {"layout": "rows", "way": "half"}
    for i, (name, arguments) in enumerate(variants.items()):
        first = name if name == "padded-fp32" else ""
        yield from gluon_jobs(
            "shared", "through_shared", (ARCHES[i % 2],), {name: arguments}, first,
            tells_arch=False,
        )  # fmt: skip
    variants = {
        "swizzled": {}, "rows": {"a_layout": "rows", "b_layout": "rows"},
        "padded": {"a_layout": "padded", "b_layout": "swizzled"},
        "nvmma": {"a_layout": "nvmma128", "b_layout": "nvmma64", "dtype": "bfloat16"},
    }  # fmt: skip
    yield from gluon_jobs("shared", "mma_sync", ARCHES, variants, "swizzled", tells_arch=False)


def product_jobs() -> Iterator[Job]:
    """Bare products of `mma_products`: all types, major-nesses and swizzles."""
    import mma_products as products

    for arch, group in products.TARGETS:
        for i, each in enumerate(products.products(arch, group)):
            if i % 8 == 0:
                wanted = each.job()
                majors = f"{each.a.major}-{each.b.major}-{each.a.swizzle}-{each.b.swizzle}"
                name = f"{each.a.element_type}-{each.b.element_type}-{majors}-{group}-{i}"
                late = {"since": V3_8} if (arch, each.a.element_type) == (100, "s8") else {}
                yield job("product", name, arch, "mma", product=wanted, **late)


THIRD_PARTY = {
    "LigerKernels": (
        "test_rms_norm", "test_layer_norm", "test_swiglu", "test_geglu", "test_cross_entropy",
        "test_softmax", "test_rope", "test_group_norm",
    ),
    "FlashLinearAttentionKernels": (
        "test_attention", "test_linear_attention", "test_gated_linear_attention", "test_delta_rule",
    ),
}  # fmt: skip


def third_party_jobs() -> Iterator[Job]:
    """Kernels of the packages liger-kernel and fla-core, where they are installed."""
    packages = {"LigerKernels": "liger_kernel", "FlashLinearAttentionKernels": "fla"}
    for group, names in THIRD_PARTY.items():
        if importlib.util.find_spec(packages[group]):
            for name in names:
                for arch in ARCHES:
                    yield job(
                        "third-party", f"{packages[group]}-{name.removeprefix('test_')}", arch,
                        "third_party", tier=3, group=group, test=name,
                    )  # fmt: skip


def jobs(tier: int = 2, release: tuple[int, int] | None = None) -> list[Job]:
    """All jobs up to a tier, or those of them that a release of Triton can do."""
    found = [
        *matmul_jobs(), *case_jobs(), *dot_jobs(), *scaled_jobs(), *attention_jobs(), *tma_jobs(),
        *simple_jobs(), *view_jobs(), *gluon_attention_jobs(), *tensor_memory_jobs(),
        *cluster_jobs(), *copy_jobs(), *product_jobs(), *third_party_jobs(),
    ]  # fmt: skip
    return [
        each
        for each in thinned(found)
        if each["tier"] <= tier and (release is None or tuple(each.get("since", ())) <= release)
    ]


NAMED = (
    "attention-attention-registers-64-causal-sm90",
    "attention-attention-shared-128-causal-bf16-sm90",
    "attention-attention-tensor-64-causal-sm100",
    "attention-attention_by_descriptors-64-causal-sm100",
    "cluster-pair_matmul-fp16-sm100",
    "copies-copies-cp_async-mbarrier-sm100",
    "copies-copies-cp_async-mbarrier-sm90",
    "copies-copies-gather-sm100",
    "copies-im2col-fp16-sm100",
    "dot-batched_dot-fp16-sm90",
    "dot-case-dot-128x128x64-64-float8_e5m2-tf32-8-sm90",
    "dot-matmul_by_pointers-fp16-sm90",
    "dot-tma-matmul_by_descriptors-int8-K-K-sm90",
    "dot-tma-matmul_by_descriptors-stages4-sm100",
    "dot-tma-matmul_by_descriptors-tf32-k16-sm100",
    "dot-tma-matmul_by_descriptors-tf32-k16-sm90",
    "dot-tma-matmul_by_descriptors-tf32-sm90",
    "dot-tma-matmul_by_device_descriptors-e5m2-sm90",
    "matmul-bf16-K-K-32-nvmma-sm100",
    "matmul-bf16-K-MN-128-nvmma-sm100",
    "matmul-bf16-K-MN-128-nvmma-sm90",
    "matmul-fp16-K-MN-128-generated-sm100",
    "matmul-fp16-K-MN-128-generated-sm90",
    "product-bf16-bf16-MN-MN-64-0-1-56-sm90",
    "product-f16-f16-K-MN-64-0-1-24-sm90",
    "product-f16-f16-K-MN-64-0-2-24-sm100",
    "scaled-block_scaled-e2m1-e2m1-16-sm100",
    "scaled-scaled_matmul_by_descriptors-nvfp4-sm100",
    "shared-mma_sync-padded-sm100",
    "shared-mma_sync-padded-sm90",
    "shared-mma_sync-rows-sm90",
    "shared-mma_sync-swizzled-sm90",
    "shared-through_shared-padded-fp32-sm90",
    "simple-case-add-int8-sm90",
    "simple-case-descriptor-64x208-64x128-float16-sm90",
    "simple-case-muladd-float32-sm100",
    "simple-transpose-fp32-sm90",
    "specialized-matmul_by_device_descriptors-fp16-sm90",
    "specialized-warp_specialized-fp16-sm100",
    "tma-descriptor_of_rank-3-sm90",
    "tma-descriptor_reduce-fp32-add-sm90",
    "tma-gather_scatter-fp16-sm100",
    "tma-late_descriptor-fp16-sm90",
    "tma-merged_branches-fp16-sm90",
    "views-carried_buffers-fp16-sm90",
    "views-views-reshape-sm100",
    "views-views-reshape-sm90",
    "views-views-slice-k-sm100",
    "views-views-transpose-b-sm90",
)  # fmt: skip
"""Kernels that tests ask for by name, or that alone have what one of them asks for."""


MANY, ONE_OF = 8, 12


def thinned(found: Sequence[Job]) -> Iterator[Job]:
    """The jobs; of a kind with many variants, one of twelve stays, and the others are of tier 3."""
    numbers: Counter[str] = Counter()
    variants = Counter(each["kind"] for each in found if each["tier"] == 2)
    for each in found:
        kind = each["kind"]
        if each["tier"] == 2 and variants[kind] > MANY and each["name"] not in NAMED:
            numbers[kind] += 1
            if numbers[kind] % ONE_OF:
                yield each | {"tier": 3}
                continue
        yield each


def environment(site: Path | None) -> dict[str, str]:
    """For a process that imports the Triton at `site`."""
    paths = [str(site)] if site else []
    before = os.environ.get("PYTHONPATH")
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(paths + ([before] if before else []))}


def release_at(site: Path | None) -> tuple[int, int]:
    """The release of Triton at `site`, or of the importable one."""
    text = subprocess.run(
        [sys.executable, "-c", "import importlib.metadata as m; print(m.version('triton'))"],
        capture_output=True, text=True, env=environment(site), check=True,
    ).stdout  # fmt: skip
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def ask(wanted: Sequence[Job], site: Path | None) -> tuple[list[Any], set[str]]:
    """Triton's version and then the worker's lines, in no order; and the files that it imported.

    The work is divided between processes.
    """

    def work(part: Sequence[Job]) -> list[Any]:
        finished = subprocess.run(
            [sys.executable, str(WORKER)],
            input=json.dumps(part), capture_output=True, text=True, env=environment(site),
        )  # fmt: skip
        if finished.returncode:
            raise RuntimeError(f"the worker failed: {finished.stderr[-3000:]}")
        return [json.loads(line) for line in finished.stdout.splitlines()]

    workers = WORKERS if len(wanted) > 2 * WORKERS else 1
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(work, (wanted[i::workers] for i in range(workers))))
    (version,) = {version for version, *_ in parts}
    lines = [line for _, *lines, _ in parts for line in lines]
    return [version, *lines], {path for *_, files in parts for path in files}


def compile_jobs(wanted: Sequence[Job], site: Path | None = None) -> Corpus:
    """Compile jobs with the Triton at `site`, or with the importable one."""
    settings = {
        name: value for name, value in environment(site).items()
        if name.startswith(("TRITON", "PYTHONPATH")) and name != "TRITON_CACHE_DIR"
    }  # fmt: skip
    version, *lines = kept([sys.executable, settings, wanted], lambda: ask(wanted, site))
    by_name = {each["name"]: each for each in wanted}
    order = {name: i for i, name in enumerate(by_name)}
    lines.sort(key=lambda line: order[line["job"]])  # stable: a job's kernels stay in order
    kernels = tuple(
        Compiled(
            line["name"], by_name[line["job"]]["kind"], line["kernel"],
            by_name[line["job"]]["arch"], line["ttgir"], line["ptx"], line["metadata"],
        )
        for line in lines if "error" not in line
    )  # fmt: skip
    errors = {line["job"]: line["error"] for line in lines if "error" in line}
    return Corpus(version, kernels, errors)


@functools.cache
def corpus(site: Path | None = None, tier: int = 2, passes: tuple[str, ...] = ()) -> Corpus:
    """What the Triton at `site` (`conftest.triton_sites`) makes of all jobs that it can do.

    Compiled once, unless something changes on which it depends; `passes` are on meanwhile. The
    environment variable CORPUS_TIER=3 asks for every job.
    """
    wanted = jobs(max(tier, int(os.environ.get("CORPUS_TIER", "0"))), release_at(site))
    if passes:
        wanted = [each | {"passes": list(passes)} for each in wanted]
    return compile_jobs(wanted, site)


def dump(found: Corpus, folder: Path) -> None:
    """Write each kernel as NAME.ttgir, NAME.ptx and NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in found.kernels:
        (folder / f"{each.name}.ttgir").write_text(each.ttgir)
        (folder / f"{each.name}.ptx").write_text(each.ptx)
        (folder / f"{each.name}.json").write_text(json.dumps(each.metadata, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--site", type=Path, help="a folder with another release of Triton")
    parser.add_argument("--tier", type=int, default=2)
    parser.add_argument("--only", default="", help="a part of the jobs' names")
    chosen = parser.parse_args()
    site = chosen.site and chosen.site.resolve()
    wanted = [each for each in jobs(chosen.tier, release_at(site)) if chosen.only in each["name"]]
    found = compile_jobs(wanted, site)
    dump(found, chosen.folder)
    print(f"Triton {found.version}: {len(found.kernels)} kernels, {len(found.errors)} errors")
    for name, error in found.errors.items():
        print(f"  {name}: {error.strip().splitlines()[-1]}")


if __name__ == "__main__":
    main()
