/* Events and channels: completion events, asynchronous events, what becomes of unread ones, overflow of a completion queue. */
#include "facts.h"
#include <fcntl.h>
#include <poll.h>

static struct ibv_comp_channel *channel;
static struct ibv_cq *armed;
static struct ibv_qp *asking, *answering;

static int readable(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	return poll(&one, 1, 0) == 1;
}

/* A channel that does not block, a queue on it, and a pair whose receiver completes on that queue. */
static void prepare(void)
{
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);

	channel = ibv_create_comp_channel(context);
	NEED(channel);
	NEED(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	armed = ibv_create_cq(context, 64, (void *)0x77, channel, 0);
	NEED(armed);
	init.recv_cq = armed;
	answering = ibv_create_qp(pd, &init);
	NEED(answering);
	asking = new_qp(IBV_QPT_RC);
	bring(answering, IBV_QPS_RTS, asking->qp_num);
	bring(asking, IBV_QPS_RTS, answering->qp_num);
	for (int i = 0; i < 8; i++)
		NEED(!post_receive(answering, 64));
}

/* A send that has arrived: a later READ of the same queue pair has completed. */
static void arrive(int flags)
{
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED | flags };
	struct ibv_wc wc;

	NEED(!post_wr(asking, &wr));
	NEED(await(cq, &wc) == 1 && !wc.status);
	NEED(!post(asking, IBV_WR_RDMA_READ, 8));
	NEED(await(cq, &wc) == 1 && !wc.status);
}

/* Waits until the channel is readable: 1, or 0 at the limit of a hang. */
static int notified(int fd)
{
	struct pollfd one = { .fd = fd, .events = POLLIN };

	return poll(&one, 1, 10000) == 1;
}

static void get(const char *key)
{
	struct ibv_cq *from = NULL;
	void *its = NULL;
	int code = ibv_get_cq_event(channel, &from, &its);

	result(key, code);
	if (!code) {
		fact(key_of("%s.of", key), "%d %d", from == armed, its == (void *)0x77);
		ibv_ack_cq_events(from, 1);
	}
}

BEHAVIOUR(cq_event)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 0));
	arrive(0);
	fact("notified", "%d", notified(channel->fd));
	get("get");
	get("get_again");
	completion("completion", armed);
}

BEHAVIOUR(cq_event_not_armed)
{
	prepare();
	arrive(0);
	fact("readable", "%d", readable(channel->fd));
	get("get");
}

BEHAVIOUR(cq_event_once)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 0));
	arrive(0);
	arrive(0);
	fact("notified", "%d", notified(channel->fd));
	get("get");
	get("get_again");
}

BEHAVIOUR(cq_event_armed_twice)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 0));
	result("arm_again", ibv_req_notify_cq(armed, 0));
	arrive(0);
	fact("notified", "%d", notified(channel->fd));
	get("get");
	get("get_again");
}

/* Armed while completions are there: rxe's events come at arming; an adapter's with the next completion. */
BEHAVIOUR(cq_event_armed_late)
{
	prepare();
	arrive(0);
	result("arm", ibv_req_notify_cq(armed, 0));
	fact("readable", "%d", readable(channel->fd));
	arrive(0);
	fact("notified", "%d", notified(channel->fd));
}

BEHAVIOUR(cq_event_solicited)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 1));
	arrive(0);
	fact("unsolicited", "%d", readable(channel->fd));
	arrive(IBV_SEND_SOLICITED);
	fact("solicited", "%d", notified(channel->fd));
}

BEHAVIOUR(cq_event_any_over_solicited)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 1));
	result("arm_any", ibv_req_notify_cq(armed, 0));
	arrive(0);
	fact("notified", "%d", notified(channel->fd));
}

BEHAVIOUR(cq_event_solicited_over_any)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 0));
	result("arm_solicited", ibv_req_notify_cq(armed, 1));
	arrive(0);
	fact("notified", "%d", notified(channel->fd));
}

BEHAVIOUR(cq_event_of_an_error)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 1));
	NEED(!move(answering, IBV_QPS_ERR));
	fact("notified", "%d", notified(channel->fd));
	completion("completion", armed);
}

BEHAVIOUR(cq_event_without_channel)
{
	result("arm", ibv_req_notify_cq(cq, 0));
	result("arm_solicited", ibv_req_notify_cq(cq, 1));
}

