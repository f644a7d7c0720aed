/* Work requests: opcodes, flags, lengths, lists and limits of every queue; what is refused at the call, and what completes with an error. */
#include "facts.h"

static struct ibv_qp *rts(enum ibv_qp_type type)
{
	return qp_in(type, IBV_QPS_RTS);
}

/* A datagram queue pair needs an address handle; connected ones ignore it. */
static int post_opcode(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_ah *ah)
{
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };

	if (qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = qp->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
		return post_wr(qp, &wr);
	}
	return post(qp, opcode, 8);
}

/* Each opcode on a queue pair of its own; windows have behaviours of their own. */
static void opcodes(enum ibv_qp_type type)
{
	static const struct { const char *name; enum ibv_wr_opcode opcode; } all[] = {
		{ "WRITE", IBV_WR_RDMA_WRITE }, { "WRITE_IMM", IBV_WR_RDMA_WRITE_WITH_IMM }, { "SEND", IBV_WR_SEND }, { "SEND_IMM", IBV_WR_SEND_WITH_IMM },
		{ "READ", IBV_WR_RDMA_READ }, { "CMP_SWAP", IBV_WR_ATOMIC_CMP_AND_SWP }, { "FETCH_ADD", IBV_WR_ATOMIC_FETCH_AND_ADD },
		{ "TSO", IBV_WR_TSO }, { "DRIVER1", IBV_WR_DRIVER1 }, { "FLUSH", 14 }, { "ATOMIC_WRITE", 15 }, { "NUMBER_99", 99 },
	};
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	NEED(ah);
	for (int i = 0; i < COUNT(all); i++) {
		struct ibv_qp *qp = rts(type);
		int code = post_opcode(qp, all[i].opcode, ah);

		result(all[i].name, code);
		ibv_destroy_qp(qp);
	}
}

BEHAVIOUR(opcodes_rc) { opcodes(IBV_QPT_RC); }
BEHAVIOUR(opcodes_uc) { opcodes(IBV_QPT_UC); }
BEHAVIOUR(opcodes_ud) { opcodes(IBV_QPT_UD); }

BEHAVIOUR(opcodes_complete)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);

	for (int i = 0; i < 3; i++)
		NEED(!post_receive(qp, 64));
	result("write", post(qp, IBV_WR_RDMA_WRITE, 8));
	completion("write.completion", cq);
	result("read", post(qp, IBV_WR_RDMA_READ, 8));
	completion("read.completion", cq);
	result("fetch_add", post(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, 8));
	completion("fetch_add.completion", cq);
	result("cmp_swap", post(qp, IBV_WR_ATOMIC_CMP_AND_SWP, 8));
	completion("cmp_swap.completion", cq);
}

/* Sends to a second queue pair with queues of its own, so that each side's completions are apart. */
static struct ibv_cq *far_cq;
static struct ibv_qp *far;

static struct ibv_qp *joined(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = init_of(type);
	struct ibv_qp *near;

	far_cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	NEED(far_cq);
	init.send_cq = init.recv_cq = far_cq;
	far = ibv_create_qp(pd, &init);
	NEED(far);
	near = new_qp(type);
	bring(far, IBV_QPS_RTS, near->qp_num);
	bring(near, IBV_QPS_RTS, far->qp_num);
	return near;
}

static void send_kind(const char *key, enum ibv_wr_opcode opcode, int flags)
{
	struct ibv_qp *qp = joined(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 20);
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags, .imm_data = htobe32(0xabcdef01) };
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	memset(area, 7, 20);
	NEED(!post_receive(far, 64));
	result(key, post_wr(qp, &wr));
	wc = completion(key_of("%s.sender", key), cq);
	fact(key_of("%s.sender.wr_id", key), "%d", (int)wc.wr_id);
	wc = completion(key_of("%s.receiver", key), far_cq);
	fact(key_of("%s.receiver.flags", key), "%#x", wc.wc_flags);
	fact(key_of("%s.receiver.imm", key), "%#x", wc.wc_flags & IBV_WC_WITH_IMM ? be32toh(wc.imm_data) : 0);
	fact(key_of("%s.receiver.qp_num", key), "%d", wc.qp_num == far->qp_num);
	fact(key_of("%s.received", key), "%u", sum(area + RECEIVE_AT, 20));
	fact(key_of("%s.written", key), "%u", sum(area + REMOTE_AT, 20));
}

