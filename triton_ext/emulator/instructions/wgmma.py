"""Warpgroup products of Hopper: wgmma.mma_async, fence, commit_group, wait_group.

PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". The four warps of a warpgroup start a
product together. It is done later, in the order of the warpgroup's products; until a wait_group
covers the group that it was committed to, its registers must not be touched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import SILICON
from triton_ext.emulator.decode.flow import Flow
from triton_ext.emulator.decode.fragments import RegisterRows, to_matrices, to_registers
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Outcome, Run, Wait
from triton_ext.emulator.errors import DescriptorFault, UnsupportedInstruction
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.clocks import Clock
from triton_ext.emulator.state.in_flight import Product
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units import warpgroup_products
from triton_ext.emulator.units.matrix_product import (
    OPERAND_BITS,
    decode_elements,
    model_of,
    multiply_accumulate,
)
from triton_ext.emulator.units.operand_matrix import decode_descriptor, read_operand
from triton_ext.emulator.units.warpgroup_products import WARPGROUP_THREADS, shared
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.hardware.register_fragments import accumulator_fragment, operand_fragment
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS
from triton_ext.layouts.atoms import Major
from triton_ext.ptx.forms import WgmmaGroup, WgmmaProduct
from triton_ext.ptx.parse import Instruction, immediate

M = 64
WARP_ROWS = M // WARPGROUP_WARPS
TILE_COLUMNS = 8
ARCH = 90

_ACCUMULATORS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "e4m3": ("f16", "f32"),
    "e5m2": ("f16", "f32"),
    "s8": ("s32",),
    "u8": ("s32",),
}
"""The type of A -> the types of the accumulator."""
_MIXED = ({"e4m3", "e5m2"}, {"s8", "u8"})


def legal_n(a_type: str) -> list[int]:
    """The N extents of a product (PTX ISA, wgmma, "Matrix Shape")."""
    if a_type in ("s8", "u8"):
        return [8, 16, 24, 32, *range(48, 257, 16)]
    return list(range(8, 257, 8))


@instruction("wgmma.fence", convergent=True, in_flight=True, evidence=SILICON)
def fence(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``wgmma.fence``: see `triton_ext.emulator.decode.register_fences`."""
    modifiers.form(WgmmaGroup)
    return lambda cta, lanes: None


