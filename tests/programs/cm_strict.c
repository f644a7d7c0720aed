/*
 * cm_strict ADDRESS [NAME...]: rules of librdmacm about calls that are early, late, repeated or fail: none blocks, none leaks an
 * object, and each returns the errno of the kernel's connection manager. Both ends are in one process, as in cm_exercise.
 */
#include "cm_check.h"

static struct rdma_cm_id *sync_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(NULL, &id, NULL, ps) == 0);
	return id;
}

static struct rdma_cm_id *sync_resolved(enum rdma_port_space ps, uint16_t port)
{
	struct rdma_cm_id *id = sync_id(ps);

	CHECK(rdma_resolve_addr(id, NULL, at_port(port), TIMEOUT_MS) == 0);
	CHECK(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	return id;
}

/* No event follows for a rejected connection: rdma_disconnect must fail, or a synchronous id would wait for ever. */
static void test_disconnect_after_rejection(void)
{
	struct rdma_cm_id *id = sync_resolved(RDMA_PS_TCP, htons(9));

	new_qp(id);
	CHECK(rdma_connect(id, NULL) == -1 && errno == ECONNREFUSED);
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	rdma_destroy_ep(id);
}

/* The peer has disconnected, and this end has not read the event: rdma_disconnect succeeds, and the event is DISCONNECTED. */
static void *serve_one(void *listener)
{
	struct rdma_cm_id *id;

	CHECK(rdma_get_request(listener, &id) == 0);
	new_qp(id);
	CHECK(rdma_accept(id, NULL) == 0);
	CHECK(rdma_disconnect(id) == 0);
	rdma_destroy_ep(id);
	return NULL;
}

static void test_disconnect_twice(void)
{
	struct rdma_cm_id *listener = sync_id(RDMA_PS_TCP), *id;
	pthread_t server;

	CHECK(rdma_bind_addr(listener, at_port(0)) == 0 && rdma_listen(listener, 0) == 0);
	CHECK(pthread_create(&server, NULL, serve_one, listener) == 0);
	id = sync_resolved(RDMA_PS_TCP, rdma_get_src_port(listener));
	new_qp(id);
	CHECK(rdma_connect(id, NULL) == 0);
	CHECK(pthread_join(server, NULL) == 0);
	CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(id) == 0 && id->event->event == RDMA_CM_EVENT_TIMEWAIT_EXIT);
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	rdma_destroy_ep(id);
	CHECK(rdma_destroy_id(listener) == 0);
}

static void group(struct sockaddr_storage *to)
{
	memset(to, 0, sizeof(*to));
	if (local.ss_family == AF_INET) {
		struct sockaddr_in *v4 = (void *)to;

		v4->sin_family = AF_INET;
		v4->sin_addr.s_addr = htonl(0xef010277);
	} else {
		struct sockaddr_in6 *v6 = (void *)to;

		v6->sin6_family = AF_INET6;
		memcpy(&v6->sin6_addr, "\xff\x05\0\0\0\0\0\0\0\0\0\0\0\0\x02\x77", 16);
	}
}

static struct rdma_cm_id *bound(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id = new_id(channel, ps);

	CHECK(rdma_bind_addr(id, at_port(0)) == 0);
	return id;
}

static void test_groups_joined_twice(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = bound(channel, RDMA_PS_UDP);
	struct sockaddr_storage to;
	int contexts[2];

	group(&to);
	new_qp(id);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_event *event;

		CHECK(rdma_join_multicast(id, (struct sockaddr *)&to, &contexts[i]) == 0);
		event = expect(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
		CHECK(event->status == 0 && event->param.ud.private_data == &contexts[i], "status %d", event->status);
		rdma_ack_cm_event(event);
	}
	for (int i = 0; i < 2; i++)
		CHECK(rdma_leave_multicast(id, (struct sockaddr *)&to) == 0, "time %d", i);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&to) == -1 && errno == EADDRNOTAVAIL);
	end(id);
	rdma_destroy_event_channel(channel);
}

/* After rdma_leave_multicast no event refers to the context of the join: the program may free it. */
static void test_groups_left_before_their_event(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = bound(channel, RDMA_PS_UDP);
	struct rdma_cm_event *event;
	struct sockaddr_storage to;
	int context;

	group(&to);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&to, &context) == 0 && readable(channel, TIMEOUT_MS));
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&to) == 0);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN, "%s", rdma_event_str(event->event));
	end(id);
	rdma_destroy_event_channel(channel);
}

