/*
 * The program's end of a receive queue, a QP's or an SRQ's, and SRQs.
 *
 * A slot of the ring is free again once the daemon has taken the receive, which can be long before
 * its completion is polled. So the receives that are outstanding, until then, have a table of their
 * own, in private memory: a completion names one by its cookie, and the SGEs for what comes out of
 * a slab are those of the table, not of the ring, which the daemon could change.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pair/mark.h"
#include "queue.h"

/*
 * The low bits of a cookie are a place + 1, so that none is 0; the others are counted up each time.
 */
#define COOKIE_BITS 17
#define COOKIE_PLACE ((1u << COOKIE_BITS) - 1)

_Static_assert(VRNIC_MAX_DEPTH < COOKIE_PLACE, "a place and its cookie fit");

bool vrnic_read_layout(const struct vrnic_map *m, uint32_t magic, struct vrnic_layout *l)
{
	uint32_t w[VRNIC_QP_FLAGS / 4 + 1];
	size_t i;

	if (m->len < VRNIC_QP_RQ_STARVED + 64)
		return false;
	for (i = 0; i < sizeof(w) / sizeof(w[0]); i++)
		w[i] = load_acquire(vrnic_word(m->mem, 4 * i));
	if (w[VRNIC_QP_MAGIC / 4] != magic)
		return false;
	l->num = w[VRNIC_QP_NUM / 4];
	l->sq_size = w[VRNIC_QP_SQ_SIZE / 4];
	l->sq_stride = w[VRNIC_QP_SQ_STRIDE / 4];
	l->sq_off = w[VRNIC_QP_SQ_OFF / 4];
	l->rq_size = w[VRNIC_QP_RQ_SIZE / 4];
	l->rq_stride = w[VRNIC_QP_RQ_STRIDE / 4];
	l->rq_off = w[VRNIC_QP_RQ_OFF / 4];
	l->tx_slab_off = w[VRNIC_QP_TX_SLAB_OFF / 4];
	l->tx_slab_size = w[VRNIC_QP_TX_SLAB_SIZE / 4];
	l->rx_slab_off = w[VRNIC_QP_RX_SLAB_OFF / 4];
	l->rx_slab_size = w[VRNIC_QP_RX_SLAB_SIZE / 4];
	l->max_inline = w[VRNIC_QP_MAX_INLINE / 4];

	if ((magic == VRNIC_MAGIC_SRQ || l->rq_size) &&
	    !vrnic_ring_fits(m->len, l->rq_off, l->rq_size, VRNIC_MAX_DEPTH, l->rq_stride,
			     VRNIC_RQ_SGE + VRNIC_SGE_LEN,
			     VRNIC_RQ_SGE + VRNIC_SGE_LEN * VRNIC_MAX_SGE))
		return false;
	if (magic == VRNIC_MAGIC_SRQ)
		return true;
	return vrnic_ring_fits(m->len, l->sq_off, l->sq_size, VRNIC_MAX_DEPTH, l->sq_stride,
			       VRNIC_SQ_SGE + VRNIC_MIN_INLINE,
			       (VRNIC_SQ_SGE + VRNIC_MAX_INLINE + 63) & ~63u) &&
	       vrnic_slab_fits(m->len, l->tx_slab_off, l->tx_slab_size) &&
	       vrnic_slab_fits(m->len, l->rx_slab_off, l->rx_slab_size) &&
	       l->max_inline <= l->sq_stride - VRNIC_SQ_SGE && l->max_inline <= VRNIC_MAX_INLINE;
}

int vrnic_rq_init(struct vrnic_rq *rq, struct vrnic_session *s, const struct vrnic_map *m,
		  const struct vrnic_layout *l,
		  uint32_t bell)
{
	uint32_t i, n = l->rq_size;

	rq->s = s;
	rq->ring = (char *)m->mem + l->rq_off;
	rq->prod_word = vrnic_word(m->mem, VRNIC_QP_RQ_PROD);
	rq->head_word = vrnic_word(m->mem, VRNIC_QP_RQ_HEAD);
	rq->starved = vrnic_word(m->mem, VRNIC_QP_RQ_STARVED);
	rq->bell = bell;
	rq->mask = n - 1;
	rq->stride = l->rq_stride;
	rq->max_sge = vrnic_rq_max_sge(l);
	rq->wrs = calloc(n + 1, sizeof(*rq->wrs));
	rq->sges = calloc((size_t)n * rq->max_sge, sizeof(*rq->sges));
	rq->free = calloc(n, sizeof(*rq->free));
	if (!rq->wrs || !rq->sges || !rq->free) {
		vrnic_rq_free(rq);
		return ENOMEM;
	}
	for (i = 0; i < n; i++) {
		rq->wrs[i].nsge = VRNIC_NO_RECV;
		rq->free[i] = n - 1 - i;
	}
	rq->nfree = n;
	rq->wrs[n].next = rq->wrs[n].prev = n;
	pthread_mutex_init(&rq->lock, NULL);
	return 0;
}

