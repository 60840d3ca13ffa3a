"""What is undefined by the letter of the documents, and relied on by published kernels.

In its *hardware* mode, the default, the emulator does what silicon is seen to do, and says once
what it took on whose word. In its *strict* mode each of these is a fault. Nothing else differs
between the two but what `triton_ext.emulator.schedule.meetings` says of branches.
``docs/reference/undefined.md`` is written from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from triton_ext.emulator.errors import location_of, shown_location
from triton_ext.findings import Finding
from triton_ext.ptx.parse import Instruction


@dataclass(frozen=True)
class Leniency:
    """Something undefined that the hardware mode runs.

    Attributes:
        name: for machines.
        undefined: what a program does, and why that is undefined.
        taken: what it is taken for.
        document: where the documents say so.
        evidence: on whose word it is taken.
    """

    name: str
    undefined: str
    taken: str
    document: str
    evidence: str


QUARTER = Leniency(
    "tensor-memory-quarter",
    "a warp's tcgen05.ld or st names lane 0, which is not in its own quarter of tensor memory",
    "the same lanes of the warp's quarter: the hardware takes the quarter from the warp's number"
    " modulo 4; any other wrong quarter is a fault",
    'PTX ISA, "Tensor Memory Access Restrictions"',
    "DeepGEMM, JAX's Mosaic GPU, Modular's and learn-cuda's kernels: all warps name lane 0, and"
    " their results are checked on Blackwell GPUs",
)
LANE = Leniency(
    "tensor-memory-lane",
    "a warp's tcgen05.ld or st names a lane from 128 to 255, as if those of a pair of blocks were"
    " counted through; a block has 128",
    "that lane less 128, if it is in the warp's own quarter",
    'PTX ISA, "Tensor Memory Addressing"',
    "learn-cuda's kernels v5 to v7: their second block's results are checked on Blackwell GPUs",
)
ADDRESS = Leniency(
    "alloc-commit-address",
    "tcgen05.alloc or commit has a generic address where its opcode says .shared, or a shared one"
    " where it does not",
    "the shared address in its lower 32 bits",
    'PTX ISA, "tcgen05.alloc" and "tcgen05.commit"',
    "ThunderKittens; of either form ptxas 13.4 makes an instruction that reads 32 bits of the"
    " address",
)
VERSION = Leniency(
    "descriptor-version",
    "the version of a tcgen05 matrix descriptor (bits 46 to 48) is 0, and must be 1",
    "version 1",
    'PTX ISA, "Shared memory descriptor"',
    "JAX's Mosaic GPU, whose results are checked on Blackwell GPUs",
)
LAST_STORE = Leniency(
    "last-store",
    "a block ends while a bulk copy out of its shared memory may still read it: its thread has not"
    " waited for it, nor, perhaps, committed it to a group",
    "the block's shared memory lives until its copies are done",
    'PTX ISA, "Async proxy" and "cp.async.bulk.wait_group"',
    "kernels of seven of eleven code bases that were run, whose last store is not waited for;"
    " FlashAttention-4's backward pass does not commit it",
)
REMOTE_SCOPE = Leniency(
    "remote-scope",
    "an mbarrier.arrive at another block's barrier releases at .cta scope, which does not have"
    " that block in it; .cta is also what is meant where no scope is named",
    "a release to the barrier's block",
    'PTX ISA, "mbarrier.arrive" (".scope") and "Memory Consistency Model"',
    "CUTLASS's ClusterBarrier::arrive(cta_id) and what is built on it; of .release.cta and of no"
    " qualifier ptxas 12.9 and 13.4 make the same instruction",
)
THREAD_SYNC = Leniency(
    "thread-sync-fence",
    "a tcgen05 instruction uses tensor memory after another thread's, a barrier orders the two, and"
    " tcgen05.fence::after_thread_sync is missing behind it (in CUDA C++, or a kernel that has"
    " tcgen05.fence elsewhere: of compilers that emit none, nothing is said)",
    "ordered by the barrier alone",
    'PTX ISA, "tcgen05.fence" and "Memory Consistency Model for 5th generation of TensorCore'
    ' operations"',
    "Triton, which emits no tcgen05.fence; ptxas 13.4, which makes no instruction of one",
)
INIT_AGAIN = Leniency(
    "mbarrier-init-again",
    "an mbarrier is initialised by several threads, all with the same count, before its use",
    "one mbarrier; each of these threads must be ordered before its use",
    'PTX ISA, "mbarrier.init"',
    "Modular's kernel 8 of its Blackwell series, in which all threads of a block initialise four"
    " barriers, and whose results are checked on Blackwell GPUs",
)
RELAXED_BARRIER = Leniency(
    "relaxed-barrier",
    "a warp reads shared memory that another warp of its block wrote, or frees tensor memory that"
    " the other block of its pair allocated, before a barrier of the cluster whose arrivals are"
    " .relaxed, which order no memory",
    "what the other warp did: the barrier has waited for it",
    'PTX ISA, "barrier.cluster" (".relaxed")',
    "DeepGEMM's kernels for pairs of blocks, whose tcgen05.alloc writes the address so; their"
    " results are checked on Blackwell GPUs",
)
TWICE = Leniency(
    "barrier-twice",
    "a warp that has not waited at a numbered barrier (bar.arrive) arrives there again in the same"
    " phase, and both arrivals are in the number of threads that the barrier is given: that is the"
    " number of threads which participate",
    "an arrival of as many threads more",
    'PTX ISA, "bar"',
    "FlashAttention-4 and QuACK: the first warpgroup of two that take turns lets itself in so, and"
    " the warp that stores a piece arrives and waits; their results are checked on Hopper and"
    " Blackwell GPUs",
)
SWAP_LOOP = Leniency(
    "swap-loop",
    "an ordinary load reads what atom.cas then compares and swaps, while other threads may swap"
    " there",
    "a relaxed load of the scope of the swap: if its value is out of date, the loop turns again",
    'PTX ISA, "Memory Consistency Model: Data-Races"',
    'NVIDIA\'s CUDA C++ Programming Guide, "Atomic Functions", which makes atomic operations of'
    " atomicCAS so",
)
LENIENCIES = (
    QUARTER,
    LANE,
    ADDRESS,
    VERSION,
    LAST_STORE,
    REMOTE_SCOPE,
    THREAD_SYNC,
    RELAXED_BARRIER,
    INIT_AGAIN,
    TWICE,
    SWAP_LOOP,
)


@dataclass(frozen=True)
class Taken:
    """A leniency that a launch has made use of.

    Attributes:
        rule: which one.
        instruction, where: the first instruction that needed it, and who executed it.
    """

    rule: Leniency
    instruction: Instruction | None
    where: str

    def __str__(self) -> str:
        rule = self.rule
        return (
            f"undefined [{rule.name}]: {rule.undefined} ({rule.document}). Taken for: {rule.taken}."
            f" On the word of: {rule.evidence}. (strict=True, or --strict, refuses it)"
            f"{shown_location(self.instruction, self.where)}"
        )

    def finding(self) -> Finding:
        """The same for machines: a warning at the instruction's line."""
        rule = self.rule
        about = f"{rule.undefined[0].upper()}{rule.undefined[1:]}."
        text = f"{rule.undefined} ({rule.document}); taken for {rule.taken}"
        return Finding(
            f"undefined/{rule.name}", about, "warning", text, location_of(self.instruction)
        )
