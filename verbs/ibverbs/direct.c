/*
 * The direct path: a Send to a program of the same user is put into memory that the two have in
 * common (pair/pair.h), and the receiver copies it when it polls; what goes to the peer's memory
 * by a key goes there at once (pair/remote.h). The daemon says whether that may be, and has all
 * else: docs/direct.md.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pair/mark.h"
#include "queue.h"

/* What goes so: longer messages are the daemon's. */
#define LONGEST 8192

/* Posts between two that ask for a direct path, at most; and before who had one asks again. */
#define MOST_POSTS (1u << 16)
#define AGAIN_POSTS 16

/*
 * What goes by the ring has what is behind it go there, too, and a stream that never pauses would
 * never come back. So a post waits for a receive, or for the ring to be drained: some microseconds,
 * and if that was in vain the next ones do not.
 */
#define WAIT_YIELDS 8
#define WAIT_LOOKS 64
#define MOST_WAITS 1024

static void lock_cqs(struct vrnic_qp *qp)
{
	struct vrnic_cq *a = to_vcq(qp->qp.send_cq), *b = to_vcq(qp->qp.recv_cq);

	pthread_mutex_lock(a < b ? &a->lock : &b->lock);
	if (a != b)
		pthread_mutex_lock(a < b ? &b->lock : &a->lock);
}

/* A program between ibv_start_poll and ibv_end_poll has a lock, and posts: false. */
static bool try_cqs(struct vrnic_qp *qp)
{
	struct vrnic_cq *a = to_vcq(qp->qp.send_cq), *b = to_vcq(qp->qp.recv_cq);

	if (pthread_mutex_trylock(&a->lock))
		return false;
	if (a == b || !pthread_mutex_trylock(&b->lock))
		return true;
	pthread_mutex_unlock(&a->lock);
	return false;
}

static void unlock_cqs(struct vrnic_qp *qp)
{
	pthread_mutex_unlock(&to_vcq(qp->qp.send_cq)->lock);
	if (qp->qp.send_cq != qp->qp.recv_cq)
		pthread_mutex_unlock(&to_vcq(qp->qp.recv_cq)->lock);
}

/* Asks the daemon for the pair: 0 or an errno. */
static int ask(struct vrnic_direct *d)
{
	struct vrnic_qp *qp = d->qp;
	struct vrnic_handle_request req = { .handle = qp->qp.handle };
	struct vrnic_direct_reply rep;
	int fd, err;

	d->sent = calloc(qp->sq.mask + 1, sizeof(*d->sent));
	if (!d->sent)
		return ENOMEM;
	err = vrnic_rpc(qp->s, VRNIC_OP_DIRECT, &req, sizeof(req), &rep, sizeof(rep), -1, &fd, 1);
	if (!err)
		err = vrnic_map_fd(qp->s, fd, VRNIC_PAIR_HEADER_LEN, &d->map);
	if (err)
		return err;
	if (!vrnic_pair_open(&d->map, rep.second & 1, qp->rq.mask + 1, &d->out, &d->in)) {
		/* the peer can write there, too: all goes by the daemon */
		vrnic_debug("QP %u: the pair with its peer makes no sense", qp->qp.qp_num);
		vrnic_unmap(&d->map);
		return EIO;
	}
	d->covered = rep.covered & 1;
	d->in.closed = !d->covered;
	return 0;
}

static void detach(struct vrnic_direct *d)
{
	struct vrnic_qp *qp = d->qp;

	vrnic_direct_drop(to_vcq(qp->qp.recv_cq), d);
	vrnic_direct_drop(to_vcq(qp->qp.send_cq), d);
	if (!d->covered) /* what is left is passed over */
		atomic_fetch_sub(&to_vcq(qp->qp.send_cq)->unpolled, vrnic_direct_outstanding(d));
	vrnic_rq_leave(&qp->rq);
	pthread_mutex_lock(&qp->sq.lock);
	qp->sq.direct = NULL;
	pthread_mutex_unlock(&qp->sq.lock);
	qp->direct = NULL;
	vrnic_wake_close(&d->waker);
	vrnic_wake_close(&d->sleeper);
	vrnic_unmap(&d->map);
	vrnic_unmap(&d->bits);
	vrnic_remote_free(d->remote);
	free(d->sent);
	free(d);
}

