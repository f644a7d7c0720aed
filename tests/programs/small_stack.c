/*
 * small_stack DEVICE: writes to itself by a queue pair, posted and polled on a thread of its own, whose stack was filled with a pattern
 * before. Prints "used BYTES": how much of the stack the verbs calls have written at most.
 */
#include "check.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

enum { STACK = 256 << 10, HALF = 32 << 10, ROUNDS = 2000, PATTERN = 0x5a };

static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char data[2 * HALF];

static struct ibv_context *opened(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list);
	for (int i = 0; list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			return ibv_open_device(list[i]);
	return NULL;
}

static void *rounds(void *nothing)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_sge sge = {(uintptr_t)data, HALF, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
		wr.wr.rdma.remote_addr = (uintptr_t)data + HALF;
		wr.wr.rdma.rkey = mr->rkey;
		CHECK(!ibv_post_send(qp, &wr, &bad));
		struct ibv_wc wc;
		int count;
		while (!(count = ibv_poll_cq(cq, 1, &wc)))
			;
		CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
	}
	return nothing;
}

static void connect_to_itself(struct ibv_context *context)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1};
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 1;
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	                                        IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	struct ibv_context *context = opened(argv[1]);
	CHECK(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, data, sizeof(data), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	qp = ibv_create_qp(pd, &init);
	CHECK(cq && mr && qp);
	connect_to_itself(context);

	unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(stack != MAP_FAILED);
	memset(stack, PATTERN, STACK);
	pthread_attr_t attr;
	pthread_t thread;
	CHECK(!pthread_attr_init(&attr) && !pthread_attr_setstack(&attr, stack, STACK));
	CHECK(!pthread_create(&thread, &attr, rounds, NULL) && !pthread_join(thread, NULL));
	size_t untouched = 0;
	while (untouched < STACK && stack[untouched] == PATTERN)
		untouched++;
	printf("used %zu\n", STACK - untouched);
	return 0;
}
