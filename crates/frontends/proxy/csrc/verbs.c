/* A thin layer over librdmacm and libibverbs: macros and inline functions as symbols, and structures reduced to what the proxy needs.
 * Each function returns 0 or a negative errno, or a pointer, NULL with errno set. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>

struct bp_event {
	int32_t kind;	/* enum rdma_cm_event_type */
	int32_t status;
	void *id;
	void *listener;
	uint32_t private_len;
	uint8_t private_data[56];
};

struct bp_qp {
	struct rdma_cm_id *id;
	struct ibv_cq *send_cq, *recv_cq;
	unsigned int recv_events, send_events;
};

struct bp_write {
	uint64_t local, remote;
	uint32_t len, lkey, rkey;
};

struct bp_done {
	uint64_t id;
	uint32_t len;
	int32_t status;
};

static int negative(int result)
{
	if (result == 0)
		return 0;
	return result < 0 ? -errno : -result;
}

static int nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

void *bp_channel(int *fd)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	if (!channel)
		return NULL;
	*fd = channel->fd;
	if (nonblocking(channel->fd)) {
		rdma_destroy_event_channel(channel);
		return NULL;
	}
	return channel;
}

void bp_channel_destroy(void *channel) { rdma_destroy_event_channel(channel); }

/* 1: *out is an event, acknowledged already; 0: none waits. */
int bp_next_event(void *channel, struct bp_event *out)
{
	struct rdma_cm_event *event;
	if (rdma_get_cm_event(channel, &event))
		return errno == EAGAIN ? 0 : -errno;
	memset(out, 0, sizeof *out);
	out->kind = event->event;
	out->status = event->status;
	out->id = event->id;
	out->listener = event->listen_id;
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST && event->param.conn.private_data) {
		out->private_len = event->param.conn.private_data_len;
		if (out->private_len > sizeof out->private_data)
			out->private_len = sizeof out->private_data;
		memcpy(out->private_data, event->param.conn.private_data, out->private_len);
	}
	rdma_ack_cm_event(event);
	return 1;
}

void *bp_listen(void *channel, struct sockaddr *address, uint16_t *port)
{
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		return NULL;
	if (rdma_bind_addr(id, address) || rdma_listen(id, 64)) {
		int saved = errno;
		rdma_destroy_id(id);
		errno = saved;
		return NULL;
	}
	*port = ntohs(rdma_get_src_port(id));
	return id;
}

void *bp_dial(void *channel, struct sockaddr *to, int timeout_ms)
{
	struct rdma_cm_id *id;
	if (rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		return NULL;
	if (rdma_resolve_addr(id, NULL, to, timeout_ms)) {
		int saved = errno;
		rdma_destroy_id(id);
		errno = saved;
		return NULL;
	}
	return id;
}

int bp_resolve_route(struct rdma_cm_id *id, int timeout_ms) { return negative(rdma_resolve_route(id, timeout_ms)); }
void bp_reject(struct rdma_cm_id *id)
{
	rdma_reject(id, NULL, 0);
	rdma_destroy_id(id);
}
void bp_destroy_id(struct rdma_cm_id *id) { rdma_destroy_id(id); }
void *bp_verbs(struct rdma_cm_id *id) { return id->verbs; }
void *bp_pd(void *verbs) { return ibv_alloc_pd(verbs); }
void bp_pd_destroy(void *pd) { ibv_dealloc_pd(pd); }

void *bp_completions(void *verbs, int *fd)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(verbs);
	if (!channel)
		return NULL;
	*fd = channel->fd;
	if (nonblocking(channel->fd)) {
		ibv_destroy_comp_channel(channel);
		return NULL;
	}
	return channel;
}

void bp_completions_destroy(void *channel) { ibv_destroy_comp_channel(channel); }

void *bp_register(void *pd, void *address, size_t len, uint32_t *lkey, uint32_t *rkey)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, address, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!mr)
		return NULL;
	*lkey = mr->lkey;
	*rkey = mr->rkey;
	return mr;
}

void bp_deregister(void *mr) { ibv_dereg_mr(mr); }

/* Ends all but the id, which the caller keeps. */
void bp_qp_unmake(struct bp_qp *qp)
{
	if (qp->id->qp)
		rdma_destroy_qp(qp->id);
	if (qp->recv_cq) {
		ibv_ack_cq_events(qp->recv_cq, qp->recv_events);
		ibv_destroy_cq(qp->recv_cq);
	}
	if (qp->send_cq) {
		ibv_ack_cq_events(qp->send_cq, qp->send_events);
		ibv_destroy_cq(qp->send_cq);
	}
	free(qp);
}

