/* Streams, as one kind of socket. */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stream.h"

/* How long the last octets may take, and the end of the connection behind them. */
enum { DRAIN_MS = 10000, GOODBYE_MS = 2000 };

static short stream_ready(struct rs *s, short events)
{
	struct rs_stream *st = to_stream(s);
	struct pollfd p;
	short r = 0;

	switch (st->state) {
	case RS_FRESH:
	case RS_BOUND: /* as a TCP socket that has no peer */
		return ((POLLOUT | POLLWRNORM) & events) | POLLHUP;
	case RS_LISTENING:
		p = (struct pollfd){ .fd = st->ch->fd, .events = POLLIN };
		return poll(&p, 1, 0) > 0 ? (POLLIN | POLLRDNORM) & events : 0;
	default:
		break;
	}
	rs_stream_progress(st);
	if (st->state == RS_OPENING)
		return 0;
	if (st->ready || !st->may_read)
		r |= POLLIN | POLLRDNORM;
	if (!st->may_write || rs_can_send(st))
		r |= POLLOUT | POLLWRNORM;
	if (!st->may_read)
		r |= POLLRDHUP;
	r &= events;
	/* programs take it for the end of all, so not as long as there is something to read */
	if (st->state == RS_OVER && !st->ready)
		r |= s->err ? POLLERR | POLLHUP : POLLHUP;
	return r;
}

/* Of one CQ: an event says nothing that its completions do not. */
static void drop_cq_events(struct rs_stream *st)
{
	struct ibv_cq *cq;
	void *context;

	while (!ibv_get_cq_event(st->comp, &cq, &context))
		ibv_ack_cq_events(cq, 1);
}

static bool stream_arm(struct rs *s)
{
	struct rs_stream *st = to_stream(s);
	bool any = false;

	if (st->state == RS_LISTENING)
		return false;
	if (st->cq && st->state >= RS_OPEN) {
		drop_cq_events(st);
		if (st->id->verbs->ops.req_notify_cq(st->cq, 0)) {
			rs_stream_over(st, EIO);
			return true;
		}
		any = rs_stream_progress(st);
	}
	return rs_stream_events(st) || any;
}

static int stream_fds(struct rs *s, struct pollfd *p)
{
	struct rs_stream *st = to_stream(s);
	int n = 0;

	if (!st->ended)
		p[n++] = (struct pollfd){ .fd = st->ch->fd, .events = POLLIN };
	if (st->comp && st->state >= RS_OPEN)
		p[n++] = (struct pollfd){ .fd = st->comp->fd, .events = POLLIN };
	return n;
}

