/* Datagrams, as one kind of socket. */
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "datagram.h"

enum {
	RESOLVE_MS = 2000,
	DRAIN_MS = 1000,
	COPIES = 64,   /* datagrams of UDP that may wait to be read */
	AT_ONCE = 16,  /* that are taken from one port before it is another's turn */
	LOOK_EACH = 64, /* of looks in vain: one at what takes a system call */
};

static void arrived(struct rs_datagram *dg, struct rs_arrival *a)
{
	a->next = NULL;
	*dg->last = a;
	dg->last = &a->next;
}

static void arrival_done(struct rs_datagram *dg)
{
	struct rs_arrival *a = dg->first;
	struct rs_port *p = a->port;
	int err;

	dg->first = a->next;
	if (!dg->first)
		dg->last = &dg->first;
	if (!p) {
		dg->copies--;
		free(a);
		return;
	}
	err = rs_port_receive(p, a - p->in);
	if (err)
		rs_datagram_over(dg, -err);
}

/* Whom it is from; false: it is from nobody that can be. */
static bool sender(const struct rs_datagram *dg, const struct rs_arrival *a,
		   struct sockaddr_storage *from)
{
	struct sockaddr_in6 *in6 = (void *)from;
	struct sockaddr_in *in = (void *)from;
	struct rs_datagram_header h;
	uint8_t len = rs_header_len(dg->s.domain);

	memset(from, 0, sizeof(*from));
	if (a->len < len)
		return false;
	memcpy(&h, a->data, len);
	if (h.length != len || h.version != (dg->s.domain == AF_INET ? 4 : 6))
		return false;
	from->ss_family = dg->s.domain;
	if (dg->s.domain == AF_INET) {
		in->sin_port = h.port;
		memcpy(&in->sin_addr, h.addr, 4);
	} else {
		in6->sin6_port = h.port;
		memcpy(&in6->sin6_flowinfo, h.addr, 4);
		memcpy(&in6->sin6_addr, h.addr + 4, 16);
	}
	return !dg->to || rs_same_address(from, &dg->to->at);
}

static void completed(struct rs_datagram *dg, struct rs_port *p, const struct ibv_wc *wc)
{
	struct sockaddr_storage from;
	struct rs_arrival *a;
	int err;

	if (wc->wr_id >= p->receives) {
		p->idle[p->nidle++] = wc->wr_id - p->receives;
		return;
	}
	if (wc->status != IBV_WC_SUCCESS) {
		rs_datagram_over(dg, EIO);
		return;
	}
	a = &p->in[wc->wr_id];
	a->len = wc->byte_len - sizeof(struct ibv_grh);
	if (wc->byte_len > sizeof(struct ibv_grh) && sender(dg, a, &from)) {
		arrived(dg, a);
		return;
	}
	err = rs_port_receive(p, wc->wr_id);
	if (err)
		rs_datagram_over(dg, -err);
}

/* Data that has come by UDP, as if it had come to the queue pair. */
static void copy(struct rs_datagram *dg, const struct sockaddr_storage *from, const uint8_t *data,
		 size_t len)
{
	const struct sockaddr_in6 *in6 = (const void *)from;
	const struct sockaddr_in *in = (const void *)from;
	uint8_t head = rs_header_len(from->ss_family);
	struct rs_datagram_header *h;
	struct rs_arrival *a;

	if (dg->copies == COPIES || (dg->to && !rs_same_address(from, &dg->to->at)))
		return;
	a = malloc(sizeof(*a) + sizeof(*h) + len);
	if (!a)
		return;
	h = (struct rs_datagram_header *)(a + 1);
	*a = (struct rs_arrival){ .len = head + len, .data = (uint8_t *)h };
	h->length = head;
	if (from->ss_family == AF_INET) {
		h->version = 4;
		h->port = in->sin_port;
		memcpy(h->addr, &in->sin_addr, 4);
	} else {
		h->version = 6;
		h->port = in6->sin6_port;
		memset(h->addr, 0, 4);
		memcpy(h->addr + 4, &in6->sin6_addr, 16);
	}
	memcpy((uint8_t *)h + head, data, len);
	dg->copies++;
	arrived(dg, a);
}

