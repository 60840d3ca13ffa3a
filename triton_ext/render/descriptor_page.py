"""Descriptors as one HTML file: the picture, and its numbers as tables that can be searched."""

from __future__ import annotations

from triton_ext.hardware.operand import MmaOperand
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.descriptor_picture import (
    Field,
    instruction_fields,
    instruction_scene,
    matrix_fields,
    matrix_scene,
)
from triton_ext.render.operand_picture import operand_scene
from triton_ext.render.scene import DARK, LIGHT, Scene, by, environment

__all__ = ["descriptor_html", "instruction_descriptor_html", "operand_html"]


def _page(
    subtitle: str,
    title: str,
    scene: Scene,
    fields: list[Field],
    descriptors: list[list[tuple[int, int]]],
) -> str:
    return (
        environment()
        .get_template("descriptor.html")
        .render(
            title=title,
            subtitle=subtitle,
            scene=scene,
            fields=fields,
            descriptors=descriptors,
            light=LIGHT,
            dark=DARK,
        )
    )


def descriptor_html(value: int, arch: int | str) -> str:
    """The page of a 64-bit matrix descriptor; see `triton_ext.render.svg.descriptor_svg`."""
    scene = matrix_scene(value, arch)
    fields = matrix_fields(value, arch)
    faults = sum(1 for field in fields if field.problem)
    said = f"{faults or 'no'} illegal field{'s' * (faults != 1)}"
    return _page(f"{value:#018x}: {said}.", "Matrix descriptor", scene, fields, [])


def instruction_descriptor_html(value: int, kind: str) -> str:
    """The page of a 32-bit instruction descriptor."""
    scene = instruction_scene(value, kind)
    fields = instruction_fields(value, kind)
    return _page("Of tcgen05.mma.", "Instruction descriptor", scene, fields, [])


def operand_html(layout: LinearLayout, derived: MmaOperand, *, mn_dim: int = 0) -> str:
    """The page of a derived descriptor; see `triton_ext.render.svg.operand_svg`."""
    own = derived.descriptor
    rows = zip(derived.descriptors(), derived.advances, strict=True)
    table = [
        [(one.encode(), advance) for one, advance in zip(row, advances, strict=True)]
        for row, advances in rows
    ]
    return _page(
        f"{derived.major}-major operand, {by(derived.tile)} elements of"
        f" {derived.element_bitwidth} bits, read {by(derived.instruction)} at a time.",
        f"Descriptors of a tile on sm_{own.arch}",
        operand_scene(layout, derived, mn_dim=mn_dim),
        matrix_fields(own.encode(), own.arch),
        table,
    )
