/* Connection manager: ids, addresses, ports, options, and connections of a process with itself. */
#include "facts.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>

enum { LISTEN_PORT = 7471, WAIT_MS = 10000 };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *active, *passive;
static uint8_t private_data[256];
static int private_length;

static struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *one = rdma_create_event_channel();

	NEED(one && !fcntl(one->fd, F_SETFL, fcntl(one->fd, F_GETFL) | O_NONBLOCK));
	return one;
}

static struct rdma_cm_id *new_id(enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	if (!channel)
		channel = new_channel();
	NEED(!rdma_create_id(channel, &id, NULL, space));
	return id;
}

/* The interface's own address. */
static struct sockaddr_in own(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	memcpy(&address.sin_addr, gid.raw + 12, 4);
	return address;
}

static struct sockaddr_in ipv4(const char *text, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };

	inet_pton(AF_INET, text, &address.sin_addr);
	return address;
}

static int bind_to(struct rdma_cm_id *id, struct sockaddr_in address)
{
	return rdma_bind_addr(id, (struct sockaddr *)&address);
}

static int resolve(struct rdma_cm_id *id, struct sockaddr_in address)
{
	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000);
}

/* Waits for the next event; prints its name and status; keeps the private data and, of a request, the new id. */
static void event(const char *key)
{
	struct pollfd one = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *got;

	if (poll(&one, 1, WAIT_MS) != 1 || rdma_get_cm_event(channel, &got)) {
		fact(key, "none");
		return;
	}
	fact(key, "%s", rdma_event_str(got->event));
	if (got->status)
		fact(key_of("%s.status", key), "%d", got->status);
	private_length = got->param.conn.private_data_len;
	if (got->param.conn.private_data)
		memcpy(private_data, got->param.conn.private_data, private_length);
	if (got->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		passive = got->id;
	rdma_ack_cm_event(got);
}

static void no_event(const char *key)
{
	struct rdma_cm_event *got;

	fact(key, "%s", rdma_get_cm_event(channel, &got) ? errno_name(errno) : rdma_event_str(got->event));
}

/* An id that listens on the interface's address. */
static void listen_here(void)
{
	listener = new_id(RDMA_PS_TCP);
	NEED(!bind_to(listener, own(LISTEN_PORT)) && !rdma_listen(listener, 8));
}

static void add_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };

	NEED(!rdma_create_qp(id, NULL, &init));
}

/* An id that has resolved the listener's address and route, with a queue pair. */
static void resolve_here(int port)
{
	active = new_id(RDMA_PS_TCP);
	NEED(!resolve(active, own(port)));
	event("resolved");
	NEED(!rdma_resolve_route(active, 2000));
	event("routed");
	add_qp(active);
}

static void connect_here(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };

	listen_here();
	resolve_here(LISTEN_PORT);
	NEED(!rdma_connect(active, &param));
	event("request");
	NEED(passive);
	add_qp(passive);
	NEED(!rdma_accept(passive, &param));
	event("one");
	event("other");
}

BEHAVIOUR(cm_port_spaces)
{
	static const int spaces[] = { RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IPOIB, RDMA_PS_IB, 0, 0x0105, 0xffff };
	struct rdma_cm_id *id;

	channel = new_channel();
	for (int i = 0; i < COUNT(spaces); i++)
		result(key_of("%#x", spaces[i]), rdma_create_id(channel, &id, NULL, spaces[i]));
}

BEHAVIOUR(cm_bind)
{
	result("own", bind_to(new_id(RDMA_PS_TCP), own(0)));
	result("any", bind_to(new_id(RDMA_PS_TCP), ipv4("0.0.0.0", 0)));
	result("loopback", bind_to(new_id(RDMA_PS_TCP), ipv4("127.0.0.1", 0)));
	result("foreign", bind_to(new_id(RDMA_PS_TCP), ipv4("192.0.2.1", 0)));
	result("multicast", bind_to(new_id(RDMA_PS_TCP), ipv4("224.0.0.9", 0)));
	result("broadcast", bind_to(new_id(RDMA_PS_TCP), ipv4("255.255.255.255", 0)));
	result("low_port", bind_to(new_id(RDMA_PS_TCP), own(80)));
}

BEHAVIOUR(cm_bind_family)
{
	struct sockaddr_in address = own(0);
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 };

	address.sin_family = 77;
	result("unknown", bind_to(new_id(RDMA_PS_TCP), address));
	address.sin_family = AF_UNSPEC;
	result("unspec", bind_to(new_id(RDMA_PS_TCP), address));
	result("any6", rdma_bind_addr(new_id(RDMA_PS_TCP), (struct sockaddr *)&any6));
}

