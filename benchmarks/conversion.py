"""One conversion of the seed's example: this project's Python beside Triton's C++.

    python -m benchmarks.conversion [--json FILE]

Triton is called through its Python binding, with the encoding already built; so are we.
"""

from __future__ import annotations

import functools
import statistics
import timeit
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import harness
from benchmarks.harness import Row, Table
from triton_ext import NVMMAShared, core_matrix_linear_layout, nvmma_shared_to_linear_layout
from triton_ext.layouts.encodings import SharedEncoding

CASES: list[tuple[tuple[int, ...], NVMMAShared]] = [
    ((128, 256), NVMMAShared(128, 16)),
    ((128, 64), NVMMAShared(128, 16)),
    ((64, 128), NVMMAShared(64, 8, transposed=True)),
    ((4, 64, 128), NVMMAShared(128, 16, rank=3)),
    ((512, 1024), NVMMAShared(128, 16, cga_layout=((1, 0), (0, 1)))),
]


def median_microseconds(function: Callable[[], Any]) -> float:
    """The median over 50 samples of 20 calls each."""
    return statistics.median(timeit.repeat(function, number=20, repeat=50)) / 20 * 1e6


def triton_converter() -> Callable[[tuple[int, ...], SharedEncoding], Callable[[], Any]] | None:
    """Makes, for a case, a call of Triton's conversion; None if Triton is not installed."""
    try:
        from triton_ext.layouts.triton.gluon import mlir_context, op_builder, to_gluon
    except ImportError:
        return None
    context = mlir_context()
    builder = op_builder(context)

    def make(shape: tuple[int, ...], encoding: SharedEncoding) -> Callable[[], Any]:
        attribute = to_gluon(encoding)._to_ir(builder)
        _alive = context  # the builder does not keep it
        return lambda: _alive and builder.to_linear_layout(attribute, list(shape))

    return make


TABLE = Table(
    ("ours us", ">8.1f", "ours_us"),
    ("core us", ">9.1f", "core_us"),
    ("Triton us", ">11.1f", "triton_us"),
    ("  case", "", lambda row: f"  {row['shape']} {row['encoding']}"),
)


def measured() -> Iterator[Row]:
    """The rows."""
    theirs = triton_converter()
    for shape, encoding in CASES:
        ours = functools.partial(nvmma_shared_to_linear_layout, shape, encoding)
        core = functools.partial(core_matrix_linear_layout, encoding)
        yield {
            "shape": shape,
            "encoding": str(encoding),
            "ours_us": median_microseconds(ours),
            "core_us": median_microseconds(core),
            "triton_us": median_microseconds(theirs(shape, encoding)) if theirs else None,
        }


if __name__ == "__main__":
    harness.main("conversion", __doc__, measured, TABLE)
