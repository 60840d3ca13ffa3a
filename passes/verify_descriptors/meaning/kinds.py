"""The kinds of instruction that are verified, by their opcodes."""

from __future__ import annotations

import re
from functools import lru_cache

from triton_ext.ptx.parse import Instruction

_KINDS = (
    ("wgmma.mma_async", "wgmma"),
    ("tcgen05.mma", "tcgen05.mma"),
    ("tcgen05.cp", "tcgen05.cp"),
    ("cp.async.bulk.tensor", "tma"),
    ("cp.reduce.async.bulk.tensor", "tma"),
    ("mbarrier.arrive.expect_tx", "expect"),
    ("mbarrier.expect_tx", "expect"),
    ("mbarrier.init", "init"),
    ("mbarrier.inval", "inval"),
    ("mbarrier.arrive", "arrive"),
    ("mbarrier.try_wait", "wait"),
    ("mbarrier.test_wait", "wait"),
    ("cp.async.mbarrier.arrive", "copy arrive"),
    ("tcgen05.commit", "commit"),
    ("cp.async.bulk.commit_group", "store commit"),
    ("cp.async.bulk.wait_group", "store wait"),
    ("wgmma.commit_group", "wgmma commit"),
    ("wgmma.wait_group", "wgmma wait"),
)
IN_ORDER = frozenset(
    (
        "init", "inval", "arrive", "wait", "copy arrive", "commit", "store commit", "store wait",
        "wgmma commit", "wgmma wait",
    )
)  # fmt: skip
"""Kinds that are compared as they are executed, and not in the text."""
BY_EACH_THREAD = frozenset(
    ("wgmma", "wgmma commit", "wgmma wait", "wait", "copy arrive", "store commit", "store wait")
)
"""Kinds that all threads of a partition execute; the others one thread, or one of each warp."""


def kind_of(instruction: Instruction) -> str:
    """The kind of an instruction that is verified; "" for others."""
    return _kind(instruction.opcode)


def kinds_in(assembly: str) -> list[str]:
    """The kinds of instruction that a text has."""
    opcodes = re.findall(r"[a-z]\w*(?:\.[\w:]+)+", assembly)
    return list(dict.fromkeys(filter(None, map(_kind, opcodes))))


@lru_cache(maxsize=4096)
def _kind(opcode: str) -> str:
    return next((kind for prefix, kind in _KINDS if opcode.startswith(prefix)), "")
