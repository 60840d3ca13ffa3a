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

from triton_ext.ops.device import active_emulator, find_gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue, broadcasts_to, sum_epilogue
from triton_ext.ops.plans import find
from triton_ext.ops.products import product
from triton_ext.ops.types import HALF_TYPES

_lock = threading.Lock()
_library = torch.library.Library("aten", "IMPL")
_installed: set[str] = set()
_depth = 0


def _takes(
    dims: int, a: Tensor, b: Tensor, addend: Tensor | None, alpha: float, out: Tensor | None
) -> bool:
    """Whether there are kernels for the product of two tensors that PyTorch would multiply.

    An alpha may be there to keep the product in range, so it must be applied before the product is
    rounded; with 0, PyTorch does not look at a and b. An output must not have to be resized or
    converted.
    """
    if not (
        a.dtype in HALF_TYPES
        and a.dtype == b.dtype
        and a.dim() == b.dim() == dims
        and a.shape[:-2] == b.shape[:-2]
        and a.shape[-1] == b.shape[-2]
        and a.device == b.device
    ):
        return False
    shape = (*a.shape[:-1], b.shape[-1])
    for other in (addend, out):
        if other is not None and (other.dtype != a.dtype or other.device != a.device):
            return False
    if addend is not None and not broadcasts_to(addend, shape):
        return False
    if out is not None and out.shape != shape:
        return False
    if a.device.type == "cpu" and active_emulator() is None:  # never one that nobody asked for
        return False
    return alpha != 0 and not isinstance(find_gpu(a.device), str)


def _product(
    dims: int,
    a: Tensor,
    b: Tensor,
    epilogue: Epilogue = NOTHING,
    addend: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor | None:
    """A product by our kernels; None if it is left to PyTorch.

    Args:
        addend: what the epilogue adds, or would add if beta were not 0.
    """
    ignored = addend is not None and not epilogue.tensors
    if a.dtype in HALF_TYPES and not ignored:
        plan = find(a, b, epilogue, out=out)
        if plan is not None and (out is None or not plan.overlaps(out, a, b, epilogue)):
            return plan.run(a, b, epilogue, out)
    if _takes(dims, a, b, addend, epilogue.alpha, out):
        return product(a, b, epilogue, out=out)
    return None


def _addmm(
    addend: Tensor, a: Tensor, b: Tensor,
    *, beta: float = 1, alpha: float = 1, out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    if a.dtype not in HALF_TYPES:  # factors of complex tensors are complex
        return None
    return _product(2, a, b, sum_epilogue(addend, b, beta, alpha), addend, out)


def _addmm_in_place(addend: Tensor, a: Tensor, b: Tensor, **factors: float) -> Tensor | None:
    return _addmm(addend, a, b, out=addend, **factors)


_mm, _bmm = (functools.partial(_product, dims) for dims in (2, 3))
PRODUCTS: dict[str, Callable[..., Tensor | None]] = {
    "mm": _mm,
    "mm.out": _mm,
    "bmm": _bmm,
    "bmm.out": _bmm,
    "addmm": _addmm,
    "addmm.out": _addmm,
    "addmm_": _addmm_in_place,
}
"""By the name of PyTorch's operator, with its arguments; None where that is left to PyTorch."""


def _install(key: str) -> None:
    """Replace the kernels of a device, once; while no drop-in is active, they call those replaced.

    They stay: taking them away would change the dispatcher's tables while other threads read them.
    """
    if key in _installed:
        return
    _installed.add(key)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")
        for name, ours in PRODUCTS.items():
            kernel = torch.library.get_kernel(f"aten::{name}", key)

            def override(
                keys: Any,
                *args: Any,
                _ours: Callable[..., Tensor | None] = ours,
                _theirs: Callable[..., Tensor] = kernel.call_boxed,
                **kwargs: Any,
            ) -> Tensor:
                made = _ours(*args, **kwargs) if _depth else None
                return _theirs(keys, *args, **kwargs) if made is None else made

            _library.impl(name, override, key, with_keyset=True)


class DropIn:
    """What `drop_in` returns: active from the start, and a context manager that may be entered
    again, also within itself.
    """

    def __init__(self) -> None:
        self._holds = 0
        self._entered = False
        self._hold()

    def _hold(self) -> None:
        global _depth
        with _lock:
            if torch.cuda.is_available() and torch.backends.cuda.is_built():  # not on the host
                _install("CUDA")
            if active_emulator() is not None:
                _install("CPU")
            self._holds += 1
            _depth += 1

    def _release(self, holds: int) -> None:
        global _depth
        with _lock:
            self._holds -= holds
            _depth -= holds

    def close(self) -> None:
        """End it, unless that was done; other drop-ins stay active."""
        self._release(self._holds)

    def __enter__(self) -> DropIn:
        if self._entered or not self._holds:  # the first block has what the call began
            self._hold()
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._release(min(self._holds, 1))


def drop_in() -> DropIn:
    """Send PyTorch's ``mm``, ``addmm`` and ``bmm`` to this project's kernels, and with them what is
    made of these: ``matmul``, ``@``, ``linear``, their gradients, and what ``torch.compile`` leaves
    to the library.

    ``with drop_in():`` does so in a block, ``drop_in()`` for good (or until ``close()`` of what it
    returns). It holds for all threads of the process, autograd's included; blocks may be nested and
    overlap, and it ends when the last one ends. A graph that is captured meanwhile keeps what it
    captured.

    Products of other types than fp16 and bf16, and on devices without kernels, go where they went
    before. Addends, alpha and beta are applied within the kernel. Tensors on the host are taken
    while an emulated GPU is active (`triton_ext.emulate`).
    """
    return DropIn()
