/* What comes of the requests of queue pairs of RoCE, of each service. */
#include "roce.h"

#include <pthread.h>
#include <stdatomic.h>

static void one_of(struct end *e, struct end *peer, enum ibv_wr_opcode op, uint32_t len, int wc_op, int recv_op)
{
	bool receives = recv_op >= 0;
	struct ibv_wc wc;

	if (receives)
		CHECK_EQ(post_recv(peer, 100 + op, LEN), 0);
	CHECK_EQ(post(e, op, op, len), 0);
	wc = vt_wc(e->scq, op, IBV_WC_SUCCESS, wc_op);
	CHECK_EQ(wc.qp_num, e->qp->qp_num);
	if (wc_op == IBV_WC_RDMA_READ || wc_op == IBV_WC_COMP_SWAP || wc_op == IBV_WC_FETCH_ADD)
		CHECK_EQ(wc.byte_len, len);
	if (!receives)
		return;
	wc = vt_wc(peer->rcq, 100 + op, IBV_WC_SUCCESS, recv_op);
	CHECK_EQ(wc.byte_len, len);
	CHECK_EQ(wc.qp_num, peer->qp->qp_num);
	CHECK_EQ(wc.wc_flags & ~IBV_WC_GRH, op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM ? IBV_WC_WITH_IMM : 0);
	if (wc.wc_flags & IBV_WC_WITH_IMM)
		CHECK_EQ(ntohl(wc.imm_data), 0x01020304);
}

/* Each operation, and what its completions say. */
static void operations(void)
{
	static const uint32_t lens[] = { 0, 1, 5, 64, 1024, 1025, 4096, LEN };
	uint64_t before;

	open_ends();
	join(IBV_QPT_RC);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		uint32_t n = lens[i];

		vt_fill(a.buf, LEN, i);
		memset(b.buf, 0, LEN);
		one_of(&a, &b, IBV_WR_SEND, n, IBV_WC_SEND, IBV_WC_RECV);
		CHECK(!memcmp(a.buf, b.buf, n));
		memset(b.buf, 0, LEN);
		one_of(&a, &b, IBV_WR_SEND_WITH_IMM, n, IBV_WC_SEND, IBV_WC_RECV);
		CHECK(!memcmp(a.buf, b.buf, n));
		memset(b.buf, 0, LEN);
		one_of(&a, &b, IBV_WR_RDMA_WRITE, n, IBV_WC_RDMA_WRITE, -1);
		CHECK(!memcmp(a.buf, b.buf, n));
		memset(b.buf, 0, LEN);
		one_of(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, n, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM);
		CHECK(!memcmp(a.buf, b.buf, n));
		vt_fill(b.buf, LEN, 1000 + i);
		one_of(&a, &b, IBV_WR_RDMA_READ, n, IBV_WC_RDMA_READ, -1);
		CHECK(!memcmp(a.buf, b.buf, n));
	}
	memcpy(&before, b.buf, 8);
	one_of(&a, &b, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_FETCH_ADD, -1);
	CHECK(!memcmp(a.buf, &before, 8));
	before += 5;
	CHECK(!memcmp(b.buf, &before, 8));
	one_of(&a, &b, IBV_WR_ATOMIC_CMP_AND_SWP, 8, IBV_WC_COMP_SWAP, -1);
	CHECK(!memcmp(a.buf, &before, 8));
	part();

	join(IBV_QPT_UC);
	vt_fill(a.buf, LEN, 7);
	memset(b.buf, 0, LEN);
	one_of(&a, &b, IBV_WR_SEND, 3000, IBV_WC_SEND, IBV_WC_RECV);
	CHECK(!memcmp(a.buf, b.buf, 3000));
	one_of(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, LEN, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM);
	CHECK(!memcmp(a.buf, b.buf, LEN));
	CHECK_EQ(post(&a, 1, IBV_WR_RDMA_READ, 8), EINVAL);
	CHECK_EQ(post(&a, 1, IBV_WR_ATOMIC_FETCH_AND_ADD, 8), EINVAL);
	part();
	close_ends();
}

