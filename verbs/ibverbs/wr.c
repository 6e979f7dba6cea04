/*
 * ibv_wr_*: requests that are made by calls, between wr_start, which takes the lock of the send
 * queue, and wr_complete or wr_abort, which give it back. A request waits in sq.wr for the call
 * that says where its octets are; that call, or the next request if it has none, puts it into the
 * ring. The first error is kept, and wr_complete returns it and posts nothing.
 */
#include <errno.h>
#include <string.h>

#include "queue.h"

static struct vrnic_qp *of(struct ibv_qp_ex *ex)
{
	return to_vqp(&ex->qp_base);
}

static void fail(struct vrnic_sq *sq, int err)
{
	if (!sq->wr_err)
		sq->wr_err = err;
}

/* Puts the request that is open. A datagram may get its address later. */
static void put(struct vrnic_qp *qp)
{
	struct vrnic_sq *sq = &qp->sq;
	int err;

	if (!sq->wr_open)
		return;
	sq->wr_open = false;
	if (sq->wr_err)
		return;
	err = vrnic_sq_put(qp, sq->wr_prod, &sq->wr);
	if (err)
		fail(sq, err);
	else
		sq->wr_prod++;
}

/* Puts the request that is open, after which nothing can be said of it. */
static void finish(struct vrnic_qp *qp)
{
	put(qp);
	if (!qp->sq.wr_addressed)
		fail(&qp->sq, EINVAL);
}

static struct ibv_send_wr *begin(struct ibv_qp_ex *ex, enum ibv_wr_opcode op)
{
	struct vrnic_qp *qp = of(ex);
	struct ibv_send_wr *wr = &qp->sq.wr;

	finish(qp);
	qp->sq.wr_open = true;
	qp->sq.wr_addressed = qp->qp.qp_type != IBV_QPT_UD;
	wr->wr.ud.ah = NULL;
	wr->wr_id = ex->wr_id;
	wr->opcode = op;
	wr->send_flags = ex->wr_flags & ~IBV_SEND_INLINE; /* it is said by how the octets are set */
	wr->sg_list = NULL;
	wr->num_sge = 0;
	return wr;
}

static void begin_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr,
		       uint32_t imm)
{
	struct ibv_send_wr *wr = begin(ex, op);

	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = addr;
	wr->imm_data = imm;
}

static void begin_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey,
			 uint64_t addr, uint64_t cmp_add,
			 uint64_t swap)
{
	struct ibv_send_wr *wr = begin(ex, op);

	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.remote_addr = addr;
	wr->wr.atomic.compare_add = cmp_add;
	wr->wr.atomic.swap = swap;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr,
			      uint64_t compare, uint64_t swap)
{
	begin_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	begin_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *info)
{
	struct ibv_send_wr *wr = begin(ex, IBV_WR_BIND_MW);

	wr->bind_mw.mw = mw;
	wr->bind_mw.rkey = rkey;
	wr->bind_mw.bind_info = *info;
	if (mw->type != IBV_MW_TYPE_2)
		fail(&of(ex)->sq, EINVAL);
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin(ex, IBV_WR_LOCAL_INV)->invalidate_rkey = rkey;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin_rdma(ex, IBV_WR_RDMA_READ, rkey, addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	begin_rdma(ex, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, ibv_be32 imm)
{
	begin_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	begin(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, ibv_be32 imm)
{
	begin(ex, IBV_WR_SEND_WITH_IMM)->imm_data = imm;
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	begin(ex, IBV_WR_SEND_WITH_INV)->invalidate_rkey = rkey;
}

/* Of what no QP here has; a program gets a QP without them, if it asks for them. */
static void wr_send_tso(struct ibv_qp_ex *ex, void *hdr, uint16_t hdr_sz, uint16_t mss)
{
	(void)hdr, (void)hdr_sz, (void)mss;
	fail(&of(ex)->sq, EOPNOTSUPP);
}

static void wr_atomic_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, const void *value)
{
	(void)rkey, (void)addr, (void)value;
	fail(&of(ex)->sq, EOPNOTSUPP);
}

/* It comes before the octets, or behind them: then the request is in the ring already. */
static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct vrnic_qp *qp = of(ex);
	struct vrnic_sq *sq = &qp->sq;

	if (qp->qp.qp_type != IBV_QPT_UD || !ah || !vrnic_same_pd(ah->pd, qp->qp.pd) || sq->wr_addressed) {
		fail(sq, EINVAL);
		return;
	}
	sq->wr_addressed = true;
	sq->wr.wr.ud.ah = ah;
	sq->wr.wr.ud.remote_qpn = qpn;
	sq->wr.wr.ud.remote_qkey = qkey;
	if (!sq->wr_open && !sq->wr_err)
		vrnic_sq_address(qp, sq->wr_prod - 1, &sq->wr);
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *ex, uint32_t srqn)
{
	(void)srqn;
	fail(&of(ex)->sq, EOPNOTSUPP);
}

static void set(struct ibv_qp_ex *ex, const struct ibv_sge *sge, size_t n, unsigned int flags)
{
	struct vrnic_qp *qp = of(ex);
	struct ibv_send_wr *wr = &qp->sq.wr;

	if (!qp->sq.wr_open || n > qp->sq.max_sge) {
		fail(&qp->sq, EINVAL);
		return;
	}
	wr->sg_list = (struct ibv_sge *)sge;
	wr->num_sge = n;
	wr->send_flags |= flags;
	put(qp);
	wr->sg_list = NULL;
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	set(ex, &sge, 1, 0);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *sge)
{
	set(ex, sge, n, 0);
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)addr, .length = length };

	if (length > of(ex)->sq.max_inline)
		fail(&of(ex)->sq, EINVAL);
	else
		set(ex, &sge, 1, IBV_SEND_INLINE);
}

