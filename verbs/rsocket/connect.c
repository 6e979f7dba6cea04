/* Streams: connections, which rdma_cm makes and ends. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"

enum { RESOLVE_MS = 4000 };

static int any_address(struct rs_stream *st)
{
	struct sockaddr_storage a = { .ss_family = st->s.domain };

	return rdma_bind_addr(st->id, (struct sockaddr *)&a) ? -errno : 0;
}

int rs_stream_bind(struct rs *s, const struct sockaddr *addr, socklen_t len)
{
	struct rs_stream *st = to_stream(s);
	struct sockaddr_storage a = { 0 };

	if (st->state != RS_FRESH || len > sizeof(a) || len < sizeof(struct sockaddr_in))
		return -EINVAL;
	memcpy(&a, addr, len);
	if (rdma_bind_addr(st->id, (struct sockaddr *)&a))
		return -errno;
	st->state = RS_BOUND;
	return 0;
}

int rs_stream_listen(struct rs *s, int backlog)
{
	struct rs_stream *st = to_stream(s);
	int err = 0;

	if (st->state == RS_LISTENING)
		return 0;
	if (st->state > RS_BOUND)
		return -EINVAL;
	if (st->state == RS_FRESH)
		err = any_address(st);
	if (!err && rdma_listen(st->id, backlog))
		err = -errno;
	if (!err)
		st->state = RS_LISTENING;
	return err;
}

int rs_stream_connect(struct rs *s, const struct sockaddr *addr, socklen_t len)
{
	struct rs_stream *st = to_stream(s);

	rs_stream_progress(st); /* who asks again and again may do nothing else */
	switch (st->state) {
	case RS_FRESH:
	case RS_BOUND:
		break;
	case RS_OPENING:
		return -EALREADY;
	case RS_OPEN:
		return -EISCONN;
	default:
		return -EINVAL;
	}
	if (len > sizeof(st->to) || len < sizeof(struct sockaddr_in))
		return -EINVAL;
	memset(&st->to, 0, sizeof(st->to));
	memcpy(&st->to, addr, len);
	if (rdma_resolve_addr(st->id, NULL, (struct sockaddr *)&st->to, RESOLVE_MS))
		return -errno;
	st->state = RS_OPENING;
	return -EINPROGRESS;
}

int rs_stream_request(struct rs *s, struct rdma_cm_event **ev)
{
	struct rs_stream *st = to_stream(s);
	int err;

	if (st->state != RS_LISTENING)
		return -EINVAL;
	for (;;) {
		if (rdma_get_cm_event(st->ch, ev))
			return -errno;
		if ((*ev)->event == RDMA_CM_EVENT_CONNECT_REQUEST)
			return 0;
		err = (*ev)->event == RDMA_CM_EVENT_DEVICE_REMOVAL ? -ENODEV : 0;
		rdma_ack_cm_event(*ev);
		if (err)
			return err;
	}
}

void rs_stream_refuse(struct rdma_cm_event *ev)
{
	struct rdma_cm_id *id = ev->id;

	rdma_ack_cm_event(ev);
	(void)rdma_reject(id, NULL, 0); /* it may have gone meanwhile */
	rdma_destroy_id(id);
}

int rs_stream_answer(struct rs_stream *st, const struct rs *listener, struct rdma_cm_event *ev)
{
	struct rdma_conn_param p = ev->param.conn;
	struct rs_conn_data d;
	int err;

	st->s.domain = listener->domain;
	st->s.opt = listener->opt;
	st->state = RS_OPENING;
	st->id = ev->id;
	err = rs_endpoint_make(st);
	if (!err && !rs_endpoint_learn(st, p.private_data, p.private_data_len))
		err = -EPROTO;
	rdma_ack_cm_event(ev);
	if (!err && rdma_migrate_id(st->id, st->ch))
		err = -errno;
	if (!err) {
		rs_endpoint_describe(st, &d);
		p.private_data = &d;
		p.private_data_len = sizeof(d);
		if (rdma_accept(st->id, &p))
			err = -errno;
	}
	if (err)
		(void)rdma_reject(st->id, NULL, 0); /* it may have gone meanwhile */
	return err;
}
