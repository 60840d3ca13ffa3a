"""Kernels of asynchronous copies and barriers, and random cases: the same on a GPU and emulated.

Each case draws from its own generator, seeded by its number, so that what a GPU recorded can be
compared anywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_map import DataType, OobFill, TensorMap, TensorSwizzle

SMEM = 33 * 1024
HEADER_BYTES = 1024
"""Bytes of dynamic shared memory for the mbarriers. The box lies in the rest."""
THREADS = 128
POISON = 0xA5

MODULE = """
.version 8.7
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry k({parameters})
{{
 .reg .pred %p<10>;
 .reg .b16 %h<10>;
 .reg .b32 %r<60>;
 .reg .b64 %rd<40>;
{body}
 ret;
}}
"""

Arrays = list[Any]


@dataclass
class Case:
    """One launch.

    Attributes:
        name: identifies it; after a colon, what is special.
        ptx: a module with the kernel ``k``.
        make: fresh arguments, and the arrays among them that are the result.
        faults: the GPU stops the kernel, and the emulator must, too.
    """

    name: str
    ptx: str
    make: Callable[[], tuple[list[Any], list[np.ndarray]]]
    faults: bool = False
    block: int = THREADS
    grid: int = 1
    cluster: int | None = None

    @property
    def key(self) -> str:
        """What identifies the case."""
        return " ".join(self.name.split(":")[0].split())

    def run(self, launch: Any, **options: Any) -> list[np.ndarray]:
        """The results of ``launch(ptx, kernel, grid, block, args, cluster=, ...)``."""
        args, outputs = self.make()
        launch(
            self.ptx,
            "k",
            self.grid,
            self.block,
            args,
            cluster=self.cluster,
            dynamic_smem_bytes=SMEM,
            **options,
        )
        return outputs


def module(parameters: str, body: str, target: str = "sm_90a") -> str:
    return MODULE.format(parameters=parameters, body=body, target=target)


def aligned(size: int, dtype: Any = np.uint8, alignment: int = 128) -> np.ndarray:
    """Zeros whose address is a multiple of `alignment`."""
    nbytes = size * np.dtype(dtype).itemsize
    raw = np.zeros(nbytes + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    return raw[skip : skip + nbytes].view(dtype)


# --------------------------------------------------------------- pieces of kernels

INIT = """
 mov.u32 %r0, %tid.x;
 mov.u32 %r1, smem;
 add.u32 %r2, %r1, 1024;
 setp.eq.u32 %p1, %r0, 0;
"""
"""%r0: thread; %r1: the barriers; %r2: the data; %p1: the first thread."""

FILL = f"""
 mov.u32 %r3, {POISON * 0x01010101 - (1 << 32)};
 shl.b32 %r4, %r0, 4;
 add.u32 %r5, %r4, %r2;
 mov.u32 %r6, 0;
POISON:
 st.shared.v4.b32 [%r5], {{%r3, %r3, %r3, %r3}};
 add.u32 %r5, %r5, {16 * THREADS};
 add.u32 %r6, %r6, {16 * THREADS};
 setp.lt.u32 %p2, %r6, {SMEM - HEADER_BYTES};
 @%p2 bra POISON;
"""

UPLOAD = f"""
 ld.param.u64 %rd20, [image];
 shl.b32 %r4, %r0, 4;
 add.u32 %r5, %r4, %r2;
 cvt.u64.u32 %rd21, %r4;
 add.u64 %rd20, %rd20, %rd21;
 mov.u32 %r6, 0;
UPLOAD:
 ld.global.v4.b32 {{%r7, %r8, %r9, %r10}}, [%rd20];
 st.shared.v4.b32 [%r5], {{%r7, %r8, %r9, %r10}};
 add.u32 %r5, %r5, {16 * THREADS};
 add.u64 %rd20, %rd20, {16 * THREADS};
 add.u32 %r6, %r6, {16 * THREADS};
 setp.lt.u32 %p2, %r6, {SMEM - HEADER_BYTES};
 @%p2 bra UPLOAD;
"""

DOWNLOAD = f"""
 ld.param.u64 %rd22, [out];
 shl.b32 %r4, %r0, 4;
 add.u32 %r5, %r4, %r2;
 cvt.u64.u32 %rd23, %r4;
 add.u64 %rd22, %rd22, %rd23;
 mov.u32 %r6, 0;
DOWNLOAD:
 ld.shared.v4.b32 {{%r7, %r8, %r9, %r10}}, [%r5];
 st.global.v4.b32 [%rd22], {{%r7, %r8, %r9, %r10}};
 add.u32 %r5, %r5, {16 * THREADS};
 add.u64 %rd22, %rd22, {16 * THREADS};
 add.u32 %r6, %r6, {16 * THREADS};
 setp.lt.u32 %p2, %r6, {SMEM - HEADER_BYTES};
 @%p2 bra DOWNLOAD;
"""

BARRIER = """
 @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
 fence.proxy.async;
 bar.sync 0;
"""

WAIT = """
 mov.u32 %r55, 0;
WAITING:
 mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 0;
 add.u32 %r55, %r55, 1;
 setp.gt.u32 %p9, %r55, 10000;
 or.pred %p3, %p3, %p9;
 @!%p3 bra WAITING;
