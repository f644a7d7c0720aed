/* Creation of every object: ranges of sizes, flags, and what a call returns for them. */
#include "facts.h"

static void sized(const char *key, enum ibv_qp_type type, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr init = init_of(type);
	struct ibv_qp *qp;

	init.cap = cap;
	qp = ibv_create_qp(pd, &init);
	made(key, qp);
	if (!qp)
		return;
	fact(key_of("%s.enough", key), "%d", init.cap.max_send_wr >= cap.max_send_wr && init.cap.max_recv_wr >= cap.max_recv_wr &&
	     init.cap.max_send_sge >= cap.max_send_sge && init.cap.max_recv_sge >= cap.max_recv_sge &&
	     init.cap.max_inline_data >= cap.max_inline_data);
	ibv_destroy_qp(qp);
}

BEHAVIOUR(create_qp_sizes)
{
	const struct ibv_qp_cap cap = { 16, 16, 1, 1, 0 };
	struct ibv_qp_cap one;

#define WITH(key, field, value) (one = cap, one.field = (value), sized(key, IBV_QPT_RC, one))
	WITH("send_wr_0", max_send_wr, 0);
	WITH("send_wr_1", max_send_wr, 1);
	WITH("send_wr_max", max_send_wr, 16384);
	WITH("send_wr_beyond", max_send_wr, (uint32_t)device.max_qp_wr + 1);
	WITH("send_wr_huge", max_send_wr, UINT32_MAX);
	WITH("recv_wr_0", max_recv_wr, 0);
	WITH("recv_wr_beyond", max_recv_wr, (uint32_t)device.max_qp_wr + 1);
	WITH("recv_wr_huge", max_recv_wr, UINT32_MAX);
	WITH("send_sge_0", max_send_sge, 0);
	WITH("send_sge_32", max_send_sge, 32);
	WITH("send_sge_beyond", max_send_sge, (uint32_t)device.max_sge + 1);
	WITH("recv_sge_0", max_recv_sge, 0);
	WITH("recv_sge_32", max_recv_sge, 32);
	WITH("recv_sge_beyond", max_recv_sge, (uint32_t)device.max_sge + 1);
	WITH("inline_1", max_inline_data, 1);
	WITH("inline_256", max_inline_data, 256);
	WITH("inline_512", max_inline_data, 512);
	WITH("inline_1000000", max_inline_data, 1000000);
#undef WITH
	sized("all_0", IBV_QPT_RC, (struct ibv_qp_cap){ 0 });
	sized("ud", IBV_QPT_UD, cap);
	sized("uc", IBV_QPT_UC, cap);
}

BEHAVIOUR(create_qp_types)
{
	static const int types[] = { 0, 1, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, 5, 6, 7, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, 12, IBV_QPT_DRIVER };

	for (int i = 0; i < COUNT(types); i++) {
		struct ibv_qp_init_attr init = init_of(types[i]);

		made(key_of("type_%d", types[i]), ibv_create_qp(pd, &init));
	}
}

BEHAVIOUR(create_cq_sizes)
{
	static const int sizes[] = { 0, -1, 1, 2, 3, 100, 32767 };

	for (int i = 0; i < COUNT(sizes); i++) {
		struct ibv_cq *one = ibv_create_cq(context, sizes[i], NULL, NULL, 0);

		made(key_of("%d", sizes[i]), one);
		if (one) {
			fact(key_of("%d.enough", sizes[i]), "%d", one->cqe >= sizes[i]);
			ibv_destroy_cq(one);
		}
	}
	made("beyond", ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0));
	made("huge", ibv_create_cq(context, INT32_MAX, NULL, NULL, 0));
}

BEHAVIOUR(create_cq_vectors)
{
	made("-1", ibv_create_cq(context, 8, NULL, NULL, -1));
	made("0", ibv_create_cq(context, 8, NULL, NULL, 0));
	made("number", ibv_create_cq(context, 8, NULL, NULL, context->num_comp_vectors));
	made("9999", ibv_create_cq(context, 8, NULL, NULL, 9999));
}

BEHAVIOUR(create_cq_ex_flags)
{
	for (int bit = 0; bit < 12; bit++) {
		struct ibv_cq_init_attr_ex attr = { .cqe = 8, .wc_flags = 1ull << bit };

		made(key_of("wc_flag_%d", bit), ibv_create_cq_ex(context, &attr));
	}
	for (int bit = 0; bit < 4; bit++) {
		struct ibv_cq_init_attr_ex attr = { .cqe = 8, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1u << bit };

		made(key_of("flag_%d", bit), ibv_create_cq_ex(context, &attr));
	}
	for (int bit = 1; bit < 4; bit++) {
		struct ibv_cq_init_attr_ex attr = { .cqe = 8, .comp_mask = 1u << bit };

		made(key_of("mask_%d", bit), ibv_create_cq_ex(context, &attr));
	}
}

