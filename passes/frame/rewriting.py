"""What passes share that change the types of memory values."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import MemoryType


def touched(module: MlirModule, values: Set[Value]) -> list[Operation]:
    """The operations that take, make or carry values, in textual order."""
    seen: set[Operation] = set()
    for value in values:
        if value.definition:
            seen.add(value.definition)
        elif value.block:
            seen.add(value.block.region.parent)
        seen.update(user for user, _ in value.uses)
    return [operation for operation in module.operations if operation in seen]


def printed_location(operation: Operation) -> str:
    """`` loc(...)``, as an operation prints it; "" if it prints none."""
    for token in reversed(operation.tokens):
        if token.kind == "word" and token.text == "loc":
            return " " + operation.source.text[token.start : operation.tokens[-1].stop]
    return ""


def source_line(operation: Operation | None) -> str:
    """Where an operation comes from in the kernel's source; "" if that is not known."""
    location = operation.location if operation else None
    return str(location) if location else ""


def described(value: Value, kind: MemoryType, **more: Any) -> dict[str, Any]:
    """A memory value in a report: its name, source line, what `more` says, shape and element."""
    return {
        "value": value.name,
        "location": source_line(value.definition),
        **more,
        "shape": list(kind.shape),
        "element": kind.element,
    }
