"""The ``wmma`` family: products of every shape and type, from and to memory in both orders."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import ConvergenceFault, MemoryFault, UninitializedRead

WIDE = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
# operands -> their numpy type, shapes, and types of the sum
TYPES = {
    "f16": (np.float16, WIDE, ("f16", "f32")), "bf16": (ml_dtypes.bfloat16, WIDE, ("f32",)),
    "tf32": (np.float32, ((16, 16, 8),), ("f32",)), "f64": (np.float64, ((8, 8, 4),), ("f64",)),
    "s8": (np.int8, WIDE, ("s32",)), "u8": (np.uint8, WIDE, ("s32",)),
}  # fmt: skip
SUMS = {"f16": np.float16, "f32": np.float32, "f64": np.float64, "s32": np.int32}
FORMS = [
    (shape, kind, total)
    for kind, (_, shapes, totals) in TYPES.items()
    for shape, total in itertools.product(shapes, totals)
]
ORDERS = [(*operands, *operands[::-1]) for operands in itertools.product(("row", "col"), repeat=2)]


def names(letter, count):
    return "{" + ", ".join(f"%{letter}{i}" for i in range(count)) + "}"


def counts(shape, kind, total):
    """Registers of A, B and D (PTX ISA, "Matrix Fragments for WMMA")."""
    m, n, k = shape
    bits = {"f64": 64, "tf32": 32, "f16": 16, "bf16": 16}.get(kind, 8)
    a, b = (x * k * bits // max(bits, 32) // 32 for x in (m, n))
    return (8, 8) if kind == "f16" else (a, b), m * n // 32 // (2 if total == "f16" else 1)


def product(shape, kind, total, layouts, stride=0, more=""):
    """A kernel of one warp: out = A x B + C, through shared memory for A."""
    m, n, k = shape
    (a, b), d = counts(shape, kind, total)
    form = f"m{m}n{n}k{k}"
    own = total if total != "f16" else "b32"
    word = "b64" if kind == "f64" else "b32"
    types = f"{total}.{total}" if kind == "f16" else f"{total}.{kind}.{kind}.{total}"
    size = m * k * np.dtype(TYPES[kind][0]).itemsize
    row, column, c, out = layouts
    stride = stride or (n if c == "row" else m)
    registers = ", ".join((names("d", d), names("a", a), names("b", b), names("c", d)))
    return f"""
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)
{{
 .reg .{word} %a<{a}>; .reg .{word} %b<{b}>; .reg .{own} %c<{d}>; .reg .{own} %d<{d}>;
 .reg .b64 %rd<8>; .reg .b32 %r<8>; .reg .pred %p1;
 .shared .align 32 .b8 s[{size + 64}];
 ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
 ld.param.u64 %rd2, [p2]; ld.param.u64 %rd3, [p3];
 mov.u32 %r0, %tid.x; shl.b32 %r1, %r0, 2; mov.u32 %r2, s;
 LOOP: cvt.u64.u32 %rd4, %r1; add.u64 %rd5, %rd0, %rd4; ld.global.u32 %r3, [%rd5];
 add.u32 %r4, %r2, %r1; st.shared.u32 [%r4], %r3;
 add.u32 %r1, %r1, 128; setp.lt.u32 %p1, %r1, {size}; @%p1 bra LOOP;
 bar.warp.sync -1;
 {more}
 wmma.load.a.sync.aligned.{row}.{form}.shared.{kind} {names("a", a)}, [%r2];
 wmma.load.b.sync.aligned.{column}.{form}.global.{kind} {names("b", b)}, [%rd1];
 wmma.load.c.sync.aligned.{c}.{form}.{total} {names("c", d)}, [%rd2], {stride};
 wmma.mma.sync.aligned.{row}.{column}.{form}.{types} {registers};
 wmma.store.d.sync.aligned.{out}.{form}.global.{total} [%rd3], {names("d", d)};
 ret;
}}
"""


def drawn(shape, kind, total, seed=4801):
    """A, B and C of small integers, and A x B + C."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    low = 0 if kind == "u8" else -7
    a, b = rng.integers(low, 8, (m, k)), rng.integers(low, 8, (k, n))
    c = rng.integers(-50, 50, (m, n))
    return a, b, c, a @ b + c