/* Somebody says which queue pair it has; who sends data asks so for ours. */
static void asked(struct rs_datagram *dg, struct rs_port *p, const struct sockaddr_storage *from,
		  const uint8_t *b, size_t len)
{
	uint8_t head = rs_udp_len(from->ss_family);
	struct rs_udp_header h;
	struct rs_dest *d;

	if (from->ss_family != dg->s.domain || len < head)
		return;
	memcpy(&h, b, head);
	if (h.tag != htobe32(RS_UDP_TAG) || h.length != head ||
	    h.version != (from->ss_family == AF_INET ? 4 : 6))
		return;
	d = rs_dest_find(dg, from);
	if (!d)
		d = rs_dest_add(dg, from, p);
	if (!d)
		return;
	d->qpn = be32toh(h.qpn) & 0xffffff;
	if (h.op != RS_UDP_DATA)
		return;
	rs_port_say(p, from, RS_UDP_CONTROL, NULL);
	copy(dg, from, b + head, len - head);
}

static bool look_at_udp(struct rs_datagram *dg, struct rs_port *p)
{
	uint8_t b[sizeof(struct rs_udp_header) + RS_DATAGRAM];
	struct sockaddr_storage from;
	ssize_t n = 0;
	int i;

	for (i = 0; i < AT_ONCE; i++) {
		n = cm_udp_recv(p->udp, &from, b, sizeof(b));
		if (n < 0)
			break;
		asked(dg, p, &from, b, n);
	}
	if (n < 0 && n != -EAGAIN)
		rs_datagram_over(dg, -n);
	return i > 0 || dg->over;
}

static bool look_at_events(struct rs_datagram *dg)
{
	struct rdma_cm_event *ev;
	bool any = false;

	while (!dg->over && !rdma_get_cm_event(dg->ch, &ev)) {
		any = true;
		if (ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
			rs_datagram_over(dg, ENODEV);
		rdma_ack_cm_event(ev);
	}
	return any;
}

/* all: what takes a system call, too. Whether there has been any. */
static bool progress(struct rs_datagram *dg, bool all)
{
	bool any = false;
	struct rs_port *p;
	struct ibv_wc wc[AT_ONCE];
	int i, n;

	for (p = dg->ports; p && !dg->over; p = p->next) {
		n = p->id->verbs->ops.poll_cq(p->cq, AT_ONCE, wc);
		for (i = 0; i < n; i++)
			completed(dg, p, &wc[i]);
		any |= n > 0;
	}
	if (all || (!any && ++dg->looks % LOOK_EACH == 0)) {
		for (p = dg->ports; p && !dg->over; p = p->next)
			any |= look_at_udp(dg, p);
		any |= look_at_events(dg);
	}
	if (any)
		rs_wake(&dg->s);
	return any;
}

/* An address that a program gives. */
static int take_address(const struct rs *s, const struct sockaddr *addr, socklen_t len,
			struct sockaddr_storage *a)
{
	socklen_t want = s->domain == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

	memset(a, 0, sizeof(*a));
	if (!addr || len < sizeof(addr->sa_family))
		return -EINVAL;
	if (addr->sa_family != s->domain)
		return -EAFNOSUPPORT;
	if (len < want)
		return -EINVAL;
	memcpy(a, addr, want);
	return 0;
}

static bool is_any(const struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET
		       ? !((const struct sockaddr_in *)a)->sin_addr.s_addr
		       : IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* sin_port and sin6_port are at the same place. */
static uint16_t *number(struct sockaddr_storage *a) { return &((struct sockaddr_in *)a)->sin_port; }

static int datagram_bind(struct rs *s, const struct sockaddr *addr, socklen_t len)
{
	struct rs_datagram *dg = to_datagram(s);
	struct sockaddr_storage a;
	int err = take_address(s, addr, len, &a);

	if (err)
		return err;
	if (dg->at.ss_family || dg->ports)
		return -EINVAL;
	if (is_any(&a))
		err = rs_ports_make(dg, *number(&a));
	else
		err = rs_port_make(dg, &a);
	if (err)
		return err;
	*number(&a) = dg->ports->header.port;
	dg->at = a;
	return 0;
}

/* The address that something to another one is sent from. */
static int source_of(const struct sockaddr_storage *to, struct sockaddr_storage *from)
{
	struct sockaddr_storage a = *to;
	struct rdma_cm_id *id;
	int err;

	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP))
		return -errno;
	err = rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, RESOLVE_MS) ? -errno : 0;
	*from = id->route.addr.src_storage;
	rdma_destroy_id(id);
	return err;
}

