"""One thread run twice, with memory at two addresses: what is an address must move with it.

So a base that an address lacks, or has twice, shows; also in accesses of which the TTGIR says
nothing.
"""

from __future__ import annotations

from triton_ext.hardware.smem_descriptor import START_ADDRESS_MASK
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.launches import BASES, MOVED
from triton_ext.passes.verify_descriptors.running.thread_trace import Operand, ThreadTrace
from triton_ext.ptx.parse import Instruction

_SHARED, _TENSOR = MOVED.shared - BASES.shared, MOVED.tensor - BASES.tensor
_IN_TENSOR_MEMORY = ("tcgen05.mma", "tcgen05.cp", "tcgen05.ld", "tcgen05.st")
_WITH_DESCRIPTORS = ("wgmma.mma", "tcgen05.mma", "tcgen05.cp")


def _moved(instruction: Instruction, text: str, value: int) -> int:
    """The value of an operand when memory begins at `MOVED`."""
    if instruction.opcode.startswith("tcgen05.dealloc") and text == instruction.operands[0]:
        return value + _TENSOR
    if text[:1] == "[" and not value >> 32:
        is_tensor = instruction.opcode.startswith(_IN_TENSOR_MEMORY)
        return value + (_TENSOR if is_tensor else _SHARED)
    is_wide = text.startswith("%rd") or value >> 32  # inline assembly has registers of other names
    if is_wide and instruction.opcode.startswith(_WITH_DESCRIPTORS):
        start = value + _SHARED // CHUNK_BYTES & START_ADDRESS_MASK
        return value & ~START_ADDRESS_MASK | start
    return value


def compare_moved(findings: Findings, here: ThreadTrace, there: ThreadTrace) -> None:
    """Compare two runs of a thread: `here`, and `there` with memory at `MOVED`."""
    for one, other in zip(here.events, there.events, strict=False):
        if one.instruction is not other.instruction:
            findings.differ(
                None, one.instruction, "its execution", "the same wherever memory begins", "not"
            )
            return
        for text, first, second in zip(
            one.instruction.operands, one.operands, other.operands, strict=True
        ):
            if not _check(findings, one.instruction, text, first, second):
                return
    for (instruction, first, _), (again, second, _) in zip(
        here.accesses, there.accesses, strict=False
    ):
        if instruction is again and not _check(findings, instruction, "[", first, second):
            return


def _check(
    findings: Findings, instruction: Instruction, text: str, first: Operand, second: Operand
) -> bool:
    if isinstance(first, tuple) or isinstance(second, tuple):
        if first == second:
            return True
    elif not isinstance(first, int) or not isinstance(second, int):
        return True
    elif _moved(instruction, text, first) == second:
        findings.proven["addresses that move with memory"] += 1
        return True
    findings.differ(
        None, instruction, f"the operand {text if text != '[' else '(its address)'}",
        "an address that moves with the start of the memory, or a number that does not",
        f"{first} and then {second}, where memory is at {BASES} and at {MOVED}",
    )  # fmt: skip
    return False
