"""Triton's types of memory, read from their printed form: ``!ttg.memdesc``, ``!tt.tensordesc``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from triton_ext.errors import LayoutError
from triton_ext.splitting import split_arguments

_SHAPED = re.compile(r"((?:\d{1,19}x)+)(.+)", re.DOTALL)
_ALLOCATED = re.compile(r"\d{1,19}(x\d{1,19})*")
_MEMORY = re.compile(r"!(?:ttg|ttng|tt)\.(memdesc|tensordesc)<(.*)>", re.DOTALL)
_BITS = re.compile(r"[a-z]+(\d{1,19})(?!\d)")


def bits_of(element: str) -> int | None:
    """Bits of an element type: 16 for ``f16``, 8 for ``f8E4M3FN``; None if its name has none."""
    found = _BITS.match(element)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class MemoryType:
    """The type of a tile in shared or tensor memory, or of a TMA descriptor.

    Attributes:
        kind: ``memdesc`` or ``tensordesc``.
        shape: that of the tile; a leading dimension more than the encoding's rank counts buffers.
        element: the element type, such as ``f16`` or ``f8E4M3FN``.
        encoding: the text of the encoding, alias resolved; "" if there is none.
        alias: the alias under which the encoding was printed (``#shared``), or "".
        space: ``shared`` or ``tensor``; "shared" for a TMA descriptor.
        is_mutable: whether it may be written more than once.
        allocated: the shape of the allocation of which it is a part; `shape` if it is whole.
    """

    kind: Literal["memdesc", "tensordesc"]
    shape: tuple[int, ...]
    element: str
    encoding: str
    alias: str
    space: Literal["shared", "tensor"]
    is_mutable: bool
    allocated: tuple[int, ...]

    @property
    def element_bitwidth(self) -> int:
        """Bits of an element: 16 for ``f16``, 8 for ``f8E4M3FN``."""
        bits = bits_of(self.element)
        if bits is None:
            raise LayoutError("element", self.element, "must be a type with a width, such as f16")
        return bits

    @property
    def mnemonic(self) -> str:
        """Its encoding: ``nvmma_shared``, ``swizzled_shared``, ``tensor_memory_encoding``."""
        return self.encoding.partition("<")[0].split(".")[-1]


@functools.lru_cache(maxsize=4096)
def _parts(text: str) -> tuple[str, tuple[str, ...]] | None:
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        return None
    inside = match[2].strip()
    if inside.startswith("tensor<"):  # before 3.7: !tt.tensordesc<tensor<128x64xf16, #shared>>
        inside = inside[len("tensor<") : -1]
    return match[1], split_arguments(inside)


def memory_type(text: str, aliases: Mapping[str, str]) -> MemoryType | None:
    """Read ``!ttg.memdesc<3x128x64xf16, #shared, #smem, mutable>`` and its like.

    Args:
        text: a type, as printed.
        aliases: the module's attribute aliases.

    Returns:
        None if it is another type.

    Raises:
        LayoutError: it is such a type, but cannot be read.
    """
    parts = _parts(text)
    if parts is None:
        return None
    kind, (shaped, *rest) = parts[0], parts[1] or ("",)
    match = _SHAPED.fullmatch(shaped)
    if match is None:
        raise LayoutError("type", text, "expected a shape and an element, such as 128x64xf16")
    shape = _sizes(match[1])
    attributes = [argument for argument in rest if argument.startswith("#")]
    encoding = aliases.get(attributes[0], attributes[0]) if attributes else ""
    space = "".join(aliases.get(attribute, attribute) for attribute in attributes[1:])
    allocated = [argument for argument in rest if _ALLOCATED.fullmatch(argument)]
    return MemoryType(
        "memdesc" if kind == "memdesc" else "tensordesc",
        shape,
        match[2],
        encoding,
        attributes[0] if attributes and "<" not in attributes[0] else "",
        "tensor" if "tensor_memory" in space else "shared",
        "mutable" in rest,
        _sizes(allocated[-1]) if allocated else shape,
    )


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.strip("x").split("x") if size)


@dataclass(frozen=True)
class TensorType:
    """The type of a tensor in registers.

    Attributes:
        element: the element type, such as ``f16``.
        encoding: the text of its distributed encoding, the outermost alias resolved; "" if it has
            none.
    """

    shape: tuple[int, ...]
    element: str
    encoding: str

    @property
    def element_bitwidth(self) -> int | None:
        """Bits of an element; None for a type without a width in its name, such as a pointer."""
        return bits_of(self.element)


def tensor_type(text: str, aliases: Mapping[str, str]) -> TensorType | None:
    """Read ``tensor<128x64xf16, #blocked>``; None if it is another type, or has no dimension."""
    text = text.strip()
    if not (text.startswith("tensor<") and text.endswith(">")):
        return None
    shaped, *rest = split_arguments(text[len("tensor<") : -1])
    match = _SHAPED.fullmatch(shaped)
    if match is None:
        return None
    encoding = aliases.get(rest[0], rest[0]) if rest else ""
    return TensorType(_sizes(match[1]), match[2], encoding)
