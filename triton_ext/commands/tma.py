"""``triton-ext tma``: the TMA copies that fill a tile of a tensor."""

from __future__ import annotations

from typing import Any

import click

from triton_ext.commands.common import (
    BASES,
    SHAPE,
    Description,
    Parsed,
    encoding_options,
    format_option,
    integers,
    rendering,
    show,
)
from triton_ext.hardware.tensor_map import TensorMap
from triton_ext.hardware.tma_tile import TileCopies, TmaBox, tile_copies
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.encodings import NVMMAShared
from triton_ext.render.words import by, counted

_LIST = Parsed("text", integers(base=0), "list of integers; write it as 4096,1")


@click.command()
@click.option("--shape", type=SHAPE, required=True, help="The tensor, such as 4096x4096.")
@click.option("--block", type=SHAPE, required=True, help="The tile, such as 128x256.")
@encoding_options(bits_required=True, fp4_padded=True)
@click.option("--strides", type=_LIST, help="Of the tensor, in elements: 4096,1.")
@click.option("--at", type=_LIST, help="The tile's first element: 4000,0. Default: zeros.")
@click.option(
    "--core-matrices",
    is_flag=True,
    help="With --swizzle 0: a tile of core matrices, as MMA reads it, rather than of rows.",
)
@click.option(
    "--address",
    default="0",
    type=Parsed("text", lambda text: int(text, 0), "address"),
    help="The tensor's address, such as 0x7f0000000000.",
)
@click.option("--cga", type=BASES, help="Bases of the cluster's blocks, such as [[1, 0]].")
@click.option("--cta", type=int, default=0, help="Which block of the cluster copies its part.")
@format_option("text", "json", "html", text="Tables, JSON, or a page that plays the copies.")
def tma(
    described: Description, shape: tuple[int, ...], block: tuple[int, ...],
    strides: tuple[int, ...] | None, at: tuple[int, ...] | None, core_matrices: bool, address: int,
    cga: Any, cta: int, form: str,
) -> None:  # fmt: skip
    """Show the tensor map of a tensor, and the TMA copies that fill one tile of it.

    How many copies and why, their coordinates and places in shared memory, the bytes that the
    mbarrier must expect, and what lies out of bounds. Illegal arguments are refused by the rule of
    cuTensorMapEncodeTiled that they break.

    \b
    Examples:
      triton-ext tma --shape 4096x4096 --bits 16 --block 128x256
      triton-ext tma --shape 4096x4096 --bits 16 --block 128x128 --at 4000,-64
      triton-ext tma --shape 1000x1000 --strides 1008,1 --bits 8 --block 64x128 --swizzle 64
      triton-ext tma --shape 4096x4096 --bits 16 --block 64x64 --swizzle 0 --core-matrices
      triton-ext tma --shape 4096x4096 --bits 16 --block 256x64 --cga '[[1, 0]]' --cta 1
    """
    layout: NVMMAShared | SwizzleAtom
    if core_matrices:
        if described.swizzle != 0:
            why = "--core-matrices is for --swizzle 0; other atoms have one layout"
            raise click.UsageError(why)
        if described.fp4_padded:
            raise click.UsageError("--core-matrices cannot be used with --fp4-padded")
        if cga is not None:
            raise click.UsageError("--core-matrices cannot be used with --cga")
        assert described.bits is not None
        layout = SwizzleAtom("MN" if described.transposed else "K", 0, described.bits)
    else:
        layout = described.encoding(block, cga or ())
    copies = tile_copies(
        shape, block, layout, at=at, strides=strides, cta=cta, global_address=address
    )
    show(
        form,
        json=lambda: _as_json(copies),
        text=lambda: _as_text(copies),
        html=rendering("html.tma_html", copies, block, shape, at, strides, cta),
    )


