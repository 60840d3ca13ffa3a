"""``triton-ext descriptor``: decode a descriptor, or derive the one of a layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.core import ParameterSource

from triton_ext.commands.common import (
    SHAPE,
    Description,
    Parsed,
    encoding_options,
    format_option,
    refuse,
    rendering,
    show,
)
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import architecture
from triton_ext.hardware.descriptor_check import check_against_tile, hints, other_architecture
from triton_ext.hardware.instruction_descriptor import KINDS, InstructionDescriptor
from triton_ext.hardware.instruction_descriptor import raw_fields as instruction_fields
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, MmaOperand, derive_operand
from triton_ext.hardware.smem_descriptor import SmemDescriptor, problems, raw_fields
from triton_ext.layouts.encodings import (
    NVMMAShared,
    SharedEncoding,
    SharedLinear,
    is_encoding,
    parse_encoding,
)
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.words import by


@click.command()
@click.argument("what", required=False, metavar="[VALUE | ATTRIBUTE]")
@click.argument("tile", required=False, metavar="[ATTRIBUTE]")
@click.option("--arch", default="sm_100", show_default=True, help="sm_90, sm_100 or sm_103.")
@encoding_options(bits=(8, 16, 32))
@click.option("--shape", type=SHAPE, help="The tile: M x K of A, K x N of B.")
@click.option("--instr", type=SHAPE, help="The MMA's operand: M or N, then K. Default: 64 x K.")
@click.option(
    "--operand", type=click.Choice(["a", "b"]), default="a", show_default=True, help="A or B."
)
@click.option(
    "--start",
    type=Parsed("ADDRESS", lambda text: int(text, 0), "address; write it as 1024 or 0x400"),
    help="Address of the tile in shared memory, in bytes.  [default: 0; of a VALUE: not known]",
)
@click.option("--explain", "explained", is_flag=True, help="Derive it in CuTe's five steps, too.")
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="The value is a 32-bit instruction descriptor of tcgen05.mma, of this kind.",
)
@format_option("text", "json", "svg", "html", text="Text, JSON, a picture, or a page.")
@click.pass_context
def descriptor(
    context: click.Context, described: Description, what: str | None, arch: str,
    shape: tuple[int, ...] | None, instr: tuple[int, ...] | None, operand: str, start: int | None,
    explained: bool, kind: str | None, form: str, tile: str | None,
) -> None:  # fmt: skip
    """Decode a 64-bit matrix descriptor, hold it against a tile, or derive that of a tile.

    A number is decoded, and what is illegal in it, or suspicious, is said (exit status 1 if it is
    illegal); with --kind it is an instruction descriptor. With a layout beside it (an MLIR
    attribute with --bits, or --swizzle and --bits, and --shape) each field that is not as the MMA
    needs it for that tile is named (exit status 1). Of a layout alone the descriptor of the first
    MMA subtile is derived, and what to add to the start address for the others.

    \b
    Examples:
      triton-ext descriptor 0x4000404000010000 --arch sm_100
      triton-ext descriptor 0x4000404000010000 --swizzle 64 --bits 16 --shape 128x64
      triton-ext descriptor --swizzle 128 --bits 16 --shape 128x128 --instr 64x16
      triton-ext descriptor --swizzle 64 --bits 16 --shape 128x128 --transposed --explain
      triton-ext descriptor --swizzle 64 --bits 16 --shape 128x128 --format html
      triton-ext descriptor 0x08200490 --kind f16
    """
    value = what if what is not None and not is_encoding(what) else None
    if value is None and tile is not None:
        raise click.UsageError(f"{tile!r} is too much: one layout has one descriptor")
    of_tile = {**described.given(bits=True), "--shape": shape is not None}
    of_tile |= {"--instr": instr is not None, "--operand": operand != "a"}
    of_tile |= {"--start": start is not None, "an attribute": tile is not None}
    if value is not None:
        refuse({"--explain": explained}, "with a value")
    if kind is not None:
        if value is None:
            raise click.UsageError("--kind is for a value to decode")
        source = context.get_parameter_source("arch")
        of_tile["--arch"] = source is ParameterSource.COMMANDLINE
        refuse(of_tile, "with --kind: an instruction descriptor is of no tile, and of Blackwell")
        _decode_instruction(_number(value, 32), kind, form)
        return
    if value is not None and not any(of_tile.values()):
        _decode(_number(value, 64), arch, form)
        return
    bits = described.bits
    if bits is None:
        raise click.UsageError(
            "give the width of its elements with the tile: --bits, and --shape"
            if value is not None
            else "give a value to decode, or a layout with --bits"
        )
    if form != "text":
        refuse({"--explain": explained}, f"with --format {form}")
    encoding, layout = _layout(tile if value is not None else what, described, bits, shape)
    if instr is None:
        instr = (64, 8 * INSTRUCTION_K_BYTES // bits)
    if len(instr) != 2:
        raise LayoutError("instr", instr, "must be M or N, then K, such as 64x16")
    mn_dim = 0 if operand == "a" else 1
    derived = derive_operand(
        layout,
        bits,
        (instr[0], instr[1]),
        arch=arch,
        mn_dim=mn_dim,
        base_address=0 if value is not None or start is None else start,
    )
    if value is not None:
        described_tile = f"{encoding} at {by(layout.out_dims.values())}"
        _compare(_number(value, 64), derived, start, described_tile, form)
        return

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
) -> tuple[SharedEncoding, LinearLayout]:
    """The encoding and the layout that the arguments describe."""
    encoding: SharedEncoding
    if what is not None:
        refuse(described.given(), "with an attribute, which says its own")
        encoding = parse_encoding(what)
        if encoding.paddings:
            rule = "is padded: no matrix descriptor says how to read it"
            raise LayoutError("attribute", what, rule)
    elif shape is None:
        raise click.UsageError("give --shape")
    else:
        encoding = described.encoding(shape)
    if shape is None and not isinstance(encoding, SharedLinear):
        raise click.UsageError("give --shape")
    own = encoding.element_bitwidth if isinstance(encoding, NVMMAShared) else bits
    if own != bits:
        raise LayoutError("bits", bits, f"must be {own}, as in the attribute")
    return encoding, encoding.to_linear_layout(shape)


def _number(text: str, width: int) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        rule = "must be a number, such as 0x4000404000010000"
        raise LayoutError("descriptor", text, rule) from None
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
    said = [f"note: {hint}" for hint in hints(value, arch)]
    _show_decoded(heading, of, raw, decoded, wrong, "descriptor", (value, arch), form, said)


def _compare(value: int, derived: MmaOperand, start: int | None, tile: str, form: str) -> None:
    """Show a descriptor beside the one of a tile; an error if they differ."""
    if form not in ("text", "json"):
        raise click.UsageError(f"--format {form} draws a value or a tile, not one beside the other")
    arch, found = derived.descriptor.arch, check_against_tile(value, derived, start)
    wrong = [str(each) for each in found.differences]
    notes = other_architecture(value, arch)
    expected = f"{found.expected.encode():#018x}"

    def text() -> Iterator[str]:
        yield f"{value:#018x} on sm_{arch}"
        if problems(value, arch):
            yield from (f"  {name} = {bits:#x}" for name, bits in raw_fields(value, arch).items())
        else:
            decoded = SmemDescriptor.decode(value, arch)
            yield from (f"  {line}" for line in decoded.describe(derived.unread_fields))
        yield f"beside {expected}, that of {tile}: {_operand_text(derived)}"
        if found.subtile is not None:
            yield f"  start address: that of subtile {found.subtile} (M or N, K)"
        yield from (f"  {line}" for line in wrong or ["every field that is read agrees"])
        yield from (f"  note: {note}" for note in notes)

    def as_object() -> dict[str, Any]:
        return {
            "descriptor": f"{value:#018x}",
            "arch": f"sm_{arch}",
            "raw": raw_fields(value, arch),
            "problems": problems(value, arch),
            "tile": tile,
            "expected": expected,
            "subtile": None if found.subtile is None else list(found.subtile),
            "differences": [vars(each) for each in found.differences],
            "hints": notes,
        }

    show(form, json=as_object, text=text)
    if wrong:
        names = ", ".join(each.field for each in found.differences)
        raise click.ClickException(f"the descriptor is not that of the tile: {names}")


def _show_decoded(
    heading: str,
    of: dict[str, str],
    raw: dict[str, int],
    decoded: SmemDescriptor | InstructionDescriptor | None,
    wrong: list[str],
    picture: str,
    pictured: tuple[int, str],
    form: str,
    notes: Sequence[str] = (),
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
        notes: lines of the text form, below the fields.
    """
    lines = [f"{name} = {bits:#x}" for name, bits in raw.items()]
    if decoded is not None:
        lines = decoded.describe()
    fields = None if decoded is None else vars(decoded)
    show(
        form,
        json=lambda: {**of, "raw": raw, "fields": fields, "problems": wrong},
        text=lambda: [heading, *(f"  {line}" for line in [*lines, *notes])],
        svg=rendering(f"svg.{picture}_svg", *pictured),
        html=rendering(f"html.{picture}_html", *pictured),
    )
    if wrong and form in ("text", "json"):  # a picture draws what is wrong, too
        raise click.ClickException(f"descriptor = {of['descriptor']}: {'; '.join(wrong)}")


def _operand_text(derived: MmaOperand) -> str:
    return (
        f"{derived.major}-major operand, tile (M or N, K) = {derived.tile},"
        f" instruction {derived.instruction}, {derived.element_bitwidth} bits"
    )


def _derived_lines(derived: MmaOperand) -> list[str]:
    own = derived.descriptor
    lines = [
        _operand_text(derived),
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
