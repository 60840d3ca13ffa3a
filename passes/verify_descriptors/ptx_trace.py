"""What one thread of a PTX kernel executes, with numbers in place of what the kernel is given.

`Tracer` runs the part of a kernel that branches and some chosen instructions depend on, and says
which of these are executed, in order, and what their operands are. Loads from global memory
give `contents`; what is not followed is unknown, and a branch on it ends the trace. Waiting
is over at once: ``mbarrier.try_wait`` is true. The thread is the first one of its warp, so
``elect.sync`` chooses it.

Shared memory holds what the thread has stored there, and what an earlier trace left: the threads of
a partition of a warp-specialized kernel read there which partition they are, and what it is given.
The n-th load of a place gets the n-th value that was stored there; what other threads store is not
known.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from triton_ext.passes.verify_descriptors.mlir_evaluation import contents
from triton_ext.passes.verify_descriptors.ptx_sums import slice_kernel
from triton_ext.ptx.folding import destinations
from triton_ext.ptx.parse import Instruction, Kernel, Variable, immediate, split_operands

Number: TypeAlias = "int | None"
Registers: TypeAlias = "list[Number]"
Operand: TypeAlias = "Number | tuple[Operand, ...]"
"""A number, or what stands in brackets: ``[%rd1, {%r2, %r3}]`` is ((base, (c0, c1)))."""

_PARAMETERS = 1 << 28
_PARAMETER_SIZE = 1 << 12
"""Where parameters lie, for what computes with their addresses; apart from shared memory, at 0."""
_ENDS = ("ret", "exit", "trap")
_WIDTH = re.compile(r"\.[usb](8|16|32|64)\b")
_MAX_STEPS = 20_000


@dataclass(frozen=True)
class Executed:
    """One execution of one of the chosen instructions.

    Attributes:
        instruction: which.
        operands: their values, in order; None for what is not known.
    """

    instruction: Instruction
    operands: tuple[Operand, ...]


@dataclass
class Trace:
    """What a thread executes.

    Attributes:
        events: in order.
        accesses: the executions of what is observed: the instruction, its address (None if that is
            not known), and how many events came before. A condition that is not known counts as
            true.
        end: why there are no more: "" if the thread ends, else in words.
    """

    events: list[Executed] = field(default_factory=list)
    accesses: list[tuple[Instruction, Operand, int]] = field(default_factory=list)
    end: str = ""


@dataclass
class SharedMemory:
    """Bytes by address: all that were stored there, in order."""

    written: dict[int, list[Number]] = field(default_factory=dict)

    def store(self, address: int, size: int, value: Number) -> None:
        """A little-endian number of `size` bytes."""
        for i in range(size):
            byte = None if value is None else value >> 8 * i & 0xFF
            self.written.setdefault(address + i, []).append(byte)


@lru_cache(maxsize=4096)
def _width(opcode: str) -> int:
    found = _WIDTH.findall(opcode)
    return int(found[0]) if found else 1 if ".pred" in opcode else 32


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


class _Unknown(Exception):
    """The trace cannot go on; says why."""


class Tracer:
    """Runs a kernel for one thread after the other.

    Args:
        kernel: to run.
        wanted: the instructions whose executions are recorded.
        observed: pairs of an instruction and one of its operands, an address.
        operands: the numbers of wanted instructions of which only some operands are read, and
            these; others are None.
        given: numbers for special registers and parameters: ``{"%ctaid.x": 2, "[k_param_1]": 64}``.
        variables: of the module: those in shared memory begin at 0.
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
            elif each.opcode.startswith("tcgen05.alloc") or _is_handed_on(each):
                stores.append(each)
        part = slice_kernel(kernel, seeds, addressed)
        loads = any(
            each.opcode.startswith("ld.shared") and id(each) not in addresses
            for each in part.instructions
        )
        if loads:
            handed = {id(each) for each in stores}
            whole = {
                number: text
                for number, text in addressed.items()
                if id(kernel.instructions[number]) not in handed
            }
            part = slice_kernel(kernel, seeds + stores, whole)
        self.observed, self.partly = addresses, partly
        self.stores = {id(each) for each in stores} if loads else set()
        self.kernel, self.given = part, given
        self.wanted = {id(each) for each in chosen}
        self.shared = SharedMemory()
        self._loads: dict[int, int] = {}
        self._elsewhere = {
            variable.name: variable.space for variable in (*variables, *part.variables)
        }
        self._scopes: dict[str, set[tuple[int, ...]]] = {}
        for variable in part.variables:
            self._scopes.setdefault(variable.name, set()).add(variable.scope)
        self._slots: dict[tuple[str, tuple[int, ...]], int] = {}
        self._initial: Registers = []
        self._steps: list[_Step | None] = [None] * len(part.instructions)
        self.registers: Registers = []

    def with_given(self, given: Mapping[str, int]) -> Tracer:
        """The same, with other numbers given."""
        other = copy.copy(self)
        other.given = given
        other.shared, other._loads = SharedMemory(), {}
        other._slots, other._initial, other.registers = {}, [], []
        other._steps = [None] * len(self.kernel.instructions)
        return other

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
            return extra
        return None

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

    def run(self, thread: int, limit: int) -> Trace:
        """What a thread executes.

        Args:
            thread: of the block; the first one of a warp.
            limit: of events.
        """
        trace = Trace()
        self._loads = {}
        special = {"%tid.x": thread, "%laneid": thread % 32, "%tid.y": 0, "%tid.z": 0}
        for name, value in special.items():
            self._initial[self._slot(name, ())] = value
        self.registers = list(self._initial)
        registers, instructions = self.registers, self.kernel.instructions
        at, steps, total = 0, self._steps, len(instructions)
        try:
            for _ in range(_MAX_STEPS):
                if at >= total:
                    return trace
                step = steps[at]
                if step is None:
                    step = steps[at] = self._step(instructions[at])
                guard = step.guard
                if guard is not None:
                    holds = registers[guard]
                    if holds is None and step.kind != "access":
                        if step.kind != "plain":
                            raise _Unknown(f"the condition of PTX line {step.line} is not known")
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
                    trace.events.append(Executed(instructions[at], values))
                    if len(trace.events) >= limit:
                        trace.end = "after enough of them"
                        return trace
                    at += 1
                elif kind == "branch":
                    at = step.goes_to[0]
                elif kind == "end":
                    return trace
                else:  # brx.idx
                    index = step.readers[0](registers)
                    if not isinstance(index, int) or index >= len(step.goes_to):
                        raise _Unknown(f"where PTX line {step.line} branches to is not known")
                    at = step.goes_to[index]
            trace.end = "after enough instructions"
        except _Unknown as reason:
            trace.end = str(reason)
        return trace

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
        if opcode.startswith("ld.shared"):
            return self._load(instruction, targets)
        if opcode.startswith("ld.global"):
            return self._global_load(instruction, targets)
        if opcode.startswith("elect.sync"):
            return _constants(dict(zip(targets[-1:], (1,), strict=False)), targets)
        if "_wait" in opcode and base == "mbarrier":
            return _constants(dict.fromkeys(targets[:1], 1), targets)
        if not targets:
            return _nothing
        if base in ("mov", "cvta") and len(operands) == 2 and "{" in operands[0] + operands[1]:
            return self._packed(instruction, targets)
        if base == "ld" and ".param" in opcode and len(targets) == 1 and ".v" not in opcode:
            return _unary(targets[0], self._slot(operands[1].replace(" ", ""), ()), lambda a: a)
        if opcode.startswith("shfl.sync.idx"):
            return self._first_lane(instruction, targets)
        function = _arithmetic(opcode, len(operands))
        if (
            function is None
            or (len(targets) > 1 and base != "setp")
            or any(text[:1] in ("[", "{", "!") for text in operands[1:])
        ):
            return _constants({}, targets)
        slots = [self._slot(text, scope) for text in operands[1:]]
        if base == "setp" and len(targets) == 2:
            return _comparison(targets, slots, function)
        return _applied(targets[0], slots, function)

    def _first_lane(
        self, instruction: Instruction, targets: list[int]
    ) -> Callable[[Registers], None]:
        """``shfl.sync.idx`` from lane 0, which this thread is."""
        source, lane = (self._slot(text, instruction.scope) for text in instruction.operands[1:3])

        def run(registers: Registers) -> None:
            value = registers[source] if registers[lane] == 0 else None
            for slot in targets:
                registers[slot] = None
            registers[targets[0]] = value

        return run

    def _packed(self, instruction: Instruction, targets: list[int]) -> Callable[[Registers], None]:
        """``mov.b64 %rd1, {%r1, %r2}``, and back."""
        target, origin = instruction.operands
        width = _width(instruction.opcode)
        if target.startswith("{"):
            names = [name.strip() for name in target.strip("{}").split(",")]
            each = width // len(names)
            places = {
                self._slot(name, instruction.scope): each * i
                for i, name in enumerate(names)
                if name != "_"
            }
            source = self._slot(origin, instruction.scope)

            def unpack(registers: Registers) -> None:
                value = registers[source]
                for slot, shift in places.items():
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
        size = _width(instruction.opcode) // 8

        def store(registers: Registers) -> None:
            place, found = address(registers), source(registers)
            if isinstance(place, int):
                values = found if isinstance(found, tuple) else (found,)
                for i, value in enumerate(values):
                    number = value if isinstance(value, int) else None
                    self.shared.store(place + i * size, size, number)

        return store

    def _allocation(self, instruction: Instruction) -> Callable[[Registers], None]:
        """``tcgen05.alloc``: tensor memory begins at 0."""
        address = self._reader(instruction.operands[0], instruction.scope)

        def allocate(registers: Registers) -> None:
            place = address(registers)
            if isinstance(place, int):
                self.shared.store(place, 4, 0)

        return allocate

    def _load(self, instruction: Instruction, targets: list[int]) -> Callable[[Registers], None]:
        address = self._reader(instruction.operands[1], instruction.scope)
        size, is_named = _width(instruction.opcode) // 8, _is_named(instruction.operands[1])

        def load(registers: Registers) -> None:
            place = address(registers)
            for i, slot in enumerate(targets):
                registers[slot] = (
                    self._loaded(place + i * size, size, is_named)
                    if isinstance(place, int)
                    else None
                )

        return load

    def _global_load(
        self, instruction: Instruction, targets: list[int]
    ) -> Callable[[Registers], None]:
        address = self._reader(instruction.operands[1], instruction.scope)
        size = max(1, _width(instruction.opcode) // 8)

        def load(registers: Registers) -> None:
            place = address(registers)
            for i, slot in enumerate(targets):
                registers[slot] = (
                    contents(place + i * size, size) if isinstance(place, int) else None
                )

        return load

    def _loaded(self, place: int, size: int, is_named: bool) -> Number:
        """A number; a place that the text names keeps the last one that is stored there."""
        count = self._loads.get(place, 0)
        self._loads[place] = count + 1
        total = 0
        for i in range(size):
            stored = self.shared.written.get(place + i)
            last = len(stored) - 1 if stored else -1
            at = min(count, last) if is_named else count
            byte = stored[at] if stored and at <= last else None
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


def _is_handed_on(instruction: Instruction) -> bool:
    """Whether it stores at a place that the text names: what partitions are told."""
    if not instruction.opcode.startswith("st.shared"):
        return False
    return _is_named(instruction.operands[0])


def _is_named(address: str) -> bool:
    """Whether the text says where in shared memory something is."""
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


def _unary(target: int, slot: int, function: Callable[..., Number]) -> Callable[[Registers], None]:
    def run(registers: Registers) -> None:
        value = registers[slot]
        registers[target] = None if value is None else function(value)

    return run


def _applied(
    target: int, slots: list[int], function: Callable[..., Number]
) -> Callable[[Registers], None]:
    if len(slots) == 1:
        return _unary(target, slots[0], function)
    if len(slots) == 2:
        first, second = slots

        def binary(registers: Registers) -> None:
            registers[target] = function(registers[first], registers[second])

        return binary

    def run(registers: Registers) -> None:
        registers[target] = function(*[registers[slot] for slot in slots])

    return run


def _comparison(
    targets: list[int], slots: list[int], function: Callable[..., Number]
) -> Callable[[Registers], None]:
    """``setp`` with a second predicate: the opposite."""

    def run(registers: Registers) -> None:
        found = function(*[registers[slot] for slot in slots])
        registers[targets[0]] = found
        registers[targets[1]] = None if found is None else 1 - found

    return run


# ------------------------------------------------------------------------------- arithmetic


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "lo": lambda a, b: a < b, "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b, "hs": lambda a, b: a >= b,
}  # fmt: skip