/* The port from which something to another address is sent. */
static int port_to(struct rs_datagram *dg, const struct sockaddr_storage *to, struct rs_port **out)
{
	struct sockaddr_storage from;
	struct rs_port *p = dg->ports;
	int err;

	if (!dg->at.ss_family || is_any(&dg->at)) {
		err = source_of(to, &from);
		if (err)
			return err;
		*number(&from) = dg->ports ? dg->ports->header.port : 0;
		while (p && !rs_same_address(&p->at, &from))
			p = p->next;
		if (!p && dg->at.ss_family)
			return -ENETUNREACH; /* an address that has come since */
		if (!p) {
			err = rs_port_make(dg, &from);
			if (err)
				return err;
			p = dg->ports;
		}
	}
	*out = p;
	return 0;
}

static int dest_of(struct rs_datagram *dg, const struct sockaddr *addr, socklen_t len,
		   struct rs_dest **out)
{
	struct sockaddr_storage a;
	struct rs_port *p;
	int err = take_address(&dg->s, addr, len, &a);

	if (err)
		return err;
	if (!*number(&a) || is_any(&a))
		return -EINVAL;
	*out = rs_dest_find(dg, &a);
	if (*out)
		return 0;
	err = port_to(dg, &a, &p);
	if (err)
		return err;
	*out = rs_dest_add(dg, &a, p);
	return *out ? 0 : -ENOMEM;
}

static int datagram_connect(struct rs *s, const struct sockaddr *addr, socklen_t len)
{
	struct rs_datagram *dg = to_datagram(s);
	struct rs_dest *d;
	int err;

	if (addr && len >= sizeof(addr->sa_family) && addr->sa_family == AF_UNSPEC) {
		dg->to = NULL;
		return 0;
	}
	err = dest_of(dg, addr, len, &d);
	if (!err)
		dg->to = d;
	return err;
}

static int fault(const struct rs_datagram *dg)
{
	return dg->s.err ? -dg->s.err : -ENETDOWN;
}

static ssize_t datagram_send(struct rs *s, struct rs_cursor *c, const struct sockaddr *to,
			     socklen_t len)
{
	struct rs_datagram *dg = to_datagram(s);
	struct rs_dest *d = dg->to;
	size_t n = c->left;
	int err = 0;

	if (dg->over)
		return fault(dg);
	if (dg->no_write)
		return -EPIPE;
	if (to)
		err = dest_of(dg, to, len, &d);
	else if (!d)
		err = -EDESTADDRREQ;
	if (err)
		return err;
	if (n > d->port->most - d->port->header.length)
		return -EMSGSIZE;
	if (!d->qpn || !d->port->nidle) {
		progress(dg, !d->qpn); /* perhaps it is known by now, or a slot is idle */
		if (to) /* d has been forgotten if many others have come */
			err = dest_of(dg, to, len, &d);
		if (err)
			return err;
	}
	if (!d->qpn) {
		rs_port_say(d->port, &d->at, RS_UDP_DATA, c);
		return n;
	}
	err = rs_port_send(d->port, d, c);
	return err ? err : (ssize_t)n;
}

static ssize_t datagram_recv(struct rs *s, struct rs_cursor *c, int flags,
			     struct sockaddr_storage *from)
{
	struct rs_datagram *dg = to_datagram(s);
	const struct rs_arrival *a;
	size_t n, head;

	if (!dg->first)
		progress(dg, false);
	a = dg->first;
	if (!a && dg->over)
		return fault(dg);
	if (!a)
		return dg->no_read ? 0 : -EAGAIN;
	(void)sender(dg, a, from);
	head = rs_header_len(s->domain);
	n = a->len - head;
	if (n > c->left)
		n = c->left;
	rs_copy_in(c, a->data + head, n);
	if (flags & MSG_TRUNC)
		n = a->len - head;
	if (!(flags & MSG_PEEK))
		arrival_done(dg);
	return n;
}

static bool can_send(const struct rs_datagram *dg)
{
	const struct rs_port *p;

	for (p = dg->ports; p; p = p->next)
		if (!p->nidle)
			return false;
	return true;
}

static short datagram_ready(struct rs *s, short events)
{
	struct rs_datagram *dg = to_datagram(s);
	short r = 0;

	progress(dg, true);
	if (dg->first || dg->no_read)
		r |= POLLIN | POLLRDNORM;
	if (can_send(dg))
		r |= POLLOUT | POLLWRNORM;
	r &= events;
	return dg->over ? r | POLLERR | POLLHUP : r;
}

