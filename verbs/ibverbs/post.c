/*
 * Posting. A request is checked, written into its slot of the ring, and shown to the daemon
 * together with others of the same call, with one bell for all. The daemon takes what breaks the
 * bounds of a QP for an attack and ends the session, so a program's mistakes are found here, before
 * anything of the request is written.
 */
#include <errno.h>
#include <string.h>

#include "queue.h"

/*
 * The longest message that goes through the slab. Up to here at least the copy costs less than the
 * daemon's reading of the program's memory, and leaves the rest of the slab for others.
 */
#define SLAB_MAX 65536

enum {
	OP_KNOWN = 1,
	OP_DATA = 2,	/* its octets are sent: they may come inline or from the slab */
	OP_SGES = 4,	/* else it has no use for SGEs */
	OP_REMOTE = 8,	/* wr.rdma */
	OP_IMM = 16,	/* imm_data, or the key to invalidate */
	OP_ATOMIC = 32, /* wr.atomic */
	OP_UC = 64,	/* for unreliable connections, too */
	OP_UD = 128,	/* and for datagrams */
};

static const struct {
	uint8_t is;
	uint8_t wc;
} ops[] = {
	[IBV_WR_RDMA_WRITE] = { OP_KNOWN | OP_DATA | OP_SGES | OP_REMOTE | OP_UC, IBV_WC_RDMA_WRITE },
	[IBV_WR_RDMA_WRITE_WITH_IMM] = { OP_KNOWN | OP_DATA | OP_SGES | OP_REMOTE | OP_IMM | OP_UC,
					IBV_WC_RDMA_WRITE },
	[IBV_WR_SEND] = { OP_KNOWN | OP_DATA | OP_SGES | OP_UC | OP_UD, IBV_WC_SEND },
	[IBV_WR_SEND_WITH_IMM] = { OP_KNOWN | OP_DATA | OP_SGES | OP_IMM | OP_UC | OP_UD, IBV_WC_SEND },
	[IBV_WR_RDMA_READ] = { OP_KNOWN | OP_SGES | OP_REMOTE, IBV_WC_RDMA_READ },
	[IBV_WR_ATOMIC_CMP_AND_SWP] = { OP_KNOWN | OP_SGES | OP_ATOMIC, IBV_WC_COMP_SWAP },
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = { OP_KNOWN | OP_SGES | OP_ATOMIC, IBV_WC_FETCH_ADD },
	[IBV_WR_LOCAL_INV] = { OP_KNOWN | OP_IMM | OP_UC, IBV_WC_LOCAL_INV },
	[IBV_WR_BIND_MW] = { OP_KNOWN | OP_UC, IBV_WC_BIND_MW },
	[IBV_WR_SEND_WITH_INV] = { OP_KNOWN | OP_DATA | OP_SGES | OP_IMM, IBV_WC_SEND },
};

_Static_assert(IBV_SEND_SIGNALED == 2 && VRNIC_SQ_SIGNALED == 1,
	       "the flags have other numbers in the ring");

enum ibv_wc_opcode vrnic_wc_opcode(enum ibv_wr_opcode op)
{
	return ops[op].wc;
}

static uint8_t ring_flags(unsigned int f)
{
	return (f & IBV_SEND_SIGNALED ? VRNIC_SQ_SIGNALED : 0) |
	       (f & IBV_SEND_SOLICITED ? VRNIC_SQ_SOLICITED : 0) |
	       (f & IBV_SEND_FENCE ? VRNIC_SQ_FENCE : 0);
}

/*
 * How many requests are outstanding. One is so until its completion, or a later one, has been
 * polled, so that a program that posts whenever there is room does not overrun a CQ as deep as its
 * queue. One that does not complete visibly is over when the daemon has retired it.
 */
