"""What each step of the kernels of sm_100 saves, counted on the emulated Blackwell.

    python -m benchmarks.blackwell --json benchmarks/results/blackwell_counts.json
    python -m benchmarks.blackwell --cutlass FOLDER --triton FOLDER   # and beside others' kernels

There is no time on an emulator. But what an idea is for can be counted: bytes from global memory,
products and what of their operands crosses shared memory, arrivals at barriers, the instructions
that each role's warps execute for a tile of 128x128 sums.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import triton_ext
from triton_ext.emulator.schedule.observers import Statistics
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.memory import SHARED_BASE
from triton_ext.kernels.launch import LaunchPlan, descriptor, launch_arguments, launch_plan
from triton_ext.kernels.spec import KernelSpec, kernel_spec

SIZE = 512
"""M, N and K of the product that is counted, in bf16."""
ONE: dict[str, tuple[float, torch.dtype]] = {
    "fp16": (1, torch.float16),
    "mxfp8": (1, torch.float8_e4m3fn),
    "nvfp4": (0x22, torch.uint8),
}
"""What is one, and how it is stored; of types other than bf16."""
SCALES = ("left_scales", "right_scales")
PROCESSORS = 4
"""How many SMs the GPU is said to have: the blocks that stay make several tiles each."""
_WIDE: dict[str, Any] = {"block_n": 256, "c_parts": 4, "c_buffers": 2}
STEPS: dict[str, dict[str, Any]] = {
    "one tile a block, one warpgroup": {"consumers": 0, "block_n": 128, "stages": 4},
    "roles, tiles of sums in turn": {"block_n": 128, "stages": 6, "c_parts": 2, "c_buffers": 2},
    "wider tiles": {**_WIDE, "stages": 4},
    "multicast in clusters of 2": {**_WIDE, "stages": 4, "cluster_m": 2},
    "pairs": {**_WIDE, "stages": 6, "cluster_m": 2, "cta_group": 2},
    "two pairs, multicast": {**_WIDE, "stages": 6, "cluster_m": 4, "cta_group": 2},
    "tiles asked for": {
        **_WIDE,
        "stages": 6,
        "cluster_m": 2,
        "cta_group": 2,
        "cluster_launch_control": True,
    },
}


Counts = dict[str, Any]
"""What was counted of a step:

shared_bytes: shared memory of a block, up to the last byte that is written.
tensor_columns: columns of tensor memory of a block.
loaded: bytes that TMA copies brought to shared memory of all blocks.
loads, stores: TMA copies to shared memory and from it, that were issued.
products: ``tcgen05.mma`` instructions.
scale_copies: ``tcgen05.cp`` instructions.
operand_bytes: bytes of operands that the tensor cores read from shared memory.
commits, arrivals, waits: of mbarriers; instructions of warps.
instructions: of all warps of a role, for 128x128 sums.
"""


def _instructions(role: str, row: Counts) -> int | str:
    """Those of a role, or that the kernel does not have it."""
    return round(row["instructions"].get(role, 0)) or "-"


COLUMNS: dict[str, Callable[[Counts], Any]] = {
    "shared KiB": lambda row: row["shared_bytes"] // 1024,
    "tensor columns": lambda row: row["tensor_columns"],
    "MiB loaded": lambda row: round(row["loaded"] / 2**20, 2),
    "MiB read by tensor cores": lambda row: round(row["operand_bytes"] / 2**20, 2),
    "loads": lambda row: row["loads"],
    "stores": lambda row: row["stores"],
    "products": lambda row: row["products"],
    "copies of scales": lambda row: row["scale_copies"],
    "commits": lambda row: row["commits"],
    "arrivals": lambda row: row["arrivals"],
    "waits": lambda row: row["waits"],
    **{
        role: functools.partial(_instructions, role)
        for role in ("store", "multiply", "load", "ask")
    },
}
"""Of the tables."""


def table(rows: dict[str, Counts]) -> str:
    """Rows of counts, as Markdown."""
    lines = [f"| kernel | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    for name, row in rows.items():
        lines.append(f"| {name} | {' | '.join(str(of(row)) for of in COLUMNS.values())} |")
    return "\n".join(lines)


ROLES = {"tcgen05.mma": "multiply", "clusterlaunchcontrol.try_cancel": "ask",
         "cp.async.bulk.tensor": "load"}  # fmt: skip
"""Whose warp it is that executes such an instruction, but for the first four, which store."""


class Roles(Statistics):
    """Statistics, and the instructions of each role's warps."""

    def __init__(self) -> None:
        super().__init__()
        self._by_warp: Counter[int] = Counter()
        self._roles: dict[int, str] = dict.fromkeys(range(4), "store")
        self._columns = 0
        self._shared_bytes = 0

    def instruction(self, cta: Any, step: Any, lanes: Any) -> None:
        """Count it."""
        super().instruction(cta, step, lanes)
        warps = lane_sets.warps(lanes)
        self._by_warp.update(warps)
        opcode = step.instruction.opcode
        for start, role in ROLES.items():
            if opcode.startswith(start):
                for warp in warps:
                    self._roles.setdefault(int(warp), role)
        if opcode.startswith("tcgen05.dealloc"):
            self._columns = max(self._columns, int(cta.tensor_core.memory.allocated.sum()))
            shared = cta.shared
            written = shared.written.get(np.arange(len(shared.data)), 1)
            last = int(np.flatnonzero(written >= 0)[-1])
            self._shared_bytes = max(self._shared_bytes, last + 1 - SHARED_BASE)

    def counts(self, sums: int) -> Counts:
        """All of it; of so many sums."""

        def number(*words: str) -> int:
            found = self.instructions.items()
            return sum(n for opcode, n in found if all(word in opcode for word in words))

        roles: Counter[str] = Counter()
        for warp, executed in self._by_warp.items():
            roles[self._roles.get(warp, "others")] += executed
        return {
            "shared_bytes": self._shared_bytes,
            "tensor_columns": self._columns,
            "loaded": self.bytes["shared store by TMA"],
            "loads": number("cp.async.bulk.tensor", "mbarrier"),
            "stores": number("cp.async.bulk.tensor", "bulk_group"),
            "products": number("tcgen05.mma"),
            "scale_copies": number("tcgen05.cp"),
            "operand_bytes": sum(n for key, n in self.bytes.items() if "operand" in key),
            "commits": number("tcgen05.commit"),
            "arrivals": number("mbarrier.arrive"),
            "waits": number("try_wait"),
            "instructions": {
                role: round(n * 128 * 128 / sums, 1) for role, n in sorted(roles.items())
            },
        }


