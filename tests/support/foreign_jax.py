"""JAX's kernels, as published, on the emulated GPUs: a part of ``make foreign``.

``python tests/support/foreign_jax.py [--kernels A B] [--arch sm_90] [--folder PATH] [--write]``
makes an environment with JAX and its CUDA plugin in a folder of its own, unless it is there, and
runs the kernels of ``jax.experimental.pallas.ops.gpu`` (``foreign_hosts/jax_kernels.py``) at small
sizes as ``triton-ext run -- python program.py`` does: under three schedules, in both modes. Results
are compared with numpy. Where a kernel stops at a fault of its own, it is run once more with one
line changed. What was run with the same sources of ours is not run again, and ``--minutes`` leaves
the rest for the next time, as in `foreign`; ``--write`` puts the rows into the part of
``docs/reference/foreign.md`` on JAX. It ends with status 1 if a kernel neither comes out right nor
stops at a fault that is mended; else with 3 if something is left.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from foreign import PAGE, RIGHT, put, table, table_row
from foreign_cuda import HOSTS, MODES, SCHEDULES, cut, is_as_it_should, words
from foreign_rows import UNFINISHED, Rows, add_options, digest
from sites import ROOT

from triton_ext.emulator.errors import EmulationError, UndefinedBehaviour
from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.emulate import emulated_gpus

JAX = "## JAX"
VERSION, TOKAMAX, NVCC = "0.12.0.1", "0.0.17", "13.5.37"
PACKAGES = (
    f"jax=={VERSION}", f"jaxlib=={VERSION}", f"tokamax=={TOKAMAX}", f"jax-cuda13-plugin=={VERSION}",
    f"jax-cuda13-pjrt=={VERSION}", f"nvidia-cuda-nvcc=={NVCC}", f"nvidia-nvvm=={NVCC}",
)  # fmt: skip
"""What is needed of ``jax[cuda13]``: no library of NVIDIA's, and ptxas."""
PYTHON = "python3.12"
BOTH = (
    "plain_jit", "plain_dot", "softmax", "layer_norm", "rms_norm", "mha", "decode_attention",
    "paged_attention",
)  # fmt: skip
TOKAMAX_KERNELS = (
    "tokamax_attention", "tokamax_attention_causal", "tokamax_attention_backward",
    "tokamax_ragged_dot", "tokamax_gated_linear_unit",
)  # fmt: skip
KERNELS = {
    "sm_90": (
        *BOTH, "hopper_matmul", "hopper_matmul_clusters", "hopper_mixed_type_matmul",
        "attention_mgpu", "attention_mgpu_causal", "attention_mgpu_backward",
        "attention_mgpu_pipelined", "ragged_dot", "transposed_ragged_dot", *TOKAMAX_KERNELS,
    ),
    "sm_100": (
        *BOTH, "blackwell_matmul", "blackwell_matmul_pairs", "blackwell_ragged_dot",
        *TOKAMAX_KERNELS,
    ),
}  # fmt: skip
"""The kernels of each GPU."""
_ARRIVE = "    thread_in_warpgroup = arith.remui(thread_idx()"
MENDED = {
    "blackwell_matmul_pairs": (
        "jax.experimental.pallas.ops.gpu.blackwell_matmul_mgpu", 'thread_axis="wg")',
        'thread_axis="wg", cluster_axes=("x",))',
    ),
    "tokamax_ragged_dot": (
        "jax.experimental.mosaic.gpu.utils", _ARRIVE, f"    warpgroup_barrier()\n{_ARRIVE}",
    ),
}  # fmt: skip
"""Kernels with a fault of their own: the module, a part of it, and that without the fault."""


def install(folder: Path) -> Path:
    """The environment's Python; the environment is made unless it is there."""
    python = folder / "bin" / "python"
    if not python.exists():
        found = os.environ.get("FOREIGN_PYTHON") or shutil.which(PYTHON) or sys.executable
        subprocess.run([found, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, *PACKAGES[:3]], check=True)
        subprocess.run([*command, "--no-deps", *PACKAGES[3:]], check=True)
    return python


