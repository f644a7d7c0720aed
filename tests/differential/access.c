/* Rights, keys, bounds and domains of remote memory; atomics; memory windows. */
#include "facts.h"
#include <sys/mman.h>

/* A pair, of which the responder has these rights. Two queue pairs, because a responder that refuses a request ends its own requests too. */
static struct ibv_qp *answering;

static struct ibv_qp *with_rights(int rights)
{
	struct ibv_qp *qp = new_qp(IBV_QPT_RC);
	struct ibv_qp_attr attr;
	int mask = step(IBV_QPT_RC, IBV_QPS_INIT, 0, &attr);

	answering = new_qp(IBV_QPT_RC);
	attr.qp_access_flags = rights;
	NEED(!ibv_modify_qp(answering, &attr, mask));
	mask = step(IBV_QPT_RC, IBV_QPS_RTR, qp->qp_num, &attr);
	NEED(!ibv_modify_qp(answering, &attr, mask));
	bring(qp, IBV_QPS_RTS, answering->qp_num);
	return qp;
}

/* One request to `address` with `rkey` on a queue pair of its own: its status. */
static void remote(const char *key, int rights, enum ibv_wr_opcode opcode, uint64_t address, uint32_t rkey, uint32_t length)
{
	struct ibv_qp *qp = with_rights(rights);
	struct ibv_sge sge = piece(mr, 0, length);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	int code;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = address;
		wr.wr.atomic.rkey = rkey;
	} else {
		wr.wr.rdma.remote_addr = address;
		wr.wr.rdma.rkey = rkey;
	}
	code = post_wr(qp, &wr);
	if (code)
		result(key, code);
	else
		completion(key, cq);
	ibv_destroy_qp(qp);
	ibv_destroy_qp(answering);
}

static const struct { const char *name; enum ibv_wr_opcode opcode; } operations[] = {
	{ "write", IBV_WR_RDMA_WRITE }, { "read", IBV_WR_RDMA_READ }, { "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ "cmp_swap", IBV_WR_ATOMIC_CMP_AND_SWP },
};

BEHAVIOUR(rights_of_queue_pairs)
{
	static const int rights[] = { 0, 1, 2, 4, 8, 15 };

	for (int r = 0; r < COUNT(rights); r++)
		for (int i = 0; i < COUNT(operations); i++)
			remote(key_of("%d.%s", rights[r], operations[i].name), rights[r], operations[i].opcode, (uintptr_t)area + REMOTE_AT, mr->rkey, 8);
}

BEHAVIOUR(rights_of_regions)
{
	static const int rights[] = { 0, 1, 3, 4, 5, 9, 15 };

	for (int r = 0; r < COUNT(rights); r++) {
		uint8_t *bytes = pages(4096);
		struct ibv_mr *one = ibv_reg_mr(pd, bytes, 4096, rights[r]);

		NEED(one);
		for (int i = 0; i < COUNT(operations); i++)
			remote(key_of("%d.%s", rights[r], operations[i].name), 15, operations[i].opcode, (uintptr_t)bytes, one->rkey, 8);
		ibv_dereg_mr(one);
	}
}

BEHAVIOUR(remote_keys)
{
	for (int i = 0; i < COUNT(operations); i++) {
		remote(key_of("unknown.%s", operations[i].name), 15, operations[i].opcode, (uintptr_t)area, mr->rkey + 0x1000, 8);
		remote(key_of("variant.%s", operations[i].name), 15, operations[i].opcode, (uintptr_t)area, mr->rkey ^ 0x55, 8);
		remote(key_of("0.%s", operations[i].name), 15, operations[i].opcode, (uintptr_t)area, 0, 8);
	}
}

BEHAVIOUR(remote_bounds)
{
	for (int i = 0; i < COUNT(operations); i++) {
		remote(key_of("last.%s", operations[i].name), 15, operations[i].opcode, (uintptr_t)area + AREA - 8, mr->rkey, 8);
		remote(key_of("over.%s", operations[i].name), 15, operations[i].opcode, (uintptr_t)area + AREA, mr->rkey, 8);
		remote(key_of("before.%s", operations[i].name), 15, operations[i].opcode, (uintptr_t)area - 8, mr->rkey, 8);
		remote(key_of("wraps.%s", operations[i].name), 15, operations[i].opcode, UINT64_MAX - 7, mr->rkey, 8);
	}
	remote("across.write", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area + AREA - 4, mr->rkey, 8);
	remote("across.read", 15, IBV_WR_RDMA_READ, (uintptr_t)area + AREA - 4, mr->rkey, 8);
	remote("long.write", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area + AREA - 4096, mr->rkey, 8192);
	remote("long.read", 15, IBV_WR_RDMA_READ, (uintptr_t)area + AREA - 4096, mr->rkey, 8192);
}

BEHAVIOUR(remote_zero_length)
{
	remote("write", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area, mr->rkey, 0);
	remote("read", 15, IBV_WR_RDMA_READ, (uintptr_t)area, mr->rkey, 0);
	remote("write.wrong_key", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area, mr->rkey + 0x1000, 0);
	remote("read.wrong_key", 15, IBV_WR_RDMA_READ, (uintptr_t)area, mr->rkey + 0x1000, 0);
	remote("write.out_of_bounds", 15, IBV_WR_RDMA_WRITE, 16, mr->rkey, 0);
	remote("write.without_right", 0, IBV_WR_RDMA_WRITE, (uintptr_t)area, mr->rkey, 0);
}

BEHAVIOUR(remote_domains)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	uint8_t *bytes = pages(4096);
	struct ibv_mr *foreign = other ? ibv_reg_mr(other, bytes, 4096, ALL_RIGHTS) : NULL;

	NEED(foreign);
	for (int i = 0; i < COUNT(operations); i++)
		remote(operations[i].name, 15, operations[i].opcode, (uintptr_t)bytes, foreign->rkey, 8);
}

