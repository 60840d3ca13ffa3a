"""The tensor-core instructions that operations must become.

Their order is that of Triton's lowering (``WGMMA.cpp``, ``MMAv5.cpp``, ``TensorMemoryToLLVM.cpp``);
nothing else is taken from the compiler.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.instruction_descriptor import KINDS, InstructionDescriptor
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, MmaOperand
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS
from triton_ext.hardware.tensor_memory_copy import COPY_SHAPES, copy_shape
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.hardware.tensor_memory_scales import ScaleFactors, scale_vector
from triton_ext.layouts.attributes import parse_attribute
from triton_ext.layouts.encodings import CHUNK_BYTES
from triton_ext.mlir.arith import constant, integer_constant
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import MemoryType, TensorType, tensor_type
from triton_ext.passes.shared_accesses import layout_operand
from triton_ext.passes.value_layouts import tensor_memory_layout
from triton_ext.passes.verify_descriptors.meaning.expected import (
    Expected,
    ExpectedMatrix,
    ExpectedMma,
    Lowering,
    NotDerived,
    without_tokens,
)
from triton_ext.passes.verify_descriptors.meaning.tiles import (
    is_fp4_padded,
    per_cta,
    tile_layout,
    tile_operand,
)

MMA_ELEMENTS = {
    "f16": "f16", "bf16": "bf16", "f32": "tf32", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "i8": "s8",
}  # fmt: skip
"""Triton's element types, as the tensor cores call them."""
_DENSE_KINDS = {
    "f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "s8": "i8",
}  # fmt: skip
_ACCUMULATORS = {"f32": "f32", "f16": "f16", "i32": "s32"}
_FP8 = ("f8E4M3FN", "f8E5M2")
_FORMATS = re.compile(r"\b(?:lhs|rhs) = (\w+)")
"""Those of A and B, as a block-scaled product prints them."""
_SCALE_BLOCKS = {1: "scale_vec::1X|block32", 2: "scale_vec::2X|block32", 4: "scale_vec::4X|block16"}
"""Scale factors of a row in one instruction -> the two spellings of the modifier (PTX ISA,
"tcgen05.mma")."""