BEHAVIOUR(cm_bind_twice)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	result("first", bind_to(id, own(0)));
	result("second", bind_to(id, own(0)));
}

BEHAVIOUR(cm_bound_port)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	fact("before", "%d", ntohs(rdma_get_src_port(id)));
	result("bind", bind_to(id, own(LISTEN_PORT)));
	fact("after", "%d", ntohs(rdma_get_src_port(id)));
	fact("verbs", "%d", id->verbs != NULL);
	fact("device", "%d", id->port_num);
	id = new_id(RDMA_PS_TCP);
	result("bind_0", bind_to(id, own(0)));
	fact("chosen", "%d", rdma_get_src_port(id) != 0);
}

BEHAVIOUR(cm_port_in_use)
{
	struct rdma_cm_id *id;

	result("first", bind_to(new_id(RDMA_PS_TCP), own(LISTEN_PORT)));
	result("same", bind_to(new_id(RDMA_PS_TCP), own(LISTEN_PORT)));
	result("any", bind_to(new_id(RDMA_PS_TCP), ipv4("0.0.0.0", LISTEN_PORT)));
	result("other_space", bind_to(new_id(RDMA_PS_UDP), own(LISTEN_PORT)));
	id = new_id(RDMA_PS_TCP);
	result("other_port", bind_to(id, own(LISTEN_PORT + 1)));
	result("destroy", rdma_destroy_id(id));
	result("again", bind_to(new_id(RDMA_PS_TCP), own(LISTEN_PORT + 1)));
}

static struct rdma_cm_id *reusing(int reuse)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	NEED(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof reuse));
	return id;
}

BEHAVIOUR(cm_reuseaddr)
{
	struct rdma_cm_id *one = reusing(1), *two = reusing(1), *three = reusing(0);

	result("first", bind_to(one, own(LISTEN_PORT)));
	result("second", bind_to(two, own(LISTEN_PORT)));
	result("without", bind_to(three, own(LISTEN_PORT)));
	result("listen", rdma_listen(one, 1));
	result("listen_second", rdma_listen(two, 1));
	result("third", bind_to(reusing(1), own(LISTEN_PORT)));
}

BEHAVIOUR(cm_reuseaddr_of_one_only)
{
	result("first", bind_to(reusing(0), own(LISTEN_PORT)));
	result("second", bind_to(reusing(1), own(LISTEN_PORT)));
}

BEHAVIOUR(cm_options)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	uint8_t byte = 8;
	int number = 1;

	result("tos", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	result("tos_of_4_bytes", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, 4));
	result("reuseaddr_of_1_byte", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, 1));
	result("afonly", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, 4));
	result("ack_timeout", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	byte = 32;
	result("ack_timeout_32", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1));
	result("unknown_option", rdma_set_option(id, RDMA_OPTION_ID, 99, &byte, 1));
	result("unknown_level", rdma_set_option(id, 9, 0, &byte, 1));
	result("bind", bind_to(id, own(0)));
	byte = 8;
	result("tos_late", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	result("reuseaddr_late", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, 4));
	result("afonly_late", rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, 4));
}

BEHAVIOUR(cm_listen)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	result("not_bound", rdma_listen(id, 1));
	id = new_id(RDMA_PS_TCP);
	NEED(!bind_to(id, own(LISTEN_PORT)));
	result("bound", rdma_listen(id, 0));
	result("twice", rdma_listen(id, 1));
	id = new_id(RDMA_PS_TCP);
	NEED(!bind_to(id, ipv4("0.0.0.0", LISTEN_PORT + 1)));
	result("negative", rdma_listen(id, -1));
	fact("verbs_of_any", "%d", id->verbs != NULL);
	result("destroy", rdma_destroy_id(id));
}

/* Calls that rdma-core's library does not survive on an id without device (route, accept, queue pair) are left out. */
BEHAVIOUR(cm_calls_of_a_new_id)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	result("reject", rdma_reject(id, NULL, 0));
	result("destroy", rdma_destroy_id(id));
}

BEHAVIOUR(cm_calls_of_a_bound_id)
{
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	NEED(!bind_to(id, own(0)));
	result("route", rdma_resolve_route(id, 100));
	result("connect", rdma_connect(id, &param));
	result("accept", rdma_accept(id, &param));
	result("reject", rdma_reject(id, NULL, 0));
	result("disconnect", rdma_disconnect(id));
	result("establish", rdma_establish(id));
}

