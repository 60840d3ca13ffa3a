"""What the asynchronous and tensor-core instructions of a kernel do, in words and as values.

TMA copies, mbarriers, MMAs, tensor memory, and the fences and waits between them. The operands'
places are those of the PTX ISA, in the sections named after the instructions. Values are what
`Folder` knows: of the first thread of the first block, the first time through a loop; where they
hang on that, the words say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import CTA_ADDRESS_BITS
from triton_ext.hardware.instruction_descriptor import (
    BLOCK_SCALED_FIELDS,
    DENSE_FIELDS,
    KINDS,
    InstructionDescriptor,
)
from triton_ext.hardware.smem_descriptor import FIELDS, SWIZZLE_CODES, SmemDescriptor
from triton_ext.hardware.tensor_memory import check_allocation
from triton_ext.hardware.tensor_memory_access import TmemAccess
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.known_bits import Bits
from triton_ext.ptx.parse import Instruction, split_operands

CACHE_POLICIES = {
    0x1000000000000000: "evict_normal",
    0x12F0000000000000: "evict_first",
    0x14F0000000000000: "evict_last",
}
"""The constants that CUTLASS gives to TMA (``cute/arch/copy_sm90_desc.hpp``, CacheHintSm90)."""

_START_ADDRESS = FIELDS[90]["start_address"]
_MAY_BE_UNKNOWN = (
    "negate_a", "negate_b", "saturate", "sparsity_selector", "max_shift", "scale_factor_a_id",
    "scale_factor_b_id",
)  # fmt: skip
"""Fields of an instruction descriptor without which the others can still be read."""


class Notes:
    """What is known of one instruction: lines for people, values for programs.

    Args:
        instruction: to explain.
        folder: of its kernel.
        arch: 90 or 100.
        symbols: shared variables; with more than one, addresses name theirs.
    """

    def __init__(
        self,
        instruction: Instruction,
        folder: Folder,
        arch: int,
        symbols: Collection[str] = (),
    ) -> None:
        self.instruction, self.folder, self.arch = instruction, folder, arch
        self.parts = instruction.opcode.split(".")
        self.lines: list[str] = []
        self.values: dict[str, Any] = {}
        self._symbols = symbols
        for prefix, explain in _EXPLANATIONS.items():
            if instruction.opcode.startswith(prefix):
                explain(self)
                break

    def operand(self, index: int) -> str:
        """An operand's text, or "" if the instruction is short of it."""
        operands = self.instruction.operands
        return operands[index] if -len(operands) <= index < len(operands) else ""

    def add(self, line: str, **values: Any) -> None:
        """A line, and the values that it says."""
        if line:
            self.lines.append(line)
        self.values.update(values)

    def bits(self, text: str, width: int) -> Bits:
        """What is known of an operand."""
        return self.folder.operand(text, width, self.instruction)

    def number(self, text: str, width: int = 32) -> int | None:
        """An operand's value, if all of it is known."""
        bits = self.bits(text, width)
        return bits.field(0, width) if text else None

    def root(self, text: str) -> str:
        """An operand or address as the register, parameter or symbol that it comes from."""
        name, offset = self.folder.root(text, self.instruction)
        kernel = self.folder.kernel.name
        if kernel and name.strip("[]").startswith(kernel + "_param_"):
            name = name.replace(kernel + "_", "", 1)
        return f"{name} + {offset}" if offset > 0 else f"{name} - {-offset}" if offset else name

    def condition(self, text: str) -> str:
        """For which thread, block and time a known value holds: "" if for all."""
        origins = self.folder.origins(text, self.instruction)
        said = []
        if any(name.startswith(("%tid", "%lane", "%warp")) for name in origins):
            said.append("in thread 0")
        if any(name.startswith(("%ctaid", "%cluster")) for name in origins):
            said.append("in block 0")
        if any(self.folder.is_reassigned(name) for name in origins):
            said.append("at first")
        return "".join(f" {part}" for part in said)

    def amount(self, text: str, width: int = 32) -> str:
        """An operand as a number or, if it is not known, as what it comes from."""
        value = self.number(text, width)
        return self.root(text) if value is None else f"{value}{self.condition(text)}"

    def known(self, text: str, width: int = 32) -> int | str | None:
        """An operand for programs: the number, or the name of what it comes from."""
        value = self.number(text, width)
        return value if value is not None else self.root(text) if text else None

    def place(self, text: str) -> str:
        """A shared-memory address in words."""
        value = self.shared_address(text)
        return self.root(text) if value is None else self.at(value, text)

    def at(self, value: int, text: str) -> str:
        """The shared-memory address `value`, which an operand was found to hold, in words."""
        names = self.symbols(text) if len(self._symbols) > 1 else ()
        return f"{'/'.join(names)}+{value}{self.condition(text)}"

    def tensor_memory(self, text: str) -> str:
        """An address in tensor memory: ``[+8] + 4``, 4 behind what tcgen05.alloc wrote to +8."""
        name, offset = self.folder.root(text, self.instruction)
        loaded = self.folder.definition(name, self.instruction)
        if (
            loaded is not None
            and loaded.opcode.startswith("ld.shared")
            and len(loaded.operands) > 1
        ):
            own = Notes(loaded, self.folder, self.arch, self._symbols)
            if own.shared_address(loaded.operands[1]) is not None:
                place = f"[{own.place(loaded.operands[1])}]"
                return f"{place} + {offset}" if offset > 0 else place
        return self.root(text)

    def symbols(self, text: str) -> list[str]:
        """The shared variables that an address counts from."""
        origins = self.folder.origins(text, self.instruction)
        return sorted(origins.intersection(self._symbols))

    def shared_address(self, text: str) -> int | None:
        """A shared-memory address within its CTA, from the start of its symbol."""
        bits = self.folder.address(text, self.instruction)
        return bits.field(0, CTA_ADDRESS_BITS) if text else None

    def address_values(self, key: str, text: str) -> dict[str, Any]:
        """A shared-memory address for programs: the number or a name, and what it counts from."""
        value = self.shared_address(text)
        return {
            key: self.root(text) if value is None else value,
            f"{key}_symbols": self.symbols(text),
        }