"""
"""It gives up some time, lest a GPU hangs."""


def coordinates(rank: int, first: int = 20) -> tuple[str, str, str]:
    """Parameters, what loads them, and the operand, of as many coordinates."""
    numbers = range(rank)
    return (
        "".join(f", .param .s32 c{i}" for i in numbers),
        "\n".join(f" ld.param.s32 %r{first + i}, [c{i}];" for i in numbers),
        "{" + ", ".join(f"%r{first + i}" for i in numbers) + "}",
    )


def load_kernel(rank: int, space: str = "shared::cluster") -> str:
    parameters, loads, operand = coordinates(rank)
    return module(
        ".param .align 64 .b8 map[128], .param .u64 data, .param .u64 out, .param .u32 place,"
        f" .param .u32 expected{parameters}",
        f"""{INIT}{FILL}{BARRIER}
 ld.param.u32 %r30, [place];
 add.u32 %r30, %r30, %r2;
 ld.param.u32 %r31, [expected];
 mov.b64 %rd1, map;
 cvta.param.u64 %rd2, %rd1;
{loads}
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r31;
 @%p1 cp.async.bulk.tensor.{rank}d.{space}.global.tile.mbarrier::complete_tx::bytes
     [%r30], [%rd2, {operand}], [%r1];
{WAIT}{DOWNLOAD}""",
    )


def store_kernel(rank: int, operation: str = "") -> str:
    parameters, loads, operand = coordinates(rank)
    name = "cp.async.bulk.tensor"
    reduction = ""
    if operation:
        name, reduction = "cp.reduce.async.bulk.tensor", f".{operation}"
    return module(
        ".param .align 64 .b8 map[128], .param .u64 data, .param .u64 image,"
        f" .param .u32 place{parameters}",
        f"""{INIT}{UPLOAD}
 fence.proxy.async.shared::cta;
 bar.sync 0;
 ld.param.u32 %r30, [place];
 add.u32 %r30, %r30, %r2;
 mov.b64 %rd1, map;
 cvta.param.u64 %rd2, %rd1;
{loads}
 @%p1 {name}.{rank}d.global.shared::cta{reduction}.tile.bulk_group [%rd2, {operand}], [%r30];
 cp.async.bulk.commit_group;
 cp.async.bulk.wait_group 0;""",
    )


# ------------------------------------------------------------------- random tensors

SWIZZLES_90 = (
    TensorSwizzle.NONE,
    TensorSwizzle.BYTES_32,
    TensorSwizzle.BYTES_64,
    TensorSwizzle.BYTES_128,
)
PLAIN_TYPES = (
    DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.INT32, DataType.UINT64,
    DataType.INT64, DataType.FLOAT16, DataType.FLOAT32, DataType.FLOAT64, DataType.BFLOAT16,
)  # fmt: skip
CONVERTED_TYPES = (DataType.FLOAT32_FTZ, DataType.TFLOAT32, DataType.TFLOAT32_FTZ)
REDUCTIONS = {
    "add": (DataType.UINT32, DataType.INT32, DataType.UINT64, DataType.FLOAT16, DataType.BFLOAT16,
            DataType.FLOAT32),
    "min": (DataType.UINT32, DataType.INT32, DataType.UINT64, DataType.INT64, DataType.FLOAT16,
            DataType.BFLOAT16),
    "max": (DataType.UINT32, DataType.INT32, DataType.UINT64, DataType.INT64, DataType.FLOAT16,
            DataType.BFLOAT16),
    "inc": (DataType.UINT32,),
    "dec": (DataType.UINT32,),
    "and": (DataType.UINT32, DataType.INT32, DataType.UINT64),
    "or": (DataType.UINT32, DataType.INT32, DataType.UINT64),
    "xor": (DataType.UINT32, DataType.INT32, DataType.UINT64),
}  # fmt: skip
NO_REDUCTIONS = (
    ("add", DataType.INT64), ("add", DataType.UINT8), ("add", DataType.UINT16),
    ("min", DataType.FLOAT32), ("max", DataType.FLOAT64),
    ("min", DataType.UINT16), ("inc", DataType.INT32), ("dec", DataType.UINT64),
    ("and", DataType.INT64), ("or", DataType.INT64), ("xor", DataType.INT64),
    ("xor", DataType.UINT16), ("or", DataType.FLOAT32),
)  # fmt: skip
"""Reductions that stop a kernel."""


@dataclass(frozen=True)
class Shape:
    """A tensor, a box of it, and where both lie."""

    map_fields: dict[str, Any]
    tensor_bytes: int
    coordinates: tuple[int, ...]
    place: int

    def map_at(self, address: int) -> TensorMap:
        return TensorMap(**self.map_fields, global_address=address)


def random_shape(
    source: random.Random,
    kinds: tuple[DataType, ...],
    swizzles: tuple[TensorSwizzle, ...],
    *,
    strided: bool = True,
    negative: bool = True,
    max_bytes: int = 16 * 1024,
) -> Shape:
    """A legal tensor map, a box inside, partly inside or outside of it, and a place for it."""
    while True:
        kind, swizzle = source.choice(kinds), source.choice(swizzles)
        rank = source.randint(1, 5)
        size = kind.bits // 8
        chunk = 16 // size
        most = (swizzle.span or 256) // 16
        box = [chunk * source.randint(1, max(1, min(most, 256 // chunk)))]
        box += [source.choice((1, 1, 2, 3, 4, 5, 8, 13, 32)) for _ in range(rank - 1)]
        dims = [max(1, source.randint(box[0] // 2, 3 * box[0]))]
        dims += [source.randint(1, 2 * extent + 2) for extent in box[1:]]
        steps = [1] + [source.choice((1, 1, 1, 2, 3)) if strided else 1 for _ in range(rank - 1)]
        row = -(-dims[0] * size // 16) * 16 + 16 * source.choice((0, 0, 1, 3))
        strides, unit = [], row
        for extent in dims[1:]:
            strides.append(unit)
            unit *= extent
        if unit > 1 << 17:
            continue
        fill = OobFill.NONE
        if kind.is_floating_point and source.random() < 0.3:
            fill = OobFill.NAN_REQUEST_ZERO_FMA
        fields = {
            "data_type": kind,
            "global_dims": tuple(dims),
            "global_strides": tuple(strides),
            "box_dims": tuple(box),
            "element_strides": tuple(steps),
            "swizzle": swizzle,
            "oob_fill": fill,
        }
        try:
            tensor_map = TensorMap(**fields)
        except LayoutError:
            continue
        if tensor_map.smem_bytes > max_bytes:
            continue
        at = [
            chunk * source.randint(-(box[0] // chunk) - 1, dims[0] // chunk + 1)
            if source.random() < 0.5
            else 0
        ]
        at += [
            source.randint(-extent - 1, size + 1) if source.random() < 0.4 else 0
            for extent, size in zip(box[1:], dims[1:], strict=True)
        ]
        if source.random() < 0.1:
            at[source.randrange(rank)] = chunk * 1_000_000
        if not negative:
            at = [max(0, value) for value in at]
        room = (SMEM - HEADER_BYTES - tensor_map.smem_bytes) // 128
        place = 128 * source.randint(0, room) if source.random() < 0.5 else 0
        return Shape(fields, unit, tuple(at), place)


def random_values(source: random.Random, kind: DataType, count: int) -> np.ndarray:
    """Bytes of elements: any bits for integers; numbers, zeros and infinities for floats."""
    draw = np.random.Generator(np.random.PCG64(source.getrandbits(32)))
    size = kind.bits // 8
    raw = draw.integers(0, 256, count * size, np.uint8)
    if not kind.is_floating_point:
        return raw
    bits = raw.view(f"u{size}")
    exponent, mantissa = {
        DataType.FLOAT16: (5, 10), DataType.BFLOAT16: (8, 7), DataType.FLOAT64: (11, 52)
    }.get(kind, (8, 23))  # fmt: skip
    field = np.array(((1 << exponent) - 1) << mantissa, bits.dtype)
    special = (bits & field) == field  # NaN: keep infinities only
    bits[special] &= np.array(~((1 << mantissa) - 1) & ((1 << 8 * size) - 1), bits.dtype)
    tiny = draw.random(count) < 0.1
    bits[tiny] &= np.array(~int(field) & ((1 << 8 * size) - 1), bits.dtype)  # zeros, subnormals
    return raw


def load_case(number: int, kinds: tuple[DataType, ...] = PLAIN_TYPES) -> Case:
    source = random.Random(f"load {number} {len(kinds)}")
    shape = random_shape(source, kinds, SWIZZLES_90)
    kind = shape.map_fields["data_type"]
    values = random_values(source, kind, shape.tensor_bytes // (kind.bits // 8))

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(len(values))
        data[:] = values
        out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        tensor_map = shape.map_at(data.ctypes.data)
        expected = tensor_map.transaction_bytes
        return [tensor_map, data, out, shape.place, expected, *shape.coordinates], [out]

    rank = len(shape.coordinates)
    what = "converted" if kinds is CONVERTED_TYPES else ""
    space = ("shared::cluster", "shared::cta")[number % 2]
    return Case(f"load {what} {number}: {shape}", load_kernel(rank, space), make)


def store_case(number: int, operation: str = "", negative: bool = False) -> Case:
    source = random.Random(f"store {number} {operation}")
    kinds = REDUCTIONS[operation] if operation else PLAIN_TYPES
    shape = random_shape(source, kinds, SWIZZLES_90, strided=False, negative=negative)
    if negative:
        shape = replace(shape, coordinates=(*shape.coordinates[:-1], -16))
    kind = shape.map_fields["data_type"]
    size = kind.bits // 8
    values = random_values(source, kind, shape.tensor_bytes // size)
    image = random_values(source, kind, (SMEM - HEADER_BYTES) // size)
    if operation in ("inc", "dec"):  # so that the limits are met
        values = (values.view(np.uint32) % 5).view(np.uint8)
        image = (image.view(np.uint32) % 5).view(np.uint8)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(len(values))
        data[:] = values
        tensor_map = shape.map_at(data.ctypes.data)
        return [tensor_map, data, image.copy(), shape.place, *shape.coordinates], [data]

    rank = len(shape.coordinates)
    name = f"store {operation}{'negative' if negative else ''} {number}: {shape}"
    return Case(name, store_kernel(rank, operation), make, faults=negative)


SPECIAL = (
    0x3F801000, 0x3F803000, 0xBF801000, 0xBF803000, 0x3F800FFF, 0x3F801001, 0x7F7FFFFF, 0x7F7FF000,
    0x7F7FEFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F801FFF,
    0x00001000, 0x00000FFF, 0x00001001, 0x00003000, 0x80001000, 0x00000001, 0x807FFFFF, 0x7FBFFFFF,
)  # fmt: skip
"""Floats that are ties in TF32, subnormal, infinite, or not a number."""


def special_case(kind: DataType, direction: str, operation: str = "") -> Case:
    """`SPECIAL`, loaded, stored, or added to themselves in another order."""
    values = np.array(SPECIAL, np.uint32)
    if kind.bits == 16:
        values = (values >> 16 if kind == DataType.BFLOAT16 else values >> 13).astype(np.uint16)
        draw = np.random.Generator(np.random.PCG64(5)).integers(0, 1 << 16, 24, np.uint16)
        values = values ^ (draw & 3)
        values[:4] = 0x8000, 0, 0x8000, 0
        values[-7:-3] = 0, 0x8000, 0x8000, 0
    count = values.nbytes * 8 // kind.bits
    fields: dict[str, Any] = {
        "data_type": kind, "global_dims": (count,), "global_strides": (), "box_dims": (count,)
    }  # fmt: skip

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(values.nbytes)
        data[:] = values.view(np.uint8)
        tensor_map = TensorMap(**fields, global_address=data.ctypes.data)
        if direction == "load":
            out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
            return [tensor_map, data, out, 0, values.nbytes, 0], [out]
        image = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        image[: values.nbytes] = np.roll(values, 7).view(np.uint8)
        return [tensor_map, data, image, 0, 0], [data]

    text = load_kernel(1) if direction == "load" else store_kernel(1, operation)
    return Case(f"special {direction} {operation} {kind.name}", text, make)


def tensor_cases() -> Iterator[Case]:
    """Loads, stores and reductions of boxes."""
    for kind in (DataType.FLOAT32, *CONVERTED_TYPES):
        yield special_case(kind, "load")
        yield special_case(kind, "store")
        yield special_case(kind, "store", "add")
    yield special_case(DataType.FLOAT64, "store", "add")
    for kind in (DataType.FLOAT16, DataType.BFLOAT16):
        for operation in ("add", "min", "max"):
            yield special_case(kind, "store", operation)
    for number in range(150):
        yield load_case(number)
    for number in range(30):
        yield load_case(number, CONVERTED_TYPES)
    for number in range(100):
        yield store_case(number)
    for operation in REDUCTIONS:
        for number in range(8):
            yield store_case(number, operation)


# ------------------------------------------------------------------- bytes in bulk

BULK_REDUCTIONS = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",),
    "dec": ("u32",),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
}
KINDS = {
    "u32": DataType.UINT32, "s32": DataType.INT32, "b32": DataType.UINT32, "u64": DataType.UINT64,
    "s64": DataType.INT64, "b64": DataType.UINT64, "f16": DataType.FLOAT16,
    "bf16": DataType.BFLOAT16, "f32": DataType.FLOAT32, "f64": DataType.FLOAT64,
}  # fmt: skip


def bulk_load_kernel() -> str:
    return module(
        ".param .u64 data, .param .u64 out, .param .u32 place, .param .u32 bytes",
        f"""{INIT}{FILL}{BARRIER}
 ld.param.u32 %r30, [place];
 add.u32 %r30, %r30, %r2;
 ld.param.u32 %r31, [bytes];
 ld.param.u64 %rd1, [data];
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r31;
 @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
     [%r30], [%rd1], %r31, [%r1];
{WAIT}{DOWNLOAD}""",
    )


def bulk_store_kernel(reduction: str = "") -> str:
    name = "cp.reduce.async.bulk" if reduction else "cp.async.bulk"
    return module(
        ".param .u64 data, .param .u64 image, .param .u32 place, .param .u32 bytes",
        f"""{INIT}{UPLOAD}
 fence.proxy.async.shared::cta;
 bar.sync 0;
 ld.param.u32 %r30, [place];
 add.u32 %r30, %r30, %r2;
 ld.param.u32 %r31, [bytes];
 ld.param.u64 %rd1, [data];
 @%p1 {name}.global.shared::cta.bulk_group{reduction} [%rd1], [%r30], %r31;
 @%p1 cp.async.bulk.commit_group;
 @%p1 cp.async.bulk.wait_group 0;""",
    )


def bulk_load_case(number: int) -> Case:
    source = random.Random(f"bulk load {number}")
    size = 16 * source.randint(1, 512)
    place = 16 * source.randint(0, (SMEM - HEADER_BYTES - size) // 16)
    values = random_values(source, DataType.UINT8, size)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(size)
        data[:] = values
        out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        return [data, out, place, size], [out]

    return Case(f"bulk load {number}: {size} bytes at {place}", bulk_load_kernel(), make)


def bulk_store_case(number: int, operation: str = "", type_name: str = "u32") -> Case:
    source = random.Random(f"bulk store {number} {operation} {type_name}")
    size = 16 * source.randint(1, 512)
    place = 16 * source.randint(0, (SMEM - HEADER_BYTES - size) // 16)
    kind = KINDS[type_name]
    width = kind.bits // 8
    values = random_values(source, kind, (size + 64) // width)
    image = random_values(source, kind, (SMEM - HEADER_BYTES) // width)
    if operation in ("inc", "dec"):
        values = (values.view(np.uint32) % 5).view(np.uint8)
        image = (image.view(np.uint32) % 5).view(np.uint8)
    reduction = ""
    if operation:
        small = operation == "add" and type_name in ("f16", "bf16")
        reduction = f".{operation}{'.noftz' if small else ''}.{type_name}"

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(len(values))
        data[:] = values
        return [data, image.copy(), place, size], [data]

    return Case(f"bulk store {reduction} {number}", bulk_store_kernel(reduction), make)


def bulk_cases() -> Iterator[Case]:
    """Copies and reductions of bytes."""
    for number in range(20):
        yield bulk_load_case(number)
        yield bulk_store_case(number)
    for operation, types in BULK_REDUCTIONS.items():
        for type_name in types:
            for number in range(2):
                yield bulk_store_case(number, operation, type_name)


# ------------------------------------------------------------------------- cp.async


def copy_case(number: int) -> Case:
    """Several groups of cp.async; some are waited for before a read, all at the end."""
    source = random.Random(f"cp.async {number}")
    width = source.choice((4, 8, 16))
    level = "cg" if width == 16 and source.random() < 0.5 else "ca"
    form = source.choice(("plain", "plain", "src-size", "ignore"))
    groups = source.randint(1, 6)
    body = [INIT, FILL, " bar.sync 0;", " ld.param.u64 %rd1, [data];"]
    body.append(f" mul.lo.u32 %r30, %r0, {width};")
    body.append(" cvt.u64.u32 %rd2, %r30;\n add.u64 %rd1, %rd1, %rd2;\n add.u32 %r31, %r30, %r2;")
    body.append(f" rem.u32 %r32, %r0, {width + 1};\n and.b32 %r33, %r0, 3;")
    body.append(" setp.eq.u32 %p4, %r33, 1;")
    extra = {"plain": "", "src-size": ", %r32", "ignore": ", %p4"}[form]
    for group in range(groups):
        offset = group * THREADS * width
        body.append(
            f" cp.async.{level}.shared.global [%r31+{offset}], [%rd1+{offset}], {width}{extra};"
        )
        body.append(" cp.async.commit_group;")
    left = source.randint(0, groups)
    body.append(f" cp.async.wait_group {left};")
    # own bytes of the groups that are done, as they are now, go to the end of the image
    done = groups - left
    for group in range(done):
        offset = group * THREADS * width
        body.append(f" ld.shared.b32 %r34, [%r31+{offset}];")
        body.append(f" st.shared.b32 [%r31+{groups * THREADS * width + offset}], %r34;")
    body.append(" cp.async.wait_all;\n bar.sync 0;" + DOWNLOAD)
    text = module(".param .u64 data, .param .u64 out", "\n".join(body))
    values = random_values(source, DataType.UINT8, groups * THREADS * width)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(len(values))
        data[:] = values
        out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        return [data, out], [out]

    return Case(f"cp.async {number}: {width} bytes, {form}, {groups} groups", text, make)


def copy_barrier_case(number: int) -> Case:
    """cp.async whose completion an mbarrier counts, with and without noinc."""
    source = random.Random(f"cp.async barrier {number}")
    noinc = source.random() < 0.5
    rounds = source.randint(1, 3)
    count = THREADS if noinc else 1
    wait = """
 mov.u32 %r55, 0;
