/*
 * tenant WHAT ...: asks for something that needs a right, and says "WHAT ERRNO" (0: it was granted).
 *
 *   qkey            a Q_Key with the highest bit set, on a queue pair in INIT
 *   exec PROGRAM    the same, after the process that opened the device has become PROGRAM; its memory lives on in a child
 *   port NUMBER     a bind to a port of RDMA_PS_TCP
 *   listen IP PORT  a listener on an address that others may share; stays if it listens
 *   xrcd FLAGS FILE an XRC domain by a descriptor that was opened with open(2)'s FLAGS
 *   memory          a region; reports, in a second word, the errno of an on-demand region of the whole address space
 *   import FD       a protection domain of the context that descriptor FD names
 *   hold            nothing: opens the device, says "hold FD" (its cmd_fd) and stays
 */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#define PRIVILEGED_QKEY 0x80010000u

static struct ibv_qp *qp;

static struct ibv_context *first_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	return context;
}

static struct ibv_qp *datagram_qp(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);

	CHECK(pd && cq);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 },
	};
	struct ibv_qp *made = ibv_create_qp(pd, &init);
	CHECK(made);
	return made;
}

static int set_qkey(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = PRIVILEGED_QKEY };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_QKEY);
}

/* Runs in the memory that the parent has left by exec: only the kernel and the daemon see the difference. */
static int set_qkey_later(void *pipe_ends)
{
	int *ends = pipe_ends;
	char byte;

	/* The child has copies of all descriptors; the parent's end closes on exec. */
	close(ends[1]);
	while (read(ends[0], &byte, 1) > 0)
		;
	usleep(200000);
	char text[32];
	int len = snprintf(text, sizeof text, "exec %d\n", set_qkey());
	_exit(write(1, text, len) == len ? 0 : 1);
}

static void become(char **program)
{
	static char stack[1 << 20] __attribute__((aligned(64)));
	static int ends[2];

	qp = datagram_qp(first_device());
	CHECK(!pipe2(ends, O_CLOEXEC));
	CHECK(clone(set_qkey_later, stack + sizeof stack, CLONE_VM | SIGCHLD, ends) > 0);
	execvp(program[0], program);
	CHECK(!"executed");
}

static int bind_port(int port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(port) };

	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return rdma_bind_addr(id, (struct sockaddr *)&any) ? errno : 0;
}

static int share_and_listen(const char *ip, int port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1;

	CHECK(channel && !rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && inet_pton(AF_INET, ip, &at.sin_addr) == 1);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one));
	return rdma_bind_addr(id, (struct sockaddr *)&at) || rdma_listen(id, 1) ? errno : 0;
}

static int open_domain(int flags, const char *file)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .oflags = O_CREAT,
	};
	struct ibv_context *context = first_device();

	attr.fd = open(file, flags);
	CHECK(attr.fd >= 0);
	errno = 0;
	return ibv_open_xrcd(context, &attr) ? 0 : errno;
}

static int reg(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	errno = 0;
	return ibv_reg_mr(pd, addr, len, access) ? 0 : errno;
}

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	const char *what = argv[1];

	if (!strcmp(what, "qkey")) {
		qp = datagram_qp(first_device());
		printf("qkey %d\n", set_qkey());
	} else if (!strcmp(what, "exec") && argc > 2) {
		become(argv + 2);
	} else if (!strcmp(what, "port") && argc == 3) {
		printf("port %d\n", bind_port(atoi(argv[2])));
	} else if (!strcmp(what, "listen") && argc == 4) {
		int error = share_and_listen(argv[2], atoi(argv[3]));
		printf("listen %d\n", error);
		fflush(stdout);
		while (!error)
			pause();
	} else if (!strcmp(what, "xrcd") && argc == 4) {
		printf("xrcd %d\n", open_domain(strtol(argv[2], NULL, 0), argv[3]));
	} else if (!strcmp(what, "memory")) {
		struct ibv_pd *pd = ibv_alloc_pd(first_device());
		static char buffer[4096];
		CHECK(pd);
		int plain = reg(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
		printf("memory %d %d\n", plain, reg(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND));
	} else if (!strcmp(what, "import") && argc == 3) {
		struct ibv_context *context = ibv_import_device(atoi(argv[2]));
		printf("import %d\n", context && ibv_import_pd(context, 0) ? 0 : errno);
	} else if (!strcmp(what, "hold")) {
		struct ibv_context *context = first_device();
		CHECK(ibv_alloc_pd(context));
		printf("hold %d\n", context->cmd_fd);
		fflush(stdout);
		for (;;)
			pause();
	} else {
		CHECK(!"a known word");
	}
	return 0;
}