/* Whether nothing that went by d is left to be polled, nor anything comes. */
static bool is_over(struct vrnic_direct *d)
{
	return !vrnic_pair_is_open(&d->out) && !vrnic_direct_outstanding(d) &&
	       !vrnic_pair_stamped(&d->in, d->next);
}

/*
 * Has nobody send by d any more if it is over. Who posts records what has been done behind the end
 * of his step, with the send queue's lock held: without that a last completion could be missed.
 */
static bool retire(struct vrnic_direct *d)
{
	struct vrnic_qp *qp = d->qp;
	bool over;

	pthread_mutex_lock(&qp->sq.lock);
	over = is_over(d);
	if (over)
		qp->sq.direct = NULL;
	pthread_mutex_unlock(&qp->sq.lock);
	return over;
}

/* With the send queue's lock held. */
static bool wake(struct vrnic_pair_out *out)
{
	struct vrnic_direct *d = container_of(out, struct vrnic_direct, out);

	return vrnic_wake_ask(&d->waker, d->qp->s, d->qp->qp.handle, VRNIC_OP_DIRECT_WAKE) &&
	       vrnic_wake_send(&d->waker);
}

/* Likewise. */
static bool find_bits(struct vrnic_pair_out *out, struct vrnic_bits *bits)
{
	struct vrnic_direct *d = container_of(out, struct vrnic_direct, out);

	return vrnic_bits_ask(d->qp->s, d->qp->qp.handle, VRNIC_OP_DIRECT_PEER_BITS, &d->bits,
			      bits);
}

/*
 * With the locks of both CQs held. The pair of a connection before is there until it is polled. Its
 * last message may come until the daemon has answered that there is another pair: then this
 * connection goes by the daemon.
 */
static int attach(struct vrnic_qp *qp)
{
	struct vrnic_cq *scq = to_vcq(qp->qp.send_cq), *rcq = to_vcq(qp->qp.recv_cq);
	struct vrnic_direct *d, *was = qp->direct;
	int err;

	if (was && vrnic_pair_is_open(&was->out))
		return 0;
	if ((was && !is_over(was)) || !vrnic_direct_make_place(scq, qp) ||
	    !vrnic_direct_make_place(rcq, qp))
		return EAGAIN;
	d = calloc(1, sizeof(*d));
	if (!d)
		return ENOMEM;
	d->qp = qp;
	d->waker.fd = d->sleeper.fd = -1;
	d->out.wake = wake;
	d->out.bits = find_bits;
	err = ask(d);
	if (!err && was && !retire(was)) {
		vrnic_unmap(&d->map);
		err = EAGAIN;
	}
	if (err) {
		free(d->sent);
		free(d);
		return err;
	}
	if (was)
		detach(was);
	/* Before anything can come by it, or be done: peers, and who posts, know what is armed by then. */
	vrnic_direct_add(rcq, d);
	if (scq != rcq)
		vrnic_direct_add(scq, d);
	pthread_mutex_lock(&qp->sq.lock);
	d->ring = atomic_load_explicit(&qp->sq.prod, memory_order_relaxed);
	while (d->ring != qp->sq.done && !qp->sq.sent[(d->ring - 1) & qp->sq.mask].signaled)
		d->ring--;
	if (d->ring == qp->sq.done) /* which may be past what completes visibly, and so past polled */
		d->ring = atomic_load_explicit(&qp->sq.polled, memory_order_acquire);
	qp->sq.direct = d;
	pthread_mutex_unlock(&qp->sq.lock);
	VRNIC_MARK(PAIR);
	qp->direct = d;
	d->next = vrnic_rq_join(&qp->rq, &d->in, qp->qp.pd);
	return 0;
}

