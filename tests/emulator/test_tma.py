"""TMA on the emulated GPU: against an independent model, and against what an H100 recorded."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from silicon import copy_cases as cases
from silicon.copy_cases import HEADER_BYTES, POISON, SMEM, aligned, module
from silicon.record_copies import digest
from sites import ROOT

from triton_ext.emulator import UnsupportedInstruction, run_ptx
from triton_ext.emulator.errors import (
    BarrierFault,
    Deadlock,
    DescriptorFault,
    MemoryFault,
    SynchronizationFault,
    UninitializedRead,
)
from triton_ext.emulator.state.tensor_map_memory import decode, encode, replace_field
from triton_ext.hardware.tensor_map import DataType, Interleave, OobFill, TensorMap, TensorSwizzle

RECORD = ROOT / "benchmarks/results/emulator_copies_h100.json"
SCHEDULES = ("eager", "lazy", "random")
ALL_CASES = {case.key: case for case in cases.all_cases()}


def launch(ptx, kernel, grid, block, args, **options):
    return run_ptx(ptx, kernel=kernel, grid=grid, block=block, args=args, **options)


def emulate(ptx, args, *, schedule="eager", seed=0, block=cases.THREADS, **options):
    options.setdefault("grid", 1)
    return run_ptx(
        ptx, block=block, args=args, dynamic_smem_bytes=SMEM, schedule=schedule, seed=seed,
        **options,
    )  # fmt: skip


# ------------------------------------------------------------ the silicon's record


def recorded() -> dict[str, str]:
    return json.loads(RECORD.read_text())["digests"]


@pytest.mark.parametrize("part", range(8))
def test_every_case_gives_the_bits_that_an_h100_gave(part):
    digests = recorded()
    assert len(digests) > 620
    for key in sorted(digests)[part::8]:
        assert digest(ALL_CASES[key].run(launch)) == digests[key], ALL_CASES[key].name


def test_what_stops_an_h100_stops_the_emulator():
    stopping = [case for case in ALL_CASES.values() if case.faults]
    assert len(stopping) > 20
    for case in stopping:
        with pytest.raises((DescriptorFault, MemoryFault)):
            case.run(launch)


@pytest.mark.parametrize("schedule", ["lazy", "random"])
def test_no_case_depends_on_when_copies_complete(schedule):
    digests = recorded()
    for number, key in enumerate(sorted(digests)[::9]):
        results = ALL_CASES[key].run(launch, schedule=schedule, seed=number)
        assert digest(results) == digests[key], key


@pytest.mark.sm90
def test_a_hopper_gpu_gives_the_bits_of_the_emulator():
    from benchmarks.driver import run_on_gpu

    def on_gpu(ptx, kernel, grid, block, args, **options):
        run_on_gpu(ptx, kernel, grid, block, args, **options)

    for key in sorted(recorded())[::4]:
        case = ALL_CASES[key]
        for real, emulated in zip(case.run(on_gpu), case.run(launch), strict=True):
            assert real.tobytes() == emulated.tobytes(), case.name


# -------------------------------------------------------- an independent model

SWIZZLED_BITS = {
    # mode: for each XOR, the lowest bit that changes, the lowest bit that it is changed by, bits
    TensorSwizzle.NONE: (),
    TensorSwizzle.BYTES_32: ((4, 7, 1),),
    TensorSwizzle.BYTES_64: ((4, 7, 2),),
    TensorSwizzle.BYTES_128: ((4, 7, 3),),
    TensorSwizzle.BYTES_128_ATOM_32B: ((5, 7, 2),),
    TensorSwizzle.BYTES_128_ATOM_32B_FLIP_8B: ((5, 7, 2), (3, 7, 1)),
    TensorSwizzle.BYTES_128_ATOM_64B: ((6, 7, 1),),
}


def swizzled(address, mode):
    for low, source, bits in SWIZZLED_BITS[mode]:
        address ^= (address >> source & (1 << bits) - 1) << low
    return address


def elements(tensor_map):
    """The index of each element of a box, and where it lies, unswizzled, row by row."""
    shape = [
        -(-box // (step if i else 1))
        for i, (box, step) in enumerate(
            zip(tensor_map.box_dims, tensor_map.element_strides, strict=True)
        )
    ]
    size = tensor_map.data_type.bits // 8
    pitch = max(shape[0] * size, tensor_map.swizzle.span)
    rows = itertools.product(*(range(extent) for extent in reversed(shape[1:])))
    for number, row in enumerate(rows):
        for column in range(shape[0]):
            yield (column, *reversed(row)), number * pitch + column * size


def global_offset(tensor_map, index, coordinates):
    """Where an element of a box is in the tensor, in bytes; and whether it is inside."""
    size = tensor_map.data_type.bits // 8
    offset, inside = 0, True
    strides = (size, *tensor_map.global_strides)
    for i, (k, start) in enumerate(zip(index, coordinates, strict=True)):
        position = start + k * (tensor_map.element_strides[i] if i else 1)
        inside &= 0 <= position < tensor_map.global_dims[i]
        offset += position * strides[i]
    return offset, inside


def model_load(tensor_map, data, coordinates, place):
    smem = np.full(SMEM, POISON, np.uint8)
    size = tensor_map.data_type.bits // 8
    nan = tensor_map.oob_fill != OobFill.NONE
    fill = np.frombuffer((b"\xf7\x7f" if nan else b"\0\0") * 4, np.uint8)[:size]
    for index, at in elements(tensor_map):
        offset, inside = global_offset(tensor_map, index, coordinates)
        address = swizzled(HEADER_BYTES + place + at, tensor_map.swizzle)
        smem[address : address + size] = data[offset : offset + size] if inside else fill
    return smem[HEADER_BYTES:]


def model_store(tensor_map, data, image, coordinates, place):
    data, size = data.copy(), tensor_map.data_type.bits // 8
    for index, at in elements(tensor_map):
        offset, _ = global_offset(tensor_map, index, coordinates)
        # the hardware writes all of the 16 bytes that the tensor's row ends in
        first = index[0] * size // 16 * 16 // size
        _, inside = global_offset(tensor_map, (first, *index[1:]), coordinates)
        if inside:
            address = swizzled(HEADER_BYTES + place + at, tensor_map.swizzle) - HEADER_BYTES
            data[offset : offset + size] = image[address : address + size]
    return data


@settings(max_examples=60)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from(list(TensorSwizzle)),
    st.sampled_from(SCHEDULES),
)
def test_loads_follow_the_model(seed, swizzle, schedule):
    """Every rank, type, swizzle, element stride and fill; boxes inside, partly and wholly out."""
    source = random.Random(seed)
    shape = cases.random_shape(source, cases.PLAIN_TYPES, (swizzle,), max_bytes=2048)
    data = aligned(shape.tensor_bytes)
    data[:] = cases.random_values(source, DataType.UINT8, shape.tensor_bytes)
    tensor_map = shape.map_at(data.ctypes.data)
    out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
    emulate(
        cases.load_kernel(len(shape.coordinates)),
        [tensor_map, data, out, shape.place, tensor_map.transaction_bytes, *shape.coordinates],
        schedule=schedule,
        seed=seed,
    )
    expected = model_load(tensor_map, data, shape.coordinates, shape.place)
    np.testing.assert_array_equal(out, expected)


@settings(max_examples=50)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from(list(TensorSwizzle)),
    st.sampled_from(SCHEDULES),
)
def test_stores_follow_the_model(seed, swizzle, schedule):
    source = random.Random(seed)
    shape = cases.random_shape(
        source, cases.PLAIN_TYPES, (swizzle,), strided=False, negative=False, max_bytes=2048
    )
    data = aligned(shape.tensor_bytes)
    data[:] = cases.random_values(source, DataType.UINT8, shape.tensor_bytes)
    image = cases.random_values(source, DataType.UINT8, SMEM - HEADER_BYTES)
    tensor_map = shape.map_at(data.ctypes.data)
    expected = model_store(tensor_map, data, image, shape.coordinates, shape.place)
    emulate(
        cases.store_kernel(len(shape.coordinates)),
        [tensor_map, data, image, shape.place, *shape.coordinates],
        schedule=schedule,
        seed=seed,
    )
    np.testing.assert_array_equal(data, expected)


@pytest.mark.parametrize("rank", range(1, 6))
def test_a_box_of_each_rank_inside_partly_outside_and_outside(rank):
    """A dense uint16 tensor: what arrives is a slice of it, padded with zeros."""
    dims = (24, 6, 5, 4, 3)[:rank]
    box = (16, 4, 3, 2, 2)[:rank]
    data = aligned(int(np.prod(dims)), np.uint16)
    data[:] = np.arange(1, data.size + 1)
    tensor = data.reshape(dims[::-1])
    padded = np.pad(tensor, [(8, 16 if axis == rank - 1 else 8) for axis in range(rank)])
    strides = tuple(2 * int(np.prod(dims[:i])) for i in range(1, rank))
    tensor_map = TensorMap(DataType.UINT16, dims, strides, box, global_address=data.ctypes.data)
    for start in ((0,) * rank, (8, -1, 3, 2, 2)[:rank], (24,) + (0,) * (rank - 1),
                  (-8, 5, -2, 3, -1)[:rank]):  # fmt: skip
        out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
        emulate(
            cases.load_kernel(rank),
            [tensor_map, data, out, 0, tensor_map.transaction_bytes, *start],
        )
        where = tuple(
            slice(at + 8, at + 8 + extent)
            for at, extent in zip(reversed(start), reversed(box), strict=True)
        )
        got = out[: tensor_map.smem_bytes].view(np.uint16).reshape(box[::-1])
        np.testing.assert_array_equal(got, padded[where])


# ----------------------------------------------------------------- sm_100's modes


def sm100_kernel(body: str, parameters: str = "") -> str:
    return module(
        ".param .align 64 .b8 map[128], .param .u64 data, .param .u64 out" + parameters,
        body,
        "sm_100a",
    )


def rows_of(data, rows, column, width, height):
    """Rows of a 2D uint16 tensor, zeros where it has none."""
    out = np.zeros((len(rows), width), np.uint16)
    for i, row in enumerate(rows):
        if 0 <= row < height:
            piece = data[row, max(column, 0) : column + width]
            out[i, : len(piece)] = piece
    return out


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rows", [(0, 1, 2, 3), (7, 2, 7, 12), (-1, 3, 16, 0)])
@pytest.mark.parametrize("swizzle", [TensorSwizzle.NONE, TensorSwizzle.BYTES_128])
def test_gather4_takes_four_rows(rows, swizzle, schedule):
    data = aligned(16 * 64, np.uint16)
    data[:] = np.arange(1, 1025)
    tensor_map = TensorMap(
        DataType.UINT16, (64, 16), (128,), (64, 1), swizzle=swizzle, global_address=data.ctypes.data
    )
    a, b, c, d = rows
    text = sm100_kernel(f"""{cases.INIT}{cases.FILL}{cases.BARRIER}
 mov.b64 %rd1, map;
 cvta.param.u64 %rd2, %rd1;
 mov.u32 %r20, 16;
 mov.s32 %r21, {a};
 mov.s32 %r22, {b};
 mov.s32 %r23, {c};
 mov.s32 %r24, {d};
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 512;
 @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes
     [%r2], [%rd2, {{%r20, %r21, %r22, %r23, %r24}}], [%r1];
{cases.WAIT}{cases.DOWNLOAD}""")
    out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
    emulate(text, [tensor_map, data, out], schedule=schedule)
    got = np.zeros((4, 64), np.uint16)
    for row, column in np.ndindex(4, 64):
        at = swizzled(HEADER_BYTES + row * 128 + column * 2, swizzle) - HEADER_BYTES
        got[row, column] = out[at : at + 2].view(np.uint16)[0]
    np.testing.assert_array_equal(got, rows_of(data.reshape(16, 64), rows, 16, 64, 16))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_scatter4_puts_four_rows(schedule):
    data = aligned(16 * 64, np.uint16)
    image = np.arange(SMEM - HEADER_BYTES, dtype=np.uint32).astype(np.uint8)
    tensor_map = TensorMap(
        DataType.UINT16, (64, 16), (128,), (32, 1), global_address=data.ctypes.data
    )
    text = sm100_kernel(f"""{cases.INIT}{cases.UPLOAD.replace("[image]", "[out]")}
 fence.proxy.async.shared::cta;
 bar.sync 0;
 mov.b64 %rd1, map;
 cvta.param.u64 %rd2, %rd1;
 mov.u32 %r20, 8;
 mov.u32 %r21, 5;
 mov.u32 %r22, 20;
 mov.u32 %r23, 1;
 mov.u32 %r24, 15;
 @%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group
     [%rd2, {{%r20, %r21, %r22, %r23, %r24}}], [%r2];
 cp.async.bulk.commit_group;
 cp.async.bulk.wait_group.read 0;""")
    emulate(text, [tensor_map, data, image], schedule=schedule)
    expected = np.zeros((16, 64), np.uint16)
    rows = image[:256].view(np.uint16).reshape(4, 32)
    for source, row in ((0, 5), (2, 1), (3, 15)):
        expected[row, 8:40] = rows[source]
    np.testing.assert_array_equal(data.reshape(16, 64), expected)


def test_padded_fp4_takes_every_other_eight_bytes():
    """16U4_ALIGN16B: 16 elements of 4 bits, then 8 bytes of padding."""
    data = aligned(64 * 4)
    data[:] = np.random.Generator(np.random.PCG64(1)).integers(1, 256, 256, np.uint8)
    tensor_map = TensorMap(
        DataType.U4X16_ALIGN16B, (128, 4), (64,), (128, 4), swizzle=TensorSwizzle.BYTES_128,
        global_address=data.ctypes.data,
    )  # fmt: skip
    out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
    text = cases.load_kernel(2).replace("sm_90a", "sm_100a")
    emulate(text, [tensor_map, data, out, 0, tensor_map.transaction_bytes, 0, 0])
    for row, chunk in np.ndindex(4, 8):
        at = swizzled(HEADER_BYTES + row * 128 + chunk * 16, TensorSwizzle.BYTES_128)
        at -= HEADER_BYTES
        np.testing.assert_array_equal(out[at : at + 8], data[row * 64 + chunk * 8 :][:8])


PAIR = f"""{cases.INIT}{cases.FILL}
 @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;
 fence.mbarrier_init.release.cluster;
 fence.proxy.async;
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
 mov.u32 %r50, %cluster_ctarank;
 mov.b64 %rd1, map;
 cvta.param.u64 %rd2, %rd1;
 and.b32 %r30, %r1, 0xFEFFFFFF;
 mul.lo.u32 %r20, %r50, 8;
 mov.u32 %r21, 0;
 setp.eq.u32 %p5, %r50, 0;
 and.pred %p6, %p5, %p1;
 @%p6 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256;
 {{load}}
 @!%p5 bra OTHER;
{cases.WAIT}
OTHER:
 barrier.cluster.arrive.aligned;
 barrier.cluster.wait.aligned;
{cases._cluster_download()}"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_blocks_of_a_pair_signal_the_barrier_of_the_even_one(schedule):
    """cta_group::2: bit 24 cleared, an address names the barrier of the even block."""
    data = aligned(16 * 8, np.uint16)
    data[:] = np.arange(1, 129)
    tensor_map = TensorMap(DataType.UINT16, (16, 8), (32,), (8, 8), global_address=data.ctypes.data)
    load = """@%p1 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile
.mbarrier::complete_tx::bytes [%r2], [%rd2, {%r20, %r21}], [%r30];""".replace("\n", "")
    text = sm100_kernel(PAIR.replace("{load}", load))
    out = np.zeros(2 * (SMEM - HEADER_BYTES), np.uint8)
    emulate(text, [tensor_map, data, out], schedule=schedule, grid=2, cluster=2)
    for block in range(2):
        got = out[block * (SMEM - HEADER_BYTES) :][:128].view(np.uint16).reshape(8, 8)
        np.testing.assert_array_equal(got, data.reshape(8, 16)[:, 8 * block : 8 * block + 8])


