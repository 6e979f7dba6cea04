/* Posting: what a request names, and what it adds to what is outstanding. */
#include <errno.h>

#include "check.h"
#include "guard/guard.h"

/* So many posts after an error may come from threads that have not heard of it. */
#define POSTS_AFTER_ERROR 3

/* Of what is never signaled this many times a send queue is kept. */
#define KEPT 4

static void tell_qp(const char *what, const struct site *site, const struct qp *qp,
		    const struct object *cq, uint64_t n, uint64_t room)
{
	struct report r;

	if (!report_begin(&r, what, site))
		return;
	report_number(&r, "requests", n);
	report_number(&r, "room", room);
	report_site(&r, "post", site);
	report_object(&r, "qp", &qp->o);
	if (cq)
		report_object(&r, "cq", cq);
	report_send(&r);
}

/* A completion more may come to a CQ; ends: it comes for nothing. */
static void expect(struct cq *cq, const struct qp *qp, const struct site *site, bool ends)
{
	if (cq && ++cq->pending > cq->room && !ends)
		tell_qp("small-cq", site, qp, &cq->o, cq->pending, cq->room);
}

void post_tell_srq(const struct srq *srq, const struct site *site)
{
	struct report r;

	if (!report_begin(&r, "small-cq", site))
		return;
	report_number(&r, "requests", srq->cq->pending);
	report_number(&r, "room", srq->cq->room);
	report_site(&r, "post", site);
	report_object(&r, "srq", &srq->o);
	report_object(&r, "cq", &srq->cq->o);
	report_send(&r);
}

static void check_forked(const struct object *o, const struct site *site)
{
	struct report r;

	if (o->generation == book_generation() || !report_begin(&r, "forked", site))
		return;
	report_site(&r, "post", site);
	report_object(&r, "qp", o);
	report_send(&r);
}

static void check_failed(struct qp *qp, const struct site *site)
{
	if (qp->failed && ++qp->failed > POSTS_AFTER_ERROR)
		tell_qp("error-ignored", site, qp, NULL, qp->failed - 1, 0);
}

/*
 * Keeps where the octets of a request are. One of more than max places is refused by the library,
 * and where it says that they are there may be nothing.
 */
static void keep_sges(struct post *p, struct ibv_pd *pd, const struct ibv_sge *sge, int n,
		      uint32_t max, enum use use, const struct object *o)
{
	const char *octets;
	int i;

	if (n < 0 || (uint32_t)n > max)
		return;
	for (i = 0; i < n; i++) {
		octets = memory_check(pd, &sge[i], use, &p->site, o);
		if (p->nsge == POST_SGES) {
			if (octets)
				guard_never(octets, sge[i].length);
			continue;
		}
		p->sge[p->nsge] = sge[i];
		p->octets[p->nsge++] = octets;
	}
}

