/*
 * The data path of libibverbs against a daemon in the same process (fake.c). `ring_test` runs all
 * tests, `ring_test NAME` one, `ring_test -list` names them, `ring_test -bench` measures.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"
#include "ring_test.h"

#define NEAR_WRAP 0xfffffff0u

static char buf[131072] __attribute__((aligned(64)));
static uint32_t buf_key;
static struct fake_wqe w;
static struct fake_recv r;

struct pair setup(uint32_t sends, uint32_t recvs, uint32_t sges, uint32_t max_inline,
		  struct ibv_srq *srq)
{
	struct pair p = { .cq = fake_cq(1024) };
	struct ibv_qp_init_attr attr = {
		.qp_context = &p,
		.send_cq = &p.cq->cq,
		.recv_cq = &p.cq->cq,
		.srq = srq,
		.qp_type = IBV_QPT_RC,
		.cap = { sends, recvs, sges, sges, max_inline },
	};

	buf_key = fake_mr(buf, sizeof(buf), (uintptr_t)buf, IBV_ACCESS_LOCAL_WRITE);
	p.qp = to_vqp(ibv_create_qp(&pd.pd, &attr));
	CHECK(p.qp);
	CHECK(attr.cap.max_send_wr >= sends && attr.cap.max_send_sge >= sges &&
	      attr.cap.max_inline_data >= 64);
	p.q = fake_of(p.qp->qp.qp_num);
	fake_state(p.q, IBV_QPS_RTS);
	return p;
}

void teardown(struct pair *p)
{
	CHECK_EQ(ibv_destroy_qp(&p->qp->qp), 0);
	fake_cq_free(p->cq);
	CHECK_EQ(pd.users, 0);
}

struct ibv_sge sge_of(uint32_t off, uint32_t len)
{
	return (struct ibv_sge){ .addr = (uintptr_t)buf + off, .length = len, .lkey = buf_key };
}

int post(struct pair *p, enum ibv_wr_opcode op, uint64_t id, struct ibv_sge *sge, int n,
	 unsigned int flags)
{
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = sge, .num_sge = n, .opcode = op,
				 .send_flags = flags };
	struct ibv_send_wr *bad = NULL;
	int err = vrnic_post_send(&p->qp->qp, &wr, &bad);

	CHECK(err ? bad == &wr : !bad);
	return err;
}

int post_recv(struct pair *p, uint64_t id, struct ibv_sge *sge, int n)
{
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sge, .num_sge = n }, *bad = NULL;
	int err = vrnic_post_recv(&p->qp->qp, &wr, &bad);

	CHECK(err ? bad == &wr : !bad);
	return err;
}

struct ibv_wc poll1(struct vrnic_cq *cq)
{
	struct ibv_wc wc[2];

	memset(wc, 0xff, sizeof(wc));
	CHECK_EQ(vrnic_poll_cq(&cq->cq, 1, wc), 1);
	return wc[0];
}

void want_empty(struct vrnic_cq *cq)
{
	struct ibv_wc wc;

	CHECK_EQ(vrnic_poll_cq(&cq->cq, 1, &wc), 0);
}

/* Capabilities are rounded up and written back; what cannot be is refused as libibverbs does. */
static void test_create(void)
{
	struct vrnic_cq *cq = fake_cq(16);
	struct ibv_qp_init_attr attr = { .send_cq = &cq->cq, .recv_cq = &cq->cq, .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr_ex ex = { .send_cq = &cq->cq, .recv_cq = &cq->cq, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr qa, ca = { 0 };
	struct ibv_qp *qp = ibv_create_qp(&pd.pd, &attr), *qps[66];
	uint32_t handle;
	int i;

	CHECK(qp);
	CHECK_EQ(attr.cap.max_send_wr, 1);
	CHECK_EQ(attr.cap.max_recv_wr, 1);
	CHECK(attr.cap.max_send_sge >= 1 && attr.cap.max_recv_sge >= 1);
	CHECK(attr.cap.max_inline_data >= 64);
	CHECK_EQ(to_vqp(qp)->sq.slab_size, 262144);
	CHECK_EQ(cq->users, 2);
	CHECK_EQ(vrnic_find_qp(pd.pd.context, qp->qp_num, &handle), 0);
	CHECK_EQ(handle, 7);
	CHECK_EQ(vrnic_find_qp(pd.pd.context, qp->qp_num + 256, &handle), ENOENT);
	CHECK(!ibv_qp_to_qp_ex(qp));

	CHECK_EQ(ibv_query_qp(qp, &qa, 0, &attr), 0);
	CHECK_EQ(qa.qp_state, IBV_QPS_INIT);
	CHECK_EQ(qa.cap.max_send_wr, 1);
	CHECK_EQ(ibv_modify_qp(qp, &ca, 0), 0);
	ca.qp_state = IBV_QPS_INIT;
	ca.port_num = 1;
	CHECK_EQ(ibv_modify_qp(qp, &ca,
			       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
	CHECK_EQ(qp->state, IBV_QPS_INIT);
	ca.qp_state = IBV_QPS_RTR;
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE), EINVAL);
	CHECK_EQ(complaints, 0);
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN),
		 EINVAL);
	CHECK_EQ(complaints, VRNIC_CAUSE_CONNECT);
	ca.qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE), EINVAL);
	fake_state(fake_of(qp->qp_num), IBV_QPS_RTS);
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE | IBV_QP_SQ_PSN), EINVAL);
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
	ca.cur_qp_state = IBV_QPS_RTS;
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE | IBV_QP_CUR_STATE), 0);
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_CAP), EINVAL);
	ca.qp_state = IBV_QPS_ERR;
	CHECK_EQ(ibv_modify_qp(qp, &ca, IBV_QP_STATE), 0);
	CHECK_EQ(ibv_query_qp(qp, &qa, IBV_QP_STATE, &attr), 0);
	CHECK_EQ(qa.qp_state, IBV_QPS_ERR);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	CHECK_EQ(vrnic_find_qp(pd.pd.context, 1, &handle), ENOENT);

	attr = (struct ibv_qp_init_attr){ .send_cq = &cq->cq, .recv_cq = &cq->cq, .qp_type = IBV_QPT_UD };
	complaints = 0;
	CHECK(!ibv_create_qp(&pd.pd, &attr) && errno == EOPNOTSUPP);
	CHECK_EQ(complaints, VRNIC_CAUSE_DATAGRAMS);
	attr.qp_type = IBV_QPT_XRC_SEND;
	CHECK(!ibv_create_qp(&pd.pd, &attr) && errno == EOPNOTSUPP);
	CHECK_EQ(complaints, VRNIC_CAUSE_DATAGRAMS | VRNIC_CAUSE_XRC);
	attr.qp_type = IBV_QPT_RC;
	attr.send_cq = NULL;
	CHECK(!ibv_create_qp(&pd.pd, &attr) && errno == EINVAL);
	attr.send_cq = &cq->cq;
	attr.cap.max_send_sge = 33;
	CHECK(!ibv_create_qp(&pd.pd, &attr) && errno == EINVAL);
	attr.cap.max_send_sge = 1;
	refuse_slabs = true;
	qp = ibv_create_qp(&pd.pd, &attr);
	CHECK(qp);
	CHECK_EQ(to_vqp(qp)->sq.slab_size, 0);
	CHECK_EQ(ibv_destroy_qp(qp), 0);

	CHECK(!vrnic_create_qp_ex(pd.pd.context, &ex) && errno == EINVAL);
	ex.pd = &pd.pd;
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD;
	CHECK(!vrnic_create_qp_ex(pd.pd.context, &ex) && errno == EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
	CHECK(!vrnic_create_qp_ex(pd.pd.context, &ex) && errno == EOPNOTSUPP);
	/* Many QPs get by with less. */
	refuse_slabs = false;
	for (i = 0; i < 66; i++) {
		CHECK(qps[i] = ibv_create_qp(&pd.pd, &attr));
		CHECK_EQ(to_vqp(qps[i])->sq.slab_size, i < 64 ? 262144 : 65536);
		CHECK_EQ(to_vqp(qps[i])->rx_slab_size, 65536);
	}
	for (i = 0; i < 66; i++)
		CHECK_EQ(ibv_destroy_qp(qps[i]), 0);
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
	qp = vrnic_create_qp_ex(pd.pd.context, &ex);
	CHECK(qp && ibv_qp_to_qp_ex(qp) && !ibv_qp_to_qp_ex(qp)->wr_rdma_read);
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	rpc_error = EINVAL;
	CHECK(!ibv_create_qp(&pd.pd, &attr) && errno == EINVAL);
	CHECK_EQ(cq->users, 0);
	fake_cq_free(cq);
}

