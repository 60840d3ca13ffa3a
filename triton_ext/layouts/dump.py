"""A linear layout and the encoding that it comes from: what the ``layout`` command shows.

The JSON form is described by ``layout_dump.schema.json`` beside this file (JSON Schema 2020-12).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from triton_ext.errors import LayoutError
from triton_ext.layouts.cluster import checked_shape
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import core_matrix_linear_layout, nvmma_shared_to_linear_layout
from triton_ext.layouts.padded_shared import checked_paddings
from triton_ext.layouts.shared_encoding import Paddings, checked_encoding

JSON_VERSION = 1
SCHEMA = Path(__file__).parent / "layout_dump.schema.json"


@dataclass(frozen=True)
class LayoutDump:
    """A linear layout and where it comes from.

    Attributes:
        what: "tile", the layout of a whole shape, or "atom", that of one swizzle atom.
        encoding: the MLIR attribute.
        layout: the linear layout; None with an `error`.
        shape: the tensor's shape; None where only the atom was asked for.
        element_bitwidth: bits of an element; None where it is not known.
        alias: the name of the encoding in its module, or "".
        error: why there is no layout (an encoding that is not supported, an illegal shape), or "".
        paddings: pairs (interval, padding) in elements: after each `interval` offsets of the
            layout, `padding` unused elements (`PaddedShared`).
    """

    what: Literal["tile", "atom"]
    encoding: str
    layout: LinearLayout | None
    shape: tuple[int, ...] | None = None
    element_bitwidth: int | None = None
    alias: str = ""
    error: str = ""
    paddings: Paddings = ()


def dump_encoding(
    encoding: SharedEncoding,
    shape: Sequence[int] | None = None,
    *,
    core: bool = False,
    disable_swizzle: bool = False,
    element_bitwidth: int | None = None,
) -> LayoutDump:
    """The dump of one encoding.

    Args:
        shape: the tensor's; may be None with `core`, or for a `SharedLinear`.
        core: the swizzle atom alone (an NVMMAShared only).
        disable_swizzle: as in `core_matrix_linear_layout` (an NVMMAShared only).
        element_bitwidth: bits of an element, for encodings that do not say it.

    Raises:
        LayoutError: illegal, or not applicable to this encoding.
    """
    checked_encoding("encoding", encoding)
    if isinstance(encoding, NVMMAShared):
        own = encoding.element_bitwidth
        if element_bitwidth not in (None, own):
            raise LayoutError("bits", element_bitwidth, f"must be {own}, as in the encoding")
        element_bitwidth = own
        if core:
            layout = core_matrix_linear_layout(encoding, disable_swizzle)
        else:
            sizes = checked_shape(shape, encoding.rank)
            layout = nvmma_shared_to_linear_layout(sizes, encoding, disable_swizzle)
    elif core or disable_swizzle:
        raise LayoutError("encoding", str(encoding), "only an nvmma_shared has a swizzle atom")
    else:
        layout = encoding.to_linear_layout(shape)
    if shape is None and not core:
        shape = tuple(layout.out_dims.values())
    return LayoutDump(
        what="atom" if core else "tile",
        encoding=str(encoding),
        layout=layout,
        shape=None if shape is None else tuple(shape),
        element_bitwidth=element_bitwidth,
        paddings=encoding.paddings,
    )


def to_json(dumps: Iterable[LayoutDump]) -> str:
    """The JSON form of some dumps."""
    return json.dumps({"version": JSON_VERSION, "layouts": list(map(_to_object, dumps))}, indent=2)


def layout_object(layout: LinearLayout) -> dict[str, Any]:
    """The JSON form of a layout, as ``layout_dump.schema.json`` describes it."""
    bases = layout.bases
    return {
        "in_dims": [
            {"name": name, "size": size, "bases": [list(basis) for basis in bases[name]]}
            for name, size in layout.in_dims.items()
        ],
        "out_dims": [{"name": name, "size": size} for name, size in layout.out_dims.items()],
    }


def layout_from_object(item: Mapping[str, Any]) -> LinearLayout:
    """The layout of `layout_object`. Raises LayoutError: a name is there twice, or a size is not
    that of the bases."""
    for key in ("in_dims", "out_dims"):
        names = [dim["name"] for dim in item[key]]
        if len(set(names)) != len(names):
            raise LayoutError(key, names, "names must be distinct")
    for dim in item["in_dims"]:
        if dim["size"] != 1 << len(dim["bases"]):
            rule = f"must be {1 << len(dim['bases'])}, as there are {len(dim['bases'])} bases"
            raise LayoutError(f"in_dims[{dim['name']!r}].size", dim["size"], rule)
    return LinearLayout(
        {dim["name"]: dim["bases"] for dim in item["in_dims"]},
        {dim["name"]: dim["size"] for dim in item["out_dims"]},
    )


def _to_object(dump: LayoutDump) -> dict[str, Any]:
    layout = None if dump.layout is None else layout_object(dump.layout)
    return {
        "what": dump.what,
        "encoding": dump.encoding,
        "alias": dump.alias,
        "shape": None if dump.shape is None else list(dump.shape),
        "element_bitwidth": dump.element_bitwidth,
        "layout": layout,
        "error": dump.error,
        **({"paddings": list(map(list, dump.paddings))} if dump.paddings else {}),
    }


def from_json(text: str) -> list[LayoutDump]:
    """The dumps that `to_json` wrote. Raises LayoutError: not such a text (`SCHEMA`), or one that
    contradicts itself."""
    from triton_ext.layouts.schema import read_json  # which a dump itself does without

    return [_from_object(item) for item in read_json(text, SCHEMA)["layouts"]]


def _from_object(item: dict[str, Any]) -> LayoutDump:
    layout = None if item["layout"] is None else layout_from_object(item["layout"])
    dump = LayoutDump(
        what=item["what"],
        encoding=item["encoding"],
        layout=layout,
        shape=None if item["shape"] is None else tuple(item["shape"]),
        element_bitwidth=item["element_bitwidth"],
        alias=item["alias"],
        error=item["error"],
        paddings=checked_paddings(item.get("paddings", ())),
    )
    if layout is not None:
        if dump.what == "tile" and dump.shape != tuple(layout.out_dims.values()):
            raise LayoutError("shape", dump.shape, f"must be that of the layout, {layout.out_dims}")
        known = _dumps_of(dump)
        if known and all(layout != each.layout for each in known):
            rule = f"is not that of its encoding, {dump.encoding}"
            raise LayoutError("layout", str(layout), rule)
        if known and dump.paddings != known[0].paddings:
            rule = f"are not those of its encoding, {dump.encoding}"
            raise LayoutError("paddings", dump.paddings, rule)
    return dump


def _dumps_of(dump: LayoutDump) -> list[LayoutDump]:
    """What the encoding of a dump makes, with and without swizzle; none if that is not known."""
    try:
        encoding = parse_encoding(dump.encoding)
    except LayoutError:
        return []
    core = dump.what == "atom"
    flags = (False, True) if isinstance(encoding, NVMMAShared) else (False,)
    return [dump_encoding(encoding, dump.shape, core=core, disable_swizzle=flag) for flag in flags]
