"""What the asynchronous and tensor-core instructions of a kernel do, in words and as values.

These are TMA copies, mbarrier operations, MMAs, accesses to tensor memory, and the fences and waits
between them. The values are those that `Folder` knows: for the first thread of the first block, and
for the first iteration of a loop. Where a value depends on one of these, the words say so.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import singledispatch
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import CTA_ADDRESS_BITS
from triton_ext.hardware.instruction_descriptor import (
    SPARSE_GRANULARITY,
    InstructionDescriptor,
    fields_of,
)
from triton_ext.hardware.smem_descriptor import FIELDS, SWIZZLE_CODES, SmemDescriptor
from triton_ext.hardware.tensor_memory import check_allocation
from triton_ext.hardware.tensor_memory_access import TmemAccess
from triton_ext.layouts.atoms import MAJORS, Major
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.ptx.folding import Folder
from triton_ext.ptx.forms import (
    BulkCopy,
    BulkGroup,
    MbarrierOperation,
    Tcgen05Product,
    TensorCopy,
    TensorCoreCommit,
    TensorMemoryAccess,
    TensorMemoryAllocation,
    TensorMemoryCopy,
    TensorMemoryShift,
    WgmmaGroup,
    WgmmaProduct,
    read,
)
from triton_ext.ptx.known_bits import Bits
from triton_ext.ptx.parse import Instruction

CACHE_POLICIES = {
    0x1000000000000000: "evict_normal",
    0x12F0000000000000: "evict_first",
    0x14F0000000000000: "evict_last",
}
"""The constants that CUTLASS passes to TMA (``cute/arch/copy_sm90_desc.hpp``, CacheHintSm90)."""

_START_ADDRESS = FIELDS[90]["start_address"]
_MAY_BE_UNKNOWN = (
    "negate_a", "negate_b", "saturate", "sparsity_selector", "max_shift", "scale_factor_a_id",
    "scale_factor_b_id",
)  # fmt: skip
"""Fields of an instruction descriptor that may be unknown while the others are decoded."""


class Notes:
    """What is known about one instruction: lines for people, values for programs.

    Args:
        instruction: the instruction to explain.
        folder: what is known about the registers of its kernel.
        arch: 90 or 100.
        symbols: the shared variables of the kernel and its module; if there is more than one,
            addresses are shown with the variable's name.
    """

    def __init__(
        self,
        instruction: Instruction,
        folder: Folder,
        arch: int,
        symbols: Collection[str] = (),
    ) -> None:
        self.instruction, self.folder, self.arch = instruction, folder, arch
        self.lines: list[str] = []
        self.values: dict[str, Any] = {}
        self._symbols = symbols
        try:
            _explain(read(instruction), self)
        except LayoutError as error:
            self.add(f"not understood: {error.rule}")

    def add(self, line: str, **values: Any) -> None:
        """Add a line, and the values that it states."""
        self.lines.append(line)
        self.values.update(values)

    def bits(self, text: str, width: int) -> Bits:
        """The known bits of an operand."""
        return self.folder.operand(text, width, self.instruction)

    def number(self, text: str, width: int = 32) -> int | None:
        """An operand's value, if all of it is known."""
        bits = self.bits(text, width)
        return bits.field(0, width) if text else None

    def root(self, text: str) -> str:
        """The register, parameter or symbol that an operand or address is computed from."""
        name, offset = self.folder.root(text, self.instruction)
        kernel = self.folder.kernel.name
        if kernel and name.strip("[]").startswith(kernel + "_param_"):
            name = name.replace(kernel + "_", "", 1)
        return f"{name} + {offset}" if offset > 0 else f"{name} - {-offset}" if offset else name

    def condition(self, text: str) -> str:
        """For which thread, block and iteration a known value holds; "" if for all of them."""
        origins = self.folder.origins(text, self.instruction)
        said = []
        if any(name.startswith(("%tid", "%lane", "%warp")) for name in origins):
            said.append("in thread 0")
        if any(name.startswith(("%ctaid", "%cluster")) for name in origins):
            said.append("in block 0")
        if any(self.folder.is_reassigned(name) for name in origins):
            said.append("at first")
        return "".join(f" {part}" for part in said)

    def amount(self, text: str) -> str:
        """An operand in words: its number or, if that is not known, its root."""
        value = self.number(text)
        return self.root(text) if value is None else f"{value}{self.condition(text)}"

    def known(self, text: str, width: int = 32) -> int | str | None:
        """An operand for programs: its number or, if that is not known, its root."""
        value = self.number(text, width)
        return value if value is not None else self.root(text) if text else None

    def shared(self, text: str) -> str:
        """A shared-memory address in words."""
        value = self.shared_address(text)
        return self.root(text) if value is None else self.at(value, text)

    def at(self, value: int, text: str) -> str:
        """The same, where the operand is known to hold the address `value`."""
        names = self.symbols(text) if len(self._symbols) > 1 else ()
        return f"{'/'.join(names)}+{value}{self.condition(text)}"

    def tensor_memory(self, text: str) -> str:
        """An address in tensor memory, in words: ``[+8] + 4`` is 4 more than tcgen05.alloc wrote to
        shared address 8."""
        name, offset = self.folder.root(text, self.instruction)
        loaded = self.folder.definition(name, self.instruction)
        if (
            loaded is not None
            and loaded.opcode.startswith("ld.shared")
            and len(loaded.operands) > 1
        ):
            own = Notes(loaded, self.folder, self.arch, self._symbols)
            if own.shared_address(loaded.operands[1]) is not None:
                stored_at = f"[{own.shared(loaded.operands[1])}]"
                return f"{stored_at} + {offset}" if offset > 0 else stored_at
        return self.root(text)

    def symbols(self, text: str) -> list[str]:
        """The shared variables that an address is computed from."""
        origins = self.folder.origins(text, self.instruction)
        return sorted(origins.intersection(self._symbols))

    def shared_address(self, text: str) -> int | None:
        """A shared-memory address within its CTA, in bytes from the start of its symbol."""
        bits = self.folder.address(text, self.instruction)
        return bits.field(0, CTA_ADDRESS_BITS) if text else None

    def address_values(self, key: str, text: str) -> dict[str, Any]:
        """A shared-memory address for programs: its number or root, and its symbols."""
        value = self.shared_address(text)
        return {
            key: self.root(text) if value is None else value,
            f"{key}_symbols": self.symbols(text),
        }


