"""Runs the cases of `matrix_cases` on a GPU, and records a digest of each output.

    PYTHONPATH=tests/support python -m silicon.record_matrix record.json [outputs.npz]

`tests/emulator/test_matrix.py` holds the emulator against the record, on any machine. The cases
are shared out among processes: each compiles its kernels, and a kernel that faults takes only its
own process's context with it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.driver import GpuError, device_info, run_on_gpu
from silicon.matrix_cases import Case, layout_cases, rounding_cases

ROUNDING_SEEDS = (3, 4, 5)
WORKERS = 12


def all_cases() -> list[Case]:
    """In a fixed order, which the record has, too."""
    return [*layout_cases(), *(case for seed in ROUNDING_SEEDS for case in rounding_cases(seed))]


def digest(output: np.ndarray) -> str:
    """A digest of every bit."""
    return hashlib.sha256(np.ascontiguousarray(output).tobytes()).hexdigest()[:16]


def make_record(device: dict[str, str], outputs: Sequence[np.ndarray]) -> dict[str, Any]:
    """What is kept of a run: the digests of each kind of case, in the order of `all_cases`."""
    digests: dict[str, list[str]] = {}
    for case, output in zip(all_cases(), outputs, strict=True):
        digests.setdefault(case.kind, []).append(digest(output))
    return {
        "what": "wgmma, mma.sync, ldmatrix, stmatrix, movmatrix: digests of a GPU's outputs",
        "command": "PYTHONPATH=tests/support python -m silicon.record_matrix record.json",
        "environment": device,
        "counts": {kind: len(each) for kind, each in digests.items()},
        "digests": digests,
    }


def _work(first: int) -> dict[int, np.ndarray | str]:
    cases = all_cases()
    mine = set(sorted({case.ptx for case in cases})[first::WORKERS])
    chosen = sorted((case.ptx, index) for index, case in enumerate(cases) if case.ptx in mine)
    results: dict[int, np.ndarray | str] = {}
    for _, index in chosen:
        try:
            results[index] = cases[index].run(run_on_gpu)
        except GpuError as error:
            results[index] = str(error)
    return results


def main(record: str, outputs: str | None = None) -> int:
    """Write the record; 1 if the GPU refused a case."""
    with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
        merged = {i: value for part in pool.map(_work, range(WORKERS)) for i, value in part.items()}
    errors = {i: value for i, value in merged.items() if isinstance(value, str)}
    for index, error in errors.items():
        print(index, error[:300])
    if errors:
        return 1
    arrays = [np.asarray(merged[index]) for index in range(len(merged))]
    device = device_info()
    Path(record).write_text(json.dumps(make_record(device, arrays), indent=0) + "\n")
    if outputs:
        np.savez_compressed(outputs, **{str(i): array for i, array in enumerate(arrays)})
    print(json.dumps(device), len(arrays), "cases")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
