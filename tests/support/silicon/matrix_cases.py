"""Kernels of matrix instructions, and random cases of them: the same on a GPU and the emulator.

Everything is drawn from generators whose streams do not change between releases of Python and
numpy, so that outputs that a GPU recorded can be compared anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_ext.errors import LayoutError
from triton_ext.hardware.smem_descriptor import SmemDescriptor

SMEM = 48 * 1024
BASE = 1024
"""Dynamic shared memory starts here (the emulator's, and an H100's, first byte)."""
K_BYTES = 32
HEADER = """
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
"""
ELEMENT_BYTES = {
    "f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1, "f64": 8,
}  # fmt: skip


@dataclass
class Case:
    """One launch of one block.

    Attributes:
        name: says what is special.
        ptx: a module with the kernel ``k``.
        args: of the kernel; arrays are changed in place.
        output: which of `args` is the result.
        block: threads.
        exact: whether the result does not depend on the order and rounding of sums.
    """

    name: str
    ptx: str
    args: list[Any]
    output: int
    block: int = 128
    exact: bool = True
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The instruction; for random numbers, "rounding" before it."""
        return " ".join(self.name.split()[: 1 if self.exact else 2])

    def run(self, launch: Any) -> np.ndarray:
        """The output of ``launch(ptx, kernel, grid, block, args, dynamic_smem_bytes=)``."""
        args = [a.copy() if isinstance(a, np.ndarray) else a for a in self.args]
        launch(self.ptx, "k", 1, self.block, args, dynamic_smem_bytes=SMEM)
        output: np.ndarray = args[self.output]
        return output


def _copy_in() -> str:
    """The image (parameter ``image``) into shared memory, 16 bytes a thread at a time."""
    return f"""
 ld.param.u64 %rd1, [image];
 mov.u32 %r1, %tid.x;
 mov.u32 %r2, smem;
 mul.lo.u32 %r3, %r1, 16;
 mul.wide.u32 %rd2, %r1, 16;
 add.s64 %rd1, %rd1, %rd2;
 add.u32 %r4, %r2, %r3;
 mov.u32 %r5, 0;
L:
 ld.global.v4.u32 {{%r6, %r7, %r8, %r9}}, [%rd1];
 st.shared.v4.u32 [%r4], {{%r6, %r7, %r8, %r9}};
 mov.u32 %r10, %ntid.x;
 mul.lo.u32 %r11, %r10, 16;
 mul.wide.u32 %rd3, %r10, 16;
 add.s64 %rd1, %rd1, %rd3;
 add.u32 %r4, %r4, %r11;
 add.u32 %r5, %r5, %r11;
 setp.lt.u32 %p1, %r5, {SMEM};
 @%p1 bra L;
"""


def _words(prefix: str, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(count)) + "}"


def _move(pointer: str, prefix: str, count: int, *, store: bool, width: int = 32) -> str:
    """Registers <-> words [register][thread] at parameter `pointer`."""
    lines = [
        f" ld.param.u64 %rd10, [{pointer}];",
        " mov.u32 %r20, %tid.x;",
        f" mul.wide.u32 %rd11, %r20, {width // 8};",
        " mov.u32 %r21, %ntid.x;",
        f" mul.wide.u32 %rd12, %r21, {width // 8};",
        " add.s64 %rd10, %rd10, %rd11;",
    ]
    for i in range(count):
        if store:
            lines.append(f" st.global.b{width} [%rd10], %{prefix}{i};")
        else:
            lines.append(f" ld.global.b{width} %{prefix}{i}, [%rd10];")
        lines.append(" add.s64 %rd10, %rd10, %rd12;")
    return "\n".join(lines) + "\n"


def kernel(parameters: str, body: str, registers: str = "") -> str:
    """A module with one kernel."""
    return f"""{HEADER}
.visible .entry k({parameters})
{{
 .reg .b32 %r<40>;
 .reg .b64 %rd<40>;
 .reg .pred %p<8>;
{registers}
{body}
 ret;
}}
"""


