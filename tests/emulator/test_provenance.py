"""What TMA wrote is read in the layout in which it was written, or that is an error."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from triton_ext.emulator.errors import LayoutFault
from triton_ext.emulator.state.barriers import MBarrier
from triton_ext.emulator.state.clocks import Clocks
from triton_ext.emulator.state.memory import SHARED_BASE
from triton_ext.emulator.state.shared import SharedMemory
from triton_ext.emulator.units.operand_matrix import read_operand
from triton_ext.emulator.units.provenance import Copied, note
from triton_ext.emulator.units.tma import box_of
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle

TYPES = {8: "e4m3", 16: "f16", 32: "tf32"}
START = 2 * SHARED_BASE


def copied(tensor_map, address):
    """Shared memory with one box in it, each of whose chunks holds its number in the box; and, for
    the address of each chunk, its place in the box, innermost coordinate first."""
    per_chunk = 128 // tensor_map.data_type.bits
    width, *outer = tensor_map.copied_shape
    shape = (width // per_chunk, *outer)
    found = np.indices(shape[::-1]).reshape(len(shape), -1)[::-1]
    at = tensor_map.smem_address([found[0] * per_chunk, *found[1:]], address)
    shared = SharedMemory(SHARED_BASE + (96 << 10), Clocks(3))
    values = np.zeros(tensor_map.smem_bytes, np.uint8)
    values[(at - address)[:, None] + np.arange(16)] = np.arange(len(at))[:, None] & 255
    shared.bulk_write(address, values, shared.clocks.snapshot(np.array([0])), 1)
    arrangement = box_of(tensor_map, address % tensor_map.swizzle.alignment).arrangement
    barrier = MBarrier(1, shared.clocks.empty())
    note(
        shared,
        int(shared.clocks.seen[1, 1]),
        Copied(arrangement, address, None, "", shared, barrier, 0),
    )
    return shared, dict(zip(at.tolist(), map(tuple, found.T.tolist()), strict=True)), shape


def read(shared, descriptor, mn, k, bits, major):
    clock = shared.clocks.snapshot(np.array([1]))
    return read_operand(shared, descriptor, mn, k, TYPES[bits], major, clock, 2, name="operand A")


def is_a_tile(places, descriptor, mn, k, bits, major, shape):
    """The definition, chunk by chunk: each dimension of the box belongs to M or to K, and along
    each of the two the operand's chunks follow each other in the order of the box, or of a
    smaller box. None if the descriptor leaves the box."""
    found = {}
    steps = (1, 128 // bits) if major == "K" else (128 // bits, 1)
    for at in itertools.product(range(0, mn, steps[0]), range(0, k, steps[1])):
        place = places.get(descriptor.element_address(*at, bits, major))
        if place is None:
            return None
        found[at] = place
    for owners in itertools.product((0, 1), repeat=len(shape)):
        if all(
            follows(found, axis, [d for d, owner in enumerate(owners) if owner == axis], shape)
            for axis in (0, 1)
        ):
            return True
    return False


def follows(found, axis, dimensions, shape):
    """Whether the coordinates along `dimensions` are those of the operand's axis, one by one."""
    by_index = {}
    for at, place in found.items():
        mine = tuple(place[d] for d in reversed(dimensions))
        if by_index.setdefault(at[axis], mine) != mine:
            return False
    run = [by_index[i] for i in sorted(by_index)]
    if len(set(run)) == 1 and not dimensions:
        return True
    values = list(zip(*run, strict=True))
    for ranges in (
        [range(shape[d]) for d in reversed(dimensions)],
        [range(min(each), max(each) + 1) for each in values],
    ):
        order = list(itertools.product(*ranges))
        if run[0] in order:
            first = order.index(run[0])
            if order[first : first + len(run)] == run:
                return True
    return False


