/* Streams: what has come, of rdma_cm and of the completion queue. */
#include <string.h>

#include "stream.h"

/* Before a connection is over: what the peer has said before it went is there. */
static bool completions(struct rs_stream *st);

enum { RESOLVE_MS = 4000 };

static int connect_now(struct rs_stream *st)
{
	struct rs_conn_data d;
	/* a client of iWARP may have to say that it is ready, by a Read of nothing */
	struct rdma_conn_param p = { .private_data = &d, .private_data_len = sizeof(d),
				     .initiator_depth = 1, .responder_resources = 1,
				     .flow_control = 1, .retry_count = 7, .rnr_retry_count = 7 };
	int err = rs_endpoint_make(st);

	if (err)
		return err;
	rs_endpoint_describe(st, &d);
	return rdma_connect(st->id, &p) ? -errno : 0;
}

static void opened(struct rs_stream *st)
{
	st->state = RS_OPEN;
	st->may_read = st->may_write = true;
	rs_give_credit(st);
}

/* What a failure of rdma_cm is to a program of sockets. */
static int reason(const struct rdma_cm_event *ev, bool active)
{
	if (ev->event == RDMA_CM_EVENT_REJECTED) /* accepted, and gone before it heard so */
		return active ? ECONNREFUSED : ECONNRESET;
	if (ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
		return ENODEV;
	if (ev->status < 0)
		return -ev->status;
	return ev->event == RDMA_CM_EVENT_UNREACHABLE ? ETIMEDOUT : EHOSTUNREACH;
}

/* An event of a socket that does not listen; its private data is good until it is acknowledged. */
static int on_event(struct rs_stream *st, const struct rdma_cm_event *ev)
{
	bool active = !rs_is_accepted(st);

	switch (ev->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		return rdma_resolve_route(st->id, RESOLVE_MS) ? -errno : 0;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		return connect_now(st);
	case RDMA_CM_EVENT_ESTABLISHED:
		if (st->state != RS_OPENING)
			return 0;
		if (active && !rs_endpoint_learn(st, ev->param.conn.private_data,
						 ev->param.conn.private_data_len))
			return -EPROTO;
		opened(st);
		return 0;
	case RDMA_CM_EVENT_DISCONNECTED:
		st->ended = true;
		return -ECONNRESET;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		st->ended = true;
		return -reason(ev, active);
	default:
		return 0;
	}
}

bool rs_stream_events(struct rs_stream *st)
{
	struct rdma_cm_event *ev;
	bool any = false;
	int err;

	if (st->state == RS_LISTENING || st->state == RS_FRESH)
		return false;
	while (!st->ended && !rdma_get_cm_event(st->ch, &ev)) {
		any = true;
		err = on_event(st, ev);
		rdma_ack_cm_event(ev);
		if (!err)
			continue;
		completions(st);
		rs_stream_over(st, -err);
	}
	if (any)
		rs_wake(&st->s);
	return any;
}

static void received(struct rs_stream *st, const struct ibv_wc *wc)
{
	uint32_t slot = wc->wr_id, msg;
	int err;

	if (wc->status != IBV_WC_SUCCESS) {
		st->flushed = true; /* an event says why */
		return;
	}
	if (st->messages && wc->byte_len == sizeof(msg))
		msg = st->msgs[slot];
	else if (!st->messages && wc->wc_flags & IBV_WC_WITH_IMM)
		msg = be32toh(wc->imm_data);
	else {
		rs_stream_over(st, EPROTO);
		return;
	}
	err = rs_post_recv(st, slot);
	if (err)
		rs_stream_over(st, -err);
	else
		rs_stream_message(st, msg);
}

static void completed(struct rs_stream *st, const struct ibv_wc *wc)
{
	uint32_t n = wc->wr_id;

	switch (wc->wr_id >> RS_SENT_SHIFT) {
	case RS_RECEIVED:
		received(st, wc);
		return;
	case RS_SENT_CONTROL:
		st->controls -= n;
		break;
	default:
		st->sfree += n;
		st->sq_free += st->messages ? 2 : 1;
	}
	if (wc->status != IBV_WC_SUCCESS && st->state == RS_OPEN)
		rs_stream_over(st, ECONNRESET);
}

static bool completions(struct rs_stream *st)
{
	struct ibv_wc wc[16];
	bool any = false;
	int i, n;

	while (st->cq && st->state >= RS_OPEN) {
		n = st->id->verbs->ops.poll_cq(st->cq, 16, wc);
		for (i = 0; i < n; i++)
			completed(st, &wc[i]);
		if (n <= 0)
			break;
		any = true;
	}
	return any;
}

bool rs_stream_progress(struct rs_stream *st)
{
	bool any = (st->state == RS_OPENING || st->flushed) && rs_stream_events(st);

	any |= completions(st);
	/* a look at events is a system call, and who waits without sleep looks very often */
	if (!any && st->state == RS_OPEN && ++st->looks % 64 == 0)
		any = rs_stream_events(st);
	if (any) {
		rs_give_credit(st);
		rs_wake(&st->s);
	}
	return any;
}
