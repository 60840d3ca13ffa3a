"""Compiling and launching the matmul kernels of a `KernelSpec`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_ext.compat import LAUNCH_OPTIONS, TRITON_VERSION, compile_kernel, relaxed_barriers
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import resident_clusters
from triton_ext.kernels.device.matmul import matmul_sm90, matmul_sm100
from triton_ext.kernels.device.split_k import COUNTER_BYTES
from triton_ext.kernels.device.warp_specialized import matmul_warp_specialized
from triton_ext.kernels.device.warp_specialized_sm100 import matmul_warp_specialized_sm100
from triton_ext.kernels.element_types import MIXED, operand_types
from triton_ext.kernels.last_tile import last_tile
from triton_ext.kernels.plan import plan_of, value_names
from triton_ext.kernels.product import bias_type
from triton_ext.kernels.rasterization import rows_together
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import PersistentTile, SimpleTile, Sm90Tile, Sm100Tile
from triton_ext.kernels.tiles import TileLayouts
from triton_ext.layouts.triton.gluon import to_gluon

TRITON_TYPES = {
    "e4m3": "fp8e4nv", "e5m2": "fp8e5", "tf32": "fp32", "int8": "i8", "int32": "i32",
    "mxfp8": "fp8e4nv", "mxfp8_e5m2": "fp8e5", "mxfp4": "u8", "nvfp4": "u8", "ue8m0": "u8",
}  # fmt: skip
"""Triton's names of element types that differ from this project's."""
GROUPED = {
    "edge_desc": "box_descs",
    "last_desc": "box_descs",
    "left_scales": "scale_descs",
    "right_scales": "scale_descs",
}
"""The parameters of kernels that are tuples of descriptors, by the arguments that they hold.
(Releases before 3.8 take no descriptors in tuples; these are for what needs newer ones anyway.)"""
VALUES = "values"
"""The parameter that is the tuple of an epilogue's, a workspace's and a group's pointers and
numbers. (Integers are parameters by themselves: Triton compiles those in tuples once for each.)"""


class DeviceProperties(Protocol):
    """What a plan asks of a GPU; ``torch.cuda.get_device_properties(...)`` has it."""

    @property
    def multi_processor_count(self) -> int:
        """How many SMs the GPU has."""


@dataclass(frozen=True)
class LaunchPlan:
    """How one problem is launched with one kernel.

    Attributes:
        kernel: the Gluon kernel.
        grid: in clusters, as Triton counts (a cluster of ``num_ctas`` thread blocks is one).
        arguments: names of the run-time arguments, in the compiled kernel's order. ``a_desc``,
            ``b_desc``, ``c_desc``: TMA descriptors of A, B and C with the boxes of `tiles`, the
            contiguous dimension last; if A and B are swapped, so are these.
            ``edge_desc``: of the right operand once more, with the box of the edge of its tile.
            ``last_desc``: of C, with the box of a block's last tile.
            ``c0_desc``: as ``c_desc``, for the residual.
            ``own_desc``, ``flags``, ``counters``, ``late``, ``first_chunk``, ``ranks``: see
            `triton_ext.kernels.device.peers.Peers`.
            ``left_scales``, ``right_scales``: the block scales.
            ``group``, ``piece_rows``: the attributes.
            ``left_step``, ``right_step``: of the operands' fp32 scales, see `ScaleMatrix` in
            `triton_ext.kernels.device.fp32_scales`.
            ``workspace``: a pointer to `workspace_bytes` bytes, aligned to 16.
            ``bias``, ``a_scale``, ``b_scale``: pointers to contiguous vectors of N, M and N (or 1)
            elements, bias of `bias_type`, scales of fp32. ``a_blocks``, ``b_blocks``: pointers to
            the fp32 scales of blocks. ``offs``: a pointer to the ends of groups, int32.
            ``a``, ``c``: A's and C's address, besides their descriptors. ``rows``, ``out_rows``,
            ``factors``: pointers to indices of rows of A and C, int32, and to fp32 numbers, one for
            each row of C. ``alpha``, ``beta``: floats.
        constants: compile-time arguments.
        options: compilation options.
        tiles: of each descriptor, whose box is its tile's ``tma_shape`` in its ``tma_encoding``.
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
    tiles: Mapping[str, TileLayouts]
    group: int
    workspace_bytes: int = 0
    piece_rows: int = 0

    def launch(self, arguments: Mapping[str, Any]) -> Any:
        """Launch by Triton's JIT, which compiles what it has not compiled before.

        Args:
            arguments: the value of each of `arguments`.

        Returns:
            Triton's compiled kernel.
        """
        given = self.parameters(arguments)
        return self.kernel[self.grid](**given, **self.options)

    def parameters(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of the kernel's function by name, constants included, given the value of
        each of `arguments`.
        """
        given: dict[str, Any] = dict(self.constants)
        names = self.kernel.arg_names
        for position, name in enumerate(self.arguments):
            parameter = names[position] if position < 3 else GROUPED.get(name, name)
            if parameter in names:
                grouped = parameter in GROUPED.values()
                given[parameter] = (
                    (*given.get(parameter, ()), arguments[name]) if grouped else arguments[name]
                )
            else:
                given[VALUES] = (*given.get(VALUES, ()), arguments[name])
        return given


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
    spec: KernelSpec,
    m: int,
    n: int,
    k: int,
    device_properties: DeviceProperties,
    batch: int = 1,
) -> LaunchPlan:
    """How C (M, N) = A (M, K) @ B (K, N), or a batch of such, is launched on a GPU with a kernel.

    Plans of one kernel differ in grid, workspace and the order of tiles, never in what is compiled.

    Raises:
        LayoutError: this Triton lacks what the kernel takes, or it has too few `loaded_rows`.
    """
    grid, group, piece_rows, workspace = _shape_of(spec, m, n, device_properties, batch)
    return LaunchPlan(
        kernel=_InBoxes(kernel_for(spec), spec) if box_sizes(spec) else kernel_for(spec),
        grid=(grid, 1, 1),
        arguments=argument_names(spec),
        constants=_constants(spec),
        options=compilation_options(spec),
        tiles=tiles_of(spec),
        group=group,
        workspace_bytes=workspace,
        piece_rows=piece_rows,
    )


def tiles_of(spec: KernelSpec) -> dict[str, TileLayouts]:
    """The tile that each descriptor of a kernel copies, by the argument's name."""
    layouts = spec.layouts
    left_scales, right_scales = layouts.scales or (None, None)
    tiles = {
        "a_desc": layouts.a, "b_desc": layouts.b, "c_desc": layouts.c, "c0_desc": layouts.c,
        "own_desc": layouts.a if spec.product.collective == "gather" else layouts.c,
        "edge_desc": layouts.edge, "last_desc": layouts.last, "left_scales": left_scales,
        "right_scales": right_scales,
    }  # fmt: skip
    found = ((name, tiles.get(name)) for name in argument_names(spec))
    return {name: tile for name, tile in found if tile is not None}


def _tiles_of(
    spec: KernelSpec, rows: int, columns: int, size: tuple[int, int], batch: int
) -> tuple[int, int, int]:
    """Rows of tiles of a matrix, tiles of a row, and how many matrices there are; those of groups
    if all are as long.

    Args:
        rows, columns: of a matrix of what is computed.
        size: rows and columns of a cluster's tile.
    """
    divided = {"M": spec.tile.swap_ab, "rows": spec.tile.swap_ab, "N": not spec.tile.swap_ab}
    if spec.product.groups in divided:
        if divided[spec.product.groups]:
            columns = -(-columns // batch)
        else:
            rows = -(-rows // batch)
    return -(-rows // size[0]), -(-columns // size[1]), batch


def _shape_of(
    spec: KernelSpec, m: int, n: int, device_properties: DeviceProperties, batch: int
) -> tuple[int, int, int, int]:
    """The grid, the rows of tiles that run together and that travel together, and the bytes of the
    workspace.
    """
    tile = spec.tile
    multiprocessors = device_properties.multi_processor_count
    if isinstance(tile, SimpleTile):
        down, across = -(-m // tile.block_m), -(-n // tile.block_n)
        tiles = batch * down * across
        if tile.arch == 100:
            return tiles, ROWS_TOGETHER, 0, 0
        size = tile.block_m, tile.block_n
        group = rows_together(1, 1, multiprocessors, tiles, down, across, *size)
        return tiles, int(group), 0, 0
    rows, columns = (n, m) if tile.swap_ab else (m, n)
    if tile.loaded_rows and tile.loaded_rows < rows:
        rule = f"must be 0, or at least {'N' if tile.swap_ab else 'M'}, {rows}"
        raise LayoutError("loaded_rows", tile.loaded_rows, rule)
    columns_of_c = tile.columns // (2 if spec.product.gated else 1)
    size = tile.rows * tile.cluster_m, columns_of_c * tile.cluster_n
    down, across, batch = _tiles_of(spec, rows, columns, size, batch)
    tiles = batch * down * across
    resident = resident_clusters(multiprocessors, tile.cluster_m * tile.cluster_n)
    grid, workspace = tiles, 0
    # Blocks that divide K exchange sums once.
    if not (tile.cluster_launch_control or tile.cluster_k > 1):
        grid = min(tiles, resident)
        if tile.split_k > 1:
            grid = resident
            workspace = COUNTER_BYTES.value + 2 * grid * size[0] * size[1] * 4
    group, piece_rows = ROWS_TOGETHER, 0
    if tile.arch == 90 and (tile.cluster_m > 1 or not spec.product.collective):
        cluster = tile.cluster_m, tile.cluster_size
        group = int(rows_together(*cluster, resident, tiles, down, across, *size))
    if spec.product.collective:
        together = -(-down // number_of_pieces(down * across / resident))
        group = min(group, together)
        piece_rows = round(together / group) * group  # rows that run together end together
    return grid, group, piece_rows, workspace


def argument_names(spec: KernelSpec) -> tuple[str, ...]:
    """The `LaunchPlan.arguments` of a kernel."""
    tile, collective = spec.tile, spec.product.collective
    operands = ("b_desc", "a_desc") if tile.swap_ab else ("a_desc", "b_desc")
    if isinstance(tile, SimpleTile):
        return (*operands, "c_desc", "group")
    named = {
        "edge_desc": spec.layouts.edge is not None,
        "last_desc": tile.last_through_pipeline,
        "left_scales": spec.product.scaling is not None,
        "right_scales": spec.product.scaling is not None,
        "c0_desc": spec.epilogue.residual or collective == "scatter",
        "own_desc": collective is not None,
        "group": True,
        "left_step": spec.product.has_fp32_blocks,
        "right_step": spec.product.has_fp32_blocks,
        "first_chunk": collective is not None,
        "ranks": collective is not None,
        "piece_rows": collective is not None,
    }
    optional = (name for name, present in named.items() if present)
    return (*operands, "c_desc", *optional, *value_names(spec))


def box_sizes(spec: KernelSpec) -> dict[int, tuple[int, int]]:
    """Rows and columns of the boxes that are others than Triton's type of their descriptor says: a
    power of two of rows, as wide as the swizzle. By the descriptor's position.
    """
    sizes = {each.position: (each.rows, each.copied) for each in spec.layouts.boxes if each}
    tile = spec.tile
    if isinstance(tile, Sm90Tile) and tile.last_through_pipeline:
        position = 4 if spec.layouts.edge is not None else 3
        columns = last_tile(spec.product, tile).columns
        sizes[position] = tile.rows // tile.sharing_consumers, columns
    return sizes


def with_boxes(compiled: Any, spec: KernelSpec) -> Any:
    """Triton's compiled kernel, which will be launched with the boxes that a kernel has."""
    for position, size in box_sizes(spec).items():
        compiled.metadata.tensordesc_meta[position]["block_size"][-2:] = size
    return compiled


def compiled_as(spec: KernelSpec) -> AbstractContextManager[None]:
    """In which a kernel is compiled, and found by Triton's JIT.

    Before the last barrier of a cluster, each block has waited for all that comes to its shared
    memory: arrivals, where blocks share tiles (`Pipeline.end`), or sums (`Exchange.sum`).
    """
    in_clusters = isinstance(spec.tile, Sm90Tile) and spec.tile.cluster_size > 1
    return relaxed_barriers() if in_clusters else nullcontext()


@dataclass(frozen=True)
class _InBoxes:
    """A kernel that Triton's JIT launches `with_boxes`."""

    kernel: Any
    spec: KernelSpec

    @property
    def arg_names(self) -> Sequence[str]:
        """The names of the kernel's parameters."""
        names: Sequence[str] = self.kernel.arg_names
        return names

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def launch(*arguments: Any, **others: Any) -> Any:
            with compiled_as(self.spec):
                with_boxes(self.kernel.warmup(*arguments, grid=grid, **others), self.spec)
                return self.kernel[grid](*arguments, **others)

        return launch


def descriptor(matrix: Any, tile: TileLayouts) -> TensorDescriptor:
    """The TMA descriptor of a tensor (a matrix, or a batch) for the box of a tile.

    Its last dimension is contiguous.
    """
    layout = to_gluon(tile.tma_encoding)
    return TensorDescriptor.from_tensor(matrix, list(tile.tma_shape), layout)


def launch_arguments(
    spec: KernelSpec, plan: LaunchPlan, a: Any, b: Any, c: Any, **others: Any
) -> dict[str, Any]:
    """The values of ``plan.arguments``, in their order.

    Args:
        a, b, c: tensors (M, K), (K, N) and (M, N), or batches of such, the operands contiguous
            along their major dimension.
        others: the arguments that are no descriptor of these, of those that the plan has.
    """
    product = spec.product
    a = a if product.a_major == "K" else a.mT
    b = b.mT if product.b_major == "K" else b
    stored = {"a_desc": a, "b_desc": b, "c_desc": c, "last_desc": c,
              "edge_desc": a if spec.tile.swap_ab else b}  # fmt: skip
    others |= {
        name: descriptor(stored[name], plan.tiles[name]) for name in stored & plan.tiles.keys()
    }
    others |= {"group": plan.group, "piece_rows": plan.piece_rows}
    return {name: others[name] for name in plan.arguments}


def compiled_arguments(plan: LaunchPlan, arguments: Mapping[str, Any]) -> list[Any]:
    """All arguments of the plan's compiled kernel, constants included, given `launch_arguments`."""
    given = plan.parameters(arguments)
    return [given[name] for name in plan.kernel.arg_names]


def kernel_for(spec: KernelSpec) -> Any:
    """The Gluon kernel of a specification; LayoutError if this Triton lacks what it takes."""
    tile = spec.tile
    if isinstance(tile, SimpleTile):
        return {90: matmul_sm90, 100: matmul_sm100}[tile.arch]
    for name, value, since in _newer(spec, tile):
        if since > TRITON_VERSION:
            raise LayoutError(name, value, f"needs Triton {since[0]}.{since[1]} on sm_{tile.arch}")
    return {90: matmul_warp_specialized, 100: matmul_warp_specialized_sm100}[tile.arch]


def _newer(spec: KernelSpec, tile: PersistentTile) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    """The fields whose values not all releases of Triton compile, their values, and the first
    release that does.
    """
    product = spec.product
    if product.groups is not None:
        yield "groups", product.groups, (3, 9)
    if product.gated:
        yield "gated", True, (3, 9)
    if product.has_fp32_blocks:
        yield "a_scale_rows", product.a_scale_rows, (3, 9)
    if isinstance(tile, Sm100Tile):
        if tile.cluster_launch_control:
            yield "cluster_launch_control", True, (3, 8)
        if product.element_type == "int8" or product.scaling is not None:
            yield "element_type", product.element_type, (3, 8)
    if tile.split_k > 1 and tile.cluster_size > 1:
        yield "split_k", tile.split_k, (3, 9)
    if isinstance(tile, Sm90Tile):
        for name, plain in SINCE_3_9.items():
            if getattr(tile, name) != plain:  # 3.8 begins without a cluster's barrier
                yield name, getattr(tile, name), (3, 9)
        if product.fp32_accumulation:
            yield "fp32_accumulation", True, (3, 9)
        if product.element_type in MIXED:
            yield "element_type", product.element_type, (3, 9)
        if tile.units > 1:  # columns that are no power of two
            yield "block_m" if tile.swap_ab else "block_n", tile.columns, (3, 9)


SINCE_3_9 = {
    "cluster_k": 1, "cluster_m": 1, "cluster_n": 1, "loaded_rows": 0, "last_through_pipeline": False
}  # fmt: skip
"""The values of `Sm90Tile` that releases before 3.9 compile, of fields that have others."""


def kernel_constants(spec: KernelSpec, *, generated_layouts: bool = True) -> dict[str, Any]:
    """The kernel's compile-time arguments: its plan, and of the optional parameters those that it
    does not have. `generated_layouts`: see `plan_of`."""
    constants: dict[str, Any] = {"PLAN": plan_of(spec, generated_layouts=generated_layouts)}
    if isinstance(spec.tile, SimpleTile):
        return constants
    arguments = argument_names(spec)
    optional = (
        "c0_desc", "own_desc", "first_chunk", "ranks", "piece_rows", "left_step", "right_step"
    )  # fmt: skip
    return constants | {name: None for name in optional if name not in arguments}


@functools.lru_cache(maxsize=1024)
def _constants(spec: KernelSpec) -> Mapping[str, Any]:
    constants = kernel_constants(spec)
    if not isinstance(spec.tile, SimpleTile):
        group = "box_descs" if spec.arch == 90 else "scale_descs"
        constants |= {group: (), VALUES: ()}  # to which a launch adds
    return MappingProxyType(constants)


@functools.lru_cache(maxsize=1024)
def compilation_options(spec: KernelSpec) -> Mapping[str, Any]:
    """Compilation options that are no arguments of the kernel."""
    options = {**LAUNCH_OPTIONS, "num_warps": spec.tile.num_warps}
    if spec.is_specialized:
        # The kernel starts while the one before it ends, and waits for it itself
        # (griddepcontrol).
        options |= {"num_ctas": spec.tile.cluster_size, "launch_pdl": True}
    return MappingProxyType(options)


def compile_matmul(spec: KernelSpec, constants: dict[str, Any] | None = None) -> Any:
    """Compile a kernel for its architecture; needs no GPU.

    Args:
        constants: in place of ``kernel_constants(spec)``.

    Returns:
        Triton's compiled kernel; its ``asm`` holds ``ttgir``, ``ptx`` and ``cubin``.
    """
    constants = kernel_constants(spec) if constants is None else constants
    kernel, types = kernel_for(spec), _argument_types(spec)
    signature: dict[str, Any] = dict.fromkeys(constants, "constexpr")
    if not isinstance(spec.tile, SimpleTile):
        signature |= {VALUES: (), "box_descs" if spec.arch == 90 else "scale_descs": ()}
    for position, name in enumerate(argument_names(spec)):
        parameter = kernel.arg_names[position] if position < 3 else GROUPED.get(name, name)
        if parameter not in kernel.arg_names:
            parameter = VALUES
        grouped = isinstance(signature.get(parameter), tuple)
        signature[parameter] = (*signature[parameter], types[name]) if grouped else types[name]
    with compiled_as(spec):
        compiled = compile_kernel(
            kernel,
            {name: signature[name] for name in kernel.arg_names},
            constants,
            target=spec.arch,
            multiples_of_16=[VALUES],
            **compilation_options(spec),
        )
    return with_boxes(compiled, spec)


def _argument_types(spec: KernelSpec) -> dict[str, str]:
    """The types of a kernel's arguments, in Triton's notation."""
    product = spec.product
    bias = bias_type(product)
    bias = TRITON_TYPES.get(bias, bias)
    types = {"workspace": "*u8", "bias": f"*{bias}", "a_scale": "*fp32",
             "b_scale": "*fp32", "offs": "*i32", "a_blocks": "*fp32", "b_blocks": "*fp32",
             "left_step": "i32", "right_step": "i32", "alpha": "fp32", "beta": "fp32",
             "flags": "*i32", "counters": "*i32", "late": "*i32",
             "rows": "*i32", "out_rows": "*i32", "factors": "*fp32",
             "first_chunk": "i32", "ranks": "i32", "piece_rows": "i32", "group": "i32"}  # fmt: skip
    a_type, b_type = operand_types(product.element_type)
    c_type, right_type = product.c_type, a_type if spec.tile.swap_ab else b_type
    types |= {
        name: f"*{TRITON_TYPES.get(kind, kind)}" for name, kind in (("a", a_type), ("c", c_type))
    }
    elements = {
        "a_desc": a_type, "b_desc": b_type, "edge_desc": right_type,
        "own_desc": a_type if product.collective == "gather" else c_type,
    }  # fmt: skip
    if product.scaling is not None:
        elements |= dict.fromkeys(("left_scales", "right_scales"), product.scaling.scale)
    for name, tile in tiles_of(spec).items():
        block = ", ".join(map(str, tile.tma_shape))  # as Triton's JIT writes it
        layout, kind = to_gluon(tile.tma_encoding), elements.get(name, c_type)
        types[name] = f"tensordesc<{TRITON_TYPES.get(kind, kind)}[{block}],{layout!r}>"
    return types
