"""The emulator's matrix instructions: fragments, descriptors, arithmetic, faults, and silicon."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from silicon.matrix_cases import (
    BASE,
    ELEMENT_BYTES,
    K_BYTES,
    MMA_FORMS,
    SMEM,
    WGMMA_FORMS,
    Case,
    kernel,
    layout_cases,
    ldmatrix_ptx,
    mma_ptx,
    random_accumulators,
    random_codes,
    rounding_cases,
    small_integers,
    stmatrix_ptx,
    wgmma_ptx,
)
from silicon.record_matrix import all_cases, digest
from sites import ALL, ROOT, SUPPORT

from triton_ext import LayoutError, LinearLayout, NVMMAShared, nvmma_shared_to_linear_layout
from triton_ext.emulator import run_ptx
from triton_ext.emulator.decode.fragments import to_matrices, to_registers
from triton_ext.emulator.errors import (
    ConvergenceFault,
    DescriptorFault,
    LayoutFault,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
    UnsupportedInstruction,
)
from triton_ext.emulator.host.run import prepare
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.state.checks import Checks
from triton_ext.emulator.state.clocks import Clock, Clocks
from triton_ext.emulator.state.memory import SHARED_BASE
from triton_ext.emulator.state.shared import SharedMemory
from triton_ext.emulator.units.matrix_product import (
    decode_elements,
    model_of,
    multiply_accumulate,
)
from triton_ext.emulator.units.operand_matrix import (
    SWIZZLE_PERIOD,
    chunk_addresses,
    codes_of_chunks,
    decode_descriptor,
    read_operand,
)
from triton_ext.hardware.operand import derive_operand
from triton_ext.hardware.register_fragments import (
    LDMATRIX_M16N16,
    STMATRIX_M16N8,
    accumulator_fragment,
    core_fragment,
    operand_fragment,
)
from triton_ext.hardware.smem_descriptor import SWIZZLE_CODES, SmemDescriptor
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.ptx.parse import parse_ptx

SCHEDULES = ("eager", "lazy", "random")
RECORD = ROOT / "benchmarks" / "results" / "emulator_matrix_h100.json"


decoded = functools.lru_cache(512)(lambda ptx: decode(parse_ptx(ptx)))


def launcher(schedule="eager", seed=0, *, layouts=True):
    """As `run_ptx`, but each text is decoded once."""

    def launch(ptx, name, grid, block, args, dynamic_smem_bytes):
        program = decoded(ptx)
        prepared = prepare(
            program,
            grid=grid,
            block=block,
            args=args,
            dynamic_smem_bytes=dynamic_smem_bytes,
            checks=Checks(layouts=layouts),
        )
        machine = Machine(program, prepared, Schedule(schedule, seed))
        machine.run()

    return launch


# ------------------------------------------------------------------- fragments


@pytest.fixture(scope="module")
def triton_layouts():
    """Triton's linear layouts of fragments, as `fragments_worker` names them."""
    pytest.importorskip("triton")
    worker = [sys.executable, str(SUPPORT / "fragments_worker.py")]
    output = subprocess.run(worker, capture_output=True, text=True, check=True).stdout
    return {
        name: [[tuple(basis) for basis in each] for each in bases]
        for name, bases in json.loads(output).items()
    }


