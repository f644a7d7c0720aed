/* A fake libcuda.so.1 with the memory of a "device", for tests without a GPU.
 *
 * Addresses of the device are a reservation without rights, so that an access by the processor faults. The bytes lie in a memfd
 * that is mapped elsewhere. Asynchronous copies are queued, and one thread works them off, in the order of each stream, after
 * delays drawn by a seed. Contexts are a stack of each thread; a copy outside the context of its stream is refused. Memory that
 * was freed is refused, too: at the call, or when the copy's turn comes.
 *
 * Host memory that is registered must be mapped until it is unregistered, no copy may use it then, and a stream is destroyed
 * once: otherwise the process ends (abort).
 *
 * What the tests need besides: fake_cuda_hold stops the copies, fake_cuda_fail_next has one fail, fake_cuda_fail_query has one
 * question for their end fail, fake_cuda_copies counts them, fake_cuda_streams and fake_cuda_pinned count what has not been given back.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600,
    HOST_MEMORY_NOT_REGISTERED = 713, LAUNCH_FAILED = 719,
};
enum { ATTRIBUTE_CONTEXT = 1, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_DEVICE_ORDINAL = 9, TYPE_DEVICE = 2 };
enum { BLOCKS = 256, STREAMS = 1024, PINS = 256, QUEUE = 1024, DEPTH = 16, CONTEXTS = 4 };
#define DEVICE_BYTES ((size_t)256 << 20)
#define GRANULE ((size_t)64 << 10)

struct context { int number; };
struct block { uint64_t first; size_t len; int live; struct context *context; };
struct stream { struct context *context; uint64_t submitted, ended; int error, live; };
struct pin { uint8_t *at; size_t len; };
struct copy { struct stream *stream; uint64_t device; uint8_t *host; size_t len; int to_device; };

static struct context contexts[CONTEXTS];
static struct block blocks[BLOCKS];
static struct stream streams[STREAMS];
static struct pin pins[PINS];
static struct copy queue[QUEUE];
static unsigned stream_count, head, tail;
static uint8_t *reserved, *bytes;
static size_t used;
static int held, fail_in = -1, fail_query_in = -1;
static unsigned long long copies, delay_us, state = 88172645463325252ULL;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread struct context *stack[DEPTH];
static __thread int depth;

static unsigned long long draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* The bytes of a live range of the device; with the lock. */
static uint8_t *bytes_of(uint64_t device, size_t len)
{
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &blocks[i];
        if (b->live && device >= b->first && device - b->first <= b->len && len <= b->len - (device - b->first))
            return bytes + (device - (uint64_t)reserved);
    }
    return NULL;
}

static int move_bytes(uint64_t device, uint8_t *host, size_t len, int to_device)
{
    uint8_t *at = bytes_of(device, len);
    if (!at)
        return INVALID_VALUE;
    if (to_device)
        memcpy(at, host, len);
    else
        memcpy(host, at, len);
    return SUCCESS;
}

static void *work(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (held || head == tail)
            pthread_cond_wait(&change, &lock);
        if (delay_us) {
            unsigned us = (unsigned)(draw() % delay_us);
            pthread_mutex_unlock(&lock);
            usleep(us);
            pthread_mutex_lock(&lock);
            if (held)
                continue;
        }
        struct copy c = queue[head++ % QUEUE];
        int rc = c.stream->error ? c.stream->error : move_bytes(c.device, c.host, c.len, c.to_device);
        if (fail_in == 0)
            rc = LAUNCH_FAILED;
        if (fail_in >= 0)
            fail_in--;
        if (rc)
            c.stream->error = rc;
        c.stream->ended++;
        copies++;
        pthread_cond_broadcast(&change);
    }
    return NULL;
}

static void begin(void)
{
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, DEVICE_BYTES))
        abort();
    bytes = mmap(NULL, DEVICE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    reserved = mmap(NULL, DEVICE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    close(fd);
    if (bytes == MAP_FAILED || reserved == MAP_FAILED)
        abort();
    for (int i = 0; i < CONTEXTS; i++)
        contexts[i].number = i;
    const char *us = getenv("BURST_FAKE_CUDA_DELAY_US"), *seed = getenv("BURST_FAKE_CUDA_SEED");
    delay_us = us ? strtoull(us, NULL, 0) : 0;
    state += seed ? strtoull(seed, NULL, 0) : 0;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL))
        abort();
    pthread_detach(thread);
}

int cuInit(unsigned flags)
{
    (void)flags;
    pthread_once(&once, begin);
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    cuInit(0);
    if (device)
        return INVALID_VALUE;
    *context = &contexts[0];
    return SUCCESS;
}

