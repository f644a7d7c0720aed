/*
 * falls DEVICE poll: writes to itself without end and polls. When the daemon falls, every posted request must be flushed once,
 * and no poll may fail.
 *
 * falls DEVICE event: waits in ibv_get_cq_event for completions of receives. When the daemon falls, it must wake and get the
 * flushes.
 *
 * falls DEVICE extended: as poll, by a CQ for one thread only (ibv_start_poll).
 *
 * Then IBV_EVENT_DEVICE_FATAL must come once, all objects can be destroyed, and the device can be opened and used again. It
 * prints "running", "flushed SENDS RECEIVES VENDOR_ERR" and "again".
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SENDS 8
#define RECEIVES 6
#define RECEIVE_ID 1000000000ull

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cq_ex;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char data[4096];
static uint64_t next_id;
static int extended;

static void must(int true, const char *what)
{
	if (!true) {
		fprintf(stderr, "wrong: %s (%s)\n", what, strerror(errno));
		exit(1);
	}
}

static void modify(struct ibv_qp_attr *attr, int state, int mask)
{
	attr->qp_state = state;
	errno = ibv_modify_qp(qp, attr, IBV_QP_STATE | mask);
	must(!errno, "ibv_modify_qp");
}

static int open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	context = NULL;
	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (list)
		ibv_free_device_list(list);
	return !!context;
}

static void make_objects(void)
{
	struct ibv_qp_attr attr = { .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = IBV_MTU_1024,
				    .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64 } } };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = SENDS, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_cq_init_attr_ex wanted = { .cqe = 64, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					      .flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED };

	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	must(pd && channel, "pd and channel");
	if (extended) {
		cq_ex = ibv_create_cq_ex(context, &wanted);
		must(!!cq_ex, "ibv_create_cq_ex");
		cq = ibv_cq_ex_to_cq(cq_ex);
	} else {
		cq = ibv_create_cq(context, 64, NULL, channel, 0);
	}
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	must(cq && qp && mr && !ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "cq, qp, mr, gid");
	attr.dest_qp_num = qp->qp_num;
	modify(&attr, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	modify(&attr, IBV_QPS_RTR, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	modify(&attr, IBV_QPS_RTS, IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC);
}

static void post_send(void)
{
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .wr_id = next_id++, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)data + 2048;
	wr.wr.rdma.rkey = mr->rkey;
	errno = ibv_post_send(qp, &wr, &bad);
	must(!errno, "ibv_post_send");
}

static void post_recv(uint64_t id)
{
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	errno = ibv_post_recv(qp, &wr, &bad);
	must(!errno, "ibv_post_recv");
}

/* Polls one completion: 0 if there is none. */
static int poll_one(struct ibv_wc *wc)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int got;

	if (!extended) {
		got = ibv_poll_cq(cq, 1, wc);
		must(got >= 0, "ibv_poll_cq");
		return got;
	}
	got = ibv_start_poll(cq_ex, &attr);
	must(!got || got == ENOENT, "ibv_start_poll");
	if (got)
		return 0;
	wc->wr_id = cq_ex->wr_id;
	wc->status = cq_ex->status;
	wc->vendor_err = ibv_wc_read_vendor_err(cq_ex);
	ibv_end_poll(cq_ex);
	return 1;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Polls a flush within a minute. */
static void await_flush(struct ibv_wc *wc)
{
	double end = seconds() + 60;

	while (!poll_one(wc))
		must(seconds() < end, "a flush comes");
	must(wc->status == IBV_WC_WR_FLUSH_ERR, "the status of a flush");
}

/* Ends the program if a completion is not that of the request `wr_id`. */
static void is_expected(const struct ibv_wc *wc, uint64_t wr_id, const char *what)
{
	if (wc->wr_id == wr_id)
		return;
	fprintf(stderr, "wrong: %s: request %llu expected, completion of %llu with reason %u\n", what, (unsigned long long)wr_id,
		(unsigned long long)wc->wr_id, wc->vendor_err);
	exit(1);
}

