"""The 32-bit instruction descriptor of tcgen05.mma: types, major-ness and shape of the product.

Sources: PTX ISA, "Instruction descriptor" and "Matrix Shape" of tcgen05; CUTLASS
``cute/arch/mma_sm100_desc.hpp`` (InstrDescriptor, InstrDescriptorBlockScaled) and, of sm_107,
``cute/arch/mma_sm107_desc.hpp``; the CuTe DSL 4.8's ``Tcgen05InstrDesc`` (bit 29).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triton_ext.display import Displayed
from triton_ext.errors import LayoutError
from triton_ext.hardware.bit_fields import Fields, extract, insert
from triton_ext.layouts.arguments import one_of
from triton_ext.layouts.atoms import Major

_F8F6F4 = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}


@dataclass(frozen=True)
class Kind:
    """What a ``.kind`` of tcgen05.mma takes.

    Attributes:
        operands: element type of A and B -> its code.
        accumulators: element type of D -> its code; empty for block-scaled kinds, always fp32.
        k: the K extents of a dense product -> the values of the fields ``long_k`` and ``longer_k``.
        scales: scale type -> its code, for block-scaled kinds.
    """

    operands: dict[str, int]
    accumulators: dict[str, int]
    k: dict[int, tuple[int, int]]
    scales: dict[str, int]

    @property
    def usual_k(self) -> int:
        """The K extent that every GPU has."""
        return next(iter(self.k))

    @property
    def block_scaled(self) -> bool:
        """Whether A and B have scale factors."""
        return bool(self.scales)


_K_OF_32 = {32: (0, 0), 64: (1, 0)}
_K_OF_64 = {64: (0, 0), 96: (1, 0), 128: (0, 1)}
KINDS: dict[str, Kind] = {
    "f16": Kind({"f16": 0, "bf16": 1}, {"f16": 0, "f32": 1}, {16: (0, 0)}, {}),
    "tf32": Kind({"tf32": 2}, {"f32": 1}, {8: (0, 0)}, {}),
    "f8f6f4": Kind(_F8F6F4, {"f16": 0, "f32": 1}, _K_OF_32, {}),
    "i8": Kind({"u8": 0, "s8": 1}, {"s32": 2}, {32: (0, 0)}, {}),
    "mxf8f6f4": Kind(_F8F6F4, {}, _K_OF_32, {"ue8m0": 1}),
    "mxf4": Kind({"e2m1": 1}, {}, _K_OF_64, {"ue8m0": 1}),
    "mxf4nvf4": Kind({"e2m1": 1}, {}, _K_OF_64, {"ue4m3": 0, "ue8m0": 1}),
}
LONG_K = {96: "103f", 64: "107f", 128: "107f"}
"""The targets that have a K extent which is not the kind's usual one, as
`triton_ext.hardware.architecture.Target.meets` reads them (CUTLASS, ``cute/arch/config.hpp``)."""

SPARSE_GRANULARITY = {"tf32": "1:2", "mxf4": "4:8 (in pairs)", "mxf4nvf4": "4:8 (in pairs)"}
"""How many elements of how many a sparse A stores, where it is not 2:4 (PTX ISA, "Sparse Matrices"
of tcgen05)."""

# name -> (first bit, bits)
_SHARED = {
    "sparse": (2, 1),
    "a_type": (7, 3),
    "b_type": (10, 3),
    "negate_a": (13, 1),
    "negate_b": (14, 1),
    "a_mn_major": (15, 1),
    "b_mn_major": (16, 1),
    "n": (17, 6),
    "m": (24, 5),
}
DENSE_FIELDS = {
    **_SHARED,
    "sparsity_selector": (0, 2),
    "saturate": (3, 1),
    "d_type": (4, 2),
    "max_shift": (30, 2),
}
"""The fields of kinds f16, tf32, f8f6f4 and i8; all other bits must be 0."""
BLOCK_SCALED_FIELDS = {
    **_SHARED,
    "scale_factor_b_id": (4, 2),
    "scale_type": (23, 1),
    "scale_factor_a_id": (29, 2),
    "long_k": (31, 1),
}
"""The fields of the block-scaled kinds."""


def legal_n(kind: str, m: int, cta_group: int, *, weight_stationary: bool = False) -> Sequence[int]:
    """The N extents that a product with this M may have (PTX ISA, "Matrix Shape", dense).

    `weight_stationary` is the ``.ws`` form (CUTLASS, ``mma_traits_sm100_frag.hpp``,
    ``tmem_frg_ws``). Raises LayoutError: an unknown kind or CTA group, or an M that the two do not
    have.
    """
    one_of("kind", kind, KINDS)
    one_of("cta_group", cta_group, (1, 2))
    rows: dict[int, dict[int, Sequence[int]]]
    if weight_stationary:
        if KINDS[kind].block_scaled:
            raise LayoutError("kind", kind, "has no weight-stationary form")
        rows = {1: dict.fromkeys((32, 64, 128), (64, 128, 256)), 2: {}}
    elif KINDS[kind].block_scaled:
        rows = {1: {128: range(8, 257, 8)}, 2: {m: range(16, 257, 16) for m in (128, 256)}}
    elif kind == "i8":
        rows = {
            1: {64: (8, 16, 24, 32, *range(48, 257, 16)), 128: range(16, 257, 16)},
            2: {m: range(32, 257, 32) for m in (128, 256)},
        }
    else:
        rows = {
            1: {64: range(8, 257, 8), 128: range(16, 257, 16)},
            2: {m: range(16, 257, 16) for m in (128, 256)},
        }
    legal = rows[cta_group]
    if m not in legal:
        raise LayoutError(
            "m",
            m,
            f"must be {' or '.join(map(str, legal)) or 'absent'} for {kind}, cta_group {cta_group}"
            + (", .ws" if weight_stationary else ""),
        )
    return legal[m]


_K_FIELDS: dict[str, Fields] = {
    "f8f6f4": {"long_k": (29, 1)},
    "mxf4": {"longer_k": (3, 1)},
    "mxf4nvf4": {"longer_k": (3, 1)},
}
"""The fields that some kinds have besides."""


@functools.cache
def fields_of(kind: str) -> Fields:
    """The fields of a kind: name -> (first bit, bits). Raises LayoutError: an unknown kind."""
    one_of("kind", kind, KINDS)
    fields = BLOCK_SCALED_FIELDS if KINDS[kind].block_scaled else DENSE_FIELDS
    return {**fields, **_K_FIELDS.get(kind, {})}


@functools.cache
def _codes(kind: str) -> dict[str, tuple[str, dict[Any, int]]]:
    """Attribute of an `InstructionDescriptor` -> (field, value -> code), for one kind."""
    found = KINDS[kind]
    flag, number, major = {False: 0, True: 1}, {i: i for i in range(4)}, {"K": 0, "MN": 1}
    codes: dict[str, tuple[str, dict[Any, int]]] = {
        "m": ("m", {16 * code: code for code in range(32)}),
        "n": ("n", {8 * code: code for code in range(64)}),
        "a_type": ("a_type", found.operands),
        "b_type": ("b_type", found.operands),
        "a_major": ("a_mn_major", major),
        "b_major": ("b_mn_major", major),
        "negate_a": ("negate_a", flag),
        "negate_b": ("negate_b", flag),
        "sparse": ("sparse", flag),
    }
    if found.block_scaled:
        return codes | {
            "scale_type": ("scale_type", found.scales),
            "scale_factor_a_id": ("scale_factor_a_id", number),
            "scale_factor_b_id": ("scale_factor_b_id", number),
        }
    return codes | {
        "d_type": ("d_type", found.accumulators),
        "sparsity_selector": ("sparsity_selector", number),
        "saturate": ("saturate", flag),
        "max_shift": ("max_shift", {0: 0, 8: 1, 16: 2, 32: 3}),
    }


def raw_fields(value: int, kind: str) -> dict[str, int]:
    """Every field as its bits say, and under ``reserved`` what else is set. Raises LayoutError: not
    an unsigned 32-bit integer, or an unknown kind."""
    return extract("instruction descriptor", value, 32, fields_of(kind))


@dataclass(frozen=True)
class InstructionDescriptor(Displayed):
    """An instruction descriptor.

    Args:
        kind: the ``.kind`` of tcgen05.mma: f16, tf32, f8f6f4, i8, mxf8f6f4, mxf4 or mxf4nvf4.
        m, n: the shape of the product, over both CTAs with cta_group 2.
        a_type, b_type: element types, such as "f16", "bf16", "e4m3".
        d_type: the accumulator's element type; "f32" for block-scaled kinds.
        a_major, b_major: "K" or "MN".
        negate_a, negate_b: negate the operand.
        saturate: clamp the sum (i8 alone).
        sparse: A is sparse, and K twice that of a dense product.
        sparsity_selector: which columns of TMEM the metadata lies in; 0 but for f16 and tf32 (PTX
            ISA, "Sparsity selector").
        max_shift: the largest shift of the weight-stationary form: 0, 8, 16 or 32 columns.
        scale_type: the scale factors' type, for block-scaled kinds, else "".
        scale_factor_a_id, scale_factor_b_id: which byte of a TMEM word holds the scale factor; 0
            or 2 for the mxf4 kinds.
        k: of a dense product: 0 for the kind's usual K; 96 (from sm_103 on) or 128 (sm_107) of the
            mxf4 kinds, 64 (sm_107) of the f8f6f4 kinds.

    Raises:
        LayoutError: a value that the field cannot hold, or the kind does not have.
    """

    kind: str
    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str = "f32"
    a_major: Major = "K"
    b_major: Major = "K"
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False
    sparse: bool = False
    sparsity_selector: int = 0
    max_shift: int = 0
    scale_type: str = ""
    scale_factor_a_id: int = 0
    scale_factor_b_id: int = 0
    k: int = 0

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        kind = KINDS[self.kind]
        if not self.k:
            object.__setattr__(self, "k", kind.usual_k)
        scales = tuple(kind.scales) or ("",)
        integer_only = (False, True) if self.kind == "i8" else (False,)
        negatable = (False,) if self.kind == "i8" else (False, True)
        is_mxf4 = self.kind in ("mxf4", "mxf4nvf4")
        scale_ids: Sequence[int] = (0,)
        if kind.block_scaled:
            scale_ids = (0, 2) if is_mxf4 and self.k != 96 else range(4)
        majors = ("K",) if is_mxf4 else ("K", "MN")
        selects = self.sparse and self.kind in ("f16", "tf32")
        rules: dict[str, Sequence[Any]] = {
            "m": (32, 64, 128, 256) if not kind.block_scaled else (128, 256),
            "n": range(8, 257, 8),
            "a_type": tuple(kind.operands),
            "b_type": tuple(kind.operands),
            "d_type": tuple(kind.accumulators) or ("f32",),
            "a_major": majors,
            "b_major": majors,
            "negate_a": negatable,
            "negate_b": negatable,
            "saturate": integer_only,
            "sparse": (False, True),
            "sparsity_selector": range(4) if selects else (0,),
            "max_shift": (0, 8, 16, 32) if not kind.block_scaled else (0,),
            "scale_type": scales,
            "scale_factor_a_id": scale_ids,
            "scale_factor_b_id": scale_ids,
            "k": (kind.usual_k,) if self.sparse else tuple(kind.k),
        }
        for name, legal in rules.items():
            if getattr(self, name) not in legal:
                shown = (
                    list(legal) if len(legal) < 9 else f"{legal[0]}, {legal[1]}, ... {legal[-1]}"
                )
                rule = f"must be one of {shown} for kind {self.kind}"
                raise LayoutError(name, getattr(self, name), rule)

    def check_shape(self, cta_group: int, *, weight_stationary: bool = False) -> None:
        """Raise LayoutError unless M and N are a legal shape with this CTA group."""
        legal = legal_n(self.kind, self.m, cta_group, weight_stationary=weight_stationary)
        if self.n not in legal:
            raise LayoutError(
                "n",
                self.n,
                f"must be one of {', '.join(map(str, legal))} for {self.kind}, M = {self.m},"
                f" cta_group {cta_group}",
            )

    def encode(self) -> int:
        """The 32-bit value."""
        codes = _codes(self.kind)
        values = {field: table[getattr(self, name)] for name, (field, table) in codes.items()}
        bits = dict(zip(("long_k", "longer_k"), KINDS[self.kind].k[self.k], strict=True))
        fields = fields_of(self.kind)
        return insert({**values, **{name: bits[name] for name in bits if name in fields}}, fields)

    @classmethod
    def decode(cls, value: int, kind: str) -> InstructionDescriptor:
        """The descriptor that a 32-bit value encodes for a kind. Raises LayoutError: reserved bits
        are set, or a field is illegal for the kind."""
        raw = raw_fields(value, kind)
        if raw["reserved"]:
            bits = [bit for bit in range(32) if raw["reserved"] >> bit & 1]
            raise LayoutError(
                "instruction descriptor",
                f"{value:#010x}",
                f"the reserved bits {', '.join(map(str, bits))} are set; they must be 0",
            )
        arguments: dict[str, Any] = {}
        for name, (field, table) in _codes(kind).items():
            values = {code: each for each, code in table.items()}
            if raw[field] not in values:
                rule = f"must be one of {sorted(values)} for kind {kind}"
                raise LayoutError(field, raw[field], rule)
            arguments[name] = values[raw[field]]
        code = raw.get("long_k", 0), raw.get("longer_k", 0)
        extents = {code: k for k, code in KINDS[kind].k.items()}
        if code not in extents:
            rule = f"must be one of {list(extents)} for kind {kind}"
            raise LayoutError("long_k, longer_k", code, rule)
        return cls(kind, **arguments, k=extents[code])

    def describe(self) -> list[str]:
        """Each field in words, a line each."""
        signs = {True: "-", False: ""}
        k = 2 * self.k if self.sparse else self.k
        lines = [
            f"kind {self.kind}: D[{self.m}x{self.n}] {self.d_type}"
            f" = {signs[self.negate_a]}A[{self.m}x{k}] {self.a_type}"
            f" x {signs[self.negate_b]}B[{k}x{self.n}] {self.b_type}",
            f"A is {self.a_major}-major, B is {self.b_major}-major",
        ]
        if self.scale_type:
            lines.append(
                f"scale factors {self.scale_type}, byte {self.scale_factor_a_id} for A,"
                f" byte {self.scale_factor_b_id} for B"
            )
        if self.sparse:
            granularity = SPARSE_GRANULARITY.get(self.kind, "2:4")
            lines.append(f"A is {granularity} sparse, selector {self.sparsity_selector}")
        if self.saturate:
            lines.append("sums saturate")
        if self.max_shift:
            lines.append(f"at most {self.max_shift} columns of shift")
        return lines
