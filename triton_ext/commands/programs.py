"""What ``triton-ext run`` is given: a Python script, CUDA C++, or a program; and the latter two."""

from __future__ import annotations

import enum
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from triton_ext.commands.common import say
from triton_ext.errors import LayoutError

if TYPE_CHECKING:
    from triton_ext.emulator.errors import EmulationError
    from triton_ext.emulator.host.gpu import EmulatedGpu

_ELF = b"\x7fELF"
_MOST_LOOKED_AT = 1 << 26
"""Bytes of a program that are searched for the name of an architecture."""


class Kind(enum.Enum):
    """What can be run."""

    PYTHON = "a Python script"
    CUDA = "CUDA C++"
    PROGRAM = "a program"


def found_script(script: str) -> str:
    """The path of a file, or of a program on ``PATH``. Raises click.BadParameter: there is none; or
    it is a pipe, say, which could be read but once."""
    path = Path(script)
    if path.is_file():
        return script
    if not path.exists():
        program = shutil.which(script)
        if program is None:
            raise click.BadParameter(f"File {script!r} does not exist.", param_hint="'SCRIPT'")
        return program
    raise click.BadParameter(f"{script} is no regular file", param_hint="SCRIPT")


def kind_of(script: str) -> Kind:
    """CUDA C++ by the name's end (``.cu``); a program if it is an ELF file, or one that can be
    executed and is for another interpreter than Python, or that of another environment, which has
    installed it; else a Python script."""
    path = Path(script)
    if path.suffix == ".cu":
        return Kind.CUDA
    with path.open("rb") as file:
        first = file.readline(256)
    if first.startswith(_ELF):
        return Kind.PROGRAM
    interpreter = Path(os.fsdecode(first[2:].strip()))
    foreign = (
        first.startswith(b"#!")
        and path.suffix != ".py"
        and (
            b"python" not in first
            or interpreter.parent == path.parent.absolute() != Path(sys.executable).parent
        )
    )
    return Kind.PROGRAM if foreign and os.access(path, os.X_OK) else Kind.PYTHON


def guessed(script: str, kind: Kind) -> int:
    """The architecture that something is for, by the instructions that it names."""
    if kind is Kind.PYTHON:
        from triton_ext.emulator.host.wrong_architecture import architecture_of

        return architecture_of(Path(script))
    from triton_ext.emulator.host.cuda.nvcc import architecture_in

    with open(script, "rb") as file:
        return architecture_in(file.read(_MOST_LOOKED_AT))


def run_foreign(script: str, kind: Kind, arguments: Sequence[str], gpu: EmulatedGpu) -> None:
    """Run CUDA C++, or a program, on the emulated GPU.

    Raises:
        EmulationError: what a kernel does wrong; the program has ended then.
        SystemExit: the program ends with another exit status than 0.
        click.UsageError: there is no compiler, or it fails.
    """
    from triton_ext.emulator.host.cuda.nvcc import compile_source
    from triton_ext.emulator.host.cuda.server import run_program

    faults: list[EmulationError] = []
    with tempfile.TemporaryDirectory(prefix="triton-ext-") as folder, warnings.catch_warnings():
        # No line of Python launched the kernel.
        warnings.showwarning = lambda text, *_: say(f"triton-ext: {text}", err=True)
        program = script if os.sep in script else os.path.join(os.curdir, script)
        try:
            if kind is Kind.CUDA:
                program = str(compile_source(Path(script), gpu.arch, Path(folder)))
            status = run_program(
                [program, *arguments],
                gpu,
                lambda text: say(f"triton-ext: {text}", err=True),
                faults.append,
            )
        except LayoutError as error:
            raise click.UsageError(str(error)) from None
    if faults:
        raise faults[0].with_traceback(None)
    if status:
        raise SystemExit(status)
