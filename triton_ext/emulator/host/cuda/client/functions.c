/* How programs find the driver's functions. */

#include <dlfcn.h>

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                    uint64_t flags, int *found) {
    /* Functions whose parameters changed, by the release that did so; else the oldest is the one. */
    static const struct { const char *plain; int since; const char *name; } changed[] = {
        {"cuCtxCreate", 12050, "cuCtxCreate_v4"},
        {"cuCtxCreate", 11040, "cuCtxCreate_v3"},
        {"cuMemAdvise", 12020, "cuMemAdvise_v2"},
        {"cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2"},
        {"cuStreamGetCaptureInfo", 12030, "cuStreamGetCaptureInfo_v3"},
        {"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo_v2"},
        {"cuGraphAddNode", 12030, "cuGraphAddNode_v2"},
        {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
    };
    if (!symbol || !function) return INVALID_VALUE;
    const char *name = symbol;
    for (size_t i = 0; i < sizeof changed / sizeof *changed && name == symbol; i++)
        if (!strcmp(symbol, changed[i].plain) && version >= changed[i].since)
            name = changed[i].name;
    *function = function_of(name);
    if (found) *found = *function ? 0 : 1; /* ..._SUCCESS, ..._SYMBOL_NOT_FOUND */
    return *function ? SUCCESS : NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version,
                                 uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

/* NVIDIA's own libraries ask for tables of functions that are not documented. There are none here:
   the runtime library would then ask the driver to prove that it is NVIDIA's. NVRTC works without. */
EXPORT CUresult cuGetExportTable(const void **table, const void *id) {
    static int said;
    Dl_info caller = {0};
    dladdr(__builtin_return_address(0), &caller);
    int is_nvrtc = caller.dli_fname && strstr(caller.dli_fname, "libnvrtc");
    if (!is_nvrtc && !said++)
        complain("cuGetExportTable",
                 "this program brings NVIDIA's runtime library, which works with NVIDIA's driver"
                 " alone: link it with -cudart shared (nvcc) or CUDA::cudart (CMake), and it gets"
                 " the emulated GPU's");
    if (table) *table = NULL;
    return NOT_FOUND;
}
