"""``triton-ext descriptor``: decode a descriptor, or derive the one of a layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from triton_ext.commands.common import ShapeType, described_encoding, encoding_options
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import architecture
from triton_ext.hardware.instruction_descriptor import KINDS, InstructionDescriptor
from triton_ext.hardware.instruction_descriptor import raw_fields as instruction_fields
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, MmaOperand, derive_operand
from triton_ext.hardware.smem_descriptor import SmemDescriptor, problems, raw_fields
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import nvmma_shared_to_linear_layout


@click.command()
@click.argument("what", required=False, metavar="[VALUE | ATTRIBUTE]")
@click.option("--arch", default="sm_100", show_default=True, help="sm_90 or sm_100.")
@encoding_options(bits=(8, 16, 32))
@click.option("--shape", type=ShapeType(), help="The tile: M x K of A, K x N of B.")
@click.option(
    "--instr", type=ShapeType(), help="The MMA's operand: M or N, then K. Default: 64 x K."
)
@click.option(
    "--operand", type=click.Choice(["a", "b"]), default="a", show_default=True, help="A or B."
)
@click.option(
    "--start", type=int, default=0, help="Address of the tile in shared memory, in bytes."
)
@click.option("--explain", "explained", is_flag=True, help="Derive it in CuTe's five steps, too.")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="The value is a 32-bit instruction descriptor of tcgen05.mma, of this kind.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "svg", "html"]),
    default="text",
    show_default=True,
    help="Text, JSON, a picture, or a page.",
)
def descriptor(
    what: str | None,
    arch: str,
    swizzle: str | None,
    bits: str | None,
    shape: tuple[int, ...] | None,
    instr: tuple[int, ...] | None,
    operand: str,
    transposed: bool,
    start: int,
    explained: bool,
    kind: str | None,
    form: str,
) -> None:
    """Decode a 64-bit matrix descriptor, or derive that of a tile.

    A number is decoded, and what is illegal in it is said; with --kind it is an instruction
    descriptor. A layout (an MLIR attribute, or
    --swizzle with --bits) is derived: the descriptor of its first MMA subtile, and what to add to
    the start address for the others.

    \b
    Examples:
      triton-ext descriptor 0x4000404000010000 --arch sm_100
      triton-ext descriptor --swizzle 128 --bits 16 --shape 128x128 --instr 64x16
      triton-ext descriptor --swizzle 64 --bits 16 --shape 128x128 --transposed --explain
      triton-ext descriptor --swizzle 64 --bits 16 --shape 128x128 --format html
      triton-ext descriptor 0x08200490 --kind f16
    """
    if what is not None and not what.lstrip().startswith("#"):
        if shape is not None or swizzle is not None:
            raise click.UsageError("give a value to decode, or a layout, not both")
        if kind is not None:
            _decode_instruction(_number(what, 32), kind, form)
        else:
            _decode(_number(what, 64), arch, form)
        return
    if kind is not None:
        raise click.UsageError("--kind is for a value to decode")
    if bits is None:
        raise click.UsageError("give a value to decode, or a layout with --bits")
    encoding, layout = _layout(what, swizzle, int(bits), shape, transposed)
    if instr is None:
        instr = (64, 8 * INSTRUCTION_K_BYTES // int(bits))
    if len(instr) != 2:
        raise LayoutError("instr", instr, "must be M or N, then K, such as 64x16")
    mn_dim = 0 if operand == "a" else 1
    derived = derive_operand(
        layout, int(bits), (instr[0], instr[1]), arch=arch, mn_dim=mn_dim, base_address=start
    )
    if form == "json":
        click.echo(json.dumps(_derived_object(derived), indent=2))
    elif form in ("svg", "html"):
        from triton_ext.render.descriptor_page import operand_html  # the template engine is slow
        from triton_ext.render.svg import operand_svg

        draw = operand_svg if form == "svg" else operand_html
        click.echo(draw(layout, derived, mn_dim=mn_dim))
    else:
        click.echo(f"{encoding}\n")
        click.echo("\n".join(_derived_lines(derived)))
        if explained:
            click.echo("\n" + _cute_steps(derived))


def _layout(
    what: str | None,
    swizzle: str | None,
    bits: int,
    shape: Sequence[int] | None,
    transposed: bool,
) -> tuple[NVMMAShared | SharedLinear, LinearLayout]:
    """The encoding and the layout that the arguments describe."""
    if what is not None:
        if swizzle is not None or transposed:
            raise click.UsageError("give an attribute, or --swizzle and --transposed, not both")
        encoding = parse_encoding(what)
        if isinstance(encoding, SharedLinear):
            return encoding, encoding.to_linear_layout()
        if not isinstance(encoding, NVMMAShared):
            raise LayoutError("attribute", what, "must be an nvmma_shared or a shared_linear")
    elif shape is None:
        raise click.UsageError("give --shape")
    else:
        encoding = described_encoding(shape, swizzle, bits, transposed)
    if shape is None:
        raise click.UsageError("give --shape")
    if encoding.element_bitwidth != bits:
        raise LayoutError("bits", bits, f"must be {encoding.element_bitwidth}, as in the attribute")
    return encoding, nvmma_shared_to_linear_layout(shape, encoding)


def _number(text: str, width: int) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise LayoutError(
            "descriptor", text, "must be a number, such as 0x4000404000010000"
        ) from None
    if -(1 << (width - 1)) <= value < 0:  # PTX prints signed numbers
        value += 1 << width
    return value


def _decode_instruction(value: int, kind: str, form: str) -> None:
    decoded = InstructionDescriptor.decode(value, kind)
    if form == "json":
        found = {"descriptor": f"{value:#010x}", "raw": instruction_fields(value, kind)}
        click.echo(json.dumps({**found, "fields": vars(decoded)}, indent=2))
    elif form in ("svg", "html"):
        from triton_ext.render.descriptor_page import instruction_descriptor_html
        from triton_ext.render.svg import instruction_descriptor_svg

        draw = instruction_descriptor_svg if form == "svg" else instruction_descriptor_html
        click.echo(draw(value, kind))
    else:
        click.echo(f"{value:#010x}")
        for line in decoded.describe():
            click.echo(f"  {line}")


def _decode(value: int, arch: str, form: str) -> None:
    raw, wrong = raw_fields(value, arch), problems(value, arch)
    decoded = None if wrong else SmemDescriptor.decode(value, arch)
    if form == "json":
        fields = dict(vars(decoded)) if decoded else None
        found = {"descriptor": f"{value:#018x}", "arch": f"sm_{architecture(arch)}"}
        click.echo(json.dumps({**found, "raw": raw, "fields": fields, "problems": wrong}, indent=2))
        return
    if form in ("svg", "html"):
        from triton_ext.render.descriptor_page import descriptor_html
        from triton_ext.render.svg import descriptor_svg

        click.echo(descriptor_svg(value, arch) if form == "svg" else descriptor_html(value, arch))
        return
    click.echo(f"{value:#018x} on sm_{architecture(arch)}")
    for line in decoded.describe() if decoded else [f"{k} = {v:#x}" for k, v in raw.items()]:
        click.echo(f"  {line}")
    if wrong:
        raise LayoutError("descriptor", f"{value:#018x}", "; ".join(wrong))


def _derived_lines(derived: MmaOperand) -> list[str]:
    own = derived.descriptor
    unused = [
        name
        for name, used in (("LBO", derived.uses_leading), ("SBO", derived.uses_stride))
        if not used
    ]
    lines = [
        f"{derived.major}-major operand, tile (M or N, K) = {derived.tile},"
        f" instruction {derived.instruction}, {derived.element_bitwidth} bits",
        f"descriptor {own.encode():#018x}",
        *(f"  {line}" for line in own.describe()),
    ]
    if unused:
        lines.append(f"  not used by this instruction: {', '.join(unused)}")
    width = max(len(str(advance)) for row in derived.advances for advance in row) + 2
    lines.append("bytes to add to the start address (rows: M or N subtiles; columns: K subtiles)")
    lines += ["".join(str(advance).rjust(width) for advance in row) for row in derived.advances]
    return lines


def _derived_object(derived: MmaOperand) -> dict[str, Any]:
    return {
        "descriptor": f"{derived.descriptor.encode():#018x}",
        "fields": vars(derived.descriptor),
        "major": derived.major,
        "element_bitwidth": derived.element_bitwidth,
        "tile": list(derived.tile),
        "instruction": list(derived.instruction),
        "advances": [list(row) for row in derived.advances],
        "uses_leading": derived.uses_leading,
        "uses_stride": derived.uses_stride,
    }


def _cute_steps(derived: MmaOperand) -> str:
    from triton_ext.layouts.atoms import SwizzleAtom
    from triton_ext.layouts.cute import derive_steps

    width = derived.descriptor.swizzle_byte_width
    atom = SwizzleAtom(derived.major, width, derived.element_bitwidth)
    return str(derive_steps(atom, derived.tile, derived.instruction))
