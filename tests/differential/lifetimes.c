/* Destruction: of objects that others use, in every order; and what two contexts and processes share. */
#include "facts.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

BEHAVIOUR(destroy_pd_with_children)
{
	struct ibv_pd *one = ibv_alloc_pd(context);
	struct ibv_srq_init_attr srq_init = { .attr = { 8, 1, 0 } };
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT, .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 64 } };
	struct ibv_mr *region;
	struct ibv_qp *qp;
	struct ibv_srq *srq;
	struct ibv_ah *ah;
	struct ibv_mw *mw;

	NEED(one);
	region = ibv_reg_mr(one, pages(4096), 4096, 1);
	result("region", ibv_dealloc_pd(one));
	result("region.dereg", ibv_dereg_mr(region));
	qp = ibv_create_qp(one, &init);
	result("qp", ibv_dealloc_pd(one));
	result("qp.destroy", ibv_destroy_qp(qp));
	srq = ibv_create_srq(one, &srq_init);
	result("srq", ibv_dealloc_pd(one));
	result("srq.destroy", ibv_destroy_srq(srq));
	ah = ibv_create_ah(one, &attr);
	result("ah", ibv_dealloc_pd(one));
	result("ah.destroy", ibv_destroy_ah(ah));
	mw = ibv_alloc_mw(one, IBV_MW_TYPE_1);
	result("mw", ibv_dealloc_pd(one));
	result("mw.dealloc", ibv_dealloc_mw(mw));
	result("none", ibv_dealloc_pd(one));
}

BEHAVIOUR(destroy_cq_in_use)
{
	struct ibv_cq *one = ibv_create_cq(context, 8, NULL, NULL, 0), *two = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp;

	NEED(one && two);
	init.send_cq = one;
	init.recv_cq = two;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	result("send_cq", ibv_destroy_cq(one));
	result("recv_cq", ibv_destroy_cq(two));
	result("qp", ibv_destroy_qp(qp));
	result("send_cq.after", ibv_destroy_cq(one));
	result("recv_cq.after", ibv_destroy_cq(two));
}

BEHAVIOUR(destroy_srq_in_use)
{
	struct ibv_srq_init_attr srq_init = { .attr = { 8, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_qp *qp;

	NEED(srq);
	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	NEED(qp);
	result("in_use", ibv_destroy_srq(srq));
	result("qp", ibv_destroy_qp(qp));
	result("after", ibv_destroy_srq(srq));
}

BEHAVIOUR(destroy_with_requests_outstanding)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	for (int i = 0; i < 8; i++) {
		NEED(!post_receive(qp, 64));
		NEED(!post(qp, IBV_WR_RDMA_WRITE, 4096));
	}
	result("qp", ibv_destroy_qp(qp));
	result("cq", ibv_destroy_cq(cq));
	result("region", ibv_dereg_mr(mr));
	result("pd", ibv_dealloc_pd(pd));
	result("context", ibv_close_device(context));
}

BEHAVIOUR(close_with_objects)
{
	qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	result("context", ibv_close_device(context));
}

BEHAVIOUR(many_queue_pairs)
{
	int count = 0;

	while (count < 200 && ibv_create_qp(pd, &(struct ibv_qp_init_attr){ .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } }))
		count++;
	fact("count", "%d", count);
}

BEHAVIOUR(queue_pair_numbers_differ)
{
	struct ibv_qp *one = new_qp(IBV_QPT_RC), *two = new_qp(IBV_QPT_UD);

	fact("differ", "%d", one->qp_num != two->qp_num);
	fact("not_0_or_1", "%d", one->qp_num > 1 && two->qp_num > 1);
	fact("24_bits", "%d", one->qp_num < 1 << 24 && two->qp_num < 1 << 24);
}

