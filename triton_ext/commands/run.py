"""``triton-ext run``: a script's Triton kernels on the emulated GPU."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from triton_ext.commands.common import ShapeType


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--emulate", "arch", default="sm_100", show_default=True, help="The GPU: sm_90 or sm_100."
)
@click.option(
    "--schedule",
    type=click.Choice(["eager", "lazy", "random"]),
    default="eager",
    show_default=True,
    help="When asynchronous work is done: at once, as late as possible, at any moment.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random schedule.")
@click.option("--trace", is_flag=True, help="Print each instruction as it runs, on stderr.")
@click.option(
    "--only", default="", metavar="REGEX", help="Trace only instructions that match, as PTX text."
)
@click.option("--block", type=ShapeType(), multiple=True, help="Trace only this block, as 0x0x0.")
@click.option("--stats", is_flag=True, help="At the end, count what ran, on stderr.")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    arch: str,
    schedule: str,
    seed: int,
    trace: bool,
    only: str,
    block: tuple[tuple[int, ...], ...],
    stats: bool,
    form: str,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Run a Python script whose Triton and Gluon kernels execute on the emulated GPU.

    Kernels are compiled by the real compiler for the target, and their PTX runs on the memory of
    the host; "cuda" means the host. What the hardware would leave undefined is an error.

    \b
    Examples:
      triton-ext run --emulate sm_100 matmul.py
      triton-ext run --emulate sm_90 --schedule random --seed 7 kernel.py --size 512
      triton-ext run --trace --only 'tcgen05|mbarrier' --block 0x0x0 matmul.py
      triton-ext run --stats --format json matmul.py
    """
    try:
        from triton_ext.emulator.host.driver import emulate
    except ImportError as error:
        raise click.ClickException(f"{error}; pip install 'triton-ext[kernels]'") from None
    from triton_ext.emulator.errors import EmulationError
    from triton_ext.emulator.schedule.observers import Observer, Observers, Statistics, Trace

    statistics = Statistics()
    parts: list[Observer] = [statistics] if stats else []
    if trace:
        blocks = [(x, y, z) for x, y, z in ((*each, 0, 0)[:3] for each in block)] or None
        parts.append(Trace(_writer(form), only, blocks))
    with emulate(
        arch,
        schedule=schedule,
        seed=seed,
        observer=Observers(parts) if parts else None,
        cuda_on_host=True,
    ) as gpu:
        try:
            _run_script(script, arguments)
        except EmulationError as error:
            click.echo(f"triton-ext: {type(error).__name__}: {error}", err=True)
            sys.exit(2)
    if stats:
        found = {"launches": gpu.launches, **statistics.as_object()}
        lines = [f"{gpu.launches} launches", *statistics.lines()]
        click.echo(json.dumps(found, indent=2) if form == "json" else "\n".join(lines), err=True)


def _writer(form: str) -> Callable[[str], None]:
    if form == "json":
        return lambda line: click.echo(json.dumps({"trace": line}), err=True)
    return lambda line: click.echo(line, err=True)


def _run_script(script: str, arguments: tuple[str, ...]) -> Any:
    """As ``python script arguments`` would."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        return runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
