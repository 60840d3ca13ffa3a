"""The kernels that communicate, on 2, 3 and 8 emulated GPUs: every schedule, and seeded bugs.

Every pair of values of GPU, kind, schedule and bug is met; by `make oracle` every combination.
"""

from __future__ import annotations

import re
from functools import partial

import pytest
from covers import in_turn, pairwise

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_ext  # noqa: E402
from triton_ext import distributed  # noqa: E402
from triton_ext.distributed import launches  # noqa: E402
from triton_ext.emulator.errors import EmulationError  # noqa: E402
from triton_ext.emulator.host import gpu as host_gpu  # noqa: E402
from triton_ext.kernels import launch  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402

pytestmark = pytest.mark.usefixtures("no_binaries")
SMALL = {
    arch: kernel_spec(
        arch, "bf16", b_major="MN", block_m=64, block_n=32, block_k=32, stages=2, consumers=1,
        c_parts=2, batched=True, collective="scatter",
    )
    for arch in (90, 100)
}  # fmt: skip
on_both = pytest.mark.parametrize("arch", SMALL)
KINDS = ("gather", "scatter", "staged")
"""A scatter's tiles are stored in the other GPU's memory, or copied there."""
of_all_kinds = pytest.mark.parametrize("kind", KINDS)
of_both_scatters = pytest.mark.parametrize("kind", KINDS[1:])
each_kind = pytest.mark.parametrize(("kind", "arch"), in_turn(KINDS, SMALL))
SCHEDULES = [("eager", 0), ("lazy", 0), ("random", 1)]


def outputs(
    config, kind, devices=2, schedule="eager", seed=0, *, calls=2, rows=40, changed=None, **limits
):
    """What `calls` products of random matrices, each twice the one before, make on each GPU, and
    what is right for the first.

    Args:
        changed: from a workspace to the one that is used.
        limits: of the emulator.
    """
    n, k, numbers = 40, 72, torch.Generator().manual_seed(seed)
    make, config = launches.gather, config.with_fields(collective="gather")
    if kind != "gather":
        make = partial(launches.scatter, staged=kind == "staged")
        config = config.with_fields(collective="scatter")
    m = rows * (devices if kind != "gather" else 1)
    factors = [
        [torch.randn(shape, generator=numbers).bfloat16() for shape in ((m, k), (k, n))]
        for _ in range(devices)
    ]
    with triton_ext.emulate(
        f"sm_{config.arch}", devices=devices, schedule=schedule, seed=seed, **limits
    ) as gpu:
        spaces = distributed.emulated_workspaces(gpu, 1 << 18)
        spaces = spaces if changed is None else [changed(gpu, each) for each in spaces]

        def rank(number):
            a, b = factors[number]
            return [make(a * 2**i, b, spaces[number], config=config) for i in range(calls)]

        found = gpu.run(rank)
    if kind == "gather":
        whole = torch.cat([a.float() for a, _ in factors])
        return found, [whole @ b.float() for _, b in factors]
    return found, sum(a.float() @ b.float() for a, b in factors).chunk(devices)


def right(found, expected):
    """Whether all outputs are what they should be."""
    return all(
        (each.float() / 2**i - wanted).abs().max() <= 0.02 * wanted.abs().max()
        for made, wanted in zip(found, expected, strict=True)
        for i, each in enumerate(made)
    )


CONFIGURATIONS = {
    (90, "one consumer"): {},
    (90, "two"): {"block_m": 128, "consumers": 2},
    (90, "in turn"): {"consumers": 2, "pingpong": True},
    (90, "in a cluster"): {"cluster_m": 2, "consumers": 2, "pingpong": True, "c_buffers": 2},
    (90, "units"): {"block_n": 48, "c_parts": 3},
    (90, "an edge"): {"block_n": 72, "c_parts": 9},
    (100, "in a cluster"): {"block_m": 128, "cluster_m": 2},
    (100, "a pair"): {"block_m": 128, "cluster_m": 2, "cta_group": 2, "c_buffers": 2},
}


