/*
 * after_end ADDRESS [RULE...]: descriptors of events after the end of the daemon. A program that waits for them by epoll gets what
 * is due once, then an error (EIO) from each descriptor, and after that it sleeps: what still comes is told, and nothing else wakes
 * it. Threads that wait inside the calls get the error.
 *
 * Each rule prints "ready", and waits for the end of the daemon.
 */
#include "cm_check.h"
#include <sys/epoll.h>
#include <sys/resource.h>

#define RECEIVES 3
/* Wake-ups of a program that is told of everything once: a few for each descriptor, whatever the machine does. */
#define WAKEUPS_MAX 100
/* Without an event for this time the descriptors are quiet. */
#define QUIET_MS 1000

static struct pair p;
static struct ibv_mr *mr;
static char data[64];

/* What a program got. */
static struct {
	int wakeups, flushes, fatal, removals, errors[5];
} got;

enum source { RECEIVES_DONE, SENDS_DONE, ASYNC, ACTIVE, PASSIVE, SOURCES };

static void post_receive(struct ibv_qp *qp)
{
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = sizeof data, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

static void post_send(struct ibv_qp *qp)
{
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = sizeof data, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static int fd_of(enum source source)
{
	switch (source) {
	case RECEIVES_DONE:
		return p.active->recv_cq_channel->fd;
	case SENDS_DONE:
		return p.active->send_cq_channel->fd;
	case ASYNC:
		return p.active->verbs->async_fd;
	case ACTIVE:
		return p.active_channel->fd;
	default:
		return p.passive_channel->fd;
	}
}

static void prepare(void)
{
	connected(&p);
	mr = ibv_reg_mr(p.active->pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	for (int i = 0; i < RECEIVES; i++)
		post_receive(p.active->qp);
	CHECK(ibv_req_notify_cq(p.active->recv_cq, 0) == 0 && ibv_req_notify_cq(p.active->send_cq, 0) == 0);
}

static int take_completion_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;

	if (ibv_get_cq_event(channel, &cq, &context))
		return -1;
	CHECK(cq == (channel == p.active->send_cq_channel ? p.active->send_cq : p.active->recv_cq));
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	while (ibv_poll_cq(cq, 1, &wc) == 1) {
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR, "status %d", wc.status);
		got.flushes++;
	}
	return 0;
}

static int take_async_event(void)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(p.active->verbs, &event))
		return -1;
	got.fatal += event.event_type == IBV_EVENT_DEVICE_FATAL;
	ibv_ack_async_event(&event);
	return 0;
}

static int take_cm_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		return -1;
	got.removals += event->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
	rdma_ack_cm_event(event);
	return 0;
}

static int take(enum source source)
{
	switch (source) {
	case RECEIVES_DONE:
		return take_completion_event(p.active->recv_cq_channel);
	case SENDS_DONE:
		return take_completion_event(p.active->send_cq_channel);
	case ASYNC:
		return take_async_event();
	case ACTIVE:
		return take_cm_event(p.active_channel);
	default:
		return take_cm_event(p.passive_channel);
	}
}

static int watch_all(unsigned flags)
{
	int epoll = epoll_create1(0);

	CHECK(epoll >= 0);
	for (enum source source = 0; source < SOURCES; source++) {
		struct epoll_event event = { .events = EPOLLIN | flags, .data = { .u32 = source } };

		CHECK(fcntl(fd_of(source), F_SETFL, O_NONBLOCK) == 0);
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd_of(source), &event) == 0);
	}
	return epoll;
}

/* One wait, and one event of each descriptor that is ready; with `all`, events until an error. Returns how many were ready. */
static int turn(int epoll, int ms, bool all)
{
	struct epoll_event events[8];
	int count = epoll_wait(epoll, events, 8, ms);

	CHECK(count >= 0);
	got.wakeups += count > 0;
	for (int i = 0; i < count; i++) {
		enum source source = events[i].data.u32;
		int failed;

		do
			failed = take(source);
		while (all && !failed);
		if (failed && errno != EAGAIN) {
			CHECK(errno == EIO, "descriptor %d", source);
			got.errors[source]++;
		}
	}
	return count;
}

