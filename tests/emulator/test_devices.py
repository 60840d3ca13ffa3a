"""Several emulated GPUs: launches that wait for each other, what orders them, and what does not."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gluon_copy_kernels import descriptor  # noqa: E402
from peer_kernels import push_and_load, push_gather, ring_sum, scatter_sum  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.emulator.errors import (  # noqa: E402
    Deadlock,
    LaunchError,
    MemoryFault,
    PeerStopped,
    SynchronizationFault,
)

pytestmark = pytest.mark.usefixtures("no_binaries")
SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1), ("random", 2)]
scheduled = pytest.mark.parametrize(("schedule", "seed"), SCHEDULES)
PARTS, BLOCK = 2, 64
LAYOUT = gl.BlockedLayout([1, 4], [4, 8], [2, 1], [1, 0])


def emulated(devices, schedule="eager", seed=0):
    return triton_ext.emulate("sm_90", devices=devices, schedule=schedule, seed=seed)


# ------------------------------------------------------------------------ pushes


def gather(gpu, calls=1, *, meets=True, counts=True, slots=1, **changes):
    """`calls` all-gathers of two GPUs; True if all that came out was right.

    Args:
        meets: the hosts meet after each call.
        counts: each call waits for the flags of its own.
        slots: buffers that the calls take turns with.
    """
    size = PARTS * BLOCK
    buffers = gpu.symmetric((slots, 2 * size), torch.float32)
    flags = gpu.symmetric((PARTS,), torch.int32)

    def row(rank, call):
        return torch.arange(size, dtype=torch.float32) + 1000 * rank + 10_000 * call

    def work(rank):
        good = True
        for call in range(calls):
            out, slot = torch.zeros(2 * size), call % slots
            push_gather[(PARTS,)](
                row(rank, call), buffers[rank][slot], buffers[1 - rank][slot], flags[rank],
                flags[1 - rank], out, rank, call + 1 if counts else 1, BLOCK=BLOCK, num_warps=2,
                **changes,
            )  # fmt: skip
            good &= torch.equal(out, torch.cat([row(0, call), row(1, call)]))
            if meets:
                gpu.barrier()
        return good

    return all(gpu.run(work))


@scheduled
def test_push_gather(schedule, seed):
    with emulated(2, schedule, seed) as gpu:
        assert gather(gpu, calls=2)
        assert gather(gpu)
    assert gpu.launches == 6


@scheduled
def test_calls_that_only_their_flags_order(schedule, seed):
    """With two buffers, a flag of the next call says that the one before was read."""
    with emulated(2, schedule, seed) as gpu:
        assert gather(gpu, calls=3, meets=False, slots=2)


MISTAKES = {
    "release at .gpu": ({"GIVE": "gpu"}, "released at .gpu [.*peer_kernels.py:.*both need .sys"),
    "acquire at .gpu": ({"TAKE": "gpu"}, "acquired at .gpu [.*peer_kernels.py:.*both need .sys"),
    "release at .cta": ({"GIVE": "cta"}, "both need .sys"),
    "relaxed flag": ({"RELEASE": "relaxed"}, "both at the scope of the system"),
    "relaxed poll": ({"ACQUIRE": "relaxed"}, "by a relaxed access .*acquire.sys, or fence"),
    "wrong chunk": ({"AWAITED": 1}, "is (read|written) by device"),
    "one buffer": ({"calls": 3, "meets": False}, "is (read|written) by device"),
    "flag not reset": (
        {"calls": 3, "meets": False, "counts": False, "slots": 2}, "is (read|written) by device",
    ),
}  # fmt: skip


@scheduled
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_under_every_schedule(mistake, schedule, seed):
    changes, says = MISTAKES[mistake]
    with (
        emulated(2, schedule, seed) as gpu,
        pytest.raises(SynchronizationFault, match=says.replace("[", r"\[")) as caught,
    ):
        gather(gpu, **changes)
    assert caught.value.where.startswith("device ")


# ------------------------------------------------------------------------- rings


def ring(gpu, ranks, slots, calls=1):
    """Sums over a ring; True if they are right."""
    rows = [torch.arange(32.0) + 100 * rank for rank in range(ranks)]
    buffers = gpu.symmetric((slots, 32), torch.float32)
    flags = gpu.symmetric((ranks,), torch.int32)

    def work(rank):
        right, out = (rank + 1) % ranks, torch.zeros(32)
        for call in range(calls):
            ring_sum[(1,)](
                rows[rank] * (call + 1), buffers[rank], buffers[right], flags[rank], flags[right],
                out, call + 1, RANKS=ranks, SLOTS=slots, BLOCK=32, num_warps=1,
            )  # fmt: skip
            gpu.barrier()
        return torch.equal(out, sum(rows) * calls)

    return all(gpu.run(work))


@pytest.mark.parametrize(
    ("ranks", "schedule"), [*((n, s) for n in (2, 4) for s, _ in SCHEDULES[:3]), (8, "random")]
)
def test_a_ring_of_sums(ranks, schedule):
    with emulated(ranks, schedule, seed=ranks) as gpu:
        assert ring(gpu, ranks, ranks - 1, calls=2 if ranks < 8 else 1)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_a_buffer_of_the_peer_that_may_still_be_read(schedule, seed):
    """Of three GPUs, nobody knows whether the right one has read what it got two steps ago."""
    with emulated(4, schedule, seed) as gpu, pytest.raises(SynchronizationFault, match="device"):
        ring(gpu, 4, 1)


# --------------------------------------------------------------------- TMA to peers


def scatter(gpu, ranks, *, wait="cp.async.bulk.wait_group 0;", reduced=False, number=None):
    """A reduce-scatter by TMA; True if the sums are right."""
    slots = gpu.symmetric((8 * (1 if reduced else ranks), 32), torch.float32)
    flags = gpu.symmetric((1,), torch.int32)
    inputs = [torch.arange(ranks * 256.0).reshape(-1, 32) * (rank + 1) for rank in range(ranks)]
    tiles = tuple(descriptor(each, [8, 32]) for each in slots)

    def work(rank):
        out = torch.zeros(8, 32)
        scatter_sum[(ranks,)](
            tiles[rank], tiles, inputs[rank], out, flags[rank], tuple(flags), rank,
            ranks if number is None else number, RANKS=ranks, LAYOUT=LAYOUT, WAIT=wait,
            REDUCED=reduced, num_warps=2,
        )  # fmt: skip
        return torch.equal(out, sum(each[8 * rank : 8 * rank + 8] for each in inputs))

    return all(gpu.run(work))


@scheduled
@pytest.mark.parametrize("reduced", [False, True])
def test_reduce_scatter_by_tma(reduced, schedule, seed):
    with emulated(2, schedule, seed) as gpu:
        assert scatter(gpu, 2, reduced=reduced)


@scheduled
def test_a_store_whose_source_alone_was_awaited(schedule, seed):
    """Triton's `tma.store_wait` waits so: that the tile is read, not that it is written."""
    with (
        emulated(2, schedule, seed) as gpu,
        pytest.raises(SynchronizationFault, match="the tma unit"),
    ):
        scatter(gpu, 2, wait="cp.async.bulk.wait_group.read 0;")


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_a_flag_that_is_awaited_for_one_tile_too_few(schedule, seed):
    with emulated(3, schedule, seed) as gpu, pytest.raises(SynchronizationFault, match="device"):
        scatter(gpu, 3, number=1)