@lru_cache(maxsize=1024)
def _arithmetic(opcode: str, operands: int) -> Callable[..., Number] | None:
    """What an instruction makes of its sources' values; None for one that is not followed."""
    if re.search(r"\.(?:f16|f32|f64|bf16|f16x2|bf16x2|tf32|e4m3|e5m2)", opcode):
        return None
    parts = opcode.split(".")
    base, width = parts[0], _width(opcode)
    mask = (1 << width) - 1
    is_signed = bool(re.search(r"\.s(8|16|32|64)", opcode))

    def number(value: int) -> int:
        return _signed(value & mask, width) if is_signed else value & mask

    def known(function: Callable[..., int | None]) -> Callable[..., Number]:
        return _masked(function, mask)

    if base in ("mov", "cvta") and operands == 2:
        return lambda a: a & mask
    simple: dict[str, Callable[..., int | None]] = {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "neg": lambda a: -a,
        "not": lambda a: ~a,
        "xor": lambda a, b: a ^ b,
        "abs": lambda a: abs(number(a)),
        "min": lambda a, b: min(number(a), number(b)),
        "max": lambda a, b: max(number(a), number(b)),
        "shl": lambda a, b: a << min(b & 0xFFFFFFFF, width),
        "shr": lambda a, b: number(a) >> min(b & 0xFFFFFFFF, width),
        "div": lambda a, b: _divided(number(a), number(b))[0],
        "rem": lambda a, b: _divided(number(a), number(b))[1],
        "mapa": lambda a, b: a & ((1 << 24) - 1) | b << 24,
    }
    if base in ("and", "or"):
        return _bitwise(base, mask)
    if base in simple and ".cc" not in opcode:
        return known(simple[base])
    if base in ("mul", "mad"):
        wide = 2 * width if "wide" in parts else width
        return _masked(_product(parts, width, number), (1 << wide) - 1)
    if base == "cvt":
        return _conversion(opcode)
    if base == "selp":
        return _selected(mask)
    if base == "setp":
        return _compared(parts, width, number)
    if base == "bfe":
        return known(_extracted_signed(width) if is_signed else _extracted)
    if base == "bfi":
        return known(_inserted)
    if base == "lop3":
        return known(_table)
    if base == "prmt" and len(parts) == 2:
        return known(_permuted)
    return None


