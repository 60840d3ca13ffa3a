"""Kernels of NVIDIA and of Triton for Blackwell, counted as ours are (`benchmarks.blackwell`).

NVIDIA's are the persistent GEMMs among CUTLASS's examples of the CuTe DSL, plain and block-scaled;
Triton's those among its examples of Gluon. All make the same problems with the same tiles, 256x256
by two CTAs, in as many stages as they choose themselves (Gluon's: as many as ours), on the
emulated GPU, and each result is compared with what it must be. Nothing of them is kept here: they
are read from checkouts.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

import triton_ext
from benchmarks.blackwell import PROCESSORS, SIZE, Counts, Roles, count
from triton_ext.compat import TRITON_VERSION
from triton_ext.emulator import run_ptx
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle

CUTE = Path(__file__).with_name("blackwell_cute.py")
GLUON = "python/examples/gluon"
DYNAMIC_BYTES = 227 << 10
"""What NVIDIA's kernels are given: they use all that there is, but a rest."""
PAIRS: dict[str, Any] = {
    "block_n": 256, "cluster": 2, "pair": True, "c_parts": 4, "c_buffers": 2, "stages": 6
}  # fmt: skip
SCALED = {
    "mxfp8": PAIRS
    | {"element_type": "mxfp8", "block_k": 128, "out_type": "bf16", "c_parts": 8, "c_buffers": 3},
    "nvfp4": PAIRS | {"element_type": "nvfp4", "block_k": 128, "out_type": "bf16", "stages": 5},
}


