"""Cases of every scalar instruction of Hopper, with random and special operands.

Each case is one kernel, of 256 threads or of a sweep of more values, that loads its operands,
executes an instruction (or a random sequence of them), and stores the results.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from silicon.cases import Case

THREADS = 256
BLOCK = 1024
"""Threads of the sweeps, which have more than `THREADS` values."""

NOTES = [
    "Read off the H100, and modelled so, where PTX ISA says something else or nothing:",
    "div and rem by zero give all ones.",
    "bfe and bfi of 64 bits clamp position and length to 255 rather than take their low 8 bits.",
    ".ftz flushes a result that is below the normal numbers after a rounding with unbounded"
    " exponent; cvt.ftz.f16.f32 flushes nothing.",
    "f64: of several NaN operands of add, sub, mul and fma one comes out, b before c before a; of"
    " div, a before b; abs and neg leave a NaN's sign; atom.global.add.f64 keeps a signaling NaN"
    " as it is, the operand's before the memory's.",
    "cvt between f64 and f32, f16 or bf16, and cvt.f32.bf16, keep a NaN's sign and upper payload.",
    "cvt.rn and .rz to tf32 make NaN 0x7fffe000; cvt.rna.tf32 cuts a NaN's payload off, which can"
    " leave an infinity.",
    "atom.add.f32 flushes subnormals in global memory, as a vector, too; not in shared memory.",
    "Left out of the random programs, since ptxas changes them (seen in its machine code): operands"
    " of commutative f64 operations change places, which decides whose NaN comes out; min(x, x)"
    " becomes x, NaN or not; a 64-bit shift whose count a float instruction wrote gets a conversion"
    " to an integer before it; bfe.s32 with a constant position above 31 becomes -1.",
]


def width(type_name: str) -> int:
    """Bytes of the register of a type."""
    if type_name in ("f16x2", "bf16x2", "u16x2", "s16x2", "tf32"):
        return 4
    if type_name.startswith(("e", "ue")):
        return 2
    return max(2, int("".join(c for c in type_name if c.isdigit())) // 8)


def _specials(type_name: str) -> list[int]:
    kind, size = type_name[0], 8 * width(type_name)
    if type_name in ("f16x2", "bf16x2"):
        half = _specials(type_name[:-2])
        return [a | b << 16 for a, b in zip(half, half[3:] + half[:3], strict=True)]
    if type_name in ("u16x2", "s16x2"):
        half = _specials("u16")
        return [a | b << 16 for a, b in zip(half, half[3:] + half[:3], strict=True)]
    floats = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
    if type_name in floats:
        exponent, mantissa = floats[type_name]
        field = ((1 << exponent) - 1) << mantissa
        one = ((1 << exponent - 1) - 1) << mantissa
        ones = (1 << mantissa) - 1
        half = one - (1 << mantissa)
        positive = [
            0, 1, 2, ones, 1 << mantissa, (1 << mantissa) + 1, one, one + 1, one - 1, half,
            one + (1 << mantissa - 1), one + (1 << mantissa), field - 1, field - (1 << mantissa),
            field, field | 1 << mantissa - 1, field | 1, field | ones, one + (5 << mantissa) + 1,
            one - (mantissa << mantissa), (1 << mantissa) + ones,
        ]  # fmt: skip
        return positive + [value | 1 << size - 1 for value in positive]
    top = 1 << size - 1
    values = [0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 255, 256, top - 1, top, top + 1]
    values += [(1 << size) - 1, (1 << size) - 2, 0x55, 0xAA, top >> 1]
    return [value & ((1 << size) - 1) for value in values] if kind else []


def operand(type_name: str, rng: np.random.Generator, *, count: bool = False) -> Any:
    """Register values of a type, as unsigned integers.

    Args:
        count: of a shift or a bit field: mostly small.
    """
    size = width(type_name)
    dtype = np.dtype(f"u{size}")
    values = rng.integers(0, 1 << 8 * size, THREADS, np.uint64, endpoint=False) if size < 8 else (
        rng.integers(0, 1 << 63, THREADS, np.uint64) * 2 + rng.integers(0, 2, THREADS, np.uint64)
    )  # fmt: skip
    values = values.astype(dtype)
    floats = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
    middle = slice(THREADS // 2, THREADS * 3 // 4)
    number = THREADS // 4
    if type_name in floats:  # of moderate size, so that sums and products stay in range
        scale = 2.0 ** rng.integers(-6, 7, number)
        moderate = (rng.standard_normal(number) * scale).astype(floats[type_name])
        values[middle] = moderate.view(dtype)
    elif type_name == "bf16":
        moderate = rng.standard_normal(number).astype(np.float32)
        values[middle] = (moderate.view(np.uint32) >> 16).astype(np.uint16)
    elif type_name in ("f16x2", "bf16x2"):
        halves = [operand(type_name[:-2], rng) for _ in range(2)]
        values = halves[0].astype(np.uint32) | halves[1].astype(np.uint32) << np.uint32(16)
    else:
        values[middle] = rng.integers(0, 1 << 7, number).astype(dtype)
    specials = np.array(_specials(type_name), dtype)
    at = rng.integers(0, THREADS, THREADS // 2)
    values[at] = specials[rng.integers(0, len(specials), len(at))]
    if count:
        values = np.where(rng.random(THREADS) < 0.8, values % dtype.type(72), values)
    return values.astype(dtype)


def aligned_pairs(a: Any, b: Any, type_name: str, rng: np.random.Generator) -> None:
    """Make some operands equal, opposite or near, so that sums cancel and comparisons tie."""
    chosen = rng.integers(0, 6, THREADS)
    if a.dtype != b.dtype:
        return
    b[chosen == 0] = a[chosen == 0]
    if type_name[0] in "fb":
        top = b.dtype.type(1 << 8 * b.itemsize - 1)
        b[chosen == 1] = a[chosen == 1] ^ top
        b[chosen == 2] = (a[chosen == 2] ^ top) + b.dtype.type(1)


_LOADS = {2: ("b16", "%h"), 4: ("b32", "%r"), 8: ("b64", "%d")}
_DECLARED = (
    ".reg .pred %p<16>; .reg .b8 %c<4>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %d<64>;"
)

_INDEX = (
    "mov.u32 %r60, %tid.x; mov.u32 %r61, %ctaid.x; mov.u32 %r62, %ntid.x;"
    " mad.lo.u32 %r60, %r61, %r62, %r60;"
)


def kernel(
    name: str,
    body: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    declared: str = "",
    **more: Any,
) -> Case:
    """A case whose body computes {o0}, {o1} ... from {i0}, {i1} ...: registers of their widths.

    In the body %r60 is the number of the thread in the grid; %d50 and up hold the addresses.
    """
    size = len([*inputs, *outputs][0])
    block = min(size, BLOCK) if size > THREADS else THREADS
    params = ", ".join(f".param .u64 p{i}" for i in range(len(inputs) + len(outputs)))
    lines = [f".visible .entry {name}({params})\n{{", _DECLARED + declared, _INDEX]
    names = {}
    for i, array in enumerate([*inputs, *outputs]):
        lines.append(f"ld.param.u64 %d{i + 50}, [p{i}];")
        lines.append(f"mad.wide.u32 %d{i + 50}, %r60, {array.itemsize}, %d{i + 50};")
    for i, array in enumerate(inputs):
        suffix, prefix = _LOADS[array.itemsize]
        names[f"i{i}"] = f"{prefix}{20 + i}"
        lines.append(f"ld.global.{suffix} {prefix}{20 + i}, [%d{i + 50}];")
    for i, array in enumerate(outputs):
        names[f"o{i}"] = f"{_LOADS[array.itemsize][1]}{10 + i}"
    lines.append(body.format(**names))
    for i, array in enumerate(outputs):
        suffix, prefix = _LOADS[array.itemsize]
        lines.append(f"st.global.{suffix} [%d{len(inputs) + i + 50}], {prefix}{10 + i};")
    lines.append("ret;\n}\n")
    args = [*inputs, *outputs]
    return Case(
        name,
        "\n".join(lines),
        args,
        range(len(inputs), len(args)),
        block=block,
        grid=max(1, size // block),
        **more,
    )


class Builder:
    """Collects cases, each with operands of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.cases: list[Case] = []
        self.rng = np.random.default_rng(seed)

    def name(self, opcode: str) -> str:
        clean = "".join(c if c.isalnum() else "_" for c in opcode)
        return f"k{len(self.cases)}_{clean}"

    def operands(self, types: Sequence[str], counts: Sequence[int] = ()) -> list[Any]:
        arrays = [operand(each, self.rng, count=i in counts) for i, each in enumerate(types)]
        if len(types) >= 2 and types[0] == types[1]:
            aligned_pairs(arrays[0], arrays[1], types[0], self.rng)
        return arrays

    def op(
        self,
        opcode: str,
        to: str,
        *types: str,
        counts: Sequence[int] = (),
        bound: Any = None,
        inputs: Sequence[Any] | None = None,
    ) -> None:
        """A case of one instruction with a destination and sources of these types."""
        arrays = list(inputs) if inputs is not None else self.operands(types, counts)
        out = np.zeros(len(arrays[0]), f"u{width(to)}")
        sources = ", ".join(f"{{i{i}}}" for i in range(len(types)))
        body = f"{opcode} {{o0}}, {sources};"
        self.cases.append(kernel(self.name(opcode), body, arrays, [out], bound=bound))

    def body(
        self,
        label: str,
        body: str,
        types: Sequence[str],
        outputs: Sequence[str],
        *,
        counts: Sequence[int] = (),
        inputs: Sequence[Any] | None = None,
        initial: Sequence[Any] | None = None,
        **more: Any,
    ) -> None:
        """A case of several instructions."""
        arrays = list(inputs) if inputs is not None else self.operands(types, counts)
        outs = (
            list(initial)
            if initial is not None
            else [
                np.zeros(len(arrays[0]) if arrays else THREADS, f"u{width(to)}") for to in outputs
            ]
        )
        self.cases.append(kernel(self.name(label), body, arrays, outs, **more))


