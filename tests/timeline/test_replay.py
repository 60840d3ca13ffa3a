"""The model of the SMs: small traces whose time follows from the parameters by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_ext.errors import LayoutError
from triton_ext.timeline.gpus import GPUS, Gpu, gpu_of
from triton_ext.timeline.model import slots
from triton_ext.timeline.page import chrome, html
from triton_ext.timeline.replay import Replay
from triton_ext.timeline.sass import PIPES
from triton_ext.timeline.timeline import Timeline, in_turn
from triton_ext.timeline.trace import (
    ALIGNED,
    CLUSTER,
    COMMIT,
    COPY,
    FAR,
    GLOBAL,
    NAMED,
    NAMES,
    NEAR,
    PRODUCT,
    RUN,
    SEND,
    SHARED,
    SIGNAL,
    STORE,
    TENSOR,
    TMEM,
    WAIT,
    Aligned,
    ClusterTrace,
    Line,
    Memory,
    Trace,
    sampled,
)
from triton_ext.timeline.units import UNITS, Share

GPU = GPUS["H200"]
NONE = (0.0,) * len(PIPES)
SHARE = Share(
    l2=64.0, memory=16.0, received=100.0, stores=16.0, misses=[0.25], written=[1.0],
    aligned=[ALIGNED], line=[1.0], several=[1.0], first=False,
)  # fmt: skip


def cycles(*warps, needs=(), slots=1, clusters=1, gpu=GPU):
    trace = ClusterTrace([list(warps)], list(needs))
    return Replay(gpu, [SHARE], slots).run([trace] * clusters)


def ring(steps=8, stages=2, n=128):
    """A load warp and a consumer: for each step a copy of 16 KiB, and a product; (warps, needs)."""
    needs, load, use = [], [], []
    empty = []
    for step in range(steps):
        full, product = len(needs), len(needs) + 1
        needs += [1, 1, 1]
        if step >= stages:
            load.append((WAIT, 0, empty[step - stages]))
        load.append((COPY, 1, 16384, 16384, 128, 0, [full], [0], False, 0))
        use += [(WAIT, 2, full), (PRODUCT, 3, n, 2, False, product), (WAIT, 4, product)]
        use.append((SIGNAL, 5, full + 2, NEAR))
        empty.append(full + 2)
    return [load, use], needs


def launch(warps, needs, grid=1, threads=64):
    lines = [Line(f"instruction {number}", f"kernel.py:{number}") for number in range(6)]
    names = {number: f"mbarrier {number % 3}, phase {number // 3}" for number in range(len(needs))}
    trace = ClusterTrace([warps], needs, names)
    numbers = sampled(grid, GPU.multiprocessors)
    return Trace(
        "kernel", (grid, 1, 1), (1, 1, 1), threads, 100_000, 0, lines, [Memory("x", 1 << 20)],
        dict.fromkeys(numbers, trace),
    )  # fmt: skip


def test_a_warp_alone_takes_its_chain():
    result = cycles([(RUN, 0, 10, (), 100), (RUN, 0, 10, (), 50)])
    assert result.cycles == 150


def test_warps_of_a_scheduler_share_its_slots():
    run = [(RUN, 0, 1000, (), 1000)]
    together = cycles(run, [], [], [], run, [], [], [], run).cycles  # warps 0, 4 and 8
    apart = cycles(run, run, run).cycles
    assert together == 1000 + 2000 * GPU.instruction_cycles
    assert apart == 1000


def test_products_follow_each_other_in_the_tensor_cores():
    def warp(token):
        return [(PRODUCT, 0, 256, 2, False, token), (WAIT, 1, token)]

    both = cycles(warp(0), warp(1), needs=[1, 1])
    flops = 2 * 64 * 256 * 16
    assert both.busy["tensor cores"] == 2 * flops / GPU.flops_per_cycle
    assert both.cycles == pytest.approx(both.busy["tensor cores"] + GPU.product_latency)


@pytest.mark.parametrize(("n", "taken"), [(8, 18), (64, 32), (128, 64), (256, 128)])
def test_a_narrow_product_takes_what_reading_its_operands_takes(n, taken):
    result = cycles([(PRODUCT, 0, n, 2, False, 0), (WAIT, 1, 0)], needs=[1])
    assert result.busy["tensor cores"] == taken  # as measured on an H200


@pytest.mark.parametrize(
    ("m", "n", "blocks", "taken"),
    [(128, 256, 1, 128), (256, 256, 2, 128), (64, 256, 1, 128), (128, 64, 1, 48)],
)
def test_a_commit_tells_when_the_products_are_done(m, n, blocks, taken):
    gpu = GPUS["B200"]
    product = (TENSOR, 0, m, n, 2, blocks, (m + n) * 32 // blocks)
    warp = [product, product, (COMMIT, 1, [0]), (WAIT, 2, 0)]
    trace = ClusterTrace([[warp], [[]]][:blocks], [1])
    result = Replay(gpu, [SHARE], 1).run([trace])
    assert result.busy["tensor cores"] == 2 * taken
    assert result.cycles == 2 * taken + gpu.product_latency


def test_warps_of_a_quarter_share_its_port_of_tensor_memory():
    def warp(token):
        return [(TMEM, 0, 64, token), (WAIT, 1, token)]

    apart = cycles(warp(0), warp(1), needs=[1, 1]).cycles
    assert apart == 64 * GPU.tensor_memory_cycles + GPU.tensor_memory_latency
    together = cycles(warp(0), [], [], [], warp(1), needs=[1, 1]).cycles
    assert together == apart + 64 * GPU.tensor_memory_cycles


def test_tensor_memory_limits_the_blocks_of_an_sm():
    warps, needs = ring()
    assert slots(launch(warps, needs)) == 2
    assert slots(replace(launch(warps, needs), columns=512)) == 1


def test_what_an_sm_sends_to_other_blocks_goes_one_after_the_other():
    def taken(size):  # of each message of a warp
        send = [(SEND, 0, 32 * size, [0])] * 100
        return cycles([*send, (WAIT, 1, 0)], send, needs=[200]).cycles

    assert taken(8) == pytest.approx(200 * GPU.send_cycles + GPU.far_latency, abs=5)
    assert taken(16) == taken(8)


@pytest.mark.parametrize(
    ("where", "latency"),
    [
        (NEAR, GPU.barrier_latency),
        (FAR, GPU.far_arrival),
        (NAMED, GPU.bar_latency),
        (CLUSTER, GPU.cluster_barrier),
    ],
)
def test_an_arrival_takes_as_long_as_the_way_to_the_barrier(where, latency):
    arriving, waiting = [(SIGNAL, 0, 0, where)], [(WAIT, 1, 0)]
    assert cycles(arriving, waiting, needs=[1]).cycles == max(latency, GPU.issue_cycles)


def test_a_warp_issues_memory_instructions_one_after_the_other():
    read = [(SHARED, 0, 1, -1)]
    more = cycles(read * 9).cycles - cycles(read).cycles
    assert more == 8 * GPU.issue_cycles


def test_what_the_kernel_wrote_comes_from_the_cache():
    def warp(*tokens):
        return [item for token in tokens for item in [(GLOBAL, 0, 4096, 0, 0, token)]] + [
            (WAIT, 0, token) for token in tokens if token >= 0
        ]

    read, written = (
        Timeline(launch([warp(*tokens)], [1, 1], grid=132), GPU).seconds
        for tokens in ((0, -1), (-1, 0))
    )
    assert written < read


@pytest.mark.parametrize(
    ("grid", "before", "taken"),
    [
        (66, 600, GPU.released),  # of 132 that there is room for: all is hidden
        (67, 200, GPU.released),
        (67, 2000, GPU.late + 2000 / GPU.clock),
    ],
)
def test_an_early_start_hides_what_comes_before_the_wait_for_the_kernel_before(grid, before, taken):
    warp = [(RUN, 0, 1, NONE, before), (WAIT, 1, 0), (RUN, 2, 1, NONE, 1000)]
    late = launch([warp], [1], grid, threads=2048)
    for cluster in late.clusters.values():
        cluster.before = 0
    early = replace(late, lines=[Line("@p griddepcontrol.launch_dependents", "")] * 6)
    assert Timeline(early, GPU).seconds == pytest.approx(taken + 1000 / GPU.clock, rel=1e-3)
    start = GPU.launch + GPU.start * grid / 132
    expected = start + (before + 1000) / GPU.clock
    assert Timeline(late, GPU).seconds == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("rows", "tma"), [(1, GPU.tma_box), (32, 0), (64, 64 * GPU.tma_row)])
def test_a_copy_is_there_when_the_slowest_on_its_way_has_moved_it(rows, tma):
    result = cycles([(COPY, 0, 4096, 4096, rows, 0, [0], [0], True, 0), (WAIT, 1, 0)], needs=[1])
    tma = max(4096 / GPU.tma_bytes, tma)  # rows of less than 128 bytes take longer
    memory = 4096 * 0.25 / 16
    assert result.cycles == max(tma, 4096 / 64, memory) + GPU.tma_latency


@pytest.mark.parametrize(
    ("between", "taken"),
    [([], 2 * 128 + 80 + 256 - GPU.waiting), ([(RUN, 1, 1, (), 10_000)], 3 * 128)],
    ids=["beside", "before"],
)
def test_products_wait_for_what_is_written_to_shared_memory_beside_them(between, taken):
    """Products of 64 x 256 take 128 cycles, and read for 80; 256 are written, by cycle 256."""
    products = [(PRODUCT, 0, 256, 2, False, token) for token in range(3)]
    multiply = [*products[:2], *between, products[2], (WAIT, 2, 2)]
    result = cycles(multiply, [(SHARED, 3, 256, -1)], needs=[1, 1, 1])
    assert result.busy["shared memory"] == 3 * 80 + 256
    assert result.busy["tensor cores"] == taken


def test_what_tma_writes_does_not_hold_products_up():
    """As measured on an H200: two warpgroups' products of 64 x 128, beside 53 bytes a cycle."""
    copies = [(COPY, 0, 16384, 16384, 128, 0, [n], [0], True, 0) for n in range(12)]
    products = [(PRODUCT, 1, 128, 2, False, 12 + n) for n in range(32)]
    result = cycles([*copies, (WAIT, 2, 11)], [*products, (WAIT, 3, 43)], needs=[1] * 44)
    assert result.busy["TMA"] > 0.8 * 2048
    assert result.busy["tensor cores"] == 2048


