"""The table of integer semantics: over each domain what Python says, and the emulator of PTX."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import some
from silicon.scalar_cases import kernel

from triton_ext.emulator import run_ptx
from triton_ext.integers import (
    COMPARISONS,
    MEANINGS,
    IntegerOperation,
    evaluate,
    on_numbers,
    signed,
)
from triton_ext.passes.verify_descriptors.meaning.mlir_scalars import LinearSum, SumDomain
from triton_ext.ptx.integer_operations import integer_operation
from triton_ext.ptx.known_bits import KNOWN_BITS, Bits

WIDTHS = (8, 16, 32, 64)
numbers = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 64), st.sampled_from([2**31, 2**63]))


def truncated(a, b):
    return -(-a // b) if (a < 0) != (b < 0) and a % b else a // b


def bit_field(a, start, length, width, is_signed):
    """PTX ISA, "bfe": bit by bit; behind the last bit, the sign or 0."""
    last = min(start + length - 1, width - 1)
    sign = a >> last & 1 if is_signed and length else 0
    bits = (a >> start + i & 1 if i < length and start + i < width else sign for i in range(width))
    return sum(bit << i for i, bit in enumerate(bits))


def permuted(a, b, selector):
    whole = (a | b << 32).to_bytes(8, "little")
    nibbles = [selector >> 4 * i & 15 for i in range(4)]
    found = [whole[n & 7] if n < 8 else 255 * (whole[n & 7] >> 7) for n in nibbles]
    return int.from_bytes(bytes(found), "little")


def python(name, width, is_signed, result, a, b, c, d):
    """The result, and the sources, of one operation; None where it is not defined."""
    mask = (1 << width) - 1
    a, b = a & mask, b & mask
    x, y = (signed(a, width), signed(b, width)) if is_signed else (a, b)
    low, count, field = c & (1 << result) - 1, c & 0xFFFFFFFF, c & 0xFF
    hole = ((1 << (d & 0xFF)) - 1) << field & mask
    return {
        "copy": (x, (a,)), "add": (a + b, (a, b)), "sub": (a - b, (a, b)), "neg": (-a, (a,)),
        "not": (mask - a, (a,)), "and": (a & b, (a, b)), "or": (a | b, (a, b)),
        "xor": (a ^ b, (a, b)), "abs": (abs(x), (a,)), "min": (min(x, y), (a, b)),
        "max": (max(x, y), (a, b)), "mul": (x * y, (a, b)), "mulhi": (x * y >> width, (a, b)),
        "mad": (x * y + low, (a, b, low)), "madhi": ((x * y >> width) + low, (a, b, low)),
        "div": (truncated(x, y) if y else None, (a, b)),
        "rem": (x - y * truncated(x, y) if y else None, (a, b)),
        "ceildiv": (-(-x // y) if y else None, (a, b)),
        "shl": (a * 2**count if count < width else 0, (a, count)),
        "shr": (x // 2 ** min(count, width), (a, count)),
        "eq": (x == y, (a, b)), "ne": (x != y, (a, b)), "lt": (x < y, (a, b)),
        "le": (x <= y, (a, b)), "gt": (x > y, (a, b)), "ge": (x >= y, (a, b)),
        "select": (a if c & 1 else b, (a, b, c & 1)),
        "bfe": (bit_field(a, field, d & 0xFF, width, False), (a, field, d & 0xFF)),
        "bfes": (bit_field(a, field, d & 0xFF, width, True), (a, field, d & 0xFF)),
        "bfi": (b & ~hole | (a << field) & hole, (a, b, field, d & 0xFF)),
        "lop3": (
            sum(
                ((d & 0xFF) >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
                for i in range(width)
            ),
            (a, b, c & mask, d & 0xFF),
        ),
        "prmt": (permuted(a & 0xFFFFFFFF, b & 0xFFFFFFFF, c), (a, b, count)),
    }[name]  # fmt: skip


@st.composite
def cases(draw, name):
    """An operation of a name, its sources, and its result by Python."""
    width = 32 if name == "prmt" else draw(st.sampled_from(WIDTHS))
    is_signed = name == "bfes" or (name not in ("bfe", "prmt") and draw(st.booleans()))
    result = 1 if name in COMPARISONS else width
    if name in ("copy", "mul", "mad"):
        result = draw(st.sampled_from([width, 2 * width if name != "copy" else 64]))
    found, sources = python(name, width, is_signed, result, *(draw(numbers) for _ in range(4)))
    operation = IntegerOperation(name, width, is_signed, result)
    return operation, sources, None if found is None else int(found) & ((1 << result) - 1)


def examples(number):
    """So many of each operation, drawn apart, so that none lives on what the others leave."""
    each_operation = pytest.mark.parametrize("name", sorted(MEANINGS))
    return lambda test: each_operation(settings(max_examples=some(number))(test))


@examples(20)
@given(st.data())
def test_numbers(name, data):
    operation, sources, expected = data.draw(cases(name))
    assert on_numbers(operation)(*sources) == expected


@examples(20)
@given(st.data(), st.lists(numbers, min_size=4, max_size=4))
def test_known_bits(name, data, masks):
    """What is said holds for the numbers; nothing is lost where all bits are known."""
    operation, sources, expected = data.draw(cases(name))
    widths = operation.source_widths
    partly = [
        Bits(number & mask, mask & (1 << width) - 1)
        for number, mask, width in zip(sources, masks, widths, strict=False)
    ]
    partly = [Bits(bits.value & bits.known, bits.known) for bits in partly]
    whole = [Bits.constant(*each) for each in zip(sources, widths, strict=True)]
    found = evaluate(KNOWN_BITS, operation, partly)
    if expected is not None:
        assert expected & found.known == found.value
        assert evaluate(KNOWN_BITS, operation, whole).field(0, operation.result) == expected


def partly_known(width, own):
    """All integers of a few bits of which some are known; of wider ones (counts, positions, the
    table of lop3) some that are known, and the unknown one; each with the numbers that it may be.
    """
    if width > own:
        few = range(5)
        return [(Bits.constant(n, width), [n]) for n in few] + [(Bits.unknown(), list(few))]
    numbers = range(1 << width)
    return [
        (Bits(value, known), [n for n in numbers if n & known == value])
        for known in numbers
        for value in numbers
        if value & known == value
    ]


@pytest.mark.parametrize(
    ("name", "is_signed"),
    [(name, is_signed) for name in sorted(set(MEANINGS) - {"prmt"}) for is_signed in (False, True)
     if (name, is_signed) not in (("bfe", True), ("bfes", False))],
)  # fmt: skip
def test_every_integer_of_a_few_known_bits(name, is_signed):
    """A bit that is said to be known is that of every number that the sources may be."""
    comparison = name in COMPARISONS
    width = 3 if len(IntegerOperation(name, 3, is_signed, 3).source_widths) < 3 else 2
    operation = IntegerOperation(name, width, is_signed, 1 if comparison else width)
    result = on_numbers(operation)
    sources = [partly_known(each, width) for each in operation.source_widths]
    checked = 0
    for choice in itertools.product(*sources):
        found = evaluate(KNOWN_BITS, operation, [bits for bits, _ in choice])
        assert found.value & ~found.known == 0
        for case in itertools.product(*(case for _, case in choice)) if found.known else ():
            if (number := result(*case)) is not None:
                assert number & found.known == found.value, (choice, case)
                checked += 1
    assert checked


@examples(15)
@given(st.data(), st.lists(st.booleans(), min_size=4, max_size=4))
def test_numbers_that_are_not_known(name, data, known):
    """Unknown, or what any number in their stead gives."""
    operation, sources, expected = data.draw(cases(name))
    pairs = zip(sources, known, strict=False)
    partly = [number if is_known else None for number, is_known in pairs]
    found = on_numbers(operation)(*partly)
    others = [0 if number is None else number for number in partly]
    assert found is None or found == expected == on_numbers(operation)(*others)


small = st.integers(-1000, 1000)
TERMS = {"x": 12, "y": -5}


@st.composite
def sums(draw):
    return LinearSum.of({term: draw(small) for term in TERMS if draw(st.booleans())}, draw(small))


def value(found):
    return signed(sum(TERMS[term] * factor for term, factor in found.terms) + found.constant, 64)


@settings(max_examples=some(300))
@given(st.sampled_from(sorted(MEANINGS)), st.lists(sums(), min_size=4, max_size=4))
def test_sums(name, sources):
    """Put numbers in for the terms, before and after: the same, as long as nothing overflows."""
    operation = IntegerOperation(
        name, 64, name not in ("bfe", "prmt"), 1 if name in COMPARISONS else 64
    )
    sources = sources[: len(operation.source_widths)]
    if name == "shl":
        sources[1] = LinearSum.of({}, sources[1].constant % 16)
    found = evaluate(SumDomain(), operation, sources)
    if found is not None:
        expected = on_numbers(operation)(*map(value, sources))
        assert expected is not None
        assert value(found) == (signed(expected, 64) if operation.result > 1 else expected)
    is_undefined = name in ("div", "rem", "ceildiv")
    assert found is not None or is_undefined or any(source.terms for source in sources)


# --------------------------------------------------------------- against the emulator's decoders


@pytest.mark.parametrize(
    "opcode",
    [
        "add.s32", "add.u64", "sub.s32", "sub.s64", "neg.s32", "not.b32", "not.b64", "and.b32",
        "or.b64", "xor.b32", "abs.s32", "min.s32", "min.u32", "max.s64", "max.u16", "mul.lo.s32",
        "mul.lo.u64", "mul.hi.s32", "mul.hi.u32", "mul.hi.u64", "mul.wide.s32", "mul.wide.u16",
        "mad.lo.s32", "mad.hi.s32", "mad.wide.u32", "mad.wide.s32", "div.s32", "div.u64",
        "rem.s32", "rem.u32", "shl.b32", "shl.b64", "shr.u32", "shr.s32", "shr.s64", "cvt.s64.s32",
        "cvt.u64.u32", "cvt.u32.u64", "cvt.s32.s16", "cvt.u16.u32", "bfe.u32", "bfe.s32",
        "bfe.s64", "bfi.b32", "lop3.b32", "prmt.b32",
    ],
)  # fmt: skip
def test_ptx(opcode):
    """The emulator decodes the same instructions with code of its own."""
    operation = integer_operation(opcode)
    assert operation is not None
    generator = np.random.default_rng(7)
    inputs, fixed = [], "150" if operation.name == "lop3" else ""
    for width in operation.source_widths[: 3 if fixed else 4]:
        size = max(32, width) if width != 16 else 16
        codes = generator.integers(0, 1 << 63, 256, dtype=np.uint64) >> np.uint64(64 - size)
        codes[::7] = 1 << size - 1
        if width == 8:
            codes %= 256
        elif width == 32 and operation.name in ("shl", "shr") and len(inputs) == 1:
            codes %= 70
        inputs.append(codes.astype(f"u{size // 8}"))
    if operation.name in ("div", "rem"):
        inputs[1] |= inputs[1].dtype.type(1)
    out = np.zeros(256, f"u{max(2, operation.result // 8)}")
    names = ", ".join([*(f"{{i{i}}}" for i in range(len(inputs))), *([fixed] if fixed else [])])
    case = kernel("k", f"{opcode} {{o0}}, {names};", inputs, [out])
    arguments = case.fresh()
    run_ptx(
        ".version 8.8\n.target sm_100a\n.address_size 64\n" + case.entry,
        grid=case.grid, block=case.block, args=arguments,
    )  # fmt: skip
    function = on_numbers(operation)
    extra = [150] if fixed else []
    expected = [function(*map(int, each), *extra) for each in zip(*inputs, strict=True)]
    assert arguments[-1].tolist() == expected


@pytest.mark.parametrize(
    "opcode",
    ["add.f32", "add.sat.s32", "add.u16x2", "cvt.sat.s8.s32", "setp.lt.and.s32", "mul24.lo.s32",
     "min.bf16x2", "ld.global.u32", "prmt.b32.f4e"],
)  # fmt: skip
def test_what_is_no_operation_of_the_table(opcode):
    assert integer_operation(opcode) is None
