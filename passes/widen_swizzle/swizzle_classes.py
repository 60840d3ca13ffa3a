"""Memory and TMA descriptors whose swizzle can change together only, and how far it may be widened.

What may be one memory (an allocation, its views, what control flow carries) has one layout, and so
have a TMA descriptor and the tiles that it fills: they are one class. A class may get a wider
swizzle if nothing in it can tell one layout from the other: every access names elements by their
coordinates, or is derived from the layout by the compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import Architecture
from triton_ext.hardware.operand import INSTRUCTION_K_BYTES
from triton_ext.layouts.cluster import shape_per_cta
from triton_ext.layouts.encodings import SWIZZLE_BYTE_WIDTHS, NVMMAShared, SharedLinear
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.layouts.nvmma_shared import ATOM_ROWS
from triton_ext.layouts.triton.known_faults import expected_from_triton
from triton_ext.mlir.arith import integer_constant
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.memory_flow import VIEWS, components, forwarded
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.operations import CONTROL_FLOW, MMAS, TMA_COPIES, subslice_offsets
from triton_ext.mlir.types import MemoryType
from triton_ext.passes.frame.base import Compilation
from triton_ext.passes.shared_accesses import layout_operand, mma_extent
from triton_ext.passes.value_layouts import encoded_layout, operand_layout

_ORDERED = ("ttng.wait_barrier", "ttng.tc_gen5_commit", "ttng.warp_group_dot_wait")
"""Operations that take tiles to say in which order things happen."""
_BY_COORDINATES = (
    *VIEWS, *TMA_COPIES, *MMAS, *_ORDERED,
    "ttg.local_alloc", "ttg.local_load", "ttg.local_store", "ttg.local_dealloc",
    "ttg.async_copy_global_to_local", *CONTROL_FLOW,
)  # fmt: skip
"""Operations that take memory or descriptors and do not depend on where an element lies."""
_OF_DESCRIPTORS_IN_MEMORY = (
    "ttng.tensormap_create", "ttng.tensormap_fenceproxy_acquire",
    "ttng.reinterpret_tensor_descriptor",
)  # fmt: skip
_SCRATCH = "ttg.global_scratch_alloc"


@dataclass(frozen=True)
class Obstacle:
    """Why a class keeps its swizzle.

    Attributes:
        operation: the operation that stands in the way, if it is one.
    """

    reason: str
    operation: Operation | None = None


@dataclass(frozen=True)
class SwizzleClass:
    """Values that have one swizzle.

    Attributes:
        members: values of shared memory, and TMA descriptors; each before its uses.
        pointers: pointers to the memory in which descriptors are made on the device.
    """

    module: MlirModule
    members: tuple[Value, ...]
    pointers: tuple[Value, ...]

    def kind(self, value: Value) -> MemoryType:
        """The type of a member."""
        kind = self.module.memory(value)
        assert kind is not None
        return kind

    @functools.cached_property
    def encodings(self) -> dict[Value, NVMMAShared]:
        """The members' encodings, those of them that are NVMMA ones or equal one."""
        found: dict[Value, NVMMAShared] = {}
        for value in self.members:
            if self.kind(value).mnemonic == "nvmma_shared":
                found[value] = NVMMAShared.parse(self.kind(value).encoding)
        if widths := {encoding.swizzle_byte_width for encoding in found.values()}:
            for value in self.members:
                if self.kind(value).mnemonic == "shared_linear":
                    equal = _equal_nvmma(self.kind(value), max(widths))
                    if equal is not None:
                        found[value] = equal
        return found

    @functools.cached_property
    def width(self) -> int:
        """The swizzle in bytes; of several, the narrowest."""
        return min((each.swizzle_byte_width for each in self.encodings.values()), default=128)

    @functools.cached_property
    def widest(self) -> int:
        """The widest swizzle for which all members are large enough."""
        for width in sorted(SWIZZLE_BYTE_WIDTHS, reverse=True):
            if width <= self.width or all(
                _fits(self.kind(value), encoding, width)
                for value, encoding in self.encodings.items()
            ):
                return max(width, self.width)
        return self.width

    @property
    def allocations(self) -> list[Value]:
        """Where the memory comes from."""
        return [
            value
            for value in self.members
            if value.definition and value.definition.name == "ttg.local_alloc"
        ]

    @property
    def descriptors(self) -> list[Value]:
        """Where the descriptors come from: arguments of the kernel, or made on the device."""
        return [
            value
            for value in self.members
            if self.kind(value).kind == "tensordesc"
            and (_is_kernel_argument(value) or _is_made_here(value))
        ]

    @property
    def is_memory(self) -> bool:
        """Whether there is more than descriptors, which nothing uses."""
        return any(self.kind(value).kind == "memdesc" for value in self.members)

    @property
    def is_scales(self) -> bool:
        """Whether it is copied to tensor memory, for which it must have no swizzle."""
        return any(
            user.name == "ttng.tmem_copy" for value in self.members for user, _ in value.uses
        )


