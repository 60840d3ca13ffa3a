"""`run_ptx`: launch a kernel of a PTX module on the emulated GPU."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from triton_ext.emulator.decode.constants import constant
from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.reachable import tensor_memory
from triton_ext.emulator.host.scalars import is_number, scalar_bytes
from triton_ext.emulator.host.scheduling import check_schedules, scheduled, start, unexplained
from triton_ext.emulator.host.warned import warn_of
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.schedule.limits import MAX_STEPS, Limits
from triton_ext.emulator.schedule.machine import Machine
from triton_ext.emulator.schedule.observers import Observer
from triton_ext.emulator.state.block import Launch
from triton_ext.emulator.state.checks import DEFAULT_CHECKS, Checks
from triton_ext.emulator.state.memory import Allocation, GlobalMemory, host_bytes
from triton_ext.emulator.state.storage import Storage
from triton_ext.emulator.state.tensor_map_memory import encode
from triton_ext.emulator.state.types import DTYPES
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import TensorMap
from triton_ext.ptx.parse import Variable, parse_ptx

MAX_THREADS = 1024
MAX_GRID = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)
MAX_BLOCK = (1024, 1024, 64)
MAX_LOCAL = 512 << 10
"""CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""
MAX_PARAMETERS = 32764
"""Bytes (PTX ISA, "Kernel Function Parameters")."""
MAX_VARIABLES = 1 << 30
"""Bytes of a module's own variables that the emulator gives: its own limit."""
_POINTER_BYTES = 8


def _triple(name: str, value: Any, most: Sequence[int]) -> tuple[int, int, int]:
    """An integer, or up to three, as x, y and z, none above `most`."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(values) <= 3 or any(
        isinstance(n, (bool, np.bool_)) or not isinstance(n, (int, np.integer)) or n < 1
        for n in values
    ):
        raise LaunchError(f"{name} = {value!r}: must be one to three positive integers")
    x, y, z = (*(int(n) for n in values), 1, 1)[:3]
    if any(n > limit for n, limit in zip((x, y, z), most, strict=True)):
        raise LaunchError(f"{name} = {(x, y, z)}: must be at most {tuple(most)}")
    return x, y, z


def allocation(value: Any, name: str) -> Allocation | None:
    """The memory of a numpy array or a torch CPU tensor, without a copy; None if it is neither.
    Raises LaunchError: its elements do not lie one after the other in the host's memory."""
    if hasattr(value, "untyped_storage"):
        if value.device.type != "cpu":
            why = f"{name}: a tensor on {value.device}; the emulated GPU's memory is the host's"
            raise LaunchError(why)
        try:
            return tensor_memory(value, name) or Allocation(value.data_ptr(), 0, host_bytes(0, 0))
        except (RuntimeError, TypeError) as error:  # a sparse one, say
            raise LaunchError(f"{name}: a tensor without memory of its own ({error})") from None
    if not isinstance(value, np.ndarray):
        return None
    array = np.asarray(value)
    if not array.flags.c_contiguous:
        raise LaunchError(f"{name}: an array must be contiguous; pass .copy() of this one")
    if array.dtype.hasobject or not array.dtype.itemsize:
        raise LaunchError(f"{name}: an array of {array.dtype} has no bytes that a kernel can read")
    data = array.reshape(-1).view(np.uint8)
    address = int(array.__array_interface__["data"][0])
    return Allocation(address, len(data), data, name, bool(array.flags.writeable), value)


def pack_arguments(
    program: Program,
    args: Sequence[Any],
    memory: GlobalMemory,
    names: Sequence[str] = (),
) -> bytes:
    """The bytes of the parameter space.

    Args:
        names: what errors call the arguments; by default, the names of the parameters.

    Raises:
        LaunchError: another number of arguments than parameters, or one that does not fit.
    """
    parameters = program.parameters
    names = names or [symbol.name for symbol in parameters]
    if not isinstance(args, (list, tuple)):
        raise LaunchError(f"args = {args!r}: must be a list, with a value for each parameter")
    if len(args) != len(parameters):
        why = f"{len(args)} arguments for the {len(parameters)} parameters of {program.kernel.name}"
        raise LaunchError(why)
    space = bytearray(program.storage.parameter_bytes)
    for value, symbol, name in zip(args, parameters, names, strict=True):
        variable = symbol.variable
        data = _argument_bytes(value, variable, memory, name)
        if len(data) != variable.bytes:
            why = f"argument {variable.name}: {len(data)} bytes for a parameter of {variable.bytes}"
            raise LaunchError(why)
        space[symbol.offset : symbol.offset + len(data)] = data
    return bytes(space)


