"""Runs the cases of `copy_cases` on a GPU and on the emulator, and compares every bit.

    PYTHONPATH=tests/support python -m silicon.record_copies record.json [outputs.npz]

The cases are shared out among processes, by kernel: each compiles its own, and a kernel that
faults takes only its own process's context with it.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sys
from collections import Counter
from typing import Any

import numpy as np

from benchmarks.driver import GpuError, device_info, run_on_gpu
from silicon.copy_cases import Case, all_cases


def _launch_on_gpu(ptx: str, kernel: str, grid: Any, block: Any, args: Any, **options: Any) -> None:
    run_on_gpu(ptx, kernel, grid, block, args, **options)


def _launch_emulated(
    ptx: str, kernel: str, grid: Any, block: Any, args: Any, **options: Any
) -> None:
    from triton_ext.emulator import run_ptx

    run_ptx(ptx, kernel=kernel, grid=grid, block=block, args=args, **options)


def digest(results: list[np.ndarray]) -> str:
    """A digest of the results of a case, to compare with what a GPU recorded."""
    return hashlib.sha256(b"".join(each.tobytes() for each in results)).hexdigest()[:16]


Result = tuple[int, str, list[np.ndarray]]


def _both_stop(case: Case, what: str) -> str:
    """What differs, where the GPU has stopped a kernel."""
    from triton_ext.emulator import EmulationError

    try:
        case.run(_launch_emulated)
    except EmulationError:
        return "" if case.faults else what
    return f"{what}; the emulator does not"


def _work(numbers: list[int]) -> list[Result]:
    """For each case: its number, what differs ("" for nothing), and the GPU's results.

    Ends early after a fault of the GPU, which leaves the process's context unusable.
    """
    cases = all_cases()
    results: list[Result] = []
    for number in numbers:
        case = cases[number]
        try:
            real = case.run(_launch_on_gpu)
        except GpuError as error:
            results.append((number, _both_stop(case, f"GPU: {error}"), []))
            break
        try:
            emulated = [] if case.faults else case.run(_launch_emulated)
        except Exception as error:  # any failure is a difference to report
            results.append((number, f"emulator: {error}", real))
            continue
        if case.faults:
            results.append((number, "the GPU does not stop", real))
            continue
        different = [
            f"{int((a.view(np.uint8) != b.view(np.uint8)).sum())} of {a.nbytes} bytes differ"
            for a, b in zip(real, emulated, strict=True)
            if not np.array_equal(a.view(np.uint8), b.view(np.uint8))
        ]
        results.append((number, "; ".join(different), real))
    return results


def main(path: str, outputs: str = "", workers: int = 14, rounds: int = 12) -> None:
    context = multiprocessing.get_context("spawn")
    cases = all_cases()
    faulting = [number for number, case in enumerate(cases) if case.faults]
    left = sorted(set(range(len(cases))) - set(faulting), key=lambda number: cases[number].ptx)
    with context.Pool(workers, maxtasksperchild=1) as pool:
        results = [part[0] for part in pool.map(_work, [[number] for number in faulting], 1)]
    for _ in range(rounds):  # each round goes on after the faults of the one before
        size = -(-len(left) // workers)
        shares = [left[start : start + size] for start in range(0, len(left), size)]
        with context.Pool(workers) as pool:
            results += [result for part in pool.map(_work, shares, 1) for result in part]
        done = {number for number, _, _ in results}
        left = [number for number in left if number not in done]
        if not left:
            break
    results.sort(key=lambda result: result[0])
    kinds = Counter(cases[n].key.rpartition(" ")[0] for n, _, _ in results)
    bad = [(cases[n].name, what) for n, what, _ in results if what]
    record = {
        **device_info(),
        "what": "asynchronous copies, mbarriers and clusters: PTX of "
        "tests/support/silicon/copy_cases.py on the GPU and on the emulator",
        "cases": dict(kinds),
        "compared": len(results),
        "different": len(bad),
        "left_out": len(left),
        "digests": {cases[n].key: digest(real) for n, _, real in results if real},
    }
    with open(path, "w") as file:
        json.dump(record, file, indent=1)
        file.write("\n")
    if outputs:
        np.savez_compressed(outputs, **{f"{n}": real[0] for n, _, real in results if real})
    print(json.dumps({key: value for key, value in record.items() if key != "digests"}))
    for name, what in bad[:40]:
        print(what[:200], "|", name[:330])


if __name__ == "__main__":
    main(*sys.argv[1:])
