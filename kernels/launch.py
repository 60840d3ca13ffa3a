"""Compiling and launching the matmul kernels of a `MatmulConfig`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import (
    LAUNCH_OPTIONS,
    SUMS_MAY_OVERLAP,
    TRITON_VERSION,
    compile_kernel,
    relaxed_barriers,
)
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import resident_clusters
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.device.epilogue import COUNTER_BYTES
from triton_ext.kernels.device.matmul import matmul_sm90, matmul_sm100
from triton_ext.kernels.device.warp_specialized import matmul_warp_specialized
from triton_ext.kernels.device.warp_specialized_sm100 import matmul_warp_specialized_sm100
from triton_ext.kernels.device.wgmma import product_of
from triton_ext.kernels.element_types import MIXED, operand_types
from triton_ext.kernels.order import rows_together
from triton_ext.kernels.tiles import TileLayouts
from triton_ext.layouts.triton.gluon import to_gluon

CONSUMER_REGISTERS = {1: 240, 2: 240, 3: 160}
"""Registers of a thread by the number of consumer warpgroups: what is left of the SM's 65,536 when
the producer's warps have 24 each; a multiple of 8."""

TRITON_TYPES = {
    "e4m3": "fp8e4nv", "e5m2": "fp8e5", "tf32": "fp32", "int8": "i8", "int32": "i32",
    "mxfp8": "fp8e4nv", "mxfp8_e5m2": "fp8e5", "mxfp4": "u8", "nvfp4": "u8", "ue8m0": "u8",
}  # fmt: skip
"""What Triton calls element types that it does not call as this project does."""


class DeviceProperties(Protocol):
    """What a plan asks of a GPU; ``torch.cuda.get_device_properties(...)`` has it."""

    @property
    def multi_processor_count(self) -> int:
        """How many SMs the GPU has."""


@dataclass(frozen=True)
class LaunchPlan:
    """How one problem is launched with one configuration.

    ``plan.kernel[plan.grid](*descriptors, **others, **plan.constants, **plan.options)``, with the
    arguments that `arguments` names.

    Attributes:
        kernel: the Gluon kernel.
        grid: in clusters, as Triton counts (a cluster of ``num_ctas`` thread blocks is one).
        arguments: names of the run-time arguments. ``a_desc``, ``b_desc``, ``c_desc``: TMA
            descriptors of A, B and C with the boxes below, the contiguous dimension last.
            ``workspace``: a pointer to `workspace_bytes` bytes, aligned to 16.
            ``bias``, ``a_scale``, ``b_scale``: pointers to contiguous vectors of N, M and N (or 1)
            elements, bias of `MatmulConfig.bias_type`, scales of fp32. ``alpha``, ``beta``: floats.
            ``c0_desc``: as ``c_desc``, for the residual. ``edge_desc``: of the right operand
            (B, or A if they are swapped) once more, with the box of the edge of its tile.
            ``last_desc``: of C, with the box of `MatmulConfig.last_pieces`.
            ``group``: the attribute; so is ``piece_rows``.
            ``own_desc``, ``flags``, ``counters``, ``late``, ``first_chunk``, ``ranks``: see
            `triton_ext.kernels.device.peers.Peers`.
            ``left_scales``, ``right_scales``: the block scales, with the boxes of `scale_tiles`.
            The order is the kernel's; the descriptors go by position, the others by name (the
            kernel's names of the operands are those of its left and right one).
        constants: compile-time arguments.
        options: compilation options.
        a_tile, b_tile, c_tile, edge_tile, last_tile: their ``tma_shape`` and ``tma_encoding`` are
            those of the descriptors.
        own_tile: of ``own_desc``, if there is one.
        scale_tiles: of the left and the right operand's scales, if they are block-scaled.
        group: how many rows of tiles run together (`kernels/device/scheduler.py`).
        piece_rows: how many rows of tiles travel together (`kernels/device/peers.py`).
        workspace_bytes: 0 if there is none. It must be zero before the first launch; every launch
            leaves it so that it serves the next launch of any plan (on the same stream).
    """

    kernel: Any
    grid: tuple[int, int, int]
    arguments: tuple[str, ...]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]
    a_tile: TileLayouts
    b_tile: TileLayouts
    c_tile: TileLayouts
    group: int
    edge_tile: TileLayouts | None = None
    last_tile: TileLayouts | None = None
    scale_tiles: tuple[TileLayouts, TileLayouts] | None = None
    workspace_bytes: int = 0
    own_tile: TileLayouts | None = None
    piece_rows: int = 0


