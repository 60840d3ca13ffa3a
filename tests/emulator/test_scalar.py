"""Scalar instructions of the emulator, against references that share no code with it.

Integers are checked with Python's, floating point with exact fractions, the small formats with
`ml_dtypes` and by search among all their numbers, and warps with plain loops over lanes.
"""

from __future__ import annotations

import itertools
import math
import struct
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from silicon.scalar_cases import kernel, operand, scalar_cases, width
from sites import DATA

from triton_ext.emulator import EmulationError, UnsupportedInstruction, run_ptx
from triton_ext.emulator.errors import ConvergenceFault, MemoryFault, SynchronizationFault
from triton_ext.emulator.instructions import decode
from triton_ext.ptx.parse import parse_ptx

LANES = 64
few = settings(max_examples=8)


def header(arch="sm_100a"):
    return f".version 8.8\n.target {arch}\n.address_size 64\n"


def run_body(body, inputs, outputs, *, arch="sm_100a", declared=""):
    """Run a body of `silicon.scalar_cases.kernel`; the outputs."""
    inputs = [np.resize(each, 256) for each in inputs]
    case = kernel("k", body, inputs, outputs, declared=declared)
    args = case.fresh()
    run_ptx(header(arch) + case.entry, grid=case.grid, block=case.block, args=args)
    return args[len(inputs) :]


def execute(opcode, to, sources, *, arch="sm_100a"):
    """The results of one instruction, as unsigned codes, for as many lanes as the sources have."""
    number = len(sources[0])
    out = np.zeros(256, f"u{width(to)}")
    names = ", ".join(f"{{i{i}}}" for i in range(len(sources)))
    (result,) = run_body(f"{opcode} {{o0}}, {names};", sources, [out], arch=arch)
    return result[:number]


# -------------------------------------------------------------------------------- integers


def signed(value, bits):
    return value - (1 << bits) if value >> bits - 1 else value


