"""Matrix multiplication on torch tensors, by this project's kernels. Imports torch and Triton."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import LAUNCH_OPTIONS
from triton_ext.errors import LayoutError, UnsupportedDeviceError
from triton_ext.interop import to_gluon
from triton_ext.kernels.config import Major, MatmulConfig, TileLayouts, choose_config
from triton_ext.kernels.launch import kernel_constants, kernel_for

_ELEMENT_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_TMA_ALIGNMENT = 16
"""Bytes that a tensor's address, and its strides but the last, must be multiples of for TMA
(``cuTensorMapEncodeTiled``, globalAddress and globalStrides)."""


def _gpu(device: torch.device) -> tuple[int, AbstractContextManager[Any]]:
    """90 or 100, and the context in which to launch; or UnsupportedDeviceError.

    Tensors on the host are for the emulated GPU: the one that is active, or, where there is no
    other GPU, a Blackwell.
    """
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if (major, minor) == (9, 0) or major == 10:
            return 90 if major == 9 else 100, torch.cuda.device(device)
        found = f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}"
    else:
        from triton_ext.emulator.driver import active_gpu, emulate

        gpu = active_gpu()
        if device.type == "cpu" and gpu is not None:
            return gpu.arch, nullcontext()
        if device.type == "cpu" and not torch.cuda.is_available():
            return 100, emulate("sm_100")
        found = f"the tensors are on {device}"
    raise UnsupportedDeviceError(
        "triton_ext.matmul needs an NVIDIA Hopper (compute capability 9.0) or Blackwell (10.x) GPU,"
        f" or an emulated one (triton_ext.emulate): {found}. Use torch.matmul here."
    )


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _tma_strides(matrix: torch.Tensor) -> tuple[int, int] | None:
    """The strides under which TMA can read a matrix row by row, or None if it cannot.

    The stride of a dimension of size 1 is never used, so any legal one will do.
    """
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    multiple = _TMA_ALIGNMENT // matrix.element_size()
    if rows == 1:
        row_stride = _rounded_up(columns, multiple)
    if columns > 1 and column_stride != 1:
        return None
    if row_stride < columns or row_stride % multiple or matrix.data_ptr() % _TMA_ALIGNMENT:
        return None
    return row_stride, 1


def _aligned_matrix(like: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """An uninitialised matrix whose rows start at multiples of 16 bytes, as TMA needs."""
    multiple = _TMA_ALIGNMENT // like.element_size()
    return like.new_empty((rows, _rounded_up(columns, multiple)))[:, :columns]


def _operand(matrix: torch.Tensor, k_dim: int) -> tuple[torch.Tensor, tuple[int, int], Major]:
    """A matrix that TMA can read, with its contiguous dimension last; its strides; its major-ness.

    A matrix that TMA can read neither by rows nor by columns is copied.
    """
    for candidate, contiguous_dim in ((matrix, 1), (matrix.T, 0)):
        strides = _tma_strides(candidate)
        if strides is not None:
            return candidate, strides, "K" if contiguous_dim == k_dim else "MN"
    copied = _aligned_matrix(matrix, *matrix.shape)
    copied.copy_(matrix)
    return copied, (copied.stride(0), 1), "K" if k_dim == 1 else "MN"


_gluon_layout = functools.lru_cache(maxsize=1024)(to_gluon)
_constants = functools.lru_cache(maxsize=1024)(kernel_constants)


def _descriptor(matrix: torch.Tensor, strides: tuple[int, int], tile: TileLayouts) -> Any:
    return TensorDescriptor(
        matrix,
        list(matrix.shape),
        list(strides),
        list(tile.tma_shape),
        _gluon_layout(tile.tma_encoding),
    )


def _check(a: torch.Tensor, b: torch.Tensor) -> None:
    for name, tensor in (("a", a), ("b", b)):
        if not isinstance(tensor, torch.Tensor):
            raise LayoutError(name, type(tensor).__name__, "must be a torch.Tensor")
        if tensor.dim() != 2:
            raise LayoutError(f"{name}.shape", tuple(tensor.shape), "must have 2 dimensions")
        if tensor.dtype not in _ELEMENT_TYPES:
            legal = " or ".join(map(str, _ELEMENT_TYPES))
            raise LayoutError(f"{name}.dtype", tensor.dtype, f"must be {legal}")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise LayoutError(
                f"{name}.requires_grad",
                True,
                "no gradient flows through this function yet; call it under torch.no_grad(),"
                " or on detached tensors",
            )
    if a.dtype != b.dtype:
        raise LayoutError("b.dtype", b.dtype, f"must be that of a, {a.dtype}")
    if a.device != b.device:
        raise LayoutError("b.device", str(b.device), f"must be that of a, {a.device}")
    if a.shape[1] != b.shape[0]:
        raise LayoutError(
            "b.shape", tuple(b.shape), f"its first dimension must be K = {a.shape[1]}, as in a"
        )


def matmul(a: torch.Tensor, b: torch.Tensor, *, config: MatmulConfig | None = None) -> torch.Tensor:
    """``a @ b`` on the tensor cores, with fp32 accumulation.

    Args:
        a: (M, K), fp16 or bf16, on a Hopper or Blackwell GPU; row-major or column-major. Other
            strides, or rows that do not start at multiples of 16 bytes, cost a copy. On the host:
            on the emulated GPU that is active (`triton_ext.emulate`), or, where there is no GPU,
            on an emulated Blackwell; exact, and slow.
        b: (K, N), likewise.
        config: the tile; chosen from the problem's size if None. Its architecture, type and
            major-nesses must be those of the problem.

    Returns:
        (M, N), of the operands' type, contiguous.

    Raises:
        UnsupportedDeviceError: the tensors are on another device.
        LayoutError: shapes, types or devices do not fit, or a gradient is asked for.
    """
    _check(a, b)
    arch, on_the_gpu = _gpu(a.device)
    (m, k), n = a.shape, b.shape[1]
    if not (m and n and k):
        return a.new_zeros((m, n))
    a_matrix, a_strides, a_major = _operand(a, k_dim=1)
    b_matrix, b_strides, b_major = _operand(b, k_dim=0)
    problem = (arch, _ELEMENT_TYPES[a.dtype], a_major, b_major)
    if config is None:
        config = choose_config(*problem, m, n, k)
    elif (config.arch, config.element_type, config.a_major, config.b_major) != problem:
        raise LayoutError("config", config, f"(arch, type, a_major, b_major) must be {problem}")
    out = _aligned_matrix(a, m, n)
    tiles = -(-m // config.block_m) * -(-n // config.block_n)
    with on_the_gpu:
        kernel_for(config)[(tiles,)](
            _descriptor(a_matrix, a_strides, config.a_layouts),
            _descriptor(b_matrix, b_strides, config.b_layouts),
            _descriptor(out, (out.stride(0), 1), config.c_layouts),
            **_constants(config),
            **LAUNCH_OPTIONS,
        )
    return out.contiguous()
