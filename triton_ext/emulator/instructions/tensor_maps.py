"""Tensor maps that a kernel makes (PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy")."""

from __future__ import annotations

import numpy as np

from triton_ext.emulator.decode.decoder import Modifiers, instruction
from triton_ext.emulator.decode.evidence import DOCUMENT, KERNELS, SILICON
from triton_ext.emulator.decode.operands import Operands
from triton_ext.emulator.decode.step import Run
from triton_ext.emulator.errors import ConvergenceFault, UnsupportedInstruction
from triton_ext.emulator.instructions.moves import load_bytes, store_bytes
from triton_ext.emulator.state import lanes as lane_sets
from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.emulator.state.memory import Addresses, Bytes
from triton_ext.emulator.state.tensor_map_memory import (
    MadeTensorMap,
    check_alignment,
    of_the_dsl,
    replace_field,
)
from triton_ext.hardware.tensor_map import TENSOR_MAP_BYTES
from triton_ext.ptx.parse import Instruction, immediate

_FIELDS = {"global_address": False, "rank": False, "box_dim": True, "global_dim": True,
           "global_stride": True, "element_stride": True, "elemtype": False,
           "interleave_layout": False, "swizzle_mode": False, "swizzle_atomicity": False,
           "fill_mode": False}  # fmt: skip
"""The fields, and whether there is one for each dimension."""
_PIECE = 16


def _load(cta: Cta, lanes: Lanes, space: str, addresses: Addresses) -> Bytes:
    def half(first: int) -> list[Bytes]:
        pieces = range(first, first + TENSOR_MAP_BYTES // 2, _PIECE)
        return [load_bytes(cta, lanes, space, addresses + piece, _PIECE) for piece in pieces]

    data = np.concatenate(half(0), axis=1)
    if all(of_the_dsl(each.tobytes()) for each in data):  # nothing wrote the other half
        return np.pad(data, ((0, 0), (0, TENSOR_MAP_BYTES // 2)))
    return np.concatenate([data, *half(TENSOR_MAP_BYTES // 2)], axis=1)


def _store(cta: Cta, lanes: Lanes, space: str, addresses: Addresses, data: Bytes) -> None:
    for piece in range(0, TENSOR_MAP_BYTES, _PIECE):
        values = np.ascontiguousarray(data[:, piece : piece + _PIECE])
        store_bytes(cta, lanes, space, addresses + piece, values)


@instruction("tensormap.replace.tile", evidence=SILICON)
def replace(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Replace a field of a map in global or shared memory.

    Strides are in bytes, as documented. (Some versions of ptxas for CUDA 12 wanted them divided by
    16, and Triton does so for PTX 8.5 and older: such a map would be read wrongly.)
    """
    field = modifiers.one_of(_FIELDS)
    space = modifiers.one_of(("global", "shared::cta")).split("::")[0]
    modifiers.flag("b1024")
    type_name = modifiers.one_of(("b32", "b64"))
    if not field or not type_name or len(at.operands) != 2 + _FIELDS[field]:
        raise UnsupportedInstruction("its field, type or operands are not understood", at)
    ordinal = immediate(at.operands[1]) if _FIELDS[field] else 0
    if ordinal is None or not 0 <= ordinal < (4 if field == "global_stride" else 5):
        raise UnsupportedInstruction(f"dimension {at.operands[1]} is out of range", at)
    which = ordinal
    address = operands.address(at.operands[0], at)
    value = operands.reader(at.operands[-1], type_name.replace("b", "u"), at)

    def run(cta: Cta, lanes: Lanes) -> None:
        addresses = address(cta, lanes)
        values = lane_sets.numbers(value(cta, lanes), lanes)
        data = _load(cta, lanes, space, addresses)
        for lane, new in enumerate(values):
            check_alignment(int(addresses[lane]))
            replaced = replace_field(data[lane].tobytes(), field, which, new)
            data[lane] = np.frombuffer(replaced, np.uint8)
        _store(cta, lanes, space, addresses, data)

    return run


@instruction("tensormap.cp_fenceproxy.global", convergent=True, evidence=SILICON)
def copy_and_release(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """Copy a map from shared to global memory, and release it to the tensor map proxy."""
    for name in ("shared::cta", "tensormap::generic", "release", "sync", "aligned"):
        if not modifiers.flag(name):
            raise UnsupportedInstruction(f".{name} is missing", at)
    modifiers.one_of(("cta", "cluster", "gpu", "sys"))
    if immediate(at.operands[2]) != TENSOR_MAP_BYTES:
        raise UnsupportedInstruction(f"the size must be {TENSOR_MAP_BYTES}", at)
    target = operands.address(at.operands[0], at)
    source = operands.address(at.operands[1], at)

    def run(cta: Cta, lanes: Lanes) -> None:
        targets, sources = target(cta, lanes), source(cta, lanes)
        if lane_sets.count(lanes) % 32 and lane_sets.count(lanes) != cta.threads:
            raise ConvergenceFault("tensormap.cp_fenceproxy is for all threads of a warp")
        data = _load(cta, lanes, "shared", sources)
        for where in np.unique(targets).tolist():
            check_alignment(where)
            cta.machine.tensor_maps[where] = MadeTensorMap()
        _store(cta, lanes, "global", targets, data)
        cta.cluster.clocks.relaxed.fence(cta.agents(lanes))

    return run


@instruction("prefetch.tensormap", evidence=KERNELS)
@instruction("prefetch.param.tensormap prefetch.const.tensormap", evidence=DOCUMENT)
def prefetch(at: Instruction, modifiers: Modifiers, operands: Operands) -> Run:
    """A hint; but the address must have a tensor map's alignment."""
    address = operands.address(at.operands[0], at)

    def run(cta: Cta, lanes: Lanes) -> None:
        for where in np.unique(address(cta, lanes)).tolist():
            check_alignment(where)

    return run
