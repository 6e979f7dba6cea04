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

/* Octets on their way in one direction. */
struct way {
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

static bool room(struct way *w)
{
	if (!w->buf)
		w->buf = malloc(PIECE);
	return w->buf;
}

/* A step of what the program has written: whether there was one. */
static bool step_out(struct stream *t)
{
	struct way *w = &t->out;
	ssize_t n;

	if (!w->len && !w->ended && !w->empty) {
		if (!room(w)) {
			t->reset = true;
			return false;
		}
		n = recv(t->s->end, w->buf, PIECE, MSG_DONTWAIT);
		if (n > 0) {
			w->at = 0;
			w->len = n;
		} else if (!n) {
			w->ended = true;
		} else if (errno == EAGAIN) {
			w->empty = true;
			return false;
		} else {
			t->reset = true; /* the program has gone with data that it did not read */
			return false;
		}
	}
	if (w->len && !w->full) {
		n = rsend(t->s->rs, w->buf + w->at, w->len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n > 0) {
			w->at += n;
			w->len -= n;
		} else if (n < 0 && errno == EAGAIN) {
			w->full = true;
			return false;
		} else {
			t->err = n < 0 && errno != EPIPE ? errno : 0;
			w->len = 0;
			w->ended = true;
			shutdown(t->s->end, SHUT_RD);
		}
		return true;
	}
	return false;
}

static void in_over(struct stream *t, int err)
{
	socket_verdict(t->s, err);
	shutdown(t->s->end, SHUT_WR);
	t->in.ended = true;
}

/* A step of what the peer has sent. */
static bool step_in(struct stream *t)
{
	struct way *w = &t->in;
	ssize_t n;

	if (!w->len && !w->ended && !w->empty) {
		if (!room(w)) {
			t->reset = true;
			return false;
		}
		n = rrecv(t->s->rs, w->buf, PIECE, MSG_DONTWAIT);
		if (n > 0) {
			w->at = 0;
			w->len = n;
		} else if (n < 0 && errno == EAGAIN) {
			w->empty = true;
			return false;
		} else {
			in_over(t, n ? errno : t->err);
			t->reset |= n < 0;
			return true;
		}
	}
	if (w->len && !w->full) {
		n = send(t->s->end, w->buf + w->at, w->len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n > 0) {
			w->at += n;
			w->len -= n;
		} else if (n < 0 && errno == EAGAIN) {
			w->full = true;
			return false;
		} else {
			w->len = 0; /* the program does not read any more */
			w->ended = true;
		}
		return true;
	}
	return false;
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
	if (out->full)
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

/* Data that cannot be delivered any more is told the peer so. */
static void cut(const struct socket *s)
{
	struct linger now = { .l_onoff = 1 };

	(void)rsetsockopt(s->rs, SOL_SOCKET, SO_LINGER, &now, sizeof(now)); /* it is over anyway */
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
	bool said = false, any;

	do {
		any = step_out(t);
		any |= step_in(t);
		if (t->out.ended && !t->out.len && !said && !t->reset) {
			said = true;
			t->reset = dropped(t->s);
			if (!t->reset)
				(void)rshutdown(t->s->rs, SHUT_WR); /* or it is over anyway */
		}
	} while (!t->reset && (any || sleep_on(t)));
	if (t->reset || t->in.len)
		cut(t->s);
}

void *stream_run(void *arg)
{
	struct stream t = { .s = arg };

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
