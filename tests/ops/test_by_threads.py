"""Products of rows that TMA cannot read: their operands are loaded by threads, or copied."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton_ext  # noqa: E402
from triton_ext.kernels.choice.by_threads import (  # noqa: E402
    ThreadAccess,
    ThreadDivision,
    ThreadTile,
    copying_seconds,
    division_by_threads,
)
from triton_ext.kernels.choice.choose import choose_config, predicted_seconds  # noqa: E402
from triton_ext.kernels.choice.gemv import GemvTile  # noqa: E402
from triton_ext.kernels.choice.problem import Problem  # noqa: E402
from triton_ext.kernels.product import ProductSpec  # noqa: E402
from triton_ext.ops import planning, plans  # noqa: E402
from triton_ext.ops.by_threads import Rows, ThreadsLaunch, rows_of  # noqa: E402
from triton_ext.ops.epilogue import ACTIVATION_FUNCTIONS  # noqa: E402

pytestmark = pytest.mark.usefixtures("shallow", "poisoned_memory")


@pytest.fixture
def divided(monkeypatch):
    """Products made by threads in a tile, divided along K, whatever the model says."""

    def force(*tile, splits=1):
        plans.clear_cache()
        kind = GemvTile if len(tile) == 2 else ThreadTile
        division = ThreadDivision(kind(*tile), splits)
        monkeypatch.setattr(planning, "division_by_threads", lambda *_: division)

    yield force
    plans.clear_cache()


@pytest.fixture
def copied(monkeypatch):
    """Products made by copies, whatever the model says."""
    plans.clear_cache()
    monkeypatch.setattr(planning, "division_by_threads", lambda *_: None)
    yield
    plans.clear_cache()


def within_gaps(rows, columns, stride, offset=0):
    """A matrix of random numbers in NaN, with nothing behind its last element."""
    memory = torch.full((offset + (rows - 1) * stride + columns,), torch.nan).bfloat16()
    matrix = memory.as_strided((rows, columns), (stride, 1), offset)
    return matrix.copy_(torch.randn(rows, columns))


def assert_close(made, expected):
    assert made.shape == expected.shape
    assert (made.double() - expected).norm() < 4e-3 * expected.norm()


def is_by_threads():
    return isinstance(list(plans._plans.values())[-1].launch, ThreadsLaunch)


@pytest.mark.parametrize(
    ("arch", "schedule", "tile", "splits", "sizes", "transposed", "more", "offset"),
    [
        (90, "lazy", (16, 32, 64), 3, (9, 35, 250), (False, True), 7, 3),
        (90, "random", (64, 16, 64), 1, (70, 20, 130), (True, False), 2, 2),
        (90, "eager", (16, 32, 64), 2, (20, 33, 124), (False, False), 8, 4),
        (100, "random", (64, 64, 64), 2, (65, 72, 129), (True, True), 1, 1),
    ],
)
def test_rows_anywhere(
    arch, schedule, tile, splits, sizes, transposed, more, offset, divided
):  # fmt: skip
    """Rows of any stride and address; what lies between them is neither read nor written."""
    m, n, k = sizes
    divided(*tile, splits=splits)
    a, b = (
        within_gaps(columns, rows, rows + more, offset).T
        if is_transposed
        else within_gaps(rows, columns, columns + more, offset)
        for (rows, columns), is_transposed in zip(((m, k), (k, n)), transposed, strict=True)
    )
    with triton_ext.emulate(f"sm_{arch}", schedule=schedule):
        assert_close(triton_ext.matmul(a, b), a.double() @ b.double())
        assert is_by_threads()


def alone(rows, columns, stride, offset):
    """`within_gaps`, but with nothing before its first element, either."""
    memory = np.full(offset + (rows - 1) * stride + columns, np.nan, np.float16)
    matrix = torch.from_numpy(memory[offset:]).as_strided((rows, columns), (stride, 1))
    return matrix.copy_(torch.randn(rows, columns))


@pytest.mark.parametrize(
    ("arch", "schedule", "tile", "splits", "sizes", "transposed", "more", "offset"),
    [
        (90, "random", (2, 32), 3, (1, 421, 168), (False, False), 1, 5),
        (90, "lazy", (4, 64), 1, (4, 509, 65), (True, False), 0, 3),
        (90, "eager", (1, 32), 2, (3, 70, 527), (False, True), 3, 7),
        (100, "random", (8, 32), 1, (129, 2, 301), (False, False), 0, 1),
        (90, "random", (1, 32), 1, (97, 3, 12), (True, True), 9, 6),
        (90, "lazy", (1, 32), 1, (2, 9, 3), (False, True), 5, 2),
        (90, "lazy", (4, 32), 1, (2, 251, 1), (False, False), 0, 6),
    ],
)
def test_vectors(arch, schedule, tile, splits, sizes, transposed, more, offset, divided):
    """One to four, times a matrix of any alignment: not a byte outside of it is read."""
    m, n, k = sizes
    divided(*tile, splits=splits)
    a, b = (
        alone(columns, rows, rows + more, offset).T
        if is_transposed
        else alone(rows, columns, columns + more, offset)
        for (rows, columns), is_transposed in zip(((m, k), (k, n)), transposed, strict=True)
    )
    with triton_ext.emulate(f"sm_{arch}", schedule=schedule):
        assert_close(triton_ext.matmul(a, b), a.double() @ b.double())
        assert isinstance(list(plans._plans.values())[-1].launch.config.tile, GemvTile)


@pytest.mark.parametrize(
    ("activation", "m", "n", "tile"),
    [
        (None, 17, 21, (16, 32, 64)),
        ("relu", 3, 21, (1, 32)),
        ("gelu", 17, 2, (1, 32)),
        ("silu", 17, 21, (16, 32, 64)),
    ],
)
def test_epilogue(activation, m, n, tile, divided):
    """A batch, with a bias, and a residual that is broadcast; rounded once."""
    divided(*tile, splits=2)
    a, b, bias, residual = (
        torch.randn(size).bfloat16() for size in ((3, m, 299), (3, 299, n), (n,), (m, 1))
    )
    functions = {**ACTIVATION_FUNCTIONS, None: lambda x: x}
    expected = functions[activation](
        a.double() @ b.double() + bias.double() + 2 * residual.double()
    )
    with triton_ext.emulate("sm_90", schedule="random"):
        made = triton_ext.matmul(a, b, bias=bias, residual=residual, beta=2, activation=activation)
        assert is_by_threads()
    assert_close(made, expected)


@pytest.mark.parametrize("tile", [(1, 32), (16, 32, 64)])
def test_out(tile, divided):
    """An out off 16 bytes, which is the residual, too, is written where it lies, and no more."""
    divided(*tile)
    a, b = torch.randn(3, 40).half(), torch.randn(40, 24).half()
    base = torch.full((5, 31), torch.nan).half()
    out = base[1:4, 3:27].copy_(torch.randn(3, 24))
    expected = a.double() @ b.double() + 2 * out.double()
    with triton_ext.emulate("sm_90"):
        assert triton_ext.addmm(out, a, b, beta=2, out=out) is out
        (plan,) = plans._plans.values()
        assert isinstance(plan.launch, ThreadsLaunch)
        assert_close(out, expected)
        assert base.isnan().sum() == base.numel() - out.numel()
        assert triton_ext.matmul(a, b, out=out.as_strided((3, 24), (3, 1))) is not None
        assert not is_by_threads()  # rows that overlap


def test_training(divided):
    """torch's own functions and their gradients take the way by themselves."""
    divided(16, 32, 64)
    x, weight, bias = (torch.randn(size).half() for size in ((2, 9, 33), (21, 33), (21,)))
    inputs = [each.requires_grad_() for each in (x, weight, bias)]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    torch.nn.functional.linear(*exact).square().sum().backward()
    with triton_ext.emulate("sm_90"), triton_ext.drop_in():
        torch.nn.functional.linear(*inputs).float().square().sum().backward()
        assert is_by_threads()
    for each, other in zip(inputs, exact, strict=True):
        assert_close(each.grad, other.grad)


