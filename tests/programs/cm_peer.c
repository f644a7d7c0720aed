/*
 * One end of a connection by librdmacm, which prints its events:
 *
 *     cm_peer server ADDRESS PORT HOW        cm_peer client ADDRESS PORT HOW
 *
 * HOW is "reject" (the server rejects), or the end that disconnects first: "server" or "client". Once connected, the client
 * sends a message. Each end has posted two receives more than it needs; they are flushed when the connection ends. Each step
 * that can carry private data does. Each event is a line: name, status, private data.
 */
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, RECEIVES = 3, SIZE = 64 };

static struct rdma_event_channel *channel;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[RECEIVES + 1][SIZE];

static void fail(const char *what)
{
	printf("failed: %s: %m\n", what);
	exit(1);
}

static void must(int returned, const char *what)
{
	if (returned)
		fail(what);
}

static void say(const char *format, ...)
{
	va_list words;

	va_start(words, format);
	vprintf(format, words);
	va_end(words);
	fflush(stdout);
}

/* Waits for an event, prints it, and returns its id. An event other than `wanted` ends the program. */
static struct rdma_cm_id *expect(enum rdma_cm_event_type wanted)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	if (poll(&p, 1, TIMEOUT_MS) != 1)
		fail(rdma_event_str(wanted));
	must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	struct rdma_cm_id *id = event->id;
	const struct rdma_conn_param *conn = &event->param.conn;

	/* Received private data is padded with zeros to the size of the message. */
	say("%s %d %.*s\n", rdma_event_str(event->event), event->status, conn->private_data ? conn->private_data_len : 0,
	    conn->private_data ? (const char *)conn->private_data : "");
	int right = event->event == wanted;
	rdma_ack_cm_event(event);
	if (!right)
		exit(1);
	return id;
}

static struct rdma_conn_param with_data(const char *data)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = strlen(data) + 1, .responder_resources = 1,
					 .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
}

/* Makes a queue pair and posts its receives. */
static void equip(struct rdma_cm_id *id)
{
	pd = ibv_alloc_pd(id->verbs);
	cq = pd ? ibv_create_cq(id->verbs, 16, NULL, NULL, 0) : NULL;
	mr = cq ? ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!mr)
		fail("resources");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };

	must(rdma_create_qp(id, pd, &init), "rdma_create_qp");
	for (int i = 0; i < RECEIVES; i++) {
		struct ibv_sge sge = { .addr = (uintptr_t)memory[i], .length = SIZE, .lkey = mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

		must(ibv_post_recv(id->qp, &wr, &bad), "ibv_post_recv");
	}
}

/* Waits for the next completion. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;

	for (int waited = 0; waited < TIMEOUT_MS; waited++) {
		if (ibv_poll_cq(cq, 1, &wc) == 1)
			return wc;
		usleep(1000);
	}
	fail("no completion");
	abort();
}

static void send_message(struct rdma_cm_id *id)
{
	char *text = memory[RECEIVES];
	struct ibv_sge sge = { .addr = (uintptr_t)text, .length = SIZE, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	strcpy(text, "a message");
	must(ibv_post_send(id->qp, &wr, &bad), "ibv_post_send");
	say("sent %d\n", completion().status);
}

/* Ends the connection: both ends call rdma_disconnect and get DISCONNECTED, and posted receives are flushed. */
static void part(struct rdma_cm_id *id, int first, int posted)
{
	if (first)
		must(rdma_disconnect(id), "rdma_disconnect");
	expect(RDMA_CM_EVENT_DISCONNECTED);
	if (!first)
		must(rdma_disconnect(id), "rdma_disconnect");
	for (int i = 0; i < posted; i++)
		say("flushed %s\n", ibv_wc_status_str(completion().status));
}

static void serve(struct rdma_cm_id *listener, struct sockaddr *address, const char *how)
{
	must(rdma_bind_addr(listener, address), "rdma_bind_addr");
	must(rdma_listen(listener, 4), "rdma_listen");
	say("listening\n");
	struct rdma_cm_id *id = expect(RDMA_CM_EVENT_CONNECT_REQUEST);

	if (strcmp(how, "reject") == 0) {
		must(rdma_reject(id, "no, thank you", 14), "rdma_reject");
		must(rdma_destroy_id(id), "rdma_destroy_id");
		return;
	}
	equip(id);
	struct rdma_conn_param param = with_data("welcome");

	must(rdma_accept(id, &param), "rdma_accept");
	expect(RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_wc wc = completion();

	say("received %d %s\n", wc.status, memory[0]);
	part(id, strcmp(how, "server") == 0, RECEIVES - 1);
	rdma_destroy_qp(id);
	must(rdma_destroy_id(id), "rdma_destroy_id");
}

static void ask(struct rdma_cm_id *id, struct sockaddr *address, const char *how)
{
	must(rdma_resolve_addr(id, NULL, address, TIMEOUT_MS), "rdma_resolve_addr");
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	must(rdma_resolve_route(id, TIMEOUT_MS), "rdma_resolve_route");
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	equip(id);
	struct rdma_conn_param param = with_data("hello");

	must(rdma_connect(id, &param), "rdma_connect");
	if (strcmp(how, "reject") == 0) {
		expect(RDMA_CM_EVENT_REJECTED);
	} else {
		expect(RDMA_CM_EVENT_ESTABLISHED);
		send_message(id);
		part(id, strcmp(how, "client") == 0, RECEIVES);
	}
	rdma_destroy_qp(id);
}

int main(int count, char **words)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_NUMERICHOST }, *found;
	struct rdma_cm_id *id;

	if (count != 5)
		return 2;
	int server = strcmp(words[1], "server") == 0;

	must(rdma_getaddrinfo(words[2], words[3], &hints, &found), "rdma_getaddrinfo");
	channel = rdma_create_event_channel();
	if (!channel)
		fail("rdma_create_event_channel");
	must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	(server ? serve : ask)(id, found->ai_dst_addr, words[4]);
	must(rdma_destroy_id(id), "rdma_destroy_id");
	rdma_destroy_event_channel(channel);
	rdma_freeaddrinfo(found);
	say("end\n");
	return 0;
}
