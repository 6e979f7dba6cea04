/*
 * Connections: what the program writes is sent, and the other way round. Either direction ends by
 * itself, and the socket when both have, or the program has closed its end.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "rsocketd.h"

enum { PIECE = 64 << 10 };

struct stream;

/* A direction. Calls return what read(2) and write(2) do, and do not wait. */
struct direction {
	ssize_t (*take)(const struct socket *s, void *buf, size_t len);
	ssize_t (*give)(const struct socket *s, const void *buf, size_t len);
	void (*ended)(struct stream *t, int err); /* no more comes: err is why, 0 if that is all */
	void (*refused)(struct stream *t, int err); /* nobody takes any more */
};

/* Octets on their way. */
struct way {
	const struct direction *to;
	uint8_t *buf;
	size_t at, len;
	bool ended; /* no more will come */
	bool full;  /* who is to take them does not now */
	bool empty; /* who gives them has none now */
};

struct stream {
	struct socket *s;
	struct way out, in; /* of the program, and to it */
	bool reset;	    /* there is nothing to be sent any more */
	bool said;	    /* the peer that the program sends no more */
	int err;	    /* of what was sent: it is told once, and who reads wants it */
};

/* Waits for the connection; false: there is none. */
static bool await(struct socket *s)
{
	uint8_t nothing[4096];
	int err = 0;
	socklen_t len = sizeof(err);
	ssize_t n;

	while (s->connecting) {
		struct pollfd p[2] = { { .fd = s->rs, .events = POLLOUT }, { .fd = s->end } };

		if (rpoll(p, 2, -1) < 0 && errno != EINTR)
			return false;
		if (p[1].revents)
			return false; /* the program has given it up */
		s->connecting = !p[0].revents;
	}
	if (rgetsockopt(s->rs, SOL_SOCKET, SO_ERROR, &err, &len))
		err = errno;
	if (err) {
		socket_verdict(s, err);
		return false;
	}
	while (s->filled) {
		n = read(s->end, nothing, s->filled < sizeof(nothing) ? s->filled : sizeof(nothing));
		if (n <= 0)
			return false;
		s->filled -= n;
	}
	return true;
}

static ssize_t take_program(const struct socket *s, void *buf, size_t len)
{
	return recv(s->end, buf, len, MSG_DONTWAIT);
}