def _known_fields(bits: Bits, arch: int) -> list[str]:
    """What the upper half of a descriptor says, where the lower one is not known."""
    stride = bits.field(*FIELDS[arch]["stride_byte_offset"])
    code = bits.field(*FIELDS[arch]["swizzle"])
    swizzle = SWIZZLE_CODES[arch].get(code) if code is not None else None
    words = [f"SBO {CHUNK_BYTES * stride}"] if stride is not None else []
    if swizzle:
        words.append(f"swizzle {swizzle[0]}B" if swizzle[0] else "no swizzle")
    return words


def _matrix(notes: Notes, name: str, text: str) -> None:
    """A matrix descriptor; its start address only where it is known."""
    bits = notes.bits(text, 64)
    rest = bits.field(16, 48)
    if rest is None:
        known = _known_fields(bits, notes.arch)
        but = ", but for " + ", ".join(known) if known else ""
        notes.add(f"{name}: descriptor {notes.root(text)}, not known at compile time{but}")
        notes.values[name] = {"register": notes.root(text)}
        return
    start = bits.field(*_START_ADDRESS)
    reserved = bits.value & 0xFFFF & ~((1 << _START_ADDRESS[1]) - 1)
    value = rest << 16 | reserved | (start or 0)
    values: dict[str, Any] = {"descriptor": f"{value:#018x}", "start_address": None}
    notes.values[name] = values
    try:
        decoded = SmemDescriptor.decode(value, notes.arch)
    except LayoutError as error:
        notes.add(f"{name}: ILLEGAL descriptor {value:#018x}: {error.rule}")
        values["illegal"] = error.rule
        return
    if start is not None:
        values["start_address"] = decoded.start_address
        values["symbols"] = notes.symbols(text)
    at = (
        notes.at(decoded.start_address, text)
        if start is not None
        else "at a start address that is not known"
    )
    swizzle = f"{decoded.swizzle_byte_width}B" if decoded.swizzle_byte_width else "none"
    extra = f", atomicity {decoded.atomicity}B" if decoded.atomicity == 32 else ""
    extra += f", base offset {decoded.base_offset}" if decoded.base_offset else ""
    extra += ", LBO is an address" if decoded.lbo_mode else ""
    values |= {
        "leading_byte_offset": decoded.leading_byte_offset,
        "stride_byte_offset": decoded.stride_byte_offset,
        "swizzle_byte_width": decoded.swizzle_byte_width,
        "atomicity": decoded.atomicity,
        "base_offset": decoded.base_offset,
        "lbo_mode": decoded.lbo_mode,
    }
    notes.add(
        f"{name}: {value:#018x} {at}, LBO {decoded.leading_byte_offset},"
        f" SBO {decoded.stride_byte_offset}, swizzle {swizzle}{extra}"
    )


