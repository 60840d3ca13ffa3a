"""TMEM: the PTX ISA's and the seeds' facts, CUTLASS's layouts, and Triton's own answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sites import ROOT, SUPPORT, triton_sites

from triton_ext import LayoutError, LinearLayout
from triton_ext.commands.common import CommandGroup
from triton_ext.hardware.tensor_memory import (
    DATA_PATH_LAYOUTS,
    TMEM_COLUMNS,
    TMEM_LANES,
    TmemAddress,
    accumulator_layout,
    allocation_columns,
    check_allocation,
    data_path_layout,
    operand_a_layout,
    tmem_footprint,
    warp_lanes,
)
from triton_ext.hardware.tensor_memory_access import ACCESS_SHAPES, TmemAccess, plan_transfer
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.hardware.tensor_memory_scales import scale_factor_layout

# ------------------------------------------------------------------ cells and allocation


def test_seed_004_size_of_tensor_memory():
    """Seed 004, "What is Tensor Memory?": 128 x 512 cells, 65,536 elements of 4 bytes, 256 KB;
    allocated by 32 columns, 16 KB."""
    assert (TMEM_LANES, TMEM_COLUMNS) == (128, 512)
    assert TMEM_LANES * TMEM_COLUMNS == 65_536
    assert TMEM_LANES * TMEM_COLUMNS * 4 == 256 * 1024
    assert allocation_columns(1) == 32
    assert allocation_columns(1) * TMEM_LANES * 4 == 16 * 1024


@given(st.integers(0, 127), st.integers(0, 511))
def test_addresses(lane, column):
    """PTX ISA, "Tensor Memory Addressing": lane in bits 31-16, column in bits 15-0."""
    address = TmemAddress(lane, column)
    assert address.encode() == lane * 65_536 + column
    assert TmemAddress.decode(address.encode()) == address
    assert lane in warp_lanes(address.warp)


def test_an_address():
    assert TmemAddress.decode(0x00200010) == TmemAddress(32, 16)
    assert TmemAddress.decode(0x00200010).warp == 1


@given(st.integers(1, 512))
def test_allocation_is_the_least_power_of_two(columns):
    allocated = allocation_columns(columns)
    check_allocation(allocated)
    assert allocated >= columns
    assert allocated == 32 or allocated < 2 * columns


@pytest.mark.parametrize("columns", [0, 16, 31, 33, 48, 96, 1024, -32, "32", 2.0, None])
def test_illegal_allocations(columns):
    with pytest.raises(LayoutError, match="a power of two from 32 to 512"):
        check_allocation(columns)


def test_lanes_of_warps():
    """PTX ISA, tcgen05.ld, "Access restrictions": by the warp's index modulo 4."""
    assert [warp_lanes(warp)[0] for warp in range(8)] == [0, 32, 64, 96, 0, 32, 64, 96]
    assert all(len(warp_lanes(warp)) == 32 for warp in range(8))


# --------------------------------------------------------------------- data path layouts


def test_table_of_data_path_layouts():
    """PTX ISA, "Data Path Layout Organization": the table (E's "2x3" is a misprint for 2x2)."""
    table = {
        # M, cta_group, sparse, ws: (letter, organization, lane alignment)
        (32, 1, False, True): ("G", "1x4", (0,)),
        (64, 1, False, True): ("E", "2x2", (0,)),
        (64, 1, False, False): ("F", "4x1", (0, 16)),
        (128, 1, False, False): ("D", "4x1", (0,)),
        (128, 1, True, True): ("D", "4x1", (0,)),
        (128, 2, False, False): ("B", "2x2", (0,)),
        (128, 2, True, False): ("C", "4x1", (0, 16)),
        (256, 2, False, False): ("A", "4x1", (0,)),
        (256, 2, True, False): ("A", "4x1", (0,)),
    }
    for (m, group, sparse, ws), expected in table.items():
        found = data_path_layout(m, group, sparse=sparse, weight_stationary=ws)
        assert (found.name, found.organization, found.lane_alignments) == expected
    assert {layout.name for layout in DATA_PATH_LAYOUTS if layout.half} == {"C", "F"}


