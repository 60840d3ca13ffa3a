"""The page to explore: layouts, banks, descriptors, fragments, TMA copies and tensor memory.

One HTML file, with no server, no network and nothing beside it. What Python knows is embedded as
data: the bases of every swizzle atom, fragment and matrix of tensor memory, and the fields of the
descriptors. The page's scripts (``templates/explore``) XOR bases; a shape that is typed in they
stack from the atoms as `triton_ext.layouts.nvmma_shared` does, which a test compares.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK, architecture
from triton_ext.hardware.banks import ACCESS_BYTES, BANK_BYTES, BANKS, LINE_BYTES, MATRIX_COUNTS
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, MmaOperand
from triton_ext.hardware.smem_descriptor import FIELDS, SWIZZLE_CODES, VERSION
from triton_ext.hardware.tensor_memory import accumulator_layout, operand_a_layout
from triton_ext.hardware.tensor_memory_access import CHOSEN_SHAPES, plan_transfer
from triton_ext.hardware.tensor_memory_scales import scale_factor_layout
from triton_ext.hardware.tma_tile import TileCopies
from triton_ext.layouts.atoms import SwizzleAtom
from triton_ext.layouts.cluster import bases_text
from triton_ext.layouts.dump import LayoutDump, dump_encoding
from triton_ext.layouts.encodings import (
    CHUNK_BYTES,
    ELEMENT_BITWIDTHS,
    MAX_RANK,
    SWIZZLE_BYTE_WIDTHS,
    NVMMAShared,
    SharedEncoding,
    SharedLinear,
    parse_encoding,
)
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import ATOM_ROWS, TMA_BOX_LIMIT, core_matrix_linear_layout
from triton_ext.render.descriptor_picture import instruction_fields, matrix_fields
from triton_ext.render.fragments import fragments
from triton_ext.render.parts import MMA_ROWS, dump_atom, dump_plane
from triton_ext.render.scene import FILLS, rendered
from triton_ext.render.words import by

VIEWS = {
    "layout": "Layout",
    "banks": "Banks",
    "descriptor": "Descriptor",
    "fragments": "Registers",
    "tma": "TMA",
    "tmem": "Tensor memory",
    "compare": "Side by side",
}
ROWS, CORES = "rows", "0"
"""Two ways to have no swizzle: the rows of Triton's swizzle 0, and stacked core matrices."""
FP4 = "fp4-padded"
TYPES = {
    **{str(bits): bits for bits in ELEMENT_BITWIDTHS},
    **dict.fromkeys(("f8", "fp8", "e4m3", "e5m2", "f8e4m3fn", "f8e5m2", "i8", "int8", "uint8"), 8),
    **dict.fromkeys(("f16", "fp16", "bf16", "float16", "bfloat16", "i16", "int16"), 16),
    **dict.fromkeys(("f32", "fp32", "tf32", "float32", "i32", "int32"), 32),
    **dict.fromkeys(("f64", "fp64", "float64", "i64", "int64"), 64),
    FP4: 8,
}
"""The names of element types that can be typed in, and their bits."""
_STATE = {
    "view": "layout", "given": "", "shape": "128x128", "type": "bf16", "swizzle": "128",
    "major": "K", "part": "tile", "cga": "", "at": "", "access": "chunk", "offsets": "",
    "width": "4", "arch": "100", "instr": "", "start": "0", "value": "", "fragment": "ldmatrix.x4",
    "tensor": "", "start_at": "", "strides": "", "address": "", "cta": "",
    "matrix": "D, M = 128, f32", "n": "64", "load": "32x32b", "shape2": "", "type2": "",
    "swizzle2": ROWS, "major2": "",
}  # fmt: skip
"""What the page shows first; all of it can be changed there, and stands behind the # then."""
_SCRIPTS = (
    "linear", "shared", "hardware", "draw", "plane", "banks", "operand", "fragments", "tma", "tmem",
    "app",
)  # fmt: skip


# ------------------------------------------------------------------------ what Python knows