@st.composite
def boxes(draw, bits):
    """A box of two or three dimensions, mostly with rows that fill the swizzle's span."""
    swizzle = draw(st.sampled_from([*TensorSwizzle][:5]))
    span = swizzle.span or draw(st.sampled_from([16, 32, 128]))
    width = draw(st.sampled_from([span, span, span, max(16, span // 2)])) * 8 // bits
    outer = draw(st.sampled_from([(8,), (16,), (64,), (64,), (16, 4), (8, 2, 8), (10, 6)]))
    dims = (width, *outer)
    strides = np.cumprod([width * bits // 8, *outer])[:-1]
    strides = tuple(int(n) for n in -(-strides // 16) * 16)
    return TensorMap(DataType.unsigned(bits), dims, strides, dims, swizzle=swizzle)


@st.composite
def descriptors(draw, tensor_map, bits):
    """The one that a box asks for, or with a field or two changed."""
    own = tensor_map.swizzle
    line = tensor_map.smem_row_bytes
    rows = 4 if own.atomicity == 32 else 8
    atom = rows * line
    fields = {
        "leading_byte_offset": draw(st.sampled_from([16, atom, 128, 2 * atom, 1024])),
        "stride_byte_offset": atom,
        "swizzle_byte_width": own.span,
        "atomicity": own.atomicity if own.span else 16,
        "start_address": START + 32 * draw(st.integers(0, max(0, line // 32 - 1))),
    }
    if draw(st.booleans()):
        legal = [(0, 16), (32, 16), (64, 16), (128, 16), (128, 32)]
        pair = draw(st.sampled_from(legal))
        changes = {
            "swizzle": dict(zip(("swizzle_byte_width", "atomicity"), pair, strict=True)),
            "stride": {"stride_byte_offset": draw(st.sampled_from([16, 64, 128, 256, 512, 2048]))},
            "start": {"start_address": START + 16 * draw(st.integers(0, 40))},
        }
        for name in draw(st.sets(st.sampled_from(sorted(changes)), min_size=1)):
            fields.update(changes[name])
    major = draw(st.sampled_from(["K", "K", "MN"]))
    k = 256 // bits
    mn = draw(st.sampled_from([8, 16, 32, 64]))
    return SmemDescriptor(100, **fields), mn, k, major


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_an_error_if_and_only_if_the_operand_is_no_tile_of_the_box(data):
    bits = data.draw(st.sampled_from([8, 16, 32]))
    tensor_map = data.draw(boxes(bits))
    descriptor, mn, k, major = data.draw(descriptors(tensor_map, bits))
    assume(major == "K" or mn * bits // 8 >= 16)
    shared, places, shape = copied(tensor_map, START)
    fits = is_a_tile(places, descriptor, mn, k, bits, major, shape)
    assume(fits is not None)
    event(f"{'a tile' if fits else 'no tile'}, {tensor_map.swizzle.name}, {major}-major")
    if fits:
        codes = read(shared, descriptor, mn, k, bits, major)
        first = places[descriptor.element_address(0, 0, bits, major)]
        assert codes[0, 0] & 255 == np.ravel_multi_index(first[::-1], shape[::-1]) & 255
        return
    with pytest.raises(LayoutFault, match="first element affected") as caught:
        read(shared, descriptor, mn, k, bits, major)
    assert tensor_map.swizzle.span == 0 or f"{tensor_map.swizzle.span}-byte" in str(caught.value)
    shared.copies.clear()  # as with check_layouts=False
    read(shared, descriptor, mn, k, bits, major)


# ---------------------------------------------------------------------- whole kernels


WRITTEN_AND_READ = [(128, 128), (128, 64), (64, 128), (32, 32), (64, 32), (32, 128)]


@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize(("written", "read_as"), WRITTEN_AND_READ)
def test_a_product_of_tiles_that_tma_brought(written, read_as, arch):
    """With another swizzle than the copy's: an error, under every schedule; a wrong result without
    the check."""
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("layout_kernels")
    import triton_ext

    schedule = {128: "eager", 64: "lazy", 32: "random"}[read_as]
    a, b = torch.randint(-3, 4, (64, 64)).half(), torch.randint(-3, 4, (64, 64)).half()
    with triton_ext.emulate(f"sm_{arch}", schedule=schedule):
        if written == read_as:
            assert torch.equal(kernels.multiply(a, b, written, read_as, arch), (a @ b).float())
            return
        with pytest.raises(LayoutFault, match=f"is read as {read_as}-byte") as caught:
            kernels.multiply(a, b, written, read_as, arch)
    assert f"wrote {written}-byte-swizzled rows" in caught.value.message
    assert "operand A" in caught.value.message
    assert "mma" in caught.value.instruction.opcode
    with triton_ext.emulate(f"sm_{arch}", check_layouts=False):
        assert not torch.equal(kernels.multiply(a, b, written, read_as, arch), (a @ b).float())


@pytest.mark.parametrize(("written", "read_as"), [(128, 128), (32, 32), (128, 64), (32, 128)])
def test_a_tile_that_tma_takes_out_again(written, read_as):
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("layout_kernels")
    import triton_ext

    a = torch.randint(-3, 4, (64, 64)).half()
    with triton_ext.emulate("sm_90"):
        if written == read_as:
            assert torch.equal(kernels.copy(a, written, read_as), a)
            return
        with pytest.raises(LayoutFault, match=f"reads {read_as}-byte-swizzled rows; the TMA copy"):
            kernels.copy(a, written, read_as)
    with triton_ext.emulate("sm_90", check_layouts=False):
        assert not torch.equal(kernels.copy(a, written, read_as), a)


def swizzled_address(row, byte, width):
    """The place of a byte in a tile of 64 rows of 128 bytes: boxes of `width` bytes a row,
    Swizzle<B, 4, 3> (PTX ISA, "Swizzling Modes")."""
    address = byte // width * 64 * width + row * width + byte % width
    return address ^ (address >> 3 & (width // 16 - 1) << 4)


@pytest.mark.parametrize(("written", "read_as"), [(128, 128), (64, 128), (128, 32), (32, 64)])
def test_a_tile_that_threads_stored_and_tma_takes_out(written, read_as):
    torch = pytest.importorskip("torch")
    import layout_kernels
    from triton.experimental.gluon import language as gl

    import triton_ext

    a = torch.arange(64 * 64).reshape(64, 64).half()
    own = gl.NVMMASharedLayout(written, 16, rank=2)
    with triton_ext.emulate("sm_90", check_layouts=False):
        found = layout_kernels.store(a, own, read_as).numpy()
    rows, columns = np.indices((64, 64))
    memory = np.empty(64 * 64, np.float16)
    memory[swizzled_address(rows, 2 * columns, written) // 2] = a
    assert (found == memory[swizzled_address(rows, 2 * columns, read_as) // 2]).all()
    with triton_ext.emulate("sm_90"):
        if written == read_as:
            assert (layout_kernels.store(a, own, read_as).numpy() == a.numpy()).all()
            return
        with pytest.raises(LayoutFault, match=r"layout_kernels.py:\d+ writes it as") as caught:
            layout_kernels.store(a, own, read_as)
    said = re.search(r"for element \((.*?)\) is element \((.*?)\)", caught.value.message)
    to, of = (list(map(int, each.split(", "))) for each in said.groups())
    assert found[tuple(to)] == a.numpy()[tuple(of)]
    assert to != of


@pytest.mark.parametrize("arch", [90, 100])
def test_a_product_of_a_tile_that_threads_stored(arch):
    torch = pytest.importorskip("torch")
    import layout_kernels

    import triton_ext

    a, b = (torch.randint(-3, 4, shape).half() for shape in ((128, 64), (64, 64)))
    right = a.float() @ b.float()
    with triton_ext.emulate(f"sm_{arch}"):
        assert torch.equal(layout_kernels.multiply_stored(a, b, 128, 128, arch), right)
        with pytest.raises(LayoutFault, match=r"ttg\.local_store at layout_k") as caught:
            layout_kernels.multiply_stored(a, b, 64, 128, arch)
    assert "mma" in caught.value.instruction.opcode
    with triton_ext.emulate(f"sm_{arch}", check_layouts=False):
        assert not torch.equal(layout_kernels.multiply_stored(a, b, 64, 128, arch), right)


def test_another_encoding_of_the_same_layout_is_no_fault():
    torch = pytest.importorskip("torch")
    import layout_kernels
    from triton.experimental.gluon import language as gl

    import triton_ext

    a = torch.arange(64 * 64).reshape(64, 64).half()
    with triton_ext.emulate("sm_90"):
        found = layout_kernels.store(a, gl.SwizzledSharedLayout(8, 1, 8, [1, 0]), 128)
    assert (found == a).all()