# ------------------------------------------------------------------------------ integers

INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")


def integer_cases(build: Builder) -> None:
    for t in INTEGERS:
        for opcode in ("add", "sub", "mul.lo", "mul.hi", "min", "max", "div", "rem"):
            build.op(f"{opcode}.{t}", t, t, t)
        for opcode in ("mad.lo", "mad.hi", "sad"):
            build.op(f"{opcode}.{t}", t, t, t, t)
        if t[0] == "s":
            build.op(f"abs.{t}", t, t)
            build.op(f"neg.{t}", t, t)
        if t[1:] != "64":
            wide = f"{t[0]}{2 * int(t[1:])}"
            build.op(f"mul.wide.{t}", wide, t, t)
            build.op(f"mad.wide.{t}", wide, t, t, wide)
    for opcode in ("add.sat.s32", "sub.sat.s32"):
        build.op(opcode, "s32", "s32", "s32")
    build.op("mad.hi.sat.s32", "s32", "s32", "s32", "s32")
    for t in ("u32", "s32"):
        for half in ("lo", "hi"):
            build.op(f"mul24.{half}.{t}", t, t, t)
            build.op(f"mad24.{half}.{t}", t, t, t, t)
    build.op("mad24.hi.sat.s32", "s32", "s32", "s32", "s32")
    for t in ("u16x2", "s16x2"):
        for opcode in ("add", "min", "max"):
            build.op(f"{opcode}.{t}", t, t, t)
    for opcode in ("min.relu", "max.relu"):
        build.op(f"{opcode}.s16x2", "s16x2", "s16x2", "s16x2")
        build.op(f"{opcode}.s32", "s32", "s32", "s32")
    for t in ("b32", "b64"):
        build.op(f"popc.{t}", "u32", t)
        build.op(f"clz.{t}", "u32", t)
        build.op(f"brev.{t}", t, t)
        for _ in range(2):
            build.op(f"bfi.{t}", t, t, t, "u32", "u32", counts=(2, 3))
    for t in ("u32", "s32", "u64", "s64"):
        build.op(f"bfind.{t}", "u32", t)
        build.op(f"bfind.shiftamt.{t}", "u32", t)
        for _ in range(2):
            build.op(f"bfe.{t}", t, t, "u32", "u32", counts=(1, 2))
    for mode in ("clamp", "wrap"):
        build.op(f"bmsk.{mode}.b32", "b32", "b32", "b32", counts=(0, 1))
        for t in ("u32", "s32"):
            build.op(f"szext.{mode}.{t}", t, t, "u32", counts=(1,))
        for side in ("l", "r"):
            build.op(f"shf.{side}.{mode}.b32", "b32", "b32", "b32", "u32", counts=(2,))
    offsets = build.rng.integers(-4, 5, THREADS).astype(np.int32).view(np.uint32)
    masks, bases = operand("b32", build.rng), operand("u32", build.rng) % np.uint32(32)
    build.op("fns.b32", "b32", "b32", "u32", "s32", inputs=[masks, bases, offsets])
    for left in ("u32", "s32"):
        for right in ("u32", "s32"):
            to = "u32" if left == right == "u32" else "s32"
            build.op(f"dp4a.{left}.{right}", to, "b32", "b32", to)
            for half in ("lo", "hi"):
                build.op(f"dp2a.{half}.{left}.{right}", to, "b32", "b32", to)
    for t, pair in (("u32", "b32"), ("s32", "b32"), ("u64", "b64"), ("s64", "b64")):
        for opcode in ("add", "sub"):
            build.body(
                f"{opcode}c.{t}",
                f"{opcode}.cc.{t} {{o0}}, {{i0}}, {{i1}};"
                f" {opcode}c.cc.{t} {{o1}}, {{i2}}, {{i3}}; {opcode}c.{t} {{o2}}, {{i0}}, {{i3}};",
                [pair] * 4,
                [pair] * 3,
            )
        build.body(
            f"madc.{t}",
            f"mad.lo.cc.{t} {{o0}}, {{i0}}, {{i1}}, {{i2}};"
            f" madc.hi.cc.{t} {{o1}}, {{i0}}, {{i1}}, {{i3}};"
            f" madc.lo.cc.{t} {{o2}}, {{i0}}, {{i3}}, {{i1}}; addc.{t} {{o3}}, {{i0}}, {{i2}};",
            [pair] * 4,
            [pair] * 4,
        )


