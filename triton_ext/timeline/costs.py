"""What an instruction of PTX takes of an SM: from the binary, or else from its text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from triton_ext.hardware.tensor_memory import TMEM_COLUMNS
from triton_ext.ptx.forms import TensorMemoryAccess, TensorMemoryCopy, WgmmaProduct, read
from triton_ext.ptx.parse import Instruction, immediate
from triton_ext.timeline.sass import NO_TURNS, Cost

SHUFFLE_LATENCY, SPECIAL_LATENCY = 24, 20
"""Cycles until the result can be read; 4 of other instructions. The first by microbenchmarks of an
H200; the second is assumed: ptxas left nothing of the case that was to measure it."""
PTX_ISSUED, PTX_CHAIN = 1.06, 1.5
"""Instructions of the machine for one of PTX, and the time that dependent ones take, of that of
their PTX: fitted, for kernels of which there is no binary."""
ITEM_CYCLES = 2
"""The cycles of the instruction that an item stands for, which the replay counts."""
_FREE = re.compile(
    r"mov\.|cvta|ld\.param|cvt\.u64\.u32|cvt\.s64\.s32|wgmma\.fence|bra\.uni|exit|ret"
)
"""What ptxas mostly makes nothing of."""
_SPECIAL = re.compile(r"ex2|lg2|sin|cos|rcp|rsqrt|sqrt|tanh|div\.(full|approx)|popc|clz|bfind|brev")
_TURNS = {
    re.compile(r"mma\.sync"): (0, 0, 0, 1),
    re.compile(r"(mul|mad)\.(hi|wide)"): (0, 2, 0, 0),
    re.compile(r"(mul|mad)(24)?\.(lo\.)?[us]"): (0, 1, 0, 0),
    re.compile(r"(add|sub|mul|fma|mad|neg|abs)\.(\w+\.)*b?f\d|mov|shfl|bar"): NO_TURNS,
    _SPECIAL: (0, 0, 1, 0),
}
"""What an instruction of PTX takes of `sass.PIPES`, for kernels of which there is no binary; every
other one takes a turn of the first."""
_ONE_TURN = (1.0, 0.0, 0.0, 0.0)
_MEMORY = re.compile(r"(ld|st|atom|red|ldmatrix|stmatrix|cp|wgmma\.mma_async|wgmma\.wait|tcgen05)")
_ELEMENT_BYTES = {"f16": 2, "bf16": 2, "tf32": 4}


@dataclass
class Kind:
    """What is known of an instruction before it runs.

    Attributes:
        at: its number in the trace.
        issued, turns: instructions of the machine, and what they take of the pipes.
        latency: cycles until its result can be read, of the text alone; -1 of those that become
            items of a trace.
        handle: what the recorder does about it: a name of `HANDLED`, or "".
        keep: groups that may be left behind a wait.
        reads_only: whether a wait is for the reads alone.
        product: N, bytes of an element, whether A is in registers, of ``wgmma``.
        group, columns: blocks of a ``tcgen05.cp``; columns, or bytes, of what tcgen05 moves.
        cycles: by the binary, that a warp takes which runs alone; None without one.
    """

    at: int
    issued: float
    turns: tuple[float, ...] = NO_TURNS
    latency: int = 4
    handle: str = ""
    keep: int = 0
    reads_only: bool = False
    product: tuple[int, int, bool] = (0, 0, False)
    group: int = 1
    columns: int = 0
    cycles: float | None = None


HANDLED = (
    (re.compile(r"wgmma\.mma_async"), "product"),
    (re.compile(r"wgmma\.commit_group|cp\.async\.(bulk\.)?commit_group"), "commit"),
    (re.compile(r"wgmma\.wait_group|cp\.async\.(bulk\.)?wait_group"), "await_groups"),
    (re.compile(r"cp\.async\.wait_all"), "await_all"),
    (re.compile(r"tcgen05\.cp"), "tensor_copy"),
    (re.compile(r"tcgen05\.commit"), "tensor_commit"),
    (re.compile(r"tcgen05\.ld"), "tensor_load"),
    (re.compile(r"tcgen05\.st"), "tensor_store"),
    (re.compile(r"tcgen05\.wait::ld"), "tensor_wait"),
    (re.compile(r"tcgen05\.alloc"), "allocate"),
    (re.compile(r"griddepcontrol\.wait"), "await_kernel"),
)
"""Instructions that the recorder does something about, and what that is called."""


def kind_of(at: Instruction, number: int) -> Kind:
    """What an instruction costs, and who handles it."""
    text = at.opcode
    handle = next((name for pattern, name in HANDLED if pattern.match(text)), "")
    if handle or _FREE.match(text):
        kind = Kind(number, 0, latency=0 if not handle else -1, handle=handle)
    elif _MEMORY.match(text):
        kind = Kind(number, 0, latency=-1)
    else:
        turns = next((t for pattern, t in _TURNS.items() if pattern.match(text)), _ONE_TURN)
        kind = Kind(number, PTX_ISSUED, turns)
        if text.startswith("shfl"):
            kind.latency = SHUFFLE_LATENCY
        elif _SPECIAL.match(text):
            kind.latency = SPECIAL_LATENCY
    if handle == "product":
        form = read(at)
        assert isinstance(form, WgmmaProduct)
        kind.product = (form.mnk[1], _ELEMENT_BYTES.get(form.a_type, 1), form.a_in_registers)
    if handle in ("tensor_load", "tensor_store"):
        access = read(at)
        assert isinstance(access, TensorMemoryAccess)
        kind.columns = len(access.registers)
    if handle == "tensor_copy":
        copy = read(at)
        assert isinstance(copy, TensorMemoryCopy)
        lanes, bits = copy.shape.removesuffix("b").split("x")
        kind.group, kind.columns = copy.cta_group, int(lanes) * int(bits) // 8
    if handle == "allocate":
        kind.columns = immediate(at.operands[-1]) or TMEM_COLUMNS
    if handle == "await_groups":
        kind.keep = int(at.operands[0], 0)
        kind.reads_only = ".read" in text
    return kind


def charge(kind: Kind, cost: Cost | None) -> None:
    """What the instruction became, but for what the replay counts of an item."""
    item = bool(kind.handle) or kind.latency < 0
    if cost is None:
        kind.issued, kind.cycles, kind.turns = 0, 0.0, NO_TURNS
    else:
        kind.turns = cost.turns
        kind.issued = max(0, cost.issued - item)
        kind.cycles = max(0.0, cost.cycles - item * ITEM_CYCLES)
