"""A reader of MLIR modules as Triton prints them: operations, values, regions, source locations.

Triton's Python bindings walk a module, but show neither most attributes nor the values that
regions receive, and cannot replace one operand. What is missing is read here from the printed
form, by its grammar: an operation ends with its line, unless a bracket is open or a region follows;
a ``{`` that ends a line opens a region, any other one a dictionary (MLIR's ``AsmPrinter``). Each
token keeps its position in the text, so that a change edits exactly that token
(`triton_ext.mlir.edits`).

Types are known for what the printed form says: every result whose type stands behind the operation,
and every argument of a region. ``None`` stands for the few others.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from triton_ext.errors import LayoutError
from triton_ext.mlir.attributes import attribute_aliases
from triton_ext.mlir.types import MemoryType, memory_type
from triton_ext.splitting import split_arguments

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
_OPEN, _CLOSE = "([{<", ")]}>"
_PARTITION = re.compile(r"default|partition\d+")
_FUNCTIONS = ("tt.func", "func.func", "llvm.func")
_ISOLATED = ("builtin.module", *_FUNCTIONS)
"""Operations in which no value from outside is seen. (So are the partitions of warp_specialize.)"""


_Scopes: TypeAlias = "tuple[dict[str, Value], ...]"


class Token(NamedTuple):
    """A token of the text, from `start` up to `stop`."""

    kind: str
    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class Location:
    """Where in the source an operation comes from.

    Attributes:
        file, line, column: the innermost one; line and column count from 1.
        callers: where the function around it was called, the innermost first.
    """

    file: str
    line: int
    column: int
    callers: tuple[Location, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


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
        results: its values, in order.
        operands: the values that it takes, in printed order, which may differ from MLIR's.
        operand_tokens: where their names stand.
        regions: in order.
        block: in which it stands; None for the module.
        start, stop: its text, from the first result to the end of its line or last region.
        tokens: its own tokens, those of its regions left out.
    """

    name: str
    module: MlirModule
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
        return self.module.text[self.start : self.stop]

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
        for start, stop in _groups(self.tokens, "{", "}"):
            text = self.module.text[self.tokens[start].stop : self.tokens[stop].start]
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
                return self.module.location(self.module.text[self.tokens[i].start : stop])
        return None

    @cached_property
    def signature(self) -> str:
        """What stands behind its last colon: its types."""
        depth, colon, tokens = 0, None, self.tokens
        end = len(tokens)
        for i in range(end - 1, -1, -1):  # from the back, as both stand near the end
            kind, text, _, _ = tokens[i]
            if kind == "mark":
                if text in _CLOSE:
                    depth += 1
                elif text in _OPEN:
                    depth -= 1
                elif text == ":" and depth == 0 and colon is None:
                    colon = i
            elif kind == "word" and text == "loc" and depth == 0:
                end, colon = i, None
        if colon is None or colon + 1 >= end:
            return ""
        # With regions, the types may stand in front of the first or behind the last.
        return self.module.text[self.tokens[colon + 1].start : self.tokens[end - 1].stop].strip()


def _groups(tokens: list[Token], opening: str, closing: str) -> Iterator[tuple[int, int]]:
    """The outermost groups of brackets of one sort, but for those inside of other brackets."""
    depth, start = 0, 0
    for i, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in _OPEN:
            if depth == 0 and token.text == opening:
                start = i
            elif depth == 1 and token.text == opening and tokens[i - 1].text == "<":
                start = i  # properties: <{...}>
            depth += 1
        elif token.text in _CLOSE:
            depth -= 1
            if token.text == closing and tokens[start].text == opening and depth <= 1:
                if start < i:
                    yield start, i
                start = i


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


_TOKENS = re.compile(r"ttg\.async_(?:commit_group|wait|copy_\w+)|ttng\.tc_gen5_mma\w*")
_POINTER = re.compile(r"!tt\.ptr<([^<>,]+)(?:, \d+)?>")


def _result_types(name: str, signature: str, count: int) -> list[str | None]:
    """The types of an operation's results, from those that it prints."""
    if name == "arith.constant" and not signature:
        return ["i1"] * count  # true, false
    if _TOKENS.fullmatch(name):
        return ["!ttg.async.token"] * count
    if not signature or not count:
        return [None] * count
    left, arrow, right = _split_arrow(signature)
    if arrow:
        inside = right[1:-1] if right.startswith("(") and right.endswith(")") else right
        types = split_arguments(inside)
        return [*(types * count if len(types) == 1 else types), *[None] * count][:count]
    types = split_arguments(left)
    if len(types) == count > 1:
        return list(types)
    of_all = types[-1 if name == "arith.select" else 0]
    if name in ("arith.cmpi", "arith.cmpf"):
        shaped = re.fullmatch(r"tensor<((?:\d+x)*)[^,<>]+(,.*)?>", of_all)
        of_all = f"tensor<{shaped[1]}i1{shaped[2] or ''}>" if shaped else "i1"
    elif name == "tt.load":
        of_all = _POINTER.sub(r"\1", of_all)
    elif name == "tt.unsplat":
        of_all = re.sub(r"tensor<(?:\d+x)*([^,<>]+).*>", r"\1", of_all)
    return [of_all] * count