@pytest.mark.parametrize(("of", "kind"), in_turn(CONFIGURATIONS, KINDS))
def test_configurations(of, kind):
    arch, _ = of
    config = SMALL[arch].with_fields(**CONFIGURATIONS[of])
    number = list(CONFIGURATIONS).index(of) // 3 + KINDS.index(kind)
    assert right(*outputs(config, kind, 2, *SCHEDULES[number % 3], rows=70, calls=1))


@each_kind
def test_three_ranks_three_calls(arch, kind):
    assert right(*outputs(SMALL[arch], kind, 3, "random", 2, calls=3))


@each_kind
def test_eight_ranks(arch, kind):
    assert right(*outputs(SMALL[arch], kind, 8, "eager", calls=1))


@each_kind
def test_a_chunk_in_pieces(arch, kind, monkeypatch):
    """Three rows of tiles, of which the last one is not full: a piece each."""
    monkeypatch.setattr(launch, "number_of_pieces", lambda _: 3)
    assert right(*outputs(SMALL[arch], kind, 2, "random", 7, rows=64 * 2 + 30, calls=1))


@on_both
@of_both_scatters
def test_fewer_blocks_than_tiles(arch, kind, monkeypatch):
    monkeypatch.setattr(launch, "resident_clusters", lambda *_: 3)
    more = {"consumers": 2, "pingpong": True} if arch == 90 else CONFIGURATIONS[100, "a pair"]
    config = SMALL[arch].with_fields(**more)
    assert right(*outputs(config, kind, 2, "eager", rows=100 if arch == 90 else 300, calls=1))


# --------------------------------------------------------------------- the public functions


@pytest.mark.parametrize(
    ("call", "arch"), in_turn(["all_gather_matmul", "matmul_reduce_scatter"], SMALL)
)
def test_public_functions(arch, call):
    """With a bias, an activation, scales of rows and columns; a chosen configuration."""
    numbers = torch.Generator().manual_seed(4)
    m, n, k = 32, 32, 64
    a = [torch.randn(m, k, generator=numbers).to(torch.float8_e4m3fn) for _ in range(2)]
    b = [torch.randn(n, k, generator=numbers).to(torch.float8_e4m3fn).t() for _ in range(2)]
    scale_a = [torch.rand(m, 1, generator=numbers) + 0.5 for _ in range(2)]
    scale_b = [torch.rand(1, n, generator=numbers) + 0.5 for _ in range(2)]
    bias = torch.randn(n, generator=numbers).bfloat16()
    with triton_ext.emulate(f"sm_{arch}", devices=2, schedule="random", seed=5) as gpu:
        spaces = distributed.emulated_workspaces(gpu, 1 << 16)
        found = gpu.run(
            lambda rank: getattr(distributed, call)(
                a[rank], b[rank], spaces[rank], bias=bias.clone(), activation="relu",
                scale_a=scale_a[rank], scale_b=scale_b[rank], out_dtype=torch.bfloat16,
            )
        )  # fmt: skip
    left = [x.float() * scale for x, scale in zip(a, scale_a, strict=True)]
    columns = [y.float() * scale for y, scale in zip(b, scale_b, strict=True)]
    if call == "all_gather_matmul":
        sums = [torch.cat(left) @ each for each in columns]
    else:
        sums = (left[0] @ columns[0] + left[1] @ columns[1]).chunk(2)
    expected = [torch.relu(each + bias.float()) for each in sums]
    assert right([[each] for each in found], expected)


# --------------------------------------------------------------------- seeded bugs


def in_ptx(monkeypatch, pattern, replacement):
    """Change all kernels that run from now on."""
    program, changes = host_gpu.EmulatedGpu.program, []

    def changed(gpu, ptx):
        ptx, count = re.subn(pattern, replacement, ptx)
        changes.append(count)
        return program(gpu, ptx)

    monkeypatch.setattr(host_gpu.EmulatedGpu, "program", changed)
    return changes