def _masked(function: Callable[..., int | None], mask: int) -> Callable[..., Number]:
    """Of numbers that are all known; so many bits of the result."""

    def run(*values: Number) -> Number:
        if None in values:
            return None
        found = function(*values)
        return None if found is None else found & mask

    return run


def _divided(a: int, b: int) -> tuple[int | None, int | None]:
    """Quotient and remainder, towards zero."""
    if not b:
        return None, None
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


def _bitwise(base: str, mask: int) -> Callable[..., Number]:
    """``and``, ``or``: one operand may be enough."""

    def run(a: Number, b: Number) -> Number:
        if a is not None and b is not None:
            return (a & b if base == "and" else a | b) & mask
        decisive = 0 if base == "and" else mask
        for value in (a, b):
            if value is not None and value & mask == decisive:
                return decisive
        return None

    return run


def _product(
    parts: list[str], width: int, number: Callable[[int], int]
) -> Callable[..., int | None]:
    high = "hi" in parts

    def run(a: int, b: int, c: int = 0) -> int:
        product = number(a) * number(b)
        return (product >> width if high else product) + c

    return run


def _conversion(opcode: str) -> Callable[..., Number] | None:
    widths = [int(width) for width in _WIDTH.findall(opcode)]
    if len(widths) != 2:
        return None
    to, of = widths
    is_signed = opcode.endswith(f".s{of}")

    def run(a: int) -> int:
        value = a & ((1 << of) - 1)
        return (_signed(value, of) if is_signed else value) & ((1 << to) - 1)

    return run


