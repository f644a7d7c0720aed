/*
 * burst-pair: two RC queue pairs of one device, joined to each other; SEND, WRITE and READ of real bytes, compared.
 *
 * A plain verbs program (nothing in it knows Burst) that `burst doctor` runs as its last check, and a small example
 * of the usual steps: device, protection domain, region, completion queue, queue pairs, INIT, RTR, RTS, post, poll.
 *
 *     burst-pair DEVICE       moves bytes; one line on stdout when all is well, else one on stderr and exit code 1
 *     burst-pair --library    prints the path of the verbs library in use and the protocol version it speaks
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SMALL = 64, LARGE = 1 << 20, PORT = 1, PSN = 0x123456, POLL_SECONDS = 10 };

struct side {
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	unsigned char *bytes; /* LARGE */
};

static void fail(const char *step, int error)
{
	fprintf(stderr, "%s: %s\n", step, error ? strerror(error) : "failed");
	exit(1);
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static struct ibv_context *open_device(const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_context *context = NULL;

	if (!list)
		fail("ibv_get_device_list", errno);
	for (int i = 0; i < count; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name)) {
			context = ibv_open_device(list[i]);
			if (!context)
				fail("ibv_open_device", errno);
		}
	ibv_free_device_list(list);
	if (!context) {
		fprintf(stderr, "the verbs library shows %d devices, none is %s\n", count, name);
		exit(1);
	}
	return context;
}

static void make_side(struct side *side, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

	if (posix_memalign((void **)&side->bytes, 4096, LARGE))
		fail("posix_memalign", ENOMEM);
	memset(side->bytes, 0, LARGE);
	side->mr = ibv_reg_mr(pd, side->bytes, LARGE, access);
	if (!side->mr)
		fail("ibv_reg_mr", errno);
	side->qp = ibv_create_qp(pd, &init);
	if (!side->qp)
		fail("ibv_create_qp", errno);
}

static void connect_side(struct side *side, struct side *peer, struct ibv_context *context)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	int error;

	error = ibv_query_port(context, PORT, &port);
	if (error)
		fail("ibv_query_port", error);
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	error = ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error)
		fail("ibv_modify_qp to INIT", error);

	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = peer->qp->qp_num;
	attr.rq_psn = attr.sq_psn = PSN;
	attr.max_dest_rd_atomic = attr.max_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = PORT;
	attr.ah_attr.grh.hop_limit = 64;
	if (ibv_query_gid(context, PORT, 0, &attr.ah_attr.grh.dgid))
		fail("ibv_query_gid", errno);
	error = ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			      IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		fail("ibv_modify_qp to RTR", error);

	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	error = ibv_modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	if (error)
		fail("ibv_modify_qp to RTS", error);
}

static void wait_for(struct ibv_cq *cq, int completions, const char *what)
{
	double limit = seconds() + POLL_SECONDS;
	struct ibv_wc wc;

	while (completions > 0) {
		int got = ibv_poll_cq(cq, 1, &wc);

		if (got < 0)
			fail("ibv_poll_cq", errno);
		if (got && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "%s ended with %s, vendor_err %u\n", what, ibv_wc_status_str(wc.status), wc.vendor_err);
			exit(1);
		}
		completions -= got;
		if (!got && seconds() > limit) {
			fprintf(stderr, "%s did not end within %d s\n", what, POLL_SECONDS);
			exit(1);
		}
	}
}

/* One request from a to b (SEND: into a receive of b), then both memories must agree on its bytes. */
static void move(struct side *a, struct side *b, enum ibv_wr_opcode opcode, unsigned length, const char *what)
{
	struct ibv_sge from = { .addr = (uintptr_t)a->bytes, .length = length, .lkey = a->mr->lkey };
	struct ibv_sge into = { .addr = (uintptr_t)b->bytes, .length = length, .lkey = b->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &into, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	unsigned char *source = opcode == IBV_WR_RDMA_READ ? b->bytes : a->bytes;
	int error;

	for (unsigned i = 0; i < length; i++)
		source[i] = (unsigned char)(i * 31 + (i >> 8) + opcode * 7 + 1);
	send.wr.rdma.remote_addr = (uintptr_t)b->bytes;
	send.wr.rdma.rkey = b->mr->rkey;
	error = opcode == IBV_WR_SEND ? ibv_post_recv(b->qp, &recv, &bad_recv) : 0;
	if (error)
		fail("ibv_post_recv", error);
	error = ibv_post_send(a->qp, &send, &bad_send);
	if (error)
		fail("ibv_post_send", error);
	wait_for(a->qp->send_cq, opcode == IBV_WR_SEND ? 2 : 1, what);
	if (memcmp(a->bytes, b->bytes, length)) {
		fprintf(stderr, "%s of %u bytes arrived with other bytes\n", what, length);
		exit(1);
	}
}

static int show_library(void)
{
	Dl_info info;
	unsigned (*version)(void) = (unsigned (*)(void))dlsym(RTLD_DEFAULT, "burst_abi_version");

	if (!dladdr((void *)ibv_get_device_list, &info) || !info.dli_fname) {
		fprintf(stderr, "cannot tell which verbs library is in use\n");
		return 1;
	}
	if (version)
		printf("%s %u\n", info.dli_fname, version());
	else
		printf("%s none\n", info.dli_fname);
	return 0;
}

int main(int argc, char **argv)
{
	struct side a, b;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	double began;

	if (argc != 2) {
		fprintf(stderr, "usage: burst-pair DEVICE | --library\n");
		return 2;
	}
	if (!strcmp(argv[1], "--library"))
		return show_library();
	context = open_device(argv[1]);
	pd = ibv_alloc_pd(context);
	if (!pd)
		fail("ibv_alloc_pd", errno);
	cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	if (!cq)
		fail("ibv_create_cq", errno);
	make_side(&a, pd, cq);
	make_side(&b, pd, cq);
	connect_side(&a, &b, context);
	connect_side(&b, &a, context);

	began = seconds();
	move(&a, &b, IBV_WR_SEND, SMALL, "SEND");
	move(&b, &a, IBV_WR_RDMA_WRITE, LARGE, "RDMA WRITE");
	move(&a, &b, IBV_WR_RDMA_READ, LARGE, "RDMA READ");
	printf("SEND of %d bytes, RDMA WRITE and READ of %d bytes within this host arrived intact in %.1f ms\n", SMALL, LARGE,
	       (seconds() - began) * 1e3);

	if (ibv_destroy_qp(a.qp) || ibv_destroy_qp(b.qp) || ibv_destroy_cq(cq) || ibv_dereg_mr(a.mr) ||
	    ibv_dereg_mr(b.mr) || ibv_dealloc_pd(pd) || ibv_close_device(context))
		fail("taking things down", errno);
	return 0;
}