/* Memory whose line 0 points outside of itself, or is not what was asked for, is not used. */
static void test_layouts(void)
{
	static const struct {
		uint32_t off, v;
	} wrong[] = {
		{ VRNIC_QP_MAGIC, VRNIC_MAGIC_SRQ }, { VRNIC_QP_SQ_SIZE, 3 },	  { VRNIC_QP_SQ_SIZE, 0 },
		{ VRNIC_QP_SQ_SIZE, 1u << 31 },	     { VRNIC_QP_SQ_STRIDE, 64 },  { VRNIC_QP_SQ_STRIDE, 129 },
		{ VRNIC_QP_SQ_STRIDE, 4096 },	     { VRNIC_QP_SQ_OFF, 1u << 30 }, { VRNIC_QP_SQ_OFF, 321 },
		{ VRNIC_QP_RQ_SIZE, 5 },	     { VRNIC_QP_RQ_STRIDE, 16 },  { VRNIC_QP_RQ_OFF, 0xfffffff8 },
		{ VRNIC_QP_TX_SLAB_SIZE, 100 },	     { VRNIC_QP_TX_SLAB_SIZE, 1u << 21 },
			{ VRNIC_QP_TX_SLAB_OFF, 0xffffffff },
		{ VRNIC_QP_RX_SLAB_SIZE, 32 },	     { VRNIC_QP_RX_SLAB_OFF, 0x7fffffff },
			{ VRNIC_QP_MAX_INLINE, 1000 },
	};
	struct pair p = setup(4, 4, 1, 0, NULL);
	struct vrnic_layout l;
	uint32_t was;
	size_t i;

	CHECK(vrnic_read_layout(&p.qp->map, VRNIC_MAGIC_QP, &l));
	CHECK(!vrnic_read_layout(&p.qp->map, VRNIC_MAGIC_SRQ, &l));
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		_Atomic uint32_t *word = vrnic_word(p.q->mem, wrong[i].off);

		was = *word;
		*word = wrong[i].v;
		if (vrnic_read_layout(&p.qp->map, VRNIC_MAGIC_QP, &l)) {
			fprintf(stderr, "word %u of %#x was taken\n", wrong[i].off, wrong[i].v);
			exit(1);
		}
		*word = was;
	}
	teardown(&p);
}