static bool reads_memory(enum ibv_wr_opcode op)
{
	return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_SEND_WITH_INV ||
	       op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool writes_memory(enum ibv_wr_opcode op)
{
	return op == IBV_WR_RDMA_READ || op == IBV_WR_ATOMIC_CMP_AND_SWP ||
	       op == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

/* Keeps what a request names of the peer's memory. */
static void keep_remote(struct post *p, const struct ibv_send_wr *wr, uint32_t max_sge)
{
	int i;

	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		p->rkey = wr->wr.rdma.rkey;
		p->raddr = wr->wr.rdma.remote_addr;
		for (i = 0; i < wr->num_sge && (uint32_t)i < max_sge; i++)
			p->roctets += wr->sg_list[i].length;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		p->rkey = wr->wr.atomic.rkey;
		p->raddr = wr->wr.atomic.remote_addr;
		p->roctets = sizeof(uint64_t);
		break;
	default:
		return;
	}
	p->remote = true;
}

/* What the library reads at once. */
static void open_inline(const struct ibv_send_wr *wr, uint32_t max_sge)
{
	int i;

	for (i = 0; i < wr->num_sge && (uint32_t)i < max_sge; i++)
		guard_open((void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
}

uint32_t post_add_send(struct qp *qp, struct ibv_pd *pd, const struct ibv_send_wr *wr,
		       const struct site *site)
{
	bool signaled = qp->sig_all || wr->send_flags & IBV_SEND_SIGNALED;
	bool ends = qp->ended || qp->sends_end;
	struct post *p = queue_add(&qp->sq, wr->wr_id, signaled);

	if (!p)
		return 0;
	p->site = *site;
	if (signaled) {
		qp->asked++;
		expect(qp->send_cq, qp, site, ends);
	}
	if (!qp->sq.signaled && qp->sq.n >= qp->cap.max_send_wr && !ends)
		tell_qp("unsignaled", site, qp, NULL, qp->sq.n, qp->cap.max_send_wr);
	if (qp->sq.n > KEPT * qp->cap.max_send_wr && !qp->sq.head->signaled)
		queue_drop(queue_take(&qp->sq));
	keep_remote(p, wr, qp->cap.max_send_sge);
	if (wr->send_flags & IBV_SEND_INLINE) {
		open_inline(wr, qp->cap.max_send_sge);
		return 1;
	}
	if (reads_memory(wr->opcode)) {
		keep_sges(p, pd, wr->sg_list, wr->num_sge, qp->cap.max_send_sge, USE_READ,
			  &qp->o);
		early_begin(p, EARLY_NOT);
		p->sum = queue_sum(p);
		p->summed = true;
	} else if (writes_memory(wr->opcode)) {
		if (wr->opcode == IBV_WR_RDMA_READ)
			rights_read(qp);
		keep_sges(p, pd, wr->sg_list, wr->num_sge, qp->cap.max_send_sge, USE_WRITE,
			  &qp->o);
		/* that it is over another completion may say if it has none itself */
		early_begin(p, wr->opcode == IBV_WR_RDMA_READ && signaled && !ends ? EARLY_READ
										  : EARLY_NOT);
	}
	return 1;
}

void post_begin(struct qp *qp, const struct site *site)
{
	early_tell();
	check_forked(&qp->o, site);
	check_failed(qp, site);
}

void post_take_back(struct qp *qp, uint32_t n)
{
	uint32_t signaled;

	book_lock();
	signaled = qp->sq.signaled;
	queue_cut(&qp->sq, n);
	signaled -= qp->sq.signaled;
	qp->asked -= signaled;
	if (qp->send_cq)
		qp->send_cq->pending -= signaled;
	book_unlock();
}

void post_failed(void *at, int err)
{
	if (err != EIO)
		return;
	book_lock();
	early_ended(at);
	book_unlock();
}

int check_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	uint32_t added = 0;
	struct ibv_send_wr *w;
	struct site site;
	struct qp *qp;
	int err;

	book_lock();
	qp = book_find(KIND_QP, ibqp);
	book_unlock();
	if (!qp)
		return context_next.ops.post_send(ibqp, wr, bad);
	site_take(&site);
	pthread_mutex_lock(&qp->send);
	book_lock();
	post_begin(qp, &site);
	for (w = wr; w; w = w->next)
		added += post_add_send(qp, ibqp->pd, w, &site);
	book_unlock();
	err = context_next.ops.post_send(ibqp, wr, bad);
	if (err) {
		for (w = wr; w && w != *bad && added; w = w->next)
			added--;
		post_take_back(qp, added);
		post_failed(ibqp, err);
	}
	pthread_mutex_unlock(&qp->send);
	return err;
}

static uint32_t refused_recvs(const struct ibv_recv_wr *wr, const struct ibv_recv_wr *bad)
{
	uint32_t n = 0;

	while (wr && wr != bad)
		wr = wr->next;
	for (; wr; wr = wr->next)
		n++;
	return n;
}

static void add_recv(struct queue *q, struct ibv_pd *pd, const struct ibv_recv_wr *wr,
		     uint32_t max_sge, const struct site *site, const struct object *o,
		     enum early how)
{
	struct post *p = queue_add(q, wr->wr_id, true);

	if (!p)
		return;
	p->site = *site;
	keep_sges(p, pd, wr->sg_list, wr->num_sge, max_sge, USE_WRITE, o);
	early_begin(p, how);
}

int check_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct ibv_recv_wr *w;
	struct site site;
	struct qp *qp;
	uint32_t n;
	int err;

	book_lock();
	qp = book_find(KIND_QP, ibqp);
	book_unlock();
	if (!qp || qp->srq)
		return context_next.ops.post_recv(ibqp, wr, bad);
	site_take(&site);
	pthread_mutex_lock(&qp->recv);
	book_lock();
	post_begin(qp, &site);
	for (w = wr; w; w = w->next) {
		add_recv(&qp->rq, ibqp->pd, w, qp->cap.max_recv_sge, &site, &qp->o,
			 qp->ended ? EARLY_NOT : EARLY_RECV);
		expect(qp->recv_cq, qp, &site, qp->ended);
	}
	book_unlock();
	err = context_next.ops.post_recv(ibqp, wr, bad);
	if (err) {
		book_lock();
		n = refused_recvs(wr, *bad);
		queue_cut(&qp->rq, n);
		if (qp->recv_cq)
			qp->recv_cq->pending -= n;
		book_unlock();
		post_failed(ibqp, err);
	}
	pthread_mutex_unlock(&qp->recv);
	return err;
}

/*
 * Any QP takes from it, in any order: how many completions come to which CQ is known if there is
 * but one, of all QPs.
 */
int check_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct ibv_recv_wr *w;
	struct site site;
	struct srq *srq;
	uint32_t n;
	int err;

	site_take(&site);
	book_lock();
	srq = book_find(KIND_SRQ, ibsrq);
	early_tell();
	if (srq)
		check_forked(&srq->o, &site);
	for (w = wr; w && srq; w = w->next) {
		add_recv(&srq->rq, ibsrq->pd, w, srq->max_sge, &site, &srq->o, EARLY_RECV);
		if (srq->cq && ++srq->cq->pending > srq->cq->room)
			post_tell_srq(srq, &site);
	}
	book_unlock();
	err = context_next.ops.post_srq_recv(ibsrq, wr, bad);
	if (err && srq) {
		book_lock();
		n = refused_recvs(wr, *bad);
		queue_cut(&srq->rq, n);
		if (srq->cq)
			srq->cq->pending -= n;
		book_unlock();
		post_failed(ibsrq, err);
	}
	return err;
}
