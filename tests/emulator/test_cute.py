"""Blackwell kernels that NVIDIA's CuTe DSL compiles, on the emulator (``make oracle``).

The compiler, its pipelines (mbarriers, the allocation of tensor memory, the pairs of CTAs), its
descriptors and its epilogue are NVIDIA's: what comes out right here was read as NVIDIA means it.
"""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass", reason="needs the extra 'oracle'")

from cute_matmuls import Problem, compiled


def job(
    a_type: str, b_type: str, tile: tuple[int, int, int], atoms: tuple[str, str], ctas: int = 1
) -> dict[str, object]:
    d_type = "Int32" if "nt8" in a_type else "Float32"
    return {
        "arch": 100, "types": [a_type, b_type, d_type], "tile": tile, "instruction": tile[:2],
        "atoms": atoms, "ctas": ctas, "stages": 2,
    }  # fmt: skip


HALF, FP8 = ("Float16", "Float16"), ("Float8E4M3FN", "Float8E5M2")
KK, MM = ("K_SW128", "K_SW128"), ("MN_SW128", "MN_SW64")
JOBS = [
    job(*HALF, (128, 128, 64), KK),
    job("BFloat16", "BFloat16", (128, 256, 64), MM),
    job(*HALF, (64, 128, 64), ("K_SW32", "MN_SW128")),
    job(*FP8, (128, 128, 128), ("K_SW64", "MN_SW128")),
    job("Int8", "Int8", (128, 128, 64), ("MN_SW64", "K_SW64")),
    job("Uint8", "Uint8", (64, 64, 128), KK),
    job("TFloat32", "TFloat32", (128, 128, 32), ("MN_SW128_32B", "K_SW128")),
    job(*HALF, (256, 128, 64), KK, 2),
    job("BFloat16", "BFloat16", (256, 256, 64), MM, 2),
    job(*HALF, (128, 64, 64), ("MN_SW64", "K_SW128"), 2),
    job(*FP8, (256, 128, 128), ("K_SW128", "MN_SW64"), 2),
    job("TFloat32", "TFloat32", (256, 128, 32), ("K_SW128", "MN_SW128_32B"), 2),
]


@pytest.fixture(scope="module")
def kernels() -> list[str]:
    """The PTX of each job."""
    return compiled(JOBS)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random"])
@pytest.mark.parametrize("number", range(len(JOBS)), ids=[
    f"{task['types'][0]}-{task['tile'][0]}x{task['tile'][1]}-{'-'.join(task['atoms'])}"
    f"-{task['ctas']}" for task in JOBS
])  # fmt: skip
def test_matmul_of_the_cute_dsl(kernels: list[str], number: int, schedule: str) -> None:
    problem = Problem(JOBS[number])
    problem.run(kernels[number], schedule)
    assert (problem.d == problem.expected).all()
