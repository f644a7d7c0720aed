/*
 * holes KIND DEVICE [FILE [SEED]]: lets the daemon write to memory whose pages are missing, again and again, until it is killed. It writes by RDMA
 * through a queue pair that is connected to itself, and begins anew with another queue pair and region after an error.
 *
 *   punched   pages of a region that were removed since it was registered
 *   huge      the same with huge pages, of which none is left: other memory of this program takes all that are free
 *   never     pages of FILE, whose file system never answers a read
 *   served    pages of the files FILE0, FILE1, ..., whose file system answers some reads late, some with an error or too few bytes,
 *             and some never
 *   faults    pages that a thread of this program brings by userfaultfd: some late, some never. SEED decides which
 *
 * It prints "refused STATUS, VENDOR_ERR" for the first completion with each status, and "rounds N" at each power of two.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define HUGE (2 << 20)
#define PUNCHED (32 << 20)
#define FILE_BYTES (64 * PAGE)
#define WRITE_BYTES (1 << 20)
/* How often it writes to a region whose page is missing. */
#define WRITES_MAX 4
/* Files that are registered at once at most: their regions stay. */
#define FILES_MAX 512
/* A page that comes late comes after this time at most: longer than the daemon waits for one. */
#define LATE_MAX_US 1500000
/* How often a region is punched before another one is made. */
#define PUNCHES 16

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *own;
static unsigned char here[WRITE_BYTES] __attribute__((aligned(PAGE)));
static unsigned long long seed = 1;
static int faults_fd = -1;
/* The library may touch what is being registered: such a page comes. */
static volatile int may_be_late;

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;

	CHECK(list);
	while (*device && strcmp(ibv_get_device_name(*device), name))
		device++;
	CHECK(*device && (context = ibv_open_device(*device)));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 4, NULL, NULL, 0)));
	CHECK((own = ibv_reg_mr(pd, here, sizeof here, IBV_ACCESS_LOCAL_WRITE)));
}

/* A queue pair that is connected to itself, in place of the one before. */
static void connect_anew(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	CHECK(!qp || !ibv_destroy_qp(qp));
	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_4096;
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

/* Writes to a region, and waits without taking the processor. Returns whether it was done. */
static int write_to(struct ibv_mr *mr, size_t offset, size_t length)
{
	static int said[64];
	struct ibv_sge sge = { .addr = (uintptr_t)here, .length = length, .lkey = own->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)mr->addr + offset, .rkey = mr->rkey },
	}, *bad;
	struct timespec pause = { .tv_nsec = 20000 };
	struct ibv_wc wc;
	int n;

	CHECK(!ibv_post_send(qp, &wr, &bad));
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		nanosleep(&pause, NULL);
	CHECK(n == 1);
	if (wc.status != IBV_WC_SUCCESS && (unsigned)wc.status < 64 && !said[wc.status]++) {
		printf("refused %s, %u\n", ibv_wc_status_str(wc.status), wc.vendor_err);
		fflush(stdout);
	}
	return wc.status == IBV_WC_SUCCESS;
}

static struct ibv_mr *region(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

	CHECK(mr);
	return mr;
}

static void *map(size_t length, int flags, int fd)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, fd, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static void punched(const char *file)
{
	unsigned char *memory = map(PUNCHED, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	struct ibv_mr *mr = region(memory, PUNCHED);
	int goes_on = 1;

	(void)file;
	for (int n = 0; goes_on && n < PUNCHES; n++) {
		/* The library's madvise refuses it, as for private memory; who is hostile asks the kernel. */
		CHECK(!syscall(SYS_madvise, memory, PUNCHED, MADV_REMOVE));
		for (size_t at = 0; goes_on && at < PUNCHED; at += WRITE_BYTES)
			goes_on = write_to(mr, at, WRITE_BYTES);
	}
	CHECK(!ibv_dereg_mr(mr) && !munmap(memory, PUNCHED));
}

/* Takes all free huge pages; returns how many bytes. */
static size_t take_all(int fd)
{
	size_t bytes = 0;

	while (!fallocate(fd, 0, bytes, HUGE))
		bytes += HUGE;
	return bytes;
}

static void huge(const char *file)
{
	int fd = memfd_create("punched", MFD_HUGETLB | MFD_ALLOW_SEALING), others = memfd_create("others", MFD_HUGETLB);

	(void)file;
	CHECK(fd >= 0 && others >= 0 && !ftruncate(fd, HUGE) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
	unsigned char *memory = map(HUGE, MAP_SHARED | MAP_NORESERVE, fd);
	CHECK(!fallocate(fd, 0, 0, HUGE));
	struct ibv_mr *mr = region(memory, HUGE);
	CHECK(!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, HUGE));
	CHECK(take_all(others));
	/* The write that finds no page breaks the region; the next one is refused. */
	for (int n = 0; n < WRITES_MAX && write_to(mr, 0, WRITE_BYTES); n++)
		;
	CHECK(!ibv_dereg_mr(mr) && !munmap(memory, HUGE) && !close(fd) && !close(others));
}

static void never(const char *file)
{
	/* The region stays: to unmap the file would wait for its page. */
	static struct ibv_mr *mr;

	if (!mr) {
		int fd = open(file, O_RDWR);

		CHECK(fd >= 0);
		mr = region(map(FILE_BYTES, MAP_PRIVATE, fd), FILE_BYTES);
	}
	write_to(mr, 0, PAGE);
}

/* A number below `end`. */
static unsigned random_below(unsigned end)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(seed >> 33) % end;
}

