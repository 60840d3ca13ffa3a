"""Where the types of memory values stand in a printed module: what a change of types must edit.

MLIR prints an operation's types apart from its values, in an order of the operation's own, and
leaves out those that it can infer. So a printed type is matched with the values whose type has
exactly this text: in order, if it is printed once for each of them, or once for each result, or
once for each operand (``scf.for`` prints the types of its results, for the initial values, too).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from triton_ext.mlir.ir import Block, Operation, Value
from triton_ext.mlir.tokens import Token
from triton_ext.splitting import split_arguments

_MEMORY = ("!ttg.memdesc", "!tt.tensordesc")


@dataclass(frozen=True)
class PrintedType:
    """A memory type, from `start` up to `stop` of the module's text.

    Attributes:
        text: as printed: ``ttg.async_copy_global_to_local`` leaves the ``!ttg.memdesc`` out.
        values: the values of which it may be the type. If more than one, only a change that is the
            same for all of them can be made here.
    """

    start: int
    stop: int
    text: str
    values: tuple[Value, ...]


def with_encoding(type_text: str, encoding: str) -> str:
    """A memory type, as printed anywhere, with another encoding: the second of its parameters."""
    head, _, inside = type_text.partition("<")
    if inside.startswith("tensor<"):  # before 3.8: !tt.tensordesc<tensor<128x64xf16, #shared>>
        return f"{head}<{with_encoding(inside[:-1], encoding)}>"
    parameters = list(split_arguments(inside[:-1]))
    parameters[1] = encoding
    return f"{head}<{', '.join(parameters)}>"


def _spans(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """The first and the last token of each memory type."""
    at = 0
    while at + 1 < len(tokens):
        first, token = at, tokens[at]
        if token.text in _MEMORY and tokens[at + 1].text == "<":
            at += 1
        elif not (
            token.text == "<" and tokens[at + 1].kind == "number" and tokens[at - 1].kind == "arrow"
        ):
            at += 1
            continue
        depth = 1
        while depth:
            at += 1
            depth += {"<": 1, ">": -1}.get(tokens[at].text, 0)
        yield first, at


def _text(operation: Operation, tokens: Sequence[Token], first: int, last: int) -> str:
    return operation.source.text[tokens[first].start : tokens[last].stop]


def _arguments(
    operation: Operation, tokens: Sequence[Token], values: Sequence[Value]
) -> dict[int, Value]:
    """The arguments of blocks that ``%name: type`` declares, by the position of that type."""
    taken = {token.start for token in operation.operand_tokens}
    pending = list(values)
    found = {}
    for i in range(2, len(tokens)):
        name = tokens[i - 2]
        if name.kind == "value" and tokens[i - 1].text == ":" and name.start not in taken:
            match = next((value for value in pending if value.name == name.text), None)
            if match is not None:
                pending.remove(match)
                found[tokens[i].start] = match
    return found


def _heading_types(block: Block) -> Iterator[PrintedType]:
    operation = block.region.parent
    declared = _arguments(operation, block.heading, block.arguments)
    for first, last in _spans(block.heading):
        start = block.heading[first].start
        if start in declared:
            text = _text(operation, block.heading, first, last)
            yield PrintedType(start, block.heading[last].stop, text, (declared[start],))


def printed_memory_types(operation: Operation) -> list[PrintedType]:
    """The memory types that an operation prints, the headings of its blocks included."""
    tokens = operation.tokens
    arguments = [value for region in operation.regions for value in region.entry.arguments]
    declared = _arguments(operation, tokens, arguments)
    found: list[PrintedType] = []
    others: dict[str, list[tuple[int, int]]] = {}
    for first, last in _spans(tokens):
        start, stop, text = (
            tokens[first].start,
            tokens[last].stop,
            _text(operation, tokens, first, last),
        )
        if start in declared:
            found.append(PrintedType(start, stop, text, (declared[start],)))
        else:
            others.setdefault(text, []).append((start, stop))
    for text, spans in others.items():
        whole = text if text.startswith("!") else f"!ttg.memdesc{text}"
        operands = [value for value in operation.operands if value.type == whole]
        results = [value for value in operation.results if value.type == whole]
        each: list[tuple[Value, ...]] = [(*operands, *results)] * len(spans)
        for values in ([*operands, *results], results, operands):
            if len(values) == len(spans):
                each = [(value,) for value in values]
                break
        found += [
            PrintedType(start, stop, text, values)
            for (start, stop), values in zip(spans, each, strict=True)
        ]
    for region in operation.regions:
        for block in region.blocks:
            found += _heading_types(block)
    return found