/* The first completion that fails has the cause, the others are flushed; a query shows the state. */
static void failures(void)
{
	open_ends();
	join(IBV_QPT_RC);
	b.mr->rkey ^= 0xff; /* as the peer would have told a wrong one */
	CHECK_EQ(post(&a, 1, IBV_WR_RDMA_WRITE, 64), 0);
	CHECK_EQ(post(&a, 2, IBV_WR_SEND, 64), 0);
	b.mr->rkey ^= 0xff;
	vt_wc(a.scq, 1, IBV_WC_REM_ACCESS_ERR, 0);
	vt_wc(a.scq, 2, IBV_WC_WR_FLUSH_ERR, 0);
	CHECK_EQ(query(a.qp).qp_state, IBV_QPS_ERR);
	vt_async(b.qp, IBV_EVENT_QP_ACCESS_ERR);
	CHECK_EQ(query(b.qp).qp_state, IBV_QPS_ERR);
	part();
	/* A receive that is too short. */
	join(IBV_QPT_RC);
	CHECK_EQ(post_recv(&b, 3, 32), 0);
	CHECK_EQ(post_recv(&b, 4, 32), 0);
	CHECK_EQ(post(&a, 5, IBV_WR_SEND, 64), 0);
	vt_wc(a.scq, 5, IBV_WC_REM_INV_REQ_ERR, 0);
	vt_wc(b.rcq, 3, IBV_WC_LOC_LEN_ERR, 0);
	vt_wc(b.rcq, 4, IBV_WC_WR_FLUSH_ERR, 0);
	part();
	/* Rights that the QP does not give, and then gives. */
	join(IBV_QPT_RC);
	{
		struct ibv_qp_attr none = { .qp_access_flags = 0 }, some = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };

		CHECK_EQ(ibv_modify_qp(b.qp, &none, ACC), 0);
		CHECK_EQ(ibv_modify_qp(b.qp, &some, ACC), 0);
		CHECK_EQ(post(&a, 6, IBV_WR_RDMA_READ, 64), 0);
		vt_wc(a.scq, 6, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
		CHECK_EQ(ibv_modify_qp(b.qp, &none, ACC), 0);
		CHECK_EQ(post(&a, 7, IBV_WR_RDMA_READ, 64), 0);
		vt_wc(a.scq, 7, IBV_WC_REM_INV_REQ_ERR, 0);
		vt_async(b.qp, IBV_EVENT_QP_REQ_ERR);
	}
	part();
	close_ends();
}