@dataclass(frozen=True)
class _Tiles:
    """A product that is cut into instructions.

    Attributes:
        m, n: those of an instruction, in one CTA.
        reps: how many instructions there are along M, N and K.
        a_operand, b_operand: the tiles in shared memory; None for an A that is elsewhere.
        a_offsets, d_offsets: addresses in tensor memory, by the indices along both dimensions; {}
            for what is elsewhere.
        steps: how many instruction tiles lie between two of a warpgroup, along M and N.
    """

    m: int
    n: int
    reps: tuple[int, int, int]
    a: Value
    b: Value
    d: Value
    a_operand: MmaOperand | None
    b_operand: MmaOperand
    a_offsets: dict[tuple[int, int], int]
    d_offsets: dict[tuple[int, int], int]
    steps: tuple[int, int] = (1, 1)

    def instructions(
        self, first: bool | None, template: Callable[[int, int, int], ExpectedMma]
    ) -> tuple[ExpectedMma, ...]:
        """All of them, in order. `first`: whether the first along K adds to D; None if that is not
        known. `template`: an instruction without A, B and D, by the indices along M, N and K."""
        found = []
        for i, j, step in itertools.product(*map(range, self.reps)):
            one = template(i, j, step)
            matrices = {"b": self.matrix("B", self.b_operand, self.b, j, step, 1)}
            if self.a_operand:
                a = {"a": self.matrix("A", self.a_operand, self.a, i, step, 0)}
                matrices = matrices | a if self.d_offsets else a | matrices
            tensor: dict[str, tuple[Value, int]] = {}
            if self.d_offsets:
                tensor["d"] = self.d, self.d_offsets[i, j]
            if self.a_offsets:
                tensor["a"] = self.a, self.a_offsets[i, step]
            found.append(
                replace(
                    one, matrices=matrices, tensor=tensor | one.tensor,
                    accumulator=i * self.reps[1] + j, accumulates=True if step else first,
                )
            )  # fmt: skip
        return tuple(found)

    def matrix(
        self, name: str, operand: MmaOperand, value: Value, index: int, step: int, axis: int
    ) -> ExpectedMatrix:
        """One operand; warpgroups lie along M, then along N."""
        rows, columns = self.steps
        first = index * self.steps[axis]
        advance = operand.advances[first][step]
        further = [
            operand.advances[(first + (group % rows, group // rows)[axis]) % len(operand.advances)][
                step
            ]
            - advance
            for group in range(rows * columns)
        ]
        return ExpectedMatrix(name, operand, advance, value, tuple(further))


# ------------------------------------------------------------------------------------- wgmma


def wgmma(lowering: Lowering, operation: Operation) -> Expected:
    """``ttng.warp_group_dot``."""
    module, (a, b), result = lowering.module, operation.operands[:2], operation.results[0]
    b_kind, a_kind = lowering.memory(b), module.memory(a)
    d_tensor = _tensor(module, result)
    a_element = a_kind.element if a_kind else _tensor(module, a).element
    types = [MMA_ELEMENTS.get(element) for element in (a_element, b_kind.element)]
    d_type = _ACCUMULATORS.get(d_tensor.element)
    warps, (_, n, k), (rows, columns) = _accumulator(result, d_tensor)
    if None in types or d_type is None:
        raise NotDerived(f"wgmma of {a_element} and {b_kind.element}")
    m = 16 * WARPGROUP_WARPS
    groups = warps[0] // WARPGROUP_WARPS, warps[1]
    a_operand = tile_operand(a_kind, (m, k), lowering.arch, 0) if a_kind else None
    b_operand = tile_operand(b_kind, (n, k), lowering.arch, 1)
    reps = -(-rows // (m * groups[0])), -(-columns // (n * groups[1])), -(-per_cta(b_kind)[0] // k)
    tiles = _Tiles(m, n, reps, a, b, result, a_operand, b_operand, {}, {}, groups)
    immediates = [] if d_type == "s32" else ["1", "1"]
    if b_kind.element_bitwidth == 16:
        operands = (a_operand, b_operand) if a_operand else (b_operand,)
        immediates += [str(int(each.major == "MN")) for each in operands]
    opcode = f"wgmma.mma_async.sync.aligned.m{m}n{n}k{k}.{d_type}.{types[0]}.{types[1]}"
    # wgmma reads c where use-c says so; a zero constant makes the first of each sum not read.
    first = _flag(operation.operands[3]) if len(operation.operands) > 3 else True
    if first is not False and constant(operation.operands[2]) == 0:
        first = False
    one = ExpectedMma(opcode, {}, tuple(immediates))
    adds = operation.operands[3] if len(operation.operands) > 3 and first is None else None
    after: list[tuple[str, Value | None, Value | None]] = [("wgmma commit", None, None)]
    if operation.attributes.get("isAsync") is not True:
        after.append(("wgmma wait", None, None))
    return Expected(
        operation, "wgmma", tiles.instructions(first, lambda i, j, step: one), adds=adds,
        after=tuple(after),
    )  # fmt: skip


def wgmma_wait(lowering: Lowering, operation: Operation) -> Expected:
    """``ttng.warp_group_dot_wait``: how many groups may be pending."""
    return Expected(
        operation, "wgmma wait", number=int(operation.attributes.get("pendings", 0))
    )  # fmt: skip


def _tensor(module: MlirModule, value: Value) -> TensorType:
    found = tensor_type(value.type or "", module.aliases)
    if found is None:
        raise NotDerived(f"the type of {value.name} is not that of a tensor")
    return found


def _accumulator(value: Value, kind: TensorType) -> tuple[list[int], list[int], list[int]]:
    """(warps, instruction shape, the shape that one CTA holds) of a wgmma's accumulator."""
    if not kind.encoding:
        raise NotDerived(f"the type of {value.name} has no encoding")
    attribute = parse_attribute(kind.encoding)
    parameters, shape = attribute.parameters, list(kind.shape)
    if "warpsPerCTA" not in parameters or "instrShape" not in parameters:
        raise NotDerived(f"the accumulator's encoding is {attribute.name}")
    for basis in parameters.get("CGALayout", ()):
        shape = [size // 2 if step else size for size, step in zip(shape, basis, strict=True)]
    if len(shape) != 2 or len(parameters["instrShape"]) != 3:
        raise NotDerived("a product of matrices of more than two dimensions")
    return parameters["warpsPerCTA"], parameters["instrShape"], shape


# ----------------------------------------------------------------------------------- tcgen05


def dense(lowering: Lowering, operation: Operation) -> Expected:
    """``ttng.tc_gen5_mma``."""
    operands = operation.operands[:3]
    a_kind, b_kind, d_kind = map(lowering.memory, operands)
    types = [MMA_ELEMENTS.get(kind.element) for kind in (a_kind, b_kind)]
    d_type = _ACCUMULATORS.get(d_kind.element)
    if None in types or d_type is None:
        raise NotDerived(f"tcgen05.mma of {a_kind.element} and {b_kind.element}")
    kind = _DENSE_KINDS[str(types[0])]
    if kind == "i8" and "is_unsigned" in operation.attributes:
        types = ["u8", "u8"]
    k = 8 * INSTRUCTION_K_BYTES // a_kind.element_bitwidth
    group = lowering.cta_group(operation)
    tiles = _tcgen05_tiles(lowering, group, operands, k, k)
    descriptor = InstructionDescriptor(
        kind, tiles.m * group, tiles.n, str(types[0]), str(types[1]), d_type,
        tiles.a_operand.major if tiles.a_operand else "K", tiles.b_operand.major,
    )  # fmt: skip
    one = ExpectedMma(f"tcgen05.mma.cta_group::{group}.kind::{kind}", {}, descriptor=descriptor)
    found = tiles.instructions(_flag(without_tokens(operation)[3]), lambda i, j, step: one)
    return Expected(
        operation, "tcgen05.mma", found, _loop_orders(tiles.reps),
        after=_commits(lowering, operation), adds=without_tokens(operation)[3],
    )  # fmt: skip


def scaled(lowering: Lowering, operation: Operation) -> Expected:
    """``ttng.tc_gen5_mma_scaled``."""
    operands = without_tokens(operation)
    a_scale, b_scale = operands[3:5]
    a_kind, b_kind, _, a_scales = map(lowering.memory, operands[:4])
    formats = _FORMATS.findall(operation.text)
    if len(formats) != 2:
        raise NotDerived("the formats of the operands are not printed")
    group = lowering.cta_group(operation)
    scale_type = {"f8E4M3FN": "ue4m3", "i8": "ue8m0"}.get(a_scales.element)
    if scale_type is None:
        raise NotDerived(f"scale factors of type {a_scales.element}")
    kind = "mxf8f6f4"
    if formats == ["e2m1", "e2m1"] and not (
        is_fp4_padded(a_kind.encoding) or is_fp4_padded(b_kind.encoding)
    ):
        kind = "mxf4nvf4" if scale_type == "ue4m3" else "mxf4"
    k = KINDS[kind].usual_k
    a_k, b_k = (k // 2 if each == "e2m1" else k for each in formats)
    tiles = _tcgen05_tiles(lowering, group, operands[:3], a_k, b_k)
    a_major, b_major = tiles.a_operand.major if tiles.a_operand else "K", tiles.b_operand.major
    if kind != "mxf8f6f4" and "MN" in (a_major, b_major):
        raise NotDerived("fp4 operands that are not K-major")
    count = a_scales.shape[-1] // tiles.reps[2]  # factors of a row in one instruction
    vector, block = _SCALE_BLOCKS[count].split("|")
    if scale_vector(kind, vector, scale_type) != count:
        raise NotDerived(f"{count} scale factors for {kind}")
    per_word = 4 // count
    columns = (max(ScaleFactors.columns(tiles.m), 4), max(ScaleFactors.columns(tiles.n), 2))

    opcode = f"tcgen05.mma.cta_group::{group}.kind::{kind}.block_scale.(?:{vector}|{block})"

    def template(i: int, j: int, step: int) -> ExpectedMma:
        word, byte = step // per_word, step % per_word * count
        descriptor = InstructionDescriptor(
            kind, tiles.m * group, tiles.n, formats[0], formats[1], "f32", a_major, b_major,
            scale_type=scale_type, scale_factor_a_id=byte, scale_factor_b_id=byte,
        )  # fmt: skip
        scales = {
            "scale_a": (a_scale, (i + word * tiles.reps[0]) * columns[0]),
            "scale_b": (b_scale, (j + word * tiles.reps[1]) * columns[1]),
        }
        return ExpectedMma(opcode, {}, descriptor=descriptor, tensor=scales)

    found = tiles.instructions(_flag(operands[5]), template)
    return Expected(
        operation, "tcgen05.mma", found, _loop_orders(tiles.reps),
        after=_commits(lowering, operation), adds=operands[5],
    )  # fmt: skip


def wrong_formats(module: MlirModule) -> Iterator[tuple[Operation, str]]:
    """Block-scaled products that take an fp8 tile as another format than its type says; what of
    them is wrong. Tiles of bytes may be of any format."""
    for operation in module.operations:
        if operation.name != "ttng.tc_gen5_mma_scaled":
            continue
        formats = _FORMATS.findall(operation.text)
        for side, value, taken in zip("AB", without_tokens(operation), formats, strict=False):
            kind = module.memory(value)
            element = kind.element if kind else ""
            if element in _FP8 and MMA_ELEMENTS[element] != taken:
                yield operation, f"{side} is a tile of {element}, and is multiplied as {taken}"


def _commits(
    lowering: Lowering, operation: Operation
) -> tuple[tuple[str, Value | None, Value | None], ...]:
    """The mbarriers that an operation names, each with the condition behind it."""
    operands = [*without_tokens(operation)[2:], None]
    return tuple(
        ("commit", value, other if other and other.type == "i1" else None)
        for value, other in itertools.pairwise(operands)
        if value
        and (kind := lowering.module.memory(value)) is not None
        and kind.element == "i64"
        and kind.space == "shared"
    )


def _tcgen05_tiles(
    lowering: Lowering, group: int, operands: list[Value], a_k: int, b_k: int
) -> _Tiles:
    """How the operands A, B and D are cut; `a_k` and `b_k` count the elements of the types along
    the K of one instruction."""
    a, b, d = operands
    a_kind, b_kind, d_kind = map(lowering.memory, operands)
    encoding = TensorMemoryEncoding.parse(d_kind.encoding)
    rows, columns = _tensor_memory_per_cta(d_kind, encoding)
    m, n = encoding.block_m, min(encoding.block_n, columns)
    reps = rows // m, columns // n, per_cta(b_kind)[0] // b_k
    a_operand, a_offsets = None, {}
    if a_kind.space == "tensor":
        a_offsets = _tensor_memory_offsets(a_kind, m, a_k, reps[0], reps[2])
    else:
        a_operand = tile_operand(a_kind, (m, _in_bytes(a_kind, a_k)), lowering.arch, 0)
    b_operand = tile_operand(b_kind, (n // group, _in_bytes(b_kind, b_k)), lowering.arch, 1)
    d_offsets = _tensor_memory_offsets(d_kind, m, n, reps[0], reps[1])
    return _Tiles(m, n, reps, a, b, d, a_operand, b_operand, a_offsets, d_offsets)


# ----------------------------------------------------------------------------- tensor memory


def tensor_memory_copy(lowering: Lowering, operation: Operation) -> Expected:
    """``ttng.tmem_copy``."""
    source, target = operation.operands[:2]
    kind, to = lowering.memory(source), lowering.memory(target)
    group = lowering.cta_group(operation)
    if to.mnemonic == "tensor_memory_scales_encoding":
        found = tuple(_scale_copies(lowering, source, target, kind, group))
        blocks = per_cta(kind)[0] // 128
    else:
        found, blocks = tuple(_matrix_copies(lowering, source, target, kind, to, group)), 1
    orders = _loop_orders((1, blocks, len(found) // blocks))
    return Expected(operation, "tcgen05.cp", found, orders, after=_commits(lowering, operation))


def _scale_copies(
    lowering: Lowering, source: Value, target: Value, kind: MemoryType, group: int
) -> Iterator[ExpectedMma]:
    """Scale factors: 128 rows of 4 factors are 32 rows of 16 bytes, for all groups of lanes.

    In tensor memory the 4 columns of each 128 rows follow each other, then the next 4 factors.
    """
    bits = kind.element_bitwidth
    rows, factors = per_cta(kind)
    if len(kind.shape) != 2 or bits != 8 or rows % 128 or factors % 4:
        raise NotDerived(f"scale factors of shape {kind.shape}, {kind.element}")
    inverse = tile_layout(kind).pseudoinvert()

    def offset(row: int, factor: int) -> int:
        return int(inverse.apply(dim0=row, dim1=factor)["offset"])

    chunk = [(0, 1), (0, 2), (32, 0), (64, 0)]
    matrix = [(1, 0), (2, 0), (4, 0)]
    stride = offset(8, 0)
    if [offset(*at) for at in chunk + matrix] != [1 << bit for bit in range(7)] or (
        offset(16, 0) != 2 * stride
    ):
        raise NotDerived("scale factors that tcgen05.cp does not read in pieces of 16 bytes")
    descriptor = SmemDescriptor(lowering.arch, 0, CHUNK_BYTES, stride, 0)
    operand = MmaOperand(descriptor, "K", bits, (32, 16), (32, 16), ((0,),), False, True)
    cells = COPY_SHAPES["32x128b", "warpx4"].columns
    blocks, words = rows // 128, factors // 4
    for i, j in itertools.product(range(blocks), range(words)):
        yield ExpectedMma(
            f"tcgen05.cp.cta_group::{group}.warpx4.32x128b",
            {"descriptor": ExpectedMatrix("source", operand, offset(128 * i, 4 * j), source)},
            tensor={"address": (target, (j * blocks + i) * cells)},
        )


def _matrix_copies(
    lowering: Lowering, source: Value, target: Value, kind: MemoryType, to: MemoryType, group: int
) -> Iterator[ExpectedMma]:
    """Other data: the widest shape whose rows the layout keeps together."""
    bits = kind.element_bitwidth
    encoding = TensorMemoryEncoding.parse(to.encoding)
    rows, columns = per_cta(kind)
    if rows != 128 or encoding.block_m != 128 or encoding.col_stride != 1:
        raise NotDerived("a copy to tensor memory of other than 128 lanes")
    offsets = _tensor_memory_offsets(to, 128, 1, 1, columns)
    for width in (256, 128):
        step = width // bits
        if columns < step or any(
            offsets[0, i] // 1 != offsets[0, i - i % step] + i % step * bits // 32
            for i in range(columns)
            if i % max(1, 32 // bits) == 0
        ):
            continue
        shape = copy_shape(f"128x{width}b")
        try:
            operand = layout_operand(tile_layout(kind), bits, (shape.rows, step), lowering.arch, 0)
        except LayoutError:
            continue
        for column in range(0, columns, step):
            yield ExpectedMma(
                f"tcgen05.cp.cta_group::{group}.{shape.name}",
                {
                    "descriptor": ExpectedMatrix(
                        "source", operand, operand.advances[0][column // step], source
                    )
                },
                tensor={"address": (target, offsets[0, column])},
            )
        return
    raise NotDerived("no shape of tcgen05.cp fits")


# ----------------------------------------------------------------------------------- helpers


def _loop_orders(reps: tuple[int, int, int]) -> tuple[tuple[int, ...], ...]:
    """The orders of three nested loops, but for (m, n, k), in which all are listed."""
    found = []
    for nesting in itertools.permutations(range(3)):
        ranges = [range(reps[axis]) for axis in nesting]
        order = []
        for index in itertools.product(*ranges):
            at = dict(zip(nesting, index, strict=True))
            order.append((at[0] * reps[1] + at[1]) * reps[2] + at[2])
        found.append(tuple(order))
    return tuple(dict.fromkeys(found[1:]))


def _in_bytes(kind: MemoryType, k: int) -> int:
    """Elements along K as the layout counts them: padded fp4 in bytes of shared memory."""
    return 2 * k if is_fp4_padded(kind.encoding) else k


def _tensor_memory_per_cta(kind: MemoryType, encoding: TensorMemoryEncoding) -> tuple[int, int]:
    rows, columns = kind.shape[-2:]
    for basis in encoding.cga_layout:
        rows //= 2 if basis[0] else 1
        columns //= 2 if basis[1] else 1
    return rows, columns


def _tensor_memory_offsets(
    kind: MemoryType, rows: int, columns: int, row_count: int, column_count: int
) -> dict[tuple[int, int], int]:
    """lane << 16 | column of each instruction's part, by the indices along both dimensions."""
    inverse = tensor_memory_layout(kind).pseudoinvert()
    found = {}
    for i, j in itertools.product(range(row_count), range(column_count)):
        where = inverse.apply(dim0=i * rows, dim1=j * columns)
        found[i, j] = where["lane"] << 16 | where["column"]
    return found


def _flag(value: Value) -> bool | None:
    """A boolean constant, or None."""
    number = integer_constant(value) if value.type == "i1" else None
    return None if number is None else bool(number)
