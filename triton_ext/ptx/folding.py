"""What of a kernel's registers is known without running it.

`Folder` evaluates registers as far as constants reach, bit by bit: a descriptor whose address part
comes from a loop counter still has all of its other fields.
"""

from __future__ import annotations

import copy
import functools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping

from triton_ext.ptx.control_flow import blocks_in_order
from triton_ext.ptx.known_bits import (
    Bits,
    add,
    agreed,
    complement,
    conjunction,
    disjunction,
    truth_table,
)
from triton_ext.ptx.parse import Instruction, Kernel, Variable, immediate, split_operands

_WIDTH = re.compile(r"\.[usbf](8|16|32|64)\b")
_SYMBOL = re.compile(r"[A-Za-z_$][\w$.]*")
_MAX_COPIES = 4_000_000  # entries of states: real kernels need a thousandth
_MAX_ORIGINS = 64
_ZERO_REGISTERS = ("%tid.", "%ctaid.", "%laneid", "%warpid", "%cluster_ctaid.", "%cluster_ctarank")


@functools.lru_cache(maxsize=4096)
def _width(opcode: str) -> int:
    found = _WIDTH.findall(opcode)
    return int(found[0]) if found else 1 if ".pred" in opcode else 32


CTA_ADDRESS_BITS = 24
"""Of a shared address: where in its CTA; the bits above say which CTA of the cluster. (CUTLASS
clears bit 24 to name the leading CTA of a pair: ``Sm100MmaPeerBitMask``.)
"""

