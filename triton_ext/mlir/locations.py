"""Source locations of a printed module."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from triton_ext.splitting import split_arguments


@dataclass(frozen=True)
class Location:
    """Where in the source an operation comes from.

    Attributes:
        file, line, column: the innermost one; line and column count from 1.
        callers: where the function around it was called, the innermost first.
        name: what the source there calls the value; "" if it is not told.
    """

    file: str
    line: int
    column: int
    callers: tuple[Location, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Source:
    """The text of a module, and the locations that its aliases stand for.

    Attributes:
        text: as printed.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _locations(self) -> dict[str, str]:
        lines = re.finditer(r"^(#loc\d*) = (loc\(.*\))$", self.text, re.MULTILINE)
        return {line[1]: line[2] for line in lines}

    def location(self, text: str) -> Location | None:
        """Read ``loc(...)``."""
        positions = self._positions(text.strip(), 0)
        if not positions:
            return None
        first, *callers = positions
        return replace(first, callers=tuple(callers))

    def _positions(self, text: str, depth: int) -> list[Location]:
        """A location and its callers, the innermost first."""
        if depth > 64:
            return []
        inside = re.fullmatch(r"loc\((.*)\)", text, re.DOTALL)
        if inside:
            text = inside[1].strip()
        if text in self._locations:
            return self._positions(self._locations[text], depth + 1)
        position = re.match(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)', text)
        if position:
            return [Location(position[1], int(position[2]), int(position[3]))]
        call = re.fullmatch(r"callsite\((.*) at (#loc\d*|\".*)\)", text, re.DOTALL)
        if call:
            return self._positions(call[1], depth + 1) + self._positions(call[2], depth + 1)
        named = re.fullmatch(r'"((?:[^"\\]|\\.)*)"\((.*)\)', text, re.DOTALL)
        if named:
            positions = self._positions(named[2], depth + 1)
            return [replace(each, name=named[1]) for each in positions[:1]] + positions[1:]
        fused = re.fullmatch(r"fused(?:<.*>)?\[(.*)\]", text, re.DOTALL)
        if fused:
            for part in split_arguments(fused[1]):
                if positions := self._positions(part, depth + 1):
                    return positions
        return []
