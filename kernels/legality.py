"""What is legal: of a product, of what follows it, and of the tile that an architecture makes.

Each function is the one statement of its value's rules, in the order in which they are checked, and
raises a LayoutError that names the first field that breaks one, and what would be legal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.hardware.instruction_descriptor import legal_n
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.hardware.tensor_memory import TMEM_COLUMNS
from triton_ext.kernels.element_types import (
    BLOCK_SCALED,
    ELEMENT_BYTES,
    ELEMENT_TYPES,
    FP32_SCALE_BLOCK,
    MMA_KINDS,
    SCALE_BLOCK,
)
from triton_ext.kernels.epilogue import ACTIVATIONS, GATE_ACTIVATIONS, NO_EPILOGUE, EpilogueSpec
from triton_ext.kernels.last_tile import may_leave_through_pipeline
from triton_ext.kernels.layouts import layouts_of
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.registers import (
    FP32_TYPES,
    MOST_COLUMNS_OF_THREE,
    may_accumulate_in_fp32,
    most_columns,
)
from triton_ext.kernels.right_operand import panels_along_k
from triton_ext.kernels.shared_memory import shared_memory_bytes
from triton_ext.kernels.tile import PersistentTile, SimpleTile, Sm90Tile, Sm100Tile, Tile
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

BOOLEAN = (False, True)
SWIZZLES = (None, 32, 64, 128)
POWERS = (8, 16, 32, 64, 128, 256)
"""Columns of a tile, and of a piece of C."""
SCALED_COLUMNS = (128, 256)
"""Columns of tiles of block-scaled types."""
MOST_PROMOTED_COLUMNS = 128
"""Columns of a tile of sm_100 whose sums are added up in registers, a row in each thread."""
INT8_MAX_COLUMNS = 224
"""The widest integer wgmma in Triton 3.7 to 3.9 (``NVGPUToLLVMPass.cpp``); PTX allows 256."""

Values = Iterator[tuple[str, Sequence[Any]]]
"""Fields, each with its legal values, given that those before are legal."""


def check(product: ProductSpec, epilogue: EpilogueSpec, tile: Tile) -> None:
    """Raise LayoutError unless a kernel of these three can be compiled."""
    check_product(product, tile)
    check_epilogue(epilogue, product, tile)
    if isinstance(tile, SimpleTile):
        check_simple_tile(tile, product)
    elif isinstance(tile, Sm90Tile):
        check_sm90_tile(tile, product, epilogue)
    else:
        check_sm100_tile(tile, product)
    if not isinstance(tile, SimpleTile):
        _check_groups(product, epilogue, tile)
        _check_gated(product, tile)


def check_product(product: ProductSpec, tile: Tile) -> None:
    """Raise LayoutError unless the architecture of a tile multiplies such."""
    check_kinds(tile)
    check_kinds(product)
    check_values(product, _product_values(product, tile))
    if product.collective is not None:
        for rule, kept in _rules_of_ranks(product, tile).items():
            if not kept:
                raise LayoutError("collective", product.collective, f"must be None: {rule}")


def _product_values(product: ProductSpec, tile: Tile) -> Values:
    on_hopper = tile.arch == 90
    if isinstance(tile, SimpleTile):
        yield "element_type", ELEMENT_TYPES
        defaults = (
            ("out_type", None), ("batched", False), ("collective", None), ("a_scale_rows", 0),
            ("b_scale_rows", 0), ("groups", None), ("gated", False), ("gathered", False),
            ("scattered", False), ("interleaved", False),
        )  # fmt: skip
        yield from ((name, (value,)) for name, value in defaults)
        yield "fp32_accumulation", (False,)
        yield "a_major", ("K", "MN")
        yield "b_major", ("K", "MN")
        return
    yield (
        "element_type",
        [name for name in ELEMENT_BYTES if not (on_hopper and name in BLOCK_SCALED)],
    )
    either = product.element_bytes == 2
    either |= product.element_bytes == 1 and not on_hopper and product.scaling is None
    yield "a_major", ("K", "MN") if either else ("K",)
    yield "b_major", ("K", "MN") if either else ("K",)
    exact = (None, "int32") if product.element_type == "int8" else (None,)
    yield "out_type", (*exact, "fp32", "fp16", "bf16", "e4m3", "e5m2")
    yield "collective", (None, "gather", "scatter")
    alone = (False,) if product.scaling else BOOLEAN
    several = product.collective or product.groups or product.parts_of_b > 1
    yield "batched", (True,) if several else alone
    scales = (0, 1, 128) if product.element_type in FP32_TYPES else (0,)
    yield "a_scale_rows", scales
    paired = (0,) if product.a_scale_rows == 0 else (1, 128)
    yield "b_scale_rows", paired if product.a_scale_rows < 128 else (1,)
    along_k = ("K",) if product.element_bytes == 2 else ()
    yield "groups", (None,) if product.collective else (None, "M", "rows", "N", *along_k)
    no_gate = product.collective or product.scaling or product.groups in ("N", "K")
    yield "gated", (False,) if no_gate else BOOLEAN
    in_turn = product.gated and not product.has_fp32_blocks
    yield "interleaved", BOOLEAN if in_turn else (False,)
    ordered = BOOLEAN if product.groups == "M" else (False,)
    yield "gathered", ordered
    yield "scattered", ordered
    yield "a_scale_major", ("K", "MN")
    yield "b_scale_major", ("K", "MN")


def _rules_of_ranks(product: ProductSpec, tile: Tile) -> dict[str, bool]:
    """What the ranks of a group ask of a product that they make together, and whether it is so."""
    if isinstance(tile, SimpleTile):
        return {}
    floating = product.element_type != "int8" and product.scaling is None
    clusters = (tile.arch, product.collective, tile.cluster_m) != (100, "scatter", 4)
    return {
        "tiles must be whole: split_k and cluster_k 1": tile.cluster_k == tile.split_k == 1,
        "the operands must not be swapped": not tile.swap_ab,
        "elements must be of 16 bits, fp8 or tf32": floating,
        "tiles must not be asked for, as all ranks make them in one order":
            not tile.cluster_launch_control,
        "clusters must be of 1 or 2, as all of them must run at a time, and how many of 4 do on"
        " sm_100 is not known": clusters,
    }  # fmt: skip


def check_epilogue(epilogue: EpilogueSpec, product: ProductSpec, tile: Tile) -> None:
    """Raise LayoutError unless a tile's kernel applies it."""
    check_kinds(epilogue)
    check_values(epilogue, _epilogue_values(tile, product))
    if epilogue.residual and product.collective is not None:
        rule = "must be None: there must be no residual"
        raise LayoutError("collective", product.collective, rule)
    if epilogue.residual and product.gated:
        raise LayoutError("residual", True, "must be False of gated products")


