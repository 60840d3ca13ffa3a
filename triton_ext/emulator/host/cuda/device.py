"""What the emulated GPU answers to a program that calls CUDA's driver: a method for each function.

Work is done when the call that asks for it returns: streams and events order nothing that is not in
order already. A method gets the arguments in the order of `interface.FUNCTIONS`, and returns the
results in theirs.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.counting import Event
from triton_ext.emulator.host.cuda import attributes
from triton_ext.emulator.host.cuda.answers import ANSWERS
from triton_ext.emulator.host.cuda.heap import DEVICE, HOST, MANAGED, SIZE, Heap, Room
from triton_ext.emulator.host.cuda.mappings import VirtualMemory
from triton_ext.emulator.host.cuda.modules import Loaded, load
from triton_ext.emulator.host.cuda.reached import ProgramMemory
from triton_ext.emulator.host.cuda.status import CudaError
from triton_ext.emulator.host.gpu import EmulatedGpu
from triton_ext.emulator.instructions import decode
from triton_ext.emulator.state.tensor_map_memory import encode
from triton_ext.errors import LayoutError
from triton_ext.hardware.architecture import (
    RESERVED_SHARED_MEMORY,
    resident_clusters,
)
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import (
    DataType,
    Interleave,
    L2Promotion,
    OobFill,
    TensorMap,
    TensorSwizzle,
)

_INVALID_VALUE, _INVALID_DEVICE, _INVALID_HANDLE, _NOT_FOUND = 1, 101, 400, 500
_TOO_LARGE, _NOT_SUPPORTED, _INVALID_CLUSTER = 720, 801, 912
_PORTABLE_CLUSTER = 8
"""Blocks of a cluster without CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""
_DYNAMIC, _NON_PORTABLE = 8, 14
"""``CUfunction_attribute``."""
_LAUNCH = struct.Struct("<3I3II3II")


@dataclass
class Function:
    """A kernel of a module that the program has asked for."""

    name: str
    module: int
    loaded: Loaded
    given: dict[int, int] = field(default_factory=dict)
    _program: Program | None = None

    @property
    def program(self) -> Program:
        """The kernel, decoded when it is first needed."""
        if self._program is None:
            self._program = decode(self.loaded.module, self.name)
        return self._program