void vrnic_rq_free(struct vrnic_rq *rq)
{
	free(rq->wrs);
	free(rq->sges);
	free(rq->free);
	rq->wrs = NULL;
	rq->sges = NULL;
	rq->free = NULL;
	rq->ring = NULL;
}

static int put(struct vrnic_rq *rq, uint32_t prod, const struct ibv_recv_wr *wr, bool dead)
{
	struct vrnic_recv_wqe *w =
		(struct vrnic_recv_wqe *)(rq->ring + (size_t)(prod & rq->mask) * rq->stride);
	uint32_t place, end = rq->mask + 1;
	struct vrnic_recv *r;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return EINVAL;
	if (!rq->nfree)
		return ENOMEM;
	place = rq->free[--rq->nfree];
	r = &rq->wrs[place];
	r->wr_id = wr->wr_id;
	r->cookie = ((r->cookie & ~COOKIE_PLACE) + (1u << COOKIE_BITS)) | (place + 1);
	r->nsge = wr->num_sge;
	r->next = end;
	r->prev = rq->wrs[end].prev;
	rq->wrs[r->prev].next = place;
	rq->wrs[end].prev = place;
	if (wr->num_sge)
		memcpy(rq->sges + (size_t)place * rq->max_sge, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	if (dead)
		return 0;
	w->wr_id = wr->wr_id;
	w->num_sge = wr->num_sge;
	w->cookie = r->cookie;
	if (wr->num_sge)
		memcpy(w + 1, wr->sg_list, wr->num_sge * sizeof(*wr->sg_list));
	return 0;
}

/* How many octets the library can put where the receive at place wants them. */
static uint64_t room(struct vrnic_rq *rq, uint32_t place)
{
	const struct ibv_sge *sge = rq->sges + (size_t)place * rq->max_sge;
	struct iovec iov[VRNIC_MAX_SGE];
	uint64_t sum = 0;
	uint32_t k;

	if (!vrnic_sges_local(&rq->region, rq->pd, sge, rq->wrs[place].nsge, true, iov))
		return VRNIC_NO_ROOM; /* the daemon has the error */
	for (k = 0; k < rq->wrs[place].nsge; k++)
		sum += sge[k].length;
	return sum;
}

/* Tells the sender of rq->in of receives from one on. */
static void rooms(struct vrnic_rq *rq, uint32_t i)
{
	uint32_t back, place = rq->mask + 1;

	for (back = rq->prod - i; back; back--) /* the list has them in the order of posting */
		place = rq->wrs[place].prev;
	for (; i != rq->prod; i++, place = rq->wrs[place].next)
		vrnic_pair_room(rq->in, i, room(rq, place));
}

uint32_t vrnic_rq_join(struct vrnic_rq *rq, struct vrnic_pair_in *in, struct ibv_pd *pd)
{
	uint32_t oldest;

	pthread_mutex_lock(&rq->lock);
	oldest = rq->prod - (rq->mask + 1 - rq->nfree);
	rq->in = in;
	rq->pd = pd;
	rooms(rq, oldest);
	pthread_mutex_unlock(&rq->lock);
	return oldest;
}

void vrnic_rq_leave(struct vrnic_rq *rq)
{
	pthread_mutex_lock(&rq->lock);
	rq->in = NULL;
	pthread_mutex_unlock(&rq->lock);
}

int vrnic_rq_post(struct vrnic_rq *rq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	bool dead, ring = false;
	uint32_t prod, from, head = 0;
	int err = 0;

	pthread_mutex_lock(&rq->lock);
	dead = vrnic_dead(rq->s);
	from = prod = rq->prod;
	if (!dead)
		head = load_acquire(rq->head_word);
	for (; wr; wr = wr->next, prod++) {
		err = put(rq, prod, wr, dead);
		if (err) {
			*bad = wr;
			break;
		}
	}
	/*
	 * The table has no more places than the ring has slots, so it was full before the ring, unless
	 * head is wrong.
	 */
	if (!dead && !rq->in && prod - head > rq->mask + 1) {
		vrnic_corrupt(rq->s, "rq_head passed rq_prod");
		dead = true;
	}
	if (prod != rq->prod) {
		rq->prod = prod;
		/* in this order, and the daemon the other way round: one of the two sees the other */
		if (!dead) {
			atomic_store(rq->prod_word, prod);
			VRNIC_MARK(POSTED);
			if (rq->in) /* in this order: docs/direct.md#receiving */
				rooms(rq, from);
			ring = atomic_load(rq->starved);
		}
	}
	pthread_mutex_unlock(&rq->lock);
	if (ring)
		vrnic_ring(rq->s, rq->bell);
	return err;
}

uint32_t vrnic_rq_find(const struct vrnic_rq *rq, uint32_t cookie)
{
	uint32_t place = (cookie & COOKIE_PLACE) - 1;

	if (place > rq->mask || rq->wrs[place].nsge == VRNIC_NO_RECV || rq->wrs[place].cookie != cookie)
		return VRNIC_NO_RECV;
	return place;
}

void vrnic_rq_release(struct vrnic_rq *rq, uint32_t place)
{
	struct vrnic_recv *r = &rq->wrs[place];

	rq->wrs[r->prev].next = r->next;
	rq->wrs[r->next].prev = r->prev;
	r->nsge = VRNIC_NO_RECV;
	rq->free[rq->nfree++] = place; /* there is room: it had a place there before */
}

bool vrnic_rq_flush(struct vrnic_rq *rq, uint64_t *wr_id)
{
	uint32_t place;

	pthread_mutex_lock(&rq->lock);
	place = rq->wrs[rq->mask + 1].next;
	if (place <= rq->mask) {
		*wr_id = rq->wrs[place].wr_id;
		vrnic_rq_release(rq, place);
	}
	pthread_mutex_unlock(&rq->lock);
	return place <= rq->mask;
}

void vrnic_rq_forget(struct vrnic_rq *rq)
{
	uint32_t place;

	pthread_mutex_lock(&rq->lock);
	while ((place = rq->wrs[rq->mask + 1].next) <= rq->mask)
		vrnic_rq_release(rq, place);
	pthread_mutex_unlock(&rq->lock);
}

/*
 * The making of SRQs.
 */

/* Checks what the daemon has made against what was asked for. */
static bool fits(struct vrnic_session *s, const struct vrnic_layout *l,
		 const struct vrnic_create_srq_request *req,
		 const struct vrnic_create_srq_reply *rep)
{
	return l->num == rep->srq && rep->bell < s->nbells && l->rq_size >= req->max_wr &&
	       vrnic_rq_max_sge(l) >= req->max_sge;
}

static int make(struct vrnic_srq *srq, struct ibv_pd *pd, struct ibv_srq_attr *attr)
{
	const struct vrnic_context *c = to_vctx(pd->context);
	struct vrnic_session *s = srq->s;
	struct vrnic_create_srq_request req = {
		.pd = pd->handle,
		.max_wr = attr->max_wr, /* 0: as few as there can be */
		.max_sge = attr->max_sge,
	};
	struct vrnic_create_srq_reply rep;
	struct vrnic_layout l;
	int err, fd;

	err = vrnic_rpc(s, VRNIC_OP_CREATE_SRQ, &req, sizeof(req), &rep, sizeof(rep), -1, &fd, 1);
	if (err)
		return err;
	err = vrnic_map_fd(s, fd, VRNIC_QP_RQ_STARVED + 64, &srq->map);
	if (err) {
		vrnic_rpc_handle(s, VRNIC_OP_DESTROY_SRQ, rep.srq, NULL, 0);
		return err;
	}
	if (!vrnic_read_layout(&srq->map, VRNIC_MAGIC_SRQ, &l) || !fits(s, &l, &req, &rep)) {
		vrnic_corrupt(s, "a new SRQ");
		err = EIO;
		goto unmap;
	}
	err = vrnic_rq_init(&srq->rq, s, &srq->map, &l, rep.bell);
	if (err) {
		vrnic_rpc_handle(s, VRNIC_OP_DESTROY_SRQ, rep.srq, NULL, 0);
		goto unmap;
	}
	if (c->attr.card && srq->rq.max_sge > c->attr.max_srq_sge)
		srq->rq.max_sge = c->attr.max_srq_sge;
	if (rep.max_sge && rep.max_sge >= req.max_sge && srq->rq.max_sge > rep.max_sge)
		srq->rq.max_sge = rep.max_sge;
	srq->srq.handle = rep.srq;
	attr->max_wr = rep.max_wr && rep.max_wr >= req.max_wr && rep.max_wr <= l.rq_size ? rep.max_wr
											  : l.rq_size;
	attr->max_sge = srq->rq.max_sge;
	return 0;

unmap:
	vrnic_unmap(&srq->map);
	return err;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct vrnic_context *c = to_vctx(pd->context);
	struct vrnic_srq *srq;
	int err;

	srq = calloc(1, sizeof(*srq));
	if (!srq)
		return NULL;
	srq->s = c->s;
	srq->srq.context = pd->context;
	srq->srq.srq_context = attr->srq_context;
	srq->srq.pd = pd;
	pthread_mutex_init(&srq->srq.mutex, NULL);
	pthread_cond_init(&srq->srq.cond, NULL);
	atomic_fetch_add(&to_vpd(pd)->users, 1);
	err = make(srq, pd, &attr->attr);
	if (err) {
		atomic_fetch_sub(&to_vpd(pd)->users, 1);
		free(srq);
		errno = err;
		return NULL;
	}
	vrnic_obj_add(c, &srq->obj, VRNIC_OBJ_SRQ, srq->srq.handle, &srq->srq);
	return &srq->srq;
}

struct ibv_srq *vrnic_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
	if (attr->comp_mask & ~(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD) ||
	    (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && attr->srq_type != IBV_SRQT_BASIC)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !attr->pd || attr->pd->context != context) {
		errno = EINVAL;
		return NULL;
	}
	return ibv_create_srq(attr->pd, (struct ibv_srq_init_attr *)attr); /* it begins like that */
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	struct vrnic_modify_srq_request req = { .srq = srq->handle, .mask = mask };

	if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return EINVAL;
	if (mask & IBV_SRQ_MAX_WR)
		return EOPNOTSUPP;
	if (mask & IBV_SRQ_LIMIT)
		req.limit = attr->srq_limit;
	return vrnic_rpc(to_vsrq(srq)->s, VRNIC_OP_MODIFY_SRQ, &req, sizeof(req), NULL, 0, -1, NULL, 0);
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	struct vrnic_query_srq_reply rep;
	int err;

	err = vrnic_rpc_handle(to_vsrq(srq)->s, VRNIC_OP_QUERY_SRQ, srq->handle, &rep, sizeof(rep));
	if (err)
		return err;
	attr->max_wr = rep.max_wr;
	attr->max_sge = rep.max_sge;
	attr->srq_limit = rep.limit;
	return 0;
}

int vrnic_get_srq_num(struct ibv_srq *srq, uint32_t *num)
{
	*num = srq->handle;
	return 0;
}

int ibv_destroy_srq(struct ibv_srq *ibsrq)
{
	struct vrnic_srq *srq = to_vsrq(ibsrq);
	struct vrnic_destroy_reply rep = { 0 };
	uint32_t given;
	int err;

	if (atomic_load(&srq->users))
		return EBUSY;
	err = vrnic_rpc_handle(srq->s, VRNIC_OP_DESTROY_SRQ, ibsrq->handle, &rep, sizeof(rep));
	if (err && !vrnic_dead(srq->s))
		return err;
	given = vrnic_obj_drop(to_vctx(ibsrq->context), &srq->obj, err ? 0 : rep.tokens);
	vrnic_wait_acks(&ibsrq->mutex, &ibsrq->cond, &ibsrq->events_completed, given);
	atomic_fetch_sub(&to_vpd(ibsrq->pd)->users, 1);
	vrnic_rq_free(&srq->rq);
	vrnic_unmap(&srq->map);
	free(srq);
	return 0;
}
