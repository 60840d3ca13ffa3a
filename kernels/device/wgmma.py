"""A product of tiles on Hopper's tensor cores, of any width that ``wgmma`` has.

Triton's own wgmma has one tensor of sums, and so a power of two of columns; the instruction has
every multiple of 8 up to 256. A tile of 96 columns as one of 64 and one of 32 takes the time of
112. Here the sums are several tensors side by side, and one instruction takes all of their
registers: the instruction's fragments of 8 columns follow one another in the registers of a
thread, as they do in each tensor's. The operand lies in *units* that follow one another in shared
memory, so that one descriptor walks through all. Those of an MN-major operand have whole lines of
128 bytes, of which the last one's may be copied and read in part (`boxes`): the TMA unit needs more
time for half a line than for a whole one, and where a matrix's rows do not begin at lines of the L2
cache, each piece asks for a line more.

The descriptors are those that `triton_ext.hardware.operand` derives from the generated layouts.
The text is inline assembly for which Triton 3.9 is needed: it gives the addresses of tiles.
"""

# Gluon functions: their arguments are values of the compiler, not of Python.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, MmaOperand, derive_operand
from triton_ext.kernels.element_types import Major, operand_types
from triton_ext.kernels.product import ProductSpec
from triton_ext.kernels.registers import partial_sums
from triton_ext.kernels.right_operand import right_unit
from triton_ext.kernels.shared_memory import segments
from triton_ext.kernels.spec import KernelSpec
from triton_ext.kernels.tile import Sm90Tile
from triton_ext.kernels.tiles import tile_layouts

ROWS = 64
"""Rows of the left operand that an instruction reads."""
TYPES = {"fp16": "f16", "tf32": "tf32", "int8": "s8"}
"""What PTX calls element types that it does not call as this project does."""


@dataclass(frozen=True)
class SumScales:
    """Which fp32 scales a thread has for its sums of one product of tiles.

    A thread's sums are those of two rows, 8 apart, of each 64, and of two columns of each 8 (PTX
    ISA 9.0, 9.7.15.5.1, "Register Fragments", D).

    Attributes:
        rows_each, columns_each: whether each row, each column has its own: two registers for each
            64 rows, and for each 8 columns.
        segment: else, how many columns have one together; rows have one for each 64.
    """

    rows_each: bool
    columns_each: bool
    segment: int

    def of_rows(self, rows: int) -> int:
        """Registers for the scales of so many rows."""
        return rows // ROWS * (2 if self.rows_each else 1)

    def of_columns(self, columns: int) -> int:
        """Registers for the scales of so many columns."""
        return columns // 4 if self.columns_each else columns // self.segment

    def row(self, index: int, half: int) -> int:
        """The register for the first or the second row of the index-th 64."""
        return 2 * index + half if self.rows_each else index

    def column(self, column: int) -> int:
        """The register for a column, of those that a thread has: the first two of each 8."""
        return column // 8 * 2 + column % 8 if self.columns_each else column // self.segment


@dataclass(frozen=True)
class Product:
    """How a warpgroup multiplies its rows of a tile.

    Attributes:
        instruction: PTX's name of it.
        left, right: the descriptors of operands at address 0.
        steps: for each of the instructions, how many bytes its operands begin behind those of the
            first: of the left and of the right one. Those of the first 64 rows come first.
        rows: how often 64 rows there are.
        modifiers: what follows the operands.
        partials: how many sums of one product of tiles alone there are registers for, besides those
            of all, to which threads add them; 0 if the tensor cores add up all.
        scales: what these sums are multiplied with; None if they are not.
    """

    instruction: str
    left: int
    right: int
    steps: tuple[tuple[int, int], ...]
    rows: int
    modifiers: str
    partials: int
    scales: SumScales | None = None


def product_of(spec: KernelSpec) -> Product:
    """How one consumer multiplies a tile, given a kernel whose operands come in units.

    Raises:
        LayoutError: the tensor cores can't read these layouts.
    """
    product, tile, layouts = spec.product, spec.tile, spec.layouts
    assert isinstance(tile, Sm90Tile)
    size = product.element_bytes
    k = INSTRUCTION_K_BYTES // size
    rows, columns = tile.rows // tile.sharing_consumers, tile.columns
    majors = product.majors(tile.swap_ab)
    widths = [each.encoding.swizzle_byte_width for each in (layouts.left, layouts.right)]
    left = _Operand(rows, tile.block_k, ROWS, majors[0], widths[0], size)
    right = _Operand(columns, right_unit(product, tile)[0], columns, majors[1], widths[1], size)
    lefts, (rights,) = left.steps(tile.block_k), right.steps(tile.block_k)
    types = operand_types(product.element_type)[:: -1 if tile.swap_ab else 1]
    elements = ".".join(TYPES.get(each, each) for each in types)
    integers = product.element_type == "int8"
    scales = "" if integers else ", 1, 1"
    transposes = "".join(f", {int(major != 'K')}" for major in majors) if size == 2 else ""
    return Product(
        f"wgmma.mma_async.sync.aligned.m{ROWS}n{columns}k{k}"
        f".{'s32' if integers else 'f32'}.{elements}",
        left.derived.descriptor.encode(),
        right.derived.descriptor.encode(),
        tuple(pair for each in lefts for pair in zip(each, rights, strict=True)),
        len(lefts),
        scales + transposes,
        partial_sums(product, tile),
        _sum_scales(product, tile),
    )