# ------------------------------------------------------------------------------------ MMA


def _accumulates(notes: Notes, text: str) -> None:
    """The predicate scale-d (wgmma), enable-input-d (tcgen05.mma)."""
    value = notes.number(text, 1)
    if value is None:
        notes.add(f"D = A x B, or D + A x B if {notes.root(text)}", accumulates=None)
    else:
        words = "D + A x B" if value else "A x B (what D held is not read)"
        notes.add(f"D = {words}{notes.condition(text)}", accumulates=bool(value))


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")


def _wgmma(notes: Notes) -> None:
    parts, operands = notes.parts, list(notes.instruction.operands)
    shape = next((_SHAPE.fullmatch(part) for part in parts if _SHAPE.fullmatch(part)), None)
    if shape is not None:
        m, n, k = map(int, shape.groups())
        types = [part for part in parts[parts.index(shape[0]) + 1 :] if part != "satfinite"]
        d, a, b = (types + ["?"] * 3)[:3]
        notes.add(
            f"D[{m}x{n}] {d} = A[{m}x{k}] {a} x B[{k}x{n}] {b}",
            m=m, n=n, k=k, d_type=d, a_type=a, b_type=b,
        )  # fmt: skip
    if notes.operand(1).startswith("{"):
        notes.add("A: in registers", A="registers")
    else:
        _matrix(notes, "A", notes.operand(1))
    _matrix(notes, "B", notes.operand(2))
    after = operands[3:]
    if ".sp." in notes.instruction.opcode:
        notes.add("A is 2:4 sparse", sparse=True)
        after = after[2:]
    if after:
        _accumulates(notes, after[0])
    signs, transposed = after[1:3], after[3:5]
    names = ("A", "B")
    negated = [
        name for name, sign in zip(names, signs, strict=False) if notes.number(sign, 8) == 0xFF
    ]
    if negated:
        notes.add(f"negated: {', '.join(negated)}", negated=negated)
    if transposed:
        of = names[-len(transposed) :]
        majors = {
            name: "MN" if notes.number(text) else "K"
            for name, text in zip(of, transposed, strict=True)
            if notes.number(text) is not None
        }
        if majors:
            notes.add(
                ", ".join(f"{name} is {major}-major" for name, major in majors.items()),
                majors=majors,
            )


def _tcgen05_mma(notes: Notes) -> None:
    parts = notes.parts
    _cta_group(notes)
    where = notes.tensor_memory(notes.operand(0))
    notes.add(f"D: tensor memory {where}", D=where)
    if notes.operand(1).startswith("["):
        where = notes.tensor_memory(notes.operand(1))
        notes.add(f"A: in tensor memory, {where}", A={"tensor_memory": where})
    else:
        _matrix(notes, "A", notes.operand(1))
    _matrix(notes, "B", notes.operand(2))
    index = 3
    if "sp" in parts:
        where = notes.tensor_memory(notes.operand(index))
        notes.add(f"A is 2:4 sparse, metadata in tensor memory {where}", sparse=True)
        index += 1
    kind = next((part[6:] for part in parts if part.startswith("kind::")), "")
    if kind in KINDS:
        _instruction_descriptor(notes, kind, notes.operand(index))
    index += 1
    if "block_scale" in parts:
        for name in ("A", "B"):
            where = notes.tensor_memory(notes.operand(index))
            notes.add(
                f"scale factors of {name}: tensor memory {where}",
                **{f"scale_{name.lower()}": where},
            )
            index += 1
    elif notes.operand(index).startswith("{"):
        masks = [notes.number(text) for text in split_operands(notes.operand(index)[1:-1])]
        if any(masks):
            notes.add("some lanes of D are not written", disable_output_lane=masks)
        index += 1
    if notes.operand(index):
        _accumulates(notes, notes.operand(index))
    for part in parts:
        if part.startswith("scale_vec::") or part in ("block16", "block32"):
            notes.add(f"scale vectors: {part}", scale_vector=part)
    if "ws" in parts:
        notes.add("weight stationary", weight_stationary=True)
    uses = [part for part in notes.instruction.opcode.split("collector::")[1:] if part]
    if uses:
        words = [use.strip(".").replace("::", " ").replace(".", " ") for use in uses]
        notes.add(f"collector buffer: {', '.join(words)}", collector=words)


