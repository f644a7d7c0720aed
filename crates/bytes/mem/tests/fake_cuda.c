/* A fake libcuda.so.1 for tests without a GPU: the two calls that pin and unpin host memory, the question whether an
 * address is pinned, and a "device" that reads pinned memory.
 *
 * Pinning is real: vmsplice(2) puts references to the pages that are mapped at that moment into a pipe, as a driver's DMA
 * mapping holds them. What the device reads later comes from those pages, wherever the process's own addresses lead by then.
 * The kernel's counters of pinned memory (VmPin) do not count these references, as they do not count NVIDIA's.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, RANGES = 16, MEMORY_TYPE = 2, TYPE_HOST = 1 };

static struct range { uintptr_t first; size_t len; int pipe[2]; } ranges[RANGES];

static struct range *range_of(uintptr_t address)
{
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].len && address - ranges[i].first < ranges[i].len)
            return &ranges[i];
    return NULL;
}

/* CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags): whole pages, at most 256 KiB. */
int cuMemHostRegister_v2(void *p, size_t len, unsigned flags)
{
    (void)flags;
    for (int i = 0; i < RANGES; i++) {
        struct range *range = &ranges[i];
        if (range->len)
            continue;
        if (pipe2(range->pipe, O_CLOEXEC) || fcntl(range->pipe[1], F_SETPIPE_SZ, 1 << 20) < 0)
            return INVALID_VALUE;
        struct iovec piece = {p, len};
        if (vmsplice(range->pipe[1], &piece, 1, SPLICE_F_NONBLOCK) != (ssize_t)len)
            return INVALID_VALUE;
        range->first = (uintptr_t)p;
        range->len = len;
        return SUCCESS;
    }
    return INVALID_VALUE;
}

int cuMemHostUnregister(void *p)
{
    struct range *range = range_of((uintptr_t)p);
    if (!range)
        return INVALID_VALUE;
    close(range->pipe[0]);
    close(range->pipe[1]);
    range->len = 0;
    return SUCCESS;
}

static int asked;

/* CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) */
int cuPointerGetAttribute(void *data, int attribute, unsigned long long address)
{
    asked++;
    if (attribute != MEMORY_TYPE || !range_of((uintptr_t)address))
        return INVALID_VALUE;
    *(unsigned *)data = TYPE_HOST;
    return SUCCESS;
}

/* Questions so far. */
int fake_cuda_asked(void)
{
    return asked;
}

/* The byte at `address` as the device sees it, or -1. */
int fake_cuda_device_reads(void *address)
{
    struct range *range = range_of((uintptr_t)address);
    int copy[2];
    if (!range || pipe2(copy, O_CLOEXEC) || fcntl(copy[1], F_SETPIPE_SZ, 1 << 20) < 0)
        return -1;
    unsigned char *bytes = malloc(range->len);
    int seen = -1;
    if (tee(range->pipe[0], copy[1], range->len, SPLICE_F_NONBLOCK) == (ssize_t)range->len) {
        size_t have = 0;
        ssize_t n;
        while (have < range->len && (n = read(copy[0], bytes + have, range->len - have)) > 0)
            have += n;
        if (have == range->len)
            seen = bytes[(uintptr_t)address - range->first];
    }
    free(bytes);
    close(copy[0]);
    close(copy[1]);
    return seen;
}
