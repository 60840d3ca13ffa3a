"""What PTX ISA 9.3 to 9.5 brought: executed, or refused by name before anything runs.

Sources: PTX ISA 9.4, "Changes in PTX ISA Version 9.4"; of 9.3 and 9.5 the headers of CCCL 13.3
(``cuda/__ptx/instructions/generated``), which name the version of each form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NewForm:
    """A form of an instruction.

    Attributes:
        version: of the PTX ISA that brought it.
        what: the form, in words.
        pattern: what is found in the text, ``opcode operand, operand``.
        executed: whether the emulator runs it.
    """

    version: str
    what: str
    pattern: re.Pattern[str]
    executed: bool = False


def _form(version: str, what: str, pattern: str, *, executed: bool = False) -> NewForm:
    return NewForm(version, what, re.compile(pattern), executed)


NEW_FORMS = (
    _form("9.3", "`fabric`, the access of other GPUs", r"^fabric\."),
    _form("9.3", "`fence.proxy` of the fabric proxy", r"^fence\.proxy\..*\bfabric\b"),
    _form("9.4", "`.exclusive` of `tcgen05.alloc` and `dealloc`",
          r"^tcgen05\.(de)?alloc\.exclusive\b", executed=True),
    _form("9.4", "`.collector::b` of `tcgen05.mma`",
          r"^tcgen05\.mma\..*\.collector::b::", executed=True),
    _form("9.4", "`.kind::ti16` of `tcgen05.mma`", r"^tcgen05\.mma\..*\.kind::ti16\b"),
    _form("9.4", "`.decompress` of `tcgen05.mma`", r"^tcgen05\.mma\..*\.decompress::"),
    _form("9.4", "`.sync_restrict` of `tcgen05.commit`", r"^tcgen05\.commit\..*\.sync_restrict::"),
    _form("9.4", "`spcompress` and `spdecompress`",
          r"^sp(de)?compress\.|^tcgen05\.ld\..*\.spcompress\b"),
    _form("9.4", "`.multicast::cluster::32b`", r"\.multicast::cluster::32b\b"),
    _form("9.4", "`.phase_type` of an mbarrier's waits", r"^mbarrier\..*\.phase_type::"),
    _form("9.4", "`.layout` of an mbarrier", r"^mbarrier\.(check_layout|init)\..*\.?layout\b"),
    _form("9.4", "`.override` of a tensor map's fields", r"^cp\..*\.override::"),
    _form("9.4", "`.im2col_no_offs` of TMA", r"\.im2col_no_offs\b"),
    _form("9.4", "eviction priorities of bulk prefetches",
          r"^cp\.async\.bulk\.prefetch\..*\.L2::evict_"),
    _form("9.4", "`applypriority.async.bulk`", r"^applypriority\.async\.bulk\b"),
    _form("9.4", "reports of bulk copies", r"^cp\.async\.bulk\..*\.mbarrier::report::"),
    _form("9.4", "`.valid_addr` and `.L1::32B` of `prefetch`",
          r"^prefetch\..*\.(valid_addr|L1::32B)\b"),
    _form("9.4", "`.proxy::readonly` of `ld`", r"^ld\..*\.proxy::readonly\b"),
    _form("9.4", "`.noftz` of atomic operations on f32", r"^(atom|red)\..*\.noftz\.f32\b"),
    _form("9.4", "the type ue5m3", r"\.ue5m3(x\d)?\b"),
    _form("9.4", "`cvt.rz` to 8, 6 and 4 bits", r"^cvt\.rz\..*\.e\dm\dx\d\."),
    _form("9.4", "`.scaled` of `cvt`", r"^cvt\..*\.scaled::"),
    _form("9.4", "arithmetic of packed types of 8, 6 and 4 bits",
          r"^(add|sub|mul|fma)\..*\.e\dm\dx\d\b"),
    _form("9.4", "`set` of packed integers", r"^set\..*\.[us](8x4|16x2)\b"),
    _form("9.4", "`ldmatrix` of integers of 4 bits", r"^ldmatrix\..*\.s8\.s4\b"),
    _form("9.4", "memory of each block", r"%perctamemory(offset|size)\b"),
    _form("9.5", "`.2pi` of `sin` and `cos`", r"^(sin|cos)\..*\.2pi\b"),
    _form("9.5", "`.sync_restrict::proxy::async` of `cp.async.bulk.wait_group`",
          r"^cp\.async\.bulk\.wait_group\.sync_restrict\b"),
    _form("9.5", "`fence.alias`", r"^fence\.alias\b"),
    _form("9.5", "`.alloc_class` of tensor maps", r"^tensormap\..*\balloc_class"),
    _form("9.5", "`%locality_domain`", r"%locality_domain"),
)  # fmt: skip
"""The forms, by version."""


def new_form(opcode: str, operands: Sequence[str] = ()) -> NewForm | None:
    """The form that an instruction is, if one of these versions brought it."""
    text = f"{opcode} {', '.join(operands)}"
    return next((each for each in NEW_FORMS if each.pattern.search(text)), None)
