/* Polling: which request a completion is of, and whether its octets are as they were posted. */
#include "check.h"

static struct qp *qp_of(const struct cq *cq, const struct ibv_context *c, uint32_t qpn)
{
	struct object *o = NULL;

	while ((o = book_number(KIND_QP, qpn, o))) {
		struct qp *qp = container_of(o, struct qp, o);

		if ((qp->send_cq == cq || qp->recv_cq == cq) && qp->context == c)
			return qp;
	}
	return NULL;
}

/* The program, or somebody whom it lets write there, has written while the device was reading. */
static void check_sum(const struct qp *qp, const struct post *p, const struct site *site)
{
	struct report r;
	int i;

	for (i = 0; i < p->nsge; i++)
		if (p->octets[i] && !memory_readable(p->sge[i].lkey, p->octets[i], p->sge[i].length))
			return;
	if (queue_sum(p) == p->sum || !report_begin(&r, "changed", &p->site))
		return;
	report_number(&r, "addr", p->nsge ? p->sge[0].addr : 0);
	report_number(&r, "length", p->nsge ? p->sge[0].length : 0);
	report_site(&r, "post", &p->site);
	report_site(&r, "polled", site);
	report_object(&r, "qp", &qp->o);
	report_send(&r);
}

/* The peer's side of it is told there, if that is in this program. */
static void check_refused(const struct qp *qp, const struct post *p, const struct site *site)
{
	struct report r;

	if (!p->remote || memory_is_own(p->rkey) ||
	    !report_begin(&r, "refused-key", &p->site))
		return;
	report_number(&r, "rkey", p->rkey);
	report_number(&r, "addr", p->raddr);
	report_number(&r, "length", p->roctets);
	report_site(&r, "post", &p->site);
	report_site(&r, "polled", site);
	report_object(&r, "qp", &qp->o);
	report_send(&r);
}

/* A completion of the send queue says of all requests before it that they are over. */
static void sent(struct cq *cq, struct qp *qp, uint64_t wr_id,
		 enum ibv_wc_status status, const struct site *site)
{
	bool ok = status == IBV_WC_SUCCESS, found;
	struct post *p;

	qp->polled++;
	do {
		p = queue_take(&qp->sq);
		if (!p)
			return;
		found = p->signaled ? ok || p->wr_id == wr_id : !ok && p->wr_id == wr_id;
		if (p->signaled)
			cq->pending--;
		if (found && ok && p->summed)
			check_sum(qp, p, site);
		if (found && status == IBV_WC_REM_ACCESS_ERR)
			check_refused(qp, p, site);
		queue_drop(p);
	} while (!found);
}

static void received(struct cq *cq, struct qp *qp, uint64_t wr_id)
{
	struct post *p = queue_take_id(qp->srq ? &qp->srq->rq : &qp->rq, wr_id);

	if (!p)
		return;
	if (!qp->srq || qp->srq->cq == cq)
		cq->pending--;
	queue_drop(p);
	/* which of several was used the program may know by other means than their number */
	for (p = qp->srq ? qp->srq->rq.head : NULL; p; p = p->next)
		if (p->wr_id == wr_id)
			early_let_go(p);
}

/*
 * A request has failed: of a service without acknowledgements that is what takes its queue pair to
 * IBV_QPS_SQE, and others behind it are flushed.
 */
static void ended(struct qp *qp, const struct ibv_wc *wc)
{
	bool sends = !(wc->opcode & IBV_WC_RECV) &&
		     (qp->type == IBV_QPT_UC || qp->type == IBV_QPT_UD);

	if (sends && (wc->status != IBV_WC_WR_FLUSH_ERR || qp->sends_end))
		early_sends_ended(qp);
	else
		early_qp_ended(qp);
}

/* With the lock held. */
static void completed(struct cq *cq, const struct ibv_context *c, const struct ibv_wc *wc,
		      const struct site *site)
{
	struct qp *qp = qp_of(cq, c, wc->qp_num);

	if (!qp)
		return;
	if (wc->status != IBV_WC_SUCCESS) {
		ended(qp, wc);
		if (!qp->failed)
			qp->failed = 1;
	}
	if (wc->opcode & IBV_WC_RECV)
		received(cq, qp, wc->wr_id);
	else
		sent(cq, qp, wc->wr_id, wc->status, site);
}

int check_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct site site;
	struct cq *cq;
	int got, i;

	book_lock();
	early_tell();
	cq = book_find(KIND_CQ, ibcq);
	book_unlock();
	if (!cq)
		return context_next.ops.poll_cq(ibcq, n, wc);
	pthread_mutex_lock(&cq->poll);
	got = context_next.ops.poll_cq(ibcq, n, wc);
	if (got > 0) {
		site_take(&site);
		book_lock();
		for (i = 0; i < got; i++)
			completed(cq, ibcq->context, &wc[i], &site);
		book_unlock();
	} else if (got < 0) { /* the program knows that none comes */
		book_lock();
		early_ended(ibcq);
		book_unlock();
	}
	pthread_mutex_unlock(&cq->poll);
	return got;
}

/* ---- start_poll and its like: the CQ is locked between the calls by the library itself ---- */

static int (*next_start_poll)(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr);
static int (*next_next_poll)(struct ibv_cq_ex *cq);

static int took(struct ibv_cq_ex *ex, int err)
{
	struct ibv_wc wc = { 0 };
	struct site site;
	struct cq *cq;

	if (err)
		return err;
	wc.wr_id = ex->wr_id;
	wc.status = ex->status;
	wc.opcode = ex->read_opcode(ex);
	wc.qp_num = ex->read_qp_num(ex);
	site_take(&site);
	book_lock();
	early_tell();
	cq = book_find(KIND_CQ, ex);
	if (cq)
		completed(cq, ex->context, &wc, &site);
	book_unlock();
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	return took(cq, next_start_poll(cq, attr));
}

static int next_poll(struct ibv_cq_ex *cq)
{
	return took(cq, next_next_poll(cq));
}

void poll_follow(struct ibv_cq_ex *cq)
{
	next_start_poll = cq->start_poll;
	next_next_poll = cq->next_poll;
	cq->start_poll = start_poll;
	cq->next_poll = next_poll;
}