@singledispatch
def _explain(form: object, notes: Notes) -> None:
    """Add what is known about an instruction of this form; an overload for each form."""
    for prefix, words in _WITHOUT_OPERANDS.items():
        if notes.instruction.opcode.startswith(prefix):
            notes.add(words)


def _known_fields(bits: Bits, arch: int) -> list[str]:
    """The fields of a matrix descriptor that are known although the descriptor is not."""
    stride = bits.field(*FIELDS[arch]["stride_byte_offset"])
    code = bits.field(*FIELDS[arch]["swizzle"])
    swizzle = SWIZZLE_CODES[arch].get(code) if code is not None else None
    words = [f"SBO {CHUNK_BYTES * stride}"] if stride is not None else []
    if swizzle:
        words.append(f"swizzle {swizzle[0]}B" if swizzle[0] else "no swizzle")
    return words


def _matrix(notes: Notes, name: str, text: str, major: Major | None = None) -> None:
    """The fields of a matrix descriptor; the start address only if it is known.

    Args:
        major: the operand's major-ness; None if it is not known.
    """
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
    notes.add(f"{name}: {value:#018x} {at}, {decoded.strides(major)}, swizzle {swizzle}{extra}")


# ------------------------------------------------------------------------------------ MMA


def _accumulates(notes: Notes, text: str) -> None:
    """The predicate scale-d (wgmma), enable-input-d (tcgen05.mma)."""
    value = notes.number(text, 1)
    if value is None:
        notes.add(f"D = A x B, or D + A x B if {notes.root(text)}", accumulates=None)
    else:
        words = "D + A x B" if value else "A x B (what D held is not read)"
        notes.add(f"D = {words}{notes.condition(text)}", accumulates=bool(value))


@_explain.register
def _wgmma(form: WgmmaProduct, notes: Notes) -> None:
    (m, n, k), d, a, b = form.mnk, form.d_type, form.a_type, form.b_type
    notes.add(
        f"D[{m}x{n}] {d} = A[{m}x{k}] {a} x B[{k}x{n}] {b}",
        m=m, n=n, k=k, d_type=d, a_type=a, b_type=b,
    )  # fmt: skip
    transposed = {"A": form.transpose_a, "B": form.transpose_b}
    majors: dict[str, Major] = {
        name: "MN" if value else "K"
        for name, text in transposed.items()
        if (value := notes.number(text)) is not None
    }
    fixed: Major = "K"  # of types other than 16-bit ones, which have no operand that says it
    if form.a_in_registers:
        notes.add("A: in registers", A="registers")
    else:
        _matrix(notes, "A", form.a, majors.get("A") if form.transpose_a else fixed)
    _matrix(notes, "B", form.b, majors.get("B") if form.transpose_b else fixed)
    if form.sparse:
        notes.add(f"A is {SPARSE_GRANULARITY.get(a, '2:4')} sparse", sparse=True)
    _accumulates(notes, form.scale_d)
    signs = {"A": form.scale_a, "B": form.scale_b}
    negated = [name for name, sign in signs.items() if notes.number(sign, 8) == 0xFF]
    if negated:
        notes.add(f"negated: {', '.join(negated)}", negated=negated)
    if majors:
        notes.add(
            ", ".join(f"{name} is {major}-major" for name, major in majors.items()), majors=majors
        )


