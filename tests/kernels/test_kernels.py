"""The kernels compiled for Hopper and Blackwell, with no GPU, on every supported Triton."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from covers import in_turn
from kernel_configurations import (
    ARCHES,
    BATCHED,
    EMULATED,
    EMULATED_SM100,
    MAJORS,
    STAGES,
    WITH_RESIDUAL,
    compile_jobs,
    compiled_configurations,
    spread,
)
from sites import ALL, installed_folder, triton_sites

import triton_ext
from triton_ext import LayoutError, NVMMAShared
from triton_ext.kernels.choice import candidates, sm90
from triton_ext.kernels.choice.choose import choose_config, ranked, with_epilogue
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.element_types import BLOCK_SCALED
from triton_ext.kernels.epilogue import EpilogueSpec
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.registers import MOST_SUMS
from triton_ext.kernels.spec import KernelSpec, kernel_spec, read_spec
from triton_ext.kernels.tile import Sm90Tile
from triton_ext.kernels.tiles import scale_layouts, tile_layouts


def needed_release(config):
    """The first release of Triton that compiles a configuration."""
    types = ("int8", "nvfp4") if config["arch"] == 100 else ()
    if "cluster_launch_control" in config or config["element_type"] in types:
        return 3, 8
    made = kernel_spec(**config)
    newer = any(made.layouts.boxes) or made.product.gated or getattr(made.tile, "cluster_k", 1) > 1
    return (3, 9) if newer else (3, 7)


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("arch", ARCHES)
def test_generated_layouts_give_the_ptx_of_nvmma_encodings(arch, site):
    """And a release refuses what needs a later one."""
    found = compiled_configurations(arch, site)
    if site is not None:
        release = tuple(map(int, site.name.split(".")[:2]))
        for config, result in found:
            major, minor = needed_release(config)
            refused = f"needs Triton {major}.{minor}" in result.get("error", "")
            assert refused == ((major, minor) > release), config
        found = [each for each in found if needed_release(each[0]) <= release]
    assert len(found) >= (7 if site else 20 if ALL else 15)
    assert sum("nvmma_ptx" in result for _, result in found) >= (5 if site else 20 if ALL else 12)
    mma = {90: r"wgmma\.mma_async", 100: r"tcgen05\.mma\."}[arch]
    for config, result in found:
        assert "error" not in result, f"{config}: {result}"
        assert result["ptx"] == result.get("nvmma_ptx", result["ptx"]), config
        element_bytes = kernel_spec(**config).product.element_bytes
        steps = config.get("block_k", 64) * element_bytes // 32
        assert len(re.findall(mma, result["ptx"])) >= steps
        blocks = config.get("cluster_m", 1) * config.get("cluster_n", 1)
        scope = "cluster" if blocks > 1 else "cta"
        rank = 3 if config.get("batched") else 2
        load = rf"cp\.async\.bulk\.tensor\.{rank}d\.(cta_group::2\.)?shared::{scope}\.global"
        assert re.search(load, result["ptx"])
        assert (".cta_group::2" in result["ptx"]) == (config.get("cta_group") == 2)
        if "consumers" in config:  # inline assembly names descriptors as parameters
            descriptors = re.findall(r"\.param \.align 64 \.b8 (\w+)\[128\]", result["ptx"])
            named = re.findall(r"mov\.b64 map, (\w+);", result["ptx"])
            assert len(named) >= 3
            assert set(named) <= set(descriptors[:3])
        assert f"cp.async.bulk.tensor.{rank}d.global.shared::cta" in result["ptx"]
        if "resources" in result:
            assert result["resources"]["REG"] > 16
            assert result["resources"]["STACK"] == result["resources"]["LOCAL"] == 0, "spills"


def mutations(config):
    """Each basis of each operand, with one bit flipped that keeps it inside of the tile."""
    generator = random.Random(str(config))
    for operand, shape in (
        ("A", (config.tile.block_m, config.tile.block_k)),
        ("B", (config.tile.block_k, config.tile.block_n)),
    ):
        linear = (config.layouts.a if operand == "A" else config.layouts.b).linear
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


@pytest.mark.parametrize(
    ("majors", "site"),
    [
        pytest.param((major, major), *each.values, id=f"{major}-{each.id}", marks=each.marks)
        for each in triton_sites()
        for major in (("MN",) if each.values[0] else ("K", "MN"))
    ],
)
@pytest.mark.parametrize("arch", ARCHES)
def test_every_basis_matters(arch, majors, site):
    """A single wrong bit in a single basis: the compilation fails, or the PTX is another.

    Every other basis, but by `make oracle`: of K-major operands those that are left out of
    MN-major ones.
    """
    fields = {"arch": arch, "element_type": "fp16", "block_n": 64, "stages": 2}
    fields |= dict(zip(("a_major", "b_major"), majors, strict=True))
    changes = list(mutations(kernel_spec(**fields)))
    assert len(changes) >= 25
    if not ALL:
        changes = changes[majors == ("K", "K") :: 2]
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
    assert sum("error" in result for result in wrong) >= (20 if ALL else 10)


def test_ptx_without_debug_lines_keeps_the_code():
    from triton_ext.ptx.text import without_debug_lines

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
        ({"consumers": 4}, "consumers"),
        ({"consumers": 2, "arch": 100}, "consumers"),
        ({"consumers": 1, "arch": 100, "block_n": 8}, "block_n"),
        ({"consumers": 1, "arch": 100, "cta_group": 2}, "cta_group"),
        (
            {
                "consumers": 1,
                "arch": 100,
                "cta_group": 2,
                "cluster_m": 2,
                "block_m": 64,
                "c_parts": 2,
            },
            "c_parts",
        ),
        (
            {
                "consumers": 1,
                "arch": 100,
                "element_type": "int8",
                "a_major": "MN",
                "b_major": "MN",
                "block_k": 16,
            },
            "block_k",
        ),
        ({"consumers": 1, "arch": 100, "cluster_launch_control": True, "split_k": 2}, "split_k"),
        ({"consumers": 2, "cta_group": 2, "cluster_m": 2}, "cta_group"),
        ({"consumers": 2, "cluster_m": 8}, "cluster_m"),
        ({"consumers": 2, "cluster_n": 8}, "cluster_n"),
        ({"consumers": 2, "cluster_m": 4, "cluster_n": 4}, "cluster_n"),
        ({"consumers": 2, "cluster_n": 2, "cluster_k": 2}, "cluster_k"),
        ({"consumers": 1, "cluster_m": 2, "cluster_n": 2, "arch": 100}, "cluster_n"),
        (  # boxes of 6 rows of 32 bytes
            {
                "consumers": 1,
                "cluster_m": 4,
                "block_m": 64,
                "block_n": 24,
                "block_k": 16,
                "c_parts": 3,
            },
            "cluster_m",
        ),
        ({"consumers": 2, "cluster_k": 3}, "cluster_k"),
        ({"consumers": 2, "cluster_k": 2, "cluster_m": 2}, "cluster_k"),
        ({"consumers": 2, "cluster_k": 2, "pingpong": True}, "cluster_k"),
        ({"consumers": 1, "cluster_k": 2, "arch": 100}, "cluster_k"),
        ({"consumers": 2, "cluster_k": 2, "split_k": 2}, "split_k"),
        ({"consumers": 2, "block_m": 64}, "block_m"),
        ({"consumers": 2, "block_m": 256, "block_n": 256}, "block_m"),
        ({"consumers": 3, "block_m": 192, "block_n": 256}, "block_n"),
        ({"consumers": 2, "num_warps": 8}, "num_warps"),
        ({"consumers": 2, "cluster_m": 2, "split_k": 33}, "split_k"),
        ({"consumers": 1, "block_m": 64, "block_n": 8, "b_major": "MN"}, "b_swizzle"),
        ({"consumers": 2, "element_type": "e4m3", "a_major": "MN"}, "a_major"),
        ({"consumers": 2, "out_type": "int32"}, "out_type"),
        ({"consumers": 2, "activation": "tanh"}, "activation"),
        ({"consumers": 1, "block_m": 64, "pingpong": True}, "pingpong"),
        ({"consumers": 2, "block_n": 100}, "block_n"),
        ({"consumers": 2, "block_n": 160}, "c_parts"),
        ({"consumers": 2, "block_n": 72, "c_parts": 9, "block_k": 128, "cluster_k": 2}, "block_n"),
        ({"consumers": 2, "block_n": 72, "c_parts": 9, "element_type": "int8"}, "block_n"),
        ({"consumers": 1, "arch": 100, "block_n": 96, "c_parts": 3}, "block_n"),
        ({"consumers": 3, "block_m": 192, "block_n": 208, "c_parts": 13}, "block_n"),
        ({"consumers": 2, "block_n": 0, "cluster_k": 2}, "block_n"),
        ({"consumers": 2, "loaded_rows": 8}, "loaded_rows"),
        ({"consumers": 1, "block_m": 64, "loaded_rows": 64}, "loaded_rows"),
        ({"consumers": 1, "block_m": 64, "loaded_rows": 8, "a_major": "MN"}, "loaded_rows"),
        ({"consumers": 2, "fp32_accumulation": True}, "fp32_accumulation"),
        *(
            (
                {"element_type": "e4m3", "block_k": 128, "fp32_accumulation": True} | fields,
                "fp32_accumulation",
            )
            for fields in (
                {"consumers": 2, "block_k": 256, "stages": 2},
                {"consumers": 2, "block_n": 208, "c_parts": 13},
                {"consumers": 3, "block_m": 192, "block_n": 128},
                {"consumers": 1, "arch": 100},
            )
        ),
        *(
            ({"consumers": 2, "block_n": 72, "c_parts": 9} | fields, "last_through_pipeline")
            for fields in (
                {"last_through_pipeline": True, "residual": True},
                {"last_through_pipeline": True, "swap_ab": True, "block_n": 128, "block_m": 72},
                {"last_through_pipeline": True, "block_n": 48, "c_parts": 3},
                {"last_through_pipeline": True, "block_n": 200, "c_parts": 25, "stages": 2},
                {"last_through_pipeline": True, "batched": True, "collective": "gather"},
                {
                    "last_through_pipeline": True,
                    "arch": 100,
                    "consumers": 1,
                    "block_n": 64,
                    "c_parts": 8,
                },
            )
        ),
        ({"consumers": 2, "out_type": "e4m3", "c_parts": 16}, "c_parts"),
        ({"consumers": 1, "block_m": 64, "block_n": 8, "out_type": "e4m3"}, "c_parts"),
        ({"consumers": 2, "element_type": "mxfp8"}, "element_type"),
        ({"consumers": 1, "arch": 100, "element_type": "mxfp8"}, "block_k"),
        *(
            (
                {"consumers": 1, "arch": 100, "element_type": "nvfp4", "stages": 2} | fields,
                next(iter(fields)),
            )
            for fields in (
                {"block_n": 64},
                {"block_m": 64},
                {"block_k": 16},
                {"a_major": "MN"},
                {"batched": True},
            )
        ),
        ({"bias": True}, "bias"),
        ({"swap_ab": True}, "swap_ab"),
        # of another kind, though some are equal to what is legal
        ({"block_m": "128"}, "block_m"),
        ({"stages": 3.0}, "stages"),
        ({"element_type": b"fp16"}, "element_type"),
        ({"a_swizzle": "128"}, "a_swizzle"),
        ({"consumers": True, "block_m": 64}, "consumers"),
        ({"consumers": 2, "cluster_m": None}, "cluster_m"),
        ({"consumers": 2, "c_parts": [1]}, "c_parts"),
        ({"consumers": 1, "block_m": 64, "loaded_rows": -8}, "loaded_rows"),
        ({"consumers": 2, "bias": 1}, "bias"),
        ({"consumers": 2, "out_type": ["fp16"]}, "out_type"),
    ],
)
def test_illegal_configurations(fields, argument):
    with pytest.raises(LayoutError) as caught:
        kernel_spec(**({"arch": 90, "element_type": "fp16"} | fields))
    assert caught.value.argument == argument


READ = """
import importlib, pkgutil
from triton.runtime.jit import JITFunction
from triton_ext.kernels import device
for each in pkgutil.iter_modules(device.__path__, device.__name__ + "."):
    module = importlib.import_module(each.name)
    for function in [each for each in vars(module).values() if isinstance(each, JITFunction)]:
        function.cache_key
        print(function.fn.__name__)
