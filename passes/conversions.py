"""The layout conversions of a module, how each is done, and what the PTX has at their lines."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from triton_ext.errors import LayoutError
from triton_ext.hardware.conversions import PlannedConversion, plan_conversion
from triton_ext.mlir.ir import Operation
from triton_ext.mlir.locations import Location
from triton_ext.mlir.module import MlirModule
from triton_ext.mlir.types import TensorType, tensor_type
from triton_ext.passes.shared_accesses import MoveUse
from triton_ext.passes.value_layouts import register_layout
from triton_ext.ptx.parse import Instruction
from triton_ext.ptx.parse import Module as PtxModule

_POINTER_BITS = 64
_ACCESS = re.compile(
    r"(?P<name>(?:ld|st)\.shared(?:::cluster)?)\b.*?(?:\.v(?P<vector>\d))?\.[a-z](?P<bits>\d+)"
)
_MATRIX = re.compile(r"(?P<name>(?:ld|st)matrix)\..*?(?P<count>x\d)(?P<trans>\.trans)?")
_COUNTED = ("shfl.sync", "prmt", "selp", "bar.sync", "bar.warp.sync")
_MOVING = ("ld.shared", "st.shared", "ldmatrix", "stmatrix", "shfl.sync")
_OTHER_USERS = frozenset(
    (
        "tt.reduce", "tt.scan", "tt.gather", "tt.histogram", "tt.atomic_rmw", "tt.atomic_cas",
        "ttg.local_gather", "ttg.local_scatter", "ttg.warp_specialize",
    )
)  # fmt: skip
"""Operations that shuffle and use shared memory themselves."""


@dataclass(frozen=True)
class ConversionUse:
    """A ``ttg.convert_layout``.

    Attributes:
        planned: how it is done; None if that is not known.
        reason: why not.
    """

    operation: Operation
    source: TensorType
    target: TensorType
    planned: PlannedConversion | None
    reason: str = ""


def conversions(
    module: MlirModule, arch: int, release: tuple[int, int] | None
) -> list[ConversionUse]:
    """All conversions of a module, in textual order. `arch`: the compute capability, times ten.
    `release`: of Triton; None if it is not known."""
    return [
        found
        for operation in module.operations
        if operation.name == "ttg.convert_layout"
        and (found := _conversion(operation, module, arch, release)) is not None
    ]


def _conversion(
    operation: Operation, module: MlirModule, arch: int, release: tuple[int, int] | None
) -> ConversionUse | None:
    source, target = (
        tensor_type(value.type or "", module.aliases)
        for value in (operation.operands[0], operation.results[0])
    )
    if source is None or target is None:
        return None
    bits = source.element_bitwidth or _POINTER_BITS
    try:
        planned = plan_conversion(
            register_layout(source, module),
            register_layout(target, module),
            bits,
            arch=arch,
            **({} if release is None else {"release": release}),
        )
    except LayoutError as error:
        return ConversionUse(operation, source, target, None, str(error))
    return ConversionUse(operation, source, target, planned)


def counted_name(instruction: Instruction) -> str | None:
    """How an instruction of PTX is counted: as `PlannedMove.mnemonic` names it; None if not.

    A broadcast of lane 0 is not: it makes a warp's number uniform, and moves no tensor.
    """
    opcode, operands = instruction.opcode, instruction.operands
    if opcode.startswith("shfl.sync.idx") and operands[2:3] == ("0",):
        return None
    access = _ACCESS.match(opcode)
    if access:
        bits = int(access["bits"]) * int(access["vector"] or 1)
        return f"{access['name']} of {bits} bits"
    matrix = _MATRIX.match(opcode)
    if matrix:
        return f"{matrix['name']}.{matrix['count']}{matrix['trans'] or ''}"
    return next((name for name in _COUNTED if opcode.startswith(name)), None)


@dataclass
class LineCount:
    """The moves of a source line.

    Attributes:
        operations: the conversions and moves there, and others that use the same instructions.
        predicted: instructions of a warp, by their names in `counted_name`.
        counted: the same, as they stand in the PTX.
    """

    place: tuple[str, int]
    operations: list[str] = field(default_factory=list)
    predicted: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    is_complete: bool = True

    @property
    def agrees(self) -> bool | None:
        """Whether as many moves are counted as predicted; None if not all could be predicted."""
        if not self.is_complete:
            return None
        found = {name: n for name, n in self.counted.items() if name.startswith(_MOVING)}
        return found == dict(self.predicted)


def line_counts(
    module: MlirModule, found: Iterable[ConversionUse], moves: Iterable[MoveUse], ptx: PtxModule
) -> list[LineCount]:
    """What was predicted of each line that has conversions or moves, and what the PTX has."""
    lines: dict[tuple[str, int], LineCount] = {}

    def at(operation: Operation) -> LineCount | None:
        if operation.location is None:
            return None
        place = _place(operation.location)
        return lines.setdefault(place, LineCount(place))

    uses: list[ConversionUse | MoveUse] = [*found, *moves]
    for use in uses:
        line = at(use.operation)
        if line is None:
            continue
        line.operations.append(use.operation.name)
        if use.planned is None:
            line.is_complete = False
        elif isinstance(use, ConversionUse):
            line.predicted.update(use.planned.instructions)
        else:
            line.predicted[use.planned.mnemonic] += use.planned.pattern.instructions
    for operation in module.operations:
        location = operation.location
        if operation.name in _OTHER_USERS and location is not None:
            for place in {_place(each) for each in (location, *location.callers)} & set(lines):
                lines[place].operations.append(operation.name)
                lines[place].is_complete = False
    for kernel in ptx.kernels:
        for instruction in kernel.instructions:
            name, source = counted_name(instruction), instruction.source
            if name and source and (source.file, source.line) in lines:
                lines[source.file, source.line].counted[name] += 1
    return list(lines.values())


def _place(location: Location) -> tuple[str, int]:
    return location.file, location.line
