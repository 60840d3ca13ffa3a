"""Elementwise instructions: the rows of PTX ISA's tables, and the one decoder that reads them.

A row says which modifiers, types and operands a form of an instruction has, and what it computes.
An instruction that fits no row is refused. What all of them share is done here: packed types,
several destinations, constants, and the carry flag.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Decoder, Modifiers, Opcode
from triton_ext.emulator.decode.evidence import Evidence
from triton_ext.emulator.decode.flow import Flow, absorbed, chosen, through
from triton_ext.emulator.decode.operands import Operands, Reader, Writer
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.decode.values import element, reader, writer
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.ptx.parse import Instruction, immediate

Array = NDArray[Any]
Function = Callable[..., Any]
"""(an array, or a scalar for all lanes, of each source) -> the result; of a pair, both results.

Packed types come and go as their elements side by side, and bf16 as its bits.
"""


# --------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Variant:
    """An instruction that fits a row: what its opcode and operands say.

    Attributes:
        opcode: its name, without modifiers.
        type: its type, or the first of two.
        second: the other one, or "".
        constants: the value of each source that is an integer constant, None for the others.
        pair: whether it writes two destinations.
    """

    opcode: str
    type: str
    second: str
    modifiers: frozenset[str]
    constants: tuple[int | None, ...] = ()
    pair: bool = False

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
        if name in ("b", "w"):
            return f"b{self.bits}" if name == "b" else f"{self.type[0]}{2 * self.bits}"
        return {"t": self.type, "s": self.second}.get(name, name)


@dataclass(frozen=True)
class Row:
    """A form of some instructions, as PTX ISA's syntax has it.

    Attributes:
        evidence: what its behaviour rests on, for each of the opcodes, of one type at least.
        opcodes: the names of the instructions.
        modifiers: what their opcodes have besides the types, in any order: ``a|b`` is one of two,
            ``a.b`` both of them, and ``a?`` may be missing.
        types: those that the instruction has, of which it takes one; "" if it has no type.
        operands: the types of the destination and the sources, ``t = t, u32``. ``t`` is the type
            of the instruction, ``s`` its second type, ``w`` one of twice the width of ``t``, ``b``
            its bits without a sign. ``b32|pred`` are two destinations, and the second one of
            ``pred|pred?`` may be missing. ``cc`` is the carry flag, which is not written among the
            operands, and is set only by an instruction with the modifier ``.cc``.
        function: computes the results; else `make` gives the function.
        second: the second types that the instruction has, if it takes two.
    """

    evidence: Evidence
    opcodes: str
    modifiers: str
    types: str
    operands: str
    function: Function | None = None
    make: Callable[[Variant], Function] | None = None
    second: str = ""

    @functools.cached_property
    def choices(self) -> list[tuple[list[list[str]], bool]]:
        """The alternatives of each of the modifiers, and whether it must be there."""
        return [
            ([each.split(".") for each in word.rstrip("?").split("|")], word[-1] != "?")
            for word in self.modifiers.split()
        ]

    @functools.cached_property
    def kinds(self) -> list[list[str]]:
        """The types to choose from, for the first one and the second."""
        return [names.split() for names in (self.types, self.second) if names]

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """All modifiers and types."""
        modifiers = (choice for choices, _ in self.choices for choice in choices)
        return frozenset(part for parts in (*self.kinds, *modifiers) for part in parts)

    @functools.cached_property
    def targets(self) -> list[str]:
        """The types of the destinations."""
        return self.operands.partition(" = ")[0].split("|")

    @functools.cached_property
    def sources(self) -> list[str]:
        """The types of the sources."""
        return self.operands.partition(" = ")[2].split(", ")

    def form(self, opcode: str, parts: Sequence[str], number: int) -> Variant | None:
        """What an instruction says if it fits: its name, the rest of its opcode. `number`: how many
        operands it has."""
        if not self.known.issuperset(parts):
            return None
        if number != 1 + len(self.sources) - self.sources.count("cc"):
            return None
        rest = list(parts)
        for choices, required in self.choices:
            found = next((each for each in choices if all(part in rest for part in each)), [])
            if required and not found:
                return None
            for part in found:
                rest.remove(part)
        if len(rest) != len(self.kinds):
            return None
        if not all(part in names for part, names in zip(rest, self.kinds, strict=True)):
            return None
        first, second, *_ = (*rest, "", "")
        return Variant(opcode, first, second, frozenset(parts))


# ------------------------------------------------------------------------- the decoder


def opcodes(rows: Iterable[Row]) -> dict[str, Opcode]:
    """The opcodes that have rows; the first row that an instruction fits decodes it."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for name in row.opcodes.split():
            found.setdefault(name, []).append(row)
    return {
        name: Opcode(name, _decoder(name, mine), 0, in_flight=False, evidence=None, lockstep=True)
        for name, mine in found.items()
    }


