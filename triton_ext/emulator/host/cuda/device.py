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
from typing import Any

from triton_ext.emulator.errors import LaunchError
from triton_ext.emulator.host.cuda import attributes
from triton_ext.emulator.host.cuda.answers import ANSWERS
from triton_ext.emulator.host.cuda.heap import Heap, Room
from triton_ext.emulator.host.cuda.kernels import DYNAMIC, Function, Kernels
from triton_ext.emulator.host.cuda.reached import ProgramMemory
from triton_ext.emulator.host.cuda.status import (
    INVALID_CLUSTER,
    INVALID_DEVICE,
    INVALID_VALUE,
    TOO_LARGE,
    CudaError,
    Results,
)
from triton_ext.emulator.host.gpu import EmulatedGpu
from triton_ext.emulator.state.tensor_map_memory import encode
from triton_ext.errors import LayoutError
from triton_ext.hardware.im2col import Im2colMap
from triton_ext.hardware.tensor_map import (
    DataType,
    Interleave,
    L2Promotion,
    OobFill,
    TensorMap,
    TensorSwizzle,
)

_PORTABLE_CLUSTER = 8
"""Blocks of a cluster without CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""
_NON_PORTABLE = 14
"""``CUfunction_attribute``."""
_LAUNCH = struct.Struct("<3I3II3II")


class Device(Kernels):
    """The GPU, for one process.

    Args:
        gpu: what kernels run on.
    """

    def __init__(self, gpu: EmulatedGpu) -> None:
        super().__init__(gpu, Heap(marked=gpu.checks.empty))
        self._meeting: Room | None = None
        self.printed = io.StringIO()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in ANSWERS:
            raise AttributeError(name)
        return lambda *_: ANSWERS[name]

    # ------------------------------------------------------------------- devices

    def _ordinal(self, device: int) -> None:
        if device:
            raise CudaError(INVALID_DEVICE)

    def cuDeviceGet(self, ordinal: int) -> Results:
        self._ordinal(ordinal)
        return (0,)

    def cuDeviceGetName(self, length: int, device: int) -> Results:
        """Programs look a GPU up by its name: it is that of one of its kind."""
        self._ordinal(device)
        name = f"NVIDIA {self.gpu.capability.gpu} (emulated sm_{self.gpu.arch})"
        return (name[: max(length - 1, 0)],)

    def nvmlDeviceGetName(self, device: int, length: int) -> Results:
        return self.cuDeviceGetName(length, 0)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> Results:
        self._ordinal(device)
        value = attributes.device_attribute(attribute, self.gpu.arch)
        if value is None:
            raise CudaError(INVALID_VALUE)
        return (value,)

    def cuDeviceComputeCapability(self, device: int) -> Results:
        return divmod(self.gpu.arch, 10)

    nvmlDeviceGetCudaComputeCapability = cuDeviceComputeCapability

    def launch(self, function: int, configuration: bytes, parameters: bytes) -> Results:
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
        rooms = [*variables.values(), *self.heap.rooms.pointed_at(parameters)]
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
            raise CudaError(INVALID_VALUE, f"{found.name}: {error}") from None
        return ()

    def _fits(self, function: Function, blocks: int, threads: int, dynamic: int) -> None:
        """Raise CudaError if blocks that wait for each other are not all resident."""
        each = attributes.resident_blocks(function.program, threads, dynamic)
        most = each * self.gpu.capability.multiprocessors
        if blocks > most:
            why = f"{function.name}: a cooperative launch of {blocks} blocks, and {most} fit"
            raise CudaError(TOO_LARGE, why)

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
        (most,) = self.cuFuncGetAttribute(DYNAMIC, handle)
        if dynamic > most:
            raise CudaError(
                INVALID_VALUE,
                f"{function.name}: {dynamic} bytes of dynamic shared memory, and {most} are"
                " allowed: set cudaFuncAttributeMaxDynamicSharedMemorySize",
            )
        if math.prod(cluster) > _PORTABLE_CLUSTER and not function.given.get(_NON_PORTABLE):
            raise CudaError(
                INVALID_CLUSTER,
                f"{function.name}: a cluster of {math.prod(cluster)} blocks: more than"
                f" {_PORTABLE_CLUSTER} need cudaFuncAttributeNonPortableClusterSizeAllowed",
            )

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
            raise CudaError(INVALID_VALUE, str(error)) from None


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
        raise CudaError(INVALID_VALUE, str(error)) from None