class Device(VirtualMemory):
    """The GPU, for one process.

    Args:
        gpu: what kernels run on.
    """

    def __init__(self, gpu: EmulatedGpu) -> None:
        self.gpu = gpu
        super().__init__(Heap(marked=gpu.checks.empty))
        self._modules: dict[int, Loaded] = {}
        self._functions: dict[int, Function] = {}
        self._streams: dict[int, tuple[int, int]] = {}
        self._events: dict[int, Event] = {}
        self._meeting: Room | None = None
        self._handles = iter(range(0x1000, 1 << 62, 16))
        self.printed = io.StringIO()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in ANSWERS:
            raise AttributeError(name)
        return lambda *_: ANSWERS[name]

    # ------------------------------------------------------------------- devices

    def _ordinal(self, device: int) -> None:
        if device:
            raise CudaError(_INVALID_DEVICE)

    def cuDeviceGet(self, ordinal: int) -> Sequence[Any]:
        self._ordinal(ordinal)
        return (0,)

    @property
    def _name(self) -> str:
        """Programs look a GPU up by its name: it is that of one of its kind."""
        return f"NVIDIA {self.gpu.capability.gpu} (emulated sm_{self.gpu.arch})"

    def cuDeviceGetName(self, length: int, device: int) -> Sequence[Any]:
        self._ordinal(device)
        return (self._name[: max(length - 1, 0)],)

    def nvmlDeviceGetName(self, device: int, length: int) -> Sequence[Any]:
        return (self._name[: max(length - 1, 0)],)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> Sequence[Any]:
        self._ordinal(device)
        value = attributes.device_attribute(attribute, self.gpu.arch)
        if value is None:
            raise CudaError(_INVALID_VALUE)
        return (value,)

    def cuDeviceComputeCapability(self, device: int) -> Sequence[Any]:
        return divmod(self.gpu.arch, 10)

    nvmlDeviceGetCudaComputeCapability = cuDeviceComputeCapability

    def cuMemGetInfo(self) -> Sequence[Any]:
        return SIZE - self.heap.used, SIZE

    # ------------------------------------------------------------------- modules

    def load(self, image: bytes, size: int) -> Sequence[Any]:
        handle = next(self._handles)
        self._modules[handle] = load(image, self.gpu.arch, self.heap)
        return (handle,)

    def _module(self, handle: int) -> Loaded:
        if handle not in self._modules:
            raise CudaError(_INVALID_HANDLE)
        return self._modules[handle]

    def cuModuleUnload(self, module: int) -> Sequence[Any]:
        for room in self._module(module).variables.values():
            self.heap.free(room.start)
        del self._modules[module]
        self._functions = {n: f for n, f in self._functions.items() if f.module != module}
        return ()

    cuLibraryUnload = cuModuleUnload

    def cuModuleGetFunction(self, module: int, name: str) -> Sequence[Any]:
        loaded = self._module(module)
        if name not in loaded.kernels:
            raise CudaError(_NOT_FOUND)
        for handle, each in self._functions.items():
            if (each.module, each.name) == (module, name):
                return (handle,)
        handle = next(self._handles)
        self._functions[handle] = Function(name, module, loaded)
        return (handle,)

    cuLibraryGetKernel = cuModuleGetFunction

    def cuModuleGetFunctionCount(self, module: int) -> Sequence[Any]:
        return (len(self._module(module).kernels),)

    cuLibraryGetKernelCount = cuModuleGetFunctionCount

    def kernels(self, module: int, most: int) -> Sequence[Any]:
        names = self._module(module).kernels[:most]
        handles = [self.cuModuleGetFunction(module, name)[0] for name in names]
        return (struct.pack(f"<{len(handles)}Q", *handles),)

    def cuModuleGetGlobal(self, module: int, name: str) -> Sequence[Any]:
        room = self._module(module).variables.get(name)
        if room is None:
            raise CudaError(_NOT_FOUND)
        return room.start, room.size

    cuLibraryGetGlobal = cuLibraryGetManaged = cuModuleGetGlobal

    def cuLibraryGetModule(self, library: int) -> Sequence[Any]:
        self._module(library)
        return (library,)

    # ------------------------------------------------------------------- kernels

    def _function(self, handle: int) -> Function:
        if handle not in self._functions:
            raise CudaError(_INVALID_HANDLE)
        return self._functions[handle]

    def cuKernelGetFunction(self, kernel: int) -> Sequence[Any]:
        self._function(kernel)
        return (kernel,)

    def cuKernelGetLibrary(self, kernel: int) -> Sequence[Any]:
        return (self._function(kernel).module,)

    cuFuncGetModule = cuKernelGetLibrary

    def cuKernelGetName(self, kernel: int) -> Sequence[Any]:
        return (self._function(kernel).name,)

    cuFuncGetName = cuKernelGetName

    def cuFuncGetParamInfo(self, function: int, index: int) -> Sequence[Any]:
        parameters = self._function(function).program.parameters
        if index >= len(parameters):
            raise CudaError(_INVALID_VALUE)
        return parameters[index].offset, parameters[index].variable.bytes

    cuKernelGetParamInfo = cuFuncGetParamInfo

    def layout(self, function: int) -> Sequence[Any]:
        program = self._function(function).program
        pairs = [(each.offset, each.variable.bytes) for each in program.parameters]
        words = [len(pairs), program.storage.parameter_bytes, *(n for pair in pairs for n in pair)]
        return (struct.pack(f"<{len(words)}I", *words),)

    def cuFuncGetAttribute(self, attribute: int, function: int) -> Sequence[Any]:
        found = self._function(function)
        value = attributes.function_attribute(attribute, found.program, found.given)
        if value is None:
            raise CudaError(_INVALID_VALUE)
        return (value,)

    def cuKernelGetAttribute(self, attribute: int, kernel: int, device: int) -> Sequence[Any]:
        return self.cuFuncGetAttribute(attribute, kernel)

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> Sequence[Any]:
        found = self._function(function)
        if attribute == _DYNAMIC:
            static = found.program.storage.static_smem_bytes
            most = attributes.device_attribute(97, self.gpu.arch) or 0
            if not 0 <= value <= most - static:
                why = (
                    f"{value} bytes of dynamic shared memory: with the {static} static ones at most"
                )
                raise CudaError(_INVALID_VALUE, f"{why} {most}")
        found.given[attribute] = value
        return ()

    def cuKernelSetAttribute(
        self, attribute: int, value: int, kernel: int, device: int
    ) -> Sequence[Any]:
        return self.cuFuncSetAttribute(kernel, attribute, value)

    def occupancy(self, function: int, threads: int, dynamic: int, flags: int = 0) -> Sequence[Any]:
        return (attributes.resident_blocks(self._function(function).program, threads, dynamic),)

    cuOccupancyMaxActiveBlocksPerMultiprocessor = occupancy
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = occupancy

    def cuOccupancyAvailableDynamicSMemPerBlock(
        self, function: int, blocks: int, threads: int
    ) -> Sequence[Any]:
        each = self.gpu.capability.shared_memory_per_sm // max(blocks, 1) - RESERVED_SHARED_MEMORY
        return (max(0, each - self._function(function).program.storage.static_smem_bytes),)

    def clusters(self, function: int, blocks: int) -> Sequence[Any]:
        return (resident_clusters(self.gpu.capability.multiprocessors, blocks),)

    def launch(self, function: int, configuration: bytes, parameters: bytes) -> Sequence[Any]:
        """Run a kernel to its end; what it prints is kept in `printed`."""
        found = self._function(function)
        program = found.program
        numbers = _LAUNCH.unpack(configuration)
        grid, block, dynamic, cluster = numbers[:3], numbers[3:6], numbers[6], numbers[7:10]
        cooperative = bool(numbers[10])
        self._allowed(function, dynamic, cluster)
        values = [
            parameters[each.offset : each.offset + each.variable.bytes]
            for each in program.parameters
        ]
        variables = found.loaded.variables
        rooms = [*variables.values(), *self.heap.pointed_at(parameters)]
        memory = ProgramMemory(self.heap, rooms)
        if cooperative:
            self._fits(found, math.prod(grid), math.prod(block), dynamic)
            memory.workspace = self._workspace(memory)
        try:
            with contextlib.redirect_stdout(self.printed):
                self.gpu.launch(
                    program, grid=grid, block=block, cluster=cluster if any(cluster) else None,
                    args=values, dynamic_smem_bytes=dynamic, memory=memory,
                    names=[each.name for each in program.parameters],
                    variables={name: room.start for name, room in variables.items()},
                )  # fmt: skip
        except LaunchError as error:
            raise CudaError(_INVALID_VALUE, f"{found.name}: {error}") from None
        return ()

    def _fits(self, function: Function, blocks: int, threads: int, dynamic: int) -> None:
        """Raise CudaError if blocks that wait for each other are not all resident."""
        each = attributes.resident_blocks(function.program, threads, dynamic)
        most = each * self.gpu.capability.multiprocessors
        if blocks > most:
            why = f"{function.name}: a cooperative launch of {blocks} blocks, and {most} fit"
            raise CudaError(_TOO_LARGE, why)

    def _workspace(self, memory: ProgramMemory) -> int:
        """Memory in which the blocks of a cooperative launch meet: its size, and a counter."""
        if self._meeting is None:
            self._meeting = self.heap.allocate(8, name="the grid's barrier")
        self.heap.data(self._meeting).view("<u4")[:] = 8, 0
        memory.add(self.heap.allocation(self._meeting))
        return self._meeting.start

    def _allowed(self, handle: int, dynamic: int, cluster: Sequence[int]) -> None:
        """Raise CudaError for what a kernel must have asked for."""
        function = self._function(handle)
        (most,) = self.cuFuncGetAttribute(_DYNAMIC, handle)
        if dynamic > most:
            raise CudaError(
                _INVALID_VALUE,
                f"{function.name}: {dynamic} bytes of dynamic shared memory, and {most} are"
                " allowed: set cudaFuncAttributeMaxDynamicSharedMemorySize",
            )
        if math.prod(cluster) > _PORTABLE_CLUSTER and not function.given.get(_NON_PORTABLE):
            raise CudaError(
                _INVALID_CLUSTER,
                f"{function.name}: a cluster of {math.prod(cluster)} blocks: more than"
                f" {_PORTABLE_CLUSTER} need cudaFuncAttributeNonPortableClusterSizeAllowed",
            )

    # -------------------------------------------------------------------- memory

    def _allocated(self, size: int, kind: str) -> Sequence[Any]:
        if not size:
            raise CudaError(_INVALID_VALUE)
        return (self.heap.allocate(size, kind).start,)

    def cuMemAlloc(self, size: int) -> Sequence[Any]:
        return self._allocated(size, DEVICE)

    def cuMemAllocAsync(self, size: int, stream: int) -> Sequence[Any]:
        return self._allocated(size, DEVICE) if size else (0,)

    def cuMemAllocFromPoolAsync(self, size: int, pool: int, stream: int) -> Sequence[Any]:
        return self.cuMemAllocAsync(size, stream)

    def cuMemAllocManaged(self, size: int, flags: int) -> Sequence[Any]:
        return self._allocated(size, MANAGED)

    def cuMemAllocHost(self, size: int) -> Sequence[Any]:
        return self._allocated(size, HOST)

    def cuMemHostAlloc(self, size: int, flags: int) -> Sequence[Any]:
        return self._allocated(size, HOST)

    def cuMemAllocPitch(self, width: int, height: int, element: int) -> Sequence[Any]:
        pitch = -(-width // 512) * 512
        return self._allocated(pitch * height, DEVICE)[0], pitch

    def cuMemFree(self, address: int) -> Sequence[Any]:
        if self.is_mapped(address):
            raise CudaError(_INVALID_VALUE, f"{address:#x} was mapped: cuMemUnmap")
        if address:
            self.heap.free(address)
        return ()

    cuMemFreeHost = cuMemFree

    def cuMemFreeAsync(self, address: int, stream: int) -> Sequence[Any]:
        return self.cuMemFree(address)

    def register(self, address: int, size: int) -> Sequence[Any]:
        return (self.heap.register(address, size).offset,)

    def unregister(self, address: int) -> Sequence[Any]:
        return (self.heap.free(address).size,)

    def _room(self, address: int) -> Room:
        room = self.heap.find(address)
        if room is None:
            raise CudaError(_INVALID_VALUE)
        return room

    def cuMemGetAddressRange(self, address: int) -> Sequence[Any]:
        room = self._room(address)
        return room.start, room.size

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Sequence[Any]:
        self._room(address)
        return (address,)

    def transfer(self, *numbers: int) -> Sequence[Any]:
        """Whether rows of bytes may be copied; or filled, if they come from address 0."""
        width, height, depth = numbers[6:]
        for what, end in (("a write", numbers[:3]), ("a read", numbers[3:6])):
            address, row, plane = end
            if address or what == "a write":
                whole = (depth - 1) * plane + (height - 1) * row + width
                self.heap.check(address, whole, what)
        return ()

    def pointer(self, attribute: int, address: int) -> Sequence[Any]:
        room = self._room(address)
        host = room.kind == HOST
        values = {
            2: struct.pack("<I", 1 if host else 2), 3: struct.pack("<Q", address),
            6: b"\1", 7: struct.pack("<Q", room.offset + 1),
            8: struct.pack("<?", room.kind == MANAGED), 9: struct.pack("<i", 0),
            10: b"\0", 11: struct.pack("<Q", room.start), 12: struct.pack("<Q", room.size),
            13: b"\1", 14: struct.pack("<Q", 0), 15: b"\0", 16: struct.pack("<I", 3),
            17: struct.pack("<Q", 0),
        }  # fmt: skip
        if room.kind != DEVICE:
            values[4] = struct.pack("<Q", address)
        if attribute not in values:
            raise CudaError(_INVALID_VALUE)
        return (values[attribute],)

    def cuMemPoolGetAttribute(self, pool: int, attribute: int) -> Sequence[Any]:
        return (attributes.pool_attribute(attribute, self.heap.used),)

    # --------------------------------------------------------- streams and events

    def cuStreamCreate(self, flags: int) -> Sequence[Any]:
        return self.cuStreamCreateWithPriority(flags, 0)

    def cuStreamCreateWithPriority(self, flags: int, priority: int) -> Sequence[Any]:
        handle = next(self._handles)
        self._streams[handle] = flags, priority
        return (handle,)

    def cuStreamDestroy(self, stream: int) -> Sequence[Any]:
        if self._streams.pop(stream, None) is None:
            raise CudaError(_INVALID_HANDLE)
        return ()

    def cuStreamGetFlags(self, stream: int) -> Sequence[Any]:
        return (self._streams.get(stream, (0, 0))[0],)

    def cuStreamGetPriority(self, stream: int) -> Sequence[Any]:
        return (self._streams.get(stream, (0, 0))[1],)

    def cuStreamGetId(self, stream: int) -> Sequence[Any]:
        return (stream,)

    def _write(self, address: int, value: int, size: int) -> Sequence[Any]:
        self.heap.check(address, size, "a write")
        room = self._room(address)
        at = room.offset + address - room.start
        data = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        self.heap.bytes[at : at + size] = list(data)
        return ()

    def _wait(self, address: int, value: int, flags: int, size: int) -> Sequence[Any]:
        """All that could write the value has been done: it is there, or never comes."""
        room = self._room(address)
        at = room.offset + address - room.start
        found = int.from_bytes(self.heap.bytes[at : at + size].tobytes(), "little")
        most = (1 << 8 * size) - 1
        distance = (found - value) & most
        met = (distance <= most >> 1, found == value & most, bool(found & value),
               bool(~(found | value) & most))[flags & 3]  # fmt: skip
        if not met:
            raise CudaError(
                _NOT_SUPPORTED, f"{address:#x} holds {found}, and nobody can write it now"
            )
        return ()

    def cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> Any:
        return self._wait(address, value, flags, 4)

    def cuStreamWaitValue64(self, stream: int, address: int, value: int, flags: int) -> Any:
        return self._wait(address, value, flags, 8)

    def cuStreamWriteValue32(self, stream: int, address: int, value: int, flags: int) -> Any:
        return self._write(address, value, 4)

    def cuStreamWriteValue64(self, stream: int, address: int, value: int, flags: int) -> Any:
        return self._write(address, value, 8)

    def _event(self, handle: int) -> Event:
        if handle not in self._events:
            raise CudaError(_INVALID_HANDLE)
        return self._events[handle]

    def cuEventCreate(self, flags: int) -> Sequence[Any]:
        handle = next(self._handles)
        self._events[handle] = Event(self.gpu)
        return (handle,)

    def cuEventDestroy(self, event: int) -> Sequence[Any]:
        self._event(event)
        del self._events[event]
        return ()

    def cuEventRecord(self, event: int, stream: int, flags: int = 0) -> Sequence[Any]:
        self._event(event).record()
        return ()

    cuEventRecordWithFlags = cuEventRecord

    def cuEventSynchronize(self, event: int) -> Sequence[Any]:
        self._event(event)
        return ()

    cuEventQuery = cuEventSynchronize

    def cuEventElapsedTime(self, begin: int, end: int) -> Sequence[Any]:
        return (struct.pack("<f", self._event(begin).elapsed_time(self._event(end))),)

    # --------------------------------------------------------------- tensor maps

    def cuTensorMapEncodeTiled(self, kind: int, rank: int, address: int, *rest: Any) -> Any:
        dims, strides, box, steps, interleave, swizzle, promotion, fill = rest
        made = _tensor_map(
            kind, address, _words(dims, 8), _words(strides, 8), _words(box, 4), _words(steps, 4),
            (interleave, swizzle, promotion, fill),
        )  # fmt: skip
        return (encode(made),)

    def cuTensorMapEncodeIm2col(self, kind: int, rank: int, address: int, *rest: Any) -> Any:
        dims, strides, lower, upper, channels, pixels, steps, *modes = rest
        tensor = _tensor_map(
            kind, address, _words(dims, 8), _words(strides, 8), (channels, *(1,) * (rank - 1)),
            _words(steps, 4), modes,
        )  # fmt: skip
        low, high = (
            tuple(n - (1 << 32) * (n >> 31) for n in _words(each, 4)) for each in (lower, upper)
        )
        try:
            return (encode(Im2colMap(tensor, low, high, pixels)),)
        except LayoutError as error:
            raise CudaError(_INVALID_VALUE, str(error)) from None


def _words(data: bytes | None, size: int) -> tuple[int, ...]:
    if data is None:
        return ()
    return struct.unpack(f"<{len(data) // size}{'Q' if size == 8 else 'I'}", data)


def _tensor_map(
    kind: int,
    address: int,
    dims: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    steps: tuple[int, ...],
    modes: Sequence[int],
) -> TensorMap:
    interleave, swizzle, promotion, fill = modes
    try:
        return TensorMap(
            DataType(kind), dims, strides, box, steps, Interleave(interleave),
            TensorSwizzle(swizzle), L2Promotion(promotion), OobFill(fill), address,
        )  # fmt: skip
    except (LayoutError, ValueError) as error:
        raise CudaError(_INVALID_VALUE, str(error)) from None
