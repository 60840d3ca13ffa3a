"""The 8 documented atoms: the seeds' pictures, the conversion, and NVIDIA's CuTe DSL."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from documented_atoms import ATOMS, CHUNK_PICTURES, atom_id
from hypothesis import given
from hypothesis import strategies as st

from triton_ext import (
    LayoutError,
    NVMMAShared,
    core_matrix_linear_layout,
    nvmma_shared_to_linear_layout,
)
from triton_ext.layouts.atoms import Swizzle, SwizzleAtom


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_conversion_gives_the_documented_atom(atom):
    encoding = NVMMAShared(
        atom.swizzle_byte_width, atom.element_bitwidth, transposed=atom.major == "MN"
    )
    assert nvmma_shared_to_linear_layout(atom.shape, encoding) == atom.to_linear_layout()
    core = core_matrix_linear_layout(encoding)  # rows first, whatever the major-ness
    if atom.major == "MN":
        swapped = {"offset": [(k, mn) for mn, k in atom.to_linear_layout().bases["offset"]]}
        assert core.bases == swapped
    else:
        assert core == atom.to_linear_layout()


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_conversion_gives_the_documented_picture(atom):
    """From the bases alone: which chunk lies in each 16-byte slot."""
    encoding = NVMMAShared(atom.swizzle_byte_width, atom.element_bitwidth)
    layout = core_matrix_linear_layout(encoding)
    chunk = 128 // atom.element_bitwidth
    row_chunks = atom.row_bytes // 16
    picture = []
    for line in range(row_chunks):
        slots = []
        for slot in range(8):
            place = layout.apply(offset=(line * 8 + slot) * chunk)
            assert place["dim1"] % chunk == 0
            slots.append(place["dim0"] * row_chunks + place["dim1"] // chunk)
        picture.append(slots)
    assert picture == CHUNK_PICTURES[atom.swizzle_byte_width]
    assert atom.chunk_table() == picture


@pytest.mark.parametrize("value", [Swizzle(3, 4, 3), SwizzleAtom("K", 128, 16)])
def test_they_are_values(value):
    assert {value, dataclasses.replace(value)} == {value}
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, getattr(value, name))


def test_seed_001_table_of_the_first_mma():
    """Seed 001, "K major": where the first MMA's 8 x 2 chunks lie in the 128-byte atom."""
    atom = SwizzleAtom("K", 128, 16)
    slots: list[dict[int, int]] = [{} for _ in range(8)]
    for row, column in itertools.product(range(8), range(2)):
        address = atom.address(row, column * 8)
        slots[address // 128][address % 128 // 16] = 2 * row + column
    expected = [
        {0: 0, 1: 1}, {0: 3, 1: 2}, {2: 4, 3: 5}, {2: 7, 3: 6},
        {4: 8, 5: 9}, {4: 11, 5: 10}, {6: 12, 7: 13}, {6: 15, 7: 14},
    ]  # fmt: skip
    assert slots == expected


def test_seed_003_atom_sizes():
    """Seed 003, Sec. 3: 8x16B to 8x128B for K-major, 16Bx8 to 128Bx8 for MN-major; bf16."""
    for width, elements in ((0, 8), (32, 16), (64, 32), (128, 64)):
        assert SwizzleAtom("K", width, 16).shape == (8, elements)
        assert SwizzleAtom("MN", width, 16).shape == (elements, 8)
        assert SwizzleAtom("K", width, 16).swizzle.bits == {0: 0, 32: 1, 64: 2, 128: 3}[width]


@given(st.integers(0, 4), st.integers(0, 6), st.integers(0, 4), st.integers(0, 2**16 - 1))
def test_a_swizzle_is_its_own_inverse(bits, base, extra, address):
    swizzle = Swizzle(bits, base, bits + extra)
    assert swizzle(swizzle(address)) == address
    assert swizzle(address) & ((1 << base) - 1) == address & ((1 << base) - 1)


def test_errors():
    with pytest.raises(LayoutError, match="major = 'M': must be one of"):
        SwizzleAtom("M", 128, 16)
    with pytest.raises(LayoutError, match="swizzle_byte_width = 16"):
        SwizzleAtom("K", 16, 16)
    with pytest.raises(LayoutError, match="shift = 2: must be at least bits"):
        Swizzle(3, 4, 2)
    with pytest.raises(LayoutError, match="bits = -1"):
        Swizzle(-1, 4, 3)


# -------------------------------------------------- NVIDIA's CuTe DSL (extra "oracle")


@pytest.fixture(scope="module")
def cute_addresses():
    """The byte address of every element of every atom, evaluated by NVIDIA's own algebra.

    The DSL's atoms are a swizzle of byte addresses over a layout that counts elements; the layout
    is recast to bytes, and the two are composed again, before it is evaluated.
    """
    cutlass = pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    cute = pytest.importorskip("cutlass.cute")
    from cutlass.cute.nvgpu import tcgen05

    types = {8: cutlass.Int8, 16: cutlass.BFloat16, 32: cutlass.Float32}
    atoms = [atom for atom in ATOMS if atom.element_bitwidth in types]
    addresses = {}

    @cute.jit
    def evaluate():
        for atom in atoms:
            width = f"SW{atom.swizzle_byte_width}" if atom.swizzle_byte_width else "INTER"
            kind = getattr(tcgen05.SmemLayoutAtomKind, f"{atom.major}_{width}")
            theirs = tcgen05.make_smem_layout_atom(kind, types[atom.element_bitwidth])
            in_bytes = cute.make_composed_layout(
                theirs.inner, 0, cute.recast_layout(8, atom.element_bitwidth, theirs.outer)
            )
            scale = atom.element_bitwidth // 8
            across = (1, scale) if atom.major == "K" else (scale, 1)
            rows, columns = atom.shape
            addresses[atom] = [
                [int(in_bytes((i * across[0], j * across[1]))) for j in range(columns)]
                for i in range(rows)
            ]

    evaluate()
    return addresses


@pytest.mark.parametrize(
    "atom", [atom for atom in ATOMS if atom.element_bitwidth < 64], ids=atom_id
)
def test_nvidia_cute_dsl_gives_the_same_atom(cute_addresses, atom):
    rows, columns = atom.shape
    ours = [[atom.address(i, j) for j in range(columns)] for i in range(rows)]
    assert ours == cute_addresses[atom]