def wgmma_ptx(
    n: int,
    d_type: str,
    a_type: str,
    b_type: str,
    *,
    a_registers: bool = False,
    signs: tuple[int, int] = (1, 1),
    transposed: tuple[int, int] = (0, 0),
    saturate: bool = False,
) -> str:
    """One wgmma.mma_async; the descriptors are parameters, relative to the image."""
    k = K_BYTES // ELEMENT_BYTES[a_type]
    words = n // 4 if d_type == "f16" else n // 2
    rest = []
    if d_type != "s32":
        rest += [str(sign) for sign in signs]
    if a_type in ("f16", "bf16"):
        rest += [str(t) for t in (transposed[1:] if a_registers else transposed)]
    opcode = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}{'.satfinite' if saturate else ''}"
    opcode += f".{d_type}.{a_type}.{b_type}"
    a = _words("a", 4) if a_registers else "%rd20"
    body = f"""
{_copy_in()}
 fence.proxy.async;
 bar.sync 0;
 shr.u32 %r12, %r2, 4;
 mul.wide.u32 %rd22, %r12, 1;
 ld.param.u64 %rd20, [a];
 add.s64 %rd20, %rd20, %rd22;
 ld.param.u64 %rd21, [b];
 add.s64 %rd21, %rd21, %rd22;
 ld.param.u32 %r13, [scale];
 setp.ne.u32 %p2, %r13, 0;
{_move("d", "d", words, store=False)}
{_move("aw", "a", 4, store=False) if a_registers else ""}
 wgmma.fence.sync.aligned;
 {opcode} {_words("d", words)}, {a}, %rd21, %p2{"".join(", " + each for each in rest)};
 wgmma.commit_group.sync.aligned;
 wgmma.wait_group.sync.aligned 0;
{_move("d", "d", words, store=True)}
"""
    parameters = (
        ".param .u64 image, .param .u64 d, .param .u64 aw, .param .u64 a, .param .u64 b,"
        " .param .u32 scale"
    )
    return kernel(parameters, body, f" .reg .b32 %d<{words}>;\n .reg .b32 %a<4>;")


def mma_ptx(shape: str, d_type: str, a_type: str, b_type: str, saturate: bool = False) -> str:
    """One mma.sync of each warp, from registers to registers."""
    m, n, k = (
        int(part) for part in shape.replace("m", "").replace("n", " ").replace("k", " ").split()
    )
    size = ELEMENT_BYTES[a_type]
    wide = a_type == "f64"
    word = 8 if wide else 4
    counts = {
        "a": m * k * size // (32 * word),
        "b": n * k * size // (32 * word),
        "d": m * n * (2 if d_type == "f16" else 8 if wide else 4) // (32 * word),
    }
    opcode = f"mma.sync.aligned.{shape}.row.col{'.satfinite' if saturate else ''}"
    opcode += f".{d_type}.{a_type}.{b_type}.{d_type}"
    width = 8 * word
    body = "".join(_move(name, name, counts[name], store=False, width=width) for name in "abd")
    vectors = {name: _words(name, counts[name]) for name in "abd"}
    body += f" {opcode} {vectors['d']}, {vectors['a']}, {vectors['b']}, {vectors['d']};\n"
    body += _move("d", "d", counts["d"], store=True, width=width)
    registers = "\n".join(f" .reg .b{width} %{name}<{counts[name]}>;" for name in "abd")
    return kernel(".param .u64 a, .param .u64 b, .param .u64 d", body, registers)


def ldmatrix_ptx(number: int, transposed: bool) -> str:
    """The image, loaded by ldmatrix at one offset a thread."""
    trans = ".trans" if transposed else ""
    body = f"""
{_copy_in()}
 bar.sync 0;
{_move("at", "o", 1, store=False)}
 add.u32 %o0, %o0, %r2;
 ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 {_words("d", number)}, [%o0];
{_move("d", "d", number, store=True)}
"""
    registers = f" .reg .b32 %d<{number}>;\n .reg .b32 %o<1>;"
    return kernel(".param .u64 image, .param .u64 at, .param .u64 d", body, registers)


