/*
 * Polling. A completion is copied out of the ring before anything in it is looked at, and what it
 * says is checked against what is outstanding: a daemon that is out of its mind ends the session,
 * not the program. When the session is dead, what is still outstanding completes as flushed, first
 * the sends of a QP and then its receives, in the order of posting.
 *
 * Programs poll in a loop, on machines with few cores, for what a daemon on the same machine is to
 * do. So a thread that finds nothing several times in a row yields the processor, and now and then
 * looks whether the daemon is still there.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "queue.h"

/* Yields after which a thread that finds nothing looks for the daemon. */
#define LOOK_YIELDS 64

/*
 * No call is needed to find them, but with musl, which has no room for such in what is loaded
 * later: a module of a program, as Python's and UCX's are, brings this library with it.
 */
#ifdef __GLIBC__
#define BY_NO_CALL __attribute__((tls_model("initial-exec")))
#else
#define BY_NO_CALL
#endif

static __thread BY_NO_CALL uint32_t empty_polls; /* in a row, since the last yield */
static __thread BY_NO_CALL uint32_t yields;

/*
 * There is nothing to wait for on a dead session: a program that polls for ever all the same leaves
 * the processor alone.
 */
static void nap(void)
{
	struct timespec t = { .tv_nsec = 1000000 };

	syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &t, NULL); /* no cancellation point */
}

static __attribute__((noinline)) void idle(struct vrnic_session *s)
{
	empty_polls = 0;
	if (vrnic_dead(s)) {
		nap();
		return;
	}
	if (++yields % LOOK_YIELDS == 0)
		vrnic_peer_gone(s);
	sched_yield();
}

/*
 * True: others have run meanwhile, and the CQ is to be looked at once more. A program that is told
 * that there is nothing, and looks for events of the connection manager next, as libfabric does,
 * must not find a disconnect there that is younger than what it was not told.
 */
static inline bool found_nothing(struct vrnic_session *s)
{
	if (likely(++empty_polls < s->poll_yield))
		return false;
	idle(s);
	return true;
}

/* A QP's place among those of cq. */
static struct vrnic_cq_link *link_of(struct vrnic_cq *cq, struct vrnic_qp *qp)
{
	return qp->qp.send_cq == &cq->cq ? &qp->in_send_cq : &qp->in_recv_cq;
}

static struct vrnic_qp *qp_of(struct vrnic_entry *e)
{
	return container_of(e, struct vrnic_cq_link, entry)->qp;
}

static inline struct vrnic_qp *find_qp(struct vrnic_cq *cq, uint32_t qpn)
{
	struct vrnic_qp *qp = cq->last;
	struct vrnic_entry *e;

	if (likely(qp && qp->qp.qp_num == qpn))
		return qp;
	e = vrnic_table_find(&cq->qps, qpn);
	if (!e)
		return NULL;
	return cq->last = qp_of(e);
}

void vrnic_cq_attach(struct vrnic_cq *cq, struct vrnic_qp *qp)
{
	struct vrnic_cq_link *l = link_of(cq, qp);

	l->qp = qp;
	pthread_mutex_lock(&cq->lock);
	vrnic_table_add(&cq->qps, &l->entry, qp->qp.qp_num);
	pthread_mutex_unlock(&cq->lock);
}

static inline void read_cqe(const struct vrnic_cq *cq, uint32_t i, struct vrnic_cqe *e)
{
	memcpy(e, cq->cqes + (size_t)(i & cq->mask) * VRNIC_CQE_LEN, sizeof(*e));
}

static inline bool is_receive(const struct vrnic_cqe *e)
{
	/* The opcode of an error need not say so. */
	return (e->opcode & IBV_WC_RECV) || (e->status && e->cookie);
}

/*
 * Calls each for the completions of qp that are in the ring, with cq->lock held: false, and the
 * session is dead, if the ring makes no sense.
 */