/* Of more pieces than a request may have SGEs, too. */
static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *buf)
{
	char data[VRNIC_MAX_INLINE];
	size_t i, len = 0;

	for (i = 0; i < n; i++) {
		if (buf[i].length > of(ex)->sq.max_inline - len) {
			fail(&of(ex)->sq, EINVAL);
			return;
		}
		if (buf[i].length)
			memcpy(data + len, buf[i].addr, buf[i].length);
		len += buf[i].length;
	}
	wr_set_inline_data(ex, data, len);
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct vrnic_sq *sq = &of(ex)->sq;

	pthread_mutex_lock(&sq->lock);
	sq->wr_prod = atomic_load_explicit(&sq->prod, memory_order_relaxed);
	sq->wr_slab_prod = sq->slab_prod;
	sq->wr_open = false;
	sq->wr_addressed = true;
	sq->wr_err = vrnic_sq_ready(of(ex));
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct vrnic_qp *qp = of(ex);
	struct vrnic_sq *sq = &qp->sq;
	bool ring = false, try;
	int err;

	finish(qp);
	err = sq->wr_err;
	if (err) {
		sq->slab_prod = sq->wr_slab_prod;
	} else {
		ring = vrnic_sq_direct(qp, &sq->wr_prod);
		if (sq->wr_prod == atomic_load_explicit(&sq->prod, memory_order_relaxed))
			sq->slab_prod = sq->wr_slab_prod; /* nothing uses it */
		ring |= vrnic_sq_commit(qp, sq->wr_prod);
	}
	try = vrnic_direct_due(qp);
	pthread_mutex_unlock(&sq->lock);
	if (ring)
		vrnic_ring(qp->s, qp->bell);
	if (unlikely(try))
		vrnic_direct_try(qp);
	return err;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	struct vrnic_sq *sq = &of(ex)->sq;

	sq->slab_prod = sq->wr_slab_prod;
	pthread_mutex_unlock(&sq->lock);
}

void vrnic_qp_ex_ops(struct vrnic_qp *qp, uint64_t flags)
{
	struct ibv_qp_ex *ex = &qp->vqp.qp_ex;

	qp->vqp.comp_mask |= VERBS_QP_EX;
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_xrc_srqn = wr_set_xrc_srqn;
	ex->wr_send_tso = wr_send_tso;
	ex->wr_atomic_write = wr_atomic_write;
	/* A program that has not asked for one has no use for it, and finds out at once. */
	if (flags & IBV_QP_EX_WITH_RDMA_WRITE)
		ex->wr_rdma_write = wr_rdma_write;
	if (flags & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		ex->wr_rdma_write_imm = wr_rdma_write_imm;
	if (flags & IBV_QP_EX_WITH_SEND)
		ex->wr_send = wr_send;
	if (flags & IBV_QP_EX_WITH_SEND_WITH_IMM)
		ex->wr_send_imm = wr_send_imm;
	if (flags & IBV_QP_EX_WITH_RDMA_READ)
		ex->wr_rdma_read = wr_rdma_read;
	if (flags & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	if (flags & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	if (flags & IBV_QP_EX_WITH_LOCAL_INV)
		ex->wr_local_inv = wr_local_inv;
	if (flags & IBV_QP_EX_WITH_BIND_MW)
		ex->wr_bind_mw = wr_bind_mw;
	if (flags & IBV_QP_EX_WITH_SEND_WITH_INV)
		ex->wr_send_inv = wr_send_inv;
}
