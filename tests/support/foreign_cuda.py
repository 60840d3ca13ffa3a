"""CUDA C++ of other projects, as published, on the emulated GPUs: a part of ``make foreign``.

``python tests/support/foreign_cuda.py [--projects A B] [--kernels K] [--folder PATH] [--write]``
fetches each project of `PROGRAMS` at its commit into a folder of its own, unless that is there,
compiles its unedited kernels with host programs of ours (``tests/support/foreign_hosts``), and runs
them at small sizes: under three schedules, in both modes, as ``triton-ext run -- program`` does.
Results are compared with sums of doubles. Where a kernel stops at a fault of its own, a copy with
that mended runs, too. What was run with the same sources of ours is not run again, and
``--minutes`` leaves the rest for the next time, as in `foreign`; ``--write`` puts the rows into the
part of ``docs/reference/foreign.md`` on CUDA C++. It ends with status 1 if a kernel neither comes
out right nor stops at a fault that is mended; else with 3 if something is left.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreign import CUDA, PAGE, RIGHT, put, table, table_row
from foreign_rows import UNFINISHED, Rows, add_options, digest
from sites import ROOT

from triton_ext.emulator.errors import EmulationError, UndefinedBehaviour
from triton_ext.emulator.host.cuda.library import build
from triton_ext.emulator.host.cuda.nvcc import compiler
from triton_ext.emulator.host.cuda.server import run_program
from triton_ext.emulator.host.emulate import emulated_gpus
from triton_ext.emulator.host.gpu import EmulatedGpu

HOSTS = Path(__file__).with_name("foreign_hosts")
SCHEDULES = ("eager", "lazy", "random")
MODES = {"hardware": False, "strict": True}


@dataclass(frozen=True)
class Project:
    """A repository, at one commit.

    Attributes:
        repository: its owner and name on GitHub.
        commit: which one.
        flags: nvcc's, as the project gives them; ``{folder}`` is where projects lie.
    """

    repository: str
    commit: str
    flags: str

    @property
    def name(self) -> str:
        return self.repository.partition("/")[2]


@dataclass(frozen=True)
class Program:
    """A kernel and its host program.

    Attributes:
        project: whose kernel it is.
        kernel: what the table calls it.
        arch: the architecture's number.
        host: the host program: C++, or a file of `HOSTS`.
        sizes: its arguments.
        flags: further ones of nvcc.
        file, mended: what ends the kernel's own fault: changes (text, the text in its place) of a
            file of the project's.
    """

    project: Project
    kernel: str
    arch: int
    host: str
    sizes: str
    flags: str = ""
    file: str = ""
    mended: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """For files."""
        return re.sub(r"\W+", "_", f"{self.project.name} {self.kernel}")


LEARN_CUDA = Project(
    "gau-nernst/learn-cuda", "1454f8b71499a68eacdbf44c08e36a7003d8ab99",
    "-O3 --expt-relaxed-constexpr",
)  # fmt: skip
THUNDERKITTENS = Project(
    "HazyResearch/ThunderKittens", "0b55588d2769dde0c7a9a606ffc015b0ca7a9551",
    "-std=c++20 -O3 --use_fast_math --expt-extended-lambda --expt-relaxed-constexpr -DNDEBUG"
    " -Xcompiler=-Wno-psabi -Xcompiler=-fno-strict-aliasing -I{folder}/ThunderKittens/include"
    " -I{folder}/ThunderKittens/prototype",
)  # fmt: skip
CUTLASS = Project(
    "NVIDIA/cutlass", "7107b05535f8977f5ecb9d01ee203205b1fd9bc4",
    "-std=c++17 -O2 --expt-relaxed-constexpr -I{folder}/cutlass/include"
    " -I{folder}/cutlass/tools/util/include -I{folder}/cutlass/examples/common",
)  # fmt: skip
DEEPGEMM = Project(
    "deepseek-ai/DeepGEMM", "54e22612409371d6364144b69086735beb54e98b",
    "-std=c++20 -O3 --expt-relaxed-constexpr --expt-extended-lambda"
    " --diag-suppress=39,161,174,177,186,940 -I{folder}/DeepGEMM/deep_gemm/include"
    " -I{folder}/cutlass/include",
)  # fmt: skip
FAST_CU = Project(
    "pranjalssh/fast.cu", "38eb642e0c081231d6f695978be63604bd7c689b",
    "-std=c++17 -O3 -DNDEBUG --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math"
    " -Xcompiler=-Wno-psabi -Xcompiler=-fno-strict-aliasing",
)  # fmt: skip


def _host(source: str, multiply: str, *macros: str) -> str:
    """A host program for a source whose own `main`, if it has one, is left aside.

    Args:
        multiply: what launches the kernel, of A, B, C, M, N, K.
        macros: others of ``matmul.h``, and their values.
    """
    defined = (f"MULTIPLY(A, B, C, M, N, K) {multiply}", *macros)
    lines = [f"#define main published_main\n#include <{source}>\n#undef main"]
    return "\n".join([*lines, *(f"#define {each}" for each in defined), '#include "matmul.h"\n'])


def _learn_cuda() -> Iterator[Program]:
    ordered = ("barrier.cluster.arrive.relaxed.aligned", "barrier.cluster.arrive.aligned")
    for name in ("0", "1a", "1b", "2a", "2b", "3", "4", "5", "6", "7a", "7c"):
        source = f"02e_matmul_sm100/matmul_v{name[0]}.cu"
        host = _host(source, f"matmul_v{name}(A, B, C, M, N, K)")
        yield Program(
            LEARN_CUDA, f"matmul_v{name}", 100, f"#include <torch/library.h>\n{host}",
            "256 256 256", file=source, mended=(ordered,) if name[0] == "7" else (),
        )  # fmt: skip


def _thunderkittens() -> Iterator[Program]:
    for arch, gpu, name, levels in ((90, "h100", "HOPPER", 8), (100, "b200", "BLACKWELL", 9)):
        for level in range(1, levels + 1):
            kernel = f"educational_{gpu}/level_{level:02}"
            element = "float" if level == 1 else "__nv_bfloat16"
            host = _host(
                f"kernels/gemm/{kernel}.cu", "matmul(A, B, C, N)", f"ELEMENT {element}", "B_ROWS"
            )
            size = 64 if level < 3 else 512 if arch == 100 and level > 5 else 256 >> (level == 3)
            sizes = f"{size} {size} {size}"
            yield Program(THUNDERKITTENS, kernel, arch, host, sizes, f"-DKITTENS_{name}")


def _cutlass() -> Iterator[Program]:
    folder, barrier = "examples/cute/tutorial", "__syncthreads();"
    fenced = f'asm volatile("fence.proxy.async.shared::cta;"); {barrier}'
    waits = "cp_async_wait<0>();"
    one = "cutlass::half_t(1.f), A, K, B, K, cutlass::half_t(0.f), C, M"
    for name, mended in (("wgmma_sm90", ((waits, f"{waits} {fenced}"),)), ("wgmma_tma_sm90", ())):
        source = f"{folder}/hopper/{name}.cu"
        host = _host(
            source, f"gemm('T', 'N', M, N, K, {one})", "ELEMENT cutlass::half_t", "C_COLUMNS"
        )
        sizes = "128 128 128" if mended else "256 128 256"
        yield Program(CUTLASS, name, 90, host, sizes, file=source, mended=mended)
    for name, sizes, mended in (
        ("01_mma_sm100", "128 256 64", ((barrier, fenced),)),
        ("02_mma_tma_sm100", "128 256 64", ()),
        ("03_mma_tma_multicast_sm100", "512 1024 64", ()),
        ("04_mma_tma_2sm_sm100", "512 1024 64", ()),
        ("05_mma_tma_epi_sm100", "512 1024 64", ()),
    ):
        source = f"{folder}/blackwell/{name}.cu"
        host = f"#include <{source}>\n"
        yield Program(CUTLASS, name, 100, host, sizes, file=source, mended=mended)


def _deepgemm() -> Iterator[Program]:
    for arch, kind, sizes in (
        (90, "bf16", "64 128 256"),
        (90, "fp8", "64 256 256"),
        (100, "bf16", "128 256 256"),
        (100, "fp8", "128 256 256"),
    ):
        host = (HOSTS / f"deep_gemm_sm{arch}_{kind}.cu").read_text(encoding="utf-8")
        yield Program(DEEPGEMM, f"sm{arch}_{kind}_gemm", arch, host, sizes)
        if kind == "bf16":
            pair = sizes.replace("64", "128", 1) if arch == 90 else sizes.replace("128", "256", 1)
            yield Program(
                DEEPGEMM,
                f"sm{arch}_{kind}_gemm, a pair of blocks",
                arch,
                host,
                pair,
                "-DMULTICAST=2",
            )


def _fast_cu() -> Iterator[Program]:
    barrier = 'asm volatile("bar.sync'
    fenced = f'asm volatile("fence.proxy.async.shared::cta;"); {barrier}'
    last = 'cp.async.bulk.commit_group;");\n            }\n        }'
    meet = f'{last} asm volatile("barrier.cluster.arrive; barrier.cluster.wait;");'
    for number in (2, 3, 4, 5, 11, 12):  # the others take 16 x 8 tiles, or none
        more = "" if number == 2 else ", nullptr"
        source = f"examples/matmul/matmul_{number}.cuh"
        host = _host(source, f"runKernel{number}(M, N, K, A, B, C{more})")
        sizes = "128 128 256" if number < 5 else "128 256 256" if number == 5 else "256 256 256"
        yield Program(
            FAST_CU, f"matmul_{number}", 90, f'#include "fast_cu.h"\n{host}', sizes, file=source,
            mended=((barrier, fenced), (last, meet)) if number > 10 else (),
        )  # fmt: skip


PROGRAMS = [*_learn_cuda(), *_thunderkittens(), *_deepgemm(), *_cutlass(), *_fast_cu()]


def fetch(project: Project, folder: Path) -> None:
    """Fetch a project at its commit, unless it is there."""
    at = folder / project.name
    if (at / ".git" / "HEAD").exists() and any(at.glob("[!.]*")):
        return
    git = ["git", "-C", str(at)]
    url = f"https://github.com/{project.repository}"
    subprocess.run(["git", "init", "--quiet", str(at)], check=True)
    subprocess.run([*git, "fetch", "--quiet", "--depth", "1", url, project.commit], check=True)
    subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)


def compiled(program: Program, folder: Path, made: Path, *, mended: bool = False) -> Path:
    """The program, compiled; with ``mended``, from a copy of the file with the mended text."""
    root = folder / program.project.name
    name = program.name + "_mended" * mended
    source, target = made / f"{name}.cu", made / name
    source.write_text(program.host, encoding="utf-8")
    include = [root]
    if mended:
        text = (root / program.file).read_text(encoding="utf-8")
        for old, new in program.mended:
            if old not in text:
                raise ValueError(f"{program.file} has no {old!r}")
            text = text.replace(old, new)
        copy = made / "mended" / program.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
        include = [made / "mended", root, (root / program.file).parent]
    kind = f"compute_{program.arch}a"
    flags = f"{program.project.flags} {program.flags}".format(folder=folder).split()
    subprocess.run(
        [str(compiler()), "-cudart", "shared", "-gencode", f"arch={kind},code={kind}",
         "-lineinfo", "-w", *flags, *(f"-I{each}" for each in (HOSTS, *include)), "-o", str(target),
         str(source), f"-L{build()}", "-lcuda"],
        check=True,
    )  # fmt: skip
    return target


def run(program: Program, binary: Path, gpu: EmulatedGpu) -> tuple[str, str]:
    """`RIGHT`, or what is wrong; and the last line that the program prints."""
    told: list[str] = []
    faults: list[EmulationError] = []
    stdout = os.dup(1)
    with tempfile.TemporaryFile() as out, warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedBehaviour)
        os.dup2(out.fileno(), 1)
        try:
            command = [str(binary), *program.sizes.split()]
            status = run_program(command, gpu, told.append, faults.append)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)
        out.seek(0)
        printed = out.read().decode()
    last = (printed.strip().splitlines() or told or [""])[-1]
    if faults:
        return f"{type(faults[0]).__name__}: {str(faults[0]).splitlines()[0]}", last
    if status == 0 and re.search(r"^right|successful\.$", printed, re.MULTILINE):
        return RIGHT, last
    return f"exit status {status}: {last}", last


EVERY = ("proven", "not decided", "witness")


def of_every_schedule(program: Program, binary: Path) -> str:
    """What one run says of all schedules, one of `EVERY`: the worst of its launches; "" if it ends
    in a fault already."""
    (gpu,) = emulated_gpus(program.arch, schedules="all")
    verdict, _ = run(program, binary, gpu)
    said = [str(each.outcome) for each in gpu.verdicts]
    return max(said, key=EVERY.index) if verdict == RIGHT or EVERY[-1] in said else ""


def row_of(program: Program, folder: Path, made: Path) -> dict[str, Any]:
    """What becomes of a program: a row of the table."""
    binary = compiled(program, folder, made)
    begun = time.monotonic()
    row: dict[str, Any] = {}
    undefined: set[str] = set()
    for mode, strict in MODES.items():
        verdicts = {}
        for schedule in SCHEDULES:
            (gpu,) = emulated_gpus(program.arch, schedule=schedule, strict=strict)
            verdicts[schedule], _ = run(program, binary, gpu)
            undefined |= set(gpu.taken)
        row[mode] = verdicts
    row["undefined"] = sorted(undefined)
    row["seconds"] = round(time.monotonic() - begun, 1)
    row["all"] = of_every_schedule(program, binary)
    if program.mended and set(row["hardware"].values()) != {RIGHT}:
        mended = compiled(program, folder, made, mended=True)
        gpus = (emulated_gpus(program.arch, schedule=each)[0] for each in SCHEDULES)
        row["mended"] = {run(program, mended, gpu)[0] for gpu in gpus} == {RIGHT}
    return row


def cut(verdict: str) -> str:
    """A fault without the places that its message names."""
    place = (
        r" 0x[0-9a-f]+( \(.*?\))?| of block \d+ of the cluster| at /\S+"
        r"|; there lies .*?(?=; |$)| by warp.*?(?=[,;:]|$)"
    )
    return re.sub(place, "", verdict)


def words(verdicts: dict[str, str]) -> str:
    """What a table says of the verdicts under each schedule."""
    wrong = {schedule: each for schedule, each in verdicts.items() if each != RIGHT}
    if not wrong:
        return RIGHT
    kinds = sorted({re.split(r"[;:,] ", each, maxsplit=2)[0] for each in wrong.values()})
    under = "" if len(wrong) == len(SCHEDULES) else f" ({', '.join(wrong)})"
    return " and ".join(kinds) + under


def is_as_it_should(row: dict[str, Any]) -> bool:
    """Whether the kernel is right as published, or right with its own fault mended."""
    return set(row["hardware"].values()) == {RIGHT} or bool(row.get("mended"))


def part(results: Mapping[str, dict[str, Any]], written: str) -> str:
    """The part of the page on CUDA C++.

    Args:
        results: what was run now: rows by the kernel's name.
        written: the part as it is; the other kernels keep their lines.
    """
    old, faults, rows = table(written, "project", "commit", "kernel"), [], []
    mended = {kernel: cells for (kernel, _), cells in table(written, "kernel", "mended by").items()}
    for program in PROGRAMS:
        project, kernel = program.project, program.kernel
        row = results.get(kernel)
        if row is not None:
            theirs = bool(row.get("mended"))
            rows.append(
                (project.name, project.commit[:8], kernel, f"sm_{program.arch}",
                 program.sizes.replace(" ", " x "), words(row["hardware"]) + ", theirs" * theirs,
                 row["all"], ", ".join(row["undefined"]), words(row["strict"]), row["seconds"])
            )  # fmt: skip
            if theirs:
                said = sorted({cut(each) for each in row["hardware"].values() if each != RIGHT})
                changes = [" ".join(f"`{b}` for `{a}`".split()) for a, b in program.mended]
                faults.append((kernel, "; ".join(said), ", ".join(changes)))
        elif (project.name, project.commit[:8], kernel) in old:
            rows.append(old[project.name, project.commit[:8], kernel])
            if kernel in mended:
                faults.append(mended[kernel])
    return text_of(rows, faults)


def text_of(rows: Sequence[Sequence[Any]], faults: Sequence[Sequence[Any]]) -> str:
    """The part of the page, of its tables' cells."""
    verdicts, every, strict = (Counter(row[at] for row in rows) for at in (5, 6, 8))
    theirs = sum(number for each, number in verdicts.items() if each.endswith(", theirs"))
    ran = {row[2] for row in rows}
    left = ", ".join(each.kernel for each in PROGRAMS if each.kernel not in ran)
    return "\n".join([
        CUDA,
        "",
        "`python tests/support/foreign_cuda.py --write` fetches these projects, compiles their"
        " kernels with nvcc, unedited, each with a small host program"
        " ([`foreign_hosts`](../../tests/support/foreign_hosts)), and runs them"
        " as `triton-ext run -- ./program` does: under the schedules eager, lazy and random, as"
        " hardware does and with `--strict`; and once for"
        " [all schedules](../guide/schedules.md). Results are compared with sums of doubles. What"
        " is [undefined and relied on](undefined.md) has its name there. *Theirs* is a fault that"
        " a changed line ends, which the next table has. A *witness* is a schedule that breaks a"
        " kernel which is right under the three"
        " ([why](../../benchmarks/notes/schedules.md#seeded-bugs-in-other-peoples-kernels)).",
        "",
        f"{verdicts[RIGHT]} of {len(rows)} kernels are right as published, {strict[RIGHT]} of them"
        f" with `--strict`, too; {theirs} stop at a fault of their own, and are right without it."
        + f" For all schedules {every['proven']} are proven, {every['not decided']} not decided,"
        f" and {every['witness']} have a witness." + (f" Not run yet: {left}." if left else ""),
        "",
        table_row(("project", "commit", "kernel", "GPU", "size", "verdict", "all schedules",
              "undefined", "`--strict`", "seconds")),
        table_row(["---"] * 10),
        *map(table_row, rows),
        "",
        table_row(("kernel", "what it ends in", "mended by")),
        table_row(["---"] * 3),
        *map(table_row, faults),
        "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default="", help="a regular expression")
    parser.add_argument("--folder", type=Path, default=ROOT / ".foreign" / "cuda")
    add_options(parser)
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    made = folder / "programs"
    made.mkdir(parents=True, exist_ok=True)
    kept = Rows(made / "rows.jsonl", again=arguments.again, minutes=arguments.minutes)
    hosts = digest(sorted(file for file in HOSTS.rglob("*") if file.suffix in (".h", ".cu")))
    chosen = [
        each for each in PROGRAMS
        if each.project.name in (arguments.projects or [each.project.name])
        and re.search(arguments.kernels, each.kernel)
    ]  # fmt: skip
    results: dict[str, dict[str, Any]] = {}
    for program in chosen:
        row = kept.get(str(program), hosts)
        if row is None and not kept.is_over:
            try:
                fetch(program.project, folder)
                if program.project is DEEPGEMM:
                    fetch(CUTLASS, folder)  # which it includes
            except subprocess.CalledProcessError as error:
                print(f"{program.project.name} cannot be fetched: {error}", file=sys.stderr)
                continue
            row = row_of(program, folder, made)
            kept.put(row, str(program), hosts)
            print(program.project.name, program.kernel, row, flush=True)
        if row is not None:
            results[program.kernel] = row
    if arguments.write:
        put(CUDA, part(results, PAGE.read_text(encoding="utf-8").partition(CUDA)[2]))
    if not all(map(is_as_it_should, results.values())):
        return 1
    return UNFINISHED if len(results) < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
