"""Which targets have which instructions: one table, as ptxas refuses them.

A row speaks of the instructions whose text, ``opcode operand, operand``, its pattern is found in,
and all rows that speak of an instruction must be met. What no row speaks of, sm_80 has.

Sources: PTX ISA 9.4, "Target ISA Notes" of each instruction, and the ptxas of CUDA 13.4, whose
answers a test compares (``tests/ptx/test_targets.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from triton_ext.hardware.architecture import CAPABILITIES, Target


@dataclass(frozen=True)
class Row:
    """Instructions that not every target has.

    Attributes:
        what: the instructions, in words.
        pattern: what is found in the text of each of them.
        needs: the targets that have them, as `Target.meets` reads them; one is enough.
    """

    what: str
    pattern: re.Pattern[str]
    needs: tuple[str, ...]


def _row(needs: str, what: str, pattern: str) -> Row:
    return Row(what, re.compile(pattern), tuple(needs.split()))


_TENSOR_MEMORY = "100f 110f"
_BLACKWELL = "100f 110f 120f"

ROWS = (
    # --- tensor cores
    _row("90a", "`wgmma`", r"^wgmma\."),
    _row(_TENSOR_MEMORY, "`tcgen05`", r"^tcgen05\."),
    _row("100a 110a", "`tcgen05.mma` of integers, `.kind::i8`", r"^tcgen05\.mma.*\.kind::i8\b"),
    _row("100f", "`scale-input-d` of `tcgen05.mma`", r"^tcgen05\.mma\.(?!ws).*, *\d+$"),
    _row("100a 103a 107a 110a", "`.scale_vec` of `tcgen05.mma`", r"^tcgen05\.mma.*\.scale_vec::"),
    _row("107f", "`.collector::b` of `tcgen05.mma`", r"^tcgen05\.mma.*\.collector::b::"),
    _row("107f", "`.kind::ti16` of `tcgen05.mma`", r"^tcgen05\.mma\..*\.kind::ti16\b"),
    _row("107f", "`.sync_restrict` of `tcgen05.commit`", r"^tcgen05\.commit\..*\.sync_restrict::"),
    _row("103f 110f", "`tcgen05.ld.red`", r"^tcgen05\.ld\.red\."),
    _row("100a 103a 107a 110a", "`tcgen05.shift`", r"^tcgen05\.shift\."),
    _row("120f", "`mma.sync` with scale factors, `.block_scale`", r"^mma\..*\.block_scale\b"),
    _row("120f", "`mma.sync` of e2m1, e2m3 and e3m2",
         r"^mma\..*\.kind::f8f6f4\b.*\.e(2m1|2m3|3m2)\b"),
    _row(_BLACKWELL, "`.kind::f8f6f4` of `mma.sync`", r"^mma\..*\.kind::f8f6f4\b"),
    _row("89", "`mma.sync` of e4m3 and e5m2", r"^mma\..*\.e(4m3|5m2)\b"),
    _row("90", "`mma.sync.m16n8` of f64", r"^mma\..*\.m16n8k\d+\..*\.f64\b"),
    _row("90", "`stmatrix`", r"^stmatrix\."),
    _row(_BLACKWELL, "`ldmatrix` and `stmatrix` of 8 bits", r"^(ld|st)matrix\..*\.b8"),
    _row(f"90a {_BLACKWELL}", "`ldmatrix` of integers of 4 bits", r"^ldmatrix\..*\.s8\.s4\b"),
    # --- TMA and clusters
    _row("90", "bulk copies (TMA)", r"^(cp|cp\.reduce)\.async\.bulk\b"),
    _row(_TENSOR_MEMORY, "`.cta_group` of TMA", r"^cp\.async\.bulk\.tensor\..*\.cta_group::"),
    _row(_TENSOR_MEMORY, "`.tile::scatter4` and `.im2col::w` of TMA",
         r"^cp\..*async\.bulk\..*(\.tile::scatter4|\.im2col::w)\b"),
    _row(_TENSOR_MEMORY, "`.tile::gather4` of TMA, to the cluster",
         r"^cp\.async\.bulk\.tensor\..*\.shared::cluster\..*\.tile::gather4\b"),
    _row(_TENSOR_MEMORY, "`.tile::gather4` of prefetches",
         r"^cp\.async\.bulk\.prefetch\..*\.tile::gather4\b"),
    _row("100", "`.tile::gather4` of TMA, to the block",
         r"^cp\.async\.bulk\.tensor\..*\.shared::cta\..*\.tile::gather4\b"),
    _row("100", "`.cp_mask` of bulk copies", r"^cp\.async\.bulk\..*\.cp_mask\b"),
    _row("107f", "`.multicast::cluster::32b`", r"\.multicast::cluster::32b\b"),
    _row("90", "`prefetch` of tensor maps, `tensormap.cp_fenceproxy`",
         r"^(prefetch\..*tensormap|tensormap\.cp_fenceproxy)\b"),
    _row(f"90a {_BLACKWELL}", "`tensormap.replace`", r"^tensormap\.replace\."),
    _row(_BLACKWELL, "`.swizzle_atomicity` of `tensormap.replace`",
         r"^tensormap\.replace\.\w+\.swizzle_atomicity\b"),
    _row("103a 107a", "swizzle mode 4 (96 bytes) of `tensormap.replace`",
         r"^tensormap\.replace\.\w+\.swizzle_mode\b.*, *4$"),
    _row("107f", "`.override` of TMA, `applypriority.async.bulk`",
         r"^cp\..*\.override::|^applypriority\.async\.bulk\b"),
    _row("107f", "eviction priorities of bulk prefetches",
         r"^cp\.async\.bulk\.prefetch\..*\.L2::evict_"),
    _row("90", "clusters", r"^(barrier\.cluster|mapa|getctarank)\b|shared::cluster\b"
         r"|\.cluster\b|%(n?clusterid|cluster_n?cta(id|rank)|is_explicit_cluster)\b"),
    _row("90", "`st.async`, `red.async`, `multimem`", r"^((st|red)\.async|multimem)\b"),
    _row("100", "`st.bulk`", r"^st\.bulk\b"),
    _row("100", "`clusterlaunchcontrol`", r"^clusterlaunchcontrol\."),
    _row(_BLACKWELL, "`.multicast` of `clusterlaunchcontrol`",
         r"^clusterlaunchcontrol\..*\.multicast\b"),
    # --- synchronization
    _row("90", "`mbarrier.try_wait`, and mbarriers that count bytes",
         r"^mbarrier\.(try_wait|\w*\.?(expect|complete)_tx)\b"),
    _row("90", "the count of `mbarrier.arrive`", r"^mbarrier\.arrive\.(?!noComplete).*\], "),
    _row("90", "`.relaxed` and `.phase_type` of `mbarrier`",
         r"^mbarrier\..*\.(relaxed\b|phase_type::)"),
    _row("90", "`fence` of the async proxy and of mbarriers, one-sided",
         r"^fence\.(proxy\.(async|tensormap)|mbarrier_init|acquire|release)\b"),
    _row("100", "the fabric proxy", r"^fabric\.|^fence\.proxy\..*\bfabric\b"),
    _row("90", "`griddepcontrol`, `elect.sync`", r"^(griddepcontrol|elect)\."),
    _row(f"90a {_BLACKWELL}", "`setmaxnreg`", r"^setmaxnreg\."),
    # --- arithmetic
    _row("100f", "`redux.sync` of f32", r"^redux\..*\.f32\b"),
    _row("100", "arithmetic of f32x2", r"\.f32x2\b"),
    _row("100", "sums of f32 with f16 and bf16", r"^(add|sub|fma)\.(\w+\.)*f32\.b?f16\b"),
    _row("100", "`min` and `max` of three", r"^(min|max)\.(?!.*x2)[^ ]*f32 ([^,]+,){3}"),
    _row("86", "`.xorsign.abs`", r"^(min|max)\.(\w+\.)*xorsign\.abs\b"),
    _row("90", "sums and products of bf16", r"^(add|sub|mul)\.(\w+\.)*bf16(x2)?\b"),
    _row("90", "`.oob` of `fma`", r"^fma\..*\.oob\b"),
    _row("90", "`add`, `min` and `max` of pairs of integers; `.relu` of integers",
         r"^(add|min|max)\.(\w+\.)*([us]16x2\b)|^(min|max)\.relu\.s(32|16x2)\b"),
    _row("90", "`ex2` and `tanh` of bf16", r"^(ex2|tanh)\..*\.bf16(x2)?\b"),
    _row("90", "`cvt` between bf16 and other types than f32",
         r"^cvt\.(\w+\.)*(bf16\.(?!f32)\w+|(?!f32)[suf]\d+\.bf16)\b"),
    _row("90", "`cvt.rn` and `.rz` to tf32", r"^cvt\.r[nz]\.(\w+\.)*tf32\.f32\b"),
    _row("100", "`.satfinite` of `cvt.rn` and `.rz` to tf32",
         r"^cvt\.r[nz]\.(\w+\.)*satfinite\.tf32\.f32\b"),
    _row("89", "`cvt` of e4m3 and e5m2", r"^cvt\..*\.e(4m3|5m2)x2\b"),
    _row(_BLACKWELL, "`cvt` of e2m1, e2m3, e3m2 and ue8m0",
         r"^cvt\..*\.(e2m3|e3m2|e2m1|ue8m0)x2\b"),
    _row("100a 103a 107a 110a 120a 121a", "`cvt` of s2f6", r"^cvt\..*\.s2f6x2\b"),
    _row(_BLACKWELL, "`cvt` between 8 bits and bf16",
         r"^cvt\..*(\.bf16x2\.e\dm\dx2|\.e\dm\dx2\.bf16x2)\b"),
    _row("107f", "`cvt` of ue5m3, and `cvt.rz` to 8, 6 and 4 bits",
         r"^cvt\..*\.ue5m3x2\b|^cvt\.rz\..*\.e\dm\dx2\."),
    _row("100a 103a 107a", "`cvt.rs`, random rounding", r"^cvt\.rs\."),
    # --- memory
    _row("90", "`.valid_addr` of `prefetch`, `.proxy::readonly` of `ld`",
         r"^prefetch\..*\.valid_addr\b|^ld\..*\.proxy::readonly\b"),
    _row("90", "`.noftz` of atomic operations on f32", r"^(atom|red)\..*\.noftz\.f32\b"),
    _row("100", "loads and stores of 256 bits", r"^(ld|st)\..*\.(v8\.\w32|v4\.\w64)\b"),
    _row("90", "`atom` and `red` of vectors, of bf16, and of 128 bits",
         r"^(atom|red)\..*(\.v[248]\b|\.bf16(x2)?\b|\.b128\b)"),
)  # fmt: skip
"""What not every target has."""
CLUSTER_DIRECTIVES = ("reqnctapercluster", "explicitcluster", "maxclusterrank")
"""Directives of a kernel that sm_90 brought."""


def lacking(target: Target, opcode: str, operands: Sequence[str] = ()) -> Row | None:
    """The first row that an instruction does not meet on a target; None if it is there."""
    text = f"{opcode} {', '.join(operands)}"
    for row in ROWS:
        if row.pattern.search(text) and not any(map(target.meets, row.needs)):
            return row
    return None


def having(needs: Iterable[str]) -> Iterator[Target]:
    """The targets that have what these ask for, each with the least suffix that it needs."""
    for number in CAPABILITIES:
        found = (Target(number, suffix) for suffix in ("", "f", "a"))
        usable = (each for each in found if any(map(each.meets, needs)))
        yield from list(usable)[:1]


def owners(needs: Sequence[str]) -> str:
    """In words: the targets that have what these ask for."""
    if len(needs) == 1 and needs[0].isdecimal():
        return f"sm_{needs[0]} and later"
    *others, last = map(str, having(needs))
    return f"{', '.join(others)} and {last}" if others else f"{last} alone"


def refusal(target: Target, row: Row, opcode: str) -> str:
    """Why a target does not have an instruction, and which have it."""
    name = ".".join(opcode.split(".")[:3])
    text = f"{name}: {row.what.replace('`', '')} is of {owners(row.needs)}, and this PTX is for"
    own = next((each for each in having(row.needs) if each.number == target.number), None)
    if own is not None:
        return f"{text} {target}: write .target {own}"
    return f"{text} {target}: compile the kernel for one that has it"
