/* Modules and launches: what must be read here, since only the program knows where it lies. */

#include "client.h"
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAPPER 0x466243b1 /* __fatBinC_Wrapper_t of nvcc's fatbinary_section.h */
#define LINKED 2 /* its version, of relocatable device code */
#define FATBIN 0xba55ed50u
#define CLUSTER_DIMENSION 4 /* CUlaunchAttributeID */
#define COOPERATIVE 2

struct wrapper {
    int magic, version;
    const void *data;
    const void **fatbins; /* of each part that was linked, and NULL behind them (link.stub) */
};

/* The bytes of an image: a fatbin, an ELF file, or PTX that ends in a zero. */
static size_t image_size(const char *image) {
    unsigned magic;
    memcpy(&magic, image, 4);
    if (magic == FATBIN) {
        uint16_t header;
        uint64_t entries;
        memcpy(&header, image + 6, 2);
        memcpy(&entries, image + 8, 8);
        return header + entries;
    }
    if (memcmp(image, ELFMAG, SELFMAG)) return strlen(image);
    const Elf64_Ehdr *elf = (const void *)image;
    size_t end = elf->e_shoff + (size_t)elf->e_shnum * elf->e_shentsize;
    size_t program = elf->e_phoff + (size_t)elf->e_phnum * elf->e_phentsize;
    if (program > end) end = program;
    for (int i = 0; i < elf->e_shnum; i++) {
        const Elf64_Shdr *section = (const void *)(image + elf->e_shoff + i * elf->e_shentsize);
        size_t last = section->sh_offset + section->sh_size;
        if (section->sh_type != SHT_NOBITS && last > end) end = last;
    }
    return end;
}

/* The PTX of each part, which machine code that was linked before does not have. */
static CUresult load_linked(uint64_t *module, const void **fatbins) {
    size_t size = 0;
    for (const void **each = fatbins; *each; each++) size += image_size(*each);
    char *all = malloc(size + 1), *end = all;
    if (!all) return OUT_OF_MEMORY;
    for (const void **each = fatbins; *each; each++) {
        size_t part = image_size(*each);
        memcpy(end, *each, part), end += part;
    }
    CUresult status = _load(module, all, size);
    free(all);
    return status;
}

static CUresult load(uint64_t *module, const void *image) {
    if (!module || !image) return INVALID_VALUE;
    const struct wrapper *wrapper = image;
    if (wrapper->magic == WRAPPER && wrapper->version == LINKED && wrapper->fatbins)
        return load_linked(module, wrapper->fatbins);
    if (wrapper->magic == WRAPPER) image = wrapper->data;
    return _load(module, (void *)image, image_size(image));
}

static CUresult load_file(uint64_t *module, const char *name) {
    FILE *file = name ? fopen(name, "rb") : NULL;
    if (!file) return FILE_NOT_FOUND;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *image = calloc(1, size + 1);
    CUresult status = image && fread(image, 1, size, file) == (size_t)size
                          ? _load(module, image, size) : INVALID_VALUE;
    free(image);
    fclose(file);
    return status;
}

EXPORT CUresult cuModuleLoadData(uint64_t *module, const void *image) { return load(module, image); }
EXPORT CUresult cuModuleLoadFatBinary(uint64_t *module, const void *image) {
    return load(module, image);
}
EXPORT CUresult cuModuleLoadDataEx(uint64_t *module, const void *image, unsigned count,
                                   int *options, void **values) {
    return load(module, image);
}
EXPORT CUresult cuModuleLoad(uint64_t *module, const char *name) { return load_file(module, name); }
EXPORT CUresult cuLibraryLoadData(uint64_t *library, const void *image, int *options,
                                  void **values, unsigned count, int *more, void **its,
                                  unsigned number) {
    return load(library, image);
}
EXPORT CUresult cuLibraryLoadFromFile(uint64_t *library, const char *name, int *options,
                                      void **values, unsigned count, int *more, void **its,
                                      unsigned number) {
    return load_file(library, name);
}

