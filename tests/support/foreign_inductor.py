"""Inductor's Triton kernels for a GPU, made and launched without one.

`torch.compile` writes Triton for tensors of the host if it is told that Triton is there
(``cpu_backend``). The rest of it must take the host for the emulated GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._inductor.config as settings
from torch._dynamo.device_interface import CpuInterface
from torch._inductor.runtime import hints, triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner


class _Host(CpuInterface):  # type: ignore[misc]
    """The host as the only GPU."""

    @staticmethod
    def exchange_device(device: int) -> int:
        return 0

    maybe_exchange_device = exchange_device

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_raw_stream(device: int) -> int:
        return 0


@contextlib.contextmanager
def _for(capability: int) -> Iterator[None]:
    def create(device: Any) -> Any:
        return hints.DeviceProperties(
            type="cuda", index=0, multi_processor_count=132, cc=capability,
            major=capability // 10, regs_per_multiprocessor=65536,
            max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32,
        )  # fmt: skip

    with contextlib.ExitStack() as stack:
        stack.enter_context(settings.patch(
            cpu_backend="triton", force_disable_caches=True, compile_threads=1,
            use_static_triton_launcher=False,
        ))  # fmt: skip
        for where, name, value in (
            (hints.DeviceProperties, "create", create),
            (triton_helpers, "set_driver_to_cpu", lambda: None),
            (triton_helpers, "set_driver_to_gpu", lambda: None),
            (CachingAutotuner, "get_device_interface", lambda self: _Host),
        ):
            stack.enter_context(mock.patch.object(where, name, value))
        yield


def compiled(function: Callable[[], Any], capability: int) -> Any:
    """What a function gives once Inductor has compiled it for a GPU."""
    torch._dynamo.reset()
    with _for(capability):
        return torch.compile(function, dynamic=False)()
