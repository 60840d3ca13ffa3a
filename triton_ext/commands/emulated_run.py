"""One run of ``triton-ext run``: a program on the emulated GPU, and what is said of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import triton_ext.timeline.client  # noqa: F401  # it predicts times, if that is asked for
from triton_ext.commands.common import (
    pass_failed,
    results_apart,
    run_script,
    say,
    script_failed,
    show,
    show_sarif,
)
from triton_ext.commands.programs import Kind, run_foreign
from triton_ext.commands.run_options import Prediction, Schedules, Stops, Tracing
from triton_ext.emulator.clients.breakpoints import Stop, described
from triton_ext.emulator.clients.statistics import Statistics
from triton_ext.emulator.clients.trace import Event, Trace, as_text
from triton_ext.emulator.errors import EmulationError, UndefinedBehaviour
from triton_ext.emulator.host.emulate import emulate, emulated_gpus
from triton_ext.emulator.host.gpu import EmulatedGpu
from triton_ext.emulator.host.scheduling import unexplained
from triton_ext.emulator.schedule.observers import Observer, Observers
from triton_ext.errors import PassError
from triton_ext.findings import Finding, annotate
from triton_ext.render.words import counted

_NOTHING_RAN = (
    "triton-ext: nothing is judged: no kernel ran on the emulated GPU of this command; what a"
    " script runs within emulate(...) runs on another one"
)


class EmulatedRun:
    """A run, and what is shown of it on stderr, on stdout and in files.

    Args:
        form: "text", "json" or "sarif".
        stats: whether what ran is counted.
    """

    def __init__(
        self,
        tracing: Tracing,
        stops: Stops,
        schedules: Schedules,
        prediction: Prediction,
        *,
        form: str,
        stats: bool,
    ) -> None:
        self.tracing, self.stops = tracing, stops
        self.schedules, self.prediction = schedules, prediction
        self.as_sarif = form == "sarif"
        self.form, self.stats = "text" if self.as_sarif else form, stats
        self.statistics = Statistics()
        self._ending = contextlib.ExitStack()

    def execute(
        self,
        script: str,
        kind: Kind,
        arguments: tuple[str, ...],
        target: int,
        settings: dict[str, Any],
    ) -> None:
        """Run it to its end. `settings`: as `emulate` takes them. Raises SystemExit: it failed,
        which has been told; UsageError: a line to stop at that is none."""
        observers = self._observers()
        if self.as_sarif:
            self._ending.enter_context(results_apart())
        if self.form == "json":  # which has it
            self._ending.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", UndefinedBehaviour)
        settings = {**settings, "observer": Observers(observers) if observers else None}
        with self._ending, _entered(kind, target, settings) as gpu:
            self._break(gpu)
            try:
                if kind is Kind.PYTHON:
                    run_script(script, arguments)
                else:
                    run_foreign(script, kind, arguments, gpu)
            except EmulationError as error:
                self._judged(gpu)
                say(f"triton-ext: {type(error).__name__}: {error}", err=True)
                self._found(gpu, error.findings())
                self._report(gpu, error.findings())
                raise SystemExit(1) from None
            except PassError as error:
                self._found(gpu, error.findings())
                self._report(gpu, error.findings())
                pass_failed(error)
            except click.UsageError:
                raise
            except (Exception, SystemExit) as error:
                failed = not isinstance(error, SystemExit) or bool(error.code)
                self._found(gpu, [], completed=not failed)
                self._report(gpu, [])
                if isinstance(error, SystemExit):
                    raise
                script_failed(error, script)
            self._judged(gpu)
            if self.schedules.all_schedules and not gpu.launches:
                say(_NOTHING_RAN, err=True)
            for text in gpu.missed_breakpoints():
                say(text, err=True)
            self._found(gpu, [])
        self._end(gpu)

    def _observers(self) -> list[Observer]:
        """What is told of each event: what counts, and what traces."""
        tracing = self.tracing
        found: list[Observer] = [self.statistics] if self.stats else []
        if not tracing.wanted:
            return found
        file = None
        if tracing.trace_file is not None:
            file = self._ending.enter_context(tracing.trace_file.open("w", encoding="utf-8"))

        def lines(event: Event, *, as_json: bool) -> list[str]:
            return [json.dumps(event)] if as_json else list(as_text(event))

        def write(event: Event) -> None:
            if tracing.trace:
                for line in lines(event, as_json=self.form == "json"):
                    say(line, err=True)
            if tracing.trace_file is not None and file is not None:
                as_json = tracing.trace_file.suffix == ".jsonl"
                file.writelines(f"{line}\n" for line in lines(event, as_json=as_json))

        trace = Trace(write, tracing.only, tracing.block or None)
        self._ending.callback(trace.close)
        return [*found, trace]

    def _break(self, gpu: EmulatedGpu) -> None:
        """Show what memories hold where warps come to the given lines."""
        left = iter(range(self.stops.hits))

        def look(stop: Stop) -> None:
            if next(left, None) is not None:
                for line in described(stop):
                    say(line, err=True)

        try:
            for location in self.stops.break_at:
                gpu.break_at(location, look)
        except EmulationError as error:
            raise click.BadParameter(str(error), param_hint="--break-at") from None

    def _judged(self, gpu: EmulatedGpu) -> None:
        """Say what is known of all schedules."""
        witness = self.schedules.witness
        for each in gpu.verdicts:
            if self.form == "json" or each.witness is None:
                show(self.form, err=True, json=each.as_object, text=each.lines)
            if witness is not None and each.witness is not None:
                plan = json.dumps(each.witness.plan.as_object(), indent=1)
                witness.write_text(plan + "\n", encoding="utf-8")
                say(f"{witness}: the schedule that breaks {each.kernel}", err=True)
        line = self.schedules.explain_wait
        if line is not None and (missing := unexplained(gpu.verdicts, line)):
            say(missing, err=True)

    def _found(self, gpu: EmulatedGpu, findings: list[Finding], *, completed: bool = True) -> None:
        """Annotate what was found, and write the log of it."""
        findings = [*findings, *(each.finding() for each in gpu.taken.values())]
        annotate(findings)
        if self.as_sarif:
            self._ending.close()  # and stdout is that of the command again
            show_sarif(findings, completed=completed)

    def _report(self, gpu: EmulatedGpu, findings: list[Finding]) -> None:
        """As JSON, how many faults of each kind there were, and what was undefined."""
        others = self.tracing.trace or self.prediction.time
        if self.form != "json" or (others and not self.stats):
            return
        faults = Counter(each.rule for each in findings if each.level == "error")
        undefined = [each.rule for each in gpu.taken.values()]
        counts = {
            "launches": gpu.launches,
            "faults": dict(faults),
            "undefined": {each.name: dataclasses.asdict(each) for each in undefined},
        }
        if self.stats:
            counts |= self.statistics.as_object()
        show(self.form, err=True, json=lambda: counts)

    def _end(self, gpu: EmulatedGpu) -> None:
        """What is said of a run that ended well."""
        if self.prediction.time:
            for each in gpu.timelines:
                show(self.form, err=True, json=each.as_object, text=each.lines)
        if self.prediction.timeline is not None:
            _write_timeline(self.prediction.timeline, gpu)
        self._report(gpu, [])
        if self.stats and self.form == "text":
            launches = counted(gpu.launches, "launch", "launches")
            say("\n".join([launches, *self.statistics.lines()]), err=True)


def _write_timeline(file: Path, gpu: EmulatedGpu) -> None:
    from triton_ext.timeline.page import chrome, html

    made = chrome if file.suffix == ".json" else html
    file.write_text(made(gpu.timeline), encoding="utf-8")
    say(f"{file}: {gpu.timeline.trace.name}", err=True)


@contextlib.contextmanager
def _entered(kind: Kind, target: int, settings: dict[str, Any]) -> Iterator[EmulatedGpu]:
    """The emulated GPU; for a Python script it is Triton's, too."""
    if kind is not Kind.PYTHON:
        yield emulated_gpus(target, **settings)[0]
        return
    with emulate(target, cuda_on_host=True, **settings) as gpu:
        yield gpu
