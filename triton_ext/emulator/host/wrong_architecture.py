"""Kernels whose operations are of another architecture than the one that is emulated.

Triton's Gluon front end takes the operations of all; then LLVM aborts the process at one that the
target lacks, or MLIR's verifier prints what only those who know the compiler understand. Here the
module that the front end makes is looked at first.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_ext.emulator.errors import WrongArchitecture
from triton_ext.hardware.architecture import Architecture, compiled_for
from triton_ext.mlir.module import MlirModule
from triton_ext.ptx.targets import owners

_OPERATIONS: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = (
    (("90a",), re.compile(r"ttng\.warp_group_dot(_wait)?")),
    (("100f", "110f"),
     re.compile(r"ttng\.(tmem_|tc_gen5_|async_tma_gather|async_tma_scatter)\w+")),
    (("100",), re.compile(r"ttng\.clc_\w+")),
    (("90",), re.compile(r"ttng\.(async_tma_|tensormap_)\w+|ttng\.cluster_\w+")),
)  # fmt: skip
"""The operations that not every target has, and who has them, as `Target.meets` reads it."""
_GENERATIONS: tuple[Architecture, ...] = (90, 100)
_NAMES: dict[Architecture, re.Pattern[str]] = {
    90: re.compile(r"warpgroup_mma"),
    100: re.compile(r"tcgen05_|allocate_tensor_memory|TensorMemory|clc$"),
}
"""What the operations are called in Gluon."""


def _check(module: Any, arch: int) -> None:
    """Raise WrongArchitecture if a module of Triton's front end has what `arch` lacks."""
    target = compiled_for(arch)
    lacking = [row for row in _OPERATIONS if not any(map(target.meets, row[0]))]
    if not any(pattern.search(str(module)) for _, pattern in lacking):
        return
    for operation in MlirModule(str(module)).operations:
        for each in operation.walk():
            for needs, pattern in lacking:
                if pattern.fullmatch(each.name):
                    raise WrongArchitecture(_message(each.name, each.location, arch, needs))


def _message(name: str, location: Any, arch: int, needs: tuple[str, ...]) -> str:
    right = f"sm_{needs[0].rstrip('af')}"
    text = (
        f"{name} is an operation of {right} ({owners(needs)}), and the kernel is compiled for"
        f" sm_{arch}: use"
        f' emulate("{right}"), or on the command line --emulate (of compile: --target) {right}'
    )
    if location is None:
        return text
    with contextlib.suppress(OSError, IndexError, UnicodeDecodeError):
        line = Path(location.file).read_text().splitlines()[location.line - 1]
        text += f"\n    {line.strip()}"
    return f"{text}\n  source: {location}"


def _made_for(arch: Architecture, make: Any, target: Any, options: Any, *rest: Any) -> Any:
    """The module that the front end makes for another architecture."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    context = ir.context()
    ir.load_dialects(context)
    target = replace(target, arch=arch)
    make_backend(target).load_dialects(context)
    return make(target, replace(options, arch=f"sm{arch}"), *rest, context)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Within it, a Gluon kernel of another architecture than its target's is refused."""
    from triton.errors import TritonError
    from triton.experimental.gluon._runtime import GluonASTSource

    make = GluonASTSource.make_ir

    @functools.wraps(make)
    def checked(self: Any, target: Any, options: Any, *rest: Any) -> Any:
        try:
            module = make(self, target, options, *rest)
        except RuntimeError:  # the verifier; if it accepts the other architecture, we know why
            for other in _GENERATIONS:
                module = ""
                with contextlib.suppress(RuntimeError, TritonError):  # wrong there, too
                    module = _made_for(
                        other, functools.partial(make, self), target, options, *rest[:-1]
                    )
                _check(module, target.arch)
            raise
        _check(module, target.arch)
        return module

    GluonASTSource.make_ir = checked
    try:
        yield
    finally:
        GluonASTSource.make_ir = make


def architecture_of(script: Path) -> Architecture:
    """The architecture of a script by the operations that its own text names.

    sm_90 if it names wgmma's and none of Blackwell's; else sm_100. What it imports is not looked
    at: if that makes the guess wrong, the kernel is a `WrongArchitecture`.
    """
    try:
        nodes = list(ast.walk(ast.parse(script.read_bytes())))
    except (SyntaxError, ValueError):  # the script's own affair, when it runs
        return 100
    names = [
        getattr(node, {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name"}[type(node)])
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute | ast.alias)
    ]
    hopper, blackwell = (any(map(_NAMES[arch].match, names)) for arch in (90, 100))
    return 90 if hopper and not blackwell else 100