@instruction("wgmma.commit_group", convergent=True, in_flight=True, evidence=SILICON)
def commit(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``wgmma.commit_group``: the products that are not committed become a group."""
    modifiers.form(WgmmaGroup)

    def run(cta: Cta, lanes: Lanes) -> None:
        for warp in lane_sets.warps(lanes):
            warpgroup_products.commit(cta, int(warp))

    return run


@instruction("wgmma.wait_group", convergent=True, in_flight=True, evidence=SILICON)
def wait(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``wgmma.wait_group N``: until all but the latest N groups are done."""
    pending = modifiers.form(WgmmaGroup).pending
    keep = immediate(pending)
    if keep is None or keep < 0:
        raise UnsupportedInstruction(f"{pending} groups: must be a constant", at)
    number = keep

    def run(cta: Cta, lanes: Lanes) -> Outcome:
        groups = {
            int(warp): warpgroup_products.groups_before(cta, int(warp), number)
            for warp in lane_sets.warps(lanes)
        }
        products = [product for each in groups.values() for group in each for product in group]

        def resume() -> None:
            for warp, covered in groups.items():
                warpgroup_products.release(cta, warp, covered)

        def why() -> str:
            missing = sum(not product.event for product in products)
            return f"wgmma.wait_group {number}: {missing} products are not done"

        return Wait(lambda: all(product.event for product in products), why, resume)

    return run


def _check_modelled(at: Instruction, form: WgmmaProduct) -> None:
    """Refuse products that the PTX ISA does not have, and sparse ones."""
    if form.sparse:
        raise UnsupportedInstruction("sparse products are not modelled", at)
    m, n, k = form.mnk
    mixed = any({form.a_type, form.b_type} <= pair for pair in _MIXED)
    if (
        m != M
        or form.d_type not in _ACCUMULATORS.get(form.a_type, ())
        or (form.a_type != form.b_type and not mixed)
        or (form.saturate and form.d_type != "s32")
        or n not in legal_n(form.a_type)
        or k * OPERAND_BITS[form.a_type] != 8 * INSTRUCTION_K_BYTES
    ):
        raise UnsupportedInstruction("a product of these types and shape is not modelled", at)
    signs = [immediate(text) for text in (form.scale_a, form.scale_b) if text]
    majors = [immediate(text) for text in (form.transpose_a, form.transpose_b) if text]
    if not set(signs) <= {1, -1} or not set(majors) <= {0, 1}:
        raise UnsupportedInstruction("its constants are not those that the form has", at)


def _common(values: NDArray[Any], what: str) -> Any:
    """The value that all threads of a warpgroup have. Raises DescriptorFault: they differ."""
    flat = values.reshape(-1)
    if (flat != flat[0]).any():
        other = int(flat[flat != flat[0]][0])
        raise DescriptorFault(
            f"{what} differs between the threads of the warpgroup: {int(flat[0]):#x} and {other:#x}"
        )
    return flat[0]


def _registers(operands: Operands, text: str, at: Instruction) -> frozenset[Register]:
    return shared(frozenset(operands.register(name, at) for name in operands.vector(text)))


class _Multiply:
    """A decoded wgmma.mma_async."""

    def __init__(self, at: Instruction, modifiers: Modifiers, operands: Operands) -> None:
        self.at, self.form = at, modifiers.form(WgmmaProduct)
        form = self.form
        _check_modelled(at, form)
        _, self.n, self.k = form.mnk
        self.a_major: Major = "MN" if immediate(form.transpose_a or "0") else "K"
        self.b_major: Major = "MN" if immediate(form.transpose_b or "0") else "K"
        self.signs = [immediate(text or "1") for text in (form.scale_a, form.scale_b)]
        self.d_fragment = accumulator_fragment(WARP_ROWS, int(form.d_type[1:]))
        self.a_fragment = operand_fragment("a", WARP_ROWS, self.k, OPERAND_BITS[form.a_type])
        self.tiles = self.n // TILE_COLUMNS
        count = self.tiles << len(self.d_fragment.registers)
        self.d_rows = RegisterRows.of(operands, form.d, at, count, written=True)
        self.accumulators = _registers(operands, form.d, at)
        self.a_rows: RegisterRows | None = None
        self.inputs = shared(frozenset())
        if form.a_in_registers:
            count = 1 << len(self.a_fragment.registers)
            self.a_rows = RegisterRows.of(operands, form.a, at, count)
            self.inputs = _registers(operands, form.a, at)
        else:
            self.read_a = operands.reader(form.a, "b64", at)
        self.read_b = operands.reader(form.b, "b64", at)
        self.read_scale = operands.reader(form.scale_d, "pred", at)
        self.read = frozenset(operands.read)
        operands.flow = Flow(self.follow)
        if self.accumulators & self.inputs:
            raise UnsupportedInstruction("a register is both of A and of D", at)

    def follow(self, cta: Cta, lanes: Lanes) -> None:
        """It uses all undefined values, but for the accumulator's if it starts a new sum."""
        undefined, what = cta.undefined, "the value is an operand of wgmma.mma_async"
        undefined.check(self.read, lanes, what)
        if self.read_scale(cta, lanes).any():
            undefined.check(self.accumulators, lanes, what)
        undefined.put_all(self.accumulators, lanes, None)

    def start(self, cta: Cta, lanes: slice) -> None:
        """A warpgroup issues the product."""
        a_source: SmemDescriptor | RegisterRows
        if self.a_rows is None:
            value = int(_common(self.read_a(cta, lanes), "the matrix descriptor of A"))
            a_source = decode_descriptor(value, ARCH)
        else:
            a_source = self.a_rows
        value = int(_common(self.read_b(cta, lanes), "the matrix descriptor of B"))
        b_source = decode_descriptor(value, ARCH)
        scale = bool(_common(self.read_scale(cta, lanes), "scale-d"))
        clocks, agents = cta.cluster.clocks, cta.agents(lanes)
        # what every warp of the group has seen: each of them reads all of B
        clock = Clock(clocks.seen[agents].min(axis=0), clocks.fenced[agents].min(axis=0))
        product = Product(self.accumulators, self.inputs, self.at.opcode)
        warpgroup_products.start(cta, lanes, product)
        cta.issue(
            lanes,
            ("wgmma", cta.index, lanes.start),
            lambda: self.perform(cta, lanes, a_source, b_source, scale, clock, product),
        )

    def perform(
        self,
        cta: Cta,
        lanes: slice,
        a_source: SmemDescriptor | RegisterRows,
        b_source: SmemDescriptor,
        scale: bool,
        clock: Clock,
        product: Product,
    ) -> None:
        """The tensor cores do it."""
        form = self.form
        unit = cta.agents.warpgroup(lanes.start // WARP_THREADS)
        if not cta.machine.options.values:
            product.event = cta.cluster.clocks.unit_event(unit)
            return
        codes: NDArray[Any]
        if isinstance(a_source, RegisterRows):
            bits: Any = DTYPES[f"b{OPERAND_BITS[form.a_type]}"]
            words = a_source.read(cta, lanes)
            codes = to_matrices(self.a_fragment, words, bits).reshape(M, self.k)
        else:
            codes = read_operand(
                cta.shared, a_source, M, self.k, form.a_type, self.a_major, clock, unit,
                name="operand A of wgmma",
            )  # fmt: skip
        a = decode_elements(codes, form.a_type)
        codes = read_operand(
            cta.shared, b_source, self.n, self.k, form.b_type, self.b_major, clock, unit,
            name="operand B of wgmma",
        )  # fmt: skip
        b = decode_elements(codes, form.b_type).T
        d = None
        if scale:
            words = self.d_rows.read(cta, lanes)
            d = to_matrices(self.d_fragment, words, DTYPES[form.d_type], self.tiles)
            d = d.reshape(M, self.n)
        result = multiply_accumulate(
            -a if self.signs[0] == -1 else a,
            -b if self.signs[1] == -1 else b,
            d,
            form.d_type,
            saturate=form.saturate,
            model=model_of(ARCH, "wgmma", form.a_type, form.b_type),
        )
        each = result.reshape(WARPGROUP_WARPS, WARP_ROWS, self.n)
        words = to_registers(self.d_fragment, each, np.uint32, self.tiles)
        self.d_rows.write(cta, lanes, words)
        product.event = cta.cluster.clocks.unit_event(unit)


@instruction(
    "wgmma.mma_async",
    convergent=WARPGROUP_THREADS,
    in_flight=True,
    evidence=SILICON,
    but="the rounding of random numbers, and 400 descriptors that no compiler would choose, too",
)
def multiply(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``wgmma.mma_async``: D = A x B + D of 64 x N x (32 bytes of K)."""
    product = _Multiply(at, modifiers, operands)

    def run(cta: Cta, lanes: Lanes) -> None:
        cta.launch.check_layout(at)
        for group in warpgroup_products.warpgroups(lanes):
            product.start(cta, group)

    return run
