"""How tensors are converted between layouts: against the PTX of each Triton, and the emulator."""

from __future__ import annotations

import convert_layout
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mutations import some
from sites import triton_sites

from triton_ext.emulator.clients.statistics import Statistics
from triton_ext.emulator.host.run import run_ptx
from triton_ext.errors import LayoutError
from triton_ext.hardware.conversions import plan_conversion
from triton_ext.hardware.staging import stagings
from triton_ext.layouts.distributed import distributed_linear_layout
from triton_ext.layouts.encodings import NVMMAShared
from triton_ext.layouts.linear_layout import LinearLayout

ROWS = (
    "#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1],"
    " order = [1, 0]}>"
)
NARROW = ROWS.replace("[1, 8]", "[1, 4]", 1)
COLUMNS = (
    "#ttg.blocked<{sizePerThread = [8, 1], threadsPerWarp = [8, 4], warpsPerCTA = [1, 4],"
    " order = [0, 1]}>"
)
ACCUMULATOR = (
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1],"
    " instrShape = [16, 64, 16]}>"
)
A_OPERAND = f"#ttg.dot_op<{{opIdx = 0, parent = {ACCUMULATOR}, kWidth = 2}}>"
A_OPERAND_8 = A_OPERAND.replace("kWidth = 2", "kWidth = 4")


def plan(source, target, bits, shape=(128, 64), **options):
    layouts = (distributed_linear_layout(text, shape) for text in (source, target))
    return plan_conversion(*layouts, bits, **options)


@pytest.mark.parametrize(
    ("source", "target", "bits", "way", "instructions"),
    [
        (ROWS, ROWS, 16, "nothing", {}),
        (ACCUMULATOR, A_OPERAND, 16, "nothing", {}),
        (ROWS, NARROW, 16, "shuffles", {"shfl.sync": 32}),
        (ACCUMULATOR, A_OPERAND_8, 8, "shuffles", {"shfl.sync": 16}),
        (ROWS, ACCUMULATOR, 16, "shared memory", {"st.shared of 128 bits": 8, "ldmatrix.x4": 8}),
        (ACCUMULATOR, ROWS, 32, "shared memory", {"st.shared of 128 bits": 16, "ldmatrix.x4": 16}),
        (ROWS, COLUMNS, 16, "shared memory", {"st.shared of 128 bits": 8, "ldmatrix.x4.trans": 8}),
    ],
)  # fmt: skip
def test_conversions_of_kernels(source, target, bits, way, instructions):
    found = plan(source, target, bits)
    assert (found.way, found.instructions) == (way, instructions)
    assert found.wavefronts == found.ideal_wavefronts


def test_a_tensor_goes_in_rounds_through_less_memory_than_it_needs():
    found = plan(ROWS, ACCUMULATOR, 32)
    assert found.bytes == 128 * 64 * 4
    assert found.scratch.rounds * found.scratch.bytes == found.bytes
    assert found.scratch.rounds == 4
    assert found.scratch.encoding.stored_elements() == 128 * 64
    assert not found.scratch.within_warps


def test_without_stmatrix():
    assert plan(ACCUMULATOR, COLUMNS, 16, arch=90).scratch.store.mnemonic == "stmatrix.x4.trans"
    assert plan(ACCUMULATOR, COLUMNS, 16, arch=80).scratch.store.mnemonic.startswith("st.shared")


def test_a_warp_reads_its_own_copy_since_3_9():
    units = {"register": [], "lane": [(1,), (2,), (4,), (8,), (16,)], "warp": [(0,)]}
    all_warps = LinearLayout(units, {"dim0": 32})
    split = units | {"lane": [(1,), (2,), (4,), (8,), (0,)], "warp": [(16,)]}
    by_warps = LinearLayout(split, {"dim0": 32})
    ways = [
        plan_conversion(all_warps, by_warps, 32, release=release).way
        for release in ((3, 8), (3, 9))
    ]
    assert ways == ["shared memory", "shuffles"]


# ------------------------------------------------------------------------------ Triton as oracle