# ----------------------------------------------------------------- proxies, copies

PROXY_FENCE = "fence.proxy.async.global;"


def load_pushed(gpu, before="", after="", copied=False, flag=True, later=False):
    """Each GPU gets a tile, by the peer's threads or a copy engine, and loads it by TMA."""
    buffers, flags = gpu.symmetric((64, 32), torch.float32), gpu.symmetric((1,), torch.int32)
    tiles = [torch.arange(2048.0).reshape(64, 32) + rank for rank in range(2)]

    def work(rank):
        peer, out = 1 - rank, torch.zeros(64, 32)
        if copied:
            gpu.copy(buffers[peer], tiles[rank], flag=flags[peer] if flag else None)
            if not flag:
                flags[peer][0] = 1
        push_and_load[(1,)](
            tiles[rank], buffers[peer], descriptor(buffers[rank], [64, 32]), flags[rank],
            flags[peer], out, 1, LAYOUT=LAYOUT, BEFORE=before, AFTER=after, PUSHES=not copied,
            num_warps=2,
        )  # fmt: skip
        if later:
            gpu.copy(buffers[peer], tiles[rank] + 1)
        gpu.synchronize()
        return torch.equal(out, tiles[peer])

    return all(gpu.run(work))


@scheduled
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_proxy_fence_between_a_peers_store_and_a_load_by_tma(where, schedule, seed):
    with emulated(2, schedule, seed) as gpu:
        assert load_pushed(gpu, **{where: PROXY_FENCE})


@scheduled
def test_a_proxy_fence_that_is_missing(schedule, seed):
    with (
        emulated(2, schedule, seed) as gpu,
        pytest.raises(
            SynchronizationFault, match=r"a proxy fence \(fence.proxy.async\) is missing"
        ),
    ):
        load_pushed(gpu, after="fence.proxy.async.shared::cta;")


@scheduled
def test_copies_by_the_copy_engine(schedule, seed):
    with emulated(2, schedule, seed) as gpu:
        assert load_pushed(gpu, copied=True)
        assert load_pushed(gpu, copied=True)