static bool each_of(struct vrnic_cq *cq, struct vrnic_qp *qp,
		    void (*each)(struct vrnic_cq *cq, struct vrnic_qp *qp, uint32_t i,
				 const struct vrnic_cqe *e))
{
	uint32_t i = atomic_load_explicit(&cq->cons, memory_order_relaxed);
	uint32_t prod = load_acquire(cq->prod);
	struct vrnic_cqe e;

	if (prod - i > cq->mask + 1) {
		cq->bad = true;
		vrnic_corrupt(cq->s, "CQ prod");
		return false;
	}
	for (; i != prod; i++) {
		read_cqe(cq, i, &e);
		if (e.qpn == qp->qp.qp_num)
			each(cq, qp, i, &e);
	}
	return true;
}

void (*vrnic_placing_told)(const struct iovec *iov, int n);

__attribute__((visibility("default"))) void vrnic_tell_placing(void (*f)(const struct iovec *iov,
									  int n));

void vrnic_tell_placing(void (*f)(const struct iovec *iov, int n)) { vrnic_placing_told = f; }

/* Nobody polls what qp's receives from an SRQ left in the ring. */
static void give_back(struct vrnic_cq *cq, struct vrnic_qp *qp, uint32_t i,
		      const struct vrnic_cqe *e)
{
	struct vrnic_rq *rq = &qp->srq->rq;
	uint32_t place;

	(void)cq, (void)i;
	if (!is_receive(e))
		return;
	pthread_mutex_lock(&rq->lock);
	place = vrnic_rq_find(rq, e->cookie);
	if (place != VRNIC_NO_RECV)
		vrnic_rq_release(rq, place);
	pthread_mutex_unlock(&rq->lock);
}

/* Has the completion belong to no QP. */
static void disown(struct vrnic_cq *cq, struct vrnic_qp *qp, uint32_t i, const struct vrnic_cqe *e)
{
	struct vrnic_cqe *at = (void *)(cq->cqes + (size_t)(i & cq->mask) * VRNIC_CQE_LEN);

	(void)qp, (void)e;
	at->qpn = 0;
}

void vrnic_cq_detach(struct vrnic_cq *cq, struct vrnic_qp *qp)
{
	pthread_mutex_lock(&cq->lock);
	vrnic_table_remove(&cq->qps, &link_of(cq, qp)->entry);
	cq->last = NULL;
	if (qp->srq && qp->qp.recv_cq == &cq->cq && !cq->bad && !vrnic_dead(cq->s))
		each_of(cq, qp, give_back);
	pthread_mutex_unlock(&cq->lock);
}

void vrnic_cq_forget(struct vrnic_cq *cq, struct vrnic_qp *qp)
{
	bool receives = qp->qp.recv_cq == &cq->cq;

	pthread_mutex_lock(&cq->lock);
	if (!cq->bad && !vrnic_dead(cq->s) && (!receives || !qp->srq || each_of(cq, qp, give_back)) &&
	    each_of(cq, qp, disown) && receives && qp->rx_slab_size) {
		qp->rx_slab_cons = load_acquire(qp->rx_slab_prod_word);
		store_release(qp->rx_slab_cons_word, qp->rx_slab_cons);
	}
	if (qp->qp.send_cq == &cq->cq)
		vrnic_sq_forget(&qp->sq);
	if (receives && !qp->srq)
		vrnic_rq_forget(&qp->rq);
	pthread_mutex_unlock(&cq->lock);
}

/*
 * Copies a small message out of the slab to where the receive wants it: false if that cannot be.
 * The program may have taken the memory back meanwhile; then the message is as if it had come
 * later.
 */