/* Sends go on when the indices of the queue, of the CQ and of the slab pass 2^32. */
static void test_send_wrap(void)
{
	struct pair p = setup(8, 1, 2, 0, NULL);
	struct ibv_sge sge[2];
	struct ibv_wc wc;
	int i, k;

	fake_indices(p.qp, NEAR_WRAP);
	fake_cq_indices(p.cq, NEAR_WRAP);
	for (i = 0; i < 100; i++) {
		for (k = 0; k < 1000; k++)
			buf[k] = i + k;
		sge[0] = sge_of(0, 300);
		sge[1] = sge_of(300, 700);
		CHECK_EQ(post(&p, IBV_WR_SEND, i, sge, 2, IBV_SEND_SIGNALED), 0);
		CHECK(fake_rang(p.q));
		CHECK(fake_take_send(p.q, &w));
		CHECK_EQ(w.w.flags, VRNIC_SQ_SIGNALED | VRNIC_SQ_SLAB);
		CHECK_EQ(w.w.length, 1000);
		CHECK(!memcmp(w.data, buf, 1000));
		CHECK(!fake_take_send(p.q, &w));
		fake_sent(p.q, p.cq, &w, 0, 1);
		wc = poll1(p.cq);
		CHECK_EQ(wc.wr_id, i);
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		CHECK_EQ(wc.opcode, IBV_WC_SEND);
		CHECK_EQ(wc.qp_num, p.qp->qp.qp_num);
		want_empty(p.cq);
	}
	CHECK_EQ(corrupt, 0);
	teardown(&p);
}

/*
 * A full queue is ENOMEM. Visible requests are over when polled, invisible ones when retired, in
 * groups (V17).
 */
static void test_send_full(void)
{
	struct ibv_sge sge = sge_of(0, 0);
	struct pair p = setup(4, 1, 1, 0, NULL);
	struct ibv_send_wr wr[6] = { 0 }, *bad;
	int i;

	for (i = 0; i < 6; i++) {
		wr[i].wr_id = i;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].next = i < 5 ? &wr[i + 1] : NULL;
	}
	CHECK_EQ(vrnic_post_send(&p.qp->qp, wr, &bad), ENOMEM);
	CHECK(bad == &wr[4]); /* those before it are posted */
	for (i = 0; i < 4; i++)
		CHECK(fake_take_send(p.q, &w) && w.w.wr_id == (uint64_t)i);
	CHECK(!fake_take_send(p.q, &w));
	CHECK_EQ(post(&p, IBV_WR_SEND, 9, &sge, 1, IBV_SEND_SIGNALED), ENOMEM);
	fake_retire(p.q, 2); /* nobody will hear of them */
	CHECK_EQ(post(&p, IBV_WR_SEND, 9, &sge, 1, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 10, &sge, 1, 0), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 11, &sge, 1, 0), ENOMEM);
	fake_retire(p.q, 2);
	CHECK(fake_take_send(p.q, &w) && w.w.wr_id == 9);
	fake_sent(p.q, p.cq, &w, 0, 1);
	CHECK(fake_take_send(p.q, &w) && w.w.wr_id == 10);
	fake_retire(p.q, 1);
	CHECK_EQ(post(&p, IBV_WR_SEND, 12, &sge, 1, 0), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 13, &sge, 1, 0), 0);
	/*
	 * 9 has been retired and its completion has not been polled: it and 10 behind it are outstanding.
	 */
	CHECK_EQ(post(&p, IBV_WR_SEND, 14, &sge, 1, 0), ENOMEM);
	CHECK_EQ(poll1(p.cq).wr_id, 9);
	CHECK_EQ(post(&p, IBV_WR_SEND, 14, &sge, 1, 0), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 15, &sge, 1, 0), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 16, &sge, 1, 0), ENOMEM);
	CHECK_EQ(corrupt, 0);
	teardown(&p);
}

