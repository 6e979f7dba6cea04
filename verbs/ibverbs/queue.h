/*
 * What the files of the data path share: qp.c and rq.c (queues and their making), post.c and
 * wr.c (who posts), direct.c (what goes without the daemon), poll.c (who polls).
 */
#ifndef VRNIC_QUEUE_H
#define VRNIC_QUEUE_H

#include <string.h>
#include <sys/uio.h>

#include "objects.h"
#include "pair/board.h"
#include "pair/pair.h"
#include "pair/remote.h"
#include "pair/wake.h"

/* Line 0 of the memory of a QP or an SRQ, whose rings and slabs lie inside of it. */
struct vrnic_layout {
	uint32_t num; /* the QP's number, the SRQ's handle */
	uint32_t sq_size, sq_stride, sq_off;
	uint32_t rq_size, rq_stride, rq_off;
	uint32_t tx_slab_off, tx_slab_size;
	uint32_t rx_slab_off, rx_slab_size;
	uint32_t max_inline;
};

/* Copies the octets of n pieces, one behind the other, to where there is room for all. */
static inline void vrnic_gather(char *to, const struct iovec *iov, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		if (iov[i].iov_len)
			memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
}

/* Reads it, once, and checks it: false if it cannot be. */
bool vrnic_read_layout(const struct vrnic_map *m, uint32_t magic, struct vrnic_layout *l);

static inline uint32_t vrnic_sq_max_sge(const struct vrnic_layout *l)
{
	uint32_t n = (l->sq_stride - VRNIC_SQ_SGE) / VRNIC_SGE_LEN;

	return n < VRNIC_MAX_SGE ? n : VRNIC_MAX_SGE;
}

static inline uint32_t vrnic_rq_max_sge(const struct vrnic_layout *l)
{
	uint32_t n = l->rq_size ? (l->rq_stride - VRNIC_RQ_SGE) / VRNIC_SGE_LEN : 0;

	return n < VRNIC_MAX_SGE ? n : VRNIC_MAX_SGE;
}

/*
 * rq.c
 */
int vrnic_rq_init(struct vrnic_rq *rq, struct vrnic_session *s, const struct vrnic_map *m,
		  const struct vrnic_layout *l,
		  uint32_t bell);
