/*
 * Datagrams: the queue pair and the UDP port of an address; whom something was sent to from there,
 * or has come from.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "datagram.h"
#include "vrnic_alloc.h"

enum {
	GRH = sizeof(struct ibv_grh), /* in front of what is received */
	RECEIVE = 2112,		      /* GRH and a datagram, in whole lines */
	LEAST = 16,		      /* receives, and sends */
	INLINE = 64,
	MOST_DESTS = 4096, /* that are remembered */
	TRIES = 16, /* of numbers that are free at one address, and not at another */
};
_Static_assert(RECEIVE >= RS_DATAGRAM + GRH && RECEIVE % 64 == 0, "a receive has room for all");

static uint32_t slots(uint32_t octets, uint16_t most)
{
	uint32_t n = octets / RS_DATAGRAM;

	return n > most ? most : n < LEAST ? LEAST : n;
}

static void make_header(struct rs_port *p)
{
	const struct sockaddr_in *in = (void *)&p->at;
	const struct sockaddr_in6 *in6 = (void *)&p->at;
	struct rs_datagram_header *h = &p->header;

	h->length = rs_header_len(p->at.ss_family);
	if (p->at.ss_family == AF_INET) {
		h->version = 4;
		h->port = in->sin_port;
		memcpy(h->addr, &in->sin_addr, 4);
	} else {
		h->version = 6;
		h->port = in6->sin6_port;
		memcpy(h->addr, &in6->sin6_flowinfo, 4);
		memcpy(h->addr + 4, &in6->sin6_addr, 16);
	}
}

/* As RoCEv2 has an address of IP as a GID. */
static union ibv_gid gid_of(const struct sockaddr_storage *a)
{
	union ibv_gid gid = { .raw = { 0 } };

	if (a->ss_family == AF_INET) {
		gid.raw[10] = gid.raw[11] = 0xff;
		memcpy(gid.raw + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
	} else {
		memcpy(gid.raw, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
	}
	return gid;
}

/* What of the device it is, and how long a datagram may be. */
static int look_at_device(struct rs_port *p)
{
	struct ibv_context *verbs = p->id->verbs;
	union ibv_gid gid, own = gid_of(&p->at);
	struct ibv_port_attr attr;
	int i;

	memset(&attr, 0, sizeof(attr));
	i = ibv_query_port(verbs, p->id->port_num, &attr);
	if (i)
		return -i;
	p->most = 128u << attr.active_mtu;
	if (p->most > RS_DATAGRAM)
		p->most = RS_DATAGRAM;
	for (i = 0; i < attr.gid_tbl_len; i++)
		if (!ibv_query_gid(verbs, p->id->port_num, i, &gid) &&
		    !memcmp(&gid, &own, sizeof(gid))) {
			p->gid = i;
			return 0;
		}
	return -EADDRNOTAVAIL;
}

static int make_memory(struct rs_port *p)
{
	const struct rs_options *o = p->opt;
	uint32_t i;

	p->receives = slots(o->rcvbuf, o->rq_size);
	p->sends = slots(o->sndbuf, o->sq_size);
	p->in = calloc(p->receives, sizeof(*p->in));
	p->idle = calloc(p->sends, sizeof(*p->idle));
	p->memory = vrnic_alloc(p->receives * RECEIVE + p->sends * RS_DATAGRAM);
	if (!p->in || !p->idle || !p->memory)
		return -ENOMEM;
	for (i = 0; i < p->receives; i++) {
		p->in[i].port = p;
		p->in[i].data = p->memory + i * RECEIVE + GRH;
	}
	for (i = 0; i < p->sends; i++)
		p->idle[p->nidle++] = i;
	p->mr = ibv_reg_mr(p->id->pd, p->memory, p->receives * RECEIVE + p->sends * RS_DATAGRAM,
			   IBV_ACCESS_LOCAL_WRITE);
	return p->mr ? 0 : -errno;
}

static int make_qp(struct rs_port *p)
{
	struct ibv_context *verbs = p->id->verbs;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD };
	int flags;

	p->comp = ibv_create_comp_channel(verbs);
	if (!p->comp)
		return -errno;
	flags = fcntl(p->comp->fd, F_GETFL);
	if (flags < 0 || fcntl(p->comp->fd, F_SETFL, flags | O_NONBLOCK))
		return -errno;
	p->cq = ibv_create_cq(verbs, p->receives + p->sends, NULL, p->comp, 0);
	if (!p->cq)
		return -errno;
	attr.send_cq = attr.recv_cq = p->cq;
	attr.cap.max_send_wr = p->sends;
	attr.cap.max_recv_wr = p->receives;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	attr.cap.max_inline_data = INLINE;
	return rdma_create_qp(p->id, NULL, &attr) ? -errno : 0;
}

static int watch(struct rs_datagram *dg, int fd)
{
	struct epoll_event e = { .events = EPOLLIN };

	return epoll_ctl(dg->epoll, EPOLL_CTL_ADD, fd, &e) ? -errno : 0;
}

static void port_free(struct rs_port *p)
{
	if (p->udp >= 0)
		close(p->udp);
	if (p->id->qp)
		rdma_destroy_qp(p->id);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->comp)
		ibv_destroy_comp_channel(p->comp);
	if (p->mr)
		ibv_dereg_mr(p->mr);
	vrnic_free(p->memory);
	free(p->in);
	free(p->idle);
	rdma_destroy_id(p->id);
	free(p);
}

