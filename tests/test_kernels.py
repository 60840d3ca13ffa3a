"""The kernels compiled for Hopper and Blackwell, with no GPU, on every supported Triton."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import triton_sites
from triton_ext.kernels.config import MatmulConfig, choose_config, tile_layouts

from triton_ext import LayoutError, NVMMAShared, UnsupportedDeviceError

MAJORS = list(itertools.product(("K", "MN"), repeat=2))
ARCHES = [90, 100]


def compile_jobs(site, jobs):
    """The version of Triton at `site`, and what became of each job."""
    environment = dict(os.environ)
    if site:
        environment["PYTHONPATH"] = str(site)
    finished = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_worker.py"))],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    version, *results = (json.loads(line) for line in finished.stdout.splitlines())
    assert len(results) == len(jobs)
    return tuple(map(int, version.split(".")[:2])), results


def configurations(arch):
    """Tiles, types, major-nesses and swizzles; each of the kernel's parameters at each value."""
    for (a_major, b_major), element_type in zip(
        MAJORS * 2, ["fp16", "bf16"] * len(MAJORS), strict=True
    ):
        yield {"element_type": element_type, "a_major": a_major, "b_major": b_major}
    for a_major, b_major in (("K", "K"), ("MN", "MN")):
        for swizzle in (32, 64, 128):
            yield {
                "element_type": "fp16",
                "a_major": a_major,
                "b_major": b_major,
                "a_swizzle": swizzle,
                "b_swizzle": swizzle,
            }
    yield {"element_type": "bf16", "a_swizzle": 32, "b_swizzle": 128, "b_major": "MN"}
    yield {"element_type": "bf16", "block_n": 256, "num_warps": 8, "stages": 4}
    yield {"element_type": "fp16", "block_n": 256, "num_warps": 8, "b_major": "MN"}
    yield {"element_type": "fp16", "block_n": 64, "block_k": 128, "stages": 4}
    yield {"element_type": "fp16", "block_n": 16, "block_k": 32, "stages": 8}
    yield {"element_type": "bf16", "block_n": 32, "block_k": 16, "stages": 2, "b_major": "MN"}
    if arch == 90:
        yield {"element_type": "fp16", "block_m": 64, "block_n": 64}
        yield {"element_type": "bf16", "block_m": 64, "block_n": 256, "a_major": "MN"}


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("arch", ARCHES)
def test_generated_layouts_give_the_ptx_of_nvmma_encodings(arch, site):
    configs = [{"arch": arch, **config} for config in configurations(arch)]
    _, results = compile_jobs(site, [{"config": config, "mutation": None} for config in configs])
    assert len(results) >= 20
    mma = {90: r"wgmma\.mma_async", 100: r"tcgen05\.mma\."}[arch]
    for config, result in zip(configs, results, strict=True):
        assert "error" not in result, f"{config}: {result}"
        assert result["ptx"] == result["nvmma_ptx"], config
        assert len(re.findall(mma, result["ptx"])) >= config.get("block_k", 64) // 16
        assert "cp.async.bulk.tensor.2d.shared::cta.global" in result["ptx"]
        assert "cp.async.bulk.tensor.2d.global.shared::cta" in result["ptx"]
        assert result["resources"]["REG"] > 16
        assert result["resources"]["STACK"] == result["resources"]["LOCAL"] == 0, "spills"


def mutations(config):
    """Each basis of each operand, with one bit flipped that keeps it inside of the tile."""
    generator = random.Random(str(config))
    for operand, shape in (
        ("A", (config.block_m, config.block_k)),
        ("B", (config.block_k, config.block_n)),
    ):
        linear = (config.a_layouts if operand == "A" else config.b_layouts).linear
        for index in range(len(linear.offset_bases)):
            dim = generator.randrange(2)
            bit = 1 << generator.randrange(shape[dim].bit_length() - 1)
            yield (operand, index, dim, bit)


# Triton 3.7 looks at the stride from one MN-major atom to the next in units of 16 bytes, and
# compiles the product as if what is below that were not there: elements 1, 2 and 4 along M of A
# (dim 0) and N of B (dim 1). The 128-byte atom of 16-bit elements takes bases 0 to 8; basis 9 is
# the next atom along K, and basis 12 of A the next one along M, which tcgen05 (M = 128) spans and
# wgmma (M = 64) does not. Later releases refuse such layouts.
UNNOTICED_BY_3_7 = {
    90: list(itertools.product("A", [9], [0], [1, 2, 4]))
    + list(itertools.product("B", [9], [1], [1, 2, 4])),
    100: list(itertools.product("A", [9, 12], [0], [1, 2, 4]))
    + list(itertools.product("B", [9], [1], [1, 2, 4])),
}


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("majors", [("K", "K"), ("MN", "MN")])
def test_every_basis_matters(arch, majors, site):
    """A single wrong bit in a single basis: the compilation fails, or the PTX is another."""
    fields = {"arch": arch, "element_type": "fp16", "block_n": 64, "stages": 2}
    fields |= dict(zip(("a_major", "b_major"), majors, strict=True))
    changes = list(mutations(MatmulConfig(**fields)))
    assert len(changes) >= 25
    if majors == ("MN", "MN"):
        changes += UNNOTICED_BY_3_7[arch]
    jobs = [{"config": fields, "mutation": change} for change in [None, *changes]]
    version, (right, *wrong) = compile_jobs(site, jobs)
    assert "ptx" in right
    unnoticed = {
        change
        for change, result in zip(changes, wrong, strict=True)
        if result.get("ptx") == right["ptx"]
    }
    has_the_fault = (version, majors) == ((3, 7), ("MN", "MN"))
    assert unnoticed == (set(UNNOTICED_BY_3_7[arch]) if has_the_fault else set())
    assert sum("error" in result for result in wrong) >= 20


