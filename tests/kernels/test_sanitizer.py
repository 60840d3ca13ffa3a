"""The Hopper kernels under NVIDIA's compute-sanitizer: memcheck, and racecheck.

Racecheck watches shared memory. It does not know how Triton hands work to specialized warps: these
read a byte that the default warps write before a barrier (`sanitizer_worker.warp_state`), and it
calls that a hazard. Hazards on these bytes are allowed, and no other; kernels without specialized
warps must have none at all. A control with a race shows that races are seen, and which address
racecheck gives to the first byte of a kernel's dynamic shared memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from sites import SUPPORT

pytest.importorskip("torch")
pytest.importorskip("triton")

from sanitizer_worker import CASES, CONTROL_OFFSET, warp_state

from triton_ext.kernels.launch import compile_matmul
from triton_ext.kernels.spec import kernel_spec

HAZARD = re.compile(r"\b(RAW|WAR|WAW) hazard detected at __shared__ 0x([0-9a-fA-F]+)")
BLOCK_WINDOW = 1 << 24
"""Where the shared memory of a cluster's next block begins, as racecheck names addresses."""
SUMMARY = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")


def sanitizer():
    """The tool; skips the test where it is not installed."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "compute-sanitizer")
    found = shutil.which("compute-sanitizer") or (str(toolkit) if toolkit.exists() else None)
    if found is None:
        pytest.skip("compute-sanitizer is not installed")
    return found


@dataclass(frozen=True)
class Report:
    """What a tool printed, and what the worker said of its kernels."""

    text: str
    status: int
    kernels: list[dict]

    def hazards(self):
        """How often which (kind, address) was reported; every one that was counted is there."""
        found = Counter(
            (kind, int(address, 16) % BLOCK_WINDOW) for kind, address in HAZARD.findall(self.text)
        )
        (displayed,) = SUMMARY.findall(self.text)
        assert found.total() == int(displayed), self.text[-4000:]
        return found


def run(tool, *names):
    """Run the worker under a tool of the sanitizer; a hazard does not stop it."""
    command = [sanitizer(), "--tool", tool, "--print-limit", "1000000"]
    if tool == "racecheck":
        command += ["--racecheck-report", "hazard"]
    else:
        # Triton's loader asks for more shared memory than there is beside the tool's, and goes on.
        command += ["--error-exitcode", "77", "--report-api-errors", "no"]
    worker = SUPPORT / "sanitizer_worker.py"
    done = subprocess.run(
        [*command, sys.executable, str(worker), *names],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )
    text = done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    kernels = [json.loads(line) for line in lines]
    assert [kernel["case"] for kernel in kernels] == list(names), text[-4000:]
    return Report(text, done.returncode, kernels)


@pytest.fixture(scope="module")
def first_address():
    """What racecheck calls the first byte of a kernel's dynamic shared memory."""
    report = run("racecheck", "control")
    addresses = {address for _, address in report.hazards()}
    assert addresses, f"the control's race was not seen:\n{report.text}"
    print("control:", dict(report.hazards()))
    (first,) = {address // 4 * 4 - CONTROL_OFFSET for address in addresses}
    return first


@pytest.mark.sm90
@pytest.mark.parametrize("name", CASES)
def test_racecheck(name, first_address):
    report = run("racecheck", name)
    (kernel,) = report.kernels
    state = range(*kernel["state"]) if kernel["state"] else range(0)
    hazards = report.hazards()
    seen = Counter({(kind, at - first_address): n for (kind, at), n in hazards.items()})
    print(f"{name}: {kernel['shared']} bytes, state {kernel['state']}, hazards {dict(seen)}")
    others = {(kind, at): n for (kind, at), n in seen.items() if at not in state}
    assert not others, f"state {kernel['state']}; hazards elsewhere: {others}\n{report.text[:8000]}"


@pytest.mark.sm90
def test_memcheck():
    report = run("memcheck", *CASES)
    print(report.text[-2000:])
    assert report.status == 0, report.text[-8000:]
    assert "ERROR SUMMARY: 0 errors" in report.text


# ------------------------------------------------------------------------------ no GPU needed


@pytest.mark.usefixtures("no_binaries")
@pytest.mark.parametrize("name", CASES)
def test_where_the_state_is(name):
    """It has a byte for each worker warp, and is what the default warps write at fixed places."""
    config = kernel_spec(90, "bf16", **{"stages": 2} | CASES[name][0])
    compiled = compile_matmul(config)
    ptx, metadata = compiled.asm["ptx"], compiled.metadata
    state = warp_state(ptx, config.tile.num_warps, metadata.num_warps)
    stores = re.findall(r"st\.shared\.(?:v(\d)\.)?b(\d+)\s+\[global_smem\+(\d+)\]", ptx)
    written = set()
    for count, bits, first in stores:
        written |= set(range(int(first), int(first) + int(count or 1) * int(bits) // 8))
    if state is None:
        assert config.tile.consumers == 0
        assert not written
    else:
        assert written == set(range(*state))
        assert len(written) == metadata.num_warps - config.tile.num_warps
        assert max(written) < metadata.shared


def test_a_report_is_read():
    text = """
========= Error: Potential WAW hazard detected at __shared__ 0x418 in block (0,0,0) :
=========     Write Thread (0,0,0) at racy+0x90
=========     Write Thread (32,0,0) at racy+0x90
=========     Current Value : 0, Incoming Value : 32
=========
========= Warning: Potential RAW hazard detected at __shared__ 0x419 in block (0,0,0) :
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
    assert Report(text, 0, []).hazards() == {("WAW", 0x418): 1, ("RAW", 0x419): 1}
    with pytest.raises(AssertionError):
        Report(text.replace("2 hazards", "3 hazards"), 0, []).hazards()
