/* How sockets come about: which of them are over RDMA is decided here. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "rspreload.h"

/* Ports of programs that have just ended are free in a moment. */
enum { BUSY_MS = 300, BUSY_US = 10000 };

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* Asks for an end that fd becomes. */
static int replace(int fd, struct rs_ask *q, bool with_fd)
{
	struct rs_answer a;
	int end = -1, status = fcntl(fd, F_GETFL), r;
	int64_t until = now_ms() + BUSY_MS;

	while ((r = rs_ask(q, with_fd ? fd : -1, &a, &end)) && q->op == RS_OP_BIND &&
	       (errno == EBUSY || (errno == EADDRINUSE && now_ms() < until)))
		usleep(BUSY_US);
	if (r)
		return -1;
	if (end < 0) {
		errno = EMFILE; /* it could not be handed over */
		return -1;
	}
	return rs_swap(fd, end, status);
}

EXPORT int bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct rs_ask q = { .op = RS_OP_BIND };

	if (addr && (addr->sa_family == AF_INET || addr->sa_family == AF_INET6)) {
		q.local = rs_end_of(addr, len);
		/* of another family it is the kernel's to refuse */
		if (q.local.family && rs_is_device(&q.local) && rs_is_stream(fd, &q.family) &&
		    q.family == addr->sa_family)
			return replace(fd, &q, true);
	}
	return rs_next()->bind(fd, addr, len);
}

/* At all addresses a socket listens to the kernel's, too. */
static void listen_beside(int fd, int backlog)
{
	struct rs_ask q = { .op = RS_OP_LISTEN, .backlog = backlog };
	struct sockaddr_storage a;
	socklen_t len = sizeof(a);

	if (!rs_have_devices() || !rs_is_stream(fd, &q.family) ||
	    rs_next()->getsockname(fd, (struct sockaddr *)&a, &len))
		return;
	q.local = rs_end_of((struct sockaddr *)&a, len);
	if (rs_is_any(&q.local) && replace(fd, &q, true))
		rs_complain("a program listens at all addresses, but not over RDMA", errno);
}

EXPORT int listen(int fd, int backlog)
{
	struct rs_ask q = { .op = RS_OP_LISTEN, .backlog = backlog };
	struct rs_name n;
	int r;

	if (rs_is_ours(fd, &n)) {
		if (n.kind == RS_KIND_LISTENS)
			return 0;
		q.id = n.id;
		q.family = n.family;
		return replace(fd, &q, false);
	}
	r = rs_next()->listen(fd, backlog);
	if (!r)
		listen_beside(fd, backlog);
	return r;
}

/* What has come of the attempt to connect. */
static int outcome(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	int err;

	if (!poll(&p, 1, 0))
		return EALREADY;
	err = rs_verdict(fd);
	if (err >= 0)
		return err ? err : EISCONN;
	return p.revents & (POLLHUP | POLLERR) ? ECONNRESET : EISCONN;
}

/*
 * Whether a call goes on behind the handler of a signal, which one is not told: so it does if all
 * handlers that there are have SA_RESTART.
 */
static bool goes_on(void)
{
	struct sigaction a;
	int sig;

	for (sig = 1; sig < NSIG; sig++)
		if (!sigaction(sig, NULL, &a) && a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN &&
		    !(a.sa_flags & SA_RESTART))
			return false;
	return true;
}

/* For as long as SO_SNDTIMEO says; 0, or errno */
static int await(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	struct timeval t = { 0 };
	socklen_t len = sizeof(t);
	int r, err, ms;

	if (fcntl(fd, F_GETFL) & O_NONBLOCK)
		return EINPROGRESS;
	rs_next()->getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, &len);
	ms = t.tv_sec || t.tv_usec ? (int)(t.tv_sec * 1000 + t.tv_usec / 1000) : -1;
	do
		r = poll(&p, 1, ms);
	while (r < 0 && errno == EINTR && ms < 0 && goes_on());
	if (r < 0)
		return errno;
	if (!r)
		return EINPROGRESS;
	err = outcome(fd);
	len = sizeof(r);
	if (err != EISCONN)
		rs_next()->getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &len); /* it has been told */
	return err == EISCONN ? 0 : err;
}

/* False: it is the kernel's business. */
static bool is_rdma(int fd, const struct sockaddr *addr, socklen_t len, struct rs_ask *q)
{
	struct sockaddr_storage a;
	socklen_t alen = sizeof(a);
	struct rs_end own;

	if (!addr || (addr->sa_family != AF_INET && addr->sa_family != AF_INET6))
		return false;
	q->remote = rs_end_of(addr, len);
	if (!q->remote.family || !rs_device_for(&q->remote, &q->local) ||
	    !rs_is_stream(fd, &q->family) || q->family != addr->sa_family)
		return false;
	if (rs_next()->getsockname(fd, (struct sockaddr *)&a, &alen))
		return false;
	own = rs_end_of((struct sockaddr *)&a, alen);
	q->local.port = own.port;
	return rs_is_any(&own);
}

/* Of one that is bound over RDMA, what the kernel says of an address that it cannot connect to. */
static int refuse(const struct rs_name *n, const struct sockaddr *addr, socklen_t len)
{
	if (len < (n->family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)))
		return EINVAL;
	return n->family == addr->sa_family ? 0 : EAFNOSUPPORT;
}

/*
 * A connection that has not come about leaves a socket that can be connected again, as the kernel's
 * does: was, or if that is -1 a new one, without the options that the program had set.
 */