@_explain.register
def _tcgen05_mma(form: Tcgen05Product, notes: Notes) -> None:
    notes.values["cta_group"] = form.cta_group
    where = notes.tensor_memory(form.d)
    notes.add(f"D: tensor memory {where}", D=where)
    if form.a_in_tensor_memory:
        where = notes.tensor_memory(form.a)
        notes.add(f"A: in tensor memory, {where}", A={"tensor_memory": where})
    else:
        _matrix(notes, "A", form.a, _major(form, notes, "a_mn_major"))
    _matrix(notes, "B", form.b, _major(form, notes, "b_mn_major"))
    if form.sparse:
        where = notes.tensor_memory(form.metadata)
        notes.add(f"A is sparse, metadata in tensor memory {where}", sparse=True)
    _instruction_descriptor(notes, form.kind, form.idesc)
    for name, text in (("A", form.scale_a), ("B", form.scale_b)):
        if text:
            where = notes.tensor_memory(text)
            notes.add(
                f"scale factors of {name}: tensor memory {where}",
                **{f"scale_{name.lower()}": where},
            )
    masks = [notes.number(text) for text in form.disable_output_lane]
    if any(masks):
        notes.add("some lanes of D are not written", disable_output_lane=masks)
    _accumulates(notes, form.enable_input_d)
    if form.scale_vector:
        notes.add(f"scale vectors: {form.scale_vector}", scale_vector=form.scale_vector)
    if form.weight_stationary:
        notes.add("weight stationary", weight_stationary=True)
    if form.collectors:
        words = [use.replace("::", " ") for use in form.collectors]
        notes.add(f"collector buffer: {', '.join(words)}", collector=words)


def _major(form: Tcgen05Product, notes: Notes, field: str) -> Major | None:
    """The major-ness of an operand, from its bit in the instruction descriptor; None if unknown."""
    fields = fields_of(form.kind)
    bit = notes.bits(form.idesc, 32).field(*fields[field])
    return None if bit is None else MAJORS[bit]


def _instruction_descriptor(notes: Notes, kind: str, text: str) -> None:
    bits = notes.bits(text, 32)
    fields = fields_of(kind)
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


# ------------------------------------------------------------------------------------ TMA


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


def _completion(form: TensorCopy | BulkCopy, notes: Notes) -> None:
    """What the operands behind the addresses say: the mbarrier, the CTA mask, the cache policy."""
    if form.mbarrier:
        notes.add(
            f"arrives at the mbarrier at {notes.shared(form.mbarrier)}",
            **notes.address_values("mbarrier", form.mbarrier),
        )
    if isinstance(form, TensorCopy) and form.cta_group:
        notes.values["cta_group"] = form.cta_group
        if form.cta_group == 2:
            notes.add("cta_group::2: the mbarrier may be that of either CTA of the pair")
    if form.cta_mask:
        _cluster_mask(notes, form.cta_mask)
    if form.cache_policy:
        _cache_policy(notes, form.cache_policy)


_SPACE_WORDS = {
    "shared::cluster": "shared memory of the cluster",
    "shared::cta": "shared memory",
    "shared": "shared memory",
    "global": "global memory",
    "L2": "the L2 cache",
}


