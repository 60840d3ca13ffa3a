"""``triton-ext run``: the kernels of a script, of CUDA C++ or of a program on the emulated GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from triton_ext.commands.common import (
    Parsed,
    Seconds,
    Target,
    format_option,
    needing_kernels,
    pass_failed,
    refuse,
    results_apart,
    run_script,
    say,
    script_failed,
    show,
    show_sarif,
)
from triton_ext.commands.programs import Kind, found_script, guessed, kind_of, run_foreign
from triton_ext.errors import PassError
from triton_ext.findings import Finding, annotate
from triton_ext.render.words import counted

if TYPE_CHECKING:
    from triton_ext.emulator.host.driver import EmulatedGpu


def _block(text: str) -> tuple[int, int, int]:
    given = [int(part) for part in text.split("x")]
    x, y, z = given + [0] * (3 - len(given))
    if min(x, y, z) < 0:
        raise ValueError
    return x, y, z


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    return text


def _schedule(text: str) -> str | Path:
    if text in ("eager", "lazy", "random"):
        return text
    if not Path(text).is_file():
        raise ValueError
    return Path(text)


@contextlib.contextmanager
def _entered(kind: Kind, target: int, settings: dict[str, Any]) -> Iterator[EmulatedGpu]:
    """The emulated GPU; for a Python script it is Triton's, too."""
    if kind is not Kind.PYTHON:
        import triton_ext.timeline.client  # noqa: F401  # it predicts times, if that is asked for
        from triton_ext.emulator.host.driver import emulated_gpus

        yield emulated_gpus(target, **settings)[0]
        return
    from triton_ext import emulate

    with emulate(target, cuda_on_host=True, **settings) as gpu:
        yield gpu


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--emulate",
    "arch",
    type=Target("auto"),
    default="auto",
    show_default=True,
    help="The GPU: sm_90, sm_100, sm_120 ... auto: sm_90 if the script names its operations, else"
    " sm_100.",
)
@click.option(
    "--schedule",
    type=Parsed("eager|lazy|random|FILE", _schedule, "schedule: eager, lazy, random or a file"),
    default="eager",
    show_default=True,
    help="When asynchronous work is done: at once, as late as possible, at any moment; or a file of"
    " --witness.",
)
@click.option(
    "--all-schedules",
    is_flag=True,
    help="Say of each launch whether every schedule is safe: proven, a witness, or not decided.",
)
@click.option(
    "--witness",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="With --all-schedules: write the schedule that breaks a kernel there, for --schedule.",
)
@click.option(
    "--explain-wait",
    metavar="LINE",
    help="With --all-schedules: what the waits at a line (matmul.py:31) tell, and which waits and"
    " fences of the kernel are redundant.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random schedule.")