static ssize_t give_peer(const struct socket *s, const void *buf, size_t len)
{
	return rsend(s->rs, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* An error: the program has gone with data that it did not read. */
static void program_ended(struct stream *t, int err)
{
	t->reset |= err != 0;
	t->out.ended = true;
}

static void peer_refused(struct stream *t, int err)
{
	t->err = err == EPIPE ? 0 : err;
	t->out.ended = true;
	shutdown(t->s->end, SHUT_RD);
}

static const struct direction outwards = { take_program, give_peer, program_ended, peer_refused };

static ssize_t take_peer(const struct socket *s, void *buf, size_t len)
{
	return rrecv(s->rs, buf, len, MSG_DONTWAIT);
}

static ssize_t give_program(const struct socket *s, const void *buf, size_t len)
{
	return send(s->end, buf, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void peer_ended(struct stream *t, int err)
{
	socket_verdict(t->s, err ? err : t->err);
	shutdown(t->s->end, SHUT_WR);
	t->in.ended = true;
	t->reset |= err != 0;
}

static void program_refused(struct stream *t, int err)
{
	(void)err; /* it does not read any more */
	t->in.ended = true;
}

static const struct direction inwards = { take_peer, give_program, peer_ended, program_refused };

/* Takes a piece of what comes: whether there was any, or its end. */
static bool take(struct stream *t, struct way *w)
{
	ssize_t n;

	if (!w->buf)
		w->buf = malloc(PIECE);
	if (!w->buf) {
		t->reset = true;
		return false;
	}
	n = w->to->take(t->s, w->buf, PIECE);
	w->empty = n < 0 && errno == EAGAIN;
	if (n > 0) {
		w->at = 0;
		w->len = n;
	} else if (!w->empty) {
		w->to->ended(t, n ? errno : 0);
	}
	return !w->empty;
}

/* Gives what there is of one: whether anybody has taken some, or will take no more. */
static bool give(struct stream *t, struct way *w)
{
	ssize_t n = w->to->give(t->s, w->buf + w->at, w->len);

	w->full = n < 0 && errno == EAGAIN;
	if (n > 0) {
		w->at += n;
		w->len -= n;
	} else if (!w->full) {
		w->len = 0;
		w->to->refused(t, n ? errno : 0);
	}
	return !w->full;
}

/* Whether there was anything to do. */
static bool step(struct stream *t, struct way *w)
{
	bool any = false;

	if (!w->len && !w->ended && !w->empty)
		any = take(t, w);
	if (w->len && !w->full)
		any |= give(t, w);
	return any;
}

/* Sleeps until one of what has stopped goes on; false: that is over. */
static bool sleep_on(struct stream *t)
{
	struct way *out = &t->out, *in = &t->in;
	struct pollfd p[2] = { { .fd = t->s->end }, { .fd = t->s->rs } };

	if (out->empty)
		p[0].events |= POLLIN;
	if (in->full)
		p[0].events |= POLLOUT;
	if (in->empty)
		p[1].events |= POLLIN;
	if (out->full || (out->ended && !out->len && !t->said)) /* to the latter: when it has opened */
		p[1].events |= POLLOUT;
	if (out->ended && in->ended)
		return false;
	/* a hang-up is told whether or not it is asked for */
	if (!out->empty && !in->full && !out->ended)
		p[0].fd = -1;
	if (!p[1].events)
		p[1].fd = -1;
	if (rpoll(p, 2, -1) < 0 && errno != EINTR)
		return false;
	if (out->ended && p[0].revents & (POLLHUP | POLLERR))
		return false; /* closed, after what was to be sent */
	if (p[0].revents & ~POLLOUT)
		out->empty = false;
	if (p[0].revents & ~POLLIN)
		in->full = false;
	if (p[1].revents & ~POLLOUT)
		in->empty = false;
	if (p[1].revents & ~POLLIN)
		out->full = false;
	return true;
}

/* Whether the program has closed its end, and gives up what is under way (SO_LINGER). */
static bool dropped(const struct socket *s)
{
	struct pollfd p = { .fd = s->end };
	struct linger l = { 0 };
	socklen_t len = sizeof(l);

	return !rgetsockopt(s->rs, SOL_SOCKET, SO_LINGER, &l, &len) && l.l_onoff && !l.l_linger &&
	       poll(&p, 1, 0) > 0;
}

static void carry(struct stream *t)
{
	bool any;

	do {
		any = step(t, &t->out);
		any |= step(t, &t->in);
		if (t->out.ended && !t->out.len && !t->said && !t->reset) {
			t->reset = dropped(t->s);
			/* a peer that has not heard yet that it is connected hears of this later */
			t->said = t->reset || !rshutdown(t->s->rs, SHUT_WR) || errno != ENOTCONN;
		}
	} while (!t->reset && (any || sleep_on(t)));
	if (t->reset || t->in.len)
		socket_cut(t->s); /* data that cannot be delivered any more */
}

void *stream_run(void *arg)
{
	struct stream t = { .s = arg, .out.to = &outwards, .in.to = &inwards };

	if (await(t.s)) {
		(void)rfcntl(t.s->rs, F_SETFL, O_NONBLOCK); /* so are those that are accepted */
		carry(&t);
	}
	free(t.out.buf);
	free(t.in.buf);
	/* the program hears of it now, the peer when all has been sent */
	socket_verdict(t.s, 0);
	socket_remove(t.s);
	close(t.s->end);
	t.s->end = -1;
	socket_free(t.s);
	return NULL;
}
