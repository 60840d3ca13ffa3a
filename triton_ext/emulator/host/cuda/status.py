"""What the functions of CUDA's driver return when they fail."""

from __future__ import annotations

ERRORS = {
    0: ("CUDA_SUCCESS", "cudaSuccess", "no error"),
    1: ("CUDA_ERROR_INVALID_VALUE", "cudaErrorInvalidValue", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorMemoryAllocation", "out of memory"),
    3: ("CUDA_ERROR_NOT_INITIALIZED", "cudaErrorInitializationError", "initialization error"),
    4: ("CUDA_ERROR_DEINITIALIZED", "cudaErrorCudartUnloading", "driver shutting down"),
    100: ("CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA-capable device is detected"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice", "invalid device ordinal"),
    200: (
        "CUDA_ERROR_INVALID_IMAGE",
        "cudaErrorInvalidKernelImage",
        "device kernel image is invalid",
    ),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "cudaErrorDeviceUninitialized", "invalid device context"),
    209: (
        "CUDA_ERROR_NO_BINARY_FOR_GPU",
        "cudaErrorNoKernelImageForDevice",
        "no kernel image is available for execution on the device",
    ),
    218: ("CUDA_ERROR_INVALID_PTX", "cudaErrorInvalidPtx", "a PTX JIT compilation failed"),
    301: ("CUDA_ERROR_FILE_NOT_FOUND", "cudaErrorFileNotFound", "file not found"),
    304: (
        "CUDA_ERROR_OPERATING_SYSTEM",
        "cudaErrorOperatingSystem",
        "OS call failed or operation not supported on this OS",
    ),
    400: ("CUDA_ERROR_INVALID_HANDLE", "cudaErrorInvalidResourceHandle", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "cudaErrorSymbolNotFound", "named symbol not found"),
    600: ("CUDA_ERROR_NOT_READY", "cudaErrorNotReady", "device not ready"),
    700: (
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "cudaErrorIllegalAddress",
        "an illegal memory access was encountered",
    ),
    701: (
        "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        "cudaErrorLaunchOutOfResources",
        "too many resources requested for launch",
    ),
    702: (
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "cudaErrorLaunchTimeout",
        "the launch timed out and was terminated",
    ),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "unspecified launch failure"),
    720: (
        "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        "cudaErrorCooperativeLaunchTooLarge",
        "too many blocks in cooperative launch",
    ),
    801: ("CUDA_ERROR_NOT_SUPPORTED", "cudaErrorNotSupported", "operation not supported"),
    900: (
        "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        "cudaErrorStreamCaptureUnsupported",
        "operation not permitted when stream is capturing",
    ),
    910: (
        "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        "cudaErrorGraphExecUpdateFailure",
        "the graph update was not performed because it included changes which violated constraints"
        " specific to instantiated graph update",
    ),
    912: ("CUDA_ERROR_INVALID_CLUSTER_SIZE", "cudaErrorInvalidClusterSize", "invalid cluster size"),
    999: ("CUDA_ERROR_UNKNOWN", "cudaErrorUnknown", "unknown error"),
}
"""Errors by their number: the driver's name, the runtime library's, the text (CUDA Driver API,
``CUresult``; CUDA Runtime API, ``cudaError``)."""
RUNTIME_ERRORS = {
    9: ("cudaErrorInvalidConfiguration", "invalid configuration argument"),
    12: ("cudaErrorInvalidPitchValue", "invalid pitch argument"),
    13: ("cudaErrorInvalidSymbol", "invalid device symbol"),
    21: ("cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"),
    52: ("cudaErrorMissingConfiguration", "__global__ function call is not configured"),
    98: ("cudaErrorInvalidDeviceFunction", "invalid device function"),
}
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