def _lines(command: list[str], gpu: Any, told: list[str], faults: list[Any]) -> Iterator[str]:
    """What a program prints, line by line, while it runs."""
    reading, writing = os.pipe()
    stdout = os.dup(1)

    def run() -> None:
        try:
            run_program(command, gpu, told.append, faults.append)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)

    os.dup2(writing, 1)
    os.close(writing)
    running = threading.Thread(target=run)
    running.start()
    with os.fdopen(reading, encoding="utf-8") as lines:
        yield from lines
    running.join()


def _verdict(line: str) -> tuple[str, str]:
    """A kernel, and `RIGHT` or how far it is wrong."""
    found = json.loads(line)
    wrong = [apart for apart, most in found["pairs"] if not apart <= most]
    return found["kernel"], f"wrong by {max(wrong):.1e}" if wrong else RIGHT


def run(
    python: Path, names: Iterable[str], arch: str, schedule: str, *, strict: bool, mended: bool
) -> Iterator[tuple[str, str, set[str], float]]:
    """For each kernel its verdict, what of it is undefined, and seconds.

    They run in one process, until one ends it; then the next has the rest.
    """
    left = list(names)
    while left:
        (gpu,) = emulated_gpus(arch, schedule=schedule, seed=1, strict=strict)
        told: list[str] = []
        faults: list[EmulationError] = []
        change = [f"--mended={json.dumps(MENDED[name])}" for name in left if mended]
        command = [str(python), str(HOSTS / "jax_kernels.py"), *change, *left]
        begun = time.monotonic()
        for line in _lines(command, gpu, told, faults):
            if not line.startswith('{"kernel"'):
                continue
            name, verdict = _verdict(line)
            left.remove(name)
            yield name, verdict, set(gpu.taken), time.monotonic() - begun
            gpu.taken.clear()
            begun = time.monotonic()
        if left:
            verdict = f"exit: {(told or [''])[-1]}"
            if faults:
                verdict = f"{type(faults[0]).__name__}: {str(faults[0]).splitlines()[0]}"
            yield left.pop(0), verdict, set(gpu.taken), time.monotonic() - begun


def rows_of(python: Path, names: Sequence[str], arch: str, kept: Rows) -> dict[str, Any]:
    """What becomes of the kernels on a GPU: a row of the table for each that could be run."""
    program = digest([HOSTS / "jax_kernels.py", *PACKAGES])
    runs = [(mode, schedule) for mode in MODES for schedule in SCHEDULES]
    found: dict[str, dict[tuple[str, str], Any]] = {name: {} for name in names}
    for each in runs:
        known = {name: kept.get(program, arch, name, *each) for name in names}
        left = [name for name, result in known.items() if result is None]
        if left and not kept.is_over:
            for name, verdict, undefined, seconds in run(
                python, left, arch, each[1], strict=MODES[each[0]], mended=False
            ):
                known[name] = [verdict, sorted(undefined), seconds]
                kept.put(known[name], program, arch, name, *each)
                print(arch, name, *each, verdict, flush=True, file=sys.stderr)
        for name, result in known.items():
            if result is not None:
                found[name][each] = result
    return {
        name: _row(results, functools.partial(_mended, python, name, arch, kept, program))
        for name, results in found.items()
        if len(results) == len(runs)
    }


def _mended(python: Path, name: str, arch: str, kept: Rows, program: str) -> bool:
    """Whether a kernel is right without its own fault."""
    if name not in MENDED:
        return False
    known = kept.get(program, arch, name, "mended")
    if known is None:
        runs = (
            run(python, [name], arch, schedule, strict=False, mended=True) for schedule in SCHEDULES
        )
        known = all(verdict == RIGHT for each in runs for _, verdict, *_ in each)
        kept.put(known, program, arch, name, "mended")
    return known


def _row(results: Mapping[tuple[str, str], Any], mended: Callable[[], bool]) -> dict[str, Any]:
    """A row of the table, of a kernel's results under each mode and schedule."""
    row: dict[str, Any] = {mode: {} for mode in MODES}
    for (mode, schedule), (verdict, *_) in results.items():
        row[mode][schedule] = verdict
    row["undefined"] = sorted({one for _, undefined, _ in results.values() for one in undefined})
    row["seconds"] = round(sum(seconds for *_, seconds in results.values()), 1)
    if set(row["hardware"].values()) != {RIGHT}:
        row["mended"] = mended()
    return row


