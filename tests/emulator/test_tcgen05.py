"""tcgen05 on the emulator: hand-written PTX against formulas typed from the PTX ISA's figures.

The formulas here are written out by hand; none comes from `triton_ext.hardware`, which the
emulator uses.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from tcgen05_operands import (
    DTYPES,
    K_OF_KIND,
    Placed,
    codes,
    instruction_descriptor,
    place,
    small_integers,
)
from tcgen05_ptx import (
    DATA,
    STATE,
    allocate,
    assemble,
    commit_and_wait,
    descriptor,
    fill_shared,
    free,
    kernel,
    load_columns,
    rank_offsets,
    read_in,
    registers,
    store_columns,
    write_out,
)

from triton_ext.emulator import UnsupportedInstruction, run_ptx
from triton_ext.emulator.errors import (
    BarrierFault,
    ConvergenceFault,
    Deadlock,
    DescriptorFault,
    EmulationError,
    SynchronizationFault,
    TensorMemoryFault,
    UninitializedRead,
    UnreadSums,
)
from triton_ext.emulator.units.matrix_product import EXACT, aligned_sum

SCHEDULES = ("eager", "lazy", "random")
LANES, COLUMNS = 128, 512


def run(
    text: str,
    source: np.ndarray,
    target: np.ndarray,
    schedule: str = "eager",
    *,
    shared: int = 0,
    grid: int = 1,
    threads: int = 128,
    **options: bool,
) -> None:
    run_ptx(
        text,
        grid=grid,
        block=threads,
        args=[source, target],
        dynamic_smem_bytes=STATE + shared,
        schedule=schedule,
        seed=1,
        **options,
    )


# ------------------------------------------------------------------- ld and st

# shape -> (lane, column) of register r of thread t; the figures "Matrix fragments for shape ..."
FRAGMENTS: dict[str, Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]] = {
    "32x32b": lambda r, t, split: (t, r),
    "16x64b": lambda r, t, split: (t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * r),
    "16x128b": lambda r, t, split: (t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)),
    "16x256b": lambda r, t, split: (
        t // 4 + 8 * (r // 2 % 2),
        2 * (t % 4) + r % 2 + 8 * (r // 4),
    ),
    "16x32bx2": lambda r, t, split: (t % 16, r + split * (t // 16)),
}
REGISTERS_OF_X1 = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}


def fragment(
    shape: str, repeat: int, pack: bool, half: int, split: int
) -> tuple[np.ndarray, np.ndarray]:
    """(registers, 128 threads): the lane, and the (first) column, of each register."""
    r = np.arange(REGISTERS_OF_X1[shape] * repeat)[:, None]
    t = np.arange(32)[None, :]
    unit = 2 if pack else 1
    lane, column = np.broadcast_arrays(*FRAGMENTS[shape](r, t, 0))
    column = column * unit + (split * (t // 16) if shape == "16x32bx2" else 0)
    lanes = np.concatenate([lane + 32 * warp + 16 * half for warp in range(4)], axis=1)
    return lanes, np.concatenate([column] * 4, axis=1)


def access_cases() -> list[tuple[str, int, bool, int, int]]:
    cases = []
    for shape, each in REGISTERS_OF_X1.items():
        for power, pack in itertools.product(range(8), (False, True)):
            repeat = 1 << power
            if each * repeat > 128:
                continue
            half = power % 2 if shape != "32x32b" else 0
            width = repeat * (2 if pack else 1)
            cases.append((shape, repeat, pack, half, min(24 + width, COLUMNS - width)))
    return cases


ACCESS_IDS = [f"{s}.x{n}{'.pack' * p}" for s, n, p, _, _ in access_cases()]


def access(name: str, shape: str, repeat: int, pack: bool, half: int, split: int) -> str:
    packing = {"ld": ".pack::16b", "st": ".unpack::16b"}[name] if pack else ""
    vector = registers(REGISTERS_OF_X1[shape] * repeat)
    extra = f", {split}" if shape == "16x32bx2" else ""
    where = f"[%r7]{extra}"
    both = f"{vector}, {where}" if name == "ld" else f"{where}, {vector}"
    return (
        f"  add.u32 %r7, %r5, {half << 20};\n"
        f"  tcgen05.{name}.sync.aligned.{shape}.x{repeat}{packing}.b32 {both};\n"
        f"  tcgen05.wait::{name}.sync.aligned;\n"
    )


def whole_memory(name: str, used: int) -> str:
    """Move the first columns by shape 32x32b, from or to column * 128 + thread."""
    text = ""
    for first in range(0, used, 32):
        count = 32
        vector = registers(count)
        text += f"  add.u32 %r7, %r5, {first};\n"
        if name == "st":
            text += read_in(count, first * 128)
            text += f"  tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r7], {vector};\n"
            text += "  tcgen05.wait::st.sync.aligned;\n"
        else:
            text += f"  tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {vector}, [%r7];\n"
            text += "  tcgen05.wait::ld.sync.aligned;\n" + write_out(count, first * 128)
    return text


def used_columns(case: tuple[str, int, bool, int, int]) -> int:
    """That the access names, in steps of 32."""
    return -(-(int(fragment(*case)[1].max()) + 2) // 32) * 32


@pytest.mark.parametrize("case", access_cases(), ids=ACCESS_IDS)
def test_load_of_every_shape(case: tuple[str, int, bool, int, int]) -> None:
    """The memory is filled by 32x32b stores, which `test_copy_of_every_shape` checks."""
    shape, repeat, pack, _, _ = case
    count = REGISTERS_OF_X1[shape] * repeat
    used = min(used_columns(case), COLUMNS)
    text = kernel(
        allocate() + whole_memory("st", used) + access("ld", *case) + write_out(count) + free()
    )
    memory = np.random.default_rng(1).integers(0, 1 << 32, (used, 128), np.uint32)
    found = np.zeros((count, 128), np.uint32)
    run(text, memory, found)
    lanes, columns = fragment(*case)
    expected = memory[columns, lanes]
    if pack:
        expected = (expected & 0xFFFF) | memory[columns + 1, lanes] << 16
    assert (found == expected).all()


@pytest.mark.parametrize("case", access_cases(), ids=ACCESS_IDS)
def test_store_of_every_shape(case: tuple[str, int, bool, int, int]) -> None:
    shape, repeat, pack, _, _ = case
    count = REGISTERS_OF_X1[shape] * repeat
    used = min(used_columns(case), COLUMNS)
    body = (
        allocate() + whole_memory("st", used) + read_in(count, used * 128)
        + access("st", *case) + whole_memory("ld", used) + free()
    )  # fmt: skip
    generator = np.random.default_rng(2)
    source = generator.integers(0, 1 << 32, (used + count) * 128, np.uint32)
    found = np.zeros((used, 128), np.uint32)
    run(kernel(body), source, found)
    expected = source[: used * 128].reshape(used, 128).copy()
    values = source[used * 128 :].reshape(count, 128)
    lanes, columns = fragment(*case)
    if pack:
        expected[columns, lanes] = values & 0xFFFF
        expected[columns + 1, lanes] = values >> 16
    else:
        expected[columns, lanes] = values
    assert (found == expected).all()


def test_the_kernels_of_ld_and_st_are_legal() -> None:
    """ptxas accepts them, each shape once."""
    body = "".join(access(name, *case) for name in ("ld", "st") for case in access_cases())
    assemble([kernel(allocate() + body + free())])


# ------------------------------------------------------------------ cp and shift

# multicast -> the row that goes to a lane; the data movement shapes of tcgen05.cp
COPIES: dict[str, tuple[int, int, Callable[[int], int | None]]] = {
    "128x256b": (128, 256, lambda lane: lane),
    "128x128b": (128, 128, lambda lane: lane),
    "4x256b": (4, 256, lambda lane: lane // 32 if lane % 32 == 31 else None),
    "64x128b.warpx2::02_13": (64, 128, lambda lane: lane % 64),
    "64x128b.warpx2::01_23": (64, 128, lambda lane: lane % 32 + 32 * (lane // 64)),
    "32x128b.warpx4": (32, 128, lambda lane: lane % 32),
}


def row_address(row: int, chunk: int, leading: int, stride: int) -> int:
    """Canonical K-major layout without swizzle: 8 x 16-byte core matrices."""
    return row % 8 * 16 + row // 8 * stride + chunk * leading


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("shape", COPIES)
def test_copy_of_every_shape(shape: str, schedule: str) -> None:
    _, bits, row_of = COPIES[shape]
    columns = bits // 32
    leading, stride = 128, 128 * (bits // 128) + 128  # with a gap
    size = 6144
    first_lane = 31 if shape.startswith("4x") else 0
    text = kernel(
        allocate(32)
        + fill_shared(size)
        + read_in(32, size // 4)
        + f"  tcgen05.st.sync.aligned.32x32b.x32.b32 [%r5], {registers(32)};\n"
        + "  tcgen05.wait::st.sync.aligned;\n  bar.sync 0;\n"
        + f"  mov.u64 %rd3, {descriptor(DATA, leading, stride)};\n"
        + f"  add.u32 %r7, %r4, {first_lane << 16 | 4};\n"
        + f"  @%p1 tcgen05.cp.cta_group::1.{shape} [%r7], %rd3;\n"
        + commit_and_wait(0)
        + f"  tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(32)}, [%r5];\n"
        + "  tcgen05.wait::ld.sync.aligned;\n"
        + write_out(32)
        + free(32)
    )
    assemble([text])
    source = np.random.default_rng(3).integers(0, 1 << 32, size // 4 + 32 * 128, np.uint32)
    found = np.zeros((32, 128), np.uint32)
    run(text, source, found, schedule, shared=size)
    expected = source[size // 4 :].reshape(32, 128).copy()
    for lane in range(128):
        row = row_of(lane)
        if row is not None:
            for column in range(columns):
                at = row_address(row, column // 4, leading, stride) // 4 + column % 4
                expected[4 + column, lane] = source[at]
    assert (found == expected).all()


# ------------------------------------------------------------------------- mma

SCALE_COLUMN, A_COLUMN = 256, 480


def accumulator_cell(m: int, n: int, group: int, ws: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """(row, column) of D in each (lane, column) of the first block; -1 in holes; columns used.

    PTX ISA, "Data Path Layout Organization", its figures. The second block of a pair has the second
    half of the rows.
    """
    lane = np.arange(128)[:, None]
    if (m, group) in ((128, 1), (256, 2)):
        row, part, parts = lane, 0 * lane, 1
    elif (m, group, ws) == (64, 1, False):
        row, part, parts = np.where(lane % 32 < 16, lane // 32 * 16 + lane % 32, -1), 0 * lane, 1
    elif (m, group) == (128, 2) or (m, group, ws) == (64, 1, True):
        row, part, parts = lane % 64, lane // 64, 2
    else:
        row, part, parts = lane % 32, lane // 32, 4
    column = np.arange(n // parts)[None, :] + part * (n // parts)
    return np.broadcast_to(row, column.shape), column, n // parts


def multiply(
    kind: str,
    m: int,
    n: int,
    a_type: str,
    b_type: str,
    d_type: str = "f32",
    *,
    majors: str = "KK",
    swizzles: tuple[tuple[int, int], tuple[int, int]] = ((128, 16), (128, 16)),
    group: int = 1,
    ws: bool = False,
    a_in_tensor_memory: bool = False,
    steps: int = 2,
    accumulate: bool = True,
    first_lane: int = 0,
    negate: str = "",
    saturate: bool = False,
    schedule: str = "eager",
    tail: str = "",
    moves: str = "",
    check: bool = False,
    values: Callable[[tuple[int, ...], str, int], np.ndarray] = small_integers,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Run products over `steps` instructions along K; D before and after, A, B.

    D is as the cells say: (blocks, 128 lanes, columns) of 32 bits.
    """
    k = K_OF_KIND[kind]
    names = {"A": "K" if majors[0] == "K" else "MN", "B": "K" if majors[1] == "K" else "MN"}
    a = values((m, k * steps), a_type, 5)
    b = values((n, k * steps), b_type, 6)
    row, _, columns = accumulator_cell(m, n, group, ws)
    before = np.random.default_rng(7).integers(-50, 50, (group, 128, columns))
    if values is not small_integers:
        before = before / 7
    before = before.astype({"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type])
    before_words = before.view(np.uint16 if d_type == "f16" else np.uint32).astype(np.uint32)
    a_columns = 8 * steps
    tiles: list[list[Placed]] = []  # of each block: for each step, A and B
    for block in range(group):
        a_here = a[block * (m // group) :][: m // group]
        b_here = b[block * (n // group) :][: n // group]
        placed = []
        for step in range(steps):
            part = slice(step * k, (step + 1) * k)
            if not a_in_tensor_memory:
                placed.append(place(a_here[:, part], a_type, names["A"], swizzles[0]))
            placed.append(place(b_here[:, part], b_type, names["B"], swizzles[1]))
        tiles.append(placed)
    size = -(-sum(len(tile.data) for tile in tiles[0]) // 2048) * 2048
    source_bytes = size + 4 * 128 * (columns + a_columns)
    source = np.zeros((group, source_bytes), np.uint8)
    starts = np.cumsum([0] + [len(tile.data) for tile in tiles[0]])
    for block in range(group):
        for start, tile in zip(starts, tiles[block], strict=False):
            source[block, start : start + len(tile.data)] = tile.data
        words = source[block, size:].view(np.uint32).reshape(-1, 128)
        words[:columns] = before_words[block].T
        if a_in_tensor_memory:
            a_here = a[block * (m // group) :][: m // group]
            raw = codes(a_here, a_type) << (2 if a_type == "e2m1" else 0)
            packed = np.ascontiguousarray(raw).view(np.uint32)
            padded = np.vstack([packed, np.zeros((1, a_columns), np.uint32)])
            words[columns:] = padded[row[:, 0]].T
    idesc = instruction_descriptor(
        kind, m, n, a_type, b_type, d_type, names["A"], names["B"],
        negate_a="A" in negate, negate_b="B" in negate, saturate=saturate,
    )  # fmt: skip
    lines = [f"  mov.u32 %r12, {idesc};", f"  setp.ne.u32 %p5, %r12, {0 if accumulate else idesc};"]
    place_of = iter(zip(starts, tiles[0], strict=False))
    for step in range(steps):
        if a_in_tensor_memory:
            lines.append(f"  add.u32 %r13, %r11, {A_COLUMN + 8 * step};")
            left = "[%r13]"
        else:
            start, tile = next(place_of)
            text = descriptor(DATA + int(start), tile.leading, tile.stride, tile.swizzle)
            lines.append(f"  mov.u64 %rd3, {text};")
            left = "%rd3"
        start, tile = next(place_of)
        text = descriptor(DATA + int(start), tile.leading, tile.stride, tile.swizzle)
        lines.append(f"  mov.u64 %rd4, {text};")
        form = ".ws" if ws else ""
        lines.append(
            f"  @%p3 tcgen05.mma{form}.cta_group::{group}.kind::{kind} [%r11], {left}, %rd4,"
            f" %r12, {tail.partition('|')[0]}%p5{tail.partition('|')[2]};"
        )
        lines.append("  setp.eq.u32 %p5, %r12, %r12;")
    meet = CLUSTER_BARRIER if group == 2 else "  bar.sync 0;\n"
    multicast = ".multicast::cluster" if group == 2 else ""
    mask = ", %h1" if group == 2 else ""
    text = kernel(
        rank_offsets(source_bytes, 4 * 128 * columns)
        + allocate(512, group)
        + fill_shared(size)
        + store_columns(columns, size // 4, 0)
        + (store_columns(a_columns, size // 4 + 128 * columns, A_COLUMN) if a_in_tensor_memory
           else "")
        + meet
        + f"  tcgen05.fence::after_thread_sync;\n  add.u32 %r11, %r4, {first_lane << 16};\n"
        + moves
        + "\n".join(lines)
        + f"""
  mov.u16 %h1, 3;
  @%p3 tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast}.b64
       [%r6]{mask};
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p10, [%r6], 0;
  @!%p10 bra WAIT;
  tcgen05.fence::after_thread_sync;
"""
        + load_columns(columns)
        + free(512, group),
        cluster=group,
    )  # fmt: skip
    if check:
        assemble([text])
    after = np.zeros((group, columns, 128), np.uint32)
    run(text, source, after, schedule, shared=size, grid=group)
    return before_words, after.transpose(0, 2, 1), a, b


CLUSTER_BARRIER = "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n"


def expected_cells(
    d: np.ndarray, before: np.ndarray, m: int, n: int, group: int, ws: bool, d_type: str,
    first_lane: int = 0,
) -> np.ndarray:  # fmt: skip
    """What the cells hold afterwards: D where it lies, what was there before elsewhere."""
    row, column, _ = accumulator_cell(m, n, group, ws)
    dtype = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[d_type]
    result = before.copy()
    for block in range(group):
        here = d[block * (m // group) :][: m // group].astype(dtype)
        bits = here.view(np.uint16 if d_type == "f16" else np.uint32).astype(np.uint32)
        cells = bits[row, column]
        target = result[block]
        held = row >= 0
        shifted = np.roll(held, first_lane, axis=0)
        target[shifted] = np.roll(cells, first_lane, axis=0)[shifted]
    return result


def check_product(
    kind: str, m: int, n: int, a_type: str, b_type: str, d_type: str = "f32", **options: object
) -> None:
    """The product against float64, every cell of the columns that D spans."""
    group, ws = int(options.get("group", 1)), bool(options.get("ws", False))
    before, after, a, b = multiply(kind, m, n, a_type, b_type, d_type, **options)  # type: ignore[arg-type]
    d = a @ b.T
    first_lane = int(options.get("first_lane", 0))
    negate = str(options.get("negate", ""))
    if len(negate) == 1:
        d = -d
    if options.get("accumulate", True):
        row, column, _ = accumulator_cell(m, n, group, ws)
        rows = m // group
        for block in range(group):
            words = before[block]
            if d_type == "f16":
                old = words.astype(np.uint16).view(np.float16)
            else:
                old = words.view(np.float32 if d_type == "f32" else np.int32)
            old = np.roll(old, -first_lane, axis=0)
            held = row >= 0
            d[block * rows + row[held], column[held]] += old[held]
    expected = expected_cells(d, before, m, n, group, ws, d_type, first_lane)
    assert (after == expected).all()


KINDS = [
    ("f16", "f16", "f16", "f32"), ("f16", "bf16", "bf16", "f32"), ("f16", "f16", "f16", "f16"),
    ("tf32", "tf32", "tf32", "f32"), ("f8f6f4", "e4m3", "e4m3", "f32"),
    ("f8f6f4", "e5m2", "e4m3", "f16"), ("f8f6f4", "e2m3", "e3m2", "f32"),
    ("f8f6f4", "e2m1", "e5m2", "f32"), ("f8f6f4", "e4m3", "e2m1", "f32"),
    ("i8", "u8", "s8", "s32"), ("i8", "s8", "u8", "s32"), ("i8", "s8", "s8", "s32"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "a_type", "b_type", "d_type"), KINDS)
def test_product_of_every_kind(kind: str, a_type: str, b_type: str, d_type: str) -> None:
    check_product(kind, 128, 64, a_type, b_type, d_type, check=True)


SHAPES = [
    (64, 8, 1), (64, 24, 1), (64, 128, 1), (64, 256, 1), (128, 16, 1), (128, 48, 1),
    (128, 208, 1), (128, 256, 1), (128, 32, 2), (128, 96, 2), (128, 256, 2), (256, 32, 2),
    (256, 160, 2), (256, 256, 2),
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("m", "n", "group"), SHAPES)
def test_product_of_every_shape(m: int, n: int, group: int, schedule: str) -> None:
    check_product("f16", m, n, "f16", "f16", group=group, schedule=schedule, steps=1)


@pytest.mark.parametrize("width", [0, 32, 64, 128])
@pytest.mark.parametrize("majors", ["KK", "KM", "MK", "MM"])
@pytest.mark.parametrize(("kind", "group"), [("f16", 1), ("f16", 2), ("i8", 1), ("f8f6f4", 2)])
def test_product_of_every_major_and_swizzle(kind: str, majors: str, width: int, group: int) -> None:
    types = {"f16": ("bf16", "bf16", "f32"), "i8": ("s8", "u8", "s32"),
             "f8f6f4": ("e4m3", "e5m2", "f32")}[kind]  # fmt: skip
    swizzles = ((width, 16), (width, 16))
    check_product(
        kind, 128 * group, 128, *types, majors=majors, swizzles=swizzles, group=group, steps=1
    )


@pytest.mark.parametrize("majors", ["KK", "KM", "MK", "MM"])
def test_tf32_is_transposed_with_32_byte_atomicity(majors: str) -> None:
    swizzles = tuple((128, 32) if major == "M" else (128, 16) for major in majors)
    check_product("tf32", 128, 64, "tf32", "tf32", majors=majors, swizzles=swizzles)


@pytest.mark.parametrize(("m", "group"), [(64, 1), (128, 1), (128, 2), (256, 2)])
@pytest.mark.parametrize(
    ("kind", "a_type", "d_type"),
    [("f16", "f16", "f32"), ("tf32", "tf32", "f32"), ("f8f6f4", "e4m3", "f32"),
     ("f8f6f4", "e3m2", "f16"), ("f8f6f4", "e2m1", "f32"), ("i8", "s8", "s32")],
)  # fmt: skip
def test_operand_a_in_tensor_memory(
    kind: str, a_type: str, d_type: str, m: int, group: int
) -> None:
    b_type = {"e3m2": "e5m2", "e2m1": "e2m3"}.get(a_type, a_type)
    check_product(kind, m, 64, a_type, b_type, d_type, group=group, a_in_tensor_memory=True)


@pytest.mark.parametrize("n", [64, 128, 256])
@pytest.mark.parametrize("m", [32, 64, 128])
def test_weight_stationary_product(m: int, n: int) -> None:
    check_product("f16", m, n, "f16", "f16", ws=True, check=m == 32)


def test_half_of_the_lanes_may_start_at_lane_16() -> None:
    """Layout F: D at lane 16 of each warp's lanes; the others keep what they hold."""
    check_product("f16", 64, 32, "f16", "f16", first_lane=16)


@pytest.mark.parametrize("negate", ["A", "B", "AB"])
def test_negated_operands(negate: str) -> None:
    check_product("f16", 128, 32, "f16", "f16", negate=negate)


def test_without_the_accumulator() -> None:
    check_product("f16", 128, 32, "f16", "f16", accumulate=False)


@pytest.mark.parametrize("scale", [0, 1, 7, 15])
@pytest.mark.parametrize(("kind", "type_name"), [("f16", "f16"), ("tf32", "tf32")])
def test_scaled_accumulator(kind: str, type_name: str, scale: int) -> None:
    """scale-input-d: D = A x B + D / 2 ** scale, for each instruction."""
    before, after, a, b = multiply(
        kind, 128, 32, type_name, type_name, steps=1, tail=f"|, {scale}", check=scale == 7
    )
    d = a @ b.T + before[0].view(np.float32) * 2.0**-scale
    assert (after[0].view(np.float32) == d.astype(np.float32)).all()


@pytest.mark.parametrize(("m", "group"), [(64, 1), (128, 1), (128, 2), (256, 2)])
def test_disabled_lanes(m: int, group: int) -> None:
    """disable-output-lane: a bit for each lane, of the first block, then of the second."""
    masks = [0x80000001, 0xFFFF0000, 0, 0x12345678, 0, 0xFFFFFFFF, 0x0000FFFF, 0xA5A5A5A5]
    masks = masks[: 4 * group]
    vector = "{" + ", ".join(f"%r{20 + i}" for i in range(len(masks))) + "}"
    moves = "".join(f"  mov.u32 %r{20 + i}, {mask};\n" for i, mask in enumerate(masks))
    before, after, a, b = multiply(
        "f16", m, 64, "f16", "f16", group=group, tail=vector + ", |", check=True, accumulate=False,
        steps=1, moves=moves,
    )  # fmt: skip
    enabled = np.array([masks[lane // 32] >> lane % 32 & 1 == 0 for lane in range(128 * group)])
    expected = expected_cells(a @ b.T, before, m, 64, group, False, "f32")
    expected = np.where(enabled.reshape(group, 128, 1), expected, before)
    assert (after == expected).all()


def test_saturating_integers() -> None:
    """The sums are far from the limits; with saturation they stop there."""
    for saturate in (False, True):
        check_product("i8", 128, 32, "s8", "u8", "s32", saturate=saturate)


def random_values(shape: tuple[int, ...], type_name: str, seed: int) -> np.ndarray:
    """Of several orders of magnitude, as far as the type has them."""
    generator = np.random.default_rng(seed)
    drawn = generator.standard_normal(shape) * np.exp2(generator.integers(-4, 3, shape))
    drawn = drawn.astype(np.float32)
    if type_name == "tf32":
        drawn = (drawn.view(np.uint32) & 0xFFFFE000).view(np.float32)
    return drawn.astype(DTYPES[type_name]).astype(np.float64)


ROUNDED_ONCE = "the exact sum, rounded once"


def rules_that_fit(
    a: np.ndarray, b: np.ndarray, types: tuple[str, str], before: np.ndarray, after: np.ndarray,
    d_type: str = "f32",
) -> list[str]:  # fmt: skip
    """Of the ways to add the products of A (M, K) and B (N, K), those that give these bits."""
    words, dtype = (np.uint16, np.float16) if d_type == "f16" else (np.uint32, np.float32)
    d = before.astype(words).view(dtype)
    rules = {ROUNDED_ONCE: EXACT} | {
        f"aligned to the largest, {bits} bits below it, cut off":
            partial(aligned_sum, types=types, fraction=bits)
        for bits in range(11, 27)
    }  # fmt: skip
    left, right = a.astype(np.float32), b.T.astype(np.float32)
    found = after.astype(words)
    return [
        name
        for name, rule in rules.items()
        if (rule(left, right, d, d_type).view(words) == found).all()
    ]


@pytest.mark.parametrize(("kind", "a_type", "b_type", "d_type"), [
    case for case in KINDS if case[0] != "i8"
])  # fmt: skip
def test_products_of_random_numbers(
    kind: str, a_type: str, b_type: str, d_type: str, record_property: Callable[[str, object], None]
) -> None:
    """How one instruction rounds; on silicon (`silicon.replay`), which of the rules is true."""
    before, after, a, b = multiply(
        kind, 128, 64, a_type, b_type, d_type, steps=1, values=random_values
    )
    fitting = rules_that_fit(a, b, (a_type, b_type), before[0], after[0], d_type)
    record_property("rounding", fitting)
    assert ROUNDED_ONCE in fitting


# -------------------------------------------------------------- block-scaled mma

# kind, scale_vectorsize, scale type -> factors of a row, types of A and B
SCALED = [
    ("mxf8f6f4", ".scale_vec::1X", "ue8m0", 1, "e4m3", "e5m2"),
    ("mxf8f6f4", ".scale_vec::1X", "ue8m0", 1, "e2m3", "e3m2"),
    ("mxf8f6f4", "", "ue8m0", 1, "e2m1", "e4m3"),
    ("mxf4", ".scale_vec::2X", "ue8m0", 2, "e2m1", "e2m1"),
    ("mxf4nvf4", ".scale_vec::2X", "ue8m0", 2, "e2m1", "e2m1"),
    ("mxf4nvf4", ".scale_vec::4X", "ue8m0", 4, "e2m1", "e2m1"),
    ("mxf4nvf4", ".scale_vec::4X", "ue4m3", 4, "e2m1", "e2m1"),
]


def scale_codes(
    shape: tuple[int, int], scale_type: str, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Codes of scale factors, and their values: powers of two from 1/4 to 4, or small e4m3."""
    generator = np.random.default_rng(seed)
    if scale_type == "ue8m0":
        exponents = generator.integers(-2, 3, shape)
        return (exponents + 127).astype(np.uint8), 2.0**exponents
    values = generator.integers(1, 9, shape) / 2
    codes_of = values.astype(DTYPES["e4m3"]).view(np.uint8)
    return codes_of, values


def scale_columns(factors: np.ndarray, first_byte: int, groups: list[int]) -> np.ndarray:
    """(columns, 128 lanes): rows 0 to 31 in the first column, and so on; copies in `groups`.

    PTX ISA, "Scale Factor A ID" and "Scale Factor B ID", the figures.
    """
    rows, count = factors.shape
    words = np.zeros((-(-rows // 32), 128), np.uint32)
    for row in range(rows):
        for index in range(count):
            value = int(factors[row, index]) << 8 * (first_byte + index)
            for group in groups:
                words[row // 32, 32 * group + row % 32] |= np.uint32(value)
    return words


def scaled_product(
    case: tuple[str, str, str, int, str, str], m: int, n: int, group: int, ids: tuple[int, int],
    *, spoil: bool = False, schedule: str = "eager", check: bool = False,
    values: Callable[[tuple[int, ...], str, int], np.ndarray] = small_integers,
    product: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda a, b: a @ b.T,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """D, and what it must be by `product`: (blocks, lanes, columns)."""
    kind, vector, scale_type, count, a_type, b_type = case
    k = K_OF_KIND[kind]
    packed = kind != "mxf8f6f4"
    a, b = values((m, k), a_type, 15), values((n, k), b_type, 16)
    a_codes, a_values = scale_codes((m, count), scale_type, 17)
    b_codes, b_values = scale_codes((n, count), scale_type, 18)
    _, _, columns = accumulator_cell(m, n, group, False)
    parts = n // columns
    a_columns, b_columns = -(-m // group // 32), -(-(n // parts) // 32)
    b_columns_all = 8 * -(-b_columns // 8)
    blocks = []
    for block in range(group):
        tiles = [
            place(each[block * (len(each) // group) :][: len(each) // group], name, "K",
                  (32, 16), packed)
            for each, name in ((a, a_type), (b, b_type))
        ]  # fmt: skip
        sfa = scale_columns(a_codes[block * (m // group) :][: m // group], ids[0], [0, 1, 2, 3])
        sfb = np.zeros((b_columns, 128), np.uint32)
        for part in range(parts):
            own = [part * 4 // parts + index for index in range(4 // parts)]
            sfb |= scale_columns(b_codes[part * columns :][:columns], ids[1], own)
        if spoil:
            sfb[0, 70] ^= np.uint32(0xFF << 8 * ids[1])
        words = np.zeros((8 + b_columns_all, 128), np.uint32)
        words[:a_columns], words[8 : 8 + b_columns] = sfa, sfb
        blocks.append((tiles, words))
    starts = [0, len(blocks[0][0][0].data)]
    size = -(-sum(len(tile.data) for tile in blocks[0][0]) // 2048) * 2048
    source_bytes = size + 4 * 128 * (8 + b_columns_all)
    source = np.zeros((group, source_bytes), np.uint8)
    for block, (tiles, words) in enumerate(blocks):
        for start, tile in zip(starts, tiles, strict=True):
            source[block, start : start + len(tile.data)] = tile.data
        source[block, size:] = words.view(np.uint8).reshape(-1)
    left, right = (
        descriptor(DATA + start, tile.leading, tile.stride, tile.swizzle)
        for start, tile in zip(starts, blocks[0][0], strict=True)
    )
    idesc = instruction_descriptor(
        kind, m, n, a_type, b_type, "f32", "K", "K",
        scale_type=int(scale_type == "ue8m0"), a_id=ids[0], b_id=ids[1],
    )  # fmt: skip
    meet = CLUSTER_BARRIER if group == 2 else "  bar.sync 0;\n"
    multicast, mask = (".multicast::cluster", ", %h1") if group == 2 else ("", "")
    text = kernel(
        rank_offsets(source_bytes, 4 * 128 * columns) + allocate(512, group) + fill_shared(size)
        + store_columns(8 + b_columns_all, size // 4, SCALE_COLUMN) + meet
        + f"""
  tcgen05.fence::after_thread_sync;
  mov.u64 %rd3, {left};
  mov.u64 %rd4, {right};
  mov.u32 %r12, {idesc};
  setp.ne.u32 %p5, %r12, %r12;
  add.u32 %r13, %r4, {SCALE_COLUMN};
  add.u32 %r14, %r4, {SCALE_COLUMN + 8};
  @%p3 tcgen05.mma.cta_group::{group}.kind::{kind}.block_scale{vector} [%r4], %rd3, %rd4, %r12,
       [%r13], [%r14], %p5;
  mov.u16 %h1, 3;
  @%p3 tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster{multicast}.b64
       [%r6]{mask};
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p10, [%r6], 0;
  @!%p10 bra WAIT;
"""
        + load_columns(columns) + free(512, group),
        cluster=group,
    ).replace(".version 8.7", ".version 8.8")  # fmt: skip
    if check:
        assemble([text])
    found = np.zeros((group, columns, 128), np.uint32)
    run(text, source, found, schedule, shared=size, grid=group)
    scaled_a = a * np.repeat(a_values, k // count, axis=1)
    scaled_b = b * np.repeat(b_values, k // count, axis=1)
    nothing = np.zeros((group, 128, columns), np.uint32)
    d = product(scaled_a, scaled_b)
    expected = expected_cells(d, nothing, m, n, group, False, "f32")
    return found.transpose(0, 2, 1), expected


@pytest.mark.parametrize("case", SCALED, ids=lambda case: "-".join(map(str, case)))
def test_block_scaled_product_of_every_kind(case: tuple[str, str, str, int, str, str]) -> None:
    for first in range(0, 4, case[3]):
        ids = (first, (first + case[3]) % 4)
        found, expected = scaled_product(case, 128, 64, 1, ids, check=first == 0)
        assert (found == expected).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("m", "n", "group"), [
    (128, 8, 1), (128, 48, 1), (128, 256, 1), (128, 64, 2), (128, 256, 2), (256, 32, 2),
    (256, 256, 2),
])  # fmt: skip
def test_block_scaled_product_of_every_shape(m: int, n: int, group: int, schedule: str) -> None:
    for case in (SCALED[0], SCALED[6]):
        found, expected = scaled_product(case, m, n, group, (0, 0), schedule=schedule)
        assert (found == expected).all()


@pytest.mark.parametrize("case", SCALED, ids=lambda case: "-".join(map(str, case)))
def test_block_scaled_products_of_random_numbers(
    case: tuple[str, str, str, int, str, str], record_property: Callable[[str, object], None]
) -> None:
    """How one instruction rounds, as `test_products_of_random_numbers`."""
    scaled: list[np.ndarray] = []

    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        scaled.extend((a, b))
        return a @ b.T

    found, _ = scaled_product(case, 128, 64, 1, (0, 0), values=random_values, product=product)
    fitting = rules_that_fit(*scaled, ("bf16", "bf16"), np.zeros((128, 64)), found[0])
    record_property("rounding", fitting)
    assert ROUNDED_ONCE in fitting


def test_scale_factors_must_be_copied_to_every_group_of_lanes() -> None:
    with pytest.raises(TensorMemoryFault, match="scale factors of B, row 6, differ between"):
        scaled_product(SCALED[0], 128, 64, 1, (0, 0), spoil=True)


def test_scale_factor_ids() -> None:
    with pytest.raises(DescriptorFault, match=r"must be one of \[0, 2\] for kind mxf4"):
        scaled_product(SCALED[3], 128, 64, 1, (1, 0))


# ------------------------------------------------------------------------ shift


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_shift(schedule: str) -> None:
    """31 lanes x 8 columns of one warp's 32; then 4x256b.cp refreshes the last lanes."""
    size = 2048
    body = (
        allocate(32) + fill_shared(size) + store_columns(16, size // 4, 0)
        + "  bar.sync 0;\n  tcgen05.fence::after_thread_sync;\n"
        + f"""
  mov.u64 %rd3, {descriptor(DATA, 128, 128)};
  add.u32 %r7, %r4, {32 << 16 | 3};
  @%p1 tcgen05.shift.cta_group::1.down [%r7];
  add.u32 %r7, %r4, {31 << 16 | 3};
  @%p1 tcgen05.cp.cta_group::1.4x256b [%r7], %rd3;
"""
        + commit_and_wait(0) + load_columns(16) + free(32)
    )  # fmt: skip
    text = kernel(body)
    assemble([text])
    source = np.random.default_rng(8).integers(0, 1 << 32, size // 4 + 16 * 128, np.uint32)
    found = np.zeros((16, 128), np.uint32)
    run(text, source, found, schedule, shared=size)
    expected = source[size // 4 :].reshape(16, 128).copy()
    expected[3:11, 32:63] = expected[3:11, 33:64]
    for row in range(4):
        for column in range(8):
            at = row_address(row, column // 4, 128, 128) // 4 + column % 4
            expected[3 + column, 32 * row + 31] = source[at]
    assert (found == expected).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_decompressing_copy(schedule: str) -> None:
    """b6x16_p32: 16 codes of 6 bits and 4 bytes of padding become 16 bytes."""
    size = 2048
    body = (
        allocate(32) + fill_shared(size) + f"""
  mov.u64 %rd3, {descriptor(DATA, 128, 128)};
  @%p1 tcgen05.cp.cta_group::1.128x128b.b8x16.b6x16_p32 [%r4], %rd3;
"""
        + commit_and_wait(0) + load_columns(8).replace("32x32b.x8", "32x32b.x4") + free(32)
    )  # fmt: skip
    body = body.replace(registers(8), registers(4)).replace(
        "".join(f"  st.global.b32 [%rd31+{512 * i}], %v{i};\n" for i in range(4, 8)), ""
    )
    assemble([kernel(body)])
    source = np.random.default_rng(9).integers(0, 256, size, np.uint8)
    found = np.zeros((4, 128), np.uint32)
    run(kernel(body), source, found, schedule, shared=size)
    for lane in range(128):
        start = row_address(lane, 0, 128, 128)
        number = int.from_bytes(source[start : start + 12].tobytes(), "little")
        elements = [number >> 6 * index & 63 for index in range(16)]
        assert found[:, lane].tobytes() == bytes(elements)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copy_of_a_pair(schedule: str) -> None:
    """cta_group::2: one thread of the pair copies in both blocks, each from its own memory."""
    size = 2048
    source_bytes, target_bytes = size, 4 * 128 * 8
    body = (
        rank_offsets(source_bytes, target_bytes) + allocate(32, 2) + fill_shared(size)
        + CLUSTER_BARRIER + f"""
  mov.u64 %rd3, {descriptor(DATA, 128, 128)};
  @%p3 tcgen05.cp.cta_group::2.128x128b [%r4], %rd3;
  add.u32 %r7, %r4, 4;
  @%p3 tcgen05.cp.cta_group::2.32x128b.warpx4 [%r7], %rd3;
  mov.u16 %h1, 3;
  @%p3 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
       [%r6], %h1;
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p10, [%r6], 0;
  @!%p10 bra WAIT;
""" + load_columns(8) + free(32, 2)
    )  # fmt: skip
    text = kernel(body, cluster=2)
    assemble([text])
    source = np.random.default_rng(10).integers(0, 1 << 32, (2, size // 4), np.uint32)
    found = np.zeros((2, 8, 128), np.uint32)
    run(text, source, found, schedule, shared=size, grid=2)
    for block, lane, column in itertools.product(range(2), range(128), range(4)):
        at = row_address(lane, 0, 128, 128) // 4 + column
        assert found[block, column, lane] == source[block, at]
        at = row_address(lane % 32, 0, 128, 128) // 4 + column
        assert found[block, 4 + column, lane] == source[block, at]


# ---------------------------------------------------------------------- faults

NOTHING = np.zeros(4096, np.uint32)


def faulty(
    body: str, fault: type[EmulationError], *parts: str, schedule: str = "eager", grid: int = 1
) -> None:
    """The kernel is legal PTX, and raises `fault` if strict; its message has all of `parts`."""
    text = kernel(body, cluster=grid)
    assemble([text])
    with pytest.raises(fault) as caught:
        run(text, NOTHING, NOTHING.copy(), schedule, shared=16384, grid=grid, strict=True)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def store_x(count: int = 1, wait: bool = True, column: int = 0) -> str:
    text = f"  add.u32 %r7, %r5, {column};\n"
    text += f"  tcgen05.st.sync.aligned.32x32b.x{count}.b32 [%r7], {registers(count)};\n"
    return text + ("  tcgen05.wait::st.sync.aligned;\n" if wait else "")


def load_x(count: int = 1, wait: bool = True) -> str:
    text = f"  tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {registers(count)}, [%r5];\n"
    return text + ("  tcgen05.wait::ld.sync.aligned;\n" if wait else "")


MEET = "  bar.sync 0;\n  tcgen05.fence::after_thread_sync;\n"
SETUP = allocate(64) + fill_shared(8192)
IDESC = instruction_descriptor("f16", 128, 32, "f16", "f16", "f32", "K", "K")
A_DESC = descriptor(DATA, 128, 256)
B_DESC = descriptor(DATA + 4096, 128, 256)


def product(
    *, where: str = "%r4", left: str = "%rd3", idesc: int = IDESC, a: int = A_DESC, b: int = B_DESC,
    accumulate: bool = False, group: int = 1, guard: str = "@%p1 ", suffix: str = "",
) -> str:  # fmt: skip
    return f"""\
  mov.u64 %rd3, {a};
  mov.u64 %rd4, {b};
  mov.u32 %r12, {idesc};
  setp.{"eq" if accumulate else "ne"}.u32 %p5, %r12, %r12;
  {guard}tcgen05.mma.cta_group::{group}.kind::f16{suffix} [{where}], {left}, %rd4, %r12, %p5;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_read_before_the_commit(schedule: str) -> None:
    """If the product has not run yet, the load sees that nothing wrote the cells; or, where
    something did, the product sees that they are read."""
    never = UninitializedRead if schedule != "eager" else SynchronizationFault
    found = ("used by: st.global", "warp 0, lane 0") if schedule != "eager" else ("0, 1, 2, 3",)
    faulty(SETUP + product() + load_x() + write_out(1) + MEET + free(64), never, "tcgen05.ld.sync",
           "tensor memory lane 0, column 0", *found, schedule=schedule)  # fmt: skip
    late = (
        ("may still be read by",)
        if schedule != "eager"
        else ("was written by the tensor core", "nothing waited for its completion (tcgen05.commit")
    )
    faulty(SETUP + store_x(32) + MEET + product() + load_x() + commit_and_wait(0) + free(64),
           SynchronizationFault, *late, schedule=schedule)  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_wait_for_a_store(schedule: str) -> None:
    """A in tensor memory, stored without tcgen05.wait::st: also with a barrier between."""
    for ending in ("", MEET):
        faulty(
            SETUP + store_x(8, wait=False, column=32) + ending
            + product(left="[%r8]").replace("  setp", "  add.u32 %r8, %r4, 32;\n  setp")
            + commit_and_wait(0) + free(64),
            SynchronizationFault, "tcgen05.wait::st", "as operand A", "warp 0",
            schedule=schedule,
        )  # fmt: skip
    faulty(allocate(32) + store_x(wait=False) + load_x() + free(32),
           SynchronizationFault, "tcgen05.wait::st", "is read by tcgen05.ld")  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("loaded", [32, 16, 0])
def test_sums_that_nobody_read(loaded: int, schedule: str) -> None:
    """A product that does not add to the one before loses its sums: reported on request. All of
    them must have been read: 16 of 32 columns are not enough."""
    text = kernel(
        SETUP + product() + product(accumulate=True) + commit_and_wait(0)
        + (load_x(loaded) if loaded else "") + MEET + product() + commit_and_wait(1, 1) + free(64)
    )  # fmt: skip
    run(text, NOTHING, NOTHING.copy(), schedule, shared=16384)
    with contextlib.nullcontext() if loaded == 32 else pytest.raises(UnreadSums) as caught:
        run(text, NOTHING, NOTHING.copy(), schedule, shared=16384, check_unread=True)
    if caught is not None:
        assert f"lane 0, column {loaded} is overwritten" in str(caught.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_barrier_after_a_store(schedule: str) -> None:
    faulty(
        SETUP + store_x(32) + product(accumulate=True) + commit_and_wait(0) + free(64),
        SynchronizationFault, "lane 32", "warp 1", "(D)", "tcgen05.mma", schedule=schedule,
    )  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_wait_for_a_load(schedule: str) -> None:
    """The next product overwrites what a load may still read."""
    faulty(
        SETUP + product() + commit_and_wait(0) + load_x(32, wait=False) + MEET
        + product() + commit_and_wait(1, 1) + free(64),
        SynchronizationFault, "tcgen05.wait::ld", "may still be read by", "(D)",
        schedule=schedule,
    )  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("use", "complete"), [
    ("  st.shared.b32 [%data], %v40;\n", True),
    ("  setp.ne.u32 %p5, %v40, 0;\n  @%p5 bra HERE;\nHERE:\n", True),
    ("  add.u32 %v41, %v40, 1;\n", False),
], ids=["stored", "branch", "arithmetic"])  # fmt: skip
def test_a_load_is_complete_when_its_value_is_stored(
    schedule: str, use: str, complete: bool
) -> None:
    """As in NVIDIA's own kernels: no tcgen05.wait::ld, but every warp has stored what it loaded.

    Arithmetic does not complete it: ptxas may put that behind what frees the cells.
    """
    place = f"  .reg .b32 %data;\n  mad.lo.u32 %data, %r1, 4, {DATA + 8192};\n"
    body = (
        place + SETUP + product() + commit_and_wait(0) + load_x(32, wait=False)
        + "  mov.b32 %v40, %v31;\n" + use + MEET + product() + commit_and_wait(1, 1) + free(64)
    )  # fmt: skip
    if complete:
        run(kernel(body), NOTHING, NOTHING.copy(), schedule, shared=8192 + 512)
    else:
        faulty(body, SynchronizationFault, "tcgen05.wait::ld", "(D)", schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_barrier_before_the_next_product(schedule: str) -> None:
    faulty(
        SETUP + product() + commit_and_wait(0) + load_x(32)
        + product() + commit_and_wait(1, 1) + free(64),
        SynchronizationFault, "may still be read by warp 1", schedule=schedule,
    )  # fmt: skip


def test_where_an_operand_begins_is_told() -> None:
    """The instruction's N is larger than what was written for B."""
    wide = instruction_descriptor("f16", 128, 128, "f16", "f16", "f32", "K", "K")
    faulty(
        allocate(128) + fill_shared(6144) + product(idesc=wide) + commit_and_wait(0) + free(128),
        UninitializedRead, "is read", "; the operand, 128 x 16 of f16 and K-major, is from shared",
    )  # fmt: skip


def test_a_wait_that_a_fresh_mbarrier_lets_through_is_named() -> None:
    wait = commit_and_wait(1, 1).partition("\n")[2]
    faulty(
        SETUP + store_x(32) + MEET + wait + load_x(32) + product() + free(64),
        SynchronizationFault, "may still be read by warp 1", "was for parity 1 of the mbarrier",
    )  # fmt: skip


def test_the_same_with_the_barrier_is_correct() -> None:
    body = (
        SETUP + product() + commit_and_wait(0) + load_x(32) + MEET + product()
        + commit_and_wait(1, 1) + load_x(32) + free(64)
    )  # fmt: skip
    for schedule in SCHEDULES:
        run(kernel(body), NOTHING, NOTHING.copy(), schedule, shared=8192)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_commit_of_another_thread(schedule: str) -> None:
    """tcgen05.commit tracks what the executing thread issued, nothing else."""
    commit = commit_and_wait(0).replace("@%p1", "@%p6")
    faulty(
        SETUP + "  setp.eq.u32 %p6, %r1, 32;\n" + product() + commit + load_x() + free(64),
        EmulationError, schedule=schedule,
    )  # fmt: skip


UNFENCED = fill_shared(8192).replace("fence.proxy.async.shared::cta;\n", "bar.sync 0;\n")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_missing_proxy_fence(schedule: str) -> None:
    faulty(
        allocate(64) + UNFENCED
        + product() + commit_and_wait(0) + free(64),
        SynchronizationFault, "tcgen05.mma, operand", "proxy fence", schedule=schedule,
    )  # fmt: skip
    faulty(
        allocate(64) + UNFENCED
        + f"  mov.u64 %rd3, {A_DESC};\n  @%p1 tcgen05.cp.cta_group::1.128x128b [%r4], %rd3;\n"
        + commit_and_wait(0) + free(64),
        SynchronizationFault, "tcgen05.cp reads", "proxy fence", schedule=schedule,
    )  # fmt: skip


def test_missing_barrier_before_a_product() -> None:
    faulty(
        allocate(64) + fill_shared(8192).removesuffix("  bar.sync 0;\n") + product()
        + commit_and_wait(0) + free(64),
        SynchronizationFault, "a barrier or wait is missing",
    )  # fmt: skip


def test_cells_that_nothing_wrote() -> None:
    faulty(allocate(32) + load_x() + write_out(1) + free(32), UninitializedRead,
           "lane 0, column 0", "instruction: tcgen05.ld", "used by: st.global")  # fmt: skip
    faulty(SETUP + product(accumulate=True) + commit_and_wait(0) + free(64),
           UninitializedRead, "(D)")  # fmt: skip


def test_allocation_faults() -> None:
    faulty(allocate(32), TensorMemoryFault, "exits without tcgen05.dealloc", "tcgen05.alloc",
           "block (0, 0, 0)")  # fmt: skip
    odd = allocate(32).replace("], 32;", "], %r8;")
    faulty("  mov.u32 %r8, 48;\n" + odd + free(32), TensorMemoryFault, "48 columns", "power of two")
    faulty(allocate(32) + store_x(column=32) + free(32), TensorMemoryFault, "columns 32 to 32",
           "allocated are columns 0 to 31")  # fmt: skip
    faulty("  shl.b32 %r5, %r2, 21;\n" + store_x(), TensorMemoryFault, "allocated are columns none")
    faulty(allocate(64) + free(32), TensorMemoryFault, "tcgen05.dealloc of 32 columns")
    faulty(allocate(64) + free(64) + free(64), TensorMemoryFault, "that is no allocation")
    faulty(SETUP + product(where="%r8").replace("  setp", "  add.u32 %r8, %r4, 48;\n  setp")
           + commit_and_wait(0) + free(64), TensorMemoryFault, "columns 48 to 79")  # fmt: skip
    again = "  @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6+16], {};\n"
    faulty(allocate(32) + again.format(64) + free(32), TensorMemoryFault, "may not increase")
    permit = "  @%p2 tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
    faulty(allocate(32) + permit + again.format(32) + free(32), TensorMemoryFault,
           "relinquish_alloc_permit")  # fmt: skip
    faulty(allocate(512) + again.format(512) + free(512), Deadlock, "tcgen05.alloc of 512 columns",
           "allocated are columns 0 to 511")  # fmt: skip


def test_allocation_waits_for_another_warp() -> None:
    """Warp 1 allocates what warp 0 frees later."""
    body = """\
  setp.eq.u32 %p7, %r2, 1;
  @%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6+16], 512;
  bar.sync 0;
  @%p7 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r6+20], 512;
  ld.shared.b32 %r4, [%r6+16];
  @%p2 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;
  @%p7 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r4, 512;
"""
    for schedule in SCHEDULES:
        run(kernel(body), NOTHING, NOTHING.copy(), schedule)


def test_freed_while_in_use() -> None:
    faulty(allocate(32) + store_x(wait=False) + free(32), SynchronizationFault, "is freed",
           "tcgen05.wait::st")  # fmt: skip
    for schedule in SCHEDULES:
        faulty(SETUP + product() + free(64), EmulationError, schedule=schedule)


def test_lanes_of_another_warp() -> None:
    faulty(
        allocate(32) + "  mov.u32 %r5, %r4;\n" + store_x() + free(32),
        TensorMemoryFault, "at lane 0 by warp 1", "lanes 32 to 63",
    )  # fmt: skip
    faulty(
        allocate(32) + "  add.u32 %r5, %r5, 1048576;\n" + store_x() + free(32),
        TensorMemoryFault, "must name lane 0 of the warp's 32",
    )  # fmt: skip


def test_a_part_of_a_warp() -> None:
    faulty(
        allocate(32) + "  setp.lt.u32 %p6, %r3, 9;\n"
        + store_x().replace("  tcgen05.st", "  @%p6 tcgen05.st") + free(32),
        ConvergenceFault, "all 32 threads",
    )  # fmt: skip
    faulty(allocate(32) + "  mul.lo.u32 %r5, %r5, %r3;\n" + store_x() + free(32),
           ConvergenceFault, "different values for the address")  # fmt: skip


def test_descriptor_faults() -> None:
    wait = commit_and_wait(0) + free(64)
    for name, change in (("A", {"a": descriptor(DATA + 16384, 128, 256)}),
                         ("B", {"b": descriptor(16, 128, 256)})):  # fmt: skip
        faulty(SETUP + product(**change) + wait, DescriptorFault, f"operand {name}",
               "makes it read shared addresses")  # fmt: skip
    faulty(SETUP + product(a=A_DESC & ~(1 << 46)) + wait, DescriptorFault, "version")
    faulty(SETUP + product(a=A_DESC | 3 << 61) + wait, DescriptorFault, "swizzle")
    faulty(SETUP + product(idesc=IDESC | 1 << 2) + wait, DescriptorFault, "sparse")
    faulty(SETUP + product(idesc=IDESC | 1 << 29) + wait, DescriptorFault, "reserved bits 29")
    odd = instruction_descriptor("f16", 128, 24, "f16", "f16", "f32", "K", "K")
    faulty(SETUP + product(idesc=odd) + wait, DescriptorFault, "must be one of 16, 32")
    faulty(SETUP + product(a=A_DESC | 1 << 61, idesc=IDESC | 1 << 15) + wait, DescriptorFault,
           "32-byte atomicity")  # fmt: skip
    faulty(SETUP + f"  mov.u64 %rd3, {descriptor(DATA + 32768)};\n"
           "  @%p1 tcgen05.cp.cta_group::1.128x256b [%r4], %rd3;\n" + wait, DescriptorFault,
           "tcgen05.cp's descriptor")  # fmt: skip


def test_which_types_may_be_transposed() -> None:
    wait = commit_and_wait(0) + free(64)
    for types, majors, n, part in (
        (("e2m1", "e4m3"), ("MN", "K"), 16, "operand A is e2m1 and MN-major"),
        (("e4m3", "e3m2"), ("K", "MN"), 16, "operand B is e3m2 and MN-major"),
        (("e4m3", "e4m3"), ("K", "MN"), 24, "multiple of 16"),
    ):
        idesc = instruction_descriptor("f8f6f4", 64, n, *types, "f32", *majors)
        text = product(idesc=idesc).replace("kind::f16", "kind::f8f6f4")
        faulty(SETUP + text + wait, DescriptorFault, part)


def test_where_d_may_start() -> None:
    at = product(where="%r8").replace("  setp", "  add.u32 %r8, %r4, 1048576;\n  setp")
    faulty(SETUP + at + commit_and_wait(0) + free(64), TensorMemoryFault, "D at lane 16")


def test_collector_buffer_that_nothing_filled() -> None:
    wait = commit_and_wait(0) + free(64)
    faulty(SETUP + product(suffix=".collector::a::use") + wait, TensorMemoryFault, "collector::a")
    filled = product(suffix=".collector::a::fill") + product(suffix=".collector::a::lastuse")
    run(kernel(SETUP + filled + wait), NOTHING, NOTHING.copy(), shared=8192)
    faulty(SETUP + filled + product(suffix=".collector::a::use") + wait, TensorMemoryFault,
           "no earlier instruction filled the buffer")  # fmt: skip


def test_two_groups_do_not_mix() -> None:
    """ptxas refuses it, too, within one function."""
    text = kernel(SETUP + product().replace("cta_group::1", "cta_group::2") + free(64))
    with pytest.raises(TensorMemoryFault, match=r"cta_group::2, after .* cta_group::1"):
        run(text, NOTHING, NOTHING, shared=8192)


def test_a_pair_allocates_together() -> None:
    """Only the first block of the pair executes tcgen05.alloc."""
    body = """\
  mov.u32 %r10, %cluster_ctarank;
  setp.eq.u32 %p4, %r10, 0;
  and.pred %p4, %p4, %p2;
  @%p4 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r6+16], 32;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
"""
    faulty(body, Deadlock, "for the pair", "waiting are blocks [0]", grid=2)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_commit_that_may_arrive_after_its_block_has_ended(waits: bool, schedule: str) -> None:
    """Each block commits to the other; a barrier of the cluster does not wait for the arrival."""
    body = (
        "  @%p1 mbarrier.init.shared::cta.b64 [%r6], 1;\n"
        + CLUSTER_BARRIER
        + """\
  mov.u32 %r10, %cluster_ctarank;
  xor.b32 %r10, %r10, 1;
  mov.u32 %r11, 1;
  shl.b32 %r11, %r11, %r10;
  cvt.u16.u32 %h1, %r11;
  @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
       [%r6], %h1;
"""
    )
    wait = """\
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p10, [%r6], 0;
  @!%p10 bra WAIT;
"""
    if waits:
        text = kernel(body + wait + CLUSTER_BARRIER, cluster=2)
        assemble([text])
        run(text, NOTHING, NOTHING.copy(), schedule, shared=8192, grid=2)
        return
    with pytest.raises(SynchronizationFault, match=r"may end before an arrival|which has ended"):
        run(kernel(body + CLUSTER_BARRIER, cluster=2), NOTHING, NOTHING.copy(), schedule,
            shared=8192, grid=2)  # fmt: skip


def test_commit_to_blocks_that_do_not_exist() -> None:
    body = (
        allocate(32)
        + """\
  mov.u16 %h1, 6;
  @%p1 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64
       [%r6], %h1;
"""
        + free(32)
    )
    faulty(body, BarrierFault, "ctaMask 0x6", "cluster of 1")


@pytest.mark.parametrize(
    "line",
    [
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd2, [%r2], %r3, %p1;",
        "tcgen05.mma.cta_group::1.kind::f16.ashift [%r1], [%r2], %rd2, %r3, %p1;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, %p1, %rd3;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], [%r2], %rd2, %r3, %p1;",
        "tcgen05.cp.cta_group::1.128x128b.b8x16.b4x16_p64 [%r1], %rd1;",
    ],
)
def test_what_is_not_modelled_is_refused(line: str) -> None:
    """Legal PTX, refused before the kernel starts."""
    text = kernel("  " + line + "\n")
    assemble([text])
    with pytest.raises(UnsupportedInstruction, match="tcgen05"):
        run(text, NOTHING, NOTHING)
