/* Sockets over RDMA, from what programs have asked for. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "rsocketd.h"

/* What the program had set before it was known that the socket is one over RDMA. */
static void copy_options(const struct socket *s)
{
	static const struct {
		int level, name;
	} options[] = {
		{ SOL_SOCKET, SO_REUSEADDR }, { SOL_SOCKET, SO_KEEPALIVE }, { IPPROTO_IP, IP_TOS },
		{ IPPROTO_IPV6, IPV6_V6ONLY }, { IPPROTO_IPV6, IPV6_TCLASS },
		{ IPPROTO_TCP, TCP_NODELAY },
	};
	struct linger linger;
	socklen_t len;
	size_t i;
	int value;

	for (i = 0; i < sizeof(options) / sizeof(*options); i++) {
		len = sizeof(value);
		if (!getsockopt(s->kernel, options[i].level, options[i].name, &value, &len) && value)
			(void)rsetsockopt(s->rs, options[i].level, options[i].name, &value,
					  sizeof(value)); /* one that there is not changes nothing */
	}
	len = sizeof(linger);
	if (!getsockopt(s->kernel, SOL_SOCKET, SO_LINGER, &linger, &len) && linger.l_onoff)
		(void)rsetsockopt(s->rs, SOL_SOCKET, SO_LINGER, &linger, len);
}

int make_bound(struct socket *s)
{
	struct sockaddr_storage a;
	socklen_t len = rs_end_addr(&s->local, s->local.family, &a);

	/* IPv4 in IPv6 is for the program only; at any address both are meant */
	s->rs = rsocket(s->local.family, SOCK_STREAM, 0);
	if (s->rs < 0)
		return -errno;
	copy_options(s);
	if (rbind(s->rs, (struct sockaddr *)&a, len))
		return -errno;
	len = sizeof(a);
	if (rgetsockname(s->rs, (struct sockaddr *)&a, &len))
		return -errno;
	s->local = rs_end_of((struct sockaddr *)&a, len);
	return 0;
}

int make_listening(struct socket *s)
{
	if (rlisten(s->rs, s->backlog))
		return -errno;
	return rfcntl(s->rs, F_SETFL, O_NONBLOCK) ? -errno : 0;
}

int make_connecting(struct socket *s)
{
	struct sockaddr_storage a;
	socklen_t len;

	if (s->remote.family != s->local.family)
		return -EAFNOSUPPORT;
	len = rs_end_addr(&s->remote, s->remote.family, &a);
	if (rfcntl(s->rs, F_SETFL, O_NONBLOCK))
		return -errno;
	if (rconnect(s->rs, (struct sockaddr *)&a, len) && errno != EINPROGRESS)
		return -errno;
	s->connecting = true;
	return 0;
}