def _instruction_descriptor(notes: Notes, kind: str, text: str) -> None:
    bits = notes.bits(text, 32)
    fields = BLOCK_SCALED_FIELDS if KINDS[kind].block_scaled else DENSE_FIELDS
    unknown = [name for name, (first, width) in fields.items() if bits.field(first, width) is None]
    values: dict[str, Any] = {"unknown_fields": unknown}
    notes.values["instruction_descriptor"] = values
    if not set(unknown) <= set(_MAY_BE_UNKNOWN):
        notes.add(f"instruction descriptor {notes.root(text)}, not known at compile time")
        return
    value = bits.value & 0xFFFFFFFF
    values["value"] = f"{value:#010x}"
    try:
        decoded = InstructionDescriptor.decode(value, kind)
    except LayoutError as error:
        notes.add(f"ILLEGAL instruction descriptor {value:#010x}: {error.rule}")
        values["illegal"] = error.rule
        return
    for line in decoded.describe():
        notes.add(f"{value:#010x}: {line}")
    if unknown:
        notes.add(f"{value:#010x}: not known at compile time: {', '.join(unknown)}")
    values |= {
        "kind": kind, "m": decoded.m, "n": decoded.n, "k": decoded.k, "a_type": decoded.a_type,
        "b_type": decoded.b_type, "d_type": decoded.d_type, "a_major": decoded.a_major,
        "b_major": decoded.b_major,
    }  # fmt: skip
    try:
        decoded.check_shape(notes.values.get("cta_group", 1))
    except LayoutError as error:
        notes.add(f"ILLEGAL shape: {error.argument} = {error.value}: {error.rule}")
        values["illegal"] = str(error)


def _cta_group(notes: Notes) -> None:
    group = next((part[11:] for part in notes.parts if part.startswith("cta_group::")), "")
    if group.isdecimal():
        notes.values["cta_group"] = int(group)


# ------------------------------------------------------------------------------------ TMA

_LOAD_MODES = ("tile", "im2col", "tile::gather4", "tile::scatter4", "im2col::w", "im2col::w::128")


def _cluster_mask(notes: Notes, text: str) -> None:
    mask = notes.number(text, 16)
    if mask is None:
        notes.add(f"multicast to the CTAs of mask {notes.root(text)}", multicast=notes.root(text))
    else:
        ctas = [bit for bit in range(16) if mask >> bit & 1]
        words = ", ".join(map(str, ctas)) or "none"
        notes.add(f"multicast to CTAs {words}{notes.condition(text)}", multicast=ctas)


def _cache_policy(notes: Notes, text: str) -> None:
    value = notes.number(text, 64)
    created = notes.folder.definition(text, notes.instruction)
    if value is not None:
        name = CACHE_POLICIES.get(value, "")
        notes.add(f"cache policy {value:#x}" + (f" ({name})" if name else ""), cache_policy=value)
    elif created is not None and created.opcode.startswith("createpolicy"):
        notes.add(f"cache policy of {created.opcode}", cache_policy=created.opcode)
    else:
        notes.add(f"cache policy {notes.root(text)}", cache_policy=notes.root(text))


def _tail(notes: Notes, operands: list[str]) -> list[str]:
    """Explain a copy's last operands, the CTA mask and the cache policy; return the others."""
    policy = operands.pop() if "L2::cache_hint" in notes.parts and operands else ""
    mask = operands.pop() if "multicast::cluster" in notes.parts and operands else ""
    if mask:
        _cluster_mask(notes, mask)
    if policy:
        _cache_policy(notes, policy)
    return operands


def _barrier(notes: Notes, text: str) -> None:
    notes.add(
        f"arrives at the mbarrier at {notes.place(text)}", **notes.address_values("mbarrier", text)
    )


def _spaces(notes: Notes, after: int) -> tuple[str, str]:
    """(destination, source): the state spaces of an opcode, which stand side by side."""
    spaces = [part for part in notes.parts[after:] if re.match(r"global|shared|L2$", part)]
    target, source = [*spaces, "?", "?"][:2]
    notes.values |= {"destination": target, "source": source}
    return target, source


