"""Kernels on the GPUs besides Hopper and the B200: what Triton compiles, and what each GPU has."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from tcgen05_operands import container_bytes, instruction_descriptor
from tcgen05_ptx import (
    DATA,
    STATE,
    allocate,
    commit_and_wait,
    descriptor,
    fill_shared,
    free,
    kernel,
    load_columns,
    registers,
    store_columns,
    write_out,
)

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import (
    DescriptorFault,
    LaunchError,
    TensorMemoryFault,
    WrongArchitecture,
)
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import CAPABILITIES

SCHEDULES = ("eager", "lazy", "random")
OTHERS = [f"sm_{number}" for number in CAPABILITIES if number not in (90, 100)]


def at(target, text):
    """The module, for another target."""
    return text.replace(".target sm_100a", f".target {target}").replace("8.7", "9.4")


# ------------------------------------------------------------------- Triton's own products


@pytest.fixture(scope="module")
def kernels():
    pytest.importorskip("triton")
    import target_kernels

    return target_kernels


@pytest.mark.parametrize("arch", OTHERS)
def test_dot_of_16_bits(kernels, arch):
    for schedule in SCHEDULES:
        found, expected, ptx = kernels.product(arch, "float16", schedule)
        assert (found == expected).all()
    assert ("tcgen05.mma" in ptx) == (CAPABILITIES[int(arch[3:])].products == "tcgen05")


@pytest.mark.parametrize("arch", ["sm_89", "sm_107", "sm_120"])
@pytest.mark.parametrize("name", ["bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2"])
def test_dot_of_every_type(kernels, arch, name):
    found, expected, _ = kernels.product(arch, name, "lazy")
    assert (found == expected).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("a", "b", "block", "form"),
    [
        ("e4m3", "e5m2", 32, "m16n8k32.*kind::mxf8f6f4.*1X"),
        ("e2m1", "e2m1", 32, "m16n8k64.*kind::mxf4nvf4.*2X.*ue8m0"),
        ("e2m1", "e2m1", 16, "m16n8k64.*kind::mxf4nvf4.*4X.*ue4m3"),
    ],
)
def test_scaled_dot_on_sm_120(kernels, a, b, block, form, schedule):
    found, expected, ptx = kernels.scaled_product("sm_120", a, b, block, schedule)
    assert (found == expected).all()
    assert re.search(f"mma.sync.*{form}", ptx)


def test_tma_on_sm_120(kernels):
    found, expected, ptx = kernels.copied("sm_120")
    assert (found == expected).all()
    assert "cp.async.bulk.tensor" in ptx


def test_reducing_loads_on_sm_103(kernels):
    """Gluon's ``load_max`` is an instruction from there on."""
    found, expected, ptx = kernels.largest_of_rows("sm_103")
    assert (found == expected).all()
    assert "tcgen05.ld.red" in ptx


def test_the_matmul_runs_on_the_family_of_sm_100(kernels):
    torch = pytest.importorskip("torch")
    import triton_ext

    a = torch.randint(-3, 4, (64, 64)).half()
    for arch in ("sm_103", "sm_110"):
        with triton_ext.emulate(arch):
            assert (triton_ext.matmul(a, a) == a @ a).all()
    with triton_ext.emulate("sm_120"), pytest.raises(RuntimeError, match=r"sm_120 \(RTX 5090\)"):
        triton_ext.matmul(a, a)


@pytest.mark.parametrize("arch", ["sm_86", "sm_107", "sm_120"])
def test_the_passes_have_no_false_alarm(kernels, arch, monkeypatch, capfd):
    from triton_ext import passes

    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    every = "verify-descriptors,lint-shared,report-layouts,widen-swizzle,check-conversion"
    with passes.enabled(every) as results:
        found, expected, _ = kernels.product(arch, "float16", "eager")
    assert (found == expected).all()
    assert not [said for each in results.all for said in each.diagnostics]
    most = CAPABILITIES[int(arch[3:])].shared_memory_per_block
    assert f"of {most:,} bytes" in "".join(capfd.readouterr())


def test_there_is_no_time_of_other_gpus():
    pytest.importorskip("triton")
    import triton_ext

    with (
        pytest.raises(LayoutError, match=r"no figures of sm_120.*H200, H100, B200"),
        triton_ext.emulate("sm_120", time=True),
    ):
        pass


