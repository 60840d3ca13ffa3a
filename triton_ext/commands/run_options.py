"""What ``triton-ext run`` is told, by what it is about, and what does not go together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from triton_ext.commands.common import refuse

_Own = TypeVar("_Own", bound="_Taken")


class _Taken:
    """Some of the command's options, in a value that calls them as the command's parameters."""

    @classmethod
    def of(cls: type[_Own], options: dict[str, Any]) -> _Own:
        """Take them out of all options."""
        return cls(**{each.name: options.pop(each.name) for each in fields(cast(Any, cls))})


@dataclass(frozen=True)
class Tracing(_Taken):
    """Which instructions are shown as they run, on stderr or in a file, and of which blocks."""

    trace: bool
    trace_file: Path | None
    only: str
    block: tuple[tuple[int, int, int], ...]

    @property
    def wanted(self) -> bool:
        """Whether any is shown."""
        return self.trace or self.trace_file is not None

    def check(self) -> None:
        """Raises UsageError: there is nothing to choose from."""
        if not self.wanted:
            chosen = {"--only": bool(self.only), "--block": bool(self.block)}
            refuse(chosen, "without --trace or --trace-file")


@dataclass(frozen=True)
class Stops(_Taken):
    """The lines at which memory is shown, and how often."""

    break_at: tuple[str, ...]
    hits: int

    def check(self) -> None:
        """Raises UsageError: there are no lines."""
        if not self.break_at:
            refuse({"--hits": self.hits != 1}, "without --break-at")


@dataclass(frozen=True)
class Prediction(_Taken):
    """What is predicted of the time, on which GPU (None: the first of the architecture)."""

    time: bool
    gpu_name: str | None
    warm: bool
    timeline: Path | None
    no_values: bool

    @property
    def wanted(self) -> bool:
        """Whether any is."""
        return self.time or self.timeline is not None

    def check(self) -> None:
        """Raises UsageError: no such file can be written, or there is no prediction."""
        if self.timeline is not None:
            reason = None
            if self.timeline.suffix not in (".html", ".json"):
                reason = "must end in .html or .json"
            elif not self.timeline.parent.is_dir():
                reason = f"there is no folder {self.timeline.parent}"
            if reason:
                raise click.BadParameter(f"{self.timeline}: {reason}", param_hint="--timeline")
        chosen = {"--no-values": self.no_values, "--warm": self.warm}
        chosen["--gpu"] = self.gpu_name is not None
        for option, is_given in chosen.items():
            if is_given and not self.wanted:
                raise click.UsageError(f"{option} is for predicting time: give --time, too")


@dataclass(frozen=True)
class Schedules(_Taken):
    """In which order things happen, and what is asked of all orders; `seed` is the random one's."""

    schedule: str | Path
    all_schedules: bool
    witness: Path | None
    explain_wait: str | None
    seed: int

    def check(self, prediction: Prediction) -> None:
        """Raises UsageError: there is one seed, witness or time too many."""
        if self.schedule != "random":
            why = f"with --schedule {self.schedule}, which draws nothing"
            refuse({"--seed": self.seed != 0}, why)
        if self.all_schedules:
            chosen = {
                f"--schedule {self.schedule}": self.schedule != "eager",
                "--time": prediction.wanted,
            }
            refuse(chosen, "with --all-schedules, which judges by the eager one")
        else:
            chosen = {
                "--witness": self.witness is not None,
                "--explain-wait": self.explain_wait is not None,
            }
            refuse(chosen, "without --all-schedules")
        if prediction.wanted and self.schedule != "eager":
            why = "time is predicted with the eager one alone"
            raise click.UsageError(f"--schedule {self.schedule}: {why}")
        if self.explain_wait is not None:
            from triton_ext.emulator.clients.schedules.explanation import Place
            from triton_ext.emulator.errors import EmulationError

            try:
                Place.parse(self.explain_wait)
            except EmulationError as error:
                raise click.BadParameter(str(error), param_hint="--explain-wait") from None