static int outstanding(struct vrnic_qp *qp, uint32_t prod, uint32_t *n)
{
	struct vrnic_sq *sq = &qp->sq;
	uint32_t retired, polled = atomic_load_explicit(&sq->polled, memory_order_acquire);
	uint32_t direct = vrnic_direct_outstanding(sq->direct);

	if ((int32_t)(polled - sq->done) > 0)
		sq->done = polled;
	if (prod - sq->done + direct > sq->mask && !vrnic_dead(qp->s)) {
		retired = load_acquire(sq->done_word);
		if (prod - retired > sq->mask + 1) {
			vrnic_corrupt(qp->s, "sq_done passed sq_prod");
			return EIO;
		}
		while ((int32_t)(retired - sq->done) > 0 && !sq->sent[sq->done & sq->mask].signaled)
			sq->done++;
	}
	*n = prod - sq->done + direct;
	return 0;
}

int vrnic_sq_ready(struct vrnic_qp *qp)
{
	uint32_t state;

	if (unlikely(vrnic_dead(qp->s)))
		return 0; /* it will be flushed */
	state = load_acquire(qp->state);
	if (likely(state > IBV_QPS_RTR))
		return 0;
	/* No QP of a living session is in RESET: the daemon has emptied the memory. */
	if (state == IBV_QPS_RESET && vrnic_peer_gone(qp->s))
		return 0;
	return EINVAL;
}

/*
 * Whether the service and the card of a QP have the operation, and a datagram an address of the
 * same PD.
 */
static bool serves(struct vrnic_qp *qp, const struct ibv_send_wr *wr, uint8_t is)
{
	switch (qp->qp.qp_type) {
	case IBV_QPT_UC:
		return is & OP_UC;
	case IBV_QPT_UD:
		return is & OP_UD && (!wr->wr.ud.ah || vrnic_same_pd(wr->wr.ud.ah->pd, qp->qp.pd));
	default:
		return !(qp->refused_ops >> wr->opcode & 1);
	}
}

/*
 * Whether what wr asks for can be put into a WQE: 0 or EINVAL. *total: how many octets its SGEs
 * have.
 */
static int check(struct vrnic_qp *qp, const struct ibv_send_wr *wr, uint32_t *total)
{
	const struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;
	uint64_t sum = 0;
	uint8_t is;
	int i;

	*total = 0;
	if (wr->opcode >= sizeof(ops) / sizeof(ops[0]) || !(is = ops[wr->opcode].is) ||
	    !serves(qp, wr, is))
		return EINVAL;
	if (wr->send_flags & ~(IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE))
		return EINVAL;
	if (wr->opcode == IBV_WR_BIND_MW) {
		if (!wr->bind_mw.mw || !vrnic_same_pd(wr->bind_mw.mw->pd, qp->qp.pd) ||
		    (b->mr && !vrnic_same_pd(b->mr->pd, qp->qp.pd)) ||
		    (!b->mr && (b->addr || b->length)))
			return EINVAL;
		return 0;
	}
	if (!(is & OP_SGES))
		return 0;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->sq.max_sge)
		return EINVAL;
	for (i = 0; i < wr->num_sge; i++)
		sum += wr->sg_list[i].length;
	if (sum > UINT32_MAX)
		return EINVAL;
	if ((wr->send_flags & IBV_SEND_INLINE) && (!(is & OP_DATA) || sum > qp->sq.max_inline))
		return EINVAL;
	if ((is & OP_ATOMIC) && sum != 8)
		return EINVAL;
	if (qp->roce) {
		if ((is & OP_ATOMIC) && wr->wr.atomic.remote_addr % 8)
			return EINVAL;
	} else if (wr->opcode == IBV_WR_SEND_WITH_IMM && sum) {
		/* Immediate data is a message of its own in iWARP, without octets (RFC 7306, section 6.3). */
		return EINVAL;
	}
	*total = sum;
	return 0;
}

/*
 * Copies a message into the slab, in one piece, and says where; false if there is no room for it
 * now.
 */
