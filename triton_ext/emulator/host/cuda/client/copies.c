/* Copies and fills. Device memory is mapped here, too: the server says whether both ends are in
   memory that was allocated, and the bytes are moved here. */

#include "client.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>


struct end { /* where rows of bytes lie */
    uint64_t address, row, plane;
};

struct copy {
    struct end to, from;
    size_t width, height, depth;
};

static CUresult moved(const void *what) {
    const struct copy *copy = what;
    struct end to = copy->to, from = copy->from;
    size_t width = copy->width, height = copy->height, depth = copy->depth;
    CUresult status = _transfer(to.address, to.row, to.plane, from.address, from.row, from.plane,
                                width, height, depth);
    if (status != SUCCESS) return status;
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            memmove((char *)to.address + z * to.plane + y * to.row,
                    (char *)from.address + z * from.plane + y * from.row, width);
    return SUCCESS;
}

static CUresult move(void *stream, struct end to, struct end from, size_t width, size_t height,
                     size_t depth) {
    struct copy copy = {to, from, width, height, depth};
    if (!width || !height || !depth) return SUCCESS;
    return captured(stream, moved, &copy, sizeof copy) ? SUCCESS : moved(&copy);
}

static CUresult flat(void *stream, uint64_t to, uint64_t from, size_t size) {
    return move(stream, (struct end){to, size, size}, (struct end){from, size, size}, size, 1, 1);
}

#define COPY(name) \
    EXPORT CUresult name(uint64_t to, uint64_t from, size_t size) { return flat(NULL, to, from, size); }
#define COPY_ASYNC(name)                                                        \
    EXPORT CUresult name(uint64_t to, uint64_t from, size_t size, void *stream) { \
        return flat(stream, to, from, size);                                    \
    }
COPY(cuMemcpy)
COPY(cuMemcpyHtoD_v2)
COPY(cuMemcpyDtoH_v2)
COPY(cuMemcpyDtoD_v2)
COPY_ASYNC(cuMemcpyAsync)
COPY_ASYNC(cuMemcpyHtoDAsync_v2)
COPY_ASYNC(cuMemcpyDtoHAsync_v2)
COPY_ASYNC(cuMemcpyDtoDAsync_v2)

EXPORT CUresult cuMemcpyPeer(uint64_t to, void *its, uint64_t from, void *other, size_t size) {
    return flat(NULL, to, from, size);
}

EXPORT CUresult cuMemcpyPeerAsync(uint64_t to, void *its, uint64_t from, void *other, size_t size,
                                  void *stream) {
    return flat(stream, to, from, size);
}

static CUresult of(struct end *end, unsigned type, uint64_t host, uint64_t device) {
    if (type == ARRAY) {
        complain("cuMemcpy2D, cuMemcpy3D", "arrays (of textures) are not modelled");
        return NOT_SUPPORTED;
    }
    end->address = type == HOST ? host : device;
    return SUCCESS;
}

EXPORT CUresult cuMemcpy2DAsync_v2(const struct plane *copy, void *stream) {
    struct end to = {0, copy->to_pitch ? copy->to_pitch : copy->width, 0};
    struct end from = {0, copy->from_pitch ? copy->from_pitch : copy->width, 0};
    if (of(&to, copy->to_type, copy->to_host, copy->to_device) ||
        of(&from, copy->from_type, copy->from_host, copy->from_device))
        return NOT_SUPPORTED;
    to.address += copy->to_y * to.row + copy->to_x;
    from.address += copy->from_y * from.row + copy->from_x;
    return move(stream, to, from, copy->width, copy->height, 1);
}

EXPORT CUresult cuMemcpy2D_v2(const struct plane *copy) { return cuMemcpy2DAsync_v2(copy, NULL); }
EXPORT CUresult cuMemcpy2DUnaligned_v2(const struct plane *copy) { return cuMemcpy2D_v2(copy); }

EXPORT CUresult cuMemcpy3DAsync_v2(const struct space *copy, void *stream) {
    struct end to = {0, copy->to_pitch ? copy->to_pitch : copy->width, 0};
    struct end from = {0, copy->from_pitch ? copy->from_pitch : copy->width, 0};
    if (of(&to, copy->to_type, copy->to_host, copy->to_device) ||
        of(&from, copy->from_type, copy->from_host, copy->from_device))
        return NOT_SUPPORTED;
    to.plane = to.row * (copy->to_height ? copy->to_height : copy->height);
    from.plane = from.row * (copy->from_height ? copy->from_height : copy->height);
    to.address += copy->to_z * to.plane + copy->to_y * to.row + copy->to_x;
    from.address += copy->from_z * from.plane + copy->from_y * from.row + copy->from_x;
    return move(stream, to, from, copy->width, copy->height, copy->depth);
}

EXPORT CUresult cuMemcpy3D_v2(const struct space *copy) { return cuMemcpy3DAsync_v2(copy, NULL); }

struct filling {
    uint64_t to;
    size_t pitch, width, height;
    uint32_t value;
    int bytes;
};

