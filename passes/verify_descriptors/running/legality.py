"""Which executed instructions break a rule of the hardware, whatever the TTGIR says.

That PTX and TTGIR agree on an address does not make it legal: a stage of 32 bytes of a pipelined
TMA copy begins where no box may. The rules are those of the emulator
(`triton_ext.hardware.alignments`). Instructions of inline assembly are held to them, too.
"""

from __future__ import annotations

from collections.abc import Iterator

from triton_ext.errors import LayoutError
from triton_ext.hardware.alignments import (
    BOX,
    BULK_ADDRESS,
    BULK_SIZE,
    MBARRIER,
    RESPONSE,
    TENSOR_MAP,
    AlignmentRule,
)
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.poison import OF_TENSORS, Poison
from triton_ext.passes.verify_descriptors.running.thread_trace import (
    ExecutedInstruction,
    Operand,
    ThreadTrace,
)
from triton_ext.ptx.forms import MbarrierOperation, TensorCopy, read
from triton_ext.ptx.forms.copies import BulkCopy
from triton_ext.ptx.parse import Instruction

_WAIT = "tcgen05.wait::"
BOUND_TO_RULES = (
    _WAIT, "cp.async.bulk", "cp.reduce.async.bulk", "clusterlaunchcontrol.try_cancel",
)  # fmt: skip
"""Instructions that are run for these rules, beside those that are compared with operations."""
BY_ELEMENTS = frozenset(
    ("tt.gather", "tt.histogram", "ttg.local_gather", "ttg.local_scatter", "ttg.local_atomic_rmw")
)
"""Operations that address shared memory by the elements of a tensor."""
_FACT = "addresses and sizes that are legal"


def check_legality(findings: Findings, trace: ThreadTrace, by_elements: bool) -> None:
    """Hold all that a thread executes to the rules. `findings`: what is found is added to them; of
    each instruction once. `by_elements`: whether the elements of tensors may be addresses."""
    for instruction, address, _ in trace.accesses:
        if isinstance(address, Poison) and not (by_elements and address is OF_TENSORS):
            findings.differ(None, instruction, "its address", "one of the kernel's", address)
            return
    for instruction in _not_waited_for(trace):
        findings.differ(
            None, instruction, "what comes next in the same thread", "the wait for it",
            "another instruction",
        )  # fmt: skip
        return
    for event in trace.events:
        for rule, value in _ruled(event):
            if isinstance(value, Poison):
                findings.differ(
                    None, event.instruction, rule.what.format("").strip(" :"), "a number", value
                )
                return
            broken = rule.broken(value) if isinstance(value, int) else ""
            if broken:
                findings.differ(
                    None, event.instruction, rule.what.format("").strip(" :"),
                    f"a multiple of {rule.multiple} ({rule.source})", f"{value:#x}",
                )  # fmt: skip
                return
            if isinstance(value, int):
                findings.proven[_FACT] += 1


def _not_waited_for(trace: ThreadTrace) -> Iterator[Instruction]:
    """Loads from tensor memory and stores to it that another recorded instruction follows before
    ``tcgen05.wait``, which orders them (PTX ISA, "tcgen05.wait")."""
    for instruction, _, when in trace.accesses:
        kind = instruction.opcode[len("tcgen05.") :][:2]
        if not instruction.opcode.startswith("tcgen05.") or kind not in ("ld", "st"):
            continue
        other = _WAIT + ("st" if kind == "ld" else "ld")
        following = (each.instruction.opcode for each in trace.events[when:])
        first = next((opcode for opcode in following if not opcode.startswith(other)), None)
        if first is None and trace.end.is_early:
            return
        if first is None or not first.startswith(_WAIT):
            yield instruction


def _ruled(event: ExecutedInstruction) -> Iterator[tuple[AlignmentRule, Operand]]:
    """The operands of which there is a rule."""
    instruction = event.instruction

    def value(text: str) -> Operand:
        return event.operands[instruction.operands.index(text)] if text else None

    if instruction.opcode.startswith(BOUND_TO_RULES[-1]):
        yield RESPONSE, event.operands[0]
        yield MBARRIER, event.operands[1]
        return
    try:
        form = read(instruction)
    except LayoutError:
        return
    if isinstance(form, TensorCopy):
        tensor = value(form.tensor)
        yield TENSOR_MAP, tensor[0] if isinstance(tensor, tuple) else None
        if form.destination != "L2":
            yield BOX, value(form.dst_mem or form.src_mem)
        if form.mbarrier:
            yield MBARRIER, value(form.mbarrier)
    elif isinstance(form, BulkCopy):
        yield BULK_ADDRESS, value(form.dst_mem)
        yield BULK_ADDRESS, value(form.src_mem)
        yield BULK_SIZE, value(form.size)
        if form.mbarrier:
            yield MBARRIER, value(form.mbarrier)
    elif isinstance(form, MbarrierOperation) and form.barrier:
        yield MBARRIER, value(form.barrier)