EXPORT CUresult cuLibraryEnumerateKernels(uint64_t *handles, unsigned most, uint64_t library) {
    return _kernels(handles, library, most);
}
EXPORT CUresult cuModuleEnumerateFunctions(uint64_t *handles, unsigned most, uint64_t module) {
    return _kernels(handles, module, most);
}

/* Where each parameter lies in a kernel's parameter space: asked for once. */
struct layout {
    uint64_t function;
    uint32_t count, bytes;
    struct { uint32_t offset, size; } at[4096];
};
static struct layout **layouts;
static size_t known, places;
static pthread_mutex_t layout_lock = PTHREAD_MUTEX_INITIALIZER;

static struct layout *asked(uint64_t function, CUresult *status) {
    for (size_t i = known; i--;)
        if (layouts[i]->function == function) return layouts[i];
    static struct { uint32_t count, bytes; uint32_t at[2 * 4096]; } answer;
    *status = _layout(&answer, function);
    if (*status != SUCCESS) return NULL;
    struct layout *made = malloc(offsetof(struct layout, at) + answer.count * 8);
    if (known == places)
        layouts = realloc(layouts, (places = 2 * places + 16) * sizeof *layouts);
    if (!made || !layouts) abort();
    made->function = function, made->count = answer.count, made->bytes = answer.bytes;
    memcpy(made->at, answer.at, answer.count * 8);
    return layouts[known++] = made;
}

static struct layout *layout(uint64_t function, CUresult *status) {
    pthread_mutex_lock(&layout_lock);
    struct layout *found = asked(function, status);
    pthread_mutex_unlock(&layout_lock);
    return found;
}

struct launch {
    uint32_t grid[3], block[3], shared, cluster[3], cooperative;
};

struct call {
    uint64_t function;
    struct launch launch;
    size_t size;
    char packed[32764]; /* bytes of parameters at most (PTX ISA) */
};

static CUresult launched(const void *what) {
    const struct call *call = what;
    call_begin(CALL_LAUNCH);
    put(call->function);
    put_bytes(&call->launch, sizeof call->launch);
    put_bytes(call->packed, call->size);
    CUresult status = call_send();
    call_end();
    return status;
}

static CUresult launch(uint64_t function, struct launch *launch, void *stream, void **parameters,
                       void **extra) {
    CUresult status = SUCCESS;
    struct call call = {function, *launch};
    char *packed = call.packed;
    size_t size = 0;
    struct layout *where = layout(function, &status);
    if (!where) return status;
    if (parameters) {
        size = where->bytes;
        for (uint32_t i = 0; i < where->count; i++)
            memcpy(packed + where->at[i].offset, parameters[i], where->at[i].size);
    } else if (extra) {
        const char *from = NULL;
        for (; *extra; extra += 2) {
            if (*extra == (void *)1) from = extra[1];         /* CU_LAUNCH_PARAM_BUFFER_POINTER */
            if (*extra == (void *)2) size = *(size_t *)extra[1]; /* ..._BUFFER_SIZE */
        }
        if (!from || size > sizeof call.packed) return INVALID_VALUE;
        memcpy(packed, from, size);
    }
    call.size = size;
    size = offsetof(struct call, packed) + size;
    return captured(stream, launched, &call, size) ? SUCCESS : launched(&call);
}

