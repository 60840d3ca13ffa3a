"""What comparing executions finds: differences, and how much is proven or is not known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from triton_ext.integers import Number
from triton_ext.mlir.ir import Operation, Value
from triton_ext.passes.verify_descriptors.running.poison import Poison
from triton_ext.passes.verify_descriptors.text.comparison import Difference
from triton_ext.ptx.parse import Instruction

LOW_WORD = (1 << 32) - 1


@dataclass
class Findings:
    """What comparing a kernel's PTX with its TTGIR has found.

    Attributes:
        differences: where the PTX differs, each with the operation; None if none is executed there.
        proven: the number of executions, and of facts about them, that are as they must be.
        unproven: the number of those that are not known.
        of_the_kernel: faults of the module itself: the operation, and the error.
        compared: the PTX lines of the stores that were found to be those of operations.
        left_out: the PTX lines of instructions that are not compared, each with the reason.
        starts: the address in the PTX at which each allocation begins, and the instruction that
            tells it.
        constants: operands that no execution may change, by the `id` of the instruction.
        threads, blocks: the numbers of the threads and blocks that were run.
    """

    differences: list[tuple[Operation | None, Difference]] = field(default_factory=list)
    proven: Counter[str] = field(default_factory=Counter)
    unproven: Counter[str] = field(default_factory=Counter)
    of_the_kernel: list[tuple[Operation, str]] = field(default_factory=list)
    compared: set[int] = field(default_factory=set)
    left_out: dict[int, str] = field(default_factory=dict)
    starts: dict[Value, tuple[int, Instruction]] = field(default_factory=dict)
    constants: dict[tuple[int, str], Number] = field(default_factory=dict)
    threads: set[int] = field(default_factory=set)
    blocks: set[tuple[int, int, int]] = field(default_factory=set)

    def __iadd__(self, other: Findings) -> Findings:
        self.differences += other.differences
        self.proven += other.proven
        self.unproven += other.unproven
        self.of_the_kernel += other.of_the_kernel
        self.compared |= other.compared
        self.left_out |= other.left_out
        self.starts |= other.starts
        self.constants |= other.constants
        self.threads |= other.threads
        self.blocks |= other.blocks
        return self

    def start_of(self, root: Value) -> int | None:
        """Where an allocation begins, if that is known."""
        return self.starts[root][0] if root in self.starts else None

    def differ(
        self,
        operation: Operation | None,
        instruction: Instruction,
        what: str,
        expected: object,
        found: object,
    ) -> None:
        """Note a difference."""
        difference = Difference(instruction, what, str(expected), str(found))
        self.differences.append((operation, difference))

    def check(
        self,
        kind: str,
        operation: Operation,
        instruction: Instruction,
        what: str,
        expected: Number,
        found: Number,
        mask: int = LOW_WORD,
    ) -> bool:
        """Count a number, of which the bits of `mask` matter; whether it does not differ."""
        if isinstance(found, Poison):
            if expected is not None:
                self.differ(operation, instruction, what, expected, found)
                return False
            found = None
        if expected is None or found is None:
            self.unproven[kind] += 1
        elif expected & mask == found & mask:
            self.proven[kind] += 1
        else:
            self.differ(operation, instruction, what, expected & mask, found & mask)
            return False
        return True