void bp_qp_destroy(struct bp_qp *qp)
{
	struct rdma_cm_id *id = qp->id;
	bp_qp_unmake(qp);
	rdma_destroy_id(id);
}

/* Takes over the id only if it succeeds. `context` comes back from bp_completion_event. */
struct bp_qp *bp_qp(struct rdma_cm_id *id, void *pd, void *completions, void *context, uint32_t sends, uint32_t receives)
{
	struct bp_qp *qp = calloc(1, sizeof *qp);
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	int saved;
	if (!qp)
		return NULL;
	qp->recv_cq = ibv_create_cq(id->verbs, receives + 1, context, completions, 0);
	qp->send_cq = ibv_create_cq(id->verbs, sends + 1, context, completions, 0);
	attr.send_cq = qp->send_cq;
	attr.recv_cq = qp->recv_cq;
	attr.cap.max_send_wr = sends;
	attr.cap.max_recv_wr = receives;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	if (qp->recv_cq && qp->send_cq && !ibv_req_notify_cq(qp->recv_cq, 0) && !rdma_create_qp(id, pd, &attr)) {
		qp->id = id;
		return qp;
	}
	saved = errno;
	if (qp->recv_cq)
		ibv_destroy_cq(qp->recv_cq);
	if (qp->send_cq)
		ibv_destroy_cq(qp->send_cq);
	free(qp);
	errno = saved;
	return NULL;
}

int bp_join(struct bp_qp *qp, const void *data, uint8_t len, int accept)
{
	struct rdma_conn_param param = {
		.private_data = data,
		.private_data_len = len,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	return negative(accept ? rdma_accept(qp->id, &param) : rdma_connect(qp->id, &param));
}

int bp_post_recv(struct bp_qp *qp, uint64_t id, uint64_t address, uint32_t len, uint32_t lkey)
{
	struct ibv_sge sge = { .addr = address, .length = len, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return negative(ibv_post_recv(qp->id->qp, &wr, &bad));
}

/* The writes, then one SEND, as one chain; the SEND completes. At most 64 writes. */
int bp_post_batch(struct bp_qp *qp, const struct bp_write *writes, uint32_t count, uint64_t id, uint64_t address, uint32_t len,
		  uint32_t lkey)
{
	struct ibv_send_wr wr[65], *bad;
	struct ibv_sge sge[65];
	uint32_t i;
	if (count > 64)
		return -EINVAL;
	memset(wr, 0, sizeof *wr * (count + 1));
	for (i = 0; i < count; i++) {
		sge[i] = (struct ibv_sge) { .addr = writes[i].local, .length = writes[i].len, .lkey = writes[i].lkey };
		wr[i].opcode = IBV_WR_RDMA_WRITE;
		wr[i].wr.rdma.remote_addr = writes[i].remote;
		wr[i].wr.rdma.rkey = writes[i].rkey;
		wr[i].next = &wr[i + 1];
	}
	sge[i] = (struct ibv_sge) { .addr = address, .length = len, .lkey = lkey };
	wr[i].opcode = IBV_WR_SEND;
	wr[i].send_flags = IBV_SEND_SIGNALED;
	wr[i].wr_id = id;
	for (i = 0; i <= count; i++) {
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = 1;
	}
	return negative(ibv_post_send(qp->id->qp, wr, &bad));
}

int bp_poll(struct bp_qp *qp, int receives, struct bp_done *out, int most)
{
	struct ibv_wc wc[16];
	int i, count;
	if (most > 16)
		most = 16;
	count = ibv_poll_cq(receives ? qp->recv_cq : qp->send_cq, most, wc);
	if (count < 0)
		return -EIO;
	for (i = 0; i < count; i++)
		out[i] = (struct bp_done) { .id = wc[i].wr_id, .len = wc[i].byte_len, .status = wc[i].status };
	return count;
}

int bp_arm(struct bp_qp *qp, int receives) { return negative(ibv_req_notify_cq(receives ? qp->recv_cq : qp->send_cq, 0)); }

/* 1: *context is that of a queue whose event was taken; 0: none waits. The queue's events are counted by bp_taken. */
int bp_completion_event(void *completions, void **cq, void **context)
{
	struct ibv_cq *found;
	if (ibv_get_cq_event(completions, &found, context))
		return errno == EAGAIN ? 0 : -errno;
	*cq = found;
	return 1;
}

void bp_taken(struct bp_qp *qp, void *cq)
{
	if (cq == qp->recv_cq)
		qp->recv_events++;
	else
		qp->send_events++;
}
