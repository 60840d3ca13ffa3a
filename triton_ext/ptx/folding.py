"""What of a kernel's registers is known without running it.

`Folder` evaluates registers as far as constants reach, bit by bit: a descriptor whose address part
comes from a loop counter still has all of its other fields.
"""

from __future__ import annotations

from collections.abc import Iterable

from triton_ext.hardware.architecture import CTA_ADDRESS_BITS
from triton_ext.integers import evaluate, signed
from triton_ext.ptx.control_flow import blocks_in_order
from triton_ext.ptx.definitions import Definitions, Key, split_address
from triton_ext.ptx.integer_operations import integer_operation, is_float, opcode_width
from triton_ext.ptx.known_bits import KNOWN_BITS, Bits, add, agreed, complement, joined
from triton_ext.ptx.parse import Instruction, Kernel, Variable, split_operands
from triton_ext.ptx.states import ALL_UNKNOWN, State, States, Value, bounded, held, merged

_MAX_COPIES = 4_000_000  # entries of states: real kernels need a thousandth


class Folder:
    """What is known of registers, for the first thread of the first block, the first time through.

    The first time through a loop, that is: control flow is followed forward, and where paths meet,
    what they agree on is known. Each symbol of shared memory, such as the start of dynamic shared
    memory, is taken as 0: shared addresses are relative to it. Loads and parameters are unknown.

    Args:
        kernel: the kernel.
        variables: those of the module; symbols of other state spaces than shared are unknown.
    """

    def __init__(self, kernel: Kernel, variables: Iterable[Variable] = ()) -> None:
        self.kernel = kernel
        self._registers = Definitions(kernel, variables)
        self._numbers = {instruction: i for i, instruction in enumerate(kernel.instructions)}
        self._known: dict[Key, Value] = {}
        self._states = States()
        self._collected: list[set[str]] = []
        self._state: State | None = None
        self._follow()

    def _follow(self) -> None:
        """Evaluate each instruction, the first time through."""
        exits: list[State] = []
        budget = _MAX_COPIES
        for block in blocks_in_order(self.kernel):
            states = [exits[i] for i in block.before]
            state = states[0] if states else {}
            if block.is_irregular:
                state = ALL_UNKNOWN
            elif any(other is not state for other in states):
                budget -= sum(map(len, states))
                state = merged(states) if budget > 0 else ALL_UNKNOWN
            self._states.entries[block.start] = self._state = state
            writes = self._states.writes[block.start] = {}
            for number in range(block.start, block.stop):
                for key, value in self._results(number):
                    if key not in self._registers.reassigned:
                        self._known[key] = value
                        continue
                    if self._state is state:
                        budget -= len(state)
                        self._state = dict(state if budget > 0 else ALL_UNKNOWN)
                    self._state[key] = value
                    self._states.first.setdefault(key, value)
                    writes.setdefault(key, []).append((number, value))
            exits.append(self._state)
        self._state = None

    def _results(self, number: int) -> list[tuple[Key, Value]]:
        """What an instruction writes."""
        instruction = self.kernel.instructions[number]
        results: list[tuple[Key, Value]] = []
        for index, key in self._registers.written[number]:
            self._collected.append({key[0]} if key in self._registers.reassigned else set())
            bits = self._evaluate(instruction, index)
            origins = self._collected.pop()
            old = held(self._state, key) if self._state else None
            if instruction.predicate and old is not None:
                executed = self.operand(instruction.predicate, 1, instruction).field(0, 1)
                if executed != 1:
                    bits = old[0] if executed == 0 else agreed(bits, old[0])
                    origins |= old[1]
            results.append((key, (bits, bounded(origins))))
        return results

    def _read(self, key: Key, at: Instruction | None) -> Bits:
        """What a register holds at an instruction."""
        if key not in self._registers.reassigned:
            value = self._known.get(key)
        elif self._state is not None:
            value = self._state.get(key)
        elif at in self._numbers:
            value = self._states.before(key, self._numbers[at])
        else:
            value = self._states.first[key]
        if value is None:
            return Bits.unknown()
        self._collect(value[1])
        return value[0]

    def operand(self, text: str, width: int, at: Instruction | None = None) -> Bits:
        """What is known of an operand of `at`: a register, an immediate, or a symbol.

        Without `at`, a register that is assigned more than once has its first value. Of one bit, a
        predicate, any immediate but 0 is true (PTX ISA, "Predicate Constants").
        """
        number, key, negated, origin = self._registers.operand(text, at)
        if key is not None:
            known = self._read(key, at)
            return complement(known, width) if negated else known
        if number is None:
            return Bits.unknown()
        if origin:
            self._collect({origin})
        return Bits.constant(int(number != 0) if width == 1 else number, width)

    def address(self, text: str, at: Instruction | None = None) -> Bits:
        """What is known of an address operand: ``[%r1 + 16]`` or ``[%rd2, {...}]``."""
        base, extra = split_address(text)
        if extra is None:
            return Bits.unknown()
        return add(self.operand(base, 64, at), Bits.constant(extra, 64), 64)

    def origins(self, text: str, at: Instruction | None = None) -> frozenset[str]:
        """What the known bits of an operand or address depend on.

        Returns:
            The shared symbols and special registers (``%tid.x``) that count as 0, and the
            registers that are assigned again elsewhere, so that the value is the first one's.
        """
        collected: set[str] = set()
        self._collected.append(collected)
        self.address(text, at)
        self._collected.pop()
        return frozenset(collected)

    def is_reassigned(self, name: str) -> bool:
        """Whether a register of that name is written by more than one instruction."""
        return any(name == each for each, _ in self._registers.reassigned)

    def root(self, text: str, at: Instruction | None = None) -> tuple[str, int]:
        """An operand or address as a name plus a constant, followed back as far as that goes.

        Returns:
            The name of a register, parameter or symbol (or an immediate), and what is added to it.
        """
        base, extra = split_address(text)
        total = extra or 0
        seen = set()
        while (key := self._registers.key(base, at)) in self._registers.first and key not in seen:
            seen.add(key)
            at, index = self._registers.first[key]
            step = None if key in self._registers.reassigned or index else self._step(at)
            if step is None:
                break
            base, more = step
            total += more
        return base, total

    def definition(self, text: str, at: Instruction | None = None) -> Instruction | None:
        """The first instruction that writes a register."""
        found = self._registers.first.get(self._registers.key(text.strip(), at))
        return found[0] if found else None

    def _step(self, instruction: Instruction) -> tuple[str, int] | None:
        """The one operand, and the constant added to it, that an instruction's result is."""
        base, operands = instruction.opcode.split(".")[0], instruction.operands
        if len(operands) < 2 or operands[1].startswith("{") or is_float(instruction.opcode):
            return None
        if base == "ld" and ".param" in instruction.opcode:
            name, offset = split_address(operands[1])
            return (f"[{name}]" if not offset else f"[{name}+{offset}]"), 0
        if base in ("mov", "cvta", "cvt", "shfl"):
            return operands[1], 0
        if base in ("add", "sub") and len(operands) > 2:
            sign = -1 if base == "sub" else 1
            for one, other in ((1, 2), (2, 1))[: 2 if base == "add" else 1]:
                bits = self.operand(operands[other], 32, instruction)
                if bits.is_constant(32):
                    width = opcode_width(instruction.opcode)
                    whole = self.operand(operands[other], width, instruction)
                    if whole.is_constant(width):
                        return operands[one], sign * signed(whole.value, width)
        return None

    def _collect(self, names: Iterable[str]) -> None:
        if self._collected:
            self._collected[-1].update(names)

    def _evaluate(self, instruction: Instruction, index: int) -> Bits:
        """What is known of the register at `index` of an instruction's first operand."""
        opcode, operands = instruction.opcode, instruction.operands
        base, width = opcode.partition(".")[0], opcode_width(opcode)
        if base in ("mov", "cvta") and len(operands) == 2 and "{" in operands[0] + operands[1]:
            return self._move(instruction, index, width)
        if base == "ld":
            return Bits.unknown()
        if base == "mapa" and not index and len(operands) > 1:
            mask, address = (1 << CTA_ADDRESS_BITS) - 1, self.operand(operands[1], 64, instruction)
            return Bits(address.value & mask, address.known & mask)
        if base == "shfl" and not index and len(operands) > 1:
            return self.operand(operands[1], 32, instruction)  # the first thread's own
        operation = integer_operation(opcode)
        if (
            operation is None
            or len(operands) - 1 != len(operation.source_widths)
            or (index and base != "setp")
        ):
            return Bits.unknown()
        sources = [
            self.operand(text, bits, instruction)
            for text, bits in zip(operands[1:], operation.source_widths, strict=True)
        ]
        found = evaluate(KNOWN_BITS, operation, sources)
        return complement(found, 1) if index else found

    def _move(self, instruction: Instruction, index: int, width: int) -> Bits:
        """``mov.b64 {%r1, %r2}, %rd1``, and back."""
        target, origin = instruction.operands
        if target.startswith("{"):
            each = width // max(1, len(split_operands(target[1:-1])))
            whole = self.operand(origin, width, instruction)
            mask = (1 << each) - 1
            return Bits(whole.value >> each * index & mask, whole.known >> each * index & mask)
        parts = split_operands(origin[1:-1])
        each = width // max(1, len(parts))
        return joined([self.operand(part, each, instruction) for part in parts], each)
