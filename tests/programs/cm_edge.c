/*
 * cm_edge ADDRESS [NAME...]: rules of librdmacm about events: which id, channel and order, after a migration, a rejection, or
 * when the program reads the channel late. Both ends are in one process, as in cm_exercise.
 */
#include "cm_check.h"

/*
 * The peer has disconnected and TIMEWAIT is over before the program reads the channel. TIMEWAIT_EXIT comes after DISCONNECTED,
 * and no event comes for a destroyed id.
 */
static void test_destroyed_ids_have_no_events(void)
{
	struct pair p;

	connected(&p);
	CHECK(rdma_disconnect(p.active) == 0);
	usleep(600000);
	CHECK(expect_ack(p.passive_channel, RDMA_CM_EVENT_DISCONNECTED) == p.passive);
	end(p.passive);
	CHECK(!readable(p.passive_channel, 100), "the channel is readable for a destroyed id: rdma_get_cm_event would block");
	end(p.active);
	CHECK(!readable(p.active_channel, 100));
	CHECK(rdma_destroy_id(p.listener) == 0);
	rdma_destroy_event_channel(p.active_channel);
	rdma_destroy_event_channel(p.passive_channel);
}

static void test_rejection_flushes(void)
{
	static uint8_t in[SIZE];
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct pair p;

	request(&p, NULL, 0);
	mr = rdma_reg_msgs(p.active, in, SIZE);
	CHECK(mr && rdma_post_recv(p.active, in, in, SIZE, mr) == 0);
	CHECK(rdma_reject(p.passive, NULL, 0) == 0);
	CHECK(expect_ack(p.active_channel, RDMA_CM_EVENT_REJECTED) == p.active);
	CHECK(rdma_get_recv_comp(p.active, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR, "status %d", wc.status);
	CHECK(rdma_dereg_mr(mr) == 0);
	end_pair(&p);
}

/* id->context of such an id still points to the listener's: the program would attribute the event to the listener. */
static void test_requests_that_are_not_accepted_have_no_events(void)
{
	struct pair p;

	request(&p, NULL, 0);
	end(p.active);
	CHECK(!readable(p.passive_channel, 300), "an event of an id that was not accepted");
	new_qp(p.passive);
	/* The peer has ended: the accept fails, by the call or by an event. */
	if (rdma_accept(p.passive, NULL) == 0)
		rdma_ack_cm_event(expect(p.passive_channel, RDMA_CM_EVENT_CONNECT_ERROR));
	end(p.passive);
	CHECK(rdma_destroy_id(p.listener) == 0);
	rdma_destroy_event_channel(p.active_channel);
	rdma_destroy_event_channel(p.passive_channel);
}

/* A migration of the listener moves its unread requests, and so the ids that come with them, to the new channel. */
static void test_requests_migrate_with_their_listener(void)
{
	struct rdma_event_channel *a = new_channel(), *b = new_channel(), *c = new_channel();
	struct rdma_cm_id *listen_id = listener(b, RDMA_PS_TCP), *active[2], *passive[2];
	uint16_t port = rdma_get_src_port(listen_id);

	for (int i = 0; i < 2; i++) {
		active[i] = resolved(a, RDMA_PS_TCP, port);
		new_qp(active[i]);
		CHECK(rdma_connect(active[i], NULL) == 0);
	}
	CHECK(readable(b, TIMEOUT_MS));
	usleep(20000);
	CHECK(rdma_migrate_id(listen_id, c) == 0 && listen_id->channel == c);
	CHECK(!readable(b, 50), "requests stay in the old channel");
	for (int i = 0; i < 2; i++) {
		passive[i] = expect_ack(c, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(passive[i]->channel == c);
	}
	for (int i = 0; i < 2; i++) {
		new_qp(passive[i]);
		CHECK(rdma_accept(passive[i], NULL) == 0);
		expect_ack(a, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(expect_ack(c, RDMA_CM_EVENT_ESTABLISHED) == passive[i]);
		end(passive[i]);
		expect_ack(a, RDMA_CM_EVENT_DISCONNECTED);
	}
	for (int i = 0; i < 2; i++)
		end(active[i]);
	CHECK(rdma_destroy_id(listen_id) == 0);
	rdma_destroy_event_channel(a);
	rdma_destroy_event_channel(b);
	rdma_destroy_event_channel(c);
}

static void test_events_without_private_data(void)
{
	struct rdma_cm_event *event;
	struct pair p;

	request(&p, NULL, 0);
	new_qp(p.passive);
	CHECK(rdma_accept(p.passive, NULL) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	event = expect(p.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.conn.private_data == NULL && event->param.conn.private_data_len == 0, "%d",
	      event->param.conn.private_data_len);
	rdma_ack_cm_event(event);
	CHECK(rdma_disconnect(p.active) == 0);
	event = expect(p.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->param.conn.private_data_len == 0, "%d", event->param.conn.private_data_len);
	rdma_ack_cm_event(event);
	event = expect(p.active_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->param.conn.private_data_len == 0, "%d", event->param.conn.private_data_len);
	rdma_ack_cm_event(event);
	end_pair(&p);
}

/* RDMA_OPTION_ID_ACK_TIMEOUT holds for the passive end as well. */
static void test_timeout_of_the_passive_end(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint8_t timeout = 19;
	struct pair p;

	request(&p, NULL, 0);
	CHECK(rdma_set_option(p.passive, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)) == 0);
	new_qp(p.passive);
	CHECK(rdma_accept(p.passive, NULL) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect_ack(p.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(ibv_query_qp(p.passive->qp, &attr, IBV_QP_TIMEOUT, &init) == 0 && attr.timeout == timeout, "%d", attr.timeout);
	end_pair(&p);
}

/* A source port in rdma_resolve_addr is bound, as by rdma_bind_addr. */
static void test_source_ports_are_bound(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *first = new_id(channel, RDMA_PS_TCP), *second = new_id(channel, RDMA_PS_TCP);
	struct sockaddr_storage src;
	struct rdma_cm_event *event;

	memcpy(&src, at_port(htons(7997)), sizeof(src));
	CHECK(rdma_resolve_addr(first, (struct sockaddr *)&src, at_port(htons(9)), TIMEOUT_MS) == 0);
	expect_ack(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_get_src_port(first) == htons(7997));
	if (rdma_resolve_addr(second, (struct sockaddr *)&src, at_port(htons(9)), TIMEOUT_MS) == 0) {
		event = expect(channel, RDMA_CM_EVENT_ADDR_ERROR);
		CHECK(event->status == -EADDRINUSE, "status %d", event->status);
		rdma_ack_cm_event(event);
	} else {
		CHECK(errno == EADDRINUSE);
	}
	CHECK(rdma_destroy_id(first) == 0);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&src) == 0, "the port is free again");
	CHECK(rdma_destroy_id(second) == 0);
	rdma_destroy_event_channel(channel);
}

static void test_unknown_host_names(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *info;

	CHECK(rdma_getaddrinfo("no.address", "1", &hints, &info) == EAI_NONAME, "programs ask gai_strerror");
}

static void test_connect_needs_a_queue_pair(void)
{
	struct pair p;

	request(&p, NULL, 0);
	CHECK(rdma_accept(p.passive, NULL) == -1 && errno == EINVAL, "no queue pair, no parameters");
	new_qp(p.passive);
	CHECK(rdma_accept(p.passive, NULL) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	end_pair(&p);
}

static void test_calls_without_a_peer(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, htons(9)), *sync;

	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	CHECK(rdma_reject(id, NULL, 0) == -1 && errno == EINVAL);
	CHECK(rdma_establish(id) == -1 && errno == EINVAL);
	CHECK(rdma_destroy_id(id) == 0 && !readable(channel, 20));
	CHECK(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_migrate_id(sync, NULL) == -1 && errno == EINVAL, "it is synchronous already");
	CHECK(rdma_migrate_id(sync, channel) == 0 && rdma_migrate_id(sync, NULL) == 0);
	CHECK(rdma_destroy_id(sync) == 0);
	rdma_destroy_event_channel(channel);
}

/* A synchronous id that was never connected: no event would end the call, and what is posted is flushed all the same. */
static void test_disconnecting_a_synchronous_id_flushes(void)
{
	static uint8_t in[SIZE];
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_resolve_addr(id, NULL, at_port(htons(9)), TIMEOUT_MS) == 0 && rdma_resolve_route(id, TIMEOUT_MS) == 0);
	new_qp(id);
	mr = rdma_reg_msgs(id, in, SIZE);
	CHECK(mr && rdma_post_recv(id, in, in, SIZE, mr) == 0);
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	CHECK(id->qp->state == IBV_QPS_ERR, "state %d", id->qp->state);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR, "status %d", wc.status);
	CHECK(rdma_dereg_mr(mr) == 0);
	rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static const struct rule rules[] = {
	{ "sync_disconnect", test_disconnecting_a_synchronous_id_flushes },
	{ "late_reader", test_destroyed_ids_have_no_events },
	{ "reject_flushes", test_rejection_flushes },
	{ "not_accepted", test_requests_that_are_not_accepted_have_no_events },
	{ "migrating_listener", test_requests_migrate_with_their_listener },
	{ "no_data", test_events_without_private_data },
	{ "passive_timeout", test_timeout_of_the_passive_end },
	{ "sources", test_source_ports_are_bound },
	{ "no_queue_pair", test_connect_needs_a_queue_pair },
	{ "without_peer", test_calls_without_a_peer },
	{ "names", test_unknown_host_names },
};

int main(int argc, char **argv)
{
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
