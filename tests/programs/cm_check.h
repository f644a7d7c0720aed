/*
 * Common parts of the programs that check the rules of librdmacm: ids that connect to each other by one address of this host,
 * and the loop over the rules. Prints "ok NAME" for each rule that holds; the first broken rule ends the program with a
 * sentence.
 */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TIMEOUT_MS 30000
#define SIZE 4096

static const char *running;
static struct sockaddr_storage local;

#define CHECK(condition, ...)                                                                         \
	do {                                                                                          \
		if (!(condition)) {                                                                   \
			fprintf(stderr, "%s: line %d: %s (%m):", running, __LINE__, #condition);      \
			fprintf(stderr, " " __VA_ARGS__);                                             \
			fprintf(stderr, "\n");                                                        \
			exit(1);                                                                      \
		}                                                                                     \
	} while (0)

static inline struct sockaddr *at_port(uint16_t port)
{
	((struct sockaddr_in *)&local)->sin_port = port; /* the port has the same offset in both families */
	return (struct sockaddr *)&local;
}

static inline bool readable(struct rdma_event_channel *channel, int ms)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };

	return poll(&p, 1, ms) == 1 && (p.revents & POLLIN);
}

/* Waits for the next event and checks its type. */
static inline struct rdma_cm_event *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	CHECK(readable(channel, TIMEOUT_MS), "waiting for %s", rdma_event_str(type));
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == type, "%s instead of %s, status %d", rdma_event_str(event->event), rdma_event_str(type),
	      event->status);
	return event;
}

static inline struct rdma_cm_id *expect_ack(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = expect(channel, type);
	struct rdma_cm_id *id = event->id;

	CHECK(type == RDMA_CM_EVENT_REJECTED || event->status == 0, "%s: status %d", rdma_event_str(type), event->status);
	rdma_ack_cm_event(event);
	return id;
}

static inline struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	CHECK(channel);
	return channel;
}

static inline struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	CHECK(rdma_create_id(channel, &id, channel, ps) == 0);
	CHECK(id->context == channel && id->channel == channel && id->ps == ps);
	return id;
}

static inline struct rdma_cm_id *listener(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id = new_id(channel, ps);

	CHECK(rdma_bind_addr(id, at_port(0)) == 0);
	CHECK(rdma_get_src_port(id) != 0);
	CHECK(rdma_listen(id, 8) == 0);
	return id;
}

