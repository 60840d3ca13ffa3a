"""What operations of Triton's dialects do with memory: the names that several passes ask for."""

from __future__ import annotations

import re
from typing import Literal

from triton_ext.mlir.ir import Operation

CopyDirection = Literal["load", "store", "reduce", "gather", "scatter"]

MMAS = ("ttng.warp_group_dot", "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled")
"""Their first two operands are A and B."""
TMA_COPIES: dict[str, CopyDirection] = {
    "ttng.async_tma_copy_global_to_local": "load",
    "ttng.async_tma_copy_local_to_global": "store",
    "ttng.async_tma_reduce": "reduce",
    "ttng.async_tma_gather": "gather",
    "ttng.async_tma_scatter": "scatter",
}
"""Their first operand is the descriptor; Triton wants its encoding to be that of the tile."""
TMA_STORES = tuple(name for name, what in TMA_COPIES.items() if what not in ("load", "gather"))
"""Those that take a tile out of shared memory."""
CONTROL_FLOW = (
    "scf.for", "scf.while", "scf.if", "scf.yield", "scf.condition",
    "cf.br", "cf.cond_br", "arith.select", "ttg.warp_specialize", "ttg.warp_yield",
)  # fmt: skip
"""Operations within a function that forward values."""


def subslice_offsets(view: Operation) -> tuple[int, ...]:
    """Where a ``ttg.memdesc_subslice`` begins along each dimension; () if it does not print it."""
    found = re.search(r"\[([\d,\s]+)\]", view.text)
    return tuple(map(int, found[1].split(","))) if found else ()
