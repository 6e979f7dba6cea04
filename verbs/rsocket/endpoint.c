/* Streams: the QP of a connection, its memory, requests and completions. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"
#include "vrnic_alloc.h"

static uint16_t clip(uint32_t n, uint32_t least, uint32_t most)
{
	return n < least ? least : n > most ? most : n;
}

static size_t pages(size_t n) { return (n + 4095) & ~(size_t)4095; }

static uint32_t receives(const struct rs_stream *st)
{
	/* the peer's data, and what it may say beside it */
	return st->s.opt.rq_size + 2 * RS_CONTROLS;
}

/*
 * One piece of memory, which the daemon has mapped: what the peer writes into (its offers, iomaps
 * behind them, the receive buffer), and behind that our own (the send buffer, messages).
 */
static int make_memory(struct rs_stream *st)
{
	const struct rs_options *o = &st->s.opt;
	size_t arrays = pages(RS_OFFERS * sizeof(*st->offers) +
			      o->iomap_size * sizeof(*st->iomaps));
	size_t shared, own;

	st->rsize = (o->rcvbuf < 2 * RS_LEAST_SPACE ? 2 * RS_LEAST_SPACE : o->rcvbuf) & ~1u;
	st->ssize = o->sndbuf < 2 * RS_LEAST_SPACE ? 2 * RS_LEAST_SPACE : o->sndbuf;
	shared = pages(arrays + st->rsize);
	own = pages(st->ssize) + pages(receives(st) * sizeof(*st->msgs));
	st->memory = vrnic_alloc(shared + own);
	if (!st->memory)
		return -errno;
	st->shared = ibv_reg_mr(st->id->pd, st->memory, shared,
				IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	st->own = ibv_reg_mr(st->id->pd, st->memory + shared, own, IBV_ACCESS_LOCAL_WRITE);
	if (!st->shared || !st->own)
		return -errno;
	st->offers = (struct rs_sge *)st->memory;
	st->iomaps = (struct rs_iomap *)(st->offers + RS_OFFERS);
	st->niomaps = o->iomap_size;
	st->rbuf = st->memory + arrays;
	st->sbuf = st->memory + shared;
	st->msgs = (uint32_t *)(st->sbuf + pages(st->ssize));
	st->granted = st->freed = st->offer_at = st->rsize / 2;
	st->sfree = st->ssize;
	return 0;
}

static int make_cq(struct rs_stream *st)
{
	struct ibv_context *verbs = st->id->verbs;
	int flags;

	st->comp = ibv_create_comp_channel(verbs);
	if (!st->comp)
		return -errno;
	flags = fcntl(st->comp->fd, F_GETFL);
	if (flags < 0 || fcntl(st->comp->fd, F_SETFL, flags | O_NONBLOCK))
		return -errno;
	st->cq = ibv_create_cq(verbs, 2 * (st->s.opt.sq_size + 2 * RS_CONTROLS) + receives(st),
			       NULL, st->comp, 0);
	return st->cq ? 0 : -errno;
}

int rs_endpoint_make(struct rs_stream *st)
{
	struct rs_options *o = &st->s.opt;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	uint32_t i;
	int err;

	o->sq_size = clip(o->sq_size, RS_LEAST_QUEUE, RS_MOST_QUEUE);
	o->rq_size = clip(o->rq_size, RS_LEAST_QUEUE, RS_MOST_QUEUE);
	st->messages = st->id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
	st->sq_free = st->send_size = o->sq_size;
	err = make_cq(st);
	if (err)
		return err;
	attr.send_cq = attr.recv_cq = st->cq;
	attr.cap.max_send_wr = o->sq_size + 2 * RS_CONTROLS;
	attr.cap.max_recv_wr = receives(st);
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.cap.max_inline_data = o->inline_size < RS_INLINE ? RS_INLINE : o->inline_size;
	if (rdma_create_qp(st->id, NULL, &attr))
		return -errno;
	err = make_memory(st);
	for (i = 0; !err && i < receives(st); i++)
		err = rs_post_recv(st, i);
	return err;
}

void rs_endpoint_free(struct rs_stream *st)
{
	if (st->id && st->id->qp)
		rdma_destroy_qp(st->id);
	if (st->cq)
		ibv_destroy_cq(st->cq);
	if (st->comp)
		ibv_destroy_comp_channel(st->comp);
	if (st->shared)
		ibv_dereg_mr(st->shared);
	if (st->own)
		ibv_dereg_mr(st->own);
	vrnic_free(st->memory);
	st->cq = NULL;
	st->comp = NULL;
	st->shared = st->own = NULL;
	st->memory = NULL;
}

void rs_endpoint_describe(struct rs_stream *st, struct rs_conn_data *d)
{
	memset(d, 0, sizeof(*d));
	d->version = RS_VERSION;
	d->flags = RS_FLAG_IOMAP | (__BYTE_ORDER == __BIG_ENDIAN ? RS_FLAG_NET : 0);
	d->credits = htobe16(st->s.opt.rq_size);
	d->iomap_size = rs_pack_size(st->niomaps);
	d->offers = rs_net((struct rs_sge){ (uintptr_t)st->offers, st->shared->rkey, RS_OFFERS });
	d->data_buf =
		rs_net((struct rs_sge){ (uintptr_t)st->rbuf, st->shared->rkey, st->rsize / 2 });
}

/* What the peer has said of itself; false: it is not one of ours. */
bool rs_endpoint_learn(struct rs_stream *st, const void *data, size_t len)
{
	struct rs_conn_data d;

	if (!data || len < sizeof(d))
		return false;
	memcpy(&d, data, sizeof(d));
	if (d.version != RS_VERSION)
		return false;
	st->peer_offers = rs_net(d.offers);
	if (st->peer_offers.length < RS_OFFERS)
		return false; /* the second half could not be told while the first is in use */
	st->peer_next = 1;
	st->swap = (d.flags & RS_FLAG_NET) != (__BYTE_ORDER == __BIG_ENDIAN ? RS_FLAG_NET : 0);
	if (d.flags & RS_FLAG_IOMAP) {
		st->peer_iomaps = st->peer_offers;
		st->peer_iomaps.addr += sizeof(struct rs_sge) * (uint64_t)st->peer_offers.length;
		st->peer_iomaps.length = rs_unpack_size(d.iomap_size);
	}
	st->target[0] = rs_net(d.data_buf);
	st->taking = 1;
	st->tx_end = be16toh(d.credits);
	return true;
}

int rs_post_recv(struct rs_stream *st, uint32_t slot)
{
	struct ibv_sge sge = { .addr = (uintptr_t)&st->msgs[slot], .length = sizeof(*st->msgs),
			       .lkey = st->own->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = st->messages ? 1 : 0 };
	struct ibv_recv_wr *bad;

	return -st->id->verbs->ops.post_recv(st->id->qp, &wr, &bad);
}

int rs_post(struct rs_stream *st, enum rs_sent kind, uint32_t gives_back, struct ibv_sge *sge,
	    uint64_t addr, uint32_t key, uint32_t msg, unsigned int flags)
{
	struct ibv_sge small = { .addr = (uintptr_t)&msg, .length = sizeof(msg) };
	struct ibv_send_wr w[2] = { 0 }, *first = &w[1], *bad;

	w[1].wr_id = (uint64_t)kind << RS_SENT_SHIFT | gives_back;
	w[1].send_flags = IBV_SEND_SIGNALED;
	if (st->messages) {
		w[1].opcode = IBV_WR_SEND;
		w[1].send_flags |= IBV_SEND_INLINE;
		w[1].sg_list = &small;
		w[1].num_sge = 1;
		first = sge ? &w[0] : &w[1];
	} else {
		w[1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		w[1].imm_data = htobe32(msg);
	}
	if (sge) {
		first->sg_list = sge;
		first->num_sge = 1;
		first->send_flags |= flags;
		first->wr.rdma.remote_addr = addr;
		first->wr.rdma.rkey = key;
		if (first == &w[0]) {
			w[0].opcode = IBV_WR_RDMA_WRITE;
			w[0].next = &w[1];
		}
	}
	return -st->id->verbs->ops.post_send(st->id->qp, first, &bad);
}

int rs_post_write(struct rs_stream *st, struct ibv_sge *sge, uint64_t addr, uint32_t key)
{
	struct ibv_send_wr w = { .wr_id = (uint64_t)RS_SENT_DATA << RS_SENT_SHIFT | sge->length,
				 .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				 .sg_list = sge, .num_sge = 1 };
	struct ibv_send_wr *bad;

	w.wr.rdma.remote_addr = addr;
	w.wr.rdma.rkey = key;
	return -st->id->verbs->ops.post_send(st->id->qp, &w, &bad);
}