WAIT{0}:
 mbarrier.test_wait.parity.shared.b64 %p3, [%r1], {1};
 add.u32 %r55, %r55, 1;
 setp.gt.u32 %p9, %r55, 1000000;
 or.pred %p3, %p3, %p9;
 @!%p3 bra WAIT{0};
"""
    body = [INIT, FILL, f" @%p1 mbarrier.init.shared.b64 [%r1], {count};", " bar.sync 0;"]
    body.append(" ld.param.u64 %rd1, [data];\n mul.lo.u32 %r30, %r0, 16;")
    body.append(" cvt.u64.u32 %rd2, %r30;\n add.u64 %rd1, %rd1, %rd2;\n add.u32 %r31, %r30, %r2;")
    for turn in range(rounds):
        offset = turn * THREADS * 16
        body.append(f" cp.async.ca.shared.global [%r31+{offset}], [%rd1+{offset}], 16;")
        body.append(f" cp.async.mbarrier.arrive{'.noinc' if noinc else ''}.shared.b64 [%r1];")
        if not noinc:
            body.append(" bar.sync 0;\n @%p1 mbarrier.arrive.shared.b64 _, [%r1];")
        body.append(wait.format(turn, turn & 1))
        if not noinc:
            body.append(" bar.sync 0;")
    body.append(" bar.sync 0;" + DOWNLOAD)
    text = module(".param .u64 data, .param .u64 out", "\n".join(body))
    values = random_values(source, DataType.UINT8, rounds * THREADS * 16)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(len(values))
        data[:] = values
        out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        return [data, out], [out]

    return Case(f"cp.async barrier {number}: noinc {noinc}", text, make)


# ------------------------------------------------------------------------ mbarriers


def barrier_case(number: int) -> Case:
    """One thread does what is legal to an mbarrier, and writes down what it is told."""
    source = random.Random(f"mbarrier {number}")
    count = source.randint(1, 6)
    state = {"count": count, "pending": count, "tx": 0, "phase": 0}
    body = [INIT, " @!%p1 bra END;", " ld.param.u64 %rd1, [out];"]
    body.append(f" mbarrier.init.shared.b64 [%r1], {count};")
    results = 0

    def note(text: str) -> None:
        nonlocal results
        body.append(text + f"\n st.global.b32 [%rd1+{4 * results}], %r20;")
        results += 1

    def advance() -> None:
        if not state["pending"] and not state["tx"]:
            state["phase"] += 1
            state["pending"] = state["count"]

    def test() -> None:
        for parity in (0, 1):
            how = source.choice(("", ".acquire.cta", ".acquire.cluster"))
            note(
                f" mbarrier.test_wait.parity{how}.shared::cta.b64 %p4, [%r1], {parity};"
                "\n selp.u32 %r20, 1, 0, %p4;"
            )

    have_state = False
    for _ in range(40):
        pending, tx = state["pending"], state["tx"]
        what = source.choice(
            ("arrive", "arrive", "arrive", "expect", "complete", "arrive.expect", "noComplete",
             "drop", "state")
        )  # fmt: skip
        if what == "arrive" and pending:
            n = source.randint(1, pending)
            body.append(f" mbarrier.arrive.shared.b64 %rd5, [%r1], {n};")
            state["pending"] -= n
            have_state = True
            note(" mbarrier.pending_count.b64 %r20, %rd5;")
        elif what == "expect" and pending and tx < 4096:
            n = 16 * source.randint(1, 64)
            body.append(f" mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], {n};")
            state["tx"] += n
        elif what == "complete" and tx > 0:
            n = source.choice((tx, 16 * source.randint(1, tx // 16)))
            body.append(f" mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], {n};")
            state["tx"] -= n
        elif what == "arrive.expect" and pending and tx < 4096:
            n = 16 * source.randint(0, 64)
            body.append(f" mbarrier.arrive.expect_tx.shared.b64 %rd5, [%r1], {n};")
            state["pending"] -= 1
            state["tx"] += n
            have_state = True
            note(" mbarrier.pending_count.b64 %r20, %rd5;")
        elif what == "noComplete" and pending > 1:
            n = source.randint(1, pending - 1)
            body.append(f" mbarrier.arrive.noComplete.shared.b64 %rd5, [%r1], {n};")
            state["pending"] -= n
            have_state = True
            note(" mbarrier.pending_count.b64 %r20, %rd5;")
        elif what == "drop" and pending and state["count"] > 1:
            body.append(" mbarrier.arrive_drop.shared.b64 %rd5, [%r1];")
            state["pending"] -= 1
            state["count"] -= 1
            have_state = True
        elif what == "state" and have_state:
            note(" mbarrier.test_wait.shared.b64 %p4, [%r1], %rd5;\n selp.u32 %r20, 1, 0, %p4;")
            continue
        else:
            continue
        phase = state["phase"]
        advance()
        if state["phase"] > phase and not (what.startswith("arrive") or what in ("drop",)):
            have_state = False  # the state may be of a phase that is too old to name
        test()
    if state["tx"]:
        body.append(f" mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], {state['tx']};")
    body.append("END:")
    text = module(".param .u64 out", "\n".join(body))
    total = max(results, 1)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        out = np.zeros(total, np.uint32)
        return [out], [out]

    return Case(f"mbarrier {number}", text, make, block=32)


# ------------------------------------------------------------------------- clusters

CLUSTER_SYNC = """
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
"""

BLOCK_OUT = f"""
 mov.u32 %r50, %cluster_ctarank;
 mul.wide.u32 %rd30, %r50, {SMEM - HEADER_BYTES};
