"""Products on the tensor cores: ``wgmma`` of Hopper, ``tcgen05.mma`` of Blackwell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from triton_ext.hardware.instruction_descriptor import KINDS
from triton_ext.ptx.forms.syntax import Form, elements, flag, modifier, modifiers, operand

_INPUTS = "f16|bf16|tf32|e4m3|e5m2|s8|u8|b1"


def _is_scaled(values: Mapping[str, Any]) -> bool:
    return str(values["d_type"]) != "s32"


def _is_transposable(values: Mapping[str, Any]) -> bool:
    return values["a_type"] in ("f16", "bf16")


@dataclass(frozen=True)
class WgmmaProduct(Form):
    """``wgmma.mma_async`` (PTX ISA, "wgmma.mma_async", "wgmma.mma_async.sp").

    Attributes:
        shape: ``m64n128k16``.
        saturate: ``.satfinite``: integer sums are clamped.
        operation: "and.popc" of one-bit products is "and"; "" for others.
        d: the accumulator's registers, ``{%f1, %f2, ...}``.
        a: A's registers, ``{...}``, or its matrix descriptor.
        b: matrix descriptor of B.
        metadata, selector: of a sparse A (sp-meta, sp-sel).
        scale_d: the predicate that says whether D is read.
        scale_a, scale_b: imm-scale-a and -b: -1 negates; not of integers.
        transpose_a, transpose_b: imm-trans-a and -b: 1 for MN-major; of 16-bit elements alone, and
            of A in shared memory alone.
    """

    OPCODES: ClassVar = {"wgmma.mma_async": ("sync", "aligned")}

    sparse: bool = flag("sp")
    shape: str = modifier(r"m\d+n\d+k\d+")
    saturate: bool = flag("satfinite")
    d_type: str = modifier("f16|f32|s32")
    a_type: str = modifier(_INPUTS)
    b_type: str = modifier(_INPUTS)
    operation: str = modifier("and", missing="")
    counts_bits: bool = flag("popc")
    d: str = operand()
    a: str = operand()
    b: str = operand()
    metadata: str = operand(lambda values: values["sparse"])
    selector: str = operand(lambda values: values["sparse"])
    scale_d: str = operand()
    scale_a: str = operand(_is_scaled)
    scale_b: str = operand(_is_scaled)
    transpose_a: str = operand(lambda form: _is_transposable(form) and form["a"][:1] != "{")
    transpose_b: str = operand(_is_transposable)

    @property
    def mnk(self) -> tuple[int, int, int]:
        """The extents of the product, in elements."""
        m, n, k = map(int, re.findall(r"\d+", self.shape))
        return m, n, k

    @property
    def a_in_registers(self) -> bool:
        """Whether A is in registers, not in shared memory."""
        return self.a.startswith("{")

    @property
    def immediates(self) -> tuple[str, ...]:
        """The constants behind scale-d."""
        constants = (self.scale_a, self.scale_b, self.transpose_a, self.transpose_b)
        return tuple(text for text in constants if text)


@dataclass(frozen=True)
class Tcgen05Product(Form):
    """``tcgen05.mma`` (PTX ISA, "tcgen05.mma", "tcgen05.mma.sp", "tcgen05.mma.ws", ".ws.sp").

    Attributes:
        cta_group: 1, or 2 for a pair of CTAs.
        kind: a key of `triton_ext.hardware.instruction_descriptor.KINDS`.
        scale_vector: ``scale_vec::1X``, ``block32``, ...; "" is the kind's own.
        shifts_a: ``.ashift``.
        collectors: (buffer, use) of each ``.collector::buffer::use``.
        d: address in tensor memory.
        a: matrix descriptor, or ``[address]`` in tensor memory.
        b: matrix descriptor.
        metadata: address in tensor memory, of a sparse A (sp-meta-tmem).
        idesc: instruction descriptor.
        scale_a, scale_b: addresses of scale factors in tensor memory; with ``.block_scale`` alone.
        disable_output_lane: a register for each 32 lanes; none if all are written.
        enable_input_d: the predicate that says whether D is read.
        scale_input_d: D is read as D * 2**-scale_input_d.
        zero_column_mask: descriptor, of ``.ws`` alone.
    """

    OPCODES: ClassVar = {"tcgen05.mma": ()}

    weight_stationary: bool = flag("ws")
    sparse: bool = flag("sp")
    cta_group: int = modifier("cta_group::([12])", int)
    kind: str = modifier(f"kind::({'|'.join(KINDS)})")
    block_scale: bool = flag("block_scale")
    scale_vector: str = modifier("scale_vec::[124]X|block(?:16|32)", missing="")
    shifts_a: bool = flag("ashift")
    collectors: tuple[str, ...] = modifiers(
        "collector::((?:a|b|b[0-3])::(?:fill|use|lastuse|discard))"
    )
    d: str = operand()
    a: str = operand()
    b: str = operand()
    metadata: str = operand(lambda values: values["sparse"])
    idesc: str = operand()
    scale_a: str = operand(lambda values: values["block_scale"])
    scale_b: str = operand(lambda values: values["block_scale"])
    disable_output_lane: tuple[str, ...] = operand(like=r"\{", read=elements)
    enable_input_d: str = operand()
    zero_column_mask: str = operand(lambda values: values["weight_stationary"], optional=True)
    scale_input_d: str = operand(lambda values: not values["weight_stationary"], optional=True)

    def __post_init__(self) -> None:
        if self.block_scale != KINDS[self.kind].block_scaled:
            raise self.refuse(f".kind::{self.kind} and .block_scale do not go together")
        masks = len(self.disable_output_lane)
        if masks and (masks != 4 * self.cta_group or self.block_scale or self.weight_stationary):
            why = "disable-output-lane has 4 registers, 8 with cta_group::2; no scales, no .ws"
            raise self.refuse(why)

    @property
    def a_in_tensor_memory(self) -> bool:
        """Whether A is in tensor memory, not in shared memory."""
        return self.a.startswith("[")


@dataclass(frozen=True)
class WgmmaGroup(Form):
    """``wgmma.fence``, ``commit_group`` and ``wait_group`` (PTX ISA, "wgmma.fence" and so on).

    Attributes:
        pending: of ``wait_group``: how many groups may still be under way.
    """

    OPCODES: ClassVar = {
        "wgmma.fence": ("sync", "aligned"),
        "wgmma.commit_group": ("sync", "aligned"),
        "wgmma.wait_group": ("sync", "aligned"),
    }

    pending: str = operand(lambda values: values["base"] == "wgmma.wait_group")
