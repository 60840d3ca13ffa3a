"""Compiler passes that run inside Triton's own pipeline.

    with triton_ext.passes.enabled("verify-descriptors", "report-layouts"):
        kernel[grid](...)

What passes say of a kernel is kept with it: ``kernel.metadata.triton_layouts``.

`enabled`, `install`, `uninstall` and `PassCompilationError` import Triton; the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triton_ext.errors import PassError
from triton_ext.passes.frame.base import (
    Compilation,
    CompilerPass,
    ConfiguredPass,
    Diagnostic,
    NoOptions,
    Outcome,
    PassWarning,
    ReportOptions,
    compiler_pass,
)
from triton_ext.passes.frame.lookup import all_passes, get_pass
from triton_ext.passes.frame.pipeline import PassResult, Pipeline, parse_passes

if TYPE_CHECKING:
    from triton_ext.passes.frame.hook import (
        PassCompilationError,
        Results,
        enabled,
        install,
        uninstall,
    )

__all__ = [
    "Compilation",
    "CompilerPass",
    "ConfiguredPass",
    "Diagnostic",
    "NoOptions",
    "Outcome",
    "PassCompilationError",
    "PassError",
    "PassResult",
    "PassWarning",
    "Pipeline",
    "ReportOptions",
    "Results",
    "all_passes",
    "compiler_pass",
    "enabled",
    "get_pass",
    "install",
    "parse_passes",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name in ("PassCompilationError", "Results", "enabled", "install", "uninstall"):
        from triton_ext.passes.frame import hook

        return getattr(hook, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