EXPORT CUresult cuLaunchKernel(uint64_t function, unsigned gx, unsigned gy, unsigned gz,
                               unsigned bx, unsigned by, unsigned bz, unsigned shared,
                               void *stream, void **parameters, void **extra) {
    struct launch what = {{gx, gy, gz}, {bx, by, bz}, shared};
    return launch(function, &what, stream, parameters, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(uint64_t function, unsigned gx, unsigned gy, unsigned gz,
                                          unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                          void *stream, void **parameters) {
    struct launch what = {{gx, gy, gz}, {bx, by, bz}, shared, {0}, 1};
    return launch(function, &what, stream, parameters, NULL);
}

struct attribute { /* CUlaunchAttribute */
    unsigned id, pad;
    uint32_t value[16];
};
struct configuration { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
    struct attribute *attributes;
    unsigned count;
};

static struct launch described(const struct configuration *given) {
    struct launch what = {.shared = given->shared};
    memcpy(what.grid, given->grid, sizeof what.grid);
    memcpy(what.block, given->block, sizeof what.block);
    for (unsigned i = 0; i < given->count; i++) {
        if (given->attributes[i].id == CLUSTER_DIMENSION)
            memcpy(what.cluster, given->attributes[i].value, sizeof what.cluster);
        if (given->attributes[i].id == COOPERATIVE) what.cooperative = given->attributes[i].value[0];
    }
    return what;
}

EXPORT CUresult cuLaunchKernelEx(const struct configuration *configuration, uint64_t function,
                                 void **parameters, void **extra) {
    if (!configuration) return INVALID_VALUE;
    struct launch what = described(configuration);
    return launch(function, &what, configuration->stream, parameters, extra);
}

EXPORT CUresult cuOccupancyMaxActiveClusters(int *clusters, uint64_t function,
                                             const struct configuration *configuration) {
    struct launch what = described(configuration);
    unsigned blocks = what.cluster[0] * what.cluster[1] * what.cluster[2];
    return _clusters(clusters, function, blocks ? blocks : 1);
}

EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int *size, uint64_t function,
                                                   const struct configuration *configuration) {
    *size = 8; /* the portable size */
    return SUCCESS;
}

typedef size_t (*shared_of)(int threads);
EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, uint64_t function,
                                                          shared_of of, size_t shared, int most,
                                                          unsigned flags) {
    int best = 0, blocks;
    *grid = *block = 0;
    for (int threads = most > 0 && most < 1024 ? most : 1024; threads >= 32; threads -= 32) {
        if (of) shared = of(threads);
        CUresult status = _occupancy(&blocks, function, threads, shared);
        if (status != SUCCESS) return status;
        if (blocks * threads > best) best = blocks * threads, *block = threads, *grid = blocks;
    }
    CUresult status = _clusters(&blocks, function, 1); /* so many multiprocessors */
    *grid *= blocks;
    return status;
}
EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, uint64_t function,
                                                 shared_of of, size_t shared, int most) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, of, shared, most, 0);
}

/* What a stream calls on the host: all before it is done. */
struct host {
    void (*function)(void *);
    void *data;
};
static CUresult called(const void *what) {
    const struct host *host = what;
    host->function(host->data);
    return SUCCESS;
}
EXPORT CUresult cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    struct host host = {function, data};
    return captured(stream, called, &host, sizeof host) ? SUCCESS : called(&host);
}
EXPORT CUresult cuStreamAddCallback(void *stream, void (*function)(void *, CUresult, void *),
                                    void *data, unsigned flags) {
    function(stream, SUCCESS, data);
    return SUCCESS;
}

/* The linker: of one input, which is what it makes; nothing here could join several. */
struct linking {
    char *image;
    size_t size;
};
EXPORT CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
    *state = calloc(1, sizeof(struct linking));
    return *state ? connected() : OUT_OF_MEMORY;
}
EXPORT CUresult cuLinkAddData_v2(struct linking *state, int kind, const void *data, size_t size,
                                 const char *name, unsigned count, int *options, void **values) {
    if (state->image) {
        complain("cuLinkAddData", "more than one input: PTX that must be linked is not modelled");
        return NOT_SUPPORTED;
    }
    state->image = calloc(1, size + 1);
    if (!state->image) return OUT_OF_MEMORY;
    memcpy(state->image, data, state->size = size);
    return SUCCESS;
}
EXPORT CUresult cuLinkComplete(struct linking *state, void **image, size_t *size) {
    if (!state->image) return INVALID_VALUE;
    *image = state->image;
    if (size) *size = state->size;
    return SUCCESS;
}
EXPORT CUresult cuLinkDestroy(struct linking *state) {
    free(state->image);
    free(state);
    return SUCCESS;
}
