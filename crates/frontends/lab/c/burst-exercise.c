/*
 * burst-exercise: the traffic of `burst lab`. One host serves, one to four others are its clients; each is a process that
 * opens the device of its own daemon. A plain verbs program: nothing in it knows Burst but the name of the variable that
 * chooses the daemon.
 *
 *     burst-exercise KEY=VALUE...
 *
 * serve=SOCKET, clients=SOCKET,...   daemons of the server and of each client
 * op=send|ping|flood|write|read_write|fetch_add|listen|connect
 * size=BYTES count=N[,N...]          of each message; messages of each client
 * mtu=BYTES                          path MTU
 * receives=N srq=N                   receives that the server posts at first: for each client; for all, in a shared queue
 * rnr=N retry=N timeout=N            attributes of the queue pairs
 * rights=none|read|write|read+write|atomic  key=right|old  room=BYTES   of the server's memory
 * start=N together=N                 first value of the counter; rounds in which the clients read before one of them writes
 * address=IP port=N                  of the server, for listen and connect
 *
 * It prints facts, one to a line: a word, then numbers and words. Exit code 0 when it could measure, whatever it measured.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 4, DEPTH = 256, PORT = 1, LIMIT_SECONDS = 60, LISTEN_SECONDS = 3600, QUIET_MS = 700 };

struct options {
	const char *serve, *op, *rights, *key, *address;
	char *clients[CLIENTS];
	int count[CLIENTS];
	int number, size, mtu, receives, srq, rnr, retry, timeout, room, start, together, port;
};

/* What two processes must tell each other before a queue pair can be used. */
struct introduction {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

/* What a client reports. */
struct report {
	int done, status;
	uint32_t vendor_err;
};

struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[CLIENTS];
	unsigned char *bytes;
	size_t length;
};

static _Noreturn void fail(const char *step, int error)
{
	fprintf(stderr, "%s: %s\n", step, error ? strerror(error) : "failed");
	exit(1);
}