@pytest.mark.parametrize("options", [{"flag": False}, {"later": True}])
@scheduled
def test_copies_that_nothing_orders(options, schedule, seed):
    """A flag that does not wait for the copy; a copy over what the peer may still read."""
    with (
        emulated(2, schedule, seed) as gpu,
        pytest.raises(SynchronizationFault, match="a copy of stream 0"),
    ):
        load_pushed(gpu, copied=True, **options)


@scheduled
def test_a_stream_is_in_order_and_waits_for_flags(schedule, seed):
    with emulated(3, schedule, seed) as gpu:
        buffers, flags = gpu.symmetric((3, 600), torch.float32), gpu.symmetric(3, torch.int32)

        def work(rank):
            right = (rank + 1) % 3
            if rank:  # what came from the left goes on to the right
                gpu.wait(flags[rank][rank])
            else:
                gpu.copy(buffers[0][0], torch.ones(600))
            gpu.copy(buffers[right][right], buffers[rank][rank], flag=flags[right][right])
            gpu.barrier()
            return float(buffers[right][right].sum())

        assert gpu.run(work) == [600.0] * 3


# ------------------------------------------------------------------- hosts and errors


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES[:3])
def test_a_deadlock_names_what_each_device_waits_for(schedule, seed):
    with emulated(2, schedule, seed) as gpu:
        flags = gpu.symmetric((PARTS,), torch.int32)

        def work(rank):
            buffer, other = torch.zeros(2 * PARTS * BLOCK), torch.zeros(PARTS, dtype=torch.int32)
            push_gather[(PARTS,)](
                torch.zeros(PARTS * BLOCK), buffer, torch.zeros_like(buffer), flags[rank], other,
                torch.zeros_like(buffer), rank, 1, BLOCK=BLOCK, num_warps=2,
            )  # fmt: skip

        with pytest.raises(Deadlock) as caught:
            gpu.run(work)
        text = str(caught.value)
        assert "device 0: " in text
        assert "device 1: " in text
        assert text.count("peer_kernels.py") >= 2
        with pytest.raises(Deadlock, match=r"device 1: waits for the others"):
            gpu.run(lambda rank: gpu.barrier() if rank else None)
        assert gpu.run(lambda rank: rank) == [0, 1]


def test_one_error_ends_the_others():
    with emulated(3) as gpu:
        seen = []

        def work(rank):
            if rank == 1:
                raise ValueError("of rank 1")
            try:
                gpu.barrier()
            except PeerStopped as stopped:
                seen.append(str(stopped))
                raise

        with pytest.raises(ValueError, match="of rank 1"):
            gpu.run(work)
    assert seen == ["device 1 has ended in ValueError: of rank 1"] * 2


def test_what_is_not_open_to_all():
    with emulated(2) as gpu:
        buffer, flags = torch.zeros(2 * PARTS * BLOCK), gpu.symmetric((PARTS,), torch.int32)

        def work(rank):
            push_gather[(PARTS,)](
                torch.zeros(PARTS * BLOCK), torch.zeros_like(buffer), buffer, flags[rank],
                flags[1 - rank], torch.zeros_like(buffer), rank, 1, BLOCK=BLOCK, num_warps=2,
            )  # fmt: skip

        with pytest.raises(MemoryFault, match=r"argument peer .* is memory of device \d, and devi"):
            gpu.run(work)


def test_threads_of_ones_own():
    """Each chooses its device; one launch waits for the other's."""
    with emulated(2) as gpu:
        flags = gpu.symmetric((PARTS,), torch.int32)
        buffers = gpu.symmetric((2 * PARTS * BLOCK,), torch.float32)
        out = [torch.zeros(2 * PARTS * BLOCK) for _ in range(2)]

        def work(rank):
            with gpu.device(rank):
                assert gpu.current == rank
                push_gather[(PARTS,)](
                    torch.ones(PARTS * BLOCK), buffers[rank], buffers[1 - rank], flags[rank],
                    flags[1 - rank], out[rank], rank, 1, BLOCK=BLOCK, num_warps=2,
                )  # fmt: skip

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gpu.current == 0
    assert all((each == 1).all() for each in out)


@pytest.mark.parametrize("devices", [0, 17, 2.0, True, "2"])
def test_numbers_of_devices(devices):
    with pytest.raises(LaunchError, match="devices"), triton_ext.emulate("sm_90", devices=devices):
        pass


def test_copies_that_do_not_fit():
    with emulated(2) as gpu:
        x = gpu.symmetric((4, 4), torch.float32)[0]
        for target, source, options, says in (
            (x, x[0], {}, "16 bytes to 64"),
            (x[:, :2], x[:2], {}, "target: must be a contiguous tensor"),
            (x, [0], {}, "source: must be a contiguous tensor"),
            (x, x, {"flag": x}, "flag: must be a tensor of one integer"),
        ):
            with pytest.raises(LaunchError, match=says):
                gpu.copy(target, source, **options)
        with pytest.raises(LaunchError, match=r"device 2: must be in \[0, 2\)"), gpu.device(2):
            pass
