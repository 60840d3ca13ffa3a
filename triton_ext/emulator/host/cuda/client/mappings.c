/* Virtual memory: the server says where in the file the memory lies, and it is mapped here. */

#include "client.h"
#include <sys/mman.h>

EXPORT CUresult cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle,
                         uint64_t flags) {
    uint64_t at;
    int file;
    CUresult status = _map(&at, address, size, offset, handle);
    if (status != SUCCESS) return status;
    heap_offset_mapping(&file);
    void *mapped = mmap((void *)address, size, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, (off_t)at);
    return mapped == (void *)address ? SUCCESS : OUT_OF_MEMORY;
}

EXPORT CUresult cuMemUnmap(uint64_t address, size_t size) {
    CUresult status = _unmap(address, size);
    if (status == SUCCESS) munmap((void *)address, size);
    return status;
}