def logic_cases(build: Builder) -> None:
    for t in ("b16", "b32", "b64"):
        for opcode in ("and", "or", "xor"):
            build.op(f"{opcode}.{t}", t, t, t)
        build.op(f"not.{t}", t, t)
        build.op(f"cnot.{t}", t, t)
        build.op(f"shl.{t}", t, t, "u32", counts=(1,))
    for t in ("b16", "b32", "b64", *INTEGERS):
        build.op(f"shr.{t}", t, t, "u32", counts=(1,))
    for t in ("b16", "b32", "b64", "s16", "s32", "s64"):
        for count in build.rng.integers(0, int(t[1:]) + 3, 4).tolist():
            for opcode in ("shl", "shr") if t[0] == "b" else ("shr",):
                build.body(f"{opcode}.{t}", f"{opcode}.{t} {{o0}}, {{i0}}, {count};", [t], [t])
    for t in ("u32", "s32", "u64", "s64"):
        for _ in range(8):
            start, size = sorted(build.rng.integers(0, int(t[1:]), 2).tolist())
            build.body(f"bfe.{t}", f"bfe.{t} {{o0}}, {{i0}}, {start}, {size - start};", [t], [t])
    tables = [0x80, 0x96, 0xFE, 0xEA, 0xF8, 0x6A, 0x78, 0xC0, 0xCA]
    for table in tables + build.rng.integers(0, 256, 40).tolist():
        build.body(
            f"lop3_{table:x}", f"lop3.b32 {{o0}}, {{i0}}, {{i1}}, {{i2}}, {table:#x};",
            ["b32"] * 3, ["b32"],
        )  # fmt: skip
    for join in ("and", "or"):
        build.body(
            f"lop3.{join}",
            f"setp.lt.s32 %p1, {{i3}}, 5; lop3.{join}.b32 {{o0}}|%p2, {{i0}}, {{i1}}, {{i2}}, 0x80,"
            " %p1; selp.b32 {o1}, 1, 0, %p2;",
            ["b32"] * 4,
            ["b32", "b32"],
        )
    for _ in range(4):
        build.op("prmt.b32", "b32", "b32", "b32", "b32")
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        build.op(f"prmt.b32.{mode}", "b32", "b32", "b32", "b32")
    for selector in build.rng.integers(0, 1 << 16, 24).tolist():
        build.body(
            f"prmt_{selector:x}", f"prmt.b32 {{o0}}, {{i0}}, {{i1}}, {selector:#x};",
            ["b32", "b32"], ["b32"],
        )  # fmt: skip
    for t in ("b16", "b32", "b64", "f32", "f64", "u16", "s64"):
        build.body(
            f"selp.{t}", f"setp.gt.s32 %p1, {{i2}}, 3; selp.{t} {{o0}}, {{i0}}, {{i1}}, %p1;",
            [t, t, "s32"], [t],
        )  # fmt: skip
        if t != "b16":
            for control in ("s32", "f32"):
                build.op(f"slct.{t}.{control}", t, t, t, control)
    build.op("slct.ftz.u32.f32", "u32", "u32", "u32", "f32")


def move_cases(build: Builder) -> None:
    """Vectors of registers to wider ones and back; addresses to shared memory and back."""
    build.body("pack.b32", "mov.b32 {o0}, {{{i0}, {i1}}};", ["b16", "b16"], ["b32"])
    build.body("unpack.b32", "mov.b32 {{{o0}, {o1}}}, {i0};", ["b32"], ["b16", "b16"])
    build.body("pack.b64", "mov.b64 {o0}, {{{i0}, {i1}}};", ["b32", "b32"], ["b64"])
    build.body("unpack.b64", "mov.b64 {{{o0}, {o1}}}, {i0};", ["b64"], ["b32", "b32"])
    build.body("unpack.low", "mov.b64 {{{o0}, _}}, {i0};", ["b64"], ["b32"])
    build.body("pack.4", "mov.b64 {o0}, {{{i0}, {i1}, {i2}, {i3}}};", ["b16"] * 4, ["b64"])
    build.body("unpack.4", "mov.b64 {{{o0}, {o1}, {o2}, {o3}}}, {i0};", ["b64"], ["b16"] * 4)
    for t, suffix in (("b32", "u8"), ("b32", "s8"), ("b32", "u16"), ("b32", "s16"), ("b64", "s32")):
        size = int(suffix[1:]) // 8
        wide = f"{suffix[0]}{8 * width(t)}"
        build.body(
            f"st.{suffix}",
            f"mov.u64 %d40, words; mad.wide.u32 %d40, %r60, {size}, %d40; cvta.shared.u64 %d41,"
            f" %d40; st.{suffix} [%d41], {{i0}}; bar.sync 0; ld.shared.{suffix} {{o0}}, [%d40];"
            f" ld.{suffix} {{o1}}, [%d41]; add.{wide} {{o1}}, {{o1}}, 1;",
            [t],
            [t, t],
            declared=f".shared .align 16 .b8 words[{THREADS * size}];",
        )


COMPARISONS = {
    "s": ("eq", "ne", "lt", "le", "gt", "ge"),
    "u": ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"),
    "b": ("eq", "ne"),
    "f": ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num",
          "nan"),
}  # fmt: skip


def _targets(type_name: str) -> tuple[str, str]:
    """Both predicates; the half-precision types have one alone, which is copied."""
    if type_name in ("f16", "bf16"):
        return "%p1", "mov.pred %p2, %p1;"
    return "%p1|%p2", ""


def comparison_cases(build: Builder) -> None:
    result = "selp.b32 {o0}, 1, 0, %p1; selp.b32 {o1}, 1, 0, %p2;"
    types = (*INTEGERS, "b16", "b32", "b64", "f32", "f64", "f16", "bf16")
    for t in types:
        for compare in COMPARISONS["f" if t == "bf16" else t[0]]:
            targets, copy = _targets(t)
            build.body(
                f"setp.{compare}.{t}",
                f"setp.{compare}.{t} {targets}, {{i0}}, {{i1}}; {copy} {result}",
                [t, t],
                ["b32", "b32"],
            )
    for join in ("and", "or", "xor"):
        for t in ("s32", "f32", "f64", "u16", "f16"):
            targets, copy = _targets(t)
            build.body(
                f"setp.lt.{join}.{t}",
                f"setp.gt.s32 %p3, {{i2}}, 3; setp.lt.{join}.{t} {targets}, {{i0}}, {{i1}}, %p3;"
                f" {copy} {result}",
                [t, t, "s32"],
                ["b32", "b32"],
            )
            build.body(
                f"setp.ge.{join}.not.{t}",
                f"setp.gt.s32 %p3, {{i2}}, 3; setp.ge.{join}.{t} {targets}, {{i0}}, {{i1}}, !%p3;"
                f" {copy} {result}",
                [t, t, "s32"],
                ["b32", "b32"],
            )
    for compare in ("eq", "lt", "geu", "nan"):
        build.body(
            f"setp.{compare}.ftz.f32", f"setp.{compare}.ftz.f32 %p1|%p2, {{i0}}, {{i1}}; {result}",
            ["f32", "f32"], ["b32", "b32"],
        )  # fmt: skip
        for t in ("f16x2", "bf16x2"):
            build.body(
                f"setp.{compare}.{t}", f"setp.{compare}.{t} %p1|%p2, {{i0}}, {{i1}}; {result}",
                [t, t], ["b32", "b32"],
            )  # fmt: skip
            build.op(f"set.{compare}.{t}.{t}", t, t, t)
    for to in ("u32", "s32", "f32"):
        for t in ("s32", "u16", "f32", "f64", "u64", "b32"):
            build.op(f"set.{'lt' if t != 'b32' else 'ne'}.{to}.{t}", to, t, t)
    for t in ("f32", "f64"):
        for what in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            build.body(
                f"testp.{what}.{t}", f"testp.{what}.{t} %p1, {{i0}}; selp.b32 {{o0}}, 1, 0, %p1;",
                [t], ["b32"],
            )  # fmt: skip


