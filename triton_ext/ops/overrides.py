"""`drop_in`: PyTorch's own products by this project's kernels.

Three levels of PyTorch could be intercepted. A ``TorchFunctionMode`` sees calls from Python only:
not those of autograd's backward, nor of operators that call others, and it would have to do
autograd and autocast itself. A ``TorchDispatchMode`` sees everything, and slows every operator of
a model down. So the kernels that the dispatcher has for a device are replaced, of the few operators
that all products come down to: autograd, autocast, vmap and the compiler stay PyTorch's own, other
operators are not touched, and the backward products come here, too. A product that is left alone
costs the host 2 or 3 microseconds more, as it passes through Python.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from triton_ext.ops.device import Gpu, find_gpu
from triton_ext.ops.epilogue import broadcasts_to
from triton_ext.ops.products import batched_product, product
from triton_ext.ops.repeated import repeated_into, repeated_product, repeated_sum
from triton_ext.ops.types import EVERYWHERE

LOOP_MIN_FLOPS = 2**31
"""Where a batch takes a launch for each of its products, it is taken if each has that many
operations: the GPU then takes as long for one as the host takes to launch the next."""
LOOP_MAX_BATCH = 4
"""A batch of so few is taken there, whatever its size."""

_lock = threading.Lock()
_library = torch.library.Library("aten", "IMPL")
_installed: set[str] = set()
_depth = 0


def _takes(a: Tensor, b: Tensor, dims: int) -> bool:
    """Whether there are kernels for the product of two tensors that PyTorch would multiply."""
    if not (
        a.dtype in EVERYWHERE
        and a.dtype == b.dtype
        and a.dim() == b.dim() == dims
        and a.shape[:-2] == b.shape[:-2]
        and a.shape[-1] == b.shape[-2]
        and a.device == b.device
    ):
        return False
    if a.device.type == "cpu":  # never an emulated GPU that nobody asked for
        from triton_ext.emulator.host.driver import active_gpu

        if active_gpu() is None:
            return False
    return not isinstance(find_gpu(a.device), str)


def _takes_batch(a: Tensor, b: Tensor) -> bool:
    if not _takes(a, b, 3):
        return False
    if _is_hopper(a.device):
        return True
    (batch, m, k), n = a.shape, b.shape[2]
    return batch <= LOOP_MAX_BATCH or 2 * m * n * k >= LOOP_MIN_FLOPS


def _fits(out: Tensor, a: Tensor, b: Tensor) -> bool:
    """Whether an output need not be resized or converted."""
    return (
        out.dtype == a.dtype
        and out.device == a.device
        and out.shape == (*a.shape[:-1], b.shape[-1])
    )


def _takes_sum(addend: Tensor, a: Tensor, b: Tensor, alpha: Any) -> bool:
    """Whether a sum of an addend and ``alpha * (a @ b)`` is taken.

    An alpha may be there to keep the product in range, so it must be applied before the product is
    rounded; with 0, PyTorch does not look at a and b.
    """
    return (
        _takes(a, b, 2)
        and (alpha == 1 or (alpha != 0 and _is_hopper(a.device)))
        and addend.dtype == a.dtype
        and addend.device == a.device
        and broadcasts_to(addend, (a.shape[0], b.shape[1]))
    )


def _is_hopper(device: torch.device) -> bool:
    """Whether a GPU's kernels make batches in one launch, and do more than multiply."""
    gpu = find_gpu(device)
    return isinstance(gpu, Gpu) and gpu.arch == 90


def _sum(
    addend: Tensor, a: Tensor, b: Tensor, beta: Any, alpha: Any, out: Tensor | None = None
) -> Tensor:
    """``beta * addend + alpha * (a @ b)``."""
    if beta == 1 and addend.shape == b.shape[1:]:
        return product(a, b, addend, alpha=alpha, out=out)
    return product(a, b, residual=addend, beta=beta, alpha=alpha, out=out)