static void fact(const char *form, ...)
{
	va_list list;

	va_start(list, form);
	vprintf(form, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
}

static int is(const char *a, const char *b)
{
	return a && !strcmp(a, b);
}

static void tell(int fd, const void *data, size_t length)
{
	if (write(fd, data, length) != (ssize_t)length)
		exit(1); /* the other process has said why it ended */
}

static void hear(int fd, void *data, size_t length)
{
	size_t got = 0;

	while (got < length) {
		ssize_t now = read(fd, (char *)data + got, length - got);

		if (now <= 0)
			exit(1);
		got += now;
	}
}

/* The byte at this place of each message. */
static unsigned char pattern(size_t at)
{
	return at * 31 + (at >> 8) + 7;
}

static int intact(const unsigned char *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (bytes[i] != pattern(i))
			return 0;
	return 1;
}

static enum ibv_mtu mtu_of(int bytes)
{
	return bytes <= 256 ? IBV_MTU_256 : bytes <= 512 ? IBV_MTU_512 : bytes <= 1024 ? IBV_MTU_1024 : bytes <= 2048 ? IBV_MTU_2048 : IBV_MTU_4096;
}

static int rights_of(const char *word)
{
	int rights = IBV_ACCESS_LOCAL_WRITE;

	if (strstr(word, "read"))
		rights |= IBV_ACCESS_REMOTE_READ;
	if (strstr(word, "write"))
		rights |= IBV_ACCESS_REMOTE_WRITE;
	if (is(word, "atomic"))
		rights |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	return rights;
}

/* Opens the only device of the daemon at this socket. */
static void open_side(struct side *side, const char *socket, size_t length, int rights)
{
	struct ibv_device **list;

	setenv("BURST_SOCKET", socket, 1);
	list = ibv_get_device_list(NULL);
	if (!list || !list[0])
		fail("there is no device: has the exercise been stopped? ibv_get_device_list", errno);
	side->context = ibv_open_device(list[0]);
	if (!side->context)
		fail("ibv_open_device", errno);
	ibv_free_device_list(list);
	side->pd = ibv_alloc_pd(side->context);
	side->cq = ibv_create_cq(side->context, 4 * DEPTH, NULL, NULL, 0);
	if (!side->pd || !side->cq)
		fail("ibv_create_cq", errno);
	/* Whole pages, so that what lies behind `length` is memory of this process, which no key opens. */
	side->length = length;
	if (posix_memalign((void **)&side->bytes, 4096, (length + 4095) & ~4095ul))
		fail("posix_memalign", ENOMEM);
	memset(side->bytes, 0, length);
	side->mr = ibv_reg_mr(side->pd, side->bytes, length, rights);
	if (!side->mr)
		fail("ibv_reg_mr", errno);
}

static void make_qp(struct side *side, int at, const struct options *o, int rights)
{
	struct ibv_qp_init_attr init = {
		.send_cq = side->cq, .recv_cq = side->cq, .srq = side->srq,
		.qp_type = is(o->op, "flood") ? IBV_QPT_UC : IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = rights };
	int error;

	side->qp[at] = ibv_create_qp(side->pd, &init);
	if (!side->qp[at])
		fail("ibv_create_qp", errno);
	if (init.qp_type == IBV_QPT_UC)
		attr.qp_access_flags &= ~(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	error = ibv_modify_qp(side->qp[at], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error)
		fail("ibv_modify_qp to INIT", error);
}

static struct introduction introduce(struct side *side, int at)
{
	struct introduction own = {
		.qpn = side->qp[at]->qp_num, .psn = 100 * (at + 1), .rkey = side->mr->rkey, .addr = (uintptr_t)side->bytes,
	};

	if (ibv_query_gid(side->context, PORT, 0, &own.gid))
		fail("ibv_query_gid", errno);
	return own;
}

static void connect_qp(struct side *side, int at, const struct introduction *peer, const struct options *o)
{
	int uc = is(o->op, "flood"), error;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu_of(o->mtu), .dest_qp_num = peer->qpn, .rq_psn = peer->psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 14,
		.ah_attr = { .is_global = 1, .port_num = PORT, .grh = { .hop_limit = 64, .dgid = peer->gid } },
	};

	error = ibv_modify_qp(side->qp[at], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      (uc ? 0 : IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	if (error)
		fail("ibv_modify_qp to RTR", error);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 100 * (at + 1);
	attr.timeout = o->timeout;
	attr.retry_cnt = o->retry;
	attr.rnr_retry = o->rnr;
	attr.max_rd_atomic = 4;
	error = ibv_modify_qp(side->qp[at], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN |
			      (uc ? 0 : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
	if (error)
		fail("ibv_modify_qp to RTS", error);
}

static int post_receive(struct side *side, int at)
{
	struct ibv_sge into = { .addr = (uintptr_t)side->bytes, .length = side->length, .lkey = side->mr->lkey };
	struct ibv_recv_wr one = { .sg_list = &into, .num_sge = 1 }, *bad;

	return side->srq ? ibv_post_srq_recv(side->srq, &one, &bad) : ibv_post_recv(side->qp[at], &one, &bad);
}

static void post_receives(struct side *side, int at, int number)
{
	while (number-- > 0)
		if (post_receive(side, at))
			fail("ibv_post_recv", errno);
}

static void post(struct side *side, enum ibv_wr_opcode opcode, int length, const struct introduction *peer, const struct options *o)
{
	struct ibv_sge from = { .addr = (uintptr_t)side->bytes, .length = length, .lkey = side->mr->lkey };
	struct ibv_send_wr one = { .sg_list = &from, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	int error;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		one.wr.atomic.remote_addr = peer->addr;
		one.wr.atomic.rkey = peer->rkey;
		one.wr.atomic.compare_add = 1;
	} else {
		one.wr.rdma.remote_addr = peer->addr;
		one.wr.rdma.rkey = is(o->key, "old") ? peer->rkey ^ 1 : peer->rkey;
	}
	error = ibv_post_send(side->qp[0], &one, &bad);
	if (error)
		fail("ibv_post_send", error);
}

/* Waits for so many completions. Returns 0, or -1 after the first that is no success, which it notes. */
static int await(struct side *side, int number, struct report *report)
{
	struct ibv_wc wc;

	while (number > 0) {
		int got = ibv_poll_cq(side->cq, 1, &wc);

		if (got < 0)
			fail("ibv_poll_cq", errno);
		if (!got) {
			sched_yield();
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS) {
			report->status = wc.status;
			report->vendor_err = wc.vendor_err;
			return -1;
		}
		number--;
	}
	return 0;
}

static enum ibv_wr_opcode opcode_of(const char *op)
{
	return is(op, "write") ? IBV_WR_RDMA_WRITE : is(op, "fetch_add") ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_SEND;
}

/* Messages, with as many posted as the queue holds. */
static void stream(struct side *side, const struct options *o, int count, const struct introduction *peer, struct report *report)
{
	int posted = 0, length = is(o->op, "fetch_add") ? 8 : o->size;

	for (int i = 0; i < length && !is(o->op, "fetch_add"); i++)
		side->bytes[i] = pattern(i);
	while (report->done < count) {
		for (; posted < count && posted - report->done < DEPTH / 2; posted++)
			post(side, opcode_of(o->op), length, peer, o);
		if (await(side, 1, report))
			return;
		report->done++;
	}
}

/* A message, then the answer to it, again and again. */
static void ping(struct side *side, const struct options *o, int count, const struct introduction *peer, struct report *report)
{
	for (int i = 0; i < o->size; i++)
		side->bytes[i] = pattern(i);
	for (; report->done < count; report->done++) {
		post_receives(side, 0, 1);
		post(side, IBV_WR_SEND, o->size, peer, o);
		if (await(side, 2, report))
			return;
	}
}

/* Adds 1 by a READ of the counter and a WRITE of the sum. The server says when to do each. */
static void read_write(struct side *side, const struct options *o, int count, const struct introduction *peer, struct report *report, int fd)
{
	char word = 0;

	for (; report->done < count; report->done++) {
		hear(fd, &word, 1);
		post(side, IBV_WR_RDMA_READ, 8, peer, o);
		if (await(side, 1, report))
			return;
		++*(uint64_t *)side->bytes;
		tell(fd, &word, 1);
		hear(fd, &word, 1);
		post(side, IBV_WR_RDMA_WRITE, 8, peer, o);
		if (await(side, 1, report))
			return;
		tell(fd, &word, 1);
	}
}

static int client(const struct options *o, int number, int fd)
{
	struct side side = { 0 };
	struct introduction own, peer;
	struct report report = { 0 };
	char go;

	open_side(&side, o->clients[number], o->size > 8 ? o->size : 8, IBV_ACCESS_LOCAL_WRITE);
	make_qp(&side, 0, o, 0);
	own = introduce(&side, 0);
	tell(fd, &own, sizeof own);
	hear(fd, &peer, sizeof peer);
	connect_qp(&side, 0, &peer, o);
	tell(fd, "r", 1);
	hear(fd, &go, 1);
	if (is(o->op, "ping"))
		ping(&side, o, o->count[number], &peer, &report);
	else if (is(o->op, "read_write"))
		read_write(&side, o, o->count[number], &peer, &report, fd);
	else
		stream(&side, o, o->count[number], &peer, &report);
	tell(fd, "e", 1);
	tell(fd, &report, sizeof report);
	/* The queue pair stays until the server has seen all, so that it can answer. */
	hear(fd, &go, 1);
	ibv_destroy_qp(side.qp[0]);
	return 0;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* Tells one client to do its next step and waits until it has. */
static void step(int fd)
{
	char word = 's';

	tell(fd, &word, 1);
	hear(fd, &word, 1);
}

/* All clients read, then all write: in the first `together` rounds. In the others they take turns. */
static void conduct(const struct options *o, const int *fds)
{
	for (int round = 0; round < o->count[0]; round++)
		if (round < o->together) {
			for (int half = 0; half < 2; half++)
				for (int i = 0; i < o->number; i++)
					step(fds[i]);
		} else {
			for (int i = 0; i < o->number; i++) {
				step(fds[i]);
				step(fds[i]);
			}
		}
}

struct served {
	int received[CLIENTS], all, wrong;
};

/* Takes what has come: counts it, checks its bytes, and answers if it is a ping. */
static int take(struct side *side, const struct options *o, struct served *served)
{
	struct ibv_wc wc;

	if (ibv_poll_cq(side->cq, 1, &wc) <= 0)
		return 0;
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != IBV_WC_RECV)
		return 1;
	served->all++;
	for (int i = 0; i < o->number; i++)
		served->received[i] += side->qp[i]->qp_num == wc.qp_num;
	served->wrong += (int)wc.byte_len != o->size || !intact(side->bytes, wc.byte_len);
	if (is(o->op, "ping")) {
		post_receives(side, 0, 1);
		post(side, IBV_WR_SEND, o->size, &(struct introduction){ 0 }, o);
	}
	return 1;
}

/* Serves until each client has reported and nothing more comes. */
static void serve_until_reports(struct side *side, const struct options *o, const int *fds, struct served *served, struct report *reports)
{
	int open = o->number, expected = 0, late = o->rnr && !o->srq;
	double quiet = seconds(), began = quiet;

	for (int i = 0; i < o->number; i++)
		expected += o->count[i];
	for (;;) {
		struct pollfd ready[CLIENTS];

		while (take(side, o, served))
			quiet = seconds();
		/* The missing receives, a little late: meanwhile the clients learn that there are none. */
		if (late && seconds() - began > 0.02) {
			for (int i = 0; i < o->number; i++)
				post_receives(side, i, o->count[i] - o->receives);
			late = 0;
		}
		for (int i = 0; i < o->number; i++)
			ready[i] = (struct pollfd){ .fd = reports[i].done < 0 ? fds[i] : -1, .events = POLLIN };
		if (open && poll(ready, o->number, 0) > 0)
			for (int i = 0; i < o->number; i++)
				if (ready[i].revents) {
					char end;

					hear(fds[i], &end, 1);
					hear(fds[i], &reports[i], sizeof reports[i]);
					open--;
					quiet = seconds();
				}
		/* What is lost of a flood is not sent again, and the rest may still be under way. */
		if (!open && (!is(o->op, "flood") || served->all >= expected || seconds() - quiet > QUIET_MS / 1e3))
			break;
		sched_yield();
	}
	while (take(side, o, served))
		;
}

static void start_clients(const struct options *o, int *fds)
{
	for (int i = 0; i < o->number; i++) {
		int pair[2];
		pid_t child;

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			fail("socketpair", errno);
		child = fork();
		if (child < 0)
			fail("fork", errno);
		if (!child) {
			for (int j = 0; j < i; j++)
				close(fds[j]);
			close(pair[0]);
			alarm(LIMIT_SECONDS);
			exit(client(o, i, pair[1]));
		}
		close(pair[1]);
		fds[i] = pair[0];
	}
}

static void print_facts(const struct side *side, const struct options *o, const struct served *served, const struct report *reports)
{
	for (int i = 0; i < o->number; i++)
		fact("client %d %d %u %d %d", i, reports[i].status, reports[i].vendor_err, reports[i].done, served->received[i]);
	fact("received %d %d", served->all, served->wrong);
	if (is(o->op, "write"))
		fact("memory %d", o->size <= (int)side->length && intact(side->bytes, o->size));
	if (is(o->op, "read_write") || is(o->op, "fetch_add"))
		fact("counter %d %llu", o->start, (unsigned long long)*(volatile uint64_t *)side->bytes);
}

static int server(const struct options *o)
{
	struct side side = { 0 };
	struct served served = { 0 };
	struct report reports[CLIENTS];
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	int fds[CLIENTS], rights = rights_of(o->rights);

	/* Before any call of the library: each process is a program of its own. */
	start_clients(o, fds);
	open_side(&side, o->serve, o->room, rights);
	if (o->start)
		*(uint64_t *)side.bytes = o->start;
	if (o->srq && !(side.srq = ibv_create_srq(side.pd, &shared)))
		fail("ibv_create_srq", errno);
	post_receives(&side, 0, o->srq);
	for (int i = 0; i < o->number; i++) {
		struct introduction own, peer;

		make_qp(&side, i, o, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		own = introduce(&side, i);
		hear(fds[i], &peer, sizeof peer);
		/* Both ends know the other's first packet number now. */
		tell(fds[i], &own, sizeof own);
		connect_qp(&side, i, &peer, o);
		if (!o->srq)
			post_receives(&side, i, o->receives);
		reports[i].done = -1;
	}
	for (int i = 0; i < o->number; i++) {
		char ready;

		hear(fds[i], &ready, 1);
	}
	for (int i = 0; i < o->number; i++)
		tell(fds[i], "g", 1);
	if (is(o->op, "read_write"))
		conduct(o, fds);
	serve_until_reports(&side, o, fds, &served, reports);
	print_facts(&side, o, &served, reports);
	for (int i = 0; i < o->number; i++) {
		tell(fds[i], "x", 1);
		ibv_destroy_qp(side.qp[i]);
	}
	while (wait(NULL) > 0)
		;
	return 0;
}

static struct sockaddr_in place_of(const struct options *o)
{
	struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(o->port) };

	if (inet_pton(AF_INET, o->address, &place.sin_addr) != 1)
		fail("address", EINVAL);
	return place;
}

static void make_cm_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };

	if (rdma_create_qp(id, NULL, &init))
		fail("rdma_create_qp", errno);
}

/* Says yes to whoever asks, for an hour at most. */
static int listen_for_connections(const struct options *o)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	struct sockaddr_in place = place_of(o);

	setenv("BURST_SOCKET", o->serve, 1);
	alarm(LISTEN_SECONDS);
	channel = rdma_create_event_channel();
	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
		fail("rdma_create_id", errno);
	if (rdma_bind_addr(listener, (struct sockaddr *)&place) || rdma_listen(listener, 8))
		fail("rdma_listen", errno);
	fact("listening");
	while (!rdma_get_cm_event(channel, &event)) {
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;
		struct rdma_conn_param answer = { .rnr_retry_count = 7 };

		if (type == RDMA_CM_EVENT_DEVICE_REMOVAL)
			return 0;
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			make_cm_qp(id);
			rdma_accept(id, &answer);
		}
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(id);
			rdma_destroy_qp(id);
			rdma_destroy_id(id);
		}
	}
	return 0;
}

