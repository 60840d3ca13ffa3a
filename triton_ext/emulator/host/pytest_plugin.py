"""A pytest plugin: the fixture `emulated_gpu`, for projects that test their kernels without a GPU.

Installed with the package. A test that asks for the fixture runs its Triton kernels on an emulated
Blackwell; another GPU or schedule is chosen by a parameter or on the command line::

    def test_kernel(emulated_gpu):
        kernel[grid](cpu_tensor, ...)

    @pytest.mark.parametrize("emulated_gpu", ["sm_90", "sm_100"], indirect=True)
    def test_on_both(emulated_gpu):
        ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from triton_ext.emulator.errors import EmulationError
from triton_ext.emulator.host.tracebacks import hide_frames


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("triton_ext", "the emulated GPU of triton_ext")
    group.addoption("--emulate", default="sm_100", help="the GPU of the fixture emulated_gpu")
    group.addoption(
        "--emulate-schedule", default="eager", choices=("eager", "lazy", "random"),
        help="when the emulated GPU does asynchronous work",
    )  # fmt: skip
    group.addoption(
        "--emulate-seed", default=0, type=int, help="of the random schedule of the emulated GPU"
    )
    group.addoption(
        "--emulate-max-steps", type=int, help="instructions after which a launch ends in an error"
    )
    group.addoption(
        "--emulate-timeout", type=float, help="seconds after which a launch ends in an error"
    )


@pytest.fixture
def emulated_gpu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An emulated GPU that is active during the test: `EmulatedGpu`."""
    from triton_ext.emulator.host.driver import emulate
    from triton_ext.emulator.schedule.machine import MAX_STEPS

    config = request.config
    arch = getattr(request, "param", config.getoption("--emulate"))
    schedule = config.getoption("--emulate-schedule")
    seed = config.getoption("--emulate-seed")
    max_steps = config.getoption("--emulate-max-steps") or MAX_STEPS
    timeout = config.getoption("--emulate-timeout")
    with emulate(
        arch,
        schedule=schedule,
        seed=seed,
        cuda_on_host=True,
        max_steps=max_steps,
        timeout=timeout,
    ) as gpu:
        yield gpu


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Leave the frames of the emulator, and of Triton above it, out of what a test shows."""
    if call.excinfo is None or not isinstance(call.excinfo.value, EmulationError):
        return
    hide_frames(call.excinfo.value)
    call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value)
