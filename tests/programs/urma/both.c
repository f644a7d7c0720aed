/*
 * urma_both: registers the same memory with verbs and with URMA, in both orders. Writes by either must arrive until its own registration has
 * ended; a child of fork, _Fork and clone has memory as it was; discarded pages read as zeros; few mappings are left.
 *
 * Built with UMDK's headers and Burst's burst_urma.h, and linked with liburma and libibverbs, in one order or the other.
 */
#define _GNU_SOURCE
#include "burst_urma.h"

#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <urma_api.h>

#define PAGE 4096u
#define PAGES 64u
#define BYTES (PAGES * PAGE)

static void check(int is_good, const char *what) {
    if (!is_good) {
        fprintf(stderr, "urma_both: %s failed (%s)\n", what, strerror(errno));
        exit(1);
    }
}

static urma_context_t *urma;
static struct ibv_context *verbs;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *source;
static uint64_t number;
static unsigned char *memory;

static void modify(struct ibv_qp_attr *attr, int state, int mask) {
    attr->qp_state = state;
    check(!ibv_modify_qp(qp, attr, IBV_QP_STATE | mask), "ibv_modify_qp");
}

static void open_all(void) {
    urma_init_attr_t init = {0};
    check(urma_init(&init) == URMA_SUCCESS, "urma_init");
    urma_device_t *device = urma_get_device_by_name("burst0");
    check(device && (urma = urma_create_context(device, 0)), "urma_create_context");

    struct ibv_device **list = ibv_get_device_list(NULL);
    for (int i = 0; list && list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), "burst0"))
            verbs = ibv_open_device(list[i]);
    check(verbs != NULL, "ibv_open_device");
    pd = ibv_alloc_pd(verbs);
    cq = ibv_create_cq(verbs, 64, NULL, NULL, 0);
    struct ibv_qp_init_attr made = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .send_cq = cq, .recv_cq = cq,
        .cap = {.max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    check(pd && cq && (qp = ibv_create_qp(pd, &made)), "ibv_create_qp");
    struct ibv_qp_attr attr = {.port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = IBV_MTU_1024, .min_rnr_timer = 12,
        .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}}};
    attr.dest_qp_num = qp->qp_num;
    check(!ibv_query_gid(verbs, 1, 0, &attr.ah_attr.grh.dgid), "ibv_query_gid");
    modify(&attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(&attr, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    modify(&attr, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    source = ibv_reg_mr(pd, &number, sizeof number, IBV_ACCESS_LOCAL_WRITE);
    check(source != NULL, "ibv_reg_mr");
}

/* A registration by verbs, or by URMA and imported by the program itself. */
struct registration {
    struct ibv_mr *mr;
    urma_target_seg_t *near, *far;
};

static struct registration add(int by_urma) {
    struct registration made = {0};
    if (!by_urma) {
        made.mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        check(made.mr != NULL, "ibv_reg_mr");
        return made;
    }
    urma_token_t token = {.token = 77};
    urma_seg_cfg_t cfg = {.va = (uint64_t)memory, .len = BYTES, .token_value = token};
    cfg.flag.bs.token_policy = URMA_TOKEN_PLAIN_TEXT;
    cfg.flag.bs.access = URMA_ACCESS_READ | URMA_ACCESS_WRITE;
    made.near = urma_register_seg(urma, &cfg);
    check(made.near != NULL, "urma_register_seg");
    urma_import_seg_flag_t flag = {0};
    made.far = urma_import_seg(urma, &made.near->seg, &token, 0, flag);
    check(made.far != NULL, "urma_import_seg");
    return made;
}

static void end(struct registration *of) {
    if (of->mr)
        check(!ibv_dereg_mr(of->mr), "ibv_dereg_mr");
    else
        check(urma_unimport_seg(of->far) == URMA_SUCCESS && urma_unregister_seg(of->near) == URMA_SUCCESS, "urma_unregister_seg");
}

/* Writes a new number at the beginning of a page, as a peer does, and looks for it there. */
static void write_by(struct registration *by, unsigned int page) {
    uint64_t *place = (uint64_t *)(memory + page * PAGE);
    number++;
    if (by->mr) {
        struct ibv_sge sge = {.addr = (uintptr_t)&number, .length = sizeof number, .lkey = source->lkey};
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
        struct ibv_wc wc;
        int n;
        wr.wr.rdma.remote_addr = (uintptr_t)place;
        wr.wr.rdma.rkey = by->mr->rkey;
        check(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
        while (!(n = ibv_poll_cq(cq, 1, &wc)))
            ;
        check(n == 1 && wc.status == IBV_WC_SUCCESS, "a WRITE");
    } else {
        check(burst_urma_store(by->far, by->near->seg.ubva.va + page * PAGE, &number, sizeof number) == 0, "burst_urma_store");
    }
    check(*(volatile uint64_t *)place == number, "the number at its place");
}

static int ends[2];
static unsigned char was[BYTES];

static int look(void *unused) {
    char byte;
    (void)unused;
    return read(ends[0], &byte, 1) != 1 || memcmp(memory, was, BYTES) != 0;
}

/* A child of each kind sees nothing of what comes after it. */
static void fork_beside(struct registration *first, struct registration *second) {
    static unsigned char stack[64 * 1024] __attribute__((aligned(64)));
    pid_t (*own_fork)(void) = (pid_t (*)(void))dlsym(RTLD_DEFAULT, "_Fork");

    for (int kind = 0; kind < 3; kind++) {
        int status;
        check(!pipe(ends), "pipe");
        memcpy(was, memory, BYTES);
        pid_t pid = kind == 0 ? fork() : kind == 1 && own_fork ? own_fork() : clone(look, stack + sizeof stack, SIGCHLD, NULL);
        if (!pid)
            _exit(look(NULL));
        check(pid > 0, "a child");
        for (unsigned int page = 0; page < 4; page++) {
            if (first)
                write_by(first, 4 * page);
            if (second)
                write_by(second, 4 * page + 1);
            memset(memory + (4 * page + 2) * PAGE, kind + 100, PAGE);
        }
        check(write(ends[1], "", 1) == 1 && !close(ends[0]) && !close(ends[1]), "a pipe");
        check(waitpid(pid, &status, 0) == pid && !status, "a child's memory is its own");
        for (unsigned int page = 0; page < 4; page++) {
            if (first)
                write_by(first, 4 * page);
            if (second)
                write_by(second, 4 * page + 1);
        }
    }
}

static void discard(unsigned int page) {
    memset(memory + page * PAGE, 7, PAGE);
    check(!madvise(memory + page * PAGE, PAGE, MADV_DONTNEED), "madvise");
    for (unsigned int i = 0; i < PAGE; i++)
        check(!memory[page * PAGE + i], "a discarded page has zeros");
}

static int mappings(void) {
    FILE *file = fopen("/proc/self/maps", "r");
    int lines = 0, byte;
    check(file != NULL, "maps");
    while ((byte = getc(file)) != EOF)
        lines += byte == '\n';
    fclose(file);
    return lines;
}

int main(void) {
    open_all();
    memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    memset(memory, 1, BYTES);
    int before = 0;
    for (int round = 0; round < 16; round++) {
        int urma_first = round & 1, first_ends_first = round >> 1 & 1;
        struct registration first = add(urma_first), second = add(!urma_first);
        write_by(&first, 20);
        write_by(&second, 20);
        write_by(&first, 21);
        fork_beside(&first, &second);
        discard(30);
        struct registration *stays = first_ends_first ? &second : &first;
        end(first_ends_first ? &first : &second);
        write_by(stays, 20);
        write_by(stays, 22);
        fork_beside(stays, NULL);
        discard(31);
        write_by(stays, 31);
        end(stays);
        discard(32);
        fork_beside(NULL, NULL);
        before = round ? before : mappings();
    }
    check(mappings() <= before + 8, "few mappings are left");
    printf("16 rounds\n");
    return 0;
}
