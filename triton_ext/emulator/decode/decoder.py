"""What a decoder is: it turns an instruction of one opcode into a function over sets of lanes.

The modules of `triton_ext.emulator.instructions` mark theirs with `instruction`; `opcodes_of`
gathers them into a table. A decoder must account for every modifier of the opcode and every
operand; what it does not know is refused before the kernel starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TypeVar

from triton_ext.emulator.decode.evidence import Evidence
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.state.types import DTYPES
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.ptx.forms import Form, read
from triton_ext.ptx.parse import Instruction

F = TypeVar("F", bound=Form)
FormType = type[F]


class Modifiers:
    """The parts of an opcode, taken one by one; `finish` refuses what nobody took."""

    def __init__(self, instruction: Instruction, base: str) -> None:
        self.instruction = instruction
        rest = instruction.opcode[len(base) :]
        self.parts = [part for part in rest.split(".") if part]

    def flag(self, name: str) -> bool:
        """Take a modifier if it is there."""
        if name in self.parts:
            self.parts.remove(name)
            return True
        return False

    def one_of(self, names: Iterable[str], default: str = "") -> str:
        """Take the first of the parts that is one of `names`."""
        wanted = tuple(names)
        for part in self.parts:
            if part in wanted:
                self.parts.remove(part)
                return part
        return default

    def type(self) -> str:
        """Take the next scalar type."""
        found = self.one_of(DTYPES)
        if not found:
            raise UnsupportedInstruction("the opcode has no type that is known", self.instruction)
        return found

    def starting(self, prefix: str) -> str:
        """Take a part that starts with `prefix`, such as ``kind::``; what follows the prefix."""
        for part in self.parts:
            if part.startswith(prefix):
                self.parts.remove(part)
                return part[len(prefix) :]
        return ""

    def form(self, kind: FormType[F]) -> F:
        """The instruction as its form, which accounts for all modifiers and operands. Raises
        UnsupportedInstruction: the form has no such modifiers or operands."""
        try:
            found = read(self.instruction)
        except LayoutError as error:
            raise UnsupportedInstruction(error.rule, self.instruction) from None
        if not isinstance(found, kind):
            raise UnsupportedInstruction("the opcode is not understood", self.instruction)
        self.parts.clear()
        return found

    def finish(self) -> None:
        """Raise for what is left."""
        if self.parts:
            why = f"modifier .{self.parts[0]} is not modelled"
            raise UnsupportedInstruction(why, self.instruction)


Decoder = Callable[[Instruction, Modifiers, Operands], Run]


@dataclass(frozen=True)
class Opcode:
    """An opcode that is modelled.

    Attributes:
        base: the opcode without the modifiers that the decoder takes.
        decode: its decoder.
        convergent: how many threads must execute it together, or 0.
        in_flight: whether it may name registers that an asynchronous instruction still uses.
        evidence: what its behaviour rests on; None if that differs by form, as a `Row` says it.
        but: what holds of some of its forms alone, or "".
        lockstep: whether several blocks may execute it at once: see
            `triton_ext.emulator.schedule.batches`.
    """

    base: str
    decode: Decoder
    convergent: int
    in_flight: bool
    evidence: Evidence | None
    but: str = ""
    lockstep: bool = False


Opcodes = Mapping[str, Opcode]
"""The opcodes that are modelled, by their bases."""
_MARKED: dict[str, list[Opcode]] = {}
"""Opcodes by the name of the module that has their decoder."""


def instruction(
    bases: str,
    *,
    evidence: Evidence,
    but: str = "",
    convergent: bool | int = False,
    in_flight: bool = False,
    lockstep: bool = False,
) -> Callable[[Decoder], Decoder]:
    """Mark a function as the decoder of opcodes that start with one of some.

    Args:
        bases: these, with spaces between them.
        evidence: what the behaviour of all of them rests on.
        but: what holds of some of their forms alone.
        convergent: whether all threads of a warp must execute it together; or of a larger group:
            the number of its threads.
        in_flight: whether it may name registers that an asynchronous instruction still uses.
        lockstep: see `Opcode`.
    """
    size = WARP_THREADS if convergent is True else int(convergent)

    def mark(decode: Decoder) -> Decoder:
        marked = _MARKED.setdefault(decode.__module__, [])
        for base in bases.split():
            marked.append(Opcode(base, decode, size, in_flight, evidence, but, lockstep))
        return decode

    return mark


def opcodes_of(modules: Iterable[ModuleType]) -> dict[str, Opcode]:
    """The opcodes whose decoders are marked in these modules. Raises ValueError: two decoders of
    one opcode."""
    table: dict[str, Opcode] = {}
    for module in modules:
        for opcode in _MARKED.get(module.__name__, []):
            if opcode.base in table:
                raise ValueError(f"{opcode.base} has two decoders, one in {module.__name__}")
            table[opcode.base] = opcode
    return table
