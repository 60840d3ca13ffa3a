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
        if shape is not None or described.swizzle is not None:
            raise click.UsageError("give a value to decode, or a layout, not both")
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
    decoded = InstructionDescriptor.decode(value, kind)
    said = f"{value:#010x}"

    def found() -> dict[str, Any]:
        return {"descriptor": said, "raw": instruction_fields(value, kind), "fields": vars(decoded)}

    show(
        form,
        json=found,
        text=lambda: [said, *(f"  {line}" for line in decoded.describe())],
        svg=rendering("svg.instruction_descriptor_svg", value, kind),
        html=rendering("html.instruction_descriptor_html", value, kind),
    )


def _decode(value: int, arch: str, form: str) -> None:
    raw, wrong = raw_fields(value, arch), problems(value, arch)
    decoded = None if wrong else SmemDescriptor.decode(value, arch)
    said, name = f"{value:#018x}", f"sm_{architecture(arch)}"

    def found() -> dict[str, Any]:
        fields = dict(vars(decoded)) if decoded else None
        return {"descriptor": said, "arch": name, "raw": raw, "fields": fields, "problems": wrong}

    def text() -> list[str]:
        lines = decoded.describe() if decoded else [f"{k} = {v:#x}" for k, v in raw.items()]
        return [f"{said} on {name}", *(f"  {line}" for line in lines)]

    show(
        form,
        json=found,
        text=text,
        svg=rendering("svg.descriptor_svg", value, arch),
        html=rendering("html.descriptor_html", value, arch),
    )
    if wrong and form == "text":
        raise click.ClickException(f"descriptor = {said}: {'; '.join(wrong)}")


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