/*
 * What a program gets wrong is refused before anything of it is written: it is not to look like an
 * attack.
 */
static void test_send_refused(void)
{
	struct pair p = setup(4, 1, 2, 64, NULL);
	struct ibv_sge sge[40] = { sge_of(0, 8), sge_of(8, 8) };
	struct ibv_mw mw = { .pd = &pd.pd, .type = IBV_MW_TYPE_1, .rkey = 0x500 };
	struct vrnic_pd other = { .is = &other };
	struct ibv_mr mr = { .pd = &other.pd };
	uint32_t room = p.qp->cap.max_inline_data, sges = p.qp->cap.max_send_sge;
	struct ibv_send_wr *bad, bind = { .opcode = IBV_WR_BIND_MW, .bind_mw = { .mw = &mw } };

	CHECK_EQ(post(&p, IBV_WR_TSO, 1, sge, 1, 0), EINVAL);
	CHECK_EQ(post(&p, IBV_WR_DRIVER1, 1, sge, 1, 0), EINVAL);
	CHECK_EQ(post(&p, IBV_WR_ATOMIC_WRITE, 1, sge, 1, 0), EINVAL);
	CHECK_EQ(post(&p, 0x80000000u, 1, sge, 1, 0), EINVAL);
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, sge, 1, IBV_SEND_IP_CSUM), EINVAL);
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, sge, -1, 0), EINVAL);
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, sge, sges + 1, 0), EINVAL);
	CHECK_EQ(post(&p, IBV_WR_RDMA_READ, 1, sge, 1, IBV_SEND_INLINE), EINVAL);
	CHECK_EQ(post(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, sge, 2, 0), EINVAL); /* 16 octets */
	CHECK_EQ(post(&p, IBV_WR_SEND_WITH_IMM, 1, sge, 1, 0), EINVAL);
	sge[1].length = room - 7;
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, sge, 2, IBV_SEND_INLINE), EINVAL);
	sge[0].length = sge[1].length = 0x80000000u;
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, sge, 2, 0), EINVAL);
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &bind, &bad), EINVAL);
	mw.type = IBV_MW_TYPE_2;
	bind.bind_mw.bind_info.mr = &mr;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &bind, &bad), EINVAL);
	mr.pd = mw.pd;
	mw.pd = &other.pd;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &bind, &bad), EINVAL);
	CHECK_EQ(p.qp->sq.prod, 0);
	CHECK(!fake_rang(p.q));

	fake_state(p.q, IBV_QPS_INIT);
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, NULL, 0, 0), EINVAL);
	fake_state(p.q, IBV_QPS_ERR);
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, NULL, 0, 0), 0);
	CHECK(fake_take_send(p.q, &w));
	fake_sent(p.q, p.cq, &w, IBV_WC_WR_FLUSH_ERR, 1);
	CHECK_EQ(poll1(p.cq).status, IBV_WC_WR_FLUSH_ERR);
	teardown(&p);
}

