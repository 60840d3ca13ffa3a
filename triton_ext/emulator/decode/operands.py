"""The operands of instructions, as functions that read or write them for a set of lanes."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.constants import constant, low_bits
from triton_ext.emulator.decode.flow import Flow
from triton_ext.emulator.decode.special import SPECIAL_REGISTERS
from triton_ext.emulator.errors import LaunchError, UnsupportedInstruction
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes, count
from triton_ext.emulator.state.storage import Register, Symbol, file_width
from triton_ext.emulator.state.types import DTYPES, bits_of
from triton_ext.hardware.architecture import Target
from triton_ext.ptx.parse import (
    INTEGER_LITERAL,
    Instruction,
    Kernel,
    immediate,
    split_operands,
    type_bits,
)

MAX_REGISTERS = 1 << 20
"""The most registers of a width that a kernel may declare: a limit of the emulator."""
Array = NDArray[Any]
Reader = Callable[[Cta, Lanes], Array]
"""The operand's value for each lane; one that all lanes share may have no dimensions."""
Writer = Callable[[Cta, Lanes, Any], None]
Name = tuple[str, tuple[int, ...]]
"""A name, and the scope that declares it."""


def _wrapped(number: int) -> np.int64:
    """As 64-bit arithmetic of addresses wraps."""
    return np.int64((number + (1 << 63)) % (1 << 64) - (1 << 63))


@contextlib.contextmanager
def _refused(at: Instruction) -> Iterator[None]:
    """Within it, a constant that does not fit is refused."""
    try:
        yield
    except ValueError as error:
        raise UnsupportedInstruction(str(error), at) from None


def _file(register: Register, type_name: str, at: Instruction) -> str | None:
    """The register file to access as that type; None if the register is wider than the type.
    Raises UnsupportedInstruction: the type is wider, or does not mix with the register."""
    width, bits = register.width, bits_of(type_name)
    if (type_name == "pred") != (width == 1):
        raise UnsupportedInstruction(f"a predicate and .{type_name} do not mix", at)
    if width < bits or (width == 128) != (bits == 128):
        raise UnsupportedInstruction(f"a {width}-bit register as .{type_name}", at)
    if width != bits:
        return None
    return type_name if type_name in DTYPES else f"b{bits}"


def _declared(
    name: str, scope: tuple[int, ...], named: Mapping[Name, Register],
    ranges: Mapping[Name, tuple[int, int, int]],
) -> Register | None:  # fmt: skip
    """The register of that name, in the innermost scope that has one."""
    for depth in range(len(scope), -1, -1):
        found = named.get((name, scope[:depth]))
        if found is not None:
            return found
    match = re.fullmatch(r"(%?[A-Za-z_$][\w$]*?)(\d+)", name)
    while match:
        for depth in range(len(scope), -1, -1):
            width, first, number = ranges.get((match[1], scope[:depth]), (0, 0, 0))
            if int(match[2]) < number:
                return Register(width, first + int(match[2]))
        # %r12<5> may declare %r120 .. %r124: try a longer prefix
        match = re.fullmatch(rf"({re.escape(match[1])}\d)(\d+)", name)
    return None