static bool datagram_arm(struct rs *s)
{
	struct rs_datagram *dg = to_datagram(s);
	struct rs_port *p;
	struct ibv_cq *cq;
	void *context;

	for (p = dg->ports; p && !dg->over; p = p->next) {
		while (!ibv_get_cq_event(p->comp, &cq, &context))
			ibv_ack_cq_events(cq, 1); /* they say nothing that completions do not */
		if (p->id->verbs->ops.req_notify_cq(p->cq, 0))
			rs_datagram_over(dg, EIO);
	}
	return progress(dg, true) || dg->over;
}

static int datagram_fds(struct rs *s, struct pollfd *p)
{
	*p = (struct pollfd){ .fd = to_datagram(s)->epoll, .events = POLLIN };
	return 1;
}

static int datagram_name(struct rs *s, bool peer, struct sockaddr_storage *a)
{
	struct rs_datagram *dg = to_datagram(s);

	if (peer && !dg->to)
		return -ENOTCONN;
	if (peer)
		*a = dg->to->at;
	else if (dg->at.ss_family)
		*a = dg->at;
	else if (dg->ports)
		*a = dg->ports->at;
	a->ss_family = s->domain;
	return 0;
}

static int datagram_shutdown(struct rs *s, int how)
{
	struct rs_datagram *dg = to_datagram(s);

	if (!dg->to)
		return -ENOTCONN;
	dg->no_read |= how != SHUT_WR;
	dg->no_write |= how != SHUT_RD;
	rs_wake(s);
	return 0;
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

static bool all_sent(const struct rs_datagram *dg)
{
	const struct rs_port *p;

	for (p = dg->ports; p; p = p->next)
		if (p->nidle < p->sends)
			return false;
	return true;
}

/* What was sent is on its way before its queue pair goes. */
static void datagram_close(struct rs *s)
{
	struct rs_datagram *dg = to_datagram(s);
	int64_t end = now_ms() + DRAIN_MS, left;

	for (;;) {
		progress(dg, false);
		left = end - now_ms();
		if (dg->over || all_sent(dg) || left <= 0)
			break;
		(void)rs_sleep(s, left); /* it is looked again, and given up in time */
	}
	dg->over = true;
	while (dg->first)
		arrival_done(dg);
	dg->to = NULL;
	rs_dests_forget(dg);
	rs_ports_free(dg);
	rdma_destroy_event_channel(dg->ch);
	dg->ch = NULL;
	close(dg->epoll);
	rs_wake(s);
}

/* One that has got no number is not closed yet. */
static void datagram_free(struct rs *s)
{
	pthread_mutex_lock(&s->lock);
	if (to_datagram(s)->ch)
		datagram_close(s);
	pthread_mutex_unlock(&s->lock);
}

static const struct rs_ops datagram_ops = {
	.bind = datagram_bind,
	.connect = datagram_connect,
	.send = datagram_send,
	.recv = datagram_recv,
	.ready = datagram_ready,
	.arm = datagram_arm,
	.fds = datagram_fds,
	.name = datagram_name,
	.shutdown = datagram_shutdown,
	.close = datagram_close,
	.free = datagram_free,
};

/* An RNIC has no datagrams. */
static bool have_device(void)
{
	struct ibv_context **list = rdma_get_devices(NULL);
	bool have = false;
	int i;

	for (i = 0; list && list[i]; i++)
		have |= list[i]->device->transport_type == IBV_TRANSPORT_IB;
	if (list)
		rdma_free_devices(list);
	return have;
}

struct rs *rs_new_datagram(int domain)
{
	struct rs_datagram *dg;
	struct epoll_event e = { .events = EPOLLIN };
	int flags, err;

	if (!have_device()) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	dg = calloc(1, sizeof(*dg));
	if (!dg)
		return NULL;
	rs_init(&dg->s, &datagram_ops, domain, SOCK_DGRAM);
	dg->last = &dg->first;
	dg->epoll = epoll_create1(EPOLL_CLOEXEC);
	dg->ch = dg->epoll < 0 ? NULL : rdma_create_event_channel();
	if (dg->ch) {
		flags = fcntl(dg->ch->fd, F_GETFL);
		if (flags >= 0 && !fcntl(dg->ch->fd, F_SETFL, flags | O_NONBLOCK) &&
		    !epoll_ctl(dg->epoll, EPOLL_CTL_ADD, dg->ch->fd, &e)) {
			dg->s.fd = dg->epoll;
			return &dg->s;
		}
	}
	err = errno;
	if (dg->ch)
		rdma_destroy_event_channel(dg->ch);
	if (dg->epoll >= 0)
		close(dg->epoll);
	free(dg);
	errno = err;
	return NULL;
}
