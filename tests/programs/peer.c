/*
 * peer: executes verbs calls that it reads from standard input, so that a test controls each call of one end of a connection.
 *
 * A line is a command and `key=value` words; each gets one line of answer: `key=value` words, or `error SENTENCE`. Objects
 * have names given by the test (`name=`). Numbers are decimal or 0x hexadecimal. The table `commands` below lists the commands
 * with their arguments. 64-bit little endian hosts only; one thread. Arguments are passed to verbs unchecked, valid or not.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MAX = 32, NAME_MAX_BYTES = 24, OBJECTS_MAX = 512, CHAIN_MAX = 128, CQ_DEPTH = 4096 };

enum kind { FREE, REGION, QUEUE, SHARED, HANDLE, WINDOW };

struct object {
	enum kind kind;
	char name[NAME_MAX_BYTES];
	union {
		struct ibv_mr *region;
		struct ibv_qp *queue;
		struct ibv_srq *shared;
		struct ibv_ah *handle;
		struct ibv_mw *window;
	};
	uint8_t *bytes;
};

static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *completions;
static int gid_index;
static struct object objects[OBJECTS_MAX];
static char *words[WORDS_MAX];
static int word_count;

/* Work requests that wait for the end of a chain. */
static struct ibv_send_wr chain[CHAIN_MAX];
static struct ibv_sge pieces[CHAIN_MAX];
static int chain_length, chain_wanted;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
	fflush(stdout);
}

/* Prints the answer for a call that returned the errno `code`; a negative `code` means errno itself. */
static void result(const char *what, int code)
{
	if (code == 0)
		say("ok");
	else
		say("error %s: %s", what, strerror(code < 0 ? errno : code));
}

static const char *word(const char *key)
{
	size_t length = strlen(key);

	for (int i = 1; i < word_count; i++)
		if (!strncmp(words[i], key, length) && words[i][length] == '=')
			return words[i] + length + 1;
	return NULL;
}

static uint64_t number(const char *key, uint64_t otherwise)
{
	const char *text = word(key);

	return text ? strtoull(text, NULL, 0) : otherwise;
}

static int is(const char *key, const char *value)
{
	const char *text = word(key);

	return text && !strcmp(text, value);
}

/* The object that the word `key` names. If there is none of this kind: prints an error and returns NULL. */
static struct object *named(const char *key, enum kind kind)
{
	const char *name = word(key);

	for (int i = 0; name && i < OBJECTS_MAX; i++)
		if (objects[i].kind == kind && !strcmp(objects[i].name, name))
			return &objects[i];
	say("error no such object: %s=%s", key, name ? name : "(missing)");
	return NULL;
}

static struct object *new_object(enum kind kind)
{
	const char *name = word("name");

	for (int i = 0; name && i < OBJECTS_MAX; i++)
		if (objects[i].kind == FREE) {
			objects[i].kind = kind;
			snprintf(objects[i].name, NAME_MAX_BYTES, "%s", name);
			return &objects[i];
		}
	return NULL;
}

