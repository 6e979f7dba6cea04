/* Protection domains, with what programs make around them, memory regions and memory windows. */
#include <errno.h>
#include <stdlib.h>

#include "objects.h"
#include "valgrind.h"

#define ACCESS_REMOTE_CHANGE (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)
#define ACCESS_KNOWN \
	(IBV_ACCESS_LOCAL_WRITE | ACCESS_REMOTE_CHANGE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND)

/*
 * Protection domains, thread domains, parent domains.
 */

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

/*
 * Memory regions.
 */

/* 0, or the errno for access rights that cannot be given. Wishes have been taken off. */
static int check_access(unsigned int access)
{
	if (access & ~ACCESS_KNOWN)
		return EINVAL;
	/* What a peer changes is changed by the adapter. */
	if ((access & ACCESS_REMOTE_CHANGE) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

/* Whether the memory is there, as the rights want it: 0 or an errno. */
static int check_memory(const void *addr, size_t length, int access)
{
	return vrnic_check_mapped(addr, length,
				  access & (IBV_ACCESS_LOCAL_WRITE | ACCESS_REMOTE_CHANGE | IBV_ACCESS_MW_BIND));
}

/*
 * Says in req where the octets are: in memory that the daemon has mapped, if there is such at addr,
 * and else in this process, which is lent to the daemon with the first such region. *area is held
 * then.
 */
static int place(struct vrnic_session *s, struct vrnic_reg_mr_request *req, void *addr,
		 size_t length, struct vrnic_area **area)
{
	req->addr = (uintptr_t)addr;
	req->length = length;
	*area = vrnic_area_find(s, addr, length, &req->mem, &req->offset);
	req->mode = *area ? VRNIC_MODE_SHARED : VRNIC_MODE_APP;
	return *area ? 0 : vrnic_lend_mem(s);
}

/* From here on messages find mr, and valgrind believes what they leave in it. */
static void open_to_messages(struct vrnic_mr *mr)
{
	if (mr->access & IBV_ACCESS_LOCAL_WRITE)
		vrnic_tell_valgrind_defined(mr->mr.addr, mr->mr.length);
	vrnic_region_add(mr);
}

/* For libvrnic-check.so. */
__attribute__((visibility("default"))) bool vrnic_mr_lent(const struct ibv_mr *mr);

bool vrnic_mr_lent(const struct ibv_mr *mr)
{
	return container_of(mr, struct vrnic_mr, mr)->area;
}

static struct ibv_mr *reg_mr(struct ibv_pd *ibpd, void *addr, size_t length, uint64_t iova,
			     unsigned int access)
{
	struct vrnic_session *s = to_vctx(ibpd->context)->s;
	struct vrnic_reg_mr_request req = { .pd = ibpd->handle,
					   .access = access & ~(IBV_ACCESS_OPTIONAL_RANGE | VRNIC_ACCESS_PAGING),
					   .iova = iova };
	struct vrnic_reg_mr_reply rep;
	struct vrnic_area *area = NULL;
	struct vrnic_mr *mr;
	int err;

	err = check_access(req.access);
	if (!err && access & IBV_ACCESS_ON_DEMAND)
		/* what is there, each message finds out */
		err = length && length <= UINTPTR_MAX - (uintptr_t)addr ? 0 : EINVAL;
	else if (!err)
		err = check_memory(addr, length, req.access);
	if (err) {
		errno = err;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	err = place(s, &req, addr, length, &area);
	if (!err)
		err = vrnic_rpc(s, VRNIC_OP_REG_MR, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);
	if (err) {
		vrnic_area_put(area);
		free(mr);
		errno = err;
		return NULL;
	}
	mr->mr = (struct ibv_mr){
		.context = ibpd->context,
		.pd = ibpd,
		.addr = addr,
		.length = length,
		.handle = rep.mr,
		.lkey = rep.lkey,
		.rkey = rep.rkey,
	};
	mr->s = s;
	mr->access = req.access;
	mr->iova = iova;
	mr->area = area;
	open_to_messages(mr);
	atomic_fetch_add(&to_vpd(ibpd)->users, 1);
	return &mr->mr;
}

/* verbs.h has a macro of this name for programs. */
#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return reg_mr(pd, addr, length, (uintptr_t)addr, access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
			       int access)
{
	return reg_mr(pd, addr, length, iova, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
				unsigned int access)
{
	return reg_mr(pd, addr, length, iova, access);
}

int ibv_rereg_mr(struct ibv_mr *ibmr, int flags, struct ibv_pd *pd, void *addr, size_t length,
		 int access)
{
	struct vrnic_mr *mr = container_of(ibmr, struct vrnic_mr, mr);
	struct vrnic_session *s = to_vctx(ibmr->context)->s;
	struct vrnic_rereg_mr_request req = { .mr = ibmr->handle, .flags = flags };
	struct vrnic_reg_mr_reply rep;
	struct vrnic_area *area = mr->area;
	struct ibv_pd *old = ibmr->pd;
	int err = 0;

	access &= ~(IBV_ACCESS_OPTIONAL_RANGE | VRNIC_ACCESS_PAGING);
	if (!flags || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) ||
	    ((flags & IBV_REREG_MR_CHANGE_PD) && !pd) ||
	    (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS)))
		err = EINVAL;
	if (!err && (flags & IBV_REREG_MR_CHANGE_ACCESS)) {
		err = check_access(access);
		req.new.access = access;
	}
	if (!err && (flags & IBV_REREG_MR_CHANGE_TRANSLATION))
		err = check_memory(addr, length, flags & IBV_REREG_MR_CHANGE_ACCESS ? access : mr->access);
	else if (!err && (flags & IBV_REREG_MR_CHANGE_ACCESS))
		err = check_memory(ibmr->addr, ibmr->length, access);
	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD)
		req.new.pd = pd->handle;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		req.new.iova = (uintptr_t)addr;
		err = place(s, &req.new, addr, length, &area);
	}
	if (!err)
		err = vrnic_rpc(s, VRNIC_OP_REREG_MR, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);
	if (err) {
		if (flags & IBV_REREG_MR_CHANGE_TRANSLATION)
			vrnic_area_put(area);
		errno = err;
		return IBV_REREG_MR_ERR_CMD;
	}
	vrnic_region_remove(mr);
	vrnic_qps_settle(old);
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		ibmr->pd = pd;
		atomic_fetch_add(&to_vpd(pd)->users, 1);
		atomic_fetch_sub(&to_vpd(old)->users, 1);
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		mr->access = access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		ibmr->addr = addr;
		ibmr->length = length;
		mr->iova = (uintptr_t)addr;
		vrnic_area_put(mr->area);
		mr->area = area;
	}
	ibmr->lkey = rep.lkey;
	ibmr->rkey = rep.rkey;
	mr->revoked = false;
	open_to_messages(mr);
	return 0;
}