"""


@pytest.mark.parametrize("site", triton_sites())
def test_each_release_reads_the_source_of_what_runs_on_a_gpu(site):
    """Targets of assignments, for one: 3.7 knows no tuples of tuples."""
    paths = [str(site)] * (site is not None) + [str(installed_folder("triton_ext").parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-c", READ], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-600:]
    assert "load_tiles" in done.stdout.split()


def test_kernels_are_read_as_they_were_written():
    """By this release, and before fields had their present names."""
    kernel = kernel_spec(100, "nvfp4", consumers=1, block_n=256, block_k=128, stages=2, c_parts=4,
                         cluster_m=2, cta_group=2, bias=True)  # fmt: skip
    assert read_spec(kernel.fields()) == kernel
    old = {"arch": 90, "element_type": "e4m3", "consumers": 2, "block_k": 128, "swap": True,
           "cluster": 2, "cluster_columns": 2, "max_splits": 4, "promoted": True, "pair": False,
           "k_blocks": 1, "side": 0, "consumer_columns": 1}  # fmt: skip
    found = read_spec(old)
    assert found.product == ProductSpec("e4m3", fp32_accumulation=True)
    assert found.tile == Sm90Tile(
        consumers=2, block_k=128, swap_ab=True, cluster_m=2, cluster_n=2, split_k=4
    )
    for gone in ({"side": 32}, {"consumer_columns": 2}):
        with pytest.raises(LayoutError, match="must be"):
            read_spec(old | gone)


def test_a_swizzle_that_does_not_fit():
    with pytest.raises(LayoutError, match="at least 64 elements"):
        kernel_spec(90, "fp16", block_k=32, a_swizzle=128)


def test_layouts_of_a_tile():
    tile = tile_layouts((64, 128), 0, 16)
    assert tile.encoding == NVMMAShared(128, 16, transposed=True)
    assert tile.tma_shape == (128, 64)
    assert tile.tma_encoding == NVMMAShared(128, 16)
    assert tile.linear.offset_bases[0] == (1, 0)
    assert tile.linear.alignment == 1024


@pytest.mark.parametrize(("rows", "columns", "blocks"), [(128, 4, 1), (256, 16, 1), (512, 8, 2)])
def test_scales_lie_as_torch_stores_them(rows, columns, blocks):
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    from plan_launch import to_blocked

    tile = scale_layouts(rows, columns, [[1, 0]] if blocks == 2 else [])
    linear = tile.linear.to_linear_layout()
    coordinates = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    stored = [to_blocked(each.view(rows, columns).to(torch.uint8)) for each in coordinates.T]
    own = rows * columns // blocks
    for block, offset in itertools.product(range(blocks), range(0, own, 3)):
        place = linear.apply(offset=offset, **({"block": block} if blocks > 1 else {}))
        found = [place[dim] % 256 for dim in ("dim0", "dim1")]
        assert found == [int(each[block * own + offset]) for each in stored]
    assert math.prod(tile.tma_shape) == rows * columns


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("majors", MAJORS)
def test_every_problem_has_a_legal_configuration(arch, majors):
    for m, n, k in itertools.product((1, 64, 65, 20000), (1, 64, 65, 128, 129, 20000), (1, 4096)):
        config = choose_config(arch, ProductSpec("bf16", *majors), Problem(m, n, k))
        assert (config.arch, config.product.a_major, config.product.b_major) == (arch, *majors)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("element_type", ["bf16", "e4m3", "tf32"])
def test_tma_brings_each_block_what_its_tensor_cores_read(arch, element_type):
    """Of every tile that the cost model knows of; boxes that are dealt out bring it all, once."""
    configs = {
        config
        for majors in (MAJORS if element_type == "bf16" else [("K", "K")])
        for m, n, k in itertools.product((8, 200, 5000), (136, 5000), (1040, 8192))
        for config in ranked(arch, ProductSpec(element_type, *majors), Problem(m, n, k))
    }
    assert arch == 100 or any(config.tile.cluster_k > 1 for config in configs)
    for config in configs:
        operands = [config.layouts.a, config.layouts.b]
        left, right = reversed(operands) if config.tile.swap_ab else operands
        for tile, k_dim in ((left, 1), (right, 0)):
            if boxes := tile.boxes:
                size = config.tile.loaded_rows or config.tile.rows
                edge = None if k_dim else config.layouts.boxes[2]
                if not k_dim:
                    size = config.tile.columns
                    assert (edge is not None) == (boxes.panels < boxes.all_panels)
                copied = boxes.bytes + (edge.bytes if edge else 0)
                assert copied == size * config.tile.block_k * config.product.element_bytes
                assert boxes.number * boxes.among == boxes.parts * boxes.panels * boxes.pieces
                assert boxes.rows * boxes.pieces in (boxes.across, config.tile.loaded_rows)
                assert boxes.rows <= 256
                continue
            seen = tile.tma_encoding.to_linear_layout(tile.tma_shape).bases
            order = -1 if tile.encoding.transposed != tile.tma_encoding.transposed else 1
            offsets = [tuple(basis[::order]) for basis in seen["offset"]]
            assert offsets == [*tile.linear.offset_bases]
            blocks = [tuple(basis[::order]) for basis in seen.get("block", ())]
            if config.tile.cluster_k == 1:
                assert blocks == [*tile.linear.block_bases]
            else:
                along = [(0, config.tile.block_k << i) for i in range(len(blocks))]
                assert blocks == [basis if k_dim else basis[::-1] for basis in along]


@pytest.mark.parametrize("arch", ARCHES)
def test_room_for_a_residual(arch):
    """The same tile; all pieces have buffers where a stage can be spared for them."""
    whole = 0
    for m, n, k in itertools.product((8, 200, 1000, 5000), (136, 2000, 7000), (200, 1000, 8192)):
        plain = choose_config(arch, ProductSpec("bf16", "K", "MN"), Problem(m, n, k))
        epilogue = EpilogueSpec(residual=True, bias=True)
        config = with_epilogue(plain, k, epilogue)
        assert config == with_epilogue(config, k, epilogue)
        lost = plain.tile.stages - config.tile.stages
        changed = {"stages": config.tile.stages, "c_buffers": config.tile.c_buffers}
        changed["last_through_pipeline"] = False
        assert config == plain.with_fields(residual=True, bias=True, **changed)
        assert plain.tile.c_buffers <= config.tile.c_buffers <= config.tile.c_parts
        assert lost == 0 or (
            lost == 1 and k < 2000 and config.tile.c_buffers == config.tile.c_parts
        )
        whole += config.tile.c_buffers == config.tile.c_parts
        assert with_epilogue(plain, k, EpilogueSpec(bias=True)) == plain.with_fields(bias=True)
    assert whole > 12


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (512, 6144, 4096, (128, 192)),  # 128 tiles for 132 SMs
        (64, 6144, 4096, (64, 48)),
        (1, 4096, 4096, (8, 64)),
    ],
)
def test_the_cost_model_where_there_is_little_doubt(m, n, k, tile):
    config = choose_config(90, ProductSpec("bf16"), Problem(m, n, k))
    assert (config.tile.block_m, config.tile.block_n) == tile


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (8192, 8192, 8192, (128, 256, True, False)),  # pairs share what they load
        (16, 8192, 8192, (16, 128, False, True)),  # few rows: swapped, and cut along K
        (8192, 16, 8192, (128, 16, False, False)),
    ],
)
def test_the_cost_model_of_blackwell_where_there_is_little_doubt(m, n, k, tile):
    config = choose_config(100, ProductSpec("bf16"), Problem(m, n, k, 148))
    made = config.tile
    assert (made.block_m, made.block_n, made.cta_group == 2, made.swap_ab) == tile


@pytest.mark.parametrize(
    ("arch", "element_type"),
    [
        *itertools.product(ARCHES, ["fp16", "bf16", "e4m3", "e5m2", "e5m2_e4m3", "tf32", "int8"]),
        *itertools.product([100], BLOCK_SCALED),
    ],
)
@pytest.mark.parametrize("out_type", [None, "fp32", "bf16", "e4m3"])
def test_every_type_has_configurations(arch, element_type, out_type):
    for m, n, k in ((1, 1, 1), (64, 4096, 4096), (4096, 4096, 4096)):
        config = choose_config(arch, ProductSpec(element_type, out_type=out_type), Problem(m, n, k))
        assert (config.product.element_type, config.product.out_type) == (element_type, out_type)


@pytest.mark.parametrize(
    ("arch", "types", "out_type", "argument"),
    [
        (90, ("int8", "K", "MN"), None, "b_major"),
        (90, ("nvfp4", "K", "K"), None, "element_type"),
        (90, ("bf16", "K", "K"), "int32", "out_type"),
        (100, ("tf32", "MN", "K"), None, "a_major"),
        (100, ("fp64", "K", "K"), None, "element_type"),
        (100, ("bf16", "K", "K"), "int32", "out_type"),
    ],
)
def test_types_that_no_kernel_takes(arch, types, out_type, argument):
    pytest.importorskip("triton")
    with pytest.raises(LayoutError) as caught:
        choose_config(arch, ProductSpec(*types, out_type), Problem(64, 64, 64))
    assert caught.value.argument == argument


@pytest.mark.parametrize(("arch", "element_type"), [(100, "e4m3"), (90, "bf16"), (90, "int8")])
def test_types_that_are_not_accumulated_in_fp32(arch, element_type):
    pytest.importorskip("triton")
    with pytest.raises(LayoutError, match="fp32_accumulation = True: must be False"):
        choose_config(arch, ProductSpec(element_type, fp32_accumulation=True), Problem(64, 64, 64))


@pytest.mark.parametrize(
    ("m", "n", "k"), [(427, 5120, 5120), (254, 4608, 3584), (5383, 24576, 1536)]
)
def test_what_is_chosen_for_fp32_accumulation(m, n, k):
    """By a model in which they cost time: what is fastest without them may not be with them."""
    pytest.importorskip("triton")
    plain = ProductSpec("e4m3", out_type="bf16")
    product, problem = replace(plain, fp32_accumulation=True), Problem(m, n, k)
    config = choose_config(90, product, problem)
    assert config.product.fp32_accumulation
    table = sm90.table_of([choose_config(90, plain, problem)], plain)
    without = sm90.seconds(table, problem)
    assert (sm90.fp32_seconds(table, problem, without) > without).all()
    lone = kernel_spec(90, "e4m3", block_m=64, block_k=128, stages=4, consumers=1, out_type="bf16")
    (chosen,) = sm90.seconds(sm90.table_of([config], plain), problem)
    assert chosen < sm90.seconds(sm90.table_of([lone], product), problem).min()


@pytest.mark.parametrize(
    ("fields", "partial_sums"),
    [
        ({"block_m": 64, "block_n": 128, "consumers": 1}, 2),
        ({"block_m": 128, "block_n": 96, "c_parts": 3, "consumers": 2}, 2),
        ({"block_m": 192, "block_n": 112, "c_parts": 7, "consumers": 3}, 1),
    ],
)
def test_products_accumulated_in_fp32_overlap(fields, partial_sums, tmp_path):
    """As many sums as there are registers for; and ptxas neither spills them nor, as it does where
    it cannot follow which are being made, has each instruction wait for the one before.
    """
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import compile_matmul

    config = kernel_spec(
        90, "e4m3", block_k=128, stages=2, fp32_accumulation=True, out_type="bf16", **fields
    )
    assert config.partial_sums == partial_sums
    assert config.with_fields(fp32_accumulation=False).partial_sums == 0
    if not candidates.is_new():
        with pytest.raises(LayoutError, match=r"fp32_accumulation = True: needs Triton 3\.9"):
            compile_matmul(config)
        return
    said = said_by_ptxas(compile_matmul(config).asm["ptx"], tmp_path)
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    assert "serialized" not in said


@pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
@pytest.mark.parametrize(
    "fields", [{"block_n": 128}, {"block_n": 192, "c_parts": 3}], ids=["in turn", "one by one"]
)
def test_no_consumer_waits_for_scales_in_memory(fields, tmp_path):
    """They come with the tiles, and take no more registers than there are."""
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import compile_matmul

    scales = {"a_scale_rows": 1, "b_scale_rows": 128}
    config = kernel_spec(
        90, "e4m3", block_k=128, stages=2, fp32_accumulation=True, out_type="bf16", consumers=2,
        **scales, **fields,
    )  # fmt: skip
    text = compile_matmul(config).asm["ptx"]
    assert "ld.global" not in text
    assert "cp.async.ca.shared.global" in text
    said = said_by_ptxas(text, tmp_path)
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    assert "serialized" not in said


@pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
@pytest.mark.parametrize(
    "fields", [{"pingpong": True}, {"block_n": 256}, {"swap_ab": True}], ids=str
)
def test_warps_that_copy_rows_have_enough_registers(fields, tmp_path):
    """They have 24 a thread; and the fence of consumers does not serialize their products."""
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import compile_matmul

    config = kernel_spec(
        90, "bf16", consumers=2, c_parts=2, stages=2, batched=True, groups="M", gathered=True,
        scattered=True, factors=True, **fields,
    )  # fmt: skip
    text = compile_matmul(config).asm["ptx"]
    assert "cp.async.cg.shared.global" in text
    said = said_by_ptxas(text, tmp_path)
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    assert "serialized" not in said


def said_by_ptxas(text, folder):
    """What ptxas says of a kernel for sm_90."""
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    ptx = folder / "kernel.ptx"
    ptx.write_text(text)
    command = [compiler.get_ptxas(100).path, "-arch=sm_90a", "-v", "-o", ptx.with_suffix(".o"), ptx]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


@pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
@pytest.mark.parametrize(
    "fields",
    [
        {"block_m": 64, "block_n": 64, "consumers": 1},
        {"block_m": 64, "block_n": 128, "consumers": 2, "pingpong": True},
        {"block_m": 192, "block_n": 128, "consumers": 3},
    ],
)
def test_warps_that_gather_rows_do_not_spill(fields, tmp_path):
    """With 24 registers each they did."""
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import compile_matmul

    config = kernel_spec(
        90, "bf16", b_major="MN", batched=True, groups="M", gathered=True, gated=True, c_parts=2,
        interleaved=True, bias=True, activation="clamped_silu", stages=2, **fields,
    )  # fmt: skip
    said = said_by_ptxas(compile_matmul(config).asm["ptx"], tmp_path)
    assert "0 bytes spill stores, 0 bytes spill loads" in said


@pytest.mark.skipif(not candidates.is_new(), reason="needs Triton 3.9")
def test_rows_that_are_scattered_are_stored_by_16_bytes(tmp_path):
    """As many sums as there may be, and nothing of a row is asked for, or spilled, at a piece."""
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import compile_matmul

    config = kernel_spec(
        90, "bf16", batched=True, groups="M", scattered=True, factors=True, block_m=208,
        block_n=128, swap_ab=True, consumers=2, pingpong=True, stages=4, c_parts=13, c_buffers=4,
    )  # fmt: skip
    ptx = compile_matmul(config).asm["ptx"]
    pieces, stores = config.tile.consumers * config.tile.c_parts, ptx.count("st.global")
    assert stores == ptx.count("st.global.v4.b32") == 2 * pieces  # 16 rows of 256 bytes by 128
    assert ptx.count("ld.global") < pieces
    assert "0 bytes spill stores, 0 bytes spill loads" in said_by_ptxas(ptx, tmp_path)


@pytest.mark.parametrize("columns", [MOST_SUMS, MOST_SUMS + 8])
def test_sums_take_as_many_registers_as_there_are(columns, tmp_path):
    """ptxas neither spills nor serializes them, and would with more."""
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import compile_matmul

    tile = Sm90Tile(block_m=256, block_n=columns, stages=2, c_parts=columns // 8, consumers=2)
    epilogue = EpilogueSpec(bias=True, activation="gelu")
    config = KernelSpec.unchecked(ProductSpec("bf16"), epilogue, tile)
    assert config.is_legal == (columns == MOST_SUMS)
    if not candidates.is_new():
        with pytest.raises(LayoutError, match=r"block_n.*needs Triton 3\.9"):
            compile_matmul(config)
        return
    said = said_by_ptxas(compile_matmul(config).asm["ptx"], tmp_path)
    assert ("0 bytes spill stores, 0 bytes spill loads" in said) == config.is_legal
    assert ("serialized" in said) != config.is_legal


# ------------------------------------------------- the kernel with consumers, on the emulated GPU

# Each under one of the schedules, in turn; by `make oracle` under all of them, which also has the
# configurations whose parts others have, too, and the number of stages that is the default, where
# here it is two.
SCHEDULES = ("eager", "lazy", "random")
CASES = [*((*case, "") for case in EMULATED + WITH_RESIDUAL), *BATCHED, *EMULATED_SM100]
CASES = CASES if ALL else spread(CASES)
SCHEDULED = [(*case, schedule) for case, schedule in in_turn(CASES, SCHEDULES)]


@pytest.mark.usefixtures("no_binaries")
@pytest.mark.parametrize(
    ("fields", "m", "n", "k", "multiprocessors", "shared", "schedule"), SCHEDULED
)
def test_the_kernel_with_consumers(fields, m, n, k, multiprocessors, shared, schedule):
    """Exact, free of races and deadlocks; and the workspace serves a second launch, which may
    overwrite the residual.
    """
    pytest.importorskip("triton")
    torch = pytest.importorskip("torch")
    import plan_launch

    import triton_ext

    config = kernel_spec(**({"arch": 90, "element_type": "bf16"} | STAGES | fields))
    a, b, extras, expected = plan_launch.problem(config, m, n, k, shared=shared)
    workspace = torch.zeros(1 << 25, dtype=torch.uint8)
    with triton_ext.emulate(f"sm_{config.arch}", schedule=schedule):
        first = plan_launch.launch(config, a, b, extras, multiprocessors, workspace)
        if config.tile.split_k > 1 or config.epilogue.residual:
            second = plan_launch.launch(
                config, a, b, extras, multiprocessors, workspace, config.epilogue.residual
            )
            assert torch.equal(first, second)
    if extras.keys() - {"left_scales", "right_scales"} or config.epilogue.activation:
        error = plan_launch.relative_error(first, expected)
        assert error <= plan_launch.ROUNDING[config.product.c_type]
    else:
        assert torch.equal(first, expected.to(first.dtype))


def test_rows_that_are_not_copied_must_not_be_there():
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import launch_plan

    config = kernel_spec(90, "bf16", block_m=64, consumers=1, loaded_rows=24)
    gpu = SimpleNamespace(multi_processor_count=132)
    assert launch_plan(config, 24, 256, 64, gpu).grid == (2, 1, 1)
    with pytest.raises(LayoutError, match="at least M, 25"):
        launch_plan(config, 25, 256, 64, gpu)
    swapped = config.with_fields(block_m=128, block_n=64, swap_ab=True)
    with pytest.raises(LayoutError, match="at least N, 25"):
        launch_plan(swapped, 256, 25, 64, gpu)


def test_plans_of_one_configuration_differ_in_grid_workspace_and_order_alone():
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import launch_plan

    gpu = SimpleNamespace(multi_processor_count=132)
    config = kernel_spec(90, "bf16", block_n=256, consumers=2, c_parts=2, split_k=4)
    small, large = launch_plan(config, 128, 256, 64, gpu), launch_plan(config, 8192, 8192, 64, gpu)
    assert small.grid == large.grid == (132, 1, 1)
    assert small.constants == large.constants
    assert small.options == large.options
    assert small.arguments == ("a_desc", "b_desc", "c_desc", "group", "workspace")
    assert list(small.tiles) == ["a_desc", "b_desc", "c_desc"]
    assert small.workspace_bytes == 8192 + 2 * 132 * 128 * 256 * 4
    config = kernel_spec(90, "bf16", block_n=192, consumers=3, swap_ab=True, cluster_m=2)
    plan = launch_plan(config, 300, 700, 64, gpu)
    assert plan.grid == (3 * 2, 1, 1)  # clusters of 128x384
    assert plan.arguments == ("b_desc", "a_desc", "c_desc", "group")
    assert plan.options["num_ctas"] == 2
    assert plan.workspace_bytes == 0


def test_the_order_of_tiles_is_no_part_of_what_is_compiled():
    pytest.importorskip("triton")
    from triton_ext.kernels.launch import launch_plan

    gpu = SimpleNamespace(multi_processor_count=132)
    alone = kernel_spec(90, "bf16", block_n=256, consumers=2, c_parts=2)
    together = alone.with_fields(cluster_m=2)
    sizes = [(1024, 2048, 64), (8192, 8192, 64)]  # one wave, and many
    plans = [[launch_plan(each, *size, gpu) for size in sizes] for each in (alone, together)]
    assert [[plan.group for plan in each] for each in plans] == [[1, 16], [1, 2]]
    assert plans[1][0].constants == plans[1][1].constants
    for m, n, group in ((8192, 512, 1), (512, 8192, 4)):  # two tiles in a row, and four rows
        assert launch_plan(alone, m, n, 64, gpu).group == group
        swapped = alone.with_fields(swap_ab=True)  # its rows are C's columns
        assert launch_plan(swapped, n // 2, m * 2, 64, gpu).group == group


def test_unknown_attribute():
    import triton_ext

    with pytest.raises(AttributeError, match="no attribute 'matmal'"):
        _ = triton_ext.matmal


@pytest.mark.parametrize("k", [64, 192, 384, 448])
def test_a_cluster_waits_at_its_end_for_what_was_filled(k):
    """One stage of six, three, all, and all in a second turn. A block that ends before
    another one's arrival gets to it is a fault, in whichever schedule it may.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    config = kernel_spec(
        90, "fp16", "K", "K", block_m=64, block_n=64, stages=6, consumers=1, cluster_m=2
    )
    a, b = torch.randn(128, k).half(), torch.randn(64, k).half().t()
    with triton_ext.emulate("sm_90", schedules="all") as gpu:
        made = triton_ext.matmul(a, b, config=config)
    assert [each.outcome for each in gpu.verdicts] == ["proven"]
    torch.testing.assert_close(made.double(), a.double() @ b.double(), rtol=1e-2, atol=1e-1)