_Key = tuple[str, tuple[int, ...]]
"""A register's name, and the block ``{ ... }`` that declares it."""
_Value = tuple[Bits, frozenset[str]]
"""What is known, and what that hangs on (`Folder.origins`)."""
_Operand = tuple[int | None, _Key | None, bool, str]
"""What an operand is: a number, or a register that is perhaps negated, or nothing that is known;
and what the number hangs on."""
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
        kernel: whose registers.
        variables: of the module; symbols of other state spaces than shared are unknown.
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
        self._given: Mapping[str, int] = {}
        self._readers: dict[str, list[int]] | None = None
        self._same: tuple[list[list[tuple[_Key, _Value]]], frozenset[int]] | None = None
        self._evaluate_all()

    def given(self, numbers: Mapping[str, int]) -> Folder:
        """The same kernel, with numbers in place of some special registers and parameters.

        Args:
            numbers: such as ``{"%tid.x": 96, "[kernel_param_0]": 1024}``.
        """
        other = copy.copy(self)
        other._given, other._operands = {**self._given, **numbers}, {}
        other._same = self._all_results, self._changed(numbers)
        other._evaluate_all()
        return other

    def _changed(self, given: Iterable[str]) -> frozenset[int]:
        """The instructions whose results hang on some special registers or parameters."""
        if self._readers is None:
            self._readers = {}
            for number, instruction in enumerate(self.kernel.instructions):
                for name in mentioned(instruction):
                    self._readers.setdefault(name, []).append(number)
                if instruction.predicate:  # what it leaves as it was
                    for _, name in destinations(instruction):
                        self._readers.setdefault(name, []).append(number)
        found: set[int] = set()
        pending, seen = [text.strip("[]") for text in given], set()
        while pending:
            for number in self._readers.get(pending.pop(), ()):
                if number in found:
                    continue
                found.add(number)
                for _, (name, _) in self._written[number]:
                    if name not in seen:
                        seen.add(name)
                        pending.append(name)
        return frozenset(found)

    def _evaluate_all(self) -> None:
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
        results: list[list[tuple[_Key, _Value]]] = [[]] * len(self.kernel.instructions)
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
                if self._same is None or number in self._same[1]:
                    values = self._results(number)
                else:
                    values = self._same[0][number]
                results[number] = values
                for key, value in values:
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
        self._all_results = results

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

        Without `at`, a register that is assigned more than once has its first value.
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
        return Bits.constant(number, width)

    def _resolved(self, text: str, at: Instruction | None) -> _Operand:
        number = immediate(text)
        if number is not None:
            return number, None, False, ""
        if text.startswith(_ZERO_REGISTERS) or text in self._given:
            return self._given.get(text, 0), None, False, text
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
        """What the known bits of an operand or address hang on.

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
        if len(operands) < 2 or operands[1].startswith("{") or _is_float(instruction.opcode):
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
                    width = _width(instruction.opcode)
                    whole = self.operand(operands[other], width, instruction)
                    if whole.is_constant(width):
                        return operands[one], sign * _signed(whole.value, width)
        return None

    def _collect(self, names: Iterable[str]) -> None:
        if self._collected:
            self._collected[-1].update(names)

    def _evaluate(self, instruction: Instruction, index: int) -> Bits:
        opcode, operands = instruction.opcode, instruction.operands
        width = _width(opcode)
        base = opcode.partition(".")[0]

        def source(position: int, bits: int = width) -> Bits:
            return self.operand(operands[position], bits, instruction)

        try:
            if base in ("mov", "cvta"):
                return self._move(instruction, index, width)
            if base == "setp":
                return self._compare(instruction, index)
            if base == "shfl":
                return source(1, 32) if not index else Bits.unknown()  # the first thread's own
            if index:
                return Bits.unknown()
            if base == "cvt":
                return self._convert(opcode, source(1, 64))
            if base in ("add", "sub", "neg") and not _is_float(opcode):
                right = source(1 if base == "neg" else 2)
                if base != "add":
                    if not right.is_constant(width):
                        return Bits.unknown()
                    right = Bits.constant(-right.value, width)
                return right if base == "neg" else add(source(1), right, width)
            if base == "not":
                return complement(source(1), width)
            if base == "and":
                return conjunction(source(1), source(2))
            if base == "or":
                return disjunction(source(1), source(2))
            if base == "xor":
                left, right = source(1), source(2)
                known = left.known & right.known
                return Bits((left.value ^ right.value) & known, known)
            if base in ("shl", "shr"):
                return self._shift(base, opcode, source(1), source(2, 32), width)
            if base in ("mul", "mad") and not _is_float(opcode):
                return self._multiply(opcode, [source(i) for i in range(1, len(operands))], width)
            if base in _PAIRWISE and not _is_float(opcode):
                return self._pairwise(base, opcode, source(1), source(2), width)
            if base == "mapa":
                mask, address = (1 << CTA_ADDRESS_BITS) - 1, source(1)
                return Bits(address.value & mask, address.known & mask)
            if base == "selp":
                left, right, choice = source(1), source(2), source(3, 1)
                if choice.is_constant(1):
                    return left if choice.value else right
                return agreed(left, right)
            if base in ("bfe", "bfi"):
                return self._bit_field(base, opcode, operands, instruction)
            if base == "ld":
                is_one = ".param" in opcode and ".v" not in opcode
                number = self._given.get(operands[1]) if is_one else None
                return Bits.unknown() if number is None else Bits.constant(number, width)
            if base == "lop3":
                return truth_table([source(i) for i in range(1, 5)], width)
        except IndexError:
            return Bits.unknown()
        return Bits.unknown()

    def _move(self, instruction: Instruction, index: int, width: int) -> Bits:
        target, origin = instruction.operands[0], instruction.operands[1]
        if target.startswith("{"):  # unpack
            each = width // max(1, len(split_operands(target[1:-1])))
            whole = self.operand(origin, width, instruction)
            mask = (1 << each) - 1
            return Bits(whole.value >> each * index & mask, whole.known >> each * index & mask)
        if origin.startswith("{"):  # pack
            parts_text = split_operands(origin[1:-1])
            each = width // max(1, len(parts_text))
            value = known = 0
            for i, part in enumerate(parts_text):
                bits = self.operand(part, each, instruction)
                mask = (1 << each) - 1
                value |= (bits.value & mask) << each * i
                known |= (bits.known & mask) << each * i
            return Bits(value, known)
        return self.operand(origin, width, instruction)

    def _compare(self, instruction: Instruction, index: int) -> Bits:
        """A predicate: of two integers that are known; without a boolean operator."""
        parts, width = instruction.opcode.split("."), _width(instruction.opcode)
        operation = parts[1] if len(parts) == 3 else ""
        left, right = (self.operand(instruction.operands[i], width, instruction) for i in (1, 2))
        if operation in ("eq", "ne") and (left.value ^ right.value) & left.known & right.known:
            return Bits(int((operation == "ne") ^ bool(index)), 1)  # one bit differs
        if not (left.is_constant(width) and right.is_constant(width)) or parts[-1].startswith("f"):
            return Bits.unknown()
        a, b = left.value, right.value
        if parts[-1].startswith("s"):
            a, b = _signed(a, width), _signed(b, width)
        results = {
            "eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b,
            "lo": a < b, "ls": a <= b, "hi": a > b, "hs": a >= b,
        }  # fmt: skip
        if operation not in results:
            return Bits.unknown()
        return Bits(int(results[operation] ^ bool(index)), 1)

    @staticmethod
    def _convert(opcode: str, origin: Bits) -> Bits:
        widths = [int(width) for width in _WIDTH.findall(opcode)]
        if len(widths) != 2 or _is_float(opcode):
            return Bits.unknown()
        to, of = widths
        narrow = (1 << min(to, of)) - 1
        value, known = origin.value & narrow, origin.known & narrow
        if to > of:
            extension = ((1 << to) - 1) & ~narrow
            sign = 1 << (of - 1)
            if not opcode.endswith(f".s{of}"):
                known |= extension
            elif known & sign:
                known |= extension
                value |= extension if value & sign else 0
        return Bits(value, known)

    @staticmethod
    def _shift(base: str, opcode: str, value: Bits, by: Bits, width: int) -> Bits:
        if not by.is_constant(32):
            return Bits.unknown()
        mask, count = (1 << width) - 1, min(by.value, width)
        filled = (1 << count) - 1
        if base == "shl":
            return Bits(value.value << count & mask, (value.known << count | filled) & mask)
        top = filled << (width - count)
        if ".s" in opcode:
            sign = 1 << (width - 1)
            if not value.known & sign:
                return Bits(value.value >> count, value.known >> count & ~top)
            high = top if value.value & sign else 0
            return Bits(value.value >> count | high, value.known >> count | top)
        return Bits(value.value >> count, (value.known & mask) >> count | top)

    @staticmethod
    def _multiply(opcode: str, sources: list[Bits], width: int) -> Bits:
        wide = 2 * width if ".wide" in opcode else width
        if not all(bits.is_constant(width) for bits in sources[:2]):
            return Bits.unknown()
        factors = [_signed(bits.value, width) if ".s" in opcode else bits.value for bits in sources]
        shift = width if ".hi" in opcode else 0
        product = Bits.constant(factors[0] * factors[1] >> shift, wide)
        return add(product, sources[2], wide) if len(sources) > 2 else product

    @staticmethod
    def _pairwise(base: str, opcode: str, left: Bits, right: Bits, width: int) -> Bits:
        """Quotients, remainders and extremes of two integers that are known."""
        if not (left.is_constant(width) and right.is_constant(width)):
            return Bits.unknown()
        mask = (1 << width) - 1
        a, b = left.value & mask, right.value & mask
        if ".s" in opcode:
            a, b = _signed(a, width), _signed(b, width)
        if base in ("min", "max"):
            return Bits.constant(min(a, b) if base == "min" else max(a, b), width)
        if not b:
            return Bits.unknown()
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)  # towards zero
        return Bits.constant(quotient if base == "div" else a - quotient * b, width)

    def _bit_field(
        self, base: str, opcode: str, operands: tuple[str, ...], at: Instruction
    ) -> Bits:
        width = _width(opcode)
        sources = [self.operand(text, width, at) for text in operands[1:]]
        if len(sources) != {"bfe": 3, "bfi": 4}[base]:
            return Bits.unknown()
        *values, start, length = sources
        if not (start.is_constant(32) and length.is_constant(32)):
            return Bits.unknown()
        first = min(start.value & 0xFF, width)
        mask = (1 << min(length.value & 0xFF, width - first)) - 1
        if base == "bfe":
            if ".s" in opcode:
                return Bits.unknown()
            rest = ((1 << width) - 1) & ~mask
            field = values[0]
            return Bits(field.value >> first & mask, field.known >> first & mask | rest)
        inserted, into = values
        hole = mask << first
        return Bits(
            into.value & ~hole | (inserted.value & mask) << first,
            into.known & ~hole | (inserted.known & mask) << first,
        )


_PAIRWISE = ("div", "rem", "min", "max")


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) & 1 else value


@functools.lru_cache(maxsize=4096)
def _is_float(opcode: str) -> bool:
    return bool(re.search(r"\.(?:f16|f32|f64|bf16|f16x2|bf16x2|tf32)", opcode))


_NO_DESTINATION = (
    "st", "red", "bar", "barrier", "fence", "membar", "bra", "brx", "ret", "exit", "trap", "call",
    "mbarrier.init", "mbarrier.inval", "cp", "wgmma", "tcgen05.mma", "tcgen05.cp", "tcgen05.st",
    "tcgen05.commit", "tcgen05.wait", "tcgen05.alloc", "tcgen05.dealloc", "tcgen05.fence",
    "tcgen05.relinquish_alloc_permit", "tcgen05.shift", "stmatrix", "setmaxnreg", "griddepcontrol",
    "prefetch", "prefetchu", "nanosleep", "discard", "applypriority", "clusterlaunchcontrol",
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _has_destination(opcode: str) -> bool:
    return not any(opcode == name or opcode.startswith(name + ".") for name in _NO_DESTINATION)


def destinations(instruction: Instruction) -> tuple[tuple[int, str], ...]:
    """The registers that an instruction writes, with their place in its first operand."""
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
