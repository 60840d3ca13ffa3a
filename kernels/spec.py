"""What a matmul kernel is compiled for: what is multiplied, what follows it, and how the
architecture makes a tile of it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.kernels import registers
from triton_ext.kernels.element_types import MIXED
from triton_ext.kernels.epilogue import NO_EPILOGUE, EpilogueSpec
from triton_ext.kernels.layouts import KernelLayouts, layouts_of
from triton_ext.kernels.legality import check
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.tile import SimpleTile, Sm90Tile, Sm100Tile, Tile


@dataclass(frozen=True)
class KernelSpec:
    """Everything that a matmul kernel is specialized for. `kernel_spec` makes one of fields.

    Raises:
        LayoutError: an illegal value, by `legality`.
    """

    product: ProductSpec
    epilogue: EpilogueSpec
    tile: Tile

    def __post_init__(self) -> None:
        check(self.product, self.epilogue, self.tile)

    @classmethod
    def unchecked(cls, product: ProductSpec, epilogue: EpilogueSpec, tile: Tile) -> KernelSpec:
        """One that may be illegal: to check it takes longer than all else that is asked of a
        candidate that is not chosen.
        """
        spec = object.__new__(cls)
        vars(spec).update(product=product, epilogue=epilogue, tile=tile)
        return spec

    @functools.cached_property
    def is_legal(self) -> bool:
        """Whether an `unchecked` one could have been made like any other."""
        try:
            check(self.product, self.epilogue, self.tile)
        except LayoutError:
            return False
        return True

    @property
    def arch(self) -> int:
        """The architecture that it is for: 90 or 100."""
        return self.tile.arch

    @property
    def is_specialized(self) -> bool:
        """Whether warps have different tasks; only such a kernel has an epilogue."""
        return not isinstance(self.tile, SimpleTile)

    @property
    def layouts(self) -> KernelLayouts:
        """The layouts of its tiles."""
        return layouts_of(self.product, self.tile)

    @property
    def has_own_products(self) -> bool:
        """Whether the instructions of a product are the kernel's own (`device/wgmma.py`), not
        Triton's.
        """
        if not isinstance(self.tile, Sm90Tile):
            return False
        product, tile = self.product, self.tile
        uncommon = product.fp32_accumulation or product.element_type in MIXED
        return tile.units > 1 or tile.loaded_rows > 0 or uncommon

    @property
    def partial_sums(self) -> int:
        """See `registers.partial_sums`."""
        if not isinstance(self.tile, Sm90Tile):
            return 0
        return registers.partial_sums(self.product, self.tile)

    @property
    def adds_in_order(self) -> bool:
        """Whether one block adds up all products of an element of C, in the order of K: then its
        bits are those of any other such kernel. (Instructions add so many elements of K to a sum,
        whatever the tile's rows, columns and depth; fp8 accumulated in fp32 is added up by 128
        bytes of K, which all kernels' tiles have that the cost model considers.)
        """
        tile = self.tile
        if isinstance(tile, SimpleTile):
            return True
        return tile.split_k == tile.cluster_k == 1

    def with_fields(self, **changes: Any) -> KernelSpec:
        """A kernel that differs in these fields of its product, epilogue or tile."""
        return KernelSpec(*_replaced((self.product, self.epilogue, self.tile), changes))

    def fields(self) -> dict[str, Any]:
        """The fields of all three that are not at their defaults, as `kernel_spec` takes them."""
        found = {"arch": self.arch, "element_type": self.product.element_type}
        if self.is_specialized:
            found["consumers"] = self.tile.consumers
        for part in (self.product, self.epilogue, self.tile):
            for field in fields(part):
                value = getattr(part, field.name)
                if value != field.default:
                    found[field.name] = value
        return found

    def __str__(self) -> str:
        """Its tile in a few words."""
        tile = self.tile
        words = [f"{tile.block_m}x{tile.block_n}x{tile.block_k}", f"{tile.stages} stages"]
        if isinstance(tile, SimpleTile):
            return ", ".join([*words, "no specialization"])
        words.append(f"{tile.consumers} consumers")
        if tile.pingpong:
            words.append("in turn")
        if tile.swap_ab:
            words.append("swapped")
        if tile.loaded_rows:
            words.append(f"{tile.loaded_rows} rows copied")
        if tile.cluster_n > 1:
            words.append(f"clusters of {tile.cluster_m}x{tile.cluster_n}")
        elif tile.cluster_m > 1:
            words.append(f"clusters of {tile.cluster_m}")
        if tile.cluster_k > 1:
            words.append(f"K among {tile.cluster_k}")
        if tile.split_k > 1:
            words.append("split-K")
        if self.product.fp32_accumulation:
            words.append("fp32 accumulation")
        if tile.last_through_pipeline:
            words.append("last tile through the pipeline")
        return ", ".join(words)


Parts = tuple[ProductSpec, EpilogueSpec, Tile]


def _replaced(parts: Parts, changes: Mapping[str, Any]) -> Parts:
    """Three values with other fields; LayoutError if one is a field of none."""
    left = dict(changes)
    made: list[Any] = []
    for part in parts:
        own = {field.name for field in fields(part)} & left.keys()
        made.append(replace(part, **{name: left.pop(name) for name in own}) if own else part)
    tile = type(parts[-1])
    for name, value in left.items():
        if getattr(tile, name, None) != value:  # what a kind of tile has once and for all
            known = ", ".join(field.name for part in parts for field in fields(part))
            raise LayoutError(name, value, f"must be left out with a {tile.__name__}: {known}")
    return made[0], made[1], made[2]


def kernel_spec(arch: int, element_type: str, *majors: Any, **given: Any) -> KernelSpec:
    """A kernel of the fields of its product, epilogue and tile.

    Args:
        arch: 90 or 100.
        element_type: as in `ProductSpec`.
        majors: a_major and b_major.
        given: any other fields. With `consumers`, which are 1 on sm_100, the kernel is specialized.

    Raises:
        LayoutError: an unknown field, or an illegal value.
    """
    product = ProductSpec(element_type, *majors)
    return KernelSpec(*_replaced((product, NO_EPILOGUE, _tile(arch, given)), given))


def _tile(arch: int, given: dict[str, Any]) -> Tile:
    """The tile of the architecture, at its defaults."""
    if arch not in (90, 100):
        raise LayoutError("arch", arch, "must be one of [90, 100]")
    if given.get("consumers", 0) == 0:
        given.pop("consumers", None)
        return SimpleTile(arch)
    return Sm90Tile() if arch == 90 else Sm100Tile()


RENAMED = {
    "swap": "swap_ab",
    "cluster": "cluster_m",
    "cluster_columns": "cluster_n",
    "k_blocks": "cluster_k",
    "max_splits": "split_k",
    "asked": "cluster_launch_control",
    "promoted": "fp32_accumulation",
    "last_through_ring": "last_through_pipeline",
}
"""Fields of kernels in files that were written before they had their present names."""


def read_spec(written: Mapping[str, Any]) -> KernelSpec:
    """The kernel whose `KernelSpec.fields` were written to a file, by this release or by one before
    it. Raises LayoutError: an unknown field, or an illegal value; a variant that is no more."""
    given = {RENAMED.get(name, name): value for name, value in written.items()}
    if "pair" in given:
        given["cta_group"] = 1 + given.pop("pair")
    for name, default in (("side", 0), ("consumer_columns", 1)):
        value = given.pop(name, default)
        if value != default:
            raise LayoutError(name, value, f"must be {default}: there are no others any more")
    return kernel_spec(**given)
