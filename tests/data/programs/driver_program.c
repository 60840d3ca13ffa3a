/* A program that calls CUDA's driver as its reference says, with declarations of its own. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
#define CALL(name, types, ...) ((int (*) types)dlsym(library, name))(__VA_ARGS__)
#define CHECK(call)                                             \
    do {                                                        \
        int status = (call);                                    \
        if (status) printf("line %d: %d\n", __LINE__, status);  \
    } while (0)
typedef uint64_t u64;

static char *text_of(const char *name) {
    FILE *file = fopen(name, "rb");
    char *text = calloc(1, 1 << 20);
    if (!file || !fread(text, 1, (1 << 20) - 1, file)) exit(9);
    return text;
}

int main(int count, char **arguments) {
    const char *mode = arguments[1];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return 8;
    void *context;
    u64 module, function, in, out, variable;
    size_t size;
    int device, sms, n = 100;
    if (CALL("cuInit", (unsigned), 0)) return 7;
    CHECK(CALL("cuDeviceGet", (int *, int), &device, 0));
    CHECK(CALL("cuDeviceGetAttribute", (int *, int, int), &sms, 16, device));
    CHECK(CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device));
    CHECK(CALL("cuCtxSetCurrent", (void *), context));
    if (!strcmp(mode, "image")) { /* what is not PTX */
        printf("%d\n", CALL("cuModuleLoadData", (u64 *, void *), &module, text_of(arguments[2])));
        return 0;
    }
    CHECK(CALL("cuModuleLoadData", (u64 *, void *), &module, text_of(arguments[2])));
    CHECK(CALL("cuModuleGetFunction", (u64 *, u64, const char *), &function, module, "saxpy"));
    CHECK(CALL("cuModuleGetGlobal_v2", (u64 *, size_t *, u64, const char *), &variable, &size, module,
               "scale"));
    CHECK(CALL("cuMemAlloc_v2", (u64 *, size_t), &in, n * 4));
    CHECK(CALL("cuMemAlloc_v2", (u64 *, size_t), &out, n * 4));
    float host[100], factor = 2;
    for (int i = 0; i < n; i++) host[i] = i;
    CHECK(CALL("cuMemcpyHtoD_v2", (u64, void *, size_t), in, host, n * 4));
    CHECK(CALL("cuMemsetD32_v2", (u64, unsigned, size_t), out, 0x3f800000, n)); /* 1.0f */
    CHECK(CALL("cuMemcpyHtoD_v2", (u64, void *, size_t), variable, &factor, 4));

    if (!strcmp(mode, "past")) n = 101;
    if (!strcmp(mode, "freed")) CHECK(CALL("cuMemFree_v2", (u64), in));
    if (!strcmp(mode, "host")) in = (u64)host;
    if (!strcmp(mode, "registered")) { /* memory of the heap, which kernels then reach */
        float *own = malloc(n * 4);
        memcpy(own, host, n * 4);
        CHECK(CALL("cuMemHostRegister_v2", (void *, size_t, unsigned), own, n * 4, 0));
        in = (u64)own;
    }
    float a = 3;
    void *parameters[] = {&out, &in, &a, &n};
    printf("launching\n");
    unsigned threads = strcmp(mode, "threads") ? 128 : 2048;
    int status = CALL("cuLaunchKernel",
                      (u64, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       void *, void **, void **),
                      function, 1, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL);
    if (status) return printf("%d\n", status), 5;
    if (!strcmp(mode, "missing")) {
        printf("%d\n", CALL("cuTexRefCreate", (u64 *), &module));
        void *found;
        int state;
        printf("%d", CALL("cuGetProcAddress_v2", (const char *, void **, int, u64, int *), "cuNothing",
                          &found, 13000, 0, &state));
        printf(" %d\n", state);
    }
    if (!strcmp(mode, "copy"))
        printf("%d\n", CALL("cuMemcpyDtoH_v2", (void *, u64, size_t), host, out, n * 4 + 4));
    if (!strcmp(mode, "twice")) {
        CHECK(CALL("cuMemFree_v2", (u64), in));
        printf("%d\n", CALL("cuMemFree_v2", (u64), in));
    }
    if (!strcmp(mode, "table")) {
        char id[16] = {0};
        void *table;
        printf("%d\n", CALL("cuGetExportTable", (void **, void *), &table, id));
    }
    CHECK(CALL("cuMemcpyDtoH_v2", (void *, u64, size_t), host, out, n * 4));
    printf("%g %g %d\n", host[0], host[99], sms);
    return 0;
}
