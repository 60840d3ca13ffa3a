"""Where Triton puts a tensor in shared memory on its way from one distributed layout to another.

The scratch layout is a permutation of the tensor's bits, but for those by which it swizzles. It is
chosen together with the instructions, so that neither the stores nor the loads have bank conflicts
where that is possible. What both layouts hold in registers anyway is moved in rounds, through the
same memory.

Tensors are flat here: an element is an integer, and a layout's bases are 0 or powers of two.

Source: Triton, ``optimalSwizzling`` and ``optimalSwizzlingLdSt`` (``lib/Tools/GenericSwizzling``
``.cpp``), ``getSrcDstTiles`` (``lib/Conversion/TritonGPUToLLVM/Utility.cpp``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from triton_ext.hardware.banks import BANK_BYTES, BANKS
from triton_ext.layouts.gf2 import powers_below, solver
from triton_ext.layouts.linear_layout import LinearLayout

_BANK_BITS = 8 * BANK_BYTES
_LINE_BITS = BANKS * _BANK_BITS
_WIDEST_BITS = 128
_MATRIX_REPEATS = 2  # .x4


@dataclass(frozen=True)
class Instruction:
    """An instruction that moves registers to or from shared memory.

    Attributes:
        name: ``shared``, ``matrix`` or ``matrix.trans``, behind ``ld`` or ``st``.
        contiguous: the bits of the lane that count within 16 bytes.
        addressed: the bits of the lane that choose between the 8 addresses of a wavefront.
    """

    name: str
    contiguous: tuple[int, ...]
    addressed: tuple[int, ...]


VECTORS = Instruction("shared", (), (0, 1, 2))
MATRICES = Instruction("matrix", (0, 1), (2, 3, 4))
TRANSPOSED = Instruction("matrix.trans", (2, 3, 4), (0, 1))


def instructions(element_bitwidth: int, *, matrices: bool) -> tuple[Instruction, ...]:
    """What may move elements of a width; `matrices`: whether there is ldmatrix or stmatrix."""
    found = [VECTORS]
    if matrices and element_bitwidth <= 32:
        found.append(MATRICES)
    if matrices and element_bitwidth == 16:
        found.append(TRANSPOSED)
    return tuple(found)


@dataclass(frozen=True)
class ScratchLayout:
    """A layout of scratch memory. Bases are elements of the flat tensor.

    Attributes:
        vector: those of the offset's lowest bits: what one access moves.
        bank: the bits that choose the bank.
        segment: the bits above: the line of 128 bytes.
        rounds: what both layouts have in registers, moved one after the other.
        block: those of the cluster's blocks.
    """

    vector: tuple[int, ...]
    bank: tuple[int, ...]
    segment: tuple[int, ...]
    rounds: tuple[int, ...]
    block: tuple[int, ...] = ()
    store: Instruction = VECTORS
    load: Instruction = VECTORS

    @property
    def offset(self) -> tuple[int, ...]:
        """The bases of the offset within a round, in elements."""
        return self.vector + self.bank + self.segment


@dataclass(frozen=True)
class _Side:
    """A flat layout's bases of registers, lanes and warps."""

    layout: LinearLayout
    register: tuple[int, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]


def _side(layout: LinearLayout) -> _Side:
    flat = {name: tuple(b[0] for b in bases) for name, bases in layout.bases.items()}
    return _Side(layout, flat["register"], flat["lane"], flat["warp"])


def _common(values: Iterable[int], others: Sequence[int]) -> list[int]:
    return [value for value in values if value and value in others]


