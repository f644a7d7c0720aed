/*
 * memory_kinds DEVICE [ROUNDS]: for each kind of memory, what registering 4 KiB, 64 KiB, 1 MiB, 2 MiB and 1 GiB costs, and how fast 64 KiB WRITEs
 * within this host reach it. The kinds take turns within each round, and the medians of ROUNDS (5) are printed, one line of JSON each:
 *
 *   {"kind": K, "bytes": N, "register_us": clock, "register_cpu_us": processor time, "deregister_us": .., "deregister_cpu_us": ..}
 *   {"kind": K, "gbit_s": bandwidth, "to_swapped": ratio to that of "swapped" in the same round}
 *
 * swapped: private memory, whose pages the library exchanges. in_process: private memory that stays (MADV_WIPEONFORK). huge: private huge
 * pages. shared: a sealed memfd. unsealed: shared memory that is not sealed, reached in the process. A kind that the machine lacks is printed as
 *   {"kind": K, "missing": why}
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define KINDS 5
#define SIZES 5
#define ROUNDS_MAX 99
#define MESSAGE 65536u
#define WINDOW (4u << 20)
#define MESSAGES 4000
#define DEPTH 32
#define HUGE_PAGE (2u << 20)

static const char *const names[KINDS] = { "swapped", "in_process", "huge", "shared", "unsealed" };
static const size_t sizes[SIZES] = { 4096, 65536, 1 << 20, HUGE_PAGE, 1 << 30 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void must(int true, const char *what)
{
	if (!true) {
		fprintf(stderr, "wrong: %s (%s)\n", what, strerror(errno));
		exit(1);
	}
}

static void modify(struct ibv_qp_attr *attr, int state, int mask)
{
	attr->qp_state = state;
	errno = ibv_modify_qp(qp, attr, IBV_QP_STATE | mask);
	must(!errno, "ibv_modify_qp");
}

static void open_all(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_attr attr = { .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = IBV_MTU_4096,
				    .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	must(!!context, "device");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	must(pd && cq && qp && !ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "pd, cq, qp, gid");
	attr.dest_qp_num = qp->qp_num;
	modify(&attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(&attr, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	modify(&attr, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Touched memory of a kind, or MAP_FAILED with errno. */
static void *make(int kind, size_t bytes)
{
	int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS, file = -1;
	void *at;

	if (kind == 2)
		flags |= MAP_HUGETLB;
	if (kind == 3 || kind == 4) {
		file = memfd_create("memory_kinds", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (file < 0 || ftruncate(file, bytes) || (kind == 3 && fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK)))
			return MAP_FAILED;
		flags = MAP_SHARED;
	}
	at = mmap(NULL, bytes, rights, flags, file, 0);
	if (file >= 0)
		close(file);
	if (at == MAP_FAILED || (kind == 1 && madvise(at, bytes, MADV_WIPEONFORK)))
		return MAP_FAILED;
	memset(at, 1, bytes);
	return at;
}

