/*
 * differential: runs behaviours, each in a child process, and prints their facts.
 *
 * usage: differential [--list] [NAME...]     (a NAME may end in *; default: all)
 */
#include "facts.h"
#include <fnmatch.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

/* Limits of a hang, in seconds: of a behaviour, and of waiting for one completion. */
enum { HANG_SECONDS = 90, NONE_SECONDS = 10 };

struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_cq *cq;
struct ibv_mr *mr;
uint8_t *area;
union ibv_gid gid;
int gid_index;
struct ibv_device_attr device;

static struct behaviour *behaviours;
static const char *current = "?";

void enter(struct behaviour *behaviour)
{
	behaviour->next = behaviours;
	behaviours = behaviour;
}

void fact(const char *key, const char *format, ...)
{
	va_list list;

	va_start(list, format);
	printf("%s.%s = ", current, key);
	vprintf(format, list);
	putchar('\n');
	va_end(list);
}

void at_least(const char *key, uint64_t value)
{
	printf("%s.%s >= %llu\n", current, key, (unsigned long long)value);
}

const char *errno_name(int code)
{
	const char *name = code ? strerrorname_np(code) : "ok";

	/* One number has two names. */
	return !name ? "unknown" : !strcmp(name, "ENOTSUP") ? "EOPNOTSUPP" : name;
}

void result(const char *key, int code)
{
	fact(key, "%s", errno_name(code < 0 ? errno : code));
}

void made(const char *key, const void *object)
{
	result(key, object ? 0 : errno);
}

const char *key_of(const char *format, ...)
{
	static char texts[4][96];
	static unsigned turn;
	char *text = texts[turn++ % COUNT(texts)];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof texts[0], format, list);
	va_end(list);
	return text;
}

void stopped(const char *condition)
{
	fact("stopped", "%s: %s", condition, errno_name(errno));
	exit(0);
}

const char *status_name(enum ibv_wc_status status)
{
	static const char *const names[] = {
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR",
		"LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR",
	};

	return status < sizeof names / sizeof *names ? names[status] : "other";
}

const char *opcode_name(enum ibv_wc_opcode opcode)
{
	switch (opcode) {
	case IBV_WC_SEND: return "SEND";
	case IBV_WC_RDMA_WRITE: return "RDMA_WRITE";
	case IBV_WC_RDMA_READ: return "RDMA_READ";
	case IBV_WC_COMP_SWAP: return "COMP_SWAP";
	case IBV_WC_FETCH_ADD: return "FETCH_ADD";
	case IBV_WC_BIND_MW: return "BIND_MW";
	case IBV_WC_LOCAL_INV: return "LOCAL_INV";
	case IBV_WC_RECV: return "RECV";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "RECV_RDMA_WITH_IMM";
	default: return "other";
	}
}

const char *state_name(enum ibv_qp_state state)
{
	static const char *const names[] = { "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR" };

	return state < sizeof names / sizeof *names ? names[state] : "other";
}

const char *async_name(enum ibv_event_type type)
{
	static const char *const names[] = {
		"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG", "PATH_MIG_ERR", "DEVICE_FATAL",
		"PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "SRQ_ERR", "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED",
	};

	return type < sizeof names / sizeof *names ? names[type] : "other";
}

uint8_t *pages(size_t bytes)
{
	uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	NEED(at != MAP_FAILED);
	return at;
}

/* Finds the GID that is an IPv4 address. */
static void find_gid(void)
{
	struct ibv_port_attr port;

	NEED(!ibv_query_port(context, PORT, &port));
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid(context, PORT, i, &gid) && IN6_IS_ADDR_V4MAPPED((struct in6_addr *)gid.raw)) {
			gid_index = i;
			return;
		}
	stopped("a GID of IPv4");
}

void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	NEED(list && list[0]);
	context = ibv_open_device(list[0]);
	NEED(context);
	ibv_free_device_list(list);
	NEED(!ibv_query_device(context, &device));
	find_gid();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 256, NULL, NULL, 0);
	area = pages(AREA);
	mr = pd ? ibv_reg_mr(pd, area, AREA, ALL_RIGHTS | IBV_ACCESS_MW_BIND) : NULL;
	NEED(pd && cq && mr);
}

struct ibv_qp_init_attr init_of(enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 64 },
	};
}

struct ibv_qp *new_qp(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = init_of(type);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(qp);
	return qp;
}

static int step_to_rtr(enum ibv_qp_type type, uint32_t peer, struct ibv_qp_attr *attr)
{
	attr->ah_attr = (struct ibv_ah_attr){
		.is_global = 1, .port_num = PORT, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 },
	};
	attr->path_mtu = IBV_MTU_1024;
	attr->dest_qp_num = peer;
	attr->max_dest_rd_atomic = 4;
	attr->min_rnr_timer = 1;
	if (type == IBV_QPT_UD)
		return IBV_QP_STATE;
	return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	       (type == IBV_QPT_RC ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
}

