/* Load for a Valkey server over RDMA: SET after SET over one connection, until the time is over.
 * usage: valkey_writer ADDRESS PORT KEYS SECONDS
 *
 * The n-th command sets key "k<n mod KEYS>" to "<n>:" and letters that follow from n, so that the values of all keys name the moment at
 * which they were read: in a snapshot they are KEYS successive numbers. Each reply is awaited before the number counts as acknowledged,
 * with a window of commands on their way. Progress is written as "acknowledged <n>".
 *
 * Valkey's protocol over RDMA: each end registers a buffer and announces it by a command of 32 bytes; the other end fills it from its
 * start by RDMA WRITEs with immediate data, which carries their length. A buffer that is full and read is announced again. */

#include <arpa/inet.h>
#include <endian.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RECEIVES 512
#define BUFFER (256 << 10)
#define VALUE_MAX 8192
#define WINDOW 16

struct announcement {
	uint16_t opcode; /* 3 */
	uint8_t reserved[14];
	uint64_t address;
	uint32_t length, key;
} __attribute__((packed));

static struct rdma_cm_id *id;
static struct ibv_mr *commands_mr, *in_mr, *out_mr;
static struct announcement commands[RECEIVES + 1];
static char in[BUFFER], out[BUFFER];
static uint64_t remote;
static uint32_t remote_key, remote_length, sent_at, out_at, unsignalled;
static uint32_t arrived, read_at;

static void check(int right, const char *what)
{
	if (!right) {
		fprintf(stderr, "valkey_writer: %s\n", what);
		exit(1);
	}
}

static void post_receive(uint64_t slot)
{
	struct ibv_sge sge = {(uintptr_t)&commands[slot], sizeof(commands[slot]), commands_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;

	check(!ibv_post_recv(id->qp, &wr, &bad), "a receive is refused");
}

static void announce(void)
{
	struct announcement *mine = &commands[RECEIVES];
	struct ibv_sge sge = {(uintptr_t)mine, sizeof(*mine), commands_mr->lkey};
	struct ibv_send_wr wr = {.wr_id = RECEIVES, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;

	*mine = (struct announcement){htons(3), {0}, htobe64((uintptr_t)in), htonl(BUFFER), htonl(in_mr->rkey)};
	arrived = read_at = 0;
	check(!ibv_post_send(id->qp, &wr, &bad), "a SEND is refused");
}

/* Takes all completions that are there; their number. */
static int take(void)
{
	struct ibv_wc wc;
	int taken = 0;

	while (ibv_poll_cq(id->qp->send_cq, 1, &wc) == 1) {
		taken++;
		check(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
		if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			arrived += ntohl(wc.imm_data);
			post_receive(wc.wr_id);
		} else if (wc.opcode == IBV_WC_RECV) {
			struct announcement *theirs = &commands[wc.wr_id];

			if (theirs->opcode == htons(3)) {
				remote = be64toh(theirs->address);
				remote_length = ntohl(theirs->length);
				remote_key = ntohl(theirs->key);
				sent_at = 0;
			}
			post_receive(wc.wr_id);
		}
	}
	return taken;
}

/* Writes bytes into the server's buffer, as far as there is room; the number written. */
static uint32_t write_some(const char *bytes, uint32_t length)
{
	uint32_t room = remote_length - sent_at, some = length < room ? length : room;
	struct ibv_sge sge = {.length = some, .lkey = out_mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(some)}, *bad;

	if (!some)
		return 0;
	/* What the window of commands holds is far less than the buffer: bytes on their way are not overwritten. */
	if (out_at + some > BUFFER)
		out_at = 0;
	memcpy(out + out_at, bytes, some);
	sge.addr = (uintptr_t)(out + out_at);
	out_at += some;
	wr.wr.rdma.remote_addr = remote + sent_at;
	wr.wr.rdma.rkey = remote_key;
	wr.send_flags = ++unsignalled % 16 ? 0 : IBV_SEND_SIGNALED;
	check(!ibv_post_send(id->qp, &wr, &bad), "an RDMA WRITE is refused");
	sent_at += some;
	return some;
}

static uint32_t command(char *text, uint64_t number, uint64_t keys)
{
	static char value[VALUE_MAX];
	uint64_t key = number % keys;
	int length = sprintf(value, "%lu:", number), more = 16 + key * 37 % 8000;

	for (int i = 0; i < more; i++)
		value[length++] = 'a' + (number + i) % 26;
	return sprintf(text, "*3\r\n$3\r\nSET\r\n$6\r\nk%05lu\r\n$%d\r\n%.*s\r\n", key, length, length, value);
}

static void connect_to(const char *address, const char *port)
{
	struct addrinfo *found;
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 512, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1}};
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};

	check(!getaddrinfo(address, port, NULL, &found), "no such address");
	check(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	check(!rdma_resolve_addr(id, NULL, found->ai_addr, 5000), "rdma_resolve_addr");
	check(!rdma_resolve_route(id, 5000), "rdma_resolve_route");
	attributes.send_cq = attributes.recv_cq = ibv_create_cq(id->verbs, 2048, NULL, NULL, 0);
	check(attributes.send_cq && !rdma_create_qp(id, NULL, &attributes), "rdma_create_qp");
	commands_mr = ibv_reg_mr(id->pd, commands, sizeof(commands), IBV_ACCESS_LOCAL_WRITE);
	in_mr = ibv_reg_mr(id->pd, in, BUFFER, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	out_mr = ibv_reg_mr(id->pd, out, BUFFER, IBV_ACCESS_LOCAL_WRITE);
	check(commands_mr && in_mr && out_mr, "ibv_reg_mr");
	for (int slot = 0; slot < RECEIVES; slot++)
		post_receive(slot);
	check(!rdma_connect(id, &parameters), "rdma_connect");
	announce();
	freeaddrinfo(found);
}

/* Counts replies "+OK\r\n" in what has arrived; bytes of a partial one stay for later. */
static uint64_t replies(void)
{
	static const char ok[] = "+OK\r\n";
	static int matched;
	uint64_t count = 0;

	for (; read_at < arrived; read_at++) {
		check(in[read_at] == ok[matched], "a reply is not +OK");
		if (++matched == 5) {
			matched = 0;
			count++;
		}
	}
	if (read_at == BUFFER)
		announce();
	return count;
}

int main(int argc, char **argv)
{
	static char text[VALUE_MAX + 256];
	uint64_t sent = 0, acknowledged = 0, keys, shown = 0;
	uint32_t length = 0, at = 0;
	time_t end;

	check(argc == 5, "usage: valkey_writer ADDRESS PORT KEYS SECONDS");
	keys = strtoul(argv[3], NULL, 10);
	connect_to(argv[1], argv[2]);
	end = time(NULL) + atoi(argv[4]);
	while (time(NULL) < end || acknowledged < sent || at < length) {
		int taken = take();

		acknowledged += replies();
		if (at == length && sent < acknowledged + WINDOW && time(NULL) < end) {
			length = command(text, sent++, keys);
			at = 0;
		}
		at += write_some(text + at, length - at);
		if (acknowledged >= shown + 100) {
			printf("acknowledged %lu\n", shown = acknowledged);
			fflush(stdout);
		}
		if (!taken)
			poll(NULL, 0, 0);
	}
	rdma_disconnect(id);
	printf("checked %lu\n", acknowledged);
}
