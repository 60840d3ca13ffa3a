"""What the functions of CUDA's driver return when they fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Results = Sequence[Any]
"""What a function returns besides its status, in the order of `interface.FUNCTIONS`."""
INVALID_VALUE, INVALID_DEVICE, INVALID_HANDLE, NOT_FOUND = 1, 101, 400, 500
TOO_LARGE, NOT_SUPPORTED, INVALID_CLUSTER = 720, 801, 912
_TABLE = """
1 INVALID_VALUE InvalidValue invalid argument
2 OUT_OF_MEMORY MemoryAllocation out of memory
3 NOT_INITIALIZED InitializationError initialization error
4 DEINITIALIZED CudartUnloading driver shutting down
100 NO_DEVICE NoDevice no CUDA-capable device is detected
101 INVALID_DEVICE InvalidDevice invalid device ordinal
200 INVALID_IMAGE InvalidKernelImage device kernel image is invalid
201 INVALID_CONTEXT DeviceUninitialized invalid device context
209 NO_BINARY_FOR_GPU NoKernelImageForDevice no kernel image is available for execution on the\
 device
218 INVALID_PTX InvalidPtx a PTX JIT compilation failed
301 FILE_NOT_FOUND FileNotFound file not found
304 OPERATING_SYSTEM OperatingSystem OS call failed or operation not supported on this OS
400 INVALID_HANDLE InvalidResourceHandle invalid resource handle
500 NOT_FOUND SymbolNotFound named symbol not found
600 NOT_READY NotReady device not ready
700 ILLEGAL_ADDRESS IllegalAddress an illegal memory access was encountered
701 LAUNCH_OUT_OF_RESOURCES LaunchOutOfResources too many resources requested for launch
702 LAUNCH_TIMEOUT LaunchTimeout the launch timed out and was terminated
719 LAUNCH_FAILED LaunchFailure unspecified launch failure
720 COOPERATIVE_LAUNCH_TOO_LARGE CooperativeLaunchTooLarge too many blocks in cooperative launch
801 NOT_SUPPORTED NotSupported operation not supported
900 STREAM_CAPTURE_UNSUPPORTED StreamCaptureUnsupported operation not permitted when stream is\
 capturing
910 GRAPH_EXEC_UPDATE_FAILURE GraphExecUpdateFailure the graph update was not performed because it\
 included changes which violated constraints specific to instantiated graph update
912 INVALID_CLUSTER_SIZE InvalidClusterSize invalid cluster size
999 UNKNOWN Unknown unknown error
"""
_RUNTIME_TABLE = """
9 InvalidConfiguration invalid configuration argument
12 InvalidPitchValue invalid pitch argument
13 InvalidSymbol invalid device symbol
21 InvalidMemcpyDirection invalid copy direction for memcpy
52 MissingConfiguration __global__ function call is not configured
98 InvalidDeviceFunction invalid device function
"""


def _rows(table: str, names: int) -> Iterator[tuple[int, list[str]]]:
    """The number of each error, its names and its text."""
    for number, *row in (line.split(maxsplit=names + 1) for line in table.strip().splitlines()):
        yield int(number), row


ERRORS = {0: ("CUDA_SUCCESS", "cudaSuccess", "no error")} | {
    number: (f"CUDA_ERROR_{driver}", f"cudaError{runtime}", text)
    for number, (driver, runtime, text) in _rows(_TABLE, 2)
}
"""Errors by their number: the driver's name, the runtime library's, the text (CUDA Driver API,
``CUresult``; CUDA Runtime API, ``cudaError``)."""
RUNTIME_ERRORS = {n: (f"cudaError{name}", text) for n, (name, text) in _rows(_RUNTIME_TABLE, 1)}
"""Errors of the runtime library alone."""


class CudaError(Exception):
    """A call fails with an error of CUDA's, which the program gets.

    Attributes:
        status: its number.
        why: what the error alone does not say, for a person; "" if it says all.
    """

    def __init__(self, status: int, why: str = "") -> None:
        super().__init__(status, why)
        self.status, self.why = status, why
