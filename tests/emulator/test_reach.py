"""What memory a kernel reaches: that which its launch was given, and no other of the process."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.cli import main  # noqa: E402
from triton_ext.emulator.errors import (  # noqa: E402
    LaunchError,
    MemoryFault,
    SynchronizationFault,
)


@triton.jit
def copy(source, target, FIRST: tl.constexpr, NUMBER: tl.constexpr):
    at = FIRST + tl.arange(0, NUMBER)
    tl.store(target + at, tl.load(source + at) + 1)


@triton.jit(do_not_specialize=["first"], do_not_specialize_on_alignment=["x", "address"])
def copy_one(x, address, first, writes: tl.constexpr):
    other = address.to(tl.pointer_type(tl.float32))
    if writes:
        tl.store(x + first, tl.load(other))
    else:
        tl.store(other, tl.load(x + first))


@triton.jit
def copy_rows(sources, target, N: tl.constexpr):
    """Row by row, from the addresses that `sources` holds: as a grouped GEMM finds its operands."""
    row, at = tl.program_id(0), tl.arange(0, N)
    source = tl.load(sources + row).to(tl.pointer_type(tl.float32))
    tl.store(target + row * N + at, tl.load(source + at))


@triton.jit
def copy_address(address, target, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(target + at, tl.load(address.to(tl.pointer_type(tl.float32)) + at))


@pytest.fixture(autouse=True)
def emulated():
    with triton_ext.emulate("sm_100") as gpu:
        yield gpu


VIEWS = {
    "whole": lambda x: x,
    "slice": lambda x: x[16:80],
    "odd": lambda x: x[3:35],
    "columns": lambda x: x.view(16, 16)[2:10, 4:8],
    "transposed": lambda x: x.view(16, 16).T[4:8],
    "expanded": lambda x: x[8:9].expand(5),
    "one": lambda x: x[7],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("writes", [False, True], ids=["load", "store"])
def test_a_view_is_reached_exactly(view, writes):
    """The first and the last element that it spans, and none before or behind, of 256 that live."""
    base = torch.arange(1.0, 257.0)
    x = view(base)
    span = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    alone = torch.zeros(1)
    for first, good in ((0, True), (span - 1, True), (-1, False), (span, False)):
        before, at = base.clone(), x.storage_offset() + first
        if good:
            copy_one[(1,)](x, alone.data_ptr(), first, writes)
            assert base[at] == alone[0]
            assert alone[0] == (0 if writes else before[at])
            continue
        with pytest.raises(MemoryFault, match="argument x at 0x"):
            copy_one[(1,)](x, alone.data_ptr(), first, writes)
        assert torch.equal(base, before)


class Wrapped:
    """What Triton takes for a pointer, and is no tensor."""

    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr()


def test_an_object_with_an_address():
    """It reaches the tensor there, and nothing beside it."""
    whole, target = torch.arange(128.0), torch.zeros(64)
    copy[(1,)](Wrapped(whole[:64]), Wrapped(target), 0, 64)
    assert torch.equal(target, whole[:64] + 1)
    alone = torch.arange(64.0)
    with pytest.raises(MemoryFault):
        copy[(1,)](Wrapped(alone), target, 64, 64)


@pytest.mark.parametrize("view", ["rows", "front"])
def test_padding_behind_a_view(view):
    """A kernel that writes whole tiles into rows that were allocated wider than they are named."""
    whole = torch.zeros(2, 64)
    x = {"rows": whole[:, :50], "front": whole[0, :50]}[view]
    with pytest.raises(MemoryFault, match="if this is meant: check_views=False"):
        copy[(1,)](torch.ones(64), x, 0, 64)
    with triton_ext.emulate("sm_100", check_views=False):
        copy[(1,)](torch.ones(64), x, 0, 64)
        with pytest.raises(MemoryFault):
            copy[(1,)](torch.ones(256), x, 0, 256)
    assert (whole[0] == 2).all()


def test_overlapping_views_are_one_memory(monkeypatch):
    """Also in forks, which work on copies."""
    monkeypatch.setattr("triton_ext.emulator.schedule.parallel.WORTH_FORKING", 0)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    base = torch.arange(512.0)

    @triton.jit
    def shift(source, target, N: tl.constexpr):
        at = tl.program_id(0) * N + tl.arange(0, N)
        tl.store(target + at, tl.load(source + at) * 2)

    # blocks of 32: each reads what the fourth before it writes, which order leaves open
    with pytest.raises(SynchronizationFault, match="only a release by the one and an acquire"):
        shift[(8,)](base[:384], base[128:384], 32)
    base = torch.arange(512.0)
    with triton_ext.emulate("sm_90", check_races=False):
        shift[(8,)](base[:384], base[128:384], 32)
    assert torch.equal(base[:128], torch.arange(128.0))
    assert torch.equal(base[128:256], 2 * torch.arange(128.0))
    assert torch.equal(base[384:], torch.arange(384.0, 512.0))


@pytest.mark.parametrize("when", ["before", "inside"])
def test_pointers_in_memory(when):
    """Wherever they were taken: what they point at is reached, and nothing else that lives."""
    if when == "before":
        rows = [torch.randn(64) for _ in range(6)]
        pointers = torch.tensor([row.data_ptr() for row in rows])
    else:
        rows = list(torch.randn(6, 64).unbind())
        pointers = torch.tensor([row.data_ptr() for row in rows])
    secret = torch.randn(64)
    out = torch.zeros(6, 64)
    copy_rows[(6,)](pointers, out, 64)
    assert torch.equal(out, torch.stack(rows))
    with pytest.raises(MemoryFault, match="no allocation"):
        copy[(1,)](out, out, (secret.data_ptr() - out.data_ptr()) // 4, 64)
    with pytest.raises(MemoryFault, match="no allocation"):
        copy_rows[(6,)](pointers + 256 * 4 * 64, out, 64)


def test_an_address_as_an_argument_and_pointers_to_pointers():
    row = torch.randn(64)
    out = torch.zeros(64)
    copy_address[(1,)](row.data_ptr(), out, 64)
    assert torch.equal(out, row)

    @triton.jit
    def twice(table, target, N: tl.constexpr):
        at = tl.arange(0, N)
        inner = tl.load(tl.load(table).to(tl.pointer_type(tl.int64)))
        tl.store(target + at, tl.load(inner.to(tl.pointer_type(tl.float32)) + at) + 1)

    inner = torch.tensor([row.data_ptr()])
    twice[(1,)](torch.tensor([inner.data_ptr()]), out, 64)
    assert torch.equal(out, row + 1)


def test_named_buffers():
    """What torch does not know of: here, an array of numpy's."""
    row, out = np.arange(64, dtype=np.float32), torch.zeros(64)
    address = row.ctypes.data
    with pytest.raises(MemoryFault, match="no allocation"):
        copy_address[(1,)](address, out, 64)
    with triton_ext.emulate("sm_100", buffers=[row]):
        copy_address[(1,)](address, out, 64)
        with pytest.raises(MemoryFault, match=r"256 bytes past the end of|buffers\[0\]"):
            copy_address[(1,)](address + 256, out, 64)
    assert out.tolist() == row.tolist()
    for wrong in (3, [3], "text", None):
        with pytest.raises(LaunchError, match="buffers"), triton_ext.emulate(buffers=wrong):
            pass