def test_without_cta_group_2_data_and_barrier_must_be_of_one_block():
    data = aligned(16 * 8, np.uint16)
    tensor_map = TensorMap(DataType.UINT16, (16, 8), (32,), (8, 8), global_address=data.ctypes.data)
    load = """@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile
.mbarrier::complete_tx::bytes [%r2], [%rd2, {%r20, %r21}], [%r30];""".replace("\n", "")
    out = np.zeros(2 * (SMEM - HEADER_BYTES), np.uint8)
    with pytest.raises(MemoryFault, match="the data goes to block 1, and the mbarrier is of block"):
        emulate(
            sm100_kernel(PAIR.replace("{load}", load)), [tensor_map, data, out], grid=2, cluster=2
        )


@pytest.mark.parametrize("stores", [False, True])
def test_a_ragged_tensor_whose_addresses_wrap_around(stores):
    """Triton's ``tools/ragged_tma.py``: rows 3, ..., 12 of 20, in boxes of 8 rows.

    A first coordinate of 2**30 and its stride make 2**64 bytes and bring the address back; the
    third one ends the tensor behind row 12.
    """
    rows, row_bytes, first, count, billion = 20, 32, 3, 10, 2**30
    data = aligned(rows * row_bytes)
    data[:] = np.arange(data.size) % 251
    tensor_map = TensorMap(
        DataType.UINT8, (row_bytes, billion, 0x7FFF0000, 0x7FFF0000),
        (row_bytes, row_bytes, 2**34 - row_bytes), (row_bytes, 8, 1, 1),
        global_address=data.ctypes.data,
    )  # fmt: skip
    for row in (0, 8):
        at = (0, billion - count + row, first + count, billion)
        inside = slice(row_bytes * (first + row), row_bytes * min(first + row + 8, first + count))
        expected, image = data.copy(), np.zeros(SMEM - HEADER_BYTES, np.uint8)
        if stores:
            image[: 8 * row_bytes] = 255 - np.arange(8 * row_bytes) % 7
            expected[inside] = image[: inside.stop - inside.start]
            emulate(cases.store_kernel(4), [tensor_map, data, image, 0, *at])
            np.testing.assert_array_equal(data, expected)
        else:
            box = tensor_map.transaction_bytes
            emulate(cases.load_kernel(4), [tensor_map, data, image, 0, box, *at])
            wanted = np.zeros(box, np.uint8)
            wanted[: inside.stop - inside.start] = data[inside]
            np.testing.assert_array_equal(image[:box], wanted)


