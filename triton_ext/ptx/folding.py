"""What of a kernel's registers is known without running it.

`Folder` evaluates registers as far as constants reach, bit by bit: a descriptor whose address part
comes from a loop counter still has all of its other fields.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable

from triton_ext.hardware.architecture import CTA_ADDRESS_BITS
from triton_ext.integers import evaluate, signed
from triton_ext.ptx.control_flow import blocks_in_order
from triton_ext.ptx.integer_operations import integer_operation, is_float, opcode_width
from triton_ext.ptx.known_bits import KNOWN_BITS, Bits, add, agreed, complement, joined
from triton_ext.ptx.parse import Instruction, Kernel, Variable, immediate, split_operands

_SYMBOL = re.compile(r"[A-Za-z_$][\w$.]*")
_MAX_COPIES = 4_000_000  # entries of states: real kernels need a thousandth
_MAX_ORIGINS = 64
_ZERO_REGISTERS = ("%tid.", "%ctaid.", "%laneid", "%warpid", "%cluster_ctaid.", "%cluster_ctarank")


_Key = tuple[str, tuple[int, ...]]
"""A register's name, and the block ``{ ... }`` that declares it."""
_Value = tuple[Bits, frozenset[str]]
"""What is known, and what that depends on (`Folder.origins`)."""
_Operand = tuple[int | None, _Key | None, bool, str]
"""What an operand is: a number, or a register that is perhaps negated, or nothing that is known;
and what the number depends on."""
_State = dict[_Key, _Value]
"""What the registers hold that are assigned more than once."""


def _bounded(origins: Collection[str]) -> frozenset[str]:
    if len(origins) > _MAX_ORIGINS:
        return frozenset(sorted(origins)[:_MAX_ORIGINS])
    return frozenset(origins)


_OTHERS: _Key = ("", ())
_ALL_UNKNOWN: _State = {_OTHERS: (Bits.unknown(), frozenset())}
"""A state that holds `_OTHERS` says nothing of the registers that it leaves out; another, that they
have not been set."""


def _held(state: _State, key: _Key) -> _Value | None:
    """What a register holds, or None if it has not been set."""
    return state.get(key, state.get(_OTHERS))


