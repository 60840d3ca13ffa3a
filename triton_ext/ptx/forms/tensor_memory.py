"""Tensor memory: its allocation, loads, stores and copies, and the ``tcgen05`` instructions that
order them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from triton_ext.hardware.tensor_memory_access import ACCESS_SHAPES
from triton_ext.hardware.tensor_memory_copy import COPY_SHAPES
from triton_ext.ptx.forms.syntax import Form, elements, flag, modifier, operand

_CTA_GROUP = "cta_group::([12])"


def _single(text: str) -> str:
    """A register, which may stand alone in a vector."""
    return text.removeprefix("{").removesuffix("}").strip()


@dataclass(frozen=True)
class TensorMemoryAllocation(Form):
    """``tcgen05.alloc``, ``dealloc`` and ``relinquish_alloc_permit`` (PTX ISA, "tcgen05.alloc").

    Attributes:
        cta_group: 1, or 2 for a pair of CTAs.
        exclusive: ``.exclusive``: any multiple of 32 columns.
        space: "shared::cta", or "" for a generic address.
        address: where the address goes to in shared memory; of ``dealloc``, the address in tensor
            memory.
        columns: nCols.
    """

    OPCODES: ClassVar = {
        "tcgen05.alloc": ("sync", "aligned", "b32"),
        "tcgen05.dealloc": ("sync", "aligned", "b32"),
        "tcgen05.relinquish_alloc_permit": ("sync", "aligned"),
    }

    cta_group: int = modifier(_CTA_GROUP, int)
    exclusive: bool = flag("exclusive")
    space: str = modifier("shared::cta", missing="")
    address: str = operand(lambda values: "alloc_permit" not in values["base"])
    columns: str = operand(lambda values: "alloc_permit" not in values["base"])

    def __post_init__(self) -> None:
        if self.exclusive and not self.columns:
            raise self.refuse("has no .exclusive")


@dataclass(frozen=True)
class TensorMemoryAccess(Form):
    """``tcgen05.ld`` and ``tcgen05.st`` (PTX ISA, "tcgen05.ld", "tcgen05.st").

    Attributes:
        reduces: ``tcgen05.ld.red``; the reduction is "min" or "max".
        shape: a key of `triton_ext.hardware.tensor_memory_access.ACCESS_SHAPES`.
        repeat: the N of ``.xN``.
        packs: ``.pack::16b`` of a load.
        unpacks: ``.unpack::16b`` of a store.
        type: "b32"; of a reduction "f32", "u32" or "s32".
        loaded, stored: the registers that a load writes, and that a store reads.
        reduced: the register of a reduction's result (redval).
        address: in tensor memory.
        half_split: immHalfSplitoff, of the shape 16x32bx2 alone.
    """

    OPCODES: ClassVar = {"tcgen05.ld": ("sync", "aligned"), "tcgen05.st": ("sync", "aligned")}

    reduces: bool = flag("red")
    shape: str = modifier("|".join(ACCESS_SHAPES))
    repeat: int = modifier(r"x(\d{1,3})", int)
    packs: bool = flag("pack::16b")
    unpacks: bool = flag("unpack::16b")
    reduction: str = modifier("min|max", missing="")
    of_magnitudes: bool = flag("abs")
    propagates_nan: bool = flag("NaN")
    type: str = modifier("b32|f32|u32|s32")
    loaded: tuple[str, ...] = operand(lambda values: values["base"] == "tcgen05.ld", read=elements)
    reduced: str = operand(lambda values: values["reduces"], read=_single)
    address: str = operand()
    half_split: str = operand(lambda values: values["shape"] == "16x32bx2")
    stored: tuple[str, ...] = operand(lambda values: values["base"] == "tcgen05.st", read=elements)

    def __post_init__(self) -> None:
        if self.reduces != bool(self.reduction) or (self.type != "b32") != self.reduces:
            raise self.refuse("the type is b32, and that of .red, which has an operation, is not")
        if (self.packs or self.reduces) if self.stores else self.unpacks:
            raise self.refuse("loads may have .pack::16b and .red, stores .unpack::16b")

    @property
    def stores(self) -> bool:
        """Whether it is a store."""
        return self.base == "tcgen05.st"

    @property
    def registers(self) -> tuple[str, ...]:
        """The registers that a load writes, or a store reads."""
        return self.stored or self.loaded


@dataclass(frozen=True)
class TensorMemoryCopy(Form):
    """``tcgen05.cp``: shared memory -> tensor memory (PTX ISA, "tcgen05.cp").

    Attributes:
        shape: lanes x bits, such as "128x256b".
        multicast: "warpx4", "warpx2::02_13", "warpx2::01_23", or "".
        target_format, source_format: of a copy that decompresses: "b8x16" and "b6x16_p32"; or "".
        address: in tensor memory.
        descriptor: matrix descriptor of what is read.
    """

    OPCODES: ClassVar = {"tcgen05.cp": ()}

    cta_group: int = modifier(_CTA_GROUP, int)
    shape: str = modifier("|".join(dict.fromkeys(name for name, _ in COPY_SHAPES)))
    multicast: str = modifier("warpx4|warpx2::(?:02_13|01_23)", missing="")
    target_format: str = modifier("b8x16", missing="")
    source_format: str = modifier("b6x16_p32|b4x16_p64", missing="")
    address: str = operand()
    descriptor: str = operand()

    def __post_init__(self) -> None:
        if bool(self.target_format) != bool(self.source_format):
            raise self.refuse("a format of the target and one of the source go together")


@dataclass(frozen=True)
class TensorMemoryShift(Form):
    """``tcgen05.shift`` (PTX ISA, "tcgen05.shift")."""

    OPCODES: ClassVar = {"tcgen05.shift": ("down",)}

    cta_group: int = modifier(_CTA_GROUP, int)
    address: str = operand()


@dataclass(frozen=True)
class TensorCoreCommit(Form):
    """``tcgen05.commit`` (PTX ISA, "tcgen05.commit").

    Attributes:
        space: "shared::cluster", or "" for a generic address.
        multicast: the barriers of the CTAs of `cta_mask` are signalled.
        mbarrier: its address.
    """

    OPCODES: ClassVar = {"tcgen05.commit": ("mbarrier::arrive::one", "b64")}

    cta_group: int = modifier(_CTA_GROUP, int)
    space: str = modifier("shared::cluster", missing="")
    multicast: bool = flag("multicast::cluster")
    mbarrier: str = operand()
    cta_mask: str = operand(lambda values: values["multicast"])


@dataclass(frozen=True)
class Tcgen05Order(Form):
    """``tcgen05.wait`` and ``tcgen05.fence`` (PTX ISA, "tcgen05.wait", "tcgen05.fence")."""

    OPCODES: ClassVar = {
        "tcgen05.wait::ld": ("sync", "aligned"),
        "tcgen05.wait::st": ("sync", "aligned"),
        "tcgen05.fence::before_thread_sync": (),
        "tcgen05.fence::after_thread_sync": (),
    }
