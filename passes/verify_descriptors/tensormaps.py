"""TMA descriptors that a kernel makes itself: ``ttng.tensormap_create``, ``tensormap.replace``.

The kernel fills 128 bytes of shared memory with zeros, replaces one field after the other, and
copies them to global memory. What it writes there must be what the operation says, and the
operation must say what the type of the descriptor needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from triton_ext.mlir.arith import integer_constant
from triton_ext.mlir.module import MlirModule, Operation, Value
from triton_ext.passes.verify_descriptors.metadata import FieldCheck, needed_fields
from triton_ext.passes.verify_descriptors.ptx_trace import ExecutedInstruction

CREATE = "ttng.tensormap_create"
_FIELD = re.compile(r"tensormap\.replace\.tile\.(\w+)\.")
_MODES = {
    "elem_type": "elemtype", "interleave_layout": "interleave_layout",
    "swizzle_mode": "swizzle_mode", "fill_mode": "fill_mode",
}  # fmt: skip
"""The operation's attributes, and the fields (PTX ISA, "tensormap.replace")."""
_LISTS = ("box_dim", "global_dim", "global_stride", "element_stride")

Field = tuple[str, int]
"""A field's name, and which of its entries."""


def is_part(opcode: str) -> bool:
    """Whether an instruction makes a descriptor."""
    return opcode.startswith(("tensormap.replace", "tensormap.cp_fenceproxy"))


@dataclass(frozen=True)
class Fields:
    """What ``ttng.tensormap_create`` writes.

    Attributes:
        address: that of the tensor.
        values: the fields that are given as values, innermost dimension first.
        numbers: those that are constants.
    """

    address: Value
    values: dict[Field, Value]
    numbers: dict[Field, int]


@lru_cache(maxsize=256)
def fields_of(operation: Operation) -> Fields:
    """What an operation writes; its operands stand in four pairs of brackets, after two more."""
    lists: list[list[Value]] = []
    by_start = {
        token.start: value
        for token, value in zip(operation.operand_tokens, operation.operands, strict=True)
    }
    inside = False
    for token in operation.tokens:
        if token.kind == "mark" and token.text == "[" and len(lists) < len(_LISTS):
            lists.append([])
            inside = True
        elif token.kind == "mark" and token.text == "]":
            inside = False
        elif inside and token.start in by_start:
            lists[-1].append(by_start[token.start])
    values = {
        (name, index): value
        for name, listed in zip(_LISTS, lists, strict=False)
        for index, value in enumerate(listed)
    }
    numbers = {(field, 0): int(operation.attributes.get(name, 0)) for name, field in _MODES.items()}
    numbers["rank", 0] = len(lists[0]) - 1 if lists else 0
    return Fields(operation.operands[1], values, numbers)


def written(events: Sequence[ExecutedInstruction]) -> dict[Field, int | None]:
    """What instructions write into the fields; `("global", 0)` is where the descriptor goes."""
    found: dict[Field, int | None] = {}
    for event in events:
        match = _FIELD.match(event.instruction.opcode)
        numbers = [value if isinstance(value, int) else None for value in event.operands]
        if match is None:
            found["global", 0] = numbers[0]
        elif len(numbers) > 2:
            found[match[1], numbers[1] or 0] = numbers[2]
        else:
            found[match[1], 0] = numbers[1]
    return found


def type_checks(module: MlirModule) -> Iterator[FieldCheck]:
    """What operations write, against what the type of the descriptor needs, field by field."""
    for operation in module.operations:
        if operation.name != "ttng.reinterpret_tensor_descriptor":
            continue
        needed = _needed(needed_fields(module, operation.results[0]))
        for maker, position in operation.operands[0].uses:
            if maker.name != CREATE or position:
                continue
            fields = fields_of(maker)
            for name, must in needed.items():
                value = fields.values.get(name)
                found = fields.numbers.get(name) if value is None else integer_constant(value)
                if found == must:
                    yield FieldCheck(maker=maker)
                elif found is not None:
                    yield FieldCheck(
                        f"{name[0]} {name[1]} of the TMA descriptor is {found}, but its type"
                        f" {operation.results[0].type} needs {must}",
                        maker,
                    )


def _needed(metadata: dict[str, object]) -> dict[Field, int]:
    found: dict[Field, int] = {}
    for name, field in (("swizzle", "swizzle_mode"), ("elem_type", "elemtype")):
        number = metadata.get(name)
        if isinstance(number, int):
            found[field, 0] = number
    box = metadata.get("block_size")
    if isinstance(box, list):
        found.update({("box_dim", i): size for i, size in enumerate(reversed(box))})
        found["rank", 0] = len(box) - 1
    return found