# ------------------------------------------------------------------------ faults


def simple_map(data, **changes):
    fields = {
        "data_type": DataType.UINT16, "global_dims": (64, 64), "global_strides": (128,),
        "box_dims": (32, 8), "global_address": data.ctypes.data,
    }  # fmt: skip
    return TensorMap(**{**fields, **changes})


def load_args(tensor_map, data, *, place=0, expected=None, at=(0, 0)):
    out = np.zeros(SMEM - HEADER_BYTES, np.uint8)
    expected = tensor_map.transaction_bytes if expected is None else expected
    return [tensor_map, data, out, place, expected, *at]


def changed(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


NO_GIVING_UP = ("setp.gt.u32 %p9, %r55, 10000;", "setp.gt.u32 %p9, %r55, 100000000;")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_too_many_bytes_expected_are_named_in_the_deadlock(schedule):
    data = aligned(64 * 64, np.uint16)
    text = changed(cases.load_kernel(2), NO_GIVING_UP)
    with pytest.raises(Deadlock) as caught:
        emulate(text, load_args(simple_map(data), data, expected=1024), schedule=schedule)
    message = str(caught.value)
    assert "waits for parity 0 of the mbarrier at 0x400 (smem + 0)" in message
    assert "phase 0 (parity 0), 0 of 1 arrivals missing, 512 bytes outstanding" in message
    assert "mbarrier.try_wait" in message


def test_too_few_bytes_expected_are_outstanding_at_exit():
    data = aligned(64 * 64, np.uint16)
    text = changed(cases.load_kernel(2), NO_GIVING_UP)
    with pytest.raises((Deadlock, BarrierFault, SynchronizationFault, UninitializedRead)) as caught:
        emulate(text, load_args(simple_map(data), data, expected=256))
    assert "-256 bytes outstanding" in str(caught.value)


@pytest.mark.parametrize(
    ("tensor", "arguments", "fault", "message"),
    [
        ({}, {"at": (4, 0)}, DescriptorFault, "innermost coordinate 4 must be a multiple of 8"),
        ({}, {"place": 64}, DescriptorFault, "shared address 0x840 of a box must be a multiple"),
        ({}, {"place": 16}, DescriptorFault, "must be a multiple of 128"),
        ({"global_dims": (64, 80)}, {"at": (0, 72)}, MemoryFault, r"a box at \(0, 72\) of"),
        ({"global_strides": (256,)}, {"at": (0, 40)}, MemoryFault, "outside of argument data"),
        ({}, {"place": SMEM - HEADER_BYTES - 128}, MemoryFault, "are not all inside of the block"),
        (
            {"global_dims": (64, 64, 1), "global_strides": (128, 8192), "box_dims": (32, 8, 1)},
            {}, DescriptorFault, "for 2 dimensions, the tensor map has 3",
        ),
        (
            {"global_dims": (64, 8, 8), "global_strides": (128, 1024), "box_dims": (32, 8, 1),
             "interleave": Interleave.BYTES_16},
            {}, DescriptorFault, "the tensor map has 3",
        ),
    ],
)  # fmt: skip
def test_illegal_boxes_and_places(tensor, arguments, fault, message):
    data = aligned(64 * 64, np.uint16)
    with pytest.raises(fault, match=message) as caught:
        emulate(cases.load_kernel(2), load_args(simple_map(data, **tensor), data, **arguments))
    assert "cp.async.bulk.tensor.2d" in str(caught.value.instruction)
    assert "warp 0" in caught.value.where


def test_interleaved_tensors_are_refused():
    data = aligned(64 * 64, np.uint16)
    tensor_map = simple_map(
        data, global_dims=(64, 8, 8), global_strides=(128, 1024), box_dims=(8, 8, 1),
        interleave=Interleave.BYTES_16,
    )  # fmt: skip
    with pytest.raises(DescriptorFault, match="interleaved tensor maps are not modelled"):
        emulate(cases.load_kernel(3), load_args(tensor_map, data, at=(0, 0, 0)))


def test_bytes_that_are_no_tensor_map():
    data = aligned(64 * 64, np.uint16)
    args = load_args(simple_map(data), data)
    args[0] = bytes(range(128))
    with pytest.raises(DescriptorFault, match="the 128 bytes are no tensor map"):
        emulate(cases.load_kernel(2), args)


def test_a_store_of_what_nothing_wrote():
    data = aligned(64 * 64, np.uint16)
    text = changed(cases.store_kernel(2), (cases.UPLOAD, ""))
    with pytest.raises(UninitializedRead, match="0x800 is read, and nothing wrote it"):
        emulate(text, [simple_map(data), data, data, 0, 0, 0])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_store_without_the_proxy_fence(schedule):
    data = aligned(64 * 64, np.uint16)
    image = np.zeros(SMEM, np.uint8)
    text = changed(cases.store_kernel(2), (" fence.proxy.async.shared::cta;\n", ""))
    with pytest.raises(SynchronizationFault) as caught:
        emulate(text, [simple_map(data), data, image, 0, 0, 0], schedule=schedule)
    assert "TMA reads shared address 0x800, written by warp 0" in str(caught.value)
    assert "a proxy fence (fence.proxy.async) is missing" in str(caught.value)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_store_without_the_barrier(schedule):
    data = aligned(64 * 64, np.uint16)
    image = np.zeros(SMEM, np.uint8)
    text = changed(cases.store_kernel(2), (" bar.sync 0;\n ld.param", " ld.param"))
    tensor_map = simple_map(data, box_dims=(64, 64))
    with pytest.raises(SynchronizationFault, match="a barrier or wait is missing"):
        emulate(text, [tensor_map, data, image, 0, 0, 0], schedule=schedule, seed=3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_load_whose_barrier_nobody_waits_for(schedule):
    data = aligned(64 * 64, np.uint16)
    text = changed(cases.load_kernel(2), (cases.WAIT, ""))
    with pytest.raises(SynchronizationFault) as caught:
        emulate(text, load_args(simple_map(data), data), schedule=schedule)
    assert {
        "eager": "was written by the tma unit, and nothing orders the two",
        "lazy": "is of block (0, 0, 0), which has ended",
        "random": "is written by TMA, and may still be read by warp",
    }[schedule] in str(caught.value)


def test_waiting_for_another_loads_barrier():
    """Two loads, two barriers; the data of one is read after a wait for the other."""
    data = aligned(64 * 64, np.uint16)
    body = changed(
        cases.load_kernel(2),
        (
            " @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;",
            " @%p1 mbarrier.init.shared::cta.b64 [%r1], 1;\n"
            " @%p1 mbarrier.init.shared::cta.b64 [%r1+8], 1;",
        ),
        (
            "     [%r30], [%rd2, {%r20, %r21}], [%r1];",
            """     [%r30], [%rd2, {%r20, %r21}], [%r1];
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+8], %r31;
 add.u32 %r30, %r30, 1024;
 @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
     [%r30], [%rd2, {%r20, %r21}], [%r1+8];""",
        ),
        ("[%r1], 0;", "[%r1+8], 0;"),
    )
    with pytest.raises(SynchronizationFault, match="was written by the tma unit"):
        emulate(body, load_args(simple_map(data), data))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_buffer_that_a_store_still_reads_is_overwritten(schedule):
    data = aligned(64 * 64, np.uint16)
    image = np.zeros(SMEM, np.uint8)
    text = changed(
        cases.store_kernel(2),
        (" cp.async.bulk.wait_group 0;", " @%p1 st.shared.b32 [%r30], %r0;\n"
         " cp.async.bulk.wait_group 0;"),
    )  # fmt: skip
    with pytest.raises(SynchronizationFault) as caught:
        emulate(text, [simple_map(data), data, image, 0, 0, 0], schedule=schedule)
    assert (
        "may still be read by the tma unit" in str(caught.value) or
        "is missing" in str(caught.value)
    )  # fmt: skip


def test_a_buffer_that_two_stores_read_and_one_of_them_is_waited_for():
    """Threads 32 and 0 store the same box; thread 0 waits for its own, and loads over it."""
    data = aligned(64 * 64, np.uint16)
    image = np.zeros(SMEM, np.uint8)
    store = (
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd2, {%r20, %r21}], [%r30];"
    )
    text = changed(
        cases.store_kernel(2),
        (
            f" @%p1 {store}",
            f" setp.eq.u32 %p5, %r0, 32;\n @%p5 {store}\n bar.sync 0;\n @%p1 {store}",
        ),
        (
            " cp.async.bulk.wait_group 0;",
            """ @%p1 cp.async.bulk.wait_group 0;
 mov.u32 %r9, 512;
 ld.param.u64 %rd5, [data];
 @%p1 mbarrier.init.shared.b64 [%r1], 1;
 @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 512;
 @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
     [%r30], [%rd5], %r9, [%r1];"""
            + cases.WAIT,
        ),
    )
    args = [simple_map(data), data, image, 0, 0, 0]
    with pytest.raises(SynchronizationFault, match="may still be read by the tma unit"):
        emulate(text, args)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_after_wait_group_read_the_buffer_may_be_overwritten(schedule):
    data = aligned(64 * 64, np.uint16)
    image = np.full(SMEM, 7, np.uint8)
    text = changed(
        cases.store_kernel(2),
        (" cp.async.bulk.wait_group 0;", " cp.async.bulk.wait_group.read 0;\n"
         " @%p1 st.shared.b32 [%r30], %r0;"),
    )  # fmt: skip
    emulate(text, [simple_map(data), data, image, 0, 0, 0], schedule=schedule)
    assert (data.reshape(64, 64)[:8, :32] == 0x0707).all()


def test_a_box_that_is_loaded_over_another_one_in_flight():
    data = aligned(64 * 64, np.uint16)
    load = """ @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
     [%r30], [%rd2, {%r20, %r21}], [%r1];"""
    text = changed(cases.load_kernel(2), (load, load + load))
    with pytest.raises(SynchronizationFault, match="is written by TMA, and was written by"):
        emulate(text, load_args(simple_map(data), data, expected=1024))


AGAIN = """
 @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r31;
 @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
     [%r30], [%rd2, {%r20, %r21}], [%r1];
AGAIN:
 mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1], 1;
 @!%p3 bra AGAIN;
"""


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_second_load_into_a_buffer_that_others_may_still_read(schedule):
    """The consumers never tell the producer that they are done."""
    data = aligned(64 * 64, np.uint16)
    text = changed(cases.load_kernel(2), (" ret;", f"{AGAIN} ret;"), NO_GIVING_UP)
    args = load_args(simple_map(data, box_dims=(64, 64)), data)
    with pytest.raises(SynchronizationFault, match=r"may still be read by|was written by the tma"):
        emulate(text, args, schedule=schedule)
    emulate(changed(text, (AGAIN, " bar.sync 0;" + AGAIN)), args, schedule=schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hints_and_prefetches_change_nothing(schedule):
    data = aligned(64 * 64, np.uint16)
    data[:] = np.arange(4096)
    plain = " @%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    text = changed(
        cases.load_kernel(2),
        (
            plain + "\n     [%r30], [%rd2, {%r20, %r21}], [%r1];",
            """ mov.u64 %rd9, 0x14F0000000000000;
 @%p1 prefetch.tensormap [%rd2];
 @%p1 cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd2, {%r20, %r21}];
 @%p1 cp.async.bulk.prefetch.L2.global [%rd8], %r31;
"""
            + plain
            + ".L2::cache_hint\n     [%r30], [%rd2, {%r20, %r21}], [%r1], %rd9;",
        ),
        (" mov.b64 %rd1, map;", " ld.param.u64 %rd8, [data];\n mov.b64 %rd1, map;"),
    )
    args = load_args(simple_map(data), data)
    emulate(text, args, schedule=schedule)
    expected = data.reshape(64, 64)[:8, :32].reshape(-1)
    np.testing.assert_array_equal(args[2][:512].view(np.uint16), expected)
    args[5] = 4
    with pytest.raises(DescriptorFault, match="innermost coordinate 4") as caught:
        emulate(text, args, schedule=schedule)
    assert "prefetch" in str(caught.value.instruction)


# -------------------------------------------------------- tensor maps that kernels make


def test_fields_replace_one_by_one():
    data = bytes(128)
    for field, ordinal, value in (
        ("global_address", 0, 4096), ("rank", 0, 1), ("box_dim", 0, 64), ("box_dim", 1, 8),
        ("global_dim", 0, 640), ("global_dim", 1, 32), ("global_stride", 0, 1280),
        ("element_stride", 0, 1), ("element_stride", 1, 2), ("elemtype", 0, 10),
        ("swizzle_mode", 0, 3), ("swizzle_atomicity", 0, 1), ("fill_mode", 0, 1),
    ):  # fmt: skip
        data = replace_field(data, field, ordinal, value)
    assert decode(data) == TensorMap(
        DataType.BFLOAT16, (640, 32), (1280,), (64, 8), (1, 2), oob_fill=1, global_address=4096,
        swizzle=TensorSwizzle.BYTES_128_ATOM_32B,
    )  # fmt: skip
    assert decode(encode(decode(data))) == decode(data)


@settings(max_examples=50)
@given(st.integers(0, 1 << 30))
def test_an_encoded_map_decodes_to_itself(seed):
    shape = cases.random_shape(random.Random(seed), tuple(DataType)[:10], tuple(TensorSwizzle))
    assert decode(encode(shape.map_at(1 << 40))) == shape.map_at(1 << 40)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (replace_field(bytes(128), "rank", 0, 5), "rank 6 must be at most 5"),
        (replace_field(bytes(128), "elemtype", 0, 16), "element type 16 is not defined"),
        (replace_field(bytes(128), "swizzle_mode", 0, 4), "swizzle mode 4 with atomicity 0"),
        (replace_field(bytes(128), "rank", 0, 1), "global_dims"),
        (b"\1" * 128, "no tensor map"),
        (b"\1" * 12, "has 128 bytes, not 12"),
    ],
)
def test_maps_that_are_none(data, message):
    with pytest.raises(DescriptorFault, match=message):
        decode(data)


