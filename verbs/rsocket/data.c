/* Streams: data that has come, and data that is sent. */
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

	(void)from; /* recvfrom(2) of TCP tells none */
	if (st->state < RS_OPENING)
		return -ENOTCONN;
	if (!st->ready || c->left > st->ready)
		rs_stream_progress(st);
	if (!c->left)
		return 0;
	if (!st->ready)
		return st->may_read || st->state == RS_OPENING ? -EAGAIN : -s->err;
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

/* What is in the send buffer, len octets, goes into the peer's. */
static int write_data(struct rs_stream *st, uint32_t len)
{
	struct rs_sge *t = &st->target[st->writing];
	struct ibv_sge sge = { .addr = (uintptr_t)st->sbuf + st->spos, .length = len,
			       .lkey = st->own->lkey };
	uint64_t addr = t->addr;
	uint32_t key = t->key;

	t->addr += len;
	t->length -= len;
	if (!t->length)
		st->writing = (st->writing + 1) % RS_OFFERS;
	st->tx_seq++;
	st->sq_free -= st->messages ? 2 : 1;
	st->sfree -= len;
	st->spos = (st->spos + len) % st->ssize;
	return rs_post(st, RS_SENT_DATA, len, &sge, addr, key, rs_msg(RS_MSG_DATA, len), 0);
}

static int why_not(const struct rs_stream *st)
{
	if (st->state == RS_OPENING)
		return -EAGAIN;
	if (st->state < RS_OPENING)
		return -ENOTCONN;
	if (st->state == RS_OPEN && st->may_write)
		return -EAGAIN;
	return st->s.err ? -st->s.err : -EPIPE;
}

ssize_t rs_stream_send(struct rs *s, struct rs_cursor *c, const struct sockaddr *to, socklen_t len)
{
	struct rs_stream *st = to_stream(s);
	size_t sent = 0, n;
	void *room;
	int err;

	if (to || len)
		return -EISCONN;
	if (!rs_can_send(st) || st->mappings)
		rs_stream_progress(st);
	err = rs_tell_mappings(st);
	if (!err && !c->left && (err = why_not(st)) == -EAGAIN)
		return 0; /* there is nothing to wait for */
	while (!err && c->left) {
		if (!rs_can_send(st) && !(rs_stream_progress(st) && rs_can_send(st))) {
			err = why_not(st);
			break;
		}
		n = c->left;
		if (n > st->target[st->writing].length)
			n = st->target[st->writing].length;
		room = rs_send_room(st, &n);
		rs_copy_out(c, room, n);
		err = write_data(st, n);
		if (err) {
			rs_stream_over(st, -err);
			break;
		}
		sent += n;
	}
	return sent ? (ssize_t)sent : err;
}

