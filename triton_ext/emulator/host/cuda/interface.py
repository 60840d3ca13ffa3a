"""The functions of the stand-in for CUDA's driver that only pass their arguments on, and their C.

An entry names a function of the CUDA Driver API (or of NVML) and the kinds of its parameters:

- ``i``, ``u``: an integer of 32 bits, signed or not; ``q``: 64 bits, be it a number, an address or
  a handle;
- ``s``: a text; ``b2``: so many bytes as parameter 2 says; ``a8:2``: an array of elements of 8
  bytes, whose number is parameter 2; ``a8:2-1``: one less; ``t32``: a structure of so many bytes;
  each may be NULL;
- ``o8``: a place for so many bytes of a result; ``v``: for as many as the result has; ``c1``: for a
  text, with as many bytes as parameter 1 says; ``S``: for a pointer to a text.

A function that begins with ``_`` is none of CUDA's: the other files of the client call it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from triton_ext.emulator.host.cuda.status import ERRORS, RUNTIME_ERRORS

FUNCTIONS = """
cuInit(u) cuDriverGetVersion(o4) cuDeviceGet(o4,i) cuDeviceGetCount(o4) cuDeviceGetName(c1,i,i)
cuDeviceGetUuid_v2(o16,i) cuDeviceTotalMem_v2(o8,i) cuDeviceGetAttribute(o4,i,i)
cuDeviceComputeCapability(o4,o4,i) cuDeviceGetPCIBusId(c1,i,i) cuDeviceGetByPCIBusId(o4,s)
cuDeviceCanAccessPeer(o4,i,i) cuDeviceGetP2PAttribute(o4,i,i,i) cuDeviceGetDefaultMemPool(o8,i)
cuDeviceGetMemPool(o8,i) cuDeviceSetMemPool(i,q) cuDeviceGetExecAffinitySupport(o4,i,i)
cuDeviceGetGraphMemAttribute(i,i,v) cuDeviceGraphMemTrim(i)
cuModuleUnload(q) cuModuleGetFunction(o8,q,s) cuModuleGetFunctionCount(o4,q)
cuModuleGetGlobal_v2(o8,o8,q,s) cuModuleGetLoadingMode(o4) cuLibraryUnload(q)
cuLibraryGetKernel(o8,q,s) cuLibraryGetKernelCount(o4,q) cuLibraryGetModule(o8,q)
cuLibraryGetGlobal(o8,o8,q,s) cuLibraryGetManaged(o8,o8,q,s)
cuKernelGetFunction(o8,q) cuKernelGetLibrary(o8,q) cuKernelGetName(S,q)
cuKernelGetParamInfo(q,q,o8,o8) cuKernelGetAttribute(o4,i,q,i) cuKernelSetAttribute(i,i,q,i)
cuKernelSetCacheConfig(q,i,i) cuFuncGetAttribute(o4,i,q) cuFuncSetAttribute(q,i,i)
cuFuncSetCacheConfig(q,i) cuFuncSetSharedMemConfig(q,i) cuFuncGetModule(o8,q) cuFuncGetName(S,q)
cuFuncGetParamInfo(q,q,o8,o8) cuFuncIsLoaded(o4,q) cuFuncLoad(q)
cuMemAlloc_v2(o8,q) cuMemAllocPitch_v2(o8,o8,q,q,u) cuMemAllocManaged(o8,q,u)
cuMemAllocHost_v2(o8,q) cuMemHostAlloc(o8,q,u) cuMemAllocAsync(o8,q,q)
cuMemAllocFromPoolAsync(o8,q,q,q) cuMemFree_v2(q) cuMemFreeAsync(q,q) cuMemFreeHost(q)
cuMemGetInfo_v2(o8,o8) cuMemGetAddressRange_v2(o8,o8,q) cuMemHostGetDevicePointer_v2(o8,q,u)
cuMemHostGetFlags(o4,q) cuMemAdvise(q,q,i,i) cuMemAdvise_v2(q,q,i,q) cuMemPrefetchAsync(q,q,i,q)
cuMemPrefetchAsync_v2(q,q,q,u,q) cuMemPoolCreate(o8,q) cuMemPoolDestroy(q) cuMemPoolTrimTo(q,q)
cuMemPoolGetAttribute(q,i,v) cuMemPoolSetAttribute(q,i,q) cuMemPoolSetAccess(q,q,q)
cuMemAddressReserve(o8,q,q,q,q) cuMemAddressFree(q,q) cuMemCreate(o8,q,t32,q) cuMemRelease(q)
cuMemRetainAllocationHandle(o8,q) cuMemGetAllocationPropertiesFromHandle(o32,q)
cuMemGetAllocationGranularity(o8,t32,u) cuMemSetAccess(q,q,a12:3,q) cuMemGetAccess(o8,t8,q)
cuPointerSetAttribute(q,i,q)
cuStreamCreate(o8,u) cuStreamCreateWithPriority(o8,u,i) cuStreamDestroy_v2(q) cuStreamGetFlags(q,o4)
cuStreamGetPriority(q,o4) cuStreamGetId(q,o8) cuStreamGetDevice(q,o4) cuStreamGetAttribute(q,i,v)
cuStreamSetAttribute(q,i,q) cuStreamCopyAttributes(q,q) cuStreamAttachMemAsync(q,q,q,u)
cuStreamWriteValue32_v2(q,q,u,u) cuStreamWriteValue64_v2(q,q,q,u) cuStreamWaitValue32_v2(q,q,u,u)
cuStreamWaitValue64_v2(q,q,q,u) cuThreadExchangeStreamCaptureMode(q)
cuEventCreate(o8,u) cuEventDestroy_v2(q) _cuEventRecord(q,q) cuEventSynchronize(q) cuEventQuery(q)
cuEventElapsedTime_v2(o4,q,q)
cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(o4,q,i,q,u)
cuOccupancyMaxActiveBlocksPerMultiprocessor(o4,q,i,q)
cuOccupancyAvailableDynamicSMemPerBlock(o8,q,i,i) cuProfilerStart() cuProfilerStop()
cuTensorMapEncodeTiled(o128,u,u,q,a8:2,a8:2-1,a4:2,a4:2,u,u,u,u)
cuTensorMapEncodeIm2col(o128,u,u,q,a8:2,a8:2-1,a4:2-2,a4:2-2,u,u,a4:2,u,u,u,u)
_transfer(q,q,q,q,q,q,q,q,q) _load(o8,b2,q) _layout(v,q) _register(o8,q,q) _unregister(o8,q)
_map(o8,q,q,q,q) _unmap(q,q) _kernels(v,q,u) _occupancy(o4,q,i,q) _clusters(o4,q,i) _pointer(v,i,q)
_launch(q,b0,b0)
nvmlInit_v2() nvmlInitWithFlags(u) nvmlShutdown() nvmlDeviceGetCount_v2(o4)
nvmlDeviceGetHandleByIndex_v2(u,o8) nvmlDeviceGetHandleByUUID(s,o8)
nvmlDeviceGetHandleByPciBusId_v2(s,o8) nvmlDeviceGetIndex(q,o4) nvmlDeviceGetName(q,c2,u)
nvmlDeviceGetUUID(q,c2,u) nvmlDeviceGetMemoryInfo(q,o24) nvmlDeviceGetCudaComputeCapability(q,o4,o4)
nvmlDeviceGetPciInfo_v3(q,o68) nvmlDeviceGetMigMode(q,o4,o4) nvmlDeviceGetTotalEccErrors(q,i,i,o8)
nvmlDeviceGetCurrentClocksThrottleReasons(q,o8) nvmlDeviceGetComputeRunningProcesses_v3(q,o4,q)
nvmlSystemGetDriverVersion(c1,u) nvmlSystemGetNVMLVersion(c1,u) nvmlSystemGetCudaDriverVersion(o4)
nvmlSystemGetCudaDriverVersion_v2(o4)
"""
"""The functions, in the notation above (CUDA Driver API and NVML API references, CUDA 13.0)."""

_CALLED_FOR = {
    "_transfer": "cuMemcpy", "_load": "cuModuleLoadData", "_register": "cuMemHostRegister",
    "_unregister": "cuMemHostUnregister", "_map": "cuMemMap", "_unmap": "cuMemUnmap",
    "_launch": "cuLaunchKernel", "_cuEventRecord": "cuEventRecord",
}  # fmt: skip
"""What of CUDA's calls a function that is none of CUDA's, for what the user is told."""
_PARTS = re.compile(r"(?P<kind>[iuqsSobatcv])(?P<number>\d*)(?::(?P<count>\d+)(?P<less>-\d+)?)?")
_TYPES = {"i": "int", "u": "unsigned", "q": "uint64_t", "s": "const char *"}
_VERSION = re.compile(r"_v\d+$")
_PER_THREAD = re.compile(r"_pt[ds][sz]$")
_MOST = 1 << 17
"""Bytes of a result whose size the program does not say."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function; the attributes are those of the notation."""

    kind: str
    number: int = 0
    count: int = 0
    less: int = 0

    @property
    def declared(self) -> str:
        """Its type in C."""
        return _TYPES.get(self.kind, "void *")

    @property
    def is_result(self) -> bool:
        """Whether the server sends it."""
        return self.kind in "ovcS"


