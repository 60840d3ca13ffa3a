"""Calls of a module's functions, inlined: a kernel that is decoded has none left.

Each call gets a copy of the function's body, whose names live in a scope of their own. Parameters
that are passed through parameter space share the caller's bytes. A call through a pointer compares
it with the address of each function that fits, and calls that one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from triton_ext.emulator.decode.function_addresses import function_addresses, pointed_at
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.ptx.parse import Instruction, Kernel, Module, Variable, split_operands

MAX_INLINED = 1 << 17
"""Instructions and calls that a kernel may have with its functions in line: an own limit."""
MAX_DEPTH = 64
"""Calls within calls."""
Scope = tuple[int, ...]
Key = tuple[str, Scope]


@dataclass
class Inlined:
    """A kernel without calls of the module's functions.

    Attributes:
        kernel: the kernel, with the functions' bodies inlined.
        aliases: variables and registers that stand for another one, which each names.
    """

    kernel: Kernel
    aliases: dict[Key, Key]


_DEVICE_LAUNCHES = ("cudaGetParameterBuffer", "cudaLaunchDevice", "__cudaCDP2")
"""How the functions begin by which a kernel launches another one (CUDA C++ Programming Guide, "CUDA
Dynamic Parallelism", PTX), and as nvcc 13 names them."""


def call_parts(at: Instruction) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """What a ``call`` names: results, function (or a register), arguments."""
    texts = list(at.operands)
    results: tuple[str, ...] = ()
    if texts and texts[0].startswith("("):
        results = split_operands(texts.pop(0)[1:-1])
    if not texts:
        raise UnsupportedInstruction("the call names no function", at)
    name = texts.pop(0)
    arguments = split_operands(texts[0][1:-1]) if texts and texts[0].startswith("(") else ()
    return results, name, arguments


@dataclass
class _Inliner:
    module: Module
    functions: dict[str, Kernel]
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[Key, int] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: dict[Key, Key] = field(default_factory=dict)
    params: set[Key] = field(default_factory=set)
    statics: dict[tuple[str, Key], Key] = field(default_factory=dict)
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    calls: int = 0

    @functools.cached_property
    def pointed_at(self) -> list[Kernel]:
        """The functions that a pointer may lead to."""
        return list(pointed_at(self.module))

    def body(
        self, function: Kernel, scope: Scope, passed: set[str], stack: tuple[str, ...]
    ) -> None:
        """Append a function's body; `passed`: parameters that have memory already."""
        for variable in function.variables:
            key = (variable.name, scope + variable.scope)
            if variable.space == "param":
                self.params.add(key)
            if not variable.scope and variable.name in passed:
                continue
            if scope and variable.space in ("shared", "global", "const"):  # one for all calls
                first = self.statics.setdefault(
                    (function.name, (variable.name, variable.scope)), key
                )
                if first != key:
                    self.aliases[key] = first
                    continue
            self.variables.append(replace(variable, scope=key[1]))
        suffix = f"@{self.calls}" if scope else ""
        for label, targets in function.branch_targets.items():
            self.targets[label + suffix] = targets
            self.lists[label] = targets
        starts = []
        for each in function.instructions:
            starts.append(len(self.instructions))
            self._instruction(each, scope, suffix, stack)
        starts.append(len(self.instructions))
        for (label, inner), target in function.labels.items():
            self.labels[label, scope + inner] = starts[target]

    def _instruction(
        self, each: Instruction, scope: Scope, suffix: str, stack: tuple[str, ...]
    ) -> None:
        moved = replace(each, scope=scope + each.scope)
        base = each.opcode.split(".")[0]
        if base == "call":
            results, name, arguments = call_parts(each)
            if name.startswith(_DEVICE_LAUNCHES):
                why = "kernels that launch kernels (dynamic parallelism) are not modelled"
                raise UnsupportedInstruction(why, moved)
            if name in self.functions:
                self._call(moved, results, self.functions[name], arguments, stack)
                return
            if name.startswith("%"):
                self._call_by_address(moved, results, name, arguments, stack)
                return
        elif scope and base == "ret":
            moved = replace(moved, opcode="bra", operands=("$return",))
        elif scope and base == "brx":
            moved = replace(moved, operands=(each.operands[0], each.operands[1] + suffix))
        self.instructions.append(moved)

    def _call_by_address(
        self, at: Instruction, results: Sequence[str], pointer: str, arguments: Sequence[str],
        stack: tuple[str, ...],
    ) -> None:  # fmt: skip
        """Compare a pointer with each function's address; what is left is no function's."""
        addresses = function_addresses(self.module)
        listed = self.lists.get(at.operands[-1])
        sizes = [self._size(text, at.scope) for text in (*results, *arguments)]
        done, always = f"$called{len(self.instructions)}", replace(at, predicate="")
        if at.predicate:
            negated = at.predicate[1:] if at.predicate.startswith("!") else f"!{at.predicate}"
            self.instructions.append(replace(at, opcode="bra", operands=(done,), predicate=negated))
        for function in self.pointed_at:
            formals = [each.bytes for each in function.variables[: len(function.parameters)]]
            fits = len(formals) == len(sizes) and all(
                size in (None, formal) for size, formal in zip(sizes, formals, strict=True)
            )
            chosen = function.name in listed if listed else fits
            if not chosen or function.name in stack:
                continue
            other = f"%other{len(self.instructions)}"
            self.variables.append(Variable(other, "reg", "pred"))
            compared = (other, pointer, str(addresses[function.name]))
            self.instructions += [
                replace(always, opcode="setp.ne.u64", operands=compared),
                replace(at, opcode="bra", operands=(f"${other}",), predicate=other),
            ]
            self._call(always, results, function, arguments, stack)
            self.instructions.append(replace(always, opcode="bra", operands=(done,)))
            self.labels[f"${other}", at.scope] = len(self.instructions)
        self.instructions.append(always)
        self.labels[done, at.scope] = len(self.instructions)

    def _size(self, text: str, scope: Scope) -> int | None:
        """The bytes of an argument in parameter space; None of a register."""
        source = self._parameter(text, scope)
        sizes = (each.bytes for each in self.variables if (each.name, each.scope) == source)
        return next(sizes, None)

    def _call(
        self,
        at: Instruction,
        results: Sequence[str],
        function: Kernel,
        arguments: Sequence[str],
        stack: tuple[str, ...],
    ) -> None:
        if function.name in stack:
            way = " -> ".join((*stack[stack.index(function.name) :], function.name))
            why = f"recursive calls are not modelled ({way}): a loop with a stack of its own is"
            raise UnsupportedInstruction(why, at)
        if len(stack) > MAX_DEPTH or len(self.instructions) + self.calls > MAX_INLINED:
            why = f"calls are put in line: at most {MAX_DEPTH} deep, and {MAX_INLINED} instructions"
            raise UnsupportedInstruction(why, at)
        actual = [*results, *arguments]
        if len(actual) != len(function.parameters):
            raise UnsupportedInstruction(
                f"{len(actual)} results and arguments for the {len(function.parameters)} of"
                f" {function.name}",
                at,
            )
        self.calls += 1
        scope: Scope = (-self.calls,)
        formals = {variable.name: variable for variable in function.variables if not variable.scope}
        passed: set[str] = set()
        before, after = [], []
        for position, (name, text) in enumerate(zip(function.parameters, actual, strict=True)):
            formal = formals[name]
            source = self._parameter(text, at.scope) if formal.space == "param" else None
            if source is not None:
                self.aliases[name, scope] = source
                passed.add(name)
                continue
            # The formal parameter lives in the function's scope, what is passed in the caller's.
            alias = f"{name}@{self.calls}"
            memory = formal.space == "param"
            self.variables.append(replace(formal, name=alias))
            self.aliases[name, scope] = (alias, ())
            passed.add(name)
            inside = f"[{alias}]" if memory else alias
            if position < len(results):
                opcode = f"{'ld.param' if memory else 'mov'}.{formal.type}"
                after.append(replace(at, opcode=opcode, operands=(text, inside), predicate=""))
            else:
                opcode = f"{'st.param' if memory else 'mov'}.{formal.type}"
                before.append(replace(at, opcode=opcode, operands=(inside, text), predicate=""))
        skip = f"$skip{self.calls}"
        if at.predicate:
            negated = at.predicate[1:] if at.predicate.startswith("!") else f"!{at.predicate}"
            self.instructions.append(replace(at, opcode="bra", operands=(skip,), predicate=negated))
        self.instructions += before
        self.body(function, scope, passed, (*stack, function.name))
        self.labels["$return", scope] = len(self.instructions)
        self.instructions += after
        self.labels[skip, at.scope] = len(self.instructions)

    def _parameter(self, text: str, scope: Scope) -> Key | None:
        """The parameter-space variable of that name, in the innermost scope that has one."""
        for depth in range(len(scope), -1, -1):
            key = (text, scope[:depth])
            if key in self.params:
                return self.aliases.get(key, key)
        return None


def inline_calls(module: Module, kernel: Kernel) -> Inlined:
    """Inline the functions that a kernel calls. Raises UnsupportedInstruction: recursion, or
    arguments that do not fit the function."""
    functions = {each.name: each for each in module.kernels if not each.is_entry}
    if not any(each.opcode.split(".")[0] == "call" for each in kernel.instructions):
        return Inlined(kernel, {})
    inliner = _Inliner(module, functions)
    inliner.body(kernel, (), set(), (kernel.name,))
    flat = replace(
        kernel,
        instructions=tuple(inliner.instructions),
        labels=inliner.labels,
        variables=tuple(inliner.variables),
        branch_targets=inliner.targets,
    )
    return Inlined(flat, inliner.aliases)
