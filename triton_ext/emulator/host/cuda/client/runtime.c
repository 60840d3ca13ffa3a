/* A stand-in for NVIDIA's runtime library, libcudart: programs that are linked with it come through
   here to the driver. (NVIDIA's own accepts no driver that it cannot validate, which is said in
   its documentation of cudaErrorSoftwareValidityNotEstablished; so it is replaced, not deceived.)

   Compiled for CUDA 12 and 13: MAJOR. Names and layouts are those of the CUDA Runtime API. */

#include "client.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The driver's functions that are written by hand; the others' declarations are generated. */
CUresult cuCtxGetCurrent(void **context);
CUresult cuCtxSetCurrent(void *context);
CUresult cuCtxGetLimit(void *value, unsigned limit);
CUresult cuCtxSetLimit(unsigned limit, size_t value);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);
CUresult cuDevicePrimaryCtxRetain(void **context, int device);
CUresult cuModuleLoad(void *module, const char *name);
CUresult cuModuleLoadData(void *module, const void *image);
CUresult cuLibraryEnumerateKernels(void *handles, unsigned most, uint64_t library);
CUresult cuLaunchKernel(uint64_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters,
                        void **extra);
CUresult cuLaunchCooperativeKernel(uint64_t function, unsigned gx, unsigned gy, unsigned gz,
                                   unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                   void *stream, void **parameters);
CUresult cuLaunchKernelEx(const void *configuration, uint64_t function, void **parameters,
                          void **extra);
CUresult cuLaunchHostFunc(void *stream, void (*function)(void *), void *data);
CUresult cuStreamAddCallback(void *stream, void *function, void *data, unsigned flags);
CUresult cuOccupancyMaxActiveClusters(int *clusters, uint64_t function, const void *configuration);
CUresult cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream);
CUresult cuMemcpy2DAsync_v2(const struct plane *copy, void *stream);
CUresult cuMemcpy3DAsync_v2(const struct space *copy, void *stream);
CUresult cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void *stream);
CUresult cuMemsetD2D8Async(uint64_t to, size_t pitch, unsigned char value, size_t width,
                           size_t height, void *stream);
CUresult cuStreamBeginCapture_v2(uint64_t stream, unsigned mode);
CUresult cuStreamEndCapture(uint64_t stream, void *graph);
CUresult cuStreamIsCapturing(uint64_t stream, int *status);
CUresult cuStreamSynchronize(uint64_t stream);
CUresult cuStreamWaitEvent(uint64_t stream, uint64_t event, unsigned flags);
CUresult cuEventRecord(uint64_t event, uint64_t stream);
CUresult cuGraphInstantiateWithFlags(void *made, void *graph, uint64_t flags);
CUresult cuGraphLaunch(void *graph, void *stream);
CUresult cuGraphDestroy(void *graph);
CUresult cuGraphGetNodes(void *graph, void *nodes, size_t *count);
CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags);
CUresult cuMemHostUnregister(void *address);
CUresult cuPointerGetAttribute(void *data, int which, uint64_t address);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                             int *found);
int cuStandInHas(uint64_t address);

enum { INVALID_CONFIGURATION = 9, INVALID_PITCH = 12, INVALID_SYMBOL = 13, INVALID_DIRECTION = 21, INVALID_FUNCTION = 98 };
enum { TO_DEVICE = 1, TO_HOST = 2 }; /* cudaMemcpyKind */

static __thread CUresult last;
static __thread int is_ready;

/* Every call has a context: the primary one. */
static CUresult ready(void) {
    if (is_ready) return SUCCESS;
    void *context = NULL;
    CUresult status = cuInit(0);
    if (status == SUCCESS) cuCtxGetCurrent(&context);
    if (status == SUCCESS && !context) {
        status = cuDevicePrimaryCtxRetain(&context, 0);
        if (status == SUCCESS) status = cuCtxSetCurrent(context);
    }
    is_ready = status == SUCCESS;
    return status;
}

/* What cudaGetLastError is asked for. That a stream is not ready is no error. */
static CUresult noted(CUresult status) {
    if (status != SUCCESS && status != 600) last = status;
    return status;
}