_SPACE_WORDS = {
    "shared::cluster": "shared memory of the cluster",
    "shared::cta": "shared memory",
    "shared": "shared memory",
    "global": "global memory",
    "L2": "the L2 cache",
}


def _tensor_copy(notes: Notes) -> None:
    parts = notes.parts
    dimensions = next((part for part in parts if re.fullmatch(r"[1-5]d", part)), "")
    target, source = _spaces(notes, parts.index(dimensions) if dimensions else 0)
    loads = target.startswith("shared")
    operands = list(notes.instruction.operands)
    tensor = next((text for text in operands[:2] if "{" in text), "")
    others = [text for text in operands if text != tensor]
    inside = [*split_operands(tensor.strip("[]")), "", ""]
    coordinates = split_operands(inside[1].strip("{}"))
    name = "TMA copy"
    if "prefetch" in parts:
        name, place = "TMA prefetch", "the L2 cache"
    else:
        near = others.pop(0) if others else ""
        place = f"{_SPACE_WORDS.get(target if loads else source, '?')} {notes.place(near)}"
        notes.values |= notes.address_values("shared_address", near)
    if "reduce" in parts:
        operation = next((part for part in parts if part in _REDUCTIONS), "")
        name = f"TMA reduction ({operation})"
        notes.values["reduction"] = operation
    mode = next((part for part in parts if part in _LOAD_MODES and part != "tile"), "")
    rank = dimensions[:1]
    shown = ", ".join(notes.amount(text) for text in coordinates)
    there = f"tensor map {notes.root(inside[0])} at {{{shown}}}"
    ways = [place, there] if not loads and "prefetch" not in parts else [there, place]
    notes.add(
        f"{name}, {rank} dimension{'s' if rank != '1' else ''}{f', {mode}' if mode else ''}:"
        f" {' -> '.join(ways)}",
        dimensions=int(rank) if rank else None,
        mode=mode or "tile",
        tensor_map=notes.root(inside[0]),
        coordinates=[notes.known(text) for text in coordinates],
    )
    if loads and others and others[0].startswith("["):
        _barrier(notes, others.pop(0))
    _cta_group(notes)
    if notes.values.get("cta_group") == 2:
        notes.add("cta_group::2: the mbarrier may be that of either CTA of the pair")
    _tail(notes, others)


_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def _bulk_copy(notes: Notes) -> None:
    """One dimension, without a tensor map."""
    operation = next((part for part in notes.parts if part in _REDUCTIONS), "")
    target, source = _spaces(notes, 3)
    operands = list(notes.instruction.operands)
    ways = {}
    for key, space in (("destination", target), ("source", source)):
        ways[key] = _SPACE_WORDS.get(space, "?")
        if operands and space.startswith("shared"):
            notes.values |= notes.address_values(f"{key}_address", operands[0])
            ways[key] += f" {notes.place(operands.pop(0))}"
        elif operands and space == "global":
            notes.values[f"{key}_address"] = notes.root(operands[0])
            ways[key] += f" {notes.root(operands.pop(0))}"
    size = operands.pop(0) if operands else ""
    name = f"bulk reduction ({operation})" if operation else "bulk copy"
    notes.add(
        f"{name}, {notes.amount(size)} bytes: {ways['source']} -> {ways['destination']}",
        bytes=notes.known(size),
    )
    if operands and operands[0].startswith("["):
        _barrier(notes, operands.pop(0))
    _tail(notes, operands)


def _group(notes: Notes) -> None:
    """cp.async.bulk and wgmma: commit_group, wait_group N."""
    name = "wgmma" if notes.parts[0] == "wgmma" else "bulk copies"
    if "commit_group" in notes.parts:
        notes.add(f"the {name} so far, which are in no group, become one")
        return
    count = notes.operand(0)
    which = "all" if notes.number(count) == 0 else f"all but the last {notes.amount(count)}"
    until = f"{which} groups of {name} are done"
    if "read" in notes.parts:
        until = f"{which} groups of {name} have read shared memory, so that it may be overwritten"
    notes.add(f"waits until {until}", pending=notes.known(count))


# ------------------------------------------------------------------------------- mbarrier


