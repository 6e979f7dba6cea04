/* Completion channels and queues, shared receive queues and queue pairs: making and ending them. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#include "check.h"

static void *add(enum kind kind, void *at, size_t size, const struct site *site,
		 struct ibv_context *c, struct ibv_pd *pd)
{
	struct object *o = book_add(kind, at, size, site);

	if (!o)
		return NULL;
	o->internal = site_from_cm(site);
	book_use(o, book_find(KIND_CONTEXT, c));
	book_use(o, pd ? book_find(KIND_PD, pd) : NULL);
	return o;
}

CHECK_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct ibv_comp_channel *ch;
	struct site site;

	context_adopt(c);
	ch = next()->ibv_create_comp_channel(c);
	if (!ch)
		return NULL;
	site_take(&site);
	book_lock();
	add(KIND_CHANNEL, ch, sizeof(struct object), &site, c, NULL);
	book_unlock();
	return ch;
}

/* Ends an object by end; what is refused since others hang on it is told. */
#define END(kind, at, call, err) \
	do { \
		struct object *o_; \
		struct site site_; \
\
		site_take(&site_); \
		book_lock(); \
		o_ = book_find(kind, at); \
		book_unlock(); \
		err = next()->call(at); \
		book_lock(); \
		if (o_ && err) \
			destroy_tell("busy", #call, o_, &site_); \
		else if (o_) \
			book_remove(o_); \
		book_unlock(); \
	} while (0)

CHECK_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	int err;

	END(KIND_CHANNEL, ch, ibv_destroy_comp_channel, err);
	return err;
}

/* ---- completion queues ---- */

static void add_cq(struct ibv_cq *cq, uint32_t room, struct ibv_comp_channel *ch)
{
	struct site site;
	struct cq *c;

	site_take(&site);
	book_lock();
	c = add(KIND_CQ, cq, sizeof(*c), &site, cq->context, NULL);
	if (c) {
		pthread_mutex_init(&c->poll, NULL);
		c->o.octets = c->room = room;
		book_use(&c->o, ch ? book_find(KIND_CHANNEL, ch) : NULL);
	}
	book_unlock();
}

CHECK_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *context,
					  struct ibv_comp_channel *ch, int vector)
{
	struct ibv_cq *cq;

	context_adopt(c);
	cq = next()->ibv_create_cq(c, cqe, context, ch, vector);
	if (cq)
		add_cq(cq, (uint32_t)cqe, ch);
	return cq;
}

struct ibv_cq_ex *check_create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq_init_attr_ex a = *attr;
	struct ibv_cq_ex *cq;

	a.wc_flags |= IBV_WC_EX_WITH_QP_NUM; /* whose completion it is */
	cq = context_next.v.create_cq_ex(c, &a);
	if (!cq)
		return NULL;
	add_cq((struct ibv_cq *)cq, a.cqe, a.channel);
	poll_follow(cq);
	return cq;
}

CHECK_EXPORT int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	int err = next()->ibv_resize_cq(cq, cqe);
	struct cq *c;

	book_lock();
	c = book_find(KIND_CQ, cq);
	if (c && !err)
		c->o.octets = c->room = (uint32_t)cqe;
	book_unlock();
	return err;
}

CHECK_EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct site site;
	int err;

	site_take(&site);
	event_wait(KIND_CQ, cq, "ibv_destroy_cq", &site);
	END(KIND_CQ, cq, ibv_destroy_cq, err);
	return err;
}

/* ---- shared receive queues ---- */

static struct ibv_srq *add_srq(struct ibv_srq *srq, const struct ibv_srq_attr *attr)
{
	struct site site;
	struct srq *s;

	if (!srq)
		return NULL;
	site_take(&site);
	book_lock();
	s = add(KIND_SRQ, srq, sizeof(*s), &site, srq->context, srq->pd);
	if (s) {
		s->context = srq->context;
		s->max_sge = attr->max_sge;
	}
	book_unlock();
	return srq;
}

CHECK_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	return add_srq(next()->ibv_create_srq(pd, attr), &attr->attr);
}

struct ibv_srq *check_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *attr)
{
	return add_srq(context_next.v.create_srq_ex(c, attr), &attr->attr);
}

CHECK_EXPORT int ibv_destroy_srq(struct ibv_srq *ibsrq)
{
	struct site site;
	struct srq *srq;
	int err;

	site_take(&site);
	event_wait(KIND_SRQ, ibsrq, "ibv_destroy_srq", &site);
	book_lock();
	early_tell();
	srq = book_find(KIND_SRQ, ibsrq);
	book_unlock();
	err = next()->ibv_destroy_srq(ibsrq);
	book_lock();
	if (srq && err) {
		destroy_tell("busy", "ibv_destroy_srq", &srq->o, &site);
	} else if (srq) {
		queue_empty(&srq->rq);
		book_remove(&srq->o);
	}
	book_unlock();
	return err;
}

/* ---- address handles ---- */