def odd_tensors():
    """Tensors without an address of their own."""
    yield torch.eye(4).to_sparse()
    yield torch.eye(4).to_sparse_csr()
    yield torch.empty(4, device="meta")
    if torch.backends.mkldnn.is_available():
        yield torch.eye(4).to_mkldnn()
    yield torch.nn.Parameter(torch.ones(4))


def test_tensors_without_memory_are_in_nobodys_way():
    alive = list(odd_tensors())
    row, out = torch.randn(64), torch.zeros(64)

    def inside(wrapped):
        alive.append(wrapped)  # functorch's
        copy_address[(1,)](row.data_ptr(), out, 64)
        return wrapped.sum()

    torch.func.grad(inside)(torch.ones(3))
    assert torch.equal(out, row)
    with pytest.raises(LaunchError, match="a tensor without memory of its own"):
        triton_ext.emulate("sm_100", buffers=alive[:1]).__enter__()


def test_tma_stores_whole_16_bytes():
    """The last row's end belongs to the storage, not to the view: an H100 writes it, too."""
    pytest.importorskip("triton.tools.tensor_descriptor")
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def fill(descriptor, N: tl.constexpr):
        descriptor.store([0, 0], tl.full((N, N), 7.0, tl.float16))

    padded = torch.zeros(17, 16, dtype=torch.float16)
    view = padded[:16, :13]
    fill[(1,)](TensorDescriptor.from_tensor(view, [16, 16]), 16)
    assert (padded[:16] == 7).all()
    assert not padded[16].any()


ENDLESS = """
import torch, triton, triton.language as tl

@triton.jit
def forever(x, n):
    i = n
    while i >= n:
        tl.store(x, i)  # again and again

forever[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"), 3)
"""


@pytest.mark.parametrize("limit", ["--max-steps=3000", "--timeout=0.3"])
def test_a_script_that_never_ends(limit, tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    found = CliRunner().invoke(main, ["run", limit, str(script)])
    assert found.exit_code == 1
    line = ENDLESS.splitlines().index("        tl.store(x, i)  # again and again") + 1
    assert "LimitReached" in found.output
    assert f"endless.py:{line} (" in found.output