BEHAVIOUR(send) { send_kind("send", IBV_WR_SEND, IBV_SEND_SIGNALED); }
BEHAVIOUR(send_with_immediate) { send_kind("imm", IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED); }
BEHAVIOUR(write_with_immediate) { send_kind("imm", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED); }
BEHAVIOUR(send_inline) { send_kind("inline", IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_INLINE); }
BEHAVIOUR(send_fenced) { send_kind("fence", IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_FENCE); }
BEHAVIOUR(send_solicited) { send_kind("solicited", IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED); }
BEHAVIOUR(send_unknown_flags) { send_kind("unknown", IBV_WR_SEND, IBV_SEND_SIGNALED | 1 << 9); }
BEHAVIOUR(send_ip_csum) { send_kind("csum", IBV_WR_SEND, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM); }

/* Only the last of three completes. */
BEHAVIOUR(unsignaled)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	result("first", post_wr(qp, &wr));
	result("second", post_wr(qp, &wr));
	wr.wr_id = 3;
	wr.send_flags = IBV_SEND_SIGNALED;
	result("third", post_wr(qp, &wr));
	wc = completion("completion", cq);
	fact("wr_id", "%d", (int)wc.wr_id);
	fact("more", "%d", ibv_poll_cq(cq, 1, &wc));
}

BEHAVIOUR(unsignaled_errors_complete)
{
	struct ibv_qp *qp = joined(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_wc wc;

	wr.wr.rdma.rkey = mr->rkey + 1000;
	result("bad_rkey", post_wr(qp, &wr));
	wc = completion("completion", cq);
	fact("wr_id", "%d", (int)wc.wr_id);
	fact("state", "%s", state_name(state_of(qp)));
}

BEHAVIOUR(signal_all)
{
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_qp *qp;

	init.sq_sig_all = 1;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	bring(qp, IBV_QPS_RTS, qp->qp_num);
	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	result("post", post_wr(qp, &wr));
	completion("completion", cq);
}

/* A read of what inline data was taken from, changed after the call. */
BEHAVIOUR(inline_is_copied_at_the_call)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);
	uint8_t local[16];
	struct ibv_sge sge = { .addr = (uintptr_t)local, .length = sizeof local };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };

	memset(local, 9, sizeof local);
	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	result("post", post_wr(qp, &wr));
	memset(local, 1, sizeof local);
	completion("completion", cq);
	fact("byte", "%d", area[REMOTE_AT]);
}

static int post_inline(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)area, .length = length };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };

	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	return post_wr(qp, &wr);
}

BEHAVIOUR(inline_limits)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);

	result("0", post_inline(qp, IBV_WR_RDMA_WRITE, 0));
	result("64", post_inline(qp, IBV_WR_RDMA_WRITE, 64));
	result("5000", post_inline(qp, IBV_WR_RDMA_WRITE, 5000));
	completion("first", cq);
	completion("second", cq);
	result("read", post_inline(qp, IBV_WR_RDMA_READ, 8));
	fact("state", "%s", state_name(state_of(qp)));
}

BEHAVIOUR(inline_without_room)
{
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp;

	init.cap.max_inline_data = 0;
	init.cap.max_send_sge = 1;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	bring(qp, IBV_QPS_RTS, qp->qp_num);
	result("beyond_what_was_returned", post_inline(qp, IBV_WR_RDMA_WRITE, init.cap.max_inline_data + 1));
}

/* Lengths of one request. */
BEHAVIOUR(message_lengths)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 0x80000001);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = (uintptr_t)area;
	wr.wr.rdma.rkey = mr->rkey;
	result("beyond_2_GiB", post_wr(qp, &wr));
	completion("beyond_2_GiB.completion", cq);
	ibv_destroy_qp(qp);
	qp = rts(IBV_QPT_RC);
	sge.length = 0;
	result("0", post_wr(qp, &wr));
	completion("0.completion", cq);
	wr.num_sge = 0;
	result("no_piece", post_wr(qp, &wr));
	completion("no_piece.completion", cq);
}

BEHAVIOUR(pieces_of_a_request)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);
	struct ibv_sge sges[40];
	struct ibv_send_wr wr = { .sg_list = sges, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	for (int i = 0; i < COUNT(sges); i++)
		sges[i] = piece(mr, i * 8, 8);
	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	for (int i = 0; i < 320; i++)
		area[i] = i;
	wr.num_sge = 2;
	result("2", post_wr(qp, &wr));
	completion("2.completion", cq);
	fact("2.bytes", "%u", sum(area + REMOTE_AT, 16));
	wr.num_sge = 40;
	result("40", post_wr(qp, &wr));
	wr.num_sge = -1;
	result("-1", post_wr(qp, &wr));
}

