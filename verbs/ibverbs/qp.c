/*
 * Queue pairs: their making and end. Their states are in state.c, what is posted and polled in
 * post.c, rq.c and poll.c.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "queue.h"

/*
 * A slab each way carries the messages that are not long; with more of them under way than it
 * holds, the rest goes without. What a session may have of them is bounded: the first QPs of a
 * program get a large one to send from.
 */
#define SLAB_SIZE 65536
#define LARGE_SLAB 262144
#define LARGE_SLABS 64

#define SEND_OPS \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | \
	 IBV_QP_EX_WITH_SEND_WITH_INV)
#define UC_SEND_OPS \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW)
#define UD_SEND_OPS (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)

/* The operations of a service. */
static uint64_t send_ops_of(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_UC:
		return UC_SEND_OPS;
	case IBV_QPT_UD:
		return UD_SEND_OPS;
	default:
		return SEND_OPS;
	}
}

/* All QPs of the process, by number, for librdmacm. */
static struct vrnic_table all;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint number_of_qps;

/* A fork finds the table whole: a child that has a session of its own goes on in it. */
static void before_fork(void) { pthread_mutex_lock(&all_lock); }
static void after_fork(void) { pthread_mutex_unlock(&all_lock); }
__attribute__((constructor)) static void watch_forks(void)
{
	/* What is registered last locks first, as who connects a QP does: this table, then regions. */
	vrnic_regions_watch_forks();
	pthread_atfork(before_fork, after_fork, after_fork);
}

static struct vrnic_qp *qp_of(struct vrnic_entry *e)
{
	return container_of(e, struct vrnic_qp, in_all);
}

static void list(struct vrnic_qp *qp)
{
	pthread_mutex_lock(&all_lock);
	vrnic_table_add(&all, &qp->in_all, qp->qp.qp_num);
	pthread_mutex_unlock(&all_lock);
}

static void unlist(struct vrnic_qp *qp)
{
	pthread_mutex_lock(&all_lock);
	vrnic_table_remove(&all, &qp->in_all);
	pthread_mutex_unlock(&all_lock);
}

int vrnic_find_qp(struct ibv_context *c, uint32_t qpn, uint32_t *pd_handle)
{
	struct vrnic_entry *e;

	pthread_mutex_lock(&all_lock);
	for (e = vrnic_table_find(&all, qpn); e && qp_of(e)->qp.context != c; e = vrnic_table_again(e))
		;
	if (e)
		*pd_handle = qp_of(e)->qp.pd->handle;
	pthread_mutex_unlock(&all_lock);
	return e ? 0 : ENOENT;
}

void vrnic_qp_connected(struct ibv_context *c, uint32_t qpn)
{
	struct vrnic_entry *e;

	pthread_mutex_lock(&all_lock); /* which keeps the QP */
	for (e = vrnic_table_find(&all, qpn); e && qp_of(e)->qp.context != c; e = vrnic_table_again(e))
		;
	if (e)
		vrnic_direct_begin(qp_of(e));
	pthread_mutex_unlock(&all_lock);
}

void vrnic_qps_settle(struct ibv_pd *pd)
{
	struct vrnic_entry *e = NULL;
	struct vrnic_rq *rq;

	pthread_mutex_lock(&all_lock);
	while ((e = vrnic_table_each(&all, e))) {
		if (!vrnic_same_pd(qp_of(e)->qp.pd, pd) || !vrnic_mapped(&qp_of(e)->map))
			continue;
		rq = vrnic_rq_of(qp_of(e));
		pthread_mutex_lock(&rq->lock);
		pthread_mutex_unlock(&rq->lock);
	}
	pthread_mutex_unlock(&all_lock);
}

/* Counts the QP, which keeps its parts from being destroyed. */
static void hold(struct vrnic_qp *qp, unsigned int n)
{
	atomic_fetch_add(&to_vpd(qp->qp.pd)->users, n);
	atomic_fetch_add(&to_vcq(qp->qp.send_cq)->users, n);
	atomic_fetch_add(&to_vcq(qp->qp.recv_cq)->users, n);
	if (qp->srq)
		atomic_fetch_add(&qp->srq->users, n);
	atomic_fetch_add(&number_of_qps, n);
}