def scratch_layout(
    source: LinearLayout,
    target: LinearLayout,
    element_bitwidth: int,
    stores: Sequence[Instruction],
    loads: Sequence[Instruction],
) -> ScratchLayout:
    """The scratch layout of a conversion, and the instructions.

    Args:
        source, target: ``register``, ``lane``, ``warp`` (and ``block``) -> ``flat``, without
            registers that repeat others.
        element_bitwidth: 8, 16, 32 or 64.
        stores, loads: the instructions that there are, as `instructions` lists them.
    """
    src, dst = _side(source), _side(target)
    blocks = tuple(basis[0] for basis in source.bases.get("block", ()) if basis[0])
    best: tuple[tuple[int, int], ScratchLayout] | None = None
    for store, load in itertools.product(stores, loads):
        vector = _shared_tile(src, dst, element_bitwidth, store, load)
        if vector is None:
            continue
        stored = _wavefront(store, src, vector)
        loaded = _wavefront(load, dst, vector)
        if stored is None or loaded is None:
            continue
        repeats = 0 if VECTORS in (store, load) else _MATRIX_REPEATS
        made = _swizzled(src, dst, element_bitwidth, vector, stored, loaded, blocks, repeats)
        cost = _conflicts(made.segment, stored) + _conflicts(made.segment, loaded)
        rank = (cost, -len(made.rounds))
        if best is None or rank < best[0]:
            best = (rank, replace(made, store=store, load=load))
    return best[1] if best else _of_narrow_accesses(src, dst, element_bitwidth, blocks)


