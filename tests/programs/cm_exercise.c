/*
 * cm_exercise ADDRESS [NAME...]: the rules of librdmacm, one function each. Both ends of each connection are in this process
 * and use ADDRESS, an address of this host. Prints "ok NAME" after each rule; the first broken rule ends the program with a
 * sentence.
 */
#include "cm_check.h"

static const char *address;

static void test_devices(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct ibv_context **list;
	int count = 0, found = 0;

	CHECK(id->verbs == NULL);
	CHECK(rdma_bind_addr(id, at_port(0)) == 0);
	list = rdma_get_devices(&count);
	CHECK(list && count > 0 && list[count] == NULL);
	for (int i = 0; i < count; i++)
		found += list[i] == id->verbs;
	CHECK(found == 1);
	rdma_free_devices(list);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void test_nonblocking(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_event *event;

	CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EAGAIN);
	CHECK(!readable(channel, 0));
	rdma_destroy_event_channel(channel);
}

static void test_data(void)
{
	struct pair p;

	connected(&p);
	for (int round = 0; round < 4; round++) {
		send_and_compare(p.active, p.passive, round);
		send_and_compare(p.passive, p.active, round + 100);
	}
	CHECK(rdma_disconnect(p.active) == 0);
	CHECK(expect_ack(p.passive_channel, RDMA_CM_EVENT_DISCONNECTED) == p.passive);
	CHECK(rdma_disconnect(p.passive) == 0);
	CHECK(expect_ack(p.active_channel, RDMA_CM_EVENT_DISCONNECTED) == p.active);
	end_pair(&p);
}

static void test_passive_disconnects(void)
{
	struct pair p;

	connected(&p);
	send_and_compare(p.active, p.passive, 1);
	CHECK(rdma_disconnect(p.passive) == 0);
	CHECK(expect_ack(p.active_channel, RDMA_CM_EVENT_DISCONNECTED) == p.active);
	CHECK(rdma_disconnect(p.active) == 0);
	CHECK(expect_ack(p.passive_channel, RDMA_CM_EVENT_DISCONNECTED) == p.passive);
	end_pair(&p);
}

static void test_disconnect_flushes(void)
{
	static uint8_t in[SIZE];
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct pair p;

	connected(&p);
	mr = rdma_reg_msgs(p.active, in, SIZE);
	CHECK(mr && rdma_post_recv(p.active, in, in, SIZE, mr) == 0);
	CHECK(rdma_disconnect(p.active) == 0);
	CHECK(rdma_get_recv_comp(p.active, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR, "status %d", wc.status);
	CHECK(rdma_dereg_mr(mr) == 0);
	expect_ack(p.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	end_pair(&p);
}

static void test_destroy_disconnects(void)
{
	struct pair p;

	connected(&p);
	end(p.active);
	CHECK(expect_ack(p.passive_channel, RDMA_CM_EVENT_DISCONNECTED) == p.passive);
	end(p.passive);
	CHECK(rdma_destroy_id(p.listener) == 0);
	rdma_destroy_event_channel(p.active_channel);
	rdma_destroy_event_channel(p.passive_channel);
}

static void test_reject(void)
{
	uint8_t reason[148];
	struct rdma_cm_event *event;
	struct pair p;

	fill(reason, sizeof(reason), 3);
	request(&p, NULL, 0);
	CHECK(rdma_reject(p.passive, reason, 149) == -1 && errno == EINVAL);
	CHECK(rdma_reject(p.passive, reason, sizeof(reason)) == 0);
	event = expect(p.active_channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->id == p.active && event->status == 28, "status %d", event->status);
	CHECK(event->param.conn.private_data_len == sizeof(reason));
	CHECK(memcmp(event->param.conn.private_data, reason, sizeof(reason)) == 0);
	rdma_ack_cm_event(event);
	end_pair(&p);
}

static void test_no_listener(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, htons(1)); /* a privileged port: no other test binds it */
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;

	new_qp(id);
	CHECK(rdma_connect(id, &param) == 0);
	event = expect(channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == 8, "status %d", event->status);
	rdma_ack_cm_event(event);
	end(id);
	rdma_destroy_event_channel(channel);
}

static void test_private_data_limit(void)
{
	uint8_t data[255];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = 57 };
	struct pair p;

	fill(data, sizeof(data), 9);
	request(&p, data, 56);
	new_qp(p.passive);
	param.private_data_len = 197;
	CHECK(rdma_accept(p.passive, &param) == -1 && errno == EINVAL);
	param.private_data_len = 196;
	CHECK(rdma_accept(p.passive, &param) == 0);
	expect_ack(p.active_channel, RDMA_CM_EVENT_ESTABLISHED);
	end_pair(&p);
}