ROWS_TOGETHER = 8
"""Rows of tiles that run together where no order was measured: on Blackwell, and of single blocks
with other ranks."""


def number_of_pieces(waves: float) -> int:
    """In about how many pieces a chunk travels whose tiles take so many waves. A copy engine needs
    7 us for a piece, besides its bytes (two H100s); but tiles of a scatter that share a wave with
    the last ones of the turn before had better not wait for these.
    """
    return 3 if waves > 1 else 2


def launch_plan(
    config: MatmulConfig,
    m: int,
    n: int,
    k: int,
    device_properties: DeviceProperties,
    batch: int = 1,
) -> LaunchPlan:
    """How C (M, N) = A (M, K) @ B (K, N), or a batch of such, is launched on a GPU with `config`.

    Plans of one configuration differ in grid, workspace and the order of tiles, never in what is
    compiled.

    Raises:
        LayoutError: this Triton lacks what the configuration takes, or it has too few
            `loaded_rows`.
    """
    if config.loaded_rows and config.loaded_rows < (n if config.swap else m):
        raise LayoutError("loaded_rows", config.loaded_rows, "must be 0, or at least"
                          f" {'N' if config.swap else 'M'}, {n if config.swap else m}")  # fmt: skip
    together = (config.cluster, config.cluster_columns)
    tile_m = config.block_m * together[config.swap]
    tile_n = config.block_n * together[not config.swap]
    tiles_m, tiles_n = -(-m // tile_m), -(-n // tile_n)
    tiles = batch * tiles_m * tiles_n
    down, across = (tiles_n, tiles_m) if config.swap else (tiles_m, tiles_n)
    grid, workspace = tiles, 0
    resident = resident_clusters(device_properties.multi_processor_count, math.prod(together))
    if config.consumers:
        if config.asked or config.k_blocks > 1:  # blocks of the latter exchange sums once
            grid = tiles
        elif config.max_splits == 1:
            grid = min(tiles, resident)
        else:
            grid = resident
            workspace = COUNTER_BYTES.value + 2 * grid * tile_m * tile_n * 4
    group, piece_rows = ROWS_TOGETHER, 0
    if config.arch == 90 and (config.cluster > 1 or not config.collective):
        size = config.rows * config.cluster, config.columns * config.cluster_columns
        asked = (config.cluster, config.blocks, resident, tiles, down, across, *size)
        group = int(rows_together(*asked))
    if config.collective:
        rows = -(-tiles_m // number_of_pieces(tiles_m * tiles_n / resident))
        group = min(group, rows)
        piece_rows = round(rows / group) * group  # rows that run together end together
    operands = ("b_desc", "a_desc") if config.swap else ("a_desc", "b_desc")
    optional = _optional_arguments(config)
    return LaunchPlan(
        kernel=_InBoxes(kernel_for(config), config) if box_sizes(config) else kernel_for(config),
        grid=(grid, 1, 1),
        arguments=(*operands, "c_desc", *(name for name, asked in optional.items() if asked)),
        constants=_constants(config),
        options=compilation_options(config),
        a_tile=config.a_layouts,
        b_tile=config.b_layouts,
        c_tile=config.c_layouts,
        group=group,
        edge_tile=config.edge_layouts,
        last_tile=config.last_layouts,
        scale_tiles=config.scale_layouts,
        workspace_bytes=workspace,
        own_tile={"gather": config.a_layouts, "scatter": config.c_layouts}.get(
            config.collective or ""
        ),
        piece_rows=piece_rows,
    )


def box_sizes(config: MatmulConfig) -> dict[int, tuple[int, int]]:
    """Rows and columns of the boxes that are others than Triton's type of their descriptor says: a
    power of two of rows, as wide as the swizzle. By the descriptor's position.
    """
    sizes = {each.position: (each.rows, each.copied) for each in config.boxes if each}
    if config.last_through_ring:
        position = 4 if config.edge_layouts is not None else 3
        sizes[position] = config.rows // config.shares, config.last_pieces.columns
    return sizes


def with_boxes(compiled: Any, config: MatmulConfig) -> Any:
    """Triton's compiled kernel, which will be launched with the boxes that a configuration has."""
    for position, size in box_sizes(config).items():
        compiled.metadata.tensordesc_meta[position]["block_size"][-2:] = size
    return compiled


def compiled_as(config: MatmulConfig) -> AbstractContextManager[None]:
    """In which a configuration's kernel is compiled, and found by Triton's JIT."""
    return relaxed_barriers() if config.shares_tiles else nullcontext()


@dataclass(frozen=True)
class _InBoxes:
    """A kernel that Triton's JIT launches `with_boxes`."""

    kernel: Any
    config: MatmulConfig

    @property
    def arg_names(self) -> Sequence[str]:
        """The names of the kernel's arguments."""
        names: Sequence[str] = self.kernel.arg_names
        return names

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, **others: Any) -> Any:
            with compiled_as(self.config):
                with_boxes(self.kernel.warmup(*arguments, grid=grid, **others), self.config)
                return self.kernel[grid](*arguments, **others)

        return launch


def descriptor(matrix: Any, tile: TileLayouts) -> TensorDescriptor:
    """The TMA descriptor of a tensor (a matrix, or a batch) for the box of a tile.

    Its last dimension is contiguous.
    """
    layout = to_gluon(tile.tma_encoding)
    return TensorDescriptor.from_tensor(matrix, list(tile.tma_shape), layout)


def launch_arguments(
    config: MatmulConfig, plan: LaunchPlan, a: Any, b: Any, c: Any, **others: Any
) -> dict[str, Any]:
    """The values of ``plan.arguments``, in their order.

    Args:
        a, b, c: tensors (M, K), (K, N) and (M, N), or batches of such, the operands contiguous
            along their major dimension.
        others: the arguments that are no descriptor of these, of those that the plan has.
    """
    stored = {"a": a if config.a_major == "K" else a.mT, "b": b.mT if config.b_major == "K" else b}
    tiles: dict[str, tuple[Any, Any]] = {
        "a_desc": (stored["a"], plan.a_tile),
        "b_desc": (stored["b"], plan.b_tile),
        "c_desc": (c, plan.c_tile),
        "edge_desc": (stored["a" if config.swap else "b"], plan.edge_tile),
        "last_desc": (c, plan.last_tile),
    }
    others |= {"group": plan.group, "piece_rows": plan.piece_rows}
    return {
        name: descriptor(*tiles[name]) if name in tiles else others[name] for name in plan.arguments
    }


def compiled_arguments(plan: LaunchPlan, arguments: Mapping[str, Any]) -> list[Any]:
    """All arguments of the plan's compiled kernel, constants included, given `launch_arguments`."""
    names = plan.kernel.arg_names
    by_position = zip(names, list(arguments.values())[:3], strict=False)
    values = {**plan.constants, **arguments, **dict(by_position)}
    return [values[name] for name in names]


def _optional_arguments(config: MatmulConfig) -> dict[str, bool]:
    """The run-time arguments besides descriptors of the kernel with consumers, in its order, and
    whether the configuration asks for them; those that it does not ask for are None.
    """
    scaled = config.scaling is not None
    return {
        **_edge_arguments(config),
        "group": True,
        "workspace": config.max_splits > 1,
        "bias": config.bias,
        "a_scale": config.a_scales is not None,
        "b_scale": config.b_scales is not None,
        "alpha": config.alpha,
        "c0_desc": config.residual or config.collective == "scatter",
        "beta": config.residual,
        **_collective_arguments(config),
        **({"left_scales": scaled, "right_scales": scaled} if config.arch == 100 else {}),
    }


def _edge_arguments(config: MatmulConfig) -> dict[str, bool]:
    """Those of sm_90's kernel: other boxes of an operand, and of C."""
    if config.arch != 90:
        return {}
    edge = config.edge_layouts is not None
    return {"edge_desc": edge, "last_desc": config.last_through_ring}


def _collective_arguments(config: MatmulConfig) -> dict[str, bool]:
    """Those of them that a product with other ranks has."""
    with_others = config.collective is not None
    return {
        "own_desc": with_others,
        "flags": with_others,
        "counters": config.collective == "scatter",
        "late": with_others,
        "first_chunk": with_others,
        "ranks": with_others,
        "piece_rows": with_others,
    }


def kernel_for(config: MatmulConfig) -> Any:
    """The Gluon kernel of a configuration; LayoutError if this Triton lacks what it takes."""
    if config.arch == 100 and TRITON_VERSION < (3, 8):
        newer_type = config.element_type == "int8" or config.scaling is not None
        newer = {"asked": config.asked, "element_type": newer_type}
        for name in (name for name, needed in newer.items() if needed):
            raise LayoutError(name, getattr(config, name), "needs Triton 3.8 on sm_100")
    if TRITON_VERSION < (3, 9):
        if config.k_blocks > 1:  # 3.8 begins without a cluster's barrier
            raise LayoutError("k_blocks", config.k_blocks, "needs Triton 3.9")
        if config.max_splits > 1 and config.blocks > 1:
            raise LayoutError("max_splits", config.max_splits, "needs Triton 3.9 in clusters")
        if config.loaded_rows:
            raise LayoutError("loaded_rows", config.loaded_rows, "needs Triton 3.9")
        if config.promoted:
            raise LayoutError("promoted", config.promoted, "needs Triton 3.9")
        if config.last_through_ring:
            raise LayoutError("last_through_ring", True, "needs Triton 3.9")
        if config.element_type in MIXED and config.arch == 90:
            raise LayoutError("element_type", config.element_type, "needs Triton 3.9 on sm_90")
        if config.shares_tiles:
            name = "cluster" if config.cluster > 1 else "cluster_columns"
            raise LayoutError(name, getattr(config, name), "needs Triton 3.9 on sm_90")
        if config.units > 1:
            wide = "block_m" if config.swap else "block_n"
            raise LayoutError(
                wide,
                config.columns,
                "must be a power of two: any other width needs Triton 3.9",
            )
    if config.consumers:
        return {90: matmul_warp_specialized, 100: matmul_warp_specialized_sm100}[config.arch]
    return {90: matmul_sm90, 100: matmul_sm100}[config.arch]


def kernel_constants(config: MatmulConfig, *, generated_layouts: bool = True) -> dict[str, Any]:
    """The kernel's compile-time arguments.

    Args:
        generated_layouts: allocate shared memory with the linear layouts that this project
            generates; else with the NVMMA encodings that Triton converts itself.
    """

    def layout(tile: TileLayouts) -> Any:
        return to_gluon(tile.linear if generated_layouts else tile.encoding)

    common = {
        "BLOCK_K": config.block_k,
        "STAGES": config.stages,
        "C_LAYOUT": layout(config.c_layouts),
        "num_warps": config.num_warps,
    }
    left, right = (config.a_layouts, config.a_major), (config.b_layouts, config.b_major)
    if config.swap:
        left, right = right, left
    common |= {
        "A_LAYOUT": layout(left[0]),
        "A_K_MAJOR": left[1] == "K",
        "B_LAYOUT": layout(right[0]),
        "B_K_MAJOR": right[1] == "K",
    }
    if not config.consumers:
        return common
    if config.arch == 90:
        common |= {
            "CONSUMERS": config.consumers,
            "CONSUMER_REGISTERS": CONSUMER_REGISTERS[config.consumers],
            "SHARES": config.shares,
            "K_BLOCKS": config.k_blocks,
            **dict(zip(("LEFT_BOXES", "RIGHT_BOXES", "EDGE_BOXES"), config.boxes, strict=True)),
            "FILLED": config.loaded_rows > 0,
            "RIGHT_UNIT": (config.right_unit[0], config.cluster_columns * config.right_unit[1]),
            "CLUSTER_COLUMNS": config.cluster_columns,
            "EARLY": config.asks_early,
            "PRODUCT": product_of(config) if config.multiplies_itself else None,
            "LAST": config.last_pieces if config.last_layouts else None,
            "LAST_LAYOUT": layout(config.last_layouts) if config.last_layouts else None,
        }
        exchange, exchanged = config.exchange_layout, config.exchanged_layouts
        common |= {
            "EXCHANGE_LAYOUT": to_gluon(exchange) if exchange else None,
            "EXCHANGED_LAYOUT": layout(exchanged) if exchanged else None,
        }
    else:
        shared = config.shared_sums
        common |= {
            "ACCUMULATORS": 1 if shared and not SUMS_MAY_OVERLAP else 2,
            "SHARED_SUMS": shared if SUMS_MAY_OVERLAP else 0,
            "PAIR": config.pair,
            "ASKED": config.asked,
            "FORMAT": config.scaling.element if config.scaling else None,
        }
        tiles = config.scale_layouts or (None, None)
        for name, tile in zip(("LEFT_SCALES", "RIGHT_SCALES"), tiles, strict=True):
            common[name] = to_gluon(tile.linear) if tile else None
    return common | {
        **{name: None for name, asked in _optional_arguments(config).items() if not asked},
        "SCATTER": config.collective == "scatter",
        "BLOCK_M": config.cluster * config.rows,
        "BLOCK_N": config.cluster_columns * config.columns,
        "C_PARTS": config.c_parts,
        "C_BUFFERS": config.c_buffers,
        "C_N_MAJOR": not config.swap,
        "MAX_SPLITS": config.max_splits,
        "ACTIVATION": config.activation,
        "A_SCALES": int(config.a_scales == "each"),
        "B_SCALES": int(config.b_scales == "each"),
    }


@functools.lru_cache(maxsize=1024)
def _constants(config: MatmulConfig) -> Mapping[str, Any]:
    return MappingProxyType(kernel_constants(config))


@functools.lru_cache(maxsize=1024)
def compilation_options(config: MatmulConfig) -> Mapping[str, Any]:
    """Compilation options that are no arguments of the kernel."""
    if not config.consumers:
        return MappingProxyType(LAUNCH_OPTIONS)
    # The kernel starts while the one before it ends, and waits for it itself (griddepcontrol).
    return MappingProxyType({**LAUNCH_OPTIONS, "num_ctas": config.blocks, "launch_pdl": True})


def compile_matmul(config: MatmulConfig, constants: dict[str, Any] | None = None) -> Any:
    """Compile a configuration's kernel for its architecture; needs no GPU.

    Args:
        constants: in place of ``kernel_constants(config)``.

    Returns:
        Triton's compiled kernel; its ``asm`` holds ``ttgir``, ``ptx`` and ``cubin``.
    """
    constants = kernel_constants(config) if constants is None else constants
    a, b = zip(
        (config.a_layouts, config.b_layouts), operand_types(config.element_type), strict=True
    )
    c = (config.c_layouts, config.c_type)
    bias = TRITON_TYPES.get(config.bias_type, config.bias_type)
    types = {"workspace": "*u8", "bias": f"*{bias}", "a_scale": "*fp32",
             "b_scale": "*fp32", "alpha": "fp32", "beta": "fp32",
             "flags": "*i32", "counters": "*i32", "late": "*i32",
             "first_chunk": "i32", "ranks": "i32", "piece_rows": "i32", "group": "i32"}  # fmt: skip
    tiles = dict(zip(("a_desc", "b_desc"), (b, a) if config.swap else (a, b), strict=True))
    tiles |= {"c_desc": c, "c0_desc": c, "own_desc": a if config.collective == "gather" else c}
    if config.edge_layouts is not None:
        tiles["edge_desc"] = (config.edge_layouts, tiles["b_desc"][1])
    if config.last_layouts is not None:
        tiles["last_desc"] = (config.last_layouts, config.c_type)
    if config.scaling is not None and config.scale_layouts is not None:
        scales = ((tile, config.scaling.scale) for tile in config.scale_layouts)
        tiles |= zip(("left_scales", "right_scales"), scales, strict=True)
    for name, (tile, element_type) in tiles.items():
        block = ", ".join(map(str, tile.tma_shape))  # as Triton's JIT writes it
        layout = to_gluon(tile.tma_encoding)
        element = TRITON_TYPES.get(element_type, element_type)
        types[name] = f"tensordesc<{element}[{block}],{layout!r}>"
    kernel = kernel_for(config)
    signature = {
        name: "constexpr" if name in constants else types[name] for name in kernel.arg_names
    }
    with compiled_as(config):
        compiled = compile_kernel(
            kernel,
            signature,
            constants,
            target=config.arch,
            multiples_of_16=[name for name, kind in signature.items() if kind.startswith("*")],
            num_warps=config.num_warps,
            **compilation_options(config),
        )
    return with_boxes(compiled, config)
