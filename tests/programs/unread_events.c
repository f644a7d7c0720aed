/*
 * Events that nobody has read go with their object, as in the kernel: afterwards the descriptor is readable only if an event of another object
 * is there, and that event is read next. Prints "ok NAME" for each kind of event.
 *
 * usage: unread_events
 */
#include "check.h"
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>

#define TIMEOUT_MS 30000

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char buffer[64];

static bool readable(int fd, int ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1 && (p.revents & POLLIN);
}

static void set_nonblocking(int fd)
{
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

static struct ibv_qp *new_qp(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static void fail_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

/* A CQ of the channel with an event in it. Its queue pair is destroyed. */
static struct ibv_cq *cq_with_event(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_sge sge = { (uintptr_t)buffer, sizeof buffer, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;
	struct ibv_qp *qp;

	CHECK(cq);
	qp = new_qp(cq, NULL);
	CHECK(!ibv_post_recv(qp, &wr, &bad));
	CHECK(!ibv_req_notify_cq(cq, 0));
	fail_qp(qp);
	while (ibv_poll_cq(cq, 1, &wc) == 0)
		;
	CHECK(!ibv_destroy_qp(qp));
	return cq;
}

/* Events are written in the order of completions, so one more event says that those before it are in the channel. */
static void completion_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *gone[8], *stays, *found;
	void *its_context;

	CHECK(channel);
	for (int i = 0; i < 4; i++)
		gone[i] = cq_with_event(channel);
	stays = cq_with_event(channel);
	for (int i = 4; i < 8; i++)
		gone[i] = cq_with_event(channel);
	CHECK(readable(channel->fd, TIMEOUT_MS));
	for (int i = 0; i < 8; i++)
		CHECK(!ibv_destroy_cq(gone[i]));
	CHECK(readable(channel->fd, TIMEOUT_MS));
	CHECK(!ibv_get_cq_event(channel, &found, &its_context) && found == stays);
	CHECK(!readable(channel->fd, 100));
	ibv_ack_cq_events(stays, 1);
	CHECK(!ibv_destroy_cq(stays));
	set_nonblocking(channel->fd);
	CHECK(ibv_get_cq_event(channel, &found, &its_context) == -1 && errno == EAGAIN);
	CHECK(!ibv_destroy_comp_channel(channel));
	printf("ok completion events\n");
}

/* The event "last WQE reached" of a queue pair with a shared receive queue. */
static void events_of_queue_pairs(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_srq_init_attr init = { .attr = { 8, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_qp *gone = new_qp(cq, srq), *stays = new_qp(cq, srq);
	struct ibv_async_event event;

	fail_qp(gone);
	CHECK(readable(context->async_fd, TIMEOUT_MS));
	fail_qp(stays);
	CHECK(!ibv_destroy_qp(gone));
	CHECK(readable(context->async_fd, TIMEOUT_MS));
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == stays);
	CHECK(!readable(context->async_fd, 100));
	ibv_ack_async_event(&event);
	CHECK(!ibv_destroy_qp(stays) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
	printf("ok events of queue pairs\n");
}

/* "SRQ limit reached": the limit is set above the number of receives. */
static void events_of_shared_receive_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { 8, 1, 0 } };
	struct ibv_srq_attr limit = { .srq_limit = 4 };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_async_event event;

	CHECK(srq && !ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	/* Not every device raises the event without a receive that is taken; with the event or without it, nothing may be left. */
	readable(context->async_fd, 100);
	CHECK(!ibv_destroy_srq(srq));
	CHECK(!readable(context->async_fd, 100));
	set_nonblocking(context->async_fd);
	CHECK(ibv_get_async_event(context, &event) == -1 && errno == EAGAIN);
	printf("ok events of shared receive queues\n");
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	completion_events();
	events_of_queue_pairs();
	events_of_shared_receive_queues();
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
