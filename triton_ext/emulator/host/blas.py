"""Triton's own way to cuBLASLt, ``nvidia.cublas.CublasLt``, with which its tutorials and tests
compare: computed by torch on the host, as there is no libcublas.

Like it, B is given as (N, K). Sums are made in float32, and rounded once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from triton_ext.emulator.units.matrix_product import decode_elements
from triton_ext.emulator.units.scale_factors import SCALES

_TYPES = (torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.float32)
_ROWS, _FACTORS, _GROUPS = 128, 4, 4
"""A block of scale factors: 128 rows, 4 of each, as 32 rows of 4 groups (cuBLAS, "1D Block Scaling
Factors Layout")."""


class CublasLt:
    """What ``nvidia.cublas.CublasLt`` is on a GPU. `workspace`: of no use here."""

    def __init__(self, workspace: Tensor) -> None:
        workspace.data_ptr()

    def matmul(self, a: Tensor, b: Tensor, c: Tensor) -> None:
        """C = A B^T. Raises RuntimeError: types or shapes that do not fit."""
        _check(a, b, c, a.dtype, _TYPES)
        c.copy_(a.float() @ b.float().T)

    def gemm(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, alpha: float, beta: float) -> None:
        """D = alpha A B^T + beta C; C is of fp16. Raises RuntimeError: see `matmul`."""
        _check(a, b, d, a.dtype, _TYPES)
        if c.dtype is not torch.float16 or c.shape != d.shape:
            raise RuntimeError(f"C must be of float16 and {tuple(d.shape)}, as D is")
        d.copy_(alpha * (a.float() @ b.float().T) + beta * c.float())

    def block_scaled_matmul_mxfp8(
        self, a: Tensor, b: Tensor, output: Tensor, scale_a: Tensor, scale_b: Tensor
    ) -> None:
        """A B^T of e4m3, with a ue8m0 factor for each 32 elements of K. Raises RuntimeError: see
        `matmul`."""
        _check(a, b, output, torch.float16, (torch.float8_e4m3fn,))
        left = a.float() * _factors(scale_a, a.shape[0], a.shape[1], 32)
        right = b.float() * _factors(scale_b, b.shape[0], b.shape[1], 32)
        output.copy_(left @ right.T)

    def block_scaled_matmul_nvfp4(
        self, a: Tensor, b: Tensor, output: Tensor, scale_a: Tensor, scale_b: Tensor
    ) -> None:
        """A B^T of e2m1, two in a byte, with a ue4m3 factor for each 16 elements of K. Raises
        RuntimeError: see `matmul`."""
        _check(a, b, output, torch.float16, (torch.uint8,))
        left = _unpacked(a) * _factors(scale_a, a.shape[0], 2 * a.shape[1], 16)
        right = _unpacked(b) * _factors(scale_b, b.shape[0], 2 * b.shape[1], 16)
        output.copy_(left @ right.T)


def _check(
    a: Tensor, b: Tensor, c: Tensor, c_type: torch.dtype, legal: tuple[torch.dtype, ...]
) -> None:
    """`legal`: the types that A may have."""
    if a.dtype not in legal:
        raise RuntimeError(f"A is of {a.dtype}: it must be of {' or '.join(map(str, legal))}")
    if b.dtype is not a.dtype or c.dtype is not c_type:
        raise RuntimeError(f"B is of {b.dtype}, C of {c.dtype}: they must be {a.dtype}, {c_type}")
    if a.dim() != 2 or b.dim() != 2 or c.dim() != 2:
        raise RuntimeError("A, B and C must be matrices")
    if not (a.is_contiguous() and b.is_contiguous() and c.is_contiguous()):
        raise RuntimeError("A, B and C must be contiguous: cuBLAS is given their addresses alone")
    if a.shape[1] != b.shape[1] or c.shape != (a.shape[0], b.shape[0]):
        raise RuntimeError(
            f"A is {tuple(a.shape)}, B {tuple(b.shape)}, C {tuple(c.shape)}: they must be (M, K),"
            " (N, K) and (M, N)"
        )


def _unpacked(codes: Tensor) -> Tensor:
    """(rows, K) of (rows, K / 2) bytes, the low half of each first."""
    found = codes.numpy()
    pairs = np.stack([found & 15, found >> 4], axis=-1).reshape(len(found), -1)
    return torch.from_numpy(decode_elements(pairs, "e2m1"))


def _factors(scales: Tensor, rows: int, k: int, vector: int) -> Tensor:
    """(rows, K): the factor of each element. `vector`: how many elements share one."""
    columns = -(-k // vector)
    shape = (-(-rows // _ROWS), -(-columns // _FACTORS), _ROWS // _GROUPS, _GROUPS, _FACTORS)
    count = math.prod(shape)
    if scales.numel() < count:
        raise RuntimeError(f"{scales.numel()} scale factors: there must be {count}")
    codes = scales.contiguous().view(torch.uint8).flatten()[:count].numpy().reshape(shape)
    values = SCALES["ue8m0" if vector == 32 else "ue4m3"][codes].transpose(0, 3, 2, 1, 4)
    found = torch.from_numpy(values.reshape(shape[0] * _ROWS, -1).astype(np.float32))
    return found[:rows].repeat_interleave(vector, dim=1)[:, :k]


@contextlib.contextmanager
def cublas_on_the_host() -> Iterator[None]:
    """Within it Triton's cuBLASLt is this one."""
    from triton._C.libtriton import nvidia

    library: Any = nvidia.cublas
    with mock.patch.object(library, "CublasLt", CublasLt):
        yield
