"""What one thread of a PTX kernel executes, with numbers for its parameters and special registers.

`Tracer` runs the part of a kernel that branches and some chosen instructions depend on, and says
which of these are executed, in order, and what their operands are. What is not followed is unknown,
and a branch on it ends the trace, unless its ways meet again and only registers differ, which then
are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.integers import Number
from triton_ext.passes.verify_descriptors.running.launches import BASES, Bases
from triton_ext.passes.verify_descriptors.running.poison import Poison
from triton_ext.passes.verify_descriptors.running.register_functions import (
    Function,
    Registers,
    unread,
)
from triton_ext.passes.verify_descriptors.running.thread_steps import (
    RunningThread,
    SharedMemory,
    Steps,
    names_address,
)
from triton_ext.passes.verify_descriptors.running.thread_trace import (
    ExecutedInstruction,
    Operand,
    ThreadTrace,
)
from triton_ext.passes.verify_descriptors.running.trace_end import Stopped, Why, long
from triton_ext.passes.verify_descriptors.text.slices import Slicer
from triton_ext.ptx.definitions import destinations
from triton_ext.ptx.parse import Instruction, Kernel, Variable

_SHARED = ("ld.shared", "st.shared", "tcgen05.alloc", "shfl")
"""What may leave something for other threads, or depends on what they have left."""
_ENDS = ("ret", "exit", "trap")
_MAX_STEPS = 40_000
_MOST_BETWEEN = 200


@dataclass
class _Step:
    """An instruction that is prepared to be run."""

    kind: str
    guard: int | None
    negated: bool
    line: int
    run: Function | None = None
    targets: list[int] = field(default_factory=list)
    readers: list[Callable[[Registers], Operand]] = field(default_factory=list)
    goes_to: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Meeting:
    """Where both ways of a branch meet, and the registers that may be written before."""

    at: int
    targets: frozenset[int]


def _is_for_partitions(instruction: Instruction) -> bool:
    """Whether it stores at an address that the text names: what other partitions load."""
    return instruction.opcode.startswith("st.shared") and names_address(instruction.operands[0])


class Tracer(Steps):
    """Runs a kernel for one thread after the other.

    Args:
        wanted: the instructions whose executions are recorded.
        given: numbers for special registers and parameters: ``{"%ctaid.x": 2, "[k_param_1]": 64}``.
        variables: those of the module; in shared memory they begin at `Bases.shared`.
        observed: pairs of an instruction and the one of its operands that is an address.
        operands: for the wanted instructions of which only some operands are read, these operands,
            by the number of the instruction; the others are None.
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
            elif each.opcode.startswith("tcgen05.alloc") or _is_for_partitions(each):
                stores.append(each)
        slicer = Slicer(kernel)
        part = slicer.part(seeds, addressed)
        unobserved = (
            slicer.part(
                seeds,
                {i: text for i, text in addressed.items() if id(kernel.instructions[i]) in partly},
            )
            if observed
            else part
        )
        loads = any(each.opcode.startswith("ld.shared") for each in unobserved.instructions)
        if loads:
            stored = {id(each) for each in stores}
            whole = {
                number: text
                for number, text in addressed.items()
                if id(kernel.instructions[number]) not in stored
            }
            part = slicer.part(seeds + stores, whole)
        super().__init__(part, given, variables)
        self.observed, self.partly = addresses, partly
        self.stores = {id(each) for each in stores} if loads else set()
        self.wanted = {id(each) for each in chosen}
        self._memories = {self.bases: self.shared}
        self._told: dict[Bases, dict[int, list[Number]]] = {}
        self._steps: list[_Step | None] = [None] * len(part.instructions)
        self._meetings: dict[int, _Meeting | None] = {}

    def give(self, given: Mapping[str, int]) -> None:
        """Take other numbers, and forget what was stored."""
        changed = self.given.keys() | given.keys()
        self.given = given
        self._memories.clear()
        self._told.clear()
        for (text, _), slot in self._slots.items():
            if text in changed:
                self._initial[slot] = self._value_of(text)

    def run(
        self, thread: int, limit: int, bases: Bases = BASES, *, stores: bool = True
    ) -> ThreadTrace:
        """Run a thread.

        Args:
            thread: its number in the block. The first thread of its warp must have been run before
                the others.
            limit: the largest number of events.
            bases: where memory begins.
            stores: whether what it stores is kept for the threads that are run later.
        """
        trace = ThreadTrace()
        self.bases, lane = bases, thread % WARP_THREADS
        self.shared = self._memories.setdefault(bases, SharedMemory())
        for slot, extra in self._symbols.items():
            self._initial[slot] = bases.shared + extra
        if not lane:
            self._told[bases] = {}
        told = self._told.setdefault(bases, {})
        self._thread = RunningThread(lane, stores, trace.elections, told)
        special = {"%tid.x": thread, "%laneid": lane, "%tid.y": 0, "%tid.z": 0}
        for name, value in special.items():
            self._initial[self._slot(name, ())] = value
        self.registers = list(self._initial)
        registers, instructions = self.registers, self.kernel.instructions
        at, total = 0, len(instructions)
        try:
            for _ in range(_MAX_STEPS):
                if at >= total:
                    return trace
                step = self._steps[at] or self._prepared(at)
                guard = step.guard
                if guard is not None:
                    holds = registers[guard]
                    is_known = holds is not None and not isinstance(holds, Poison)
                    if not is_known and step.kind == "branch" and (met := self._meeting(at)):
                        for slot in met.targets:
                            registers[slot] = holds
                        at = met.at
                        continue
                    if isinstance(holds, Poison):
                        trace.poison = instructions[at], holds
                        holds = None
                    if holds is None and step.kind != "access":
                        if step.kind != "plain":
                            raise Stopped(f"the condition of PTX line {step.line} is not known")
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
                    trace.events.append(ExecutedInstruction(instructions[at], values))
                    if step.run is not None:
                        step.run(registers)
                    if len(trace.events) >= limit:
                        trace.end = long("of them", f"PTX line {step.line}")
                        break
                    at += 1
                elif kind == "branch":
                    at = step.goes_to[0]
                elif kind == "end":
                    return trace
                else:  # brx.idx
                    index = step.readers[0](registers)
                    if not isinstance(index, int) or index >= len(step.goes_to):
                        raise Stopped(f"where PTX line {step.line} branches to is not known")
                    at = step.goes_to[index]
            else:
                line = instructions[min(at, total - 1)].line
                trace.end = long("instructions", f"PTX line {line}")
        except Stopped as reason:
            trace.end = reason.end
        if not thread and trace.end.why is Why.LONG:
            self.shared.is_cut_off = True
        return trace

    def _prepared(self, at: int) -> _Step:
        step = self._steps[at]
        if step is None:
            step = self._steps[at] = self._step(self.kernel.instructions[at])
        return step

    def _meeting(self, branch: int) -> _Meeting | None:
        """Where both ways of a branch meet, if they differ in registers alone: so they do where
        libdevice treats rare elements.

        None if an instruction between them is recorded, or accesses shared memory, and if a way
        ends the kernel.
        """
        if branch not in self._meetings:
            ways, found = self._following(branch), None
            for at in self._reached(ways[:1])[0]:
                between, is_all = self._reached(ways, at)
                if is_all:
                    written = (slot for each in between for slot in self._prepared(each).targets)
                    found = _Meeting(at, frozenset(written))
                    break
            self._meetings[branch] = found
        return self._meetings[branch]

    def _reached(self, starts: Sequence[int], end: int = -1) -> tuple[list[int], bool]:
        """The instructions that may be executed from some on until `end`, the nearest first; and
        whether none of them does more than write registers."""
        found, is_all = [at for at in dict.fromkeys(starts) if at != end], True
        seen = {*found, end}
        for at in found:
            if at >= len(self._steps) or len(found) > _MOST_BETWEEN:
                return found, False
            is_shared = self.kernel.instructions[at].opcode.startswith(_SHARED)
            if self._prepared(at).kind not in ("plain", "branch") or is_shared:
                is_all = False
                continue
            following = [each for each in self._following(at) if each not in seen]
            found += following
            seen.update(following)
        return found, is_all

    def _following(self, at: int) -> list[int]:
        """The instructions that may be executed after another one, the next in the text first."""
        step = self._prepared(at)
        goes_on = step.kind != "branch" or step.guard is not None
        return [*([at + 1] if goes_on else []), *step.goes_to]

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
                unread if is_partly and text[:1] == "{" else self._reader(text, scope)
                for text in operands
            ]
            step.targets = [self._slot(name, scope) for _, name in destinations(instruction)]
            if step.targets or opcode.startswith("tcgen05.alloc"):
                step.run = self._compiled(instruction, step.targets)
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
