"""``triton-ext banks``: the bank conflicts of an access to shared memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click

from triton_ext.commands.common import (
    SHAPE,
    Description,
    Parsed,
    choices,
    encoding_options,
    format_option,
    integers,
    refuse,
    rendering,
    show,
)
from triton_ext.errors import LayoutError
from triton_ext.hardware.banks import (
    ACCESS_BYTES,
    BANK_BYTES,
    BankReport,
    chunk_access,
    global_runs,
    matrix_access,
    thread_layout,
    warp_access,
)
from triton_ext.hardware.register_access import register_access
from triton_ext.layouts.atoms import Major
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.render.words import by, counted

ACCESSES = ("ldmatrix", "stmatrix", "chunk", "ld.shared", "st.shared", "fill")
MAX_ELEMENTS = 1 << 20
"""The largest tile; shared memory has room for a quarter of it."""
_LIST = "list of integers; write it as 0,128,256"


@click.command()
@click.argument("what", required=False, metavar="[ATTRIBUTE]")
@click.option("--shape", type=SHAPE, help="The tile's shape, such as 64x64.")
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
    type=Parsed("INTEGERS", integers(), _LIST),
    multiple=True,
    metavar="ROW,COLUMN",
    help="First element of the subtile; for ldmatrix and stmatrix also twice (.x2) or four times"
    " (.x4).  [default: 0,0]",
)
@click.option("--trans", is_flag=True, help="ldmatrix or stmatrix with .trans.")
@click.option(
    "--width",
    type=choices(ACCESS_BYTES),
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
    type=Parsed("INTEGERS", integers(holes=True), _LIST),
    metavar="BYTES,BYTES,...",
    help="No layout, but the byte offset that each lane accesses; - for an inactive lane.",
)
@format_option(
    "text",
    "json",
    "svg",
    "html",
    text="Text, JSON, a picture of the banks (with fill: of the whole tile), or a page.",
)
def banks(
    described: Description, what: str | None, shape: tuple[int, ...] | None, access: str | None,
    at: tuple[tuple[int, ...], ...], trans: bool, width: str | None, along: int | None,
    warps: int | None, offsets: tuple[int | None, ...] | None, form: str,
) -> None:  # fmt: skip
    """How many wavefronts an access to shared memory takes, and which lanes collide in which bank.

    The layout is an MLIR attribute ('#ttg.nvmma_shared<{...}>', '#ttg.shared_linear<...>',
    '#ttg.swizzled_shared<...>', '#ttg.padded_shared<...>'), or is given by --swizzle, --bits and
    --transposed; or there is none, but --offsets.

    \b
    Examples:
      triton-ext banks --swizzle 64 --bits 16 --shape 64x64 --access ldmatrix --at 0,16
      triton-ext banks --swizzle 0 --bits 16 --shape 8x64 --access chunk
      triton-ext banks --swizzle 128 --bits 16 --shape 64x64 --access st.shared --width 16
      triton-ext banks --swizzle 32 --bits 16 --shape 64x64 --access fill
      triton-ext banks --offsets 0,128,256,384 --width 16
      triton-ext banks --swizzle 128 --bits 16 --shape 64x64 --at 0,8 --format svg
    """
    threads = {"--along": along is not None, "--warps": warps is not None}
    if offsets is not None:
        layout_only = {"--shape": shape is not None, **described.given(bits=True), **threads}
        layout_only |= {"--access": access is not None, "--at": bool(at)}
        layout_only |= {"an attribute": what is not None, "--trans": trans}
        refuse(layout_only, "with --offsets, which names the addresses itself")
        report = warp_access(offsets, int(width or BANK_BYTES))
        html = rendering("html.explore_html", "banks", _given_lanes(report))
        _show({"access": "offsets"}, "a warp's access", [report], form, html)
        return
    access = access or "chunk"
    if access not in ("ldmatrix", "stmatrix"):
        refuse({"--trans": trans}, f"with {access}")
    if access not in ("ld.shared", "st.shared"):
        refuse(threads | {"--width": width is not None}, f"with {access}")
    if access not in ("ldmatrix", "stmatrix", "chunk"):
        refuse({"--at": bool(at)}, f"with {access}")
    encoding: SharedEncoding
    if what is not None:
        refuse(described.given(), "with an attribute")
        encoding = parse_encoding(what)
    elif described.bits is None or shape is None:
        raise click.UsageError("give --shape with --bits or an attribute; or --offsets")
    else:
        encoding = described.encoding(shape)
    element_bitwidth = _element_bitwidth(encoding, described.bits)
    layout = encoding.to_linear_layout(shape)
    if layout.total_out_size > MAX_ELEMENTS:
        raise LayoutError("shape", shape, f"must have at most {MAX_ELEMENTS} elements")
    contiguous = _contiguous_dim(layout)
    head: dict[str, Any] = {
        "encoding": str(encoding),
        "shape": list(layout.out_dims.values()),
        "element_bitwidth": element_bitwidth,
        "access": access,
    }
    where = f"of {encoding} at {by(head['shape'])}"
    if access == "fill":
        _show_fill(head, where, encoding, layout, contiguous, form)
        return
    if access in ("ld.shared", "st.shared"):
        lane_bytes = int(width or max(ACCESS_BYTES))
        first = contiguous if along is None else along
        registers = thread_layout(head["shape"], element_bitwidth, lane_bytes, warps or 1, first)
        requests = register_access(
            registers, layout, element_bitwidth, lane_bytes, encoding.paddings
        ).requests
        title = f"{access} of {lane_bytes} bytes a lane"
        shown = _given_lanes(requests[0])
    else:
        title, report = _subtile(access, encoding, layout, element_bitwidth, at, trans)
        requests = (report,)
        shown = _given_lanes(report)
        of_page = len(at) < 2 and trans == (access != "chunk" and not contiguous)
        if of_page and not encoding.paddings:
            name = access if access == "chunk" else f"{access}.x1"
            shown = {"access": name, "at": ",".join(map(str, (at or ((0, 0),))[0]))}
    if encoding.paddings:  # the page draws no padded tile, but its lanes' addresses
        html = rendering("html.explore_html", "banks", shown)
    else:
        html = rendering("html.banks_html", encoding, shape, element_bitwidth, shown)
    _show(head, f"{title} {where}", requests, form, html)


def _given_lanes(report: BankReport) -> dict[str, str]:
    """The state of the page that shows an access by the offset of each lane."""
    offsets = ("-" if offset is None else str(offset) for offset in report.offsets)
    return {"offsets": ",".join(offsets), "width": str(report.access_bytes)}


def _subtile(
    access: str,
    encoding: SharedEncoding,
    layout: LinearLayout,
    element_bitwidth: int,
    at: Sequence[Sequence[int]],
    trans: bool,
) -> tuple[str, BankReport]:
    """What the tensor core reads of a tile, or a matrix instruction moves: (title, report)."""
    corners = at or ((0, 0),)
    starts = ", ".join(map(str, corners))
    if access == "chunk":
        if len(corners) > 1:
            raise click.UsageError("--at can be given only once with chunk")
        major: Major = "K" if _contiguous_dim(layout) else "MN"
        report = chunk_access(layout, element_bitwidth, corners[0], major, encoding.paddings)
        return f"{major}-major chunk at {starts}", report
    report = matrix_access(layout, element_bitwidth, corners, trans, encoding.paddings)
    return f"{access}.x{len(corners)}{'.trans' * trans} at {starts}", report


def _element_bitwidth(encoding: SharedEncoding, bits: int | None) -> int:
    if isinstance(encoding, NVMMAShared):
        if bits is not None and bits != encoding.element_bitwidth:
            why = f"the attribute's elements have {encoding.element_bitwidth} bits"
            raise click.UsageError(why)
        return encoding.element_bitwidth
    if bits is None:
        raise click.UsageError("give --bits, which this attribute does not say")
    return bits


def _contiguous_dim(layout: LinearLayout) -> int:
    """The dimension along which offset 1 steps; the last one where it does not step."""
    bases = layout.bases.get("offset", [])
    moved = [dim for dim, step in enumerate(bases[0]) if step] if bases else []
    return moved[0] if moved else len(layout.out_dims) - 1


def _show_fill(
    head: dict[str, Any],
    where: str,
    encoding: SharedEncoding,
    layout: LinearLayout,
    contiguous: int,
    form: str,
) -> None:
    """The global requests of a fill: their size, and how many there are at most for a line."""
    bits = head["element_bitwidth"]
    runs = () if form == "svg" else global_runs(layout, bits, contiguous, encoding.paddings)

    def found() -> dict[str, Any]:
        sizes = {"request_bytes": min(map(min, runs)), "requests_per_line": max(map(len, runs))}
        return {**head, **sizes}

    def text() -> list[str]:
        sizes = found()
        most = "at most " if encoding.paddings else ""
        return [
            f"fill {where}",
            f"global requests of {sizes['request_bytes']} bytes: {most}{sizes['requests_per_line']}"
            f" for each of {counted(len(runs), 'line')} of shared memory",
        ]

    if form == "html":
        raise click.UsageError("--format html shows an access of a warp, not fill")
    show(form, json=found, text=text, svg=rendering("svg.banks_svg", layout, bits))


def _show(
    head: dict[str, Any],
    title: str,
    requests: Sequence[BankReport],
    form: str,
    html: Callable[[], str],
) -> None:
    """Totals, and in detail the first of the requests with the most wavefronts."""
    worst = max(requests, key=lambda request: request.wavefronts)
    totals = {
        "access_bytes": requests[0].access_bytes,
        "requests": len(requests),
        "wavefronts": sum(request.wavefronts for request in requests),
        "ideal_wavefronts": sum(request.ideal_wavefronts for request in requests),
        "degree": max(request.degree for request in requests),
    }

    def text() -> list[str]:
        several = (
            f"{len(requests)} requests: {totals['wavefronts']} wavefronts,"
            f" {totals['ideal_wavefronts']} without conflicts; the worst of them:"
        )
        collisions = [f"  {line}" for line in _collisions(worst)]
        return [title, *([several] if len(requests) > 1 else []), str(worst), *collisions]

    show(
        form,
        json=lambda: {**head, **totals, "worst_request": asdict(worst)},
        text=text,
        svg=rendering("svg.bank_access_svg", _short(title), worst),
        html=html,
    )


def _short(title: str) -> str:
    """A title without the attribute, which would be wider than the picture."""
    return re.sub(r"of #\S+<.*> at", "of a tile of", title)


def _collisions(report: BankReport) -> Iterator[str]:
    """The conflicts in words; neighbouring banks with the same lanes in conflict share a line."""
    neighbours = itertools.groupby(
        enumerate(report.conflicts),
        lambda item: (item[1].group, item[1].bank - item[0], item[1].lanes),
    )
    for _, found in neighbours:
        run = [conflict for _, conflict in found]
        first, last = run[0], run[-1]
        numbers = f"bank {first.bank}" if len(run) == 1 else f"banks {first.bank}-{last.bank}"
        words = ", ".join(
            f"lane{'s' * (len(lanes) > 1)} {'+'.join(map(str, lanes))} at {word}"
            for word, lanes in zip(first.words, first.lanes, strict=True)
        )
        yield f"{numbers}, {len(first.words)}-way: {words}"
