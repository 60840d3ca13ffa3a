/* What the files of the client share. They are compiled as one, with what interface.py generates. Names, numbers and layouts are those of NVIDIA's CUDA Driver
   API reference; handles are addresses or numbers that the program only hands back. */

#pragma once
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    FILE_NOT_FOUND = 301,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801,
};

/* One call of the server: begin, put the arguments, send; then take the results, and end. A lock is
   held from begin to end. Most calls are generated. */
void call_begin(unsigned function);
void put(uint64_t value);
void put_bytes(const void *data, size_t size); /* NULL is sent as such */
CUresult call_send(void);
void take(void *to, size_t size);                /* to may be NULL */
size_t take_sized(void *to, size_t most);        /* as many bytes as the server sent, or fewer */
const char *take_text(void);                     /* lives as long as the process */
void call_end(void);

CUresult connected(void);            /* connect to the server, once */
int cuStandInHas(uint64_t address); /* whether it is an address of the GPU's memory */
uint64_t heap_offset_mapping(int *descriptor); /* the file behind the memory */
static inline void complain(const char *function, const char *text) {
    fprintf(stderr, "triton-ext: %s: %s\n", function, text);
}
static inline CUresult missing(const char *function) {
    complain(function, "the emulated GPU's stand-in for CUDA does not have this function");
    return NOT_SUPPORTED;
}

/* Whether a stream is captured: then what it was asked is done at each launch of its graph, as
   again(what), of a copy of `size` bytes. */
int captured(void *stream, CUresult (*again)(const void *), const void *what, size_t size);

/* Generated: every function by its name. */
void *function_of(const char *name);

enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 }; /* CUmemorytype */
struct plane { /* CUDA_MEMCPY2D */
    size_t from_x, from_y;
    unsigned from_type;
    uint64_t from_host, from_device, from_array;
    size_t from_pitch, to_x, to_y;
    unsigned to_type;
    uint64_t to_host, to_device, to_array;
    size_t to_pitch, width, height;
};
struct space { /* CUDA_MEMCPY3D */
    size_t from_x, from_y, from_z, from_lod;
    unsigned from_type;
    uint64_t from_host, from_device, from_array, reserved0;
    size_t from_pitch, from_height, to_x, to_y, to_z, to_lod;
    unsigned to_type;
    uint64_t to_host, to_device, to_array, reserved1;
    size_t to_pitch, to_height, width, height, depth;
};

void *current_context(void);
