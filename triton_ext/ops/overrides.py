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

from triton_ext.ops.call import Call, call_of
from triton_ext.ops.device import active_emulator, find_gpu, require_gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue, broadcasts_to, sum_epilogue
from triton_ext.ops.plans import recall, signature
from triton_ext.ops.products import offered_product, product
from triton_ext.ops.suspension import is_suspended
from triton_ext.ops.types import FP8_TYPES, HALF_TYPES, WIDE_TYPES, has_all_fp8

_lock = threading.Lock()
_library = torch.library.Library("aten", "IMPL")
_installed: set[str] = set()
_depth = 0


def _fits(dims: int, a: Tensor, b: Tensor, out: Tensor | None) -> bool:
    """Whether two tensors, of types that there are kernels for, can be multiplied on a device that
    has them. An output must not have to be resized.
    """
    if not (
        a.dim() == b.dim() == dims
        and a.shape[:-2] == b.shape[:-2]
        and a.shape[-1] == b.shape[-2]
        and a.device == b.device
    ):
        return False
    shape = (*a.shape[:-1], b.shape[-1])
    if out is not None and (out.shape != shape or out.device != a.device):
        return False
    if a.device.type == "cpu" and active_emulator() is None:  # never one that nobody asked for
        return False
    return not isinstance(find_gpu(a.device), str)


def _takes(dims: int, call: Call, addend: Tensor | None) -> bool:
    """Whether there are kernels for the product of two tensors that PyTorch would multiply.

    An alpha may be there to keep the product in range, so it must be applied before the product is
    rounded; with 0, PyTorch does not look at a and b. An output must not have to be converted.
    """
    a, b, epilogue, _, out, *_ = call
    if a.dtype not in HALF_TYPES or a.dtype != b.dtype or epilogue.alpha == 0:
        return False
    if not _fits(dims, a, b, out):
        return False
    if addend is not None and not (
        addend.dtype == a.dtype and addend.device == a.device and broadcasts_to(addend, call.shape)
    ):
        return False
    return out is None or out.dtype == a.dtype


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
    call = call_of((a, b, epilogue, None, out, False, None))
    ignored = addend is not None and not epilogue.tensors
    if a.dtype in HALF_TYPES and not ignored:
        plan = recall(signature(call))
        if plan is not None and (out is None or not plan.overlaps(call)):
            is_left = plan.torch_is_faster and epilogue.residual is None
            return None if is_left else plan.run(call)
    if _takes(dims, call, addend):
        return offered_product(call, leaves=True)
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


def _scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False, *, out: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """A product of fp8, with scales of whole operands or of rows and columns."""
    dtype = out_dtype or (a if out is None else out).dtype
    common = use_fast_accum and a.dtype == b.dtype
    if (
        not {a.dtype, b.dtype} <= FP8_TYPES
        or dtype not in WIDE_TYPES
        or scale_result is not None
        or not _fits(2, a, b, out)
        or not (common or has_all_fp8(require_gpu(a.device).arch))
        or (out is not None and out.dtype != dtype)
    ):
        return None
    (m, _), (_, n) = a.shape, b.shape
    vectors = (
        (scale_a, torch.float32, (m, 1)),
        (scale_b, torch.float32, (1, n)),
        (bias, dtype, (n,)),
    )
    for vector, kind, shape in vectors:
        if vector is not None and not (
            vector.dtype == kind
            and vector.device == a.device
            and vector.is_contiguous()
            and (vector.shape == shape or (vector.numel() == 1 and vector is not bias))
        ):
            return None
    promoted = not use_fast_accum
    epilogue = Epilogue(bias, scale_a=scale_a, scale_b=scale_b, promoted=promoted)
    return product(Call(a, b, epilogue, dtype, out))


_mm, _bmm = (functools.partial(_product, dims) for dims in (2, 3))
PRODUCTS: dict[str, Callable[..., Tensor | None]] = {
    "mm": _mm,
    "mm.out": _mm,
    "bmm": _bmm,
    "bmm.out": _bmm,
    "addmm": _addmm,
    "addmm.out": _addmm,
    "addmm_": _addmm_in_place,
    "_scaled_mm": _scaled_mm,
    "_scaled_mm.out": _scaled_mm,
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
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                continue  # not all builds of PyTorch multiply fp8
            kernel = torch.library.get_kernel(f"aten::{name}", key)

            def override(
                keys: Any,
                *args: Any,
                _ours: Callable[..., Tensor | None] = ours,
                _theirs: Callable[..., Tensor] = kernel.call_boxed,
                **kwargs: Any,
            ) -> Tensor:
                made = _ours(*args, **kwargs) if _depth and not is_suspended() else None
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
    """Send PyTorch's ``mm``, ``addmm``, ``bmm`` and ``_scaled_mm`` to this project's kernels, and
    with them what is made of these: ``matmul``, ``@``, ``linear``, their gradients, what
    ``torch.compile`` leaves to the library, and models in fp8.

    ``with drop_in():`` does so in a block, ``drop_in()`` for good (or until ``close()`` of what it
    returns). It holds for all threads of the process, autograd's included; blocks may be nested and
    overlap, and it ends when the last one ends. A graph that is captured meanwhile keeps what it
    captured.

    Products of other types than fp16, bf16 and fp8, and on devices without kernels, go where they
    went before; so do, on Hopper before Triton 3.9, those of fp8 without ``use_fast_accum``.
    Addends, alpha and beta are applied within the kernel. Tensors on the host are taken while an
    emulated GPU is active (`triton_ext.emulate`).
    """
    return DropIn()