def test_who_has_more_to_load_has_more_of_the_memory_when_the_others_are_done():
    def warp(count):
        copies = [(COPY, 0, 1 << 17, 1 << 17, 1024, 0, [n], [0], False, 0) for n in range(count)]
        return [*copies, *((WAIT, 1, n) for n in range(count))]

    gpu = GPU.but(queue=0, tma_memory_latency=GPU.tma_latency, descriptors=0)
    even, one = (launch([warp(count)], [1] * count, 132, 1024) for count in (4, 1))
    first = even.clusters[0]
    loaded = (132 + 44 * 3) << 17  # a third of the blocks load four times as much
    uneven = replace(one, clusters={**one.clusters, 0: first}, memories=[Memory("x", loaded)])
    even = replace(even, memories=[Memory("x", 132 * 4 << 17)])
    slow, fast = (Timeline(trace, gpu).seconds for trace in (even, uneven))
    assert slow == pytest.approx((132 * 4 << 17) / gpu.memory_bytes, rel=0.15)
    assert fast < 0.75 * slow


def test_kernels_that_run_in_turn_have_one_clock():
    def kernel(products):
        warp = [*[(PRODUCT, 0, 256, 2, False, 0)] * products, (WAIT, 1, 0)]
        return Timeline(launch([[*warp, (RUN, 2, 1, NONE, 100_000)]], [products], 132), GPU)

    apart = [kernel(products) for products in (4000, 100)]
    together = in_turn(apart)
    [clock] = {each.clock for each in together}
    assert apart[0].clock < clock < apart[1].clock
    assert in_turn([apart[0]])[0].seconds == pytest.approx(apart[0].seconds, rel=2e-3)