BEHAVIOUR(create_srq_sizes)
{
	const struct { const char *name; struct ibv_srq_attr attr; } sizes[] = {
		{ "wr_0", { 0, 1, 0 } }, { "wr_1", { 1, 1, 0 } }, { "wr_1000", { 1000, 1, 0 } }, { "sge_0", { 8, 0, 0 } }, { "sge_27", { 8, 27, 0 } },
		{ "wr_beyond", { (uint32_t)device.max_srq_wr + 1, 1, 0 } }, { "sge_beyond", { 8, (uint32_t)device.max_srq_sge + 1, 0 } },
		{ "limit_4", { 8, 1, 4 } }, { "limit_beyond", { 8, 1, 9 } }, { "wr_huge", { UINT32_MAX, 1, 0 } },
	};

	for (int i = 0; i < COUNT(sizes); i++) {
		struct ibv_srq_init_attr init = { .attr = sizes[i].attr };
		struct ibv_srq *srq = ibv_create_srq(pd, &init);
		struct ibv_srq_attr attr;

		made(sizes[i].name, srq);
		if (!srq)
			continue;
		fact(key_of("%s.enough", sizes[i].name), "%d", init.attr.max_wr >= sizes[i].attr.max_wr && init.attr.max_sge >= sizes[i].attr.max_sge);
		NEED(!ibv_query_srq(srq, &attr));
		fact(key_of("%s.limit", sizes[i].name), "%u", attr.srq_limit);
		ibv_destroy_srq(srq);
	}
}

BEHAVIOUR(create_qp_ex_flags)
{
	for (int bit = 0; bit < 14; bit++) {
		struct ibv_qp_init_attr_ex init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { 8, 8, 1, 1, 0 }, .pd = pd,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS, .create_flags = 1u << bit,
		};

		made(key_of("create_flag_%d", bit), ibv_create_qp_ex(context, &init));
	}
}

BEHAVIOUR(create_qp_ex_send_ops)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };

	for (int i = 0; i < COUNT(types); i++)
		for (int bit = 0; bit < 13; bit++) {
			struct ibv_qp_init_attr_ex init = {
				.send_cq = cq, .recv_cq = cq, .qp_type = types[i], .cap = { 8, 8, 1, 1, 0 }, .pd = pd,
				.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = 1ull << bit,
			};
			struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

			made(key_of("type_%d.op_%d", types[i], bit), qp);
		}
}

BEHAVIOUR(create_qp_ex_masks)
{
	for (int bit = 0; bit < 9; bit++) {
		struct ibv_qp_init_attr_ex init = {
			.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 }, .pd = pd,
			.comp_mask = IBV_QP_INIT_ATTR_PD | 1u << bit,
		};

		made(key_of("mask_%d", bit), ibv_create_qp_ex(context, &init));
	}
}

BEHAVIOUR(rare_objects)
{
	struct ibv_td_init_attr td = { 0 };
	struct ibv_parent_domain_init_attr parent = { .pd = pd };
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1 };
	struct ibv_wq_init_attr wq = { .wq_type = IBV_WQT_RQ, .max_wr = 8, .max_sge = 1, .pd = pd, .cq = cq };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_flow_attr flow = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof flow, .port = PORT };
	struct ibv_qp *qp = qp_in(IBV_QPT_UD, IBV_QPS_RTS);

	made("td", ibv_alloc_td(context, &td));
	made("parent_domain", ibv_alloc_parent_domain(context, &parent));
	made("dm", ibv_alloc_dm(context, &dm));
	made("xrcd", ibv_open_xrcd(context, &xrcd));
	made("wq", ibv_create_wq(context, &wq));
	made("counters", ibv_create_counters(context, &counters));
	made("flow", ibv_create_flow(qp, &flow));
	made("null_mr", ibv_alloc_null_mr(pd));
}

BEHAVIOUR(modify_cq_moderation)
{
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 16, 16 } };

	result("moderate", ibv_modify_cq(cq, &attr));
	attr.attr_mask = 0;
	result("nothing", ibv_modify_cq(cq, &attr));
	attr.attr_mask = 1 << 5;
	result("unknown", ibv_modify_cq(cq, &attr));
}

BEHAVIOUR(resize_cq)
{
	struct ibv_cq *one = ibv_create_cq(context, 8, NULL, NULL, 0);

	NEED(one);
	result("larger", ibv_resize_cq(one, 100));
	fact("larger.enough", "%d", one->cqe >= 100);
	result("smaller", ibv_resize_cq(one, 4));
	fact("smaller.enough", "%d", one->cqe >= 4);
	result("same", ibv_resize_cq(one, 4));
	result("0", ibv_resize_cq(one, 0));
	result("-1", ibv_resize_cq(one, -1));
	result("beyond", ibv_resize_cq(one, device.max_cqe + 1));
}

BEHAVIOUR(resize_cq_with_completions)
{
	struct ibv_cq *one = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp, *other = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	NEED(one);
	init.send_cq = one;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	bring(qp, IBV_QPS_INIT, 0);
	NEED(!move(qp, IBV_QPS_ERR));
	for (int i = 0; i < 8; i++)
		result(key_of("post_%d", i), post(qp, IBV_WR_RDMA_WRITE, 8));
	result("write", post(other, IBV_WR_RDMA_WRITE, 8));
	completion("write.completion", cq);
	result("grown", ibv_resize_cq(one, 32));
	for (int i = 0; i < 8; i++)
		completion(key_of("flushed_%d", i), one);
}
