"""The pass verify-descriptors: does the PTX say what the TTGIR means?

After PTX, every ``wgmma``, ``tcgen05.mma``, ``tcgen05.cp``, TMA copy and ``expect_tx`` is matched
with the operation that it was lowered from, and every field of its descriptors, its opcode and
immediates, and the number of its boxes are proven equal to what the operands' layouts say. Then
both are run for some choice of arguments (`traces`): what is executed, how often, with which
addresses, coordinates, slots and barriers, what is stored in the tiles. What is not known at
compile time is no error; the report counts it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from triton_ext.mlir.ir import Operation
from triton_ext.mlir.locations import Location
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.frame.base import (
    Compilation,
    Diagnostic,
    Outcome,
    ReportOptions,
    compiler_pass,
)
from triton_ext.passes.verify_descriptors.compared import Compared
from triton_ext.passes.verify_descriptors.meaning.expectations import ModuleExpectations
from triton_ext.passes.verify_descriptors.meaning.expected_products import wrong_formats
from triton_ext.passes.verify_descriptors.meaning.kinds import IN_ORDER
from triton_ext.passes.verify_descriptors.memory.stores import observed, unclaimed
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.tensormaps import (
    FieldCheck,
    LaunchedWith,
    launch_checks,
    metadata_checks,
    type_checks,
)
from triton_ext.passes.verify_descriptors.text.comparison import grouped
from triton_ext.passes.verify_descriptors.text.groups import Group, functions
from triton_ext.passes.verify_descriptors.text.matching import Matching, match
from triton_ext.passes.verify_descriptors.traces import TraceComparison
from triton_ext.ptx.parse import Instruction

_KNOWN_RELEASE = re.compile(r"3\.[789]\.\d+")
"""The releases of Triton whose lowering the rules describe."""
_REPORT_BUG = (
    "the compiled kernel does not do what the TTGIR says; do not run it. Compile it with another"
    " release of Triton or another layout, and report the difference upstream"
)
_LOOKED_AT = (
    "facts of descriptors, opcodes and counts in the text, and of the executed TMA copies, MMAs,"
    " wgmma groups, mbarrier operations, transfers of tensor memory with their waits, and the bytes"
    " that stores fill"
)
"""Not among them are data, loads from shared memory, scratch memory, fences and ``bar.sync``."""
_MAX_DIAGNOSTICS = 20
_ROWS_WITHOUT_SWIZZLE = (
    " (a known fault: Triton 3.8 and 3.9 give a tile that is stored row by row, without a swizzle,"
    " the descriptor of the 32-byte swizzle; the product is garbage)"
)


@dataclass(frozen=True)
class VerifyOptions(ReportOptions):
    """Options of verify-descriptors.

    Attributes:
        known_faults: ``error``, or ``warn`` where an operand has no descriptor at all but Triton is
            known to emit one.
    """

    output: str = "none"
    known_faults: str = "error"

    CHOICES: ClassVar = {**ReportOptions.CHOICES, "known_faults": ("error", "warn")}


@compiler_pass(
    "verify-descriptors", after="ptx", options=VerifyOptions, render=lambda *args: _render(*args)
)
def verify_descriptors(compilation: Compilation, options: VerifyOptions) -> Outcome:
    """Prove that the descriptors, boxes and counts in the PTX are those of the TTGIR's layouts."""
    module = compilation.ttgir
    expectations = ModuleExpectations(module, compilation.arch)
    found = functions(compilation.ptx)
    groups = [group for function in found for group in function.groups()]
    launched = LaunchedWith.of(compilation.metadata)
    matching = match(
        [one for one in expectations.found if one.kind not in IN_ORDER],
        [group for group in groups if not group.is_in_order],
        compilation.arch, expectations.open,
    )  # fmt: skip
    fields = [*metadata_checks(module, compilation.metadata), *type_checks(module)]
    for function in found:
        if function.kernel.is_entry:
            fields += launch_checks(module, compilation.metadata, function.kernel.directives)
    diagnostics = [
        *_illegal(expectations, options), *_wrong_formats(module), *_differences(matching),
        *_wrong_fields(fields),
    ]  # fmt: skip
    traces = Findings()
    if (
        launched.shared is not None
        and launched.shared > compilation.capability.shared_memory_per_block
    ):
        # Triton itself refuses to launch it (OutOfResources, which autotuners wait for), and its
        # addresses need not fit into descriptors.
        diagnostics = []
        traces.unproven["executions: more shared memory than a block may have"] += 1
    elif not diagnostics:
        for function in found:
            if function.kernel.is_entry:
                compared = Compared.of(expectations, function, groups, matching, launched)
                traces += TraceComparison(compared).run()
        looked_at = {id(function.kernel) for function in found}
        for kernel in compilation.ptx.kernels:
            if id(kernel) not in looked_at:
                traces.left_out.update((each.line, unclaimed(each)) for each, _ in observed(kernel))
        diagnostics += _executions(traces)
    report = _report(expectations, groups, matching, fields, traces)
    release = str(compilation.metadata.get("triton_version") or "")
    if release and not _KNOWN_RELEASE.fullmatch(release):
        diagnostics = [_of_an_unknown_release(each, release) for each in diagnostics]
    return Outcome(report=report, diagnostics=_limited(diagnostics))