BEHAVIOUR(pieces_of_a_receive)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);
	struct ibv_sge sges[40];
	struct ibv_recv_wr wr = { .sg_list = sges }, *bad;

	for (int i = 0; i < COUNT(sges); i++)
		sges[i] = piece(mr, RECEIVE_AT + i * 16, 8);
	wr.num_sge = 40;
	result("40", ibv_post_recv(qp, &wr, &bad));
	wr.num_sge = 2;
	result("2", ibv_post_recv(qp, &wr, &bad));
	wr.num_sge = 0;
	result("0", ibv_post_recv(qp, &wr, &bad));
	for (int i = 0; i < 16; i++)
		area[i] = i + 1;
	result("send", post(qp, IBV_WR_SEND, 12));
	completion("first", cq);
	completion("second", cq);
	fact("bytes", "%u %u", sum(area + RECEIVE_AT, 8), sum(area + RECEIVE_AT + 16, 8));
	result("empty", post(qp, IBV_WR_SEND, 0));
	completion("empty.first", cq);
	completion("empty.second", cq);
}

/* Posts until the queue is full; what is returned is at least what was asked for. */
BEHAVIOUR(full_send_queue)
{
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int count = 0, code = 0;

	NEED(qp);
	bring(qp, IBV_QPS_SQD, qp->qp_num);
	while (count < 100000 && !(code = post(qp, IBV_WR_RDMA_WRITE, 8)))
		count++;
	fact("room", "%d", count >= DEPTH);
	fact("as_returned", "%d", count >= (int)init.cap.max_send_wr);
	result("then", code);
}

BEHAVIOUR(full_receive_queue)
{
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int count = 0, code = 0;

	NEED(qp);
	bring(qp, IBV_QPS_INIT, 0);
	while (count < 100000 && !(code = post_receive(qp, 8)))
		count++;
	fact("room", "%d", count >= (int)init.cap.max_recv_wr);
	result("then", code);
}

BEHAVIOUR(list_with_a_bad_request)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);
	struct ibv_sge sges[3] = { piece(mr, 0, 8), piece(mr, 0, 8), piece(mr, 0, 8) };
	struct ibv_send_wr wrs[3] = { 0 }, *bad = NULL;

	for (int i = 0; i < 3; i++) {
		wrs[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = &sges[i], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
		wrs[i].next = i < 2 ? &wrs[i + 1] : NULL;
		wrs[i].wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
		wrs[i].wr.rdma.rkey = mr->rkey;
	}
	wrs[1].num_sge = 50;
	result("post", ibv_post_send(qp, wrs, &bad));
	fact("bad", "%d", bad ? (int)(bad - wrs) : -1);
	completion("first", cq);
	result("later", post(qp, IBV_WR_RDMA_READ, 8));
	completion("later.completion", cq);
}

BEHAVIOUR(list_of_receives_with_a_bad_one)
{
	struct ibv_qp *qp = rts(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, RECEIVE_AT, 8);
	struct ibv_recv_wr wrs[3] = { 0 }, *bad = NULL;

	for (int i = 0; i < 3; i++)
		wrs[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &sge, .num_sge = i == 1 ? 50 : 1, .next = i < 2 ? &wrs[i + 1] : NULL };
	result("post", ibv_post_recv(qp, wrs, &bad));
	fact("bad", "%d", bad ? (int)(bad - wrs) : -1);
}

/* --- What goes wrong after the call --- */
static struct ibv_wc failing(const char *key, struct ibv_qp *qp, struct ibv_sge sge, enum ibv_wr_opcode opcode)
{
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };

	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	result(key, post_wr(qp, &wr));
	return completion(key_of("%s.completion", key), cq);
}

BEHAVIOUR(local_keys)
{
	struct ibv_sge sge = piece(mr, 0, 8);

	sge.lkey += 0x1000;
	failing("unknown", rts(IBV_QPT_RC), sge, IBV_WR_RDMA_WRITE);
	sge.lkey = 0;
	failing("0", rts(IBV_QPT_RC), sge, IBV_WR_RDMA_WRITE);
	sge = piece(mr, AREA - 4, 8);
	failing("beyond_the_end", rts(IBV_QPT_RC), sge, IBV_WR_RDMA_WRITE);
	sge = piece(mr, 0, 8);
	sge.addr -= 4;
	failing("before_the_begin", rts(IBV_QPT_RC), sge, IBV_WR_RDMA_WRITE);
}

