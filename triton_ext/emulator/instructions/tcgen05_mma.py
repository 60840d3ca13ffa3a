"""tcgen05.mma: D = A x B + D in tensor memory (PTX ISA, "TensorCore 5th Generation of MMA
Instructions")."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import KERNELS
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import DescriptorFault, TensorMemoryFault, UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.in_flight import TensorCore
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.tensor_memory import Cells, TensorMemory, stamp
from triton_ext.emulator.state.tensor_memory_cells import DataPath, data_path
from triton_ext.emulator.units.matrix_product import (
    OPERAND_BITS,
    decode_elements,
    multiply_accumulate,
)
from triton_ext.emulator.units.operand_matrix import descriptor_of, read_operand
from triton_ext.emulator.units.provenance import Copied
from triton_ext.emulator.units.scale_factors import E2M1_SHIFT, SCALES
from triton_ext.emulator.units.tensor_core import (
    UNIT,
    blocks_of,
    check_thread_sync,
    issue,
    tensor_core,
)
from triton_ext.emulator.units.unawaited import check_unread_sums
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS, Target
from triton_ext.hardware.instruction_descriptor import KINDS, LONG_K, InstructionDescriptor
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_memory import COLUMN_BITS, TMEM_LANES
from triton_ext.hardware.tensor_memory_scales import GROUPS, ScaleFactors, scale_vector
from triton_ext.ptx.forms import Tcgen05Product
from triton_ext.ptx.parse import Instruction, immediate
from triton_ext.ptx.targets import owners

MAX_SCALE_D = 15
ABSOLUTE_K_BYTES = 48
"""The K, in bytes, with which a descriptor's leading dimension may be an address (PTX ISA,
"Absolute address mode for K dimension being 48B")."""
TRANSPOSED_BYTES_N = 16
"""N of one CTA where B is MN-major with elements of 8 bits (PTX ISA, "Various combinations of N
shape with .cta_group qualifier for 8bit transpose B")."""
_SCALABLE = ("f16", "tf32")
"""Kinds with ``scale-input-d``."""
_PACKED_KINDS = ("mxf4", "mxf4nvf4")
"""Kinds whose 4-bit elements fill memory without padding."""


@dataclass(frozen=True)
class _Plan:
    """What the opcode and the instruction descriptor say together.

    Attributes:
        factors: the scale factors of A and of B, or None.
    """

    descriptor: InstructionDescriptor
    path: DataPath
    factors: tuple[ScaleFactors, ScaleFactors] | None
    packed: bool


@lru_cache(1024)
def _plan(
    value: int, kind: str, group: int, vector: str | None, target: Target, *, stationary: bool
) -> _Plan:
    """Read and check an instruction descriptor (PTX ISA, "Instruction descriptor", "Valid
    Combinations of Type-Size, Major-ness and Swizzling").

    Args:
        vector: the modifier that says which elements share a scale factor; None without scales.
        target: what the kernel was compiled for.
        stationary: ``.ws``.

    Raises:
        DescriptorFault: it is illegal, or not with this opcode.
    """
    try:
        found = InstructionDescriptor.decode(value, kind)
        found.check_shape(group, weight_stationary=stationary)
        path = data_path(found.m, group, stationary)
        factors = None
        if vector is not None:
            count = scale_vector(kind, vector, found.scale_type, found.k)
            factors = (
                ScaleFactors(count, found.scale_factor_a_id),
                ScaleFactors(count, found.scale_factor_b_id),
            )
    except LayoutError as error:
        raise DescriptorFault(f"instruction descriptor {value:#010x}: {error}") from None
    if found.sparse:
        raise DescriptorFault(
            f"instruction descriptor {value:#010x}: A is sparse (bit 2); the opcode has no .sp"
        )
    if found.k != KINDS[kind].usual_k and not target.meets(LONG_K[found.k]):
        raise DescriptorFault(
            f"instruction descriptor {value:#010x}: K = {found.k} of .kind::{kind} is of"
            f" {owners([LONG_K[found.k]])}, and this PTX is for {target}"
        )
    for name, major, type_name in (
        ("A", found.a_major, found.a_type),
        ("B", found.b_major, found.b_type),
    ):
        if major == "MN" and OPERAND_BITS[type_name] < 8:
            raise DescriptorFault(
                f"instruction descriptor {value:#010x}: operand {name} is {type_name} and MN-major;"
                " elements of 4 and 6 bits must be K-major"
            )
    step = TRANSPOSED_BYTES_N * group
    if found.b_major == "MN" and OPERAND_BITS[found.b_type] == 8 and found.n % step:
        raise DescriptorFault(
            f"instruction descriptor {value:#010x}: N = {found.n} must be a multiple of {step}"
            " where B has elements of 8 bits and is MN-major"
        )
    return _Plan(found, path, factors, kind in _PACKED_KINDS)


def _collectors(form: Tcgen05Product) -> list[tuple[str, str]]:
    """The collector buffers, and what is done with each."""
    default = "b0::discard" if form.weight_stationary else "a::discard"
    named = form.collectors or (default,)
    return [(buffer, use) for buffer, _, use in (each.partition("::") for each in named)]


def _check_modelled(at: Instruction, form: Tcgen05Product) -> None:
    stationary = form.weight_stationary
    buffers = ("b0", "b1", "b2", "b3") if stationary else ("a", "b")
    named = [buffer for buffer, _ in _collectors(form)]
    refused = {
        "a sparse product (.sp)": form.sparse,
        ".ashift": form.shifts_a,
        "A in tensor memory with .ws": form.a_in_tensor_memory and stationary,
        "the zero-column mask of .ws": form.zero_column_mask,
        "the collector buffer": not set(named) <= set(buffers)
        or len(named) > (1 if stationary else len(set(named))),
    }
    for what, found in refused.items():
        if found:
            raise UnsupportedInstruction(f"{what} is not modelled", at)


def _scale_input_d(at: Instruction, form: Tcgen05Product) -> int:
    if not form.scale_input_d:
        return 0
    found = immediate(form.scale_input_d)
    if found is None or not 0 <= found <= MAX_SCALE_D or form.kind not in _SCALABLE:
        why = f"scale-input-d is a number from 0 to {MAX_SCALE_D}, for kinds f16 and tf32"
        raise UnsupportedInstruction(why, at)
    return found


class _Issue(NamedTuple):
    """The values of the operands of one thread."""

    d: int
    a: int
    a_in_tensor_memory: bool
    b: int
    plan: _Plan
    scale_a: int
    scale_b: int
    accumulate: bool
    disabled: tuple[int, ...]
    scale_d: int


@instruction(
    "tcgen05.mma",
    evidence=KERNELS,
    but="one CTA and pairs, every kind and major-ness; the rarer shapes: document",
)
def mma(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    form = modifiers.form(Tcgen05Product)
    _check_modelled(at, form)
    in_tensor_memory, scale_d = form.a_in_tensor_memory, _scale_input_d(at, form)
    d, b = operands.address(form.d, at), operands.reader(form.b, "u64", at)
    a = operands.address(form.a, at) if in_tensor_memory else operands.reader(form.a, "u64", at)
    descriptor = operands.reader(form.idesc, "u32", at)
    scales = [operands.address(text, at) for text in (form.scale_a, form.scale_b) if text]
    masks = [operands.reader(text, "u32", at) for text in form.disable_output_lane]
    enable = operands.reader(form.enable_input_d, "pred", at)
    vector, target = form.scale_vector if form.block_scale else None, operands.target

    def run(cta: Cta, lanes: Lanes) -> None:
        cta.launch.check_layout(at)
        readers = [d, a, b, descriptor, *scales, enable, *masks]
        columns = [lane_sets.numbers(read(cta, lanes), lanes) for read in readers]
        for thread, values in zip(
            lane_sets.indices(lanes), zip(*columns, strict=True), strict=True
        ):
            d_at, a_at, b_at, idesc = values[:4]
            scale_a, scale_b = values[4:6] if scales else (0, 0)
            accumulate, *disabled = values[4 + len(scales) :]
            plan = _plan(
                idesc,
                form.kind,
                form.cta_group,
                vector,
                target,
                stationary=form.weight_stationary,
            )
            operation = _Issue(
                d_at, a_at, in_tensor_memory, b_at, plan, scale_a, scale_b, bool(accumulate),
                tuple(disabled), scale_d,
            )  # fmt: skip
            _Product(cta, at, form, operation, int(thread)).issue()

    return run


def _columns_of(plan: _Plan) -> int:
    """32-bit columns of operand A in tensor memory: 32 bytes, in 8-bit containers or packed."""
    found = plan.descriptor
    bits = OPERAND_BITS[found.a_type]
    return found.k * (bits if plan.packed else max(8, bits)) // COLUMN_BITS


def _k_bytes(plan: _Plan, type_name: str) -> int:
    """Bytes of a row of A, or a column of B, in shared memory."""
    bits = OPERAND_BITS[type_name]
    return plan.descriptor.k * (bits if plan.packed else max(8, bits)) // 8


class _Product:
    """One product: its checks at the issue, and its computation later."""

    def __init__(
        self, cta: Cta, at: Instruction, form: Tcgen05Product, operation: _Issue, thread: int
    ) -> None:
        self.at = at
        self.cta, self.form, self.operation, self.thread = cta, form, operation, thread
        self.plan = plan = operation.plan
        self.found = found = plan.descriptor
        self.unit = cta.agents.unit(UNIT)
        self.d_lane, self.d_column = operation.d >> 16, operation.d & 0xFFFF
        if self.d_lane not in plan.path.first_lanes:
            raise TensorMemoryFault(
                f"D at lane {self.d_lane}: with M = {found.m} it must be at lane"
                f" {' or '.join(map(str, plan.path.first_lanes))}"
            )
        self.b_descriptor = self._descriptor(
            operation.b, found.b_major, found.b_type, "B", _k_bytes(plan, found.b_type)
        )
        self.a_descriptor: SmemDescriptor | None = None
        if operation.a_in_tensor_memory:
            if operation.a >> 16 != self.d_lane:
                raise TensorMemoryFault(
                    f"A at lane {operation.a >> 16} and D at lane {self.d_lane}: they must start"
                    " at the same lane"
                )
            if found.a_major != "K":
                raise DescriptorFault("A in tensor memory is K-major; the descriptor says MN")
        else:
            self.a_descriptor = self._descriptor(
                operation.a, found.a_major, found.a_type, "A", _k_bytes(plan, found.a_type)
            )

    def _descriptor(
        self, value: int, major: str, type_name: str, name: str, k_bytes: int
    ) -> SmemDescriptor:
        """The matrix descriptor, checked against PTX ISA, "Valid Combinations of Type-Size,
        Major-ness and Swizzling"."""
        found = descriptor_of(self.cta, self.thread, value, absolute=k_bytes == ABSOLUTE_K_BYTES)
        if major == "MN" and (found.atomicity == 32) != (type_name == "tf32"):
            rule = "with" if type_name == "tf32" else "without"
            raise DescriptorFault(
                f"operand {name} is {type_name} and MN-major: it is read {rule} the 128-byte"
                " swizzle of 32-byte atomicity alone"
            )
        width, usual = found.swizzle_byte_width, 32
        if found.lbo_mode and (major != "K" or (width, found.base_offset) != (128, 0)):
            raise DescriptorFault(
                f"operand {name}: a leading dimension that is an address (bit 52) is for K-major"
                " operands in the 128-byte swizzle, without a base offset"
            )
        if major == "K" and k_bytes > usual and width and not found.lbo_mode:
            inside = found.start_address % width
            if inside + k_bytes > width:
                raise DescriptorFault(
                    f"operand {name}: its K of {k_bytes} bytes begins {inside} bytes into a row of"
                    f" the {width}-byte swizzle, and leaves it"
                )
        return found

    def issue(self) -> None:
        observer, found = self.cta.machine.observer, self.found
        shape, in_memory = (found.m, found.n, found.k), self.a_descriptor is not None
        observer.multiplies(self.cta, self.thread, shape, self.form.cta_group, in_memory)
        if self.cta.machine.fenced:
            self._check_thread_sync()
        issue(self.cta, self.thread, self.form.cta_group, self._perform)
        for buffer, use in _collectors(self.form):
            self._use_buffer(tensor_core(self.cta), buffer, use)

    def _check_thread_sync(self) -> None:
        """See `check_thread_sync`, of the cells of D."""
        agent = self.cta.agents.first + self.thread // WARP_THREADS
        cells = self.plan.path.cells(
            self.d_lane, self.d_column, self.found.n // self.plan.path.parts
        )
        lanes, what = slice(self.thread, self.thread + 1), "tcgen05.mma into tensor memory"
        check_thread_sync(self.cta, lanes, agent, cells, what, writes=True)

    def _use_buffer(self, core: TensorCore, buffer: str, use: str) -> None:
        """Note what a collector buffer may hold; it never changes a product."""
        found, operation = self.found, self.operation
        if buffer != "a":
            key: object = (operation.b, found.b_type, found.b_major, found.n)
        else:
            key = (operation.a, operation.a_in_tensor_memory, found.a_type, found.a_major, found.m)
        if use in ("use", "lastuse") and core.collectors.get(buffer) != key:
            raise TensorMemoryFault(
                f".collector::{buffer}::{use}: no earlier instruction filled the buffer with this"
                " operand"
            )
        if use == "fill":
            core.collectors[buffer] = key
        elif use != "use":
            core.collectors.pop(buffer, None)

    # ------------------------------------------------------------- the product

    def _perform(self, clock: Clock) -> None:
        blocks = blocks_of(self.cta, self.form.cta_group)
        found, path = self.found, self.plan.path
        if not self.cta.machine.options.values:
            for block in blocks:
                columns = found.n // path.parts
                cells = path.cells(self.d_lane, self.d_column, columns)
                self._write(tensor_core(block).memory, cells, np.uint32(0))
            return
        b = self._operand_b(blocks, clock)
        parts: list[Copied] = []
        for number, block in enumerate(blocks):
            memory = tensor_core(block).memory
            a = self._operand_a(block, memory, clock, parts)
            b_here = b
            if path.parts > 1:
                a = np.broadcast_to(a, (path.parts, path.rows, found.k))
                b_here = b.reshape(found.k, path.parts, -1).transpose(1, 0, 2)
            if self.plan.factors is not None:
                factors_a, factors_b = self.plan.factors
                scale = self._scales(
                    memory, self.operation.scale_a, factors_a, path.rows, range(GROUPS), clock, "A"
                )
                a = a * scale
                b_here = b_here * self._scales_b(memory, factors_b, clock)
            self._accumulate(memory, number, a, b_here, clock)

    def _operand_b(self, blocks: list[Cta], clock: Clock) -> NDArray[Any]:
        """(k, n), of all blocks: each has its part of N."""
        found = self.found
        parts: list[Copied] = []
        codes = [
            read_operand(
                block.shared, self.b_descriptor, found.n // len(blocks), found.k, found.b_type,
                found.b_major, clock, self.unit, packed=self.plan.packed,
                name="tcgen05.mma, operand B,", parts=parts,
            )
            for block in blocks
        ]  # fmt: skip
        values = decode_elements(
            codes[0] if len(codes) == 1 else np.concatenate(codes), found.b_type
        )
        return -values.T if found.negate_b else values.T

    def _operand_a(
        self, block: Cta, memory: TensorMemory, clock: Clock, parts: list[Copied]
    ) -> NDArray[Any]:
        """(rows, k), or (parts, rows, k): each part of the data path reads its own lanes."""
        found, path = self.found, self.plan.path
        if self.a_descriptor is not None:
            codes = read_operand(
                block.shared, self.a_descriptor, path.rows, found.k, found.a_type, found.a_major,
                clock, self.unit, packed=self.plan.packed, name="tcgen05.mma, operand A,",
                parts=parts,
            )  # fmt: skip
        else:
            codes = self._a_in_tensor_memory(memory, clock)
        values = decode_elements(codes, found.a_type)
        return -values if found.negate_a else values

    def _a_in_tensor_memory(self, memory: TensorMemory, clock: Clock) -> NDArray[Any]:
        found, path = self.found, self.plan.path
        columns, first = _columns_of(self.plan), self.operation.a & 0xFFFF
        name = "tcgen05.mma, as operand A"
        memory.columns.check(first, columns, name)
        cells = path.cells(self.d_lane, first, columns)
        words = np.ascontiguousarray(memory.load(cells, clock.seen, name))
        event = self.cta.cluster.clocks.unit_event(self.unit)
        memory.note("load", cells, stamp(event, self.unit))
        if self.plan.packed:
            pairs = words.view(np.uint8)
            codes: NDArray[Any] = np.stack([pairs & 15, pairs >> 4], axis=-1)
        else:
            codes = words.view(f"u{max(8, OPERAND_BITS[found.a_type]) // 8}")
            if found.a_type == "e2m1":
                codes = codes >> E2M1_SHIFT & 15
        codes = codes.reshape(path.parts, path.rows, found.k)
        return codes if path.parts > 1 else codes[0]

    # ------------------------------------------------------------ scale factors

    def _scales(
        self,
        memory: TensorMemory,
        address: int,
        factors: ScaleFactors,
        rows: int,
        groups: range,
        clock: Clock,
        name: str,
    ) -> NDArray[np.float64]:
        """(rows, k): the factor of each element.

        Bits 30 and 31 of the address are not looked at: CUTLASS keeps the scale factor's ID there.
        """
        address &= 0x3FFFFFFF
        if address >> 16:
            why = f"the scale factors of {name} are at lane {address >> 16}; they must be at lane 0"
            raise TensorMemoryFault(why)
        first = address & 0xFFFF
        what = f"tcgen05.mma as scale factors of {name}"
        memory.columns.check(first, factors.span(rows), what)
        every: Any = np.arange(rows)
        row_lane, row_column = factors.cell(every)
        word = first + np.arange(factors.words) * factors.step(rows)
        lanes = np.asarray(row_lane) + TMEM_LANES // GROUPS * np.array(groups)[:, None]
        columns = np.asarray(row_column)[:, None] + word
        lanes, columns = np.broadcast_arrays(lanes[..., None], columns)
        cells: Cells = (lanes, columns)
        words = np.ascontiguousarray(memory.load(cells, clock.seen, what))
        event = self.cta.cluster.clocks.unit_event(self.unit)
        memory.note("load", cells, stamp(event, self.unit))
        wanted = slice(factors.first_byte, factors.first_byte + factors.count)
        codes = words.view(np.uint8).reshape(len(groups), rows, -1)[..., wanted]
        if (codes != codes[0]).any():
            group, row, _ = (int(n) for n in np.argwhere(codes != codes[0])[0])
            raise TensorMemoryFault(
                f"the scale factors of {name}, row {row}, differ between lanes"
                f" {int(lanes[0, row, 0])} and {int(lanes[group, row, 0])}; each group of 32 lanes"
                " must hold a copy"
            )
        values: NDArray[np.float64] = SCALES[self.found.scale_type][codes[0]]
        return np.repeat(values, self.found.k // factors.count, axis=1)

    def _scales_b(
        self, memory: TensorMemory, factors: ScaleFactors, clock: Clock
    ) -> NDArray[np.float64]:
        """(k, n), or (parts, k, n / parts): the factor of each element of B."""
        parts = self.plan.path.parts
        each = GROUPS // parts
        columns = [
            self._scales(
                memory, self.operation.scale_b, factors, self.found.n // parts,
                range(part * each, (part + 1) * each), clock, "B",
            ).T
            for part in range(parts)
        ]  # fmt: skip
        return np.stack(columns) if parts > 1 else columns[0]

    # ------------------------------------------------------------ accumulator

    def _accumulate(
        self, memory: TensorMemory, number: int, a: NDArray[Any], b: NDArray[Any], clock: Clock
    ) -> None:
        """D of one block: the `number`-th of the pair."""
        found, path = self.found, self.plan.path
        columns = found.n // path.parts
        name = "tcgen05.mma (D)"
        memory.columns.check(self.d_column, columns, name)
        cells = path.cells(self.d_lane, self.d_column, columns)
        kept = self._kept(number)
        if kept is not None:
            cells = (path.lane_numbers(self.d_lane)[kept], cells[1])
        d = None
        if self.operation.accumulate:
            d = _values(memory.load(cells, clock.seen, name), found.d_type)
            if kept is not None:
                every = np.zeros((path.parts * path.rows, columns), d.dtype)
                every[kept] = d
                d = every
            if path.parts > 1:
                d = d.reshape(path.parts, path.rows, columns)
            if self.operation.scale_d:
                d = d * np.float64(2.0**-self.operation.scale_d)
        elif self.cta.launch.checks.unread:
            check_unread_sums(memory, cells)
        memory.check_store(cells, clock.seen, name, loaded=d is not None)
        result = multiply_accumulate(a, b, d, found.d_type, saturate=found.saturate)
        words = _words(result.reshape(path.parts * path.rows, columns), found.d_type)
        self._write(memory, cells, words if kept is None else words[kept])

    def _write(self, memory: TensorMemory, cells: Cells, words: Any) -> None:
        memory.poke(cells, words)
        event = self.cta.cluster.clocks.unit_event(self.unit)
        memory.note("store", cells, stamp(event, self.unit))
        if self.cta.launch.checks.unread:
            memory.products[event] = self.at

    def _kept(self, number: int) -> NDArray[np.bool_] | None:
        """Which rows of the data path are written, or None for all: disable-output-lane."""
        masks = self.operation.disabled[4 * number : 4 * number + 4]
        if not any(masks):
            return None
        off = np.unpackbits(np.array(masks, "<u4").view(np.uint8), bitorder="little")
        kept: NDArray[np.bool_] = off[self.plan.path.lane_numbers(self.d_lane)] == 0
        return kept


def _values(words: NDArray[np.uint32], d_type: str) -> NDArray[Any]:
    if d_type == "f16":  # the low half of each column
        return words.astype(np.uint16).view(np.float16)
    return np.ascontiguousarray(words).view(np.float32 if d_type == "f32" else np.int32)


def _words(values: NDArray[Any], d_type: str) -> NDArray[np.uint32]:
    return values.view(np.uint16).astype(np.uint32) if d_type == "f16" else values.view(np.uint32)
