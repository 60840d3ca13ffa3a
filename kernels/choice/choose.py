"""Which kernel a problem gets, unless one was measured or is given; and what changes in it for what
follows the product.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

from triton_ext.errors import LayoutError
from triton_ext.kernels.choice import sm90, sm100
from triton_ext.kernels.choice.fixed_set import copies_enough, fixed_set
from triton_ext.kernels.choice.gpus import check_model
from triton_ext.kernels.choice.problem import Problem
from triton_ext.kernels.element_types import ELEMENT_BYTES
from triton_ext.kernels.epilogue import NO_EPILOGUE, EpilogueSpec
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import PersistentTile, SimpleTile, Sm90Tile, Sm100Tile


class CostModel(Protocol):
    """How the kernels of an architecture are compared. A *table* holds some of them, in the form
    that its model computes with.
    """

    def candidates(self, product: ProductSpec, problem: Problem) -> Any:
        """The table of those that are considered for a problem; some may be illegal."""

    def table_of(self, specs: Iterable[KernelSpec], product: ProductSpec) -> Any:
        """The table of kernels for a product."""

    def limits(self, table: Any, problem: Problem) -> Sequence[float]:
        """The seconds that each takes by what limits it."""

    def seconds(self, table: Any, problem: Problem) -> Sequence[float]:
        """The seconds that each is predicted to take."""

    def compare(self, table: Any, problem: Problem, every: bool = False) -> Iterator[KernelSpec]:
        """The legal ones, the fastest first; every one, or those that suit the problem."""


MODELS: Mapping[int, CostModel] = {90: cast(CostModel, sm90), 100: cast(CostModel, sm100)}


@functools.lru_cache(maxsize=4096)
def choose_config(
    arch: int,
    product: ProductSpec,
    problem: Problem,
    fixed: bool = False,
    in_order: bool = False,
) -> KernelSpec:
    """The kernel for a problem: the one whose predicted time is the shortest.

    Args:
        product: what is multiplied; whether it is `batched` is left to the caller.
        fixed: choose among the `fixed_set` alone, unless accumulated in fp32, or of groups.
        in_order: choose among those alone that add in the order of K
            (`KernelSpec.adds_in_order`), so that an element's bits do not depend on the problem's
            rows and columns.

    Raises:
        LayoutError: no kernel takes these types, or these major-nesses of them, or accumulates them
            in fp32; or the GPU is not known.
    """
    _check_product(arch, product)
    check_model(problem.gpu)
    outside = product.fp32_accumulation or product.has_fp32_blocks or product.groups is not None
    if not fixed or outside:
        suited, every = (ranked(arch, product, problem, each) for each in (False, True))
        found = itertools.chain(suited, every)  # where none suits, the best of all
        return next(spec for spec in found if spec.adds_in_order or not in_order)
    model = MODELS[arch]
    kernels = [
        spec
        for spec in fixed_set(arch, product)
        if copies_enough(spec, problem) and (spec.adds_in_order or not in_order)
    ]
    table = model.table_of(kernels, product)
    return next(model.compare(table, problem), None) or next(
        model.compare(table, problem, every=True)
    )


def ranked(
    arch: int, product: ProductSpec, problem: Problem, every: bool = False
) -> Iterator[KernelSpec]:
    """The candidates for a problem, those with the shortest predicted time first. `every`: those,
    too, that do not suit the problem."""
    model = MODELS[arch]
    return model.compare(model.candidates(product, problem), problem, every)


def predicted_seconds(spec: KernelSpec, problem: Problem) -> float:
    """The seconds that the product, or a batch of them, is predicted to take with a kernel."""
    model = MODELS[spec.arch]
    return float(model.seconds(model.table_of([spec], spec.product), problem)[0])


def _check_product(arch: int, product: ProductSpec) -> None:
    """Raise LayoutError unless a tile that suits all types is legal."""
    line = 128 // ELEMENT_BYTES.get(product.element_type, 1)
    parts = 2 if product.gated else 1
    tile: PersistentTile = Sm100Tile(block_k=line, stages=2, c_parts=parts)
    if arch == 90:
        tile = Sm90Tile(consumers=1, block_n=64, block_k=line, stages=2, c_parts=parts)
    KernelSpec(product, NO_EPILOGUE, tile)


SHORT_K, LEAST_STAGES = 16, 4
"""Up to how many products of tiles, and down to how many stages, a stage may go to a residual."""


def with_epilogue(
    spec: KernelSpec, k: int | None, epilogue: EpilogueSpec = NO_EPILOGUE
) -> KernelSpec:
    """A kernel with what follows the product.

    Only as many pieces of a residual as there are buffers are asked for while a tile is multiplied;
    each further one is waited for. So there are as many buffers as fit, and where K is short they
    take the place of a stage: `addmm` took 0.84 to 0.98 of the time that it took with few buffers
    (11 shapes on an H200); where K was 1912, a stage given up cost 6 %.

    Args:
        k: the problem's K; None for one kernel for all.
    """
    tile = spec.tile
    if isinstance(tile, Sm90Tile) and epilogue.residual:
        tile = replace(tile, last_through_pipeline=False)
    spec = KernelSpec(spec.product, epilogue, tile)
    if isinstance(tile, SimpleTile) or not epilogue.residual:
        return spec
    products = None if k is None else -(-k // (tile.block_k * tile.cluster_k))
    return next(_with_buffers(spec, tile, products), spec)


def _with_buffers(
    spec: KernelSpec, tile: PersistentTile, products: int | None
) -> Iterator[KernelSpec]:
    """It with more buffers for C, as far as it is legal, the best first."""
    ways = [(tile.stages, tile.c_parts)]
    if products is not None and products <= SHORT_K and tile.stages > LEAST_STAGES:
        ways.append((tile.stages - 1, tile.c_parts))
    ways += [(tile.stages, buffers) for buffers in range(tile.c_parts - 1, 0, -1)]
    for stages, buffers in ways:
        if buffers > tile.c_buffers:
            try:
                yield replace(spec, tile=replace(tile, stages=stages, c_buffers=buffers))
            except LayoutError:
                continue