static bool copy_out(struct vrnic_qp *qp, const struct vrnic_recv *r, const struct ibv_sge *sge,
		     const struct vrnic_cqe *e, struct ibv_wc *wc)
{
	uint32_t size = qp->rx_slab_size, skip, ready, left, n;
	struct iovec iov[VRNIC_MAX_SGE];
	const char *from;
	uint32_t i;

	if (e->slab_off > size || e->slab_len > size - e->slab_off || !size)
		return false;
	skip = (e->slab_off - qp->rx_slab_cons) & (size - 1);
	ready = load_acquire(qp->rx_slab_prod_word) - qp->rx_slab_cons;
	if (ready > size || skip + e->slab_len > ready)
		return false;
	from = qp->rx_slab + e->slab_off;
	left = e->slab_len;
	if (vrnic_sges_local(&vrnic_rq_of(qp)->region, qp->qp.pd, sge, r->nsge, true, iov)) {
		vrnic_placing(iov, r->nsge);
		for (i = 0; i < r->nsge && left; i++) {
			n = left < iov[i].iov_len ? left : iov[i].iov_len;
			if (n)
				memcpy(iov[i].iov_base, from, n);
			from += n;
			left -= n;
		}
		if (left)
			return false;
	} else {
		wc->status = IBV_WC_LOC_PROT_ERR;
	}
	qp->rx_slab_cons += skip + e->slab_len;
	store_release(qp->rx_slab_cons_word, qp->rx_slab_cons);
	return true;
}

static bool received(struct vrnic_qp *qp, const struct vrnic_cqe *e, struct ibv_wc *wc)
{
	struct vrnic_rq *rq = vrnic_rq_of(qp);
	bool ok = false;
	uint32_t place;

	pthread_mutex_lock(&rq->lock);
	place = vrnic_rq_find(rq, e->cookie);
	if (place != VRNIC_NO_RECV) {
		ok = e->slab_off == VRNIC_NO_SLAB ||
		     copy_out(qp, &rq->wrs[place], rq->sges + (size_t)place * rq->max_sge, e, wc);
		wc->wr_id = rq->wrs[place].wr_id;
		if (ok) /* else it is flushed */
			vrnic_rq_release(rq, place);
		if (ok && qp->direct) {
			vrnic_direct_took(qp->direct);
			vrnic_direct_mark(qp->direct); /* the next one may be there, whose bit told of this one */
			if (!vrnic_pair_is_open(&qp->direct->out)) /* it may do nothing but receive */
				vrnic_direct_shut(qp);
		}
	}
	pthread_mutex_unlock(&rq->lock);
	return ok;
}

/*
 * Whether e is of a receive that has completed already: what a sender stamped late the daemon has
 * flushed, or used again if it was not told of it. The sender may have a pair that qp has not.
 */
static bool is_over(struct vrnic_qp *qp, const struct vrnic_cqe *e)
{
	bool over;

	if (!vrnic_may_pair(qp))
		return false;
	pthread_mutex_lock(&qp->rq.lock);
	over = vrnic_rq_find(&qp->rq, e->cookie) == VRNIC_NO_RECV;
	pthread_mutex_unlock(&qp->rq.lock);
	if (over && qp->direct && e->status != IBV_WC_WR_FLUSH_ERR)
		vrnic_direct_spoil(qp->direct);
	return over;
}

static inline bool sent(struct vrnic_sq *sq, uint32_t done)
{
	/* Who posts stores prod before the daemon can see the request. */
	uint32_t prod = atomic_load_explicit(&sq->prod, memory_order_acquire);

	if (prod - done > sq->mask + 1)
		return false;
	if ((int32_t)(done - atomic_load_explicit(&sq->polled, memory_order_relaxed)) > 0)
		atomic_store_explicit(&sq->polled, done, memory_order_release);
	return true;
}

