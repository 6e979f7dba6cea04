/* Options. What only TCP has, and a reliable connection has anyway, is taken and kept. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

#include "datagram.h"
#include "stream.h"

/* Where an option that is a number is kept, or NULL. */
static int *number(struct rs *s, int level, int name)
{
	switch (level) {
	case SOL_SOCKET:
		switch (name) {
		case SO_REUSEADDR:
			return &s->opt.reuseaddr;
		case SO_KEEPALIVE:
			return &s->opt.keepalive;
		case SO_OOBINLINE:
			return &s->opt.oobinline;
		}
		return NULL;
	case IPPROTO_IP:
		return name == IP_TOS ? &s->opt.tos : NULL;
	case IPPROTO_IPV6:
		return name == IPV6_V6ONLY ? &s->opt.v6only
		       : name == IPV6_TCLASS ? &s->opt.tos : NULL;
	case IPPROTO_TCP:
		return name == TCP_NODELAY ? &s->opt.nodelay
		       : name == TCP_KEEPIDLE ? &s->opt.keepidle : NULL;
	}
	return NULL;
}

/* What rdma_cm has to be told of it, too: 0, or -errno. */
static int tell_cm(struct rs *s, int level, int name, int value)
{
	uint8_t tos = value;
	void *val = &value;
	size_t len = sizeof(value);
	int opt;

	if (s->type != SOCK_STREAM)
		return 0;
	if (level == SOL_SOCKET && name == SO_REUSEADDR) {
		opt = RDMA_OPTION_ID_REUSEADDR;
	} else if (level == IPPROTO_IPV6 && name == IPV6_V6ONLY) {
		opt = RDMA_OPTION_ID_AFONLY;
	} else if ((level == IPPROTO_IP && name == IP_TOS) ||
		   (level == IPPROTO_IPV6 && name == IPV6_TCLASS)) {
		opt = RDMA_OPTION_ID_TOS;
		val = &tos;
		len = sizeof(tos);
	} else {
		return 0;
	}
	return rdma_set_option(to_stream(s)->id, RDMA_OPTION_ID, opt, val, len) ? -errno : 0;
}

static uint16_t *of_rdma(struct rs *s, int name)
{
	switch (name) {
	case RDMA_SQSIZE:
		return &s->opt.sq_size;
	case RDMA_RQSIZE:
		return &s->opt.rq_size;
	case RDMA_INLINE:
		return &s->opt.inline_size;
	case RDMA_IOMAPSIZE:
		return &s->opt.iomap_size;
	}
	return NULL;
}

static bool is_made(struct rs *s)
{
	if (s->type == SOCK_DGRAM)
		return to_datagram(s)->ports;
	return to_stream(s)->state > RS_LISTENING;
}

static int set_rdma(struct rs *s, int name, int value)
{
	uint16_t *at = of_rdma(s, name);

	if (!at)
		return -ENOPROTOOPT;
	if (value < 0 || is_made(s))
		return -EINVAL;
	*at = value > RS_MOST_QUEUE ? RS_MOST_QUEUE : value;
	if (name == RDMA_INLINE && value > 512)
		*at = 512;
	if (name == RDMA_IOMAPSIZE)
		*at = rs_unpack_size(rs_pack_size(*at));
	return 0;
}

/* As sockets have it, twice what is asked for; what is there stays. */
static int set_buffer(struct rs *s, uint32_t *size, int value)
{
	if (value < 0)
		return -EINVAL;
	if (value > 1 << 28)
		value = 1 << 28;
	if (!is_made(s))
		*size = 2 * value;
	return 0;
}

