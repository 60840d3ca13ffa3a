"""cuBLASLt's heuristics for a product, each as a side that can be timed: the harder baseline.

PyTorch launches the first algorithm that ``cublasLtMatmulAlgoGetHeuristic`` names. Often another
one of the list is faster. The library is the one that torch has loaded, called by ctypes; enums
are those of ``cublasLt.h`` and ``library_types.h`` (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.problems import TYPES, Operands, Problem

HEURISTICS = 24
"""How many algorithms are asked for."""
WORKSPACE_BYTES = 32 << 20
"""What torch gives cuBLASLt on Hopper (``ATen/cuda/CUDABlas.cpp``)."""
_TYPES = {"bf16": 14, "fp16": 2, "e4m3": 28}
"""Element types as ``cudaDataType``."""
_R_32F, _COMPUTE_32F = 0, 68
_TRANSA, _TRANSB, _FAST_ACCUM, _MAX_WORKSPACE_BYTES = 3, 4, 25, 1
_TRANSPOSED = 1


class _Result(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLt:
    """The library that this process has loaded, with one handle and one workspace.

    Raises:
        OSError: torch has loaded none (a GPU's first product does).
    """

    def __init__(self) -> None:
        torch.mm(*torch.ones((2, 16, 16), device="cuda", dtype=torch.bfloat16))
        maps = Path("/proc/self/maps").read_text()
        path = re.search(r"/\S*libcublasLt\.so\S*", maps)
        if path is None:
            raise OSError("torch has loaded no libcublasLt")
        self._library = ctypes.CDLL(path[0])
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version: int = self._library.cublasLtGetVersion()
        self._handle = self._made("cublasLtCreate")
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed: cublasStatus_t {status}")

    def _made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """An object of the library, by one of its functions that make one."""
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *arguments)
        return made

    def _set(self, kind: str, made: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(f"cublasLt{kind}SetAttribute", made, attribute, ctypes.byref(value), size)

    def _matrix(self, element_type: int, rows: int, columns: int, step: int) -> ctypes.c_void_p:
        """The layout of a matrix whose columns lie side by side."""
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(step)
        return self._made("cublasLtMatrixLayoutCreate", element_type, *sizes)

    def launches(self, problem: Problem, sets: Sequence[Operands]) -> list[Callable[[int], None]]:
        """One launch of input set i for each algorithm that the heuristic names, in its order.

        cuBLAS counts columns first: it is asked for C transposed, of B and A transposed.
        """
        a, b, c = sets[0]
        operation = self._made("cublasLtMatmulDescCreate", _COMPUTE_32F, _R_32F)
        transposed = ctypes.c_int32(_TRANSPOSED)
        if problem.b_major == "K":
            self._set("MatmulDesc", operation, _TRANSA, transposed)
        if problem.a_major == "MN":
            self._set("MatmulDesc", operation, _TRANSB, transposed)
        if problem.element_type == "e4m3":
            fast = ctypes.c_int8(not problem.promoted)
            self._set("MatmulDesc", operation, _FAST_ACCUM, fast)
        kind, out = _TYPES[problem.element_type], _TYPES[problem.out_type or problem.element_type]
        assert c.dtype == TYPES[problem.out_type or problem.element_type]
        m, n, k = problem.m, problem.n, problem.k
        first = (k, n, b.stride(1)) if problem.b_major == "K" else (n, k, b.stride(0))
        second = (k, m, a.stride(0)) if problem.a_major == "K" else (m, k, a.stride(1))
        layouts = (
            self._matrix(kind, *first), self._matrix(kind, *second),
            *(self._matrix(out, n, m, c.stride(0)) for _ in range(2)),
        )  # fmt: skip
        preference = self._made("cublasLtMatmulPreferenceCreate")
        limit = ctypes.c_size_t(WORKSPACE_BYTES)
        self._set("MatmulPreference", preference, _MAX_WORKSPACE_BYTES, limit)
        results, found = (_Result * HEURISTICS)(), ctypes.c_int()
        self._call(
            "cublasLtMatmulAlgoGetHeuristic", self._handle, operation, *layouts, preference,
            HEURISTICS, results, ctypes.byref(found),
        )  # fmt: skip
        return [
            self._launch(operation, layouts, result, sets)
            for result in results[: found.value]
            if not result.state
        ]

    def _launch(
        self, operation: Any, layouts: Sequence[Any], result: Any, sets: Sequence[Operands]
    ) -> Callable[[int], None]:
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        pointers = [[ctypes.c_void_p(x.data_ptr()) for x in operands] for operands in sets]
        workspace = ctypes.c_void_p(self._workspace.data_ptr())
        size = ctypes.c_size_t(WORKSPACE_BYTES)

        def launch(i: int) -> None:
            a, b, c = pointers[i % len(pointers)]
            self._call(
                "cublasLtMatmul", self._handle, operation, ctypes.byref(one), b, layouts[0], a,
                layouts[1], ctypes.byref(zero), c, layouts[2], c, layouts[3],
                ctypes.byref(result.algo), workspace, size,
                ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
            )  # fmt: skip

        return launch
