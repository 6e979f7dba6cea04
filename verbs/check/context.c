/* What contexts have for programs: pointers to functions, which are replaced by ours. */
#include "check.h"

struct context_next context_next;

static struct verbs_context *extended(struct ibv_context *c)
{
	return c->abi_compat == VERBS_ABI_IS_EXTENDED ? container_of(c, struct verbs_context, context)
						      : NULL;
}

void context_adopt(struct ibv_context *c)
{
	struct verbs_context *v = extended(c);

	book_lock();
	if (c->ops.post_send != context_ours.ops.post_send) {
		context_next.ops = c->ops;
		c->ops.alloc_mw = context_ours.ops.alloc_mw;
		c->ops.dealloc_mw = context_ours.ops.dealloc_mw;
		c->ops.poll_cq = context_ours.ops.poll_cq;
		c->ops.post_srq_recv = context_ours.ops.post_srq_recv;
		c->ops.post_send = context_ours.ops.post_send;
		c->ops.post_recv = context_ours.ops.post_recv;
		if (v) {
			context_next.v = *v;
			v->create_cq_ex = context_ours.v.create_cq_ex;
			v->create_qp_ex = context_ours.v.create_qp_ex;
			v->create_srq_ex = context_ours.v.create_srq_ex;
			v->alloc_parent_domain = context_ours.v.alloc_parent_domain;
		}
	}
	book_unlock();
}

CHECK_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *c = next()->ibv_open_device(device);
	struct site site;

	if (!c)
		return NULL;
	context_adopt(c);
	site_take(&site);
	book_lock();
	book_add(KIND_CONTEXT, c, sizeof(struct object), &site);
	book_unlock();
	return c;
}

/* It ends whatever hangs on it. */
CHECK_EXPORT int ibv_close_device(struct ibv_context *c)
{
	struct object *o;
	struct site site;

	site_take(&site);
	book_lock();
	o = book_find(KIND_CONTEXT, c);
	if (o) {
		destroy_tell("closed", "ibv_close_device", o, &site);
		book_remove(o);
	}
	early_ended(c);
	book_unlock();
	return next()->ibv_close_device(c);
}