def _epilogue_values(tile: Tile, product: ProductSpec) -> Values:
    if isinstance(tile, SimpleTile):
        for field in fields(EpilogueSpec):
            yield field.name, (getattr(NO_EPILOGUE, field.name),)
        return
    yield "activation", (None, *ACTIVATIONS, *(GATE_ACTIVATIONS if product.gated else ()))
    yield "a_scales", (None, "one", "each")
    yield "b_scales", (None, "one", "each")


def check_simple_tile(tile: SimpleTile, product: ProductSpec) -> None:
    """Raise LayoutError unless the simple kernel takes it."""
    check_values(tile, _simple_values(tile))
    _check_swizzles(tile, product)
    _check_shared_memory(tile, product)


def _simple_values(tile: SimpleTile) -> Values:
    yield "arch", (90, 100)
    yield "a_swizzle", SWIZZLES
    yield "b_swizzle", SWIZZLES
    yield "block_m", (64, 128) if tile.arch == 90 else (128,)
    yield "block_n", (16, 32, 64, 128, 256)
    yield "block_k", (16, 32, 64, 128)
    yield "stages", range(2, 9)
    yield "num_warps", (4, 8) if tile.block_m >= 128 else (4,)


def check_sm90_tile(tile: Sm90Tile, product: ProductSpec, epilogue: EpilogueSpec) -> None:
    """Raise LayoutError unless Hopper's kernel takes it."""
    check_values(tile, _sm90_values(tile, product, epilogue))
    _check_fp32_blocks(product, tile)
    if product.fp32_accumulation and not may_accumulate_in_fp32(product, tile):
        rule = "must be False: it is for fp8, up to 128 bytes of K, and as many sums as there is"
        raise LayoutError("fp32_accumulation", True, f"{rule} room for in the registers")
    wide = "block_m" if tile.swap_ab else "block_n"
    if tile.consumers == 3 and tile.columns > MOST_COLUMNS_OF_THREE:
        rule = f"must be at most {MOST_COLUMNS_OF_THREE} with 3 consumers: the accumulator would"
        raise LayoutError(wide, tile.columns, f"{rule} not fit the registers")
    by_triton = tile.units == 1 and not tile.loaded_rows
    if product.element_type == "int8" and by_triton and tile.columns > INT8_MAX_COLUMNS:
        rule = f"must be at most {INT8_MAX_COLUMNS} for int8: Triton's lowering of wgmma aborts for"
        raise LayoutError(wide, tile.columns, f"{rule} wider integer instructions")
    _check_swizzles(tile, product)
    _check_shared_memory(tile, product)


