"""What ``triton-ext run`` is told, by what it is about, and what does not go together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from triton_ext.commands.common import refuse


@dataclass(frozen=True)
class Tracing:
    """Which instructions are shown as they run, and where.

    Attributes:
        only: a regular expression of their text.
        blocks: only these; all if there are none.
    """

    shown: bool
    file: Path | None
    only: str
    blocks: tuple[tuple[int, int, int], ...]

    @property
    def wanted(self) -> bool:
        """Whether any is shown."""
        return self.shown or self.file is not None

    def check(self) -> None:
        """Raises UsageError: there is nothing to choose from."""
        if not self.wanted:
            chosen = {"--only": bool(self.only), "--block": bool(self.blocks)}
            refuse(chosen, "without --trace or --trace-file")


@dataclass(frozen=True)
class Stops:
    """The lines at which memory is shown, and how often."""

    locations: tuple[str, ...]
    hits: int

    def check(self) -> None:
        """Raises UsageError: there are no lines."""
        if not self.locations:
            refuse({"--hits": self.hits != 1}, "without --break-at")


@dataclass(frozen=True)
class Prediction:
    """What is predicted of the time.

    Attributes:
        gpu: on which GPU; None for the first of the architecture.
        warm: the L2 cache has what kernels load.
        timeline: a file for the last kernel's, or None.
        values: whether results are computed.
    """

    shown: bool
    gpu: str | None
    warm: bool
    timeline: Path | None
    values: bool

    @property
    def wanted(self) -> bool:
        """Whether any is."""
        return self.shown or self.timeline is not None

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
        chosen = {"--no-values": not self.values, "--warm": self.warm}
        chosen["--gpu"] = self.gpu is not None
        for option, is_given in chosen.items():
            if is_given and not self.wanted:
                raise click.UsageError(f"{option} is for predicting time: give --time, too")


@dataclass(frozen=True)
class Schedules:
    """In which order things happen.

    Attributes:
        name: a schedule, or a witness's file.
        every: each launch is judged for all of them.
        witness: a file for the schedule that breaks a kernel, or None.
        explain_wait: the line whose waits are explained, or None.
        seed: the random one's.
    """

    name: str | Path
    every: bool
    witness: Path | None
    explain_wait: str | None
    seed: int

    def check(self, prediction: Prediction) -> None:
        """Raises UsageError: there is one seed, witness or time too many."""
        if self.name != "random":
            why = f"with --schedule {self.name}, which draws nothing"
            refuse({"--seed": self.seed != 0}, why)
        if self.every:
            chosen = {f"--schedule {self.name}": self.name != "eager", "--time": prediction.wanted}
            refuse(chosen, "with --all-schedules, which judges by the eager one")
        else:
            chosen = {
                "--witness": self.witness is not None,
                "--explain-wait": self.explain_wait is not None,
            }
            refuse(chosen, "without --all-schedules")
        if prediction.wanted and self.name != "eager":
            why = "time is predicted with the eager one alone"
            raise click.UsageError(f"--schedule {self.name}: {why}")
        if self.explain_wait is not None:
            from triton_ext.emulator.clients.schedules.explanation import Place
            from triton_ext.emulator.errors import EmulationError

            try:
                Place.parse(self.explain_wait)
            except EmulationError as error:
                raise click.BadParameter(str(error), param_hint="--explain-wait") from None
