"""What each step of the kernels of sm_100 saves, counted on the emulated Blackwell.

    python -m benchmarks.blackwell --json benchmarks/results/blackwell_counts.json

There is no time on an emulator. But what an idea is for can be counted: bytes from global memory,
products and what of their operands crosses shared memory, arrivals at barriers, the instructions
that each role's warps execute for a tile of 128x128 sums.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import triton_ext
from triton_ext.emulator.schedule.observers import Statistics
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.launch import launch_arguments, launch_plan

SIZE = 512
"""M, N and K of the product that is counted, in bf16."""
PROCESSORS = 4
"""How many SMs the GPU is said to have: the blocks that stay make several tiles each."""
_WIDE: dict[str, Any] = {"block_n": 256, "c_parts": 4, "c_buffers": 2}
STEPS: dict[str, dict[str, Any]] = {
    "one tile a block, one warpgroup": {"consumers": 0, "block_n": 128, "stages": 4},
    "roles, tiles of sums in turn": {"block_n": 128, "stages": 6, "c_parts": 2, "c_buffers": 2},
    "wider tiles": {**_WIDE, "stages": 4},
    "multicast in clusters of 2": {**_WIDE, "stages": 4, "cluster": 2},
    "pairs": {**_WIDE, "stages": 6, "cluster": 2, "pair": True},
    "two pairs, multicast": {**_WIDE, "stages": 6, "cluster": 4, "pair": True},
    "tiles asked for": {**_WIDE, "stages": 6, "cluster": 2, "pair": True, "asked": True},
}


@dataclass(frozen=True)
class Counts:
    """What was counted of a step.

    Attributes:
        shared_bytes: shared memory of a block.
        tensor_columns: columns of tensor memory of a block.
        fetched: bytes that the blocks ask the L2 cache for, by the shapes of their tiles.
        loaded: bytes that TMA copies brought to shared memory of all blocks.
        copies: TMA copies that were issued.
        products: ``tcgen05.mma`` instructions.
        operand_bytes: bytes of operands that the tensor cores read from shared memory.
        commits, arrivals, waits: of mbarriers; instructions of warps.
        instructions: of all warps of a role, for 128x128 sums: of the first four warps, which
            store, and of each other warp.
    """

    shared_bytes: int
    tensor_columns: int
    fetched: int
    loaded: int
    copies: int
    products: int
    operand_bytes: int
    commits: int
    arrivals: int
    waits: int
    instructions: dict[str, float]


class Roles(Statistics):
    """Statistics, and the instructions of each warp."""

    def __init__(self) -> None:
        super().__init__()
        self.by_warp: Counter[int] = Counter()

    def instruction(self, cta: Any, step: Any, lanes: Any) -> None:
        super().instruction(cta, step, lanes)
        self.by_warp.update(lane_sets.warps(lanes))


def count(fields: dict[str, Any]) -> Counts:
    """Run a configuration on the emulated GPU."""
    config = MatmulConfig(100, "bf16", **{"consumers": 1, **fields})
    a, b = torch.ones(SIZE, SIZE).bfloat16(), torch.ones(SIZE, SIZE).bfloat16()
    c = torch.empty_like(a)
    gpu = SimpleNamespace(multi_processor_count=PROCESSORS)
    plan = launch_plan(config, SIZE, SIZE, SIZE, gpu)
    arguments = launch_arguments(config, plan, a, b.T, c)
    observer = Roles()
    with triton_ext.emulate("sm_100", observer=observer):
        values = list(arguments.values())
        compiled = plan.kernel[plan.grid](*values, **plan.constants, **plan.options)
    assert (c == SIZE).all()

    def instructions(word: str) -> int:
        return sum(n for opcode, n in observer.instructions.items() if word in opcode)

    tiles = (SIZE / 128) ** 2
    roles: Counter[str] = Counter()
    for warp, number in observer.by_warp.items():
        roles["first warpgroup" if warp < 4 else f"warp {warp}"] += number
    moved = observer.bytes
    return Counts(
        compiled.metadata.shared,
        compiled.metadata.tmem_size,
        SIZE**3
        * 2
        * (config.rows + config.columns // config.cluster)
        // (config.rows * config.columns),
        moved["shared store by TMA"],
        instructions("cp.async.bulk.tensor"),
        instructions("tcgen05.mma"),
        sum(n for key, n in moved.items() if "operand" in key),
        instructions("tcgen05.commit"),
        instructions("mbarrier.arrive"),
        instructions("try_wait"),
        {role: round(number / tiles, 1) for role, number in sorted(roles.items())},
    )


def main() -> None:
    """Print a table, and write it if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = {name: asdict(count(fields)) for name, fields in STEPS.items()}
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    if given.json:
        given.json.write_text(json.dumps({"size": SIZE, "steps": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