def test_ptx_without_debug_lines_keeps_the_code():
    from triton_ext.ptx_text import without_debug_lines

    ptx = (
        "//\n.version 8.7\n.visible .entry f()\n{\n\t.loc\t1 23 4\n$L__tmp0:\n"
        "\tmov.u32 %r1, 5; // x\n"
        '$L__BB0_1:\n\tret;\n$L__func_end0:\n}\n\t.file\t1 "a.py"\n\t.section\t.debug_abbrev\n{\n}'
    )
    assert without_debug_lines(ptx) == (
        ".version 8.7\n.visible .entry f()\n{\n\tmov.u32 %r1, 5;\n$L__BB0_1:\n\tret;\n}"
    )


# ------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"arch": 80}, "arch"),
        ({"element_type": "fp32"}, "element_type"),
        ({"a_major": "M"}, "a_major"),
        ({"arch": 100, "block_m": 64}, "block_m"),
        ({"block_n": 48}, "block_n"),
        ({"block_k": 8}, "block_k"),
        ({"stages": 1}, "stages"),
        ({"num_warps": 2}, "num_warps"),
        ({"block_m": 64, "num_warps": 8}, "num_warps"),
        ({"a_swizzle": 0}, "a_swizzle"),
        ({"b_swizzle": 48}, "b_swizzle"),
        ({"block_n": 256, "block_k": 128, "stages": 3}, "stages"),
    ],
)
def test_illegal_configurations(fields, argument):
    with pytest.raises(LayoutError) as caught:
        MatmulConfig(**({"arch": 90, "element_type": "fp16"} | fields))
    assert caught.value.argument == argument


def test_a_swizzle_that_does_not_fit():
    with pytest.raises(LayoutError, match="at least 64 elements"):
        MatmulConfig(90, "fp16", block_k=32, a_swizzle=128)


def test_layouts_of_a_tile():
    tile = tile_layouts((64, 128), 0, 16)
    assert tile.encoding == NVMMAShared(128, 16, transposed=True)
    assert tile.tma_shape == (128, 64)
    assert tile.tma_encoding == NVMMAShared(128, 16)
    assert tile.linear.offset_bases[0] == (1, 0)
    assert tile.linear.alignment == 1024


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("majors", MAJORS)
def test_every_problem_has_a_legal_configuration(arch, majors):
    for m, n, k in itertools.product((1, 64, 65, 20000), (1, 64, 65, 128, 129, 20000), (1, 4096)):
        config = choose_config(arch, "bf16", *majors, m, n, k)
        assert (config.arch, config.a_major, config.b_major) == (arch, *majors)


# -------------------------------------------------------------------- triton_ext.matmul


@pytest.fixture(scope="module")
def torch():
    pytest.importorskip("triton")
    return pytest.importorskip("torch")


def test_matmul_without_a_supported_gpu_says_what_is_needed(torch):
    import triton_ext

    a = torch.ones((8, 8), dtype=torch.float16, device="meta")
    with pytest.raises(UnsupportedDeviceError) as caught:
        triton_ext.matmul(a, a)
    for words in ("Hopper", "Blackwell", "the tensors are on meta", "Use torch.matmul", "emulate"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda t: ([[1.0]], t.ones((1, 1))), "a"),
        (lambda t: (t.ones(8).half(), t.ones((8, 8)).half()), "a.shape"),
        (lambda t: (t.ones((8, 8)), t.ones((8, 8))), "a.dtype"),
        (lambda t: (t.ones((8, 8)).half(), t.ones((8, 8)).bfloat16()), "b.dtype"),
        (lambda t: [t.ones((8, 8)).half().requires_grad_()] * 2, "a.requires_grad"),
        (lambda t: (t.ones((8, 8)).half(), t.ones((4, 8)).half()), "b.shape"),
        (lambda t: (t.ones((8, 8)).half(), t.ones((8, 8), device="meta").half()), "b.device"),
    ],
)
def test_matmul_names_the_wrong_argument(torch, make, argument):
    import triton_ext

    with pytest.raises(LayoutError) as caught:
        triton_ext.matmul(*make(torch))
    assert caught.value.argument == argument


def test_which_operands_tma_can_read(torch):
    """Strides that TMA takes are used as they are; others cost a copy."""
    from triton_ext.ops import _operand

    base = torch.arange(64 * 64, dtype=torch.float16).reshape(64, 64)
    for matrix, major, copied in (
        (base, "K", False),
        (base.T, "MN", False),
        (base[:, :40], "K", False),
        (base[:1, 8:24], "K", False),
        (base[::2], "K", False),
        (base[:, 1:33], "K", True),
        (base[::2, ::2], "K", True),
        (base[:1].expand(16, 64), "K", True),
        (torch.ones((7, 13), dtype=torch.float16), "K", True),
        (torch.ones((16, 1), dtype=torch.float16), "MN", False),
    ):
        view, strides, found = _operand(matrix, k_dim=1)
        assert found == major
        assert (view.data_ptr() != matrix.data_ptr()) == copied
        assert strides[1] == 1
        assert strides[0] % 8 == 0
        assert view.data_ptr() % 16 == 0
        assert torch.equal(view if major == "K" else view.T, matrix)
        assert strides[0] >= view.shape[1]
        assert view.shape[0] == 1 or view.stride(0) == strides[0]


def test_unknown_attribute():
    import triton_ext

    with pytest.raises(AttributeError, match="no attribute 'matmal'"):
        _ = triton_ext.matmal
