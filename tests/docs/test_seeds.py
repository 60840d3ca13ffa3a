"""What the seeds state and no other test reproduces; ``docs/reference/seeds.md`` lists all of it.

Expected values are the seeds' own, typed in. Where a seed is wrong, the right value is asserted,
and the docstring says so.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from documented_atoms import ATOMS, atom_id, row_major, subtiles

from triton_ext import LayoutError, LinearLayout, NVMMAShared, nvmma_shared_to_linear_layout
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK, SHARED_MEMORY_PER_SM
from triton_ext.hardware.banks import chunk_access, matrix_access, pick_atom, warp_access
from triton_ext.hardware.instruction_descriptor import KINDS, InstructionDescriptor, legal_n
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, derive_operand
from triton_ext.hardware.register_access import register_matrix_access
from triton_ext.hardware.smem_descriptor import SWIZZLE_CODES, SmemDescriptor, raw_fields
from triton_ext.hardware.tensor_map import TensorSwizzle
from triton_ext.hardware.tensor_memory import accumulator_layout, operand_a_layout
from triton_ext.hardware.tensor_memory_access import plan_transfer
from triton_ext.hardware.tma_tile import tile_copies
from triton_ext.layouts.atoms import Swizzle, SwizzleAtom
from triton_ext.layouts.cute import Layout, composition, size
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS

NARROW_ATOMS = [atom for atom in ATOMS if atom.element_bitwidth < 64]  # what an MMA reads
FIRST_ALONG = {"M or N first": (0, 1), "K first": (1, 0)}


def column_major(rows, columns):
    layout = LinearLayout.identity_1d(rows, "offset", "dim0")
    return layout * LinearLayout.identity_1d(columns, "offset", "dim1")


def stacked(atom, tile, order):
    """A tile of whole atoms, behind each other in memory along the dimensions of `order`."""
    layout = atom.to_linear_layout()
    for dim in order:
        count = tile[dim] // atom.shape[dim]
        layout = layout * LinearLayout.identity_1d(count, "offset", f"dim{dim}")
    return layout


def swapped(layout):
    """The same tile with its dimensions in the other order."""
    bases = [(b, a) for a, b in layout.bases["offset"]]
    sizes = layout.out_dims
    return LinearLayout({"offset": bases}, {"dim0": sizes["dim1"], "dim1": sizes["dim0"]})


def bytes_read(operand, subtile):
    """The address of every element that the MMA of a subtile reads, by its descriptor."""
    i, j = subtile
    descriptor = operand.descriptors()[i][j]
    return {
        (mn, k): descriptor.element_address(mn, k, operand.element_bitwidth, operand.major)
        for mn in range(operand.instruction[0])
        for k in range(operand.instruction[1])
    }


def assert_reads_the_tile(operand, layout):
    """Every element of every subtile is read from where the layout has it."""
    places = layout.invert()
    element_bytes = operand.element_bitwidth // 8
    rows, columns = operand.instruction
    for i, j in itertools.product(range(len(operand.advances)), range(len(operand.advances[0]))):
        read = bytes_read(operand, (i, j))
        mn, k = np.array([*read]).T
        offsets = places.apply(dim0=i * rows + mn, dim1=j * columns + k)["offset"]
        assert np.array_equal([*read.values()], offsets * element_bytes)


def strides(operand):
    return operand.descriptor.leading_byte_offset, operand.descriptor.stride_byte_offset


# ------------------------------------------------------------------------------- seed 000


@pytest.mark.parametrize("atom", [a for a in NARROW_ATOMS if a.element_bitwidth == 16], ids=atom_id)
def test_seed_000_operands_are_mn_by_k_whatever_is_contiguous(atom):
    """Seed 000, "Convention": A is (M, K) and B (N, K), whichever dimension is contiguous."""
    tile = (128, 64)
    layout = stacked(atom, tile, (0, 1))
    operand = derive_operand(layout, 16, (64, 16), arch=100)
    assert (operand.tile, operand.major) == (tile, atom.major)
    places = layout.invert().bases
    contiguous = {"K": "dim1", "MN": "dim0"}[atom.major]
    assert places[contiguous][0] == (1,)
    # A kernel's B is (K, N): the same operand with its dimensions exchanged.
    assert derive_operand(swapped(layout), 16, (64, 16), arch=100, mn_dim=1) == operand


def test_seed_000_mma_atom_tiles():
    """Seed 000, "MMA atom tiles": (128, 16) of A and (256, 16) of B; K is 32 bytes; 8 products."""
    product = InstructionDescriptor("f16", 128, 256, "f16", "f16")
    product.check_shape(cta_group=1)
    assert (product.m, product.k) == (128, 16)
    assert (product.n, product.k) == (256, 16)
    assert INSTRUCTION_K_BYTES == 32
    bits = {"f16": 16, "tf32": 32, "f8f6f4": 8, "i8": 8}
    assert {
        name: kind.usual_k * bits[name] // 8 for name, kind in KINDS.items() if name in bits
    } == (dict.fromkeys(bits, 32))
    # C is (256, 256), the contraction over 64: 2 parts along M, 1 along N, 4 along K.
    tile = nvmma_shared_to_linear_layout((256, 64), NVMMAShared(128, 16))
    a = derive_operand(tile, 16, (128, 16), arch=100).advances
    b = derive_operand(tile, 16, (256, 16), arch=100).advances
    assert (len(a), len(b), len(a[0]), len(b[0])) == (2, 1, 4, 4)
    assert len(a) * len(b) * len(a[0]) == 8
    assert {row[i + 1] - row[i] for row in a for i in range(3)} == {2 * 16}  # 16 elements on


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_seeds_000_001_and_003_swizzle_atom(atom):
    """Seed 000, "Swizzle atom"; seed 001, "Swizzle Atom"; seed 003, Sec. 3 (atomicity): all atoms.

    8 x s bytes: 8 rows, 1, 2, 4 or 8 core matrices wide, in one piece; the unit of 16 bytes is
    moved as a whole, and nothing leaves the atom.
    """
    s = {0: 16, 32: 32, 64: 64, 128: 128}[atom.swizzle_byte_width]
    element_bytes = atom.element_bitwidth // 8
    strided, contiguous = atom.shape if atom.major == "K" else atom.shape[::-1]
    assert strided == 8
    assert contiguous * element_bytes == s
    assert s // 16 == {0: 1, 32: 2, 64: 4, 128: 8}[atom.swizzle_byte_width]
    mn_extent, k_extent = atom.shape
    addresses = {(mn, k): atom.address(mn, k) for mn in range(mn_extent) for k in range(k_extent)}
    assert sorted(addresses.values()) == list(range(0, 8 * s, element_bytes))
    unit = 16 // element_bytes
    for (mn, k), address in addresses.items():
        along = k if atom.major == "K" else mn
        first = (mn, k - k % unit) if atom.major == "K" else (mn - mn % unit, k)
        assert address == addresses[first] + along % unit * element_bytes
        assert addresses[first] % 16 == 0


def test_seed_000_swizzle_units_of_32_bytes():
    """Seed 000, "Swizzle atom": Blackwell also has a 128B atom with swizzle units of 32 bytes.

    The seed's "always 8 rows tall" does not hold for it: 4 units in a row are permuted in 4 ways,
    so that the pattern is 4 rows tall (CUTLASS: ``Layout_MN_SW128_32B_Atom``, Swizzle<2, 5, 2>).
    """
    assert (128, 32) in SWIZZLE_CODES[100].values()
    assert (128, 32) not in SWIZZLE_CODES[90].values()
    assert [atom for _, atom in SWIZZLE_CODES[90].values()] == [16] * 4
    descriptor = SmemDescriptor(100, 0, 0, 0, 128, 32)
    assert descriptor.atom_rows == 4
    for row, byte in itertools.product(range(8), range(128)):
        unit, within = divmod(byte, 32)
        assert descriptor.swizzle(128 * row + byte) == 128 * row + 32 * (unit ^ row % 4) + within


def test_seed_000_the_naive_layout_does_not_work():
    """Seed 000, "Swizzle atom", figure: (64, 32), N-major: naive, and in 32B swizzle atoms."""
    atom = SwizzleAtom("MN", 32, 16)
    assert atom.shape == (16, 8)
    assert atom.row_bytes // 16 == 2  # core matrices
    with pytest.raises(LayoutError, match="no matrix descriptor exists"):
        derive_operand(column_major(64, 32), 16, (64, 16), arch=100)
    layout = stacked(atom, (64, 32), (0, 1))
    operand = derive_operand(layout, 16, (64, 16), arch=100)
    assert (operand.major, operand.descriptor.swizzle_byte_width) == ("MN", 32)
    assert_reads_the_tile(operand, layout)


@pytest.mark.parametrize("swizzle", SWIZZLE_BYTE_WIDTHS)
@pytest.mark.parametrize("bm", [128, 256])
def test_seed_000_formulas_by_the_derivation_from_bases(swizzle, bm):
    """Seed 000, "Smem Descriptor": LBO and SBO of an M-major tile, in bytes and in 16-byte units.

    With a swizzle LBO is one atom and SBO all atoms along M; without, the other way round.
    """
    width = {0: 16, 32: 32, 64: 64, 128: 128}[swizzle]
    atom_bytes = 8 * width
    along_m = bm // (width // 2)
    lbo, sbo = atom_bytes, atom_bytes * along_m
    if swizzle == 0:
        lbo, sbo = atom_bytes * along_m, atom_bytes
    layout = stacked(SwizzleAtom("MN", swizzle, 16), (bm, 64), (0, 1))
    operand = derive_operand(layout, 16, (128, 16), arch=100)
    assert (operand.major, operand.descriptor.swizzle_byte_width) == ("MN", swizzle)
    assert strides(operand) == (lbo, sbo)
    fields = raw_fields(operand.descriptor.encode(), 100)
    assert (fields["leading_byte_offset"] << 4, fields["stride_byte_offset"] << 4) == (lbo, sbo)


@pytest.mark.parametrize(("swizzle", "period"), [(32, 256), (64, 512), (128, 1024)])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_seed_000_matrix_base_offset(major, swizzle, period):
    """Seed 000, "Smem Descriptor": base offset = (pattern start address >> 7) & 7 where a tile is
    not at a multiple of 256, 512 or 1024 bytes."""
    atom = SwizzleAtom(major, swizzle, 16)
    assert NVMMAShared(swizzle, 16).alignment == period == 8 * swizzle
    layout = stacked(atom, (128, 64), (0, 1))
    with pytest.raises(LayoutError, match=f"must be a multiple of {period} bytes"):
        derive_operand(layout, 16, (64, 16), arch=100, base_address=period // 2)
    assert derive_operand(layout, 16, (64, 16), arch=100, base_address=period)
    for line in range(16):
        start = 128 * line
        base_offset = (start >> 7) & 7
        descriptor = SmemDescriptor(100, start, 0, 0, swizzle, base_offset=base_offset)
        for mn, k in itertools.product(*map(range, atom.shape)):
            found = descriptor.element_address(mn, k, 16, major)
            assert found == start + atom.address(mn, k)
        aligned = SmemDescriptor(100, start, 0, 0, swizzle)
        agrees = all(
            aligned.element_address(mn, k, 16, major) == start + atom.address(mn, k)
            for mn, k in itertools.product(*map(range, atom.shape))
        )
        assert agrees == (start % period == 0)


@pytest.mark.parametrize(
    ("atom", "order", "shape", "grid", "lbo_and_sbo", "advances"),
    [
        pytest.param(
            SwizzleAtom("MN", 128, 16), (0, 1), (64, 8), (2, 2), (1024, 4096),
            ((0, 8192, 16384, 24576), (2048, 10240, 18432, 26624)),
            id="1-M-major-128B",
        ),
        pytest.param(
            SwizzleAtom("K", 0, 16), (1, 0), (8, 8), (16, 2), (128, 1024),
            ((0, 256, 512, 768), (16384, 16640, 16896, 17152)),
            id="2-K-major-no-swizzle",
        ),
        pytest.param(
            SwizzleAtom("K", 32, 16), (1, 0), (8, 16), (16, 1), (16, 1024),
            ((0, 256, 512, 768), (16384, 16640, 16896, 17152)),
            id="3-K-major-32B",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("arch", [90, 100])
def test_seed_000_examples(arch, atom, order, shape, grid, lbo_and_sbo, advances):
    """Seed 000, "Examples" 1, 2 and 3: A of (256, 64) fp16, 2 x 4 MMA atom tiles of (128, 16).

    The grid of atoms in an MMA atom tile is the seed's; so is the order in which they are stored.
    Example 3 calls its atoms "(16, 8)"; by the seed's own rule, 8 rows of 32 bytes, they are
    (8, 16), and only then is the grid (16, 1). Its LBO is not used.
    """
    instruction = (128, 16) if arch == 100 else (64, 16)  # wgmma reads 64 rows at a time
    assert atom.shape == shape
    assert tuple(extent // part for extent, part in zip((128, 16), shape, strict=True)) == grid
    layout = stacked(atom, (256, 64), order)
    operand = derive_operand(layout, 16, instruction, arch=arch)
    assert (operand.major, operand.descriptor.swizzle_byte_width) == (
        atom.major, atom.swizzle_byte_width,
    )  # fmt: skip
    rows = 128 // instruction[0]
    assert operand.advances[::rows] == advances
    assert operand.descriptor.stride_byte_offset == lbo_and_sbo[1]
    if operand.uses_leading:
        assert operand.descriptor.leading_byte_offset == lbo_and_sbo[0]
    # Where one MMA spans a single atom along the contiguous dimension, LBO leads nowhere.
    contiguous = 1 if atom.major == "K" else 0
    assert operand.uses_leading == (instruction[contiguous] > atom.shape[contiguous])
    assert_reads_the_tile(operand, layout)


# ------------------------------------------------------------------------------- seed 001


def test_seed_001_the_old_definition_of_lbo_and_sbo():
    """Seed 001, "Core Matrix": LBO along K and SBO along M or N holds for K-major operands
    without a swizzle, and "doesn't cover MN-major cases"."""
    for order in FIRST_ALONG.values():
        layout = stacked(SwizzleAtom("K", 0, 16), (64, 64), order)
        operand = derive_operand(layout, 16, (64, 16), arch=90)
        places = layout.invert()
        assert strides(operand) == (
            2 * places.apply(dim0=0, dim1=8)["offset"],
            2 * places.apply(dim0=8, dim1=0)["offset"],
        )
        layout = stacked(SwizzleAtom("MN", 64, 16), (64, 64), order)
        operand = derive_operand(layout, 16, (64, 16), arch=90)
        places = layout.invert()
        assert strides(operand) == (  # of atoms: LBO along M or N, SBO along K
            2 * places.apply(dim0=32, dim1=0)["offset"],
            2 * places.apply(dim0=0, dim1=8)["offset"],
        )


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_seed_001_swizzles_of_the_table(major, bits):
    """Seed 001, "SMEM Layouts for an MMA instruction": the last column, and T."""
    assert [str(SwizzleAtom(major, width, bits).swizzle) for width in SWIZZLE_BYTE_WIDTHS] == [
        "Swizzle<0, 4, 3>", "Swizzle<1, 4, 3>", "Swizzle<2, 4, 3>", "Swizzle<3, 4, 3>",
    ]  # fmt: skip
    core = SwizzleAtom(major, 0, bits)
    assert max(core.shape) == {8: 16, 16: 8, 32: 8}[bits]
    assert core.shape == ((8, 128 // bits) if major == "K" else (128 // bits, 8))


@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_seed_001_rows_and_columns_of_an_atom_are_contiguous(atom):
    """Seed 001, "MN major" and "K major": 8 columns (or rows) behind each other, each a segment
    of the size of the swizzle."""
    element_bytes = atom.element_bitwidth // 8
    width = max(16, atom.swizzle_byte_width)
    for line in range(8):
        if atom.major == "MN":
            segment = [atom.address(mn, line) for mn in range(atom.shape[0])]
        else:
            segment = [atom.address(line, k) for k in range(atom.shape[1])]
        assert sorted(segment) == list(range(line * width, (line + 1) * width, element_bytes))


@pytest.mark.parametrize("order", FIRST_ALONG.values(), ids=FIRST_ALONG)
@pytest.mark.parametrize("atom", NARROW_ATOMS, ids=atom_id)
def test_seed_001_atoms_may_be_distributed_in_any_order(atom, order):
    """Seed 001, "MN major" and "K major": "It's up to the user how to distribute the Swizzle
    Atoms"; SBO is the distance of atoms on the strided dimension, LBO on the other.

    No LBO is needed for a swizzled K-major operand: an MMA reads one atom along K, or a part of it,
    and several along M or N.
    """
    bits, width = atom.element_bitwidth, atom.swizzle_byte_width
    tile = (256, 512 // bits * 2)
    instruction = (256, 256 // bits)
    layout = stacked(atom, tile, order)
    if atom.major == "MN" and bits == 32:
        with pytest.raises(LayoutError, match="tf32 with 32-byte atomicity alone"):
            derive_operand(layout, bits, instruction, arch=100)
        return
    operand = derive_operand(layout, bits, instruction, arch=100)
    found = (operand.major, operand.descriptor.swizzle_byte_width)
    assert found == (atom.major, width)
    atom_bytes = 8 * max(16, width)
    counts = [extent // part for extent, part in zip(tile, atom.shape, strict=True)]
    step = [0, 0]  # from atom to atom along M or N, and along K, in bytes
    step[order[0]], step[order[1]] = atom_bytes, atom_bytes * counts[order[0]]
    along_mn, along_k = step
    if atom.major == "K":
        assert operand.descriptor.stride_byte_offset == along_mn
        assert operand.uses_leading == (width == 0)
        if width:  # MMAs side by side in a row of an atom
            assert atom.shape[1] // instruction[1] == {32: 1, 64: 2, 128: 4}[width]
        else:
            assert operand.descriptor.leading_byte_offset == along_k
    else:
        expected = (along_mn, along_k) if width else (along_k, along_mn)
        assert strides(operand) == expected
    assert_reads_the_tile(operand, layout)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("arch", [90, 100])
def test_seed_001_chunk_table_by_the_descriptors(arch, bits):
    """Seed 001, "K major": where the first MMA finds its 8 x 2 units of 16 bytes in a 128B atom,
    read by its descriptor; the other three MMAs read the rest of the atom."""
    table = [
        [0, 1, None, None, None, None, None, None],
        [3, 2, None, None, None, None, None, None],
        [None, None, 4, 5, None, None, None, None],
        [None, None, 7, 6, None, None, None, None],
        [None, None, None, None, 8, 9, None, None],
        [None, None, None, None, 11, 10, None, None],
        [None, None, None, None, None, None, 12, 13],
        [None, None, None, None, None, None, 15, 14],
    ]
    unit = 128 // bits
    layout = nvmma_shared_to_linear_layout((64, 8 * unit), NVMMAShared(128, bits))
    operand = derive_operand(layout, bits, (64, 2 * unit), arch=arch)
    assert operand.advances == ((0, 32, 64, 96),)
    seen = [[0] * 8 for _ in range(8)]
    for j in range(4):
        read = bytes_read(operand, (0, j))
        held = [[None] * 8 for _ in range(8)]
        for row, column in itertools.product(range(8), range(2)):
            line, byte = divmod(read[row, column * unit], 128)
            held[line][byte // 16] = 2 * row + column
            seen[line][byte // 16] += 1
        if j == 0:
            assert held == table
    assert seen == [[1] * 8] * 8


def test_seed_001_operands_in_tensor_memory():
    """Seed 001, introduction: B is in shared memory; A there or in tensor memory, on Blackwell."""
    assert operand_a_layout(128, 16, 16).out_dims == {"dim0": 128, "dim1": 16}
    tile = nvmma_shared_to_linear_layout((128, 64), NVMMAShared(128, 16))
    on_hopper, on_blackwell = (derive_operand(tile, 16, (64, 16), arch=arch) for arch in (90, 100))
    assert strides(on_hopper) == strides(on_blackwell)  # "The layout is almost the same as v5"
    assert on_hopper.advances == on_blackwell.advances


# ------------------------------------------------------------------------------- seed 002


def test_seed_002_1_bit_layout():
    """Seed 002, Sec. 1 (the figure, of ``mma_sm100_desc.hpp``): the fields and their bits."""

    def encoded(*arguments, **fields):
        return SmemDescriptor(100, *arguments, **fields).encode() ^ (1 << 46)  # version 1

    assert encoded(0, 0, 0, 0) == 0
    units = 0x3FFF  # 14 bits of 16-byte units
    assert encoded(16 * units, 0, 0, 0) == units
    assert encoded(0, 16 * units, 0, 0) == units << 16
    assert encoded(0, 0, 16 * units, 0) == units << 32
    assert encoded(0, 0, 0, 0, base_offset=7) == 7 << 49
    assert encoded(0, 0, 0, 0, lbo_mode=1) == 1 << 52
    layout_types = {(0, 16): 0, (128, 32): 1, (128, 16): 2, (64, 16): 4, (32, 16): 6}
    for (width, atomicity), code in layout_types.items():
        assert encoded(0, 0, 0, width, atomicity) == code << 61


SEED_002 = {
    "K-major 128B": (
        NVMMAShared(128, 16),
        {"swizzle": 2, "stride_byte_offset": 64, "leading_byte_offset": 1},
        Layout.parse("(2,(4,2)):(512,(2,1024))"),
    ),
    "MN-major 64B": (
        NVMMAShared(64, 16, transposed=True),
        {"swizzle": 4, "stride_byte_offset": 32, "leading_byte_offset": 512},
        Layout.parse("(2,8):(1024,64)"),
    ),
}


@pytest.mark.parametrize(("encoding", "fields", "advance"), SEED_002.values(), ids=SEED_002)
def test_seed_002_descriptor_of_each_subtile(encoding, fields, advance):
    """Seed 002, Sec. 3.3, 3.5.5, 4.3 and 4.5.5: layout_type, SBO and LBO in 16-byte units, and the
    descriptor tensor: each descriptor is the first one plus a multiple of its strides."""
    layout = nvmma_shared_to_linear_layout((128, 128), encoding)
    operand = derive_operand(layout, 16, (64, 16), arch=100)
    smem = 0x2000
    descriptors = operand.descriptors(smem)
    first = descriptors[0][0].encode()
    assert raw_fields(first, 100) == {
        **fields, "start_address": smem >> 4, "version": 1,
        "base_offset": 0, "lbo_mode": 0, "reserved": 0,
    }  # fmt: skip
    assert [len(row) for row in descriptors] == [8, 8]
    for i, j in itertools.product(range(2), range(8)):
        assert descriptors[i][j].encode() == first + advance(i, j)
    assert_reads_the_tile(operand, layout)


def test_seed_002_3_4_four_subtiles_share_an_atom():
    """Seed 002, Sec. 3.2 and 3.4: a subtile takes 32 bytes of each row of 8 atoms, a quarter; four
    of them read the same atoms, told apart by their start address alone."""
    layout = nvmma_shared_to_linear_layout((128, 128), NVMMAShared(128, 16))
    operand = derive_operand(layout, 16, (64, 16), arch=100)
    read = [set(bytes_read(operand, (0, j)).values()) for j in range(8)]
    assert all(len(addresses) == 64 * 16 for addresses in read)
    atoms = [{address // 1024 for address in addresses} for addresses in read]
    assert atoms == [set(range(8))] * 4 + [set(range(16, 24))] * 4
    for j in (0, 4):
        shared = read[j] | read[j + 1] | read[j + 2] | read[j + 3]
        assert len(shared) == 4 * 64 * 16 == 8 * 1024 // 2
    descriptors = operand.descriptors()[0]
    assert len({descriptor.encode() >> 14 for descriptor in descriptors}) == 1


def test_seed_002_4_2_a_subtile_is_four_whole_atoms():
    """Seed 002, Sec. 4.2 and 4.3: a grid of 2 x 2 atoms of 512 bytes, m * LBO + k * SBO apart."""
    layout = nvmma_shared_to_linear_layout((128, 128), NVMMAShared(64, 16, transposed=True))
    operand = derive_operand(layout, 16, (64, 16), arch=100)
    read = bytes_read(operand, (0, 0))
    for m, k in itertools.product(range(2), range(2)):
        atom = {read[32 * m + row, 8 * k + column] for row in range(32) for column in range(8)}
        start = m * 8192 + k * 512
        assert atom == set(range(start, start + 512, 2))


# ------------------------------------------------------------------------------- seed 003

# Sec. 2.2: the A fragment of mma.m16n8k8: 32 threads with 4 values each, and its inverse.
TV = Layout.parse("((4,8),(2,2)):((32,1),(16,8))")
INVERSE_TV = Layout.parse("((8,2),(2,4)):((4,64),(32,1))")
FRAGMENT = LinearLayout(  # the same, of one 8x8 matrix: its two values and 32 lanes
    {"register": [(0, 1)], "lane": [(0, 2), (0, 4), (1, 0), (2, 0), (4, 0)]},
    {"dim0": 8, "dim1": 8},
)


def test_seed_003_sec_2_tv_layout():
    """Seed 003, Sec. 2: both layouts of the fragment by their formulas; each inverts the other."""
    for m0, m1, n0, n1 in itertools.product(range(8), range(2), range(2), range(4)):
        assert INVERSE_TV((m0, m1), (n0, n1)) == m0 * 4 + m1 * 64 + n0 * 32 + n1
        assert INVERSE_TV((m0, m1), (n0, n1)) == m0 * 4 + n1 + 32 * (m1 * 2 + n0)
    for t0, t1, v0, v1 in itertools.product(range(4), range(8), range(2), range(2)):
        assert TV((t0, t1), (v0, v1)) == t0 * 32 + t1 + v0 * 16 + v1 * 8
        assert TV((t0, t1), (v0, v1)) == t1 + v1 * 8 + 16 * (t0 * 2 + v0)
        if v1 == 0:  # the grey 8x16B subtile, of the first ldmatrix
            place = FRAGMENT.apply(register=v0, lane=t0 + 4 * t1)
            assert place == {"dim0": t1, "dim1": 2 * t0 + v0}
    for outer, inner in ((TV, INVERSE_TV), (INVERSE_TV, TV)):
        identity = composition(outer, inner)
        assert [identity(i) for i in range(16 * 8)] == list(range(16 * 8))
    assert [size(mode) for mode in TV.modes] == [32, 4]  # threads, values of each
    assert [size(mode) for mode in INVERSE_TV.modes] == [16, 8]


def test_seed_003_sec_3_eight_layouts():
    """Seed 003, Sec. 3: "roughly 8 legal" layouts: K-major and MN-major, none, 32B, 64B, 128B.

    An atom of 16-bit elements holds 8, 16, 32 or 64 chunks: 1, 2, 4 or 8 subtiles of 8x16B.
    """
    atoms = {(atom.major, atom.swizzle_byte_width) for atom in ATOMS}
    assert len(atoms) == 8
    for major, width in atoms:
        atom = SwizzleAtom(major, width, 16)
        chunks = [chunk for line in atom.chunk_table() for chunk in line]
        assert sorted(chunks) == list(range({0: 8, 32: 16, 64: 32, 128: 64}[width]))
        subtiles = {0: 1, 32: 2, 64: 4, 128: 8}[width]
        assert len(chunks) == 8 * subtiles
        for subtile in range(subtiles):  # grey, red, purple, blue, ...
            colour = set(range(subtile, 8 * subtiles, subtiles))
            banks = {chunks.index(chunk) % 8 for chunk in colour}
            assert banks == set(range(8))
    grey, red = set(range(0, 16, 2)), set(range(1, 16, 2))
    first_line = SwizzleAtom("K", 32, 16).chunk_table()[0]
    assert set(first_line) & grey == {0, 2, 4, 6}
    assert set(first_line) & red == {1, 3, 5, 7}


def test_seed_003_sec_3_1_banks_of_swizzle_none():
    """Seed 003, Sec. 3 ("Swizzle None"): chunk 0 in banks 0-3, chunk 1 in banks 4-7, and so on."""
    for major in ("K", "MN"):
        atom = SwizzleAtom(major, 0, 16)
        for chunk in range(8):
            places = [(chunk, i) if major == "K" else (i, chunk) for i in range(8)]
            banks = {atom.address(*place) // 4 % 32 for place in places}
            assert banks == set(range(4 * chunk, 4 * chunk + 4))


@pytest.mark.parametrize("atomicity", [32, 64])
def test_seed_003_sec_3_other_atomicities(atomicity):
    """Seed 003, Sec. 3 ("Swizzle 32B"): only the 128B swizzle can have chunks of 32 or 64 bytes."""
    modes = [mode for mode in TensorSwizzle if mode > TensorSwizzle.BYTES_128]
    assert {mode.span for mode in modes} == {128}
    (swizzle,) = TensorSwizzle[f"BYTES_128_ATOM_{atomicity}B"].swizzles
    for line, chunk in itertools.product(range(8), range(128 // atomicity)):
        start = 128 * line + atomicity * chunk
        moved = [swizzle(start + byte) for byte in range(atomicity)]
        assert moved == list(range(moved[0], moved[0] + atomicity))
        assert moved[0] // 128 == line
    assert swizzle(128) == 128 + atomicity  # and no smaller chunk stays where it is


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize(("row_bytes", "ways"), [(16, 1), (32, 2), (64, 4), (128, 8)])
def test_seed_003_sec_4_the_linear_layout_of_mn_major_tiles(row_bytes, ways, bits):
    """Seed 003, Sec. 4: the linear layout conflicts for MN-major tiles as for K-major ones."""
    extent = 8 * row_bytes // bits
    layout = column_major(extent, 8)
    for start in range(0, extent, 128 // bits):
        report = chunk_access(layout, bits, (start, 0), "MN")
        assert (report.wavefronts, report.degree) == (ways, ways)


def test_seed_003_sec_6_fragments():
    """Seed 003, Sec. 6: what T0 and T22 hold of a K-major and of an M-major tile.

    A thread gets 2 elements of an 8x16B subtile (Sec. 2), T0 M0K0 and M0K1, T22 M5K4 and M5K5;
    the text lists 4. Without .trans an M-major subtile gives the transpose: T22 has M4K5, M5K5;
    with it, what the mma expects. There the text repeats the elements of the case without.
    """
    place = [FRAGMENT.apply(register=register, lane=22) for register in (0, 1)]
    assert place == [{"dim0": 5, "dim1": 4}, {"dim0": 5, "dim1": 5}]
    first = [FRAGMENT.apply(register=register, lane=0) for register in (0, 1)]
    assert first == [{"dim0": 0, "dim1": 0}, {"dim0": 0, "dim1": 1}]

    k_major = SwizzleAtom("K", 0, 16).to_linear_layout()
    assert register_matrix_access(FRAGMENT, k_major, 16).requests == (matrix_access(k_major, 16),)

    m_major = SwizzleAtom("MN", 32, 16).to_linear_layout()  # M = 16, K = 8
    registers = LinearLayout(  # both subtiles, one behind the other
        {"register": [(0, 1), (8, 0)], "lane": FRAGMENT.bases["lane"]}, {"dim0": 16, "dim1": 8}
    )
    with_trans = register_matrix_access(registers, m_major, 16, trans=True)
    assert with_trans.requests == (matrix_access(m_major, 16, [(0, 0), (8, 0)], trans=True),)
    assert with_trans.wavefronts == 2
    with pytest.raises(LayoutError, match="4 lanes 4 bytes each"):
        register_matrix_access(registers, m_major, 16)
    # Without .trans the lanes hold M where they should hold K.
    transposed = LinearLayout(
        {"register": [(1, 0), (8, 0)], "lane": [(k, m) for m, k in FRAGMENT.bases["lane"]]},
        {"dim0": 16, "dim1": 8},
    )
    held = [transposed.apply(register=register, lane=22) for register in (0, 1)]
    assert held == [{"dim0": 4, "dim1": 5}, {"dim0": 5, "dim1": 5}]
    without = register_matrix_access(transposed, m_major, 16)
    assert without.requests == with_trans.requests  # the same bytes, other owners


@pytest.mark.parametrize("order", FIRST_ALONG.values(), ids=FIRST_ALONG)
@pytest.mark.parametrize("atom", ATOMS, ids=atom_id)
def test_seed_003_sec_7_atoms_in_either_order_have_no_conflict(atom, order):
    """Seed 003, Sec. 7: atoms laid out row by row or column by column: any order is read alike."""
    tile = tuple(2 * extent for extent in atom.shape)
    layout = stacked(atom, tile, order)
    for corner in subtiles(layout, atom.element_bitwidth, atom.major):
        report = chunk_access(layout, atom.element_bitwidth, corner, atom.major)
        assert (report.wavefronts, report.conflicts) == (1, ())


@pytest.mark.parametrize(
    ("width", "grid", "row_major", "column_major"),
    [
        (0, (2, 4), [0, 1, 2, 3, 4, 5, 6, 7], [0, 4, 1, 5, 2, 6, 3, 7]),
        (32, (2, 2), [0, 1, 2, 3], [0, 2, 1, 3]),
        (64, (2, 1), [0, 1], [0, 1]),
    ],
)
def test_seed_003_sec_7_a_tile_of_16x64_bytes(width, grid, row_major, column_major):
    """Seed 003, Sec. 7: M = 16, K = 64B: 8 atoms in a grid of 2x4, or 4 in one of 2x2; which ones
    lie behind each other in memory if atoms are stored row by row, and column by column."""
    atom = SwizzleAtom("K", width, 16)
    tile = (16, 32)
    assert tuple(extent // part for extent, part in zip(tile, atom.shape, strict=True)) == grid
    for order, expected in (((1, 0), row_major), ((0, 1), column_major)):
        layout = stacked(atom, tile, order)
        elements = atom.shape[0] * atom.shape[1]
        numbers = []
        for start in range(0, 16 * 32, elements):
            place = layout.apply(offset=start)  # a swizzle leaves the first element in its place
            row, column = place["dim0"] // atom.shape[0], place["dim1"] // atom.shape[1]
            numbers.append(row * grid[1] + column)
        assert numbers == expected


# ------------------------------------------------------------------------------- seed 004


def test_seed_004_two_tiles_fit_the_shared_memory():
    """Seed 004, "Shared memory": two tiles of 64x64, 8192 elements of 2 bytes, of 228 KB."""
    copies = tile_copies((4096, 4096), (64, 64), SwizzleAtom("K", 0, 16))
    assert 2 * copies.smem_bytes == 8192 * 2 == 16 * 1024
    assert SHARED_MEMORY_PER_SM == 228 * 1024
    assert 2 * copies.smem_bytes < SHARED_MEMORY_PER_BLOCK < SHARED_MEMORY_PER_SM


@pytest.mark.parametrize(("width", "fetches"), [(0, 8), (32, 4), (64, 2), (128, 1)])
@pytest.mark.parametrize("major", ["K", "MN"])
def test_seed_004_fetches_of_each_canonical_layout(major, width, fetches):
    """Seed 004, "Core matrices": a 64x64 tile takes 8 fetches of 64x8, in a column of 8 core
    matrices each; "Kernel 3: swizzling": one with the 128B layout. The others, and MN-major
    layouts, likewise."""
    atom = SwizzleAtom(major, width, 16)
    copies = tile_copies((4096, 4096), (64, 64), atom)
    assert len(copies.boxes) == fetches
    box = (64, 64 // fetches)
    assert copies.box_shape == (box if major == "K" else box[::-1])
    if width == 0:
        assert copies.transaction_bytes == fetches * 8 * 128  # 8 core matrices of 128 bytes
    layout = stacked(atom, (64, 64), (0, 1) if major == "K" else (1, 0))
    operand = derive_operand(layout, 16, (64, 16), arch=100)
    assert (operand.major, operand.descriptor.swizzle_byte_width) == (major, width)
    starts = [layout.invert().apply(dim0=b.start[0], dim1=b.start[1])["offset"] * 2
              for b in copies.boxes]  # fmt: skip
    assert starts == [b.smem_offset for b in copies.boxes]


def test_seed_004_shapes_of_products():
    """Seed 004, "2 - Issuing the MMA instructions": up to 128x256x16, and 256x256x16 on two SMs;
    4 instructions for BK = 64, whose instruction descriptor stays and whose operands advance."""
    assert max(legal_n("f16", 128, cta_group=1)) == 256
    assert max(legal_n("f16", 256, cta_group=2)) == 256
    with pytest.raises(LayoutError, match="must be 64 or 128"):
        legal_n("f16", 256, cta_group=1)
    for m, group in ((128, 1), (256, 2)):
        product = InstructionDescriptor("f16", m, 256, "bf16", "bf16")
        product.check_shape(group)
        assert product.k == 16 == INSTRUCTION_K_BYTES // 2
        assert product.encode() < 1 << 32
    for layout, advances in (
        (stacked(SwizzleAtom("K", 0, 16), (64, 64), (0, 1)), (0, 2048, 4096, 6144)),
        (stacked(SwizzleAtom("K", 128, 16), (64, 64), (0, 1)), (0, 32, 64, 96)),
    ):
        operand = derive_operand(layout, 16, (64, 16), arch=100)
        assert operand.advances == (advances,)
        words = [descriptor.encode() for descriptor in operand.descriptors()[0]]
        assert [word - words[0] for word in words] == [advance // 16 for advance in advances]
        assert_reads_the_tile(operand, layout)


def test_seed_004_swizzling_of_16_banks():
    """Seed 004, "Swizzling": rows 0 to 3 of 16 banks, XORed by 00, 01, 10 and 11."""
    swizzle = Swizzle(2, 0, 4)  # of banks: the row is above the 4 bits of the bank
    rows = [[swizzle(16 * row + bank) - 16 * row for bank in range(16)] for row in range(4)]
    assert rows == [
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        [1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14],
        [2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13],
        [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12],
    ]
    for index in range(16):  # one index of each row: four banks
        assert len({row[index] for row in rows}) == 4


def test_seed_004_128_byte_swizzling():
    """Seed 004, "128 byte swizzling" and "Swizzling mathematics": Swizzle(bits, base, shift).

    8 rows, 16 bytes, 8 chunks; bits 7-9 of the address are XORed into bits 4-6. In elements of two
    bytes, groups of 8 move: 3 low bits stay.
    """
    swizzle = SwizzleAtom("K", 128, 16).swizzle
    assert (2**swizzle.bits, 2**swizzle.base, 2**swizzle.shift) == (8, 16, 8)
    for address in range(1 << 12):
        mask = address & 0b11_1000_0000
        assert swizzle(address) == address ^ mask >> 3
        if address % 2 == 0:
            assert swizzle(address) == 2 * Swizzle(3, 3, 3)(address // 2)
    for bits, base, shift in ((1, 4, 3), (2, 4, 3), (3, 4, 3), (2, 5, 2), (3, 2, 4)):
        general = Swizzle(bits, base, shift)
        for address in range(1 << 12):
            field = (1 << bits) - 1 << base + shift
            assert general(address) == address ^ (address & field) >> shift


def test_seed_004_two_core_matrices_side_by_side():
    """Seed 004, "128 byte swizzling": two adjacent core matrices on 32 banks, plain and swizzled.

    "No two elements from the same core matrix" share a bank: no two rows do; of a row of 16-bit
    elements, two lie in each bank, and are served as one word.
    """
    plain, swizzled = row_major(8, 64), SwizzleAtom("K", 128, 16).to_linear_layout()
    for core in range(2):
        assert chunk_access(plain, 16, (0, 8 * core)).degree == 8
        places = swizzled.invert()
        banks = [
            {places.apply(dim0=row, dim1=8 * core + i)["offset"] * 2 // 4 % 32 for i in range(8)}
            for row in range(8)
        ]
        group = [4 * (core ^ row) for row in range(8)]
        assert banks == [set(range(first, first + 4)) for first in group]
        assert chunk_access(swizzled, 16, (0, 8 * core)).degree == 1


def test_seed_004_banks_serve_128_bytes():
    """Seed 004, "Shared Memory Banks": 32 banks of 4 bytes; at most 128 bytes in a cycle."""
    assert warp_access([4 * lane for lane in range(32)], 4).wavefronts == 1
    for access_bytes, wavefronts in ((4, 1), (8, 2), (16, 4)):
        report = warp_access([access_bytes * lane for lane in range(32)], access_bytes)
        assert report.wavefronts == wavefronts == 32 * access_bytes // 128
    for row in range(1, 8):  # another row of the same bank waits, whichever it is
        assert warp_access([0, 128 * row], 4).wavefronts == 2


def test_seed_004_stmatrix():
    """Seed 004, "Pack output in shared memory": 16x64 of a warp take 4 stmatrix of 2x2 core
    matrices; 128B swizzling (BN * 2B = 128B) avoids the conflicts of rows as they come."""
    loaded = plan_transfer(accumulator_layout(64, 64), "16x256b").elements
    assert loaded.bases["register"][0] == (0, 1)  # 2 values side by side: 4 bytes of bf16
    assert loaded.bases["register"][1] == (8, 0)  # and no more
    registers = LinearLayout(
        {
            "register": loaded.bases["register"],
            "lane": loaded.bases["thread"],
            "warp": loaded.bases["warp"],
        },
        loaded.out_dims,
    )
    swizzled = nvmma_shared_to_linear_layout((64, 64), NVMMAShared(64 * 2, 16))
    stores = register_matrix_access(registers, swizzled, 16)
    assert len(stores.requests) == 4 * 4  # of 4 warps
    for warp, number in itertools.product(range(4), range(4)):
        corners = [(16 * warp + r, 16 * number + c) for c in (0, 8) for r in (0, 8)]
        report = stores.requests[4 * warp + number]
        assert report == matrix_access(swizzled, 16, corners)
        assert (report.wavefronts, report.degree) == (4, 1)
    plain = register_matrix_access(registers, row_major(64, 64), 16)
    assert {request.degree for request in plain.requests} == {8}


# -------------------------------------------------- NVIDIA's CuTe DSL (extra "oracle")


@pytest.fixture(scope="module")
def cute_answers():
    """The inverse of seed 003's TV layout by its code, and the atom that NVIDIA selects."""
    cutlass = pytest.importorskip("cutlass", reason="needs the extra 'oracle'")
    cute = pytest.importorskip("cutlass.cute")
    from cutlass.cute.nvgpu import OperandMajorMode
    from cutlass.utils.blackwell_helpers import get_smem_layout_atom_ab

    types = {8: cutlass.Int8, 16: cutlass.BFloat16, 32: cutlass.Float32}
    answers = {}

    def fill():
        tv = cute.make_layout(((4, 8), (2, 2)), stride=((32, 1), (16, 8)))
        answers["inverse"] = str(cute.right_inverse(tv))
        for major, bits, tile in SELECTIONS:
            mode = {"K": OperandMajorMode.K, "MN": OperandMajorMode.MN}[major]
            answers[major, bits, tile] = get_smem_layout_atom_ab(mode, types[bits], tile).name

    @cute.jit
    def evaluate():
        fill()

    evaluate()
    return answers


