// The peer's SCTP is usrsctp.
//
//	peer conn           packets are lines of standard input and output ("packet HEX"), and time
//	                    passes when it is told to ("tick MS"): nothing happens but in answer to
//	                    a line, and "." follows
//	peer udp PORT REMOTEPORT   SCTP over UDP (RFC 6951)
//	peer raw            over raw sockets, as root
#include "link.h"
#include "text.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <usrsctp.h>

static int conn;           // AF_CONN
static uint16_t encap;     // the other side's UDP port
typedef struct socket *handle;
static handle listener, sock;
static struct timeval now = {.tv_sec = 1000000000};

// The library's clock stands still between ticks.
int gettimeofday(struct timeval *restrict tv, void *restrict tz)
{
	(void)tz;
	if (conn) {
		*tv = now;
	} else {
		struct timespec ts;

		clock_gettime(CLOCK_MONOTONIC, &ts);
		tv->tv_sec = ts.tv_sec;
		tv->tv_usec = ts.tv_nsec / 1000;
	}
	return 0;
}

static int output(void *addr, void *packet, size_t len, uint8_t tos, uint8_t df)
{
	(void)addr, (void)tos, (void)df;
	printf("packet ");
	say_hex(packet, len);
	return 0;
}

union addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_conn conn;
};

static int address(union addr *a, const char *s, uint16_t port)
{
	memset(a, 0, sizeof(*a));
	if (conn) {
		a->conn.sconn_family = AF_CONN;
		a->conn.sconn_port = htons(port);
		a->conn.sconn_addr = &conn;
	} else if (strchr(s, ':') != NULL) {
		a->in6.sin6_family = AF_INET6;
		a->in6.sin6_port = htons(port);
		if (inet_pton(AF_INET6, s, &a->in6.sin6_addr) != 1)
			return EINVAL;
	} else {
		a->in.sin_family = AF_INET;
		a->in.sin_port = htons(port);
		if (inet_pton(AF_INET, s, &a->in.sin_addr) != 1)
			return EINVAL;
	}
	return 0;
}

static socklen_t size(const union addr *a)
{
	return a->sa.sa_family == AF_INET ? sizeof(a->in)
	    : a->sa.sa_family == AF_INET6 ? sizeof(a->in6) : sizeof(a->conn);
}

static void option(struct socket *s, int level, int name, const void *v, socklen_t len)
{
	if (usrsctp_setsockopt(s, level, name, v, len) < 0)
		say("option %d %s", name, strerror(errno));
}

#define SEND_ERROR(e) (e).ssfe_error
#define CAUSE(x) (x) // it is not in network order
#include "rfc6458.h"

static struct socket *open_socket(int family)
{
	struct socket *s;

