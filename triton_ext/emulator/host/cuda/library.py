"""The libraries that programs load in place of NVIDIA's, compiled on first use."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

from triton_ext.emulator.host.cuda.interface import driver_source, runtime_source
from triton_ext.errors import LayoutError

DRIVER = "libcuda.so.1"
PRELOADED = "libtriton-ext-preloaded.so"
"""What each process of the program loads before all else."""
_LINKERS = ("libnvJitLink.so.12", "libnvJitLink.so.13")
_NO_LINKER = """
__attribute__((visibility("default"))) int nvJitLinkVersion(unsigned *major, unsigned *minor) {
    return 6; /* NVJITLINK_ERROR_INTERNAL */
}
"""
"""In place of NVIDIA's library that compiles and links within the program, and keeps no PTX: with
one that does not start, JAX starts ptxas."""
MAJORS = (12, 13)
"""The releases of CUDA whose runtime library has a stand-in."""
_NAMES = {
    "libcuda.so": DRIVER, "libnvidia-ml.so.1": DRIVER, "libnvidia-ml.so": DRIVER,
    "libcudart.so": f"libcudart.so.{MAJORS[-1]}",
}  # fmt: skip
"""Further names of the libraries."""
_kept: list[tempfile.TemporaryDirectory[str]] = []
"""The folders of libraries, which live as long as the process."""


@functools.cache
def build() -> Path:
    """Compile the library.

    Returns:
        The folder that has it, under the names that programs load.

    Raises:
        LayoutError: there is no C compiler, or it fails.
    """
    compiler = os.environ.get("CC", "cc")
    found = shutil.which(compiler) or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        rule = (
            "there is no such C compiler; the stand-in for CUDA's driver is compiled on first use"
        )
        raise LayoutError("CC", compiler, f"{rule}: install gcc or clang, or let CC name one")
    _kept.append(tempfile.TemporaryDirectory(prefix="triton-ext-cuda-"))
    folder = Path(_kept[-1].name)
    client = resources.files(__package__) / "client"
    files = {each.name: each.read_text(encoding="utf-8") for each in client.iterdir()}
    (folder / "client.h").write_text(files["client.h"], encoding="utf-8")
    _compile(found, folder, DRIVER, driver_source(files))
    _compile(found, folder, PRELOADED, files["preload.c"], "-ldl")
    for name in _LINKERS:
        _compile(found, folder, name, _NO_LINKER)
    for name, kept in _NAMES.items():
        (folder / name).symlink_to(kept)
    runtime = runtime_source(files)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda major: _compile_runtime(found, folder, major, runtime), MAJORS))
    return folder


def preloaded(folder: Path) -> str:
    """What ``LD_PRELOAD`` must have. Libraries are there because some programs name the files of
    NVIDIA's own that they bring; the one that is loaded first is the one that is used."""
    names = (PRELOADED, *(f"libcudart.so.{major}" for major in MAJORS), *_LINKERS)
    return ":".join(str(folder / name) for name in names)


def _compile_runtime(compiler: str, folder: Path, major: int, source: str) -> None:
    """The runtime library of a release; its symbols have the version that programs ask for."""
    name = f"libcudart.so.{major}"
    versions = folder / f"{name}.versions"
    versions.write_text(f"{name} {{ global: cuda*; __cuda*; local: *; }};", encoding="utf-8")
    _compile(
        compiler, folder, name, source, f"-DMAJOR={major}", str(folder / DRIVER),
        "-Wl,-rpath,$ORIGIN", f"-Wl,--version-script={versions}",
    )  # fmt: skip


def _compile(compiler: str, folder: Path, name: str, source: str, *options: str) -> None:
    code = folder / f"{name}.c"
    code.write_text(source, encoding="utf-8")
    command = [
        compiler, "-shared", "-fPIC", "-O0", "-w", "-pthread", "-fvisibility=hidden",
        f"-Wl,-soname,{name}", "-o", str(folder / name), str(code), *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LayoutError("CC", compiler, f"does not compile {name}: {done.stderr.strip()}")