BEHAVIOUR(cm_calls_of_a_listener)
{
	struct rdma_conn_param param = { 0 };

	listen_here();
	result("bind", bind_to(listener, own(0)));
	result("resolve", resolve(listener, own(1)));
	result("route", rdma_resolve_route(listener, 100));
	result("connect", rdma_connect(listener, &param));
	result("accept", rdma_accept(listener, &param));
	result("disconnect", rdma_disconnect(listener));
}

BEHAVIOUR(cm_resolve)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	result("own", resolve(id, own(LISTEN_PORT)));
	event("resolved");
	fact("verbs", "%d", id->verbs != NULL);
	fact("port", "%d", ntohs(rdma_get_dst_port(id)));
	fact("source_port", "%d", rdma_get_src_port(id) != 0);
	fact("source", "%d", !memcmp(&((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr, gid.raw + 12, 4));
	result("route", rdma_resolve_route(id, 2000));
	event("routed");
	fact("paths", "%d", id->route.num_paths);
	result("route_again", rdma_resolve_route(id, 2000));
}

BEHAVIOUR(cm_resolve_again)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);

	NEED(!resolve(id, own(LISTEN_PORT)));
	event("resolved");
	result("again", resolve(id, own(LISTEN_PORT)));
}

BEHAVIOUR(cm_resolve_refused)
{
	struct sockaddr_in address = own(1);

	result("no_route", resolve(new_id(RDMA_PS_TCP), ipv4("198.51.100.1", 1)));
	address.sin_family = 77;
	result("family", resolve(new_id(RDMA_PS_TCP), address));
	result("any", resolve(new_id(RDMA_PS_TCP), ipv4("0.0.0.0", 1)));
}

BEHAVIOUR(cm_connect)
{
	connect_here();
	fact("states", "%s %s", state_name(state_of(active->qp)), state_name(state_of(passive->qp)));
	fact("peer_port", "%d", rdma_get_dst_port(passive) == rdma_get_src_port(active));
	no_event("more");
}

BEHAVIOUR(cm_connect_twice)
{
	struct rdma_conn_param param = { 0 };

	connect_here();
	result("connect", rdma_connect(active, &param));
	result("accept", rdma_accept(passive, &param));
	result("reject", rdma_reject(passive, NULL, 0));
}

BEHAVIOUR(cm_disconnect)
{
	connect_here();
	result("disconnect", rdma_disconnect(active));
	event("first");
	result("disconnect_passive", rdma_disconnect(passive));
	event("second");
	fact("states", "%s %s", state_name(state_of(active->qp)), state_name(state_of(passive->qp)));
	result("again", rdma_disconnect(active));
	result("passive_again", rdma_disconnect(passive));
}

BEHAVIOUR(cm_destroy_connected)
{
	connect_here();
	rdma_destroy_qp(active);
	result("destroy", rdma_destroy_id(active));
	event("passive");
}

BEHAVIOUR(cm_no_listener)
{
	struct rdma_conn_param param = { 0 };

	resolve_here(LISTEN_PORT + 5);
	result("connect", rdma_connect(active, &param));
	event("event");
	fact("state", "%s", state_name(state_of(active->qp)));
}

BEHAVIOUR(cm_reject)
{
	struct rdma_conn_param param = { 0 };

	listen_here();
	resolve_here(LISTEN_PORT);
	result("connect", rdma_connect(active, &param));
	event("request");
	NEED(passive);
	result("reject", rdma_reject(passive, "no thanks", 9));
	event("event");
	fact("private", "%d %.9s", private_length >= 9, (char *)private_data);
	result("reject_again", rdma_reject(passive, NULL, 0));
	result("destroy", rdma_destroy_id(passive));
}

static void request_with(int length)
{
	static char data[256];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = length };
	int code;

	memset(data, 'x', sizeof data);
	listen_here();
	resolve_here(LISTEN_PORT);
	code = rdma_connect(active, &param);
	result("connect", code);
	if (code)
		return;
	event("request");
	fact("length", "%d", private_length);
	fact("data", "%d", length == 0 || (private_data[0] == 'x' && private_data[length - 1] == 'x' && (private_length == length || private_data[length] == 0)));
}

BEHAVIOUR(cm_request_of_0_bytes) { request_with(0); }
BEHAVIOUR(cm_request_of_1_byte) { request_with(1); }
BEHAVIOUR(cm_request_of_56_bytes) { request_with(56); }
BEHAVIOUR(cm_request_of_57_bytes) { request_with(57); }
BEHAVIOUR(cm_request_of_255_bytes) { request_with(255); }