def _selected(mask: int) -> Callable[..., Number]:
    def run(a: Number, b: Number, choice: Number) -> Number:
        if choice is None:
            return a if a == b else None
        found = a if choice else b
        return None if found is None else found & mask

    return run


def _compared(
    parts: list[str], width: int, number: Callable[[int], int]
) -> Callable[..., Number] | None:
    if len(parts) != 3 or parts[1] not in _COMPARISONS:
        return None
    compare = _COMPARISONS[parts[1]]

    def run(a: Number, b: Number) -> Number:
        return None if a is None or b is None else int(compare(number(a), number(b)))

    return run


def _extracted(a: int, start: int, length: int) -> int:
    return a >> (start & 0xFF) & ((1 << (length & 0xFF)) - 1)


def _extracted_signed(width: int) -> Callable[[int, int, int], int]:
    def run(a: int, start: int, length: int) -> int:
        if not length & 0xFF:
            return 0
        length = min(length & 0xFF, max(1, width - (start & 0xFF)))
        return _signed(_extracted(_signed(a & ((1 << width) - 1), width), start, length), length)

    return run


def _inserted(field_: int, into: int, start: int, length: int) -> int:
    mask = ((1 << (length & 0xFF)) - 1) << (start & 0xFF)
    return into & ~mask | field_ << (start & 0xFF) & mask


def _table(a: int, b: int, c: int, table: int) -> int:
    found = 0
    for row in range(8):
        if table >> row & 1:
            found |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
    return found


def _permuted(a: int, b: int, selector: int) -> int:
    whole = (a & 0xFFFFFFFF) | (b & 0xFFFFFFFF) << 32
    found = 0
    for i in range(4):
        nibble = selector >> 4 * i & 0xF
        byte = whole >> 8 * (nibble & 7) & 0xFF
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        found |= byte << 8 * i
    return found


__all__ = ["Executed", "SharedMemory", "Trace", "Tracer"]
