"""Bank conflicts and global request sizes: the seeds, the laws, Triton, and the compiled PTX."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documented_atoms import ATOMS, atom_id, row_major, subtiles
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sites import ROOT, SUPPORT, triton_sites
from strategies import invertible_layouts

from triton_ext import (
    LayoutError,
    LinearLayout,
    NVMMAShared,
    SharedLinear,
    SwizzledShared,
    nvmma_shared_to_linear_layout,
)
from triton_ext.commands.common import CommandGroup
from triton_ext.hardware.banks import (
    ACCESS_BYTES,
    chunk_access,
    global_request_bytes,
    global_runs,
    matrix_access,
    pick_atom,
    thread_layout,
    warp_access,
)
from triton_ext.hardware.register_access import register_access, register_matrix_access
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS


def atoms_side_by_side(atom, count):
    """`count` atoms behind each other in memory, side by side along the contiguous dimension."""
    along = "dim1" if atom.major == "K" else "dim0"
    return atom.to_linear_layout() * LinearLayout.identity_1d(count, "offset", along)


# ------------------------------------------------------------------------------- seed 003


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_seed_003_sec_3_every_subtile_of_every_atom_takes_one_wavefront(atom):
    """Seed 003, Sec. 3: "each 8x16B subtile can be loaded from smem in 1 cycle"."""
    layout = atom.to_linear_layout()
    corners = list(subtiles(layout, atom.element_bitwidth, atom.major))
    assert len(corners) == atom.row_bytes // 16
    for corner in corners:
        report = chunk_access(layout, atom.element_bitwidth, corner, atom.major)
        assert (report.wavefronts, report.degree, report.conflicts) == (1, 1, ())
        if atom.major == "K":
            assert matrix_access(layout, atom.element_bitwidth, [corner]) == report
        elif atom.element_bitwidth == 16:
            assert matrix_access(layout, 16, [corner], trans=True) == report


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_seed_003_sec_7_tiles_of_several_atoms_have_no_conflict_either(atom):
    """Seed 003, Sec. 7: a tile of many atoms, whatever their order; here NVMMAShared's."""
    if not atom.swizzle_byte_width:
        layout = atoms_side_by_side(atom, 4)
    else:
        shape = tuple(2 * size for size in atom.shape)
        encoding = NVMMAShared(
            atom.swizzle_byte_width, atom.element_bitwidth, transposed=atom.major == "MN"
        )
        layout = nvmma_shared_to_linear_layout(shape, encoding)
    for corner in subtiles(layout, atom.element_bitwidth, atom.major):
        assert chunk_access(layout, atom.element_bitwidth, corner, atom.major).wavefronts == 1