def _sm90_values(tile: Sm90Tile, product: ProductSpec, epilogue: EpilogueSpec) -> Values:
    yield "a_swizzle", SWIZZLES
    yield "b_swizzle", SWIZZLES
    yield "consumers", (1, 2, 3)
    yield "pingpong", BOOLEAN if tile.consumers == 2 else (False,)
    yield "swap_ab", BOOLEAN
    rows, columns = ("block_n", "block_m") if tile.swap_ab else ("block_m", "block_n")
    narrow = tile.consumers == 3 or tile.columns > most_columns(product, tile)
    yield rows, [64 * tile.sharing_consumers * times for times in ((1,) if narrow else (1, 2))]
    step = 16 if product.element_type == "int8" else 8
    in_units = [*(size for size in POWERS if size < step), *range(step, 257, step)]
    whole = tile.cluster_k > 1 and panels_along_k(product, tile) > 1
    yield columns, POWERS if whole else in_units
    yield "block_k", _depths(product)
    yield "stages", range(2, 17)
    yield "cluster_m", (1, 2, 4)
    most = 1 if product.collective else 8 // tile.cluster_m
    yield "cluster_n", [size for size in (1, 2, 4) if size <= most]
    shares = tile.cluster_m * tile.cluster_n > 1 or tile.pingpong
    yield "split_k", (1,) if tile.cluster_k > 1 else range(1, 33)
    yield "cluster_k", (1,) if shares else (1, 2, 4)
    yield from _piece_values(tile, product, 8)
    yield "loaded_rows", range(0, 64, 8) if may_load_less(product, tile) else (0,)
    may_leave = may_leave_through_pipeline(product, epilogue, tile)
    yield "last_through_pipeline", BOOLEAN if may_leave else (False,)


def _check_fp32_blocks(product: ProductSpec, tile: PersistentTile) -> None:
    """Raise LayoutError unless a tile's kernel may have fp32 scales of blocks, if it has any."""
    if not product.has_fp32_blocks:
        return
    if not product.fp32_accumulation and tile.arch == 90:
        raise LayoutError("fp32_accumulation", False, "must be True: sums are scaled when added")
    rule = "with fp32 scales of 128 elements along K"
    _check_fields(tile, {"block_k": FP32_SCALE_BLOCK, "cluster_n": 1, "cluster_k": 1}, rule)
    if tile.arch == 100 and tile.columns > MOST_PROMOTED_COLUMNS:
        wide = "block_m" if tile.swap_ab else "block_n"
        most = f"must be at most {MOST_PROMOTED_COLUMNS} {rule}, as sums are in registers"
        raise LayoutError(wide, tile.columns, most)