void vrnic_direct_try(struct vrnic_qp *qp)
{
	int err = EAGAIN;

	if (vrnic_dead(qp->s) || !vrnic_may_pair(qp) || !vrnic_say_who(qp->s))
		return;
	if (try_cqs(qp)) {
		err = attach(qp);
		unlock_cqs(qp);
	}
	pthread_mutex_lock(&qp->sq.lock);
	if (err == EAGAIN && qp->direct_every < MOST_POSTS)
		qp->direct_every *= 2;
	else if (err != EAGAIN)
		qp->direct_every = err ? MOST_POSTS : AGAIN_POSTS;
	atomic_store_explicit(&qp->direct_in, err == EAGAIN ? qp->direct_every : 0,
			      memory_order_relaxed);
	pthread_mutex_unlock(&qp->sq.lock);
}

bool vrnic_direct_due(struct vrnic_qp *qp)
{
	unsigned int in = atomic_load_explicit(&qp->direct_in, memory_order_relaxed);

	if (in)
		atomic_store_explicit(&qp->direct_in, in - 1, memory_order_relaxed);
	return in == 1;
}

void vrnic_direct_received(struct vrnic_qp *qp)
{
	bool due;

	if (vrnic_dead(qp->s) || load_acquire(qp->state) != IBV_QPS_RTS)
		return;
	pthread_mutex_lock(&qp->sq.lock);
	due = vrnic_direct_due(qp);
	pthread_mutex_unlock(&qp->sq.lock);
	if (due)
		vrnic_direct_try(qp);
}

void vrnic_direct_begin(struct vrnic_qp *qp)
{
	pthread_mutex_lock(&qp->sq.lock);
	qp->direct_every = 1;
	pthread_mutex_unlock(&qp->sq.lock);
	vrnic_direct_try(qp);
}

void vrnic_direct_free(struct vrnic_qp *qp)
{
	lock_cqs(qp);
	if (qp->direct)
		detach(qp->direct);
	unlock_cqs(qp);
}

/*
 * Sending: with the send queue's lock held.
 */

static inline void relax(void)
{
#ifdef __x86_64__
	__builtin_ia32_pause();
#endif
}

static bool drained(const struct vrnic_qp *qp)
{
	return load_acquire(qp->sq.done_word) ==
	       atomic_load_explicit(&qp->sq.prod, memory_order_relaxed);
}

static bool may(struct vrnic_direct *d, bool room)
{
	return drained(d->qp) && (!room || vrnic_pair_has_room(&d->out));
}

/* Waits a bounded time for it to be so: whether it is. */
static bool await(struct vrnic_direct *d, bool room)
{
	int i, k;

	if (d->wait_in) {
		d->wait_in--;
		return false;
	}
	for (i = 0; i < WAIT_YIELDS; i++) {
		for (k = 0; k < WAIT_LOOKS; k++) {
			if (may(d, room)) {
				d->wait_every = 0;
				return true;
			}
			relax();
		}
		sched_yield();
	}
	if (d->wait_every < MOST_WAITS)
		d->wait_every = 2 * d->wait_every + 1;
	d->wait_in = d->wait_every;
	return false;
}

static bool may_soon(struct vrnic_direct *d, bool room)
{
	return likely(may(d, room)) || await(d, room);
}

/* Where the octets of w are: false leaves it to the daemon. */
static bool octets(struct vrnic_qp *qp, struct vrnic_direct_wr *w)
{
	const struct ibv_send_wr *wr = w->wr;
	int i;

	if (w->found)
		return true;
	w->n = wr->num_sge;
	if (wr->send_flags & IBV_SEND_INLINE) {
		for (i = 0; i < w->n; i++) {
			w->iov[i].iov_base = (void *)(uintptr_t)wr->sg_list[i].addr;
			w->iov[i].iov_len = wr->sg_list[i].length;
		}
		return true;
	}
	if (w->opcode == IBV_WC_SEND || w->opcode == IBV_WC_RDMA_WRITE)
		return vrnic_sges_readable(&qp->sq.region, qp->qp.pd, wr->sg_list, w->n,
					   w->iov);
	if (!vrnic_sges_local(&qp->sq.region, qp->qp.pd, wr->sg_list, w->n, true, w->iov))
		return false;
	vrnic_placing(w->iov, w->n);
	return true;
}

