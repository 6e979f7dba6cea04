// The peer's SCTP is Linux's.
#include "link.h"
#include "text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sctp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int handle;
static handle listener = -1, sock = -1;

static void option(handle s, int level, int name, const void *v, socklen_t len)
{
	if (setsockopt(s, level, name, v, len) < 0)
		say("option %d %s", name, strerror(errno));
}

#define SEND_ERROR(e) (e).ssf_error
#define CAUSE(x) ntohs(x)
#include "rfc6458.h"

union addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_storage ss;
};

static int address(union addr *a, const char *s, uint16_t port)
{
	memset(a, 0, sizeof(*a));
	if (strchr(s, ':') != NULL) {
		a->in6.sin6_family = AF_INET6;
		a->in6.sin6_port = htons(port);
		return inet_pton(AF_INET6, s, &a->in6.sin6_addr) == 1 ? 0 : EINVAL;
	}
	a->in.sin_family = AF_INET;
	a->in.sin_port = htons(port);
	return inet_pton(AF_INET, s, &a->in.sin_addr) == 1 ? 0 : EINVAL;
}

static socklen_t size(const union addr *a)
{
	return a->sa.sa_family == AF_INET ? sizeof(a->in) : sizeof(a->in6);
}

static int open_socket(int family)
{
	int s = socket(family, SOCK_STREAM | SOCK_NONBLOCK, IPPROTO_SCTP);

	if (s >= 0)
		set_options(s);
	return s;
}

static int bind_all(int s, uint16_t port, int n, char **w)
{
	union addr a;
	int err;

	for (int i = 0; i < n; i++) {
		socklen_t len = sizeof(a);

		if ((err = address(&a, w[i], port)) != 0)
			return err;
		if (i == 0) {
			if (bind(s, &a.sa, size(&a)) < 0)
				return errno;
			if (getsockname(s, &a.sa, &len) < 0)
				return errno;
			port = ntohs(a.in.sin_port); // where it is in IPv6's, too
		} else if (setsockopt(s, IPPROTO_SCTP, SCTP_SOCKOPT_BINDX_ADD, &a, size(&a)) < 0) {
			return errno;
		}
	}
	return 0;
}

static int family(const char *addr)
{
	return strchr(addr, ':') ? AF_INET6 : AF_INET;
}

int link_listen(uint16_t port, int naddr, char **addr)
{
	int err;

	if (naddr == 0)
		return EINVAL;
	if ((listener = open_socket(family(addr[0]))) < 0)
		return errno;
	if ((err = bind_all(listener, port, naddr, addr)) != 0)
		return err;
	// Associations that have ended wait to be accepted as others do.
	return listen(listener, 16) < 0 ? errno : 0;
}

int link_connect(uint16_t port, const char *to, uint16_t lport, int naddr, char **addr)
{
	union addr a;
	int err;

	if ((err = address(&a, to, port)) != 0)
		return err;
	if ((sock = open_socket(a.sa.sa_family)) < 0)
		return errno;
	if ((err = bind_all(sock, lport, naddr, addr)) != 0)
		return err;
	if (connect(sock, &a.sa, size(&a)) < 0 && errno != EINPROGRESS)
		return errno;
	return 0;
}

static int transmit(const struct sctp_sndinfo *i, const void *data, size_t len)
{
	char control[CMSG_SPACE(sizeof(*i))] = {0};
	struct iovec v = {(void *)data, len};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
	    .msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	if (sock < 0)
		return ENOTCONN;
	c->cmsg_level = IPPROTO_SCTP;
	c->cmsg_type = SCTP_SNDINFO;
	c->cmsg_len = CMSG_LEN(sizeof(*i));
	memcpy(CMSG_DATA(c), i, sizeof(*i));
	return sendmsg(sock, &m, MSG_NOSIGNAL) < 0 ? errno : 0;
}

