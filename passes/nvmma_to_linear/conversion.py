"""Which memory with an NVMMA encoding can have a shared-linear one, and why other memory cannot.

The rules are Triton's: what the verifiers and the lowering of its operations take, and what they
infer the types of views from (``lib/Dialect/TritonGPU/IR``, ``lib/Dialect/TritonNvidiaGPU/IR``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from triton_ext.errors import LayoutError
from triton_ext.layouts.encodings import NVMMAShared, SharedLinear
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import nvmma_shared_to_linear_layout
from triton_ext.layouts.triton.known_faults import expected_from_triton
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.memory_flow import components, forwarded
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import CONTROL_FLOW, MMAS
from triton_ext.mlir.types import MemoryType
from triton_ext.passes.frame.base import Compilation

VIEWS = ("ttg.memdesc_index", "ttg.memdesc_subslice", "ttg.memdesc_trans", "ttg.memdesc_reshape")
"""Views whose encoding Triton infers from that of what they view."""
ANY_ENCODING = (
    *MMAS, *VIEWS, *CONTROL_FLOW, "ttng.warp_group_dot_wait", "ttng.tmem_copy",
    "ttg.local_alloc", "ttg.local_load", "ttg.local_store", "ttg.local_dealloc",
    "ttg.async_copy_global_to_local", "ttg.memdesc_reinterpret",
)  # fmt: skip
"""Operations that go by a tile's linear layout, whatever its encoding, or only forward it."""
FUNCTIONS = ("tt.func", "tt.call", "tt.return")


@dataclass(frozen=True)
class MmaOperand:
    """A value that an MMA reads: `operation`'s operand 0 (A) or 1 (B)."""

    operation: Operation
    index: int
    value: Value

    def __str__(self) -> str:
        return f"{'AB'[self.index]} of {self.operation.name}"


@dataclass
class Memory:
    """Values that are, or may be, parts of the same memory, all with NVMMA encodings.

    Attributes:
        values: the values, in the order of `MlirModule.values`.
        obstacle: why they cannot all be converted; "" if they can.
        refusal: if so, why not even an MMA can read them through a shared-linear view.
    """

    values: list[Value] = field(default_factory=list)
    obstacle: str = ""
    refusal: str = ""

    @property
    def operands(self) -> list[MmaOperand]:
        """The operands of MMAs among the values."""
        return [
            MmaOperand(user, index, value)
            for value in self.values
            for user, index in value.uses
            if user.name in MMAS and index < 2
        ]

    @property
    def source(self) -> Value:
        """The first value in the text: as a rule, the allocation."""
        return min(
            self.values,
            key=lambda value: (not value.definition, value.definition and value.definition.start),
        )


def needs_nvmma(operation: Operation) -> bool:
    """Whether an operation must see NVMMA encodings: TMA copies, and all unknown operations."""
    return operation.name not in (*ANY_ENCODING, *FUNCTIONS)


def _is_nvmma(kind: MemoryType | None) -> bool:
    return kind is not None and kind.kind == "memdesc" and kind.mnemonic == "nvmma_shared"


def nvmma_memories(module: MlirModule) -> list[Memory]:
    """All shared memory of NVMMA encodings.

    A ``ttg.memdesc_reinterpret`` begins another memory: its result may have any encoding.
    """
    number = {value: i for i, value in enumerate(module.values) if _is_nvmma(module.memory(value))}
    carried = list(forwarded(module))
    views = [
        (operation.operands[0], operation.results[0])
        for operation in module.operations
        if operation.name in VIEWS
    ]
    edges = [edge for edge in (*carried, *views) if edge[0] in number and edge[1] in number]
    odd = {
        value for edge in carried for value in edge if (edge[0] in number) != (edge[1] in number)
    }
    found = []
    for component in components(number, edges):
        memory = Memory(sorted(component, key=number.__getitem__))
        if not odd.isdisjoint(component):
            memory.obstacle = "control flow hands it on as a value of another type"
        found.append(memory)
    return found


