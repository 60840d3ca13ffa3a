"""``triton-ext diff``: two layouts, descriptors, kernels, traces or timelines side by side."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import click

from triton_ext.commands.common import SHAPE, format_option, refuse, show, time_limited
from triton_ext.errors import LayoutError
from triton_ext.hardware.instruction_descriptor import KINDS
from triton_ext.hardware.tensor_memory_encoding import TENSOR_ENCODINGS, parse_tensor_encoding
from triton_ext.layouts.cluster import checked_shape
from triton_ext.layouts.dump import LayoutDump, dump_encoding, from_json
from triton_ext.layouts.encodings import is_encoding, parse_encoding
from triton_ext.ptx.files import MAX_FILE_BYTES, ptx_of_bytes
from triton_ext.reading import read_input
from triton_ext.render.difference import (
    Comparison,
    Row,
    compare_descriptors,
    compare_instruction_descriptors,
    compare_layouts,
    compare_listings,
    listing_kind,
)
from triton_ext.timeline.difference import compare_timelines

_LISTINGS = {"ptx": "PTX", "mlir": "TTGIR", "trace": "trace"}
_Thing = tuple[str, Any]
"""What is compared: "layout" and a dump, "descriptor" and a number, or a listing and its text."""


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--shape", type=SHAPE, help="Of attributes: the tensor's shape, such as 128x64.")
@click.option("--arch", default="sm_100", show_default=True, help="Of matrix descriptors.")
@click.option(
    "--kind", type=click.Choice(list(KINDS)), help="They are instruction descriptors, of this kind."
)
@format_option("text", "json")
@time_limited
@click.pass_context
def diff(
    context: click.Context, a: str, b: str, shape: tuple[int, ...] | None, arch: str,
    kind: str | None, form: str,
) -> None:  # fmt: skip
    """Show how two of a kind differ, side by side.

    A and B are encodings (MLIR attributes, or what `layout --format json` wrote), descriptors
    (numbers), or files: PTX (or a cubin with it), TTGIR, what `run --trace` printed, or timelines
    that `run --timeline out.json` wrote. "-" is stdin. Of timelines it says which is faster, and
    where; of others the first difference. Layouts are compared by their bases, however the
    encodings spell them; listings line by line, without comments and source locations, where the
    names of registers and values may differ one to one.

    Exit status: 0 if they are the same, 1 if they differ, 2 if they cannot be compared.

    \b
    Examples:
      triton-ext diff 0x4000404000010000 0x4000404000020000
      triton-ext diff '#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false,
                       elementBitWidth = 16}>' other.json --shape 64x64
      triton-ext diff old.ptx new.ptx
      triton-ext diff before.json after.json    # of run --timeline
    """
    if a == b == "-":
        raise click.UsageError("only one of A and B can be stdin")
    left, right = (_thing(what, shape) for what in (a, b))
    if left[0] != right[0]:
        raise click.UsageError(f"{a!r} is of kind {left[0]}, {b!r} of kind {right[0]}")
    if (kind is not None or arch != "sm_100") and left[0] != "descriptor":
        raise click.UsageError("--arch and --kind are for descriptors")
    if kind is not None:
        refuse({"--arch": arch != "sm_100"}, "with --kind, which only Blackwell has")
    if not any(is_encoding(what) for what in (a, b)):
        refuse({"--shape": shape is not None}, "without an attribute, whose shape it is")
    found = _compared(left, right, arch, kind)
    show(form, json=lambda: _as_json(found), text=lambda: _as_text(found, a, b))
    if found.first is not None:
        context.exit(1)


def _compared(left: _Thing, right: _Thing, arch: str, kind: str | None) -> Comparison:
    what, one, other = *left, right[1]
    if what == "layout":
        return compare_layouts(one, other)
    if what == "timeline":
        return compare_timelines(one, other)
    if what != "descriptor":
        return compare_listings(one, other, what)
    if kind is not None:
        return compare_instruction_descriptors(one, other, kind)
    return compare_descriptors(one, other, arch)


def _thing(what: str, shape: tuple[int, ...] | None) -> _Thing:
    """What an argument names."""
    if is_encoding(what):
        return "layout", _legal(_dump(what, shape), what)
    try:
        return "descriptor", int(what, 0)
    except ValueError:
        pass
    try:
        data = read_input(what, MAX_FILE_BYTES)
    except OSError as error:
        raise click.UsageError(
            f"{what!r} is no attribute ('#ttg...'), no number and no readable file:"
            f" {error.strerror}"
        ) from None
    modules = ptx_of_bytes(data, what)
    if len(modules) != 1:
        raise click.UsageError(f"{what!r} has {len(modules)} PTX modules: extract one")
    text = modules[0].text
    if text.startswith('{"event"'):
        return "trace", "\n".join(_trace(text, what))
    if text.lstrip().startswith("{"):
        timeline = _timeline(text)
        if timeline is not None:
            return "timeline", timeline
        dumps = from_json(text)
        if len(dumps) != 1:
            raise click.UsageError(f"{what!r} has {len(dumps)} layouts: write one into the file")
        return "layout", _legal(dumps[0], what)
    if not (kind := listing_kind(text)):
        why = f"{what!r} is neither PTX, nor TTGIR, nor a trace, nor a layout, nor a timeline"
        raise click.UsageError(why)
    return kind, text


def _dump(attribute: str, shape: tuple[int, ...] | None) -> LayoutDump:
    """The layout of an attribute, of shared or of tensor memory."""
    if not any(f"{name}<" in attribute for name in TENSOR_ENCODINGS):
        return dump_encoding(parse_encoding(attribute), shape)
    encoding, sizes = parse_tensor_encoding(attribute), checked_shape(shape, 2)
    return LayoutDump("tile", str(encoding), encoding.to_linear_layout(sizes), sizes)


def _timeline(text: str) -> Any:
    """What `run --timeline` or `run --time --format json` wrote of a kernel; None: neither did."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if "traceEvents" in found:
        return found.get("otherData", {})
    return found if "what_if" in found else None


