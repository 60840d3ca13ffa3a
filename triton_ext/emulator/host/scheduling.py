"""How a launch is scheduled: by one schedule, by a witness's, or so that every one is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from triton_ext.emulator.clients.schedules.decide import decide
from triton_ext.emulator.clients.schedules.explain import explained
from triton_ext.emulator.clients.schedules.explanation import Place
from triton_ext.emulator.clients.schedules.guide import Guided, Plan
from triton_ext.emulator.clients.schedules.orders import Accesses, Choosing
from triton_ext.emulator.clients.schedules.peeks import peeks
from triton_ext.emulator.clients.schedules.verdict import Verdict
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.observers import combined
from triton_ext.emulator.schedule.parallel import execute
from triton_ext.emulator.schedule.schedule import Schedule


def check_schedules(
    schedule: str | Path,
    schedules: str | None,
    others: Mapping[str, object],
    explain_wait: str | None = None,
) -> None:
    """Refuse what does not go together.

    Args:
        explain_wait: the line whose waits are explained.
        others: further arguments by their names; those that are given (true) do not go with all.

    Raises:
        LaunchError: all schedules are asked for and one is chosen, or another argument is given; a
            wait is to be explained, and they are not.
    """
    if schedules not in (None, "all"):
        raise LaunchError(f"schedules = {schedules!r}: must be 'all', or None for one")
    if explain_wait is not None:
        Place.parse(explain_wait)
        if schedules is None:
            raise LaunchError("explain_wait: needs schedules='all'")
    if schedules is None:
        return
    if schedule != "eager":
        why = f"schedule = {schedule!s}: schedules='all' judges by the eager one; leave it out"
        raise LaunchError(why)
    for name, given in others.items():
        if given:
            raise LaunchError(f"schedules='all' judges one launch of one GPU: leave {name} out")


def unexplained(verdicts: Sequence[Verdict], explain_wait: str) -> str:
    """Says that no launch has executed a wait at a line; "" if one has, or is broken."""
    if any(each.explained is not None or each.witness is not None for each in verdicts):
        return ""
    return f"explain_wait = {explain_wait!r}: nothing that waits, and no fence, was executed there"


def scheduled(
    schedule: str | Path, seed: int = 0, schedules: str | None = None, launches: int = 0
) -> Schedule:
    """The schedule of a launch.

    Args:
        schedule: its name, or the file of a witness.
        seed: of the random one.
        schedules: "all", or None.
        launches: how many launches of the program come before.

    Raises:
        LaunchError: there is no such schedule, or all are asked for and one is chosen.
    """
    check_schedules(schedule, schedules, {})
    if isinstance(schedule, Path):
        plan = Plan.read(schedule)
        if plan.launch != launches:
            return Schedule()
        return Choosing(plan.lines, plan.choices) if plan.lines else Guided(plan)
    return Schedule(schedule, seed)


def start(
    machine: Machine, *, every: bool = False, launches: int = 0, explain_wait: str | None = None
) -> None:
    """Run a launch to its end, by its schedule, or to judge every one.

    Args:
        every: judge every one.
        launches: how many launches of the program come before.
        explain_wait: the line whose waits are explained, if every one is judged.

    Raises:
        EmulationError: what the kernel does wrong.
    """
    if every and explain_wait is not None:
        machine.verdict = explained(machine, execute, launches, Place.parse(explain_wait))
        return
    if every:
        machine.verdict = decide(machine, execute, launches)
        return
    schedule = machine.schedule
    if isinstance(schedule, (Guided, Choosing)):
        told = schedule.recorder if isinstance(schedule, Guided) else Accesses(schedule)
        machine.observer = combined([machine.observer, told])
        machine.options.failing = peeks(machine.program)  # as when it was found
    execute(machine)
