"""Matrix instructions of single warps: ldmatrix, stmatrix, movmatrix, mma.sync.

PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions". All warps of a fiber are done at
once. Refused: sparse products, integers of 1 and 4 bits, and the products of Volta
(``m8n8k4`` of f16).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import REFUSED, SILICON
from triton_ext.emulator.decode.flow import Flow, handled, origins_of
from triton_ext.emulator.decode.fragments import RegisterRows, to_matrices, to_registers
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import UnsupportedInstruction
from triton_ext.emulator.instructions import warp_scales
from triton_ext.emulator.instructions.moves import load_values, store_bytes
from triton_ext.emulator.instructions.warp_scales import WarpScales
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Bytes
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units.matrix_product import (
    OPERAND_BITS,
    decode_elements,
    model_of,
    multiply_accumulate,
)
from triton_ext.emulator.units.operand_matrix import unpack_codes
from triton_ext.emulator.units.scale_factors import E2M1_SHIFT, SCALES
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.register_fragments import (
    LDMATRIX_M16N16,
    MATRIX_ROW_BYTES,
    SOURCE_FORMATS,
    STMATRIX_M16N8,
    Fragment,
    accumulator_fragment,
    core_fragment,
    operand_fragment,
)
from triton_ext.ptx.parse import Instruction

_WORD_BYTES = 4
_DOUBTFUL = np.uint8(0xFF)
"""In the place of a byte that is undefined, where other bytes are 0."""
_COUNTS = ("x1", "x2", "x4")
_CODE_TYPES = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def _shared(modifiers: Modifiers) -> str:
    """The space of the address: shared, or generic."""
    return modifiers.one_of(("shared", "shared::cta")).split("::")[0]


def _row_lanes(lanes: Lanes, rows: int) -> Lanes:
    """The lanes of each warp whose addresses count: the first `rows`."""
    threads = lane_sets.indices(lanes)
    return lane_sets.pack(threads[threads % WARP_THREADS < rows])


@instruction(
    "ldmatrix",
    convergent=True,
    evidence=SILICON,
    but="8-, 6- and 4-bit forms of sm_100: document",
    lockstep=True,
)
def load_matrix(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``ldmatrix``: thread r of a warp names row r; each row is 16 bytes of shared memory."""
    modifiers.flag("sync")
    modifiers.flag("aligned")
    shape = modifiers.one_of(("m8n8", "m8n16", "m16n16"))
    number = int((modifiers.one_of(_COUNTS) or "x0")[1:])
    transposed = modifiers.flag("trans")
    space = _shared(modifiers)
    source_bits = 0
    if modifiers.flag("b8x16"):
        source_bits = SOURCE_FORMATS[modifiers.one_of(SOURCE_FORMATS)]
    type_name = "b8" if source_bits else modifiers.one_of(("b16", "b8"))
    legal = {
        ("m8n8", "b16"): True,
        ("m8n16", "b8"): bool(source_bits) and not transposed,
        ("m16n16", "b8"): transposed and number <= 2,
    }
    if not legal.get((shape, type_name)) or not number:
        raise UnsupportedInstruction("not a form of ldmatrix that the PTX ISA has", at)
    rows, registers = (16, 2) if shape == "m16n16" else (8, 1)
    fragment: Fragment
    if shape == "m16n16":
        fragment = LDMATRIX_M16N16
    else:
        fragment = core_fragment(int(type_name[1:]))
        fragment = fragment.transposed if transposed else fragment
    target = RegisterRows.of(operands, at.operands[0], at, number * registers, written=True)
    address = operands.address(at.operands[1], at)
    element = DTYPES[type_name]
    targets = [operands.register(text, at) for text in operands.vector(at.operands[0])]
    operands.flow = Flow(handled)
    # the matrices stand below each other: as columns, they are the fragments of one instruction
    columns = MATRIX_ROW_BYTES // element.itemsize

    def distribute(chunks: Bytes, warps: int) -> NDArray[Any]:
        """Rows of matrices as (registers, threads)."""
        matrices = np.ascontiguousarray(chunks).view(element).reshape(-1, rows, columns)
        words = to_registers(fragment, matrices, np.uint32)  # (registers, warp and matrix, thread)
        each = words.reshape(registers, warps, number, WARP_THREADS).transpose(2, 0, 1, 3)
        return each.reshape(number * registers, -1)

    def run(cta: Cta, lanes: Lanes) -> None:
        warps = len(lane_sets.whole_warps(lanes))
        naming = _row_lanes(lanes, number * rows)
        chunks, origins = load_values(cta, naming, space, address(cta, naming), MATRIX_ROW_BYTES)
        if source_bits:
            chunks = unpack_codes(chunks[:, : 2 * source_bits], source_bits)
        target.write(cta, lanes, distribute(chunks, warps))
        if origins is not None:
            doubtful = origins != 0
            if source_bits:  # all of a row, if a part of it is
                doubtful = np.repeat(
                    doubtful[:, : 2 * source_bits].any(axis=1)[:, None], MATRIX_ROW_BYTES, axis=1
                )
            words = distribute(np.where(doubtful, _DOUBTFUL, np.uint8(0)), warps)
            loads = origins.reshape(warps, -1).max(axis=1).repeat(WARP_THREADS)
            for register, each in zip(targets, words, strict=True):
                bits = np.ascontiguousarray(each).view(np.uint8).reshape(-1, _WORD_BYTES).T
                cta.undefined.put(register, lanes, np.where(bits, loads, 0))
        elif cta.undefined.registers:
            cta.undefined.put_all(targets, lanes, None)

    return run