static inline struct rdma_cm_id *resolved(struct rdma_event_channel *channel, enum rdma_port_space ps, uint16_t port)
{
	struct rdma_cm_id *id = new_id(channel, ps);

	CHECK(rdma_resolve_addr(id, NULL, at_port(port), TIMEOUT_MS) == 0);
	CHECK(expect_ack(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	CHECK(id->verbs && id->port_num == 1 && id->pd);
	CHECK(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	CHECK(expect_ack(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
	CHECK(id->route.num_paths == 1 && id->route.path_rec && id->route.path_rec->mtu >= IBV_MTU_256);
	CHECK(rdma_get_peer_addr(id)->sa_family == local.ss_family && rdma_get_dst_port(id) == port);
	return id;
}

static inline void new_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
					 .qp_type = id->qp_type, .sq_sig_all = 1 };

	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	CHECK(id->qp->state == (id->qp_type == IBV_QPT_UD ? IBV_QPS_RTS : IBV_QPS_INIT), "state %d", id->qp->state);
}

static inline void end(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Bytes that depend on their offset and on the round. */
static inline void fill(uint8_t *at, size_t len, int salt)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (uint8_t)(i * 7 + salt);
}

static inline void send_and_compare(struct rdma_cm_id *from, struct rdma_cm_id *to, int salt)
{
	static uint8_t out[SIZE], in[SIZE];
	struct ibv_mr *out_mr = rdma_reg_msgs(from, out, SIZE), *in_mr = rdma_reg_msgs(to, in, SIZE);
	struct ibv_wc wc;

	CHECK(out_mr && in_mr);
	fill(out, SIZE, salt);
	memset(in, 0, SIZE);
	CHECK(rdma_post_recv(to, in, in, SIZE, in_mr) == 0);
	CHECK(rdma_post_send(from, out, out, SIZE, out_mr, 0) == 0);
	CHECK(rdma_get_send_comp(from, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "send status %d", wc.status);
	CHECK(rdma_get_recv_comp(to, &wc) == 1 && wc.status == IBV_WC_SUCCESS, "receive status %d", wc.status);
	CHECK(wc.byte_len == SIZE && memcmp(in, out, SIZE) == 0);
	CHECK(rdma_dereg_mr(out_mr) == 0 && rdma_dereg_mr(in_mr) == 0);
}

/* Makes two connected ids. */
struct pair {
	struct rdma_event_channel *active_channel, *passive_channel;
	struct rdma_cm_id *listener, *active, *passive;
};

static inline void request(struct pair *p, const void *data, uint8_t len)
{
	struct rdma_conn_param param = { .private_data = data, .private_data_len = len, .responder_resources = 3,
					 .initiator_depth = 2, .retry_count = 5, .rnr_retry_count = 6 };
	struct rdma_cm_event *event;

	p->active_channel = new_channel();
	p->passive_channel = new_channel();
	p->listener = listener(p->passive_channel, RDMA_PS_TCP);
	p->active = resolved(p->active_channel, RDMA_PS_TCP, rdma_get_src_port(p->listener));
	new_qp(p->active);
	CHECK(rdma_connect(p->active, &param) == 0);
	event = expect(p->passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	p->passive = event->id;
	CHECK(event->listen_id == p->listener && p->passive != p->listener);
	CHECK(p->passive->context == p->listener->context && p->passive->channel == p->passive_channel);
	CHECK(p->passive->verbs == p->active->verbs, "two contexts of one device");
	CHECK(event->param.conn.responder_resources == 2 && event->param.conn.initiator_depth == 3);
	CHECK(event->param.conn.qp_num == p->active->qp->qp_num);
	CHECK(event->param.conn.private_data_len == 56, "%d", event->param.conn.private_data_len);
	CHECK(len == 0 || memcmp(event->param.conn.private_data, data, len) == 0);
	rdma_ack_cm_event(event);
}

static inline void connected(struct pair *p)
{
	static const char reply[] = "as you like it";
	struct rdma_conn_param param = { .private_data = reply, .private_data_len = sizeof(reply),
					 .responder_resources = 2, .initiator_depth = 2, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;

	request(p, "hello", 5);
	new_qp(p->passive);
	CHECK(rdma_accept(p->passive, &param) == 0);
	event = expect(p->active_channel, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == p->active && event->param.conn.private_data_len == 196);
	CHECK(memcmp(event->param.conn.private_data, reply, sizeof(reply)) == 0);
	rdma_ack_cm_event(event);
	CHECK(expect_ack(p->passive_channel, RDMA_CM_EVENT_ESTABLISHED) == p->passive);
	CHECK(p->active->qp->state == IBV_QPS_RTS && p->passive->qp->state == IBV_QPS_RTS);
}

static inline void end_pair(struct pair *p)
{
	end(p->active);
	end(p->passive);
	CHECK(rdma_destroy_id(p->listener) == 0);
	rdma_destroy_event_channel(p->active_channel);
	rdma_destroy_event_channel(p->passive_channel);
}

/* A rule, and its name on the command line. */
struct rule {
	const char *name;
	void (*run)(void);
};

/* Checks the rules named on the command line, or all: PROGRAM ADDRESS [NAME...] */
static inline int check_rules(const struct rule *rules, size_t count, int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *info;

	if (argc < 2 || getaddrinfo(argv[1], NULL, &hints, &info)) {
		fprintf(stderr, "usage: %s ADDRESS [NAME...]\n", argv[0]);
		return 2;
	}
	memcpy(&local, info->ai_addr, info->ai_addrlen);
	freeaddrinfo(info);
	for (size_t i = 0; i < count; i++) {
		bool wanted = argc == 2;

		for (int j = 2; j < argc; j++)
			wanted |= strcmp(argv[j], rules[i].name) == 0;
		if (!wanted)
			continue;
		running = rules[i].name;
		rules[i].run();
		printf("ok %s\n", running);
		fflush(stdout);
	}
	return 0;
}
