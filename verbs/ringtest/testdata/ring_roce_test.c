/* What queue pairs of RoCE do beside those of iWARP: services, datagrams, and the way back to RESET. */
#include <errno.h>
#include <string.h>

#include "fake.h"
#include "ring_test.h"

static struct vrnic_cq *cq;
static struct vrnic_srq *srq;
static struct vrnic_ah ah;
static struct fake_wqe w;
static struct fake_recv r;

static struct vrnic_qp *make(enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = &cq->cq, .recv_cq = &cq->cq, .srq = srq ? &srq->srq : NULL, .qp_type = type,
		.cap = { 4, 4, 2, 2, 64 }, .pd = &pd.pd, .send_ops_flags = ops,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
	};
	struct ibv_qp *qp = vrnic_create_qp_ex(pd.pd.context, &attr);

	CHECK(qp);
	CHECK(to_vqp(qp)->roce);
	fake_state(fake_of(qp->qp_num), IBV_QPS_RTS);
	return to_vqp(qp);
}

static int post_one(struct vrnic_qp *qp, const struct ibv_send_wr *wr)
{
	struct ibv_send_wr copy = *wr, *bad = NULL;
	int err = vrnic_post_send(&qp->qp, &copy, &bad);

	CHECK(err ? bad == &copy : !bad);
	return err;
}

static void start(void)
{
	context.roce = true;
	cq = fake_cq(64);
	srq = NULL;
	ah = (struct vrnic_ah){ .ah = { pd.pd.context, &pd.pd, 3 }, .key = 0x1234 };
}

/* Each service has its operations; what it has not is refused when it is posted. */
void test_services(void)
{
	static const struct {
		enum ibv_qp_type type;
		const char *has; /* by enum ibv_wr_opcode: y or n */
	} services[] = {
		{ IBV_QPT_RC, "yyyyyyyyyy" },
		{ IBV_QPT_UC, "yyyynnnyyn" },
		{ IBV_QPT_UD, "nnyynnnnnn" },
	};
	struct ibv_sge sge = { .addr = 0x1000, .length = 8, .lkey = 1 };
	struct ibv_mw mw = { .pd = &pd.pd, .type = IBV_MW_TYPE_2 };
	struct ibv_send_wr wr;
	struct vrnic_qp *qp;

	start();
	for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
		for (unsigned int op = 0; op < 10; op++) {
			qp = make(services[i].type, 0);
			wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = op };
			if (services[i].type == IBV_QPT_UD)
				wr.wr.ud.ah = &ah.ah;
			if (op == IBV_WR_BIND_MW)
				wr.bind_mw.mw = &mw;
			CHECK_EQ(post_one(qp, &wr), services[i].has[op] == 'y' ? 0 : EINVAL);
			CHECK_EQ(ibv_destroy_qp(&qp->qp), 0);
		}
	}
	/* A Send with immediate data has octets; atomics lie where the peer's processor can reach them. */
	qp = make(IBV_QPT_RC, 0);
	wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD };
	wr.wr.atomic.remote_addr = 0x1004;
	CHECK_EQ(post_one(qp, &wr), EINVAL);
	wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .imm_data = 0x11223344 };
	CHECK_EQ(post_one(qp, &wr), 0);
	CHECK(fake_take_send(fake_of(qp->qp.qp_num), &w));
	CHECK_EQ(w.w.length, 8);
	CHECK_EQ(w.w.imm, 0x11223344);
	CHECK_EQ(ibv_destroy_qp(&qp->qp), 0);
	fake_cq_free(cq);
}

