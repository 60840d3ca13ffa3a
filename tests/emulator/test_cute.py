"""Blackwell kernels that NVIDIA's CuTe DSL compiles, on the emulator (``make oracle``).

The compiler, its pipelines (mbarriers, the allocation of tensor memory, the pairs of CTAs), its
descriptors and its epilogue are NVIDIA's: what comes out right here was read as NVIDIA means it.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from sites import SUPPORT

pytest.importorskip("cutlass", reason="needs the extra 'oracle'")

from triton_ext.emulator.host.run import prepare
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.machine import Machine, Schedule
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.hardware.tensor_map import DataType, TensorMap, TensorSwizzle
from triton_ext.ptx.parse import parse_ptx

THREADS = 128
SHARED_BYTES = 227 * 1024
TYPES = {
    "Float16": (np.float16, DataType.FLOAT16), "BFloat16": (ml_dtypes.bfloat16, DataType.BFLOAT16),
    "TFloat32": (np.float32, DataType.TFLOAT32),
    "Float8E4M3FN": (ml_dtypes.float8_e4m3fn, DataType.UINT8),
    "Float8E5M2": (ml_dtypes.float8_e5m2, DataType.UINT8),
    "Int8": (np.int8, DataType.UINT8), "Uint8": (np.uint8, DataType.UINT8),
}  # fmt: skip
SWIZZLES = {"SW128": (128, TensorSwizzle.BYTES_128), "SW64": (64, TensorSwizzle.BYTES_64),
            "SW32": (32, TensorSwizzle.BYTES_32),
            "SW128_32B": (128, TensorSwizzle.BYTES_128_ATOM_32B)}  # fmt: skip


def job(
    a_type: str, b_type: str, tile: tuple[int, int, int], atoms: tuple[str, str], ctas: int = 1
) -> dict[str, object]:
    d_type = "Int32" if "nt8" in a_type else "Float32"
    return {
        "arch": 100, "types": [a_type, b_type, d_type], "tile": tile, "instruction": tile[:2],
        "atoms": atoms, "ctas": ctas, "stages": 2,
    }  # fmt: skip


HALF, FP8 = ("Float16", "Float16"), ("Float8E4M3FN", "Float8E5M2")
KK, MM = ("K_SW128", "K_SW128"), ("MN_SW128", "MN_SW64")
JOBS = [
    job(*HALF, (128, 128, 64), KK),
    job("BFloat16", "BFloat16", (128, 256, 64), MM),
    job(*HALF, (64, 128, 64), ("K_SW32", "MN_SW128")),
    job(*FP8, (128, 128, 128), ("K_SW64", "MN_SW128")),
    job("Int8", "Int8", (128, 128, 64), ("MN_SW64", "K_SW64")),
    job("Uint8", "Uint8", (64, 64, 128), KK),
    job("TFloat32", "TFloat32", (128, 128, 32), ("MN_SW128_32B", "K_SW128")),
    job(*HALF, (256, 128, 64), KK, 2),
    job("BFloat16", "BFloat16", (256, 256, 64), MM, 2),
    job(*HALF, (128, 64, 64), ("MN_SW64", "K_SW128"), 2),
    job(*FP8, (256, 128, 128), ("K_SW128", "MN_SW64"), 2),
    job("TFloat32", "TFloat32", (256, 128, 32), ("K_SW128", "MN_SW128_32B"), 2),
]


@pytest.fixture(scope="module")
def kernels() -> list[str]:
    """The PTX of each job."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "cute_worker.py")],
        input=json.dumps(JOBS), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def aligned(values: np.ndarray) -> np.ndarray:
    raw = np.zeros(values.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 128
    array = raw[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


def tensor_map(stored: np.ndarray, type_name: str, atom: str, rows: int, k: int) -> TensorMap:
    """As the DSL's host code makes it: a box is as wide as the swizzle."""
    major, swizzle_name = atom.split("_", 1)
    width, swizzle = SWIZZLES[swizzle_name]
    return TensorMap(
        TYPES[type_name][1],
        (stored.shape[1], stored.shape[0]),
        (stored.shape[1] * stored.itemsize,),
        (width // stored.itemsize, rows if major == "K" else k),
        swizzle=swizzle,
        global_address=stored.ctypes.data,
    )


def run(text: str, task: dict[str, object], schedule: str) -> tuple[np.ndarray, np.ndarray]:
    """D, and what it must be."""
    m, n, k = task["tile"]
    extent = 2 * max(256, m, n, k)
    generator = np.random.default_rng(11)
    stored, values = [], []
    for type_name, atom in zip(task["types"][:2], task["atoms"], strict=True):
        low = 0 if type_name == "Uint8" else -3
        matrix = generator.integers(low, 4, (extent, extent)).astype(TYPES[type_name][0])
        values.append(matrix.astype(np.float64))
        stored.append(aligned(matrix if atom.startswith("K") else matrix.T))
    d = aligned(np.zeros((extent, extent), np.int32 if "nt8" in task["types"][0] else np.float32))
    ctas = task["ctas"]
    maps = [
        tensor_map(array, type_name, atom, rows // ctas, k)
        for array, type_name, atom, rows in zip(
            stored, task["types"], task["atoms"], (m, n), strict=False
        )
    ]
    program = decode(parse_ptx(text))
    memory = GlobalMemory()
    for array in (*stored, d):
        memory.register(array)
    mma = bytes(program.parameters[0].variable.bytes)  # accumulate, negate, disabled lanes: none
    launch = prepare(
        program, grid=(extent // m * ctas, extent // n), block=THREADS, cluster=(ctas, 1, 1),
        args=[mma, *maps, struct.pack("<Q", d.ctypes.data)], memory=memory,
        dynamic_smem_bytes=SHARED_BYTES,
    )  # fmt: skip
    machine = Machine(program, launch, Schedule(schedule, 4))
    machine.run()
    return d, values[0] @ values[1].T


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("number", range(len(JOBS)), ids=[
    f"{task['types'][0]}-{task['tile'][0]}x{task['tile'][1]}-{'-'.join(task['atoms'])}"
    f"-{task['ctas']}" for task in JOBS
])  # fmt: skip
def test_matmul_of_the_cute_dsl(kernels: list[str], number: int, schedule: str) -> None:
    found, expected = run(kernels[number], JOBS[number], schedule)
    assert (found == expected).all()
