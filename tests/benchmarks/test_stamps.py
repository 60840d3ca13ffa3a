"""Stamps in PTX: the kernel computes the same, and says when its blocks were where."""

from __future__ import annotations

import itertools
import subprocess
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from triton.backends.nvidia.compiler import CUDABackend, get_ptxas

import triton_ext
from benchmarks import stamps
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.launch import compile_matmul, launch_arguments, launch_plan

CONFIGS = [
    MatmulConfig(90, "bf16", block_m=64, block_n=64, stages=4, consumers=2, pingpong=True),
    MatmulConfig(90, "bf16", block_m=64, block_n=64, stages=4, consumers=1, cluster=2),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.words)
def test_a_stamped_kernel_computes_the_same(config, tmp_path):
    make_ptx = CUDABackend.make_ptx
    made = []

    def stamped(self, *arguments):
        made.append(stamps.stamped(make_ptx(self, *arguments)))
        return made[-1]

    m, n, k = 256, 192, 320
    a = torch.randint(-3, 4, (m, k)).to(torch.bfloat16)
    b = torch.randint(-3, 4, (n, k)).to(torch.bfloat16).T
    c = torch.empty((m, n), dtype=torch.bfloat16)
    plan = launch_plan(config, m, n, k, SimpleNamespace(multi_processor_count=132))
    arguments = launch_arguments(config, plan, a, b, c)
    first, others = list(arguments.values())[:3], dict(list(arguments.items())[3:])
    variables = {}
    add = GlobalMemory.add

    def added(self, allocation):
        variables[allocation.name] = allocation.data
        return add(self, allocation)

    kernel = plan.kernel if hasattr(plan.kernel, "device_caches") else plan.kernel.kernel
    # one that is not in Triton's cache, and does not get there
    with (
        mock.patch.object(CUDABackend, "make_ptx", stamped),
        mock.patch.object(GlobalMemory, "add", added),
        mock.patch.dict("os.environ", {"TRITON_CACHE_DIR": str(tmp_path)}),
        triton_ext.emulate("sm_90"),
    ):
        kernel.device_caches.clear()
        plan.kernel[plan.grid](*first, **others, **plan.constants, **plan.options)
    kernel.device_caches.clear()
    assert torch.equal(c, (a.float() @ b.float()).to(torch.bfloat16))
    [ptx] = made
    assert ptx.count("stamp_ended], 1") == ptx.count("ret;")
    blocks = plan.grid[0] * config.blocks
    assert np.asarray(variables["variable stamp_ended"])[:4].view(np.uint32) == blocks
    times = np.asarray(variables["variable stamp_times"]).view(np.int64)
    times = times.reshape(stamps.LAUNCHES, stamps.BLOCKS, len(stamps.TIMES))
    assert not times[1:].any()
    assert not times[0, blocks:].any()
    begin, released, tiles, products, stores, end, sm = times[0, :blocks].T
    for earlier, later in itertools.pairwise((begin, released, tiles, products, stores, end)):
        assert (earlier <= later).all()
    assert (released < end).all()
    assert len(set(sm.tolist())) == blocks


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.words)
def test_ptxas_takes_it_and_spills_nothing(config, tmp_path):
    source = tmp_path / "k.ptx"
    source.write_text(stamps.stamped(compile_matmul(config).asm["ptx"]))
    command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", str(source), "-o", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "0 bytes spill stores" in said


def test_medians_are_of_launches_that_wrote_everything():
    columns = len(stamps.TIMES)
    times = np.zeros((8, 4, columns), np.int64)
    for number in range(8):
        begin = 1_000_000 + 5000 * number  # released; a block ends 3000 to 3300 later
        for block in range(4):
            end = begin + 3000 + 100 * block
            times[number, block] = [begin - 700, begin, begin + 500, end - 900, end - 100, end, 9]
            times[number, block, -1] = block
    found = stamps.medians(times)
    assert found["first tiles"] == 500
    assert found["end"] == 3150
    assert found["begin"] == -700
    assert found["body"] == 3300
    assert found["gap"] == 5000 - 3300
    assert found["turnover"] == 5000 - 700 - 3150
    times[:, 2, 5] = 0
    assert stamps.medians(times) == {}