/* The next event: its kind; its status goes to `status`. */
static enum rdma_cm_event_type next_event(struct rdma_event_channel *channel, int *status)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type type;

	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event", errno);
	type = event->event;
	*status = event->status;
	rdma_ack_cm_event(event);
	return type;
}

static int connect_by_cm(const struct options *o)
{
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct sockaddr_in place = place_of(o);
	enum rdma_cm_event_type type;
	int status = 0;

	setenv("BURST_SOCKET", o->clients[0], 1);
	alarm(LIMIT_SECONDS);
	channel = rdma_create_event_channel();
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id", errno);
	if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&place, 2000))
		fail("rdma_resolve_addr", errno);
	type = next_event(channel, &status);
	if (type == RDMA_CM_EVENT_ADDR_RESOLVED && !rdma_resolve_route(id, 2000))
		type = next_event(channel, &status);
	if (type == RDMA_CM_EVENT_ROUTE_RESOLVED) {
		make_cm_qp(id);
		if (rdma_connect(id, &param))
			fail("rdma_connect", errno);
		type = next_event(channel, &status);
	}
	fact("event %s %d", rdma_event_str(type), status);
	if (type == RDMA_CM_EVENT_ESTABLISHED) {
		rdma_disconnect(id);
		next_event(channel, &status);
	}
	if (id->qp)
		rdma_destroy_qp(id);
	rdma_destroy_id(id);
	return 0;
}

