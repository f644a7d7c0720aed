/*
 * post_poll DEVICE classic|extended COUNT [BATCH [polling]]: posts COUNT RDMA WRITEs of 64 bytes on a queue pair connected to
 * itself, BATCH (default 1) at a time, waits by an event for the completion of the last request of each batch, and polls; with
 * `polling` it only polls. At the end it prints how many polls found nothing.
 *
 * Each kind of call is in its own function, measured_*, which callgrind counts (--toggle-collect): the instructions of
 * ibv_post_send and ibv_poll_cq without waiting. At the end the data must have arrived.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEASURED __attribute__((noinline, used))
#define SIZE 64
#define BATCH_MAX 64

static struct ibv_qp *qp;
static struct ibv_qp_ex *qpx;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cqx;
static struct ibv_mr *mr;
static int empty_polls;
static unsigned char data[2 * 4096] __attribute__((aligned(4096)));

static void fail(const char *step, int error)
{
	fprintf(stderr, "%s: %s\n", step, strerror(error));
	exit(1);
}

static void must(int error, const char *step)
{
	if (error)
		fail(step, error);
}

MEASURED int measured_post_classic(struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return ibv_post_send(qp, wr, bad);
}

MEASURED int measured_poll_classic(int count, struct ibv_wc *wc)
{
	return ibv_poll_cq(cq, count, wc);
}

MEASURED int measured_post_extended(int count)
{
	ibv_wr_start(qpx);
	for (int i = 0; i < count; i++) {
		qpx->wr_id = i;
		qpx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)data + 4096);
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)data, SIZE);
	}
	return ibv_wr_complete(qpx);
}

/* The fields that a program reads of the completion of a send: status, wr_id, opcode. */
MEASURED int measured_poll_extended(int count)
{
	struct ibv_poll_cq_attr attr = {};
	int polled = 0;

	if (ibv_start_poll(cqx, &attr))
		return 0;
	do {
		if (cqx->status != IBV_WC_SUCCESS || ibv_wc_read_opcode(cqx) != IBV_WC_RDMA_WRITE)
			return -1;
		polled++;
	} while (polled < count && !ibv_next_poll(cqx));
	ibv_end_poll(cqx);
	return polled;
}

static void join(union ibv_gid gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.min_rnr_timer = 12;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 18;
	attr.retry_cnt = attr.rnr_retry = 7;
	must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			   IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void create(struct ibv_context *context, struct ibv_comp_channel *channel)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 256, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC, .pd = pd };

	cqx = ibv_create_cq_ex(context, &cq_init);
	if (!pd || !cqx)
		fail("pd, cq", errno);
	cq = ibv_cq_ex_to_cq(cqx);
	init.send_cq = init.recv_cq = cq;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	init.cap = (struct ibv_qp_cap){ .max_send_wr = 128, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	qp = ibv_create_qp_ex(context, &init);
	if (!qp)
		fail("qp", errno);
	qpx = ibv_qp_to_qp_ex(qp);
	mr = ibv_reg_mr(pd, data, sizeof data, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!qpx || !mr)
		fail("qp_ex, mr", errno);
}

/* Waits for an event of the completion queue, and arms the queue again. */
static void wait_and_arm(struct ibv_comp_channel *channel)
{
	struct ibv_cq *of;
	void *context;

	must(ibv_get_cq_event(channel, &of, &context), "event");
	ibv_ack_cq_events(of, 1);
}

/* Without a channel it polls only. */
static int run(int extended, int count, int batch, struct ibv_comp_channel *channel)
{
	struct ibv_sge sge = { .addr = (uintptr_t)data, .length = SIZE, .lkey = mr->lkey };
	struct ibv_send_wr list[BATCH_MAX] = {}, *bad;
	struct ibv_wc wc[BATCH_MAX];

	for (int i = 0; i < batch; i++) {
		list[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
						.send_flags = IBV_SEND_SIGNALED, .next = i + 1 < batch ? &list[i + 1] : NULL };
		list[i].wr.rdma.remote_addr = (uintptr_t)data + 4096;
		list[i].wr.rdma.rkey = mr->rkey;
	}
	for (int done = 0; done < count; done += batch) {
		must(channel ? ibv_req_notify_cq(cq, 0) : 0, "arm");
		must(extended ? measured_post_extended(batch) : measured_post_classic(list, &bad), "post");
		for (int left = batch; left;) {
			if (channel) {
				wait_and_arm(channel);
				must(ibv_req_notify_cq(cq, 0), "arm");
			}
			int n = extended ? measured_poll_extended(left) : measured_poll_classic(left, wc);

			if (n < 0)
				fail("poll", EIO);
			for (int i = 0; !extended && i < n; i++)
				if (wc[i].status != IBV_WC_SUCCESS)
					fail(ibv_wc_status_str(wc[i].status), EIO);
			left -= n;
			empty_polls += n == 0;
		}
	}
	return memcmp(data, data + 4096, SIZE);
}

int main(int argc, char **argv)
{
	struct ibv_context *context = NULL;
	struct ibv_comp_channel *channel;
	struct ibv_device **list;
	union ibv_gid gid;
	int devices, batch = argc > 4 ? atoi(argv[4]) : 1;

	if (argc < 4 || batch < 1 || batch > BATCH_MAX) {
		fprintf(stderr, "usage: post_poll DEVICE classic|extended COUNT [BATCH [polling]]\n");
		return 2;
	}
	list = ibv_get_device_list(&devices);
	for (int i = 0; list && i < devices; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	channel = context ? ibv_create_comp_channel(context) : NULL;
	if (!channel)
		fail("device", errno ? errno : ENODEV);
	create(context, channel);
	must(ibv_query_gid(context, 1, 0, &gid), "gid");
	join(gid);
	for (int i = 0; i < SIZE; i++)
		data[i] = i + 1;
	if (run(!strcmp(argv[2], "extended"), atoi(argv[3]), batch, argc > 5 ? NULL : channel)) {
		fprintf(stderr, "the data did not arrive\n");
		return 1;
	}
	printf("posted and polled %s, %d polls found nothing\n", argv[3], empty_polls);
	return 0;
}