@pytest.mark.parametrize("bits", ELEMENT_BITWIDTHS)
@pytest.mark.parametrize(("row_bytes", "ways"), [(16, 1), (32, 2), (64, 4), (128, 8), (256, 8)])
def test_seed_003_sec_4_the_linear_layout_conflicts(row_bytes, ways, bits):
    """Seed 003, Sec. 4: M=8, K=32B row by row "will cause 2-way bank conflicts"; wider, more."""
    layout = row_major(8, 8 * row_bytes // bits)
    for corner in subtiles(layout, bits, "K"):
        report = chunk_access(layout, bits, corner)
        assert (report.wavefronts, report.ideal_wavefronts, report.degree) == (ways, 1, ways)
        assert bool(report.conflicts) == (ways > 1)


def test_seed_003_sec_4_the_grey_subtile_lies_in_half_of_the_banks():
    """Seed 003, Sec. 4: chunks 0, 2, ..., 14 "are all stored in half of the smem banks"."""
    report = chunk_access(row_major(8, 16), 16, (0, 0))
    assert report.offsets == tuple(32 * row for row in range(8))
    assert {conflict.bank for conflict in report.conflicts} == {
        bank for bank in range(32) if bank % 8 < 4
    }
    first = report.conflicts[0]
    assert (first.group, first.bank, first.words, first.lanes) == (0, 0, (0, 128), ((0,), (4,)))
    assert str(report) == "2 wavefronts instead of 1: 2-way bank conflict"
    swizzled = SwizzleAtom("K", 32, 16).to_linear_layout()
    red = chunk_access(swizzled, 16, (0, 8))
    assert str(red) == "1 wavefront, no bank conflict"


def test_seed_003_sec_4_swizzle_none_is_not_the_linear_layout():
    """Seed 003, Sec. 4: swizzle none avoids conflicts because a subtile is stored in one piece."""
    none = atoms_side_by_side(SwizzleAtom("K", 0, 16), 2)  # M=8, K=32B
    linear = row_major(8, 16)
    assert none != linear
    for corner in ((0, 0), (0, 8)):
        assert chunk_access(none, 16, corner).wavefronts == 1
        assert chunk_access(linear, 16, corner).wavefronts == 2
    # Triton's NVMMAShared without a swizzle is the linear layout, not this atom.
    assert nvmma_shared_to_linear_layout((8, 16), NVMMAShared(0, 16)) == linear


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_seed_003_sec_5_global_request_sizes(atom):
    """Seed 003, Sec. 5: 16, 32, 64 and 128 bytes with no, 32B, 64B and 128B swizzle."""
    expected = {0: 16, 32: 32, 64: 64, 128: 128}[atom.swizzle_byte_width]
    contiguous = 1 if atom.major == "K" else 0
    runs = global_runs(atom.to_linear_layout(), atom.element_bitwidth, contiguous)
    assert runs == ((expected,) * (128 // expected),) * (atom.row_bytes // 16)
    layout = atoms_side_by_side(atom, 128 // atom.row_bytes)
    assert global_request_bytes(layout, atom.element_bitwidth, contiguous) == expected


@pytest.mark.parametrize(
    ("swizzle", "first_line", "second_line"),
    [
        (0, [0, 4, 8, 12, 16, 20, 24, 28], [1, 5, 9, 13, 17, 21, 25, 29]),
        (32, [0, 1, 4, 5, 8, 9, 12, 13], [17, 16, 21, 20, 25, 24, 29, 28]),
        (64, [0, 1, 2, 3, 4, 5, 6, 7], [9, 8, 11, 10, 13, 12, 15, 14]),
    ],
)
def test_seed_003_sec_5_ld_global_and_st_shared(swizzle, first_line, second_line):
    """Seed 003, Sec. 5: 32 threads store 4 bytes each to one line, and read these chunks for it.

    The tile is M=8, K=64B, its chunks numbered row by row.
    """
    atom = SwizzleAtom("K", swizzle, 16)
    layout = atoms_side_by_side(atom, 64 // atom.row_bytes)
    assert layout.out_dims == {"dim0": 8, "dim1": 32}
    for line, expected in enumerate((first_line, second_line)):
        stores = [128 * line + 4 * lane for lane in range(32)]
        assert warp_access(stores, 4).wavefronts == 1
        places = [layout.apply(offset=offset // 2) for offset in stores[::4]]
        assert [4 * place["dim0"] + place["dim1"] // 8 for place in places] == expected
    # Threads over the rows of the tile instead would read 64 bytes at once for every atom, but
    # their stores to the narrower ones conflict.
    rows = thread_layout((8, 32), 16, 4)
    stored = register_access(rows, layout, 16)
    assert stored.access_bytes == 4
    assert stored.worst.degree == {0: 4, 32: 2, 64: 1}[swizzle]


@pytest.mark.parametrize("bits", ELEMENT_BITWIDTHS)
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize(
    ("tile_bytes", "swizzle"), [(16, 0), (32, 32), (64, 64), (128, 128), (256, 128), (1024, 128)]
)
def test_seed_003_sec_5_pick_the_largest_atom_that_fits(tile_bytes, swizzle, major, bits):
    """Seed 003, Sec. 5: the list of the best choices for K- and MN-major tiles."""
    contiguous = 8 * tile_bytes // bits
    for strided in (8, 64):
        shape = (strided, contiguous) if major == "K" else (contiguous, strided)
        atom = pick_atom(shape, bits, major)
        assert atom == SwizzleAtom(major, swizzle, bits)
        default = NVMMAShared.default_for(shape, bits, transposed=major == "MN")
        assert default.swizzle_byte_width == atom.swizzle_byte_width
        legal = [
            other
            for other in ATOMS
            if (other.major, other.element_bitwidth) == (major, bits)
            and all(s >= a for s, a in zip(shape, other.shape, strict=True))
        ]
        dim = 1 if major == "K" else 0
        sizes = [global_request_bytes(other.to_linear_layout(), bits, dim) for other in legal]
        assert max(sizes) == global_request_bytes(atom.to_linear_layout(), bits, dim)


def test_seed_003_sec_6_both_majors_are_read_without_conflict():
    """Seed 003, Sec. 6: M=16, K=8 of bf16: two ldmatrix, with .trans if M is contiguous."""
    k_major = SwizzleAtom("K", 0, 16).to_linear_layout() * LinearLayout.identity_1d(
        2, "offset", "dim0"
    )
    grey = matrix_access(k_major, 16, [(0, 0)])
    assert [offset // 16 for offset in grey.offsets] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert grey.wavefronts == matrix_access(k_major, 16, [(8, 0)]).wavefronts == 1
    atom = SwizzleAtom("MN", 32, 16)
    m_major = atom.to_linear_layout()
    grey = matrix_access(m_major, 16, [(0, 0)], trans=True)
    chunks = [chunk for line in atom.chunk_table() for chunk in line]
    assert [chunks[offset // 16] for offset in grey.offsets] == [0, 2, 4, 6, 8, 10, 12, 14]
    assert grey.wavefronts == matrix_access(m_major, 16, [(8, 0)], trans=True).wavefronts == 1
    with pytest.raises(LayoutError, match=r"an MN-major tile is read with \.trans"):
        matrix_access(m_major, 16, [(0, 0)])
    with pytest.raises(LayoutError, match=r"a K-major tile without \.trans"):
        matrix_access(row_major(8, 8), 16, [(0, 0)], trans=True)


def test_seed_003_sec_6_conflict_free_subtiles_of_two_shapes():
    """Seed 003, Sec. 6: swizzle 64B serves 2x64B (st.shared) and 8x16B (ldmatrix) alike."""
    layout = SwizzleAtom("K", 64, 16).to_linear_layout()
    stored = register_access(thread_layout((8, 32), 16, 4), layout, 16)
    assert [request.wavefronts for request in stored.requests] == [1, 1, 1, 1]
    wide = register_access(thread_layout((8, 32), 16, 16), layout, 16)
    assert [request.group_wavefronts for request in wide.requests] == [(1, 1, 1, 1)]


def test_seed_003_sec_6_matrix_transpose_with_4_byte_atomicity():
    """Seed 003, Sec. 6: a transpose reads a row (1x128B) or a column (32x4B) of a tile of fp32.

    A 16-byte swizzle does not serve the columns; one of 4 bytes does.
    """
    column = thread_layout((32, 32), 32, 4, contiguous_dim=0)
    row = thread_layout((32, 32), 32, 4)
    ways = {
        "linear": row_major(32, 32),
        "16 bytes": nvmma_shared_to_linear_layout((32, 32), NVMMAShared(128, 32)),
        "4 bytes": SwizzledShared(1, 1, 32, (1, 0)).to_linear_layout((32, 32)),
    }
    assert {
        name: (
            register_access(row, layout, 32, 4).worst.degree,
            register_access(column, layout, 32, 4).worst.degree,
        )
        for name, layout in ways.items()
    } == {"linear": (1, 32), "16 bytes": (1, 4), "4 bytes": (1, 1)}


# ------------------------------------------------------------------- the other seeds


@pytest.mark.parametrize("bits", ELEMENT_BITWIDTHS)
def test_seed_000_a_core_matrix_stored_contiguously_has_no_conflict(bits):
    """Seed 000, "Core matrix": 8 rows of 16 bytes in one piece line up with one row of banks."""
    core = row_major(8, 128 // bits)
    report = chunk_access(core, bits)
    assert report.wavefronts == 1
    assert sorted(report.offsets) == list(range(0, 128, 16))


def test_seed_004_banks():
    """Seed 004, "Shared Memory Banks", "Bank conflicts": two threads and banks 0, 16 and 0."""
    assert warp_access([4 * 0, 4 * 16]).wavefronts == 1
    report = warp_access([0, 3 * 128])
    assert (report.wavefronts, report.degree) == (2, 2)
    assert report.conflicts[0].lanes == ((0,), (1,))


def test_seed_004_the_canonical_128b_layout_without_its_swizzle():
    """Seed 004, "Bank conflicts": 8 rows in banks 0-3, 8-way; none with Swizzle<3, 4, 3>."""
    plain = row_major(8, 64)
    report = chunk_access(plain, 16)
    assert report.degree == report.wavefronts == 8
    assert [conflict.bank for conflict in report.conflicts] == [0, 1, 2, 3]
    assert all(conflict.lanes == tuple((row,) for row in range(8)) for conflict in report.conflicts)
    swizzled = nvmma_shared_to_linear_layout((8, 64), NVMMAShared(128, 16))
    for core in range(8):
        offsets = chunk_access(swizzled, 16, (0, 8 * core)).offsets
        assert sorted(offset % 128 for offset in offsets) == list(range(0, 128, 16))


# ----------------------------------------------------------------------------- the model


def simulate(offsets, access_bytes):
    """The same model, cycle by cycle: each bank hands out one word, to all who wait for it."""
    cycles = 0
    size = min(32, 128 // access_bytes)
    for start in range(0, 32, size):
        waiting = {
            (lane, byte // 4)
            for lane, offset in enumerate(offsets[start : start + size])
            if offset is not None
            for byte in range(offset, offset + access_bytes)
        }
        while waiting:
            cycles += 1
            served = {}
            for _, word in sorted(waiting):
                served.setdefault(word % 32, word)
            waiting = {(lane, word) for lane, word in waiting if served[word % 32] != word}
    return cycles


@st.composite
def accesses(draw, holes=True):
    """Any access of a warp: few lines of memory, so that lanes meet."""
    access_bytes = draw(st.sampled_from(ACCESS_BYTES))
    lines = draw(st.sampled_from([1, 2, 4, 32]))
    offset = st.integers(0, lines * 128 // access_bytes - 1).map(lambda x: x * access_bytes)
    lane = st.one_of(st.none(), offset) if holes else offset
    offsets = draw(st.lists(lane, min_size=32, max_size=32))
    assume(any(offset is not None for offset in offsets))
    return offsets, access_bytes


@given(accesses())
def test_a_simulation_cycle_by_cycle_agrees(access):
    report = warp_access(*access)
    assert report.wavefronts == simulate(*access)
    assert report.ideal_wavefronts <= report.wavefronts
    assert report.degree == max((len(c.words) for c in report.conflicts), default=1)
    assert bool(report.conflicts) == (report.wavefronts > report.ideal_wavefronts)


@given(accesses(), st.randoms(use_true_random=False))
def test_permuting_the_lanes_of_a_group_changes_nothing(access, randomness):
    offsets, access_bytes = access
    size = min(32, 128 // access_bytes)
    mixed = []
    for start in range(0, 32, size):
        mixed += randomness.sample(offsets[start : start + size], size)
    before, after = warp_access(offsets, access_bytes), warp_access(mixed, access_bytes)
    assert before.group_wavefronts == after.group_wavefronts
    words = [[(c.group, c.bank, c.words) for c in r.conflicts] for r in (before, after)]
    assert words[0] == words[1]


@given(accesses(), st.integers(0, 2**10))
def test_xor_by_a_constant_changes_nothing(access, constant):
    """So all requests of a linear layout take as many wavefronts as the first."""
    offsets, access_bytes = access
    moved = [None if o is None else o ^ constant * access_bytes for o in offsets]
    before, after = warp_access(offsets, access_bytes), warp_access(moved, access_bytes)
    assert before.group_wavefronts == after.group_wavefronts


@given(accesses(), st.integers(0, 31))
def test_another_lane_costs_at_most_one_wavefront_a_word(access, lane):
    offsets, access_bytes = access
    without = [None if i == lane else offset for i, offset in enumerate(offsets)]
    assume(any(offset is not None for offset in without))
    fewer, more = (warp_access(o, access_bytes).wavefronts for o in (without, offsets))
    assert fewer <= more <= fewer + 1  # an aligned access has each bank at most once


@given(accesses(holes=False), st.integers(0, 31))
def test_a_lane_that_accesses_what_another_does_is_free(access, lane):
    offsets, access_bytes = access
    size = min(32, 128 // access_bytes)
    same = list(offsets)
    same[lane] = offsets[lane // size * size]
    assert warp_access(same, access_bytes).wavefronts <= warp_access(*access).wavefronts


def test_broadcasts_and_words():
    """CUDA C++ Programming Guide, "Shared Memory" of compute capability 5.x: the pictures' cases.

    Strides of 1, 2 and 3 words: none, 2-way, none; any permutation; the same word; one word by
    some lanes and others by the rest.
    """
    assert [warp_access([4 * s * lane for lane in range(32)]).degree for s in (1, 2, 3)] == [
        1,
        2,
        1,
    ]
    assert [warp_access([4 * s * lane for lane in range(32)]).degree for s in (8, 32)] == [8, 32]
    shuffled = random.Random(0).sample(range(32), 32)
    assert warp_access([4 * word for word in shuffled]).wavefronts == 1
    assert warp_access([20] * 32).wavefronts == 1
    assert warp_access([4 * (lane if lane > 6 else 5) for lane in range(32)]).wavefronts == 1
    assert warp_access(list(range(32)), 1).wavefronts == 1  # four lanes a word
    assert warp_access([2 * lane for lane in range(32)], 2).wavefronts == 1


@pytest.mark.parametrize(("access_bytes", "ideal"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)])
def test_ideal_wavefronts_of_a_full_warp(access_bytes, ideal):
    """128 bytes a wavefront: an LDS.128 takes 4 and has no conflict."""
    report = warp_access([access_bytes * lane for lane in range(32)], access_bytes)
    assert report.wavefronts == report.ideal_wavefronts == ideal
    worst = warp_access([128 * lane for lane in range(32)], access_bytes)
    assert worst.wavefronts == 32
    assert worst.ideal_wavefronts == ideal


def test_lanes_as_a_layout():
    lanes = LinearLayout({"lane": [(128,), (4,), (8,), (16,), (32,)]}, {"bytes": 256})
    assert warp_access(lanes) == warp_access([lanes.apply(lane=i)["bytes"] for i in range(32)])
    assert warp_access(lanes).degree == 2


@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_takes_a_wavefront_a_matrix(count):
    """x1, x2 and x4: the matrices do not conflict with each other, as they are served in turn."""
    layout = nvmma_shared_to_linear_layout((64, 64), NVMMAShared(128, 16))
    report = matrix_access(layout, 16, [(8 * i, 8 * i) for i in range(count)])
    assert report.group_wavefronts == (1,) * count
    assert [offset is None for offset in report.offsets] == [False] * (8 * count)
    linear = matrix_access(row_major(64, 64), 16, [(8 * i, 0) for i in range(count)])
    assert linear.group_wavefronts == (8,) * count


# ------------------------------------------------------------------- tensors in registers


@st.composite
def register_layouts(draw, out_dims, warps=True):
    """Some bijection of registers, lanes and warps onto a tile, its bases in any order."""
    units = [
        tuple(1 << bit if dim == moved else 0 for dim in range(len(out_dims)))
        for moved, size in enumerate(out_dims.values())
        for bit in range(size.bit_length() - 1)
    ]
    units = draw(st.permutations(units))
    warp_bits = draw(st.integers(0, len(units) - 5)) if warps else 0
    lanes, rest = units[:5], units[5:]
    bases = {"register": rest[warp_bits:], "lane": lanes, "warp": rest[:warp_bits]}
    return LinearLayout(bases, out_dims)


@settings(max_examples=60)
@given(st.data())
def test_a_tensor_is_accessed_once_and_within_its_alignment(data):
    out_dims = {"dim0": 16, "dim1": 32}
    shared = data.draw(invertible_layouts(out_dims))
    shared = shared.reshape_ins({"offset": 512})
    registers = data.draw(register_layouts(out_dims))
    bits = data.draw(st.sampled_from(ELEMENT_BITWIDTHS))
    access = register_access(registers, shared, bits)
    assert 8 * access.access_bytes >= bits
    touched = [
        byte
        for request in access.requests
        for offset in request.offsets
        for byte in range(offset, offset + access.access_bytes)
    ]
    assert sorted(touched) == list(range(512 * bits // 8))
    assert len({request.wavefronts for request in access.requests}) == 1  # linear
    assert access.wavefronts == sum(simulate(r.offsets, r.access_bytes) for r in access.requests)
    narrow = register_access(registers, shared, bits, bits // 8)
    assert len(narrow.requests) * bits // 8 == len(access.requests) * access.access_bytes


def test_repeated_registers_are_accessed_once():
    shared = row_major(8, 32)
    once = thread_layout((8, 32), 16, 4)
    bases = once.bases
    bases["register"] = [*bases["register"], (0, 0), bases["register"][0]]
    assert register_access(LinearLayout(bases, once.out_dims), shared, 16) == register_access(
        once, shared, 16
    )


def test_threads_that_outnumber_the_elements_repeat_them():
    few = thread_layout((2, 16), 32, 16, warps=2)
    assert few.bases == {
        "register": [(0, 1), (0, 2)],
        "lane": [(0, 4), (0, 8), (1, 0), (0, 0), (0, 0)],
        "warp": [(0, 0)],
    }
    access = register_access(few, row_major(2, 16), 32)
    assert [request.wavefronts for request in access.requests] == [4, 4]


def test_padding_moves_rows_to_other_banks():
    """Gluon's PaddedSharedLayout: 4 bytes after each row of 128 make columns conflict-free."""
    columns = thread_layout((32, 32), 32, 4, contiguous_dim=0)
    linear = row_major(32, 32)
    assert register_access(columns, linear, 32, 4).worst.degree == 32
    padded = register_access(columns, linear, 32, paddings=[(32, 1)])
    assert padded.worst.degree == 1
    assert padded.requests[0].offsets == tuple(132 * row for row in range(32))
    assert register_access(columns, linear, 32, 4, paddings=[(32, 2)]).worst.degree == 2
    rows = thread_layout((32, 32), 32, 16)
    assert register_access(rows, linear, 32).access_bytes == 16
    # 16-byte accesses to rows of 132 bytes would be misaligned.
    assert register_access(rows, linear, 32, paddings=[(32, 1)]).access_bytes == 4


def brute_force(addresses, size):
    """Wavefronts: for each group of lanes the most words of one bank; nothing shared with ours."""
    total = 0
    for first in range(0, len(addresses), 128 // size):
        words = {
            word for at in addresses[first : first + 128 // size]
            for word in range(at // 4, (at + size - 1) // 4 + 1)
        }  # fmt: skip
        total += max(sum(word % 32 == bank for word in words) for bank in range(32))
    return total


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize(
    "paddings", [((64, 16),), ((128, 16),), ((32, 16), (256, 32)), ((16, 16),)]
)
def test_padded_subtiles_by_brute_force(bits, paddings):
    """Each subtile of a padded tile in rows: its addresses by the definition of the padding."""
    rows, columns = 32, 64
    chunk = 128 // bits
    memory, address = {}, 0
    for number in range(rows * columns):  # element by element, as Gluon's documentation tells it
        memory[divmod(number, columns)] = address * bits // 8
        ends = [extra for interval, extra in paddings if (number + 1) % interval == 0]
        address += 1 + sum(ends)
    tile = row_major(rows, columns)
    for row, column in itertools.product(range(0, rows, 8), range(0, columns, chunk)):
        expected = [memory[row + i, column] for i in range(8)]
        report = chunk_access(tile, bits, (row, column), paddings=paddings)
        assert report.offsets == tuple(expected)
        assert report.wavefronts == brute_force(expected, 16)
    corners = ((0, 0), (8, 0), (16, 0), (24, 0))
    moved = matrix_access(tile, bits, corners, paddings=paddings)
    assert moved.wavefronts == brute_force([memory[row, 0] for row in range(32)], 16)
    lines = {}
    for (row, _), at in sorted(memory.items(), key=lambda item: item[1]):
        lines.setdefault(at // 128, []).append(row)
    assert [sum(line) * 8 // bits for line in global_runs(tile, bits, paddings=paddings)] == [
        len(line) for line in lines.values()
    ]


def test_padding_inside_of_16_bytes_is_refused():
    with pytest.raises(LayoutError, match="must hold the 8 elements"):
        chunk_access(row_major(8, 64), 16, paddings=[(4, 4)])
    with pytest.raises(LayoutError, match="must be a multiple of access_bytes"):
        chunk_access(row_major(8, 64), 16, paddings=[(64, 4)])
    with pytest.raises(LayoutError, match="pairs of powers of two"):
        chunk_access(row_major(8, 64), 16, paddings=[(64, 3)])


def sites():
    return [pytest.param(*site.values, id=site.id, marks=site.marks) for site in triton_sites()]


def random_cases(count):
    """Register and shared layouts, as JSON for `banks_worker` and as our own values."""
    randomness = random.Random(0)
    while count:
        bits = randomness.choice(ELEMENT_BITWIDTHS)
        shape = tuple(1 << randomness.randint(3, 7) for _ in range(2))
        if shape[0] * shape[1] * bits < 8 * 128:
            continue  # Triton aborts
        units = [(1 << i, 0) for i in range(shape[0].bit_length() - 1)]
        units += [(0, 1 << i) for i in range(shape[1].bit_length() - 1)]
        kind = randomness.choice(["nvmma", "swizzled", "linear"])
        if kind == "nvmma":
            width = randomness.choice(SWIZZLE_BYTE_WIDTHS)
            # Triton 3.7 does not heed `transposed` without a swizzle (`known_faults`).
            encoding = NVMMAShared(width, bits, bool(width) and randomness.choice([False, True]))
        elif kind == "swizzled":
            vec, per_phase, max_phase = (randomness.choice([1, 2, 4, 8]) for _ in range(3))
            encoding = SwizzledShared(
                vec, per_phase, max_phase, randomness.choice([(0, 1), (1, 0)])
            )
        else:
            mixed = randomness.sample(units, len(units))
            for _ in range(randomness.randint(0, 6)):
                i, j = randomness.sample(range(len(units)), 2)
                mixed[i] = tuple(a ^ b for a, b in zip(mixed[i], mixed[j], strict=True))
            encoding = SharedLinear(tuple(mixed), (), 128)
        try:
            shared = encoding.to_linear_layout(shape)
        except LayoutError:
            continue
        first = [(0, 1 << i) for i in range(randomness.randint(0, 3)) if 1 << i < shape[1]]
        rest = [unit for unit in units if unit not in first]
        if randomness.random() < 0.5:
            randomness.shuffle(rest)
        units = first + rest
        warps = randomness.randint(0, min(2, len(units) - 5))
        registers = len(units) - 5 - warps
        bases = {
            "register": units[:registers],
            "lane": units[registers : registers + 5],
            "warp": units[registers + 5 :],
        }
        case = {"encoding": str(encoding), "shape": shape, "bits": bits, **bases}
        out_dims = {"dim0": shape[0], "dim1": shape[1]}
        yield case, LinearLayout(bases, out_dims), shared
        count -= 1


@pytest.mark.parametrize("site", sites())
def test_triton_counts_the_same(site: Path | None):
    """Triton's ``bankConflictsMemDesc``: the degree less 1, of ld.shared and st.shared.

    It counts the lanes of the first group whose offset is a multiple of 128 bytes; two lanes of
    one bank whose offsets differ by less than a word more or less it does not see, so that its
    count is too low for some accesses of less than 4 bytes.
    """
    cases = list(random_cases(300))
    environment = dict(os.environ)
    paths = [str(site)] if site else []
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [*paths, str(ROOT), environment.get("PYTHONPATH", "")])
    )
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "banks_worker.py")],
        input=json.dumps([case for case, _, _ in cases]),
        capture_output=True,
        text=True,
        env=environment,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    version, *answers = finished.stdout.split()
    if site:
        assert version == site.name
    too_low = 0
    for (case, registers, shared), answer in zip(cases, answers, strict=True):
        access = register_access(registers, shared, case["bits"])
        (degree,) = {request.degree for request in access.requests}
        first = access.requests[0].offsets[: 128 // max(4, access.access_bytes)]
        assert int(answer) == len({o for o in first if o % 128 == 0}) - 1, case
        assert degree == len({o // 4 for o in first if o % 128 < 4}), case
        if access.access_bytes >= 4:
            assert int(answer) == degree - 1, case
        too_low += int(answer) < degree - 1
    assert 0 < too_low < len(cases) // 20


# --------------------------------------------------------- what the compiler really issues


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """`silicon.record_banks`, with a compilation cache of its own."""
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        from silicon import record_banks

        yield record_banks


@pytest.fixture(scope="module")
def compiled(benchmark):
    """Each case of the benchmark with its kernel, compiled for sm_90."""
    kernels = []
    for case in benchmark.cases():
        constants = case.constants()
        pointer = f"*{benchmark.ELEMENT_TYPES[case.element_bitwidth]}"
        signature = {"source": pointer, "target": pointer} | dict.fromkeys(constants, "constexpr")
        kernels.append(
            (case, benchmark.compile_gluon(
                benchmark.exchange, signature, constants, arch=90, num_warps=benchmark.NUM_WARPS
            ))
        )  # fmt: skip
    return kernels


def test_the_addresses_in_the_ptx_are_those_predicted(benchmark, compiled):
    """Every request of every case: the byte offsets of the lanes, evaluated from the PTX."""
    from ptx_addresses import shared_addresses

    for case, kernel in compiled:
        found = shared_addresses(kernel.asm["ptx"], 32 * benchmark.NUM_WARPS)
        for side in ("st", "ld"):
            own = [(name, addresses) for name, addresses in found if name.startswith(side)]
            access = case.predict([name for name, _ in own])
            issued = sorted(
                tuple(addresses[start : start + 32])
                for _, addresses in own
                for start in range(0, len(addresses), 32)
            )
            if "matrix" in own[0][0]:  # which matrices share an instruction is the compiler's
                issued, predicted = (
                    sorted(tuple(r[i : i + 8]) for r in requests for i in range(0, 32, 8))
                    for requests in (issued, [r.offsets for r in access.requests])
                )
            else:
                predicted = sorted(request.offsets for request in access.requests)
            assert issued == predicted, (case.name, side)


def test_the_machine_code_has_as_many_instructions_as_the_ptx(benchmark, compiled):
    """SASS: ptxas neither splits nor joins them. One kernel for each pair of instructions."""
    different = {}
    for case, kernel in compiled:
        issued = benchmark.shared_instructions(kernel.asm["ptx"])
        different[tuple(issued["st"][:1] + issued["ld"][:1])] = case, kernel, issued
    for case, kernel, issued in different.values():
        try:
            sass = kernel.asm["sass"]
        except FileNotFoundError:
            pytest.skip("no cuobjdump")
        assert len(re.findall(r"\bSTSM?[. ]", sass)) == len(issued["st"]), case.name
        assert len(re.findall(r"\bLDSM?[. ]", sass)) == len(issued["ld"]), case.name


def test_the_benchmark_predicts(benchmark):
    rows = {row["case"]: row for row in benchmark.predictions()}
    row = rows["fp16 row-major: rows of 16 B -> fragments"]
    assert row["st"] == {
        "instruction": "st.shared 16 B",
        "requests": 16,
        "wavefronts": 64,
        "ideal_wavefronts": 64,
        "wavefronts_per_request": 4.0,
    }
    assert row["ld"]["wavefronts_per_request"] == 32
    swizzled = rows["fp16 nvmma-128: rows of 16 B -> fragments"]["ld"]
    assert swizzled["instruction"] == "ldmatrix.x4"
    assert swizzled["wavefronts"] == swizzled["ideal_wavefronts"] == 64
    assert rows["fp32 row-major: columns -> columns"]["ld"]["wavefronts_per_request"] == 32
    assert rows["fp32 padded-4B: columns -> rows"]["st"]["wavefronts_per_request"] == 1


def test_instruction_names(benchmark):
    """A launch compiles for aligned pointers, and spells some instructions in another way."""
    assert benchmark.instruction_name("st.shared.v4.b16") == "st.shared 8 B"
    assert benchmark.instruction_name("st.shared.v2.b32") == "st.shared 8 B"
    trans = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
    assert benchmark.instruction_name(trans) == "ldmatrix.x4.trans"
    assert benchmark.instruction_name("stmatrix.sync.aligned.m8n8.x2.shared.b16") == "stmatrix.x2"


def test_the_benchmark_reads_nsight_compute(benchmark):
    """The long form of ``ncu --csv``: a line for each metric of each launch."""
    row = benchmark.predictions()[0]
    counters = {
        benchmark.WAVEFRONTS.format("st"): "64",
        benchmark.CONFLICTS.format("st"): "0",
        benchmark.WAVEFRONTS.format("ld"): "1,512",
        benchmark.CONFLICTS.format("ld"): "448",
    }
    head = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    text = "==PROF== Connected to process 1\n" + head
    for name, value in counters.items():
        text += f'"0","1","exchange","{name}","","{value}"\n'
    text += '"0","1","exchange","smsp__inst_executed_op_ldsm.sum","","n/a"\n'
    (parsed,) = benchmark.parse_counters(text + "==PROF== Disconnected\n")
    assert set(parsed) == set(counters)
    assert parsed[benchmark.WAVEFRONTS.format("ld")] == 1512
    (compared,) = benchmark.compare([row], [parsed])
    assert not compared["agrees"]
    (compared,) = benchmark.compare(
        [row], [parsed | {benchmark.WAVEFRONTS.format("ld"): row["ld"]["wavefronts"]}]
    )
    assert compared["agrees"]
    assert compared["ld"]["measured_conflicts"] == 448
    with pytest.raises(SystemExit, match="ncu profiled 2"):
        benchmark.compare([row], [parsed, parsed])
    with pytest.raises(SystemExit, match="ncu counted only"):
        benchmark.compare([row], [{}])


FAKE_NCU = """
import json, sys
arguments = sys.argv[1:]
if arguments == ["--query-metrics"]:
    print("Device NVIDIA H100 (GH100)")
    print("smsp__inst_executed_op_shared_ld   Counter   inst   # of warp instructions")
    sys.exit()
value = lambda option: arguments[arguments.index(option) + 1]
assert arguments[-3:] == ["-m", "silicon.record_banks", "--launch"], arguments
assert value("--clock-control") == "none" and value("--kernel-name") == "regex:exchange"
assert "smsp__inst_executed_op_shared_ld.sum" in value("--metrics")
assert "ldsm" not in value("--metrics")  # not listed above
with open(value("--log-file"), "w") as log:
    log.write("==PROF== Connected\\n")
    log.write('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\\n')
    for number, counters in enumerate(json.load(open(COUNTERS))):
        for name, count in counters.items():
            log.write(f'"{number}","exchange","{name}","","{count:,}"\\n')
"""


@pytest.mark.parametrize("shift", [0, 1])
def test_the_benchmark_from_end_to_end(benchmark, tmp_path, monkeypatch, capsys, shift):
    """With a program in place of ncu that counts what was predicted, or one wavefront more."""
    counters = []
    for row in benchmark.predictions():
        counts = {}
        for side in ("st", "ld"):
            beyond = row[side]["wavefronts"] - row[side]["ideal_wavefronts"]
            counts[benchmark.WAVEFRONTS.format(side)] = row[side]["wavefronts"] + shift
            counts[benchmark.CONFLICTS.format(side)] = beyond
        counters.append(counts)
    file = tmp_path / "counters.json"
    file.write_text(json.dumps(counters))
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!{sys.executable}\nCOUNTERS = {str(file)!r}\n{FAKE_NCU}")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(sys, "argv", ["record_banks", "--json", str(tmp_path / "rows.json")])
    with pytest.raises(SystemExit) as finished:
        benchmark.main()
    assert finished.value.code == shift
    out = capsys.readouterr().out
    assert out.count("ok: ") == (0 if shift else len(counters))
    assert out.count("DIFFERS: ") == (len(counters) - 3 if shift else 0)
    document = json.loads((tmp_path / "rows.json").read_text())
    assert document["command"].endswith("silicon.record_banks")
    assert len(document["rows"]) == len(counters)


def test_fragments_are_read_as_the_ptx_isa_says():
    """Seed 003, Sec. 2: the rows of the 8x16B matrix are the tile's, and lane 4r holds row r."""
    shared = nvmma_shared_to_linear_layout((16, 64), NVMMAShared(128, 16))
    registers = LinearLayout(
        {
            "register": [(0, 1), (8, 0), (0, 8), (0, 16), (0, 32)],
            "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)],
        },
        {"dim0": 16, "dim1": 64},
    )
    access = register_matrix_access(registers, shared, 16)
    corners = [(0, 0), (8, 0), (0, 8), (8, 8)]
    assert access.requests[0] == matrix_access(shared, 16, corners)
    assert access.requests[1] == matrix_access(shared, 16, [(r, c + 16) for r, c in corners])
    assert (len(access.requests), access.wavefronts, access.ideal_wavefronts) == (4, 16, 16)
    transposed = nvmma_shared_to_linear_layout((16, 64), NVMMAShared(32, 16, transposed=True))
    by_trans = register_matrix_access(registers, transposed, 16, trans=True)
    assert by_trans.requests[0] == matrix_access(transposed, 16, corners, trans=True)
    with pytest.raises(LayoutError, match="4 lanes 4 bytes each"):
        register_matrix_access(registers, transposed, 16)
    with pytest.raises(LayoutError, match="an element each"):
        register_matrix_access(registers, shared, 16, trans=True)


# --------------------------------------------------------------------------------- errors


def test_errors():
    layout = row_major(8, 64)
    threads = thread_layout((8, 64), 16, 16)
    padded = nvmma_shared_to_linear_layout((8, 64), NVMMAShared(128, 8, fp4_padded=True))
    cluster = nvmma_shared_to_linear_layout((16, 64), NVMMAShared(128, 16, cga_layout=((1, 0),)))
    for call, message in (
        (lambda: warp_access([0], 3), "access_bytes = 3: must be one of 1, 2, 4, 8, 16"),
        (lambda: warp_access([0], True), "access_bytes = True"),
        (lambda: warp_access([0, 6], 4), r"offsets\[1\] = 6: must be a multiple of access_bytes"),
        (lambda: warp_access([-4], 4), r"offsets\[0\] = -4"),
        (lambda: warp_access([0.5], 4), "must be a sequence of integers"),
        (lambda: warp_access([0] * 33, 4), "a warp has 32 lanes"),
        (lambda: warp_access([None]), "at least one lane must be active"),
        (lambda: warp_access(7), "must be a sequence of integers"),
        (lambda: warp_access(layout), "must map 'lane' to one dimension"),
        (lambda: chunk_access(padded, 8), "must hold each element at one offset"),
        (lambda: chunk_access(cluster, 16), "the one input dim 'offset'"),
        (lambda: chunk_access("K", 16), "must be a LinearLayout"),
        (lambda: chunk_access(layout, 12), "element_bitwidth = 12"),
        (lambda: chunk_access(layout, 16, (1, 0)), "must lie in the tile"),
        (lambda: chunk_access(layout, 16, (0, 4)), "must be a multiple of 8"),
        (lambda: chunk_access(layout, 16, (0,)), "must be a pair"),
        (lambda: chunk_access(layout, 16, (0, "0")), "must be a pair"),
        (lambda: chunk_access(layout, 16, (0, 0), "M"), "major = 'M'"),
        (lambda: chunk_access(layout.reshape_outs({"dim0": 512}), 16), "must have 2 output dims"),
        (lambda: matrix_access(layout, 16, [(0, 0)] * 3), "number of matrices = 3"),
        (lambda: matrix_access(layout, 16, 0), "must be a sequence of"),
        (lambda: matrix_access(layout, 32, trans=True), "must be 16: .trans"),
        (lambda: thread_layout((8, 64), 16, 1), "must be at least an element"),
        (lambda: thread_layout((8, 4), 16, 16), "at most a row"),
        (lambda: thread_layout((8, 64), 16, 4, warps=3), "warps = 3"),
        (lambda: thread_layout((8, 64), 16, 4, contiguous_dim=2), "contiguous_dim = 2"),
        (lambda: thread_layout(8, 16), "must be a sequence of integers"),
        (lambda: register_access(threads, layout, 16, 32), "access_bytes = 32"),
        (lambda: register_access(threads, layout, 16, 1), "must be from 2"),
        (lambda: register_access(layout, layout, 16), "input dims must be 'register'"),
        (lambda: register_access(3, layout, 16), "registers = 3: must be a LinearLayout"),
        (lambda: register_access(threads, row_major(8, 32), 16), "at least as large"),
        (lambda: register_access(threads, layout, 16, paddings=[(3, 1)]), "powers of two"),
        (lambda: register_access(threads, layout, 16, paddings=[8]), "powers of two"),
        (lambda: register_matrix_access(threads, layout, 64), "element_bitwidth = 64"),
        (lambda: global_runs(padded, 8), "one of padded fp4 does not"),
        (lambda: global_runs(layout, 16, 2), "contiguous_dim = 2"),
        (lambda: pick_atom((4, 64), 16), "at least 8 rows of 16 bytes"),
        (lambda: pick_atom((8, 4), 16), "at least 8 rows of 16 bytes"),
        (lambda: pick_atom((8, 64), 16, "N"), "major = 'N'"),
        (lambda: pick_atom((8, 63), 16), "power of two"),
    ):
        with pytest.raises(LayoutError, match=message):
            call()


def test_16_bytes_that_are_not_in_order_are_refused():
    """ldmatrix and the tensor core read 16 bytes as they lie; a layout may permute within them."""
    units = row_major(8, 8).bases["offset"]
    swapped = LinearLayout({"offset": [units[1], units[0], *units[2:]]}, {"dim0": 8, "dim1": 8})
    near, far = (
        LinearLayout({"offset": [*units[:3], (1, moved), *units[4:]]}, {"dim0": 8, "dim1": 8})
        for moved in (1, 4)
    )
    registers = LinearLayout(
        {"register": [(0, 1)], "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]},
        {"dim0": 8, "dim1": 8},
    )
    assert register_matrix_access(registers, row_major(8, 8), 16).wavefronts == 1
    for layout, side_by_side in ((swapped, 2), (near, 2), (far, 4)):
        with pytest.raises(LayoutError, match="must hold each 8 elements"):
            chunk_access(layout, 16)
        with pytest.raises(LayoutError, match="must be held, in order"):
            register_matrix_access(registers, layout, 16)
        assert register_access(registers, layout, 16).access_bytes == side_by_side


def test_the_smallest_of_different_global_requests():
    """Columns 0 and 3 in one line of shared memory, 1 and 2, which are neighbours, in the next."""
    bases = [(0, 3), (1, 0), (2, 0), (4, 0), (8, 0), (0, 1)]
    layout = LinearLayout({"offset": bases}, {"dim0": 16, "dim1": 4})
    assert global_runs(layout, 32) == ((4,) * 32, (8,) * 16)
    assert global_request_bytes(layout, 32) == 4


NONSENSE = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 200), st.floats(), st.text(max_size=2),
    st.lists(st.integers(-2, 70), max_size=3), st.just(row_major(8, 64)),
    st.just(thread_layout((8, 64), 16, 4)), st.tuples(st.integers(0, 9), st.integers(0, 64)),
)  # fmt: skip


@given(st.lists(NONSENSE, min_size=5, max_size=5), st.integers(0, 31))
def test_nothing_but_layout_errors(values, kept):
    """Any mixture of legal arguments and nonsense, for every function."""
    tile, registers = row_major(8, 64), thread_layout((8, 64), 16, 4)
    for function, legal in (
        (warp_access, ([0, 4], 4)),
        (chunk_access, (tile, 16, (0, 0), "K")),
        (matrix_access, (tile, 16, [(0, 0)], False)),
        (thread_layout, ((8, 64), 16, 4, 1, 0)),
        (register_access, (registers, tile, 16, 4, ())),
        (register_matrix_access, (registers, tile, 16, False)),
        (global_runs, (tile, 16, 1)),
        (pick_atom, ((8, 64), 16, "K")),
    ):
        mixed = [own if kept >> i & 1 else values[i] for i, own in enumerate(legal)]
        with contextlib.suppress(LayoutError):
            function(*mixed)


def test_the_command_imports_neither_triton_nor_numpy():
    program = "import sys, triton_ext.commands.banks; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not {"triton", "torch", "numpy"} & set(found.stdout.split())
    assert "triton_ext.hardware.banks" in found.stdout.split()


def test_a_half_warp_of_lanes_in_a_layout_is_refused():
    half = LinearLayout({"register": [(1,)], "lane": [(2,)]}, {"dim0": 4})
    with pytest.raises(LayoutError, match="'lane' must have size 32"):
        register_access(half, LinearLayout.identity_1d(4, "offset", "dim0"), 16)


# ---------------------------------------------------------------------------- the command


@pytest.fixture
def command(capsys):
    """``triton-ext banks ARGUMENTS``: (exit status, stdout, stderr)."""
    group = CommandGroup("triton-ext", modules={"banks": "triton_ext.commands.banks"})

    def run(*arguments):
        with pytest.raises(SystemExit) as finished:
            group.main(["banks", *arguments])
        return finished.value.code, *capsys.readouterr()

    return run


TILE = ("--bits", "16", "--shape", "64x64")


def test_command_text(command):
    status, out, _ = command("--swizzle", "64", *TILE, "--access", "ldmatrix", "--at", "0,16")
    assert status == 0
    assert out == (
        "ldmatrix.x1 at (0, 16) of #ttg.nvmma_shared<{swizzlingByteWidth = 64,"
        " transposed = false, elementBitWidth = 16}> at 64x64\n"
        "1 wavefront, no bank conflict\n"
    )
    status, out, _ = command("--offsets", "0,128,-,128,4", "--width", "4")
    assert out.splitlines()[1:] == [
        "2 wavefronts instead of 1: 2-way bank conflict",
        "  bank 0, 2-way: lane 0 at 0, lanes 1+3 at 128",
    ]
    _, out, _ = command("--swizzle", "0", "--bits", "16", "--shape", "8x16")
    assert out.splitlines()[1:] == [
        "2 wavefronts instead of 1: 2-way bank conflict",
        "  banks 0-3, 2-way: lane 0 at 0, lane 4 at 128",
        "  banks 8-11, 2-way: lane 1 at 32, lane 5 at 160",
        "  banks 16-19, 2-way: lane 2 at 64, lane 6 at 192",
        "  banks 24-27, 2-way: lane 3 at 96, lane 7 at 224",
    ]
    _, out, _ = command(
        *TILE, "--access", "st.shared", "--warps", "4", "--width", "2", "--along", "0"
    )
    assert "128 requests: 512 wavefronts, 128 without conflicts" in out
    _, out, _ = command("--swizzle", "32", *TILE, "--access", "fill")
    assert out.endswith("global requests of 32 bytes: 4 for each of 64 lines of shared memory\n")
    _, out, _ = command(
        "--transposed", *TILE, "--access", "stmatrix", "--trans", *["--at", "8,8"] * 4
    )
    assert out.startswith("stmatrix.x4.trans at (8, 8), (8, 8), (8, 8), (8, 8) of ")
    _, out, _ = command("--transposed", *TILE)
    assert out.startswith("MN-major chunk at (0, 0)")


def test_command_json(command):
    status, out, _ = command(*TILE, "--swizzle", "0", "--access", "ld.shared", "--format", "json")
    assert status == 0
    found = json.loads(out)
    worst = found.pop("worst_request")
    assert found == {
        "version": 1,
        "encoding": str(NVMMAShared(0, 16)),
        "shape": [64, 64],
        "element_bitwidth": 16,
        "access": "ld.shared",
        "access_bytes": 16,
        "requests": 16,
        "wavefronts": 64,
        "ideal_wavefronts": 64,
        "degree": 1,
    }
    assert worst["offsets"] == [16 * lane for lane in range(32)]
    attribute = str(SwizzledShared(8, 1, 8, (1, 0)))
    _, out, _ = command(attribute, *TILE, "--access", "fill", "--format", "json")
    assert json.loads(out)["request_bytes"] == 128
    _, out, _ = command("--offsets", "0,256", "--format", "json")
    found = json.loads(out)
    assert (found["access"], found["degree"]) == ("offsets", 2)
    assert found["worst_request"]["conflicts"] == [
        {"group": 0, "bank": 0, "words": [0, 256], "lanes": [[0], [1]]}
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --shape with --bits or an attribute; or --offsets"),
        (("--offsets", "0,x"), "is no list of integers"),
        (("--offsets", "0,2"), "must be a multiple of access_bytes (4)"),
        (("--offsets", "0", "--bits", "16"), "--bits cannot be used with --offsets"),
        (("--offsets", "0", "--warps", "1"), "--warps cannot be used with --offsets"),
        ((*TILE, "--trans"), "--trans cannot be used with chunk"),
        ((*TILE, "--width", "4"), "--width cannot be used with chunk"),
        ((*TILE, "--access", "fill", "--at", "0,0"), "--at cannot be used with fill"),
        ((*TILE, "--at", "0,0", "--at", "0,8"), "--at can be given only once"),
        ((*TILE, "--at", "64,0"), "must lie in the tile"),
        ((*TILE, "--at", "0"), "must be a pair"),
        ((*TILE, "--access", "ldmatrix", "--trans"), "a K-major tile without .trans"),
        ((*TILE, "--access", "ldmatrix", *["--at", "0,0"] * 3), "must be one of 1, 2, 4"),
        ((*TILE, "--access", "st.shared", "--along", "0"), "must be from 2"),
        ((*TILE, "--access", "st.shared", "--along", "2"), "one of the 2 dimensions"),
        ((*TILE, "--access", "st.shared", "--warps", "0"), "--warps"),
        ((*TILE, "--access", "st.shared", "--warps", "3"), "must be a power of two"),
        (("--bits", "16", "--shape", "63x64"), "must be a power of two"),
        (("nonsense", *TILE), "attribute"),
        ((str(NVMMAShared(32, 8)), *TILE), "the attribute's elements have 8 bits"),
        ((str(NVMMAShared(32, 8)), "--transposed", "--shape", "64x64"), "with an attribute"),
        ((str(SwizzledShared(1, 1, 1, (1, 0))), "--shape", "8x8"), "give --bits"),
        (("--bits", "16", "--shape", "2x64x64"), "must have 2 output dims"),
    ],
)
def test_command_errors_are_one_line(command, arguments, message):
    status, out, err = command(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("triton-ext: ")
    assert err.count("\n") == 1
    assert message in err