@instruction(
    "stmatrix",
    convergent=True,
    evidence=SILICON,
    but="8-bit forms of sm_100: document",
    lockstep=True,
)
def store_matrix(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``stmatrix``: the counterpart of ``ldmatrix``."""
    modifiers.flag("sync")
    modifiers.flag("aligned")
    shape = modifiers.one_of(("m8n8", "m16n8"))
    number = int((modifiers.one_of(_COUNTS) or "x0")[1:])
    transposed = modifiers.flag("trans")
    space = _shared(modifiers)
    type_name = modifiers.one_of(("b16", "b8"))
    fragment: Fragment
    if (shape, type_name) == ("m8n8", "b16"):
        fragment = core_fragment(16)
        fragment = fragment.transposed if transposed else fragment
    elif (shape, type_name, transposed) == ("m16n8", "b8", True):
        fragment = STMATRIX_M16N8.transposed
    else:
        raise UnsupportedInstruction("not a form of stmatrix that the PTX ISA has", at)
    if not number:
        raise UnsupportedInstruction("the opcode must have .x1, .x2 or .x4", at)
    rows = 8
    source = RegisterRows.of(operands, at.operands[1], at, number)
    address = operands.address(at.operands[0], at)
    element = DTYPES[type_name]
    sources = [operands.register(text, at) for text in operands.vector(at.operands[1])]
    operands.flow = Flow(handled)

    def collect(registers: NDArray[Any], warps: int) -> Bytes:
        """(registers, threads) as rows of matrices, warp by warp, matrix by matrix."""
        words = registers.reshape(number, warps, WARP_THREADS).swapaxes(0, 1)
        matrices = to_matrices(fragment, np.ascontiguousarray(words).reshape(1, -1), element)
        return np.ascontiguousarray(matrices).view(np.uint8).reshape(-1, MATRIX_ROW_BYTES)

    def run(cta: Cta, lanes: Lanes) -> None:
        warps = len(lane_sets.whole_warps(lanes))
        naming = _row_lanes(lanes, number * rows)
        values, origins = collect(source.read(cta, lanes), warps), None
        if cta.undefined.registers:
            origins = origins_of(cta, sources, _WORD_BYTES, lanes)
        if origins is not None:  # each row's: one of those of its warp
            bits = np.where(origins, _DOUBTFUL, np.uint8(0)).view(np.uint32).T
            loads = origins.reshape(warps, -1).max(axis=1).repeat(number * rows)
            origins = np.where(collect(bits, warps), loads[:, None], 0)
        store_bytes(cta, naming, space, address(cta, naming), values, origins=origins)

    return run


@instruction("movmatrix", convergent=True, evidence=SILICON, lockstep=True)
def move_matrix(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``movmatrix``: a matrix of 8 x 8 in a warp's registers, transposed."""
    for part in ("sync", "aligned", "m8n8", "trans", "b16"):
        if not modifiers.flag(part):
            raise UnsupportedInstruction("not a form of movmatrix that the PTX ISA has", at)
    target = RegisterRows.of(operands, at.operands[0], at, 1, written=True)
    source = RegisterRows.of(operands, at.operands[1], at, 1)
    fragment = core_fragment(16)

    def run(cta: Cta, lanes: Lanes) -> None:
        lane_sets.whole_warps(lanes)
        matrices = to_matrices(fragment, source.read(cta, lanes), np.uint16)
        target.write(cta, lanes, to_registers(fragment.transposed, matrices, np.uint32))

    return run


# operand type -> the shapes (M, N, K), and the types that the accumulator may have
_PRODUCTS: dict[str, tuple[set[tuple[int, int, int]], set[str]]] = {
    "f16": ({(16, 8, 8), (16, 8, 16)}, {"f16", "f32"}),
    "bf16": ({(16, 8, 8), (16, 8, 16)}, {"f32"}),
    "tf32": ({(16, 8, 4), (16, 8, 8)}, {"f32"}),
    "f64": ({(8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)}, {"f64"}),
    "e4m3": ({(16, 8, 16), (16, 8, 32)}, {"f16", "f32"}),
    "e5m2": ({(16, 8, 16), (16, 8, 32)}, {"f16", "f32"}),
    "s8": ({(8, 8, 16), (16, 8, 16), (16, 8, 32)}, {"s32"}),
    "u8": ({(8, 8, 16), (16, 8, 16), (16, 8, 32)}, {"s32"}),
}
_MIXED = ({"e4m3", "e5m2"}, {"s8", "u8"})
_F8F6F4 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
"""The types of ``.kind::f8f6f4`` and ``mxf8f6f4``, in containers of 8 bits."""
_SHAPES = {
    f"m{m}n{n}k{k}": (m, n, k)
    for m, n, k in [(16, 8, 64), *(each for shapes, _ in _PRODUCTS.values() for each in shapes)]
}


@instruction(
    "mma.sync",
    convergent=True,
    evidence=SILICON,
    but="the rounding of random numbers, too; `.kind` of sm_120: document",
    lockstep=True,
)
def multiply(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``mma.sync``: D = A x B + C, each warp its own."""
    modifiers.flag("aligned")
    shape = modifiers.one_of(_SHAPES)
    if not shape:
        raise UnsupportedInstruction("a product of this shape is not modelled", at)
    m, n, k = _SHAPES[shape]
    row, column = modifiers.flag("row"), modifiers.flag("col")
    saturate = modifiers.flag("satfinite")
    types = (*OPERAND_BITS, "f32", "s32")
    kind, scaled = modifiers.starting("kind::"), modifiers.flag("block_scale")
    d_type, a_type, b_type, c_type = (modifiers.one_of(types) for _ in range(4))
    legal = row and column and c_type == d_type
    scales = None
    if scaled and kind in warp_scales.KINDS:
        vector, scale_type = modifiers.starting("scale_vec::"), modifiers.one_of(SCALES)
        scales = WarpScales.of(operands, at, kind, vector, scale_type)
        few = _F8F6F4 if kind == "mxf8f6f4" else ("e2m1",)
        legal &= warp_scales.KINDS[kind][0] == (m, n, k) and d_type == "f32" and not saturate
        legal &= a_type in few and b_type in few
    elif kind == "f8f6f4":
        legal &= (m, n, k) == (16, 8, 32) and d_type in ("f16", "f32") and not saturate
        legal &= a_type in _F8F6F4 and b_type in _F8F6F4
    else:
        shapes, accumulators = _PRODUCTS.get(a_type, (set(), set()))
        mixed = any({a_type, b_type} <= pair for pair in _MIXED)
        legal &= (m, n, k) in shapes and d_type in accumulators and not kind and not scaled
        legal &= (a_type == b_type or mixed) and (d_type == "s32" or not saturate)
    if not legal:
        raise UnsupportedInstruction("a product of these types and shape is not modelled", at)
    contained = "f8f6f4" in kind  # 4 and 6 bits are in containers of 8
    a_bits, b_bits = (
        max(8, OPERAND_BITS[each]) if contained else OPERAND_BITS[each] for each in (a_type, b_type)
    )
    d_bits = int(d_type[1:])
    a_fragment = operand_fragment("a", m, k, a_bits)
    b_fragment = operand_fragment("b", n, k, b_bits)
    d_fragment = accumulator_fragment(m, d_bits)
    word = 64 if d_type == "f64" else 32

    def rows(index: int, fragment: Fragment) -> RegisterRows:
        count = 1 << len(fragment.registers)
        return RegisterRows.of(operands, at.operands[index], at, count, word, written=not index)

    d_rows, c_rows = rows(0, d_fragment), rows(3, d_fragment)
    a_rows, b_rows = rows(1, a_fragment), rows(2, b_fragment)
    word_type: Any = _CODE_TYPES[word]
    d_dtype = DTYPES[d_type]

    def operand(
        cta: Cta, lanes: Lanes, registers: RegisterRows, fragment: Fragment, type_name: str
    ) -> NDArray[Any]:
        words, bits = registers.read(cta, lanes), OPERAND_BITS[type_name]
        if bits >= 8:
            return decode_elements(to_matrices(fragment, words, _CODE_TYPES[bits]), type_name)
        if not contained:
            packed = np.ascontiguousarray(words).view(np.uint8)
            words = unpack_codes(packed.reshape(len(words), -1), bits).view(np.uint64)
        codes = to_matrices(fragment, words, np.uint8)
        if contained and type_name == "e2m1":
            codes = codes >> E2M1_SHIFT & 15
        return decode_elements(codes & (1 << bits) - 1, type_name)

    model = model_of(operands.target.number, "mma", a_type, b_type)

    def run(cta: Cta, lanes: Lanes) -> None:
        lane_sets.whole_warps(lanes)
        a = operand(cta, lanes, a_rows, a_fragment, a_type)
        b = operand(cta, lanes, b_rows, b_fragment, b_type)
        if scales is not None:
            a = a * np.repeat(scales.a.read(cta, lanes), k // scales.a.count, axis=2)
            factors = np.repeat(scales.b.read(cta, lanes), k // scales.b.count, axis=2)
            b = b * factors.swapaxes(1, 2)
        c = to_matrices(d_fragment, c_rows.read(cta, lanes), d_dtype)
        d = multiply_accumulate(a, b, c, d_type, saturate=saturate, model=model)
        d_rows.write(cta, lanes, to_registers(d_fragment, d, word_type))

    return run


@instruction("mma.sp mma.sync.sp", evidence=REFUSED)
def refuse(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Not modelled: Triton and CuTe do not emit them for sm_90 and sm_100."""
    raise UnsupportedInstruction("sparse products are not modelled", at)
