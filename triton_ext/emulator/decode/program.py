"""A PTX kernel, decoded once: its steps, and the registers and memory that it declares."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from triton_ext.emulator.decode.decoder import Modifiers, Opcode, Opcodes
from triton_ext.emulator.decode.function_addresses import function_addresses
from triton_ext.emulator.decode.inlining import Key, inline_calls
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.register_fences import check_fences
from triton_ext.emulator.decode.step import Step
from triton_ext.emulator.errors import LaunchError, UnsupportedInstruction, WrongArchitecture
from triton_ext.emulator.state.storage import Storage, Symbol
from triton_ext.hardware.architecture import Target
from triton_ext.ptx.control_flow import meeting_points
from triton_ext.ptx.new_forms import new_form
from triton_ext.ptx.parse import NVVM, Instruction, Kernel, Module, Variable
from triton_ext.ptx.targets import CLUSTER_DIRECTIVES, lacking, owners, refusal


@dataclass(frozen=True)
class Program:
    """A kernel that is ready to run.

    Attributes:
        kernel: the entry, with the functions that it calls inlined.
        target: what it was compiled for.
        steps: the decoded instructions, in their order.
        storage: the registers and the memory that it declares.
        generator: the compiler that its module names.
    """

    kernel: Kernel
    target: Target
    steps: tuple[Step, ...]
    storage: Storage
    generator: str = ""

    @property
    def of_cuda(self) -> bool:
        """Whether nvcc made it of CUDA C++, or another front end of the same compiler."""
        return NVVM in self.generator

    @functools.cached_property
    def meeting_points(self) -> dict[int, int]:
        """Where the ways from each conditional branch meet, as numbers of steps."""
        return meeting_points(self.kernel)

    @property
    def arch(self) -> int:
        """The compute capability, times ten."""
        return self.target.number

    @property
    def parameters(self) -> list[Symbol]:
        """The kernel's parameters, in order."""
        return [self.storage.symbols[name, ()] for name in self.kernel.parameters]


_NAME = re.compile(r"(?<![\w$%])[A-Za-z_$][\w$]*")
_DYNAMIC_ALIGNMENT = 16
"""What dynamic shared memory is aligned to at least."""


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _placed(kernel: Kernel, module: Module) -> Iterator[Variable]:
    """The variables in the order in which ptxas lays them out (releases 12.9 and 13.4, seen).

    The kernel's own shared variables come first, then those of the module that it names, and then
    its own that nothing names. Those of the module that only other kernels name take no memory.
    """
    shared = {
        variable.name
        for variable in (*module.variables, *kernel.variables)
        if variable.space == "shared" and variable.elements is not None
    }
    if not shared:
        yield from (*module.variables, *kernel.variables)
        return
    named = {
        name
        for each in kernel.instructions
        for operand in each.operands
        for name in _NAME.findall(operand)
        if name in shared
    }

    def idle(variable: Variable) -> bool:
        return variable.name in shared and variable.name not in named

    yield from (each for each in kernel.variables if not idle(each))
    yield from (each for each in module.variables if not idle(each))
    yield from (each for each in kernel.variables if idle(each))


def _allocate(
    kernel: Kernel, module: Module, aliases: dict[Key, Key]
) -> tuple[dict[Key, Symbol], dict[str, int]]:
    """The offset of each variable in its space; and how much of each space is taken."""
    symbols: dict[Key, Symbol] = {
        (name, ()): Symbol("function", name, address, Variable(name, "function", "b64"))
        for name, address in function_addresses(module).items()
    }
    used = {"param": 0, "shared": 0, "local": 0, "global": 0}
    dynamic = []
    own = set(kernel.parameters)
    for variable in _placed(kernel, module):
        if variable.space == "reg":
            continue
        key = (variable.name, variable.scope)
        if variable.alignment < 1 or variable.alignment & (variable.alignment - 1):
            raise LaunchError(f"variable {variable.name}: .align must be a power of two")
        space = variable.space
        if space == "param" and (variable.name not in own or variable.scope):
            space = "local"  # the arguments of a call
        if space in ("global", "const"):
            symbols[key] = Symbol("global", variable.name, 0, variable)
            used["global"] += variable.bytes
        elif variable.elements is None:
            dynamic.append((key, variable))
        else:
            at = _align(used[space], variable.alignment)
            symbols[key] = Symbol(space, variable.name, at, variable)
            used[space] = at + variable.bytes
    # Dynamic shared memory follows the static, which is padded to its alignment; each of several
    # names of it begins where its own alignment allows.
    static, end = used["shared"], used["shared"]
    for key, variable in dynamic:
        if variable.space == "shared":
            at = _align(static, max(_DYNAMIC_ALIGNMENT, variable.alignment))
            symbols[key] = Symbol("shared", variable.name, at, variable)
            end = max(end, at)
    used["shared"] = end
    for key, source in aliases.items():
        if source in symbols:  # else it is a register
            symbols[key] = symbols[source]
    return symbols, used


def decode(module: Module, name: str | None, opcodes: Opcodes) -> Program:
    """Decode an entry of a module: the only one, or the one of that name.

    Args:
        opcodes: those that are modelled.

    Raises:
        LaunchError: there is no such entry, or more than one and no name.
        UnsupportedInstruction: an instruction, modifier or operand is not modelled, or
            (`WrongArchitecture`) is of another target than the module's.
    """
    entries = [kernel for kernel in module.kernels if kernel.is_entry]
    chosen = [kernel for kernel in entries if name in (None, kernel.name)]
    if len(chosen) != 1:
        names = ", ".join(kernel.name for kernel in entries) or "none"
        raise LaunchError(f"kernel {name!r}: the module's entries are: {names}")
    inlined = inline_calls(module, chosen[0])
    kernel = inlined.kernel
    symbols, used = _allocate(kernel, module, inlined.aliases)
    target = Target.parse(module.target.split(",")[0])
    clustered = [name for name in CLUSTER_DIRECTIVES if name in kernel.directives]
    if clustered and not target.meets("90"):
        raise LaunchError(f".{clustered[0]}: clusters are of {owners(['90'])}, not of {target}")
    operands = Operands(kernel, target, symbols, inlined.aliases)
    steps = tuple(_step(each, operands, opcodes) for each in kernel.instructions)
    storage = Storage(
        operands.counts, symbols, used["shared"], used["local"], used["param"], used["global"]
    )
    return Program(kernel, target, check_fences(kernel, steps), storage, module.generator)


def find(opcode: str, opcodes: Opcodes) -> Opcode | None:
    """The entry of an opcode with its modifiers: that of the longest base."""
    name = opcode
    while name and name not in opcodes:
        name = name.rpartition(".")[0]
    return opcodes.get(name)


def _step(each: Instruction, operands: Operands, opcodes: Opcodes) -> Step:
    row = lacking(operands.target, each.opcode, each.operands)
    if row is not None:
        raise WrongArchitecture(refusal(operands.target, row, each.opcode), each)
    form = new_form(each.opcode, each.operands)
    if form is not None and not form.executed:
        what = form.what.replace("`", "")
        raise UnsupportedInstruction(f"{what} (PTX ISA {form.version}): it is not modelled", each)
    found = find(each.opcode, opcodes)
    if found is None:
        raise UnsupportedInstruction("the emulator does not model this instruction", each)
    operands.begin()
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
        found.lockstep,
        frozenset(operands.touched),
        frozenset(operands.written),
        frozenset(operands.read),
        frozenset(operands.addresses),
        operands.flow,
    )