def _decoder(opcode: str, rows: Sequence[Row]) -> Decoder:
    @functools.cache
    def fitting(parts: tuple[str, ...], number: int) -> tuple[Row, Variant] | None:
        forms = ((row, row.form(opcode, parts, number)) for row in rows)
        return next(((row, form) for row, form in forms if form is not None), None)

    def decode(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
        found = fitting(tuple(modifiers.parts), len(at.operands))
        if found is not None:
            modifiers.parts.clear()
            return _elementwise(at, operands, *found)
        for part in modifiers.parts:
            if not any(part in row.known for row in rows):
                raise UnsupportedInstruction(f"modifier .{part} is not modelled", at)
        why = f"{opcode} has no form with these modifiers, types and number of operands"
        raise UnsupportedInstruction(why, at)

    return decode


def _elementwise(at: Instruction, operands: Operands, row: Row, form: Variant) -> Run:
    writes = _targets(at, operands, row, form)
    written = frozenset(operands.written)
    sources = iter(at.operands[1:])
    reads = [
        _read_carry
        if each == "cc"
        else reader(next(sources), form.operand_type(each), at, operands)
        for each in row.sources
    ]
    operands.flow = _flow(at, operands, form, reads, written)
    function = row.function
    if row.make:
        constants = tuple(immediate(text) for text in at.operands[1:])
        function = row.make(replace(form, constants=constants, pair=len(writes) == 2))
    if function is None:
        raise TypeError(f"the row of {row.opcodes} computes nothing")
    if len(writes) == 1:
        return _single(function, reads, writes[0])
    results, (first, second) = function, writes

    def run(cta: Cta, lanes: Lanes) -> None:
        values = results(*[read(cta, lanes) for read in reads])
        first(cta, lanes, values[0])
        second(cta, lanes, values[1])

    return run


def _flow(
    at: Instruction, operands: Operands, form: Variant, reads: Sequence[Reader],
    written: frozenset[Register],
) -> Flow | None:  # fmt: skip
    """How undefined values go through it; an undefined carry flag is not kept: that is a use."""
    if "cc" in form:
        return None
    names = [operands.find(text, at.scope) for text in at.operands]
    if form.opcode == "selp" and names[0] and names[3]:
        return chosen(names[1], names[2], names[3], names[0])
    if form.opcode in ("and", "or") and names[0]:
        both = list(zip(names[1:], reads, strict=True))
        return absorbed(both, names[0], 0 if form.opcode == "and" else 0xFF)
    return through(frozenset(operands.read), written)


def _targets(at: Instruction, operands: Operands, row: Row, form: Variant) -> list[Writer]:
    """Writes the destination, or two of them."""
    texts = iter(at.operands[0].split("|"))
    writes: list[Writer] = []
    for each in row.targets:
        if each == "cc":
            if "cc" in form:
                writes.append(_write_carry)
            continue
        text = next(texts, "").strip()
        if text or not each.endswith("?"):
            writes.append(writer(text, form.operand_type(each.rstrip("?")), at, operands))
    if next(texts, ""):
        raise UnsupportedInstruction("it has more destinations than are expected", at)
    return writes


def _single(function: Function, reads: Sequence[Reader], write: Writer) -> Run:
    """Reads the sources, and writes the only destination."""
    if len(reads) == 1:
        (one,) = reads
        return lambda cta, lanes: write(cta, lanes, function(one(cta, lanes)))
    if len(reads) == 2:
        first, second = reads
        return lambda cta, lanes: write(cta, lanes, function(first(cta, lanes), second(cta, lanes)))
    if len(reads) == 3:
        first, second, third = reads
        return lambda cta, lanes: write(
            cta, lanes, function(first(cta, lanes), second(cta, lanes), third(cta, lanes))
        )
    return lambda cta, lanes: write(cta, lanes, function(*[read(cta, lanes) for read in reads]))


def _read_carry(cta: Cta, lanes: Lanes) -> Array:
    return cta.files["carry"][lanes]


def _write_carry(cta: Cta, lanes: Lanes, value: Any) -> None:
    cta.files["carry"][lanes] = value
