"""Registers of a wgmma's A that the machine code writes while the tensor core may still read them.

``HGMMA`` reads A from registers asynchronously: until its group has been waited for, by
``WARPGROUP.DEPBAR.LE gsb0, N``, nothing may write them (PTX ISA, "wgmma.mma_async", of registers).
ptxas before CUDA 13.3 does (triton#9433, triton#11781). PTX does not show it; a listing of
``nvdisasm`` or ``cuobjdump`` does.

A group ends at the ``HGMMA`` with ``gsb0``. All paths through branches are followed. What is no
branch to a label, such as a call, is taken to go on behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from triton_ext.errors import LayoutError

_LINE = re.compile(
    r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)'
    r"|^\s*(?:\.text\.|Function : )(?P<function>[\w$.]+)"
    r"|^\s*(?P<label>\.L\w+):"
    r"|/\*(?P<address>[0-9a-f]{4,})\*/\s+\{?\s*(?P<guard>@!?U?P\w+\s+)?(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);",
    re.MULTILINE,
)
_TARGET = re.compile(r"`\((?P<label>\.L\w+)\)|\b0x(?P<address>[0-9a-f]+)\s*$")
_REGISTER = re.compile(r"R(\d+)$")
_PREDICATE = re.compile(r"!?U?P(?:T|\d)$")
_NO_RESULT = re.compile(
    r"ST|RED\b|RED\.|\w+SETP|FCHK|R2UR|R2P|WARPSYNC|BR[AX]|RET|JM|CALL|NANOSLEEP|B?SYNC|BAR|WARPGROUP"
)
"""Opcodes whose first register is read."""
_WIDTHS = (
    (re.compile(r"HGMMA|QGMMA|IGMMA|BGMMA"), 0),  # by shape
    (re.compile(r".*\.128\b|LDSM.*\.4$|HMMA.*\.F32|IMMA"), 4),
    (re.compile(r".*\.64\b|.*\.WIDE|LDSM.*\.2$|CS2R(?!\.32)|D(?:ADD|MUL|FMA|MMA)|HMMA|.*\.F64"), 2),
)
_SHAPE = re.compile(r"\w+\.64x(\d+)x\d+\.(F16)?")
_OPERAND_REGISTERS = 4
"""Registers of a thread that hold A: 64 rows of 32 bytes over 128 threads (PTX ISA, "Register
fragments for wgmma.mma_async.m64nNk16", and its siblings)."""
MAX_STATES = 1 << 16


@dataclass(frozen=True)
class SassInstruction:
    """An instruction of the machine.

    Attributes:
        address: within its function.
        guard: its predicate, or "".
        opcode, operands: as printed.
        file, line: of the source, if the listing says so; "" and 0 if not.
    """

    address: int
    guard: str
    opcode: str
    operands: tuple[str, ...]
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        location = f"  ({self.file}:{self.line})" if self.file else ""
        operands = ", ".join(self.operands)
        return f"{self.address:04x}: {self.guard}{self.opcode} {operands}".rstrip() + location

    @property
    def is_product(self) -> bool:
        """Whether it is a wgmma."""
        return "GMMA" in self.opcode

    @property
    def operand_registers(self) -> frozenset[int]:
        """Those of A; none if A is in shared memory, or it is no wgmma."""
        first = _REGISTER.match(self.operands[1]) if self.is_product else None
        start = int(first[1]) if first else 0
        return frozenset(range(start, start + _OPERAND_REGISTERS)) if first else frozenset()

    @property
    def written(self) -> frozenset[int]:
        """The registers that it writes."""
        results = [each for each in self.operands if not _PREDICATE.match(each)][:1]
        found = _REGISTER.match(results[0]) if results else None
        if found is None or _NO_RESULT.match(self.opcode):
            return frozenset()
        width = next((width for name, width in _WIDTHS if name.match(self.opcode)), 1)
        if width == 0:
            shape = _SHAPE.match(self.opcode)
            width = int(shape[1]) // (4 if shape[2] else 2) if shape else 1
        return frozenset(range(int(found[1]), int(found[1]) + width))


@dataclass
class SassFunction:
    """A function of a listing.

    Attributes:
        labels: where they stand, as indices of instructions.
    """

    name: str
    instructions: list[SassInstruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def parse_sass(listing: str) -> list[SassFunction]:
    """The functions of a listing of ``nvdisasm -c`` (with ``-g``: source lines) or ``cuobjdump``.

    Raises:
        LayoutError: it has no instruction.
    """
    functions: list[SassFunction] = []
    file, line = "", 0
    for found in _LINE.finditer(listing):
        if found["function"]:
            functions.append(SassFunction(found["function"]))
            file, line = "", 0
        elif found["line"]:
            file, line = found["file"], int(found["line"])
        else:
            if not functions:
                functions.append(SassFunction("kernel"))
            own = functions[-1]
            if found["label"]:
                own.labels[found["label"]] = len(own.instructions)
                continue
            operands = tuple(part.strip() for part in found["operands"].split(",") if part.strip())
            own.instructions.append(
                SassInstruction(
                    int(found["address"], 16), found["guard"] or "", found["opcode"], operands,
                    file, line,
                )
            )  # fmt: skip
    functions = [each for each in functions if each.instructions]
    if not functions:
        raise LayoutError("listing", listing[:80], "must be the output of nvdisasm or cuobjdump")
    return functions


@dataclass(frozen=True)
class OverwrittenOperand:
    """A register of A that is written too early.

    Attributes:
        function: its name.
        product: the wgmma.
        write: the instruction that writes, before the product is waited for.
        registers: which of A's.
    """

    function: str
    product: SassInstruction
    write: SassInstruction
    registers: tuple[int, ...]

    def __str__(self) -> str:
        names = ", ".join(f"R{number}" for number in self.registers)
        return f"{self.function}: {names} of A of {self.product}, not waited for: {self.write}"


Pending = tuple[frozenset[int], ...]
"""The products in flight, by groups, the oldest first; the last one is open."""


def overwritten_operands(listing: str) -> list[OverwrittenOperand]:
    """Each wgmma whose A is written in registers before it is waited for, on some path.

    Raises:
        LayoutError: no listing; or one with more paths than can be followed.
    """
    return [found for function in parse_sass(listing) for found in _overwritten(function)]


def _overwritten(function: SassFunction) -> Iterator[OverwrittenOperand]:
    every = function.instructions
    at = {each.address: index for index, each in enumerate(every)}
    told: set[tuple[int, int]] = set()
    seen: set[tuple[int, Pending]] = set()
    todo: list[tuple[int, Pending]] = [(0, (frozenset(),))]
    while todo:
        index, pending = todo.pop()
        if index >= len(every) or (index, pending) in seen:
            continue
        seen.add((index, pending))
        if len(seen) > MAX_STATES * max(1, len(every) // 1024):
            rule = "has too many paths with wgmmas in flight to follow"
            raise LayoutError("function", function.name, rule)
        own = every[index]
        for product in sorted(frozenset().union(*pending)):
            both = every[product].operand_registers & own.written
            if both and (product, index) not in told:
                told.add((product, index))
                yield OverwrittenOperand(function.name, every[product], own, tuple(sorted(both)))
        after = _after(own, index, pending)
        todo += [(following, after) for following in _following(function, own, index, at)]


def _after(own: SassInstruction, index: int, pending: Pending) -> Pending:
    if own.operand_registers:
        pending = (*pending[:-1], pending[-1] | {index})
    if own.is_product and own.operands[-1] == "gsb0":
        pending = (*pending, frozenset())
    elif own.opcode.startswith("WARPGROUP.DEPBAR"):
        closed, left = pending[:-1], int(own.operands[-1], 16)
        pending = (*closed[max(0, len(closed) - left) :], pending[-1])
    return pending


def _following(
    function: SassFunction, own: SassInstruction, index: int, at: dict[int, int]
) -> Sequence[int]:
    if own.opcode.startswith(("EXIT", "RET")):
        return [index + 1] if own.guard else []
    if not own.opcode.startswith("BRA"):
        return [index + 1]
    target = _TARGET.search(own.operands[-1]) if own.operands else None
    if target is None:
        return [index + 1]
    to = (
        function.labels.get(target["label"])
        if target["label"]
        else at.get(int(target["address"], 16))
    )
    conditional = bool(own.guard) or len(own.operands) > 1
    return [*([index + 1] if conditional else []), *([] if to is None else [to])]