def _joined(states: list[_State]) -> _State:
    """What holds on whichever path."""
    joined = dict(states[0])
    for state in states[1:]:
        if _OTHERS in state:
            joined.setdefault(_OTHERS, state[_OTHERS])
        for key in joined.keys() | state.keys():
            one, other = _held(joined, key), _held(state, key)
            if one is not None and other is not None:
                joined[key] = (agreed(one[0], other[0]), _bounded(one[1] | other[1]))
            elif other is not None:
                joined[key] = other
    return joined


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
        self._elsewhere = set(kernel.parameters)
        self._scopes: dict[str, set[tuple[int, ...]]] = {}
        for variable in (*variables, *kernel.variables):
            if variable.space != "shared":
                self._elsewhere.add(variable.name)
            self._scopes.setdefault(variable.name, set()).add(variable.scope)
        self._definitions: dict[_Key, tuple[Instruction, int]] = {}
        self._reassigned: set[_Key] = set()
        self._written: list[list[tuple[int, _Key]]] = []
        for instruction in kernel.instructions:
            written = [
                (index, self._key(name, instruction)) for index, name in destinations(instruction)
            ]
            self._written.append(written)
            for index, key in written:
                if key in self._definitions:
                    self._reassigned.add(key)
                else:
                    self._definitions[key] = instruction, index
        self._reassigned_names = {name for name, _ in self._reassigned}
        self._numbers = {instruction: i for i, instruction in enumerate(kernel.instructions)}
        self._operands: dict[tuple[str, tuple[int, ...]], _Operand] = {}
        self.blocks = blocks_in_order(kernel)
        self._known: dict[_Key, _Value] = {}
        self._first: _State = {}
        self._entries: dict[int, _State] = {}
        self._writes: dict[int, dict[_Key, list[tuple[int, _Value]]]] = {}
        self._collected: list[set[str]] = []
        self._state: _State | None = None
        self._follow()
        self._starts = sorted(self._entries)

    def _follow(self) -> None:
        """Evaluate each instruction, the first time through."""
        exits: list[_State] = []
        budget = _MAX_COPIES
        for block in self.blocks:
            states = [exits[i] for i in block.before]
            state = states[0] if states else {}
            if block.is_irregular:
                state = _ALL_UNKNOWN
            elif any(other is not state for other in states):
                budget -= sum(map(len, states))
                state = _joined(states) if budget > 0 else _ALL_UNKNOWN
            self._entries[block.start] = self._state = state
            writes = self._writes[block.start] = {}
            for number in range(block.start, block.stop):
                for key, value in self._results(number):
                    if key not in self._reassigned:
                        self._known[key] = value
                        continue
                    if self._state is state:
                        budget -= len(state)
                        self._state = dict(state if budget > 0 else _ALL_UNKNOWN)
                    self._state[key] = value
                    self._first.setdefault(key, value)
                    writes.setdefault(key, []).append((number, value))
            exits.append(self._state)
        self._state = None

    def _results(self, number: int) -> list[tuple[_Key, _Value]]:
        """What an instruction writes."""
        instruction = self.kernel.instructions[number]
        results: list[tuple[_Key, _Value]] = []
        for index, key in self._written[number]:
            self._collected.append({key[0]} if key in self._reassigned else set())
            bits = self._evaluate(instruction, index)
            origins = self._collected.pop()
            old = _held(self._state, key) if self._state else None
            if instruction.predicate and old is not None:
                executed = self.operand(instruction.predicate, 1, instruction).field(0, 1)
                if executed != 1:
                    bits = old[0] if executed == 0 else agreed(bits, old[0])
                    origins |= old[1]
            results.append((key, (bits, _bounded(origins))))
        return results

    def _read(self, key: _Key, at: Instruction | None) -> Bits:
        """What a register holds at an instruction."""
        if key not in self._reassigned:
            value = self._known.get(key)
        elif self._state is not None:
            value = self._state.get(key)
        elif at in self._numbers:
            value = self._value_before(key, self._numbers[at])
        else:
            value = self._first[key]
        if value is None:
            return Bits.unknown()
        self._collect(value[1])
        return value[0]

    def _value_before(self, key: _Key, number: int) -> _Value | None:
        start = self._starts[bisect_right(self._starts, number) - 1]
        written = self._writes[start].get(key, [])
        earlier = bisect_left(written, number, key=lambda write: write[0])
        return written[earlier - 1][1] if earlier else self._entries[start].get(key)

    def _key(self, name: str, at: Instruction | None) -> _Key:
        """A name and the block that it is declared in: the innermost of those around."""
        if at is None or not at.scope or name not in self._scopes:
            return name, ()
        scope, declared = at.scope, self._scopes[name]
        for depth in range(len(scope), 0, -1):
            if scope[:depth] in declared:
                return name, scope[:depth]
        return name, ()

    def operand(self, text: str, width: int, at: Instruction | None = None) -> Bits:
        """What is known of an operand of `at`: a register, an immediate, or a symbol.

        Without `at`, a register that is assigned more than once has its first value. Of one bit, a
        predicate, any immediate but 0 is true (PTX ISA, "Predicate Constants").
        """
        scope = at.scope if at is not None else ()
        found = self._operands.get((text, scope))
        if found is None:
            found = self._operands[text, scope] = self._resolved(text.strip(), at)
        number, key, negated, origin = found
        if key is not None:
            known = self._read(key, at)
            return complement(known, width) if negated else known
        if number is None:
            return Bits.unknown()
        if origin:
            self._collect({origin})
        return Bits.constant(int(number != 0) if width == 1 else number, width)

    def _resolved(self, text: str, at: Instruction | None) -> _Operand:
        number = immediate(text)
        if number is not None:
            return number, None, False, ""
        if text.startswith(_ZERO_REGISTERS):
            return 0, None, False, text
        negated = text.startswith("!")
        key = self._key(text.removeprefix("!"), at)
        if key in self._definitions:
            return None, key, negated, ""
        symbol, plus, offset = text.partition("+")
        if _SYMBOL.fullmatch(symbol.strip()) and symbol.strip() not in self._elsewhere:
            extra = immediate(offset.strip()) if plus else 0
            if extra is not None:
                return extra, None, False, symbol.strip()
        return None, None, False, ""

    def address(self, text: str, at: Instruction | None = None) -> Bits:
        """What is known of an address operand: ``[%r1 + 16]`` or ``[%rd2, {...}]``."""
        base, extra = self._split_address(text)
        if extra is None:
            return Bits.unknown()
        return add(self.operand(base, 64, at), Bits.constant(extra, 64), 64)

    @staticmethod
    def _split_address(text: str) -> tuple[str, int | None]:
        inside = split_operands(text.strip().removeprefix("[").removesuffix("]"))
        base, plus, offset = (inside[0] if inside else "").partition("+")
        return base.strip(), immediate(offset.strip()) if plus else 0

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
        return name in self._reassigned_names

    def root(self, text: str, at: Instruction | None = None) -> tuple[str, int]:
        """An operand or address as a name plus a constant, followed back as far as that goes.

        Returns:
            The name of a register, parameter or symbol (or an immediate), and what is added to it.
        """
        base, extra = self._split_address(text)
        total = extra or 0
        seen = set()
        while (key := self._key(base, at)) in self._definitions and key not in seen:
            seen.add(key)
            at, index = self._definitions[key]
            step = None if key in self._reassigned or index else self._step(at)
            if step is None:
                break
            base, more = step
            total += more
        return base, total

    def definition(self, text: str, at: Instruction | None = None) -> Instruction | None:
        """The first instruction that writes a register."""
        found = self._definitions.get(self._key(text.strip(), at))
        return found[0] if found else None

    def _step(self, instruction: Instruction) -> tuple[str, int] | None:
        """The one operand, and the constant added to it, that an instruction's result is."""
        base, operands = instruction.opcode.split(".")[0], instruction.operands
        if len(operands) < 2 or operands[1].startswith("{") or is_float(instruction.opcode):
            return None
        if base == "ld" and ".param" in instruction.opcode:
            name, offset = self._split_address(operands[1])
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


