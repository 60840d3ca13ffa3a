"""The cells of tensor memory that a thread loads and stores, by the layouts on both sides.

``ttng.tmem_load``, ``ttng.tmem_store`` and ``ttng.tmem_alloc`` of a tensor become ``tcgen05.ld``
and ``tcgen05.st``. Which cells a thread holds the layout in registers and that in tensor memory
say; which ones its instructions move, their addresses and shapes (PTX ISA, "tcgen05.ld").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from triton_ext.errors import LayoutError
from triton_ext.hardware.tensor_memory_access import ACCESS_SHAPES
from triton_ext.layouts.cluster import block_bases
from triton_ext.layouts.linear_layout import LinearLayout
from triton_ext.mlir.ir import Operation, Value
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import tensor_type
from triton_ext.passes.value_layouts import register_layout, tensor_memory_layout
from triton_ext.passes.verify_descriptors.memory.stores import Move
from triton_ext.passes.verify_descriptors.running.executions import Block
from triton_ext.passes.verify_descriptors.running.findings import Findings
from triton_ext.passes.verify_descriptors.running.launches import BASES
from triton_ext.passes.verify_descriptors.running.poison import Poison
from triton_ext.passes.verify_descriptors.running.thread_trace import ThreadTrace
from triton_ext.ptx.forms import read
from triton_ext.ptx.forms.tensor_memory import TensorMemoryAccess
from triton_ext.ptx.parse import Instruction

Cells = frozenset[tuple[int, int]]
"""(lane, column)."""


def transfers(module: MlirModule) -> list[Operation]:
    """The operations of a module that move tensors to or from tensor memory."""
    return [each for each in module.operations if _operands(each) is not None]


def _operands(operation: Operation) -> tuple[Value, Value] | None:
    """The memory, and the tensor."""
    name, operands = operation.name, operation.operands
    if name == "ttng.tmem_load":
        return operands[0], operation.results[0]
    if name == "ttng.tmem_alloc" and operands:
        return operation.results[0], operands[0]
    if name == "ttng.tmem_store":
        types = ((value, value.type or "") for value in operands)
        tensor, memory = (v for v, kind in types if kind != "i1" and "async.token" not in kind)
        return memory, tensor
    return None


def memory_of(operation: Operation) -> Value:
    """The memory that a transfer reads or writes."""
    found = _operands(operation)
    assert found is not None
    return found[0]


def _held(operation: Operation, module: MlirModule, warp: int, lane: int) -> Cells | None:
    """The cells that a thread holds, from the tile's first one; None where they are not known."""
    memory, tensor = _operands(operation) or (None, None)
    kind = module.memory(memory) if memory else None
    shape = tensor_type(tensor.type or "", module.aliases) if tensor else None
    if kind is None or shape is None or kind.mnemonic != "tensor_memory_encoding":
        return None
    try:
        return _cells(register_layout(shape, module), tensor_memory_layout(kind), warp, lane)
    except LayoutError:
        return None


@lru_cache(maxsize=1024)
def _cells(registers: LinearLayout, memory: LinearLayout, warp: int, lane: int) -> Cells | None:
    if block_bases(registers) or registers.in_dims.get("warp", 1) <= warp:
        return None
    inverse, found = memory.pseudoinvert(), set()
    names = list(inverse.in_dims)
    for register in range(registers.in_dims["register"]):
        where = registers.apply(register=register, lane=lane, warp=warp)
        cell = inverse.apply(dict(zip(names, list(where.values())[-2:], strict=True)))
        found.add((cell["lane"], cell["column"]))
    return frozenset(found)


def _moved(instruction: Instruction, address: int) -> Cells | None:
    """The cells that the first thread of a warp moves."""
    form = read(instruction)
    if not isinstance(form, TensorMemoryAccess) or form.packs or form.unpacks or form.reduces:
        return None
    shape = ACCESS_SHAPES[form.shape]
    lane, column = address >> 16, address & 0xFFFF
    cells = [(lane, column + piece * shape.columns) for piece in range(form.repeat)]
    for step in shape.registers:
        cells += [(one[0] + step[0], one[1] + step[1]) for one in cells]
    return frozenset(cells)


_TOGETHER = ".sync.aligned"
"""The modifiers of what all lanes of a warp execute together (PTX ISA, ".aligned")."""


def compare_transfers(
    block: Block,
    findings: Findings,
    executed: Sequence[Move],
    thread: ThreadTrace,
    last: Instruction,
) -> None:
    """What the first thread of a warp moves, one operation after the other. `executed`: the
    operations of its partition, in order. `last`: an instruction of the kernel, to name where the
    thread moves too little."""
    left = [
        each for each in thread.accesses if each[0].opcode.startswith(("tcgen05.ld", "tcgen05.st"))
    ]
    known: dict[int, tuple[Cells | None, list[tuple[int, int]]]] = {}
    for number, one in enumerate(executed):
        if id(one.operation) not in known:
            known[id(one.operation)] = (
                _held(one.operation, block.module, block.warp, block.lane), [],
            )  # fmt: skip
        held, before = known[id(one.operation)]
        start = None
        if isinstance(one.target, tuple):
            start = findings.starts.get(one.target[0])
        if held is None or start is None or not isinstance(one.target, tuple):
            findings.unproven["transfers of tensor memory"] += len(executed) - number
            return
        begin = start[0] + one.target[1]
        again = [
            (id(instruction), address - begin)
            for instruction, address, _ in left[: len(before)]
            if isinstance(address, int)
        ]
        if before and again == before:  # as in an earlier execution
            del left[: len(before)]
            findings.proven["transfers of tensor memory"] += 1
            continue
        lane, column = begin >> 16, begin & 0xFFFF
        before.clear()
        pending = {(each[0] + lane, each[1] + column) for each in held}
        while pending:
            if not left:
                if not thread.end.is_early:
                    findings.differ(
                        one.operation, last, "the tensor memory that a thread moves",
                        "all of its cells of the tile", f"{len(pending)} less",
                    )  # fmt: skip
                return
            instruction, address, _ = left.pop(0)
            moved = _moved(instruction, address) if isinstance(address, int) else None
            if moved is None and not isinstance(address, Poison):
                findings.unproven["transfers of tensor memory"] += len(executed) - number
                return
            if moved is None or not moved <= pending:
                findings.differ(
                    one.operation, instruction, "the tensor memory that it moves",
                    f"lane {min(pending)[0]}, column {min(pending)[1] - BASES.tensor} and further"
                    " cells of the tile",
                    address if moved is None
                    else f"lane {min(moved)[0]}, column {min(moved)[1] - BASES.tensor}",
                )  # fmt: skip
                return
            pending -= moved
            assert isinstance(address, int)
            before.append((id(instruction), address - begin))
        findings.proven["transfers of tensor memory"] += 1


def compare_lanes(findings: Findings, leader: ThreadTrace, other: ThreadTrace) -> None:
    """What two lanes of a warp must execute together."""
    is_cut = leader.end.is_early or other.end.is_early
    accesses = (
        [each[0] for each in trace.accesses if _TOGETHER in each[0].opcode]
        for trace in (leader, other)
    )
    for first, second in (tuple(accesses), (leader.elections, other.elections)):
        apart = next((one for one, two in zip(first, second, strict=False) if one is not two), None)
        count = min(len(first), len(second))
        if len(first) != len(second) and not is_cut:
            apart = apart or max(first, second, key=len)[count]
        if apart is not None:
            findings.differ(
                None, apart, "which lanes of a warp execute it", "all of them", "not all"
            )
            return
        findings.proven["executions by whole warps"] += count
