"""Miscompilations: single changes of the PTX, or of the launch metadata, of a compiled kernel.

Each makes the kernel do something else: another field of a descriptor, another address, type, shape
or count. Operands are changed by an instruction inserted in front of the one that takes them, so
that no other one sees the change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from triton_ext.ptx.parse import Instruction, parse_ptx, split_operands


@dataclass(frozen=True)
class Corruption:
    """A change.

    Attributes:
        kind: of change.
        ptx: the changed PTX.
        metadata: what is changed in the launch metadata, if anything is.
    """

    kind: str
    ptx: str
    metadata: dict[str, Any] | None = None


class Editor:
    """Changes single instructions of PTX."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.instructions = [
            item for kernel in parse_ptx(text).kernels for item in kernel.instructions
        ]

    def of(self, *prefixes: str) -> list[Instruction]:
        """The instructions whose opcodes start so."""
        return [item for item in self.instructions if item.opcode.startswith(prefixes)]

    def replaced(self, instruction: Instruction, change: Callable[[str], str]) -> str:
        """The PTX with another text in place of an instruction's line."""
        lines = list(self.lines)
        lines[instruction.line - 1] = change(lines[instruction.line - 1])
        return "\n".join(lines)

    def with_operand(self, instruction: Instruction, old: str, code: str, new: str) -> str:
        """With `code` in front of an instruction, and operand `new` in place of `old`."""

        def change(line: str) -> str:
            head, found, tail = line.partition(instruction.opcode)
            changed = re.sub(rf"{re.escape(old)}(?![\w])", lambda _: new, tail, count=1)
            assert changed != tail, (old, line)
            return f"\t{code}\n{head}{found}{changed}"

        return self.replaced(instruction, change)

    def dropped(self, *instructions: Instruction) -> str:
        """Without some instructions."""
        lines = list(self.lines)
        for instruction in instructions:
            lines[instruction.line - 1] = ""
        return "\n".join(lines)

    def doubled(self, instruction: Instruction) -> str:
        """With an instruction issued twice."""
        return self.replaced(instruction, lambda line: f"{line}\n{line}")


def register(text: str) -> str:
    """The register in an operand or address."""
    found = re.search(r"%\w+|\w+", text)
    assert found
    return found[0]


def added(editor: Editor, instruction: Instruction, place: int, by: int, bits: int = 32) -> str:
    """An operand (or the base of an address) plus a constant."""
    return added_to(editor, instruction, instruction.operands[place], by, bits)


def added_to(editor: Editor, instruction: Instruction, text: str, by: int, bits: int = 32) -> str:
    """As `added`, of an operand's text."""
    old = register(text)
    new = "%rd99999" if bits == 64 else "%r99999"
    return editor.with_operand(instruction, old, f"add.s{bits} {new}, {old}, {by};", new)


def flipped(editor: Editor, instruction: Instruction, place: int, bit: int, bits: int) -> str:
    """An operand with one bit flipped."""
    old = register(instruction.operands[place])
    new = "%rd99999" if bits == 64 else "%r99999"
    code = f"xor.b{bits} {new}, {old}, {1 << bit};"
    return editor.with_operand(instruction, old, code, new)


def exchanged(instruction: Instruction, first: str, second: str) -> Callable[[str], str]:
    """Two operands of an instruction change places."""

    def change(line: str) -> str:
        head, found, tail = line.partition(instruction.opcode)
        swap = {first: second, second: first}
        pattern = "|".join(rf"{re.escape(text)}(?!\w)" for text in swap)
        return head + found + re.sub(pattern, lambda match: swap[match[0]], tail)

    return change


def opcode_changed(instruction: Instruction, old: str, new: str) -> Callable[[str], str]:
    """Part of an opcode is another one."""

    def change(line: str) -> str:
        assert re.search(old, instruction.opcode), (old, instruction.opcode)
        return line.replace(instruction.opcode, re.sub(old, new, instruction.opcode, count=1))

    return change


def descriptor_bits(
    editor: Editor, instruction: Instruction, place: int, name: str
) -> Iterator[Corruption]:
    """Each bit of a matrix descriptor."""
    for bit in range(64):
        yield Corruption(
            f"{name}: descriptor bit {bit}", flipped(editor, instruction, place, bit, 64)
        )