CHECK_EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = next()->ibv_create_ah(pd, attr);
	struct site site;

	if (!ah)
		return NULL;
	site_take(&site);
	book_lock();
	add(KIND_AH, ah, sizeof(struct object), &site, pd->context, pd);
	book_unlock();
	return ah;
}

CHECK_EXPORT int ibv_destroy_ah(struct ibv_ah *ah)
{
	int err;

	END(KIND_AH, ah, ibv_destroy_ah, err);
	return err;
}

/* ---- queue pairs ---- */

static void use_cq(struct qp *qp, struct cq **at, struct ibv_cq *cq)
{
	*at = book_find(KIND_CQ, cq);
	book_use(&qp->o, *at ? &(*at)->o : NULL);
}

static void set_name(struct qp_name *name, struct ibv_qp *ibqp)
{
	const char *device = next()->ibv_get_device_name(ibqp->context->device);

	name->at = ibqp;
	name->number = ibqp->qp_num;
	snprintf(name->device, sizeof(name->device), "%s", device ? device : "");
}

/* What is posted to an SRQ may all come to the CQ of its QPs, if they have the same. */
static void join_srq(struct qp *qp, struct srq *srq)
{
	qp->srq = srq;
	book_use(&qp->o, &srq->o);
	if (!srq->qps++) {
		srq->cq = qp->recv_cq;
		if (!srq->cq)
			return;
		srq->cq->pending += srq->rq.n;
		if (srq->rq.n && srq->cq->pending > srq->cq->room)
			post_tell_srq(srq, &srq->rq.last->site);
	} else if (srq->cq && srq->cq != qp->recv_cq) {
		srq->cq->pending -= srq->rq.n;
		srq->cq = NULL;
	}
}

static void leave_srq(struct srq *srq)
{
	if (--srq->qps || !srq->cq)
		return;
	srq->cq->pending -= srq->rq.n;
	srq->cq = NULL;
}

static struct ibv_qp *add_qp(struct ibv_qp *ibqp, const struct ibv_qp_init_attr *attr)
{
	struct site site;
	struct srq *srq;
	struct qp *qp;

	if (!ibqp)
		return NULL;
	site_take(&site);
	book_lock();
	qp = add(KIND_QP, ibqp, sizeof(*qp), &site, ibqp->context, ibqp->pd);
	if (qp) {
		pthread_mutex_init(&qp->send, NULL);
		pthread_mutex_init(&qp->recv, NULL);
		use_cq(qp, &qp->send_cq, ibqp->send_cq);
		if (ibqp->recv_cq == ibqp->send_cq)
			qp->recv_cq = qp->send_cq;
		else
			use_cq(qp, &qp->recv_cq, ibqp->recv_cq);
		srq = ibqp->srq ? book_find(KIND_SRQ, ibqp->srq) : NULL;
		if (srq)
			join_srq(qp, srq);
		qp->cap = attr->cap;
		qp->type = ibqp->qp_type;
		qp->sig_all = attr->sq_sig_all;
		qp->pd = ibqp->pd;
		qp->context = ibqp->context;
		set_name(&qp->name, ibqp);
		book_set_number(&qp->o, ibqp->qp_num);
		rights_made_qp();
	}
	book_unlock();
	return ibqp;
}

/* What Intel's E810 has room for in a request: the least of the cards that are common today. */
#define INLINE_DATA 101

/* Tells of octets inline that other cards have no room for. */
static void check_inline(uint32_t asked)
{
	struct report r;
	struct site site;

	if (asked <= INLINE_DATA)
		return;
	site_take(&site);
	book_lock();
	if (report_begin(&r, "long-inline", &site)) {
		report_number(&r, "length", asked);
		report_number(&r, "room", INLINE_DATA);
		report_site(&r, "here", &site);
		report_send(&r);
	}
	book_unlock();
}

CHECK_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	uint32_t asked = attr->cap.max_inline_data; /* what it has is written there */
	struct ibv_qp *qp = add_qp(next()->ibv_create_qp(pd, attr), attr);

	if (qp)
		check_inline(asked);
	return qp;
}

struct ibv_qp *check_create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr)
{
	uint32_t asked = attr->cap.max_inline_data;
	struct ibv_qp *qp = add_qp(context_next.v.create_qp_ex(c, attr),
				   (struct ibv_qp_init_attr *)attr);

	if (!qp)
		return NULL;
	wr_follow(qp);
	check_inline(asked);
	return qp;
}

/* Posted requests are gone, and what they would have completed. */
static void empty(struct qp *qp)
{
	if (qp->send_cq)
		qp->send_cq->pending -= qp->sq.signaled;
	if (qp->recv_cq)
		qp->recv_cq->pending -= qp->rq.n;
	queue_empty(&qp->sq);
	queue_empty(&qp->rq);
}

/* The Reads and atomics at once that NVIDIA's mlx5 has. */
#define READS_AT_ONCE 16

