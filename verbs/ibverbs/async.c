/* Asynchronous events, of a context and of what is in it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "objects.h"

void vrnic_obj_add(struct vrnic_context *c, struct vrnic_obj *o, uint32_t kind, uint32_t handle,
		   void *ibv)
{
	o->kind = kind;
	o->ibv = ibv;
	pthread_mutex_lock(&c->obj_lock);
	vrnic_table_add(&c->objs, &o->entry, handle);
	pthread_mutex_unlock(&c->obj_lock);
}

uint32_t vrnic_obj_drop(struct vrnic_context *c, struct vrnic_obj *o, uint32_t tokens)
{
	uint32_t given;

	pthread_mutex_lock(&c->obj_lock);
	vrnic_table_remove(&c->objs, &o->entry);
	given = o->given;
	pthread_mutex_unlock(&c->obj_lock);
	vrnic_take_tokens(c->v.context.async_fd, tokens);
	return given;
}

static struct vrnic_obj *obj_of(struct vrnic_entry *e)
{
	return container_of(e, struct vrnic_obj, entry);
}

static void unlock_mutex(void *mutex)
{
	pthread_mutex_unlock(mutex);
}

void vrnic_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, const uint32_t *completed,
		     uint32_t given)
{
	pthread_mutex_lock(mutex);
	pthread_cleanup_push(unlock_mutex, mutex);
	/* More may have been acknowledged than were given: there are programs that count completions. */
	while ((int32_t)(given - *completed) > 0)
		pthread_cond_wait(cond, mutex);
	pthread_cleanup_pop(1);
}

/* Makes an event for the program of the daemon's: false if its object has been destroyed since. */
static bool take_event(struct vrnic_context *c, const struct vrnic_async_event *e,
		       struct ibv_async_event *event)
{
	struct vrnic_entry *o;

	memset(event, 0, sizeof(*event));
	event->event_type = e->type;
	if (e->kind == VRNIC_OBJ_NONE) {
		event->element.port_num = 1;
		return true;
	}
	pthread_mutex_lock(&c->obj_lock);
	o = vrnic_table_find(&c->objs, e->handle);
	while (o && obj_of(o)->kind != e->kind)
		o = vrnic_table_again(o);
	if (o) {
		obj_of(o)->given++;
		event->element.cq = obj_of(o)->ibv; /* or the union's qp, or srq */
	}
	pthread_mutex_unlock(&c->obj_lock);
	return o != NULL;
}

/* Whose event it is, as its type says it. */
static uint32_t kind_of(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_CQ_ERR:
		return VRNIC_OBJ_CQ;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return VRNIC_OBJ_QP;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return VRNIC_OBJ_SRQ;
	default:
		return VRNIC_OBJ_NONE;
	}
}

void vrnic_stop_waiting(void *waiters)
{
	atomic_fetch_sub((atomic_uint *)waiters, 1);
}

static VRNIC_CANCELLED int wait_event(struct vrnic_context *c, struct ibv_async_event *event)
{
	struct vrnic_async_event e;
	int r, err;

	for (;;) {
		r = vrnic_wait_token(c->s, c->v.context.async_fd);
		while (atomic_load(&c->gone)) /* as if the thread were still waiting */
			pause();
		switch (r) {
		case -1:
			return -1;
		case 1:
			if (atomic_exchange(&c->fatal, true)) {
				errno = EIO;
				return -1;
			}
			memset(event, 0, sizeof(*event));
			event->event_type = IBV_EVENT_DEVICE_FATAL;
			return 0;
		}
		err = vrnic_rpc_handle(c->s, VRNIC_OP_GET_ASYNC_EVENT, c->handle, &e, sizeof(e));
		if (!err && (e.kind > VRNIC_OBJ_SRQ || kind_of(e.type) != e.kind)) {
			vrnic_die(c->s, "an event of type %u for an object of kind %u", e.type, e.kind);
			continue;
		}
		if (!err && take_event(c, &e, event))
			return 0;
		if (err && err != EAGAIN && !vrnic_dead(c->s)) {
			errno = err;
			return -1;
		}
	}
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct vrnic_context *c = to_vctx(context);
	int r;

	atomic_fetch_add(&c->waiters, 1);
	pthread_cleanup_push(vrnic_stop_waiting, &c->waiters);
	r = wait_event(c, event);
	pthread_cleanup_pop(1);
	return r;
}

static void ack(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *completed)
{
	pthread_mutex_lock(mutex);
	++*completed;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_cq *cq = event->element.cq;
	struct ibv_qp *qp = event->element.qp;
	struct ibv_srq *srq = event->element.srq;

	switch (kind_of(event->event_type)) {
	case VRNIC_OBJ_CQ:
		ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	case VRNIC_OBJ_QP:
		ack(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	case VRNIC_OBJ_SRQ:
		ack(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	}
}
