/*
 * Queue pairs: their making, states and end. What is posted and polled is in post.c, rq.c and
 * poll.c.
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

/* All QPs of the process, by number, for librdmacm. */
static struct vrnic_table all;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint number_of_qps;

/* A fork finds the table whole: a child that has a session of its own goes on in it. */
static void before_fork(void) { pthread_mutex_lock(&all_lock); }
static void after_fork(void) { pthread_mutex_unlock(&all_lock); }
__attribute__((constructor)) static void watch_forks(void)
{
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

/* Makes the program's end of the memory that the daemon has made. */
static int open_memory(struct vrnic_qp *qp, const struct vrnic_create_qp_request *req,
		       const struct vrnic_create_qp_reply *rep)
{
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
	qp->cap.max_send_wr = l.sq_size;
	qp->cap.max_recv_wr = l.rq_size;
	qp->cap.max_send_sge = qp->sq.max_sge;
	qp->cap.max_recv_sge = vrnic_rq_max_sge(&l);
	qp->cap.max_inline_data = l.max_inline;
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
	if (err)
		return err;
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

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr, uint64_t send_ops)
{
	struct vrnic_context *c = to_vctx(pd->context);
	struct vrnic_qp *qp;
	int err = EINVAL;

	if (attr->qp_type != IBV_QPT_RC) {
		errno = EOPNOTSUPP; /* iWARP has connections only */
		return NULL;
	}
	if (!attr->send_cq || !attr->recv_cq || attr->send_cq->context != pd->context ||
	    attr->recv_cq->context != pd->context || (attr->srq && attr->srq->pd != pd)) {
		errno = EINVAL;
		return NULL;
	}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	qp->s = c->s;
	qp->srq = attr->srq ? to_vsrq(attr->srq) : NULL;
	qp->sig_all = attr->sq_sig_all;
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
	    ops & ~(uint64_t)SEND_OPS) {
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

/*
 * The daemon's INIT is all that comes before RTS; which of them it is, only the program's own calls
 * say.
 */
static enum ibv_qp_state state_of(struct vrnic_qp *qp)
{
	uint32_t state;

	if (vrnic_dead(qp->s))
		return IBV_QPS_ERR;
	state = load_acquire(qp->state);
	/* no QP of a living session is in it: the daemon has emptied the memory */
	if (state == IBV_QPS_RESET) {
		vrnic_peer_gone(qp->s);
		return vrnic_dead(qp->s) ? IBV_QPS_ERR : IBV_QPS_INIT;
	}
	if (state == IBV_QPS_INIT && qp->qp.state == IBV_QPS_RESET)
		return IBV_QPS_RESET;
	return state < IBV_QPS_UNKNOWN ? state : IBV_QPS_UNKNOWN;
}

/*
 * What goes with a new state, on an RNIC: nothing that connects, for that is the connection
 * manager's.
 */
static int allowed(enum ibv_qp_state state)
{
	switch (state) {
	case IBV_QPS_INIT:
		return IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	case IBV_QPS_RTS:
		return IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
	case IBV_QPS_SQD:
		return IBV_QP_EN_SQD_ASYNC_NOTIFY;
	default:
		return 0;
	}
}

static int set_state(struct vrnic_qp *qp, enum ibv_qp_state state)
{
	struct vrnic_modify_qp_request req = {
		.qp = qp->qp.handle,
		.mask = VRNIC_MODIFY_QP_STATE,
		.state = state,
	};
	int err;

	err = vrnic_rpc(qp->s, VRNIC_OP_MODIFY_QP, &req, sizeof(req), NULL, 0, -1, NULL, 0);
	if (err && vrnic_dead(qp->s) && state == IBV_QPS_ERR)
		err = 0; /* it is in it */
	return err;
}

/*
 * RTR and RTS are reached by connecting. A program that connects as on InfiniBand, by telling its
 * peer the number of its QP, is told at once that it cannot be; one that follows the connection
 * manager's advice (rdma_init_qp_attr) asks for nothing there, and gets it.
 */
int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	enum ibv_qp_state now;
	int err;

	if (!mask)
		return 0;
	now = state_of(qp);
	if (mask & IBV_QP_CUR_STATE && attr->cur_qp_state != now)
		return EINVAL;
	mask &= ~IBV_QP_CUR_STATE;
	if (!(mask & IBV_QP_STATE))
		return mask & ~(IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER) ? EINVAL : 0;
	if (mask & ~(IBV_QP_STATE | allowed(attr->qp_state)) ||
	    (mask & IBV_QP_PORT && attr->port_num != 1))
		return EINVAL;
	/*
	 * rping -q asks for it when it is connected: as drivers of RNICs do, the QP is left where it has
	 * come by itself.
	 */
	if (attr->qp_state == IBV_QPS_INIT && now == IBV_QPS_RTS)
		return 0;
	if (attr->qp_state == IBV_QPS_RTS) {
		if (now != IBV_QPS_RTS)
			return EINVAL;
	} else {
		err = set_state(qp, attr->qp_state);
		if (err)
			return err;
	}
	ibqp->state = attr->qp_state;
	return 0;
}

int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init)
{
	struct vrnic_qp *qp = to_vqp(ibqp);
	struct vrnic_query_qp_reply rep = { 0 };
	int err;

	(void)mask; /* what more there is does no harm */
	err = vrnic_rpc_handle(qp->s, VRNIC_OP_QUERY_QP, ibqp->handle, &rep, sizeof(rep));
	if (err && !vrnic_dead(qp->s))
		return err;
	memset(attr, 0, sizeof(*attr));
	ibqp->state = attr->qp_state = attr->cur_qp_state = state_of(qp);
	attr->path_mtu = IBV_MTU_4096;
	attr->qp_access_flags = rep.access;
	attr->cap = qp->cap;
	attr->max_rd_atomic = rep.ord < 255 ? rep.ord : 255;
	attr->max_dest_rd_atomic = rep.ird < 255 ? rep.ird : 255;
	attr->port_num = 1;
	memset(init, 0, sizeof(*init));
	init->qp_context = ibqp->qp_context;
	init->send_cq = ibqp->send_cq;
	init->recv_cq = ibqp->recv_cq;
	init->srq = ibqp->srq;
	init->cap = qp->cap;
	init->qp_type = ibqp->qp_type;
	init->sq_sig_all = qp->sig_all;
	return 0;
}

/* Octets are placed in order as far as DDP segments go, but not within one. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0;
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