def test_the_rate_is_told_of_products_alone():
    products = [(PRODUCT, 0, 256, 2, False, 0)] * 4000
    busy = Timeline(launch([[*products, (WAIT, 1, 0)]], [4000], 132), GPU)
    rate = 2 * 64 * 256 * 16 * 4000 * 132 / busy.seconds / 1e12
    assert f"), {rate:.0f} TFLOP/s; what binds:" in busy.lines()[0]
    assert "TFLOP/s" not in Timeline(launch([[(RUN, 0, 10, NONE, 100)]], []), GPU).lines()[0]


def test_tpcs_have_equal_shares_of_the_memory():
    warps, needs = ring(steps=64, stages=8)
    gpu = GPU.but(memory_bytes=6.6e12, sm_memory=4e11)

    def share(grid):
        [found] = Timeline(launch(warps, needs, grid), gpu).shares(gpu, 1.0)
        return found.memory

    assert share(33) == 2e11
    assert share(66) == 1e11
    # few blocks: each has what an SM can load, and the memory is not as busy
    [few] = Timeline(launch(warps, needs, 11), gpu).shares(gpu, 1.0)
    assert (few.memory, few.busy) == (4e11, pytest.approx(11 * 4e11 / 6.6e12))
    # the others are done when those who share a TPC have a half; then 2 x 33 have all there is
    assert share(99) == pytest.approx(6.6e12 / 99)
    # the two SMs of one TPC have not all
    assert share(67) == pytest.approx(1 / (1e-11 + 1 / 8e11))
    assert share(132) == 5e10