BEHAVIOUR(objects_of_two_contexts)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *other = ibv_open_device(list[0]);
	struct ibv_qp_init_attr init = init_of(IBV_QPT_RC);
	struct ibv_pd *theirs = other ? ibv_alloc_pd(other) : NULL;
	struct ibv_cq *queue = other ? ibv_create_cq(other, 8, NULL, NULL, 0) : NULL;
	struct ibv_qp *qp;

	NEED(theirs && queue);
	init.send_cq = init.recv_cq = queue;
	qp = ibv_create_qp(theirs, &init);
	made("own", qp);
	NEED(qp);
	bring(qp, IBV_QPS_RTR, qp->qp_num);
	result("destroy", ibv_destroy_qp(qp));
	result("close_with_objects", ibv_close_device(other));
}

/* --- Processes --- */
/* What a child finds at `at` some time after the parent wrote there. */
static void forked(const char *key, uint8_t *at, int before, int after)
{
	int ask[2], said[2];
	char byte = 0, seen = 0;
	pid_t child;

	NEED(!pipe(ask) && !pipe(said));
	*at = before;
	child = fork();
	if (!child) {
		if (read(ask[0], &byte, 1) != 1)
			_exit(1);
		seen = *at;
		_exit(write(said[1], &seen, 1) != 1);
	}
	*at = after;
	NEED(write(ask[1], &byte, 1) == 1 && read(said[0], &seen, 1) == 1);
	waitpid(child, NULL, 0);
	fact(key, "%d", seen);
	fact(key_of("%s.parent", key), "%d", *at);
}

BEHAVIOUR(fork_is_a_snapshot)
{
	forked("registered", area + 100, 1, 2);
	forked("not_registered", pages(4096), 1, 2);
}

BEHAVIOUR(fork_and_heap)
{
	uint8_t *heap = malloc(3 * 4096);
	struct ibv_mr *one = ibv_reg_mr(pd, heap + 4096, 100, ALL_RIGHTS);

	NEED(heap && one);
	forked("same_page", heap + 4096 + 500, 1, 2);
	forked("registered", heap + 4096, 1, 2);
}

BEHAVIOUR(fork_then_write_by_the_adapter)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	area[0] = 9;
	area[REMOTE_AT] = 1;
	forked("child", area + REMOTE_AT, 1, 2);
	result("write", post(qp, IBV_WR_RDMA_WRITE, 8));
	completion("completion", cq);
	fact("parent", "%d", area[REMOTE_AT]);
}

