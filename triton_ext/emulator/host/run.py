"""`run_ptx`: launch a kernel of a PTX module on the emulated GPU."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.machine import Machine, Schedule
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.schedule.parallel import execute
from triton_ext.emulator.state.block import Launch
from triton_ext.emulator.state.memory import GlobalMemory
from triton_ext.emulator.state.tensor_map_memory import encode
from triton_ext.emulator.state.types import DTYPES
from triton_ext.hardware.architecture import SHARED_MEMORY_PER_BLOCK
from triton_ext.hardware.tensor_map import TensorMap
from triton_ext.ptx.parse import Variable, immediate, parse_ptx

MAX_THREADS = 1024
MAX_CLUSTER = 16


def _triple(name: str, value: Any) -> tuple[int, int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(values) <= 3 or any(
        isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in values
    ):
        raise LaunchError(f"{name} = {value!r}: must be one to three positive integers")
    x, y, z = (*(int(n) for n in values), 1, 1)[:3]
    return x, y, z


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """The bytes of a numpy array or a torch CPU tensor, without a copy."""
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "untyped_storage"):  # a torch tensor of any type
        array = storage_bytes(value)
    else:
        return None
    if not array.flags.c_contiguous:
        raise LaunchError("an array argument must be contiguous; pass .copy() of this one")
    return array


def storage_bytes(tensor: Any) -> np.ndarray[Any, Any]:
    """All bytes of a torch CPU tensor's storage."""
    import ctypes

    if tensor.device.type != "cpu":
        raise LaunchError(f"a tensor on {tensor.device}: the emulated GPU's memory is the host's")
    storage = tensor.untyped_storage()
    size = storage.nbytes()
    if not size:
        return np.zeros(0, np.uint8)
    buffer = (ctypes.c_uint8 * size).from_address(storage.data_ptr())
    return np.frombuffer(buffer, np.uint8)


def pack_arguments(
    program: Program,
    args: Sequence[Any],
    memory: GlobalMemory,
) -> bytes:
    """The bytes of the parameter space.

    Raises:
        LaunchError: another number of arguments than parameters, or one that does not fit.
    """
    parameters = program.parameters
    if len(args) != len(parameters):
        raise LaunchError(
            f"{len(args)} arguments for the {len(parameters)} parameters of {program.kernel.name}"
        )
    space = bytearray(program.storage.parameter_bytes)
    for value, symbol in zip(args, parameters, strict=True):
        variable = symbol.variable
        data = _argument_bytes(value, variable, memory)
        if len(data) != variable.bytes:
            raise LaunchError(
                f"argument {variable.name}: {len(data)} bytes for a parameter of {variable.bytes}"
            )
        space[symbol.offset : symbol.offset + len(data)] = data
    return bytes(space)


def _argument_bytes(value: Any, variable: Variable, memory: GlobalMemory) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, TensorMap):
        return encode(value)
    if value is None:
        return bytes(variable.bytes)
    array = _array(value)
    if array is not None and array.ndim:
        if variable.bytes != 8:
            raise LaunchError(
                f"argument {variable.name}: an array for a parameter of .{variable.type}"
            )
        address = memory.register(array, owner=value)
        if hasattr(value, "data_ptr"):
            address = value.data_ptr()
        return struct.pack("<Q", address)
    if isinstance(value, (bool, int, np.bool_, np.integer)):
        size = variable.bytes
        if not -(1 << 8 * size - 1) <= int(value) < 1 << 8 * size:
            raise LaunchError(f"argument {variable.name} = {value}: does not fit .{variable.type}")
        number = int(value) & ((1 << 8 * size) - 1)
        if variable.type in ("f32", "f64"):
            return np.asarray(value).astype(DTYPES[variable.type]).tobytes()
        return number.to_bytes(size, "little")
    if isinstance(value, (float, np.floating)):
        if variable.type in ("f64", "b64"):
            return struct.pack("<d", value)
        if variable.bytes == 4:
            return struct.pack("<f", value)
    raise LaunchError(
        f"argument {variable.name}: {type(value).__name__} for a parameter of .{variable.type};"
        " pass an array, a number, bytes or a TensorMap"
    )


def _initial_bytes(variable: Variable) -> np.ndarray[Any, Any]:
    """A module variable's memory, with its initializer's values (PTX ISA, "Initializers")."""
    data = np.zeros(max(16, variable.bytes), np.uint8)
    text = variable.initializer
    if not text:
        return data
    dtype = DTYPES[variable.type]
    values = []
    for part in re.findall(r"[^{},\s]+", text):
        number = immediate(part)
        if number is None:
            float_bits = re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", part)
            if not float_bits:
                raise LaunchError(f"variable {variable.name}: initializer {part!r} is not a number")
            number = int(float_bits[1], 16)
        values.append(number & ((1 << 8 * dtype.itemsize) - 1))
    raw = np.array(values, f"u{dtype.itemsize}").view(np.uint8)
    data[: len(raw)] = raw
    return data