int rs_port_make(struct rs_datagram *dg, const struct sockaddr_storage *at)
{
	struct rs_port *p = calloc(1, sizeof(*p));
	uint32_t i;
	int err;

	if (!p)
		return -ENOMEM;
	p->udp = -1;
	p->opt = &dg->s.opt;
	if (rdma_create_id(dg->ch, &p->id, NULL, RDMA_PS_UDP)) {
		free(p);
		return -errno;
	}
	p->at = *at;
	err = rdma_bind_addr(p->id, (struct sockaddr *)&p->at) ? -errno : 0;
	p->at = p->id->route.addr.src_storage;
	if (!err)
		err = -cm_udp_open(p->id, &p->udp);
	if (!err)
		err = look_at_device(p);
	if (!err)
		err = make_memory(p);
	if (!err)
		err = make_qp(p);
	for (i = 0; !err && i < p->receives; i++)
		err = rs_port_receive(p, i);
	if (!err)
		err = watch(dg, p->udp);
	if (!err)
		err = watch(dg, p->comp->fd);
	if (err) {
		port_free(p);
		return err;
	}
	make_header(p);
	p->next = dg->ports;
	dg->ports = p;
	return 0;
}

void rs_ports_free(struct rs_datagram *dg)
{
	struct rs_port *p;

	while ((p = dg->ports)) {
		dg->ports = p->next;
		port_free(p);
	}
}

static bool is_local(const union ibv_gid *gid)
{
	return gid->raw[0] == 0xfe && gid->raw[1] == 0x80;
}

/* The address of a GID, if it is one of the family that a socket can be bound to. */
static bool address_of(const union ibv_gid *gid, int family, struct sockaddr_storage *a)
{
	static const uint8_t mapped[12] = { [10] = 0xff, 0xff }, none[16];
	bool is4 = !memcmp(gid->raw, mapped, sizeof(mapped));

	memset(a, 0, sizeof(*a));
	if (is4 != (family == AF_INET) || is_local(gid) || !memcmp(gid->raw, none, sizeof(none)))
		return false;
	a->ss_family = family;
	if (is4)
		memcpy(&((struct sockaddr_in *)a)->sin_addr, gid->raw + 12, 4);
	else
		memcpy(&((struct sockaddr_in6 *)a)->sin6_addr, gid->raw, 16);
	return true;
}

/* Those of a device. sin_port and sin6_port are at the same place. */
static int make_of(struct rs_datagram *dg, struct ibv_context *verbs, uint16_t *number)
{
	struct sockaddr_storage a;
	union ibv_gid gid;
	int i, err;

	if (verbs->device->transport_type != IBV_TRANSPORT_IB)
		return 0;
	for (i = 0; !ibv_query_gid(verbs, 1, i, &gid); i++) {
		struct rs_port *p = dg->ports;

		if (!address_of(&gid, dg->s.domain, &a))
			continue;
		while (p && memcmp(gid.raw, gid_of(&p->at).raw, sizeof(gid)))
			p = p->next;
		if (p)
			continue; /* an address has an entry for each version of RoCE */
		((struct sockaddr_in *)&a)->sin_port = *number;
		err = rs_port_make(dg, &a);
		if (err)
			return err;
		*number = dg->ports->header.port;
	}
	return 0;
}

int rs_ports_make(struct rs_datagram *dg, uint16_t number)
{
	struct ibv_context **list = rdma_get_devices(NULL);
	int tries, i, err = -ENODEV;

	if (!list)
		return -errno;
	for (tries = 0; tries < TRIES; tries++) {
		uint16_t n = number;

		for (i = err = 0; list[i] && !err; i++)
			err = make_of(dg, list[i], &n);
		if (!err)
			break;
		rs_ports_free(dg);
		if (err != -EADDRINUSE || number)
			break;
	}
	rdma_free_devices(list);
	return !err && !dg->ports ? -ENODEV : err;
}

