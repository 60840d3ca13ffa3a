"""TMA tensor maps, and where the elements of a box land in shared memory.

A *tensor map* (`TensorMap`) is what ``cuTensorMapEncodeTiled`` takes. One TMA instruction copies
one *box* of it. A tile may take several: see `triton_ext.hardware.tma_tile`.

Sources: CUDA driver API, "Tensor Map Object Management", cuTensorMapEncodeTiled (CUDA 13.1), for
the rules; PTX ISA, "Tensors" ("Bounding Box", "Traversal-Stride", "Out of Boundary Access"), for
what a copy does; CUDA programming guide, "An Overview of TMA Swizzle Patterns" and what follows
it, for where a swizzled box lies.
"""

from __future__ import annotations

import enum
import math
import operator
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_SM
from triton_ext.layouts.arguments import index_or_array, integers
from triton_ext.layouts.atoms import Swizzle, address_swizzle
from triton_ext.layouts.encodings import CHUNK_BYTES, MAX_RANK
from triton_ext.layouts.nvmma_shared import TMA_BOX_LIMIT

TENSOR_MAP_BYTES = 128
"""The size of an encoded tensor map (PTX ISA, "Tensor-map": an opaque 1024-bit object)."""
TENSOR_MAP_ALIGNMENT = 64
"""What the address of an encoded tensor map must be a multiple of (tensorMap)."""
SMEM_ALIGNMENT = 128
"""What a box's address in shared memory must be a multiple of (PTX ISA, "cp.async.bulk.tensor")."""

OOB_NAN = 0x7FF7
"""Each 16 bits of what out-of-bounds elements of any type become with NaN fill (an H100's)."""

_MAX_EXTENT = 1 << 32
_STRIDE_LIMIT = 1 << 40
_MAX_ELEMENT_STRIDE = 8
# Not in the documentation; the driver (CUDA 13.0) refuses larger boxes where all element strides
# are 1.
_MAX_BOX_BYTES = SHARED_MEMORY_PER_SM


class _CudaEnum(enum.IntEnum):
    @property
    def cuda_name(self) -> str:
        """The enumerator in ``cuda.h``, such as CU_TENSOR_MAP_SWIZZLE_128B."""
        prefix, unit = {
            "DataType": ("DATA_TYPE", ""),
            "Interleave": ("INTERLEAVE", ""),
            "TensorSwizzle": ("SWIZZLE", ""),
            "L2Promotion": ("L2_PROMOTION", "L2_"),
            "OobFill": ("FLOAT_OOB_FILL", ""),
        }[type(self).__name__]
        name = re.sub(r"^U(\d)X16", r"16U\1", self.name)
        return f"CU_TENSOR_MAP_{prefix}_" + re.sub(r"^BYTES_(\d+)", rf"{unit}\1B", name)


class DataType(_CudaEnum):
    """``CUtensorMapDataType``, with the driver's values. U4X16 is CUDA's ``16U4``, and so on."""

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12
    U4X16_ALIGN8B = 13
    U4X16_ALIGN16B = 14
    U6X16_ALIGN16B = 15

    @property
    def bits(self) -> int:
        """Bits of an element in global memory."""
        return (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6)[self]

    @property
    def is_packed(self) -> bool:
        """Whether an element is narrower than a byte."""
        return self.bits < 8

    @property
    def is_padded(self) -> bool:
        """Whether each 16 elements take 16 bytes of shared memory, the last ones unused."""
        return self in (DataType.U4X16_ALIGN16B, DataType.U6X16_ALIGN16B)

    @property
    def is_floating_point(self) -> bool:
        """Whether out-of-bounds elements can be filled with NaN."""
        return DataType.FLOAT16 <= self <= DataType.TFLOAT32_FTZ

    @classmethod
    def unsigned(cls, bits: int) -> DataType:
        """The unsigned integer of 8, 16, 32 or 64 bits."""
        by_width = {8: cls.UINT8, 16: cls.UINT16, 32: cls.UINT32, 64: cls.UINT64}
        if bits not in by_width:
            raise LayoutError("bits", bits, f"must be one of {', '.join(map(str, by_width))}")
        return by_width[bits]


