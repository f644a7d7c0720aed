/*
 * exercise: random operations of all kinds over one RC queue pair, in both directions at once, checked against a model.
 *
 *     exercise [-d DEVICE] [-x GID_INDEX] [-p TCP_PORT] [-n OPERATIONS] [-s SEED] [-e] [HOST]
 *
 * Each end posts N operations: SEND and WRITE with and without immediate data, READ, compare-and-swap, fetch-and-add; 0 to
 * 128 KiB, 1 to 4 SGEs, inline or not, signaled or not. The seed determines the list of operations, so each end can compute the
 * peer's list: the receiver knows which message comes next, with which bytes; the requester keeps a model of the peer's memory
 * after its WRITEs and atomics. Checks: each signaled completion comes exactly once and in order, with the right opcode and
 * length; every byte received, read or returned by an atomic; at the end the peer's memory against the model. The program
 * is ended by SIGALRM after LIMIT_SECONDS.
 *
 * Memory of one end, in one region:
 *   source   fixed random bytes, gathered by SEND and WRITE
 *   constant fixed random bytes, the target of the peer's READs
 *   written  target of the peer's WRITEs
 *   words    target of the peer's atomics
 *   slots    one per outstanding request: results of READs and atomics
 *   receives one buffer per posted receive
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	LENGTH_MAX = 128 << 10, PIECES_MAX = 4, DEPTH = 32, RECEIVES = 64, INLINE_MAX = 64,
	AREA = 1 << 20, WORDS = 256, LIMIT_SECONDS = 120,
};

enum kind { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, CAS, ADD, KINDS };

static const struct { enum ibv_wr_opcode wr; enum ibv_wc_opcode wc; } table[KINDS] = {
	[SEND] = { IBV_WR_SEND, IBV_WC_SEND },
	[SEND_IMM] = { IBV_WR_SEND_WITH_IMM, IBV_WC_SEND },
	[WRITE] = { IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE },
	[WRITE_IMM] = { IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE },
	[READ] = { IBV_WR_RDMA_READ, IBV_WC_RDMA_READ },
	[CAS] = { IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WC_COMP_SWAP },
	[ADD] = { IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WC_FETCH_ADD },
};

struct op {
	enum kind kind;
	uint32_t imm, length, target; /* target: offset in the peer's area, or word */
	unsigned pieces;
	uint32_t piece_offset[PIECES_MAX], piece_length[PIECES_MAX];
	uint64_t operand;
	int use_inline, fence, signaled, swap_hits;
};

struct memory {
	uint8_t source[AREA], constant[AREA], written[AREA];
	uint64_t words[WORDS];
	uint8_t slots[DEPTH][LENGTH_MAX];
	uint8_t receives[RECEIVES][LENGTH_MAX];
};

struct address {
	uint64_t base;
	uint32_t rkey, qpn, psn;
	uint8_t gid[16];
};

/* The peer's memory and list of operations, computed from the seed. */
struct replay {
	uint64_t rng;
	uint64_t left;
};

static struct memory *mine;
static uint8_t *peer_source, *peer_constant, *model_written;
static uint64_t model_words[WORDS];
static struct op outstanding[DEPTH];
static struct ibv_context *context;
static struct ibv_qp *qp;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct address here, there;
static uint64_t total = 10000, seed = 1;
static int tcp = -1, gid_index, events;

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "exercise: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	exit(1);
}

/* ---- randomness */

static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

static void fill(uint8_t *bytes, size_t length, uint64_t state)
{
	for (size_t i = 0; i < length; i += 8) {
		uint64_t word = next(&state);
		memcpy(bytes + i, &word, 8);
	}
}

static uint32_t random_length(uint64_t *rng)
{
	switch (next(rng) % 8) {
	case 0: return 0;
	case 1: return next(rng) % 64;
	case 2: case 3: return next(rng) % 4096;
	case 4: return 1024u << (next(rng) % 5);
	case 5: case 6: return next(rng) % 20000;
	default: return next(rng) % (LENGTH_MAX + 1);
	}
}

static struct op random_op(uint64_t *rng)
{
	struct op op = { .kind = next(rng) % KINDS };
	uint32_t left;

	op.imm = next(rng);
	op.length = op.kind >= CAS ? 8 : random_length(rng);
	op.target = op.kind >= CAS ? next(rng) % WORDS : next(rng) % (AREA - op.length);
	op.operand = next(rng);
	op.swap_hits = next(rng) % 2;
	op.pieces = op.kind >= CAS ? 1 : 1 + next(rng) % PIECES_MAX;
	left = op.length;
	for (unsigned i = 0; i < op.pieces; i++) {
		op.piece_length[i] = i + 1 == op.pieces ? left : next(rng) % (left + 1);
		op.piece_offset[i] = next(rng) % (AREA - op.piece_length[i]);
		left -= op.piece_length[i];
	}
	op.use_inline = op.kind <= WRITE_IMM && op.length <= INLINE_MAX && next(rng) % 2;
	op.fence = next(rng) % 8 == 0;
	op.signaled = next(rng) % 4 != 0;
	return op;
}

