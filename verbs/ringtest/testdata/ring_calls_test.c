/* The extended calls: ibv_cq_ex and ibv_wr_*. */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "ring_test.h"

static struct fake_wqe w;
static struct fake_recv r;

void test_cq_ex(void)
{
	struct pair p = setup(8, 8, 1, 0, NULL);
	struct ibv_cq_ex *ex = &p.cq->ex;
	struct ibv_poll_cq_attr attr = { 0 }, bad = { 1 };
	struct vrnic_cqe e;
	int i;

	vrnic_cq_ex_ops(p.cq, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
	CHECK(!ex->read_completion_wallclock_ns);
	vrnic_cq_ex_ops(p.cq,
			IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	CHECK_EQ(ex->start_poll(ex, &bad), EINVAL);
	CHECK_EQ(ex->start_poll(ex, &attr), ENOENT);
	for (i = 0; i < 3; i++)
		CHECK_EQ(post(&p, IBV_WR_SEND, i, NULL, 0, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post_recv(&p, 7, NULL, 0), 0);
	CHECK(fake_take_send(p.q, &w));
	fake_sent(p.q, p.cq, &w, 0, 1);
	CHECK(fake_take_send(p.q, &w));
	fake_sent(p.q, p.cq, &w, IBV_WC_REM_ACCESS_ERR, 1);
	CHECK(fake_take_recv(p.q, &r));
	e = recv_cqe(&p, r.w.cookie);
	e.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
	e.wc_flags = IBV_WC_WITH_IMM;
	e.imm = htonl(99);
	e.byte_len = 4;
	e.vendor_err = 5;
	e.src_qp = 6;
	fake_push(p.cq, &e);

	CHECK_EQ(ex->start_poll(ex, &attr), 0);
	CHECK(ex->wr_id == 0 && ex->status == IBV_WC_SUCCESS && ex->read_opcode(ex) == IBV_WC_SEND);
	CHECK_EQ(ex->read_completion_ts(ex), 12345);
	CHECK(ex->read_completion_wallclock_ns(ex) > 12345);
	CHECK_EQ(ex->next_poll(ex), 0);
	CHECK(ex->wr_id == 1 && ex->status == IBV_WC_REM_ACCESS_ERR);
	CHECK_EQ(vrnic_req_notify_cq(&p.cq->cq, 0), 0); /* it does not wait for end_poll */
	CHECK_EQ(atomic_load(p.cq->arm), VRNIC_ARM_NEXT);
	ex->end_poll(ex);
	CHECK_EQ(ex->start_poll(ex, &attr), 0);
	CHECK(ex->wr_id == 7 && ex->read_opcode(ex) == IBV_WC_RECV_RDMA_WITH_IMM &&
	      ntohl(ex->read_imm_data(ex)) == 99);
	CHECK(ex->read_byte_len(ex) == 4 && ex->read_vendor_err(ex) == 5 &&
	      ex->read_qp_num(ex) == p.q->num &&
	      ex->read_wc_flags(ex) == IBV_WC_WITH_IMM && ex->read_src_qp(ex) == 0 &&
	      	ex->read_slid(ex) == 0 &&
	      ex->read_sl(ex) == 0 && ex->read_dlid_path_bits(ex) == 0);
	CHECK_EQ(ex->next_poll(ex), ENOENT);
	ex->end_poll(ex);
	CHECK_EQ(ex->start_poll(ex, &attr), ENOENT);
	vrnic_die(&session, "test");
	CHECK_EQ(ex->start_poll(ex, &attr), 0);
	CHECK(ex->wr_id == 2 && ex->status == IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(ex->next_poll(ex), ENOENT);
	ex->end_poll(ex);
	CHECK_EQ(corrupt, 0);
	teardown(&p);
}

/* Requests that are made by calls come together with one bell, or not at all. */
void test_wr(void)
{
	struct pair p = setup(4, 1, 2, 64, NULL);
	uint64_t all =
		IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
		       IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
		       IBV_QP_EX_WITH_SEND_WITH_INV;
	struct ibv_sge sge[2] = { sge_of(0, 3000), sge_of(4000, 1000) }, at = sge_of(0, 8);
	struct ibv_data_buf bufs[3] = { { "ab", 2 }, { NULL, 0 }, { "cde", 3 } };
	struct ibv_mr mr = { .pd = &pd.pd, .lkey = 0x77 };
	struct ibv_mw mw = { .pd = &pd.pd, .type = IBV_MW_TYPE_2 };
	struct ibv_mw_bind_info info = { &mr, 0x100, 16, IBV_ACCESS_REMOTE_READ };
	struct ibv_qp_ex *ex;
	uint32_t slab;
	char big[100] = { 0 };

	vrnic_qp_ex_ops(p.qp, all);
	ex = ibv_qp_to_qp_ex(&p.qp->qp);
	CHECK(ex);

	ex->wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ex->wr_send(ex); /* of no octets */
	ex->wr_id = 2;
	ex->wr_flags = 0;
	ex->wr_rdma_write_imm(ex, 0x10, 0x2000, htonl(1));
	ex->wr_set_sge_list(ex, 2, sge);
	memset(sge, 0, sizeof(sge)); /* they have been read */
	ex->wr_id = 3;
	ex->wr_send_inv(ex, 0x55);
	ex->wr_set_inline_data_list(ex, 3, bufs);
	ex->wr_id = 4;
	ex->wr_atomic_fetch_add(ex, 0x11, 0x3000, 42);
	ex->wr_set_sge(ex, at.lkey, at.addr, at.length);
	CHECK(!fake_take_send(p.q, &w) && !fake_rang(p.q));
	CHECK_EQ(ex->wr_complete(ex), 0);
	CHECK(fake_rang(p.q));
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 1 && w.w.op == IBV_WR_SEND && w.w.flags == VRNIC_SQ_SIGNALED &&
	      w.w.length == 0);
	fake_sent(p.q, p.cq, &w, 0, 1);
	CHECK_EQ(poll1(p.cq).wr_id, 1);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 2 && w.w.flags == VRNIC_SQ_SLAB && w.w.length == 4000 && ntohl(w.w.imm) == 1
	      && w.w.rkey == 0x10);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 3 && w.w.flags == VRNIC_SQ_INLINE && w.w.length == 5 &&
	      !memcmp(w.data, "abcde", 5) && w.w.imm == 0x55);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.wr_id == 4 && w.w.cmp_add == 42 && w.w.remote_addr == 0x3000 && w.w.rkey == 0x11);
	CHECK(!fake_take_send(p.q, &w));
	fake_retire(p.q, 3);

	/*
	 * Aborted, full, or with anything wrong in it: nothing of it is posted, and the slab is as before.
	 */
	slab = p.qp->sq.slab_prod;
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge(ex, at.lkey, at.addr, 2000);
	ex->wr_abort(ex);
	CHECK_EQ(p.qp->sq.slab_prod, slab);
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge(ex, at.lkey, at.addr, 2000);
	ex->wr_send(ex);
	ex->wr_set_inline_data(ex, big, p.qp->cap.max_inline_data + 1);
	ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	CHECK_EQ(p.qp->sq.slab_prod, slab);
	ex->wr_start(ex);
	ex->wr_send(ex);
	bufs[0].addr = bufs[2].addr = big;
	bufs[0].length = 60;
	bufs[2].length = p.qp->cap.max_inline_data - 59;
	ex->wr_set_inline_data_list(ex, 3, bufs);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	ex->wr_start(ex);
	ex->wr_send(ex);
	bufs[2].length = -30ul; /* 60 of them, and -30, are no 30 */
	ex->wr_set_inline_data_list(ex, 3, bufs);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	ex->wr_start(ex);
	for (int i = 0; i < 5; i++)
		ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), ENOMEM);
	ex->wr_start(ex);
	ex->wr_send(ex);
	ex->wr_set_sge_list(ex, p.qp->cap.max_send_sge + 1, sge);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	ex->wr_start(ex);
	ex->wr_send_tso(ex, big, 10, 10);
	CHECK_EQ(ex->wr_complete(ex), EOPNOTSUPP);
	ex->wr_start(ex);
	ex->wr_set_sge(ex, at.lkey, at.addr, 1); /* of nothing */
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	fake_state(p.q, IBV_QPS_INIT);
	ex->wr_start(ex);
	ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);
	fake_state(p.q, IBV_QPS_RTS);
	CHECK(!fake_take_send(p.q, &w) && !fake_rang(p.q));

	ex->wr_start(ex);
	ex->wr_bind_mw(ex, &mw, 0x901, &info);
	ex->wr_local_inv(ex, 0x902);
	ex->wr_rdma_read(ex, 0x903, 0x4000);
	ex->wr_set_sge(ex, at.lkey, at.addr, 8);
	ex->wr_atomic_cmp_swp(ex, 0x904, 0x5000, 1, 2);
	ex->wr_set_sge(ex, at.lkey, at.addr, 8);
	CHECK_EQ(ex->wr_complete(ex), 0);
	CHECK(fake_rang(p.q));
	CHECK(fake_take_send(p.q, &w) && w.w.rkey == 0x901 && w.w.cmp_add == 16 && w.sge[0].lkey == 0x77);
	CHECK(fake_take_send(p.q, &w) && w.w.imm == 0x902 && w.w.num_sge == 0);
	CHECK(fake_take_send(p.q, &w) && w.w.rkey == 0x903 && w.w.remote_addr == 0x4000 &&
	      w.w.num_sge == 1 && !w.w.imm);
	CHECK(fake_take_send(p.q, &w) && w.w.cmp_add == 1 && w.w.swap == 2);
	fake_retire(p.q, 4);
	mw.type = IBV_MW_TYPE_1;
	ex->wr_start(ex);
	ex->wr_bind_mw(ex, &mw, 0x901, &info);
	CHECK_EQ(ex->wr_complete(ex), EINVAL);

	vrnic_die(&session, "test");
	for (int i = 0; i < 4; i++) /* invisible, and nobody can know any more that they are over */
		CHECK_EQ(poll1(p.cq).status, IBV_WC_WR_FLUSH_ERR);
	ex->wr_start(ex);
	ex->wr_id = 10;
	ex->wr_send(ex);
	CHECK_EQ(ex->wr_complete(ex), 0);
	CHECK(!fake_rang(p.q));
	teardown(&p);
}