/* A datagram's request says where it goes, and its completion where it came from. */
void test_datagrams(void)
{
	struct vrnic_pd other = { .pd = { .context = pd.pd.context }, .is = &other };
	struct ibv_ah foreign = { .pd = &other.pd };
	struct ibv_send_wr wr = { .wr_id = 5, .opcode = IBV_WR_SEND };
	struct ibv_recv_wr recv = { .wr_id = 9 }, *bad;
	struct ibv_qp_ex *ex;
	struct vrnic_qp *qp;
	struct fake_q *q;
	struct ibv_wc wc;
	struct vrnic_cqe e;

	start();
	qp = make(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	q = fake_of(qp->qp.qp_num);
	CHECK_EQ(post_one(qp, &wr), EINVAL);
	wr.wr.ud.ah = &foreign;
	CHECK_EQ(post_one(qp, &wr), EINVAL);
	wr.wr.ud.ah = &ah.ah;
	wr.wr.ud.remote_qpn = 0x123456;
	wr.wr.ud.remote_qkey = 0x80000001;
	CHECK_EQ(post_one(qp, &wr), 0);
	CHECK(fake_take_send(q, &w));
	CHECK_EQ(*(uint32_t *)((char *)&w.w + VRNIC_SQ_AH), 0x1234);
	CHECK_EQ(*(uint32_t *)((char *)&w.w + VRNIC_SQ_REMOTE_QPN), 0x123456);
	CHECK_EQ(*(uint32_t *)((char *)&w.w + VRNIC_SQ_REMOTE_QKEY), 0x80000001);

	/* By calls, with the address before the octets and behind them; without one nothing is posted. */
	ex = ibv_qp_to_qp_ex(&qp->qp);
	CHECK(ex && !ex->wr_rdma_write);
	for (int i = 0; i < 2; i++) {
		ex->wr_id = 70 + i;
		ex->wr_start(ex);
		ex->wr_send_imm(ex, 0x55);
		if (i)
			ex->wr_set_inline_data(ex, "octets", 6);
		ex->wr_set_ud_addr(ex, &ah.ah, 77 + i, 99);
		if (!i)
			ex->wr_set_inline_data(ex, "octets", 6);
		CHECK_EQ(ex->wr_complete(ex), 0);
		CHECK(fake_take_send(q, &w));
		CHECK_EQ(w.w.remote_addr, 0x1234);
		CHECK_EQ(w.w.rkey, 77 + i);
		CHECK_EQ(w.w.swap, 99);
		CHECK(w.w.length == 6 && !memcmp(w.data, "octets", 6));
	}
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_inline_data(ex, "octets", 6);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_ud_addr(ex, &foreign, 1, 1);
	ex->wr_set_inline_data(ex, "octets", 6);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	CHECK(!fake_take_send(q, &w));

	CHECK_EQ(vrnic_post_recv(&qp->qp, &recv, &bad), 0);
	CHECK(fake_take_recv(q, &r));
	e = (struct vrnic_cqe){ .opcode = IBV_WC_RECV, .byte_len = 48, .qpn = q->num, .src_qp = 0xabcdef,
			       .wc_flags = IBV_WC_GRH, .cookie = r.w.cookie, .slab_off = VRNIC_NO_SLAB };
	fake_push(cq, &e);
	wc = poll1(cq);
	CHECK_EQ(wc.wr_id, 9);
	CHECK_EQ(wc.src_qp, 0xabcdef);
	CHECK_EQ(wc.wc_flags, IBV_WC_GRH);
	CHECK_EQ(wc.byte_len, 48);
	CHECK_EQ(ibv_destroy_qp(&qp->qp), 0);
	fake_cq_free(cq);
}

/* What is at src_qp of a connected one means nothing to programs. */
static void push_recv(struct fake_q *q, uint32_t cookie)
{
	struct vrnic_cqe e = { .opcode = IBV_WC_RECV, .qpn = q->num, .cookie = cookie,
			      .slab_off = VRNIC_NO_SLAB, .src_qp = 1 };

	fake_push(cq, &e);
}

/* RESET: whatever was posted, or has completed and not been polled, is gone; the queues begin anew. */
static void reset(enum ibv_qp_type type)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr recv = { .wr_id = 2 }, *bad;
	struct vrnic_qp *qp = make(type, 0), *other = make(type, 0);
	struct fake_q *q = fake_of(qp->qp.qp_num);
	struct vrnic_rq *rq = srq ? &srq->rq : &qp->rq;
	struct fake_q *from = srq ? fake_of(srq->srq.handle) : q;
	struct fake_recv last;
	struct vrnic_cqe e;

	wr.wr.ud.ah = &ah.ah;
	for (int i = 0; i < 4; i++) {
		CHECK_EQ(post_one(qp, &wr), 0);
		CHECK_EQ(vrnic_rq_post(rq, &recv, &bad), 0);
	}
	CHECK_EQ(post_one(qp, &wr), ENOMEM);
	CHECK_EQ(vrnic_rq_post(rq, &recv, &bad), ENOMEM);
	CHECK(fake_take_send(q, &w));
	CHECK(fake_take_recv(from, &r));
	fake_sent(q, cq, &w, 0, 1);
	push_recv(q, r.w.cookie);
	wr.wr_id = 11;
	CHECK_EQ(post_one(other, &wr), 0);
	CHECK(fake_take_send(fake_of(other->qp.qp_num), &w));
	fake_sent(fake_of(other->qp.qp_num), cq, &w, 0, 1);

	CHECK_EQ(ibv_modify_qp(&qp->qp, &attr, IBV_QP_STATE), 0);
	CHECK_EQ(qp->qp.state, IBV_QPS_RESET);
	CHECK_EQ(vrnic_post_recv(&qp->qp, &recv, &bad), EINVAL);
	CHECK_EQ(post_one(qp, &wr), EINVAL);
	fake_state(q, IBV_QPS_INIT);
	CHECK_EQ(post_one(qp, &wr), EINVAL);
	/* Another QP's completions are there still, and the slots are free. */
	CHECK_EQ(poll1(cq).wr_id, 11);
	want_empty(cq);
	fake_state(q, IBV_QPS_RTS);
	q->sq_head = q->sq_done = atomic_load(vrnic_word(q->mem, VRNIC_QP_SQ_PROD));
	fake_retire(q, 0);
	if (!srq)
		while (fake_take_recv(q, &last))
			;
	for (int i = 0; i < 4; i++)
		CHECK_EQ(post_one(qp, &wr), 0);
	CHECK(fake_take_send(q, &w));
	fake_sent(q, cq, &w, 0, 1);
	CHECK_EQ(poll1(cq).status, IBV_WC_SUCCESS);
	/* Of an SRQ one is free, and three are there for others. */
	for (int i = 0; i < (srq ? 1 : 4); i++)
		CHECK_EQ(vrnic_rq_post(rq, &recv, &bad), 0);
	CHECK_EQ(vrnic_rq_post(rq, &recv, &bad), ENOMEM);
	CHECK_EQ(corrupt, 0);
	/* A receive of before does not complete: the daemon is out of its mind. */
	if (!srq) {
		e = (struct vrnic_cqe){ .opcode = IBV_WC_RECV, .qpn = q->num, .cookie = r.w.cookie,
				       .slab_off = VRNIC_NO_SLAB };
		fake_push(cq, &e);
		want_empty(cq);
		CHECK_EQ(corrupt, 1);
	}
	CHECK_EQ(ibv_destroy_qp(&other->qp), 0);
	CHECK_EQ(ibv_destroy_qp(&qp->qp), 0);
}

void test_reset(void)
{
	struct ibv_srq_init_attr attr = { .attr = { 4, 1, 0 } };

	start();
	srq = to_vsrq(ibv_create_srq(&pd.pd, &attr));
	reset(IBV_QPT_RC);
	CHECK_EQ(ibv_destroy_srq(&srq->srq), 0);
	srq = NULL;
	reset(IBV_QPT_UD);
	fake_cq_free(cq);
}
