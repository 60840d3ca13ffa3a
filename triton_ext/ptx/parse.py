"""PTX text -> instructions: of any compiler (Triton, CuTe DSL, nvcc), with their source lines."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os.path import dirname

from triton_ext.errors import LayoutError
from triton_ext.ptx.constant_expressions import INTEGER, folded, literal
from triton_ext.splitting import split_arguments


@dataclass(frozen=True)
class SourceLine:
    """A line of the program that was compiled; `column` is counted from 1, and 0 if unknown."""

    file: str
    line: int
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Instruction:
    """One PTX instruction.

    Attributes:
        opcode: the opcode with its modifiers, such as ``add.s32``.
        operands: their texts, split at the top level: ``%r1``, ``[%r2+16]``, ``{%r1, %r2}``, ``7``;
            constant expressions are evaluated.
        predicate: the guard: ``%p1`` or ``!%p1``, or "" if there is none.
        line: the line of the PTX text, counted from 1.
        source: the line of the program that it was compiled from, if the PTX says so. Of a function
            that was inlined from outside of the folder of the kernel's file, such as a library's,
            the line that calls it.
        scope: the numbers of the blocks ``{ ... }`` around it, outermost first; names that are
            declared in a block are local to it.
    """

    opcode: str
    operands: tuple[str, ...]
    predicate: str = ""
    line: int = 0
    source: SourceLine | None = None
    scope: tuple[int, ...] = ()

    def __hash__(self) -> int:
        """Equal instructions have the same line and opcode."""
        return hash((self.line, self.opcode))

    def __str__(self) -> str:
        guard = f"@{self.predicate} " if self.predicate else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".rstrip()


@dataclass(frozen=True)
class Variable:
    """A declared register, parameter, or variable in memory.

    Attributes:
        name: the name without the count: ``%r`` for ``%r<5>``.
        space: "reg", "param", "shared", "local", "global" or "const".
        type: the type of an element, such as ``b32``.
        count: the number of registers ``%r0`` .. ``%r<count-1>``; None for a register with a name
            of its own.
        elements: the length of an array; 1 for a scalar; None if the size is left open (``[]``).
        alignment: in bytes; the element's size if the declaration has none.
        initializer: the text of the initial value, or "".
        scope: as in `Instruction`.
        linkage: "extern", "visible", "weak", "common", or "" for the module's own.
    """

    name: str
    space: str
    type: str
    count: int | None = None
    elements: int | None = 1
    alignment: int = 1
    initializer: str = ""
    scope: tuple[int, ...] = ()
    linkage: str = ""

    @property
    def bytes(self) -> int:
        """Its size in memory; 0 if the size is left open."""
        return (self.elements or 0) * type_bits(self.type) // 8


@dataclass(frozen=True)
class Kernel:
    """The body of an entry or function.

    Attributes:
        name: the name of the function.
        parameters: the parameters' names, in order.
        instructions: all instructions, in the order of the text.
        labels: (label, scope) -> the index of the instruction that follows the label.
        variables: the parameters, in order, and then the variables that the body declares.
        is_entry: whether the host can launch it.
        branch_targets: label -> the list of labels that ``brx.idx`` chooses from, or of functions
            that a call by address does.
        directives: the performance directives between the parameters and the body, such as
            ``{"reqntid": (128,)}``.
        linkage: as of a `Variable`.
    """

    name: str
    parameters: tuple[str, ...]
    instructions: tuple[Instruction, ...]
    labels: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    is_entry: bool = True
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    linkage: str = ""

    def target(self, label: str, scope: tuple[int, ...]) -> int | None:
        """The index that a branch from `scope` to `label` goes to; inner labels hide outer ones."""
        for depth in range(len(scope), -1, -1):
            if (label, scope[:depth]) in self.labels:
                return self.labels[label, scope[:depth]]
        return None


@dataclass(frozen=True)
class Module:
    """A PTX module: its target (``sm_100a``), version, functions with a body, and variables.

    Attributes:
        generator: the compiler that it names in a comment; "" if it names none.
    """

    version: str
    target: str
    kernels: tuple[Kernel, ...]
    variables: tuple[Variable, ...] = ()
    generator: str = ""


_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
NVVM = "NVIDIA NVVM Compiler"
"""What nvcc's PTX names as its generator."""
_GENERATOR = re.compile(r"^// Generated by ([^\n]*)", re.MULTILINE)
_INLINE_ASM = re.compile(r"// (begin|end) inline asm|^[ \t]*\.loc\b[^\n]*", re.MULTILINE)
_MAX_DEPTH = 64
_LONG_NUMBER = re.compile(r"\d{100}")
_LINKAGE = r"(?:\.(?P<linkage>extern|visible|weak|common)\s+)?"
_FUNCTION = re.compile(rf"{_LINKAGE}\.(?P<kind>entry|func)\b")
FILE_DIRECTIVE = re.compile(r'^[ \t]*\.file[ \t]+(\d+)[ \t]+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
"""Number and name of a source file."""
_STATEMENT = re.compile(
    r"""\s*(?:
      \.loc\s+(?P<file>\d+)\s+(?P<line>\d+)(?:[ \t]+(?P<column>\d+))?
        (?:[^\n]*?inlined_at[ \t]+(?P<caller>\d+[ \t]+\d+(?:[ \t]+\d+)?))?[^\n]*
    | (?P<brace>[{}])
    | (?P<label>[A-Za-z_$%][\w$]*)\s*:(?!:)
    | \.(?:branch|call)targets\s+(?P<targets>[^;]*);?
    | \.(?P<directive>[^;]*);?
    | (?:@(?P<guard>!?\s*%?[\w$]+)\s*)?(?P<opcode>[^\s;{}]+)(?P<operands>[^;]*);?
    | (?P<other>[^\s])
    )""",
    re.VERBOSE,
)
_VARIABLE = re.compile(
    rf"{_LINKAGE}\.(?P<space>reg|param|shared(?:::cta|::cluster)?|local|global|const)\b(?P<rest>[^;]*)"
)
_TYPE = re.compile(
    r"\.(pred|[bsuf](?:8|16|32|64|128)|bf16|f16x2|bf16x2|texref|surfref|samplerref)\b"
)
_DECLARATOR = re.compile(
    r"\s*([\w$%.]+)\s*(?:<(\d+)>)?((?:\s*\[\s*\w*\s*\])*)\s*(?:=\s*(.*))?$", re.DOTALL
)
_TUNING = re.compile(
    r"\.(reqntid|maxntid|reqnctapercluster|maxclusterrank|minnctapersm|maxnreg)\s+([\d,\s]+)"
)


def type_bits(name: str) -> int:
    """``f16x2`` -> 32, ``b8`` -> 8, ``pred`` -> 1."""
    if name == "pred":
        return 1
    digits = re.search(r"\d+", name)
    return (int(digits[0]) if digits else 64) * (2 if name.endswith("x2") else 1)


split_operands = split_arguments
"""``a, {b, c}, [d, e]`` -> ``("a", "{b, c}", "[d, e]")``."""


def _blank(match: re.Match[str]) -> str:
    """Spaces and newlines in place of a comment, so that positions and lines stay."""
    return re.sub(r"[^\n]", " ", match[0])


def _own_location(
    location: tuple[str, ...],
    callers: dict[tuple[str, ...], tuple[str, ...]],
    files: dict[int, str],
) -> tuple[str, ...]:
    """The innermost line in the folder of the kernel's file: a location, or whence it was inlined.

    Args:
        location: the number of a file, a line and a column.
        callers: where the function of a location was inlined (PTX ISA, ".loc", ``inlined_at``).
        files: their names, by number.
    """
    chain = [location]
    while (caller := callers.get(chain[-1])) and caller not in chain:
        chain.append(caller)
    folders = [dirname(files.get(int(number), "")) + "/" for number, *_ in chain]
    return next(
        each for each, folder in zip(chain, folders, strict=True) if folder.startswith(folders[-1])
    )


def _without_counted_lines(text: str) -> str:
    """A text without the ``.loc`` inside of inline assembly: blanks in their place.

    LLVM gives the lines of an assembly text consecutive lines of the program, whatever stands
    there; the one before the text is that of the statement.
    """
    inside = False

    def keep(match: re.Match[str]) -> str:
        nonlocal inside
        if match[1]:
            inside = match[1] == "begin"
        return _blank(match) if inside and not match[1] else match[0]

    return _INLINE_ASM.sub(keep, text)


def parse_ptx(text: str) -> Module:
    """Read a PTX module.

    Raises:
        LayoutError: not PTX: no ``.version`` or ``.target``, or a block that is never closed.
    """
    if not isinstance(text, str):
        raise LayoutError("ptx", type(text).__name__, "must be the text of a PTX module")
    if _LONG_NUMBER.search(text):
        raise LayoutError("ptx", text[:60], "must be PTX: no number has a hundred digits")
    files = {int(number): name for number, name in FILE_DIRECTIVE.findall(text)}
    generator = _GENERATOR.search(text)
    text = _COMMENT.sub(_blank, _without_counted_lines(text))
    version = re.search(r"^[ \t]*\.version\s+([\d.]+)", text, re.MULTILINE)
    target = re.search(r"^[ \t]*\.target\s+([\w, ]+)", text, re.MULTILINE)
    if version is None or target is None:
        raise LayoutError("ptx", text[:60], "must be PTX: with a .version and a .target directive")
    newlines = [match.start() for match in re.finditer("\n", text)]
    kernels, between = [], []
    position = end = opening = declaration_end = 0
    while match := _FUNCTION.search(text, position):
        between.append(text[end : match.start()])
        position = end = match.end()
        if 0 <= opening < position:  # else it is the next one still, or there is none
            opening = text.find("{", position)
        if 0 <= declaration_end < position:
            declaration_end = text.find(";", position)
        if opening < 0 or 0 <= declaration_end < opening:
            end = declaration_end + 1 if declaration_end >= 0 else len(text)
            continue  # a declaration without a body
        closing = _closing_brace(text, opening)
        body = _Body(text, opening + 1, closing, files, newlines)
        kernel = body.kernel(text[position:opening], match["kind"] == "entry")
        kernels.append(replace(kernel, linkage=match["linkage"] or ""))
        position = end = closing + 1
    between.append(text[end:])
    variables = [
        variable
        for part in between
        for found in _VARIABLE.finditer(part)
        for variable in _variables(found, ())
    ]
    return Module(
        version[1], target[1].strip(), tuple(kernels), tuple(variables),
        generator[1].strip() if generator else "",
    )  # fmt: skip


def _closing_brace(text: str, opening: int) -> int:
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.start()
    raise LayoutError("ptx", text[opening : opening + 40], "a '{' is never closed")


_LANES, _COLOURS = "xyzw", "rgba"
"""Names of a vector's elements (PTX ISA, "Vectors as Operands")."""


def _variables(match: re.Match[str], scope: tuple[int, ...]) -> Iterator[Variable]:
    """The variables of one declaration; nothing if it has no type that is known."""
    rest = match["rest"]
    found = _TYPE.search(rest)
    if found is None:
        return
    align = re.search(r"\.align\s+(\d+)", rest)
    vector = re.search(r"\.v([24])\b", rest[: found.start()])
    lanes = int(vector[1]) if vector else 1
    bits = type_bits(found[1])
    # What follows the type may be ``.ptr .global .align 16``, of a pointer's target.
    names = re.sub(r"^\s*\.ptr\b(?:\s*\.\w+(?:\s+\d+\b)?)*", "", rest[found.end() :])
    for part in split_operands(names):
        declared = _DECLARATOR.match(part)
        if declared is None:
            continue
        name, count, dimensions, initializer = declared.groups()
        elements: int | None = 1 if match["space"] == "reg" else lanes
        for size in re.findall(r"\w+|\[\s*\]", dimensions):
            length = immediate(folded(size))
            elements = elements * length if length is not None and elements is not None else None
        made = Variable(
            name,
            match["space"].split("::")[0],
            found[1],
            int(count) if count else None,
            elements,
            int(align[1]) if align and align.start() < found.start() else max(1, lanes * bits // 8),
            folded((initializer or "").strip()),
            scope,
            match["linkage"] or "",
        )
        if vector and made.space == "reg":
            yield from (replace(made, name=f"{name}.{each}") for each in _LANES[:lanes])
        else:
            yield made


class _Body:
    """Reads the statements of one function."""

    def __init__(
        self, text: str, start: int, end: int, files: dict[int, str], newlines: list[int]
    ) -> None:
        self.text, self.start, self.end = text, start, end
        self.files, self.newlines = files, newlines
        self.instructions: list[Instruction] = []
        self.variables: list[Variable] = []
        self.labels: dict[tuple[str, tuple[int, ...]], int] = {}
        self.targets: dict[str, tuple[str, ...]] = {}
        self.vectors: dict[tuple[str, tuple[int, ...]], str] = {}

    def kernel(self, header: str, is_entry: bool) -> Kernel:
        name = re.search(r"([\w$]+)\s*\(", re.sub(r"^\s*\([^)]*\)", "", header))
        if name is None:
            name = re.search(r"([\w$]+)", header)
        self.variables = [
            variable
            for group in re.findall(r"\(([^)]*)\)", header)  # results, if any, and parameters
            for part in split_operands(group)
            for found in _VARIABLE.finditer(part)
            for variable in _variables(found, ())
        ]
        parameters = tuple(variable.name for variable in self.variables)
        self._read()
        directives = {
            key: tuple(int(number) for number in re.findall(r"\d+", values))
            for key, values in _TUNING.findall(header)
        }
        return Kernel(
            name[1] if name else "",
            parameters,
            tuple(self.instructions),
            self.labels,
            tuple(self.variables),
            is_entry,
            self.targets,
            directives,
        )

    def _name_vectors(self, made: list[Variable]) -> None:
        """Remember what operands of vectors of registers stand for: their elements."""
        for each in made:
            name, _, lane = each.name.rpartition(".")
            if name and lane in tuple(_LANES):
                whole, colour = (name, each.scope), _COLOURS[_LANES.index(lane)]
                before = "" if lane == _LANES[0] else f"{self.vectors.get(whole, '')[1:-1]}, "
                self.vectors[whole] = f"{{{before}{each.name}}}"
                self.vectors[f"{name}.{colour}", each.scope] = each.name

    def _operands(self, text: str, scope: tuple[int, ...]) -> tuple[str, ...]:
        operands = split_operands(text)
        for depth in range(len(scope), -1, -1) if self.vectors else ():
            operands = tuple(self.vectors.get((each, scope[:depth]), each) for each in operands)
        return operands

    def _read(self) -> None:
        source: SourceLine | None = None
        sources: dict[tuple[str, ...], SourceLine] = {}
        callers: dict[tuple[str, ...], tuple[str, ...]] = {}
        scope: tuple[int, ...] = ()
        scopes = 0
        label = ""
        position, text, end, newlines = self.start, self.text, self.end, self.newlines
        match, instructions = _STATEMENT.match, self.instructions
        while found := match(text, position, end):
            position = found.end()
            kind = found.lastgroup
            if kind == "operands":
                guard, opcode, operands = found.group("guard", "opcode", "operands")
                instructions.append(
                    Instruction(
                        opcode,
                        self._operands(folded(" ".join(operands.split())), scope),
                        "".join(guard.split()) if guard else "",
                        bisect_right(newlines, found.start("guard" if guard else "opcode")) + 1,
                        source,
                        scope,
                    )
                )
            elif kind in ("line", "column", "caller"):
                location = found["file"], found["line"], found["column"] or "0"
                caller = found["caller"] or ""
                source = sources.get((*location, caller))
                if source is None:
                    callers[location] = (*caller.split(), "0")[:3] if caller else ()
                    number, line, column = map(int, _own_location(location, callers, self.files))
                    name = self.files.get(number, f"file {number}")
                    source = sources[(*location, caller)] = SourceLine(name, line, column)
            elif kind == "brace":
                if found["brace"] == "}":
                    scope = scope[:-1]
                    continue
                scopes += 1
                scope = (*scope, scopes)
                if len(scope) > _MAX_DEPTH:
                    raise LayoutError("ptx", label, f"blocks must nest at most {_MAX_DEPTH} deep")
            elif kind == "label":
                label = found["label"]
                self.labels[label, scope] = len(instructions)
            elif kind == "targets":
                self.targets[label] = split_operands(found["targets"])
            elif kind == "directive":
                declared = _VARIABLE.match("." + found["directive"])
                if declared:
                    self.variables.extend(made := list(_variables(declared, scope)))
                    self._name_vectors(made)
            elif kind is None:
                break


INTEGER_LITERAL = re.compile(rf"([-+]?)\s*({INTEGER})U?")
"""``7``, ``-0x10``, ``0b11``, ``017``, ``7U`` (PTX ISA, "Integer Constants")."""


def immediate(text: str) -> int | None:
    """The integer that an operand is; None if it is no integer, or one of more than 64 bits."""
    if text[:1] in ("%", "[", "{"):
        return None
    match = INTEGER_LITERAL.fullmatch(text)
    if match is None:
        return None
    value = -literal(match[2]) if match[1] == "-" else literal(match[2])
    return value if -(1 << 63) <= value < 1 << 64 else None