BEHAVIOUR(local_keys_of_zero_length)
{
	struct ibv_sge sge = piece(mr, 0, 0);

	sge.lkey += 0x1000;
	failing("unknown", rts(IBV_QPT_RC), sge, IBV_WR_RDMA_WRITE);
}

BEHAVIOUR(local_rights)
{
	uint8_t *bytes = pages(4096);
	struct ibv_mr *readonly = ibv_reg_mr(pd, bytes, 4096, 0);

	NEED(readonly);
	failing("write_from_readonly", rts(IBV_QPT_RC), piece(readonly, 0, 8), IBV_WR_RDMA_WRITE);
	failing("read_into_readonly", rts(IBV_QPT_RC), piece(readonly, 0, 8), IBV_WR_RDMA_READ);
}

BEHAVIOUR(local_domains)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	uint8_t *bytes = pages(4096);
	struct ibv_mr *foreign = other ? ibv_reg_mr(other, bytes, 4096, ALL_RIGHTS) : NULL;

	NEED(foreign);
	failing("write_from_other_pd", rts(IBV_QPT_RC), piece(foreign, 0, 8), IBV_WR_RDMA_WRITE);
	failing("read_into_other_pd", rts(IBV_QPT_RC), piece(foreign, 0, 8), IBV_WR_RDMA_READ);
}

BEHAVIOUR(error_flushes_what_follows)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_sge good = piece(mr, 0, 8), wrong = piece(mr, 0, 8);
	struct ibv_send_wr wrs[3], *bad;

	wrong.lkey += 0x1000;
	NEED(!post_receive(qp, 64));
	for (int i = 0; i < 3; i++) {
		wrs[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = i ? &good : &wrong, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					       .send_flags = IBV_SEND_SIGNALED, .next = i < 2 ? &wrs[i + 1] : NULL };
		wrs[i].wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
		wrs[i].wr.rdma.rkey = mr->rkey;
	}
	result("post", ibv_post_send(qp, wrs, &bad));
	completion("0", cq);
	completion("1", cq);
	completion("2", cq);
	completion("3", cq);
	fact("state", "%s", state_name(state_of(qp)));
}

BEHAVIOUR(receive_too_short)
{
	struct ibv_qp *qp = joined(IBV_QPT_RC);

	NEED(!post_receive(far, 8));
	result("send", post(qp, IBV_WR_SEND, 16));
	completion("sender", cq);
	completion("receiver", far_cq);
	fact("states", "%s %s", state_name(state_of(qp)), state_name(state_of(far)));
}

BEHAVIOUR(receive_too_short_uc)
{
	struct ibv_qp *qp = joined(IBV_QPT_UC);
	struct ibv_wc wc;

	NEED(!post_receive(far, 8));
	NEED(!post_receive(far, 64));
	result("send", post(qp, IBV_WR_SEND, 16));
	completion("sender", cq);
	result("second", post(qp, IBV_WR_SEND, 8));
	completion("second.sender", cq);
	fact("polled", "%d", await(far_cq, &wc));
	fact("status", "%s", status_name(wc.status));
}

BEHAVIOUR(receive_with_a_wrong_key)
{
	struct ibv_qp *qp = joined(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, RECEIVE_AT, 64);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	sge.lkey += 0x1000;
	result("post", ibv_post_recv(far, &wr, &bad));
	result("send", post(qp, IBV_WR_SEND, 16));
	completion("sender", cq);
	completion("receiver", far_cq);
}

BEHAVIOUR(receive_into_readonly)
{
	struct ibv_qp *qp = joined(IBV_QPT_RC);
	uint8_t *bytes = pages(4096);
	struct ibv_mr *readonly = ibv_reg_mr(pd, bytes, 4096, 0);
	struct ibv_sge sge;
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	NEED(readonly);
	sge = piece(readonly, 0, 64);
	result("post", ibv_post_recv(far, &wr, &bad));
	result("send", post(qp, IBV_WR_SEND, 16));
	completion("sender", cq);
	completion("receiver", far_cq);
}

