/* States of queue pairs: every transition from every state, the attributes that each needs and allows, and what a queue does in each state. */
#include "facts.h"

static const enum ibv_qp_state states[] = {
	IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPS_ERR,
};

/* Tries each transition from `from`, each on a queue pair of its own, with the attributes that a legal step needs. */
static void transitions(enum ibv_qp_type type, enum ibv_qp_state from)
{
	for (int i = 0; i < COUNT(states); i++) {
		struct ibv_qp *qp = qp_in(type, from);
		struct ibv_qp_attr attr;
		int mask = step(type, states[i], qp->qp_num, &attr);

		/* Towards RTS from a state at or above it only the state is needed. */
		if (states[i] == IBV_QPS_RTS && from != IBV_QPS_RTR)
			mask = IBV_QP_STATE;
		result(state_name(states[i]), ibv_modify_qp(qp, &attr, mask));
		fact(key_of("%s.then", state_name(states[i])), "%s", state_name(state_of(qp)));
		ibv_destroy_qp(qp);
	}
}

#define TRANSITIONS(name, type, from) \
	BEHAVIOUR(transitions_##name) { transitions(type, from); }
TRANSITIONS(rc_reset, IBV_QPT_RC, IBV_QPS_RESET)
TRANSITIONS(rc_init, IBV_QPT_RC, IBV_QPS_INIT)
TRANSITIONS(rc_rtr, IBV_QPT_RC, IBV_QPS_RTR)
TRANSITIONS(rc_rts, IBV_QPT_RC, IBV_QPS_RTS)
TRANSITIONS(rc_sqd, IBV_QPT_RC, IBV_QPS_SQD)
TRANSITIONS(rc_err, IBV_QPT_RC, IBV_QPS_ERR)
TRANSITIONS(uc_reset, IBV_QPT_UC, IBV_QPS_RESET)
TRANSITIONS(uc_init, IBV_QPT_UC, IBV_QPS_INIT)
TRANSITIONS(uc_rtr, IBV_QPT_UC, IBV_QPS_RTR)
TRANSITIONS(uc_rts, IBV_QPT_UC, IBV_QPS_RTS)
TRANSITIONS(uc_sqd, IBV_QPT_UC, IBV_QPS_SQD)
TRANSITIONS(uc_err, IBV_QPT_UC, IBV_QPS_ERR)
TRANSITIONS(ud_reset, IBV_QPT_UD, IBV_QPS_RESET)
TRANSITIONS(ud_init, IBV_QPT_UD, IBV_QPS_INIT)
TRANSITIONS(ud_rtr, IBV_QPT_UD, IBV_QPS_RTR)
TRANSITIONS(ud_rts, IBV_QPT_UD, IBV_QPS_RTS)
TRANSITIONS(ud_sqd, IBV_QPT_UD, IBV_QPS_SQD)
TRANSITIONS(ud_err, IBV_QPT_UD, IBV_QPS_ERR)

static const struct { const char *name; int bit; } bits[] = {
	{ "CUR_STATE", IBV_QP_CUR_STATE }, { "EN_SQD_ASYNC_NOTIFY", IBV_QP_EN_SQD_ASYNC_NOTIFY }, { "ACCESS_FLAGS", IBV_QP_ACCESS_FLAGS },
	{ "PKEY_INDEX", IBV_QP_PKEY_INDEX }, { "PORT", IBV_QP_PORT }, { "QKEY", IBV_QP_QKEY }, { "AV", IBV_QP_AV }, { "PATH_MTU", IBV_QP_PATH_MTU },
	{ "TIMEOUT", IBV_QP_TIMEOUT }, { "RETRY_CNT", IBV_QP_RETRY_CNT }, { "RNR_RETRY", IBV_QP_RNR_RETRY }, { "RQ_PSN", IBV_QP_RQ_PSN },
	{ "MAX_QP_RD_ATOMIC", IBV_QP_MAX_QP_RD_ATOMIC }, { "ALT_PATH", IBV_QP_ALT_PATH }, { "MIN_RNR_TIMER", IBV_QP_MIN_RNR_TIMER },
	{ "SQ_PSN", IBV_QP_SQ_PSN }, { "MAX_DEST_RD_ATOMIC", IBV_QP_MAX_DEST_RD_ATOMIC }, { "PATH_MIG_STATE", IBV_QP_PATH_MIG_STATE },
	{ "CAP", IBV_QP_CAP }, { "DEST_QPN", IBV_QP_DEST_QPN }, { "RATE_LIMIT", IBV_QP_RATE_LIMIT },
};

/* Makes the step from `from` to `to` without each bit of its mask, and with each bit that is not in it. The values are valid. */
static void masks(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to)
{
	for (int i = 0; i < COUNT(bits); i++) {
		struct ibv_qp *qp = qp_in(type, from);
		struct ibv_qp_attr all, attr;
		int mask = step(type, to, qp->qp_num, &attr);

		/* Towards RTS from a state at or above it only the state is needed. */
		if (from == IBV_QPS_SQD || from == IBV_QPS_RTS)
			mask = IBV_QP_STATE;
		step(type, IBV_QPS_RTR, qp->qp_num, &all);
		all.cur_qp_state = from;
		all.port_num = all.alt_port_num = PORT;
		all.qkey = QKEY;
		all.alt_ah_attr = all.ah_attr;
		all.timeout = 14;
		all.retry_cnt = 7;
		all.max_rd_atomic = 1;
		all.cap = init_of(type).cap;
		all.qp_state = to;
		if (mask & bits[i].bit)
			result(key_of("without_%s", bits[i].name), ibv_modify_qp(qp, &all, mask & ~bits[i].bit));
		else
			result(key_of("with_%s", bits[i].name), ibv_modify_qp(qp, &all, mask | bits[i].bit));
		ibv_destroy_qp(qp);
	}
}

#define MASKS(name, type, from, to) \
	BEHAVIOUR(masks_##name) { masks(type, from, to); }
MASKS(rc_reset_to_init, IBV_QPT_RC, IBV_QPS_RESET, IBV_QPS_INIT)
MASKS(rc_init_to_init, IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_INIT)
MASKS(rc_init_to_rtr, IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR)
MASKS(rc_rtr_to_rts, IBV_QPT_RC, IBV_QPS_RTR, IBV_QPS_RTS)
MASKS(rc_sqd_to_rts, IBV_QPT_RC, IBV_QPS_SQD, IBV_QPS_RTS)
MASKS(rc_rts_to_sqd, IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_SQD)
MASKS(rc_rts_to_err, IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_ERR)
MASKS(rc_rts_to_reset, IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RESET)
MASKS(uc_reset_to_init, IBV_QPT_UC, IBV_QPS_RESET, IBV_QPS_INIT)
MASKS(uc_init_to_rtr, IBV_QPT_UC, IBV_QPS_INIT, IBV_QPS_RTR)
MASKS(uc_rtr_to_rts, IBV_QPT_UC, IBV_QPS_RTR, IBV_QPS_RTS)
MASKS(ud_reset_to_init, IBV_QPT_UD, IBV_QPS_RESET, IBV_QPS_INIT)
MASKS(ud_init_to_rtr, IBV_QPT_UD, IBV_QPS_INIT, IBV_QPS_RTR)
MASKS(ud_rtr_to_rts, IBV_QPT_UD, IBV_QPS_RTR, IBV_QPS_RTS)

/* RTS to RTS, with each attribute alone. */
BEHAVIOUR(masks_rc_rts_to_rts)
{
	masks(IBV_QPT_RC, IBV_QPS_RTS, IBV_QPS_RTS);
}

BEHAVIOUR(modify_without_state)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_qp_attr attr = { .min_rnr_timer = 5, .qp_access_flags = 0 };

	result("nothing", ibv_modify_qp(qp, &attr, 0));
	result("min_rnr_timer", ibv_modify_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER));
	result("access_flags", ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS));
	result("unknown_bit", ibv_modify_qp(qp, &attr, 1 << 27));
	attr.qp_state = 99;
	result("state_99", ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_ERR;
	attr.cur_qp_state = IBV_QPS_RTS;
	result("cur_state_right", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
	attr.qp_state = IBV_QPS_RESET;
	attr.cur_qp_state = IBV_QPS_RTS;
	result("cur_state_wrong", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE));
}

