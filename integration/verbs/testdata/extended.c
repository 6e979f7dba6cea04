/* The newer calls: ibv_cq_ex, ibv_wr_*, memory windows and keys that the peer takes back. */
#include "vt.h"

#include <arpa/inet.h>
#include <sys/mman.h>
#include <unistd.h>

#define OPS (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ)

static struct vt_pair p;

static struct ibv_cq_ex *next(struct ibv_cq_ex *cq)
{
	uint64_t late = vt_now_ms() + VT_PATIENCE;
	struct ibv_poll_cq_attr attr = {};
	int err;

	while ((err = ibv_start_poll(cq, &attr)) == ENOENT)
		if (vt_now_ms() > late)
			FAIL("no completion");
	CHECK_EQ(err, 0);
	return cq;
}

/* A CQ that is read field by field. */
static void cq_fields(void)
{

	vt_open(&p, &(struct vt_opts){ .ex = true, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP });
	for (int i = 0; i < 5; i++)
		vt_recv(&p.b, 50 + i, 1000 * i, 1000);
	for (int i = 0; i < 5; i++) {
		struct ibv_sge sge = vt_sge(&p.a, 0, i == 3 ? 0 : 100 + i);
		struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = i == 3 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0xabcd) }, *bad;

		CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	}
	for (int i = 0; i < 5;) {
		struct ibv_cq_ex *cq = next(p.b.rcqx);

		do {
			CHECK_EQ(cq->wr_id, 50 + i);
			CHECK_EQ(cq->status, IBV_WC_SUCCESS);
			CHECK_EQ(ibv_wc_read_opcode(cq) & IBV_WC_RECV, IBV_WC_RECV);
			CHECK_EQ(ibv_wc_read_byte_len(cq), i == 3 ? 0 : 100 + i);
			CHECK_EQ(ibv_wc_read_qp_num(cq), p.b.qp->qp_num);
			CHECK_EQ(ibv_wc_read_wc_flags(cq), i == 3 ? IBV_WC_WITH_IMM : 0);
			if (i == 3)
				CHECK_EQ(ntohl(ibv_wc_read_imm_data(cq)), 0xabcd);
			i++;
		} while (i < 5 && ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
	CHECK_EQ(ibv_start_poll(p.b.rcqx, &(struct ibv_poll_cq_attr){}), ENOENT);
	/* The older call reads the same CQ. */
	for (int i = 0; i < 5; i++)
		vt_wc(p.a.scq, i, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_disconnect(&p);
	vt_send(&p.a, 9, 0, 10);
	CHECK_EQ(next(p.a.scqx)->status, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(p.a.scqx->wr_id, 9);
	(void)ibv_wc_read_vendor_err(p.a.scqx);
	ibv_end_poll(p.a.scqx);
	vt_free(&p);
}

/* Requests by wr_start ... wr_complete. */
static void wr_calls(void)
{
	struct ibv_qp_ex *qp;
	struct ibv_sge list[2];
	struct ibv_data_buf bufs[2];
	char local[16] = "taken at once", more[8] = "and this";

	vt_open(&p, &(struct vt_opts){ .ex = true, .send_ops = OPS | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM });
	qp = p.a.qpx;
	CHECK(qp && &qp->qp_base == p.a.qp);
	for (int i = 0; i < 8; i++)
		vt_recv(&p.b, 100 + i, 4096 * i, 4096);

	vt_fill(p.a.buf, 8192, 1);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf, 3000);
	qp->wr_id = 2;
	qp->wr_flags = 0;
	ibv_wr_send(qp);
	list[0] = vt_sge(&p.a, 0, 1000);
	list[1] = vt_sge(&p.a, 1000, 500);
	ibv_wr_set_sge_list(qp, 2, list);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, local, sizeof(local));
	memset(local, 0, sizeof(local));
	qp->wr_id = 4;
	ibv_wr_send(qp);
	bufs[0] = (struct ibv_data_buf){ more, 4 };
	bufs[1] = (struct ibv_data_buf){ more + 4, 4 };
	ibv_wr_set_inline_data_list(qp, 2, bufs);
	qp->wr_id = 40;
	ibv_wr_send_imm(qp, htonl(77));
	ibv_wr_set_inline_data(qp, NULL, 0);
	qp->wr_id = 5;
	ibv_wr_rdma_write(qp, p.b.mr->rkey, (uintptr_t)p.b.buf + 40000);
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf + 100, 5000);
	qp->wr_id = 6;
	ibv_wr_rdma_read(qp, p.b.mr->rkey, (uintptr_t)p.b.buf + 40000);
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf + 20000, 5000);
	qp->wr_id = 7;
	ibv_wr_rdma_write_imm(qp, p.b.mr->rkey, (uintptr_t)p.b.buf + 50000, htonl(78));
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf, 10);
	CHECK_EQ(ibv_wr_complete(qp), 0);

	CHECK_EQ(vt_wc(p.b.rcq, 100, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, 3000);
	vt_verify(p.b.buf, 3000, 1);
	CHECK_EQ(vt_wc(p.b.rcq, 101, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, 1500);
	vt_verify(p.b.buf + 4096, 1500, 1);
	CHECK_EQ(vt_wc(p.b.rcq, 102, IBV_WC_SUCCESS, IBV_WC_RECV).byte_len, 16);
	CHECK(!memcmp(p.b.buf + 2 * 4096, "taken at once", 14));
	vt_wc(p.b.rcq, 103, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK(!memcmp(p.b.buf + 3 * 4096, "and this", 8));
	CHECK_EQ(ntohl(vt_wc(p.b.rcq, 104, IBV_WC_SUCCESS, -1).imm_data), 77);
	CHECK_EQ(ntohl(vt_wc(p.b.rcq, 105, IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM).imm_data), 78);
	vt_wc(p.a.scq, 1, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.a.scq, 3, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.a.scq, 4, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.a.scq, 40, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.a.scq, 5, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	vt_wc(p.a.scq, 6, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
	vt_wc(p.a.scq, 7, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE);
	CHECK(!memcmp(p.a.buf + 20000, p.a.buf + 100, 5000));

	/* What is begun and thrown away was never there. */
	ibv_wr_start(qp);
	qp->wr_id = 8;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf, 10);
	ibv_wr_abort(qp);
	/* Nor is a list of which one does not fit. */
	ibv_wr_start(qp);
	for (int i = 0; i < 5000; i++) {
		qp->wr_id = 1000 + i;
		ibv_wr_send(qp);
		ibv_wr_set_sge(qp, p.a.mr->lkey, (uintptr_t)p.a.buf, 10);
	}
	CHECK_EQ(ibv_wr_complete(qp), ENOMEM);
	vt_no_wc(p.a.scq);
	vt_no_wc(p.b.rcq);
	vt_send(&p.a, 9, 0, 10);
	vt_wc(p.b.rcq, 106, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_wc(p.a.scq, 9, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_close(&p);
}

/* A QP of the older call is none of these. */
static void no_wr_calls(void)
{
	vt_open(&p, &(struct vt_opts){ 0 });
	CHECK(!ibv_qp_to_qp_ex(p.a.qp));
	vt_close(&p);
}

#define MW_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND)

static void write_to(uint64_t id, uint64_t addr, uint32_t key, uint32_t n)
{
	CHECK_EQ(vt_try_send(&p.a, id, IBV_WR_RDMA_WRITE, 0, n, 0, addr, key), 0);
	CHECK_EQ(vt_try_send(&p.a, id + 1, IBV_WR_RDMA_READ, 30000, n, IBV_SEND_SIGNALED, addr, key), 0);
	vt_wc(p.a.scq, id + 1, IBV_WC_SUCCESS, IBV_WC_RDMA_READ);
}

/* A window of type 2: bound to a part of a region by a request, and taken back by the peer with a Send. */
static void windows(void)
{
	struct ibv_mw *mw;
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint32_t key;

	vt_open(&p, &(struct vt_opts){ .unsignaled = true, .access = MW_ACCESS });
	CHECK(mw = ibv_alloc_mw(p.b.pd, IBV_MW_TYPE_2));
	CHECK_EQ(mw->type, IBV_MW_TYPE_2);
	key = ibv_inc_rkey(mw->rkey);
	wr = (struct ibv_send_wr){ .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = key;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ p.b.mr, (uintptr_t)p.b.buf + 4096, 8192, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	CHECK_EQ(ibv_post_send(p.b.qp, &wr, &bad), 0);
	vt_wc(p.b.scq, 1, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
	vt_fill(p.a.buf, 8192, 5);
	write_to(10, (uintptr_t)p.b.buf + 4096, key, 8192);
	vt_verify(p.b.buf + 4096, 8192, 5);
	vt_verify(p.a.buf + 30000, 8192, 5);
	CHECK_EQ(ibv_dereg_mr(p.b.mr), EBUSY);

	/* The peer gives it back with its message. */
	vt_recv(&p.b, 2, 0, 100);
	sge = vt_sge(&p.a, 0, 100);
	wr = (struct ibv_send_wr){ .wr_id = 3, .opcode = IBV_WR_SEND_WITH_INV, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key };
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	wc = vt_wc(p.b.rcq, 2, IBV_WC_SUCCESS, IBV_WC_RECV);
	CHECK_EQ(wc.wc_flags & IBV_WC_WITH_INV, IBV_WC_WITH_INV);
	CHECK_EQ(wc.invalidated_rkey, key);
	vt_wc(p.a.scq, 3, IBV_WC_SUCCESS, IBV_WC_SEND);

	/* Bound again, it is taken back by its owner. */
	key = ibv_inc_rkey(key);
	wr = (struct ibv_send_wr){ .wr_id = 4, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = key;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ p.b.mr, (uintptr_t)p.b.buf + 4096, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	CHECK_EQ(ibv_post_send(p.b.qp, &wr, &bad), 0);
	vt_wc(p.b.scq, 4, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
	write_to(20, (uintptr_t)p.b.buf + 4096, key, 100);
	wr = (struct ibv_send_wr){ .wr_id = 5, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = key };
	CHECK_EQ(ibv_post_send(p.b.qp, &wr, &bad), 0);
	vt_wc(p.b.scq, 5, IBV_WC_SUCCESS, IBV_WC_LOCAL_INV);
	CHECK_EQ(vt_try_send(&p.a, 6, IBV_WR_RDMA_READ, 0, 10, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf + 4096, key), 0);
	vt_wc(p.a.scq, 6, IBV_WC_REM_ACCESS_ERR, -1);
	vt_async(p.b.qp, IBV_EVENT_QP_ACCESS_ERR);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	vt_free(&p);
}

/* A window of type 1: bound by a call. IBV_ACCESS_LOCAL_WRITE, which programs ask for, means nothing to a window. */
static void windows1(void)
{
	struct ibv_mw *mw;
	struct ibv_mw_bind bind = { .wr_id = 7, .send_flags = IBV_SEND_SIGNALED };
	uint32_t old;

	vt_open(&p, &(struct vt_opts){ .unsignaled = true, .access = MW_ACCESS });
	CHECK(mw = ibv_alloc_mw(p.b.pd, IBV_MW_TYPE_1));
	old = mw->rkey;
	bind.bind_info = (struct ibv_mw_bind_info){ p.b.mr, (uintptr_t)p.b.buf, 1000, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	CHECK_EQ(ibv_bind_mw(p.b.qp, mw, &bind), 0);
	vt_wc(p.b.scq, 7, IBV_WC_SUCCESS, IBV_WC_BIND_MW);
	CHECK(mw->rkey != old);
	vt_fill(p.a.buf, 1000, 9);
	write_to(1, (uintptr_t)p.b.buf, mw->rkey, 1000);
	vt_verify(p.b.buf, 1000, 9);
	/* Beyond it there is nothing. */
	CHECK_EQ(vt_try_send(&p.a, 6, IBV_WR_RDMA_READ, 0, 10, IBV_SEND_SIGNALED, (uintptr_t)p.b.buf + 995, mw->rkey), 0);
	vt_wc(p.a.scq, 6, IBV_WC_REM_ACCESS_ERR, -1);
	vt_async(p.b.qp, IBV_EVENT_QP_ACCESS_ERR);
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	vt_free(&p);
}

/* A bind that may not be: the region does not allow windows. */
static void bind_refused(void)
{
	struct ibv_mw *mw;
	struct ibv_send_wr wr, *bad;
	struct ibv_wc wc;

	vt_open(&p, &(struct vt_opts){ .unsignaled = true });
	CHECK(mw = ibv_alloc_mw(p.b.pd, IBV_MW_TYPE_2));
	wr = (struct ibv_send_wr){ .wr_id = 1, .opcode = IBV_WR_BIND_MW };
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ p.b.mr, (uintptr_t)p.b.buf, 100, IBV_ACCESS_REMOTE_READ };
	CHECK_EQ(ibv_post_send(p.b.qp, &wr, &bad), 0);
	wc = vt_poll(p.b.scq);
	CHECK(wc.wr_id == 1 && (wc.status == IBV_WC_MW_BIND_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR));
	vt_expect(p.a.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	vt_expect(p.b.ch, RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK_EQ(ibv_dealloc_mw(mw), 0);
	vt_free(&p);
}

/* A parent domain is a name for its protection domain: what is made in either works with both. */
static void parent_domains(void)
{
	struct ibv_td_init_attr none = {};
	struct ibv_parent_domain_init_attr attr = {};
	struct ibv_cq_init_attr_ex cqa = { .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	struct ibv_send_wr wr = { .wr_id = 3, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_context *ctx;
	struct ibv_cq_ex *cq;
	struct ibv_sge sge;
	struct ibv_pd *pd;
	struct ibv_td *td;
	struct ibv_mr *mr;

	vt_open(&p, &(struct vt_opts){});
	ctx = p.a.pd->context;
	CHECK(td = ibv_alloc_td(ctx, &none));
	attr.td = td;
	CHECK(!ibv_alloc_parent_domain(ctx, &attr) && errno == EINVAL);
	attr.pd = p.a.pd;
	attr.comp_mask = 1 << 7;
	CHECK(!ibv_alloc_parent_domain(ctx, &attr) && errno == EOPNOTSUPP);
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	CHECK(pd = ibv_alloc_parent_domain(ctx, &attr));
	attr.pd = pd;
	CHECK(!ibv_alloc_parent_domain(ctx, &attr) && errno == EINVAL); /* it has no child */
	CHECK_EQ(ibv_dealloc_td(td), EBUSY);

	CHECK(mr = ibv_reg_mr(pd, p.a.buf, 1000, IBV_ACCESS_LOCAL_WRITE));
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	sge = (struct ibv_sge){ (uintptr_t)p.a.buf, 1000, mr->lkey };
	wr.sg_list = &sge;
	vt_fill(p.a.buf, 1000, 4);
	vt_recv(&p.b, 5, 0, 1000);
	CHECK_EQ(ibv_post_send(p.a.qp, &wr, &bad), 0);
	vt_wc(p.a.scq, 3, IBV_WC_SUCCESS, IBV_WC_SEND);
	vt_wc(p.b.rcq, 5, IBV_WC_SUCCESS, IBV_WC_RECV);
	vt_verify(p.b.buf, 1000, 4);
	CHECK_EQ(ibv_dereg_mr(mr), 0);

	cqa.parent_domain = p.a.pd;
	CHECK(!ibv_create_cq_ex(ctx, &cqa) && errno == EINVAL);
	cqa.parent_domain = pd;
	CHECK(cq = ibv_create_cq_ex(ctx, &cqa));
	CHECK_EQ(ibv_dealloc_pd(pd), EBUSY);
	CHECK_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	CHECK_EQ(ibv_dealloc_pd(pd), 0);
	CHECK_EQ(ibv_dealloc_td(td), 0);
	vt_disconnect(&p);
	vt_free(&p);
}

/* Advice for a region's pages. */
static void advice(void)
{
	long page = sysconf(_SC_PAGESIZE);
	char *mem = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char there[4];
	struct ibv_sge sge;
	struct ibv_mr *mr;

	vt_open(&p, &(struct vt_opts){});
	CHECK(mem != MAP_FAILED);
	CHECK(mr = ibv_reg_mr(p.a.pd, mem, 4 * page, IBV_ACCESS_ON_DEMAND));
	sge = (struct ibv_sge){ (uintptr_t)mem + page, 2, mr->lkey };
	CHECK_EQ(ibv_advise_mr(p.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, &sge, 1), 0);
	CHECK_EQ(ibv_advise_mr(p.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1),
		 0);
	CHECK_EQ(ibv_advise_mr(p.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), EFAULT);
	CHECK_EQ(ibv_advise_mr(p.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1),
		 p.a.pd == p.b.pd ? 0 : EFAULT);
	CHECK_EQ(ibv_advise_mr(p.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &sge, 1), EINVAL);
	CHECK_EQ(ibv_advise_mr(p.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0), EINVAL);
	CHECK_EQ(ibv_advise_mr(p.a.pd, 7, 0, &sge, 1), ENOTSUP);
	sge.length = 3 * page + 1;
	CHECK_EQ(ibv_advise_mr(p.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK(mr = ibv_reg_mr(p.a.pd, mem, 4 * page, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE));
	CHECK_EQ(madvise(mem, 4 * page, MADV_DONTNEED), 0);
	sge = (struct ibv_sge){ (uintptr_t)mem + page, page + 1, mr->lkey };
	CHECK_EQ(ibv_advise_mr(p.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), 0);
	CHECK_EQ(mincore(mem, 4 * page, there), 0);
	/* Kernels before 5.14 cannot be asked for it. */
	CHECK(there[1] == there[2] && !(there[0] & 1) && !(there[3] & 1));
	CHECK_EQ(munmap(mem + page, page), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	CHECK_EQ(munmap(mem, 4 * page), 0);
	vt_disconnect(&p);
	vt_free(&p);
}

static const struct vt_case cases[] = {
	{ "cq_fields", cq_fields }, { "wr_calls", wr_calls }, { "no_wr_calls", no_wr_calls }, { "windows", windows },
	{ "windows1", windows1 }, { "bind_refused", bind_refused },
	{ "parent_domains", parent_domains }, { "advice", advice }, {},
};

int main(int argc, char **argv) { return vt_main(argc, argv, cases); }
