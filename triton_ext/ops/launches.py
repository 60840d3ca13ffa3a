"""From a 2-D product to a running kernel; what serves the next call, too, is kept.

The host's time for a small product is the time to launch it, so a launch that was prepared does
only what depends on the addresses: it looks up three tensor maps and calls Triton's C launcher.
Triton's JIT sees the first launch of each configuration alone, and every launch while hooks of
launches or of the compiler (such as `triton_ext.passes`) are installed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import driver

from triton_ext.compat import DirectLaunch, needs_the_jit
from triton_ext.kernels.config import MatmulConfig
from triton_ext.kernels.launch import launch_plan
from triton_ext.layouts.triton.gluon import to_gluon
from triton_ext.ops.device import Gpu
from triton_ext.ops.operands import TmaView

MAX_TENSOR_MAPS = 4096
"""How many tensor maps are kept (about 300 bytes each); the oldest is forgotten first."""
DESCRIPTORS = ("a_desc", "b_desc", "c_desc", "c0_desc", "narrow_desc")

_lock = threading.Lock()
_numbers = itertools.count()
_tensor_maps: dict[tuple[int, int], Any] = {}
_direct_launches: dict[tuple[MatmulConfig, int | None], DirectLaunch] = {}
_workspaces: dict[tuple[int, int], torch.Tensor] = {}


def _direct_launch(config: MatmulConfig, index: int, compiled: Any) -> DirectLaunch | None:
    """The direct launch of a configuration's kernel on a GPU; None if it has none."""
    try:
        return _direct_launches.setdefault((config, index), DirectLaunch(compiled))
    except LookupError:
        return None


def _workspace(size: int, index: int, stream: int) -> torch.Tensor:
    """Zeroed memory that the launches of one stream share, one after the other.

    A graph that is being captured gets its own: it may be replayed on any stream.
    """
    device = torch.device("cuda", index)
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(size, dtype=torch.uint8, device=device)
    found = _workspaces.get((index, stream))
    if found is None or found.numel() < size:
        found = _workspaces[index, stream] = torch.zeros(size, dtype=torch.uint8, device=device)
    return found


