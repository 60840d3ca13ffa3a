"""Constant expressions of PTX: their values and what is refused, beside ptxas."""

from __future__ import annotations

import random
import re
import struct
import subprocess

import numpy as np
import pytest

from triton_ext.emulator import run_ptx
from triton_ext.errors import LayoutError
from triton_ext.ptx.constant_expressions import folded
from triton_ext.ptx.parse import immediate, parse_ptx

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"
LITERALS = (
    "0", "1", "7", "42U", "017", "0x10", "0xffffffffffffffff", "0b101", "WARP_SZ", "3U", "63",
    "0x8000000000000000", "9223372036854775807",
)  # fmt: skip
COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")
BINARY = ("+", "-", "*", "/", "%", "<<", ">>", *COMPARISONS, "&", "^", "|", "&&", "||")


@pytest.fixture(scope="module")
def ptxas(tmp_path_factory):
    """What ptxas makes of a module: the bytes of its initial values; None if it refuses it."""
    command = [pytest.importorskip("triton").knobs.nvidia.ptxas.path, "-arch=sm_90a", "k.ptx"]
    folder = tmp_path_factory.mktemp("ptxas")

    def assembled(text):
        (folder / "k.ptx").write_text(HEAD + text)
        done = subprocess.run([*command, "-o", "k.cubin"], cwd=folder, capture_output=True)
        return None if done.returncode else section((folder / "k.cubin").read_bytes())

    return assembled


def section(elf, wanted=b".nv.global.init"):
    """The bytes of a section of an ELF file of 64 bits; none if it has no such section."""
    (start,) = struct.unpack_from("<Q", elf, 0x28)
    size, number, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(number)]
    for name, _, _, _, offset, length in headers:
        at = headers[names][4] + name
        if elf[at : elf.index(b"\0", at)] == wanted:
            return elf[offset : offset + length]
    return b""


def drawn(rng, depth, real=False):
    """An expression."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(("1.5", "2.0", ".25", "3e2", "0d3FF8000000000000") if real else LITERALS)
    part = drawn(rng, depth - 1, real)
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(("-{}", "+{}", "({})", "- {}")).format(part)
    if real:
        return f"{part}{rng.choice('+-*/')}{drawn(rng, depth - 1, real)}"
    if kind < 0.4:
        return rng.choice(("!{}", "~{}", "(.s64){}", "(.u64) {}")).format(part)
    if kind < 0.5:
        return f"({part} ? {drawn(rng, depth - 1)} : {drawn(rng, depth - 1)})"
    if kind < 0.55:
        return f"({drawn(rng, 2, True)} {rng.choice(COMPARISONS)} {drawn(rng, 2, True)})"
    return f"{part} {rng.choice(BINARY)} {drawn(rng, depth - 1)}"


def evaluated(text, real):
    """The bits of an expression; None if it is refused, or a literal."""
    try:
        found = folded(text)
    except LayoutError as error:
        if "divide by zero" not in str(error):
            raise
        return None
    if found == text:
        return None
    return int(found[2:], 16) if real else immediate(found) & (1 << 64) - 1


@pytest.mark.parametrize("real", [False, True])
def test_drawn_expressions_have_the_values_of_ptxas(ptxas, real):
    rng = random.Random(4801)
    texts = {drawn(rng, 4, real) for _ in range(1500)}
    known = {text: bits for text in texts if (bits := evaluated(text, real)) is not None}
    assert len(known) > 500
    data = ptxas(f".visible .global .{'f' if real else 'u'}64 x[{len(known)}] = {{"
                 f"{', '.join(known)}}};\n")  # fmt: skip
    assert np.frombuffer(data, np.uint64).tolist() == list(known.values())


REFUSED = [
    ("5 / 0", "divide by zero"), ("5 % 0", "divide by zero"), ("1.0 / 0.0", "divide by zero"),
    ("1.0 + 1", "between two integers"), ("1.0 & 2.0", "between integers"), ("~1.0", "integer"),
    ("1 ? 2.0 : 3.0", "integer"), ("(.u32)3", r"\.s64 or \.u64"), ("1 + 1.0e400", "greater"),
    ("1 + 99999999999999999999", "64 bits"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule"), REFUSED)
def test_what_ptxas_refuses_too(ptxas, text, rule):
    assert ptxas(f".visible .global .{'f' if '.0' in text else 'u'}64 x = {text};\n") is None
    with pytest.raises(LayoutError, match=rule):
        folded(text)


def test_deep_nesting_is_refused():
    with pytest.raises(LayoutError, match="nest at most"):
        folded("(" * 1000 + "1" + ")" * 1000)
    with pytest.raises(LayoutError, match="nest at most"):
        folded("1 ? 2 : " * 1000 + "3")
    assert folded("+" * 9999 + "1" + "+1" * 9999) == "10000"


SAME = [
    "%p1|%p2, %r1, !%p3", "[%rd1+16]", "[%rd1+-16], {%r1, %r2}", "(result), f, (a, b)",
    "0f3F800000", "1.5e-3, 0x10", "[s], 010x", "%r1, 018", "1 +", "a * 2",
]  # fmt: skip


@pytest.mark.parametrize("text", SAME)
def test_what_is_no_expression_stays(text):
    assert folded(text) == text


KERNEL = """
.const .align 8 .u32 numbers[4] = {1 << 4 | 3, WARP_SZ - 1, 017, (2 > 1) ? ~0U >> 32 : 7};
.global .u64 pointer = generic(numbers) + 4 * 2 - 4;
.global .f32 third = 1.0 / 3.0;
.visible .entry k(.param .u64 p) {
 .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<2>; .reg .pred %p<2>;
 .shared .align 4 .b8 s[WARP_SZ];
 ld.param.u64 %rd1, [p];
 mov.u32 %r1, (1<<4)|3;       st.global.u32 [%rd1], %r1;
 add.s32 %r2, %r1, -(3 - 1);  st.global.u32 [%rd1+2*2], %r2;
 st.shared.u32 [s+8*2], %r2;  mov.u32 %r3, s + 4*4;
 ld.shared.u32 %r4, [%r3 + 1 - 1]; st.global.u32 [%rd1 + (2 << 2)], %r4;
 ld.const.v2.u32 {%r5, %r6}, [numbers + 4*2];
 setp.eq.u32 %p1, %r5, 3 * 5; selp.u32 %r5, 1 + 1, 0, %p1;
 st.global.v2.u32 [%rd1 + 16], {%r5, %r6};
 ld.global.u64 %rd2, [pointer]; ld.u32 %r7, [%rd2]; st.global.u32 [%rd1+24], %r7;
 ld.global.f32 %f1, [third]; st.global.f32 [%rd1+28], %f1;
 shfl.sync.idx.b32 %r1, %r1, 1 - 1, WARP_SZ - 1, ~0 >> 32;
 bar.sync 1 + 1, 32 * 1;
 ret; }
"""


def test_operands_addresses_and_initializers(ptxas):
    assert ptxas(KERNEL) is not None
    out = np.zeros(8, np.uint32)
    run_ptx(HEAD + KERNEL, grid=1, block=32, args=[out])
    assert out[:7].tolist() == [19, 17, 17, 0, 2, 0xFFFFFFFF, 31]
    assert out[7:].view(np.float32)[0] == np.float32(1) / np.float32(3)


def test_an_error_names_the_expression():
    text = KERNEL.replace("1 + 1, 32", "1 / 0, 32")
    with pytest.raises(LayoutError, match=re.escape("1 / 0") + ".*divide by zero"):
        parse_ptx(HEAD + text)
