"""Two of a kind, side by side: layouts, descriptors, and what compilers and runs print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from triton_ext.layouts.dump import LayoutDump

if TYPE_CHECKING:
    from triton_ext.render.descriptor_picture import Field

BEFORE, AFTER = 3, 6
"""Lines of a listing that are shown around its first difference."""

_COMMENT = re.compile(r"\s*//.*")
_PTX_NOISE = re.compile(r"\.(loc|file|version|section|pragma)\b")
_MLIR_LOCATION = re.compile(r"\s*loc\((?:[^()]|\([^()]*\))*\)")
_STEP = re.compile(r"^\s*\d+  (?=block \()")
_SOURCE = re.compile(r"\s*\[[^\]\s]+:\d+\]$")
_NAMES = {
    "ptx": re.compile(r"%[\w$]+|\$\w+"),
    "mlir": re.compile(r"%[\w$.-]+|#\w+\b(?!\.)"),
    "trace": re.compile(r"%[\w$]+"),
}
"""Names that a compiler makes up: the same where they correspond one to one."""


@dataclass(frozen=True)
class Row:
    """One thing on both sides; "" where a side has none.

    Attributes:
        name: what it is: a basis, a field, the numbers of two lines.
        left, right: as each side has it.
    """

    name: str
    left: str
    right: str
    same: bool


@dataclass(frozen=True)
class Comparison:
    """Two of a kind.

    Attributes:
        kind: "layout", "descriptor", "instruction descriptor", "ptx", "mlir", "trace" or
            "timeline".
        rows: all of it; of a listing, the lines around the first difference.
        says: what the first difference means, to be put behind its name; or "".
        verdict: what all differences come to, in place of the first one; or "".
    """

    kind: str
    rows: tuple[Row, ...]
    says: str = ""
    verdict: str = ""

    @property
    def first(self) -> Row | None:
        """The first difference, or None if there is none."""
        return next((row for row in self.rows if not row.same), None)


def rows_of(left: Sequence[tuple[str, str]], right: Sequence[tuple[str, str]]) -> tuple[Row, ...]:
    """Rows of two tables, in the order of the left one."""
    mine, theirs = dict(left), dict(right)
    names = list(dict.fromkeys([*mine, *theirs]))
    pairs = ((name, mine.get(name, ""), theirs.get(name, "")) for name in names)
    return tuple(Row(name, one, other, one == other) for name, one, other in pairs)


# ------------------------------------------------------------------------ layouts


def _table(dump: LayoutDump) -> Iterator[tuple[str, str]]:
    layout = dump.layout
    if layout is None:
        yield "error", dump.error
        return
    yield "sizes", " x ".join(map(str, layout.out_dims.values()))
    for name, bases in layout.bases.items():
        for bit, basis in enumerate(bases):
            yield f"{name}={1 << bit}", f"({', '.join(map(str, basis))})"
    if dump.paddings:
        yield "padding", ", ".join(f"{interval}:+{extra}" for interval, extra in dump.paddings)


def compare_layouts(left: LayoutDump, right: LayoutDump) -> Comparison:
    """The bases and paddings of two layouts, however their encodings spell them."""
    rows = rows_of(list(_table(left)), list(_table(right)))
    both = Comparison("layout", rows)
    at = both.first
    if at is None or "=" not in at.name or not (at.left and at.right):
        return both
    return Comparison("layout", rows, f": element {at.left}, and element {at.right}")


# ------------------------------------------------------------------------ descriptors


def _fields(fields: Sequence[Field]) -> list[tuple[str, str]]:
    return [(f"{one.name} ({one.positions})", f"{one.raw:#x}  {one.meaning}") for one in fields]


def compare_descriptors(left: int, right: int, arch: int | str) -> Comparison:
    """The fields of two 64-bit matrix descriptors. Raises LayoutError: no unsigned 64-bit integers,
    or an unknown architecture."""
    from triton_ext.render.descriptor_picture import matrix_fields  # with the template engine

    rows = rows_of(_fields(matrix_fields(left, arch)), _fields(matrix_fields(right, arch)))
    return Comparison("descriptor", rows)


def compare_instruction_descriptors(left: int, right: int, kind: str) -> Comparison:
    """The fields of two 32-bit instruction descriptors of tcgen05.mma. Raises LayoutError: an
    illegal descriptor, or an unknown kind."""
    from triton_ext.render.descriptor_picture import instruction_fields

    rows = rows_of(
        _fields(instruction_fields(left, kind)), _fields(instruction_fields(right, kind))
    )
    return Comparison("instruction descriptor", rows)


# ------------------------------------------------------------------------ listings


def listing_kind(text: str) -> str:
    """ "ptx", "mlir", "trace" (of ``triton-ext run --trace``), or "" for anything else."""
    if re.search(r"^\s*\.target\b", text, re.MULTILINE):
        return "ptx"
    if re.search(r"^\s*(module\b|#\w+ = #tt|tt\.func\b)", text, re.MULTILINE):
        return "mlir"
    return "trace" if re.search(_STEP.pattern, text, re.MULTILINE) else ""


def _code(text: str, kind: str) -> Iterator[tuple[int, str]]:
    """The lines that do something, with their numbers; without locations and comments."""
    debugging = False
    for number, line in enumerate(text.splitlines(), 1):
        code = line
        if kind == "ptx":
            code = _COMMENT.sub("", line)
            debugging |= code.lstrip().startswith(".section")
            if debugging or _PTX_NOISE.match(code.strip()):
                debugging = debugging and not code.strip().startswith("}")
                continue
        elif kind == "mlir":
            code = "" if line.startswith("#loc") else _MLIR_LOCATION.sub("", line)
        else:
            code = _SOURCE.sub("", _STEP.sub("", line))
        if code.strip():
            yield number, " ".join(code.split())


def _canonical(line: str, kind: str, known: dict[str, str]) -> str:
    """The line with its counted names numbered in the order in which they are met."""

    def renamed(match: re.Match[str]) -> str:
        return known.setdefault(match[0], f"<{len(known)}>")

    return _NAMES[kind].sub(renamed, line)


def compare_listings(left: str, right: str, kind: str) -> Comparison:
    """Two listings up to their first difference, and some lines around it.

    Names of registers, values and labels are the same if they correspond one to one. `kind`: of
    `listing_kind`.
    """
    known: tuple[dict[str, str], dict[str, str]] = ({}, {})
    rows: list[Row] = []
    rest = AFTER
    for one, other in zip_longest(_code(left, kind), _code(right, kind), fillvalue=(0, "")):
        same = _canonical(one[1], kind, known[0]) == _canonical(other[1], kind, known[1])
        name = "/".join(str(number) for number, _ in (one, other) if number)
        rows.append(Row(name, one[1], other[1], same))
        if all(row.same for row in rows):
            rows = rows[-BEFORE:]
        elif not (rest := rest - 1):
            break
    return Comparison(kind, tuple(rows))
