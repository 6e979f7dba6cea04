/* Requests whose pages are taken from the program until they are over, and who reads there. */
#include <stdatomic.h>

#include "check.h"
#include "guard/guard.h"

/* What is longer, all memory of a program perhaps, is not looked at page by page. */
#define MOST_OCTETS ((size_t)64 << 30)

#define MOST_NOTED 16

static struct noted {
	atomic_uint state; /* 0: free, 1: somebody writes it, 2: to be told */
	uintptr_t addr;
	struct site site;
} noted[MOST_NOTED];
static atomic_uint to_tell;
static bool everywhere; /* a region of all memory that peers may write */

/* In the handler of a signal, or in a call. */
static void note(uintptr_t addr, const void *pc)
{
	unsigned int i, is_free = 0;

	for (i = 0; i < MOST_NOTED; i++, is_free = 0) {
		if (!atomic_compare_exchange_strong(&noted[i].state, &is_free, 1))
			continue;
		noted[i].addr = addr;
		if (pc)
			site_take_at(&noted[i].site, pc);
		else
			site_take(&noted[i].site);
		atomic_store(&noted[i].state, 2);
		atomic_fetch_add(&to_tell, 1);
		return;
	}
}

/* The library is about to put octets there. */
static void placing(const struct iovec *iov, int n)
{
	int i;

	for (i = 0; i < n; i++)
		guard_open(iov[i].iov_base, iov[i].iov_len);
}

void early_region(const struct ibv_mr *mr, int access)
{
	bool peers = access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND);

	if (!(access & IBV_ACCESS_LOCAL_WRITE))
		return;
	if (mr->length > MOST_OCTETS) {
		everywhere |= peers;
		return;
	}
	next()->vrnic_tell_placing(placing);
	guard_start(note);
	guard_region(mr->addr, mr->length, next()->vrnic_mr_lent(mr), peers);
}

/* ---- requests ---- */

void early_begin(struct post *p, enum early how)
{
	int i;

	for (i = 0; i < p->nsge; i++)
		if (p->octets[i])
			guard_use(p->octets[i], p->sge[i].length);
	p->counted = true;
	if (how == EARLY_NOT || (how == EARLY_RECV && everywhere))
		return;
	for (i = 0; i < p->nsge; i++)
		if (p->octets[i])
			p->runs += guard_hold(p->octets[i], p->sge[i].length,
					      how == EARLY_RECV ? GUARD_PEERS : 0);
}

void early_let_go(struct post *p)
{
	int i;

	if (!p->runs)
		return;
	for (i = 0; i < p->nsge; i++)
		if (p->octets[i])
			guard_release(p->octets[i], p->sge[i].length);
	guard_released(p->runs);
	p->runs = 0;
}

void early_end(struct post *p)
{
	int i;

	early_let_go(p);
	for (i = 0; i < p->nsge && p->counted; i++)
		if (p->octets[i])
			guard_unuse(p->octets[i], p->sge[i].length);
	p->counted = false;
}

static void let_go_all(struct queue *q)
{
	struct post *p;

	for (p = q->head; p; p = p->next)
		early_let_go(p);
}

/* The program may know that nothing more comes, too. */
void early_qp_ended(struct qp *qp)
{
	qp->ended = true;
	let_go_all(&qp->sq);
	let_go_all(&qp->rq);
}

void early_sends_ended(struct qp *qp)
{
	qp->sends_end = true;
	let_go_all(&qp->sq);
}

static void end_qp(struct object *o, void *at)
{
	struct qp *qp = container_of(o, struct qp, o);

	if (o->at == at || qp->context == at || (qp->send_cq && qp->send_cq->o.at == at) ||
	    (qp->recv_cq && qp->recv_cq->o.at == at) || (qp->srq && qp->srq->o.at == at))
		early_qp_ended(qp);
}

static void end_srq(struct object *o, void *at)
{
	struct srq *srq = container_of(o, struct srq, o);

	if (o->at == at || srq->context == at)
		let_go_all(&srq->rq);
}

void early_ended(void *at)
{
	book_each(KIND_QP, end_qp, at);
	book_each(KIND_SRQ, end_srq, at);
}

/* ---- forks: what its parent has asked for does not come to a child ---- */

static void let_go_qp(struct object *o, void *arg)
{
	struct qp *qp = container_of(o, struct qp, o);

	(void)arg;
	let_go_all(&qp->sq);
	let_go_all(&qp->rq);
}

static void let_go_srq(struct object *o, void *arg)
{
	(void)arg;
	let_go_all(&container_of(o, struct srq, o)->rq);
}

static void before_fork(void) { guard_forking(true); }
static void in_parent(void) { guard_forking(false); }

/* The book was locked when it was copied, and nobody else is here. */
static void in_child(void)
{
	guard_forking(false);
	book_each(KIND_QP, let_go_qp, NULL);
	book_each(KIND_SRQ, let_go_srq, NULL);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- telling ---- */

static void tell(const struct noted *n, const struct post *p, const struct object *o)
{
	struct report r;

	if (!report_begin(&r, "early-read", &n->site))
		return;
	report_text(&r, "request", p->remote ? "an RDMA Read" : "a receive");
	report_number(&r, "addr", n->addr);
	report_site(&r, "read", &n->site);
	report_site(&r, "post", &p->site);
	report_object(&r, o->kind == KIND_QP ? "qp" : "srq", o);
	report_send(&r);
}

static bool tell_of_queue(const struct noted *n, const struct queue *q, const struct object *o)
{
	const struct post *p;
	int i;

	for (p = q->head; p; p = p->next)
		for (i = 0; i < p->nsge; i++)
			if (p->octets[i] && n->addr - (uintptr_t)p->octets[i] < p->sge[i].length) {
				tell(n, p, o);
				return true;
			}
	return false;
}

static void tell_of_qp(struct object *o, void *arg)
{
	struct qp *qp = container_of(o, struct qp, o);
	const struct noted **n = arg;

	if (*n && (tell_of_queue(*n, &qp->rq, o) || tell_of_queue(*n, &qp->sq, o)))
		*n = NULL;
}

static void tell_of_srq(struct object *o, void *arg)
{
	const struct noted **n = arg;

	if (*n && tell_of_queue(*n, &container_of(o, struct srq, o)->rq, o))
		*n = NULL;
}

void early_tell(void)
{
	const struct noted *n;
	unsigned int i;

	if (!atomic_load_explicit(&to_tell, memory_order_relaxed))
		return;
	for (i = 0; i < MOST_NOTED; i++) {
		if (atomic_load(&noted[i].state) != 2)
			continue;
		n = &noted[i];
		book_each(KIND_QP, tell_of_qp, &n);
		book_each(KIND_SRQ, tell_of_srq, &n);
		atomic_store(&noted[i].state, 0);
		atomic_fetch_sub(&to_tell, 1);
	}
}
