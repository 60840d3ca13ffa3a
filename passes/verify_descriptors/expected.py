"""What the tensor-core instructions and TMA copies of a module must be, from the TTGIR alone.

Each operation becomes a list of expected instructions, in the order in which Triton's lowering
emits them (``WGMMA.cpp``, ``MMAv5.cpp``, ``TensorMemoryToLLVM.cpp``, ``LoadStoreOpToLLVM.cpp``).
Descriptors, advances and boxes are derived from the layouts by `triton_ext.hardware`; nothing is
taken from the compiler but that order.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import Architecture
from triton_ext.hardware.instruction_descriptor import KINDS, InstructionDescriptor
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES, MmaOperand, derive_operand
from triton_ext.hardware.smem_descriptor import SmemDescriptor
from triton_ext.hardware.tensor_memory_copy import COPY_SHAPES, copy_shape
from triton_ext.hardware.tensor_memory_encoding import TensorMemoryEncoding
from triton_ext.hardware.tensor_memory_scales import ScaleFactors, scale_vector
from triton_ext.hardware.tma_tile import TileCopies, tile_copies
from triton_ext.layouts.encodings import CHUNK_BYTES, NVMMAShared, SharedLinear, parse_encoding
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import nvmma_shared_to_linear_layout
from triton_ext.mlir.arith import constant, integer_constant
from triton_ext.mlir.attributes import parse_attribute
from triton_ext.mlir.memory_flow import forwarded
from triton_ext.mlir.module import MlirModule, Operation, Value
from triton_ext.mlir.types import MemoryType
from triton_ext.passes.verify_descriptors.mlir_scalars import Scalars

WARPGROUP_WARPS = 4
MMA_ELEMENTS = {
    "f16": "f16", "bf16": "bf16", "f32": "tf32", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "i8": "s8",
}  # fmt: skip
"""Triton's element types, as the tensor cores call them."""
_DENSE_KINDS = {
    "f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "s8": "i8",
}  # fmt: skip
_KINDS = {
    "ttng.warp_group_dot": "wgmma",
    "ttng.tc_gen5_mma": "tcgen05.mma",
    "ttng.tc_gen5_mma_scaled": "tcgen05.mma",
    "ttng.tmem_copy": "tcgen05.cp",
    "ttng.async_tma_copy_global_to_local": "tma",
    "ttng.async_tma_copy_local_to_global": "tma",
    "ttng.async_tma_reduce": "tma",
    "ttng.async_tma_gather": "tma",
    "ttng.async_tma_scatter": "tma",
    "ttng.barrier_expect": "expect",
}
"""The operations that are looked at, and the kind of instruction that each becomes."""
_ACCUMULATORS = {"f32": "f32", "f16": "f16", "i32": "s32"}


class NotDerived(Exception):
    """An operation that this module cannot predict; says why."""


@dataclass(frozen=True)
class ExpectedMatrix:
    """A matrix descriptor of one instruction.

    Attributes:
        name: "A", "B" or "source".
        operand: the tile and its descriptor; only the fields that the instruction reads count.
        advance: of the start address, in bytes from that of the tile's first element.
        value: the TTGIR value that it reads.
    """

    name: str
    operand: MmaOperand
    advance: int
    value: Value


@dataclass(frozen=True)
class ExpectedMma:
    """One wgmma, tcgen05.mma or tcgen05.cp.

    Attributes:
        opcode: what its opcode must be; the tcgen05 forms may have a collector qualifier behind.
        matrices: its shared-memory operands, by place among the PTX operands.
        immediates: wgmma: the constants behind scale-d.
        descriptor: tcgen05.mma: the instruction descriptor.
        tensor: addresses in tensor memory, by place among the PTX operands: the value, and the
            offset from its start (lane << 16 | column).
        accumulator: which of the operation's accumulators it adds to.
        accumulates: whether it adds to what is there: None if the operation decides at run time.
    """

    opcode: str
    matrices: dict[int, ExpectedMatrix]
    immediates: tuple[str, ...] = ()
    descriptor: InstructionDescriptor | None = None
    tensor: dict[int, tuple[Value, int]] = field(default_factory=dict)
    accumulator: int = 0
    accumulates: bool | None = None


@dataclass(frozen=True)
class ExpectedBox:
    """One TMA box.

    Attributes:
        smem_offset: in bytes from the tile's first element.
        coordinates: added to the operation's, innermost first.
        bytes: that arrive at the barrier.
    """

    smem_offset: int
    coordinates: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class Expected:
    """What one operation is lowered to.

    Attributes:
        operation: in the TTGIR.
        kind: of instruction: "wgmma", "tcgen05.mma", "tcgen05.cp", "tma" or "expect".
        instructions: MMAs and tensor-memory copies, in order.
        orders: other orders of the instructions that mean the same: the compiler may let an operand
            stay in the collector buffer.
        opcode: of TMA copies and ``expect_tx``: a regular expression.
        boxes: of a TMA copy, in order; each warp of the partition issues its part.
        tile: the TTGIR value of the shared memory that a TMA copy reads or writes.
        barrier: the value of the mbarrier, if there is one.
        warps: of the partition that the operation stands in.
        bytes: of ``expect_tx``.
        coordinates: the operation's coordinates, outermost first.
        rows: of a gather or scatter: how many rows each instruction moves; 0 else.
        is_padded: coordinates along the innermost dimension count padded fp4 (two a byte).
        argument: which argument of the kernel the TMA descriptor is; None if it is another value.
        is_dead: its predicate is false: the compiler may leave it out.
    """

    operation: Operation
    kind: str
    instructions: tuple[ExpectedMma, ...] = ()
    orders: tuple[tuple[int, ...], ...] = ()
    opcode: str = ""
    boxes: tuple[ExpectedBox, ...] = ()
    tile: Value | None = None
    barrier: Value | None = None
    warps: int = 0
    bytes: int = 0
    coordinates: tuple[Value, ...] = ()
    rows: int = 0
    is_padded: bool = False
    argument: int | None = None
    is_dead: bool = False