static void complete(struct vrnic_direct *d, const struct vrnic_direct_wr *w)
{
	uint32_t n = atomic_load_explicit(&d->sent_prod, memory_order_relaxed);
	struct vrnic_direct_sent *s = &d->sent[n & d->qp->sq.mask];
	struct vrnic_cq *cq = to_vcq(d->qp->qp.send_cq);

	s->wr_id = w->wr->wr_id;
	s->after = d->ring;
	s->opcode = w->opcode;
	s->byte_len = s->opcode == IBV_WC_SEND || s->opcode == IBV_WC_RDMA_WRITE ? 0 : w->total;
	if (unlikely(!d->covered)) {
		atomic_fetch_add(&cq->unpolled, 1);
		store_release(d->out.completed, n + 1);
	}
	atomic_store_explicit(&d->sent_prod, n + 1, memory_order_release);
	if (d->send_place != VRNIC_NO_PLACE)
		vrnic_board_done(cq->many, d->send_place);
	if (!atomic_load_explicit(&cq->sent, memory_order_relaxed))
		atomic_store_explicit(&cq->sent, true, memory_order_relaxed);
}

/* Whether one completion more would have the CQ run over: the daemon tells of that. */
static bool is_full_of(struct vrnic_direct *d)
{
	struct vrnic_cq *cq = to_vcq(d->qp->qp.send_cq);
	uint32_t n = load_acquire(cq->prod) - atomic_load_explicit(&cq->cons, memory_order_relaxed);

	return n + atomic_load(&cq->unpolled) > cq->mask;
}

/* The message that w is, or that tells of it: docs/decisions.md#X15. */
static struct vrnic_pair_head head_of(const struct vrnic_qp *qp, const struct vrnic_direct_wr *w)
{
	const struct ibv_send_wr *wr = w->wr;
	struct vrnic_pair_head h = { .length = w->total };

	if (wr->send_flags & IBV_SEND_SOLICITED)
		h.flags = VRNIC_SQ_SOLICITED;
	if (wr->opcode == IBV_WR_SEND)
		return h;
	h.flags |= VRNIC_SLOT_IMM;
	h.imm[0] = wr->imm_data; /* the last four octets are 0: verbs have none */
	if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		h.flags |= VRNIC_SLOT_WRITE;
	/* In iWARP it is a message of its own, and completes as one: RFC 7306, section 6. */
	if (!qp->roce) {
		h.flags |= VRNIC_SLOT_WRITE;
		h.length = 0;
	}
	return h;
}

/* Behind vrnic_pair_begin, when all octets are where they go. */
static void end(struct vrnic_direct *d, const struct vrnic_direct_wr *w,
		const struct vrnic_pair_head *h, bool *ring)
{
	bool own;

	if (w->signaled) /* before the stamp: an answer comes after it */
		complete(d, w);
	vrnic_pair_end(&d->out, h);
	atomic_thread_fence(memory_order_seq_cst);
	own = w->signaled &&
	      atomic_load_explicit(&to_vcq(d->qp->qp.send_cq)->wanted, memory_order_relaxed);
	*ring |= vrnic_pair_wanted(&d->out, h->flags & VRNIC_SQ_SOLICITED, own);
}