def bases_of(fragment):
    """The bases of registers, with their parts; and those of threads."""
    return [[*fragment.parts, *fragment.registers], list(fragment.threads)]


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("n", [8, 16, 64, 256])
def test_accumulators_of_wgmma_are_triton_s(triton_layouts, n, bits):
    registers, lanes, warps = triton_layouts[f"accumulator {n}"]
    own_registers, own_lanes = bases_of(accumulator_fragment(16, bits))
    # eight columns; further ones follow in further registers, as to_matrices lays them out
    further = [(0, 8 << i) for i in range((n // 8).bit_length() - 1)]
    assert (registers, lanes) == (own_registers + further, own_lanes)
    assert warps == [(16, 0), (32, 0)]


@pytest.mark.parametrize("width", [1, 2, 4])
def test_operands_are_triton_s(triton_layouts, width):
    bits, k = 32 // width, 8 * width
    a = bases_of(operand_fragment("a", 16, k, bits))
    assert triton_layouts[f"a {width}"] == [*a, []]
    assert triton_layouts[f"wgmma a {width}"] == [*a, [(16, 0), (32, 0)]]
    assert triton_layouts[f"b {width}"] == [*bases_of(operand_fragment("b", 8, k, bits)), []]


def test_fragments_by_the_formulas_of_the_ptx_isa():
    """ "Matrix Fragments for mma.m16n8k16", "... m16n8k32", "... m16n8k8", "... m8n8k4": row and
    column of element i of a thread."""
    lane = np.arange(32)
    group, thread = lane // 4, lane % 4

    def elements(fragment):
        found = fragment.layout.apply(
            register=np.arange(1 << len(fragment.registers))[:, None, None],
            part=np.arange(1 << len(fragment.parts))[None, :, None],
            thread=lane[None, None, :],
        )
        return [found[axis].reshape(-1, 32) for axis in ("row", "column")]

    row, column = elements(operand_fragment("a", 16, 16, 16))
    for i in range(8):
        assert (row[i] == group + 8 * (i in (2, 3, 6, 7))).all()
        assert (column[i] == thread * 2 + i % 2 + 8 * (i >= 4)).all()
    row, column = elements(operand_fragment("b", 8, 32, 8))
    for i in range(8):
        assert (row[i] == thread * 4 + i % 4 + 16 * (i >= 4)).all()
        assert (column[i] == group).all()
    row, column = elements(operand_fragment("a", 16, 8, 32))
    for i in range(4):
        assert (row[i] == group + 8 * (i in (1, 3))).all()
        assert (column[i] == thread + 4 * (i >= 2)).all()
    row, column = elements(operand_fragment("a", 16, 16, 64))
    for i in range(8):
        assert (row[i] == group + 8 * (i % 2)).all()
        assert (column[i] == thread + 4 * (i // 2)).all()
    row, column = elements(operand_fragment("b", 8, 4, 64))
    assert (row[0] == thread).all()
    assert (column[0] == group).all()
    for bits in (16, 32, 64):
        row, column = elements(accumulator_fragment(16, bits))
        for i in range(4):
            assert (row[i] == group + 8 * (i >= 2)).all()
            assert (column[i] == thread * 2 + i % 2).all()


def cute_layout(shape, stride, index):
    """CuTe: the first mode of a shape is the fastest."""
    total = 0
    for size, step in zip(shape, stride, strict=True):
        total += index % size * step
        index //= size
    return total


def test_fragments_of_8_bits_are_cutlass_s():
    """CUTLASS ``cute/atom/copy_traits_sm100.hpp``: SM100_U8x8_LDSM_T and SM100_U8x4_STSM_T.

    After ldmatrix CuTe exchanges the middle bytes of two registers (``cute/arch/copy_sm100.hpp``),
    and its rows are numbered so that thread t's address is that of row (t, t/2, t/4, t/8) with
    the strides 1, 8, 2, 4.
    """
    loaded = LDMATRIX_M16N16.layout
    for thread, value in itertools.product(range(32), range(8)):
        bit = cute_layout((4, 8), (256, 8), thread) + cute_layout((2, 2, 2), (128, 64, 1024), value)
        row, column = bit // 128, bit % 128 // 8
        named = [t for t in range(16) if cute_layout((2, 2, 4), (1, 8, 2), t) == row]
        register, part = divmod(value, 4)
        source_register, source_part = part // 2, 2 * register + part % 2
        found = loaded.apply(register=source_register, part=source_part, thread=thread)
        assert found == {"row": named[0], "column": column}
    stored = STMATRIX_M16N8.layout
    for thread, value in itertools.product(range(32), range(4)):
        bit = cute_layout((4, 8), (256, 8), thread) + cute_layout((2, 2), (128, 64), value)
        found = stored.apply(register=0, part=value, thread=thread)
        assert found == {"row": bit % 128 // 8, "column": bit // 128}


@pytest.mark.parametrize(
    "fragment",
    [
        *(core_fragment(bits) for bits in (8, 16, 32)),
        core_fragment(16).transposed,
        LDMATRIX_M16N16,
        STMATRIX_M16N8,
        *(accumulator_fragment(rows, bits) for rows in (8, 16) for bits in (16, 32, 64)),
        *(operand_fragment("a", 16, k, 16) for k in (8, 16)),
        operand_fragment("b", 8, 32, 8),
    ],
)
def test_every_element_has_one_place(fragment):
    assert fragment.layout.is_invertible()
    rows, columns = fragment.shape
    bits = 32 >> len(fragment.parts)
    word = np.uint32
    matrices = np.arange(3 * rows * columns * 2).astype(f"u{bits // 8}").reshape(3, rows, -1)
    registers = to_registers(fragment, matrices, word, tiles=2)
    assert (to_matrices(fragment, registers, matrices.dtype, tiles=2) == matrices).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: core_fragment(4),
        lambda: core_fragment([16]),
        lambda: core_fragment(16.0),
        lambda: operand_fragment("c", 16, 16, 16),
        lambda: operand_fragment("a", 32, 16, 16),
        lambda: operand_fragment("b", 16, 16, 16),
        lambda: operand_fragment("a", 16, 32, 16),
        lambda: operand_fragment("a", 16, 16, 4),
        lambda: accumulator_fragment(4, 32),
        lambda: accumulator_fragment(16, 8),
    ],
)
def test_there_are_no_other_fragments(call):
    with pytest.raises(LayoutError):
        call()


# ----------------------------------------------------------------- descriptors


def memory_with(image, at=SHARED_BASE):
    clocks = Clocks(2)
    shared = SharedMemory(at + len(image), clocks)
    clock = Clock(np.full(2, 10**9), np.full(2, 10**9))
    shared.bulk_store(at + 16 * np.arange(len(image) // 16), image.reshape(-1, 16), clock, 1)
    return shared, Clock(clocks.seen.max(axis=0), clocks.fenced.max(axis=0))


def operand_tiles():
    """(arch, swizzle width, bits, major, whether the operand is A: (MN, K), or B: (K, MN))."""
    for width, bits, major, is_a in itertools.product(
        (0, 32, 64, 128), (8, 16, 32), ("K", "MN"), (True, False)
    ):
        for arch in (90, 100):
            if major == "K" or bits == 16 or (arch, bits) == (100, 8):
                yield arch, width, bits, major, is_a


def tile_layout(width, bits, major, is_a, mn, k):
    """Triton's layout of a tile; without a swizzle, core matrices one after the other."""
    if width:
        transposed = (major == "MN") == is_a
        shape = (mn, k) if is_a else (k, mn)
        return nvmma_shared_to_linear_layout(shape, NVMMAShared(width, bits, transposed=transposed))
    core = SwizzleAtom(major, 0, bits).to_linear_layout()
    rows, columns = core.out_dims.values()
    layout = core * LinearLayout.identity_1d(k // columns, "offset", "dim1")
    layout = layout * LinearLayout.identity_1d(mn // rows, "offset", "dim0")
    if is_a:
        return layout
    bases = [(column, row) for row, column in layout.bases["offset"]]
    return LinearLayout({"offset": bases}, {"dim0": k, "dim1": mn})


@pytest.mark.parametrize(("arch", "width", "bits", "major", "is_a"), list(operand_tiles()))
def test_operands_in_triton_s_layouts(arch, width, bits, major, is_a):
    """Every subtile of a tile, found with the descriptors that `derive_operand` gives."""
    mn, k, step = 128, 1024 // bits, 256 // bits
    layout = tile_layout(width, bits, major, is_a, mn, k)
    mn_dim = 0 if is_a else 1
    operand = derive_operand(layout, bits, (64, step), arch=arch, mn_dim=mn_dim)
    assert operand.major == major
    code = np.dtype(f"u{bits // 8}")
    matrix = np.random.RandomState(0).randint(0, 256, (mn, k * code.itemsize)).astype(np.uint8)
    matrix = matrix.view(code)
    places = layout.apply(offset=np.arange(mn * k))
    image = (matrix if is_a else matrix.T)[places["dim0"], places["dim1"]]
    start = 2 * SHARED_BASE
    shared, clock = memory_with(np.ascontiguousarray(image).view(np.uint8), start)
    name = {8: "u8", 16: "bf16", 32: "tf32"}[bits]
    for i, row in enumerate(operand.descriptors(start)):
        for j, descriptor in enumerate(row):
            codes = read_operand(shared, descriptor, 64, step, name, operand.major, clock, 0)
            assert (codes == matrix[64 * i : 64 * i + 64, step * j : step * j + step]).all()


def test_chunks_are_where_the_formula_says():
    """Against `SmemDescriptor.element_address`, one element at a time."""
    state = np.random.RandomState(1)
    for arch in (90, 100):
        for (width, atomicity), major, bits in itertools.product(
            SWIZZLE_CODES[arch].values(), ("K", "MN"), (8, 16, 32)
        ):
            start, leading, stride = (int(16 * n) for n in state.randint(0, 512, 3))
            base = int(state.randint(8))
            found = SmemDescriptor(arch, start, leading, stride, width, atomicity, base)
            each, mn, k = 128 // bits, 64, 256 // bits
            if major == "K":
                points = [(i, j) for i in range(mn) for j in range(0, k, each)]
            else:
                points = [(i, j) for j in range(k) for i in range(0, mn, each)]
            expected = [found.element_address(i, j, bits, major) for i, j in points]
            assert chunk_addresses(found, mn, k, bits, major).tolist() == expected


def test_small_types_in_chunks():
    """PTX ISA, "Packing formats": 16 elements of 4 bits in the first 8 bytes of a chunk, of 6 bits
    in the first 12; .kind::mxf4 fills the chunk."""
    state = np.random.RandomState(2)
    for name, bits in (("e2m1", 4), ("e2m3", 6), ("e3m2", 6)):
        codes = state.randint(0, 1 << bits, (5, 16))
        chunks = np.zeros((5, 16), np.uint8)
        for row, values in enumerate(codes):
            number = sum(int(value) << bits * i for i, value in enumerate(values))
            chunks[row] = np.frombuffer(number.to_bytes(16, "little"), np.uint8)
        assert (codes_of_chunks(chunks, name) == codes).all()
    codes = state.randint(0, 16, (3, 32)).astype(np.uint8)
    chunks = codes[:, ::2] | codes[:, 1::2] << 4
    assert (codes_of_chunks(chunks, "e2m1", packed=True) == codes).all()
    shared, clock = memory_with(chunks.reshape(-1))
    descriptor = SmemDescriptor(100, SHARED_BASE, 16, 128, 0)
    found = read_operand(shared, descriptor, 3, 32, "e2m1", "K", clock, 0, packed=True)
    assert (found == codes).all()


def test_illegal_descriptors():
    with pytest.raises(DescriptorFault, match="reserved bits 14"):
        decode_descriptor(1 << 14, 90)
    with pytest.raises(DescriptorFault, match="version field"):
        decode_descriptor(0, 100)
    with pytest.raises(DescriptorFault, match="absolute address"):
        decode_descriptor(SmemDescriptor(100, 0, 0, 0, 0, lbo_mode=1).encode(), 100)
    shared, clock = memory_with(np.zeros(1024, np.uint8))
    far = SmemDescriptor(90, SHARED_BASE, 128, 512, 0)
    with pytest.raises(DescriptorFault, match=r"addresses 0x400 to 0x12ff; the block's .* 0x7ff"):
        read_operand(shared, far, 64, 16, "f16", "K", clock, 0)
    with pytest.raises(DescriptorFault, match="the block's are 0x400"):
        read_operand(shared, SmemDescriptor(90, 0, 128, 0, 0), 8, 16, "f16", "K", clock, 0)


# ------------------------------------------------------------------ arithmetic


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2),
        ("e2m3", ml_dtypes.float6_e2m3fn),
        ("e3m2", ml_dtypes.float6_e3m2fn),
        ("e2m1", ml_dtypes.float4_e2m1fn),
        ("bf16", ml_dtypes.bfloat16),
        ("f16", np.float16),
    ],
)
def test_element_types(name, dtype):
    bits = {"bf16": 16, "f16": 16, "e2m3": 6, "e3m2": 6, "e2m1": 4}.get(name, 8)
    codes = np.arange(1 << bits).astype(np.uint16 if bits == 16 else np.uint8)
    expected = codes.view(dtype).astype(np.float32)
    assert np.array_equal(decode_elements(codes, name), expected, equal_nan=True)


def test_tf32_has_19_bits():
    codes = np.array([0x3F801FFF, 0x3F802000, 0xFFFFFFFF], np.uint32)
    assert decode_elements(codes, "tf32")[:2].tolist() == [1.0, 1 + 2.0**-10]


def test_integers_wrap_or_saturate():
    a = np.full((1, 32), 255, np.int32)
    b = np.full((32, 2), 255, np.int32)
    d = np.array([[2**31 - 1, -(2**31)]], np.int32)
    product = 32 * 255 * 255
    wrapped = multiply_accumulate(a, b, d, "s32")
    assert wrapped.tolist() == [[2**31 - 1 + product - 2**32, product - 2**31]]
    clamped = multiply_accumulate(a, b, d, "s32", saturate=True)
    assert clamped.tolist() == [[2**31 - 1, product - 2**31]]
    clamped = multiply_accumulate(-a, b, d, "s32", saturate=True)
    assert clamped.tolist() == [[2**31 - 1 - product, -(2**31)]]


def test_large_products_are_split():
    """Above OpenBLAS's limit for one thread."""
    state = np.random.RandomState(3)
    a, b = state.randint(-9, 9, (2, 128, 32)), state.randint(-9, 9, (2, 32, 1000))
    found = multiply_accumulate(a.astype(np.int32), b.astype(np.int32), None, "s32")
    assert (found == a @ b).all()


def aligned_reference(a, b, d, types, fraction, bits):
    """One element, in rational numbers."""
    lowest = {
        "f16": -14, "bf16": -126, "tf32": -126, "e4m3": -6, "e5m2": -14,
        "e2m3": 0, "e3m2": -2, "e2m1": 0,
    }  # fmt: skip

    def exponent(value, low):
        return max(int(np.frexp(np.float64(value))[1]) - 1, low)

    terms = [
        (
            Fraction(float(x)) * Fraction(float(y)),
            exponent(x, lowest[types[0]]) + exponent(y, lowest[types[1]]),
        )
        for x, y in zip(a, b, strict=True)
        if x and y
    ]
    if d:
        terms.append((Fraction(float(d)), exponent(d, -126)))
    if not terms:
        return np.float32(0)
    unit = Fraction(2) ** (max(e for _, e in terms) - fraction)
    total = sum(int(value / unit) for value, _ in terms) * unit  # int() cuts towards zero
    if not total:
        return np.float32(0)
    size = abs(total)
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top -= Fraction(2) ** top > size
    last = Fraction(2) ** max(top - bits, -149)
    return np.float32(float(int(total / last) * last))


def check_accumulation(model, a, b, d, types, fraction, bits):
    found = multiply_accumulate(a, b.T, d, "f32", model=model)
    expected = np.array(
        [[aligned_reference(row, column, each, types, fraction, bits)
          for column, each in zip(b, line, strict=True)] for row, line in zip(a, d, strict=True)]
    )  # fmt: skip
    assert (found.view(np.uint32) == expected.view(np.uint32)).all()


@pytest.mark.parametrize(
    ("arch", "types", "fraction", "bits"),
    [
        (90, ("f16", "f16"), 25, 23),
        (90, ("bf16", "bf16"), 25, 23),
        (90, ("tf32", "tf32"), 25, 23),
        (90, ("e4m3", "e5m2"), 13, 13),
        (90, ("e5m2", "e5m2"), 13, 13),
        (100, ("f16", "f16"), 25, 23),
        (100, ("e4m3", "e5m2"), 25, 23),
    ],
)
@pytest.mark.parametrize("kind", ["normal", "wide", "tiny", "cancel", "zeros"])
def test_accumulation(arch, types, fraction, bits, kind):
    """The vectorised model against the rule of its docstring, term by term."""
    state = np.random.RandomState(4)
    operands = []
    for name in types:
        size = ELEMENT_BYTES[name]
        codes = random_codes(state, name, 8 * K_BYTES, kind, negate=not operands)
        operands.append(decode_elements(codes.view(f"u{size}").reshape(8, -1), name))
    d = random_accumulators(state, "f32", 64, kind).view(np.float32).reshape(8, 8)
    model = model_of(arch, "wgmma" if arch == 90 else "tcgen05", *types, published=True)
    check_accumulation(model, *operands, d, types, fraction, bits)


@pytest.mark.parametrize("types", [("e2m1", "e2m1"), ("e3m2", "e2m3"), ("e2m1", "e5m2")])
def test_accumulation_of_small_types(types):
    """tcgen05's ``.kind::f8f6f4``."""
    state = np.random.RandomState(5)
    a, b = (
        decode_elements(state.randint(0, 0x7C, (8, 32)).astype(np.uint8), name) for name in types
    )
    d = (state.standard_normal((8, 8)) * 2.0**-20).astype(np.float32)
    check_accumulation(model_of(100, "tcgen05", *types, published=True), a, b, d, types, 25, 23)


def test_products_of_f64_are_a_chain():
    state = np.random.RandomState(6)
    a, b, d = (state.standard_normal(shape) for shape in ((4, 8), (8, 5), (4, 5)))
    found = multiply_accumulate(a, b, d, "f64", model=model_of(90, "mma", "f64", "f64"))
    for i, j in itertools.product(range(4), range(5)):
        total = Fraction(d[i, j])
        for k in range(8):
            total = Fraction(float(total + Fraction(a[i, k]) * Fraction(b[k, j])))
        assert found[i, j] == total


def test_the_default_model_rounds_once():
    one, tiny = np.float32(1), np.float32(2**-24)
    a = np.array([[one, tiny, tiny]], np.float32)
    b = np.ones((3, 1), np.float32)
    assert multiply_accumulate(a, b, None, "f32")[0, 0] == 1 + 2**-23
    model = model_of(90, "wgmma", "bf16", "bf16")
    d = np.array([[2.0**-25]], np.float32)
    assert multiply_accumulate(a[:, :2], b[:2], d, "f32", model=model)[0, 0] == 1


def test_nan_is_canonical():
    a = np.array([[np.nan]], np.float32)
    for model in (model_of(90, "wgmma", "f16", "f16"), model_of(100, "tcgen05", "f16", "f16")):
        found = multiply_accumulate(a, a, None, "f32", model=model)
        assert found.view(np.uint32)[0, 0] == 0x7FFFFFFF
        assert multiply_accumulate(a, a, None, "f16", model=model).view(np.uint16)[0, 0] == 0x7FFF


# ----------------------------------------------------------------------- wgmma


def operand_image(image, start, codes, swizzle):
    """Write a K-major (MN, K) operand into the image as Triton's layout lays it out; its
    descriptor, relative to the image."""
    bits = codes.itemsize * 8
    layout = nvmma_shared_to_linear_layout(codes.shape, NVMMAShared(swizzle, bits))
    places = layout.apply(offset=np.arange(codes.size))
    data = codes[places["dim0"], places["dim1"]].view(np.uint8)
    image[start : start + len(data)] = data
    operand = derive_operand(layout, bits, codes.shape, arch=90)
    return operand.descriptor.advanced(start).encode()


def wgmma_inputs(n, d_type, a_type, b_type, seed=0):
    """The arguments of `wgmma_ptx`'s kernel, and A, B, D as matrices of numbers."""
    state = np.random.RandomState(seed)
    types = (a_type,) if a_type == b_type else (a_type, b_type)
    size = ELEMENT_BYTES[a_type]
    k, code = K_BYTES // size, np.dtype(f"u{size}")
    image = np.zeros(SMEM, np.uint8)
    a_codes, b_codes = (
        small_integers(state, types, rows * K_BYTES).view(code).reshape(rows, k) for rows in (64, n)
    )
    a_descriptor = operand_image(image, 0, a_codes, 32)
    b_descriptor = operand_image(image, 4096, b_codes, 32)
    dtype = {"f16": np.float16, "f32": np.float32, "s32": np.int32}[d_type]
    d = state.randint(-50, 50, (64, n)).astype(dtype)
    bits = 8 * dtype().itemsize
    words = to_registers(accumulator_fragment(16, bits), d.reshape(4, 16, n), np.uint32, n // 8)
    a_words = to_registers(
        operand_fragment("a", 16, k, 8 * size), a_codes.reshape(4, 16, k), np.uint32
    )
    args = [image, words.reshape(-1), a_words.reshape(-1), a_descriptor, b_descriptor, 1]
    return args, decode_elements(a_codes, a_type), decode_elements(b_codes, b_type), d


def accumulator_of(words, d):
    dtype = d.dtype
    fragment = accumulator_fragment(16, 8 * dtype.itemsize)
    n = d.shape[1]
    return to_matrices(fragment, words.reshape(-1, 128), dtype, n // 8).reshape(64, n)


@pytest.mark.parametrize("from_registers", [False, True], ids=["smem", "registers"])
@pytest.mark.parametrize("form", WGMMA_FORMS, ids=lambda form: "-".join(map(str, form)))
@pytest.mark.parametrize("n", [8, 32, 128])
def test_wgmma_of_integers(n, form, from_registers):
    d_type, a_type, b_type, saturate = form
    args, a, b, d = wgmma_inputs(n, d_type, a_type, b_type)
    ptx = wgmma_ptx(n, d_type, a_type, b_type, a_registers=from_registers, saturate=saturate)
    for scale in (1, 0):
        args[5] = scale
        words = Case("", ptx, args, 1).run(launcher())
        expected = a.astype(np.float64) @ b.T + (d if scale else 0)
        assert (accumulator_of(words, d) == expected).all()


def test_wgmma_negates():
    args, a, b, d = wgmma_inputs(16, "f32", "f16", "f16")
    words = Case("", wgmma_ptx(16, "f32", "f16", "f16", signs=(-1, 1)), args, 1).run(launcher())
    assert (accumulator_of(words, d) == d - a @ b.T).all()
    words = Case("", wgmma_ptx(16, "f32", "f16", "f16", signs=(-1, -1)), args, 1).run(launcher())
    assert (accumulator_of(words, d) == d + a @ b.T).all()


PRODUCT = wgmma_ptx(8, "f32", "f16", "f16")
WAIT = " wgmma.wait_group.sync.aligned 0;"
FENCE = " wgmma.fence.sync.aligned;"
COMMIT = " wgmma.commit_group.sync.aligned;"
(MULTIPLY,) = (line for line in PRODUCT.splitlines() if "mma_async" in line)


def run_product(ptx=PRODUCT, schedule="eager", seed=0, block=128, **changes):
    args, a, b, d = wgmma_inputs(8, "f32", "f16", "f16")
    for index, value in changes.items():
        args[int(index[1:])] = value
    words = Case("", ptx, args, 1, block=block).run(launcher(schedule=schedule, seed=seed))
    return accumulator_of(words, d), a, b, d


def edited(*edits):
    """The product's PTX with some text replaced, which must be there."""
    text = PRODUCT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_products_follow_each_other_in_one_accumulator(schedule):
    found, a, b, d = run_product(
        edited((MULTIPLY, f"{MULTIPLY}\n{COMMIT}\n{MULTIPLY}\n{MULTIPLY}")), schedule
    )
    assert (found == d + 3 * (a @ b.T)).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("edit", [(WAIT, ""), (COMMIT, ""), (WAIT, WAIT.replace("0", "1"))])
def test_a_missing_wait_is_caught(schedule, edit):
    """No wait; a wait without a commit; a wait for an earlier group."""
    with pytest.raises(SynchronizationFault, match="wait for it first") as caught:
        run_product(edited(edit), schedule)
    assert "st.global" in str(caught.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_waits_for_groups(schedule):
    """Two accumulators: after wait_group 1 the first may be read, and not the second."""
    registers = (" .reg .b32 %d<4>;", " .reg .b32 %d<4>;\n .reg .b32 %e<4>;")
    second = MULTIPLY.replace("%d", "%e").replace("%p2", "0")
    issue = (COMMIT, f"{COMMIT}\n{second}\n{COMMIT}")
    found, a, b, d = run_product(edited(registers, issue, (WAIT, WAIT.replace("0", "1"))), schedule)
    assert (found == d + a @ b.T).all()
    read = (WAIT, WAIT.replace("0", "1") + "\n add.u32 %d0, %e0, 0;")
    with pytest.raises(SynchronizationFault, match="wait for it first"):
        run_product(edited(registers, issue, read), schedule)


def test_accumulators_of_other_shapes_need_a_wait():
    other = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
    second = MULTIPLY.replace("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", other)
    with pytest.raises(SynchronizationFault, match="same shape and types"):
        run_product(edited((MULTIPLY, f"{MULTIPLY}\n{second}")))
    found, *_ = run_product(edited((MULTIPLY, f"{MULTIPLY}\n{COMMIT}\n{WAIT}\n{second}")), "lazy")
    assert found.shape == (64, 8)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_operand_a_in_flight(schedule):
    """Registers of A may be read by other instructions' products, and not be written."""
    ptx = wgmma_ptx(8, "f32", "f16", "f16", a_registers=True)
    (line,) = (line for line in ptx.splitlines() if "mma_async" in line)
    args, a, b, d = wgmma_inputs(8, "f32", "f16", "f16")
    twice = ptx.replace(line, f"{line}\n{line}")
    words = Case("", twice, args, 1).run(launcher(schedule=schedule))
    assert (accumulator_of(words, d) == d + 2 * (a @ b.T)).all()
    with pytest.raises(SynchronizationFault, match="wait for it first"):
        Case("", ptx.replace(line, f"{line}\n mov.b32 %a0, 0;"), args, 1).run(launcher())


def test_a_missing_fence_is_caught():
    with pytest.raises(
        SynchronizationFault, match=r"the first wgmma\.mma_async of a warp needs one"
    ):
        run_product(edited((FENCE, "")))
    late = edited((FENCE, f"{FENCE}\n xor.b32 %d1, %d1, 0;"))
    line = next(i for i, text in enumerate(late.splitlines(), 1) if "xor.b32" in text)
    with pytest.raises(SynchronizationFault, match=f"written at PTX line {line}, and no fence"):
        run_product(late)
    again = edited((WAIT, f"{WAIT}\n xor.b32 %d1, %d1, 0;\n{MULTIPLY}\n{COMMIT}\n{WAIT}"))
    with pytest.raises(SynchronizationFault, match=r"wgmma\.fence is missing"):
        run_product(again)
    run_product(again.replace(f"0;\n{MULTIPLY}", f"0;\n{FENCE}\n{MULTIPLY}"))


def test_fences_on_paths_that_are_not_taken():
    """Where the static pass cannot be sure, the run is watched, and only a real fault raises."""
    guarded = " setp.eq.u32 %p3, %r1, 999;\n @%p3 xor.b32 %d1, %d1, 0;"
    found, a, b, d = run_product(edited((FENCE, f"{FENCE}\n{guarded}")))
    assert (found == d + a @ b.T).all()
    copies = " mov.b32 %r30, %d1;\n mov.b32 %d1, %r30;"
    found, a, b, d = run_product(edited((FENCE, f"{FENCE}\n{copies}")))
    assert (found == d + a @ b.T).all()
    computed = " mov.b32 %r30, %d1;\n add.u32 %r31, %r30, 0;\n mov.b32 %d1, %r31;"
    with pytest.raises(SynchronizationFault, match=r"wgmma\.fence is missing"):
        run_product(edited((FENCE, f"{FENCE}\n{computed}")))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_synchronization_of_operands(schedule):
    with pytest.raises(SynchronizationFault, match=r"a proxy fence .* is missing"):
        run_product(edited((" fence.proxy.async;", "")), schedule)
    with pytest.raises(SynchronizationFault, match="a barrier or wait is missing"):
        run_product(edited((" bar.sync 0;", "")), schedule)
    fewer = edited((f"setp.lt.u32 %p1, %r5, {SMEM}", "setp.lt.u32 %p1, %r5, 2048"))
    with pytest.raises(UninitializedRead, match="nothing wrote it"):
        run_product(fewer, schedule)
    overwrite = " st.shared.u32 [%r2], %r1;"
    # before the product or after it
    text = r"still be read by a product of warpgroup 0|written by warp \d; .* wait is missing"
    with pytest.raises(SynchronizationFault, match=text):
        run_product(edited((COMMIT, f"{COMMIT}\n bar.sync 0;\n{overwrite}")), schedule)
    if schedule == "eager":
        one = f" setp.eq.u32 %p3, %r1, 0;\n bar.sync 0;\n @%p3{overwrite}"
        run_product(edited((WAIT, f"{WAIT}\n{one}")), schedule)


def test_descriptors_that_differ_or_are_illegal():
    differ = edited((" ld.param.u32 %r13", " cvt.u64.u32 %rd30, %r1;\n"
                     " add.s64 %rd21, %rd21, %rd30;\n ld.param.u32 %r13"))  # fmt: skip
    with pytest.raises(DescriptorFault, match="matrix descriptor of B differs between the threads"):
        run_product(differ)
    with pytest.raises(DescriptorFault, match="reserved bits 30"):
        run_product(_3=1 << 30)
    with pytest.raises(DescriptorFault, match=r"operand B of wgmma's descriptor .* makes it read"):
        run_product(_4=SmemDescriptor(90, SMEM - 128, 16, 256, 32).encode())


def test_an_operand_whose_elements_share_bytes_is_told():
    args = wgmma_inputs(8, "f32", "f16", "f16")[0]
    descriptor = replace(SmemDescriptor.decode(args[3], 90), stride_byte_offset=32)
    with pytest.raises(LayoutFault, match=r"operand A of wgmma .* are the same bytes") as caught:
        run_product(_3=descriptor.encode())
    one, other = re.findall(r"\((\d+), (\d+)\)", caught.value.message)
    assert one != other
    assert len({descriptor.element_address(int(m), int(k), 16, "K") for m, k in (one, other)}) == 1


def test_a_warpgroup_must_be_whole():
    with pytest.raises(ConvergenceFault, match="four warps of warpgroup 0"):
        run_product(block=96)
    leave = " setp.gt.u32 %p3, %r1, 95;\n @%p3 exit;"
    with pytest.raises(ConvergenceFault, match="four warps of warpgroup 0"):
        run_product(edited((FENCE, f"{FENCE}\n{leave}")))
    stay = " setp.gt.u32 %p3, %r1, 95;\n @%p3 bar.sync 1, 128;"
    with pytest.raises(ConvergenceFault, match="a warpgroup's threads must execute"):
        run_product(edited((FENCE, f"{FENCE}\n{stay}")))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_of_a_warpgroup_may_come_apart(schedule):
    """They meet at the product; another warpgroup does not wait for them."""
    delay = """
 shr.u32 %r30, %r1, 5;
 add.u32 %r30, %r30, 1;
D: sub.u32 %r30, %r30, 1;
 setp.ne.u32 %p3, %r30, 0;
 @%p3 bra D;
"""
    found, a, b, d = run_product(edited((FENCE, f"{FENCE}\n{delay}")), schedule, seed=7)
    assert (found == d + a @ b.T).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warpgroup_does_not_wait_for_another(schedule):
    """Warps 4 to 6 stand at the product with warpgroup 0; warp 7 comes only after that is done."""
    late = " setp.gt.u32 %p3, %r1, 223;\n @%p3 bar.sync 1, 160;"
    arrive = " setp.lt.u32 %p4, %r1, 128;\n @%p4 bar.arrive 1, 160;"
    ptx = edited((FENCE, f"{FENCE}\n{late}"), (WAIT, f"{WAIT}\n{arrive}"))
    args, a, b, d = wgmma_inputs(8, "f32", "f16", "f16")
    args[1] = np.tile(args[1].reshape(-1, 128), 2).reshape(-1)
    words = Case("", ptx, args, 1, block=256).run(launcher(schedule, seed=3)).reshape(-1, 2, 128)
    for group in (0, 1):
        assert (accumulator_of(words[:, group], d) == d + a @ b.T).all()


def test_forms_that_are_refused():
    arguments = wgmma_inputs(8, "f32", "f16", "f16")[0]
    sparse = PRODUCT.replace("mma_async.sync", "mma_async.sp.sync")
    sparse = sparse.replace("%p2, 1", "%r1, 0, %p2, 1")
    assert "%r1, 0, %p2, 1" in sparse
    with pytest.raises(UnsupportedInstruction, match="sparse"):
        Case("", sparse, arguments, 1).run(launcher())
    with pytest.raises(UnsupportedInstruction, match=r"wgmma is of sm_90a alone"):
        Case("", PRODUCT.replace("sm_90a", "sm_100a"), arguments, 1).run(launcher())
    for old, new in (("f32.f16.f16", "f16.bf16.bf16"), ("n8k16", "n12k16"), ("k16", "k32")):
        with pytest.raises(UnsupportedInstruction, match="types and shape is not modelled"):
            Case("", PRODUCT.replace(old, new), arguments, 1).run(launcher())
    for line in (
        "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1}, [%r2];",
        "wmma.load.a.sync.aligned.row.m8n8k32.shared.s4 {%r1}, [%r2];",
        "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4}, %r5, 0;",
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1, %r2, %r3}, [%r4];",
        "ldmatrix.sync.aligned.m16n16.x1.shared.b8 {%r1, %r2}, [%r4];",
        "stmatrix.sync.aligned.m16n8.x1.shared.b8 [%r4], {%r1};",
    ):
        with pytest.raises(UnsupportedInstruction):
            run_ptx(kernel("", f" {line}"), grid=1, block=32, args=[])


# ----------------------------------------------------------- warp instructions


@pytest.mark.parametrize("form", MMA_FORMS, ids=lambda form: "-".join(map(str, form)))
def test_mma_of_integers(form):
    shape, d_type, a_type, b_type, saturate = form
    m, rest = shape[1:].split("n")
    m, n, k = int(m), *(int(part) for part in rest.split("k"))
    state = np.random.RandomState(5)
    dtype = {"f16": np.float16, "f32": np.float32, "s32": np.int32, "f64": np.float64}[d_type]
    size = ELEMENT_BYTES[a_type]
    word = np.uint64 if a_type == "f64" else np.uint32
    types = (a_type,) if a_type == b_type else (a_type, b_type)
    codes = []
    for shape_of in ((2, m, k), (2, k, n)):
        count = 2 * int(np.prod(shape_of[1:]))
        if a_type == "f64":
            values = state.randint(-99, 99, count).astype(np.float64).view(np.uint64)
        else:
            values = small_integers(state, types, count * size).view(f"u{size}")
        codes.append(values.reshape(shape_of))
    d = state.randint(-50, 50, (2, m, n)).astype(dtype)
    fragment = accumulator_fragment(m, 8 * dtype().itemsize)
    args = [
        to_registers(operand_fragment("a", m, k, 8 * size), codes[0], word).reshape(-1),
        to_registers(operand_fragment("b", n, k, 8 * size), codes[1], word).reshape(-1),
        to_registers(fragment, d, word).reshape(-1),
    ]
    words = Case("", mma_ptx(shape, d_type, a_type, b_type, saturate), args, 2, 64).run(launcher())
    a, b = decode_elements(codes[0], a_type), decode_elements(codes[1], b_type)
    expected = a.astype(np.float64) @ b.astype(np.float64) + d
    assert (to_matrices(fragment, words.reshape(-1, 64), dtype) == expected).all()


def row_addresses(seed):
    state = np.random.RandomState(seed)
    image = state.randint(0, 256, SMEM).astype(np.uint8)
    return image, (16 * state.permutation(SMEM // 16)[:128]).astype(np.uint32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_ldmatrix_and_stmatrix(number, transposed):
    """PTX ISA, "ldmatrix": thread t of a warp gets elements 2(t mod 4), + 1 of row t / 4 of each
    matrix (of a column, transposed); matrix i's rows are named by threads 8i to 8i + 7."""
    image, at = row_addresses(6)
    data = np.zeros((number, 128), np.uint32)
    words = Case("", ldmatrix_ptx(number, transposed), [image, at, data], 2).run(launcher())
    for warp, matrix, lane in itertools.product(range(4), range(number), range(32)):
        rows = [image[a : a + 16].view(np.uint16) for a in at[32 * warp + 8 * matrix :][:8]]
        tile = np.array(rows).T if transposed else np.array(rows)
        expected = tile[lane // 4, lane % 4 * 2 :][:2].copy().view(np.uint32)[0]
        assert words[matrix, 32 * warp + lane] == expected
    out = np.zeros(SMEM, np.uint8)
    other = np.random.RandomState(7).randint(0, 256, SMEM).astype(np.uint8)
    stored = Case(
        "", stmatrix_ptx(number, transposed), [other, at, words, out], 3
    ).run(launcher())  # fmt: skip
    changed = other.copy()
    for warp in range(4):
        for a in at[32 * warp :][: 8 * number]:
            changed[a : a + 16] = image[a : a + 16]
    assert (stored == changed).all()


def test_ldmatrix_faults():
    image, at = row_addresses(8)
    data = np.zeros((1, 128), np.uint32)
    at[3] += 8
    with pytest.raises(MemoryFault, match="not a multiple of the access' 16 bytes"):
        Case("", ldmatrix_ptx(1, False), [image, at, data], 2).run(launcher())
    at[3], at[9] = 0, 8  # threads 8 and up name no row of .x1
    Case("", ldmatrix_ptx(1, False), [image, at, data], 2).run(launcher())
    at[3] = SMEM
    with pytest.raises(MemoryFault, match="outside of the block's"):
        Case("", ldmatrix_ptx(1, False), [image, at, data], 2).run(launcher())
    at[3] = 0
    guarded = ldmatrix_ptx(1, False).replace(
        " ldmatrix", " setp.lt.u32 %p3, %r1, 20;\n @%p3 ldmatrix"
    )
    with pytest.raises(ConvergenceFault, match="all 32 threads of a warp"):
        Case("", guarded, [image, at, data], 2).run(launcher())
    unordered = ldmatrix_ptx(1, False).replace(" bar.sync 0;", "")
    with pytest.raises(SynchronizationFault, match="nothing orders the two"):
        Case("", unordered, [image, at, data], 2).run(launcher())


@pytest.mark.parametrize("number", [1, 2])
def test_ldmatrix_of_8_bits(number):
    """``m16n16.trans.b8`` (sm_100a): thread t gets rows 4(t mod 4) to + 3 of column t / 4, and of
    the column 8 further."""
    image, at = row_addresses(9)
    ptx = ldmatrix_ptx(2 * number, False).replace("sm_90a", "sm_100a")
    ptx = ptx.replace(f"m8n8.x{2 * number}.shared.b16", f"m16n16.x{number}.trans.shared.b8")
    data = np.zeros((2 * number, 128), np.uint32)
    words = Case("", ptx, [image, at, data], 2).run(launcher())
    bytes_of = words.view(np.uint8).reshape(2 * number, 128, 4)
    for warp, matrix, lane in itertools.product(range(4), range(number), range(32)):
        rows = np.array([image[a : a + 16] for a in at[32 * warp + 16 * matrix :][:16]])
        for half in (0, 1):
            expected = rows[lane % 4 * 4 :][:4, lane // 4 + 8 * half]
            assert (bytes_of[2 * matrix + half, 32 * warp + lane] == expected).all()


@pytest.mark.parametrize(("source", "bits"), [("b4x16_p64", 4), ("b6x16_p32", 6)])
def test_ldmatrix_unpacks_small_elements(source, bits):
    """``m8n16`` (sm_100a): 16 elements of 4 or 6 bits become bytes; four of a row to a thread."""
    image, at = row_addresses(10)
    ptx = ldmatrix_ptx(2, False).replace("sm_90a", "sm_100a")
    ptx = ptx.replace("m8n8.x2.shared.b16", f"m8n16.x2.shared.b8x16.{source}")
    words = Case("", ptx, [image, at, np.zeros((2, 128), np.uint32)], 2).run(launcher())
    bytes_of = words.view(np.uint8).reshape(2, 128, 4)
    for warp, matrix, lane in itertools.product(range(4), range(2), range(32)):
        a = at[32 * warp + 8 * matrix + lane // 4]
        number = int.from_bytes(image[a : a + 16].tobytes(), "little")
        expected = [number >> bits * (lane % 4 * 4 + i) & (1 << bits) - 1 for i in range(4)]
        assert bytes_of[matrix, 32 * warp + lane].tolist() == expected


@pytest.mark.parametrize("number", [1, 2, 4])
def test_stmatrix_of_8_bits(number):
    """``m16n8.trans.b8`` (sm_100a): an accumulator's fragment in bytes, stored by columns."""
    image, at = row_addresses(11)
    ptx = stmatrix_ptx(number, False).replace("sm_90a", "sm_100a")
    ptx = ptx.replace(f"m8n8.x{number}.shared.b16", f"m16n8.x{number}.trans.shared.b8")
    data = np.random.RandomState(12).randint(0, 2**31, (number, 128)).astype(np.uint32)
    stored = Case("", ptx, [image, at, data, np.zeros(SMEM, np.uint8)], 3).run(launcher())
    bytes_of = data.view(np.uint8).reshape(number, 128, 4)
    for warp, matrix, lane, part in itertools.product(range(4), range(number), range(32), range(4)):
        row, column = lane // 4 + 8 * (part // 2), lane % 4 * 2 + part % 2
        a = at[32 * warp + 8 * matrix + column]
        assert stored[a + row] == bytes_of[matrix, 32 * warp + lane, part]


# --------------------------------------------------------------------- silicon


def test_the_emulator_gives_what_an_h100_gave():
    """Every bit of more than a thousand cases that a GPU ran: descriptors that no compiler would
    choose, all types and shapes, and how sums of random numbers are rounded. Each program, and a
    third of the cases that share one; by `make oracle` all.
    """
    record = json.loads(RECORD.read_text())
    recorded = {kind: iter(digests) for kind, digests in record["digests"].items()}
    cases = [(case, next(recorded[case.kind])) for case in all_cases()]
    assert len(cases) == sum(record["counts"].values()) > 1000
    launch = launcher(layouts=False)  # of some, elements share bytes
    draw, seen = random.Random(0), set()
    different = []
    for case, expected in cases:
        if ALL or case.ptx not in seen or draw.random() < 1 / 3:
            seen.add(case.ptx)
            if digest(case.run(launch)) != expected:
                different.append(case.name)
    assert different == []


@pytest.mark.sm90
@pytest.mark.parametrize("cases", [layout_cases, lambda: list(rounding_cases(9))])
def test_a_gpu_gives_what_the_emulator_gives(cases):
    from benchmarks.driver import run_on_gpu

    for case in cases():
        assert digest(case.run(run_on_gpu)) == digest(case.run(launcher(layouts=False))), case.name


def test_the_kernels_start_where_the_cases_say():
    """Descriptors of the cases are relative to the first dynamic byte, a multiple of 1024."""
    assert BASE == SHARED_BASE
    assert BASE % SWIZZLE_PERIOD == 0
