/* Streams: who may send how much, and what the peer is told of it. */
#include <string.h>

#include "stream.h"

/*
 * Messages of data leave a few of the peer's receives for those of control, which have no credits
 * of their own.
 */
bool rs_can_send(const struct rs_stream *st)
{
	return st->state == RS_OPEN && st->may_write && st->sq_free >= 2 &&
	       st->sfree >= RS_LEAST_SPACE && (uint16_t)(st->tx_end - st->tx_seq) > RS_CONTROLS &&
	       st->target[st->writing].length;
}

/*
 * The peer writes an entry when it has read all of the buffer that was offered there before, so
 * each is taken when a message has come, and emptied.
 */
void rs_take_offers(struct rs_stream *st)
{
	volatile struct rs_sge *o;
	struct rs_sge *t;

	for (;;) {
		o = &st->offers[st->taking];
		t = &st->target[st->taking];
		if (t->length || !o->length)
			return;
		*t = (struct rs_sge){ o->addr, o->key, o->length };
		o->length = 0;
		st->taking = (st->taking + 1) % RS_OFFERS;
	}
}

void *rs_send_room(struct rs_stream *st, size_t *len)
{
	uint32_t end = st->ssize - st->spos;

	if (*len > RS_MOST_WRITE)
		*len = RS_MOST_WRITE;
	if (*len > st->sfree)
		*len = st->sfree;
	if (*len > end)
		*len = end;
	return st->sbuf + st->spos;
}

int rs_send_control(struct rs_stream *st, uint32_t what)
{
	int err;

	if (st->controls == RS_CONTROLS)
		return -EAGAIN;
	st->controls++;
	err = rs_post(st, RS_SENT_CONTROL, 1, NULL, 0, 0, rs_msg(RS_MSG_CONTROL, what), 0);
	if (err)
		rs_stream_over(st, -err);
	return err;
}

/*
 * Offers the half of the buffer that has been read, or says that messages have been. Which of both
 * the peer finds out by looking at its array.
 */
void rs_give_credit(struct rs_stream *st)
{
	uint32_t half = st->rsize / 2, msg;
	struct rs_sge offer = { (uintptr_t)st->rbuf + st->offer_at, 0, half };
	struct ibv_sge sge = { .addr = (uintptr_t)&offer, .length = sizeof(offer) };
	bool has_half = st->freed >= half;
	unsigned int places = has_half && st->messages ? 2 : 1;
	int err;

	if (st->state != RS_OPEN || st->controls + places > RS_CONTROLS)
		return;
	if (!has_half && (uint16_t)(st->rx_seq - st->rx_told) < st->s.opt.rq_size / 2)
		return;
	msg = rs_msg(RS_MSG_CREDIT, (uint16_t)(st->rx_seq + st->s.opt.rq_size));
	st->rx_told = st->rx_seq;
	st->controls += places;
	if (!has_half) {
		err = rs_post(st, RS_SENT_CONTROL, places, NULL, 0, 0, msg, 0);
	} else {
		offer.key = st->shared->rkey;
		if (st->swap)
			offer = rs_swapped(offer);
		st->freed -= half;
		st->granted += half;
		st->offer_at = half - st->offer_at; /* the halves are at 0 and half */
		err = rs_post(st, RS_SENT_CONTROL, places, &sge,
			      st->peer_offers.addr + sizeof(offer) * (uint64_t)st->peer_next,
			      st->peer_offers.key, msg, IBV_SEND_INLINE);
		if (++st->peer_next == st->peer_offers.length)
			st->peer_next = 0;
	}
	if (err)
		rs_stream_over(st, -err);
}

static void on_control(struct rs_stream *st, uint32_t what)
{
	if (what == RS_CONTROL_DISCONNECT)
		rs_stream_over(st, 0);
	else if (what == RS_CONTROL_SHUTDOWN && !st->may_write)
		rs_stream_over(st, 0);
	else if (what == RS_CONTROL_SHUTDOWN)
		st->may_read = false;
}

void rs_stream_message(struct rs_stream *st, uint32_t msg)
{
	uint32_t value = rs_msg_value(msg);

	switch (rs_msg_type(msg)) {
	case RS_MSG_DATA:
		if (value > st->granted) {
			rs_stream_over(st, EPROTO);
			return;
		}
		st->granted -= value;
		st->ready += value;
		st->rx_seq++;
		break;
	case RS_MSG_CREDIT:
		st->tx_end = value;
		rs_take_offers(st);
		break;
	case RS_MSG_IOMAP: /* riowrite looks at the array; the peer counts it as data */
		st->rx_seq++;
		break;
	case RS_MSG_CONTROL:
		on_control(st, value);
		break;
	default:
		rs_stream_over(st, EPROTO);
	}
}
