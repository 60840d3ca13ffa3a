"""``triton-ext layout A B --convert``."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from triton_ext.cli import main

ROWS = (
    "#ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1],"
    " order = [1, 0]}>"
)
ACCUMULATOR = (
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1],"
    " instrShape = [16, 64, 16]}>"
)
EXAMPLE = (ROWS, ACCUMULATOR, "--convert", "--shape", "128x64", "--bits", "16")


def run(*arguments):
    return CliRunner().invoke(main, ["layout", *arguments])


def test_the_text_says_how_and_what_would_be_in_between():
    lines = run(*EXAMPLE).output.splitlines()
    assert lines[0] == "128x64, 16 bits an element, 4 warps, sm_90"
    assert "16,384 bytes through 8,192, in 2 rounds" in lines[1]
    assert "st.shared of 128 bits, 8 instructions a warp, 128 wavefronts, no bank" in lines[2]
    assert "ldmatrix.x4" in lines[3]
    assert "256 wavefronts" in lines[5]
    assert "#ttg.shared_linear" in lines[5]
    assert "swizzlingByteWidth = 128" in lines[6]
    explained = run(*EXAMPLE, "--explain").output.splitlines()
    assert explained[: len(lines)] == lines
    assert "bit 0 of the warp is bit 3 of the register before: 16 along dim0" in explained


def test_the_json_says_the_same():
    found = json.loads(run(*EXAMPLE, "--format", "json").output)
    assert found["conversion"]["way"] == "shared memory"
    scratch = found["conversion"]["scratch"]
    assert scratch["store"]["wavefronts"] + scratch["load"]["wavefronts"] == 256
    assert found["encodings"][0]["encoding"] == scratch["encoding"]


def test_without_shared_memory():
    assert "nothing to do" in run(ROWS, *EXAMPLE[:1], *EXAMPLE[2:]).output
    narrow = ROWS.replace("[1, 8]", "[1, 4]", 1)
    assert "32 shfl.sync a warp" in run(ROWS, narrow, *EXAMPLE[2:]).output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (EXAMPLE[1:], "two attributes: the layout before"),
        (EXAMPLE[:2], "two attributes are for --convert"),
        (EXAMPLE[:3], "needs --shape"),
        (EXAMPLE[:5], "the width of an element"),
        ((*EXAMPLE, "--format", "svg"), "--format text and json"),
        ((*EXAMPLE, "--core"), "--core cannot be used with --convert"),
        ((ROWS, "--shape", "64x64", "--target", "sm_90"), "--target cannot be used without"),
        ((*EXAMPLE[:4], "64x64x64", *EXAMPLE[5:]), "must have 2 dimensions"),
        (("#ttg.nvmma_shared<{}>", *EXAMPLE[1:]), "must be a #ttg.blocked"),
    ],
)
def test_what_is_refused(arguments, said):
    finished = run(*arguments)
    assert finished.exit_code == 2 or isinstance(finished.exception, ValueError)
    assert said in finished.output + str(finished.exception)