/* Makes a WC of a CQE: 1; 0 for a QP that is gone; -1 if it makes no sense. */
static int complete(struct vrnic_cq *cq, const struct vrnic_cqe *e, struct ibv_wc *wc)
{
	struct vrnic_qp *qp = find_qp(cq, e->qpn);

	if (unlikely(!qp))
		return 0;
	wc->wr_id = e->wr_id;
	wc->status = e->status;
	wc->opcode = e->opcode;
	wc->vendor_err = e->vendor_err;
	wc->byte_len = e->byte_len;
	wc->imm_data = e->imm;
	wc->qp_num = e->qpn;
	/* on iWARP the ring has more of immediate data there than a WC */
	wc->src_qp = qp->qp.qp_type == IBV_QPT_UD ? e->src_qp : 0;
	wc->wc_flags = e->wc_flags;
	wc->pkey_index = wc->slid = 0;
	wc->sl = wc->dlid_path_bits = 0;
	if (is_receive(e)) {
		if (qp->qp.recv_cq != &cq->cq)
			return -1;
		if (!received(qp, e, wc))
			return is_over(qp, e) ? 0 : -1;
		if (unlikely(!(wc->opcode & IBV_WC_RECV)))
			wc->opcode = IBV_WC_RECV; /* programs look at it on errors, too */
		if (wc->wc_flags & IBV_WC_WITH_INV)
			vrnic_mr_revoked(cq->s, wc->invalidated_rkey);
		return 1;
	}
	if (qp->qp.send_cq != &cq->cq || !sent(&qp->sq, e->sq_done))
		return -1;
	return 1;
}

/* Takes completions that come before e and that the daemon has not made. */
static int before(struct vrnic_cq *cq, const struct vrnic_cqe *e, int n, struct ibv_wc *wc)
{
	struct vrnic_qp *qp = find_qp(cq, e->qpn);

	if (!qp || !qp->direct)
		return 0;
	return vrnic_direct_before(qp->direct, is_receive(e) ? e->cookie : 0, n, wc);
}

/* With the CQ's lock held, as what follows: looks what has come, up to most of each. */
static void look_direct(struct vrnic_cq *cq, uint32_t most)
{
	uint32_t i, n = atomic_load_explicit(&cq->ndirects, memory_order_relaxed), place;
	struct vrnic_board *many = cq->many;
	struct vrnic_board_look l;
	struct vrnic_direct *d;

	for (i = 0; i < n; i++)
		if (cq->directs[i]->qp->qp.recv_cq == &cq->cq)
			vrnic_direct_look(cq->directs[i], most);
	if (!many)
		return;
	vrnic_board_take(many, VRNIC_BOARD_COME);
	l = vrnic_board_look(many, VRNIC_BOARD_COME);
	while ((d = vrnic_board_next(many, &l))) {
		if (d->qp->qp.recv_cq == &cq->cq)
			vrnic_direct_look(d, most);
		else
			vrnic_board_clear(many, &l);
	}
	d = vrnic_board_turn(many, &place);
	if (unlikely(d && d->qp->qp.recv_cq == &cq->cq && !vrnic_direct_none_came(d)))
		vrnic_board_mark(many, place);
}

static int sends_of_many(struct vrnic_cq *cq, int n, struct ibv_wc *wc)
{
	struct vrnic_board *many = cq->many;
	struct vrnic_board_look l;
	struct vrnic_direct *d;
	int got = 0;

	vrnic_board_take(many, VRNIC_BOARD_DONE);
	l = vrnic_board_look(many, VRNIC_BOARD_DONE);
	while ((d = vrnic_board_next(many, &l))) {
		if (got == n) {
			vrnic_board_stop(many, &l);
			break;
		}
		if (d->qp->qp.send_cq == &cq->cq)
			got += vrnic_direct_sends(d, n - got, wc + got);
		if (d->qp->qp.send_cq != &cq->cq || !vrnic_direct_outstanding(d))
			vrnic_board_clear(many, &l);
	}
	return got;
}

static int receives_of_many(struct vrnic_cq *cq, int n, struct ibv_wc *wc)
{
	struct vrnic_board *many = cq->many;
	struct vrnic_board_look l = vrnic_board_look(many, VRNIC_BOARD_COME);
	struct vrnic_direct *d;
	int got = 0;

	while ((d = vrnic_board_next(many, &l))) {
		if (got == n) {
			vrnic_board_stop(many, &l);
			break;
		}
		got += vrnic_direct_receives(d, n - got, wc + got);
		if (vrnic_direct_none_came(d))
			vrnic_board_clear(many, &l);
	}
	return got;
}