# ---------------------------------------------------------------------------------- layouts


shared_encoding = lru_cache(maxsize=1024)(parse_encoding)
"""`parse_encoding`, its results kept."""


@lru_cache(maxsize=1024)
def _layout(shape: tuple[int, ...], encoding: str) -> LinearLayout:
    """Where the elements of a tile lie; with fp4_padded, in bytes, the padding included."""
    parsed = shared_encoding(encoding)
    if isinstance(parsed, NVMMAShared):
        layout = nvmma_shared_to_linear_layout(shape, parsed)
        return _unpacked(layout) if parsed.fp4_padded else layout
    if isinstance(parsed, SharedLinear):
        return parsed.to_linear_layout()
    return parsed.to_linear_layout(shape)


def _unpacked(layout: LinearLayout) -> LinearLayout:
    """A padded fp4 tile with a coordinate for each byte: 8 of data, then 8 of padding.

    PTX ISA, "Packing format used for matrix A and B by .kind::mxf8f6f4": the tensor core reads the
    16 bytes as 16 elements.
    """
    packed_dim = next(
        i for i, value in enumerate(layout.bases["offset"][0]) if value
    )  # offset 1 is the contiguous dimension

    def spread(basis: tuple[int, ...]) -> tuple[int, ...]:
        value = basis[packed_dim]
        wide = value // 8 * 16 + value % 8
        return (*basis[:packed_dim], wide, *basis[packed_dim + 1 :])

    bases = {name: [spread(basis) for basis in found] for name, found in layout.bases.items()}
    padding = [0] * len(layout.out_dims)
    padding[packed_dim] = 8
    bases["offset"][3] = tuple(padding)
    sizes = dict(layout.out_dims)
    sizes[f"dim{packed_dim}"] *= 2
    return LinearLayout(bases, sizes)


def encoding_rank(encoding: str) -> int:
    """How many dimensions a shared encoding has."""
    return shared_encoding(encoding).rank


def tile_layout(kind: MemoryType) -> LinearLayout:
    """The layout of the tile that a shared-memory value is a part of (not its buffers)."""
    rank = encoding_rank(kind.encoding)
    return _layout(kind.allocated[-rank:], kind.encoding)


def is_fp4_padded(encoding: str) -> bool:
    """Whether the encoding pads packed fp4."""
    return "fp4Padded = true" in encoding


