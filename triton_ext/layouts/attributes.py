"""The text of an MLIR attribute, as a value: how Triton prints its encodings.

Attributes have the form ``#ttg.name<{key = value, ...}>``, with further ``key = value`` pairs
before or after the braces; values are integers, booleans, words, nested lists and attributes.
Before the pairs there may be one list without a key: the ``[32:+4]`` of ``#ttg.padded_shared``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError

MAX_TEXT = 1 << 20
"""The longest attribute, in characters."""
MAX_DEPTH = 32
"""How deep brackets may nest."""
_MAX_DIGITS = 19
_TOKEN = re.compile(r"\s*([#!]?[A-Za-z_][\w.$]*|[-+]?\d+|\S)")


_DEPTH = {**dict.fromkeys("[{<", 1), **dict.fromkeys("]}>", -1)}


@dataclass(frozen=True)
class Attribute:
    """An attribute of MLIR.

    Attributes:
        name: with its dialect: ``ttg.nvmma_shared``.
        parameters: the values of its keys.
        unnamed: the list before the keys, its items ``interval:+padding`` as pairs; None if there
            is none.
    """

    name: str
    parameters: dict[str, Any]
    text: str
    unnamed: tuple[Any, ...] | None = None

    @property
    def mnemonic(self) -> str:
        """The name without the dialect: ``nvmma_shared``."""
        return self.name.split(".")[-1]

    def required(self, *keys: str) -> list[Any]:
        """The values of parameters that must be there. Raises LayoutError: one is missing."""
        for key in keys:
            if key not in self.parameters:
                raise LayoutError("attribute", self.text, f"the key {key!r} is missing")
        return [self.parameters[key] for key in keys]

    def checked(
        self, name: str, required: Sequence[str], optional: Sequence[str], *, unnamed: bool = False
    ) -> list[Any]:
        """The values of the required parameters of an attribute that may have no unknown ones.
        Raises LayoutError: another attribute, an unknown key, or one that is missing.

        Args:
            name: what its name must be, but for the dialect: ``ttg.nvmma_shared``.
            unnamed: whether there must be a list before the keys; else there may be none.
        """
        if self.mnemonic != name.split(".")[-1]:
            raise LayoutError("attribute", self.text, f"must be a #{name}<...>")
        if unnamed != (self.unnamed is not None):
            rule = f"must {'' if unnamed else 'not '}start with a list, such as [32:+4]"
            raise LayoutError("attribute", self.text, rule)
        legal = [*required, *optional]
        for key in self.parameters:
            if key not in legal:
                raise LayoutError("attribute", self.text, f"unknown key {key!r}; legal: {legal}")
        return self.required(*required)


class _Cursor:
    """The tokens of an attribute, read from left to right."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_TEXT:
            raise LayoutError("attribute", text[:40], f"must have at most {MAX_TEXT} characters")
        self.text = text
        self.tokens = _TOKEN.findall(text)
        self.at = 0
        depths = itertools.accumulate(_DEPTH.get(token, 0) for token in self.tokens)
        if max(depths, default=0) > MAX_DEPTH:
            raise LayoutError("attribute", text, f"must nest at most {MAX_DEPTH} deep")

    def fail(self, expected: str) -> LayoutError:
        found = self.tokens[self.at] if self.at < len(self.tokens) else "the end"
        return LayoutError("attribute", self.text, f"expected {expected}, found {found[:40]!r}")

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

    def integer(self) -> int:
        token = self.peek()
        if not re.fullmatch(r"[-+]?\d+", token):
            raise self.fail("an integer")
        if len(token) > _MAX_DIGITS:
            raise self.fail(f"an integer of at most {_MAX_DIGITS} characters")
        self.at += 1
        return int(token)

    def value(self) -> Any:
        if self.accept("["):
            items: list[Any] = []
            while not self.accept("]"):
                if items:
                    self.expect(",")
                items.append(self.value())
            return items
        if re.fullmatch(r"[-+]?\d+", self.peek()):
            number = self.integer()
            if not self.accept(":"):
                return number
            if re.match(r"[-+]", self.peek()):  # such as 32:+4
                self.accept("+")
                return number, self.integer()
            self.word("a type")  # of an integer such as 16 : i32
            return number
        token = self.word("a value")
        if token.startswith("#") and self.accept("<"):
            return self.attribute(token)
        return {"true": True, "false": False}.get(token, token)

    def attribute(self, name: str) -> Attribute:
        """An attribute inside of another one, from behind its ``<``."""
        start = self.at
        parameters, unnamed = self.body()
        text = f"{name}<{' '.join(self.tokens[start : self.at])}"
        return Attribute(name[1:], parameters, text, unnamed)

    def body(self) -> tuple[dict[str, Any], tuple[Any, ...] | None]:
        """From behind the ``<`` of an attribute to its ``>``: (parameters, unnamed)."""
        parameters: dict[str, Any] = {}
        unnamed = None
        if self.peek() == "[":
            unnamed = tuple(self.value())
            self.accept(",")
        self.pairs(parameters, ">")
        return parameters, unnamed

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
    """Parse ``#ttg.name<{key = value, ...}>``. Raises LayoutError: the text is not of this form;
    the message says what was expected where."""
    if not isinstance(text, str):
        raise LayoutError("attribute", text, "must be a string, such as '#ttg.nvmma_shared<{...}>'")
    cursor = _Cursor(text)
    name = cursor.word("an attribute, such as '#ttg.nvmma_shared<{...}>'")
    if not name.startswith("#"):
        raise LayoutError(
            "attribute", text, "must start with '#', as in '#ttg.nvmma_shared<{...}>'"
        )
    cursor.expect("<")
    parameters, unnamed = cursor.body()
    if cursor.peek():
        raise cursor.fail("the end")
    return Attribute(name[1:], parameters, text.strip(), unnamed)


def parse_value(text: str) -> Any:
    """Parse an integer, a boolean, a word, or a nested list of them, such as ``[[1, 0], [0, 1]]``.
    Raises LayoutError: none of these."""
    cursor = _Cursor(text)
    value = cursor.value()
    if cursor.peek():
        raise cursor.fail("the end")
    return value
