"""Single instructions of a PTX kernel, as functions over the registers of the thread that runs.

Loads from global memory give `contents`. Waiting is over at once: ``mbarrier.try_wait`` is true.
``elect.sync`` chooses the first thread of a warp; ``shfl.sync.idx`` from lane 0 gives another
thread what it gave that one, which was run before.

Shared memory holds what the thread has stored there, and what an earlier trace left: the threads of
a partition of a warp-specialized kernel read there which partition they are, and what it captures.
The n-th load of an address gets the n-th value that was stored there; what other threads store is
not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.integers import Number, on_numbers
from triton_ext.passes.verify_descriptors.running.launches import Bases
from triton_ext.passes.verify_descriptors.running.mlir_trace import contents
from triton_ext.passes.verify_descriptors.running.poison import (
    NO_PARAMETER,
    OF_SOME_LANES,
    OF_TENSORS,
    UNWRITTEN,
)
from triton_ext.passes.verify_descriptors.running.register_functions import (
    PARAMETER_SIZE,
    PARAMETERS,
    Function,
    Registers,
    applied,
    chosen,
    constants,
    generic,
    mapped,
    nothing,
    of_numbers,
    unknown,
)
from triton_ext.passes.verify_descriptors.running.thread_trace import Operand
from triton_ext.passes.verify_descriptors.running.trace_end import Stopped, Why
from triton_ext.ptx.integer_operations import integer_operation, is_float, opcode_width
from triton_ext.ptx.parse import Instruction, Kernel, Variable, immediate, split_operands

_ALL_LANES = (1 << WARP_THREADS) - 1
_REGISTER = re.compile(r"%[a-z]+\d+")
_TENSORS = ("mma.", "wgmma.", "tcgen05.ld", "ldmatrix")


@dataclass
class SharedMemory:
    """Bytes by address: all that were stored there, in order.

    Attributes:
        is_cut_off: whether the first thread, which stores what partitions read, would store more.
    """

    written: dict[int, list[Number]] = field(default_factory=dict)
    is_cut_off: bool = False

    def store(self, address: int, size: int, value: Number) -> None:
        """A little-endian number of `size` bytes."""
        for i in range(size):
            byte = None if value is None else value >> 8 * i & 0xFF
            self.written.setdefault(address + i, []).append(byte)


@dataclass
class RunningThread:
    """The thread that is run.

    Attributes:
        lane: its number in its warp.
        keeps: whether what it stores is kept for the threads that are run later.
        elections: each ``elect.sync`` that it has executed.
        shuffled: what the warp's first thread has given, by the `id` of a shuffle, in order.
        shuffles: how often the thread has executed each of these.
        loads: how often it has loaded from each address of shared memory.
    """

    lane: int = 0
    keeps: bool = True
    elections: list[Instruction] = field(default_factory=list)
    shuffled: dict[int, list[Number]] = field(default_factory=dict)
    shuffles: dict[int, int] = field(default_factory=dict)
    loads: dict[int, int] = field(default_factory=dict)


def names_address(address: str) -> bool:
    """Whether the text itself, not a register, says where in shared memory something is."""
    return not address.startswith(("[%", "[ %"))


def _truth(text: str) -> str:
    """An operand of type ``.pred``, of which any number but 0 is true.

    Source: PTX ISA, "Predicate Constants".
    """
    number = immediate(text)
    return text if number is None else str(int(number != 0))


class Steps:
    """The operands and the plain instructions of a kernel.

    Args:
        given: numbers for special registers and parameters: ``{"%ctaid.x": 2, "[k_param_1]": 64}``.
        variables: those of the module; in shared memory they begin at `Bases.shared`.
    """

    def __init__(
        self, kernel: Kernel, given: Mapping[str, int], variables: Iterable[Variable] = ()
    ) -> None:
        self.kernel, self.given = kernel, given
        self.bases, self.shared = Bases(), SharedMemory()
        self.registers: Registers = []
        self._initial: Registers = []
        self._slots: dict[tuple[str, tuple[int, ...]], int] = {}
        self._symbols: dict[int, int] = {}
        self._elsewhere = {
            variable.name: variable.space for variable in (*variables, *kernel.variables)
        }
        self._scopes: dict[str, set[tuple[int, ...]]] = {}
        for variable in kernel.variables:
            self._scopes.setdefault(variable.name, set()).add(variable.scope)
        self._thread = RunningThread()

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
            return PARAMETERS + PARAMETER_SIZE * self.kernel.parameters.index(text)
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

    # ----------------------------------------------------------------- single instructions

    def _compiled(self, instruction: Instruction, targets: list[int]) -> Function:
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
            return constants(dict.fromkeys(targets[:1], 1), targets)
        if not targets:
            return nothing
        if base in ("mov", "cvta") and len(operands) == 2 and "{" in operands[0] + operands[1]:
            return self._packed(instruction, targets)
        if base == "ld" and ".param" in opcode and len(targets) == 1 and ".v" not in opcode:
            return applied(targets, [self._slot(operands[1].replace(" ", ""), ())], lambda a: a)
        if base == "ld" and ".param" not in opcode and operands[1][1:-1] in self.kernel.parameters:
            return constants(dict.fromkeys(targets, NO_PARAMETER), targets)
        if base == "setp" and len(operands) == 4:
            return self._compared_and_combined(instruction, targets)
        if opcode.startswith("shfl.sync.idx"):
            return self._first_lane(instruction, targets)
        sources = [_truth(text) if opcode.endswith(".pred") else text for text in operands[1:]]
        slots = [self._slot(text, scope) for text in sources if text[:1] not in ("[", "{", "!")]
        operation = integer_operation(opcode)
        if opcode.startswith("cvta.param") and len(slots) == 1:
            return applied(targets, slots, generic)
        if base == "mapa" and len(slots) == 2:
            return applied(targets, slots, mapped)
        if (
            operation is None
            or (len(targets) > 1 and base != "setp")
            or not len(slots) == len(operands) - 1 == len(operation.source_widths)
        ):
            is_data = is_float(opcode) or opcode.startswith(_TENSORS)
            return constants(dict.fromkeys(targets, OF_TENSORS) if is_data else {}, targets)
        function = on_numbers(operation)
        if operation.name == "select":
            return applied(targets, slots, partial(chosen, function))
        if operation.name in ("min", "max"):
            return applied(targets, slots, partial(of_numbers, function))
        return applied(targets, slots, function)

    def _elected(self, targets: list[int], instruction: Instruction) -> Function:
        """``elect.sync`` of a whole warp."""
        is_whole = immediate(instruction.operands[-1]) in (-1, _ALL_LANES)

        def elect(registers: Registers) -> None:
            self._thread.elections.append(instruction)
            for slot in targets:
                registers[slot] = 0  # the lane that is elected
            registers[targets[-1]] = int(not self._thread.lane) if is_whole else OF_SOME_LANES

        return elect

    def _first_lane(self, instruction: Instruction, targets: list[int]) -> Function:
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
            said = self._thread.shuffled.setdefault(key, [])
            if not self._thread.lane:
                said.append(value)
            else:
                at = self._thread.shuffles.get(key, 0)
                self._thread.shuffles[key] = at + 1
                value = said[at] if at < len(said) else None
            registers[targets[0]] = value

        return run

    def _compared_and_combined(self, instruction: Instruction, targets: list[int]) -> Function:
        """``setp.ne.and.b32 %p1, %r1, %r2, %p2``: a comparison, combined with a predicate."""
        base, comparison, combination, *types = instruction.opcode.split(".")
        compared = integer_operation(".".join((base, comparison, *types)))
        combined = integer_operation(f"{combination}.pred")
        if compared is None or combined is None or len(targets) != 1:
            return constants({}, targets)
        left, right, last = instruction.operands[1:]
        slots = [self._slot(text.lstrip("!"), instruction.scope) for text in (left, right, last)]
        compare, combine, flips = on_numbers(compared), on_numbers(combined), last[:1] == "!"

        def run(registers: Registers) -> None:
            a, b, other = (registers[slot] for slot in slots)
            if flips and isinstance(other, int):
                other = 1 - other
            found = combine(compare(a, b), other)
            registers[targets[0]] = unknown(registers, slots) if found is None else found

        return run

    def _packed(self, instruction: Instruction, targets: list[int]) -> Function:
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

    def _store(self, instruction: Instruction) -> Function:
        address, source = (self._reader(text, instruction.scope) for text in instruction.operands)
        size = opcode_width(instruction.opcode) // 8

        def store(registers: Registers) -> None:
            start, found = address(registers), source(registers)
            if isinstance(start, int) and self._thread.keeps:
                values = found if isinstance(found, tuple) else (found,)
                for i, value in enumerate(values):
                    number = value if isinstance(value, int) else None
                    self.shared.store(start + i * size, size, number)

        return store

    def _allocation(self, instruction: Instruction) -> Function:
        """``tcgen05.alloc``: where tensor memory begins."""
        address = self._reader(instruction.operands[0], instruction.scope)

        def allocate(registers: Registers) -> None:
            start = address(registers)
            if isinstance(start, int) and self._thread.keeps:
                self.shared.store(start, 4, self.bases.tensor)

        return allocate

    def _load(self, instruction: Instruction, targets: list[int]) -> Function:
        """From shared memory, or from global memory, which holds `contents`."""
        address = self._reader(instruction.operands[1], instruction.scope)
        size = opcode_width(instruction.opcode) // 8
        is_named = names_address(instruction.operands[1])
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
        """A number; where the text names the address, the last one is loaded again and again.
        Raises Stopped: it is what the first thread would store, were its trace longer."""
        count = self._thread.loads.get(address, 0)
        self._thread.loads[address] = count + 1
        total = 0
        for i in range(size):
            values = self.shared.written.get(address + i)
            last = len(values) - 1 if values else -1
            at = min(count, last) if is_named else count
            if values and at > last and self.shared.is_cut_off:
                raise Stopped("after enough of them in the first thread", Why.LONG)
            byte = values[at] if values and at <= last else None
            if byte is None:
                return None
            total |= byte << 8 * i
        return total