"""


def _cluster_download() -> str:
    moved = DOWNLOAD.replace(
        " ld.param.u64 %rd22, [out];", " ld.param.u64 %rd22, [out];\n add.u64 %rd22, %rd22, %rd30;"
    )
    return BLOCK_OUT + moved


def multicast_case(number: int) -> Case:
    """Each block of a cluster loads a box, into the blocks of a mask."""
    source = random.Random(f"multicast {number}")
    blocks = source.choice((2, 4))
    masks = [source.randrange(1 << blocks) for _ in range(blocks)]
    rows = source.choice((8, 16))
    # block b's box goes to slot b: a block expects the boxes whose masks have it
    size = rows * 128
    body = f"""{INIT}{FILL}{BARRIER}
 fence.mbarrier_init.release.cluster;{CLUSTER_SYNC}{BLOCK_OUT}
 mov.b64 %rd1, map;
 cvta.param.u64 %rd2, %rd1;
 mov.u32 %r31, 0;
 mov.u32 %r40, 0;
"""
    for block, mask in enumerate(masks):
        expected = size * sum(bool(m >> block & 1) for m in masks)
        body += f""" setp.eq.u32 %p5, %r50, {block};
 @%p5 mov.u32 %r31, {expected};
 @%p5 mov.u32 %r40, {mask};
