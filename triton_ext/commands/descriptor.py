"""``triton-ext descriptor``: decode a descriptor, or derive the one of a layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from triton_ext.commands.common import (
    SHAPE,
    Description,
    encoding_options,
    format_option,
    refuse,
    rendering,
    show,
)
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
@click.option("--arch", default="sm_100", show_default=True, help="sm_90, sm_100 or sm_103.")
@encoding_options(bits=(8, 16, 32))
@click.option("--shape", type=SHAPE, help="The tile: M x K of A, K x N of B.")
@click.option("--instr", type=SHAPE, help="The MMA's operand: M or N, then K. Default: 64 x K.")
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
@format_option("text", "json", "svg", "html", text="Text, JSON, a picture, or a page.")
def descriptor(
    described: Description,
    what: str | None,
    arch: str,
    shape: tuple[int, ...] | None,
    instr: tuple[int, ...] | None,
    operand: str,
    start: int,
    explained: bool,
    kind: str | None,
    form: str,
) -> None:
    """Decode a 64-bit matrix descriptor, or derive that of a tile.

    A number is decoded, and what is illegal in it is said (exit status 1); with --kind it is an
    instruction descriptor. Of a layout (an MLIR attribute with --bits, or --swizzle and --bits) the
    descriptor of the first MMA subtile is derived, and what to add to the start address for the
    others.

    \b
    Examples:
      triton-ext descriptor 0x4000404000010000 --arch sm_100
      triton-ext descriptor --swizzle 128 --bits 16 --shape 128x128 --instr 64x16
      triton-ext descriptor --swizzle 64 --bits 16 --shape 128x128 --transposed --explain
      triton-ext descriptor --swizzle 64 --bits 16 --shape 128x128 --format html
      triton-ext descriptor 0x08200490 --kind f16
    """
    if what is not None and not what.lstrip().startswith("#"):
        for_layout = {**described.given(bits=True), "--shape": shape is not None}
        for_layout |= {"--instr": instr is not None, "--operand": operand != "a"}
        for_layout |= {"--start": start != 0, "--explain": explained}
        refuse(for_layout, "with a value to decode")
        if kind is not None:
            _decode_instruction(_number(what, 32), kind, form)
        else:
            _decode(_number(what, 64), arch, form)
        return
    if kind is not None:
        raise click.UsageError("--kind is for a value to decode")
    bits = described.bits
    if bits is None:
        raise click.UsageError("give a value to decode, or a layout with --bits")
    encoding, layout = _layout(what, described, bits, shape)
    if instr is None:
        instr = (64, 8 * INSTRUCTION_K_BYTES // bits)
    if len(instr) != 2:
        raise LayoutError("instr", instr, "must be M or N, then K, such as 64x16")
    mn_dim = 0 if operand == "a" else 1
    derived = derive_operand(
        layout, bits, (instr[0], instr[1]), arch=arch, mn_dim=mn_dim, base_address=start
    )

    def text() -> list[str]:
        steps = ["", _cute_steps(derived)] if explained else []
        return [f"{encoding}\n", *_derived_lines(derived), *steps]

    show(
        form,
        json=lambda: _derived_object(derived),
        text=text,
        svg=rendering("svg.operand_svg", layout, derived, mn_dim=mn_dim),
        html=rendering("html.operand_html", layout, derived, mn_dim=mn_dim),
    )


def _layout(
    what: str | None, described: Description, bits: int, shape: Sequence[int] | None
) -> tuple[NVMMAShared | SharedLinear, LinearLayout]:
    """The encoding and the layout that the arguments describe."""
    if what is not None:
        if described.swizzle is not None or described.transposed:
            raise click.UsageError("give an attribute, or --swizzle and --transposed, not both")
        encoding = parse_encoding(what)
        if isinstance(encoding, SharedLinear):
            return encoding, encoding.to_linear_layout()
        if not isinstance(encoding, NVMMAShared):
            raise LayoutError("attribute", what, "must be an nvmma_shared or a shared_linear")
    elif shape is None:
        raise click.UsageError("give --shape")
    else:
        encoding = described.encoding(shape)
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
    raw, decoded, wrong = instruction_fields(value, kind), None, []
    try:
        decoded = InstructionDescriptor.decode(value, kind)
    except LayoutError as error:
        wrong = [str(error)]
    of = {"descriptor": f"{value:#010x}", "kind": kind}
    heading = of["descriptor"]
    _show_decoded(heading, of, raw, decoded, wrong, "instruction_descriptor", (value, kind), form)


def _decode(value: int, arch: str, form: str) -> None:
    raw, wrong = raw_fields(value, arch), problems(value, arch)
    decoded = None if wrong else SmemDescriptor.decode(value, arch)
    of = {"descriptor": f"{value:#018x}", "arch": f"sm_{architecture(arch)}"}
    heading = f"{of['descriptor']} on {of['arch']}"
    _show_decoded(heading, of, raw, decoded, wrong, "descriptor", (value, arch), form)


def _show_decoded(
    heading: str,
    of: dict[str, str],
    raw: dict[str, int],
    decoded: SmemDescriptor | InstructionDescriptor | None,
    wrong: list[str],
    picture: str,
    pictured: tuple[int, str],
    form: str,
) -> None:
    """Show the fields of a number, in words if it is legal; else what is wrong.

    Args:
        heading: the first line of the text form.
        of: the first keys of the JSON form.
        raw: the bits of each field.
        decoded: None if it is illegal.
        wrong: what is illegal in it.
        picture: the name of the functions of `triton_ext.render` that draw it.
        pictured: their arguments.
    """
    lines = [f"{name} = {bits:#x}" for name, bits in raw.items()]
    if decoded is not None:
        lines = decoded.describe()
    fields = None if decoded is None else vars(decoded)
    show(
        form,
        json=lambda: {**of, "raw": raw, "fields": fields, "problems": wrong},
        text=lambda: [heading, *(f"  {line}" for line in lines)],
        svg=rendering(f"svg.{picture}_svg", *pictured),
        html=rendering(f"html.{picture}_html", *pictured),
    )
    if wrong and form in ("text", "json"):  # a picture draws what is wrong, too
        raise click.ClickException(f"descriptor = {of['descriptor']}: {'; '.join(wrong)}")


def _derived_lines(derived: MmaOperand) -> list[str]:
    own = derived.descriptor
    lines = [
        f"{derived.major}-major operand, tile (M or N, K) = {derived.tile},"
        f" instruction {derived.instruction}, {derived.element_bitwidth} bits",
        f"descriptor {own.encode():#018x}",
        *(f"  {line}" for line in own.describe(derived.unread_fields)),
    ]
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