void vrnic_rq_free(struct vrnic_rq *rq);
int vrnic_rq_post(struct vrnic_rq *rq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* With rq->lock held: the place of the outstanding receive with this cookie, or VRNIC_NO_RECV. */
uint32_t vrnic_rq_find(const struct vrnic_rq *rq, uint32_t cookie);

/* With rq->lock held: the receive at place is outstanding no more. */
void vrnic_rq_release(struct vrnic_rq *rq, uint32_t place);

/* Takes the oldest outstanding receive, to be flushed on a dead session: false if there is none. */
bool vrnic_rq_flush(struct vrnic_rq *rq, uint64_t *wr_id);

/* With the QP in RESET: none is outstanding any more. */
void vrnic_rq_forget(struct vrnic_rq *rq);

/*
 * From vrnic_rq_join to vrnic_rq_leave the sender of in knows what is posted. The number of the
 * oldest outstanding receive, from 0.
 */
uint32_t vrnic_rq_join(struct vrnic_rq *rq, struct vrnic_pair_in *in, struct ibv_pd *pd);
void vrnic_rq_leave(struct vrnic_rq *rq);

/*
 * post.c. With sq.lock held: prod is sq.prod, and how many have been put since is added to it;
 * nothing shows before vrnic_sq_commit, and what was put can be forgotten instead if sq.slab_prod
 * is put back.
 */

/* Whether the QP takes requests now: 0 or an errno. */
int vrnic_sq_ready(struct vrnic_qp *qp);

/*
 * Checks wr and writes it into the slot of prod: 0, or an errno, and then nothing was written. A
 * datagram without an address handle is taken.
 */
int vrnic_sq_put(struct vrnic_qp *qp, uint32_t prod, const struct ibv_send_wr *wr);

/* Writes where the datagram in the slot of prod, which was put without an address, goes to. */
void vrnic_sq_address(struct vrnic_qp *qp, uint32_t prod, const struct ibv_send_wr *wr);

/*
 * Shows the daemon all before prod; true: ring the bell, which is best done with the lock released.
 */
bool vrnic_sq_commit(struct vrnic_qp *qp, uint32_t prod);

/*
 * Does without the daemon what was put, from the first request on, as far as that can be. prod,
 * which is behind the last, comes down by as many. true: ring the bell.
 */
bool vrnic_sq_direct(struct vrnic_qp *qp, uint32_t *prod);

/* The completion's opcode for a request's. */
enum ibv_wc_opcode vrnic_wc_opcode(enum ibv_wr_opcode op);

/*
 * Takes the oldest request that is not over, to be flushed on a dead session: false if there is
 * none.
 */
bool vrnic_sq_flush(struct vrnic_sq *sq, struct vrnic_sent *sent);

/* With the QP in RESET, and the lock of its send CQ held: no request is outstanding any more. */
void vrnic_sq_forget(struct vrnic_sq *sq);

/*
 * poll.c: a CQ finds its QPs by their numbers. Detached, a QP's completions are passed over; those
 * of receives from an SRQ, which goes on, are given back to it. vrnic_cq_forget does so with those
 * that are there of a QP that is in RESET, so that no more of it come.
 */
void vrnic_cq_forget(struct vrnic_cq *cq, struct vrnic_qp *qp);
void vrnic_cq_attach(struct vrnic_cq *cq, struct vrnic_qp *qp);
void vrnic_cq_detach(struct vrnic_cq *cq, struct vrnic_qp *qp);

/*
 * direct.c
 */

/* A request that is done, until it is polled. */
struct vrnic_direct_sent {
	uint64_t wr_id;
	uint32_t after; /* the last request before it that goes by the ring and completes, and one */
	uint32_t byte_len;
	uint8_t opcode; /* enum ibv_wc_opcode */
};

/* A request that may be done here. */
struct vrnic_direct_wr {
	const struct ibv_send_wr *wr;
	uint32_t total; /* octets */
	uint8_t opcode; /* enum ibv_wc_opcode */
	bool signaled;
	bool found; /* iov is set; else it is where the SGEs of wr say */
	int n;
	struct iovec iov[VRNIC_MAX_SGE];
};

#define VRNIC_NO_PLACE UINT32_MAX

/* A QP's part in a pair. */
struct vrnic_direct {
	struct vrnic_qp *qp;
	struct vrnic_map map;
	/* the send queue's lock */
	struct vrnic_pair_out out;
	/* posts until one waits again for what it needs, and from one that waited in vain to the next */
	uint32_t wait_in, wait_every;
	uint32_t ring; /* the last request that went by the ring and completes, and one */
	/*
	 * Not: a CQ may run over, by the daemon alone. It is told how many completions it does not know,
	 * and no message takes a receive.
	 */
	bool covered;
	/* its places in the boards of its CQs, or VRNIC_NO_PLACE; in that of send_cq if it is one */
	uint32_t send_place, recv_place;
	struct vrnic_map bits; /* the bitmap of the peer's CQ, or none */
	struct vrnic_remote *remote; /* the peer's memory, or NULL */
	struct vrnic_wake waker; /* by which the peer is woken */
	/* requests that completed here, in a ring of as many as the send queue has slots */
	struct vrnic_direct_sent *sent;
	atomic_uint sent_prod, sent_cons; /* of who posts, of who polls */
	/* the receive CQ's lock, but for in.rooms, which are the receive queue's, and in.want */
	struct vrnic_pair_in in;
	atomic_uint next; /* receive to complete; read without the lock, too */
	uint32_t ready; /* up to where they had come at the last look */
	atomic_bool bad; /* the peer has written nonsense; likewise */
	/* the receive CQ's arm_lock */
	struct vrnic_wake sleeper; /* what the peer wakes by */
	bool asleep; /* the peer has been told that who waits hears it */
	unsigned int slot; /* while it is so: in what that one waits for */
	struct vrnic_pair_heard heard; /* as last seen */
};

/* Whether qp can have a direct path at all. */
static inline bool vrnic_may_pair(const struct vrnic_qp *qp)
{
	return qp->qp.qp_type == IBV_QPT_RC && !qp->srq && qp->s->direct;
}

/*
 * Has qp, which is RTS, get a direct path if it can have one: a call to the daemon. Of locks none
 * is held but those of CQs that are polled, and then it is left for later.
 */
void vrnic_direct_try(struct vrnic_qp *qp);

/* The same for a connection that is new. */
void vrnic_direct_begin(struct vrnic_qp *qp);

/*
 * The direction that qp had has been found closed: it asks again. Its peer may have left the pair
 * and come back, or nobody looks at what they send any more. Any lock may be held.
 */
static inline void vrnic_direct_shut(struct vrnic_qp *qp)
{
	unsigned int none = 0;

	if (!atomic_load_explicit(&qp->direct_in, memory_order_relaxed))
		atomic_compare_exchange_strong(&qp->direct_in, &none, qp->direct_every);
}

/* With the send queue's lock held: whether a post is one that is followed by vrnic_direct_try. */
bool vrnic_direct_due(struct vrnic_qp *qp);

/* A receive was posted, and direct_in is not 0: a program may do nothing but receive. */
void vrnic_direct_received(struct vrnic_qp *qp);
void vrnic_direct_free(struct vrnic_qp *qp);

/*
 * With the send queue's lock held and nothing put that is not committed: does w, if that can be
 * done here, true; then *ring is set if the QP's bell is to be rung.
 */
bool vrnic_direct_post(struct vrnic_qp *qp, struct vrnic_direct_wr *w, bool *ring);

/* How many requests are outstanding that did not go by the ring: the send queue's lock. */
static inline uint32_t vrnic_direct_outstanding(const struct vrnic_direct *d)
{
	return d ? atomic_load_explicit(&d->sent_prod, memory_order_relaxed) -
		   atomic_load_explicit(&d->sent_cons, memory_order_acquire) : 0;
}

/* With the send queue's lock held: requests from one to before prod have gone to the ring. */
void vrnic_direct_committed(struct vrnic_direct *d, uint32_t from, uint32_t prod);

/* One receive is over: the receive CQ's lock is held. */
static inline void vrnic_direct_took(struct vrnic_direct *d)
{
	atomic_store_explicit(&d->next, atomic_load_explicit(&d->next, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

/*
 * For poll.c, with the CQ's lock held. vrnic_direct_look says up to where a QP's receives have
 * come, of the next ones up to most, and vrnic_direct_receives takes them; vrnic_direct_sends
 * takes its Sends that are over, and vrnic_direct_before what comes before one completion of the
 * daemon's, of a receive if cookie is not 0. They return how many there were, up to n.
 */
void vrnic_direct_look(struct vrnic_direct *d, uint32_t most);
int vrnic_direct_receives(struct vrnic_direct *d, int n, struct ibv_wc *wc);
int vrnic_direct_sends(struct vrnic_direct *d, int n, struct ibv_wc *wc);
int vrnic_direct_before(struct vrnic_direct *d, uint32_t cookie, int n, struct ibv_wc *wc);

/*
 * Whether the next receive has no message, without any lock. Whoever polls with the lock counts a
 * receive before it can be posted, and its slot stamped, once more: so where next is still the
 * same behind the look, the slot was that one's.
 */
static inline bool vrnic_direct_none_came(const struct vrnic_direct *d)
{
	uint32_t next = atomic_load_explicit(&d->next, memory_order_relaxed);

	return !vrnic_pair_stamped(&d->in, next) &&
	       atomic_load_explicit(&d->next, memory_order_relaxed) == next &&
	       !atomic_load_explicit(&d->bad, memory_order_relaxed);
}

/* What the peer has done makes no sense: the connection ends. */
void vrnic_direct_spoil(struct vrnic_direct *d);

/*
 * many.c
 */

/*
 * Has a place be there in cq for one more of whose direct paths it is found whether they have
 * something, qp's: false if it cannot. It may be a call to the daemon. vrnic_direct_add takes it,
 * and vrnic_direct_drop gives it back. With the CQ's lock held.
 */
bool vrnic_direct_make_place(struct vrnic_cq *cq, struct vrnic_qp *qp);
void vrnic_direct_add(struct vrnic_cq *cq, struct vrnic_direct *d);
void vrnic_direct_drop(struct vrnic_cq *cq, struct vrnic_direct *d);

/* Has d be looked at for what comes: its receive CQ's lock is held. */
void vrnic_direct_mark(struct vrnic_direct *d);

/* With cq->arm_lock held: tells peers what the CQ is armed for. */
void vrnic_direct_arm(struct vrnic_cq *cq);

/* The same, when it is about to be: what has come by now causes no event if it was not. */
void vrnic_direct_begin_arm(struct vrnic_cq *cq);

static inline struct vrnic_rq *vrnic_rq_of(struct vrnic_qp *qp)
{
	return qp->srq ? &qp->srq->rq : &qp->rq;
}

#endif
