/*
 * cm_more ADDRESS [NAME...]: rules of librdmacm beyond connecting: ECE options, shared receive queues, XRC, backlog, early data,
 * options, requests withdrawn, loopback. Both ends are in one process, as in cm_exercise.
 */
#include "cm_check.h"

#include <arpa/inet.h>

static void accept_pair(struct pair *p)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

	new_qp(p->passive);
	CHECK(rdma_accept(p->passive, &param) == 0);
	expect_ack(p->active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect_ack(p->passive_channel, RDMA_CM_EVENT_ESTABLISHED);
}

/* Makes a listener and an id that has resolved the listener's address and has a queue pair, but has sent no request. */
static void before_request(struct pair *p, int backlog)
{
	p->active_channel = new_channel();
	p->passive_channel = new_channel();
	p->listener = new_id(p->passive_channel, RDMA_PS_TCP);
	CHECK(rdma_bind_addr(p->listener, at_port(0)) == 0 && rdma_listen(p->listener, backlog) == 0);
	p->active = resolved(p->active_channel, RDMA_PS_TCP, rdma_get_src_port(p->listener));
	new_qp(p->active);
}

static void test_ece_options_are_exchanged(void)
{
	struct ibv_ece mine = { .vendor_id = 0x123456, .options = 0xcafe }, theirs = { .vendor_id = 0x654321, .options = 7 };
	struct ibv_ece wrong = { .comp_mask = 1 }, seen;
	struct pair p;

	before_request(&p, 8);
	CHECK(rdma_set_local_ece(p.active, &wrong) == -1 && errno == EOPNOTSUPP);
	CHECK(rdma_set_local_ece(p.active, &mine) == 0 && rdma_connect(p.active, NULL) == 0);
	p.passive = expect_ack(p.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_get_remote_ece(p.passive, &seen) == 0 && seen.comp_mask == 0);
	CHECK(seen.vendor_id == mine.vendor_id && seen.options == mine.options, "%x %x", seen.vendor_id, seen.options);
	CHECK(rdma_set_local_ece(p.passive, &theirs) == 0);
	accept_pair(&p);
	CHECK(rdma_get_remote_ece(p.active, &seen) == 0);
	CHECK(seen.vendor_id == theirs.vendor_id && seen.options == theirs.options, "%x %x", seen.vendor_id, seen.options);
	end_pair(&p);
}

static void test_rejection_for_ece(void)
{
	struct rdma_cm_event *event;
	struct pair p;

	before_request(&p, 8);
	CHECK(rdma_connect(p.active, NULL) == 0);
	p.passive = expect_ack(p.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject_ece(p.passive, "not so", 6) == 0);
	event = expect(p.active_channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 35 && memcmp(event->param.conn.private_data, "not so", 6) == 0, "status %d", event->status);
	rdma_ack_cm_event(event);
	end_pair(&p);
}

static void test_shared_receive_queue(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_send_sge = 1 }, .sq_sig_all = 1, .qp_type = IBV_QPT_RC };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event;
	struct pair p;

	request(&p, NULL, 0);
	CHECK(rdma_create_srq(p.passive, NULL, &attr) == 0 && p.passive->srq && p.passive->pd);
	CHECK(rdma_create_srq(p.passive, NULL, &attr) == -1 && errno == EINVAL);
	/* Without an SRQ in the attributes, the id's SRQ is used. */
	CHECK(rdma_create_qp(p.passive, NULL, &init) == 0 && p.passive->qp->srq == p.passive->srq);
	CHECK(rdma_accept(p.passive, &param) == 0);
	event = expect(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.conn.srq == 1);
	rdma_ack_cm_event(event);
	expect_ack(p.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	send_and_compare(p.active, p.passive, 5);
	rdma_destroy_qp(p.passive);
	rdma_destroy_srq(p.passive);
	CHECK(p.passive->srq == NULL);
	end_pair(&p);
}

