"""TMA's im2col mode, beside loops over the pixels of the bounding box."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from triton_ext.emulator import run_ptx
from triton_ext.emulator.errors import DescriptorFault
from triton_ext.emulator.state.tensor_map_memory import decode, encode
from triton_ext.errors import LayoutError
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import DataType, OobFill, TensorMap, TensorSwizzle

PTX = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry load(.param .align 64 .b8 map[128], .param .u64 out{parameters})
{{
  .reg .b32 %r<20>;
  .reg .b16 %h<8>;
  .reg .b64 %rd<8>;
  .reg .pred %p<4>;
  .shared .align 1024 .b8 tile[{size}];
  .shared .align 8 .b8 bar[8];
  mov.u32 %r10, tile;
  mov.u32 %r11, bar;
  mov.b64 %rd1, map;
  cvta.param.u64 %rd1, %rd1;
  ld.param.u64 %rd2, [out];
{loads}
  mbarrier.init.shared::cta.b64 [%r11], 1;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], {size};
  cp.async.bulk.tensor.{rank}d.shared::cta.global.im2col.mbarrier::complete_tx::bytes
      [%r10], [%rd1, {{{coordinates}}}], [%r11], {{{offsets}}};
wait:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r11], 0;
  @!%p1 bra wait;
  cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r10], {size};
  cp.async.bulk.commit_group;
  cp.async.bulk.wait_group 0;
  mbarrier.inval.shared::cta.b64 [%r11];
  ret;
}}
"""


def loaded(im2col, image, coordinates, offsets):
    """What a block of one thread finds in shared memory, as bytes."""
    rank, size = len(coordinates), im2col.transaction_bytes
    loads = [f"  ld.param.s32 %r{i}, [c{i}];" for i in range(rank)]
    loads += [f"  ld.param.u16 %h{i}, [o{i}];" for i in range(len(offsets))]
    parameters = [f".param .s32 c{i}" for i in range(rank)]
    parameters += [f".param .u16 o{i}" for i in range(len(offsets))]
    out = np.full(size, 0xEE, np.uint8)
    text = PTX.format(
        size=size, rank=rank, loads="\n".join(loads), parameters=", " + ", ".join(parameters),
        coordinates=", ".join(f"%r{i}" for i in range(rank)),
        offsets=", ".join(f"%h{i}" for i in range(len(offsets))),
    ).replace("bytes\n     ", "bytes")  # fmt: skip
    run_ptx(text, grid=1, block=1, args=[im2col, out, *coordinates, *offsets], buffers=[image])
    return out


def walked(im2col, image, coordinates, offsets):
    """(pixels, channels): pixel after pixel, from the first one on; zero, or NaN, outside."""
    tensor, channels = im2col.tensor, im2col.tensor.box_dims[0]
    depth = len(coordinates) - 2
    sides = [
        range(low, size + high, step)
        for low, high, size, step in zip(
            im2col.lower, im2col.upper, tensor.global_dims[1:-1], tensor.element_strides[1:-1],
            strict=True,
        )
    ]  # fmt: skip
    pixels = itertools.product(range(coordinates[-1], 99), *sides[::-1])
    rest = itertools.dropwhile(lambda at: at[1:] != tuple(coordinates[1:-1])[::-1], pixels)
    fill = np.nan if tensor.oob_fill else 0
    rows = np.full((im2col.pixels, channels), fill, np.float16)
    for row, (number, *at) in zip(rows, rest, strict=False):
        place = (number, *(at[i] + offsets[depth - 1 - i] for i in range(depth)))
        if all(0 <= n < size for n, size in zip(place, image.shape, strict=False)):
            for channel in range(channels):
                if 0 <= coordinates[0] + channel < image.shape[-1]:
                    row[channel] = image[(*place, coordinates[0] + channel)]
    return rows