static bool send(struct vrnic_qp *qp, struct vrnic_direct_wr *w, bool *ring)
{
	struct vrnic_direct *d = qp->sq.direct;
	struct vrnic_pair_head h;
	char *to;

	if (w->total > LONGEST || !may_soon(d, true) || !octets(qp, w))
		return false;
	h = head_of(qp, w);
	to = vrnic_pair_begin(&d->out, &h);
	if (!to)
		return false;
	vrnic_gather(to, w->iov, w->n);
	VRNIC_MARK(COPIED);
	end(d, w, &h, ring);
	return true;
}

static struct vrnic_want want_of(const struct vrnic_direct *d, const struct vrnic_direct_wr *w)
{
	const struct ibv_send_wr *wr = w->wr;
	struct vrnic_want want = { .qpn = d->out.peer, .length = w->total };

	if (w->opcode == IBV_WC_RDMA_WRITE || w->opcode == IBV_WC_RDMA_READ) {
		want.right = w->opcode == IBV_WC_RDMA_WRITE ? IBV_ACCESS_REMOTE_WRITE :
							      IBV_ACCESS_REMOTE_READ;
		want.key = wr->wr.rdma.rkey;
		want.addr = wr->wr.rdma.remote_addr;
	} else {
		want.right = IBV_ACCESS_REMOTE_ATOMIC;
		want.key = wr->wr.atomic.rkey;
		want.addr = wr->wr.atomic.remote_addr;
	}
	return want;
}

/* What goes to the peer's memory, up to its completion; told: and up to the message of it. */
static bool move(struct vrnic_direct *d, struct vrnic_direct_wr *w,
		 const struct vrnic_pair_head *told)
{
	struct vrnic_want want = want_of(d, w);
	const struct ibv_send_wr *wr = w->wr;

	if (unlikely(!d->remote)) {
		d->remote = vrnic_remote_new(d->qp->s, d->qp->qp.handle, &d->out);
		if (!d->remote)
			return false;
	}
	/* Last the wait, which would be in vain if anything else were missing. */
	if (!vrnic_remote_is_there(d->remote, &want) || !octets(d->qp, w) || !may_soon(d, told != NULL))
		return false;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
		return vrnic_remote_write(d->remote, &want, w->iov);
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return vrnic_remote_write_told(d->remote, &want, w->iov, told);
	case IBV_WR_RDMA_READ:
		return vrnic_remote_read(d->remote, &want, w->iov);
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return vrnic_remote_fetch_add(d->remote, &want, w->iov, wr->wr.atomic.compare_add);
	default:
		return vrnic_remote_compare_swap(d->remote, &want, w->iov, wr->wr.atomic.compare_add,
						 wr->wr.atomic.swap);
	}
}

static bool reach(struct vrnic_qp *qp, struct vrnic_direct_wr *w, bool *ring)
{
	struct vrnic_direct *d = qp->sq.direct;

	if (!move(d, w, NULL))
		return false;
	VRNIC_MARK(LEFT);
	if (!w->signaled)
		return true;
	complete(d, w);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&to_vcq(qp->qp.send_cq)->wanted, memory_order_relaxed)) {
		vrnic_pair_own(&d->out);
		*ring = true;
	}
	return true;
}

/* A Write of no octets asks for no key, but for the right to write at all. */
static bool write_nothing(struct vrnic_direct *d, struct vrnic_direct_wr *w,
			  const struct vrnic_pair_head *told)
{
	if (!(d->out.reach & IBV_ACCESS_REMOTE_WRITE) || !octets(d->qp, w) || !may_soon(d, true) ||
	    !vrnic_pair_begin(&d->out, told))
		return false;
	vrnic_pair_wrote_nothing(&d->out, d->qp->roce); /* iWARP sends no Write then */
	return true;
}

static bool write_imm(struct vrnic_qp *qp, struct vrnic_direct_wr *w, bool *ring)
{
	struct vrnic_direct *d = qp->sq.direct;
	struct vrnic_pair_head h = head_of(qp, w);

	if (w->total ? !move(d, w, &h) : !write_nothing(d, w, &h))
		return false;
	end(d, w, &h, ring);
	return true;
}

