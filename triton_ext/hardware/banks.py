"""Shared-memory bank conflicts, and how large the global requests are that fill a tile.

Shared memory has 32 banks of 4 bytes; successive 32-bit words lie in successive banks, and a bank
serves one word a cycle. Lanes that access the same word do not conflict: a read is broadcast, a
write is done once (CUDA C++ Programming Guide, "Compute Capability 5.x", "Shared Memory", which
later architectures keep; seed 004, "Shared Memory Banks").

The work of one cycle is a *wavefront* (Nsight Compute, Kernel Profiling Guide, "Metrics Decoder"),
of at most 128 bytes. A warp's access of more is served one group of lanes after the other: half
warps for 8 bytes a lane, quarter warps for 16, and for ldmatrix and stmatrix the 8 lanes that name
the rows of one matrix (PTX ISA, "Warp-level matrix load instruction: ldmatrix"). So a 16-byte
access takes 4 wavefronts without any conflict, and Nsight Compute's counters of bank conflicts
count those beyond. The wavefronts of an access are the sum over its groups of the largest number of
distinct words in one bank.

Not modelled: a load that gives pairs of lanes the same 8 or 16 bytes may be served in fewer groups.

Triton counts likewise (``bankConflictsMemDesc`` in ``lib/Tools/GenericSwizzling.cpp``): from the
bases of the lanes in the first group, the degree of an ld.shared or st.shared, less one. It takes
for a broadcast what is none where lanes are a number of lines and some bytes of a word apart, so
that its count is too low for some accesses of less than 4 bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.layouts.arguments import integers, one_of, power_of_two
from triton_ext.layouts.atoms import MAJORS, Major, SwizzleAtom
from triton_ext.layouts.cluster import checked_shape, standard_out_dims
from triton_ext.layouts.encodings import CHUNK_BYTES, ELEMENT_BITWIDTHS, NVMMAShared
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import ATOM_ROWS
from triton_ext.layouts.padded_shared import checked_paddings
from triton_ext.layouts.shared_encoding import Paddings, checked_layout, padded_offset

BANKS = 32
BANK_BYTES = 4
LINE_BYTES = BANKS * BANK_BYTES
"""All banks side by side: what one wavefront moves at most, and a cache line of global memory."""
ACCESS_BYTES = (1, 2, 4, 8, 16)
"""What a lane can access at once (PTX ISA, "ld" and "st": vectors of at most 128 bits)."""
MATRIX_ROWS = 8
"""Rows of 16 bytes that ldmatrix, stmatrix and the tensor core move at once (seed 003, Sec. 2)."""
MATRIX_COUNTS = (1, 2, 4)
"""How many matrices an ldmatrix or stmatrix moves: .x1, .x2, .x4 (PTX ISA, "ldmatrix")."""


@dataclass(frozen=True)
class BankConflict:
    """Lanes of one group that need different words of one bank.

    Attributes:
        group: which group of lanes, 0 being the first that is served.
        bank: 0 to 31.
        words: the distinct 32-bit words, as byte offsets, ascending; at least two.
        lanes: for each word, the lanes that access it.
    """

    group: int
    bank: int
    words: tuple[int, ...]
    lanes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class BankReport:
    """What the banks make of one access of one warp.

    Attributes:
        offsets: the byte offset of each lane; None for an inactive one.
        access_bytes: how many bytes a lane accesses.
        group_wavefronts: the wavefronts of each group of lanes that has an active lane.
        conflicts: every bank of every group with more than one word to serve.
    """

    offsets: tuple[int | None, ...]
    access_bytes: int
    group_wavefronts: tuple[int, ...]
    conflicts: tuple[BankConflict, ...]

    @property
    def wavefronts(self) -> int:
        """How many cycles the banks take."""
        return sum(self.group_wavefronts)

    @property
    def ideal_wavefronts(self) -> int:
        """How many they would take without a conflict: one a group."""
        return len(self.group_wavefronts)

    @property
    def degree(self) -> int:
        """The n of an n-way bank conflict; 1 without a conflict."""
        return max(self.group_wavefronts)

    def __str__(self) -> str:
        count = f"{self.wavefronts} wavefront{'s' * (self.wavefronts > 1)}"
        if not self.conflicts:
            return f"{count}, no bank conflict"
        return f"{count} instead of {self.ideal_wavefronts}: {self.degree}-way bank conflict"


def _dim_index(argument: str, value: Any, rank: int) -> int:
    """A dimension by its number, counted from the end if negative, or LayoutError."""
    if isinstance(value, bool) or not isinstance(value, int) or not -rank <= value < rank:
        raise LayoutError(argument, value, f"must be one of the {rank} dimensions, from 0 on")
    return value % rank


# ------------------------------------------------------------------- one access of one warp


def _lane_offsets(offsets: Sequence[int | None] | LinearLayout) -> tuple[int | None, ...]:
    if isinstance(offsets, LinearLayout):
        if list(offsets.in_dims) != ["lane"] or len(offsets.out_dims) != 1:
            rule = "a layout must map 'lane' to one dimension, in bytes"
            raise LayoutError("offsets", offsets, rule)
        (name,) = offsets.out_dims
        offsets = [offsets.apply(lane=lane)[name] for lane in range(offsets.total_in_size)]
    try:
        lanes = tuple(None if offset is None else operator.index(offset) for offset in offsets)
    except TypeError:
        rule = "must be a sequence of integers, in bytes, or None for no access"
        raise LayoutError("offsets", offsets, rule) from None
    if len(lanes) > WARP_THREADS:
        raise LayoutError("offsets", lanes, f"a warp has {WARP_THREADS} lanes")
    if all(offset is None for offset in lanes):
        raise LayoutError("offsets", lanes, "at least one lane must be active")
    return lanes


def warp_access(
    offsets: Sequence[int | None] | LinearLayout, access_bytes: int = BANK_BYTES
) -> BankReport:
    """What the banks make of one access of one warp: ld.shared, st.shared, or matrix rows.

    Args:
        offsets: the byte offset of each lane, from an address that is a multiple of 128; None for
            an inactive lane; fewer than 32 leave the last lanes inactive. Or a linear layout
            from ``lane`` to bytes.
        access_bytes: how many bytes a lane accesses: 1, 2, 4, 8 or 16.

    Raises:
        LayoutError: no such access; or an offset that is no multiple of `access_bytes` (PTX ISA,
            "Addresses as Operands": an address must be naturally aligned).
    """
    one_of("access_bytes", access_bytes, ACCESS_BYTES)
    lanes = _lane_offsets(offsets)
    group_lanes = min(WARP_THREADS, LINE_BYTES // access_bytes)
    groups: dict[int, dict[int, dict[int, list[int]]]] = {}  # group -> bank -> word -> lanes
    for lane, offset in enumerate(lanes):
        if offset is None:
            continue
        if offset < 0 or offset % access_bytes:
            rule = f"must be a multiple of access_bytes ({access_bytes})"
            raise LayoutError(f"offsets[{lane}]", offset, rule)
        banks = groups.setdefault(lane // group_lanes, {})
        for word in range(offset // BANK_BYTES, -(-(offset + access_bytes) // BANK_BYTES)):
            banks.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
    conflicts = tuple(
        BankConflict(
            group=group,
            bank=bank,
            words=tuple(BANK_BYTES * word for word in sorted(words)),
            lanes=tuple(tuple(words[word]) for word in sorted(words)),
        )
        for group, banks in groups.items()
        for bank, words in sorted(banks.items())
        if len(words) > 1
    )
    return BankReport(
        offsets=lanes,
        access_bytes=access_bytes,
        group_wavefronts=tuple(max(map(len, banks.values())) for banks in groups.values()),
        conflicts=conflicts,
    )


# --------------------------------------------------------------------- accesses over a layout


def checked_tile(layout: Any, element_bitwidth: Any, rank: int | None = None) -> LinearLayout:
    """A layout of whole bytes of which each offset holds one element, or LayoutError."""
    tile = checked_layout("layout", layout)
    one_of("element_bitwidth", element_bitwidth, ELEMENT_BITWIDTHS)
    if list(tile.in_dims) != ["offset"]:
        rule = "must have the one input dim 'offset', of one block"
        raise LayoutError("layout", list(tile.in_dims), rule)
    if rank is not None and len(tile.out_dims) != rank:
        raise LayoutError("layout", list(tile.out_dims), f"must have {rank} output dims")
    if not tile.is_invertible():
        rule = "must hold each element at one offset, and one at each; one of padded fp4 does not"
        raise LayoutError("layout", layout, rule)
    return tile


def _chunk_offsets(
    layout: LinearLayout, element_bitwidth: int, at: Any, major: Major, paddings: Paddings
) -> tuple[int, ...]:
    """The byte offsets of the 8 rows of 16 bytes of a subtile; `layout` is a checked one."""
    try:
        row, column = map(operator.index, at)
    except (TypeError, ValueError):
        raise LayoutError("at", at, "must be a pair (row, column), in elements") from None
    one_of("major", major, MAJORS)
    chunk = 8 * CHUNK_BYTES // element_bitwidth
    extents = (MATRIX_ROWS, chunk) if major == "K" else (chunk, MATRIX_ROWS)
    contiguous = 1 if major == "K" else 0
    names = list(layout.out_dims)
    for start, extent, size in zip((row, column), extents, layout.out_dims.values(), strict=True):
        if start < 0 or start + extent > size:
            raise LayoutError(
                "at",
                (row, column),
                f"the {extents[0]}x{extents[1]} subtile must lie in the tile of {layout.out_dims}",
            )
    if (row, column)[contiguous] % chunk:
        rule = f"must be a multiple of {chunk} (16 bytes) along dim{contiguous}"
        raise LayoutError("at", (row, column), rule)
    inverse = layout.invert()
    offsets = []
    for i in range(MATRIX_ROWS):
        first = (row + i, column) if major == "K" else (row, column + i)
        offsets.append(inverse.apply(dict(zip(names, first, strict=True)))["offset"])
    along = inverse.bases[names[contiguous]]
    in_order = all(along[bit] == (1 << bit,) for bit in range(chunk.bit_length() - 1))
    if any(interval < chunk for interval, _ in paddings):
        rule = f"an interval must hold the {chunk} elements (16 bytes) that are accessed at once"
        raise LayoutError("paddings", paddings, rule)
    if not in_order or any(offset % chunk for offset in offsets):
        other = "an MN-major tile is read with" if major == "K" else "a K-major tile without"
        raise LayoutError(
            "layout",
            layout,
            f"must hold each {chunk} elements (16 bytes) along dim{contiguous} side by side;"
            f" {other} .trans",
        )
    return tuple(padded_offset(offset, paddings) * element_bitwidth // 8 for offset in offsets)


def chunk_access(
    layout: LinearLayout,
    element_bitwidth: int,
    at: Sequence[int] = (0, 0),
    major: Major = "K",
    paddings: Sequence[tuple[int, int]] = (),
) -> BankReport:
    """wgmma or tcgen05.mma reads a subtile of 8 rows of 16 bytes, one in a cycle at best.

    Args:
        layout: ``offset`` (elements) -> two dimensions, M or N and K.
        element_bitwidth: 8, 16, 32 or 64.
        at: (row, column) of the subtile's first element.
        major: "K": 8 rows of 16 bytes along the second dimension; "MN": 8 columns of 16 bytes
            along the first.
        paddings: pairs (interval, padding) in elements, powers of two: after each `interval`
            elements there are `padding` unused ones (`PaddedShared`).

    Raises:
        LayoutError: the subtile is not in the tile, or its 16 bytes are not side by side.

    Source: seed 003, Sec. 3 (``8x16B`` and ``16Bx8``).
    """
    tile, paddings = checked_tile(layout, element_bitwidth, rank=2), checked_paddings(paddings)
    return warp_access(_chunk_offsets(tile, element_bitwidth, at, major, paddings), CHUNK_BYTES)


def matrix_access(
    layout: LinearLayout,
    element_bitwidth: int,
    at: Sequence[Sequence[int]] = ((0, 0),),
    trans: bool = False,
    paddings: Sequence[tuple[int, int]] = (),
) -> BankReport:
    """One ldmatrix or stmatrix: lanes 0-7 name the rows of the first matrix, 8-15 of the next, ...

    Args:
        layout: ``offset`` (elements) -> two dimensions.
        element_bitwidth: 8, 16, 32 or 64; with `trans` 16, the unit that is transposed.
        at: (row, column) of each matrix, in elements: one (.x1), two (.x2) or four (.x4).
        trans: .trans: a row of the matrix is 16 bytes along the first dimension of the tile, as
            an MN-major tile has them (seed 003, Sec. 6). Transposing costs no wavefront.
        paddings: as in `chunk_access`.

    Raises:
        LayoutError: as `chunk_access`; or a number of matrices that there is no instruction for.

    Source: PTX ISA, "ldmatrix", "stmatrix" (shape .m8n8, type .b16).
    """
    tile, paddings = checked_tile(layout, element_bitwidth, rank=2), checked_paddings(paddings)
    if trans and element_bitwidth != 16:
        rule = "must be 16: .trans transposes 16-bit elements"
        raise LayoutError("element_bitwidth", element_bitwidth, rule)
    try:
        matrices = list(at)
    except TypeError:
        raise LayoutError("at", at, "must be a sequence of (row, column) pairs") from None
    one_of("the number of matrices", len(matrices), MATRIX_COUNTS)
    major: Major = "MN" if trans else "K"
    offsets: list[int] = []
    for corner in matrices:
        offsets += _chunk_offsets(tile, element_bitwidth, corner, major, paddings)
    return warp_access(offsets, CHUNK_BYTES)


def thread_layout(
    shape: Sequence[int],
    element_bitwidth: int,
    access_bytes: int = CHUNK_BYTES,
    warps: int = 1,
    contiguous_dim: int = -1,
) -> LinearLayout:
    """Threads over a tile in rows: each `access_bytes` side by side, lane beside lane, then warps.

    What does not fit the threads is held in further registers; threads for which nothing is left
    hold what another one does.

    Args:
        shape: the tile's shape: powers of two.
        warps: how many, a power of two.
        contiguous_dim: along which dimension the threads lie first; then the last one first.

    Returns:
        ``register``, ``lane``, ``warp`` -> ``dim0``, ``dim1``, ...

    Raises:
        LayoutError: an illegal argument, or rows shorter than `access_bytes`.
    """
    shape = checked_shape(shape, len(integers("shape", shape)))
    one_of("element_bitwidth", element_bitwidth, ELEMENT_BITWIDTHS)
    one_of("access_bytes", access_bytes, ACCESS_BYTES)
    power_of_two("warps", warps)
    contiguous_dim = _dim_index("contiguous_dim", contiguous_dim, len(shape))
    row_bytes = shape[contiguous_dim] * element_bitwidth // 8
    if 8 * access_bytes < element_bitwidth or access_bytes > row_bytes:
        raise LayoutError(
            "access_bytes",
            access_bytes,
            f"must be at least an element ({element_bitwidth // 8}) and at most a row"
            f" ({row_bytes}), in bytes",
        )
    order = [contiguous_dim, *(dim for dim in reversed(range(len(shape))) if dim != contiguous_dim)]
    units = [
        tuple(power if dim == moved else 0 for dim in range(len(shape)))
        for moved in order
        for power in powers_below(shape[moved])
    ]
    zero = (0,) * len(shape)
    vector = (8 * access_bytes // element_bitwidth).bit_length() - 1
    lanes = vector + WARP_THREADS.bit_length() - 1
    end = lanes + warps.bit_length() - 1
    padded = units + [zero] * max(0, end - len(units))
    bases = {
        "register": padded[:vector] + padded[end:],
        "lane": padded[vector:lanes],
        "warp": padded[lanes:end],
    }
    return LinearLayout(bases, standard_out_dims(shape))


# ------------------------------------------------------------------------ global memory's side


def global_runs(
    layout: LinearLayout,
    element_bitwidth: int,
    contiguous_dim: int = -1,
    paddings: Sequence[tuple[int, int]] = (),
) -> tuple[tuple[int, ...], ...]:
    """What global memory is asked for when shared memory is written a line of 128 bytes at a time.

    Writing whole lines is what st.shared does without bank conflicts, and what TMA does.

    Args:
        layout: ``offset`` (elements) -> the tile's dimensions.
        element_bitwidth: 8, 16, 32 or 64.
        contiguous_dim: the dimension whose elements lie side by side in global memory.
        paddings: as in `chunk_access`; lines of nothing but padding are left out.

    Returns:
        For each line of shared memory, the lengths in bytes of the pieces of global memory that
        are in one piece, if the rows of the tile lie apart from each other there.

    Raises:
        LayoutError: not a layout of one element an offset, or no such dimension.

    Source: seed 003, Sec. 5.
    """
    tile = checked_tile(layout, element_bitwidth)
    names = list(tile.out_dims)
    name = names[_dim_index("contiguous_dim", contiguous_dim, len(names))]
    paddings, line_elements = checked_paddings(paddings), 8 * LINE_BYTES // element_bitwidth
    in_lines: dict[int, list[int]] = {}  # line -> offsets
    for offset in range(tile.total_in_size):
        line = padded_offset(offset, paddings) // line_elements
        in_lines.setdefault(line, []).append(offset)
    lines = []
    for offsets in in_lines.values():
        rows: dict[tuple[int, ...], list[int]] = {}
        for offset in offsets:
            element = tile.apply(offset=offset)
            column = element.pop(name)
            rows.setdefault(tuple(element.values()), []).append(column)
        runs = []
        for columns in rows.values():
            columns.sort()
            ends = [i for i, c in enumerate(columns) if columns[i + 1 : i + 2] != [c + 1]]
            lengths = [end - begin for begin, end in zip([-1, *ends], ends, strict=False)]
            runs += [length * element_bitwidth // 8 for length in lengths]
        lines.append(tuple(runs))
    return tuple(lines)


def global_request_bytes(
    layout: LinearLayout, element_bitwidth: int, contiguous_dim: int = -1
) -> int:
    """The smallest piece that a fill reads from global memory at once, in bytes; 128 at best.

    Arguments and errors as `global_runs`. For the atoms it is 16, 32, 64 and 128 bytes with no,
    32-, 64- and 128-byte swizzle (seed 003, Sec. 5).
    """
    return min(min(runs) for runs in global_runs(layout, element_bitwidth, contiguous_dim))


def pick_atom(shape: Sequence[int], element_bitwidth: int, major: Major = "K") -> SwizzleAtom:
    """The largest swizzle atom that fits a tile, which is the best for global memory.

    Args:
        shape: (M or N, K), in elements: powers of two.

    Raises:
        LayoutError: an illegal argument, or a tile too small for any atom.

    Source: seed 003, Sec. 5; the choice is that of `NVMMAShared.default_for`.
    """
    one_of("major", major, MAJORS)
    shape = checked_shape(shape, 2)
    encoding = NVMMAShared.default_for(shape, element_bitwidth, transposed=major == "MN")
    atom = SwizzleAtom(major, encoding.swizzle_byte_width, element_bitwidth)
    if any(size < least for size, least in zip(shape, atom.shape, strict=True)):
        rule = f"must hold at least {ATOM_ROWS} rows of {CHUNK_BYTES} bytes: {atom.shape}"
        raise LayoutError("shape", tuple(shape), rule)
    return atom
