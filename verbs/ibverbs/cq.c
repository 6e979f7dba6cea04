/* Completion queues: making and ending them. poll.c takes completions out. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "pair/board.h"

#include "objects.h"

/*
 * Checks line 0 of memory for a CQ, and where the ring is in it: false, and the session is dead, if
 * it makes no sense.
 */
static bool check_ring(struct vrnic_cq *cq, const struct vrnic_map *m, uint32_t cqe, uint32_t *size,
		       uint32_t *off)
{
	uint32_t magic = load_acquire(vrnic_word(m->mem, VRNIC_CQ_MAGIC));
	uint32_t handle = load_acquire(vrnic_word(m->mem, VRNIC_CQ_HANDLE));

	*size = load_acquire(vrnic_word(m->mem, VRNIC_CQ_SIZE));
	*off = load_acquire(vrnic_word(m->mem, VRNIC_CQ_CQE_OFF));
	if (magic != VRNIC_MAGIC_CQ || handle != cq->cq.handle || *size < cqe ||
	    !vrnic_ring_fits(m->len, *off, *size, VRNIC_MAX_CQ_DEPTH, VRNIC_CQE_LEN, VRNIC_CQE_LEN,
			     VRNIC_CQE_LEN)) {
		vrnic_corrupt(cq->s, "memory of a CQ");
		return false;
	}
	return true;
}

/* told: how many completions it is said to hold. */
static void use_ring(struct vrnic_cq *cq, const struct vrnic_map *m, uint32_t size, uint32_t off,
		     uint32_t told)
{
	cq->cqes = (char *)m->mem + off;
	cq->mask = size - 1;
	cq->cq.cqe = (int)(told && told < size ? told : size);
}

/* Takes m as the memory of a new CQ, and its first page for good. */
static void use_head(struct vrnic_cq *cq, const struct vrnic_map *m)
{
	size_t page = sysconf(_SC_PAGESIZE);

	cq->head = *m;
	if (m->len > page) {
		cq->head.len = page;
		cq->ring = *m;
		cq->ring.mem = (char *)m->mem + page;
		cq->ring.len = m->len - page;
	}
	cq->prod = vrnic_word(m->mem, VRNIC_CQ_PROD);
	cq->cons_word = vrnic_word(m->mem, VRNIC_CQ_CONS);
	cq->arm = vrnic_word(m->mem, VRNIC_CQ_ARM);
}

static void free_cq(struct vrnic_cq *cq)
{
	vrnic_unmap(&cq->ring);
	vrnic_unmap(&cq->head);
	vrnic_table_free(&cq->qps);
	vrnic_board_free(cq->many);
	pthread_mutex_destroy(&cq->arm_lock);
	pthread_mutex_destroy(&cq->lock);
	pthread_mutex_destroy(&cq->cq.mutex);
	pthread_cond_destroy(&cq->cq.cond);
	free(cq);
}

static struct vrnic_cq *create_cq(struct ibv_context *context, uint32_t cqe, void *cq_context,
				  struct ibv_comp_channel *channel,
				  uint32_t vector)
{
	struct vrnic_context *c = to_vctx(context);
	struct vrnic_create_cq_request req = { .ctx = c->handle, .cqe = cqe };
	struct vrnic_create_cq_reply rep;
	uint32_t size, off;
	struct vrnic_map m;
	struct vrnic_cq *cq;
	int fd, err;

	if (channel && channel->context != context)
		goto invalid;
	if (cqe < 1 || cqe > c->attr.max_cqe || vector >= (uint32_t)context->num_comp_vectors)
		goto invalid;
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return NULL;
	cq->s = c->s;
	cq->chan = channel ? container_of(channel, struct vrnic_chan, ch) : NULL;
	req.chan = cq->chan ? cq->chan->handle : 0;
	err = vrnic_rpc(c->s, VRNIC_OP_CREATE_CQ, &req, sizeof(req), &rep, sizeof(rep), -1, &fd, 1);
	if (err) {
		free(cq);
		errno = err;
		return NULL;
	}
	cq->cq.context = context;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->cq.handle = rep.cq;
	pthread_mutex_init(&cq->lock, NULL);
	pthread_mutex_init(&cq->arm_lock, NULL);
	pthread_mutex_init(&cq->cq.mutex, NULL);
	pthread_cond_init(&cq->cq.cond, NULL);
	err = vrnic_map_fd(c->s, fd, VRNIC_CQ_ARM + 64, &m);
	if (!err) {
		use_head(cq, &m);
		if (!check_ring(cq, &m, cqe, &size, &off))
			err = EIO;
	} else {
		vrnic_rpc_handle(c->s, VRNIC_OP_DESTROY_CQ, rep.cq, NULL, 0);
	}
	if (err) {
		err = vrnic_dead(c->s) ? EIO : err;
		free_cq(cq);
		errno = err;
		return NULL;
	}
	use_ring(cq, &m, size, off, rep.cqe);
	if (cq->chan)
		vrnic_chan_attach(cq->chan, cq);
	vrnic_obj_add(c, &cq->obj, VRNIC_OBJ_CQ, rep.cq, &cq->cq);
	return cq;
invalid:
	errno = EINVAL;
	return NULL;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel,
			     int comp_vector)
{
	struct vrnic_cq *cq = create_cq(context, cqe < 0 ? 0 : cqe, cq_context, channel, comp_vector);

	return cq ? &cq->cq : NULL;
}

