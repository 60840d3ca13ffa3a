"""One line of PTX for every form of an instruction whose targets differ; what ptxas says of each.

In ``tests/data/target_samples.txt`` ``%r`` are registers of 32 bits, ``%rd`` of 64, ``%h`` of 16,
``%b`` of 8, ``%q`` of 128, ``%f`` and ``%d`` floats, ``%p`` predicates.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sites import ROOT

TARGETS = (
    "80", "86", "89", "90", "90a", "100", "100a", "100f", "103", "103a", "103f", "107", "107a",
    "107f", "110", "110a", "110f", "120", "120a", "120f", "121", "121a", "121f",
)  # fmt: skip
"""The targets of Triton 3.9's ptxas (13.4) that the project knows, without ``sm_``."""
VERSION = "9.4"
"""The PTX ISA of that ptxas."""
RELEASE = "13.4"
SAMPLES = tuple((ROOT / "tests" / "data" / "target_samples.txt").read_text().splitlines())

_HEAD = """.version {version}
.target sm_{target}
.address_size 64
.extern .shared .align 1024 .b8 shared[];
"""
_KERNEL = """.visible .entry k{number}(.param .u64 p) {{
.reg .b32 %r<64>; .reg .b64 %rd<64>; .reg .b16 %h<64>; .reg .b128 %q<8>;
.reg .f32 %f<64>; .reg .f64 %d<32>; .reg .b8 %b<4>; .reg .pred %p<8>;
{line}
ret; }}
"""


def module(target: str, lines: Sequence[str], version: str = VERSION) -> str:
    """A module with a kernel for each of these lines, which has the registers that it names."""
    kernels = (_KERNEL.format(number=number, line=line) for number, line in enumerate(lines))
    return _HEAD.format(version=version, target=target) + "".join(kernels)


def refused_by_ptxas(
    ptxas: str, target: str, lines: Sequence[str], version: str = VERSION
) -> dict[str, str]:
    """The lines that ptxas refuses for a target, with its reasons.

    It is asked again without those, as later stages of it look at what earlier ones accept.
    """
    found: dict[str, str] = {}
    while True:
        left = [line for line in lines if line not in found]
        new = _refused(ptxas, target, left, version)
        if not new:
            return found
        found |= new


def _refused(ptxas: str, target: str, lines: Sequence[str], version: str) -> dict[str, str]:
    first, each = _HEAD.count("\n") + 4, _KERNEL.count("\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.ptx"
        path.write_text(module(target, lines, version))
        done = subprocess.run(
            [ptxas, "-O0", f"-arch=sm_{target}", str(path), "-o", f"{folder}/out"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    found: dict[str, str] = {}
    for number, text in re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", done.stderr):
        line = lines[(int(number) - first) // each]
        found[line] = "; ".join(filter(None, (found.get(line, ""), text)))
    if done.returncode and not found:
        raise RuntimeError(done.stderr)
    return found
