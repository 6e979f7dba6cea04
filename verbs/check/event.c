/* Events that are got and have to be acknowledged, before what they are of can be destroyed. */
#include <errno.h>
#include <time.h>

#include "check.h"

/* Other threads may be about to acknowledge. */
#define WAIT_MS 2000

static void count(enum kind kind, void *at, int n)
{
	struct object *o;
	struct site site;

	if (n > 0)
		site_take(&site);
	book_lock();
	o = book_find(kind, at);
	if (o && (n > 0 || o->unacked >= (uint32_t)-n))
		o->unacked += (uint32_t)n;
	if (o && n > 0)
		o->event = site;
	book_unlock();
}

CHECK_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **context)
{
	int err = next()->ibv_get_cq_event(ch, cq, context);

	if (!err) {
		count(KIND_CQ, *cq, 1);
	} else if (errno == EIO) { /* the daemon is no more */
		book_lock();
		early_ended(ch->context);
		book_unlock();
		errno = EIO;
	}
	return err;
}

CHECK_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	count(KIND_CQ, cq, -(int)n);
	next()->ibv_ack_cq_events(cq, n);
}

static void count_async(const struct ibv_async_event *ev, int n)
{
	switch (ev->event_type) {
	case IBV_EVENT_CQ_ERR:
		count(KIND_CQ, ev->element.cq, n);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		count(KIND_QP, ev->element.qp, n);
		break;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		count(KIND_SRQ, ev->element.srq, n);
		break;
	default: /* of a device, which waits for none */
		break;
	}
}

/* By these the program knows that what is posted comes back. */
static void end_async(struct ibv_context *c, const struct ibv_async_event *ev)
{
	void *at;

	switch (ev->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		at = ev->element.qp;
		break;
	case IBV_EVENT_CQ_ERR:
		at = ev->element.cq;
		break;
	case IBV_EVENT_SRQ_ERR:
		at = ev->element.srq;
		break;
	case IBV_EVENT_DEVICE_FATAL:
		at = c;
		break;
	default:
		return;
	}
	book_lock();
	early_ended(at);
	book_unlock();
}

CHECK_EXPORT int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *ev)
{
	int err = next()->ibv_get_async_event(c, ev);

	if (err)
		return err;
	count_async(ev, 1);
	end_async(c, ev);
	return 0;
}

CHECK_EXPORT void ibv_ack_async_event(struct ibv_async_event *ev)
{
	count_async(ev, -1);
	next()->ibv_ack_async_event(ev);
}

static bool waits(enum kind kind, void *at)
{
	const struct object *o;
	bool yes;

	book_lock();
	o = book_find(kind, at);
	yes = o && o->unacked && !o->internal && o->generation == book_generation();
	/* what others hang on is refused, before anything is waited for */
	if (yes && (kind == KIND_CQ || kind == KIND_SRQ))
		yes = !destroy_hangs(o);
	book_unlock();
	return yes;
}

void event_wait(enum kind kind, void *at, const char *call, const struct site *site)
{
	const struct timespec ms = { .tv_nsec = 1000000 };
	const struct object *o;
	struct report r;
	int i;

	for (i = 0; i < WAIT_MS && waits(kind, at); i++)
		nanosleep(&ms, NULL);
	if (!waits(kind, at))
		return;
	book_lock();
	o = book_find(kind, at);
	if (o && report_begin(&r, "unacked", site)) {
		report_text(&r, "call", call);
		report_number(&r, "events", o->unacked);
		report_site(&r, "here", site);
		report_site(&r, "event", &o->event);
		report_object(&r, "object", o);
		report_send(&r);
	}
	book_unlock();
}