static bool fits(const struct vrnic_qp *qp, const struct vrnic_layout *l,
		 const struct vrnic_create_qp_request *req,
		 const struct vrnic_create_qp_reply *rep)
{
	return l->num == rep->qpn && rep->bell < qp->s->nbells && l->sq_size >= req->caps.max_send_wr &&
	       l->rq_size >= req->caps.max_recv_wr && l->max_inline >= req->caps.max_inline &&
	       vrnic_sq_max_sge(l) >= req->caps.max_send_sge &&
	       vrnic_rq_max_sge(l) >= req->caps.max_recv_sge &&
	       !l->rq_size == !!qp->srq && !(qp->srq && l->rx_slab_size);
}

static int init_sq(struct vrnic_qp *qp, const struct vrnic_layout *l)
{
	char *mem = qp->map.mem;
	struct vrnic_sq *sq = &qp->sq;

	sq->ring = mem + l->sq_off;
	sq->prod_word = vrnic_word(mem, VRNIC_QP_SQ_PROD);
	sq->done_word = vrnic_word(mem, VRNIC_QP_SQ_DONE);
	sq->mask = l->sq_size - 1;
	sq->stride = l->sq_stride;
	sq->max_sge = vrnic_sq_max_sge(l);
	sq->max_inline = l->max_inline;
	sq->slab = mem + l->tx_slab_off;
	sq->slab_size = l->tx_slab_size;
	sq->slab_prod_word = vrnic_word(mem, VRNIC_QP_TX_SLAB_PROD);
	sq->slab_cons_word = vrnic_word(mem, VRNIC_QP_TX_SLAB_CONS);
	pthread_mutex_init(&sq->lock, NULL);
	sq->sent = calloc(l->sq_size, sizeof(*sq->sent));
	return sq->sent ? 0 : ENOMEM;
}

/* Memory is had in steps, a card of others has no more than it says. */
static void bound(uint32_t *n, uint32_t most)
{
	if (*n > most)
		*n = most;
}

/* Of a ring's places as many as the daemon says that there are, which are no fewer than asked. */
static uint32_t depth(uint32_t ring, uint32_t told, uint32_t asked)
{
	return told >= asked && told <= ring ? told : ring;
}

/* Makes the program's end of the memory that the daemon has made. */
static int open_memory(struct vrnic_qp *qp, const struct vrnic_create_qp_request *req,
		       const struct vrnic_create_qp_reply *rep)
{
	const struct vrnic_context *c = to_vctx(qp->qp.context);
	struct vrnic_layout l;
	int err;

	if (!vrnic_read_layout(&qp->map, VRNIC_MAGIC_QP, &l) || !fits(qp, &l, req, rep)) {
		vrnic_corrupt(qp->s, "a new QP");
		return EIO;
	}
	qp->state = vrnic_word(qp->map.mem, VRNIC_QP_STATE);
	qp->bell = rep->bell;
	qp->rx_slab = (char *)qp->map.mem + l.rx_slab_off;
	qp->rx_slab_size = l.rx_slab_size;
	qp->rx_slab_prod_word = vrnic_word(qp->map.mem, VRNIC_QP_RX_SLAB_PROD);
	qp->rx_slab_cons_word = vrnic_word(qp->map.mem, VRNIC_QP_RX_SLAB_CONS);
	err = init_sq(qp, &l);
	if (!err && !qp->srq)
		err = vrnic_rq_init(&qp->rq, qp->s, &qp->map, &l, rep->bell);
	if (err) {
		free(qp->sq.sent);
		return err;
	}
	if (c->attr.card) {
		bound(&qp->sq.max_sge, c->attr.max_sge);
		bound(&qp->rq.max_sge, c->attr.max_sge);
		bound(&qp->sq.max_inline, c->attr.max_inline);
	}
	if (rep->caps.max_inline && rep->caps.max_inline >= req->caps.max_inline)
		bound(&qp->sq.max_inline, rep->caps.max_inline);
	qp->cap.max_send_wr = depth(l.sq_size, rep->caps.max_send_wr, req->caps.max_send_wr);
	qp->cap.max_recv_wr = depth(l.rq_size, rep->caps.max_recv_wr, req->caps.max_recv_wr);
	qp->cap.max_send_sge = qp->sq.max_sge;
	qp->cap.max_recv_sge = qp->srq ? vrnic_rq_max_sge(&l) : qp->rq.max_sge;
	qp->cap.max_inline_data = qp->sq.max_inline;
	return 0;
}

