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
 *
 * forks DEVICE busy: a child does not go on before a thread of the parent has written and sent by RDMA, with rnr_retry 0.
 *
 * forks DEVICE atomics: adds by RDMA while a thread forks, with 64 MiB registered. Atomics wait for the end of a fork; each must end well,
 * and be done once.
 *
 * forks DEVICE calls: calls the daemon without end. forks DEVICE opens: opens the device without end.
 *
 * forks DEVICE opening: a signal interrupts the first contact of a program with its host: the list of devices, the opening of one, and
 * the first event channel of rdma_cm; its handler forks. The parent's device must work, and the child must end.
 *
 * forks DEVICE handlers: a signal interrupts control calls of verbs and rdma_cm, and its handler forks. The parent must not wait for
 * itself, its calls must do what they do otherwise, and a child that returns from the handler must leave the parent's connections alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
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
static int rnr_retry = 7;
/* On the last registered page, behind the registered bytes. */
#define beside data[4 * PAGE - 1]

/* Whether this process is a child that has returned from the handler. Its calls may fail, because the device is its parent's. */
static volatile sig_atomic_t is_child;

static void must(int true, const char *what)
{
	if (!true && is_child)
		_exit(0);
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
	struct ibv_qp_attr attr = { .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC, .path_mtu = IBV_MTU_1024,
				    .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry,
				    .max_rd_atomic = 1, .max_dest_rd_atomic = 1,
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

/* Written and sent; shared with children, and not registered. */
static volatile int *ended;

static void *sender(void *unused)
{
	(void)unused;
	while (!stop) {
		struct ibv_sge from = { .addr = (uintptr_t)data, .length = 64, .lkey = mr->lkey };
		struct ibv_sge to = { .addr = (uintptr_t)data + PAGE, .length = 64, .lkey = mr->lkey };
		struct ibv_recv_wr receive = { .sg_list = &to, .num_sge = 1 }, *bad_receive;
		struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
		struct ibv_wc wc;

		write_and_check(*ended % 200);
		memset(data, *ended % 200, 64);
		must(!ibv_post_recv(qp, &receive, &bad_receive) && !ibv_post_send(qp, &send, &bad), "a SEND is posted");
		for (int completions = 0; completions < 2;) {
			int n = ibv_poll_cq(cq, 1, &wc);

			must(n >= 0 && (!n || wc.status == IBV_WC_SUCCESS), "a SEND is received");
			completions += n;
		}
		must(!memcmp(data, data + PAGE, 64), "data of a SEND");
		*ended = *ended + 1;
	}
	return NULL;
}

/* In a child, before its copy of the memory is made: waits for what the parent does meanwhile. */
static void wait_for_parent(void)
{
	int began = *ended;

	alarm(60);
	while (*ended - began < 20)
		sched_yield();
	alarm(0);
}

static void busy(void)
{
	pthread_t thread;

	must(!pthread_create(&thread, NULL, sender, NULL), "pthread_create");
	for (int i = 0; i < 5; i++) {
		int status;
		pid_t pid = fork();

		must(pid >= 0, "fork");
		if (!pid) {
			unsigned char before[4 * PAGE];
			int now = *ended;

			memcpy(before, data, sizeof before);
			while (*ended - now < 20)
				sched_yield();
			_exit(!!memcmp(before, data, sizeof before));
		}
		must(waitpid(pid, &status, 0) == pid && !status, "a child's memory stays as it is");
	}
	stop = 1;
	must(!pthread_join(thread, NULL), "pthread_join");
	printf("5 children waited\n");
}

/*
 * The allocator of the program and of its libraries is that of libc, with a mark while it runs: glibc's fork takes the locks of the
 * allocator if the process has threads, so a handler that interrupted it would wait for its own thread, whatever library is used.
 */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static __thread volatile sig_atomic_t allocating;

void *malloc(size_t size)
{
	void *memory;

	allocating++;
	memory = __libc_malloc(size);
	allocating--;
	return memory;
}

void *calloc(size_t count, size_t size)
{
	void *memory;

	allocating++;
	memory = __libc_calloc(count, size);
	allocating--;
	return memory;
}

void *realloc(void *old, size_t size)
{
	void *memory;

	allocating++;
	memory = __libc_realloc(old, size);
	allocating--;
	return memory;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	void *memory;

	allocating++;
	memory = __libc_memalign(alignment, size);
	allocating--;
	return memory;
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	*memory = aligned_alloc(alignment, size);
	return *memory ? 0 : ENOMEM;
}

void free(void *memory)
{
	allocating++;
	__libc_free(memory);
	allocating--;
}

/* Forks in handlers that interrupted a call, of each kind of call. */
#define INTERRUPTIONS 12

static volatile sig_atomic_t inside;
static volatile sig_atomic_t interrupted;

static void fork_in_handler(int signal)
{
	int error = errno, status;
	pid_t pid;

	(void)signal;
	if (!inside || is_child || allocating)
		return;
	pid = fork();
	if (pid < 0)
		_exit(3);
	if (!pid) {
		/* Each second child goes on where its parent was interrupted. */
		if (interrupted % 2)
			_exit(0);
		/* A child that waits for its parent's answer ends by this. */
		alarm(60);
		is_child = 1;
		return;
	}
	if (waitpid(pid, &status, 0) != pid || status)
		_exit(4);
	interrupted = interrupted + 1;
	errno = error;
}

static int call_regions(void)
{
	static unsigned char more[64 * PAGE] __attribute__((aligned(PAGE)));
	struct ibv_mr *region = ibv_reg_mr(pd, more, sizeof more, IBV_ACCESS_LOCAL_WRITE);

	return region && !ibv_dereg_mr(region);
}

static int call_objects(void)
{
	struct ibv_cq *made = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	return made && !ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && !ibv_destroy_cq(made);
}

static int call_connections(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	int done = channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id);

	if (channel)
		rdma_destroy_event_channel(channel);
	return done;
}

static void handlers(void)
{
	static const struct { int (*call)(void); const char *name; } calls[] = {
		{ call_regions, "interrupted registration" },
		{ call_objects, "interrupted calls of verbs" },
		{ call_connections, "interrupted calls of rdma_cm" },
	};
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	/* The handler's system calls of the parent are begun anew, as most programs ask. */
	struct sigaction action = { .sa_handler = fork_in_handler, .sa_flags = SA_RESTART };
	timer_t timer;

	must(!sigaction(SIGUSR1, &action, NULL) && !timer_create(CLOCK_MONOTONIC, &event, &timer), "timer");
	/* Ends a deadlock. */
	alarm(100);
	for (unsigned int kind = 0; kind < sizeof calls / sizeof *calls; kind++) {
		interrupted = 0;
		for (long delay = 0; interrupted < INTERRUPTIONS; delay = (delay + 3701) % 150000) {
			struct itimerspec once = { .it_value = { .tv_nsec = delay + 1 } }, never = { 0 };
			int done;

			must(!timer_settime(timer, 0, &once, NULL), "timer_settime");
			inside = 1;
			done = calls[kind].call();
			inside = 0;
			if (is_child)
				_exit(0);
			must(done, calls[kind].name);
			must(!timer_settime(timer, 0, &never, NULL), "timer_settime");
			write_and_check(interrupted);
		}
	}
	must(!timer_delete(timer), "timer_delete");
	printf("%d children of handlers\n", 3 * INTERRUPTIONS);
}

#define ATOMIC_FORKS 6

static void *fork_often(void *unused)
{
	(void)unused;
	for (int round = 0; round < ATOMIC_FORKS; round++) {
		int status;
		pid_t pid = fork();

		must(pid >= 0, "fork");
		if (!pid)
			_exit(0);
		must(waitpid(pid, &status, 0) == pid && !status, "a child beside atomics");
	}
	stop = 1;
	return NULL;
}

static void atomics(void)
{
	const size_t size = 64 << 20;
	unsigned char *large = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	volatile uint64_t *sum = (void *)(large + PAGE);
	struct ibv_sge sge = { .addr = (uintptr_t)large, .length = 8 };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD }, *bad;
	struct ibv_mr *region;
	uint64_t done = 0;
	pthread_t thread;

	must(large != MAP_FAILED, "mmap");
	memset(large, 0, size);
	region = ibv_reg_mr(pd, large, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
	must(region && !pthread_create(&thread, NULL, fork_often, NULL), "region, thread");
	sge.lkey = region->lkey;
	wr.wr.atomic.remote_addr = (uintptr_t)sum;
	wr.wr.atomic.rkey = region->rkey;
	wr.wr.atomic.compare_add = 1;
	for (int last = 0; !last;) {
		struct ibv_wc wc;
		int n;

		last = stop;
		errno = ibv_post_send(qp, &wr, &bad);
		must(!errno, "ibv_post_send");
		while (!(n = ibv_poll_cq(cq, 1, &wc)))
			;
		must(n == 1 && wc.status == IBV_WC_SUCCESS, "an atomic beside a fork");
		must(*(uint64_t *)large == done && *sum == ++done, "each atomic is done once");
	}
	must(!pthread_join(thread, NULL) && !ibv_dereg_mr(region) && *sum == done, "the end");
	printf("%llu atomics beside %d forks\n", (unsigned long long)done, ATOMIC_FORKS);
}

static long nanoseconds(void)
{
	struct timespec now;

	must(!clock_gettime(CLOCK_MONOTONIC, &now), "clock_gettime");
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

/* Opens the device as the first thing of this process; a signal comes after so many nanoseconds, if not 0. Returns how long that took. */
static long open_first(const char *name, long delay)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct sigaction action = { .sa_handler = fork_in_handler, .sa_flags = SA_RESTART };
	struct itimerspec once = { .it_value = { .tv_sec = delay / 1000000000, .tv_nsec = delay % 1000000000 } };
	struct rdma_event_channel *channel;
	long began, took;
	timer_t timer;

	must(!sigaction(SIGUSR1, &action, NULL) && !timer_create(CLOCK_MONOTONIC, &event, &timer), "timer");
	began = nanoseconds();
	must(!timer_settime(timer, 0, &once, NULL), "timer_settime");
	inside = 1;
	open_all(name);
	channel = rdma_create_event_channel();
	inside = 0;
	took = nanoseconds() - began;
	must(!!channel, "channel");
	if (is_child)
		_exit(0);
	write_and_check(1);
	rdma_destroy_event_channel(channel);
	return took;
}

#define OPENINGS 40

static void opening(const char *name)
{
	/* How long it takes without a signal, and how many of the others were interrupted. */
	struct { long took, interrupted; } *shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	must(shared != MAP_FAILED, "mmap");
	for (int round = 0; round <= OPENINGS; round++) {
		int status;
		pid_t pid = fork();

		must(pid >= 0, "fork");
		if (!pid) {
			/* Ends a deadlock. */
			alarm(60);
			/* Each second child of a handler returns from it. */
			interrupted = round % 2;
			long took = open_first(name, round * (shared->took / OPENINGS));

			if (!round)
				shared->took = took;
			shared->interrupted += interrupted != round % 2;
			_exit(0);
		}
		must(waitpid(pid, &status, 0) == pid, "waitpid");
		if (status) {
			fprintf(stderr, "wrong: opening %d ended with %#x\n", round, status);
			exit(1);
		}
	}
	must(shared->interrupted > OPENINGS / 4, "signals come while the device is opened");
	printf("%ld of %d openings interrupted\n", shared->interrupted, OPENINGS);
}

static void open_and_close(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened = NULL;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			opened = ibv_open_device(list[i]);
	must(opened && !ibv_close_device(opened), "device");
	ibv_free_device_list(list);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: forks DEVICE orphan|children|unhandled|traffic|busy|atomics|calls|opens|handlers|opening\n");
		return 2;
	}
	if (!strcmp(argv[2], "opening")) {
		opening(argv[1]);
		return 0;
	}
	if (!strcmp(argv[2], "opens")) {
		for (int count = 0;; count++) {
			open_and_close(argv[1]);
			if (!count)
				printf("ready\n");
			fflush(stdout);
		}
	}
	if (!strcmp(argv[2], "busy")) {
		ended = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		/* Before the library's handler, which is added with the first registration. */
		must(ended != MAP_FAILED && !pthread_atfork(NULL, NULL, wait_for_parent), "mmap, pthread_atfork");
		rnr_retry = 0;
	}
	open_all(argv[1]);
	if (!strcmp(argv[2], "busy")) {
		busy();
		return 0;
	}
	if (!strcmp(argv[2], "traffic")) {
		traffic();
		return 0;
	}
	if (!strcmp(argv[2], "atomics")) {
		atomics();
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
	if (!strcmp(argv[2], "calls")) {
		printf("ready\n");
		fflush(stdout);
		for (;;)
			must(call_objects(), "calls");
	}
	if (!strcmp(argv[2], "handlers")) {
		handlers();
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