BEHAVIOUR(cq_event_of_a_destroyed_queue)
{
	prepare();
	result("arm", ibv_req_notify_cq(armed, 0));
	arrive(0);
	fact("notified", "%d", notified(channel->fd));
	result("destroy_qp", ibv_destroy_qp(answering));
	result("destroy_cq", ibv_destroy_cq(armed));
	fact("readable", "%d", readable(channel->fd));
	get("get");
}

BEHAVIOUR(channel_in_use)
{
	prepare();
	result("destroy", ibv_destroy_comp_channel(channel));
	result("destroy_qp", ibv_destroy_qp(answering));
	result("destroy_cq", ibv_destroy_cq(armed));
	result("destroy_channel", ibv_destroy_comp_channel(channel));
}

/* --- Asynchronous events --- */
static void no_blocking(void)
{
	NEED(!fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK));
}

static void async(const char *key)
{
	struct ibv_async_event event;
	int code = ibv_get_async_event(context, &event);

	if (code) {
		result(key, code);
		return;
	}
	fact(key, "%s", async_name(event.event_type));
	ibv_ack_async_event(&event);
}

BEHAVIOUR(async_none)
{
	no_blocking();
	fact("readable", "%d", readable(context->async_fd));
	async("get");
}

BEHAVIOUR(async_communication_established)
{
	struct ibv_qp *near = new_qp(IBV_QPT_RC), *far = new_qp(IBV_QPT_RC);

	no_blocking();
	bring(far, IBV_QPS_RTR, near->qp_num);
	bring(near, IBV_QPS_RTS, far->qp_num);
	NEED(!post_receive(far, 64));
	result("write", post(near, IBV_WR_RDMA_WRITE, 8));
	completion("completion", cq);
	fact("notified", "%d", notified(context->async_fd));
	async("get");
}

BEHAVIOUR(async_sq_drained)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };

	no_blocking();
	result("sqd", ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	fact("notified", "%d", notified(context->async_fd));
	async("get");
}

BEHAVIOUR(async_access_error)
{
	struct ibv_qp *near = new_qp(IBV_QPT_RC), *far = new_qp(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	no_blocking();
	bring(far, IBV_QPS_RTS, near->qp_num);
	bring(near, IBV_QPS_RTS, far->qp_num);
	wr.wr.rdma.rkey = mr->rkey + 0x1000;
	result("write", post_wr(near, &wr));
	completion("completion", cq);
	fact("responder", "%s", state_name(state_of(far)));
	fact("notified", "%d", notified(context->async_fd));
	async("first");
	async("second");
}

static struct ibv_srq *shared(unsigned limit)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_sge sge = piece(mr, RECEIVE_AT, 64);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_srq_attr attr = { .srq_limit = limit };

	NEED(srq);
	for (int i = 0; i < 8; i++)
		NEED(!ibv_post_srq_recv(srq, &wr, &bad));
	if (limit)
		NEED(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	return srq;
}

static void pair_on(struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);

	init.srq = srq;
	answering = ibv_create_qp(pd, &init);
	NEED(answering);
	asking = new_qp(IBV_QPT_RC);
	bring(answering, IBV_QPS_RTS, asking->qp_num);
	bring(asking, IBV_QPS_RTS, answering->qp_num);
}

BEHAVIOUR(async_last_wqe)
{
	no_blocking();
	pair_on(shared(0));
	result("err", move(answering, IBV_QPS_ERR));
	fact("notified", "%d", notified(context->async_fd));
	async("get");
	async("again");
}

BEHAVIOUR(async_srq_limit)
{
	struct ibv_srq *srq;
	struct ibv_srq_attr attr;

	no_blocking();
	pair_on(srq = shared(7));
	for (int i = 0; i < 2; i++) {
		NEED(!post(asking, IBV_WR_SEND, 8));
		completion(key_of("%d.one", i), cq);
		completion(key_of("%d.other", i), cq);
	}
	fact("notified", "%d", notified(context->async_fd));
	async("get");
	async("again");
	NEED(!ibv_query_srq(srq, &attr));
	fact("limit", "%u", attr.srq_limit);
}

BEHAVIOUR(async_unread_of_a_destroyed_queue_pair)
{
	no_blocking();
	pair_on(shared(0));
	result("err", move(answering, IBV_QPS_ERR));
	fact("notified", "%d", notified(context->async_fd));
	result("destroy", ibv_destroy_qp(answering));
	fact("readable", "%d", readable(context->async_fd));
	async("get");
}

