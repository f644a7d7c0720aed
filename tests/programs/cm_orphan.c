/*
 * cm_orphan ADDRESS: the daemon dies while the program has a connection, a listener and an id. Calls fail with EIO, no wait
 * blocks, and all objects can be destroyed. Prints "ready", then waits for the hangup of its event channel.
 */
#include "cm_check.h"

static void test_calls_without_a_daemon(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *bound = new_id(channel, RDMA_PS_TCP);
	struct pollfd end = { .fd = channel->fd };
	struct rdma_cm_event *event;
	struct pair p;

	connected(&p);
	CHECK(rdma_bind_addr(bound, at_port(0)) == 0);
	puts("ready");
	fflush(stdout);
	CHECK(poll(&end, 1, TIMEOUT_MS * 2) == 1 && (end.revents & POLLHUP), "revents %x", end.revents);
	CHECK(rdma_bind_addr(id, at_port(0)) == -1 && errno == EIO);
	CHECK(rdma_listen(bound, 1) == -1 && errno == EIO);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EIO);
	CHECK(rdma_get_cm_event(p.active_channel, &event) == -1 && errno == EIO);
	/* The call succeeds if it only queues a command; then the wait for its event fails. */
	CHECK(rdma_disconnect(p.active) == 0 || errno == EIO);
	CHECK(rdma_create_event_channel() == NULL && errno == ENODEV);
	end_pair(&p);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(bound) == 0);
	rdma_destroy_event_channel(channel);
}

static const struct rule rules[] = {
	{ "orphan", test_calls_without_a_daemon },
};

int main(int argc, char **argv)
{
	alarm(30);
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