static double processor_seconds(void)
{
	struct rusage usage;

	CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

/* Serves events until there are none; then it is idle. */
static void serve_until_quiet(int epoll, bool all)
{
	double before;

	got.wakeups = 0;
	while (turn(epoll, QUIET_MS, all))
		CHECK(got.wakeups < WAKEUPS_MAX, "it is woken without end: flushes %d, fatal %d, removals %d, errors %d %d %d %d %d",
		      got.flushes, got.fatal, got.removals, got.errors[0], got.errors[1], got.errors[2], got.errors[3], got.errors[4]);
	before = processor_seconds();
	CHECK(turn(epoll, QUIET_MS, all) == 0);
	CHECK(processor_seconds() - before < QUIET_MS * 1e-3 / 10, "it is not idle");
}

static bool has_all_errors(void)
{
	for (enum source source = 0; source < SOURCES; source++)
		if (!got.errors[source])
			return false;
	return true;
}

static void serves_by_epoll(unsigned flags)
{
	int epoll = watch_all(flags), errors;
	bool all = flags & EPOLLET;
	struct rdma_cm_id *late;

	puts("ready");
	fflush(stdout);
	/* A daemon that ends as it should gives its programs time, before its descriptors close. */
	while (!has_all_errors())
		CHECK(turn(epoll, TIMEOUT_MS, all) > 0 && got.wakeups < 10 * WAKEUPS_MAX);
	serve_until_quiet(epoll, all);
	CHECK(got.flushes == RECEIVES && got.fatal == 1, "flushes %d, fatal %d", got.flushes, got.fatal);
	CHECK(got.removals == 3, "removals %d", got.removals);
	for (enum source source = 0; source < SOURCES; source++)
		CHECK(got.errors[source] <= 2, "descriptor %d: %d errors", source, got.errors[source]);

	/* What is posted now is flushed, and told. */
	errors = got.errors[RECEIVES_DONE] + got.errors[SENDS_DONE];
	for (int i = 0; i < 4; i++) {
		int before = got.flushes;

		if (i % 2)
			post_send(p.active->qp);
		else
			post_receive(p.active->qp);
		while (got.flushes == before)
			CHECK(turn(epoll, TIMEOUT_MS, all) > 0, "nothing tells of a flush");
		CHECK(got.flushes == before + 1);
		serve_until_quiet(epoll, all);
	}
	CHECK(all || got.errors[RECEIVES_DONE] + got.errors[SENDS_DONE] == errors, "an error without a cause");
	/* An id that is made now gets its event as well. */
	late = new_id(p.active_channel, RDMA_PS_TCP);
	while (got.removals == 3)
		CHECK(turn(epoll, TIMEOUT_MS, all) > 0, "nothing tells of a removal");
	serve_until_quiet(epoll, all);
	CHECK(got.fatal == 1 && got.removals == 4);
	close(epoll);
	CHECK(rdma_destroy_id(late) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	end_pair(&p);
}

static void test_level(void)
{
	prepare();
	serves_by_epoll(0);
}

static void test_edge(void)
{
	prepare();
	serves_by_epoll(EPOLLET);
}

static void *waits(void *source)
{
	while (take((enum source)(uintptr_t)source) == 0)
		;
	CHECK(errno == EIO);
	return NULL;
}

/* Several threads wait inside the calls for the same descriptors: all of them return. */
static void test_blocked(void)
{
	enum { THREADS = 3 };
	pthread_t threads[SOURCES][THREADS];

	prepare();
	for (enum source source = 0; source < SOURCES; source++)
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_create(&threads[source][i], NULL, waits, (void *)(uintptr_t)source) == 0);
	puts("ready");
	fflush(stdout);
	for (enum source source = 0; source < SOURCES; source++)
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_join(threads[source][i], NULL) == 0);
	/* And so does who asks later, in blocking mode. */
	for (enum source source = 0; source < SOURCES; source++)
		CHECK(take(source) == -1 && errno == EIO);
	CHECK(ibv_dereg_mr(mr) == 0);
	end_pair(&p);
}

static const struct rule rules[] = {
	{ "level", test_level },
	{ "edge", test_edge },
	{ "blocked", test_blocked },
};

int main(int argc, char **argv)
{
	return check_rules(rules, sizeof rules / sizeof *rules, argc, argv);
}
