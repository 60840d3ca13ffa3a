"""What one thread of a PTX kernel executes, with numbers for its parameters and special registers.

`Tracer` runs the part of a kernel that branches and some chosen instructions depend on, and says
which of these are executed, in order, and what their operands are. Loads from global memory
give `contents`; what is not followed is unknown, and a branch on it ends the trace, unless its
ways meet again and only registers differ, which then are unknown. Waiting is over at once:
``mbarrier.try_wait`` is true. ``elect.sync`` chooses the first thread of a warp;
``shfl.sync.idx`` from lane 0 gives another thread what it gave that one, which was run before.

Shared memory holds what the thread has stored there, and what an earlier trace left: the threads of
a partition of a warp-specialized kernel read there which partition they are, and what it captures.
The n-th load of an address gets the n-th value that was stored there; what other threads store is
not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from triton_ext.hardware.architecture import CTA_ADDRESS_BITS, CTA_ADDRESS_MASK, WARP_THREADS
from triton_ext.integers import Number, on_numbers
from triton_ext.passes.verify_descriptors.running.launches import BASES, Bases
from triton_ext.passes.verify_descriptors.running.mlir_trace import contents
from triton_ext.passes.verify_descriptors.running.poison import (
    OF_SOME_LANES,
    OF_TENSORS,
    UNWRITTEN,
    Poison,
)
from triton_ext.passes.verify_descriptors.running.trace_end import End, Stopped, long
from triton_ext.passes.verify_descriptors.text.slices import Slicer
from triton_ext.ptx.folding import destinations
from triton_ext.ptx.integer_operations import integer_operation, is_float, opcode_width
from triton_ext.ptx.parse import Instruction, Kernel, Variable, immediate, split_operands

Registers: TypeAlias = "list[Number]"
Operand: TypeAlias = "Number | tuple[Operand, ...]"
"""A number, or what stands in brackets: ``[%rd1, {%r2, %r3}]`` is ((base, (c0, c1)))."""

_ALL_LANES = (1 << WARP_THREADS) - 1
_PARAMETERS = 1 << 28
_PARAMETER_SIZE = 1 << 12
"""Where parameters lie, for what computes with their addresses; apart from shared memory, at 0."""
_GENERIC = 1 << 60
"""What ``cvta.param`` adds to the address of a parameter."""
_REGISTER = re.compile(r"%[a-z]+\d+")
_TENSORS = ("mma.", "wgmma.", "tcgen05.ld", "ldmatrix")
_SHARED = ("ld.shared", "st.shared", "tcgen05.alloc", "shfl")
"""What may leave something for other threads, or depends on what they have left."""
_ENDS = ("ret", "exit", "trap")
_MAX_STEPS = 40_000
_MOST_BETWEEN = 200
"""Instructions between the ways of a branch on what is not known."""


@dataclass(frozen=True)
class ExecutedInstruction:
    """One execution of one of the chosen instructions.

    Attributes:
        instruction: the instruction.
        operands: their values, in order; None for what is not known.
    """

    instruction: Instruction
    operands: tuple[Operand, ...]


@dataclass
class ThreadTrace:
    """What a thread executes.

    Attributes:
        events: in order.
        accesses: the executions of what is observed: the instruction, its address (None if that is
            not known), and how many events came before. A condition that is not known counts as
            true.
        end: why there are no more.
        poison: the last instruction whose condition is no condition of the kernel's, and that.
    """

    poison: tuple[Instruction, Poison] | None = None
    events: list[ExecutedInstruction] = field(default_factory=list)
    accesses: list[tuple[Instruction, Operand, int]] = field(default_factory=list)
    end: End = field(default_factory=End)


@dataclass
class SharedMemory:
    """Bytes by address: all that were stored there, in order."""

    written: dict[int, list[Number]] = field(default_factory=dict)

    def store(self, address: int, size: int, value: Number) -> None:
        """A little-endian number of `size` bytes."""
        for i in range(size):
            byte = None if value is None else value >> 8 * i & 0xFF
            self.written.setdefault(address + i, []).append(byte)


class Tracer:
    """Runs a kernel for one thread after the other.

    Args:
        kernel: the whole.
        wanted: the instructions whose executions are recorded.
        given: numbers for special registers and parameters: ``{"%ctaid.x": 2, "[k_param_1]": 64}``.
        variables: those of the module; in shared memory they begin at `Bases.shared`.
        observed: pairs of an instruction and one of its operands, an address.
        operands: of wanted instructions of which only some operands are read, these operands, by
            the number of the instruction; the others are None.
    """

    def __init__(
        self,
        kernel: Kernel,
        wanted: Iterable[Instruction],
        given: Mapping[str, int],
        variables: Iterable[Variable] = (),
        observed: Iterable[tuple[Instruction, str]] = (),
        operands: Mapping[int, str] | None = None,
    ) -> None:
        chosen = list(wanted)
        addresses = {id(instruction): text for instruction, text in observed}
        addressed, seeds, stores = dict(operands or {}), [*chosen], []
        partly = {id(kernel.instructions[number]) for number in addressed}
        for number, each in enumerate(kernel.instructions):
            if id(each) in addresses:
                addressed[number] = addresses[id(each)]
            if each.opcode.startswith(("bra", "brx")):
                seeds.append(each)
            elif each.opcode.startswith("tcgen05.alloc") or _is_for_partitions(each):
                stores.append(each)
        slicer = Slicer(kernel)
        part = slicer.part(seeds, addressed)
        unobserved = (
            slicer.part(
                seeds,
                {i: text for i, text in addressed.items() if id(kernel.instructions[i]) in partly},
            )
            if observed
            else part
        )
        loads = any(each.opcode.startswith("ld.shared") for each in unobserved.instructions)
        if loads:
            stored = {id(each) for each in stores}
            whole = {
                number: text
                for number, text in addressed.items()
                if id(kernel.instructions[number]) not in stored
            }
            part = slicer.part(seeds + stores, whole)
        self.observed, self.partly = addresses, partly
        self.stores = {id(each) for each in stores} if loads else set()
        self.kernel, self.given = part, given
        self.wanted = {id(each) for each in chosen}
        self.bases, self.shared = Bases(), SharedMemory()
        self._memories = {self.bases: self.shared}
        self._symbols: dict[int, int] = {}
        self._loads: dict[int, int] = {}
        self._shuffled: dict[int, list[Number]] = {}
        self._told: dict[Bases, dict[int, list[Number]]] = {}
        self._shuffles: dict[int, int] = {}
        self._lane, self._keeps = 0, True
        self._elsewhere = {
            variable.name: variable.space for variable in (*variables, *part.variables)
        }
        self._scopes: dict[str, set[tuple[int, ...]]] = {}
        for variable in part.variables:
            self._scopes.setdefault(variable.name, set()).add(variable.scope)
        self._slots: dict[tuple[str, tuple[int, ...]], int] = {}
        self._initial: Registers = []
        self._steps: list[_Step | None] = [None] * len(part.instructions)
        self._meetings: dict[int, _Meeting | None] = {}
        self.registers: Registers = []

    def give(self, given: Mapping[str, int]) -> None:
        """Go on with other numbers given, and nothing stored."""
        changed = self.given.keys() | given.keys()
        self.given = given
        self._memories.clear()
        self._told.clear()
        for (text, _), slot in self._slots.items():
            if text in changed:
                self._initial[slot] = self._value_of(text)

    # ------------------------------------------------------------------------- operands

    def _slot(self, text: str, scope: tuple[int, ...]) -> int:
        """Where a register's or an immediate's value is kept."""
        if scope:
            declared = self._scopes.get(text, ())
            while scope and scope not in declared:
                scope = scope[:-1]
        key = text, scope
        if key not in self._slots:
            self._slots[key] = len(self._initial)
            value = self._value_of(text)
            self._initial.append(value)
            if self.registers:
                self.registers.append(value)
        return self._slots[key]

    def _value_of(self, text: str) -> Number:
        number = immediate(text)
        if number is not None:
            return number & ((1 << 64) - 1)
        if text in self.given:
            return self.given[text]
        if text in self.kernel.parameters:
            return _PARAMETERS + _PARAMETER_SIZE * self.kernel.parameters.index(text)
        symbol, plus, offset = text.partition("+")
        extra = immediate(offset.strip()) if plus else 0
        if self._elsewhere.get(symbol.strip()) == "shared" and extra is not None:
            self._symbols[self._slots[text, ()]] = extra
            return self.bases.shared + extra
        if text[:2] in ("0f", "0F", "0d", "0D"):
            tensors: Number = OF_TENSORS
            return tensors
        is_register = _REGISTER.fullmatch(text) or self._elsewhere.get(text) == "reg"
        unknown: Number = UNWRITTEN if is_register else None
        return unknown

    def _reader(self, text: str, scope: tuple[int, ...]) -> Callable[[Registers], Operand]:
        """A function that gives an operand's value: a register, an address, a list."""
        text = text.strip()
        if text[:1] in ("[", "{"):
            parts = [self._reader(part, scope) for part in split_operands(text[1:-1])]
            if text[0] == "[" and len(parts) == 1:
                return parts[0]
            return lambda registers: tuple(part(registers) for part in parts)
        base, plus, offset = text.partition("+")
        if plus and base.strip() not in self._elsewhere:
            slot, extra = self._slot(base.strip(), scope), immediate(offset.strip())

            def added(registers: Registers) -> Number:
                value = registers[slot]
                return None if value is None or extra is None else value + extra

            return added
        slot = self._slot(text, scope)
        return lambda registers: registers[slot]

    # ----------------------------------------------------------------------------- running

    def run(
        self, thread: int, limit: int, bases: Bases = BASES, *, stores: bool = True
    ) -> ThreadTrace:
        """What a thread executes.

        Args:
            thread: its number in the block. For another than the first one of its warp, that one
                must have been run last.
            limit: the most events.
            bases: where memory begins.
            stores: whether what it stores is kept for the threads that are run later.
        """
        trace = ThreadTrace()
        self._keeps, self.bases = stores, bases
        self.shared = self._memories.setdefault(bases, SharedMemory())
        for slot, extra in self._symbols.items():
            self._initial[slot] = bases.shared + extra
        self._loads, self._shuffles = {}, {}
        self._lane = thread % WARP_THREADS
        if not self._lane:
            self._told[bases] = {}
        self._shuffled = self._told.setdefault(bases, {})
        special = {"%tid.x": thread, "%laneid": thread % WARP_THREADS, "%tid.y": 0, "%tid.z": 0}
        for name, value in special.items():
            self._initial[self._slot(name, ())] = value
        self.registers = list(self._initial)
        registers, instructions = self.registers, self.kernel.instructions
        at, total = 0, len(instructions)
        try:
            for _ in range(_MAX_STEPS):
                if at >= total:
                    return trace
                step = self._steps[at] or self._prepared(at)
                guard = step.guard
                if guard is not None:
                    holds = registers[guard]
                    is_known = holds is not None and not isinstance(holds, Poison)
                    if not is_known and step.kind == "branch" and (met := self._meeting(at)):
                        for slot in met.targets:
                            registers[slot] = holds
                        at = met.at
                        continue
                    if isinstance(holds, Poison):
                        trace.poison = instructions[at], holds
                        holds = None
                    if holds is None and step.kind != "access":
                        if step.kind != "plain":
                            raise Stopped(f"the condition of PTX line {step.line} is not known")
                        for slot in step.targets:
                            registers[slot] = None
                        at += 1
                        continue
                    if holds is not None and bool(holds) == step.negated:
                        at += 1
                        continue
                kind = step.kind
                if kind == "plain":
                    assert step.run is not None
                    step.run(registers)
                    at += 1
                elif kind == "access":
                    address = step.readers[0](registers)
                    trace.accesses.append((instructions[at], address, len(trace.events)))
                    if step.run is not None:
                        step.run(registers)
                    at += 1
                elif kind == "event":
                    values = tuple(read(registers) for read in step.readers)
                    trace.events.append(ExecutedInstruction(instructions[at], values))
                    if step.run is not None:
                        step.run(registers)
                    if len(trace.events) >= limit:
                        trace.end = long("of them", f"PTX line {step.line}")
                        return trace
                    at += 1
                elif kind == "branch":
                    at = step.goes_to[0]
                elif kind == "end":
                    return trace
                else:  # brx.idx
                    index = step.readers[0](registers)
                    if not isinstance(index, int) or index >= len(step.goes_to):
                        raise Stopped(f"where PTX line {step.line} branches to is not known")
                    at = step.goes_to[index]
            line = instructions[min(at, total - 1)].line
            trace.end = long("instructions", f"PTX line {line}")
        except Stopped as reason:
            trace.end = reason.end
        return trace

    def _prepared(self, at: int) -> _Step:
        step = self._steps[at]
        if step is None:
            step = self._steps[at] = self._step(self.kernel.instructions[at])
        return step

    def _meeting(self, branch: int) -> _Meeting | None:
        """Where both ways of a branch meet, if only registers differ between them.

        Such is what libdevice does for rare elements. None if an instruction between them is
        recorded, or loads from shared memory or stores there, and if a way ends the kernel.
        """
        if branch not in self._meetings:
            ways, found = self._following(branch), None
            for at in self._reached(ways[:1])[0]:
                between, is_all = self._reached(ways, at)
                if is_all:
                    written = (slot for each in between for slot in self._prepared(each).targets)
                    found = _Meeting(at, frozenset(written))
                    break
            self._meetings[branch] = found
        return self._meetings[branch]

    def _reached(self, starts: Sequence[int], end: int = -1) -> tuple[list[int], bool]:
        """What may be executed from some instructions on until `end`, the nearest first; and
        whether that is all: nothing in it is more than registers."""
        found, is_all = [at for at in dict.fromkeys(starts) if at != end], True
        seen = {*found, end}
        for at in found:
            if at >= len(self._steps) or len(found) > _MOST_BETWEEN:
                return found, False
            is_shared = self.kernel.instructions[at].opcode.startswith(_SHARED)
            if self._prepared(at).kind not in ("plain", "branch") or is_shared:
                is_all = False
                continue
            following = [each for each in self._following(at) if each not in seen]
            found += following
            seen.update(following)
        return found, is_all

    def _following(self, at: int) -> list[int]:
        """What may be executed after an instruction, the next one first."""
        step = self._prepared(at)
        goes_on = step.kind != "branch" or step.guard is not None
        return [*([at + 1] if goes_on else []), *step.goes_to]

    def _step(self, instruction: Instruction) -> _Step:
        opcode, operands, scope = instruction.opcode, instruction.operands, instruction.scope
        base = opcode.partition(".")[0]
        guard = None
        if instruction.predicate:
            guard = self._slot(instruction.predicate.lstrip("!"), scope)
        negated = instruction.predicate.startswith("!")
        step = _Step("plain", guard, negated, instruction.line)
        if id(instruction) in self.wanted:
            step.kind = "event"
            is_partly = id(instruction) in self.partly
            step.readers = [
                _unread if is_partly and text[:1] == "{" else self._reader(text, scope)
                for text in operands
            ]
            step.targets = [self._slot(name, scope) for _, name in destinations(instruction)]
            if step.targets or opcode.startswith("tcgen05.alloc"):
                step.run = self._compiled(instruction, step.targets)
        elif id(instruction) in self.observed:
            step.kind = "access"
            step.readers = [self._reader(self.observed[id(instruction)], scope)]
            step.targets = [self._slot(name, scope) for _, name in destinations(instruction)]
            if step.targets or id(instruction) in self.stores:
                step.run = self._compiled(instruction, step.targets)
        elif base == "bra":
            step.kind = "branch"
            step.goes_to = self._targets((operands[-1],), instruction)
        elif base == "brx":
            step.kind = "choice"
            step.readers = [self._reader(operands[0], scope)]
            step.goes_to = self._targets(
                self.kernel.branch_targets.get(operands[-1], ()), instruction
            )
        elif opcode in _ENDS:
            step.kind = "end"
        else:
            step.targets = [self._slot(name, scope) for _, name in destinations(instruction)]
            step.run = self._compiled(instruction, step.targets)
        return step

    def _targets(self, labels: Iterable[str], instruction: Instruction) -> list[int]:
        found = [self.kernel.target(label, instruction.scope) for label in labels]
        return [len(self.kernel.instructions) if number is None else number for number in found]

    # ----------------------------------------------------------------- single instructions

    def _compiled(
        self, instruction: Instruction, targets: list[int]
    ) -> Callable[[Registers], None]:
        opcode, operands, scope = instruction.opcode, instruction.operands, instruction.scope
        base = opcode.partition(".")[0]
        if opcode.startswith("st.shared"):
            return self._store(instruction)
        if opcode.startswith("tcgen05.alloc"):
            return self._allocation(instruction)
        if opcode.startswith(("ld.shared", "ld.global")):
            return self._load(instruction, targets)
        if opcode.startswith("elect.sync"):
            return self._elected(targets, instruction)
        if "_wait" in opcode and base == "mbarrier":
            return _constants(dict.fromkeys(targets[:1], 1), targets)
        if not targets:
            return _nothing
        if base in ("mov", "cvta") and len(operands) == 2 and "{" in operands[0] + operands[1]:
            return self._packed(instruction, targets)
        if base == "ld" and ".param" in opcode and len(targets) == 1 and ".v" not in opcode:
            return _applied(targets, [self._slot(operands[1].replace(" ", ""), ())], lambda a: a)
        if base == "setp" and len(operands) == 4:
            return self._compared_and_combined(instruction, targets)
        if opcode.startswith("shfl.sync.idx"):
            return self._first_lane(instruction, targets)
        slots = [
            self._slot(text, scope) for text in operands[1:] if text[:1] not in ("[", "{", "!")
        ]
        operation = integer_operation(opcode)
        if opcode.startswith("cvta.param") and len(slots) == 1:
            return _applied(targets, slots, _generic)
        if base == "mapa" and len(slots) == 2:
            return _applied(targets, slots, _mapped)
        if (
            operation is None
            or (len(targets) > 1 and base != "setp")
            or not len(slots) == len(operands) - 1 == len(operation.source_widths)
        ):
            is_data = is_float(opcode) or opcode.startswith(_TENSORS)
            return _constants(dict.fromkeys(targets, OF_TENSORS) if is_data else {}, targets)
        function = on_numbers(operation)
        if operation.name == "select":
            return _applied(targets, slots, partial(_chosen, function))
        return _applied(targets, slots, function)

    def _elected(self, targets: list[int], instruction: Instruction) -> Callable[[Registers], None]:
        """``elect.sync`` of a whole warp."""
        is_whole = immediate(instruction.operands[-1]) in (-1, _ALL_LANES)

        def elect(registers: Registers) -> None:
            for slot in targets:
                registers[slot] = 0  # the lane that is elected
            registers[targets[-1]] = int(not self._lane) if is_whole else OF_SOME_LANES

        return elect

    def _first_lane(
        self, instruction: Instruction, targets: list[int]
    ) -> Callable[[Registers], None]:
        """``shfl.sync.idx`` of a whole warp from lane 0."""
        source, lane = (self._slot(text, instruction.scope) for text in instruction.operands[1:3])
        is_whole = immediate(instruction.operands[-1]) in (-1, _ALL_LANES)
        is_whole &= immediate(instruction.operands[3]) == WARP_THREADS - 1
        key = id(instruction)

        def run(registers: Registers) -> None:
            value = registers[source] if registers[lane] == 0 else None
            value = value if is_whole else OF_SOME_LANES
            for slot in targets:
                registers[slot] = None
            said = self._shuffled.setdefault(key, [])
            if not self._lane:
                said.append(value)
            else:
                at = self._shuffles.get(key, 0)
                self._shuffles[key] = at + 1
                value = said[at] if at < len(said) else None
            registers[targets[0]] = value

        return run

    def _compared_and_combined(
        self, instruction: Instruction, targets: list[int]
    ) -> Callable[[Registers], None]:
        """``setp.ne.and.b32 %p1, %r1, %r2, %p2``: a comparison, combined with a predicate."""
        base, comparison, combination, *types = instruction.opcode.split(".")
        compared = integer_operation(".".join((base, comparison, *types)))
        combined = integer_operation(f"{combination}.pred")
        if compared is None or combined is None or len(targets) != 1:
            return _constants({}, targets)
        left, right, last = instruction.operands[1:]
        slots = [self._slot(text.lstrip("!"), instruction.scope) for text in (left, right, last)]
        compare, combine, flips = on_numbers(compared), on_numbers(combined), last[:1] == "!"

        def run(registers: Registers) -> None:
            a, b, other = (registers[slot] for slot in slots)
            if flips and isinstance(other, int):
                other = 1 - other
            found = combine(compare(a, b), other)
            registers[targets[0]] = _unknown(registers, slots) if found is None else found

        return run

    def _packed(self, instruction: Instruction, targets: list[int]) -> Callable[[Registers], None]:
        """``mov.b64 %rd1, {%r1, %r2}``, and back."""
        target, origin = instruction.operands
        width = opcode_width(instruction.opcode)
        if target.startswith("{"):
            names = [name.strip() for name in target.strip("{}").split(",")]
            each = width // len(names)
            shifts = {
                self._slot(name, instruction.scope): each * i
                for i, name in enumerate(names)
                if name != "_"
            }
            source = self._slot(origin, instruction.scope)

            def unpack(registers: Registers) -> None:
                value = registers[source]
                for slot, shift in shifts.items():
                    registers[slot] = None if value is None else value >> shift & ((1 << each) - 1)

            return unpack
        sources = [self._slot(text, instruction.scope) for text in split_operands(origin[1:-1])]
        each = width // max(1, len(sources))

        def pack(registers: Registers) -> None:
            total = 0
            for i, slot in enumerate(sources):
                value = registers[slot]
                if value is None:
                    registers[targets[0]] = None
                    return
                total |= (value & ((1 << each) - 1)) << each * i
            registers[targets[0]] = total

        return pack

    def _store(self, instruction: Instruction) -> Callable[[Registers], None]:
        address, source = (self._reader(text, instruction.scope) for text in instruction.operands)
        size = opcode_width(instruction.opcode) // 8

        def store(registers: Registers) -> None:
            start, found = address(registers), source(registers)
            if isinstance(start, int) and self._keeps:
                values = found if isinstance(found, tuple) else (found,)
                for i, value in enumerate(values):
                    number = value if isinstance(value, int) else None
                    self.shared.store(start + i * size, size, number)

        return store

    def _allocation(self, instruction: Instruction) -> Callable[[Registers], None]:
        """``tcgen05.alloc``: where tensor memory begins."""
        address = self._reader(instruction.operands[0], instruction.scope)

        def allocate(registers: Registers) -> None:
            start = address(registers)
            if isinstance(start, int) and self._keeps:
                self.shared.store(start, 4, self.bases.tensor)

        return allocate

    def _load(self, instruction: Instruction, targets: list[int]) -> Callable[[Registers], None]:
        """From shared memory, or from global memory, which holds `contents`."""
        address = self._reader(instruction.operands[1], instruction.scope)
        size, is_named = opcode_width(instruction.opcode) // 8, _is_named(instruction.operands[1])
        is_global = instruction.opcode.startswith("ld.global")

        def load(registers: Registers) -> None:
            start = address(registers)
            for i, slot in enumerate(targets):
                if not isinstance(start, int):
                    registers[slot] = None
                elif is_global:
                    registers[slot] = contents(start + i * size, size)
                else:
                    registers[slot] = self._loaded(start + i * size, size, is_named)

        return load

    def _loaded(self, address: int, size: int, is_named: bool) -> Number:
        """A number; where the text names the address, the last one is loaded again and again."""
        count = self._loads.get(address, 0)
        self._loads[address] = count + 1
        total = 0
        for i in range(size):
            values = self.shared.written.get(address + i)
            last = len(values) - 1 if values else -1
            at = min(count, last) if is_named else count
            byte = values[at] if values and at <= last else None
            if byte is None:
                return None
            total |= byte << 8 * i
        return total