/* Each operation's operands are where the daemon looks for them. */
static void test_operands(void)
{
	struct pair p = setup(16, 1, 2, 64, NULL);
	struct ibv_sge sge = sge_of(16, 8);
	struct ibv_mr mr = { .pd = &pd.pd, .lkey = 0x77 };
	struct ibv_mw mw = { .pd = &pd.pd, .type = IBV_MW_TYPE_2, .rkey = 0x5ff };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .imm_data = htonl(0x01020304) }, *bad;
	struct ibv_mw_bind mb = { .wr_id = 8, .send_flags = IBV_SEND_SIGNALED,
				 .bind_info = { &mr, 0x2000, 64, IBV_ACCESS_REMOTE_READ } };

	wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr.wr.rdma.remote_addr = 0x123456789abcdef0;
	wr.wr.rdma.rkey = 0x1234;
	wr.send_flags = IBV_SEND_SOLICITED | IBV_SEND_FENCE;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.op == IBV_WR_RDMA_WRITE_WITH_IMM && w.w.remote_addr == 0x123456789abcdef0 &&
	      w.w.rkey == 0x1234);
	CHECK(!memcmp(&w.w.imm, "\1\2\3\4", 4) && w.w.cmp_add == 0);
	CHECK_EQ(w.w.flags, VRNIC_SQ_SOLICITED | VRNIC_SQ_FENCE | VRNIC_SQ_INLINE);

	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.send_flags = 0;
	wr.wr.atomic.remote_addr = 0x1000;
	wr.wr.atomic.compare_add = 5;
	wr.wr.atomic.swap = 6;
	wr.wr.atomic.rkey = 0x99;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.remote_addr == 0x1000 && w.w.rkey == 0x99 && w.w.cmp_add == 5 && w.w.swap == 6 &&
	      w.w.imm == 0);
	CHECK(w.w.num_sge == 1 && w.sge[0].addr == sge.addr && w.sge[0].length == 8 &&
	      w.sge[0].lkey == buf_key);
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.cmp_add == 5 && w.w.swap == 0);

	wr.opcode = IBV_WR_RDMA_READ; /* never by way of a slab */
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.num_sge == 1 && w.w.flags == 0);

	wr.opcode = IBV_WR_SEND_WITH_INV;
	wr.invalidate_rkey = 0xabc;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.imm == 0xabc && w.w.remote_addr == 0);
	CHECK_EQ(revoked, 0);
	wr.opcode = IBV_WR_LOCAL_INV;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.imm == 0xabc && w.w.num_sge == 0 && w.w.length == 0);
	CHECK_EQ(revoked, 0xabc);

	wr.opcode = IBV_WR_BIND_MW;
	wr.bind_mw.mw = &mw;
	wr.bind_mw.rkey = 0x500;
	wr.bind_mw.bind_info = mb.bind_info;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.rkey == 0x500 && w.w.remote_addr == 0x2000 && w.w.cmp_add == 64 &&
	      w.w.swap == IBV_ACCESS_REMOTE_READ);
	CHECK(w.w.num_sge == 1 && w.sge[0].addr == 0x2000 && w.sge[0].length == 0 &&
	      w.sge[0].lkey == 0x77);
	wr.bind_mw.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	CHECK_EQ(vrnic_post_send(&p.qp->qp, &wr, &bad), 0);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.sge[0].addr == 0 && w.w.swap == IBV_ACCESS_REMOTE_READ);

	mw.type = IBV_MW_TYPE_1; /* the low octet of its key is counted up, and stays an octet */
	CHECK_EQ(vrnic_bind_mw(&p.qp->qp, &mw, &mb), 0);
	CHECK_EQ(mw.rkey, 0x500);
	CHECK(fake_take_send(p.q, &w));
	CHECK(w.w.rkey == 0x500 && w.w.op == IBV_WR_BIND_MW && w.w.wr_id == 8 &&
	      w.w.flags == VRNIC_SQ_SIGNALED);
	CHECK_EQ(vrnic_bind_mw(&p.qp->qp, &mw, &mb), 0);
	CHECK_EQ(mw.rkey, 0x501);
	mb.bind_info.mr = NULL;
	CHECK_EQ(vrnic_bind_mw(&p.qp->qp, &mw, &mb), EINVAL);
	CHECK_EQ(mw.rkey, 0x501);
	mb.bind_info.addr = mb.bind_info.length = 0; /* unbinds */
	CHECK_EQ(vrnic_bind_mw(&p.qp->qp, &mw, &mb), 0);
	CHECK_EQ(mw.rkey, 0x502);
	teardown(&p);
}

/* Small messages go by the ring or the slab, but only if the daemon would let their SGEs pass. */
static void test_small_sends(void)
{
	struct pair p = setup(64, 1, 2, 64, NULL);
	char *far = malloc(64);
	uint32_t key = fake_mr(far, 64, 0x1000, 0), room = p.qp->cap.max_inline_data;
	struct ibv_sge sge = sge_of(0, room);

	CHECK_EQ(post(&p, IBV_WR_RDMA_WRITE, 0, &sge, 1, 0), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.flags == VRNIC_SQ_INLINE);
	sge.length = room + 1;
	CHECK_EQ(post(&p, IBV_WR_RDMA_WRITE, 0, &sge, 1, 0), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.flags == VRNIC_SQ_SLAB && !memcmp(w.data, buf, room + 1));
	sge.length = 65537;
	CHECK_EQ(post(&p, IBV_WR_RDMA_WRITE, 0, &sge, 1, 0), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.flags == 0 && w.w.num_sge == 1);
	sge.lkey++; /* none */
	sge.length = 10;
	CHECK_EQ(post(&p, IBV_WR_SEND, 0, &sge, 1, 0), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.flags == 0 && w.w.num_sge == 1 && w.sge[0].lkey == sge.lkey);
	memcpy(far, "elsewhere", 9); /* an iova is no address */
	sge = (struct ibv_sge){ .addr = 0x1000, .length = 9, .lkey = key };
	CHECK_EQ(post(&p, IBV_WR_SEND, 0, &sge, 1, 0), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.flags == VRNIC_SQ_INLINE && !memcmp(w.data, "elsewhere", 9));
	sge.length = 0;
	CHECK_EQ(post(&p, IBV_WR_SEND, 0, &sge, 1, 0), 0);
	CHECK(fake_take_send(p.q, &w) && w.w.length == 0);
	fake_dereg(key);
	free(far);
	teardown(&p);
}

/*
 * The slab is used all around, messages lie in it in one piece, and when it is full they go
 * without.
 */