int ibv_dereg_mr(struct ibv_mr *ibmr)
{
	struct vrnic_mr *mr = container_of(ibmr, struct vrnic_mr, mr);
	struct vrnic_session *s = to_vctx(ibmr->context)->s;
	int err;

	vrnic_region_remove(mr); /* first: another thread could post with its key */
	vrnic_qps_settle(ibmr->pd);
	err = vrnic_rpc_handle(s, VRNIC_OP_DEREG_MR, ibmr->handle, NULL, 0);
	if (err && !vrnic_dead(s)) {
		vrnic_region_add(mr); /* EBUSY: windows are bound to it */
		return err;
	}
	vrnic_area_put(mr->area);
	atomic_fetch_sub(&to_vpd(ibmr->pd)->users, 1);
	free(mr);
	return 0;
}

/*
 * Memory windows. Programs call these through the context.
 */

struct ibv_mw *vrnic_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct vrnic_session *s = to_vctx(pd->context)->s;
	struct vrnic_alloc_mw_request req = { .pd = pd->handle, .type = type };
	struct vrnic_alloc_mw_reply rep;
	struct ibv_mw *mw = calloc(1, sizeof(*mw));
	int err;

	if (!mw)
		return NULL;
	err = vrnic_rpc(s, VRNIC_OP_ALLOC_MW, &req, sizeof(req), &rep, sizeof(rep), -1, NULL, 0);
	if (err) {
		free(mw);
		errno = err;
		return NULL;
	}
	mw->context = pd->context;
	mw->pd = pd;
	mw->rkey = rep.rkey;
	mw->handle = rep.mw;
	mw->type = type;
	atomic_fetch_add(&to_vpd(pd)->users, 1);
	return mw;
}

int vrnic_dealloc_mw(struct ibv_mw *mw)
{
	struct vrnic_session *s = to_vctx(mw->context)->s;
	int err = vrnic_rpc_handle(s, VRNIC_OP_DEALLOC_MW, mw->handle, NULL, 0);

	if (err && !vrnic_dead(s))
		return err;
	atomic_fetch_sub(&to_vpd(mw->pd)->users, 1);
	free(mw);
	return 0;
}