# -------------------------------------------------------------------------------- floats


def float_cases(build: Builder) -> None:
    for mode in ("rn", "rz", "rm", "rp"):
        for opcode in ("add", "sub", "mul"):
            for extra in ("", ".ftz", ".sat", ".ftz.sat"):
                build.op(f"{opcode}.{mode}{extra}.f32", "f32", "f32", "f32")
            build.op(f"{opcode}.{mode}.f64", "f64", "f64", "f64")
        for extra in ("", ".ftz", ".sat"):
            for opcode in ("fma", "mad"):
                build.op(f"{opcode}.{mode}{extra}.f32", "f32", "f32", "f32", "f32")
        build.op(f"fma.{mode}.f64", "f64", "f64", "f64", "f64")
        build.op(f"div.{mode}.f64", "f64", "f64", "f64")
        for opcode in ("rcp", "sqrt"):
            build.op(f"{opcode}.{mode}.f64", "f64", "f64")
        for extra in ("", ".ftz"):
            build.op(f"div.{mode}{extra}.f32", "f32", "f32", "f32")
            for opcode in ("rcp", "sqrt"):
                build.op(f"{opcode}.{mode}{extra}.f32", "f32", "f32")
    for t in ("f16", "f16x2"):
        for opcode in ("add", "sub", "mul"):
            for extra in ("", ".rn", ".ftz", ".sat", ".rn.ftz.sat"):
                build.op(f"{opcode}{extra}.{t}", t, t, t)
        for extra in ("", ".ftz", ".sat", ".relu", ".ftz.sat", ".ftz.relu"):
            build.op(f"fma.rn{extra}.{t}", t, t, t, t)
    for t in ("bf16", "bf16x2"):
        for opcode in ("add", "sub", "mul"):
            build.op(f"{opcode}.rn.{t}", t, t, t)
        for extra in ("", ".relu"):
            build.op(f"fma.rn{extra}.{t}", t, t, t, t)
    for opcode in ("min", "max"):
        for extra in ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"):
            for t in ("f32", "f16", "f16x2", "bf16", "bf16x2"):
                build.op(f"{opcode}{extra}.{t}", t, t, t)
            for t in ("f32", "f16", "f16x2"):
                build.op(f"{opcode}.ftz{extra}.{t}", t, t, t)
        build.op(f"{opcode}.f64", "f64", "f64", "f64")
    for opcode in ("abs", "neg"):
        for t in ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2"):
            build.op(f"{opcode}.{t}", t, t)
        for t in ("f32", "f16", "f16x2"):
            build.op(f"{opcode}.ftz.{t}", t, t)
    for t in ("f32", "f64"):
        build.op(f"copysign.{t}", t, t, t)


def _values(code: Any, kind: str) -> Any:
    dtype = {"f16": np.float16, "bf16": np.float32, "f32": np.float32, "f64": np.float64}[kind]
    if kind == "bf16":
        code = code.astype(np.uint32) << np.uint32(16)
    with np.errstate(all="ignore"):
        return code.view(dtype).astype(np.float64)


def _within(kind: str, relative: float, absolute: float, where: Callable[..., Any] | None) -> Any:
    """Elements that differ by more than a bound; NaN, zeros and infinities must agree.

    Args:
        where: of the inputs' values, for which ones the documentation states a bound; the others
            must agree in being NaN.
    """

    def wrong(expected: Any, found: Any, args: Sequence[Any]) -> Any:
        want, have = _values(expected, kind), _values(found, kind)
        inputs = [_values(arg, kind) for arg in args[:-1]]
        with np.errstate(all="ignore"):
            near = np.abs(want - have) <= np.maximum(relative * np.abs(have), absolute)
            same = (want == have) | (np.isnan(want) & np.isnan(have)) | near
            if where is None:
                return ~same
            stated = where(*inputs)
            return np.where(stated, ~same, np.isnan(want) != np.isnan(have))

    return wrong


def _packed(bound: Any, kind: str) -> Any:
    """A bound on both halves."""

    def wrong(expected: Any, found: Any, args: Sequence[Any]) -> Any:
        halves = [np.ascontiguousarray(each).view(np.uint16) for each in (expected, found)]
        inputs = [np.ascontiguousarray(arg).view(np.uint16) for arg in args]
        return bound(*halves, inputs).reshape(-1, 2).any(axis=1)

    return wrong


def approximate_cases(build: Builder) -> None:
    """Against the bounds of PTX ISA, and a half unit in the last place for our own rounding.

    Where it states none (``ex2`` and ``tanh`` of halves), a unit or two in the last place.
    """
    tiny = 2.0**-149
    ulp = 2.0**-23
    for ftz in ("", ".ftz"):
        least = 2.0**-126 if ftz else 4 * tiny
        bounds: dict[str, Any] = {
            "rcp.approx": _within("f32", ulp, least, None),
            "sqrt.approx": _within("f32", 2 * ulp, least, None),
            "rsqrt.approx": _within("f32", 2.0**-22.4, least, None),
            "sin.approx": _within("f32", 0, 2.0**-20.5, lambda a: np.abs(a) <= 2 * np.pi),
            "cos.approx": _within("f32", 0, 2.0**-20.5, lambda a: np.abs(a) <= 2 * np.pi),
            "lg2.approx": _within("f32", 2.0**-22, 2.0**-22, None),
            "ex2.approx": _within("f32", 2.0**-22, least, None),
        }
        for opcode, bound in bounds.items():
            for _ in range(2):
                build.op(f"{opcode}{ftz}.f32", "f32", "f32", bound=bound)
        for opcode in ("div.approx", "div.full"):
            in_range = lambda a, b: (np.abs(b) >= 2.0**-126) & (np.abs(b) <= 2.0**126)  # noqa: E731
            bound = _within("f32", 2 * ulp, least, in_range if "approx" in opcode else None)
            build.op(f"{opcode}{ftz}.f32", "f32", "f32", "f32", bound=bound)
    build.op("tanh.approx.f32", "f32", "f32", bound=_within("f32", 2.0**-10.9, tiny, None))
    build.op("tanh.approx.f16", "f16", "f16", bound=_within("f16", 0, 2.0**-10.9, None))
    build.op("tanh.approx.bf16", "bf16", "bf16", bound=_within("bf16", 0, 2.0**-8, None))
    build.op("ex2.approx.f16", "f16", "f16", bound=_within("f16", 2.0**-9.9, 2.0**-24, None))
    build.op("ex2.approx.ftz.bf16", "bf16", "bf16", bound=_within("bf16", 2.0**-7, 2.0**-126, None))
    half = _within("f16", 2.0**-9.9, 2.0**-10.9, None)
    build.op("ex2.approx.f16x2", "f16x2", "f16x2", bound=_packed(half, "f16"))
    build.op("tanh.approx.f16x2", "f16x2", "f16x2", bound=_packed(half, "f16"))
    brain = _within("bf16", 2.0**-7, 2.0**-8, None)
    build.op("tanh.approx.bf16x2", "bf16x2", "bf16x2", bound=_packed(brain, "bf16"))
    for opcode in ("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64"):
        build.op(opcode, "f64", "f64", bound=_within("f64", 2.0**-20, 2.0**-1022, None))