static int stream_name(struct rs *s, bool peer, struct sockaddr_storage *a)
{
	struct rs_stream *st = to_stream(s);

	if (peer && (st->state < RS_OPENING || (st->state == RS_OPENING && !rs_is_accepted(st))))
		return -ENOTCONN;
	*a = peer ? st->id->route.addr.dst_storage : st->id->route.addr.src_storage;
	if (!a->ss_family)
		a->ss_family = s->domain;
	return 0;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* Tells the peer, as soon as another message can be on its way. */
static int say(struct rs_stream *st, uint32_t what, int ms)
{
	int64_t end = now_ms() + ms;
	int err;

	for (;;) {
		rs_stream_progress(st);
		if (st->state != RS_OPEN)
			return 0;
		err = rs_send_control(st, what);
		if (err != -EAGAIN)
			return err;
		if (now_ms() >= end)
			return -ETIMEDOUT;
		err = rs_sleep(&st->s, end - now_ms());
		if (err && err != -EINTR && err != -ETIMEDOUT)
			return err;
	}
}

/* Sleeps until done, or the time is over. */
static void wait_until(struct rs_stream *st, bool (*done)(const struct rs_stream *st), int ms)
{
	int64_t end = now_ms() + ms, left;

	for (;;) {
		rs_stream_progress(st);
		left = end - now_ms();
		if (done(st) || left <= 0)
			return;
		switch (rs_sleep(&st->s, left)) {
		case 0:
		case -EINTR:
		case -ETIMEDOUT:
			break;
		default:
			return;
		}
	}
}

static bool has_opened(const struct rs_stream *st) { return st->state != RS_OPENING; }

/*
 * One that has been accepted ends as a connection does, once the peer has heard of it: else it is
 * refused. A peer that does not look keeps a program that does not wait for a moment only.
 */
static void await_peer(struct rs_stream *st, int ms)
{
	if (st->state == RS_OPENING && rs_is_accepted(st))
		wait_until(st, has_opened, st->s.nonblock && ms > GOODBYE_MS ? GOODBYE_MS : ms);
}

static int stream_shutdown(struct rs *s, int how)
{
	struct rs_stream *st = to_stream(s);
	uint32_t what = RS_CONTROL_DISCONNECT;
	int err;

	rs_stream_progress(st);
	await_peer(st, DRAIN_MS);
	if (st->state == RS_OVER)
		return 0;
	if (st->state != RS_OPEN)
		return -ENOTCONN;
	if (how == SHUT_RD || how == SHUT_RDWR)
		st->may_read = false;
	if (how == SHUT_WR || how == SHUT_RDWR) {
		if (!st->may_write)
			return 0;
		st->may_write = false;
		if (st->may_read)
			what = RS_CONTROL_SHUTDOWN;
		else
			st->said_bye = true;
		err = say(st, what, DRAIN_MS);
		if (err)
			return err;
	}
	rs_wake(s);
	return 0;
}

static bool all_sent(const struct rs_stream *st)
{
	return st->sq_free == st->send_size && !st->controls;
}

static bool drained(const struct rs_stream *st) { return st->state != RS_OPEN || all_sent(st); }
static bool has_ended(const struct rs_stream *st) { return st->ended; }

/* How long what was sent may take to be delivered, by SO_LINGER: 0: it is given up */
static int linger_ms(const struct rs *s)
{
	const struct linger *l = &s->opt.linger;

	if (!l->l_onoff)
		return DRAIN_MS;
	return l->l_linger > INT_MAX / 1000 ? INT_MAX : l->l_linger < 0 ? 0 : l->l_linger * 1000;
}

/*
 * What was sent is delivered before the connection ends: on RoCE what has completed is there, on
 * iWARP when the peer has ended it, too. To whom it is cut short the connection is reset: no
 * message says that it is over.
 */
static void stream_close(struct rs *s)
{
	struct rs_stream *st = to_stream(s);
	int ms = linger_ms(s);
	int64_t end = now_ms() + ms;

	if (ms)
		await_peer(st, ms);
	if (st->state == RS_OPEN && !st->said_bye && ms) {
		st->may_read = st->may_write = false;
		st->said_bye = true;
		(void)say(st, RS_CONTROL_DISCONNECT, end - now_ms()); /* it is over anyway */
	}
	if (st->state == RS_OPEN && ms)
		wait_until(st, drained, end - now_ms());
	if (!st->ended && st->cq && !rdma_disconnect(st->id) && st->messages && ms)
		wait_until(st, has_ended, GOODBYE_MS);
	rs_stream_over(st, 0);
	rs_free_mappings(st);
	rs_endpoint_free(st);
	if (st->id)
		rdma_destroy_id(st->id);
	st->id = NULL;
	rdma_destroy_event_channel(st->ch);
	st->ch = NULL;
	st->ended = true; /* no events are to be looked for */
	rs_wake(s);
}

/* One that has got no number is not closed yet: nobody has it, and its peer is told so at once. */
static void stream_free(struct rs *s)
{
	pthread_mutex_lock(&s->lock); /* which a wait gives back */
	if (to_stream(s)->ch) {
		rs_stream_over(to_stream(s), 0);
		stream_close(s);
	}
	pthread_mutex_unlock(&s->lock);
}

static const struct rs_ops stream_ops = {
	.bind = rs_stream_bind,
	.connect = rs_stream_connect,
	.send = rs_stream_send,
	.recv = rs_stream_recv,
	.ready = stream_ready,
	.arm = stream_arm,
	.fds = stream_fds,
	.name = stream_name,
	.shutdown = stream_shutdown,
	.close = stream_close,
	.free = stream_free,
};

/* domain 0: for a connection that has an id. */
struct rs *rs_new_stream(int domain)
{
	struct rs_stream *st = calloc(1, sizeof(*st));
	int flags, err;

	if (!st)
		return NULL;
	rs_init(&st->s, &stream_ops, domain, SOCK_STREAM);
	st->ch = rdma_create_event_channel();
	if (!st->ch) {
		free(st);
		return NULL;
	}
	flags = fcntl(st->ch->fd, F_GETFL);
	if (flags < 0 || fcntl(st->ch->fd, F_SETFL, flags | O_NONBLOCK) ||
	    (domain && rdma_create_id(st->ch, &st->id, st, RDMA_PS_TCP))) {
		err = errno;
		rdma_destroy_event_channel(st->ch);
		free(st);
		errno = err;
		return NULL;
	}
	st->s.fd = st->ch->fd;
	return &st->s;
}
