/* librdmacm: names and addresses. */
#include <netdb.h>
#include <stdlib.h>
#include <string.h>

#include "cm.h"

/* What getaddrinfo is to look for. */
static void to_hints(const struct rdma_addrinfo *in, const char *node, struct addrinfo *out)
{
	memset(out, 0, sizeof(*out));
	if (in->ai_flags & RAI_PASSIVE)
		out->ai_flags |= AI_PASSIVE;
	if (in->ai_flags & RAI_NUMERICHOST)
		out->ai_flags |= AI_NUMERICHOST;
	else if (node)
		out->ai_flags |= AI_CANONNAME;
	if (in->ai_flags & RAI_FAMILY)
		out->ai_family = in->ai_family;
	switch (in->ai_qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_UC:
	case IBV_QPT_XRC_SEND:
	case IBV_QPT_XRC_RECV:
		out->ai_socktype = SOCK_STREAM;
		break;
	case IBV_QPT_UD:
		out->ai_socktype = SOCK_DGRAM;
		break;
	}
	switch (in->ai_port_space) {
	case RDMA_PS_TCP:
		out->ai_protocol = IPPROTO_TCP;
		break;
	case RDMA_PS_UDP:
	case RDMA_PS_IPOIB:
		out->ai_protocol = IPPROTO_UDP;
		break;
	}
}

/*
 * The kind of QP and the port space: those of the hints, each after the other, or after the socket
 * that was found.
 */
static void set_kind(struct rdma_addrinfo *rai, const struct rdma_addrinfo *hints, int socktype)
{
	int ps = hints->ai_port_space;
	bool datagrams = ps ? ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB : socktype == SOCK_DGRAM;

	rai->ai_qp_type = hints->ai_qp_type;
	if (!rai->ai_qp_type)
		rai->ai_qp_type = datagrams ? IBV_QPT_UD : IBV_QPT_RC;
	rai->ai_port_space = ps;
	if (!ps)
		rai->ai_port_space = rai->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
}

static int copy_addr(const struct sockaddr *sa, socklen_t len, struct sockaddr **out,
		     socklen_t *out_len)
{
	*out = malloc(len);
	if (!*out)
		return EAI_MEMORY;
	memcpy(*out, sa, len);
	*out_len = len;
	return 0;
}

static int copy_name(const char *name, char **out)
{
	*out = name ? strdup(name) : NULL;
	return name && !*out ? EAI_MEMORY : 0;
}

/* Fills rai with one result. */
static int convert(struct rdma_addrinfo *rai, const struct rdma_addrinfo *hints,
		   const struct addrinfo *ai)
{
	int ret;

	rai->ai_flags = hints->ai_flags;
	rai->ai_family = ai->ai_family;
	set_kind(rai, hints, ai->ai_socktype);
	if (hints->ai_flags & RAI_PASSIVE) {
		ret = copy_addr(ai->ai_addr, ai->ai_addrlen, &rai->ai_src_addr, &rai->ai_src_len);
		return ret ? ret : copy_name(ai->ai_canonname, &rai->ai_src_canonname);
	}
	ret = copy_addr(ai->ai_addr, ai->ai_addrlen, &rai->ai_dst_addr, &rai->ai_dst_len);
	return ret ? ret : copy_name(ai->ai_canonname, &rai->ai_dst_canonname);
}

/*
 * The source that a program gives along with a name goes into each result, without its being looked
 * at.
 */
static int add_source(struct rdma_addrinfo *rai, const struct rdma_addrinfo *hints)
{
	if (rai->ai_src_len || !hints->ai_src_len || !hints->ai_src_addr)
		return 0;
	return copy_addr(hints->ai_src_addr, hints->ai_src_len, &rai->ai_src_addr, &rai->ai_src_len);
}

static struct rdma_addrinfo *append(struct rdma_addrinfo ***tail)
{
	struct rdma_addrinfo *rai = calloc(1, sizeof(*rai));

	if (!rai)
		return NULL;
	**tail = rai;
	*tail = &rai->ai_next;
	return rai;
}

static int look_up(const char *node, const char *service, const struct rdma_addrinfo *hints,
		   struct rdma_addrinfo **res)
{
	struct addrinfo want, *list, *ai;
	struct rdma_addrinfo *rai, **tail = res;
	int ret;

	to_hints(hints, node, &want);
	ret = getaddrinfo(node, service, &want, &list);
	if (ret)
		return ret;
	for (ai = list; ai && !ret; ai = ai->ai_next) {
		/* An address comes once for each kind of socket: those of the first kind are enough. */
		if (ai->ai_socktype != list->ai_socktype ||
		    (ai->ai_family != AF_INET && ai->ai_family != AF_INET6))
			continue;
		rai = append(&tail);
		ret = rai ? convert(rai, hints, ai) : EAI_MEMORY;
		if (!ret)
			ret = add_source(rai, hints);
	}
	freeaddrinfo(list);
	if (!ret && !*res)
		ret = EAI_ADDRFAMILY;
	return ret;
}

/* No name: the addresses of the hints. */
static int from_hints(const struct rdma_addrinfo *hints, struct rdma_addrinfo **res)
{
	struct rdma_addrinfo *rai = append(&res);
	int ret = 0;

	if (!rai)
		return EAI_MEMORY;
	rai->ai_flags = hints->ai_flags;
	rai->ai_family = hints->ai_family;
	set_kind(rai, hints, SOCK_STREAM);
	if (hints->ai_dst_len && hints->ai_dst_addr)
		ret = copy_addr(hints->ai_dst_addr, hints->ai_dst_len, &rai->ai_dst_addr, &rai->ai_dst_len);
	return ret ? ret : add_source(rai, hints);
}

static bool fits(const struct rdma_addrinfo *hints)
{
	switch (hints->ai_port_space) {
	case RDMA_PS_TCP:
		return hints->ai_qp_type != IBV_QPT_UD;
	case RDMA_PS_UDP:
	case RDMA_PS_IPOIB:
		return !hints->ai_qp_type || hints->ai_qp_type == IBV_QPT_UD;
	}
	return true;
}

/* There is no route to be looked up on an RNIC, with or without RAI_NOROUTE. */
int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
		     struct rdma_addrinfo **res)
{
	static const struct rdma_addrinfo none;
	struct rdma_addrinfo *list = NULL;
	int ret;

	if (!res || (!node && !service && !hints))
		return cm_return(EINVAL);
	if (!vrnic_session())
		return EAI_SYSTEM;
	if (!hints)
		hints = &none;
	if (hints->ai_flags & ~(RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY))
		return EAI_BADFLAGS;
	if (hints->ai_flags & RAI_FAMILY && hints->ai_family != AF_INET && hints->ai_family != AF_INET6 &&
	    hints->ai_family != AF_UNSPEC)
		return EAI_FAMILY;
	if (!fits(hints))
		return EAI_SOCKTYPE;
	ret = node || service ? look_up(node, service, hints, &list) : from_hints(hints, &list);
	if (ret)
		rdma_freeaddrinfo(list);
	else
		*res = list;
	return ret;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	struct rdma_addrinfo *next;

	for (; res; res = next) {
		next = res->ai_next;
		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
	}
}
