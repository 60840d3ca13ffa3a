"""A PTX kernel, decoded once: each instruction becomes a function over sets of lanes.

A module of `triton_ext.emulator.instructions` registers a decoder for each opcode that it models.
A decoder must account for every modifier of the opcode and every operand; what it does not know
is refused before the kernel starts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.inlining import Key, inline_calls
from triton_ext.emulator.decode.operands import Operands, Register, Symbol
from triton_ext.emulator.errors import LaunchError, UnsupportedInstruction
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS, architecture
from triton_ext.ptx.forms import Form, read
from triton_ext.ptx.parse import Instruction, Kernel, Module

if TYPE_CHECKING:
    from triton_ext.emulator.schedule.cta import Cta

F = TypeVar("F", bound=Form)


@dataclass
class Wait:
    """The lanes stay at the instruction until `ready`; then `resume` runs, and they go on.

    Attributes:
        ready: asked often; without side effects.
        why: says what is waited for, in a deadlock's message.
        resume: what the instruction does at the end of the wait.
        timeout: for instructions that may give up, such as ``mbarrier.try_wait``: called instead
            of `resume` when nothing in the machine can go on; the lanes go on, too.
    """

    ready: Callable[[], bool]
    why: Callable[[], str]
    resume: Callable[[], None] = lambda: None
    timeout: Callable[[], None] | None = None


@dataclass
class Jump:
    """The lanes go to another instruction: one for all, or one for each (-1: the lane exits)."""

    target: int | NDArray[np.intp]


@dataclass
class Split:
    """The lanes cannot execute the instruction together: the given sets do it one by one."""

    parts: list[Lanes]


@dataclass
class Park:
    """Lanes stay at the instruction until others that it names come to it, too.

    Attributes:
        lanes: those that stay; the others have executed it.
    """

    lanes: Lanes


Outcome = Wait | Jump | Split | Park | None
Run = Callable[["Cta", Lanes], Outcome]


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

    def type(self, *, required: bool = True) -> str:
        """Take the next scalar type."""
        found = self.one_of(DTYPES)
        if required and not found:
            raise UnsupportedInstruction("the opcode has no type that is known", self.instruction)
        return found

    def starting(self, prefix: str) -> str:
        """Take a part that starts with `prefix`, such as ``kind::``; what follows the prefix."""
        for part in self.parts:
            if part.startswith(prefix):
                self.parts.remove(part)
                return part[len(prefix) :]
        return ""

    def form(self, kind: type[F]) -> F:
        """The instruction as its form, which accounts for all modifiers and operands.

        Raises:
            UnsupportedInstruction: the form has no such modifiers or operands.
        """
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
            raise UnsupportedInstruction(
                f"modifier .{self.parts[0]} is not modelled", self.instruction
            )


Decoder = Callable[[Instruction, Modifiers, Operands], Run]


@dataclass(frozen=True)
class _Registered:
    base: str
    decode: Decoder
    convergent: int
    in_flight: bool


_DECODERS: dict[str, _Registered] = {}


def instruction(
    *bases: str, convergent: bool | int = False, in_flight: bool = False
) -> Callable[[Decoder], Decoder]:
    """Register the decoder of opcodes that start with one of `bases`.

    Args:
        convergent: all threads of a warp must execute it together; or of a group of so many.
        in_flight: it may name registers that an asynchronous instruction still reads or writes.
    """

    def register(decode: Decoder) -> Decoder:
        for base in bases:
            size = WARP_THREADS if convergent is True else int(convergent)
            _DECODERS[base] = _Registered(base, decode, size, in_flight)
        return decode

    return register


Check = Callable[[Kernel, tuple["Step", ...]], tuple["Step", ...]]
_CHECKS: list[Check] = []


def after_decoding(check: Check) -> Check:
    """Register a function that sees a whole kernel before it starts, and may replace its steps."""
    _CHECKS.append(check)
    return check


def registered() -> list[str]:
    """The opcodes that have a decoder, without their modifiers."""
    import triton_ext.emulator.instructions  # noqa: F401 (registers them)

    return sorted(_DECODERS)


def _registered(opcode: str) -> _Registered | None:
    name = opcode
    while name:
        if name in _DECODERS:
            return _DECODERS[name]
        name = name.rpartition(".")[0]
    return None


@dataclass(frozen=True)
class Step:
    """A decoded instruction.

    Attributes:
        instruction: as it stands in the PTX.
        run: executes it for lanes whose guard is true.
        guard: the row of the predicate, or -1.
        negated: whether the guard is ``@!p``.
        convergent: how many threads must execute it together: 32, a warp; 128, a warpgroup; or 0.
        in_flight: it may name registers that are in flight.
        touched: the registers that it names.
        written: those of them that it writes.
    """

    instruction: Instruction
    run: Run
    guard: int
    negated: bool
    convergent: int
    in_flight: bool
    touched: frozenset[Register]
    written: frozenset[Register] = frozenset()

    @functools.cached_property
    def copies(self) -> bool:
        """Whether it does nothing but copy registers."""
        return self.instruction.opcode.startswith("mov.")


@dataclass(frozen=True)
class Program:
    """An entry, ready to run.

    Attributes:
        kernel: as parsed.
        module: that it comes from.
        arch: 90 or 100.
        steps: in the order of the instructions.
        counts: registers by width.
        symbols: of memory.
        static_smem_bytes: of the kernel's own shared variables.
        local_bytes: of each thread.
        parameter_bytes: of all parameters.
    """

    kernel: Kernel
    module: Module
    arch: int
    steps: tuple[Step, ...]
    counts: dict[int, int]
    symbols: dict[tuple[str, tuple[int, ...]], Symbol]
    static_smem_bytes: int
    local_bytes: int
    parameter_bytes: int

    @property
    def parameters(self) -> list[Symbol]:
        """In order."""
        return [self.symbols[name, ()] for name in self.kernel.parameters]


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _place(
    kernel: Kernel, module: Module, aliases: dict[Key, Key]
) -> tuple[dict[Key, Symbol], dict[str, int]]:
    """Where each variable lies in its space; and how much of each space is taken."""
    symbols: dict[tuple[str, tuple[int, ...]], Symbol] = {}
    used = {"param": 0, "shared": 0, "local": 0}
    dynamic = []
    own = set(kernel.parameters)
    for variable in (*module.variables, *kernel.variables):
        if variable.space == "reg":
            continue
        key = (variable.name, variable.scope)
        space = variable.space
        if space == "param" and (variable.name not in own or variable.scope):
            space = "local"  # the arguments of a call
        if space in ("global", "const"):
            symbols[key] = Symbol("global", variable.name, 0, variable)
        elif variable.elements is None:
            dynamic.append((key, variable))
        else:
            at = _align(used[space], variable.alignment)
            symbols[key] = Symbol(space, variable.name, at, variable)
            used[space] = at + variable.bytes
    for key, variable in dynamic:  # dynamic shared memory follows the static
        if variable.space == "shared":
            at = _align(used["shared"], max(16, variable.alignment))
            symbols[key] = Symbol("shared", variable.name, at, variable)
    for key, source in aliases.items():
        if source in symbols:  # else it is a register
            symbols[key] = symbols[source]
    return symbols, used


def decode(module: Module, name: str | None = None) -> Program:
    """Decode an entry of a module: the only one, or the one of that name.

    Raises:
        LaunchError: there is no such entry, or more than one and no name.
        UnsupportedInstruction: an instruction, modifier or operand is not modelled.
    """
    import triton_ext.emulator.instructions  # noqa: F401 (registers the decoders)

    entries = [kernel for kernel in module.kernels if kernel.is_entry]
    chosen = [kernel for kernel in entries if name in (None, kernel.name)]
    if len(chosen) != 1:
        names = ", ".join(kernel.name for kernel in entries) or "none"
        raise LaunchError(f"kernel {name!r}: the module's entries are: {names}")
    inlined = inline_calls(module, chosen[0])
    kernel = inlined.kernel
    symbols, used = _place(kernel, module, inlined.aliases)
    operands = Operands(kernel, module, symbols, inlined.aliases)
    steps = tuple(_step(each, operands) for each in kernel.instructions)
    for check in _CHECKS:
        steps = check(kernel, steps)
    return Program(
        kernel,
        module,
        architecture(module.target.split(",")[0]),
        steps,
        operands.counts,
        symbols,
        used["shared"],
        used["local"],
        used["param"],
    )


def _step(each: Instruction, operands: Operands) -> Step:
    found = _registered(each.opcode)
    if found is None:
        raise UnsupportedInstruction("the emulator does not model this instruction", each)
    operands.touched, operands.written = set(), set()
    modifiers = Modifiers(each, found.base)
    try:
        run = found.decode(each, modifiers, operands)
    except (IndexError, ValueError, KeyError) as error:
        raise UnsupportedInstruction(f"its operands are not understood ({error})", each) from error
    modifiers.finish()
    guard, negated = -1, False
    if each.predicate:
        negated = each.predicate.startswith("!")
        register = operands.register(each.predicate.lstrip("!"), replace(each, predicate=""))
        guard = register.row
    return Step(
        each,
        run,
        guard,
        negated,
        found.convergent,
        found.in_flight,
        frozenset(operands.touched),
        frozenset(operands.written),
    )