#define RUNTIME(name, parameters, call)                                \
    EXPORT CUresult name parameters {                                  \
        CUresult outcome = ready();                                    \
        return noted(outcome != SUCCESS ? outcome : (call));           \
    }

EXPORT CUresult cudaGetLastError(void) {
    CUresult found = last;
    last = SUCCESS;
    return found;
}
EXPORT CUresult cudaPeekAtLastError(void) { return last; }

/* ------------------------------------------------------------ kernels and variables, as registered */

struct binary {
    void *image;
    uint64_t module;
    CUresult status;
    int is_loaded;
};
struct symbol {
    struct binary *binary;
    const void *host;
    const char *name;
    uint64_t handle; /* of a kernel */
    void **managed;
    struct symbol *next;
};
static struct symbol *symbols;
static pthread_mutex_t symbols_lock = PTHREAD_MUTEX_INITIALIZER;

static struct symbol *registered(void *binary, const void *host, const char *name) {
    struct symbol *made = calloc(1, sizeof *made);
    if (!made) abort();
    made->binary = binary, made->host = host, made->name = name;
    pthread_mutex_lock(&symbols_lock);
    made->next = symbols;
    symbols = made;
    pthread_mutex_unlock(&symbols_lock);
    return made;
}

static CUresult loaded(struct binary *binary) {
    CUresult status = ready();
    if (status != SUCCESS) return status;
    pthread_mutex_lock(&symbols_lock);
    if (!binary->is_loaded) {
        binary->is_loaded = 1;
        binary->status = cuModuleLoadData(&binary->module, binary->image);
        for (struct symbol *each = symbols; each && binary->status == SUCCESS; each = each->next)
            if (each->managed && each->binary == binary)
                binary->status = cuModuleGetGlobal_v2((uint64_t *)each->managed, NULL,
                                                      binary->module, each->name);
    }
    pthread_mutex_unlock(&symbols_lock);
    return binary->status;
}

static struct symbol *symbol_of(const void *host) {
    struct symbol *each = symbols;
    while (each && each->host != host) each = each->next;
    return each;
}

/* A kernel by the host's function, or by its own handle. */
static CUresult kernel_of(uint64_t *kernel, const void *host) {
    struct symbol *found = symbol_of(host);
    if (!found) {
        *kernel = (uint64_t)host;
        return host ? ready() : INVALID_FUNCTION;
    }
    CUresult status = loaded(found->binary);
    if (status == SUCCESS && !found->handle)
        status = cuModuleGetFunction(&found->handle, found->binary->module, found->name);
    *kernel = found->handle;
    return status == 500 ? INVALID_FUNCTION : status;
}

static CUresult variable_of(uint64_t *address, size_t *size, const void *host) {
    struct symbol *found = symbol_of(host);
    if (!found) return INVALID_SYMBOL;
    CUresult status = loaded(found->binary);
    if (status == SUCCESS)
        status = cuModuleGetGlobal_v2(address, size, found->binary->module, found->name);
    return status == 500 ? INVALID_SYMBOL : status;
}

EXPORT void **__cudaRegisterFatBinary(void *image) {
    struct binary *made = calloc(1, sizeof *made);
    if (!made) abort();
    made->image = image;
    return (void **)made;
}
EXPORT void __cudaRegisterFatBinaryEnd(void **binary) {}
EXPORT void __cudaUnregisterFatBinary(void **binary) {}
EXPORT char __cudaInitModule(void **binary) { return loaded((struct binary *)binary) == SUCCESS; }
EXPORT void __cudaRegisterFunction(void **binary, const void *host, char *device, const char *name,
                                   int limit, void *tid, void *bid, void *block, void *grid,
                                   int *warp) {
    registered(binary, host, name);
}
EXPORT void __cudaRegisterVar(void **binary, const void *host, char *device, const char *name,
                              int ext, size_t size, int constant, int global) {
    registered(binary, host, name);
}
EXPORT void __cudaRegisterHostVar(void **binary, const char *name, char *host, size_t size) {}
EXPORT void __cudaRegisterManagedVar(void **binary, void **host, char *device, const char *name,
                                     int ext, size_t size, int constant, int global) {
    registered(binary, host, name)->managed = host;
}