class Interleave(_CudaEnum):
    """``CUtensorMapInterleave``: NC/8HWC8 (16 bytes) and NC/16HWC16 (32 bytes) tensors."""

    NONE = 0
    BYTES_16 = 1
    BYTES_32 = 2


class TensorSwizzle(_CudaEnum):
    """``CUtensorMapSwizzle``: how 16-byte chunks (or 32, or 64) move within a span of a row."""

    NONE = 0
    BYTES_32 = 1
    BYTES_64 = 2
    BYTES_128 = 3
    BYTES_128_ATOM_32B = 4
    BYTES_128_ATOM_32B_FLIP_8B = 5
    BYTES_128_ATOM_64B = 6

    @property
    def span(self) -> int:
        """The most bytes that a row of a box may have; 0 without a swizzle, where it is free."""
        return (0, 32, 64, 128, 128, 128, 128)[self]

    @property
    def atomicity(self) -> int:
        """What moves as a whole, in bytes (but for the flip of 8-byte halves)."""
        return (16, 16, 16, 16, 32, 32, 64)[self]

    @property
    def swizzles(self) -> tuple[Swizzle, ...]:
        """What is applied to the bits of a shared-memory byte address, one after the other.

        The 16-byte modes are those of the swizzle atoms (seen so on an H100). Wider chunks are
        XORed with as many bits of the row's number as number the chunks of 128 bytes: for 32 bytes
        CUTLASS (``mma_sm100_desc.hpp``, SWIZZLE_128B_BASE32B) says so; that of 64 bytes, and the
        flip of 8-byte halves in every other row, are cuda.h's words alone.
        """
        flip = (Swizzle(1, 3, 4),) if self == TensorSwizzle.BYTES_128_ATOM_32B_FLIP_8B else ()
        return (address_swizzle(self.span, self.atomicity), *flip)

    @property
    def alignment(self) -> int:
        """What a box's address must be a multiple of for the pattern to start with the box.

        The pattern repeats every so many bytes; without one, 128 bytes are needed all the same.
        """
        top = max(swizzle.base + swizzle.shift + swizzle.bits for swizzle in self.swizzles)
        return max(SMEM_ALIGNMENT, 1 << top)

    @classmethod
    def of_width(cls, swizzle_byte_width: int) -> TensorSwizzle:
        """The mode with 16-byte atomicity of a width of 0, 32, 64 or 128 bytes."""
        for mode in (cls.NONE, cls.BYTES_32, cls.BYTES_64, cls.BYTES_128):
            if mode.span == swizzle_byte_width:
                return mode
        raise LayoutError("swizzle_byte_width", swizzle_byte_width, "must be one of 0, 32, 64, 128")


class L2Promotion(_CudaEnum):
    """``CUtensorMapL2promotion``: in which granularity L2 requests are filled from DRAM."""

    NONE = 0
    BYTES_64 = 1
    BYTES_128 = 2
    BYTES_256 = 3


class OobFill(_CudaEnum):
    """``CUtensorMapFloatOOBfill``: what out-of-bounds elements become: zero, or NaN."""

    NONE = 0
    NAN_REQUEST_ZERO_FMA = 1


_ENUMS: dict[str, type[_CudaEnum]] = {
    "data_type": DataType,
    "interleave": Interleave,
    "swizzle": TensorSwizzle,
    "l2_promotion": L2Promotion,
    "oob_fill": OobFill,
}
"""The fields of a `TensorMap` that are enumerators."""


def _require(legal: bool, argument: str, value: Any, parameter: str, rule: str) -> None:
    """LayoutError with a rule of the documentation and CUDA's parameter, unless it is kept."""
    if not legal:
        raise LayoutError(argument, value, f"cuTensorMapEncodeTiled, {parameter}: {rule}")