def _is_made_here(value: Value) -> bool:
    return value.definition is not None and (
        value.definition.name == "ttng.reinterpret_tensor_descriptor"
    )


def _is_kernel_argument(value: Value) -> bool:
    around = value.block.region.parent if value.block and value.definition is None else None
    return (
        around is not None
        and around.name == "tt.func"
        and any(token.text == "public" for token in around.tokens[:3])
    )


def widened(encoding: NVMMAShared, width: int) -> NVMMAShared:
    """The encoding with another swizzle."""
    return replace(encoding, swizzle_byte_width=width)


def tile_of(kind: MemoryType, encoding: NVMMAShared) -> tuple[int, ...]:
    """The shape that the encoding lays out: of the allocation, without its buffers."""
    return kind.allocated[-encoding.rank :]


def linear_layout(kind: MemoryType, encoding: NVMMAShared) -> LinearLayout:
    """The layout of one buffer. Raises LayoutError if the tile is too small for the swizzle."""
    return encoded_layout(encoding, tile_of(kind, encoding))


def linear_encoding(kind: MemoryType, encoding: NVMMAShared) -> SharedLinear:
    """The shared-linear encoding of a member that has one, for another swizzle."""
    alignment = max(SharedLinear.parse(kind.encoding).alignment, encoding.alignment)
    return SharedLinear.from_linear_layout(linear_layout(kind, encoding), alignment)


def _equal_nvmma(kind: MemoryType, width: int) -> NVMMAShared | None:
    """The NVMMA encoding of that swizzle that a shared-linear one equals; None if there is none."""
    if not width:
        return None
    linear = SharedLinear.parse(kind.encoding)
    for transposed in (False, True):
        try:
            encoding = NVMMAShared(width, kind.element_bitwidth, transposed, rank=linear.rank)
            if linear_layout(kind, encoding) == linear.to_linear_layout():
                return encoding
        except LayoutError:
            continue
    return None


def _fits(kind: MemoryType, encoding: NVMMAShared, width: int) -> bool:
    if encoding.rank < 2 or encoding.fp4_padded:
        return width == encoding.swizzle_byte_width
    encoding = widened(encoding, width)
    try:
        if kind.kind == "tensordesc":
            row = shape_per_cta(encoding.cga_layout, kind.shape)[encoding.contiguous_dim]
            return row * kind.element_bitwidth >= 8 * encoding.swizzle_byte_width
        linear_layout(kind, encoding)
    except LayoutError:
        return False
    return True


# ----------------------------------------------------------------------------------- classes


def _is_node(module: MlirModule, value: Value) -> bool:
    kind = module.memory(value)
    return kind is not None and kind.space == "shared"


def _edges(module: MlirModule) -> Iterator[tuple[Value, Value]]:
    yield from forwarded(module)
    for operation in module.operations:
        if operation.name in VIEWS and operation.results:
            yield operation.operands[0], operation.results[0]
        elif operation.name in TMA_COPIES and _is_node(module, operation.operands[0]):
            for value in operation.operands[1:]:
                kind = module.memory(value)
                if kind is not None and kind.mnemonic == "nvmma_shared":
                    yield operation.operands[0], value


def swizzle_classes(module: MlirModule) -> list[SwizzleClass]:
    """The classes of a module that have a member with an NVMMA encoding, in textual order."""
    edges = [
        (first, second)
        for first, second in _edges(module)
        if _is_node(module, first) or _is_node(module, second)
    ]
    starts = [
        value
        for value in module.values
        if (kind := module.memory(value)) is not None and kind.mnemonic == "nvmma_shared"
    ]
    found = []
    for reached in components(starts, edges):
        members = tuple(value for value in reached if _is_node(module, value))
        pointers = tuple(value for value in reached if not _is_node(module, value))
        found.append(SwizzleClass(module, members, pointers))
    return found