def _shared_tile(
    src: _Side, dst: _Side, bits: int, store: Instruction, load: Instruction
) -> tuple[int, ...] | None:
    """What one store and one load of 16 bytes both have contiguous; None if nothing."""
    width = (_WIDEST_BITS // bits).bit_length() - 1
    registers = [width - len(each.contiguous) for each in (store, load)]
    a, b, ours, theirs = src, dst, store.contiguous, load.contiguous
    if registers[0] < registers[1]:
        a, b, ours, theirs = dst, src, theirs, ours
    more, fewer = max(registers), min(registers)
    common = _common(a.register, b.register)
    lanes = [b.lane[i] for i in theirs]
    if len(common) < fewer or 0 in lanes or any(a.lane[i] == 0 for i in ours):
        return None
    through = b.layout.invert_and_compose(a.layout)
    names = list(through.out_dims)
    images = [dict(zip(names, through.bases["lane"][i], strict=True)) for i in theirs]
    if any(image["register"] == 0 for image in images[: more - fewer]):
        return None
    aligned = images[len(images) - len(ours) :] if ours else []
    if any(image["lane"] != 1 << i for i, image in zip(ours, aligned, strict=True)):
        return None
    return (*common[:fewer], *lanes)


def _wavefront(each: Instruction, side: _Side, vector: Sequence[int]) -> list[int] | None:
    """The bases between which the 8 rows of 16 bytes of a wavefront differ."""
    needed = 3 - len(each.addressed)
    registers = [value for value in side.register if value not in vector][:needed]
    if len(registers) < needed:
        return None
    return registers + [side.lane[i] for i in each.addressed]


def _swizzled(
    src: _Side,
    dst: _Side,
    bits: int,
    vector: Sequence[int],
    stored: Sequence[int],
    loaded: Sequence[int],
    blocks: tuple[int, ...],
    repeats: int,
) -> ScratchLayout:
    """The layout with a given vector, in which two wavefronts meet as few banks twice as can be."""
    total = src.layout.total_out_size.bit_length() - 1
    free = total - len(vector) - len(blocks)
    line = (_LINE_BITS // (bits << len(vector))).bit_length() - 1
    segment = _segment(
        [*vector, *stored], [*vector, *loaded], blocks, total, free - min(line, free)
    )
    bank = _complement([*vector, *segment, *blocks], total)
    kept: list[int] = []
    rounds: list[int] = []
    for value in segment:
        if value in src.register and value in dst.register:
            (kept if repeats > 0 else rounds).append(value)
            repeats -= 1
        else:
            kept.append(value)
    return ScratchLayout(tuple(vector), tuple(bank), tuple(kept), tuple(rounds), blocks)


def _segment(
    stored: Sequence[int], loaded: Sequence[int], blocks: Sequence[int], total: int, size: int
) -> list[int]:
    """Bases of lines: what no wavefront needs, else what one of each needs, XORed."""
    a, b = ({value for value in (*each, *blocks) if value} for each in (stored, loaded))
    found = [value for value in powers_below(1 << total) if value not in a | b]
    if len(found) >= size:
        return found[:size]
    ours, theirs = sorted(a - b), sorted(b - a)
    if len(ours) > len(theirs):
        ours, theirs = theirs, ours
    conflicts = min(max(0, size - len(ours) - len(found)), len(ours))
    pairs = list(zip(ours, theirs, strict=False))
    found += [x ^ y for x, y in pairs[conflicts:]]
    found += ours[:conflicts] + theirs[:conflicts]
    return found[:size]


def _complement(bases: Iterable[int], total: int) -> list[int]:
    """The powers of two that complete a basis: those that lead no row, from the lowest bit on."""
    rows: dict[int, int] = {}  # lowest bit -> row
    for value in bases:
        while value and (lowest := value & -value) in rows:
            value ^= rows[lowest]
        if value:
            rows[value & -value] = value
    return [unit for unit in powers_below(1 << total) if unit not in rows]


def _conflicts(segment: Sequence[int], wavefront: Sequence[int]) -> int:
    """How many wavefronts more than one a wavefront's rows take."""
    common = _rank(segment) + _rank(wavefront) - _rank([*segment, *wavefront])
    return (1 << common) - 1


def _rank(vectors: Iterable[int]) -> int:
    return solver(vectors)[1].bit_count()


def _of_narrow_accesses(
    src: _Side, dst: _Side, bits: int, blocks: tuple[int, ...]
) -> ScratchLayout:
    """The layout for st.shared and ld.shared of less than 16 bytes on one of the sides."""
    vector, stores_fill = _narrow_vector(src, dst, bits, blocks)
    words = (max(1, (bits << len(vector)) // _BANK_BITS)).bit_length() - 1
    stored, loaded = (side.lane[: len(side.lane) - words] for side in (src, dst))
    made = _swizzled(src, dst, bits, vector, stored, loaded, blocks, 0)
    if words >= 2:
        return made
    by_source, by_target = ([v for v in made.bank if v in side.register] for side in (src, dst))
    if stores_fill is None:
        stores_fill = len(by_source) > len(by_target)
    first = by_source if stores_fill else by_target
    rest = [value for value in made.bank if value not in first]
    return replace(made, bank=(*first, *rest))


def _narrow_vector(
    src: _Side, dst: _Side, bits: int, blocks: Sequence[int]
) -> tuple[list[int], bool | None]:
    """What both sides have in registers, filled up to the 32 bits of a bank; and whether it was
    filled with registers of the source (False: of the target; None: not at all).
    """
    vector = _common(src.register, dst.register)[: (_WIDEST_BITS // bits).bit_length() - 1]
    width = (_BANK_BITS // bits).bit_length() - 1
    if len(vector) >= width:
        return vector, None
    warps = [[value for value in side.warp if value] for side in (src, dst)]
    by_source = _common((v for v in src.register if v not in vector), warps[1])
    by_target = _common((v for v in dst.register if v not in vector), warps[0])
    if len(by_source) == len(by_target) and by_source:
        source_fills = min(by_source) < min(by_target)
    else:
        source_fills = len(by_source) > len(by_target)
    vector += by_source if source_fills else by_target
    if len(vector) < width:
        vector += _common(warps[0], warps[1])
    for pair in itertools.zip_longest(*warps):
        vector += _filling(vector, width, pair, blocks)
    return vector[:width], source_fills


def _filling(
    vector: Sequence[int], width: int, pair: Sequence[int | None], blocks: Sequence[int]
) -> Iterator[int]:
    """Those of two warps' bases, the source's and the target's, that still go into a vector."""
    ours, theirs = pair
    room = width - len(vector)
    if room > 0 and ours is not None and ours not in vector:
        yield ours
        room -= 1
        vector = [*vector, ours]
    if room > 0 and theirs is not None and theirs not in (*vector, *blocks):
        yield theirs
