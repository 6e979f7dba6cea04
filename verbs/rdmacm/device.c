/* librdmacm: devices and addresses. */
#include <stdlib.h>
#include <string.h>

#include "cm.h"

bool cm_to_ring(const struct sockaddr *sa, struct vrnic_sock_addr *a)
{
	const struct sockaddr_in *in = (const void *)sa;
	const struct sockaddr_in6 *in6 = (const void *)sa;

	memset(a, 0, sizeof(*a));
	switch (sa->sa_family) {
	case AF_INET:
		a->family = VRNIC_AF_INET;
		a->port = ntohs(in->sin_port);
		memcpy(a->addr, &in->sin_addr, 4);
		return true;
	case AF_INET6:
		a->port = ntohs(in6->sin6_port);
		/*
		 * Where the kernel has no address of IPv4, as in a container without a network, getaddrinfo(3)
		 * makes such ones of an IPv4 address that is a device's.
		 */
		if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
			a->family = VRNIC_AF_INET;
			memcpy(a->addr, in6->sin6_addr.s6_addr + 12, 4);
			return true;
		}
		a->family = VRNIC_AF_INET6;
		a->scope = in6->sin6_scope_id;
		memcpy(a->addr, &in6->sin6_addr, 16);
		return true;
	}
	return false;
}

void cm_from_ring(const struct vrnic_sock_addr *a, struct sockaddr_storage *ss)
{
	struct sockaddr_in *in = (void *)ss;
	struct sockaddr_in6 *in6 = (void *)ss;

	memset(ss, 0, sizeof(*ss));
	switch (a->family) {
	case VRNIC_AF_INET:
		in->sin_family = AF_INET;
		in->sin_port = htons(a->port);
		memcpy(&in->sin_addr, a->addr, 4);
		break;
	case VRNIC_AF_INET6:
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(a->port);
		in6->sin6_scope_id = a->scope;
		memcpy(&in6->sin6_addr, a->addr, 16);
		break;
	}
}

static size_t addr_len(uint16_t family) { return family == VRNIC_AF_INET ? 4 : 16; }

/* Whether a is an address of the loopback interface, or with zero the unspecified one. */
static bool loopback(const uint8_t *a, uint16_t family, bool zero)
{
	static const uint8_t none[16];
	size_t len = addr_len(family);

	if (family == VRNIC_AF_INET)
		return a[0] == 127 || (zero && !memcmp(a, none, len));
	return !memcmp(a, none, len - 1) && (a[len - 1] == 1 || (zero && !a[len - 1]));
}

/* How many leading bits of a and b are the same. */
static unsigned int common_bits(const uint8_t *a, const uint8_t *b, size_t len)
{
	size_t i = 0;

	while (i < len && a[i] == b[i])
		i++;
	return i == len ? 8 * len : 8 * i + __builtin_clz((unsigned int)(a[i] ^ b[i]) << 24);
}

/*
 * The device that a session's ids use: its context, which all of them share, and a PD for programs
 * that do not bring their own. Neither is ever closed.
 */
struct device {
	struct device *next;
	struct vrnic_session *s;
	uint32_t index;
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	union ibv_gid gid;
	enum ibv_mtu mtu;
};

static struct device *devices; /* cm_lock */

static struct device *find_device(struct vrnic_session *s, uint32_t index)
{
	struct ibv_port_attr port;
	struct device *d;

	for (d = devices; d; d = d->next)
		if (d->s == s && d->index == index)
			return d;
	d = calloc(1, sizeof(*d));
	if (!d)
		return NULL;
	d->s = s;
	d->index = index;
	d->verbs = vrnic_cm_context(s, index);
	d->pd = d->verbs ? ibv_alloc_pd(d->verbs) : NULL;
	if (!d->pd) {
		free(d);
		return NULL;
	}
	ibv_query_gid(d->verbs, CM_PORT, 0, &d->gid);
	if (!ibv_query_port(d->verbs, CM_PORT, &port))
		d->mtu = port.active_mtu;
	d->next = devices;
	devices = d;
	return d;
}