static int create_rpc(struct vrnic_qp *qp, struct vrnic_create_qp_request *req,
		      struct vrnic_create_qp_reply *rep, int *fd)
{
	static const uint32_t slabs[] = { LARGE_SLAB, SLAB_SIZE, 0 };
	size_t i = atomic_load(&number_of_qps) <= LARGE_SLABS ? 0 : 1;
	int err;

	do {
		req->caps.tx_slab = slabs[i];
		req->caps.rx_slab = slabs[i] && !qp->srq ? SLAB_SIZE : 0;
		err = vrnic_rpc(qp->s, VRNIC_OP_CREATE_QP, req, sizeof(*req), rep, sizeof(*rep), -1, fd, 1);
	} while (err == ENOMEM && slabs[i++]); /* it may be the slabs that are too much */
	return err;
}

static uint32_t at_least_1(uint32_t n)
{
	return n ? n : 1;
}

static int make(struct vrnic_qp *qp, const struct ibv_qp_cap *cap)
{
	struct vrnic_create_qp_request req = {
		.pd = qp->qp.pd->handle,
		.send_cq = qp->qp.send_cq->handle,
		.recv_cq = qp->qp.recv_cq->handle,
		.srq = qp->srq ? qp->srq->srq.handle : 0,
		.caps = {
			.max_send_wr = at_least_1(cap->max_send_wr),
			.max_send_sge = at_least_1(cap->max_send_sge),
			.max_inline = cap->max_inline_data,
		},
		/* RC is 0 to daemons of any version */
		.type = qp->qp.qp_type == IBV_QPT_RC ? 0 : qp->qp.qp_type,
		.flags = VRNIC_CREATE_QP_END_IN_ERROR | (qp->sig_all ? VRNIC_CREATE_QP_SIG_ALL : 0),
	};
	struct vrnic_create_qp_reply rep;
	int err, fd;

	if (!qp->srq) {
		req.caps.max_recv_wr = at_least_1(cap->max_recv_wr);
		req.caps.max_recv_sge = at_least_1(cap->max_recv_sge);
	}
	err = create_rpc(qp, &req, &rep, &fd);
	if (err)
		return err;
	err = vrnic_map_fd(qp->s, fd, VRNIC_QP_RQ_STARVED + 64, &qp->map);
	if (!err)
		err = open_memory(qp, &req, &rep);
	if (err) {
		if (!vrnic_dead(qp->s))
			vrnic_rpc_handle(qp->s, VRNIC_OP_DESTROY_QP, rep.qp, NULL, 0);
		vrnic_unmap(&qp->map);
		return err;
	}
	qp->qp.handle = rep.qp;
	qp->qp.qp_num = rep.qpn;
	return 0;
}

/* iWARP has reliable connections only. */
static bool known_type(const struct vrnic_context *c, enum ibv_qp_type type)
{
	return type == IBV_QPT_RC || (c->roce && (type == IBV_QPT_UC || type == IBV_QPT_UD));
}

static void say_no_xrc(void)
{
	vrnic_complain(VRNIC_CAUSE_XRC,
		       "no device here has XRC: reliable connections (RC) and shared receive queues are there");
}

struct ibv_xrcd *vrnic_open_xrcd(struct ibv_context *context, struct ibv_xrcd_init_attr *attr)
{
	(void)context, (void)attr;
	say_no_xrc();
	errno = EOPNOTSUPP;
	return NULL;
}