/* Reports what, of ibqp, with a number if there is one. */
static void tell_transition(const struct ibv_qp *ibqp, const char *what, unsigned int number)
{
	struct report r;
	struct site site;
	struct qp *qp;

	site_take(&site);
	book_lock();
	qp = book_find(KIND_QP, ibqp);
	if (qp && report_begin(&r, what, &site)) {
		report_site(&r, "here", &site);
		report_object(&r, "qp", &qp->o);
		if (number)
			report_number(&r, "asked", number);
		report_send(&r);
	}
	book_unlock();
}

/* Tells of a transition that has been made, or of its attributes, which some cards refuse. */
static void check_transition(const struct ibv_qp *ibqp, const struct ibv_qp_attr *attr, int mask,
			     bool from_error)
{
	unsigned int reads = 0;

	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		reads = attr->max_rd_atomic;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && attr->max_dest_rd_atomic > reads)
		reads = attr->max_dest_rd_atomic;
	if (reads > READS_AT_ONCE)
		tell_transition(ibqp, "many-reads", reads);
	if (!(mask & IBV_QP_STATE))
		return;
	if (attr->qp_state == IBV_QPS_SQD)
		tell_transition(ibqp, "draining", 0);
	if (from_error)
		tell_transition(ibqp, "out-of-error", 0);
}

/* Whether attr takes a queue pair of iWARP, which is in error, out of it. */
static bool leaves_error(struct ibv_qp *ibqp, const struct ibv_qp_attr *attr, int mask)
{
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;

	return mask & IBV_QP_STATE &&
	       (attr->qp_state == IBV_QPS_RESET || attr->qp_state == IBV_QPS_INIT) &&
	       ibqp->context->device->transport_type == IBV_TRANSPORT_IWARP &&
	       !next()->ibv_query_qp(ibqp, &now, IBV_QP_STATE, &init) && now.qp_state == IBV_QPS_ERR;
}

CHECK_EXPORT int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	bool from_error = leaves_error(ibqp, attr, mask);
	int err = next()->ibv_modify_qp(ibqp, attr, mask);
	struct qp *qp;

	if (err)
		return err;
	check_transition(ibqp, attr, mask, from_error);
	if (!(mask & IBV_QP_STATE))
		return 0;
	book_lock();
	early_tell();
	qp = book_find(KIND_QP, ibqp);
	if (qp && attr->qp_state == IBV_QPS_RESET) {
		empty(qp);
		qp->failed = 0;
	}
	if (qp)
		qp->ended = qp->sends_end = false;
	if (qp && attr->qp_state == IBV_QPS_ERR)
		early_qp_ended(qp);
	book_unlock();
	return 0;
}

/* By its state the program knows, too, that what is posted comes back, or is gone. */
CHECK_EXPORT int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask,
			      struct ibv_qp_init_attr *init)
{
	int err = next()->ibv_query_qp(ibqp, attr, mask, init);
	struct qp *qp;

	book_lock();
	if (err == EIO)
		early_ended(ibqp->context); /* the daemon is no more */
	if (!err && attr->qp_state == IBV_QPS_ERR)
		early_ended(ibqp);
	qp = !err && attr->qp_state == IBV_QPS_SQE ? book_find(KIND_QP, ibqp) : NULL;
	if (qp)
		early_sends_ended(qp);
	book_unlock();
	return err;
}

void qp_last_words(struct qp *qp)
{
	struct report r;

	if (!qp->asked || qp->polled || !qp->sq.head ||
	    !report_begin(&r, "never-polled", &qp->sq.head->site))
		return;
	report_number(&r, "requests", qp->asked);
	report_site(&r, "post", &qp->sq.head->site);
	report_object(&r, "qp", &qp->o);
	if (qp->send_cq)
		report_object(&r, "cq", &qp->send_cq->o);
	report_send(&r);
}

void qp_ask(const struct qp_name *name, const struct site *site)
{
	struct qp_counts c;
	struct report r;
	struct qp *qp;

	if (!report_ask(name->device, name->number, &c))
		return;
	book_lock();
	rights_used(&c);
	qp = book_find(KIND_QP, name->at);
	if (c.use[0] && qp)
		memory_refused(qp, &c);
	if (c.stalls && qp && report_begin(&r, "no-receive", &qp->o.made)) {
		report_number(&r, "messages", c.stalls);
		report_object(&r, "qp", &qp->o);
		report_site(&r, "here", site);
		report_send(&r);
	}
	book_unlock();
}

CHECK_EXPORT int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct qp_name name;
	struct site site;
	struct qp *qp;
	int err;

	site_take(&site);
	book_lock();
	early_tell();
	qp = book_find(KIND_QP, ibqp);
	if (qp)
		name = qp->name;
	if (qp && qp->o.generation == book_generation())
		qp_last_words(qp);
	book_unlock();
	if (qp)
		qp_ask(&name, &site);
	event_wait(KIND_QP, ibqp, "ibv_destroy_qp", &site);
	err = next()->ibv_destroy_qp(ibqp);
	book_lock();
	if (qp && !err) {
		empty(qp);
		if (qp->srq)
			leave_srq(qp->srq);
		book_remove(&qp->o);
	}
	book_unlock();
	return err;
}