static void renew(int fd, int family, int was)
{
	int status = fcntl(fd, F_GETFL);

	if (was < 0)
		was = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (was >= 0)
		rs_swap(fd, was, status);
}

static bool failed(int err)
{
	return err && err != EINPROGRESS && err != EINTR && err != EALREADY && err != EISCONN;
}

/* Of a socket that is the kernel's. */
static int connect_new(int fd, struct rs_ask *q)
{
	int was = fcntl(fd, F_GETFL) & O_NONBLOCK ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
	int err = replace(fd, q, true) ? errno : 0;

	if (!err) {
		err = await(fd);
		if (failed(err)) {
			renew(fd, q->family, was);
			was = -1;
		}
	}
	if (was >= 0)
		close(was);
	return err;
}

/* Of one that is bound over RDMA, and stays so. */
static int connect_bound(int fd, const struct rs_name *n, const struct sockaddr *addr,
			 socklen_t len)
{
	struct rs_ask q = { .op = RS_OP_CONNECT, .id = n->id, .family = n->family, .local = n->local,
			    .remote = rs_end_of(addr, len) };
	struct rs_ask again = { .op = RS_OP_BIND, .family = n->family, .local = n->local };
	int err = refuse(n, addr, len);

	if (err || replace(fd, &q, false))
		return err ? err : errno;
	err = await(fd);
	if (failed(err)) {
		renew(fd, n->family, -1);
		(void)replace(fd, &again, true); /* or it is bound when it is connected */
	}
	return err;
}

/* Of one that was connected before. */
static int connect_again(int fd, const struct rs_name *n)
{
	int err = n->kind == RS_KIND_LISTENS ? EISCONN : outcome(fd);

	if (failed(err))
		renew(fd, n->family, -1); /* it is told now: the next attempt is another */
	return err;
}

EXPORT int connect(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct rs_ask q = { .op = RS_OP_CONNECT };
	struct rs_name n;
	int err;

	if (addr && (addr->sa_family == AF_INET || addr->sa_family == AF_INET6) &&
	    rs_is_ours(fd, &n))
		err = n.kind == RS_KIND_BOUND ? connect_bound(fd, &n, addr, len) : connect_again(fd, &n);
	else if (is_rdma(fd, addr, len, &q))
		err = connect_new(fd, &q);
	else
		return rs_next()->connect(fd, addr, len);
	if (!err)
		return 0;
	errno = err;
	return -1;
}

/* A name that a program asked for. */
static void give(const struct rs_end *e, int family, struct sockaddr *addr, socklen_t *len)
{
	struct sockaddr_storage a;
	socklen_t n = rs_end_addr(e, family, &a);

	if (!addr || !len)
		return;
	memcpy(addr, &a, *len < n ? *len : n);
	*len = n;
}

EXPORT int getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rs_name n;

	if (!rs_is_ours(fd, &n))
		return rs_next()->getsockname(fd, addr, len);
	give(&n.local, n.family, addr, len);
	return 0;
}

EXPORT int getpeername(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct rs_name n;

	if (!rs_is_ours(fd, &n))
		return rs_next()->getpeername(fd, addr, len);
	if (n.kind != RS_KIND_CONNECTS || rs_verdict(fd) > 0) {
		errno = ENOTCONN;
		return -1;
	}
	give(&n.remote, n.family, addr, len);
	return 0;
}

/* The other end has gone: nothing comes any more, and programs that wait would not be told so. */
static void abandon(int fd)
{
	int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	rs_complain("sockets over RDMA that listen have lost their process: start the program again",
		    ECONNRESET);
	if (s >= 0)
		rs_swap(fd, s, fcntl(fd, F_GETFL));
}

static int take(int fd, uint64_t id, int flags)
{
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(sizeof(int))];
	} c;
	char what;
	struct iovec v = { &what, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c,
			    .msg_controllen = sizeof(c) };
	int got;
	ssize_t n;

	n = rs_next()->recvmsg(fd, &m, flags & SOCK_CLOEXEC ? MSG_CMSG_CLOEXEC : 0);
	if (n < 0)
		return -1;
	if (!n && !rs_end_said(fd, id)) {
		errno = EINVAL; /* the program has shut it down */
		return -1;
	}
	if (!n) {
		abandon(fd);
		errno = ENETDOWN;
		return -1;
	}
	if (m.msg_controllen < CMSG_LEN(sizeof(int)) || c.h.cmsg_type != SCM_RIGHTS) {
		errno = EMFILE;
		return -1;
	}
	memcpy(&got, CMSG_DATA(&c.h), sizeof(got));
	if (flags & SOCK_NONBLOCK)
		fcntl(got, F_SETFL, fcntl(got, F_GETFL) | O_NONBLOCK);
	return got;
}

EXPORT int accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	int got = rs_next()->accept4(fd, addr, len, flags), err = errno;
	struct rs_name n, peer;

	if (got >= 0 || (err != EINVAL && err != EOPNOTSUPP))
		return got;
	if (!rs_is_ours(fd, &n) || n.kind != RS_KIND_LISTENS) {
		errno = err;
		return got;
	}
	if (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) {
		errno = EINVAL;
		return -1;
	}
	got = take(fd, n.id, flags);
	if (got >= 0 && rs_is_ours(got, &peer))
		give(&peer.remote, peer.family, addr, len); /* it may have gone meanwhile */
	else if (got >= 0 && addr && len && rs_next()->getpeername(got, addr, len))
		*len = 0; /* of the kernel's that has gone nobody says whose it was */
	return got;
}

EXPORT int accept(int fd, struct sockaddr *addr, socklen_t *len)
{
	return accept4(fd, addr, len, 0);
}