@_explain.register
def _tensor_copy(form: TensorCopy, notes: Notes) -> None:
    notes.values |= {"destination": form.destination, "source": form.source}
    name, near = "TMA copy", _SPACE_WORDS["L2"]
    if form.shared:
        space = form.destination if form.loads else form.source
        near = f"{_SPACE_WORDS[space]} {notes.shared(form.shared)}"
        notes.values |= notes.address_values("shared_address", form.shared)
    else:
        name = "TMA prefetch"
    if form.reduction:
        name = f"TMA reduction ({form.reduction})"
        notes.values["reduction"] = form.reduction
    mode = f", {form.mode}" if form.mode != "tile" else ""
    shown = ", ".join(notes.amount(text) for text in form.coordinates)
    far = f"tensor map {notes.root(form.map)} at {{{shown}}}"
    way = f"{near} -> {far}" if form.src_mem else f"{far} -> {near}"
    notes.add(
        f"{name}, {form.rank} dimension{'s' if form.rank > 1 else ''}{mode}: {way}",
        dimensions=form.rank,
        mode=form.mode,
        tensor_map=notes.root(form.map),
        coordinates=[notes.known(text) for text in form.coordinates],
    )
    _completion(form, notes)


@_explain.register
def _bulk_copy(form: BulkCopy, notes: Notes) -> None:
    """One dimension, without a tensor map."""
    notes.values |= {"destination": form.destination, "source": form.source}
    ways = {}
    sides = (
        ("destination", form.destination, form.dst_mem),
        ("source", form.source, form.src_mem),
    )
    for key, space, text in sides:
        ways[key] = _SPACE_WORDS[space]
        if space.startswith("shared"):
            notes.values |= notes.address_values(f"{key}_address", text)
            ways[key] += f" {notes.shared(text)}"
        elif text:
            notes.values[f"{key}_address"] = notes.root(text)
            ways[key] += f" {notes.root(text)}"
    name = f"bulk reduction ({form.reduction})" if form.reduction else "bulk copy"
    notes.add(
        f"{name}, {notes.amount(form.size)} bytes: {ways['source']} -> {ways['destination']}",
        bytes=notes.known(form.size),
    )
    _completion(form, notes)


@_explain.register
def _group(form: WgmmaGroup | BulkGroup, notes: Notes) -> None:
    name = "wgmma" if isinstance(form, WgmmaGroup) else "bulk copies"
    if not form.pending:
        if form.base.endswith("commit_group"):
            notes.add(f"the {name} so far, which are in no group, become one")
        else:
            notes.add("registers and shared memory written so far are seen by later wgmma")
        return
    which = "all but the last " + notes.amount(form.pending)
    which = "all" if notes.number(form.pending) == 0 else which
    until = f"{which} groups of {name} are done"
    if isinstance(form, BulkGroup) and form.reads_only:
        until = f"{which} groups of {name} have read shared memory, so that it may be overwritten"
    notes.add(f"waits until {until}", pending=notes.known(form.pending))


# ------------------------------------------------------------------------------- mbarrier


@_explain.register
def _mbarrier(form: MbarrierOperation, notes: Notes) -> None:
    what, text = form.operation, form.barrier
    if what == "pending_count":
        notes.add(f"how many arrivals the phase of the token {notes.root(form.phase)} lacks")
        return
    at = notes.address_values("mbarrier", text)
    where = f"the mbarrier at {notes.shared(text)}"
    if form.space == "shared::cluster":
        where += " (of a CTA of the cluster)"
    if what == "init":
        words = f"mbarrier at {notes.shared(text)}: a phase takes {_arrivals(notes, form.count)}"
        notes.add(words, count=notes.known(form.count), **at)
    elif what == "inval":
        notes.add(f"mbarrier at {notes.shared(text)}", **at)
    elif form.bytes:
        verb = "completes" if what == "complete_tx" else "expects"
        verb = "arrives and expects" if form.expects else verb
        words = f"{verb} {notes.amount(form.bytes)} bytes, at {where}"
        notes.add(words, bytes=notes.known(form.bytes), **at)
    elif what in ("arrive", "arrive_drop"):
        count = form.count or "1"
        drop = ", and will not again" if what == "arrive_drop" else ""
        words = f"{_arrivals(notes, count)} at {where}{drop}"
        notes.add(words, count=notes.known(count), **at)
    else:
        phase = f"the phase of the token {notes.root(form.phase)}"
        if form.by_parity:
            at["parity"] = notes.known(form.phase)
            phase = f"the phase of parity {notes.amount(form.phase)}"
        notes.add(f"{'waits for' if what == 'try_wait' else 'asks'} {where}: {phase}", **at)


def _arrivals(notes: Notes, text: str) -> str:
    return f"{notes.amount(text)} arrival{'s' if notes.number(text) != 1 else ''}"


# -------------------------------------------------------------------------- tensor memory