@dataclass(frozen=True)
class TensorMap(Displayed):
    """The arguments of ``cuTensorMapEncodeTiled``, each rule of its documentation checked.

    Dimensions are in CUDA's order, the innermost (contiguous) first; there are 1 to 5.

    Args:
        data_type: the element type.
        global_dims: the tensor's extents, in elements, 1 to 2**32 each.
        global_strides: the strides of all but the first dimension, in bytes.
        box_dims: the extents of what one copy moves, in elements of the tensor, 1 to 256 each.
        element_strides: n copies every nth element along a dimension, 1 to 8; left out: every one.
            The first is ignored without `interleave`.
        interleave: the tensor's interleaved layout.
        swizzle: how the rows of a box are swizzled in shared memory.
        l2_promotion: the granularity of L2 requests.
        oob_fill: what out-of-bounds elements become.
        global_address: where the tensor starts, in bytes.

    Raises:
        LayoutError: an argument is illegal; the rule names CUDA's parameter.

    The documentation also describes strides that nest: see `check_nesting`.
    """

    data_type: DataType
    global_dims: tuple[int, ...]
    global_strides: tuple[int, ...]
    box_dims: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    interleave: Interleave = Interleave.NONE
    swizzle: TensorSwizzle = TensorSwizzle.NONE
    l2_promotion: L2Promotion = L2Promotion.NONE
    oob_fill: OobFill = OobFill.NONE
    global_address: int = 0

    def __post_init__(self) -> None:
        self._coerce()
        for rule in self._rules():
            _require(*rule)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.global_dims)

    @property
    def min_architecture(self) -> int:
        """90, or 100 where a packed type or a swizzle with wider atoms needs Blackwell.

        PTX ISA, "cp.async.bulk.tensor" (packed types); for the swizzles, a driver for CUDA 13.0
        was seen to refuse them on an H100.
        """
        wide_atoms = self.swizzle > TensorSwizzle.BYTES_128
        return 100 if self.data_type.is_packed or wide_atoms else 90

    @property
    def copied_shape(self) -> tuple[int, ...]:
        """How many elements a copy writes along each dimension: ceil(box / element stride)."""
        ignore_first = self.interleave == Interleave.NONE
        return tuple(
            size if i == 0 and ignore_first else -(-size // stride)
            for i, (size, stride) in enumerate(
                zip(self.box_dims, self.element_strides, strict=True)
            )
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of global memory, side by side, that one row of a box reads: the request size."""
        return self.copied_shape[0] * self.data_type.bits // 8

    @property
    def smem_row_bytes(self) -> int:
        """From one row of a box to the next in shared memory, in bytes.

        A row of padded elements takes a byte an element. A swizzled row takes the whole span of
        the swizzle (CUDA programming guide, "An Overview of TMA Swizzle Patterns").
        """
        bits = 8 if self.data_type.is_padded else self.data_type.bits
        return max(self.copied_shape[0] * bits // 8, self.swizzle.span)

    @property
    def smem_bytes(self) -> int:
        """The shared memory that a box takes, in bytes."""
        return self.smem_row_bytes * math.prod(self.copied_shape[1:])

    @property
    def transaction_bytes(self) -> int:
        """What a copy adds to an mbarrier's complete-tx count, out-of-bounds elements included.

        The padding of padded elements is not counted: Triton's ``getDescriptorLoadBytes`` and
        CUTLASS's ``TmaTransactionBytes`` expect the bytes of the elements alone.
        """
        return self.row_bytes * math.prod(self.copied_shape[1:])

    @property
    def coordinate_multiple(self) -> int:
        """What the innermost coordinate of a box must be a multiple of, in elements.

        That is 16 bytes, or 64 for padded elements (PTX ISA, "Bounding Box"; Gluon tutorial 04):
        else, on an H100, the copy stops the kernel with an illegal instruction.
        """
        return 128 if self.data_type.is_padded else 8 * CHUNK_BYTES // self.data_type.bits

    def smem_address(self, coordinates: Sequence[Any], base: int = 0) -> Any:
        """Where an element of a box lands in shared memory, in bytes.

        The box is row-major, its first dimension innermost; the bits of the byte address are then
        swizzled. The bits are those of the address in shared memory, not of the offset in the box
        (CUDA programming guide, "Swizzle Pattern Pointer Offset Computation").

        Args:
            coordinates: which of the copied elements, innermost dimension first; integers, or
                numpy integer arrays that broadcast against each other.
            base: the box's address in shared memory, a multiple of 128.

        Returns:
            The address of the (first) byte that holds it: an integer or an array.

        Raises:
            LayoutError: a coordinate outside of the box, a misaligned base, or an interleaved
                tensor, whose boxes are not modelled.
        """
        if self.interleave != Interleave.NONE:
            rule = "must be NONE: other boxes are not modelled"
            raise LayoutError("interleave", self.interleave.name, rule)
        if not isinstance(base, int) or base < 0 or base % SMEM_ALIGNMENT:
            raise LayoutError("base", base, f"must be a multiple of {SMEM_ALIGNMENT}")
        shape = self.copied_shape
        if len(coordinates) != len(shape):
            raise LayoutError("coordinates", coordinates, f"must be {len(shape)} integers")
        column, *outer = (
            index_or_array(f"coordinates[{i}]", value, size)
            for i, (value, size) in enumerate(zip(coordinates, shape, strict=True))
        )
        row: Any = 0
        for value, size in reversed(list(zip(outer, shape[1:], strict=True))):
            row = row * size + value
        bits = self.data_type.bits
        if self.data_type.is_padded:
            column = column // 16 * CHUNK_BYTES + column % 16 * bits // 8
        else:
            column = column * bits // 8
        address = base + row * self.smem_row_bytes + column
        for swizzle in self.swizzle.swizzles:
            address = swizzle(address)
        return address

    def check_nesting(self) -> None:
        """Raise LayoutError unless the strides nest as the documentation describes.

        globalStrides[0] is the first row and a padding; each further one is the one before it
        times (the extent and a padding). The driver does not insist (nor does this class): tensors
        whose dimensions are permuted or broadcast are in use, and are read as their strides say.
        """
        inner, extent = -(-self.global_dims[0] * self.data_type.bits // 8), 1
        for i, stride in enumerate(self.global_strides):
            least = inner * extent
            rule = f"must be at least {least}, the bytes of a row, to nest"
            if i:
                rule = f"must be a multiple of {inner}, and at least {least}, to nest"
            legal = stride >= least and not (i and stride % inner)
            _require(legal, f"global_strides[{i}]", stride, "globalStrides", rule)
            inner, extent = stride, self.global_dims[i + 1]

    # ------------------------------------------------------------- the rules

    def _coerce(self) -> None:
        """Enumerators from their values, tuples from sequences; ranks that agree."""
        for name, kind in _ENUMS.items():
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, kind(value))
            except ValueError:
                names = ", ".join(member.name for member in kind)
                raise LayoutError(name, value, f"must be one of {names}") from None
        dims = integers("global_dims", self.global_dims)
        rank = len(dims)
        rule = f"must be 1 to {MAX_RANK} dimensions"
        _require(1 <= rank <= MAX_RANK, "global_dims", dims, "tensorRank", rule)
        object.__setattr__(self, "global_dims", dims)
        object.__setattr__(self, "element_strides", self.element_strides or (1,) * rank)
        for name, length, what in (
            ("global_strides", rank - 1, "one a dimension but the first"),
            ("box_dims", rank, "one a dimension"),
            ("element_strides", rank, "one a dimension"),
        ):
            values = integers(name, getattr(self, name), length, what)
            object.__setattr__(self, name, values)
        legal = self.interleave == Interleave.NONE or rank >= 3
        _require(legal, "global_dims", dims, "tensorRank", "must be at least 3 with interleave")

    def _rules(self) -> Iterator[tuple[bool, str, Any, str, str]]:
        """Each rule, as `_require` takes it: whether it is kept, and what it is about."""
        kind, swizzle, interleave = self.data_type, self.swizzle, self.interleave
        try:
            address = operator.index(self.global_address)
        except TypeError:
            raise LayoutError("global_address", self.global_address, "must be an integer") from None
        if not 0 <= address < 1 << 64:
            raise LayoutError("global_address", address, "must lie in [0, 2**64)")
        wide = kind.name if kind.is_padded else ""
        if interleave == Interleave.BYTES_32:
            wide = "interleave 32B"
        alignment = 32 if wide else 16
        aligned = f"must be a multiple of {alignment}" + (f" with {wide}" if wide else "")
        yield address % alignment == 0, "global_address", address, "globalAddress", aligned
        for i, size in enumerate(self.global_dims):
            legal = 1 <= size <= _MAX_EXTENT
            yield legal, f"global_dims[{i}]", size, "globalDim", "must be 1 to 2**32"
        size, multiple = self.global_dims[0], 128 if kind.is_padded else 2 if kind.is_packed else 1
        rule = f"must be a multiple of {multiple} for {kind.name}"
        yield size % multiple == 0, "global_dims[0]", size, "globalDim", rule
        for i, stride in enumerate(self.global_strides):
            name, rule = f"global_strides[{i}]", "must be 0 to 2**40 - 1 bytes"
            yield 0 <= stride < _STRIDE_LIMIT, name, stride, "globalStrides", rule
            yield stride % alignment == 0, name, stride, "globalStrides", aligned
        for i, stride in enumerate(self.element_strides):
            legal, rule = 1 <= stride <= _MAX_ELEMENT_STRIDE, f"must be 1 to {_MAX_ELEMENT_STRIDE}"
            yield legal, f"element_strides[{i}]", stride, "elementStrides", rule
        for i, size in enumerate(self.box_dims):
            legal, rule = 1 <= size <= TMA_BOX_LIMIT, f"must be 1 to {TMA_BOX_LIMIT}"
            yield legal, f"box_dims[{i}]", size, "boxDim", rule
        inner, rule = self.box_dims[0], f"must be 128 for {kind.name}"
        yield inner == 128 or not kind.is_padded, "box_dims[0]", inner, "boxDim", rule
        if self.transaction_bytes > _MAX_BOX_BYTES:
            raise LayoutError(
                "box_dims",
                self.box_dims,
                f"a box may have at most {_MAX_BOX_BYTES} bytes, here {self.transaction_bytes}: no"
                " thread block has more shared memory",
            )
        # Documented without interleave; the driver (CUDA 13.0) insists on it with interleave, too.
        inner_bits, chunk = inner * kind.bits, 8 * CHUNK_BYTES
        rule = (
            "the inner dimension must be a multiple of 16 bytes, here of"
            f" {chunk // kind.bits} elements"
        )
        yield inner_bits % chunk == 0, "box_dims[0]", inner, "boxDim", rule
        rule = (
            f"the inner dimension of a box must be at most {swizzle.span} bytes, the swizzle size,"
            f" here {8 * swizzle.span // kind.bits} elements"
        )
        is_plain = interleave == Interleave.NONE
        legal = not is_plain or not swizzle.span or inner_bits <= 8 * swizzle.span
        yield legal, "box_dims[0]", inner, "interleave", rule
        legal = interleave != Interleave.BYTES_32 or swizzle == TensorSwizzle.BYTES_32
        yield legal, "swizzle", swizzle.name, "swizzle", "must be 32B with interleave 32B"
        legal, rule = is_plain or kind != DataType.U6X16_ALIGN16B, f"must be NONE for {kind.name}"
        yield legal, "interleave", interleave.name, "interleave", rule
        if kind.is_padded:
            modes = [TensorSwizzle.NONE, TensorSwizzle.BYTES_128, TensorSwizzle.BYTES_128_ATOM_32B]
            if kind == DataType.U6X16_ALIGN16B:
                modes.append(TensorSwizzle.BYTES_128_ATOM_64B)
            rule = f"must be one of {', '.join(mode.name for mode in modes)} for {kind.name}"
            yield swizzle in modes, "swizzle", swizzle.name, "swizzle", rule
        legal = self.oob_fill == OobFill.NONE or kind.is_floating_point
        rule = f"NaN needs a floating-point type, not {kind.name}"
        yield legal, "oob_fill", self.oob_fill.name, "oobFill", rule
