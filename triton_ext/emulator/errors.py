"""The errors of the emulator: what it refuses, and what it catches in a running kernel."""

from __future__ import annotations

import linecache
import os
import re
from dataclasses import replace

from triton_ext.errors import Fault
from triton_ext.findings import Finding, SourceLocation
from triton_ext.ptx.parse import Instruction, SourceLine
from triton_ext.tracebacks import users_line

_LONG = re.compile(r"(\{ *[^,{}]+)(?:,[^,{}]+){8,}, *([^,{}]+\})")
"""A vector of more than nine registers."""
_MOST_SOURCE = 1 << 24
"""Bytes of a file of which a line is shown: PTX may name any."""


def _shown(source: SourceLine) -> str:
    """The text of a line, with a caret below the column; "" if there is no such regular file."""
    if not os.path.isfile(source.file) or os.path.getsize(source.file) > _MOST_SOURCE:
        return ""
    line = linecache.getline(source.file, source.line).rstrip()
    if not line:
        return ""
    text = line.lstrip()
    shown = f"\n    {text}"
    at = source.column - 1 - (len(line) - len(text))
    return f"{shown}\n    {' ' * at}^" if 0 <= at < len(text) else shown


def shown_location(instruction: Instruction | None, where: str, what: str = "instruction") -> str:
    """An instruction, its line, and who executes it, on lines of their own."""
    text = ""
    if instruction is not None:
        ptx = _LONG.sub(r"\1, ..., \2", str(instruction))
        text += f"\n  {what}: {ptx}  (PTX line {instruction.line})"
        if instruction.source is not None:
            text += f"\n  source: {instruction.source}{_shown(instruction.source)}"
    return text + (f"\n  at: {where}" if where else "")


def location_of(instruction: Instruction | None) -> SourceLocation | None:
    """The line of the program that an instruction was compiled from, if it is known."""
    source = None if instruction is None else instruction.source
    return None if source is None else SourceLocation(source.file, source.line, source.column)


class EmulationError(Fault, RuntimeError):
    """A kernel that cannot be run, or does what the hardware leaves undefined.

    Attributes:
        message: what is wrong, with the rule that it breaks.
        instruction: the PTX instruction that is to blame, if one is.
        where: the block and the warps, such as ``block (0, 0, 0), warp 3, lane 0``.
    """

    def __init__(
        self, message: str, instruction: Instruction | None = None, where: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message
        self.instruction = instruction
        self.where = where

    def __str__(self) -> str:
        return self.message + shown_location(self.instruction, self.where)

    def findings(self) -> list[Finding]:
        """The fault, at the instruction's line; else where the kernel was launched."""
        kind = type(self)
        about = (kind.__doc__ or kind.__name__).splitlines()[0]
        location = location_of(self.instruction)
        if location is None:
            location = users_line(self.__traceback__)
        return [Finding(kind.__name__, about, "error", self.message, location)]


class UnsupportedInstruction(EmulationError):
    """The PTX has an instruction that the emulator does not model; raised before the start."""


class WrongArchitecture(UnsupportedInstruction):
    """An operation that the emulated architecture does not have, and the other one has."""


class LaunchError(EmulationError):
    """Grid, block, cluster, arguments or resources that the kernel or the GPU does not allow."""


class MemoryFault(EmulationError):
    """An access outside of what is allocated, or misaligned.

    Attributes:
        position: which of the threads that access memory together is to blame, if one is.
    """

    position: int | None = None

    def by(self, position: int) -> MemoryFault:
        """Itself, with the position noted."""
        self.position = position
        return self


class UninitializedRead(EmulationError):
    """A read of shared or tensor memory that nothing wrote, whose value is used.

    Attributes:
        role: what a loaded value is used for; "" if the read is itself the use, as a copy's is.
        use: the instruction that uses it; `instruction` is the load.
        used_by_thread: which thread of its block does, if it is one.
        used_where: which block and warps do.
    """

    role: str = ""
    use: Instruction | None = None
    used_by_thread: int | None = None
    used_where: str = ""

    def __str__(self) -> str:
        if not self.role:
            return super().__str__()
        return f"{super().__str__()}\n  {self.role}" + shown_location(
            self.use, self.used_where, "used by"
        )

    def findings(self) -> list[Finding]:
        (found,), used = super().findings(), location_of(self.use)
        if used is None:
            return [found]
        return [replace(found, related=((f"{self.role}, used here", used),))]


class SynchronizationFault(EmulationError):
    """Two accesses that nothing orders: a missing barrier, wait or proxy fence."""


class DescriptorFault(EmulationError):
    """A matrix, instruction or TMA descriptor, or a TMA coordinate, that the hardware forbids."""


class LayoutFault(EmulationError):
    """Shared memory is read in another layout than it is written in (swizzle, strides, major)."""


class UnreadCopy(EmulationError):
    """Bytes that a copy has brought into shared memory, and nobody read until another overwrote."""


class UnreadSums(EmulationError):
    """Sums of a product in tensor memory that nobody read until another product overwrote them."""


class BarrierFault(EmulationError):
    """An mbarrier or barrier that is misused: not initialised, too many arrivals, bytes left."""


class TensorMemoryFault(EmulationError):
    """Tensor memory that is used without being allocated, or not freed at exit."""


class ConvergenceFault(EmulationError):
    """An instruction that a whole warp must execute together, and did not."""


class Deadlock(EmulationError):
    """No thread can go on; says who waits for what."""


class LimitReached(EmulationError):
    """`max_steps` or `timeout` is reached; says where the instructions went."""


class PeerStopped(EmulationError):
    """Another emulated GPU has failed; its error is the cause of this one."""


class UndefinedBehaviour(UserWarning):
    """A kernel does what is undefined by the letter, and was run as hardware runs it."""
