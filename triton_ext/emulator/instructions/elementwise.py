"""Elementwise instructions: the rows of PTX ISA's tables, and the one decoder that reads them.

A row says which modifiers, types and operands a form of an instruction has, and what it computes.
An instruction that fits no row is refused. What all of them share is done here: packed types,
several destinations, constants, and the carry flag.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, Opcode
from triton_ext.emulator.decode.operands import Operands, Reader, Writer
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.ptx.parse import Instruction, immediate

Array = NDArray[Any]
Function = Callable[..., Any]
"""(an array, or a scalar for all lanes, of each source) -> the result; of two destinations, both.

Packed types come and go as their elements side by side, and bf16 as its bits.
"""

PACKED = {
    "f16x2": ("b32", "f16"),
    "bf16x2": ("b32", "bf16"),
    "f32x2": ("b64", "f32"),
    "u16x2": ("b32", "u16"),
    "s16x2": ("b32", "s16"),
}
"""Packed types: the register that holds them, and the type of an element."""


def element(type_name: str) -> str:
    """The type of an element: ``f16x2`` -> ``f16``."""
    return PACKED[type_name][1] if type_name in PACKED else type_name


# --------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Form:
    """An instruction that fits a row: what its opcode and operands say.

    Attributes:
        opcode: its name, without modifiers.
        type: its type, or the first of two.
        second: the other one, or "".
        constants: the value of each source that is an integer constant, None for the others.
    """

    opcode: str
    type: str
    second: str
    modifiers: frozenset[str]
    constants: tuple[int | None, ...]

    def __contains__(self, modifier: str) -> bool:
        return modifier in self.modifiers

    def one_of(self, names: Iterable[str], default: str = "") -> str:
        """The modifier that is one of `names`."""
        return next((name for name in names if name in self.modifiers), default)

    @property
    def element(self) -> str:
        """The type of an element."""
        return element(self.type)

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy's type of an element."""
        return DTYPES[self.element]

    @property
    def bits(self) -> int:
        """The width of the type."""
        return bits_of(self.type)

    def operand_type(self, name: str) -> str:
        """The type that an operand of a row has: see `Row.operands`."""
        letters: dict[str, Callable[[], str]] = {
            "t": lambda: self.type,
            "s": lambda: self.second,
            "b": lambda: f"b{self.bits}",
            "w": lambda: f"{self.type[0]}{2 * self.bits}",
        }
        return letters[name]() if name in letters else name


@dataclass(frozen=True)
class Row:
    """A form of some instructions, as PTX ISA's syntax has it.

    Attributes:
        opcodes: the names of the instructions.
        modifiers: what their opcodes have besides the types, in any order: ``a|b`` is one of two,
            ``a.b`` both of them, and ``a?`` may be missing.
        types: those that the instruction has; it takes one.
        operands: the types of the destination and the sources, ``t = t, u32``. ``t`` is the type
            of the instruction, ``s`` its second type, ``w`` one of twice the width of ``t``, ``b``
            its bits without a sign. ``b32|pred`` are two destinations, and the second one of
            ``pred|pred?`` may be missing. ``cc`` is the carry flag, which is not written among the
            operands, and is set only by an instruction with the modifier ``.cc``.
        function: computes the results; else `make` gives the function.
        second: the second types that the instruction has, if it takes two.
    """

    opcodes: str
    modifiers: str
    types: str
    operands: str
    function: Function | None = None
    make: Callable[[Form], Function] | None = None
    second: str = ""

    @functools.cached_property
    def choices(self) -> list[tuple[list[set[str]], bool]]:
        """Of each of the modifiers: the alternatives, and whether it must be there."""
        return [
            ([set(each.split(".")) for each in word.rstrip("?").split("|")], word[-1] != "?")
            for word in self.modifiers.split()
        ]

    @functools.cached_property
    def kinds(self) -> list[list[str]]:
        """The types to choose from, for the first one and the second."""
        return [names.split() for names in (self.types, self.second) if names]

    @functools.cached_property
    def targets(self) -> list[str]:
        """The types of the destinations."""
        return self.operands.partition(" = ")[0].split("|")

    @functools.cached_property
    def sources(self) -> list[str]:
        """The types of the sources."""
        return self.operands.partition(" = ")[2].split(", ")

    def form(self, opcode: str, parts: Sequence[str], texts: Sequence[str]) -> Form | None:
        """What an instruction says if it fits: its name, the rest of its opcode, its operands."""
        if len(texts) != 1 + len(self.sources) - self.sources.count("cc"):
            return None
        rest = list(parts)
        for choices, required in self.choices:
            found = next((each for each in choices if each.issubset(rest)), set())
            if required and not found:
                return None
            for part in found:
                rest.remove(part)
        if len(rest) != len(self.kinds):
            return None
        if not all(part in names for part, names in zip(rest, self.kinds, strict=True)):
            return None
        first, second = rest if self.second else (*rest, "")
        constants = tuple(immediate(text) for text in texts[1:])
        return Form(opcode, first, second, frozenset(parts), constants)

    def knows(self, part: str) -> bool:
        """Whether a part of an opcode is one of the types or modifiers."""
        modifiers = (choice for choices, _ in self.choices for choice in choices)
        return any(part in names for names in (*self.kinds, *modifiers))


