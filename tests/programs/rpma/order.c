/*
 * Ping-pong by librpma (Debian's), in which the client counts the order of its completions: the completion of each SEND must come
 * before the RECV of the answer, because both lie in one completion queue and the answer acknowledges the SEND.
 * Programs that poll one completion per wake-up and look at its opcode depend on this order.
 *
 * usage: order ADDRESS PORT           serves one client
 *        order ADDRESS PORT ROUNDS    is the client; prints how many answers came before the completion of their SEND
 */
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 64

#define MUST(call)                                                                             \
	do {                                                                                   \
		int rc = (call);                                                               \
		if (rc) {                                                                      \
			fprintf(stderr, "order: %s: %s\n", #call, rpma_err_2str(rc));          \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

/* Both ends of a message: the first half of the memory is sent, the second received. */
struct end {
	struct rpma_peer *peer;
	struct rpma_conn *conn;
	struct rpma_mr_local *mr;
	struct rpma_cq *cq;
	char memory[2 * SIZE];
};

static void open_peer(struct end *end, const char *address, enum rpma_util_ibv_context_type which)
{
	struct ibv_context *context;

	MUST(rpma_utils_get_ibv_context(address, which, &context));
	MUST(rpma_peer_new(context, &end->peer));
	MUST(rpma_mr_reg(end->peer, end->memory, sizeof(end->memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &end->mr));
}

static void finish(struct end *end, struct rpma_conn_req *req)
{
	enum rpma_conn_event event;

	MUST(rpma_conn_req_recv(req, end->mr, SIZE, SIZE, NULL));
	MUST(rpma_conn_req_connect(&req, NULL, &end->conn));
	MUST(rpma_conn_next_event(end->conn, &event));
	if (event != RPMA_CONN_ESTABLISHED) {
		fprintf(stderr, "order: %s instead of an established connection\n", rpma_utils_conn_event_2str(event));
		exit(1);
	}
	MUST(rpma_conn_get_cq(end->conn, &end->cq));
}

/* The opcode of the next completion: one at a time, and a wait only if there is none. */
static enum ibv_wc_opcode next_completion(struct end *end)
{
	struct ibv_wc wc;
	int rc;

	while ((rc = rpma_cq_get_wc(end->cq, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		MUST(rpma_cq_wait(end->cq));
	MUST(rc);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "order: %s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc.opcode;
}

static void serve(struct end *end, const char *address, const char *port)
{
	struct rpma_conn_req *req;
	struct rpma_ep *ep;
	enum rpma_conn_event event;
	struct ibv_wc wc;
	int rc;

	open_peer(end, address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	MUST(rpma_ep_listen(end->peer, address, port, &ep));
	printf("listening\n");
	fflush(stdout);
	MUST(rpma_ep_next_conn_req(ep, NULL, &req));
	finish(end, req);
	for (;;) {
		if (next_completion(end) != IBV_WC_RECV)
			continue;
		if (!strcmp(end->memory + SIZE, "end"))
			break;
		MUST(rpma_recv(end->conn, end->mr, SIZE, SIZE, NULL));
		memcpy(end->memory, end->memory + SIZE, SIZE);
		MUST(rpma_send(end->conn, end->mr, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, NULL));
	}
	MUST(rpma_conn_next_event(end->conn, &event));
	/* What the disconnect flushed. */
	while ((rc = rpma_cq_get_wc(end->cq, 1, &wc, NULL)) == 0)
		;
	MUST(rc == RPMA_E_NO_COMPLETION ? 0 : rc);
	MUST(rpma_ep_shutdown(&ep));
}

static void ask(struct end *end, const char *address, const char *port, int rounds)
{
	struct rpma_conn_req *req;
	enum rpma_conn_event event;
	int early = 0;

	open_peer(end, address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	MUST(rpma_conn_req_new(end->peer, address, port, NULL, &req));
	finish(end, req);
	for (int round = 0; round <= rounds; round++) {
		snprintf(end->memory, SIZE, round < rounds ? "round %d" : "end", round);
		MUST(rpma_send(end->conn, end->mr, 0, SIZE, RPMA_F_COMPLETION_ALWAYS, NULL));
		if (round == rounds) {
			next_completion(end);
			break;
		}
		early += next_completion(end) != IBV_WC_SEND;
		next_completion(end);
		if (memcmp(end->memory, end->memory + SIZE, SIZE)) {
			fprintf(stderr, "order: the answer of round %d differs\n", round);
			exit(1);
		}
		MUST(rpma_recv(end->conn, end->mr, SIZE, SIZE, NULL));
	}
	MUST(rpma_conn_disconnect(end->conn));
	MUST(rpma_conn_next_event(end->conn, &event));
	printf("%d of %d answers before the completion of their SEND\n", early, rounds);
}

int main(int argc, char **argv)
{
	static struct end end;

	if (argc < 3)
		return 2;
	if (argc == 3)
		serve(&end, argv[1], argv[2]);
	else
		ask(&end, argv[1], argv[2], atoi(argv[3]));
	if (argc == 3)
		MUST(rpma_conn_disconnect(end.conn));
	MUST(rpma_conn_delete(&end.conn));
	MUST(rpma_mr_dereg(&end.mr));
	MUST(rpma_peer_delete(&end.peer));
	return 0;
}