static int takes_receive(enum kind kind)
{
	return kind == SEND || kind == SEND_IMM || kind == WRITE_IMM;
}

/* ---- TCP connection for setup */

static void tcp_connect(const char *host, const char *port)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE, .ai_family = host ? AF_UNSPEC : AF_INET6 }, *list;
	int one = 1, listener;

	if (getaddrinfo(host, port, &hints, &list))
		fail("cannot resolve %s", host ? host : port);
	if (host) {
		tcp = socket(list->ai_family, SOCK_STREAM, 0);
		if (connect(tcp, list->ai_addr, list->ai_addrlen))
			fail("connect: %s", strerror(errno));
	} else {
		listener = socket(list->ai_family, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(listener, list->ai_addr, list->ai_addrlen) || listen(listener, 1))
			fail("listen: %s", strerror(errno));
		tcp = accept(listener, NULL, NULL);
		close(listener);
	}
	freeaddrinfo(list);
	if (tcp < 0)
		fail("accept: %s", strerror(errno));
}

static void tcp_send(const void *bytes, size_t length)
{
	for (const char *p = bytes; length;) {
		ssize_t n = send(tcp, p, length, MSG_NOSIGNAL);
		if (n <= 0)
			fail("the other end is gone");
		p += n;
		length -= n;
	}
}

static void tcp_receive(void *bytes, size_t length)
{
	for (char *p = bytes; length;) {
		ssize_t n = recv(tcp, p, length, 0);
		if (n <= 0)
			fail("the other end is gone");
		p += n;
		length -= n;
	}
}

/* ---- verbs objects */

static void open_device(const char *name)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (int i = 0; list && i < count && !context; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	if (!context)
		fail("cannot open %s", name);
}

static void make_objects(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { DEPTH, RECEIVES, PIECES_MAX, 1, INLINE_MAX },
	};

	if (events)
		channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, DEPTH + RECEIVES, NULL, channel, 0);
	if (!pd || !cq || (events && !channel))
		fail("cannot make a protection domain and a completion queue: %s", strerror(errno));
	if (posix_memalign((void **)&mine, 4096, sizeof *mine))
		fail("no memory");
	memset(mine, 0, sizeof *mine);
	mr = ibv_reg_mr(pd, mine, sizeof *mine, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	if (!mr || !qp)
		fail("cannot make a region and a queue pair: %s", strerror(errno));
}

static void join(void)
{
	struct ibv_port_attr port;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int error;

	if (ibv_query_port(context, 1, &port))
		fail("ibv_query_port");
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (error)
		fail("INIT: %s", strerror(error));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = there.qpn;
	attr.rq_psn = there.psn;
	attr.sq_psn = here.psn;
	attr.max_dest_rd_atomic = attr.max_rd_atomic = 8;
	attr.min_rnr_timer = 6;
	attr.ah_attr = (struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index, .hop_limit = 64 } };
	memcpy(attr.ah_attr.grh.dgid.raw, there.gid, 16);
	error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (error)
		fail("RTR: %s", strerror(error));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	if (error)
		fail("RTS: %s", strerror(error));
}

/* ---- requester */