static void *destroy_later(void *id)
{
	CHECK(rdma_destroy_id(id) == 0);
	return NULL;
}

static void test_destroy_waits_for_acknowledgement(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	struct timespec soon;
	pthread_t thread;

	CHECK(rdma_resolve_addr(id, NULL, at_port(htons(9)), TIMEOUT_MS) == 0);
	event = expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(pthread_create(&thread, NULL, destroy_later, id) == 0);
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += 200000000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	CHECK(pthread_timedjoin_np(thread, NULL, &soon) == ETIMEDOUT);
	rdma_ack_cm_event(event);
	CHECK(pthread_join(thread, NULL) == 0);
	rdma_destroy_event_channel(channel);
}

static void test_events_of_destroyed_ids_are_removed(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);

	CHECK(rdma_resolve_addr(id, NULL, at_port(htons(9)), TIMEOUT_MS) == 0);
	CHECK(readable(channel, TIMEOUT_MS));
	CHECK(rdma_destroy_id(id) == 0);
	CHECK(!readable(channel, 100), "a destroyed id's event makes the channel readable");
	rdma_destroy_event_channel(channel);
}

static void test_migration(void)
{
	struct rdma_event_channel *first = new_channel(), *second = new_channel();
	struct rdma_cm_id *id = new_id(first, RDMA_PS_TCP), *other = new_id(first, RDMA_PS_TCP);

	CHECK(rdma_resolve_addr(id, NULL, at_port(htons(9)), TIMEOUT_MS) == 0);
	CHECK(rdma_resolve_addr(other, NULL, at_port(htons(9)), TIMEOUT_MS) == 0);
	CHECK(readable(first, TIMEOUT_MS));
	CHECK(rdma_migrate_id(id, second) == 0 && id->channel == second);
	CHECK(expect_ack(second, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	CHECK(expect_ack(first, RDMA_CM_EVENT_ADDR_RESOLVED) == other);
	CHECK(!readable(first, 50) && !readable(second, 50));
	CHECK(rdma_migrate_id(id, NULL) == 0 && id->channel && id->channel != second);
	CHECK(rdma_resolve_route(id, TIMEOUT_MS) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(rdma_destroy_id(id) == 0 && rdma_destroy_id(other) == 0);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
}

static struct ibv_qp_init_attr endpoint_init(void)
{
	return (struct ibv_qp_init_attr){ .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1,
						   .max_recv_sge = 1 }, .sq_sig_all = 1 };
}

static struct rdma_addrinfo *info_of(int flags, uint16_t port)
{
	struct rdma_addrinfo hints = { .ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *info;
	char service[8];

	snprintf(service, sizeof(service), "%u", ntohs(port));
	CHECK(rdma_getaddrinfo(address, service, &hints, &info) == 0);
	CHECK(info->ai_qp_type == IBV_QPT_RC && info->ai_family == local.ss_family);
	return info;
}

static void *endpoint_server(void *listener)
{
	struct rdma_cm_id *id;

	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(id->qp && id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_accept(id, NULL) == 0);
	return id;
}

static void test_endpoints(void)
{
	struct ibv_qp_init_attr init = endpoint_init();
	struct rdma_addrinfo *info = info_of(RAI_PASSIVE, 0);
	struct rdma_cm_id *listen_id, *id;
	void *accepted;
	pthread_t thread;

	CHECK(rdma_create_ep(&listen_id, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_listen(listen_id, 0) == 0);
	CHECK(pthread_create(&thread, NULL, endpoint_server, listen_id) == 0);
	info = info_of(0, rdma_get_src_port(listen_id));
	CHECK(rdma_create_ep(&id, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_connect(id, NULL) == 0);
	CHECK(pthread_join(thread, &accepted) == 0);
	send_and_compare(id, accepted, 5);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(rdma_disconnect(accepted) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(accepted);
	rdma_destroy_ep(listen_id);
}

static void test_sync_errors(void)
{
	struct ibv_qp_init_attr init = endpoint_init();
	struct rdma_addrinfo *info = info_of(0, htons(1));
	struct rdma_cm_id *id;

	CHECK(rdma_create_ep(&id, info, NULL, &init) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_connect(id, NULL) == -1 && errno == ECONNREFUSED);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(id);
}

/* A queue pair whose states the program changes itself. */
static struct ibv_qp *external_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = endpoint_init();

	init.send_cq = init.recv_cq = cq;
	init.qp_type = IBV_QPT_RC;
	return ibv_create_qp(id->pd, &init);
}

static void move(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;

	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0, "state %d", state);
}

static void test_external_queue_pairs(void)
{
	struct rdma_event_channel *a = new_channel(), *b = new_channel();
	struct rdma_cm_id *listen_id = listener(b, RDMA_PS_TCP), *passive;
	struct rdma_cm_id *active = resolved(a, RDMA_PS_TCP, rdma_get_src_port(listen_id));
	struct ibv_cq *cq = ibv_create_cq(active->verbs, 16, NULL, NULL, 0);
	struct ibv_qp *qa = external_qp(active, cq), *qb;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7,
					 .rnr_retry_count = 7, .qp_num = qa->qp_num };
	static uint8_t out[64], in[64];
	struct ibv_mr *out_mr, *in_mr;
	struct rdma_cm_event *event;
	struct ibv_wc wc;
	int seen = 0;

	move(active, qa, IBV_QPS_INIT);
	CHECK(rdma_connect(active, &param) == 0);
	passive = expect_ack(b, RDMA_CM_EVENT_CONNECT_REQUEST);
	qb = external_qp(passive, cq);
	move(passive, qb, IBV_QPS_INIT);
	move(passive, qb, IBV_QPS_RTR);
	move(passive, qb, IBV_QPS_RTS);
	param.qp_num = qb->qp_num;
	CHECK(rdma_accept(passive, &param) == 0);
	event = expect(a, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(event->param.conn.qp_num == qb->qp_num);
	rdma_ack_cm_event(event);
	move(active, qa, IBV_QPS_RTR);
	move(active, qa, IBV_QPS_RTS);
	CHECK(rdma_establish(active) == 0);
	expect_ack(b, RDMA_CM_EVENT_ESTABLISHED);
	out_mr = rdma_reg_msgs(active, out, sizeof(out));
	in_mr = rdma_reg_msgs(passive, in, sizeof(in));
	fill(out, sizeof(out), 77);
	passive->qp = qb;
	CHECK(rdma_post_recv(passive, NULL, in, sizeof(in), in_mr) == 0);
	active->qp = qa;
	CHECK(rdma_post_send(active, NULL, out, sizeof(out), out_mr, 0) == 0);
	active->qp = passive->qp = NULL;
	while (seen < 2)
		if (ibv_poll_cq(cq, 1, &wc) == 1) {
			CHECK(wc.status == IBV_WC_SUCCESS, "status %d", wc.status);
			seen++;
		}
	CHECK(memcmp(out, in, sizeof(out)) == 0);
	CHECK(rdma_disconnect(active) == 0);
	expect_ack(b, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(passive) == 0);
	expect_ack(a, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(ibv_destroy_qp(qa) == 0 && ibv_destroy_qp(qb) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && rdma_dereg_mr(out_mr) == 0 && rdma_dereg_mr(in_mr) == 0);
	CHECK(rdma_destroy_id(active) == 0 && rdma_destroy_id(passive) == 0 && rdma_destroy_id(listen_id) == 0);
	rdma_destroy_event_channel(a);
	rdma_destroy_event_channel(b);
}

static void test_datagrams(void)
{
	struct rdma_event_channel *a = new_channel(), *b = new_channel();
	struct rdma_cm_id *listen_id = listener(b, RDMA_PS_UDP), *service;
	struct rdma_cm_id *client = resolved(a, RDMA_PS_UDP, rdma_get_src_port(listen_id));
	struct rdma_conn_param param = { .private_data = "who", .private_data_len = 3 };
	static uint8_t out[256], in[256 + 40];
	struct ibv_mr *out_mr, *in_mr;
	struct rdma_cm_event *event;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	new_qp(client);
	CHECK(rdma_connect(client, &param) == 0);
	event = expect(b, RDMA_CM_EVENT_CONNECT_REQUEST);
	service = event->id;
	CHECK(event->param.ud.private_data_len == 180 && memcmp(event->param.ud.private_data, "who", 3) == 0);
	rdma_ack_cm_event(event);
	new_qp(service);
	param = (struct rdma_conn_param){ .qp_num = service->qp->qp_num, .private_data = "me", .private_data_len = 2 };
	CHECK(rdma_accept(service, &param) == 0);
	event = expect(a, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.ud.qp_num == service->qp->qp_num && event->param.ud.qkey == RDMA_UDP_QKEY);
	CHECK(event->param.ud.private_data_len == 136 && memcmp(event->param.ud.private_data, "me", 2) == 0);
	ah = ibv_create_ah(client->pd, &event->param.ud.ah_attr);
	CHECK(ah);
	rdma_ack_cm_event(event);
	out_mr = rdma_reg_msgs(client, out, sizeof(out));
	in_mr = rdma_reg_msgs(service, in, sizeof(in));
	fill(out, sizeof(out), 13);
	CHECK(rdma_post_recv(service, NULL, in, sizeof(in), in_mr) == 0);
	CHECK(rdma_post_ud_send(client, NULL, out, sizeof(out), out_mr, 0, ah, service->qp->qp_num) == 0);
	CHECK(rdma_get_recv_comp(service, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof(in));
	CHECK(memcmp(in + 40, out, sizeof(out)) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(out_mr) == 0 && rdma_dereg_mr(in_mr) == 0);
	end(client);
	end(service);
	CHECK(rdma_destroy_id(listen_id) == 0);
	rdma_destroy_event_channel(a);
	rdma_destroy_event_channel(b);
}

static void test_binding(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *first = listener(channel, RDMA_PS_TCP), *second = new_id(channel, RDMA_PS_TCP), *any;
	uint16_t port = rdma_get_src_port(first);
	struct sockaddr_storage wrong = { .ss_family = 27 /* AF_IB */ };
	struct sockaddr_in nowhere = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0xcb007107) /* 203.0.113.7 */ };

	CHECK(rdma_bind_addr(second, at_port(port)) == -1 && errno == EADDRINUSE);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&wrong) == -1 && errno == EINVAL);
	CHECK(rdma_bind_addr(second, (struct sockaddr *)&nowhere) == -1);
	CHECK(errno == EADDRNOTAVAIL || errno == ENODEV);
	any = new_id(channel, RDMA_PS_UDP); /* another port space */
	CHECK(rdma_bind_addr(any, at_port(port)) == 0);
	CHECK(rdma_destroy_id(first) == 0);
	CHECK(rdma_bind_addr(second, at_port(port)) == 0 && rdma_get_src_port(second) == port);
	CHECK(rdma_destroy_id(second) == 0 && rdma_destroy_id(any) == 0);
	rdma_destroy_event_channel(channel);
}

static void test_options(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	uint8_t byte = 18;
	int one = 1;

	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)) == 0);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof(one)) == -1 && errno == EINVAL);
	CHECK(rdma_set_option(id, 7, 7, &one, sizeof(one)) == -1);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void test_fork(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	int status;
	pid_t pid;

	CHECK(rdma_bind_addr(id, at_port(0)) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		struct pair p;

		CHECK(rdma_listen(id, 1) == -1 && errno == EIO);
		connected(&p);
		send_and_compare(p.active, p.passive, 2);
		end_pair(&p);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
	CHECK(rdma_listen(id, 1) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
}

static void *wait_for_event(void *channel)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(channel, &event);
	return NULL;
}

static void *wait_for_completion(void *channel)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

static void *wait_for_asynchronous_event(void *context)
{
	struct ibv_async_event event;

	ibv_get_async_event(context, &event);
	return NULL;
}

static void *wait_for_request(void *listen_id)
{
	struct rdma_cm_id *id;

	rdma_get_request(listen_id, &id);
	return NULL;
}

static void cancel(void *(*function)(void *), void *argument)
{
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, function, argument) == 0);
	usleep(50000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
}