def test_loads_share_their_way_in_quadrature():
    """What binds them takes longer, the more the other units on their way have to do."""
    warps, needs = ring(steps=64, stages=8)
    trace = launch(warps, needs, 132)
    size = 132 * 64 * 16384
    trace = replace(trace, memories=[Memory("x", size)])  # all of it comes from memory
    memory, l2 = 4e12, 3e12

    def share(l2_bytes):
        gpu = GPU.but(memory_bytes=memory, l2_bytes=l2_bytes, tma_bytes=1e20)
        [found] = Timeline(trace, gpu).shares(gpu, 1.0)
        return found

    alone = share(1e20)
    assert alone.memory == pytest.approx(memory / 132)
    both = share(l2)  # which binds: in 1 / 3e12 and 1 / 4e12 seconds a byte, 1 / 2.4e12 together
    assert both.l2 == pytest.approx(2.4e12 / 132, rel=1e-3)
    assert both.memory == pytest.approx(memory / 132 * 2.4 / 3, rel=1e-3)


def lines_of(size, cluster=1, grid=132):
    """The share of a grid of rings, as a wave, that load 128 KiB each, of a memory of that size."""
    warps, needs = ring()
    trace = replace(launch(warps, needs, grid), memories=[Memory("x", size)])
    return Timeline(replace(trace, cluster=(cluster, 1, 1)), GPU).shares(GPU, GPU.clock)[0]


def test_the_sms_of_a_gpc_get_a_line_at_once():
    own, two, all_same = (lines_of(132 * 8 * 16384 / each).line[0] for each in (1, 2, 132))
    assert own == 1
    twice = 15 / 8  # GPCs, of eight, in which two SMs are that lie at random
    assert two == pytest.approx(GPU.delivered + (1 - GPU.delivered) * twice / 2)
    assert all_same == pytest.approx(GPU.delivered + (1 - GPU.delivered) * 8 / 132, rel=1e-3)


def test_what_clusters_ask_for_comes_to_one_after_the_other():
    own, two = (lines_of(66 * 8 * 16384 / each, cluster=2).several[0] for each in (1, 2))
    assert own == 1
    assert two == 1 + GPU.hot / 2
    [line], [several] = (SHARE.line, [3.0])
    share = replace(SHARE, memory=1e9, misses=[0.0], several=[several])
    for tokens, lines in (([0], line), ([0, 0], several)):
        copy = (COPY, 0, 1 << 14, 1 << 14, 128, 0, tokens, [0] * len(tokens), True, 0)
        trace = ClusterTrace([[[copy, (WAIT, 1, 0)]]], [len(tokens)])
        busy = Replay(GPU, [share], 1).run([trace]).busy["L2"]
        assert busy == pytest.approx((1 << 14) * lines / share.l2)


def test_of_several_waves_one_has_the_shape_of_the_grid():
    size = 4 * 132 * 8 * 16384 / 64  # each line goes to 64 blocks of two waves, two blocks an SM
    asking = 64 / 2**0.5
    [line] = lines_of(size, grid=4 * 132).line
    gpcs = 8 * (1 - (7 / 8) ** asking)
    assert line == pytest.approx(GPU.delivered + (1 - GPU.delivered) * gpcs / asking)


def test_rows_in_two_lines_hold_the_tma_unit_as_narrow_ones_do():
    copy = (COPY, 0, 64 * 128, 64 * 128, 64, 0, [0], [0], True, 0)
    trace = ClusterTrace([[[copy, (WAIT, 1, 0)]]], [1])
    busy = [
        Replay(GPU, [replace(SHARE, aligned=[Aligned(*aligned)])], 1).run([trace]).busy["TMA"]
        for aligned in ((1, 1), (0.25, 1))
    ]
    assert busy == pytest.approx([64 * 128 / GPU.tma_bytes, 64 * GPU.tma_row * 0.75])


@pytest.mark.parametrize(("inside", "more"), [(128, 0.0), (96, GPU.cut_row), (16, GPU.cut_sector)])
def test_rows_that_end_outside_hold_the_tma_unit(inside, more):
    copy = (COPY, 0, 64 * inside, 64 * 128, 64, 0, [0], [0], True, 0)
    result = cycles([copy, (WAIT, 1, 0)], needs=[1])
    width = max(64 * 128 / GPU.tma_bytes, 64 * GPU.tma_row * (inside < 128))
    assert result.busy["TMA"] == pytest.approx(width + 64 * more)


