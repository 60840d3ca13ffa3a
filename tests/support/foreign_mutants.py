"""Synchronization bugs seeded into other people's CUDA C++, as `sync_faults` seeds them into ours.

``python tests/support/foreign_mutants.py --seed N [--each N] [--kernels K] [--keep FILE]`` changes
the PTX of programs of `foreign_cuda`, those that `KERNELS` names: each change runs under three
schedules, its result compared with that of the PTX as it is. What changes nothing under any of them
is judged for all schedules, by one more run. It prints tables, and ends with status 1 if a change
makes a result wrong in silence.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from foreign_cuda import PROGRAMS, RIGHT, Program, compiled, run
from ptx_faults import Launched
from sites import ROOT
from sync_faults import chosen, outcome_of, verdicts

from triton_ext.emulator.host import gpu as gpus
from triton_ext.emulator.host.cuda import modules
from triton_ext.emulator.host.emulate import emulated_gpus
from triton_ext.emulator.schedule.machine import Machine

KERNELS = {
    "learn-cuda matmul_v4": "128 256 768",
    "learn-cuda matmul_v5": "256 256 768",
    "learn-cuda matmul_v6": "256 256 768",
    "ThunderKittens educational_h100/level_07": "256 256 256",
    "ThunderKittens educational_h100/level_08": "256 256 256",
    "DeepGEMM sm90_bf16_gemm": "64 128 768",
    "DeepGEMM sm90_bf16_gemm, a pair of blocks": "128 128 768",
    "DeepGEMM sm100_bf16_gemm": "128 256 768",
    "DeepGEMM sm100_bf16_gemm, a pair of blocks": "256 256 768",
    "DeepGEMM sm90_fp8_gemm": "64 128 768",
    "DeepGEMM sm100_fp8_gemm": "128 128 768",
    "ThunderKittens educational_b200/level_06": "512 512 512",
    "ThunderKittens educational_b200/level_08": "512 512 512",
    "fast.cu matmul_4": "128 128 384",
    "cutlass wgmma_tma_sm90": "256 128 384",
    "fast.cu matmul_5": "128 256 768",
}
"""Kernels that are right as published, and a size at which their stages come round."""
LIMIT = 300
"""Seconds of one run that judges all schedules."""


@contextmanager
def _ptx_of(loaded: dict[str, str]) -> Iterator[None]:
    """Programs load other PTX in the place of some of theirs."""
    whole = modules.chosen

    def instead(texts: list[str], arch: int) -> str:
        found = whole(texts, arch)
        return loaded.setdefault(found, found)

    with mock.patch.object(modules, "chosen", instead):
        yield


def _machines(found: list[Machine]) -> Any:
    """Machines that run are kept in a list."""

    def kept(*arguments: Any, **others: Any) -> Machine:
        found.append(Machine(*arguments, **others))
        return found[-1]

    return mock.patch.object(gpus, "Machine", kept)


class Foreign(Launched):
    """A program whose host code compares the result, to run with its kernel's PTX changed."""

    program: Program
    binary: Path
    reached: set[int]
    undefined: set[str]

    @classmethod
    def of(cls, program: Program, binary: Path) -> Foreign:
        """Run it as it is: the kernel is the largest that it launches."""
        loaded: dict[str, str] = {}
        machines: list[Machine] = []
        (gpu,) = emulated_gpus(program.arch)
        with _ptx_of(loaded), _machines(machines):
            verdict, _ = run(program, binary, gpu)
        if verdict != RIGHT:
            raise RuntimeError(f"{program.name}: {verdict}")
        steps, machine = max(
            ((each.program.kernel.instructions, each) for each in machines),
            key=lambda pair: len(pair[0]),
        )
        kernel = machine.program.kernel.name
        (ptx,) = [text for text in loaded if re.search(rf"\.entry\s+{re.escape(kernel)}\b", text)]
        found = cls(program.name, kernel, program.arch, "", ptx, {}, machine.run)
        found.program, found.binary, found.undefined = program, binary, set(gpu.taken)
        found.reached = {
            each.line for each, count in zip(steps, machine.counts, strict=True) if count
        }
        return found

    def digest(self, ptx: str, schedule: str) -> str:
        """What the program prints of the result, its distance from the sums of doubles; or the
        emulator of the kernel."""
        return self._said(ptx, schedule=schedule)[0]

    def all_schedules(self, ptx: str, limit: float) -> str:
        """As of any launch, of the last one; in brackets what is undefined, and was not before."""
        return self._in_fork(lambda: self._said(ptx, schedules="all")[1], limit)

    def _said(self, ptx: str, **settings: Any) -> tuple[str, str]:
        """What one run says of itself, and of all schedules, if that is asked."""
        (gpu,) = emulated_gpus(self.arch, **settings)
        with _ptx_of({self.ptx: ptx}):
            verdict, printed = run(self.program, self.binary, gpu)
        if verdict != RIGHT and not verdict.startswith("exit status"):
            return verdict, verdict
        if not printed.startswith(("right", "wrong")):
            raise RuntimeError(f"{self.name}: {verdict}")
        every = str(gpu.verdicts[-1].outcome) if gpu.verdicts else ""
        new = ", ".join(sorted(set(gpu.taken) - self.undefined))
        return printed.replace(":", ""), f"{every} ({new})" if new else every