def stmatrix_ptx(number: int, transposed: bool) -> str:
    """The image, changed by stmatrix at one offset a thread, and copied back."""
    trans = ".trans" if transposed else ""
    body = f"""
{_copy_in()}
 bar.sync 0;
{_move("at", "o", 1, store=False)}
{_move("d", "d", number, store=False)}
 add.u32 %o0, %o0, %r2;
 stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16 [%o0], {_words("d", number)};
 bar.sync 0;
 ld.param.u64 %rd1, [out];
 add.s64 %rd1, %rd1, %rd2;
 add.u32 %r4, %r2, %r3;
 mov.u32 %r5, 0;
M:
 ld.shared.v4.u32 {{%r6, %r7, %r8, %r9}}, [%r4];
 st.global.v4.u32 [%rd1], {{%r6, %r7, %r8, %r9}};
 add.s64 %rd1, %rd1, %rd3;
 add.u32 %r4, %r4, %r11;
 add.u32 %r5, %r5, %r11;
 setp.lt.u32 %p1, %r5, {SMEM};
 @%p1 bra M;
"""
    registers = f" .reg .b32 %d<{number}>;\n .reg .b32 %o<1>;"
    parameters = ".param .u64 image, .param .u64 at, .param .u64 d, .param .u64 out"
    return kernel(parameters, body, registers)


def movmatrix_ptx() -> str:
    """A transposition in registers."""
    body = f"""
{_move("d", "d", 1, store=False)}
 movmatrix.sync.aligned.m8n8.trans.b16 %d0, %d0;
{_move("d", "d", 1, store=True)}
"""
    return kernel(".param .u64 d", body, " .reg .b32 %d<1>;")


# ------------------------------------------------------------------------ data