BEHAVIOUR(deregistered_keys)
{
	uint8_t *bytes = pages(4096);
	struct ibv_mr *one = ibv_reg_mr(pd, bytes, 4096, ALL_RIGHTS);
	uint32_t rkey;

	NEED(one);
	rkey = one->rkey;
	result("dereg", ibv_dereg_mr(one));
	for (int i = 0; i < COUNT(operations); i++)
		remote(operations[i].name, 15, operations[i].opcode, (uintptr_t)bytes, rkey, 8);
}

BEHAVIOUR(state_of_the_responder_after_an_access_error)
{
	struct ibv_qp *near = new_qp(IBV_QPT_RC), *far = new_qp(IBV_QPT_RC);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	bring(far, IBV_QPS_RTS, near->qp_num);
	bring(near, IBV_QPS_RTS, far->qp_num);
	wr.wr.rdma.rkey = mr->rkey + 0x1000;
	result("write", post_wr(near, &wr));
	completion("completion", cq);
	fact("requester", "%s", state_name(state_of(near)));
	fact("responder", "%s", state_name(state_of(far)));
}

/* --- Atomics --- */
BEHAVIOUR(atomics_alignment)
{
	for (int at = 0; at < 8; at++)
		remote(key_of("at_%d", at), 15, IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)area + REMOTE_AT + at, mr->rkey, 8);
}

BEHAVIOUR(atomics_lengths)
{
	static const int lengths[] = { 0, 4, 7, 8, 9, 16 };

	for (int i = 0; i < COUNT(lengths); i++) {
		remote(key_of("fetch_add_%d", lengths[i]), 15, IBV_WR_ATOMIC_FETCH_AND_ADD, (uintptr_t)area + REMOTE_AT, mr->rkey, lengths[i]);
		remote(key_of("cmp_swap_%d", lengths[i]), 15, IBV_WR_ATOMIC_CMP_AND_SWP, (uintptr_t)area + REMOTE_AT, mr->rkey, lengths[i]);
	}
}

static void atomic(const char *key, struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t compare_add, uint64_t swap)
{
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	uint64_t *old = (uint64_t *)area, *now = (uint64_t *)(area + REMOTE_AT);

	wr.wr.atomic.remote_addr = (uintptr_t)now;
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.compare_add = compare_add;
	wr.wr.atomic.swap = swap;
	result(key, post_wr(qp, &wr));
	completion(key_of("%s.completion", key), cq);
	fact(key_of("%s.old", key), "%#llx", (unsigned long long)*old);
	fact(key_of("%s.now", key), "%#llx", (unsigned long long)*now);
}

BEHAVIOUR(atomics_results)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	*(uint64_t *)(area + REMOTE_AT) = 40;
	atomic("add_2", qp, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0);
	atomic("add_wraps", qp, IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 0);
	atomic("swap_matches", qp, IBV_WR_ATOMIC_CMP_AND_SWP, 41, 0xffffffffffffff00);
	atomic("swap_does_not", qp, IBV_WR_ATOMIC_CMP_AND_SWP, 41, 7);
}

/* --- Regions --- */
static void registered(const char *key, void *address, size_t length, int rights)
{
	struct ibv_mr *one = ibv_reg_mr(pd, address, length, rights);

	made(key, one);
	if (one)
		result(key_of("%s.dereg", key), ibv_dereg_mr(one));
}

