"""CUDA C++ for the emulated GPU: NVIDIA's compiler, and programs that keep their PTX."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from triton_ext.emulator.host.cuda.library import build
from triton_ext.errors import LayoutError

INSTALL = (
    "there is no nvcc: neither on PATH, nor in CUDA_HOME, nor as a package; install CUDA's toolkit,"
    " or pip install 'triton-layouts[cuda]'"
)
_ALIKE = re.compile(rb"\bwgmma\b|\btcgen05\b")


def compiler() -> Path:
    """NVIDIA's compiler: that on ``PATH``, of ``CUDA_HOME`` or ``CUDA_PATH``, or of the packages.
    Raises LayoutError: there is none."""
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    package = importlib.util.find_spec("nvidia")
    roots = list(package.submodule_search_locations or ()) if package is not None else []
    packaged = sorted(
        (str(path) for root in roots for path in Path(root).glob("cu*")), reverse=True
    )
    found = shutil.which("nvcc")
    kept = [Path(home) / "bin" / "nvcc" for home in (*homes, *packaged)]
    usable = [path for path in ([Path(found)] if found else []) + kept if path.is_file()]
    if not usable:
        raise LayoutError("nvcc", "nvcc", INSTALL)
    return usable[0]


def architecture_in(data: bytes) -> int:
    """The architecture that a source or a program is for, by the families of instructions that it
    names: sm_90 if wgmma is one and tcgen05 is not, else sm_100."""
    return 90 if {each.group() for each in _ALIKE.finditer(data)} == {b"wgmma"} else 100


def compile_source(source: Path, arch: int, folder: Path) -> Path:
    """Compile CUDA C++ with its own ``main()``, keeping PTX with source lines.

    The options of ``NVCC_PREPEND_FLAGS`` and ``NVCC_APPEND_FLAGS`` are nvcc's own affair.

    Args:
        arch: the architecture's number; from sm_90 on, its own features are allowed.
        folder: where the program is put.

    Raises:
        LayoutError: there is no compiler, or it fails; what it prints goes to stderr.
    """
    target = f"compute_{arch}{'a' if arch >= 90 else ''}"
    program = folder / source.stem
    nvcc = compiler()
    # The packages keep libraries in lib, where the nvcc of some does not look.
    command = [
        str(nvcc), f"-L{nvcc.parent.parent / 'lib'}", "-cudart", "shared", "-lineinfo",
        "-gencode", f"arch={target},code={target}", "-o", str(program), str(source),
        f"-L{build()}", "-lcuda",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=2, check=False)
    if done.returncode:
        raise LayoutError("source", str(source), f"nvcc ends with exit status {done.returncode}")
    return program