int cuCtxPushCurrent_v2(struct context *context)
{
    if (!context || context < contexts || context >= contexts + CONTEXTS || depth == DEPTH)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(struct context **context)
{
    if (!depth)
        return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}

static struct context *current(void)
{
    return depth ? stack[depth - 1] : NULL;
}

int cuMemAlloc_v2(uint64_t *device, size_t len)
{
    if (!current())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    size_t rounded = (len + GRANULE - 1) / GRANULE * GRANULE;
    int rc = OUT_OF_MEMORY;
    for (int i = 0; i < BLOCKS && len && rounded <= DEVICE_BYTES - used; i++) {
        if (blocks[i].len)
            continue;
        blocks[i] = (struct block){(uint64_t)reserved + used, len, 1, current()};
        *device = blocks[i].first;
        used += rounded;
        rc = SUCCESS;
        break;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuMemFree_v2(uint64_t device)
{
    int rc = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].live && blocks[i].first == device) {
            blocks[i].live = 0;
            rc = SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return rc;
}

static int copy_now(uint64_t device, void *host, size_t len, int to_device)
{
    if (!current())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    int rc = move_bytes(device, host, len, to_device);
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuMemcpyHtoD_v2(uint64_t device, const void *host, size_t len)
{
    return copy_now(device, (void *)host, len, 1);
}

int cuMemcpyDtoH_v2(void *host, uint64_t device, size_t len)
{
    return copy_now(device, host, len, 0);
}

int cuStreamCreate(struct stream **stream, unsigned flags)
{
    (void)flags;
    if (!current())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    int rc = stream_count < STREAMS ? SUCCESS : OUT_OF_MEMORY;
    if (!rc) {
        *stream = &streams[stream_count++];
        (*stream)->context = current();
        (*stream)->live = 1;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuStreamDestroy_v2(struct stream *stream)
{
    if (stream->context != current())
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    if (!stream->live)
        abort();
    stream->live = 0;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuStreamQuery(struct stream *stream)
{
    if (stream->context != current())
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    if (!stream->live)
        abort();
    int rc = stream->ended < stream->submitted ? NOT_READY : stream->error;
    if (fail_query_in == 0)
        rc = INVALID_VALUE;
    if (fail_query_in >= 0)
        fail_query_in--;
    pthread_mutex_unlock(&lock);
    return rc;
}

static int submit(uint64_t device, void *host, size_t len, struct stream *stream, int to_device)
{
    if (!current())
        return INVALID_CONTEXT;
    if (!stream || stream->context != current())
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    int rc = bytes_of(device, len) ? SUCCESS : INVALID_VALUE;
    if (!stream->live)
        abort();
    if (!rc) {
        while (tail - head == QUEUE)
            pthread_cond_wait(&change, &lock);
        queue[tail++ % QUEUE] = (struct copy){stream, device, host, len, to_device};
        stream->submitted++;
        pthread_cond_broadcast(&change);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuMemcpyHtoDAsync_v2(uint64_t device, const void *host, size_t len, struct stream *stream)
{
    return submit(device, (void *)host, len, stream, 1);
}

int cuMemcpyDtoHAsync_v2(void *host, uint64_t device, size_t len, struct stream *stream)
{
    return submit(device, host, len, stream, 0);
}

int cuPointerGetAttribute(void *data, int attribute, uint64_t address)
{
    int rc = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &blocks[i];
        if (!b->live || address < b->first || address - b->first >= b->len)
            continue;
        rc = SUCCESS;
        if (attribute == ATTRIBUTE_CONTEXT)
            *(struct context **)data = b->context;
        else if (attribute == ATTRIBUTE_MEMORY_TYPE)
            *(unsigned *)data = TYPE_DEVICE;
        else if (attribute == ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data = 0;
        else
            rc = INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuPointerSetAttribute(const void *value, int attribute, uint64_t address)
{
    unsigned type;
    (void)value;
    (void)attribute;
    return cuPointerGetAttribute(&type, ATTRIBUTE_MEMORY_TYPE, address);
}

/* Whether all pages of a range are mapped. */
static int is_mapped(uint8_t *at, size_t len)
{
    uint8_t *first = (uint8_t *)((uintptr_t)at & ~(uintptr_t)4095);
    return !msync(first, len + (size_t)(at - first), MS_ASYNC);
}

int cuMemHostRegister_v2(void *host, size_t len, unsigned flags)
{
    (void)flags;
    if (!host || !len || !current())
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int rc = OUT_OF_MEMORY;
    for (int i = 0; i < PINS && rc; i++) {
        struct pin *pin = &pins[i];
        if (pin->len && (uint8_t *)host < pin->at + pin->len && pin->at < (uint8_t *)host + len)
            abort();
    }
    for (int i = 0; i < PINS && rc; i++)
        if (!pins[i].len) {
            pins[i] = (struct pin){host, len};
            rc = SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return rc;
}

int cuMemHostUnregister(void *host)
{
    if (!current())
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    int rc = HOST_MEMORY_NOT_REGISTERED;
    for (int i = 0; i < PINS; i++) {
        struct pin *pin = &pins[i];
        if (!pin->len || pin->at != host)
            continue;
        for (unsigned c = head; c != tail; c++)
            if (queue[c % QUEUE].host >= pin->at && queue[c % QUEUE].host < pin->at + pin->len)
                abort();
        if (!is_mapped(pin->at, pin->len))
            abort();
        pin->len = 0;
        rc = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

/* Host memory that is registered; all of it must be mapped. */
int fake_cuda_pinned(void)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < PINS; i++) {
        if (!pins[i].len)
            continue;
        if (!is_mapped(pins[i].at, pins[i].len))
            abort();
        count++;
    }
    pthread_mutex_unlock(&lock);
    return count;
}

/* Streams that have not been destroyed. */
int fake_cuda_streams(void)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < stream_count; i++)
        count += streams[i].live;
    pthread_mutex_unlock(&lock);
    return count;
}

/* The question for the end of copies behind the next `count` fails. */
void fake_cuda_fail_query(int count)
{
    pthread_mutex_lock(&lock);
    fail_query_in = count;
    pthread_mutex_unlock(&lock);
}

void fake_cuda_hold(int hold)
{
    pthread_mutex_lock(&lock);
    held = hold;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

/* The asynchronous copy behind the next `count` fails when its turn comes. */
void fake_cuda_fail_next(int count)
{
    pthread_mutex_lock(&lock);
    fail_in = count;
    pthread_mutex_unlock(&lock);
}

unsigned long long fake_cuda_copies(void)
{
    pthread_mutex_lock(&lock);
    unsigned long long now = copies;
    pthread_mutex_unlock(&lock);
    return now;
}
