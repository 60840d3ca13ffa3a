"""Where the compiler put each allocation: one address, on which all instructions agree.

The TTGIR does not say at which address an allocation lies, but it says how far each view is from
its allocation's start. So every TMA copy, MMA operand and barrier that names a view observes the
start of the allocation, and all must observe the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear
from triton_ext.mlir.arith import integer_constant
from triton_ext.mlir.memory_flow import forwarded_sources
from triton_ext.mlir.module import MlirModule, Operation, Value
from triton_ext.mlir.types import MemoryType
from triton_ext.passes.verify_descriptors.comparison import Observation
from triton_ext.passes.verify_descriptors.expected import NotDerived
from triton_ext.passes.verify_descriptors.tiles import (
    encoding_rank,
    is_fp4_padded,
    shared_encoding,
    tile_layout,
)

_SAME = ("ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_reinterpret")
_ALLOCATIONS = ("ttg.local_alloc", "ttng.tmem_alloc")
_MAX_OFFSETS = 64
_LOW = (1 << 32) - 1

Offsets = frozenset[tuple[Value, int]]
"""What a view may be: an allocation, and the offset from its start (bytes; in tensor memory, lanes
and columns)."""


class Views:
    """Which part of which allocation each memory value of a module may be."""

    def __init__(self, module: MlirModule) -> None:
        self.module = module
        self._known: dict[Value, Offsets | None] = {}

    @cached_property
    def _before(self) -> dict[Value, list[Value]]:
        return forwarded_sources(self.module, self.module.memory)

    def offsets_of(self, value: Value) -> Offsets | None:
        """The allocations and offsets that a value may be; None if they cannot be told."""
        if value not in self._known:
            self._known[value] = frozenset()  # of a loop that is being looked at
            found = self._found(value)
            if found is not None and len(found) > _MAX_OFFSETS:
                found = None
            self._known[value] = found
        return self._known[value]

    def _found(self, value: Value) -> Offsets | None:
        definition = value.definition
        if value in self._before:
            return self._union(self._before[value])
        if definition is None:
            return None
        if definition.name in _ALLOCATIONS:
            return frozenset({(value, 0)})
        offsets = self.offsets(definition)
        if offsets is None:
            return None
        source = self.offsets_of(definition.operands[0])
        if source is None:
            return None
        return frozenset((root, at + offset) for root, at in source for offset in offsets)

    def _union(self, sources: Sequence[Value]) -> Offsets | None:
        found: set[tuple[Value, int]] = set()
        for source in sources:
            offsets = self.offsets_of(source)
            if offsets is None:
                return None
            found |= offsets
        return frozenset(found)

    def offsets(self, operation: Operation) -> list[int] | None:
        """By how much a view may be further than what it is a view of."""
        source = self.module.memory(operation.operands[0]) if operation.operands else None
        result = self.module.memory(operation.results[0]) if operation.results else None
        if source is None or result is None:
            return None
        if operation.name == "ttg.memdesc_reinterpret":
            return [0]
        if operation.name in _SAME:
            return [0] if source.space == "shared" else None
        if operation.name == "ttg.memdesc_index":
            stride = buffer_stride(result)
            if stride is None:
                return None
            index = integer_constant(operation.operands[1])
            return [stride * i for i in (range(source.shape[0]) if index is None else [index])]
        try:
            if operation.name == "ttg.memdesc_subslice":
                return [self._subslice(operation, source)]
            if operation.name == "ttng.tmem_subslice":
                return [self._columns(operation, source)]
        except NotDerived:
            return None
        return None

    @staticmethod
    def _subslice(operation: Operation, source: MemoryType) -> int:
        match = re.search(r"\[([\d, ]+)\]", operation.text)
        if match is None:
            raise NotDerived("offsets that are not printed")
        offsets = [int(text) for text in match[1].split(",")]
        rank = encoding_rank(source.encoding)
        if is_fp4_padded(source.encoding) or any(offsets[:-rank]):
            raise NotDerived("a part of padded fp4, or of several buffers")
        inverse = tile_layout(source).pseudoinvert()
        names = list(inverse.in_dims)
        where = inverse.apply(dict(zip(names, offsets[-rank:], strict=True)))
        return int(where["offset"]) * source.element_bitwidth // 8

    @staticmethod
    def _columns(operation: Operation, source: MemoryType) -> int:
        offset = operation.attributes.get("offset", operation.attributes.get("N"))
        if not isinstance(offset, int) or source.mnemonic != "tensor_memory_encoding":
            raise NotDerived("a part of tensor memory")
        encoding = TensorMemoryEncoding.parse(source.encoding)
        layout = encoding.to_linear_layout(source.allocated[-2:], source.element_bitwidth)
        where = layout.pseudoinvert().apply(dim0=0, dim1=offset)
        return int(where["lane"]) << 16 | int(where["column"])


def buffer_stride(kind: MemoryType) -> int | None:
    """Bytes of one buffer that a block of the cluster holds; in tensor memory, columns.

    None where it is not known here.
    """
    if kind.space == "tensor":
        if kind.mnemonic != "tensor_memory_encoding":
            return None
        encoding = TensorMemoryEncoding.parse(kind.encoding)
        layout = encoding.to_linear_layout(kind.allocated[-2:], kind.element_bitwidth)
        return layout.in_dims["column"]
    return tile_layout(kind).in_dims.get("offset", 1) * kind.element_bitwidth // 8


Starts = frozenset[tuple[tuple[tuple[str, int], ...], int]]
"""Where an allocation may begin: the terms of an address, and its constant."""


@dataclass(frozen=True)
class KnownStart:
    """What is known of where an allocation begins.

    Attributes:
        starts: where it may begin.
        first: the observation that said so first.
    """

    starts: Starts
    first: Observation


class Observed(Enum):
    """What an observation says of its allocation."""

    AGREED = "what an earlier one said"
    FIRST = "its address, for the first time"
    SEVERAL = "one of several allocations"
    NO_ALLOCATION = "an allocation that is not known"
    NO_ADDRESS = "an address that is not known at compile time"


class Addresses:
    """The allocations' addresses, as far as observations have told.

    Args:
        views: those of the module.
        shared: bytes of shared memory that the kernel has, if that is known.
    """

    def __init__(self, views: Views, shared: int | None) -> None:
        self.views, self.shared = views, shared
        self.known: dict[Value, KnownStart] = {}
        self._observed: dict[int, tuple[Value, Starts] | None] = {}

    def copy(self) -> Addresses:
        """To go on with one assumption, and come back."""
        other = Addresses(self.views, self.shared)
        other.known, other._observed = dict(self.known), self._observed
        return other

    def starts(self, observation: Observation) -> tuple[Value, Starts] | None:
        """The allocation, and where it may begin after an observation; None if that is not one."""
        key = id(observation)
        if key not in self._observed:
            self._observed[key] = self._starts(observation)
        return self._observed[key]

    def _starts(self, observation: Observation) -> tuple[Value, Starts] | None:
        offsets = self.views.offsets_of(observation.value)
        roots = {root for root, _ in offsets} if offsets else set()
        if not offsets or len(roots) != 1:
            return None
        (root,) = roots
        address = observation.address
        starts = {(address.terms, (address.constant - offset) & _LOW) for _, offset in offsets}
        if address.is_constant:
            starts = {start for start in starts if self._is_legal(root, start[1])}
        return root, frozenset(starts)

    def _is_legal(self, root: Value, start: int) -> bool:
        """Whether an allocation can begin at an address: aligned, and inside."""
        kind = self.views.module.memory(root)
        if kind is None or kind.space != "shared":
            return True
        size, alignment = allocation_size(kind)
        return start % alignment == 0 and start + size <= (self.shared or _LOW)

    def conflict(self, observation: Observation) -> Observation | None:
        """The earlier observation that one does not fit to; itself if it fits to nothing legal."""
        found = self.starts(observation)
        if found is None:
            return self._none_of_several(observation)
        root, starts = found
        if not starts:
            return observation
        known = self.known.get(root)
        if known is None or _terms(known.starts) != _terms(starts):
            return None
        return None if known.starts & starts else known.first

    def _none_of_several(self, observation: Observation) -> Observation | None:
        """One of several allocations: it must be where one of them is, if all are known."""
        offsets = self.views.offsets_of(observation.value) or frozenset()
        address, first = observation.address, None
        for root, offset in offsets:
            known = self.known.get(root)
            if known is None or _terms(known.starts) != {address.terms}:
                return None
            if (address.terms, (address.constant - offset) & _LOW) in known.starts:
                return None
            first = known.first
        return first

    def add(self, observation: Observation) -> Observed:
        """Take an observation into account that conflicts with none."""
        found = self.starts(observation)
        if found is None:
            offsets = self.views.offsets_of(observation.value)
            return Observed.SEVERAL if offsets else Observed.NO_ALLOCATION
        root, starts = found
        known = self.known.get(root)
        if known is None:
            self.known[root] = KnownStart(starts, observation)
            return Observed.FIRST
        if _terms(known.starts) != _terms(starts):
            if not known.first.address.is_constant and observation.address.is_constant:
                self.known[root] = KnownStart(starts, observation)
            return Observed.NO_ADDRESS
        self.known[root] = KnownStart(known.starts & starts, known.first)
        return Observed.AGREED


def _terms(starts: Starts) -> set[tuple[tuple[str, int], ...]]:
    return {terms for terms, _ in starts}


def allocation_size(kind: MemoryType) -> tuple[int, int]:
    """(bytes, alignment) of an allocation in shared memory, in one block of the cluster."""
    stride = buffer_stride(kind)
    buffers = 1
    encoding = shared_encoding(kind.encoding)
    for size in kind.shape[: len(kind.shape) - encoding.rank]:
        buffers *= size
    alignment = encoding.alignment if isinstance(encoding, (NVMMAShared, SharedLinear)) else 1
    return buffers * (stride or 0), alignment