static bool slab_put(struct vrnic_qp *qp, const struct iovec *iov, int n, uint32_t total,
		     uint32_t *off)
{
	struct vrnic_sq *sq = &qp->sq;
	uint32_t size = sq->slab_size, begin = sq->slab_prod, used;

	if (total > size)
		return false;
	used = begin - load_acquire(sq->slab_cons_word);
	if (used > size) {
		vrnic_corrupt(qp->s, "txslab_cons passed txslab_prod");
		return false;
	}
	if ((begin & (size - 1)) + total > size)
		begin = (begin + size - 1) & ~(size - 1);
	if (begin - sq->slab_prod + used + total > size)
		return false;
	*off = begin & (size - 1);
	vrnic_gather(sq->slab + *off, iov, n);
	sq->slab_prod = begin + total;
	return true;
}

/*
 * Writes where the octets are. The daemon reaches a program's memory by system calls: so a small
 * message goes by the ring or the slab, if its SGEs are right, whether the program asks for that or
 * not.
 */
static void put_data(struct vrnic_qp *qp, struct vrnic_send_wqe *w, const struct ibv_send_wr *wr,
		     uint32_t total)
{
	struct iovec iov[VRNIC_MAX_SGE];
	char *data = (char *)(w + 1);
	uint32_t off;
	int i, n = wr->num_sge;

	w->length = total;
	w->num_sge = 0;
	if (wr->send_flags & IBV_SEND_INLINE) {
		for (i = 0; i < n; i++) {
			iov[i].iov_base = (void *)(uintptr_t)wr->sg_list[i].addr;
			iov[i].iov_len = wr->sg_list[i].length;
		}
		vrnic_gather(data, iov, n);
		w->flags |= VRNIC_SQ_INLINE;
		return;
	}
	if ((ops[wr->opcode].is & OP_DATA) && total && total <= SLAB_MAX &&
	    vrnic_sges_local(&qp->sq.region, qp->qp.pd, wr->sg_list, n, false, iov)) {
		if (total <= qp->sq.max_inline) {
			vrnic_gather(data, iov, n);
			w->flags |= VRNIC_SQ_INLINE;
			return;
		}
		if (slab_put(qp, iov, n, total, &off)) {
			memcpy(data, &off, sizeof(off));
			w->flags |= VRNIC_SQ_SLAB;
			return;
		}
	}
	w->num_sge = n;
	if (n)
		memcpy(data, wr->sg_list, n * sizeof(*wr->sg_list));
}