def _tensor_map_fields(tensor_map: TensorMap) -> dict[str, Any]:
    """The arguments, under CUDA's names and with CUDA's enumerators."""
    return {
        "tensorDataType": tensor_map.data_type.cuda_name,
        "tensorRank": tensor_map.rank,
        "globalAddress": tensor_map.global_address,
        "globalDim": list(tensor_map.global_dims),
        "globalStrides": list(tensor_map.global_strides),
        "boxDim": list(tensor_map.box_dims),
        "elementStrides": list(tensor_map.element_strides),
        "interleave": tensor_map.interleave.cuda_name,
        "swizzle": tensor_map.swizzle.cuda_name,
        "l2Promotion": tensor_map.l2_promotion.cuda_name,
        "oobFill": tensor_map.oob_fill.cuda_name,
    }


def _as_json(copies: TileCopies) -> dict[str, Any]:
    return {
        "tensor_map": _tensor_map_fields(copies.tensor_map),
        "layout": str(copies.layout),
        "tile_shape": list(copies.tile_shape),
        "start": list(copies.start),
        "copies": len(copies.boxes),
        "reasons": list(copies.reasons),
        "expect_tx_bytes": copies.transaction_bytes,
        "smem_bytes": copies.smem_bytes,
        "smem_alignment": copies.tensor_map.swizzle.alignment,
        "min_architecture": copies.tensor_map.min_architecture,
        "row_bytes": copies.tensor_map.row_bytes,
        "boxes": [
            {
                "start": list(box.start),
                "shape": list(box.shape),
                "coordinates": list(box.coordinates),
                "smem_offset": box.smem_offset,
                "bytes": box.transaction_bytes,
                "inside": [list(part) for part in box.inside],
                "elements_filled": box.elements_filled,
            }
            for box in copies.boxes
        ],
    }


def _outside(box: TmaBox) -> str:
    """Which elements of a box lie outside of the tensor, in words."""
    if not box.elements_filled:
        return "-"
    if not box.elements_inside:
        return "all of it"
    parts = []
    for i, ((first, end), size) in enumerate(zip(box.inside, box.shape, strict=True)):
        ranges = [(0, first), (end, size)]
        said = [f"{low}..{high - 1}" for low, high in ranges if low < high]
        if said:
            parts.append(f"dim{i} {', '.join(said)}")
    return f"{'; '.join(parts)} of the box"


def _table(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _as_text(copies: TileCopies) -> str:
    fields = [
        [f"  {name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)]
        for name, value in _tensor_map_fields(copies.tensor_map).items()
    ]
    rows = [["box", "first element", "instruction's coordinates", "smem", "bytes", "out of bounds"]]
    for i, box in enumerate(copies.boxes):
        rows.append(
            [
                str(i),
                f"({', '.join(map(str, box.start))})",
                "{" + ", ".join(map(str, box.coordinates)) + "}",
                f"+{box.smem_offset}",
                str(box.transaction_bytes),
                _outside(box),
            ]
        )
    filled = sum(box.elements_filled for box in copies.boxes)
    count = counted(len(copies.boxes), "copy", "copies")
    least = copies.tensor_map.min_architecture
    lines = [
        "tensor map (cuTensorMapEncodeTiled; the innermost dimension first, strides in bytes):",
        *_table(fields),
        *([f"  needs sm_{least} or later"] if least > 90 else []),
        "",
        f"{count} of {by(copies.box_shape)} for a tile of {by(copies.tile_shape)},"
        f" {copies.layout}:",
        *(f"  {reason}" for reason in copies.reasons),
        "",
        *_table(rows),
        "",
        f"expect_tx: {copies.transaction_bytes} bytes"
        + (f", {counted(filled, 'element')} out of bounds included" if filled else ""),
        f"shared memory: {copies.smem_bytes} bytes, at a multiple of"
        f" {copies.tensor_map.swizzle.alignment};"
        f" a row of a box is {copies.tensor_map.row_bytes} contiguous bytes of global memory",
    ]
    return "\n".join(lines)
