"""What one run says of all schedules of many kernels: the table of benchmarks/notes/schedules.md.

``python tests/support/all_schedules.py [--only PART] [--tutorials FOLDER] [--keep FILE]`` runs
matmuls of `CONFIGURATIONS`, the kernels of `sync_faults`, the mended kernels of the museum, and,
where their folder is given, tests of Triton's Gluon tutorials.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ptx_faults import capture, in_fork, or_nothing
from sync_faults import KERNELS, tutorial, tutorial_jobs

_SMALL = {"element_type": "fp16", "block_n": 64}
CONFIGURATIONS = [
    (90, _SMALL | {"block_m": 64, "stages": 3, "consumers": 1}),
    (90, _SMALL | {"block_m": 128, "stages": 4, "consumers": 2}),
    (90, _SMALL | {"block_m": 128, "stages": 4, "consumers": 2, "cluster_m": 2}),
    (90, _SMALL | {"block_m": 128, "stages": 2, "consumers": 2, "cluster_n": 2}),
    (90, _SMALL | {"block_m": 64, "stages": 2, "consumers": 1, "cluster_k": 2}),
    (90, _SMALL | {"block_m": 128, "stages": 3, "consumers": 2, "element_type": "e4m3"}),
    (100, _SMALL | {"stages": 3}),
    (100, _SMALL | {"stages": 4, "block_n": 128}),
    (100, _SMALL | {"stages": 3, "consumers": 1, "element_type": "e4m3"}),
    (100, _SMALL | {"stages": 2, "consumers": 1, "cluster_m": 2}),
    (100, _SMALL | {"stages": 2, "consumers": 1, "cluster_m": 2, "cta_group": 2}),
    (100, _SMALL | {"stages": 4, "consumers": 1, "block_n": 128}),
]  # fmt: skip


def jobs(tutorials: Path | None) -> Iterator[dict[str, Any]]:
    """What is captured."""
    for arch, config in CONFIGURATIONS:
        name = "-".join(f"{key}={value}" for key, value in config.items())
        yield {"name": f"matmul-sm{arch}-{name}", "arch": arch, "do": "matmul", "config": config,
               "multiprocessors": 4}  # fmt: skip
    yield from KERNELS
    if tutorials is not None:
        yield from tutorial_jobs(tutorials)


def judged(job: dict[str, Any]) -> list[dict[str, Any]]:
    """What is said of each kernel of a job, and how long a run takes without it."""
    import corpus_worker

    corpus_worker.DO["tutorial"] = tutorial
    with redirect_stdout(sys.stderr):
        kernels = capture(job)
    found = []
    for one in kernels:
        one.run(one.ptx, "eager")
        began = time.perf_counter()
        one.run(one.ptx, "eager")
        plain = time.perf_counter() - began
        verdict = one.run(one.ptx, "all").verdict
        found.append({"name": job["name"], "plain": plain, **verdict.as_object()})
    return found


def exhibits() -> Iterator[dict[str, Any]]:
    """What is said of the museum's mended kernels, and of the broken ones."""
    from unittest import mock

    import museum.exhibits
    from museum.exhibit import WrongResult

    from triton_ext.emulator.errors import EmulationError
    from triton_ext.emulator.host import run as host

    start, verdicts = host.start, []

    def judging(machine: Any, **_: Any) -> None:
        start(machine, every=True)
        verdicts.append(machine.verdict)

    with mock.patch.object(host, "start", judging):
        for exhibit in museum.exhibits.EXHIBITS:
            for kind, text in (("mended", exhibit.right), ("broken", exhibit.wrong)):
                verdicts.clear()
                try:
                    exhibit.run(text, "eager")
                    outcome = [each.as_object() for each in verdicts]
                except WrongResult:
                    outcome = [{**each.as_object(), "outcome": f"{each.outcome}, wrong result"}
                               for each in verdicts]  # fmt: skip
                except EmulationError as error:
                    outcome = [{"outcome": "fault", "reasons": [], "kernel": str(error)[:80]}]
                for each in outcome[-1:]:
                    yield {"name": f"museum, {kind}: {exhibit.title}", **each}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--tutorials", type=Path, help="a folder with Triton's Gluon tutorials")
    parser.add_argument("--keep", type=Path, help="a file for the verdicts, a line each")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for job in jobs(options.tutorials):
        if re.search(options.only, job["name"]):
            rows += or_nothing(lambda job=job: in_fork(lambda: judged(job)))
            print(job["name"], file=sys.stderr, flush=True)
    if re.search(options.only, "museum"):
        rows += exhibits()
    print(
        "| kernel | verdict | operations | run, s | judged, s |\n| --- | --- | ---: | ---: | ---: |"
    )
    for row in rows:
        why = "; ".join(dict.fromkeys(each["text"] for each in row["reasons"]))
        said = f"{row['outcome']}{f' ({why})' if why else ''}"
        size = row.get("counted", {}).get("operations", "")
        times = [f"{row['plain']:.2f}" if "plain" in row else "",
                 f"{row['seconds']['all']:.2f}" if "seconds" in row else ""]  # fmt: skip
        print(f"| {row['name']} | {said} | {size} | {' | '.join(times)} |")
    if options.keep:
        options.keep.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
