"""A reader of the printed form of MLIR: attributes, and the shared-memory types of a module.

It reads just what layouts need. Attributes have the form ``#ttg.name<{key = value, ...}>``, with
further ``key = value`` pairs before or after the braces; values are integers, booleans, words,
nested lists and attributes. Of a module it reads the attribute aliases (``#shared = #ttg...``) and
the types that carry a shared encoding: ``!ttg.memdesc<...>`` and ``!tt.tensordesc<...>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.mlir.types import memory_type

_TOKEN = re.compile(r"\s*([#!]?[A-Za-z_][\w.$]*|[-+]?\d+|\S)")


@dataclass(frozen=True)
class Attribute:
    """An attribute: its mnemonic (``ttg.nvmma_shared``), its parameters, and its text."""

    name: str
    parameters: dict[str, Any]
    text: str


class _Cursor:
    """The tokens of an attribute, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _TOKEN.findall(text)
        self.at = 0

    def fail(self, expected: str) -> LayoutError:
        found = self.tokens[self.at] if self.at < len(self.tokens) else "the end"
        return LayoutError("attribute", self.text, f"expected {expected}, found {found!r}")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.fail(repr(token))

    def word(self, expected: str) -> str:
        token = self.peek()
        if not re.match(r"[#!]?[A-Za-z_]", token):
            raise self.fail(expected)
        self.at += 1
        return token

    def value(self) -> Any:
        if self.accept("["):
            items: list[Any] = []
            while not self.accept("]"):
                if items:
                    self.expect(",")
                items.append(self.value())
            return items
        token = self.peek()
        if re.fullmatch(r"[-+]?\d+", token):
            self.at += 1
            if self.accept(":"):  # a typed integer, such as 16 : i32
                self.word("a type")
            return int(token)
        token = self.word("a value")
        if token.startswith("#") and self.accept("<"):
            return self.attribute(token)
        return {"true": True, "false": False}.get(token, token)

    def attribute(self, name: str) -> Attribute:
        """An attribute inside of another one, from behind its ``<``."""
        start = self.at
        parameters: dict[str, Any] = {}
        self.pairs(parameters, ">")
        return Attribute(name[1:], parameters, f"{name}<{' '.join(self.tokens[start : self.at])}")

    def pairs(self, parameters: dict[str, Any], end: str) -> None:
        """``key = value`` pairs and braces of them, up to the token `end`."""
        while not self.accept(end):
            if self.accept("{"):
                self.pairs(parameters, "}")
            else:
                key = self.word("a key")
                if key in parameters:
                    raise LayoutError("attribute", self.text, f"the key {key!r} is given twice")
                self.expect("=")
                parameters[key] = self.value()
            if self.peek() != end:
                self.expect(",")


def parse_attribute(text: str) -> Attribute:
    """Parse ``#ttg.name<{key = value, ...}>``.

    Raises:
        LayoutError: the text is not of this form; the message says what was expected where.
    """
    if not isinstance(text, str):
        raise LayoutError("attribute", text, "must be a string, such as '#ttg.nvmma_shared<{...}>'")
    cursor = _Cursor(text)
    name = cursor.word("an attribute, such as '#ttg.nvmma_shared<{...}>'")
    if not name.startswith("#"):
        raise LayoutError(
            "attribute", text, "must start with '#', as in '#ttg.nvmma_shared<{...}>'"
        )
    parameters: dict[str, Any] = {}
    cursor.expect("<")
    cursor.pairs(parameters, ">")
    if cursor.peek():
        raise cursor.fail("the end")
    return Attribute(name[1:], parameters, text.strip())


def parse_value(text: str) -> Any:
    """Parse an integer, a boolean, a word, or a nested list of them, such as ``[[1, 0], [0, 1]]``.

    Raises:
        LayoutError: none of these.
    """
    cursor = _Cursor(text)
    value = cursor.value()
    if cursor.peek():
        raise cursor.fail("the end")
    return value


@dataclass(frozen=True)
class SharedType:
    """A use of a shared encoding in a module.

    Attributes:
        encoding: the text of the encoding, aliases resolved.
        alias: the alias it was printed under (``#shared``), or "" if printed in place.
        shape: the shape of one tile that the encoding lays out: the trailing dimensions of the
            allocation, as many as the encoding's rank; leading ones count buffers.
        element: the element type, such as ``f16``.
        kind: ``memdesc`` or ``tensordesc``.
    """

    encoding: str
    alias: str
    shape: tuple[int, ...]
    element: str
    kind: str


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


def shared_types(module: str) -> Iterator[SharedType]:
    """Each type of a printed module that carries a shared encoding, in order of appearance.

    Encodings of tensor memory are left out: they are no shared-memory layouts.

    Raises:
        LayoutError: a type that cannot be read.
    """
    text = _NOISE.sub("", module)
    aliases = attribute_aliases(text)
    for match in _TYPE.finditer(text):
        found = memory_type(text[match.start() : _balanced(text, match.end())], aliases)
        if found is None or "shared" not in found.encoding.partition("<")[0]:
            continue
        # A view (memdesc_subslice) prints its allocation's shape last: that is what is laid out.
        yield SharedType(found.encoding, found.alias, found.allocated, found.element, found.kind)
