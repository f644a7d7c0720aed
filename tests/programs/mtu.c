/*
 * mtu: prints what a program learns of its port's MTU while the MTU of the interface is changed.
 *
 * Usage: mtu DEVICE GID_INDEX. Queries the active MTU repeatedly, in one context. Prints a line for each change: the active MTU,
 * and the path MTUs with which a queue pair that was created at the start can be moved to RTR. Also prints a line for each
 * asynchronous event. Runs until it is killed.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { PAUSE_MS = 20 };

static struct ibv_context *context;
static struct ibv_qp *early;
static int gid_index;

static int bytes_of(int mtu)
{
	return 128 << mtu;
}

/* Whether the queue pair can be moved to RTR with this path MTU. It is in RESET before and after. */
static int takes(int mtu)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, reset = { .qp_state = IBV_QPS_RESET };
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = early->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = gid_index } },
	};
	int rc;

	CHECK(!ibv_query_gid(context, 1, gid_index, &rtr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(early, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	rc = ibv_modify_qp(early, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
	CHECK(rc == 0 || rc == EINVAL);
	CHECK(!ibv_modify_qp(early, &reset, IBV_QP_STATE));
	return rc == 0;
}

static void say(int mtu)
{
	printf("mtu %d, paths", bytes_of(mtu));
	for (int path = IBV_MTU_256; path <= IBV_MTU_4096; path++)
		if (takes(path))
			printf(" %d", bytes_of(path));
	puts("");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **device = list;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UC, .cap = { .max_send_wr = 1, .max_send_sge = 1 } };
	struct ibv_async_event event;
	struct ibv_port_attr port;
	int seen = 0;

	CHECK(argc == 3 && list);
	while (*device && strcmp(ibv_get_device_name(*device), argv[1]))
		device++;
	CHECK(*device && (context = ibv_open_device(*device)));
	gid_index = atoi(argv[2]);
	CHECK((init.send_cq = init.recv_cq = ibv_create_cq(context, 1, NULL, NULL, 0)));
	CHECK((early = ibv_create_qp(ibv_alloc_pd(context), &init)));
	for (;;) {
		struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };

		CHECK(!ibv_query_port(context, 1, &port));
		if ((int)port.active_mtu != seen)
			say(seen = port.active_mtu);
		if (poll(&ready, 1, PAUSE_MS) == 1) {
			CHECK(!ibv_get_async_event(context, &event));
			printf("event %s\n", ibv_event_type_str(event.event_type));
			fflush(stdout);
			ibv_ack_async_event(&event);
		}
	}
}
