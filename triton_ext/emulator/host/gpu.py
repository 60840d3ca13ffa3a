"""The emulated GPU: its settings, and what ran on it so far."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from triton_ext.emulator.clients.breakpoints import Breakpoint, Breakpoints, Stop
from triton_ext.emulator.clients.schedules.verdict import BrokenSchedule, Verdict
from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import EmulationError
from triton_ext.emulator.host.allocated import allocated, permutations
from triton_ext.emulator.host.clocks import Timed
from triton_ext.emulator.host.devices import EmulatedGpus
from triton_ext.emulator.host.run import prepare, register_buffers
from triton_ext.emulator.host.scheduling import scheduled, start
from triton_ext.emulator.host.warned import warn_of
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.limits import Limits
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.observers import Observer, combined
from triton_ext.emulator.state.buffers import named, with_variables
from triton_ext.emulator.state.checks import DEFAULT_CHECKS, Checks
from triton_ext.emulator.state.leniencies import Taken
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.hardware.architecture import CAPABILITIES, WARP_THREADS, Capability
from triton_ext.ptx.parse import parse_ptx


@dataclass
class EmulatedGpu(Timed):
    """The GPU that `emulate` makes: its settings, and what ran on it so far.

    Attributes:
        arch: the compute capability, times ten: 90, 100, 120.
        schedule: "eager", "lazy" or "random": when asynchronous work is done; or a witness's file.
        schedules: "all": every schedule is judged, by the eager one.
        explain_wait: the line whose waits are explained then.
        seed: the random schedule's.
        observer: told of what happens.
        idle: kernels are compiled, and counted, but do not run.
        buffers: tensors and arrays that every kernel may reach, besides its arguments.
        limits: how long a launch may take.
        checks: what is a fault.
        launches: how many kernels ran, or would have run.
        steps: instructions executed, each for all threads of a block that were at it together.
        verdicts: what is known of all schedules, of each launch that was judged.
        said: whether it was said that they stand for time.
        taken: what was undefined and run as hardware runs it, by the rule's name: see
            `triton_ext.emulator.state.leniencies`.
        device: its number, if there are several GPUs.
        peers: all of them, or None.
    """

    arch: int
    schedule: str | Path = "eager"
    seed: int = 0
    observer: Observer | None = None
    idle: bool = False
    buffers: Sequence[Any] = ()
    limits: Limits = field(default_factory=Limits)
    checks: Checks = DEFAULT_CHECKS
    schedules: str | None = None
    explain_wait: str | None = None
    launches: int = 0
    steps: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    said: bool = False
    taken: dict[str, Taken] = field(default_factory=dict)
    device: int = 0
    peers: EmulatedGpus | None = field(default=None, repr=False)
    _breakpoints: Breakpoints | None = field(default=None, repr=False)

    def launch(
        self,
        program: Program,
        *,
        grid: tuple[int, int, int],
        cluster: tuple[int, int, int] | None,
        args: Sequence[Any],
        dynamic_smem_bytes: int,
        memory: GlobalMemory,
        names: Sequence[str],
        block: tuple[int, int, int] | None = None,
        cubin: bytes | None = None,
        ttgir: Path | None = None,
        variables: Mapping[str, int] | None = None,
    ) -> None:
        """Run a kernel to its end.

        Args:
            block: the threads of a block; None if the PTX says it.
            cubin: what ptxas made of it, if that is known; for its time.
            ttgir: what the PTX was made of, for the names and layouts of its buffers.
            variables: where the module's variables are, if they outlive the launch.

        Raises:
            EmulationError: what the kernel does wrong; `BrokenSchedule`: in another schedule.
        """
        if self.peers is not None:
            self.peers.memory.admit(self.device, memory)
        register_buffers(memory, self.buffers)
        launch = prepare(
            program,
            grid=grid,
            block=block or program.kernel.directives.get("reqntid", (WARP_THREADS,)),
            cluster=cluster,
            args=args,
            dynamic_smem_bytes=dynamic_smem_bytes,
            memory=memory,
            names=names,
            checks=self.checks,
            variables=variables,
        )
        if self.peers is not None:
            launch = self.peers.on_device(self.device, launch)
        if ttgir is not None:
            launch = replace(
                launch,
                allocated=functools.partial(allocated, ttgir, program.arch),
                permutations=functools.cache(functools.partial(permutations, ttgir)),
            )
        launch = replace(launch, binary=cubin)
        number = self.launches
        schedule = scheduled(self.schedule, self.seed + number, self.schedules, number)
        observer = combined([self.observer, self._breakpoints, self.clock])
        machine = Machine(program, launch, schedule, observer, self.limits)
        self.launches += 1
        try:
            if self.peers is not None:
                self.peers.execute(self.device, machine)
            else:
                start(
                    machine,
                    every=self.schedules == "all",
                    launches=number,
                    explain_wait=self.explain_wait,
                )
        except EmulationError as error:
            error.message = named(error.message, launch.buffers, launch.buffers_start)
            if program.of_cuda:
                error.message = with_variables(error.message, launch.storage)
            raise
        finally:
            self.steps += machine.steps
            new = [each for name, each in machine.taken.items() if name not in self.taken]
            self.taken |= {each.rule.name: each for each in new}
            warn_of(new)
        if machine.verdict is not None:
            self.verdicts.append(machine.verdict)
            if machine.verdict.witness is not None:
                raise BrokenSchedule(machine.verdict)

    @property
    def capability(self) -> Capability:
        """What it has."""
        return CAPABILITIES[self.arch]

    def of_thread(self) -> EmulatedGpu:
        """The GPU that the calling thread launches on: this one."""
        return self

    def select(self, device: Any) -> None:
        """Let the calling thread launch on another device, as ``torch.cuda.set_device`` does."""
        if self.peers is not None:
            self.peers.select(getattr(device, "index", device))

    def break_at(self, location: str, callback: Callable[[Stop], None]) -> Breakpoint:
        """Call `callback` whenever warps come to a line: with what their block's memories hold.

        Args:
            location: ``kernel.py:31``; the file by its name, or the end of its path.

        Returns:
            The breakpoint, which counts its hits. `emulate` warns of one that was never hit.

        Raises:
            LaunchError: not a file and a line.
        """
        found = Breakpoint.at(location, callback)
        if self._breakpoints is None:
            self._breakpoints = Breakpoints()
        self._breakpoints.all.append(found)
        return found

    def missed_breakpoints(self) -> list[str]:
        """Why each breakpoint that was never hit was not; each is told of once."""
        return [] if self._breakpoints is None else self._breakpoints.missed()

    def program(self, ptx: str, kernel: str | None = None) -> Program:
        """A decoded kernel of a PTX module, or its only one; decoded once."""
        return _decoded(ptx, kernel)


@functools.lru_cache(maxsize=256)
def _decoded(ptx: str, kernel: str | None) -> Program:
    return decode(parse_ptx(ptx), kernel)