# --------------------------------------------------------------------------------- obstacles


def obstacle(found: SwizzleClass, width: int, kernel: Compilation) -> Obstacle | None:
    """Why a class cannot get a swizzle of `width` bytes; None if it can."""
    return next(_obstacles(found, width, kernel), None)


def _obstacles(found: SwizzleClass, width: int, kernel: Compilation) -> Iterator[Obstacle]:
    for value in found.members:
        yield from _of_encoding(found, value, kernel)
    for value in found.members:
        yield from _of_origin(found, value, width)
    for pointer in found.pointers:
        yield from _of_pointer(found, pointer)
    for value in found.members:
        for user, index in value.uses:
            yield from _of_use(found, value, user, index, width, kernel)


def _of_encoding(found: SwizzleClass, value: Value, kernel: Compilation) -> Iterator[Obstacle]:
    kind, encoding = found.kind(value), found.encodings.get(value)
    if encoding is None:
        yield Obstacle(f"{value.name} sees it as #ttg.{kind.mnemonic}", value.definition)
    elif encoding.swizzle_byte_width != found.width:
        yield Obstacle(
            f"{value.name} sees it with a swizzle of {encoding.swizzle_byte_width} bytes, others"
            f" with {found.width}",
            value.definition,
        )
    elif encoding.transposed and encoding.rank > 2:
        yield Obstacle(
            f"it is transposed and of rank {encoding.rank}: what Triton then takes for the rows of"
            " an atom, no TMA copy writes",
            value.definition,
        )
    elif kind.kind == "memdesc" and kernel.release:
        _, fault = expected_from_triton(kernel.release, tile_of(kind, encoding), encoding)
        if fault:
            yield Obstacle(
                f"what this release of Triton makes of it is wrong ({fault.title}), and would"
                " change",
                value.definition,
            )


def _of_origin(found: SwizzleClass, value: Value, width: int) -> Iterator[Obstacle]:
    definition = value.definition
    if definition is None:
        around = value.block.region.parent if value.block else None
        if (
            around is not None
            and around.name == "tt.func"
            and not (_is_kernel_argument(value) and found.kind(value).kind == "tensordesc")
        ):
            yield Obstacle(f"{value.name} is handed to a function that is called", around)
    elif definition.name not in _BY_COORDINATES:
        yield Obstacle(f"{definition.name} makes it, which is not known here", definition)
    elif definition.name == "ttg.local_alloc":
        needed = widened(found.encodings[value], width).alignment
        alignment = definition.attributes.get("alignment")
        if isinstance(alignment, int) and alignment % needed:
            yield Obstacle(
                f"it is allocated at multiples of {alignment} bytes, and the swizzle needs"
                f" multiples of {needed}",
                definition,
            )


def _of_pointer(found: SwizzleClass, pointer: Value) -> Iterator[Obstacle]:
    """A descriptor in global memory: it must be made here, for nobody else, in a known way."""
    definition = pointer.definition
    if not (pointer.type or "").startswith("!tt.ptr"):
        yield Obstacle(f"control flow hands it on as {pointer.name}, of another type", definition)
        return
    if definition is None or definition.name != _SCRATCH:
        yield Obstacle(
            "its descriptor is not made here, but read from memory that others may write",
            definition,
        )
        return
    makers = [user for user, _ in pointer.uses if user.name == "ttng.tensormap_create"]
    for user, index in pointer.uses:
        if user.name not in _OF_DESCRIPTORS_IN_MEMORY or index:
            yield Obstacle(f"{user.name} sees the descriptor's memory", user)
    if not makers:
        yield Obstacle("nothing makes its descriptor", definition)
    for maker in makers:
        if box_width(maker) != _expected_box(found, pointer):
            yield Obstacle("its descriptor is made with a box that is not its tile's", maker)


def box_width(maker: Operation) -> int | None:
    """The innermost extent of the box of a ``ttng.tensormap_create``; None if not a constant."""
    return integer_constant(maker.operands[2])


def _expected_box(found: SwizzleClass, pointer: Value) -> int | None:
    boxes = set()
    for user, _ in pointer.uses:
        if user.name == "ttng.reinterpret_tensor_descriptor":
            value = user.results[0]
            boxes.add(inner_box(found.kind(value), found.encodings[value]))
    return boxes.pop() if len(boxes) == 1 else None


