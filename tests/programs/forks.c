/*
 * forks DEVICE orphan: opens the device with a queue pair, forks a child that keeps all descriptors, prints "child PID", and is
 * killed. The daemon must notice the death although the child keeps the connection open.
 *
 * forks DEVICE children: forks children that end by _exit, exit, a signal or exec, while the parent writes and polls. The
 * parent's objects must go on working, and a child's writes must not reach the parent's memory.
 *
 * forks DEVICE unhandled: makes children by _Fork and clone, for which libc runs no handlers. They must have memory of their own,
 * as those of fork.
 *
 * forks DEVICE traffic: forks children while a thread writes by RDMA. Each write must complete and arrive, and a child's memory
 * must not change.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096

/* Exported by libibverbs, but declared in no installed header. */
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static unsigned char data[4 * PAGE] __attribute__((aligned(PAGE)));
/* On the last registered page, behind the registered bytes. */
#define beside data[4 * PAGE - 1]

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
	struct ibv_qp_attr attr = { .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = IBV_MTU_1024,
				    .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	must(!!context, "device");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	mr = ibv_reg_mr(pd, data, sizeof data - 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	must(pd && cq && qp && mr && !ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "pd, cq, qp, mr, gid");
	attr.dest_qp_num = qp->qp_num;
	modify(&attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(&attr, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	modify(&attr, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC);
}

static int post(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)data + PAGE;
	wr.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(qp, &wr, &bad);
}

/* Writes from the first page to the second by RDMA, and checks the data. */
static void write_and_check(int round)
{
	struct ibv_wc wc;
	int n;

	memset(data, round + 1, 64);
	errno = post();
	must(!errno, "ibv_post_send");
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	must(n == 1 && wc.status == IBV_WC_SUCCESS, "completion");
	must(!memcmp(data, data + PAGE, 64), "data");
}

/*
 * A child: when the parent has written again, its memory must be as it was at the fork. Its verbs calls must fail and have no
 * effect on the parent; then it ends, by one of five ways.
 */
static void child(int way, int go)
{
	struct ibv_wc wc;
	unsigned char byte, was = data[0];
	int same = read(go, &byte, 1) == 1;

	for (int i = 0; i < 64; i++)
		same = same && data[i] == byte && data[PAGE + i] == byte && was == byte;
	if (!same || beside != byte)
		_exit(2);
	int refused = post() == EIO && ibv_poll_cq(cq, 1, &wc) == -1 && !ibv_alloc_pd(context);

	memset(data, 0xee, sizeof data);
	if (!refused)
		_exit(1);
	switch (way) {
	case 0:
		_exit(0);
	case 1:
		exit(0);
	case 2: /* destroys all objects first */
		_exit(ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) ||
		      ibv_close_device(context));
	case 3:
		raise(SIGKILL);
		_exit(1);
	default:
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
}

static void children(void)
{
	must(!ibv_fork_init(), "ibv_fork_init");
	must(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED || ibv_is_fork_initialized() == IBV_FORK_ENABLED, "fork status");
	/* Libraries that manage MADV_DONTFORK ranges themselves call these. */
	must(!ibv_dontfork_range(data, sizeof data), "ibv_dontfork_range");
	must(!ibv_dontfork_range(data + 2 * PAGE, 100), "ibv_dontfork_range of a part");
	for (int round = 0; round < 20; round++) {
		int status, way = round % 5;
		pid_t pid;

		unsigned char now = round + 1;
		int ends[2];

		write_and_check(round);
		beside = now;
		must(!pipe(ends), "pipe");
		pid = fork();
		must(pid >= 0, "fork");
		if (!pid)
			child(way, ends[0]);
		beside = 0;
		write_and_check(round + 100);
		must(write(ends[1], &now, 1) == 1 && !close(ends[0]) && !close(ends[1]), "pipe");
		must(waitpid(pid, &status, 0) == pid, "waitpid");
		must(way == 3 ? WIFSIGNALED(status) : WIFEXITED(status) && !WEXITSTATUS(status), "child");
		write_and_check(round + 50);
		for (int i = 2 * PAGE; i < 4 * PAGE; i++)
			must(!data[i], "a child's writes stay its own");
	}
	must(!ibv_dofork_range(data, sizeof data), "ibv_dofork_range");
	must(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) &&
	     !ibv_close_device(context), "destruction");
	printf("20 children\n");
}

/* What a child of clone gets. */
struct look {
	int go;
	unsigned char byte;
};

/* Returns whether the memory is as it was, when the parent has written again. */
static int look(void *argument)
{
	struct look *look = argument;
	unsigned char byte;
	int same = read(look->go, &byte, 1) == 1;

	for (int i = 0; i < 64; i++)
		same = same && data[i] == look->byte && data[PAGE + i] == look->byte;
	same = same && beside == look->byte;
	memset(data, 0xee, sizeof data);
	return !same;
}

static void unhandled(void)
{
	static unsigned char stack[64 * 1024] __attribute__((aligned(64)));
	/* glibc 2.34. */
	pid_t (*own_fork)(void) = (pid_t (*)(void))dlsym(RTLD_DEFAULT, "_Fork");

	for (int round = 0; round < 20; round++) {
		struct look argument = { .byte = round + 1 };
		int ends[2], status;
		pid_t pid;

		write_and_check(round);
		beside = round + 1;
		must(!pipe(ends), "pipe");
		argument.go = ends[0];
		if (round % 2 && own_fork) {
			pid = own_fork();
			if (!pid)
				_exit(look(&argument));
		} else {
			pid = clone(look, stack + sizeof stack, SIGCHLD, &argument);
		}
		must(pid > 0, "a child");
		beside = 0;
		write_and_check(round + 100);
		must(write(ends[1], "", 1) == 1 && !close(ends[0]) && !close(ends[1]), "pipe");
		must(waitpid(pid, &status, 0) == pid && !status, "a child's memory is its own");
		write_and_check(round + 50);
		for (int i = 2 * PAGE; i < 4 * PAGE; i++)
			must(!data[i], "a child's writes stay its own");
	}
	printf("20 children\n");
}

static volatile int stop;
/* Writes that have ended. */
static volatile int written;

static void *writer(void *unused)
{
	(void)unused;
	while (!stop) {
		write_and_check(written % 200);
		written = written + 1;
	}
	return NULL;
}

static void traffic(void)
{
	pthread_t thread;

	must(!pthread_create(&thread, NULL, writer, NULL), "pthread_create");
	/* However slow the machine is, 100 writes end while children come and go. */
	for (int i = 0; i < 100 || written < 100; i++) {
		unsigned char before[2 * PAGE];
		int status;
		pid_t pid = fork();

		must(pid >= 0, "fork");
		if (!pid) {
			memcpy(before, data, sizeof before);
			usleep(2000);
			_exit(!!memcmp(before, data, sizeof before));
		}
		must(waitpid(pid, &status, 0) == pid && !status, "a child's memory stays as it is");
	}
	stop = 1;
	must(!pthread_join(thread, NULL), "pthread_join");
	printf("100 children\n");
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: forks DEVICE orphan|children|unhandled|traffic\n");
		return 2;
	}
	open_all(argv[1]);
	if (!strcmp(argv[2], "traffic")) {
		traffic();
		return 0;
	}
	if (!strcmp(argv[2], "children")) {
		children();
		return 0;
	}
	if (!strcmp(argv[2], "unhandled")) {
		unhandled();
		return 0;
	}
	pid_t pid = fork();

	must(pid >= 0, "fork");
	if (!pid)
		for (;;)
			pause();
	printf("child %d\n", pid);
	fflush(stdout);
	raise(SIGKILL);
	return 1;
}