@dataclass(frozen=True)
class Function:
    """A function that passes its arguments on; its number is its place in the table."""

    number: int
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def public_name(self) -> str:
        """What a program knows it by."""
        return _CALLED_FOR.get(self.name, self.name)

    @property
    def handler(self) -> str:
        """The method of the server that answers: the name without its version."""
        return _VERSION.sub("", self.name).lstrip("_")


@functools.cache
def functions() -> tuple[Function, ...]:
    """What `FUNCTIONS` says."""
    found = []
    for number, line in enumerate(FUNCTIONS.split()):
        name, _, rest = line.partition("(")
        parts = [_PARTS.fullmatch(each) for each in rest.rstrip(")").split(",") if each]
        parameters = tuple(
            Parameter(p["kind"], int(p["number"] or 0), int(p["count"] or 0), int(p["less"] or 0))
            for p in parts
            if p is not None
        )
        found.append(Function(number, name, parameters))
    return tuple(found)


def _argument(at: int, parameter: Parameter) -> str:
    """The C that sends an argument."""
    if parameter.kind == "s":
        return f"put_bytes(p{at}, p{at} ? strlen(p{at}) : 0);"
    if parameter.kind == "a":
        count = f"(p{parameter.count} - {-parameter.less})"
        return f"put_bytes(p{at}, {count} * {parameter.number}ul);"
    if parameter.kind == "t":
        return f"put_bytes(p{at}, {parameter.number});"
    if parameter.kind == "b":
        return f"put_bytes(p{at}, p{parameter.number});"
    return "" if parameter.is_result else f"put((uint64_t)p{at});"