SELECTIONS = [
    (major, bits, tile)
    for major, bits in itertools.product(("K", "MN"), (8, 16, 32))
    for tile in itertools.product((8, 16, 32, 64, 128, 256), repeat=2)
    if tile[major == "K"] * bits >= 128
]


def test_seed_003_sec_2_nvidia_inverts_the_tv_layout(cute_answers):
    """Seed 003, Sec. 2: the code with ``right_inverse``."""
    theirs = Layout.parse(cute_answers["inverse"])
    assert size(theirs) == 16 * 8
    assert [theirs(i) for i in range(16 * 8)] == [INVERSE_TV(i) for i in range(16 * 8)]


def test_seed_003_sec_5_nvidia_selects_the_same_atom(cute_answers):
    """Seed 003, Sec. 5: the list of best choices is what CUTLASS's ``sm100_smem_selector`` does.

    MN-major elements of 32 bits are the exception: for 128 bytes it takes the atom with 32-byte
    atomicity, the only one that tcgen05 reads them with.
    """
    for major, bits, tile in SELECTIONS:
        atom = pick_atom(tile, bits, major)
        width = f"SW{atom.swizzle_byte_width}" if atom.swizzle_byte_width else "INTER"
        expected = f"{major}_{width}"
        if expected == "MN_SW128" and bits == 32:
            expected = "MN_SW128_32B"
        assert cute_answers[major, bits, tile] == expected