def small_integers(state: np.random.RandomState, types: tuple[str, ...], size: int) -> np.ndarray:
    """`size` bytes whose elements are small numbers in every one of `types` (of one width).

    Products of two of them, and sums of 32 of those, are exact in every accumulator.
    """
    if types[0] == "f16":
        return state.randint(-4, 5, size // 2).astype(np.float16).view(np.uint8)
    if types[0] == "bf16":
        values = state.randint(-4, 5, size // 2).astype(np.float32).view(np.uint32)
        return (values >> 16).astype(np.uint16).view(np.uint8)
    if types[0] == "tf32":
        return state.randint(-8, 9, size // 4).astype(np.float32).view(np.uint8)
    if types[0] in ("s8", "u8"):
        return state.randint(0, 256, size).astype(np.uint8)
    codes = [
        code
        for code in range(256)
        if all(
            (v := _fp8(code, name)) == v and abs(v) <= 4 and v * 2 == int(v * 2) for name in types
        )
    ]
    return np.array(codes, np.uint8)[state.randint(0, len(codes), size)]


def _fp8(code: int, name: str) -> float:
    """The value of an fp8 code (OCP 8-bit floating point)."""
    exponent_bits, bias = (4, 7) if name == "e4m3" else (5, 15)
    mantissa_bits = 7 - exponent_bits
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    special = code & 0x7F == 0x7F if name == "e4m3" else exponent == 31
    if special:
        return float("nan")
    if exponent == 0:
        value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
    else:
        value = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
    return -value if code & 0x80 else value


def _accumulator(state: np.random.RandomState, d_type: str, words: int) -> np.ndarray:
    if d_type == "f16":
        return state.randint(-64, 65, 2 * words).astype(np.float16).view(np.uint32)
    if d_type == "f32":
        return state.randint(-200, 201, words).astype(np.float32).view(np.uint32)
    return state.randint(-(2**31), 2**31, words, dtype=np.int64).astype(np.int32).view(np.uint32)


# ---------------------------------------------------------------- random cases

WGMMA_FORMS: list[tuple[str, str, str, bool]] = [
    # D, A, B, saturate
    ("f32", "f16", "f16", False),
    ("f16", "f16", "f16", False),
    ("f32", "bf16", "bf16", False),
    ("f32", "tf32", "tf32", False),
    ("f32", "e4m3", "e4m3", False),
    ("f32", "e4m3", "e5m2", False),
    ("f16", "e5m2", "e4m3", False),
    ("s32", "s8", "s8", False),
    ("s32", "u8", "s8", True),
    ("s32", "s8", "u8", False),
]


def _descriptor(
    rng: random.Random, extent: int, element_bytes: int, major: str, ordinary: bool
) -> SmemDescriptor:
    """A legal descriptor whose operand lies within the image.

    Args:
        ordinary: base offset 0.
    """
    while True:
        scale = rng.choice((16, 16, 128, 256, 1024))
        descriptor = SmemDescriptor(
            90,
            16 * rng.randrange(1024) if rng.random() < 0.7 else 1024 * rng.randrange(16),
            min(scale * rng.randrange(0, 40), 16000),
            min(scale * rng.randrange(0, 40), 16000),
            rng.choice((0, 32, 64, 128)),
            base_offset=0 if ordinary else rng.randrange(8),
        )
        if _inside(descriptor, extent, element_bytes, major):
            return descriptor


def _inside(descriptor: SmemDescriptor, extent: int, element_bytes: int, major: str) -> bool:
    """Whether every chunk lies in the image, whichever way base offset and LBO are read."""
    k = K_BYTES // element_bytes
    strides = max(descriptor.leading_byte_offset, descriptor.stride_byte_offset)
    try:
        corners = [
            descriptor.element_address(mn, kk, 8 * element_bytes, major)  # type: ignore[arg-type]
            for mn in (0, extent - 1)
            for kk in (0, k - 1)
        ]
    except LayoutError:
        return False
    return max(corners) + strides + 2048 < SMEM


def wgmma_cases(count: int, seed: int = 0) -> Iterator[Case]:
    """Random descriptors, forms and operands of wgmma; integers, so that sums are exact."""
    rng = random.Random(seed)
    for number in range(count):
        d_type, a_type, b_type, saturate = WGMMA_FORMS[number % len(WGMMA_FORMS)]
        state = np.random.RandomState(rng.randrange(2**31))
        size = ELEMENT_BYTES[a_type]
        n = rng.choice((8, 16, 64, 256)) if d_type == "s32" else rng.choice((8, 24, 64, 256))
        half = a_type in ("f16", "bf16")
        from_registers = rng.random() < 0.25
        transposed = (rng.randrange(2) if half else 0, rng.randrange(2) if half else 0)
        if from_registers:
            transposed = (0, transposed[1])
        signs = rng.choice(((1, 1), (1, 1), (-1, 1), (1, -1))) if half else (1, 1)
        ordinary = rng.random() < 0.5
        majors = ["MN" if t else "K" for t in transposed]
        a = _descriptor(rng, 64, size, majors[0], ordinary)
        b = _descriptor(rng, n, size, majors[1], ordinary)
        types = (a_type,) if a_type == b_type else (a_type, b_type)
        image = small_integers(state, types, SMEM)
        words = n // 4 if d_type == "f16" else n // 2
        accumulator = _accumulator(state, d_type, words * 128)
        a_words = small_integers(state, types, 4 * 4 * 128).view(np.uint32)
        scale = int(rng.random() < 0.8)
        ptx = wgmma_ptx(
            n, d_type, a_type, b_type, a_registers=from_registers, signs=signs,
            transposed=transposed, saturate=saturate,
        )  # fmt: skip
        source = "registers" if from_registers else f"{majors[0]}-major {_short(a)}"
        yield Case(
            f"wgmma n{n} {d_type} {a_type} {b_type}: A {source}; B {majors[1]}-major {_short(b)}",
            ptx,
            [image, accumulator, a_words, a.encode(), b.encode(), scale],
            1,
            info={"a": a, "b": b, "majors": majors, "n": n, "a_registers": from_registers},
        )


def _short(descriptor: SmemDescriptor) -> str:
    return (
        f"at {descriptor.start_address} LBO {descriptor.leading_byte_offset}"
        f" SBO {descriptor.stride_byte_offset} swizzle {descriptor.swizzle_byte_width}"
        f" base {descriptor.base_offset}"
    )


MMA_FORMS: list[tuple[str, str, str, str, bool]] = [
    # shape, D, A, B, saturate
    ("m16n8k8", "f32", "f16", "f16", False),
    ("m16n8k16", "f32", "f16", "f16", False),
    ("m16n8k8", "f16", "f16", "f16", False),
    ("m16n8k16", "f16", "f16", "f16", False),
    ("m16n8k8", "f32", "bf16", "bf16", False),
    ("m16n8k16", "f32", "bf16", "bf16", False),
    ("m16n8k4", "f32", "tf32", "tf32", False),
    ("m16n8k8", "f32", "tf32", "tf32", False),
    ("m16n8k32", "f32", "e4m3", "e4m3", False),
    ("m16n8k32", "f32", "e5m2", "e4m3", False),
    ("m8n8k16", "s32", "s8", "s8", False),
    ("m16n8k16", "s32", "s8", "u8", True),
    ("m16n8k32", "s32", "u8", "u8", False),
    ("m16n8k32", "s32", "s8", "s8", True),
    ("m8n8k4", "f64", "f64", "f64", False),
    ("m16n8k4", "f64", "f64", "f64", False),
    ("m16n8k8", "f64", "f64", "f64", False),
    ("m16n8k16", "f64", "f64", "f64", False),
    ("m16n8k16", "f32", "e4m3", "e5m2", False),
    ("m16n8k32", "f16", "e4m3", "e4m3", False),
    ("m16n8k16", "f16", "e4m3", "e4m3", False),
]


def mma_cases(repeats: int, seed: int = 1) -> Iterator[Case]:
    """mma.sync of every form, two warps; integers."""
    state = np.random.RandomState(seed)
    for _ in range(repeats):
        for shape, d_type, a_type, b_type, saturate in MMA_FORMS:
            types = (a_type,) if a_type == b_type else (a_type, b_type)
            args = []
            for _name in "ab":
                if a_type == "f64":
                    args.append(state.randint(-99, 99, 8 * 64).astype(np.float64))
                else:
                    args.append(small_integers(state, types, 4 * 4 * 64).view(np.uint32))
            if d_type == "f64":
                args.append(state.randint(-99, 99, 4 * 64).astype(np.float64))
            else:
                args.append(_accumulator(state, d_type, 4 * 64))
            ptx = mma_ptx(shape, d_type, a_type, b_type, saturate)
            yield Case(f"mma.sync {shape} {d_type} {a_type} {b_type}", ptx, args, 2, block=64)


def ldmatrix_cases(repeats: int, seed: int = 2) -> Iterator[Case]:
    """ldmatrix, stmatrix and movmatrix: rows anywhere in shared memory, four warps."""
    state = np.random.RandomState(seed)
    for _ in range(repeats):
        for number in (1, 2, 4):
            for transposed in (False, True):
                image = state.randint(0, 256, SMEM).astype(np.uint8)
                at = (16 * state.randint(0, SMEM // 16, 128)).astype(np.uint32)
                name = f"x{number}{'.trans' if transposed else ''}"
                data = state.randint(0, 2**32, (number, 128), dtype=np.uint64).astype(np.uint32)
                ptx = ldmatrix_ptx(number, transposed)
                yield Case(f"ldmatrix {name}", ptx, [image, at, data], 2)
                # rows of their own, so that the order of the stores does not matter
                rows = state.permutation(SMEM // 16)[:128]
                at = (16 * rows).astype(np.uint32)
                ptx = stmatrix_ptx(number, transposed)
                out = np.zeros(SMEM, np.uint8)
                yield Case(f"stmatrix {name}", ptx, [image, at, data, out], 3)
        data = state.randint(0, 2**32, 128, dtype=np.uint64).astype(np.uint32)
        yield Case("movmatrix", movmatrix_ptx(), [data], 0)


def layout_cases() -> list[Case]:
    """Everything whose result is exact."""
    return [*wgmma_cases(400), *mma_cases(4), *ldmatrix_cases(5)]


# -------------------------------------------------------------------- rounding


def random_codes(
    state: np.random.RandomState, name: str, size: int, kind: str, negate: bool = False
) -> np.ndarray:
    """`size` bytes of elements, to see how sums are rounded.

    Args:
        kind: "normal": a normal distribution; "wide": exponents spread widely; "any": any bits;
            "tiny": subnormal or nearly; "zeros": zeros of both signs, and few others; "cancel":
            in each 32 bytes, the second half nearly repeats the first.
        negate: and has the other sign, so that the products nearly cancel.
    """
    bits = 8 * ELEMENT_BYTES[name]
    count = size // ELEMENT_BYTES[name]
    exponent_bits, mantissa_bits = {
        "f16": (5, 10), "bf16": (8, 7), "tf32": (8, 23), "e4m3": (4, 3), "e5m2": (5, 2),
    }[name]  # fmt: skip
    codes = state.randint(0, 2**bits, count, dtype=np.uint64)
    sign = np.uint64(1 << bits - 1)
    if kind == "zeros":  # one of eight is 1 or -1
        one = {"f16": 0x3C00, "bf16": 0x3F80, "tf32": 0x3F800000, "e4m3": 0x38, "e5m2": 0x3C}[name]
        ones = (state.randint(0, 8, count) == 0).astype(np.uint64) * np.uint64(one)
        return (codes & sign | ones).astype(f"u{bits // 8}").view(np.uint8)
    if kind != "any":
        bias = 2 ** (exponent_bits - 1) - 1
        if kind in ("normal", "cancel"):
            exponent = bias - state.geometric(0.5, count) + 1
        elif kind == "wide":
            exponent = bias + state.randint(-min(bias - 1, 12), min(bias, 12) + 1, count)
        else:
            exponent = state.randint(0, 3, count)
        exponent = np.clip(exponent, 0, 2**exponent_bits - 2).astype(np.uint64)
        mask = np.uint64((2**exponent_bits - 1) << mantissa_bits)
        codes = codes & ~mask | exponent << np.uint64(mantissa_bits)
    if kind == "cancel":
        halves = codes.reshape(-1, 2, K_BYTES // 2 // ELEMENT_BYTES[name])
        other = halves[:, 0] ^ state.randint(0, 2, halves[:, 0].shape, dtype=np.uint64)
        halves[:, 1] = other ^ sign if negate else other
    return codes.astype(f"u{bits // 8}").view(np.uint8)


def random_accumulators(
    state: np.random.RandomState, d_type: str, words: int, kind: str
) -> np.ndarray:
    """Accumulators of sizes that compare with the products'."""
    count = 2 * words if d_type == "f16" else words
    if kind == "any":
        return state.randint(0, 2**32, words, dtype=np.uint64).astype(np.uint32)
    if kind == "zeros":
        signs = state.randint(0, 2, count) * -2.0 + 1
        return (0 * signs).astype(np.float16 if d_type == "f16" else np.float32).view(np.uint32)
    spread = {"normal": 3, "wide": 16, "tiny": 3, "cancel": 8}[kind]
    scale = np.exp2(state.randint(-spread, spread + 1, count).astype(np.float64))
    values = state.standard_normal(count) * scale
    if kind == "tiny":
        values = values * 2.0**-120
    if d_type == "f16":
        return np.clip(values, -60000, 60000).astype(np.float16).view(np.uint32)
    return values.astype(np.float32).view(np.uint32)


ROUNDING_WGMMA = [
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    ("f32", "e4m3", "e4m3"), ("f32", "e5m2", "e5m2"), ("f32", "e4m3", "e5m2"),
    ("f16", "e4m3", "e4m3"), ("f16", "e5m2", "e5m2"),
]  # fmt: skip
ROUNDING_MMA = [form[:4] for form in MMA_FORMS if form[1] in ("f16", "f32")]
KINDS = ("normal", "wide", "any", "tiny", "zeros", "cancel")


def rounding_cases(seed: int) -> Iterator[Case]:
    """Random numbers: how the tensor core rounds. Operands without swizzle, K-major."""
    state = np.random.RandomState(seed)
    n = 64
    for d_type, a_type, b_type in ROUNDING_WGMMA:
        ptx = wgmma_ptx(n, d_type, a_type, b_type)
        words = n // 4 if d_type == "f16" else n // 2
        # 8 rows of 16 bytes are a core matrix; the two along K are 128 bytes apart
        a = SmemDescriptor(90, 0, 128, 256, 0)
        b = SmemDescriptor(90, 64 * K_BYTES, 128, 256, 0)
        for kind in KINDS:
            for scale in (1, 0):
                image = np.zeros(SMEM, np.uint8)
                for start, name, rows in ((0, a_type, 64), (64 * K_BYTES, b_type, n)):
                    codes = random_codes(state, name, rows * K_BYTES, kind, negate=start == 0)
                    cores = codes.reshape(rows // 8, 8, 2, 16).transpose(0, 2, 1, 3)
                    image[start : start + rows * K_BYTES] = cores.reshape(-1)
                accumulator = random_accumulators(state, d_type, words * 128, kind)
                args = [image, accumulator, np.zeros(512, np.uint32), a.encode(), b.encode(), scale]
                name = f"rounding wgmma {d_type} {a_type} {b_type} {kind} scale {scale}"
                info = {"types": (d_type, a_type, b_type), "kind": kind, "n": n}
                yield Case(name, ptx, args, 1, exact=False, info=info)
    for shape, d_type, a_type, b_type in ROUNDING_MMA:
        ptx = mma_ptx(shape, d_type, a_type, b_type)
        for kind in KINDS:
            args = [
                random_codes(state, a_type, 4 * 4 * 1024, kind).view(np.uint32),
                random_codes(state, b_type, 4 * 4 * 1024, kind).view(np.uint32),
                random_accumulators(state, d_type, 4 * 1024, kind),
            ]
            if kind == "cancel":  # the registers of the second half of K, given those of the first
                bits = 8 * ELEMENT_BYTES[a_type]
                signs = sum(1 << bit - 1 for bit in range(bits, 33, bits))
                a_words, b_words = args[0].reshape(4, 1024), args[1].reshape(4, 1024)
                a_words[2:] = a_words[:2] ^ np.uint32(signs ^ 1)
                b_words[1] = b_words[0]
            name = f"rounding mma.sync {shape} {d_type} {a_type} {b_type} {kind}"
            info = {"types": (d_type, a_type, b_type), "kind": kind, "shape": shape}
            yield Case(name, ptx, args, 2, block=1024, exact=False, info=info)
    for shape, d_type, a_type, b_type, _ in MMA_FORMS:
        if d_type != "f64":
            continue
        ptx = mma_ptx(shape, d_type, a_type, b_type)
        for spread in (2, 60):
            args = [
                state.standard_normal(count * 256)
                * np.exp2(state.randint(-spread, spread, count * 256).astype(np.float64))
                for count in (8, 4, 4)
            ]
            name = f"rounding mma.sync {shape} f64 within 2**{spread}"
            yield Case(name, ptx, args, 2, block=256, exact=False)
