"""PTX text -> instructions: of any compiler (Triton, CuTe DSL, nvcc), with their source lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from triton_ext.errors import LayoutError


@dataclass(frozen=True)
class SourceLine:
    """A line of the program that was compiled."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction.

    Attributes:
        opcode: with its modifiers, such as ``add.s32``.
        operands: as text, split at the top level: ``%r1``, ``[%r2+16]``, ``{%r1, %r2}``, ``7``.
        predicate: ``%p1`` or ``!%p1``, or "".
        line: of the PTX text, from 1.
        source: where it comes from, if the PTX says so.
        scope: the blocks ``{ ... }`` it stands in, as numbers; names declared there are local.
    """

    opcode: str
    operands: tuple[str, ...]
    predicate: str = ""
    line: int = 0
    source: SourceLine | None = None
    scope: tuple[int, ...] = ()

    def __str__(self) -> str:
        guard = f"@{self.predicate} " if self.predicate else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Kernel:
    """The body of an entry or function.

    Attributes:
        name: of the function.
        parameters: names, in order.
        instructions: in the order of the text.
        labels: for each label, the number of the instruction that it stands before.
    """

    name: str
    parameters: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Module:
    """A PTX module: its target (``sm_100a``), version, and functions with a body."""

    version: str
    target: str
    kernels: tuple[Kernel, ...]


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_FUNCTION = re.compile(r"\.(?:entry|func)\b")
_LABEL = re.compile(r"\s*([A-Za-z_$%][\w$]*)\s*:(?!:)")
_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
_GUARD = re.compile(r"@(!?)\s*(%?[\w$]+)\s+")


def _blank(match: re.Match[str]) -> str:
    """Spaces and newlines in place of a comment, so that positions and lines stay."""
    return re.sub(r"[^\n]", " ", match[0])


def split_operands(text: str) -> tuple[str, ...]:
    """``a, {b, c}, [d, e]`` -> ``("a", "{b, c}", "[d, e]")``."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and not depth:
            parts.append(text[start:position].strip())
            start = position + 1
    last = text[start:].strip()
    return (*parts, last) if last or parts else ()


def parse_ptx(text: str) -> Module:
    """Read a PTX module.

    Raises:
        LayoutError: not PTX: no ``.version`` or ``.target``, or a block that is never closed.
    """
    if not isinstance(text, str):
        raise LayoutError("ptx", type(text).__name__, "must be the text of a PTX module")
    files = {int(number): name for number, name in _FILE.findall(text)}
    text = _COMMENT.sub(_blank, text)
    version = re.search(r"^\s*\.version\s+([\d.]+)", text, re.MULTILINE)
    target = re.search(r"^\s*\.target\s+([\w, ]+)", text, re.MULTILINE)
    if version is None or target is None:
        raise LayoutError("ptx", text[:60], "must be PTX: with a .version and a .target directive")
    kernels = []
    position = 0
    while match := _FUNCTION.search(text, position):
        position = match.end()
        opening = text.find("{", position)
        declaration_end = text.find(";", position)
        if opening < 0 or 0 <= declaration_end < opening:
            continue  # a declaration without a body
        closing = _closing_brace(text, opening)
        header = text[position:opening]
        kernels.append(_parse_kernel(text, header, opening + 1, closing, files))
        position = closing
    return Module(version[1], target[1].strip(), tuple(kernels))


def _closing_brace(text: str, opening: int) -> int:
    depth = 0
    for match in re.finditer(r"[{}]", text[opening:]):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return opening + match.start()
    raise LayoutError("ptx", text[opening : opening + 40], "a '{' is never closed")


def _parse_kernel(text: str, header: str, start: int, end: int, files: dict[int, str]) -> Kernel:
    name = re.search(r"([\w$]+)\s*\(", re.sub(r"^\s*\([^)]*\)", "", header))
    parameters = tuple(re.findall(r"\.param\b[^,()]*?([\w$]+)(?:\[\d*\])?\s*(?=[,)])", header))
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    source: SourceLine | None = None
    scope: list[int] = []
    scopes = 0
    position = start
    line = text.count("\n", 0, start) + 1
    while position < end:
        rest = text[position:end]
        if not rest.strip():
            break
        blank = len(rest) - len(rest.lstrip())
        line += rest.count("\n", 0, blank)
        position += blank
        if text[position] == "{":
            scopes += 1
            scope.append(scopes)
            position += 1
            continue
        if text[position] == "}":
            if scope:
                scope.pop()
            position += 1
            continue
        loc = _LOC.match(text, position)
        if loc:
            source = SourceLine(files.get(int(loc[1]), f"file {loc[1]}"), int(loc[2]))
            stop = text.find("\n", position)
            position = end if stop < 0 else stop
            continue
        label = _LABEL.match(text, position)
        if label and label.end() <= end:
            labels[label[1]] = len(instructions)
            position = label.end()
            continue
        if text[position] == ".":  # a directive: a declaration, a pragma
            stop = _statement_end(text, position, end)
            line += text.count("\n", position, stop)
            position = stop
            continue
        stop = _statement_end(text, position, end)
        statement = text[position:stop].rstrip("; \n\t")
        instruction = _parse_statement(statement, line, source, tuple(scope))
        if instruction is not None:
            instructions.append(instruction)
        line += text.count("\n", position, stop)
        position = stop
    return Kernel(name[1] if name else "", parameters, tuple(instructions), labels)


def _statement_end(text: str, start: int, end: int) -> int:
    stop = text.find(";", start, end)
    return end if stop < 0 else stop + 1


def _parse_statement(
    statement: str, line: int, source: SourceLine | None, scope: tuple[int, ...]
) -> Instruction | None:
    predicate = ""
    guard = _GUARD.match(statement)
    if guard:
        predicate = guard[1] + guard[2]
        statement = statement[guard.end() :]
    opcode, _, operands = statement.strip().partition(" ")
    if "\t" in opcode:
        opcode, _, more = opcode.partition("\t")
        operands = more + " " + operands
    if not opcode:
        return None
    return Instruction(
        opcode, split_operands(" ".join(operands.split())), predicate, line, source, scope
    )


def immediate(text: str) -> int | None:
    """The integer that an operand is, or None: ``7``, ``-0x10``, ``0b11``, ``7U``."""
    match = re.fullmatch(r"([-+]?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?", text)
    if match is None:
        return None
    value = int(match[2], 0) if match[2][:2].lower() in ("0x", "0b") else int(match[2])
    return -value if match[1] == "-" else value