# --------------------------------------------------------------------------- conversions

_TO_INTEGER = ("rni", "rzi", "rmi", "rpi")
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_ALL_INTEGERS = ("u8", "s8", *INTEGERS)
_FLOATS = ("f16", "bf16", "f32", "f64")


def _register(type_name: str) -> str:
    """A type whose register holds the small one: cvt takes wider registers."""
    return {"u8": "u32", "s8": "s32"}.get(type_name, type_name)


def conversion_cases(build: Builder) -> None:
    for source in _ALL_INTEGERS:
        for to in _ALL_INTEGERS:
            if source != to:
                fits = (to[0] == source[0] or to[0] == "s") and int(to[1:]) > int(source[1:])
                for extra in ("",) if fits else ("", ".sat"):
                    build.op(f"cvt{extra}.{to}.{source}", _register(to), _register(source))
        for to in _FLOATS:
            for mode in _ROUNDINGS:
                if to == "bf16" and source in ("u8", "s8"):
                    continue
                build.op(f"cvt.{mode}.{to}.{source}", to, _register(source))
    for source in _FLOATS:
        for to in _ALL_INTEGERS:
            for mode in () if source == "bf16" and to[1:] == "8" else _TO_INTEGER:
                build.op(f"cvt.{mode}.{to}.{source}", _register(to), source)
        if source != "bf16":
            build.op(f"cvt.rzi.sat.s32.{source}", "s32", source)
    for mode in _TO_INTEGER:
        build.op(f"cvt.{mode}.ftz.s32.f32", "s32", "f32")
        for t in ("f16", "f32", "f64"):
            build.op(f"cvt.{mode}.{t}.{t}", t, t)
        build.op(f"cvt.{mode}.ftz.f32.f32", "f32", "f32")
        build.op(f"cvt.{mode}.sat.f32.f32", "f32", "f32")
    for source, to in (("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32")):
        build.op(f"cvt.{to}.{source}", to, source)
    build.op("cvt.ftz.f32.f16", "f32", "f16")
    build.op("cvt.ftz.f64.f32", "f64", "f32")
    build.op("cvt.sat.f32.f32", "f32", "f32")
    build.op("cvt.sat.f32.f16", "f32", "f16")
    for mode in _ROUNDINGS:
        for source, to in (("f32", "f16"), ("f64", "f16"), ("f64", "f32")):
            for _ in range(2):
                build.op(f"cvt.{mode}.{to}.{source}", to, source)
            build.op(f"cvt.{mode}.sat.{to}.{source}", to, source)
        build.op(f"cvt.{mode}.ftz.f16.f32", "f16", "f32")
        build.op(f"cvt.{mode}.ftz.f32.f64", "f32", "f64")
        build.op(f"cvt.{mode}.bf16.f32", "bf16", "f32")
        build.op(f"cvt.{mode}.bf16.f64", "bf16", "f64")
    for mode in ("rn", "rz"):
        for to in ("f16x2", "bf16x2"):
            for extra in ("", ".relu"):
                build.op(f"cvt.{mode}{extra}.{to}.f32", to, "f32", "f32")
        build.op(f"cvt.{mode}.relu.bf16.f32", "bf16", "f32")
        build.op(f"cvt.{mode}.relu.f16.f32", "f16", "f32")
        for extra in ("", ".relu"):
            build.op(f"cvt.{mode}{extra}.tf32.f32", "tf32", "f32")
    build.op("cvt.rna.tf32.f32", "tf32", "f32")
    build.op("cvt.rna.tf32.f32", "tf32", "f32")
    for to in ("e4m3x2", "e5m2x2"):
        for extra in ("", ".relu"):
            for _ in range(3):
                build.op(f"cvt.rn.satfinite{extra}.{to}.f32", to, "f32", "f32")
                build.op(f"cvt.rn.satfinite{extra}.{to}.f16x2", to, "f16x2")
            for codes in range(4):
                every = np.arange(codes * THREADS, (codes + 1) * THREADS, dtype=np.uint16)
                swapped = (every * np.uint16(257) ^ np.uint16(0x5A00)).astype(np.uint16)
                build.op(f"cvt.rn{extra}.f16x2.{to}", "f16x2", to, inputs=[swapped])
    for small in ("u16", "s16"):
        build.op(f"cvt.pack.sat.{small}.s32", "b32", "s32", "s32")
    for small in ("u8", "s8"):
        build.op(f"cvt.pack.sat.{small}.s32.b32", "b32", "s32", "s32", "b32")


# --------------------------------------------------------------------------------- warps