/* ---------------------------------------------------------------------------------------- launches */

struct dim3 {
    unsigned x, y, z;
};
static __thread struct { struct dim3 grid, block; size_t shared; void *stream; } pushed[16];
static __thread int depth;

EXPORT unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared,
                                            void *stream) {
    if (depth == 16) return OUT_OF_MEMORY;
    pushed[depth].grid = grid, pushed[depth].block = block;
    pushed[depth].shared = shared, pushed[depth++].stream = stream;
    return SUCCESS;
}
EXPORT CUresult __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared,
                                           void **stream) {
    if (!depth) return 52; /* cudaErrorMissingConfiguration */
    depth--;
    *grid = pushed[depth].grid, *block = pushed[depth].block;
    *shared = pushed[depth].shared, *stream = pushed[depth].stream;
    return SUCCESS;
}

static CUresult launched(const void *function, struct dim3 g, struct dim3 b, void **arguments,
                         size_t shared, void *stream, int cooperative) {
    uint64_t kernel;
    CUresult status = kernel_of(&kernel, function);
    if (status != SUCCESS) return noted(status);
    status = cooperative ? cuLaunchCooperativeKernel(kernel, g.x, g.y, g.z, b.x, b.y, b.z, shared,
                                                     stream, arguments)
                         : cuLaunchKernel(kernel, g.x, g.y, g.z, b.x, b.y, b.z, shared, stream,
                                          arguments, NULL);
    int legal = g.x && g.y && g.z && b.x && b.y && b.z && g.y < 65536 && g.z < 65536 &&
                b.z <= 64 && (uint64_t)b.x * b.y * b.z <= 1024;
    return noted(status == INVALID_VALUE && !legal ? INVALID_CONFIGURATION : status);
}

EXPORT CUresult cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block,
                                 void **arguments, size_t shared, void *stream) {
    return launched(function, grid, block, arguments, shared, stream, 0);
}
EXPORT CUresult __cudaLaunchKernel(const void *kernel, struct dim3 grid, struct dim3 block,
                                   void **arguments, size_t shared, void *stream) {
    return launched(kernel, grid, block, arguments, shared, stream, 0);
}
EXPORT CUresult cudaLaunchCooperativeKernel(const void *function, struct dim3 grid,
                                            struct dim3 block, void **arguments, size_t shared,
                                            void *stream) {
    return launched(function, grid, block, arguments, shared, stream, 1);
}

struct configuration { /* cudaLaunchConfig_t */
    struct dim3 grid, block;
    size_t shared;
    void *stream, *attributes;
    unsigned count;
};
struct driver_configuration { /* CUlaunchConfig */
    struct dim3 grid, block;
    unsigned shared;
    void *stream, *attributes;
    unsigned count;
};
#define OF_DRIVER(c) {(c)->grid, (c)->block, (c)->shared, (c)->stream, (c)->attributes, (c)->count}

EXPORT CUresult cudaLaunchKernelExC(const struct configuration *given, const void *function,
                                    void **arguments) {
    uint64_t kernel;
    CUresult status = kernel_of(&kernel, function);
    if (status != SUCCESS) return noted(status);
    struct driver_configuration made = OF_DRIVER(given);
    return noted(cuLaunchKernelEx(&made, kernel, arguments, NULL));
}

#define OF_KERNEL(name, parameters, call)                        \
    EXPORT CUresult name parameters {                            \
        uint64_t kernel;                                         \
        CUresult status = kernel_of(&kernel, function);        \
        return noted(status != SUCCESS ? status : (call));       \
    }

OF_KERNEL(__cudaGetKernel, (uint64_t *handle, const void *function), (*handle = kernel, SUCCESS))
OF_KERNEL(cudaGetKernel, (uint64_t *handle, const void *function), (*handle = kernel, SUCCESS))
OF_KERNEL(cudaGetFuncBySymbol, (uint64_t *handle, const void *function),
          (*handle = kernel, SUCCESS))
OF_KERNEL(cudaFuncGetName, (const char **name, const void *function), cuFuncGetName(name, kernel))
OF_KERNEL(cudaFuncGetParamInfo, (const void *function, size_t at, size_t *offset, size_t *size),
          cuFuncGetParamInfo(kernel, at, offset, size))