def inner_box(kind: MemoryType, encoding: NVMMAShared) -> int:
    """The innermost extent of the boxes of a descriptor, in elements."""
    if encoding.swizzle_byte_width:
        return 8 * encoding.swizzle_byte_width // kind.element_bitwidth
    return min(shape_per_cta(encoding.cga_layout, kind.shape)[-1], 256)


def _of_use(
    found: SwizzleClass, value: Value, user: Operation, index: int, width: int, kernel: Compilation
) -> Iterator[Obstacle]:
    if user.name in ("tt.call", "tt.return"):
        yield Obstacle("it is handed to a function that is called", user)
    elif user.name not in _BY_COORDINATES:
        yield Obstacle(f"{user.name} takes it, which may see where elements lie", user)
    elif user.name in VIEWS and index == 0:
        yield from _of_view(found, value, user, width)
    elif user.name in TMA_COPIES:
        if user.operands[0] not in found.encodings:
            yield Obstacle(f"{user.name} takes a descriptor that is not known here", user)
    elif user.name in MMAS:
        yield from _of_mma(found, value, user, index, width, kernel.arch)


def _of_mma(
    found: SwizzleClass, value: Value, user: Operation, index: int, width: int, arch: Architecture
) -> Iterator[Obstacle]:
    if not found.width:
        yield Obstacle(
            f"{user.name} reads it without a swizzle: as rows of 16 bytes, which are arranged for"
            " it",
            user,
        )
    else:
        new = widened(found.encodings[value], width)
        kind = replace(found.kind(value), encoding=str(new))
        try:
            instruction = (
                mma_extent(user, "A" if index == 0 else "B", found.module),
                8 * INSTRUCTION_K_BYTES // kind.element_bitwidth,
            )
            layout_operand(
                operand_layout(kind), kind.element_bitwidth, instruction, arch, mn_dim=index
            )
        except LayoutError as error:
            yield Obstacle(f"{user.name} cannot read it: {error.rule}", user)


def _of_view(found: SwizzleClass, value: Value, view: Operation, width: int) -> Iterator[Obstacle]:
    result = view.results[0]
    if result not in found.encodings or view.name == "ttg.memdesc_index":
        return
    before, after = found.kind(value), found.kind(result)
    own, other = found.encodings[value], found.encodings[result]
    if view.name == "ttg.memdesc_subslice":
        if _cuts(view, after, widened(other, width)):
            shape = "x".join(map(str, after.shape))
            yield Obstacle(f"{result.name} ({shape}) is a part of it that cuts the atoms", view)
        return
    try:
        same = _relation(before, own, after, other) == _relation(
            before, widened(own, width), after, widened(other, width)
        )
    except LayoutError:
        same = False
    if not same:
        yield Obstacle(
            f"{view.name} shows its bytes as {'x'.join(map(str, after.shape))}x{after.element}, by"
            " which the swizzle can be seen",
            view,
        )


def _cuts(view: Operation, part: MemoryType, encoding: NVMMAShared) -> bool:
    """Whether a part of a tile begins or ends inside of an atom."""
    offsets = subslice_offsets(view)
    row = encoding.swizzle_byte_width * 8 // encoding.element_bitwidth
    for dim in range(-encoding.rank, 0):
        contiguous = dim == encoding.contiguous_dim - encoding.rank
        unit = row if contiguous else ATOM_ROWS
        if part.shape[dim] == part.allocated[dim]:
            continue
        if offsets[dim] % unit or part.shape[dim] % unit:
            return True
    return False


def _relation(
    source: MemoryType, own: NVMMAShared, result: MemoryType, other: NVMMAShared
) -> LinearLayout:
    """Which element of a view each element of what it views is."""
    if source.element_bitwidth != result.element_bitwidth:
        raise LayoutError("element", result.element, "must be as wide as that of its source")
    return _whole(source, own).invert().compose(_whole(result, other))


def _whole(kind: MemoryType, encoding: NVMMAShared) -> LinearLayout:
    """All buffers: where they lie, as row-major numbers of the elements."""
    layout = linear_layout(kind, encoding)
    layout = layout.transpose_outs(list(reversed(layout.out_dims))).flatten_outs()
    layout = layout.reshape_outs({"element": layout.total_out_size})
    buffers = 1
    for size in kind.allocated[: -encoding.rank]:
        buffers *= size
    return layout * LinearLayout.identity_1d(buffers, "offset", "element")