def test_blocks_that_have_nothing_to_do_leave_their_share_to_the_others():
    warps, needs = ring()
    trace = launch(warps, needs, 132)  # of which blocks 0, 66 and 131 are recorded
    idle = ClusterTrace([[[(RUN, 0, 10, NONE, 10)], []]], needs)
    fewer = replace(trace, clusters={**trace.clusters, 131: idle})
    [found] = Timeline(fewer, GPU).shares(GPU, GPU.clock)
    [all_work] = Timeline(trace, GPU).shares(GPU, GPU.clock)
    assert found.l2 == pytest.approx(all_work.l2 * 132 / 99, rel=0.1)  # half-way between 66 and 131
    assert found.then is None


def test_memory_writes_a_byte_once():
    stores = [(GLOBAL, 0, 32, 0, 0, -1)] * 8  # the same KB
    trace = launch([stores], [], 132, threads=32)
    size = 132 * 1024
    [once] = Timeline(replace(trace, memories=[Memory("x", size)]), GPU).shares(GPU, 1.0)
    [each] = Timeline(replace(trace, memories=[Memory("x", 8 * size)]), GPU).shares(GPU, 1.0)
    assert (once.written, each.written) == ([1 / 8], [1.0])
    busy = [
        Replay(GPU, [share], 1).run([trace.clusters[0]]).busy["memory"] for share in (once, each)
    ]
    assert busy[1] == pytest.approx(8 * busy[0])


@pytest.mark.parametrize(
    ("width", "pitch", "lines"),
    [
        (128, (1, 1), 1),
        (48, (1, 1), 0.5),
        (128, (0.25, 1), 1.75),
        (128, (0.125, 0.5), 1.875 + 1),
        (48, (0.125, 0.5), 0.75 + 1),
    ],
)
def test_each_row_of_a_box_asks_for_the_lines_that_it_lies_in(width, pitch, lines):
    share = replace(SHARE, memory=1e9, misses=[0.0], aligned=[Aligned(*pitch)])
    copy = (COPY, 0, 32 * width, 32 * width, 32, 0, [0], [0], True, 0)
    trace = ClusterTrace([[[copy, (WAIT, 1, 0)]]], [1])
    result = Replay(GPU.but(misaligned=1.0, cut=2.0), [share], 1).run([trace])
    assert result.busy["L2"] == pytest.approx(32 * 128 * lines / share.l2)


@pytest.mark.parametrize(("aligned", "lines"), [((1, 1), 1), ((0.125, 1), 1 + 7 / 8)])
def test_a_kernel_ends_when_the_lines_of_its_stores_are_written(aligned, lines):
    # a store is done in the L2 cache
    share = replace(SHARE, memory=1.0, aligned=[Aligned(*aligned)])
    store = [(STORE, 0, 1 << 16, 512, 0, 0, 1)]
    gpu = GPU.but(store_across=128)
    result = Replay(gpu, [share], 1).run([ClusterTrace([[store]], [1, 1])])
    assert result.cycles == (1 << 16) * lines / share.stores + gpu.tma_latency


