/*
 * cm_idle server ADDRESS PORT, cm_idle client ADDRESS PORT: a connection on which nothing is sent. Prints "connected", waits for
 * the next event and prints its name. On SIGUSR1 it exits, as a program does that returns from main.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(int returned, const char *what)
{
	if (returned) {
		printf("failed: %s: %m\n", what);
		exit(1);
	}
}

static void leave(int signal)
{
	(void)signal;
	exit(0);
}

int main(int argc, char **argv)
{
	signal(SIGUSR1, leave);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	int server = argc == 4 && !strcmp(argv[1], "server");
	struct rdma_addrinfo hints = { .ai_flags = server ? RAI_PASSIVE : 0, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct rdma_cm_id *listener, *id;
	struct rdma_cm_event *event;

	must(argc != 4 || !channel, "usage: cm_idle server|client ADDRESS PORT");
	must(rdma_getaddrinfo(argv[2], argv[3], &hints, &found), "rdma_getaddrinfo");
	if (server) {
		must(rdma_create_ep(&listener, found, NULL, &init), "rdma_create_ep");
		must(rdma_listen(listener, 1), "rdma_listen");
		must(rdma_get_request(listener, &id) || rdma_accept(id, NULL), "rdma_accept");
	} else {
		must(rdma_create_ep(&id, found, NULL, &init) || rdma_connect(id, NULL), "rdma_connect");
	}
	must(rdma_migrate_id(id, channel), "rdma_migrate_id");
	puts("connected");
	fflush(stdout);
	must(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	puts(rdma_event_str(event->event));
	rdma_ack_cm_event(event);
	rdma_destroy_ep(id);
	return 0;
}