def _check_groups(product: ProductSpec, epilogue: EpilogueSpec, tile: PersistentTile) -> None:
    """Raise LayoutError unless a tile's kernel may make products of groups, if there are any."""
    if product.groups is None:
        return
    majors = {"M": ("a_major", "K"), "rows": ("a_major", "K"), "N": ("b_major", "K")}
    along_k = {"a_major": "MN", "b_major": "MN"}
    wanted = along_k if product.groups == "K" else dict([majors[product.groups]])
    _check_fields(product, wanted, f"as groups along {product.groups} begin anywhere")
    if epilogue.bias and product.groups not in ("M", "rows"):
        rule = f"must be False of groups along {product.groups}: a group has one for its columns"
        raise LayoutError("bias", True, rule)
    if epilogue.residual:
        raise LayoutError("residual", True, "must be False of products of groups")
    legal: dict[str, Any] = {
        "cluster_n": 1, "cluster_k": 1, "split_k": 1, "loaded_rows": 0,
        "last_through_pipeline": False, "cluster_launch_control": False,
    }  # fmt: skip
    if product.groups == "K":
        legal |= {"cluster_m": 1, "sharing_consumers": 1, "units": 1}
    if product.gathered:
        legal |= {"cluster_m": 1}
    _check_fields(tile, legal, "of products of groups")


def _check_gated(product: ProductSpec, tile: PersistentTile) -> None:
    """Raise LayoutError unless a tile's kernel may make gated products, if its are."""
    if not product.gated:
        return
    legal: dict[str, Any] = {
        "swap_ab": False, "cluster_n": 1, "cluster_k": 1, "split_k": 1, "units": 1,
        "last_through_pipeline": False,
    }  # fmt: skip
    _check_fields(tile, legal, "of gated products")
    if product.has_fp32_blocks:
        rule = "of gated products with fp32 scales of 128 elements along K"
        _check_fields(tile, {"cta_group": 1}, rule)
    line = layouts_of(product, tile).b.encoding.swizzle_byte_width // product.element_bytes
    if product.b_major == "K" and tile.block_k > line and not product.interleaved:
        rule = f"must be at most {line} of gated products, a line of the swizzle"
        raise LayoutError("block_k", tile.block_k, rule)
    if tile.columns % (2 * ATOM_ROWS):
        rule = f"must be a multiple of {2 * ATOM_ROWS} of gated products"
        raise LayoutError("block_n", tile.block_n, rule)
    pieces = 2 if product.interleaved else 2 * tile.cta_group
    if tile.c_parts % pieces:
        rule = f"must be a multiple of {pieces}: each piece is of the gate, or of up"
        raise LayoutError("c_parts", tile.c_parts, rule)
    if 2 * tile.c_buffers > tile.c_parts:
        rule = f"must be at most {tile.c_parts // 2}: two pieces make one of C"
        raise LayoutError("c_buffers", tile.c_buffers, rule)


def may_load_less(product: ProductSpec, tile: Sm90Tile) -> bool:
    """Whether a tile of the left operand may have rows that are not copied."""
    alone = tile.cluster_size == 1 and tile.rows == 64 and tile.consumers == 1
    alone &= product.groups is None
    return alone and product.majors(tile.swap_ab)[0] == "K" and not product.collective


def check_sm100_tile(tile: Sm100Tile, product: ProductSpec) -> None:
    """Raise LayoutError unless Blackwell's kernel takes it."""
    check_values(tile, _sm100_values(tile, product))
    if product.fp32_accumulation:
        raise LayoutError("fp32_accumulation", True, "must be False: all are added up in fp32")
    _check_fp32_blocks(product, tile)
    _check_swizzles(tile, product)
    _check_shared_memory(tile, product)


def _sm100_values(tile: Sm100Tile, product: ProductSpec) -> Values:
    yield "swap_ab", BOOLEAN
    yield "cluster_m", (1, 2, 4)
    yield "cta_group", (1, 2) if tile.cluster_m > 1 else (1,)
    rows, columns = ("block_n", "block_m") if tile.swap_ab else ("block_m", "block_n")
    scaled = product.scaling is not None
    yield rows, (128,) if scaled else (64, 128)  # products of 64 rows have no scales
    kind = MMA_KINDS.get(product.element_type, "f16")
    legal = legal_n(kind, tile.cta_group * tile.rows, tile.cta_group)
    most = TMEM_COLUMNS // 2  # two tiles of sums
    shapes = SCALED_COLUMNS if scaled else [size for size in POWERS if size in legal]
    yield columns, [size for size in shapes if size <= most]
    yield "block_k", _depths(product)
    yield "stages", range(2, 17)
    yield "cluster_launch_control", BOOLEAN
    yield "split_k", (1,) if tile.cluster_launch_control else range(1, 33)
    in_other_lanes = tile.cta_group == 2 and tile.rows == 64  # each half of the columns
    yield from _piece_values(tile, product, tile.columns if in_other_lanes else 8)