int link_send(uint16_t stream, uint32_t ppid, int flags, const void *data, size_t len)
{
	struct sctp_sndinfo i = {.snd_sid = stream, .snd_ppid = htonl(ppid)};

	i.snd_flags = (flags & UNORDERED ? SCTP_UNORDERED : 0) |
	    (flags & IMMEDIATE ? SCTP_SACK_IMMEDIATELY : 0);
	return transmit(&i, data, len);
}

static void over(void)
{
	close(sock);
	sock = -1;
}

int link_abort(const char *reason)
{
	struct linger l = {1, 0};

	(void)reason; // takes a socket of another style
	if (setsockopt(sock, SOL_SOCKET, SO_LINGER, &l, sizeof(l)) < 0)
		return errno;
	over();
	return 0;
}

int link_shutdown(void)
{
	return shutdown(sock, SHUT_WR) < 0 ? errno : 0;
}

static int status(struct sctp_status *s)
{
	socklen_t len = sizeof(*s);

	memset(s, 0, sizeof(*s));
	return getsockopt(sock, IPPROTO_SCTP, SCTP_STATUS, s, &len) < 0 ? errno : 0;
}

int link_heartbeat(void)
{
	struct sctp_paddrparams p = {.spp_flags = SPP_HB_DEMAND};
	struct sctp_status s;
	int err = status(&s);

	if (err != 0)
		return err;
	p.spp_address = s.sstat_primary.spinfo_address;
	return setsockopt(sock, IPPROTO_SCTP, SCTP_PEER_ADDR_PARAMS, &p, sizeof(p)) < 0 ? errno : 0;
}

int link_status(void)
{
	static char b[sizeof(struct sctp_getaddrs) + 4096];
	socklen_t len = sizeof(b);
	struct sctp_status s;
	int err = status(&s);

	if (err != 0)
		return err;
	if (getsockopt(sock, IPPROTO_SCTP, SCTP_GET_PEER_ADDRS, b, &len) < 0)
		return errno;
	say("status state %d rwnd %u unacked %u streams %u %u fragment %u paths %u", s.sstat_state,
	    s.sstat_rwnd, s.sstat_unackdata, s.sstat_outstrms, s.sstat_instrms,
	    s.sstat_fragmentation_point, ((struct sctp_getaddrs *)b)->addr_num);
	return 0;
}

static uint8_t *text;
static size_t have;

static void take(void)
{
	static uint8_t b[1 << 18];

	for (;;) {
		char control[256];
		struct iovec v = {b, sizeof(b)};
		struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
		    .msg_controllen = sizeof(control)};
		struct sctp_rcvinfo i = {0};
		ssize_t n = recvmsg(sock, &m, 0);

		if (n < 0) {
			if (errno != EAGAIN) {
				say("gone %s", strerror(errno));
				over();
			}
			return;
		}
		if (n == 0) {
			say("end");
			over();
			return;
		}
		if (m.msg_flags & MSG_NOTIFICATION) {
			notification(b, n);
			continue;
		}
		for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c != NULL; c = CMSG_NXTHDR(&m, c))
			if (c->cmsg_level == IPPROTO_SCTP && c->cmsg_type == SCTP_RCVINFO)
				memcpy(&i, CMSG_DATA(c), sizeof(i));
		text = realloc(text, have + n);
		memcpy(text + have, b, n);
		have += n;
		if (m.msg_flags & MSG_EOR) {
			struct message r = {i.rcv_sid, i.rcv_ssn, ntohl(i.rcv_ppid), i.rcv_tsn,
			    !!(i.rcv_flags & SCTP_UNORDERED), text, have};

			have = 0;
			user->received(&r);
		}
	}
}

void link_poll(int reading)
{
	if (sock < 0 && listener >= 0)
		sock = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	if (sock >= 0 && reading)
		take();
}

int link_main(int argc, char **argv, const struct user *u)
{
	(void)argc, (void)argv;
	user = u;
	say("ready");
	fflush(stdout);
	user->real_time();
	return 0;
}
