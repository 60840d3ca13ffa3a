"""What the asynchronous and tensor-core instructions of a kernel do, in words and as values.

These are TMA copies, mbarrier operations, MMAs, accesses to tensor memory, and the fences and waits
between them. The values are those that `Folder` knows: for the first thread of the first block, and
for the first iteration of a loop. Where a value depends on one of these, the words say so.
"""

from __future__ import annotations

from triton_ext.errors import LayoutError
from triton_ext.ptx import (  # noqa: F401  # each adds the notes of its forms
    completion_notes,
    copy_notes,
    product_notes,
    tensor_memory_notes,
)
from triton_ext.ptx.forms import read
from triton_ext.ptx.notes import Notes, add_notes

_WITHOUT_OPERANDS = {
    "tcgen05.wait::ld": "waits for this thread's tcgen05.ld",
    "tcgen05.wait::st": "waits for this thread's tcgen05.st",
    "tcgen05.fence::before_thread_sync": (
        "tcgen05 instructions so far come before the next synchronization of threads"
    ),
    "tcgen05.fence::after_thread_sync": (
        "later tcgen05 instructions come after the last synchronization of threads"
    ),
    "fence.mbarrier_init": "mbarriers that are initialized are seen by the cluster",
    "fence.proxy.async": "ordinary reads and writes so far are seen by TMA and the tensor core",
    "fence.proxy.tensormap": "a tensor map written by code is seen by TMA",
    "barrier.cluster.arrive": "arrives at the barrier of the cluster's threads",
    "barrier.cluster.wait": "waits for the cluster's threads",
}
"""Beginning of the opcode -> what an instruction says that has no operands."""

LISTED = (
    "wgmma.", "tcgen05.", "mbarrier.", "cp.async.bulk", "cp.reduce.async.bulk", "fence.",
    "barrier.cluster.",
)  # fmt: skip
"""The opcodes of the instructions that are listed start with one of these."""


def explain(notes: Notes) -> None:
    """Add what is known about the instruction of some notes."""
    try:
        add_notes(read(notes.instruction), notes)
    except LayoutError as error:
        notes.add(f"not understood: {error.rule}")
    for prefix, line in _WITHOUT_OPERANDS.items():
        if notes.instruction.opcode.startswith(prefix):
            notes.add(line)
