"""Special registers (PTX ISA, "Special Registers")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triton_ext.emulator.state.block import Cta
from triton_ext.emulator.state.lanes import Lanes
from triton_ext.hardware.architecture import WARP_THREADS

Value = Callable[[Cta, Lanes], NDArray[Any]]

_AXES = "xyz"


def _of_cta(value: Callable[[Cta], int]) -> Value:
    return lambda cta, lanes: np.asarray(value(cta), np.uint64)


def _thread(axis: int) -> Value:
    return lambda cta, lanes: cta.place.threads[axis][lanes]


def _lane_mask(mask: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]) -> Value:
    def value(cta: Cta, lanes: Lanes) -> NDArray[Any]:
        bit = np.uint64(1) << (cta.place.number[lanes] % WARP_THREADS).astype(np.uint64)
        return mask(bit) & np.uint64(0xFFFFFFFF)

    return value


def _axis(name: str, value: Callable[[Cta, int], int]) -> dict[str, Value]:
    def of(axis: int) -> Value:
        return _of_cta(lambda cta: value(cta, axis))

    return {f"%{name}.{letter}": of(axis) for axis, letter in enumerate(_AXES)}


def _place(name: str, value: Callable[[Any, int], Any]) -> dict[str, Value]:
    """What follows from the index of the lanes' block. `value`: from the index along an axis, and
    the size of a cluster along it."""

    def of(axis: int) -> Value:
        return lambda cta, lanes: np.asarray(
            value(cta.place.along(axis, lanes), cta.launch.cluster[axis]), np.uint64
        )

    return {f"%{name}.{letter}": of(axis) for axis, letter in enumerate(_AXES)}


SPECIAL_REGISTERS: dict[str, Value] = {
    **{f"%tid.{letter}": _thread(axis) for axis, letter in enumerate(_AXES)},
    **_axis("ntid", lambda cta, axis: cta.launch.block[axis]),
    **_place("ctaid", lambda index, size: index),
    **_axis("nctaid", lambda cta, axis: cta.launch.grid[axis]),
    **_place("clusterid", lambda index, size: index // size),
    **_axis("nclusterid", lambda cta, axis: cta.launch.grid[axis] // cta.launch.cluster[axis]),
    **_place("cluster_ctaid", lambda index, size: index % size),
    **_axis("cluster_nctaid", lambda cta, axis: cta.launch.cluster[axis]),
    "%cluster_ctarank": _of_cta(lambda cta: cta.rank),
    "%cluster_nctarank": _of_cta(lambda cta: len(cta.cluster.ctas)),
    "%is_explicit_cluster": lambda cta, lanes: np.asarray(len(cta.cluster.ctas) > 1),
    "%laneid": lambda cta, lanes: cta.place.number[lanes] % WARP_THREADS,
    "%warpid": lambda cta, lanes: cta.place.number[lanes] // WARP_THREADS,
    "%nwarpid": _of_cta(lambda cta: -(-cta.launch.threads // WARP_THREADS)),
    "%smid": lambda cta, lanes: np.asarray(cta.place.processor(lanes), np.uint64),
    "%nsmid": _of_cta(lambda cta: cta.machine.target.capability.multiprocessors),
    "%gridid": _of_cta(lambda cta: 1),
    "%clock": _of_cta(lambda cta: cta.machine.steps & 0xFFFFFFFF),
    "%clock_hi": _of_cta(lambda cta: cta.machine.steps >> 32),
    "%clock64": _of_cta(lambda cta: cta.machine.steps),
    "%globaltimer": _of_cta(lambda cta: cta.machine.steps),
    "%globaltimer_lo": _of_cta(lambda cta: cta.machine.steps & 0xFFFFFFFF),
    "%globaltimer_hi": _of_cta(lambda cta: cta.machine.steps >> 32),
    # The host's own, "driver-defined": where a cooperative launch has its barrier, as CUDA's
    # cooperative_groups/details/driver_abi.h reads it.
    "%envreg1": _of_cta(lambda cta: cta.launch.memory.workspace >> 32),
    "%envreg2": _of_cta(lambda cta: cta.launch.memory.workspace & 0xFFFFFFFF),
    "%dynamic_smem_size": _of_cta(lambda cta: cta.launch.dynamic_smem_bytes),
    "%total_smem_size": _of_cta(lambda cta: cta.shared.size),
    "%lanemask_eq": _lane_mask(lambda bit: bit),
    "%lanemask_lt": _lane_mask(lambda bit: bit - np.uint64(1)),
    "%lanemask_le": _lane_mask(lambda bit: (bit << np.uint64(1)) - np.uint64(1)),
    "%lanemask_gt": _lane_mask(lambda bit: ~((bit << np.uint64(1)) - np.uint64(1))),
    "%lanemask_ge": _lane_mask(lambda bit: ~(bit - np.uint64(1))),
    "WARP_SZ": _of_cta(lambda cta: WARP_THREADS),
}