def wgmma(editor: Editor) -> Iterator[Corruption]:
    """wgmma."""
    found = editor.of("wgmma.mma_async")
    if not found:
        return
    one = found[len(found) // 2]
    n = int(re.search(r"n(\d+)k", one.opcode)[1])
    k = int(re.search(r"k(\d+)", one.opcode)[1])
    types = one.opcode.split(".")[-3:]
    other = {"f16": "bf16", "bf16": "f16", "e5m2": "e4m3", "tf32": "f16", "s8": "u8"}
    a_type, b_type = (other.get(name, "e5m2") for name in types[1:])
    changes = [
        ("M", "m64", "m128"),
        ("N", f"n{n}k", f"n{n * 2 if n < 256 else n // 2}k"),
        ("K", f"k{k}", f"k{2 * k}"),
        ("D's type", rf"\.{types[0]}\.", ".f64."),
        ("A's type", rf"\.{types[1]}\.{types[2]}$", f".{a_type}.{types[2]}"),
        ("B's type", rf"\.{types[2]}$", f".{b_type}"),
    ]
    for name, old, new in changes:
        yield Corruption(f"wgmma: {name}", editor.replaced(one, opcode_changed(one, old, new)))
    for index, value in enumerate(one.operands[4:]):
        other = {"1": "-1", "0": "1"}[value]
        if index >= 2 and value == "1":
            other = "0"
        tail = [*one.operands[4:]]
        tail[index] = other
        old_tail = ", ".join(one.operands[4:])
        old_tail, new_tail = ", ".join(one.operands[4:]), ", ".join(tail)
        yield Corruption(
            f"wgmma: immediate {index}",
            editor.replaced(one, partial(re.sub, rf"{old_tail};\s*$", f"{new_tail};")),
        )
    last = found[-1]
    if last.operands[3].startswith("%p"):
        changed = editor.with_operand(
            last, last.operands[3], f"not.pred %p9999, {last.operands[3]};", "%p9999"
        )
    else:
        opposite = str(1 - int(last.operands[3]))
        pattern = rf"({re.escape(last.operands[2])}, )\d(, )"
        changed = editor.replaced(last, partial(re.sub, pattern, rf"\g<1>{opposite}\2"))
    yield Corruption("wgmma: scale-d", changed)
    if not one.operands[1].startswith("{"):
        yield from descriptor_bits(editor, one, 1, "wgmma A")
        yield Corruption(
            "wgmma: A and B exchanged",
            editor.replaced(one, exchanged(one, one.operands[1], one.operands[2])),
        )
    yield from descriptor_bits(editor, one, 2, "wgmma B")
    yield Corruption("wgmma: dropped", editor.dropped(one))
    yield Corruption("wgmma: doubled", editor.doubled(one))
    yield Corruption("wgmma: all dropped", editor.dropped(*found))
    yield Corruption("wgmma: a subtile's advance", added(editor, found[-1], 2, 2, 64))


def tcgen05(editor: Editor) -> Iterator[Corruption]:
    """tcgen05.mma."""
    found = editor.of("tcgen05.mma")
    if not found:
        return
    one = found[len(found) // 2]
    group = re.search(r"cta_group::(\d)", one.opcode)[1]
    kind = re.search(r"kind::(\w+)", one.opcode)[1]
    other = {"f16": "tf32", "tf32": "f16", "f8f6f4": "f16", "i8": "f8f6f4"}.get(kind, "f16")
    yield Corruption(
        "tcgen05.mma: cta_group",
        editor.replaced(
            one, opcode_changed(one, f"cta_group::{group}", f"cta_group::{3 - int(group)}")
        ),
    )
    yield Corruption(
        "tcgen05.mma: kind",
        editor.replaced(one, opcode_changed(one, rf"kind::{kind}\b", f"kind::{other}")),
    )
    if "block_scale" in one.opcode:
        old, new = (
            (r"scale_vec::\dX", "scale_vec::9X") if "scale_vec" in one.opcode
            else (r"block(16|32)", "block64")
        )  # fmt: skip
        yield Corruption(
            "tcgen05.mma: scale vector", editor.replaced(one, opcode_changed(one, old, new))
        )
        for place in (4, 5):
            yield Corruption(f"tcgen05.mma: scale address {place}", added(editor, one, place, 1))
    for bit in range(32):
        yield Corruption(
            f"tcgen05.mma: instruction descriptor bit {bit}", flipped(editor, one, 3, bit, 32)
        )
    if not one.operands[1].startswith("["):
        yield from descriptor_bits(editor, one, 1, "tcgen05.mma A")
        yield Corruption(
            "tcgen05.mma: A and B exchanged",
            editor.replaced(one, exchanged(one, one.operands[1], one.operands[2])),
        )
    else:
        yield Corruption("tcgen05.mma: A's address", added(editor, one, 1, 1))
    yield from descriptor_bits(editor, one, 2, "tcgen05.mma B")
    yield Corruption("tcgen05.mma: D's address", added(editor, one, 0, 1))
    if len(found) > 1:
        last = found[-1]
        yield Corruption(
            "tcgen05.mma: enable-input-d",
            editor.with_operand(
                last, last.operands[-1], f"not.pred %p9999, {last.operands[-1]};", "%p9999"
            ),
        )
        yield Corruption("tcgen05.mma: a subtile's advance", added(editor, last, 2, 2, 64))
    yield Corruption("tcgen05.mma: dropped", editor.dropped(one))
    yield Corruption("tcgen05.mma: doubled", editor.doubled(one))
    yield Corruption("tcgen05.mma: all dropped", editor.dropped(*found))


def tensor_memory_copy(editor: Editor) -> Iterator[Corruption]:
    """tcgen05.cp."""
    found = editor.of("tcgen05.cp")
    if not found:
        return
    one = found[-1]
    changed = [
        ("cta_group", r"cta_group::1", "cta_group::2") if "group::1" in one.opcode
        else ("cta_group", r"cta_group::2", "cta_group::1"),
        ("shape", r"\.(\d+)x", r".4x"),
    ]  # fmt: skip
    if "warpx4" in one.opcode:
        changed.append(("multicast", "warpx4", "warpx2::02_13"))
    for name, old, new in changed:
        yield Corruption(f"tcgen05.cp: {name}", editor.replaced(one, opcode_changed(one, old, new)))
    yield from descriptor_bits(editor, one, 1, "tcgen05.cp")
    if len(found) > 1:
        yield Corruption("tcgen05.cp: destination", added(editor, one, 0, 4))
    yield Corruption("tcgen05.cp: dropped", editor.dropped(one))
    yield Corruption("tcgen05.cp: doubled", editor.doubled(one))


def tma(editor: Editor) -> Iterator[Corruption]:
    """TMA copies."""
    found = editor.of("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
    for name, one in (("first", found[0]), ("last", found[-1])) if found else ():
        tensor = next(text for text in one.operands if "{" in text)
        shared = next(text for text in one.operands if text.startswith("[") and text != tensor)
        barriers = [text for text in one.operands[1:] if text.startswith("[") and text != tensor]
        inside = split_operands(tensor.strip("[]"))
        coordinates = split_operands(inside[1].strip("{}"))
        yield Corruption(
            f"TMA, {name}: rank",
            editor.replaced(one, opcode_changed(one, r"(\d)d", lambda m: f"{int(m[1]) % 5 + 1}d")),
        )
        yield Corruption(f"TMA, {name}: dropped", editor.dropped(one))
        yield Corruption(f"TMA, {name}: doubled", editor.doubled(one))
        yield Corruption(f"TMA, {name}: shared address + 16", added_to(editor, one, shared, 16))
        yield Corruption(f"TMA, {name}: shared address + 1024", added_to(editor, one, shared, 1024))
        for dim, text in enumerate(coordinates):
            lines = editor.with_operand(
                one, tensor,
                f"add.s32 %r99999, {text}, 8;",
                "[" + inside[0] + ", {" + ", ".join(
                    "%r99999" if i == dim else other for i, other in enumerate(coordinates)
                ) + "}]",
            ) if tensor in editor.lines[one.line - 1] else None  # fmt: skip
            if lines:
                yield Corruption(f"TMA, {name}: coordinate {dim}", lines)
        if barriers and shared != barriers[-1]:
            yield Corruption(
                f"TMA, {name}: mbarrier + 8",
                editor.with_operand(
                    one, barriers[-1], f"add.s32 %r99999, {register(barriers[-1])}, 8;",
                    "[%r99999]",
                ),
            )  # fmt: skip
        if "global.shared" in one.opcode:
            continue
        yield Corruption(
            f"TMA, {name}: direction",
            editor.replaced(one, opcode_changed(one, r"\.global", ".global.shared::cta")),
        )


def refills(editor: Editor) -> Iterator[Corruption]:
    """TMA copies between the first and the last one: those of later slots, and of loops."""
    found = editor.of("cp.async.bulk.tensor")[1:-1]
    for one in found[:: max(1, len(found) // 3)]:
        tensor = next(text for text in one.operands if "{" in text)
        shared = next(text for text in one.operands if text.startswith("[") and text != tensor)
        barrier = one.operands[-1]
        inside = split_operands(tensor.strip("[]"))
        coordinates = split_operands(inside[1].strip("{}"))
        yield Corruption("refill: dropped", editor.dropped(one))
        for by in (16, 1024, 16384):
            yield Corruption(f"refill: shared + {by}", added_to(editor, one, shared, by))
        for dim, text in enumerate(coordinates if ".tile::" not in one.opcode else ()):
            lines = editor.with_operand(
                one, tensor,
                f"add.s32 %r99999, {text}, 64;",
                "[" + inside[0] + ", {" + ", ".join(
                    "%r99999" if i == dim else other for i, other in enumerate(coordinates)
                ) + "}]",
            )  # fmt: skip
            yield Corruption(f"refill: coordinate {dim}", lines)
        if barrier.startswith("[") and barrier not in (tensor, shared):
            yield Corruption("refill: mbarrier + 8", added_to(editor, one, barrier, 8))


STORES = ("st.shared.", "stmatrix.", "cp.async.ca.", "cp.async.cg.")


def stores(editor: Editor) -> Iterator[Corruption]:
    """Where tensors are stored in shared memory: what an MMA or a TMA store then reads."""
    for prefix in STORES:
        found = editor.of(prefix)
        count = 12 if prefix.startswith("cp.async") else 6
        for one in found[:: max(1, len(found) // count)]:
            name = f"{prefix.rstrip('.')}: address"
            for by in (16, 1024):
                yield Corruption(f"{name} + {by}", added_to(editor, one, one.operands[0], by))
            yield Corruption(f"{prefix.rstrip('.')}: dropped", editor.dropped(one))


def device_descriptors(editor: Editor) -> Iterator[Corruption]:
    """``tensormap.replace``: each field of the first and of the last descriptor."""
    found = editor.of("tensormap.replace")
    ends = editor.of("tensormap.cp_fenceproxy")
    count = len(found) // max(1, len(ends))
    for one in [*found[:count], *found[-count:]] if found else ():
        field, kind = re.search(r"tile\.(\w+)\..*\.(b\d+)$", one.opcode).groups()
        text = one.operands[-1]
        if text.startswith("%"):
            bits = int(kind[1:])
            new = "%rd99999" if bits == 64 else "%r99999"
            code = f"add.s{bits} {new}, {text}, 16;"
            yield Corruption(f"tensormap: {field}", editor.with_operand(one, text, code, new))
        else:
            other = hex(int(text, 0) ^ 1)
            yield Corruption(
                f"tensormap: {field}",
                editor.replaced(one, lambda line, a=text, b=other: b.join(line.rsplit(a, 1))),
            )
        yield Corruption(f"tensormap: {field} dropped", editor.dropped(one))
        elsewhere = editor.replaced(one, lambda line: line.replace(" + 0 ]", " + 8 ]", 1))
        yield Corruption(f"tensormap: {field} elsewhere", elsewhere)
    for one in ends:
        yield Corruption("tensormap: where to", added(editor, one, 0, 128, 64))


def expect(editor: Editor) -> Iterator[Corruption]:
    """``mbarrier.arrive.expect_tx``."""
    found = editor.of("mbarrier.arrive.expect_tx")
    for name, one in (("first", found[0]), ("last", found[-1])) if found else ():
        size = int(one.operands[-1])
        for other in (0, size - 1, size // 2, 2 * size, size + 16, size ^ (1 << 20)):
            yield Corruption(
                f"expect_tx, {name}: {other - size:+} bytes",
                editor.replaced(one, lambda line, b=other: re.sub(r",\s*\d+;", f", {b};", line)),
            )
        yield Corruption(f"expect_tx, {name}: dropped", editor.dropped(one))
        yield Corruption(f"expect_tx, {name}: doubled", editor.doubled(one))
        barrier = next(text for text in one.operands if text.startswith("["))
        yield Corruption(f"expect_tx, {name}: mbarrier + 8", added_to(editor, one, barrier, 8))


def launch_metadata(ptx: str, metadata: dict[str, Any]) -> Iterator[Corruption]:
    """``tensordesc_meta``."""
    entries = metadata.get("tensordesc_meta") or []
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            continue
        for key, value in entry.items():
            if isinstance(value, bool):
                others: list[Any] = [not value]
            elif isinstance(value, int):
                others = [(value + 1) % 4 if key == "swizzle" else value + 1]
            else:
                others = [
                    [size * 2 if i == dim else size for i, size in enumerate(value)]
                    for dim in range(len(value))
                ]
            for other in others:
                changed = [dict(each) if isinstance(each, dict) else each for each in entries]
                changed[index][key] = other
                yield Corruption(f"metadata: {key}", ptx, {**metadata, "tensordesc_meta": changed})
    if entries:
        yield Corruption(
            "metadata: an entry is missing", ptx, {**metadata, "tensordesc_meta": entries[1:]}
        )


def corruptions(ptx: str, metadata: dict[str, Any]) -> Iterator[Corruption]:
    """All of them that a kernel can have."""
    editor = Editor(ptx)
    for family in (
        wgmma, tcgen05, tensor_memory_copy, tma, expect, refills, stores, device_descriptors,
    ):  # fmt: skip
        yield from family(editor)
    yield from launch_metadata(ptx, metadata)
