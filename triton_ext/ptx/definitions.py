"""Where a kernel's registers are written, and what its operands name."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from triton_ext.ptx.parse import Instruction, Kernel, Variable, immediate, split_operands

_SYMBOL = re.compile(r"[A-Za-z_$][\w$.]*")
_ZERO_REGISTERS = ("%tid.", "%ctaid.", "%laneid", "%warpid", "%cluster_ctaid.", "%cluster_ctarank")
Key = tuple[str, tuple[int, ...]]
"""A register's name, and the block ``{ ... }`` that declares it."""
Operand = tuple[int | None, Key | None, bool, str]
"""What an operand is: a number, or a register that is perhaps negated, or nothing that is known;
and what the number depends on."""


class Definitions:
    """The registers of a kernel.

    Args:
        kernel: the kernel.
        variables: those of the module.

    Attributes:
        first: by register, the first instruction that writes it, and the index in its operand.
        reassigned: the registers that more than one instruction writes.
        written: by instruction, the registers that it writes, and their indices.
    """

    def __init__(self, kernel: Kernel, variables: Iterable[Variable]) -> None:
        self._elsewhere = set(kernel.parameters)
        self._scopes: dict[str, set[tuple[int, ...]]] = {}
        for variable in (*variables, *kernel.variables):
            if variable.space != "shared":
                self._elsewhere.add(variable.name)
            self._scopes.setdefault(variable.name, set()).add(variable.scope)
        self.first: dict[Key, tuple[Instruction, int]] = {}
        self.reassigned: set[Key] = set()
        self.written: list[list[tuple[int, Key]]] = []
        for instruction in kernel.instructions:
            written = [
                (index, self.key(name, instruction)) for index, name in destinations(instruction)
            ]
            self.written.append(written)
            for index, key in written:
                if key in self.first:
                    self.reassigned.add(key)
                else:
                    self.first[key] = instruction, index
        self._operands: dict[tuple[str, tuple[int, ...]], Operand] = {}

    def key(self, name: str, at: Instruction | None) -> Key:
        """A name and the block that it is declared in: the innermost of those around."""
        if at is None or not at.scope or name not in self._scopes:
            return name, ()
        scope, declared = at.scope, self._scopes[name]
        for depth in range(len(scope), 0, -1):
            if scope[:depth] in declared:
                return name, scope[:depth]
        return name, ()

    def operand(self, text: str, at: Instruction | None) -> Operand:
        """What an operand of an instruction is."""
        known = text, at.scope if at is not None else ()
        found = self._operands.get(known)
        if found is None:
            found = self._operands[known] = self._resolved(text.strip(), at)
        return found

    def _resolved(self, text: str, at: Instruction | None) -> Operand:
        number = immediate(text)
        if number is not None:
            return number, None, False, ""
        if text.startswith(_ZERO_REGISTERS):
            return 0, None, False, text
        negated = text.startswith("!")
        key = self.key(text.removeprefix("!"), at)
        if key in self.first:
            return None, key, negated, ""
        symbol, plus, offset = text.partition("+")
        if _SYMBOL.fullmatch(symbol.strip()) and symbol.strip() not in self._elsewhere:
            extra = immediate(offset.strip()) if plus else 0
            if extra is not None:
                return extra, None, False, symbol.strip()
        return None, None, False, ""


def split_address(text: str) -> tuple[str, int | None]:
    """The base of an address operand, and what is added to it; None: not a number."""
    inside = split_operands(text.strip().removeprefix("[").removesuffix("]"))
    base, plus, offset = (inside[0] if inside else "").partition("+")
    return base.strip(), immediate(offset.strip()) if plus else 0


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
