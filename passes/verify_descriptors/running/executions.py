"""One execution of an operation in the TTGIR, against the instructions that the PTX executes.

Both are given as numbers: the values of the operation's operands, and those of the instructions'
registers. Where allocations begin is not said in the TTGIR: the first instruction that names one
says it, and all others must agree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_ext.hardware.architecture import CTA_ADDRESS_MASK
from triton_ext.hardware.smem_descriptor import START_ADDRESS_MASK
from triton_ext.hardware.tensor_memory import WARPGROUP_WARPS
from triton_ext.integers import Number
from triton_ext.layouts.cluster import shape_per_cta
from triton_ext.layouts.encodings import CHUNK_BYTES, NVMMAShared
from triton_ext.mlir.ir import Value
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.value_layouts import parsed_encoding
from triton_ext.passes.verify_descriptors.meaning.expected import Expected, ExpectedBox, ExpectedMma
from triton_ext.passes.verify_descriptors.meaning.kinds import BY_EACH_THREAD
from triton_ext.passes.verify_descriptors.running.findings import LOW_WORD, Findings
from triton_ext.passes.verify_descriptors.running.mlir_trace import (
    SCRATCH,
    ExecutedOperation,
    RunValue,
)
from triton_ext.passes.verify_descriptors.running.poison import Poison
from triton_ext.passes.verify_descriptors.running.tensormaps import fields_of, written
from triton_ext.passes.verify_descriptors.running.thread_trace import ExecutedInstruction, Operand
from triton_ext.passes.verify_descriptors.text.groups import Group
from triton_ext.ptx.forms import Tcgen05Product, TensorCopy, WgmmaProduct, read
from triton_ext.ptx.parse import Instruction

_DOUBLE_WORD = (1 << 64) - 1
_DESCRIPTOR_ADDRESS = START_ADDRESS_MASK * CHUNK_BYTES
"""The bits of an address that a matrix descriptor has."""
_ROWS = "rows of a gather or scatter that are not known"
_EXECUTED = "the number of instructions that are executed"


@dataclass
class Block:
    """One block of a cluster in one launch, and which of its threads is compared.

    Attributes:
        ctas: the number of blocks in the cluster.
        ptx_version: the version of the PTX module, such as ``8.7``.
        scratch: the address of the block's global scratch memory, in which the kernel makes TMA
            descriptors; None if it is not known.
        index_of: the index of an instruction in its group.
        warp: the number of the thread's warp in its partition.
        lane: the number of the thread in its warp.
    """

    module: MlirModule
    ctas: int
    rank: int
    ptx_version: str
    index_of: Callable[[Instruction], int]
    scratch: int | None = None
    warp: int = 0
    lane: int = 0

    def takes_part(self, one: Expected) -> bool:
        """Whether the thread executes instructions of an operation."""
        if one.kind in BY_EACH_THREAD:
            return True
        if self.lane:
            return False
        return not self.warp or (one.kind == "tma" and bool(one.boxes_of(self.warp)))

    def offset(self, one: Expected, dim: int) -> int:
        """How far the block's part of a tile begins along a coordinate, the innermost being 0."""
        memory = self.module.memory(one.tile) if one.tile else None
        if not self.rank or memory is None:
            return 0
        encoding = parsed_encoding(memory.encoding)
        if not isinstance(encoding, NVMMAShared):
            return 0
        axis = encoding.rank - 1 - dim
        part = shape_per_cta(encoding.cga_layout, memory.shape[-encoding.rank :])[axis]
        bits = enumerate(encoding.cga_layout)
        return sum(basis[axis] * part for bit, basis in bits if self.rank >> bit & 1)


