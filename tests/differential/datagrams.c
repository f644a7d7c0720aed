/* Unreliable datagrams, multicast, and shared receive queues. */
#include "facts.h"
#include <arpa/inet.h>

static struct ibv_ah *ah_to(const union ibv_gid *to)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = *to, .sgid_index = gid_index, .hop_limit = 64, .traffic_class = 8 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	NEED(ah);
	return ah;
}

static int datagram(struct ibv_qp *from, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, size_t length, int immediate)
{
	struct ibv_sge sge = piece(mr, 0, length);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(0x11223344) };

	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	return post_wr(from, &wr);
}

/* Two queue pairs; the receiver completes on `far_cq`. */
static struct ibv_cq *far_cq;
static struct ibv_qp *near, *far;

static void prepare(void)
{
	struct ibv_qp_init_attr init = init_of(IBV_QPT_UD);

	far_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(far_cq);
	init.send_cq = init.recv_cq = far_cq;
	far = ibv_create_qp(pd, &init);
	NEED(far);
	near = qp_in(IBV_QPT_UD, IBV_QPS_RTS);
	bring(far, IBV_QPS_RTS, 0);
}

BEHAVIOUR(ud_headers)
{
	struct ibv_wc wc;
	uint8_t *head = area + RECEIVE_AT;

	prepare();
	memset(head, 0x5a, 128);
	memset(area, 3, 64);
	NEED(!post_receive(far, 128));
	result("post", datagram(near, ah_to(&gid), far->qp_num, QKEY, 32, 0));
	completion("sender", cq);
	wc = completion("receiver", far_cq);
	fact("flags", "%#x", wc.wc_flags);
	fact("src_qp", "%d", wc.src_qp == near->qp_num);
	fact("pkey_index", "%d", wc.pkey_index);
	fact("untouched_20", "%d", head[0] == 0x5a || head[0] == 0);
	fact("version", "%#x", head[20]);
	fact("tos", "%d", head[21]);
	fact("protocol", "%d", head[29]);
	fact("source", "%d", !memcmp(head + 32, gid.raw + 12, 4));
	fact("destination", "%d", !memcmp(head + 36, gid.raw + 12, 4));
	fact("data", "%u", sum(head + 40, 32));
	fact("after", "%#x", head[72]);
}

BEHAVIOUR(ud_immediate)
{
	struct ibv_wc wc;

	prepare();
	NEED(!post_receive(far, 128));
	result("post", datagram(near, ah_to(&gid), far->qp_num, QKEY, 32, 1));
	completion("sender", cq);
	wc = completion("receiver", far_cq);
	fact("flags", "%#x", wc.wc_flags);
	fact("imm", "%#x", be32toh(wc.imm_data));
}

BEHAVIOUR(ud_empty)
{
	prepare();
	NEED(!post_receive(far, 128));
	result("post", datagram(near, ah_to(&gid), far->qp_num, QKEY, 0, 0));
	completion("sender", cq);
	completion("receiver", far_cq);
}

BEHAVIOUR(ud_at_the_mtu)
{
	prepare();
	NEED(!post_receive(far, 2048));
	result("post", datagram(near, ah_to(&gid), far->qp_num, QKEY, 1024, 0));
	completion("sender", cq);
	completion("receiver", far_cq);
}

BEHAVIOUR(ud_above_the_mtu)
{
	int code;

	prepare();
	NEED(!post_receive(far, 4096));
	code = datagram(near, ah_to(&gid), far->qp_num, QKEY, 1025, 0);
	result("post", code);
	if (!code)
		completion("sender", cq);
	fact("state", "%s", state_name(state_of(near)));
}

/* A second datagram shows that the first was dropped. */
static void dropped(uint32_t qkey)
{
	prepare();
	NEED(!post_receive(far, 128) && !post_receive(far, 128));
	result("wrong", datagram(near, ah_to(&gid), far->qp_num, qkey, 8, 0));
	completion("wrong.sender", cq);
	result("right", datagram(near, ah_to(&gid), far->qp_num, QKEY, 16, 0));
	completion("right.sender", cq);
	completion("receiver", far_cq);
	fact("state", "%s", state_name(state_of(far)));
}

BEHAVIOUR(ud_wrong_qkey) { dropped(QKEY + 1); }
BEHAVIOUR(ud_qkey_with_the_high_bit) { dropped(0x80000000 | QKEY); }

/* With the high bit the sender's own Q_Key is used (IBA 10.2.5). */
BEHAVIOUR(ud_controlled_qkey)
{
	struct ibv_qp_attr attr = { .qkey = 0x80000001 };

	prepare();
	NEED(!post_receive(far, 128));
	result("modify", ibv_modify_qp(far, &attr, IBV_QP_QKEY));
	result("modify_sender", ibv_modify_qp(near, &attr, IBV_QP_QKEY));
	result("post", datagram(near, ah_to(&gid), far->qp_num, 0x80000001, 8, 0));
	completion("sender", cq);
	completion("receiver", far_cq);
}

