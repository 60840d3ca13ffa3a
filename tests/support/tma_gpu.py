"""TMA on a real GPU: tensor maps encoded by the CUDA driver, and single boxes copied by hand.

The kernel is PTX text, with nothing of Triton's or this project's in it: it poisons shared memory,
copies one box, waits for as many bytes as it was told to expect, and writes shared memory out.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import torch

from triton_ext.hardware.tensor_map import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES

POISON = 0xA5
SMEM_BYTES = 32 * 1024
HEADER_BYTES = 1024  # the mbarrier; the box lies behind it

PTX = """
.version 8.0
.target sm_90
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry load_box(
    .param .align 64 .b8 map[128], .param .u64 out, .param .u32 place, .param .u32 expected
    {parameters}
)
{{
    .reg .pred %p<3>;
    .reg .b32 %r<20>;
    .reg .b64 %rd<8>;
    mov.b32 %r1, smem;
    add.s32 %r2, %r1, {header};
    mov.b32 %r3, 0;
poison:
    add.s32 %r4, %r2, %r3;
    mov.b32 %r5, {poison};
    st.shared.b32 [%r4], %r5;
    add.s32 %r3, %r3, 4;
    setp.lt.u32 %p1, %r3, {size};
    @%p1 bra poison;
    mbarrier.init.shared.b64 [%r1], 1;
    fence.proxy.async;
    ld.param.u32 %r6, [place];
    add.s32 %r6, %r6, %r2;
    ld.param.u32 %r7, [expected];
    mov.b64 %rd1, map;
    cvta.param.u64 %rd2, %rd1;
    {loads}
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], %r7;
    cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r6], [%rd2, {{{coordinates}}}], [%r1];
    mov.b32 %r8, 0;
wait:
    mbarrier.test_wait.parity.shared.b64 %p2, [%r1], 0;
    @%p2 bra arrived;
    add.s32 %r8, %r8, 1;
    setp.lt.u32 %p1, %r8, 200000;
    @%p1 bra wait;
arrived:
    ld.param.u64 %rd3, [out];
    cvta.to.global.u64 %rd3, %rd3;
    mov.b32 %r3, 0;
copy:
    add.s32 %r4, %r2, %r3;
    ld.shared.b32 %r5, [%r4];
    cvt.u64.u32 %rd4, %r3;
    add.u64 %rd5, %rd3, %rd4;
    st.global.b32 [%rd5], %r5;
    add.s32 %r3, %r3, 4;
    setp.lt.u32 %p1, %r3, {size};
    @%p1 bra copy;
    selp.b32 %r9, 1, 0, %p2;
    st.global.b32 [%rd3+{size}], %r9;
    ret;
}}
"""


@functools.cache
def driver():
    """The CUDA driver, with PyTorch's context current."""
    torch.cuda.current_stream().synchronize()
    return ctypes.CDLL("libcuda.so.1")


def encode(tensor_map):
    """The driver's status, and the encoded tensor map as an aligned ctypes array."""
    raw = (ctypes.c_uint8 * (TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT))()
    skip = -ctypes.addressof(raw) % TENSOR_MAP_ALIGNMENT
    encoded = (ctypes.c_uint8 * TENSOR_MAP_BYTES).from_buffer(raw, skip)
    rank = len(tensor_map["global_dims"])

    def array(kind, values):
        return (kind * max(1, len(values)))(*values)

    status = driver().cuTensorMapEncodeTiled(
        ctypes.byref(encoded),
        int(tensor_map["data_type"]),
        rank,
        ctypes.c_void_p(tensor_map["global_address"]),
        array(ctypes.c_uint64, tensor_map["global_dims"]),
        array(ctypes.c_uint64, tensor_map["global_strides"]),
        array(ctypes.c_uint32, tensor_map["box_dims"]),
        array(ctypes.c_uint32, tensor_map["element_strides"]),
        int(tensor_map["interleave"]),
        int(tensor_map["swizzle"]),
        int(tensor_map["l2_promotion"]),
        int(tensor_map["oob_fill"]),
    )
    return status, encoded


@functools.cache
def kernel(rank):
    numbers = range(rank)
    ptx = PTX.format(
        rank=rank,
        header=HEADER_BYTES,
        size=SMEM_BYTES,
        poison=int.from_bytes(bytes([POISON] * 4), "little", signed=True),
        parameters="".join(f", .param .s32 c{i}" for i in numbers),
        loads="\n    ".join(f"ld.param.s32 %r{10 + i}, [c{i}];" for i in numbers),
        coordinates=", ".join(f"%r{10 + i}" for i in numbers),
    )
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    status = driver().cuModuleLoadData(ctypes.byref(module), ptx.encode())
    assert status == 0, f"cuModuleLoadData: {status}"
    status = driver().cuModuleGetFunction(ctypes.byref(function), module, b"load_box")
    assert status == 0, f"cuModuleGetFunction: {status}"
    return function


def load_box(encoded, coordinates, place, expected_bytes):
    """Shared memory behind the header after the copy, and whether the mbarrier completed."""
    out = torch.empty(SMEM_BYTES + 4, dtype=torch.uint8, device="cuda")
    arguments = [
        encoded,
        ctypes.c_uint64(out.data_ptr()),
        ctypes.c_uint32(place),
        ctypes.c_uint32(expected_bytes),
        *(ctypes.c_int32(value) for value in coordinates),
    ]
    pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    status = driver().cuLaunchKernel(
        kernel(len(coordinates)),
        *(1, 1, 1, 1, 1, 1),
        HEADER_BYTES + SMEM_BYTES,
        ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        pointers,
        None,
    )
    assert status == 0, f"cuLaunchKernel: {status}"
    host = out.cpu().numpy()
    return host[:SMEM_BYTES], bool(host[SMEM_BYTES:].view(np.int32)[0])


def expected_smem(tensor_map, data, coordinates, place, fill=0):
    """What `load_box` should find: `TensorMap.smem_address` for every element of the box.

    Args:
        data: the bytes of the tensor.
        fill: the byte that out-of-bounds elements consist of.
    """
    smem = np.full(HEADER_BYTES + SMEM_BYTES, POISON, np.uint8)
    shape = tensor_map.copied_shape
    grid = np.indices(shape, np.int64)
    steps = (1, *tensor_map.element_strides[1:])
    size = tensor_map.data_type.bits // 8
    strides = (size, *tensor_map.global_strides)
    inside = np.ones(shape, bool)
    source = np.zeros(shape, np.int64)
    for i, index in enumerate(grid):
        position = coordinates[i] + index * steps[i]
        inside &= (position >= 0) & (position < tensor_map.global_dims[i])
        source += position * strides[i]
    target = tensor_map.smem_address(list(grid), HEADER_BYTES + place)
    for byte in range(size):
        smem[target + byte] = np.where(inside, data[np.where(inside, source, 0) + byte], fill)
    return smem[HEADER_BYTES:]