/* The SGE of a bind says what the peer calls the first octet, and whose memory it is. */
static void put_bind(struct vrnic_send_wqe *w, const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;
	struct vrnic_sge *sge = (struct vrnic_sge *)(w + 1);

	w->rkey = wr->bind_mw.rkey;
	w->remote_addr = b->addr;
	w->cmp_add = b->length;
	/* A window gives nothing to its own side; programs ask for that all the same, as of a region. */
	w->swap = b->mw_access_flags & ~(IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	w->num_sge = 1;
	w->length = 0;
	sge->addr = b->mw_access_flags & IBV_ACCESS_ZERO_BASED ? 0 : b->addr;
	sge->length = 0;
	sge->lkey = b->mr ? b->mr->lkey : 0;
}

static void put_address(struct vrnic_send_wqe *w, const struct ibv_send_wr *wr)
{
	w->remote_addr = to_vah(wr->wr.ud.ah)->key;
	w->rkey = wr->wr.ud.remote_qpn;
	w->swap = wr->wr.ud.remote_qkey;
}

static void put_wqe(struct vrnic_qp *qp, struct vrnic_send_wqe *w, const struct ibv_send_wr *wr,
		    uint32_t total)
{
	uint8_t is = ops[wr->opcode].is;

	w->wr_id = wr->wr_id;
	w->op = wr->opcode;
	w->flags = ring_flags(wr->send_flags);
	w->remote_addr = w->cmp_add = w->swap = 0;
	w->rkey = w->imm = 0;
	if (is & OP_REMOTE) {
		w->remote_addr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	}
	if (is & OP_IMM) /* the last four octets of immediate data, in cmp_add, are 0: verbs have none */
		w->imm = wr->imm_data;
	if (is & OP_ATOMIC) {
		w->remote_addr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->cmp_add = wr->wr.atomic.compare_add;
		w->swap = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.swap : 0;
	}
	if (qp->qp.qp_type == IBV_QPT_UD && wr->wr.ud.ah)
		put_address(w, wr);
	if (is & OP_SGES) {
		put_data(qp, w, wr, total);
	} else if (wr->opcode == IBV_WR_BIND_MW) {
		put_bind(w, wr);
	} else {
		w->num_sge = 0;
		w->length = 0;
	}
}

static struct vrnic_send_wqe *slot(const struct vrnic_sq *sq, uint32_t prod)
{
	return (struct vrnic_send_wqe *)(sq->ring + (size_t)(prod & sq->mask) * sq->stride);
}

void vrnic_sq_address(struct vrnic_qp *qp, uint32_t prod, const struct ibv_send_wr *wr)
{
	if (!vrnic_dead(qp->s))
		put_address(slot(&qp->sq, prod), wr);
}

int vrnic_sq_put(struct vrnic_qp *qp, uint32_t prod, const struct ibv_send_wr *wr)
{
	struct vrnic_sq *sq = &qp->sq;
	struct vrnic_sent *sent = &sq->sent[prod & sq->mask];
	uint32_t total, n;
	int err;

	err = check(qp, wr, &total);
	if (unlikely(err))
		return err;
	err = outstanding(qp, prod, &n);
	if (unlikely(err))
		return err;
	if (n > sq->mask)
		return ENOMEM;
	if (likely(!vrnic_dead(qp->s)))
		put_wqe(qp, slot(sq, prod), wr, total);
	sent->wr_id = wr->wr_id;
	sent->op = wr->opcode;
	sent->signaled = qp->sig_all || (wr->send_flags & IBV_SEND_SIGNALED);
	if (wr->opcode == IBV_WR_LOCAL_INV)
		vrnic_mr_revoked(qp->s, wr->invalidate_rkey);
	return 0;
}

bool vrnic_sq_commit(struct vrnic_qp *qp, uint32_t prod)
{
	struct vrnic_sq *sq = &qp->sq;

	if (prod == atomic_load_explicit(&sq->prod, memory_order_relaxed))
		return false;
	if (unlikely(sq->direct))
		vrnic_direct_committed(sq->direct,
				       atomic_load_explicit(&sq->prod, memory_order_relaxed), prod);
	atomic_store_explicit(&sq->prod, prod, memory_order_release);
	if (vrnic_dead(qp->s))
		return false;
	if (sq->slab_size)
		store_release(sq->slab_prod_word, sq->slab_prod);
	store_release(sq->prod_word, prod);
	return true;
}

/* What ibv_bind_mw is for; and datagrams to nobody. */
static bool misplaced(const struct vrnic_qp *qp, const struct ibv_send_wr *wr)
{
	if (wr->opcode == IBV_WR_BIND_MW)
		return wr->bind_mw.mw && wr->bind_mw.mw->type != IBV_MW_TYPE_2;
	return qp->qp.qp_type == IBV_QPT_UD && !wr->wr.ud.ah;
}

/*
 * Sends wr without the daemon if that can be: 1. 0: it is for the ring, which has what was posted
 * before prod. Below 0: -errno.
 */
static int send_direct(struct vrnic_qp *qp, uint32_t prod, const struct ibv_send_wr *wr, bool *ring)
{
	struct vrnic_direct_wr w;
	uint32_t n;
	int err;

	if (vrnic_dead(qp->s) || prod != atomic_load_explicit(&qp->sq.prod, memory_order_relaxed))
		return 0;
	err = check(qp, wr, &w.total);
	if (!err)
		err = outstanding(qp, prod, &n);
	if (err)
		return -err;
	if (n > qp->sq.mask)
		return -ENOMEM;
	w.wr = wr;
	w.opcode = ops[wr->opcode].wc;
	w.signaled = qp->sig_all || wr->send_flags & IBV_SEND_SIGNALED;
	w.found = false;
	return vrnic_direct_post(qp, &w, ring);
}

static int post_one(struct vrnic_qp *qp, uint32_t *prod, const struct ibv_send_wr *wr, bool *ring)
{
	int r;

	if (misplaced(qp, wr))
		return EINVAL;
	if (qp->sq.direct) {
		r = send_direct(qp, *prod, wr, ring);
		if (r)
			return r < 0 ? -r : 0;
	}
	r = vrnic_sq_put(qp, *prod, wr);
	if (!r)
		++*prod;
	return r;
}

/* Where the octets of the request in a slot are, from a copy of it: false if it makes no sense. */
static bool find_octets(struct vrnic_qp *qp, const struct vrnic_send_wqe *e, const char *data,
			struct ibv_sge *sges, struct ibv_send_wr *wr, struct vrnic_direct_wr *w)
{
	uint32_t off = 0, i;

	w->total = e->length;
	w->n = 1;
	w->found = e->flags & (VRNIC_SQ_INLINE | VRNIC_SQ_SLAB);
	if (e->flags & VRNIC_SQ_INLINE) {
		w->iov[0] = (struct iovec){ (void *)data, e->length };
		return e->length <= qp->sq.max_inline;
	}
	if (e->flags & VRNIC_SQ_SLAB) {
		memcpy(&off, data, sizeof(off));
		w->iov[0] = (struct iovec){ qp->sq.slab + off, e->length };
		return off <= qp->sq.slab_size && e->length <= qp->sq.slab_size - off;
	}
	if (e->num_sge > qp->sq.max_sge)
		return false;
	memcpy(sges, data, e->num_sge * sizeof(*sges));
	wr->sg_list = sges;
	wr->num_sge = e->num_sge;
	for (w->total = 0, i = 0; i < e->num_sge; i++)
		w->total += sges[i].length;
	return w->total == e->length;
}

/* Does what is in the slot of i, and not committed, without the daemon if that can be: true. */
static bool redo(struct vrnic_qp *qp, uint32_t i, bool *ring)
{
	const struct vrnic_send_wqe *at = slot(&qp->sq, i);
	struct vrnic_send_wqe e = *at;
	struct ibv_send_wr wr = { .wr_id = e.wr_id, .opcode = e.op,
				  .send_flags = e.flags & VRNIC_SQ_SOLICITED ? IBV_SEND_SOLICITED : 0 };
	struct vrnic_direct_wr w = { .wr = &wr, .signaled = qp->sq.sent[i & qp->sq.mask].signaled };
	struct ibv_sge sges[VRNIC_MAX_SGE];

	if (e.op >= sizeof(ops) / sizeof(ops[0]))
		return false;
	w.opcode = ops[e.op].wc;
	if (ops[e.op].is & OP_ATOMIC) {
		wr.wr.atomic.remote_addr = e.remote_addr;
		wr.wr.atomic.rkey = e.rkey;
		wr.wr.atomic.compare_add = e.cmp_add;
		wr.wr.atomic.swap = e.swap;
	} else {
		wr.wr.rdma.remote_addr = e.remote_addr;
		wr.wr.rdma.rkey = e.rkey;
	}
	if (ops[e.op].is & OP_IMM)
		wr.imm_data = e.imm;
	return find_octets(qp, &e, (const char *)(at + 1), sges, &wr, &w) &&
	       vrnic_direct_post(qp, &w, ring);
}

bool vrnic_sq_direct(struct vrnic_qp *qp, uint32_t *prod)
{
	struct vrnic_sq *sq = &qp->sq;
	uint32_t to = atomic_load_explicit(&sq->prod, memory_order_relaxed), i = to;
	bool ring = false;

	if (!sq->direct || vrnic_dead(qp->s))
		return false;
	while (i != *prod && redo(qp, i, &ring))
		i++;
	if (i == to)
		return ring;
	for (; i != *prod; i++, to++) { /* what is left of the slab is free space there */
		memcpy(slot(sq, to), slot(sq, i), sq->stride);
		sq->sent[to & sq->mask] = sq->sent[i & sq->mask];
	}
	*prod = to;
	return ring;
}

int vrnic_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	bool ring = false, try;
	uint32_t prod;
	int err;

	pthread_mutex_lock(&qp->sq.lock);
	prod = atomic_load_explicit(&qp->sq.prod, memory_order_relaxed);
	err = vrnic_sq_ready(qp);
	for (; wr && !err; wr = wr->next) {
		err = post_one(qp, &prod, wr, &ring);
		if (err)
			break;
	}
	if (err)
		*bad = wr;
	ring |= vrnic_sq_commit(qp, prod);
	try = vrnic_direct_due(qp);
	pthread_mutex_unlock(&qp->sq.lock);
	if (ring)
		vrnic_ring(qp->s, qp->bell);
	if (unlikely(try))
		vrnic_direct_try(qp);
	return err;
}