def test_memory_writes_what_was_stored_when_loads_leave_it_time():
    share = replace(SHARE, memory=1.0, misses=[1.0])
    load = (COPY, 0, 4096, 4096, 32, 0, [2], [0], False, 0)

    def loaded(stored, dirty):
        gpu = GPU.but(dirty_bytes=dirty * GPU.multiprocessors, queue=0)
        warp = [(STORE, 0, stored, stored // 128, 0, 0, 1), load, (WAIT, 1, 2)]
        return Replay(gpu, [share], 1).run([ClusterTrace([[warp]], [1, 1, 1])]).busy["memory"]

    written = int(GPU.write * 8192)
    assert loaded(8192, 1 << 20) == pytest.approx(4096, abs=10)  # kept in the L2 cache
    assert loaded(8192, 4096) == pytest.approx(4096 + written - 4096, abs=10)  # but for that much


def test_loads_wait_for_what_the_cache_cannot_keep_and_idle_memory_writes_it():
    share = replace(SHARE, l2=1e9, memory=1.0, misses=[1.0])
    gpu = GPU.but(dirty_bytes=4096 * GPU.multiprocessors, queue=0, write=1.0)

    def load(token):
        return [(COPY, 0, 4096, 4096, 32, 0, [token], [0], False, 0), (WAIT, 1, token)]

    def taken(*between):
        first, second = ((STORE, 2, 4096, 32, 0, 2 * n, 2 * n + 1) for n in range(2))
        warp = [first, *between, *load(4), second, *load(5)]
        return Replay(gpu, [share], 1).run([ClusterTrace([[warp]], [1] * 6)]).cycles

    # of what was stored first, the second load waits for as much as was stored since
    at_once, later = taken(), taken((RUN, 3, 1, NONE, 10_000)) - 10_000
    assert at_once - later == pytest.approx(4096, rel=0.1)


def test_a_multicast_comes_slower_than_a_plain_copy():
    share = replace(SHARE, l2=1e9, memory=1e9, received=107.0, misses=[0.0])

    def came(size, rows, tokens, aligned=ALIGNED):
        copies = [(COPY, 0, size, size, rows, 0, tokens, list(range(len(tokens))), True, 0)] * 8
        traces = [[[*copies, (WAIT, 1, tokens[0])]], [[(WAIT, 1, tokens[-1])]]][: len(tokens)]
        needs = [8] * len(tokens)
        replay = Replay(GPU.but(tma_row=0), [replace(share, aligned=[aligned])], 1)
        return replay.run([ClusterTrace(traces, needs)]).cycles

    plain, both = came(16384, 128, [0]), came(16384, 128, [0, 1])
    assert both - plain == pytest.approx(8 * 16384 * (1 / GPU.multicast_bytes - 1 / 107), rel=0.01)
    narrow = came(8192, 128, [0, 1])  # a row takes as long as one of 128 bytes
    assert narrow == pytest.approx(both)
    across = came(16384, 128, [0, 1], Aligned(0.0, 1.0)) - both
    more = 8 * 128 * GPU.multicast_across / GPU.multicast_bytes
    assert across == pytest.approx(more, rel=0.01)


def test_warm_caches_have_what_a_launch_loads_and_keep_what_it_stores():
    warps, needs = ring()
    warps[1].append((STORE, 5, 1 << 16, 512, 0, len(needs), len(needs) + 1))
    trace = launch(warps, [*needs, 1, 1], grid=132)
    cold, warm = (Timeline(trace, GPU.but(warm=warm)) for warm in (False, True))
    assert warm.seconds < cold.seconds - 0.8 * (GPU.tma_memory_latency - GPU.tma_latency) / 2e9
    assert cold.utilisation["memory"] > 0
    assert warm.utilisation["memory"] == 0


@pytest.mark.parametrize("cluster", [1, 2])
def test_an_early_start_beside_clusters_takes_longer(cluster):
    warp = [(WAIT, 1, 0), (RUN, 2, 1, NONE, 1000)]
    trace = launch([warp], [1], 8)
    for each in trace.clusters.values():
        each.before = 0
    lines = [Line("griddepcontrol.launch_dependents", "")] * 6
    trace = replace(trace, lines=lines, cluster=(cluster, 1, 1))
    if cluster > 1:
        trace.clusters = {
            number: replace(each, warps=each.warps * cluster)
            for number, each in trace.clusters.items()
        }
    taken = GPU.released + GPU.beside * (cluster > 1) + 1000 / GPU.clock
    assert Timeline(trace, GPU).seconds == pytest.approx(taken, rel=1e-3)


@pytest.mark.parametrize(
    ("size", "together", "busy"), [(64, 1.0, 0.0), (1 << 24, 1.0, 1.0), (1 << 24, 0.25, 0.25)]
)
def test_a_busy_memory_answers_later(size, together, busy):
    share = replace(SHARE, l2=1e9, misses=[1.0], busy=together)
    before = (COPY, 0, size, size, 1, 0, [0], [0], True, 0)
    run = (RUN, 1, 1, (), size / share.memory)  # until memory is free again
    asked = [before, run, (COPY, 2, 16, 16, 1, 0, [1], [0], False, 0), (WAIT, 3, 1)]
    gpu = GPU.but(tma_bytes=1e9)
    result = Replay(gpu, [share], 1).run([ClusterTrace([[asked]], [1, 1])])
    waited = result.stalls[3, ""]
    assert waited == pytest.approx(GPU.tma_memory_latency + busy * GPU.queue, rel=0.1)


@pytest.mark.parametrize(
    ("turns", "unit", "rate"),
    [
        ((50, 0, 0, 0), "ALU", "half_cycles"),
        ((0, 50, 0, 0), "integer products", "half_cycles"),
        ((0, 0, 50, 0), "special functions", "special_cycles"),
        ((0, 0, 0, 50), "tensor cores", "mma_cycles"),
    ],
)
def test_warps_of_a_scheduler_share_its_pipes(turns, unit, rate):
    run = [(RUN, 0, 50, turns, 50)]
    result = cycles(run, [], [], [], run)
    assert result.cycles == 100 * getattr(GPU, rate)
    assert result.busy[unit] == pytest.approx(result.cycles / 4)


def test_who_waits_is_said_with_the_instruction():
    result = cycles([(WAIT, 7, 0)], [(RUN, 0, 50, (), 400), (SIGNAL, 1, 0, NEAR)], needs=[1])
    [((at, _), waited)] = result.stalls.items()
    assert at == 7
    assert waited == 400 + GPU.barrier_latency


def test_clusters_wait_for_room():
    run = [(RUN, 0, 10, (), 10_000)]
    one, two = (cycles(run, slots=1, clusters=n).cycles for n in (1, 2))
    assert two == 2 * one + GPU.block_start
    assert cycles(run, slots=2, clusters=2).cycles == one + GPU.block_interval


@given(st.integers(1, 12), st.integers(1, 5), st.sampled_from([16, 64, 256]))
@settings(max_examples=40, deadline=None)
def test_a_ring_takes_at_least_what_each_unit_and_each_step_takes(steps, stages, n):
    warps, needs = ring(steps, stages, n)
    result = cycles(*warps, needs=needs)
    assert all(result.cycles >= result.busy[unit] for unit in UNITS)
    step = GPU.tma_latency + GPU.product_latency
    assert result.cycles >= step + result.busy["tensor cores"]
    even = GPU.but(queue=0)  # who asks sooner finds memory busier
    same = cycles(*warps, needs=needs, gpu=even)
    longer = ring(steps, stages + 1, n)
    assert cycles(*longer[0], needs=longer[1], gpu=even).cycles <= same.cycles
    slow = cycles(*warps, needs=needs, gpu=even.but(tma_latency=2 * GPU.tma_latency))
    assert slow.cycles >= same.cycles + 0.75 * GPU.tma_latency  # the others are memory's


def test_blocks_of_later_waves_wait_for_memory_where_they_catch_up():
    warps, needs = ring()
    for waves in (1, 3):
        trace = launch(warps, needs, grid=2 * 132 * waves)
        alone = Timeline(trace, GPU).seconds
        together = Timeline(trace, GPU.but(catch_up=True)).seconds
        assert (together > alone) == (waves > 1)


def test_the_grid_comes_in_waves():
    warps, needs = ring()
    one, full, two, many = (
        Timeline(launch(warps, needs, grid), GPU).seconds for grid in (1, 264, 265, 2640)
    )
    assert one <= full < two < many
    assert slots(launch(warps, needs)) == 2
    assert many > 4 * full


def test_the_clock_falls_by_the_energy_that_the_power_limit_leaves():
    trace = launch([[*[(PRODUCT, 0, 256, 2, False, 0)] * 2000, (WAIT, 1, 0)]], [2000], grid=132)
    plain = Timeline(trace, GPU)
    flops = 132 * 2000 * 2 * 64 * 256 * 16
    share = plain.clock / GPU.clock
    energy = flops * GPU.flop_energy + 132 * 2000 * 320 * 32 * GPU.operand_energy
    taken = GPU.idle_power + share**GPU.power_exponent * energy / plain.seconds
    assert 0.6 < share < 0.95
    assert taken == pytest.approx(GPU.power, rel=0.01)
    assert Timeline(trace, GPU.but(power=1e4)).clock == GPU.clock
    assert Timeline(trace, GPU.but(flop_energy=1e-12)).clock < plain.clock


def test_a_block_receives_what_others_copy_to_it_no_faster_than_its_own():
    copy = (COPY, 1, 16384, 16384, 128, 0, [0, 1], [0, 1], False, 0)
    waits = [(WAIT, 2, 0)], [(WAIT, 2, 1)]
    both = ClusterTrace([[[copy, *waits[0]]], [[copy, *waits[1]]]], [2, 2])
    one = ClusterTrace([[[copy, *waits[0]]], [list(waits[1])]], [1, 1])
    alone, together = (Replay(GPU, [SHARE], 1).run([each]).cycles for each in (one, both))
    assert together >= alone + 0.9 * 16384 / GPU.tma_bytes


def test_sampled_clusters_are_of_the_grid():
    for clusters in (1, 2, 100, 132, 133, 5000):
        chosen = sampled(clusters, 132)
        assert chosen == sorted(set(chosen))
        assert 0 in chosen
        assert all(0 <= each < clusters for each in chosen)
        assert len(chosen) <= 9


def test_what_if_names_what_binds():
    warps, needs = ring(steps=32, stages=1)
    timeline = Timeline(launch(warps, needs), GPU)
    found = timeline.what_if()
    assert found["more stages"] < 0.8 * timeline.seconds
    assert found["no latency of loads"] < 0.8 * timeline.seconds
    assert timeline.bound in ("latency", "launch")
    assert "more stages" in "\n".join(timeline.lines())
    heavy, tokens = ring(steps=200, stages=6, n=256)
    assert Timeline(launch(heavy, tokens, grid=132), GPU).bound in (*UNITS, "power")
    assert json.dumps(timeline.as_object())


def test_shared_memory_serves_one_wavefront_a_cycle():
    warp = [(SHARED, 0, 32, -1)] * 100
    assert cycles(warp, warp).busy["shared memory"] == 6400
    assert cycles(warp, warp).cycles >= 6400 - GPU.shared_latency


def test_gpus_have_a_source_for_each_parameter():
    for gpu in GPUS.values():
        for name, (value, source) in gpu.sources().items():
            kind = source.split(":")[0].split(";")[0]
            assert kind in ("measured", "published", "fitted", "assumed"), name
            assert value is not None
    assert gpu_of("h200") is GPU
    mine = GPU.but(launch=0.0)
    assert isinstance(gpu_of(mine), Gpu)
    with pytest.raises(LayoutError, match="H200, H100, B200"):
        gpu_of("A100")
    with pytest.raises(LayoutError, match="sm_100"):
        gpu_of("H200", 100)
    with pytest.raises(LayoutError, match="parameter"):
        GPU.but(warp_speed=9)


@pytest.fixture(scope="module")
def timeline():
    return Timeline(launch(*ring(steps=16)), GPU)


def test_chromes_format(timeline):
    events = json.loads(chrome(timeline))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"TMA loads", "tensor cores", "warp 0", "warp 1"} <= names
    copies = [event for event in events if event["name"] == "TMA load"]
    assert len(copies) == 16
    assert all(event["dur"] >= 0 and event["args"]["source"] == "kernel.py:1" for event in copies)
    ends = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    assert ends <= timeline.seconds * 1e6


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page(timeline, open_page, scheme):
    page = open_page(html(timeline), scheme=scheme)
    assert "predicted" in page.inner_text("h1")
    canvas = page.locator("canvas")
    box = canvas.bounding_box()
    tip = page.locator("#tip")
    for x in range(120, 1200, 40):  # along the tensor cores' lane
        page.mouse.move(box["x"] + x, box["y"] + 22 + 16 + 8)
        if tip.is_visible():
            break
    assert "kernel.py:3" in tip.inner_text()
    page.fill("input", "kernel.py:1")
    assert page.inner_text("#found") == "16 found"
    page.mouse.wheel(0, -400)
    canvas.press("ArrowRight")
    assert page.evaluate("end - begin < data.cycles")
    page.click("button")
    assert page.evaluate("end - begin == data.cycles")


def test_the_legend_explains_the_colours(timeline, open_page):
    """Each colour that is drawn is in the legend, beside what it stands for."""
    page = open_page(html(timeline))
    drawn = page.evaluate(
        "() => { const found = new Set(); const fill = ctx.fillRect.bind(ctx);"
        " ctx.fillRect = (...r) => { if (r[0] >= LEFT) found.add(ctx.fillStyle); fill(...r); };"
        " draw(); return [...found]; }"
    )
    legend = page.evaluate(
        "() => [...document.querySelectorAll('#key span')].map((e) => { ctx.fillStyle ="
        " getComputedStyle(e.firstChild).backgroundColor; return [ctx.fillStyle, e.innerText]; })"
    )
    assert set(drawn) <= {colour for colour, _ in legend}
    assert "TMA load of x, kernel.py:1" in [text for _, text in legend]


def test_every_kind_has_a_colour():
    text = files("triton_ext.timeline").joinpath("page.html").read_text()
    [hues] = re.findall(r"const HUES = (\[.*?\]);", text)
    assert len(json.loads(hues)) == max(NAMES) + 1


def test_the_page_is_fluid_with_100000_events(open_page):
    page = open_page(html(Timeline(launch(*ring(steps=2000)), GPU)))
    events = page.evaluate(
        "() => { const n = data.cycles; byLane.forEach((lane) => { const own = [...lane];"
        " for (let i = 1; i < 20; i++) for (const s of own)"
        " lane.push([s[0], s[1] + i * n, s[2] + i * n, ...s.slice(3)]); });"
        " end = data.cycles *= 20; return byLane.reduce((sum, lane) => sum + lane.length, 0); }"
    )
    assert events > 100_000
    drawn = page.evaluate(
        "() => { let n = 0; const fill = ctx.fillRect.bind(ctx);"
        " ctx.fillRect = (...r) => { n++; fill(...r); }; draw(); return n; }"
    )
    assert drawn < 20_000  # what shares a pixel is drawn once
