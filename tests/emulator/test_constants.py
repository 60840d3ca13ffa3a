"""Numbers from outside: constants in PTX, beside what ptxas takes; arguments of `run_ptx`."""

from __future__ import annotations

import math
import struct
import subprocess
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import LaunchError, UnsupportedInstruction

STORES = {
    "b16": ("b16", "%h1"), "u16": ("b16", "%h1"), "s16": ("b16", "%h1"),
    "b32": ("b32", "%r1"), "u32": ("b32", "%r1"), "s32": ("b32", "%r1"),
    "b64": ("b64", "%d1"), "u64": ("b64", "%d1"), "s64": ("b64", "%d1"),
    "f32": ("f32", "%f1"), "f64": ("f64", "%e1"),
}  # fmt: skip


def kernel(body, before="", parameters=".param .u64 p"):
    return f"""
.version 8.7
.target sm_90a
.address_size 64
{before}
.visible .entry k({parameters})
{{
 .reg .b16 %h<4>; .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<4>; .reg .f64 %e<4>;
 .reg .b64 %rd<4>;
 ld.param.u64 %rd1, [p];
{body}
 ret;
}}
"""


def moved(kind, constant):
    width, register = STORES[kind]
    return kernel(f"mov.{kind} {register}, {constant}; st.global.{width} [%rd1], {register};")


def assembles(text, tmp_path):
    """Whether Triton's ptxas takes it."""
    knobs = pytest.importorskip("triton").knobs
    path = tmp_path / "k.ptx"
    path.write_text(text)
    command = [knobs.nvidia.ptxas.path, "-arch=sm_90a", str(path), "-o", str(tmp_path / "k.cubin")]
    return subprocess.run(command, capture_output=True).returncode == 0


def executed(text, number=1):
    out = np.zeros(8 * number, np.uint8)
    run_ptx(text, grid=1, block=1, args=[out])
    return out


LEGAL = [
    ("u32", "7", 7), ("u32", "0xFFFFFFFF", 0xFFFFFFFF), ("s32", "-2147483648", 1 << 31),
    ("b32", "-1", 0xFFFFFFFF), ("u32", "0xFFFFFFFFFFFFFFFE", 0xFFFFFFFE), ("u16", "-1", 0xFFFF),
    ("s16", "0x8000", 0x8000), ("u64", "18446744073709551615", (1 << 64) - 1),
    ("s64", "-9223372036854775808", 1 << 63), ("b32", "0f3F800000", 0x3F800000),
    ("b64", "0d3FF0000000000000", 0x3FF << 52), ("f32", "0f3F800000", 0x3F800000),
    ("f32", "0d3FF0000000000000", 0x3F800000), ("f64", "0f3F800000", 0x3FF << 52),
    ("f32", "1.5", 0x3FC00000), ("f32", "0f7F800000", 0x7F800000), ("u32", "0b101", 5),
]  # fmt: skip
OF_ANOTHER_KIND = [
    ("f32", "1"), ("f32", "0x3F800000"), ("f64", "1"), ("u32", "1.5"), ("b32", "1.5"),
    ("s32", "0f3F800000"), ("b16", "0f3F800000"), ("b64", "0f3F800000"),
    ("b32", "0d3FF0000000000000"), ("f32", "0f3F8000000"), ("f32", "0f3F80000"),
    ("f64", "0d3F800000000000000"), ("f32", "1.0e400"), ("u32", "99999999999999999999999"),
]  # fmt: skip
CUT = [
    ("u32", "0x1FFFFFFFF"), ("b32", "4294967296"), ("s32", "-2147483649"), ("u16", "65536"),
    ("s16", "-32769"), ("u64", "18446744073709551616"), ("s64", "-9223372036854775809"),
    ("f32", "1.0e39"), ("f32", "0d47EFFFFFFFFFFFFF"), ("u32", "0xFFFFFFFF7FFFFFFF"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "constant", "bits"), LEGAL)
def test_legal_constants(kind, constant, bits, tmp_path):
    text = moved(kind, constant)
    assert assembles(text, tmp_path)
    assert int.from_bytes(executed(text).tobytes(), "little") == bits


@pytest.mark.parametrize(("kind", "constant"), OF_ANOTHER_KIND)
def test_what_ptxas_refuses(kind, constant, tmp_path):
    text = moved(kind, constant)
    assert not assembles(text, tmp_path)
    with pytest.raises(UnsupportedInstruction, match=r"constant|operand"):
        executed(text)


@pytest.mark.parametrize(("kind", "constant"), CUT)
def test_what_ptxas_cuts(kind, constant, tmp_path):
    text = moved(kind, constant)
    assert assembles(text, tmp_path)
    with pytest.raises(UnsupportedInstruction, match=r"more than|greater than"):
        executed(text)


@pytest.mark.parametrize("offset", ["0x10000000000000000", "-9223372036854775809"])
def test_offsets_of_addresses(offset):
    with pytest.raises(UnsupportedInstruction, match="more than 64 bits"):
        executed(kernel(f"ld.global.u32 %r1, [%rd1+{offset}];"))
    shared = "mov.u32 %r2, 64; ld.shared.u32 %r1, [%r2+4294967296];"
    with pytest.raises(UnsupportedInstruction, match="more than 32 bits"):
        executed(kernel(shared))