OF_KERNEL(cudaFuncSetAttribute, (const void *function, int attribute, int value),
          cuFuncSetAttribute(kernel, attribute, value))
OF_KERNEL(cudaKernelSetAttributeForDevice, (const void *function, int which, int value, int dev),
          cuFuncSetAttribute(kernel, which, value))
OF_KERNEL(cudaFuncSetCacheConfig, (const void *function, int config), SUCCESS)
OF_KERNEL(cudaFuncSetSharedMemConfig, (const void *function, int config), SUCCESS)
OF_KERNEL(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
          (int *blocks, const void *function, int threads, size_t shared),
          cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared))
OF_KERNEL(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
          (int *blocks, const void *function, int threads, size_t shared, unsigned flags),
          cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel, threads, shared))
OF_KERNEL(cudaOccupancyAvailableDynamicSMemPerBlock,
          (size_t *size, const void *function, int blocks, int threads),
          cuOccupancyAvailableDynamicSMemPerBlock(size, kernel, blocks, threads))

EXPORT CUresult cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                               const struct configuration *given) {
    uint64_t kernel;
    CUresult status = kernel_of(&kernel, function);
    struct driver_configuration made = OF_DRIVER(given);
    return noted(status ? status : cuOccupancyMaxActiveClusters(clusters, kernel, &made));
}
EXPORT CUresult cudaOccupancyMaxPotentialClusterSize(int *size, const void *function,
                                                     const struct configuration *given) {
    *size = 8; /* the portable size */
    return SUCCESS;
}

struct function_attributes { /* cudaFuncAttributes */
    size_t shared, constant, local;
    int at[13];
    int reserved[16];
};
EXPORT CUresult cudaFuncGetAttributes(struct function_attributes *found, const void *function) {
    static const int asked[13] = {0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 14};
    uint64_t kernel;
    CUresult status = kernel_of(&kernel, function);
    if (status != SUCCESS) return noted(status);
    memset(found, 0, sizeof *found);
    int value = 0;
    status = cuFuncGetAttribute(&value, 1, kernel), found->shared = value;
    if (!status) status = cuFuncGetAttribute(&value, 2, kernel), found->constant = value;
    if (!status) status = cuFuncGetAttribute(&value, 3, kernel), found->local = value;
    for (int i = 0; i < 13 && !status; i++)
        status = cuFuncGetAttribute(&found->at[i], asked[i], kernel);
    return noted(status);
}

RUNTIME(cudaLibraryLoadData,
        (uint64_t *library, const void *image, int *options, void **values, unsigned count,
         int *more, void **its, unsigned number), cuModuleLoadData(library, image))
RUNTIME(cudaLibraryLoadFromFile,
        (uint64_t *library, const char *name, int *options, void **values, unsigned count,
         int *more, void **its, unsigned number), cuModuleLoad(library, name))
RUNTIME(cudaLibraryUnload, (uint64_t library), cuModuleUnload(library))
RUNTIME(cudaLibraryGetKernel, (uint64_t *kernel, uint64_t library, const char *name),
        cuModuleGetFunction(kernel, library, name))
RUNTIME(cudaLibraryGetGlobal, (uint64_t *address, size_t *size, uint64_t library, const char *name),
        cuModuleGetGlobal_v2(address, size, library, name))
RUNTIME(cudaLibraryGetManaged, (uint64_t *at, size_t *size, uint64_t library, const char *name),
        cuModuleGetGlobal_v2(at, size, library, name))
RUNTIME(cudaLibraryGetKernelCount, (unsigned *count, uint64_t library),
        cuModuleGetFunctionCount(count, library))
RUNTIME(cudaLibraryEnumerateKernels, (uint64_t *kernels, unsigned most, uint64_t library),
        cuLibraryEnumerateKernels(kernels, most, library))

/* ------------------------------------------------------------------------------------------ memory */