static void post_receive(uint64_t slot)
{
	struct ibv_sge sge = { (uintptr_t)mine->receives[slot], LENGTH_MAX, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(qp, &wr, &bad);

	if (error)
		fail("ibv_post_recv: %s", strerror(error));
}

static uint64_t remote(const void *local)
{
	return there.base + ((const uint8_t *)local - (const uint8_t *)mine);
}

/* The SGEs of a READ fill its slot back to front, so that a wrong order of SGEs is noticed. */
static uint32_t slot_offset(const struct op *op, unsigned piece)
{
	uint32_t after = 0;

	for (unsigned i = piece + 1; i < op->pieces; i++)
		after += op->piece_length[i];
	return after;
}

static void apply_to_model(struct op *op)
{
	uint32_t at = op->target;

	if (op->kind != WRITE && op->kind != WRITE_IMM)
		return;
	for (unsigned i = 0; i < op->pieces; i++) {
		memcpy(model_written + at, mine->source + op->piece_offset[i], op->piece_length[i]);
		at += op->piece_length[i];
	}
}

static void post(uint64_t number, struct op *op, int force_signal)
{
	struct ibv_sge sge[PIECES_MAX];
	struct ibv_send_wr wr = { .wr_id = number, .sg_list = sge, .num_sge = op->pieces, .opcode = table[op->kind].wr }, *bad;
	uint8_t *slot = mine->slots[number % DEPTH];
	int error, local_source = op->kind <= WRITE_IMM;

	op->signaled |= force_signal;
	for (unsigned i = 0; i < op->pieces; i++) {
		uint8_t *start = local_source ? mine->source + op->piece_offset[i] : slot + slot_offset(op, i);
		sge[i] = (struct ibv_sge){ (uintptr_t)start, op->piece_length[i], mr->lkey };
	}
	if (op->length == 0)
		wr.num_sge = 0;
	wr.send_flags = (op->signaled ? IBV_SEND_SIGNALED : 0) | (op->use_inline ? IBV_SEND_INLINE : 0) | (op->fence ? IBV_SEND_FENCE : 0);
	wr.imm_data = htonl(op->imm);
	if (op->kind >= CAS) {
		wr.wr.atomic.remote_addr = remote(&mine->words[op->target]);
		wr.wr.atomic.rkey = there.rkey;
		/* Half of the swaps compare with the value that the word will have, the others with a different value. */
		wr.wr.atomic.compare_add = op->kind == ADD ? op->operand : model_words[op->target] + !op->swap_hits;
		wr.wr.atomic.swap = op->operand;
		op->imm = 0;
		memset(slot, 0xee, 8);
		uint64_t old = model_words[op->target];
		model_words[op->target] = op->kind == ADD ? old + op->operand : op->swap_hits ? op->operand : old;
		op->operand = old; /* the value to be returned */
	} else {
		wr.wr.rdma.remote_addr = remote(op->kind == READ ? mine->constant + op->target : mine->written + op->target);
		wr.wr.rdma.rkey = there.rkey;
	}
	apply_to_model(op);
	error = ibv_post_send(qp, &wr, &bad);
	if (error)
		fail("ibv_post_send of operation %lu: %s", (unsigned long)number, strerror(error));
}

static void check_result(uint64_t number, const struct op *op)
{
	const uint8_t *slot = mine->slots[number % DEPTH];
	uint32_t at = op->target;

	if (op->kind >= CAS) {
		uint64_t got;
		memcpy(&got, slot, 8);
		if (got != op->operand)
			fail("operation %lu: atomic returned %#lx instead of %#lx", (unsigned long)number, (unsigned long)got, (unsigned long)op->operand);
	}
	for (unsigned i = 0; op->kind == READ && i < op->pieces; i++) {
		if (memcmp(slot + slot_offset(op, i), peer_constant + at, op->piece_length[i]))
			fail("operation %lu: READ of %u bytes, piece %u is wrong", (unsigned long)number, op->length, i);
		at += op->piece_length[i];
	}
}

/* ---- responder */

static void check_receive(const struct ibv_wc *wc, struct replay *peer)
{
	struct op op;
	const uint8_t *bytes = mine->receives[wc->wr_id];
	int with_imm, is_write;

	do {
		if (!peer->left--)
			fail("a message that the peer did not send");
		op = random_op(&peer->rng);
	} while (!takes_receive(op.kind));
	with_imm = op.kind != SEND;
	is_write = op.kind == WRITE_IMM;
	if (wc->byte_len != op.length)
		fail("a message of %u bytes came as %u", op.length, wc->byte_len);
	if (wc->opcode != (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
		fail("a receive ended with opcode %d", wc->opcode);
	if (!!(wc->wc_flags & IBV_WC_WITH_IMM) != with_imm || (with_imm && wc->imm_data != htonl(op.imm)))
		fail("immediate data is wrong");
	for (unsigned i = 0; !is_write && i < op.pieces; i++) {
		if (memcmp(bytes, peer_source + op.piece_offset[i], op.piece_length[i]))
			fail("a message of %u bytes has wrong bytes in piece %u", op.length, i);
		bytes += op.piece_length[i];
	}
}

/* ---- main loop */

static uint64_t count_receives(uint64_t rng, uint64_t operations)
{
	uint64_t count = 0;

	while (operations--) {
		struct op op = random_op(&rng);
		count += takes_receive(op.kind);
	}
	return count;
}

static void wait_for_event(void)
{
	struct ibv_cq *which;
	void *user;

	if (ibv_get_cq_event(channel, &which, &user))
		fail("ibv_get_cq_event: %s", strerror(errno));
	ibv_ack_cq_events(which, 1);
}

static void exercise(uint64_t my_rng, struct replay peer)
{
	uint64_t posted = 0, retired = 0, expected = count_receives(peer.rng, peer.left), received = 0;
	struct ibv_wc wc[16];

	while (retired < total || received < expected) {
		while (posted < total && posted - retired < DEPTH) {
			struct op *op = &outstanding[posted % DEPTH];
			*op = random_op(&my_rng);
			post(posted, op, posted % (DEPTH / 2) == DEPTH / 2 - 1 || posted + 1 == total);
			posted++;
		}
		int got = ibv_poll_cq(cq, 16, wc);
		if (got < 0)
			fail("ibv_poll_cq");
		if (!got && events) {
			if (ibv_req_notify_cq(cq, 0))
				fail("ibv_req_notify_cq");
			got = ibv_poll_cq(cq, 16, wc);
			if (!got) {
				wait_for_event();
				continue;
			}
		}
		for (int i = 0; i < got; i++) {
			if (wc[i].status != IBV_WC_SUCCESS)
				fail("a completion says %s, vendor_err %u", ibv_wc_status_str(wc[i].status), wc[i].vendor_err);
			if (wc[i].opcode & IBV_WC_RECV) {
				check_receive(&wc[i], &peer);
				post_receive(wc[i].wr_id);
				received++;
				continue;
			}
			while (retired < wc[i].wr_id && !outstanding[retired % DEPTH].signaled)
				check_result(retired, &outstanding[retired % DEPTH]), retired++;
			struct op *op = &outstanding[retired % DEPTH];
			if (wc[i].wr_id != retired || retired >= posted)
				fail("completion of operation %lu where %lu was due", (unsigned long)wc[i].wr_id, (unsigned long)retired);
			if (wc[i].opcode != table[op->kind].wc)
				fail("operation %lu ended with opcode %d", (unsigned long)retired, wc[i].opcode);
			check_result(retired++, op);
		}
	}
}

static void compare_memories(int first)
{
	static uint64_t words[WORDS];
	uint8_t *theirs = malloc(AREA);

	if (!theirs)
		fail("no memory");
	/* One end sends first: if both sent a megabyte at once, both would block on full socket buffers. */
	for (int turn = 0; turn < 2; turn++) {
		if (turn == !first) {
			tcp_send(model_written, AREA);
			tcp_send(model_words, sizeof model_words);
		} else {
			tcp_receive(theirs, AREA);
			tcp_receive(words, sizeof words);
		}
	}
	for (int i = 0; i < AREA; i++)
		if (theirs[i] != mine->written[i])
			fail("written memory differs from the model at byte %d", i);
	if (memcmp(words, mine->words, sizeof words))
		fail("atomic words differ from the model");
	free(theirs);
}

static void parse(int argc, char **argv, const char **device, const char **port)
{
	for (int c; (c = getopt(argc, argv, "d:x:p:n:s:e")) != -1;) {
		switch (c) {
		case 'd': *device = optarg; break;
		case 'x': gid_index = atoi(optarg); break;
		case 'p': *port = optarg; break;
		case 'n': total = strtoull(optarg, NULL, 0); break;
		case 's': seed = strtoull(optarg, NULL, 0); break;
		case 'e': events = 1; break;
		default: exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	const char *device = "burst0", *port = "18515", *host;
	char byte = 'x';
	uint64_t me, other;

	parse(argc, argv, &device, &port);
	host = optind < argc ? argv[optind] : NULL;
	alarm(LIMIT_SECONDS);
	open_device(device);
	make_objects();

	me = seed * 1000003 + (host ? 1 : 2);
	other = seed * 1000003 + (host ? 2 : 1);
	peer_source = malloc(AREA);
	peer_constant = malloc(AREA);
	model_written = calloc(1, AREA);
	if (!peer_source || !peer_constant || !model_written)
		fail("no memory");
	fill(mine->source, AREA, me ^ 0x51);
	fill(mine->constant, AREA, me ^ 0x52);
	fill(peer_source, AREA, other ^ 0x51);
	fill(peer_constant, AREA, other ^ 0x52);

	here = (struct address){ .base = (uintptr_t)mine, .rkey = mr->rkey, .qpn = qp->qp_num, .psn = me & 0xffffff };
	if (ibv_query_gid(context, 1, gid_index, (union ibv_gid *)here.gid))
		fail("ibv_query_gid: %s", strerror(errno));
	tcp_connect(host, port);
	tcp_send(&here, sizeof here);
	tcp_receive(&there, sizeof there);
	join();
	for (int i = 0; i < RECEIVES; i++)
		post_receive(i);
	if (events && ibv_req_notify_cq(cq, 0))
		fail("ibv_req_notify_cq");
	tcp_send(&byte, 1);
	tcp_receive(&byte, 1);

	exercise(me ^ 0x53, (struct replay){ .rng = other ^ 0x53, .left = total });
	tcp_send(&byte, 1);
	tcp_receive(&byte, 1);
	compare_memories(host != NULL);
	tcp_send(&byte, 1);
	tcp_receive(&byte, 1);

	if (ibv_destroy_qp(qp) || ibv_dereg_mr(mr) || ibv_destroy_cq(cq))
		fail("taking things down: %s", strerror(errno));
	printf("%lu operations asked, %lu answered, every byte and completion right\n", (unsigned long)total, (unsigned long)total);
	return 0;
}
