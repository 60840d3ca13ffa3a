"""Where Triton has put a kernel's buffers: its own passes, run on the TTGIR that it keeps."""

from __future__ import annotations

import functools
from pathlib import Path

from triton_ext.emulator.state.buffers import Buffer, buffers_of, permuted_reads
from triton_ext.errors import LayoutError

_PTX_VERSION = 87
"""The version of the PTX that would be made: none of these passes makes any."""


@functools.lru_cache(maxsize=64)
def allocated(ttgir: Path, arch: int) -> tuple[Buffer, ...]:
    """The buffers of a compiled kernel; none if they are not to be found out.

    They serve messages alone: what a release of Triton does not have here costs the names.

    Args:
        ttgir: the file in Triton's cache.
        arch: the compute capability, times ten.
    """
    from triton._C.libtriton import ir, nvidia, passes

    try:
        context = ir.context()
        ir.load_dialects(context)
        nvidia.load_dialects(context)
        module = ir.parse_mlir_module(str(ttgir), context)
        module.context = context
        manager = ir.pass_manager(context)
        # as make_llir in triton/backends/nvidia/compiler.py begins
        passes.ttgpuir.add_combine_tensor_select_and_if(manager)
        warp_groups = passes.ttgpuir.add_allocate_warp_groups
        try:
            warp_groups(manager, False)
        except TypeError:  # before 3.9
            warp_groups(manager)
        passes.convert.add_scf_to_cf(manager)
        passes.gluon.add_inliner(manager)
        nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, arch, _PTX_VERSION)
        nvidia.passes.ttnvgpuir.add_allocate_tensor_memory(manager)
        try:
            manager.run(module, "allocated")
        except TypeError:  # before 3.9
            manager.run(module)
        return buffers_of(str(module))
    except (AttributeError, RuntimeError, TypeError, OSError, LayoutError):
        return ()


@functools.lru_cache(maxsize=64)
def permutations(ttgir: Path) -> dict[str, str]:
    """What `permuted_reads` says of a compiled kernel; nothing where it cannot be read."""
    try:
        return permuted_reads(ttgir.read_text(encoding="utf-8"))
    except (OSError, LayoutError):
        return {}
