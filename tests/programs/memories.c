/*
 * memories DEVICE DIRECTORY: registers memory of every kind, writes it and reads it by RDMA through a queue pair that is connected to itself,
 * and checks the bytes. Prints a line for each kind: its name and "ok", or "unavailable" if the system has no such memory. Files are made in
 * DIRECTORY.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#define PAGE 4096
#define SIZE (3 * PAGE)
#define HUGE (2 << 20)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *own;
static unsigned char here[2 * SIZE] __attribute__((aligned(PAGE)));
static unsigned char in_data[SIZE] __attribute__((aligned(PAGE))) = { 1 };
static const char *directory;

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;

	CHECK(list);
	while (*device && strcmp(ibv_get_device_name(*device), name))
		device++;
	CHECK(*device && (context = ibv_open_device(*device)));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 4, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	CHECK((qp = ibv_create_qp(pd, &init)));
}

static void join(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 12;
	attr.max_dest_rd_atomic = attr.max_rd_atomic = 1;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } };
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 18;
	attr.retry_cnt = attr.rnr_retry = 7;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			     IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Moves SIZE bytes between `here` + offset and the region, and waits. */
static void move(enum ibv_wr_opcode opcode, size_t offset, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)here + offset, .length = SIZE, .lkey = own->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)mr->addr, .rkey = mr->rkey },
	}, *bad;
	struct ibv_wc wc;
	int n;

	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(n == 1);
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS);
}

static void try(const char *name, void *memory)
{
	static unsigned char pattern = 1;
	unsigned char *bytes = memory;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	if (!memory || memory == MAP_FAILED) {
		printf("%s unavailable: %s\n", name, strerror(errno));
		return;
	}
	memset(bytes, 0, SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, SIZE, access);
	if (!mr) {
		printf("%s refused: %s\n", name, strerror(errno));
		return;
	}
	memset(here, ++pattern, SIZE);
	move(IBV_WR_RDMA_WRITE, 0, mr);
	CHECK(!memcmp(bytes, here, SIZE));
	memset(bytes, ++pattern, SIZE);
	move(IBV_WR_RDMA_READ, SIZE, mr);
	CHECK(!memcmp(bytes, here + SIZE, SIZE) && here[SIZE] == pattern);
	CHECK(!ibv_dereg_mr(mr));
	printf("%s ok\n", name);
}

static void *map(size_t size, int flags, int fd)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, flags, fd, 0);
}

/* A new file of SIZE bytes in a directory, without a name. */
static int file_in(const char *where)
{
	char path[256];

	CHECK(snprintf(path, sizeof path, "%s/memories-XXXXXX", where) < (int)sizeof path);
	int fd = mkstemp(path);
	CHECK(fd >= 0 && !unlink(path) && !ftruncate(fd, SIZE));
	return fd;
}

static void *segment(int flags, size_t size)
{
	int id = shmget(IPC_PRIVATE, size, IPC_CREAT | 0600 | flags);

	if (id < 0)
		return NULL;
	void *at = shmat(id, NULL, 0);
	CHECK(!shmctl(id, IPC_RMID, NULL));
	return at;
}

static void *huge_file(void)
{
	int fd = memfd_create("huge", MFD_HUGETLB);

	return fd < 0 || ftruncate(fd, HUGE) ? NULL : map(HUGE, MAP_SHARED, fd);
}

int main(int argc, char **argv)
{
	unsigned char on_stack[SIZE];
	int anonymous = memfd_create("memory", 0);

	CHECK(argc == 3 && anonymous >= 0 && !ftruncate(anonymous, SIZE));
	directory = argv[2];
	open_device(argv[1]);
	join();
	CHECK((own = ibv_reg_mr(pd, here, sizeof here, IBV_ACCESS_LOCAL_WRITE)));
	try("heap", malloc(SIZE));
	try("stack", on_stack);
	try("data", in_data);
	try("anonymous-private", map(SIZE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
	try("anonymous-shared", map(SIZE, MAP_SHARED | MAP_ANONYMOUS, -1));
	try("file-shared", map(SIZE, MAP_SHARED, file_in(directory)));
	try("file-private", map(SIZE, MAP_PRIVATE, file_in(directory)));
	try("shm-file", map(SIZE, MAP_SHARED, file_in("/dev/shm")));
	try("memfd", map(SIZE, MAP_SHARED, anonymous));
	try("sysv", segment(0, SIZE));
	try("hugetlb-private", map(HUGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1));
	try("hugetlb-shared", map(HUGE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1));
	try("hugetlb-memfd", huge_file());
	return 0;
}