_NO_DESTINATION = (
    "st", "red", "bar", "barrier", "fence", "membar", "bra", "brx", "ret", "exit", "trap", "call",
    "mbarrier.init", "mbarrier.inval", "cp", "wgmma", "tcgen05.mma", "tcgen05.cp", "tcgen05.st",
    "tcgen05.commit", "tcgen05.wait", "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.fence",
    "tcgen05.relinquish_alloc_permit", "tcgen05.shift", "stmatrix", "setmaxnreg", "griddepcontrol",
    "prefetch", "prefetchu", "nanosleep", "discard", "applypriority",
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _has_destination(opcode: str) -> bool:
    return not any(opcode == name or opcode.startswith(name + ".") for name in _NO_DESTINATION)


def destinations(instruction: Instruction) -> tuple[tuple[int, str], ...]:
    """The registers that an instruction writes, with their index in its first operand."""
    operands = instruction.operands
    if not operands or operands[0][:1] == "[" or not _has_destination(instruction.opcode):
        return ()
    return _listed(operands[0])


_NAME = re.compile(r"[%A-Za-z][\w$.%]*")


def mentioned(instruction: Instruction) -> list[str]:
    """The registers that an instruction names, among other words."""
    found = _NAME.findall(",".join(instruction.operands))
    if instruction.predicate:
        found.append(instruction.predicate.lstrip("!"))
    return found


@functools.lru_cache(maxsize=1 << 16)
def _listed(operand: str) -> tuple[tuple[int, str], ...]:
    """The names in ``%r1``, ``{%r1, %r2}`` and ``%r1|%p1``, but for ``_``."""
    if operand[:1] == "%" and "," not in operand and "|" not in operand:
        return ((0, operand),)
    names = enumerate(name.strip() for name in re.split(r"[,|]", operand.strip("{}")))
    return tuple((index, name) for index, name in names if name not in ("", "_"))