def _mbarrier(notes: Notes) -> None:
    operands = notes.instruction.operands
    place = next((i for i, text in enumerate(operands) if text.startswith("[")), None)
    what = notes.parts[1] if len(notes.parts) > 1 else ""
    if what == "pending_count":
        notes.add(f"how many arrivals the phase of the token {notes.root(notes.operand(1))} lacks")
    if place is None:
        return
    text, after = operands[place], operands[place + 1 :]
    where = notes.place(text)
    values = notes.address_values("mbarrier", text)
    remote = " (of a CTA of the cluster)" if "shared::cluster" in notes.parts else ""
    last = notes.operand(-1)
    if what == "init":
        notes.add(
            f"mbarrier at {where}: a phase takes {_arrivals(notes, last)}",
            count=notes.known(last), **values,
        )  # fmt: skip
    elif "expect_tx" in notes.parts or what == "complete_tx":
        verb = "arrives and expects" if what.startswith("arrive") else "expects"
        verb = "completes" if what == "complete_tx" else verb
        notes.add(
            f"{verb} {notes.amount(last)} bytes, at the mbarrier at {where}{remote}",
            bytes=notes.known(last), **values,
        )  # fmt: skip
    elif what in ("arrive", "arrive_drop"):
        count = after[0] if after else "1"
        drop = ", and will not again" if what == "arrive_drop" else ""
        notes.add(
            f"{_arrivals(notes, count)} at the mbarrier at {where}{remote}{drop}",
            count=notes.known(count), **values,
        )  # fmt: skip
    elif what in ("try_wait", "test_wait"):
        verb = "waits for" if what == "try_wait" else "asks"
        phase = after[0] if after else ""
        if "parity" in notes.parts:
            values["parity"] = notes.known(phase)
            words = f"the phase of parity {notes.amount(phase)}"
        else:
            words = f"the phase of the token {notes.root(phase)}"
        notes.add(f"{verb} the mbarrier at {where}{remote}: {words}", **values)
    else:
        notes.add(f"mbarrier at {where}", **values)


def _arrivals(notes: Notes, text: str) -> str:
    return f"{notes.amount(text)} arrival{'s' if notes.number(text) != 1 else ''}"


# -------------------------------------------------------------------------- tensor memory


def _allocation(notes: Notes) -> None:
    frees = "dealloc" in notes.parts
    text = notes.operand(1)
    columns = notes.number(text)
    _cta_group(notes)
    verb = "frees" if frees else "allocates"
    pair = ", in both CTAs of the pair" if notes.values.get("cta_group") == 2 else ""
    where = (
        f"at {notes.tensor_memory(notes.operand(0))}"
        if frees
        else f"its address goes to {notes.place(notes.operand(0))}"
    )
    notes.add(
        f"{verb} {notes.amount(text)} columns of tensor memory{pair}; {where}",
        columns=notes.known(text),
    )
    if columns is not None:
        try:
            check_allocation(columns)
        except LayoutError as error:
            notes.add(f"ILLEGAL: {error.rule}", illegal=error.rule)


_ACCESS = re.compile(r"(?:16x64b|16x128b|16x256b|32x32b|16x32bx2)")


def _tmem_access(notes: Notes) -> None:
    """tcgen05.ld, tcgen05.st."""
    store = notes.parts[1] == "st"
    shape = next((part for part in notes.parts if _ACCESS.fullmatch(part)), "")
    repeat = next((part[1:] for part in notes.parts if re.fullmatch(r"x\d{1,3}", part)), "")
    pack = any(part.endswith("pack::16b") for part in notes.parts)
    operands = notes.instruction.operands
    address = next((text for text in operands if text.startswith("[")), "")
    registers = next((text for text in operands if text.startswith("{")), "")
    count = len(split_operands(registers.strip("{}"))) if registers else 1
    where = notes.tensor_memory(address)
    split = None
    if shape == "16x32bx2":
        split = notes.number(operands[operands.index(address) + 1]) if address else None
    values: dict[str, Any] = {
        "shape": shape, "repeat": int(repeat) if repeat else None, "address": where,
        "registers": count,
    }  # fmt: skip
    way = "to" if store else "from"
    try:
        access = TmemAccess(shape, int(repeat or 1), pack, split)
    except LayoutError as error:
        notes.add(f"{count} registers {way} tensor memory {where}; {error.rule}", **values)
        return
    values["columns"] = access.columns
    packed = ", two columns of 16 bits in a register" if pack else ""
    notes.add(
        f"{count} registers of each thread {way} tensor memory {where}{notes.condition(address)}:"
        f" {'16' if shape.startswith('16') and shape != '16x32bx2' else '32'} lanes a warp,"
        f" {access.columns} columns ({shape} x {repeat or 1}){packed}",
        **values,
    )
    if access.registers != count and "red" not in notes.parts:
        rule = f"{shape}.x{repeat} moves {access.registers} registers, not {count}"
        notes.add(f"ILLEGAL: {rule}", illegal=rule)


