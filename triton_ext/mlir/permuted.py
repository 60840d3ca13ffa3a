"""Tiles that are read in a layout in which nothing writes them: their elements are permuted.

``ttg.memdesc_reinterpret`` gives memory another type, and Triton verifies nothing across it: a tile
that threads store in one swizzle may be handed to a TMA store in another one. Every address is
legal, and what comes out is a permutation of what was stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from triton_ext.errors import LayoutError
from triton_ext.layouts.encodings import SharedEncoding, parse_encoding
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.memory_flow import FORWARDING, VIEWS, MemoryFlow, components, forwarded
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import MMAS, TMA_COPIES, TMA_STORES
from triton_ext.mlir.types import MemoryType

_REINTERPRET = "ttg.memdesc_reinterpret"
_WRITERS = ("ttg.local_alloc", "ttg.local_store", "ttg.async_copy_global_to_local",
            *(name for name in TMA_COPIES if name not in TMA_STORES))  # fmt: skip
_READERS = ("ttg.local_load", *MMAS, *TMA_STORES)


@dataclass(frozen=True)
class Permuted:
    """A tile that is read otherwise than it was written.

    Attributes:
        read, written: the operations.
        as_read, as_written: the types by which they see the memory.
        taken, element: the first element that comes out wrong, and which one it was stored as.
    """

    read: Operation
    written: Operation
    as_read: MemoryType
    as_written: MemoryType
    taken: tuple[int, ...]
    element: tuple[int, ...]

    def __str__(self) -> str:
        at = self.written.location
        where = f" at {at.file.rpartition('/')[2]}:{at.line}" if at is not None else ""
        shape = "x".join(map(str, self.as_read.shape))
        return (
            f"{shape} {self.as_read.element} is read as {self.as_read.encoding}, and nothing writes"
            f" it so; {self.written.name}{where} writes it as {self.as_written.encoding}: what is"
            f" taken for element {self.taken} is element {self.element}"
        )


@dataclass
class _Family:
    """The views of a memory that agree on where its elements lie: none reinterprets another."""

    type: MemoryType
    writers: list[Operation] = field(default_factory=list)
    readers: list[Operation] = field(default_factory=list)
    is_known: bool = True


def permuted(module: MlirModule) -> Iterator[Permuted]:
    """The tiles of a module that are permuted: each operation that reads one.

    Left aside is what nothing here can be said of: a tile that is written by a view with another
    shape or other elements, read as the transpose of what was written, or taken by an operation
    that is not known.
    """
    if not any(each.name == _REINTERPRET for each in module.operations):
        return
    flow = MemoryFlow(module)
    for source in flow.shared_sources:
        families = _families(module, flow, source)
        writers = [each for each in families if each.writers]
        for family in families:
            if not family.readers or family.writers or not all(f.is_known for f in families):
                continue
            found = [_first_difference(each.type, family.type) for each in writers]
            if found and all(found):
                assert found[0] is not None
                for operation in family.readers:
                    yield Permuted(
                        operation, writers[0].writers[0], family.type, writers[0].type, *found[0]
                    )


def _families(module: MlirModule, flow: MemoryFlow, source: Value) -> list[_Family]:
    views = flow.views(source)
    roots = [source, *(v for v in views if v.definition and v.definition.name == _REINTERPRET)]
    same = (each for each in module.operations if each.name in VIEWS and each.name != _REINTERPRET)
    edges = [(each.operands[0], each.results[0]) for each in same if each.results]
    within = {*views}
    edges += [(a, b) for a, b in forwarded(module) if a in within and b in within]
    found = []
    for values in components(roots, edges):
        kind = module.memory(values[0])
        if kind is None:
            continue
        family = _Family(kind)
        found.append(family)
        if source in values and source.definition is not None and source.definition.operands:
            family.writers.append(source.definition)
        for operation, index in (use for value in values for use in value.uses):
            if operation.name in _WRITERS:
                family.writers.append(operation)
            elif operation.name in _READERS and (operation.name not in MMAS or index < 2):
                family.readers.append(operation)
            elif operation.name not in FORWARDING:
                family.is_known = False
    return found


def _encoding(kind: MemoryType) -> tuple[SharedEncoding, tuple[int, ...]]:
    encoding = parse_encoding(kind.encoding)
    return encoding, kind.shape[-encoding.rank :]


def _first_difference(
    written: MemoryType, read: MemoryType
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """What the reader takes the first element for that lies elsewhere for it, and what it is.

    None if there is no such element, if the tile is seen with its dimensions exchanged (which a
    kernel may mean: its transpose), or if the types cannot be compared.
    """
    try:
        (one, shape), (other, read_shape) = _encoding(written), _encoding(read)
        if (shape, written.element) != (read_shape, read.element):
            return None
        if one.paddings or other.paddings:
            return None
        first, second = one.to_linear_layout(shape), other.to_linear_layout(shape)
    except LayoutError:
        return None
    if first.in_dims != second.in_dims:
        return None
    places = np.indices(tuple(first.in_dims.values())).reshape(len(first.in_dims), -1)
    at = dict(zip(first.in_dims, places, strict=True))
    stored, taken = (np.stack(list(each.apply(**at).values()), axis=-1) for each in (first, second))
    orders = itertools.permutations(range(len(shape)))
    if any((stored[:, order] == taken).all() for order in orders):
        return None
    apart = np.flatnonzero((stored != taken).any(axis=1))
    a, b = (tuple(map(int, each[apart[0]])) for each in (taken, stored))
    return a, b