def _limited(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    if len(diagnostics) <= _MAX_DIAGNOSTICS:
        return list(diagnostics)
    rest = len(diagnostics) - _MAX_DIAGNOSTICS
    return [*diagnostics[:_MAX_DIAGNOSTICS], Diagnostic("error", f"and {rest} more")]


# ------------------------------------------------------------------------------ diagnostics


def _bug(
    message: str, operation: Operation | None = None, instruction: Instruction | None = None
) -> Diagnostic:
    """A difference between the TTGIR and the PTX, at the operation's source line if it has one."""
    location = operation.location if operation else None
    if location is None and instruction is not None and instruction.source is not None:
        location = Location(instruction.source.file, instruction.source.line, 1)
    shown = f"PTX line {instruction.line}, {instruction.opcode}: " if instruction else ""
    return Diagnostic("error", shown + message, _REPORT_BUG, location)


def _of_an_unknown_release(found: Diagnostic, release: str) -> Diagnostic:
    """What is found where nobody has compared the rules with the compiler: not a reason to stop."""
    return replace(
        found,
        severity="warning",
        help=f"Triton {release} is a release or a fork that verify-descriptors does not know: the"
        " kernel may be lowered in another way, and be right; compare with Triton 3.7 to 3.9, or"
        " the emulator",
    )


def _illegal(expectations: ModuleExpectations, options: VerifyOptions) -> Iterator[Diagnostic]:
    severity: Any = "error" if options.known_faults == "error" else "warning"
    for operation, error in expectations.wrong:
        kinds = [expectations.module.memory(value) for value in operation.operands[:2]]
        rows = any(kind and "swizzlingByteWidth = 0" in kind.encoding for kind in kinds)
        named = _ROWS_WITHOUT_SWIZZLE if rows else ""
        yield Diagnostic(
            severity,
            f"{operation.name}: an operand that no matrix descriptor describes{named};"
            f" {error.rule}",
            "choose a layout of the canonical form, such as NVMMASharedLayout.get_default_for;"
            " without a swizzle the tile must consist of core matrices",
            operation.location,
        )


def _wrong_formats(module: MlirModule) -> Iterator[Diagnostic]:
    for operation, wrong in wrong_formats(module):
        yield Diagnostic(
            "error",
            f"{operation.name}: {wrong}",
            "give the product the format of its tile, or the tile the type of its values",
            operation.location,
        )


def _differences(matching: Matching) -> Iterator[Diagnostic]:
    for comparison in matching.wrong:
        operation = comparison.expected.operation
        for difference, count in grouped(comparison.differences):
            more = f" ({count} such differences)" if count > 1 else ""
            said = f"{difference}, by {operation.name}{more}"
            yield _bug(said, operation, difference.instruction)
    for group in matching.unknown:
        said = "no operation of the TTGIR is lowered to this instruction"
        yield _bug(said, instruction=group.first)
    for comparison in matching.matched:
        group = comparison.group
        if group.repeats is not None:
            said = f"it repeats that of PTX line {group.repeats.first.line}"
            yield _bug(said, comparison.expected.operation, group.first)
    for expected in matching.missing:
        operation = expected.operation
        yield _bug(f"{operation.name}: the PTX has no instructions for it", operation)


def _executions(traces: Findings) -> Iterator[Diagnostic]:
    for operation, difference in traces.differences:
        by = f", by {operation.name}" if operation else ""
        yield _bug(f"{difference}{by}", operation, difference.instruction)
    for operation, error in traces.of_the_kernel:
        yield Diagnostic(
            "error",
            f"{operation.name}: {error}",
            "expect what the copies to the mbarrier bring: its phase would not complete, or too"
            " early",
            operation.location,
        )


def _wrong_fields(fields: Sequence[FieldCheck]) -> Iterator[Diagnostic]:
    for field in fields:
        if field.difference:
            by = f"{field.maker.name}: " if field.maker else ""
            yield _bug(f"{by}{field.difference}", field.maker)


# ----------------------------------------------------------------------------------- report


def _report(
    expectations: ModuleExpectations,
    groups: Sequence[Group],
    matching: Matching,
    fields: Sequence[FieldCheck],
    traces: Findings,
) -> dict[str, Any]:
    proven, unproven = traces.proven.copy(), traces.unproven.copy()
    for comparison in matching.matched:
        proven += comparison.proven
        unproven += comparison.unproven
    unproven["operations that share instructions with another branch"] += len(matching.shared)
    proven["tensor map metadata"] += sum(not field.difference for field in fields)
    refused = Counter(f"{operation.name}: {why}" for operation, why in expectations.refused)
    total = sum(proven.values()) + sum(unproven.values())
    return {
        "operations": dict(Counter(one.operation.name for one in expectations.found)),
        "operations_not_derived": dict(refused),
        "instructions": dict(
            Counter(item.opcode for group in groups for item in group.instructions)
        ),
        "groups": sum(not group.is_in_order for group in groups),
        "groups_matched": len(matching.matched),
        "groups_not_predicted": len(matching.unpredicted),
        "proven": {name: count for name, count in sorted(proven.items()) if count},
        "unproven": {name: count for name, count in sorted(unproven.items()) if count},
        "not_looked_at": dict(Counter(traces.left_out.values())),
        "not_looked_at_lines": sorted(traces.left_out),
        "blocks": [list(each) for each in sorted(traces.blocks)],
        "threads": sorted(traces.threads),
        "proven_fraction": sum(proven.values()) / total if total else 1.0,
        "proven_fraction_of": _LOOKED_AT,
    }


def _render(kernel: str, report: Any, options: VerifyOptions) -> str:
    import json

    if options.format == "json":
        return json.dumps({"kernel": kernel, "verify-descriptors": report})
    facts, open_facts = sum(report["proven"].values()), sum(report["unproven"].values())
    executions = report["proven"].get("executions", 0)
    lines = [
        f"{kernel}: proven: {sum(report['operations'].values())} operations are what"
        f" {sum(report['instructions'].values())} instructions of the PTX do, in {executions}"
        f" executions; {facts} facts, {open_facts} more are not proven"
    ]
    lines += [f"  {count:6} {name}" for name, count in report["operations"].items()]
    lines += [f"  proven:   {count:6} {name}" for name, count in report["proven"].items()]
    lines += [f"  unproven: {count:6} {name}" for name, count in report["unproven"].items()]
    lines += [
        f"  not looked at: {count} {name}"
        for name, count in report["operations_not_derived"].items()
    ]
    lines += [f"  not looked at: {count} {name}" for name, count in report["not_looked_at"].items()]
    runs = len(report["blocks"]), len(report["threads"])
    lines.append(f"  run for {runs[0]} blocks, and {runs[1]} threads of them")
    share = f"{report['proven_fraction']:.1%}"
    lines.append(f"  {share} is proven, of the {report['proven_fraction_of']}")
    return "\n".join(lines)