/* Who has had a place in wc last waits for all others. */
static int receives(struct vrnic_cq *cq, int n, struct ibv_wc *wc)
{
	uint32_t i, m = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);
	struct vrnic_board *many = cq->many;
	int got = 0;

	if (many && many->first)
		got = receives_of_many(cq, n, wc);
	for (i = 0; i < m; i++)
		if (cq->directs[i]->qp->qp.recv_cq == &cq->cq)
			got += vrnic_direct_receives(cq->directs[i], n - got, wc + got);
	if (many && !many->first)
		got += receives_of_many(cq, n - got, wc + got);
	if (many)
		many->first = !many->first;
	return got;
}

static int take_direct(struct vrnic_cq *cq, int n, struct ibv_wc *wc)
{
	uint32_t i, m = atomic_load_explicit(&cq->ndirects, memory_order_relaxed);
	int got = 0;

	if (cq->many)
		got = sends_of_many(cq, n, wc);
	for (i = 0; i < m; i++)
		if (cq->directs[i]->qp->qp.send_cq == &cq->cq)
			got += vrnic_direct_sends(cq->directs[i], n - got, wc + got);
	got += receives(cq, n - got, wc + got);
	if (cq->many)
		vrnic_board_taken(cq->many);
	return got;
}

/* With cq->lock held: moves up to n completions out of the ring. */
static int take(struct vrnic_cq *cq, int n, struct ibv_wc *wc, uint64_t *time)
{
	uint32_t cons = atomic_load_explicit(&cq->cons, memory_order_relaxed), prod;
	bool direct = atomic_load_explicit(&cq->nall, memory_order_relaxed);
	struct vrnic_cqe e;
	int got = 0, r;

	if (cq->bad)
		return 0;
	if (direct) {
		atomic_store_explicit(&cq->sent, false, memory_order_relaxed);
		look_direct(cq, n); /* first: docs/direct.md#receiving */
	}
	prod = load_acquire(cq->prod);
	if (prod - cons > cq->mask + 1) {
		cq->bad = true;
		vrnic_corrupt(cq->s, "CQ prod");
		return 0;
	}
	if (direct) {
		*time = 0;
		got = take_direct(cq, n, wc);
	}
	for (; got < n && cons != prod; cons++) {
		read_cqe(cq, cons, &e);
		if (direct) {
			got += before(cq, &e, n - got, &wc[got]);
			if (got == n)
				break;
		}
		r = complete(cq, &e, &wc[got]);
		if (unlikely(r < 0)) {
			cq->bad = true;
			vrnic_corrupt(cq->s, "completion");
			break;
		}
		*time = e.timestamp;
		got += r;
	}
	atomic_store_explicit(&cq->cons, cons, memory_order_relaxed);
	store_release(cq->cons_word, cons);
	return got;
}

static void flushed(struct ibv_wc *wc, uint64_t wr_id, enum ibv_wc_opcode op, uint32_t qpn)
{
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = wr_id;
	wc->status = IBV_WC_WR_FLUSH_ERR;
	wc->opcode = op;
	wc->qp_num = qpn;
}

/* What is over of a QP's Sends, or else the oldest that is not, flushed: how many, up to n. */
static int flush_sends(struct vrnic_qp *qp, int n, struct ibv_wc *wc)
{
	struct vrnic_sent s;
	int got = qp->direct ? vrnic_direct_sends(qp->direct, n, wc) : 0;

	if (!got && n && vrnic_sq_flush(&qp->sq, &s)) {
		flushed(wc, s.wr_id, vrnic_wc_opcode(s.op), qp->qp.qp_num);
		got = 1;
	}
	return got;
}

/*
 * With cq->lock held, on a dead session: completes what is outstanding. Receives of an SRQ belong
 * to no QP.
 */
