"""Descriptors as one HTML file: the picture, and its numbers as tables that can be searched."""

from __future__ import annotations

from triton_ext.hardware.operand import MmaOperand
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.descriptor_picture import (
    instruction_fields,
    instruction_scene,
    matrix_fields,
    matrix_scene,
)
from triton_ext.render.operand_picture import operand_scene
from triton_ext.render.scene import rendered
from triton_ext.render.words import by

__all__ = ["descriptor_html", "instruction_descriptor_html", "operand_html"]


def descriptor_html(value: int, arch: int | str) -> str:
    """The page of a 64-bit matrix descriptor; see `triton_ext.render.svg.descriptor_svg`."""
    fields = matrix_fields(value, arch)
    faults = sum(1 for field in fields if field.problem)
    return rendered(
        "descriptor.html",
        title="Matrix descriptor",
        subtitle=f"{value:#018x}: {faults or 'no'} illegal field{'s' * (faults != 1)}.",
        scene=matrix_scene(value, arch),
        fields=fields,
    )


def instruction_descriptor_html(value: int, kind: str) -> str:
    """The page of a 32-bit instruction descriptor."""
    return rendered(
        "descriptor.html",
        title="Instruction descriptor",
        subtitle="Of tcgen05.mma.",
        scene=instruction_scene(value, kind),
        fields=instruction_fields(value, kind),
    )


def operand_html(layout: LinearLayout, derived: MmaOperand, *, mn_dim: int = 0) -> str:
    """The page of a derived descriptor; see `triton_ext.render.svg.operand_svg`."""
    own = derived.descriptor
    return rendered(
        "descriptor.html",
        title=f"Descriptors of a tile on sm_{own.arch}",
        subtitle=f"{derived.major}-major operand, {by(derived.tile)} elements of"
        f" {derived.element_bitwidth} bits, read {by(derived.instruction)} at a time.",
        scene=operand_scene(layout, derived, mn_dim=mn_dim),
        fields=matrix_fields(own.encode(), own.arch),
        derived=derived,
    )
