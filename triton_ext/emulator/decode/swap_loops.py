"""Loads that begin a loop of compare-and-swaps.

CUDA's guide reads what an ``atom.cas`` then compares by an ordinary load ("Atomic Functions": how
to make any atomic operation of ``atomicCAS``). A value that is out of date, or torn, costs a turn.
"""

from __future__ import annotations

import re

from triton_ext.emulator.decode.operands import Operands
from triton_ext.ptx.parse import Instruction, immediate

_SUM = re.compile(r"add\.[su]64")
_SAME = re.compile(r"(cvta|mov)\.")
_MOST_STEPS = 8
"""How far the sum that an address is made of is followed."""


def begun_by(at: Instruction, operands: Operands) -> Instruction | None:
    """The compare-and-swap behind a load, of the place that it reads, which compares its value."""
    for swap in operands.comparing.get(at.operands[0], ()):
        behind = at.line < swap.line and at.scope == swap.scope
        if behind and _place(at, operands) == _place(swap, operands):
            return swap
    return None


def _place(at: Instruction, operands: Operands) -> tuple[str, int]:
    """The address that an instruction names: a register, and the constants added to it."""
    name, _, text = at.operands[1].strip("[] ").partition("+")
    name, offset = name.strip(), immediate(text.strip() or "0") or 0
    for _ in range(_MOST_STEPS):
        sources = [
            each
            for each in operands.kernel.instructions
            if each.operands and each.operands[0] == name and each.scope == at.scope
        ]
        if len(sources) != 1:
            break
        (source,) = sources
        added = immediate(source.operands[2]) if _SUM.fullmatch(source.opcode) else 0
        if added is None or not (_SAME.match(source.opcode) or _SUM.fullmatch(source.opcode)):
            break
        name, offset = source.operands[1], offset + added
    return name, offset