def laid(matrix, layout, dtype):
    return np.ascontiguousarray(matrix if layout == "row" else matrix.T).astype(dtype).reshape(-1)


def emulated(ptx, name, grid, block, args):
    run_ptx(ptx, kernel=name, grid=grid, block=block, args=args)


def executed(shape, kind, total, layouts, launch=emulated, **more):
    a, b, c, expected = drawn(shape, kind, total)
    dtype = TYPES[kind][0]
    out = np.zeros(c.size, SUMS[total])
    dtypes = (dtype, dtype, SUMS[total])
    args = [laid(*each).view(np.uint8) for each in zip((a, b, c), layouts, dtypes, strict=False)]
    args.append(out.view(np.uint8))
    launch(product(shape, kind, total, layouts, **more), "k", 1, 32, args)
    found = out.reshape(c.shape if layouts[3] == "row" else c.T.shape)
    return found if layouts[3] == "row" else found.T, expected


@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
def test_products(form):
    for layouts in ORDERS:
        found, expected = executed(*form, layouts)
        assert (found == expected).all(), layouts


@pytest.mark.sm90
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(map(str, form)))
def test_products_on_a_gpu(form):
    from benchmarks.driver import run_on_gpu

    for layouts in ORDERS:
        found, expected = executed(*form, layouts, launch=run_on_gpu)
        assert (found == expected).all(), layouts


def test_threads_hold_what_ptxas_gives_them():
    """The addresses that ptxas 13.5's code for sm_90a loads for A, B and C, by lane."""
    text = product((8, 32, 16), "f16", "f32", ("row", "col", "row", "row"))
    lane, i = np.arange(32)[:, None], np.arange(8)[None]
    b = np.arange(512, dtype=np.float16)  # by columns: 16 of each
    c = np.arange(256, dtype=np.float32)
    kernel = text[: text.index(" wmma.mma")] + " mad.wide.u32 %rd3, %r0, 32, %rd3;\n"
    out = np.zeros((32, 8), np.uint32)
    a = np.arange(128, dtype=np.float16)
    for name, expected in (
        ("a", a.view(np.uint32)[lane // 4 * 8 + lane % 4 + i % 2 * 4]),
        (
            "b",
            b.view(np.uint32)[
                (lane // 4 + i % 2 * 8 + i // 4 * 16) * 8 + lane % 4 + i // 2 % 2 * 4
            ],
        ),
        ("c", c.view(np.uint32)[(lane % 4 * 2 + i % 2) * 32 + lane // 4 + i // 2 * 8]),
    ):
        args = [each.view(np.uint8) for each in (a, b, c, out)]
        store = "\n".join(f" st.global.b32 [%rd3+{4 * i}], %{name}{i};" for i in range(8))
        run_ptx(f"{kernel}{store}\n ret;\n}}", grid=1, block=32, args=args)
        assert (out == expected).all(), name


def test_what_is_wrong_with_a_matrix_in_memory():
    form = ((16, 16, 16), "f16", "f32", ("row",) * 4)
    with pytest.raises(MemoryFault, match=r"stride of 17 elements.*multiples of 16 bytes"):
        executed(*form, stride=17)
    with pytest.raises(ConvergenceFault, match="different values for the address"):
        executed(*form, more="add.u32 %r2, %r2, %r0;")
    with pytest.raises(MemoryFault, match="multiples of 16 bytes"):
        executed(*form, more="add.u32 %r2, %r2, 8;")
    with pytest.raises(UninitializedRead, match="nothing wrote it"):
        executed(*form, more="add.u32 %r2, %r2, 32;")
    with pytest.raises(ConvergenceFault, match="32 threads of a warp"):
        executed(*form, more="setp.eq.u32 %p1, %r0, 3; @%p1 exit;")
