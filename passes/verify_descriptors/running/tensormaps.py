"""What a kernel is launched with, and its TMA descriptors: given by the launch, or made by itself.

``ttng.tensormap_create`` fills 128 bytes of shared memory with zeros, replaces one field after the
other, and copies them to global memory. What the kernel writes there must be what the operation
says, and operation and launch must say what the type of the descriptor needs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import WARP_THREADS
from triton_ext.hardware.tensor_map import TensorSwizzle
from triton_ext.integers import Number
from triton_ext.layouts.cluster import shape_per_cta
from triton_ext.layouts.encodings import NVMMAShared
from triton_ext.layouts.nvmma_shared import tma_box_shape
from triton_ext.mlir.arith import integer_constant
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import memory_type
from triton_ext.passes.occupancy import partition_warps
from triton_ext.passes.value_layouts import parsed_encoding
from triton_ext.passes.verify_descriptors.meaning.tiles import is_fp4_padded
from triton_ext.passes.verify_descriptors.running.poison import Poison
from triton_ext.passes.verify_descriptors.running.thread_trace import ExecutedInstruction

ELEMENT_TYPES = {
    "f16": 6, "f32": 7, "f64": 9, "bf16": 10, "si32": 3, "si64": 5, "i16": 1, "ui16": 1, "si16": 1,
    "i32": 2, "ui32": 2, "i64": 4, "ui64": 4,
}  # fmt: skip
"""Triton's element types, as ``tensormap.replace.elemtype`` counts them (PTX ISA,
"tensormap.replace"); a byte of any kind is 0. Triton's launcher maps them to CUDA's."""
_FP4_PADDED = 14


def element_type(element: str, *, is_padded: bool) -> int | None:
    """The number of an element type, None for one that is not known."""
    if is_padded:
        return _FP4_PADDED
    if element in ("i8", "ui8", "si8") or element.startswith("f8"):
        return 0
    return ELEMENT_TYPES.get(element)


@dataclass(frozen=True)
class FieldCheck:
    """A field of a TMA descriptor, against what the descriptor's type needs.

    Attributes:
        difference: in words; "" if the field is right.
        maker: the operation that writes it; None for launch metadata.
    """

    difference: str = ""
    maker: Operation | None = None


@dataclass(frozen=True)
class LaunchedWith:
    """What the launch metadata say of a block.

    Attributes:
        ctas: blocks of a cluster.
        shared: bytes of shared memory; None if they are not known.
        columns: of tensor memory; None if they are not known.
        scratch: bytes of global memory; None if they are not known.
    """

    ctas: int
    shared: int | None
    columns: int | None = None
    scratch: int | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> LaunchedWith:
        """Those of Triton's metadata."""
        shared = metadata.get("shared")
        return cls(
            int(metadata.get("num_ctas", 1)), shared if isinstance(shared, int) else None,
            metadata.get("tmem_size") or None, metadata.get("global_scratch_size") or None,
        )  # fmt: skip


def launch_checks(
    module: MlirModule, metadata: Mapping[str, Any], directives: Mapping[str, tuple[int, ...]]
) -> Iterator[FieldCheck]:
    """Threads and clusters: the metadata and the PTX's directives against the module."""
    warps = int(module.attributes.get("ttg.num-warps", 4))
    blocks = int(module.attributes.get("ttg.num-ctas", 1))
    partitions = [each for each in module.operations if each.name == "ttg.warp_specialize"]
    told = int(metadata.get("num_warps", warps))
    most = max((sum(partition_warps(each)) for each in partitions), default=0)
    needed = range(warps + most, 33) if partitions else range(warps, warps + 1)
    # Idle warps fill the last warpgroup of a kernel with partitions.
    found = [
        ("num_warps", told in needed, told, f"{warps + most}{' or more' * bool(partitions)}"),
        ("num_ctas", metadata.get("num_ctas", 1) == blocks, metadata.get("num_ctas"), blocks),
    ]
    for name in ("reqntid", "maxntid"):
        if name in directives:
            threads, size = math.prod(directives[name]), WARP_THREADS * told
            fits = threads == size if name == "reqntid" else threads >= size
            found.append((f".{name}", fits, threads, size))
    if "reqnctapercluster" in directives or blocks > 1:
        size = math.prod(directives.get("reqnctapercluster", (0,)))
        found.append((".reqnctapercluster", size == blocks, size, blocks))
    for name, fits, is_, must in found:
        difference = f"the launch says {name} = {is_}, but the module needs {must}"
        yield FieldCheck("" if fits else difference)


