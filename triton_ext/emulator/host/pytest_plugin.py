"""A pytest plugin for projects that test their kernels without a GPU.

What a test shows of a fault is its own lines and the fault; in a job of GitHub Actions each fault
is an annotation, too. TRITON_EXT_EMULATE runs all tests on an emulated GPU; the fixture
`emulated_gpu` runs one test there.

Installed with the package. A test that asks for the fixture runs its Triton kernels on an emulated
Blackwell; another GPU or schedule is chosen by a parameter or on the command line::

    def test_kernel(emulated_gpu):
        kernel[grid](cpu_tensor, ...)

    @pytest.mark.parametrize("emulated_gpu", ["sm_90", "sm_100"], indirect=True)
    def test_on_both(emulated_gpu):
        ...
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from triton_ext.errors import Fault
from triton_ext.findings import Finding, SourceLocation, github_annotation, on_github
from triton_ext.tracebacks import trim


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("triton_ext", "the emulated GPU of triton_ext")
    group.addoption(
        "--emulate",
        default="sm_100",
        help="the GPU of the fixture emulated_gpu, such as sm_90 or sm_120",
    )
    group.addoption(
        "--emulate-schedule", default="eager", choices=("eager", "lazy", "random"),
        help="when the emulated GPU does asynchronous work",
    )  # fmt: skip
    group.addoption(
        "--emulate-seed", default=0, type=int, help="of the random schedule of the emulated GPU"
    )
    group.addoption(
        "--emulate-strict",
        action="store_true",
        help="what is undefined, and relied on by published kernels, is a fault",
    )
    group.addoption(
        "--emulate-schedules", choices=("all",),
        help="all: say of each launch whether every schedule is safe; a witness fails the test",
    )  # fmt: skip
    group.addoption(
        "--emulate-max-steps", type=int, help="instructions after which a launch ends in an error"
    )
    group.addoption(
        "--emulate-timeout", type=float, help="seconds after which a launch ends in an error"
    )


@pytest.fixture
def emulated_gpu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An emulated GPU that is active during the test: `EmulatedGpu`."""
    from triton_ext.emulator.host.emulate import emulate
    from triton_ext.emulator.schedule.limits import MAX_STEPS

    config = request.config
    arch = getattr(request, "param", config.getoption("--emulate"))
    schedule = config.getoption("--emulate-schedule")
    seed = config.getoption("--emulate-seed")
    max_steps = config.getoption("--emulate-max-steps") or MAX_STEPS
    timeout = config.getoption("--emulate-timeout")
    schedules = config.getoption("--emulate-schedules")
    with emulate(
        arch,
        schedule=schedule,
        schedules=schedules,
        seed=seed,
        cuda_on_host=True,
        max_steps=max_steps,
        timeout=timeout,
        strict=config.getoption("--emulate-strict"),
    ) as gpu:
        try:
            yield gpu
        finally:
            for each in gpu.verdicts:
                request.node.user_properties.append(("schedules", each.as_object()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Leave the frames of this project and of Triton out of what a test shows of a fault."""
    fault = None if call.excinfo is None else call.excinfo.value
    if not isinstance(fault, Fault):
        return (yield)
    findings = fault.findings()
    trim(fault)
    call.excinfo = pytest.ExceptionInfo.from_exception(fault)
    report = yield
    # As xdist sends reports from process to process: JSON.
    vars(report)["findings"] = [dataclasses.asdict(each) for each in findings]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say of how many launches every schedule is safe, and of which not, if that was asked for; in
    a job of GitHub Actions, annotate the lines of the faults for which tests failed.
    """
    _tell_verdicts(terminalreporter)
    if not on_github():
        return
    reports = [each for kind in ("failed", "error") for each in terminalreporter.getreports(kind)]
    for report in reports:
        for each in getattr(report, "findings", ()):
            terminalreporter.ensure_newline()
            terminalreporter.write_line(github_annotation(_finding(each)))


def _tell_verdicts(terminalreporter: Any) -> None:
    verdicts = [
        (report.nodeid, verdict)
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, verdict in report.user_properties
        if name == "schedules"
    ]
    if not verdicts:
        return
    counts = Counter(verdict["outcome"] for _, verdict in verdicts)
    terminalreporter.section("all schedules")
    terminalreporter.write_line(", ".join(f"{n} {what}" for what, n in counts.most_common()))
    for test, verdict in verdicts:
        for reason in verdict["reasons"]:
            where = f"{reason['place']}: " if reason["place"] else ""
            text = f"{test}: {verdict['kernel']}: {verdict['outcome']}: {where}{reason['text']}"
            terminalreporter.write_line(text)


def _finding(given: dict[str, Any]) -> Finding:
    """A finding from what a report keeps of it."""
    location = given["location"] and SourceLocation(**given["location"])
    related = tuple((text, SourceLocation(**line)) for text, line in given["related"])
    return Finding(**{**given, "location": location, "related": related})