def _argument_bytes(value: Any, variable: Variable, memory: GlobalMemory, name: str) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, (TensorMap, Im2colMap)):
        return encode(value)
    if value is None:  # a null pointer
        if variable.bytes != _POINTER_BYTES or variable.type.startswith("f"):
            raise LaunchError(
                f"argument {variable.name} = None, for a parameter of .{variable.type}: must be a"
                " value, as only a pointer can be null"
            )
        return bytes(variable.bytes)
    found = allocation(value, f"argument {name}")
    if found is not None:
        if variable.bytes != _POINTER_BYTES or variable.type.startswith("f"):
            raise LaunchError(f"argument {name}: an array for a parameter of .{variable.type}")
        memory.add(found)
        return struct.pack("<Q", found.start)
    if is_number(value):
        return scalar_bytes(value, variable)
    raise LaunchError(
        f"argument {variable.name}: {type(value).__name__} for a parameter of .{variable.type};"
        " pass an array, a number, bytes or a TensorMap"
    )


_ADDRESS = re.compile(r"(?:generic\()?(?P<name>[A-Za-z_$%][\w$]*)\)?(?:\+(?P<more>-?\d+))?")


def initial_bytes(
    variable: Variable, addresses: Mapping[str, int] | None = None
) -> np.ndarray[Any, Any]:
    """A module variable's memory, with its initializer's values (PTX ISA, "Initializers").

    Args:
        addresses: those of the module's variables, which an initializer may name.

    Raises:
        LaunchError: an initializer that is not understood.
    """
    data = np.zeros(max(16, variable.bytes), np.uint8)
    text = variable.initializer
    if not text:
        return data
    dtype = DTYPES.get(variable.type)
    parts = re.findall(r"[^{},\s]+", re.sub(r"\s*\+\s*", "+", text))
    if dtype is None or len(parts) * dtype.itemsize > variable.bytes:
        raise LaunchError(
            f"variable {variable.name}: {len(parts)} initial values for {variable.bytes} bytes of"
            f" .{variable.type}"
        )
    values = [_initial(part, variable, addresses or {}) for part in parts]
    raw = np.array(values, dtype).view(np.uint8)
    data[: len(raw)] = raw
    return data


def _initial(part: str, variable: Variable, addresses: Mapping[str, int]) -> Any:
    """One value of an initializer: a number, or the address of another variable."""
    named = _ADDRESS.fullmatch(part)
    if named and named["name"] in addresses:
        return addresses[named["name"]] + int(named["more"] or 0)
    try:
        value = constant(part, variable.type)
    except ValueError as error:
        raise LaunchError(f"variable {variable.name}: {error}") from None
    if value is None:
        raise LaunchError(
            f"variable {variable.name}: initializer {part!r} is neither a number nor a variable,"
            " nor a function of the module"
        )
    return value


def prepare(
    program: Program,
    *,
    grid: Any,
    block: Any,
    args: Sequence[Any],
    cluster: Any = None,
    dynamic_smem_bytes: int = 0,
    memory: GlobalMemory | None = None,
    names: Sequence[str] = (),
    checks: Checks = DEFAULT_CHECKS,
    variables: Mapping[str, int] | None = None,
) -> Launch:
    """Check a launch, and lay out its parameters.

    Args:
        names: what errors call the arguments.
        checks: what is a fault.
        variables: the addresses of the module's variables, which lie in `memory`; None to give them
            memory, with their initial values, for this launch alone.

    Raises:
        LaunchError: what the kernel or the GPU does not allow.
    """
    directives, storage = program.kernel.directives, program.storage
    if cluster is None:
        cluster = directives.get("reqnctapercluster")
    in_clusters = cluster is not None
    cluster = cluster if in_clusters else (1, 1, 1)
    grid, block = _triple("grid", grid, MAX_GRID), _triple("block", block, MAX_BLOCK)
    cluster = _triple("cluster", cluster, MAX_GRID)
    threads = math.prod(block)
    if threads > MAX_THREADS:
        raise LaunchError(f"block {block}: a block has at most {MAX_THREADS} threads")
    required = directives.get("reqntid")
    if required and _triple("reqntid", required, MAX_BLOCK) != block:
        raise LaunchError(f"block {block}: the kernel says .reqntid {required}")
    most = directives.get("maxntid")
    if most and threads > math.prod(most):
        raise LaunchError(f"block {block}: the kernel says .maxntid {most}")
    capability = program.target.capability
    if math.prod(cluster) > capability.cluster:
        few = f"has at most {capability.cluster} blocks" if capability.cluster > 1 else "is none"
        raise LaunchError(f"cluster {cluster}: on sm_{capability.number} a cluster {few}")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"grid {grid} is not a multiple of the cluster {cluster}")
    for what, size, limit in (
        ("parameters", storage.parameter_bytes, MAX_PARAMETERS),
        ("local variables of a thread", storage.local_bytes, MAX_LOCAL),
        ("variables of the module", storage.global_bytes, MAX_VARIABLES),
    ):
        if size > limit:
            raise LaunchError(f"the {what} take {size} bytes: at most {limit}")
    if (
        not isinstance(dynamic_smem_bytes, (int, np.integer))
        or dynamic_smem_bytes < 0
        or dynamic_smem_bytes + storage.static_smem_bytes > capability.shared_memory_per_block
    ):
        raise LaunchError(
            f"dynamic_smem_bytes = {dynamic_smem_bytes}: with the {storage.static_smem_bytes}"
            f" static bytes it must be in [0, {capability.shared_memory_per_block}] on"
            f" sm_{capability.number}"
        )
    memory = memory or GlobalMemory()
    memory.released.clear()
    addresses = dict(_fresh(storage, memory) if variables is None else variables)
    parameters = pack_arguments(program, args, memory, names)
    return Launch(
        storage, grid, cluster, block, dynamic_smem_bytes, parameters, addresses, memory,
        checks, in_clusters,
    )  # fmt: skip