/* Every outstanding request is flushed once, sends and receives each in their order. `first` was polled already. */
static void all_flushed(const struct ibv_wc *first, uint64_t oldest)
{
	struct ibv_wc wc = *first;
	uint64_t receive = RECEIVE_ID;
	unsigned int vendor = first->vendor_err;

	for (int left = next_id - oldest + RECEIVES;;) {
		must(wc.status == IBV_WC_WR_FLUSH_ERR && wc.vendor_err == vendor, "status and reason");
		if (wc.wr_id >= RECEIVE_ID)
			must(wc.wr_id == receive++, "the order of receives");
		else
			must(wc.wr_id == oldest++, "the order of sends");
		if (!--left)
			break;
		await_flush(&wc);
	}
	must(!poll_one(&wc), "each is flushed once");
	/* What is posted later is flushed, too. */
	for (int i = 0; i < 3 * RECEIVES; i++) {
		post_recv(7 + RECEIVE_ID);
		await_flush(&wc);
		is_expected(&wc, 7 + RECEIVE_ID, "a later receive");
		post_send();
		await_flush(&wc);
		is_expected(&wc, next_id - 1, "a later send");
	}
	printf("flushed %d %d %u\n", (int)SENDS, (int)(receive - RECEIVE_ID), vendor);
	fflush(stdout);
}

static void run_polling(void)
{
	struct ibv_wc wc;
	uint64_t oldest = 0;

	for (;;) {
		while (next_id - oldest < SENDS)
			post_send();
		if (!poll_one(&wc))
			continue;
		if (wc.status != IBV_WC_SUCCESS)
			break;
		must(wc.wr_id == oldest++, "order");
	}
	all_flushed(&wc, oldest);
}

static void run_waiting(void)
{
	struct ibv_cq *of;
	struct ibv_wc wc;
	void *its;

	must(!ibv_req_notify_cq(cq, 0) && !poll_one(&wc), "armed");
	must(!ibv_get_cq_event(channel, &of, &its) && of == cq, "ibv_get_cq_event");
	ibv_ack_cq_events(cq, 1);
	await_flush(&wc);
	all_flushed(&wc, next_id);
	must(ibv_get_cq_event(channel, &of, &its) == -1 && errno == EIO, "no further event");
}

static void is_fatal(void)
{
	struct ibv_async_event event;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	must(qp->state == IBV_QPS_ERR, "the state in the struct");
	must(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR, "the state by a query");
	attr.qp_state = IBV_QPS_ERR;
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "a move to ERR");
	must(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_DEVICE_FATAL, "DEVICE_FATAL");
	ibv_ack_async_event(&event);
	must(ibv_get_async_event(context, &event) == -1 && errno == EIO, "no further event");
}

static void close_all(void)
{
	must(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq), "the end of qp, mr, cq");
	must(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "the end of all");
}

int main(int argc, char **argv)
{
	struct ibv_wc wc = { 0 };
	double end;

	must(argc == 3, "usage: falls DEVICE poll|event|extended");
	extended = !strcmp(argv[2], "extended");
	must(open_device(argv[1]), "device");
	make_objects();
	for (int i = 0; i < RECEIVES; i++)
		post_recv(RECEIVE_ID + i);
	puts("running");
	fflush(stdout);
	if (!strcmp(argv[2], "event"))
		run_waiting();
	else
		run_polling();
	is_fatal();
	close_all();
	for (end = seconds() + 60; !open_device(argv[1]); usleep(10000))
		must(seconds() < end, "the device opens again");
	make_objects();
	post_send();
	for (end = seconds() + 60; !poll_one(&wc);)
		must(seconds() < end, "a completion");
	must(wc.status == IBV_WC_SUCCESS, "a write after the fall");
	close_all();
	puts("again");
	return 0;
}
