"""Changes of compiled PTX, made by machine: what a fault of the compiler may look like.

`Mutator` changes every operand of every instruction that reaches a TMA copy, an MMA, an mbarrier
or an address in shared or tensor memory, in each way that fits: a constant is another one, a
register is exchanged, the base of an address is dropped, an instruction is left out or issued
twice, or by all threads or blocks but one, or changes places with the next one, a modifier is
another one, a guard is inverted, a branch goes elsewhere.
"""

from __future__ import annotations

import dataclasses
import random
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from triton_ext.ptx.definitions import destinations, mentioned
from triton_ext.ptx.parse import Instruction, Kernel, parse_ptx, split_operands

WHOLE = (
    "cp.async.bulk", "cp.reduce.async.bulk", "wgmma.mma_async", "tcgen05.mma", "tcgen05.cp",
    "tcgen05.alloc", "tcgen05.commit", "mbarrier.", "tensormap.", "st.async", "red.async",
)  # fmt: skip
"""Instructions all of whose operands count, but for lists of registers with data."""
ADDRESSED = (
    "st.shared", "ld.shared", "stmatrix", "ldmatrix", "cp.async.ca", "cp.async.cg", "tcgen05.ld",
    "tcgen05.st",
)  # fmt: skip
"""Instructions of which the address counts."""


@dataclass(frozen=True)
class Mutation:
    """One change of the text of a PTX module.

    Attributes:
        kind: what sort of change.
        line: of the instruction that is changed.
        opcode: that instruction's.
        start, stop: the part of the text that is replaced.
        text: what stands there instead.
        reaches: the opcodes of the instructions that the changed one reaches.
        lines: their lines.
    """

    kind: str
    line: int
    opcode: str
    start: int
    stop: int
    text: str
    reaches: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()

    def of(self, ptx: str) -> str:
        """The changed module."""
        return ptx[: self.start] + self.text + ptx[self.stop :]


def _counted(instruction: Instruction) -> list[str]:
    """The operands of a sink that count; [] for an instruction that is none."""
    operands = list(instruction.operands)
    if instruction.opcode.startswith(WHOLE):
        return [each for each in operands if each[:1] != "{"]
    if instruction.opcode.startswith(ADDRESSED):
        return [each for each in operands if each[:1] == "["][:1]
    return []


def reached(kernel: Kernel) -> dict[int, set[int]]:
    """For each instruction that reaches a sink, by its number, the numbers of the sinks."""
    writers: dict[str, list[int]] = {}
    for number, each in enumerate(kernel.instructions):
        for _, name in destinations(each):
            writers.setdefault(name, []).append(number)
    found: dict[int, set[int]] = {}
    for sink, each in enumerate(kernel.instructions):
        counted = _counted(each)
        if not counted and not each.opcode.startswith(("bra", "brx")):
            continue
        seen, pending = {sink}, [sink]
        while pending:
            number = pending.pop()
            found.setdefault(number, set()).add(sink)
            instruction = kernel.instructions[number]
            if number == sink and counted:
                instruction = dataclasses.replace(instruction, operands=tuple(counted))
            for name in mentioned(instruction):
                for other in writers.get(name, ()):
                    if other not in seen:
                        seen.add(other)
                        pending.append(other)
    return found


MODIFIERS = (
    (".lt", ".le"), (".gt", ".ge"), (".eq", ".ne"), ("add.", "sub."), ("and.", "or."),
    ("xor.", "or."), ("shl.", "shr."), ("min.", "max."), (".lo", ".hi"), (".s32", ".u32"),
    (".x4", ".x2"), (".x2", ".x4"), (".v4", ".v2"),
    (".parity", ""), ("cta_group::1", "cta_group::2"), ("shared::cta", "shared::cluster"),
    (".param", ""), (".trans", ""), (".expect_tx", ""), ("1d", "2d"), ("2d", "3d"), ("3d", "2d"),
    (".multicast::cluster", ""), ("kind::f16", "kind::tf32"), ("kind::f8f6f4", "kind::f16"),
    ("e4m3", "e5m2"), ("bf16", "f16"), ("m64n64", "m64n32"), ("n128", "n64"),
    ("128x256b", "128x128b"),
    (".test_wait", ".try_wait"), (".arrive", ".arrive.noComplete"), ("up.", "down."),
    (".idx", ".bfly"), (".wide", ".lo"), ("scale_vec::2X", "scale_vec::4X"), (".add", ".max"),
    (".release", ".relaxed"), (".acquire", ".relaxed"), (".cta.", ".cluster."),
)  # fmt: skip
_REGISTER = re.compile(r"%(?:rd|rs|r|p)\d+")
_NUMBER = re.compile(r"(?<![\w%.])-?(?:0[xX][0-9a-fA-F]+|\d+)(?![\w.])")


