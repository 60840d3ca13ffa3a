"""``docs/reference/upstream.md``: each fault is in exactly the releases that the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from sites import ROOT, triton_sites

from triton_ext.layouts.triton.known_faults import KNOWN_FAULTS

SCRIPTS = ROOT / "docs" / "upstream"
PAGE = (ROOT / "docs" / "reference" / "upstream.md").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("fault", KNOWN_FAULTS, ids=lambda fault: fault.title)
def test_every_known_fault_is_told(fault):
    verdicts = [row[1:-1] for row in ROWS if row[-1].startswith(fault.title)]
    releases = [tuple(map(int, release.split(".")[:2])) for release in RELEASES[1:-1]]
    wrong = ["wrong" if release in fault.versions else "right" for release in releases]
    assert verdicts == [wrong]


WORKER = """
import os, runpy, sys
import triton, reproduce, triton_ext.kernels.launch  # once, for all forks
print(triton.__version__, flush=True)
triton.runtime.cache.triton_key()  # of half a gigabyte, which each fork would hash
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        runpy.run_path(name + ".py")
        sys.stdout.flush()
        os._exit(0)
    print("end of", name, os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.parametrize("site", triton_sites())
def test_reproductions(site, tmp_path):
    """The last line of what each prints, in a fork of a process with that release."""
    paths = [str(site)] if site else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(tmp_path),
    }
    finished = subprocess.run(
        [sys.executable, "-c", WORKER, *VERDICTS],
        cwd=SCRIPTS, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-2000:]
    version, said = finished.stdout.split("\n", 1)
    if version not in RELEASES:
        pytest.skip(f"the page says nothing of Triton {version}")
    found = re.findall(r"^(right|wrong):.*\nend of (\w+) 0$", said, re.MULTILINE)
    expected = {name: row[version] for name, row in VERDICTS.items()}
    assert {name: verdict for verdict, name in found} == expected, said + finished.stderr[-2000:]