@pytest.mark.parametrize("arch", [90, 100])
def test_copies(arch, copied):
    """Both operands in one launch, each as it lies, and the output out of longer rows."""
    a, b = within_gaps(70, 130, 130), within_gaps(37, 130, 133, 1)
    with triton_ext.emulate(f"sm_{arch}", schedule="lazy"):
        assert_close(triton_ext.matmul(a, b.T), a.double() @ b.T.double())
        (plan,) = plans._plans.values()
        assert (plan.copies, plan.memory) == ({"a", "b"}, (70, 40))
        assert [view.major for view in plan.launch.views] == ["K", "K", "MN"]


def test_batch_invariance(divided):
    """Sums whose bits may depend on the tile are not made where they must not."""
    divided(16, 32, 64)
    a, b = torch.randn(9, 33).half(), torch.randn(33, 21).half()
    with triton_ext.emulate("sm_90"):
        triton_ext.matmul(a, b, batch_invariant=True)
        assert not is_by_threads()


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "expected"),
    [
        ((5, 479), (479, 1), 0, Rows(1, 1, 479, 0)),
        ((5, 476), (484, 1), 2, Rows(1, 2, 242, 0)),
        ((476, 5), (1, 484), 4, Rows(0, 4, 121, 0)),
        ((3, 5, 480), (2400, 480, 1), 0, Rows(1, 8, 60, 300)),
        ((1, 479), (5, 1), 8, Rows(1, 1, 0, 0)),
        ((5, 7), (14, 2), 0, None),
    ],
)
def test_units(shape, strides, offset, expected):
    memory = torch.zeros(10_000).half()
    assert rows_of(memory.as_strided(shape, strides, offset)) == expected


def test_choice():
    """As they were measured on an H200: few rows are loaded by threads, others copied."""
    for size, access, is_faster in (
        ((14, 2422, 255), (1, 1, 2, True, False), True),  # 3.3 and 4.9 us
        ((3, 50257, 6616), (8, 1, 1, True, False), True),  # 247 and 543 us
        ((53, 744, 6143), (1, 8, 8, True, False), False),  # 16.6 and 9.3 us
        ((655, 392, 255), (1, 1, 8, True, True), False),  # 7.7 and 3.8 us
    ):
        problem, access = Problem(*size), ThreadAccess(*access)
        majors = ("K" if access.a_k_major else "MN"), ("K" if access.b_k_major else "MN")
        spec = choose_config(90, ProductSpec("bf16", *majors), problem)
        copies = (unit < 8 for unit in access[:3])
        otherwise = copying_seconds(problem, *copies) + predicted_seconds(spec, problem)
        assert (division_by_threads(problem, access, otherwise) is not None) == is_faster