/* Which calls a queue pair of each type takes in each state. */
static void posts(enum ibv_qp_type type)
{
	for (int i = 0; i < COUNT(states); i++) {
		struct ibv_qp *qp;

		if (states[i] == IBV_QPS_SQE || (states[i] == IBV_QPS_SQD && type == IBV_QPT_UD))
			continue;
		qp = qp_in(type, states[i]);
		result(key_of("%s.receive", state_name(states[i])), post_receive(qp, 64));
		if (type != IBV_QPT_UD)
			result(key_of("%s.send", state_name(states[i])), post(qp, IBV_WR_SEND, 8));
		ibv_destroy_qp(qp);
	}
}

BEHAVIOUR(posts_rc) { posts(IBV_QPT_RC); }
BEHAVIOUR(posts_uc) { posts(IBV_QPT_UC); }
BEHAVIOUR(posts_ud) { posts(IBV_QPT_UD); }

/* ERR flushes what was posted, sends and receives in their order, and what is posted later. */
BEHAVIOUR(flush_order)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_INIT);
	struct ibv_qp_attr attr;
	int mask = step(IBV_QPT_RC, IBV_QPS_RTR, qp->qp_num, &attr);

	for (int i = 0; i < 3; i++)
		result(key_of("receive_%d", i), post_receive(qp, 64));
	result("rtr", ibv_modify_qp(qp, &attr, mask));
	result("err", move(qp, IBV_QPS_ERR));
	for (int i = 0; i < 3; i++)
		completion(key_of("flushed_%d", i), cq);
	result("late_receive", post_receive(qp, 64));
	completion("late_receive.completion", cq);
	result("late_send", post(qp, IBV_WR_SEND, 8));
	completion("late_send.completion", cq);
}

