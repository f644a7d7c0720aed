/*
 * Attributes and flags at the edge of what is allowed, as programs in use give them: what the kernel's soft-RoCE accepts is accepted, and what it
 * refuses is refused with its errno. Prints "ok NAME" for each.
 *
 * usage: ranges
 */
#include "check.h"
#include <infiniband/verbs.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp *new_qp(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	CHECK(qp);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

/* A queue pair that talks to itself, with these counts and timers. Returns its attributes as they are read back. */
static struct ibv_qp_attr connected(uint8_t rnr_timer, uint8_t retries, uint8_t rnr_retries)
{
	struct ibv_qp *qp = new_qp();
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .rq_psn = 7, .max_dest_rd_atomic = 1,
				    .min_rnr_timer = rnr_timer, .dest_qp_num = qp->qp_num,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } } };
	struct ibv_qp_init_attr init;

	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = retries,
				     .rnr_retry = rnr_retries, .max_rd_atomic = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY, &init));
	CHECK(!ibv_destroy_qp(qp));
	return attr;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					    .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	struct ibv_qp_attr attr;
	static char bytes[64];

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(context && pd && cq);
	attr = connected(0x20, 10, 15);
	CHECK(attr.min_rnr_timer == 0 && attr.retry_cnt == 2 && attr.rnr_retry == 7);
	attr = connected(31, 7, 6);
	CHECK(attr.min_rnr_timer == 31 && attr.retry_cnt == 7 && attr.rnr_retry == 6);
	printf("ok counts and timers\n");
	errno = 0;
	CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
	printf("ok overruns cannot be ignored\n");
	errno = 0;
	CHECK(!ibv_reg_mr(pd, bytes, 0, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
	printf("ok a region has bytes\n");
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
