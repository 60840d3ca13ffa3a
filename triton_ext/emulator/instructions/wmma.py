"""Whole matrices of single warps: wmma.load, wmma.mma, wmma.store.

PTX ISA, "Warp-level Matrix Instructions using wmma". Which thread holds which element is left open
there; here it is as ptxas has it for sm_80 and later: the fragments of ``mma.m16n8``, side by side,
with those of fp16 repeated to fill eight registers, and m8n32 as the transpose of m32n8. Refused:
integers of 1 and 4 bits, and an fp16 result of an fp32 addend.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import DOCUMENT
from triton_ext.emulator.decode.flow import Flow, handled, origins_of
from triton_ext.emulator.decode.fragments import RegisterRows
from triton_ext.emulator.decode.operands import Operands, Reader
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import MemoryFault, UnsupportedInstruction
from triton_ext.emulator.instructions.moves import load_values, store_bytes
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.types import DTYPES
from triton_ext.emulator.units.matrix_product import (
    OPERAND_BITS,
    decode_elements,
    model_of,
    multiply_accumulate,
)
from triton_ext.emulator.units.tensor_core import same_in_warp
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.register_fragments import Fragment, accumulator_fragment, operand_fragment
from triton_ext.ptx.parse import Instruction

_Shape = tuple[int, int, int]
_TILE = (16, 8)
"""Rows and columns of the product that a fragment of ``mma`` is of."""
_ROW_ALIGNMENT = 16
"""CUDA C++ Programming Guide, "Warp Matrix Functions": what a leading dimension is a multiple of,
in bytes. The PTX ISA has the bytes of a fragment in its place, which may be fewer, or more."""
_HALF_REGISTERS = 8
"""The registers of an fp16 A or B of any shape (PTX ISA, "Matrix Fragments for WMMA")."""
_WIDE = ("m16n16k16", "m32n8k16", "m8n32k16")
_SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _WIDE), "tf32": ("m16n16k8",), "f64": ("m8n8k4",),
}  # fmt: skip
"""The shapes of products of each type."""
_SIZES: dict[str, _Shape] = {
    "m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8), "m8n8k4": (8, 8, 4),
}  # fmt: skip
_ADDENDS = {
    "f32": ("m16n16k16", "m32n8k16", "m8n32k16", "m16n16k8"), "f16": _WIDE, "s32": _WIDE,
    "f64": ("m8n8k4",),
}  # fmt: skip
"""The shapes of products with a C and D of each type."""
_SUMS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}
"""The types that C and D of a type's products may have; s32 of integers."""


@lru_cache(64)
def _elements(role: str, shape: _Shape, bits: int) -> NDArray[np.intp]:
    """(2, registers, threads, parts): row and column of each part of a warp's registers."""
    m, n, k = shape
    if m < _TILE[0] and n > _TILE[1]:  # the operands of the transposed product
        return _elements({"a": "b", "b": "a"}.get(role, role), (n, m, k), bits)[::-1]
    rows = min(m, _TILE[0])
    fragment: Fragment
    if role == "d":
        fragment = accumulator_fragment(rows, bits)
    else:
        fragment = operand_fragment(
            "a" if role == "a" else "b", rows if role == "a" else 8, k, bits
        )
    steps = [
        (row, column)
        for row in (range(0, m, rows) if role != "b" else (0,))
        for column in (range(0, n, _TILE[1]) if role != "a" else (0,))
    ]
    sizes = fragment.layout.in_dims
    at = fragment.layout.apply(
        register=np.arange(sizes["register"])[:, None, None],
        thread=np.arange(sizes["thread"])[None, :, None],
        part=np.arange(sizes["part"])[None, None, :],
    )
    one = np.stack([at["row"], at["column"]])
    tiles = [one + np.reshape(step, (2, 1, 1, 1)) for step in steps]
    found: NDArray[np.intp] = np.concatenate(tiles, axis=1).astype(np.intp)
    return found