static void write_somewhere(struct ibv_mr *mr)
{
	for (int n = 0; n < WRITES_MAX; n++) {
		size_t at = random_below(FILE_BYTES - PAGE), length = 1 + random_below(n & 1 ? PAGE : FILE_BYTES - at);

		if (!write_to(mr, at, length))
			break;
	}
}

static void served(const char *file)
{
	static int number;
	char path[4096];
	int fd;

	if (number == FILES_MAX) {
		pause();
		return;
	}
	snprintf(path, sizeof path, "%s%d", file, number++);
	CHECK((fd = open(path, O_RDWR)) >= 0);
	write_somewhere(region(map(FILE_BYTES, MAP_PRIVATE, fd), FILE_BYTES));
	CHECK(!close(fd));
}

/* Brings missing pages: one of eight never, two late. */
static void *bring(void *unused)
{
	static unsigned char page[PAGE] __attribute__((aligned(PAGE)));
	struct uffd_msg message;

	(void)unused;
	while (read(faults_fd, &message, sizeof message) == sizeof message) {
		struct uffdio_copy copy = { .dst = message.arg.pagefault.address & ~(PAGE - 1ull), .src = (uintptr_t)page, .len = PAGE };
		unsigned what = may_be_late ? random_below(8) : 7;

		if (what == 0)
			continue;
		if (what < 3)
			usleep(random_below(LATE_MAX_US));
		/* The region may have gone meanwhile. */
		ioctl(faults_fd, UFFDIO_COPY, &copy);
	}
	return NULL;
}

static void faults(const char *file)
{
	int fd = memfd_create("faults", MFD_CLOEXEC);
	unsigned char *memory;
	struct ibv_mr *mr;

	(void)file;
	if (faults_fd < 0) {
		struct uffdio_api api = { .api = UFFD_API };
		pthread_t thread;

		CHECK((faults_fd = syscall(SYS_userfaultfd, O_CLOEXEC)) >= 0 && !ioctl(faults_fd, UFFDIO_API, &api));
		CHECK(!pthread_create(&thread, NULL, bring, NULL));
	}
	CHECK(fd >= 0 && !ftruncate(fd, FILE_BYTES));
	memory = map(FILE_BYTES, MAP_PRIVATE, fd);
	struct uffdio_register range = { .range = { (uintptr_t)memory, FILE_BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	CHECK(!ioctl(faults_fd, UFFDIO_REGISTER, &range));
	may_be_late = 0;
	mr = region(memory, FILE_BYTES);
	may_be_late = 1;
	write_somewhere(mr);
	/* Without its page, the daemon's access ends. */
	CHECK(!munmap(memory, FILE_BYTES) && !close(fd) && !ibv_dereg_mr(mr));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*attack)(const char *file);
	} kinds[] = { { "punched", punched }, { "huge", huge }, { "never", never }, { "served", served }, { "faults", faults } };
	size_t kind = 0, all = sizeof kinds / sizeof *kinds;

	CHECK(argc >= 3);
	while (kind < all && strcmp(kinds[kind].name, argv[1]))
		kind++;
	CHECK(kind < all && (argc >= 4 || (kinds[kind].attack != never && kinds[kind].attack != served)));
	if (argc > 4)
		seed = strtoull(argv[4], NULL, 0);
	open_device(argv[2]);
	for (unsigned long rounds = 1;; rounds++) {
		connect_anew();
		kinds[kind].attack(argv[3]);
		if (!(rounds & (rounds - 1))) {
			printf("rounds %lu\n", rounds);
			fflush(stdout);
		}
	}
}
