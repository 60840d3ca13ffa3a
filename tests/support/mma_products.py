"""Products of two operands in shared memory: drawn configurations of all types and layouts."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import dataclass
from functools import cached_property

from triton_ext import LinearLayout, NVMMAShared, core_matrix_linear_layout
from triton_ext.hardware.instruction_descriptor import legal_n
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, derive_operand
from triton_ext.layouts.encodings import CHUNK_BYTES, SWIZZLE_BYTE_WIDTHS, SharedLinear
from triton_ext.layouts.nvmma_shared import ATOM_ROWS

KINDS = {
    "f16": "f16", "bf16": "f16", "tf32": "tf32",
    "e4m3": "f8f6f4", "e5m2": "f8f6f4", "s8": "i8", "u8": "i8",
}  # fmt: skip
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "s32": 32} | dict.fromkeys(
    ("e4m3", "e5m2", "s8", "u8"), 8
)
MAJORS = ("K", "MN")
TARGETS = [(90, 1), (100, 1), (100, 2)]  # architecture, CTA group
WARPGROUP = 128  # threads
WARPGROUP_WARPS = 4


def operand_layout(shape, bits, swizzle, major, mn_dim, atoms):
    """A tile of atoms in shared memory: ``offset`` -> ``dim0``, ``dim1``.

    Args:
        shape: (M or N, K).
        mn_dim: which of the two dimensions M or N is: A is (M, K), B is (K, N).
        atoms: along which dimension one atom follows the other: "strided" first, as in Triton's
            NVMMA encodings, or "contiguous" first.
    """
    atom = core_matrix_linear_layout(NVMMAShared(swizzle, bits))
    height, width = atom.out_dims.values()
    extents = shape if major == "K" else shape[::-1]  # (strided, contiguous)
    rows = [(height << i, 0) for i in range((extents[0] // height).bit_length() - 1)]
    columns = [(0, width << i) for i in range((extents[1] // width).bit_length() - 1)]
    bases = [*atom.bases["offset"], *(rows + columns if atoms == "strided" else columns + rows)]
    if (major == "K") != (mn_dim == 0):
        bases, extents = [basis[::-1] for basis in bases], extents[::-1]
    return LinearLayout({"offset": bases}, {"dim0": extents[0], "dim1": extents[1]})


@dataclass(frozen=True)
class Operand:
    """A or B of a product, in shared memory.

    Attributes:
        shape: (M or N, K): what one CTA holds.
        instruction: the M or N of one instruction that one CTA holds. With cta_group 2 each CTA
            of the pair holds half of A's rows and half of B's columns, all of K (PTX ISA,
            "tcgen05.mma"; CUTLASS ``mma_traits_sm100.hpp``, ``SM100_MMA_F16BF16_2x1SM_SS``), and
            the descriptors, with which its first CTA issues the instruction, hold for both.
        as_nvmma: whether Triton is given an NVMMA encoding, rather than the bases.
        bases: in place of those of `operand_layout`.
    """

    arch: int
    cta_group: int
    element_type: str
    mn_dim: int
    shape: tuple[int, int]
    instruction: int
    major: str
    swizzle: int
    atoms: str = "strided"
    as_nvmma: bool = False
    bases: tuple[tuple[int, int], ...] = ()

    @property
    def bits(self):
        return BITS[self.element_type]

    @property
    def instruction_k(self):
        return 8 * INSTRUCTION_K_BYTES // self.bits

    @property
    def bytes(self):
        return self.shape[0] * self.shape[1] * self.bits // 8

    @property
    def subtiles(self):
        """How many instructions the tile takes along M or N, and K."""
        return self.shape[0] // self.instruction, self.shape[1] // self.instruction_k

    @cached_property
    def linear(self):
        if self.bases:
            return LinearLayout({"offset": self.bases}, ["dim0", "dim1"])
        return operand_layout(
            self.shape, self.bits, self.swizzle, self.major, self.mn_dim, self.atoms
        )

    @property
    def encoding(self):
        """The encoding of the tile over all CTAs."""
        peer = [0, 0]
        peer[self.mn_dim] = 1
        if self.as_nvmma:
            transposed = (self.major == "K") != (self.mn_dim == 0)
            cga = [peer] * (self.cta_group - 1)
            return NVMMAShared(self.swizzle, self.bits, transposed, cga_layout=cga)
        blocks = [[self.shape[0] * value for value in peer]] * (self.cta_group - 1)
        alignment = max(CHUNK_BYTES, ATOM_ROWS * self.swizzle)
        return SharedLinear(self.linear.bases["offset"], blocks, alignment)

    @cached_property
    def derived(self):
        instruction = (self.instruction, self.instruction_k)
        return derive_operand(
            self.linear, self.bits, instruction, arch=self.arch, mn_dim=self.mn_dim
        )


@dataclass(frozen=True)
class Product:
    """D = A @ B, and how it is cut into instructions."""

    a: Operand
    b: Operand
    d_type: str
    warps: tuple[int, int] = (WARPGROUP_WARPS, 1)

    @property
    def arch(self):
        return self.a.arch

    @property
    def cta_group(self):
        return self.a.cta_group

    @property
    def shape(self):
        """(M, N, K), over all CTAs."""
        (m, k), (n, _) = self.a.shape, self.b.shape
        return m * self.cta_group, n * self.cta_group, k

    @property
    def instruction(self):
        """(M, N) of an instruction's accumulator in one CTA: with cta_group 2, all of N."""
        return self.a.instruction, self.b.instruction * self.cta_group

    @property
    def warpgroups(self):
        """Those that issue instructions, along M and N: all with wgmma, one with tcgen05."""
        return (self.warps[0] // WARPGROUP_WARPS, self.warps[1]) if self.arch == 90 else (1, 1)

    def job(self):
        return {
            "arch": self.arch,
            "cta_group": self.cta_group,
            "a_type": self.a.element_type,
            "b_type": self.b.element_type,
            "d_type": self.d_type,
            "shape": self.shape,
            "instruction": self.instruction,
            "warps": self.warps,
            "a": str(self.a.encoding),
            "b": str(self.b.encoding),
        }


# ------------------------------------------------------------------------ configurations

TYPES = {16: ["f16", "bf16"], 32: ["tf32"], 8: ["e4m3", "e5m2", "s8"]}
WARPS = {90: [(4, 1), (8, 1), (4, 2)], 100: [(4, 1)]}
MOST_INSTRUCTIONS = 16
MOST_ACCUMULATORS = 128 * 256  # per CTA
MOST_BYTES = 224 << 10


def drawn_operand(draw, arch, cta_group, element_type, mn_dim, instruction, k, major, swizzle):
    """An operand of one or more instructions along M or N, or None if an atom does not fit."""
    bits = BITS[element_type]
    repeats = 1 if cta_group == 2 and mn_dim == 1 else draw.choice([1, 1, 2])  # REFUSED: 2 CTAs
    shape = (instruction * repeats, k)
    strided, contiguous = shape if major == "K" else shape[::-1]
    if 8 * max(CHUNK_BYTES, swizzle) > contiguous * bits or strided < ATOM_ROWS:
        return None
    if major == "MN" and instruction * bits < 8 * CHUNK_BYTES:
        return None  # test_a_chunk_cut_in_two
    atoms = draw.choice(["strided", "contiguous"])
    as_nvmma = swizzle > 0 and atoms == "strided" and strided <= 256 and draw.random() < 0.5
    return Operand(
        arch, cta_group, element_type, mn_dim, shape, instruction, major, swizzle, atoms, as_nvmma
    )


def drawn_product(draw, arch, cta_group, bits, majors, swizzles):
    """A random product of such operands, or None if it cannot be cut into instructions."""
    a_type = draw.choice(TYPES[bits])
    kind = KINDS[a_type]
    b_type = draw.choice(["e4m3", "e5m2"]) if kind == "f8f6f4" else a_type
    d_type = "s32" if kind == "i8" else "f32"
    if a_type in ("f16", "e4m3", "e5m2"):
        d_type = draw.choice(["f32", "f32", "f16"])
    m = 64 if arch == 90 else draw.choice([64, 128])
    n = draw.choice([8, 16, 32, 64, 128, 256])
    if arch == 100 and n not in legal_n(kind, m * cta_group, cta_group):
        return None
    if arch == 90 and kind == "i8" and n == 256:
        return None  # REFUSED
    k = draw.choice([1, 2, 4, 8]) * 8 * INSTRUCTION_K_BYTES // bits
    warps = draw.choice(WARPS[arch])
    operands = [
        drawn_operand(draw, arch, cta_group, element_type, mn_dim, extent, k, major, swizzle)
        for mn_dim, element_type, extent, major, swizzle in zip(
            range(2), (a_type, b_type), (m, n // cta_group), majors, swizzles, strict=True
        )
    ]
    if None in operands:
        return None
    a, b = operands
    fits = (
        a.subtiles[0] * b.subtiles[0] * a.subtiles[1] <= MOST_INSTRUCTIONS
        and a.shape[0] * b.shape[0] * cta_group <= MOST_ACCUMULATORS
        and a.bytes + b.bytes <= MOST_BYTES
        and a.shape[0] >= 16 * warps[0]
        and b.subtiles[0] >= warps[1]
    )
    return Product(a, b, d_type, warps) if fits else None


def hardware_majors(arch, bits):
    """wgmma reads MN-major operands of 16 bits alone; tcgen05 reads them of 32 bits too, but with
    a swizzle that no NVMMA encoding has."""
    both = bits == 16 or (bits == 8 and arch == 100)
    return MAJORS if both else ("K",)


@functools.cache
def products(arch, cta_group):
    """Each pair of major-nesses and of swizzles; all else at random, the same each time."""
    found = []
    for bits in TYPES:
        for choice in itertools.product(
            itertools.product(hardware_majors(arch, bits), repeat=2),
            itertools.product(SWIZZLE_BYTE_WIDTHS, repeat=2),
        ):
            draw = random.Random(f"{arch} {cta_group} {bits} {choice}")
            drawn = (drawn_product(draw, arch, cta_group, bits, *choice) for _ in itertools.count())
            found.append(next(product for product in drawn if product))
    return found
