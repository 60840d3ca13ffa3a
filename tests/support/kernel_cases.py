"""Triton and Gluon kernels with inputs, for comparing GPUs: real, emulated, and the definition.

A case makes its inputs on the host from a seed, launches its kernel on a device, and returns the
outputs. With ``exact`` inputs (small integers) every order of accumulation gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_ext
from triton_ext.compat import LAUNCH_OPTIONS


@dataclass(frozen=True)
class Case:
    """One kernel and problem.

    Attributes:
        run: (device, exact) -> the outputs, on the device.
        expected: (exact) -> the outputs by definition, on the host.
        tolerance: relative Frobenius error allowed for random inputs, against the definition.
        bitwise: whether random inputs, too, must give the same bits on every GPU.
    """

    name: str
    run: Callable[[str, bool], list[torch.Tensor]]
    expected: Callable[[bool], list[torch.Tensor]]
    tolerance: float = 1e-6
    bitwise: bool = True

    def __str__(self) -> str:
        return self.name


FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def numbers(shape, dtype, exact, seed, low=-4, high=4):
    """Small integers if exact, else normal numbers; always the same for the same arguments."""
    generator = torch.Generator("cpu").manual_seed(seed)
    if exact or not dtype.is_floating_point:
        found = torch.randint(low, high + 1, shape, generator=generator)
        return found.to(torch.float32).to(dtype) if dtype in FP8 else found.to(dtype)
    found = torch.randn(shape, generator=generator)
    return found.to(dtype)


# ------------------------------------------------------------------------- this project's matmul


def matmul_case(m, n, k, dtype, a_major, b_major, **config):
    def inputs(exact):
        a, b = numbers((m, k), dtype, exact, 1), numbers((k, n), dtype, exact, 2)
        if a_major == "MN":
            a = a.T.contiguous().T
        if b_major == "K":
            b = b.T.contiguous().T
        return a, b

    def run(device, exact):
        a, b = (tensor.to(device) for tensor in inputs(exact))
        chosen = None
        if config:
            from triton_ext.kernels.spec import kernel_spec

            arch = 10 * torch.cuda.get_device_capability()[0]
            names = {torch.float16: "fp16", torch.bfloat16: "bf16"}
            chosen = kernel_spec(arch, names[dtype], a_major, b_major, **config)
        return [triton_ext.matmul(a, b, config=chosen)]

    def expected(exact):
        a, b = inputs(exact)
        return [a.double() @ b.double()]

    text = "-".join(f"{key}{value}" for key, value in config.items())
    name = f"matmul-{m}x{n}x{k}-{str(dtype).split('.')[1]}-{a_major}-{b_major}-{text}".rstrip("-")
    unit = 2.0**-11 if dtype == torch.float16 else 2.0**-8
    return Case(name, run, expected, unit, bitwise=False)


def matmul_cases():
    for dtype in (torch.float16, torch.bfloat16):
        for a_major in ("K", "MN"):
            for b_major in ("K", "MN"):
                yield matmul_case(200, 136, 168, dtype, a_major, b_major)
                for swizzle in (32, 64, 128):
                    yield matmul_case(
                        128, 192, 128, dtype, a_major, b_major,
                        a_swizzle=swizzle, b_swizzle=swizzle, stages=2,
                    )  # fmt: skip
    for m, n, k in ((1, 8, 72), (129, 65, 64), (77, 300, 40), (256, 16, 512), (33, 257, 31)):
        yield matmul_case(m, n, k, torch.float16, "K", "MN")
    yield matmul_case(256, 256, 128, torch.bfloat16, "K", "K", block_n=256, num_warps=8, stages=3)
    yield matmul_case(128, 32, 96, torch.float16, "K", "MN", block_n=16, block_k=32, stages=6)


# ----------------------------------------------------------------------------------- tl.dot


@triton.jit
def add_one_in_place(x, size, BLOCK: tl.constexpr):
    within = tl.arange(0, BLOCK)
    at = x + tl.program_id(0) * size + within
    tl.store(at, tl.load(at, within < size) + 1, within < size)


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, KB: tl.constexpr,
    OUT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, KB)
    acc = tl.zeros((M, N), dtype=OUT)
    for k in range(0, K, KB):
        a = tl.load(a_ptr + rows[:, None] * K + (k + inner)[None, :])
        b = tl.load(b_ptr + (k + inner)[:, None] * N + columns[None, :])
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=OUT)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], acc)


def dot_case(m, n, k, kb, dtype, precision="tf32", warps=4):
    out = tl.int32 if dtype == torch.int8 else tl.float32
    out_torch = torch.int32 if dtype == torch.int8 else torch.float32

    def inputs(exact):
        return numbers((m, k), dtype, exact, 3), numbers((k, n), dtype, exact, 4)

    def run(device, exact):
        a, b = (tensor.to(device) for tensor in inputs(exact))
        c = torch.full((m, n), 7, dtype=out_torch, device=device)
        dot_kernel[(1,)](a, b, c, m, n, k, kb, out, precision, num_warps=warps, **LAUNCH_OPTIONS)
        return [c]

    def expected(exact):
        a, b = (tensor.double() for tensor in inputs(exact))
        return [a @ b]

    name = f"dot-{m}x{n}x{k}-{kb}-{str(dtype).split('.')[1]}-{precision}-{warps}"
    tolerance = 2e-3 if dtype == torch.float32 and precision == "tf32" else 1e-4
    if dtype in FP8:
        tolerance = 1e-2  # Hopper accumulates products of 8-bit numbers with about 14 bits
    return Case(name, run, expected, tolerance, bitwise=dtype == torch.int8)


def dot_cases():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int8, *FP8):
        for m, n, k, kb in ((64, 64, 64, 64), (128, 64, 128, 32), (16, 16, 64, 32)):
            if dtype.itemsize == 1 and kb < 32:
                continue
            yield dot_case(m, n, k, kb, dtype)
        yield dot_case(128, 128, 64, 64, dtype, warps=8)
    yield dot_case(64, 32, 64, 32, torch.float32, "ieee")


# ------------------------------------------------------------------- elementwise, reductions, scans


@triton.jit
def elementwise_kernel(x_ptr, y_ptr, o_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    if OP == "add":
        o = x + y
    elif OP == "muladd":
        o = x * y + x
    elif OP == "select":
        o = tl.where(x > y, x, -y)
    elif OP == "minmax":
        o = tl.minimum(x, y) + tl.maximum(x, 1)
    elif OP == "divide":
        o = x / (y + 9)
    elif OP == "sqrt":
        o = tl.sqrt(tl.abs(x) + 1)
    elif OP == "bits":
        o = ((x << 3) ^ (y >> 1)) | (x & ~y)
    elif OP == "divmod":
        o = (x // 3) * 100 + (y % 7)
    elif OP == "umulhi":
        o = tl.umulhi(x.to(tl.uint32), y.to(tl.uint32)).to(tl.int32)
    tl.store(o_ptr + at, o, mask=at < n)


DEFINITIONS = {
    "add": lambda x, y: x + y,
    "muladd": lambda x, y: x * y + x,
    "select": lambda x, y: torch.where(x > y, x, -y),
    "minmax": lambda x, y: torch.minimum(x, y) + torch.clamp(x, min=1),
    "divide": lambda x, y: x / (y + 9),
    "sqrt": lambda x, y: torch.sqrt(x.abs() + 1),
    "bits": lambda x, y: ((x << 3) ^ (y >> 1)) | (x & ~y),
    "divmod": lambda x, y: torch.div(x, 3, rounding_mode="trunc") * 100 + torch.fmod(y, 7),
    "umulhi": lambda x, y: ((x.long() & 0xFFFFFFFF) * y.long()) >> 32,
}


def elementwise_case(op, dtype, n=1000):
    high = 8 if dtype.is_floating_point else 100  # products that every type can hold

    def inputs(exact):
        x = numbers((n,), dtype, exact, 5, -high, high)
        return x, numbers((n,), dtype, exact, 6, 1, high)

    def run(device, exact):
        x, y = (tensor.to(device) for tensor in inputs(exact))
        o = torch.zeros_like(x)
        grid = (triton.cdiv(n, 256),)
        elementwise_kernel[grid](x, y, o, n, op, 256, **LAUNCH_OPTIONS)
        return [o]

    def expected(exact):
        return [DEFINITIONS[op](*inputs(exact))]

    # division and square root are approximations (PTX ISA, "div", "sqrt")
    approximate = op in ("divide", "sqrt")
    return Case(f"{op}-{str(dtype).split('.')[1]}", run, expected, bitwise=not approximate)


def elementwise_cases():
    for op in ("add", "muladd", "select", "minmax"):
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8):
            yield elementwise_case(op, dtype)
    for op in ("divide", "sqrt"):
        yield elementwise_case(op, torch.float32)
    for op in ("bits", "divmod"):
        for dtype in (torch.int32, torch.int64, torch.int16):
            yield elementwise_case(op, dtype)
    yield elementwise_case("umulhi", torch.int32)


@triton.jit
def add_up(a, b):
    return a + b


@triton.jit
def rows_kernel(x_ptr, o_ptr, N: tl.constexpr, OP: tl.constexpr, W: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + row * N + at)
    if OP == "sum":
        tl.store(o_ptr + row, tl.sum(x, 0))
    elif OP == "max":
        tl.store(o_ptr + row, tl.max(x, 0))
    elif OP == "argmin":
        tl.store(o_ptr + row, tl.argmin(x, 0).to(x.dtype))
    elif OP == "xor":
        tl.store(o_ptr + row, tl.xor_sum(x.to(tl.int32), 0).to(x.dtype))
    elif OP == "cumsum":
        tl.store(o_ptr + row * N + at, tl.cumsum(x, 0))
    elif OP == "scan":
        tl.store(o_ptr + row * N + at, tl.associative_scan(x, 0, add_up, reverse=True))
    elif OP == "sort":
        tl.store(o_ptr + row * N + at, tl.sort(x))
    elif OP == "flip":
        tl.store(o_ptr + row * N + at, tl.flip(x, 0))
    elif OP == "histogram":
        tl.store(o_ptr + row * N + at, tl.histogram(tl.abs(x).to(tl.int32), N).to(x.dtype))
    elif OP == "transpose":
        square = tl.trans(tl.reshape(x, (W, N // W)))
        tl.store(o_ptr + row * N + at, tl.reshape(square, (N,)))
    elif OP == "gather":
        index = (tl.abs(x).to(tl.int32) * 7 + at) % N
        tl.store(o_ptr + row * N + at, tl.gather(x, index, 0))


def histogram(x):
    return torch.stack([torch.bincount(row.abs().int(), minlength=x.shape[1]) for row in x])


def exclusive_or(x):
    rows = x.int()
    while rows.shape[1] > 1:
        rows = rows[:, ::2] ^ rows[:, 1::2]
    return rows[:, 0]


ROW_DEFINITIONS = {
    "sum": lambda x: x.sum(1),
    "max": lambda x: x.max(1).values,
    "argmin": lambda x: torch.stack([(row == row.min()).nonzero()[0, 0] for row in x]),
    "xor": exclusive_or,
    "cumsum": lambda x: x.cumsum(1),
    "scan": lambda x: x.flip(1).cumsum(1).flip(1),
    "sort": lambda x: x.sort(1).values,
    "flip": lambda x: x.flip(1),
    "histogram": histogram,
    "transpose": lambda x: x.reshape(len(x), 16, -1).transpose(1, 2).reshape(x.shape),
    "gather": lambda x: x.gather(
        1, (x.abs().int() * 7 + torch.arange(x.shape[1])).long() % x.shape[1]
    ),
}


def rows_case(op, dtype, rows=3, n=512, warps=4):
    def expected(exact):
        return [ROW_DEFINITIONS[op](numbers((rows, n), dtype, exact, 7, -50, 50))]

    def run(device, exact):
        x = numbers((rows, n), dtype, exact, 7, -50, 50).to(device)
        o = torch.zeros_like(x) if op not in ("sum", "max", "argmin", "xor") else x.new_zeros(rows)
        rows_kernel[(rows,)](x, o, n, op, 16, num_warps=warps, **LAUNCH_OPTIONS)
        return [o]

    return Case(f"{op}-{str(dtype).split('.')[1]}-{n}-{warps}", run, expected)


def rows_cases():
    for op in ("sum", "max", "argmin", "cumsum", "scan", "sort", "flip", "transpose", "gather"):
        yield rows_case(op, torch.float32)
        yield rows_case(op, torch.int32, warps=8)
    for op in ("xor", "histogram"):
        yield rows_case(op, torch.int32)
    yield rows_case("sum", torch.float16, n=2048, warps=8)
    yield rows_case("sort", torch.int16, n=128, warps=1)


# --------------------------------------------------------------------- attention, atomics, TMA


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, L: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    m, d, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :])
    highest = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, L, BN):
        k = tl.load(k_ptr + (start + n)[:, None] * D + d[None, :])
        v = tl.load(v_ptr + (start + n)[:, None] * D + d[None, :])
        s = tl.dot(q, tl.trans(k)) * scale
        new = tl.maximum(highest, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        shrink = tl.exp2(highest - new)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc)
        highest = new
    tl.store(o_ptr + m[:, None] * D + d[None, :], (acc / total[:, None]).to(o_ptr.dtype.element_ty))


def attention_case(length, width, dtype, warps=4):
    def inputs():
        return [numbers((length, width), dtype, False, seed) for seed in (8, 9, 10)]

    def run(device, exact):
        q, k, v = (tensor.to(device) for tensor in inputs())
        o = torch.zeros_like(q)
        attention_kernel[(length // 64,)](
            q, k, v, o, 1.4426950408889634 / width**0.5, length, width, 64, 64,
            num_warps=warps, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [o]

    def expected(exact):
        q, k, v = (tensor.double() for tensor in inputs())
        return [torch.softmax(q @ k.T / width**0.5, -1) @ v]

    name = f"attention-{length}x{width}-{str(dtype).split('.')[1]}-{warps}"
    return Case(name, run, expected, 1e-2, bitwise=False)


@triton.jit
def atomics_kernel(x_ptr, o_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.atomic_add(o_ptr + x % 16, 1)
    tl.atomic_max(o_ptr + 16 + x % 4, x)
    tl.atomic_xor(o_ptr + 20 + x % 4, x)
    tl.atomic_add(o_ptr + 24, tl.sum(x, 0))


def atomics_case():
    def expected(exact):
        x = numbers((1024,), torch.int32, True, 11, 0, 1000)
        o = torch.zeros(32, dtype=torch.int32)
        for value in x.tolist():
            o[value % 16] += 1
            o[16 + value % 4] = max(int(o[16 + value % 4]), value)
            o[20 + value % 4] ^= value
        o[24] = x.sum()
        return [o]

    def run(device, exact):
        x = numbers((1024,), torch.int32, True, 11, 0, 1000).to(device)
        o = torch.zeros(32, dtype=torch.int32, device=device)
        atomics_kernel[(4,)](x, o, 256, **LAUNCH_OPTIONS)
        return [o]

    return Case("atomics", run, expected)


@triton.jit
def descriptor_kernel(x, o, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    tile = x.load([row, column])
    o.store([row, column], tile + tile)


def descriptor_case(m, n, rows, columns, dtype):
    def run(device, exact):
        x = numbers((m, n), dtype, exact, 12).to(device)
        o = torch.full_like(x, -1)
        grid = (triton.cdiv(m, rows), triton.cdiv(n, columns))
        descriptor_kernel[grid](
            TensorDescriptor.from_tensor(x, [rows, columns]),
            TensorDescriptor.from_tensor(o, [rows, columns]),
            rows, columns, **LAUNCH_OPTIONS,
        )  # fmt: skip
        return [o]

    def expected(exact):
        x = numbers((m, n), dtype, exact, 12)
        return [(x + x).double()]

    name = f"descriptor-{m}x{n}-{rows}x{columns}-{str(dtype).split('.')[1]}"
    return Case(name, run, expected)


@triton.jit
def device_descriptor_kernel(x_ptr, o_ptr, M, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [ROWS, COLUMNS])
    o = tl.make_tensor_descriptor(o_ptr, [M, N], [N, 1], [ROWS, COLUMNS])
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    o.store([row, column], x.load([row, column]) * 3)


def device_descriptor_case(m, n, rows, columns, dtype):
    def run(device, exact):
        def scratch(size, align, stream):
            return torch.empty(size, dtype=torch.int8, device=device)

        triton.set_allocator(scratch)
        x = numbers((m, n), dtype, exact, 13).to(device)
        o = torch.full_like(x, -1)
        grid = (triton.cdiv(m, rows), triton.cdiv(n, columns))
        device_descriptor_kernel[grid](x, o, m, n, rows, columns, **LAUNCH_OPTIONS)
        return [o]

    def expected(exact):
        return [(numbers((m, n), dtype, exact, 13) * 3).double()]

    name = f"device-descriptor-{m}x{n}-{rows}x{columns}-{str(dtype).split('.')[1]}"
    return Case(name, run, expected)


def other_cases():
    for dtype in (torch.float16, torch.bfloat16):
        yield attention_case(128, 64, dtype)
        yield attention_case(128, 128, dtype, warps=8)
    yield atomics_case()
    for dtype in (torch.float32, torch.float16, torch.int32, torch.uint8):
        yield descriptor_case(100, 64, 32, 32, dtype)
        yield descriptor_case(64, 208, 64, 128, dtype)
        yield device_descriptor_case(48, 96, 32, 64, dtype)


def all_cases():
    yield from matmul_cases()
    yield from dot_cases()
    yield from elementwise_cases()
    yield from rows_cases()
    yield from other_cases()
