"""A few chains of views, by a fixed seed, through every pass; `make oracle` has 500 more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pass_corpus import environment
from sites import SUPPORT, triton_sites

pytest.importorskip("torch")


@pytest.mark.parametrize("site", triton_sites())
def test_chains_of_views(site, tmp_path):
    """No pass complains of a right kernel, none makes it wrong, and none ends the process."""
    told = subprocess.run(
        [sys.executable, str(SUPPORT / "view_chains.py"), "--seed", "3", "--count", "6"],
        capture_output=True, text=True, cwd=tmp_path, env=environment(site),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-3000:]
    counts = json.loads(told.stdout)
    assert counts["run"] >= 4, counts