class Execution:
    """One execution of an operation, which is compared with what the thread executes.

    Args:
        event: the operation, and the values of its operands.
    """

    def __init__(self, block: Block, findings: Findings, event: ExecutedOperation) -> None:
        self.block, self.findings, self.operation = block, findings, event.operation
        self.values = dict(zip(event.operation.operands, event.operands, strict=True))

    def compare(self, one: Expected, group: Group, instance: Sequence[ExecutedInstruction]) -> None:
        """Compare it with one execution of a group."""
        first = instance[0]
        if one.kind == "tma":
            for event in instance:
                self._copy(one, event)
            count = len(one.boxes_of(self.block.warp))
            if len(instance) != count:
                self.findings.differ(
                    self.operation, first.instruction, _EXECUTED, count, len(instance)
                )
        elif group.is_in_order or one.kind == "expect":
            self.barrier(one.barrier, first)
            self._numbers(one, first)
        elif len(instance) == len(group.instructions):
            for expected, event in zip(_in_order(one, instance), instance, strict=True):
                self._product(one, expected, event)
        else:
            self.findings.differ(
                self.operation, first.instruction, _EXECUTED, len(group.instructions), len(instance)
            )

    def followed_by(self, kind: str, barrier: Value | None, event: ExecutedInstruction) -> None:
        """Compare what follows the operation's own instructions: a product that is not asynchronous
        waits for all groups."""
        self.barrier(barrier, event)
        if kind == "wgmma wait":
            self.findings.check(
                "counts", self.operation, event.instruction, "the count", 0,
                _number(event.operands[-1]),
            )  # fmt: skip

    def barrier(self, value: Value | None, event: ExecutedInstruction) -> None:
        """Compare the mbarrier of an instruction that has no other address."""
        if value is None:
            return
        addresses = [i for i, text in enumerate(event.instruction.operands) if text[:1] == "["]
        address = _number(event.operands[addresses[0]]) if addresses else None
        self._address(value, address, 0, event.instruction, "the mbarrier")

    def _numbers(self, one: Expected, event: ExecutedInstruction) -> None:
        """Compare the number of arrivals or of pending groups, and the phase of a wait."""
        if one.number is not None:
            has_address = one.kind not in ("store wait", "wgmma wait")
            found = event.operands[-1] if len(event.operands) > has_address else 1
            if one.kind == "arrive" and event.instruction.operands[-1][:1] == "[":
                found = 1
            if self.block.ctas > 1:  # arrivals of several blocks
                self.findings.unproven["counts"] += 1
                return
            self.findings.check(
                "counts", self.operation, event.instruction, "the count", one.number, _number(found)
            )
        if one.phase is not None:
            phase = self.values.get(one.phase)
            self.findings.check(
                "phases", self.operation, event.instruction,
                "the phase, in one execution for one choice of arguments,",
                phase if isinstance(phase, int) else None, _number(event.operands[2]),
            )  # fmt: skip

    def _product(self, one: Expected, first: ExpectedMma, event: ExecutedInstruction) -> None:
        """Compare one instruction of a product."""
        for name, matrix in first.matrices.items():
            bits = _number(_operand(event, name))
            start = None if bits is None else (bits & START_ADDRESS_MASK) * CHUNK_BYTES
            what = f"operand {matrix.name}"
            group = self.block.warp // WARPGROUP_WARPS if one.kind == "wgmma" else 0
            advance = matrix.advance + matrix.further[group % len(matrix.further)]
            self._address(
                matrix.value, start, advance, event.instruction, what, _DESCRIPTOR_ADDRESS
            )
            self._constant(
                f"the descriptor of {matrix.name} without its address", name, event,
                None if bits is None else bits & ~START_ADDRESS_MASK,
            )  # fmt: skip
        form = read(event.instruction)
        if isinstance(form, Tcgen05Product):
            number = _number(_operand(event, "idesc"))
            self._constant("the instruction descriptor", "idesc", event, number)
        if isinstance(form, (Tcgen05Product, WgmmaProduct)):
            adds = self.values.get(one.adds) if one.adds else None
            must = adds if first.accumulates is None else first.accumulates
            name = "enable_input_d" if isinstance(form, Tcgen05Product) else "scale_d"
            found = _number(_operand(event, name))
            self.findings.check(
                "uses of D", self.operation, event.instruction, "whether the product adds to D",
                int(bool(must)) if isinstance(must, int) else None,
                int(bool(found)) if isinstance(found, int) else found,
            )  # fmt: skip
        for name, (value, offset) in first.tensor.items():
            what = "the tensor memory of an operand"
            address = _number(_operand(event, name))
            self._address(value, address, offset, event.instruction, what, LOW_WORD)

    def _constant(self, what: str, name: str, event: ExecutedInstruction, found: Number) -> None:
        """Check an operand that is the same in all executions: the text was compared."""
        known = self.findings.constants.setdefault((id(event.instruction), name), found)
        self.findings.check(
            "descriptors in later executions", self.operation, event.instruction, what, known,
            found, _DOUBLE_WORD,
        )  # fmt: skip

    def _copy(self, one: Expected, event: ExecutedInstruction) -> None:
        """Compare one instruction of a TMA copy."""
        instruction, operands = event.instruction, _copy_operands(event)
        self._descriptor_address(operands.descriptor, instruction)
        if one.barrier is not None:
            self._address(one.barrier, operands.barrier, 0, instruction, "the mbarrier")
        self._multicast(one, event)
        boxes, index = one.boxes_of(self.block.warp), self.block.index_of(instruction)
        if index >= len(boxes):
            self.findings.differ(
                self.operation, instruction, f"warp {self.block.warp}", "idle here", "not"
            )
            return
        box = boxes[index]
        if one.rows:
            self._gathered(one, box, instruction, operands)
            return
        if one.tile is not None:
            what = "the shared memory of a TMA copy"
            self._address(one.tile, operands.shared, box.smem_offset, instruction, what)
        for dim, value in enumerate(one.coordinates[::-1]):
            start = self.values.get(value)
            must = None
            if isinstance(start, int):
                factor = 2 if dim == 0 and one.is_padded else 1
                must = start * factor + box.coordinates[dim] + self.block.offset(one, dim)
            found = operands.coordinates[dim] if dim < len(operands.coordinates) else None
            self._coordinate(dim, must, found, instruction)

    def _multicast(self, one: Expected, event: ExecutedInstruction) -> None:
        """Compare the blocks that a copy goes to with those that hold the same part of the tile."""
        form = read(event.instruction)
        memory = self.block.module.memory(one.tile) if one.tile else None
        if not isinstance(form, TensorCopy) or not form.cta_mask or memory is None:
            return
        bits = getattr(parsed_encoding(memory.encoding), "cga_layout", ())
        same, rank = [self.block.rank], self.block.rank
        for bit, basis in enumerate(bits):
            if not any(basis):
                same += [other ^ 1 << bit for other in same]
        self.findings.check(
            "multicast masks", self.operation, event.instruction, f"block {rank}'s multicast mask",
            sum(1 << other for other in same), _number(_operand(event, "cta_mask")), 0xFFFF,
        )  # fmt: skip

    def _coordinate(self, dim: int, must: Number, found: Number, instruction: Instruction) -> None:
        what = f"coordinate {dim}, in one execution for one choice of arguments,"
        self.findings.check("coordinates", self.operation, instruction, what, must, found)

    def _gathered(
        self, one: Expected, box: ExpectedBox, instruction: Instruction, operands: _CopyOperands
    ) -> None:
        """Compare one instruction of a gather or scatter: a column and four rows' indices."""
        if self.block.ctas > 1:
            self.findings.left_out[instruction.line] = _ROWS
            self.findings.unproven["coordinates"] += len(operands.coordinates)
            return
        if one.tile is not None:
            what = "the shared memory of a TMA copy"
            self._address(one.tile, operands.shared, box.smem_offset, instruction, what)
        expected = self._rows(one, box)
        if None in expected or None in operands.coordinates:
            self.findings.left_out[instruction.line] = _ROWS
        for dim, (must, found) in enumerate(zip(expected, operands.coordinates, strict=True)):
            self._coordinate(dim, must, found, instruction)

    def _rows(self, one: Expected, box: ExpectedBox) -> list[Number]:
        """The column and the rows that a gather or scatter copies to or from a box."""
        indices = next((each for each in self.values.values() if isinstance(each, list)), [])
        column, row = self.values.get(one.coordinates[-1]), box.coordinates[1]
        factor = 2 if one.is_padded else 1
        first = column * factor + box.coordinates[0] if isinstance(column, int) else None
        rows = indices[row : row + one.rows]
        return [first, *rows, *[None] * (one.rows - len(rows))]

    def make_descriptor(self, events: Sequence[ExecutedInstruction]) -> bool:
        """Compare ``ttng.tensormap_create`` with the instructions that make a TMA descriptor: the
        first thread writes the fields, and its warp copies them. Returns whether they agree.
        """
        findings, operation = self.findings, self.operation
        *replaced, copied = events
        last = copied.instruction
        if self.block.lane:
            if replaced:
                findings.differ(
                    operation, replaced[0].instruction, f"lane {self.block.lane}", "idle here",
                    "not",
                )  # fmt: skip
                return False
            self._descriptor_address(_number(copied.operands[0]), last)
            return not findings.differences
        for event in replaced:
            if not findings.check(
                "where the kernel makes a descriptor", operation, event.instruction,
                "the address in shared memory, for one choice of arguments,",
                _number(copied.operands[1]), _number(event.operands[0]), LOW_WORD,
            ):  # fmt: skip
                return False
        found, fields = written(events), fields_of(operation)
        expected: dict[tuple[str, int], RunValue] = {
            name: self.values.get(value) for name, value in fields.values.items()
        }
        expected.update(fields.numbers)
        expected["global_address", 0] = self.values.get(fields.address)
        # ptxas of CUDA 12.5 and before takes strides in units of 16 bytes (Triton).
        shifted = tuple(map(int, self.block.ptx_version.split(".")[:2])) <= (8, 5)
        for entry in dict.fromkeys([*expected, *found]):
            name, index = entry
            if name == "global":
                continue
            must, is_ = expected.get(entry, 0), found.get(entry, 0)
            number = must if isinstance(must, int) else None
            if shifted and name == "global_stride" and number is not None:
                number >>= 4
            if not findings.check(
                "fields of descriptors that the kernel makes", operation,
                _writer(events, name) or last,
                f"{name} {index} of the TMA descriptor, for one choice of arguments,", number, is_,
                _DOUBLE_WORD if name in ("global_address", "global_stride") else LOW_WORD,
            ):  # fmt: skip
                return False
        self._descriptor_address(found.get(("global", 0)), last)
        return not findings.differences

    def acquire_descriptor(self, event: ExecutedInstruction) -> bool:
        """Compare ``ttng.tensormap_fenceproxy_acquire`` with a fence; whether they agree."""
        self._descriptor_address(_number(event.operands[0]), event.instruction)
        return not self.findings.differences

    @staticmethod
    def ending(events: Sequence[ExecutedInstruction]) -> int:
        """How many of `events`, of the first warp, wait for the descriptor's bytes to be copied.

        They commit and wait once: a store that follows does so, too.
        """
        ends = ("cp.async.bulk.commit_group", "cp.async.bulk.wait_group")
        pairs = zip(events, ends, strict=False)
        kinds = (event.instruction.opcode.startswith(end) for event, end in pairs)
        return len(list(itertools.takewhile(bool, kinds)))

    def _descriptor_address(self, found: Number, instruction: Instruction) -> None:
        """Compare the address of a TMA descriptor, in global memory or a parameter."""
        value = self.operation.operands[0]
        self._address(value, found, 0, instruction, "a TMA descriptor", _DOUBLE_WORD)

    def _address(
        self,
        value: Value,
        found: Number,
        offset: int,
        instruction: Instruction,
        what: str,
        mask: int = 0,
    ) -> None:
        """Compare an address in an allocation with the one at which the allocation begins.

        Args:
            value: the operand that it is the address of.
            found: the address in the PTX.
            offset: how far the address is from that of the operand's first element.
            instruction: the instruction that has the address.
            what: the operand of the instruction, in words.
            mask: the bits of `found` that are the address; those of one in shared memory if 0.
        """
        if isinstance(found, Poison):
            self.findings.differ(
                self.operation, instruction, f"the address of {what}", "one of its memory", found
            )
            return
        mask = mask or (CTA_ADDRESS_MASK if self.block.ctas > 1 else LOW_WORD)
        address, starts = self.values.get(value), self.findings.starts
        if not isinstance(address, tuple) or found is None:
            self.findings.unproven["addresses"] += 1
            return
        root, at = address
        if root.definition is not None and root.definition.name == SCRATCH:
            if self.block.scratch is None:
                self.findings.unproven["addresses in scratch memory of a size not known"] += 1
                return
            offset += self.block.scratch
        start = (found & mask) - at - offset
        if root not in starts:
            here = start & mask if mask == _DESCRIPTOR_ADDRESS else start
            starts[root] = here, instruction
            return
        known, first = starts[root]
        if not (known - start) & mask:
            self.findings.proven["addresses"] += 1
            return
        self.findings.differ(
            self.operation, instruction,
            f"the address of {what}, in one execution for one choice of arguments,",
            f"{known + at + offset:#x}, as PTX line {first.line} has its allocation",
            f"{found & mask:#x}",
        )  # fmt: skip


