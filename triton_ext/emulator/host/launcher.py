"""What Triton calls for each launch of a compiled kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.arguments import Flattened
from triton_ext.emulator.host.cuda_graphs import captured
from triton_ext.emulator.host.entered import current_gpu
from triton_ext.emulator.host.moved_sources import as_loaded


@functools.lru_cache(maxsize=1024)
def _cached(name: str, key: str) -> tuple[str, bytes, Path | None]:
    """The PTX that Triton keeps beside the cubin, the cubin, and the TTGIR's file.

    The key names what it was compiled from.

    Triton makes the launcher of a kernel again and again, as there is no module: see `load_binary`.
    """
    from triton.runtime.cache import get_cache_manager

    manager = get_cache_manager(key)
    group = manager.get_group(f"{name[:150]}.json") or {}
    cached = {Path(file).suffix: Path(path) for file, path in group.items()}
    if ".ptx" in cached:
        return cached[".ptx"].read_text(), cached[".cubin"].read_bytes(), cached.get(".ttgir")
    raise LaunchError(f"Triton's cache has no PTX of {name}; is its cache directory gone?")


class Launcher:
    """What Triton calls for each launch of a compiled kernel."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self._signature = [(str(name), kind) for name, kind in src.signature.items()]
        self._metadata = metadata
        self._maps = getattr(metadata, "tensordesc_meta", None)
        ptx, self._cubin, self._ttgir = _cached(str(src.name), metadata.hash)
        kernel = getattr(src, "fn", None)  # none, if it was compiled from IR
        self._ptx = as_loaded(ptx, kernel.fn.__code__.co_filename) if kernel else ptx

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: Any,
        function: Any,
        kernel_metadata: Any,
        launch_metadata: Any,
        enter_hook: Callable[[Any], None] | None,
        exit_hook: Callable[[Any], None] | None,
        *args: Any,
    ) -> None:
        blocks = grid_x * grid_y * grid_z
        if not blocks:
            return
        # Triton keeps launchers: this one may have been made while another GPU was active
        gpu = current_gpu()
        if gpu.idle:
            gpu.launches += 1
            return
        metadata, program = self._metadata, gpu.program(self._ptx)
        flat = Flattened(self._maps, gpu.checks.views)
        for value, (name, kind) in zip(args, self._signature, strict=True):
            flat.add(name, value, kind)
        for name in ("global_scratch", "profile_scratch"):
            if len(flat.values) < len(program.parameters):
                flat.values.append(self._scratch(name, blocks))
                flat.names.append(name)
        if enter_hook is not None:
            enter_hook(launch_metadata)
        launch = functools.partial(
            gpu.launch,
            program,
            grid=(grid_x * metadata.num_ctas, grid_y, grid_z),
            cluster=(metadata.num_ctas, 1, 1) if metadata.num_ctas > 1 else None,
            args=flat.values,
            dynamic_smem_bytes=metadata.shared,
            memory=flat.memory,
            names=flat.names,
            cubin=self._cubin,
            ttgir=self._ttgir,
        )
        graph = captured()
        launch() if graph is None else graph.note(launch)
        if exit_hook is not None:
            exit_hook(launch_metadata)

    def _scratch(self, name: str, blocks: int) -> Any:
        """Memory that the kernel uses for itself, such as for tensor maps that it makes."""
        size = getattr(self._metadata, f"{name}_size", 0)
        if not size:
            return None
        align = max(1, getattr(self._metadata, f"{name}_align", 1))
        memory = np.zeros(size * blocks * self._metadata.num_ctas + align, np.uint8)
        start = -memory.__array_interface__["data"][0] % align
        return memory[start : len(memory) - align + start]