# --------------------------------------------------------- block scales of mma.sync, by PTX

HEAD = """
.version 9.4
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 q) {{
.reg .b32 %r<40>; .reg .b64 %rd<8>; .reg .f32 %f<8>; .reg .b16 %h<8>;
ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q];
mov.u32 %r30, %tid.x; mul.wide.u32 %rd3, %r30, 4;
add.u64 %rd1, %rd1, %rd3; add.u64 %rd2, %rd2, %rd3;
{loads}
mov.b16 %h0, {a_byte}; mov.b16 %h1, {a_thread};
{opcode} {{%f0, %f1, %f2, %f3}}, {{%r0, %r1, %r2, %r3}}, {{%r4, %r5}},
{{%f4, %f4, %f4, %f4}}, {scales};
{stores}
ret; }}
"""


def warp_product(opcode, words, scales="", a_byte=0, a_thread=0):
    """D (16, 8) of a product whose A, B and scale registers are the rows of `words`."""
    loads = "mov.f32 %f4, 0f00000000;\n" + "\n".join(
        f"ld.global.b32 %r{n}, [%rd1+{128 * n}];" for n in range(8)
    )
    stores = "\n".join(f"st.global.f32 [%rd2+{128 * n}], %f{n};" for n in range(4))
    text = HEAD.format(loads=loads, stores=stores, opcode=opcode, scales=scales, a_byte=a_byte,
                       a_thread=a_thread).replace(", ;", ";")  # fmt: skip
    found = np.zeros((4, 32), np.float32)
    run_ptx(text, grid=1, block=32, args=[words, found])
    lane, d = np.arange(32), np.zeros((16, 8), np.float32)
    for n in range(4):
        d[lane // 4 + 8 * (n // 2), lane % 4 * 2 + n % 2] = found[n]
    return d


def operand_registers(codes, bits, rows):
    """The registers of A (16 x K) or of B (8 x K, by columns): PTX ISA, the formulas of the
    fragments of m16n8k32 and m16n8k64."""
    each = 32 // bits
    words = np.zeros((2 * rows // 8, 32), np.uint32)
    for lane in range(32):
        for i in range(each * 2 * rows // 8):
            register = i // each
            row = lane // 4 + (8 * (register % 2) if rows == 16 else 0)
            half = register // 2 if rows == 16 else register
            column = lane % 4 * each + i % each + half * 4 * each
            words[register, lane] |= np.uint32(int(codes[row, column]) << bits * (i % each))
    return words


FLOATS = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
}


@pytest.mark.parametrize(
    ("kind", "vector", "a_type", "b_type", "scale", "count"),
    [
        ("mxf8f6f4", "1X", "e3m2", "e2m1", "ue8m0", 1),
        ("mxf8f6f4", "1X", "e2m3", "e4m3", "ue8m0", 1),
        ("mxf4", "2X", "e2m1", "e2m1", "ue8m0", 2),
        ("mxf4nvf4", "4X", "e2m1", "e2m1", "ue4m3", 4),
    ],
)
def test_scale_factors_of_a_warp(kind, vector, a_type, b_type, scale, count):
    """Each selector chooses the bytes and threads of the figures of the PTX ISA."""
    rng = np.random.default_rng(count)
    k, bits = (32, 8) if kind == "mxf8f6f4" else (64, 4)
    limits = {"e2m1": 16, "e2m3": 64, "e3m2": 64, "e4m3": 126}
    codes = [rng.integers(0, limits[t], (r, k)).astype(np.uint8)
             for t, r in ((a_type, 16), (b_type, 8))]  # fmt: skip
    values = [each.view(FLOATS[t]).astype(np.float64)
              for each, t in zip(codes, (a_type, b_type), strict=True)]  # fmt: skip
    contained = [
        each << 2 if bits == 8 and t == "e2m1" else each
        for each, t in zip(codes, (a_type, b_type), strict=True)
    ]
    data = rng.integers(120, 134, (2, 32, 4)).astype(np.uint8)
    if scale == "ue4m3":
        data = rng.integers(40, 80, (2, 32, 4)).astype(np.uint8)
        meaning = data.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    else:
        meaning = 2.0 ** (data.astype(int) - 127)
    words = np.concatenate([
        operand_registers(contained[0], bits, 16), operand_registers(contained[1], bits, 8),
        data.reshape(2, -1).view(np.uint32),
    ])  # fmt: skip
    opcode = (
        f"mma.sync.aligned.m16n8k{k}.row.col.kind::{kind}.block_scale.scale_vec::{vector}.f32"
        f".{a_type}.{b_type}.f32.{scale}"
    )
    for byte in range(0, 4, count):
        for a_thread, b_thread in ((0, 0), (1, 2), (0, 3)):
            d = warp_product(opcode, words, f"{{%r6}}, {{%h0, %h1}}, %r7, {{{byte}, {b_thread}}}",
                             byte, a_thread)  # fmt: skip
            row, column = np.arange(16), np.arange(8)
            of_a = meaning[0, 4 * (row % 8) + row // 8 + 2 * a_thread, byte : byte + count]
            of_b = meaning[1, 4 * column + b_thread, byte : byte + count]
            scaled = [each * np.repeat(f, k // count, axis=1)
                      for each, f in zip(values, (of_a, of_b), strict=True)]  # fmt: skip
            assert (d == (scaled[0] @ scaled[1].T).astype(np.float32)).all()
    with pytest.raises(DescriptorFault, match="thread-id = 2"):
        warp_product(opcode, words, "%r6, {%h0, %h1}, %r7, {0, 0}", 0, 2)


# ------------------------------------------------------------------ long K of sm_103, sm_107

SCALE_COLUMN = 128
M, N = 128, 64


def rows_of_a_swizzle(codes, type_name, packed):
    """(rows, K) in the 128-byte swizzle, K-major: a line of 128 bytes for each row."""
    data = container_bytes(codes, type_name, packed)
    rows, size = data.shape
    row, byte = np.arange(rows)[:, None], np.arange(size)[None, :]
    image = np.zeros(rows * 128, np.uint8)
    address = row * 128 + byte
    image[address ^ (address >> 7 & 7) << 4] = data
    return image


def scale_words(codes, first):
    """(columns, 128 lanes): the next four factors are behind those of 128 rows."""
    rows, count = codes.shape
    words = np.zeros((4 * -(-(first + count) // 4), 32, 4), np.uint8)
    for row in range(rows):
        for index in range(count):
            byte = first + index
            words[row // 32 + byte // 4 * 4, row % 32, byte % 4] = codes[row, index]
    return np.tile(words.reshape(len(words), -1).view(np.uint32), (1, 4))


def long_product(target, kind, vector, k, type_name, count, ids, split=0):
    """D, and what it must be; `split` bytes of each row are at another place."""
    rng = np.random.default_rng(k + count)
    packed, scaled = kind.startswith("mxf4"), kind.startswith("mx")
    limit = {"e2m1": 4, "e4m3": 8}[type_name]
    a, b = (rng.integers(-limit, limit + 1, (r, k)).astype(FLOATS[type_name]).astype(float)
            for r in (M, N))  # fmt: skip
    images = [rows_of_a_swizzle(each, type_name, packed) for each in (a, b)]
    inside = 0
    if split:  # the K of an operand begins 128 - split bytes into its rows, and goes on elsewhere
        inside, parts = 128 - split, []
        for each in (a, b):
            data = container_bytes(each, type_name, packed)
            for piece, at_byte in ((data[:, :split], inside), (data[:, split:], 0)):
                image = np.zeros(len(each) * 128, np.uint8)
                address = (np.arange(len(each))[:, None] * 128 + at_byte
                           + np.arange(piece.shape[1])[None, :])  # fmt: skip
                image[address ^ (address >> 7 & 7) << 4] = piece
                parts.append(image)
        images = parts
    starts = np.cumsum([0, *map(len, images)])
    size = int(starts[-1])
    codes = [rng.integers(125, 130, (r, count)).astype(np.uint8) for r in (M, N)]
    words = np.zeros((16, 128), np.uint32)
    for place, (each, first) in enumerate(zip(codes, ids, strict=True)):
        found = scale_words(each, first)
        words[8 * place : 8 * place + len(found)] = found
    source = np.concatenate([*images, words.view(np.uint8).reshape(-1)])
    descriptors = []
    for operand in range(2):
        first = int(starts[operand * (1 + bool(split))])
        value = descriptor(DATA + first + inside, 16, 1024, 2)
        if split:
            rest = DATA + int(starts[2 * operand + 1])
            value = descriptor(DATA + first + inside, rest, 1024, 2) | 1 << 52
        descriptors.append(value)
    idesc = instruction_descriptor(
        kind, M, N, type_name, type_name, "f32", "K", "K", scale_type=1, a_id=ids[0], b_id=ids[1]
    )
    idesc |= {96: 1 << 31, 128: 1 << 3, 64: 1 << (31 if scaled else 29)}[k]
    scales = "[%r13], [%r14], " if scaled else ""
    block = f".block_scale{vector}" if scaled else ""
    text = kernel(
        allocate() + fill_shared(size) + store_columns(16, size // 4, SCALE_COLUMN) + f"""
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  mov.u64 %rd3, {descriptors[0]};
  mov.u64 %rd4, {descriptors[1]};
  mov.u32 %r12, {idesc};
  setp.ne.u32 %p5, %r12, %r12;
  add.u32 %r13, %r4, {SCALE_COLUMN};
  add.u32 %r14, %r4, {SCALE_COLUMN + 8};
  @%p1 tcgen05.mma.cta_group::1.kind::{kind}{block} [%r4], %rd3, %rd4, %r12, {scales}%p5;
""" + commit_and_wait(0) + load_columns(N) + free())  # fmt: skip
    found = np.zeros((N, 128), np.float32)
    run_ptx(at(target, text), grid=1, block=128, args=[source, found],
            dynamic_smem_bytes=STATE + size)  # fmt: skip
    if scaled:
        a, b = (each * np.repeat(2.0 ** (factors.astype(int) - 127), k // count, axis=1)
                for each, factors in zip((a, b), codes, strict=True))  # fmt: skip
    return found.T, (a @ b.T).astype(np.float32)


@pytest.mark.parametrize(
    ("target", "kind", "vector", "k", "type_name", "count", "ids"),
    [
        ("sm_103a", "mxf4", ".block32", 96, "e2m1", 3, (0, 3)),
        ("sm_103a", "mxf4", "", 96, "e2m1", 3, (1, 2)),
        ("sm_103a", "mxf4nvf4", ".block16", 96, "e2m1", 6, (2, 0)),
        ("sm_107a", "mxf4nvf4", ".block16", 128, "e2m1", 8, (0, 0)),
        ("sm_107a", "mxf4nvf4", ".block32", 128, "e2m1", 4, (0, 0)),
        ("sm_107a", "mxf8f6f4", ".block32", 64, "e4m3", 2, (2, 0)),
        ("sm_107a", "f8f6f4", "", 64, "e4m3", 1, (0, 0)),
    ],
)
def test_products_of_a_long_k(target, kind, vector, k, type_name, count, ids):
    found, expected = long_product(target, kind, vector, k, type_name, count, ids)
    assert (found == expected).all()


@pytest.mark.parametrize("split", [16, 32])
def test_an_operand_in_two_places(split):
    """The leading dimension as an address: what leaves the 128 bytes of a row is read there."""
    found, expected = long_product("sm_103a", "mxf4", ".block32", 96, "e2m1", 3, (0, 0), split)
    assert (found == expected).all()


@pytest.mark.parametrize(
    ("target", "kind", "k", "owner"),
    [
        ("sm_100a", "mxf4", 96, "sm_103f and sm_107f"),
        ("sm_110a", "mxf4", 96, "sm_103f and sm_107f"),
        ("sm_103a", "f8f6f4", 64, "sm_107f alone"),
        ("sm_103a", "mxf4", 128, "sm_107f alone"),
    ],
)
def test_who_has_no_long_k(target, kind, k, owner):
    type_name = "e4m3" if kind == "f8f6f4" else "e2m1"
    with pytest.raises(DescriptorFault, match=rf"K = {k} of .kind::{kind} is of {owner}"):
        long_product(target, kind, ".block32", k, type_name, 4, (0, 0))


# ------------------------------------------------------------- tensor memory, shared memory


def reduction(opcode, number_type, values):
    """redval of each thread, for values (columns, 128)."""
    count = len(values)
    body = allocate() + store_columns(count, 0, 0) + (
        "  bar.sync 0;\n  tcgen05.fence::after_thread_sync;\n"
        f"  tcgen05.ld.red.sync.aligned.32x32b.x{count}.{opcode} {registers(count)}, %v200,"
        " [%r5];\n  tcgen05.wait::ld.sync.aligned;\n  mov.b32 %v0, %v200;\n"
    ) + write_out(1) + free()  # fmt: skip
    found = np.zeros(128, number_type)
    run_ptx(at("sm_103a", kernel(body)), grid=1, block=128, args=[values, found],
            dynamic_smem_bytes=STATE)  # fmt: skip
    return found


def test_loads_that_reduce():
    rng = np.random.default_rng(3)
    values = rng.normal(size=(8, 128)).astype(np.float32)
    values[3, 5] = np.nan
    assert (reduction("max.f32", np.float32, values) == np.nanmax(values, axis=0)).all()
    assert (reduction("min.abs.f32", np.float32, values) == np.nanmin(abs(values), axis=0)).all()
    found = reduction("min.NaN.f32", np.float32, values)
    assert np.array_equal(np.isnan(found), np.arange(128) == 5)
    whole = rng.integers(-9, 9, (8, 128)).astype(np.int32)
    assert (reduction("min.s32", np.int32, whole) == whole.min(axis=0)).all()
    assert (reduction("max.u32", np.uint32, whole.view(np.uint32)) ==
            whole.view(np.uint32).max(axis=0)).all()  # fmt: skip


def allocating(target, columns, exclusive=".exclusive", freed=".exclusive"):
    text = (allocate(columns) + free(columns)).replace("alloc.cta", f"alloc{exclusive}.cta", 1)
    text = text.replace("dealloc.cta", f"dealloc{freed}.cta")
    run_ptx(at(target, kernel(text)), grid=1, block=128, args=[np.zeros(4), np.zeros(4)],
            dynamic_smem_bytes=STATE)  # fmt: skip


def test_exclusive_allocations():
    allocating("sm_107a", 576)
    allocating("sm_100a", 96)
    for target, columns, rule in (
        ("sm_103a", 576, "from 32 to 512"),
        ("sm_107a", 608, "from 32 to 576"),
        ("sm_107a", 48, "multiple of 32"),
    ):
        with pytest.raises(TensorMemoryFault, match=rule):
            allocating(target, columns)
    with pytest.raises(TensorMemoryFault, match="power of two"):
        allocating("sm_107a", 576, "", "")
    with pytest.raises(TensorMemoryFault, match="both or neither"):
        allocating("sm_107a", 64, ".exclusive", "")


EMPTY = """
.version 9.4
.target {target}
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k() {{ ret; }}
"""


@pytest.mark.parametrize(("target", "most"), [
    ("sm_80", 163), ("sm_86", 99), ("sm_103", 227), ("sm_107", 327), ("sm_121", 99),
])  # fmt: skip
def test_shared_memory(target, most):
    text = EMPTY.format(target=target)
    run_ptx(text, grid=1, block=32, args=[], dynamic_smem_bytes=most << 10)
    with pytest.raises(LaunchError, match=rf"in \[0, {most << 10}\] on {target}"):
        run_ptx(text, grid=1, block=32, args=[], dynamic_smem_bytes=(most << 10) + 1)


def test_clusters():
    with pytest.raises(LaunchError, match="on sm_86 a cluster is none"):
        run_ptx(EMPTY.format(target="sm_86"), grid=2, block=32, args=[], cluster=2)
    with pytest.raises(LaunchError, match="on sm_120 a cluster has at most 8 blocks"):
        run_ptx(EMPTY.format(target="sm_120"), grid=16, block=32, args=[], cluster=16)
    required = EMPTY.format(target="sm_89").replace("k()", "k() .reqnctapercluster 2, 1, 1")
    with pytest.raises(LaunchError, match="clusters are of sm_90 and later"):
        run_ptx(required, grid=2, block=32, args=[])


def test_a_target_without_its_suffix():
    text = kernel(allocate() + free()).replace("sm_100a", "sm_100")
    with pytest.raises(WrongArchitecture, match=r"PTX is for sm_100: write .target sm_100f"):
        run_ptx(text, grid=1, block=128, args=[np.zeros(4), np.zeros(4)])
