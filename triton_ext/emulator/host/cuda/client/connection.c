/* The connection to the emulator, and the memory that both map. See server.py for the messages. */

#include "client.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#define ENDED 1000000 /* a status of the server's: the program ends, with exit status 1 */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int server = -1, memory_file = -1;
static pid_t owner;
static uint64_t heap_start, heap_size, heap_space;
static char *buffer;
static size_t capacity, filled, position;

/* Stands in for the emulator's end: nothing can be computed any more. */
static void end_program(void) {
    fflush(NULL);
    _exit(1);
}

static void room(size_t size) {
    if (filled + size <= capacity) return;
    capacity = (filled + size) * 2 + 4096;
    buffer = realloc(buffer, capacity);
    if (!buffer) abort();
}

static int read_all(void *to, size_t size) {
    for (char *at = to; size;) {
        ssize_t got = read(server, at, size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        at += got, size -= got;
    }
    return 1;
}

static int write_all(const void *from, size_t size) {
    for (const char *at = from; size;) {
        ssize_t got = send(server, at, size, MSG_NOSIGNAL);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        at += got, size -= got;
    }
    return 1;
}

/* The server's greeting: address and size of the memory, the size with addresses that may be mapped
   behind it, and its file. */
static int greeted(void) {
    uint64_t told[3];
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {told, sizeof told};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    if (recvmsg(server, &message, MSG_CMSG_CLOEXEC) != sizeof told) return 0;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS) return 0;
    memcpy(&memory_file, CMSG_DATA(header), sizeof memory_file);
    heap_start = told[0], heap_size = told[1], heap_space = told[2];
    void *mapped = mmap((void *)heap_start, heap_size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, memory_file, 0);
    return mapped == (void *)heap_start;
}

static CUresult connect_once(void) {
    if (server >= 0) return owner == getpid() ? SUCCESS : NOT_INITIALIZED; /* as after a fork */
    const char *path = getenv("TRITON_EXT_CUDA");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || strlen(path) >= sizeof address.sun_path) return NO_DEVICE;
    strcpy(address.sun_path, path);
    server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address) || !greeted()) {
        complain("cuInit", "the emulator cannot be reached");
        if (server >= 0) close(server);
        server = -1;
        return NO_DEVICE;
    }
    owner = getpid();
    return SUCCESS;
}

CUresult connected(void) {
    pthread_mutex_lock(&lock);
    CUresult status = connect_once();
    pthread_mutex_unlock(&lock);
    return status;
}

EXPORT int cuStandInHas(uint64_t address) {
    return server >= 0 && address - heap_start < heap_space;
}

uint64_t heap_offset_mapping(int *descriptor) {
    *descriptor = memory_file;
    return heap_start;
}

void call_begin(unsigned function) {
    pthread_mutex_lock(&lock);
    filled = 8;
    room(0);
    memcpy(buffer + 4, &function, 4);
}

void put(uint64_t value) {
    room(8);
    memcpy(buffer + filled, &value, 8);
    filled += 8;
}

void put_bytes(const void *data, size_t size) {
    put(data ? size : UINT64_MAX);
    if (!data) return;
    room(size);
    memcpy(buffer + filled, data, size);
    filled += size;
}

CUresult call_send(void) {
    CUresult status = connect_once();
    position = filled = filled * (status == SUCCESS);
    if (status != SUCCESS) return status;
    uint32_t size = filled - 8, answer[3];
    memcpy(buffer, &size, 4);
    if (!write_all(buffer, filled) || !read_all(answer, sizeof answer)) {
        complain("the emulated GPU", "the emulator has ended");
        end_program();
    }
    filled = 0;
    room(answer[1] + answer[2]);
    if (!read_all(buffer, answer[1] + answer[2])) end_program();
    fwrite(buffer, 1, answer[1], stdout); /* what kernels have printed */
    position = answer[1];
    filled = answer[1] + answer[2];
    if (answer[0] == ENDED) end_program();
    return answer[0];
}

void take(void *to, size_t size) {
    if (position + size > filled) abort(); /* the two sides do not agree on a function */
    if (to) memcpy(to, buffer + position, size);
    position += size;
}

size_t take_sized(void *to, size_t most) {
    uint64_t size;
    take(&size, 8);
    if (position + size > filled) abort();
    size_t copied = size < most ? size : most;
    if (to) memcpy(to, buffer + position, copied);
    position += size;
    return copied;
}

const char *take_text(void) {
    uint64_t size;
    memcpy(&size, buffer + position, 8);
    char *text = calloc(1, size + 1);
    take_sized(text, size);
    return text;
}

void call_end(void) { pthread_mutex_unlock(&lock); }
