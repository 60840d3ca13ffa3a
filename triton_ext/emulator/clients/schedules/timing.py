"""Values that depend on time: where a kernel has one, one run does not speak for all.

Also what the emulator does not order as strictly as the hardware may.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from triton_ext.emulator.decode.program import Program
from triton_ext.ptx.definitions import destinations, mentioned
from triton_ext.ptx.parse import Instruction, immediate

_POLLS = (
    ("ld.volatile", "ld.relaxed", "ld.acquire", "ld.mmio"),
    "reads a flag that others may write at any time",
)
_CHANCE = (
    (("clusterlaunchcontrol.try_cancel",), "takes whichever tile is left (cluster launch control)"),
    (("activemask",), "asks which lanes happen to be together"),
    (("mbarrier.pending_count",), "asks how many arrivals are missing at that moment"),
    (("multimem.ld_reduce",), "reads what several GPUs may write at any time"),
)
_CLOCKS = re.compile(r"%(clock(64|_hi)?|globaltimer(_lo|_hi)?)\b")
_ATOMICS = ("atom.",)
UNORDERED = ("atom.", "red.", "cp.reduce.async", "multimem.red", "red.async")
"""Whose order among each other may be any."""
ORDERING = (".acq", ".release")
FENCES = ("fence.acq_rel", "fence.sc", "fence.acquire", "membar")
"""By which an atomic operation orders other accesses: in its own opcode, or before it."""
PURE = (
    "mov.", "selp.", "setp.", "not.", "and.", "or.", "xor.", "add.", "sub.", "mul.", "mad.", "shl.",
    "shr.", "cvt.", "nanosleep.", "bra",
)  # fmt: skip
"""What computes, and does nothing else."""
WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
_LONGEST = 64
"""Instructions of a loop that polls a barrier, at most."""

Reason = tuple[Instruction, str]


def reasons(
    program: Program, counts: Sequence[int], failing: Collection[int] = ()
) -> Iterator[Reason]:
    """Instructions of a kernel whose results depend on time, and why.

    Args:
        counts: how often each was executed; those that were not count for nothing.
        failing: the lines of waits that were made to fail.
    """
    kernel = program.kernel
    used = {name for each in kernel.instructions for name in sources(each)}
    for number, step in enumerate(program.steps):
        at = step.instruction
        if not counts[number]:
            continue
        if at.opcode.startswith(_POLLS[0]):
            yield at, _POLLS[1]
        for opcodes, why in _CHANCE:
            if at.opcode.startswith(opcodes):
                yield at, why
        if any(_CLOCKS.search(operand) for operand in at.operands):
            yield at, "reads a clock"
        if at.opcode.startswith(_ATOMICS) and used & {name for _, name in destinations(at)}:
            yield at, "uses what an atomic operation returns, which depends on who comes first"
        if at.opcode.startswith(WAITS) and at.line not in failing and not repeats(program, number):
            yield at, "decides by whether a phase happens to be complete, and does not wait for it"


def unordered(program: Program, counts: Sequence[int]) -> list[Instruction]:
    """The executed atomic operations, whose order is free."""
    return [
        step.instruction
        for step, count in zip(program.steps, counts, strict=True)
        if count and step.instruction.opcode.startswith(UNORDERED)
    ]


def sources(at: Instruction) -> list[str]:
    """The registers that an instruction reads, once for each time that it names them."""
    names = mentioned(at)
    for _, name in destinations(at):
        if name in names:
            names.remove(name)
    return names


def _asked(wait: Instruction) -> set[str]:
    """The registers that say which phase of which mbarrier a wait is for."""
    return set(sources(wait)) - set(wait.operands[:1])


def repeats(program: Program, number: int) -> bool:
    """Whether a failed wait for an mbarrier is repeated, or followed by another wait for the same
    phase, before anything else happens.
    """
    wait = program.steps[number].instruction
    written = {wait.operands[0]}
    for at in walk(program, number + 1, {wait.operands[0]: 0}):
        each = program.steps[at].instruction
        if each.opcode.startswith(WAITS):
            same = (each.predicate, each.operands[1:3]) == (wait.predicate, wait.operands[1:3])
            return same and written.isdisjoint(_asked(wait))
        written |= {name for _, name in destinations(each)}
    return False


def walk(program: Program, at: int, known: Mapping[str, int]) -> Iterator[int]:
    """The instructions that are executed from one on, as far as their branches are known. The last
    one is the first that does more than compute, or that waits for an mbarrier.

    Args:
        known: the values of some registers.
    """
    steps = program.steps
    for _ in range(_LONGEST):
        if at >= len(steps):
            return
        each = steps[at].instruction
        yield at
        if not each.opcode.startswith(PURE):
            return
        taken: bool | None = True
        if each.predicate:
            value = known.get(each.predicate.lstrip("!"))
            taken = None if value is None else bool(value) != each.predicate.startswith("!")
        if each.opcode.startswith("bra"):
            target = program.kernel.target(each.operands[0], each.scope) if taken else at + 1
            if taken is None or target is None:
                return
            at = target
            continue
        known = _after(each, known, taken)
        at += 1


def _after(each: Instruction, known: Mapping[str, int], taken: bool | None) -> Mapping[str, int]:
    """The registers whose values are known after an instruction."""
    if taken is False:
        return known
    names = {name for _, name in destinations(each)}
    found = {name: value for name, value in known.items() if name not in names}
    value = _value(each, known)
    if value is not None and taken and len(names) == 1:
        found[next(iter(names))] = value
    return found


def _value(each: Instruction, known: Mapping[str, int]) -> int | None:
    """The value that an instruction computes; None if it is not known."""

    def of(text: str) -> int | None:
        return known[text] if text in known else immediate(text)

    opcode, operands = each.opcode, each.operands
    if opcode.startswith("mov."):
        return of(operands[1])
    if opcode == "not.pred" and operands[1] in known:
        return int(not known[operands[1]])
    if opcode.startswith("selp.") and operands[3] in known:
        return of(operands[1] if known[operands[3]] else operands[2])
    if opcode.startswith(("setp.eq.", "setp.ne.")) and len(operands) == 3:
        left, right = of(operands[1]), of(operands[2])
        if left is not None and right is not None:
            return int((left == right) == opcode.startswith("setp.eq."))
    return None