BEHAVIOUR(async_unread_of_a_destroyed_srq)
{
	struct ibv_srq *srq;

	no_blocking();
	pair_on(srq = shared(8));
	NEED(!post(asking, IBV_WR_SEND, 8));
	completion("one", cq);
	completion("other", cq);
	fact("notified", "%d", notified(context->async_fd));
	result("destroy_qp", ibv_destroy_qp(answering));
	result("destroy_srq", ibv_destroy_srq(srq));
	fact("readable", "%d", readable(context->async_fd));
	async("get");
}

/* --- Overflow of a completion queue --- */
static void overflow(int read)
{
	struct ibv_cq *small = ibv_create_cq(context, 2, NULL, NULL, 0);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp, *other = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	int room;

	NEED(small);
	no_blocking();
	room = small->cqe;
	init.send_cq = small;
	init.cap.max_send_wr = room + 8;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	bring(qp, IBV_QPS_RTS, qp->qp_num);
	for (int i = 0; i < room + 4; i++)
		NEED(!post(qp, IBV_WR_RDMA_WRITE, 8));
	NEED(!post(other, IBV_WR_RDMA_READ, 8));
	completion("other", cq);
	fact("notified", "%d", notified(context->async_fd));
	async("event");
	if (read) {
		struct ibv_wc wc;
		int count = 0;

		while (count < room && ibv_poll_cq(small, 1, &wc) == 1)
			count++;
		fact("all_kept", "%d", count == room);
		fact("then", "%d", ibv_poll_cq(small, 1, &wc));
	}
	result("destroy_qp", ibv_destroy_qp(qp));
	result("destroy_cq", ibv_destroy_cq(small));
}

BEHAVIOUR(cq_overflow) { overflow(0); }
BEHAVIOUR(cq_overflow_polled) { overflow(1); }

BEHAVIOUR(cq_filled_exactly)
{
	struct ibv_cq *small = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp;
	int room;

	NEED(small);
	no_blocking();
	room = small->cqe;
	init.send_cq = small;
	init.cap.max_send_wr = room + 8;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	bring(qp, IBV_QPS_RTS, qp->qp_num);
	for (int i = 0; i < room; i++)
		NEED(!post(qp, IBV_WR_RDMA_WRITE, 8));
	for (int i = 0; i < room && i < 4; i++)
		completion(key_of("%d", i), small);
	async("event");
}

BEHAVIOUR(poll_limits)
{
	struct ibv_wc wcs[4];

	fact("0", "%d", ibv_poll_cq(cq, 0, wcs));
	fact("1", "%d", ibv_poll_cq(cq, 1, wcs));
	fact("4", "%d", ibv_poll_cq(cq, 4, wcs));
}

/* Completions of a queue pair that is gone. */
BEHAVIOUR(completions_of_a_destroyed_queue_pair)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_INIT), *other = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_wc wc;
	int flushed = 0;

	for (int i = 0; i < 3; i++)
		NEED(!post_receive(qp, 64));
	NEED(!move(qp, IBV_QPS_ERR));
	completion("first", cq);
	result("destroy", ibv_destroy_qp(qp));
	NEED(!post(other, IBV_WR_RDMA_WRITE, 8));
	while (await(cq, &wc) == 1 && wc.status)
		flushed++;
	fact("kept", "%d", flushed);
}

/* --- Polling by ibv_start_poll --- */
BEHAVIOUR(extended_poll)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP };
	struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &attr);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_qp *qp;
	int code;

	NEED(ex);
	result("empty", ibv_start_poll(ex, &none));
	none.comp_mask = 1;
	result("unknown_mask", ibv_start_poll(ex, &none));
	none.comp_mask = 0;
	init.send_cq = ibv_cq_ex_to_cq(ex);
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	bring(qp, IBV_QPS_RTS, qp->qp_num);
	NEED(!post(qp, IBV_WR_RDMA_WRITE, 8));
	do
		code = ibv_start_poll(ex, &none);
	while (code == ENOENT);
	result("start", code);
	fact("status", "%s", status_name(ex->status));
	fact("opcode", "%s", opcode_name(ibv_wc_read_opcode(ex)));
	result("next", ibv_next_poll(ex));
	ibv_end_poll(ex);
}