static void reply_with(int length)
{
	static char data[256];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = length }, empty = { 0 };
	int code;

	memset(data, 'y', sizeof data);
	listen_here();
	resolve_here(LISTEN_PORT);
	NEED(!rdma_connect(active, &empty));
	event("request");
	NEED(passive);
	add_qp(passive);
	code = rdma_accept(passive, &param);
	result("accept", code);
	if (code)
		return;
	event("one");
	fact("one.length", "%d", private_length);
	event("other");
	fact("other.length", "%d", private_length);
}

BEHAVIOUR(cm_reply_of_0_bytes) { reply_with(0); }
BEHAVIOUR(cm_reply_of_196_bytes) { reply_with(196); }
BEHAVIOUR(cm_reply_of_197_bytes) { reply_with(197); }

static void reject_with(int length)
{
	static char data[256];
	struct rdma_conn_param empty = { 0 };
	int code;

	listen_here();
	resolve_here(LISTEN_PORT);
	NEED(!rdma_connect(active, &empty));
	event("request");
	NEED(passive);
	code = rdma_reject(passive, data, length);
	result("reject", code);
	if (code)
		return;
	event("event");
	fact("length", "%d", private_length);
}

BEHAVIOUR(cm_reject_of_148_bytes) { reject_with(148); }
BEHAVIOUR(cm_reject_of_149_bytes) { reject_with(149); }

/* What was asked and what the queue pairs got. */
BEHAVIOUR(cm_depths)
{
	struct rdma_conn_param ask = { .responder_resources = 3, .initiator_depth = 5, .retry_count = 4, .rnr_retry_count = 5 };
	struct rdma_conn_param answer = { .responder_resources = 2, .initiator_depth = 1, .rnr_retry_count = 6 };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	listen_here();
	resolve_here(LISTEN_PORT);
	NEED(!rdma_connect(active, &ask));
	event("request");
	NEED(passive);
	add_qp(passive);
	result("accept", rdma_accept(passive, &answer));
	event("one");
	event("other");
	NEED(!ibv_query_qp(active->qp, &attr, IBV_QP_STATE, &init));
	fact("active", "%d %d %d %d", attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.retry_cnt, attr.rnr_retry);
	NEED(!ibv_query_qp(passive->qp, &attr, IBV_QP_STATE, &init));
	fact("passive", "%d %d %d %d", attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.retry_cnt, attr.rnr_retry);
}

/* Each end retries as often as the other end asks: the active one by the REP, the passive one by the REQ. */
static void rnr_retries(int asked, int answered)
{
	struct rdma_conn_param ask = { .retry_count = 7, .rnr_retry_count = asked }, answer = { .retry_count = 5, .rnr_retry_count = answered };
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	listen_here();
	resolve_here(LISTEN_PORT);
	NEED(!rdma_connect(active, &ask));
	event("request");
	NEED(passive);
	add_qp(passive);
	result("accept", rdma_accept(passive, &answer));
	event("one");
	event("other");
	NEED(!ibv_query_qp(active->qp, &attr, IBV_QP_RNR_RETRY, &init));
	fact("active", "%d %d", attr.retry_cnt, attr.rnr_retry);
	NEED(!ibv_query_qp(passive->qp, &attr, IBV_QP_RNR_RETRY, &init));
	fact("passive", "%d %d", attr.retry_cnt, attr.rnr_retry);
}

BEHAVIOUR(cm_rnr_retry_7_and_0) { rnr_retries(7, 0); }
BEHAVIOUR(cm_rnr_retry_0_and_7) { rnr_retries(0, 7); }
BEHAVIOUR(cm_rnr_retry_7_and_7) { rnr_retries(7, 7); }
BEHAVIOUR(cm_rnr_retry_above_7) { rnr_retries(200, 9); }

BEHAVIOUR(cm_depths_beyond_the_device)
{
	struct rdma_conn_param ask = { .responder_resources = 255, .initiator_depth = 254 };

	listen_here();
	resolve_here(LISTEN_PORT);
	result("connect", rdma_connect(active, &ask));
}

BEHAVIOUR(cm_create_qp)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };

	NEED(!bind_to(id, own(0)));
	result("rc", rdma_create_qp(id, NULL, &init));
	fact("made", "%d %d %d", id->qp != NULL, id->send_cq != NULL, id->pd != NULL);
	NEED(id->qp);
	fact("state", "%s", state_name(state_of(id->qp)));
	rdma_destroy_qp(id);
	fact("gone", "%d", id->qp == NULL);
}