@_explain.register
def _allocation(form: TensorMemoryAllocation, notes: Notes) -> None:
    if not form.columns:
        notes.add("this CTA allocates no more tensor memory")
        return
    notes.values["cta_group"] = form.cta_group
    verb, where = "allocates", f"its address goes to {notes.shared(form.address)}"
    if form.base == "tcgen05.dealloc":
        verb, where = "frees", f"at {notes.tensor_memory(form.address)}"
    pair = ", in both CTAs of the pair" if form.cta_group == 2 else ""
    notes.add(
        f"{verb} {notes.amount(form.columns)} columns of tensor memory{pair}; {where}",
        columns=notes.known(form.columns),
    )
    columns = notes.number(form.columns)
    if columns is not None:
        try:
            check_allocation(columns)
        except LayoutError as error:
            notes.add(f"ILLEGAL: {error.rule}", illegal=error.rule)


@_explain.register
def _tmem_access(form: TensorMemoryAccess, notes: Notes) -> None:
    shape, repeat, count = form.shape, form.repeat, len(form.registers)
    where = notes.tensor_memory(form.address)
    values = {"shape": shape, "repeat": repeat, "address": where, "registers": count}
    way = f"{'to' if form.stores else 'from'} tensor memory {where}"
    packs = form.packs or form.unpacks
    try:
        access = TmemAccess(shape, repeat, packs, notes.number(form.half_split))
    except LayoutError as error:
        notes.add(f"{count} registers {way}; {error.rule}", **values)
        return
    lanes = "16" if shape.startswith("16") and shape != "16x32bx2" else "32"
    packed = ", two columns of 16 bits in a register" if packs else ""
    notes.add(
        f"{count} registers of each thread {way}{notes.condition(form.address)}:"
        f" {lanes} lanes a warp, {access.columns} columns ({shape} x {repeat}){packed}",
        **values, columns=access.columns,
    )  # fmt: skip
    if access.registers != count and not form.reduces:
        rule = f"{shape}.x{repeat} moves {access.registers} registers, not {count}"
        notes.add(f"ILLEGAL: {rule}", illegal=rule)


@_explain.register
def _tmem_copy(form: TensorMemoryCopy, notes: Notes) -> None:
    notes.values["cta_group"] = form.cta_group
    lanes, bits = form.shape.removesuffix("b").split("x")
    words = f"{lanes} lanes x {bits} bits"
    if form.multicast:
        words += f", for {form.multicast.replace('::', ' ')}"
    if form.source_format:
        words += f", from {form.source_format} to {form.target_format}"
    where = notes.tensor_memory(form.address)
    notes.add(
        f"shared -> tensor memory {where}: {words}",
        shape=form.shape, address=where, multicast=form.multicast or None,
    )  # fmt: skip
    _matrix(notes, "source", form.descriptor)


@_explain.register
def _commit(form: TensorCoreCommit, notes: Notes) -> None:
    notes.values["cta_group"] = form.cta_group
    notes.add(
        f"the mbarrier at {notes.shared(form.mbarrier)} is arrived at when the tcgen05.mma, cp"
        " and shift so far are done",
        **notes.address_values("mbarrier", form.mbarrier),
    )
    if form.cta_mask:
        _cluster_mask(notes, form.cta_mask)


@_explain.register
def _shift(form: TensorMemoryShift, notes: Notes) -> None:
    where = notes.tensor_memory(form.address)
    notes.add(f"shifts 32-byte rows down, in tensor memory {where}", address=where)


_WITHOUT_OPERANDS = {
    "tcgen05.wait::ld": "waits for this thread's tcgen05.ld",
    "tcgen05.wait::st": "waits for this thread's tcgen05.st",
    "tcgen05.fence::before_thread_sync": (
        "tcgen05 instructions so far come before the next synchronization of threads"
    ),
    "tcgen05.fence::after_thread_sync": (
        "later tcgen05 instructions come after the last synchronization of threads"
    ),
    "fence.mbarrier_init": "mbarriers that are initialized are seen by the cluster",
    "fence.proxy.async": "ordinary reads and writes so far are seen by TMA and the tensor core",
    "fence.proxy.tensormap": "a tensor map written by code is seen by TMA",
    "barrier.cluster.arrive": "arrives at the barrier of the cluster's threads",
    "barrier.cluster.wait": "waits for the cluster's threads",
}
"""Beginning of the opcode -> what an instruction says that has no operands."""

LISTED = (
    "wgmma.", "tcgen05.", "mbarrier.", "cp.async.bulk", "cp.reduce.async.bulk", "fence.",
    "barrier.cluster.",
)  # fmt: skip
"""The opcodes of the instructions that are listed start with one of these."""
