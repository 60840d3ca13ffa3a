"""How a form is declared, and how an instruction is read by its declaration.

A form is a frozen dataclass that has one field for each modifier and each operand of an
instruction's syntax in the PTX ISA. The default of a field says what the field takes: `flag`,
`modifier` and `modifiers` take parts of the opcode, `operand` takes the next operand. Modifiers
may stand in any order, because compilers write some of them in another order than the PTX ISA and
ptxas accepts that. Operands have the order of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

from triton_ext.errors import LayoutError
from triton_ext.ptx.parse import Instruction, split_operands

Condition = Callable[[Mapping[str, Any]], Any]
"""Whether an operand is there, from the fields that stand before it."""


@dataclass(frozen=True)
class _Modifier:
    """What a field takes from an opcode.

    Attributes:
        pattern: of a part of the opcode, without the dot; its group, if it has one, is the value.
        read: the value, from the text that was matched.
        missing: the value if no part matches; None: the modifier is required.
        repeated: all parts that match are taken, as a tuple.
    """

    pattern: re.Pattern[str]
    read: Callable[[str], Any] = str
    missing: Any = None
    repeated: bool = False

    def take(self, parts: list[str]) -> Any:
        """Remove what matches from `parts`; None if a modifier that is required is missing."""
        found = [match for part in parts if (match := self.pattern.fullmatch(part))]
        for match in found[: None if self.repeated else 1]:
            parts.remove(match[0])
        values = [self.read(match[match.lastindex or 0]) for match in found]
        return tuple(values) if self.repeated else values[0] if values else self.missing


@dataclass(frozen=True)
class _Operand:
    """Where a field takes the next operand: see `operand`."""

    when: Condition | None
    like: re.Pattern[str] | None
    optional: bool
    read: Callable[[str], Any]

    def is_there(self, values: Mapping[str, Any], rest: list[str]) -> bool:
        if self.when is not None and not self.when(values):
            return False
        if self.like is not None:
            return bool(rest) and self.like.match(rest[0]) is not None
        return bool(rest) or not self.optional


def flag(name: str) -> Any:
    """A field that says whether the opcode has the modifier ``.name``."""
    return field(metadata={"syntax": _Modifier(re.compile(re.escape(name)), bool, missing=False)})


def modifier(pattern: str, read: Callable[[str], Any] = str, missing: Any = None) -> Any:
    """A field that takes the first modifier that matches; it is required if `missing` is None.

    Args:
        pattern: a regular expression; if it has a group, the group is the modifier's value.
        read: what to make of the value's text.
        missing: the field's value if the opcode has no such modifier.
    """
    return field(metadata={"syntax": _Modifier(re.compile(pattern), read, missing)})


def modifiers(pattern: str) -> Any:
    """A field that takes all modifiers that match, as a tuple."""
    return field(metadata={"syntax": _Modifier(re.compile(pattern), repeated=True)})


def elements(text: str) -> tuple[str, ...]:
    """``{a, b}`` -> ``("a", "b")``; ``a`` -> ``("a",)``; "" -> ``()``."""
    return split_operands(text.removeprefix("{").removesuffix("}"))


def operand(
    when: Condition | None = None,
    like: str = "",
    *,
    optional: bool = False,
    read: Callable[[str], Any] = str,
) -> Any:
    """A field that takes the next operand's text, and is "" if the instruction has no such operand.

    Args:
        when: the operand is there only if this is true of the fields before.
        like: it is there only if this regular expression matches the beginning of the next one.
        optional: it is there only if there is one more.
        read: what to make of the text, such as `elements`.
    """
    pattern = re.compile(like) if like else None
    return field(metadata={"syntax": _Operand(when, pattern, optional, read)})


@dataclass(frozen=True)
class Form:
    """The operands and modifiers of one instruction, by their names in the PTX ISA.

    Operands are texts, as in `Instruction.operands`; evaluating them is left to the users.

    Attributes:
        OPCODES: the opcodes of the form without their modifiers -> the modifiers that each of them
            must have, and that say nothing.
        base: which of the opcodes it is.
    """

    OPCODES: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    base: str

    def operand(self, name: str) -> str:
        """The text of the operand in the field of that name."""
        return str(getattr(self, name))

    def refuse(self, rule: str) -> LayoutError:
        """The error that the modifiers or operands do not go together."""
        return LayoutError("instruction", self.base, rule)


class Syntax:
    """Reads the instructions of one opcode.

    Args:
        form: what they are read as.
        base: the opcode without its modifiers, a key of `Form.OPCODES`.
    """

    def __init__(self, form: type[Form], base: str) -> None:
        self.form, self.base = form, base
        specs = {each.name: each.metadata.get("syntax") for each in fields(form)}
        self._modifiers = {name: x for name, x in specs.items() if isinstance(x, _Modifier)}
        self._operands = {name: x for name, x in specs.items() if isinstance(x, _Operand)}
        self._of_opcode = lru_cache(maxsize=1024)(self._read_opcode)

    def read(self, instruction: Instruction) -> Form:
        """The form of an instruction. Raises LayoutError: a modifier or an operand is unknown,
        missing, or not legal beside the others; the rule says which, and what is legal."""
        values = dict(self._of_opcode(instruction.opcode))
        rest = list(instruction.operands)
        for name, spec in self._operands.items():
            is_there = spec.is_there(values, rest)
            if is_there and not rest:
                raise LayoutError("operands", str(instruction), f"{self.base} must have {name}")
            values[name] = spec.read(rest.pop(0) if is_there else "")
        if rest:
            raise LayoutError("operands", str(instruction), f"{rest[0]} is one operand too many")
        return self.form(**values)

    def _read_opcode(self, opcode: str) -> dict[str, Any]:
        """The values of the fields that are modifiers, and the base."""
        values: dict[str, Any] = {"base": self.base}
        parts = [part for part in opcode[len(self.base) :].split(".") if part]
        for name in self.form.OPCODES[self.base]:
            if name not in parts:
                raise LayoutError("opcode", opcode, f"{self.base} must have the modifier .{name}")
            parts.remove(name)
        for name, spec in self._modifiers.items():
            values[name] = spec.take(parts)
            if values[name] is None:
                rule = f"{self.base} must have a modifier .{spec.pattern.pattern} ({name})"
                raise LayoutError("opcode", opcode, rule)
        if parts:
            legal = ", ".join(f".{spec.pattern.pattern}" for spec in self._modifiers.values())
            rule = f"{self.base} has no modifier .{parts[0]} here; legal are {legal or 'none'}"
            raise LayoutError("opcode", opcode, rule)
        return values