def _fresh(storage: Storage, memory: GlobalMemory) -> dict[str, int]:
    """New memory for a kernel's global and constant variables; their addresses."""
    found = [each.variable for each in storage.symbols.values() if each.space == "global"]
    data = {each.name: np.zeros(max(16, each.bytes), np.uint8) for each in found}
    addresses = {
        name: memory.register(each, name=f"variable {name}") for name, each in data.items()
    }
    functions = {s.name: s.offset for s in storage.symbols.values() if s.space == "function"}
    for each in found:
        data[each.name][:] = initial_bytes(each, addresses | functions)
    return addresses


def register_buffers(memory: GlobalMemory, buffers: Any) -> None:
    """Let a launch reach arrays and tensors that are no arguments. Raises LaunchError: not a list
    of them."""
    if not isinstance(buffers, (list, tuple)):
        raise LaunchError(f"buffers = {buffers!r}: must be a list of arrays and tensors")
    for number, buffer in enumerate(buffers):
        found = allocation(buffer, f"buffers[{number}]")
        if found is None:
            raise LaunchError(f"buffers: {type(buffer).__name__} is no array and no tensor")
        memory.add(found)


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
    schedule: str | Path = "eager",
    seed: int = 0,
    observer: Observer | None = None,
    max_steps: int = MAX_STEPS,
    timeout: float | None = None,
    check_layouts: bool = True,
    check_races: bool = True,
    strict: bool = False,
    check_unread: bool = False,
    schedules: str | None = None,
    explain_wait: str | None = None,
) -> Machine:
    """Run a kernel of a PTX module on the emulated GPU, until all of its blocks are done.

    Args:
        ptx: the text of the module, from any compiler; its ``.target`` must be one of
            `triton_ext.hardware.architecture.CAPABILITIES`, with a suffix where it needs one.
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
            the same bits under all. Or the path of a file: the schedule of a witness.
        seed: the random schedule's.
        observer: told of what happens, such as a `Trace` or `Statistics`.
        max_steps: instructions after which the launch ends in `LimitReached`, each for all threads
            of a block that are at it together; on each core, if the blocks run on several.
        timeout: seconds after which it does, of the whole launch (``math.inf``: never); None: after
            ten minutes in which no block has ended.
        check_layouts: a tensor core or a TMA store that reads what a TMA load has written must read
            it in that layout (`LayoutFault`). Off for kernels that mean to read another one, such
            as weights that lie swizzled in global memory and are copied without a swizzle.
        check_races: two accesses of a byte of global memory, of which one writes, must be ordered
            (`SynchronizationFault`): within a block by barriers, between blocks by flags.
        strict: what is undefined by the letter, and relied on by published kernels, is a fault:
            ``docs/reference/undefined.md`` lists it. Without it such a kernel is run as hardware
            runs it, and `UndefinedBehaviour` warns of it once.
        check_unread: what TMA and bulk copies bring into shared memory must be read before another
            copy overwrites it (`UnreadCopy`), and the sums of a tcgen05.mma before another one does
            (`UnreadSums`). Off by default: kernels load more than they use.
        schedules: "all": say of every schedule what this run tells: `verdict` of what is returned
            is a `triton_ext.emulator.clients.schedules.verdict.Verdict`. Needs the eager schedule.
        explain_wait: a line, ``kernel.py:31`` or ``31`` of the PTX: with schedules="all", say what
            its waits tell, and which waits and fences of the kernel are redundant
            (`Verdict.explained`).

    Returns:
        The machine, as it stands at the end.

    Raises:
        LayoutError: not PTX.
        EmulationError: unsupported instructions (before anything runs), an illegal launch, or
            what the kernel does wrong: see `triton_ext.emulator.errors`.
    """
    limits = Limits(max_steps, timeout)
    check_schedules(schedule, schedules, {}, explain_wait)
    if kernel is not None and not isinstance(kernel, str):
        raise LaunchError(f"kernel = {kernel!r}: must be the name of an entry, or None")
    program = decode(parse_ptx(ptx), kernel)
    memory = GlobalMemory()
    register_buffers(memory, buffers)
    launch = prepare(
        program,
        memory=memory,
        grid=grid,
        block=block,
        args=args,
        cluster=cluster,
        dynamic_smem_bytes=dynamic_smem_bytes,
        checks=Checks(check_layouts, check_races, unread=check_unread, strict=strict),
    )
    machine = Machine(program, launch, scheduled(schedule, seed, schedules), observer, limits)
    try:
        start(machine, every=schedules == "all", explain_wait=explain_wait)
    finally:
        warn_of(machine.taken.values())
    if explain_wait is not None and (missing := unexplained([machine.verdict], explain_wait)):
        raise LaunchError(missing)
    return machine
