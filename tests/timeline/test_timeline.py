"""Predicted time of kernels that run on the emulated GPU."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
import triton
import triton.language as tl

import triton_ext
from triton_ext.emulator.clients.statistics import Statistics
from triton_ext.emulator.clients.trace import Trace
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host import clocks
from triton_ext.emulator.schedule.observers import Observers
from triton_ext.errors import LayoutError
from triton_ext.kernels.launch import launch_arguments, launch_plan
from triton_ext.kernels.spec import kernel_spec
from triton_ext.timeline import client
from triton_ext.timeline.timeline import Timeline
from triton_ext.timeline.trace import (
    ATOMIC,
    CLUSTER,
    COMMIT,
    COPY,
    FAR,
    GLOBAL,
    NAMED,
    PRODUCT,
    SEND,
    SIGNAL,
    STORE,
    TENSOR,
    TMEM,
    WAIT,
)

M, N, K = 256, 128, 192


class Gpu:
    multi_processor_count = 132


def matmul(config, a, b, c):
    plan = launch_plan(config, M, N, K, Gpu())
    arguments = launch_arguments(config, plan, a, b, c)
    plan.launch(arguments)


@pytest.fixture(scope="module")
def runs():
    """C without time, with time, and with time alone; and the two timelines."""
    config = kernel_spec(90, "fp16", block_m=128, block_n=64, block_k=64, stages=3, consumers=2)
    generator = torch.Generator().manual_seed(0)
    a = torch.randn((M, K), generator=generator).to(torch.float16)
    b = torch.randn((N, K), generator=generator).to(torch.float16).T
    found, timelines = [], []
    for options in ({}, {"time": "H200"}, {"time": "H200", "values": False}):
        c = torch.zeros((M, N), dtype=torch.float16)
        with triton_ext.emulate("sm_90", **options) as gpu:
            matmul(config, a, b, c)
        found.append(c)
        timelines += gpu.timelines
    return found, timelines


def items(timeline, kind):
    cluster = timeline.trace.clusters[0]
    return [item for warp in cluster.warps[0] for item in warp if item[0] == kind]


def test_time_changes_no_value(runs):
    (without, timed, alone), _ = runs
    assert without.any()
    assert torch.equal(without, timed)
    assert not torch.equal(without, alone)


def test_what_is_recorded_is_what_the_kernel_does(runs):
    _, timelines = runs
    for timeline in timelines:
        steps = K // 64
        assert len(items(timeline, PRODUCT)) == steps * 4 * 2  # of two consumers
        loaded = sum(item[2] for item in items(timeline, COPY))
        assert loaded == steps * (128 + 64) * 64 * 2
        assert sum(item[2] for item in items(timeline, STORE)) == 128 * 64 * 2
        assert timeline.flops == 2 * M * N * K
        tokens = timeline.trace.clusters[0].needs
        gave = sum(len(item[6]) for item in items(timeline, COPY)) + len(items(timeline, SIGNAL))
        assert gave + len(items(timeline, PRODUCT)) <= sum(tokens)
        assert items(timeline, WAIT)


def test_who_copies_has_waited_for_the_kernel_before(runs):
    _, timelines = runs
    for timeline in timelines:
        cluster = timeline.trace.clusters[0]
        assert cluster.names[cluster.before] == "the kernel before"
        for warp in cluster.warps[0]:
            if any(item[0] == COPY for item in warp):
                done = next(number for number, item in enumerate(warp) if item[0] == COPY)
                assert (WAIT, cluster.before) in {item[:3:2] for item in warp[:done]}


def test_values_do_not_change_the_time(runs):
    _, (timed, alone) = runs
    assert alone.seconds == timed.seconds
    assert 1e-6 < timed.seconds < 1e-5
    assert timed.stalls[0].location.split(":")[0].endswith(".py")


def test_a_faster_gpu_is_faster(runs):
    _, (timed, _) = runs
    found = timed.what_if()
    assert all(seconds <= timed.seconds * 1.01 for seconds in found.values())


@triton.jit
def hand_over(flag, x, y, steps, sem: tl.constexpr):
    if tl.program_id(0) == 0:
        while tl.atomic_add(flag, 0, sem=sem) == 0:
            pass
        tl.store(y, 1.0)
    else:
        total = 0.0
        for i in range(steps):
            total += tl.load(x + i)
        tl.store(y + 1, total)
        tl.atomic_xchg(flag, 1)


@pytest.mark.parametrize(
    ("values", "sem", "kind"),
    [(True, "acq_rel", ATOMIC), (False, "acq_rel", ATOMIC), (False, "acquire", GLOBAL)],
)
def test_a_block_that_asks_again_and_again_has_asked_once(values, sem, kind):
    """How often it asks depends on the order in which the emulator runs the blocks. What adds
    nothing and only acquires, the compiler makes a load."""
    lengths = set()
    for steps in (16, 1024):
        flag, x, y = torch.zeros(1, dtype=torch.int32), torch.ones(1024), torch.zeros(2)
        with triton_ext.emulate("sm_90", time="H200", values=values) as gpu:
            hand_over[(2,)](flag, x, y, steps, sem)
        assert y.tolist() == [1, steps]
        waiting = gpu.timeline.trace.clusters[0]
        asked = [item for item in waiting.warps[0][0] if item[0] == kind and item[-1] >= 0]
        assert len(asked) == 1
        lengths.add(tuple(len(warp) for warp in waiting.warps[0]))
    assert len(lengths) == 1


def test_the_parts_of_clusters_tiles_wait_for_the_stores_before():
    """One warp asks whether the others' parts are there, and tells the other three: what they do
    in the rounds that are left out is left out, too, and the replay comes to its end.
    """
    config = kernel_spec(
        90, "fp16", block_m=64, block_n=64, stages=3, consumers=1, cluster_m=2, split_k=4
    )
    m, n, k = 128, 64, 2048
    plan = launch_plan(config, m, n, k, Gpu())
    a, b = torch.zeros((m, k), dtype=torch.float16), torch.zeros((n, k), dtype=torch.float16).T
    c = torch.zeros((m, n), dtype=torch.float16)
    workspace = torch.zeros(plan.workspace_bytes, dtype=torch.uint8)
    arguments = launch_arguments(config, plan, a, b, c, workspace=workspace)
    with triton_ext.emulate("sm_90", time="H200", values=False) as gpu:
        plan.launch(arguments)
    timed = gpu.timeline
    later = Timeline(timed.trace, timed.gpu.but(release_latency=20_000))
    waited = (20_000 - timed.gpu.release_latency) / timed.clock
    assert later.seconds - timed.seconds == pytest.approx(waited, rel=0.05)


def test_without_a_listing_of_the_binary_it_says_so(runs):
    _, (listed, _) = runs
    config = kernel_spec(90, "fp16", block_m=128, block_n=64, block_k=64, stages=3, consumers=2)
    a, b = torch.zeros((M, K), dtype=torch.float16), torch.zeros((N, K), dtype=torch.float16).T
    with (
        mock.patch.object(client, "disassembled", return_value=""),
        triton_ext.emulate("sm_90", time="H200") as gpu,
    ):
        matmul(config, a, b, torch.zeros((M, N), dtype=torch.float16))
    assert listed.as_object()["costs"] == "binary"
    assert gpu.timeline.as_object()["costs"] == "PTX"
    assert "costs are of PTX" in "\n".join(gpu.timeline.lines())
    assert "costs are of PTX" not in "\n".join(listed.lines())


def test_who_arrives_where():
    """In the ring of a cluster: at its own barriers, at those of others, at the cluster's."""
    config = kernel_spec(90, "fp16", block_m=64, block_n=64, stages=3, consumers=1, cluster_m=2)
    a, b = torch.zeros((M, K), dtype=torch.float16), torch.zeros((N, K), dtype=torch.float16).T
    with triton_ext.emulate("sm_90", time="H200", values=False) as gpu:
        matmul(config, a, b, torch.zeros((M, N), dtype=torch.float16))
    trace = gpu.timeline.trace
    cluster = trace.clusters[0]
    found: dict[int, list[str]] = {}
    for item in cluster.items():
        if item[0] == SIGNAL:
            text = trace.lines[item[1]].text
            found.setdefault(item[3], []).append(text)
            named = cluster.names.get(item[2], "").startswith("the cluster's barrier")
            assert named == (item[3] == CLUSTER)
    assert set(found) >= {FAR, NAMED, CLUSTER}
    assert all(text.startswith("barrier.cluster.arrive") for text in found[CLUSTER])
    assert all("mbarrier.arrive" in text for text in found[FAR])