	if (options.plain) {
		usrsctp_sysctl_set_sctp_ecn_enable(0);
		usrsctp_sysctl_set_sctp_asconf_enable(0);
		usrsctp_sysctl_set_sctp_auth_enable(0);
		usrsctp_sysctl_set_sctp_pr_enable(0);
		usrsctp_sysctl_set_sctp_nrsack_enable(0);
		usrsctp_sysctl_set_sctp_pktdrop_enable(0);
		usrsctp_sysctl_set_sctp_reconfig_enable(0);
	}
	s = usrsctp_socket(family, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
	if (s == NULL)
		return NULL;
	usrsctp_set_non_blocking(s, 1);
	set_options(s);
	if (encap) {
		struct sctp_udpencaps e = {.sue_address.ss_family = family, .sue_port = htons(encap)};

		option(s, IPPROTO_SCTP, SCTP_REMOTE_UDP_ENCAPS_PORT, &e, sizeof(e));
	}
	return s;
}

static int bind_all(struct socket *s, uint16_t port, int n, char **w)
{
	union addr a;
	int err;

	if (n == 0) {
		if (port == 0 || !conn)
			return 0;
		address(&a, "", port);
		return usrsctp_bind(s, &a.sa, size(&a)) < 0 ? errno : 0;
	}
	for (int i = 0; i < n; i++) {
		if ((err = address(&a, w[i], port)) != 0)
			return err;
		if (i == 0 ? usrsctp_bind(s, &a.sa, size(&a)) < 0
		    : usrsctp_bindx(s, &a.sa, 1, SCTP_BINDX_ADD_ADDR) < 0)
			return errno;
	}
	return 0;
}

static int family(const char *addr)
{
	return conn ? AF_CONN : strchr(addr, ':') ? AF_INET6 : AF_INET;
}

int link_listen(uint16_t port, int naddr, char **addr)
{
	int err;

	if ((listener = open_socket(family(naddr ? addr[0] : ""))) == NULL)
		return errno;
	if ((err = bind_all(listener, port, naddr, addr)) != 0)
		return err;
	return usrsctp_listen(listener, 1) < 0 ? errno : 0;
}

int link_connect(uint16_t port, const char *to, uint16_t lport, int naddr, char **addr)
{
	union addr a;
	int err;

	if ((err = address(&a, to, port)) != 0)
		return err;
	if ((sock = open_socket(a.sa.sa_family)) == NULL)
		return errno;
	if ((err = bind_all(sock, lport, naddr, addr)) != 0)
		return err;
	if (usrsctp_connect(sock, &a.sa, size(&a)) < 0 && errno != EINPROGRESS)
		return errno;
	return 0;
}

int link_send(uint16_t stream, uint32_t ppid, int flags, const void *data, size_t len)
{
	struct sctp_sndinfo i = {.snd_sid = stream, .snd_ppid = htonl(ppid)};

	if (sock == NULL)
		return ENOTCONN;
	i.snd_flags = (flags & UNORDERED ? SCTP_UNORDERED : 0) |
	    (flags & IMMEDIATE ? SCTP_SACK_IMMEDIATELY : 0);
	if (usrsctp_sendv(sock, data, len, NULL, 0, &i, sizeof(i), SCTP_SENDV_SNDINFO, 0) < 0)
		return errno;
	return 0;
}

int link_abort(const char *reason)
{
	struct sctp_sndinfo i = {.snd_flags = SCTP_ABORT};

	if (sock == NULL)
		return ENOTCONN;
	ssize_t sent = usrsctp_sendv(sock, reason, strlen(reason), NULL, 0, &i, sizeof(i),
	    SCTP_SENDV_SNDINFO, 0);
	return sent < 0 ? errno : 0;
}

int link_shutdown(void)
{
	if (sock == NULL)
		return ENOTCONN;
	return usrsctp_shutdown(sock, SHUT_WR) < 0 ? errno : 0;
}

int link_heartbeat(void)
{
	struct sctp_paddrparams p = {.spp_flags = SPP_HB_DEMAND};
	struct sockaddr *a;
	int err = 0;

	if (sock == NULL)
		return ENOTCONN;
	if (usrsctp_getpaddrs(sock, 0, &a) < 1)
		return ENOTCONN;
	memcpy(&p.spp_address, a, size((union addr *)a));
	if (usrsctp_setsockopt(sock, IPPROTO_SCTP, SCTP_PEER_ADDR_PARAMS, &p, sizeof(p)) < 0)
		err = errno;
	usrsctp_freepaddrs(a);
	return err;
}

int link_status(void)
{
	struct sctp_status s = {0};
	socklen_t len = sizeof(s);
	struct sockaddr *a;

	if (sock == NULL || usrsctp_getsockopt(sock, IPPROTO_SCTP, SCTP_STATUS, &s, &len) < 0)
		return ENOTCONN;
	say("status state %d rwnd %u unacked %u streams %u %u fragment %u paths %d", s.sstat_state,
	    s.sstat_rwnd, s.sstat_unackdata, s.sstat_outstrms, s.sstat_instrms,
	    s.sstat_fragmentation_point, usrsctp_getpaddrs(sock, 0, &a));
	return 0;
}

static uint8_t *text;
static size_t have;

static void take(struct socket *s)
{
	static uint8_t b[1 << 18];

	for (;;) {
		struct sctp_rcvinfo i;
		socklen_t ilen = sizeof(i), fromlen = sizeof(union addr);
		unsigned type = 0;
		int flags = 0;
		union addr from;
		ssize_t n = usrsctp_recvv(s, b, sizeof(b), &from.sa, &fromlen, &i, &ilen, &type, &flags);

		if (n < 0) {
			if (errno != EAGAIN && errno != EWOULDBLOCK) {
				say("gone %s", strerror(errno));
				usrsctp_close(s);
				sock = NULL;
			}
			return;
		}
		if (n == 0) { // the other side is done; the last notification has been seen
			say("end");
			usrsctp_close(s);
			sock = NULL;
			return;
		}
		if (flags & MSG_NOTIFICATION) {
			notification(b, n);
			continue;
		}
		text = realloc(text, have + n);
		memcpy(text + have, b, n);
		have += n;
		if (flags & MSG_EOR) {
			struct message m = {i.rcv_sid, i.rcv_ssn, ntohl(i.rcv_ppid), i.rcv_tsn,
			    !!(i.rcv_flags & SCTP_UNORDERED), text, have};

			have = 0;
			user->received(&m);
		}
	}
}

void link_poll(int reading)
{
	if (sock == NULL && listener != NULL) {
		sock = usrsctp_accept(listener, NULL, NULL);
		if (sock != NULL)
			usrsctp_set_non_blocking(sock, 1);
	}
	if (sock != NULL && reading)
		take(sock);
}

// lockstep runs AF_CONN.
static void lockstep(void)
{
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	while ((n = getline(&line, &cap, stdin)) > 0) {
		line[n - 1] = 0;
		if (strncmp(line, "packet ", 7) == 0) {
			size_t len;
			uint8_t *b = unhex(line + 7, &len);

			usrsctp_conninput(&conn, b, len, 0);
			free(b);
			user->pump();
		} else if (strncmp(line, "tick ", 5) == 0) {
			unsigned ms = atoi(line + 5);

			now.tv_usec += ms * 1000;
			now.tv_sec += now.tv_usec / 1000000;
			now.tv_usec %= 1000000;
			usrsctp_handle_timers(ms);
			user->pump();
		} else {
			user->command(line);
		}
		say(".");
		fflush(stdout);
	}
}

static void debug(const char *format, ...) { (void)format; }

int link_main(int argc, char **argv, const struct user *u)
{
	user = u;
	if (argc == 2 && strcmp(argv[1], "conn") == 0) {
		conn = 1;
		usrsctp_init_nothreads(0, output, debug);
		usrsctp_register_address(&conn);
		lockstep();
	} else if (argc == 4 && strcmp(argv[1], "udp") == 0) {
		encap = atoi(argv[3]);
		usrsctp_init(atoi(argv[2]), NULL, debug);
		usrsctp_sysctl_set_sctp_no_csum_on_loopback(0);
		say("ready");
		fflush(stdout);
		user->real_time();
	} else if (argc == 2 && strcmp(argv[1], "raw") == 0) {
		usrsctp_init(0, NULL, debug);
		usrsctp_sysctl_set_sctp_no_csum_on_loopback(0);
		say("ready");
		fflush(stdout);
		user->real_time();
	} else {
		fprintf(stderr, "usage: peer conn | udp PORT REMOTEPORT | raw\n");
		return 2;
	}
	_exit(0); // usrsctp_finish waits for associations
}