def _mm(original: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in EVERYWHERE:
        made = repeated_product(a, b)
        if made is not None:
            return made
    return product(a, b) if _takes(a, b, 2) else original(a, b)


def _mm_out(original: Callable[..., Tensor], a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    made = repeated_into(a, b, out)
    if made is not None:
        return made
    if _takes(a, b, 2) and _fits(out, a, b):
        return product(a, b, out=out)
    return original(a, b, out=out)


def _bmm(original: Callable[..., Tensor], a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in EVERYWHERE:
        made = repeated_product(a, b)
        if made is not None:
            return made
    return batched_product(a, b) if _takes_batch(a, b) else original(a, b)


def _bmm_out(original: Callable[..., Tensor], a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    if _takes_batch(a, b) and _fits(out, a, b):
        return batched_product(a, b, out=out)
    return original(a, b, out=out)


def _addmm(
    original: Callable[..., Tensor], addend: Tensor, a: Tensor, b: Tensor,
    *, beta: Any = 1, alpha: Any = 1,
) -> Tensor:  # fmt: skip
    if alpha == beta == 1 and a.dtype in EVERYWHERE:
        made = repeated_product(a, b, addend)
        if made is not None:
            return made
    if addend.dim() == 2 and beta != 0 and a.dtype in EVERYWHERE:
        made = repeated_sum(addend, a, b, beta, alpha)
        if made is not None:
            return made
    if _takes_sum(addend, a, b, alpha):
        return _sum(addend, a, b, beta, alpha)
    return original(addend, a, b, beta=beta, alpha=alpha)


def _addmm_out(
    original: Callable[..., Tensor], addend: Tensor, a: Tensor, b: Tensor,
    *, beta: Any = 1, alpha: Any = 1, out: Tensor,
) -> Tensor:  # fmt: skip
    if _takes_sum(addend, a, b, alpha) and _fits(out, a, b):
        return _sum(addend, a, b, beta, alpha, out)
    return original(addend, a, b, beta=beta, alpha=alpha, out=out)


def _addmm_in_place(
    original: Callable[..., Tensor], addend: Tensor, a: Tensor, b: Tensor,
    *, beta: Any = 1, alpha: Any = 1,
) -> Tensor:  # fmt: skip
    if _takes_sum(addend, a, b, alpha) and _fits(addend, a, b):
        return _sum(addend, a, b, beta, alpha, addend)
    return original(addend, a, b, beta=beta, alpha=alpha)


_OVERRIDES: dict[str, Callable[..., Tensor]] = {
    "mm": _mm,
    "mm.out": _mm_out,
    "bmm": _bmm,
    "bmm.out": _bmm_out,
    "addmm": _addmm,
    "addmm.out": _addmm_out,
    "addmm_": _addmm_in_place,
}


def _install(key: str) -> None:
    """Replace the kernels of a device, once; they pass everything on while no drop-in is active.

    They stay: taking them away would change the dispatcher's tables while other threads read them.
    """
    if key in _installed:
        return
    _installed.add(key)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")
        for name, ours in _OVERRIDES.items():
            kernel = torch.library.get_kernel(f"aten::{name}", key)

            def override(
                keys: Any,
                *args: Any,
                _ours: Callable[..., Tensor] = ours,
                _theirs: Callable[..., Tensor] = kernel.call_boxed,
                **kwargs: Any,
            ) -> Tensor:
                if not _depth:
                    return _theirs(keys, *args, **kwargs)
                return _ours(functools.partial(_theirs, keys), *args, **kwargs)

            _library.impl(name, override, key, with_keyset=True)


class DropIn:
    """What `drop_in` returns: a context manager that is entered already."""

    def __init__(self) -> None:
        global _depth
        self._active = True
        with _lock:
            if torch.cuda.is_available():
                _install("CUDA")
            from triton_ext.emulator.host.driver import active_gpu

            if active_gpu() is not None:
                _install("CPU")
            _depth += 1

    def close(self) -> None:
        """End it, unless that was done; other drop-ins stay active."""
        global _depth
        with _lock:
            _depth -= self._active
            self._active = False

    def __enter__(self) -> DropIn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def drop_in() -> DropIn:
    """Send PyTorch's ``mm``, ``addmm`` and ``bmm`` to this project's kernels, and with them what is
    made of these: ``matmul``, ``@``, ``linear``, their gradients, and what ``torch.compile`` leaves
    to the library.

    ``with drop_in():`` does so in a block, ``drop_in()`` for good (or until ``close()`` of what it
    returns). It holds for all threads of the process, autograd's included; blocks may be nested and
    overlap, and it ends when the last one ends. A graph that is captured meanwhile keeps what it
    captured.

    Products of other types than fp16 and bf16, and on devices without kernels, go where they went
    before; so do, on sm_100, batches of many small products (`LOOP_MIN_FLOPS`). On sm_90 addends,
    alpha and beta are applied within the kernel; on sm_100, after the product was rounded. Tensors
    on the host are taken while an emulated GPU is active (`triton_ext.emulate`).
    """
    return DropIn()
