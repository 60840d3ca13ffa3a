"""Runs cases on the GPU, on the emulator, or on both, and says what differs.

    PYTHONPATH=tests/support python -m silicon.check scalar --gpu out.npz      (on a GPU)
    PYTHONPATH=tests/support python -m silicon.check scalar --compare out.npz  (anywhere)

The module ``silicon.<name>_cases`` has a function ``<name>_cases() -> list[Case]``.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import platform
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.driver import device_info, run_on_gpu
from silicon.cases import Case, differences, modules


def load(name: str, seeds: Sequence[int] = ()) -> list[Case]:
    """The cases of a name; drawn once for each of the seeds, if there are any."""
    make = getattr(importlib.import_module(f"silicon.{name}_cases"), f"{name}_cases")
    if not seeds:
        return list(make())
    return [
        replace(
            case,
            name=f"s{seed}{case.name}",
            entry=case.entry.replace(case.name, f"s{seed}{case.name}"),
        )
        for seed in seeds
        for case in make(seed)
    ]


def on_gpu(cases: Sequence[Case]) -> list[list[Any]]:
    """The arguments of each case after it ran on the GPU."""
    results = []
    for ptx, group in modules(cases):
        for case in group:
            args = case.fresh()
            run_on_gpu(
                ptx,
                case.name,
                case.grid,
                case.block,
                args,
                cluster=case.cluster,
                dynamic_smem_bytes=case.dynamic_smem_bytes,
                buffers=case.buffers,
            )
            results.append(args)
    return results


def on_emulator(case: Case, schedule: str = "eager") -> list[Any]:
    """The arguments of a case after it ran on the emulator."""
    from triton_ext.emulator import run_ptx

    args = case.fresh()
    run_ptx(
        case.ptx,
        grid=case.grid,
        block=case.block,
        args=args,
        cluster=case.cluster,
        dynamic_smem_bytes=case.dynamic_smem_bytes,
        schedule=schedule,
    )
    return args


def kinds(cases: Sequence[Case]) -> dict[str, int]:
    """How many cases there are of each opcode."""
    names = (
        re.sub(r"^(s\d+)?k\d+_|(?<=random)\d+$", "", each.name).split("_")[0] for each in cases
    )
    return dict(sorted(Counter(names).items()))


def compare(cases: Sequence[Case], expected: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The emulator against results of the GPU: counts, and the cases that differ."""
    failures: dict[str, list[str]] = {}
    values = 0
    for case, want in zip(cases, expected, strict=True):
        try:
            lines = differences(case, want, on_emulator(case))
        except Exception as error:  # a case that does not run is a difference like any other
            lines = [f"{case.name}: {type(error).__name__}: {error}"]
        values += sum(np.size(want[position]) for position in case.outputs)
        if lines:
            failures[case.name] = lines
    bounded = sum(case.bound is not None for case in cases)
    return {
        "cases": len(cases),
        "bit_by_bit": len(cases) - bounded,
        "within_documented_bounds": bounded,
        "values": values,
        "cases_by_opcode": kinds(cases),
        "differences": len(failures),
        "failures": failures,
    }


def save(path: Path, cases: Sequence[Case], results: Sequence[Sequence[Any]]) -> None:
    """Keep the outputs of the cases."""
    arrays = {
        f"{case.name}.{position}": args[position]
        for case, args in zip(cases, results, strict=True)
        for position in case.outputs
    }
    np.savez_compressed(path, info=np.array(json.dumps(device_info())), **arrays)


def saved(path: Path, cases: Sequence[Case]) -> tuple[list[list[Any]], dict[str, str]]:
    """What `save` kept, in place of the outputs; and the device."""
    with np.load(path) as kept:
        results = []
        for case in cases:
            args = list(case.args)
            for position in case.outputs:
                args[position] = kept[f"{case.name}.{position}"]
            results.append(args)
        return results, json.loads(str(kept["info"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--gpu", type=Path, help="run on the GPU and keep the outputs here")
    parser.add_argument("--compare", type=Path, help="compare the emulator with kept outputs")
    parser.add_argument("--json", type=Path, help="write the record here")
    parser.add_argument("--seeds", type=int, nargs="*", default=[], help="draw cases for each")
    options = parser.parse_args()
    cases = load(options.name, options.seeds)
    start = time.perf_counter()
    if options.gpu:
        save(options.gpu, cases, on_gpu(cases))
        print(f"{len(cases)} cases on {device_info()} in {time.perf_counter() - start:.1f} s")
        return
    results, info = saved(options.compare, cases)
    record = {
        "check": options.name,
        "command": "PYTHONPATH=tests/support python -m silicon.check "
        + " ".join(
            [options.name, *(["--seeds", *map(str, options.seeds)] if options.seeds else [])]
        )
        + " --gpu FILE, there; --compare FILE, anywhere",
        "date": datetime.date.today().isoformat(),
        "environment": {
            **info,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
        },
        "seeds": options.seeds,
        **compare(cases, results),
        "notes": getattr(importlib.import_module(f"silicon.{options.name}_cases"), "NOTES", []),
    }
    for lines in record["failures"].values():
        print("\n".join(lines))
    summary = {key: value for key, value in record.items() if isinstance(value, (int, str))}
    print(summary, f"in {time.perf_counter() - start:.1f} s")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