def element_bytes(kind: MemoryType) -> int:
    """Of an element in shared memory, the padding of fp4 left out."""
    return max(1, kind.element_bitwidth // 8)


@lru_cache(maxsize=1024)
def _operand(
    layout: LinearLayout, bits: int, instruction: tuple[int, int], arch: Architecture, mn_dim: int
) -> MmaOperand:
    return derive_operand(layout, bits, instruction, arch=arch, mn_dim=mn_dim)


def _derived(
    kind: MemoryType, instruction: tuple[int, int], arch: Architecture, mn_dim: int
) -> MmaOperand:
    return _operand(tile_layout(kind), kind.element_bitwidth, instruction, arch, mn_dim)


def _per_cta(kind: MemoryType) -> tuple[int, int]:
    """The (rows, columns) of a two-dimensional tile that one block of the cluster holds."""
    layout = _layout(kind.shape[-2:], kind.encoding) if not _is_linear(kind) else tile_layout(kind)
    sizes = []
    for i, name in enumerate(layout.out_dims):
        held = max((basis[i].bit_length() for basis in layout.bases["offset"]), default=0)
        sizes.append(min(1 << held, layout.out_dims[name]))
    if is_fp4_padded(kind.encoding):
        packed = next(i for i, value in enumerate(layout.bases["offset"][0]) if value)
        sizes[packed] //= 2
    return (min(sizes[0], kind.shape[-2]), min(sizes[1], kind.shape[-1]))


def _is_linear(kind: MemoryType) -> bool:
    return kind.mnemonic == "shared_linear"


# ------------------------------------------------------------------------------- the module


class ModuleExpectations:
    """The expected instructions of every operation of a module.

    Args:
        module: the TTGIR.
        arch: 90 or 100.

    Attributes:
        found: for each operation that could be predicted.
        refused: the others, and why.
        wrong: operations with an operand that no descriptor describes.
        open: the kinds of instruction of `refused` and `wrong`, with the operations.
    """

    def __init__(self, module: MlirModule, arch: Architecture) -> None:
        self.module, self.arch = module, arch
        self.scalars = Scalars(module)
        self.found: list[Expected] = []
        self.refused: list[tuple[Operation, str]] = []
        self.wrong: list[tuple[Operation, LayoutError]] = []
        rules = {
            "ttng.warp_group_dot": self._wgmma,
            "ttng.tc_gen5_mma": self._dense,
            "ttng.tc_gen5_mma_scaled": self._scaled,
            "ttng.tmem_copy": self._tensor_memory_copy,
            "ttng.async_tma_copy_global_to_local": self._tma_load,
            "ttng.async_tma_copy_local_to_global": self._tma_store,
            "ttng.async_tma_reduce": self._tma_reduce,
            "ttng.async_tma_gather": self._gather,
            "ttng.async_tma_scatter": self._scatter,
            "ttng.barrier_expect": self._expect,
        }
        self.open: list[tuple[str, Operation]] = []
        for operation in module.operations:
            rule = rules.get(operation.name)
            if rule is None:
                continue
            self.open.append((_KINDS[operation.name], operation))
            try:
                found = rule(operation)
                tile = self.module.memory(found.tile) if found.tile else None
                self.found.append(
                    replace(
                        found,
                        is_dead=_is_dead(operation, self.scalars),
                        argument=self._argument(operation.operands[0]) if found.tile else None,
                        is_padded=tile is not None and is_fp4_padded(tile.encoding),
                    )
                )
                self.open.pop()
            except NotDerived as reason:
                self.refused.append((operation, str(reason)))
            except LayoutError as error:
                if _KINDS[operation.name] == "tma":
                    self.refused.append((operation, error.rule))
                else:
                    self.wrong.append((operation, error))

    @cached_property
    def two_ctas(self) -> bool:
        """Whether the module's MMAs are issued for pairs of CTAs."""
        return self.module.attributes.get("ttng.two-ctas") is True

    def _argument(self, value: Value) -> int | None:
        """Which argument of the kernel a TMA descriptor is."""
        pending, seen, found = [value], {value}, set()
        while pending:
            here = pending.pop()
            sources = self._sources.get(here, [])
            pending += [source for source in sources if source not in seen]
            seen.update(sources)
            if not sources:
                found.add(here)
        if len(found) != 1:
            return None
        (source,) = found
        block = source.block
        if source.definition is not None or block is None:
            return None
        parent = block.region.parent
        is_kernel = parent.name == "tt.func" and "public" in {t.text for t in parent.tokens}
        return source.index if is_kernel else None

    @cached_property
    def _sources(self) -> dict[Value, list[Value]]:
        """What control flow hands on to a TMA descriptor."""
        found: dict[Value, list[Value]] = {}
        for source, target in forwarded(self.module):
            if "tensordesc" in (target.type or ""):
                found.setdefault(target, []).append(source)
        return found

    def _memory(self, value: Value) -> MemoryType:
        kind = self.module.memory(value)
        if kind is None:
            raise NotDerived(f"the type of {value.name} is not that of memory")
        return kind

    def _warps(self, operation: Operation) -> int:
        """Of the partition, or of the kernel, that an operation stands in."""
        around = operation
        while (parent := around.parent) is not None:
            if parent.name == "ttg.warp_specialize" and around.block is not None:
                index = parent.regions.index(around.block.region)
                if index:
                    counts = re.findall(r"num_warps\((\d+)\)", self._own_text(parent))
                    return int(counts[index - 1])
            around = parent
        return int(self.module.attributes.get("ttg.num-warps", WARPGROUP_WARPS))

    @staticmethod
    def _own_text(operation: Operation) -> str:
        return (
            " ".join(token.text for token in operation.tokens)
            .replace(" ( ", "(")
            .replace(" )", ")")
        )

    # ------------------------------------------------------------------------------- wgmma

    def _wgmma(self, operation: Operation) -> Expected:
        a, b = operation.operands[:2]
        result = operation.results[0]
        layout = _accumulator(self.module, result)
        b_kind = self._memory(b)
        a_kind = self.module.memory(a)
        a_element = a_kind.element if a_kind else _tensor_element(a)
        types = [MMA_ELEMENTS.get(element) for element in (a_element, b_kind.element)]
        d_type = _ACCUMULATORS.get(_tensor_element(result))
        if None in types or d_type is None:
            raise NotDerived(f"wgmma of {a_element} and {b_kind.element}")
        n, k = layout.instruction[1], layout.instruction[2]
        m = 16 * WARPGROUP_WARPS
        rows, columns = layout.per_cta
        depth = _per_cta(b_kind)[0]
        groups = layout.warps[0] // WARPGROUP_WARPS, layout.warps[1]
        reps = (
            -(-rows // (m * groups[0])),
            -(-columns // (n * groups[1])),
            -(-depth // k),
        )
        b_operand = _derived(b_kind, (n, k), self.arch, 1)
        a_operand = _derived(a_kind, (m, k), self.arch, 0) if a_kind else None
        sixteen = b_kind.element_bitwidth == 16
        immediates = [] if d_type == "s32" else ["1", "1"]
        if sixteen:
            if a_operand:
                immediates.append(str(int(a_operand.major == "MN")))
            immediates.append(str(int(b_operand.major == "MN")))
        opcode = f"wgmma.mma_async.sync.aligned.m{m}n{n}k{k}.{d_type}.{types[0]}.{types[1]}"
        # wgmma reads c where use-c says so; a zero constant makes the first of each sum not read.
        first = _flag(operation.operands[3]) if len(operation.operands) > 3 else True
        if first is not False and constant(operation.operands[2]) == 0:
            first = False
        instructions = []
        for i, j in itertools.product(range(reps[0]), range(reps[1])):
            for step in range(reps[2]):
                matrices = {}
                if a_operand:
                    row = i * groups[0]
                    matrices[1] = ExpectedMatrix("A", a_operand, a_operand.advances[row][step], a)
                column = j * groups[1]
                matrices[2] = ExpectedMatrix("B", b_operand, b_operand.advances[column][step], b)
                instructions.append(
                    ExpectedMma(
                        opcode,
                        matrices,
                        tuple(immediates),
                        accumulator=i * reps[1] + j,
                        accumulates=True if step else first,
                    )
                )
        return Expected(operation, "wgmma", tuple(instructions), warps=self._warps(operation))

    # ----------------------------------------------------------------------------- tcgen05

    def _cta_group(self, operation: Operation) -> int:
        return 2 if self.two_ctas or "two_ctas" in operation.attributes else 1

    def _dense(self, operation: Operation) -> Expected:
        a, b, d = operation.operands[:3]
        a_kind, b_kind, d_kind = map(self._memory, (a, b, d))
        types = [MMA_ELEMENTS.get(kind.element) for kind in (a_kind, b_kind)]
        d_type = _ACCUMULATORS.get(d_kind.element)
        if None in types or d_type is None:
            raise NotDerived(f"tcgen05.mma of {a_kind.element} and {b_kind.element}")
        kind = _DENSE_KINDS[str(types[0])]
        if kind == "i8" and "is_unsigned" in operation.attributes:
            types = ["u8", "u8"]
        k = 8 * INSTRUCTION_K_BYTES // a_kind.element_bitwidth
        group = self._cta_group(operation)
        tiles = self._tiles(operation, a_kind, b_kind, d_kind, k, k)
        descriptor = InstructionDescriptor(
            kind, tiles.m * group, tiles.n, str(types[0]), str(types[1]), d_type,
            tiles.a.major if tiles.a else "K", tiles.b.major,
        )  # fmt: skip
        opcode = f"tcgen05.mma.cta_group::{group}.kind::{kind}"
        first = _flag(self._use_d(operation, 3))
        instructions = [
            ExpectedMma(
                opcode,
                tiles.matrices(a, b, i, j, step),
                descriptor=descriptor,
                tensor=tiles.tensor(a, d, i, j, step),
                accumulator=i * tiles.reps[1] + j,
                accumulates=True if step else first,
            )
            for i, j, step in itertools.product(*map(range, tiles.reps))
        ]
        return Expected(
            operation, "tcgen05.mma", tuple(instructions), _loop_orders(tiles.reps),
            warps=self._warps(operation),
        )  # fmt: skip

    def _use_d(self, operation: Operation, after: int) -> Value:
        """The operand that says whether D is read: the first one behind D and its token."""
        at = after
        while operation.operands[at].type == "!ttg.async.token":
            at += 1
        return operation.operands[at]

    def _tiles(
        self,
        operation: Operation,
        a_kind: MemoryType,
        b_kind: MemoryType,
        d_kind: MemoryType,
        a_k: int,
        b_k: int,
    ) -> _Tiles:
        """How the operands of a tcgen05.mma are cut into instructions; `a_k` and `b_k` count the
        elements of the types along the K of one instruction."""
        encoding = TensorMemoryEncoding.parse(d_kind.encoding)
        group = self._cta_group(operation)
        rows, columns = _tensor_memory_per_cta(d_kind, encoding)
        m, n = encoding.block_m, min(encoding.block_n, columns)
        reps = rows // m, columns // n, _per_cta(b_kind)[0] // b_k
        in_tensor_memory = a_kind.space == "tensor"
        return _Tiles(
            m,
            n,
            (reps[0], reps[1], reps[2]),
            None
            if in_tensor_memory
            else _derived(a_kind, (m, _in_bytes(a_kind, a_k)), self.arch, 0),
            _derived(b_kind, (n // group, _in_bytes(b_kind, b_k)), self.arch, 1),
            _tensor_memory_offsets(d_kind, encoding, m, n, reps[0], reps[1]),
            _tensor_memory_offsets(
                a_kind, TensorMemoryEncoding.parse(a_kind.encoding), m, a_k, reps[0], reps[2]
            )
            if in_tensor_memory
            else {},
        )

    def _scaled(self, operation: Operation) -> Expected:
        operands = [value for value in operation.operands if value.type != "!ttg.async.token"]
        a, b, d, a_scale, b_scale = operands[:5]
        a_kind, b_kind, d_kind, a_scales = map(self._memory, operands[:4])
        formats = re.findall(r"\b(?:lhs|rhs) = (\w+)", operation.text)
        if len(formats) != 2:
            raise NotDerived("the formats of the operands are not printed")
        group = self._cta_group(operation)
        scale_type = {"f8E4M3FN": "ue4m3", "i8": "ue8m0"}.get(a_scales.element)
        packed = formats == ["e2m1", "e2m1"] and not (
            is_fp4_padded(a_kind.encoding) or is_fp4_padded(b_kind.encoding)
        )
        if scale_type is None:
            raise NotDerived(f"scale factors of type {a_scales.element}")
        kind = "mxf8f6f4"
        if packed:
            kind = "mxf4nvf4" if scale_type == "ue4m3" else "mxf4"
        a_pack = 2 if formats[0] == "e2m1" else 1
        b_pack = 2 if formats[1] == "e2m1" else 1
        k = KINDS[kind].k[0]
        tiles = self._tiles(operation, a_kind, b_kind, d_kind, k // a_pack, k // b_pack)
        if kind != "mxf8f6f4" and ((tiles.a and tiles.a.major == "MN") or tiles.b.major == "MN"):
            raise NotDerived("fp4 operands that are not K-major")
        depth = tiles.reps[2] * k
        count = k * a_scales.shape[-1] // depth  # factors of a row in one instruction
        vector = {1: "scale_vec::1X", 2: "scale_vec::2X", 4: "scale_vec::4X"}[count]
        if scale_vector(kind, vector, scale_type) != count:
            raise NotDerived(f"{count} scale factors for {kind}")
        blocks = {
            "scale_vec::1X": "block32",
            "scale_vec::2X": "block32",
            "scale_vec::4X": "block16",
        }
        opcode = (
            f"tcgen05.mma.cta_group::{group}.kind::{kind}.block_scale.(?:{vector}|{blocks[vector]})"
        )
        first = _flag(self._use_d(operation, operation.operands.index(b_scale) + 1))
        per_word = 4 // count
        instructions = []
        for i, j, step in itertools.product(*map(range, tiles.reps)):
            word, byte = step // per_word, step % per_word * count
            descriptor = InstructionDescriptor(
                kind, tiles.m * group, tiles.n, formats[0], formats[1], "f32",
                tiles.a.major if tiles.a else "K", tiles.b.major, scale_type=scale_type,
                scale_factor_a_id=byte, scale_factor_b_id=byte,
            )  # fmt: skip
            a_columns, b_columns = ScaleFactors.columns(tiles.m), ScaleFactors.columns(tiles.n)
            scales = {
                4: (a_scale, (i + word * tiles.reps[0]) * max(a_columns, 4)),
                5: (b_scale, (j + word * tiles.reps[1]) * max(b_columns, 2)),
            }
            instructions.append(
                ExpectedMma(
                    opcode,
                    tiles.matrices(a, b, i, j, step),
                    descriptor=descriptor,
                    tensor=tiles.tensor(a, d, i, j, step) | scales,
                    accumulator=i * tiles.reps[1] + j,
                    accumulates=True if step else first,
                )
            )
        return Expected(
            operation, "tcgen05.mma", tuple(instructions), _loop_orders(tiles.reps),
            warps=self._warps(operation),
        )  # fmt: skip

    def _tensor_memory_copy(self, operation: Operation) -> Expected:
        source, target = operation.operands[:2]
        kind, to = self._memory(source), self._memory(target)
        group = self._cta_group(operation)
        if to.mnemonic == "tensor_memory_scales_encoding":
            found = list(self._scale_copies(source, target, kind, group))
        else:
            found = list(self._matrix_copies(source, target, kind, to, group))
        tiles = (1, 1, len(found))
        if to.mnemonic == "tensor_memory_scales_encoding":
            blocks = _per_cta(kind)[0] // 128
            tiles = (1, blocks, len(found) // blocks)
        return Expected(
            operation, "tcgen05.cp", tuple(found), _loop_orders(tiles), warps=self._warps(operation)
        )

    def _scale_copies(
        self, source: Value, target: Value, kind: MemoryType, group: int
    ) -> Iterator[ExpectedMma]:
        """Scale factors: 128 rows of 4 factors are 32 rows of 16 bytes, for all groups of lanes.

        In tensor memory the 4 columns of each 128 rows follow each other, then the next 4 factors.
        """
        bits = kind.element_bitwidth
        rows, factors = _per_cta(kind)
        if len(kind.shape) != 2 or bits != 8 or rows % 128 or factors % 4:
            raise NotDerived(f"scale factors of shape {kind.shape}, {kind.element}")
        inverse = tile_layout(kind).pseudoinvert()

        def place(row: int, factor: int) -> int:
            return int(inverse.apply(dim0=row, dim1=factor)["offset"])

        chunk = [(0, 1), (0, 2), (32, 0), (64, 0)]
        matrix = [(1, 0), (2, 0), (4, 0)]
        stride = place(8, 0)
        if [place(*at) for at in chunk + matrix] != [1 << bit for bit in range(7)] or (
            place(16, 0) != 2 * stride
        ):
            raise NotDerived("scale factors that tcgen05.cp does not read in pieces of 16 bytes")
        descriptor = SmemDescriptor(self.arch, 0, CHUNK_BYTES, stride, 0)
        operand = MmaOperand(descriptor, "K", bits, (32, 16), (32, 16), ((0,),), False, True)
        cells = COPY_SHAPES["32x128b", "warpx4"].columns
        blocks, words = rows // 128, factors // 4
        for i, j in itertools.product(range(blocks), range(words)):
            yield ExpectedMma(
                f"tcgen05.cp.cta_group::{group}.warpx4.32x128b",
                {1: ExpectedMatrix("source", operand, place(128 * i, 4 * j), source)},
                tensor={0: (target, (j * blocks + i) * cells)},
            )

    def _matrix_copies(
        self, source: Value, target: Value, kind: MemoryType, to: MemoryType, group: int
    ) -> Iterator[ExpectedMma]:
        """Other data: the widest shape whose rows the layout keeps together."""
        bits = kind.element_bitwidth
        encoding = TensorMemoryEncoding.parse(to.encoding)
        rows, columns = _per_cta(kind)
        if rows != 128 or encoding.block_m != 128 or encoding.col_stride != 1:
            raise NotDerived("a copy to tensor memory of other than 128 lanes")
        offsets = _tensor_memory_offsets(to, encoding, 128, 1, 1, columns)
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
                operand = _operand(tile_layout(kind), bits, (shape.rows, step), self.arch, 0)
            except LayoutError:
                continue
            for column in range(0, columns, step):
                yield ExpectedMma(
                    f"tcgen05.cp.cta_group::{group}.{shape.name}",
                    {
                        1: ExpectedMatrix(
                            "source", operand, operand.advances[0][column // step], source
                        )
                    },
                    tensor={0: (target, offsets[0, column])},
                )
            return
        raise NotDerived("no shape of tcgen05.cp fits")

    # --------------------------------------------------------------------------------- TMA

    def _copies(self, tile: MemoryType, rank: int) -> TileCopies:
        encoding = shared_encoding(tile.encoding)
        if not isinstance(encoding, NVMMAShared):
            raise NotDerived(f"a TMA copy to {tile.mnemonic}")
        if encoding.rank != rank:
            raise NotDerived(f"{rank} coordinates for an encoding of rank {encoding.rank}")
        return _tile_copies(tile.shape[-rank:], encoding)

    def _boxes(self, copies: TileCopies) -> tuple[ExpectedBox, ...]:
        return tuple(
            ExpectedBox(box.smem_offset, box.coordinates, box.transaction_bytes)
            for box in copies.boxes
        )

    def _im2col_boxes(self, tile: MemoryType, rank: int) -> tuple[ExpectedBox, ...]:
        """Pixels are not cut (a box has up to 1024); channels are, at the swizzle's width."""
        encoding = shared_encoding(tile.encoding)
        if not isinstance(encoding, NVMMAShared) or encoding.cga_layout or encoding.transposed:
            raise NotDerived("an im2col copy of such a tile")
        pixels, channels = tile.shape[-2:]
        unit = element_bytes(tile)
        width = encoding.swizzle_byte_width // unit or channels
        size = pixels * width * unit
        return tuple(
            ExpectedBox(i * size, (i * width,) + (0,) * (rank - 1), size)
            for i in range(channels // width)
        )

    def _coordinates(self, operation: Operation) -> tuple[Value, ...]:
        """What stands in the brackets behind the descriptor."""
        names = iter(zip(operation.operand_tokens, operation.operands, strict=True))
        opening = next(
            token.start for token in operation.tokens if token.kind == "mark" and token.text == "["
        )
        closing = next(
            token.start for token in operation.tokens if token.kind == "mark" and token.text == "]"
        )
        return tuple(value for token, value in names if opening < token.start < closing)

    def _tma_load(self, operation: Operation) -> Expected:
        coordinates = self._coordinates(operation)
        is_im2col = "im2col" in (operation.operands[0].type or "")
        after = operation.operands[1 + len(coordinates) :]
        memory = [value for value in after if self.module.memory(value)]
        kinds = [self._memory(value) for value in memory]
        tile, barrier = (
            memory[:2]
            if kinds[1].element == "i64" and kinds[1].shape[-1] < 32
            else (memory[1], memory[0])
        )
        if is_im2col:
            boxes = self._im2col_boxes(self._memory(tile), len(coordinates))
        else:
            boxes = self._boxes(self._copies(self._memory(tile), len(coordinates)))
        mode = r"\.im2col" if is_im2col else r"(\.tile)?"
        return Expected(
            operation,
            "tma",
            opcode=rf"cp\.async\.bulk\.tensor\.{len(coordinates)}d(\.cta_group::[12])?"
            rf"\.shared::(cta|cluster)\.global{mode}\.mbarrier::complete_tx::bytes"
            r"(\.multicast::cluster)?(\.cta_group::[12])?(\.L2::cache_hint)?",
            boxes=boxes,
            tile=tile,
            barrier=barrier,
            warps=self._warps(operation),
            coordinates=coordinates,
        )

    def _store_like(self, operation: Operation, opcode: str) -> Expected:
        coordinates = self._coordinates(operation)
        tile = operation.operands[1 + len(coordinates)]
        copies = self._copies(self._memory(tile), len(coordinates))
        return Expected(
            operation,
            "tma",
            opcode=opcode.format(rank=len(coordinates)),
            boxes=self._boxes(copies),
            tile=tile,
            warps=self._warps(operation),
            coordinates=coordinates,
        )

    def _tma_store(self, operation: Operation) -> Expected:
        return self._store_like(
            operation,
            r"cp\.async\.bulk\.tensor\.{rank}d(\.tile)?\.global\.shared::cta"
            r"(\.tile)?\.bulk_group(\.L2::cache_hint)?",
        )

    def _tma_reduce(self, operation: Operation) -> Expected:
        words = [token.text for token in operation.tokens if token.kind == "word"]
        kind = {"add": "add", "min": "min", "max": "max", "and": "and", "or": "or", "xor": "xor",
                "inc": "inc", "dec": "dec"}.get(words[1] if len(words) > 1 else "", "")  # fmt: skip
        if not kind:
            raise NotDerived("a reduction of a kind that is not known")
        return self._store_like(
            operation,
            r"cp\.reduce\.async\.bulk\.tensor\.{rank}d(\.tile)?\.global\.shared::cta\."
            + kind
            + r"(\.tile)?\.bulk_group(\.L2::cache_hint)?",
        )

    def _gather(self, operation: Operation) -> Expected:
        memory = [value for value in operation.operands[1:] if self.module.memory(value)]
        tile, barrier = memory[0], memory[1]
        if self._memory(tile).element == "i64" and self._memory(tile).shape[-1] < 32:
            tile, barrier = barrier, tile
        return self._rows(
            operation,
            tile,
            barrier,
            r"cp\.async\.bulk\.tensor\.2d\.tile::gather4(\.cta_group::[12])?"
            r"\.shared::(cta|cluster)\.global\.mbarrier::complete_tx::bytes(\.multicast::cluster)?",
        )

    def _scatter(self, operation: Operation) -> Expected:
        memory = [value for value in operation.operands[1:] if self.module.memory(value)]
        return self._rows(
            operation,
            memory[0],
            None,
            r"cp\.async\.bulk\.tensor\.2d\.tile::scatter4\.global\.shared::cta\.bulk_group",
        )

    def _rows(
        self, operation: Operation, tile: Value, barrier: Value | None, opcode: str
    ) -> Expected:
        """Four rows an instruction, as wide as a box."""
        kind = self._memory(tile)
        encoding = shared_encoding(kind.encoding)
        if not isinstance(encoding, NVMMAShared):
            raise NotDerived(f"a TMA copy to {kind.mnemonic}")
        copies = _tile_copies(kind.shape[-2:], encoding)
        width = copies.box_shape[1]
        rows, columns = copies.tile_shape
        factor = 2 if encoding.fp4_padded else 1
        unit = element_bytes(kind)
        box_rows = copies.box_shape[0]
        boxes = []
        starts = {box.start: box.smem_offset for box in copies.boxes}
        for row in range(0, rows, 4):
            for column in range(0, columns, width):
                inside = row % box_rows
                first = starts[(row - inside, column)]
                row_bytes = width * factor * unit
                boxes.append(
                    ExpectedBox(
                        first + inside * row_bytes,
                        (column * factor, row),
                        4 * width * unit,
                    )
                )
        coordinates = self._coordinates(operation)
        return Expected(
            operation, "tma", opcode=opcode, boxes=tuple(boxes), tile=tile, barrier=barrier,
            warps=self._warps(operation), coordinates=coordinates, rows=4,
        )  # fmt: skip

    def _expect(self, operation: Operation) -> Expected:
        numbers = [
            int(token.text)
            for before, token in itertools.pairwise(operation.tokens)
            if token.kind == "number" and before.text == ","
        ]
        if not numbers:
            raise NotDerived("the number of bytes is not printed")
        return Expected(
            operation,
            "expect",
            opcode=r"mbarrier\.arrive\.expect_tx\.shared::(cta|cluster)\.b64",
            barrier=operation.operands[0],
            bytes=numbers[0],
            warps=self._warps(operation),
        )


# --------------------------------------------------------------------------------- helpers


@dataclass(frozen=True)
class _Tiles:
    """The instructions of a tcgen05.mma: how many along M, N and K, and their operands."""

    m: int
    n: int
    reps: tuple[int, int, int]
    a: MmaOperand | None
    b: MmaOperand
    d_offsets: dict[tuple[int, int], int]
    a_offsets: dict[tuple[int, int], int]

    def matrices(self, a: Value, b: Value, i: int, j: int, step: int) -> dict[int, ExpectedMatrix]:
        found = {2: ExpectedMatrix("B", self.b, self.b.advances[j][step], b)}
        if self.a:
            found[1] = ExpectedMatrix("A", self.a, self.a.advances[i][step], a)
        return found

    def tensor(self, a: Value, d: Value, i: int, j: int, step: int) -> dict[int, tuple[Value, int]]:
        found = {0: (d, self.d_offsets[i, j])}
        if not self.a:
            found[1] = (a, self.a_offsets[i, step])
        return found


def _loop_orders(reps: tuple[int, int, int]) -> tuple[tuple[int, ...], ...]:
    """The orders of three nested loops, but for (m, n, k), in which all are listed."""
    found = []
    for nesting in itertools.permutations(range(3)):
        ranges = [range(reps[axis]) for axis in nesting]
        order = []
        for index in itertools.product(*ranges):
            place = dict(zip(nesting, index, strict=True))
            order.append((place[0] * reps[1] + place[1]) * reps[2] + place[2])
        found.append(tuple(order))
    return tuple(dict.fromkeys(found[1:]))


def _in_bytes(kind: MemoryType, k: int) -> int:
    """Elements along K as the layout counts them: padded fp4 in bytes of shared memory."""
    return 2 * k if is_fp4_padded(kind.encoding) else k


@lru_cache(maxsize=1024)
def _tile_copies(shape: tuple[int, ...], encoding: NVMMAShared) -> TileCopies:
    return tile_copies((256,) * len(shape), shape, encoding)


@lru_cache(maxsize=256)
def _tensor_memory_layout(
    shape: tuple[int, ...], encoding: TensorMemoryEncoding, bits: int
) -> LinearLayout:
    return encoding.to_linear_layout(shape, bits)


def _tensor_memory_per_cta(kind: MemoryType, encoding: TensorMemoryEncoding) -> tuple[int, int]:
    rows, columns = kind.shape[-2:]
    for basis in encoding.cga_layout:
        rows //= 2 if basis[0] else 1
        columns //= 2 if basis[1] else 1
    return rows, columns


def _tensor_memory_offsets(
    kind: MemoryType,
    encoding: TensorMemoryEncoding,
    rows: int,
    columns: int,
    row_count: int,
    column_count: int,
) -> dict[tuple[int, int], int]:
    """lane << 16 | column of each instruction's part, by place along both dimensions."""
    layout = _tensor_memory_layout(kind.allocated[-2:], encoding, kind.element_bitwidth)
    inverse = layout.pseudoinvert()
    found = {}
    for i, j in itertools.product(range(row_count), range(column_count)):
        where = inverse.apply(dim0=i * rows, dim1=j * columns)
        found[i, j] = where["lane"] << 16 | where["column"]
    return found


@dataclass(frozen=True)
class _Accumulator:
    """A wgmma accumulator: its encoding, and what one CTA holds."""

    warps: tuple[int, int]
    instruction: tuple[int, int, int]
    per_cta: tuple[int, int]


_TENSOR = re.compile(r"tensor<((?:\d+x)+)([^,<>]+)(?:,\s*(.*))?>", re.DOTALL)


def _tensor_element(value: Value) -> str:
    match = _TENSOR.fullmatch(value.type or "")
    if match is None:
        raise NotDerived(f"the type of {value.name} is not that of a tensor")
    return match[2]


def _accumulator(module: MlirModule, value: Value) -> _Accumulator:
    match = _TENSOR.fullmatch(value.type or "")
    if match is None or not match[3]:
        raise NotDerived(f"the type of {value.name} has no encoding")
    attribute = parse_attribute(module.resolve(match[3]))
    parameters = attribute.parameters
    shape = [int(size) for size in match[1].split("x") if size]
    try:
        warps, instruction = parameters["warpsPerCTA"], parameters["instrShape"]
    except KeyError:
        raise NotDerived(f"the accumulator's encoding is {attribute.name}") from None
    for basis in parameters.get("CGALayout", ()):
        for dim, step in enumerate(basis):
            shape[dim] //= 2 if step else 1
    if len(shape) != 2 or len(instruction) != 3:
        raise NotDerived("a product of matrices of more than two dimensions")
    return _Accumulator(
        (warps[0], warps[1]),
        (instruction[0], instruction[1], instruction[2]),
        (shape[0], shape[1]),
    )


def _flag(value: Value) -> bool | None:
    """A boolean constant, or None."""
    number = integer_constant(value) if value.type == "i1" else None
    return None if number is None else bool(number)


_PREDICATED = (
    "ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled", "ttng.async_tma_copy_global_to_local",
    "ttng.async_tma_gather", "ttng.barrier_expect",
)  # fmt: skip


def predicate_of(operation: Operation) -> Value | None:
    """The condition under which an operation does something."""
    if operation.name not in _PREDICATED:
        return None
    if not operation.name.startswith("ttng.tc_gen5"):
        return operation.operands[-1]
    # Whether D is read, the predicate, then barriers with their predicates.
    after = 5 if operation.name.endswith("scaled") else 3
    operands = [value for value in operation.operands if value.type != "!ttg.async.token"][after:]
    return operands[1] if len(operands) > 1 else None


def _is_dead(operation: Operation, scalars: Scalars) -> bool:
    """Whether the operation is never executed, or its predicate is never true."""
    predicate = predicate_of(operation)
    never = predicate is not None and scalars.condition(predicate) is False
    return never or not scalars.is_executed(operation)