def part(results: Mapping[tuple[str, str], dict[str, Any]], written: str) -> str:
    """The part of the page on JAX.

    Args:
        results: what was run now: rows by GPU and kernel.
        written: the part as it is; the other kernels keep their lines.
    """
    old, faults, rows = table(written, "GPU", "kernel"), [], []
    mended = {kernel: cells for (kernel, _), cells in table(written, "kernel", "mended by").items()}
    for arch, name in ((arch, name) for arch, names in KERNELS.items() for name in names):
        row = results.get((arch, name))
        if row is not None:
            theirs = bool(row.get("mended"))
            rows.append(
                (name, arch, words(row["hardware"]) + ", theirs" * theirs,
                 ", ".join(row["undefined"]), words(row["strict"]), row["seconds"])
            )  # fmt: skip
            if theirs:
                said = sorted({cut(each) for each in row["hardware"].values() if each != RIGHT})
                module, before, after = MENDED[name]
                change = f"`{after.strip()}` for `{before.strip()}` in `{module}`"
                faults.append((name, "; ".join(said), " ".join(change.split())))
        elif (arch, name) in old:
            rows.append(old[arch, name])
            if rows[-1][2].endswith(", theirs"):
                faults.append(mended[name])
    right, strict = (sum(row[at] == RIGHT for row in rows) for at in (2, 4))
    theirs = sum(row[2].endswith(", theirs") for row in rows)
    open_ = len(rows) - right - theirs
    return "\n".join([
        JAX,
        "",
        f"The kernels of `jax.experimental.pallas.ops.gpu` in JAX {VERSION} and those of tokamax"
        f" {TOKAMAX}, as their packages have them, compiled by JAX's CUDA plugin (Mosaic GPU, XLA's"
        " Triton, XLA itself) and run as `triton-ext run -- python program.py` does, by"
        " [`foreign_hosts/jax_kernels.py`](../../tests/support/foreign_hosts/jax_kernels.py):"
        " under the schedules eager, lazy and random, as hardware does and with `--strict`. Results"
        " are compared with numpy. Kernels that need several GPUs are left out.",
        "",
        f"{right} of {len(rows)} rows are right as published, {strict} of them with `--strict`,"
        f" too; {theirs} stop at a fault of their own, and are right without it."
        + (f" Of {open_} it has not been found out whose fault it is." if open_ else ""),
        "",
        table_row(("kernel", "GPU", "verdict", "undefined", "`--strict`", "seconds")),
        table_row(["---"] * 6),
        *map(table_row, rows),
        "",
        table_row(("kernel", "what it ends in", "mended by")),
        table_row(["---"] * 3),
        *map(table_row, faults),
        "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", nargs="*", help="names; all by default")
    parser.add_argument("--arch", nargs="*", default=list(KERNELS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".foreign" / "jax")
    add_options(parser)
    arguments = parser.parse_args()
    if "jax" not in (arguments.projects or ["jax"]):
        return 0
    folder: Path = arguments.folder.resolve()
    python = install(folder)
    kept = Rows(folder / "rows.jsonl", again=arguments.again, minutes=arguments.minutes)
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "TF_CPP_MIN_LOG_LEVEL": "3",
        "XLA_FLAGS": "--xla_gpu_experimental_autotune_backends=TRITON",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PLATFORMS": "cuda",
    }  # fmt: skip
    results, asked = {}, 0
    for arch in arguments.arch:
        names = [each for each in KERNELS[arch] if each in (arguments.kernels or KERNELS[arch])]
        with warnings.catch_warnings(), mock.patch.dict(os.environ, environment):
            warnings.simplefilter("ignore", UndefinedBehaviour)
            rows = rows_of(python, names, arch, kept)
        results |= {(arch, name): row for name, row in rows.items()}
        asked += len(names)
    if arguments.write:
        put(JAX, part(results, PAGE.read_text(encoding="utf-8").partition(JAX)[2]))
    if not all(map(is_as_it_should, results.values())):
        return 1
    return UNFINISHED if len(results) < asked else 0


if __name__ == "__main__":
    sys.exit(main())
