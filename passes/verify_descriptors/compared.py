"""What of a kernel is compared: the operations of its TTGIR, and the instructions of its PTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from triton_ext.mlir.ir import Operation
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.verify_descriptors.meaning.expectations import ModuleExpectations
from triton_ext.passes.verify_descriptors.meaning.expected import Expected
from triton_ext.passes.verify_descriptors.memory.stores import moves
from triton_ext.passes.verify_descriptors.memory.transfers import transfers
from triton_ext.passes.verify_descriptors.running.legality import BOUND_TO_RULES, BY_ELEMENTS
from triton_ext.passes.verify_descriptors.running.tensormaps import (
    ACQUIRE,
    CREATE,
    LaunchedWith,
    is_part,
)
from triton_ext.passes.verify_descriptors.text.groups import Function, Group
from triton_ext.passes.verify_descriptors.text.matching import Matching, is_open
from triton_ext.ptx.parse import Instruction, Kernel

ALLOCATION = ("tcgen05.alloc", "tcgen05.dealloc")
_PER_OPERATION = 16
"""Executions that are looked at, on average."""


@dataclass(frozen=True)
class Compared:
    """A kernel's operations and instructions, and which may be which.

    Attributes:
        expectations: what each operation of the module must become.
        function: the PTX.
        launched: what the launch metadata say.
        allowed: the `id` of what each group may be, by the group's `id`.
        position: the group of each instruction, by its `id`, and its index in it.
    """

    expectations: ModuleExpectations
    function: Function
    launched: LaunchedWith
    allowed: Mapping[int, set[int]]
    position: Mapping[int, tuple[Group, int]]

    @classmethod
    def of(
        cls,
        expectations: ModuleExpectations,
        function: Function,
        groups: Sequence[Group],
        matching: Matching,
        launched: LaunchedWith,
    ) -> Compared:
        """What is compared of a kernel whose text is.

        Args:
            matching: of the groups that are compared in the text, with the operations, without a
                fault.
        """
        allowed = {
            id(group): {id(one.expected) for one in found} for group, found in matching.candidates
        }
        position = {
            id(instruction): (group, index)
            for group, _ in matching.candidates
            for index, instruction in enumerate(group.instructions)
        }
        for group in groups:
            among = [one for one in expectations.found if group.kind in one.kinds]
            if group.is_in_order and not is_open(group, among, expectations.open):
                position[id(group.first)] = group, 0
                allowed[id(group)] = {id(one) for one in among}
        return cls(expectations, function, launched, allowed, position)

    @property
    def module(self) -> MlirModule:
        """The TTGIR."""
        return self.expectations.module

    @property
    def kernel(self) -> Kernel:
        """The kernel of the PTX."""
        return self.function.kernel

    @property
    def ctas(self) -> int:
        """The number of blocks in a cluster."""
        return self.launched.ctas

    @cached_property
    def expected(self) -> Mapping[int, Expected]:
        """What each operation must become, by its `id`."""
        return {id(one.operation): one for one in self.expectations.found}

    @cached_property
    def moves(self) -> Mapping[int, Operation]:
        """The operations on shared memory, by their `id`."""
        return {id(operation): operation for operation in moves(self.module)}

    @cached_property
    def transfers(self) -> Mapping[int, Operation]:
        """The operations on tensor memory, by their `id`."""
        return {id(operation): operation for operation in transfers(self.module)}

    @cached_property
    def operations(self) -> Sequence[Operation]:
        """All whose executions are looked at."""
        makers = [each for each in self.module.operations if each.name in (CREATE, ACQUIRE)]
        operations = [one.operation for one in self.expectations.found]
        return [*operations, *self.moves.values(), *makers, *self.transfers.values()]

    @property
    def limit(self) -> int:
        """How many of their executions are looked at."""
        found = len(self.expectations.found)
        besides = len(self.operations) - found
        return max(60, _PER_OPERATION * found) + _PER_OPERATION * besides

    @cached_property
    def by_elements(self) -> bool:
        """Whether operations are bound to rules element by element."""
        return any(each.name in BY_ELEMENTS for each in self.module.operations)

    @cached_property
    def instructions(self) -> Sequence[Instruction]:
        """The instructions that are compared with operations."""
        of_the_kernel = self.kernel.instructions
        parts = [each for each in of_the_kernel if is_part(each.opcode)]
        allocations = [each for each in of_the_kernel if each.opcode.startswith(ALLOCATION)]
        return [*parts, *self.function.wanted, *allocations]

    @cached_property
    def chosen(self) -> Sequence[Instruction]:
        """The same, and those that are only held against rules."""
        known = set(map(id, self.instructions))
        bound = [
            each
            for each in self.kernel.instructions
            if each.opcode.startswith(BOUND_TO_RULES) and id(each) not in known
        ]
        return [*self.instructions, *bound]
