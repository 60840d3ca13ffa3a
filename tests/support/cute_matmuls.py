"""Launches the matmuls of `cute_worker.py` on the emulated GPU."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
from sites import SUPPORT

from triton_ext.emulator.host.run import prepare
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.schedule import Schedule
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


def compiled(jobs: list[dict[str, Any]]) -> list[str]:
    """The PTX of each job."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "cute_worker.py")],
        input=json.dumps(jobs), capture_output=True, text=True, check=False,
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


class Problem:
    """A job's operands in memory.

    Attributes:
        d: the result, after `run`.
        expected: what it must be.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        m, n, k = task["tile"]
        self.extent = extent = 2 * max(256, m, n, k)
        generator = np.random.default_rng(11)
        self.stored, values = [], []
        for type_name, atom in zip(task["types"][:2], task["atoms"], strict=True):
            low = 0 if type_name == "Uint8" else -3
            matrix = generator.integers(low, 4, (extent, extent)).astype(TYPES[type_name][0])
            values.append(matrix.astype(np.float64))
            self.stored.append(aligned(matrix if atom.startswith("K") else matrix.T))
        dtype = np.int32 if "nt8" in task["types"][0] else np.float32
        self.d = aligned(np.zeros((extent, extent), dtype))
        self.expected = values[0] @ values[1].T

    def run(self, ptx: str, schedule: str) -> Machine:
        """Multiply by a kernel."""
        (m, n, k), ctas = self.task["tile"], self.task["ctas"]
        maps = [
            tensor_map(array, type_name, atom, rows // ctas, k)
            for array, type_name, atom, rows in zip(
                self.stored, self.task["types"], self.task["atoms"], (m, n), strict=False
            )
        ]
        program = decode(parse_ptx(ptx))
        memory = GlobalMemory()
        for array in (*self.stored, self.d):
            memory.register(array)
        mma = bytes(program.parameters[0].variable.bytes)  # accumulate, negate, disabled lanes: no
        launch = prepare(
            program, grid=(self.extent // m * ctas, self.extent // n), block=THREADS,
            cluster=(ctas, 1, 1), args=[mma, *maps, struct.pack("<Q", self.d.ctypes.data)],
            memory=memory, dynamic_smem_bytes=SHARED_BYTES,
        )  # fmt: skip
        machine = Machine(program, launch, Schedule(schedule, 4))
        machine.run()
        return machine
