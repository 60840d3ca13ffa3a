"""What a printed module consists of: operations, values, blocks and regions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from triton_ext.mlir.locations import Location, Source
from triton_ext.mlir.tokens import CLOSE, OPEN, Token, groups
from triton_ext.splitting import split_arguments


@dataclass(eq=False)
class Value:
    """What an operation results in, or a block receives.

    Attributes:
        name: ``%acc``, or ``%acc#1`` for one of several results.
        type: as printed, aliases not resolved; None if the printed form does not say.
        definition: the operation whose result it is; None for an argument of a block.
        block: the block whose argument it is, or in which the operation stands.
        index: which result or argument.
        uses: the operations that take it, with the position among their operands.
    """

    name: str
    type: str | None
    definition: Operation | None
    block: Block | None
    index: int
    uses: list[tuple[Operation, int]] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Block:
    """A list of operations, with the arguments that it receives.

    Attributes:
        label: such as ``^bb1``; "" where it has none.
        heading: the tokens of the label and the arguments behind it. The arguments of a block
            without a label stand among the tokens of the operation around it.
    """

    label: str
    arguments: list[Value]
    operations: list[Operation]
    region: Region
    heading: list[Token] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Block({self.label or 'entry'}, {len(self.operations)} operations)"


@dataclass(eq=False)
class Region:
    """A list of blocks, inside of an operation."""

    blocks: list[Block]
    parent: Operation

    @property
    def entry(self) -> Block:
        """The first block."""
        return self.blocks[0]


@dataclass(eq=False, repr=False)
class Operation:
    """An operation of a module.

    Attributes:
        name: such as ``ttg.local_alloc``.
        source: the text in which it stands.
        results: its values, in order.
        operands: the values that it takes, in printed order, which may differ from MLIR's.
        operand_tokens: where their names stand.
        regions: in order.
        block: in which it stands; None for the module.
        start, stop: its text, from the first result to the end of its line or last region.
        tokens: its own tokens, those of its regions left out.
    """

    name: str
    source: Source
    block: Block | None
    tokens: list[Token] = field(default_factory=list)
    results: list[Value] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    operand_tokens: list[Token] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    start: int = 0
    stop: int = 0

    def __repr__(self) -> str:
        return f"<{self.name} at {self.location or self.start}>"

    @property
    def text(self) -> str:
        """As printed, with its regions."""
        return self.source.text[self.start : self.stop]

    @property
    def parent(self) -> Operation | None:
        """The operation around it."""
        return self.block.region.parent if self.block else None

    def walk(self) -> Iterator[Operation]:
        """The operations inside of it, then itself: each after what it contains."""
        for region in self.regions:
            for block in region.blocks:
                for operation in block.operations:
                    yield from operation.walk()
        yield self

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Its attribute dictionaries and properties: integers, booleans, strings, lists, or text.

        What has no name there is not here: how an operation prints it is its own affair (`tokens`).
        """
        found: dict[str, Any] = {}
        for start, stop in groups(self.tokens, "{", "}"):
            text = self.source.text[self.tokens[start].stop : self.tokens[stop].start]
            for pair in split_arguments(text):
                key, equals, value = pair.partition("=")
                key = key.strip().strip('"')
                if re.fullmatch(r"[A-Za-z_][\w$.\-]*", key):
                    found[key] = _attribute_value(value.strip()) if equals else True
        return found

    @cached_property
    def location(self) -> Location | None:
        """Where it comes from, or None if the module was printed without locations."""
        for i in range(len(self.tokens) - 1, -1, -1):
            if self.tokens[i].text == "loc" and self.tokens[i].kind == "word":
                stop = self.tokens[-1].stop
                return self.source.location(self.source.text[self.tokens[i].start : stop])
        return None

    @cached_property
    def signature(self) -> str:
        """What stands behind its last colon: its types."""
        depth, colon, tokens = 0, None, self.tokens
        end = len(tokens)
        for i in range(end - 1, -1, -1):  # from the back, as both stand near the end
            kind, text, _, _ = tokens[i]
            if kind == "mark":
                if text in CLOSE:
                    depth += 1
                elif text in OPEN:
                    depth -= 1
                elif text == ":" and depth == 0 and colon is None:
                    colon = i
            elif kind == "word" and text == "loc" and depth == 0:
                end, colon = i, None
        if colon is None or colon + 1 >= end:
            return ""
        # With regions, the types may stand in front of the first or behind the last.
        return self.source.text[self.tokens[colon + 1].start : self.tokens[end - 1].stop].strip()


def _attribute_value(text: str) -> Any:
    array = re.fullmatch(r"array<i\d+(?::\s*(-?\d+(?:,\s*-?\d+)*))?>", text)
    if array:
        return [int(item) for item in array[1].split(",")] if array[1] else []
    typed = re.fullmatch(r"(-?\d+)(?:\s*:\s*\w+)?", text)
    if typed:
        return int(typed[1])
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    return {"true": True, "false": False}.get(text, text)
