/*
 * cm_orphan ADDRESS: the daemon dies while the program has a connection, a listener and an id. Each id gets one
 * RDMA_CM_EVENT_DEVICE_REMOVAL, calls fail with EIO, no wait blocks, and all objects can be destroyed. Prints "ready", then waits
 * for the hangup of its event channel.
 */
#include "cm_check.h"

/* The next event of a channel that has hung up: which id is told of the end. */
static struct rdma_cm_id *removed_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	CHECK(rdma_get_cm_event(channel, &event) == 0 && event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && !event->status);
	id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

/* The ids of a channel are told of the end: one event each, and then none. */
static void removed(struct rdma_event_channel *channel, struct rdma_cm_id *one, struct rdma_cm_id *other)
{
	struct rdma_cm_id *first = removed_id(channel);
	struct rdma_cm_event *event;

	CHECK(first == one || first == other);
	if (other)
		CHECK(removed_id(channel) == (first == one ? other : one));
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EIO);
}

static void test_calls_without_a_daemon(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *bound = new_id(channel, RDMA_PS_TCP);
	struct pollfd end = { .fd = channel->fd };
	struct pair p;

	connected(&p);
	CHECK(rdma_bind_addr(bound, at_port(0)) == 0);
	puts("ready");
	fflush(stdout);
	CHECK(poll(&end, 1, TIMEOUT_MS * 2) == 1 && (end.revents & POLLHUP), "revents %x", end.revents);
	CHECK(rdma_bind_addr(id, at_port(0)) == -1 && errno == EIO);
	CHECK(rdma_listen(bound, 1) == -1 && errno == EIO);
	removed(channel, id, bound);
	removed(p.active_channel, p.active, NULL);
	removed(p.passive_channel, p.passive, p.listener);
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
	alarm(120);
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
