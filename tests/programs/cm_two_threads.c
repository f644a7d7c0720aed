/*
 * cm_two_threads server ADDRESS PORT, cm_two_threads client ADDRESS PORT ROUNDS: connections, one after the other, that the
 * client ends at once. One thread of the client reads the events; the other one disconnects and destroys the queue pair while
 * the event of the end arrives, a little later in each round: by rdma_destroy_qp, or by ibv_destroy_qp, which librdmacm does
 * not see. In each third round it destroys the queue pair while the connection is made. It prints "done" after the last round;
 * the server goes on.
 */
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The longest pause between the end of a connection and that of its queue pair. */
enum { LONGEST_US = 400, STEP_US = 7 };

static sem_t answered, ended;

static void must(int returned, const char *what)
{
	if (returned) {
		printf("failed: %s: %m\n", what);
		exit(1);
	}
}

static void *read_events(void *channel)
{
	struct rdma_cm_event *event;

	while (!rdma_get_cm_event(channel, &event)) {
		enum rdma_cm_event_type type = event->event;

		if (type < RDMA_CM_EVENT_CONNECT_REQUEST)
			must(event->status, rdma_event_str(type));
		if (type == RDMA_CM_EVENT_DISCONNECTED)
			sem_post(&ended);
		else if (type != RDMA_CM_EVENT_TIMEWAIT_EXIT)
			sem_post(&answered);
		/* Last: rdma_destroy_id waits for it, and then all is posted. */
		rdma_ack_cm_event(event);
	}
	return NULL;
}

static const struct ibv_qp_init_attr small = { .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					 .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };

static void spin(long us)
{
	struct timespec from, now;

	clock_gettime(CLOCK_MONOTONIC, &from);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - from.tv_sec) * 1000000 + (now.tv_nsec - from.tv_nsec) / 1000 < us);
}

static void connect_and_end(struct rdma_event_channel *channel, struct rdma_addrinfo *found, int round)
{
	struct rdma_conn_param param = { .retry_count = 7 };
	struct ibv_qp_init_attr init = small;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;

	must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	must(rdma_resolve_addr(id, NULL, found->ai_dst_addr, 2000), "rdma_resolve_addr");
	sem_wait(&answered);
	must(rdma_resolve_route(id, 2000), "rdma_resolve_route");
	sem_wait(&answered);
	init.send_cq = init.recv_cq = cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	must(!cq, "ibv_create_cq");
	must(rdma_create_qp(id, NULL, &init), "rdma_create_qp");
	must(rdma_connect(id, &param), "rdma_connect");
	if (round % 3 == 2) {
		spin(round * STEP_US % LONGEST_US);
		rdma_destroy_qp(id);
	} else {
		sem_wait(&answered);
		must(rdma_disconnect(id), "rdma_disconnect");
		spin(round * STEP_US % LONGEST_US);
		if (round % 3)
			must(ibv_destroy_qp(id->qp), "ibv_destroy_qp");
		else
			rdma_destroy_qp(id);
		sem_wait(&ended);
	}
	must(ibv_destroy_cq(cq), "ibv_destroy_cq");
	must(rdma_destroy_id(id), "rdma_destroy_id");
	while (!sem_trywait(&answered) || !sem_trywait(&ended))
		;
}

static void serve(struct rdma_addrinfo *found)
{
	struct ibv_qp_init_attr init = small;
	struct rdma_cm_id *listener, *id;
	struct rdma_cm_event *event;

	must(rdma_create_ep(&listener, found, NULL, &init), "rdma_create_ep");
	must(rdma_listen(listener, 8), "rdma_listen");
	for (;;) {
		must(rdma_get_request(listener, &id), "rdma_get_request");
		/* The client may have gone already. */
		if (!rdma_accept(id, NULL)) {
			must(rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event");
			must(event->event != RDMA_CM_EVENT_DISCONNECTED, rdma_event_str(event->event));
			rdma_ack_cm_event(event);
		}
		rdma_destroy_ep(id);
	}
}

int main(int argc, char **argv)
{
	int server = argc == 4 && !strcmp(argv[1], "server");
	struct rdma_addrinfo hints = { .ai_flags = server ? RAI_PASSIVE : 0, .ai_port_space = RDMA_PS_TCP }, *found;
	pthread_t reader;

	must(argc != 5 && !server, "usage: cm_two_threads server ADDRESS PORT | client ADDRESS PORT ROUNDS");
	must(rdma_getaddrinfo(argv[2], argv[3], &hints, &found), "rdma_getaddrinfo");
	if (server) {
		serve(found);
	} else {
		struct rdma_event_channel *channel = rdma_create_event_channel();

		must(!channel, "rdma_create_event_channel");
		must(pthread_create(&reader, NULL, read_events, channel), "pthread_create");
		for (int round = 0; round < atoi(argv[4]); round++)
			connect_and_end(channel, found, round);
	}
	puts("done");
	return 0;
}