BEHAVIOUR(region_rights)
{
	static const int rights[] = { 0, 1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 32, 33, 64, 65, 128, 129, 256, 1 << 9, 1 << 20, 1 << 21, 1 << 29 };
	uint8_t *bytes = pages(4096);

	for (int i = 0; i < COUNT(rights); i++)
		registered(key_of("rights_%#x", rights[i]), bytes, 4096, rights[i]);
}

BEHAVIOUR(region_ranges)
{
	uint8_t *bytes = pages(3 * 4096);

	registered("whole", bytes, 3 * 4096, 1);
	registered("odd", bytes + 5, 100, 1);
	registered("one_byte", bytes, 1, 1);
	registered("no_byte", bytes, 0, 1);
	registered("null", NULL, 4096, 1);
	registered("null_of_nothing", NULL, 0, 1);
	registered("unmapped", (void *)0x10000, 4096, 1);
	NEED(!munmap(bytes + 4096, 4096));
	registered("half_mapped", bytes, 3 * 4096, 1);
	registered("wraps", (void *)(UINTPTR_MAX - 4095), 8192, 1);
	registered("kernel", (void *)0xffff800000000000, 4096, 1);
	registered("huge", bytes, (size_t)1 << 62, 1);
}

BEHAVIOUR(region_twice)
{
	uint8_t *bytes = pages(4096);
	struct ibv_mr *one = ibv_reg_mr(pd, bytes, 4096, 1), *two = ibv_reg_mr(pd, bytes, 4096, 1);

	made("first", one);
	made("second", two);
	NEED(one && two);
	fact("keys_differ", "%d", one->lkey != two->lkey);
	result("first.dereg", ibv_dereg_mr(one));
	result("second.dereg", ibv_dereg_mr(two));
}

BEHAVIOUR(region_iova)
{
	uint8_t *bytes = pages(8192);
	struct ibv_mr *one = ibv_reg_mr_iova(pd, bytes, 4096, 0x1000, ALL_RIGHTS);

	made("reg", one);
	NEED(one);
	area[0] = 77;
	remote("at_iova", 15, IBV_WR_RDMA_WRITE, 0x1000, one->rkey, 8);
	fact("byte", "%d", bytes[0]);
	remote("at_address", 15, IBV_WR_RDMA_WRITE, (uintptr_t)bytes, one->rkey, 8);
	remote("over", 15, IBV_WR_RDMA_WRITE, 0x2000, one->rkey, 8);
	made("other_offset", ibv_reg_mr_iova(pd, bytes, 4096, 0x1234, ALL_RIGHTS));
}

BEHAVIOUR(region_rereg)
{
	uint8_t *bytes = pages(8192);
	struct ibv_mr *one = ibv_reg_mr(pd, bytes, 4096, ALL_RIGHTS);
	struct ibv_pd *other = ibv_alloc_pd(context);

	NEED(one && other);
	fact("nothing", "%d", ibv_rereg_mr(one, 0, NULL, NULL, 0, 0));
	fact("access", "%d", ibv_rereg_mr(one, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 1));
	fact("unknown", "%d", ibv_rereg_mr(one, 1 << 7, NULL, NULL, 0, 1));
	result("dereg", ibv_dereg_mr(one));
}

BEHAVIOUR(region_of_a_file)
{
	int fd = fileno(tmpfile());
	uint8_t *bytes;

	NEED(!ftruncate(fd, 8192));
	bytes = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(bytes != MAP_FAILED);
	registered("shared", bytes, 8192, ALL_RIGHTS);
	bytes = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, fd, 0);
	NEED(bytes != MAP_FAILED);
	registered("readonly_for_reads", bytes, 8192, IBV_ACCESS_REMOTE_READ);
	registered("readonly_for_writes", bytes, 8192, IBV_ACCESS_LOCAL_WRITE);
	bytes = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	NEED(bytes != MAP_FAILED);
	registered("no_access", bytes, 8192, IBV_ACCESS_LOCAL_WRITE);
	registered("no_access_for_reads", bytes, 8192, 0);
}

BEHAVIOUR(advise_mr)
{
	struct ibv_sge sge = piece(mr, 0, 4096);

	result("prefetch", ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	result("unknown", ibv_advise_mr(pd, 99, 0, &sge, 1));
}

/* --- Memory windows --- */
static struct ibv_mw *window;

static int bind1(struct ibv_qp *qp, size_t offset, size_t length, int rights)
{
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = { mr, (uintptr_t)area + offset, length, rights } };

	return ibv_bind_mw(qp, window, &bind);
}

