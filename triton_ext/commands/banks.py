"""``triton-ext banks``: the bank conflicts of an access to shared memory."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from triton_ext.commands.common import ShapeType, described_encoding, encoding_options
from triton_ext.hardware.banks import (
    ACCESS_BYTES,
    BANK_BYTES,
    BankConflict,
    BankReport,
    chunk_access,
    global_runs,
    matrix_access,
    register_access,
    thread_layout,
    warp_access,
)
from triton_ext.layouts.atoms import Major
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # no generic before click 8.3

ACCESSES = ("ldmatrix", "stmatrix", "chunk", "ld.shared", "st.shared", "fill")
JSON_VERSION = 1


class IntegersType(_ParamType):
    """``0,128,256`` -> (0, 128, 256); with `holes`, ``-`` stands for None."""

    name = "INTEGERS"

    def __init__(self, holes: bool = False) -> None:
        self.holes = holes

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int | None, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(
                None if self.holes and part.strip() == "-" else int(part)
                for part in value.split(",")
            )
        except ValueError:
            self.fail(f"{value!r} is no list of integers; write it as 0,128,256", param, ctx)


@click.command()
@click.argument("what", required=False, metavar="[ATTRIBUTE]")
@click.option("--shape", type=ShapeType(), help="The tile's shape, such as 64x64.")
@encoding_options()
@click.option(
    "--access",
    type=click.Choice(ACCESSES),
    help="What to look at: a warp's matrix instruction; the chunk of 8 x 16 bytes that the tensor"
    " core reads; loads or stores by rows of threads; the global requests that fill the tile."
    "  [default: chunk]",
)
@click.option(
    "--at",
    type=IntegersType(),
    multiple=True,
    metavar="ROW,COLUMN",
    help="First element of the subtile; for ldmatrix and stmatrix also twice (.x2) or four times"
    " (.x4).  [default: 0,0]",
)
@click.option("--trans", is_flag=True, help="ldmatrix or stmatrix with .trans.")
@click.option(
    "--width",
    type=click.Choice([str(width) for width in ACCESS_BYTES]),
    help="Bytes that a lane accesses at once.  [default: 16; with --offsets 4]",
)
@click.option("--along", type=int, help="The dimension along which the threads lie first.")
@click.option(
    "--warps",
    type=click.IntRange(1, 32),
    help="How many warps load or store, a power of two.  [default: 1]",
)
@click.option(
    "--offsets",
    type=IntegersType(holes=True),
    metavar="BYTES,BYTES,...",
    help="No layout, but the byte offset that each lane accesses; - for an inactive lane.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "svg"]),
    default="text",
    show_default=True,
    help="Text, JSON, or a picture of the banks: of the access, or with fill of the whole tile.",
)
def banks(
    what: str | None,
    shape: tuple[int, ...] | None,
    swizzle: str | None,
    bits: str | None,
    transposed: bool,
    access: str | None,
    at: tuple[tuple[int, ...], ...],
    trans: bool,
    width: str | None,
    along: int | None,
    warps: int | None,
    offsets: tuple[int | None, ...] | None,
    form: str,
) -> None:
    """How many wavefronts an access to shared memory takes, and which lanes collide in which bank.

    The layout is an MLIR attribute ('#ttg.nvmma_shared<{...}>', '#ttg.shared_linear<...>',
    '#ttg.swizzled_shared<...>'), or is given by --swizzle, --bits and --transposed; or there is
    none, but --offsets.

    \b
    Examples:
      triton-ext banks --swizzle 64 --bits 16 --shape 64x64 --access ldmatrix --at 0,16
      triton-ext banks --swizzle 0 --bits 16 --shape 8x64 --access chunk
      triton-ext banks --swizzle 128 --bits 16 --shape 64x64 --access st.shared --width 16
      triton-ext banks --swizzle 32 --bits 16 --shape 64x64 --access fill
      triton-ext banks --offsets 0,128,256,384 --width 16
      triton-ext banks --swizzle 128 --bits 16 --shape 64x64 --at 0,8 --format svg
    """
    described = {
        "--shape": shape is not None,
        "--swizzle": swizzle is not None,
        "--bits": bits is not None,
        "--transposed": transposed,
    }
    threads = {"--along": along is not None, "--warps": warps is not None}
    if offsets is not None:
        layout_only = described | threads | {"--access": access is not None, "--at": bool(at)}
        layout_only |= {"an attribute": what is not None, "--trans": trans}
        _refuse(layout_only, "with --offsets, which names the addresses itself")
        report = warp_access(offsets, int(width or BANK_BYTES))
        _show({"access": "offsets", **_totals([report])}, "a warp's access", [report], form)
        return
    access = access or "chunk"
    if access not in ("ldmatrix", "stmatrix"):
        _refuse({"--trans": trans}, f"with {access}")
    if access not in ("ld.shared", "st.shared"):
        _refuse(threads | {"--width": width is not None}, f"with {access}")
    if access not in ("ldmatrix", "stmatrix", "chunk"):
        _refuse({"--at": bool(at)}, f"with {access}")
    if what is not None:
        _refuse(
            {"--swizzle": described["--swizzle"], "--transposed": transposed}, "with an attribute"
        )
    encoding = parse_encoding(what) if what else _described(shape, swizzle, bits, transposed)
    element_bitwidth = _element_bitwidth(encoding, bits)
    layout = encoding.to_linear_layout(shape)
    contiguous = _contiguous_dim(layout)
    head: dict[str, Any] = {
        "encoding": str(encoding),
        "shape": list(layout.out_dims.values()),
        "element_bitwidth": element_bitwidth,
        "access": access,
    }
    where = f"of {encoding} at {'x'.join(map(str, head['shape']))}"
    if access == "fill" and form == "svg":
        from triton_ext.render.svg import banks_svg  # the template engine takes a while to import

        click.echo(banks_svg(layout, element_bitwidth))
        return
    if access == "fill":
        _show_fill(head, where, global_runs(layout, element_bitwidth, contiguous), form)
        return
    if access in ("ld.shared", "st.shared"):
        lane_bytes = int(width or max(ACCESS_BYTES))
        first = contiguous if along is None else along
        registers = thread_layout(head["shape"], element_bitwidth, lane_bytes, warps or 1, first)
        requests = register_access(registers, layout, element_bitwidth, lane_bytes).requests
        title = f"{access} of {lane_bytes} bytes a lane"
    else:
        title, report = _subtile(access, layout, element_bitwidth, contiguous, at, trans)
        requests = (report,)
    _show({**head, **_totals(requests)}, f"{title} {where}", requests, form)


def _subtile(
    access: str,
    layout: LinearLayout,
    element_bitwidth: int,
    contiguous: int,
    at: Sequence[Sequence[int]],
    trans: bool,
) -> tuple[str, BankReport]:
    """What is read of a tile by the tensor core, or moved by a matrix instruction."""
    corners = at or ((0, 0),)
    places = ", ".join(map(str, corners))
    if access == "chunk":
        if len(corners) > 1:
            raise click.UsageError("--at can be given only once with chunk")
        major: Major = "K" if contiguous else "MN"
        report = chunk_access(layout, element_bitwidth, corners[0], major)
        return f"{major}-major chunk at {places}", report
    report = matrix_access(layout, element_bitwidth, corners, trans)
    return f"{access}.x{len(corners)}{'.trans' * trans} at {places}", report


def _refuse(given: dict[str, bool], reason: str) -> None:
    names = ", ".join(name for name, used in given.items() if used)
    if names:
        raise click.UsageError(f"{names} cannot be used {reason}")


def _described(
    shape: tuple[int, ...] | None, swizzle: str | None, bits: str | None, transposed: bool
) -> NVMMAShared:
    if bits is None or shape is None:
        raise click.UsageError("give --shape with --bits or an attribute; or --offsets")
    return described_encoding(shape, swizzle, bits, transposed)


def _element_bitwidth(encoding: SharedEncoding, bits: str | None) -> int:
    if isinstance(encoding, NVMMAShared):
        if bits is not None and int(bits) != encoding.element_bitwidth:
            raise click.UsageError(
                f"the attribute's elements have {encoding.element_bitwidth} bits"
            )
        return encoding.element_bitwidth
    if bits is None:
        raise click.UsageError("give --bits, which this attribute does not say")
    return int(bits)


def _contiguous_dim(layout: LinearLayout) -> int:
    """The dimension along which the second element of a tile lies; else the last one."""
    bases = layout.bases.get("offset", [])
    moved = [dim for dim, step in enumerate(bases[0]) if step] if bases else []
    return moved[0] if moved else len(layout.out_dims) - 1


def _totals(requests: Sequence[BankReport]) -> dict[str, Any]:
    return {
        "access_bytes": requests[0].access_bytes,
        "requests": len(requests),
        "wavefronts": sum(request.wavefronts for request in requests),
        "ideal_wavefronts": sum(request.ideal_wavefronts for request in requests),
        "degree": max(request.degree for request in requests),
    }


def _show_fill(head: dict[str, Any], where: str, runs: Sequence[Sequence[int]], form: str) -> None:
    """The global requests of a fill: their size, and how many there are."""
    head = {**head, "request_bytes": min(map(min, runs)), "requests_per_line": len(runs[0])}
    if form == "json":
        click.echo(json.dumps({"version": JSON_VERSION, **head}, indent=2))
        return
    lines = f"{len(runs)} line{'s' * (len(runs) > 1)} of shared memory"
    click.echo(f"fill {where}")
    click.echo(
        f"global requests of {head['request_bytes']} bytes:"
        f" {head['requests_per_line']} for each of {lines}"
    )


def _show(document: dict[str, Any], title: str, requests: Sequence[BankReport], form: str) -> None:
    """Totals, and in detail the first of the requests with the most wavefronts."""
    worst = max(requests, key=lambda request: request.wavefronts)
    if form == "json":
        document["worst_request"] = asdict(worst)
        click.echo(json.dumps({"version": JSON_VERSION, **document}, indent=2))
        return
    if form == "svg":
        from triton_ext.render.svg import bank_access_svg  # the template engine is slow

        click.echo(bank_access_svg(_short(title), worst))
        return
    click.echo(title)
    if len(requests) > 1:
        click.echo(
            f"{len(requests)} requests: {document['wavefronts']} wavefronts,"
            f" {document['ideal_wavefronts']} without conflicts; the worst of them:"
        )
    click.echo(str(worst))
    for line in _collisions(worst):
        click.echo(f"  {line}")


def _short(title: str) -> str:
    """A title without the attribute, which would be wider than the picture."""
    return re.sub(r"of #\S+<.*> at", "of a tile of", title)


def _collisions(report: BankReport) -> list[str]:
    """The conflicts in words; neighbouring banks in which the same lanes collide on one line."""
    runs: list[list[BankConflict]] = []
    for conflict in report.conflicts:
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and (last.group, last.bank + 1) == (conflict.group, conflict.bank)
            and last.lanes == conflict.lanes
        ):
            runs[-1].append(conflict)
        else:
            runs.append([conflict])
    lines = []
    for run in runs:
        first, last_bank = run[0], run[-1].bank
        numbers = f"bank {first.bank}" if len(run) == 1 else f"banks {first.bank}-{last_bank}"
        places = ", ".join(
            f"lane{'s' * (len(lanes) > 1)} {'+'.join(map(str, lanes))} at {word}"
            for word, lanes in zip(first.words, first.lanes, strict=True)
        )
        lines.append(f"{numbers}, {len(first.words)}-way: {places}")
    return lines
