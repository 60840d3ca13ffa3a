"""The registers of a warp's matrix instructions, as data for the page: who holds which element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from triton_ext.hardware.register_fragments import (
    LDMATRIX_M16N16,
    STMATRIX_M16N8,
    Fragment,
    accumulator_fragment,
    core_fragment,
    operand_fragment,
)
from triton_ext.hardware.tensor_memory_access import CHOSEN_SHAPES, TmemAccess
from triton_ext.layouts.gf2 import powers_below
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

_ARRANGED = "Drawn as a block of 16 x 16: matrix 1 below matrix 0, 2 and 3 on their right."


def _shown(
    group: str,
    name: str,
    instruction: str,
    fragment: Fragment,
    about: str = "",
    names: tuple[str, str] = ("rows", "columns"),
) -> dict[str, Any]:
    layout = fragment.layout.bases
    return {"group": group, "name": name, "instruction": instruction, "about": about,
            "names": names, "shape": fragment.shape, **layout}  # fmt: skip


def _matrix_moves() -> Iterator[dict[str, Any]]:
    """ldmatrix and stmatrix of 8x8 matrices, and their 8-bit forms of sm_100."""
    core = core_fragment(16)
    for move, count, trans in itertools.product(
        ("ldmatrix", "stmatrix"), (1, 2, 4), ("", ".trans")
    ):
        one = core.transposed if trans else core
        registers = ((ATOM_ROWS, 0), (0, ATOM_ROWS))[: count.bit_length() - 1]
        last = 8 * count - 1
        said = f"Lanes 0-{last} give the addresses of the {8 * count} rows, 8 lanes a matrix."
        yield _shown(
            move, f"{move}.x{count}{trans}", f"{move}.sync.aligned.m8n8.x{count}{trans}.shared.b16",
            Fragment(one.parts, registers, one.threads), f"{said} {_ARRANGED if count > 1 else ''}",
        )  # fmt: skip
    for name, fragment in (("ldmatrix.m16n16.x1.trans", LDMATRIX_M16N16),
                           ("stmatrix.m16n8.x1.trans", STMATRIX_M16N8)):  # fmt: skip
        move, rest = name.split(".", 1)
        yield _shown(
            move, f"{name}.b8", f"{move}.sync.aligned.{rest}.shared.b8", fragment, "sm_100."
        )


def _products() -> Iterator[dict[str, Any]]:
    """Operands and accumulators of wgmma and mma."""
    warps = "The 16 rows of warp 0; the other warps of the warpgroup hold the next ones alike."
    for bits, n in itertools.product((32, 16), (8, 16, 32, 64)):
        eight = accumulator_fragment(16, bits)
        more = tuple((0, step) for step in powers_below(n) if step >= 8)
        wide = Fragment(eight.parts, (*eight.registers, *more), eight.threads)
        name = f"wgmma D, m64n{n}, f{bits}"
        kind = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f{bits}.f16.f16"
        yield _shown("wgmma", name, kind, wide, warps, ("rows (M)", "columns (N)"))
    for bits, kind in ((16, "f16"), (8, "e4m3"), (32, "tf32")):
        k = 256 // bits
        name, names = f"wgmma A, m64k{k}, {kind}", ("rows (M)", "columns (K)")
        said = f"wgmma.mma_async.sync.aligned.m64n8k{k}.f32.{kind}.{kind}"
        yield _shown("wgmma", name, said, operand_fragment("a", 16, k, bits), warps, names)
    said = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    for operand, fragment, names in (
        ("A", operand_fragment("a", 16, 16, 16), ("rows (M)", "columns (K)")),
        ("B", operand_fragment("b", 8, 16, 16), ("rows (K)", "columns (N)")),
        ("D", accumulator_fragment(16, 32), ("rows (M)", "columns (N)")),
    ):
        yield _shown("mma", f"mma {operand}, m16n8k16, f16", said, fragment, "", names)


def _tensor_loads() -> Iterator[dict[str, Any]]:
    """tcgen05.ld: the rows are lanes of tensor memory, the columns its columns of 32 bits."""
    for name, count in itertools.product(CHOSEN_SHAPES, (1, 2, 4, 8)):
        access = TmemAccess(name, count)
        registers, threads = access.bases()
        held = Fragment((), tuple(registers), tuple(threads))
        about = "A row is a lane of tensor memory, from the first of the warp's 32."
        short = f"tcgen05.ld.{name}.x{count}"
        yield _shown("tcgen05.ld", short, access.instruction(), held, about, ("lanes", "columns"))


def fragments() -> Iterator[dict[str, Any]]:
    """Each with its name, group, PTX instruction, shape, and its bases."""
    yield from _matrix_moves()
    yield from _products()
    yield from _tensor_loads()
