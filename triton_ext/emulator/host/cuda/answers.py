"""What the emulated GPU answers to each call of CUDA's driver and of NVML that it always answers
alike."""

from __future__ import annotations

import struct
from typing import Any

from triton_ext.emulator.host.cuda import attributes
from triton_ext.emulator.host.cuda.heap import SIZE

_UUID = bytes.fromhex("7472697f6e2d4578b465656d756c6174")
_PCI = b"0000:00:00.0"

ANSWERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("cuInit", "cuDeviceSetMemPool", "cuDeviceGraphMemTrim", "cuKernelSetCacheConfig",
         "cuFuncSetCacheConfig", "cuFuncSetSharedMemConfig", "cuFuncLoad", "cuMemAdvise",
         "cuMemPrefetchAsync", "cuMemPoolDestroy", "cuMemPoolTrimTo", "cuMemPoolSetAttribute",
         "cuMemPoolSetAccess", "cuPointerSetAttribute", "cuStreamSetAttribute",
         "cuStreamCopyAttributes", "cuStreamAttachMemAsync",
         "cuThreadExchangeStreamCaptureMode", "cuProfilerStart", "cuProfilerStop", "nvmlInit",
         "nvmlInitWithFlags", "nvmlShutdown"), (),
    ),
    **dict.fromkeys(
        ("cuDeviceCanAccessPeer", "cuDeviceGetP2PAttribute", "cuDeviceGetByPCIBusId",
         "cuDeviceGetExecAffinitySupport", "cuMemHostGetFlags",
         "cuStreamGetDevice", "nvmlDeviceGetIndex",
         "nvmlDeviceGetMigMode", "nvmlDeviceGetTotalEccErrors",
         "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetComputeRunningProcesses"), (0,),
    ),
    **dict.fromkeys(
        ("cuDeviceGetCount", "cuFuncIsLoaded", "cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool",
         "cuMemPoolCreate", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex",
         "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId"), (1,),
    ),
    "cuDriverGetVersion": (attributes.VERSION,),
    "cuDeviceTotalMem": (SIZE,),
    "cuDeviceGetUuid": (_UUID,),
    "cuDeviceGetPCIBusId": (_PCI.decode(),),
    "cuDeviceGetGraphMemAttribute": (bytes(8),),
    "cuStreamGetAttribute": (bytes(64),),
    "cuModuleGetLoadingMode": (2,),  # CU_MODULE_LAZY_LOADING
    "nvmlDeviceGetPciInfo": (struct.pack("<16s5I32s", _PCI, 0, 0, 0, 0, 0, b"0000" + _PCI),),
    "nvmlDeviceGetUUID": (f"GPU-{_UUID.hex()}",),
    "nvmlDeviceGetMemoryInfo": (struct.pack("<3Q", SIZE, SIZE, 0),),
    "nvmlSystemGetDriverVersion": ("580.0",),
    "nvmlSystemGetNVMLVersion": ("13.580.0",),
    "nvmlSystemGetCudaDriverVersion": (attributes.VERSION,),
}  # fmt: skip
"""The results, by the function's name without its version; () if there is none to give."""
