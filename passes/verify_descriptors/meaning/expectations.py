"""What all operations of a module must become in the PTX, from the TTGIR alone.

Each operation becomes a list of expected instructions, in the order in which Triton's lowering
emits them. Descriptors, advances and boxes are derived from the layouts by `triton_ext.hardware`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import Architecture
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.memory_flow import forwarded_sources
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.occupancy import partition_warps
from triton_ext.passes.verify_descriptors.meaning import expected_copies, expected_products
from triton_ext.passes.verify_descriptors.meaning.expected import (
    Expected,
    Lowering,
    NotDerived,
    predicate_of,
)
from triton_ext.passes.verify_descriptors.meaning.kinds import kinds_in
from triton_ext.passes.verify_descriptors.meaning.mlir_scalars import Scalars
from triton_ext.passes.verify_descriptors.meaning.tiles import is_fp4_padded

ASSEMBLY = ("ttg.inline_asm", "tt.elementwise_inline_asm")
"""Operations whose text becomes instructions as it is: nobody says what they should be."""
_RULES: dict[str, tuple[str, Callable[[Lowering, Operation], Expected]]] = {
    "ttng.warp_group_dot": ("wgmma", expected_products.wgmma),
    "ttng.warp_group_dot_wait": ("wgmma wait", expected_products.wgmma_wait),
    "ttng.tc_gen5_mma": ("tcgen05.mma", expected_products.dense),
    "ttng.tc_gen5_mma_scaled": ("tcgen05.mma", expected_products.scaled),
    "ttng.tmem_copy": ("tcgen05.cp", expected_products.tensor_memory_copy),
    "ttng.async_tma_copy_global_to_local": ("tma", expected_copies.load),
    "ttng.async_tma_copy_local_to_global": ("tma", expected_copies.store),
    "ttng.async_tma_reduce": ("tma", expected_copies.reduce),
    "ttng.async_tma_gather": ("tma", expected_copies.gather),
    "ttng.async_tma_scatter": ("tma", expected_copies.scatter),
    "ttng.barrier_expect": ("expect", expected_copies.expect),
    "ttng.init_barrier": ("init", expected_copies.barrier("init")),
    "ttng.inval_barrier": ("inval", expected_copies.barrier("inval")),
    "ttng.arrive_barrier": ("arrive", expected_copies.barrier("arrive")),
    "ttng.async_copy_mbarrier_arrive": ("copy arrive", expected_copies.barrier("copy arrive")),
    "ttng.wait_barrier": ("wait", expected_copies.barrier("wait")),
    "ttng.tc_gen5_commit": ("commit", expected_copies.barrier("commit")),
    "ttng.async_tma_store_wait": ("store wait", expected_copies.store_wait),
}
"""The operations that are looked at: the kind of instruction that each becomes, and how."""


class ModuleExpectations:
    """The expected instructions of every operation of a module.

    Attributes:
        found: what is expected of each operation that could be predicted.
        refused: the others, and why.
        wrong: operations with an operand that no descriptor describes.
        open: the kinds of instruction of `refused` and `wrong`, with the operations.
    """

    def __init__(self, module: MlirModule, arch: Architecture) -> None:
        self.module = module
        self.found: list[Expected] = []
        self.refused: list[tuple[Operation, str]] = []
        self.wrong: list[tuple[Operation, LayoutError]] = []
        self.open: list[tuple[str, Operation]] = []
        self._scalars = Scalars(module)
        lowering = Lowering(module, arch)
        for operation in module.operations:
            if operation.name in ASSEMBLY:
                for kind in kinds_in(operation.text):
                    self.refused.append((operation, f"{kind} in inline assembly"))
                    self.open.append((kind, operation))
            if operation.name not in _RULES:
                continue
            kind, rule = _RULES[operation.name]
            try:
                self.found.append(self._completed(rule(lowering, operation)))
                continue
            except NotDerived as reason:
                self.refused.append((operation, str(reason)))
            except LayoutError as error:
                if kind == "tma":
                    self.refused.append((operation, error.rule))
                else:
                    self.wrong.append((operation, error))
            self.open.append((kind, operation))

    def _completed(self, one: Expected) -> Expected:
        """With what the operations around say."""
        tile = self.module.memory(one.tile) if one.tile else None
        return replace(
            one,
            warps=self._warps(one.operation),
            is_dead=self._is_dead(one.operation),
            argument=self._argument(one.operation.operands[0]) if one.tile else None,
            is_padded=tile is not None and is_fp4_padded(tile.encoding),
        )

    def _is_dead(self, operation: Operation) -> bool:
        """Whether the operation is never executed, or its predicate is never true."""
        predicate = predicate_of(operation)
        never = predicate is not None and self._scalars.condition(predicate) is False
        return never or not self._scalars.is_executed(operation)

    def _argument(self, value: Value) -> int | None:
        """Which argument of the kernel a TMA descriptor is."""
        pending, seen, found = [value], {value}, set()
        while pending:
            here = pending.pop()
            sources = self._sources.get(here, [])
            pending += [source for source in sources if source not in seen]
            seen.update(sources)
            if not sources:
                found.add(here)
        if len(found) != 1:
            return None
        (source,) = found
        block = source.block
        if source.definition is not None or block is None:
            return None
        return source.index if block.region.parent is self.module.kernel else None

    @cached_property
    def _sources(self) -> dict[Value, list[Value]]:
        """The values that control flow forwards to each TMA descriptor."""
        return forwarded_sources(self.module, lambda value: "tensordesc" in (value.type or ""))

    def _warps(self, operation: Operation) -> int:
        """The number of warps in the partition, or the kernel, that an operation stands in."""
        around = operation
        while (parent := around.parent) is not None:
            if parent.name == "ttg.warp_specialize" and around.block is not None:
                index = parent.regions.index(around.block.region)
                if index:
                    return partition_warps(parent)[index - 1]
            around = parent
        return int(self.module.attributes.get("ttg.num-warps", 4))