def test_a_map_that_the_kernel_made_needs_an_acquire():
    case = ALL_CASES["made map 3"]
    text = "\n".join(line for line in case.ptx.splitlines() if "generic.acquire" not in line)
    args, _ = case.make()
    with pytest.raises(SynchronizationFault, match=r"generic\.acquire is missing"):
        emulate(text, args)


# --------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "instruction",
    [
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes"
        " [%r1], [%rd1, {%r1, %r2, %r3}], [%r1], {%h1, %h1}",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%r1], [%rd1, {%r1}], [%r1]",
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
        " [%rd1, {%r1, %r2}], [%r1]",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u16 [%rd1], [%r1], %r2",
        "multimem.red.relaxed.sys.global.add.s32 [%rd1], %r1",
        "tensormap.replace.tile.nonsense.shared::cta.b1024.b32 [%r1], 0",
    ],
)
def test_what_is_not_modelled_is_refused_before_the_start(instruction):
    with pytest.raises(UnsupportedInstruction):
        emulate(module(".param .u64 data", f" {instruction};"), [0])


# -------------------------------------------------------------------- legal PTX


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")
def test_the_kernels_are_legal(tmp_path):
    texts = sorted({case.ptx for case in ALL_CASES.values()})[::12]
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.ptx"
        path.write_text(text)
        subprocess.run(["ptxas", "-arch=sm_90a", "-o", tmp_path / "out.cubin", path], check=True)