def warp_cases(build: Builder) -> None:
    flag = "selp.b32 {o1}, 1, 0, %p1;"
    for mode in ("up", "down", "bfly", "idx"):
        default = 0 if mode == "up" else 31
        for control in (default, default | 0x1000, default | 0x1800, default | 0x1C00,
                        (8 if mode == "up" else 23), 0x0F0F):  # fmt: skip
            for step in ("{i1}", str(int(build.rng.integers(0, 32)))):
                build.body(
                    f"shfl.{mode}",
                    f"shfl.sync.{mode}.b32 {{o0}}|%p1, {{i0}}, {step}, {control}, 0xffffffff;"
                    f" {flag}",
                    ["b32", "b32"],
                    ["b32", "b32"],
                    counts=(1,),
                )
        build.body(
            f"shfl.{mode}.c",
            f"shfl.sync.{mode}.b32 {{o0}}|%p1, {{i0}}, {{i1}}, {{i2}}, -1; {flag}",
            ["b32"] * 3,
            ["b32", "b32"],
            counts=(1,),
        )
    sparse = "setp.lt.u32 %p0, {i0}, 0x40000000;"
    for mode in ("all", "any", "uni"):
        for test in ("setp.ge.u32 %p0, {i0}, 0;", "setp.lt.u32 %p0, {i0}, 0;", sparse,
                     "setp.lt.u32 %p0, %r60, 64;", "setp.eq.u32 %p0, %r60, 70;"):  # fmt: skip
            for sign in ("", "!"):
                build.body(
                    f"vote.{mode}",
                    f"{test} vote.sync.{mode}.pred %p1, {sign}%p0, -1; selp.b32 {{o0}}, 1, 0, %p1;",
                    ["b32"],
                    ["b32"],
                )
    for sign in ("", "!"):
        build.body(
            "ballot", f"{sparse} vote.sync.ballot.b32 {{o0}}, {sign}%p0, 0xffffffff;", ["b32"],
            ["b32"],
        )  # fmt: skip
    few = build.rng.integers(0, 5, THREADS)
    few[:32] = 3
    for t in ("b32", "b64"):
        values = few.astype(f"u{width(t)}")
        build.body(
            f"match.any.{t}", f"match.any.sync.{t} {{o0}}, {{i0}}, -1;", [t], ["b32"],
            inputs=[values],
        )  # fmt: skip
        build.body(
            f"match.all.{t}", f"match.all.sync.{t} {{o0}}|%p1, {{i0}}, -1; {flag}", [t],
            ["b32", "b32"], inputs=[values],
        )  # fmt: skip
    for t in ("u32", "s32"):
        for opcode in ("add", "min", "max"):
            build.body(
                f"redux.{opcode}.{t}", f"redux.sync.{opcode}.{t} {{o0}}, {{i0}}, -1;", [t], [t]
            )
    for opcode in ("and", "or", "xor"):
        build.body(f"redux.{opcode}", f"redux.sync.{opcode}.b32 {{o0}}, {{i0}}, -1;", ["b32"],
                   ["b32"])  # fmt: skip
    build.body(
        "elect", "elect.sync {o0}|%p1, 0xffffffff; selp.b32 {o1}, 1, 0, %p1;", [], ["b32", "b32"]
    )
    # Part of a warp: the lower 20 lanes, and then those with an odd number.
    odd = "and.b32 %r62, %r61, 1; setp.eq.u32 %p3, %r62, 1;"
    for test, mask in (("setp.lt.u32 %p3, %r61, 20;", 0xFFFFF), (odd, 0xAAAAAAAA)):
        prefix = (
            f"mov.u32 %r61, %laneid; {test} mov.b32 {{o0}}, 0; mov.b32 {{o1}}, 0; @!%p3 bra DONE;"
        )
        for label, code in (
            ("ballot", f"{sparse} vote.sync.ballot.b32 {{o0}}, %p0, {mask:#x};"),
            ("any", f"{sparse} vote.sync.any.pred %p1, %p0, {mask:#x}; {flag}"),
            ("all", f"{sparse} vote.sync.all.pred %p1, %p0, {mask:#x}; {flag}"),
            ("redux", f"redux.sync.max.s32 {{o0}}, {{i0}}, {mask:#x};"),
            ("add", f"redux.sync.add.u32 {{o0}}, {{i0}}, {mask:#x};"),
            ("elect", f"elect.sync {{o0}}|%p1, {mask:#x}; {flag}"),
            ("active", "activemask.b32 {o0};"),
            ("match", f"and.b32 %r40, {{i0}}, 3; match.any.sync.b32 {{o0}}, %r40, {mask:#x};"),
            ("shfl", f"shfl.sync.idx.b32 {{o0}}|%p1, {{i0}}, 5, 31, {mask:#x}; {flag}"),
        ):
            build.body(
                f"{label}_{mask:x}", f"{{{{ {prefix} {code} DONE: }}}}", ["b32"], ["b32", "b32"]
            )


# ------------------------------------------------------------------------------- atomics

_ATOMICS = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16x2", "bf16x2", "f16", "bf16"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
    "cas": ("b32", "b64", "b16"),
}


def _noftz(opcode: str, t: str) -> str:
    return f"{opcode}.noftz" if "16" in t and opcode == "add" else opcode


def atomic_cases(build: Builder) -> None:
    """Each lane at an address of its own: old and new values; then many lanes at few addresses."""
    for opcode, types in _ATOMICS.items():
        for t in types:
            size = width(t)
            arrays = build.operands([t, t])
            memory = build.operands([t])[0]
            memory[::5] = arrays[0][::5]
            sources = "{i0}, {i1}" if opcode == "cas" else "{i0}"
            build.body(
                f"atom.{opcode}.{t}",
                f"atom.global.{_noftz(opcode, t)}.{t} {{o0}}, [%d53], {sources};"
                f" ld.global.b{8 * size} {{o1}}, [%d53];",
                [t, t],
                [t, t],
                inputs=arrays,
                initial=[np.zeros(THREADS, f"u{size}"), memory.copy()],
            )
            build.body(
                f"atom.shared.{opcode}.{t}",
                f"mov.b32 %r40, words; mad.lo.u32 %r40, %r60, {size}, %r40;"
                f" st.shared.b{8 * size} [%r40], {{i2}}; bar.sync 0;"
                f" atom.shared.{_noftz(opcode, t)}.{t} {{o0}}, [%r40], {sources};"
                f" ld.shared.b{8 * size} {{o1}}, [%r40];",
                [t, t, t],
                [t, t],
                inputs=[*arrays, memory],
                declared=f".shared .align 16 .b8 words[{THREADS * size}];",
            )
            if opcode in ("exch", "cas", "inc", "dec") or "f" in t:
                continue
            red = f"red.global.{opcode}.{t} [%d40], {{i0}};"
            build.body(
                f"red.{opcode}.{t}",
                f"and.b32 %r40, %r60, 7; mul.wide.u32 %d40, %r40, {size}; mul.wide.u32 %d41, %r60,"
                f" {size}; sub.u64 %d41, %d51, %d41; add.u64 %d40, %d41, %d40; {red}"
                f" bar.sync 0; ld.global.b{8 * size} {{o0}}, [%d51];",
                [t],
                [t],
                inputs=[build.operands([t])[0]],
                initial=[memory.copy()],
            )
            build.body(
                f"red.shared.{opcode}.{t}",
                f"mov.b32 %r40, words; mad.lo.u32 %r41, %r60, {size}, %r40;"
                f" st.shared.b{8 * size} [%r41], {{i1}}; bar.sync 0; and.b32 %r42, %r60, 3;"
                f" mad.lo.u32 %r42, %r42, {size}, %r40; red.shared.{opcode}.{t} [%r42], {{i0}};"
                f" bar.sync 0; ld.shared.b{8 * size} {{o0}}, [%r41];",
                [t, t],
                [t],
                inputs=[arrays[0], memory],
                declared=f".shared .align 16 .b8 words[{THREADS * size}];",
            )
    for vector, t, number in (("v2", "f32", 2), ("v4", "f32", 4), ("v2", "f16x2", 2),
                              ("v4", "bf16x2", 4)):  # fmt: skip
        size = 4 * number
        names = [f"%r{40 + i}" for i in range(number)]
        values = [f"{{i{i}}}" for i in range(number)]
        memory = np.concatenate([build.operands([t])[0] for _ in range(number)])
        for opcode in ("add",) if t == "f32" else ("add", "min", "max"):
            ops = f"{opcode}.noftz" if "16" in t else opcode
            inputs = build.operands([t] * number)
            outputs = [np.zeros(THREADS, np.uint32) for _ in range(number)]
            address = (
                f"mul.wide.u32 %d40, %r60, {size - 4}; add.u64 %d40, %d{50 + 2 * number}, %d40;"
            )
            moves = " ".join(f"mov.b32 {{o{i}}}, {names[i]};" for i in range(number))
            build.body(
                f"atom.{vector}.{opcode}.{t}",
                f"{address} atom.global.{ops}.{vector}.{t} {{{{{', '.join(names)}}}}}, [%d40],"
                f" {{{{{', '.join(values)}}}}}; {moves} bar.sync 0;"
                f" ld.global.b32 {{o{number}}}, [%d{50 + 2 * number}];",
                [t] * number,
                [t] * (number + 1),
                inputs=inputs,
                initial=[*outputs, memory.copy()],
            )