/* Letters: l local write, r remote read, w remote write, a remote atomic, b window bind. */
static int rights(const char *otherwise)
{
	const char *letters = word("rights") ? word("rights") : otherwise;
	int bits = 0;

	for (; *letters; letters++)
		bits |= *letters == 'l' ? IBV_ACCESS_LOCAL_WRITE : *letters == 'r' ? IBV_ACCESS_REMOTE_READ :
			*letters == 'w' ? IBV_ACCESS_REMOTE_WRITE : *letters == 'a' ? IBV_ACCESS_REMOTE_ATOMIC :
			*letters == 'b' ? IBV_ACCESS_MW_BIND : 0;
	return bits;
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void do_open(void)
{
	int count = 0;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct ibv_port_attr port;
	union ibv_gid gid;
	char text[INET6_ADDRSTRLEN];

	for (int i = 0; list && i < count; i++)
		if (is("device", ibv_get_device_name(list[i])))
			context = ibv_open_device(list[i]);
	if (!context) {
		say("error no such device");
		return;
	}
	gid_index = number("gid", 0);
	domain = ibv_alloc_pd(context);
	completions = ibv_create_cq(context, CQ_DEPTH, NULL, NULL, 0);
	if (!domain || !completions || ibv_query_port(context, 1, &port) || ibv_query_gid(context, 1, gid_index, &gid))
		result("open", -1);
	else
		say("gid=%s mtu=%d", inet_ntop(AF_INET6, &gid, text, sizeof text), 128 << port.active_mtu);
}

static void do_region(void)
{
	size_t length = number("bytes", 4096);
	struct object *object = new_object(REGION);

	if (!object || posix_memalign((void **)&object->bytes, 4096, length)) {
		say("error no room");
		return;
	}
	memset(object->bytes, 0, length);
	object->region = ibv_reg_mr(domain, object->bytes, length, rights("lrwa"));
	if (object->region)
		say("addr=%#llx rkey=%#x lkey=%#x", (unsigned long long)(uintptr_t)object->bytes, object->region->rkey, object->region->lkey);
	else
		result("reg_mr", -1);
}

/* Byte i of a pattern depends on i and on the seed; its period is no power of two, so that misplaced pages are noticed. */
static void do_fill(void)
{
	struct object *object = named("region", REGION);

	if (!object)
		return;
	for (uint64_t i = 0, count = number("bytes", 0); i < count; i++)
		object->bytes[number("at", 0) + i] = (uint8_t)(number("seed", 1) * 37 + i * 7 + i / 251);
	say("ok");
}

/* FNV-1a of a range. */
static void do_sum(void)
{
	struct object *object = named("region", REGION);
	uint64_t sum = 0xcbf29ce484222325;

	if (!object)
		return;
	for (uint64_t i = 0, at = number("at", 0), count = number("bytes", 0); i < count; i++)
		sum = (sum ^ object->bytes[at + i]) * 0x100000001b3;
	say("sum=%#llx", (unsigned long long)sum);
}

static void do_hex(void)
{
	struct object *object = named("region", REGION);

	if (!object)
		return;
	printf("hex=");
	for (uint64_t i = 0, at = number("at", 0), count = number("bytes", 0); i < count; i++)
		printf("%02x", object->bytes[at + i]);
	say("%s", "");
}

static void do_shared(void)
{
	struct object *object = new_object(SHARED);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = number("depth", 128), .max_sge = 1 } };

	object->shared = ibv_create_srq(domain, &attr);
	result("create_srq", object->shared ? 0 : -1);
}

static void do_queue(void)
{
	struct object *object = new_object(QUEUE), *shared = NULL;
	struct ibv_qp_init_attr attr = {
		.send_cq = completions, .recv_cq = completions,
		.qp_type = is("kind", "ud") ? IBV_QPT_UD : is("kind", "uc") ? IBV_QPT_UC : IBV_QPT_RC,
		.cap = { .max_send_wr = CHAIN_MAX, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
	};

	if (word("srq")) {
		shared = named("srq", SHARED);
		if (!shared)
			return;
		attr.srq = shared->shared;
	}
	object->queue = ibv_create_qp(domain, &attr);
	if (object->queue)
		say("qpn=%#x", object->queue->qp_num);
	else
		result("create_qp", -1);
}

static void do_init(void)
{
	struct object *object = named("qp", QUEUE);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = number("qkey", 0x11111111) };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (!object)
		return;
	attr.qp_access_flags = rights("lrwa");
	mask |= object->queue->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	result("INIT", ibv_modify_qp(object->queue, &attr, mask));
}

static struct ibv_ah_attr address(void)
{
	struct ibv_ah_attr attr = {
		.is_global = 1, .port_num = 1,
		.grh = { .sgid_index = gid_index, .hop_limit = 64, .traffic_class = number("tclass", 0), .flow_label = number("flow", 0) },
	};

	if (word("gid"))
		inet_pton(AF_INET6, word("gid"), &attr.grh.dgid);
	return attr;
}

static enum ibv_mtu path_mtu(void)
{
	int mtu = number("mtu", 1024);