BEHAVIOUR(cm_create_qp_of_another_service)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = { 8, 8, 1, 1, 0 } };

	NEED(!bind_to(id, own(0)));
	result("ud_of_tcp", rdma_create_qp(id, NULL, &init));
}

BEHAVIOUR(cm_create_qp_of_another_context)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 } };

	NEED(!bind_to(id, own(0)));
	result("rc", rdma_create_qp(id, pd, &init));
}

BEHAVIOUR(cm_no_event)
{
	listen_here();
	no_event("event");
}

BEHAVIOUR(cm_migrate)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_TCP);
	struct rdma_event_channel *other = new_channel();

	result("resolve", resolve(id, own(LISTEN_PORT)));
	event("before");
	result("migrate", rdma_migrate_id(id, other));
	result("route", rdma_resolve_route(id, 2000));
	channel = other;
	event("after");
}

/* The addresses and events of an id in the port space of datagrams. */
BEHAVIOUR(cm_datagrams)
{
	struct rdma_conn_param param = { .qp_num = 0 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = { 8, 8, 1, 1, 0 } };

	listener = new_id(RDMA_PS_UDP);
	NEED(!bind_to(listener, own(LISTEN_PORT)) && !rdma_listen(listener, 8));
	active = new_id(RDMA_PS_UDP);
	result("resolve", resolve(active, own(LISTEN_PORT)));
	event("resolved");
	result("route", rdma_resolve_route(active, 2000));
	event("routed");
	result("qp", rdma_create_qp(active, NULL, &init));
	fact("state", "%s", state_name(state_of(active->qp)));
	result("connect", rdma_connect(active, &param));
	event("request");
	NEED(passive);
	result("qp_of_passive", rdma_create_qp(passive, NULL, &init));
	param.qp_num = passive->qp->qp_num;
	result("accept", rdma_accept(passive, &param));
	event("established");
	result("disconnect", rdma_disconnect(active));
}

BEHAVIOUR(cm_datagrams_without_listener)
{
	struct rdma_conn_param param = { 0 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = { 8, 8, 1, 1, 0 } };

	active = new_id(RDMA_PS_UDP);
	NEED(!resolve(active, own(LISTEN_PORT + 9)));
	event("resolved");
	NEED(!rdma_resolve_route(active, 2000));
	event("routed");
	NEED(!rdma_create_qp(active, NULL, &init));
	result("connect", rdma_connect(active, &param));
	event("event");
}

BEHAVIOUR(cm_multicast)
{
	struct rdma_cm_id *id = new_id(RDMA_PS_UDP);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = { 8, 8, 1, 1, 0 } };
	struct sockaddr_in group = ipv4("239.5.6.7", 0);
	int joined;

	result("join_unbound", rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	NEED(!bind_to(id, own(0)));
	NEED(!rdma_create_qp(id, NULL, &init));
	joined = rdma_join_multicast(id, (struct sockaddr *)&group, NULL);
	result("join", joined);
	if (joined)
		return;
	event("event");
	result("join_again", rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	result("leave", rdma_leave_multicast(id, (struct sockaddr *)&group));
	result("leave_again", rdma_leave_multicast(id, (struct sockaddr *)&group));
}

BEHAVIOUR(cm_getaddrinfo)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE }, *found = NULL;
	char text[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
	fact("passive", "%d", rdma_getaddrinfo(text, "7471", &hints, &found));
	if (found)
		fact("passive.is", "%d %d %#x %d %d", found->ai_family, found->ai_qp_type, found->ai_port_space, found->ai_src_addr != NULL,
		     found->ai_dst_addr != NULL);
	hints.ai_flags = RAI_NUMERICHOST;
	found = NULL;
	fact("active", "%d", rdma_getaddrinfo(text, "7471", &hints, &found));
	if (found)
		fact("active.is", "%d %d %#x %d %d", found->ai_family, found->ai_qp_type, found->ai_port_space, found->ai_src_addr != NULL,
		     found->ai_dst_addr != NULL);
	fact("name", "%d", rdma_getaddrinfo("not-a-number", "7471", &hints, &found) != 0);
	fact("nothing", "%d", rdma_getaddrinfo(NULL, NULL, &hints, &found) != 0);
}

BEHAVIOUR(cm_devices)
{
	int count = -1;
	struct ibv_context **list = rdma_get_devices(&count);

	fact("count", "%d", count);
	fact("ends", "%d", list && !list[count]);
	rdma_free_devices(list);
}