def _depths(product: ProductSpec) -> list[int]:
    """What `block_k` may be."""
    return [
        size
        for size in (16, 32, 64, 128, 256)
        if size * product.element_bytes >= INSTRUCTION_K_BYTES
        and product.scales(size) % SCALE_BLOCK[1] == 0
    ]


def _piece_values(tile: PersistentTile, product: ProductSpec, least: int) -> Values:
    """In how many pieces of how many columns at least C may leave."""
    if product.c_bytes == 1 and not tile.swap_ab:
        least = max(least, 16)  # TMA copies 16 bytes
    yield (
        "c_parts",
        [
            tile.columns // piece
            for piece in reversed(POWERS)
            if least * tile.cluster_k <= piece and tile.columns % piece == 0
        ],
    )
    yield "c_buffers", range(1, tile.c_parts + 1)


def _check_swizzles(tile: Tile, product: ProductSpec) -> None:
    """Raise LayoutError unless all tiles have layouts, and the operands a swizzle."""
    layouts = layouts_of(product, tile)
    for name, made in (("a_swizzle", layouts.a), ("b_swizzle", layouts.b)):
        if made.encoding.swizzle_byte_width == 0:
            raise LayoutError(name, 0, "must be 32 at least, and the tile as wide as that")


def _check_shared_memory(tile: Tile, product: ProductSpec) -> None:
    needed = shared_memory_bytes(product, tile)
    if needed > SHARED_MEMORY_PER_BLOCK:
        raise LayoutError(
            "stages",
            tile.stages,
            f"the tiles need {needed} bytes of shared memory, and a block has"
            f" {SHARED_MEMORY_PER_BLOCK}; use fewer stages or smaller blocks",
        )


def check_values(value: Any, legal: Values) -> None:
    """Raise LayoutError unless each field named has one of its legal values."""
    for name, values in legal:
        found = getattr(value, name)
        if found not in values:
            raise LayoutError(name, found, f"must be one of {list(values)}")


def _check_fields(value: Any, legal: Mapping[str, Any], rule: str) -> None:
    """Raise LayoutError unless each field named has its only legal value, by a rule."""
    for name, only in legal.items():
        found = getattr(value, name)
        if found != only:
            raise LayoutError(name, found, f"must be {only} {rule}")


def check_kinds(value: Any) -> None:
    """Raise LayoutError unless each field of a dataclass has the type that it is annotated with,
    and integers are not negative, nor 0 where their default is not.
    """
    for name, (kinds, least, rule) in _kinds(type(value)).items():
        found = getattr(value, name)
        if type(found) not in kinds or (type(found) is int and found < least):
            raise LayoutError(name, found, rule)


_KINDS: dict[type, Mapping[str, tuple[tuple[type, ...], int, str]]] = {}


def _kinds(cls: type) -> Mapping[str, tuple[tuple[type, ...], int, str]]:
    if cls not in _KINDS:
        _KINDS[cls] = {field.name: _kind(field) for field in fields(cls)}
    return _KINDS[cls]


def _kind(field: Field[Any]) -> tuple[tuple[type, ...], int, str]:
    """The types that a field's value may have, the least integer, and both in words."""
    if field.type == "bool":
        return (bool,), 0, "must be True or False"
    if field.type == "int":
        least = 0 if field.default == 0 else 1
        return (int,), least, f"must be an integer of at least {least}"
    optional = "None" in str(field.type)
    kind, words = (int, "an integer") if "int" in str(field.type) else (str, "a string")
    if not optional:
        return (kind,), 0, f"must be {words}"
    return (kind, type(None)), 0, f"must be {words}, or None"