static double clock_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static double processor_us(void)
{
	struct rusage used;

	getrusage(RUSAGE_SELF, &used);
	return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

/* register, its processor time, deregister, its processor time. 0: there is no such memory of this size. */
static int measure_registration(int kind, size_t bytes, double *to)
{
	void *at = make(kind, bytes);
	double began = clock_us(), used = processor_us();
	struct ibv_mr *mr;

	if (at == MAP_FAILED)
		return 0;
	mr = ibv_reg_mr(pd, at, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	to[1] = processor_us() - used;
	to[0] = clock_us() - began;
	must(!!mr, "ibv_reg_mr");
	began = clock_us(), used = processor_us();
	must(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	to[3] = processor_us() - used;
	to[2] = clock_us() - began;
	must(!munmap(at, bytes), "munmap");
	return 1;
}

static double bandwidth(struct ibv_mr *from, struct ibv_mr *to)
{
	struct ibv_wc wcs[DEPTH];
	double began = clock_us();
	int posted = 0, done = 0;

	while (done < MESSAGES) {
		while (posted < MESSAGES && posted - done < DEPTH) {
			uint64_t offset = (uint64_t)posted * MESSAGE % WINDOW;
			struct ibv_sge sge = { .addr = (uintptr_t)from->addr + offset, .length = MESSAGE, .lkey = from->lkey };
			struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

			wr.wr.rdma.remote_addr = (uintptr_t)to->addr + offset;
			wr.wr.rdma.rkey = to->rkey;
			must(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
			posted++;
		}
		int n = ibv_poll_cq(cq, DEPTH, wcs);

		must(n >= 0, "ibv_poll_cq");
		for (int i = 0; i < n; i++)
			must(wcs[i].status == IBV_WC_SUCCESS, "a WRITE");
		done += n;
	}
	return MESSAGES * (double)MESSAGE * 8 / (clock_us() - began) / 1e3;
}

static int by_size(const void *a, const void *b)
{
	double left = *(const double *)a, right = *(const double *)b;

	return (left > right) - (left < right);
}

static double median(double *values, int count)
{
	qsort(values, count, sizeof *values, by_size);
	return values[count / 2];
}

static int missing[KINDS];

static void registrations(int rounds)
{
	static double values[KINDS][4][ROUNDS_MAX];

	for (int size = 0; size < SIZES; size++) {
		int measured[KINDS] = { 0 };

		for (int round = 0; round < rounds; round++)
			for (int kind = 0; kind < KINDS; kind++) {
				double one[4] = { 0 };

				/* Not by parts of a huge page. */
				if (missing[kind] || (kind == 2 && sizes[size] % HUGE_PAGE))
					continue;
				measured[kind] = measure_registration(kind, sizes[size], one);
				for (int i = 0; i < 4; i++)
					values[kind][i][round] = one[i];
			}
		for (int kind = 0; kind < KINDS; kind++)
			if (measured[kind])
				printf("{\"kind\": \"%s\", \"bytes\": %zu, \"register_us\": %.1f, \"register_cpu_us\": %.1f, "
				       "\"deregister_us\": %.1f, \"deregister_cpu_us\": %.1f}\n", names[kind], sizes[size],
				       median(values[kind][0], rounds), median(values[kind][1], rounds),
				       median(values[kind][2], rounds), median(values[kind][3], rounds));
	}
}

static void bandwidths(int rounds)
{
	static double values[KINDS][ROUNDS_MAX], ratios[KINDS][ROUNDS_MAX];
	struct ibv_mr *from, *to[KINDS] = { NULL };
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	from = ibv_reg_mr(pd, make(0, WINDOW), WINDOW, access);
	must(!!from, "ibv_reg_mr");
	for (int kind = 0; kind < KINDS; kind++)
		must(missing[kind] || (to[kind] = ibv_reg_mr(pd, make(kind, WINDOW), WINDOW, access)), "ibv_reg_mr");
	for (int round = 0; round < rounds; round++)
		for (int kind = 0; kind < KINDS; kind++)
			if (!missing[kind]) {
				values[kind][round] = bandwidth(from, to[kind]);
				ratios[kind][round] = values[kind][round] / values[0][round];
			}
	for (int kind = 0; kind < KINDS; kind++)
		if (!missing[kind])
			printf("{\"kind\": \"%s\", \"gbit_s\": %.2f, \"to_swapped\": %.3f}\n", names[kind],
			       median(values[kind], rounds), median(ratios[kind], rounds));
}

int main(int argc, char **argv)
{
	int rounds = argc > 2 ? atoi(argv[2]) : 5;

	if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: memory_kinds DEVICE [ROUNDS]\n");
		return 2;
	}
	open_all(argv[1]);
	for (int kind = 0; kind < KINDS; kind++) {
		/* As many huge pages as are registered at once; touching one that is not there would end the program. */
		size_t bytes = kind == 2 ? WINDOW : MESSAGE;
		void *at = make(kind, bytes);

		missing[kind] = at == MAP_FAILED;
		if (missing[kind])
			printf("{\"kind\": \"%s\", \"missing\": \"%s\"}\n", names[kind], strerror(errno));
		else
			munmap(at, bytes);
	}
	bandwidths(rounds);
	registrations(rounds);
	return 0;
}
