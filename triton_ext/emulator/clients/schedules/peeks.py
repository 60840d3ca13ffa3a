"""A ``try_wait`` that only says whether a later wait can be skipped, as in CUTLASS's pipelines.

Whether it passes depends on time. If nothing but a wait for the same phase hangs on that, the run
is judged with all of them failing, as they may: one that passes orders no less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from triton_ext.emulator.clients.schedules.timing import WAITS, repeats, sources, walk
from triton_ext.emulator.decode.program import Program
from triton_ext.ptx.definitions import destinations

Name = tuple[str, tuple[int, ...]]
_FOLLOWED = ("mov.", "selp.", "setp.", "not.", "and.", "or.", "xor.", "cvt.")
"""What only makes another value of the answer."""


def peeks(program: Program) -> frozenset[int]:
    """The PTX lines of all such ``try_wait``."""
    found: dict[int, bool] = {}
    for number, step in enumerate(program.steps):
        at = step.instruction
        if at.opcode.startswith("mbarrier.try_wait") and not repeats(program, number):
            found[at.line] = found.get(at.line, True) and _only_skips(program, number)
    return frozenset(line for line, good in found.items() if good)


def _only_skips(program: Program, number: int) -> bool:
    """Whether the answer of a ``try_wait`` only decides on branches around waits."""
    answers = {program.steps[number].instruction.operands[0]}
    instructions = [step.instruction for step in program.steps]
    before = 0
    while before != len(answers):
        before = len(answers)
        for each in instructions:
            if not answers.isdisjoint(sources(each)) and each.opcode.startswith(_FOLLOWED):
                answers |= {name for _, name in destinations(each)}
    for at, each in enumerate(instructions):
        if answers.isdisjoint(sources(each)) or each.opcode.startswith(_FOLLOWED):
            continue
        branches = each.opcode.startswith("bra") and each.predicate.lstrip("!") in answers
        if not branches or not _meet(program, at):
            return False
    return True


def _meet(program: Program, branch: int) -> bool:
    """Whether both ways of a branch meet, with nothing but waits on either."""
    target = program.kernel.target(
        program.steps[branch].instruction.operands[0], program.steps[branch].instruction.scope
    )
    if target is None:
        return False
    ways = [list(_quiet(program, start)) for start in (branch + 1, target)]
    common = [at for at in ways[0] if at in set(ways[1])]
    if not common:
        return False
    apart = {at for way in ways for at in way[: way.index(common[0])]}
    inner = {each.name for each in program.kernel.variables if each.scope}

    def named(names: Iterable[str], at: int) -> set[Name]:
        """Registers by name, with the block of braces that may declare them."""
        scope = program.steps[at].instruction.scope
        return {(name, scope if name in inner else ()) for name in names}

    written: set[Name] = set()
    for at in apart:
        written |= named((name for _, name in destinations(program.steps[at].instruction)), at)
    return all(
        at in apart or written.isdisjoint(named(sources(step.instruction), at))
        for at, step in enumerate(program.steps)
    )


def _quiet(program: Program, at: int) -> Iterator[int]:
    """The instructions from one on, up to the first that does more than wait for an mbarrier."""
    known: dict[str, int] = {}
    for _ in range(4):  # waits, one after the other
        wait = None
        for here in walk(program, at, known):
            yield here
            if program.steps[here].instruction.opcode.startswith(WAITS):
                wait = here
        if wait is None or not repeats(program, wait):
            return
        known = {program.steps[wait].instruction.operands[0]: 1}
        at = wait + 1