/* What ibv_wc has, and the time of the completion. */
#define WC_FLAGS \
	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | \
	 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

struct ibv_cq_ex *vrnic_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	bool parent = attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD;
	struct vrnic_cq *cq;

	if (parent && (!attr->parent_domain || attr->parent_domain->context != context ||
		       to_vpd(attr->parent_domain)->is == to_vpd(attr->parent_domain))) {
		errno = EINVAL;
		return NULL;
	}
	if ((attr->comp_mask & ~(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)) ||
	    (attr->wc_flags & ~(uint64_t)WC_FLAGS) ||
	    ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
	     (attr->flags & ~IBV_CREATE_CQ_ATTR_SINGLE_THREADED))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	cq = create_cq(context, attr->cqe, attr->cq_context, attr->channel, attr->comp_vector);
	if (!cq)
		return NULL;
	if (parent) {
		cq->parent = to_vpd(attr->parent_domain);
		atomic_fetch_add(&cq->parent->users, 1);
	}
	vrnic_cq_ex_ops(cq, attr->wc_flags);
	return &cq->ex;
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct vrnic_cq *cq = to_vcq(ibcq);
	struct vrnic_destroy_reply rep = { 0 };
	uint32_t comp = 0, async;
	int err;

	if (atomic_load(&cq->users))
		return EBUSY;
	err = vrnic_rpc_handle(cq->s, VRNIC_OP_DESTROY_CQ, ibcq->handle, &rep, sizeof(rep));
	if (err && !vrnic_dead(cq->s))
		return err;
	/*
	 * The daemon writes to it no more. Events that nobody has been given are dropped; for the others
	 * we wait.
	 */
	if (cq->chan)
		comp = vrnic_chan_detach(cq->chan, cq);
	async = vrnic_obj_drop(to_vctx(ibcq->context), &cq->obj, rep.tokens);
	if (cq->parent)
		atomic_fetch_sub(&cq->parent->users, 1);
	vrnic_wait_acks(&ibcq->mutex, &ibcq->cond, &ibcq->comp_events_completed, comp);
	vrnic_wait_acks(&ibcq->mutex, &ibcq->cond, &ibcq->async_events_completed, async);
	free_cq(cq);
	return 0;
}

/*
 * Has the daemon go over to memory m, which is fd's, of at least cqe entries, while nobody here
 * polls or arms the CQ: what was in the old ring and had not been polled is in the new one then, at
 * the same indices. 0, or an errno, and then m is not used. The old ring is unmapped: only who has
 * one of the locks reads it.
 */
static int switch_ring(struct vrnic_cq *cq, int fd, struct vrnic_map *m, uint32_t cqe,
		       uint32_t told)
{
	uint32_t size, off;
	int err;

	pthread_mutex_lock(&cq->lock);
	pthread_mutex_lock(&cq->arm_lock);
	err = vrnic_rpc_handle(cq->s, VRNIC_OP_SWITCH_CQ, cq->cq.handle, NULL, 0);
	if (!err && !check_ring(cq, m, cqe, &size, &off))
		err = EIO;
	if (!err)
		err = vrnic_map_page(cq->s, fd, cq->head.mem);
	if (!err) {
		vrnic_unmap(&cq->ring);
		cq->ring = *m;
		use_ring(cq, m, size, off, told);
	}
	pthread_mutex_unlock(&cq->arm_lock);
	pthread_mutex_unlock(&cq->lock);
	return err;
}

int ibv_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	struct vrnic_cq *cq = to_vcq(ibcq);
	struct vrnic_resize_cq_request req = { .cq = ibcq->handle, .cqe = (uint32_t)cqe };
	struct vrnic_resize_cq_reply rep;
	struct vrnic_map m;
	int fd, err;

	/* The daemon looks at cqe: a card that cannot do this refuses any. */
	err = vrnic_rpc(cq->s, VRNIC_OP_RESIZE_CQ, &req, sizeof(req), &rep, sizeof(rep), -1, &fd, 1);
	if (err)
		return err;
	err = vrnic_map_open_fd(cq->s, fd, VRNIC_CQ_ARM + 64, &m);
	if (!err) {
		err = switch_ring(cq, fd, &m, (uint32_t)cqe, rep.cqe);
		if (err)
			vrnic_unmap(&m);
	}
	vrnic_close(fd);
	return err;
}
