"""Launches whose loops run to their end: two or three trips, with sizes at the edges of tiles.

A bound that is off by a few elements shows where a size is a multiple of the tile, or a few
elements more or less; and only if the loop is followed to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from triton_ext.mlir.arith import integer_constant, integer_operation
from triton_ext.mlir.ir import Operation, Region, Value
from triton_ext.mlir.memory_flow import forwarded
from triton_ext.mlir.module import MlirModule
from triton_ext.passes.verify_descriptors.running.launches import TrialLaunch, multiples, parameter

_STEP = 16
"""How far a size lies from a multiple of its tile; that of what Triton knows to be a multiple."""
_BLOCKS = (((0, 0, 0), 4), ((3, 2, 1), 4), ((1, 1, 0), 4), ((5, 0, 0), 9))
"""Blocks, and how wide their grids are: the first block, the last one, one between them; and one in
the second row or column of 3 by 3 tiles."""
_MANY = 5
"""More tiles than pipelines have buffers."""
_DIVISIONS = ("arith.divsi", "arith.divui", "arith.ceildivsi", "arith.remsi", "arith.remui")


def whole_launches(module: MlirModule) -> list[TrialLaunch]:
    """Some launches: each size is in one of them a multiple of its tile, in others just more or
    just less. In the first one the innermost loop fills its buffers more than once."""
    kernel = module.kernel
    if kernel is None:
        return []
    values = kernel.regions[0].entry.arguments
    known, aligned = _tiles(module), multiples(kernel)
    counted, found = _counted(module, known), []
    for number, (block, width) in enumerate(_BLOCKS):
        arguments = {}
        for value in values:
            at = value.index
            if (value.type or "").startswith("!tt.ptr"):
                arguments[at] = parameter(at)
            elif value.type in ("i32", "i64"):
                step = _STEP if value.name in aligned else 1
                tile = max(known.get(value, 1), step)
                beside = (0, step, -step if tile > 1 else 2)[(at + number) % 3]
                tiles = _MANY if not number and value is counted else 2 + at % 2
                arguments[at] = tile * tiles + beside
        found.append(TrialLaunch(arguments, block, (width, 3, 2)))
    return found


def short_launches(module: MlirModule) -> list[TrialLaunch]:
    """The first such launch, with the size that the innermost loop counts to on both sides of no
    trip, one and two: a pipeline's start and end ask for these.
    """
    launches, known = whole_launches(module), _tiles(module)
    value = _counted(module, known)
    if not launches or value is None or module.kernel is None:
        return []
    tile, step = known[value], _STEP if value.name in multiples(module.kernel) else 1
    edges = {
        trips * tile + beside for trips in range(3) for beside in (-step, 0, step)
    }  # fmt: skip
    return [
        replace(launches[0], arguments={**launches[0].arguments, value.index: edge})
        for edge in sorted(edges)
        if edge >= 0
    ]


def _counted(module: MlirModule, tiles: Mapping[Value, int]) -> Value | None:
    """The size that the innermost loop counts to; of several sizes of more than one element a tile
    the last one."""
    several = [value for value, tile in tiles.items() if tile > 1]
    bounds = [
        each.operands[1] for each in module.operations
        if each.name == "scf.for" and not any(map(_has_loop, each.regions))
    ]  # fmt: skip
    reached = [value for value in several if any(_depends(bound, value) for bound in bounds)]
    return max(reached or several, key=lambda each: each.index, default=None)


def _has_loop(region: Region) -> bool:
    return any(each.name == "scf.for" for block in region.blocks for each in block.operations)


def _depends(bound: Value, on: Value) -> bool:
    """Whether a number is computed from another one, by operations alone."""
    pending = [bound]
    while pending:
        value = pending.pop()
        if value is on:
            return True
        maker = value.definition
        if maker is not None and integer_operation(maker) is not None:
            pending += maker.operands
    return False


def _tiles(module: MlirModule) -> Mapping[Value, int]:
    """The largest number by which each argument of the kernel, or a sum of it, is divided, or in
    steps of which a loop counts to it."""
    after: dict[Value, list[Value]] = {}
    for source, target in forwarded(module):
        after.setdefault(source, []).append(target)
    kernel = module.kernel
    found = {}
    for argument in kernel.regions[0].entry.arguments if kernel else ():
        pending, seen, most = [argument], {argument}, 1
        while pending:
            value = pending.pop()
            following = [*after.get(value, ())]
            for user, index in value.uses:
                most = max(most, _unit(user, index))
                if integer_operation(user) is not None and user.name not in _DIVISIONS:
                    following += user.results
            pending += [each for each in following if each not in seen]
            seen.update(following)
        found[argument] = most
    return found


def _unit(user: Operation, index: int) -> int:
    """The number by which an operation divides its operand, or counts to it; 1 if it does not."""
    number = None
    if user.name == "scf.for" and index == 1:
        number = integer_constant(user.operands[2])
    elif user.name in _DIVISIONS and index == 0:
        number = integer_constant(user.operands[1])
    elif user.name in ("arith.shrsi", "arith.shrui") and index == 0:
        shift = integer_constant(user.operands[1])
        number = None if shift is None else 1 << min(shift, 12)
    return number if number is not None and 0 < number <= 4096 else 1
