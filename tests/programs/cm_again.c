/*
 * cm_again ADDRESS: runs longer than the daemon. Prints "first" when an id is bound to ADDRESS and listens, "gone" when no
 * daemon answers any more, and "back" when a new daemon has bound another id to ADDRESS and assigned it a device.
 */
#include "cm_check.h"

#define TRIES 500

/* Whether a daemon binds a new id to the address and its device can be queried. The daemon may end between any two calls. */
static bool has_id(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	bool bound;

	if (!channel)
		return false;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	bound = rdma_bind_addr(id, at_port(0)) == 0 && id->verbs &&
		ibv_query_device(id->verbs, &(struct ibv_device_attr){}) == 0;
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	return bound;
}

static void test_successor(void)
{
	struct rdma_event_channel *old = new_channel();
	struct rdma_cm_id *id = new_id(old, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	int left = TRIES;

	CHECK(rdma_bind_addr(id, at_port(0)) == 0 && rdma_listen(id, 1) == 0);
	puts("first");
	fflush(stdout);
	while (has_id() && --left)
		usleep(20000);
	puts("gone");
	fflush(stdout);
	while (!has_id() && --left)
		usleep(20000);
	CHECK(left, "no new id");
	puts("back");
	/* Ids and channels of the old daemon refuse all calls except destruction, and an id is told of the end. */
	CHECK(rdma_listen(id, 1) == -1);
	CHECK(rdma_get_cm_event(old, &event) == 0 && event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->id == id);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(rdma_get_cm_event(old, &event) == -1);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(old);
}

static const struct rule rules[] = {
	{ "successor", test_successor },
};

int main(int argc, char **argv)
{
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