@dataclass
class _Step:
    """An instruction, prepared."""

    kind: str
    guard: int | None
    negated: bool
    line: int
    run: Callable[[Registers], None] | None = None
    targets: list[int] = field(default_factory=list)
    readers: list[Callable[[Registers], Operand]] = field(default_factory=list)
    goes_to: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Meeting:
    """The instruction at which the ways of a branch meet, and what may be written before."""

    at: int
    targets: frozenset[int]


def _is_for_partitions(instruction: Instruction) -> bool:
    """Whether it stores at an address that the text names: what other partitions load."""
    return instruction.opcode.startswith("st.shared") and _is_named(instruction.operands[0])


def _is_named(address: str) -> bool:
    """Whether the text itself, not a register, says where in shared memory something is."""
    return not address.startswith(("[%", "[ %"))


def _unread(registers: Registers) -> None:
    """An operand that is not read."""


def _nothing(registers: Registers) -> None:
    """An instruction that writes no register."""


def _constants(known: Mapping[int, int], targets: list[int]) -> Callable[[Registers], None]:
    def set_all(registers: Registers) -> None:
        for slot in targets:
            registers[slot] = known.get(slot)

    return set_all


def generic_address(index: int) -> int:
    """The generic address of a kernel's parameter."""
    return _PARAMETERS + _PARAMETER_SIZE * index + _GENERIC