WRONG = {
    "a tile counted at .gpu": (r"red\.release\.sys", "red.release.gpu"),
    "a tile counted without release": (r"red\.release\.sys", "red.relaxed.sys"),
    "a flag read without acquire": (r"ld\.acquire\.sys", "ld.relaxed.sys"),
    "a flag read at .gpu": (r"ld\.acquire\.sys", "ld.acquire.gpu"),
    "a tile handed over before it is stored": (r"cp\.async\.bulk\.wait_group 0;", ""),
}
NOT_TAKEN_BACK = r"st\.relaxed\.sys\.global\.b32 \[\w+\], 0;", ""


@pytest.mark.parametrize(
    ("bug", "kind", "schedule", "arch"), pairwise(WRONG, KINDS[1:], SCHEDULES, SMALL)
)
def test_seeded_bugs_of_a_scatter(monkeypatch, bug, kind, schedule, arch):
    changes = in_ptx(monkeypatch, *WRONG[bug])
    with pytest.raises(EmulationError):
        outputs(SMALL[arch], kind, 2, *schedule, calls=1)
    assert any(changes)


@pytest.mark.parametrize(
    ("bug", "schedule", "arch"),
    pairwise([bug for bug in WRONG if "read" in bug], SCHEDULES, SMALL),
)
def test_seeded_bugs_of_a_gather(monkeypatch, bug, schedule, arch):
    changes = in_ptx(monkeypatch, *WRONG[bug])
    with pytest.raises(EmulationError):
        outputs(SMALL[arch], "gather", 2, *schedule, calls=1)
    assert any(changes)


def is_wrong(config, kind, **asked):
    """Whether the emulator finds a fault, or the outputs are not right."""
    try:
        return not right(*outputs(config, kind, **asked))
    except EmulationError:
        return True


@on_both
@of_all_kinds
def test_a_flag_that_stays_is_found(monkeypatch, kind, arch):
    """By the next call but one, which has the same set of memory."""
    changes = in_ptx(monkeypatch, *NOT_TAKEN_BACK)
    assert is_wrong(SMALL[arch], kind, schedule="lazy", calls=3, max_steps=50_000)
    assert any(changes)


@each_kind
def test_another_chunk_is_found(monkeypatch, kind, arch):
    link = launches.Link
    monkeypatch.setattr(
        launches, "Link",
        lambda own, flags, late, first, ranks, *more: link(
            own, flags, late, (first + 1) % ranks, ranks, *more
        ),
    )  # fmt: skip
    assert is_wrong(SMALL[arch], kind, calls=1, max_steps=50_000)


class _Changed:
    """A workspace with a bug."""

    def __init__(self, gpu, workspace):
        self.gpu, self.workspace = gpu, workspace

    def __getattr__(self, name):
        return getattr(self.workspace, name)


class _OneSet(_Changed):
    def section(self, size):
        self.workspace.section(size)
        return self.workspace.section(size)


class _FlagFirst(_Changed):
    def send(self, parcels, launch):
        for copies, flags, which, _ in parcels:
            self.gpu.copy(flags[which : which + 1], torch.ones(1, dtype=torch.int32))
            for source, target in copies:
                self.gpu.copy(target, source)
        launch()


@pytest.mark.parametrize(("schedule", "arch"), in_turn(SCHEDULES, SMALL))
def test_a_flag_before_its_data_is_found(schedule, arch):
    with pytest.raises(EmulationError):
        outputs(SMALL[arch], "gather", 2, *schedule, changed=_FlagFirst)


def test_one_set_for_all_calls_is_found():
    """Where a rank is quick: on some schedule, as what is early depends on it. On others a rank
    waits in vain for a flag that a later call has taken back: for 30 s, millions of instructions.
    """
    asked = {"devices": 2, "schedule": "random", "calls": 3, "max_steps": 50_000}
    assert right(*outputs(SMALL[90], "gather", **asked))
    assert any(
        is_wrong(SMALL[90], kind, seed=seed, changed=_OneSet, **asked)
        for kind in KINDS
        for seed in range(3)
    )