int cm_attach(struct cm_id *id, uint32_t index)
{
	struct device *d;

	if (id->id.verbs)
		return 0;
	d = find_device(id->s, index);
	if (!d)
		return errno;
	id->id.pd = d->pd;
	id->id.port_num = CM_PORT;
	id->id.route.addr.addr.ibaddr.sgid = d->gid;
	id->id.verbs = d->verbs;
	return 0;
}

/* An address as a GID; of another kind: none. */
static union ibv_gid gid_of(const struct sockaddr *sa)
{
	struct vrnic_sock_addr a;
	union ibv_gid gid = { 0 };

	if (!cm_to_ring(sa, &a))
		return gid;
	if (a.family == VRNIC_AF_INET) {
		gid.raw[10] = gid.raw[11] = 0xff;
		memcpy(gid.raw + 12, a.addr, 4);
	} else {
		memcpy(gid.raw, a.addr, 16);
	}
	return gid;
}

/* As Linux does on Ethernet, where nobody keeps routes: lifetime 18 is 1 s. */
void cm_fill_route(struct cm_id *id)
{
	struct rdma_route *r = &id->id.route;
	struct ibv_sa_path_rec *p = &id->path;
	struct device *d;

	if (!cm_is_roce(id))
		return;
	r->addr.addr.ibaddr.sgid = gid_of(&r->addr.src_addr);
	r->addr.addr.ibaddr.dgid = gid_of(&r->addr.dst_addr);
	r->addr.addr.ibaddr.pkey = htons(0xffff);
	memset(p, 0, sizeof(*p));
	p->sgid = r->addr.addr.ibaddr.sgid;
	p->dgid = r->addr.addr.ibaddr.dgid;
	p->hop_limit = 64;
	p->reversible = 1;
	p->numb_path = 1;
	p->pkey = htons(0xffff);
	p->mtu_selector = p->rate_selector = p->packet_life_time_selector = 2; /* exactly */
	for (d = devices; d && d->verbs != id->id.verbs; d = d->next)
		;
	p->mtu = d ? d->mtu : 0;
	p->rate = IBV_RATE_100_GBPS; /* four lanes of EDR, as of the port */
	p->packet_life_time = 18;
	r->path_rec = p;
	r->num_paths = 1;
}

int cm_query(struct cm_id *id)
{
	struct vrnic_cm_query_reply rep;
	int state, err = vrnic_rpc_handle(id->s, VRNIC_OP_CM_QUERY, id->handle, &rep, sizeof(rep));

	if (err)
		return err;
	if (rep.src.family)
		cm_from_ring(&rep.src, &id->id.route.addr.src_storage);
	if (rep.dst.family)
		cm_from_ring(&rep.dst, &id->id.route.addr.dst_storage);
	if (rep.device == VRNIC_NO_DEVICE)
		return 0;
	state = cm_enter();
	err = cm_attach(id, rep.device);
	cm_leave(state);
	return err;
}

static uint8_t octet(uint32_t n) { return n < UINT8_MAX ? n : UINT8_MAX; }

uint8_t cm_max_ird(struct ibv_context *verbs) { return octet(to_vctx(verbs)->attr.max_ird); }
uint8_t cm_max_ord(struct ibv_context *verbs) { return octet(to_vctx(verbs)->attr.max_ord); }

/*
 * Addresses of the devices, of which VRNIC_DEVICE may leave this process a part.
 */


/*
 * A search for an address of this process: the one that has most in common with where it is to go.
 */
struct search {
	uint16_t family;
	const struct vrnic_sock_addr *want; /* the only one that will do, or NULL */
	const struct vrnic_sock_addr *dst;  /* or NULL */
	bool loopback;                      /* those of the loopback interface only */
	struct vrnic_sock_addr best;
	unsigned int bits;
};

static void consider(struct search *f, const struct vrnic_prefix *p)
{
	size_t len = addr_len(f->family);
	unsigned int bits = 0;

	if (f->loopback && !loopback(p->addr, f->family, false))
		return;
	if (p->family != f->family || (f->want && memcmp(f->want->addr, p->addr, len)))
		return;
	if (f->dst)
		bits = common_bits(p->addr, f->dst->addr, len);
	if (bits < p->bits) /* outside of the network: any other is as good */
		bits = 0;
	if (f->best.family && bits <= f->bits)
		return;
	f->best.family = f->family;
	memcpy(f->best.addr, p->addr, 16);
	f->bits = bits;
}