@pytest.mark.parametrize("observer", [None, Statistics()], ids=["alone", "observed"])
def test_sums_that_blocks_exchange_are_no_copies(observer):
    config = kernel_spec(
        90, "fp16", block_m=64, block_n=64, stages=2, consumers=1, c_parts=2, cluster_k=4
    )
    a, b = torch.zeros((M, K), dtype=torch.float16), torch.zeros((N, K), dtype=torch.float16).T
    with triton_ext.emulate("sm_90", time="H200", values=False, observer=observer) as gpu:
        matmul(config, a, b, torch.zeros((M, N), dtype=torch.float16))
    cluster = gpu.timeline.trace.clusters[0]
    given = [0] * len(cluster.needs)
    for rank, warps in enumerate(cluster.warps):
        of_block = [item for warp in warps for item in warp]
        assert {tuple(item[7]) for item in of_block if item[0] == COPY} == {(rank,)}
        sends = [item for item in of_block if item[0] == SEND]
        assert sum(item[2] for item in sends) == 64 * 64 * 4  # its sums, some to itself
        for token in (token for item in sends for token in item[3]):
            given[token] += 1
    exchanged = {token: count for token, count in enumerate(given) if count}
    assert len(exchanged) == 4 * config.tile.c_parts  # a barrier of each block for each piece
    # and the arrival of the one that expects the bytes
    assert all(cluster.needs[token] == count + 1 for token, count in exchanged.items())
    slower = gpu.timeline.gpu.but(far_latency=gpu.timeline.gpu.far_latency + 1000)
    later = Timeline(gpu.timeline.trace, slower).seconds - gpu.timeline.seconds
    assert later > 0.9 * 1000 / slower.clock