def prepare(
    program: Program,
    *,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    cluster: Any = None,
    dynamic_smem_bytes: int = 0,
    memory: GlobalMemory | None = None,
) -> Launch:
    """Check a launch, and lay out its parameters.

    Raises:
        LaunchError: what the kernel or the GPU does not allow.
    """
    directives, storage = program.kernel.directives, program.storage
    if cluster is None:
        cluster = directives.get("reqnctapercluster", (1, 1, 1))
    grid, block, cluster = (
        _triple("grid", grid),
        _triple("block", block),
        _triple("cluster", cluster),
    )
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise LaunchError(f"block {block}: a block has at most {MAX_THREADS} threads")
    required = directives.get("reqntid")
    if required and _triple("reqntid", required) != block:
        raise LaunchError(f"block {block}: the kernel says .reqntid {required}")
    most = directives.get("maxntid")
    if most and threads > int(np.prod(most)):
        raise LaunchError(f"block {block}: the kernel says .maxntid {most}")
    if cluster[0] * cluster[1] * cluster[2] > MAX_CLUSTER:
        raise LaunchError(f"cluster {cluster}: a cluster has at most {MAX_CLUSTER} blocks")
    if (
        dynamic_smem_bytes < 0
        or dynamic_smem_bytes + storage.static_smem_bytes > SHARED_MEMORY_PER_BLOCK
    ):
        raise LaunchError(
            f"dynamic_smem_bytes = {dynamic_smem_bytes}: with the {storage.static_smem_bytes}"
            f" static bytes it must be in [0, {SHARED_MEMORY_PER_BLOCK}]"
        )
    memory = memory or GlobalMemory()
    addresses = {
        symbol.name: memory.register(_initial_bytes(symbol.variable))
        for symbol in storage.symbols.values()
        if symbol.space == "global"
    }
    parameters = pack_arguments(program, args, memory)
    return Launch(storage, grid, cluster, block, dynamic_smem_bytes, parameters, addresses, memory)


def run_ptx(
    ptx: str,
    *,
    kernel: str | None = None,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    buffers: Sequence[Any] = (),
    cluster: Any = None,
    dynamic_smem_bytes: int = 0,
    schedule: str = "eager",
    seed: int = 0,
    observer: Observer | None = None,
) -> Machine:
    """Run a kernel of a PTX module on the emulated GPU, until all of its blocks are done.

    Args:
        ptx: the text of the module, from any compiler; its ``.target`` must be sm_90 or sm_100.
        kernel: the entry's name; None for the only one.
        grid, block, cluster: blocks, threads of a block, and blocks of a cluster: an int, or up to
            three. A cluster of None is the one that the kernel requires, or a single block.
        args: one for each parameter: numpy arrays and torch CPU tensors (global memory, changed in
            place), ints, floats, bytes (structures passed by value), and `TensorMap` objects.
        buffers: arrays and tensors that the kernel reaches through pointers that are no argument
            of their own, but lie in a structure or in memory. The address of a numpy array is
            ``array.ctypes.data``, of a tensor ``tensor.data_ptr()``.
        dynamic_smem_bytes: dynamic shared memory of a block.
        schedule: when asynchronous work is done: "eager" (as soon as it is issued), "lazy" (as
            late as the program allows) or "random" (at any legal moment). A correct kernel gives
            the same bits under all.
        seed: the random schedule's.
        observer: told of what happens, such as a `Trace` or `Statistics`.

    Returns:
        The machine, as it stands at the end.

    Raises:
        LayoutError: not PTX.
        EmulationError: unsupported instructions (before anything runs), an illegal launch, or
            what the kernel does wrong: see `triton_ext.emulator.errors`.
    """
    program = decode(parse_ptx(ptx), kernel)
    memory = GlobalMemory()
    for buffer in buffers:
        array = _array(buffer)
        if array is None:
            raise LaunchError(f"buffers: {type(buffer).__name__} is no array and no tensor")
        memory.register(array, owner=buffer)
    launch = prepare(
        program,
        memory=memory,
        grid=grid,
        block=block,
        args=args,
        cluster=cluster,
        dynamic_smem_bytes=dynamic_smem_bytes,
    )
    machine = Machine(program, launch, Schedule(schedule, seed), observer)
    execute(machine)
    return machine
