"""Modules that a program has loaded, their kernels, and what is asked of these."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from triton_ext.emulator.decode.program import Program
from triton_ext.emulator.host.cuda import attributes
from triton_ext.emulator.host.cuda.heap import Heap
from triton_ext.emulator.host.cuda.modules import Loaded, load
from triton_ext.emulator.host.cuda.status import (
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_FOUND,
    CudaError,
    Results,
)
from triton_ext.emulator.host.cuda.streams import Streams
from triton_ext.emulator.host.gpu import EmulatedGpu
from triton_ext.emulator.instructions import decode
from triton_ext.hardware.architecture import RESERVED_SHARED_MEMORY, resident_clusters

DYNAMIC = 8
"""``CUfunction_attribute``: bytes of dynamic shared memory, at most."""


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


class Modules(Streams):
    """The driver's functions for modules; a part of `Device`."""

    def __init__(self, gpu: EmulatedGpu, heap: Heap) -> None:
        super().__init__(gpu, heap)
        self._modules: dict[int, Loaded] = {}
        self._functions: dict[int, Function] = {}

    def load(self, image: bytes, size: int) -> Results:
        handle = next(self._handles)
        self._modules[handle] = load(image, self.gpu.arch, self.heap)
        return (handle,)

    def _module(self, handle: int) -> Loaded:
        if handle not in self._modules:
            raise CudaError(INVALID_HANDLE)
        return self._modules[handle]

    def cuModuleUnload(self, module: int) -> Results:
        for room in self._module(module).variables.values():
            self.heap.free(room.start)
        del self._modules[module]
        self._functions = {n: f for n, f in self._functions.items() if f.module != module}
        return ()

    cuLibraryUnload = cuModuleUnload

    def cuModuleGetFunction(self, module: int, name: str) -> Results:
        loaded = self._module(module)
        if name not in loaded.kernels:
            raise CudaError(NOT_FOUND)
        for handle, each in self._functions.items():
            if (each.module, each.name) == (module, name):
                return (handle,)
        handle = next(self._handles)
        self._functions[handle] = Function(name, module, loaded)
        return (handle,)

    cuLibraryGetKernel = cuModuleGetFunction

    def cuModuleGetFunctionCount(self, module: int) -> Results:
        return (len(self._module(module).kernels),)

    cuLibraryGetKernelCount = cuModuleGetFunctionCount

    def kernels(self, module: int, most: int) -> Results:
        names = self._module(module).kernels[:most]
        handles = [self.cuModuleGetFunction(module, name)[0] for name in names]
        return (struct.pack(f"<{len(handles)}Q", *handles),)

    def cuModuleGetGlobal(self, module: int, name: str) -> Results:
        room = self._module(module).variables.get(name)
        if room is None:
            raise CudaError(NOT_FOUND)
        return room.start, room.size

    cuLibraryGetGlobal = cuLibraryGetManaged = cuModuleGetGlobal

    def cuLibraryGetModule(self, library: int) -> Results:
        self._module(library)
        return (library,)


class Kernels(Modules):
    """The driver's functions for kernels; a part of `Device`."""

    def _function(self, handle: int) -> Function:
        if handle not in self._functions:
            raise CudaError(INVALID_HANDLE)
        return self._functions[handle]

    def cuKernelGetFunction(self, kernel: int) -> Results:
        self._function(kernel)
        return (kernel,)

    def cuKernelGetLibrary(self, kernel: int) -> Results:
        return (self._function(kernel).module,)

    cuFuncGetModule = cuKernelGetLibrary

    def cuKernelGetName(self, kernel: int) -> Results:
        return (self._function(kernel).name,)

    cuFuncGetName = cuKernelGetName

    def cuFuncGetParamInfo(self, function: int, index: int) -> Results:
        parameters = self._function(function).program.parameters
        if index >= len(parameters):
            raise CudaError(INVALID_VALUE)
        return parameters[index].offset, parameters[index].variable.bytes

    cuKernelGetParamInfo = cuFuncGetParamInfo

    def layout(self, function: int) -> Results:
        program = self._function(function).program
        pairs = [(each.offset, each.variable.bytes) for each in program.parameters]
        words = [len(pairs), program.storage.parameter_bytes, *(n for pair in pairs for n in pair)]
        return (struct.pack(f"<{len(words)}I", *words),)

    def cuFuncGetAttribute(self, attribute: int, function: int, device: int = 0) -> Results:
        found = self._function(function)
        value = attributes.function_attribute(attribute, found.program, found.given)
        if value is None:
            raise CudaError(INVALID_VALUE)
        return (value,)

    cuKernelGetAttribute = cuFuncGetAttribute

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> Results:
        found = self._function(function)
        if attribute == DYNAMIC:
            static = found.program.storage.static_smem_bytes
            most = attributes.device_attribute(97, self.gpu.arch) or 0
            if not 0 <= value <= most - static:
                why = (
                    f"{value} bytes of dynamic shared memory: with the {static} static ones at most"
                )
                raise CudaError(INVALID_VALUE, f"{why} {most}")
        found.given[attribute] = value
        return ()

    def cuKernelSetAttribute(self, attribute: int, value: int, kernel: int, _: int) -> Results:
        return self.cuFuncSetAttribute(kernel, attribute, value)

    def occupancy(self, function: int, threads: int, dynamic: int, flags: int = 0) -> Results:
        return (attributes.resident_blocks(self._function(function).program, threads, dynamic),)

    cuOccupancyMaxActiveBlocksPerMultiprocessor = occupancy
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags = occupancy

    def cuOccupancyAvailableDynamicSMemPerBlock(
        self, function: int, blocks: int, threads: int
    ) -> Results:
        each = self.gpu.capability.shared_memory_per_sm // max(blocks, 1) - RESERVED_SHARED_MEMORY
        return (max(0, each - self._function(function).program.storage.static_smem_bytes),)

    def clusters(self, function: int, blocks: int) -> Results:
        return (resident_clusters(self.gpu.capability.multiprocessors, blocks),)
