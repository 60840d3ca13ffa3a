/* Devices, streams and events of the stand-in for NVIDIA's runtime library. */

RUNTIME(cudaGetDeviceCount, (int *count), cuDeviceGetCount(count))
RUNTIME(cudaGetDevice, (int *device), (*device = 0, SUCCESS))
RUNTIME(cudaSetDevice, (int device), device ? INVALID_DEVICE : SUCCESS)
RUNTIME(cudaInitDevice, (int device, unsigned flags, unsigned more), device ? INVALID_DEVICE : SUCCESS)
RUNTIME(cudaSetValidDevices, (int *devices, int count), SUCCESS)
RUNTIME(cudaChooseDevice, (int *device, const void *properties), (*device = 0, SUCCESS))
RUNTIME(cudaSetDeviceFlags, (unsigned flags), SUCCESS)
RUNTIME(cudaGetDeviceFlags, (unsigned *flags), (*flags = 0, SUCCESS))
RUNTIME(cudaDeviceReset, (void), SUCCESS)
RUNTIME(cudaDeviceSynchronize, (void), SUCCESS)
RUNTIME(cudaDeviceGetAttribute, (int *value, int attribute, int device),
        cuDeviceGetAttribute(value, attribute, device))
RUNTIME(cudaDeviceGetLimit, (size_t *value, int limit), cuCtxGetLimit(value, limit))
RUNTIME(cudaDeviceSetLimit, (int limit, size_t value), cuCtxSetLimit(limit, value))
RUNTIME(cudaDeviceGetCacheConfig, (int *config), (*config = 0, SUCCESS))
RUNTIME(cudaDeviceSetCacheConfig, (int config), SUCCESS)
RUNTIME(cudaDeviceGetSharedMemConfig, (int *config), (*config = 0, SUCCESS))
RUNTIME(cudaDeviceSetSharedMemConfig, (int config), SUCCESS)
RUNTIME(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest),
        cuCtxGetStreamPriorityRange(least, greatest))
RUNTIME(cudaDeviceGetPCIBusId, (char *id, int length, int device),
        cuDeviceGetPCIBusId(id, length, device))
RUNTIME(cudaDeviceCanAccessPeer, (int *can, int device, int other), (*can = 0, SUCCESS))
RUNTIME(cudaCtxResetPersistingL2Cache, (void), SUCCESS)
RUNTIME(cudaDriverGetVersion, (int *version), cuDriverGetVersion(version))
RUNTIME(cudaRuntimeGetVersion, (int *version), (*version = MAJOR == 12 ? 12090 : 13000, SUCCESS))
RUNTIME(cudaProfilerStart, (void), SUCCESS)
RUNTIME(cudaProfilerStop, (void), SUCCESS)

/* cudaDeviceProp behind the name and identifiers: the bytes of each field, and the device attribute
   that it has (0: nothing, -1: all memory). */
static const struct { short attribute, bytes, times; } properties[] = {
    {-1, 8}, {8, 8}, {12, 4}, {10, 4}, {11, 8}, {1, 4}, {2, 4}, {3, 4}, {4, 4}, {5, 4}, {6, 4}, {7, 4},
#if MAJOR == 12
    {13, 4},
#endif
    {9, 8}, {75, 4}, {76, 4}, {14, 8}, {51, 8},
#if MAJOR == 12
    {15, 4}, {16, 4}, {17, 4}, {18, 4}, {19, 4}, {20, 4}, {0, 4, 40},
#else
    {16, 4}, {18, 4}, {19, 4}, {0, 4, 39},
#endif
    {30, 8}, {31, 4}, {32, 4}, {33, 4}, {34, 4}, {50, 4}, {35, 4}, {40, 4}, {41, 4},
#if MAJOR == 12
    {36, 4},
#endif
    {37, 4}, {38, 4}, {108, 4}, {39, 4}, {78, 4}, {79, 4}, {80, 4}, {81, 8}, {82, 4}, {83, 4},
    {84, 4}, {85, 4}, {86, 4},
#if MAJOR == 12
    {87, 4},
#endif
    {88, 4}, {89, 4}, {90, 4}, {91, 4}, {95, 4},
#if MAJOR == 12
    {96, 4},
#endif
    {97, 8}, {100, 4}, {101, 4}, {106, 4}, {109, 4}, {111, 8}, {99, 4}, {112, 4}, {113, 4},
    {114, 4}, {115, 4}, {116, 4}, {117, 4}, {118, 4}, {119, 4}, {121, 4}, {125, 4}, {120, 4},
    {129, 4},
#if MAJOR == 12
    {0, 4, 63},
#else
    {130, 4}, {131, 4}, {133, 4}, {134, 4}, {139, 4}, {140, 4}, {143, 4}, {0, 4, 56},
#endif
};

