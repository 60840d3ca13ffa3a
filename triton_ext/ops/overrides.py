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
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from triton_ext.ops.device import active_emulator
from triton_ext.ops.suspension import here
from triton_ext.ops.torch_products import PRODUCTS

PAYS_AFTER = 0.05
"""How many seconds a drop-in must last for its kernels to be taken out when it ends: putting them
back takes 0.3 ms, and each product that passes through them 4 or 5 µs."""

_lock = threading.Lock()
_libraries: dict[str, torch.library.Library] = {}
_depth = 0
_since = 0.0


def _theirs(operator: str, key: str) -> Callable[..., Tensor] | None:
    """PyTorch's own way to make an operator for a device; None if it has no such operator: not all
    releases have all products, and not all builds of it make them.
    """
    if not torch._C._dispatch_has_kernel(operator):
        return None
    if torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator, key):
        found: Callable[..., Tensor] = torch.library.get_kernel(operator, key).call_boxed
        return found
    if key != "CPU":
        return None

    def refuse(*args: Any, **kwargs: Any) -> Tensor:
        raise NotImplementedError(f"Could not run '{operator}' on the host")

    return refuse


def _override(
    ours: Callable[..., Tensor | None], theirs: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """A kernel for the dispatcher: ours while a drop-in is active, where that makes the product."""

    def override(*args: Any, **kwargs: Any) -> Tensor:
        made = ours(*args, **kwargs) if _depth and not here.suspended else None
        return theirs(*args, **kwargs) if made is None else made

    return override


def _install(key: str) -> None:
    """Replace the kernels of a device; while no drop-in is active, they call those replaced."""
    if key in _libraries:
        return
    library = _libraries[key] = torch.library.Library("aten", "IMPL")
    # The keys of a call itself would be made into an object each time; a device's kernel, the last
    # that the dispatcher calls, does not look at them.
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*[Oo]verrid")
        for name, ours in PRODUCTS.items():
            kernel = _theirs(f"aten::{name}", key)
            if kernel is None:
                continue
            library.impl(name, _override(ours, functools.partial(kernel, keys)), key)


def _remove() -> None:
    """Put the kernels that were replaced back, if no other thread runs that could be within one:
    the dispatcher's tables are read without a lock. (While autograd's own threads run, so does the
    one that waits for them.)
    """
    if len(sys._current_frames()) == 1:
        for library in _libraries.values():
            library._destroy()
        _libraries.clear()


class DropIn:
    """What `drop_in` returns: active from the start, and a context manager that may be entered
    again, also within itself.
    """

    def __init__(self) -> None:
        self._holds = 0
        self._entered = False
        self._hold()

    def _hold(self) -> None:
        global _depth, _since
        with _lock:
            if not _depth:
                _since = time.monotonic()
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
            if holds and not _depth and time.monotonic() - _since > PAYS_AFTER:
                _remove()

    def close(self) -> None:
        """End it, unless that was done; other drop-ins stay active."""
        self._release(self._holds)

    def __enter__(self) -> DropIn:
        if self._entered or not self._holds:  # the first block has what the call began
            self._hold()
        self._entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self._release(min(self._holds, 1))


def drop_in() -> DropIn:
    """Send PyTorch's ``mm``, ``addmm``, ``bmm``, ``_scaled_mm``, ``_int_mm``, ``_grouped_mm`` and
    ``_scaled_grouped_mm`` to this project's kernels, and with them what is made of these:
    ``matmul``, ``@``, ``linear``, ``torch.nn.functional.scaled_mm``, ``grouped_mm`` and
    ``scaled_grouped_mm``, their gradients, what ``torch.compile`` leaves to the library, models in
    fp8, with scales by blocks, too, and mixtures of experts.

    ``with drop_in():`` does so in a block, ``drop_in()`` for good (or until ``close()`` of what it
    returns). It holds for all threads of the process, autograd's included; blocks may be nested and
    overlap, and it ends when the last one ends. A graph that is captured meanwhile keeps what it
    captured.

    Products of other types than fp16, bf16, fp8, int8 and (on Blackwell) fp4, and on devices
    without kernels, go where they went before; so do, on Hopper before Triton 3.9, those of fp8
    without ``use_fast_accum``.
    Addends, alpha and beta are applied within the kernel. Tensors on the host are taken while an
    emulated GPU is active (`triton_ext.emulate`).
    """
    return DropIn()