/* A copy whose direction is told must go there. */
static CUresult directed(uint64_t to, uint64_t from, int kind) {
    if (kind == TO_DEVICE && !cuStandInHas(to)) {
        complain("cudaMemcpy", "cudaMemcpyHostToDevice, and the target is no memory of the GPU");
        return INVALID_VALUE;
    }
    if (kind == TO_HOST && !cuStandInHas(from)) {
        complain("cudaMemcpy", "cudaMemcpyDeviceToHost, and the source is no memory of the GPU");
        return INVALID_VALUE;
    }
    return (unsigned)kind > 4 ? INVALID_DIRECTION : SUCCESS;
}

static CUresult copied(uint64_t to, uint64_t from, size_t size, int kind, void *stream) {
    CUresult status = size ? directed(to, from, kind) : SUCCESS;
    return status ? status : cuMemcpyAsync(to, from, size, stream);
}

static CUresult copied_rows(uint64_t to, size_t to_pitch, uint64_t from, size_t from_pitch,
                            size_t width, size_t height, int kind, void *stream) {
    if (width > to_pitch || width > from_pitch) return INVALID_PITCH;
    struct plane copy = {.from_type = UNIFIED, .from_device = from, .from_pitch = from_pitch,
                         .to_type = UNIFIED, .to_device = to, .to_pitch = to_pitch,
                         .width = width, .height = height};
    CUresult status = width && height ? directed(to, from, kind) : SUCCESS;
    return status ? status : cuMemcpy2DAsync_v2(&copy, stream);
}

struct extent { size_t width, height, depth; };                /* cudaExtent */
struct pitched { uint64_t at; size_t pitch, width, height; }; /* cudaPitchedPtr */
struct volume { /* cudaMemcpy3DParms */
    uint64_t from_array;
    size_t from_x, from_y, from_z;
    struct pitched from;
    uint64_t to_array;
    size_t to_x, to_y, to_z;
    struct pitched to;
    struct extent extent;
    int kind;
};
static struct space space_of(const struct volume *given) {
    struct pitched to = given->to, from = given->from;
    struct extent extent = given->extent;
    return (struct space){
        .from_x = given->from_x, .from_y = given->from_y, .from_z = given->from_z,
        .from_type = given->from_array ? ARRAY : UNIFIED, .from_device = from.at,
        .from_pitch = from.pitch, .from_height = from.height,
        .to_x = given->to_x, .to_y = given->to_y, .to_z = given->to_z,
        .to_type = given->to_array ? ARRAY : UNIFIED, .to_device = to.at, .to_pitch = to.pitch,
        .to_height = to.height,
        .width = extent.width, .height = extent.height, .depth = extent.depth};
}
static CUresult copied_volume(const struct volume *given, void *stream) {
    if (!given) return INVALID_VALUE;
    struct space copy = space_of(given);
    struct pitched to = given->to, from = given->from;
    struct extent extent = given->extent;
    if (given->from_array || given->to_array) return cuMemcpy3DAsync_v2(&copy, stream);
    if (!extent.width || !extent.height || !extent.depth) return SUCCESS;
    if (extent.width > to.pitch || extent.width > from.pitch) return INVALID_PITCH;
    CUresult status = directed(to.at, from.at, given->kind);
    return status ? status : cuMemcpy3DAsync_v2(&copy, stream);
}
static CUresult filled_volume(struct pitched to, int value, struct extent extent, void *stream) {
    CUresult status = SUCCESS;
    for (size_t z = 0; z < extent.depth && status == SUCCESS; z++)
        status = cuMemsetD2D8Async(to.at + z * to.pitch * to.height, to.pitch, value, extent.width,
                                   extent.height, stream);
    return status;
}
static CUresult new_volume(struct pitched *made, struct extent extent) {
    *made = (struct pitched){.width = extent.width, .height = extent.height};
    if (!extent.width || !extent.height || !extent.depth) return SUCCESS;
    return cuMemAllocPitch_v2(&made->at, &made->pitch, extent.width, extent.height * extent.depth, 16);
}