class _Matrix:
    """A matrix of a ``wmma`` instruction in registers: as elements, and as matrices.

    Args:
        role: "a", "b", or "d" for C, too.
        type_name: of its elements.
    """

    def __init__(
        self, operands: Operands, at: Instruction, index: int, role: str, shape: _Shape,
        type_name: str, *, written: bool = False,
    ) -> None:  # fmt: skip
        bits = 32 if type_name == "tf32" else OPERAND_BITS.get(type_name) or int(type_name[1:])
        self.elements = _elements(role, shape, bits)
        self.codes = np.dtype(f"u{bits // 8}")
        held = self.elements.shape[1]
        count = _HALF_REGISTERS if role != "d" and type_name == "f16" else held
        self.copies = count // held
        self.word = np.dtype(f"u{max(bits, 32) // 8}")
        text = at.operands[index]
        self.rows = RegisterRows.of(
            operands, text, at, count, 8 * self.word.itemsize, written=written
        )
        self.registers = [operands.register(each, at) for each in operands.vector(text)]
        self.shape = tuple(int(each.max()) + 1 for each in self.elements)
        self.alignment = min(_ROW_ALIGNMENT, count * self.word.itemsize)

    def read(self, cta: Cta, lanes: Lanes) -> NDArray[Any]:
        """Codes of elements, (warps, rows, columns)."""
        _, held, _, parts = self.elements.shape
        words = np.ascontiguousarray(self.rows.read(cta, lanes)[:held])
        codes = words.view(self.codes).reshape(held, -1, WARP_THREADS, parts).swapaxes(0, 1)
        found = np.empty((len(codes), *self.shape), self.codes)
        found[:, self.elements[0], self.elements[1]] = codes
        return found

    def write(self, cta: Cta, lanes: Lanes, matrices: NDArray[Any]) -> None:
        """Set the elements: codes, (warps, rows, columns)."""
        self.write_parts(cta, lanes, matrices[:, self.elements[0], self.elements[1]].swapaxes(0, 1))

    def write_parts(self, cta: Cta, lanes: Lanes, parts: NDArray[Any]) -> None:
        """Set the parts of registers: codes, (registers, warps, threads, parts)."""
        words = np.ascontiguousarray(parts).view(self.word).reshape(len(parts), -1)
        self.rows.write(cta, lanes, np.tile(words, (self.copies, 1)))


class _Place:
    """Where a matrix lies in memory: the operands ``[address]`` and, perhaps, the stride.

    Args:
        index: of the address among the operands; the stride is the last one, if there is one.
        layout: "row" or "col".
    """

    def __init__(
        self, operands: Operands, at: Instruction, index: int, matrix: _Matrix, layout: str
    ) -> None:
        self.address = operands.address(at.operands[index], at)
        self.matrix, self.is_row = matrix, layout == "row"
        self.stride: Reader | None = None
        if len(at.operands) == 3:
            self.stride = operands.reader(at.operands[2], "u32", at)

    def chunks(self, cta: Cta, lanes: Lanes) -> tuple[NDArray[np.int64], int]:
        """The addresses that threads access, and how many parts of a register lie at each.

        Returns:
            (registers, accesses, lanes), in bytes; parts of a register that are neighbours in
            memory are accessed together.
        """
        matrix, size = self.matrix, self.matrix.codes.itemsize
        warps = len(lane_sets.whole_warps(lanes))
        first = same_in_warp(self.address(cta, lanes), warps, "the address")
        stride: NDArray[np.int64] = np.full(warps, matrix.shape[1 if self.is_row else 0], np.int64)
        if self.stride is not None:
            stride = same_in_warp(self.stride(cta, lanes), warps, "the stride").astype(np.int64)
        wrong = np.flatnonzero((first % matrix.alignment) | (stride * size % matrix.alignment))
        if len(wrong):
            at = wrong[0]
            raise MemoryFault(
                f"wmma at address {int(first[at]):#x}, with a stride of {int(stride[at])} elements:"
                f" both must be multiples of {matrix.alignment} bytes"
            )
        far, near = matrix.elements if self.is_row else matrix.elements[::-1]
        together = bool((np.diff(near, axis=2) == 1).all() and not np.diff(far, axis=2).any())
        parts = near.shape[2] if together else 1
        far, near = (each[:, :, ::parts].swapaxes(1, 2)[:, :, None] for each in (far, near))
        places = first[:, None] + (far * stride[:, None] + near) * size
        return places.reshape(*places.shape[:2], -1), parts


def _opened(modifiers: Modifiers) -> None:
    for part in ("sync", "aligned"):
        if not modifiers.flag(part):
            raise UnsupportedInstruction(f"wmma must have .{part}", modifiers.instruction)


def _layout(modifiers: Modifiers) -> str:
    found = modifiers.one_of(("row", "col"))
    if not found:
        raise UnsupportedInstruction("wmma must have .row or .col", modifiers.instruction)
    return found


def _moved(modifiers: Modifiers, role: str) -> tuple[str, _Shape, str, str]:
    """Layout, shape, space and type of a load or store."""
    _opened(modifiers)
    layout, shape = _layout(modifiers), modifiers.one_of(_SIZES)
    space = modifiers.one_of(("global", "shared", "shared::cta")).split("::")[0]
    legal = _ADDENDS if role == "d" else _SHAPES
    type_name = modifiers.one_of(legal)
    if not shape or shape not in legal.get(type_name, ()):
        why = "a matrix of this type and shape is not modelled"
        raise UnsupportedInstruction(why, modifiers.instruction)
    return layout, _SIZES[shape], space, type_name