static void test_groups_are_for_datagrams(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = bound(channel, RDMA_PS_TCP);
	struct sockaddr_storage to;

	group(&to);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&to, NULL) == -1 && errno == EINVAL);
	end(id);
	rdma_destroy_event_channel(channel);
}

static int set(struct rdma_cm_id *id, int option, int value)
{
	uint8_t byte = value;

	if (option == RDMA_OPTION_ID_ACK_TIMEOUT || option == RDMA_OPTION_ID_TOS)
		return rdma_set_option(id, RDMA_OPTION_ID, option, &byte, sizeof(byte));
	return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof(value));
}

static void test_options_set_too_late(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *datagrams = new_id(channel, RDMA_PS_UDP);

	CHECK(set(datagrams, RDMA_OPTION_ID_ACK_TIMEOUT, 14) == -1 && errno == EINVAL, "nothing is acknowledged");
	CHECK(set(id, RDMA_OPTION_ID_REUSEADDR, 1) == 0 && set(id, RDMA_OPTION_ID_REUSEADDR, 0) == 0);
	CHECK(set(id, RDMA_OPTION_ID_AFONLY, 1) == 0 && set(id, RDMA_OPTION_ID_AFONLY, 0) == 0);
	CHECK(rdma_bind_addr(id, at_port(0)) == 0);
	CHECK(rdma_bind_addr(id, at_port(0)) == -1 && errno == EINVAL, "bound already");
	CHECK(set(id, RDMA_OPTION_ID_AFONLY, 1) == 0 && set(id, RDMA_OPTION_ID_REUSEADDR, 1) == 0);
	CHECK(rdma_listen(id, 1) == 0 && rdma_listen(id, 1) == -1 && errno == EINVAL, "it listens already");
	CHECK(set(id, RDMA_OPTION_ID_AFONLY, 1) == -1 && errno == EINVAL);
	CHECK(set(id, RDMA_OPTION_ID_REUSEADDR, 1) == -1 && errno == EINVAL);
	CHECK(set(id, RDMA_OPTION_ID_TOS, 32) == 0);
	end(id);
	end(datagrams);
	rdma_destroy_event_channel(channel);
}

/* The passive end may reject a connection that it has accepted, until the RTU is received. */
static void test_reject_after_accept(void)
{
	struct rdma_conn_param param = { .qp_num = 0x4711, .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_event_channel *a = new_channel(), *b = new_channel();
	struct rdma_cm_id *listen_id = listener(b, RDMA_PS_TCP), *active, *passive;
	struct rdma_cm_event *event;

	active = resolved(a, RDMA_PS_TCP, rdma_get_src_port(listen_id));
	CHECK(rdma_connect(active, &param) == 0);
	passive = expect_ack(b, RDMA_CM_EVENT_CONNECT_REQUEST);
	param.qp_num = 0x4712;
	CHECK(rdma_accept(passive, &param) == 0);
	expect_ack(a, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(rdma_reject(passive, "no", 2) == 0);
	event = expect(a, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 28 && memcmp(event->param.conn.private_data, "no", 2) == 0, "status %d", event->status);
	rdma_ack_cm_event(event);
	end(active);
	end(passive);
	end(listen_id);
	rdma_destroy_event_channel(a);
	rdma_destroy_event_channel(b);
}

/* If the queue pair cannot be created, the completion queues made for it are destroyed, and the caller's struct is unchanged. */
static void test_failed_queue_pairs(void)
{
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 10000, .max_recv_sge = 1 },
					 .qp_type = IBV_QPT_RC };
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, htons(9));

	CHECK(rdma_create_qp(id, NULL, &init) == -1 && errno == EINVAL);
	CHECK(!id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel && !id->qp);
	CHECK(!init.send_cq && !init.recv_cq, "completion queues that do not exist");
	init.cap.max_send_sge = 1;
	CHECK(rdma_create_qp(id, NULL, &init) == 0 && init.send_cq == id->send_cq);
	CHECK(rdma_create_qp(id, NULL, &init) == -1 && errno == EINVAL, "it has one");
	end(id);
	rdma_destroy_event_channel(channel);
}

static const struct rule rules[] = {
	{ "disconnect_rejected", test_disconnect_after_rejection },
	{ "disconnect_twice", test_disconnect_twice },
	{ "groups_twice", test_groups_joined_twice },
	{ "groups_left", test_groups_left_before_their_event },
	{ "groups_rc", test_groups_are_for_datagrams },
	{ "options", test_options_set_too_late },
	{ "reject_after_accept", test_reject_after_accept },
	{ "qp_failed", test_failed_queue_pairs },
};

int main(int argc, char **argv)
{
	/* A broken rule of this program is usually a call that never returns. */
	alarm(120);
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
