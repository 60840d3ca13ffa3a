"""The operations of a partition against what a thread executes, one after the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from triton_ext.mlir.ir import Operation
from triton_ext.passes.value_layouts import parsed_encoding
from triton_ext.passes.verify_descriptors.compared import Compared
from triton_ext.passes.verify_descriptors.meaning.expected import Expected, predicate_of
from triton_ext.passes.verify_descriptors.meaning.kinds import BY_EACH_THREAD, kind_of
from triton_ext.passes.verify_descriptors.memory.stores import Move
from triton_ext.passes.verify_descriptors.memory.transfers import memory_of
from triton_ext.passes.verify_descriptors.running.executions import Block, Execution
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.mlir_trace import (
    ExecutedOperation,
    PartitionTrace,
)
from triton_ext.passes.verify_descriptors.running.tensormaps import ACQUIRE, CREATE, is_part, making
from triton_ext.passes.verify_descriptors.running.thread_trace import (
    ExecutedInstruction,
    ThreadTrace,
)
from triton_ext.passes.verify_descriptors.text.groups import Group
from triton_ext.ptx.parse import Instruction

_THIS_ONE = "the operation that is executed here, for one choice of arguments,"
_HOW_OFTEN = "how often it is executed, for one choice of arguments,"


@dataclass
class Partition:
    """A partition of one block, and the thread that is compared with it.

    Attributes:
        block: the block, and which thread of the partition it is.
        thread: the instructions that are looked at.
        found: what the comparison found.
        at: how many of the thread's events are compared.
        pending: moves since the last operation that has instructions.
        moves: the executed operations that store tensors.
        transfers: the executed operations on tensor memory.
        is_whole: whether `moves` are all that were executed, and the thread came to its end.
    """

    block: Block
    thread: ThreadTrace
    found: Findings
    at: int = 0
    pending: list[Move] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    transfers: list[Move] = field(default_factory=list)
    is_whole: bool = False


class Sequences:
    """What the comparison of one sequence of executions must know.

    Attributes:
        block: the block, and which of its threads is looked at.
        result: what was found so far: where allocations begin.
    """

    compared: Compared
    block: Block
    result: Findings

    def is_compared(self, one: Expected | None) -> bool:
        """Whether an operation is looked at in this block.

        Which blocks issue an MMA, or a copy of what several hold, is not said in the TTGIR.
        """
        if one is None or not self.block.rank:
            return one is not None
        if one.kind != "tma" or "multicast" in one.operation.attributes:
            return False
        memory = self.compared.module.memory(one.tile) if one.tile and one.barrier is None else None
        encoding = parsed_encoding(memory.encoding) if memory else None
        # Of what several blocks hold alike, one of them stores it.
        return encoding is None or all(map(any, getattr(encoding, "cga_layout", ())))

    def is_followed(self, instruction: Instruction) -> bool:
        """Whether an instruction is looked at in this block."""
        if is_part(instruction.opcode):
            return not self.block.rank
        if id(instruction) not in self.compared.position:
            return False
        group = self.compared.position[id(instruction)][0]
        allowed = self.compared.allowed[id(group)]
        if self.block.rank and group.is_in_order:
            return False
        return not self.block.rank or all(
            self.is_compared(one) for one in self.compared.expected.values() if id(one) in allowed
        )

    def partition(self, expected: PartitionTrace, found: ThreadTrace) -> Partition:
        """One partition's operations, one after the other."""
        followed = [i for i, each in enumerate(found.events) if self.is_followed(each.instruction)]
        events = [found.events[i] for i in followed]
        accesses = [
            (instruction, address, bisect_left(followed, when))
            for instruction, address, when in found.accesses
        ]
        findings = Findings(starts=dict(self.result.starts))
        thread = ThreadTrace(found.poison, events, accesses, found.end)
        result = Partition(self.block, thread, findings)
        if not all(self.execution(event, result) for event in expected.events):
            return result
        if expected.end.is_early or found.end.is_early:
            if result.pending:
                after = "stores: executed after the end of the trace"
                findings.unproven[after] += len(result.pending)
        else:
            result.moves += result.pending
            result.is_whole = True
        if expected.end.is_early:
            findings.unproven[f"executions after the first ones: {expected.end.reason}"] += 1
        elif result.at < len(events):
            findings.differ(
                None, events[result.at].instruction, _HOW_OFTEN, "as often as its operation",
                "more often",
            )  # fmt: skip
        elif found.poison is not None:
            findings.differ(
                None, found.poison[0], "its condition", "one of the kernel's", found.poison[1]
            )
        elif found.end.is_early:
            findings.unproven[f"the end of the PTX: {found.end.reason}"] += 1
        return result

    def execution(self, event: ExecutedOperation, result: Partition) -> bool:
        """The next operation; whether the rest can be compared, too."""
        findings, operation, events = result.found, event.operation, result.thread.events
        execution, block = Execution(self.block, result.found, event), self.block
        if operation.name in (CREATE, ACQUIRE):
            return bool(block.rank or block.warp) or self.descriptor(execution, result)
        one = self.compared.expected.get(id(operation))
        if id(operation) in self.compared.transfers:
            *_, last = event.operands or (1,)
            if operation.name != "ttng.tmem_store" or last == 1:
                memory = memory_of(operation)
                is_new = memory in operation.results
                address = (memory, 0) if is_new else execution.values.get(memory)
                result.transfers.append(Move(operation, address, result.at))
            return True
        if one is None:
            is_new = operation.name == "ttg.local_alloc"
            target = (operation.results[0], 0) if is_new else event.operands[1]
            result.pending.append(Move(operation, target, result.at))
            return True
        if not self.is_compared(one):
            return True
        predicate = predicate_of(operation)
        holds = 1 if predicate is None else execution.values.get(predicate)
        if not isinstance(holds, int):
            findings.unproven["executions: a predicate is not known"] += 1
            return False
        if not holds:
            return True
        if block.takes_part(one):
            group = self.next_group(one, one.kind, result)
            if group is None:
                return False
            instance = self.instance(events, result.at)
            is_last = result.at + len(instance) == len(events)
            if is_last and result.thread.end.is_early and len(instance) < len(group.instructions):
                self.stopped(result, operation)
                return False
            execution.compare(one, group, instance)
            result.at += len(instance)
        for kind, barrier, condition in one.after:
            holds = 1 if condition is None else execution.values.get(condition)
            if not isinstance(holds, int):
                findings.unproven["executions: a predicate is not known"] += 1
                return False
            if block.rank or not holds or not (kind in BY_EACH_THREAD or block.takes_part(one)):
                continue
            if one.rows and (
                result.at >= len(events) or kind_of(events[result.at].instruction) != kind
            ):
                continue  # of a scatter, only the threads that copy wait for it
            if self.next_group(one, kind, result) is None:
                return False
            execution.followed_by(kind, barrier, events[result.at])
            result.at += 1
        if findings.differences:
            return False
        findings.proven["executions"] += 1
        # What follows the last event of a trace that ends early may not be in it.
        reached = len(events) - int(result.thread.end.is_early)
        while result.pending and result.pending[0].when <= reached:
            result.moves.append(result.pending.pop(0))
        return True

    def descriptor(self, execution: Execution, result: Partition) -> bool:
        """A TMA descriptor that the kernel makes, or the fence that lets copies see it; whether the
        rest can be compared, too."""
        operation, events = execution.operation, result.thread.events[result.at :]
        if not events:
            self.stopped(result, operation)
            return False
        is_fence = operation.name == ACQUIRE
        count = making(events)
        if is_fence:
            count = int(events[0].instruction.opcode.startswith("fence."))
        if not count:
            is_cut = all(is_part(each.instruction.opcode) for each in events)
            if is_cut and result.thread.end.is_early:
                self.stopped(result, operation)
            else:
                first = events[0].instruction
                result.found.differ(operation, first, _THIS_ONE, operation.name, "another one")
            return False
        result.at += count
        if is_fence:
            is_right = execution.acquire_descriptor(events[0])
            result.at += execution.ending(events[count:])
            return is_right
        return execution.make_descriptor(events[:count])

    def next_group(self, one: Expected, kind: str, result: Partition) -> Group | None:
        """The group of the next event, which must be of an operation; None if it is not."""
        if result.at >= len(result.thread.events):
            self.stopped(result, one.operation)
            return None
        first = result.thread.events[result.at].instruction
        group = None if is_part(first.opcode) else self.compared.position[id(first)][0]
        if group is None or group.kind != kind or id(one) not in self.compared.allowed[id(group)]:
            is_ = "a TMA descriptor is made" if group is None else "another one"
            result.found.differ(one.operation, first, _THIS_ONE, one.operation.name, is_)
            return None
        return group

    def instance(self, events: Sequence[ExecutedInstruction], at: int) -> list[ExecutedInstruction]:
        """The events of one execution of a group."""
        group, index = self.compared.position[id(events[at].instruction)]
        found = [events[at]]
        for event in events[at + 1 :]:
            other, position = self.compared.position.get(id(event.instruction), (None, 0))
            if other is not group or position <= index:
                break
            found.append(event)
            index = position
        return found

    def stopped(self, result: Partition, operation: Operation) -> None:
        """The PTX executes no more, but the module does."""
        end = result.thread.end.reason
        if result.thread.poison is not None:
            instruction, poison = result.thread.poison
            result.found.differ(
                operation, instruction, "its condition", "one of the kernel's", poison
            )
            return
        if not end and any(each.name == "tt.assert" for each in self.compared.module.operations):
            end = "an assertion may fail"
        if end:
            result.found.unproven[f"executions after the first ones: {end}"] += 1
        else:
            result.found.differ(
                operation, self.first_of(operation), _HOW_OFTEN, "as often as its operation",
                "less often",
            )  # fmt: skip

    def first_of(self, operation: Operation) -> Instruction:
        """An instruction that an operation may have become."""
        if (one := self.compared.expected.get(id(operation))) is None:
            parts = (each for each in self.compared.kernel.instructions if is_part(each.opcode))
            return next(parts, self.compared.kernel.instructions[-1])
        found = (
            group.first
            for group, _ in self.compared.position.values()
            if id(one) in self.compared.allowed[id(group)]
        )
        return next(found, self.compared.kernel.instructions[-1])
