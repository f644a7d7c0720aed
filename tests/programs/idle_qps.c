/*
 * idle_qps DEVICE COUNT: creates COUNT RC queue pairs, connects each to itself (RTS), prints "ready" and sleeps until it is
 * killed. The test measures what idle queue pairs cost the daemon.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fail(const char *step, int error)
{
	fprintf(stderr, "%s: %s\n", step, strerror(error));
	exit(1);
}

static void join(struct ibv_qp *qp, union ibv_gid gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	if (error)
		fail("INIT", error);
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = attr.max_rd_atomic = 16;
	attr.min_rnr_timer = 12;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } };
	error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		fail("RTR", error);
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	if (error)
		fail("RTS", error);
}

int main(int argc, char **argv)
{
	int count, devices;
	struct ibv_device **list;
	struct ibv_context *context = NULL;

	if (argc != 3) {
		fprintf(stderr, "usage: idle_qps DEVICE COUNT\n");
		return 2;
	}
	count = atoi(argv[2]);
	list = ibv_get_device_list(&devices);
	for (int i = 0; list && i < devices; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			context = ibv_open_device(list[i]);
	if (!context)
		fail("device", errno ? errno : ENODEV);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1024, NULL, NULL, 0);
	union ibv_gid gid;

	if (!pd || !cq || ibv_query_gid(context, 1, 0, &gid))
		fail("pd, cq, gid", errno);
	for (int i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		struct ibv_qp *qp = ibv_create_qp(pd, &init);

		if (!qp)
			fail("ibv_create_qp", errno);
		join(qp, gid);
	}
	printf("ready\n");
	fflush(stdout);
	pause();
	return 0;
}
