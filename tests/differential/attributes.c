/* Ranges of every attribute of ibv_modify_qp: values at and beyond the edge, whether they are accepted, and what is read back. */
#include "facts.h"
#include <arpa/inet.h>

typedef void setter(struct ibv_qp_attr *attr, uint32_t value);
typedef uint32_t getter(const struct ibv_qp_attr *attr);

#define FIELD(name, field) \
	static void set_##name(struct ibv_qp_attr *attr, uint32_t value) { attr->field = value; } \
	static uint32_t get_##name(const struct ibv_qp_attr *attr) { return attr->field; }
FIELD(min_rnr_timer, min_rnr_timer)
FIELD(retry_cnt, retry_cnt)
FIELD(rnr_retry, rnr_retry)
FIELD(timeout, timeout)
FIELD(path_mtu, path_mtu)
FIELD(port, port_num)
FIELD(pkey_index, pkey_index)
FIELD(rq_psn, rq_psn)
FIELD(sq_psn, sq_psn)
FIELD(dest, dest_qp_num)
FIELD(rd_atomic, max_rd_atomic)
FIELD(dest_rd_atomic, max_dest_rd_atomic)
FIELD(access, qp_access_flags)
FIELD(qkey, qkey)
FIELD(sl, ah_attr.sl)
FIELD(av_port, ah_attr.port_num)
FIELD(is_global, ah_attr.is_global)
FIELD(sgid_index, ah_attr.grh.sgid_index)
FIELD(hop_limit, ah_attr.grh.hop_limit)
FIELD(traffic_class, ah_attr.grh.traffic_class)
FIELD(flow_label, ah_attr.grh.flow_label)
FIELD(static_rate, ah_attr.static_rate)
FIELD(src_path_bits, ah_attr.src_path_bits)

/* Makes the step to `state` with each value of one attribute. */
static void values(enum ibv_qp_type type, enum ibv_qp_state state, setter *set, getter *get, const uint32_t *list, int count)
{
	for (int i = 0; i < count; i++) {
		struct ibv_qp *qp = qp_in(type, state == IBV_QPS_INIT ? IBV_QPS_RESET : state == IBV_QPS_RTR ? IBV_QPS_INIT : IBV_QPS_RTR);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		int mask = step(type, state, qp->qp_num, &attr), code;

		set(&attr, list[i]);
		code = ibv_modify_qp(qp, &attr, mask);
		result(key_of("%u", list[i]), code);
		if (!code && !ibv_query_qp(qp, &attr, mask, &init))
			fact(key_of("%u.then", list[i]), "%u", get(&attr));
		ibv_destroy_qp(qp);
	}
}

#define VALUES(name, type, state, field, ...) \
	BEHAVIOUR(range_##name) \
	{ \
		static const uint32_t list[] = { __VA_ARGS__ }; \
		values(type, state, set_##field, get_##field, list, COUNT(list)); \
	}
VALUES(min_rnr_timer, IBV_QPT_RC, IBV_QPS_RTR, min_rnr_timer, 0, 1, 31, 32, 63, 255)
VALUES(retry_cnt, IBV_QPT_RC, IBV_QPS_RTS, retry_cnt, 0, 1, 7, 8, 10, 255)
VALUES(rnr_retry, IBV_QPT_RC, IBV_QPS_RTS, rnr_retry, 0, 6, 7, 8, 10, 255)
VALUES(timeout, IBV_QPT_RC, IBV_QPS_RTS, timeout, 0, 1, 31, 32, 63, 255)
VALUES(path_mtu, IBV_QPT_RC, IBV_QPS_RTR, path_mtu, 0, 1, 2, 3, 4, 5, 6, 99)
VALUES(path_mtu_uc, IBV_QPT_UC, IBV_QPS_RTR, path_mtu, 0, 1, 3, 4, 5, 6)
VALUES(port_num, IBV_QPT_RC, IBV_QPS_INIT, port, 0, 1, 2, 255)
VALUES(port_num_ud, IBV_QPT_UD, IBV_QPS_INIT, port, 0, 1, 2, 255)
VALUES(pkey_index, IBV_QPT_RC, IBV_QPS_INIT, pkey_index, 0, 1, 63, 65535)
VALUES(pkey_index_ud, IBV_QPT_UD, IBV_QPS_INIT, pkey_index, 0, 1, 65535)
VALUES(rq_psn, IBV_QPT_RC, IBV_QPS_RTR, rq_psn, 0, 0xffffff, 0x1000000, 0xffffffff)
VALUES(sq_psn, IBV_QPT_RC, IBV_QPS_RTS, sq_psn, 0, 0xffffff, 0x1000000, 0xffffffff)
VALUES(sq_psn_ud, IBV_QPT_UD, IBV_QPS_RTS, sq_psn, 0, 0xffffff, 0x1000000, 0xffffffff)
VALUES(dest_qp_num, IBV_QPT_RC, IBV_QPS_RTR, dest, 0, 1, 0xffffff, 0x1000000, 0xffffffff)
VALUES(max_rd_atomic, IBV_QPT_RC, IBV_QPS_RTS, rd_atomic, 0, 1, 3, 16, 128, 129, 255)
VALUES(max_dest_rd_atomic, IBV_QPT_RC, IBV_QPS_RTR, dest_rd_atomic, 0, 1, 3, 16, 128, 129, 255)
VALUES(access_flags, IBV_QPT_RC, IBV_QPS_INIT, access, 0, 1, 2, 4, 8, 15, 16, 32, 64, 128, 256, 512, 1u << 20, 1u << 31)
VALUES(access_flags_uc, IBV_QPT_UC, IBV_QPS_INIT, access, 0, 1, 2, 4, 8, 15)
VALUES(qkey, IBV_QPT_UD, IBV_QPS_INIT, qkey, 0, 1, 0x7fffffff, 0x80000000, 0x80010000, 0xffffffff)
VALUES(av_sl, IBV_QPT_RC, IBV_QPS_RTR, sl, 0, 7, 8, 15, 16, 255)
VALUES(av_port, IBV_QPT_RC, IBV_QPS_RTR, av_port, 0, 1, 2, 255)
VALUES(av_is_global, IBV_QPT_RC, IBV_QPS_RTR, is_global, 0, 1, 2)
VALUES(av_sgid_index, IBV_QPT_RC, IBV_QPS_RTR, sgid_index, 100, 255)
VALUES(av_hop_limit, IBV_QPT_RC, IBV_QPS_RTR, hop_limit, 0, 1, 64, 255)
VALUES(av_traffic_class, IBV_QPT_RC, IBV_QPS_RTR, traffic_class, 0, 1, 104, 255)
VALUES(av_flow_label, IBV_QPT_RC, IBV_QPS_RTR, flow_label, 0, 1, 0xfffff, 0x100000, 0xffffffff)
VALUES(av_static_rate, IBV_QPT_RC, IBV_QPS_RTR, static_rate, 0, 1, 2, 18, 19, 255)
VALUES(av_src_path_bits, IBV_QPT_RC, IBV_QPS_RTR, src_path_bits, 0, 1, 127, 255)

/* Destinations, by address vectors of a connected queue pair and by address handles. */
static const struct { const char *name, *address; } destinations[] = {
	{ "zero", "::" }, { "loopback6", "::1" }, { "loopback4", "::ffff:127.0.0.1" }, { "multicast6", "ff0e::1" },
	{ "multicast4", "::ffff:224.0.0.9" }, { "broadcast", "::ffff:255.255.255.255" }, { "any4", "::ffff:0.0.0.0" },
};

static struct ibv_ah_attr towards(const char *address)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT, .grh = { .sgid_index = gid_index, .hop_limit = 64 } };

	NEED(inet_pton(AF_INET6, address, attr.grh.dgid.raw) == 1);
	return attr;
}