"""
    body += f"""
 cvt.u16.u32 %h1, %r40;
 setp.ne.u32 %p6, %r40, 0;
 and.pred %p6, %p6, %p1;
 mul.lo.u32 %r30, %r50, {size};
 add.u32 %r30, %r30, %r2;
 mul.lo.u32 %r21, %r50, {rows};
 mov.u32 %r20, 0;
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r31;
 @%p6 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
.multicast::cluster [%r30], [%rd2, {{%r20, %r21}}], [%r1], %h1;
{WAIT}{_cluster_download()}{CLUSTER_SYNC}"""
    text = module(
        ".param .align 64 .b8 map[128], .param .u64 data, .param .u64 out",
        body.replace("bytes\n.multicast", "bytes.multicast"),
    )
    values = random_values(source, DataType.UINT16, blocks * rows * 64)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(len(values))
        data[:] = values
        out = np.zeros(blocks * (SMEM - HEADER_BYTES), np.uint8)
        tensor_map = TensorMap(
            DataType.UINT16,
            (64, blocks * rows),
            (128,),
            (64, rows),
            swizzle=TensorSwizzle.BYTES_128,
            global_address=data.ctypes.data,
        )
        return [tensor_map, data, out], [out]

    return Case(f"multicast {number}: {masks}", text, make, grid=blocks, cluster=blocks)


def remote_reduction_case(number: int) -> Case:
    """Each block adds its bytes to its neighbour's, in bulk; and multicasts bytes to all."""
    source = random.Random(f"remote reduction {number}")
    blocks = source.choice((2, 4))
    size = 16 * source.randint(1, 64)
    reductions = ("add.u32", "add.s32", "add.u64", "inc.u32", "dec.u32", "min.s32", "min.u32",
                  "max.s32", "max.u32", "and.b32", "or.b32", "xor.b32")  # fmt: skip
    reduction = reductions[number % len(reductions)]
    mask = source.randrange(1, 1 << blocks)
    text = module(
        ".param .u64 image, .param .u64 out, .param .u64 data",
        f"""{INIT}{UPLOAD}
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 fence.mbarrier_init.release.cluster;
 fence.proxy.async;{CLUSTER_SYNC}{BLOCK_OUT}
 add.u32 %r40, %r50, 1;
 rem.u32 %r40, %r40, {blocks};
 mapa.shared::cluster.u32 %r41, %r2, %r40;
 mapa.shared::cluster.u32 %r42, %r1, %r40;
 mov.u32 %r31, {size};
 add.u32 %r44, %r41, 16384;
 shr.u32 %r45, {mask}, %r50;
 and.b32 %r45, %r45, 1;
 mad.lo.u32 %r45, %r45, 1024, {size};
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r45;
 @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{reduction}
     [%r44], [%r2], %r31, [%r42];
 setp.eq.u32 %p5, %r50, {blocks - 1};
 and.pred %p5, %p5, %p1;
 mov.u16 %h1, {mask};
 ld.param.u64 %rd5, [data];
 add.u32 %r46, %r2, 24576;
 mov.u32 %r47, 1024;
 @%p5 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
     [%r46], [%rd5], %r47, [%r1], %h1;
{WAIT}{_cluster_download()}{CLUSTER_SYNC}""",
    )
    image = random_values(source, DataType.UINT32, (SMEM - HEADER_BYTES) // 4)
    if reduction[:3] in ("inc", "dec"):
        image = (image.view(np.uint32) % 5).view(np.uint8)
    values = random_values(source, DataType.UINT8, 1024)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(1024)
        data[:] = values
        out = np.zeros(blocks * (SMEM - HEADER_BYTES), np.uint8)
        return [image.copy(), out, data], [out]

    name = f"remote reduction {number}: {reduction}"
    return Case(name, text, make, grid=blocks, cluster=blocks)


def remote_case(number: int) -> Case:
    """Blocks write to their neighbours: in bulk, by st.async, red.async; remote arrivals."""
    source = random.Random(f"remote {number}")
    blocks = source.choice((2, 4))
    size = 16 * source.randint(1, 64)
    reduction = source.choice(("add.u32", "min.s32", "max.u32", "inc.u32", "dec.u32", "and.b32",
                               "or.b32", "xor.b32", "add.u64"))  # fmt: skip
    wide = reduction.endswith("64")
    step = 8 if wide else 4
    register = "%rd12" if wide else "%r43"
    text = module(
        ".param .u64 image, .param .u64 out",
        f"""{INIT}{UPLOAD}
 @%p1 mbarrier.init.shared.b64 [%r1], 3;
 @%p1 mbarrier.init.shared.b64 [%r1+8], {THREADS};
 fence.mbarrier_init.release.cluster;
 fence.proxy.async;{CLUSTER_SYNC}{BLOCK_OUT}
 add.u32 %r40, %r50, 1;
 rem.u32 %r40, %r40, {blocks};
 mapa.shared::cluster.u32 %r41, %r2, %r40;
 mapa.shared::cluster.u32 %r42, %r1, %r40;
 mov.u32 %r31, {size};
 add.u32 %r44, %r41, 16384;
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {size};
 @%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
     [%r44], [%r2], %r31, [%r42];
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {THREADS * 8};
 shl.b32 %r45, %r0, 3;
 add.u32 %r46, %r41, 24576;
 add.u32 %r46, %r46, %r45;
 st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r46], {{%r0, %r50}}, [%r42];
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], {THREADS * step};
 mad.lo.u32 %r47, %r0, {step}, 28672;
 add.u32 %r47, %r47, %r41;
 add.u32 %r43, %r0, 77;
 mul.wide.u32 %rd12, %r43, 1234567;
 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{reduction}
     [%r47], {register}, [%r42];
 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r42+8];
{WAIT}
REMOTE:
 mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%r1+8], 0;
 add.u32 %r55, %r55, 1;
 setp.gt.u32 %p9, %r55, 10000;
 or.pred %p3, %p3, %p9;
 @!%p3 bra REMOTE;
{_cluster_download()}{CLUSTER_SYNC}""",
    )
    image = random_values(source, DataType.UINT32, (SMEM - HEADER_BYTES) // 4)
    if reduction[:3] in ("inc", "dec"):
        image = (image.view(np.uint32) % 200).view(np.uint8)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        out = np.zeros(blocks * (SMEM - HEADER_BYTES), np.uint8)
        return [image.copy(), out], [out]

    return Case(f"remote {number}: {reduction}", text, make, grid=blocks, cluster=blocks)


# --------------------------------------------------------- tensor maps made by a kernel


def made_map_case(number: int) -> Case:
    """A tensor map that the kernel makes, field by field, in shared memory."""
    source = random.Random(f"made {number}")
    shape = random_shape(source, PLAIN_TYPES, SWIZZLES_90)
    fields = shape.map_fields
    rank = len(shape.coordinates)
    place = HEADER_BYTES // 2
    lines = [INIT, FILL, BARRIER]
    lines.append(
        f" add.u32 %r40, %r1, {place};\n shl.b32 %r41, %r0, 2;\n add.u32 %r42, %r40, %r41;"
    )
    lines.append(" setp.lt.u32 %p5, %r0, 32;\n mov.u32 %r43, 0;\n @%p5 st.shared.b32 [%r42], %r43;")
    lines.append(" bar.sync 0;\n ld.param.u64 %rd1, [data];\n ld.param.u64 %rd3, [scratch];")

    def replaced(field: str, value: str, ordinal: int | None = None, bits: int = 32) -> None:
        where = "" if ordinal is None else f" {ordinal},"
        lines.append(
            f" @%p1 tensormap.replace.tile.{field}.shared::cta.b1024.b{bits}"
            f" [%r40],{where} {value};"
        )

    replaced("global_address", "%rd1", None, 64)
    replaced("rank", str(rank - 1))
    for i in range(rank):
        for field, key in (("box_dim", "box_dims"), ("global_dim", "global_dims"),
                           ("element_stride", "element_strides")):  # fmt: skip
            lines.append(f" mov.u32 %r44, {fields[key][i]};")
            replaced(field, "%r44", i)
    for i in range(rank - 1):
        lines.append(f" mov.u64 %rd4, {fields['global_strides'][i]};")
        replaced("global_stride", "%rd4", i, 64)
    element_types = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8, 11, 12]
    replaced("elemtype", str(element_types[fields["data_type"]]))
    replaced("interleave_layout", "0")
    replaced("swizzle_mode", str(int(fields["swizzle"])))
    replaced("fill_mode", str(int(fields["oob_fill"])))
    parameters, loads, operand = coordinates(rank)
    lines.append(f"""
 @%p5 tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
     [%rd3], [%r40], 128;
 @%p5 fence.proxy.tensormap::generic.acquire.gpu [%rd3], 128;
 bar.sync 0;
 ld.param.u32 %r30, [place];
 add.u32 %r30, %r30, %r2;
 ld.param.u32 %r31, [expected];
{loads}
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r31;
 @%p1 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
     [%r30], [%rd3, {operand}], [%r1];
{WAIT}{DOWNLOAD}""")
    text = module(
        ".param .u64 data, .param .u64 scratch, .param .u64 out, .param .u32 place,"
        f" .param .u32 expected{parameters}",
        "\n".join(lines),
    )
    kind = fields["data_type"]
    values = random_values(source, kind, shape.tensor_bytes // (kind.bits // 8))

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(len(values))
        data[:] = values
        out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        expected = shape.map_at(data.ctypes.data).transaction_bytes
        return [data, aligned(128), out, shape.place, expected, *shape.coordinates], [out]

    if number % 4 == 3:  # the stride's unit does not depend on the version
        text = text.replace(".version 8.7", (".version 8.3", ".version 8.5")[number // 4 % 2])
    return Case(f"made map {number}: {shape}", text, make)


def synchronization_cases() -> Iterator[Case]:
    """cp.async, mbarriers, clusters, tensor maps made by kernels."""
    for number in range(40):
        yield copy_case(number)
    for number in range(10):
        yield copy_barrier_case(number)
    for number in range(60):
        yield barrier_case(number)
    for number in range(12):
        yield multicast_case(number)
    for number in range(24):
        yield remote_case(number)
    for number in range(12):
        yield remote_reduction_case(number)
    for number in range(24):
        yield made_map_case(number)


def fault_cases() -> Iterator[Case]:
    """What stops a kernel: each costs the GPU's context."""
    for number in range(5):
        yield store_case(number, negative=True)
    for number in range(8):
        yield misaligned_case(number)
    for operation, kind in NO_REDUCTIONS:
        yield replace(
            special_case(kind, "store", operation),
            name=f"no reduction {operation} {kind.name}",
            faults=True,
        )


def misaligned_case(number: int) -> Case:
    """A box or a copy at an address, coordinate or size that is no multiple of what it must be."""
    names = ("coordinate 1", "coordinate 4", "place 16", "place 64", "stored place 16",
             "stored place 64", "stored coordinate 4", "bulk place 8")  # fmt: skip
    name = names[number]
    off = int(name.split()[-1])
    fields: dict[str, Any] = {
        "data_type": DataType.UINT16, "global_dims": (64, 64), "global_strides": (128,),
        "box_dims": (32, 16), "swizzle": TensorSwizzle.NONE,
    }  # fmt: skip
    place, column = (off, 0) if "place" in name else (0, off)

    def make() -> tuple[list[Any], list[np.ndarray]]:
        data = aligned(64 * 128)
        out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        tensor_map = TensorMap(**fields, global_address=data.ctypes.data)
        if name.startswith("bulk"):
            return [data, out, off, 256], [out]
        if name.startswith("stored"):
            return [tensor_map, data, out, place, column, 0], [data]
        return [tensor_map, data, out, place, 1024, column, 0], [out]

    text = store_kernel(2) if name.startswith("stored") else load_kernel(2)
    if name.startswith("bulk"):
        text = bulk_load_kernel()
    return Case(f"misaligned {number}: {name}", text, make, faults=True)


def all_cases() -> list[Case]:
    """In a fixed order."""
    return [*tensor_cases(), *bulk_cases(), *synchronization_cases(), *fault_cases()]