static CUresult described(char *found, int device) {
    memset(found, 0, 288);
    CUresult status = cuDeviceGetName(found, 256, device);
    if (status == SUCCESS) status = cuDeviceGetUuid_v2(found + 256, device);
    size_t at = 288;
    for (size_t i = 0; i < sizeof properties / sizeof *properties && status == SUCCESS; i++) {
        size_t memory = 0, bytes = properties[i].bytes;
        int value = 0, attribute = properties[i].attribute;
        if (attribute > 0) status = cuDeviceGetAttribute(&value, attribute, device);
        if (attribute < 0) status = cuDeviceTotalMem_v2(&memory, device);
        uint64_t wide = attribute < 0 ? memory : (uint64_t)value;
        for (int n = properties[i].times ? properties[i].times : 1; n--; at += bytes) {
            at = (at + bytes - 1) / bytes * bytes;
            memcpy(found + at, &wide, bytes);
        }
    }
    return status;
}
RUNTIME(cudaGetDeviceProperties_v2, (char *found, int device), described(found, device))
RUNTIME(cudaGetDeviceProperties, (char *found, int device), described(found, device))

/* ----------------------------------------------------------------------------- streams and events */

RUNTIME(cudaStreamCreate, (uint64_t *stream), cuStreamCreate(stream, 0))
RUNTIME(cudaStreamCreateWithFlags, (uint64_t *stream, unsigned flags), cuStreamCreate(stream, flags))
RUNTIME(cudaStreamCreateWithPriority, (uint64_t *stream, unsigned flags, int priority),
        cuStreamCreateWithPriority(stream, flags, priority))
RUNTIME(cudaStreamDestroy, (uint64_t stream), cuStreamDestroy_v2(stream))
RUNTIME(cudaStreamSynchronize, (uint64_t stream), cuStreamSynchronize(stream))
RUNTIME(cudaStreamQuery, (uint64_t stream), cuStreamSynchronize(stream))
RUNTIME(cudaStreamWaitEvent, (uint64_t stream, uint64_t event, unsigned flags),
        cuStreamWaitEvent(stream, event, flags))
RUNTIME(cudaStreamGetFlags, (uint64_t stream, unsigned *flags), cuStreamGetFlags(stream, flags))
RUNTIME(cudaStreamGetPriority, (uint64_t stream, int *priority),
        cuStreamGetPriority(stream, priority))
RUNTIME(cudaStreamGetId, (uint64_t stream, unsigned long long *id), cuStreamGetId(stream, id))
RUNTIME(cudaStreamGetDevice, (uint64_t stream, int *device), (*device = 0, SUCCESS))
RUNTIME(cudaStreamAttachMemAsync, (uint64_t stream, void *at, size_t size, unsigned flags), SUCCESS)
RUNTIME(cudaStreamIsCapturing, (uint64_t stream, int *status),
        cuStreamIsCapturing(stream, status))
RUNTIME(cudaStreamGetCaptureInfo, (uint64_t stream, int *status),
        cuStreamIsCapturing(stream, status))
RUNTIME(cudaStreamGetCaptureInfo_v2, (uint64_t stream, int *status),
        cuStreamIsCapturing(stream, status))
RUNTIME(cudaStreamGetCaptureInfo_v3, (uint64_t stream, int *status),
        cuStreamIsCapturing(stream, status))
RUNTIME(cudaThreadExchangeStreamCaptureMode, (int *mode), SUCCESS)
RUNTIME(cudaStreamGetAttribute, (uint64_t stream, int attribute, void *value),
        (memset(value, 0, 64), SUCCESS))
RUNTIME(cudaStreamSetAttribute, (uint64_t stream, int attribute, const void *value), SUCCESS)
RUNTIME(cudaStreamCopyAttributes, (uint64_t stream, uint64_t other), SUCCESS)
RUNTIME(cudaLaunchHostFunc, (void *stream, void (*function)(void *), void *data),
        cuLaunchHostFunc(stream, function, data))
RUNTIME(cudaStreamAddCallback, (void *stream, void *function, void *data, unsigned flags),
        cuStreamAddCallback(stream, function, data, flags))
RUNTIME(cudaEventCreate, (uint64_t *event), cuEventCreate(event, 0))
RUNTIME(cudaEventCreateWithFlags, (uint64_t *event, unsigned flags), cuEventCreate(event, flags))
RUNTIME(cudaEventDestroy, (uint64_t event), cuEventDestroy_v2(event))
RUNTIME(cudaEventRecord, (uint64_t event, uint64_t stream), cuEventRecord(event, stream))
RUNTIME(cudaEventRecordWithFlags, (uint64_t event, uint64_t stream, unsigned flags),
        cuEventRecord(event, stream))
RUNTIME(cudaEventSynchronize, (uint64_t event), cuEventSynchronize(event))
RUNTIME(cudaEventQuery, (uint64_t event), cuEventQuery(event))
RUNTIME(cudaEventElapsedTime, (float *time, uint64_t begin, uint64_t end),
        cuEventElapsedTime_v2(time, begin, end))

/* ---------------------------------------------------------------------- functions of the driver's */

static CUresult entry(const char *symbol, void **function, int version, int *found) {
    int missing = 0;
    *function = NULL;
    cuGetProcAddress_v2(symbol, function, version, 0, &missing);
    if (found) *found = missing; /* cudaDriverEntryPointSuccess, ...SymbolNotFound */
    return SUCCESS;
}
RUNTIME(cudaGetDriverEntryPoint, (const char *symbol, void **function, uint64_t flags, int *found),
        entry(symbol, function, MAJOR * 1000, found))
RUNTIME(cudaGetDriverEntryPointByVersion, (const char *symbol, void **function, unsigned version,
                                           uint64_t flags, int *found),
        entry(symbol, function, version, found))