def metadata_checks(module: MlirModule, metadata: Mapping[str, Any]) -> Iterator[FieldCheck]:
    """``tensordesc_meta`` against the encodings of the kernel's arguments, field by field."""
    entries = metadata.get("tensordesc_meta")
    values = module.kernel.regions[0].entry.arguments if module.kernel else []
    arguments = [value for value in values if _is_descriptor(value)]
    if entries is None or not arguments:
        return
    if len(entries) != len(arguments):
        yield FieldCheck(
            f"tensordesc_meta has {len(entries)} entries for {len(arguments)} TMA descriptors"
        )
        return
    for value, entry in zip(arguments, entries, strict=True):
        if not isinstance(entry, Mapping):
            continue
        for name, expected in needed_fields(module, value).items():
            if name not in entry:
                continue
            found = entry[name]
            found = list(found) if isinstance(found, (list, tuple)) else found
            if found == expected:
                yield FieldCheck()
            else:
                yield FieldCheck(
                    f"the launch metadata of {value.name} says {name} = {found}, but its type"
                    f" {value.type} needs {expected}"
                )


def _is_descriptor(value: Value) -> bool:
    return "tensordesc" in (value.type or "").partition("<")[0]


def needed_fields(module: MlirModule, value: Value) -> dict[str, Any]:
    """What the entry of a TMA descriptor in ``tensordesc_meta`` must be, by its type."""
    is_im2col = "im2col" in (value.type or "")
    plain = (value.type or "").replace("ttng.tensordesc_im2col<", "tt.tensordesc<")
    kind = memory_type(plain, module.aliases)
    if kind is None or "nvmma_shared" not in kind.encoding:
        return {}
    try:
        encoding = parsed_encoding(kind.encoding)
        if not isinstance(encoding, NVMMAShared):
            return {}
        shape = kind.shape[-encoding.rank :]
        padded = is_fp4_padded(kind.encoding)
        found: dict[str, Any] = {
            "swizzle": int(TensorSwizzle.of_width(encoding.swizzle_byte_width)),
            "elem_size": max(1, kind.element_bitwidth // 8),
            "fp4_padded": padded,
            "is_im2col": is_im2col,
        }  # fmt: skip
        number = element_type(kind.element, is_padded=padded)
        if number is not None:
            found["elem_type"] = number
        if is_im2col:
            # Pixels are not cut, but at the 1024 that a copy can have.
            channels = tma_box_shape(shape, encoding)[1]
            found["block_size"] = [min(shape[0], 1024), channels]
        else:
            box = list(tma_box_shape(shape_per_cta(encoding.cga_layout, shape), encoding))
            box[encoding.contiguous_dim] *= 2 if padded else 1
            found["block_size"] = box
    except LayoutError:
        return {}
    return found


CREATE, ACQUIRE = "ttng.tensormap_create", "ttng.tensormap_fenceproxy_acquire"
_COPY, _FENCE = "tensormap.cp_fenceproxy", "fence.proxy.tensormap"
_FIELD = re.compile(r"tensormap\.replace\.tile\.(\w+)\.")
_MODES = {
    "elem_type": "elemtype", "interleave_layout": "interleave_layout",
    "swizzle_mode": "swizzle_mode", "fill_mode": "fill_mode",
}  # fmt: skip
"""The operation's attributes, and the fields (PTX ISA, "tensormap.replace")."""
_LISTS = ("box_dim", "global_dim", "global_stride", "element_stride")

Field = tuple[str, int]
"""A field's name, and which of its entries."""


def is_part(opcode: str) -> bool:
    """Whether an instruction makes a descriptor, or lets copies see it."""
    return opcode.startswith(("tensormap.replace", _COPY, _FENCE))


@dataclass(frozen=True)
class Fields:
    """What ``ttng.tensormap_create`` writes.

    Attributes:
        values: the fields that are given as values, innermost dimension first.
    """

    address: Value
    values: dict[Field, Value]
    numbers: dict[Field, int]


@lru_cache(maxsize=256)
def fields_of(operation: Operation) -> Fields:
    """What an operation writes; its operands stand in four pairs of brackets, after two more."""
    lists: list[list[Value]] = []
    by_start = {
        token.start: value
        for token, value in zip(operation.operand_tokens, operation.operands, strict=True)
    }
    inside = False
    for token in operation.tokens:
        if token.kind == "mark" and token.text == "[" and len(lists) < len(_LISTS):
            lists.append([])
            inside = True
        elif token.kind == "mark" and token.text == "]":
            inside = False
        elif inside and token.start in by_start:
            lists[-1].append(by_start[token.start])
    values = {
        (name, index): value
        for name, listed in zip(_LISTS, lists, strict=False)
        for index, value in enumerate(listed)
    }
    numbers = {(field, 0): int(operation.attributes.get(name, 0)) for name, field in _MODES.items()}
    numbers["rank", 0] = len(lists[0]) - 1 if lists else 0
    return Fields(operation.operands[1], values, numbers)


def making(events: Sequence[ExecutedInstruction]) -> int:
    """How many of `events` make a descriptor, the copy to global memory the last of them; 0 if they
    do not.
    """
    for count, event in enumerate(events, 1):
        opcode = event.instruction.opcode
        if opcode.startswith(_COPY):
            return count
        if not is_part(opcode) or opcode.startswith(_FENCE):
            break
    return 0


def written(events: Sequence[ExecutedInstruction]) -> dict[Field, Number]:
    """What instructions write into the fields; `("global", 0)` is where the descriptor goes."""
    found: dict[Field, Number] = {}
    for event in events:
        match = _FIELD.match(event.instruction.opcode)
        numbers = [value if isinstance(value, (int, Poison)) else None for value in event.operands]
        if match is None:
            found["global", 0] = numbers[0]
        elif len(numbers) > 2:
            index = numbers[1]
            found[match[1], index if isinstance(index, int) else 0] = numbers[2]
        else:
            found[match[1], 0] = numbers[1]
    return found


def type_checks(module: MlirModule) -> Iterator[FieldCheck]:
    """What operations write, against what the type of the descriptor needs, field by field."""
    for operation in module.operations:
        if operation.name != "ttng.reinterpret_tensor_descriptor":
            continue
        needed = _needed(needed_fields(module, operation.results[0]))
        for maker, position in operation.operands[0].uses:
            if maker.name != CREATE or position:
                continue
            fields = fields_of(maker)
            for name, must in needed.items():
                value = fields.values.get(name)
                found = fields.numbers.get(name) if value is None else integer_constant(value)
                if found == must:
                    yield FieldCheck(maker=maker)
                elif found is not None:
                    yield FieldCheck(
                        f"{name[0]} {name[1]} of the TMA descriptor is {found}, but its type"
                        f" {operation.results[0].type} needs {must}",
                        maker,
                    )


def _needed(metadata: dict[str, object]) -> dict[Field, int]:
    found: dict[Field, int] = {}
    for name, field in (("swizzle", "swizzle_mode"), ("elem_type", "elemtype")):
        number = metadata.get(name)
        if isinstance(number, int):
            found[field, 0] = number
    box = metadata.get("block_size")
    if isinstance(box, list):
        found.update({("box_dim", i): size for i, size in enumerate(reversed(box))})
        found["rank", 0] = len(box) - 1
    return found
