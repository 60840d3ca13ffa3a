"""Triton and Gluon kernels on the emulated GPUs, against their definitions; and against silicon."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import kernel_cases  # noqa: E402
from sites import ALL, ROOT, triton_sites  # noqa: E402

import triton_ext  # noqa: E402
from triton_ext.emulator.clients.statistics import Statistics  # noqa: E402
from triton_ext.emulator.host.driver import active_gpu  # noqa: E402
from triton_ext.kernels.spec import kernel_spec  # noqa: E402

CASES = list(kernel_cases.all_cases())
ARCHES = ("sm_90", "sm_100")
TENSOR_CORES_OR_TMA = ("dot", "attention", "descriptor", "device-descriptor")


def targets(number, case):
    """Both GPUs for what each does in its own way; the rest on one of them in turn, and so the
    matmuls, which come in both types of 16 bits. Of those with a swizzle operands of one
    major-ness are of one type, of two of the other: each swizzle is on both.
    """
    alike = "-K-K-" in case.name or "-MN-MN-" in case.name
    if not ALL and "swizzle" in case.name and alike == ("bfloat16" in case.name):
        return []
    if ALL or case.name.startswith(TENSOR_CORES_OR_TMA):
        return ARCHES
    return [ARCHES[(number + ("bfloat16" in case.name)) % 2]]


TARGETS = [(case, arch) for number, case in enumerate(CASES) for arch in targets(number, case)]


def error_of(found, expected):
    found, expected = found.double(), expected.double()
    assert found.shape == expected.shape
    return float((found - expected).norm() / expected.norm().clamp(min=1e-30))


@pytest.mark.usefixtures("no_binaries", "shallow")
@pytest.mark.parametrize(("case", "arch"), TARGETS, ids=str)
def test_exact_inputs_give_exact_results(case, arch):
    """Small integers: any order of accumulation gives the same bits."""
    with triton_ext.emulate(arch, cuda_on_host=True):
        outputs = case.run("cuda", True)
    for found, expected in zip(outputs, case.expected(True), strict=True):
        if case.name.startswith(("attention", "divide", "sqrt")):
            assert error_of(found, expected) < case.tolerance
        else:
            assert torch.equal(found.double(), expected.to(found.dtype).double())


@pytest.mark.usefixtures("no_binaries", "shallow")
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("case", CASES[::9], ids=str)
def test_schedules_give_the_same_bits(case, arch):
    """Random numbers: asynchronous work may be done at any legal moment."""
    with triton_ext.emulate(arch, cuda_on_host=True):
        eager = case.run("cuda", False)
    for a, expected in zip(eager, case.expected(False), strict=True):
        assert error_of(a, expected) < max(case.tolerance, 1e-6)
    for schedule in ("lazy", "random"):
        with triton_ext.emulate(arch, schedule=schedule, seed=5, cuda_on_host=True):
            other = case.run("cuda", False)
        assert all(torch.equal(a.double(), b.double()) for a, b in zip(eager, other, strict=True))


@pytest.mark.sm90
@pytest.mark.parametrize("exact", [True, False], ids=["exact", "random"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hopper_gpu_gives_what_the_emulator_gives(case, exact):
    """The silicon check: the same kernel on both."""
    real = [output.cpu() for output in case.run("cuda", exact)]
    with triton_ext.emulate("sm_90", cuda_on_host=True):
        emulated = case.run("cuda", exact)
    for found, expected in zip(emulated, real, strict=True):
        if case.bitwise or (exact and not case.name.startswith(("attention", "divide", "sqrt"))):
            assert torch.equal(found.double(), expected.double())
        else:
            assert error_of(found, expected) < max(case.tolerance, 1e-6)


OF_EVERY_KIND = (
    "matmul-200x136x168-float16-K or dot-64x64x64-64 or muladd-float32 or sum-float32 or sort-int32"
    " or histogram or attention-128x64-float16 or atomics or descriptor-64x208-64x128-float16"
    " or device-descriptor-48x96-32x64-float16"
)


@pytest.mark.parametrize("site", triton_sites())
def test_other_releases_of_triton(site):
    """A kernel of every kind or more, compiled by the releases in ``.tritons``."""
    if site is None:
        pytest.skip("the installed release is tested above")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__,
         "-k", f"exact_inputs and ({OF_EVERY_KIND})"],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 25


def test_matmul_of_tensors_on_the_host_is_emulated():
    a, b = (torch.randint(-3, 4, shape).half() for shape in ((40, 24), (24, 56)))
    if not torch.cuda.is_available():
        assert torch.equal(triton_ext.matmul(a, b), a @ b)
    for arch in ARCHES:
        with triton_ext.emulate(arch) as gpu:
            assert active_gpu() is gpu
            assert torch.equal(triton_ext.matmul(a, b), a @ b)
            assert (gpu.launches, gpu.arch) == (1, int(arch[3:]))
            assert gpu.steps > 100
    assert active_gpu() is None


def test_statistics_of_a_product():
    """128x128x64 in fp16: one tile of A, of B and of C."""
    statistics = Statistics()
    a = torch.randint(-3, 4, (128, 64)).half()
    with triton_ext.emulate("sm_100", observer=statistics):
        triton_ext.matmul(a, a.T, config=kernel_spec(100, "fp16"))
    found = statistics.as_object()
    assert found["asynchronous_operations"]["tcgen05.mma.cta_group::1.kind::f16"] == 4
    tile = 128 * 64 * 2
    assert found["bytes"]["shared store by TMA"] == 2 * tile
    assert found["bytes"]["shared load by TMA"] == 2 * tile  # C is 128x128
    by_tensor_core = {key: n for key, n in found["bytes"].items() if "operand" in key}
    assert sum(by_tensor_core.values()) == 2 * tile
    assert found["shared_memory"]["wavefronts"] >= found["shared_memory"]["ideal_wavefronts"] > 0


def test_nested_emulation_comes_back():
    with triton_ext.emulate("sm_100") as outer:
        with triton_ext.emulate("sm_90"):
            assert active_gpu().arch == 90
        assert active_gpu() is outer


def test_the_pytest_fixture(emulated_gpu):
    assert active_gpu() is emulated_gpu
    assert torch.cuda.is_available()
    assert torch.version.cuda == "13.0"
    assert torch.zeros(3, device="cuda").device.type == "cpu"
    assert torch.zeros(3, device=torch.cuda.current_device()).is_cuda
    torch.manual_seed(3)
    assert torch.randn(1, device="cuda:0").to("cuda").cuda().device.type == "cpu"


def test_operators_and_gradients_are_on_the_device(emulated_gpu):
    """Functions of Python that torch calls in its turn see CUDA's tensors, too."""
    seen = []

    @torch.library.custom_op("emulated::twice", mutates_args=(), device_types="cuda")
    def twice(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.is_cuda)
        return x * torch.full((1,), 2.0, device="cuda")

    def backward(context, gradient):
        seen.append(gradient.is_cuda)
        return twice(gradient)

    twice.register_autograd(backward)
    x = torch.ones(3, device="cuda", requires_grad=True)
    twice(x).sum().backward()
    (gradient,) = torch.autograd.grad(twice(x).sum(), x)
    assert x.grad.equal(gradient)
    assert gradient.tolist() == [2, 2, 2]
    assert seen == [True] * 6


SCRIPT = """
import sys
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def double(x, o, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

device = triton.runtime.driver.active.get_active_torch_device()
x = torch.arange(int(sys.argv[1]), device="cuda")
o = torch.zeros_like(x)
launch = lambda: double[lambda meta: (triton.cdiv(len(x), meta["BLOCK"]),)](x, o, len(x))
launch()
assert x.is_cuda and torch.equal(o.cpu(), 2 * torch.arange(len(x)))
print("capability", torch.cuda.get_device_capability(), "count", triton.testing.do_bench(launch))
"""


def test_a_script_that_knows_nothing(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "triton_ext", "run", "--emulate", "sm_90", "--stats"]
    done = subprocess.run([*command, str(script), "100"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("capability (9, 0) count ")
    assert "launches" in done.stderr
    assert "warp instructions" in done.stderr
    traced = subprocess.run(
        [*command[:-1], "--trace", "--only", r"st\.global", "--block", "0x0x0", str(script), "9"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert traced.returncode == 0, traced.stderr
    lines = [line for line in traced.stderr.splitlines() if "st.global" in line]
    assert lines
    assert all("block (0, 0, 0)" in line and "script.py" in line for line in lines)