def _sum_scales(product: ProductSpec, tile: Sm90Tile) -> SumScales | None:
    """The fp32 scales of a product's sums."""
    if not product.has_fp32_blocks:
        return None
    left, right = product.scale_rows[:: -1 if tile.swap_ab else 1]
    return SumScales(left == 1, right == 1, tile.columns // segments(product, tile))


class _Operand(NamedTuple):
    """An operand's tile, as the instructions of a product walk through it.

    Attributes:
        size: rows or columns of the tile.
        depth: elements along K of a unit. Units of the same part of K follow one another, those of
            the next part come behind them.
        read: rows or columns that an instruction reads.
        major: its contiguous dimension.
        swizzle: bytes.
        element_bytes: bytes of an element.
    """

    size: int
    depth: int
    read: int
    major: Major
    swizzle: int
    element_bytes: int

    @property
    def derived(self) -> MmaOperand:
        """The descriptor of its first part at address 0, and how it advances."""
        # Units side by side are the first part of a tile whose size is a power of two, and no less
        # than a row of an MN-major unit has.
        least = 1 if self.major == "K" else self.swizzle // self.element_bytes
        whole = max(least, 1 << (self.size - 1).bit_length())
        bits, k = 8 * self.element_bytes, INSTRUCTION_K_BYTES // self.element_bytes
        dim = 1 if self.major == "K" else 0
        linear = tile_layouts((whole, self.depth), dim, bits, self.swizzle).linear
        read = self.read if self.read < self.size else whole
        return derive_operand(linear.to_linear_layout(), bits, (read, k), arch=90)

    def steps(self, block_k: int) -> list[list[int]]:
        """For each time that so many rows or columns are read, how many bytes behind the first part
        each step along K begins.
        """
        panel = self.depth * self.size * self.element_bytes
        panels = range(block_k // self.depth)
        times = self.derived.advances[: self.size // self.read]
        return [[step + panel * i for i in panels for step in inside] for inside in times]


@gluon.constexpr_function
def tied(unit, units, others=""):
    """Constraints: the registers of so many tensors of a type, which are read and written, and
    other operands.
    """
    kind, count = "r" if unit.element_ty.is_int() else "f", units * registers_of(unit)
    return ",".join([f"={kind}"] * count + [str(i) for i in range(count)]) + others


@gluon.constexpr_function
def repeated(unit, units):
    """A type for each unit."""
    return (unit,) * units


@gluon.constexpr_function
def registers_of(unit):
    """How many registers a thread of a warpgroup has of a tensor that a cluster divides."""
    return unit.shape[0] * unit.shape[1] // 128 >> len(unit.layout.cga_layout)


@gluon.constexpr_function
def text_of(product, unit, tensors, work):
    """The text of some steps of a product, one after the other.

    Args:
        unit: the type of the tensors of sums, of which there are so many, those of `partials` too.
        work: each step's name and number: "start" the product whose sums are these partial ones
            (0, if there are none), "wait" until so many products are under way, "add" such partial
            sums to those of all.
    """
    registers = registers_of(unit)
    own = tensors // (1 + product.partials) * registers  # of one set of sums
    lines = ["{", ".reg .pred adds;", ".reg .b32 start;", ".reg .b64 left, right, a, b;"]
    operand = 2 * tensors * registers  # behind the sums as they go, and as they come
    for name in ("left", "right"):
        lines += [
            f"shr.u32 start, ${operand}, 4;",
            f"cvt.u64.u32 {name}, start;",
            f"or.b64 {name}, {name}, {getattr(product, name):#x};",
        ]
        operand += 1
    for step in work:  # Triton 3.7 reads no loop over several names
        name, number = step
        partial = own * (1 + number)
        if name == "wait":
            lines.append(f"wgmma.wait_group.sync.aligned {number};")
        elif name == "add" and product.scales is None:
            lines += [f"add.f32 ${i}, ${i}, ${partial + i};" for i in range(own)]
        elif name == "add":
            lines += added(product, registers, own, partial, operand)
            operand += scale_registers(product, registers, own)
        else:
            lines += started(product, partial if product.partials else 0, own, registers)
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def scale_registers(product, of_tensor, registers):
    """How many registers of scales a thread has for sums of so many registers."""
    rows, columns = ROWS * product.rows, 2 * registers // product.rows
    return product.scales.of_rows(rows) + product.scales.of_columns(columns)


@gluon.constexpr_function
def added(product, of_tensor, registers, partial, scales):
    """The instructions that add partial sums, times their scales.

    Args:
        of_tensor, registers: of each tensor of sums, and of all.
        partial: the first register of the partial sums.
        scales: that of the scales: those of the rows, then those of the columns.
    """
    kind = product.scales
    columns = scales + kind.of_rows(ROWS * product.rows)
    own = of_tensor // product.rows  # of 64 rows of a tensor: 4 for each 8 columns
    lines = ["{", ".reg .f32 scale;"]
    found: dict[tuple[int, int], list[int]] = {}
    for i in range(registers):
        tensor, inside = i // of_tensor, i % of_tensor
        index, register = inside // own, inside % own
        column = (tensor * own + register) // 4 * 8 + register % 2
        pair = kind.row(index, register // 2 % 2), kind.column(column)
        found[pair] = [*found.get(pair, []), i]
    for pair in found:
        lines.append(f"mul.f32 scale, ${scales + pair[0]}, ${columns + pair[1]};")
        lines += [f"fma.rn.f32 ${i}, ${partial + i}, scale, ${i};" for i in found[pair]]
    return [*lines, "}"]


@gluon.constexpr_function
def scale_constraints(product, unit, units, steps):
    """Constraints of the scales of so many products of tiles."""
    if product.scales is None:
        return ""
    own = units // (1 + product.partials) * registers_of(unit)
    return ",f" * (steps * scale_registers(product, registers_of(unit), own))


@gluon.constexpr_function
def started(product, begin, registers, of_tensor):
    """The instructions of a product.

    Args:
        begin: the first register of its sums, of which there are so many in all.
        of_tensor: and so many in each tensor, those of the first 64 rows first.
    """
    lines = ["wgmma.fence.sync.aligned;"]
    own, each_rows = of_tensor // product.rows, len(product.steps) // product.rows
    for i in range(len(product.steps)):
        first = begin + i // each_rows * own
        sums = [
            f"${tensor + first + j}"
            for tensor in range(0, registers, of_tensor)
            for j in range(own)
        ]
        anew = product.partials > 0 and i % each_rows == 0
        lines += [
            f"setp.{'ne' if anew else 'eq'}.b32 adds, 0, 0;",
            f"add.s64 a, left, {product.steps[i][0] // 16};",
            f"add.s64 b, right, {product.steps[i][1] // 16};",
            f"{product.instruction} {{{', '.join(sums)}}}, a, b, adds{product.modifiers};",
        ]
    return [*lines, "wgmma.commit_group.sync.aligned;"]


@gluon.constexpr_function
def steps_of(product, step, steps):
    """What is done when a product starts: the one before is awaited. If there are partial sums,
    that is so within a run of so many products, two of which are under way at a time, and its end
    awaits all: for ptxas, nothing that threads read may be under way when a loop begins again.
    """
    if product.partials == 0:
        return [("start", 0), ("wait", 1)]
    now, before = step % 2, (step + 1) % 2
    done = [("wait", 1), ("add", before)] if step > 0 else []
    rest = [("wait", 0), ("add", now)] if step == steps - 1 else []
    return [("start", now), *done, *rest]


@gluon.constexpr_function
def adds(step, steps):
    """The sums of how many products `steps_of` adds at a step."""
    return (step > 0) + (step == steps - 1)


@gluon.jit
def multiply(
    sums, left, right, scales, PRODUCT: gl.constexpr, STEP: gl.constexpr, STEPS: gl.constexpr
):
    """Start to add a product of tiles in shared memory to the sums, and wait for the one before.

    Args:
        scales: those of the products whose sums are added now (`adds`), rows' before columns'.
        sums: tensors of registers, all as wide; behind those of all products, partial sums.
        left, right: the left operand's tile, and the first unit of the right one's.
        STEP, STEPS: see `steps_of`.
    """
    UNIT: gl.constexpr = sums[0].type
    TEXT: gl.constexpr = text_of(PRODUCT, UNIT, len(sums), steps_of(PRODUCT, STEP, STEPS))
    SCALES: gl.constexpr = scale_constraints(PRODUCT, UNIT, len(sums), adds(STEP, STEPS))
    CONSTRAINTS: gl.constexpr = tied(UNIT, len(sums), ",r,r" + SCALES)
    TYPES: gl.constexpr = repeated(UNIT, len(sums))
    return gl.inline_asm(TEXT, CONSTRAINTS, sums + (left, right) + scales, TYPES)  # noqa: RUF005 (Triton has no *)


@gluon.jit
def wait(sums, PRODUCT: gl.constexpr):
    """Wait for the last product; the sums of all."""
    UNIT: gl.constexpr = sums[0].type
    if PRODUCT.partials == 0:
        CONSTRAINTS: gl.constexpr = tied(UNIT, len(sums))
        TYPES: gl.constexpr = repeated(UNIT, len(sums))
        sums = gl.inline_asm("wgmma.wait_group.sync.aligned 0;", CONSTRAINTS, sums, TYPES)
    return sums[: len(sums) // (1 + PRODUCT.partials)]