/* Splits `text` at commas. Returns the number of parts. */
static int split(char *text, char **parts)
{
	int number = 0;

	for (char *part = strtok(text, ","); part && number < CLIENTS; part = strtok(NULL, ","))
		parts[number++] = part;
	return number;
}

static void set_number(struct options *o, const char *key, int value)
{
	struct { const char *name; int *place; } numbers[] = {
		{ "size", &o->size }, { "mtu", &o->mtu }, { "receives", &o->receives }, { "srq", &o->srq }, { "rnr", &o->rnr },
		{ "retry", &o->retry }, { "timeout", &o->timeout }, { "room", &o->room }, { "start", &o->start },
		{ "together", &o->together }, { "port", &o->port },
	};

	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (is(key, numbers[i].name)) {
			*numbers[i].place = value;
			return;
		}
	fprintf(stderr, "burst-exercise: there is no option %s\n", key);
	exit(2);
}

static void set_option(struct options *o, const char *key, char *value)
{
	struct { const char *name; const char **place; } words[] = {
		{ "serve", &o->serve }, { "op", &o->op }, { "rights", &o->rights }, { "key", &o->key }, { "address", &o->address },
	};
	char *counts[CLIENTS];

	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (is(key, words[i].name)) {
			*words[i].place = value;
			return;
		}
	if (is(key, "clients")) {
		o->number = split(value, o->clients);
	} else if (is(key, "count")) {
		int number = split(value, counts);

		for (int i = 0; i < CLIENTS; i++)
			o->count[i] = number ? atoi(counts[i < number ? i : number - 1]) : 0;
	} else {
		set_number(o, key, atoi(value));
	}
}

int main(int argc, char **argv)
{
	struct options o = {
		.op = "send", .rights = "write", .key = "right", .size = 64, .count = { 1, 1, 1, 1 }, .mtu = 1024, .receives = 16,
		.rnr = 0, .retry = 7, .timeout = 14, .room = 65536,
	};

	for (int i = 1; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value) {
			fprintf(stderr, "usage: burst-exercise KEY=VALUE... (burst lab starts it)\n");
			return 2;
		}
		*value = 0;
		set_option(&o, argv[i], value + 1);
	}
	if (is(o.op, "listen") && o.serve && o.address)
		return listen_for_connections(&o);
	if (is(o.op, "connect") && o.number && o.address)
		return connect_by_cm(&o);
	if (!o.serve || !o.number || o.room < 8) {
		fprintf(stderr, "usage: burst-exercise serve=SOCKET clients=SOCKET,... op=send (burst lab starts it)\n");
		return 2;
	}
	alarm(LIMIT_SECONDS);
	return server(&o);
}