def stacked_atoms(
    atom: SwizzleAtom, shape: Sequence[int], order: tuple[int, int] | None = None
) -> LinearLayout:
    """The layout of a tile whose atoms follow one another in memory.

    Args:
        atom: may be without a swizzle, although Triton makes no tiles of such atoms.
        shape: the tile's, a multiple of the atom's, in elements.
        order: ``(0, 1)`` stacks along the first dimension first, ``(1, 0)`` along the second. Left
            out: along the strided dimension first, the order of seed 002 ("we stack the swizzle
            atom along M first, then along K"; MN-major: "along K first, then along M").
    """
    counts = {f"dim{i}": shape[i] // atom.shape[i] for i in range(2)}
    layout = atom.to_linear_layout()
    along = order or ((0, 1) if atom.major == "K" else (1, 0))
    for name in (f"dim{dim}" for dim in along):
        layout = layout * LinearLayout.identity_1d(counts[name], "offset", name)
    return layout


def _atoms() -> dict[str, Any]:
    found = {
        f"{bits},{width}": core_matrix_linear_layout(NVMMAShared(width, bits)).bases["offset"]
        for bits, width in itertools.product(ELEMENT_BITWIDTHS, SWIZZLE_BYTE_WIDTHS)
    }
    padded = core_matrix_linear_layout(NVMMAShared(128, 8, fp4_padded=True))
    return {**found, FP4: padded.bases["offset"]}


def _descriptor(arch: int) -> dict[str, Any]:
    """The fields of a matrix descriptor, with the legal values of those that have few."""
    legal = {"swizzle": list(SWIZZLE_CODES[arch]), "version": [VERSION[arch]]}
    fields = [
        {"key": one.key, "name": one.name, "first": one.first, "bits": one.bits, "fill": one.fill,
         "legal": legal.get(one.key)}
        for one in matrix_fields(0, arch) if one.key != "reserved"
    ]  # fmt: skip
    codes = [[code, *widths] for code, widths in SWIZZLE_CODES[arch].items()]
    return {"fields": fields, "codes": codes}


def _loads(layout: LinearLayout) -> dict[str, Any]:
    """For each shape of tcgen05.ld: who holds which cell of a warp's lanes, or why nobody does."""
    found: dict[str, Any] = {}
    for name in CHOSEN_SHAPES:
        try:
            transfer = plan_transfer(layout, name)
        except LayoutError as error:
            found[name] = error.rule
            continue
        bases = transfer.layout.bases
        found[name] = {
            "instruction": transfer.access.instruction(),
            **{dim: [(at[0], at[2]) for at in bases[dim]] for dim in ("register", "thread")},
        }
    return found


def _matrix(name: str, title: str, layout: LinearLayout, columns: int = 0) -> dict[str, Any]:
    sizes = list(layout.out_dims.values())
    about = f"{by(sizes)} in {layout.in_dims['column']} columns"
    if "block" in layout.in_dims:
        about += " of each CTA of a pair (the first one is drawn)"
    shown = {"name": name, "title": title, "about": about, "columns": columns}
    return {**shown, "given": not columns, "bases": layout.bases, "loads": _loads(layout)}


@cache
def _matrices() -> list[dict[str, Any]]:
    """Accumulators and operands A of every M, over one CTA and a pair; scale factors."""
    found = []
    paths = ((64, 1), (128, 1), (128, 2), (256, 2))
    for (m, group), n in itertools.product(paths, (16, 32, 64, 128, 256)):
        pair = ", pair of CTAs" * (group == 2)
        for name, bits in (("D", 32), ("D", 16), ("A", 16), ("A", 8)):
            kind = f"{name}, M = {m}, {'f' if name == 'D' else ''}{bits}{' bits' * (name == 'A')}"
            if name == "D":
                layout = accumulator_layout(m, n, bits, cta_group=group)
                title = f"Accumulator {m}x{n}, f{bits}{pair}"
            else:
                layout = operand_a_layout(m, n, bits, cta_group=group)
                title = f"Operand A {m}x{n}, {bits} bits{pair}"
            found.append(_matrix(kind + pair, title + ", in tensor memory", layout, n))
    for rows, factors in itertools.product((64, 128, 256), (4, 8, 16, 32, 64)):
        title = f"Scale factors {rows}x{factors}, in tensor memory"
        layout = scale_factor_layout((rows, factors))
        found.append(_matrix(f"Scale factors, {rows} rows", title, layout, factors))
    return found


def given_tile(
    name: str,
    title: str,
    attribute: str,
    layout: LinearLayout,
    element_bitwidth: int,
    atom: SwizzleAtom | None = None,
) -> dict[str, Any]:
    """A layout that no choice of the controls makes, as the page's data.

    Args:
        name: what the control that chooses it calls it.
        attribute: the text that can be copied.
        layout: ``offset`` and perhaps ``block`` -> at least one dimension.
        atom: what the tile is made of; the page checks it.
    """
    own = {"bases": _atoms()[f"{element_bitwidth},{atom.swizzle_byte_width}"],
           "transposed": atom.major == "MN"} if atom else None  # fmt: skip
    return {
        "given": True, "name": name, "title": title, "attribute": attribute,
        "names": list(layout.out_dims), "sizes": list(layout.out_dims.values()),
        "bits": element_bitwidth, "atom": own, "offset": layout.bases["offset"],
        "block": layout.bases.get("block", []),
    }  # fmt: skip


# ------------------------------------------------------------------------ the page


def explore_html(
    view: str = "layout",
    state: Mapping[str, str] | None = None,
    *,
    title: str = "triton-ext explore",
    tiles: Sequence[dict[str, Any]] = (),
    given_matrix: dict[str, Any] | None = None,
    instruction: dict[str, Any] | None = None,
) -> str:
    """One self-contained HTML file that shows, and lets one change, all that the project draws.
    Raises LayoutError: no such view or state.

    Args:
        view: a key of `VIEWS`: what it shows first.
        state: what else it shows first: parts of the page's state, as they stand behind the #.
        title: its heading until the script runs.
        tiles: of `given_tile`, to choose from besides those that the controls describe.
        given_matrix: a matrix of tensor memory, likewise.
        instruction: an instruction descriptor: its ``value``, ``kind`` and ``fields``.
    """
    if view not in VIEWS:
        raise LayoutError("view", view, f"must be one of {', '.join(VIEWS)}")
    unknown = sorted(set(state or {}) - set(_STATE))
    if unknown:
        raise LayoutError("state", unknown, f"must be among {', '.join(_STATE)}")
    first = {"given": tiles[0]["name"]} if tiles else {}
    if given_matrix:
        first["matrix"] = given_matrix["name"]
    matrices = [*([given_matrix] if given_matrix else []), *_matrices()]
    data = {
        "memory": {"chunk": CHUNK_BYTES, "bank": BANK_BYTES, "banks": BANKS, "line": LINE_BYTES},
        "fills": FILLS,
        "atomRows": ATOM_ROWS,
        "boxLimit": TMA_BOX_LIMIT,
        "maxRank": MAX_RANK,
        "maxElements": 8 * SHARED_MEMORY_PER_BLOCK,
        "mmaRows": MMA_ROWS,
        "instructionBytes": INSTRUCTION_K_BYTES,
        "types": TYPES,
        "fp4": FP4,
        "atoms": _atoms(),
        "descriptor": {arch: _descriptor(arch) for arch in FIELDS},
        "fragments": list(fragments()),
        "matrices": matrices,
        "given": list(tiles),
        "instruction": instruction,
        "state": {**_STATE, "view": view, **first, **(state or {})},
    }
    widths = [(str(width), f"{width} B") for width in SWIZZLE_BYTE_WIDTHS[1:]]
    return rendered(
        "explore.html",
        title=title,
        data=data,
        views=VIEWS.items(),
        scripts=_SCRIPTS,
        swizzles=[("auto", "widest"), *widths, (CORES, "core matrices"), (ROWS, "none: rows")],
        accesses=list(_accesses()),
        matrices=[(name, name) for name in dict.fromkeys(one["name"] for one in matrices)],
        columns=[(n, n) for n in sorted({one["columns"] for one in matrices}) if n],
        loads=[("", "none"), *((name, f".{name}") for name in CHOSEN_SHAPES)],
    )


def _accesses() -> Iterator[tuple[str, str]]:
    yield "chunk", "tensor core: 8 x 16 bytes"
    for name, count in itertools.product(("ldmatrix", "stmatrix"), MATRIX_COUNTS):
        yield f"{name}.x{count}", f"{name}.x{count}"
    for name, size in itertools.product(("ld", "st"), ACCESS_BYTES[2:]):
        yield f"{name}.shared {size}", f"{name}.shared, {size} bytes a lane"


def _of_dump(dump: LayoutDump) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The state that shows a dump; and the dump itself where no controls make its layout."""
    encoding = parse_encoding(dump.encoding) if dump.encoding.startswith("#ttg.nvmma") else None
    atom = dump.what == "atom"
    if isinstance(encoding, NVMMAShared):
        again = dump_encoding(encoding, dump.shape, core=atom)
        if again.layout == dump.layout:
            return _described(encoding, dump.shape, atom), []
    return {}, [_given(dump, dump.alias or "given")]


def _given(dump: LayoutDump, name: str) -> dict[str, Any]:
    plane = dump_plane(dump)
    if plane.paddings:
        rule = "is padded, which the page does not draw; as text, grid or SVG it can be shown"
        raise LayoutError("encoding", dump.encoding, rule)
    title = f"{by(plane.layout.out_dims.values())}, {plane.element_bitwidth}-bit elements"
    bits, atom = plane.element_bitwidth, dump_atom(dump, plane)
    return given_tile(name, title, dump.encoding, plane.layout, bits, atom)


def _described(
    encoding: NVMMAShared, shape: Sequence[int] | None, atom: bool = False
) -> dict[str, str]:
    """The state whose controls describe an encoding at a shape."""
    width, cga = encoding.swizzle_byte_width, encoding.cga_layout
    state = {
        "type": FP4 if encoding.fp4_padded else str(encoding.element_bitwidth),
        "swizzle": str(width) if width else CORES if atom else ROWS,
        "major": "MN" if encoding.transposed else "K",
        "part": "atom" if atom else "tile",
        "cga": bases_text(cga) if cga else "",
    }
    return state if shape is None else {**state, "shape": by(shape)}


def dump_html(*dumps: LayoutDump) -> str:
    """What ``triton-ext layout --format html`` prints: the page, with the dumps to choose from.
    Raises LayoutError: a dump with an error or without an element width."""
    if len(dumps) == 1:
        dump_plane(dumps[0])  # or LayoutError
        state, tiles = _of_dump(dumps[0])
        title = dumps[0].alias or dumps[0].encoding
        return explore_html("layout", state, title=title, tiles=tiles)
    tiles = [_given(dump, f"{i}: {dump.alias or dump.what}") for i, dump in enumerate(dumps)]
    return explore_html(tiles=tiles)


def banks_html(
    encoding: SharedEncoding, shape: Sequence[int] | None, bits: int, state: dict[str, str]
) -> str:
    """The page of an access to a tile of elements of `bits` bits. `state`: ``access`` and ``at``,
    or ``offsets`` and ``width``."""
    dump = dump_encoding(encoding, shape, element_bitwidth=bits)
    own, tiles = _of_dump(dump)
    return explore_html("banks", own | state, tiles=tiles)


def tma_html(
    copies: TileCopies,
    block: Sequence[int],
    shape: Sequence[int],
    at: Sequence[int] | None,
    strides: Sequence[int] | None,
    cta: int,
) -> str:
    """The page of the copies that fill a tile; see `triton_ext.hardware.tma_tile.tile_copies`."""
    layout = copies.layout
    if isinstance(layout, NVMMAShared):
        state = _described(layout, block)
    else:
        state = {"type": str(layout.element_bitwidth), "swizzle": CORES, "major": layout.major}
        state["shape"] = by(block)
    address = copies.tensor_map.global_address
    state |= {"tensor": by(shape), "cta": str(cta), "address": hex(address) if address else ""}
    for name, values in (("start_at", at), ("strides", strides)):
        state[name] = ",".join(map(str, values or ()))
    return explore_html("tma", state)


def tmem_html(title: str, layout: LinearLayout, load: str) -> str:
    """The page of a matrix in tensor memory, and of the ``tcgen05.ld`` that loads it."""
    return explore_html("tmem", {"load": load}, given_matrix=_matrix("given", title, layout))


def descriptor_html(value: int, arch: int | str) -> str:
    """The page of a 64-bit matrix descriptor: see `descriptor_picture.matrix_scene`."""
    matrix_fields(value, arch)  # or LayoutError
    state = {"value": f"{value:#018x}", "arch": str(architecture(arch))}
    return explore_html("descriptor", state)


def instruction_descriptor_html(value: int, kind: str) -> str:
    """The page of a 32-bit instruction descriptor."""
    fields = [vars(field) for field in instruction_fields(value, kind)]
    said = f"{value:#010x}"
    own = {"value": said, "kind": kind, "fields": fields}
    return explore_html("descriptor", {"value": said}, instruction=own)


def operand_html(layout: LinearLayout, derived: MmaOperand, *, mn_dim: int = 0) -> str:
    """The page of a derived descriptor; see `triton_ext.render.operand_picture.operand_scene`."""
    own, bits = derived.descriptor, derived.element_bitwidth
    names = list(layout.out_dims)
    seen = layout.transpose_outs([names[mn_dim], names[1 - mn_dim]])
    seen = LinearLayout(seen.bases, dict(zip(("M/N", "K"), seen.out_dims.values(), strict=True)))
    atom = SwizzleAtom(derived.major, own.swizzle_byte_width, bits)
    attribute = str(SharedLinear.from_linear_layout(seen))
    title = f"{by(seen.out_dims.values())}, {derived.major}-major, {bits}-bit elements"
    tile = given_tile("given", title, attribute, seen, bits, atom)
    state = {"arch": str(own.arch), "instr": by(derived.instruction)}
    state["start"] = str(own.start_address)
    return explore_html("descriptor", state, tiles=[tile])
