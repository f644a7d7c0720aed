/*
 * urma_aperture serve FILE: registers 4 MiB, in which word i holds i, writes the description of the segment to FILE, and waits for the end
 * of its standard input. Then it prints the first word, the counter and the last word.
 * urma_aperture use FILE ROUNDS: imports the segment; loads, stores and atomics; an aperture: reads it, changes it, flushes it. Prints
 * one JSON object of times: medians of ROUNDS in nanoseconds.
 *
 * Built with UMDK's headers and Burst's burst_urma.h.
 */
#include "burst_urma.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <urma_api.h>

#define BYTES (4u << 20)
#define WORDS (BYTES / 8)
#define PAGE 4096u
#define COUNTER 2u

static void check(int is_good, const char *what) {
    if (!is_good) {
        fprintf(stderr, "urma_aperture: %s failed\n", what);
        exit(1);
    }
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int by_number(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

static double median(uint64_t *times, size_t count) {
    qsort(times, count, sizeof *times, by_number);
    return (double)times[count / 2];
}

static urma_context_t *open_device(void) {
    urma_init_attr_t attr = {0};
    check(urma_init(&attr) == URMA_SUCCESS, "urma_init");
    urma_device_t *device = urma_get_device_by_name("burst0");
    check(device != NULL, "urma_get_device_by_name");
    urma_context_t *ctx = urma_create_context(device, 0);
    check(ctx != NULL, "urma_create_context");
    return ctx;
}

static urma_target_seg_t *register_memory(urma_context_t *ctx, void *memory, uint64_t len, urma_token_t token, uint32_t access) {
    urma_seg_cfg_t cfg = {.va = (uint64_t)memory, .len = len, .token_value = token};
    cfg.flag.bs.token_policy = URMA_TOKEN_PLAIN_TEXT;
    cfg.flag.bs.access = access;
    urma_target_seg_t *seg = urma_register_seg(ctx, &cfg);
    check(seg != NULL, "urma_register_seg");
    return seg;
}

static void serve(const char *path) {
    urma_context_t *ctx = open_device();
    uint64_t *memory = aligned_alloc(PAGE, BYTES);
    for (uint64_t i = 0; i < WORDS; i++)
        memory[i] = i;
    uint32_t access = URMA_ACCESS_READ | URMA_ACCESS_WRITE | URMA_ACCESS_ATOMIC;
    urma_target_seg_t *seg = register_memory(ctx, memory, BYTES, (urma_token_t){.token = 77}, access);
    char part[4096];
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "w");
    check(file != NULL && fwrite(&seg->seg, sizeof seg->seg, 1, file) == 1 && fclose(file) == 0, "writing the description");
    check(rename(part, path) == 0, "rename");
    while (getchar() != EOF)
        ;
    printf("%llu %llu %llu\n", (unsigned long long)memory[0], (unsigned long long)memory[COUNTER], (unsigned long long)memory[WORDS - 1]);
    check(urma_unregister_seg(seg) == URMA_SUCCESS && urma_delete_context(ctx) == URMA_SUCCESS, "the end");
}

/* A READ of the same segment by a work request and a completion. */
struct reader {
    urma_jfc_t *jfc;
    urma_jfs_t *jfs;
    urma_target_seg_t *near;
    char *memory;
};

static struct reader new_reader(urma_context_t *ctx) {
    struct reader reader = {.memory = aligned_alloc(PAGE, PAGE)};
    urma_jfc_cfg_t jfc = {.depth = 64};
    reader.jfc = urma_create_jfc(ctx, &jfc);
    urma_jfs_cfg_t jfs = {.depth = 16, .trans_mode = URMA_TM_RM, .max_sge = 1, .max_rsge = 1, .rnr_retry = 7, .err_timeout = 17, .jfc = reader.jfc};
    reader.jfs = urma_create_jfs(ctx, &jfs);
    reader.near = register_memory(ctx, reader.memory, PAGE, (urma_token_t){.token = 5}, URMA_ACCESS_LOCAL_ONLY);
    check(reader.jfc != NULL && reader.jfs != NULL, "urma_create_jfs");
    return reader;
}

static void read_by_request(struct reader *reader, urma_target_seg_t *far, uint64_t va, uint32_t len) {
    urma_sge_t from = {.addr = va, .len = len, .tseg = far}, to = {.addr = (uint64_t)reader->memory, .len = len, .tseg = reader->near};
    urma_jfs_wr_t wr = {.opcode = URMA_OPC_READ, .flag.bs.complete_enable = 1, .rw = {.src = {&from, 1}, .dst = {&to, 1}}}, *bad;
    check(urma_post_jfs_wr(reader->jfs, &wr, &bad) == URMA_SUCCESS, "urma_post_jfs_wr");
    urma_cr_t cr;
    while (urma_poll_jfc(reader->jfc, 1, &cr) == 0)
        ;
    check(cr.status == URMA_CR_SUCCESS, "READ");
}

static void use(const char *path, size_t rounds) {
    urma_context_t *ctx = open_device();
    urma_seg_t description;
    FILE *file = fopen(path, "r");
    check(file != NULL && fread(&description, sizeof description, 1, file) == 1, "reading the description");
    urma_token_t token = {.token = 77};
    urma_import_seg_flag_t flag = {0};
    urma_target_seg_t *far = urma_import_seg(ctx, &description, &token, 0, flag);
    check(far != NULL, "urma_import_seg");
    uint64_t base = description.ubva.va, value = 0, *times = calloc(rounds, sizeof *times);
    struct reader reader = new_reader(ctx);

#define MEASURE(name, ...) \
    do { \
        for (size_t round = 0; round < rounds; round++) { \
            uint64_t begin = now(); \
            __VA_ARGS__; \
            times[round] = now() - begin; \
        } \
        printf("\"%s\": %.0f, ", name, median(times, rounds)); \
    } while (0)

    printf("{");
    MEASURE("load_8", check(burst_urma_load(far, base + 8 * round % BYTES, &value, 8) == 0 && value == round % WORDS, "load"));
    MEASURE("store_8", check(burst_urma_store(far, base, &round, 8) == 0, "store"));
    MEASURE("fetch_add", check(burst_urma_atomic(far, base + 8 * COUNTER, URMA_OPC_FADD, 1, 0, &value) == 0 && value == COUNTER + round, "fetch and add"));
    MEASURE("read_8", read_by_request(&reader, far, base + 8, 8));
    MEASURE("read_4096", read_by_request(&reader, far, base, PAGE));

    struct burst_urma_aperture *aperture = burst_urma_map(far, base, BYTES, BURST_URMA_WRITE);
    check(aperture != NULL, "burst_urma_map");
    volatile uint64_t *words = burst_urma_address(aperture);
    size_t pages = BYTES / PAGE;
    /* Every second page backwards: no page is fetched ahead. */
    MEASURE("first_load_of_a_page", size_t page = pages - 2 - 2 * (round % (pages / 2 - 1)); if (page == pages - 2) check(burst_urma_invalidate(aperture, 0, BYTES) == 0, "invalidate"); check(words[page * PAGE / 8] == page * PAGE / 8, "a word"));
    MEASURE("next_load", check(words[(pages - 2) * PAGE / 8 + round % 512] == (pages - 2) * PAGE / 8 + round % 512, "a word"));
    check(burst_urma_invalidate(aperture, 0, BYTES) == 0, "invalidate");
    uint64_t begin = now(), sum = 0;
    for (size_t i = 0; i < WORDS; i++)
        sum += words[i];
    printf("\"scan_mib_s\": %.0f, ", BYTES / 1048576.0 / ((double)(now() - begin) / 1e9));
    check(sum == (uint64_t)WORDS * (WORDS - 1) / 2 + (rounds - 1) + rounds, "the sum");
    MEASURE("store_and_flush", words[WORDS - 1] = round; check(burst_urma_flush(aperture, BYTES - 8, 8) == 0, "flush"));
    check(burst_urma_unmap(aperture) == 0, "burst_urma_unmap");
    printf("\"rounds\": %zu}\n", rounds);
    check(urma_delete_jfs(reader.jfs) == URMA_SUCCESS && urma_delete_jfc(reader.jfc) == URMA_SUCCESS, "urma_delete_jfs");
    check(urma_unregister_seg(reader.near) == URMA_SUCCESS && urma_unimport_seg(far) == URMA_SUCCESS, "urma_unimport_seg");
    check(urma_delete_context(ctx) == URMA_SUCCESS, "urma_delete_context");
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        serve(argv[2]);
    else if (argc == 4 && strcmp(argv[1], "use") == 0 && atoi(argv[3]) > 0)
        use(argv[2], (size_t)atoi(argv[3]));
    else {
        fprintf(stderr, "usage: urma_aperture serve FILE | use FILE ROUNDS\n");
        return 2;
    }
    return 0;
}