BEHAVIOUR(fork_child_uses_its_own_context)
{
	int status;
	pid_t child = fork();

	if (!child) {
		/* Where a program has an address of its own, its child does not get a device, and the library says so. */
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_context *own = list && list[0] ? ibv_open_device(list[0]) : NULL;

		_exit(!own || !ibv_alloc_pd(own));
	}
	NEED(waitpid(child, &status, 0) == child);
	fact("child", "%d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

BEHAVIOUR(fork_child_ends_and_the_parent_goes_on)
{
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	pid_t child = fork();

	if (!child)
		_exit(0);
	NEED(waitpid(child, NULL, 0) == child);
	result("write", post(qp, IBV_WR_RDMA_WRITE, 8));
	completion("completion", cq);
}

BEHAVIOUR(fork_init)
{
	result("late", ibv_fork_init());
	fact("status", "%d", ibv_is_fork_initialized() != 0);
}

BEHAVIOUR(discarded_pages)
{
	uint8_t *bytes = pages(8192);
	struct ibv_mr *one;
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	memset(bytes, 5, 8192);
	one = ibv_reg_mr(pd, bytes, 8192, ALL_RIGHTS);
	NEED(one);
	result("madvise", madvise(bytes, 4096, MADV_DONTNEED));
	fact("discarded", "%d", bytes[0]);
	fact("kept", "%d", bytes[4096]);
	sge = piece(mr, 0, 8);
	wr.wr.rdma.remote_addr = (uintptr_t)bytes;
	wr.wr.rdma.rkey = one->rkey;
	result("write", post_wr(qp, &wr));
	completion("completion", cq);
}

/* Writes `value` to eight bytes of a region, by the queue pair. */
static void written_by_a_peer(const char *key, struct ibv_qp *qp, struct ibv_mr *one, uint8_t *at, int value)
{
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	memset(area, value, 8);
	wr.wr.rdma.remote_addr = (uintptr_t)at;
	wr.wr.rdma.rkey = one->rkey;
	NEED(!post_wr(qp, &wr));
	completion(key, cq);
}

static int all_are(const uint8_t *bytes, int len, int value)
{
	for (int i = 0; i < len; i++)
		if (bytes[i] != value)
			return 0;
	return 1;
}

BEHAVIOUR(discarded_and_used_again)
{
	uint8_t *bytes = pages(4 * 4096);
	struct ibv_mr *one;
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	memset(bytes, 5, 4 * 4096);
	one = ibv_reg_mr(pd, bytes + 4096, 2 * 4096, ALL_RIGHTS);
	NEED(one);
	result("madvise", madvise(bytes, 2 * 4096, MADV_DONTNEED));
	fact("zeros", "%d", all_are(bytes, 2 * 4096, 0));
	fact("kept", "%d", all_are(bytes + 2 * 4096, 2 * 4096, 5));
	memset(bytes, 6, 2 * 4096);
	written_by_a_peer("kept_page", qp, one, bytes + 2 * 4096, 7);
	fact("kept_page.byte", "%d", bytes[2 * 4096]);
	fact("own", "%d", all_are(bytes, 2 * 4096, 6));
	result("dereg", ibv_dereg_mr(one));
	fact("after", "%d %d %d", bytes[0], bytes[4096], bytes[2 * 4096]);
	result("again", madvise(bytes, 4 * 4096, MADV_DONTNEED));
	fact("again.zeros", "%d", all_are(bytes, 4 * 4096, 0));
}

BEHAVIOUR(discarded_lazily)
{
	uint8_t *bytes = pages(8192);
	struct ibv_mr *one;

	memset(bytes, 5, 8192);
	one = ibv_reg_mr(pd, bytes, 8192, ALL_RIGHTS);
	NEED(one);
	result("madvise", madvise(bytes, 4096, MADV_FREE));
	bytes[0] = 6;
	fact("written", "%d", bytes[0]);
	fact("kept", "%d", bytes[4096]);
}

/* What `calloc` returns after a block of `len` bytes that was registered, and perhaps still is, was freed. */
static void calloc_after(const char *key, int len, int stays)
{
	uint8_t *block = malloc(len), *next, *guard = malloc(100);
	struct ibv_mr *one;

	memset(block, 9, len);
	one = ibv_reg_mr(pd, block, len, ALL_RIGHTS);
	NEED(one && guard);
	if (!stays)
		NEED(!ibv_dereg_mr(one));
	free(block);
	malloc_trim(0);
	next = calloc(1, len);
	NEED(next);
	fact(key, "%d", all_are(next, len, 0));
	memset(next, 8, len);
	if (stays)
		NEED(!ibv_dereg_mr(one));
	fact(key_of("%s.kept", key), "%d", all_are(next, len, 8));
	free(next);
	free(guard);
}

BEHAVIOUR(calloc_after_free)
{
	calloc_after("small", 3 * 4096, 0);
	calloc_after("small.registered", 3 * 4096, 1);
	calloc_after("medium", 100 << 10, 0);
	calloc_after("medium.registered", 100 << 10, 1);
	calloc_after("large", 8 << 20, 0);
	calloc_after("large.registered", 8 << 20, 1);
}

static void *calloc_in_a_thread(void *unused)
{
	calloc_after("medium", 100 << 10, 0);
	calloc_after("medium.registered", 100 << 10, 1);
	return unused;
}

/* The arenas of other threads shrink by MADV_DONTNEED. */
BEHAVIOUR(calloc_after_free_in_a_thread)
{
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, calloc_in_a_thread, NULL));
	pthread_join(thread, NULL);
}

