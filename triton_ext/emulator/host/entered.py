"""Which emulated GPU the calling thread launches on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.devices import EmulatedGpus
from triton_ext.emulator.host.gpu import EmulatedGpu


class _Entered:
    """The emulated GPUs that are entered now, in whatever order threads enter and leave them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[tuple[int, EmulatedGpu | EmulatedGpus]] = []
        self._restore = contextlib.ExitStack()

    def current(self) -> EmulatedGpu | None:
        """The one that this thread entered last; else the last of any thread, for threads that a
        program starts inside of its ``with``."""
        now, own = self._all, threading.get_ident()
        mine = [gpu for thread, gpu in now if thread == own] or [gpu for _, gpu in now]
        return mine[-1].of_thread() if mine else None

    @contextlib.contextmanager
    def __call__(
        self,
        gpu: EmulatedGpu | EmulatedGpus,
        driver: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> Iterator[None]:
        """Within it `gpu` is entered. `driver`: installs Triton's driver for emulated GPUs. The
        first one to enter does so, the last one to leave ends it."""
        entry = threading.get_ident(), gpu
        with self._lock:
            if not self._all:
                self._restore.enter_context(driver())
            self._all = [*self._all, entry]
        try:
            yield
        finally:
            with self._lock:
                self._all = [each for each in self._all if each is not entry]
                if not self._all:
                    self._restore.close()


entered = _Entered()


def current_gpu() -> EmulatedGpu:
    """The emulated GPU that this thread entered last. Raises LaunchError: none is entered."""
    gpu = entered.current()
    if gpu is None:
        raise LaunchError("no emulated GPU is active: `with triton_ext.emulate(...)` is left")
    return gpu
