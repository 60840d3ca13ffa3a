"""``triton-ext layout``: dump the linear layout of a shared-memory encoding."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import click

from triton_ext.commands.common import (
    BASES,
    INSTALL,
    SHAPE,
    Description,
    Target,
    encoding_options,
    format_option,
    refuse,
    rendering,
    say,
    show,
    time_limited,
)
from triton_ext.errors import LayoutError
from triton_ext.layouts.dump import LayoutDump, dump_encoding, from_json, to_json
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding, is_encoding, parse_encoding
from triton_ext.reading import read_input
from triton_ext.render.text import dump_text, explain
from triton_ext.render.words import plain

MAX_FILE_BYTES = 1 << 26


@click.command()
@click.argument("given", nargs=-1, metavar="[ATTRIBUTE | FILE | -]")
@click.option("--shape", type=SHAPE, help="The tensor's shape, such as 128x256.")
@encoding_options(fp4_padded=True)
@click.option("--cga", type=BASES, help="Bases of the cluster's blocks, such as [[1, 0]].")
@click.option("--core", is_flag=True, help="The swizzle atom alone (getCoreMatrixLinearLayout).")
@click.option("--disable-swizzle", is_flag=True, help="Leave the chunks of a row where they are.")
@format_option(
    "text",
    "json",
    "grid",
    "svg",
    "html",
    text="Bases as text or JSON (layout_dump.schema.json), a table of offsets, a picture, a page.",
)
@click.option("--explain", "explained", is_flag=True, help="Say what each basis means.")
@click.option("--full", is_flag=True, help="Do not cut a large grid.")
@click.option(
    "--check",
    is_flag=True,
    help="Compare with the documented atom and with Triton's own conversion (needs Triton).",
)
@click.option(
    "--convert",
    is_flag=True,
    help="How Triton moves a tensor from one layout in registers to another: two attributes.",
)
@click.option("--target", type=Target(), help="With --convert: the GPU.  [default: sm_90]")
@time_limited
def layout(
    described: Description, given: tuple[str, ...], shape: tuple[int, ...] | None, cga: Any,
    core: bool, disable_swizzle: bool, form: str, explained: bool, full: bool, check: bool,
    convert: bool, target: str | None,
) -> None:  # fmt: skip
    """Dump the linear layout of a shared-memory encoding.

    The encoding is an MLIR attribute ('#ttg.nvmma_shared<{...}>', '#ttg.shared_linear<...>',
    '#ttg.swizzled_shared<...>', '#ttg.padded_shared<...>') or a Gluon layout as it is written
    ('NVMMASharedLayout(128, 16)'), or is given by --swizzle, --bits and so on. A .ttgir or .mlir
    file dumps every shared encoding in it with the shapes that it is used at; a .json file, what
    --format json wrote. "-" is stdin: either.

    \b
    Examples:
      triton-ext layout --bits 16 --shape 128x256
      triton-ext layout --swizzle 128 --bits 16 --core --format grid
      triton-ext layout '#ttg.nvmma_shared<{swizzlingByteWidth = 64, transposed = true,
                         elementBitWidth = 8}>' --shape 64x128 --explain
      triton-ext layout kernel.ttgir
      triton-ext layout '#ttg.blocked<{...}>' '#ttg.linear<{...}>' --convert --shape 64x64 --bits 16
    """
    if convert:
        refused = {"--cga": cga is not None, "--core": core, "--disable-swizzle": disable_swizzle}
        refuse({**refused, "--full": full, "--check": check, **described.given()}, "with --convert")
        from triton_ext.commands.conversion import show_conversion

        show_conversion(given, shape, described.bits, target or "sm_90", form, explained)
        return
    refuse({"--target": target is not None}, "without --convert")
    if len(given) > 1:
        raise click.UsageError("give one attribute or file; two attributes are for --convert")
    what = given[0] if given else None
    if form not in ("text", "grid"):
        refuse({"--explain": explained}, f"with --format {form}")
    if form != "grid":
        refuse({"--full": full}, f"with --format {form}, which cuts nothing")
    if core:
        refuse({"--cga": cga is not None}, "with --core: an atom is of one block")
    by_options = {**described.given(), "--cga": cga is not None}
    if what is not None and any(by_options.values()):
        used = ", ".join(option for option, used in by_options.items() if used)
        raise click.UsageError(f"give an attribute or file, or {used}, not both")
    if what is not None and not is_encoding(what):
        for_one = {"--shape": shape is not None, "--core": core, "--check": check}
        for_one |= {"--disable-swizzle": disable_swizzle, **described.given(bits=True)}
        refuse(for_one, "with a file; it says its own")
        dumps = _read(what)
    else:
        if what is not None:
            encoding = parse_encoding(what)
        else:
            encoding = _described_encoding(described, shape, cga or (), core)
        dumps = [
            dump_encoding(
                encoding,
                shape,
                core=core,
                disable_swizzle=disable_swizzle,
                element_bitwidth=described.bits,
            )
        ]
        if check:
            _check(encoding, dumps[0], disable_swizzle)
    if form in ("svg", "html"):
        unfit = {dump: dump.error for dump in dumps if dump.layout is None}
        if form == "html":  # whose page draws linear layouts alone
            unfit |= {dump: "it is padded" for dump in dumps if dump.paddings}
        drawn = [dump for dump in dumps if dump not in unfit] or dumps
        for dump in [dump for dump in dumps if dump not in drawn]:
            say(f"not drawn: {dump.alias or dump.encoding}: {unfit[dump]}", err=True)
        dumps = drawn
    if form == "svg" and len(dumps) != 1:
        raise click.UsageError(f"--format svg shows one layout; this file has {len(dumps)}")

    def grid(dump: LayoutDump) -> str:
        if dump.layout is None:
            return plain(dump_text(dump))
        from triton_ext.render.grid import draw_grid

        rows, width = (None, None) if full else (16, shutil.get_terminal_size().columns)
        table = draw_grid(
            dump.layout,
            dump.element_bitwidth,
            max_rows=rows,
            max_width=width,
            paddings=dump.paddings,
        )
        name = f"{dump.alias or dump.encoding} at {dump.shape}\n" if len(dumps) > 1 else ""
        return plain(name) + table

    def blocks(shown: Callable[[LayoutDump], str]) -> str:
        parts = []
        for dump in dumps:
            parts.append(shown(dump))
            if explained and dump.layout is not None:
                parts.append(plain(explain(dump)))
        return "\n\n".join(parts)

    show(
        form,
        text=lambda: blocks(dump_text),
        json=lambda: to_json(dumps),
        grid=lambda: blocks(grid),
        svg=rendering("svg.dump_svg", *dumps),
        html=rendering("html.dump_html", *dumps),
    )


def _described_encoding(
    described: Description, shape: tuple[int, ...] | None, cga: Any, core: bool
) -> NVMMAShared:
    if described.bits is None:
        raise click.UsageError("give an attribute or a file, or describe the encoding with --bits")
    if shape is not None:
        return described.encoding(shape, cga)
    if described.swizzle is None:
        raise click.UsageError("give --shape, or --swizzle and --core for the atom alone")
    if not core:
        raise click.UsageError("give --shape, or --core for the atom alone")
    return described.encoding(None, cga)


def _read(name: str) -> list[LayoutDump]:
    """The dumps of a file of MLIR, or of one that --format json wrote; "-" is stdin."""
    try:
        text = read_input(name, MAX_FILE_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, LayoutError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise click.UsageError(
            f"{name!r} is neither an attribute ('#ttg...<...>') nor a Gluon layout nor a readable"
            f" file: {reason}"
        ) from None
    if name.endswith(".json") or text.lstrip().startswith("{"):
        return from_json(text)
    from triton_ext.mlir.module_layouts import dump_module

    dumps = dump_module(text)
    if not dumps:
        raise click.UsageError(f"{name!r} uses no shared-memory encoding")
    return dumps


def _check(encoding: SharedEncoding, dump: LayoutDump, disable_swizzle: bool) -> None:
    from triton_ext.layouts.triton.checks import check_against_documented_atom, check_against_triton

    if not isinstance(encoding, NVMMAShared) or disable_swizzle:
        raise click.UsageError("--check is for nvmma_shared encodings with their swizzle")
    results = [check_against_documented_atom(encoding)]
    if dump.shape is not None:
        try:
            results.append(check_against_triton(dump.shape, encoding))
        except RuntimeError as error:
            said = str(error).splitlines()[-1]
            way_out = f"; {INSTALL}" if said.endswith("No module named 'triton'") else ""
            raise click.UsageError(f"--check asks Triton, and cannot: {said}{way_out}") from None
    for result in results:
        click.echo(f"{'ok' if result.agrees else 'FAILED'}: {result.message}", err=True)
    if not all(result.agrees for result in results):
        raise click.ClickException("the layout does not agree with the checks above")