def judged(one: Foreign, each: int, seed: int) -> Iterator[dict[str, Any]]:
    """The mutants of a kernel, with what was said of each; of all schedules if not each of the
    three ends in a fault; "base" is what is said of the kernel as it is."""
    base = one.all_schedules(one.ptx, LIMIT)
    for mutation in chosen(one.ptx, one.reached, each, seed, one.kernel):
        told = verdicts(one, mutation)
        found = outcome_of(told) == "found"
        every = "" if found else one.all_schedules(mutation.of(one.ptx), LIMIT)
        yield {"kernel": one.name, "base": base, **dataclasses.asdict(mutation), "told": told,
               "all": every}  # fmt: skip


WORDS = (
    "found, every schedule", "some schedule", "silent, found of all schedules",
    "silent, undefined", "silent, proven", "silent, not decided", "wrong in silence",
)  # fmt: skip


def word_of(mutant: dict[str, Any]) -> str:
    """What became of a mutant, in one of `WORDS`."""
    outcome, every = outcome_of(mutant["told"]), mutant["all"]
    if outcome != "silent":
        return {"found": WORDS[0], "some": WORDS[1], "wrong": WORDS[6]}[outcome]
    if mutant["base"] not in ("proven", "not decided"):
        return WORDS[5]
    if every.startswith("witness") or ":" in every:
        return WORDS[2]
    if "(" in every:
        return WORDS[3]
    return WORDS[4] if every == "proven" else WORDS[5]


def table(mutants: list[dict[str, Any]], key: str) -> str:
    """As Markdown, by "kernel" or "kind"."""
    counts = Counter((each[key], word_of(each)) for each in mutants)
    lines = [f"| {key} | mutants | {' | '.join(WORDS)} |", "| --- |" + " ---: |" * (len(WORDS) + 1)]
    for row in sorted({each[key] for each in mutants}):
        numbers = [counts[row, word] for word in WORDS]
        lines.append(f"| {row} | {' | '.join(map(str, (sum(numbers), *numbers)))} |")
    totals = Counter(map(word_of, mutants))
    numbers = [len(mutants), *(totals[word] for word in WORDS)]
    return "\n".join([*lines, f"| all | {' | '.join(map(str, numbers))} |"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--each", type=int, default=2, help="mutants of a kind in each kernel")
    parser.add_argument("--kernels", default="", help="a regular expression")
    parser.add_argument("--folder", type=Path, default=ROOT / ".foreign" / "cuda")
    parser.add_argument("--keep", type=Path, help="a file for what was found, a line a mutant")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.resolve()
    found: list[dict[str, Any]] = []
    for published in PROGRAMS:
        name = f"{published.project.name} {published.kernel}"
        if name not in KERNELS or not re.search(arguments.kernels, name):
            continue
        program = dataclasses.replace(published, sizes=KERNELS[name])
        binary = folder / "programs" / program.name
        if not binary.exists():
            compiled(program, folder, binary.parent)
        for mutant in judged(Foreign.of(program, binary), arguments.each, arguments.seed):
            found.append(mutant)
            said = {each.splitlines()[0][:160] for each in mutant["told"]}
            print(name, mutant["kind"], mutant["line"], said, mutant["all"][:80], flush=True)
            if arguments.keep:
                with arguments.keep.open("a") as out:
                    out.write(json.dumps(mutant) + "\n")
    print(f"{table(found, 'kernel')}\n\n{table(found, 'kind')}")
    return int(any(outcome_of(each["told"]) == "wrong" for each in found))


if __name__ == "__main__":
    sys.exit(main())
