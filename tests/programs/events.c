/*
 * events: which asynchronous events ibv_get_async_event returns, and in which order, for what one process does.
 *
 * Usage: events DEVICE GID_INDEX. Each scenario prints its name, then one line per event, `NAME object`, then `end`; a
 * scenario ends when no event has come for a while. Any other outcome is a sentence on standard error and exit code 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { BYTES = 4096, QUIET_MS = 300, TIMEOUT_MS = 30000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_srq *srq;
static int gid_index;
static union ibv_gid gid;
static char bytes[BYTES];
/* Objects that events name. */
static struct ibv_qp *sender, *receiver;

static struct ibv_qp *new_qp(struct ibv_cq *its_cq, struct ibv_srq *its_srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = its_cq, .recv_cq = its_cq, .srq = its_srq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 64, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	return qp;
}

static void to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index, .hop_limit = 64 } },
	};
	int initiator = qp->qp_type == IBV_QPT_XRC_SEND;

	rtr.ah_attr.grh.dgid = gid;
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     (initiator ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)));
}

static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr rts = {
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
	};

	CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Connects two queue pairs; the responder stays in RTR. */
static void join(struct ibv_qp *asks, struct ibv_qp *answers)
{
	to_rtr(answers, asks->qp_num);
	to_rtr(asks, answers->qp_num);
	to_rts(asks);
}

/* Makes a sender, and a receiver on the shared receive queue. */
static void new_pair(void)
{
	sender = new_qp(cq, NULL);
	receiver = new_qp(cq, srq);
	join(sender, receiver);
}

static void move_to(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .en_sqd_async_notify = 1 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_SQD ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0)));
}

static void post_receives(int count)
{
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	while (count--)
		CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

static void post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t rkey)
{
	struct ibv_sge sge = { .addr = (uintptr_t)bytes + 1024, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)bytes + 2048;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Waits for `count` completions with this status from a queue. */
static void complete_on(struct ibv_cq *queue, int count, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	for (int waited = 0; count; waited++) {
		int got = ibv_poll_cq(queue, 1, &wc);

		CHECK(got >= 0 && waited < TIMEOUT_MS);
		if (got) {
			CHECK(wc.status == status);
			count--;
		} else {
			poll(NULL, 0, 1);
		}
	}
}

static void complete(int count, enum ibv_wc_status status)
{
	complete_on(cq, count, status);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

static const char *subject(const struct ibv_async_event *event)
{
	switch (event->event_type) {
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return event->element.srq == srq ? "srq" : "another srq";
	case IBV_EVENT_CQ_ERR:
		return "cq";
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return event->element.qp == sender ? "sender" : event->element.qp == receiver ? "receiver" : "other";
	default:
		return "port";
	}
}

static void print_events(struct ibv_context *of)
{
	struct pollfd ready = { .fd = of->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	while (poll(&ready, 1, QUIET_MS) == 1) {
		CHECK(!ibv_get_async_event(of, &event));
		printf("%s %s\n", ibv_event_type_str(event.event_type), subject(&event));
		ibv_ack_async_event(&event);
	}
	puts("end");
	fflush(stdout);
}

static void drop_pair(void)
{
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver));
}

static void established_once(void)
{
	new_pair();
	post_receives(2);
	post(sender, IBV_WR_SEND, 0);
	post(sender, IBV_WR_SEND, 0);
	complete(4, IBV_WC_SUCCESS);
	print_events(context);
	drop_pair();
}

static void limit_once(void)
{
	struct ibv_srq_attr attr = { .srq_limit = 3 };

	new_pair();
	to_rts(receiver);
	post_receives(4);
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	for (int i = 0; i < 3; i++)
		post(sender, IBV_WR_SEND, 0);
	complete(6, IBV_WC_SUCCESS);
	print_events(context);
	/* The event disarms the limit. */
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0);
	drop_pair();
}

/* IBV_EVENT_QP_LAST_WQE_REACHED. The receives that are left in the shared receive queue serve another queue pair. */
static void last_request_of_a_failed_one(void)
{
	new_pair();
	to_rts(receiver);
	move_to(receiver, IBV_QPS_ERR);
	print_events(context);
	drop_pair();
	new_pair();
	to_rts(receiver);
	post(sender, IBV_WR_SEND, 0);
	complete(2, IBV_WC_SUCCESS);
	drop_pair();
}

static void wrong_key(void)
{
	new_pair();
	to_rts(receiver);
	post(sender, IBV_WR_RDMA_WRITE, mr->rkey + 0x101);
	complete(1, IBV_WC_REM_ACCESS_ERR);
	print_events(context);
	drop_pair();
}

static void request_without_right(void)
{
	struct ibv_qp_attr none = { .qp_access_flags = 0 };

	new_pair();
	to_rts(receiver);
	CHECK(!ibv_modify_qp(receiver, &none, IBV_QP_ACCESS_FLAGS));
	post(sender, IBV_WR_RDMA_WRITE, mr->rkey);
	complete(1, IBV_WC_REM_INV_REQ_ERR);
	print_events(context);
	drop_pair();
}

static void drained(void)
{
	new_pair();
	to_rts(receiver);
	post(sender, IBV_WR_RDMA_WRITE, mr->rkey);
	move_to(sender, IBV_QPS_SQD);
	print_events(context);
	move_to(sender, IBV_QPS_RTS);
	post(sender, IBV_WR_RDMA_WRITE, mr->rkey);
	complete(2, IBV_WC_SUCCESS);
	drop_pair();
}