static void test_send_slab(void)
{
	struct pair p = setup(64, 1, 1, 64, NULL);
	struct ibv_sge sge;
	int i, k, slabs = 0, without = 0, n;
	uint32_t len;

	fake_indices(p.qp, NEAR_WRAP);
	srand(1);
	for (i = 0; i < 3000; i++) {
		n = 1 + rand() % 20;
		for (k = 0; k < n; k++) {
			len = 300 + rand() % 30000;
			memset(buf, i + k, len);
			sge = sge_of(0, len);
			CHECK_EQ(post(&p, IBV_WR_SEND, len, &sge, 1, 0), 0);
		}
		for (k = 0; k < n; k++) {
			CHECK(fake_take_send(p.q, &w));
			CHECK_EQ(w.w.wr_id, w.w.length);
			if (w.w.flags & VRNIC_SQ_SLAB) {
				slabs++;
				CHECK(w.data[0] == (char)(i + k) && !memcmp(w.data, w.data + 1, w.w.length - 1));
			} else {
				without++;
			}
		}
		fake_retire(p.q, n);
	}
	CHECK(slabs > 10000 && without > 1000);
	CHECK_EQ(corrupt, 0);
	teardown(&p);
}

/* Receives: the queue is full when so many are not polled; a starved queue rings its bell. */
static void test_recv(void)
{
	struct pair p = setup(1, 4, 2, 0, NULL);
	struct ibv_sge sge[3] = { sge_of(0, 100), sge_of(1000, 100), sge_of(2000, 100) };
	struct ibv_recv_wr wr[2] = { { .wr_id = 5, .next = &wr[1] },
				    { .wr_id = 6, .num_sge = 3, .sg_list = sge } }, *bad;
	struct ibv_wc wc;
	int i;

	fake_indices(p.qp, NEAR_WRAP);
	for (i = 0; i < 4; i++)
		CHECK_EQ(post_recv(&p, i, sge, 1), 0);
	CHECK_EQ(post_recv(&p, 4, sge, 1), ENOMEM);
	CHECK(!fake_rang(p.q));
	CHECK(fake_take_recv(p.q, &r)); /* its slot is free, but it is outstanding */
	CHECK_EQ(post_recv(&p, 4, sge, 1), ENOMEM);
	fake_received(p.q, p.cq, &r, p.q->num, "hello", 5, false);
	CHECK_EQ(post_recv(&p, 4, sge, 1), ENOMEM);
	wc = poll1(p.cq);
	CHECK(wc.wr_id == 0 && wc.opcode == IBV_WC_RECV && wc.byte_len == 5 && !memcmp(buf, "hello", 5));
	CHECK_EQ(post_recv(&p, 4, sge, 1), 0);
	atomic_store(vrnic_word(p.q->mem, VRNIC_QP_RQ_STARVED), 1);
	for (i = 1; i < 200; i++) {
		CHECK(fake_take_recv(p.q, &r));
		CHECK_EQ(r.w.wr_id, i);
		fake_received(p.q, p.cq, &r, p.q->num, &i, 4, i % 2);
		CHECK_EQ(poll1(p.cq).wr_id, i);
		CHECK(!memcmp(buf, &i, 4));
		CHECK_EQ(post_recv(&p, i + 4, sge, 2), 0);
		CHECK(fake_rang(p.q));
	}
	CHECK(fake_take_recv(p.q, &r));
	fake_received(p.q, p.cq, &r, p.q->num, NULL, 0, false);
	CHECK(fake_take_recv(p.q, &r));
	fake_received(p.q, p.cq, &r, p.q->num, NULL, 0, false);
	poll1(p.cq);
	poll1(p.cq);
	CHECK_EQ(vrnic_post_recv(&p.qp->qp, wr, &bad), p.qp->cap.max_recv_sge < 3 ? EINVAL : 0);
	CHECK(bad == &wr[1]);
	CHECK_EQ(corrupt, 0);
	teardown(&p);
}

/*
 * What comes by way of the slab is spread over the SGEs as they were posted, whatever the ring
 * holds by then.
 */