def _generic(address: Number) -> Number:
    """``cvta.param``."""
    return None if address is None else address + _GENERIC


def _mapped(address: Number, rank: Number) -> Number:
    """``mapa``: the address in another CTA of the cluster."""
    if address is None or rank is None:
        return None
    return address & CTA_ADDRESS_MASK | rank << CTA_ADDRESS_BITS


def _applied(
    targets: list[int], slots: list[int], function: Callable[..., Number]
) -> Callable[[Registers], None]:
    """Write what a function makes of registers; of ``setp``'s second predicate, the opposite."""
    target = targets[0]
    if len(targets) == 2:

        def compare(registers: Registers) -> None:
            found = function(*[registers[slot] for slot in slots])
            if found is None:
                found = _unknown(registers, slots)
            registers[target] = found
            registers[targets[1]] = None if found is None else 1 - found

        return compare
    if len(slots) == 2:
        first, second = slots

        def binary(registers: Registers) -> None:
            found = function(registers[first], registers[second])
            registers[target] = _unknown(registers, slots) if found is None else found

        return binary

    def run(registers: Registers) -> None:
        found = function(*[registers[slot] for slot in slots])
        registers[target] = _unknown(registers, slots) if found is None else found

    return run


def _chosen(function: Callable[..., Number], a: Number, b: Number, choice: Number) -> Number:
    """``selp``."""
    return choice if isinstance(choice, Poison) else function(a, b, choice)


def _unknown(registers: Registers, slots: Sequence[int]) -> Number:
    """What is made of sources that are not all known: poison, if one of them is."""
    return next((value for slot in slots if isinstance(value := registers[slot], Poison)), None)