/* An endpoint that listens on the local address or connects to it; its events go to `channel`. */
static struct rdma_cm_id *xrc_endpoint(struct rdma_event_channel *channel, enum ibv_qp_type type, uint16_t port)
{
	bool passive = type == IBV_QPT_XRC_RECV;
	socklen_t len = local.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_IB, .ai_qp_type = type }, *info;
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_send_sge = 1 }, .sq_sig_all = 1 };
	struct rdma_cm_id *id;

	if (passive) {
		hints.ai_flags = RAI_PASSIVE;
		hints.ai_src_addr = at_port(port);
		hints.ai_src_len = len;
	} else {
		hints.ai_dst_addr = at_port(port);
		hints.ai_dst_len = len;
	}
	CHECK(rdma_getaddrinfo(NULL, NULL, &hints, &info) == 0);
	CHECK(rdma_create_ep(&id, info, NULL, passive ? NULL : &init) == 0 && id->qp_type == type);
	rdma_freeaddrinfo(info);
	CHECK(rdma_migrate_id(id, channel) == 0);
	return id;
}

/* XRC. The program's SRQ replaces the small default SRQ of a target, and exists longer than the target. */
static void test_extended_reliable(void)
{
	static uint8_t out[SIZE], in[SIZE];
	struct ibv_qp_init_attr target = { .cap = { .max_recv_wr = 1 }, .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_srq_init_attr_ex queue = { .attr = { .max_wr = 64, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC,
					      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .num_sge = 1 }, *bad;
	struct rdma_cm_event *event;
	struct ibv_mr *out_mr, *in_mr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint32_t number;
	struct pair p = { .active_channel = new_channel(), .passive_channel = new_channel() };

	p.listener = xrc_endpoint(p.passive_channel, IBV_QPT_XRC_RECV, 0);
	CHECK(rdma_listen(p.listener, 8) == 0);
	p.active = xrc_endpoint(p.active_channel, IBV_QPT_XRC_SEND, rdma_get_src_port(p.listener));
	CHECK(p.active->qp && p.active->send_cq && !p.active->recv_cq);
	CHECK(rdma_connect(p.active, &param) == 0);
	p.passive = expect_ack(p.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(p.passive->qp_type == IBV_QPT_XRC_RECV && p.passive->verbs == p.active->verbs);
	CHECK(rdma_create_qp(p.passive, NULL, &target) == 0 && p.passive->recv_cq && !p.passive->send_cq);
	CHECK(rdma_create_srq_ex(p.passive, &queue) == 0 && p.passive->srq && p.passive->recv_cq->cqe >= 64);
	CHECK(ibv_get_srq_num(p.passive->srq, &number) == 0);
	CHECK(rdma_accept(p.passive, &param) == 0);
	event = expect(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.conn.srq == 1 && event->param.conn.qp_num == p.passive->qp->qp_num);
	rdma_ack_cm_event(event);
	expect_ack(p.passive_channel, RDMA_CM_EVENT_ESTABLISHED);

	out_mr = rdma_reg_msgs(p.active, out, SIZE);
	in_mr = rdma_reg_msgs(p.passive, in, SIZE);
	CHECK(out_mr && in_mr);
	fill(out, SIZE, 9);
	sge = (struct ibv_sge){ .addr = (uintptr_t)out, .length = SIZE, .lkey = out_mr->lkey };
	wr.sg_list = &sge;
	wr.qp_type.xrc.remote_srqn = number;
	CHECK(rdma_post_recv(p.passive, in, in, SIZE, in_mr) == 0 && ibv_post_send(p.active->qp, &wr, &bad) == 0);
	CHECK(rdma_get_send_comp(p.active, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "send status %d", wc.status);
	CHECK(rdma_get_recv_comp(p.passive, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "receive status %d", wc.status);
	CHECK(wc.byte_len == SIZE && memcmp(in, out, SIZE) == 0);
	CHECK(rdma_dereg_mr(out_mr) == 0 && rdma_dereg_mr(in_mr) == 0);
	rdma_destroy_qp(p.passive);
	CHECK(p.passive->recv_cq && ibv_poll_cq(p.passive->recv_cq, 1, &wc) == 0);
	rdma_destroy_srq(p.passive);
	CHECK(!p.passive->srq && !p.passive->recv_cq && !p.passive->recv_cq_channel);
	end_pair(&p);
}

static void test_extended_queue_pair(void)
{
	struct pair p;
	struct ibv_qp_init_attr_ex init = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
					    .comp_mask = IBV_QP_INIT_ATTR_PD, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };

	request(&p, NULL, 0);
	init.pd = p.passive->pd;
	CHECK(rdma_create_qp_ex(p.passive, &init) == 0 && p.passive->qp && p.passive->qp->state == IBV_QPS_INIT);
	CHECK(rdma_accept(p.passive, NULL) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect_ack(p.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	send_and_compare(p.active, p.passive, 6);
	send_and_compare(p.passive, p.active, 7);
	end_pair(&p);
}

/* The backlog limits unread requests: a program may read several before it accepts one. */
static void test_backlog(void)
{
	struct rdma_cm_id *second, *late;
	struct pair p;

	before_request(&p, 1);
	second = resolved(p.active_channel, RDMA_PS_TCP, rdma_get_src_port(p.listener));
	new_qp(second);
	CHECK(rdma_connect(p.active, NULL) == 0);
	CHECK(readable(p.passive_channel, TIMEOUT_MS));
	CHECK(rdma_connect(second, NULL) == 0);
	/* The second request waits until the backlog has room. */
	usleep(20000);
	p.passive = expect_ack(p.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	late = expect_ack(p.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(late != p.passive);
	CHECK(rdma_reject(p.passive, NULL, 0) == 0);
	CHECK(expect_ack(p.active_channel, RDMA_CM_EVENT_REJECTED) == p.active);
	CHECK(rdma_destroy_id(late) == 0);
	CHECK(expect_ack(p.active_channel, RDMA_CM_EVENT_REJECTED) == second, "a request given up is rejected");
	end(second);
	end_pair(&p);
}

static void test_early_data(void)
{
	struct rdma_event_channel *a = new_channel(), *b = new_channel();
	struct rdma_cm_id *listen_id = listener(b, RDMA_PS_TCP), *passive;
	struct rdma_cm_id *active = resolved(a, RDMA_PS_TCP, rdma_get_src_port(listen_id));
	/* The program moves the queue pair itself and does not call rdma_establish: no RTU is sent. */
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .qp_num = 0x4321 };

	CHECK(rdma_connect(active, &param) == 0);
	passive = expect_ack(b, RDMA_CM_EVENT_CONNECT_REQUEST);
	new_qp(passive);
	CHECK(rdma_notify(passive, IBV_EVENT_QP_FATAL) == -1 && errno == EINVAL);
	CHECK(rdma_accept(passive, NULL) == 0);
	expect_ack(a, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(!readable(b, 50));
	CHECK(rdma_notify(passive, IBV_EVENT_COMM_EST) == 0);
	CHECK(expect_ack(b, RDMA_CM_EVENT_ESTABLISHED) == passive);
	/* The active end may still reject the response; then the connection of the passive end has ended. */
	CHECK(rdma_reject(active, NULL, 0) == 0);
	CHECK(expect_ack(b, RDMA_CM_EVENT_REJECTED) == passive);
	end(passive);
	CHECK(rdma_destroy_id(active) == 0 && rdma_destroy_id(listen_id) == 0);
	rdma_destroy_event_channel(a);
	rdma_destroy_event_channel(b);
}

/* Like rdma-core, the call refuses depths above the device's maximum; 255 asks for the maximum. */
static void test_depths_over_the_maximum(void)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_device_attr device;
	struct pair p;
	int most;

	before_request(&p, 1);
	CHECK(ibv_query_device(p.active->verbs, &device) == 0);
	most = device.max_qp_rd_atom;
	CHECK(most > 0 && most < 254);
	param.responder_resources = most + 1;
	CHECK(rdma_connect(p.active, &param) == -1 && errno == EINVAL);
	param.responder_resources = most;
	param.initiator_depth = most + 1;
	CHECK(rdma_connect(p.active, &param) == -1 && errno == EINVAL);
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	CHECK(rdma_connect(p.active, &param) == 0);
	p.passive = expect_ack(p.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	new_qp(p.passive);
	param.initiator_depth = most + 1;
	CHECK(rdma_accept(p.passive, &param) == -1 && errno == EINVAL);
	param.initiator_depth = most;
	CHECK(rdma_accept(p.passive, &param) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	expect_ack(p.passive_channel, RDMA_CM_EVENT_ESTABLISHED);
	end_pair(&p);
}

static void test_options_have_effect(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	uint8_t tos = 0x28, timeout = 17;
	struct pair p;

	p.active_channel = new_channel();
	p.passive_channel = new_channel();
	p.listener = listener(p.passive_channel, RDMA_PS_TCP);
	p.active = new_id(p.active_channel, RDMA_PS_TCP);
	CHECK(rdma_set_option(p.active, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)) == 0);
	CHECK(rdma_set_option(p.active, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)) == 0);
	CHECK(rdma_resolve_addr(p.active, NULL, at_port(rdma_get_src_port(p.listener)), TIMEOUT_MS) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(p.active, TIMEOUT_MS) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(p.active->route.path_rec->traffic_class == tos);
	new_qp(p.active);
	CHECK(rdma_connect(p.active, NULL) == 0);
	p.passive = expect_ack(p.passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(p.passive->route.path_rec->traffic_class == tos, "the peer answers in kind");
	accept_pair(&p);
	CHECK(ibv_query_qp(p.active->qp, &attr, IBV_QP_TIMEOUT | IBV_QP_AV, &init) == 0);
	CHECK(attr.timeout == timeout && attr.ah_attr.grh.traffic_class == tos, "%d %d", attr.timeout, attr.ah_attr.grh.traffic_class);
	end_pair(&p);
}

static void test_addresses_are_shared_if_all_allow_it(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *first = new_id(channel, RDMA_PS_TCP), *second = new_id(channel, RDMA_PS_TCP);
	int one = 1;

	CHECK(rdma_set_option(first, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(rdma_bind_addr(first, at_port(htons(7999))) == 0);
	CHECK(rdma_bind_addr(second, at_port(htons(7999))) == -1 && errno == EADDRINUSE);
	CHECK(rdma_set_option(second, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(rdma_bind_addr(second, at_port(htons(7999))) == 0);
	CHECK(rdma_bind_addr(second, at_port(htons(7998))) == -1 && errno == EINVAL, "bound twice");
	CHECK(rdma_destroy_id(first) == 0 && rdma_destroy_id(second) == 0);
	rdma_destroy_event_channel(channel);
}

/* A listener bound to a loopback address has no device; the two ids of a connection to it have one. */
static void test_loopback(void)
{
	struct rdma_event_channel *a = new_channel(), *b = new_channel();
	struct sockaddr_in lo = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_cm_id *listen_id = new_id(b, RDMA_PS_TCP), *active = new_id(a, RDMA_PS_TCP), *passive;

	CHECK(rdma_bind_addr(listen_id, (struct sockaddr *)&lo) == 0 && listen_id->verbs == NULL);
	CHECK(rdma_listen(listen_id, 1) == 0);
	lo.sin_port = rdma_get_src_port(listen_id);
	CHECK(rdma_resolve_addr(active, NULL, (struct sockaddr *)&lo, TIMEOUT_MS) == 0);
	expect_ack(a, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(active->verbs && rdma_resolve_route(active, TIMEOUT_MS) == 0);
	expect_ack(a, RDMA_CM_EVENT_ROUTE_RESOLVED);
	new_qp(active);
	CHECK(rdma_connect(active, NULL) == 0);
	passive = expect_ack(b, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(passive))->sin_port == lo.sin_port);
	CHECK(passive->verbs == active->verbs);
	end(passive);
	expect_ack(a, RDMA_CM_EVENT_REJECTED);
	end(active);
	CHECK(rdma_destroy_id(listen_id) == 0);
	rdma_destroy_event_channel(a);
	rdma_destroy_event_channel(b);
}

static void test_groups_without_members(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_UDP);
	struct sockaddr_in group = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xef010203) };
	struct rdma_cm_join_mc_attr_ex attr = { .comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS };

	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == -1 && errno == EADDRNOTAVAIL);
	CHECK(rdma_join_multicast_ex(id, &attr, NULL) == -1 && errno == EINVAL, "no address");
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void test_calls_out_of_order(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *unused;
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 1, .max_recv_wr = 1 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;

	CHECK(rdma_create_qp(id, NULL, &init) == -1, "no device yet");
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == -1);
	CHECK(rdma_get_request(id, &unused) == -1 && errno == EINVAL, "not a synchronous id");
	CHECK(rdma_create_id(channel, &unused, NULL, RDMA_PS_IPOIB) == -1 && errno == EPROTONOSUPPORT);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static const struct rule rules[] = {
	{ "ece", test_ece_options_are_exchanged },
	{ "reject_ece", test_rejection_for_ece },
	{ "srq", test_shared_receive_queue },
	{ "extended", test_extended_queue_pair },
	{ "xrc", test_extended_reliable },
	{ "backlog", test_backlog },
	{ "early_data", test_early_data },
	{ "depths", test_depths_over_the_maximum },
	{ "effects", test_options_have_effect },
	{ "sharing", test_addresses_are_shared_if_all_allow_it },
	{ "loopback", test_loopback },
	{ "groups", test_groups_without_members },
	{ "order", test_calls_out_of_order },
};

int main(int argc, char **argv)
{
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
