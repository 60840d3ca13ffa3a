"""What is read of a module without parsing its operations: aliases, and types of shared memory.

Aliases are definitions of attributes (``#shared = #ttg...``); the types are ``!ttg.memdesc<...>``
and ``!tt.tensordesc<...>``, those with a shared encoding. `triton_ext.layouts.attributes` reads the
attributes themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from triton_ext.errors import LayoutError
from triton_ext.mlir.types import MemoryType, memory_type

_ALIAS = re.compile(r"^\s*(#[\w$.-]+)\s*=\s*(#[\w$.]+)(<?)", re.MULTILINE)
_TYPE = re.compile(r"!(?:ttg|tt|ttng)\.(?:memdesc|tensordesc)<")
_NOISE = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*')


def _balanced(text: str, start: int) -> int:
    """The position behind the ``>`` that closes the ``<`` in front of `start`."""
    depth = 1
    for position in range(start, len(text)):
        if text[position] == "<":
            depth += 1
        elif text[position] == ">" and text[position - 1] != "-":  # not an arrow
            depth -= 1
            if not depth:
                return position + 1
    raise LayoutError("module", text[max(0, start - 40) : start + 40], "a '<' is never closed")


def attribute_aliases(module: str) -> dict[str, str]:
    """The attribute aliases that a module defines: ``#shared`` -> ``#ttg.nvmma_shared<...>``."""
    text = _NOISE.sub("", module)
    return {
        match[1]: text[match.start(2) : _balanced(text, match.end()) if match[3] else match.end()]
        for match in _ALIAS.finditer(text)
    }


def shared_types(module: str) -> Iterator[MemoryType]:
    """Each type of a printed module that carries a shared encoding, in order of appearance.

    Encodings of tensor memory are left out: they are no shared-memory layouts. Raises LayoutError:
    a type that cannot be read.
    """
    text = _NOISE.sub("", module)
    aliases = attribute_aliases(text)
    for match in _TYPE.finditer(text):
        found = memory_type(text[match.start() : _balanced(text, match.end())], aliases)
        if found is not None and "shared" in found.encoding.partition("<")[0]:
            yield found