def side_by_side(cutlass: Path, triton: Path, dsl: str) -> dict[str, dict[str, Counts]]:
    """Counts by problem and kernel.

    Args:
        cutlass, triton: checkouts.
        dsl: a Python that has NVIDIA's CuTe DSL, and torch.
    """
    command = [dsl, str(CUTE), str(cutlass), str(SIZE), str(PROCESSORS // 2)]
    compiled = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    nvidia = {name: cute(name, ptx) for name, ptx in json.loads(compiled.stdout).items()}
    folder = Path(tempfile.mkdtemp())
    dense = module_of(triton / GLUON / "03-matmul-multicta.py", folder)
    scaled = module_of(triton / GLUON / "04-2cta-block-scale-matmul.py", folder)
    asked = PAIRS | {"element_type": "fp16", "b_major": "MN", "asked": True}
    return {
        "bf16, static": {
            "ours": count(PAIRS), "CuTe DSL, dense_gemm_persistent": nvidia["bf16"],
        },
        "fp16, B N-major, asked for": {
            "ours": count(asked), "Gluon, 03-matmul-multicta": gluon_dense(dense),
        },
        **{
            f"{name}, static": {
                "ours": count(SCALED[name]),
                "CuTe DSL, dense_blockscaled_gemm_persistent": nvidia[name],
                "Gluon, 04-2cta-block-scale-matmul": gluon_scaled(scaled, name),
            }
            for name in SCALED
        },
    }  # fmt: skip


# ----------------------------------------------------------------- NVIDIA's


def aligned(values: NDArray[Any]) -> NDArray[Any]:
    """The same at an address that TMA takes."""
    raw = np.zeros(values.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 128
    array: NDArray[Any] = (
        raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    )
    array[...] = values
    return array


def divisor(number: int) -> bytes:
    """What CuTe divides by: the number, a multiplier, two shifts (Granlund and Montgomery 1994,
    figure 4.1).
    """
    bits = (number - 1).bit_length()
    multiplier = (((1 << bits) - number) << 32) // number + 1
    return struct.pack("<IIBBxx", number, multiplier, min(bits, 1), max(bits - 1, 0))


def cute(name: str, ptx: str) -> Counts:
    """A kernel of `blackwell_cute`; all operands, and scales, are one."""
    c = aligned(np.zeros((SIZE, SIZE), ml_dtypes.bfloat16))
    kind, one, bits = {
        "bf16": (DataType.BFLOAT16, np.ones(1, ml_dtypes.bfloat16), 16),
        "mxfp8": (DataType.UINT8, np.ones(1, ml_dtypes.float8_e4m3fn), 8),
        "nvfp4": (DataType.U4X16_ALIGN8B, np.full(1, 0x22, np.uint8), 4),
    }[name]
    size_k = SIZE * (2 if name == "nvfp4" else 1)
    row_bytes = size_k * bits // 8
    stored = [aligned(np.broadcast_to(one, (SIZE, row_bytes // one.itemsize))) for _ in "ab"]
    maps = [
        TensorMap(kind, (size_k, SIZE), (row_bytes,), (1024 // bits, 128),
                  swizzle=TensorSwizzle.BYTES_128, global_address=each.ctypes.data)
        for each in stored
    ]  # fmt: skip
    maps.append(
        TensorMap(DataType.BFLOAT16, (SIZE, SIZE), (2 * SIZE,), (32, 128),
                  swizzle=TensorSwizzle.BYTES_64, global_address=c.ctypes.data)
    )  # fmt: skip
    clusters = [divisor(n) for n in (SIZE // 256, SIZE // 256, 1, 1)]
    arguments: list[Any] = [bytes(64), *maps, *clusters]
    if name != "bf16":
        one = np.full(1, 127, np.uint8) if name == "mxfp8" else np.full(1, 0x38, np.uint8)
        columns = size_k // (128 if name == "mxfp8" else 64)  # of blocks of 128 x 4
        blocks = [aligned(np.broadcast_to(one, (SIZE // 128, columns, 512))) for _ in "ab"]
        shape = (SIZE // 128, columns), (512 * columns, 512), (1, 1)
        if name == "nvfp4":  # the compiler puts a dimension of which a box has more than one first
            shape = (columns, SIZE // 128), (512, 512 * columns), (4, 1)
        extents, strides, box = shape
        maps[2:2] = [
            TensorMap(DataType.UINT16, (256, *extents), strides, (256, *box),
                      global_address=each.ctypes.data)
            for each in blocks
        ]  # fmt: skip
        arguments = [bytes(12), bytes(12), *maps, *clusters]
        stored += blocks
    observer = Roles()
    run_ptx(
        ptx, grid=(2, 1, PROCESSORS // 2), block=192, cluster=(2, 1, 1), args=arguments,
        buffers=[*stored, c], dynamic_smem_bytes=DYNAMIC_BYTES, observer=observer,
    )  # fmt: skip
    assert (c == np.float32(size_k)).all()
    return observer.counts(SIZE * SIZE)


# ----------------------------------------------------------------- Triton's


UNAWAITED = "\n\n\n@gluon.jit\ndef _matmul_kernel("
"""What follows the epilogue of Gluon's 03-matmul-multicta, which ends without waiting for its last
TMA stores: the emulator refuses that."""


def module_of(path: Path, folder: Path) -> ModuleType:
    """A file as a module, with the wait that it lacks; Gluon reads it again from a folder."""
    text = path.read_text().replace(UNAWAITED, "\n    tma.store_wait(0)" + UNAWAITED)
    if TRITON_VERSION >= (3, 9):
        text = text.replace("tma.async_copy_shared_to_global(", "tma.async_store(")
    path = folder / path.name
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def launched(run: Any) -> Counts:
    """What `run` does on an emulated Blackwell of so many SMs."""
    observer = Roles()
    with triton_ext.emulate("sm_100", observer=observer, cuda_on_host=True):
        c, size_k = run()
    assert (c == size_k).all()
    return observer.counts(SIZE * SIZE)


def gluon_dense(module: Any) -> Counts:
    """Triton's plain one, which takes fp16 and an N-major B."""

    def run() -> Any:
        a, b = (torch.ones(SIZE, SIZE, dtype=torch.float16) for _ in "ab")
        c = module.matmul_with_config(
            a, b, block_size_m=128, block_size_n=256, block_size_k=64, grid_minor_dim=0,
            grid_tile_width=8, stages=6, acc_stages=2, cga_layout=((1, 0),), epilogue_size_n=32,
            subtile_stages=4,
        )  # fmt: skip
        return c, SIZE

    return launched(run)


def gluon_scaled(module: Any, name: str) -> Counts:
    """Triton's block-scaled one."""
    fields = SCALED[name]

    def run() -> Any:
        size_k = SIZE * (2 if name == "nvfp4" else 1)
        if name == "mxfp8":
            a, b = (torch.ones(SIZE, SIZE).to(torch.float8_e4m3fn) for _ in "ab")
            blocks = torch.full((SIZE // 128, SIZE // 128, 32, 4, 4), 127, dtype=torch.uint8)
        else:
            a, b = (torch.full((SIZE, SIZE), 0x22, dtype=torch.uint8) for _ in "ab")
            blocks = torch.ones((SIZE // 128, size_k // 64, 32, 4, 4)).to(torch.float8_e4m3fn)
        module.mma_scaled_warp_specialized_grid = lambda *_: (PROCESSORS // 2,)
        c = module.mma_scaled_warp_specialized(
            a, b, blocks, blocks.clone(), 32 if name == "mxfp8" else 16, module.SCHEDULER_SPS,
            out_dtype=torch.bfloat16, BLOCK_M=256, BLOCK_N=256, EPILOGUE_BLOCK_N=32, num_ctas=2,
            num_buffers=fields["stages"],
        )  # fmt: skip
        return c, size_k

    return launched(run)