int vrnic_bind_mw(struct ibv_qp *ibqp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	struct ibv_send_wr wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags & ~IBV_SEND_INLINE,
	};
	uint32_t prod;
	bool ring;
	int err;

	pthread_mutex_lock(&qp->sq.lock);
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = (mw->rkey & ~0xffu) | ((mw->rkey + 1) & 0xff);
	wr.bind_mw.bind_info = bind->bind_info;
	prod = atomic_load_explicit(&qp->sq.prod, memory_order_relaxed);
	err = vrnic_sq_ready(qp);
	if (!err)
		err = vrnic_sq_put(qp, prod, &wr);
	if (!err) {
		mw->rkey = wr.bind_mw.rkey;
		prod++;
	}
	ring = vrnic_sq_commit(qp, prod);
	pthread_mutex_unlock(&qp->sq.lock);
	if (ring)
		vrnic_ring(qp->s, qp->bell);
	return err;
}

/* A QP of RoCE takes receives from INIT on. The memory of a dead session may be empty. */
static bool takes_receives(struct vrnic_qp *qp)
{
	if (likely(!qp->roce) || vrnic_dead(qp->s) || likely(load_acquire(qp->state) != IBV_QPS_RESET))
		return true;
	return vrnic_peer_gone(qp->s);
}

