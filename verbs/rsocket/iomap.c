/*
 * Memory that the peer of a stream writes into directly. riomap gives memory an offset, and tells
 * the peer by a Write into its array of iomaps; riowrite looks an offset up in the array that the
 * peer writes.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "stream.h"

/* One that the peer has not used, or -1. */
static int free_index(const struct rs_stream *st)
{
	const struct rs_mapping *m;
	uint32_t i;

	for (i = 0; i < st->peer_iomaps.length; i++) {
		for (m = st->mappings; m && m->index != (int)i;)
			m = m->next;
		if (!m)
			return i;
	}
	return -1;
}

static int map(struct rs_stream *st, void *buf, size_t len, int prot, uint64_t offset)
{
	int access = IBV_ACCESS_LOCAL_WRITE | (prot & PROT_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0);
	struct rs_mapping *m, **end;
	int index = -1;

	if (prot & ~PROT_WRITE || len > UINT32_MAX)
		return -EINVAL;
	rs_stream_progress(st);
	if (st->state != RS_OPEN && st->state != RS_OPENING)
		return -ENOTCONN;
	if (!st->peer_offers.length)
		return -EAGAIN; /* how many it has is in its answer */
	if (prot & PROT_WRITE) {
		index = free_index(st);
		if (index < 0)
			return -ENOMEM;
	}
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->mr = ibv_reg_mr(st->id->pd, buf, len, access);
	if (!m->mr) {
		free(m);
		return -errno;
	}
	m->index = index;
	m->offset = offset;
	m->told = index < 0;
	for (end = &st->mappings; *end;)
		end = &(*end)->next;
	*end = m;
	return 0;
}

static int tell(struct rs_stream *st, struct rs_mapping *m)
{
	struct rs_iomap e = { m->offset, { (uintptr_t)m->mr->addr, m->mr->rkey, m->mr->length } };
	struct ibv_sge sge = { .addr = (uintptr_t)&e, .length = sizeof(e) };

	if (st->swap) {
		e.offset = __builtin_bswap64(e.offset);
		e.sge = rs_swapped(e.sge);
	}
	m->told = true;
	st->tx_seq++;
	st->sq_free -= st->messages ? 2 : 1;
	return rs_post(st, RS_SENT_DATA, 0, &sge,
		       st->peer_iomaps.addr + sizeof(e) * (uint64_t)m->index, st->peer_iomaps.key,
		       rs_msg(RS_MSG_IOMAP, m->index), IBV_SEND_INLINE);
}

/* In front of data, so that the peer that has read it finds them; there may be no more of that. */
int rs_tell_mappings(struct rs_stream *st)
{
	struct rs_mapping *m;
	int err = 0;

	if (st->state != RS_OPENING && !st->may_write)
		return 0;
	for (m = st->mappings; m && !err; m = m->next) {
		if (m->told)
			continue;
		if (!rs_can_send(st))
			return -EAGAIN;
		err = tell(st, m);
	}
	return err;
}

void rs_free_mappings(struct rs_stream *st)
{
	struct rs_mapping *m;

	while ((m = st->mappings)) {
		st->mappings = m->next;
		ibv_dereg_mr(m->mr);
		free(m);
	}
}

/* offset -1: the address is the offset. */
off_t riomap(int socket, void *buf, size_t len, int prot, int flags, off_t offset)
{
	struct rs *s = rs_enter(socket);
	int err;

	(void)flags;
	if (!s)
		return -1;
	if (offset == -1)
		offset = (uintptr_t)buf;
	err = -EOPNOTSUPP;
	if (s->type == SOCK_STREAM)
		do
			err = map(to_stream(s), buf, len, prot, offset);
		while (err == -EAGAIN && !(err = rs_wait(s, err, 0)));
	rs_leave(s);
	return err ? rs_return(err) : offset;
}

int riounmap(int socket, void *buf, size_t len)
{
	struct rs *s = rs_enter(socket);
	struct rs_mapping **p, *m;
	int err = -EINVAL;

	if (!s)
		return -1;
	if (s->type == SOCK_STREAM)
		for (p = &to_stream(s)->mappings; (m = *p); p = &m->next)
			if (m->mr->addr == buf && m->mr->length == len) {
				*p = m->next;
				ibv_dereg_mr(m->mr);
				free(m);
				err = 0;
				break;
			}
	rs_leave(s);
	return rs_return(err);
}

/* The peer's memory at offset: the address, the key, and how much there is. False: none. */
static bool find(const struct rs_stream *st, uint64_t offset, struct rs_sge *at)
{
	uint16_t i;

	for (i = 0; i < st->niomaps; i++) {
		const volatile struct rs_iomap *e = &st->iomaps[i];
		struct rs_iomap m = { e->offset, { e->sge.addr, e->sge.key, e->sge.length } };

		if (offset >= m.offset && offset - m.offset < m.sge.length) {
			*at = m.sge;
			at->addr += offset - m.offset;
			at->length -= offset - m.offset;
			return true;
		}
	}
	return false;
}

static ssize_t write_at(struct rs_stream *st, struct rs_cursor *c, uint64_t *offset)
{
	struct rs_sge at;
	struct ibv_sge sge;
	ssize_t sent = 0;
	int err = 0;
	size_t n;
	void *room;

	rs_stream_progress(st);
	err = rs_tell_mappings(st);
	while (!err && c->left) {
		if (st->state != RS_OPEN || !st->may_write)
			err = st->state == RS_OPENING ? -EAGAIN : -ECONNRESET;
		else if (!find(st, *offset, &at))
			err = -EINVAL;
		else if (!rs_can_send(st) && !(rs_stream_progress(st) && rs_can_send(st)))
			err = -EAGAIN;
		if (err)
			break;
		n = c->left < at.length ? c->left : at.length;
		room = rs_send_room(st, &n);
		rs_copy_out(c, room, n);
		sge = (struct ibv_sge){ .addr = (uintptr_t)room, .length = n,
					.lkey = st->own->lkey };
		st->sfree -= n;
		st->spos = (st->spos + n) % st->ssize;
		st->sq_free -= st->messages ? 2 : 1;
		err = rs_post_write(st, &sge, at.addr, at.key);
		if (err)
			rs_stream_over(st, -err);
		sent += n;
		*offset += n;
	}
	return sent ? sent : err;
}

/* All of it, unless the socket does not wait, or there is no such offset. */
size_t riowrite(int socket, const void *buf, size_t count, off_t offset, int flags)
{
	struct iovec v = { (void *)buf, count };
	struct rs *s = rs_enter(socket);
	uint64_t at = offset;
	ssize_t r, sent = 0;
	struct rs_cursor c;

	if (!s)
		return -1;
	if (s->type != SOCK_STREAM || !rs_cursor_init(&c, &v, 1)) {
		rs_leave(s);
		return rs_return(-EINVAL);
	}
	do {
		r = write_at(to_stream(s), &c, &at);
		if (r > 0)
			sent += r;
	} while (c.left && (r > 0 || (r == -EAGAIN && !(r = rs_wait(s, r, flags)))));
	rs_leave(s);
	return sent ? sent : rs_return(r);
}