def _split_arrow(text: str) -> tuple[str, str, str]:
    """What is in front of, and behind, the outermost ``->`` or ``to``."""
    depth = 0
    for match in re.finditer(r"->|[(\[{<]|[)\]}>]|(?<= )to(?= )", text):
        found = match[0]
        if found in ("->", "to"):
            if depth == 0:
                return text[: match.start()].strip(), found, text[match.end() :].strip()
        else:
            depth += 1 if found in _OPEN else -1
    return text, "", ""


class MlirModule:
    """A module as Triton prints it.

    Args:
        text: ``str(module)``, or what Triton's cache keeps as ``.ttir`` and ``.ttgir``.

    Attributes:
        text: that text.
        root: the ``module`` operation.

    Raises:
        LayoutError: the text is not a module of this form.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.root = _Reader(self).read()
        self._memory_types: dict[str, MemoryType | None] = {}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The attribute aliases: ``#shared`` -> ``#ttg.nvmma_shared<...>``."""
        return attribute_aliases(self.text)

    @cached_property
    def operations(self) -> list[Operation]:
        """All operations, each after what it contains: the order of Triton's ``module.walk``."""
        return list(self.root.walk())

    @cached_property
    def kernel(self) -> Operation | None:
        """The function that the host launches: the first public ``tt.func``."""
        for operation in self.operations:
            if operation.name == "tt.func" and any(t.text == "public" for t in operation.tokens):
                return operation
        return None

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the module: ``ttg.num-warps``, ``ttg.target``, ..."""
        return self.root.attributes

    @cached_property
    def values(self) -> list[Value]:
        """All results and arguments of blocks."""
        found = [value for operation in self.operations for value in operation.results]
        for operation in self.operations:
            for region in operation.regions:
                found += [value for block in region.blocks for value in block.arguments]
        return found

    def resolve(self, attribute: str) -> str:
        """An attribute's text, with its alias resolved."""
        return self.aliases.get(attribute, attribute)

    def memory(self, value: Value) -> MemoryType | None:
        """The type of a value, if it is memory or a TMA descriptor."""
        text = value.type
        if text is None:
            return None
        if text not in self._memory_types:
            self._memory_types[text] = memory_type(text, self.aliases)
        return self._memory_types[text]

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
        return Location(*first, tuple(Location(*caller) for caller in callers))

    def _positions(self, text: str, depth: int) -> list[tuple[str, int, int]]:
        """(file, line, column) of a location and its callers, the innermost first."""
        if depth > 64:
            return []
        inside = re.fullmatch(r"loc\((.*)\)", text, re.DOTALL)
        if inside:
            text = inside[1].strip()
        if text in self._locations:
            return self._positions(self._locations[text], depth + 1)
        position = re.match(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)', text)
        if position:
            return [(position[1], int(position[2]), int(position[3]))]
        call = re.fullmatch(r"callsite\((.*) at (#loc\d*|\".*)\)", text, re.DOTALL)
        if call:
            return self._positions(call[1], depth + 1) + self._positions(call[2], depth + 1)
        named = re.fullmatch(r'"(?:[^"\\]|\\.)*"\((.*)\)', text, re.DOTALL)
        if named:
            return self._positions(named[1], depth + 1)
        fused = re.fullmatch(r"fused(?:<.*>)?\[(.*)\]", text, re.DOTALL)
        if fused:
            for part in split_arguments(fused[1]):
                if positions := self._positions(part, depth + 1):
                    return positions
        return []


