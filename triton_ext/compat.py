"""The one file that knows how Triton 3.7, 3.8 and 3.9 differ. Imports Triton.

Gluon kernels call the names defined here in place of those that changed.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

try:
    from triton.experimental.gluon.language.nvidia.blackwell import clc as clc
except ImportError:  # 3.7 has no cluster launch control
    clc = None

from triton_ext.capture import follows
from triton_ext.hardware.architecture import target_number
from triton_ext.layouts.triton.ending import end_quietly

end_quietly()
T = TypeVar("T")
SUPPORTED_TRITON = ((3, 7), (3, 8), (3, 9))
_major, _minor = re.findall(r"\d+", triton.__version__)[:2]
TRITON_VERSION = (int(_major), int(_minor))

if SUPPORTED_TRITON[0] > TRITON_VERSION:
    supported = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED_TRITON)
    raise ImportError(f"triton_ext's kernels need Triton {supported}; found {triton.__version__}")


@gluon.constexpr_function
def row_bases(blocks):
    """How the blocks of a cluster divide the rows of a tile among them."""
    return [[1 << i, 0] for i in range(blocks.bit_length() - 1)]


SUMS_MAY_OVERLAP = TRITON_VERSION >= (3, 9)
"""Whether a slice of tensor memory may begin at any column, and be read in another layout."""

if TRITON_VERSION >= (3, 8):
    async_load, async_store = tma.async_load, tma.async_store
    load_by_threads = async_copy.async_load
    store_to_cluster = hopper.async_store
    cluster_barrier = hopper.cluster.barrier

    @gluon.jit
    def load_accumulator(accumulator):
        """Tensor memory -> registers, in the layout that a warp can load in one instruction."""
        return accumulator.load(accumulator.get_reg_layout())

    @gluon.jit
    def register_layout(memory):
        """The layout in which a warp can load or store tensor memory in one instruction."""
        layout: gl.constexpr = memory.get_reg_layout()
        return layout

else:
    async_load, async_store = tma.async_copy_global_to_shared, tma.async_copy_shared_to_global
    load_by_threads = async_copy.async_copy_global_to_shared

    @gluon.jit
    def store_to_cluster(tile, values, barrier):
        """Write a tile that several blocks of a cluster have, and tell a barrier of each."""
        gl.static_assert(False, "st.async needs Triton 3.8")

    @gluon.jit
    def cluster_barrier():
        """Wait for all threads of all blocks of the cluster."""
        gl.static_assert(False, "a barrier of the cluster needs Triton 3.8")

    @gluon.jit
    def load_accumulator(accumulator):
        """Tensor memory -> registers, in the layout that a warp can load in one instruction."""
        layout: gl.constexpr = blackwell.get_tmem_reg_layout(
            accumulator.dtype, accumulator.shape, accumulator.layout, gl.num_warps(),
            cga_layout=row_bases(gl.num_ctas()),
        )  # fmt: skip
        return accumulator.load(layout)

    @gluon.jit
    def register_layout(memory):
        """The layout in which a warp can load or store tensor memory in one instruction."""
        layout: gl.constexpr = blackwell.get_tmem_reg_layout(
            memory.dtype, memory.shape, memory.layout, gl.num_warps()
        )
        return layout


@gluon.constexpr_function
def sums_layout(rows, columns, blocks, pair):
    """The layout in tensor memory of a tile of sums; the blocks of a cluster divide its rows.

    Args:
        rows, columns: of the whole tile.
        pair: whether every two blocks multiply together.
    """
    divided: dict[str, Any] = {"cta_split_num": (blocks, 1)}
    if TRITON_VERSION >= (3, 8):
        divided = {"cga_layout": row_bases(blocks)}
    return blackwell.TensorMemoryLayout(
        [rows // blocks, columns], col_stride=1, two_ctas=pair, **divided
    )


@gluon.constexpr_function
def scales_layout(blocks, divided):
    """The layout in tensor memory of a tile's scales; the blocks of a cluster divide the rows, or
    each has all. Needs Triton 3.8.
    """
    bases = row_bases(blocks) if divided else [[0, 0] for _ in row_bases(blocks)]
    return blackwell.TensorMemoryScalesLayout(cga_layout=bases)


if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    @dataclass_transform()
    def aggregate(cls: type[T]) -> type[T]:
        """A class whose objects are values of a kernel: its annotations name and type the fields,
        which are given in this order. A field that may be None is of ``... | gl.constexpr``.
        """
        return cls

elif TRITON_VERSION >= (3, 8):
    from triton import aggregate
else:
    from triton.language import core

    def aggregate(cls):
        fields = typing.get_type_hints(cls)

        def initialize(self, *values):
            for name, value in zip(fields, values, strict=True):
                known = isinstance(value, core.base_value)
                setattr(self, name, value if known else gl.constexpr(value))

        initialize.__triton_builtin__ = True
        cls.__init__, cls.__annotations__ = initialize, fields
        return core._aggregate(cls)


if TRITON_VERSION >= (3, 9):

    @gluon.jit
    def tma_view(tile, desc):
        """The bytes of a tile in shared memory as a TMA descriptor's block, in its layout."""
        return tile.reinterpret(desc.dtype, desc.block_type.shape, desc.layout)

    @gluon.jit
    def reinterpret(tile, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
        """The same bytes of shared or tensor memory, as another type, shape and layout."""
        return tile.reinterpret(dtype, shape, layout)

else:

    @gluon.jit
    def tma_view(tile, desc):
        """The bytes of a tile in shared memory as a TMA descriptor's block, in its layout."""
        return tile._reinterpret(desc.dtype, desc.block_type.shape, desc.layout)

    @gluon.jit
    def reinterpret(tile, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
        """The same bytes of shared or tensor memory, as another type, shape and layout."""
        return tile._reinterpret(dtype, shape, layout)


LAUNCH_OPTIONS = {"enable_fp_fusion": True}
"""Compilation options for every kernel. Triton 3.9 warns where fusion is left to its default, which
3.10 will change."""


def gpu_target(arch: int) -> GPUTarget:
    """The compilation target of a compute capability, such as 90 or 100."""
    return GPUTarget("cuda", arch, 32)


def compile_kernel(
    kernel: Any,
    signature: Mapping[str, str | tuple[str, ...]],
    constexprs: Mapping[str, Any],
    *,
    target: Any,
    multiples_of_16: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Compile a Triton or Gluon kernel with no GPU and no driver.

    Args:
        kernel: a function of ``triton.jit`` or ``gluon.jit``.
        signature: the type of each argument in Triton's notation, of a tuple those of its elements;
            ``constexpr`` for constants.
        constexprs: the values of the constants.
        target: 90, "sm_100", ...
        multiples_of_16: arguments that are divisible by 16, or tuples of whose elements all
            pointers are.
        options: of the compilation, such as ``num_warps``.

    Returns:
        Triton's compiled kernel.
    """
    # As Triton's JIT writes them, so that both find the same kernel in its cache.
    attributes: dict[tuple[int, ...], Any] = {}
    for i, name in enumerate(kernel.arg_names):
        kind = signature[name]
        aligned = [["tt.divisibility", 16]] if name in multiples_of_16 else []
        if isinstance(kind, tuple):
            pointers = (j for j, each in enumerate(kind) if each.startswith("*"))
            attributes |= {(i, j): aligned for j in pointers}
        elif not kind.startswith(("tensordesc", "fp")) and not (
            kind != "constexpr" and kernel.params[i].do_not_specialize
        ):
            attributes[i,] = aligned
    if knobs.runtime.add_stages_inspection_hook is not None:
        attributes[(len(kernel.arg_names),)] = []  # the JIT counts a hook among the arguments
    source_type = GluonASTSource if kernel.is_gluon() else ASTSource
    source = source_type(kernel, dict(signature), dict(constexprs), attributes)
    return triton.compile(
        source, target=gpu_target(target_number(target)), options={**LAUNCH_OPTIONS, **options}
    )


@contextlib.contextmanager
def relaxed_barriers() -> Iterator[None]:
    """While it lasts, barriers of the cluster order no memory accesses where this thread compiles.

    Triton ends a kernel in clusters with such a barrier, which takes 0.25 us on an H200 because it
    waits for memory, too. The kernel must not need that order. A hook that somebody else has set
    stays, and the barriers as they are.
    """
    runtime = knobs.runtime
    if runtime.add_stages_inspection_hook is not None:
        yield
        return
    thread = threading.get_ident()

    def hook(*arguments: Any) -> Any:
        if threading.get_ident() != thread:
            return None if arguments else ("", "")
        if not arguments:
            return "relaxed barriers", "relaxed barriers"
        stages = arguments[1]
        made = stages["ptx"]

        def relaxed(source: Any, metadata: Any) -> str:
            ptx: str = made(source, metadata)
            return ptx.replace("cluster.arrive.aligned", "cluster.arrive.relaxed.aligned")

        stages["ptx"] = relaxed
        return None

    runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        if runtime.add_stages_inspection_hook is hook:
            runtime.add_stages_inspection_hook = None


def compile_gluon(
    kernel: Any,
    signature: Mapping[str, str],
    constexprs: Mapping[str, Any],
    *,
    arch: int,
    num_warps: int,
) -> Any:
    """Compile a Gluon kernel with no GPU and no driver.

    Args:
        kernel: a ``gluon.jit`` function.
        signature: the type of each argument in Triton's notation; ``constexpr`` for constants.
        constexprs: the values of the constants.
        arch: 90 or 100.

    Returns:
        Triton's compiled kernel; its ``asm`` holds ``ttgir``, ``ptx`` and ``cubin``.
    """
    return compile_kernel(kernel, signature, constexprs, target=arch, num_warps=num_warps)


def needs_the_jit() -> bool:
    """Whether a launch must go through Triton's JIT: a hook wants to be told of it, or to change
    how kernels are compiled (``triton.knobs.runtime``).
    """
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(
        runtime.add_stages_inspection_hook is not None
        or getattr(enter, "calls", enter)  # an empty chain calls nobody
        or getattr(leave, "calls", leave)
    )


class DirectLaunch:
    """A compiled kernel's launch through Triton's C launcher, with none of its Python before it.

    The arguments are those of the compiled kernel: of a tensor descriptor its map, the sizes and
    the strides; no constants. Hooks are not called: see `needs_the_jit`.

    A kernel that may begin while the one before it ends (programmatic dependent launch) gains
    1.2 us where that is one of ours. After another it begins 0.5 us later than by an ordinary
    launch (graphs on an H200): it gets one in a capture, where what comes before it is known.

    Attributes:
        current_stream: from the GPU's number to the handle of the stream that torch launches on.
        tensor_maps: what the compiler wants each descriptor's map to be, in their order.
    """

    _functions: ClassVar[set[int]] = set()

    __slots__ = (
        "_fill",
        "_host_types",
        "_late",
        "_middle",
        "_start",
        "compiled",
        "current_stream",
        "tensor_maps",
    )

    def __init__(self, compiled: Any) -> None:
        """Raises LookupError if this kernel needs more for a launch than its arguments."""
        launcher, active = compiled.run, triton.runtime.driver.active
        utilities, driver = active.utils, sys.modules[type(active).__module__]
        if not hasattr(utilities, "fill_tma_descriptor_tiled"):
            raise LookupError("the active driver has no C launcher")
        if (
            getattr(launcher, "global_scratch_size", 0)
            or getattr(launcher, "profile_scratch_size", 0)
            or getattr(launcher, "gsan_enabled", False)
        ):
            raise LookupError("the kernel needs scratch memory")
        parameter = driver.PyKernelArg(nested_tuple=None, type=driver.ARG_KERNEL)
        self.compiled = compiled  # it unloads the kernel when it goes
        self.current_stream = active.get_current_stream
        self._start = utilities.launch  # launchKernel of triton/backends/nvidia/driver.c
        self._middle = (  # what stands between the stream and the arguments
            compiled.function,
            launcher.launch_cooperative_grid,
            launcher.launch_pdl,
            compiled.packed_metadata,
            None,  # launch metadata, hooks before and after, global scratch, profile scratch
            None,
            None,
            None,
            None,
            [parameter] * len(launcher.kernel_signature),
            launcher.kernel_signature,
        )
        self._late = (*self._middle[:2], False, *self._middle[3:])
        self._functions.add(compiled.function)
        self.tensor_maps = tuple(compiled.metadata.tensordesc_meta)
        self._fill = utilities.fill_tma_descriptor_tiled
        self._host_types = driver.TMA_DTYPE_DEVICE_TO_HOST

    def __call__(self, grid: tuple[int, int, int], stream: int, arguments: Sequence[Any]) -> None:
        """Launch it on a stream of the current GPU."""
        early = not stream or follows(stream, self._functions)  # no graph is captured on stream 0
        self._start(*grid, stream, *(self._middle if early else self._late), arguments)

    def tensor_map(
        self, index: int, address: int, shape: Sequence[int], strides: Sequence[int]
    ) -> Any:
        """The map (``CUtensorMap``) of descriptor `index` for a matrix in global memory.

        Args:
            shape, strides: in elements, the contiguous dimension last.

        Raises:
            RuntimeError: the driver refuses it.
        """
        meta = self.tensor_maps[index]
        return self._fill(
            address,
            meta["swizzle"],
            meta["elem_size"],
            self._host_types[meta["elem_type"]],
            meta["block_size"],
            shape,
            strides,
            0,  # what lies outside reads as zero
        )
