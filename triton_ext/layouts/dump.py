"""A linear layout and the encoding that it comes from: what the ``layout`` command shows.

The JSON form is described by ``layout_dump.schema.json`` beside this file (JSON Schema 2020-12).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from triton_ext.errors import LayoutError
from triton_ext.layouts.cluster import checked_shape
from triton_ext.layouts.encodings import NVMMAShared, SharedEncoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import core_matrix_linear_layout, nvmma_shared_to_linear_layout

JSON_VERSION = 1


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
    """

    what: Literal["tile", "atom"]
    encoding: str
    layout: LinearLayout | None
    shape: tuple[int, ...] | None = None
    element_bitwidth: int | None = None
    alias: str = ""
    error: str = ""


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
    if isinstance(encoding, NVMMAShared):
        element_bitwidth = encoding.element_bitwidth
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
    """The layout of `layout_object`."""
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
    }


def from_json(text: str) -> list[LayoutDump]:
    """The dumps that `to_json` wrote.

    Raises:
        LayoutError: not such a text.
    """
    try:
        document = json.loads(text)
        if document["version"] != JSON_VERSION:
            raise LayoutError("version", document["version"], f"must be {JSON_VERSION}")
        return [_from_object(item) for item in document["layouts"]]
    except (KeyError, TypeError, ValueError) as problem:
        if isinstance(problem, LayoutError):
            raise
        raise LayoutError(
            "json", text[:40], f"is not a layout dump ({type(problem).__name__}: {problem})"
        ) from None


def _from_object(item: dict[str, Any]) -> LayoutDump:
    layout = None if item["layout"] is None else layout_from_object(item["layout"])
    return LayoutDump(
        what=item["what"],
        encoding=item["encoding"],
        layout=layout,
        shape=None if item["shape"] is None else tuple(item["shape"]),
        element_bitwidth=item["element_bitwidth"],
        alias=item["alias"],
        error=item["error"],
    )