	return mtu >= 4096 ? IBV_MTU_4096 : mtu >= 2048 ? IBV_MTU_2048 : mtu >= 1024 ? IBV_MTU_1024 : mtu >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

static void do_rtr(void)
{
	struct object *object = named("qp", QUEUE);
	int mask = IBV_QP_STATE;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .ah_attr = address(), .path_mtu = path_mtu(), .dest_qp_num = number("peer", 0),
		.rq_psn = number("psn", 0), .max_dest_rd_atomic = number("reads", 16), .min_rnr_timer = number("rnr_timer", 12),
	};

	if (!object)
		return;
	if (object->queue->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (object->queue->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	result("RTR", ibv_modify_qp(object->queue, &attr, mask));
}

static void do_rts(void)
{
	struct object *object = named("qp", QUEUE);
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS, .sq_psn = number("psn", 0), .timeout = number("timeout", 16), .retry_cnt = number("retries", 7),
		.rnr_retry = number("rnr_retries", 7), .max_rd_atomic = number("reads", 16),
	};

	if (!object)
		return;
	if (object->queue->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	result("RTS", ibv_modify_qp(object->queue, &attr, mask));
}

static void do_state(void)
{
	struct object *object = named("qp", QUEUE);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;

	if (!object)
		return;
	if (word("to")) {
		attr.qp_state = is("to", "reset") ? IBV_QPS_RESET : IBV_QPS_ERR;
		result("state", ibv_modify_qp(object->queue, &attr, IBV_QP_STATE));
	} else if (ibv_query_qp(object->queue, &attr, IBV_QP_STATE, &init)) {
		result("query_qp", -1);
	} else {
		say("state=%d", attr.qp_state);
	}
}

static void do_handle(void)
{
	struct ibv_ah_attr attr = address();
	struct object *object = new_object(HANDLE);

	object->handle = ibv_create_ah(domain, &attr);
	result("create_ah", object->handle ? 0 : -1);
}

static void do_window(void)
{
	struct object *object = new_object(WINDOW);

	object->window = ibv_alloc_mw(domain, IBV_MW_TYPE_2);
	result("alloc_mw", object->window ? 0 : -1);
}

static void do_receive(void)
{
	struct object *to = word("srq") ? named("srq", SHARED) : named("qp", QUEUE), *region = to ? named("region", REGION) : NULL;

	if (!region)
		return;
	struct ibv_sge piece = { (uintptr_t)region->bytes + number("at", 0), number("bytes", 0), region->region->lkey };
	struct ibv_recv_wr request = { .wr_id = number("id", 0), .sg_list = &piece, .num_sge = piece.length ? 1 : 0 }, *bad;

	result("post_recv", word("srq") ? ibv_post_srq_recv(to->shared, &request, &bad) : ibv_post_recv(to->queue, &request, &bad));
}

/* The next `count` work requests of one queue pair are posted by one call. */
static void do_chain(void)
{
	chain_wanted = number("count", 1);
	chain_length = 0;
	if (chain_wanted > CHAIN_MAX)
		chain_wanted = 0;
	say(chain_wanted ? "ok" : "error too long");
}

static const struct { const char *name; enum ibv_wr_opcode code; } opcodes[] = {
	{ "send", IBV_WR_SEND }, { "send_imm", IBV_WR_SEND_WITH_IMM }, { "send_inv", IBV_WR_SEND_WITH_INV },
	{ "write", IBV_WR_RDMA_WRITE }, { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "read", IBV_WR_RDMA_READ },
	{ "cas", IBV_WR_ATOMIC_CMP_AND_SWP }, { "add", IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ "bind", IBV_WR_BIND_MW }, { "invalidate", IBV_WR_LOCAL_INV },
};

/* Fills the fields that depend on the operation. Returns 0, after printing an error, if a named object does not exist. */
static int operation(struct ibv_send_wr *request)
{
	struct object *region, *other;

	switch (request->opcode) {
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		request->invalidate_rkey = number("rkey", 0);
		break;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		request->wr.rdma.remote_addr = number("remote", 0);
		request->wr.rdma.rkey = number("rkey", 0);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		request->wr.atomic.remote_addr = number("remote", 0);
		request->wr.atomic.rkey = number("rkey", 0);
		request->wr.atomic.compare_add = number("operand", 0);
		request->wr.atomic.swap = number("swap", 0);
		break;
	case IBV_WR_BIND_MW:
		other = named("window", WINDOW);
		region = other ? named("region", REGION) : NULL;
		if (!region)
			return 0;
		request->bind_mw.mw = other->window;
		request->bind_mw.rkey = ibv_inc_rkey(other->window->rkey);
		request->bind_mw.bind_info = (struct ibv_mw_bind_info){
			region->region, (uintptr_t)region->bytes + number("at", 0), number("bytes", 0), rights("rwa"),
		};
		break;
	default:
		break;
	}
	if (word("imm"))
		request->imm_data = htonl(number("imm", 0));
	if (word("handle")) {
		other = named("handle", HANDLE);
		if (!other)
			return 0;
		request->wr.ud.ah = other->handle;
		request->wr.ud.remote_qpn = number("peer", 0);
		request->wr.ud.remote_qkey = number("qkey", 0x11111111);
	}
	return 1;
}

/* Flags: s solicited, f fence, i inline, u unsignaled. */
static int flags(void)
{
	int bits = IBV_SEND_SIGNALED;

	for (const char *letter = word("flags") ? word("flags") : ""; *letter; letter++)
		bits = *letter == 'u' ? bits & ~IBV_SEND_SIGNALED : bits | (*letter == 's' ? IBV_SEND_SOLICITED :
			*letter == 'f' ? IBV_SEND_FENCE : *letter == 'i' ? IBV_SEND_INLINE : 0);
	return bits;
}

static void post_chain(struct ibv_qp *queue)
{
	struct ibv_send_wr *bad, *last = &chain[chain_length - 1];

	for (struct ibv_send_wr *request = chain; request < last; request++)
		request->next = request + 1;
	last->next = NULL;
	chain_length = chain_wanted = 0;

	int code = ibv_post_send(queue, chain, &bad);

	/* The library sets the window's new key when the bind is posted. */
	if (!code && last->opcode == IBV_WR_BIND_MW) {
		last->bind_mw.mw->rkey = last->bind_mw.rkey;
		say("rkey=%#x", last->bind_mw.rkey);
	} else {
		result("post_send", code);
	}
}

static void do_post(void)
{
	struct object *queue = named("qp", QUEUE);
	struct object *region = queue && word("region") ? named("region", REGION) : NULL;
	struct ibv_send_wr *request = &chain[chain_length];
	struct ibv_sge *piece = &pieces[chain_length];
	int known = 0;

	if (!queue || (word("region") && !region))
		return;
	*request = (struct ibv_send_wr){ .wr_id = number("id", 0), .send_flags = flags() };
	for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++)
		if (is("op", opcodes[i].name)) {
			request->opcode = opcodes[i].code;
			known = 1;
		}
	if (!known) {
		say("error no such operation");
		return;
	}
	if (region && request->opcode != IBV_WR_BIND_MW && number("bytes", 0)) {
		*piece = (struct ibv_sge){ (uintptr_t)region->bytes + number("at", 0), number("bytes", 0), region->region->lkey };
		request->sg_list = piece;
		request->num_sge = 1;
	}
	if (!operation(request))
		return;
	if (++chain_length < chain_wanted)
		say("ok");
	else
		post_chain(queue->queue);
}

/* Prints one completion, or an error after `ms` milliseconds. */
static void do_poll(void)
{
	struct ibv_wc wc;
	double end = seconds() + number("ms", 10000) / 1e3;
	int got;

	while ((got = ibv_poll_cq(completions, 1, &wc)) == 0 && seconds() < end)
		usleep(100);
	if (got != 1) {
		say("error no completion");
	} else if (wc.status) {
		say("id=%llu status=%d vendor=%#x qpn=%#x", (unsigned long long)wc.wr_id, wc.status, wc.vendor_err, wc.qp_num);
	} else {
		say("id=%llu status=0 opcode=%d bytes=%u qpn=%#x from=%#x flags=%#x imm=%#x", (unsigned long long)wc.wr_id, wc.opcode, wc.byte_len,
		    wc.qp_num, wc.src_qp, wc.wc_flags,
		    wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : 0);
	}
}

/* Calls nothing for so long. */
static void do_compute(void)
{
	double end = seconds() + number("ms", 1000) / 1e3;

	while (seconds() < end)
		;
	say("ok");
}

static void do_event(void)
{
	struct pollfd wait = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&wait, 1, number("ms", 1000)) < 1 || ibv_get_async_event(context, &event)) {
		say("error no event");
		return;
	}
	say("event=%d", event.event_type);
	ibv_ack_async_event(&event);
}

