"""What the host code of NVIDIA's CuTe DSL 4.8.1 writes, and calls: bytes that it has written."""

from __future__ import annotations

import struct

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_ext.emulator.errors import DescriptorFault  # noqa: E402
from triton_ext.emulator.host.cute_dsl import ALIGNMENT, as_on_device  # noqa: E402
from triton_ext.emulator.state.tensor_map_memory import decode, encode, replace_field  # noqa: E402
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle  # noqa: E402

NONE, SW128 = TensorSwizzle.NONE, TensorSwizzle.BYTES_128
MAPS = [
    # a row-major tensor (64, 96), boxes of (8, 16)
    ((0xC00040312, 0, 0, 0x3F0000005F, 0, 0xF00000000000000, 7),
     DataType.FLOAT16, (96, 64), (192,), (16, 8), NONE),
    ((0xC00040512, 0, 0, 0x3F0000005F, 0, 0xF00000000000000, 7),
     DataType.BFLOAT16, (96, 64), (192,), (16, 8), NONE),
    ((0x1800040392, 0, 0, 0x3F0000005F, 0, 0xF00000000000000, 7),
     DataType.FLOAT32, (96, 64), (384,), (16, 8), NONE),
    ((0x600040012, 0, 0, 0x3F0000005F, 0, 0xF00000000000000, 7),
     DataType.UINT8, (96, 64), (96,), (16, 8), NONE),
    ((0x1000046312, 0, 0, 0x3F0000007F, 0, 0x3F00000000000000, 7),
     DataType.FLOAT16, (128, 64), (256,), (64, 8), SW128),
    ((0x1000044312, 0, 0, 0x3F0000007F, 0, 0x1F00000000000000, 7),
     DataType.FLOAT16, (128, 64), (256,), (32, 8), TensorSwizzle.BYTES_64),
    ((0x20000C6392, 0, 0, 0x3F0000007F, 0, 0x1F00000000000000, 7),
     DataType.FLOAT32, (128, 64), (512,), (32, 8), TensorSwizzle.BYTES_128_ATOM_32B),
    ((0x1000246342, 0xC0000003C00, 0x400, 0x3F0000007F, 0x400000006, 0x3F00000000000002, 7),
     DataType.FLOAT16, (128, 64, 7, 5, 3), (256, 245760, 49152, 16384), (64, 8, 1, 1, 1), SW128),
    ((0x1000246332, 0x3C0000000400, 0, 0x3F0000007F, 0x60000000E, 0x3F00000000000000, 0x10807),
     DataType.FLOAT16, (128, 64, 15, 7), (256, 16384, 245760), (64, 8, 9, 2), SW128),
]  # fmt: skip


def written(words: tuple[int, ...]) -> bytes:
    """What the host code leaves on its stack: the other half is garbage."""
    return struct.pack("<8Q", 0x5584C1C1B600, *words) + bytes(range(3, 67))


@pytest.mark.parametrize(("words", "kind", "dims", "strides", "boxes", "swizzle"), MAPS)
def test_a_tensor_map(words, kind, dims, strides, boxes, swizzle):
    data = written(words)
    expected = TensorMap(kind, dims, strides, boxes, swizzle=swizzle, global_address=0x5584C1C1B600)
    assert decode(data) == expected
    moved = replace_field(data, "global_address", 0, 0x1000)
    assert moved == replace_field(encode(expected), "global_address", 0, 0x1000)
    assert decode(moved).global_address == 0x1000


@pytest.mark.parametrize("bit", [11, 15, 22, 31])
def test_flags_that_were_not_seen(bit):
    words = (MAPS[0][0][0] | 1 << bit, *MAPS[0][0][1:])
    with pytest.raises(DescriptorFault, match="are not understood in a map of the CuTe DSL"):
        decode(written(words))


@pytest.mark.parametrize("number", range(1, 9))
def test_new_tensors_are_aligned_as_cuda_aligns_them(number):
    made = torch.arange(number * 7.0).reshape(7, number).t()
    for function, arguments in ((torch.clone, ()), (torch.relu_, (made,))):
        found = as_on_device(made, function, arguments)
        assert found.equal(made)
        assert found.stride() == made.stride()
    fresh = as_on_device(torch.rand(number, 3), torch.rand, (number, 3))
    assert fresh.data_ptr() % ALIGNMENT == 0
    pair = as_on_device(torch.rand(9, number).max(0), torch.max, ())
    assert [each.data_ptr() % ALIGNMENT for each in pair] == [0, 0]
    assert pair.values.shape == (number,)