/* Which types there are, of those that programs take for granted. */
static void say_known(struct vrnic_context *c, enum ibv_qp_type type)
{
	if (type == IBV_QPT_UC || type == IBV_QPT_UD)
		vrnic_complain(VRNIC_CAUSE_DATAGRAMS,
			       "%s speaks iWARP, which has reliable connections (RC) and no UC or UD: a device of "
			       VRNIC_ROCE_DEVICE " has these", c->v.context.device->name);
	else if (type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV)
		say_no_xrc();
}

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, uint64_t send_ops)
{
	struct vrnic_context *c = to_vctx(pd->context);
	struct vrnic_qp *qp;
	int err = EINVAL;

	if (!known_type(c, attr->qp_type)) {
		say_known(c, attr->qp_type);
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!attr->send_cq || !attr->recv_cq || attr->send_cq->context != pd->context ||
	    attr->recv_cq->context != pd->context || (attr->srq && !vrnic_same_pd(attr->srq->pd, pd))) {
		errno = EINVAL;
		return NULL;
	}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	qp->s = c->s;
	qp->srq = attr->srq ? to_vsrq(attr->srq) : NULL;
	qp->sig_all = attr->sq_sig_all;
	qp->roce = c->roce;
	qp->refused_ops = c->attr.refused_ops;
	qp->direct_every = 1;
	qp->direct_in = c->s->direct && attr->qp_type == IBV_QPT_RC && !attr->srq;
	qp->qp.context = pd->context;
	qp->qp.qp_context = attr->qp_context;
	qp->qp.pd = pd;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.srq = attr->srq;
	qp->qp.qp_type = attr->qp_type;
	qp->qp.state = IBV_QPS_RESET;
	pthread_mutex_init(&qp->qp.mutex, NULL);
	pthread_cond_init(&qp->qp.cond, NULL);
	hold(qp, 1);
	err = make(qp, &attr->cap);
	if (err) {
		hold(qp, -1u);
		free(qp);
		errno = err;
		return NULL;
	}
	attr->cap = qp->cap;
	if (send_ops)
		vrnic_qp_ex_ops(qp, send_ops);
	vrnic_cq_attach(to_vcq(qp->qp.send_cq), qp);
	if (qp->qp.recv_cq != qp->qp.send_cq)
		vrnic_cq_attach(to_vcq(qp->qp.recv_cq), qp);
	list(qp);
	vrnic_obj_add(c, &qp->obj, VRNIC_OBJ_QP, qp->qp.handle, &qp->qp);
	return &qp->qp;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return create(pd, attr, 0);
}

struct ibv_qp *vrnic_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	uint32_t mask = attr->comp_mask;
	uint64_t ops = mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? attr->send_ops_flags : 0;

	if (mask & ~(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS |
		     IBV_QP_INIT_ATTR_MAX_TSO_HEADER | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) ||
	    (mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags) ||
	    (mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER && attr->max_tso_header) ||
	    ops & ~send_ops_of(attr->qp_type)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(mask & IBV_QP_INIT_ATTR_PD) || !attr->pd || attr->pd->context != context) {
		errno = EINVAL;
		return NULL;
	}
	return create(attr->pd, (struct ibv_qp_init_attr *)attr, ops); /* it begins like that */
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *ibqp)
{
	struct vrnic_qp *qp = to_vqp(ibqp);

	return qp->vqp.comp_mask & VERBS_QP_EX ? &qp->vqp.qp_ex : NULL;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp, (void)ece;
	return EOPNOTSUPP;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp, (void)ece;
	return EOPNOTSUPP;
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	struct vrnic_destroy_reply rep = { 0 };
	uint32_t given;
	int err;

	err = vrnic_rpc_handle(qp->s, VRNIC_OP_DESTROY_QP, ibqp->handle, &rep, sizeof(rep));
	if (err && !vrnic_dead(qp->s))
		return err;
	unlist(qp);
	vrnic_cq_detach(to_vcq(ibqp->send_cq), qp);
	if (ibqp->recv_cq != ibqp->send_cq)
		vrnic_cq_detach(to_vcq(ibqp->recv_cq), qp);
	vrnic_direct_free(qp);
	given = vrnic_obj_drop(to_vctx(ibqp->context), &qp->obj, err ? 0 : rep.tokens);
	vrnic_wait_acks(&ibqp->mutex, &ibqp->cond, &ibqp->events_completed, given);
	hold(qp, -1u);
	if (!qp->srq)
		vrnic_rq_free(&qp->rq);
	free(qp->sq.sent);
	vrnic_unmap(&qp->map);
	free(qp);
	return 0;
}