def scale_descriptor(config: KernelSpec, plan: LaunchPlan, name: str, size_k: int) -> Any:
    """The TMA descriptor of scales that are all one; None if there are none."""
    if config.product.scaling is None or plan.scale_tiles is None:
        return None
    columns = size_k * config.product.scaling.packed // config.product.scaling.length // 4
    shape = (SIZE // 128, columns, 2, 256)
    if config.product.scaling.scale == "e4m3":
        blocks = torch.ones(shape).to(torch.float8_e4m3fn)
    else:
        blocks = torch.full(shape, 127, dtype=torch.uint8)
    return descriptor(blocks, plan.scale_tiles[SCALES.index(name)])


def count(fields: dict[str, Any], size_k: int = SIZE) -> Counts:
    """Run a configuration on the emulated GPU; all operands, and scales, are one.

    Args:
        size_k: K, as torch counts it (of 4-bit elements in pairs).
    """
    config = kernel_spec(100, **{"element_type": "bf16", "consumers": 1, **fields})
    gpu = SimpleNamespace(multi_processor_count=PROCESSORS)
    plan = launch_plan(config, SIZE, SIZE, size_k, gpu)
    one, stored_as = ONE.get(config.product.element_type, (1, torch.bfloat16))
    a, b = (torch.full((SIZE, size_k), one).to(stored_as) for _ in "ab")
    c = torch.empty(SIZE, SIZE, dtype=torch.bfloat16)
    values = launch_arguments(
        config, plan, a,
        b.T if config.product.b_major == "K" else b.T.contiguous(), c,
        **{name: scale_descriptor(config, plan, name, size_k) for name in SCALES},
    )  # fmt: skip
    observer = Roles()
    with triton_ext.emulate("sm_100", observer=observer):
        plan.launch(values)
    assert (c == size_k * (config.product.scaling.packed if config.product.scaling else 1)).all()
    return observer.counts(SIZE * SIZE)


def main() -> None:
    """Print tables, and write them if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cutlass", type=Path, help="a checkout of NVIDIA/cutlass")
    parser.add_argument("--triton", type=Path, help="a checkout of Triton, for its Gluon examples")
    parser.add_argument("--dsl", default=sys.executable, help="a Python that has the CuTe DSL")
    given = parser.parse_args()
    found: dict[str, Any] = {"size": SIZE}
    found["steps"] = {name: count(fields) for name, fields in STEPS.items()}
    print(table(found["steps"]))
    if given.cutlass and given.triton:
        from benchmarks.blackwell_others import side_by_side

        found["side_by_side"] = side_by_side(given.cutlass, given.triton, given.dsl)
        for problem, rows in found["side_by_side"].items():
            print(f"\n{problem}\n{table(rows)}")
    elif given.json and given.json.exists():
        found["side_by_side"] = json.loads(given.json.read_text())["side_by_side"]
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