int rs_port_receive(struct rs_port *p, uint32_t slot)
{
	struct ibv_sge sge = { .addr = (uintptr_t)p->memory + slot * RECEIVE,
			       .length = GRH + RS_DATAGRAM, .lkey = p->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	return -p->id->verbs->ops.post_recv(p->id->qp, &wr, &bad);
}

/* It takes as long as somebody has to be asked where d is. */
static int resolve(struct rs_port *p, struct rs_dest *d)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = p->id->port_num };

	attr.grh.dgid = gid_of(&d->at);
	attr.grh.sgid_index = p->gid;
	attr.grh.hop_limit = 64;
	attr.grh.traffic_class = p->opt->tos;
	d->ah = ibv_create_ah(p->id->pd, &attr);
	return d->ah ? 0 : -errno;
}

int rs_port_send(struct rs_port *p, struct rs_dest *d, struct rs_cursor *c)
{
	uint32_t len = p->header.length + c->left, slot;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_sge sge = { .length = len, .lkey = p->mr->lkey };
	uint8_t *b;
	int err;

	if (!d->ah && (err = resolve(p, d)))
		return err;
	if (!p->nidle)
		return -EAGAIN;
	slot = p->idle[p->nidle - 1];
	b = p->memory + p->receives * RECEIVE + slot * RS_DATAGRAM;
	memcpy(b, &p->header, p->header.length);
	rs_copy_out(c, b + p->header.length, c->left);
	sge.addr = (uintptr_t)b;
	wr.wr_id = p->receives + slot;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	if (len <= INLINE)
		wr.send_flags |= IBV_SEND_INLINE;
	wr.wr.ud.ah = d->ah;
	wr.wr.ud.remote_qpn = d->qpn;
	wr.wr.ud.remote_qkey = RS_DATAGRAM_QKEY;
	err = p->id->verbs->ops.post_send(p->id->qp, &wr, &bad);
	if (!err)
		p->nidle--;
	return -err;
}

void rs_port_say(struct rs_port *p, const struct sockaddr_storage *to, unsigned int op,
		 struct rs_cursor *c)
{
	struct rs_udp_header h = { .tag = htobe32(RS_UDP_TAG), .version = p->header.version, .op = op,
				   .length = rs_udp_len(p->at.ss_family),
				   .qpn = htobe32(p->id->qp->qp_num) };
	uint8_t data[RS_DATAGRAM];
	struct iovec v[2] = { { &h, h.length }, { data, c ? c->left : 0 } };

	if (p->at.ss_family == AF_INET)
		memcpy(h.addr, p->header.addr, 4);
	else
		memcpy(h.addr, p->header.addr + 4, 16);
	if (c)
		rs_copy_out(c, data, c->left);
	cm_udp_send(p->udp, to, v, 2);
}

bool rs_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
	const struct sockaddr_in6 *x6 = (const void *)a, *y6 = (const void *)b;

	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
	return x6->sin6_port == y6->sin6_port &&
	       !memcmp(&x6->sin6_addr, &y6->sin6_addr, sizeof(x6->sin6_addr));
}

static unsigned int hash(const struct sockaddr_storage *a)
{
	const struct sockaddr_in *in = (const void *)a;
	const struct sockaddr_in6 *in6 = (const void *)a;
	uint32_t n = in->sin_port, w;

	memcpy(&w, a->ss_family == AF_INET ? (const void *)&in->sin_addr : in6->sin6_addr.s6_addr + 12,
	       sizeof(w));
	n = (n << 16 ^ n ^ w) * 2654435761u;
	return n >> 26; /* RS_DEST_LISTS is 64 */
}

struct rs_dest *rs_dest_find(struct rs_datagram *dg, const struct sockaddr_storage *at)
{
	struct rs_dest *d = dg->to;

	if (d && rs_same_address(&d->at, at))
		return d;
	for (d = dg->dests[hash(at)]; d && !rs_same_address(&d->at, at);)
		d = d->next;
	return d;
}

void rs_dests_forget(struct rs_datagram *dg)
{
	struct rs_dest **p, *d;
	unsigned int i;

	for (i = 0; i < RS_DEST_LISTS; i++)
		for (p = &dg->dests[i]; (d = *p);) {
			if (d == dg->to) {
				p = &d->next;
				continue;
			}
			*p = d->next;
			dg->ndests--;
			if (d->ah)
				ibv_destroy_ah(d->ah);
			free(d);
		}
}

struct rs_dest *rs_dest_add(struct rs_datagram *dg, const struct sockaddr_storage *at,
			    struct rs_port *p)
{
	struct rs_dest *d, **list = &dg->dests[hash(at)];

	if (dg->ndests == MOST_DESTS)
		rs_dests_forget(dg); /* who goes on is asked again */
	d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	d->at = *at;
	d->port = p;
	d->next = *list;
	*list = d;
	dg->ndests++;
	return d;
}