def _tmem_copy(notes: Notes) -> None:
    """tcgen05.cp: shared memory -> tensor memory."""
    shape = next((part for part in notes.parts if re.fullmatch(r"\d+x\d+b", part)), "")
    warps = next((part for part in notes.parts if part.startswith("warpx")), "")
    formats = [part for part in notes.parts if re.match(r"b\d+x\d+", part)]
    _cta_group(notes)
    size = re.fullmatch(r"(\d+)x(\d+)b", shape)
    words = f"{size[1]} lanes x {size[2]} bits" if size else "?"
    words += f", for {warps.replace('::', ' ')}" if warps else ""
    words += f", from {formats[1]} to {formats[0]}" if len(formats) == 2 else ""
    where = notes.tensor_memory(notes.operand(0))
    notes.add(
        f"shared -> tensor memory {where}: {words}",
        shape=shape, address=where, multicast=warps or None,
    )  # fmt: skip
    _matrix(notes, "source", notes.operand(1))


def _commit(notes: Notes) -> None:
    _cta_group(notes)
    notes.add(
        f"the mbarrier at {notes.place(notes.operand(0))} is arrived at when the tcgen05.mma, cp"
        " and shift so far are done",
        **notes.address_values("mbarrier", notes.operand(0)),
    )
    if "multicast::cluster" in notes.parts and notes.operand(1):
        _cluster_mask(notes, notes.operand(1))


def _shift(notes: Notes) -> None:
    where = notes.tensor_memory(notes.operand(0))
    notes.add(f"shifts 32-byte rows down, in tensor memory {where}", address=where)


def _said(words: str) -> Callable[[Notes], None]:
    return lambda notes: notes.add(words)


_EXPLANATIONS: Mapping[str, Callable[[Notes], None]] = {
    "wgmma.mma_async": _wgmma,
    "wgmma.fence": _said("registers and shared memory written so far are seen by later wgmma"),
    "wgmma.": _group,
    "tcgen05.mma": _tcgen05_mma,
    "tcgen05.alloc": _allocation,
    "tcgen05.dealloc": _allocation,
    "tcgen05.relinquish_alloc_permit": _said("this CTA allocates no more tensor memory"),
    "tcgen05.ld": _tmem_access,
    "tcgen05.st": _tmem_access,
    "tcgen05.cp": _tmem_copy,
    "tcgen05.shift": _shift,
    "tcgen05.commit": _commit,
    "tcgen05.wait::ld": _said("waits for this thread's tcgen05.ld"),
    "tcgen05.wait::st": _said("waits for this thread's tcgen05.st"),
    "tcgen05.fence::before_thread_sync": _said(
        "tcgen05 instructions so far come before the next synchronization of threads"
    ),
    "tcgen05.fence::after_thread_sync": _said(
        "later tcgen05 instructions come after the last synchronization of threads"
    ),
    "cp.async.bulk.commit_group": _group,
    "cp.async.bulk.wait_group": _group,
    "cp.async.bulk.tensor": _tensor_copy,
    "cp.async.bulk.prefetch.tensor": _tensor_copy,
    "cp.reduce.async.bulk.tensor": _tensor_copy,
    "cp.async.bulk": _bulk_copy,
    "cp.reduce.async.bulk": _bulk_copy,
    "mbarrier.": _mbarrier,
    "fence.mbarrier_init": _said("mbarriers that are initialized are seen by the cluster"),
    "fence.proxy.async": _said(
        "ordinary reads and writes so far are seen by TMA and the tensor core"
    ),
    "fence.proxy.tensormap": _said("a tensor map written by code is seen by TMA"),
    "barrier.cluster.arrive": _said("arrives at the barrier of the cluster's threads"),
    "barrier.cluster.wait": _said("waits for the cluster's threads"),
}
"""Opcode -> explanation; the first that matches counts."""

LISTED = (
    "wgmma.", "tcgen05.", "mbarrier.", "cp.async.bulk", "cp.reduce.async.bulk", "fence.",
    "barrier.cluster.",
)  # fmt: skip
"""What the opcodes of the listed instructions start with."""