static int set(struct rs *s, int level, int name, const void *val, socklen_t len)
{
	int value = 0, *at, err;

	if (level == SOL_SOCKET && name == SO_LINGER) {
		if (len < sizeof(s->opt.linger))
			return -EINVAL;
		memcpy(&s->opt.linger, val, sizeof(s->opt.linger));
		return 0;
	}
	if (level == IPPROTO_TCP && name == TCP_CONGESTION)
		return 0; /* it is the device's business */
	if (len < sizeof(value))
		return -EINVAL;
	memcpy(&value, val, sizeof(value));
	if (level == SOL_RDMA)
		return set_rdma(s, name, value);
	if (level == SOL_SOCKET && name == SO_RCVBUF)
		return set_buffer(s, &s->opt.rcvbuf, value);
	if (level == SOL_SOCKET && name == SO_SNDBUF)
		return set_buffer(s, &s->opt.sndbuf, value);
	if (level == IPPROTO_TCP &&
	    (name == TCP_KEEPCNT || name == TCP_KEEPINTVL || name == TCP_MAXSEG))
		return 0;
	at = number(s, level, name);
	if (!at)
		return -ENOPROTOOPT;
	err = tell_cm(s, level, name, value);
	if (!err)
		*at = value;
	return err;
}

int rsetsockopt(int socket, int level, int name, const void *val, socklen_t len)
{
	struct rs *s = rs_enter(socket);
	int err;

	if (!s)
		return -1;
	err = set(s, level, name, val, len);
	rs_leave(s);
	return rs_return(err);
}

/* The size of a segment is that of packets on RoCE, and nobody's on iWARP. */
static int max_segment(struct rs *s)
{
	struct rdma_cm_id *id = s->type == SOCK_STREAM ? to_stream(s)->id : NULL;

	return id && id->route.num_paths ? 1 << (7 + id->route.path_rec->mtu) : 2048;
}

/* A number that is asked for: whether there is such an option. */
static bool get_number(struct rs *s, int level, int name, int *value)
{
	uint16_t *at = level == SOL_RDMA ? of_rdma(s, name) : NULL;
	int *kept = number(s, level, name);

	if (at)
		*value = *at;
	else if (kept)
		*value = *kept;
	else if (level == SOL_SOCKET && name == SO_RCVBUF)
		*value = s->opt.rcvbuf;
	else if (level == SOL_SOCKET && name == SO_SNDBUF)
		*value = s->opt.sndbuf;
	else if (level == SOL_SOCKET && name == SO_TYPE)
		*value = s->type;
	else if (level == SOL_SOCKET && name == SO_DOMAIN)
		*value = s->domain;
	else if (level == SOL_SOCKET && name == SO_PROTOCOL)
		*value = s->type == SOCK_STREAM ? IPPROTO_TCP : IPPROTO_UDP;
	else if (level == SOL_SOCKET && name == SO_ACCEPTCONN)
		*value = s->type == SOCK_STREAM && to_stream(s)->state == RS_LISTENING;
	else if (level == SOL_SOCKET && name == SO_ERROR) {
		*value = s->err;
		s->err = 0;
	} else if (level == IPPROTO_TCP && name == TCP_MAXSEG)
		*value = max_segment(s);
	else if (level == IPPROTO_TCP && (name == TCP_KEEPCNT || name == TCP_KEEPINTVL))
		*value = 1;
	else
		return false;
	return true;
}

static int give(void *val, socklen_t *len, const void *from, socklen_t n)
{
	if (*len > n)
		*len = n;
	memcpy(val, from, *len);
	return 0;
}

static int get(struct rs *s, int level, int name, void *val, socklen_t *len)
{
	struct tcp_info info = { .tcpi_state = TCP_CLOSE };
	int value;

	if (get_number(s, level, name, &value))
		return give(val, len, &value, sizeof(value));
	if (level == SOL_SOCKET && name == SO_LINGER)
		return give(val, len, &s->opt.linger, sizeof(s->opt.linger));
	if (level == IPPROTO_TCP && name == TCP_INFO && s->type == SOCK_STREAM) {
		if (to_stream(s)->state == RS_OPEN)
			info.tcpi_state = TCP_ESTABLISHED;
		info.tcpi_snd_cwnd = s->opt.sq_size;
		return give(val, len, &info, sizeof(info));
	}
	return -ENOPROTOOPT;
}

int rgetsockopt(int socket, int level, int name, void *val, socklen_t *len)
{
	struct rs *s = rs_enter(socket);
	int err;

	if (!s)
		return -1;
	if (s->type == SOCK_STREAM && level == SOL_SOCKET && name == SO_ERROR)
		s->ops->ready(s, 0);
	err = get(s, level, name, val, len);
	rs_leave(s);
	return rs_return(err);
}
