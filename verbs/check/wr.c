/*
 * ibv_wr_*: requests that are made by calls between wr_start and wr_complete. The library has its
 * send queue locked between these; so is ours. A request is kept when it is known where its octets
 * are, or that nothing more is said of it, and its octets are the device's from wr_complete on.
 */
#include "check.h"
#include "guard/guard.h"

static struct ibv_qp_ex next_wr; /* the functions that ours stand in front of */

static struct qp *of(struct ibv_qp_ex *ex)
{
	struct qp *qp;

	book_lock();
	qp = book_find(KIND_QP, &ex->qp_base);
	book_unlock();
	return qp;
}

/* Keeps the request that is open. */
static void keep(struct qp *qp, struct ibv_sge *sge, int n, unsigned int flags)
{
	if (!qp || !qp->wr_open)
		return;
	qp->wr_open = false;
	qp->wr.sg_list = sge;
	qp->wr.num_sge = n;
	qp->wr.send_flags |= flags;
	book_lock();
	qp->wr_added += post_add_send(qp, qp->pd, &qp->wr, &qp->wr_site);
	book_unlock();
	qp->wr.sg_list = NULL;
}

static void open_wr(struct ibv_qp_ex *ex, enum ibv_wr_opcode op)
{
	struct qp *qp = of(ex);

	keep(qp, NULL, 0, 0);
	if (!qp)
		return;
	qp->wr = (struct ibv_send_wr){ .wr_id = ex->wr_id, .opcode = op,
				       .send_flags = ex->wr_flags & ~IBV_SEND_INLINE };
	site_take(&qp->wr_site);
	qp->wr_open = true;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare,
			      uint64_t swap)
{
	open_wr(ex, IBV_WR_ATOMIC_CMP_AND_SWP);
	next_wr.wr_atomic_cmp_swp(ex, rkey, addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	open_wr(ex, IBV_WR_ATOMIC_FETCH_AND_ADD);
	next_wr.wr_atomic_fetch_add(ex, rkey, addr, add);
}

static void wr_bind_mw(struct ibv_qp_ex *ex, struct ibv_mw *mw, uint32_t rkey,
		       const struct ibv_mw_bind_info *info)
{
	open_wr(ex, IBV_WR_BIND_MW);
	next_wr.wr_bind_mw(ex, mw, rkey, info);
}

static void wr_local_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	open_wr(ex, IBV_WR_LOCAL_INV);
	next_wr.wr_local_inv(ex, rkey);
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	open_wr(ex, IBV_WR_RDMA_READ);
	next_wr.wr_rdma_read(ex, rkey, addr);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	open_wr(ex, IBV_WR_RDMA_WRITE);
	next_wr.wr_rdma_write(ex, rkey, addr);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, ibv_be32 imm)
{
	open_wr(ex, IBV_WR_RDMA_WRITE_WITH_IMM);
	next_wr.wr_rdma_write_imm(ex, rkey, addr, imm);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	open_wr(ex, IBV_WR_SEND);
	next_wr.wr_send(ex);
}

static void wr_send_imm(struct ibv_qp_ex *ex, ibv_be32 imm)
{
	open_wr(ex, IBV_WR_SEND_WITH_IMM);
	next_wr.wr_send_imm(ex, imm);
}

static void wr_send_inv(struct ibv_qp_ex *ex, uint32_t rkey)
{
	open_wr(ex, IBV_WR_SEND_WITH_INV);
	next_wr.wr_send_inv(ex, rkey);
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = { .addr = addr, .length = length, .lkey = lkey };

	keep(of(ex), &sge, 1, 0);
	next_wr.wr_set_sge(ex, lkey, addr, length);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *sge)
{
	keep(of(ex), (struct ibv_sge *)sge, n < INT32_MAX ? (int)n : -1, 0);
	next_wr.wr_set_sge_list(ex, n, sge);
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	keep(of(ex), NULL, 0, IBV_SEND_INLINE);
	guard_open(addr, length);
	next_wr.wr_set_inline_data(ex, addr, length);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *buf)
{
	size_t i;

	keep(of(ex), NULL, 0, IBV_SEND_INLINE);
	for (i = 0; i < n; i++)
		guard_open(buf[i].addr, buf[i].length);
	next_wr.wr_set_inline_data_list(ex, n, buf);
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct qp *qp = of(ex);
	struct site site;

	if (qp) {
		site_take(&site);
		pthread_mutex_lock(&qp->send);
		qp->wr_open = false;
		qp->wr_added = 0;
		book_lock();
		post_begin(qp, &site);
		book_unlock();
	}
	next_wr.wr_start(ex);
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct qp *qp = of(ex);
	int err;

	keep(qp, NULL, 0, 0);
	if (qp) {
		book_lock();
		queue_sum_last(&qp->sq, qp->wr_added);
		book_unlock();
	}
	err = next_wr.wr_complete(ex);
	if (!qp)
		return err;
	if (err) {
		post_take_back(qp, qp->wr_added);
		post_failed(&ex->qp_base, err);
	}
	pthread_mutex_unlock(&qp->send);
	return err;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	struct qp *qp = of(ex);

	next_wr.wr_abort(ex);
	if (!qp)
		return;
	post_take_back(qp, qp->wr_added);
	pthread_mutex_unlock(&qp->send);
}

/* A queue pair has those that its program has asked for. */
#define FOLLOW(f) \
	do { \
		if (ex->f && ex->f != (f)) { \
			next_wr.f = ex->f; \
			ex->f = (f); \
		} \
	} while (0)

void wr_follow(struct ibv_qp *qp)
{
	struct verbs_qp *v = container_of(qp, struct verbs_qp, qp);
	struct ibv_qp_ex *ex = &v->qp_ex;

	if (!(v->comp_mask & VERBS_QP_EX))
		return;
	FOLLOW(wr_atomic_cmp_swp);
	FOLLOW(wr_atomic_fetch_add);
	FOLLOW(wr_bind_mw);
	FOLLOW(wr_local_inv);
	FOLLOW(wr_rdma_read);
	FOLLOW(wr_rdma_write);
	FOLLOW(wr_rdma_write_imm);
	FOLLOW(wr_send);
	FOLLOW(wr_send_imm);
	FOLLOW(wr_send_inv);
	FOLLOW(wr_set_sge);
	FOLLOW(wr_set_sge_list);
	FOLLOW(wr_set_inline_data);
	FOLLOW(wr_set_inline_data_list);
	FOLLOW(wr_start);
	FOLLOW(wr_complete);
	FOLLOW(wr_abort);
}
