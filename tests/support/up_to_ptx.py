"""A kernel compiled with and without passes, and its PTX compared. Imports Triton.

compiled = compile_both_ways(source, "nvmma-to-linear", arch=90)
assert compiled.identical, compiled.difference()
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from triton_ext.compat import LAUNCH_OPTIONS, gpu_target
from triton_ext.hardware.architecture import Architecture
from triton_ext.passes.frame.hook import Results, enabled
from triton_ext.passes.frame.pipeline import PassLike
from triton_ext.ptx.text import without_debug_lines


@dataclass(frozen=True)
class BothWays:
    """The PTX of a kernel, compiled without and with passes, and what the passes said."""

    unchanged: str
    changed: str
    results: Results

    @property
    def identical(self) -> bool:
        """Whether the PTX is the same, debug information aside."""
        return without_debug_lines(self.unchanged) == without_debug_lines(self.changed)

    def difference(self, lines: int = 40) -> str:
        """Where the PTX differs, as a unified diff of at most so many lines; "" if nowhere."""
        before = without_debug_lines(self.unchanged).splitlines()
        after = without_debug_lines(self.changed).splitlines()
        found = difflib.unified_diff(before, after, "unchanged", "changed", lineterm="", n=1)
        return "\n".join(itertools.islice(found, lines))


@contextlib.contextmanager
def up_to_ptx() -> Iterator[None]:
    """Compilations of Triton leave ptxas out: their cubin is empty."""
    runtime = triton.knobs.runtime
    previous = runtime.add_stages_inspection_hook

    def hook(*arguments: Any) -> Any:
        if not arguments:
            key, digest = previous() if previous else ("", "")
            return key + "up to PTX", digest + "up to PTX"
        if previous:
            previous(*arguments)
        stages = arguments[1]
        stages["cubin"] = lambda ptx, metadata: b""
        return None

    runtime.add_stages_inspection_hook = hook
    try:
        yield
    finally:
        runtime.add_stages_inspection_hook = previous


def compile_to_ptx(
    source: Any,
    *passes: PassLike,
    arch: Architecture,
    options: Mapping[str, Any] | None = None,
) -> tuple[str, Results]:
    """Compile a kernel as far as PTX. No GPU is needed, and ptxas does not run.

    Args:
        source: what ``triton.compile`` takes (``ASTSource``, ``GluonASTSource``), or TTGIR as text.
        passes: names or passes, as `triton_ext.passes.enabled` takes them.
        arch: 90 or 100.
        options: the options of ``triton.compile``, such as ``num_warps``.

    Returns:
        The PTX, and what the passes said.

    Raises:
        PassCompilationError: a pass found an error, or made an illegal module.
    """
    with tempfile.TemporaryDirectory() as folder, up_to_ptx(), enabled(*passes) as results:
        if isinstance(source, str):
            # Triton names the module after its file, and keeps what it compiles by the content.
            path = Path(folder) / "kernel.ttgir"
            path.write_text(source)
            source = str(path)
        chosen = {**LAUNCH_OPTIONS, **(options or {})}
        compiled = triton.compile(source, target=gpu_target(arch), options=chosen)
        return str(compiled.asm["ptx"]), results


def compile_both_ways(
    source: Any,
    *passes: PassLike,
    arch: Architecture,
    options: Mapping[str, Any] | None = None,
) -> BothWays:
    """Compile a kernel to PTX twice, without passes and with them: see `compile_to_ptx`."""
    unchanged, _ = compile_to_ptx(source, arch=arch, options=options)
    changed, results = compile_to_ptx(source, *passes, arch=arch, options=options)
    return BothWays(unchanged, changed, results)