@st.composite
def problems(draw):
    rank = draw(st.integers(3, 5))
    number = st.integers
    dims = [8 * draw(number(1, 4)), *(draw(number(1, 6)) for _ in range(rank - 1))]
    lower = [draw(number(-3, 2)) for _ in range(rank - 2)]
    upper = [draw(number(-3, 3)) for _ in range(rank - 2)]
    steps = [draw(number(1, 3)) for _ in range(rank - 2)]
    sides = [
        range(low, size + high, step)
        for low, high, size, step in zip(lower, upper, dims[1:-1], steps, strict=True)
    ]
    assume(all(sides))
    first = [draw(st.sampled_from(side)) for side in sides]
    coordinates = [8 * draw(number(-1, 3)), *first, draw(number(0, dims[-1] - 1))]
    offsets = [draw(number(0, 4)) for _ in range(rank - 2)]
    pixels = draw(st.sampled_from([8, 16, 64, 320]))
    fill, swizzle = draw(st.sampled_from(list(OobFill))), draw(number(0, 3))
    return dims, lower, upper, steps, coordinates, offsets, pixels, fill, swizzle


@settings(max_examples=60, deadline=None)
@given(problems())
def test_columns_have_the_pixels_of_the_loops(problem):
    dims, lower, upper, steps, coordinates, offsets, pixels, fill, swizzle = problem
    image = np.random.default_rng(0).standard_normal(dims[::-1]).astype(np.float16)
    mode = TensorSwizzle(swizzle)
    channels = max(8, mode.span // 2)
    tensor = TensorMap(
        DataType.FLOAT16, tuple(dims), tuple(image.strides[-2::-1]), (channels,) + (1,) *
        (len(dims) - 1), (1, *steps, 1), swizzle=mode, oob_fill=fill,
        global_address=image.ctypes.data,
    )  # fmt: skip
    im2col = Im2colMap(tensor, tuple(lower), tuple(upper), pixels)
    assert decode(encode(im2col)) == im2col
    expected = walked(im2col, image, coordinates, offsets)
    at = np.arange(0, expected.nbytes, 2)
    at ^= (at >> 7 & (1 << swizzle) - 1) << 4  # 2, 4 or 8 chunks of 16 bytes change places
    found = loaded(im2col, image, coordinates, offsets).view(np.float16)[at // 2]
    assert np.array_equal(found.reshape(expected.shape), expected, equal_nan=True)


def test_what_is_not_a_column_is_refused():
    image = np.zeros((2, 4, 4, 8), np.float16)
    strides = tuple(image.strides[-2::-1])
    tensor = TensorMap(DataType.FLOAT16, (8, 4, 4, 2), strides, (8, 1, 1, 1), (1, 2, 1, 1),
                       global_address=image.ctypes.data)  # fmt: skip
    im2col = Im2colMap(tensor, (-1, -1), (0, 0), 16)
    for coordinates, offsets in (
        ((0, 0, 0, 0), (0, 0)),  # between the pixels that are walked: -1 and 1
        ((0, 5, 0, 0), (0, 0)),
        ((0, -1, 0, 0), (256, 0)),
        ((4, -1, 0, 0), (0, 0)),  # 8 bytes
    ):
        with pytest.raises(DescriptorFault):
            loaded(im2col, image, coordinates, offsets)
    tiles = TensorMap(DataType.FLOAT16, (8, 4, 4, 2), strides, (8, 4, 4, 1),
                      global_address=image.ctypes.data)  # fmt: skip
    with pytest.raises(DescriptorFault, match="the instruction is for im2col"):
        loaded(tiles, image, (0, 0, 0, 0), (0, 0))
    legal = {"tensor": tensor, "lower": (0, 0), "upper": (0, 0), "pixels": 8}
    for change in ({"pixels": 1025}, {"lower": (-129, 0)}, {"upper": (-5, 0)}, {"lower": (0,)}):
        with pytest.raises(LayoutError):
            Im2colMap(**(legal | change))
