"""``docs/upstream.md``: each fault is there in exactly the releases that the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from sites import ROOT, triton_sites

SCRIPTS = ROOT / "docs" / "upstream"
PAGE = (ROOT / "docs" / "upstream.md").read_text(encoding="utf-8")
RELEASES, *ROWS = (
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
)
VERDICTS = {
    re.search(r"`(\w+)`", row[0])[1]: dict(zip(RELEASES[1:-1], row[1:-1], strict=True))
    for row in ROWS
}


def test_every_script_is_in_the_table():
    assert {path.stem for path in SCRIPTS.glob("*.py")} - {"reproduce"} == set(VERDICTS)
    assert {verdict for row in VERDICTS.values() for verdict in row.values()} == {"right", "wrong"}


@pytest.mark.parametrize("site", triton_sites())
@pytest.mark.parametrize("name", VERDICTS)
def test_reproduction(name, site, tmp_path):
    """The last line of its output, in a process of its own with that release."""
    paths = [str(site)] if site else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    code = f"import runpy, triton; print(triton.__version__); runpy.run_path({name + '.py'!r})"
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=SCRIPTS, env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    version, *_, verdict = finished.stdout.splitlines()
    if version not in RELEASES:
        pytest.skip(f"the page says nothing of Triton {version}")
    assert verdict.partition(":")[0] == VERDICTS[name][version], verdict