def _result(at: int, parameter: Parameter) -> str:
    """The C that keeps a result."""
    if parameter.kind == "S":
        return f"*(const char **)p{at} = take_text();"
    if parameter.kind == "c":
        return f"take_sized(p{at}, p{parameter.number});"
    return (
        f"take_sized(p{at}, {_MOST});"
        if parameter.kind == "v"
        else f"take(p{at}, {parameter.number});"
    )


def _declared() -> Iterator[str]:
    """The C declarations of the functions that pass their arguments on."""
    for each in functions():
        yield f"CUresult {each.name}({', '.join(p.declared for p in each.parameters) or 'void'});"


def _forwarding(function: Function) -> str:
    """The C function that passes its arguments on."""
    numbered = list(enumerate(function.parameters))
    declared = ", ".join(f"{each.declared} p{at}" for at, each in numbered) or "void"
    sent = " ".join(_argument(at, each) for at, each in numbered)
    kept = " ".join(_result(at, each) for at, each in numbered if each.is_result)
    linkage = "" if function.name.startswith("_") else "EXPORT "
    return (
        f"{linkage}CUresult {function.name}({declared}) {{ call_begin({function.number}); {sent}"
        f" CUresult status = call_send(); if (status == SUCCESS) {{ {kept} }} call_end();"
        " return status; }"
    )


def _named_errors(function: str, names: Mapping[int, str], missing: str) -> str:
    """The C of a function that says what an error is: through a pointer, or as its result."""
    through = function.startswith("cu") and not function.startswith("cuda")
    keep, parameters = ("*text = {}; break;", "int error, const char **text")
    if not through:
        keep, parameters = "return {};", "int error"
    cases = " ".join(f"case {n}: " + keep.format(f'"{name}"') for n, name in names.items())
    kind, end = ("CUresult", "return 0;") if through else ("const char *", f"return {missing};")
    default = f"default: *text = 0; return {missing};" if through else ""
    return (
        f"EXPORT {kind} {function}({parameters}) {{ switch (error) {{ {cases} {default} }} {end} }}"
    )