int vrnic_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	int err;

	if (qp->srq || !takes_receives(qp)) { /* with an SRQ: post there */
		*bad = wr;
		return EINVAL;
	}
	err = vrnic_rq_post(&qp->rq, wr, bad);
	if (unlikely(atomic_load_explicit(&qp->direct_in, memory_order_relaxed)))
		vrnic_direct_received(qp);
	return err;
}

int vrnic_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return vrnic_rq_post(&to_vsrq(srq)->rq, wr, bad);
}

bool vrnic_sq_flush(struct vrnic_sq *sq, struct vrnic_sent *sent)
{
	uint32_t polled;
	bool any;

	pthread_mutex_lock(&sq->lock);
	polled = atomic_load_explicit(&sq->polled, memory_order_acquire);
	if ((int32_t)(polled - sq->done) > 0)
		sq->done = polled;
	any = sq->done != atomic_load_explicit(&sq->prod, memory_order_relaxed);
	if (any) {
		*sent = sq->sent[sq->done++ & sq->mask];
		sq->flushed = true;
		/* what has been done directly behind it waits for it */
		atomic_store_explicit(&sq->polled, sq->done, memory_order_release);
	}
	pthread_mutex_unlock(&sq->lock);
	return any;
}

void vrnic_sq_forget(struct vrnic_sq *sq)
{
	pthread_mutex_lock(&sq->lock);
	sq->done = atomic_load_explicit(&sq->prod, memory_order_relaxed);
	atomic_store_explicit(&sq->polled, sq->done, memory_order_release);
	pthread_mutex_unlock(&sq->lock);
}
