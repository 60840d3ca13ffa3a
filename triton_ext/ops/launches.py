"""From a 2-D product to a running kernel; what serves the next call, too, is kept.

The host's time for a small product is the time to launch it, so a launch that was prepared does
only what depends on the addresses: it looks up the tensor maps and calls Triton's C launcher.
Triton's JIT sees the first launch of each configuration alone, and every launch while hooks of
launches or of the compiler (such as `triton_ext.passes`) are installed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime import driver

from triton_ext.compat import DirectLaunch, needs_the_jit
from triton_ext.kernels import compiled_cache
from triton_ext.kernels.launch import launch_plan
from triton_ext.kernels.spec import KernelSpec
from triton_ext.layouts.triton.gluon import to_gluon
from triton_ext.ops.device import Gpu
from triton_ext.ops.epilogue import NOTHING, Epilogue
from triton_ext.ops.operands import TmaView

MAX_TENSOR_MAPS = 4096
"""How many tensor maps are kept (about 300 bytes each); the oldest is forgotten first."""
DESCRIPTORS = {
    "a_desc": 0, "b_desc": 1, "c_desc": 2, "last_desc": 2, "c0_desc": 3, "own_desc": 6,
}  # fmt: skip
"""The matrix of each descriptor: A, B, C or the residual, then the scales of the blocks of A and B,
and a rank's own chunk. Besides come those that depend on which operand is the left one:
``edge_desc``, another one of the right operand, and the scales."""
OTHER_NAMES = {
    "scale_a": "a_scale", "scale_b": "b_scale", "blocks_a": "a_blocks", "blocks_b": "b_blocks"
}  # fmt: skip
FIELDS = {OTHER_NAMES.get(name, name): i for i, name in enumerate(Epilogue._fields)}
"""Which field of the epilogue an argument of the kernel is."""
BIAS = FIELDS["bias"]
RESIDUAL, BLOCKS_A, BLOCKS_B = (FIELDS[name] for name in ("residual", "a_blocks", "b_blocks"))


class Link(NamedTuple):
    """What connects a launch with those of other ranks: `triton_ext.kernels.device.peers.Peers`.

    Attributes:
        own: this rank's chunk of A (gather) or C (scatter).
        flags: int32, those of this rank.
        late: int32, one element that the GPU and the host see.
        first_chunk, ranks: as there.
        counters: of a scatter, those of what is stored here.
    """

    own: torch.Tensor
    flags: torch.Tensor
    late: torch.Tensor
    first_chunk: int
    ranks: int
    counters: torch.Tensor | None = None


ADDRESSES = {"a": 0, "c": 2}
"""The matrix whose address an argument is, besides its descriptor."""
UNKNOWN_TO_TRITON = frozenset((torch.float4_e2m1fn_x2, torch.float8_e8m0fnu))
"""Types that the JIT is shown as bytes."""

_lock = threading.Lock()
_numbers = itertools.count()
_tensor_maps: dict[tuple[int, int], Any] = {}
_direct_launches: dict[tuple[KernelSpec, int | None], DirectLaunch] = {}
_workspaces: dict[tuple[int, int], torch.Tensor] = {}


def _known_to_triton(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor, or its bytes."""
    return tensor.view(torch.uint8) if tensor.dtype in UNKNOWN_TO_TRITON else tensor


def _direct_launch(config: KernelSpec, index: int, compiled: Any) -> DirectLaunch | None:
    """The direct launch of a configuration's kernel on a GPU; None if it has none."""
    try:
        return _direct_launches.setdefault((config, index), DirectLaunch(compiled))
    except LookupError:
        return None


def _workspace(size: int, index: int, stream: int) -> torch.Tensor:
    """Zeroed memory that the launches of one stream share, one after the other.

    A graph that is being captured gets its own for each launch: it may be replayed on any stream,
    and Inductor's CUDA graph trees refuse what lives in a graph's pool after its capture
    (torch/_inductor/cudagraph_trees.py, ``check_memory_pool``).
    """
    is_captured = torch.cuda.is_current_stream_capturing()
    found = None if is_captured else _workspaces.get((index, stream))
    if found is None or found.numel() < size:
        found = torch.zeros(size, dtype=torch.uint8, device=torch.device("cuda", index))
        if not is_captured:
            _workspaces[index, stream] = found
    return found