@pytest.mark.parametrize("site", triton_sites())
@given(st.integers(0, 1 << 32))
@settings(
    max_examples=1, deadline=None, phases=[Phase.generate], derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_triton_does_what_is_predicted(site, seed):
    """TRITON_EXT_FUZZ says how many times as many pairs are drawn."""
    jobs = convert_layout.jobs(seed, some(6)) + convert_layout.jobs(seed, some(2), blocks=True)
    release, results = convert_layout.compiled(jobs, site)
    for job, result in zip(jobs, results, strict=True):
        if release < (3, 8) and job["blocks"] > 1 and "PassManager" in result.get("error", ""):
            continue  # 3.7 converts within a block alone
        found = convert_layout.planned(job, release)
        assert convert_layout.moves(result["ptx"]) == found.instructions, job
        if found.scratch is not None:
            times = job["blocks"] if release < (3, 8) else 1
            assert result["shared"] in (found.scratch.bytes, times * found.scratch.bytes), job
            assert convert_layout.barriers(result["ptx"]) != found.scratch.within_warps, job


# --------------------------------------------------------------------------- the emulated GPU


def test_the_wavefronts_are_what_the_emulated_gpu_counts():
    """The wavefronts of drawn conversions, at the addresses that Triton's PTX computes."""
    pytest.importorskip("triton")
    jobs = [job for job in convert_layout.jobs(11, some(8)) if job["arch"] >= 90]
    release, results = convert_layout.compiled(jobs, None)
    for job, result in zip(jobs, results, strict=True):
        found = convert_layout.planned(job, release)
        if found.scratch is None:
            continue
        size = convert_layout.BITS[job["element"]] // 8 * job["size"]
        arrays = (
            np.random.default_rng(0).integers(256, size=size, dtype=np.uint8),
            np.zeros(size, np.uint8),
        )
        counted = Statistics()
        run_ptx(
            result["ptx"], grid=1, block=32 * job["warps"], args=[*arrays, 0, 0],
            dynamic_smem_bytes=result["shared"], observer=counted,
        )  # fmt: skip
        assert (arrays[0] == arrays[1]).all()
        expected = found.wavefronts, found.ideal_wavefronts
        assert (counted.wavefronts, counted.ideal_wavefronts) == expected, job


# ---------------------------------------------------------------------------- encodings in between


def test_the_encodings_in_between():
    source, target = (distributed_linear_layout(text, (128, 64)) for text in (ROWS, ACCUMULATOR))
    own = plan_conversion(source, target, 16).scratch.encoding
    found = stagings(source, target, 16, more=(own,))
    assert found[0].encoding == own
    assert found[1].encoding == NVMMAShared(128, 16)
    assert found[0].wavefronts == found[1].wavefronts == 256
    assert [each.wavefronts for each in found] == sorted(each.wavefronts for each in found)
    assert found[-1].wavefronts > 8 * found[0].wavefronts
    assert {type(each.encoding).__name__ for each in found} == {
        "SharedLinear", "SwizzledShared", "NVMMAShared",
    }  # fmt: skip


def test_no_encoding_in_between_is_better_than_tritons_own():
    compared = 0
    for job in convert_layout.jobs(4, 60):
        found = convert_layout.planned(job, (3, 9))
        if found.way != "shared memory":
            continue
        source, target = (convert_layout.layout(job[name], job["size"]) for name in "ab")
        bits, own = convert_layout.BITS[job["element"]], found.scratch.encoding
        best = stagings(source, target, bits, arch=job["arch"], more=(own,))[0]
        assert best.wavefronts == found.wavefronts
        compared += 1
    assert compared > 20


# ------------------------------------------------------------------------------------------ errors


def test_what_does_not_go_together():
    with pytest.raises(LayoutError, match="of the source's shape"):
        plan_conversion(
            distributed_linear_layout(ROWS, (64, 64)),
            distributed_linear_layout(ROWS, (128, 64)),
            16,
        )
    with pytest.raises(LayoutError, match="'warp' must have size 4"):
        plan(ROWS, ROWS.replace("[4, 1]", "[8, 1]"), 16)
    with pytest.raises(LayoutError, match="must be one of"):
        plan(ROWS, ACCUMULATOR, 24)
    lanes = [(1,), (2,), (4,), (8,), (16,)]
    mixed = LinearLayout({"register": [(33,)], "lane": lanes}, {"dim0": 64})
    with pytest.raises(LayoutError, match="a power of two along one dimension"):
        plan_conversion(mixed, mixed, 16)
    with pytest.raises(LayoutError, match="'lane' must have size 32"):
        plan_conversion(LinearLayout({"register": [], "lane": lanes[:4]}, {"dim0": 16}), mixed, 16)
    with pytest.raises(LayoutError, match="input dims"):
        plan_conversion(LinearLayout({"offset": lanes}, {"dim0": 32}), mixed, 16)
