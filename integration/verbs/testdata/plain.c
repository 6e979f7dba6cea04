/*
 * A program that knows nothing of RDMA, for `vrnic exec --rsockets`: what sockets of TCP do, and
 * what it does not see. Both ends are in this process, or in a child of it.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "vt.h"

static struct sockaddr_in addr(const char *of, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };

	CHECK_EQ(inet_pton(AF_INET, of, &a.sin_addr), 1);
	return a;
}

/* The kernel's own word of it. */
static bool over_rdma(int s)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof(a);

	CHECK_EQ(syscall(SYS_getsockname, s, &a, &len), 0);
	return a.ss_family == AF_UNIX;
}

static void wait_for(int s, short events)
{
	struct pollfd p = { .fd = s, .events = events };

	CHECK_EQ(poll(&p, 1, VT_PATIENCE), 1);
}

static int listener(const char *of, struct sockaddr_in *at)
{
	socklen_t len = sizeof(*at);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;

	*at = addr(of, 0);
	CHECK(l >= 0);
	CHECK_EQ(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
	CHECK_EQ(bind(l, (struct sockaddr *)at, sizeof(*at)), 0);
	CHECK_EQ(listen(l, 8), 0);
	CHECK_EQ(getsockname(l, (struct sockaddr *)at, &len), 0);
	CHECK_EQ(len, sizeof(*at));
	CHECK(at->sin_port != 0);
	CHECK(over_rdma(l));
	CHECK_EQ(fcntl(l, F_GETFD), FD_CLOEXEC);
	return l;
}

static int dial(const struct sockaddr_in *at)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(s >= 0);
	CHECK_EQ(connect(s, (struct sockaddr *)at, sizeof(*at)), 0);
	CHECK_EQ(fcntl(s, F_GETFD), 0);
	return s;
}

static void joined(int s[2])
{
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at);

	s[0] = dial(&at);
	s[1] = accept(l, NULL, NULL);
	CHECK(s[1] >= 0);
	CHECK(over_rdma(s[0]));
	CHECK(over_rdma(s[1]));
	CHECK_EQ(close(l), 0);
}

static int option(int s, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	CHECK_EQ(getsockopt(s, level, name, &value, &len), 0);
	return value;
}