@click.option(
    "--max-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="End a launch after so many instructions, with an error. [default: 100 million]",
)
@click.option(
    "--timeout",
    type=Seconds(min_open=True),
    metavar="SECONDS",
    help="End a launch after so many seconds, with an error."
    " [default: ten minutes in which no block has ended]",
)
@click.option(
    "--check-layouts/--no-check-layouts",
    default=True,
    show_default=True,
    help="What TMA has written must be read with the same swizzle and strides.",
)
@click.option(
    "--check-races/--no-check-races",
    default=True,
    show_default=True,
    help="Accesses to global memory must be ordered, by barriers and flags.",
)
@click.option(
    "--check-views/--no-check-views",
    default=True,
    show_default=True,
    help="Of a view's storage, kernels reach its elements alone.",
)
@click.option(
    "--check-empty",
    is_flag=True,
    help="Memory of torch.empty must have been written before a kernel reads it.",
)
@click.option(
    "--check-unread",
    is_flag=True,
    help="What TMA brings into shared memory must be read before another copy overwrites it.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="What is undefined, and relied on by published kernels, is a fault in place of a warning.",
)
@click.option(
    "--trace", is_flag=True, help="Print each instruction as it runs, with its values, on stderr."
)
@click.option(
    "--trace-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the trace there: .jsonl, an object for each event; any other name: text.",
)
@click.option(
    "--break-at",
    multiple=True,
    metavar="FILE:LINE",
    help="Show what the block's memories hold when warps come to that line, on stderr.",
)
@click.option(
    "--hits",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="With --break-at: how often.",
)
@click.option(
    "--only",
    type=Parsed("REGEX", _pattern, "regular expression"),
    default="",
    metavar="REGEX",
    help="Trace only instructions that match, as PTX text.",
)
@click.option(
    "--block",
    type=Parsed("BLOCK", _block, "block; write it as 0x0x0"),
    multiple=True,
    help="Trace only this block, as 0x0x0.",
)
@click.option("--time", is_flag=True, help="Predict what each kernel would take, on stderr.")
@click.option(
    "--gpu",
    "gpu_name",
    metavar="GPU",
    help="Where it would take that: H200 or H100 for sm_90, B200 for sm_100. [default: H200 or"
    " B200]",
)
@click.option(
    "--warm",
    is_flag=True,
    help="With --time: the L2 cache has what the kernels load, as if each was launched again.",
)
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the last kernel's predicted timeline: .html, or .json in Chrome's trace format.",
)
@click.option(
    "--no-values",
    is_flag=True,
    help="With --time: only what the prediction needs is run; outputs are garbage.",
)
@click.option("--stats", is_flag=True, help="At the end, count what ran, on stderr.")
@format_option(
    "text",
    "json",
    "sarif",
    text="json: at the end, on stderr, how many faults of each kind there were, and what was"
    " undefined and run as hardware runs it. sarif: a log of both on stdout, all else on stderr.",
)
@click.argument("script", type=click.Path(dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    arch: str,
    schedule: str | Path,
    all_schedules: bool,
    witness: Path | None,
    explain_wait: str | None,
    max_steps: int | None,
    trace: bool,
    trace_file: Path | None,
    break_at: tuple[str, ...],
    hits: int,
    only: str,
    block: tuple[tuple[int, int, int], ...],
    time: bool,
    gpu_name: str | None,
    warm: bool,
    timeline: Path | None,
    no_values: bool,
    stats: bool,
    form: str,
    script: str,
    arguments: tuple[str, ...],
    **options: Any,  # seed, timeout and what is checked: as `emulate` takes them
) -> None:
    """Run a Python script whose Triton and Gluon kernels execute on the emulated GPU; or a file of
    CUDA C++ (.cu), or a program that has PTX in it.

    Kernels are compiled by the real compiler for the target, and their PTX runs on the memory of
    the host; to a script, "cuda" means the host. What the hardware would leave undefined is an
    error; in a job of GitHub Actions it is an annotation, too.

    \b
    Examples:
      triton-ext run --emulate sm_100 matmul.py
      triton-ext run --emulate sm_90 --schedule random --seed 7 kernel.py --size 512
      triton-ext run --trace --only 'tcgen05|mbarrier' --block 0x0x0 matmul.py
      triton-ext run --break-at matmul.py:31 matmul.py
      triton-ext run --stats --format json matmul.py
      triton-ext run --all-schedules --witness broken.json matmul.py
      triton-ext run --schedule broken.json matmul.py
      triton-ext run --all-schedules --explain-wait matmul.py:31 matmul.py
      triton-ext run --emulate sm_100 --format sarif matmul.py > matmul.sarif
      triton-ext run --emulate sm_90 --time --timeline matmul.html matmul.py
      triton-ext run --emulate sm_100 kernel.cu 512
      triton-ext run --emulate sm_90 -- ./program --size 512
    """
    script = found_script(script)
    kind = kind_of(script)
    if timeline is not None:
        if timeline.suffix not in (".html", ".json"):
            reason = f"{timeline}: must end in .html or .json"
            raise click.BadParameter(reason, param_hint="--timeline")
        if not timeline.parent.is_dir():
            reason = f"{timeline}: there is no folder {timeline.parent}"
            raise click.BadParameter(reason, param_hint="--timeline")
    timed = time or timeline is not None
    if no_values and not timed:
        raise click.UsageError("--no-values is for predicting time: give --time, too")
    if warm and not timed:
        raise click.UsageError("--warm is for predicting time: give --time, too")
    if gpu_name is not None and not timed:
        raise click.UsageError("--gpu is for predicting time: give --time, too")
    if not break_at:
        refuse({"--hits": hits != 1}, "without --break-at")
    if not trace and trace_file is None:
        refuse({"--only": bool(only), "--block": bool(block)}, "without --trace or --trace-file")
    if schedule != "random":
        refuse({"--seed": options["seed"] != 0}, f"with --schedule {schedule}, which draws nothing")
    if all_schedules:
        chosen = {f"--schedule {schedule}": schedule != "eager", "--time": timed}
        refuse(chosen, "with --all-schedules, which judges by the eager one")
    else:
        asked = {"--witness": witness is not None, "--explain-wait": explain_wait is not None}
        refuse(asked, "without --all-schedules")
    if timed and schedule != "eager":
        raise click.UsageError(f"--schedule {schedule}: time is predicted with the eager one alone")
    if kind is Kind.PYTHON:
        with needing_kernels():
            import triton  # noqa: F401
    from triton_ext.emulator.clients.breakpoints import Stop, described
    from triton_ext.emulator.clients.schedules.explanation import Place
    from triton_ext.emulator.clients.statistics import Statistics
    from triton_ext.emulator.clients.trace import Event, Trace, as_text
    from triton_ext.emulator.errors import EmulationError, UndefinedBehaviour
    from triton_ext.emulator.host.scheduling import unexplained
    from triton_ext.emulator.schedule.machine import MAX_STEPS
    from triton_ext.emulator.schedule.observers import Observer, Observers
    from triton_ext.hardware.architecture import target_number
    from triton_ext.timeline.gpus import gpu_of

    if explain_wait is not None:
        try:
            Place.parse(explain_wait)
        except EmulationError as error:
            raise click.BadParameter(str(error), param_hint="--explain-wait") from None

    def judged() -> None:
        """Say what is known of all schedules."""
        for each in gpu.verdicts:
            if form == "json" or each.witness is None:
                show(form, err=True, json=each.as_object, text=each.lines)
            if witness is not None and each.witness is not None:
                plan = json.dumps(each.witness.plan.as_object(), indent=1)
                witness.write_text(plan + "\n", encoding="utf-8")
                say(f"{witness}: the schedule that breaks {each.kernel}", err=True)
        if explain_wait is not None and (missing := unexplained(gpu.verdicts, explain_wait)):
            say(missing, err=True)

    as_sarif, ending = form == "sarif", contextlib.ExitStack()
    if as_sarif:
        form = "text"

    def found(findings: list[Finding], *, completed: bool = True) -> None:
        findings = [*findings, *(each.finding() for each in gpu.taken.values())]
        annotate(findings)
        if as_sarif:
            ending.close()  # and stdout is that of the command again
            show_sarif(findings, completed=completed)

    def report(findings: list[Finding]) -> None:
        if form != "json" or ((trace or time) and not stats):
            return
        faults = Counter(each.rule for each in findings if each.level == "error")
        undefined = [each.rule for each in gpu.taken.values()]
        described = {
            "launches": gpu.launches,
            "faults": dict(faults),
            "undefined": {each.name: dataclasses.asdict(each) for each in undefined},
        }
        if stats:
            described |= statistics.as_object()
        say(json.dumps(described, indent=2), err=True)

    target = target_number(guessed(script, kind) if arch == "auto" else arch)
    model = None
    if timed:
        model = gpu_of(gpu_name or True, target, argument="--gpu").but(warm=warm)

    def lines(event: Event, *, as_json: bool) -> list[str]:
        return [json.dumps(event)] if as_json else list(as_text(event))

    def write(event: Event) -> None:
        if trace:
            for line in lines(event, as_json=form == "json"):
                say(line, err=True)
        if kept is not None:
            kept.writelines(f"{line}\n" for line in lines(event, as_json=in_json))

    def look(stop: Stop) -> None:
        if next(left, None) is not None:
            for line in described(stop):
                say(line, err=True)

    left = iter(range(hits))
    in_json = trace_file is not None and trace_file.suffix == ".jsonl"
    kept = None
    if trace_file is not None:
        kept = ending.enter_context(trace_file.open("w", encoding="utf-8"))
    statistics = Statistics()
    parts: list[Observer] = [statistics] if stats else []
    if trace or trace_file is not None:
        tracing = Trace(write, only, block or None)
        ending.callback(tracing.close)
        parts.append(tracing)
    if as_sarif:
        ending.enter_context(results_apart())
    if form == "json":  # which has it
        ending.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", UndefinedBehaviour)
    settings = {
        "schedule": schedule,
        "schedules": "all" if all_schedules else None,
        "explain_wait": explain_wait,
        "observer": Observers(parts) if parts else None,
        "max_steps": max_steps or MAX_STEPS,
        "time": model,
        "values": not no_values,
        **options,
    }
    with ending, _entered(kind, target, settings) as gpu:
        try:
            for place in break_at:
                gpu.break_at(place, look)
        except EmulationError as error:
            raise click.BadParameter(str(error), param_hint="--break-at") from None
        try:
            if kind is Kind.PYTHON:
                run_script(script, arguments)
            else:
                run_foreign(script, kind, arguments, gpu)
        except EmulationError as error:
            judged()
            say(f"triton-ext: {type(error).__name__}: {error}", err=True)
            found(error.findings())
            report(error.findings())
            raise SystemExit(1) from None
        except PassError as error:
            found(error.findings())
            report(error.findings())
            pass_failed(error)
        except click.UsageError:
            raise
        except (Exception, SystemExit) as error:
            failed = not isinstance(error, SystemExit) or bool(error.code)
            found([], completed=not failed)
            report([])
            if isinstance(error, SystemExit):
                raise
            script_failed(error, script)
        judged()
        for text in gpu.missed_breakpoints():
            say(text, err=True)
        found([])
    if time:
        for each in gpu.timelines:
            show(form, err=True, json=each.as_object, text=each.lines)
    if timeline is not None:
        from triton_ext.timeline.page import chrome, html

        made = chrome if timeline.suffix == ".json" else html
        timeline.write_text(made(gpu.timeline), encoding="utf-8")
        say(f"{timeline}: {gpu.timeline.trace.name}", err=True)
    report([])
    if stats and form == "text":
        say("\n".join([counted(gpu.launches, "launch", "launches"), *statistics.lines()]), err=True)