static int flush(struct vrnic_cq *cq, int n, struct ibv_wc *wc)
{
	struct vrnic_entry *e = NULL;
	struct vrnic_qp *qp;
	uint64_t wr_id;
	int got = 0, k;

	while ((e = vrnic_table_each(&cq->qps, e))) {
		qp = qp_of(e);
		if (qp->qp.send_cq == &cq->cq)
			for (; (k = flush_sends(qp, n - got, &wc[got])); got += k)
				;
		if (qp->qp.recv_cq == &cq->cq && !qp->srq)
			for (; got < n && vrnic_rq_flush(&qp->rq, &wr_id); got++)
				flushed(&wc[got], wr_id, IBV_WC_RECV, qp->qp.qp_num);
	}
	return got;
}

/*
 * With cq->lock held: what the daemon left, if the ring is there (not in the child of a fork) and
 * it has not emptied it; and then the rest.
 */
static int take_dead(struct vrnic_cq *cq, int n, struct ibv_wc *wc, uint64_t *time)
{
	int got = 0;

	if (vrnic_mapped(&cq->head)) {
		if (cq->many) /* no daemon says where to look for what the last senders have left */
			vrnic_board_mark_all(cq->many);
		got = take(cq, n, wc, time);
	}
	if (!got) {
		*time = 0;
		got = flush(cq, n, wc);
	}
	return got;
}

static bool has_none(const struct vrnic_cq *cq, const struct vrnic_direct *d)
{
	if (d->qp->qp.send_cq == &cq->cq &&
	    atomic_load_explicit(&d->sent_prod, memory_order_acquire) !=
		    atomic_load_explicit(&d->sent_cons, memory_order_relaxed))
		return false;
	return d->qp->qp.recv_cq != &cq->cq || vrnic_direct_none_came(d);
}

static bool none_of_many(struct vrnic_cq *cq, struct vrnic_board *many)
{
	struct vrnic_direct *d;
	uint32_t place;

	if (!vrnic_board_is_empty(many))
		return false;
	d = vrnic_board_turn(many, &place);
	if (likely(!d || d->qp->qp.recv_cq != &cq->cq || vrnic_direct_none_came(d)))
		return true;
	vrnic_board_mark(many, place);
	return false;
}

/*
 * Whether nothing seems to have come or completed directly. It costs less than the lock, which
 * programs that poll for an answer would take in vain most of the time.
 */
static bool none_direct(struct vrnic_cq *cq)
{
	bool none = true;
	uint32_t i, n;

	if (atomic_exchange_explicit(&cq->looking, true, memory_order_acquire))
		return false; /* another thread looks, or they change: the lock says more */
	n = atomic_load_explicit(&cq->ndirects, memory_order_acquire);
	for (i = 0; none && i < n; i++)
		none = has_none(cq, cq->directs[i]);
	if (none && cq->many)
		none = none_of_many(cq, cq->many);
	atomic_store_explicit(&cq->looking, false, memory_order_release);
	return none;
}

/* Without the lock: false if it has to be taken to find out. */
static inline bool is_empty(struct vrnic_cq *cq)
{
	return load_acquire(cq->prod) == atomic_load_explicit(&cq->cons, memory_order_relaxed) &&
	       (!atomic_load_explicit(&cq->nall, memory_order_relaxed) ||
		(!atomic_load_explicit(&cq->sent, memory_order_relaxed) && none_direct(cq)));
}

/* Tells peers, who were told that the CQ is armed, when it is so no more. */
static __attribute__((noinline)) void disarm(struct vrnic_cq *cq)
{
	if (vrnic_dead(cq->s))
		return;
	pthread_mutex_lock(&cq->arm_lock);
	vrnic_direct_arm(cq);
	pthread_mutex_unlock(&cq->arm_lock);
}

int vrnic_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct vrnic_cq *cq = to_vcq(ibcq);
	bool dead = vrnic_dead(cq->s);
	uint64_t time;
	int got;

	if (likely(!dead) && is_empty(cq) && (!found_nothing(cq->s) || is_empty(cq)))
		return 0;
	pthread_mutex_lock(&cq->lock);
	got = unlikely(dead) ? take_dead(cq, n, wc, &time) : take(cq, n, wc, &time);
	pthread_mutex_unlock(&cq->lock);
	if (got) {
		empty_polls = 0;
		if (unlikely(atomic_load_explicit(&cq->wanted, memory_order_relaxed)))
			disarm(cq);
	} else {
		found_nothing(cq->s);
	}
	return got;
}