static CUresult to_symbol(const void *symbol, uint64_t from, size_t size, size_t offset, int kind,
                          void *stream) {
    uint64_t address;
    size_t whole;
    CUresult status = variable_of(&address, &whole, symbol);
    if (status) return status;
    return offset + size > whole ? INVALID_VALUE : copied(address + offset, from, size, kind, stream);
}
static CUresult from_symbol(uint64_t to, const void *symbol, size_t size, size_t offset, int kind,
                            void *stream) {
    uint64_t address;
    size_t whole;
    CUresult status = variable_of(&address, &whole, symbol);
    if (status) return status;
    return offset + size > whole ? INVALID_VALUE : copied(to, address + offset, size, kind, stream);
}

RUNTIME(cudaMalloc, (uint64_t *at, size_t size), size ? cuMemAlloc_v2(at, size) : (*at = 0, SUCCESS))
RUNTIME(cudaMallocManaged, (uint64_t *at, size_t size, unsigned flags),
        cuMemAllocManaged(at, size, flags))
RUNTIME(cudaMallocHost, (uint64_t *at, size_t size), cuMemHostAlloc(at, size, 0))
RUNTIME(cudaHostAlloc, (uint64_t *at, size_t size, unsigned flags), cuMemHostAlloc(at, size, flags))
RUNTIME(cudaMallocPitch, (uint64_t *at, size_t *pitch, size_t width, size_t height),
        cuMemAllocPitch_v2(at, pitch, width, height, 16))
RUNTIME(cudaMalloc3D, (struct pitched *made, struct extent extent), new_volume(made, extent))
RUNTIME(cudaMallocAsync, (uint64_t *at, size_t size, void *stream), cuMemAllocAsync(at, size, stream))
RUNTIME(cudaMallocFromPoolAsync, (uint64_t *at, size_t size, uint64_t pool, void *stream),
        cuMemAllocAsync(at, size, stream))
RUNTIME(cudaFree, (uint64_t address), cuMemFree_v2(address))
RUNTIME(cudaFreeAsync, (uint64_t address, void *stream), cuMemFree_v2(address))
RUNTIME(cudaFreeHost, (uint64_t address), cuMemFree_v2(address))
RUNTIME(cudaHostRegister, (void *at, size_t size, unsigned flags), cuMemHostRegister_v2(at, size, flags))
RUNTIME(cudaHostUnregister, (void *address), cuMemHostUnregister(address))
RUNTIME(cudaHostGetDevicePointer, (uint64_t *at, uint64_t host, unsigned flags),
        cuMemHostGetDevicePointer_v2(at, host, flags))
RUNTIME(cudaHostGetFlags, (unsigned *flags, uint64_t host), cuMemHostGetFlags(flags, host))
RUNTIME(cudaMemGetInfo, (size_t *left, size_t *whole), cuMemGetInfo_v2(left, whole))
RUNTIME(cudaMemcpy, (uint64_t to, uint64_t from, size_t size, int kind),
        copied(to, from, size, kind, NULL))
RUNTIME(cudaMemcpyAsync, (uint64_t to, uint64_t from, size_t size, int kind, void *stream),
        copied(to, from, size, kind, stream))
RUNTIME(cudaMemcpyPeer, (uint64_t to, int its, uint64_t from, int other, size_t size),
        copied(to, from, size, 4, NULL))
RUNTIME(cudaMemcpyPeerAsync, (uint64_t to, int its, uint64_t from, int other, size_t size, void *s),
        copied(to, from, size, 4, s))
RUNTIME(cudaMemcpy2D, (uint64_t to, size_t row, uint64_t from, size_t its, size_t width,
                       size_t height, int kind), copied_rows(to, row, from, its, width, height, kind, NULL))
RUNTIME(cudaMemcpy2DAsync, (uint64_t to, size_t row, uint64_t from, size_t its, size_t width,
                            size_t height, int kind, void *stream),
        copied_rows(to, row, from, its, width, height, kind, stream))
RUNTIME(cudaMemcpyToSymbol, (const void *symbol, uint64_t from, size_t size, size_t offset, int kind),
        to_symbol(symbol, from, size, offset, kind, NULL))
RUNTIME(cudaMemcpyToSymbolAsync, (const void *symbol, uint64_t from, size_t size, size_t offset,
                                  int kind, void *stream), to_symbol(symbol, from, size, offset, kind, stream))
