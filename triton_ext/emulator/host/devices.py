"""Several emulated GPUs in one process: a thread for each, and memory that all of them reach."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, Protocol
from unittest import mock

from triton_ext.emulator.errors import LaunchError, PeerStopped
from triton_ext.emulator.host.device_memory import DeviceMemory
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.schedule.together import Together
from triton_ext.emulator.schedule.turns import Step
from triton_ext.emulator.state.block import Launch
from triton_ext.emulator.units.copy_engine import CopyStream
from triton_ext.emulator.units.history import History

MAX_DEVICES = 16
CHUNK = 1024
"""Bytes that a copy moves at a time."""


@contextlib.contextmanager
def compiling_in_turn() -> Iterator[None]:
    """Within it, threads that compile kernels do so one after the other.

    `ast.parse` must not run in several at once (CPython 3.11: "AST constructor recursion depth
    mismatch"); and what the first has compiled, the others find.
    """
    from triton.runtime.jit import JITFunction

    def locked(name: str) -> Any:
        lock, method = threading.RLock(), getattr(JITFunction, name)

        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            with lock:
                return method(*args, **options)

        return mock.patch.object(JITFunction, name, call)

    with locked("_do_compile"), locked("parse"):
        yield


class Gpu(Protocol):
    """What is known here of one emulated GPU.

    Attributes:
        launches, steps: see `triton_ext.emulator.host.gpu.EmulatedGpu`.
    """

    launches: int
    steps: int


class EmulatedGpus:
    """The GPUs that ``emulate(..., devices=N)`` makes.

    A thread launches on its current device: that of the innermost `device` that it is in, else 0.
    Launches of different devices run at the same time if they come from different threads, as those
    of `run` do. Within one device, one launch follows the other.

    Args:
        gpus: one for each device.
        schedule: that of launches and copies among each other.
        modes: what a thread that has a device enters.

    Attributes:
        memory: whose it is.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu],
        schedule: Schedule,
        modes: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> None:
        self.gpus, self._modes = list(gpus), modes
        self._together = Together(len(gpus), schedule)
        self._own = threading.local()
        self._history = History(len(gpus))
        self.memory = DeviceMemory(self._history)
        self._engines: dict[tuple[int, int], CopyStream] = {}

    @property
    def launches(self) -> int:
        """How many kernels ran, on all devices."""
        return sum(gpu.launches for gpu in self.gpus)

    @property
    def steps(self) -> int:
        """Instructions executed, on all devices."""
        return sum(gpu.steps for gpu in self.gpus)

    @property
    def current(self) -> int:
        """The device of the calling thread."""
        stack = getattr(self._own, "stack", None)
        return stack[-1] if stack else 0

    def of_thread(self) -> Any:
        """The GPU of the calling thread."""
        return self.gpus[self.current]

    # -------------------------------------------------------------------- threads

    @contextlib.contextmanager
    def device(self, number: int) -> Iterator[Any]:
        """Within it, the calling thread launches on this device; yields that device's own GPU.

        While a thread is in it, launches of other devices wait for what it may still launch.

        Raises:
            LaunchError: there is no such device.
        """
        self._known(number)
        stack = self._own.__dict__.setdefault("stack", [0])
        thread = threading.get_ident()
        error: BaseException | None = None
        stack.append(number)
        self._together.expect(number, thread)
        try:
            with self._modes():
                yield self.gpus[number]
        except BaseException as raised:
            error = raised
            raise
        finally:
            stack.pop()
            try:
                self._together.leave(number, thread, error)
            finally:
                self._together.settle(self._forget)

    def select(self, number: int) -> None:
        """Make a device the current one of the calling thread."""
        self._known(number)
        self._own.__dict__.setdefault("stack", [0])[-1] = number

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call a function for each device, in a thread of its own: `function(device)`.

        Returns:
            What the calls return, by device.

        Raises:
            Exception: what one of them raises first; the others are stopped then.
        """
        results: list[Any] = [None] * len(self.gpus)
        errors: list[BaseException] = []
        ready = threading.Barrier(len(self.gpus))

        def work(number: int) -> None:
            try:
                with self.device(number):
                    ready.wait()
                    results[number] = function(number)
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=work, args=(n,), daemon=True) for n in range(len(self.gpus))
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C
            self._together.stop(error)
            raise
        if errors:
            first = next((each for each in errors if not isinstance(each, PeerStopped)), errors[0])
            raise (first.__cause__ or first) if isinstance(first, PeerStopped) else first
        return results

    def barrier(self) -> None:
        """Wait until each device has come here, with its copies made, as after
        ``torch.cuda.synchronize()`` and a barrier of the hosts: all before it is ordered before all
        after it.

        Raises:
            PeerStopped: another device has failed.
        """
        self._together.meet(self.current, self._forget)

    def synchronize(self) -> None:
        """Wait for the copies of the current device. (Launches are done when they return.)"""
        device = self.current
        self._together.drain(device)
        for (owner, _), engine in self._engines.items():
            if owner == device:
                self._history.learn(device, engine.learned())

    def _forget(self) -> None:
        """All have met: what was is ordered before what comes."""
        self._engines.clear()
        self._history.forget()

    def _known(self, number: int) -> None:
        if (
            isinstance(number, bool)
            or not isinstance(number, int)
            or not 0 <= number < len(self.gpus)
        ):
            raise LaunchError(f"device {number!r}: must be in [0, {len(self.gpus)})")

    # --------------------------------------------------------------------- memory

    def symmetric(self, shape: Any, dtype: Any) -> list[Any]:
        """A zeroed tensor on each device, which all devices may access.

        Args:
            shape, dtype: as of ``torch.zeros``.

        Returns:
            The tensors, by device.
        """
        import torch

        tensors = [torch.zeros(shape, dtype=dtype) for _ in self.gpus]
        self.memory.open(tensors)
        return tensors

    def copy(
        self, target: Any, source: Any, *, flag: Any = None, value: int = 1, stream: int = 0
    ) -> None:
        """Let the copy engine of the current device copy a tensor, as ``cudaMemcpyAsync`` does.

        It does so when the schedule says, a piece after the other, while kernels run; behind the
        launches that have returned to this thread, and what the stream was given before.

        Args:
            target, source: contiguous tensors of one size, open to all or the device's own.
            flag: a tensor of one integer, to which `value` is written when all is copied, with a
                release at the scope of the system, as ``cuStreamWriteValue`` does; or None.
            stream: of this device; each is in order, they are not among each other.

        Raises:
            LaunchError: tensors that do not fit, or are not contiguous.
            MemoryFault: memory of another device that is not open.
        """
        device = self.current
        operand = partial(self.memory.operand, device)
        to, origin = operand("target", target), operand("source", source)
        if to[2] != origin[2]:
            raise LaunchError(f"copy: {origin[2]} bytes to {to[2]}")
        engine = self._engine(device, stream)
        steps = [Step(partial(engine.follow, self._history.known[device]))]
        for first in range(0, to[2], CHUNK):
            size = min(CHUNK, to[2] - first)
            part = (to[0], to[1] + first), (origin[0], origin[1] + first), size
            steps.append(Step(partial(engine.copy, *part)))
        if flag is not None:
            steps.append(Step(partial(engine.write_flag, *self.memory.flag(device, flag, value))))
        self._together.add(device, stream, steps)

    def wait(self, flag: Any, value: int = 1, *, stream: int = 0) -> None:
        """Let a stream of copies wait until a flag is at least `value`, as ``cuStreamWaitValue``
        does, with an acquire at the scope of the system. `flag`: a tensor of one integer."""
        engine = self._engine(self.current, stream)
        memory, first, _ = self.memory.flag(self.current, flag, value)
        step = Step(
            partial(engine.read_flag, memory, first),
            lambda: int(flag) >= value,
            f"waits until {memory.describe(first)} is {value}",
        )
        self._together.add(self.current, stream, [step])

    def _engine(self, device: int, stream: int) -> CopyStream:
        if (device, stream) not in self._engines:
            self._engines[device, stream] = CopyStream(self._history, device, stream)
        return self._engines[device, stream]

    def on_device(self, device: int, launch: Launch) -> Launch:
        """A launch among all others: with the numbers of its clusters, and what comes before it."""
        history = self._history
        first = history.number(device, launch.clusters)
        launch.memory.released = history.released
        known = history.known[device]
        return replace(launch, device=device, first_cluster=first, known=known, history=history)

    def execute(self, device: int, machine: Machine) -> None:
        """Run a launch to its end, beside those of the other devices."""
        self._together.execute(device, machine)
        self._history.ended(device, machine.launch.first_cluster, machine.learned)
        self._together.settle(self._forget)
