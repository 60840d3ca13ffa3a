"""widen-swizzle: memory with a narrower swizzle than its shape allows gets the widest.

A TMA box is as wide as the swizzle, so a tile of 64 fp16 columns takes four copies with the 32-byte
swizzle, and one with the 128-byte one. Allocations, their views, and the TMA descriptors that fill
them or are filled from them, are changed together (`swizzle_classes`), and
with them what the launch needs to know of the descriptors.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from triton_ext.hardware.tensor_map import TensorSwizzle
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS
from triton_ext.mlir.edits import Edits
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.printed_types import printed_memory_types, with_encoding
from triton_ext.passes.frame.base import Compilation, Outcome, ReportOptions, compiler_pass
from triton_ext.passes.frame.rewriting import described, printed_location, source_line, touched
from triton_ext.passes.shared_accesses import SharedAllocation, shared_allocations
from triton_ext.passes.widen_swizzle.swizzle_classes import (
    Obstacle,
    SwizzleClass,
    inner_box,
    linear_encoding,
    obstacle,
    swizzle_classes,
    widened,
)


@dataclass(frozen=True)
class _Choice:
    """What becomes of a class: a wider swizzle, or the reason why not."""

    found: SwizzleClass
    width: int
    obstacle: Obstacle | None

    @property
    def is_changed(self) -> bool:
        return self.width > self.found.width


def _choose(found: SwizzleClass, kernel: Compilation) -> _Choice | None:
    """The widest swizzle without an obstacle; None if the class has the widest that fits it."""
    if found.widest == found.width or not found.is_memory or found.is_scales:
        return None
    first = None
    for width in sorted(SWIZZLE_BYTE_WIDTHS, reverse=True):
        if found.width < width <= found.widest:
            reason = obstacle(found, width, kernel)
            first = first or reason
            if reason is None:
                return _Choice(found, width, first)
    return _Choice(found, found.width, first)


class _Rewriter:
    """Collects the changes of a module."""

    def __init__(self, module: MlirModule, choices: Iterable[_Choice]) -> None:
        self.module = module
        self.edits = Edits(module)
        self.choices = list(choices)
        self.types = {
            value: self.new_type(choice, value)
            for choice in self.choices
            for value in choice.found.members
        }

    def new_type(self, choice: _Choice, value: Value) -> str:
        kind = choice.found.kind(value)
        encoding = widened(choice.found.encodings[value], choice.width)
        is_linear = kind.mnemonic == "shared_linear"
        new = linear_encoding(kind, encoding) if is_linear else encoding
        assert value.type is not None
        return with_encoding(value.type, self.edits.alias(str(new), "shared"))

    def rewrite(self) -> str:
        for operation in touched(self.module, self.types.keys()):
            for printed in printed_memory_types(operation):
                if printed.values and printed.values[0] in self.types:
                    new = self.types[printed.values[0]]
                    self.edits.replace(printed.start, printed.stop, new)
        for choice in self.choices:
            for pointer in choice.found.pointers:
                self.remake_descriptors(choice, pointer)
        return self.edits.apply()

    def remake_descriptors(self, choice: _Choice, pointer: Value) -> None:
        """The box and the swizzle of descriptors that are made on the device."""
        users = [user for user, _ in pointer.uses]
        view = next(user for user in users if user.name == "ttng.reinterpret_tensor_descriptor")
        encoding = widened(choice.found.encodings[view.results[0]], choice.width)
        extent = inner_box(choice.found.kind(view.results[0]), encoding)
        for maker in users:
            if maker.name != "ttng.tensormap_create":
                continue
            name = self.edits.fresh_name("box")
            self.edits.insert_before(
                maker, f"{name} = arith.constant {extent} : i32{printed_location(maker)}"
            )
            self.edits.replace_operand(maker, 2, name)
            token = maker.tokens[_attribute(maker, "swizzle_mode")]
            mode = int(TensorSwizzle.of_width(choice.width))
            self.edits.replace(token.start, token.stop, str(mode))


def _attribute(operation: Operation, name: str) -> int:
    """The index of the token of an attribute's value."""
    texts = [token.text for token in operation.tokens]
    return texts.index(name) + 2


def _fits_in_shared_memory(
    before: Iterable[SharedAllocation], choices: Iterable[_Choice], most: int
) -> bool:
    """Whether wider alignments cannot be what makes the kernel too large.

    Only the sum of all allocations is known here: where they reuse each other's memory, it may be
    over the limit, and says nothing.
    """
    total = sum(each.bytes for each in before)
    more = 0
    for choice in choices:
        for value in choice.found.allocations if choice.is_changed else ():
            encoding = choice.found.encodings[value]
            more += widened(encoding, choice.width).alignment - encoding.alignment
    return total > most or total + more <= most


# ------------------------------------------------------------------------------------- report


def _descriptors(choice: _Choice) -> list[dict[str, Any]]:
    found = []
    for value in choice.found.descriptors:
        kind, encoding = choice.found.kind(value), choice.found.encodings[value]
        new = widened(encoding, choice.width)
        found.append(
            {
                "value": value.name,
                "made_on_device": value.definition is not None,
                "shape": list(kind.shape),
                "box_width": {"before": inner_box(kind, encoding), "after": inner_box(kind, new)},
            }
        )
    return found