@pytest.mark.parametrize(
    ("variable", "rule"),
    [
        (".u8 v = 256", "more than 8 bits"), (".u32 v = 0x1FFFFFFFF", "more than 32 bits"),
        (".f32 v = 1", "is an integer"), (".u32 v = 1.5", "is a float"),
        (".u32 v = 0f3F800000", "is a float"), (".u64 v = 0x1FFFFFFFFFFFFFFFF", "than 64 bits"),
        (".u32 v = w", "neither a number"),
    ],
)  # fmt: skip
def test_initial_values(variable, rule):
    with pytest.raises(LaunchError, match=rule):
        executed(kernel("", f".global {variable};"))


def test_initial_values_are_read():
    body = "ld.global.b64 %d1, [v]; st.global.b64 [%rd1], %d1;"
    found = executed(kernel(body, ".global .align 8 .f32 v[2] = {1.5, 0fBF800000};"))
    assert found.view(np.float32).tolist() == [1.5, -1.0]


# ------------------------------------------------------------------------ arguments

INTEGERS = [f"{kind}{bits}" for kind in "usb" for bits in (8, 16, 32, 64)]
FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def passed(kind, value):
    """The bytes that a parameter has in the kernel."""
    size = int(kind[1:]) // 8
    register = {1: "%h1", 2: "%h1", 4: "%r1", 8: "%d1"}[size]
    body = f"ld.param.b{8 * size} {register}, [x]; st.global.b{8 * size} [%rd1], {register};"
    out = np.zeros(8, np.uint8)
    text = kernel(body, parameters=f".param .u64 p, .param .{kind} x")
    run_ptx(text, grid=1, block=1, args=[out, value])
    return out.tobytes()[:size]


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize(
    "value",
    [64.5, 64.0, math.inf, 1j, Decimal(1), Fraction(1, 2), "1", [1], {}, 10**400, -(10**400),
     np.complex64(1), np.datetime64("2020"), np.str_("1")],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_is_no_integer(kind, value):
    with pytest.raises(LaunchError, match=rf"argument x.*\.{kind}"):
        passed(kind, value)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    "value",
    [True, np.True_, None, 1j, Decimal(1), Fraction(1, 2), "1", [1.0], 10**400, np.complex64(1),
     np.zeros(2)],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_is_no_float(kind, value):
    with pytest.raises(LaunchError, match=rf"argument x.*\.{kind}"):
        passed(kind, value)


@given(st.sampled_from(INTEGERS), st.integers(-(1 << 65), 1 << 65))
def test_integers_fit_or_are_refused(kind, value):
    bits, signed = int(kind[1:]), kind.startswith("s")
    if -(1 << bits - 1) <= value < 1 << bits - signed:
        assert passed(kind, value) == (value % (1 << bits)).to_bytes(bits // 8, "little")
    else:
        with pytest.raises(LaunchError, match=r"must be in \["):
            passed(kind, value)


@given(st.sampled_from(sorted(FLOATS)), st.floats(allow_nan=False))
def test_floats_are_rounded_or_refused(kind, value):
    with np.errstate(over="ignore"):
        rounded = FLOATS[kind](value)
    if np.isinf(rounded) and not math.isinf(value):
        with pytest.raises(LaunchError, match="within its range"):
            passed(kind, value)
    else:
        assert passed(kind, value) == rounded.tobytes()


def test_bits_take_floats_of_their_width():
    assert passed("b32", np.float32(1.5)) == struct.pack("<f", 1.5)
    assert passed("b64", np.float64(1.5)) == struct.pack("<d", 1.5)
    assert passed("b16", ml_dtypes.bfloat16(1.5)) == bytes.fromhex("c03f")
    for kind, value in (("b32", 1.5), ("b64", np.float32(1)), ("b32", ml_dtypes.bfloat16(1))):
        with pytest.raises(LaunchError, match=f"a float of numpy with {kind[1:]} bits"):
            passed(kind, value)


def test_null_pointers():
    assert passed("u64", None) == bytes(8)
    for kind in ("u32", "f64"):
        with pytest.raises(LaunchError, match="only a pointer can be null"):
            passed(kind, None)


def test_vectors_of_registers(tmp_path):
    """Declared again in a block, named by place and by colour, and moved, loaded and stored whole;
    ptxas takes the same text."""
    text = kernel(
        """
 .reg .v4 .b32 abcd, more;
 .reg .v2 .f32 pair;
 mov.b32 abcd.x, 1; mov.b32 abcd.y, 2; mov.b32 abcd.z, 3; mov.b32 abcd.w, 4;
 { .reg .v2 .b32 abcd; mov.b32 abcd.x, 50; mov.b32 abcd.g, 60; st.global.v2.b32 [%rd1], abcd; }
 st.shared.v4.b32 [seen], abcd;
 ld.shared.v4.b32 more, [seen];
 add.u32 %r1, more.r, more.a;
 st.global.b32 [%rd1+8], %r1;
 mov.b32 pair.x, more.g; mov.b32 pair.y, more.b;
 mov.b64 %d1, pair;
 st.global.b64 [%rd1+16], %d1;
 mov.u32 %r2, seen; mov.u32 %r3, after; sub.u32 %r1, %r3, %r2;
 st.global.b32 [%rd1+12], %r1;
""",
        before=".shared .v4 .b32 seen; .shared .b32 after;",
    )
    assert assembles(text, tmp_path)
    out = np.zeros(6, np.uint32)
    run_ptx(text, grid=1, block=1, args=[out])
    assert out.tolist() == [50, 60, 1 + 4, 16, 2, 3]