BEHAVIOUR(ud_receive_too_short)
{
	prepare();
	NEED(!post_receive(far, 50) && !post_receive(far, 128));
	result("long", datagram(near, ah_to(&gid), far->qp_num, QKEY, 32, 0));
	completion("long.sender", cq);
	result("short", datagram(near, ah_to(&gid), far->qp_num, QKEY, 8, 0));
	completion("short.sender", cq);
	completion("first", far_cq);
	fact("state", "%s", state_name(state_of(far)));
}

BEHAVIOUR(ud_without_receive)
{
	prepare();
	result("first", datagram(near, ah_to(&gid), far->qp_num, QKEY, 8, 0));
	completion("first.sender", cq);
	fact("state", "%s", state_name(state_of(far)));
}

BEHAVIOUR(ud_to_a_queue_pair_that_is_not)
{
	prepare();
	result("post", datagram(near, ah_to(&gid), 0xfffff0, QKEY, 8, 0));
	completion("sender", cq);
	fact("state", "%s", state_name(state_of(near)));
}

BEHAVIOUR(ud_to_a_connected_queue_pair)
{
	struct ibv_qp *rc = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	prepare();
	result("post", datagram(near, ah_to(&gid), rc->qp_num, QKEY, 8, 0));
	completion("sender", cq);
	result("write", post(rc, IBV_WR_RDMA_WRITE, 8));
	completion("write.completion", cq);
}

BEHAVIOUR(ud_handle_of_another_domain)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };
	struct ibv_ah *ah = other ? ibv_create_ah(other, &attr) : NULL;
	int code;

	NEED(ah);
	prepare();
	NEED(!post_receive(far, 128));
	code = datagram(near, ah, far->qp_num, QKEY, 8, 0);
	result("post", code);
	if (!code)
		completion("sender", cq);
}

BEHAVIOUR(ud_bad_local_key)
{
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };

	prepare();
	sge.lkey += 0x1000;
	wr.wr.ud.ah = ah_to(&gid);
	wr.wr.ud.remote_qpn = far->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	result("post", post_wr(near, &wr));
	completion("completion", cq);
	fact("state", "%s", state_name(state_of(near)));
}

BEHAVIOUR(handle_from_a_completion)
{
	struct ibv_ah_attr attr;
	struct ibv_wc wc;
	struct ibv_ah *ah;

	prepare();
	NEED(!post_receive(far, 128) && !post_receive(near, 128));
	result("post", datagram(near, ah_to(&gid), far->qp_num, QKEY, 8, 0));
	completion("sender", cq);
	wc = completion("receiver", far_cq);
	result("init", ibv_init_ah_from_wc(context, PORT, &wc, (struct ibv_grh *)(area + RECEIVE_AT), &attr));
	fact("global", "%d", attr.is_global);
	fact("dgid", "%d", !memcmp(&attr.grh.dgid, &gid, sizeof gid));
	fact("sgid_index", "%d", attr.grh.sgid_index == gid_index);
	fact("traffic_class", "%d", attr.grh.traffic_class);
	ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)(area + RECEIVE_AT), PORT);
	made("create", ah);
	if (!ah)
		return;
	result("reply", datagram(far, ah, wc.src_qp, QKEY, 8, 0));
	completion("reply.receiver", cq);
}

/* --- Multicast --- */
static union ibv_gid group_of(const char *text)
{
	union ibv_gid group;

	NEED(inet_pton(AF_INET6, text, group.raw) == 1);
	return group;
}

static void attach(const char *key, struct ibv_qp *qp, const char *group, uint16_t lid)
{
	union ibv_gid to = group_of(group);

	result(key, ibv_attach_mcast(qp, &to, lid));
}

BEHAVIOUR(multicast_attach)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_UD, IBV_QPS_RTS), *rc = qp_in(IBV_QPT_RC, IBV_QPS_RTS), *fresh = new_qp(IBV_QPT_UD);
	union ibv_gid group = group_of("ff0e::1:2"), other = group_of("ff0e::1:3");

	attach("once", qp, "ff0e::1:2", 0);
	attach("twice", qp, "ff0e::1:2", 0);
	attach("in_reset", fresh, "ff0e::1:2", 0);
	attach("rc", rc, "ff0e::1:2", 0);
	attach("not_multicast", qp, "fd00::1", 0);
	attach("ipv4_unicast", qp, "::ffff:10.1.2.3", 0);
	attach("lid", qp, "ff0e::1:4", 0xc001);
	result("detach", ibv_detach_mcast(qp, &group, 0));
	result("detach_again", ibv_detach_mcast(qp, &group, 0));
	result("detach_other", ibv_detach_mcast(qp, &other, 0));
	result("destroy", ibv_destroy_qp(qp));
}

BEHAVIOUR(multicast_and_destroy)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_UD, IBV_QPS_RTS);

	attach("attach", qp, "ff0e::1:2", 0);
	result("destroy", ibv_destroy_qp(qp));
}

