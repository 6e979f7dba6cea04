/* Shared receive queues: their making; rq.c has what they do. */
#include <errno.h>
#include <stdlib.h>

#include "queue.h"

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
		.max_wr = attr->max_wr ? attr->max_wr : 1,
		.max_sge = attr->max_sge ? attr->max_sge : 1,
	};
	struct vrnic_create_srq_reply rep;
	struct vrnic_layout l;
	int err, fd;

	err = vrnic_rpc(s, VRNIC_OP_CREATE_SRQ, &req, sizeof(req), &rep, sizeof(rep), -1, &fd, 1);
	if (err)
		return err;
	err = vrnic_map_fd(s, fd, VRNIC_QP_RQ_STARVED + 64, &srq->map);
	if (err)
		return err;
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
	srq->srq.handle = rep.srq;
	attr->max_wr = l.rq_size;
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