static void do_drop(void)
{
	static const char *const keys[] = { [REGION] = "region", [QUEUE] = "qp", [SHARED] = "srq", [HANDLE] = "handle", [WINDOW] = "window" };

	for (int kind = REGION; kind <= WINDOW; kind++) {
		if (!word(keys[kind]))
			continue;
		struct object *object = named(keys[kind], kind);

		if (!object)
			return;
		object->kind = FREE;
		result("destroy", kind == REGION ? ibv_dereg_mr(object->region) : kind == QUEUE ? ibv_destroy_qp(object->queue) :
			kind == SHARED ? ibv_destroy_srq(object->shared) : kind == HANDLE ? ibv_destroy_ah(object->handle) :
			ibv_dealloc_mw(object->window));
		return;
	}
	say("error nothing named");
}

static const struct { const char *name; void (*work)(void); } commands[] = {
	{ "open", do_open },       /* device= gid=                                  -> gid= mtu= */
	{ "region", do_region },   /* name= bytes= rights=lrwab                     -> addr= rkey= lkey= */
	{ "fill", do_fill },       /* region= at= bytes= seed= */
	{ "sum", do_sum },         /* region= at= bytes=                            -> sum= */
	{ "hex", do_hex },         /* region= at= bytes=                            -> hex= */
	{ "shared", do_shared },   /* name= depth= */
	{ "queue", do_queue },     /* name= kind=rc|uc|ud srq=                      -> qpn= */
	{ "init", do_init },       /* qp= rights= qkey= */
	{ "rtr", do_rtr },         /* qp= peer= psn= gid= mtu= reads= rnr_timer= tclass= flow= */
	{ "rts", do_rts },         /* qp= psn= timeout= retries= rnr_retries= reads= */
	{ "state", do_state },     /* qp= to=error|reset                            -> state= */
	{ "handle", do_handle },   /* name= gid= */
	{ "window", do_window },   /* name= */
	{ "receive", do_receive }, /* qp=|srq= region= at= bytes= id= */
	{ "chain", do_chain },     /* count= */
	{ "post", do_post },       /* qp= op= region= at= bytes= remote= rkey= imm= operand= swap= window= handle= peer= qkey= flags= id= */
	{ "poll", do_poll },       /* ms=                                           -> id= status= … */
	{ "compute", do_compute }, /* ms= */
	{ "event", do_event },     /* ms=                                           -> event= */
	{ "drop", do_drop },       /* region=|qp=|srq=|handle=|window= */
};

int main(void)
{
	static char line[4096];

	while (fgets(line, sizeof line, stdin)) {
		size_t known = 0;

		word_count = 0;
		for (char *next = strtok(line, " \n"); next && word_count < WORDS_MAX; next = strtok(NULL, " \n"))
			words[word_count++] = next;
		if (!word_count)
			continue;
		while (known < sizeof commands / sizeof *commands && strcmp(commands[known].name, words[0]))
			known++;
		if (known == sizeof commands / sizeof *commands)
			say("error no such command: %s", words[0]);
		else if (known && !context)
			say("error open a device first");
		else
			commands[known].work();
	}
	return 0;
}