bool vrnic_direct_post(struct vrnic_qp *qp, struct vrnic_direct_wr *w, bool *ring)
{
	struct vrnic_direct *d = qp->sq.direct;

	if (unlikely(!vrnic_pair_is_open(&d->out))) {
		vrnic_direct_shut(qp);
		return false;
	}
	if (unlikely(!d->covered) && w->signaled && is_full_of(d))
		return false;
	switch (w->wr->opcode) {
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		return send(qp, w, ring);
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return write_imm(qp, w, ring);
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return reach(qp, w, ring);
	default:
		return false;
	}
}

void vrnic_direct_committed(struct vrnic_direct *d, uint32_t from, uint32_t prod)
{
	for (; from != prod; from++)
		if (d->qp->sq.sent[from & d->qp->sq.mask].signaled)
			d->ring = from + 1;
}

/*
 * Polling: with the CQ's lock held.
 */

int vrnic_direct_sends(struct vrnic_direct *d, int n, struct ibv_wc *wc)
{
	uint32_t polled = atomic_load_explicit(&d->qp->sq.polled, memory_order_relaxed);
	uint32_t cons = atomic_load_explicit(&d->sent_cons, memory_order_relaxed);
	uint32_t prod = atomic_load_explicit(&d->sent_prod, memory_order_acquire);
	struct vrnic_direct_sent *s;
	int got;

	for (got = 0; got < n && cons != prod; got++, cons++) {
		s = &d->sent[cons & d->qp->sq.mask];
		if ((int32_t)(polled - s->after) < 0)
			break;
		memset(&wc[got], 0, sizeof(*wc));
		wc[got].wr_id = s->wr_id;
		if (unlikely(d->qp->sq.flushed))
			wc[got].status = IBV_WC_WR_FLUSH_ERR;
		wc[got].opcode = s->opcode;
		wc[got].byte_len = s->byte_len;
		wc[got].qp_num = d->qp->qp.qp_num;
	}
	atomic_store_explicit(&d->sent_cons, cons, memory_order_release);
	if (unlikely(!d->covered) && got) {
		atomic_fetch_sub(&to_vcq(d->qp->qp.send_cq)->unpolled, got);
		if (!vrnic_dead(d->qp->s))
			store_release(d->out.polled, cons);
	}
	return got;
}

/*
 * The peer has written what makes no sense: the connection ends, and what it might have said of
 * receives is worth nothing. All that are outstanding are flushed here. The daemon is told by a
 * bell: a call would have others wait for the CQ's lock.
 */
void vrnic_direct_spoil(struct vrnic_direct *d)
{
	if (d->bad)
		return;
	d->bad = true;
	vrnic_debug("QP %u: its peer has written nonsense into their pair", d->qp->qp.qp_num);
	if (vrnic_dead(d->qp->s))
		return;
	vrnic_pair_spoil(&d->in);
	vrnic_direct_mark(d); /* what is posted later is flushed, too */
	vrnic_ring(d->qp->s, d->qp->bell);
}

/* Copies m to where the receive at place wants it: false if it is too long for it. */
static bool copy_out(struct vrnic_qp *qp, uint32_t place, const struct vrnic_pair_message *m,
		     struct ibv_wc *wc)
{
	const struct ibv_sge *sge = qp->rq.sges + (size_t)place * qp->rq.max_sge;
	uint32_t i, n, left = m->octets, nsge = qp->rq.wrs[place].nsge;
	struct iovec iov[VRNIC_MAX_SGE];
	const char *from = m->from;

	if (!left) /* nobody looks at where they would go, as with the daemon */
		return true;
	if (!vrnic_sges_local(&qp->rq.region, qp->qp.pd, sge, nsge, true, iov)) {
		wc->status = IBV_WC_LOC_PROT_ERR;
		return true;
	}
	vrnic_placing(iov, (int)nsge);
	for (i = 0; i < nsge && left; i++) {
		n = left < iov[i].iov_len ? left : iov[i].iov_len;
		if (n)
			memcpy(iov[i].iov_base, from, n);
		from += n;
		left -= n;
	}
	return !left;
}