class PreparedLaunch:
    """C = A @ B for given types, shapes and strides on one GPU; only the addresses are open.

    Attributes:
        extras: what else the launch takes, of "bias", "a_scale", "b_scale", "alpha", "c0_desc"
            (the residual) and "beta", in order.
    """

    __slots__ = (
        "_arguments",
        "_config",
        "_direct",
        "_extra_places",
        "_gpu",
        "_grid",
        "_numbers",
        "_places",
        "_plan",
        "_prefetched",
        "_residual",
        "_side",
        "_views",
        "_workspace_place",
        "extras",
    )

    def __init__(self, gpu: Gpu, config: MatmulConfig, views: tuple[TmaView, ...], k: int) -> None:
        """Of the views, those of A, B, C, and the residual if there is one; the last two are row
        by row.
        """
        *batch, m, n = views[2].shape
        right = 0 if config.swap else 1
        residual = views[3] if len(views) > 3 else None
        self._gpu, self._config = gpu, config
        self._views = (*views[:3], residual, views[right])
        self._plan = launch_plan(config, m, n, k, gpu.properties, *batch)
        self._grid = self._plan.grid
        self._direct = _direct_launches.get((config, gpu.index))
        # What the C launcher takes: of a descriptor its map, its shape and its strides.
        self._arguments: list[Any] = []
        starts = {}
        for name in self._plan.arguments:
            starts[name] = len(self._arguments)
            self._arguments.append(None)
            if name in DESCRIPTORS:
                view = self._views[DESCRIPTORS.index(name)]
                assert view is not None  # the configuration has no residual, or there is one
                self._arguments += [*view.shape, *view.strides]
        self._places = tuple(starts.pop(name) for name in DESCRIPTORS[:3])
        self._workspace_place = starts.pop("workspace", None)
        # Of which operand the side and the prefetch are, where, and the number of the side's map.
        self._side: tuple[int, int, int] | None = None
        if "narrow_desc" in starts:
            self._side = right, starts.pop("narrow_desc"), next(_numbers)
        self._prefetched: tuple[int, int] | None = None
        if "prefetched" in starts:
            self._prefetched = "ab".index(str(config.prefetch)), starts.pop("prefetched")
        self.extras = tuple(starts)
        self._extra_places = tuple(starts.values())
        # A number for each geometry of a map, which is fast to look up.
        self._numbers = tuple(next(_numbers) for _ in self._places)
        # Which of the extras is the residual, and its map's number.
        self._residual: tuple[int, int] | None = None
        if "c0_desc" in starts:
            self._residual = self.extras.index("c0_desc"), next(_numbers)

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, extras: Sequence[Any] = ()
    ) -> None:
        """Launch on the current stream; the GPU must be the current one.

        Args:
            extras: tensors at multiples of 16 bytes, and alpha as a number.
        """
        direct = self._direct
        if direct is None or needs_the_jit():
            self._launch_by_triton(a, b, c, extras)
            return
        index = self._gpu.index
        assert index is not None  # the emulated GPU has no direct launch
        stream = direct.current_stream(index)
        arguments = self._arguments.copy()
        place_a, place_b, place_c = self._places
        number_a, number_b, number_c = self._numbers
        key = (number_a, a.data_ptr())
        arguments[place_a] = _tensor_maps.get(key) or self._tensor_map(0, key)
        key = (number_b, b.data_ptr())
        arguments[place_b] = _tensor_maps.get(key) or self._tensor_map(1, key)
        key = (number_c, c.data_ptr())
        arguments[place_c] = _tensor_maps.get(key) or self._tensor_map(2, key)
        if self._side is not None:
            which, place, number = self._side
            key = (number, (a, b)[which].data_ptr())
            arguments[place] = _tensor_maps.get(key) or self._tensor_map(4, key)
        if self._prefetched is not None:
            which, place = self._prefetched
            arguments[place] = (a, b)[which].data_ptr()
        if self._workspace_place is not None:
            memory = _workspace(self._plan.workspace_bytes, index, stream)
            arguments[self._workspace_place] = memory.data_ptr()
        if extras:
            for place, extra in zip(self._extra_places, extras, strict=True):
                arguments[place] = extra if isinstance(extra, float) else extra.data_ptr()
            if self._residual is not None:
                which, number = self._residual
                key = (number, extras[which].data_ptr())
                residual = _tensor_maps.get(key) or self._tensor_map(3, key)
                arguments[self._extra_places[which]] = residual
        direct.start(*self._grid, stream, *direct.fixed, arguments)

    def _tensor_map(self, operand: int, key: tuple[int, int]) -> Any:
        """Make a map, and keep it under its key."""
        assert self._direct is not None
        view = self._views[operand]
        assert view is not None
        names = [name for name in self._plan.arguments if name in DESCRIPTORS]
        position = names.index(DESCRIPTORS[operand])
        made = self._direct.tensor_map(position, key[1], view.shape, view.strides)
        with _lock:
            while len(_tensor_maps) >= MAX_TENSOR_MAPS:
                del _tensor_maps[next(iter(_tensor_maps))]
            _tensor_maps[key] = made
        return made

    def _launch_by_triton(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, extras: Sequence[Any]
    ) -> None:
        """Launch through the JIT, and prepare for doing without it."""
        plan = self._plan
        others = dict(zip(self.extras, extras, strict=True))
        tiles = (plan.a_tile, plan.b_tile, plan.c_tile, plan.c_tile, plan.narrow_tile)
        matrices = (a, b, c, others.get("c0_desc"), a if self._config.swap else b)
        descriptors: dict[str, Any] = {
            name: TensorDescriptor(
                matrix,
                list(view.shape),
                list(view.strides),
                list(tile.tma_shape),
                to_gluon(tile.tma_encoding),
            )
            for name, matrix, view, tile in zip(
                DESCRIPTORS, matrices, self._views, tiles, strict=True
            )
            if view is not None and tile is not None
        }
        index = self._gpu.index
        for name in DESCRIPTORS[3:]:
            if name in descriptors:
                others[name] = descriptors.pop(name)
        if self._prefetched is not None:
            others["prefetched"] = (a, b)[self._prefetched[0]]
        if self._workspace_place is not None:
            if index is None:
                memory = torch.zeros(plan.workspace_bytes, dtype=torch.uint8)
            else:
                stream = driver.active.get_current_stream(index)
                memory = _workspace(plan.workspace_bytes, index, stream)
            others["workspace"] = memory
        # A kernel that swaps A and B has their descriptors swapped, too: they go by place.
        compiled = plan.kernel[plan.grid](
            *(descriptors[name] for name in plan.arguments if name in descriptors),
            **others,
            **plan.constants,
            **plan.options,
        )
        if index is not None and self._direct is None and not needs_the_jit():
            self._direct = _direct_launch(self._config, index, compiled)
