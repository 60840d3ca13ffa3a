"""The TMA copies and ``expect_tx`` that operations must become (``LoadStoreOpToLLVM.cpp``).

The boxes are derived from the layouts of the tiles; nothing is taken from the compiler but their
order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache

from triton_ext.hardware.tma_tile import TileCopies, tile_copies
from triton_ext.layouts.cluster import within_block
from triton_ext.layouts.encodings import NVMMAShared
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.types import MemoryType, tensor_type
from triton_ext.passes.value_layouts import parsed_encoding, register_layout
from triton_ext.passes.verify_descriptors.meaning.expected import (
    Expected,
    ExpectedBox,
    Lowering,
    NotDerived,
)
from triton_ext.passes.verify_descriptors.meaning.tiles import (
    element_bytes,
    is_fp4_padded,
    tile_layout,
)
from triton_ext.ptx.forms.copies import GATHERED_ROWS

_REDUCTIONS = ("add", "min", "max", "and", "or", "xor", "inc", "dec")
_LOADED = r"\.mbarrier::complete_tx::bytes(\.multicast::cluster)?"
_STORED = r"(\.tile)?\.bulk_group(\.L2::cache_hint)?"
_TO_CTA = r"(\.cta_group::[12])?\.shared::(cta|cluster)\.global"


def load(lowering: Lowering, operation: Operation) -> Expected:
    """``async_tma_copy_global_to_local``, of tiles or im2col."""
    coordinates = _coordinates(operation)
    rank = len(coordinates)
    tile, barrier = _tile_and_barrier(lowering, operation.operands[1 + rank :])
    is_im2col = "im2col" in (operation.operands[0].type or "")
    boxes = _im2col_boxes if is_im2col else _tile_boxes
    mode = r"\.im2col" if is_im2col else r"(\.tile)?"
    opcode = (
        rf"cp\.async\.bulk\.tensor\.{rank}d{_TO_CTA}{mode}{_LOADED}(\.cta_group::[12])?"
        r"(\.L2::cache_hint)?"
    )
    return Expected(
        operation, "tma", opcode=opcode, boxes=boxes(lowering.memory(tile), rank), tile=tile,
        barrier=barrier, coordinates=coordinates,
    )  # fmt: skip


def store(lowering: Lowering, operation: Operation) -> Expected:
    """``async_tma_copy_local_to_global``."""
    return _store(lowering, operation, "cp", "")


def reduce(lowering: Lowering, operation: Operation) -> Expected:
    """``async_tma_reduce``."""
    words = [token.text for token in operation.tokens if token.kind == "word"]
    if len(words) < 2 or words[1] not in _REDUCTIONS:
        raise NotDerived("a reduction of a kind that is not known")
    return _store(lowering, operation, r"cp\.reduce", rf"\.{words[1]}")


def _store(lowering: Lowering, operation: Operation, base: str, kind: str) -> Expected:
    coordinates = _coordinates(operation)
    rank = len(coordinates)
    tile = operation.operands[1 + rank]
    to_global = rf"\.{rank}d(\.tile)?\.global\.shared::cta"
    return Expected(
        operation, "tma", opcode=rf"{base}\.async\.bulk\.tensor{to_global}{kind}{_STORED}",
        boxes=_tile_boxes(lowering.memory(tile), rank), tile=tile, coordinates=coordinates,
        after=(("store commit", None, None),),
    )  # fmt: skip


def gather(lowering: Lowering, operation: Operation) -> Expected:
    """``async_tma_gather``."""
    opcode = rf"cp\.async\.bulk\.tensor\.2d\.tile::gather4{_TO_CTA}{_LOADED}"
    return _rows(lowering, operation, opcode, *_tile_and_barrier(lowering, operation.operands[1:]))


def scatter(lowering: Lowering, operation: Operation) -> Expected:
    """``async_tma_scatter``."""
    opcode = r"cp\.async\.bulk\.tensor\.2d\.tile::scatter4\.global\.shared::cta\.bulk_group"
    tile = next(value for value in operation.operands[1:] if lowering.module.memory(value))
    return _rows(lowering, operation, opcode, tile, None)


def _rows(
    lowering: Lowering, operation: Operation, opcode: str, tile: Value, barrier: Value | None
) -> Expected:
    """Four rows an instruction, as wide as a box."""
    kind = lowering.memory(tile)
    copies = _copies(kind, 2)
    box_rows, width = copies.box_shape
    rows, columns = copies.tile_shape
    factor = 2 if is_fp4_padded(kind.encoding) else 1
    unit, messages = element_bytes(kind), columns // width
    starts = {box.start: box.smem_offset for box in copies.boxes}
    boxes = tuple(
        ExpectedBox(
            starts[row - row % box_rows, column] + row % box_rows * width * factor * unit,
            (column * factor, row),
            GATHERED_ROWS * width * unit,
        )
        for row in range(0, rows, GATHERED_ROWS)
        for column in range(0, columns, width)
    )
    return Expected(
        operation, "tma", opcode=opcode, boxes=boxes, tile=tile, barrier=barrier,
        coordinates=_coordinates(operation), rows=GATHERED_ROWS,
        shares=_shares(lowering, operation, messages),
        after=() if barrier else (("store commit", None, None),),
    )  # fmt: skip


def _shares(lowering: Lowering, operation: Operation, messages: int) -> tuple[tuple[int, ...], ...]:
    """The numbers of the boxes that each warp issues, by the layout of the rows' indices.

    Four registers hold the indices of an instruction; registers and warps that repeat others' are
    idle (``iterateGatherScatterIndices``). `messages`: the boxes of four rows, one beside the
    other.
    """
    indices = (tensor_type(each.type or "", lowering.module.aliases) for each in operation.operands)
    tensor = next((each for each in indices if each is not None), None)
    if tensor is None:
        raise NotDerived("the type of the rows' indices is not that of a tensor")
    layout = within_block(register_layout(tensor, lowering.module))
    (name,) = layout.out_dims
    found = []
    for warp in range(layout.in_dims["warp"]):
        repeats = any(
            warp >> bit & 1 and not any(basis) for bit, basis in enumerate(layout.bases["warp"])
        )
        rows = dict.fromkeys(
            int(layout.apply(register=register, lane=0, warp=warp)[name])
            for register in range(0, layout.in_dims["register"], GATHERED_ROWS)
        )
        boxes = (
            row // GATHERED_ROWS * messages + message for row in rows for message in range(messages)
        )
        found.append(() if repeats else tuple(boxes))
    return tuple(found)


def expect(lowering: Lowering, operation: Operation) -> Expected:
    """``barrier_expect``."""
    size = _number(operation)
    if size is None:
        raise NotDerived("the number of bytes is not printed")
    return Expected(
        operation, "expect", opcode=r"mbarrier\.arrive\.expect_tx\.shared::(cta|cluster)\.b64",
        barrier=operation.operands[0], bytes=size,
    )  # fmt: skip


def barrier(kind: str) -> Callable[[Lowering, Operation], Expected]:
    """Operations on an mbarrier alone, with a number of arrivals."""

    def rule(lowering: Lowering, operation: Operation) -> Expected:
        return Expected(
            operation, kind, barrier=operation.operands[0],
            number=None if kind == "wait" else _number(operation),
            phase=operation.operands[1] if kind == "wait" else None,
        )  # fmt: skip

    return rule


def store_wait(lowering: Lowering, operation: Operation) -> Expected:
    """``async_tma_store_wait``."""
    return Expected(operation, "store wait", number=int(operation.attributes.get("pendings", 0)))


def _number(operation: Operation) -> int | None:
    """The first number behind a comma."""
    return next(
        (
            int(token.text)
            for before, token in itertools.pairwise(operation.tokens)
            if token.kind == "number" and before.text == ","
        ),
        None,
    )


def _coordinates(operation: Operation) -> tuple[Value, ...]:
    """What stands in the brackets behind the descriptor."""
    opening, closing = (
        next(each.start for each in operation.tokens if each.kind == "mark" and each.text == mark)
        for mark in "[]"
    )
    return tuple(
        value
        for token, value in zip(operation.operand_tokens, operation.operands, strict=True)
        if opening < token.start < closing
    )


def _tile_and_barrier(lowering: Lowering, operands: list[Value]) -> tuple[Value, Value]:
    """The two memory operands of a load: releases print them in either order."""
    first, second = [value for value in operands if lowering.module.memory(value)][:2]
    kind = lowering.memory(second)
    is_barrier = kind.element == "i64" and kind.shape[-1] < 32
    return (first, second) if is_barrier else (second, first)


def _copies(tile: MemoryType, rank: int) -> TileCopies:
    encoding = parsed_encoding(tile.encoding)
    if not isinstance(encoding, NVMMAShared):
        raise NotDerived(f"a TMA copy to {tile.mnemonic}")
    if encoding.rank != rank:
        raise NotDerived(f"{rank} coordinates for an encoding of rank {encoding.rank}")
    return _tile_copies(tile.shape[-rank:], encoding)


@lru_cache(maxsize=1024)
def _tile_copies(shape: tuple[int, ...], encoding: NVMMAShared) -> TileCopies:
    return tile_copies((256,) * len(shape), shape, encoding)


def _tile_boxes(tile: MemoryType, rank: int) -> tuple[ExpectedBox, ...]:
    boxes = _copies(tile, rank).boxes
    offsets = [box.smem_offset for box in boxes]
    if tile.shape[-rank:] != tile.allocated[-rank:]:
        # The boxes of a part lie where the whole tile has them.
        if is_fp4_padded(tile.encoding):
            raise NotDerived("a part of padded fp4")
        inverse = tile_layout(tile).pseudoinvert()
        offsets = [
            inverse.apply(dict(zip(inverse.in_dims, box.start, strict=True)))["offset"]
            * element_bytes(tile)
            for box in boxes
        ]
    return tuple(
        ExpectedBox(offset, box.coordinates, box.transaction_bytes)
        for offset, box in zip(offsets, boxes, strict=True)
    )


def _im2col_boxes(tile: MemoryType, rank: int) -> tuple[ExpectedBox, ...]:
    """Pixels are not cut (a box has up to 1024); channels are, at the swizzle's width."""
    encoding = parsed_encoding(tile.encoding)
    if not isinstance(encoding, NVMMAShared) or encoding.cga_layout or encoding.transposed:
        raise NotDerived("an im2col copy of such a tile")
    pixels, channels = tile.shape[-2:]
    unit = element_bytes(tile)
    width = encoding.swizzle_byte_width // unit or channels
    size = pixels * width * unit
    return tuple(
        ExpectedBox(i * size, (i * width,) + (0,) * (rank - 1), size)
        for i in range(channels // width)
    )