def _matrices(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, epilogue: Epilogue, link: Link | None
) -> tuple[torch.Tensor | None, ...]:
    """The matrices that `DESCRIPTORS` counts."""
    own = None if link is None else link.own
    return a, b, c, epilogue.residual, epilogue.blocks_a, epilogue.blocks_b, own


class PreparedLaunch:
    """C = A @ B for given types, shapes and strides on one GPU; only the addresses are open.

    Attributes:
        gpu: where it runs.
        config: the configuration.
        plan: its launch plan.
        views: those of `DESCRIPTORS`; a last one that there is not may be missing.
        reads_as: the architecture whose operands `operands.readable` means: block-scaled ones are
            K-major, as on sm_90.
        direct: the launch without Triton's JIT; None until the kernel was found where another
            process has kept it, or the JIT has compiled it.
    """

    __slots__ = (
        "_addresses",
        "_always",
        "_arguments",
        "_extras",
        "_has_more",
        "_links",
        "_maps",
        "_numbers",
        "_searched",
        "_takes_addresses",
        "_workspace_slot",
        "config",
        "direct",
        "gpu",
        "plan",
        "reads_as",
        "views",
    )

    def __init__(
        self, gpu: Gpu, config: KernelSpec, views: tuple[TmaView | None, ...], k: int,
        steps: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Prepare it.

        Args:
            views: as the attribute; C and the residual are row by row.
            k: the extent of K.
            steps: of the fp32 scales of the blocks of A and B, see `ops.scales`.
        """
        assert views[2] is not None
        *batch, m, n = views[2].shape
        if config.product.collective:
            assert views[0] is not None
            batch = list(views[0].shape[:1])  # of a scatter's C, one chunk is elsewhere
        if config.product.groups is not None:
            counts = [1 if view is None or len(view.shape) < 3 else view.shape[0] for view in views]
            batch = [max(counts[0], counts[1] // config.product.parts_of_b, counts[2])]
        self.gpu, self.config, self.views = gpu, config, views
        self.reads_as = gpu.arch if config.product.scaling is None else 90
        self.plan = launch_plan(config, m, n, k, gpu.properties, *batch)
        self.direct: DirectLaunch | None = _direct_launches.get((config, gpu.index))
        left, right = (1, 0) if config.tile.swap_ab else (0, 1)
        self._numbers: dict[str, int] = {
            "group": self.plan.group, "piece_rows": self.plan.piece_rows
        }  # fmt: skip
        if steps is not None:
            self._numbers |= {"left_step": steps[left], "right_step": steps[right]}
        matrices = {
            **DESCRIPTORS, "edge_desc": right, "left_scales": 4 + left, "right_scales": 4 + right
        }  # fmt: skip
        # What the C launcher takes; a descriptor is its map, its shape and its strides.
        self._arguments: list[Any] = []
        # The slot of each map among these, its matrix, a number for its geometry, and its name.
        self._maps: list[tuple[int, int, int, str]] = []
        self._extras: list[tuple[int, int]] = []
        self._links: list[tuple[int, str]] = []
        self._searched = False
        self._workspace_slot: int | None = None
        self._addresses: list[tuple[int, int]] = []
        for name in self.plan.arguments:
            slot = len(self._arguments)
            self._arguments.append(None)
            if name in matrices:
                self._maps.append((slot, matrices[name], next(_numbers), name))
                view = views[matrices[name]]
                assert view is not None
                self._arguments += [*view.shape, *view.strides]
            elif name == "workspace":
                self._workspace_slot = slot
            elif name in ADDRESSES:
                self._addresses.append((slot, ADDRESSES[name]))
            elif name in self._numbers:
                self._arguments[slot] = self._numbers[name]
            elif name in Link._fields:
                self._links.append((slot, name))
            else:
                self._extras.append((slot, FIELDS[name]))
        a, b, c = sorted(self._maps[:3], key=lambda each: each[1])
        self._always = (a[0], a[2], b[0], b[2], c[0], c[2])
        self._has_more = bool(
            self._maps[3:] or self._links or self._addresses or self._workspace_slot is not None
        )
        fields = {field for _, field in self._extras} - {FIELDS["beta"]}
        self._takes_addresses = (
            not self._links
            and not self._addresses
            and len(fields) + len(self._maps[3:]) <= 1
            and fields <= {BIAS}
            and all(matrix == DESCRIPTORS["c0_desc"] for _, matrix, *_ in self._maps[3:])
        )

    def __call__(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, epilogue: Epilogue = NOTHING,
        link: Link | None = None,
    ) -> None:  # fmt: skip
        """Launch on the current stream; the GPU must be the current one.

        Args:
            a, b, c: what lies at the addresses; shapes and strides are not looked at.
            epilogue: what the configuration asks of it is used; tensors at multiples of 16 bytes.
            link: with the launches of other ranks, if the configuration is of several.
        """
        direct = self.direct or self._found()
        if direct is None or needs_the_jit():
            self._launch_by_triton(a, b, c, epilogue, link)
            return
        index = self.gpu.index
        assert index is not None  # the emulated GPU has no direct launch
        stream = direct.current_stream(index)
        arguments = self._arguments_at(a.data_ptr(), b.data_ptr(), c.data_ptr())
        for slot, field in self._extras:
            extra: Any = epilogue[field]
            arguments[slot] = extra if isinstance(extra, float) else extra.data_ptr()
        if self._has_more:
            matrices = _matrices(a, b, c, epilogue, link)
            addresses = [0 if each is None else each.data_ptr() for each in matrices]
            self._fill_more(arguments, addresses, link, stream)
        direct(self.plan.grid, stream, arguments)

    def at(self, a: int, b: int, c: int, addend: int = 0) -> bool:
        """The launch on the current stream of the current GPU by addresses alone, multiples of 16.

        Args:
            addend: used if the configuration has a bias, or a residual, whose beta is 1.

        Returns:
            whether it was launched; not if it needs more than that.
        """
        direct = self.direct
        if not self._takes_addresses or direct is None or needs_the_jit():
            return False
        stream = direct.current_stream(self.gpu.index)
        arguments = self._arguments_at(a, b, c)
        for slot, field in self._extras:
            arguments[slot] = addend if field == BIAS else 1.0
        if self._has_more:
            for slot, matrix, number, name in self._maps[3:]:
                key = (number, addend)
                arguments[slot] = _tensor_maps.get(key) or self._tensor_map(name, matrix, key)
            self._fill_workspace(arguments, stream)
        direct(self.plan.grid, stream, arguments)
        return True

    def with_values(self, a: int, b: int, c: int, values: Sequence[Any]) -> bool:
        """`at` with the values of any `Epilogue`, each tensor's address in its place."""
        direct = self.direct
        if direct is None or needs_the_jit():
            return False
        stream = direct.current_stream(self.gpu.index)
        arguments = self._arguments_at(a, b, c)
        for slot, field in self._extras:
            arguments[slot] = values[field]
        if self._has_more:
            addresses = a, b, c, values[RESIDUAL], values[BLOCKS_A], values[BLOCKS_B]
            self._fill_more(arguments, addresses, None, stream)
        direct(self.plan.grid, stream, arguments)
        return True

    def _arguments_at(self, a: int, b: int, c: int) -> list[Any]:
        """What the C launcher takes, with the maps of the three that every launch has: written out,
        as a loop over them takes 0.3 us longer.
        """
        arguments = self._arguments.copy()
        slot_a, number_a, slot_b, number_b, slot_c, number_c = self._always
        key = (number_a, a)
        arguments[slot_a] = _tensor_maps.get(key) or self._tensor_map("a_desc", 0, key)
        key = (number_b, b)
        arguments[slot_b] = _tensor_maps.get(key) or self._tensor_map("b_desc", 1, key)
        key = (number_c, c)
        arguments[slot_c] = _tensor_maps.get(key) or self._tensor_map("c_desc", 2, key)
        return arguments

    def _fill_more(
        self, arguments: list[Any], addresses: Sequence[int], link: Link | None, stream: int
    ) -> None:
        """Fill in what most launches do not have. `addresses`: of the matrices that `DESCRIPTORS`
        counts, and anything for those that there are not."""
        for slot, matrix, number, name in self._maps[3:]:
            key = (number, addresses[matrix])
            arguments[slot] = _tensor_maps.get(key) or self._tensor_map(name, matrix, key)
        self._fill_workspace(arguments, stream)
        for slot, matrix in self._addresses:
            arguments[slot] = addresses[matrix]
        for slot, name in self._links:
            extra: Any = getattr(link, name)
            arguments[slot] = extra if isinstance(extra, int) else extra.data_ptr()

    def _fill_workspace(self, arguments: list[Any], stream: int) -> None:
        if self._workspace_slot is not None:
            assert self.gpu.index is not None
            memory = _workspace(self.plan.workspace_bytes, self.gpu.index, stream)
            arguments[self._workspace_slot] = memory.data_ptr()

    def _found(self) -> DirectLaunch | None:
        """The direct launch of a kernel that another process has cached; looked for once."""
        index = self.gpu.index
        if self._searched or index is None or needs_the_jit():
            return None
        self._searched = True
        compiled = compiled_cache.find(self.config)
        if compiled is not None:
            self.direct = _direct_launch(self.config, index, compiled)
        return self.direct

    def _tensor_map(self, name: str, matrix: int, key: tuple[int, int]) -> Any:
        """Make a map, and keep it under its key."""
        assert self.direct is not None
        position = [each for *_, each in self._maps].index(name)
        view = self.views[matrix]
        assert view is not None
        made = self.direct.tensor_map(position, key[1], view.shape, view.strides)
        with _lock:
            while len(_tensor_maps) >= MAX_TENSOR_MAPS:
                del _tensor_maps[next(iter(_tensor_maps))]
            _tensor_maps[key] = made
        return made

    def _launch_by_triton(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, epilogue: Epilogue,
        link: Link | None,
    ) -> None:  # fmt: skip
        """Launch through the JIT, and prepare for doing without it."""
        plan = self.plan
        others: dict[str, Any] = {
            name: number for name, number in self._numbers.items() if name in plan.arguments
        }
        for _, matrix, _, name in self._maps:
            view, tile = self.views[matrix], plan.tiles[name]
            tensor = _matrices(a, b, c, epilogue, link)[matrix]
            assert tensor is not None  # the plan asks for this descriptor
            assert view is not None
            others[name] = TensorDescriptor(
                _known_to_triton(tensor),
                list(view.shape),
                list(view.strides),
                list(tile.tma_shape),
                to_gluon(tile.tma_encoding),
            )
        others |= {
            name: epilogue[field] for name, field in FIELDS.items() if name in plan.arguments
        }
        others |= {name: getattr(link, name) for _, name in self._links}
        memory_of = (("a", _known_to_triton(a)), ("c", c))
        others |= {name: value for name, value in memory_of if name in plan.arguments}
        index = self.gpu.index
        if self._workspace_slot is not None:
            if index is None:
                memory = torch.zeros(plan.workspace_bytes, dtype=torch.uint8)
            else:
                stream = driver.active.get_current_stream(index)
                memory = _workspace(plan.workspace_bytes, index, stream)
            others["workspace"] = memory
        compiled = plan.launch(others)
        if index is not None and self.direct is None and not needs_the_jit():
            self.direct = _direct_launch(self.config, index, compiled)
            compiled_cache.store(self.config, compiled)
