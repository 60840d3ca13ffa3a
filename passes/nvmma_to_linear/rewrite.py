"""nvmma-to-linear: MMA operands in shared memory get the generated shared-linear encoding.

An NVMMA encoding says what a tile's layout is in a few parameters, a shared-linear one in bases.
Triton derives the matrix descriptors of an operand from either. This pass replaces the first by the
bases that `triton_ext.layouts.nvmma_shared` generates; the PTX must come out identical
(a test compiles it both ways), or the bases are not what the compiler means.

What is one memory, or may be by control flow, is changed together: an allocation, its views, what
loops, branches and partitions carry. Operations that take NVMMA encodings alone, such as TMA
copies, see the memory through a ``ttg.memdesc_reinterpret``. Where the memory cannot be changed
(`triton_ext.passes.nvmma_to_linear.conversion` has the rules), it stays NVMMA, and the MMAs see it
through one; where not even that is legal, it is left alone, and the report says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from triton_ext.mlir.edits import Edits
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.printed_types import PrintedType, printed_memory_types, with_encoding
from triton_ext.passes.frame.base import Compilation, Outcome, ReportOptions, compiler_pass
from triton_ext.passes.frame.rewriting import described, printed_location, touched
from triton_ext.passes.nvmma_to_linear.conversion import (
    Conversion,
    Memory,
    MmaOperand,
    judge,
    needs_nvmma,
    nvmma_memories,
)


@dataclass(frozen=True)
class NvmmaToLinearOptions(ReportOptions):
    """Options of nvmma-to-linear.

    Attributes:
        scope: ``operands``: the memory that an MMA reads; ``all``: all shared memory with an NVMMA
            encoding.
    """

    scope: str = "operands"

    CHOICES: ClassVar = {**ReportOptions.CHOICES, "scope": ("operands", "all")}


def _ambiguous(module: MlirModule, values: Set[Value]) -> Iterator[tuple[Operation, PrintedType]]:
    """Printed types that are those of several values, of which some are in `values`, some not."""
    for operation in touched(module, values):
        if not needs_nvmma(operation):
            for printed in printed_memory_types(operation):
                if len({value in values for value in printed.values}) > 1:
                    yield operation, printed


def _convertible(memories: list[Memory], conversion: Conversion) -> set[Value]:
    """The values of all memory without an obstacle."""
    while True:
        chosen = {
            value: memory for memory in memories if not memory.obstacle for value in memory.values
        }
        found = next(_ambiguous(conversion.module, chosen.keys()), None)
        if found is None:
            return set(chosen)
        operation, printed = found
        memory = next(chosen[value] for value in printed.values if value in chosen)
        memory.obstacle = f"{operation.name} does not print which types are its"


class _Rewriter:
    """Collects the changes of a module."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion
        self.edits = Edits(conversion.module)
        self.views = 0

    def alias(self, value: Value) -> str:
        """The name of the new encoding of a value."""
        return self.edits.alias(str(self.conversion.linear(value)))

    def convert(self, values: Set[Value]) -> None:
        """Give values the shared-linear encoding, and what cannot take it, an NVMMA view."""
        for operation in touched(self.conversion.module, values):
            if not needs_nvmma(operation):
                for printed in printed_memory_types(operation):
                    if printed.values and printed.values[0] in values:
                        self.retype(printed)
                continue
            for value in {value: None for value in operation.operands if value in values}:
                old = str(value.type)
                view = self.view(operation, value, with_encoding(old, self.alias(value)), old)
                for index, other in enumerate(operation.operands):
                    if other is value:
                        self.edits.replace_operand(operation, index, view)

    def convert_for_mma(self, operand: MmaOperand) -> None:
        """Let an MMA see an operand through a shared-linear view."""
        operation, index, value = operand.operation, operand.index, operand.value
        old = str(value.type)
        view = self.view(operation, value, old, with_encoding(old, self.alias(value)))
        self.edits.replace_operand(operation, index, view)
        for printed in printed_memory_types(operation):
            if value in printed.values:
                self.retype(printed)

    def retype(self, printed: PrintedType) -> None:
        new = with_encoding(printed.text, self.alias(printed.values[0]))
        self.edits.replace(printed.start, printed.stop, new)

    def view(self, operation: Operation, value: Value, source: str, result: str) -> str:
        """Reinterpret a value in front of an operation; the name of the view."""
        name = self.edits.fresh_name("view")
        line = f"{name} = ttg.memdesc_reinterpret {value.name} : {source} -> {result}"
        self.edits.insert_before(operation, line + printed_location(operation))
        self.views += 1
        return name


def _described(memory: Memory, conversion: Conversion) -> dict[str, Any]:
    source, operands = memory.source, memory.operands
    kind = conversion.type_of(source)
    found = described(source, kind, operands=sorted({str(operand) for operand in operands}))
    found["encoding"] = kind.encoding
    if not memory.obstacle:
        return {**found, "linear": str(conversion.linear(source))}
    if memory.refusal:
        remark = memory.obstacle
        if memory.refusal not in remark:
            remark += f"; {memory.refusal}"
        return {**found, "remark": remark}
    linear = {str(conversion.linear(operand.value)): None for operand in operands}
    return {
        **found,
        "linear": ", ".join(linear),
        "remark": f"for its MMAs alone: {memory.obstacle}",
    }


def _render(kernel: str, report: Any, options: Any) -> str:
    if options.format == "json":
        return json.dumps({"kernel": kernel, **report})
    lines = [
        f"nvmma-to-linear: {kernel}: {len(report['converted'])} converted"
        f" ({report['views']} views), {len(report['left_alone'])} left alone"
    ]
    for each in (*report["converted"], *report["left_alone"]):
        shape = "x".join(map(str, each["shape"]))
        use = ", ".join(each["operands"]) or "no MMA operand"
        lines.append(f"  {each['location']}: {each['value']}, {shape}x{each['element']}: {use}")
        lines.append(f"    {each['encoding']}")
        if "linear" in each:
            lines.append(f"    -> {each['linear']}")
        if "remark" in each:
            lines.append(f"    remark: {each['remark']}")
    return "\n".join(lines)


@compiler_pass(
    "nvmma-to-linear", after="ttgir", options=NvmmaToLinearOptions, render=_render, is_optional=True
)
def nvmma_to_linear(compilation: Compilation, options: NvmmaToLinearOptions) -> Outcome | None:
    """MMA operands in shared memory get generated shared-linear encodings; the PTX stays.

    The report lists what was converted, and, with a remark, what had to be left alone.
    """
    if "nvmma_shared" not in compilation.text:
        return None
    memories = nvmma_memories(compilation.ttgir)
    if options.scope == "operands":
        memories = [memory for memory in memories if memory.operands]
    if not memories:
        return None
    conversion = Conversion(compilation)
    for memory in memories:
        judge(memory, conversion)
    rewriter = _Rewriter(conversion)
    rewriter.convert(_convertible(memories, conversion))
    for memory in memories:
        if memory.obstacle and not memory.refusal:
            for operand in memory.operands:
                rewriter.convert_for_mma(operand)
    entries = [_described(memory, conversion) for memory in memories]
    report = {
        "converted": [each for each in entries if "linear" in each],
        "left_alone": [each for each in entries if "linear" not in each],
        "views": rewriter.views,
    }
    return Outcome(rewriter.edits.apply() if rewriter.edits else None, report)