# ------------------------------------------------------------------------- the decoder


def opcodes(rows: Iterable[Row]) -> dict[str, Opcode]:
    """The opcodes that have rows; the first row that an instruction fits decodes it."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for name in row.opcodes.split():
            found.setdefault(name, []).append(row)
    return {
        name: Opcode(name, functools.partial(_decode, name, mine), 0, in_flight=False)
        for name, mine in found.items()
    }


def _decode(
    opcode: str, rows: Sequence[Row], at: Instruction, modifiers: Modifiers, operands: Operands
) -> Run:
    for row in rows:
        form = row.form(opcode, modifiers.parts, at.operands)
        if form is not None:
            modifiers.parts.clear()
            return _elementwise(at, operands, row, form)
    for part in modifiers.parts:
        if not any(row.knows(part) for row in rows):
            raise UnsupportedInstruction(f"modifier .{part} is not modelled", at)
    raise UnsupportedInstruction(
        f"{opcode} has no form with these modifiers, types and number of operands", at
    )


def _elementwise(at: Instruction, operands: Operands, row: Row, form: Form) -> Run:
    sources = iter(at.operands[1:])
    reads = [
        _read_carry
        if each == "cc"
        else reader(next(sources), form.operand_type(each), at, operands)
        for each in row.sources
    ]
    targets = iter(at.operands[0].split("|"))
    writes: list[Writer] = []
    for each in row.targets:
        if each == "cc":
            if "cc" in form:
                writes.append(_write_carry)
            continue
        text = next(targets, "").strip()
        if text or not each.endswith("?"):
            writes.append(writer(text, form.operand_type(each.rstrip("?")), at, operands))
    if next(targets, ""):
        raise UnsupportedInstruction("it has more destinations than are expected", at)
    function = row.make(form) if row.make else row.function
    if function is None:
        raise TypeError(f"the row of {row.opcodes} computes nothing")
    if len(row.targets) == 1:
        return _single(function, reads, writes[0])
    results = function

    def run(cta: Cta, lanes: Lanes) -> None:
        values = results(*[read(cta, lanes) for read in reads])
        for write, value in zip(writes, values, strict=False):
            write(cta, lanes, value)

    return run


def _single(function: Function, reads: Sequence[Reader], write: Writer) -> Run:
    """Reads the sources, and writes the only destination."""
    if len(reads) == 1:
        (one,) = reads
        return lambda cta, lanes: write(cta, lanes, function(one(cta, lanes)))
    if len(reads) == 2:
        first, second = reads
        return lambda cta, lanes: write(cta, lanes, function(first(cta, lanes), second(cta, lanes)))
    return lambda cta, lanes: write(cta, lanes, function(*[read(cta, lanes) for read in reads]))


# --------------------------------------------------------------------------- operands


def reader(text: str, type_name: str, at: Instruction, operands: Operands) -> Reader:
    """Reads an operand of a scalar or packed type; the elements of a packed one side by side.

    bf16 comes as its bits.
    """
    if type_name == "bf16":
        if operands.find(text, at.scope) is not None:
            return operands.reader(text, "b16", at)
        constant = operands.reader(text, "bf16", at)
        return lambda cta, lanes: constant(cta, lanes).view(np.uint16)
    if type_name not in PACKED:
        return operands.reader(text, type_name, at)
    register, each = PACKED[type_name]
    read, dtype = operands.reader(text, register, at), _dtype(each)

    def elements(cta: Cta, lanes: Lanes) -> Array:
        value = read(cta, lanes)
        if value.ndim == 0:
            value = np.full(lane_sets.count(lanes), value)
        return value.view(dtype)

    return elements


def writer(text: str, type_name: str, at: Instruction, operands: Operands) -> Writer:
    """Writes what `reader` reads."""
    if type_name not in PACKED:
        return operands.writer(text, "b16" if type_name == "bf16" else type_name, at)
    register, _ = PACKED[type_name]
    write, dtype = operands.writer(text, register, at), DTYPES[register]
    return lambda cta, lanes, value: write(cta, lanes, np.ascontiguousarray(value).view(dtype))


def _dtype(type_name: str) -> np.dtype[Any]:
    """bf16 is read and written as its bits: numpy has no arithmetic on it."""
    return DTYPES["b16" if type_name == "bf16" else type_name]


def _read_carry(cta: Cta, lanes: Lanes) -> Array:
    return cta.carry[lanes]


def _write_carry(cta: Cta, lanes: Lanes, value: Any) -> None:
    cta.carry[lanes] = value
