"""An interpreter whose site has the package as an installation has it: with its .pth file."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

from sites import ROOT

PTH = ROOT / "triton_ext_startup.pth"


def interpreter(folder: Path) -> Path:
    """A virtual environment's Python in `folder`, which sees the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / PTH.name).write_bytes(PTH.read_bytes())
    # A line of a .pth file that is only a path is searched, its own .pth files are not run.
    own = [each for each in site.getsitepackages() if Path(each).is_dir()]
    lines = [f"import site; site.addsitedir({each!r})\n" for each in own]
    (packages / "packages_of_the_tests.pth").write_text("".join(lines))
    scripts = folder / "bin"
    for name, module in (("triton-ext", "triton_ext"), ("pytest", "pytest")):
        script = scripts / name
        script.write_text(f'#!/bin/sh\nexec "{scripts / "python"}" -m {module} "$@"\n')
        script.chmod(0o755)
    return scripts / "python"


def environment(python: Path, **variables: str) -> dict[str, str]:
    """This process's environment with that interpreter first on the path; no job of GitHub's.

    Triton's warning of a default that will change is not of interest.
    """
    others = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "TRITON_EXT_"))
    }
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return {**others, "PATH": path, "TRITON_DEFAULT_FP_FUSION": "1", **variables}
