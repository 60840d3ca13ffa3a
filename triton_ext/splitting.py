"""Splitting a list of arguments at its commas, but not at those inside of brackets."""

from __future__ import annotations

import functools
import re

_MARK = re.compile(r'[",()\[\]{}<>]')
_NESTED = re.compile(r'["()\[\]{}<>]')


@functools.lru_cache(maxsize=1 << 16)  # lines of PTX recur, in a file and in those compared with it
def split_arguments(text: str) -> tuple[str, ...]:
    """``a, {b, c}, d<e, f>`` -> ``("a", "{b, c}", "d<e, f>")``; nothing if there is nothing.

    Brackets are ``( [ { <`` and their counterparts; the ``>`` of an arrow is none. A string in
    double quotes is taken as a whole. Blanks around an argument are dropped.
    """
    if _NESTED.search(text) is None:
        if "," in text:
            return tuple(map(str.strip, text.split(",")))
        only = text.strip()
        return (only,) if only else ()
    parts, depth, start, quoted = [], 0, 0, False
    for match in _MARK.finditer(text):
        character, position = match[0], match.start()
        if character == '"' and text[position - 1 : position] != "\\":
            quoted = not quoted
        if quoted:
            continue
        if character in "([{<":
            depth += 1
        elif character in ")]}" or (character == ">" and text[position - 1 : position] != "-"):
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return (*parts, last) if last or parts else ()
