"""With which instructions tiles are moved: the cases of the lowering; padded encodings."""

from __future__ import annotations

import pytest

from triton_ext.errors import LayoutError
from triton_ext.hardware.register_access import register_access, register_matrix_access
from triton_ext.hardware.register_moves import plan_move
from triton_ext.layouts.cluster import within_block
from triton_ext.layouts.distributed import distributed_linear_layout
from triton_ext.layouts.encodings import NVMMAShared, SwizzledShared
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import nvmma_shared_to_linear_layout
from triton_ext.layouts.padded_shared import PaddedShared

ACCUMULATOR = (
    "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1],"
    " instrShape = [16, 64, 16]}>"
)
ROWS = (
    "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1],"
    " order = [1, 0]}>"
)


def nvmma(width: int, bits: int = 16, transposed: bool = False) -> LinearLayout:
    return nvmma_shared_to_linear_layout((64, 64), NVMMAShared(width, bits, transposed))


@pytest.mark.parametrize(
    ("registers", "shared", "bits", "mnemonic", "degree"),
    [
        (ACCUMULATOR, nvmma(128), 16, "stmatrix.x4", 1),
        (ACCUMULATOR, nvmma(64), 16, "stmatrix.x4", 1),
        (ACCUMULATOR, nvmma(0), 16, "stmatrix.x4", 8),
        (ACCUMULATOR, nvmma(128, transposed=True), 16, "stmatrix.x4.trans", 1),
        # Two neighbours a thread: of 32 bits each, half of what a matrix's row needs.
        (ACCUMULATOR, nvmma(128, 32), 32, "st.shared of 64 bits", 2),
        (ROWS, nvmma(128, 32), 32, "st.shared of 128 bits", 1),
        (ROWS, nvmma(128), 16, "st.shared of 64 bits", 2),
        (ROWS, nvmma(128, transposed=True), 16, "st.shared of 16 bits", 4),
    ],
)
def test_the_instruction_follows_from_the_layouts(registers, shared, bits, mnemonic, degree):
    move = plan_move(distributed_linear_layout(registers, (64, 64)), shared, bits, "store")
    assert (move.mnemonic, move.degree) == (mnemonic, degree)
    load = plan_move(distributed_linear_layout(registers, (64, 64)), shared, bits, "load")
    assert load.mnemonic == mnemonic.replace("st.", "ld.").replace("stm", "ldm")
    assert load.pattern == move.pattern


def test_a_part_that_begins_inside_of_a_matrix_row():
    registers = distributed_linear_layout(ACCUMULATOR, (64, 32))
    assert plan_move(registers, nvmma(0), 16, "load").is_matrix
    assert plan_move(registers, nvmma(0), 16, "load", fixed_bits=32).is_matrix
    assert not plan_move(registers, nvmma(0), 16, "load", fixed_bits=4).is_matrix


def test_blocks_of_a_cluster():
    def split(bases: list[list[int]]) -> LinearLayout:
        text = ROWS.removesuffix("}>") + f", CGALayout = {bases}}}>"
        return distributed_linear_layout(text, (64, 64))

    shared = SwizzledShared(1, 1, 1, (1, 0), ((1, 0),)).to_linear_layout((64, 64))
    move = plan_move(split([[1, 0]]), shared, 32, "store")
    assert move.mnemonic == "st.shared of 128 bits"
    assert within_block(shared).out_dims == {"dim0": 32, "dim1": 64}
    with pytest.raises(LayoutError, match="split over the blocks"):
        plan_move(split([[0, 1]]), shared, 32, "store")


def test_transposed_bytes_on_blackwell_are_not_modelled():
    bases = {
        "register": [(0, 1), (0, 2), (8, 0), (0, 16)],
        "lane": [(0, 4), (0, 8), (1, 0), (2, 0), (4, 0)],
        "warp": [(16, 0), (32, 0)],
    }
    registers = LinearLayout(bases, {"dim0": 64, "dim1": 32})
    columns = SwizzledShared(1, 1, 1, (0, 1)).to_linear_layout((64, 32))
    assert plan_move(registers, columns, 8, "load", arch=90).mnemonic == "ld.shared of 8 bits"
    with pytest.raises(LayoutError, match="not modelled"):
        plan_move(registers, columns, 8, "load", arch=100)