BEHAVIOUR(no_receive)
{
	struct ibv_qp *qp = joined(IBV_QPT_RC);

	result("send", post(qp, IBV_WR_SEND, 16));
	completion("completion", cq);
	fact("states", "%s %s", state_name(state_of(qp)), state_name(state_of(far)));
}

BEHAVIOUR(no_receive_for_immediate)
{
	struct ibv_qp *qp = joined(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED };

	area[0] = 5;
	wr.wr.rdma.remote_addr = (uintptr_t)area + REMOTE_AT;
	wr.wr.rdma.rkey = mr->rkey;
	result("write", post_wr(qp, &wr));
	completion("completion", cq);
}

BEHAVIOUR(no_receive_uc)
{
	struct ibv_qp *qp = joined(IBV_QPT_UC);
	struct ibv_wc wc;

	result("send", post(qp, IBV_WR_SEND, 16));
	completion("completion", cq);
	result("write", post(qp, IBV_WR_RDMA_WRITE, 16));
	completion("write.completion", cq);
	fact("received", "%d", ibv_poll_cq(far_cq, 1, &wc));
	fact("states", "%s %s", state_name(state_of(qp)), state_name(state_of(far)));
}

BEHAVIOUR(peer_that_is_not)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC);
	struct ibv_qp_attr attr;
	int mask;

	bring(qp, IBV_QPS_RTR, 0xfffff0);
	mask = step(IBV_QPT_RC, IBV_QPS_RTS, 0, &attr);
	attr.retry_cnt = 1;
	attr.timeout = 8;
	NEED(!ibv_modify_qp(qp, &attr, mask));
	result("write", post(qp, IBV_WR_RDMA_WRITE, 8));
	completion("completion", cq);
	fact("state", "%s", state_name(state_of(qp)));
}

BEHAVIOUR(peer_in_error)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC), *other = qp_in(IBV_QPT_RC, IBV_QPS_INIT);
	struct ibv_qp_attr attr;
	int mask;

	bring(qp, IBV_QPS_RTR, other->qp_num);
	mask = step(IBV_QPT_RC, IBV_QPS_RTS, 0, &attr);
	attr.retry_cnt = 1;
	attr.timeout = 8;
	NEED(!ibv_modify_qp(qp, &attr, mask));
	result("write", post(qp, IBV_WR_RDMA_WRITE, 8));
	completion("completion", cq);
}

/* A work request of UD, UC and RC to itself, many packets long. */
BEHAVIOUR(long_messages)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC };

	for (int i = 0; i < COUNT(types); i++) {
		struct ibv_qp *qp = joined(types[i]);

		for (int at = 0; at < 5000; at++)
			area[at] = at * 7 + i;
		NEED(!post_receive(far, 8192));
		result(key_of("%d.send", types[i]), post(qp, IBV_WR_SEND, 5000));
		completion(key_of("%d.sender", types[i]), cq);
		completion(key_of("%d.receiver", types[i]), far_cq);
		fact(key_of("%d.bytes", types[i]), "%d", !memcmp(area, area + RECEIVE_AT, 5000));
		result(key_of("%d.write", types[i]), post(qp, IBV_WR_RDMA_WRITE, 5000));
		completion(key_of("%d.writer", types[i]), cq);
	}
}

/* --- Requests by ibv_wr_start and ibv_wr_complete --- */
BEHAVIOUR(extended_posts)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 32 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex = qp ? ibv_qp_to_qp_ex(qp) : NULL;
	struct ibv_wc wc;

	NEED(ex);
	bring(qp, IBV_QPS_RTS, qp->qp_num);
	ibv_wr_start(ex);
	ex->wr_id = 11;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)area + REMOTE_AT);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)area, 8);
	result("complete", ibv_wr_complete(ex));
	wc = completion("completion", cq);
	fact("wr_id", "%d", (int)wc.wr_id);
	ibv_wr_start(ex);
	ex->wr_id = 12;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)area + REMOTE_AT);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)area, 8);
	ibv_wr_abort(ex);
	result("later", post(qp, IBV_WR_RDMA_READ, 8));
	wc = completion("later.completion", cq);
	ibv_wr_start(ex);
	result("nothing", ibv_wr_complete(ex));
	ibv_wr_start(ex);
	for (int i = 0; i < 100; i++) {
		ex->wr_flags = 0;
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)area + REMOTE_AT);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)area, 8);
	}
	result("too_many", ibv_wr_complete(ex));
}