static void test_threads_can_be_cancelled(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct ibv_context **devices = rdma_get_devices(NULL);
	struct ibv_comp_channel *completions = ibv_create_comp_channel(devices[0]);
	struct rdma_addrinfo *info = info_of(RAI_PASSIVE, 0);
	struct rdma_cm_id *listen_id;

	CHECK(rdma_create_ep(&listen_id, info, NULL, NULL) == 0 && rdma_listen(listen_id, 0) == 0);
	cancel(wait_for_event, channel);
	cancel(wait_for_completion, completions);
	cancel(wait_for_asynchronous_event, devices[0]);
	cancel(wait_for_request, listen_id);
	CHECK(ibv_destroy_comp_channel(completions) == 0);
	rdma_destroy_ep(listen_id);
	rdma_freeaddrinfo(info);
	rdma_free_devices(devices);
	rdma_destroy_event_channel(channel);
}

/* As in Linux, the destruction of a channel does not wake a thread that reads it: programs exit on errors of the read. */
static void test_channel_destroyed_while_it_is_read(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct timespec soon;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, wait_for_event, channel) == 0);
	usleep(50000);
	rdma_destroy_event_channel(channel);
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_sec++;
	CHECK(pthread_timedjoin_np(thread, NULL, &soon) == ETIMEDOUT);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
}

static const struct rule rules[] = {
	{ "devices", test_devices },
	{ "nonblocking", test_nonblocking },
	{ "binding", test_binding },
	{ "options", test_options },
	{ "data", test_data },
	{ "passive_disconnects", test_passive_disconnects },
	{ "disconnect_flushes", test_disconnect_flushes },
	{ "destroy_disconnects", test_destroy_disconnects },
	{ "reject", test_reject },
	{ "no_listener", test_no_listener },
	{ "private_data_limit", test_private_data_limit },
	{ "destroy_waits", test_destroy_waits_for_acknowledgement },
	{ "destroyed_events", test_events_of_destroyed_ids_are_removed },
	{ "migration", test_migration },
	{ "endpoints", test_endpoints },
	{ "sync_errors", test_sync_errors },
	{ "external", test_external_queue_pairs },
	{ "datagrams", test_datagrams },
	{ "fork", test_fork },
	{ "cancel", test_threads_can_be_cancelled },
	{ "destroyed_channel", test_channel_destroyed_while_it_is_read },
};

int main(int argc, char **argv)
{
	address = argc > 1 ? argv[1] : NULL;
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