class Operands:
    """Resolves the names of one kernel.

    Args:
        kernel: the one whose instructions are decoded.
        target: what the kernel was compiled for.
        symbols: its variables in memory, by name and scope.
        aliases: names of inlined functions that stand for another register or variable: both
            with their scopes.

    Attributes:
        counts: number of registers, by width.
        touched, written: the registers that readers and writers were asked for.
        read, addresses: those of values that are read, and of addresses.
        flow: how undefined values go through the instruction; None if it uses all that it reads.
    """

    def __init__(
        self,
        kernel: Kernel,
        target: Target,
        symbols: dict[Name, Symbol],
        aliases: Mapping[Name, Name] | None = None,
    ) -> None:
        self.kernel, self.target, self.symbols = kernel, target, symbols
        self.counts: dict[int, int] = {}
        self._named: dict[Name, Register] = {}
        self._ranges: dict[Name, tuple[int, int, int]] = {}
        self._found: dict[Name, Register | None] = {}
        for variable in kernel.variables:
            if variable.space != "reg":
                continue
            width = file_width(type_bits(variable.type))
            first = self.counts.setdefault(width, 0)
            number = 1 if variable.count is None else variable.count
            self.counts[width] = first + number
            if self.counts[width] > MAX_REGISTERS:
                why = f"{variable.name}: a kernel has at most {MAX_REGISTERS} registers"
                raise LaunchError(why)
            if variable.count is None:
                self._named[variable.name, variable.scope] = Register(width, first)
            else:
                self._ranges[variable.name, variable.scope] = (width, first, number)
        for name, source in (aliases or {}).items():
            if source in self._named:
                self._named[name] = self._named[source]
        self.begin()

    @functools.cached_property
    def comparing(self) -> dict[str, list[Instruction]]:
        """The kernel's compare-and-swaps, by the register that they compare, and by those that are
        moved to it."""
        found: dict[str, list[Instruction]] = {}
        for each in self.kernel.instructions:
            if re.match(r"atom\..*\bcas\b", each.opcode):
                found.setdefault(each.operands[2], []).append(each)
        for each in self.kernel.instructions if found else ():
            if each.opcode.startswith("mov.") and each.operands[0] in found:
                found.setdefault(each.operands[1], []).extend(found[each.operands[0]])
        return found

    def begin(self) -> None:
        """Forget what the instruction before has asked for."""
        self.touched: set[Register] = set()
        self.written: set[Register] = set()
        self.read: set[Register] = set()
        self.addresses: set[Register] = set()
        self.flow: Flow | None = None

    def find(self, name: str, scope: tuple[int, ...]) -> Register | None:
        """The register of that name, in the innermost scope that has one."""
        key = name, scope
        if key not in self._found:
            self._found[key] = _declared(name, scope, self._named, self._ranges)
        return self._found[key]

    def register(self, name: str, at: Instruction) -> Register:
        """The register of that name. Raises UnsupportedInstruction: there is none."""
        found = self.find(name, at.scope)
        if found is None:
            raise UnsupportedInstruction(f"{name!r} is no register that is declared", at)
        self.touched.add(found)
        return found

    def symbol(self, name: str, scope: tuple[int, ...]) -> Symbol | None:
        """The variable in memory of that name, in the innermost scope that has one."""
        for depth in range(len(scope), -1, -1):
            found = self.symbols.get((name, scope[:depth]))
            if found is not None:
                return found
        return None

    def reader(self, text: str, type_name: str, at: Instruction) -> Reader:
        """Reads an operand as `type_name`: a register, an immediate, a symbol's address. Raises
        UnsupportedInstruction: it is none of them, or does not fit the type."""
        bits = bits_of(type_name)
        dtype = DTYPES.get(type_name, DTYPES.get(f"b{bits}"))
        with _refused(at):
            value = None if text.startswith("%") else constant(text, type_name)
        if value is not None:
            return lambda cta, lanes: value
        if type_name == "pred" and text.startswith("!"):
            negated = self.register(text[1:], at)
            self.read.add(negated)
            row = negated.row
            return lambda cta, lanes: ~cta.files["pred"][row, lanes]
        special = SPECIAL_REGISTERS.get(text)
        if special is not None:
            wanted = dtype
            return lambda cta, lanes: special(cta, lanes).astype(wanted)
        if self.find(text, at.scope) is not None:
            return self._register_reader(self.register(text, at), type_name, dtype, at)
        symbol = self._symbol_operand(text, at)
        if symbol is not None:
            wanted = dtype
            return lambda cta, lanes: np.asarray(symbol(cta), np.uint64).astype(wanted)
        raise UnsupportedInstruction(f"operand {text!r} is not understood", at)

    def _symbol_operand(self, text: str, at: Instruction) -> Callable[[Cta], int] | None:
        name, _, offset = text.partition("+")
        symbol = self.symbol(name.strip(), at.scope)
        extra = immediate(offset.strip()) if offset else 0
        if symbol is None or extra is None:
            return None
        found, more = symbol, extra
        return lambda cta: cta.address_of(found) + more

    def _register_reader(
        self, register: Register, type_name: str, dtype: np.dtype[Any] | None, at: Instruction
    ) -> Reader:
        self.read.add(register)
        row, key = register.row, _file(register, type_name, at)
        if key is not None:
            return lambda cta, lanes: cta.files[key][row, lanes]
        whole, low = f"b{register.width}", f"u{bits_of(type_name) // 8}"
        view = dtype or np.dtype(low)
        return lambda cta, lanes: cta.files[whole][row, lanes].astype(low).view(view)

    def writer(self, text: str, type_name: str, at: Instruction) -> Writer:
        """Writes a register as `type_name`; ``_`` drops the value.

        A narrower value is extended by its sign if the type is signed, else by zeros.
        """
        if text == "_":
            return lambda cta, lanes, value: None
        register = self.register(text, at)
        self.written.add(register)
        row, key = register.row, _file(register, type_name, at)
        if key is None:
            kind = DTYPES.get(type_name, DTYPES["b32"]).kind
            key = f"{'s' if kind == 'i' else 'u'}{register.width}"
            if kind not in "iu":  # a float's bits in a wider register
                whole, low = key, f"u{bits_of(type_name) // 8}"

                def write_bits(cta: Cta, lanes: Lanes, value: Any) -> None:
                    cta.files[whole][row, lanes] = np.asarray(value, DTYPES[type_name]).view(low)

                return write_bits
        file = key

        def write(cta: Cta, lanes: Lanes, value: Any) -> None:
            cta.files[file][row, lanes] = value

        return write

    def vector(self, text: str) -> tuple[str, ...]:
        """The elements of ``{a, b}``; any other operand is its own only element."""
        return split_operands(text[1:-1]) if text.startswith("{") else (text,)

    def rows(
        self, texts: Sequence[str], at: Instruction, *, written: bool = False
    ) -> tuple[str, slice | NDArray[np.intp]]:
        """The file of registers of one width, and their rows in it."""
        registers = [self.register(text, at) for text in texts]
        (self.written if written else self.read).update(registers)
        widths = {register.width for register in registers}
        if len(widths) != 1:
            raise UnsupportedInstruction("registers of different widths in one vector", at)
        rows = np.array([register.row for register in registers])
        first = int(rows[0])
        consecutive = bool((rows == np.arange(first, first + len(rows))).all())
        key = f"b{widths.pop()}"
        return key, slice(first, first + len(rows)) if consecutive else rows

    def address(self, text: str, at: Instruction) -> Reader:
        """Reads the address in ``[a]``, ``[a+4]``, ``[symbol]``: (lanes,), int64."""
        inside = text.strip().removeprefix("[").removesuffix("]").strip()
        match = re.fullmatch(r"([^+\s]+?)\s*(?:\+\s*(-?\w+)|(-\s*\d+))?", inside)
        if match is None:
            raise UnsupportedInstruction(f"address {text!r} is not understood", at)
        offset, base = (match[2] or match[3] or "0").replace(" ", ""), match[1]
        if not INTEGER_LITERAL.fullmatch(offset):
            raise UnsupportedInstruction(f"address {text!r} is not understood", at)
        register = self.find(base, at.scope)
        bits = 64 if register is None else register.width
        if bits not in (32, 64):
            raise UnsupportedInstruction(f"a {bits}-bit register as an address", at)
        with _refused(at):
            extra = low_bits(offset, bits)
        if register is not None:
            self.touched.add(register)
            self.addresses.add(register)
            key, row = f"b{register.width}", register.row
            if register.width == 32:  # 32-bit arithmetic wraps
                more = np.uint32(extra)
                return lambda cta, lanes: (cta.files[key][row, lanes] + more).astype(np.int64)
            far = _wrapped(extra)
            return lambda cta, lanes: cta.files["s64"][row, lanes] + far
        symbol = self._symbol_operand(base, at)
        if symbol is None:
            if not INTEGER_LITERAL.fullmatch(base):
                raise UnsupportedInstruction(f"address {text!r} is not understood", at)
            with _refused(at):
                absolute = _wrapped(low_bits(base, 64) + extra)
            return lambda cta, lanes: np.full(count(lanes), absolute)
        return lambda cta, lanes: np.full(count(lanes), _wrapped(symbol(cta) + extra))
