"""The emulated Blackwell beside Triton's interpreter, in one run.

    python -m benchmarks.emulator [--json FILE]

Both multiply fp16 matrices on the host, in tiles of 128 x 128 x 64: this project's tcgen05 matmul,
compiled to PTX and emulated, and the matmul of Triton's tutorials under TRITON_INTERPRET=1. Each
measurement is a process of its own: times are the median of three calls after a first one, which
compiles; memory is the process's peak beyond what it had before the first call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import harness
from benchmarks.harness import Row, Table

_MEASURE = """
import json, resource, statistics, sys, time
import torch
m, n, k = map(int, sys.argv[1:4])
a = torch.randn(m, k).half()
b = torch.randn(k, n).half()
{define}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
first = time.perf_counter()
c = multiply(a, b)
first = time.perf_counter() - first
times = []
for _ in range(3):
    start = time.perf_counter()
    c = multiply(a, b)
    times.append(time.perf_counter() - start)
whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
usage = [resource.getrusage(who).ru_maxrss for who in whose]
error = float((c.double() - a.double() @ b.double()).norm() / c.double().norm())
print(json.dumps({{"seconds": statistics.median(times), "first_seconds": first, "error": error,
                   "peak_mb": (max(usage[0] - before, 0) + usage[1]) / 1024}}))
"""

_EMULATED = """
import triton_ext
from triton_ext.kernels.spec import kernel_spec
config = kernel_spec(100, "fp16", "K", "MN", block_m=128, block_n=128, block_k=64, stages=4)
def multiply(a, b):
    return triton_ext.matmul(a, b, config=config)
"""

_INTERPRETED = """
import triton.language as tl
from benchmarks.triton_kernels import pointer_matmul
def multiply(a, b):
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype)
    grid = (-(-m // 128) * -(-n // 128),)
    pointer_matmul[grid](a, b, c, c, m, n, k, k, 1, n, 1, n, BM=128, BN=128, BK=64, ACC=tl.float32,
                         PRECISION="tf32", A_IN_REGISTERS=False, EPILOGUE="")
    return c
"""

SHAPES = [(256, 256, 256), (512, 512, 512), (1024, 512, 512), (1024, 1024, 512),
          (1024, 1024, 1024)]  # fmt: skip


def measure(shape: tuple[int, int, int], define: str, cores: int, **variables: str) -> Any:
    """Time one side, in a process that may use `cores` cores."""
    available = sorted(os.sched_getaffinity(0))[:cores]

    def restrict() -> None:
        os.sched_setaffinity(0, available)

    done = subprocess.run(
        [sys.executable, "-c", _MEASURE.format(define=define), *map(str, shape)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        preexec_fn=restrict,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


TABLE = Table(
    ("M x N x K", ">16", lambda row: "x".join(map(str, row["shape"]))),
    ("blocks", ">8", "blocks_of_128"),
    ("emulated", ">10.2f", lambda row: row["emulated"]["seconds"]),
    ("1 core", ">8.2f", lambda row: row["emulated_one_core"]["seconds"]),
    ("interp.", ">9.2f", lambda row: row["interpreted"]["seconds"]),
    ("ratio", ">7.2f", "ratio"),
    ("first call", ">12.2f", lambda row: row["emulated"]["first_seconds"]),
    ("peak MB", ">9.0f", lambda row: row["emulated"]["peak_mb"]),
)


CORES = len(os.sched_getaffinity(0))


def measured() -> Iterator[Row]:
    """A row for each shape."""
    for shape in SHAPES:
        emulated = measure(shape, _EMULATED, CORES)
        alone = measure(shape, _EMULATED, 1)
        theirs = measure(shape, _INTERPRETED, CORES, TRITON_INTERPRET="1")
        yield {
            "shape": shape,
            "blocks_of_128": -(-shape[0] // 128) * -(-shape[1] // 128),
            "emulated": emulated,
            "emulated_one_core": alone,
            "interpreted": theirs,
            "ratio": emulated["seconds"] / theirs["seconds"],
        }


if __name__ == "__main__":
    note = f"{CORES} cores; seconds of a call; ratio: emulated / interpreted"
    harness.main("emulator", __doc__, measured, TABLE, note)