RUNTIME(cudaMemcpyFromSymbol, (uint64_t to, const void *symbol, size_t size, size_t offset, int kind),
        from_symbol(to, symbol, size, offset, kind, NULL))
RUNTIME(cudaMemcpyFromSymbolAsync, (uint64_t to, const void *symbol, size_t size, size_t offset,
                                    int kind, void *stream), from_symbol(to, symbol, size, offset, kind, stream))
RUNTIME(cudaGetSymbolAddress, (uint64_t *address, const void *symbol),
        variable_of(address, NULL, symbol))
RUNTIME(cudaGetSymbolSize, (size_t *size, const void *symbol), variable_of(NULL, size, symbol))
RUNTIME(cudaMemset, (uint64_t to, int value, size_t count), cuMemsetD8Async(to, value, count, NULL))
RUNTIME(cudaMemsetAsync, (uint64_t to, int value, size_t count, void *stream),
        cuMemsetD8Async(to, value, count, stream))
RUNTIME(cudaMemset2D, (uint64_t to, size_t pitch, int value, size_t width, size_t height),
        cuMemsetD2D8Async(to, pitch, value, width, height, NULL))
RUNTIME(cudaMemset2DAsync, (uint64_t to, size_t pitch, int value, size_t width, size_t height,
                            void *stream), cuMemsetD2D8Async(to, pitch, value, width, height, stream))
RUNTIME(cudaMemcpy3D, (const struct volume *copy), copied_volume(copy, NULL))
RUNTIME(cudaMemcpy3DAsync, (const struct volume *copy, void *stream), copied_volume(copy, stream))
RUNTIME(cudaMemset3D, (struct pitched to, int value, struct extent extent),
        filled_volume(to, value, extent, NULL))
RUNTIME(cudaMemset3DAsync, (struct pitched to, int value, struct extent extent, void *stream),
        filled_volume(to, value, extent, stream))
RUNTIME(cudaMemAdvise, (uint64_t at, size_t size, int advice, uint64_t where), SUCCESS)
RUNTIME(cudaMemPrefetchAsync, (uint64_t at, size_t size, uint64_t where, unsigned flags, void *s),
        SUCCESS)
RUNTIME(cudaDeviceGetDefaultMemPool, (uint64_t *pool, int device), cuDeviceGetDefaultMemPool(pool, device))
RUNTIME(cudaDeviceGetMemPool, (uint64_t *pool, int device), cuDeviceGetMemPool(pool, device))
RUNTIME(cudaDeviceSetMemPool, (int device, uint64_t pool), SUCCESS)
RUNTIME(cudaMemPoolCreate, (uint64_t *pool, const void *properties), cuMemPoolCreate(pool, 0))
RUNTIME(cudaMemPoolDestroy, (uint64_t pool), SUCCESS)
RUNTIME(cudaMemPoolTrimTo, (uint64_t pool, size_t size), SUCCESS)
RUNTIME(cudaMemPoolSetAccess, (uint64_t pool, const void *access, size_t count), SUCCESS)
RUNTIME(cudaMemPoolSetAttribute, (uint64_t pool, int attribute, void *value), SUCCESS)
RUNTIME(cudaMemPoolGetAttribute, (uint64_t pool, int attribute, void *value),
        cuMemPoolGetAttribute(pool, attribute, value))

struct pointer_attributes { /* cudaPointerAttributes */
    int type, device;
    void *on_device, *on_host;
#if MAJOR >= 13
    long reserved[8];
#endif
};
EXPORT CUresult cudaPointerGetAttributes(struct pointer_attributes *found, void *address) {
    CUresult status = ready();
    if (status != SUCCESS) return noted(status);
    unsigned type = 0;
    unsigned char managed = 0;
    memset(found, 0, sizeof *found);
    if (cuPointerGetAttribute(&type, 2, (uint64_t)address) != SUCCESS) { /* not of CUDA's */
        found->device = -2;
        found->on_host = address;
        return SUCCESS;
    }
    cuPointerGetAttribute(&managed, 8, (uint64_t)address);
    found->type = managed ? 3 : type;
    found->on_device = address;
    if (managed || type == 1) found->on_host = address;
    return SUCCESS;
}