BEHAVIOUR(reset_forgets_requests)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_INIT), *other = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_wc wc;

	result("receive", post_receive(qp, 64));
	result("reset", move(qp, IBV_QPS_RESET));
	/* A completion of another queue pair shows that none is in front of it. */
	result("write", post(other, IBV_WR_RDMA_WRITE, 8));
	completion("write.completion", cq);
	fact("more", "%d", ibv_poll_cq(cq, 1, &wc));
	bring(qp, IBV_QPS_RTS, qp->qp_num);
	fact("again", "%s", state_name(state_of(qp)));
}

BEHAVIOUR(reset_keeps_completions)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	result("write", post(qp, IBV_WR_RDMA_WRITE, 8));
	result("read", post(qp, IBV_WR_RDMA_READ, 8));
	completion("write.completion", cq);
	result("reset", move(qp, IBV_QPS_RESET));
	fact("state", "%s", state_name(state_of(qp)));
}

/* A drained queue keeps requests until it is in RTS again. */
BEHAVIOUR(sqd_holds_requests)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_SQD), *other = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_wc wc;

	result("post", post(qp, IBV_WR_RDMA_WRITE, 8));
	result("other", post(other, IBV_WR_RDMA_READ, 8));
	completion("other.completion", cq);
	fact("held", "%d", !ibv_poll_cq(cq, 1, &wc));
	result("rts", move(qp, IBV_QPS_RTS));
	completion("post.completion", cq);
}

BEHAVIOUR(ah_of_a_connected_queue_pair_is_kept)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	result("query", ibv_query_qp(qp, &attr, IBV_QP_AV, &init));
	fact("is_global", "%d", attr.ah_attr.is_global);
	fact("dgid", "%d", !memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid));
	fact("sgid_index", "%d", attr.ah_attr.grh.sgid_index == gid_index);
	fact("port_num", "%d", attr.ah_attr.port_num);
	fact("hop_limit", "%d", attr.ah_attr.grh.hop_limit);
	fact("traffic_class", "%d", attr.ah_attr.grh.traffic_class);
	fact("sl", "%d", attr.ah_attr.sl);
	fact("dlid", "%d", attr.ah_attr.dlid);
}

static void queried(enum ibv_qp_type type, enum ibv_qp_state state)
{
	struct ibv_qp *qp = qp_in(type, state);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	const char *name = state_name(state);

	result(key_of("%s.query", name), ibv_query_qp(qp, &attr, (1 << 21) - 1, &init));
	fact(key_of("%s.state", name), "%s", state_name(attr.qp_state));
	fact(key_of("%s.cur_state", name), "%s", state_name(attr.cur_qp_state));
	fact(key_of("%s.path_mtu", name), "%d", attr.path_mtu);
	fact(key_of("%s.access", name), "%#x", attr.qp_access_flags);
	fact(key_of("%s.port", name), "%d", attr.port_num);
	fact(key_of("%s.qkey", name), "%#x", attr.qkey);
	fact(key_of("%s.dest_is_own", name), "%d", attr.dest_qp_num == qp->qp_num);
	fact(key_of("%s.rd_atomic", name), "%d %d", attr.max_rd_atomic, attr.max_dest_rd_atomic);
	fact(key_of("%s.timers", name), "%d %d %d %d", attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer);
	fact(key_of("%s.psn", name), "%u %u", attr.sq_psn, attr.rq_psn);
	fact(key_of("%s.sq_draining", name), "%d", attr.sq_draining);
	fact(key_of("%s.path_mig_state", name), "%d", attr.path_mig_state);
	fact(key_of("%s.type", name), "%d", init.qp_type == type);
	fact(key_of("%s.sq_sig_all", name), "%d", init.sq_sig_all);
	fact(key_of("%s.queues", name), "%d %d", init.send_cq == cq, init.recv_cq == cq);
	ibv_destroy_qp(qp);
}

#define QUERIED(name, type, state) \
	BEHAVIOUR(query_qp_##name) { queried(type, state); }
QUERIED(rc_reset, IBV_QPT_RC, IBV_QPS_RESET)
QUERIED(rc_init, IBV_QPT_RC, IBV_QPS_INIT)
QUERIED(rc_rtr, IBV_QPT_RC, IBV_QPS_RTR)
QUERIED(rc_rts, IBV_QPT_RC, IBV_QPS_RTS)
QUERIED(rc_sqd, IBV_QPT_RC, IBV_QPS_SQD)
QUERIED(rc_err, IBV_QPT_RC, IBV_QPS_ERR)
QUERIED(uc_rts, IBV_QPT_UC, IBV_QPS_RTS)
QUERIED(ud_rts, IBV_QPT_UD, IBV_QPS_RTS)