BEHAVIOUR(moved_and_written)
{
	uint8_t *bytes = pages(8 * 4096), *moved;
	struct ibv_mr *one, *behind;
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);

	memset(bytes, 5, 8 * 4096);
	one = ibv_reg_mr(pd, bytes + 4096, 2 * 4096, ALL_RIGHTS);
	behind = ibv_reg_mr(pd, bytes + 4 * 4096, 4 * 4096, ALL_RIGHTS);
	NEED(one && behind);
	moved = mremap(bytes, 4 * 4096, 8 * 4096, MREMAP_MAYMOVE);
	result("mremap", moved == MAP_FAILED ? -1 : 0);
	NEED(moved != MAP_FAILED);
	fact("kept", "%d", all_are(moved, 4 * 4096, 5));
	fact("added", "%d", all_are(moved + 4 * 4096, 4 * 4096, 0));
	written_by_a_peer("write", qp, one, bytes + 4096, 7);
	fact("written", "%d", moved[4096]);
	memset(moved, 6, 8 * 4096);
	fact("behind", "%d", all_are(bytes + 4 * 4096, 4 * 4096, 5));
	forked("fork", moved + 2 * 4096, 1, 2);
	result("dereg", ibv_dereg_mr(one));
	fact("after", "%d %d", moved[0], moved[4096]);
	result("discard", madvise(moved, 8 * 4096, MADV_DONTNEED));
	fact("zeros", "%d", all_are(moved, 8 * 4096, 0));
}

BEHAVIOUR(unmapped_pages)
{
	uint8_t *bytes = pages(8192);
	struct ibv_mr *one = ibv_reg_mr(pd, bytes, 8192, ALL_RIGHTS);
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	NEED(one);
	result("munmap", munmap(bytes, 8192));
	wr.wr.rdma.remote_addr = (uintptr_t)bytes;
	wr.wr.rdma.rkey = one->rkey;
	NEED(!post_wr(qp, &wr));
	completion("completion", cq);
	result("dereg", ibv_dereg_mr(one));
}

BEHAVIOUR(protected_pages)
{
	uint8_t *bytes = pages(8192);
	struct ibv_mr *one = ibv_reg_mr(pd, bytes, 8192, ALL_RIGHTS);
	struct ibv_qp *qp = qp_in(IBV_QPT_RC, IBV_QPS_RTS);
	struct ibv_sge sge = piece(mr, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	NEED(one);
	area[0] = 66;
	result("mprotect", mprotect(bytes, 8192, PROT_READ));
	wr.wr.rdma.remote_addr = (uintptr_t)bytes;
	wr.wr.rdma.rkey = one->rkey;
	NEED(!post_wr(qp, &wr));
	completion("completion", cq);
	fact("byte", "%d", bytes[0]);
}

static int vmas(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	int lines = 0;

	NEED(maps);
	for (int c; (c = fgetc(maps)) != EOF;)
		lines += c == '\n';
	fclose(maps);
	return lines;
}

BEHAVIOUR(mappings_of_many_regions)
{
	static struct ibv_mr *regions[200];
	uint8_t *bytes = pages(200 * 8192);
	int before;

	memset(bytes, 1, 200 * 8192);
	before = vmas();
	for (int i = 0; i < COUNT(regions); i++)
		NEED((regions[i] = ibv_reg_mr(pd, bytes + i * 8192, 4096, ALL_RIGHTS)));
	fact("registered", "%d", vmas() - before <= 200 / 16 + 64);
	for (int i = 0; i < COUNT(regions); i++)
		NEED(!ibv_dereg_mr(regions[i]));
	fact("deregistered", "%d", vmas() - before <= 64);
}

BEHAVIOUR(moved_pages)
{
	uint8_t *bytes = pages(8192);
	struct ibv_mr *one = ibv_reg_mr(pd, bytes, 8192, ALL_RIGHTS);
	void *moved;

	NEED(one);
	bytes[0] = 8;
	moved = mremap(bytes, 8192, 16384, MREMAP_MAYMOVE);
	result("mremap", moved == MAP_FAILED ? -1 : 0);
	if (moved != MAP_FAILED)
		fact("byte", "%d", *(uint8_t *)moved);
	result("dereg", ibv_dereg_mr(one));
}