def _exported(text: str) -> set[str]:
    """The functions of CUDA's that some C has."""
    found = set(re.findall(r"\bEXPORT [\w ]*?\*{0,2}\s*(\w+)\(", text))
    found |= set(re.findall(r"^(?:COPY|COPY_ASYNC|RUNTIME|OF_KERNEL)\((\w+)", text, re.MULTILINE))
    for bits in re.findall(r"^FILL\((\d+)", text, re.MULTILINE):
        found |= {f"cuMemsetD{bits}_v2", f"cuMemsetD{bits}Async"}
        found |= {f"cuMemsetD2D{bits}_v2", f"cuMemsetD2D{bits}Async"}
    return {
        each for each in found if each.startswith(("cu", "__cuda", "nvml")) and "##" not in each
    }


def _further(own: set[str], names: set[str]) -> Iterator[str]:
    """The C that gives each function all of its names, and those that are not there a stub.

    Args:
        own: the functions that are there.
        names: all that CUDA has.
    """
    for name in sorted(names - own):
        plain = _PER_THREAD.sub("", name)
        versions = sorted(each for each in own if _VERSION.sub("", each) == plain)
        if plain in own or versions:
            function = plain if plain in own else versions[0]
            alias = f'__attribute__((alias("{function}")))'
            yield f"EXPORT extern __typeof__({function}) {name} {alias};"
        else:
            yield f'EXPORT CUresult {name}(void) {{ return missing("{name}"); }}'


_LOOKUP = """
static const struct named {{ const char *name; void *function; }} table[] = {{ {entries} }};
static int by_name(const void *name, const void *entry) {{
    return strcmp(name, ((const struct named *)entry)->name);
}}
void *function_of(const char *name) {{
    const struct named *found =
        bsearch(name, table, sizeof table / sizeof *table, sizeof *table, by_name);
    return found ? found->function : NULL;
}}
"""
"""C, to be formatted with the entries of the table."""


def driver_source(files: Mapping[str, str]) -> str:
    """The C of the driver's stand-in, and of NVML's: its files, and what is generated. `files`: the
    text of each file, by its name."""
    names = (
        "connection", "contexts", "graphs", "copies", "mappings", "launches", "nodes", "functions",
    )  # fmt: skip
    parts = [files[f"{name}.c"] for name in names]
    launch = next(each.number for each in functions() if each.name == "_launch")
    made = [
        f"#define CALL_LAUNCH {launch}",
        *parts,
        *(_forwarding(each) for each in functions() if each.name != "_launch"),
        _named_errors("cuGetErrorName", {n: e[0] for n, e in ERRORS.items()}, "1"),
        _named_errors("cuGetErrorString", {n: e[2] for n, e in ERRORS.items()}, "1"),
        _named_errors("nvmlErrorString", {n: e[2] for n, e in ERRORS.items()}, '"unknown error"'),
    ]
    text = "\n".join(['#include "client.h"', *_declared(), *made])
    own = _exported(text)
    known = {_VERSION.sub("", each) for each in own} | set(files["driver_names.txt"].split())
    entries = " ".join(f'{{"{name}", (void *){name}}},' for name in sorted(known | own))
    return "\n".join([text, *_further(own, known), _LOOKUP.format(entries=entries)])


def runtime_source(files: Mapping[str, str]) -> str:
    """The C of the stand-in for NVIDIA's runtime library. `files`: as of `driver_source`."""
    errors = {n: e[1:] for n, e in ERRORS.items()} | RUNTIME_ERRORS
    names, texts = ({n: e[column] for n, e in errors.items()} for column in (0, 1))
    parts = (
        '#include "client.h"',
        *_declared(),
        files["runtime.c"],
        files["runtime_devices.c"],
        files["runtime_graphs.c"],
        _named_errors("cudaGetErrorName", names, '"cudaErrorUnknown"'),
        _named_errors("cudaGetErrorString", texts, '"unknown error"'),
    )
    text = "\n".join(parts)
    return "\n".join([text, *_further(_exported(text), set(files["runtime_names.txt"].split()))])