def _trace(text: str, what: str) -> Iterator[str]:
    """The lines of a trace that `run --trace-file` wrote."""
    from triton_ext.emulator.clients.trace import as_text  # imports numpy

    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield from list(as_text(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise click.UsageError(
                f"{what!r}, line {number}: is no event of a trace (one JSON object a line, as"
                " `triton-ext run --trace-file` writes them)"
            ) from None


def _legal(dump: LayoutDump, what: str) -> LayoutDump:
    if dump.layout is None:
        raise LayoutError("layout", what, dump.error)
    return dump


def _as_json(found: Comparison) -> dict[str, Any]:
    first = found.first
    return {
        "kind": found.kind,
        "same": first is None,
        "first": None if first is None else {**vars(first), "says": found.says},
        "verdict": found.verdict,
        "rows": [vars(row) for row in found.rows],
    }


def _as_text(found: Comparison, a: str, b: str) -> Iterator[str]:
    first = found.first
    kind = _LISTINGS.get(found.kind, found.kind)
    if first is None:
        yield f"the same {kind}"
        return
    where = "line" if found.kind in _LISTINGS else "at"
    yield found.verdict or f"not the same {kind}, first {where} {first.name}" + found.says
    rows = [Row("", a, b, True), *found.rows]
    widths = [max(len(getattr(row, side)) for row in rows) for side in ("name", "left", "right")]
    room = max(24, (shutil.get_terminal_size().columns - widths[0] - 7) // 2)
    width = min(room, max(widths[1:]))
    for row in rows:
        mark = " " if row.same else "|"
        sides = (row.left, row.right)
        lines = (textwrap.wrap(text, width, drop_whitespace=False) or [""] for text in sides)
        for i, (left, right) in enumerate(zip_longest(*lines, fillvalue="")):
            name = row.name if i == 0 else ""
            yield f"  {name:{widths[0]}}  {left.rstrip():{width}} {mark} {right}".rstrip()