/* SQD: what was begun ends, then an event, if it was asked for; requests wait until RTS. */
static void draining(void)
{
	struct ibv_qp_attr sqd = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 }, rts = { .qp_state = IBV_QPS_RTS };

	open_ends();
	join(IBV_QPT_RC);
	CHECK_EQ(post_recv(&b, 1, LEN), 0);
	CHECK_EQ(post_recv(&b, 2, LEN), 0);
	CHECK_EQ(post(&a, 3, IBV_WR_SEND, LEN), 0);
	vt_wc(a.scq, 3, IBV_WC_SUCCESS, IBV_WC_SEND);
	CHECK_EQ(ibv_modify_qp(a.qp, &sqd, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	vt_async(a.qp, IBV_EVENT_SQ_DRAINED);
	CHECK_EQ(query(a.qp).sq_draining, 0);
	CHECK_EQ(post(&a, 4, IBV_WR_SEND, 64), 0);
	vt_no_wc(a.scq);
	CHECK_EQ(ibv_modify_qp(a.qp, &rts, IBV_QP_STATE), 0);
	vt_wc(a.scq, 4, IBV_WC_SUCCESS, IBV_WC_SEND);
	part();
	close_ends();
}

/* The first packet that comes for a QP in RTR is told of. */
static void established(void)
{
	open_ends();
	new_qp(&a, IBV_QPT_RC);
	new_qp(&b, IBV_QPT_RC);
	advance(&a, good(&b, b.qp->qp_num, PSN_A, PSN_B), IBV_QPS_RTS);
	advance(&b, good(&a, a.qp->qp_num, PSN_B, PSN_A), IBV_QPS_RTR);
	CHECK_EQ(post_recv(&b, 1, 64), 0);
	CHECK_EQ(post(&a, 2, IBV_WR_SEND, 64), 0);
	vt_wc(a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_async(b.qp, IBV_EVENT_COMM_EST);
	part();
	close_ends();
}

/* A datagram carries where it came from, and an answer finds its way back by that. */
static void datagrams(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = GID_INDEX } }, back, bad;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND_WITH_IMM, .num_sge = 1, .sg_list = &sge,
				  .imm_data = htonl(99) },
			   *bad_wr;
	struct ibv_port_attr port;
	struct ibv_ah *ah, *answer;
	struct ibv_wc wc;

	open_ends();
	CHECK_EQ(ibv_query_port(a.ctx, 1, &port), 0);
	new_qp(&a, IBV_QPT_UD);
	new_qp(&b, IBV_QPT_UD);
	advance(&a, good(&b, 0, PSN_A, 0), IBV_QPS_RTS);
	advance(&b, good(&a, 0, PSN_B, 0), IBV_QPS_RTS);
	to.grh.dgid = b.gid;
	bad = to;
	bad.is_global = 0;
	CHECK_NULL(ibv_create_ah(a.pd, &bad), EINVAL);
	bad = to;
	bad.port_num = 2;
	CHECK_NULL(ibv_create_ah(a.pd, &bad), EINVAL);
	bad.port_num = 0;
	CHECK_NULL(ibv_create_ah(a.pd, &bad), EINVAL);
	bad = to;
	bad.grh.sgid_index = port.gid_tbl_len - 1;
	CHECK_NULL(ibv_create_ah(a.pd, &bad), EINVAL);
	CHECK(ah = ibv_create_ah(a.pd, &to));
	CHECK_EQ(ibv_dealloc_pd(a.pd), EBUSY);

	vt_fill(a.buf, LEN, 3);
	sge = sge_of(&a, 0, 1000);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	CHECK_EQ(post_recv(&b, 2, 40 + 1000), 0);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad_wr), 0);
	vt_wc(a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	wc = vt_wc(b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK_EQ(wc.byte_len, 1040);
	CHECK_EQ(wc.src_qp, a.qp->qp_num);
	CHECK_EQ(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	CHECK_EQ(ntohl(wc.imm_data), 99);
	CHECK(!wc.pkey_index && !wc.slid && !wc.sl && !wc.dlid_path_bits);
	vt_verify(b.buf + 40, 1000, 3);
	CHECK_EQ(ibv_init_ah_from_wc(b.ctx, 1, &wc, (struct ibv_grh *)b.buf, &back), 0);
	CHECK(back.is_global && !memcmp(&back.grh.dgid, &a.gid, sizeof(a.gid)));
	CHECK_EQ(back.grh.sgid_index, GID_INDEX);
	CHECK(answer = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.buf, 1));
	sge = sge_of(&b, 0, 16);
	wr.opcode = IBV_WR_SEND;
	wr.wr.ud.ah = answer;
	wr.wr.ud.remote_qpn = wc.src_qp;
	CHECK_EQ(post_recv(&a, 3, 56), 0);
	CHECK_EQ(ibv_post_send(b.qp, &wr, &bad_wr), 0);
	vt_wc(b.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	wc = vt_wc(a.rcq, 3, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK_EQ(wc.byte_len, 56);
	CHECK_EQ(wc.wc_flags, IBV_WC_GRH);

	/* Another Q_Key: nobody hears of it. Another operation: it is not taken. */
	sge = sge_of(&a, 0, 16);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY + 1;
	CHECK_EQ(post_recv(&b, 4, LEN), 0);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad_wr), 0);
	vt_wc(a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_no_wc(b.rcq);
	wr.opcode = IBV_WR_RDMA_WRITE;
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad_wr), EINVAL);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	CHECK_EQ(ibv_destroy_ah(answer), 0);
	part();
	close_ends();
}

