"""``triton-ext layout A B --convert``: how a tensor goes from one distributed layout to another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from triton_ext.commands.common import show
from triton_ext.hardware.architecture import target_number
from triton_ext.hardware.conversions import plan_conversion
from triton_ext.hardware.staging import Staging, stagings
from triton_ext.layouts.distributed import distributed_linear_layout
from triton_ext.render.conversion_text import (
    changed_bits,
    conversion_lines,
    conversion_object,
    staging_lines,
)
from triton_ext.render.words import by, counted


def show_conversion(
    attributes: tuple[str, ...],
    shape: tuple[int, ...] | None,
    bits: int | None,
    target: str,
    form: str,
    explained: bool,
) -> None:
    """Print how a tensor is converted. Raises click.UsageError: something is missing; LayoutError:
    the layouts are illegal, or do not go together.

    Args:
        attributes: of the two layouts, before and after.
        shape, bits: of the tensor, and of an element; both are needed.
        target: such as ``sm_90``.
        explained: whether to say which bits change their place.
    """
    if len(attributes) != 2:
        raise click.UsageError("--convert takes two attributes: the layout before, and that after")
    if shape is None or bits is None:
        raise click.UsageError("--convert needs --shape, and the width of an element: --bits")
    if form not in ("text", "json"):
        raise click.UsageError("--convert has --format text and json")
    arch = target_number(target)
    source, after = (distributed_linear_layout(text, shape) for text in attributes)
    planned = plan_conversion(source, after, bits, arch=arch)
    found: list[Staging] = []
    if planned.way == "shared memory" and planned.scratch and "block" not in source.in_dims:
        own = (planned.scratch.encoding,)
        found = stagings(source, after, bits, arch=arch, more=own)
    show(
        form,
        text=lambda: [
            f"{by(shape)}, {bits} bits an element, {counted(planned.warps, 'warp')}, {target}",
            *conversion_lines(conversion_object(planned)),
            *_between(found),
            *(changed_bits(source, after) if explained else ()),
        ],
        json=lambda: {
            "source": attributes[0],
            "target": attributes[1],
            "shape": list(shape),
            "element_bitwidth": bits,
            "arch": arch,
            "conversion": conversion_object(planned),
            "encodings": [_encoding(each) for each in found],
        },
    )


def _between(found: list[Staging]) -> Iterator[str]:
    if found:
        yield "shared encodings in between, the fewest wavefronts of store and load first:"
        yield from staging_lines(found)


def _encoding(each: Staging) -> dict[str, Any]:
    return {
        "encoding": str(each.encoding),
        "store": each.store.mnemonic,
        "load": each.load.mnemonic,
        "instructions_per_warp": each.instructions,
        "wavefronts": each.wavefronts,
    }
