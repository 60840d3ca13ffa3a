"""The pass `lint-shared`: conflicts and waste in shared memory that are known at compile time."""

from __future__ import annotations

from triton_ext.passes.frame.base import Compilation, Outcome, compiler_pass
from triton_ext.passes.lint_shared.finding import Finding, LintOptions
from triton_ext.passes.lint_shared.layouts import conflicts, padding, permutations, swizzles
from triton_ext.passes.lint_shared.waste import idle, limits, never_read
from triton_ext.passes.occupancy import warps_of
from triton_ext.passes.shared_accesses import shared_allocations


def findings(compilation: Compilation, options: LintOptions | None = None) -> list[Finding]:
    """The findings of a kernel; those about its total need ``shared`` in the metadata."""
    options = options or LintOptions()
    module = compilation.ttgir
    allocations = shared_allocations(module, compilation.target)
    found: list[Finding] = list(permutations(module))
    for allocation in allocations:
        if allocation.is_barrier or allocation.layout is None:
            continue
        unread = list(never_read(allocation))
        found += unread
        if not unread:
            found += swizzles(allocation, compilation)
            found += conflicts(allocation, compilation, options)
            found += padding(allocation, compilation)
            found += idle(allocation, module)
    shared = compilation.metadata.get("shared")
    if isinstance(shared, int):
        has = compilation.capability
        found += limits(shared, allocations, warps_of(module), has, options)
    return list(dict.fromkeys(found))


@compiler_pass("lint-shared", after="llir", options=LintOptions)
def lint_shared(compilation: Compilation, options: LintOptions) -> Outcome:
    """Warn of bank conflicts and waste in shared memory, with the change that would mend it."""
    return Outcome(diagnostics=[found.diagnostic for found in findings(compilation, options)])