/* A group's members have a copy each, the sender's own QP too. */
static void groups(void)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = GID_INDEX } };
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .num_sge = 1, .sg_list = &sge }, *bad_wr;
	struct ibv_ah *ah;
	struct ibv_qp *rc;
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [15] = 77 } };

	open_ends();
	rc = new_qp(&a, IBV_QPT_RC);
	CHECK_EQ(ibv_attach_mcast(rc, &group, 0), EINVAL);
	drop(&a);
	new_qp(&a, IBV_QPT_UD);
	new_qp(&b, IBV_QPT_UD);
	advance(&a, good(&b, 0, PSN_A, 0), IBV_QPS_RTS);
	advance(&b, good(&a, 0, PSN_B, 0), IBV_QPS_RTS);
	CHECK_EQ(ibv_attach_mcast(a.qp, &a.gid, 0), EINVAL);
	CHECK_EQ(ibv_detach_mcast(a.qp, &group, 0), EINVAL);
	CHECK_EQ(ibv_attach_mcast(a.qp, &group, 0), 0);
	CHECK_EQ(ibv_attach_mcast(b.qp, &group, 0), 0);
	CHECK_EQ(ibv_destroy_qp(b.qp), EBUSY);
	to.grh.dgid = group;
	CHECK(ah = ibv_create_ah(a.pd, &to));
	CHECK_EQ(post_recv(&a, 2, LEN), 0);
	CHECK_EQ(post_recv(&b, 3, LEN), 0);
	sge = sge_of(&a, 0, 100);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = QKEY;
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad_wr), 0);
	vt_wc(a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	CHECK_EQ(vt_wc(a.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, 140);
	CHECK_EQ(vt_wc(b.rcq, 3, IBV_WC_SUCCESS, IBV_WC_RECV).src_qp, a.qp->qp_num);
	CHECK_EQ(ibv_detach_mcast(b.qp, &group, 0), 0);
	CHECK_EQ(post_recv(&b, 4, LEN), 0);
	CHECK_EQ(ibv_post_send(a.qp, &wr, &bad_wr), 0);
	vt_wc(a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_no_wc(b.rcq);
	CHECK_EQ(ibv_detach_mcast(a.qp, &group, 0), 0);
	CHECK_EQ(ibv_destroy_ah(ah), 0);
	part();
	close_ends();
}

/* A CQ gets larger, and keeps what is in it. */
static void resizing(void)
{
	struct ibv_cq *cq;

	open_ends();
	join(IBV_QPT_RC);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 6; i++) {
			CHECK_EQ(post_recv(&b, i, 64), 0);
			CHECK_EQ(post(&a, 10 + i, IBV_WR_SEND, 64), 0);
		}
		for (uint64_t end = vt_now_ms() + VT_PATIENCE; query(a.qp).sq_psn != ((PSN_A + 6u * (round + 1)) & 0xffffff);)
			CHECK(vt_now_ms() < end);
		vt_wc(b.rcq, 0, IBV_WC_SUCCESS, IBV_WC_RECV);
		CHECK_EQ(ibv_resize_cq(b.rcq, round == 1 ? 16 : 500), 0);
		CHECK(b.rcq->cqe >= (round == 1 ? 16 : 500));
		for (int i = 1; i < 6; i++)
			vt_wc(b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
		for (int i = 0; i < 6; i++)
			vt_wc(a.scq, 10 + i, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	CHECK_EQ(ibv_resize_cq(b.rcq, 0), EINVAL);
	CHECK_EQ(ibv_resize_cq(b.rcq, 1 << 30), EINVAL);
	/* Fewer than are in it. */
	for (int i = 0; i < 6; i++) {
		CHECK_EQ(post_recv(&b, i, 64), 0);
		CHECK_EQ(post(&a, 10 + i, IBV_WR_SEND, 64), 0);
		vt_wc(a.scq, 10 + i, IBV_WC_SUCCESS, IBV_WC_SEND);
	}
	CHECK_EQ(ibv_resize_cq(b.rcq, 2), EINVAL);
	for (int i = 0; i < 6; i++)
		vt_wc(b.rcq, i, IBV_WC_SUCCESS, IBV_WC_RECV);
	part();
	CHECK(cq = ibv_create_cq(a.ctx, 1, NULL, NULL, 0));
	CHECK_EQ(ibv_resize_cq(cq, 100), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	close_ends();
}

static atomic_bool resized;

static void *poll_on(void *cq)
{
	struct ibv_wc wc;

	while (!atomic_load(&resized))
		CHECK_EQ(ibv_poll_cq(cq, 1, &wc), 0);
	return NULL;
}

/* Mappings of what the daemon has made: each ring is one or two. */
static int mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	int n = 0;

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	fclose(f);
	return n;
}

/* A CQ that is resized again and again holds one ring, while others look whether something is in it. */
static void resized_often(void)
{
	pthread_t polls;
	int before;

	open_ends();
	join(IBV_QPT_RC);
	CHECK_EQ(pthread_create(&polls, NULL, poll_on, b.rcq), 0);
	CHECK_EQ(ibv_resize_cq(b.rcq, 100), 0);
	before = mappings();
	for (int i = 0; i < 200; i++)
		CHECK_EQ(ibv_resize_cq(b.rcq, i % 2 ? 100 : 4000), 0);
	CHECK_EQ(mappings(), before);
	atomic_store(&resized, true);
	CHECK_EQ(pthread_join(polls, NULL), 0);
	CHECK_EQ(post_recv(&b, 1, 64), 0);
	CHECK_EQ(post(&a, 2, IBV_WR_SEND, 64), 0);
	vt_wc(b.rcq, 1, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_wc(a.scq, 2, IBV_WC_SUCCESS, IBV_WC_SEND);
	part();
	close_ends();
}

/* ibv_wr_* and ibv_cq_ex on each service. */
static void extended(void)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	struct ibv_cq_init_attr_ex cqa = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = GID_INDEX } };
	struct ibv_poll_cq_attr pa = { 0 };

	open_ends();
	to.grh.dgid = b.gid;
	for (int t = 0; t < 3; t++) {
		struct ibv_cq_ex *cq = ibv_create_cq_ex(b.ctx, &cqa);
		struct ibv_qp_init_attr_ex qa = {
			.send_cq = a.scq, .recv_cq = a.rcq, .qp_type = types[t], .sq_sig_all = 1, .pd = a.pd,
			.cap = { 8, 8, 2, 2, 64 }, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		};
		struct ibv_cq *plain = b.rcq;
		struct ibv_ah *ah = NULL;
		struct ibv_qp_ex *ex;
		int grh = types[t] == IBV_QPT_UD ? 40 : 0;
		uint64_t end;

		CHECK(cq);
		b.rcq = ibv_cq_ex_to_cq(cq);
		CHECK(a.qp = ibv_create_qp_ex(a.ctx, &qa));
		CHECK(ex = ibv_qp_to_qp_ex(a.qp));
		new_qp(&b, types[t]);
		advance(&a, good(&b, b.qp->qp_num, PSN_A, PSN_B), IBV_QPS_RTS);
		advance(&b, good(&a, a.qp->qp_num, PSN_B, PSN_A), IBV_QPS_RTS);
		if (grh)
			CHECK(ah = ibv_create_ah(a.pd, &to));
		CHECK_EQ(post_recv(&b, 5, LEN), 0);
		ibv_wr_start(ex);
		ex->wr_id = 6;
		ex->wr_flags = 0;
		ibv_wr_send_imm(ex, htonl(0x77));
		if (grh)
			ibv_wr_set_ud_addr(ex, ah, b.qp->qp_num, QKEY);
		ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 900);
		CHECK_EQ(ibv_wr_complete(ex), 0);
		vt_wc(a.scq, 6, IBV_WC_SUCCESS, IBV_WC_SEND);
		for (end = vt_now_ms() + VT_PATIENCE; ibv_start_poll(cq, &pa);)
			CHECK(vt_now_ms() < end);
		CHECK_EQ(cq->wr_id, 5);
		CHECK_EQ(cq->status, IBV_WC_SUCCESS);
		CHECK_EQ(ibv_wc_read_opcode(cq), IBV_WC_RECV);
		CHECK_EQ(ibv_wc_read_byte_len(cq), 900 + grh);
		CHECK_EQ(ntohl(ibv_wc_read_imm_data(cq)), 0x77);
		CHECK_EQ(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM | (grh ? IBV_WC_GRH : 0));
		CHECK_EQ(ibv_wc_read_src_qp(cq), grh ? a.qp->qp_num : 0);
		CHECK_EQ(ibv_wc_read_qp_num(cq), b.qp->qp_num);
		ibv_end_poll(cq);
		if (ah)
			CHECK_EQ(ibv_destroy_ah(ah), 0);
		part();
		CHECK_EQ(ibv_destroy_cq(b.rcq), 0);
		b.rcq = plain;
	}
	close_ends();
}

static const struct vt_case cases[] = {
	{ "operations", operations }, { "failures", failures },	  { "draining", draining }, { "established", established },
	{ "datagrams", datagrams },   { "groups", groups },	  { "resizing", resizing }, { "extended", extended },
	{ "resized_often", resized_often },
	{ 0 },
};

int main(int argc, char **argv)
{
	return vt_main(argc, argv, cases);
}
