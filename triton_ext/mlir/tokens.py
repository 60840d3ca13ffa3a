"""The tokens of a printed module, and the brackets among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?:[ \t\r]+|//[^\n]*)*(?:
    (?P<word>[A-Za-z_][\w$.]*)|(?P<newline>\n)|(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<value>%[\w$.\-]+(?:\#\d+)?)|(?P<block>\^[\w$.\-]+)|(?P<alias>[\#!][\w$.\-]+)
    |(?P<symbol>@(?:[\w$.\-]+|"[^"]*"))|(?P<arrow>->)
    |(?P<number>-?\d[\w.+]*)|(?P<mark>.))""",
    re.VERBOSE,
)
_MODULE = re.compile(r'^[ \t]*(?:module|builtin\.module|"builtin\.module")(?![\w$.])', re.MULTILINE)
_ALIAS_LINE = re.compile(r"^#[\w$.\-]+ = ", re.MULTILINE)
OPEN, CLOSE = "([{<", ")]}>"


class Token(NamedTuple):
    """A token of the text, from `start` up to `stop`."""

    kind: str
    text: str
    start: int
    stop: int


def tokenize(text: str) -> list[Token]:
    """The tokens of a module, and two ends of lines behind them.

    Aliases, of attributes and locations, stand in front of the module and behind it: they are left
    out.
    """
    first = _MODULE.search(text)
    start = first.start() if first else 0
    behind = _ALIAS_LINE.search(text, start)
    end = behind.start() if behind else len(text)
    found = [
        Token(kind, match[kind], *match.span(kind))
        for match in _TOKEN.finditer(text, start, end)
        if (kind := match.lastgroup)
    ]
    return [*found, *[Token("newline", "\n", end, end)] * 2]


def nesting(token: Token) -> int:
    """By how much a token opens or closes brackets."""
    if token.kind != "mark":
        return 0
    return (token.text in OPEN) - (token.text in CLOSE)


def groups(tokens: list[Token], opening: str, closing: str) -> Iterator[tuple[int, int]]:
    """The outermost groups of brackets of one sort, but for those inside of other brackets."""
    depth, start = 0, 0
    for i, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in OPEN:
            if depth == 0 and token.text == opening:
                start = i
            elif depth == 1 and token.text == opening and tokens[i - 1].text == "<":
                start = i  # properties: <{...}>
            depth += 1
        elif token.text in CLOSE:
            depth -= 1
            if token.text == closing and tokens[start].text == opening and depth <= 1:
                if start < i:
                    yield start, i
                start = i


def split_arrow(text: str) -> tuple[str, str, str]:
    """What is in front of, and behind, the outermost ``->`` or ``to``."""
    depth = 0
    for match in re.finditer(r"->|[(\[{<]|[)\]}>]|(?<= )to(?= )", text):
        found = match[0]
        if found in ("->", "to"):
            if depth == 0:
                return text[: match.start()].strip(), found, text[match.end() :].strip()
        else:
            depth += 1 if found in OPEN else -1
    return text, "", ""