def test_products_of_tensor_memory_are_recorded():
    config = kernel_spec(100, "fp16", block_n=128, stages=3, consumers=1, c_parts=2)
    a, b = torch.zeros((M, K), dtype=torch.float16), torch.zeros((N, K), dtype=torch.float16).T
    found = []
    for values in (True, False):
        c = torch.zeros((M, N), dtype=torch.float16)
        with triton_ext.emulate("sm_100", time="B200", values=values) as gpu:
            matmul(config, a, b, c)
        found.append(gpu.timeline)
    timed, alone = found
    assert timed.seconds == alone.seconds
    assert timed.flops == 2 * M * N * K
    assert timed.trace.columns == 256  # two tiles of sums
    assert {item[2:5] for item in items(timed, TENSOR)} == {(128, 128, 2.0)}
    assert sum(item[2] for item in items(timed, TMEM)) == 4 * N  # of four warps
    assert len(items(timed, COMMIT)) == K // 64 + 1


@triton.jit
def dot(a, b, c, steps, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for _ in range(steps):
        total = tl.dot(
            tl.load(a + rows * SIZE + columns), tl.load(b + rows * SIZE + columns), total
        )
    tl.store(c + rows * SIZE + columns, total)


def test_products_of_single_warps_take_the_tensor_cores():
    size, warps = 64, 2  # too few warps for wgmma
    a, b = (torch.zeros((size, size), dtype=torch.float16) for _ in range(2))
    c = torch.zeros((size, size))
    found = []
    for steps in (8, 24):
        with triton_ext.emulate("sm_90", time="H200", values=False) as gpu:
            dot[(1,)](a, b, c, steps, size, num_warps=warps)
        timeline = gpu.timeline
        assert any(line.text.startswith("mma.sync") for line in timeline.trace.lines)
        assert timeline.flops == pytest.approx(steps * 2 * size**3)
        found.append(timeline.seconds * timeline.clock)
    peak = timeline.gpu.flops_per_cycle * warps / 4  # a warp has the tensor core of its quarter
    assert found[1] - found[0] > 16 * 2 * size**3 / peak / 0.63


@triton.jit
def add(x, y, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, at < n) + 1, at < n)


