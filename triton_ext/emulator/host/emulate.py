"""`emulate`: make an emulated GPU the one that Triton's kernels run on."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.clocks import clock_of
from triton_ext.emulator.host.devices import MAX_DEVICES, EmulatedGpus, compiling_in_turn
from triton_ext.emulator.host.driver import installed
from triton_ext.emulator.host.entered import current_gpu, entered
from triton_ext.emulator.host.gpu import EmulatedGpu
from triton_ext.emulator.host.run import register_buffers
from triton_ext.emulator.host.scheduling import check_schedules
from triton_ext.emulator.schedule.limits import MAX_STEPS, Limits
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.schedule.schedule import Schedule
from triton_ext.emulator.state.checks import Checks
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.hardware.architecture import target_number
from triton_ext.layouts.triton.ending import end_quietly
from triton_ext.tracebacks import trimmed


def emulated_gpus(
    arch: Any,
    *,
    devices: int | None = None,
    time: Any = None,
    values: bool = True,
    max_steps: int = MAX_STEPS,
    timeout: float | None = None,
    **settings: Any,
) -> list[EmulatedGpu]:
    """The GPUs that `emulate` enters, of its arguments; `settings` are those not named here. Raises
    LayoutError, LaunchError: see `emulate`."""
    limits, arch = Limits(max_steps, timeout), target_number(arch)
    schedule = settings.get("schedule", "eager")
    clock = None if time in (None, False) else clock_of(time, arch, values)
    if clock is not None and schedule != "eager":
        raise LaunchError(f"schedule {schedule!r}: time is predicted with the eager schedule alone")
    if clock is None and not values:
        raise LaunchError("values=False is for predicting time: give time=, too")
    if devices is not None and not (type(devices) is int and 1 <= devices <= MAX_DEVICES):
        raise LaunchError(f"devices = {devices!r}: must be in [1, {MAX_DEVICES}]")
    if devices is not None and clock is not None:
        raise LaunchError("time is predicted of one GPU: leave devices= out")
    others = {"devices=": devices is not None, "time=": clock}
    check_schedules(schedule, settings.get("schedules"), others, settings.get("explain_wait"))
    if not isinstance(schedule, Path):
        Schedule(schedule, settings.get("seed", 0))
    checks = Checks.taken_from(settings)
    return [
        EmulatedGpu(arch, limits=limits, clock=clock, device=device, checks=checks, **settings)
        for device in range(devices or 1)
    ]


@overload
def emulate(
    arch: Any = "sm_100", *, devices: int, **options: Any
) -> contextlib.AbstractContextManager[EmulatedGpus]: ...


@overload
def emulate(
    arch: Any = "sm_100", **options: Any
) -> contextlib.AbstractContextManager[EmulatedGpu]: ...


@contextlib.contextmanager  # type: ignore[misc]  # which options there are, only the next lines say
def emulate(
    arch: Any = "sm_100",
    *,
    devices: int | None = None,
    schedule: str | Path = "eager",
    schedules: str | None = None,
    explain_wait: str | None = None,
    seed: int = 0,
    observer: Observer | None = None,
    cuda_on_host: bool = False,
    idle: bool = False,
    buffers: Sequence[Any] = (),
    max_steps: int = MAX_STEPS,
    timeout: float | None = None,
    check_layouts: bool = True,
    check_races: bool = True,
    check_empty: bool = False,
    check_views: bool = True,
    strict: bool = False,
    check_unread: bool = False,
    time: Any = None,
    values: bool = True,
) -> Iterator[Any]:
    """Make an emulated GPU the one that Triton and Gluon kernels run on.

    Kernels are compiled by the real compiler for the target, and work on CPU tensors. A kernel
    reaches the memory that its arguments span, and that of tensors whose addresses lie in it.
    Emulated GPUs may be nested, and threads may each have their own. Yields the `EmulatedGpu`, or
    with `devices` the `EmulatedGpus`.

    Args:
        arch: "sm_90", "sm_100" or another one of `triton_ext.hardware.architecture.CAPABILITIES`.
        devices: so many GPUs, that reach each other's memory: see `EmulatedGpus`. None for one.
        schedule: when asynchronous work is done: "eager", "lazy" or "random"; or the path of a
            file: the schedule of a witness, which one launch follows.
        schedules: "all": run each launch once, and say what that tells of every schedule: see
            `EmulatedGpu.verdicts`. One that breaks the kernel is raised (`BrokenSchedule`). Needs
            the eager schedule, and one GPU.
        explain_wait: a line, ``kernel.py:31``: with schedules="all", the verdict of each launch
            that has waits there says what they tell, and which of the kernel's waits and fences are
            redundant.
        seed: the random schedule's.
        observer: told of what happens, such as a `Trace` or `Statistics`.
        cuda_on_host: let torch code that says ``device="cuda"`` work, on the host's memory.
        idle: compile the kernels that are launched, but run none: outputs stay as they were.
        buffers: tensors and arrays that every kernel may reach, besides.
        max_steps, timeout: instructions, and seconds, after which a launch ends in `LimitReached`:
            see `triton_ext.emulator.run_ptx`.
        check_layouts: what TMA has written must be read in the same layout: see `run_ptx`, too.
        check_races: accesses to global memory must be ordered: see there.
        check_empty: memory of ``torch.empty`` and its like, made within the block, must be written
            before a kernel reads it (`UninitializedRead`); needs `check_races`. Off by default:
            many programs read rows of padding, and drop the result.
        check_views: a launch reaches the elements of the tensors that it is given, and not what
            else is in their storage. Off for kernels that use the padding behind a view.
        strict: what is undefined by the letter, and relied on by published kernels, is a fault, in
            place of a warning: see `run_ptx`, too.
        check_unread: what TMA brings, and what products add up, must be read before it is
            overwritten: see there.
        time: a GPU ("H200", "H100"; "B200" for sm_100; True for the first of them; there are none
            of other architectures) or a `triton_ext.timeline.gpus.Gpu`: predict what each launch
            would take there: see `EmulatedGpu.timeline` and `EmulatedGpu.seconds`. Needs the eager
            schedule.
        values: False if time alone is asked for: of a kernel whose blocks do not talk to each
            other only those are run that are recorded, and the products of wgmma are left out;
            outputs are garbage then.

    Raises:
        LayoutError: an architecture or a GPU that is not known.
        LaunchError: another schedule, or an illegal limit or buffer.
    """
    from triton_ext.emulator.host.torch_cuda import MarkedEmpty, Redirected, cuda_on_the_host

    end_quietly()
    gpus = emulated_gpus(
        arch, devices=devices, schedule=schedule, schedules=schedules,
        explain_wait=explain_wait, seed=seed, observer=observer,
        idle=idle, buffers=buffers, max_steps=max_steps, timeout=timeout,
        check_layouts=check_layouts, check_races=check_races, check_empty=check_empty,
        check_views=check_views, strict=strict, check_unread=check_unread, time=time,
        values=values,
    )  # fmt: skip
    order = Schedule("eager" if isinstance(schedule, Path) else schedule, seed)

    def modes() -> contextlib.ExitStack:
        """What each thread enters for itself."""
        stack = contextlib.ExitStack()
        if cuda_on_host:
            stack.enter_context(Redirected())
        if check_empty:
            stack.enter_context(MarkedEmpty())
        return stack

    gpu: EmulatedGpu | EmulatedGpus = gpus[0]
    if devices is not None:
        gpu = EmulatedGpus(gpus, order, modes)
        for each in gpus:
            each.peers = gpu
    register_buffers(GlobalMemory(), buffers)
    with (
        entered(gpu, installed),
        cuda_on_the_host(current_gpu) if cuda_on_host else contextlib.nullcontext(),
        MarkedEmpty() if check_empty else contextlib.nullcontext(),
        contextlib.nullcontext() if devices is None else compiling_in_turn(),
        trimmed(),
    ):
        yield gpu
    for each in gpus:
        for text in each.missed_breakpoints():
            warnings.warn(text, stacklevel=3)  # at the program's `with`