class Conversion:
    """The linear encoding of each NVMMA encoding and shape of one module."""

    def __init__(self, compilation: Compilation) -> None:
        self.module = compilation.ttgir
        self.release = compilation.release
        self._known: dict[tuple[str, tuple[int, ...]], SharedLinear | LayoutError] = {}

    def type_of(self, value: Value) -> MemoryType:
        """The type of a memory value."""
        found = self.module.memory(value)
        assert found is not None
        return found

    def linear(self, value: Value) -> SharedLinear:
        """The generated equal of a value's NVMMA encoding. Raises LayoutError: there is none, or
        this release of Triton means another one."""
        kind = self.type_of(value)
        key = (kind.encoding, kind.allocated)
        if key not in self._known:
            try:
                self._known[key] = self._convert(kind)
            except LayoutError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, LayoutError):
            raise found
        return found

    def _convert(self, kind: MemoryType) -> SharedLinear:
        encoding = NVMMAShared.parse(kind.encoding)
        shape = kind.allocated[-encoding.rank :]  # without buffers
        layout = nvmma_shared_to_linear_layout(shape, encoding)
        if self.release:
            _, fault = expected_from_triton(self.release, shape, encoding)
            if fault:
                rule = f"this release of Triton converts it wrongly ({fault.title})"
                raise LayoutError("encoding", kind.encoding, rule)
        return SharedLinear.from_linear_layout(layout, encoding.alignment)

    def _layout(self, value: Value) -> LinearLayout:
        kind = self.type_of(value)
        if kind.mnemonic == "nvmma_shared":
            return self.linear(value).to_linear_layout()
        return SharedLinear.parse(kind.encoding).to_linear_layout()

    def is_inferred(self, view: Operation) -> bool:
        """Whether a view's result has the layout that Triton infers from a linear source. Raises
        LayoutError: one of the two has no linear layout."""
        before, after = self._layout(view.operands[0]), self._layout(view.results[0])
        dims = list(after.out_dims)
        if view.name == "ttg.memdesc_trans":
            order = view.attributes["order"]
            bases = {
                name: [tuple(basis[i] for i in order) for basis in vectors]
                for name, vectors in before.bases.items()
            }
            return LinearLayout(bases, after.out_dims) == after
        # A reshape keeps the row-major order of elements; reshape_outs counts the first dimension
        # as the lowest.
        reversed_before = before.transpose_outs(list(reversed(before.out_dims)))
        reshaped = reversed_before.reshape_outs(dict(reversed(after.out_dims.items())))
        return reshaped.transpose_outs(dims) == after

    def is_whole(self, value: Value) -> bool:
        """Whether a value is a whole tile, and no part of one (``memdesc_subslice``)."""
        kind, rank = self.type_of(value), self.linear(value).rank
        return kind.shape[-rank:] == kind.allocated[-rank:]


def _packed_along_mn(operand: MmaOperand, kind: MemoryType) -> bool:
    """Whether a block-scaled MMA's operand packs two fp4 along M or N.

    Triton's verifier then halves another dimension, and tells by the NVMMA encoding.
    """
    if operand.operation.name != "ttng.tc_gen5_mma_scaled":
        return False
    tokens = [token.text for token in operand.operation.tokens]
    side = "rhs" if operand.index else "lhs"
    is_fp4 = tokens[tokens.index(side) + 2] == "e2m1" if side in tokens else True
    return is_fp4 and NVMMAShared.parse(kind.encoding).transposed == (operand.index == 0)


def _reasons(memory: Memory, conversion: Conversion) -> Iterator[str]:
    """Why the encoding of memory cannot be replaced everywhere."""
    for value in memory.values:
        kind, definition = conversion.type_of(value), value.definition
        try:
            conversion.linear(value)
        except LayoutError as error:
            yield f"its encoding has no generated equal: {error.rule}"
            continue
        if NVMMAShared.parse(kind.encoding).fp4_padded:
            yield (
                "it is fp4-padded: Triton sizes shared-linear memory by its elements, and leaves"
                " no room for padding"
            )
        if definition is None and value.block is not None:
            is_entry = value.block is value.block.region.entry
            if is_entry and value.block.region.parent.name in FUNCTIONS:
                yield "it is an argument of a function"
        elif definition and definition.name not in ANY_ENCODING:
            yield f"{definition.name} makes it, and says of which encoding"
        for user, _ in value.uses:
            yield from _reasons_of_use(value, user, conversion)


def _reasons_of_use(value: Value, user: Operation, conversion: Conversion) -> Iterator[str]:
    if user.name in FUNCTIONS:
        yield f"{user.name} hands it to another function"
    if user.name in ("ttg.memdesc_trans", "ttg.memdesc_reshape"):
        try:
            if not conversion.is_whole(value):
                yield (
                    f"{user.name} takes a part of a tile (memdesc_subslice), on which Triton aborts"
                    " if it is shared-linear"
                )
            elif not conversion.is_inferred(user):
                yield f"Triton infers another layout for {user.name}"
        except LayoutError as error:
            yield f"the result of {user.name} has no generated equal: {error.rule}"
    if needs_nvmma(user):
        if any(_is_nvmma(conversion.module.memory(result)) for result in user.results):
            yield f"{user.name} makes a view of it, and says of which encoding"
        if not conversion.is_whole(value):
            yield (
                f"{user.name} takes NVMMA encodings alone, and a part of a tile"
                " (memdesc_subslice) cannot be reinterpreted"
            )


def _refusals(memory: Memory, conversion: Conversion) -> Iterator[str]:
    """Why not even MMAs can read memory as shared-linear."""
    for operand in memory.operands:
        try:
            is_whole = conversion.is_whole(operand.value)
        except LayoutError as error:
            yield f"its encoding has no generated equal: {error.rule}"
            continue
        if not is_whole:
            yield f"{operand} is a part of a tile (memdesc_subslice)"
        if _packed_along_mn(operand, conversion.type_of(operand.value)):
            yield f"{operand} packs two fp4 along {'MN'[operand.index]}"


def judge(memory: Memory, conversion: Conversion) -> None:
    """Set the `obstacle` and the `refusal` of memory."""
    memory.refusal = next(_refusals(memory, conversion), "")
    packed = memory.refusal if "packs two fp4" in memory.refusal else ""
    memory.obstacle = memory.obstacle or packed or next(_reasons(memory, conversion), "")
    if memory.obstacle and not memory.operands:
        memory.refusal = memory.obstacle