class _Reader:
    """Reads the tokens of a module from left to right."""

    def __init__(self, module: MlirModule) -> None:
        self.module = module
        # Aliases, of attributes and locations, stand in front of the module and behind it.
        first = _MODULE.search(module.text)
        start = first.start() if first else 0
        behind = _ALIAS_LINE.search(module.text, start)
        end = behind.start() if behind else len(module.text)
        self.tokens = [
            Token(kind, match[kind], *match.span(kind))
            for match in _TOKEN.finditer(module.text, start, end)
            if (kind := match.lastgroup)
        ]
        self.tokens += [Token("newline", "\n", end, end)] * 2
        self.at = 0
        self.bound: set[int] = set()  # where names stand that are defined, not used
        self.unresolved: list[tuple[Operation, _Scopes]] = []

    def fail(self, what: str) -> LayoutError:
        token = self.tokens[min(self.at, len(self.tokens) - 1)]
        line = self.module.text.count("\n", 0, token.start) + 1
        return LayoutError("module", token.text, f"line {line}: {what}")

    def next(self) -> Token:
        """The token at hand, which is not behind the end."""
        if self.at >= len(self.tokens) - 1:
            raise self.fail("the text ends too early")
        return self.tokens[self.at]

    def read(self) -> Operation:
        """The module operation; the aliases in front of and behind it are left out."""
        for i, token in enumerate(self.tokens):
            starts_line = i == 0 or self.tokens[i - 1].kind == "newline"
            if starts_line and token.text in ("module", "builtin.module", '"builtin.module"'):
                self.at = i
                root = self.operation(None, ())
                for operation, scopes in self.unresolved:
                    self.resolve(operation, scopes)
                return root
        raise self.fail("there is no 'module' operation")

    def region(self, parent: Operation, arguments: list[Value], around: _Scopes) -> None:
        """From behind ``{`` to behind ``}``."""
        region = Region([], parent)
        parent.regions.append(region)
        scope: dict[str, Value] = {}
        self.block(region, "", arguments, scope)
        while True:
            token = self.next()
            if token.kind == "newline":
                self.at += 1
            elif token.text == "}":
                self.at += 1
                return
            elif token.kind == "block":
                self.label(region, scope)
            else:
                block = region.blocks[-1]
                block.operations.append(self.operation(block, (*around, scope)))

    def block(
        self, region: Region, label: str, arguments: list[Value], scope: dict[str, Value]
    ) -> None:
        """Begin a block."""
        entry = region.blocks[0] if region.blocks else None
        if entry and not (entry.label or entry.operations or entry.arguments):
            region.blocks.pop()  # the region begins with a label
        block = Block(label, arguments, [], region)
        for value in arguments:
            value.block = block
            scope[value.name] = value
        region.blocks.append(block)

    def label(self, region: Region, scope: dict[str, Value]) -> None:
        """``^bb1(%x: i32 loc(...)):``, the start of a block."""
        first, depth = self.at, 0
        while True:
            self.at += 1
            token = self.next()
            depth += _nesting(token)
            if token.text == ":" and depth == 0:
                break
        heading = self.tokens[first : self.at]
        self.at += 1
        self.block(region, heading[0].text, self.arguments(heading[1:]), scope)
        region.blocks[-1].heading = heading

    def arguments(self, tokens: list[Token]) -> list[Value]:
        """``(%a: i32 loc(...), %b: ...)`` -> values."""
        found: list[Value] = []
        for i, token in enumerate(tokens):
            if token.kind == "value" and i + 2 < len(tokens) and tokens[i + 1].text == ":":
                self.bound.add(token.start)
                type_ = self.text_until(tokens[i + 2 :], (",", ")", "{"))
                found.append(Value(token.text, type_, None, None, len(found)))
        return found

    def text_until(self, tokens: list[Token], ends: tuple[str, ...]) -> str:
        """The text up to one of the marks `ends`, or a location, outside of brackets."""
        depth = 0
        for i, token in enumerate(tokens):
            if depth == 0 and i and (token.text in ends or token.text == "loc"):
                return self.module.text[tokens[0].start : tokens[i - 1].stop]
            depth += _nesting(token)
        return self.module.text[tokens[0].start : tokens[-1].stop] if tokens else ""

    def listed(self, tokens: list[Token], ends: tuple[str, ...]) -> tuple[str, ...]:
        """The types behind the arrow, such as those of ``-> (i32, f32)``."""
        arrow = next((i for i, token in enumerate(tokens) if token.kind == "arrow"), None)
        if arrow is None:
            return ()
        text = self.text_until(tokens[arrow + 1 :], ends)
        return split_arguments(text[1:-1] if text.startswith("(") else text)

    def operation(self, block: Block | None, scopes: _Scopes) -> Operation:
        """One operation, with its regions."""
        first = self.at
        names = self.result_names() if self.next().kind == "value" else []
        token = self.next()
        if token.kind not in ("word", "string"):
            raise self.fail("expected an operation")
        name = token.text.strip('"')
        operation = Operation("builtin.module" if name == "module" else name, self.module, block)
        self.at += 1
        operation.tokens = self.tokens[first : self.at]
        if operation.name in _ISOLATED:
            scopes = ()
        self.header_and_regions(operation, scopes)
        operation.start, operation.stop = self.tokens[first].start, self.tokens[self.at - 1].stop
        self.define_results(operation, names, scopes)
        self.unresolved.append((operation, scopes))
        return operation

    def header_and_regions(self, operation: Operation, scopes: _Scopes) -> None:
        """What follows an operation's name, up to the end of its line or of its last region."""
        tokens, own, at = self.tokens, operation.tokens, self.at
        depth, head, last = 0, len(own), len(tokens) - 1
        while True:
            if depth > 0 and at >= last:
                self.at = at
                raise self.fail("the text ends too early")
            token = tokens[at]
            kind, text, _, _ = token
            if kind == "newline":
                if depth <= 0:
                    self.at = at
                    if not self.continues(operation):
                        return
                at += 1
                continue
            if kind == "mark":
                if text == "}" and depth == 0:
                    self.at = at
                    return  # of the region around
                if text == "{" and tokens[at + 1].kind == "newline":
                    heading = own[head:]
                    is_partition = bool(heading) and heading[0].text.startswith("partition")
                    arguments = self.region_arguments(operation, heading)
                    self.at = at + 1
                    self.region(operation, arguments, () if is_partition else scopes)
                    head, at = len(own), self.at
                    continue
                if text in _OPEN:
                    depth += 1
                elif text in _CLOSE:
                    depth -= 1
            own.append(token)
            at += 1

    def continues(self, operation: Operation) -> bool:
        """Whether the next line belongs to the operation: a partition of warp_specialize."""
        if operation.name != "ttg.warp_specialize":
            return False
        following = self.tokens[self.at + 1 : self.at + 2]
        return bool(following) and bool(_PARTITION.fullmatch(following[0].text))

    def result_names(self) -> list[tuple[str, int]]:
        """``%a, %b:2 =``: the names, with how many results each stands for."""
        names = []
        while (token := self.next()).text != "=":
            if token.kind == "value":
                self.bound.add(token.start)
                count = 1
                if self.tokens[self.at + 1].text == ":":
                    self.at += 2
                    if not self.next().text.isdigit():
                        raise self.fail("expected how many results there are")
                    count = int(self.next().text)
                names.append((token.text, count))
            elif token.text != ",":
                raise self.fail("expected the names of results, and '='")
            self.at += 1
        self.at += 1
        return names

    def region_arguments(self, operation: Operation, heading: list[Token]) -> list[Value]:
        """What a region receives, from the tokens in front of it."""
        if operation.name in _FUNCTIONS or (heading and heading[0].text.startswith("partition")):
            return self.arguments(heading)
        if operation.name not in ("scf.for", "scf.while") or operation.regions:
            return []
        names = [
            token
            for token, after in itertools.pairwise(heading)
            if token.kind == "value" and after.text == "="
        ]
        self.bound.update(token.start for token in names)
        types: list[str | None]
        if operation.name == "scf.for":
            induction = operation.signature if "->" not in operation.signature else ""
            types = [induction or "index", *self.listed(heading, (":",))]
        else:
            left, arrow, _ = _split_arrow(operation.signature)
            types = list(split_arguments(left[1:-1])) if arrow else []
        types += [None] * len(names)
        return [Value(token.text, types[i], None, None, i) for i, token in enumerate(names)]

    def define_results(
        self, operation: Operation, names: list[tuple[str, int]], scopes: _Scopes
    ) -> None:
        """The results, under the names that others know them by."""
        types = self.result_types(operation, sum(count for _, count in names))
        for name, count in names:
            for i in range(count):
                index = len(operation.results)
                full = name if count == 1 else f"{name}#{i}"
                value = Value(full, types[index], operation, operation.block, index)
                operation.results.append(value)
                if scopes:
                    scopes[-1][full] = value

    def result_types(self, operation: Operation, count: int) -> list[str | None]:
        """The types of the results, as far as the printed form says."""
        if operation.name in ("scf.for", "scf.if"):
            types: list[str | None] = list(self.listed(operation.tokens, (":", "else")))
            return [*types, *[None] * count][:count]
        return _result_types(operation.name, operation.signature, count)

    def resolve(self, operation: Operation, scopes: _Scopes) -> None:
        """Connect an operation with the values that it takes."""
        bound = self.bound
        for token in operation.tokens:
            if token[0] != "value" or token[2] in bound:
                continue
            name = token[1]
            for scope in reversed(scopes):
                if name in scope:
                    value = scope[name]
                    break
            else:
                raise LayoutError(
                    "module", name, f"{operation.name} takes a value that is not defined"
                )
            value.uses.append((operation, len(operation.operands)))
            operation.operands.append(value)
            operation.operand_tokens.append(token)


def _nesting(token: Token) -> int:
    """By how much a token opens or closes brackets."""
    if token.kind != "mark":
        return 0
    return (token.text in _OPEN) - (token.text in _CLOSE)