def test_benchmarks_get_predicted_milliseconds(capsys):
    x = torch.zeros(1 << 14)
    y = torch.empty_like(x)
    with triton_ext.emulate("sm_90", time="H200", cuda_on_host=True) as gpu:
        found = triton.testing.do_bench(lambda: add[(16,)](x, y, x.numel(), 1024))
        assert found == pytest.approx(gpu.seconds * 1e3)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        add[(16,)](x, y, x.numel(), 1024)
        end.record()
        assert begin.elapsed_time(end) == pytest.approx(gpu.timeline.seconds * 1e3)
    assert (y == 1).all()
    assert "number of instructions" not in capsys.readouterr().err
    assert 0.8e-6 < gpu.timeline.seconds < 5e-6


def test_a_larger_copy_takes_as_long_as_memory_does():
    n = 1 << 26
    x = torch.zeros(n)
    with triton_ext.emulate("sm_90", time="H200", values=False) as gpu:
        add[(n // 4096,)](x, x, n, 4096)
    seconds = gpu.timeline.seconds
    assert 8 * n / 4.9e12 < seconds < 8 * n / 3e12  # an H200's memory gives 4.8e12 at most
    assert gpu.timeline.bound == "memory"
    assert len(gpu.timeline.trace.clusters) <= 9
    used = gpu.timeline.gpu  # kernel after kernel, memory writes it all
    assert seconds > 0.999 * 4 * n * (1 + used.write) / used.memory_bytes


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"time": "RTX"}, LayoutError, "H200, H100, B200"),
        ({"time": "H200", "schedule": "random"}, LaunchError, "eager"),
        ({"values": False}, LaunchError, "time="),
    ],
)
def test_what_cannot_be_asked(options, error, words):
    with pytest.raises(error, match=words), triton_ext.emulate("sm_90", **options):
        pass


def test_all_clients_at_once(runs):
    """One run, which each sees as if it was alone."""
    _, (timed, _) = runs
    config = kernel_spec(90, "fp16", block_m=128, block_n=64, block_k=64, stages=3, consumers=2)
    a, b = torch.zeros((M, K), dtype=torch.float16), torch.zeros((N, K), dtype=torch.float16).T
    found = []
    for time in (None, "H200"):
        counted, events, stops = Statistics(), [], []
        tracing = Trace(events.append, "wgmma")
        options = {"time": time, "observer": Observers([counted, tracing])}
        with triton_ext.emulate("sm_90", **options) as gpu:
            location = timed.stalls[0].location.rpartition("/")[2]
            gpu.break_at(location, lambda stop, stops=stops: stops.append((stop.block, stop.warps)))
            matmul(config, a, b, torch.zeros((M, N), dtype=torch.float16))
        tracing.close()
        kept = [(each["event"], each["block"], each["warps"], each["step"]) for each in events]
        found.append((counted.as_object(), kept, stops))
        assert stops
    assert found[0] == found[1]
    assert gpu.timeline.as_object() == timed.as_object()


def test_the_emulator_alone_predicts_nothing(monkeypatch):
    """What does must be loaded, as `triton_ext.emulate` does it."""
    monkeypatch.setattr(clocks, "_registered", [])
    with (
        pytest.raises(LaunchError, match=r"import triton_ext\.timeline\.client"),
        triton_ext.emulate("sm_90", time="H200"),
    ):
        pass


def test_no_timeline_without_a_launch():
    with triton_ext.emulate("sm_90") as gpu:
        assert gpu.seconds is None
        with pytest.raises(LaunchError, match="time="):
            _ = gpu.timeline