BEHAVIOUR(destinations_of_queue_pairs)
{
	for (int i = 0; i < COUNT(destinations); i++) {
		struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_INIT);
		struct ibv_qp_attr attr;
		int mask = step(IBV_QPT_RC, IBV_QPS_RTR, qp->qp_num, &attr);

		attr.ah_attr = towards(destinations[i].address);
		result(destinations[i].name, ibv_modify_qp(qp, &attr, mask));
		ibv_destroy_qp(qp);
	}
}

BEHAVIOUR(destinations_of_handles)
{
	for (int i = 0; i < COUNT(destinations); i++) {
		struct ibv_ah_attr attr = towards(destinations[i].address);
		struct ibv_ah *ah = ibv_create_ah(pd, &attr);

		made(destinations[i].name, ah);
		if (ah)
			ibv_destroy_ah(ah);
	}
}

static void handle(const char *key, struct ibv_ah_attr attr)
{
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	made(key, ah);
	if (ah)
		result(key_of("%s.destroyed", key), ibv_destroy_ah(ah));
}

BEHAVIOUR(handles)
{
	const struct ibv_ah_attr good = { .is_global = 1, .port_num = PORT, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };
	struct ibv_ah_attr attr = good;

	handle("good", attr);
	attr.port_num = 0;
	handle("port_0", attr);
	attr.port_num = 2;
	handle("port_2", attr);
	attr = good;
	attr.is_global = 0;
	handle("not_global", attr);
	attr = good;
	attr.grh.sgid_index = 200;
	handle("sgid_index_200", attr);
	attr = good;
	attr.sl = 15;
	handle("sl_15", attr);
	attr.sl = 16;
	handle("sl_16", attr);
	attr = good;
	attr.grh.hop_limit = 0;
	handle("hop_limit_0", attr);
	attr = good;
	attr.grh.flow_label = 0x100000;
	handle("flow_label_wide", attr);
	attr = good;
	attr.dlid = 7;
	handle("dlid_7", attr);
	attr = good;
	attr.static_rate = 255;
	handle("static_rate_255", attr);
}

BEHAVIOUR(alternate_path)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTR);
	struct ibv_qp_attr attr, rtr;
	int mask = step(IBV_QPT_RC, IBV_QPS_RTS, 0, &attr);

	step(IBV_QPT_RC, IBV_QPS_RTR, 0, &rtr);
	attr.alt_ah_attr = rtr.ah_attr;
	attr.alt_port_num = 2;
	result("port_2", ibv_modify_qp(qp, &attr, mask | IBV_QP_ALT_PATH));
	attr.alt_port_num = PORT;
	attr.alt_timeout = 32;
	result("timeout_32", ibv_modify_qp(qp, &attr, mask | IBV_QP_ALT_PATH));
	attr.alt_timeout = 14;
	attr.alt_pkey_index = 9;
	result("pkey_index_9", ibv_modify_qp(qp, &attr, mask | IBV_QP_ALT_PATH));
}
