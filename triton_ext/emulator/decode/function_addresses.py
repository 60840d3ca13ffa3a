"""Addresses of a module's functions: numbers of our own, which pointers and tables hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

from triton_ext.ptx.parse import Kernel, Module

_FIRST, _STEP = 1 << 62, 16
"""Where functions lie: there is no memory."""
_NAME = re.compile(r"(?<![\w$%])[A-Za-z_$][\w$]*")


def function_addresses(module: Module) -> dict[str, int]:
    """By the functions' names."""
    functions = (each for each in module.kernels if not each.is_entry)
    return {each.name: _FIRST + _STEP * number for number, each in enumerate(functions)}


def pointed_at(module: Module) -> Iterator[Kernel]:
    """The functions whose address a variable holds, or an instruction that is no call takes."""
    named = {name for each in module.variables for name in _NAME.findall(each.initializer)}
    for kernel in module.kernels:
        for each in kernel.instructions:
            if not each.opcode.startswith("call"):
                named.update(name for text in each.operands for name in _NAME.findall(text))
    yield from (each for each in module.kernels if not each.is_entry and each.name in named)
