"""Several emulated GPUs: launches that wait for each other, and what orders them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from peer_kernels import push_gather  # noqa: E402

import triton_ext  # noqa: E402

SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
PARTS, BLOCK = 2, 64


def gather(gpu, calls=1, **changes):
    options = {"RELEASE": "release", "ACQUIRE": "acquire", "GIVE": "sys", "TAKE": "sys"} | changes
    size = PARTS * BLOCK
    buffers = gpu.symmetric((2 * size,), torch.float32)
    flags = gpu.symmetric((PARTS,), torch.int32)

    def work(rank):
        outs = []
        for call in range(calls):
            mine = torch.arange(size, dtype=torch.float32) + 1000 * rank + 10_000 * call
            out = torch.zeros(2 * size)
            push_gather[(PARTS,)](
                mine, flags[1 - rank], flags[rank], buffers[rank], buffers[1 - rank], out, rank,
                call + 1, BLOCK=BLOCK, num_warps=2, **options,
            )  # fmt: skip
            outs.append(out)
            gpu.barrier()
        return outs

    return gpu.run(work)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
def test_push_gather(schedule, seed, no_binaries):
    with triton_ext.emulate("sm_90", devices=2, schedule=schedule, seed=seed) as gpu:
        found = gather(gpu, calls=2)
    for outs in found:
        for call, out in enumerate(outs):
            row = torch.arange(PARTS * BLOCK, dtype=torch.float32) + 10_000 * call
            assert torch.equal(out, torch.cat([row, row + 1000]))


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"GIVE": "gpu"}, "x"),
        ({"TAKE": "gpu"}, "x"),
        ({"RELEASE": "relaxed"}, "x"),
        ({"ACQUIRE": "relaxed"}, "x"),
    ],
)
def test_faults(change, says, schedule, seed, no_binaries):
    with triton_ext.emulate("sm_90", devices=2, schedule=schedule, seed=seed) as gpu:
        gather(gpu, **change)
