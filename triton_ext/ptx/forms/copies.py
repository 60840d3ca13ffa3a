"""Bulk copies: of bytes, and of boxes of tensors by TMA; and their groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from triton_ext.ptx.forms.syntax import Form, elements, flag, modifier, operand
from triton_ext.ptx.parse import split_operands

_SPACE = r"shared(?:::cta|::cluster)?|global|L2"
_REDUCTION = "add|min|max|inc|dec|and|or|xor"
_COMPLETIONS = {
    ("shared", "global"): "mbarrier::complete_tx::bytes",
    ("shared", "shared"): "mbarrier::complete_tx::bytes",
    ("global", "shared"): "bulk_group",
    ("L2", "global"): "",
}
"""(destination, source) -> the completion mechanism."""
GATHERED_ROWS = 4
"""Rows that ``.tile::gather4`` and ``.tile::scatter4`` move (PTX ISA, "Tiled mode")."""


def _writes_shared(values: Mapping[str, Any]) -> bool:
    return str(values["destination"]).startswith("shared")


def _reads_shared(values: Mapping[str, Any]) -> bool:
    return not _writes_shared(values) and str(values["source"]).startswith("shared")


def _is_cached(values: Mapping[str, Any]) -> bool:
    return bool(values["cache_hint"])


@dataclass(frozen=True)
class _Copy(Form):
    """What copies of bytes and of tensors have in common.

    Attributes:
        destination, source: state spaces; the destination of a prefetch is "L2".
        completion: "mbarrier::complete_tx::bytes" of a copy into shared memory, "bulk_group" of one
            out of it, "" of a prefetch.
        reduction: of ``cp.reduce``: "add", ...; else "".
    """

    destination: str = modifier(_SPACE)
    source: str = modifier(_SPACE)
    completion: str = modifier("mbarrier::complete_tx::bytes|bulk_group", missing="")
    reduction: str = modifier(_REDUCTION, missing="")

    def __post_init__(self) -> None:
        way = self.destination.split("::")[0], self.source.split("::")[0]
        if (
            _COMPLETIONS.get(way) != self.completion
            or ("L2" in way) != ("prefetch" in self.base)
            or self.source == "shared::cluster"
        ):
            raise self.refuse("its state spaces and completion mechanism do not go together")
        if bool(self.reduction) != self.base.startswith("cp.reduce"):
            raise self.refuse("cp.reduce, and nothing else, has an operation such as .add")

    @property
    def loads(self) -> bool:
        """Whether it writes shared memory."""
        return self.destination.startswith("shared")


@dataclass(frozen=True)
class TensorCopy(_Copy):
    """TMA: ``cp.async.bulk.tensor``, also ``.prefetch`` and ``cp.reduce`` (PTX ISA, "cp.async.bulk.
    tensor", "cp.reduce.async.bulk.tensor", "cp.async.bulk.prefetch.tensor").

    Attributes:
        rank: of the tensor.
        mode: "tile" and so on.
        cta_group: 1 or 2 if the opcode says it, else 0.
        multicast: the data go to the CTAs of `cta_mask`.
        dst_mem: address in shared memory of a load.
        tensor: ``[map, {c0, c1}]``.
        src_mem: address in shared memory of a store or reduction.
        mbarrier: address of the barrier that a load signals.
        im2col: the offsets of im2col modes (im2colInfo).
        cta_mask: the CTAs of a multicast.
    """

    OPCODES: ClassVar = {
        "cp.async.bulk.tensor": (),
        "cp.reduce.async.bulk.tensor": (),
        "cp.async.bulk.prefetch.tensor": (),
    }

    rank: int = modifier("([1-5])d", int)
    mode: str = modifier(
        "tile(?:::gather4|::scatter4)?|im2col(?:::w|::w::128)?|im2col_no_offs", missing="tile"
    )
    cta_group: int = modifier("cta_group::([12])", int, missing=0)
    multicast: bool = flag("multicast::cluster")
    cache_hint: bool = flag("L2::cache_hint")
    dst_mem: str = operand(_writes_shared)
    tensor: str = operand()
    src_mem: str = operand(_reads_shared)
    mbarrier: str = operand(_writes_shared)
    im2col: tuple[str, ...] = operand(like=r"\{", read=elements)
    cta_mask: str = operand(lambda values: values["multicast"])
    cache_policy: str = operand(_is_cached)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loads and self.source != "global":
            raise self.refuse("a load has .global as its source")
        if len(split_operands(self.tensor.strip("[]"))) != 2:
            raise self.refuse(f"{self.tensor!r} must be a tensor map and coordinates")
        rows = GATHERED_ROWS if self.moves_rows else 0
        scatters = self.mode == "tile::scatter4"
        if rows and (self.rank != 2 or self.reduction or scatters != bool(self.src_mem)):
            raise self.refuse("loads and prefetches gather, stores scatter, rows of 2 dimensions")
        count, wanted = len(self.coordinates), 1 + rows if rows else self.rank
        if count != wanted:
            raise self.refuse(f"{count} coordinates, {wanted} expected")

    @property
    def moves_rows(self) -> bool:
        """Whether it gathers or scatters four rows."""
        return "::" in self.mode and self.mode.startswith("tile")

    @property
    def shared(self) -> str:
        """The address in shared memory; "" of a prefetch."""
        return self.dst_mem or self.src_mem

    @property
    def map(self) -> str:
        """The address of the tensor map."""
        return split_operands(self.tensor.strip("[]"))[0]

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The coordinates of the box, innermost first; of a gather the column, then the rows."""
        return split_operands(split_operands(self.tensor.strip("[]"))[1].strip("{}"))


@dataclass(frozen=True)
class BulkCopy(_Copy):
    """``cp.async.bulk``, also ``.prefetch`` and ``cp.reduce`` (PTX ISA, "cp.async.bulk",
    "cp.reduce.async.bulk", "cp.async.bulk.prefetch").

    Attributes:
        type: of the elements of a reduction, such as "u32"; "" of copies.
        no_flush: ``.noftz``: subnormal numbers are kept.
        multicast: the data go to the CTAs of `cta_mask`.
        dst_mem: address in shared or global memory; "" of a prefetch.
        size: in bytes.
        mbarrier: address of the barrier that a copy into shared memory signals.
        masked: ``.cp_mask``: of each 16 bytes those of `byte_mask` are written.
    """

    OPCODES: ClassVar = {
        "cp.async.bulk": (),
        "cp.reduce.async.bulk": (),
        "cp.async.bulk.prefetch": (),
    }

    no_flush: bool = flag("noftz")
    type: str = modifier(r"[busf](?:8|16|32|64)|bf16", missing="")
    multicast: bool = flag("multicast::cluster")
    cache_hint: bool = flag("L2::cache_hint")
    masked: bool = flag("cp_mask")
    dst_mem: str = operand(lambda values: values["destination"] != "L2")
    src_mem: str = operand()
    size: str = operand()
    mbarrier: str = operand(_writes_shared)
    cta_mask: str = operand(lambda values: values["multicast"])
    cache_policy: str = operand(_is_cached)
    byte_mask: str = operand(lambda values: values["masked"])

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.type) != bool(self.reduction):
            raise self.refuse("a reduction, and nothing else, has a type")


@dataclass(frozen=True)
class BulkGroup(Form):
    """``cp.async.bulk.commit_group`` and ``wait_group`` (PTX ISA, "cp.async.bulk.commit_group").

    Attributes:
        reads_only: ``.read``: waits until sources have been read.
        pending: how many groups may still be under way.
    """

    OPCODES: ClassVar = {"cp.async.bulk.commit_group": (), "cp.async.bulk.wait_group": ()}

    reads_only: bool = flag("read")
    pending: str = operand(lambda values: values["base"] == "cp.async.bulk.wait_group")

    def __post_init__(self) -> None:
        if self.reads_only and not self.pending:
            raise self.refuse("wait_group alone has .read")