/*
 * The next receive, which has its stamp: false if that makes no sense. Where its memory is there no
 * more the connection ends, as with the daemon.
 */
static bool receive(struct vrnic_direct *d, struct ibv_wc *wc)
{
	struct vrnic_rq *rq = &d->qp->rq;
	struct vrnic_pair_message m;
	bool ok = false;
	uint32_t place;

	memset(wc, 0, sizeof(*wc));
	wc->opcode = IBV_WC_RECV;
	wc->qp_num = d->qp->qp.qp_num;
	pthread_mutex_lock(&rq->lock);
	place = rq->wrs[rq->mask + 1].next;
	if (place <= rq->mask && vrnic_pair_message(&d->in, d->next, &m))
		ok = copy_out(d->qp, place, &m, wc);
	if (ok) {
		wc->byte_len = m.head.length;
		wc->wr_id = rq->wrs[place].wr_id;
		if (m.head.flags & VRNIC_SLOT_IMM) {
			wc->wc_flags = IBV_WC_WITH_IMM;
			wc->imm_data = m.head.imm[0];
		}
		if (m.head.flags & VRNIC_SLOT_WRITE)
			wc->opcode = IBV_WC_RECV_RDMA_WITH_IMM;
		/* before the receive can be posted again */
		vrnic_pair_taken(&d->in, &m);
		vrnic_rq_release(rq, place);
	}
	vrnic_direct_took(d);
	pthread_mutex_unlock(&rq->lock);
	if (!ok || unlikely(wc->status))
		vrnic_direct_spoil(d);
	return ok;
}

/* What is left of the receives of a pair that makes no sense. */
static int flush(struct vrnic_direct *d, int n, struct ibv_wc *wc)
{
	uint64_t wr_id;
	int got;

	for (got = 0; got < n && vrnic_rq_flush(&d->qp->rq, &wr_id); got++) {
		memset(&wc[got], 0, sizeof(*wc));
		wc[got].wr_id = wr_id;
		wc[got].status = IBV_WC_WR_FLUSH_ERR;
		wc[got].opcode = IBV_WC_RECV;
		wc[got].qp_num = d->qp->qp.qp_num;
	}
	return got;
}

void vrnic_direct_look(struct vrnic_direct *d, uint32_t most)
{
	d->ready = d->next;
	while (d->ready - d->next < most && d->ready - d->next <= d->in.mask &&
	       vrnic_pair_stamped(&d->in, d->ready))
		d->ready++;
}

int vrnic_direct_receives(struct vrnic_direct *d, int n, struct ibv_wc *wc)
{
	int got = 0;

	while (!d->bad && got < n && d->next != d->ready)
		got += receive(d, &wc[got]);
	return unlikely(d->bad) ? got + flush(d, n - got, wc + got) : got;
}

/* Whether the receive with this cookie is the oldest that is outstanding, or is none. */
static bool is_next(struct vrnic_rq *rq, uint32_t cookie)
{
	uint32_t place;
	bool next;

	pthread_mutex_lock(&rq->lock);
	place = vrnic_rq_find(rq, cookie);
	next = place == VRNIC_NO_RECV || place == rq->wrs[rq->mask + 1].next;
	pthread_mutex_unlock(&rq->lock);
	return next;
}

int vrnic_direct_before(struct vrnic_direct *d, uint32_t cookie, int n, struct ibv_wc *wc)
{
	int got = 0;

	if (!cookie)
		return vrnic_direct_sends(d, n, wc);
	while (!d->bad && got < n && !is_next(&d->qp->rq, cookie)) {
		if (vrnic_pair_stamped(&d->in, d->next))
			got += receive(d, &wc[got]);
		else
			vrnic_direct_spoil(d);
	}
	return unlikely(d->bad) ? got + flush(d, n - got, wc + got) : got;
}