BEHAVIOUR(multicast_send)
{
	union ibv_gid group = group_of("::ffff:239.1.2.3");

	prepare();
	NEED(!post_receive(far, 128));
	result("attach", ibv_attach_mcast(far, &group, 0));
	result("post", datagram(near, ah_to(&group), 0xffffff, QKEY, 8, 0));
	completion("sender", cq);
}

/* --- Shared receive queues --- */
static struct ibv_srq *new_srq(unsigned wr)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = wr, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);

	NEED(srq);
	return srq;
}

static int post_shared(struct ibv_srq *srq, int pieces)
{
	struct ibv_sge sges[40];
	struct ibv_recv_wr wr = { .wr_id = 9, .sg_list = sges, .num_sge = pieces }, *bad;

	for (int i = 0; i < COUNT(sges); i++)
		sges[i] = piece(mr, RECEIVE_AT, 64);
	return ibv_post_srq_recv(srq, &wr, &bad);
}

static struct ibv_qp *on_srq(struct ibv_srq *srq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = init_of(type);
	struct ibv_qp *qp;

	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	return qp;
}

BEHAVIOUR(srq_receive)
{
	struct ibv_srq *srq = new_srq(8);
	struct ibv_qp *qp = on_srq(srq, IBV_QPT_RC);
	struct ibv_wc wc;

	bring(qp, IBV_QPS_RTS, qp->qp_num);
	result("post_receive", post_shared(srq, 1));
	result("send", post(qp, IBV_WR_SEND, 8));
	for (int i = 0; i < 2; i++)
		if (await(cq, &wc) == 1 && wc.opcode & IBV_WC_RECV)
			fact("receiver", "%s %d %d", status_name(wc.status), (int)wc.wr_id, wc.qp_num == qp->qp_num);
}

BEHAVIOUR(srq_full)
{
	struct ibv_srq *srq = new_srq(8);
	int count = 0, code = 0;

	while (count < 10000 && !(code = post_shared(srq, 1)))
		count++;
	fact("room", "%d", count >= 8);
	result("then", code);
}

BEHAVIOUR(srq_pieces)
{
	struct ibv_srq *srq = new_srq(8);

	result("0", post_shared(srq, 0));
	result("2", post_shared(srq, 2));
	result("40", post_shared(srq, 40));
}

BEHAVIOUR(srq_receive_on_the_queue_pair)
{
	struct ibv_qp *qp = on_srq(new_srq(8), IBV_QPT_RC);

	bring(qp, IBV_QPS_RTS, qp->qp_num);
	result("post_recv", post_receive(qp, 64));
}

BEHAVIOUR(srq_modify)
{
	struct ibv_srq *srq = new_srq(16);
	struct ibv_srq_attr attr = { .srq_limit = 4 }, now;

	result("nothing", ibv_modify_srq(srq, &attr, 0));
	result("limit", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	NEED(!ibv_query_srq(srq, &now));
	fact("limit.now", "%u", now.srq_limit);
	attr.srq_limit = 1000;
	result("limit_beyond", ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	attr.max_wr = 64;
	result("grow", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	NEED(!ibv_query_srq(srq, &now));
	fact("grow.now", "%d", now.max_wr >= 64);
	attr.max_wr = 4;
	result("shrink", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.max_wr = 0;
	result("to_0", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	attr.max_wr = (uint32_t)device.max_srq_wr + 1;
	result("beyond", ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	result("unknown", ibv_modify_srq(srq, &attr, 1 << 4));
}

BEHAVIOUR(srq_without_receives)
{
	struct ibv_qp *qp = on_srq(new_srq(8), IBV_QPT_RC);

	bring(qp, IBV_QPS_RTS, qp->qp_num);
	result("send", post(qp, IBV_WR_SEND, 8));
	completion("completion", cq);
}

BEHAVIOUR(srq_types)
{
	struct ibv_srq *srq = new_srq(8);
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };

	for (int i = 0; i < COUNT(types); i++) {
		struct ibv_qp_init_attr init = init_of(types[i]);

		init.srq = srq;
		made(key_of("type_%d", types[i]), ibv_create_qp(pd, &init));
	}
}

/* Receives of a shared queue stay when one of its queue pairs fails. */
BEHAVIOUR(srq_keeps_receives)
{
	struct ibv_srq *srq = new_srq(8);
	struct ibv_qp *one = on_srq(srq, IBV_QPT_RC), *two = on_srq(srq, IBV_QPT_RC);
	struct ibv_wc wc;

	bring(one, IBV_QPS_RTS, one->qp_num);
	bring(two, IBV_QPS_RTS, two->qp_num);
	NEED(!post_shared(srq, 1));
	result("err", move(one, IBV_QPS_ERR));
	result("write", post(two, IBV_WR_RDMA_WRITE, 8));
	completion("write.completion", cq);
	fact("flushed", "%d", ibv_poll_cq(cq, 1, &wc));
	result("send", post(two, IBV_WR_SEND, 8));
	completion("one", cq);
	completion("other", cq);
}

BEHAVIOUR(srq_of_another_domain)
{
	struct ibv_srq *srq = new_srq(8);
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);

	NEED(other);
	init.srq = srq;
	made("qp", ibv_create_qp(other, &init));
}
