/* Protection domains, and the thread and parent domains that programs make around them. */
#include <errno.h>
#include <stdlib.h>

#include "objects.h"

static struct ibv_pd *new_pd(struct ibv_context *context, uint32_t handle, struct vrnic_pd *parent)
{
	struct vrnic_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->pd.context = context;
	pd->pd.handle = handle;
	pd->is = parent ? parent : pd;
	return &pd->pd;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct vrnic_context *c = to_vctx(context);
	struct vrnic_alloc_pd_request req = { .ctx = c->handle };
	struct vrnic_alloc_pd_reply rep;
	struct ibv_pd *pd = new_pd(context, 0, NULL);
	int err;

	if (!pd)
		return NULL;
	err = vrnic_rpc(c->s, VRNIC_OP_ALLOC_PD, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);
	if (err) {
		free(to_vpd(pd));
		errno = err;
		return NULL;
	}
	pd->handle = rep.pd;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct vrnic_session *s = to_vctx(ibpd->context)->s;
	struct vrnic_pd *pd = to_vpd(ibpd);
	int err;

	if (atomic_load(&pd->users))
		return EBUSY;
	if (pd->is != pd) {
		atomic_fetch_sub(&pd->is->users, 1);
		if (pd->td)
			atomic_fetch_sub(&pd->td->users, 1);
	} else {
		err = vrnic_rpc_handle(s, VRNIC_OP_DEALLOC_PD, ibpd->handle, NULL, 0);
		if (err && !vrnic_dead(s))
			return err;
	}
	free(pd);
	return 0;
}

/*
 * A parent domain is another name for a protection domain, beside a thread domain. Its allocators
 * have nothing to allocate: queues are in memory of the daemon's.
 */
struct ibv_pd *vrnic_alloc_parent_domain(struct ibv_context *context,
					 struct ibv_parent_domain_init_attr *attr)
{
	const uint32_t known =
		IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct vrnic_pd *of;
	struct ibv_pd *pd;

	if (!attr->pd || attr->pd->context != context || to_vpd(attr->pd)->is != to_vpd(attr->pd) ||
	    (attr->td && attr->td->context != context)) {
		errno = EINVAL;
		return NULL;
	}
	if (attr->comp_mask & ~known) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	of = to_vpd(attr->pd);
	pd = new_pd(context, attr->pd->handle, of);
	if (!pd)
		return NULL;
	atomic_fetch_add(&of->users, 1);
	if (attr->td) {
		to_vpd(pd)->td = container_of(attr->td, struct vrnic_td, td);
		atomic_fetch_add(&to_vpd(pd)->td->users, 1);
	}
	return pd;
}

/* A program's promise that one thread at a time uses what belongs to it. Locks are held as ever. */
struct ibv_td *vrnic_alloc_td(struct ibv_context *context, struct ibv_td_init_attr *attr)
{
	struct vrnic_td *td;

	if (attr->comp_mask) {
		errno = EINVAL;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td)
		return NULL;
	td->td.context = context;
	return &td->td;
}

int vrnic_dealloc_td(struct ibv_td *ibtd)
{
	struct vrnic_td *td = container_of(ibtd, struct vrnic_td, td);

	if (atomic_load(&td->users))
		return EBUSY;
	free(td);
	return 0;
}