def _writer(events: Sequence[ExecutedInstruction], name: str) -> Instruction | None:
    """The first instruction that writes a field of a TMA descriptor."""
    found = (each.instruction for each in events if f".{name}." in each.instruction.opcode)
    return next(found, None)


def _in_order(one: Expected, instance: Sequence[ExecutedInstruction]) -> Sequence[ExpectedMma]:
    """What the instructions are, in an order with which all addresses fit together."""
    for order in (range(len(one.instructions)), *one.orders):
        starts: dict[tuple[str, str], set[int]] = {}
        for index, event in zip(order, instance, strict=False):
            expected = one.instructions[index]
            for name, matrix in expected.matrices.items():
                bits = _operand(event, name)
                if isinstance(bits, int):
                    start = (bits - matrix.advance // CHUNK_BYTES) & START_ADDRESS_MASK
                    starts.setdefault(("shared", name), set()).add(start)
            for name, (_, offset) in expected.tensor.items():
                address = _operand(event, name)
                if isinstance(address, int):
                    starts.setdefault(("tensor", name), set()).add(address - offset)
        if all(len(found) == 1 for found in starts.values()):
            return [one.instructions[index] for index in order]
    return one.instructions


@dataclass(frozen=True)
class _CopyOperands:
    """The operands of a TMA copy: addresses in shared memory, and of the descriptor."""

    shared: Number
    descriptor: Number
    coordinates: tuple[Number, ...]
    barrier: Number


def _operand(event: ExecutedInstruction, name: str) -> Operand:
    """The value of the operand that has this name in the instruction's form."""
    form = read(event.instruction)
    assert form is not None
    return event.operands[event.instruction.operands.index(form.operand(name))]


def _number(value: Operand) -> Number:
    return value if isinstance(value, (int, Poison)) else None


def _copy_operands(event: ExecutedInstruction) -> _CopyOperands:
    form, inside = read(event.instruction), _operand(event, "tensor")
    assert isinstance(form, TensorCopy)
    descriptor, listed = inside if isinstance(inside, tuple) and len(inside) == 2 else (None, ())
    coordinates = listed if isinstance(listed, tuple) else (listed,)
    return _CopyOperands(
        _number(_operand(event, "dst_mem" if form.loads else "src_mem")),
        _number(descriptor),
        tuple(map(_number, coordinates)),
        _number(_operand(event, "mbarrier")) if form.mbarrier else None,
    )