def _but_one(register: str, number: int, predicate: str, text: str) -> str:
    """An instruction that is not executed where a special register is a number."""
    combined = ("ne.and", f", {predicate}") if predicate else ("ne", "")
    return (
        "{\n\t.reg .pred others;\n\t.reg .b32 which;\n"
        f"\tmov.u32 which, {register};\n"
        f"\tsetp.{combined[0]}.u32 others, which, {number}{combined[1]};\n"
        f"\t@others {text}\n}}"
    )


class Mutator:
    """The mutations of one PTX module.

    Args:
        ptx: the module.
        block: the ``%ctaid.x`` for which an instruction may be left out.
        name: of the kernel, in a module with several.
    """

    def __init__(self, ptx: str, block: int = 0, name: str = "") -> None:
        self.ptx, self.block = ptx, block
        self.starts = [0, *(match.end() for match in re.finditer("\n", ptx))]
        entries = [each for each in parse_ptx(ptx).kernels if each.is_entry]
        (self.kernel,) = [each for each in entries if name in ("", each.name)]
        self.reached = reached(self.kernel)
        self.threads = int((*self.kernel.directives.get("reqntid", ()), 32)[0])
        self.written: dict[str, list[tuple[int, str]]] = {}
        for number, each in enumerate(self.kernel.instructions):
            for _, name in destinations(each):
                kind = _REGISTER.fullmatch(name)
                if kind:
                    self.written.setdefault(name.rstrip("0123456789"), []).append((number, name))

    def span(self, instruction: Instruction) -> tuple[int, int] | None:
        """Where an instruction stands, with its guard; None if that is not clear."""
        begin = self.starts[instruction.line - 1]
        at = self.ptx.find(instruction.opcode, begin)
        line_end = self.ptx.find("\n", begin)
        if not begin <= at < line_end or instruction.opcode in self.ptx[at + 1 : line_end]:
            return None
        stop = self.ptx.find(";", at) + 1
        guard = f"@{instruction.predicate}"
        if instruction.predicate:
            at = self.ptx.rfind(guard, begin, at)
            if at < 0:
                return None
        return at, stop

    def all(self, random_: random.Random) -> Iterator[Mutation]:
        """One mutation of each kind at each place, in the order of the text."""
        for number in sorted(self.reached):
            instruction = self.kernel.instructions[number]
            span = self.span(instruction)
            if span is None:
                continue
            sinks = [self.kernel.instructions[i] for i in sorted(self.reached[number])]
            names = tuple(sorted({".".join(each.opcode.split(".")[:3]) for each in sinks}))
            lines = tuple(each.line for each in sinks)
            for kind, text in self.changes(number, instruction, *span, random_):
                if self.matters(instruction, text):
                    yield Mutation(
                        kind, instruction.line, instruction.opcode, *span, text, names, lines
                    )
            changed = self.exchanged(number, *span)
            if changed is not None:
                stop, text = changed
                yield Mutation(
                    "exchanged", instruction.line, instruction.opcode, span[0], stop, text, names,
                    lines,
                )  # fmt: skip

    def exchanged(self, number: int, start: int, stop: int) -> tuple[int, str] | None:
        """The end of the next instruction, and both of them in the other order; None at the end of
        a block, and where that is not clear."""
        instructions = self.kernel.instructions
        following = self.span(instructions[number + 1]) if instructions[number + 1 :] else None
        if following is None or instructions[number].scope != instructions[number + 1].scope:
            return None
        between = self.ptx[stop : following[0]]
        code = re.sub(r"//[^\n]*|\.loc[^\n]*", "", between)
        branches = ("bra", "brx", "ret", "exit")
        if code.strip() or any(
            each.opcode.startswith(branches) for each in instructions[number : number + 2]
        ):
            return None
        other = self.ptx[following[0] : following[1]]
        return following[1], f"{other}{between}{self.ptx[start:stop]}"

    @staticmethod
    def matters(instruction: Instruction, text: str) -> bool:
        """Whether a change is one of what counts of an instruction."""
        guard, _, rest = text.partition(instruction.opcode)
        counted = _counted(instruction)
        if not counted or not rest or text.count(instruction.opcode) > 1:
            return True
        operands = tuple(split_operands(rest.strip().rstrip(";")))
        same = _counted(dataclasses.replace(instruction, operands=operands)) == counted
        return not same or guard.strip("@ \t") != instruction.predicate

    def changes(
        self, number: int, instruction: Instruction, start: int, stop: int, random_: random.Random
    ) -> Iterator[tuple[str, str]]:
        text = self.ptx[start:stop]
        at = text.index(instruction.opcode)
        guard, rest = text[:at], text[at + len(instruction.opcode) :]
        opcode = instruction.opcode
        counted = "".join(_counted(instruction)) or rest
        whole = opcode.startswith((*WHOLE, *ADDRESSED))
        # ------ constants
        for match in _NUMBER.finditer(rest):
            if whole and match[0] not in counted:
                continue
            value = int(match[0], 0)
            other = random_.choice(
                [value + 1, value - 1, value ^ 16, value + 1024, value * 2, 0, value ^ 64]
            )
            if other != value:
                yield (
                    "constant",
                    f"{guard}{opcode}{rest[: match.start()]}{other}{rest[match.end() :]}",
                )
        # ------ registers
        for match in _REGISTER.finditer(rest):
            name = match[0]
            if (whole and name not in counted) or (
                not whole and name in rest[: rest.find(",")] and match.start() < rest.find(",")
            ):
                continue
            known = self.written.get(name.rstrip("0123456789"), [])
            upto = bisect_left(known, (number, ""))
            near = [other for _, other in known[max(0, upto - 40) : upto] if other != name]
            if near:
                other = random_.choice(near)
                yield (
                    "register",
                    f"{guard}{opcode}{rest[: match.start()]}{other}{rest[match.end() :]}",
                )
        # ------ bases
        parts = instruction.operands
        if opcode.startswith(("add.", "or.b")) and len(parts) == 3:
            width = opcode.rpartition(".")[2]
            for kept in parts[1:]:
                yield "base dropped", f"{guard}mov.b{width[1:]} {parts[0]}, {kept};"
        for match in re.finditer(r"\[(%\w+)\s*\+\s*-?\d+\]", rest):
            yield (
                "offset dropped",
                f"{guard}{opcode}{rest[: match.start()]}[{match[1]}]{rest[match.end() :]}",
            )
        if "global_smem" in rest:
            yield "symbol dropped", f"{guard}{opcode}{re.sub('global_smem', '0', rest)}"
            yield (
                "symbol doubled",
                text
                + f"\n\tadd.s{64 if '64' in opcode else 32} {parts[0]}, {parts[0]}, {parts[1]};"
                if opcode.startswith("mov")
                else text,
            )
        # ------ instructions
        base = opcode.partition(".")[0]
        if base in ("mov", "cvta", "cvt") and len(parts) == 2 and base == "cvta":
            yield "deleted", f"{guard}mov.b64 {parts[0]}, {parts[1]};"
        elif base not in ("bra", "brx") or not instruction.predicate:
            yield "deleted", ""
        if base not in ("bra", "brx"):
            yield "duplicated", f"{text}\n\t{text}"
        # ------ threads and blocks
        if base not in ("bra", "brx"):
            thread = random_.randrange(self.threads)
            for register, one in (("%tid.x", thread), ("%ctaid.x", self.block)):
                changed = _but_one(register, one, instruction.predicate, f"{opcode}{rest}")
                yield f"all but one {register}", changed
        # ------ order
        if base in ("sub", "shl", "shr", "div", "rem", "selp", "setp") and len(parts) > 2:
            exchanged = (parts[0], parts[2], parts[1], *parts[3:])
            yield "operands exchanged", f"{guard}{opcode} {', '.join(exchanged)};"
        if base == "bra":
            labels = sorted({label for label, _ in self.kernel.labels if "BB" in label})
            if labels:
                yield "another target", f"{guard}{opcode} {random_.choice(labels)};"
        # ------ modifiers
        for one, other in MODIFIERS:
            for old, new in ((one, other), (other, one)):
                if old and old in opcode and opcode.replace(old, new, 1) != opcode:
                    if new and new in opcode and not old.startswith((".", "add", "sub")):
                        continue
                    yield "modifier", f"{guard}{opcode.replace(old, new, 1)}{rest}"
        # ------ guards
        if instruction.predicate:
            inverted = instruction.predicate
            inverted = inverted[1:] if inverted[0] == "!" else f"!{inverted}"
            yield "guard inverted", f"@{inverted} {opcode}{rest}"
            if base not in ("bra", "brx"):
                yield "guard dropped", f"{opcode}{rest}"


def sample(ptx: str, count: int, seed: int, block: int = 0) -> list[Mutation]:
    """So many mutations of a module: first an instruction is chosen, then one of its changes."""
    random_ = random.Random(seed)
    by_place: dict[int, list[Mutation]] = {}
    for each in Mutator(ptx, block).all(random_):
        by_place.setdefault(each.start, []).append(each)
    places = sorted(by_place)
    random_.shuffle(places)
    found = []
    while places and len(found) < count:
        for place in list(places):
            changes = by_place[place]
            found.append(changes.pop(random_.randrange(len(changes))))
            if not changes:
                places.remove(place)
            if len(found) >= count:
                break
    return found
