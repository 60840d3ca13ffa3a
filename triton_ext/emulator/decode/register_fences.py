"""wgmma.fence: finds products whose registers were written after the last one.

PTX ISA, "wgmma.fence": it must come before the first product, and wherever registers of A or D
were modified by anything but a product. A dataflow pass over the kernel finds the products that
some path reaches without one; only where there are such is anything done when the kernel runs.

A ``mov`` of a register counts as a write only if its source does, and that of a constant not at
all: LLVM puts such copies of inline assembly's operands after the fence, where ptxas removes
them.
"""

from __future__ import annotations

from dataclasses import replace

from triton_ext.emulator.decode.step import Outcome, Run, Step
from triton_ext.emulator.errors import SynchronizationFault
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.storage import Register
from triton_ext.ptx.parse import Kernel

_PRODUCT, _FENCE = "wgmma.mma_async", "wgmma.fence"
_START = "start of the kernel"
Writers = dict[Register | str, str]
"""The PTX line that wrote each register since the last fence; `_START` if there was none yet."""


def _is(step: Step, opcode: str) -> bool:
    return step.instruction.opcode.startswith(opcode)


def _used(step: Step) -> frozenset[Register]:
    """The registers of D and A; descriptors have 64 bits."""
    return frozenset(register for register in step.touched if register.width == 32)


def _is_copy(step: Step) -> bool:
    return step.instruction.opcode.split(".")[0] == "mov"


def _relevant(steps: tuple[Step, ...]) -> set[Register]:
    """Registers of products, and those that are copied into them."""
    found = {register for step in steps if _is(step, _PRODUCT) for register in _used(step)}
    copies = [step for step in steps if _is_copy(step)]
    size = -1
    while size != len(found):
        size = len(found)
        for step in copies:
            if not step.written.isdisjoint(found):
                found |= step.touched
    return found


def _successors(kernel: Kernel, steps: tuple[Step, ...]) -> list[list[int]]:
    following = []
    for number, step in enumerate(steps):
        each, opcode = step.instruction, step.instruction.opcode.split(".")[0]
        targets: list[int | None] = []
        if opcode == "bra":
            targets = [kernel.target(each.operands[0], each.scope)]
        elif opcode == "brx":
            labels = kernel.branch_targets.get(each.operands[1], ())
            targets = [kernel.target(label, each.scope) for label in labels]
        after = [target for target in targets if target is not None and target < len(steps)]
        ends = opcode in ("bra", "brx", "ret", "exit", "trap") and step.guard < 0
        if not ends and number + 1 < len(steps):
            after.append(number + 1)
        following.append(after)
    return following


def _suspicious(kernel: Kernel, steps: tuple[Step, ...], relevant: set[Register]) -> bool:
    """Whether a product may use a register that was written after the last fence."""
    bit = {register: 2 << number for number, register in enumerate(relevant)}

    def mask(registers: frozenset[Register]) -> int:
        return sum(bit[register] for register in registers if register in bit)

    writes = [0 if _is(step, _PRODUCT) else mask(step.written) for step in steps]
    sources = [mask(step.touched - step.written) if _is_copy(step) else 0 for step in steps]
    following = _successors(kernel, steps)
    reached = [0] * len(steps)
    reached[0] = 1  # no fence yet
    seen = [False] * len(steps)
    todo = [0]
    while todo:
        number = todo.pop()
        seen[number] = True
        state, step = reached[number], steps[number]
        if _is(step, _FENCE) and step.guard < 0:
            state = 0
        elif _is(step, _PRODUCT):
            if state & (1 | mask(_used(step))):
                return True
        elif _is_copy(step):
            if state & sources[number]:
                state |= writes[number]
            elif step.guard < 0:
                state &= ~writes[number]
        else:
            state |= writes[number]
        for after in following[number]:
            if not seen[after] or reached[after] | state != reached[after]:
                reached[after] |= state
                todo.append(after)
    return False


def _writers(cta: Cta, warp: int) -> Writers:
    return cta.under_way.unfenced.setdefault(warp, {_START: ""})


def _tracked(step: Step, relevant: set[Register]) -> Run:
    """A function that runs the step, and notes what it means for fences."""
    run, line = step.run, step.instruction.line
    written = step.written & relevant
    sources = step.touched - step.written

    def fence(cta: Cta, lanes: Lanes) -> Outcome:
        for warp in lane_sets.warps(lanes):
            _writers(cta, int(warp)).clear()
        return run(cta, lanes)

    def product(cta: Cta, lanes: Lanes) -> Outcome:
        for warp in lane_sets.warps(lanes):
            writers = _writers(cta, int(warp))
            if _START in writers:
                raise SynchronizationFault(
                    "wgmma.fence is missing: the first wgmma.mma_async of a warp needs one before"
                    " it"
                )
            late = [register for register in _used(step) if register in writers]
            if late:
                raise SynchronizationFault(
                    "wgmma.fence is missing: a register of this product was written at PTX line"
                    f" {writers[late[0]]}, and no fence came after that"
                )
        return run(cta, lanes)

    def write(cta: Cta, lanes: Lanes) -> Outcome:
        for warp in lane_sets.warps(lanes):
            writers = _writers(cta, int(warp))
            if not _is_copy(step) or any(source in writers for source in sources):
                writers.update(dict.fromkeys(written, str(line)))
            else:
                for register in written:
                    writers.pop(register, None)
        return run(cta, lanes)

    if _is(step, _FENCE):
        return fence
    return product if _is(step, _PRODUCT) else write


def check_fences(kernel: Kernel, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps; where a fence may be missing, they watch for it when they run."""
    relevant = _relevant(steps)
    if not relevant or not _suspicious(kernel, steps, relevant):
        return steps
    return tuple(
        replace(step, run=_tracked(step, relevant))
        if _is(step, _FENCE) or _is(step, _PRODUCT) or step.written & relevant
        else step
        for step in steps
    )