static int run_search(struct vrnic_session *s, struct search *f)
{
	struct vrnic_query_device_reply rep;
	uint32_t i, k, n;
	int err;

	vrnic_look(s);
	n = vrnic_num_devices(s);
	for (i = 0; i < n; i++) {
		if (!vrnic_device_allowed(s, i))
			continue;
		err = vrnic_query_device(s, i, &rep);
		if (err == ENODEV) /* it has gone; others are there */
			continue;
		if (err)
			return err;
		for (k = 0; k < rep.num_addrs && k < VRNIC_MAX_ADDRS; k++)
			consider(f, &rep.addrs[k]);
	}
	return f->best.family ? 0 : ENODEV;
}

/*
 * A device that has an address of the host's loopback interface reaches the others there.
 */
bool cm_any(struct vrnic_session *s, const struct vrnic_sock_addr *a)
{
	struct search f = { .family = a->family, .loopback = true };

	if (!loopback(a->addr, a->family, true))
		return false;
	return !loopback(a->addr, a->family, false) || run_search(s, &f);
}

/*
 * The daemon knows nothing of VRNIC_DEVICE: an address of another device is refused here, and none
 * is chosen by it.
 */
int cm_source(struct vrnic_session *s, struct vrnic_sock_addr *src,
	      const struct vrnic_sock_addr *dst)
{
	bool any = !src->family || cm_any(s, src);
	struct search f = { .family = src->family ? src->family : dst->family, .want = any ? NULL : src,
			   .dst = dst };
	int err;

	if (any && src->family)
		memset(src->addr, 0, sizeof(src->addr));
	if (!vrnic_device_named() || (any && !dst))
		return 0;
	err = run_search(s, &f);
	if (err)
		return err;
	f.best.port = src->port;
	f.best.scope = src->scope;
	*src = f.best;
	return 0;
}

/*
 * Where a connection to this host goes: to the address that it comes from, or to the first that
 * there is.
 */
int cm_local_destination(struct vrnic_session *s, const struct vrnic_sock_addr *src,
			 struct vrnic_sock_addr *dst)
{
	struct search f = { .family = dst->family, .dst = dst };
	int err;

	if (!cm_any(s, dst))
		return 0;
	if (src->family == dst->family && !cm_any(s, src)) {
		memcpy(dst->addr, src->addr, sizeof(dst->addr));
		return 0;
	}
	err = run_search(s, &f);
	if (!err)
		memcpy(dst->addr, f.best.addr, sizeof(dst->addr));
	return err;
}

/*
 * What programs ask.
 */

struct ibv_context **rdma_get_devices(int *num_devices)
{
	struct vrnic_session *s = vrnic_session();
	struct ibv_context **list;
	uint32_t i, n, found = 0;

	if (num_devices)
		*num_devices = 0;
	if (!s)
		return NULL;
	vrnic_look(s);
	n = vrnic_num_devices(s);
	list = calloc(n + 1, sizeof(*list));
	if (!list)
		return NULL;
	for (i = 0; i < n; i++) {
		if (!vrnic_device_allowed(s, i))
			continue;
		list[found] = vrnic_cm_context(s, i);
		if (!list[found] && errno == ENODEV) /* it has gone; others are there */
			continue;
		if (!list[found]) {
			free(list);
			return NULL;
		}
		found++;
	}
	if (num_devices)
		*num_devices = found;
	return list;
}

void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}

static ibv_be16 port_of(const struct sockaddr *sa)
{
	switch (sa->sa_family) {
	case AF_INET:
		return ((const struct sockaddr_in *)sa)->sin_port;
	case AF_INET6:
		return ((const struct sockaddr_in6 *)sa)->sin6_port;
	}
	return 0;
}

ibv_be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.src_addr);
}

ibv_be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return port_of(&id->route.addr.dst_addr);
}