def _accesses(
    choice: _Choice, before: list[SharedAllocation], after: list[SharedAllocation]
) -> dict[str, list[dict[str, Any]]]:
    """TMA copies and moves from and to registers, each with its cost before and after."""
    own = set(choice.found.allocations)
    copies: dict[Operation, dict[str, Any]] = {}
    moves: dict[Operation, dict[str, Any]] = {}
    for old, new in zip(before, after, strict=True):
        if old.value not in own:
            continue
        for was, now in zip(old.copies, new.copies, strict=True):
            copies[was.operation] = {
                "operation": was.operation.name,
                "location": source_line(was.operation),
                "before": was.boxes,
                "after": now.boxes,
            }
        for one, other in zip(old.moves, new.moves, strict=True):
            if one.planned and other.planned:
                moves[one.operation] = {
                    "operation": one.operation.name,
                    "location": source_line(one.operation),
                    "instructions": [one.planned.mnemonic, other.planned.mnemonic],
                    "before": one.planned.pattern.wavefronts,
                    "after": other.planned.pattern.wavefronts,
                    "without_conflicts": other.planned.pattern.ideal_wavefronts,
                }
    return {"tma_copies": list(copies.values()), "wavefronts": list(moves.values())}


def _loss(accesses: dict[str, list[dict[str, Any]]]) -> Obstacle | None:
    """Why a wider swizzle would cost more than it gains.

    Without a swizzle a TMA box may be wider than any swizzle; and some moves from registers meet
    more banks in narrow atoms.
    """
    copies = _sums(accesses["tma_copies"])
    wavefronts = _sums(accesses["wavefronts"])
    if copies[1] > copies[0] and wavefronts[1] >= wavefronts[0]:
        return Obstacle(
            f"its {copies[0]} TMA copies would become {copies[1]}, and nothing else is gained"
        )
    if copies[1] == copies[0] and wavefronts[1] > wavefronts[0]:
        return Obstacle(
            f"its moves from and to registers would take {wavefronts[1]} wavefronts instead of"
            f" {wavefronts[0]}, and nothing else is gained"
        )
    return None


def _sums(items: list[dict[str, Any]]) -> tuple[int, int]:
    return sum(item["before"] for item in items), sum(item["after"] for item in items)


def _reported(choice: _Choice, accesses: dict[str, Any]) -> dict[str, Any]:
    memory = [described(value, choice.found.kind(value)) for value in choice.found.allocations]
    found: dict[str, Any] = {"memory": memory, "from": choice.found.width}
    if choice.is_changed:
        found |= {"to": choice.width, "descriptors": _descriptors(choice), **accesses}
    if choice.obstacle:
        found |= {
            "fits": choice.found.widest,
            "remark": choice.obstacle.reason,
            "location": source_line(choice.obstacle.operation),
        }
    return found


def _render(kernel: str, report: Any, options: Any) -> str:
    if options.format == "json":
        return json.dumps({"kernel": kernel, **report})
    lines = [
        f"widen-swizzle: {kernel}: {len(report['widened'])} widened,"
        f" {len(report['left_alone'])} left alone"
    ]
    for each in (*report["widened"], *report["left_alone"]):
        to = f" -> {each['to']}" if "to" in each else ""
        for memory in each["memory"]:
            shape = "x".join(map(str, memory["shape"]))
            lines.append(
                f"  {memory['location'] or '?'}: {memory['value']}, {shape}x{memory['element']}:"
                f" {each['from']}{to}-byte swizzle"
            )
        for descriptor in each.get("descriptors", ()):
            box = descriptor["box_width"]
            lines.append(
                f"    descriptor {descriptor['value']}: boxes {box['before']} -> {box['after']}"
                " elements wide"
            )
        for key, what in (("tma_copies", "TMA copies"), ("wavefronts", "wavefronts of moves")):
            if items := each.get(key):
                lines.append("    {}: {} -> {}".format(what, *_sums(items)))
        if "remark" in each:
            lines.append(
                f"    not with {each['fits']} bytes: {each['remark']} ({each['location'] or '?'})"
            )
    return "\n".join(lines)


@compiler_pass(
    "widen-swizzle", after="ttgir", options=ReportOptions, render=_render, is_optional=True
)
def widen_swizzle(compilation: Compilation, options: ReportOptions) -> Outcome | None:
    """Shared memory with a narrower swizzle than its shape allows gets the widest that it can.

    The report lists what was widened, with the TMA copies and the wavefronts of moves to and from
    registers before and after, and what could be wider and was left alone, with the reason.
    """
    if "nvmma_shared" not in compilation.text:
        return None
    module = compilation.ttgir
    choices = [
        choice
        for found in swizzle_classes(module)
        if (choice := _choose(found, compilation)) is not None
    ]
    if not choices:
        return None
    before = shared_allocations(module, compilation.target)
    most = compilation.capability.shared_memory_per_block
    if not _fits_in_shared_memory(before, choices, most):
        reason = Obstacle("its wider alignment may not leave enough shared memory")
        choices = [
            _Choice(each.found, each.found.width, each.obstacle or reason) for each in choices
        ]
    while True:
        changed = [choice for choice in choices if choice.is_changed]
        text = _Rewriter(module, changed).rewrite() if changed else None
        after = shared_allocations(MlirModule(text), compilation.target) if text else before
        accesses = [_accesses(choice, before, after) for choice in choices]
        losses = [
            _loss(each) if choice.is_changed else None
            for choice, each in zip(choices, accesses, strict=True)
        ]
        if not any(losses):
            break
        choices = [
            _Choice(choice.found, choice.found.width, loss) if loss else choice
            for choice, loss in zip(choices, losses, strict=True)
        ]
    entries = [_reported(*each) for each in zip(choices, accesses, strict=True)]
    report = {
        "widened": [each for each in entries if "to" in each],
        "left_alone": [each for each in entries if "to" not in each],
    }
    return Outcome(text, report)