static CUresult fill_again(const void *what) {
    const struct filling *filling = what;
    uint64_t to = filling->to;
    size_t pitch = filling->pitch, width = filling->width, height = filling->height;
    uint32_t value = filling->value;
    int bytes = filling->bytes;
    CUresult status = _transfer(to, pitch, 0, 0, 0, 0, width * bytes, height, 1);
    if (status != SUCCESS) return status;
    for (size_t y = 0; y < height; y++) {
        char *row = (char *)to + y * pitch;
        if (bytes == 1) memset(row, (int)value, width);
        else for (size_t x = 0; x < width; x++) memcpy(row + x * bytes, &value, bytes);
    }
    return SUCCESS;
}

static CUresult fill(void *stream, uint64_t to, size_t pitch, uint32_t value, int bytes,
                     size_t width, size_t height) {
    struct filling filling = {to, pitch ? pitch : width * bytes, width, height, value, bytes};
    if (!width || !height) return SUCCESS;
    return captured(stream, fill_again, &filling, sizeof filling) ? SUCCESS
                                                                 : fill_again(&filling);
}

#define FILL(bits, type)                                                                          \
    EXPORT CUresult cuMemsetD##bits##_v2(uint64_t to, type value, size_t count) {                 \
        return fill(NULL, to, 0, value, bits / 8, count, 1);                                      \
    }                                                                                             \
    EXPORT CUresult cuMemsetD##bits##Async(uint64_t to, type value, size_t count, void *stream) { \
        return fill(stream, to, 0, value, bits / 8, count, 1);                                    \
    }                                                                                             \
    EXPORT CUresult cuMemsetD2D##bits##_v2(uint64_t to, size_t pitch, type value, size_t width,   \
                                           size_t height) {                                       \
        return fill(NULL, to, pitch, value, bits / 8, width, height);                             \
    }                                                                                             \
    EXPORT CUresult cuMemsetD2D##bits##Async(uint64_t to, size_t pitch, type value, size_t width, \
                                             size_t height, void *stream) {                       \
        return fill(stream, to, pitch, value, bits / 8, width, height);                           \
    }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)

/* Whether memory is a thread's stack, which is in use while it would be replaced. */
static int on_stack(uint64_t first, size_t size) {
    pthread_attr_t attributes;
    void *low = NULL;
    size_t whole = 0;
    if (pthread_getattr_np(pthread_self(), &attributes)) return 0;
    pthread_attr_getstack(&attributes, &low, &whole);
    pthread_attr_destroy(&attributes);
    return first + size > (uint64_t)low && first < (uint64_t)low + whole;
}

/* Memory of the program that the GPU is to reach: its pages are replaced by pages of the memory
   that the server maps, at the same addresses, with the same contents. */
EXPORT CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    if (!address || !size) return INVALID_VALUE;
    uint64_t page = sysconf(_SC_PAGESIZE), first = (uint64_t)address & -page, offset;
    size_t whole = (((uint64_t)address + size + page - 1) & -page) - first;
    if (on_stack(first, whole)) {
        complain("cuMemHostRegister", "memory of the stack cannot be registered here: use the heap");
        return NOT_SUPPORTED;
    }
    CUresult status = _register(&offset, first, whole);
    if (status != SUCCESS) return status;
    int file;
    uint64_t heap = heap_offset_mapping(&file);
    memcpy((void *)(heap + offset), (void *)first, whole);
    void *mapped = mmap((void *)first, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                        (off_t)offset);
    return mapped == (void *)first ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuMemHostUnregister(void *address) {
    uint64_t page = sysconf(_SC_PAGESIZE), first = (uint64_t)address & -page, size;
    CUresult status = _unregister(&size, first);
    if (status != SUCCESS) return status;
    void *kept = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (kept == MAP_FAILED) return OUT_OF_MEMORY;
    memcpy(kept, (void *)first, size);
    return mremap(kept, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)first) == (void *)first
               ? SUCCESS : OUT_OF_MEMORY;
}

static CUresult attribute(void *data, int which, uint64_t address) {
    if (which == 1) { /* CU_POINTER_ATTRIBUTE_CONTEXT */
        if (!cuStandInHas(address)) return INVALID_VALUE;
        *(void **)data = current_context();
        return SUCCESS;
    }
    return _pointer(data, which, address);
}

EXPORT CUresult cuPointerGetAttribute(void *data, int which, uint64_t address) {
    return data ? attribute(data, which, address) : INVALID_VALUE;
}

/* Here an address that the driver does not know is no error: its attributes are 0. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, int *which, void **data, uint64_t address) {
    for (unsigned i = 0; i < count; i++) {
        if (attribute(data[i], which[i], address) == SUCCESS) continue;
        int wide = which[i] == 1 || which[i] == 3 || which[i] == 4 || which[i] == 11 ||
                   which[i] == 12 || which[i] == 17;
        memset(data[i], 0, wide ? 8 : which[i] == 8 || which[i] == 6 ? 1 : 4);
        if (which[i] == 9) *(int *)data[i] = -2; /* the device's number: that of none */
    }
    return SUCCESS;
}
