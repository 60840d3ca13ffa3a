/* Loaded into each process of the program before all else: what programs look at beside the
   driver, and a compiler that they start. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* Some look for the files of NVIDIA's kernel module before they load the driver: here those have
   the state of /dev/null. */
static const char *seen(const char *path) {
    int is_gpu = path && (!strcmp(path, "/dev/nvidia0") || !strcmp(path, "/dev/nvidiactl"));
    return is_gpu ? "/dev/null" : path;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

EXPORT int stat(const char *path, struct stat *state) {
    NEXT(stat);
    return next(seen(path), state);
}
EXPORT int stat64(const char *path, struct stat64 *state) {
    NEXT(stat64);
    return next(seen(path), state);
}
EXPORT int access(const char *path, int mode) {
    NEXT(access);
    return next(seen(path), mode);
}

/* What programs that were built for glibc before 2.33 call instead. */
int __xstat(int version, const char *path, struct stat *state);
int __xstat64(int version, const char *path, struct stat64 *state);
EXPORT int __xstat(int version, const char *path, struct stat *state) {
    NEXT(__xstat);
    return next(version, seen(path), state);
}
EXPORT int __xstat64(int version, const char *path, struct stat64 *state) {
    NEXT(__xstat64);
    return next(version, seen(path), state);
}

/* NVRTC, which compiles within the program, has the PTX also where it was asked for a real
   architecture (NVRTC's documentation, nvrtcGetPTX): a program that asks for the machine code gets
   the PTX in its place, which the driver takes as well; with -lineinfo, so that faults have lines. */
int nvrtcCompileProgram(void *program, int count, const char *const *options);
int nvrtcGetPTXSize(void *program, size_t *size);
int nvrtcGetPTX(void *program, char *code);
EXPORT int nvrtcCompileProgram(void *program, int count, const char *const *options) {
    NEXT(nvrtcCompileProgram);
    const char **more = calloc(count + 1, sizeof *more);
    if (!more) return 1; /* NVRTC_ERROR_OUT_OF_MEMORY */
    more[0] = "-lineinfo";
    for (int i = 0; i < count; i++) more[i + 1] = options[i];
    int status = next(program, count + 1, more);
    free(more);
    return status;
}
EXPORT int nvrtcGetCUBINSize(void *program, size_t *size) {
    NEXT(nvrtcGetPTXSize);
    return next(program, size);
}
EXPORT int nvrtcGetCUBIN(void *program, char *code) {
    NEXT(nvrtcGetPTX);
    return next(program, code);
}

/* NVIDIA's assembler, when a program compiles kernels while it runs: with -lineinfo it copies the
   PTX into what it makes (the section .nv_debug_ptx_txt), and the PTX is what is run. */
__attribute__((constructor)) static void keep_ptx(int count, char **arguments, char **environment) {
    if (strcmp(program_invocation_short_name, "ptxas")) return;
    for (int i = 1; i < count; i++)
        if (!strcmp(arguments[i], "-lineinfo") || !strcmp(arguments[i], "--generate-line-info") ||
            !strcmp(arguments[i], "-g") || !strcmp(arguments[i], "--device-debug"))
            return;
    char **more = calloc(count + 2, sizeof *more);
    if (!more) return;
    memcpy(more, arguments, count * sizeof *more);
    more[count] = "-lineinfo";
    execve("/proc/self/exe", more, environment);
    free(more); /* it is not started again: it works without, and the driver says what is missing */
}