int vrnic_req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct vrnic_cq *cq = to_vcq(ibcq);

	atomic_store(&cq->armed, true);
	if (vrnic_dead(cq->s))
		return 0; /* there is an event at once, and a poll finds what was flushed */
	pthread_mutex_lock(&cq->arm_lock);
	vrnic_direct_begin_arm(cq);
	atomic_fetch_or(cq->arm, solicited_only ? VRNIC_ARM_SOLICITED : VRNIC_ARM_NEXT);
	if (atomic_load_explicit(&cq->nall, memory_order_relaxed))
		vrnic_direct_arm(cq);
	if (cq->many)
		vrnic_board_mark_some(cq->many);
	pthread_mutex_unlock(&cq->arm_lock);
	/* The program polls once more now, and must see what the daemon completed without seeing this. */
	atomic_thread_fence(memory_order_seq_cst);
	return 0;
}

/*
 * ibv_cq_ex: one completion at a time, with the lock held from start_poll, if it finds one, to
 * end_poll. So a CQ that its program says to be of one thread only needs nothing of its own.
 */
static int next(struct vrnic_cq *cq)
{
	int got = unlikely(vrnic_dead(cq->s)) ? take_dead(cq, 1, &cq->cur_wc, &cq->cur_time) :
						take(cq, 1, &cq->cur_wc, &cq->cur_time);

	if (!got)
		return ENOENT;
	if (unlikely(atomic_load_explicit(&cq->wanted, memory_order_relaxed)))
		disarm(cq);
	cq->ex.status = cq->cur_wc.status;
	cq->ex.wr_id = cq->cur_wc.wr_id;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct vrnic_cq *cq = container_of(ex, struct vrnic_cq, ex);
	int err;

	if (attr->comp_mask)
		return EINVAL;
	if (likely(!vrnic_dead(cq->s)) && is_empty(cq) && (!found_nothing(cq->s) || is_empty(cq)))
		return ENOENT;
	pthread_mutex_lock(&cq->lock);
	err = next(cq);
	if (err) {
		pthread_mutex_unlock(&cq->lock);
		found_nothing(cq->s);
		return err;
	}
	empty_polls = 0;
	return 0;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	return next(container_of(ex, struct vrnic_cq, ex));
}

static void end_poll(struct ibv_cq_ex *ex)
{
	pthread_mutex_unlock(&container_of(ex, struct vrnic_cq, ex)->lock);
}

static const struct vrnic_cq *cq_of(struct ibv_cq_ex *ex)
{
	return container_of(ex, struct vrnic_cq, ex);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur_wc.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur_wc.vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur_wc.byte_len;
}

static ibv_be32 read_imm_data(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur_wc.imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur_wc.qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur_wc.src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur_wc.wc_flags;
}

static uint32_t read_zero(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

static uint8_t read_zero8(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

static int64_t clock_ns(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

/* What the daemon has not seen has no time of its own: that of the look. */
static uint64_t read_completion_ts(struct ibv_cq_ex *ex)
{
	uint64_t t = cq_of(ex)->cur_time;

	return t ? t : (uint64_t)clock_ns(CLOCK_MONOTONIC);
}

static uint64_t read_completion_wallclock_ns(struct ibv_cq_ex *ex)
{
	return read_completion_ts(ex) + (clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC));
}

void vrnic_cq_ex_ops(struct vrnic_cq *cq, uint64_t wc_flags)
{
	struct ibv_cq_ex *ex = &cq->ex;

	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_wc_flags = read_wc_flags;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	/* of InfiniBand's own links */
	ex->read_slid = read_zero;
	ex->read_sl = read_zero8;
	ex->read_dlid_path_bits = read_zero8;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		ex->read_completion_ts = read_completion_ts;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		ex->read_completion_wallclock_ns = read_completion_wallclock_ns;
}