# ------------------------------------------------------------------------ random programs

_RANDOM_OPS: list[tuple[str, str, tuple[str, ...]]] = [
    # opcode, kind of the result, kinds of the sources; the kinds are
    # r: 32 bits of anything; n: a 32-bit integer; d: a 64-bit integer; e: f64 without odd NaNs
    *((f"{op}.s32", "n", ("r", "r")) for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max")),
    *((f"{op}.u32", "n", ("r", "r")) for op in ("mul.hi", "min", "max", "div", "rem")),
    *((f"{op}.b32", "n", ("r", "r")) for op in ("and", "or", "xor")),
    *((f"{op}.s64", "d", ("d", "d")) for op in ("add", "sub", "mul.lo", "mul.hi", "min")),
    *((f"{op}.f32", "r", ("r", "r")) for op in ("add.rn", "mul.rn", "sub.rz", "min", "max.NaN",
                                                "add.rn.ftz", "mul.rp", "div.rn")),
    *((f"{op}.rn.f16x2", "r", ("r", "r")) for op in ("add", "mul", "sub")),
    *((f"{op}.rn.bf16x2", "r", ("r", "r")) for op in ("add", "mul", "sub")),
    ("shl.b32", "n", ("r", "n")), ("shr.s32", "n", ("r", "n")),
    ("shr.u64", "d", ("d", "n")), ("shl.b64", "d", ("d", "n")),
    ("mad.lo.s32", "n", ("r", "r", "r")), ("mad.wide.u32", "d", ("r", "r", "d")),
    ("fma.rn.f32", "r", ("r", "r", "r")), ("fma.rn.f16x2", "r", ("r", "r", "r")),
    ("fma.rz.f32", "r", ("r", "r", "r")), ("fma.rn.f64", "e", ("e", "e", "e")),
    ("add.rn.f64", "e", ("e", "e")), ("mul.rm.f64", "e", ("e", "e")),
    ("div.rn.f64", "e", ("e", "e")),
    ("mul.wide.s32", "d", ("r", "r")), ("popc.b64", "n", ("d",)), ("clz.b32", "n", ("r",)),
    ("brev.b32", "n", ("r",)), ("bfe.s32", "n", ("r", "n", "n")), ("sad.s32", "n", ("r",) * 3),
    ("prmt.b32", "n", ("r", "r", "n")), ("shf.l.wrap.b32", "n", ("r", "r", "n")),
    ("cvt.rn.f32.s32", "r", ("r",)), ("cvt.rzi.s32.f32", "n", ("r",)), ("cvt.s64.s32", "d", ("r",)),
    ("cvt.u32.u64", "n", ("d",)), ("cvt.rn.f16x2.f32", "r", ("r", "r")),
    ("cvt.rn.bf16x2.f32", "r", ("r", "r")), ("cvt.rn.f32.u64", "r", ("d",)),
    ("cvt.rzi.u64.f64", "d", ("e",)), ("cvt.rn.f64.s64", "e", ("d",)),
    ("cvt.rn.f32.f64", "r", ("e",)), ("dp4a.s32.u32", "n", ("r", "r", "r")),
]  # fmt: skip
"""What ptxas was seen to do to programs without these kinds, and is no matter of the hardware: it
swaps the operands of commutative f64 operations, which decides whose NaN comes out; it converts a
register that a float operation wrote before it takes it as the count of a 64-bit shift; and it
replaces min(x, x) by x, NaN or not."""


def random_programs(build: Builder, number: int, seed: int = 1) -> None:
    """Straight-line programs of 6 to 14 instructions, some of them guarded, some with constants."""
    choose = random.Random(seed)
    for count in range(number):
        pools = {
            "r": ["{i0}", "{i1}", "{i2}"],
            "n": ["{i0}", "{i1}", "{i2}"],
            "d": ["{i3}", "{i4}"],
            "e": ["%d48", "%d49"],
        }
        lines = [
            "setp.lt.s32 %p1, {i0}, {i1};",
            "cvt.rn.f64.s64 %d48, {i3}; cvt.rn.f64.s32 %d49, {i0};",
        ]
        for step in range(choose.randrange(6, 15)):
            opcode, kind, sources = choose.choice(_RANDOM_OPS)
            texts: list[str] = []
            for source in sources:
                text = choose.choice(pools[source])
                while opcode.startswith(("min", "max")) and text in texts:
                    text = choose.choice(pools[source])
                if source == "n" and texts and choose.random() < 0.3:
                    text = str(choose.randrange(1, 32 if opcode.startswith("bfe") else 70))
                texts.append(text)
            target = f"%{'r' if kind in 'rn' else 'd'}{30 + step}"
            if choose.random() < 0.2:  # guarded: the register keeps an earlier value
                move = "b32" if kind in "rn" else "b64"
                lines.append(f"mov.{move} {target}, {choose.choice(pools[kind])};")
                opcode = f"@{choose.choice(('', '!'))}%p1 {opcode}"
            lines.append(f"{opcode} {target}, {', '.join(texts)};")
            pools[kind].append(target)
            if kind == "n":
                pools["r"].append(target)
        lines += [f"mov.b32 {{o0}}, {pools['r'][-1]};", f"mov.b32 {{o1}}, {pools['n'][-1]};"]
        lines += [f"mov.b64 {{o2}}, {pools['d'][-1]};", f"mov.b64 {{o3}}, {pools['e'][-1]};"]
        kinds = choose.choice((["b32"] * 3, ["f32"] * 3, ["f16x2", "b32", "f32"]))
        build.body(
            f"random{count}", " ".join(lines), [*kinds, "b64", "b64"],
            ["b32", "b32", "b64", "b64"],
        )  # fmt: skip


# --------------------------------------------------------------------------------- sweeps

SWEEP = 4096


def _codes(values: Any, kind: str) -> Any:
    """The codes of float64 values in a type, rounded somehow."""
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    dtype = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
    with np.errstate(all="ignore"):
        return values.astype(dtype).view(f"u{np.dtype(dtype).itemsize}")


def _hard_products(kind: str, rng: np.random.Generator) -> list[Any]:
    """a, b, c: a * b and a * b + c lie next to ties, to the smallest normal number, or to 0."""
    mantissa, least = {"f16": (10, -14), "bf16": (7, -126), "f32": (23, -126)}[kind]
    with np.errstate(all="ignore"):
        low, high = (-7, 7) if kind == "f16" else (-60, 60)
        a = np.ldexp(rng.integers(1 << mantissa, 2 << mantissa, SWEEP).astype(float), -mantissa)
        a = np.ldexp(a, rng.integers(low, high, SWEEP)) * rng.choice([-1.0, 1.0], SWEEP)
        b = np.ldexp(rng.integers(1 << mantissa, 2 << mantissa, SWEEP).astype(float), -mantissa)
        b = np.ldexp(b, rng.integers(low, high, SWEEP))
        edge = slice(0, SWEEP // 4)  # products next to the smallest normal number
        b[edge] = 2.0**least / a[edge] * (1 + rng.integers(-2, 3, SWEEP // 4) * 2.0**-mantissa)
        a, b = (_values(_codes(value, kind), kind) for value in (a, b))
        c = -a * b * rng.choice([1.0, 1.0, 0.5, 2.0**-mantissa, 2.0**mantissa], SWEEP)
        shift = 2.0 ** rng.integers(-mantissa - 3, 1, SWEEP)
        c = np.where(rng.random(SWEEP) < 0.5, c, c * (1 + shift))
        c[: SWEEP // 8] = np.copysign(2.0**least, c[: SWEEP // 8])
    return [_codes(value, kind) for value in (a, b, c)]


def _any_codes(type_name: str, rng: np.random.Generator) -> Any:
    return np.concatenate([operand(type_name, rng) for _ in range(SWEEP // THREADS)])


def sweep_cases(build: Builder) -> None:
    rng = build.rng
    for kind in ("f32", "f16"):
        modes = ("rn", "rz", "rm", "rp") if kind == "f32" else ("rn",)
        for mode in modes:
            for ftz in ("", ".ftz"):
                a, b, c = _hard_products(kind, rng)
                build.op(f"fma.{mode}{ftz}.{kind}", kind, kind, kind, kind, inputs=[a, b, c])
                build.op(f"mul.{mode}{ftz}.{kind}", kind, kind, kind, inputs=[a, b])
                product = _codes(_values(a, kind) * _values(b, kind), kind)
                build.op(f"add.{mode}{ftz}.{kind}", kind, kind, kind, inputs=[product, c])
                if kind == "f32":
                    build.op(f"div.{mode}{ftz}.{kind}", kind, kind, kind, inputs=[a, b])
                    build.op(f"rcp.{mode}{ftz}.{kind}", kind, kind, inputs=[b])
                    root = _codes(np.abs(_values(a, kind)), kind)
                    build.op(f"sqrt.{mode}{ftz}.{kind}", kind, kind, inputs=[root])
    a, b, c = _hard_products("bf16", rng)
    build.op("fma.rn.bf16", "bf16", "bf16", "bf16", "bf16", inputs=[a, b, c])
    build.op("mul.rn.bf16", "bf16", "bf16", "bf16", inputs=[a, b])
    build.op("add.rn.bf16", "bf16", "bf16", "bf16", inputs=[a, c])
    for mode in ("rn", "rz", "rm", "rp"):
        arrays = [_any_codes("f64", rng) for _ in range(3)]
        build.op(f"fma.{mode}.f64", "f64", "f64", "f64", "f64", inputs=_no_two_nans(arrays))
        wide = [_values(each, "f32") for each in _hard_products("f32", rng)]
        near = [_codes(value * (1 + 2.0**-52), "f64") for value in wide]
        build.op(f"fma.{mode}.f64", "f64", "f64", "f64", "f64", inputs=near)
    every = np.arange(1 << 16, dtype=np.uint16)
    for to in ("f32", "f64", "s32", "u8", "s64"):
        for kind in ("f16", "bf16"):
            if kind == "bf16" and to == "u8":
                continue
            mode = "" if to[0] == "f" else "rni."
            build.op(f"cvt.{mode}{to}.{kind}", _register(to), kind, inputs=[every])
    for to in ("e4m3x2", "e5m2x2"):
        pairs = every.astype(np.uint32) | (every.astype(np.uint32) * 40503 & 0xFFFF) << np.uint32(
            16
        )
        build.op(f"cvt.rn.satfinite.{to}.f16x2", to, "f16x2", inputs=[pairs.astype(np.uint32)])
        build.op(f"cvt.rn.f16x2.{to}", "f16x2", to, inputs=[every])
        for _ in range(2):
            exponent = rng.integers(-20, 20, (2, SWEEP))
            numbers = np.ldexp(rng.integers(0, 1 << 10, (2, SWEEP)) / 512.0 + 1e-7 * (
                rng.integers(-1, 2, (2, SWEEP))), exponent)  # fmt: skip
            codes = [_codes(row * rng.choice([-1, 1], SWEEP), "f32") for row in numbers]
            build.op(f"cvt.rn.satfinite.{to}.f32", to, "f32", "f32", inputs=codes)
    for source in ("f32", "f64"):
        for mode in ("rn", "rz", "rm", "rp"):
            for to in ("f16", "bf16") if source == "f32" else ("f16", "bf16", "f32"):
                values = _values(_any_codes(source, rng), source)
                mantissa = {"f16": 10, "bf16": 7, "f32": 23}[to]
                with np.errstate(all="ignore"):
                    ties = np.ldexp(rng.integers(0, 1 << mantissa + 3, SWEEP).astype(float),
                                    rng.integers(-mantissa - 17, 8, SWEEP))  # fmt: skip
                values[::2] = ties[::2]
                build.op(f"cvt.{mode}.{to}.{source}", to, source, inputs=[_codes(values, source)])
        for to in ("s8", "u16", "s32", "u32", "s64", "u64"):
            for mode in _TO_INTEGER:
                bits = int(to[1:])
                edge = 2.0 ** rng.choice([0, 3, bits - 1, bits], SWEEP)
                values = (edge + rng.integers(-9, 10, SWEEP) / 4) * rng.choice([-1, 1], SWEEP)
                build.op(
                    f"cvt.{mode}.{to}.{source}", _register(to), source,
                    inputs=[_codes(values, source)],
                )  # fmt: skip
    for source in ("s32", "u64", "s64"):
        for to in ("f16", "bf16", "f32", "f64"):
            for mode in ("rn", "rz", "rm", "rp"):
                size = width(source)
                shift = rng.integers(0, 8 * size, SWEEP).astype(f"u{size}")
                values = _any_codes(source, rng) >> shift
                build.op(f"cvt.{mode}.{to}.{source}", to, source, inputs=[values])


def _no_two_nans(arrays: Sequence[Any]) -> list[Any]:
    """f64 operands of which one at most is NaN: whose NaN comes out is ptxas' choice."""
    kept = [np.array(each) for each in arrays]
    nans = [np.isnan(each.view(np.float64)) for each in kept]
    kept[1][nans[0] & nans[1]] = 0x3FF0000000000000
    kept[2][(nans[0] | nans[1]) & nans[2]] = 0x3FF0000000000000
    return kept


def scalar_cases(seed: int = 0, programs: int = 300) -> list[Case]:
    """All cases; the same ones for the same seed."""
    build = Builder(seed)
    for make in (
        integer_cases,
        logic_cases,
        move_cases,
        comparison_cases,
        float_cases,
        approximate_cases,
        conversion_cases,
        warp_cases,
        atomic_cases,
        sweep_cases,
    ):
        make(build)
    random_programs(build, programs, seed + 1)
    return build.cases
