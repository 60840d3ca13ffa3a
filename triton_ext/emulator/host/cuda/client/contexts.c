/* Contexts, which are a matter of the program's threads alone: there is one GPU, and one memory. */

#include "client.h"
#include <pthread.h>
#include <stdlib.h>

#define DEEPEST 64

struct context {
    unsigned flags;
    unsigned long long id;
    size_t limits[16];
};
static struct context primary = {.id = 1, .limits = {1024, 1 << 20, 8 << 20, 2, 2048, 128}};
static int primary_uses;
static __thread struct context *stack[DEEPEST];
static __thread int depth;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;

void *current_context(void) { return depth ? stack[depth - 1] : NULL; }

#define CURRENT                                      \
    struct context *current = current_context();     \
    if (!current) return INVALID_CONTEXT

static CUresult created(void **context, unsigned flags) {
    CUresult status = connected();
    if (status != SUCCESS) return status;
    if (!context) return INVALID_VALUE;
    if (depth == DEEPEST) return OUT_OF_MEMORY;
    static unsigned long long ids = 1;
    struct context *made = malloc(sizeof *made);
    if (!made) return OUT_OF_MEMORY;
    *made = primary;
    made->flags = flags;
    pthread_mutex_lock(&context_lock);
    made->id = ++ids;
    pthread_mutex_unlock(&context_lock);
    *context = stack[depth++] = made;
    return SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(void **context, unsigned flags, int device) {
    return created(context, flags);
}

EXPORT CUresult cuCtxCreate_v3(void **context, void *affinity, int count, unsigned flags, int dev) {
    return created(context, flags);
}

EXPORT CUresult cuCtxCreate_v4(void **context, void *parameters, unsigned flags, int device) {
    return created(context, flags);
}

EXPORT CUresult cuCtxDestroy_v2(void *context) {
    if (!context) return INVALID_CONTEXT;
    if (current_context() == context) depth--;
    if (context != &primary) free(context);
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    CUresult status = connected();
    if (status != SUCCESS) return status;
    if (device) return INVALID_DEVICE;
    if (!context) return INVALID_VALUE;
    __atomic_add_fetch(&primary_uses, 1, __ATOMIC_RELAXED);
    *context = &primary;
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(int device) {
    if (primary_uses) __atomic_sub_fetch(&primary_uses, 1, __ATOMIC_RELAXED);
    return device ? INVALID_DEVICE : SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(int device) {
    primary_uses = 0;
    return device ? INVALID_DEVICE : SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    if (device) return INVALID_DEVICE;
    if (flags) *flags = primary.flags;
    if (active) *active = primary_uses > 0;
    return SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    primary.flags = flags;
    return device ? INVALID_DEVICE : SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(void **context) {
    if (!context) return INVALID_VALUE;
    *context = current_context();
    return SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(void *context) {
    if (!context) depth -= depth > 0;
    else stack[depth ? depth - 1 : depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(void *context) {
    if (!context || depth == DEEPEST) return INVALID_VALUE;
    stack[depth++] = context;
    return SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(void **context) {
    CURRENT;
    if (context) *context = current;
    depth--;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(int *device) {
    CURRENT;
    *device = 0;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetDevice_v2(int *device, void *context) {
    *device = 0;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetFlags(unsigned *flags) {
    CURRENT;
    *flags = current->flags;
    return SUCCESS;
}

EXPORT CUresult cuCtxSetFlags(unsigned flags) {
    CURRENT;
    current->flags = flags;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetId(struct context *context, unsigned long long *id) {
    if (!context) context = current_context();
    if (!context) return INVALID_CONTEXT;
    *id = context->id;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetApiVersion(void *context, unsigned *version) {
    *version = 3020;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetLimit(size_t *value, unsigned limit) {
    CURRENT;
    if (limit >= 16 || !value) return INVALID_VALUE;
    *value = current->limits[limit];
    return SUCCESS;
}

EXPORT CUresult cuCtxSetLimit(unsigned limit, size_t value) {
    CURRENT;
    if (limit >= 16) return INVALID_VALUE;
    current->limits[limit] = value;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return SUCCESS;
}

static CUresult one(int *value) {
    if (!value) return INVALID_VALUE;
    *value = 0;
    return SUCCESS;
}

EXPORT CUresult cuCtxGetCacheConfig(int *config) { return one(config); }
EXPORT CUresult cuCtxGetSharedMemConfig(int *config) { return one(config); }
EXPORT CUresult cuCtxSetCacheConfig(int config) { return SUCCESS; }
EXPORT CUresult cuCtxSetSharedMemConfig(int config) { return SUCCESS; }
EXPORT CUresult cuCtxResetPersistingL2Cache(void) { return SUCCESS; }

/* All work is done when the call that gives it returns. */
EXPORT CUresult cuCtxSynchronize(void) { return current_context() ? SUCCESS : INVALID_CONTEXT; }
EXPORT CUresult cuCtxSynchronize_v2(void *context) { return SUCCESS; }

EXPORT CUresult cuStreamGetCtx(void *stream, void **context) {
    CURRENT;
    *context = current;
    return SUCCESS;
}

EXPORT CUresult cuStreamGetCtx_v2(void *stream, void **context, void **green) {
    CURRENT;
    *context = current;
    if (green) *green = NULL;
    return SUCCESS;
}