static void names(void)
{
	struct sockaddr_in at, own, peer, seen;
	socklen_t len = sizeof(at);
	int l = listener(getenv("VT_SERVER"), &at), s = dial(&at), a, other, yes = 1;
	struct tcp_info info;
	char algorithm[16];

	a = accept4(l, (struct sockaddr *)&seen, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
	CHECK(a >= 0);
	CHECK_EQ(len, sizeof(seen));
	CHECK(fcntl(a, F_GETFL) & O_NONBLOCK);
	CHECK_EQ(fcntl(a, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(getsockname(s, (struct sockaddr *)&own, &len), 0);
	CHECK(!memcmp(&own, &seen, sizeof(own)));
	CHECK_EQ(getpeername(s, (struct sockaddr *)&peer, &len), 0);
	CHECK(!memcmp(&peer, &at, sizeof(peer)));
	CHECK_EQ(getsockname(a, (struct sockaddr *)&own, &len), 0);
	CHECK(!memcmp(&own, &at, sizeof(own)));
	CHECK_ERRNO(getpeername(l, (struct sockaddr *)&peer, &len), ENOTCONN);

	CHECK_EQ(option(s, SOL_SOCKET, SO_DOMAIN), AF_INET);
	CHECK_EQ(option(l, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
	CHECK_EQ(option(a, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
	CHECK_EQ(option(l, SOL_SOCKET, SO_ACCEPTCONN), 1);
	CHECK_EQ(option(a, SOL_SOCKET, SO_ACCEPTCONN), 0);
	CHECK_EQ(option(a, IPPROTO_TCP, TCP_NODELAY), 0);
	CHECK_EQ(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), 0);
	CHECK_EQ(option(a, IPPROTO_TCP, TCP_NODELAY), 1);
	CHECK_EQ(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes)), 0);
	CHECK_EQ(option(s, SOL_SOCKET, SO_KEEPALIVE), 1);
	CHECK(option(s, IPPROTO_TCP, TCP_MAXSEG) > 0);
	len = sizeof(info);
	CHECK_EQ(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
	CHECK_EQ(info.tcpi_state, TCP_ESTABLISHED);
	len = sizeof(algorithm);
	CHECK_EQ(getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, algorithm, &len), 0);
	CHECK_ERRNO(setsockopt(s, IPPROTO_TCP, 9999, &yes, sizeof(yes)), ENOPROTOOPT);

	other = socket(AF_INET, SOCK_STREAM, 0);
	CHECK_ERRNO(bind(other, (struct sockaddr *)&at, sizeof(at)), EADDRINUSE);
	CHECK_EQ(close(other), 0);
	CHECK_EQ(close(l), 0);
	/* the port is free with its socket */
	other = socket(AF_INET, SOCK_STREAM, 0);
	CHECK_EQ(bind(other, (struct sockaddr *)&at, sizeof(at)), 0);
	CHECK_EQ(close(other), 0);
	CHECK_EQ(close(s), 0);
	CHECK_EQ(close(a), 0);
}

/* The peer of a connection that is over has a name for who accepts it. */
static void gone(void)
{
	struct linger now = { .l_onoff = 1 };
	struct sockaddr_in at, own, seen = { 0 };
	socklen_t len = sizeof(own);
	int l = listener(getenv("VT_SERVER"), &at), s = dial(&at), a;

	CHECK_EQ(getsockname(s, (struct sockaddr *)&own, &len), 0);
	wait_for(l, POLLIN);
	CHECK_EQ(setsockopt(s, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	CHECK_EQ(close(s), 0);
	usleep(200000); /* if it has not been seen by now the test is easier */
	a = accept(l, (struct sockaddr *)&seen, &len);
	CHECK(a >= 0);
	CHECK_EQ(len, sizeof(seen));
	CHECK(!memcmp(&own, &seen, sizeof(own)));
	CHECK_EQ(close(a), 0);
	CHECK_EQ(close(l), 0);
}

/* Who was refused connects again, on the same descriptor, when there is somebody. */
static void refused(void)
{
	struct sockaddr_in at = addr(getenv("VT_SERVER"), 0), own = at;
	socklen_t len = sizeof(at);
	int l = listener(getenv("VT_SERVER"), &at), s[3], i, a, yes = 1;
	char c;

	CHECK_EQ(close(l), 0);
	for (i = 0; i < 3; i++) {
		s[i] = socket(AF_INET, SOCK_STREAM | (i == 2 ? SOCK_NONBLOCK : 0), 0);
		CHECK_EQ(setsockopt(s[i], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), 0);
		if (i == 1)
			CHECK_EQ(bind(s[i], (struct sockaddr *)&own, sizeof(own)), 0);
		if (i < 2)
			CHECK_ERRNO(connect(s[i], (struct sockaddr *)&at, sizeof(at)), ECONNREFUSED);
		else {
			CHECK_ERRNO(connect(s[i], (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
			wait_for(s[i], POLLOUT);
			CHECK_ERRNO(connect(s[i], (struct sockaddr *)&at, sizeof(at)), ECONNREFUSED);
		}
		CHECK_EQ(option(s[i], SOL_SOCKET, SO_ERROR), 0);
	}
	CHECK_EQ(option(s[0], IPPROTO_TCP, TCP_NODELAY), 1);
	CHECK(over_rdma(s[1]));
	l = socket(AF_INET, SOCK_STREAM, 0);
	CHECK_EQ(bind(l, (struct sockaddr *)&at, sizeof(at)), 0);
	CHECK_EQ(listen(l, 8), 0);
	for (i = 0; i < 3; i++) {
		if (i < 2)
			CHECK_EQ(connect(s[i], (struct sockaddr *)&at, sizeof(at)), 0);
		else
			CHECK_ERRNO(connect(s[i], (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
		CHECK(over_rdma(s[i]));
		CHECK((a = accept(l, (struct sockaddr *)&own, &len)) >= 0);
		CHECK_EQ(write(a, "x", 1), 1);
		wait_for(s[i], POLLIN);
		CHECK_EQ(read(s[i], &c, 1), 1);
		CHECK_EQ(close(a), 0);
		CHECK_EQ(close(s[i]), 0);
	}
	CHECK_EQ(close(l), 0);
}

/* A call that succeeds, and does not clear errno. */
#define KEEPS(call)                                             \
	do {                                                    \
		errno = EXDEV;                                  \
		if ((call) || !errno)                           \
			FAIL(#call ": %s", strerror(errno));    \
	} while (0)

static void errors(void)
{
	struct sockaddr_in at = addr(getenv("VT_SERVER"), 0);
	int l = socket(AF_INET, SOCK_STREAM, 0), s = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
	socklen_t len = sizeof(at), olen = sizeof(yes);

	KEEPS(bind(l, (struct sockaddr *)&at, sizeof(at)));
	KEEPS(listen(l, 8));
	KEEPS(getsockname(l, (struct sockaddr *)&at, &len));
	KEEPS(connect(s, (struct sockaddr *)&at, sizeof(at)));
	KEEPS(getpeername(s, (struct sockaddr *)&at, &len));
	KEEPS(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)));
	KEEPS(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, &yes, &olen));
	CHECK_EQ(close(s), 0);
	CHECK_EQ(close(l), 0);
}

static void nothing(int sig) { (void)sig; }

static void *interrupts(void *whom)
{
	for (int i = 0; i < 20; i++) {
		usleep(2000);
		CHECK_EQ(pthread_kill(*(pthread_t *)whom, SIGUSR1), 0);
	}
	return NULL;
}

/* A call that is interrupted goes on if the handler has SA_RESTART, as the kernel's do. */
static void interrupted(void)
{
	struct sigaction h = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	struct sockaddr_in at;
	pthread_t self = pthread_self(), other;
	int l = listener(getenv("VT_SERVER"), &at), s, a;

	CHECK_EQ(sigaction(SIGUSR1, &h, NULL), 0);
	CHECK_EQ(pthread_create(&other, NULL, interrupts, &self), 0);
	while (pthread_tryjoin_np(other, NULL)) {
		s = dial(&at);
		CHECK((a = accept(l, NULL, NULL)) >= 0);
		CHECK_EQ(close(s), 0);
		CHECK_EQ(close(a), 0);
	}
	CHECK_EQ(close(l), 0);
}

/* An address of another family than the socket's is refused, as the kernel refuses its own. */
static void families(void)
{
	struct sockaddr_in at = addr(getenv("VT_SERVER"), 7);
	struct sockaddr_in6 at6 = { .sin6_family = AF_INET6, .sin6_port = htons(7) };
	int s = socket(AF_INET, SOCK_STREAM, 0), s6 = socket(AF_INET6, SOCK_STREAM, 0);

	CHECK_EQ(inet_pton(AF_INET6, "fd77::2", &at6.sin6_addr), 1); /* of a device */
	CHECK_ERRNO(bind(s, (struct sockaddr *)&at6, sizeof(at6)), EAFNOSUPPORT);
	CHECK_ERRNO(connect(s, (struct sockaddr *)&at6, sizeof(at6)), EAFNOSUPPORT);
	CHECK_ERRNO(bind(s6, (struct sockaddr *)&at, sizeof(at)), EINVAL);
	CHECK_ERRNO(connect(s6, (struct sockaddr *)&at, sizeof(at)), EINVAL);
	CHECK(!over_rdma(s));
	at.sin_port = 0;
	CHECK_EQ(bind(s, (struct sockaddr *)&at, sizeof(at)), 0);
	CHECK(over_rdma(s));
	CHECK_ERRNO(connect(s, (struct sockaddr *)&at6, sizeof(at6)), EAFNOSUPPORT);
	CHECK_ERRNO(connect(s, (struct sockaddr *)&at, 4), EINVAL);
	at6.sin6_port = 0;
	CHECK_EQ(bind(s6, (struct sockaddr *)&at6, sizeof(at6)), 0);
	CHECK_ERRNO(connect(s6, (struct sockaddr *)&at, sizeof(at)), EINVAL);
	CHECK_EQ(close(s), 0);
	CHECK_EQ(close(s6), 0);
}

/* Who asks when the process that has the sockets has no descriptors left is told so. */
static void crowd(void)
{
	struct rlimit few = { 120, 120 };
	int s[120], n = 0, i, l, c, err = 0;
	struct pollfd p[2];
	struct sockaddr_in at;
	in_port_t port;

	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	l = listener(getenv("VT_SERVER"), &at);
	port = at.sin_port;
	while (!err) {
		c = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(c >= 0);
		if (connect(c, (struct sockaddr *)&at, sizeof(at))) {
			err = errno;
			close(c);
			continue;
		}
		CHECK(n + 2 <= (int)few.rlim_cur);
		p[0] = (struct pollfd){ .fd = l, .events = POLLIN };
		p[1] = (struct pollfd){ .fd = c, .events = POLLIN };
		CHECK(poll(p, 2, VT_PATIENCE) > 0);
		if (p[0].revents) {
			s[n++] = c;
			CHECK((s[n++] = accept(l, NULL, NULL)) >= 0);
		} else { /* there was none for the end that is accepted */
			err = ECONNRESET;
			close(c);
		}
	}
	/* for its own end, or its peer's, which may refuse it or end */
	if (err != ECONNREFUSED && err != ECONNRESET)
		CHECK_EQ(err, EMFILE);
	/* what is left goes to some that only bind; who is refused may ask again, and is answered */
	at.sin_port = 0;
	for (i = 0; i < 3;) {
		CHECK(n < (int)few.rlim_cur);
		CHECK((c = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
		if (bind(c, (struct sockaddr *)&at, sizeof(at))) {
			err = errno;
			CHECK_EQ(err, EMFILE);
			CHECK_EQ(close(c), 0);
			i++;
		} else {
			s[n++] = c;
		}
	}
	at.sin_port = port;
	while (n)
		CHECK_EQ(close(s[--n]), 0);
	for (i = 0, c = -1; c < 0 && i < 3000; i++) { /* what is closed goes in a moment */
		c = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(c, (struct sockaddr *)&at, sizeof(at))) {
			close(c);
			c = -1;
			usleep(10000);
		}
	}
	CHECK(c >= 0);
	CHECK_EQ(close(c), 0);
	CHECK_EQ(close(l), 0);
}

/* Registered before it is connected, as a proxy does. */
static void waiting(void)
{
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), e = epoll_create1(0), s, a;
	struct epoll_event ev = { .events = EPOLLOUT | EPOLLET, .data.u64 = 0x1234567890 };

	CHECK_EQ(fcntl(l, F_SETFL, O_NONBLOCK), 0);
	CHECK_ERRNO(accept(l, NULL, NULL), EAGAIN);
	s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_EQ(epoll_ctl(e, EPOLL_CTL_ADD, s, &ev), 0);
	CHECK_EQ(epoll_wait(e, &ev, 1, 0), 1); /* as sockets do that nothing has come of */
	CHECK_ERRNO(connect(s, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	ev.data.u64 = 0;
	CHECK_EQ(epoll_wait(e, &ev, 1, VT_PATIENCE), 1);
	CHECK_EQ(ev.data.u64, 0x1234567890);
	CHECK_EQ(ev.events, EPOLLOUT);
	CHECK_EQ(option(s, SOL_SOCKET, SO_ERROR), 0);
	CHECK_ERRNO(connect(s, (struct sockaddr *)&at, sizeof(at)), EISCONN);
	wait_for(l, POLLIN);
	a = accept(l, NULL, NULL);
	CHECK(a >= 0);
	CHECK_EQ(fcntl(a, F_GETFL) & O_NONBLOCK, 0);
	CHECK_EQ(close(a), 0);
	CHECK_EQ(close(s), 0);
	CHECK_EQ(close(l), 0);

	/* nobody listens any more */
	s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK_ERRNO(connect(s, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
	wait_for(s, POLLOUT);
	CHECK_EQ(option(s, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
	CHECK_EQ(option(s, SOL_SOCKET, SO_ERROR), 0);
	CHECK_EQ(close(s), 0);
	s = socket(AF_INET, SOCK_STREAM, 0);
	CHECK_ERRNO(connect(s, (struct sockaddr *)&at, sizeof(at)), ECONNREFUSED);
	CHECK_EQ(close(s), 0);
	CHECK_EQ(close(e), 0);
}

static void *accepts(void *l)
{
	return (void *)(intptr_t)(accept((intptr_t)l, NULL, NULL) < 0 ? errno : 0);
}

/* A thread that waits for connections is woken. */
static void shut(void)
{
	static const char much_more[1 << 20];
	struct pollfd p;
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), s[2];
	pthread_t t;
	void *err;
	char c;

	CHECK_EQ(pthread_create(&t, NULL, accepts, (void *)(intptr_t)l), 0);
	usleep(20000); /* it waits by then, or finds it so */
	CHECK_EQ(shutdown(l, SHUT_RDWR), 0);
	CHECK_EQ(pthread_join(t, &err), 0);
	CHECK_EQ((intptr_t)err, EINVAL);
	CHECK_EQ(close(l), 0);
	joined(s);
	/* so is one that reads while what was written is still to go */
	CHECK_EQ(fcntl(s[0], F_SETFL, O_NONBLOCK), 0);
	p = (struct pollfd){ .fd = s[0], .events = POLLOUT };
	while (write(s[0], much_more, sizeof(much_more)) > 0 || poll(&p, 1, 300) == 1)
		; /* the peer does not read, and nobody has room for more */
	CHECK_EQ(shutdown(s[0], SHUT_RDWR), 0);
	CHECK_EQ(read(s[0], &c, 1), 0);
	CHECK_EQ(close(s[0]), 0);
	CHECK_EQ(close(s[1]), 0);
	joined(s);
	CHECK_EQ(shutdown(s[0], SHUT_RDWR), 0);
	CHECK_EQ(read(s[0], &c, 1), 0);
	CHECK_EQ(read(s[1], &c, 1), 0);
	CHECK_EQ(close(s[0]), 0);
	CHECK_EQ(close(s[1]), 0);
}

static void ends(void)
{
	struct linger now = { 1, 0 };
	char buf[100];
	int s[2];
	pid_t child;

	/* one direction, then the other */
	joined(s);
	CHECK_EQ(write(s[0], "abc", 3), 3);
	CHECK_EQ(shutdown(s[0], SHUT_WR), 0);
	CHECK_EQ(recv(s[1], buf, sizeof(buf), MSG_WAITALL), 3);
	CHECK_EQ(read(s[1], buf, sizeof(buf)), 0);
	CHECK_EQ(write(s[1], "back", 4), 4);
	CHECK_EQ(close(s[1]), 0);
	CHECK_EQ(recv(s[0], buf, sizeof(buf), MSG_WAITALL), 4);
	CHECK_EQ(read(s[0], buf, sizeof(buf)), 0);
	CHECK_EQ(close(s[0]), 0);

	/* it says that it wants to hear no more */
	joined(s);
	CHECK_EQ(shutdown(s[0], SHUT_RD), 0);
	CHECK_EQ(read(s[0], buf, sizeof(buf)), 0);
	CHECK_EQ(close(s[0]), 0);
	CHECK_EQ(read(s[1], buf, sizeof(buf)), 0);
	CHECK_EQ(close(s[1]), 0);

	/* a reset, by whoever asks for it */
	joined(s);
	CHECK_EQ(setsockopt(s[0], SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	CHECK_EQ(close(s[0]), 0);
	CHECK_ERRNO(read(s[1], buf, sizeof(buf)), ECONNRESET);
	CHECK_EQ(close(s[1]), 0);

	/* or does not read what has come */
	joined(s);
	CHECK_EQ(write(s[1], "unread", 6), 6);
	wait_for(s[0], POLLIN);
	CHECK_EQ(close(s[0]), 0);
	CHECK_ERRNO(recv(s[1], buf, sizeof(buf), 0), ECONNRESET);
	CHECK_EQ(close(s[1]), 0);

	/* a program that is killed has closed its sockets */
	joined(s);
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		CHECK_EQ(write(s[0], "last", 4), 4);
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(close(s[0]), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK_EQ(recv(s[1], buf, sizeof(buf), MSG_WAITALL), 4);
	CHECK_EQ(recv(s[1], buf, sizeof(buf), 0), 0);
	CHECK_EQ(close(s[1]), 0);
}

/* What has been accepted ends at once, one way or both, and the other side hears of no error. */
static void brief(void)
{
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), s, a, i;
	char c;

	for (i = 0; i < 20; i++) {
		s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK_ERRNO(connect(s, (struct sockaddr *)&at, sizeof(at)), EINPROGRESS);
		CHECK((a = accept(l, NULL, NULL)) >= 0);
		CHECK_EQ(i % 2 ? shutdown(a, SHUT_WR) : close(a), 0);
		wait_for(s, POLLOUT);
		CHECK_EQ(option(s, SOL_SOCKET, SO_ERROR), 0);
		wait_for(s, POLLIN);
		CHECK_EQ(read(s, &c, 1), 0);
		CHECK_EQ(close(s), 0);
		if (i % 2)
			CHECK_EQ(close(a), 0);
	}
	CHECK_EQ(close(l), 0);
}

enum { MUCH = 6 << 20 };

static char octet(uint32_t at, int way) { return (at * 7 + at / 251 + way) % 253; }

/* Both ways at the same time, until each has got all. */
static void much(void)
{
	static char buf[50000];
	uint32_t out[2] = { 0 }, in[2] = { 0 }, i, k;
	ssize_t n;
	int s[2];

	joined(s);
	for (k = 0; k < 2; k++)
		CHECK_EQ(fcntl(s[k], F_SETFL, O_NONBLOCK), 0);
	while (in[0] < MUCH || in[1] < MUCH) {
		struct pollfd p[2] = { { .fd = s[0], .events = POLLIN },
				       { .fd = s[1], .events = POLLIN } };

		for (k = 0; k < 2; k++)
			p[k].events |= out[k] < MUCH ? POLLOUT : 0;
		CHECK(poll(p, 2, VT_PATIENCE) > 0);
		for (k = 0; k < 2; k++) {
			uint32_t want = 1 + out[k] % sizeof(buf);

			if (want > MUCH - out[k])
				want = MUCH - out[k];
			for (i = 0; i < want; i++)
				buf[i] = octet(out[k] + i, k);
			n = p[k].revents & POLLOUT ? write(s[k], buf, want) : 0;
			out[k] += n > 0 ? n : 0;
			n = p[k].revents & POLLIN ? read(s[k], buf, sizeof(buf)) : 0;
			for (i = 0; n > 0 && i < n; i++)
				CHECK_EQ(buf[i], octet(in[k] + i, !k));
			in[k] += n > 0 ? n : 0;
		}
	}
	CHECK_EQ(close(s[0]), 0);
	CHECK_EQ(close(s[1]), 0);
}

/* A child accepts, and what it got is the parent's no less. */
static void inherited(void)
{
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), s, a, dup_of;
	char buf[10] = { 0 };
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		a = accept(l, NULL, NULL);
		dup_of = dup(a);
		CHECK_EQ(close(a), 0);
		CHECK_EQ(read(dup_of, buf, 5), 5);
		CHECK_EQ(write(dup_of, buf, 5), 5);
		_exit(0);
	}
	s = dial(&at);
	CHECK_EQ(close(l), 0);
	CHECK_EQ(write(s, "hello", 5), 5);
	CHECK_EQ(recv(s, buf, 5, MSG_WAITALL), 5);
	CHECK(!strcmp(buf, "hello"));
	CHECK_EQ(read(s, buf, 1), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK_EQ(close(s), 0);
}

/* At all addresses a socket listens to both worlds; localhost is the kernel's. */
static void anywhere(void)
{
	struct sockaddr_in at, seen, to[2];
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM, 0), i, s, a;

	at = addr("0.0.0.0", 0);
	CHECK_EQ(bind(l, (struct sockaddr *)&at, sizeof(at)), 0);
	CHECK_EQ(listen(l, 8), 0);
	CHECK_EQ(getsockname(l, (struct sockaddr *)&at, &len), 0);
	to[0] = addr("127.0.0.1", ntohs(at.sin_port));
	to[1] = addr(getenv("VT_SERVER"), ntohs(at.sin_port));
	for (i = 0; i < 2; i++) {
		s = dial(&to[i]);
		CHECK_EQ(over_rdma(s), i);
		a = accept(l, (struct sockaddr *)&seen, &len);
		CHECK(a >= 0);
		CHECK_EQ(over_rdma(a), i);
		CHECK_EQ(seen.sin_addr.s_addr == to[0].sin_addr.s_addr, !i);
		CHECK_EQ(close(a), 0);
		CHECK_EQ(close(s), 0);
	}
	CHECK_EQ(close(l), 0);
}

/* Who may not ask leaves nothing with the process that is asked, be it two descriptors. */
static void stranger(void)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} c = { .h = { .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
		       .cmsg_len = CMSG_LEN(2 * sizeof(int)) } };
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct iovec v = { "x", 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	const char *word = strchr(getenv("VRNIC_RSOCKETS"), '.') + 1;
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), s, p[2], two[2], n;

	n = snprintf(to.sun_path + 1, sizeof(to.sun_path) - 1, "vrnic-rsocketd.%.*s",
		     (int)strcspn(word, "."), word);
	s = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	CHECK_EQ(connect(s, (struct sockaddr *)&to, offsetof(struct sockaddr_un, sun_path) + 1 + n), 0);
	CHECK_EQ(pipe(p), 0);
	two[0] = two[1] = p[1];
	memcpy(CMSG_DATA(&c.h), two, sizeof(two));
	CHECK_EQ(sendmsg(s, &m, 0), 1);
	CHECK_EQ(close(p[1]), 0);
	wait_for(p[0], 0); /* a hang-up: nobody has the other end */
	CHECK_EQ(close(p[0]), 0);
	CHECK_EQ(close(s), 0);
	CHECK_EQ(close(l), 0);
}

/* Root, too, has its options set by who has no rights: others may ask the same process. */
static void rights(void)
{
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), yes = 1;

	CHECK_EQ(setsockopt(l, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), 0);
	CHECK_ERRNO(setsockopt(l, IPPROTO_IP, IP_TRANSPARENT, &yes, sizeof(yes)), EPERM);
	CHECK_EQ(close(l), 0);
}

/* A worker that is another user uses the sockets of the process that root's part has started. */
static void users(void)
{
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), a, status;
	pid_t pid = fork();
	char c;

	CHECK(pid >= 0);
	if (!pid) {
		CHECK_EQ(setgid(65534), 0);
		CHECK_EQ(setuid(65534), 0);
		a = dial(&at);
		CHECK(over_rdma(a));
		CHECK_EQ(write(a, "x", 1), 1);
		CHECK_EQ(read(a, &c, 1), 1);
		_exit(c != 'y');
	}
	CHECK((a = accept(l, NULL, NULL)) >= 0);
	CHECK_EQ(read(a, &c, 1), 1);
	CHECK_EQ(write(a, "y", 1), 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(close(a), 0);
	CHECK_EQ(close(l), 0);
}

/* Without the process that has the sockets they are over; new ones get another. */
static void killed(void)
{
	struct sockaddr_in at;
	int l = listener(getenv("VT_SERVER"), &at), s[2], again[2];
	struct ucred who;
	socklen_t len = sizeof(who);
	char c;

	joined(s);
	CHECK_EQ(getsockopt(s[0], SOL_SOCKET, SO_PEERCRED, &who, &len), 0);
	CHECK(who.pid != getpid());
	CHECK_EQ(kill(who.pid, SIGKILL), 0);
	CHECK_ERRNO(read(s[0], &c, 1), ECONNRESET);
	CHECK_ERRNO(read(s[1], &c, 1), ECONNRESET);
	CHECK_ERRNO(send(s[1], &c, 1, MSG_NOSIGNAL), EPIPE);
	CHECK_ERRNO(accept(l, NULL, NULL), ENETDOWN);
	joined(again);
	CHECK_EQ(write(again[0], "x", 1), 1);
	CHECK_EQ(read(again[1], &c, 1), 1);
	CHECK_EQ(close(again[0]), 0);
	CHECK_EQ(close(again[1]), 0);
	CHECK_EQ(close(s[0]), 0);
	CHECK_EQ(close(s[1]), 0);
	CHECK_EQ(close(l), 0);
}

int main(int argc, char **argv)
{
	static const struct vt_case cases[] = { { "names", names }, { "gone", gone },
						{ "families", families },
						{ "errors", errors },
						{ "refused", refused },
						{ "interrupted", interrupted },
						{ "users", users },
						{ "crowd", crowd },
						{ "waiting", waiting },
						{ "ends", ends }, { "shut", shut },
						{ "brief", brief },
						{ "much", much },
						{ "inherited", inherited },
						{ "anywhere", anywhere },
						{ "stranger", stranger }, { "killed", killed },
						{ "rights", rights },
						{ NULL, NULL } };

	return vt_main(argc, argv, cases);
}