# Where CUTLASS puts element (row, n) of what one CTA holds: include/cute/atom/
# mma_traits_sm100_frag.hpp, tmem_frg and tmem_frg_ws, as formulas for (lane, column).
CUTLASS_ATOMS = {
    "A": (256, 2, False, lambda row, n, N: (row, n)),
    "B": (128, 2, False, lambda row, n, N: (row + 64 * (n // (N // 2)), n % (N // 2))),
    "D": (128, 1, False, lambda row, n, N: (row, n)),
    "E": (64, 1, True, lambda row, n, N: (row + 64 * (n // (N // 2)), n % (N // 2))),
    "F": (64, 1, False, lambda row, n, N: (row % 16 + 32 * (row // 16), n)),
    "G": (32, 1, True, lambda row, n, N: (row + 32 * (n // (N // 4)), n % (N // 4))),
}


@pytest.mark.parametrize("n", [16, 64, 256])
@pytest.mark.parametrize("name", CUTLASS_ATOMS)
def test_accumulators_are_cutlasss(name, n):
    m, group, ws, place = CUTLASS_ATOMS[name]
    layout = accumulator_layout(m, n, cta_group=group, weight_stationary=ws)
    assert data_path_layout(m, group, weight_stationary=ws).name == name
    rows = m // group
    for block, row, column in itertools.product(range(group), range(rows), range(n)):
        lane, cell = place(row, column, n)
        given_block = {"block": block} if group == 2 else {}
        found = layout.apply(lane=lane, slot=0, column=cell, **given_block)
        assert found == {"dim0": row + block * rows, "dim1": column}


def test_layout_c_is_f_in_each_cta():
    """PTX ISA, layout C: half of the lanes, 16 rows a warp, as layout F."""
    pair = accumulator_layout(128, 64, cta_group=2, sparse=True)
    assert pair.bases["lane"] == accumulator_layout(64, 64).bases["lane"]
    assert pair.bases["block"] == [(64, 0)]


def test_seed_004_accumulator_of_64_rows():
    """Seed 004, "TMEM -> registers": of a 64x64 tile, each warp has 16 lanes, the warpgroup 64."""
    used = tmem_footprint(accumulator_layout(64, 64))
    assert [len(lanes) for lanes in used.lanes] == [16, 16, 16, 16]
    assert [lanes.start for lanes in used.lanes] == [warp_lanes(warp)[0] for warp in range(4)]
    assert (used.columns, used.allocation) == (64, 64)


def test_triton_picture_of_interleaved_blocks():
    """Triton, TritonNvidiaGPUAttrDefs.td: 128x128 f32 in blocks of 64x32: rows 64-79 at lane 16."""
    layout = accumulator_layout(64, 32, shape=(128, 128))
    for lane, row in ((0, 0), (15, 15), (16, 64), (31, 79), (32, 16), (127, 127)):
        assert layout.apply(lane=lane, slot=0, column=0) == {"dim0": row, "dim1": 0}
    assert layout.apply(lane=0, slot=0, column=96) == {"dim0": 0, "dim1": 96}
    assert tmem_footprint(layout).columns == 128


def test_packing():
    """PTX ISA, "Packing formats": D has one 16-bit element a column, the lower half; A is full."""
    unpacked = accumulator_layout(128, 64, 16)
    assert unpacked.apply(lane=3, slot=0, column=5) == {"dim0": 3, "dim1": 5}
    assert unpacked.bases["slot"] == [(0, 0)]
    assert tmem_footprint(unpacked).columns == 64
    packed = accumulator_layout(128, 64, 16, packed=True)
    assert packed.apply(lane=3, slot=1, column=5) == {"dim0": 3, "dim1": 11}
    assert tmem_footprint(packed).columns == 32
    operand = operand_a_layout(128, 64, 16)
    assert operand.bases == packed.bases
    # Seed 000, "MMA atom tile": K of a dense MMA is 32 bytes; 8 columns of a lane.
    for bits, k in ((8, 32), (16, 16), (32, 8)):
        assert tmem_footprint(operand_a_layout(128, k, bits)).columns == 8


def test_operand_a_shares_the_lanes_of_its_accumulator():
    """PTX ISA, "Data Path Layout Organization"; CUTLASS, TmemAllocMode."""
    half = operand_a_layout(64, 32, 16, shape=(128, 32))
    assert half.bases["lane"] == accumulator_layout(64, 32, interleaved=False).bases["lane"]
    assert half.bases["column"][-1] == (64, 0)  # the second tile starts in the same lanes
    # Over a pair with M = 128, lanes 64-127 are a copy (CUTLASS's "Duplicated").
    pair = operand_a_layout(128, 16, 16, cta_group=2)
    assert pair.bases["lane"] == [(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (32, 0), (0, 0)]
    assert pair.bases["block"] == [(64, 0)]
    assert [len(lanes) for lanes in tmem_footprint(pair).lanes] == [128]


def test_seed_002_a_copy_of_256_bits_is_8_columns():
    """Seed 002, the final note: tcgen05.cp.128x256b fills M = 128, K = 32 bytes: 8 columns."""
    used = tmem_footprint(operand_a_layout(128, 16, 16))
    assert (used.columns * 4, [len(lanes) for lanes in used.lanes]) == (32, [128])


@pytest.mark.parametrize("layout", DATA_PATH_LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("bits", [16, 32])
def test_every_element_has_a_place(layout, bits):
    options = {
        "cta_group": layout.cta_group,
        "sparse": bool(layout.sparse),
        "weight_stationary": bool(layout.weight_stationary),
    }
    for shape in ((layout.m, 64), (2 * layout.m, 64), (layout.m, 128), (2 * layout.m, 128)):
        found = accumulator_layout(layout.m, 64, bits, shape=shape, **options)
        assert found.is_surjective()
        assert found.remove_zero_bases("lane").remove_zero_bases("slot").is_injective()


# --------------------------------------------------------------------------- ld and st

# CUTLASS, include/cute/atom/copy_traits_sm100.hpp: for .xN, the strides (in bits of the piece,
# lane by lane) of thread and value modes; the piece has `bits` bits in each lane.
CUTLASS_LOADS = {
    # name: (bits(N), ((thread modes), (strides)), ((value modes), (strides)))
    "16x256b": lambda n: (256 * n, ((4, 64), (8, 256 * n)), ((64, 1), (2, 2048 * n), (n, 256))),
    "16x128b": lambda n: (128 * n, ((4, 32), (8, 128 * n)), ((32, 1), (2, 1024 * n), (n, 128))),
    "16x64b": lambda n: (64 * n, ((2, 512 * n), (2, 32), (8, 64 * n)), ((32, 1), (n, 64))),
    "16x32bx2": lambda n: (64 * n, ((16, 64 * n), (2, 32 * n)), ((32 * n, 1),)),
    "32x32b": lambda n: (32 * n, ((32, 32 * n),), ((32 * n, 1),)),
}


def evaluate(modes, index):
    """A layout of (size, stride) modes, the first the fastest, at one index."""
    total = 0
    for size, stride in modes:
        total += index % size * stride
        index //= size
    return total


@pytest.mark.parametrize("pack", [False, True], ids=["b32", "pack16"])
@pytest.mark.parametrize("repeat", [1, 2, 4, 32])
@pytest.mark.parametrize("name", CUTLASS_LOADS)
def test_loads_are_cutlasss(name, repeat, pack):
    """The TV layouts; with ``_16b`` the 16-bit values are the lower halves of the columns."""
    bits, threads, values = CUTLASS_LOADS[name](repeat)
    split = {"16x32bx2": repeat * (2 if pack else 1)}.get(name)
    access = TmemAccess(name, repeat, pack, split)
    assert access.columns * 32 == bits * (2 if pack else 1)
    layout = access.layout(16)
    for thread, register, slot in itertools.product(range(32), range(access.registers), (0, 1)):
        bit = evaluate(threads, thread) + evaluate(values, 32 * register + 16 * slot)
        lane, inside = divmod(bit, bits)
        half = inside // 16
        expected = (lane, 0, half) if pack else (lane, half % 2, half // 2)
        found = layout.apply(slot=slot, register=register, thread=thread, warp=0)
        assert tuple(found.values()) == expected


# TVM, "tcgen05.ld / tcgen05.st", "Native images": register r of thread t, as (row, column).
TVM_IMAGES = {
    "32x32b": lambda t, r: (t, r),
    "16x64b": lambda t, r: (t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * r),
    "16x128b": lambda t, r: (t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)),
    "16x256b": lambda t, r: (t // 4 + 8 * (r // 2 % 2), r % 2 + 2 * (t % 4) + 8 * (r // 4)),
}


@pytest.mark.parametrize("name", TVM_IMAGES)
def test_loads_are_tvms(name):
    access = TmemAccess(name, 4)
    for warp, thread, register in itertools.product(range(4), range(32), range(access.registers)):
        found = access.layout().apply(slot=0, register=register, thread=thread, warp=warp)
        row, column = TVM_IMAGES[name](thread, register)
        assert (found["lane"], found["column"]) == (row + 32 * warp, column)
        assert found["lane"] in warp_lanes(warp)


def test_number_of_registers():
    """PTX ISA, tcgen05.ld: the table of registers by shape and .num."""
    table = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
    limit = {"32x32b": 128, "16x64b": 128, "16x32bx2": 128, "16x128b": 64, "16x256b": 32}
    for name, shape in ACCESS_SHAPES.items():
        split = 256 if name == "16x32bx2" else None
        for power in range(8):
            if 1 << power > limit[name]:
                with pytest.raises(LayoutError, match=f"from 1 to {limit[name]} for .{name}"):
                    TmemAccess(name, 1 << power, split=split)
            else:
                access = TmemAccess(name, 1 << power, split=split)
                assert access.registers == table[name] << power
        assert shape.max_repeat == limit[name]


def test_seed_004_load_of_16x256b():
    """Seed 004, "TMEM -> registers": 256 bits are 8 columns, 4 elements of each thread; 8 times
    for N = 64: 32 elements. Each 8x8 submatrix is 8x4 vectors of 2, shared out by
    ``row_major(8, 4)(lane_id())``; by this formula, and by PTX, thread 6 has vector (1, 2), not
    the (1, 3) of the seed's text, which is thread 7's."""
    assert ACCESS_SHAPES["16x256b"].columns == 8
    assert TmemAccess("16x256b").registers == 4
    transfer = plan_transfer(accumulator_layout(64, 64), "16x256b")
    assert transfer.access == TmemAccess("16x256b", 8)
    assert len(transfer.offsets) == 1
    assert transfer.registers == 32
    for warp, thread, down, across, pair in itertools.product(
        range(4), range(32), range(2), range(8), range(2)
    ):
        register = pair + 2 * down + 4 * across  # 2 x 8 submatrices of 8 x 4 vectors
        row, vector = divmod(thread, 4)
        found = transfer.elements.apply(slot=0, register=register, thread=thread, warp=warp)
        expected = {"dim0": 16 * warp + 8 * down + row, "dim1": 8 * across + 2 * vector + pair}
        assert found == expected
    for thread, vector in ((0, (0, 0)), (6, (1, 2)), (7, (1, 3))):
        first = transfer.elements.apply(slot=0, register=0, thread=thread, warp=0)
        assert (first["dim0"], first["dim1"] // 2) == vector


@pytest.mark.parametrize("warps", [4, 8, 16])
@pytest.mark.parametrize("name", ["32x32b", "16x64b", "16x128b", "16x256b"])
@pytest.mark.parametrize("m", [64, 128])
def test_instructions_add_up_to_the_transfer(m, name, warps):
    """Each instruction, from its own address, moves what the layout says of its registers."""
    matrix = accumulator_layout(m, 256)
    transfer = plan_transfer(matrix, name, warps)
    each = transfer.access.registers
    assert transfer.registers == each * len(transfer.offsets)
    one = transfer.access.layout()
    threads, registers = np.arange(32), np.arange(transfer.registers)[:, None]
    part = one.apply(slot=0, register=registers[:each], thread=threads, warp=0)
    for number, offset in enumerate(transfer.offsets):
        whole = transfer.layout.apply(
            slot=0, register=number * each + registers[:each], thread=threads, warp=0
        )
        assert np.array_equal(whole["lane"], part["lane"] + offset.lane)
        assert np.array_equal(whole["column"], part["column"] + offset.column)
    for warp in range(warps):  # no warp leaves its lanes
        moved = transfer.layout.apply(slot=0, register=registers, thread=threads, warp=warp)
        assert {*np.unique(moved["lane"])} <= set(warp_lanes(warp))
    assert transfer.elements.is_surjective()


# -------------------------------------------------------------------- Triton's encoding

SPELLINGS = {
    # as Triton 3.9.0, 3.8.0 and 3.7.1 print them in a module
    "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1>": (
        TensorMemoryEncoding(128, 64)
    ),
    "#ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 2>": (
        TensorMemoryEncoding(64, 64, 2)
    ),
    "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1,"
    " CGALayout = [[1, 0], [0, 1]], twoCTAs = true>": (
        TensorMemoryEncoding(128, 64, 1, ((1, 0), (0, 1)), True)
    ),
    "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1, fp4Padded = true>": (
        TensorMemoryEncoding(128, 64, fp4_padded=True)
    ),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_encoding_text(text):
    assert TensorMemoryEncoding.parse(text) == SPELLINGS[text]
    assert str(SPELLINGS[text]) == text


def test_encoding_text_of_triton_3_7():
    text = (
        "#ttng.tensor_memory_encoding<blockM = 128, blockN = 64, colStride = 1,"
        " CTASplitM = 2, CTASplitN = 2, twoCTAs = true>"
    )
    assert TensorMemoryEncoding.parse(text).cga_layout == ((1, 0), (0, 1))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("#ttng.tensor_memory_encoding<blockM = 32, blockN = 64, colStride = 1>", "block_m"),
        ("#ttng.tensor_memory_encoding<blockM = 64, blockN = 48, colStride = 1>", "block_n"),
        ("#ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 3>", "col_stride"),
        ("#ttng.tensor_memory_encoding<blockM = 64, blockN = 64>", "'colStride' is missing"),
        ("#ttng.tensor_memory_encoding<blockM = 64, x = 1, colStride = 1>", "unknown key 'x'"),
        ("#ttg.nvmma_shared<{rank = 2}>", "must be a #ttng.tensor_memory_encoding"),
        (
            "#ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 1, twoCTAs = true>",
            "must start with \\(1, 0\\)",
        ),
    ],
)
def test_illegal_encodings(text, problem):
    with pytest.raises(LayoutError, match=problem):
        TensorMemoryEncoding.parse(text)


@pytest.mark.parametrize(
    ("encoding", "arguments"),
    [
        (TensorMemoryEncoding(128, 64), {"m": 128}),
        (TensorMemoryEncoding(64, 64), {"m": 64}),
        (TensorMemoryEncoding(128, 64, 1, ((1, 0),), True), {"m": 256, "cta_group": 2}),
        (TensorMemoryEncoding(64, 64, 1, ((1, 0),), True), {"m": 128, "cta_group": 2}),
    ],
    ids=["D", "F", "A", "B"],
)
def test_encodings_are_the_data_path_layouts(encoding, arguments):
    m = arguments["m"]
    for shape in ((m, 64), (2 * m, 64), (2 * m, 256)):
        assert encoding.to_linear_layout(shape) == accumulator_layout(
            n=64, shape=shape, **arguments
        )


LOADS = [
    [warps, name] for warps in (4, 8, 16) for name in ("32x32b", "16x64b", "16x128b", "16x256b")
]


def sweep():
    """Encodings, shapes and widths that are legal, with our layout of each."""
    for block_m, block_n, stride, bits, two, down, across in itertools.product(
        (64, 128), (1, 2, 8, 64, 256), (1, 2, 4), (8, 16, 32), (False, True), (1, 2), (1, 4)
    ):
        cluster = ((1, 0),) if two else ()
        encoding = TensorMemoryEncoding(block_m, block_n, stride, cluster, two)
        shape = (block_m * down * (2 if two else 1), block_n * across)
        try:
            yield encoding, shape, bits, encoding.to_linear_layout(shape, bits)
        except LayoutError:
            continue
    for encoding in (
        TensorMemoryEncoding(128, 64, fp4_padded=True),
        TensorMemoryEncoding(64, 32, fp4_padded=True),
        TensorMemoryEncoding(128, 64, 1, ((1, 0), (0, 1)), True),
        TensorMemoryEncoding(64, 32, 1, ((0, 1),)),
        TensorMemoryEncoding(128, 32, 2, ((0, 1), (1, 0), (0, 0))),
    ):
        for bits, shape in itertools.product((8, 16), ((256, 128), (512, 128))):
            yield encoding, shape, bits, encoding.to_linear_layout(shape, bits)


def ask_triton(site: Path | None, cases, loads=LOADS):
    """What a release says of the cases, in a child process: (version, answers)."""
    paths = [str(site)] if site else []
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "tmem_worker.py")],
        input=json.dumps([[str(e), list(shape), bits, loads] for e, shape, bits, _ in cases]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*paths, str(ROOT)])},
    )
    assert not finished.returncode, finished.stderr[-2000:]
    version, *answers = map(json.loads, finished.stdout.splitlines())
    return version, answers


def as_lists(bases):
    return [list(basis) for basis in bases]


@pytest.mark.parametrize("site", triton_sites())
def test_layouts_and_loads_are_tritons(site):
    """Its TMEM layout, and the registers that each shape of tcgen05.ld gives, or its refusal."""
    old = site is not None and site.name.startswith("3.7")  # has no CGA layouts
    cases = [case for case in sweep() if not (old and (case[0].cga_layout or case[0].fp4_padded))]
    version, answers = ask_triton(site, cases)
    assert len(answers) == len(cases) >= (200 if old else 400)
    seen = Counter()
    for (encoding, shape, bits, matrix), (rows, cols, loads) in zip(cases, answers, strict=True):
        case = f"Triton {version}: {encoding} {shape} {bits}"
        bases = matrix.bases
        assert as_lists(bases["lane"]) == rows, case
        cells = as_lists(bases["slot"] + bases["column"])
        assert cells[: len(cols)] == cols, case
        assert not any(map(any, cells[len(cols) :])), case  # less than a column: padded
        for (warps, name), theirs in zip(LOADS, loads, strict=True):
            if isinstance(theirs, str):
                # Before 3.9 an unpacked column that is no whole column of 32 bits was refused.
                if not (version < "3.9" and name == "32x32b" and cols == [[0, 0]] and bits == 8):
                    with pytest.raises(LayoutError):
                        plan_transfer(matrix, name, warps)
                seen["refused"] += 1
                continue
            elements = plan_transfer(matrix, name, warps).elements.bases
            ours = [as_lists(elements["slot"] + elements["register"])]
            ours += [as_lists(elements.get(key, [])) for key in ("thread", "warp", "block")]
            assert ours == theirs, f"{case} {warps} {name}"
            seen["equal"] += 1
    assert seen["equal"] > 1000
    assert seen["refused"] > 500


@pytest.mark.parametrize("site", triton_sites())
def test_scale_factors_are_tritons(site):
    encoding = "#ttng.tensor_memory_scales_encoding<>"
    shapes = itertools.product((64, 128, 256), (4, 8, 16, 32))
    cases = [(encoding, shape, 8, scale_factor_layout(shape)) for shape in shapes]
    _, answers = ask_triton(site, cases, loads=[])
    for (_, shape, _, layout), (rows, cols, _) in zip(cases, answers, strict=True):
        assert as_lists(layout.bases["lane"]) == rows
        assert as_lists(layout.bases["slot"] + layout.bases["column"]) == cols, shape


def test_loads_are_those_of_compiled_kernels(tmp_path):
    """Triton's PTX for sm_100: allocation, instruction, offsets of taddr, immHalfSplitoff."""
    triton = pytest.importorskip("triton")
    if triton.__version__ < "3.8":
        pytest.skip("needs the methods of Triton 3.8's descriptors")
    cases = [
        (m, n, bits, stride, warps, name)
        for name in ("32x32b", "16x64b", "16x128b", "16x256b")
        for m, n, bits, stride, warps in (
            (64, 64, 32, 1, 4), (128, 64, 32, 1, 4), (128, 64, 16, 2, 4), (128, 64, 16, 1, 8),
            (128, 256, 32, 1, 8),
        )
    ]  # fmt: skip
    finished = subprocess.run(
        [sys.executable, str(SUPPORT / "tmem_ptx_worker.py")],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_CACHE_DIR": str(tmp_path)},
    )
    assert not finished.returncode, finished.stderr[-2000:]
    answers = list(map(json.loads, finished.stdout.splitlines()))
    for case, (allocated, loads) in zip(cases, answers, strict=True):
        m, n, bits, stride, warps, name = case
        matrix = TensorMemoryEncoding(m, n, stride).to_linear_layout((m, n), bits)
        transfer = plan_transfer(matrix, name, warps)
        split = "" if transfer.access.split is None else str(transfer.access.split)
        assert allocated == [tmem_footprint(matrix).allocation], case
        assert loads == [
            [transfer.access.instruction(), str(offset.encode()), split]
            for offset in transfer.offsets
        ], case


# ------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: TmemAddress(128, 0), r"lane = 128: must lie in \[0, 128\)"),
        (lambda: TmemAddress(0, 512), r"column = 512: must lie in \[0, 512\)"),
        (lambda: TmemAddress.decode(1 << 32), "address = 4294967296"),
        (lambda: TmemAddress.decode("0"), "must be an integer"),
        (lambda: allocation_columns(513), "columns = 513"),
        (lambda: warp_lanes(-1), "warp = -1"),
        (lambda: data_path_layout(96), "m = 96: must be 64 or 128 for cta_group::1"),
        (lambda: data_path_layout(64, 2), "m = 64: must be 128 or 256 for cta_group::2"),
        (lambda: data_path_layout(64, 2, weight_stationary=True), "no instruction exists"),
        (lambda: data_path_layout(64, 3), "cta_group = 3"),
        (lambda: accumulator_layout(128, 48), "n = 48: a linear layout needs a power of two"),
        (lambda: accumulator_layout(128, 64, 64), "element_bitwidth = 64"),
        (lambda: accumulator_layout(128, 64, shape=(64, 64)), "a multiple of the instruction's"),
        (lambda: accumulator_layout(128, 256, shape=(512, 256)), "needs 1024 columns"),
        (lambda: operand_a_layout(128, 1, 16), "k = 1"),
        (lambda: tmem_footprint(LinearLayout.empty()), "input dims lane, slot, column"),
        (lambda: TmemAccess("8x8b"), "must be one of 32x32b"),
        (lambda: TmemAccess("32x32b", 3), "repeat = 3"),
        (lambda: TmemAccess("32x32b", 1, split=4), "split = 4: is for .16x32bx2 alone"),
        (lambda: TmemAccess("16x32bx2", 4), "split = None: must be a power of two from 4"),
        (lambda: TmemAccess("32x32b", 1, True).layout(32), "must be 16 with pack"),
        (lambda: plan_transfer(accumulator_layout(64, 8), "16x32bx2"), "is chosen where"),
        (lambda: plan_transfer(accumulator_layout(64, 8), "32x32b", 6), "warps = 6"),
        (
            lambda: plan_transfer(accumulator_layout(64, 8, 16), "16x256b"),
            "needs 16 columns; the matrix has 8",
        ),
        (
            lambda: TensorMemoryEncoding(128, 64, 2).to_linear_layout((128, 64), 32),
            "must be at most 32",
        ),
        (
            lambda: TensorMemoryEncoding(128, 64).to_linear_layout((64, 64)),
            "each CTA must hold 128 rows",
        ),
    ],
)
def test_errors(call, problem):
    with pytest.raises(LayoutError, match=problem):
        call()


junk = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.integers(-2, 600), st.just([1])
    | st.sampled_from([32, 64, 128, 256]),
)  # fmt: skip


@given(junk, junk, junk, junk)
def test_junk_raises_only_layout_errors(first, second, third, fourth):
    matrix = accumulator_layout(64, 32)
    flat = LinearLayout({"lane": [(1,)] * 7, "slot": [], "column": []}, ["dim0"])
    for call in (
        lambda: TmemAddress(first, second),
        lambda: TmemAddress.decode(first),
        lambda: warp_lanes(first),
        lambda: check_allocation(first),
        lambda: allocation_columns(first),
        lambda: data_path_layout(first, second),
        lambda: accumulator_layout(first, second, third, cta_group=fourth),
        lambda: accumulator_layout(128, 32, shape=(first, second)),
        lambda: operand_a_layout(first, second, third, cta_group=fourth),
        lambda: TmemAccess(first, second, third, fourth),
        lambda: TmemAccess("16x32bx2", first, second, third).layout(fourth),
        lambda: plan_transfer(matrix, "16x64b", first),
        lambda: plan_transfer(first, second, third),
        lambda: plan_transfer(flat, "32x32b"),
        lambda: TensorMemoryEncoding(first, second, third, two_ctas=fourth),
        lambda: TensorMemoryEncoding(64, 64).to_linear_layout((first, second), third),
    ):
        with contextlib.suppress(LayoutError):
            call()


# ----------------------------------------------------------------------------- command


@click.group(cls=CommandGroup, modules={"tmem": "triton_ext.commands.tmem"})
def program():
    """A program with this command alone."""


def run(*arguments):
    return CliRunner().invoke(program, ["tmem", *arguments])


def test_command_text():
    result = run("--m", "64", "--n", "64", "--load", "16x256b", "--element", "5,17")
    assert result.exit_code == 0
    assert "data path layout F (4x1, half of the lanes)" in result.output
    assert "lanes: 0-15, 32-47, 64-79, 96-111\n" in result.output
    assert "columns: 64 of 32 bits; tcgen05.alloc takes 64\n" in result.output
    assert "1 x tcgen05.ld.sync.aligned.16x256b.x8.b32" in result.output
    assert "lane 5, slot 0, column 17, address 0x00050011\n" in result.output
    assert "held by slot 0, register 9, thread 20, warp 0\n" in result.output


def test_command_address():
    result = run("--address", "0x00200010")
    assert result.output == (
        "0x00200010: lane 32, column 16; warp 1 of a warpgroup has lanes 32-63\n"
    )
    inside = run("--m", "64", "--n", "32", "--address", "0x00200010")
    assert inside.output.endswith("slot 0, dim0 16, dim1 16\n")
    for hole in ("0x00100000", "0x00000020"):  # lane 16; behind the last column
        assert run("--m", "64", "--n", "32", "--address", hole).output.endswith(
            "  no element of the matrix\n"
        )


def test_command_json():
    result = run(
        *("--m", "256", "--n", "256", "--cta-group", "2", "--load", "16x256b", "--warps", "4"),
        *("--element", "200,3", "--address", "2", "--format", "json"),
    )
    report = json.loads(result.output)
    assert report["allocation_columns"] == report["columns"] == 256
    assert report["lanes"] == [[0, 128]]
    assert [dim["name"] for dim in report["layout"]["in_dims"]][-1] == "block"
    assert report["load"]["instruction"] == "tcgen05.ld.sync.aligned.16x256b.x32.b32"
    assert report["load"]["offsets"] == ["0x00000000", "0x00100000"]
    assert report["load"]["registers"] == 256
    [cell] = report["element"]["cells"]
    assert (cell["lane"], cell["column"], cell["block"]) == (72, 3, 1)
    assert report["address"]["elements"] == [{"slot": 0, "dim0": 0, "dim1": 2}]


def test_command_shows_every_copy():
    report = json.loads(
        run(
            *("--m", "128", "--k", "64", "--bits", "16", "--cta-group", "2"),
            *("--element", "3,5", "--load", "32x32b", "--format", "json"),
        ).output
    )
    assert [cell["address"] for cell in report["element"]["cells"]] == ["0x00030002", "0x00430002"]
    assert [holder["warp"] for holder in report["element"]["held_by"]] == [0, 2]


def test_command_takes_an_instruction_of_128_rows_a_cta():
    for short, whole in (
        (["--n", "192"], ["--m", "128", "--n", "192"]),
        (["--k", "64", "--cta-group", "2"], ["--m", "256", "--k", "64", "--cta-group", "2"]),
    ):
        assert run(*short).output == run(*whole).output


def test_command_shows_scale_factors():
    """PTX ISA, "Scale Factor A Layout 1X/2X/4X": row 70 is in lane 6 of each group, column 2."""
    given = ("--shape", "128x16", "--element", "70,1", "--format", "json")
    report = json.loads(run("--scales", *given).output)
    assert report == json.loads(run("#ttng.tensor_memory_scales_encoding<>", *given).output)
    cells = {(cell["lane"], cell["column"], cell["slot"]) for cell in report["element"]["cells"]}
    assert cells == {(lane, 2, 1) for lane in (6, 38, 70, 102)}


def test_command_reads_an_attribute():
    attribute = "#ttng.tensor_memory_encoding<blockM = 64, blockN = 64, colStride = 2>"
    result = run(attribute, "--shape", "128x64", "--bits", "16", "--load", "32x32b")
    assert result.output.startswith(attribute)
    assert "tcgen05.ld.sync.aligned.32x32b.x32.pack::16b.b32" in result.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give --n, --k, --scales"),
        (["--m", "128"], "give --n (accumulator) or --k"),
        (["--m", "128", "--n", "64", "--k", "64"], "give --n (accumulator) or --k"),
        (["--scales"], "--scales needs --shape"),
        (["--scales", "--shape", "16x4"], "must be at least 32"),
        (["--scales", "--shape", "64x4", "--bits", "16"], "have 8 bits"),
        (["--scales", "--shape", "64x4", "--n", "8"], "--scales none"),
        (["#ttng.tensor_memory_scales_encoding<>", "--scales", "--shape", "64x4"], "not both"),
        (["--m", "96", "--n", "64"], "must be 64 or 128"),
        (["--address", "zz"], "no address"),
        (["--address", "0x00800000"], "lane = 128"),
        (["--m", "128", "--n", "64", "--element", "5"], "no element"),
        (["--m", "128", "--n", "64", "--element", "5,64"], "must lie in"),
        (["--m", "64", "--n", "8", "--bits", "16", "--load", "16x256b"], "needs 16 columns"),
        (["#ttng.tensor_memory_encoding<>"], "needs --shape"),
        (["#ttng.tensor_memory_encoding<>", "--shape", "64x64"], "is missing"),
        (["--m", "128", "--k", "64", "--ws"], "operand A is dense"),
    ],
)
def test_command_errors_are_one_line(arguments, problem):
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