def truncated(a, b):
    return -(-a // b) if (a < 0) != (b < 0) and a % b else a // b


def reference(opcode, bits, is_signed):
    """The function of Python integers of the type's range."""

    def divide(a, b):
        return -1 if b == 0 else truncated(a, b)

    return {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul.lo": lambda a, b: a * b,
        "mul.hi": lambda a, b: a * b >> bits,
        "min": min,
        "max": max,
        "div": divide,
        "rem": lambda a, b: -1 if b == 0 else a - b * truncated(a, b),
        "mad.lo": lambda a, b, c: a * b + c,
        "mad.hi": lambda a, b, c: (a * b >> bits) + c,
        "sad": lambda a, b, c: c + abs(a - b),
        "abs": abs,
        "neg": lambda a: -a,
    }[opcode]


def codes(bits):
    corners = [0, 1, (1 << bits) - 1, 1 << bits - 1, (1 << bits - 1) - 1]
    return hnp.arrays(
        f"u{bits // 8}",
        LANES,
        elements=st.one_of(st.sampled_from(corners), st.integers(0, (1 << bits) - 1)),
        fill=st.nothing(),
    )


@pytest.mark.parametrize("type_name", ["u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize(
    "opcode", ["add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem", "mad.lo", "mad.hi",
               "sad", "abs", "neg"],
)  # fmt: skip
@given(data=st.data())
@settings(max_examples=3)
def test_integer_arithmetic(opcode, type_name, data):
    bits, is_signed = int(type_name[1:]), type_name[0] == "s"
    count = {"mad.lo": 3, "mad.hi": 3, "sad": 3, "abs": 1, "neg": 1}.get(opcode, 2)
    sources = [data.draw(codes(bits)) for _ in range(count)]
    if opcode in ("abs", "neg") and not is_signed:  # PTX has none of unsigned types
        with pytest.raises(UnsupportedInstruction):
            execute(f"{opcode}.{type_name}", type_name, sources)
        return
    function = reference(opcode, bits, is_signed)
    found = execute(f"{opcode}.{type_name}", type_name, sources)
    for values, have in zip(zip(*sources, strict=True), found.tolist(), strict=True):
        numbers = [signed(int(v), bits) if is_signed else int(v) for v in values]
        assert have == function(*numbers) & (1 << bits) - 1, numbers


@given(codes(32), codes(32), codes(32))
@few
def test_wide_and_saturating_integers(a, b, c):
    """mul.wide, mad.wide, add.sat, sub.sat, mad.hi.sat, mul24."""
    wide = c.astype(np.uint64) << np.uint64(31)
    for t, sign in (("u32", False), ("s32", True)):
        product = execute(f"mul.wide.{t}", "u64", [a, b])
        total = execute(f"mad.wide.{t}", "u64", [a, b, wide])
        low24 = execute(f"mul24.lo.{t}", t, [a, b])
        for i in range(LANES):
            x, y = (signed(int(v[i]), 32) if sign else int(v[i]) for v in (a, b))
            assert int(product[i]) == x * y % 2**64
            assert int(total[i]) == (x * y + int(wide[i])) % 2**64
            x, y = (v % 2**24 for v in (x, y))
            if sign:
                x, y = signed(x, 24), signed(y, 24)
            assert int(low24[i]) == x * y % 2**32

    def clamp(value):
        return max(-(2**31), min(2**31 - 1, value)) % 2**32

    added, taken = (execute(f"{op}.sat.s32", "s32", [a, b]) for op in ("add", "sub"))
    high = execute("mad.hi.sat.s32", "s32", [a, b, c])
    for i in range(LANES):
        x, y, z = (signed(int(v[i]), 32) for v in (a, b, c))
        assert int(added[i]) == clamp(x + y)
        assert int(taken[i]) == clamp(x - y)
        assert int(high[i]) == clamp((x * y >> 32) + z)


@given(*[codes(32)] * 6)
@settings(max_examples=4)
def test_carries_make_wide_arithmetic(a0, a1, a2, b0, b1, b2):
    """96-bit sums, differences and a 64-bit product out of 32-bit instructions with carry."""
    zero = [np.zeros(256, np.uint32) for _ in range(3)]
    for opcode, sign in (("add", 1), ("sub", -1)):
        body = (
            f"{opcode}.cc.u32 {{o0}}, {{i0}}, {{i3}}; {opcode}c.cc.u32 {{o1}}, {{i1}}, {{i4}};"
            f" {opcode}c.u32 {{o2}}, {{i2}}, {{i5}};"
        )
        found = run_body(body, [a0, a1, a2, b0, b1, b2], zero)
        for i in range(LANES):
            a = int(a0[i]) | int(a1[i]) << 32 | int(a2[i]) << 64
            b = int(b0[i]) | int(b1[i]) << 32 | int(b2[i]) << 64
            have = sum(int(part[i]) << 32 * place for place, part in enumerate(found))
            assert have == (a + sign * b) % 2**96
    body = (
        "mul.lo.u32 {o0}, {i0}, {i2}; mul.hi.u32 {o1}, {i0}, {i2};"
        " mad.lo.cc.u32 {o1}, {i1}, {i2}, {o1}; madc.hi.u32 {o2}, {i1}, {i2}, 0;"
    )
    found = run_body(body, [a0, a1, b0], zero)
    for i in range(LANES):
        a = int(a0[i]) | int(a1[i]) << 32
        have = sum(int(part[i]) << 32 * place for place, part in enumerate(found))
        assert have == a * int(b0[i])


@given(codes(32), codes(32))
@few
def test_packed_integers(a, b):
    """add, min, max of u16x2 and s16x2; .relu."""
    for t, sign in (("u16x2", False), ("s16x2", True)):
        for opcode, function in (("add", lambda x, y: x + y), ("min", min), ("max", max)):
            found = execute(f"{opcode}.{t}", t, [a, b])
            for i, part in itertools.product(range(LANES), (0, 16)):
                x, y = (int(v[i]) >> part & 0xFFFF for v in (a, b))
                if sign:
                    x, y = signed(x, 16), signed(y, 16)
                assert int(found[i]) >> part & 0xFFFF == function(x, y) & 0xFFFF
    found = execute("max.relu.s32", "s32", [a, b])
    assert all(
        int(found[i]) == max(signed(int(a[i]), 32), signed(int(b[i]), 32), 0) for i in range(LANES)
    )


@given(codes(32), codes(32), codes(32))
@few
def test_differences_of_bytes_and_halves(a, b, c):
    for number, kind in ((4, "4B"), (2, "2H")):
        name = f"vabsdiff{number}.u32.u32.u32"
        each, total = (execute(name + add, "u32", [a, b, c]) for add in ("", ".add"))
        for i in range(LANES):
            x, y = (struct.unpack("<" + kind, struct.pack("<I", int(v[i]))) for v in (a, b))
            apart = [abs(p - q) for p, q in zip(x, y, strict=True)]
            assert int(each[i]) == struct.unpack("<I", struct.pack("<" + kind, *apart))[0]
            assert int(total[i]) == (sum(apart) + int(c[i])) % 2**32


@given(codes(32), codes(32), codes(32))
@few
def test_dot_products(a, b, c):
    for left, right in itertools.product("us", "us"):
        to = "u32" if left == right == "u" else "s32"
        four = execute(f"dp4a.{left}32.{right}32", to, [a, b, c])
        low, high = (
            execute(f"dp2a.{half}.{left}32.{right}32", to, [a, b, c]) for half in ("lo", "hi")
        )
        for i in range(LANES):
            raw_a, raw_b = (struct.pack("<I", int(v[i])) for v in (a, b))
            kind_a, kind_b = ("b" if kind == "s" else "B" for kind in (left, right))
            bytes_a, bytes_b = (
                struct.unpack(f"4{k}", raw) for k, raw in ((kind_a, raw_a), (kind_b, raw_b))
            )
            halves = struct.unpack("<2" + ("h" if left == "s" else "H"), raw_a)
            start = int(c[i])
            dot = sum(x * y for x, y in zip(bytes_a, bytes_b, strict=True))
            assert int(four[i]) == (start + dot) % 2**32
            assert int(low[i]) == (start + halves[0] * bytes_b[0] + halves[1] * bytes_b[1]) % 2**32
            assert int(high[i]) == (start + halves[0] * bytes_b[2] + halves[1] * bytes_b[3]) % 2**32


# ------------------------------------------------------------------------------------ bits


@pytest.mark.parametrize("bits", [16, 32, 64])
@given(data=st.data())
@few
def test_shifts(bits, data):
    """Counts beyond the width leave nothing, or the sign."""
    a = data.draw(codes(bits))
    count = data.draw(hnp.arrays(np.uint32, LANES, elements=st.one_of(
        st.integers(0, 70), st.sampled_from([2**31, 2**32 - 1])), fill=st.nothing()))  # fmt: skip
    left = execute(f"shl.b{bits}", f"b{bits}", [a, count])
    logical = execute(f"shr.u{bits}", f"b{bits}", [a, count])
    arithmetic = execute(f"shr.s{bits}", f"b{bits}", [a, count])
    for i in range(LANES):
        value, by = int(a[i]), min(int(count[i]), bits)
        assert int(left[i]) == (value << by) % 2**bits
        assert int(logical[i]) == value >> by
        assert int(arithmetic[i]) == (signed(value, bits) >> by) % 2**bits


@given(codes(32), codes(32), codes(32))
@few
def test_bit_counting_and_funnel_shifts(a, b, c):
    a[:4] = [0, 1, 2**31, 2**32 - 1]
    wide = a.astype(np.uint64) << np.uint64(32) | b
    popc, clz, bfind, brev = (
        execute(op, "b32", [a]) for op in ("popc.b32", "clz.b32", "bfind.s32", "brev.b32")
    )
    popc64, clz64 = (execute(op, "b32", [wide]) for op in ("popc.b64", "clz.b64"))
    amount = execute("bfind.shiftamt.u32", "b32", [a])
    shifts = {
        (side, mode): execute(f"shf.{side}.{mode}.b32", "b32", [a, b, c % np.uint32(70)])
        for side in "lr"
        for mode in ("clamp", "wrap")
    }
    for i in range(LANES):
        x = int(a[i])
        assert int(popc[i]) == bin(x).count("1")
        assert int(clz[i]) == 32 - x.bit_length()
        assert int(brev[i]) == int(f"{x:032b}"[::-1], 2)
        assert int(popc64[i]) == bin(int(wide[i])).count("1")
        assert int(clz64[i]) == 64 - int(wide[i]).bit_length()
        beyond = x ^ (2**32 - 1) if x >> 31 else x
        assert int(bfind[i]) == (beyond.bit_length() - 1) % 2**32
        assert int(amount[i]) == (32 - x.bit_length() if x else 2**32 - 1)
        both = int(b[i]) << 32 | x
        for (side, mode), found in shifts.items():
            by = int(c[i]) % 70
            by = min(by, 32) if mode == "clamp" else by % 32
            want = both << by >> 32 if side == "l" else both >> by
            assert int(found[i]) == want % 2**32


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data())
@few
def test_bit_fields(bits, data):
    a, b = data.draw(codes(bits)), data.draw(codes(bits))
    position, length = (
        data.draw(hnp.arrays(np.uint32, LANES, elements=st.integers(0, 80), fill=st.nothing()))
        for _ in range(2)
    )
    plain = execute(f"bfe.u{bits}", f"b{bits}", [a, position, length])
    signs = execute(f"bfe.s{bits}", f"b{bits}", [a, position, length])
    inserted = execute(f"bfi.b{bits}", f"b{bits}", [a, b, position, length])
    for i in range(LANES):
        x, y, at, size = int(a[i]), int(b[i]), int(position[i]), int(length[i])
        field = [x >> at + k & 1 if at + k < bits else 0 for k in range(min(size, bits))]
        assert int(plain[i]) == sum(bit << k for k, bit in enumerate(field))
        sign = 0 if size == 0 else x >> min(at + size - 1, bits - 1) & 1
        want = [
            (x >> at + k & 1 if at + k < bits else sign) if k < size else sign for k in range(bits)
        ]
        assert int(signs[i]) == sum(bit << k for k, bit in enumerate(want))
        into = [x >> k - at & 1 if at <= k < at + size else y >> k & 1 for k in range(bits)]
        assert int(inserted[i]) == sum(bit << k for k, bit in enumerate(into))


@given(codes(32), codes(32), codes(32), st.integers(0, 255))
@settings(max_examples=30)
def test_lop3_is_its_table(a, b, c, table):
    body = f"lop3.b32 {{o0}}, {{i0}}, {{i1}}, {{i2}}, {table};"
    (found,) = run_body(body, [a, b, c], [np.zeros(256, np.uint32)])
    for i in range(0, LANES, 8):
        want = 0
        for k in range(32):
            row = (int(a[i]) >> k & 1) << 2 | (int(b[i]) >> k & 1) << 1 | int(c[i]) >> k & 1
            want |= (table >> row & 1) << k
        assert int(found[i]) == want


@pytest.mark.parametrize("mode", ["", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
@given(codes(32), codes(32), codes(32))
@few
def test_prmt(mode, a, b, c):
    """The rows of the tables in PTX ISA, "prmt", for the four low selector values of a mode."""
    tables = {
        "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
        "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
        "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
        "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
        "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
        "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
    }
    found = execute("prmt.b32" + (f".{mode}" if mode else ""), "b32", [a, b, c])
    for i in range(LANES):
        source = struct.pack("<II", int(a[i]), int(b[i]))
        selector = tables[mode][int(c[i]) % 4] if mode else int(c[i])
        want = 0
        for place in range(4):
            nibble = selector >> 4 * place & 15
            byte = source[nibble & 7]
            if nibble & 8:
                byte = 255 if byte & 128 else 0
            want |= byte << 8 * place
        assert int(found[i]) == want


# -------------------------------------------------------------------------- floating point

FORMATS = {  # stored mantissa bits, exponent bits
    "f16": (10, 5),
    "bf16": (7, 8),
    "f32": (23, 8),
    "f64": (52, 11),
    "e4m3": (3, 4),
    "e5m2": (2, 5),
    "e2m1": (1, 2),
    "e2m3": (3, 2),
    "e3m2": (2, 3),
}
CANONICAL = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def value_of(code, kind):
    """The number that a code of an IEEE-like format is: a Fraction, or a float inf or nan."""
    mantissa, exponent = FORMATS[kind]
    sign = -1 if code >> mantissa + exponent & 1 else 1
    field = code >> mantissa & (1 << exponent) - 1
    low = code & (1 << mantissa) - 1
    if field == (1 << exponent) - 1:
        return float("nan") if low else sign * float("inf")
    bias = (1 << exponent - 1) - 1
    if field == 0:
        return sign * Fraction(low, 1 << mantissa) * Fraction(2) ** (1 - bias)
    return sign * (1 + Fraction(low, 1 << mantissa)) * Fraction(2) ** (field - bias)


def nearest_codes(exact, kind):
    """The code of the largest magnitude not above |exact|, and the next; the latter may be inf."""
    mantissa, exponent = FORMATS[kind]
    low, high = 0, ((1 << exponent) - 1) << mantissa
    magnitude = abs(exact)
    while high - low > 1:
        middle = (low + high) // 2
        if value_of(middle, kind) <= magnitude:
            low = middle
        else:
            high = middle
    return low, high


def rounded(exact, kind, mode, zero_sign=0):
    """The code of an exact number in a format, found by bisection among its codes."""
    mantissa, exponent = FORMATS[kind]
    top = 1 << mantissa + exponent
    if exact == 0:
        return top if zero_sign else 0
    negative = exact < 0
    low, high = nearest_codes(exact, kind)
    below = value_of(low, kind)
    infinity = ((1 << exponent) - 1) << mantissa
    # Beyond the largest number, the next one is where the format would go on.
    above = value_of(high, kind) if high < infinity else 2 * below - value_of(low - 1, kind)
    magnitude = abs(exact)
    if magnitude == below or mode == "rz":
        code = low
    elif mode in ("rm", "rp"):
        code = high if negative == (mode == "rm") else low
    else:
        middle = (below + above) / 2
        up = magnitude > middle or (magnitude == middle and low & 1)
        code = high if up else low
    return code | (top if negative else 0)


def special(values):
    return any(isinstance(value, float) for value in values)


def exact_result(opcode, values):
    a, b, c = (*values, None, None)[:3]
    return {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "fma": lambda: a * b + c,
        "div": lambda: a / b,
    }[opcode]()


def zero_is_negative(opcode, values, raw, kind, mode):
    """The sign of an exact zero (IEEE 754, 6.3)."""
    mantissa, exponent = FORMATS[kind]
    signs = [code >> mantissa + exponent & 1 for code in raw]
    if opcode == "sub":
        signs[1] ^= 1
    if opcode in ("mul", "div"):
        return signs[0] ^ signs[1]
    if opcode == "fma":
        signs = [signs[0] ^ signs[1], signs[2]]
    return signs[0] if signs[0] == signs[1] else mode == "rm"


ARITHMETIC = [
    (opcode, kind, mode)
    for opcode, kind, mode in itertools.product(
        ("add", "sub", "mul", "fma", "div"), FORMATS, ("rn", "rz", "rm", "rp")
    )
    if kind in ("f32", "f64") or (kind in ("f16", "bf16") and mode == "rn" and opcode != "div")
]


@pytest.mark.parametrize(("opcode", "kind", "mode"), ARITHMETIC)
def test_arithmetic_is_rounded_once(opcode, kind, mode):
    count = 3 if opcode == "fma" else 2
    rng = np.random.default_rng(len(opcode) * 7 + len(kind) + len(mode))
    sources = [operand(kind, rng) for _ in range(count)]
    same = rng.integers(0, 256, 64)  # cancellation
    sources[-1][same] = sources[0][same] ^ sources[0].dtype.type(1 << 8 * width(kind) - 1)
    if opcode == "fma":
        sources[1][same[:32]] = {"f16": 0x3C01, "bf16": 0x3F81, "f32": 0x3F800001,
                                 "f64": 0x3FF0000000000001}[kind]  # fmt: skip
    found = execute(f"{opcode}.{mode}.{kind}", kind, sources)
    checked = 0
    for raw in zip(*(source.tolist() for source in sources), found.tolist(), strict=True):
        *raw, have = raw
        values = [value_of(code, kind) for code in raw]
        if special(values) or (opcode == "div" and values[1] == 0):
            continue
        result = exact_result(opcode, values)
        sign = zero_is_negative(opcode, values, raw, kind, mode)
        assert have == rounded(result, kind, mode, sign), [hex(code) for code in raw]
        checked += 1
    assert checked > 100


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_special_values(kind):
    """Infinities and NaN, as IEEE 754 has them; NaN is the canonical one."""
    mantissa, exponent = FORMATS[kind]
    infinity = ((1 << exponent) - 1) << mantissa
    one, top = ((1 << exponent - 1) - 1) << mantissa, 1 << mantissa + exponent
    nan, zero = infinity | 1, 0
    dtype = f"u{width(kind)}"
    pairs = list(itertools.product((zero, one, infinity, nan, top, one | top, infinity | top),
                                   repeat=2))  # fmt: skip
    a, b = (np.array(column, dtype) for column in zip(*pairs, strict=True))

    def number(code):
        value = value_of(code, kind)
        if isinstance(value, Fraction):
            return math.copysign(float(value), -1 if code & top else 1)
        return value

    for opcode, function in (
        ("add", lambda x, y: x + y),
        ("sub", lambda x, y: x - y),
        ("mul", lambda x, y: x * y),
    ):
        found = execute(f"{opcode}.rn.{kind}", kind, [a, b])
        for (x, y), have in zip(pairs, found.tolist(), strict=True):
            want = function(number(x), number(y))
            if math.isnan(want):
                assert math.isnan(value_of(have, kind))
                assert have == CANONICAL.get(kind, have)
            else:
                got = number(have)
                assert (got, math.copysign(1, got)) == (want, math.copysign(1, want))


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_square_root(kind, mode):
    rng = np.random.default_rng(5)
    top = 1 << 8 * width(kind) - 1
    a = operand(kind, rng) & np.dtype(f"u{width(kind)}").type(top - 1)
    found = execute(f"sqrt.{mode}.{kind}", kind, [a])
    for code, have in zip(a.tolist(), found.tolist(), strict=True):
        value = value_of(code, kind)
        if isinstance(value, float) or value == 0:
            continue
        # The root lies in [have, next) or around: compare squares, exactly.
        root = value_of(have, kind)
        below, above = value_of(have - 1, kind), value_of(have + 1, kind)
        if mode in ("rz", "rm"):
            assert root**2 <= value < above**2
        elif mode == "rp":
            assert below**2 < value <= root**2
        else:
            assert ((below + root) / 2) ** 2 <= value <= ((root + above) / 2) ** 2


def test_ftz_and_sat():
    """.ftz flushes operands and results with their sign; .sat clamps to [0, 1], NaN to 0."""
    a = np.array([0x00000001, 0x80000001, 0x00800000, 0x807FFFFF, 0x7FC00000, 0xC0000000,
                  0x40000000, 0x3F000000], np.uint32)  # fmt: skip
    one, half = np.full(8, 0x3F800000, np.uint32), np.full(8, 0x3F000000, np.uint32)
    assert execute("mul.rn.ftz.f32", "f32", [a, one]).tolist() == [
        0, 0x80000000, 0x00800000, 0x80000000, 0x7FFFFFFF, 0xC0000000, 0x40000000, 0x3F000000,
    ]  # fmt: skip
    assert int(execute("mul.rn.ftz.f32", "f32", [a, half])[2]) == 0
    assert int(execute("mul.rn.f32", "f32", [a, half])[2]) == 0x00400000
    assert execute("mul.rn.sat.f32", "f32", [a, one]).tolist() == [
        1, 0, 0x00800000, 0, 0, 0, 0x3F800000, 0x3F000000,
    ]  # fmt: skip


@pytest.mark.parametrize("largest", [False, True])
def test_minimum_and_maximum(largest):
    """-0 < +0; NaN loses, or wins with .NaN; .xorsign.abs; three operands on Blackwell."""
    nan, plus, minus, one = 0x7FC00001, 0, 0x80000000, 0x3F800000
    values = [nan, plus, minus, one, 0xBF800000, 0x7F800000, 0xFF800000]
    pairs = list(itertools.product(values, repeat=2))
    a, b = (np.array(column, np.uint32) for column in zip(*pairs, strict=True))
    name = "max" if largest else "min"

    def key(code):
        return -(code & 0x7FFFFFFF) - 1 if code >> 31 else code

    def choose(x, y):
        return (max if largest else min)(x, y, key=key)

    plain, strict = (execute(f"{name}{m}.f32", "f32", [a, b]) for m in ("", ".NaN"))
    xorsign = execute(f"{name}.xorsign.abs.f32", "f32", [a, b])
    triple = execute(f"{name}.f32", "f32", [a, b, a])
    for i, (x, y) in enumerate(pairs):
        if x == nan or y == nan:
            assert int(strict[i]) == 0x7FFFFFFF
            other = y if x == nan else x
            assert int(plain[i]) == (0x7FFFFFFF if other == nan else other)
        else:
            assert int(plain[i]) == int(strict[i]) == choose(x, y) == int(triple[i])
            want = choose(x & 0x7FFFFFFF, y & 0x7FFFFFFF) | (x ^ y) & 0x80000000
            assert int(xorsign[i]) == want


def test_packed_and_mixed_arithmetic():
    """Each half is the scalar instruction's; f32x2 and mixed precision are Blackwell's."""
    rng = np.random.default_rng(3)
    for t, kind, size in (("f16x2", "f16", 16), ("bf16x2", "bf16", 16), ("f32x2", "f32", 32)):
        parts = [[operand(kind, rng) for _ in range(2)] for _ in range(3)]
        whole = [
            (low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(size)).astype(
                f"u{size // 4}"
            )
            for low, high in parts
        ]
        for opcode, count in (("add", 2), ("mul", 2), ("fma", 3)):
            out = np.zeros(256, f"u{size // 4}")
            names = ", ".join(f"{{i{i}}}" for i in range(count))
            (found,) = run_body(f"{opcode}.rn.{t} {{o0}}, {names};", whole[:count], [out])
            for half in range(2):
                want = execute(f"{opcode}.rn.{kind}", kind, [part[half] for part in parts[:count]])
                assert np.array_equal(found >> (size * half) & (1 << size) - 1, want)
    a, b, c = operand("f16", rng), operand("f16", rng), operand("f32", rng)
    wide = [execute("cvt.f32.f16", "f32", [each]) for each in (a, b)]
    assert np.array_equal(
        execute("add.rn.f32.f16", "f32", [a, c]), execute("add.rn.f32", "f32", [wide[0], c])
    )
    assert np.array_equal(
        execute("fma.rn.f32.f16", "f32", [a, b, c]), execute("fma.rn.f32", "f32", [*wide, c])
    )


def test_approximations_lie_within_the_documented_errors():
    """PTX ISA's bounds, against numpy in float64; exact results at the special values."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-6, 6, 200), [0.0, -0.0, np.inf, -np.inf, np.nan]])
    single = x.astype(np.float32)
    wide, raw = single.astype(np.float64), single.view(np.uint32)
    with np.errstate(all="ignore"):
        for opcode, function, relative, absolute in (
            ("ex2.approx.ftz", np.exp2, 2.0**-22, 0),
            ("lg2.approx.ftz", np.log2, 2.0**-22, 2.0**-22),
            ("rsqrt.approx.ftz", lambda v: 1 / np.sqrt(v), 2.0**-22.9, 0),
            ("rcp.approx.ftz", lambda v: 1 / v, 2.0**-23, 0),
            ("sin.approx.ftz", np.sin, 0, 2.0**-20.5),
            ("cos.approx.ftz", np.cos, 0, 2.0**-20.5),
            ("tanh.approx", np.tanh, 2.0**-10.9, 0),
        ):
            found = execute(f"{opcode}.f32", "f32", [raw]).view(np.float32).astype(np.float64)
            want = function(wide)
            close = np.abs(found - want) <= np.maximum(relative * np.abs(want), absolute)
            assert np.all(close | (found == want) | (np.isnan(found) & np.isnan(want))), opcode
    large = np.full(8, 2.0**127, np.float32).view(np.uint32)
    one = np.full(8, 1.0, np.float32).view(np.uint32)
    assert not execute("div.approx.f32", "f32", [one, large]).any()  # PTX ISA, "div"
    assert execute("div.full.f32", "f32", [one, large]).any()


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b and a == a and b == b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "equ": lambda a, b: not (a < b or a > b),
    "neu": lambda a, b: a != b,
    "ltu": lambda a, b: not a >= b,
    "leu": lambda a, b: not a > b,
    "gtu": lambda a, b: not a <= b,
    "geu": lambda a, b: not a < b,
    "num": lambda a, b: a == a and b == b,
    "nan": lambda a, b: a != a or b != b,
}


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("compare", COMPARISONS)
def test_float_comparisons(compare, kind):
    rng = np.random.default_rng(1)
    a, b = operand(kind, rng), operand(kind, rng)
    b[::3] = a[::3]
    body = f"setp.{compare}.{kind} %p1, {{i0}}, {{i1}}; selp.b32 {{o0}}, 1, 0, %p1;"
    (found,) = run_body(body, [a, b], [np.zeros(256, np.uint32)])
    for x, y, have in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
        assert bool(have) == COMPARISONS[compare](value_of(x, kind), value_of(y, kind))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_properties_of_floats(kind):
    """PTX ISA, "testp": zeros are normal; IEEE 754 says the rest."""
    dtype = np.dtype(f"f{width(kind)}")
    tiny, infinity = np.finfo(dtype).tiny, np.inf
    values = np.array([0, tiny, tiny / 2, tiny / 1024, 1, np.finfo(dtype).max, infinity, np.nan])
    values = np.resize([*values, *-values], 256).astype(dtype)
    small = np.abs(values) < tiny
    expected = {
        "finite": np.isfinite(values), "infinite": np.isinf(values), "number": ~np.isnan(values),
        "notanumber": np.isnan(values), "normal": np.isfinite(values) & (~small | (values == 0)),
        "subnormal": small & (values != 0),
    }  # fmt: skip
    for name, holds in expected.items():
        body = f"testp.{name}.{kind} %p1, {{i0}}; selp.b32 {{o0}}, 1, 0, %p1;"
        (found,) = run_body(body, [values.view(f"u{width(kind)}")], [np.zeros(256, np.uint32)])
        assert (found == holds).all(), name


@given(codes(32), codes(32))
@few
def test_comparisons_combine(a, b):
    """p = compare op c, q = !compare op c (PTX ISA, "setp"); c may be negated."""
    for join, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.not_equal)):
        body = (
            "setp.gt.u32 %p3, {i1}, 1000000;"
            f" setp.lt.{join}.s32 %p1|%p2, {{i0}}, {{i1}}, !%p3;"
            " selp.b32 {o0}, 1, 0, %p1; selp.b32 {o1}, 1, 0, %p2;"
        )
        p, q = run_body(body, [a, b], [np.zeros(256, np.uint32) for _ in range(2)])
        less, c = a.view(np.int32) < b.view(np.int32), ~(b > 1000000)
        assert np.array_equal(p[:LANES] != 0, function(less, c))
        assert np.array_equal(q[:LANES] != 0, function(~less, c))


# ----------------------------------------------------------------------------- conversions


@pytest.mark.parametrize(
    ("source", "to"),
    [("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32")],
)
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_narrowing_conversions(source, to, mode):
    rng = np.random.default_rng(2)
    a = operand(source, rng)
    mantissa = FORMATS[to][0]
    ties = np.ldexp(rng.integers(0, 1 << mantissa + 3, 128) * 1.0, rng.integers(-30, 8, 128))
    dtype = {"f32": np.float32, "f64": np.float64}[source]
    a[::2] = ties.astype(dtype).view(a.dtype)
    found = execute(f"cvt.{mode}.{to}.{source}", to, [a])
    for code, have in zip(a.tolist(), found.tolist(), strict=True):
        value = value_of(code, source)
        if isinstance(value, Fraction):
            assert have == rounded(value, to, mode, code >> 8 * width(source) - 1), hex(code)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_float_to_integer(source, to, mode):
    """Rounded, then clamped; NaN as PTX ISA, "cvt", says. (ptxas has no bf16 to 8 bits.)"""
    rng = np.random.default_rng(4)
    a = operand(source, rng)
    register = {"s8": "s32", "u8": "u32"}.get(to, to)
    found = execute(f"cvt.{mode}.{to}.{source}", register, [a])
    bits = int(to[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    function = {"rni": round, "rzi": int, "rmi": math.floor, "rpi": math.ceil}[mode]
    for code, have in zip(a.tolist(), found.tolist(), strict=True):
        value = value_of(code, source)
        if value != value:
            want = 1 << bits - 1 if source == "f64" or bits == 64 else 0
        elif isinstance(value, float):
            want = high if value > 0 else low
        else:
            want = max(low, min(high, function(value)))
        mask = (1 << 8 * width(register)) - 1
        assert have == (signed(want, bits) & mask if value != value and to[0] == "s" else
                        want & mask), (hex(code), value)  # fmt: skip


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("to", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("source", ["s16", "u32", "s64", "u64"])
def test_integer_to_float(source, to, mode):
    rng = np.random.default_rng(6)
    a = operand(source, rng) >> rng.integers(0, 8 * width(source), 256).astype(f"u{width(source)}")
    found = execute(f"cvt.{mode}.{to}.{source}", to, [a])
    bits = int(source[1:])
    for code, have in zip(a.tolist(), found.tolist(), strict=True):
        number = signed(code, bits) if source[0] == "s" else code
        assert have == rounded(Fraction(number), to, mode), number


def test_integer_widths():
    """Sign extension, truncation and saturation."""
    a = np.array([0x80, 0xFF, 0x7F, 0x12345678, 0xFFFFFF80, 0x80000000, 0x00008000], np.uint32)
    assert execute("cvt.s32.s8", "s32", [a]).tolist() == [
        0xFFFFFF80, 0xFFFFFFFF, 0x7F, 0x78, 0xFFFFFF80, 0, 0]  # fmt: skip
    assert execute("cvt.u64.u8", "u64", [a]).tolist() == [0x80, 0xFF, 0x7F, 0x78, 0x80, 0, 0]
    assert execute("cvt.sat.s8.s32", "s32", [a]).tolist() == [
        0x7F, 0x7F, 0x7F, 0x7F, 0xFFFFFF80, 0xFFFFFF80, 0x7F]  # fmt: skip
    assert execute("cvt.sat.u16.s32", "u16", [a]).tolist() == [
        0x80, 0xFF, 0x7F, 0xFFFF, 0, 0, 0x8000]  # fmt: skip
    assert execute("cvt.s64.s32", "s64", [a])[5] == 0xFFFFFFFF80000000
    b = np.array([1, -1, 300, -300, 70000, -70000, 5], np.int32).view(np.uint32)
    assert execute("cvt.pack.sat.s16.s32", "b32", [a[:7], b]).tolist()[4] == 0xFF807FFF
    assert execute("cvt.pack.sat.u8.s32.b32", "b32", [a, b, a]).tolist()[0] == 0x00808001


SMALL = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
}


def small_values(kind):
    """The finite values of all codes, by ml_dtypes."""
    bits = {"e4m3": 8, "e5m2": 8, "e2m1": 4}.get(kind, 6)
    values = np.arange(1 << bits, dtype=np.uint8).view(SMALL[kind]).astype(np.float64)
    return bits, values


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", SMALL)
def test_small_formats_are_nearest(kind, relu):
    """f32 pairs to 8, 6 and 4 bits: the nearest of all finite values, ties to the even code."""
    bits, values = small_values(kind)
    finite = np.flatnonzero(np.isfinite(values[: 1 << bits - 1]))
    positive = values[finite]
    rng = np.random.default_rng(8)
    middles = (positive[1:] + positive[:-1]) / 2
    numbers = np.concatenate([middles, positive, middles * (1 + 2.0**-20), [1e30, np.inf, 1e-30]])
    numbers = np.resize(np.concatenate([numbers, -numbers]), 2 * len(numbers))
    numbers = numbers[rng.permutation(len(numbers))[:256]].astype(np.float32)
    other = np.roll(numbers, 1)
    out = np.zeros(256, np.uint16)
    store = "cvt.rn.satfinite{relu}.{kind}x2.f32 {target}, {{i0}}, {{i1}};"
    if bits == 4:
        body = store.format(relu=relu, kind=kind, target="%c0") + " cvt.u16.u8 {o0}, %c0;"
    else:
        body = store.format(relu=relu, kind=kind, target="{o0}")
    inputs = [numbers.view(np.uint32), other.view(np.uint32)]
    (found,) = run_body(body, inputs, [out])
    shift = 4 if bits == 4 else 8
    mask = (1 << shift) - 1
    for i in range(len(numbers)):
        for value, code in ((numbers[i], found[i] >> shift), (other[i], found[i] & mask)):
            magnitude = min(abs(float(value)), positive[-1])
            distance = np.abs(positive - magnitude)
            best = np.flatnonzero(distance == distance.min())
            want = int(finite[best[0]] if len(best) == 1 else finite[best[best % 2 == 0][0]])
            if np.signbit(value):
                want = 0 if relu else want | 1 << bits - 1
            assert int(code) & mask == want, (float(value), hex(int(code)))


@pytest.mark.parametrize("kind", SMALL)
def test_small_formats_to_f16(kind):
    """Every code, as ml_dtypes reads it; NaN is the canonical one."""
    bits, values = small_values(kind)
    codes_ = np.arange(1 << bits, dtype=np.uint16)
    shift = 4 if bits == 4 else 8
    pairs = np.resize(codes_ | np.roll(codes_, 1) << shift, 256).astype(np.uint16)
    source = "%c0" if bits == 4 else "{i0}"
    narrow = "cvt.u8.u16 %c0, {i0};" if bits == 4 else ""
    body = f"{narrow} cvt.rn.f16x2.{kind}x2 {{o0}}, {source};"
    (found,) = run_body(body, [pairs], [np.zeros(256, np.uint32)])
    for i, code in enumerate(codes_.tolist()):
        have = int(found[i]) & 0xFFFF
        if np.isnan(values[code]):
            assert have == 0x7FFF
        else:
            assert have == int(np.float16(values[code]).view(np.uint16))
    assert int(found[1]) >> 16 == int(found[0]) & 0xFFFF


def test_scale_format():
    """ue8m0: powers of two, both ways, against ml_dtypes and by definition."""
    every = np.arange(256, dtype=np.uint16)
    (found,) = run_body("cvt.rn.bf16x2.ue8m0x2 {o0}, {i0};", [every], [np.zeros(256, np.uint32)])
    want = every.astype(np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    have = (found & 0xFFFF).astype(np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)
    assert np.array_equal(have, want, equal_nan=True)
    x = np.array([1.0, 1.5, 2.0, 3e-39, 2.0**-127, 0.0, 3.4e38, np.inf, -6.0], np.float32)
    zero = np.zeros(9, np.float32).view(np.uint32)
    down, up = (
        execute(f"cvt.{m}.satfinite.ue8m0x2.f32", "e4m3x2", [zero, x.view(np.uint32)]) & 0xFF
        for m in ("rz", "rp")
    )
    assert down.tolist() == [127, 127, 128, 0, 0, 0, 254, 254, 129]
    assert up.tolist() == [127, 128, 128, 0, 0, 0, 254, 254, 130]


def test_tf32():
    """Ten bits of mantissa; rna rounds ties away from zero."""
    a = np.array([0x3F801000, 0x3F803000, 0x3F800FFF, 0xBF801000, 0x7F7FFFFF], np.uint32)
    assert execute("cvt.rna.tf32.f32", "tf32", [a]).tolist() == [
        0x3F802000, 0x3F804000, 0x3F800000, 0xBF802000, 0x7F800000]  # fmt: skip
    assert execute("cvt.rn.tf32.f32", "tf32", [a]).tolist() == [
        0x3F800000, 0x3F804000, 0x3F800000, 0xBF800000, 0x7F800000]  # fmt: skip
    assert execute("cvt.rn.satfinite.tf32.f32", "tf32", [a]).tolist()[-1] == 0x7F7FE000


# ------------------------------------------------------------------------------------ warps


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@given(st.integers(0, 31), st.integers(0, 31), st.sampled_from([0, 16, 24, 28, 30, 31, 12]))
@settings(max_examples=25)
def test_shuffles(mode, step, clamp, segment):
    values = np.arange(256, dtype=np.uint32) * 3 + 1
    control = segment << 8 | clamp
    body = (
        f"shfl.sync.{mode}.b32 {{o0}}|%p1, {{i0}}, {step}, {control}, 0xffffffff;"
        " selp.b32 {o1}, 1, 0, %p1;"
    )
    found, valid = run_body(body, [values], [np.zeros(256, np.uint32) for _ in range(2)])
    for thread in range(256):
        lane, warp = thread % 32, thread // 32 * 32
        last = lane & segment | clamp & ~segment & 31
        source = {"up": lane - step, "down": lane + step, "bfly": lane ^ step,
                  "idx": lane & segment | step & ~segment & 31}[mode]  # fmt: skip
        inside = source >= last if mode == "up" else source <= last
        assert valid[thread] == inside
        assert found[thread] == values[warp + source if inside else thread]


@given(codes(32))
@few
def test_votes_matches_and_reductions(a):
    a = np.resize(a % np.uint32(5), 256)
    outputs = [np.zeros(256, np.uint32) for _ in range(7)]
    body = """
        setp.lt.u32 %p0, {i0}, 2;
        vote.sync.ballot.b32 {o0}, %p0, -1;
        vote.sync.all.pred %p1, !%p0, -1;  selp.b32 {o1}, 1, 0, %p1;
        match.any.sync.b32 {o2}, {i0}, -1;
        match.all.sync.b32 {o3}|%p2, {i0}, -1;
        redux.sync.add.s32 {o4}, {i0}, -1;
        redux.sync.xor.b32 {o5}, {i0}, -1;
        elect.sync _|%p3, -1;  selp.b32 {o6}, 1, 0, %p3;
    """
    ballot, none, same, every, total, parity, leader = run_body(body, [a], outputs)
    for warp in range(8):
        lanes = range(32 * warp, 32 * warp + 32)
        mask = sum(1 << t % 32 for t in lanes if a[t] < 2)
        for t in lanes:
            assert ballot[t] == mask
            assert none[t] == (mask == 0)
            assert same[t] == sum(1 << u % 32 for u in lanes if a[u] == a[t])
            assert every[t] == (0xFFFFFFFF if all(a[u] == a[t] for u in lanes) else 0)
            assert total[t] == sum(int(a[u]) for u in lanes)
            assert parity[t] == np.bitwise_xor.reduce(a[lanes[0] : lanes[-1] + 1])
            assert leader[t] == (t % 32 == 0)


@pytest.mark.parametrize("mine", ["0xff << (lane & 24)", "0x11111111 << (lane & 3)"])
def test_lanes_of_a_warp_in_groups_by_their_masks(mine):
    """Groups of one warp at one instruction, each with a mask of its own, are apart."""
    first, _, shift = mine.partition(" << (lane & ")
    body = f"""
        mov.u32 %r40, %laneid;  and.b32 %r41, %r40, {shift[:-1]};  shl.b32 %r42, {first}, %r41;
        redux.sync.add.u32 {{o0}}, {{i0}}, %r42;
        elect.sync {{o1}}|%p1, %r42;  selp.b32 {{o2}}, 1, 0, %p1;
    """
    values = np.random.default_rng(4).integers(0, 1 << 20, 256, np.uint32)
    total, leader, led = run_body(body, [values], [np.zeros(256, np.uint32) for _ in range(3)])
    for t in range(256):
        mask = eval(mine, {"lane": t % 32})
        members = [lane for lane in range(32) if mask >> lane & 1]
        assert total[t] == sum(int(values[t // 32 * 32 + lane]) for lane in members)
        assert (leader[t], led[t]) == (members[0], t % 32 == members[0])


def test_float_reductions_of_blackwell():
    rng = np.random.default_rng(9)
    x = rng.standard_normal(256).astype(np.float32)
    x[5], x[64:96] = np.nan, np.nan
    body = (
        "redux.sync.min.f32 {o0}, {i0}, -1; redux.sync.max.abs.f32 {o1}, {i0}, -1;"
        " redux.sync.max.NaN.f32 {o2}, {i0}, -1;"
    )
    found = run_body(body, [x.view(np.uint32)], [np.zeros(256, np.uint32) for _ in range(3)])
    least, size, strict = (each.view(np.float32).reshape(8, 32) for each in found)
    rows = x.reshape(8, 32)
    for warp in range(8):
        if warp == 2:
            assert found[0].reshape(8, 32)[2, 0] == 0x7FFFFFFF
            continue
        assert (least[warp] == np.nanmin(rows[warp])).all()
        assert (size[warp] == np.nanmax(np.abs(rows[warp]))).all()
        assert np.isnan(strict[warp]).all() == (warp == 0)


def test_member_masks_in_divergent_code():
    """The two halves of a warp, in different branches, each with a mask of its own."""
    body = """
    {{  mov.u32 %r40, %laneid;  setp.lt.u32 %p1, %r40, 12;  @%p1 bra LOW;
        redux.sync.add.u32 {o0}, {i0}, 0xfffff000;  bra DONE;
    LOW:
        redux.sync.add.u32 {o0}, {i0}, 0xfff;
    DONE:
        bar.warp.sync 0xffffffff;  activemask.b32 {o1};
    }}"""
    values = np.arange(256, dtype=np.uint32)
    outputs = [np.zeros(256, np.uint32) for _ in range(2)]
    total, active = run_body(body, [values], outputs)
    for t in range(256):
        warp = values[t // 32 * 32 : t // 32 * 32 + 32]
        assert total[t] == (warp[:12] if t % 32 < 12 else warp[12:]).sum()
    assert (active == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    ("mask", "message"),
    [("0xfffffffe", "leaves it out"), ("0xffffffff", "together")],
)
def test_member_masks_that_are_wrong(mask, message):
    """A lane outside of its own mask; a mask that names lanes which never come."""
    guard = "" if mask == "0xfffffffe" else "setp.lt.u32 %p1, %r60, 40; @%p1 bra END;"
    end = "END: bar.sync 0;" if guard else ""
    body = f"{{{{ {guard} shfl.sync.idx.b32 {{o0}}, {{i0}}, 0, 31, {mask}; {end} }}}}"
    with pytest.raises(ConvergenceFault, match=message):
        run_body(body, [np.zeros(256, np.uint32)], [np.zeros(256, np.uint32)])


# --------------------------------------------------------------------------------- atomics


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_every_lane_takes_effect(space, schedule):
    """512 threads at 3 addresses; each old value is a different one."""
    prefix = "" if space == "generic" else f".{space}"
    base = {"global": "%d1", "shared": "%d4", "generic": "%d6"}[space]
    ptx = (
        header()
        + f"""
    .visible .entry k(.param .u64 sums, .param .u64 olds) {{
        .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;
        .shared .align 8 .b32 words[4];
        ld.param.u64 %d1, [sums]; ld.param.u64 %d2, [olds];
        mov.u32 %r1, %tid.x; rem.u32 %r2, %r1, 3;
        mul.wide.u32 %d3, %r2, 4;
        mul.wide.u32 %d5, %r1, 4; add.u64 %d5, %d2, %d5;
        mov.u64 %d4, words; cvta.shared.u64 %d6, %d4;
        setp.lt.u32 %p1, %r1, 4; mul.wide.u32 %d7, %r1, 4; add.u64 %d7, %d4, %d7;
        @%p1 st.shared.u32 [%d7], 0;
        bar.sync 0;
        add.u64 %d8, {base}, %d3;
        atom{prefix}.add.u32 %r3, [%d8], 1;
        red{prefix}.max.u32 [%d8], 0;
        st.global.u32 [%d5], %r3;
        bar.sync 0;
        setp.lt.u32 %p1, %r1, 3;
        @!%p1 ret;
        ld.shared.u32 %r4, [%d7];
        add.u64 %d6, %d1, %d3;
        {"" if space == "global" else "st.global.u32 [%d6], %r4;"}
        ret;
    }}"""
    )
    sums, olds = np.zeros(4, np.uint32), np.zeros(512, np.uint32)
    run_ptx(ptx, grid=1, block=512, args=[sums, olds], schedule=schedule, seed=3)
    assert sums.tolist() == [171, 171, 170, 0]
    for address in range(3):
        mine = np.sort(olds[address::3])
        assert np.array_equal(mine, np.arange(len(mine)))


@pytest.mark.parametrize(
    ("opcode", "function"),
    [
        ("min.s32", lambda old, b: min(signed(old, 32), signed(b, 32)) % 2**32),
        ("max.u32", max),
        ("and.b32", lambda old, b: old & b),
        ("xor.b32", lambda old, b: old ^ b),
        ("exch.b32", lambda old, b: b),
        ("inc.u32", lambda old, b: 0 if old >= b else old + 1),
        ("dec.u32", lambda old, b: b if old == 0 or old > b else old - 1),
    ],
)
def test_atomic_operations(opcode, function):
    rng = np.random.default_rng(0)
    a, b = operand("u32", rng), operand("u32", rng)
    memory = a.copy()
    body = f"atom.global.{opcode} {{o0}}, [%d52], {{i0}}; ld.global.u32 {{o1}}, [%d52];"
    old, new = run_body(body, [b], [np.zeros(256, np.uint32), memory])
    assert np.array_equal(old, a)
    assert new.tolist() == [function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_vector_and_packed_atomics():
    """atom.add of .v4.f32 and of .f16x2; red of both."""
    memory = np.arange(8, dtype=np.float32)
    halves = np.array([1.0, 2.0], np.float16)
    ptx = (
        header()
        + """
    .visible .entry k(.param .u64 m, .param .u64 h, .param .u64 o) {
        .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %d<9>;
        ld.param.u64 %d1, [m]; ld.param.u64 %d2, [h]; ld.param.u64 %d3, [o];
        mov.f32 %f1, 0f3F800000; mov.b32 %r1, 0x40003C00;
        atom.global.add.v4.f32 {%f2, %f3, %f4, %f5}, [%d1+16], {%f1, %f1, %f1, %f1};
        red.global.add.v2.f32 [%d1], {%f1, %f1};
        atom.global.add.noftz.f16x2 %r2, [%d2], %r1;
        st.global.f32 [%d3], %f5; st.global.b32 [%d3+4], %r2;
        ret;
    }"""
    )
    out = np.zeros(2, np.float32)
    run_ptx(ptx, grid=1, block=1, args=[memory, halves, out])
    assert memory.tolist() == [1, 2, 2, 3, 5, 6, 7, 8]
    assert halves.tolist() == [2.0, 4.0]
    assert out[0] == 7
    assert out.view(np.float16)[2:].tolist() == [1.0, 2.0]


def test_atomics_of_128_bits():
    """exch and cas (PTX ISA, "atom", .b128)."""
    memory, old = np.array([1, 2], np.uint64), np.zeros((3, 2), np.uint64)
    ptx = (
        header()
        + """
    .visible .entry k(.param .u64 m, .param .u64 o) {
        .reg .b64 %d<9>; .reg .b128 %q<5>;
        ld.param.u64 %d1, [m]; ld.param.u64 %d2, [o];
        mov.b64 %d3, 7; mov.b64 %d4, 8; mov.b128 %q1, {%d3, %d4};
        atom.global.exch.b128 %q2, [%d1], %q1;
        mov.b128 {%d5, %d6}, %q2; st.global.v2.b64 [%d2], {%d5, %d6};
        atom.global.cas.b128 %q3, [%d1], %q2, %q2;
        mov.b128 {%d5, %d6}, %q3; st.global.v2.b64 [%d2+16], {%d5, %d6};
        atom.global.cas.b128 %q3, [%d1], %q1, %q2;
        mov.b128 {%d5, %d6}, %q3; st.global.v2.b64 [%d2+32], {%d5, %d6};
        ret;
    }"""
    )
    run_ptx(ptx, grid=1, block=1, args=[memory, old])
    assert old.tolist() == [[1, 2], [7, 8], [7, 8]]
    assert memory.tolist() == [1, 2]


RACE = """
.visible .entry k(.param .u64 o) {{
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;
    .shared .align 8 .b32 words[4];
    ld.param.u64 %d1, [o];
    mov.u32 %r1, %tid.x; mov.u32 %r4, words;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.u32 [%r4], 0;
    {before}
    atom.shared.add.u32 %r2, [%r4], 1;
    {after}
    ld.shared.u32 %r3, [%r4];
    st.global.u32 [%d1], %r3;
    ret;
}}"""


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("bar.sync 0;", "bar.sync 0;", ""),
        ("", "bar.sync 0;", "was written by warp 0"),
        ("bar.sync 0;", "", "was written by warp"),
    ],
)
def test_ordinary_accesses_beside_atomics_need_a_barrier(before, after, message):
    out = np.zeros(1, np.uint32)
    ptx = header() + RACE.format(before=before, after=after)
    if message:
        with pytest.raises(SynchronizationFault, match=message):
            run_ptx(ptx, grid=1, block=128, args=[out])
    else:
        run_ptx(ptx, grid=1, block=128, args=[out])
        assert out[0] == 128


FLAG = """
.visible .entry k(.param .u64 o) {{
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;
    .shared .align 8 .b32 data[1];
    .shared .align 8 .b32 flag[1];
    ld.param.u64 %d1, [o];
    mov.u32 %r1, %tid.x; mov.u32 %r4, data; mov.u32 %r5, flag;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 st.shared.u32 [%r5], 0;
    bar.sync 0;
    setp.lt.u32 %p2, %r1, 32;
    @!%p2 bra READER;
    @%p1 st.shared.u32 [%r4], 77;
    {release}
    ret;
READER:
    {acquire}
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra READER;
    {fence}
    ld.shared.u32 %r3, [%r4];
    st.global.u32 [%d1], %r3;
    ret;
}}"""


@pytest.mark.parametrize(
    ("release", "acquire", "fence", "ordered"),
    [
        ("@%p1 atom.release.cta.shared.exch.b32 %r2, [%r5], 1;",
         "atom.acquire.cta.shared.or.b32 %r2, [%r5], 0;", "", True),
        ("fence.acq_rel.cta; @%p1 atom.relaxed.cta.shared.exch.b32 %r2, [%r5], 1;",
         "atom.relaxed.cta.shared.or.b32 %r2, [%r5], 0;", "fence.acq_rel.cta;", True),
        ("@%p1 atom.shared.exch.b32 %r2, [%r5], 1;", "atom.shared.or.b32 %r2, [%r5], 0;", "",
         False),
        ("@%p1 st.release.cta.shared.u32 [%r5], 1;", "ld.acquire.cta.shared.u32 %r2, [%r5];", "",
         True),
        ("fence.acq_rel.cta; @%p1 st.volatile.shared.u32 [%r5], 1;",
         "ld.volatile.shared.u32 %r2, [%r5];", "fence.acq_rel.cta;", True),
        ("@%p1 st.relaxed.cta.shared.u32 [%r5], 1;", "ld.acquire.cta.shared.u32 %r2, [%r5];", "",
         False),
        ("@%p1 st.release.cta.shared.u32 [%r5], 1;", "ld.relaxed.cta.shared.u32 %r2, [%r5];", "",
         False),
        ("@%p1 atom.release.cta.shared.exch.b32 %r2, [%r5], 1;",
         "atom.shared.or.b32 %r2, [%r5], 0;", "", False),
    ],
)  # fmt: skip
def test_release_and_acquire(release, acquire, fence, ordered):
    """A flag in shared memory: with release and acquire, or with fences; else it orders nothing."""
    out = np.zeros(1, np.uint32)
    ptx = header() + FLAG.format(release=release, acquire=acquire, fence=fence)
    if ordered:
        run_ptx(ptx, grid=1, block=64, args=[out])
        assert out[0] == 77
    else:
        with pytest.raises(SynchronizationFault, match="was written by warp 0"):
            run_ptx(ptx, grid=1, block=64, args=[out])


def test_atomics_on_local_memory_are_refused():
    body = (
        "{{ .local .b32 mine[1]; mov.u64 %d40, mine; cvta.local.u64 %d40, %d40;"
        " st.local.b32 [mine], 0; atom.add.u32 {o0}, [%d40], 1; }}"
    )
    with pytest.raises(MemoryFault, match="local"):
        run_body(body, [], [np.zeros(256, np.uint32)])


# ----------------------------------------------------------------------------------- calls


def test_functions_are_inlined():
    """Results and arguments through parameter space and registers, guards, loops, nesting."""
    ptx = (
        header()
        + """
    .func (.param .b32 total) twice(.param .b32 value, .param .align 8 .b8 pair[8])
    {
        .reg .b32 %r<4>;
        ld.param.b32 %r1, [value]; ld.param.b32 %r2, [pair]; ld.param.b32 %r3, [pair+4];
        add.u32 %r1, %r1, %r1; mad.lo.u32 %r1, %r2, %r3, %r1;
        st.param.b32 [total], %r1;
        ret;
    }
    .func (.reg .b32 %result) count(.reg .b32 %start)
    {
        .reg .b32 %r<4>; .reg .pred %p<2>;
        mov.b32 %result, 0;
    AGAIN:
        add.u32 %result, %result, 1;
        sub.u32 %start, %start, 1;
        setp.gt.s32 %p1, %start, 0;
        @%p1 bra AGAIN;
        { .param .b32 v; .param .b32 t; .param .align 8 .b8 p[8];
          st.param.b32 [v], %result; st.param.b32 [p], 0; st.param.b32 [p+4], 9;
          call.uni (t), twice, (v, p);
          ld.param.b32 %result, [t]; }
        ret.uni;
    }
    .visible .entry k(.param .u64 o)
    {
        .reg .b32 %r<9>; .reg .b64 %d<4>; .reg .pred %p<2>;
        mov.u32 %r1, %tid.x; ld.param.u64 %d1, [o];
        mul.wide.u32 %d2, %r1, 8; add.u64 %d1, %d1, %d2;
        { .param .b32 param0; .param .align 8 .b8 param1[8]; .param .b32 retval0;
          st.param.b32 [param0], %r1; st.param.b32 [param1], 3; st.param.b32 [param1+4], %r1;
          call.uni (retval0), twice, (param0, param1);
          ld.param.b32 %r2, [retval0]; }
        setp.gt.u32 %p1, %r1, 4;
        mov.b32 %r3, 1000;
        @%p1 call (%r3), count, (%r1);
        st.global.v2.b32 [%d1], {%r2, %r3};
        ret;
    }"""
    )
    out = np.zeros((64, 2), np.uint32)
    run_ptx(ptx, grid=1, block=64, args=[out])
    lanes = np.arange(64)
    assert np.array_equal(out[:, 0], 5 * lanes)
    assert np.array_equal(out[:, 1], np.where(lanes > 4, 2 * lanes, 1000))


def test_calls_that_are_refused():
    unknown = header() + ".visible .entry k() { call cudaMallocAsync; ret; }"
    with pytest.raises(UnsupportedInstruction, match="cudaMallocAsync is not known"):
        run_ptx(unknown, grid=1, block=1, args=[])


PRINT = """
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n,
                            .param .b64 c);
.global .align 1 .b8 text[30] = {112, 37, 51, 100, 32, 37, 46, 50, 102, 32, 37, 108, 108, 117, 32,
                                 37, 115, 37, 37, 10, 0};
.global .align 1 .b8 name[4] = {120, 121, 122, 0};
.visible .entry k()
{
    .local .align 8 .b8 depot[32];
    .reg .b64 %d<9>; .reg .b32 %r<5>; .reg .f64 %f<2>; .reg .pred %p<2>;
    mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 1; @%p1 bra CHECK;
    mov.u64 %d1, depot; cvta.local.u64 %d2, %d1;
    cvt.rn.f64.u32 %f1, %r1;
    st.local.u32 [depot], %r1; st.local.f64 [depot+8], %f1;
    mov.u64 %d3, 0xffffffffffffffff; st.local.u64 [depot+16], %d3;
    mov.u64 %d4, name; cvta.global.u64 %d4, %d4; st.local.u64 [depot+24], %d4;
    mov.u64 %d5, text; cvta.global.u64 %d5, %d5;
    { .param .b64 param0; .param .b64 param1; .param .b32 retval0;
      st.param.b64 [param0], %d5; st.param.b64 [param1], %d2;
      call.uni (retval0), vprintf, (param0, param1); ld.param.b32 %r2, [retval0]; }
CHECK:
    setp.lt.u32 %p1, %r1, 3; @%p1 ret;
    mov.u64 %d4, name; cvta.global.u64 %d4, %d4;
    { .param .b64 p0; .param .b64 p1; .param .b32 p2; .param .b64 p3; .param .b64 p4;
      st.param.b64 [p0], %d4; st.param.b64 [p1], %d4; st.param.b32 [p2], 12;
      st.param.b64 [p3], %d4; st.param.b64 [p4], 1;
      call.uni __assertfail, (p0, p1, p2, p3, p4); }
    ret;
}"""


def test_printing(capsys):
    run_ptx(header() + PRINT, grid=1, block=3, args=[])
    assert capsys.readouterr().out == (
        "p  0 0.00 18446744073709551615 xyz%\np  1 1.00 18446744073709551615 xyz%\n"
    )


def test_assertions():
    with pytest.raises(EmulationError, match=r"assertion failed in thread 3: xyz \(xyz:12, xyz\)"):
        run_ptx(header() + PRINT, grid=1, block=4, args=[])


# --------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "text",
    [
        "cvt.rs.satfinite.e4m3x4.f32 %r1, {%r2, %r3, %r4, %r5}, %r6;",
        "cvt.rn.e4m3x2.f32 %h1, %r2, %r3;",
        "setmaxnreg.inc.sync.aligned.u32 100;",
        "setmaxnreg.dec.sync.aligned.u32 264;",
        "add.surprise.s32 %r1, %r2, %r3;",
        "add.s32 %r1, %r2;",
        "add.rz.f16 %h1, %h2, %h3;",
        "mul.ftz.bf16 %h1, %h2, %h3;",
        "fma.rn.sat.f64 %d1, %d2, %d3, %d3;",
        "setp.lt.and.s32 %p1, %r1, %r2;",
        "setp.lo.f32 %p1, %r1, %r2;",
        "redux.sync.add.f32 %r1, %r2, -1;",
        "vadd.s32.s32.s32 %r1, %r2, %r3;",
        "multimem.red.add.u32 [%d1], %r1;",
        "createpolicy.surprise.b64 %d1, 1;",
        "atom.global.add.s64 %d1, [%d2];",
        "and.f32 %r1, %r2, %r3;",
        "selp.b32 %r1, %r2, %r3;",
        "min.f16 %h1, %h2, %h3, %h3;",
        "addc.cc.u32 %r1, %r2, %r3, %r4;",
        "fma.rn.ftz.f32.f16 %r1, %h2, %h3, %r4;",
        "sqrt.approx.ftz.f64 %d1, %d2;",
        "set.eq.u64.u32 %d1, %r2, %r3;",
        "lop3.or.b32 %r1, %r2, %r3, %r4, 0x80, %p1;",
        "cvt.rn.satfinite.bf16x2.e5m2x2 %r1, %h1;",
    ],
)
def test_refused_before_the_start(text):
    """Nothing that is not modelled is taken for something else, or for nothing."""
    ptx = header() + (
        ".visible .entry k() { .reg .b16 %h<4>; .reg .b32 %r<9>; .reg .b64 %d<4>; .reg .pred %p<4>;"
        f" trap; {text} ret; }}"
    )
    with pytest.raises(UnsupportedInstruction):
        run_ptx(ptx, grid=1, block=32, args=[])


def test_hints_change_nothing():
    ptx = (
        header()
        + """
    .visible .entry k(.param .u64 o) {
        .reg .b64 %d<4>; .reg .b32 %r<3>;
        ld.param.u64 %d1, [o];
        createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d2, 1.0;
        createpolicy.fractional.L2::evict_first.b64 %d2, 0.5;
        prefetch.global.L2 [%d1]; prefetch.global.L2::evict_last [%d1]; prefetchu.L1 [%d1];
        applypriority.global.L2::evict_normal [%d1], 128;
        griddepcontrol.wait; griddepcontrol.launch_dependents;
        setmaxnreg.inc.sync.aligned.u32 240; setmaxnreg.dec.sync.aligned.u32 24;
        nanosleep.u32 100; pmevent 3;
        atom.global.add.L2::cache_hint.u32 %r1, [%d1], 1, %d2;
        ret;
    }"""
    )
    out = np.zeros(32, np.uint32)
    run_ptx(ptx, grid=1, block=128, args=[out])
    assert out[0] == 128


TRITON = (DATA / "triton_instructions.txt").read_text().splitlines()


@pytest.mark.parametrize("start", range(0, len(TRITON), 50))
def test_what_triton_emits_is_decoded(start):
    """One instruction of each opcode (658 of them, less branches, calls and parameters).

    Found in 5,710 PTX files: kernels of elementwise mathematics, casts, reductions, scans, sorts,
    histograms, atomics, random numbers, printing, dots of all types and tensor descriptors by
    Triton 3.7.1, 3.8.0 and 3.9.0 for sm_90 and sm_100, and those of liger-kernel 0.8.5 and
    flash-linear-attention 0.6.0 by Triton 3.9.0. Registers are renamed: %h has 16 bits, %r 32,
    %d 64, %q 128.
    """
    for line in TRITON[start : start + 50]:
        ptx = header("sm_90a" if line.startswith("wgmma") else "sm_100a") + (
            ".visible .entry k() { .reg .pred %p<9>; .reg .b8 %c<9>; .reg .b16 %h<40>;"
            f" .reg .b32 %r<300>; .reg .b64 %d<40>; .reg .b128 %q<3>; {line} ret; }}"
        )
        decode(parse_ptx(ptx))


# ------------------------------------------------------------------------------ the silicon


def test_the_cases_of_the_silicon_check_run():
    """Every one of them, here without a GPU to compare with (see benchmarks/results)."""
    from silicon.check import on_emulator

    cases = scalar_cases(programs=40)
    assert len(cases) > 1000
    for case in cases[::7]:
        on_emulator(case)


@pytest.mark.sm90
def test_against_a_gpu():
    """Bit by bit, but for the approximations, which keep the bounds that PTX ISA states."""
    from silicon.check import compare, on_gpu

    cases = scalar_cases()
    record = compare(cases, on_gpu(cases))
    assert record["failures"] == {}