def test_an_access_is_all_its_requests():
    """One request and how many there are, against each of them."""
    for shared, bits in ((nvmma(128), 16), (nvmma(0), 16), (nvmma(32, 32), 32)):
        registers = distributed_linear_layout(ROWS, (64, 64))
        access = register_access(registers, shared, bits)
        assert access.wavefronts == sum(each.wavefronts for each in access.requests)
        assert access.ideal_wavefronts == sum(each.ideal_wavefronts for each in access.requests)
        assert access.instructions * access.warps == len(access.requests)
    accumulator = distributed_linear_layout(ACCUMULATOR, (64, 64))
    for width in (0, 32, 64, 128):
        access = register_matrix_access(accumulator, nvmma(width), 16)
        assert access.wavefronts == sum(each.wavefronts for each in access.requests)
        assert access.request() == access.requests[0]


def test_loads_of_the_same_16_bytes_are_not_certain():
    bases = {"register": [(0, 1), (0, 2)], "lane": [(0, 0), (0, 4), (0, 8), (1, 0), (2, 0)]}
    registers = LinearLayout(bases, {"dim0": 4, "dim1": 16})
    rows = SwizzledShared(1, 1, 1, (1, 0)).to_linear_layout((4, 16))
    assert not plan_move(registers, rows, 32, "load").is_certain
    assert plan_move(registers, rows, 32, "store").is_certain
    words = {"register": [], "lane": [(0, 0), (0, 1), (0, 2), (0, 4), (0, 8)]}
    narrow = LinearLayout(words, {"dim0": 1, "dim1": 16})
    row = SwizzledShared(1, 1, 1, (1, 0)).to_linear_layout((1, 16))
    move = plan_move(narrow, row, 32, "load")  # the same 4 bytes, as any two lanes may load them
    assert move.access_bytes == 4
    assert move.is_certain
    lanes = [(0, 4), (0, 8), (1, 0), (2, 0), (4, 0)]
    apart = LinearLayout({"register": [(0, 1), (0, 2)], "lane": lanes}, {"dim0": 8, "dim1": 16})
    rows = SwizzledShared(1, 1, 1, (1, 0)).to_linear_layout((8, 16))
    assert plan_move(apart, rows, 32, "load").is_certain


# ------------------------------------------------------------------------------ padded encodings


def test_padded_encodings():
    rows = PaddedShared.parse("#ttg.padded_shared<[64:+4] {order = [1, 0], shape = [32, 64]}>")
    assert rows.paddings == ((64, 4),)
    assert rows.to_linear_layout() == SwizzledShared(1, 1, 1, (1, 0)).to_linear_layout((32, 64))
    # Behind the last row there is no padding.
    assert rows.stored_elements((32, 64)) == 32 * 64 + 31 * 4
    based = PaddedShared.parse(
        "#ttg.padded_shared<[32:+8, 128:+4] {offset = [[0, 1], [0, 2], [1, 0]], block = []}>"
    )
    assert based.paddings == ((32, 8), (128, 4))
    assert based.to_linear_layout().out_dims == {"dim0": 2, "dim1": 4}


@pytest.mark.parametrize(
    "text",
    [
        "#ttg.padded_shared<[] {order = [1, 0], shape = [32, 64]}>",
        "#ttg.padded_shared<[24:+4] {order = [1, 0], shape = [32, 64]}>",
        "#ttg.padded_shared<[32:4] {order = [1, 0], shape = [32, 64]}>",
        "#ttg.padded_shared<[32:+4] {order = [1, 0]}>",
        "#ttg.swizzled_shared<{vec = 1}>",
    ],
)
def test_bad_padded_encodings(text):
    with pytest.raises(LayoutError):
        PaddedShared.parse(text)


def test_padding_that_triton_ignores():
    """Triton takes 16 bytes at once wherever the interval allows it."""
    registers = distributed_linear_layout(ROWS, (64, 64))
    rows = SwizzledShared(1, 1, 1, (1, 0)).to_linear_layout((64, 64))
    move = plan_move(registers, rows, 32, "store", paddings=[(64, 1)])
    assert (move.access_bytes, move.emitted_bytes) == (4, 16)
    assert plan_move(registers, rows, 32, "store", paddings=[(64, 4)]).emitted_bytes == 0
