"""Findings about the layout of an allocation: bank conflicts, swizzles, padding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from triton_ext.layouts.cluster import shape_per_cta
from triton_ext.layouts.encodings import CHUNK_BYTES, PaddedShared
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.permuted import permuted
from triton_ext.passes.frame.base import Compilation
from triton_ext.passes.lint_shared.alternatives import (
    Alternatives,
    best_encoding,
    better_encoding,
    better_registers,
    change,
    swizzled_candidates,
    tma_encoding,
    widest_swizzle,
)
from triton_ext.passes.lint_shared.finding import Finding, LintOptions
from triton_ext.passes.shared_accesses import SharedAllocation
from triton_ext.render.words import by


def permutations(module: MlirModule) -> Iterator[Finding]:
    """Tiles that are read in a layout in which nothing writes them."""
    for each in permuted(module):
        yield Finding(
            "permuted",
            "",
            str(each),
            f"write it as {each.as_read.encoding}, too: reinterpret the memory before it is"
            " written, or allocate it so",
            each.read.location,
        )


def conflicts(
    allocation: SharedAllocation, kernel: Compilation, options: LintOptions
) -> Iterator[Finding]:
    """Moves with bank conflicts."""
    bad = [
        (use, use.planned)
        for use in allocation.moves
        if use.planned
        and use.planned.is_certain
        and use.planned.excess >= options.min_wavefronts
        and use.planned.pattern.wavefronts
        >= options.min_conflict * use.planned.pattern.ideal_wavefronts
    ]
    if not bad:
        return
    encoding = better_encoding(allocation, kernel)
    for use, move in bad:
        verb = "storing" if move.direction == "store" else "loading"
        yield Finding(
            "bank-conflict",
            allocation.name,
            f"{move.degree}-way bank conflict {verb} {by(use.tensor.shape)}"
            f" {use.tensor.element}: {move.mnemonic}, {move.pattern.wavefronts} wavefronts where"
            f" {move.pattern.ideal_wavefronts} would do",
            encoding or better_registers(use, move, kernel),
            use.operation.location,
        )


def _is_copied_whole(allocation: SharedAllocation) -> bool:
    """Whether TMA copies it, none of them row by row (gather, scatter)."""
    directions = {copy.direction for copy in allocation.copies}
    return bool(directions) and directions <= {"load", "store", "reduce"}


def swizzles(allocation: SharedAllocation, kernel: Compilation) -> Iterator[Finding]:
    """Swizzles that are missing, narrower than the shape allows, or of no use."""
    own = tma_encoding(allocation)
    if own is None or own.element_bitwidth != allocation.memory.element_bitwidth:
        return
    shape = allocation.tile
    if len(shape) != own.rank:
        return
    widest = widest_swizzle(own, shape)
    width, most = own.swizzle_byte_width, widest.swizzle_byte_width
    row = shape_per_cta(own.cga_layout, shape)[own.contiguous_dim] * own.element_bitwidth // 8
    wider = change(allocation, kernel, own, widest) if most > width else None
    effect = wider.effect(allocation.copies) if wider and wider.is_better else ""
    then = f": {effect}" if effect else ""
    unread = [use for use in allocation.mmas if use.derived is None]
    if width == 0 and most and allocation.mmas:
        use = allocation.mmas[0]
        why = (
            "no matrix descriptor reads it: Triton refuses it, or the product is garbage"
            if unread
            else f"its rows in shared memory are {CHUNK_BYTES} bytes"
        )
        yield Finding(
            "unswizzled-operand",
            allocation.name,
            f"operand {use.operand} of the MMA, {by(shape)} {allocation.memory.element}, has no"
            f" swizzle, and its rows of {row} bytes allow {most} bytes: {why}",
            f"use a swizzle of {most} bytes, {widest}{then}",
            (unread or [use])[0].operation.location,
        )
    elif effect and wider and wider.boxes[1] < wider.boxes[0]:  # conflicts are told of at the moves
        yield Finding(
            "narrow-swizzle",
            allocation.name,
            f"{allocation.name}, {by(shape)} {allocation.memory.element}, has"
            f" {f'a swizzle of {width} bytes' if width else 'no swizzle'}, and its rows of {row}"
            f" bytes allow {most}",
            f"use {widest}, or the pass widen-swizzle{then}",
            allocation.location,
        )
    elif width and _is_copied_whole(allocation) and not allocation.mmas and not allocation.others:
        plain = change(allocation, kernel, own, replace(own, swizzle_byte_width=0))
        if plain and plain.is_better and plain.boxes[1] < plain.boxes[0]:
            copy = max(allocation.copies, key=lambda each: each.boxes)
            yield Finding(
                "several-boxes",
                allocation.name,
                f"the TMA {copy.direction} of {by(copy.memory.shape)} {copy.memory.element} takes"
                f" {copy.boxes} boxes of {by(copy.box or ())} ({copy.box_bytes} bytes each),"
                " because of a swizzle that no MMA needs",
                f"without a swizzle (in Gluon, {plain.encoding}) {plain.effect(allocation.copies)}",
                copy.operation.location,
            )


def padding(allocation: SharedAllocation, kernel: Compilation) -> Iterator[Finding]:
    """Padding that a swizzle would save."""
    own = allocation.encoding
    if not isinstance(own, PaddedShared) or allocation.mmas or allocation.copies:
        return
    bits = allocation.memory.element_bitwidth
    for use in allocation.moves:
        if use.planned and use.planned.emitted_bytes:
            least = min(padding for _, padding in own.paddings) * bits // 8
            yield Finding(
                "misaligned-padding",
                allocation.name,
                f"a padding of {least} bytes puts the {8 * use.planned.emitted_bytes}-bit accesses"
                " that Triton makes at addresses that are no multiple of"
                f" {use.planned.emitted_bytes}: the kernel fails",
                f"pad by {8 * use.planned.emitted_bytes // bits} elements"
                f" ({use.planned.emitted_bytes} bytes) or a multiple",
                use.operation.location,
            )
    alternatives = Alternatives(allocation, kernel)
    best = best_encoding(alternatives, swizzled_candidates(allocation))
    needed = math.prod(allocation.memory.shape) * bits // 8
    if best and best[0] <= alternatives.present and needed < allocation.bytes:
        yield Finding(
            "padding",
            allocation.name,
            f"{allocation.bytes - needed} of the {allocation.bytes} bytes of {allocation.name} are"
            " padding",
            f"{best[1]} needs no padding, and takes {best[0]} wavefronts for all moves together"
            f" (now {alternatives.present})",
            allocation.location,
        )