@instruction("wmma.load", convergent=True, evidence=DOCUMENT, lockstep=True)
def load_matrix(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``wmma.load``: A, B or C from memory."""
    role = modifiers.one_of(("a", "b", "c")).replace("c", "d")
    layout, shape, space, type_name = _moved(modifiers, role)
    matrix = _Matrix(operands, at, 0, role, shape, type_name, written=True)
    place = _Place(operands, at, 1, matrix, layout)
    operands.flow = Flow(handled)

    def run(cta: Cta, lanes: Lanes) -> None:
        places, parts = place.chunks(cta, lanes)
        size = parts * matrix.codes.itemsize
        words, doubts = [], []
        for each in places:
            found = [load_values(cta, lanes, space, address, size) for address in each]
            words.append(np.concatenate([values for values, _ in found], axis=1))
            origins = [one.max(axis=1) for _, one in found if one is not None]
            doubts.append(np.max(origins, axis=0) if origins else None)
        codes = np.stack(words).view(matrix.codes)
        codes = codes.reshape(len(words), -1, WARP_THREADS, matrix.elements.shape[3])
        matrix.write_parts(cta, lanes, codes)
        if cta.undefined.registers or any(each is not None for each in doubts):
            for register, doubt in zip(matrix.registers, doubts * matrix.copies, strict=True):
                cta.undefined.put(register, lanes, doubt)

    return run


@instruction("wmma.store", convergent=True, evidence=DOCUMENT, lockstep=True)
def store_matrix(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``wmma.store``: D to memory."""
    if not modifiers.flag("d"):
        raise UnsupportedInstruction("wmma.store must have .d", at)
    layout, shape, space, type_name = _moved(modifiers, "d")
    matrix = _Matrix(operands, at, 1, "d", shape, type_name)
    place = _Place(operands, at, 0, matrix, layout)
    operands.flow = Flow(handled)

    def run(cta: Cta, lanes: Lanes) -> None:
        places, parts = place.chunks(cta, lanes)
        size, words = parts * matrix.codes.itemsize, matrix.rows.read(cta, lanes)
        for register, word, each in zip(matrix.registers, words, places, strict=True):
            origins = None
            if cta.undefined.registers:
                origins = origins_of(cta, [register], matrix.word.itemsize, lanes)
            values = np.ascontiguousarray(word).view(np.uint8).reshape(len(word), -1)
            for number, address in enumerate(each):
                part = slice(number * size, (number + 1) * size)
                mine = None if origins is None else origins[:, part]
                store_bytes(cta, lanes, space, address, values[:, part], origins=mine)

    return run


@instruction("wmma.mma", convergent=True, evidence=DOCUMENT, lockstep=True)
def multiply(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """``wmma.mma``: D = A x B + C, each warp its own; rounded as ``mma.sync`` of that K."""
    _opened(modifiers)
    for _ in "ab":  # memory's order does not show in registers
        _layout(modifiers)
    name, saturate = modifiers.one_of(_SIZES), modifiers.flag("satfinite")
    types = list(iter(lambda: modifiers.one_of((*OPERAND_BITS, "f32", "s32")), ""))
    if len(types) == 2:  # of fp16, C and D alone are named
        types[1:1] = ["f16", "f16"]
    d_type, a_type, b_type, c_type = (*types, "", "", "", "")[:4]
    if a_type == "f64":
        modifiers.flag("rn")
    shape = _SIZES.get(name, (0, 0, 0))
    integers = {a_type, b_type} <= {"s8", "u8"}
    legal = a_type == b_type or integers
    legal &= name in _SHAPES.get(a_type, ()) and (integers or not saturate)
    legal &= {d_type, c_type} <= set(_SUMS.get(a_type, ("s32",))) and (d_type, c_type) != (
        "f16",
        "f32",
    )
    if not legal:
        raise UnsupportedInstruction("a product of these types and shape is not modelled", at)
    d = _Matrix(operands, at, 0, "d", shape, d_type, written=True)
    a, b = (
        _Matrix(operands, at, 1 + i, "ab"[i], shape, each)
        for i, each in enumerate((a_type, b_type))
    )
    c = _Matrix(operands, at, 3, "d", shape, c_type)
    model = model_of(operands.target.number, "mma", a_type, b_type)

    def run(cta: Cta, lanes: Lanes) -> None:
        lane_sets.whole_warps(lanes)
        left, right = (
            decode_elements(each.read(cta, lanes), type_name)
            for each, type_name in ((a, a_type), (b, b_type))
        )
        addend = c.read(cta, lanes).view(DTYPES[c_type]).astype(DTYPES[d_type])
        total = multiply_accumulate(left, right, addend, d_type, saturate=saturate, model=model)
        d.write(cta, lanes, np.ascontiguousarray(total).view(d.codes))

    return run
