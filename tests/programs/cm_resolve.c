/*
 * Resolves an address by many ids at once. Prints a line for each run of equal events: count, event, status, and the time until
 * the last one. Also checks that an id refuses other calls while it is being resolved.
 *
 *   cm_resolve [-n IDS] [-t TIMEOUT_MS] [-u] [-s] [-d MS] ADDRESS [NEXT]
 *
 *   -u  datagram ids        -s  one synchronous id: prints the error of the call instead of an event
 *   -d  destroys all ids after MS milliseconds, without reading their events
 *   NEXT  second address: the first id resolves it after ADDRESS has failed
 */
#include "cm_check.h"
#include <time.h>

static int ids = 1, timeout_ms = 2000;
static enum rdma_port_space space = RDMA_PS_TCP;

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void address(const char *text)
{
	struct addrinfo *found;

	CHECK(getaddrinfo(text, "7471", NULL, &found) == 0, "%s is no address", text);
	memcpy(&local, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
}

static void resolve(struct rdma_cm_id *id)
{
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&local, timeout_ms) == 0);
}

static void synchronous(void)
{
	struct rdma_cm_id *id;
	long begun = now_ms();

	CHECK(rdma_create_id(NULL, &id, NULL, space) == 0);
	int failed = rdma_resolve_addr(id, NULL, (struct sockaddr *)&local, timeout_ms);

	printf("1 %s %d in %ld ms\n", failed ? "error" : "resolved", failed ? -errno : 0, now_ms() - begun);
	CHECK(rdma_destroy_id(id) == 0);
}

/* Reads one event per id and prints the runs of equal ones. Returns the type of the last. */
static enum rdma_cm_event_type count(struct rdma_event_channel *channel, int wanted, long begun)
{
	enum rdma_cm_event_type type = 0;
	int status = 0, alike = 0;

	for (int i = 0; i < wanted; i++) {
		struct rdma_cm_event *event;

		CHECK(readable(channel, 40000), "%d of %d events", i, wanted);
		CHECK(rdma_get_cm_event(channel, &event) == 0);
		CHECK(event->param.conn.private_data == NULL && event->param.conn.private_data_len == 0);
		if (alike && (event->event != type || event->status != status)) {
			printf("%d %s %d in %ld ms\n", alike, rdma_event_str(type), status, now_ms() - begun);
			alike = 0;
		}
		type = event->event;
		status = event->status;
		alike++;
		CHECK((type == RDMA_CM_EVENT_ADDR_RESOLVED) == (event->id->verbs != NULL));
		rdma_ack_cm_event(event);
	}
	printf("%d %s %d in %ld ms\n", alike, rdma_event_str(type), status, now_ms() - begun);
	return type;
}

/* An id that is being resolved can neither be bound nor listen. */
static void rules(struct rdma_cm_id *id)
{
	struct sockaddr_storage any = { .ss_family = local.ss_family };

	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == -1 && errno == EINVAL);
	CHECK(rdma_listen(id, 0) == -1 && errno == EINVAL);
}

int main(int argc, char **argv)
{
	int option, destroyed_after = -1;
	bool sync = false;

	running = "cm_resolve";
	while ((option = getopt(argc, argv, "n:t:usd:")) != -1) {
		switch (option) {
		case 'n': ids = atoi(optarg); break;
		case 't': timeout_ms = atoi(optarg); break;
		case 'u': space = RDMA_PS_UDP; break;
		case 's': sync = true; break;
		case 'd': destroyed_after = atoi(optarg); break;
		default: return 2;
		}
	}
	CHECK(optind < argc && ids > 0);
	address(argv[optind]);
	if (sync) {
		synchronous();
		return 0;
	}
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id **all = calloc(ids, sizeof(*all));
	long begun = now_ms();

	CHECK(all);
	for (int i = 0; i < ids; i++)
		CHECK(rdma_create_id(channel, &all[i], NULL, space) == 0);
	for (int i = 0; i < ids; i++)
		resolve(all[i]);
	if (destroyed_after >= 0) {
		usleep(destroyed_after * 1000);
		rules(all[0]);
	} else if (count(channel, ids, begun) == RDMA_CM_EVENT_ADDR_ERROR && optind + 1 < argc) {
		address(argv[optind + 1]);
		begun = now_ms();
		resolve(all[0]);
		count(channel, 1, begun);
	}
	for (int i = 0; i < ids; i++)
		CHECK(rdma_destroy_id(all[i]) == 0);
	if (destroyed_after >= 0) {
		printf("destroyed\n");
		fflush(stdout);
		/* Destroyed ids have no events. */
		CHECK(!readable(channel, 4000));
	}
	rdma_destroy_event_channel(channel);
	free(all);
	return 0;
}