static void test_recv_slab(void)
{
	struct pair p = setup(1, 64, 3, 0, NULL);
	uint32_t key = fake_mr(buf + 32768, 16384, 0x10000, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge sge[3] = { sge_of(0, 10), { .addr = 0x10000, .length = 20, .lkey = key },
				 sge_of(8192, 9000) };
	static char data[8192];
	uint32_t len;
	int i, k;

	fake_indices(p.qp, NEAR_WRAP);
	srand(2);
	for (i = 0; i < 2000; i++) {
		len = 1 + rand() % 8192;
		for (k = 0; k < (int)len; k++)
			data[k] = rand();
		CHECK_EQ(post_recv(&p, i, sge, 3), 0);
		CHECK(fake_take_recv(p.q, &r));
		memset(p.q->mem + p.q->l.rq_off, 0xee, p.q->l.rq_size * p.q->l.rq_stride);
		fake_received(p.q, p.cq, &r, p.q->num, data, len, true);
		CHECK_EQ(poll1(p.cq).byte_len, len);
		k = len < 10 ? len : 10;
		CHECK(!memcmp(buf, data, k));
		if (len > 10)
			CHECK(!memcmp(buf + 32768, data + 10, len < 30 ? len - 10 : 20));
		if (len > 30)
			CHECK(!memcmp(buf + 8192, data + 30, len - 30));
	}
	/* The program has deregistered its memory, and so may have freed it. */
	memset(buf, 'x', 64);
	CHECK_EQ(post_recv(&p, 1, sge, 1), 0);
	CHECK(fake_take_recv(p.q, &r));
	fake_received(p.q, p.cq, &r, p.q->num, "hello", 5, true);
	fake_dereg(buf_key);
	CHECK_EQ(poll1(p.cq).status, IBV_WC_LOC_PROT_ERR);
	CHECK(buf[0] == 'x');
	CHECK_EQ(corrupt, 0);
	fake_dereg(key);
	teardown(&p);
}

/* Immediate data, invalidated keys and errors, as a WC has them. */
static void test_wc(void)
{
	struct pair p = setup(4, 4, 1, 0, NULL);
	struct vrnic_cqe e = { .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .qpn = p.q->num,
			      .imm = htonl(0x0a0b0c0d), .src_qp = 0x1234,
			       .wc_flags = IBV_WC_WITH_IMM, .slab_off = VRNIC_NO_SLAB };
	struct ibv_wc wc;
	int i;

	for (i = 0; i < 3; i++)
		CHECK_EQ(post_recv(&p, i, NULL, 0), 0);
	fake_take_recv(p.q, &r);
	e.cookie = r.w.cookie;
	fake_push(p.cq, &e);
	wc = poll1(p.cq);
	CHECK(wc.wc_flags == IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 0x0a0b0c0d &&
	      wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(wc.src_qp == 0 && wc.pkey_index == 0 && wc.slid == 0 && wc.sl == 0 &&
	      wc.dlid_path_bits == 0);
	CHECK_EQ(revoked, 0);

	fake_take_recv(p.q, &r);
	e = (struct vrnic_cqe){ .opcode = IBV_WC_RECV, .qpn = p.q->num, .imm = 0x777,
			       .wc_flags = IBV_WC_WITH_INV,
				.cookie = r.w.cookie, .slab_off = VRNIC_NO_SLAB };
	fake_push(p.cq, &e);
	wc = poll1(p.cq);
	CHECK(wc.wc_flags == IBV_WC_WITH_INV && wc.invalidated_rkey == 0x777);
	CHECK_EQ(revoked, 0x777);

	fake_take_recv(p.q, &r); /* the opcode of an error need not be there */
	e = (struct vrnic_cqe){ .status = IBV_WC_LOC_LEN_ERR, .vendor_err = 0x1234, .qpn = p.q->num,
			       .cookie = r.w.cookie,
				.slab_off = VRNIC_NO_SLAB };
	fake_push(p.cq, &e);
	wc = poll1(p.cq);
	CHECK(wc.status == IBV_WC_LOC_LEN_ERR && wc.vendor_err == 0x1234 && wc.wr_id == 2 &&
	      wc.opcode == IBV_WC_RECV);
	CHECK_EQ(corrupt, 0);
	teardown(&p);
}

/*
 * Several QPs share a CQ; those that are gone are passed over, and their receives go back to the
 * SRQ.
 */
static void test_destroy(void)
{
	struct ibv_srq_init_attr sa = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(&pd.pd, &sa);
	struct pair p = setup(4, 4, 1, 0, srq), q;
	struct fake_q *sq = fake_of(srq->handle);
	struct ibv_sge sge = sge_of(0, 64);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_qp_init_attr attr = { .send_cq = &p.cq->cq, .recv_cq = &p.cq->cq, .srq = srq,
					.qp_type = IBV_QPT_RC };
	struct ibv_wc wc;
	int i;

	CHECK_EQ(p.qp->rx_slab_size, 0);
	q = p;
	q.qp = to_vqp(ibv_create_qp(&pd.pd, &attr));
	CHECK(q.qp);
	q.q = fake_of(q.qp->qp.qp_num);
	fake_state(q.q, IBV_QPS_RTS);
	CHECK_EQ(attr.cap.max_recv_wr, 0);
	CHECK_EQ(post_recv(&q, 0, &sge, 1), EINVAL);
	for (i = 0; i < 4; i++) {
		wr.wr_id = i;
		CHECK_EQ(vrnic_post_srq_recv(srq, &wr, &bad), 0);
	}
	CHECK_EQ(vrnic_post_srq_recv(srq, &wr, &bad), ENOMEM);
	for (i = 0; i < 4; i++) {
		CHECK(fake_take_recv(sq, &r));
		fake_received(sq, p.cq, &r, i == 2 ? q.q->num : p.q->num, "x", 1, true);
	}
	CHECK_EQ(post(&q, IBV_WR_SEND, 77, NULL, 0, IBV_SEND_SIGNALED), 0);
	CHECK(fake_take_send(q.q, &w));
	fake_sent(q.q, p.cq, &w, 0, 1);
	CHECK_EQ(poll1(p.cq).wr_id, 0);
	CHECK_EQ(ibv_destroy_srq(srq), EBUSY);
	CHECK_EQ(ibv_destroy_qp(&p.qp->qp), 0); /* two completions of it are in the ring */
	for (i = 0; i < 3; i++)
		CHECK_EQ(vrnic_post_srq_recv(srq, &wr, &bad), 0);
	CHECK_EQ(vrnic_post_srq_recv(srq, &wr, &bad), ENOMEM);
	wc = poll1(p.cq);
	CHECK(wc.wr_id == 2 && wc.qp_num == q.qp->qp.qp_num);
	CHECK_EQ(poll1(p.cq).wr_id, 77);
	want_empty(p.cq);
	CHECK_EQ(vrnic_post_srq_recv(srq, &wr, &bad), 0);
	CHECK_EQ(corrupt, 0);
	CHECK_EQ(ibv_destroy_qp(&q.qp->qp), 0);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	fake_cq_free(p.cq);
	CHECK_EQ(pd.users, 0);
}

/* Programs ask for an event before they look once more. */
static void test_arm(void)
{
	struct pair p = setup(1, 1, 1, 0, NULL);

	CHECK_EQ(vrnic_req_notify_cq(&p.cq->cq, 1), 0);
	CHECK_EQ(atomic_load(p.cq->arm), VRNIC_ARM_SOLICITED);
	CHECK_EQ(vrnic_req_notify_cq(&p.cq->cq, 0), 0);
	CHECK_EQ(atomic_load(p.cq->arm), VRNIC_ARM_SOLICITED | VRNIC_ARM_NEXT);
	CHECK(p.cq->armed);
	atomic_store(&session.dead, true);
	p.cq->armed = false;
	atomic_store(p.cq->arm, 0);
	CHECK_EQ(vrnic_req_notify_cq(&p.cq->cq, 0), 0);
	CHECK(p.cq->armed && !atomic_load(p.cq->arm));
	teardown(&p);
}

/* The doorbell is rung only for a daemon that sleeps. */
static void test_doorbell(void)
{
	struct pair p = setup(4, 1, 1, 0, NULL);

	CHECK_EQ(post(&p, IBV_WR_SEND, 1, NULL, 0, 0), 0);
	CHECK_EQ(doorbells, 0);
	atomic_store(session.sleeping, 1);
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, NULL, 0, 0), 0);
	CHECK_EQ(doorbells, 1);
	CHECK_EQ(atomic_load(session.sleeping), 0);
	CHECK_EQ(post(&p, IBV_WR_SEND, 1, NULL, 0, 0), 0);
	CHECK_EQ(doorbells, 1);
	teardown(&p);
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "create", test_create },
	{ "layouts", test_layouts },
	{ "send_wrap", test_send_wrap },
	{ "send_full", test_send_full },
	{ "send_refused", test_send_refused },
	{ "operands", test_operands },
	{ "small_sends", test_small_sends },
	{ "send_slab", test_send_slab },
	{ "recv", test_recv },
	{ "recv_slab", test_recv_slab },
	{ "wc", test_wc },
	{ "destroy", test_destroy },
	{ "arm", test_arm },
	{ "doorbell", test_doorbell },
	{ "hostile", test_hostile },
	{ "hostile_destroy", test_hostile_destroy },
	{ "random", test_random },
	{ "flush", test_flush },
	{ "forked", test_forked },
	{ "cq_ex", test_cq_ex },
	{ "wr", test_wr },
	{ "threads", test_threads },
	{ "direct", test_direct },
	{ "direct_room", test_direct_room },
	{ "direct_behind", test_direct_behind },
	{ "direct_off", test_direct_off },
	{ "direct_events", test_direct_events },
	{ "direct_again", test_direct_again },
	{ "direct_late", test_direct_late },
	{ "direct_left", test_direct_left }, { "direct_armed", test_direct_armed },
	{ "direct_polling", test_direct_polling },
	{ "direct_receiver", test_direct_receiver },
	{ "direct_forked", test_direct_forked }, { "direct_unfinished", test_direct_unfinished },
	{ "direct_hostile", test_direct_hostile }, { "direct_layout", test_direct_layout },
	{ "direct_remote", test_direct_remote }, { "direct_uncovered", test_direct_uncovered },
	{ "services", test_services },
	{ "datagrams", test_datagrams },
	{ "reset", test_reset },
	{ "table", test_table },
	{ "regions_forked", test_regions_forked }, { "regions_remembered", test_regions_remembered },
};

int main(int argc, char **argv)
{
	size_t i;
	int ran = 0;

	if (argc > 1 && !strcmp(argv[1], "-list")) {
		for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
			puts(tests[i].name);
		return 0;
	}
	for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (argc > 1 && strcmp(argv[1], tests[i].name))
			continue;
		fake_start();
		tests[i].run();
		printf("ok %s\n", tests[i].name);
		ran++;
	}
	if (argc > 1 && !strcmp(argv[1], "-bench")) {
		fake_start();
		bench();
		ran++;
	}
	return ran ? 0 : 2;
}
