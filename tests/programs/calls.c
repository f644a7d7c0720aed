/*
 * calls DEVICE [ROUNDS]: makes and destroys a protection domain, a region, a completion queue and a queue pair in a loop, until SIGTERM or
 * so many rounds.
 *
 * One round is eight calls. Each second it prints "ROUNDS MEAN-US MAX-US": rounds of this second, their mean and their longest time; at the
 * end "p99 US", the time below which 99 of 100 rounds stayed (to an eighth). Any failed call ends it with code 1.
 */
#include "check.h"

#include <infiniband/verbs.h>
#include <signal.h>
#include <time.h>

/* Rounds by time: eight buckets for each power of two of nanoseconds. */
enum { BUCKETS = 8 * 40 };
static unsigned long taken[BUCKETS], rounds_taken;
static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void note(double us)
{
	unsigned long ns = us * 1e3 < 8 ? 8 : (unsigned long)(us * 1e3);
	int octave = 63 - __builtin_clzl(ns), at = 8 * octave + (int)(ns >> (octave - 3) & 7);

	taken[at < BUCKETS ? at : BUCKETS - 1]++;
	rounds_taken++;
}

/* The upper end of the bucket in which the 99th of 100 rounds is. */
static double p99_us(void)
{
	unsigned long seen = 0;

	for (int at = 0; at < BUCKETS; at++)
		if ((seen += taken[at]) * 100 >= rounds_taken * 99)
			return (double)((8UL + at % 8 + 1) << (at / 8) >> 3) / 1e3;
	return 0;
}

static void one_round(struct ibv_context *context)
{
	static char buffer[1 << 16] __attribute__((aligned(4096)));
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd));
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;

	unsigned long most = argc == 3 ? strtoul(argv[2], NULL, 10) : ~0UL;

	for (int i = 0; argc >= 2 && list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	CHECK(context);
	signal(SIGTERM, end);
	while (!ended && rounds_taken < most) {
		double begun = now_us(), before = begun, longest = 0;
		int rounds = 0;

		while (!ended && rounds_taken < most && before - begun < 1e6) {
			one_round(context);
			double after = now_us();
			if (after - before > longest)
				longest = after - before;
			note(after - before);
			before = after;
			rounds++;
		}
		printf("%d %.1f %.1f\n", rounds, (before - begun) / rounds, longest);
		fflush(stdout);
	}
	printf("p99 %.1f\n", p99_us());
	return 0;
}
