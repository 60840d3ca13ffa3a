"""``triton-ext run``: the kernels of a script, of CUDA C++ or of a program on the emulated GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from triton_ext.commands.common import Parsed, Seconds, Target, format_option, needing_kernels
from triton_ext.commands.programs import Kind, found_script, guessed, kind_of
from triton_ext.commands.run_options import Prediction, Schedules, Stops, Tracing


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
    help="What TMA brings into shared memory, and what tcgen05.mma adds up, must be read before"
    " another copy or product overwrites it.",
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
    arch: str, max_steps: int | None, stats: bool, form: str, script: str,
    arguments: tuple[str, ...], **options: Any,
) -> None:  # fmt: skip
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
    prediction, stops = Prediction.of(options), Stops.of(options)
    tracing, schedules = Tracing.of(options), Schedules.of(options)
    prediction.check()
    stops.check()
    tracing.check()
    schedules.check(prediction)
    if kind is Kind.PYTHON:
        with needing_kernels():
            import triton  # noqa: F401
    from triton_ext.commands.emulated_run import EmulatedRun
    from triton_ext.emulator.schedule.limits import MAX_STEPS
    from triton_ext.hardware.architecture import target_number
    from triton_ext.timeline.gpus import gpu_of

    target = target_number(guessed(script, kind) if arch == "auto" else arch)
    model = None
    if prediction.wanted:
        model = gpu_of(prediction.gpu_name or True, target, argument="--gpu")
        model = model.but(warm=prediction.warm)
    settings = {
        "schedule": schedules.schedule,
        "schedules": "all" if schedules.all_schedules else None,
        "explain_wait": schedules.explain_wait,
        "seed": schedules.seed,
        "max_steps": max_steps or MAX_STEPS,
        "time": model,
        "values": not prediction.no_values,
        **options,  # the timeout and what is checked: as `emulate` takes them
    }
    emulated = EmulatedRun(tracing, stops, schedules, prediction, form=form, stats=stats)
    emulated.execute(script, kind, arguments, target, settings)
