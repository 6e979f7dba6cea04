/* Streams: data that has come. */
#include "stream.h"

/* The next len octets, which stay. */
static void peek(const struct rs_stream *st, struct rs_cursor *c, uint32_t len)
{
	uint32_t first = st->rsize - st->head;

	if (first > len)
		first = len;
	rs_copy_in(c, st->rbuf + st->head, first);
	rs_copy_in(c, st->rbuf, len - first);
}

ssize_t rs_stream_recv(struct rs *s, struct rs_cursor *c, int flags, struct sockaddr_storage *from)
{
	struct rs_stream *st = to_stream(s);
	uint32_t n;
	int err;

	(void)from; /* recvfrom(2) of TCP tells none */
	if (st->state < RS_OPENING)
		return -ENOTCONN;
	if (!st->ready || c->left > st->ready)
		rs_stream_progress(st);
	if (!c->left)
		return 0;
	if (!st->ready) {
		if (st->may_read || st->state == RS_OPENING)
			return -EAGAIN;
		err = s->err;
		s->err = 0;
		return -err;
	}
	n = c->left < st->ready ? c->left : st->ready;
	peek(st, c, n);
	if (flags & MSG_PEEK)
		return n;
	st->head = (st->head + n) % st->rsize;
	st->ready -= n;
	st->freed += n;
	rs_give_credit(st);
	return n;
}
