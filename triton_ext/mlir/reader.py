"""The reader of printed modules: by their grammar, from left to right."""

from __future__ import annotations

import itertools
import re
from typing import TypeAlias

from triton_ext.errors import LayoutError
from triton_ext.mlir.ir import Block, Operation, Region, Value
from triton_ext.mlir.locations import Source
from triton_ext.mlir.result_types import result_types
from triton_ext.mlir.tokens import CLOSE, OPEN, Token, nesting, split_arrow, tokenize
from triton_ext.splitting import split_arguments

_PARTITION = re.compile(r"default|partition\d+")
_FUNCTIONS = ("tt.func", "func.func", "llvm.func")
_ISOLATED = ("builtin.module", *_FUNCTIONS)
"""Operations in which no value from outside is seen. (So are the partitions of warp_specialize.)"""

_Scopes: TypeAlias = "tuple[dict[str, Value], ...]"


class Reader:
    """Reads the tokens of a module from left to right."""

    def __init__(self, source: Source) -> None:
        self.source, self.tokens = source, tokenize(source.text)
        self.at = 0
        self.bound: set[int] = set()  # where names stand that are defined, not used
        self.unresolved: list[tuple[Operation, _Scopes]] = []

    def fail(self, what: str) -> LayoutError:
        token = self.tokens[min(self.at, len(self.tokens) - 1)]
        line = self.source.text.count("\n", 0, token.start) + 1
        return LayoutError("module", token.text, f"line {line}: {what}")

    def next(self) -> Token:
        """The token at hand, which is not behind the end."""
        if self.at >= len(self.tokens) - 1:
            raise self.fail("the text ends too early")
        return self.tokens[self.at]

    def read(self) -> Operation:
        """The module operation, with which the tokens begin."""
        if self.tokens[0].text not in ("module", "builtin.module", '"builtin.module"'):
            raise self.fail("there is no 'module' operation")
        root = self.operation(None, ())
        for operation, scopes in self.unresolved:
            self.resolve(operation, scopes)
        return root

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
            depth += nesting(token)
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
                return self.source.text[tokens[0].start : tokens[i - 1].stop]
            depth += nesting(token)
        return self.source.text[tokens[0].start : tokens[-1].stop] if tokens else ""

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
        operation = Operation("builtin.module" if name == "module" else name, self.source, block)
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
                if text in OPEN:
                    depth += 1
                elif text in CLOSE:
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
            left, arrow, _ = split_arrow(operation.signature)
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
        return result_types(operation.name, operation.signature, count)

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
                rule = f"{operation.name} takes a value that is not defined"
                raise LayoutError("module", name, rule)
            value.uses.append((operation, len(operation.operands)))
            operation.operands.append(value)
            operation.operand_tokens.append(token)
