"""`benchmarks.first_light`: what it finds, keeps, and goes on from; with products by torch."""

from __future__ import annotations

import json
import sys

import click
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import plan_launch  # noqa: E402

from benchmarks import first_light  # noqa: E402
from triton_ext.kernels.element_types import BLOCK_SCALED  # noqa: E402


def values(kind, stored, blocks):
    """What an operand (rows, K) of a block-scaled type stands for."""
    scaling = BLOCK_SCALED[kind]
    if scaling.packed == 2:
        codes = stored.view(torch.uint8).int()
        stored = plan_launch.E2M1[torch.stack([codes % 16, codes // 16], -1).flatten(1)]
    rows = -(-len(stored) // 128) * 128
    scales = (
        blocks.double().view(rows // 128, -1, 32, 4, 4).permute(0, 3, 2, 1, 4).reshape(rows, -1)
    )
    scales = scales.repeat_interleave(scaling.length, 1)[: len(stored), : stored.shape[1]]
    return stored.double() * scales


def by_torch(kind, a, b, scale_a, scale_b):
    product = values(kind, a, scale_a) @ values(kind, b.t(), scale_b).t()
    return product.bfloat16()


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Runs the command on four products with a multiplication; returns its status and its file."""
    file = tmp_path / "found.json"

    def start(multiply, arch="sm_100"):
        monkeypatch.setattr(first_light, "multiply", multiply)
        options = ["--json", str(file), "--emulate", arch, "--only", "264x136x400"]
        command = first_light.first_light
        done = CliRunner().invoke(command, options, standalone_mode=False)
        if done.exception:
            raise done.exception
        return done.return_value, json.loads(file.read_text())

    monkeypatch.setattr(first_light, "KINDS", {})
    return start


def test_what_is_wrong_is_tried_again_and_what_is_right_is_not(start):
    called = []

    def partly(kind, *arguments):
        called.append(kind)
        if kind == "mxfp4":
            raise RuntimeError("a kernel's first day")
        return by_torch(kind, *arguments) * (2 if kind == "nvfp4" else 1)

    status, found = start(partly)
    assert (status, called) == (1, list(BLOCK_SCALED))
    states = {name.split()[1]: each["state"] for name, each in found["claims"].items()}
    assert states == {"mxfp8": "confirmed", "mxfp8_e5m2": "confirmed", "mxfp4": "wrong",
                      "nvfp4": "wrong"}  # fmt: skip
    assert "first day" in str(found["claims"])
    assert "2 confirmed, 2 wrong" in found["verdict"]
    assert "nvfp4" in found["verdict"]
    lines = first_light.summarized(found).splitlines()
    assert found["verdict"] in lines[0]
    assert [line.split("|")[2].strip() for line in lines[4:]] == list(states.values())
    called.clear()
    monkey = lambda kind, *arguments: called.append(kind) or by_torch(kind, *arguments)  # noqa: E731
    status, found = start(monkey)
    assert (status, called) == (0, ["mxfp4", "nvfp4"])
    assert "4 confirmed, 0 wrong" in found["verdict"]
    assert start(monkey) == (0, found)
    assert called == ["mxfp4", "nvfp4"]


def test_a_file_of_another_gpu_is_left_alone(start):
    _, found = start(by_torch)
    with pytest.raises(click.UsageError, match="another GPU"):
        start(by_torch, "sm_90")
    assert start(by_torch)[1] == found


@pytest.mark.parametrize(
    ("file", "message"),
    [("none.json", "none.json: No such file"), (__file__, "holds something else")],
)
def test_files_of_something_else(file, message):
    done = CliRunner().invoke(first_light.first_light, ["--json", file, "--summary"])
    assert done.exit_code == 2
    assert message in done.output


PROCESS = """\
import json, os, sys, time
file = sys.argv[-1 - 2 * sys.argv.count("--claim")]
names = [after for word, after in zip(sys.argv, sys.argv[1:]) if word == "--claim"]
found = json.load(open(file))
for name in names:
    if name == "kills":
        sys.exit(3)
    if name == "hangs":
        time.sleep(60)
    state = "wrong" if name == "differs" else "confirmed"
    found["claims"][name] = {"state": state, "seen": "", "run": found["run"]}
    with open(file + ".part", "w") as part:
        json.dump(found, part)
    os.replace(file + ".part", file)
    if state == "wrong":
        break
"""


def test_a_process_that_ends_or_hangs_is_a_finding_and_the_next_one_goes_on(tmp_path, monkeypatch):
    """With a process in place of the command's own, which tries claims by their names."""
    script = tmp_path / "python"
    program = tmp_path / "process.py"
    program.write_text(PROCESS)
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    monkeypatch.setattr(first_light, "LIMIT_SECONDS", 6)
    place = first_light.Place(100, "a GPU", False)
    names = ["one", "differs", "two", "kills", "hangs", "three"]
    chosen = [first_light.Claim(name, "", lambda: None) for name in names]
    report = first_light.Report.of(tmp_path / "found.json", place)
    report.start(chosen)
    claims = first_light.try_in_processes(report, chosen, 60).claims
    assert [claims[name]["state"] for name in names] == [
        "confirmed", "wrong", "confirmed", "wrong", "wrong", "confirmed"
    ]  # fmt: skip
    assert "process ended: 3" in claims["kills"]["seen"]
    assert "did not end in 6 s" in claims["hangs"]["seen"]
    chosen.append(first_light.Claim("four", "", lambda: None))
    report = first_light.Report.of(tmp_path / "found.json", place)
    report.start(chosen)
    assert report.found["run"] == 2
    again = first_light.try_in_processes(report, chosen, 0).claims
    assert again.pop("four")["state"] == "not run"
    assert again == claims


def test_what_tests_launch_is_launched_again(monkeypatch):
    run = first_light.run_python
    monkeypatch.setattr(first_light, "run_python", lambda *words: run(*words, "-k", "test_shift"))
    place = first_light.Place(100, "an emulated sm_100", True)
    finding = first_light.check_instructions(place, "test_tcgen05.py")
    assert finding.state == "confirmed"
    assert finding.detail["launches"] == [1, 1]  # one under three schedules
    assert finding.detail["instructions"]["tcgen05.shift"] == [1, 1]
