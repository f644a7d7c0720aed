/*
 * cm_edge ADDRESS [NAME...]: rules of librdmacm that programs rely on without noticing: whose events come when, and where,
 * after a migration, a refusal, a late look at the channel. As cm_exercise, all within one process.
 */
#include "cm_check.h"

static void test_rejection_flushes(void)
{
	static uint8_t in[SIZE];
	struct ibv_mr *mr;
	struct ibv_wc wc;
	struct pair p;

	request(&p, NULL, 0);
	mr = rdma_reg_msgs(p.active, in, SIZE);
	CHECK(mr && rdma_post_recv(p.active, in, in, SIZE, mr) == 0);
	CHECK(rdma_reject(p.passive, NULL, 0) == 0);
	CHECK(expect_ack(p.active_channel, RDMA_CM_EVENT_REJECTED) == p.active);
	CHECK(rdma_get_recv_comp(p.active, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR, "status %d", wc.status);
	CHECK(rdma_dereg_mr(mr) == 0);
	end_pair(&p);
}

/* The context of such an id is still its listener's: programs would take the event for one of the listener. */
static void test_requests_that_are_not_accepted_have_no_events(void)
{
	struct pair p;

	request(&p, NULL, 0);
	end(p.active);
	CHECK(!readable(p.passive_channel, 300), "an event of an id that was not accepted");
	new_qp(p.passive);
	/* It cannot succeed; the call or an event says so. */
	if (rdma_accept(p.passive, NULL) == 0)
		rdma_ack_cm_event(expect(p.passive_channel, RDMA_CM_EVENT_CONNECT_ERROR));
	end(p.passive);
	CHECK(rdma_destroy_id(p.listener) == 0);
	rdma_destroy_event_channel(p.active_channel);
	rdma_destroy_event_channel(p.passive_channel);
}

static const struct rule rules[] = {
	{ "reject_flushes", test_rejection_flushes },
	{ "not_accepted", test_requests_that_are_not_accepted_have_no_events },
};

int main(int argc, char **argv)
{
	return check_rules(rules, sizeof(rules) / sizeof(rules[0]), argc, argv);
}