BEHAVIOUR(window_types)
{
	made("type_1", ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	made("type_2", ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	made("type_0", ibv_alloc_mw(pd, 0));
	made("type_3", ibv_alloc_mw(pd, 3));
}

BEHAVIOUR(window_type_1)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	uint32_t before;

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	NEED(window);
	before = window->rkey;
	result("bind", bind1(qp, 4096, 4096, IBV_ACCESS_REMOTE_WRITE));
	completion("bind.completion", cq);
	fact("key_changed", "%d", window->rkey != before);
	remote("write", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area + 4096, window->rkey, 8);
	remote("write_over", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area + 8192, window->rkey, 8);
	remote("read", 15, IBV_WR_RDMA_READ, (uintptr_t)area + 4096, window->rkey, 8);
	remote("old_key", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area + 4096, before, 8);
	result("dealloc", ibv_dealloc_mw(window));
}

BEHAVIOUR(window_binds_refused)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	NEED(window);
	result("zero_based", bind1(qp, 0, 4096, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED));
	result("local_write", bind1(qp, 0, 4096, IBV_ACCESS_LOCAL_WRITE));
	result("over", bind1(qp, AREA - 4096, 8192, IBV_ACCESS_REMOTE_WRITE));
	fact("state", "%s", state_name(state_of(qp)));
}

BEHAVIOUR(window_of_a_region_without_bind)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	uint8_t *bytes = pages(4096);
	struct ibv_mr *one = ibv_reg_mr(pd, bytes, 4096, ALL_RIGHTS);
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = { one, (uintptr_t)bytes, 4096, IBV_ACCESS_REMOTE_WRITE } };
	int code;

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	NEED(window && one);
	code = ibv_bind_mw(qp, window, &bind);
	result("bind", code);
	if (!code)
		completion("completion", cq);
}

static int bind2(struct ibv_qp *qp, uint32_t rkey, size_t length, int rights)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };

	wr.bind_mw.mw = window;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)area, length, rights };
	return post_wr(qp, &wr);
}

static int invalidate(struct ibv_qp *qp, uint32_t rkey)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey };

	return post_wr(qp, &wr);
}

BEHAVIOUR(window_type_2)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
	uint32_t rkey;

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	NEED(window);
	rkey = ibv_inc_rkey(window->rkey);
	result("bind", bind2(qp, rkey, 4096, IBV_ACCESS_REMOTE_WRITE));
	completion("bind.completion", cq);
	wr.wr.rdma.remote_addr = (uintptr_t)area;
	wr.wr.rdma.rkey = rkey;
	result("write", post_wr(qp, &wr));
	completion("write.completion", cq);
	result("invalidate", invalidate(qp, rkey));
	completion("invalidate.completion", cq);
	result("write_again", post_wr(qp, &wr));
	completion("write_again.completion", cq);
}

BEHAVIOUR(window_type_2_of_another_queue_pair)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	uint32_t rkey;

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	NEED(window);
	rkey = ibv_inc_rkey(window->rkey);
	result("bind", bind2(qp, rkey, 4096, IBV_ACCESS_REMOTE_WRITE));
	completion("bind.completion", cq);
	remote("write", 15, IBV_WR_RDMA_WRITE, (uintptr_t)area, rkey, 8);
}

BEHAVIOUR(window_type_2_bound_twice)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	uint32_t rkey;
	int code;

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	NEED(window);
	rkey = ibv_inc_rkey(window->rkey);
	result("first", bind2(qp, rkey, 4096, IBV_ACCESS_REMOTE_WRITE));
	completion("first.completion", cq);
	code = bind2(qp, ibv_inc_rkey(rkey), 4096, IBV_ACCESS_REMOTE_WRITE);
	result("second", code);
	if (!code)
		completion("second.completion", cq);
}

BEHAVIOUR(window_holds_its_region)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	window = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	NEED(window);
	result("bind", bind1(qp, 0, 4096, IBV_ACCESS_REMOTE_WRITE));
	completion("completion", cq);
	result("dereg_region", ibv_dereg_mr(mr));
	result("dealloc", ibv_dealloc_mw(window));
}

BEHAVIOUR(invalidate_a_region)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	result("post", invalidate(qp, mr->rkey));
	completion("completion", cq);
}

BEHAVIOUR(invalidate_an_unknown_key)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	result("post", invalidate(qp, mr->rkey + 0x1000));
	completion("completion", cq);
	fact("state", "%s", state_name(state_of(qp)));
}