/* A queue pair whose completion did not fit goes to ERR, and no other does; later completions are flushed and fit again. */
static void full_completion_queue_of_sends(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 4, NULL, NULL, 0);
	int count;

	CHECK(small);
	count = small->cqe + 4;
	sender = new_qp(small, NULL);
	receiver = new_qp(cq, srq);
	join(sender, receiver);
	to_rts(receiver);
	while (count--)
		post(sender, IBV_WR_RDMA_WRITE, mr->rkey);
	print_events(context);
	CHECK(state_of(sender) == IBV_QPS_ERR && state_of(receiver) == IBV_QPS_RTS);
	complete_on(small, small->cqe, IBV_WC_SUCCESS);
	post(sender, IBV_WR_RDMA_WRITE, mr->rkey);
	complete_on(small, 1, IBV_WC_WR_FLUSH_ERR);
	drop_pair();
	CHECK(!ibv_destroy_cq(small));
}

/*
 * Two receivers share a full completion queue: each goes to ERR when its completion does not fit. The message is not
 * acknowledged.
 */
static void full_completion_queue_of_receives(void)
{
	struct ibv_cq *small = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp *first, *its_sender;

	CHECK(small);
	first = new_qp(small, srq);
	its_sender = new_qp(cq, NULL);
	join(its_sender, first);
	to_rts(first);
	sender = new_qp(cq, NULL);
	receiver = new_qp(small, srq);
	join(sender, receiver);
	to_rts(receiver);
	for (int i = 0; i < small->cqe; i++) {
		post_receives(1);
		post(its_sender, IBV_WR_SEND, 0);
		complete(1, IBV_WC_SUCCESS);
	}
	post_receives(2);
	post(sender, IBV_WR_SEND, 0);
	print_events(context);
	CHECK(state_of(receiver) == IBV_QPS_ERR && state_of(first) == IBV_QPS_RTS);
	complete_on(small, small->cqe, IBV_WC_SUCCESS);
	post(its_sender, IBV_WR_SEND, 0);
	complete(1, IBV_WC_SUCCESS);
	complete_on(small, 1, IBV_WC_SUCCESS);
	complete(1, IBV_WC_RETRY_EXC_ERR);
	drop_pair();
	CHECK(!ibv_destroy_qp(first) && !ibv_destroy_qp(its_sender) && !ibv_destroy_cq(small));
}

/* Both contexts that have opened an XRC target get its events, and either may close it first. */
static void target_of_two(struct ibv_device *device)
{
	char name[] = "/tmp/events-XXXXXX";
	int fd = mkstemp(name);
	struct ibv_context *other = ibv_open_device(device);
	struct ibv_xrcd_init_attr file = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT,
	};
	struct ibv_xrcd *one = ibv_open_xrcd(context, &file), *two;
	struct ibv_qp_init_attr_ex target = {
		.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = one,
	};
	struct ibv_qp_init_attr_ex initiator = {
		.qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = cq, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_srq_init_attr_ex shared = {
		.attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .cq = cq, .xrcd = one,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_XRCD,
	};
	struct ibv_qp_open_attr again = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_srq *in_domain;
	struct ibv_qp *opened;
	uint32_t number;

	CHECK(fd >= 0 && other && one);
	file.oflags = 0;
	CHECK((two = ibv_open_xrcd(other, &file)));
	file.oflags = O_CREAT | O_EXCL;
	CHECK(!ibv_open_xrcd(other, &file) && errno == EINVAL);
	CHECK((receiver = ibv_create_qp_ex(context, &target)));
	CHECK((sender = ibv_create_qp_ex(context, &initiator)));
	CHECK((in_domain = ibv_create_srq_ex(context, &shared)) && !ibv_get_srq_num(in_domain, &number) && number);
	again.qp_num = receiver->qp_num;
	again.xrcd = two;
	CHECK((opened = ibv_open_qp(other, &again)));
	again.qp_num = sender->qp_num;
	CHECK(!ibv_open_qp(other, &again) && errno == EINVAL);
	CHECK(ibv_close_xrcd(two) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
	to_rtr(receiver, sender->qp_num);
	to_rtr(sender, receiver->qp_num);
	to_rts(sender);
	CHECK(!ibv_post_srq_recv(in_domain, &receive, &bad_receive) && !ibv_post_srq_recv(in_domain, &receive, &bad_receive));
	send.qp_type.xrc.remote_srqn = number;
	CHECK(!ibv_post_send(sender, &send, &bad));
	complete(2, IBV_WC_SUCCESS);
	print_events(context);
	print_events(other);
	/* The creator destroys its handle of the target; the target works on, because the other context has it open. */
	CHECK(!ibv_destroy_qp(receiver));
	CHECK(!ibv_post_send(sender, &send, &bad));
	complete(2, IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(opened) && !ibv_close_xrcd(two));
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_srq(in_domain) && !ibv_close_xrcd(one));
	CHECK(!ibv_close_device(other));
	unlink(name);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 16, .max_sge = 1 } };

	CHECK(argc == 3 && list);
	while (*device && strcmp(ibv_get_device_name(*device), argv[1]))
		device++;
	CHECK(*device && (context = ibv_open_device(*device)));
	gid_index = atoi(argv[2]);
	CHECK(!ibv_query_gid(context, 1, gid_index, &gid));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, bytes, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((srq = ibv_create_srq(pd, &shared)));
	puts("established");
	established_once();
	puts("limit");
	limit_once();
	puts("last request");
	last_request_of_a_failed_one();
	puts("wrong key");
	wrong_key();
	puts("no right");
	request_without_right();
	puts("drained");
	drained();
	puts("overrun");
	full_completion_queue_of_sends();
	puts("overrun by receives");
	full_completion_queue_of_receives();
	puts("target");
	target_of_two(*device);
	CHECK(!ibv_destroy_srq(srq) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(context));
	ibv_free_device_list(list);
	return 0;
}