int step(enum ibv_qp_type type, enum ibv_qp_state state, uint32_t peer, struct ibv_qp_attr *attr)
{
	*attr = (struct ibv_qp_attr){ .qp_state = state };
	switch (state) {
	case IBV_QPS_INIT:
		attr->port_num = PORT;
		attr->qkey = QKEY;
		attr->qp_access_flags = ALL_RIGHTS;
		return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	case IBV_QPS_RTR:
		return step_to_rtr(type, peer, attr);
	case IBV_QPS_RTS:
		attr->timeout = 14;
		attr->retry_cnt = 7;
		attr->rnr_retry = 0;
		attr->max_rd_atomic = 4;
		return IBV_QP_STATE | IBV_QP_SQ_PSN |
		       (type == IBV_QPT_RC ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
	default:
		return IBV_QP_STATE;
	}
}

void bring(struct ibv_qp *qp, enum ibv_qp_state state, uint32_t peer)
{
	static const enum ibv_qp_state order[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	struct ibv_qp_attr attr;
	int last = state == IBV_QPS_SQD || state == IBV_QPS_ERR ? IBV_QPS_RTS : (int)state;

	for (int i = 0; i < COUNT(order) && (int)order[i] <= last; i++) {
		int mask = step(qp->qp_type, order[i], peer, &attr);

		errno = ibv_modify_qp(qp, &attr, mask);
		NEED(!errno);
	}
	if (state == IBV_QPS_SQD || state == IBV_QPS_ERR)
		NEED(!move(qp, state));
}

struct ibv_qp *qp_in(enum ibv_qp_type type, enum ibv_qp_state state)
{
	struct ibv_qp *qp = new_qp(type);

	bring(qp, state, qp->qp_num);
	return qp;
}

int move(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	NEED(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

struct ibv_sge piece(struct ibv_mr *region, size_t offset, size_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)region->addr + offset, .length = length, .lkey = region->lkey };
}

int post_wr(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	return ibv_post_send(qp, wr, &bad);
}

int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, size_t length)
{
	struct ibv_sge sge = piece(mr, 0, length);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };

	if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)area + REMOTE_AT;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
		wr.wr.rdma.rkey = mr->rkey;
	}
	return post_wr(qp, &wr);
}

int post_receive(struct ibv_qp *qp, size_t length)
{
	struct ibv_sge sge = piece(mr, RECEIVE_AT, length);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(qp, &wr, &bad);
}

int await(struct ibv_cq *queue, struct ibv_wc *wc)
{
	time_t limit = time(NULL) + NONE_SECONDS;
	int count;

	do {
		count = ibv_poll_cq(queue, 1, wc);
		if (!count)
			sched_yield();
	} while (!count && time(NULL) < limit);
	return count;
}

struct ibv_wc completion(const char *key, struct ibv_cq *queue)
{
	struct ibv_wc wc = { 0 };

	if (await(queue, &wc) != 1)
		fact(key, "none");
	else if (wc.status)
		fact(key, "%s", status_name(wc.status));
	else if (wc.opcode & IBV_WC_RECV)
		fact(key, "SUCCESS %s %u bytes", opcode_name(wc.opcode), wc.byte_len);
	else
		fact(key, "SUCCESS %s", opcode_name(wc.opcode));
	return wc;
}

unsigned sum(const uint8_t *bytes, size_t count)
{
	unsigned total = 0;

	for (size_t i = 0; i < count; i++)
		total = total * 31 + bytes[i];
	return total;
}

/* Runs one behaviour in a child. */
static void run(struct behaviour *behaviour)
{
	int status;
	pid_t child = fork();

	current = behaviour->name;
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(HANG_SECONDS);
		open_device();
		behaviour->run();
		fflush(stdout);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		fact("ended", "not started");
	else if (WIFSIGNALED(status))
		fact("ended", WTERMSIG(status) == SIGALRM ? "hangs" : "signal %d", WTERMSIG(status));
}

static int wanted(const char *name, char **patterns)
{
	if (!*patterns)
		return 1;
	for (; *patterns; patterns++)
		if (!fnmatch(*patterns, name, 0))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	int list = argc > 1 && !strcmp(argv[1], "--list");

	setvbuf(stdout, NULL, _IOLBF, 1 << 16);
	for (struct behaviour *each = behaviours; each; each = each->next)
		if (wanted(each->name, argv + 1 + list)) {
			if (list)
				puts(each->name);
			else
				run(each);
		}
	return 0;
}
